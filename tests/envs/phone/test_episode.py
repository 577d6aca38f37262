"""episode, environment, callers: rules, rewards and ends, what never leaks, Gymnasium, reference policies."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import random
import re
import warnings

import pytest
from gymnasium.utils.env_checker import check_env

from lfo.config import EnvConfig
from lfo.envs import make_environment
from lfo.envs.base import ARGS_TAG, parse_action, written
from lfo.envs.phone import generate_world
from lfo.envs.phone.callers import (
    REFERENCE_POLICIES,
    Oracle,
    RandomForm,
    RetryFromCsr,
    ScriptedAgent,
    play_scripted,
    run_scripted,
)
from lfo.envs.phone.environment import PhoneCallEnv, PhoneEnvironment
from lfo.envs.phone.episode import ALREADY_ASKED, AS_DECIDED, TOO_LATE, TOO_MUCH, PhoneEpisode, Rules
from lfo.envs.phone.phrasings import PHRASINGS, requested_fields
from lfo.envs.phone.records import Effect
from lfo.envs.phone.tools import TOOLS, phone_call, search, search_company
from lfo.envs.phone.tools import form as fill_in
from lfo.envs.phone.user import UserSimulator
from lfo.envs.phone.vocabulary import CIRCUMSTANCES, DEPARTMENT_OF_GOAL, DEPARTMENTS, FIELDS
from lfo.types import Action, Call, Hangup, Malformed, StopReason

CS, FRAUD, BILLING, LOANS, SALES = (f"800-555-000{i}" for i in range(1, 6))
SEARCH = search("Harbor Bank")
HANG_UP = Hangup()
UNREADABLE = Malformed("?", "A call needs something.")
EVERYTHING_MADE_UP = dict.fromkeys(FIELDS, "0")


def form(*fields: str) -> Call:
    return fill_in(fields)


def phone(number: str, **auth_info: str) -> Call:
    return phone_call(number, auth_info)


@pytest.fixture
def start(tiny, seed_where):
    """start(task_id, user=test, said=circumstances, **rules): an episode of the small world, by default with a
    cooperative user who speaks of no circumstance."""

    def build(
        task_id: str, user=lambda u: u.behaviour == "cooperative", held_out=False, said=(), **rules
    ) -> PhoneEpisode:
        task = speaking_of(next(t for t in tiny.tasks if t.task_id == task_id), said)
        return PhoneEpisode(tiny, task, Rules(**rules), seed_where(task, user), held_out)

    return build


def speaking_of(task, circumstances):
    """The same task in these circumstances."""
    request = " ".join([task.request, *(CIRCUMSTANCES[name].said[0] for name in circumstances)])
    return dataclasses.replace(task, request=request, circumstances=tuple(circumstances))


def play(episode: PhoneEpisode, *actions: Action) -> dict:
    """Step through actions; the last observation as data."""
    for action in actions:
        observation = episode.step(action)
    return json.loads(observation) if observation else {}


BILL = {"account_number": "123456", "billing_zip": "22222"}
IDS = {"account_number": "123456", "last_4_ssn": "1111", "last_4_cc": "3333"}


def wrong_at_first(*fields: str):
    """A test for users who give exactly these of BILL and IDS wrongly at first."""

    def test(user: UserSimulator) -> bool:
        return {f for f in BILL | IDS if user.can_give(f) and user.give(f) != user.truth[f]} == set(fields)

    return test


def lacks(*fields: str):
    """A test for users who cannot give exactly these of BILL and IDS."""
    return lambda user: {f for f in BILL | IDS if not user.can_give(f)} == set(fields)


# --- rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        {"max_turns": 0},
        {"max_malformed": 0},
        {"slack": -1},
        {"values": "none"},
        {"reward": "dense"},
        {"replies": "all"},
        {"slak": 2},
    ],
)
def test_rules_are_validated(setting):
    with pytest.raises((ValueError, TypeError), match=next(iter(setting))):
        Rules(**setting)


def test_the_rules_as_decided_are_frozen():
    assert dataclasses.asdict(AS_DECIDED) == {
        "max_turns": 16,
        "max_malformed": 3,
        "slack": 1,
        "form_after_call": False,
        "values": "literal",
        "reward": "binary",
        "replies": "reasons",
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        AS_DECIDED.slack = 9


# --- the environment -------------------------------------------------------------------------


def test_an_environment_is_made_from_settings(world):
    """Its world, the tasks of its levels, and those rules that are settings."""
    env = make_environment(EnvConfig(levels=(1, 3), max_turns=9, values="reference", reward="shaped", replies="list"))
    assert env.world == world
    assert env.rules == Rules(max_turns=9, values="reference", reward="shaped", replies="list")
    assert env.tasks("validation") == world.split("validation", (1, 3)) and env.tasks("nowhere") == []
    assert make_environment(EnvConfig(world_seed=1)).world == generate_world(1)
    assert make_environment(EnvConfig(circumstances=2)).world == generate_world(0, 2)
    assert make_environment(EnvConfig()).rules == AS_DECIDED
    assert env.tools is TOOLS and "make no call" in env.system


def test_an_environments_episodes_are_those_of_the_world(world):
    for held_out in (False, True):
        env = PhoneEnvironment(world, Rules(slack=2), held_out_phrasing=held_out)
        for task in env.tasks("train")[:20]:
            one, two = env.episode(task, 7), PhoneEpisode(world, task, Rules(slack=2), 7, held_out)
            run_scripted(one, RetryFromCsr(one, world, random.Random(0)))
            run_scripted(two, RetryFromCsr(two, world, random.Random(0)))
            assert one.turns == two.turns
            one.close()


# --- a whole episode by hand -----------------------------------------------------------------


def test_an_episode_by_hand(start, tiny):
    e = start("bill")
    assert e.request == "Please call Harbor Bank for me: dispute a charge."
    assert play(e, SEARCH) == search_company(tiny.companies, "Harbor Bank")
    assert play(e, form("billing_zip", "account_number")) == BILL | {"unavailable": []}
    reply = play(e, phone(BILLING, **BILL))
    assert reply["status"] == "success"
    assert e.stop is StopReason.SUCCESS
    assert [(t.tool, t.status) for t in e.turns] == [
        ("search_company", "ok"),
        ("auth_info_form", "ok"),
        ("make_phone_call", "success"),
    ]
    assert [t.action for t in e.turns] == [SEARCH, form("billing_zip", "account_number"), phone(BILLING, **BILL)]
    outcome = e.outcome()
    assert (outcome.success, outcome.reward) == (True, 1.0)
    assert outcome.metrics == {
        "shaped_reward": 1.0,
        "auth_before_call": 1.0,
        "departments_in_order": 1.0,
        "calls_per_task": 1.0,
    }
    assert e.collected == BILL
    assert e.auth_before_call


def test_observations_are_plain_ascii_json(start):
    e = start("bill")
    text = e.step(form("account_number", "billing_zip"))
    assert text == '{"account_number": "123456", "billing_zip": "22222", "unavailable": []}'


def test_an_episode_in_circumstances_by_hand(start):
    """A joint account abroad: Billing comes before Customer Service, and each wants the phone number as well."""
    e = start("two", said=("joint_account", "abroad"))
    assert e.request == (
        "Please call Harbor Bank for me: dispute a charge and close my account."
        " It is a joint account. I am calling from abroad."
    )
    assert e.needed() == ("account_number", "last_4_ssn", "billing_zip", "phone_number")
    held = BILL | {"last_4_ssn": "1111", "phone_number": "444-555-6666"}
    assert play(e, form(*held)) == held | {"unavailable": []}
    assert play(e, phone(CS, **held))["status"] == "routing_violation"
    reply = play(e, phone(BILLING, **BILL))
    assert (reply["status"], requested_fields(reply["message"])) == ("auth_failed", {"phone_number"})
    assert play(e, phone(BILLING, **held))["status"] == "success"
    assert play(e, phone(CS, **held))["status"] == "success"
    assert e.success and e.shaped_reward == 0.9  # one routing violation


def test_a_goal_that_is_moved_by_hand(start):
    """A business account: Customer Service disputes the charge, and only what it demands is shared."""
    e = start("bill", said=("business_account",))
    assert e.needed() == ("account_number", "last_4_ssn")
    assert play(e, form("account_number", "billing_zip", "email")) == {"declined": TOO_MUCH}
    e = start("bill", said=("business_account",))
    play(e, form("account_number", "last_4_ssn", "billing_zip"))
    assert play(e, phone(BILLING, **BILL))["status"] == "wrong_department"
    assert play(e, phone(CS, account_number="123456", last_4_ssn="1111"))["status"] == "success"
    assert e.stop is StopReason.SUCCESS


def test_rules_say_whether_a_csr_gives_reasons(start):
    reasons = CIRCUMSTANCES["joint_account"].because
    for replies in ("list", "reasons"):
        e = start("bill", said=("joint_account",), replies=replies)
        messages = [play(e, phone(BILLING))["message"] for _ in range(15)]
        assert all(requested_fields(message) == {*BILL, "phone_number"} for message in messages)
        assert [any(reason in message for reason in reasons) for message in messages] == [replies == "reasons"] * 15


# --- one form --------------------------------------------------------------------------------


def test_a_second_form_is_refused_and_counted(start):
    e = start("bill")
    play(e, form("account_number"))
    assert play(e, form("billing_zip")) == {"refused": ALREADY_ASKED}
    assert play(e, form()) == {"refused": ALREADY_ASKED}
    assert e.counts["refused_form"] == 2
    assert e.collected == {"account_number": "123456"}
    assert [t.status for t in e.turns] == ["ok", "refused", "refused"]


def test_an_empty_form_is_a_form(start):
    e = start("bill")
    assert play(e, form()) == {"unavailable": []}
    assert play(e, form("billing_zip")) == {"refused": ALREADY_ASKED}


@pytest.mark.parametrize("number", [BILLING, SALES, "nonsense"])
def test_no_form_after_the_first_call(start, number):
    """Whoever calls first does without it: also a call to a wrong number is a call."""
    e = start("bill")
    play(e, phone(number))
    assert play(e, form("account_number")) == {"refused": TOO_LATE}
    assert play(e, form("account_number")) == {"refused": TOO_LATE}
    assert e.counts["refused_form"] == 2
    assert not e.auth_before_call


def test_search_and_unreadable_calls_are_no_first_call(start):
    e = start("bill")
    play(e, SEARCH, UNREADABLE, SEARCH)
    assert play(e, form("account_number", "billing_zip")) == BILL | {"unavailable": []}


def test_form_after_call_can_be_allowed(start):
    e = start("bill", form_after_call=True)
    reply = play(e, phone(BILLING))
    assert requested_fields(reply["message"]) == set(BILL)
    assert play(e, form(*BILL)) == BILL | {"unavailable": []}
    assert play(e, form(*BILL)) == {"refused": ALREADY_ASKED}  # still only one
    assert not e.auth_before_call


def test_a_call_of_made_up_values_does_not_buy_a_form(start):
    """The mismatch names what is required; a form after it would win without any knowledge."""
    e = start("bill")
    reply = play(e, phone(BILLING, **EVERYTHING_MADE_UP))
    assert requested_fields(reply["message"]) == set(BILL)
    assert play(e, form(*BILL)) == {"refused": TOO_LATE}


def test_made_up_values_after_the_form_do_not_reopen_it(start):
    for given in (EVERYTHING_MADE_UP, EVERYTHING_MADE_UP | {"account_number": "123456"}):
        e = start("bill")
        play(e, form("account_number"))
        assert "ismatch" in play(e, phone(BILLING, **given))["message"]
        assert play(e, form("billing_zip")) == {"refused": ALREADY_ASKED}


def test_made_up_values_beside_a_wrong_one_of_the_user_do_not_reopen_the_form(start):
    e = start("bill", wrong_at_first("account_number"))
    wrong = play(e, form("account_number"))["account_number"]
    assert wrong != "123456"
    play(e, phone(BILLING, **EVERYTHING_MADE_UP | {"account_number": wrong}))
    assert play(e, form(*BILL)) == {"refused": ALREADY_ASKED}


# --- slack -----------------------------------------------------------------------------------


def test_a_greedy_form_is_declined_whole_and_used_up(start):
    e = start("bill")
    assert play(e, form(*BILL, "email", "name")) == {"declined": TOO_MUCH}
    assert e.collected == {}
    assert play(e, form(*BILL)) == {"refused": ALREADY_ASKED}
    assert [t.status for t in e.turns] == ["declined", "refused"]


@pytest.mark.parametrize("slack", [0, 1, 2])
def test_slack_counts_fields_beyond_what_the_task_needs(start, slack):
    extras = ["email", "name", "phone_number"]
    fits = start("bill", slack=slack)
    assert "unavailable" in play(fits, form(*BILL, *extras[:slack]))
    greedy = start("bill", slack=slack)
    assert play(greedy, form(*BILL, *extras[: slack + 1])) == {"declined": TOO_MUCH}
    alone = start("bill", slack=slack)  # needed fields left out leave no room for others
    assert play(alone, form(*extras[: slack + 1])) == {"declined": TOO_MUCH}


def test_a_task_with_two_calls_needs_the_fields_of_both(start):
    e = start("two", slack=0)
    assert play(e, form("account_number", "last_4_ssn", "billing_zip"))["unavailable"] == []
    greedy = start("two", slack=0)
    assert play(greedy, form("account_number", "last_4_cc")) == {"declined": TOO_MUCH}


def test_slack_is_one_allowance_for_all_forms_together(start):
    user = lacks("billing_zip")
    e = start("bill", user)
    assert play(e, form(*BILL, "email"))["unavailable"] == ["billing_zip"]
    assert play(e, form("date_of_birth", "name")) == {"declined": TOO_MUCH}
    e = start("bill", user)
    play(e, form(*BILL, "email"))
    assert play(e, form("date_of_birth"))["date_of_birth"] == "1980-02-03"


def test_what_a_circumstance_demands_is_no_slack(start):
    assert "unavailable" in play(start("bill", said=("joint_account",), slack=0), form(*BILL, "phone_number"))
    assert play(start("bill", slack=0), form(*BILL, "phone_number")) == {"declined": TOO_MUCH}
    # A field that the same circumstance would demand elsewhere is not needed here.
    moved = start("bill", said=("business_account",), slack=0)
    assert play(moved, form("account_number", "billing_zip")) == {"declined": TOO_MUCH}


def test_fields_of_other_industries_are_extra(start):
    e = start("bill", slack=1)
    assert play(e, form(*BILL, "order_number")) == BILL | {"unavailable": ["order_number"]}
    assert play(start("bill"), form(*BILL, "order_number", "loyalty_id")) == {"declined": TOO_MUCH}


# --- unavailable and mismatch ----------------------------------------------------------------


def test_missing_card_by_hand(start):
    """The user has no card: second form, alternative accepted, third form refused."""
    e = start("nocard")
    given = {"account_number": "123456", "last_4_ssn": "1111"}
    assert play(e, form(*IDS)) == given | {"unavailable": ["last_4_cc"]}
    play(e, phone(CS, **given))
    reply = play(e, phone(FRAUD, **given))
    assert reply["status"] == "auth_failed"
    assert requested_fields(reply["message"]) == {"last_4_cc", "date_of_birth"}
    assert play(e, form("date_of_birth")) == {"date_of_birth": "1980-02-03", "unavailable": []}
    assert play(e, form("email")) == {"refused": ALREADY_ASKED}
    assert play(e, phone(FRAUD, **given, date_of_birth="1980-02-03"))["status"] == "success"
    assert e.success


def test_partial_user_unavailable_field_opens_a_second_form(start):
    e = start("bill", lacks("billing_zip"))
    assert play(e, form(*BILL)) == {"account_number": "123456", "unavailable": ["billing_zip"]}
    assert play(e, form("date_of_birth"))["date_of_birth"] == "1980-02-03"
    assert play(e, phone(BILLING, account_number="123456", date_of_birth="1980-02-03"))["status"] == "success"


def test_the_same_field_reported_unavailable_twice_opens_no_third_form(start):
    e = start("bill", lacks("billing_zip"))
    play(e, form(*BILL))
    assert play(e, form("billing_zip")) == {"unavailable": ["billing_zip"]}
    assert play(e, form("date_of_birth")) == {"refused": ALREADY_ASKED}


def test_an_unneeded_unavailable_field_opens_nothing(start):
    e = start("bill", lacks("last_4_cc"))
    assert play(e, form("account_number", "last_4_cc"))["unavailable"] == ["last_4_cc"]
    assert play(e, form("billing_zip")) == {"refused": ALREADY_ASKED}


def test_no_alternative_for_a_field_that_was_never_asked_for(start):
    e = start("bill", lacks("billing_zip"))
    play(e, form("account_number", "date_of_birth"))
    reply = play(e, phone(BILLING, account_number="123456", date_of_birth="1980-02-03"))
    assert requested_fields(reply["message"]) == {"billing_zip"}


def test_mismatch_opens_a_second_form_with_the_right_value(start):
    e = start("bill", wrong_at_first("account_number"))
    given = play(e, form(*BILL))
    del given["unavailable"]
    assert given["account_number"] != "123456"
    reply = play(e, phone(BILLING, **given))
    assert reply["status"] == "auth_failed"
    assert "ismatch" in reply["message"]
    assert requested_fields(reply["message"]) == {"account_number"}
    assert play(e, form("account_number")) == {"account_number": "123456", "unavailable": []}
    assert play(e, form("account_number")) == {"refused": ALREADY_ASKED}
    assert play(e, phone(BILLING, **BILL))["status"] == "success"


# --- reference values ------------------------------------------------------------------------


def test_handles_stand_for_values(start):
    e = start("bill", values="reference")
    observation = e.step(form(*BILL))
    handles = {field: f"@{field}" for field in BILL}
    assert json.loads(observation) == handles | {"unavailable": []}
    assert not [v for v in BILL.values() if v in observation]
    assert e.collected == BILL
    assert play(e, phone(BILLING, account_number="@account_number", billing_zip="@billing_zip"))["status"] == "success"


def test_handles_of_fields_never_given_mean_nothing(start):
    e = start("bill", values="reference")
    play(e, form("account_number"))
    reply = play(e, phone(BILLING, account_number="@account_number", billing_zip="@billing_zip"))
    assert requested_fields(reply["message"]) == {"billing_zip"}
    assert "ismatch" in reply["message"]
    swapped = play(e, phone(BILLING, account_number="@nonsense", billing_zip="@account_number"))
    assert requested_fields(swapped["message"]) == {"account_number", "billing_zip"}
    assert play(e, form("billing_zip")) == {"refused": ALREADY_ASKED}


def test_handles_are_plain_text_where_values_are_literal(start):
    e = start("bill")
    play(e, form(*BILL))
    assert play(e, phone(BILLING, account_number="@account_number", billing_zip="22222"))["status"] == "auth_failed"


def test_mismatch_and_second_form_with_handles(start):
    e = start("bill", wrong_at_first("account_number"), values="reference")
    play(e, form(*BILL))
    call = phone(BILLING, account_number="@account_number", billing_zip="@billing_zip")
    assert play(e, call)["status"] == "auth_failed"
    assert play(e, form("account_number")) == {"account_number": "@account_number", "unavailable": []}
    assert play(e, call)["status"] == "success"


# --- reward ----------------------------------------------------------------------------------


def shaped(e: PhoneEpisode, *actions: str) -> float:
    play(e, *actions)
    return round(e.shaped_reward, 6)


def test_ladder_by_hand(start):
    e = start("bill")
    assert shaped(e, SEARCH) == 0.0
    assert shaped(start("bill"), form("email")) == 0.0  # nothing that is needed
    assert shaped(start("bill"), form("account_number")) == 0.2  # some
    assert shaped(e, form(*BILL, "last_4_ssn")) == 0.3  # all
    assert shaped(e, phone(CS, **BILL)) == 0.3  # not authenticated
    assert shaped(e, phone(CS, **BILL, last_4_ssn="1111")) == 0.45  # 0.5, in a wrong department
    assert shaped(e, phone(BILLING, **BILL)) == 0.95  # 1.0, the wrong department stays
    assert (e.success, e.outcome().reward) == (True, 1.0)


def test_ladder_of_two_calls_by_hand(start):
    e = start("fraud")
    assert shaped(e, form(*IDS)) == 0.3
    assert shaped(e, phone(FRAUD, **IDS)) == 0.2  # routing violation
    assert shaped(e, phone(CS, **IDS)) == 0.6  # right department, on the way
    assert shaped(e, form("email")) == 0.5  # repeated form
    assert shaped(e, phone(FRAUD, **IDS)) == 0.8


def test_all_collected_counts_what_the_user_has(start):
    e = start("nocard")
    assert shaped(e, form(*IDS)) == 0.2  # the birth date is needed now
    assert shaped(e, form("date_of_birth")) == 0.3


def test_reward_is_clipped_at_zero(start):
    e = start("bill")
    assert shaped(e, phone("1"), phone("2"), form("email"), form("email")) == 0.0
    assert e.counts["wrong_department"] == e.counts["refused_form"] == 2


def test_who_is_sent_on_for_a_circumstance_is_not_authenticated(start):
    """Billing, relieved of the goal, asks for nothing at all; Loans, which has no part in it, authenticates first."""
    e = start("bill", said=("business_account",))
    assert shaped(e, form("account_number", "last_4_ssn")) == 0.3
    assert shaped(e, phone(BILLING)) == 0.25
    assert shaped(e, phone(LOANS, name="Ana Lopez", date_of_birth="1980-02-03")) == 0.4  # 0.5, twice in a wrong one
    assert shaped(e, phone(CS, account_number="123456", last_4_ssn="1111")) == 0.9


def test_a_department_that_asks_for_nothing_authenticates_nobody(start):
    assert shaped(start("bill"), phone(SALES)) == 0.0
    assert shaped(start("offer"), phone(SALES)) == 1.0


def test_config_chooses_the_reward(start):
    for name, expected in (("binary", 0.0), ("shaped", 0.2)):
        e = start("bill", reward=name)
        play(e, form("account_number"), HANG_UP)
        assert e.outcome().reward == expected
        assert e.outcome().metrics["shaped_reward"] == 0.2


# --- how episodes end ------------------------------------------------------------------------


def stops(e: PhoneEpisode, *actions: Action) -> list[StopReason | None]:
    """Whether and why the episode is over after each action."""
    return [(e.step(action), e.stop)[1] for action in actions]


def test_stop_reasons(start):
    e = start("bill")
    assert stops(e, SEARCH, HANG_UP) == [None, StopReason.AGENT_STOPPED]
    assert (e.turns[-1].status, e.turns[-1].observation, e.turns[-1].tool) == ("stopped", "", "")
    e = start("bill")
    assert stops(e, UNREADABLE, SEARCH, UNREADABLE, UNREADABLE) == [None, None, None, StopReason.MALFORMED]
    assert (e.turns[-1].status, e.turns[-1].tool) == ("error", "")
    assert stops(start("bill", max_malformed=1), UNREADABLE) == [StopReason.MALFORMED]
    assert stops(start("bill"), *[SEARCH] * 16) == [None] * 15 + [StopReason.MAX_TURNS]
    e = start("bill")
    e.step(SEARCH)
    e.cut()
    assert e.stop is StopReason.TOKEN_BUDGET
    assert not e.outcome().success


def test_success_on_the_last_turn_is_success(start):
    e = start("bill", max_turns=3)
    play(e, SEARCH, form(*BILL), phone(BILLING, **BILL))
    assert e.stop is StopReason.SUCCESS
    e.cut()  # a finished episode keeps its reason
    assert e.stop is StopReason.SUCCESS


@pytest.mark.parametrize("last", [HANG_UP, UNREADABLE])
def test_stepping_a_finished_episode_raises(start, last):
    e = start("bill", max_malformed=1)
    e.step(last)
    turns = len(e.turns)
    with pytest.raises(RuntimeError, match=r"this episode ended .*build a new one"):
        e.step(SEARCH)
    assert len(e.turns) == turns
    cut = start("bill")
    cut.cut()
    with pytest.raises(RuntimeError, match="token_budget"):
        cut.step(SEARCH)


def test_auth_before_call(start):
    e = start("bill")
    assert not e.auth_before_call
    play(e, form("account_number", "email", "name"))  # declined: nothing was answered
    play(e, phone(BILLING))
    assert not e.auth_before_call
    e = start("bill")
    play(e, form("account_number"))
    assert not e.auth_before_call  # no call yet
    play(e, phone(BILLING))
    assert e.auth_before_call


def test_departments_in_order(start):
    """Everybody on the way was called, and nobody before whom they want first; what they said does not matter."""
    e = start("fraud")
    assert not e.departments_in_order
    play(e, phone(CS))
    assert not e.departments_in_order  # Fraud was not called yet
    play(e, phone(SALES), phone(CS, **IDS), phone(FRAUD))
    assert e.departments_in_order
    e = start("fraud")
    play(e, phone(FRAUD), phone(CS, **IDS), phone(FRAUD, **IDS))
    assert e.success and not e.departments_in_order
    e = start("bill", said=("business_account",))
    play(e, phone(BILLING))
    assert not e.departments_in_order  # Customer Service serves instead
    play(e, phone("(800) 555 0001"))
    assert e.departments_in_order


# --- determinism -----------------------------------------------------------------------------


def scripted(world, task, seed, rules=AS_DECIDED, held_out=False, policy=RandomForm) -> PhoneEpisode:
    e = PhoneEpisode(world, task, rules, seed, held_out)
    return run_scripted(e, policy(e, world, random.Random(f"{task.task_id}/{seed}")))


def test_twin_rollouts_are_byte_identical(world):
    for i, task in enumerate(world.tasks[::7]):
        one, two = (scripted(world, task, i, policy=RetryFromCsr, held_out=i % 2 == 0) for _ in range(2))
        assert one.turns == two.turns
        assert (one.stop, one.outcome()) == (two.stop, two.outcome())


def test_users_and_csrs_rephrase_where_asked_for(world):
    """The request that the agent reads is that of the task, but for how its circumstances are put."""
    for task in world.tasks[::7]:
        assert PhoneEpisode(world, task).request == task.request
        request = PhoneEpisode(world, task, held_out_phrasing=True).request
        assert (request == task.request) == (not task.circumstances)
        assert all(CIRCUMSTANCES[name].said[-1] in request for name in task.circumstances)


def test_other_seeds_give_other_episodes(world):
    task = world.split("train", (5,))[0]
    assert len({str(scripted(world, task, seed, policy=Oracle).turns) for seed in range(10)}) > 5


def test_user_and_csr_have_streams_of_their_own(start):
    """What the user says does not depend on how often the CSR spoke, and the other way round."""
    difficult = wrong_at_first("account_number")
    quiet = start("bill", difficult, form_after_call=True)
    noisy = start("bill", difficult, form_after_call=True)
    calls = [play(noisy, phone(BILLING))["message"] for _ in range(4)]
    assert quiet.step(form(*BILL)) == noisy.step(form(*BILL))
    assert [play(quiet, phone(BILLING))["message"] for _ in range(4)] == calls


def test_held_out_phrasings_are_used_only_where_asked_for(start):
    named = "your account number and billing ZIP code"
    held_out_replies = {v[-1].format(dept="Billing", fields=named) for v in PHRASINGS["missing"].values()}
    for held_out in (False, True):
        e = start("bill", held_out=held_out)
        messages = {play(e, phone(BILLING))["message"] for _ in range(15)}
        assert all((m in held_out_replies) == held_out for m in messages), messages


# --- hidden state ----------------------------------------------------------------------------


def all_messages() -> re.Pattern:
    """Everything that a CSR can say, where D stands for a department, F for a field, R for a reason."""
    items, owed = "F(?:(?:, | and |, and )F)*", "R, (?:your F|nothing more)"
    demanded = f"(?:your {items}|the following: {owed}(?:; {owed})*(?:; and in any case your {items})?)"
    patterns = [re.escape("This number is not in service.")]
    for situation, styles in PHRASINGS.items():
        for template in {t for variants in styles.values() for t in variants}:
            opening, sentence = re.fullmatch(r"(\S+(?: hi!)?) (.*)", template).groups()
            text = f"{re.escape(opening)} (?:R, )?{re.escape(sentence)}"
            for slot, said in (("dept", "D"), ("fields", demanded if situation == "missing" else items)):
                text = text.replace(re.escape(f"{{{slot}}}"), said)
            patterns.append(text.replace(re.escape("{other}"), "[DF]"))
    return re.compile("|".join(patterns), re.IGNORECASE)


def in_outline(message: str, company) -> str:
    """A message with what it names left out: departments of this company, fields, public reasons."""
    reasons = [reason for kind in CIRCUMSTANCES.values() for reason in kind.because]
    for names, mark in ((reasons, "R"), ([d.name for d in company.departments], "D"), (FIELDS.values(), "F")):
        for name in sorted(names, key=len, reverse=True):
            message = message.replace(name, mark).replace(name[0].upper() + name[1:], mark)
    return message


MESSAGES = all_messages()


def test_the_outline_of_what_is_said_by_hand(tiny):
    """What the hostile test below relies on: the pattern takes what CSRs say and nothing that they do not."""
    bank = tiny.companies["bank"]
    for text, outline in (
        ("Loans. I need your email address and full name.", "D. I need your F and F."),
        ("Loans, hi! As you call from abroad, try Billing first.", "D, hi! R, try D first."),
        ("Sales. State the following: with a large sum, your date of birth.", "D. State the following: R, your F."),
        (
            "Sales. State the following: with a large sum, nothing more; and in any case your full name.",
            "D. State the following: R, nothing more; and in any case your F.",
        ),
    ):
        assert in_outline(text, bank) == outline and MESSAGES.fullmatch(outline)
    for text in (
        "Loans. I need your email address, which is ana77@example.com.",
        "Claims. I need your email address.",  # not of this company
        "Loans. As you call from the moon, try Billing first.",
        "Loans. I need your email address; and as you call from abroad, call Billing first.",
        "Loans. I need the following: as you call from abroad, something more.",
        "Loans. I need the following: and in any case your email address.",
        "Loans. Settled. Done.",
    ):
        assert not MESSAGES.fullmatch(in_outline(text, bank)), text


def check_observation(e: PhoneEpisode, action: Action, observation: str, world, truth: dict[str, str]) -> str:
    """Whatever comes back is one of few public shapes; returns which. Everything hidden is ruled out by form."""
    assert observation.isascii()
    if not observation:
        assert e.stop is StopReason.AGENT_STOPPED
        return "stop"
    data = json.loads(observation)
    kind = next(iter(data))
    if kind == "error":
        # Equal to what the parser, which knows no world, says.
        assert data == {"error": action.reason}
    elif kind == "departments":
        assert data == search_company(world.companies, action.arguments["company_name"])
        assert all(set(d) == {"name", "phone", "description", "operating_hours"} for d in data["departments"])
    elif kind == "status":
        assert set(data) == {"status", "message"}
        assert MESSAGES.fullmatch(in_outline(data["message"], world.companies[e.task.company_id])), data["message"]
        assert data["status"] in ("success", "auth_failed", "wrong_department", "routing_violation")
    elif kind in ("refused", "declined"):
        assert data in ({"refused": ALREADY_ASKED}, {"refused": TOO_LATE}, {"declined": TOO_MUCH})
    else:
        assert action.tool == "auth_info_form"
        asked = set(action.arguments["fields"])
        assert set(data) - {"unavailable"} | set(data["unavailable"]) == asked
        assert not set(data) & set(data["unavailable"])
        kind = "form"
        for field, value in data.items():
            if field == "unavailable":
                continue
            if e.rules.values == "reference":
                assert value == f"@{field}"
            else:
                assert len(value) == len(truth[field])  # the value, perhaps with a wrong digit
                assert value == e.collected[field]
        # What was not asked for is not there, whatever its name.
        if e.rules.values == "literal":
            for field in set(truth) - asked:
                assert truth[field] not in data.values() or truth[field] in [truth[f] for f in asked if f in truth]
    return kind


def given_by_chance(value: str, e: PhoneEpisode) -> bool:
    """Whether a value is part of another one that the user did give."""
    return e.rules.values == "literal" and any(value in given for given in e.collected.values())


JUNK = (
    *("", "\x00", "\u2028", "\ud800", "ß☎𝔘", "\\", '"', "'; DROP TABLE rules; --", "{0}", "{dept}", "%s"),
    *("@email", "@_world", "__class__", "None", "-0", "1e400", "9" * 50, "<|end|>", "<|args|>"),
)


def adversary(rng: random.Random, world, task, collected: dict[str, str]) -> str:
    """One random, right, almost right or hostile action."""
    company = world.companies[task.company_id]
    fields = list(FIELDS)
    junk = rng.choice(JUNK)
    number = rng.choice(
        [rng.choice(company.departments).phone, "800-555-" + "".join(rng.choices("0123456789", k=4)), junk]
    )

    def value(depth=0):
        leaf = rng.choice([junk, 0, -1, 10 ** rng.randint(0, 300), 1.5, float("nan"), float("inf"), True, None, "name"])
        if depth > 3 or rng.random() < 0.5:
            return leaf
        if rng.random() < 0.5:
            return [value(depth + 1) for _ in range(rng.randint(0, 3))]
        return {rng.choice([*fields, "fields", junk]): value(depth + 1) for _ in range(rng.randint(0, 3))}

    def good() -> str:
        draw = rng.random()
        if draw < 0.25:
            return written(search(rng.choice([company.name, junk, company.name[1:]])))
        if draw < 0.5:
            return written(form(*rng.sample(fields, rng.choice((0, 1, 2, 3, 16)))))
        auth = {rng.choice([*fields, junk]): rng.choice([junk, "0000", "@name"]) for _ in range(rng.randint(0, 5))}
        if rng.random() < 0.5:
            auth = rng.choice((EVERYTHING_MADE_UP, collected))
        return written(phone_call(number, auth))

    if rng.random() < 0.005:
        return rng.choice(("", " \n"))
    kind = rng.randrange(11)
    if kind < 4:
        return good()
    if kind == 4:  # one character added, dropped or changed
        text = good()
        i = rng.randrange(len(text))
        return text[:i] + rng.choice([junk, "", text[i] * 2, "}", '"', ","]) + text[i + rng.randint(0, 1) :]
    if kind == 5:  # cut off
        text = good()
        return text[: rng.randrange(1, len(text))]
    if kind == 6:  # wrong types
        return f"{rng.choice(list(TOOLS))}{ARGS_TAG}{json.dumps(value())}"
    if kind == 7:  # right keys, wrong types
        tool = rng.choice(list(TOOLS))
        return written(Call(tool, {k: value() for k in TOOLS[tool].parameters}))
    if kind == 8:  # deep or huge
        deep = rng.choice(["[", '{"fields":', '{"auth_info":{"name":', "[[{}],"]) * rng.choice((10, 500, 1500))
        return f"{rng.choice(list(TOOLS))}{ARGS_TAG}{rng.choice([deep, '9' * 3_000, '1' * 5_000])}"
    if kind == 9:  # repeated keys
        return (
            f'make_phone_call{ARGS_TAG}{{"phone_number": "{number}", "auth_info": {{}}, "auth_info": {{"name": ""}}}}'
        )
    return "".join(
        chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x11_0000)))) for _ in range(rng.randint(1, 60))
    )


@pytest.mark.parametrize("values", ["literal", "reference"])
def test_ten_thousand_hostile_actions_raise_nothing_and_reveal_nothing(world, values):
    """5,000 actions per mode of values. No exception, no shape but the public ones, no value that was not given."""
    rng = random.Random(f"hostile/{values}")
    rules = Rules(values=values, max_malformed=6, form_after_call=values == "reference", slack=2)
    seen, steps = collections.Counter(), 0
    while steps < 5_000:
        task = rng.choice(world.tasks)
        truth = world.profiles[task.profile_id].values
        e = PhoneEpisode(world, task, rules, rng.randrange(10**6), held_out_phrasing=rng.random() < 0.5)
        while e.stop is None and steps < 5_000:
            action = parse_action(adversary(rng, world, task, e.collected), TOOLS)
            observation = e.step(action)
            seen[check_observation(e, action, observation, world, truth)] += 1
            steps += 1
            for field, value in truth.items():
                given = values == "literal" and field in e.collected
                # Directories are compared above; four digits of theirs may be a value by chance.
                if not given and '{"departments"' not in observation:
                    assert given_by_chance(value, e) or value not in observation
        assert 0.0 <= e.shaped_reward <= 1.0
        assert len(e.turns) <= rules.max_turns
    assert set(seen) == {"stop", "error", "departments", "status", "refused", "declined", "form"}
    assert min(seen.values()) >= 5, seen


def in_all_circumstances(tiny) -> list:
    """The tasks as they are, and with a user who speaks of everything that the bank makes something of."""
    return [*tiny.tasks, *(speaking_of(task, tiny.effects["bank"]) for task in tiny.tasks)]


def test_everything_but_the_csr_is_the_same_whatever_the_rules(tiny):
    """Worlds that differ in the hidden rules or effects only: search, errors and refusals are byte-identical."""
    rules = {
        k: dataclasses.replace(r, required=("email", "branch_code"), alternative="name", after="")
        for k, r in tiny.rules.items()
    }
    effects = {"bank": dict.fromkeys(CIRCUMSTANCES, Effect(field="email")), "shop": {}}
    others = [dataclasses.replace(tiny, **what) for what in ({"rules": rules}, {"effects": effects}, {"effects": {}})]
    texts = ["?", "make_phone_call<|args|>{}", 'auth_info_form<|args|>{"fields": ["nonsense"]}']
    unreadable = [parse_action(text, TOOLS) for text in texts]
    actions = [SEARCH, *unreadable, search("Summit"), form(), form("email"), phone("1"), form("name")]
    for task, other in itertools.product(in_all_circumstances(tiny), others):
        one, two = (PhoneEpisode(w, task, Rules(max_malformed=9), 3) for w in (tiny, other))
        assert one.request == two.request
        assert [one.step(a) for a in actions] == [two.step(a) for a in actions]


def test_a_form_reveals_only_whether_it_was_too_much(tiny):
    """The answer to an accepted form is what the user has, not what the company wants."""
    rules = {k: dataclasses.replace(r, required=("email",)) for k, r in tiny.rules.items()}
    effects = {"bank": dict.fromkeys(CIRCUMSTANCES, Effect(field="email")), "shop": {}}
    others = [dataclasses.replace(tiny, **what) for what in ({"rules": rules}, {"effects": effects}, {"effects": {}})]
    seen = set()
    for task, field, other in itertools.product(in_all_circumstances(tiny), FIELDS, others):
        one, two = (PhoneEpisode(w, task, AS_DECIDED, 5).step(form(field)) for w in (tiny, other))
        assert one == two
        seen.add(one)
    assert len(seen) >= len(FIELDS)


# --- Gymnasium -------------------------------------------------------------------------------


def test_gymnasiums_own_checker(world):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(PhoneCallEnv(world, world.split("train"), render_mode="ansi"))
    # The one warning: other render modes cannot be tried on an environment that is not registered by an id.
    assert [str(w.message) for w in caught if "alternative render modes" not in str(w.message)] == []


def test_five_tuple_and_options(tiny):
    env = PhoneCallEnv(tiny, tiny.tasks)
    with pytest.raises(RuntimeError, match=r"call reset\(\) before step\(\)"):
        env.step(written(SEARCH))
    bill = tiny.tasks[0]
    request, info = env.reset(seed=4, options={"task": bill})
    assert (request, info) == (bill.request, {"task_id": "bill", "level": 1})
    observation, reward, terminated, truncated, info = env.step(written(SEARCH))
    assert observation in env.observation_space
    assert (reward, terminated, truncated, info) == (0.0, False, False, {"stop": "", "shaped_reward": 0.0})
    assert env.step("")[1:] == (0.0, True, False, {"stop": "agent_stopped", "shaped_reward": 0.0})
    with pytest.raises(RuntimeError, match="ended"):
        env.step(written(SEARCH))


def test_success_pays_once_at_the_end_and_max_turns_truncates(tiny):
    env = PhoneCallEnv(tiny, [next(t for t in tiny.tasks if t.task_id == "offer")], Rules(max_turns=2))
    env.reset(seed=0)
    assert env.step(written(SEARCH))[1] == 0.0
    assert env.step(written(phone(SALES)))[1:4] == (1.0, True, False)
    env.reset(seed=0)
    env.step(written(SEARCH))
    assert env.step(written(SEARCH))[1:4] == (0.0, False, True)


def test_reset_seed_decides_task_and_episode(world):
    env = PhoneCallEnv(world, world.split("train"))
    first, second = env.reset(seed=11), env.reset()
    assert env.reset(seed=11) == first
    assert env.reset() == second
    assert len({env.reset(seed=s)[1]["task_id"] for s in range(20)}) > 10


def test_reset_options(tiny):
    """Kept phrasings are another last entry of each style; a misspelt option is named."""
    env = PhoneCallEnv(tiny, tiny.tasks)
    bill = next(t for t in tiny.tasks if t.task_id == "bill")
    heard = {True: set(), False: set()}
    for held_out, seed in itertools.product(heard, range(30)):
        assert env.reset(seed=seed, options={"task": bill, "held_out_phrasing": held_out})[1]["task_id"] == "bill"
        env.step(written(SEARCH))
        heard[held_out].add(json.loads(env.step(written(phone(BILLING)))[0])["message"])
    assert len(heard[True]) == 4 and len(heard[False]) == 8 and not heard[True] & heard[False]
    with pytest.raises(ValueError, match="unknown option 'held_out' of reset"):
        env.reset(options={"held_out": True})


def test_render(tiny):
    env = PhoneCallEnv(tiny, tiny.tasks, render_mode="ansi")
    env.reset(seed=0)
    env.step("?")
    assert env.render() == '> ?\n{"error": "A call needs <|args|> between the tool and its arguments."}'
    assert PhoneCallEnv(tiny, tiny.tasks).render() is None


def test_an_environment_needs_tasks(tiny):
    with pytest.raises(ValueError, match="at least one task"):
        PhoneCallEnv(tiny, [])


# --- reference policies ----------------------------------------------------------------------


drawn = functools.cache(generate_world)


@pytest.mark.parametrize(
    ("seed", "circumstances"), [(0, 4), (0, 0), (0, 6), (1, 2), (2, 4), (3, 6), (4, 6), (5, 4), (6, 0)]
)
def test_the_oracle_certifies_every_task(seed, circumstances):
    """All 700 tasks x 2 seeds, whatever the user's behaviour: always success."""
    world, behaviours = drawn(seed, circumstances), collections.Counter()
    for task, again in itertools.product(world.tasks, range(2)):
        e = scripted(world, task, again, policy=Oracle)
        assert e.success and e.departments_in_order, (task, again, e.turns)
        behaviours[e._user.behaviour] += 1
    assert min(behaviours[b] for b in ("cooperative", "partial", "difficult")) > 100


@pytest.mark.parametrize(("seed", "circumstances"), [(0, 4), (0, 0), (3, 6), (5, 4)])
def test_the_oracle_takes_the_optimal_steps_with_a_cooperative_user(seed, circumstances):
    world, checked = drawn(seed, circumstances), 0
    for task in world.tasks:
        user = UserSimulator(world.profiles[task.profile_id], f"0/{task.task_id}")
        if user.behaviour == "cooperative":
            e = scripted(world, task, 0, policy=Oracle)
            assert len(e.turns) == task.optimal_steps
            assert e.shaped_reward == 1.0
            checked += 1
    assert checked > 400


def test_the_oracle_certifies_with_reference_values_and_held_out_phrasings(world):
    for task in world.tasks[::5]:
        assert scripted(world, task, 1, Rules(values="reference"), held_out=True, policy=Oracle).success


def rate(world, policy, levels=(1, 2), seeds=3, **rules) -> float:
    episodes = [
        scripted(world, t, s, Rules(**rules), policy=REFERENCE_POLICIES[policy])
        for t in world.split("train", levels)
        for s in range(seeds)
    ]
    return sum(e.success for e in episodes) / len(episodes)


def test_reference_policies_are_ordered_as_expected(world):
    assert list(REFERENCE_POLICIES) == [
        "oracle",
        "typical-prior",
        "retry-from-csr",
        "constant-form",
        "random",
        "ask-everything",
        "no-op",
    ]
    rates = {name: rate(world, name) for name in REFERENCE_POLICIES}
    nothing_asked = sum(not world.demands_of(t).needed() for t in world.split("train", (1, 2))) / 250
    assert rates["oracle"] == 1.0
    assert 0.75 < rates["typical-prior"] < 0.9
    assert 0.02 < rates["random"] < 0.1 < rates["constant-form"] < 0.35
    assert rates["random"] >= rates["retry-from-csr"] == rates["ask-everything"] == nothing_asked
    assert nothing_asked < 0.05
    assert rates["no-op"] == 0.0


def test_retry_wins_where_the_form_may_follow_the_call(world):
    """Why the form has to come first: otherwise one empty-handed call replaces all learning."""
    assert rate(world, "retry-from-csr", (1, 2, 4), seeds=1, form_after_call=True) == 1.0
    assert rate(world, "retry-from-csr", (4,), seeds=1) < 0.1


class MadeUpValues(RetryFromCsr):
    """Calls first with a made-up value for every field, then asks for what the mismatch names."""

    def call(self):
        action = super().call()
        if not self.values and isinstance(action, Call):
            return phone_call(action.arguments["phone_number"], EVERYTHING_MADE_UP)
        return action


def test_made_up_values_are_no_way_round_the_rules(world):
    """They win where nothing is asked for, and nowhere else."""
    tasks = world.split("train", (1, 2, 4))
    wins = [scripted(world, t, 0, policy=MadeUpValues).success for t in tasks]
    assert wins == [not world.demands_of(t).needed() for t in tasks]
    assert sum(wins) / len(wins) < 0.05


def test_greed_is_declined(world):
    e = scripted(world, world.split("train", (2,))[0], 0, policy=REFERENCE_POLICIES["ask-everything"])
    assert [t.status for t in e.turns[:2]] == ["ok", "declined"]


def test_scripted_agents_read_their_goals_and_company_from_the_request(world):
    for task in world.tasks:
        e = PhoneEpisode(world, task)
        agent = ScriptedAgent(e, world, random.Random(0))
        assert agent.goals == [goal for goal in DEPARTMENT_OF_GOAL if goal in task.goals]
        assert agent.circumstances == task.circumstances
        assert agent.company_name() == world.companies[task.company_id].name
        assert agent.industry() == world.companies[task.company_id].industry


def test_scripted_agents_give_up(start, tiny):
    e = start("two")
    agent = ScriptedAgent(e, tiny, random.Random(0))
    run_scripted(e, agent)  # calls with empty hands and may not ask
    assert e.stop is StopReason.AGENT_STOPPED
    assert len(e.turns) <= agent.patience + 1


def test_scripted_agents_follow_the_csr_to_the_right_department(start, tiny):
    """Sent to Sales by mistake, the agent is told where to go and goes there."""
    e = start("bill")
    agent = RandomForm(e, tiny, random.Random(0))
    agent.choose_fields = lambda: list(BILL)
    agent.call_order = lambda: ["Sales", "Billing"]
    run_scripted(e, agent)
    assert [t.status for t in e.turns] == ["ok", "ok", "wrong_department", "success"]


def test_scripted_agents_follow_the_csr_where_circumstances_lead(start, tiny):
    """To Billing first, and to Customer Service instead; a field that is asked for on top stays out of reach."""
    for said, fields, statuses in (
        (("abroad",), IDS | BILL, ["routing_violation", "routing_violation", "success", "success", "success"]),
        (("business_account",), IDS, ["wrong_department", "success"]),
        (("joint_account",), IDS, ["routing_violation", "auth_failed"]),
    ):
        e = start("fraud", said=said)
        agent = RandomForm(e, tiny, random.Random(0))
        agent.choose_fields = lambda fields=fields: list(fields)
        run_scripted(e, agent)
        assert [t.status for t in e.turns if t.tool == "make_phone_call"] == statuses
        assert e.success == (statuses[-1] == "success")


def test_the_typical_prior_knows_what_circumstances_usually_change(tiny):
    """At a bank that is typical in everything, it asks for exactly what is needed, and so fails nowhere."""
    usual = {name: rule.required for (company, name), rule in tiny.rules.items() if company == "bank"}
    typical = dataclasses.replace(
        tiny.typical,
        required={"banking": usual},
        after={"banking": {"Fraud Department": "Customer Service"}},
        house_field={"banking": "branch_code"},
        effects={"banking": tiny.effects["bank"]},
    )
    world = dataclasses.replace(tiny, typical=typical)
    policy = REFERENCE_POLICIES["typical-prior"]
    for task_id, said in itertools.product(("bill", "two", "loan"), [(), *itertools.combinations(CIRCUMSTANCES, 2)]):
        task = speaking_of(next(t for t in tiny.tasks if t.task_id == task_id), said)
        e = PhoneEpisode(world, task, Rules(slack=0))
        agent = policy(e, world, random.Random(0))
        agent.directory = {d.name: d.phone for d in tiny.companies["bank"].departments}
        agent.to_call = agent.call_order()
        assert agent.choose_fields() == e.needed(), (task_id, said)


def test_department_names_are_distinguishable_in_replies():
    longer = [(a, b) for a in DEPARTMENTS for b in DEPARTMENTS if a != b and a in b]
    assert longer == [("Technical Support", "Technical Support (Priority)")]


def test_the_same_episode_for_every_policy_and_every_time(world):
    some = world.split("validation", (2,))[0]
    first = play_scripted(world, some, "oracle")
    assert first.success
    assert play_scripted(world, some, "oracle").turns == first.turns
    behaviours = [
        {play_scripted(world, some, policy, seed=seed)._user.behaviour for policy in ("oracle", "random")}
        for seed in range(20)
    ]
    assert all(len(b) == 1 for b in behaviours)
    assert len(set.union(*behaviours)) > 1
