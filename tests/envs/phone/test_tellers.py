"""classifier, grammar: what can be made of what was heard by those who are told what a field or a rule is."""

from __future__ import annotations

import dataclasses
import json

import pytest

from lfo.config import EnvConfig
from lfo.envs import make_environment
from lfo.envs.phone import PhoneEnvironment, Rules
from lfo.envs.phone.knowledge import looked_up
from lfo.envs.phone.phrasings import read_reply
from lfo.envs.phone.tools import phone_call
from lfo.lab.dials import as_example, heard_calls, right
from lfo.types import Encoded, Example, Question, Turn

KINDS = ("linear", "boosted", "additive")
SAID = {"joint_account": "It is a joint account.", "abroad": "I am calling from abroad."}
SAID |= {"business_account": "It is a business account.", "large_amount": "A large sum is at stake."}
BILLING, SERVICE, LOANS = "800-555-0003", "800-555-0001", "800-555-0004"
GOALS = {BILLING: "dispute a charge", SERVICE: "close my account", LOANS: "defer a loan payment"}


@pytest.fixture(scope="module")
def knowledge(tiny):
    return PhoneEnvironment(tiny, Rules(replies="reasons")).knowledge


def asked(tiny, phone: str, *circumstances: str, served: str = "") -> Question:
    request = " ".join([f"Please call Harbor Bank for me: {GOALS[phone]}.", *(SAID[name] for name in circumstances)])
    past = (Turn(phone_call(served), "", "success"),) if served else ()
    return Question(request, (*looked_up(tiny, "bank"), *past), phone_call(phone))


def heard(knowledge, *questions: Question) -> list[Example]:
    """What would really be answered to each of them."""
    return [told(question, knowledge.truth(question)) for question in questions]


def told(question: Question, reply: str) -> Example:
    status = json.loads(reply)["status"]
    return Example("t", question.call, reply, status, Encoded((), ()), question.request, question.turns)


def often(calls: list[Example]) -> list[Example]:
    """Each forty times, in slightly other words: trees split where enough examples speak for it."""
    return [dataclasses.replace(c, task_id=str(n), request=c.request + " Now." * n) for n in range(40) for c in calls]


def fields(teller, question: Question) -> set[str]:
    return set(read_reply(teller.answer(question))[1])


# --- who is told how everything is said ------------------------------------------------------


def test_what_was_heard_is_taken_apart_and_put_together_anew(tiny, knowledge):
    """Two calls, each with one circumstance; both circumstances at a third department were never heard."""
    teller = knowledge.classifier("grammar")
    teller.hear(heard(knowledge, asked(tiny, BILLING, "joint_account"), asked(tiny, LOANS)))
    assert fields(teller, asked(tiny, BILLING)) == {"account_number", "billing_zip"}
    assert fields(teller, asked(tiny, LOANS, "joint_account")) == {"name", "date_of_birth", "phone_number"}


def test_what_is_demanded_anyway_is_taken_apart_as_well(tiny, knowledge):
    """A large sum demands the SSN, which Customer Service always wants: one call says both."""
    teller = knowledge.classifier("grammar")
    teller.hear(heard(knowledge, asked(tiny, SERVICE, "large_amount"), asked(tiny, LOANS)))
    assert fields(teller, asked(tiny, LOANS, "large_amount")) == {"name", "date_of_birth", "last_4_ssn"}
    assert fields(teller, asked(tiny, SERVICE)) == {"account_number", "last_4_ssn"}


def test_a_circumstance_that_demands_nothing_more_is_not_mistaken(tiny, knowledge):
    """A call from abroad leads to Billing, which asks for nothing because of it; the joint account has a field."""
    teller = knowledge.classifier("grammar")
    teller.hear(heard(knowledge, asked(tiny, BILLING, "joint_account", "large_amount", "abroad")))
    assert fields(teller, asked(tiny, BILLING)) == {"account_number", "billing_zip"}
    assert fields(teller, asked(tiny, BILLING, "abroad")) == {"account_number", "billing_zip"}
    assert fields(teller, asked(tiny, BILLING, "joint_account")) == {"account_number", "billing_zip", "phone_number"}
    assert fields(teller, asked(tiny, BILLING, "large_amount")) == {"account_number", "billing_zip", "last_4_ssn"}


def test_a_mere_list_says_nothing_of_circumstances(tiny):
    listed = PhoneEnvironment(tiny, Rules(replies="list")).knowledge
    teller = listed.classifier("grammar")
    teller.hear(heard(listed, asked(tiny, BILLING, "joint_account")))
    assert fields(teller, asked(tiny, BILLING)) == {"account_number", "billing_zip", "phone_number"}


def test_circumstances_that_change_the_way(tiny, knowledge):
    teller = knowledge.classifier("grammar")
    questions = [asked(tiny, LOANS, "abroad"), asked(tiny, BILLING), asked(tiny, LOANS, "business_account")]
    teller.hear(heard(knowledge, *questions, asked(tiny, SERVICE), asked(tiny, LOANS)))
    for question in questions:
        assert read_reply(teller.answer(question)) == read_reply(knowledge.truth(question))
    assert read_reply(teller.answer(asked(tiny, BILLING, "business_account")))[2] == {"Customer Service"}
    later = asked(tiny, LOANS, "abroad", served=BILLING)
    assert fields(teller, later) == {"name", "date_of_birth"}


def test_most_of_what_is_usual_is_known_after_a_few_hundred_calls(env):
    """In world 0: far more than the table, and more the more was heard."""
    right = {}
    for recall in ("grammar", "additive"):
        for count in (40, 320):
            teller = env.knowledge.classifier(recall)
            teller.hear(heard_calls(env, count))
            steps = env.knowledge.steps("validation")
            means = env.knowledge.meaning
            right[recall, count] = sum(means(teller.answer(s.question)) == means(s.truth) for s in steps) / len(steps)
    assert right["grammar", 320] > 0.7 and right["grammar", 320] > right["grammar", 40] + 0.1
    assert right["grammar", 320] > right["additive", 320] > right["additive", 40]


# --- classifiers -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier_adds_up_what_it_has_heard(tiny, knowledge, kind):
    teller = knowledge.classifier(kind)
    questions = [asked(tiny, phone, *told) for phone in GOALS for told in ((), ("joint_account",))]
    calls = heard(knowledge, *questions)
    teller.hear(often(calls))
    for question in questions:
        assert read_reply(teller.answer(question))[1] == read_reply(knowledge.truth(question))[1]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_handed_over_teaches_nothing_about_itself(tiny, knowledge, kind):
    """Whoever hands over the account number is not asked for it: that does not say that it is not demanded."""
    question, teller = asked(tiny, BILLING), knowledge.classifier(kind)
    given = dataclasses.replace(question, call=phone_call(BILLING, {"account_number": "1"}))
    partly = '{"status": "auth_failed", "message": "Billing. I need your billing ZIP code."}'
    other = '{"status": "auth_failed", "message": "Billing. I need your email address."}'
    calls = [*heard(knowledge, question), told(given, partly), told(given, other)]

    teller.hear(often(calls))
    assert fields(teller, question) == {"account_number", "billing_zip"}


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_learned_from_empty_hands_and_referrals_from_all(tiny, knowledge, kind):
    """Where somebody was sent counts whatever he handed over; without an empty-handed call no field is known."""
    question, teller = asked(tiny, BILLING), knowledge.classifier(kind)
    given = dataclasses.replace(question, call=phone_call(BILLING, {"account_number": "1"}))
    elsewhere = dataclasses.replace(asked(tiny, LOANS), call=phone_call(LOANS, {"account_number": "1"}))
    calls = [
        told(given, '{"status": "auth_failed", "message": "Billing. I need your billing ZIP code."}'),
        told(elsewhere, knowledge.truth(asked(tiny, LOANS, "abroad"))),
    ]
    teller.hear(often(calls))
    assert teller.answer(question) is None
    assert read_reply(teller.answer(asked(tiny, LOANS)))[0] == "routing_violation"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_demanded_does_not_hang_on_who_has_served(tiny, knowledge, kind):
    """What was heard of calls after that counts for calls before it, and the other way round."""
    teller, before = knowledge.classifier(kind), asked(tiny, BILLING)
    after = asked(tiny, BILLING, served=SERVICE)
    free = told(after, '{"status": "success", "message": "Done. Thank you for calling Billing."}')
    teller.hear(often([*heard(knowledge, before), free]))
    assert fields(teller, after) == fields(teller, before)


@pytest.mark.parametrize("kind", KINDS)
def test_whom_to_call_first_is_learned(tiny, knowledge, kind):
    teller = knowledge.classifier(kind)
    calls = heard(knowledge, asked(tiny, LOANS, "abroad"), asked(tiny, LOANS), asked(tiny, BILLING))
    teller.hear(often(calls))
    assert read_reply(teller.answer(asked(tiny, LOANS, "abroad"))) == ("routing_violation", frozenset(), {"Billing"})
    assert read_reply(teller.answer(asked(tiny, LOANS)))[0] == "auth_failed"


@pytest.mark.parametrize("kind", [*KINDS, "grammar"])
def test_nothing_heard_nothing_said(tiny, knowledge, kind):
    teller = knowledge.classifier(kind)
    assert teller.answer(asked(tiny, BILLING)) is None
    teller.hear(heard(knowledge, asked(tiny, BILLING)))
    nowhere = dataclasses.replace(asked(tiny, BILLING), call=phone_call("800-555-9999"))
    assert teller.answer(nowhere) is None
    assert teller.answer(asked(tiny, BILLING)) == teller.answer(asked(tiny, BILLING))


def test_heard_calls_are_empty_handed_and_true(env):
    calls = heard_calls(env, 30, seed=3)
    assert len(calls) == 30 and calls == heard_calls(env, 30, seed=3) != heard_calls(env, 30, seed=4)
    assert all(call.reply == env.knowledge.truth(call.question) for call in calls)
    step = env.knowledge.steps("train")[0]
    assert as_example(step).question == step.question


def test_trees_do_not_forget_what_they_heard():
    """Without a penalty on small leaves they diverge, and of these calls know where only 75% lead."""
    env = make_environment(EnvConfig(world_seed=100))
    teller, calls = env.knowledge.classifier("boosted"), heard_calls(env, 600, seed=100)
    teller.hear(calls)
    right = [read_reply(teller.answer(call.question))[0] == read_reply(call.reply)[0] for call in calls[::4]]
    assert sum(right) > 0.95 * len(right)


def test_what_departments_of_a_trade_demand_is_believed_at_new_companies():
    """Were that penalised like what is so at one company, fewer than half of these replies would be known."""
    env = make_environment(EnvConfig(world_seed=110))
    teller = env.knowledge.classifier("additive")
    teller.hear(heard_calls(env, 320, seed=110))
    assert right(env, teller.answer, "test")["right"] > 0.54
