"""Reads public sets of shell tasks, none of which is shipped.

Two schemas: LifelongAgentBench's os_interaction (a list, lines, or an object by sample index), and AgentBench's
data/os_interaction/train_0317/training.json, whose tasks want an answer: a whole number, a text or a size. There is no
action that answers here: the answer is written to a file, which the instruction then asks for.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

from lfo.envs.shell.records import EvaluationInfo, PublicTask, ShellTask, bash
from lfo.types import Record, RecordError, from_json

ANSWER = "/tmp/answer"
_NEXT = re.compile(r"[\s,]*")
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


def read_public(path: str | Path) -> list[ShellTask]:
    """The tasks of a public set, in the order of the file.

    Raises:
        RecordError: the file is missing, is no JSON, or a task is none; the message names line and field.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"there is no file {path}; download a public set first.")
    found = []
    for number, (line, index, entry) in enumerate(_entries(path)):
        where = f"{path}, line {line}"
        if not isinstance(entry, dict):
            raise RecordError(f"{where}: a task must be an object.")
        ours = _of_agent_bench(entry, where, number) if "description" in entry else _of_lifelong(entry, where, index)
        found.append(ShellTask(task_id=f"public-{number:04d}", split="public", level=1, **ours))
    return found


def _entries(path: Path) -> Iterator[tuple[int, int, object]]:
    """Line, index and value of each entry: of a JSON list, an object of entries by index, or of lines."""
    text, decoder = path.read_text(encoding="utf-8"), json.JSONDecoder()
    keyed = re.match(r'\s*\{\s*"\d+"\s*:', text) is not None
    opened = re.match(r"\s*[\[{]" if keyed or text.lstrip()[:1] == "[" else "", text).end()
    at, number = _NEXT.match(text, opened).end(), 0
    while at < len(text) and text[at] not in "]}":
        line, index = text.count("\n", 0, at) + 1, number
        try:
            if keyed:
                key, at = decoder.raw_decode(text, at)
                index, at = int(key), re.compile(r"\s*:\s*").match(text, at).end()
            entry, at = decoder.raw_decode(text, at)
        except (ValueError, AttributeError) as error:
            raise RecordError(f"{path}, line {line}: this is no JSON ({error}).") from None
        yield line, index, entry
        at, number = _NEXT.match(text, at).end(), number + 1


def _of_lifelong(entry: dict, where: str, index: int) -> dict:
    """The fields of a `PublicTask`. Some copies of the set hold objects as Python writes them, in strings."""
    names = [field.name for field in dataclasses.fields(PublicTask)]
    known = {"sample_index": index} | {name: _unquoted(entry[name]) for name in names if name in entry}
    task = from_json(PublicTask, json.dumps(known), where)
    items = (task.initialization_command_item, *vars(task.evaluation_info).values())
    if strange := [item.command_name for item in items if item.command_name != "bash"]:
        raise RecordError(f"{where}, command_name: '{strange[0]}' cannot be run; only bash can.")
    return vars(task)


def _unquoted(value):
    if isinstance(value, str) and value[:1] in "{[":
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return value
    return value


def _of_agent_bench(entry: dict, where: str, number: int) -> dict:
    task = from_json(AgentBenchTask, json.dumps(entry), where)
    match = MATCHES.get(Path(task.evaluation.check[1].file).name)
    if match is None:
        known = ", ".join(MATCHES)
        raise RecordError(f"{where}, evaluation, check: '{task.evaluation.check[1].file}' is not known; {known} are.")
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
