"""evaluate: every measure against numbers worked out by hand, on stub engines and written-out rollouts."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from fractions import Fraction

import pytest

from lfo.config import RolloutConfig, RunConfig, WorldModelConfig
from lfo.evaluate import (
    TruthfulEngine,
    behaviour,
    conditional_information,
    copying,
    form_information,
    inspect_replies,
    meaning,
    parsing,
    play_groups,
    play_tasks,
    predict_replies,
    read_reply,
    reply_rows,
    rule_accuracy,
    rule_prompt,
    rule_questions,
    success_rows,
)
from lfo.records import Turn
from lfo.rollout import Completion, Prompt
from lfo.sampling import empty_handed_call
from lfo.simulator import PHRASINGS, SITUATION_STATUS, UNKNOWN_NUMBER, oxford
from lfo.statistics import wilson
from lfo.tokens import CallExample
from lfo.tools import format_call
from lfo.world import DEPARTMENTS, FIELDS, INDUSTRIES


class Stub:
    """An engine that says `answer(prompt text)` to everything and remembers what it was asked."""

    def __init__(self, codec, answer=lambda text: ""):
        self.codec, self.answer, self.prompts, self.batches, self.seeds = codec, answer, [], [], []

    def load(self, adapters):
        self.loaded = adapters

    def generate(self, prompts, seed):
        self.prompts += [dataclasses.replace(p, tokens=list(p.tokens)) for p in prompts]
        self.batches.append(len(prompts))
        self.seeds.append(seed)
        out = []
        for prompt in prompts:
            ids = [*self.codec.encode(self.answer(self.codec.decode(prompt.tokens))), prompt.stop]
            out.append(Completion(ids, [-1.0] * len(ids)))
        return out

    def end_sessions(self):
        self.ended = True


# --- success ---------------------------------------------------------------------------------


def test_success_by_level(make_trajectory, tiny):
    tasks = [dataclasses.replace(t, level=level) for t, level in zip(tiny.tasks, (1, 1, 4), strict=False)]
    outcomes = [("bill", True), ("bill", False), ("fraud", True), ("nocard", False)]
    rows = success_rows([make_trajectory([1], success=s, task_id=i) for i, s in outcomes], tasks)
    assert [(r["level"], r["success"], r["n"]) for r in rows] == [(0, 0.5, 4), (1, 2 / 3, 3), (4, 0.0, 1)]
    assert all((r["low"], r["high"]) == wilson(round(r["success"] * r["n"]), r["n"]) for r in rows)
    assert success_rows([], tasks) == []


def test_behaviour_by_hand(make_trajectory):
    def turn(tool, status):
        return Turn("", "", tool, status)

    first = [turn("search_company", "ok"), turn("make_phone_call", "auth_failed"), turn("make_phone_call", "success")]
    second = [turn("", "error"), turn("", "stopped")]
    rows = [make_trajectory([1, 2, 3], turns=first), make_trajectory([1], turns=second)]
    rows[0].auth_before_call, rows[0].shaped_reward = True, 0.7
    assert behaviour(rows) == {
        "calls_per_task": 1.0,
        "auth_before_call": 0.5,
        "shaped_reward": 0.35,
        "malformed": 0.2,
        "tokens_per_task": 2.0,
    }
    assert set(behaviour([]).values()) == {0.0}


SEARCH = format_call("search_company", {"company_name": "Harbor Bank"})


@pytest.mark.parametrize(("coupling", "aided"), [("none", True), ("imagine", True), ("imagine", False)])
def test_evaluation_is_greedy_and_imagines_where_training_does(codec, tiny, coupling, aided):
    """Unless it is asked for what the policy can do unaided."""
    config = RunConfig(world_model=WorldModelConfig(coupling=coupling))
    engine = Stub(codec, lambda text: "" if "<|obs|>" in text else SEARCH)
    rows = play_tasks(engine, codec, tiny, tiny.tasks[:3], config, seed=0, episodes=2, aided=aided)
    assert [r.task_id for r in rows] == ["bill", "bill", "fraud", "fraud", "nocard", "nocard"]
    assert len({r.group for r in rows}) == 6  # each episode imagines for itself
    assert {p.temperature for p in engine.prompts} == {0.0}
    asked = [codec.decode(p.tokens) for p in engine.prompts]
    assert sum(text.endswith('"phone_number": "') for text in asked) == (6 if coupling == "imagine" and aided else 0)


def test_groups_are_sampled_as_in_training(codec, tiny):
    """A group of one task shares its people, and its two imaginations are one."""
    config = RunConfig(rollout=RolloutConfig(group_size=3, temperature=0.7))
    engine = Stub(codec, lambda text: "" if "<|obs|>" in text else SEARCH)
    rows = play_groups(engine, codec, tiny, tiny.tasks[:2], config, seed=0)
    assert [(r.task_id, r.group) for r in rows] == [("bill", 0)] * 3 + [("fraud", 1)] * 3
    assert {p.temperature for p in engine.prompts if p.adapter == "policy" and p.session is not None} == {0.7}
    asked = [codec.decode(p.tokens) for p in engine.prompts]
    assert sum(text.endswith('"phone_number": "') for text in asked) == 2


def test_every_policy_meets_the_same_people(codec, tiny):
    """A task's CSR says the same words whatever else is evaluated; its second episode is another one."""

    def heard(tasks, seed, held_out=False):
        engine = Stub(
            codec, lambda text: [SEARCH, empty_handed_call("800-555-0003"), ""][min(2, text.count("<|obs|>"))]
        )
        config = RunConfig(world_model=WorldModelConfig(coupling="none"))
        rows = play_tasks(engine, codec, tiny, tasks, config, seed, 2, held_out)
        return [(r.task_id, r.turns[1].observation) for r in rows]

    everything = heard(tiny.tasks, seed=0)
    assert heard(tiny.tasks[2:4], seed=9) == everything[4:8]
    assert everything[::2] != everything[1::2]
    assert not set(heard(tiny.tasks, 0, held_out=True)) & set(everything)


# --- the world model -------------------------------------------------------------------------


@pytest.mark.parametrize("situation", PHRASINGS)
def test_every_phrasing_is_read_back(situation):
    """Status, named fields and named departments, for all styles, the held-out ones included."""
    fields = ("account_number", "last_4_ssn", "phone_number")
    for department in DEPARTMENTS:
        other = "Technical Support (Priority)" if department == "Sales" else "Technical Support"
        for text in (text for variants in PHRASINGS[situation].values() for text in variants):
            slots = {"dept": department, "fields": oxford([FIELDS[f] for f in fields]), "other": other}
            if situation == "alternative":
                slots |= {"fields": FIELDS["last_4_cc"], "other": FIELDS["email"]}
            status = SITUATION_STATUS[situation]
            reply = json.dumps({"status": status, "message": text.format(**slots)})
            named = {"missing": fields, "mismatch": fields, "alternative": ("last_4_cc", "email")}.get(situation, ())
            departments = {other} if situation in ("routing", "wrong_department") else set()
            assert read_reply(reply) == (status, frozenset(named), frozenset(departments))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"status": "success"}', '{"message": "Billing."}', "null"])
def test_what_is_no_reply_is_unreadable(text):
    assert read_reply(text) == ("unreadable", frozenset(), frozenset())


def test_answers_of_other_tools_mean_what_they_list():
    """Which fields, not their values: an answer that nobody could foresee word by word can still be right."""
    form = json.dumps({"account_number": "123456", "unavailable": ["email"]})
    assert meaning(form) == meaning(json.dumps({"account_number": "9", "unavailable": []}))
    assert meaning(form) != meaning(json.dumps({"email": "9", "unavailable": ["account_number"]}))
    assert meaning(form) != meaning(json.dumps({"declined": "That is too much."}))
    listed = [json.dumps({"departments": [{"name": n, "phone": "1"}]}) for n in ("Sales", "Billing")]
    assert meaning(listed[0]) != meaning(listed[1]) == meaning(listed[1].replace("1", "2"))
    for text in ("", "{", "[]", '{"status": "success"}', '{"status": "success", "message": "Sales. Done."}'):
        assert meaning(text) == read_reply(text)


def test_a_number_out_of_service_names_nobody():
    reply = json.dumps({"status": "wrong_department", "message": UNKNOWN_NUMBER})
    assert read_reply(reply) == ("wrong_department", frozenset(), frozenset())


def example(codec, status: str, message: str) -> CallExample:
    text = json.dumps({"status": status, "message": message})
    return CallExample(tuple(codec.encode(message)), tuple(codec.world_reply(text)), status, text, "t")


def test_reply_accuracy_by_category(codec):
    """Wording does not count, meaning does: three of these five predictions mean what was said."""
    said_and_predicted = [
        ("auth_failed", "Billing. I need your email address.", "auth_failed", "Billing, hi! Your email address?"),
        ("auth_failed", "Billing. I need your email address.", "auth_failed", "Billing. I need your full name."),
        ("success", "Sales. Done.", "success", "Sales. Done."),
        ("success", "Sales. Done.", "auth_failed", "Sales. Done."),
        ("routing_violation", "Loans. Call Billing first.", "routing_violation", "Loans, hi! Try Billing first."),
    ]  # fmt: skip
    calls = [example(codec, status, message) for status, message, _, _ in said_and_predicted]
    calls = [dataclasses.replace(c, prompt=tuple(codec.encode(str(i)))) for i, c in enumerate(calls)]
    answers = [json.dumps({"status": s, "message": m}) for _, _, s, m in said_and_predicted]
    engine = Stub(codec, lambda text: answers[int(text)])
    assert reply_rows(engine, codec, calls, "world_model") == [
        {"category": "auth_failed", "accuracy": 0.5, "n": 2},
        {"category": "routing_violation", "accuracy": 1.0, "n": 1},
        {"category": "success", "accuracy": 0.5, "n": 2},
    ]
    assert {(p.adapter, p.temperature, p.stop) for p in engine.prompts} == {("world_model", 0.0, codec.csr_end_id)}


def test_a_wrong_answer_of_the_form_is_no_hit(codec):
    """Neither can be read as a phone reply, which must not make them alike."""
    answers = [json.dumps({field: "1", "unavailable": []}) for field in ("email", "name")]
    ids = tuple(codec.encode("form"))
    calls = [CallExample(ids, tuple(codec.world_reply(a)), "ok", a, "t") for a in answers]
    engine = Stub(codec, lambda text: answers[0])
    assert reply_rows(engine, codec, calls, "world_model") == [{"category": "ok", "accuracy": 0.5, "n": 2}]


def test_predictions_stand_beside_reality(codec):
    call = format_call("make_phone_call", {"phone_number": "800-555-0003", "auth_info": {"name": "A", "email": "b"}})
    prompt = tuple(codec.world_prompt("Please.", [], call))
    calls = [
        dataclasses.replace(example(codec, "routing_violation", m), prompt=prompt, task_id=i)
        for i, m in (("a", "Loans. Call Billing first."), ("b", "Loans. Call Claims first."))
    ]
    predicted = json.dumps({"status": "routing_violation", "message": "Loans, hi! Try Billing first."})
    rows = inspect_replies(Stub(codec, lambda text: predicted), codec, calls, "world_model")
    assert rows[0] == {
        "task_id": "a", "category": "routing_violation", "gave": "name, email",
        "said": "routing_violation: Loans. Call Billing first.",
        "predicted": "routing_violation: Loans, hi! Try Billing first.", "fields_right": True, "right": True,
    }  # fmt: skip
    assert (rows[1]["fields_right"], rows[1]["right"]) == (True, False)  # no field is named, but another department
    rows = inspect_replies(Stub(codec, lambda text: "gibberish {"), codec, calls, "world_model")
    assert (rows[0]["predicted"], rows[0]["right"]) == ("gibberish {", False)


def test_predictions_come_in_order_however_many(codec):
    engine = Stub(codec, lambda text: f"<{text}>")
    prompts = [codec.encode(str(i)) for i in range(70)]
    assert predict_replies(engine, codec, prompts, "wm") == [f"<{i}>" for i in range(70)]
    assert engine.batches == [64, 6]
    assert predict_replies(engine, codec, [], "wm") == []


def test_samples_of_two_batches_are_drawn_apart(codec):
    engine = Stub(codec)
    predict_replies(engine, codec, [[5]] * 65, "wm", temperature=0.7, seed=3)
    assert {p.temperature for p in engine.prompts} == {0.7} and len(set(engine.seeds)) == 2
    again = Stub(codec)
    predict_replies(again, codec, [[5]] * 65, "wm", temperature=0.7, seed=3)
    assert again.seeds == engine.seeds
    predict_replies(again, codec, [[5]], "wm", temperature=0.7, seed=4)
    assert again.seeds[2] not in engine.seeds


def test_a_call_may_be_made_for_another_goal(codec, tiny):
    """The number is that of the department called, the wish that of the other one."""
    text = codec.decode(rule_prompt(codec, tiny, "bank", "Billing", "Loans"))
    assert "Please call Harbor Bank for me: defer a loan payment." in text
    assert text.partition("<|action|>")[2].partition("<|/action|>")[0] == empty_handed_call("800-555-0003")
    [question] = [q for q in rule_questions(codec, tiny, ["bank"]) if q.department == "Billing"]
    assert question.prompt == rule_prompt(codec, tiny, "bank", "Billing", "Billing")
    assert (question.truth, question.variation) == ({"account_number", "billing_zip"}, "typical")


def askable(world) -> list[tuple[str, str]]:
    return [key for key, rule in world.rules.items() if rule.required and not rule.after]


def test_a_perfect_world_model_names_every_rule(codec, world):
    engine = TruthfulEngine(Stub(codec), codec, world)
    assert rule_accuracy(engine, codec, world, list(world.companies), "world_model") == {
        "rule_accuracy": 1.0,
        "rule_accuracy_typical": 1.0,
        "n": len(askable(world)),
    }
    assert rule_accuracy(engine, codec, world, [], "world_model")["n"] == 0


def test_one_field_too_many_or_too_few_is_wrong(codec, world):
    """A world model that believes other rules for every third department is right about the other two thirds."""
    keys = askable(world)
    believed = dict(world.rules)
    for i, key in enumerate(keys[::3]):
        required = believed[key].required
        spare = next(f for f in FIELDS if f not in required)
        others = required[1:] if i % 2 and len(required) > 1 else (*required, spare)
        believed[key] = dataclasses.replace(believed[key], required=others)
    engine = TruthfulEngine(Stub(codec), codec, dataclasses.replace(world, rules=believed))
    found = rule_accuracy(engine, codec, world, list(world.companies), "world_model")
    typical = [world.rules[key].variation == "typical" for key in keys]
    changed = [i % 3 == 0 for i in range(len(keys))]
    right = [t for t, c in zip(typical, changed, strict=True) if not c]
    assert found["rule_accuracy"] == pytest.approx(len(right) / len(keys))
    assert found["rule_accuracy_typical"] == pytest.approx(sum(right) / sum(typical))
    assert found["rule_accuracy"] != found["rule_accuracy_typical"]


def test_rules_are_asked_with_empty_hands_and_without_telling(codec, tiny):
    engine = Stub(codec)
    rule_accuracy(engine, codec, tiny, ["bank", "shop"], "world_model")
    texts = [codec.decode(p.tokens) for p in engine.prompts]
    called = ["800-555-0001", "800-555-0003", "800-555-0004"]  # Fraud comes after another call, Sales demands nothing
    assert [t.partition("<|action|>")[2].partition("<|/action|>")[0] for t in texts] == [
        empty_handed_call(n) for n in called
    ]
    assert not any(spoken in t for t in texts for spoken in FIELDS.values())


# --- what a base brings along ----------------------------------------------------------------


def form(*fields: str, answer: dict | None = None) -> Turn:
    observation = json.dumps((answer or {}) | {"unavailable": []})
    return Turn(format_call("auth_info_form", {"fields": list(fields)}), observation, "auth_info_form", "ok")


def call(number: str, status: str = "auth_failed", **auth_info: str) -> Turn:
    action = format_call("make_phone_call", {"phone_number": number, "auth_info": auth_info})
    return Turn(action, "{}", "make_phone_call", status)


def directory(*numbers: str) -> Turn:
    found = {"departments": [{"name": "Billing", "phone": n} for n in numbers]}
    return Turn(format_call("search_company", {"company_name": "x"}), json.dumps(found), "search_company", "ok")


def test_copies_by_hand(make_trajectory):
    values = {"email": "ana77@example.com", "last_4_ssn": "1111", "last_4_cc": "3333"}
    turns = [
        call("800-555-0003", email="ana77@example.com"),  # nothing was heard yet: 0 of 2
        directory("800-555-0003", "800-555-0004"),
        form("email", "last_4_ssn", "last_4_cc", answer=values),
        call("800-555-0003", email="ana77@example.com", last_4_ssn="1111"),  # 3 of 3
        call("800-555-0000", email="ana7@example.com", last_4_ssn="3333"),  # 0 of 3: the 3333 is the card's
        call("800-555-000", last_4_cc="333"),  # 0 of 2: parts are no copies
        call("800-555-0004"),  # 1 of 1
        Turn("make_phone_call<|args|>{", "", "", "error"),
    ]
    other = [call("800-555-0003")]  # another row's directory does not count: 0 of 1
    rows = [make_trajectory([1], turns=turns), make_trajectory([1], turns=other)]
    assert copying(rows) == (4, 12)
    assert copying([]) == (0, 0)


def test_parsed_calls_by_hand(make_trajectory):
    turns = [directory("1"), Turn("x", "{}", "", "error"), call("1"), Turn("", "", "", "stopped")]
    assert parsing([make_trajectory([1], turns=turns), make_trajectory([1], turns=turns[:1])]) == (3, 4)


def test_conditional_information_by_hand():
    copy = [(x, x, "z") for x in "aabb"]
    assert conditional_information(copy) == pytest.approx(1.0)  # one fair bit, known
    assert conditional_information([(x, y, "z") for x in "ab" for y in "cd"]) == pytest.approx(0.0)
    assert conditional_information([(x, x, x) for x in "aabb"]) == pytest.approx(0.0)  # z has told already
    # X is Y in the quarter z=1 (one bit), and independent of it in the rest
    mixed = [(x, x, 1) for x in "aabb"] + [(x, y, 2) for x in "ab" for y in "ab" for _ in range(3)]
    assert conditional_information(mixed) == pytest.approx(0.25)
    # p(x=a, y=a) = 1/2, p(a, b) = p(b, b) = 1/4
    expected = 0.5 * math.log2(Fraction(1, 2) / (Fraction(3, 4) * Fraction(1, 2)))
    expected += 0.25 * math.log2(Fraction(1, 4) / (Fraction(3, 4) * Fraction(1, 2)))
    expected += 0.25 * math.log2(Fraction(1, 4) / (Fraction(1, 4) * Fraction(1, 2)))
    assert conditional_information([("a", "a", 0)] * 2 + [("a", "b", 0), ("b", "b", 0)]) == pytest.approx(expected)


def test_form_information_tells_a_rule_from_an_accident(make_trajectory, world):
    """First field: dealt at random. Number of fields: one per goal department, however the field names fall."""
    rng = random.Random(0)
    tasks = world.split("train", (1, 2))[:80]
    names = list(DEPARTMENTS)
    rows = []
    for task in tasks:
        department = next(d for d in names if task.goals[0] in DEPARTMENTS[d].goals)
        for _ in range(3):
            fields = rng.sample(list(FIELDS), 1 + names.index(department) % 4)
            rows.append(make_trajectory([1], task_id=task.task_id, turns=[directory("1"), form(*fields), form("name")]))
    rows.append(make_trajectory([1], task_id=tasks[0].task_id, turns=[call("1")]))  # no form, nothing to tell
    found = form_information(rows, world, permutations=200)
    assert found["size"]["p"] == pytest.approx(1 / 201) and found["size"]["bits"] > found["size"]["by_chance"] + 0.3
    assert found["first"]["p"] > 0.01
    assert found["first"]["bits"] == pytest.approx(found["first"]["by_chance"], abs=0.3)


def test_what_the_industry_tells_is_not_held_against_the_department(make_trajectory, world):
    """A form that names the industry and no more: departments differ by industry, the given industry explains it."""
    tasks = world.split("train", (1, 2))[:60]
    rows = []
    for task in tasks:
        industry = INDUSTRIES.index(world.companies[task.company_id].industry)
        rows.append(
            make_trajectory([1], task_id=task.task_id, turns=[form(*list(FIELDS)[industry : 2 * industry + 1])])
        )
    found = form_information(rows, world, permutations=50)
    assert all(entry["bits"] == pytest.approx(0.0, abs=1e-9) and entry["p"] == 1.0 for entry in found.values())


def test_the_truthful_engine_tells_the_truth_and_nothing_else(codec, tiny):
    inner = Stub(codec, lambda text: "policy")
    engine = TruthfulEngine(inner, codec, tiny)
    engine.load({"policy": "folder"})
    engine.end_sessions()
    assert inner.loaded == {"policy": "folder"} and inner.ended
    prompts = [
        Prompt(codec.world_prompt("Please.", [], empty_handed_call(number)), "world_model", 64, codec.csr_end_id, 0.0)
        for number in ("800-555-0002", "800-555-0005")
    ]
    prompts.insert(1, Prompt([5], "policy", 9, codec.end_id, 1.0))
    fraud, other, sales = engine.generate(prompts, 0)
    required = frozenset({"account_number", "last_4_ssn", "last_4_cc"})
    assert read_reply(codec.reply_text(fraud.tokens)) == ("auth_failed", required, frozenset())
    assert read_reply(codec.reply_text(sales.tokens)) == ("success", frozenset(), frozenset())
    assert codec.action_text(other.tokens) == "policy" and [p.adapter for p in inner.prompts] == ["policy"]
    assert fraud.tokens[-1] == codec.csr_end_id and len(fraud.tokens) == len(fraud.logprobs)
