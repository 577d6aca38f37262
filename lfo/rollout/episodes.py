"""The rollout loop: task -> prompt -> tokens -> action -> observation -> ... -> trajectory.

Plays many episodes in lock-step against one engine. With `imagine`, each group is given, as soon
as its directory is read and before the one form, what the world model says the intended
department would answer to an empty-handed call (DESIGN section 4).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lfo.config import EnvConfig, RolloutConfig, derive_seed
from lfo.env import Episode
from lfo.records import Task, Trajectory
from lfo.rollout.engine import Completion, Engine, Prompt
from lfo.sampling import directory_of, empty_handed_call, intended_number
from lfo.tokens import Codec, Role
from lfo.world import World

IMAGINED_TOKENS = 64  # at most, in one imagined reply


@dataclasses.dataclass(frozen=True)
class Job:
    """One rollout to be played. Jobs of a group share task and episode seed, so only the policy differs."""

    task: Task
    group: int
    episode_seed: int
    held_out_phrasing: bool = False


class _Row:
    """A trajectory in the making."""

    def __init__(self, number: int, job: Job, episode: Episode, codec: Codec):
        self.number, self.job, self.episode, self.codec = number, job, episode, codec
        self.tokens: list[int] = []
        self.roles: list[int] = []
        self.logprobs: list[float] = []
        self.imagined = False
        self.add(codec.prompt(episode.request), Role.PROMPT)

    def add(self, ids: Sequence[int], role: Role, logprobs: Sequence[float] | None = None) -> None:
        self.tokens += ids
        self.roles += [int(role)] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)

    def act(self, completion: Completion, budget: int) -> None:
        """Take a sampled action to the environment and append what it answers."""
        self.add(completion.tokens, Role.ACTION, completion.logprobs)
        result = self.episode.step(self.codec.action_text(completion.tokens))
        if result.observation:
            self.add(self.codec.observation(result.observation), Role.OBSERVATION)
        if len(self.tokens) >= budget:
            self.episode.cut()

    def finish(self, predict: str) -> Trajectory:
        episode = self.episode
        return Trajectory(
            task_id=self.job.task.task_id,
            group=self.job.group,
            tokens=self.tokens,
            roles=self.roles,
            logprobs=self.logprobs,
            turns=episode.turns,
            stop=episode.stop,
            success=episode.success,
            reward=episode.reward,
            shaped_reward=episode.shaped_reward,
            auth_before_call=episode.auth_before_call,
            calls=self.codec.call_examples(self.job.task.task_id, episode.request, episode.turns, predict),
        )


def play(
    engine: Engine,
    codec: Codec,
    world: World,
    jobs: Sequence[Job],
    env: EnvConfig,
    rollout: RolloutConfig,
    seed: int,
    *,
    predict: str = "phone",
    imagine: bool = False,
    policy: str = "policy",
    world_model: str = "world_model",
) -> list[Trajectory]:
    """Play all jobs to their ends; trajectories come in the order of the jobs.

    predict: which calls become world-model examples. policy: the adapter that acts;
    world_model: the one that imagines.
    """
    rows = [
        _Row(i, job, Episode(world, job.task, env, job.episode_seed, job.held_out_phrasing), codec)
        for i, job in enumerate(jobs)
    ]
    live, turn = rows, 0
    imagined: dict[int, list[int]] = {}  # group -> what is set into all its rows
    while live:
        for row in live:
            row.add(codec.opener, row_role(row))
        prompts = [
            Prompt(r.tokens, policy, rollout.max_action_tokens, codec.end_id, rollout.temperature, session=r.number)
            for r in live
        ]
        for row, completion in zip(live, engine.generate(prompts, derive_seed(seed, turn)), strict=True):
            row.act(completion, rollout.max_tokens)
        live = [row for row in live if row.episode.stop is None]
        if imagine:
            _imagine(engine, codec, live, policy, world_model, imagined)
        turn += 1
    engine.end_sessions()
    return [row.finish(predict) for row in rows]


def row_role(row: _Row) -> Role:
    """The opener belongs to what stands before it: the prompt at first, an observation later."""
    return Role.OBSERVATION if row.episode.turns else Role.PROMPT


def _imagine(
    engine: Engine, codec: Codec, live: list[_Row], policy: str, world_model: str, imagined: dict[int, list[int]]
) -> None:
    """Set the imagined reply into every row that has read its directory and has none yet: one per group.

    First the policy is asked, greedily, whom it would call (the beginning of a call is forced);
    then the world model answers that call made with empty hands.
    """
    ready = [r for r in live if not r.imagined and directory_of(r.episode.turns)]
    if not ready:
        return
    first = {r.job.group: r for r in reversed(ready) if r.job.group not in imagined}
    speakers = list(first.values())
    asked = [
        Prompt([*r.tokens, *codec.opener, *codec.call_prefix()], policy, codec.number_tokens, codec.end_id, 0.0)
        for r in speakers
    ]
    numbers = [
        intended_number(codec.decode(c.tokens), directory_of(r.episode.turns))
        for r, c in zip(speakers, engine.generate(asked, 0), strict=True)
    ]
    known = [(r, n) for r, n in zip(speakers, numbers, strict=True) if n]
    questions = [codec.world_prompt(r.episode.request, r.episode.turns, empty_handed_call(n)) for r, n in known]
    replies = engine.generate([Prompt(q, world_model, IMAGINED_TOKENS, codec.csr_end_id, 0.0) for q in questions], 0)
    imagined |= {r.job.group: [] for r in speakers}
    imagined |= {r.job.group: codec.imagined(c.tokens) for (r, _), c in zip(known, replies, strict=True)}
    for row in ready:
        row.imagined = True
        row.add(imagined[row.job.group], Role.IMAGINED)
