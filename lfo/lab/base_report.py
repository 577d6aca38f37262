"""What an untrained base brings along: does it copy, are its calls readable, do its forms already know something?

Reads rollouts and the world they were played in; runs no model.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from lfo.envs.phone.tools import FORM, PHONE
from lfo.envs.phone.vocabulary import DEPARTMENT_OF_GOAL
from lfo.envs.phone.world import World
from lfo.types import Call, Hangup, Rollout


def copying(rows: Sequence[Rollout]) -> dict[str, tuple[int, int]]:
    """(faithful, emitted) in readable calls: field values, numbers of a row's first two calls and of its later ones.

    A number is a copy where it stands, quoted, in an earlier observation of the same row; a value
    where it stands there for the same field.
    """
    faithful, emitted = Counter(), Counter()
    for row in rows:
        heard, calls = "", 0
        for turn in row.turns:
            if turn.tool == PHONE:
                calls += 1
                arguments = turn.action.arguments
                said = [("numbers" if calls <= 2 else "later numbers", json.dumps(arguments["phone_number"]))]
                said += [("values", f"{json.dumps(f)}: {json.dumps(v)}") for f, v in arguments["auth_info"].items()]
                faithful.update(kind for kind, text in said if text in heard)
                emitted.update(kind for kind, _ in said)
            heard += turn.observation
    return {kind: (faithful[kind], emitted[kind]) for kind in ("values", "numbers", "later numbers")}


def parsing(rows: Sequence[Rollout]) -> tuple[int, int]:
    """(readable, made): tool calls, and those of them that can be read. Hanging up is no call."""
    actions = [turn.action for row in rows for turn in row.turns if not isinstance(turn.action, Hangup)]
    return sum(isinstance(action, Call) for action in actions), len(actions)


# What is read off a form: how many fields, and the first of them.
ASPECTS: Mapping[str, Callable[[Sequence[str]], object]] = {
    "size": len,
    "first": lambda fields: fields[0] if fields else "",
}


def form_information(rows: Sequence[Rollout], world: World, permutations: int = 1000) -> dict[str, dict[str, float]]:
    """What a row's first form tells about the department of its task's first goal, in bits, given the industry.

    For each of ASPECTS: `bits`, the plug-in estimate of the conditional mutual information; `by_chance`, its mean
    when departments are dealt out anew among the tasks of an industry; `p`, the share of such deals with at least as
    many bits. Plug-in estimates are never 0: compare with `by_chance`.
    """
    tasks = {task.task_id: task for task in world.tasks}
    department = {i: DEPARTMENT_OF_GOAL[tasks[i].goals[0]] for i in {row.task_id for row in rows}}
    industry = {i: world.companies[tasks[i].company_id].industry for i in department}
    forms = [(row.task_id, fields) for row in rows if (fields := _first_form(row)) is not None]
    deals = [department, *_deals(department, industry, permutations, random.Random("0/deals"))]
    out = {}
    for name, of in ASPECTS.items():
        bits, *chance = [
            conditional_information([(of(fields), deal[i], industry[i]) for i, fields in forms]) for deal in deals
        ]
        as_many = 1 + sum(b >= bits - 1e-9 for b in chance)
        out[name] = {"bits": bits, "by_chance": sum(chance) / permutations, "p": as_many / (1 + permutations)}
    return out


def _first_form(row: Rollout) -> list[str] | None:
    return next((turn.action.arguments["fields"] for turn in row.turns if turn.tool == FORM), None)


def _deals(
    department: Mapping[str, str], industry: Mapping[str, str], count: int, rng: random.Random
) -> list[dict[str, str]]:
    """`department` dealt out anew, `count` times, among the tasks of an industry."""
    by_industry: dict[str, list[str]] = defaultdict(list)
    for task_id in sorted(department):
        by_industry[industry[task_id]].append(task_id)
    deals: list[dict[str, str]] = []
    for _ in range(count):
        deals.append({})
        for ids in by_industry.values():
            deals[-1] |= zip(ids, rng.sample([department[i] for i in ids], len(ids)), strict=True)
    return deals


def conditional_information(triples: Sequence[tuple]) -> float:
    """I(X; Y | Z) in bits of the empirical distribution of (x, y, z)."""
    n, xyz = len(triples), Counter(triples)
    xz, yz = Counter((x, z) for x, _, z in triples), Counter((y, z) for _, y, z in triples)
    z_counts = Counter(z for _, _, z in triples)
    return sum(c / n * math.log2(c * z_counts[z] / (xz[x, z] * yz[y, z])) for (x, y, z), c in xyz.items())


def entropy_bits(values: Sequence) -> float:
    """Shannon entropy of the values' empirical distribution."""
    shares = [count / len(values) for count in Counter(values).values()]
    return 0.0 - sum(p * math.log2(p) for p in shares)
