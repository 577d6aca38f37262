"""The rollout loop: task -> prompt -> tokens -> action -> observation -> ... -> trajectory.

Plays many episodes in lock-step against one engine. As soon as a group's directory is read, and
before the one form, the policy is asked whom it means to call. With `imagine` the group is then
given what the world model says that department would answer to an empty-handed call (DESIGN
section 4). A `probe` rollout makes that very call for real and ends: the policy learns nothing from
it, but its answer is the truth that the imagination is to be held against. In a `dream` the world model
answers every call instead of the CSR (rollout/dream.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lfo import distributed
from lfo.config import EnvConfig, RolloutConfig, WorldModelConfig, derive_seed
from lfo.env import Episode
from lfo.records import Task, Trajectory
from lfo.rollout.dream import IMAGINED_TOKENS, DreamtCsr, imagine_calls
from lfo.rollout.engine import Completion, Engine, Prompt
from lfo.sampling import directory_of, empty_handed_call, intended_number
from lfo.tokens import Codec, Role
from lfo.world import World


@dataclasses.dataclass(frozen=True)
class Job:
    """One rollout to be played. Jobs of a group share task and episode seed, so only the policy differs."""

    task: Task
    group: int
    episode_seed: int
    held_out_phrasing: bool = False
    probe: bool = False  # asks the intended department with empty hands and ends


def group_jobs(task: Task, group: int, episode_seed: int, size: int, probes: int) -> list[Job]:
    """A group of `size` rollouts of one task, of which `probes` are probes."""
    return [Job(task, group, episode_seed, probe=i < probes) for i in range(size)]


class _Row:
    """A trajectory in the making."""

    def __init__(
        self, number: int, job: Job, world: World, env: EnvConfig, codec: Codec, dream: WorldModelConfig | None
    ):
        self.number, self.job, self.codec = number, job, codec
        company = world.companies[job.task.company_id]
        self.csr = DreamtCsr(job.task, company, dream.dream_agreement) if dream else None
        self.episode = episode = Episode(world, job.task, env, job.episode_seed, job.held_out_phrasing, self.csr)
        self.tokens: list[int] = []
        self.roles: list[int] = []
        self.logprobs: list[float] = []
        self.prepared = False  # whether the intention was asked for, and what follows from it is in place
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

    def ask(self, number: str | None) -> None:
        """The end of a probe: an empty-handed call, where a number is known."""
        if number:
            self.episode.step(empty_handed_call(number))
        if self.episode.stop is None:
            self.episode.step("")

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
            probe=self.job.probe,
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
    dream: WorldModelConfig | None = None,
    policy: str = "policy",
    world_model: str = "world_model",
) -> list[Trajectory]:
    """Play all jobs to their ends; trajectories come in the order of the jobs.

    Several processes play the groups between them, each with its own engine; all get all trajectories.
    predict: which calls become world-model examples. dream: how the world model answers the calls; None leaves
    them to the CSR. policy: the adapter that acts; world_model: the one that imagines.
    """
    mine = distributed.share([job.group for job in jobs])
    rows = [_Row(i, jobs[i], world, env, codec, dream) for i in mine]
    live, turn = rows, 0
    numbers: dict[int, str | None] = {}  # group -> whom it means to call
    imagined: dict[int, list[int]] = {}  # group -> what is set into all its rows
    while live:
        for row in live:
            row.add(codec.opener, row_role(row))
        prompts = [
            Prompt(r.tokens, policy, rollout.max_action_tokens, codec.end_id, rollout.temperature, session=r.number)
            for r in live
        ]
        completions = engine.generate(prompts, derive_seed(seed, turn))
        if dream:
            imagine_calls(engine, codec, live, completions, dream, derive_seed(seed, "dream", turn), world_model)
        for row, completion in zip(live, completions, strict=True):
            row.act(completion, rollout.max_tokens)
        live = [row for row in live if row.episode.stop is None]
        ready = [r for r in live if (imagine or r.job.probe) and not r.prepared and directory_of(r.episode.turns)]
        first = {r.job.group: r for r in reversed(ready) if r.job.group not in numbers}
        numbers |= _intentions(engine, codec, first, policy)
        if imagine:
            imagined |= _imaginations(engine, codec, first, numbers, world_model)
        for row in ready:
            row.prepared = True
            if row.job.probe:
                row.ask(numbers[row.job.group])
            else:
                row.add(imagined[row.job.group], Role.IMAGINED)
        live = [row for row in live if row.episode.stop is None]
        turn += 1
    engine.end_sessions()
    done = [row.finish("nothing" if dream else predict) for row in rows]  # what was dreamt is no fact
    return distributed.join(mine, done)


def row_role(row: _Row) -> Role:
    """The opener belongs to what stands before it: the prompt at first, an observation later."""
    return Role.OBSERVATION if row.episode.turns else Role.PROMPT


def _intentions(engine: Engine, codec: Codec, speakers: dict[int, _Row], policy: str) -> dict[int, str | None]:
    """Whom each group's speaker would call, greedily (the beginning of a call is forced); None if nobody listed."""
    asked = [
        Prompt([*r.tokens, *codec.opener, *codec.call_prefix()], policy, codec.number_tokens, codec.end_id, 0.0)
        for r in speakers.values()
    ]
    said = engine.generate(asked, 0) if asked else []
    return {
        group: intended_number(codec.decode(completion.tokens), directory_of(row.episode.turns))
        for (group, row), completion in zip(speakers.items(), said, strict=True)
    }


def _imaginations(
    engine: Engine, codec: Codec, speakers: dict[int, _Row], numbers: dict[int, str | None], world_model: str
) -> dict[int, list[int]]:
    """What the world model answers each group's intended call made with empty hands; [] without an intention."""
    known = {group: row for group, row in speakers.items() if numbers[group]}
    questions = [
        codec.world_prompt(row.episode.request, row.episode.turns, empty_handed_call(numbers[group]))
        for group, row in known.items()
    ]
    prompts = [Prompt(q, world_model, IMAGINED_TOKENS, codec.csr_end_id, 0.0) for q in questions]
    replies = engine.generate(prompts, 0) if prompts else []
    imagined = {group: codec.imagined(reply.tokens) for group, reply in zip(known, replies, strict=True)}
    return {group: imagined.get(group, []) for group in speakers}
