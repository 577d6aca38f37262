"""What a finished run's world model knows: its predictions scored, its confidence, and a table of hand-written calls.

`probe` asks a run's newest world model once and writes four files into the run folder; the tables and figures of
notebook 06 are drawn from those files alone (`lfo.probing_figures`). Nothing here is a rollout `probe` of training
(`world_model.probes`).

* episodes: freshly played ones of the run's own policy, greedy as in every evaluation; did they succeed?
* replies: the calls of freshly played episodes of the run's own policy and of `CALLERS`, scripted and the same for
  every run; each with its reply, the greedy prediction, and the reply's tokens scored teacher-forced. The untrained
  base is scored on the same calls: it speaks the CSR's language before it knows a single rule.
* rules: every question of `evaluate.rule_questions`, answered greedily and by several samples; how often the samples
  agree is the world model's confidence. And the same call made for another department's goal: does the world model
  go by the number that is called, or by what the user wants?
* situations: `SITUATIONS`, hand-written calls with the answer that a reader of the rules expects.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from peft import PeftModel
from transformers import PreTrainedModel

from lfo.base import load_base
from lfo.config import DistributedConfig, EnvConfig, RunConfig, build, derive_seed
from lfo.env import Episode, RandomForm, TypicalPrior, run_scripted
from lfo.evaluate import (
    RuleQuestion,
    inspect_replies,
    play_tasks,
    predict_replies,
    read_reply,
    rule_prompt,
    rule_questions,
    spoken,
)
from lfo.learner import POLICY, WORLD_MODEL, micro_batches
from lfo.records import Task, Trajectory, Turn
from lfo.rollout import Engine
from lfo.simulator import CsrSimulator
from lfo.tokens import CallExample, Codec, collate_calls
from lfo.tools import format_call, search_company
from lfo.train import load_for_playing, published_adapters, up_to_date, write_measured
from lfo.world import DEPARTMENT_OF_GOAL, World, canonical, generate_world, industry_fields

SPLITS = ("validation", "test")  # known and new companies
TRAINED, BASE = "world model", "untrained base"


@dataclasses.dataclass
class Subject:
    """The world model of a run, loaded. adapter: its name in the engine, where `base` is the untrained base.

    tasks: how many tasks of each split are played, with the policy or a scripted caller.
    """

    config: RunConfig
    world: World
    engine: Engine
    codec: Codec
    adapter: str
    models: dict[str, PreTrainedModel]  # TRAINED and BASE, fp32, for teacher forcing
    tasks: int

    @functools.cached_property
    def episodes(self) -> list[tuple[Task, Trajectory]]:
        """One greedy episode of each task, by the run's own policy, at the levels that it was trained on."""
        tasks = [t for split in SPLITS for t in self.world.split(split, self.config.levels)[: self.tasks]]
        played = play_tasks(self.engine, self.codec, self.world, tasks, self.config, seed=0, episodes=1)
        return list(zip(tasks, played, strict=True))


def load_subject(folder: str | Path, tasks: int) -> Subject:
    """
    Raises:
        FileNotFoundError: the run has published no adapters.
        ValueError: the run trained no world model.
    """
    adapters = published_adapters(folder)
    config = build(RunConfig, json.loads((Path(folder) / "config.json").read_text()))
    if config.world_model.predict == "nothing":
        raise ValueError(f"{folder} trained no world model; probe a run whose world_model.predict is not 'nothing'.")
    engine, codec = load_for_playing(folder)
    adapter = WORLD_MODEL if WORLD_MODEL in adapters else POLICY  # `shared` has one adapter for both
    trained = PeftModel.from_pretrained(load_base(config.model.base), str(adapters[adapter])).merge_and_unload()
    models = {TRAINED: trained.eval(), BASE: load_base(config.model.base).eval()}
    return Subject(config, generate_world(config.world_seed), engine, codec, adapter, models, tasks)


def probe(folder: str | Path, tasks: int = 50, samples: int = 8) -> dict[str, pd.DataFrame]:
    """The tables `episodes`, `replies`, `rules` and `situations` of a run; each is measured once and then read, until
    the run is trained again.

    tasks: tasks per split and caller. samples: sampled answers per question about a rule.
    Raises what `load_subject` and `situation_rows` raise.
    """
    measures = {
        "episodes": episode_rows,
        "replies": reply_rows,
        "rules": functools.partial(rule_rows, samples=samples),
        "situations": situation_rows,
    }
    tables, subject = {}, None
    for name, measure in measures.items():
        file = f"probing_{name}.csv"
        if up_to_date(folder, file):
            tables[name] = pd.read_csv(Path(folder) / file, keep_default_na=False)
        else:
            subject = subject or load_subject(folder, tasks)
            tables[name] = write_measured(measure(subject), folder, file)
    return tables


def episode_rows(subject: Subject) -> list[dict]:
    """One row per episode of the run's own policy. department: that of the task's goal, "" where it has several."""
    return [
        {"split": task.split, "task_id": task.task_id, "level": task.level, "company_id": task.company_id,
         "department": DEPARTMENT_OF_GOAL[task.goals[0]] if len(task.goals) == 1 else "", "success": int(row.success)}
        for task, row in subject.episodes
    ]  # fmt: skip


# --- replies ---------------------------------------------------------------------------------


class Wanderer(TypicalPrior):
    """Fills in the form for its goal, then calls every listed department in random order, whatever it hears.

    So every kind of answer comes up, also where a policy that has learned something never calls.
    """

    def call_order(self):
        return self.rng.sample(sorted(self.directory), len(self.directory))

    def hear(self, status, message):
        self.to_call = self.to_call[1:]
        return bool(self.to_call)


OWN = "own policy"
CALLERS = {"random form": RandomForm, "wanderer": Wanderer}


@dataclasses.dataclass(frozen=True)
class PlayedCall:
    """A phone call of some episode. said_anew: the same answer in words drawn again."""

    caller: str  # OWN or a key of CALLERS
    split: str
    example: CallExample
    said_anew: str


def played_calls(subject: Subject) -> list[PlayedCall]:
    """The calls of one episode of each task by every caller; scripted ones play tasks of all levels."""
    world, calls = subject.world, []
    for task, row in subject.episodes:
        calls += _calls_of(subject, OWN, task, subject.config.env, row.turns)
    for caller, split in itertools.product(CALLERS, SPLITS):
        for task in world.split(split)[: subject.tasks]:
            seed = derive_seed("evaluation", task.task_id, 0)
            episode = Episode(world, task, EnvConfig(), seed)
            run_scripted(episode, CALLERS[caller](episode, world, random.Random(seed)))
            calls += _calls_of(subject, caller, task, EnvConfig(), episode.turns)
    return calls


def _calls_of(subject: Subject, caller: str, task: Task, env: EnvConfig, turns: Sequence[Turn]) -> list[PlayedCall]:
    """The phone calls among `turns`; the actions are taken once more to hear the answers in other words."""
    world, goals = subject.world, {goal: DEPARTMENT_OF_GOAL[goal] for goal in task.goals}
    csr = CsrSimulator(world.companies[task.company_id], world.rules, goals, f"{task.task_id}/anew")
    episode = Episode(world, task, env, derive_seed("evaluation", task.task_id, 0), csr=csr)
    anew = [episode.step(turn.action).observation for turn in turns]
    examples = subject.codec.call_examples(task.task_id, task.request, turns, "phone")
    other_words = [text for text, turn in zip(anew, turns, strict=True) if turn.tool == "make_phone_call"]
    return [PlayedCall(caller, task.split, *pair) for pair in zip(examples, other_words, strict=True)]


def reply_rows(subject: Subject) -> list[dict]:
    """One row per model and call: see `evaluate.inspect_replies` and `teacher_forced`."""
    calls, rows = played_calls(subject), []
    examples = [call.example for call in calls]
    for name, adapter in ((TRAINED, subject.adapter), (BASE, "base")):
        scores = teacher_forced(subject.models[name], subject.codec.pad_id, examples)
        predictions = inspect_replies(subject.engine, subject.codec, examples, adapter)
        for call, score, prediction in zip(calls, scores, predictions, strict=True):
            del prediction["fields_right"]
            prediction |= {"right": int(prediction["right"]), "said_anew": spoken(call.said_anew)}
            rows.append({"model": name, "caller": call.caller, "split": call.split} | prediction | score)
    return rows


@torch.inference_mode()
def teacher_forced(model: PreTrainedModel, pad_id: int, calls: Sequence[CallExample]) -> list[dict]:
    """Per call: `tokens` of the reply, closing tag included, `tokens_right` by arg-max, and their `nats`, summed.

    Every token is predicted from the true ones before it. nats: cross-entropy, so exp(nats / tokens) is the perplexity.
    """
    scores: dict[int, dict] = {}
    for index in micro_batches([len(c.prompt) + len(c.reply) for c in calls], DistributedConfig().micro_batch_tokens):
        batch = collate_calls([calls[i] for i in index], pad_id).to(model.device)
        picked = batch.loss_mask[:, 1:].bool()
        hidden = model.model(batch.tokens, attention_mask=batch.attention).last_hidden_state[:, :-1]
        logits, targets = model.lm_head(hidden[picked]).float(), batch.tokens[:, 1:][picked]
        nats = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        lengths = [len(calls[i].reply) for i in index]
        hits = (logits.argmax(-1) == targets).split(lengths)
        for i, hit, cost in zip(index, hits, nats.split(lengths), strict=True):
            scores[i] = {"tokens": len(hit), "tokens_right": int(hit.sum()), "nats": round(cost.sum().item(), 4)}
    return [scores[i] for i in range(len(calls))]


# --- rules and confidence --------------------------------------------------------------------


def rule_rows(subject: Subject, samples: int) -> list[dict]:
    """One row per question about a department's required fields.

    greedy: the field set that the greedy reply names. answer: the one that most of `samples` replies name, sampled at
    temperature 1 (the earliest of several); confidence: the share that names it.
    other: a department of the company that demands something else, "" where there is none. If the same call is made
    for the other's goal, other_called: the greedy reply still names what the called department demands;
    other_wanted: it names what the other one does.
    """
    rows = []
    for split in SPLITS:
        companies = sorted({t.company_id for t in subject.world.split(split)})
        questions = rule_questions(subject.codec, subject.world, companies)
        prompts = [q.prompt for q in questions]
        greedy = _fields_named(subject, prompts)
        drawn = _fields_named(subject, [p for p in prompts for _ in range(samples)], 1.0)
        others = [_another(q, questions) for q in questions]
        swapped = _fields_named(
            subject,
            [rule_prompt(subject.codec, subject.world, q.company_id, q.department, o.department)
             for q, o in zip(questions, others, strict=True)],
        )  # fmt: skip
        for i, (q, other) in enumerate(zip(questions, others, strict=True)):
            answer, count = Counter(drawn[i * samples : (i + 1) * samples]).most_common(1)[0]
            rows.append(
                {"split": split, "company_id": q.company_id, "department": q.department, "variation": q.variation,
                 "truth": " ".join(canonical(q.truth)), "greedy": " ".join(canonical(greedy[i])),
                 "answer": " ".join(canonical(answer)), "confidence": count / samples,
                 "other": other.department if other != q else "",
                 "other_called": int(swapped[i] == q.truth), "other_wanted": int(swapped[i] == other.truth)}
            )  # fmt: skip
    return rows


def _fields_named(subject: Subject, prompts: Sequence[Sequence[int]], temperature: float = 0.0) -> list[frozenset[str]]:
    """The fields that the world model's answers name; samples are the same for every run with the same weights."""
    texts = predict_replies(subject.engine, subject.codec, prompts, subject.adapter, temperature, derive_seed("rules"))
    return [read_reply(text)[1] for text in texts]


def _another(question: RuleQuestion, questions: Sequence[RuleQuestion]) -> RuleQuestion:
    """The first question about the same company with another truth; the question itself where there is none."""
    return next((q for q in questions if q.company_id == question.company_id and q.truth != question.truth), question)


# --- hand-written situations -----------------------------------------------------------------

FORM = "form"
SITUATIONS_SEED = 0  # the world that the situations are about


@dataclasses.dataclass(frozen=True)
class Situation:
    """A call in world 0 and the gist of its answer, worked out by hand from data/world/rules.jsonl.

    Steps are (department or number, fields handed over) or (FORM, fields asked for). ``wrong:x`` hands over a
    value that is not the user's; ``no:x`` is a field that the form reports as unavailable.
    """

    name: str
    company: str
    goal: str
    call: tuple[str, str]
    expected: str  # as `gist` writes it
    before: tuple[tuple[str, str], ...] = ()


SITUATIONS = (
    Situation("banking, typical rules", "Mosaic Bank", "trace a transfer", ("Wire Transfers", ""),
              "auth_failed: account_number, last_4_cc, email"),
    Situation("insurance, typical rules", "Vertex Insurance", "file a claim", ("Claims", ""),
              "auth_failed: account_number, date_of_birth, billing_zip, phone_number"),
    Situation("telecom, typical rules", "Vanguard Wireless", "activate roaming", ("Roaming", ""),
              "auth_failed: last_4_cc, phone_number"),
    Situation("retail, typical rules", "Mariner Stores", "return an item", ("Returns", ""),
              "auth_failed: last_4_ssn, order_number"),
    Situation("nothing is required", "Kinetic Bank", "ask for a quote", ("Sales", ""), "success"),
    Situation("one of two fields is given", "Vertex Insurance", "dispute a charge", ("Billing", "account_number"),
              "auth_failed: billing_zip", before=((FORM, "account_number"),)),
    Situation("every field is given", "Kinetic Bank", "repay a loan early", ("Loans", "name date_of_birth branch_code"),
              "success", before=((FORM, "name date_of_birth branch_code"),)),
    Situation("one value is made up", "Vertex Insurance", "dispute a charge",
              ("Billing", "wrong:account_number billing_zip"), "auth_failed: account_number",
              before=((FORM, "account_number billing_zip"),)),
    Situation("a field is unavailable", "Mosaic Bank", "cancel a transfer", ("Wire Transfers", "account_number email"),
              "auth_failed: date_of_birth, last_4_cc", before=((FORM, "account_number no:last_4_cc email"),)),
    Situation("another department first", "Mosaic Bank", "report a fraud", ("Fraud Department", ""),
              "routing_violation: Customer Service"),
    Situation("the other department has served", "Mosaic Bank", "report a fraud",
              ("Fraud Department", "account_number last_4_ssn"), "auth_failed: last_4_cc",
              before=((FORM, "account_number last_4_ssn"), ("Customer Service", "account_number last_4_ssn"))),
    Situation("wrong department", "Highland Stores", "dispute a charge",
              ("Customer Service", "account_number last_4_ssn"), "wrong_department: Billing",
              before=((FORM, "account_number last_4_ssn"),)),
    Situation("a number that nobody has", "Brookside Bank", "repay a loan early", ("800-555-9999", ""),
              "wrong_department"),
    Situation("known company, rules of its own", "Zephyr Stores", "close my account", ("Customer Service", ""),
              "auth_failed: name, account_number"),
    Situation("known company, one field more", "Sandstone Market", "chase a refund", ("Returns", ""),
              "auth_failed: name, last_4_ssn, order_number"),
    Situation("new company, typical rules", "Birchwood Mobile", "report a dead line", ("Network Outages", ""),
              "auth_failed: name, phone_number, sim_number"),
    Situation("new company, one field more", "Opal Savings", "defer a loan payment", ("Loans", ""),
              "auth_failed: name, date_of_birth, branch_code, card_expiry"),
)  # fmt: skip


def gist(reply: str) -> str:
    """What a reply means, as text: its status and whatever fields and departments it names."""
    status, fields, departments = read_reply(reply)
    named = [*canonical(fields), *sorted(departments)]
    return f"{status}: {', '.join(named)}" if named else status


def stage(world: World, situation: Situation) -> tuple[str, list[Turn], str, str]:
    """A situation in its world: the request, the turns before the call, the call, and what the CSR says to it."""
    company = next(c for c in world.companies.values() if c.name == situation.company)
    fields = industry_fields(company.industry)
    truth = next(p.values for p in world.profiles.values() if set(p.values) == set(fields))
    phone = {d.name: d.phone for d in company.departments}
    csr = CsrSimulator(company, world.rules, {situation.goal: DEPARTMENT_OF_GOAL[situation.goal]}, "situations")
    unavailable: set[str] = set()

    def take(who: str, what: str) -> Turn:
        marks = dict(word.split(":")[::-1] if ":" in word else (word, "") for word in what.split())
        if who == FORM:
            unavailable.update(f for f, mark in marks.items() if mark == "no")
            answer = {f: truth[f] for f, mark in marks.items() if not mark} | {"unavailable": sorted(unavailable)}
            return Turn(format_call("auth_info_form", {"fields": list(marks)}), json.dumps(answer),
                        "auth_info_form", "ok")  # fmt: skip
        number, given = phone.get(who, who), {f: "0" if mark == "wrong" else truth[f] for f, mark in marks.items()}
        reply = csr.call(number, given, truth, unavailable)
        text = json.dumps({"status": reply.status, "message": reply.message})
        action = format_call("make_phone_call", {"phone_number": number, "auth_info": given})
        return Turn(action, text, "make_phone_call", reply.status)

    directory = json.dumps(search_company(world.companies, company.name))
    search = Turn(format_call("search_company", {"company_name": company.name}), directory, "search_company", "ok")
    turns = [search, *(take(*step) for step in situation.before)]
    call = take(*situation.call)
    return f"Please call {company.name} for me: {situation.goal}.", turns, call.action, call.observation


def situation_rows(subject: Subject) -> list[dict]:
    """One row per situation, greedy.

    Raises:
        ValueError: the run was trained in another world than the one they were written for.
    """
    if subject.config.world_seed != SITUATIONS_SEED:
        raise ValueError(
            f"the hand-written situations are about world {SITUATIONS_SEED}, this run was trained in world"
            f" {subject.config.world_seed}; its other tables are written."
        )
    staged = [stage(subject.world, s) for s in SITUATIONS]
    prompts = [subject.codec.world_prompt(request, turns, action) for request, turns, action, _ in staged]
    predictions = predict_replies(subject.engine, subject.codec, prompts, subject.adapter)
    return [
        {"situation": s.name, "company": s.company, "department": s.call[0], "gave": s.call[1], "expected": s.expected,
         "predicted": gist(predicted), "right": int(gist(predicted) == s.expected), "said": spoken(said),
         "words": spoken(predicted)}
        for s, (*_, said), predicted in zip(SITUATIONS, staged, predictions, strict=True)
    ]  # fmt: skip
