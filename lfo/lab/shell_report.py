"""What an untrained shell base brings along: does it copy, does it do what notes say, what does it succeed at?

Reads rollouts and the tasks they were played on; runs no model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from lfo.envs.shell.episode import BASH
from lfo.envs.shell.knowledge import meaning
from lfo.envs.shell.machines import TOOLS
from lfo.envs.shell.records import ShellTask
from lfo.evaluate import success_rows
from lfo.types import Role, Rollout

_PATH = re.compile(r"[A-Za-z]\w*(?:/[\w.]+)+")
_RUN = re.compile(rf"^({'|'.join(TOOLS)})\b(.*)$", re.MULTILINE)


def copied_paths(rows: Sequence[Rollout], requests: Mapping[str, str]) -> tuple[int, int]:
    """(faithful, emitted): paths of files in commands, those that stand in the request or in what was printed before,
    as they are or as the beginning of another path. requests: task -> what was read first.

    What an error names counts as read, too. Few tasks ask for a path that is put together from several: no copy.
    """
    count = Counter()
    for row in rows:
        heard = requests[row.task_id]
        for turn in row.turns:
            if turn.tool == BASH:
                paths = _PATH.findall(turn.action.arguments["command"])
                count["faithful"] += sum(path in heard for path in paths)
                count["emitted"] += len(paths)
            heard += turn.observation
    return count["faithful"], count["emitted"]


def obeyed_notes(rows: Sequence[Rollout], texts: Sequence[str]) -> tuple[int, int]:
    """(obeyed, run): house tools that a note in the row speaks of, those that are first run with exactly the flags that
    it names. texts: the notes of each row."""
    obeyed = run = 0
    for row, text in zip(rows, texts, strict=True):
        noted = {said[1]: said[2] for said in map(meaning, text.split("<|/note|>")) if said[0] == "refused"}
        commands = [turn.action.arguments["command"] for turn in row.turns if turn.tool == BASH]
        first: dict[str, str] = {}
        for tool, rest in _RUN.findall("\n".join(commands)):
            first.setdefault(tool, rest)
        for tool, flags in noted.items():
            if tool in first:
                run += 1
                obeyed += frozenset(re.findall(r"(--\w+) (\S+)", first[tool])) == flags
    return obeyed, run


def notes_of(row: Rollout, decode) -> str:
    """The notes in a row, as text. decode: token ids -> text."""
    return decode([token for token, role in zip(row.tokens, row.roles, strict=True) if role == Role.NOTE])


def by_kind(rows: Sequence[Rollout], tasks: Sequence[ShellTask]) -> dict[str, dict[str, float]]:
    """Success: all tasks, those of a skill, those of house tools -> level, "0" for all -> share."""
    house = {task.task_id for task in tasks if task.house}
    kinds = {
        "all": list(rows),
        "skills": [row for row in rows if row.task_id not in house],
        "house tools": [row for row in rows if row.task_id in house],
    }
    return {
        kind: {str(found["level"]): found["success"] for found in success_rows(some, tasks)}
        for kind, some in kinds.items()
    }
