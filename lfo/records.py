"""The data that crosses module borders: companies, users, tasks, turns, trajectories - and their JSONL form.

Plain frozen dataclasses. Knows nothing about tokenizers, models or behaviour. What an agent may
see (`Company`) and what it must find out (`HiddenRule`) are different records in different files,
so that no observation can reach a rule by accident.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import types
import typing
from collections.abc import Iterable
from pathlib import Path

T = typing.TypeVar("T")


class RecordError(ValueError):
    """A data file does not say what its record type says. The message names the file, line and remedy."""


class StopReason(enum.StrEnum):
    """Why an episode ended. `terminated` in Gymnasium's sense unless marked *truncated*."""

    SUCCESS = "success"  # every goal of the task was served
    AGENT_STOPPED = "agent_stopped"  # the agent sent an action that calls no tool
    MALFORMED = "malformed"  # too many calls that could not be read
    MAX_TURNS = "max_turns"  # truncated
    TOKEN_BUDGET = "token_budget"  # truncated, decided by the rollout engine

    @property
    def truncated(self) -> bool:
        return self in (StopReason.MAX_TURNS, StopReason.TOKEN_BUDGET)


@dataclasses.dataclass(frozen=True)
class Department:
    """One line of a company's public directory."""

    name: str
    phone: str
    description: str
    operating_hours: str


@dataclasses.dataclass(frozen=True)
class Company:
    """What anyone can look up about a company: never its authentication or routing rules."""

    company_id: str
    name: str
    industry: str
    departments: tuple[Department, ...]


@dataclasses.dataclass(frozen=True)
class HiddenRule:
    """What one department of one company demands. Only the CSR simulator and the oracle read it.

    required: fields the caller must give, in `world.FIELDS` order.
    alternative: accepted in place of a required field that the user does not have.
    after: the department that must have served the caller before, or "".
    """

    company_id: str
    department: str
    required: tuple[str, ...]
    alternative: str
    after: str
    variation: str  # typical | extra | different


@dataclasses.dataclass(frozen=True)
class Profile:
    """One user. `values` lacks the fields that the user does not have."""

    profile_id: str
    industry: str
    values: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Task:
    """Something a user wants done. `goals` are served in any order that routing allows."""

    task_id: str
    split: str  # train | validation | test
    level: int  # 1..5, see `world.LEVELS`
    company_id: str
    profile_id: str
    request: str  # what the user says: the agent's prompt
    goals: tuple[str, ...]
    optimal_steps: int  # actions of the oracle with a cooperative user


@dataclasses.dataclass(frozen=True)
class Turn:
    """One action and what came of it, in text.

    tool: "" when the action could not be read or the agent stopped.
    status: the phone tool's status, or ok / refused / declined / error / stopped.
    """

    action: str
    observation: str
    tool: str
    status: str


@dataclasses.dataclass
class Trajectory:
    """One rollout: the sampler's own token ids and log-probs, never re-tokenised.

    tokens, roles, logprobs: parallel lists of length T. `roles` holds `tokens.Role` values;
    `logprobs` holds the sampler's log-probability (nats) of each action token and 0.0 elsewhere.
    turns: what happened, in text. calls: its world-model examples, `tokens.CallExample`.
    group: the rollouts of one task in one step share it.
    probe: its call was made for the world model's sake (rollout/episodes.py); the policy does not train on it.
    reward: what the policy trains on; success: what every figure reports.
    """

    task_id: str
    group: int
    tokens: list[int]
    roles: list[int]
    logprobs: list[float]
    turns: list[Turn]
    stop: StopReason
    success: bool
    reward: float
    shaped_reward: float
    auth_before_call: bool
    calls: list
    probe: bool = False


# --- JSONL -----------------------------------------------------------------------------------


def write_jsonl(path: str | Path, rows: Iterable) -> int:
    """Write dataclasses (or dicts) one per line, atomically; return how many."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    count = 0
    with temporary.open("w", encoding="utf-8") as f:
        for row in rows:
            data = dataclasses.asdict(row) if dataclasses.is_dataclass(row) else row
            f.write(json.dumps(data) + "\n")  # ASCII: a model may have written any character
            count += 1
    temporary.replace(path)
    return count


def read_jsonl(path: str | Path, record: type[T]) -> list[T]:
    """Read a JSONL file into `record`s.

    Raises:
        RecordError: the file is missing or not UTF-8, a line is no JSON object, or its fields or
            their types are not those of `record`.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"{path} is missing; write the data set with `lfo generate`.")
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # other line breaks are data
    except UnicodeDecodeError:
        raise RecordError(f"{path} is not UTF-8 text; write the file again with `lfo generate`.") from None
    rows = []
    for number, line in enumerate(lines if lines != [""] else [], start=1):
        where = f"{path}, line {number}"
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise RecordError(f"{where}: not JSON ({error.msg}); write the file again with `lfo generate`.") from None
        if not isinstance(data, dict):
            raise RecordError(f"{where}: a JSON object is needed, this is a {type(data).__name__}.")
        rows.append(from_dict(record, data, where))
    return rows


def from_dict(record: type[T], data: dict, where: str) -> T:
    """Build a dataclass from plain JSON data, strictly: no unknown, missing or mistyped field."""
    hints = typing.get_type_hints(record)
    unknown = sorted(set(data) - set(hints))
    needed = {f.name for f in dataclasses.fields(record) if f.default is f.default_factory is dataclasses.MISSING}
    missing = sorted(needed - set(data))
    if unknown or missing:
        parts = [f"unknown {', '.join(unknown)}"] * bool(unknown) + [f"missing {', '.join(missing)}"] * bool(missing)
        raise RecordError(f"{where}: {'; '.join(parts)}. A {record.__name__} has: {', '.join(hints)}.")
    return record(**{name: _coerce(hints[name], value, f"{where}, {name}") for name, value in data.items()})


def _coerce(hint, value, where: str):
    """Check `value` against a type hint, turning JSON lists into tuples, texts into enums, dicts into records."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            raise RecordError(f"{where}: a list is needed, got {value!r}.")
        return origin(_coerce(args[0], v, where) for v in value)
    if origin is dict and isinstance(value, dict):
        return {k: _coerce(args[1], v, f"{where}, {k}") for k, v in value.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in list(hint):
            raise RecordError(f"{where}: one of {', '.join(hint)} is needed, got {value!r}.")
        return hint(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise RecordError(f"{where}: an object is needed, got {value!r}.")
        return from_dict(hint, value, where)
    kind = origin if origin not in (None, types.UnionType) else hint
    if isinstance(kind, type) and not (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
        raise RecordError(f"{where}: {getattr(kind, '__name__', kind)} is needed, got {value!r}.")
    return value


def sha256(path: str | Path) -> str:
    """Checksum of a file, as hexadecimal text."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
