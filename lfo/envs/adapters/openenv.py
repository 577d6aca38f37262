"""Any of our environments behind OpenEnv's server (OpenEnv 0.10), and the client for it. Needs the extra `openenv`.

A session is a WebSocket, and has one episode at a time. What a client that leaves had begun is given up.
"""

from __future__ import annotations

import functools
from typing import Any
from uuid import uuid4

from lfo.envs.adapters.shared import chosen, tasks_of
from lfo.envs.base import SPLITS, parse_action, written
from lfo.protocols import Environment, Episode
from lfo.types import Call, Hangup

try:
    from fastapi import FastAPI
    from openenv.core import EnvClient, env_server
    from openenv.core.client_types import StepResult
    from pydantic import Field
except ImportError as error:
    raise ImportError("OpenEnv is not installed here: pip install -e '.[cpu,openenv]'.") from error


class ToolCall(env_server.Action):
    """What an agent does: it calls a tool, or hangs up."""

    tool: str = Field(default="", description="The tool that is called; without one the agent hangs up.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="What the tool is given, by name.")


class Text(env_server.Observation):
    """What an agent reads: the request after `reset`, then what tools answer.

    reward: 0 until the end, then what the policy trains on; None after `reset`. metadata: after `reset` the task's id
    and level, the system message and the tools' schemas; at the end why it ended, and whether it was a success.
    """

    text: str = Field(description="What is read next.")


class Progress(env_server.State):
    """Where an episode stands. `episode_id` is the client's, or drawn; `step_count` counts actions."""

    task_id: str = Field(default="", description="The task; none before the first reset.")
    stop: str = Field(default="", description="Why the episode is over; nothing while it goes on.")


class Session(env_server.Environment[ToolCall, Text, Progress]):
    """One client's episodes."""

    SUPPORTS_CONCURRENT_SESSIONS = True  # episodes share nothing that changes

    def __init__(self, env: Environment):
        super().__init__()
        self._env, self._state = env, Progress()
        self._episode: Episode | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        index: int | None = None,
        **unknown: Any,
    ) -> Text:
        """Begin an episode; split and index choose the task, as in OpenEnv's task API, without an index the seed does.

        Raises:
            ValueError: there is no such task, or something else is asked for.
        """
        if unknown:
            raise ValueError(f"reset takes seed, episode_id, split and index, not {', '.join(unknown)}.")
        task, drawn = chosen(tasks_of(self._env, split), seed, index)
        self.close()
        self._episode = self._env.episode(task, drawn)
        self._state = Progress(episode_id=episode_id or str(uuid4()), task_id=task.task_id)
        tools = [tool.schema() for tool in self._env.tools.values()]
        told = {"task_id": task.task_id, "level": task.level, "system": self._env.system, "tools": tools}
        return Text(text=self._episode.request, metadata=told)

    def step(self, action: ToolCall, timeout_s: float | None = None, **_: Any) -> Text:
        """timeout_s: not looked at; no environment of ours waits for anything but its own limits.

        Raises:
            RuntimeError: no episode has begun, or it is over.
        """
        if self._episode is None:
            raise RuntimeError("no episode has begun in this session; call reset first, through the same client.")
        call = written(Call(action.tool, action.arguments))
        text = self._episode.step(parse_action(call, self._env.tools) if action.tool else Hangup())
        stop, self._state.step_count = self._episode.stop, self._state.step_count + 1
        self._state.stop = str(stop or "")
        if stop is None:
            return Text(text=text, reward=0.0)
        how = self._episode.outcome()
        return Text(text=text, reward=how.reward, done=True, metadata={"stop": str(stop), "success": how.success})

    def get_metadata(self) -> env_server.types.EnvironmentMetadata:
        return env_server.types.EnvironmentMetadata(name=type(self._env).__name__, description=self._env.system)

    @property
    def state(self) -> Progress:
        return self._state

    def close(self) -> None:
        if self._episode:
            self._episode.close()
            self._episode = None

    def list_splits(self) -> list[str]:
        return [split for split in SPLITS if self._env.tasks(split)]

    def list_tasks(self, split: str) -> list[dict]:
        tasks = tasks_of(self._env, split)
        return [{"id": task.task_id, "index": i, "level": task.level} for i, task in enumerate(tasks)]

    def num_tasks(self, split: str) -> int:
        return len(self._env.tasks(split))

    def get_task(self, split: str, index: int) -> dict:
        return self.list_tasks(split)[index]


def app(env: Environment, sessions: int = 64) -> FastAPI:
    """The server, for uvicorn. sessions: at most so many at a time; one more is refused."""
    session, name = functools.partial(Session, env), type(env).__name__
    return env_server.create_fastapi_app(session, ToolCall, Text, sessions, env_name=name, state_cls=Progress)


class Client(EnvClient[ToolCall, Text, Progress]):
    """A session at a server: `reset(seed=..., episode_id=..., split=..., index=...)`, `step(ToolCall(...))`, `state()`.

    Asynchronous; `Client(base_url).sync()` is not. What the server finds wrong is a RuntimeError with its words.
    """

    def _step_payload(self, action: ToolCall) -> dict:
        return action.model_dump()

    def _parse_result(self, payload: dict) -> StepResult[Text]:
        read = Text(**payload["observation"], reward=payload["reward"], done=payload["done"])
        return StepResult(read, read.reward, read.done, read.metadata)

    def _parse_state(self, payload: dict) -> Progress:
        return Progress(**payload)
