"""Which tasks are sampled, which groups teach the policy, and how a group's rollouts are conditioned.

Pure bookkeeping over tasks, trajectories and texts; generating is left to whoever passes in an
engine. `TaskStream` is a pure function of the seed and a position, so a resumed run sees the same
tasks. Dynamic sampling follows DAPO (arXiv 2503.14476, eq. 11): only groups with
0 < successes < G have an advantage; every *sampled* task counts as seen all the same.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections import Counter
from collections.abc import Sequence

from lfo.records import Company, Task, Trajectory, Turn
from lfo.tokens import CallExample
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


def shuffled(calls: Sequence[CallExample], seed: int) -> list[CallExample]:
    """Placebo: the calls, each with the reply of a call of another task, a pure function of the seed.

    The distinct calls of a step exchange their replies (a permutation), so the world model still hears every reply
    as often as it was given and learns how CSRs speak; what a reply says no longer depends on the call. Statuses are
    exchanged too: which calls succeed is knowledge of the rules, and what `dream` takes its reward from. A call
    that nobody of another task can exchange with is left out.
    """
    rng, distinct = random.Random(seed), list(dict.fromkeys(calls))
    tasks = sorted({call.task_id for call in distinct})
    rng.shuffle(tasks)
    rng.shuffle(distinct)
    distinct.sort(key=lambda call: tasks.index(call.task_id))
    # Calls of one task now stand side by side: whoever stands as far away as the longest such row is of another task.
    far = max(Counter(call.task_id for call in distinct).values(), default=0)
    pairs = zip(distinct, distinct[far:] + distinct[:far], strict=True)
    exchanged = {
        mine: dataclasses.replace(mine, reply=other.reply, status=other.status, reply_text=other.reply_text)
        for mine, other in pairs
        if mine.task_id != other.task_id
    }
    return [exchanged[call] for call in calls if call in exchanged]


_NUMBER = re.compile(r"\d{3}-\d{3}-\d{4}")
_DIRECTORY = re.compile(r"(?<=Directory: )[^.]+(?=\. Previous)")


def disguised(state: str, reply: str, company: Company, names: Sequence[str], rng: random.Random) -> str:
    """A world model's prompt as text, with nothing in it that only this company has: what is left is its trade.

    One of `names` takes the place of the first word of the company's own (where they are those of other companies, one
    in ten becomes a real one again); numbers are made up, the same for the same; the directory is shuffled, and of the
    lines that neither the calls so far nor the reply are about half are left out. Learned
    with its true reply, this is a call at a company that nobody knows, so that the world model learns what is usual
    beside what is special (entities are anonymised to the same end in arXiv 1506.03340, section 2). Where the reply
    has numbers in it (a directory, a filled form) nothing is changed.
    """
    if _NUMBER.search(reply):
        return state
    if found := _DIRECTORY.search(state):
        lines = found[0].split("; ")
        told = state[found.end() :] + reply
        lines = [x for x in lines if x[-12:] in told or x[:-13] in told or rng.random() < 0.5]
        rng.shuffle(lines)
        state = state[: found.start()] + "; ".join(lines) + state[found.end() :]
    own = company.name.split()[0]
    state = re.sub(rf"\b{re.escape(own)}\b", rng.choice(names), state)
    made_up = {d.phone: d.phone[:-4] + f"{rng.randrange(10_000):04d}" for d in company.departments}
    return _NUMBER.sub(lambda number: made_up.get(number[0], number[0]), state)


# --- imagination -----------------------------------------------------------------------------


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
