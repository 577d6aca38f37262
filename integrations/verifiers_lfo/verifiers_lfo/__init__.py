"""The environments of `lfo` in verifiers 0.4: a taskset, and the environment that plays its tasks.

The environment takes the user's place in the conversation (verifiers' `interaction`): the request opens it, each
message of the model is read as an action, and what the tools answer is the next message, until the episode is over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import verifiers.v1 as vf
from pydantic import Field

from lfo.config import EnvConfig, build
from lfo.envs import make_environment
from lfo.envs.adapters.shared import chosen, tasks_of
from lfo.envs.base import from_chat, parse_action
from lfo.protocols import Environment, Episode

__all__ = ["LfoEnv", "LfoTaskset"]

CALLS = (
    "\n\nThese are your tools:\n{tools}\n\nWrite each call as one line, and wait for the answer:\n"
    '<tool_call>{{"name": "...", "arguments": {{...}}}}</tool_call>\nA message without a call ends the conversation.'
)


class LfoData(vf.TaskData):
    """A task of a split, and the seed of its episode, as in `PhoneCallEnv.reset(seed=seed, options={"task": task})`."""

    split: str
    index: int
    level: int
    seed: int


class LfoTask(vf.Task[LfoData]):
    """Its reward is what `lfo` trains on."""

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        return trace.info["outcome"]["reward"]

    @vf.metric
    async def success(self, trace: vf.Trace) -> float:
        return float(trace.info["outcome"]["success"])


class LfoConfig(vf.TasksetConfig):
    """What is played, under `--env.taskset.*`."""

    settings: dict[str, Any] = Field(default_factory=dict)
    """Those of `env` in a config of `lfo` (`name`, `world_seed`, `levels`, ...); what is left out has its default."""
    split: Literal["train", "validation", "test"] = "train"
    seed: int = 0
    """Of every episode."""


class LfoTaskset(vf.Taskset[LfoTask, LfoConfig]):
    """The tasks of a split, in data order."""

    def __init__(self, config: LfoConfig) -> None:
        super().__init__(config)
        self.env: Environment = make_environment(build(EnvConfig, config.settings))

    def load(self) -> Iterator[LfoTask]:
        tools = "\n".join(json.dumps(tool.schema()["function"]) for tool in self.env.tools.values())
        system, split, seed = self.env.system + CALLS.format(tools=tools), self.config.split, self.config.seed
        for index, task in enumerate(tasks_of(self.env, split)):
            own = {"split": split, "index": index, "level": task.level, "seed": seed}
            yield LfoTask(LfoData(id=task.task_id, name=task.task_id, system_prompt=system, **own), self.config.task)

    def episode(self, data: LfoData) -> Episode:
        """The episode of a task: the same one whenever it is asked for."""
        return self.env.episode(*chosen(tasks_of(self.env, data.split), data.seed, data.index))


class LfoEnvConfig(vf.EnvConfig):
    """Who acts: `null`, verifiers' harness without tools of its own, as a process on this machine."""

    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})


class LfoEnv(vf.Env[LfoEnvConfig]):
    """One episode for each conversation."""

    async def run(self, task: LfoTask, agents: vf.Agents) -> None:
        episode = self.taskset.episode(task.data)
        try:
            async with agents.agent.interaction(task) as interaction:
                said = await interaction.turn(episode.request)
                while not said.terminated:
                    text = from_chat(said.last_reply, self.taskset.env.tools)
                    read = await asyncio.to_thread(episode.step, parse_action(text, self.taskset.env.tools))
                    if episode.stop:
                        break
                    said = await interaction.turn(read)
                episode.cut()  # one that is over keeps its reason; the model's budget may have ended it
                how = episode.outcome()
                interaction.trace.info["outcome"] = {
                    "reward": how.reward,
                    "success": how.success,
                    "stop": str(episode.stop),
                    **how.metrics,
                }
        finally:
            episode.close()
