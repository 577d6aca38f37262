"""Which tasks are sampled, which groups teach the policy, and how a group's rollouts are conditioned.

Pure bookkeeping over tasks, trajectories and texts; generating is left to whoever passes in an
engine. `TaskStream` is a pure function of the seed and a position, so a resumed run sees the same
tasks. Dynamic sampling follows DAPO (arXiv 2503.14476, eq. 11): only groups with
0 < successes < G have an advantage; every *sampled* task counts as seen all the same.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence

from lfo.records import Task, Trajectory, Turn
from lfo.tools import format_call


class TaskStream:
    """Tasks in shuffled epochs, without end. `position` counts the tasks handed out."""

    def __init__(self, tasks: Sequence[Task], seed: int, position: int = 0):
        if not tasks:
            raise ValueError("there is no training task at these levels; widen `levels` or generate another world.")
        self._tasks, self._seed, self.position = list(tasks), seed, position

    def take(self, count: int) -> list[Task]:
        taken = []
        for _ in range(count):
            epoch, index = divmod(self.position, len(self._tasks))
            order = list(range(len(self._tasks)))
            random.Random(f"{self._seed}/tasks/{epoch}").shuffle(order)
            taken.append(self._tasks[order[index]])
            self.position += 1
        return taken


def by_group(rows: Sequence[Trajectory]) -> dict[int, list[Trajectory]]:
    groups: dict[int, list[Trajectory]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def informative(group: Sequence[Trajectory]) -> bool:
    """Whether some rollouts succeeded and some failed: judged on the binary outcome, never on a shaped reward."""
    return 0 < sum(row.success for row in group) < len(group)


# --- imagination -----------------------------------------------------------------------------

_NUMBER = re.compile(r"\d{3}-\d{3}-\d{4}")


def directory_of(turns: Sequence[Turn]) -> dict[str, str]:
    """Phone -> department of the last directory that was read, {} before that."""
    for turn in reversed(turns):
        if turn.tool == "search_company":
            return {d["phone"]: d["name"] for d in json.loads(turn.observation)["departments"]}
    return {}


def intended_number(text: str, directory: dict[str, str]) -> str | None:
    """The listed number that a continuation of `Codec.call_prefix` names, or None."""
    found = _NUMBER.search(text)
    return found[0] if found and found[0] in directory else None


def empty_handed_call(phone: str) -> str:
    """The call whose answer is imagined: it gives nothing, so the reply names everything."""
    return format_call("make_phone_call", {"phone_number": phone, "auth_info": {}})
