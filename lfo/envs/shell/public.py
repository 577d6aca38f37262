"""Reads public sets of shell tasks, none of which is shipped.

Two schemas: LifelongAgentBench's os_interaction (a list, lines, or an object by sample index), and AgentBench's
data/os_interaction/train_0317/training.json, whose tasks want an answer: a whole number, a text or a size. There is no
action that answers here: the answer is written to a file, which the instruction then asks for. Keys that neither
schema has are left aside.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from lfo.envs.shell.records import EvaluationInfo, PublicTask, ShellTask, bash
from lfo.types import Record, RecordError

T = TypeVar("T")

ANSWER = "/tmp/answer"
# How AgentBench compares answers, by the name of its script: what is to be written, and whether two are the same. Sizes
# may have decimals here, as du prints them; letters are in its order, each a 1,024th of the next.
MATCHES = {
    "integer-match.py": ("number", '[ "$1" -eq "$2" ] 2> /dev/null'),
    "string-match.py": (
        "answer",
        r"""plain() { local s=${1//$'\r'/}; s=${s#"${s%%[![:space:]]*}"}; printf %s "${s%"${s##*[![:space:]]}"}"; }
[ "$(plain "$1")" = "$(plain "$2")" ]""",
    ),
    "size-match.py": (
        "size",
        """awk -v one="$1" -v other="$2" '
function bytes(said) {
  gsub(/[[:space:]]/, "", said)
  if (said !~ /^[0-9]+(\\.[0-9]+)?([KMGTP]?B?|Byte)$/) exit 1
  letter = said; gsub(/[^KMGTP]/, "", letter)
  return said * 1024 ^ (letter ? index("KMGTP", letter) : 0)
}
BEGIN { exit bytes(one) != bytes(other) }'""",
    ),
}


@dataclasses.dataclass(frozen=True)
class Creation(Record):
    init: str


@dataclasses.dataclass(frozen=True)
class Check(Record):
    language: str
    file: str


@dataclasses.dataclass(frozen=True)
class Match(Record):
    """check: nothing, then the script that compares two answers. example: prints the right one."""

    check: tuple[None, Check]
    example: str


@dataclasses.dataclass(frozen=True)
class AgentBenchTask(Record):
    """A task of AgentBench's training set."""

    description: str
    create: Creation
    evaluation: Match
    explanation: str = ""


def read_public(path: str | Path) -> tuple[list[ShellTask], list[str]]:
    """The tasks of a public set, in the order of the file, and a sentence on each entry that is none: line and field.

    Raises:
        RecordError: the file is missing, is no UTF-8 or no JSON to its end, or holds no task.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"there is no file {path}; download a public set first.")
    found, problems = [], []
    for number, (line, index, entry) in enumerate(_entries(path)):
        where = f"{path}, the task that begins in line {line}"
        try:
            if not isinstance(entry, dict):
                raise RecordError(f"{where}: a task must be an object.")
            read, place = (_of_agent_bench, number) if "description" in entry else (_of_lifelong, index)
            ours = read(entry, where, place)
            found.append(ShellTask(task_id=f"public-{number:04d}", split="public", level=1, **ours))
        except RecordError as error:
            problems.append(str(error))
    if not found:
        raise RecordError("\n".join([f"{path} holds no task.", *problems]))
    return found, problems


def _entries(path: Path) -> Iterator[tuple[int, int | str, object]]:
    """Line, index and value of each entry: of a JSON list, an object of entries by index, or of lines."""
    text, decoder = _text(path), json.JSONDecoder()
    keyed = re.match(r'\s*\{\s*"\d+"\s*:', text) is not None
    one = keyed or text.lstrip()[:1] == "["  # value, to the end of the file
    between = re.compile(r"[\s,]*" if one else r"\s*")
    try:
        if one:
            json.loads(text)
        at, number = re.match(r"\s*[\[{]\s*" if one else r"\s*", text).end(), 0
        while at < len(text) and not (one and text[at] in "]}"):
            line, index = text.count("\n", 0, at) + 1, number
            if keyed:
                key, at = decoder.raw_decode(text, at)
                index, at = int(key) if key.isdecimal() else key, re.compile(r"\s*:\s*").match(text, at).end()
            entry, at = decoder.raw_decode(text, at)
            yield line, index, entry
            at, number = between.match(text, at).end(), number + 1
    except json.JSONDecodeError as error:
        raise RecordError(f"{path}, line {error.lineno}: this is no JSON ({error.msg}).") from None


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RecordError(f"{path}, line {line}: this is not UTF-8 text.") from None


def _read(kind: type[T], entry: dict, where: str) -> T:
    """A record of what an entry says of its fields, each of its type; `where` names the entry in errors.

    Raises:
        RecordError: a field is missing or mistyped; the message has its path.
    """
    try:
        return _adapter(kind).validate_json(json.dumps(entry), strict=True, extra="ignore")
    except ValidationError as error:
        problem = error.errors()[0]
        place = f", {'.'.join(map(str, problem['loc']))}" if problem["loc"] else ""
        raise RecordError(f"{where}{place}: {problem['msg'][0].lower()}{problem['msg'][1:]}.") from None


_adapter = functools.lru_cache(TypeAdapter)


def _of_lifelong(entry: dict, where: str, index: int | str) -> dict:
    """The fields of a `PublicTask`. Some copies of the set hold objects as Python writes them, in strings."""
    said = {"sample_index": index} | {name: _unquoted(value) for name, value in entry.items()}
    task = _read(PublicTask, said, where)
    items = {f"evaluation_info.{name}": item for name, item in vars(task.evaluation_info).items()}
    for place, item in ({"initialization_command_item": task.initialization_command_item} | items).items():
        if item.command_name != "bash":
            raise RecordError(f"{where}, {place}.command_name: '{item.command_name}' cannot be run; only bash can.")
    return vars(task)


def _unquoted(value):
    if isinstance(value, str) and value[:1] in "{[":
        try:
            return json.loads(json.dumps(ast.literal_eval(value)))
        except (ValueError, SyntaxError, TypeError):
            return value
    return value


def _of_agent_bench(entry: dict, where: str, number: int) -> dict:
    task = _read(AgentBenchTask, entry, where)
    file = task.evaluation.check[1].file
    match = MATCHES.get(Path(file).name)
    if match is None:
        raise RecordError(f"{where}, evaluation.check.1.file: '{file}' is not known; {', '.join(MATCHES)} are.")
    what, same = match
    found = f"$(\n{task.evaluation.example}\n)"
    passes = f'[ -f {ANSWER} ] && [ -n "$wanted" ] && same "$(cat {ANSWER})" "$wanted"'
    return {
        "sample_index": number,
        "instruction": f"{task.description} Write the {what}, and nothing else, to {ANSWER}.",
        "initialization_command_item": bash(f"{task.create.init}\n:"),
        "evaluation_info": EvaluationInfo(
            bash(f"same() {{\n{same}\n}}\nwanted={found}\n{passes}"),
            bash(f'found={found}\nprintf "%s\\n" "$found" > {ANSWER}'),
        ),
        "skill_list": (what,),
    }
