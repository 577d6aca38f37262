"""environment_report: what notebook 01 shows of the phone world without a model."""

from __future__ import annotations

import dataclasses
import math

import pytest

from lfo.envs.phone.callers import play_scripted
from lfo.envs.phone.episode import AS_DECIDED
from lfo.envs.phone.rules import TypicalRules
from lfo.envs.phone.vocabulary import CIRCUMSTANCES, FIELDS
from lfo.envs.phone.world import generate_world
from lfo.lab import environment_report as report


def task(world, task_id):
    return next(t for t in world.tasks if t.task_id == task_id)


@pytest.fixture(scope="module")
def plain_world():
    """The same seed, where nobody speaks of any circumstance."""
    return generate_world(0, 0)


# --- episodes to look at ---------------------------------------------------------------------


def test_a_transcript_reads_turn_by_turn(tiny):
    text = report.transcript(play_scripted(tiny, task(tiny, "offer"), "oracle"), width=2000)
    lines = text.splitlines()
    assert [line.split()[0] for line in lines] == ["USER", "AGENT", "ok", "AGENT", "ok", "AGENT", "success", "END"]
    assert lines[0] == "USER              Please call Harbor Bank for me: hear about offers."
    assert lines[3] == 'AGENT             auth_info_form {"fields": []}'
    assert lines[-1] == "END               success: success True, shaped reward 1.00"


def test_a_long_transcript_is_cut_and_wrapped(tiny):
    episode = play_scripted(tiny, task(tiny, "bill"), "retry-from-csr")
    text = report.transcript(episode, turns=2, width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("AGENT") == 2
    assert f"({len(episode.turns) - 2} more actions)" in text
    assert "more actions" not in report.transcript(episode)
    hung_up = report.transcript(play_scripted(tiny, task(tiny, "bill"), "no-op"))
    assert hung_up.splitlines()[1:] == [
        "AGENT             (hangs up)",
        "END               agent_stopped: success False, shaped reward 0.00",
    ]


def test_every_check_answers_in_turn(world):
    rows = report.csr_checks(world)
    assert [(r["check"], r["status"]) for r in rows] == [
        ("number", "wrong_department"),
        ("routing", "routing_violation"),
        ("authentication", "auth_failed"),
        ("authentication", "auth_failed"),
        ("capability", "wrong_department"),
        ("service", "success"),
        ("service", "success"),
    ]
    gate, goal = rows[2]["call"], rows[1]["call"]
    assert rows[1]["message"].startswith(goal)
    assert gate in rows[1]["message"].removeprefix(goal)
    assert "ismatch" in rows[3]["message"]
    assert goal in rows[4]["message"]
    assert rows == report.csr_checks(world)


def test_a_world_where_not_every_check_applies_says_so(tiny):
    with pytest.raises(ValueError, match="no training task has a routed department"):
        report.csr_checks(tiny)


# --- reference policies ----------------------------------------------------------------------


def test_reference_rows_by_hand(tiny, monkeypatch):
    """Of the hand-made tasks only `offer` (Sales) demands nothing: retrying wins it and nothing else. Nothing is
    typical of that world, so nobody plays by it."""
    policies = ("oracle", "retry-from-csr", "no-op")
    monkeypatch.setattr(report, "REFERENCE_POLICIES", policies)
    rows = report.reference_rows(tiny, tiny.tasks, 2)
    assert [(r["policy"], r["level"], r["n"]) for r in rows] == [
        (policy, level, 12) for policy in policies for level in (0, 1)
    ]
    assert [r["success"] for r in rows[::2]] == [1.0, 2 / 12, 0.0]
    assert [r["shaped_reward"] for r in rows[::2]] == [1.0, pytest.approx(2 / 12), 0.0]
    assert all(r["low"] <= r["success"] <= r["high"] for r in rows)


def test_reference_policies_on_the_world(world):
    rows = report.reference_rows(world, world.split("validation"), 1)
    success = {(r["policy"], r["level"]): r["success"] for r in rows}
    assert all(success["oracle", level] == 1 for level in range(6))
    assert 0.7 < success["typical-prior", 0] < 0.95
    assert max(success[p, 0] for p in ("retry-from-csr", "random", "ask-everything", "no-op")) <= 0.1


def test_either_rule_lifted_lets_ignorance_win(world):
    rows = report.rule_variant_rows(world, world.split("validation", (2,)), 1)
    success = {(r["rules"], r["policy"]): r["success"] for r in rows if r["level"] == 0}
    decided, after, everything = report.RULE_VARIANTS
    assert report.RULE_VARIANTS[decided] == AS_DECIDED
    assert (success[decided, "retry-from-csr"], success[after, "retry-from-csr"]) == (0, 1)
    assert (success[decided, "ask-everything"], success[everything, "ask-everything"]) == (0, 1)


# --- entropy ---------------------------------------------------------------------------------


def test_hidden_entropy_by_hand(tiny):
    """Six departments, five sets, Sales twice: log2(6) - 2/6 bits; the bank has five different ones."""
    bits = {r["given"]: (r["bits"], r["cells"]) for r in report.hidden_entropy(tiny)}
    assert bits["nothing"] == (pytest.approx(math.log2(6) - 2 / 6), 1)
    assert bits["industry"] == (pytest.approx(5 / 6 * math.log2(5)), 2)
    assert bits["department"] == (0, 5)
    assert bits["department and industry"] == (0, 6)
    assert bits["department and company"] == (0, 6)


def test_hidden_entropy_of_the_world(world):
    rows = report.hidden_entropy(world)
    bits = [r["bits"] for r in rows]
    assert bits == sorted(bits, reverse=True)
    assert bits[0] > 4 > 2 > bits[2] > bits[3] > 0.5
    assert (bits[-1], rows[-1]["cells"]) == (0, len(world.rules))


# --- learnability ----------------------------------------------------------------------------


def test_observed_calls_say_what_the_rules_demand(world):
    """Handed over or asked for: together no call may contradict the hidden rule."""
    calls = report.observe_calls(world, 300)
    assert len(calls) == 300
    assert calls == report.observe_calls(world, 400)[:300]
    assert calls != report.observe_calls(world, 300, seed=1)
    train = {t.company_id for t in world.split("train")}
    for call in calls:
        demanded = world.demands(call.company_id, (), call.circumstances)
        assert call.asked == set(demanded.of[call.department].required) - call.given
        assert call.company_id in train
    assert {len(call.given) for call in calls} >= {0, 1, 2}
    assert {name for call in calls for name in call.circumstances} == set(list(CIRCUMSTANCES)[:4])


def test_a_predictor_remembers_what_it_heard(tiny):
    """Two calls to Billing tell its set apart; a field that was handed over teaches nothing about itself.

    What Loans wants of a joint account, it does not want otherwise.
    """

    def call(department, given, asked, *circumstances):
        return report.ObservedCall("bank", department, circumstances, frozenset(given), frozenset(asked))

    calls = [
        call("Billing", ["account_number"], ["billing_zip"]),
        call("Billing", ["email"], ["account_number", "billing_zip"]),
        call("Loans", [], ["name", "date_of_birth"]),
        call("Loans", [], ["name", "date_of_birth", "phone_number"], "joint_account"),
        call("Sales", [], []),
    ]
    keys = [("bank", "Billing"), ("bank", "Loans"), ("shop", "Sales")]
    assert report.predict_required(tiny, calls, keys) == [
        {"account_number", "billing_zip"},
        {"name", "date_of_birth"},
        set(),
    ]


def test_replies_can_be_learned_from(plain_world):
    rows = report.learnability(plain_world, seeds=(0, 1))
    assert [(r["split"], r["calls"], r["seed"]) for r in rows] == [
        (split, n, seed) for seed in (0, 1) for n in report.LEARNING_CALLS for split in ("validation", "test")
    ]
    few, many = rows[:2], rows[10:12]  # of seed 0
    for before, after in zip(few, many, strict=True):
        assert after["accuracy"] > before["accuracy"] + 0.2
        assert after["accuracy"] > after["chance"] + 0.4
        assert after["low"] < after["accuracy"] <= after["high"]
        assert after["n"] > 100
    assert many[0]["accuracy"] > 0.9
    assert many[1]["accuracy"] < many[1]["typical"] + 0.05 < 1


def test_circumstances_make_it_harder_and_not_impossible(world, plain_world):
    """What circumstances add has to be told apart from what is always demanded."""
    plain, known = (report.learnability(w) for w in (plain_world, world))
    assert known[0]["accuracy"] + 0.4 < known[-2]["accuracy"] < plain[-2]["accuracy"]
    assert known[-2]["accuracy"] > 0.75 and known[-2]["split"] == "validation"


def test_what_the_scores_are_compared_with(tiny):
    rules = dict.fromkeys([("bank", "Billing"), ("bank", "Loans")])
    typical = {"banking": {"Billing": ("account_number", "billing_zip"), "Loans": ("email",)}}
    with_typical = dataclasses.replace(tiny, typical=TypicalRules(typical, {}, {}, {}))
    assert report._constant_answers(with_typical, list(rules)) == {"chance": 0.5, "typical": 0.5}


def test_slack_that_shares_everything_is_more_than_any_form_asks():
    assert report.RULE_VARIANTS["the user shares everything"].slack >= len(FIELDS)
