"""The phone world without a model: what its people answer, what its rules are for, and what can be learned of it.

Notebook 01 shows these tables. Plays scripted callers only.
"""

from __future__ import annotations

import dataclasses
import json
import random
import textwrap
from collections import Counter, defaultdict
from collections.abc import Sequence

from sklearn.feature_extraction import DictVectorizer
from sklearn.tree import DecisionTreeClassifier

from lfo.config import derive_seed
from lfo.envs.base import ARGS_TAG, written
from lfo.envs.phone.callers import REFERENCE_POLICIES, play_scripted
from lfo.envs.phone.csr import CsrSimulator
from lfo.envs.phone.episode import AS_DECIDED, PhoneEpisode, Rules
from lfo.envs.phone.phrasings import requested_fields
from lfo.envs.phone.records import PhoneTask
from lfo.envs.phone.tools import PHONE
from lfo.envs.phone.vocabulary import DEPARTMENT_OF_GOAL, FIELDS
from lfo.envs.phone.world import World
from lfo.evaluate import by_level, wilson
from lfo.lab.base_report import entropy_bits

# What an episode's rules are for: each is lifted once.
RULE_VARIANTS = {
    "as decided": AS_DECIDED,
    "the form may follow a call": Rules(form_after_call=True),
    "the user shares everything": Rules(slack=len(FIELDS)),
}
LEARNING_CALLS = (25, 50, 100, 200, 400, 1000)


def transcript(episode: PhoneEpisode, turns: int | None = None, width: int = 112) -> str:
    """An episode to read: who says what, turn by turn; after `turns` actions only how many more there are."""

    def line(who: str, text: str) -> str:
        return textwrap.fill(text, width, initial_indent=f"{who:18}", subsequent_indent=" " * 18)

    lines = [line("USER", episode.request)]
    for turn in episode.turns[:turns]:
        lines.append(line("AGENT", written(turn.action).replace(ARGS_TAG, " ", 1) or "(hangs up)"))
        if turn.observation:
            lines.append(line(f"  {turn.status}", turn.observation))
    if turns and (more := len(episode.turns[turns:])):
        lines.append(f"({more} more actions)")
    lines.append(line("END", f"{episode.stop}: success {episode.success}, shaped reward {episode.shaped_reward:.2f}"))
    return "\n".join(lines)


def csr_checks(world: World) -> list[dict]:
    """One call per check, in the CSR's order, at the first company where all of them can be shown.

    Rows: which check answers, whom the agent calls, what it hands over, status and message. A check
    answers before all later ones: the routed department refuses although every value is right.
    """
    task, gate, goal_department, other = _all_checks_apply(world)
    company, truth = world.companies[task.company_id], world.profiles[task.profile_id].values
    phone = {d.name: d.phone for d in company.departments}
    demands = world.demands_of(task)
    csr = CsrSimulator(company, demands, "checks", reasons=True)
    right = {name: {f: truth[f] for f in demands.of[name].required} for name in phone}
    wrong = right[gate] | {next(iter(right[gate])): "0"}
    calls = [
        ("number", "an unknown number", "800-555", right[gate], "right values"),
        ("routing", goal_department, phone[goal_department], right[goal_department], "right values"),
        ("authentication", gate, phone[gate], {}, "nothing"),
        ("authentication", gate, phone[gate], wrong, "one wrong value"),
        ("capability", other, phone[other], right[other], "right values"),
        ("service", gate, phone[gate], right[gate], "right values"),
        ("service", goal_department, phone[goal_department], right[goal_department], "right values"),
    ]
    rows = []
    for check, callee, number, auth_info, handed_over in calls:
        reply = csr.call(number, auth_info, truth, set())
        answer = {"status": reply.status, "message": reply.message}
        rows.append({"check": check, "call": callee, "hands over": handed_over, **answer})
    return rows


def _all_checks_apply(world: World) -> tuple[PhoneTask, str, str, str]:
    """A task, the department to call first, that of its goal, and one that cannot help; each demands something."""
    for task in world.split("train", (3,)):
        rules, goal = world.demands_of(task).of, DEPARTMENT_OF_GOAL[task.goals[0]]
        gate = rules[goal].after
        user = world.profiles[task.profile_id].values
        free = [n for n, r in rules.items() if n not in (goal, gate) and r.required and not r.after]
        free = [n for n in free if set(rules[n].required) <= set(user)]
        if len(task.goals) == 1 and not world.demands_of(task).moved and gate and rules[gate].required and free:
            return task, gate, goal, free[0]
    raise ValueError("no training task has a routed department and one that cannot help; try another world seed")


def reference_rows(world: World, tasks: Sequence[PhoneTask], episodes: int, rules: Rules = AS_DECIDED) -> list[dict]:
    """Success of every reference policy by level (0: all) with Wilson 95% intervals, and the mean shaped reward.

    Episodes of one task share its company and user: with more than one the intervals are too narrow.
    """
    out = []
    for policy in REFERENCE_POLICIES:
        played = [(t.level, play_scripted(world, t, policy, rules, k)) for t in tasks for k in range(episodes)]
        shaped = defaultdict(list)
        for level, episode in played:
            shaped[0].append(episode.shaped_reward)
            shaped[level].append(episode.shaped_reward)
        for row in by_level([(level, episode.success) for level, episode in played]):
            rewards = shaped[row["level"]]
            out.append({"policy": policy, **row, "shaped_reward": sum(rewards) / len(rewards)})
    return out


def rule_variant_rows(world: World, tasks: Sequence[PhoneTask], episodes: int) -> list[dict]:
    """`reference_rows` once for each of `RULE_VARIANTS`."""
    return [
        {"rules": name, **row}
        for name, rules in RULE_VARIANTS.items()
        for row in reference_rows(world, tasks, episodes, rules)
    ]


def hidden_entropy(world: World) -> list[dict]:
    """Bits of uncertainty about the field set that a department demands, given what is known about it.

    Empirical (plug-in) entropy over all departments of all companies, each counted once; `cells` is
    the number of cases that the condition tells apart. Few departments share a case, so the
    entropy given department and industry is, if anything, too low.
    """
    industry = {c.company_id: c.industry for c in world.companies.values()}
    conditions = {
        "nothing": lambda company, department: (),
        "industry": lambda company, department: industry[company],
        "department": lambda company, department: department,
        "department and industry": lambda company, department: (department, industry[company]),
        "department and company": lambda company, department: (department, company),
    }
    rows = []
    for name, condition in conditions.items():
        cells: dict = defaultdict(list)
        for key, rule in world.rules.items():
            cells[condition(*key)].append(rule.required)
        bits = sum(len(sets) * entropy_bits(sets) for sets in cells.values()) / len(world.rules)
        rows.append({"given": name, "bits": bits, "cells": len(cells)})
    return rows


@dataclasses.dataclass(frozen=True)
class ObservedCall:
    """What one phone call taught: `given` fields were handed over, of all others exactly `asked` are demanded."""

    company_id: str
    department: str
    circumstances: tuple[str, ...]  # of the request
    given: frozenset[str]
    asked: frozenset[str]


def observe_calls(world: World, count: int, seed: int = 0) -> list[ObservedCall]:
    """Phone calls of the random policy on training tasks, in the order they were made.

    Calls that were not about authentication are left out, and so are episodes in which the user
    lacked a field, since an alternative that is accepted for it is no requirement.
    """
    rng, tasks, out = random.Random(derive_seed("observe", seed)), world.split("train"), []
    while len(out) < count:
        episode = play_scripted(world, rng.choice(tasks), "random", seed=rng.randrange(2**31))
        task, company = episode.task, world.companies[episode.task.company_id]
        departments = {d.phone: d.name for d in company.departments}
        for turn in episode.turns if not episode.unavailable else ():
            if turn.tool == PHONE and turn.status in ("auth_failed", "success"):
                arguments = turn.action.arguments
                given = frozenset(arguments["auth_info"])
                asked = requested_fields(json.loads(turn.observation)["message"]) - given  # given: a mismatch
                department = departments[arguments["phone_number"]]
                out.append(ObservedCall(task.company_id, department, task.circumstances, given, asked))
    return out[:count]


def predict_required(
    world: World, calls: Sequence[ObservedCall], departments: Sequence[tuple[str, str]]
) -> list[frozenset[str]]:
    """The field set of each (company_id, department) without any circumstance, by one decision tree per field.

    Features: industry, department, company and circumstances, one-hot. A call teaches about the fields that were not
    handed over.
    """
    industry = {c.company_id: c.industry for c in world.companies.values()}

    def features(company_id: str, department: str, circumstances: Sequence[str] = ()) -> dict[str, str | bool]:
        about = {"company": company_id, "department": department, "industry": industry[company_id]}
        return about | dict.fromkeys(circumstances, True)

    encoder = DictVectorizer(sparse=False)
    known = encoder.fit_transform([features(c.company_id, c.department, c.circumstances) for c in calls])
    wanted = encoder.transform([features(*key) for key in departments])
    predicted: list[set[str]] = [set() for _ in departments]
    for field in FIELDS:
        rows = [i for i, call in enumerate(calls) if field not in call.given]
        tree = DecisionTreeClassifier(random_state=0)
        tree.fit(known[rows], [field in calls[i].asked for i in rows])
        for fields, demanded in zip(predicted, tree.predict(wanted), strict=True):
            fields |= {field} if demanded else set()
    return [frozenset(fields) for fields in predicted]


def learnability(world: World, seeds: Sequence[int] = (0,)) -> list[dict]:
    """How well the first n random calls predict what an empty-handed call would be asked for: n of `LEARNING_CALLS`.

    The calls come in all circumstances; scored where there are none, on the departments of known (validation) and new
    (test) companies that demand something and no other call first. accuracy: share with exactly the right field set,
    with its Wilson interval. chance: the same for always answering the most frequent set. typical: the same for
    the world's typical requirements, what a perfect learner knows about a company it never called.
    """
    questions = {split: _askable(world, split) for split in ("validation", "test")}
    out = []
    for seed in seeds:
        observed = observe_calls(world, LEARNING_CALLS[-1], seed)
        for n in LEARNING_CALLS:
            for split, keys in questions.items():
                truths = [frozenset(world.rules[key].required) for key in keys]
                predicted = predict_required(world, observed[:n], keys)
                hits = sum(p == t for p, t in zip(predicted, truths, strict=True))
                low, high = wilson(hits, len(keys))
                scores = {"accuracy": hits / len(keys), "low": low, "high": high, "n": len(keys)}
                out.append({"split": split, "calls": n, **scores, **_constant_answers(world, keys), "seed": seed})
    return out


def _askable(world: World, split: str) -> list[tuple[str, str]]:
    companies = {t.company_id for t in world.split(split)}
    return [key for key, rule in world.rules.items() if key[0] in companies and rule.required and not rule.after]


def _constant_answers(world: World, keys: Sequence[tuple[str, str]]) -> dict[str, float]:
    truths = [world.rules[key].required for key in keys]
    typical = [world.typical.required[world.companies[company].industry][name] for company, name in keys]
    return {
        "chance": Counter(truths).most_common(1)[0][1] / len(keys),
        "typical": sum(a == b for a, b in zip(truths, typical, strict=True)) / len(keys),
    }
