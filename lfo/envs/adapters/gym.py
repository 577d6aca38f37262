"""Any Gymnasium environment over text as an environment of `lfo`. Knows no environment by name.

What `reset` says is the request, the one tool `act` takes what `step` takes, and what that says is read next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import gymnasium

from lfo.envs.base import Tool, require_open
from lfo.types import Action, Hangup, Malformed, Outcome, StopReason, Task, Turn

ACT = Tool("act", "WRITE", "Do or say something.", {"action": {"type": "string"}})


@dataclasses.dataclass(frozen=True)
class SeedTask(Task):
    """What `reset(seed=seed)` draws."""

    seed: int


class GymEnvironment:
    """See `lfo.protocols.Environment`: a task is a seed, its level 1, and there is nothing to model.

    The seed of an episode changes nothing: Gymnasium has one seed, and the task is it.
    """

    tools, knowledge = {ACT.name: ACT}, None

    def __init__(
        self,
        make: Callable[[], gymnasium.Env],
        system: str,
        seeds: Mapping[str, Iterable[int]],
        reward_threshold: float = 1.0,
    ):
        """
        Args:
            make: a new environment, one for each episode, since episodes are played side by side.
            system: what a chat model is told at the beginning.
            seeds: the seeds of each split's tasks.
            reward_threshold: an episode whose rewards sum up to this much is a success.

        Raises:
            TypeError: its observations or actions are no text.
        """
        env = make()
        for name, space in (("observation", env.observation_space), ("action", env.action_space)):
            if not isinstance(space, gymnasium.spaces.Text):
                wrapper = f"gymnasium.wrappers.Transform{name.capitalize()}"
                raise TypeError(f"the {name} space is {space}, not Text; turn it into text first, e.g. by {wrapper}.")
        env.close()
        self.system, self._make, self._threshold = system, make, reward_threshold
        self._seeds = {split: tuple(chosen) for split, chosen in seeds.items()}

    def tasks(self, split: str) -> list[SeedTask]:
        return [SeedTask(f"{split}-{seed}", split, 1, seed) for seed in self._seeds.get(split, ())]

    def episode(self, task: SeedTask, seed: int, responder: None = None) -> GymEpisode:
        return GymEpisode(self._make(), task.seed, self._threshold)


class GymEpisode:
    """See `lfo.protocols.Episode`. An end that is no success is `max_turns` where truncated, else `agent_stopped`."""

    def __init__(self, env: gymnasium.Env, seed: int, reward_threshold: float):
        self._env, self._threshold, self._return = env, reward_threshold, 0.0
        self.request, _ = env.reset(seed=seed)
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None

    def step(self, action: Action) -> str:
        require_open(self.stop)
        if isinstance(action, Hangup):
            status, observation = "stopped", ""
            self._end(StopReason.AGENT_STOPPED)
        elif isinstance(action, Malformed):
            status, observation = "error", action.reason
        elif action.arguments["action"] not in self._env.action_space:
            status, observation = "error", "This is no action here: it is too long, too short or has odd characters."
        else:
            status, observation = "ok", self._advance(action.arguments["action"])
        self.turns.append(Turn(action, observation, status))
        return observation

    def _advance(self, text: str) -> str:
        observation, reward, terminated, truncated, _ = self._env.step(text)
        self._return += float(reward)
        if terminated or truncated:
            self._end(StopReason.AGENT_STOPPED if terminated else StopReason.MAX_TURNS)
        return observation

    def _end(self, otherwise: StopReason) -> None:
        self.stop = self.stop or (StopReason.SUCCESS if self._return >= self._threshold else otherwise)

    def cut(self) -> None:
        self._end(StopReason.TOKEN_BUDGET)

    def outcome(self) -> Outcome:
        """reward: the sum of all rewards."""
        return Outcome(self.stop is StopReason.SUCCESS, self._return)

    def close(self) -> None:
        self._env.close()
