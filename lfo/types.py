"""The data that crosses module borders: actions, turns, rollouts, what is learned from them - and their JSONL form.

Plain dataclasses. Knows nothing about tokenizers, models or any one environment.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

T = TypeVar("T")


class RecordError(ValueError):
    """A data file does not say what its record type says. The message names the file, line and remedy."""


POLICY, WORLD_MODEL = "policy", "world_model"  # adapters
BASE = "base"  # the model without any adapter, in the place of an adapter's name
AVERAGE = "average"  # the adapter that is the running average of the policy's
APART = ("distilled", "imitated")  # `Sample.how` of samples whose loss has a mean of its own


class Role(enum.IntEnum):
    """Who wrote a token. The policy loss sees ACTION tokens only."""

    PROMPT = 0
    ACTION = 1
    OBSERVATION = 2
    NOTE = 3  # whoever says it
    FEEDBACK = 4  # a note on an earlier attempt


class StopReason(enum.StrEnum):
    """Why an episode ended. `terminated` in Gymnasium's sense unless marked *truncated*."""

    SUCCESS = "success"  # the task is done
    AGENT_STOPPED = "agent_stopped"  # the agent sent an action that calls no tool
    MALFORMED = "malformed"  # too many calls that could not be read
    MAX_TURNS = "max_turns"  # truncated
    TOKEN_BUDGET = "token_budget"  # truncated, decided by the rollout loop

    @property
    def truncated(self) -> bool:
        return self in (StopReason.MAX_TURNS, StopReason.TOKEN_BUDGET)


class Record:
    """Base of what is read from JSON: nothing but the fields, each of its type."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclasses.dataclass(frozen=True)
class Task(Record):
    """Something to be done. An environment's own tasks add what it needs to know."""

    task_id: str
    split: str  # train | validation | test
    level: int  # 1..5


# --- what happens in an episode --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Call(Record):
    """A call of a tool that could be read; the arguments are the tool's, checked for type."""

    tool: str
    arguments: dict

    def __hash__(self) -> int:
        return hash((self.tool, json.dumps(self.arguments, sort_keys=True)))


@dataclasses.dataclass(frozen=True)
class Hangup(Record):
    """The agent called no tool."""


@dataclasses.dataclass(frozen=True)
class Malformed(Record):
    """A call that could not be read, and what the agent is told about it."""

    text: str
    reason: str


Action = Call | Hangup | Malformed


@dataclasses.dataclass(frozen=True)
class Turn(Record):
    """One action and what came of it.

    observation: what the agent reads next. status: the environment's word for it; error: the call could not be
    read; stopped: the agent called no tool.
    """

    action: Action
    observation: str
    status: str

    @property
    def tool(self) -> str:
        """The tool that was called, "" where none was."""
        return self.action.tool if isinstance(self.action, Call) else ""


@dataclasses.dataclass(frozen=True)
class Outcome(Record):
    """How an episode went. success: what figures report; reward: what the policy trains on; metrics: by name."""

    success: bool
    reward: float
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A rollout to be played. Attempts of a group share task and seed, so that only the policy differs.

    scout: it asks for real what the others imagine, and ends; the policy learns nothing from it.
    dreamt: its coupling's responder answers in the place of the environment. position: its place in a group in which
    later attempts read about earlier ones, from 1 on; 0 elsewhere.
    """

    task: Task
    group: int
    seed: int
    scout: bool = False
    dreamt: bool = False
    position: int = 0


@dataclasses.dataclass(frozen=True)
class Feedback(Record):
    """What came of one thing that was done in an earlier attempt, by what was said to the agent.

    kind: the environment's word for it. about: whom or what; what is said later about the same replaces it. text: what
    the next attempt reads. score: 1 where it did what was wanted, 0 for a failure. attempt: its position, 0: unknown.
    """

    kind: str
    about: str
    text: str
    score: float
    attempt: int = 0


# --- what is learned from --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Encoded(Record):
    """A world-model example as token ids: the loss is taken on `reply`, which ends with the closing tag."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Question(Record):
    """What a world model is asked: what would be answered to `call` after these turns?

    similar: what it reads before, of calls that were answered (`world_model.reads`).
    """

    request: str
    turns: tuple[Turn, ...]
    call: Call
    similar: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Example(Record):
    """What the world model can learn from one call: what was known before it, the call, and what was answered.

    status, reply: the true answer. request, turns: the episode up to the call; examples that differ in nothing else
    are the same, since the world model would read the same.
    """

    task_id: str
    call: Call
    reply: str
    status: str
    encoded: Encoded
    request: str = dataclasses.field(compare=False)
    turns: tuple[Turn, ...] = dataclasses.field(compare=False)

    @property
    def question(self) -> Question:
        return Question(self.request, self.turns, self.call)


@dataclasses.dataclass
class Rollout(Record):
    """One episode as it was sampled: the sampler's own token ids and log-probs, never re-tokenised.

    tokens, roles, logprobs: parallel lists of length T. `roles` holds `Role` values; `logprobs` the sampler's
    log-probability (nats) of each action token and 0.0 elsewhere.
    group: the rollouts of one task in one step share it. scout, position: see `Attempt`. actor: the adapter that acted.
    """

    task_id: str
    group: int
    tokens: list[int]
    roles: list[int]
    logprobs: list[float]
    turns: list[Turn]
    stop: StopReason
    outcome: Outcome
    examples: list[Example] = dataclasses.field(default_factory=list)
    scout: bool = False
    position: int = 0
    actor: str = POLICY

    @property
    def success(self) -> bool:
        return self.outcome.success

    @property
    def guided(self) -> bool:
        """Whether it was no attempt of the policy alone: it read feedback, or somebody acted who was to read some."""
        return self.actor != POLICY or Role.FEEDBACK in self.roles


@dataclasses.dataclass
class Sample:
    """One context that is learned from. Parallel lists of length T.

    tokens, roles: as in `Rollout`. old_logprobs: the sampler's, 0.0 where the role is not ACTION.
    advantages: per token; None where nothing is learned from the actions, and the sample is only listened to.
    heard: the tokens that the world model learns in the policy's own forward pass; None: none.
    how: how the actions are learned. ratio: with the importance ratio to the sampler; free: without it, since the
    context is not the one that was sampled in; capped: with it as a weight, cut from above alone; distilled: as free,
    in a mean of their own that `context_distillation` weighs; imitated: a success, by cross-entropy, whatever the
    advantages say. weight: of that cross-entropy.
    taught: the same actions in a context that tells more; how much likelier a teacher finds each of them there are the
    advantages, once `Learner.taught` has filled them in.
    returns, values: per token, for objectives with a value head: what it is to say, and what it said before the step.
    own: of the action tokens alone, the learner's log-probabilities at the start of the step; None: nobody asked.
    """

    tokens: list[int]
    roles: list[int]
    old_logprobs: list[float]
    advantages: list[float] | None
    heard: list[bool] | None = None
    how: str = "ratio"
    returns: list[float] | None = None
    values: list[float] | None = None
    weight: float = 1.0
    taught: Sample | None = None
    own: list[float] | None = None


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list]:
    """Values by their key, in the order in which the keys come up."""
    found: dict[Any, list] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def by_group(rollouts: Iterable[Rollout]) -> dict[int, list[Rollout]]:
    """Rollouts by their group, in the order in which the groups come up."""
    return grouped((rollout.group, rollout) for rollout in rollouts)


# --- JSONL -----------------------------------------------------------------------------------


def write_jsonl(path: str | Path, rows: Iterable) -> int:
    """Write dataclasses (or dicts) one per line, atomically; return how many."""
    lines = [to_json(row) + "\n" for row in rows]
    write_text(path, "".join(lines))
    return len(lines)


def write_text(path: str | Path, text: str) -> None:
    """Write a file whole: a temporary one, which then takes its place. Folders are made."""
    temporary = Path(f"{path}.tmp")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def to_json(value) -> str:
    """A dataclass, or a list or dict of plain data, as one line. ASCII: a model may have written any character."""
    return json.dumps(dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value)


def from_json(kind: type[T], text: str, where: str) -> T:
    """Read a record strictly: no unknown, missing or mistyped field; `where` names it in errors.

    Raises:
        RecordError: the text is no such record.
    """
    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        place = "".join(f", {part}" for part in problem["loc"])
        raise RecordError(f"{where}{place}: {problem['msg'][0].lower()}{problem['msg'][1:]}.") from None


_adapter = functools.lru_cache(TypeAdapter)


def read_jsonl(path: str | Path, record: type[T], remedy: str = "write the data set with `lfo generate`") -> list[T]:
    """Read a JSONL file into `record`s.

    Raises:
        RecordError: the file is missing or not UTF-8, or a line is no such record.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"{path} is missing; {remedy}.")
    try:
        text = path.read_text(encoding="utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise RecordError(f"{path} is not UTF-8 text; {remedy}.") from None
    lines = text.split("\n") if text else []  # other line breaks are data
    try:
        return [from_json(record, line, f"{path}, line {n}") for n, line in enumerate(lines, start=1)]
    except RecordError as error:
        raise RecordError(f"{error} Mend it, or {remedy}.") from None


def sha256(path: str | Path) -> str:
    """Checksum of a file, as hexadecimal text."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
