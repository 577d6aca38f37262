"""Any of our environments in TRL's trainers, by their `environment_factory` (TRL 1.16); needs no TRL itself.

TRL calls `reset(**row)`, makes a tool of every other public method of the class but `get_reward`, and asks that one
for the reward when the model has sent a message without a call. What that means for an episode:

- TRL cannot end an episode at a tool call: after the last answer it samples one more message. A call in there is
  answered with `OVER` and changes nothing; the reward is that of the episode as it ended.
- A message without a call is a hang-up. So is running out of `max_completion_length` or `max_tool_calling_iterations`,
  which TRL does not tell; a call whose answer no longer fits has been made all the same, and counts.
- Arguments that do not fit are complained of and counted as in any other loop. What TRL finds out by itself, a tool
  that does not exist or JSON that cannot be read, it answers by itself (or takes for text), and it counts nowhere.
- All calls of one message are made, one turn each.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Literal

from lfo.envs.adapters.shared import chosen, tasks_of
from lfo.envs.base import SPLITS, Tool, parse_action, written
from lfo.protocols import Environment, Episode
from lfo.types import Call, Hangup, Task

OVER = "This is over: nothing was done. Make no more calls."


def rows(env: Environment, split: str, seed: int = 0) -> list[dict]:
    """What TRL trains on, for `datasets.Dataset.from_list`: a row for each task of a split, in data order.

    prompt: the messages before the first action, without the request, which `reset` adds. seed: of the episodes, as in
    `PhoneCallEnv.reset`; all generations of a row share it.

    Raises:
        ValueError: the split has no tasks.
    """
    prompt = [{"role": "system", "content": env.system}, {"role": "user", "content": ""}]
    return [{"prompt": prompt, "task_id": task.task_id, "seed": seed} for task in tasks_of(env, split)]


def environment_factory(env: Environment) -> type:
    """The class of which TRL makes an instance for each generation; rewards are logged under the environment's name.

    Raises:
        ValueError: a tool cannot be a method of it, or takes what is no text, list of texts or object of texts.
    """
    if taken := [name for name in env.tools if name in ("reset", "get_reward") or name.startswith("_")]:
        raise ValueError(f"TRL would not show the model the tool '{taken[0]}'; give it another name.")
    tasks = {task.task_id: task for split in SPLITS for task in env.tasks(split)}
    methods = {name: _method(tool) for name, tool in env.tools.items()}
    return type(type(env).__name__, (_Instance,), {"_env": env, "_tasks": tasks, **methods})


class _Instance:
    """What the classes have besides their tools. TRL uses an instance again for later rows, by `reset`."""

    _env: Environment
    _tasks: Mapping[str, Task]
    _episode: Episode | None = None
    _reward: float | None = None

    def reset(self, **row) -> str:
        """Begin the episode of a row of `rows`; returns the request.

        Raises:
            ValueError: the row names no task of this environment, or no seed.
        """
        if row.get("task_id") not in self._tasks or "seed" not in row:
            raise ValueError(f"{row} is no row of this environment; lfo.envs.adapters.trl.rows makes them.")
        if self._episode and self._reward is None:  # nobody asked how the last one went
            self._episode.close()
        self._episode = self._env.episode(*chosen([self._tasks[row["task_id"]]], row["seed"], 0))
        self._reward = None
        return self._episode.request

    def get_reward(self) -> float:
        """What the policy trains on; an episode that is not over ends here, by hanging up."""
        if self._reward is None:
            if self._episode.stop is None:
                self._episode.step(Hangup())
            self._reward = self._episode.outcome().reward
            self._episode.close()
        return self._reward

    def _call(self, tool: str, arguments: dict) -> str:
        if self._episode.stop:
            return OVER
        return self._episode.step(parse_action(written(Call(tool, arguments)), self._env.tools))


def _method(tool: Tool):
    """A tool as transformers' `get_json_schema` reads it. Takes any arguments: the environment says what is wrong."""

    def call(self, /, **arguments) -> str:
        return self._call(tool.name, arguments)

    types = {name: _type(tool, name, schema) for name, schema in tool.parameters.items()}
    told = "".join(f"\n    {name}: The {name.replace('_', ' ')}." for name in types)
    call.__doc__ = f"{tool.description}\n\nArgs:{told}" if types else tool.description
    call.__name__ = call.__qualname__ = tool.name
    call.__annotations__ = {**types, "return": str}
    named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint) for name, hint in types.items()]
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    call.__signature__ = inspect.Signature([this, *named], return_annotation=str)
    return call


def _type(tool: Tool, name: str, schema: dict):
    """The Python type that has this JSON schema."""
    match schema:
        case {"type": "string"}:
            return str
        case {"type": "array", "items": {"type": "string", "enum": known}}:
            return list[Literal[tuple(known)]]
        case {"type": "array", "items": {"type": "string"}}:
            return list[str]
        case {"type": "object", "additionalProperties": {"type": "string"}}:
            return dict[str, str]
    raise ValueError(f"{tool.name} takes {name} as {schema}; use a string, an array or an object of strings.")
