"""Measurements that change nothing: success by level, and what the world model knows.

Success is binary. World-model accuracy is measured twice: on the replies that the evaluated
rollouts really got (by category), and as the share of departments whose exact requirements it
names when it is asked about an empty-handed call (the knowledge that `imagine` draws on).
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Sequence

from scipy.stats import binomtest

from lfo.config import RunConfig, derive_seed
from lfo.records import Task, Trajectory, Turn
from lfo.rollout import Engine, Job, Prompt, play
from lfo.sampling import empty_handed_call
from lfo.simulator import requested_fields
from lfo.tokens import CallExample, Codec
from lfo.tools import format_call, search_company
from lfo.world import DEPARTMENTS, World

REPLY_TOKENS = 64  # at most, in one predicted reply


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    interval = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def play_tasks(engine: Engine, codec: Codec, world: World, tasks: Sequence[Task], config: RunConfig, seed: int,
               episodes: int, held_out_phrasing: bool = False) -> list[Trajectory]:
    """Greedy episodes of every task. Each (task, episode) has the same user and CSR for every policy."""
    jobs = [
        Job(task, i * episodes + k, derive_seed("evaluation", task.task_id, k), held_out_phrasing)
        for i, task in enumerate(tasks)
        for k in range(episodes)
    ]
    greedy = dataclasses.replace(config.rollout, temperature=0.0)
    return play(engine, codec, world, jobs, config.env, greedy, seed,
                predict=config.world_model.predict, imagine=config.world_model.coupling == "imagine")  # fmt: skip


def success_rows(rows: Sequence[Trajectory], tasks: Sequence[Task]) -> list[dict]:
    """Success with Wilson intervals by level, and over all levels as level 0."""
    level = {t.task_id: t.level for t in tasks}
    counts: dict[int, list[bool]] = defaultdict(list)
    for row in rows:
        counts[0].append(row.success)
        counts[level[row.task_id]].append(row.success)
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
    try:
        data = json.loads(text)
        status, message = str(data["status"]), str(data["message"])
    except (ValueError, KeyError, TypeError):
        return "unreadable", frozenset(), frozenset()
    rest = message.partition(".")[2] or message
    return status, requested_fields(message), frozenset(d for d in DEPARTMENTS if d in rest)


def predict_replies(engine: Engine, codec: Codec, prompts: Sequence[Sequence[int]], adapter: str) -> list[str]:
    """Greedy predictions of the world-model adapter, as text."""
    requests = [Prompt(list(p), adapter, REPLY_TOKENS, codec.csr_end_id, 0.0) for p in prompts]
    texts = []
    for i in range(0, len(requests), 64):
        texts += [codec.reply_text(c.tokens) for c in engine.generate(requests[i : i + 64], 0)]
    return texts


def reply_rows(engine: Engine, codec: Codec, calls: Sequence[CallExample], adapter: str) -> list[dict]:
    """Semantic accuracy on real replies, by true category: status, named fields and departments are all right."""
    texts = predict_replies(engine, codec, [c.prompt for c in calls], adapter)
    hits: dict[str, list[bool]] = defaultdict(list)
    for call, text in zip(calls, texts, strict=True):
        hits[call.status].append(read_reply(text) == read_reply(call.reply_text))
    return [
        {"category": category, "accuracy": sum(h) / len(h), "n": len(h)} for category, h in sorted(hits.items())
    ]


def rule_accuracy(engine: Engine, codec: Codec, world: World, companies: Sequence[str], adapter: str) -> dict[str, float]:
    """Share of departments whose exact required fields are named in the answer to an empty-handed call.

    Departments that require nothing, or another call first, are left out. Also by whether the
    company follows the typical rules.
    """
    prompts, truths, kinds = [], [], []
    for company_id in companies:
        company = world.companies[company_id]
        directory = json.dumps(search_company(world.companies, company.name))
        turn = Turn(format_call("search_company", {"company_name": company.name}), directory, "search_company", "ok")
        for department in company.departments:
            rule = world.rules[company_id, department.name]
            if not rule.required or rule.after:
                continue
            goal = DEPARTMENTS[department.name].goals[0]
            request = f"Please call {company.name} for me: {goal}."
            prompts.append(codec.world_prompt(request, [turn], empty_handed_call(department.phone)))
            truths.append(frozenset(rule.required))
            kinds.append(rule.variation)
    texts = predict_replies(engine, codec, prompts, adapter)
    hits = [read_reply(text)[1] == truth for text, truth in zip(texts, truths, strict=True)]
    typical = [h for h, kind in zip(hits, kinds, strict=True) if kind == "typical"]
    return {
        "rule_accuracy": sum(hits) / max(1, len(hits)),
        "rule_accuracy_typical": sum(typical) / max(1, len(typical)),
        "n": len(hits),
    }
