"""Measurements that change nothing: success by level, and what the world model knows.

Success is binary. World-model accuracy is measured twice: on the replies that the evaluated
rollouts really got (by category), and as the share of departments whose exact requirements it
names when it is asked about an empty-handed call (the knowledge that `imagine` draws on).
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from sklearn.feature_extraction import DictVectorizer
from sklearn.tree import DecisionTreeClassifier

from lfo import distributed
from lfo.config import EnvConfig, RolloutConfig, RunConfig, derive_seed
from lfo.env import REFERENCE_POLICIES, Episode, run_scripted
from lfo.records import Task, Trajectory, Turn
from lfo.rollout import Completion, Engine, Job, Prompt, group_jobs, play
from lfo.sampling import empty_handed_call
from lfo.simulator import SITUATION_STATUS, CsrSimulator, parse_reply, requested_fields, say
from lfo.statistics import wilson
from lfo.tokens import CallExample, Codec
from lfo.tools import ToolCall, format_call, parse_action, search_company
from lfo.world import DEPARTMENT_OF_GOAL, DEPARTMENTS, FIELDS, World

REPLY_TOKENS = 64  # at most, in one predicted reply
WORLD_MODEL = "world_model"  # the adapter that `play` asks to imagine


def play_tasks(
    engine: Engine,
    codec: Codec,
    world: World,
    tasks: Sequence[Task],
    config: RunConfig,
    seed: int,
    episodes: int,
    held_out_phrasing: bool = False,
    aided: bool = True,
) -> list[Trajectory]:
    """Greedy episodes of every task. Each (task, episode) has the same user and CSR for every policy.

    Unless it is `aided`, a policy that learned with imagined replies plays without them.
    """
    jobs = [
        Job(task, i * episodes + k, derive_seed("evaluation", task.task_id, k), held_out_phrasing=held_out_phrasing)
        for i, task in enumerate(tasks)
        for k in range(episodes)
    ]
    greedy = dataclasses.replace(config.rollout, temperature=0.0)
    return _play_as_trained(engine, codec, world, jobs, greedy, config, seed, aided)


def play_groups(
    engine: Engine, codec: Codec, world: World, tasks: Sequence[Task], config: RunConfig, seed: int
) -> list[Trajectory]:
    """A group of rollouts of every task, sampled at the training temperature as in a step of the loop."""
    size, probes = config.rollout.group_size, config.world_model.probes
    jobs = [j for i, t in enumerate(tasks) for j in group_jobs(t, i, derive_seed(seed, "group", i), size, probes)]
    return _play_as_trained(engine, codec, world, jobs, config.rollout, config, seed)


def _play_as_trained(
    engine, codec, world, jobs, rollout: RolloutConfig, config: RunConfig, seed, aided=True
) -> list[Trajectory]:
    """`play` under the rules and with the coupling of a run, sampled as `rollout` says."""
    return play(engine, codec, world, jobs, config.env, rollout, seed,
                predict=config.world_model.predict,
                imagine=aided and config.world_model.coupling == "imagine")  # fmt: skip


def success_rows(rows: Sequence[Trajectory], tasks: Sequence[Task]) -> list[dict]:
    """Success with Wilson intervals by level, and over all levels as level 0."""
    level = {t.task_id: t.level for t in tasks}
    return _by_level([(level[row.task_id], row.success) for row in rows])


def _by_level(outcomes: Sequence[tuple[int, bool]]) -> list[dict]:
    counts: dict[int, list[bool]] = defaultdict(list)
    for lvl, success in outcomes:
        counts[0].append(success)
        counts[lvl].append(success)
    out = []
    for lvl, results in sorted(counts.items()):
        low, high = wilson(sum(results), len(results))
        out.append({"level": lvl, "success": sum(results) / len(results), "low": low, "high": high, "n": len(results)})
    return out


def behaviour(rows: Sequence[Trajectory]) -> dict[str, float]:
    """Calls per task, share of tasks with the form answered before the first call, shaped reward, malformed share."""
    n = max(1, len(rows))
    actions = [t for r in rows for t in r.turns]
    return {
        "calls_per_task": sum(t.tool == "make_phone_call" for t in actions) / n,
        "auth_before_call": sum(r.auth_before_call for r in rows) / n,
        "shaped_reward": sum(r.shaped_reward for r in rows) / n,
        "malformed": sum(t.status == "error" for t in actions) / max(1, len(actions)),
        "tokens_per_task": sum(len(r.tokens) for r in rows) / n,
    }


# --- the world model -------------------------------------------------------------------------


def read_reply(text: str) -> tuple[str, frozenset[str], frozenset[str]]:
    """What a reply means: its status, the fields it names, the departments it names after its own."""
    status, message = parse_reply(text)
    if status == "unreadable":
        return status, frozenset(), frozenset()
    rest = re.split(r"[.!] ", message, maxsplit=1)[-1]  # "Billing. ..." or "Billing, hi! ..."
    return status, requested_fields(message), frozenset(_DEPARTMENT.findall(rest))


def meaning(text: str) -> tuple[str, frozenset[str], frozenset[str]]:
    """`read_reply`, also for the answers of the other tools: which fields the form gives, which departments are listed.

    Their values are left out: no world model can know them.
    """
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict) or "status" in data:
        return read_reply(text)
    return "answer", frozenset(data), frozenset(_DEPARTMENT.findall(text))


_DEPARTMENT = re.compile("|".join(sorted(map(re.escape, DEPARTMENTS), key=len, reverse=True)))  # longest first


def predict_replies(
    engine: Engine,
    codec: Codec,
    prompts: Sequence[Sequence[int]],
    adapter: str,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[str]:
    """Predictions of the world-model adapter as text, greedy unless a temperature says otherwise."""
    mine = distributed.share(range(len(prompts)))
    requests = [Prompt(list(prompts[i]), adapter, REPLY_TOKENS, codec.csr_end_id, temperature) for i in mine]
    texts = []
    for i in range(0, len(requests), 64):
        texts += [codec.reply_text(c.tokens) for c in engine.generate(requests[i : i + 64], derive_seed(seed, i))]
    return distributed.join(mine, texts)


def spoken(text: str) -> str:
    """A phone reply as "status: message"; anything else as it is."""
    return text if read_reply(text)[0] == "unreadable" else "{status}: {message}".format(**json.loads(text))


def inspect_replies(engine: Engine, codec: Codec, calls: Sequence[CallExample], adapter: str) -> list[dict]:
    """Prediction beside reality, one row per call.

    category: the true status. gave: fields that were handed over. fields_right: the prediction names exactly
    the fields that the reply names. right: so do status and departments; wording does not count.
    """
    texts = predict_replies(engine, codec, [c.prompt for c in calls], adapter)
    rows = []
    for call, text in zip(calls, texts, strict=True):
        said, predicted = meaning(call.reply_text), meaning(text)
        action = parse_action(codec.asked_about(call.prompt))
        gave = action.arguments.get("auth_info", {}) if isinstance(action, ToolCall) else {}
        rows.append({"task_id": call.task_id, "category": call.status, "gave": ", ".join(gave),
                     "said": spoken(call.reply_text), "predicted": spoken(text),
                     "fields_right": predicted[1] == said[1], "right": predicted == said})  # fmt: skip
    return rows


def reply_rows(engine: Engine, codec: Codec, calls: Sequence[CallExample], adapter: str) -> list[dict]:
    """Semantic accuracy on real replies, by true category: status, named fields and departments are all right."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for row in inspect_replies(engine, codec, calls, adapter):
        hits[row["category"]].append(row["right"])
    return [{"category": category, "accuracy": sum(h) / len(h), "n": len(h)} for category, h in sorted(hits.items())]


@dataclasses.dataclass(frozen=True)
class RuleQuestion:
    """An empty-handed call to a department that demands something, and no other call first.

    prompt: what the world model is asked. truth: the fields that the reply must name.
    """

    company_id: str
    department: str
    variation: str
    prompt: tuple[int, ...]
    truth: frozenset[str]


def rule_questions(codec: Codec, world: World, companies: Sequence[str]) -> list[RuleQuestion]:
    """One question per department; those that require nothing, or another call first, are left out."""
    keys = [(c, d.name) for c in companies for d in world.companies[c].departments]
    rules = [world.rules[key] for key in keys if world.rules[key].required and not world.rules[key].after]
    return [
        RuleQuestion(r.company_id, r.department, r.variation,
                     rule_prompt(codec, world, r.company_id, r.department, r.department), frozenset(r.required))
        for r in rules
    ]  # fmt: skip


def rule_prompt(codec: Codec, world: World, company_id: str, department: str, wanted: str) -> tuple[int, ...]:
    """What the world model reads when `department` is called with empty hands for a goal of the department `wanted`."""
    company = world.companies[company_id]
    directory = json.dumps(search_company(world.companies, company.name))
    turn = Turn(format_call("search_company", {"company_name": company.name}), directory, "search_company", "ok")
    phone = next(d.phone for d in company.departments if d.name == department)
    request = f"Please call {company.name} for me: {DEPARTMENTS[wanted].goals[0]}."
    return tuple(codec.world_prompt(request, [turn], empty_handed_call(phone)))


def rule_accuracy(
    engine: Engine, codec: Codec, world: World, companies: Sequence[str], adapter: str
) -> dict[str, float]:
    """Share of `rule_questions` whose exact required fields the predicted answer names.

    Also by whether the company follows the typical rules.
    """
    questions = rule_questions(codec, world, companies)
    texts = predict_replies(engine, codec, [q.prompt for q in questions], adapter)
    hits = [read_reply(text)[1] == q.truth for text, q in zip(texts, questions, strict=True)]
    typical = [h for h, q in zip(hits, questions, strict=True) if q.variation == "typical"]
    return {
        "rule_accuracy": sum(hits) / max(1, len(hits)),
        "rule_accuracy_typical": sum(typical) / max(1, len(typical)),
        "n": len(hits),
    }


# --- what an untrained base brings along -----------------------------------------------------


def copying(rows: Sequence[Trajectory]) -> tuple[int, int]:
    """(faithful, emitted): phone numbers and field values in readable calls, and those of them that are copies.

    A number is a copy where it stands, quoted, in an earlier observation of the same row; a value
    where it stands there for the same field.
    """
    faithful = emitted = 0
    for row in rows:
        heard = ""
        for turn in row.turns:
            if turn.tool == "make_phone_call":
                arguments = parse_action(turn.action).arguments
                said = [json.dumps(arguments["phone_number"])]
                said += [f"{json.dumps(f)}: {json.dumps(v)}" for f, v in arguments["auth_info"].items()]
                faithful += sum(s in heard for s in said)
                emitted += len(said)
            heard += turn.observation
    return faithful, emitted


def parsing(rows: Sequence[Trajectory]) -> tuple[int, int]:
    """(readable, made): tool calls, and those of them that can be read. Hanging up is no call."""
    made = [turn for row in rows for turn in row.turns if turn.status != "stopped"]
    return sum(turn.tool != "" for turn in made), len(made)


def form_information(
    rows: Sequence[Trajectory], world: World, permutations: int = 1000, seed: int = 0
) -> dict[str, dict[str, float]]:
    """What a row's first form tells about the department of its task's first goal, in bits, given the industry.

    Entries `size` (how many fields) and `first` (the first field): `bits`, the plug-in estimate of the
    conditional mutual information; `by_chance`, its mean when departments are dealt out anew among
    the tasks of an industry; `p`, the share of such deals with at least as many bits. Plug-in
    estimates are never 0: compare with `by_chance`.
    """
    tasks = {t.task_id: t for t in world.tasks}
    department = {i: DEPARTMENT_OF_GOAL[tasks[i].goals[0]] for i in {row.task_id for row in rows}}
    by_industry: dict[str, list[str]] = defaultdict(list)
    for task_id in sorted(department):
        by_industry[world.companies[tasks[task_id].company_id].industry].append(task_id)
    industry = {i: name for name, ids in by_industry.items() for i in ids}
    forms = [(r.task_id, tuple(parse_action(t.action).arguments["fields"])) for r in rows
             for t in [t for t in r.turns if t.tool == "auth_info_form"][:1]]  # fmt: skip
    rng, deals = random.Random(f"{seed}/deals"), [department]
    for _ in range(permutations):
        deals.append({})
        for ids in by_industry.values():
            dealt = rng.sample([department[i] for i in ids], len(ids))
            deals[-1] |= dict(zip(ids, dealt, strict=True))
    out = {}
    for name, of in {"size": len, "first": lambda fields: fields[0] if fields else ""}.items():
        bits, *chance = [
            conditional_information([(of(fields), deal[i], industry[i]) for i, fields in forms]) for deal in deals
        ]
        as_many = 1 + sum(b >= bits - 1e-9 for b in chance)
        out[name] = {"bits": bits, "by_chance": sum(chance) / permutations, "p": as_many / (1 + permutations)}
    return out


def conditional_information(triples: Sequence[tuple]) -> float:
    """I(X; Y | Z) in bits of the empirical distribution of (x, y, z)."""
    n, xyz = len(triples), Counter(triples)
    xz, yz = Counter((x, z) for x, _, z in triples), Counter((y, z) for _, y, z in triples)
    z_counts = Counter(z for _, _, z in triples)
    return sum(c / n * math.log2(c * z_counts[z] / (xz[x, z] * yz[y, z])) for (x, y, z), c in xyz.items())


class TruthfulEngine:
    """An engine whose world model is never wrong: it names what the dialled department demands.

    Everything else is left to the engine it wraps. With `play(..., imagine=True)` it gives the
    success that a perfect world model would bring, and tells whether a base follows hints.
    """

    def __init__(self, engine: Engine, codec: Codec, world: World, seed: int = 0):
        self._engine, self._codec, self._rng = engine, codec, random.Random(f"{seed}/truth")
        self._rules = {d.phone: world.rules[c.company_id, d.name] for c in world.companies.values()
                       for d in c.departments}  # fmt: skip

    def load(self, adapters: dict[str, Path]) -> None:
        self._engine.load(adapters)

    def end_sessions(self) -> None:
        self._engine.end_sessions()

    def generate(self, prompts: list[Prompt], seed: int) -> list[Completion]:
        left = iter(self._engine.generate([p for p in prompts if p.adapter != WORLD_MODEL], seed))
        return [self._answer(p) if p.adapter == WORLD_MODEL else next(left) for p in prompts]

    def _answer(self, prompt: Prompt) -> Completion:
        rule = self._rules[parse_action(self._codec.asked_about(prompt.tokens)).arguments["phone_number"]]
        situation, fields = ("missing", {"fields": rule.required}) if rule.required else ("success", {})
        message = say(self._rng, situation, False, dept=rule.department, **fields)
        ids = self._codec.world_reply(json.dumps({"status": SITUATION_STATUS[situation], "message": message}))
        return Completion(ids, [0.0] * len(ids))


# --- the environment without a model ---------------------------------------------------------

# What an episode's rules are for: each is lifted once.
RULE_VARIANTS = {
    "as decided": EnvConfig(),
    "the form may follow a call": EnvConfig(form_after_call=True),
    "the user shares everything": EnvConfig(slack=len(FIELDS)),
}
LEARNING_CALLS = (25, 50, 100, 200, 400, 1000)


def play_scripted(world: World, task: Task, policy: str, config: EnvConfig | None = None, seed: int = 0) -> Episode:
    """One finished episode of a reference policy. Each (task, seed) has the same user and CSR for every policy."""
    episode_seed = derive_seed("evaluation", task.task_id, seed)
    episode = Episode(world, task, config or EnvConfig(), episode_seed)
    return run_scripted(episode, REFERENCE_POLICIES[policy](episode, world, random.Random(episode_seed)))


def transcript(episode: Episode, turns: int | None = None, width: int = 112) -> str:
    """An episode to read: who says what, turn by turn; after `turns` actions only how many more there are."""

    def line(who: str, text: str) -> str:
        return textwrap.fill(text, width, initial_indent=f"{who:18}", subsequent_indent=" " * 18)

    lines = [line("USER", episode.request)]
    for turn in episode.turns[:turns]:
        tool, _, arguments = turn.action.partition("<|args|>")
        lines += [line("AGENT", f"{tool} {arguments}".strip() or "(hangs up)")]
        lines += [line(f"  {turn.status}", turn.observation)] * bool(turn.observation)
    more = len(episode.turns[turns:]) if turns else 0
    lines += [f"({more} more actions)"] * bool(more)
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
    csr = CsrSimulator(company, world.rules, {g: goal_department for g in task.goals}, "checks")
    right = {name: {f: truth[f] for f in world.rules[company.company_id, name].required} for name in phone}
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
        rows.append({"check": check, "call": callee, "hands over": handed_over, "status": reply.status,
                     "message": reply.message})  # fmt: skip
    return rows


def _all_checks_apply(world: World) -> tuple[Task, str, str, str]:
    """A task, the department to call first, that of its goal, and one that cannot help; each demands something."""
    for task in world.split("train", (3,)):
        rules = {name: rule for (company_id, name), rule in world.rules.items() if company_id == task.company_id}
        goal = DEPARTMENT_OF_GOAL[task.goals[0]]
        gate = rules[goal].after
        user = world.profiles[task.profile_id].values
        free = [n for n, r in rules.items() if n not in (goal, gate) and r.required and not r.after]
        free = [n for n in free if set(rules[n].required) <= set(user)]
        if len(task.goals) == 1 and gate and rules[gate].required and free:
            return task, gate, goal, free[0]
    raise ValueError("no training task has a routed department and one that cannot help; try another world seed")


def reference_rows(
    world: World, tasks: Sequence[Task], episodes: int, config: EnvConfig | None = None, policies=REFERENCE_POLICIES
) -> list[dict]:
    """Success of every reference policy by level (0: all) with Wilson 95% intervals, and the mean shaped reward.

    Episodes of one task share its company and user: with more than one the intervals are too narrow.
    """
    out = []
    for policy in policies:
        played = [(t.level, play_scripted(world, t, policy, config, k)) for t in tasks for k in range(episodes)]
        shaped = defaultdict(list)
        for level, episode in played:
            shaped[0].append(episode.shaped_reward)
            shaped[level].append(episode.shaped_reward)
        for row in _by_level([(level, episode.success) for level, episode in played]):
            rewards = shaped[row["level"]]
            out.append({"policy": policy, **row, "shaped_reward": sum(rewards) / len(rewards)})
    return out


def rule_variant_rows(
    world: World, tasks: Sequence[Task], episodes: int, variants: Mapping[str, EnvConfig] = RULE_VARIANTS
) -> list[dict]:
    """`reference_rows` once for every set of rules."""
    return [
        {"rules": name, **row}
        for name, config in variants.items()
        for row in reference_rows(world, tasks, episodes, config)
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


def entropy_bits(values: Sequence) -> float:
    """Shannon entropy of the values' empirical distribution."""
    shares = [count / len(values) for count in Counter(values).values()]
    return 0.0 - sum(p * math.log2(p) for p in shares)


@dataclasses.dataclass(frozen=True)
class ObservedCall:
    """What one phone call taught: `given` fields were handed over, of all others exactly `asked` are demanded."""

    company_id: str
    department: str
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
        company = world.companies[episode.task.company_id]
        departments = {d.phone: d.name for d in company.departments}
        for turn in episode.turns if not episode.unavailable else ():
            if turn.tool == "make_phone_call" and turn.status in ("auth_failed", "success"):
                arguments = parse_action(turn.action).arguments
                given = frozenset(arguments["auth_info"])
                asked = requested_fields(json.loads(turn.observation)["message"]) - given  # given: a mismatch
                out.append(ObservedCall(company.company_id, departments[arguments["phone_number"]], given, asked))
    return out[:count]


def predict_required(
    world: World, calls: Sequence[ObservedCall], departments: Sequence[tuple[str, str]]
) -> list[frozenset[str]]:
    """The field set of each (company_id, department), by one decision tree per field on the calls.

    Features: industry, department and company, one-hot. A call teaches about the fields that were not handed over.
    """
    industry = {c.company_id: c.industry for c in world.companies.values()}

    def features(company_id: str, department: str) -> dict[str, str]:
        return {"company": company_id, "department": department, "industry": industry[company_id]}

    encoder = DictVectorizer(sparse=False)
    known = encoder.fit_transform([features(c.company_id, c.department) for c in calls])
    wanted = encoder.transform([features(*key) for key in departments])
    predicted: list[set[str]] = [set() for _ in departments]
    for field in FIELDS:
        rows = [i for i, call in enumerate(calls) if field not in call.given]
        tree = DecisionTreeClassifier(random_state=0)
        tree.fit(known[rows], [field in calls[i].asked for i in rows])
        for fields, demanded in zip(predicted, tree.predict(wanted), strict=True):
            fields |= {field} if demanded else set()
    return [frozenset(fields) for fields in predicted]


def learnability(world: World, calls: Sequence[int] = LEARNING_CALLS, seeds: Sequence[int] = (0,)) -> list[dict]:
    """How well the first n random calls predict what an empty-handed call would be asked for, for every n.

    Scored on the departments of known (validation) and new (test) companies that demand something and no
    other call first, as in `rule_accuracy`. accuracy: share with exactly the right field set, with its
    Wilson interval. chance: the same for always answering the most frequent set. typical: the same for
    the world's typical requirements, what a perfect learner knows about a company it never called.
    """
    scored = {split: _askable(world, split) for split in ("validation", "test")}
    out = []
    for seed in seeds:
        observed = observe_calls(world, max(calls), seed)
        for n in calls:
            for split, keys in scored.items():
                truths = [frozenset(world.rules[key].required) for key in keys]
                predicted = predict_required(world, observed[:n], keys)
                hits = sum(p == t for p, t in zip(predicted, truths, strict=True))
                low, high = wilson(hits, len(keys))
                out.append({"split": split, "calls": n, "accuracy": hits / len(keys), "low": low, "high": high,
                            "n": len(keys), **_constant_answers(world, keys), "seed": seed})  # fmt: skip
    return out


def _askable(world: World, split: str) -> list[tuple[str, str]]:
    companies = {t.company_id for t in world.split(split)}
    return [key for key, rule in world.rules.items() if key[0] in companies and rule.required and not rule.after]


def _constant_answers(world: World, keys: Sequence[tuple[str, str]]) -> dict[str, float]:
    truths = [world.rules[key].required for key in keys]
    typical = [world.typical.required[world.companies[company].industry, name] for company, name in keys]
    return {
        "chance": Counter(truths).most_common(1)[0][1] / len(keys),
        "typical": sum(a == b for a, b in zip(truths, typical, strict=True)) / len(keys),
    }
