"""What an attempt at the phone tells the next one: by hand, nothing hidden, nothing personal, and short."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from lfo.envs.base import parse_action, written
from lfo.envs.phone.callers import Oracle, RandomForm, run_scripted
from lfo.envs.phone.episode import PhoneEpisode, Rules
from lfo.envs.phone.knowledge import KINDS, PhoneKnowledge
from lfo.envs.phone.phrasings import NOTHING_MORE, in_short
from lfo.envs.phone.tools import TOOLS, form, phone_call, search
from lfo.envs.phone.vocabulary import FIELDS
from lfo.types import Feedback, Hangup, Turn

BILLING = "800-555-0003"


@pytest.fixture
def known(tiny) -> PhoneKnowledge:
    return PhoneKnowledge(tiny)


def answered(status: str, message: str, **given: str) -> Turn:
    return Turn(phone_call(BILLING, given), json.dumps({"status": status, "message": message}), status)


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (
            answered("auth_failed", "Billing. I need your email address.", name="Ana"),
            Feedback("missing_auth", BILLING, "Gave full name. Billing. I need your email address.", 0.0),
        ),
        (
            answered("auth_failed", "Billing. Mismatch: your email.", name="Ana", email="a@b"),
            Feedback("wrong_value", BILLING, "Gave full name and email address. Billing. Mismatch: your email.", 0.0),
        ),
        (
            answered("routing_violation", "Billing. Call Sales first."),
            Feedback("wrong_order", BILLING, "Gave nothing. Billing. Call Sales first.", 0.0),
        ),
        (
            answered("wrong_department", "Billing. Not here. Call Sales."),
            Feedback("wrong_department", BILLING, "Gave nothing. Billing. Not here. Call Sales.", 0.0),
        ),
        (answered("success", "Billing. Done."), Feedback("served", BILLING, "Gave nothing. Billing. Done.", 1.0)),
        (
            Turn(form(["name", "email"]), '{"declined": "The user declines."}', "declined"),
            Feedback(
                "declined_form", "auth_info_form", "The form asked for name and email and was declined: too much.", 0.0
            ),
        ),
        (
            Turn(parse_action("make_phone_call<|args|>{", TOOLS), '{"error": "x"}', "error"),
            Feedback("malformed_call", "", "A call could not be read. The arguments are not valid JSON.", 0.0),
        ),
        # What an agent makes up may be anything, and what cannot be read says nothing.
        (
            answered("wrong_department", "Not in service.", **{"Ana Lopez": "123456"}),
            Feedback("wrong_department", BILLING, "Gave nothing. Not in service.", 0.0),
        ),
        (Turn(phone_call(BILLING), "?", "auth_failed"), None),
        (Turn(form(["email"]), '{"email": "a@b", "unavailable": []}', "ok"), None),
        (Turn(search("Harbor Bank"), "{}", "ok"), None),
        (Turn(Hangup(), "", "stopped"), None),
    ],
)
def test_feedback_by_hand(known, turn, expected):
    assert known.feedback([turn]) == ([expected] if expected else [])


def test_reasons_are_left_out_and_what_they_demand_is_not():
    said = "Billing, hi! Can you give me the following: as it is a joint account, your email address; because a firm"
    said += f" holds it, {NOTHING_MORE}; and in any case your full name and email address?"
    assert in_short(said) == "Billing, hi! Can you give me your full name and email address?"
    assert in_short("Billing. Done.") == "Billing. Done."
    alternative = "Billing. No email address: give me your date of birth."
    assert in_short(alternative) == alternative


def attempts(world, slack: int):
    """Episodes of somebody who knows and of somebody who does not, over all tasks."""
    for i, task in enumerate(world.tasks[::7]):
        episode = PhoneEpisode(world, task, Rules(slack=slack), i)
        run_scripted(episode, (Oracle, RandomForm)[i % 2](episode, world, random.Random(i)))
        yield episode


@pytest.mark.parametrize("slack", [1, 9])
def test_feedback_carries_no_value_and_is_short(world, codec, slack):
    known, kinds, values = PhoneKnowledge(world), set(), 0
    for episode in attempts(world, slack):
        mine = {*episode.collected.values(), *episode._user.truth.values()}
        for one in known.feedback(episode.turns):
            assert not [value for value in mine if value in one.text]
            assert len(codec.encode(one.text)) < 100
            kinds.add(one.kind)
        read = json.dumps([[written(turn.action), turn.observation] for turn in known.impersonal(episode.turns)])
        assert not [value for value in mine if value in read]
        values += len(episode.collected)
    assert values > 50 and kinds >= {"missing_auth", "served"}


def test_all_that_was_given_and_missing_can_be_more_than_a_user_shares(tiny, known):
    """Two attempts, each with one field too many, as many as may be; who asks for whatever they name is declined."""
    task = next(task for task in tiny.tasks if task.task_id == "bill")
    named: set[str] = set()
    for extra in ("email", "name"):
        episode = PhoneEpisode(tiny, task, Rules(slack=1), 0)
        episode.step(form(["account_number", extra]))
        episode.step(phone_call(BILLING, episode.collected))
        (told,) = known.feedback(episode.turns)
        assert told.kind == "missing_auth" and "billing ZIP code" in told.text
        named |= {*episode.collected, "billing_zip"}
    again = PhoneEpisode(tiny, task, Rules(slack=1), 0)
    again.step(form(sorted(named)))
    (told,) = known.feedback(again.turns)
    assert told.kind == "declined_form" and told.text.endswith("was declined: too much.")


def test_what_nobody_has_is_left_out_of_what_a_model_reads(known):
    turns = [
        Turn(phone_call("444-555-6666", {"Ana Lopez": "x", "email": "ana77@example.com"}), "{}", "wrong_department"),
        Turn(parse_action("Ana Lopez", TOOLS), "?", "error"),
        answered("success", "Billing. Done.", email="ana77@example.com"),
    ]
    searches = [Turn(search(name), "{}", "ok") for name in ("Harbor Bank", "123456")]
    assert [turn.action for turn in known.impersonal(searches)] == [search("Harbor Bank"), search("")]
    first, last = known.impersonal(turns)
    assert first.action == phone_call("", {"email": "@email"})
    assert last.action == phone_call(BILLING, {"email": "@email"})


def test_the_same_words_give_the_same_feedback_whatever_the_rules_are(tiny):
    """Two worlds that agree in nothing that is hidden; turns in which everything that can be said is said."""
    rules = {
        k: dataclasses.replace(r, required=("email",), after="", alternative="name") for k, r in tiny.rules.items()
    }
    one, two = PhoneKnowledge(tiny), PhoneKnowledge(dataclasses.replace(tiny, rules=rules, effects={}))
    turns = [answered(status, "Billing. I need your email address.", name="x") for status in KINDS]
    turns += [Turn(form(list(FIELDS)), '{"declined": "no"}', "declined")]
    turns += [Turn(parse_action("x", TOOLS), "?", "error")]
    assert one.feedback(turns) == two.feedback(turns) and len(one.feedback(turns)) == len(turns)
    assert one.impersonal(turns) == two.impersonal(turns)


def test_a_disguise_is_the_same_in_every_turn(tiny, known):
    """Name and numbers of the company are others, each everywhere the same one; what is no company's own stays."""
    shop = dataclasses.replace(tiny, tasks=(*tiny.tasks, dataclasses.replace(tiny.tasks[0], company_id="shop")))
    change = PhoneKnowledge(shop).disguise("loan", random.Random(3))
    text = f"Harbor Bank, Harbor, {BILLING}, then {BILLING} and 444-555-6666, Ana Lopez"
    new = change(text)
    assert new.count(change(BILLING)) == 2 and change(BILLING) != BILLING
    assert change(BILLING)[:8] == BILLING[:8] and "444-555-6666, Ana Lopez" in new and "Bank" in new
    assert change("Harbor") in ("Harbor", "Summit") and new.startswith(change("Harbor"))
    assert change(text) == new
