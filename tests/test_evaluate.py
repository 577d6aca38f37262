"""evaluate: every measure against numbers worked out by hand, on scripted engines and written-out rollouts."""

from __future__ import annotations

import dataclasses
import json

import pytest
from scripted import Scripted, by_turn
from toy import Counting

from lfo import distributed
from lfo.config import EnvConfig, FeedbackConfig, PolicyConfig, RolloutConfig, RunConfig, WorldModelConfig
from lfo.couplings import Guided, Imagine, Memory, Plain, Truth, alone
from lfo.couplings.plain import ALONE, BOTH, SHARED
from lfo.envs.base import written
from lfo.envs.phone import PhoneEnvironment
from lfo.envs.phone.tools import form, phone_call, search
from lfo.evaluate import (
    behaviour,
    evaluation_rows,
    examine,
    inspect_replies,
    means,
    play_tasks,
    predict_replies,
    reply_rows,
    success_rows,
)
from lfo.lab.dials import as_example
from lfo.proportions import wilson
from lfo.text.base import load_tokenizer
from lfo.text.codec import Codec
from lfo.types import Example, Hangup, Malformed, Outcome, Task, Turn

SEARCH = written(search("Harbor Bank"))
CALL = phone_call("800-555-0003")
HEARD = Plain(BOTH)  # whose world model is asked
MISSING = {"status": "auth_failed", "message": "Billing. I need your account number and billing ZIP code."}


@pytest.fixture(scope="module")
def codec(base_path, tiny) -> Codec:
    return Codec(load_tokenizer(base_path), PhoneEnvironment(tiny))


def searching(text: str, prompt) -> str:
    return "" if "<|obs|>" in text else SEARCH


# --- success ---------------------------------------------------------------------------------


def test_success_by_level(make_rollout, tiny):
    tasks = [dataclasses.replace(t, level=level) for t, level in zip(tiny.tasks, (1, 1, 4), strict=False)]
    outcomes = [("bill", True), ("bill", False), ("fraud", True), ("nocard", False)]
    rows = success_rows([make_rollout([1], success=s, task_id=i) for i, s in outcomes], tasks)
    assert [(r["level"], r["success"], r["n"]) for r in rows] == [(0, 0.5, 4), (1, 2 / 3, 3), (4, 0.0, 1)]
    assert all((r["low"], r["high"]) == wilson(round(r["success"] * r["n"]), r["n"]) for r in rows)
    assert success_rows([], tasks) == []


def test_success_is_the_binary_outcome_whatever_was_rewarded(make_rollout, tiny):
    (everything, _) = success_rows([make_rollout([1], reward=0.9, task_id="bill")], tiny.tasks)
    assert everything["success"] == 0.0


def test_wilson_by_hand():
    """5 of 10 at 95%: (0.5 + z²/20 ± z sqrt(1/40 + z²/400)) / (1 + z²/10) with z = 1.95996."""
    assert wilson(5, 10) == pytest.approx((0.236593, 0.763407), abs=1e-6)
    assert wilson(0, 0) == (0.0, 1.0)


def test_behaviour_by_hand(make_rollout):
    first = [Turn(CALL, "", "ok"), Turn(CALL, "", "auth_failed"), Turn(CALL, "", "success")]
    second = [Turn(Malformed("x", ""), "", "error"), Turn(Hangup(), "", "stopped")]
    rows = [
        make_rollout([1, 2, 3], turns=first, metrics={"calls_per_task": 2.0, "shaped_reward": 0.7}),
        make_rollout([1], turns=second, metrics={"calls_per_task": 0.0, "shaped_reward": 0.0}),
    ]
    assert behaviour(rows) == {
        "calls_per_task": 1.0,
        "shaped_reward": 0.35,
        "malformed": 0.2,
        "tokens_per_task": 2.0,
    }
    assert behaviour([]) == {"malformed": 0.0, "tokens_per_task": 0.0}


def test_means_are_over_the_rows_that_have_a_number():
    assert means([{"a": 1.0, "b": 4.0}, {"a": 2.0}]) == {"a": 1.5, "b": 4.0}
    assert means([]) == {}


# --- playing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("aided", [True, False])
def test_evaluation_is_greedy_and_imagines_where_training_does(codec, tiny, aided):
    """Unless it is asked for what the policy can do unaided."""
    coupling = Imagine(WorldModelConfig(scouts=2), codec)
    engine = Scripted(codec, searching)
    rollout = RolloutConfig(temperature=0.7)
    rows = play_tasks(engine, codec, coupling if aided else alone(coupling), tiny.tasks[:3], rollout, episodes=2)
    assert [r.task_id for r in rows] == ["bill", "bill", "fraud", "fraud", "nocard", "nocard"]
    assert len({r.group for r in rows}) == 6 and not any(r.scout for r in rows)
    assert {p.temperature for p in engine.prompts} == {0.0}
    asked = [codec.decode(p.tokens) for p in engine.prompts if p.session is None]
    assert len(asked) == (2 if aided else 0)  # two requests: who has read the same is asked once
    assert all(text.endswith('"phone_number": "') for text in asked)


def test_examples_are_made_where_they_are_asked_for(codec, tiny):
    engine = Scripted(codec, by_turn(SEARCH, written(CALL), ""))
    found = [
        [len(r.examples) for r in play_tasks(engine, codec, Plain(BOTH), tiny.tasks[:1], RolloutConfig(), 1, 0, p)]
        for p in (None, "phone", "all")
    ]
    assert found == [[0], [1], [2]]


def test_every_policy_meets_the_same_people(base_path, tiny):
    """A task's CSR says the same words whatever else is evaluated; its second episode is another one."""

    def heard(tasks, seed, held_out=False):
        codec = Codec(load_tokenizer(base_path), PhoneEnvironment(tiny, held_out_phrasing=held_out))
        engine = Scripted(codec, by_turn(SEARCH, written(CALL), ""))
        rows = play_tasks(engine, codec, Plain(BOTH), tasks, RolloutConfig(), 2, seed)
        return [(r.task_id, r.turns[1].observation) for r in rows]

    everything = heard(tiny.tasks, seed=0)
    assert heard(tiny.tasks[2:4], seed=9) == everything[4:8]
    assert everything[::2] != everything[1::2]
    assert not set(heard(tiny.tasks, 0, held_out=True)) & set(everything)


# --- the world model -------------------------------------------------------------------------


def example(codec, status: str, message: str, call=CALL, task_id="t", prompt=None) -> Example:
    text = json.dumps({"status": status, "message": message})
    return codec_example(codec, call, text, status, task_id, prompt or message)


def codec_example(codec, call, text: str, status: str, task_id: str, prompt: str) -> Example:
    encoded = dataclasses.replace(
        codec.examples("x", "", [Turn(CALL, text, status)], "phone")[0].encoded, prompt=tuple(codec.encode(prompt))
    )
    return Example(task_id, call, text, status, encoded, "Please.", ())


def test_reply_accuracy_by_category(codec):
    """Wording does not count, meaning does: three of these five predictions mean what was said."""
    said_and_predicted = [
        ("auth_failed", "Billing. I need your email address.", "auth_failed", "Billing, hi! Your email address?"),
        ("auth_failed", "Billing. I need your email address.", "auth_failed", "Billing. I need your full name."),
        ("success", "Sales. Done.", "success", "Sales. Done."),
        ("success", "Sales. Done.", "auth_failed", "Sales. Done."),
        ("routing_violation", "Loans. Call Billing first.", "routing_violation", "Loans, hi! Try Billing first."),
    ]
    examples = [example(codec, s, m, prompt=str(i)) for i, (s, m, _, _) in enumerate(said_and_predicted)]
    answers = [json.dumps({"status": s, "message": m}) for _, _, s, m in said_and_predicted]
    engine = Scripted(codec, lambda text, prompt: answers[int(text)])
    rows = reply_rows(engine, codec, examples, HEARD)
    assert rows[:3] == [
        {"kind": "reply", "category": "auth_failed", "accuracy": 0.5, "n": 2},
        {"kind": "reply", "category": "routing_violation", "accuracy": 1.0, "n": 1},
        {"kind": "reply", "category": "success", "accuracy": 0.5, "n": 2},
    ]
    right = [True, False, True, False, True]
    assert rows[3:] == [
        {"kind": "prediction", "task_id": "t", "said": e.reply, "predicted": a, "right": r}
        for e, a, r in zip(examples, answers, right, strict=True)
    ]
    asked = {(p.adapter, p.temperature, p.stop, p.session) for p in engine.prompts}
    assert asked == {("world_model", 0.0, codec.reply_end_id, None)}


def test_a_wrong_answer_of_the_form_is_no_hit(codec):
    """Neither can be read as a phone reply, which must not make them alike."""
    answers = [json.dumps({field: "1", "unavailable": []}) for field in ("email", "name")]
    examples = [codec_example(codec, form(["email"]), a, "ok", "t", "form") for a in answers]
    engine = Scripted(codec, lambda text, prompt: answers[0])
    shares = reply_rows(engine, codec, examples, HEARD)[:1]
    assert shares == [{"kind": "reply", "category": "ok", "accuracy": 0.5, "n": 2}]


@pytest.mark.parametrize(("count", "shown"), [(0, []), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (23, [0, 4, 8, 12, 16])])
def test_a_few_predictions_of_an_evaluation_are_shown(codec, count, shown):
    """At most five, spread over all of them."""
    examples = [example(codec, "success", f"Sales. Done {i}.") for i in range(count)]
    rows = reply_rows(Scripted(codec, lambda text, prompt: "{}"), codec, examples, HEARD)
    said = [json.loads(row["said"])["message"] for row in rows if row["kind"] == "prediction"]
    assert said == [f"Sales. Done {i}." for i in shown]


def test_predictions_stand_beside_reality(codec):
    call = phone_call("800-555-0003", {"name": "A", "email": "b"})
    examples = [
        example(codec, "routing_violation", message, call, task_id)
        for task_id, message in (("a", "Loans. Call Billing first."), ("b", "Loans. Call Claims first."))
    ]
    predicted = json.dumps({"status": "routing_violation", "message": "Loans, hi! Try Billing first."})
    rows = inspect_replies(Scripted(codec, lambda text, prompt: predicted), codec, examples, HEARD)
    said = examples[0].reply
    assert rows[0] == {
        "task_id": "a",
        "category": "routing_violation",
        "call": call,
        "said": said,
        "predicted": predicted,
        "right": True,
    }
    assert not rows[1]["right"]  # another department
    rows = inspect_replies(Scripted(codec, lambda text, prompt: "gibberish {"), codec, examples, HEARD)
    assert (rows[0]["predicted"], rows[0]["right"]) == ("gibberish {", False)


@pytest.mark.parametrize("size", [1, 2])
def test_predictions_come_in_order_however_many_and_whoever_makes_them(codec, size, monkeypatch):
    """One of two processes asks for every other one."""
    engine = Scripted(codec, lambda text, prompt: f"<{text}>")
    questions = [codec.encode(str(i)) for i in range(70)]
    if size == 1:
        assert predict_replies(engine, codec, questions, HEARD) == [f"<{i}>" for i in range(70)]
        assert predict_replies(engine, codec, [], HEARD) == []
    else:
        monkeypatch.setattr(distributed, "size", lambda: 2)
        monkeypatch.setattr(distributed, "join", lambda mine, texts: dict(zip(mine, texts, strict=True)))
        assert predict_replies(engine, codec, questions, HEARD) == {i: f"<{i}>" for i in range(0, 70, 2)}


def test_the_environments_examination_asks_the_world_model(codec):
    """Every call on the way of somebody who follows what is answered: one each at Billing, Loans and Sales, three for a
    fraud (whoever lacks a card asks the same), two for two wishes. Billing's answer, of two of them, is right.
    """
    engine = Scripted(codec, lambda text, prompt: json.dumps(MISSING))
    found = examine(engine, codec, HEARD, "train")
    assert found == {"rule_accuracy": 1 / 4, "rule_accuracy_typical": 1 / 4, "rule_accuracy_way": 0.0, "n": 8}
    assert {p.adapter for p in engine.prompts} == {"world_model"} and len(engine.prompts) == 8
    assert codec.decode(engine.prompts[0].tokens).endswith("<|/action|><|predict_csr|><|csr|>")
    assert examine(engine, codec, HEARD, "train", 1)["n"] == 1  # of the first task alone


# --- a whole evaluation ----------------------------------------------------------------------


def config_of(world_model: WorldModelConfig | None, **settings) -> RunConfig:
    return RunConfig(world_model=world_model, env=EnvConfig(levels=(1,)), eval_splits=("train",), **settings)


def kinds(rows: list[dict]) -> list[tuple]:
    return [(r["split"], r["kind"], r.get("level", r.get("category"))) for r in rows]


def calling(text: str, prompt) -> str:
    """Look up, call Billing with empty hands, as was meant, hang up; and a world model that says the truth."""
    if prompt.adapter == "world_model":
        return json.dumps(MISSING)
    return '800-555-0003"' if text.endswith('"phone_number": "') else by_turn(SEARCH, written(CALL), "")(text, prompt)


def test_a_whole_evaluation_has_a_row_for_everything(codec):
    """Two tasks, two episodes each: look up, call Billing with empty hands, hang up; the world model says the truth."""
    config = config_of(WorldModelConfig(context_distillation=0.1), eval_tasks=2, eval_episodes=2)
    rows = evaluation_rows(Scripted(codec, calling), codec, Imagine(config.world_model, codec), config)
    assert kinds(rows) == [
        ("train", "success", 0),
        ("train", "success", 1),
        ("train", "outcomes", None),
        ("train", "behaviour", None),
        ("train", "unaided", 0),
        ("train", "unaided", 1),
        ("train", "unaided_outcomes", None),
        ("train", "reply", "auth_failed"),
        *[("train", "prediction", None)] * 4,
        ("train", "rules", None),
    ]
    assert [r["n"] for r in rows if r["kind"] in ("success", "unaided")] == [4] * 4
    assert [r["successes"] for r in rows if r["kind"].endswith("outcomes")] == ["0000"] * 2
    (reply,) = [r for r in rows if r["kind"] == "reply"]
    assert (reply["accuracy"], reply["n"]) == (1.0, 4)
    (counts,) = [r for r in rows if r["kind"] == "behaviour"]
    assert (counts["calls_per_task"], counts["malformed"]) == (1.0, 0.0)


def test_what_was_learned_is_held_beside_what_was_not(codec):
    """Replies that the world model has learned come first, as those of the split `train`; at most JUDGED of them."""
    learned = [example(codec, "success", f"Sales. Done {i}.", task_id=f"t{i}") for i in range(3)]
    config = dataclasses.replace(config_of(WorldModelConfig(), eval_tasks=1), eval_splits=("validation",))
    coupling, env = Imagine(config.world_model, codec), codec.env
    rows = evaluation_rows(Scripted(codec, calling), codec, coupling, config, learned)
    ours = [row for row in rows if row["split"] == "train"]
    assert [row["kind"] for row in ours] == ["reply", *["prediction"] * 3] and rows[: len(ours)] == ours
    assert (ours[0]["category"], ours[0]["accuracy"], ours[0]["n"]) == ("success", 0.0, 3)
    assert {row["task_id"] for row in ours[1:]} == {"t0", "t1", "t2"} and env.tasks("validation") == []
    assert evaluation_rows(Scripted(codec, calling), codec, coupling, config, learned) == rows
    seen = dataclasses.replace(config, eval_splits=("train",))
    rows = evaluation_rows(Scripted(codec, calling), codec, coupling, seen, learned)
    assert [row["kind"] for row in rows if row["split"] == "learned"] == ["reply", *["prediction"] * 3]
    assert sum(row["kind"] == "reply" for row in rows if row["split"] == "train") == 1, "its own episodes alone"


@pytest.mark.parametrize("name", ["memory", "truth"])
def test_who_notes_without_a_world_model_is_asked_nothing(codec, name):
    """What a memory can tell is examined; of this call it has nothing to tell."""
    world_model = WorldModelConfig(coupling=name, context_distillation=0.1)
    config = config_of(world_model, eval_tasks=1, eval_episodes=1)
    coupling = Memory(world_model, codec) if name == "memory" else Truth(codec, distillation=0.1)
    engine = Scripted(codec, calling)
    rows = evaluation_rows(engine, codec, coupling, config, [example(codec, "success", "Sales. Done.")])
    of_success, without = ["success", "success", "outcomes", "behaviour"], ["unaided", "unaided", "unaided_outcomes"]
    assert [row["kind"] for row in rows] == of_success + (["rules"] if name == "memory" else without)
    assert {p.adapter for p in engine.prompts} == {"policy"}
    noted = [codec.decode(p.tokens) for p in engine.prompts]
    assert any("<|note|>truth: " in text for text in noted) == (name == "truth")


@pytest.mark.parametrize(
    ("coupling", "rate", "feedback", "expected"),
    [
        ("truth", 1e-3, None, 1),
        ("truth", 1e-3, FeedbackConfig(), 1),
        ("truth", 0, None, 0),
        ("none", 1e-3, None, 0),
        ("none", 1e-3, FeedbackConfig(), 0),
    ],
)
def test_what_a_policy_can_do_without_its_notes_is_shown(codec, coupling, rate, feedback, expected):
    """Where it is trained and notes were read: else the same episodes would be played twice, or say nothing new."""
    config = config_of(WorldModelConfig(coupling=coupling), eval_tasks=1, eval_episodes=1)
    config = dataclasses.replace(config, feedback=feedback, policy=PolicyConfig(learning_rate=rate))
    inner = Truth(codec) if coupling == "truth" else Plain(ALONE)
    around = Guided(config, codec, inner) if feedback else inner
    rows = evaluation_rows(Scripted(codec, calling), codec, around, config)
    assert sum(row["kind"] == "unaided" and row["level"] == 0 for row in rows) == expected


def test_what_a_memory_can_tell_is_counted(codec):
    """It has heard what is answered to the first call on a way, and knows nothing of any other."""
    world_model = WorldModelConfig(coupling="memory")
    config = dataclasses.replace(config_of(world_model, eval_tasks=1), eval_splits=("train",))
    coupling = Memory(world_model, codec)
    *_, before = evaluation_rows(Scripted(codec, calling), codec, coupling, config)
    coupling.hear([as_example(codec.env.knowledge.steps("train")[0])])
    *_, after = evaluation_rows(Scripted(codec, calling), codec, coupling, config)
    assert before["rule_accuracy"] == 0 and after["rule_accuracy"] >= 1 / after["n"]
    guided = Guided(dataclasses.replace(config, feedback=FeedbackConfig()), codec, coupling)
    assert evaluation_rows(Scripted(codec, calling), codec, guided, config)[-1] == after, "with feedback around it, too"


def test_outcomes_are_told_task_by_task(base_path):
    """The toy environment's three tasks, twice each: who says 2 succeeds at the second."""
    codec = Codec(load_tokenizer(base_path), Counting())
    config = RunConfig(eval_splits=("test",), eval_tasks=3, eval_episodes=2)
    answer = 'count<|args|>{"number": "2"}'
    rows = evaluation_rows(Scripted(codec, lambda t, p: answer), codec, Plain(ALONE), config)
    assert [row["successes"] for row in rows if row["kind"] == "outcomes"] == ["001100"]


def test_without_a_world_model_nothing_is_asked_of_one(codec):
    config = config_of(None, eval_tasks=1, eval_episodes=1)
    engine = Scripted(codec, searching)
    rows = evaluation_rows(engine, codec, Plain(ALONE), config)
    assert [r["kind"] for r in rows] == ["success", "success", "outcomes", "behaviour"]
    assert {p.adapter for p in engine.prompts} == {"policy"}


def test_whoever_listens_is_examined_be_it_the_policy(codec):
    config = config_of(WorldModelConfig(coupling="shared"), eval_tasks=1, eval_episodes=1)
    engine = Scripted(codec, searching)
    rows = evaluation_rows(engine, codec, Plain(SHARED), config)
    assert [r["kind"] for r in rows][-1] == "rules"
    assert {p.adapter for p in engine.prompts} == {"policy"}


def test_splits_are_evaluated_in_their_order_with_their_own_tasks(base_path):
    """The toy environment has three tasks in every split, one of each level."""
    codec = Codec(load_tokenizer(base_path), Counting())
    config = RunConfig(eval_splits=("validation", "test"), eval_tasks=2, eval_episodes=1)
    answer = 'count<|args|>{"number": "2"}'
    rows = evaluation_rows(Scripted(codec, lambda t, p: answer), codec, Plain(ALONE), config)
    success = [(r["split"], r["level"], r["success"]) for r in rows if r["kind"] == "success"]
    levels = [(0, 0.5), (1, 0.0), (2, 1.0)]
    assert success == [(split, *level) for split in ("validation", "test") for level in levels]


def test_at_most_so_many_replies_are_judged(codec, monkeypatch):
    monkeypatch.setattr("lfo.evaluate.JUDGED", 3)
    answer = by_turn(SEARCH, *[written(CALL)] * 4, "")
    engine = Scripted(codec, lambda text, p: json.dumps(MISSING) if p.adapter == "world_model" else answer(text, p))
    config = config_of(WorldModelConfig(coupling="none"), eval_tasks=1, eval_episodes=1)
    rows = evaluation_rows(engine, codec, Plain(BOTH), config)
    assert sum(r["n"] for r in rows if r["kind"] == "reply") == 3


def test_outcomes_of_the_records_are_those_of_the_environment(codec, tiny):
    (row,) = play_tasks(Scripted(codec, searching), codec, Plain(BOTH), tiny.tasks[:1], RolloutConfig(), 1)
    assert row.outcome == Outcome(
        False, 0.0, {"shaped_reward": 0.0, "auth_before_call": 0.0, "departments_in_order": 0.0, "calls_per_task": 0.0}
    ) and isinstance(tiny.tasks[0], Task)
