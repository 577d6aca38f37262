"""memory: what was heard of which calls, how it is found again, and who says nothing where nothing was heard."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import pytest
from calling import BILLING, CALL, FORM, REPLY, SALES, SEARCH, SERVICE, notes_of, playing, told

from lfo.config import WorldModelConfig
from lfo.couplings import Memory
from lfo.couplings.memory import Nearest
from lfo.envs.phone import PhoneEnvironment, phrasings
from lfo.envs.phone.knowledge import looked_up
from lfo.envs.phone.records import Company
from lfo.envs.phone.tools import form, phone_call
from lfo.protocols import Question
from lfo.text.base import load_tokenizer
from lfo.text.codec import Codec
from lfo.types import Example, Role, Turn

RECALLS = ("table", "backoff", "nearest", "vote")
DISPUTE, JOINT = "I want to dispute a charge.", "It is a joint account."
HERE, THERE = "bank", "river"  # two banks; their numbers end in 3 and 13 for Billing


@pytest.fixture(scope="module")
def banks(base_path, tiny) -> Codec:
    """The small world with a second bank, whose numbers have another digit in front."""
    bank = tiny.companies[HERE]
    departments = tuple(dataclasses.replace(d, phone=d.phone.replace("-000", "-001")) for d in bank.departments)
    river = Company(THERE, "River Trust", bank.industry, departments)
    rules = {
        (THERE, name): dataclasses.replace(rule, company_id=THERE)
        for (c, name), rule in tiny.rules.items()
        if c == HERE
    }
    world = dataclasses.replace(tiny, companies=tiny.companies | {THERE: river}, rules=tiny.rules | rules)
    return Codec(load_tokenizer(base_path), PhoneEnvironment(world))


@pytest.fixture
def memory(banks):
    """memory(recall): one that has heard nothing yet."""
    return lambda recall: Memory(WorldModelConfig(coupling="memory", recall=recall), banks)


def number(phone: str, company: str = HERE) -> str:
    return phone if company == HERE else phone.replace("-000", "-001")


def question(codec, request=DISPUTE, company=HERE, phone=BILLING, served: Sequence[str] = (), **auth_info) -> Question:
    """What would this company's department say to this request, after others have served the caller?"""
    past = [Turn(phone_call(number(p, company)), "", "success") for p in served]
    call = phone_call(number(phone, company), auth_info)
    return Question(request, (*looked_up(codec.env.world, company), *past), call)


def says(*fields: str, opening: str = "Billing. I need your") -> str:
    return json.dumps({"status": "auth_failed", "message": f"{opening} {' and '.join(fields)}."})


def example(codec, asked: Question, reply: str) -> Example:
    turns = [*asked.turns, Turn(asked.call, reply, json.loads(reply)["status"])]
    return codec.examples("t", asked.request, turns, "phone")[-1]


ZIP, CARD, MAIL = (says(field) for field in ("billing ZIP code", "last four digits of the card", "email address"))
ASKED = f"{DISPUTE} {JOINT}"  # what is asked below; what was heard is more and more unlike it
NARROW = [
    ({"request": f"Help! {DISPUTE} The account is in two names."}, ZIP),  # this company, these circumstances
    ({"request": ASKED, "company": THERE}, CARD),  # another bank, these circumstances
    ({"request": DISPUTE}, MAIL),  # this company, other circumstances
    ({"request": DISPUTE, "company": THERE}, REPLY),  # another bank, other circumstances
]


# --- the table -------------------------------------------------------------------------------


@pytest.mark.parametrize("known", range(4))
def test_the_narrowest_case_of_which_anything_was_heard_is_told(memory, banks, known):
    """Whatever was heard of wider cases, and however often."""
    table = memory("table")
    for asked, reply in NARROW[known:]:
        for opening in ("Please,", "Hello,")[: 1 if reply == NARROW[known][1] else 2]:
            heard = question(banks, **asked | {"request": f"{opening} {asked['request']}"})
            table.hear([example(banks, heard, reply)])
    assert told(table, question(banks, ASKED)) == NARROW[known][1]


@pytest.mark.parametrize(
    "other",
    [
        {"phone": SERVICE},  # another department
        {"served": [SERVICE]},  # who was served before asks later on the way
        {"company": "shop", "phone": "800-555-0009"},  # another industry
    ],
)
def test_what_was_heard_of_others_is_not_told(memory, banks, other):
    table = memory("table")
    table.hear([example(banks, question(banks, ASKED), ZIP)])
    assert told(table, question(banks, ASKED, **other)) is None and told(table, question(banks, ASKED)) == ZIP


def test_the_most_frequent_meaning_is_told_in_the_words_in_which_it_was_first_heard(memory, banks):
    other_words = says("billing ZIP code", opening="Billing, hi! Can you give me your")
    table, heard = memory("table"), [CARD, ZIP, MAIL, other_words]
    table.hear([example(banks, question(banks, f"{i}: {DISPUTE}"), reply) for i, reply in enumerate(heard)])
    assert told(table, question(banks)) == ZIP


def test_of_equally_frequent_meanings_the_first_is_told(memory, banks):
    table = memory("table")
    table.hear([example(banks, question(banks), reply) for reply in (CARD, ZIP)])
    assert told(table, question(banks)) == CARD


def test_of_a_later_call_the_table_says_nothing_unless_it_backs_off_to_the_first(memory, banks):
    """What was heard of the very case is said first; another department is another case."""
    later = question(banks, served=[SERVICE])
    for recall, said in (("table", None), ("backoff", ZIP)):
        table = memory(recall)
        table.hear([example(banks, question(banks), ZIP)])
        assert told(table, question(banks)) == ZIP and told(table, later) == said
        assert told(table, question(banks, phone=SALES, served=[SERVICE])) is None
        table.hear([example(banks, later, CARD)])
        assert told(table, later) == CARD and told(table, question(banks)) == ZIP


# --- what counts as heard --------------------------------------------------------------------


@pytest.mark.parametrize("recall", RECALLS)
def test_nothing_is_told_before_anything_was_heard(memory, banks, recall):
    assert told(memory(recall), question(banks)) is None


@pytest.mark.parametrize("recall", RECALLS)
def test_calls_that_hand_something_over_are_not_remembered(memory, banks, recall):
    """Who hands over the account number is not asked for it any more."""
    remembering = memory(recall)
    remembering.hear([example(banks, question(banks, account_number="123456"), ZIP)])
    assert told(remembering, question(banks)) is None
    remembering.hear([example(banks, question(banks), REPLY)])
    assert told(remembering, question(banks)) == REPLY


@pytest.mark.parametrize("recall", [*RECALLS, "additive", "grammar"])
def test_what_holds_for_one_caller_alone_is_not_remembered(memory, banks, recall):
    """Who lacks the account number is asked for something else, who called another company's number is sent away."""
    remembering, asked = memory(recall), question(banks)
    answered = ('{"unavailable": ["account_number"]}', '{"account_number": "123456", "unavailable": []}')
    forms = [Turn(form(["account_number"]), said, "ok") for said in answered]
    lacks, gave = (dataclasses.replace(asked, turns=(*asked.turns, turn)) for turn in forms)
    nobody = json.dumps({"status": "wrong_department", "message": phrasings.UNKNOWN_NUMBER})
    remembering.hear([example(banks, lacks, MAIL), example(banks, question(banks, company=THERE), nobody)])
    assert told(remembering, asked) is None
    assert told(remembering, question(banks, company=THERE)) is None
    remembering.hear([example(banks, gave, MAIL)])
    assert phrasings.meaning(told(remembering, asked)) == phrasings.meaning(MAIL)


@pytest.mark.parametrize("recall", RECALLS)
def test_what_is_heard_again_counts_once(memory, banks, recall):
    """The rollouts of a group often make the very same call, and what was heard before is told again after a resume."""
    remembering = memory(recall)
    card = example(banks, question(banks), CARD)
    others = [example(banks, question(banks, f"{DISPUTE} {word}"), ZIP) for word in ("Now.", "Soon.")]
    remembering.hear([card, *others, card, card])
    remembering.hear([card])
    assert told(remembering, question(banks, f"{DISPUTE} Now.")) == ZIP


@pytest.mark.parametrize("recall", RECALLS)
def test_heard_at_once_or_bit_by_bit_is_the_same(memory, banks, recall):
    """What is told in between changes nothing, which a run that was resumed did not tell."""
    requests = [f"{DISPUTE} {more}" for more in ("", "Now.", "It is urgent.", JOINT, f"Now. {JOINT}")]
    heard = [
        example(banks, question(banks, r), reply)
        for r, reply in zip(requests, (ZIP, CARD, MAIL, ZIP, MAIL), strict=True)
    ]
    whole, bits = memory(recall), memory(recall)
    whole.hear(heard)
    for one in heard:
        told(bits, question(banks, requests[0]))
        bits.hear([one])
    assert [told(whole, question(banks, r)) for r in requests] == [told(bits, question(banks, r)) for r in requests]


@pytest.mark.parametrize("recall", RECALLS)
def test_answers_of_the_other_tools_are_not_remembered(memory, banks, recall):
    """A run may learn them, too (`world_model.predict`)."""
    directory = looked_up(banks.env.world, HERE)
    turns = [
        *directory,
        Turn(form(["email"]), '{"email": "x", "unavailable": []}', "ok"),
        Turn(phone_call(BILLING), ZIP, "auth_failed"),
    ]
    remembering = memory(recall)
    remembering.hear(banks.examples("t", DISPUTE, turns, "all"))
    assert told(remembering, question(banks)) == ZIP


# --- the nearest -----------------------------------------------------------------------------


REQUESTS = {  # what was heard of Billing at Harbor Bank, by the reply
    "The charge on my card is wrong, I want to dispute a charge.": CARD,
    "The charge on my card is double, I want to dispute a charge.": ZIP,
    "The charge on my bill is double, I want to dispute a charge.": ZIP,
    "Mail me, please explain my last bill.": MAIL,
}


@pytest.mark.parametrize(
    ("recall", "wish", "reply"),
    [
        ("nearest", "The charge on my card is wrong, I want to dispute a charge.", CARD),  # the very words
        ("nearest", "The charge on my card is quite wrong, I want to dispute a charge.", CARD),
        ("nearest", "Please explain my last bill.", MAIL),
        ("vote", "The charge on my card is quite wrong, I want to dispute a charge.", ZIP),  # the next two agree
        ("vote", "Mail me, please explain my last bill.", ZIP),  # and here they do against the nearest
    ],
)
def test_the_nearest_request_is_told_or_what_most_of_three_mean(memory, banks, recall, wish, reply):
    remembering = memory(recall)
    remembering.hear([example(banks, question(banks, said), heard) for said, heard in REQUESTS.items()])
    assert told(remembering, question(banks, wish)) == reply


def test_whom_one_calls_and_who_served_before_tell_calls_apart(memory, banks):
    """The same request; the department is a word, and so is everybody who has served the caller."""
    nearest, sent = memory("nearest"), json.dumps({"status": "routing_violation", "message": "Billing. Sales first."})
    replies = {(BILLING, ()): ZIP, (SERVICE, ()): CARD, (BILLING, (SALES,)): MAIL, (BILLING, (SERVICE,)): sent}
    nearest.hear([example(banks, question(banks, phone=p, served=served), r) for (p, served), r in replies.items()])
    for (phone, served), reply in replies.items():
        assert told(nearest, question(banks, phone=phone, served=served)) == reply


def test_what_was_heard_since_is_found(memory, banks):
    nearest = memory("nearest")
    nearest.hear([example(banks, question(banks, "I want to dispute a charge."), ZIP)])
    assert told(nearest, question(banks, "Please explain my last bill.")) == ZIP
    nearest.hear([example(banks, question(banks, "Please explain my last bill, soon."), MAIL)])
    assert told(nearest, question(banks, "Please explain my last bill.")) == MAIL


def test_similar_calls_are_those_to_such_a_department_first(memory, banks):
    """Whatever had happened before, and however like the request is; none of the task that is named."""
    of = {
        "other": (question(banks, ASKED, phone=SERVICE), CARD),  # the very words
        "there": (question(banks, DISPUTE, THERE), ZIP),
        "here": (question(banks, f"Help! {DISPUTE}", served=[SALES]), MAIL),
    }
    heard = [dataclasses.replace(example(banks, *answered), task_id=name) for name, answered in of.items()]
    wish = question(banks, ASKED)
    nearest = Nearest(banks.env.knowledge, 2)
    assert nearest.similar(wish) == [] and nearest.answer(wish) is None
    nearest.hear(heard)
    assert {one.task_id for one in nearest.similar(wish)} == {"there", "here"}
    assert [one.task_id for one in nearest.similar(wish, but="here")] == ["there", "other"]


def test_most_of_the_three_nearest_are_of_such_a_department(banks, memory):
    """What most calls were answered elsewhere, in the very words, counts for less; `nothing` stays nothing."""
    vote = memory("vote")
    here = [example(banks, question(banks, f"Help! {DISPUTE}", THERE, served=who), ZIP) for who in ((), [SALES])]
    here.append(example(banks, question(banks, f"Please! {DISPUTE}", THERE), MAIL))
    there = [example(banks, question(banks, f"{ASKED} {word}", phone=SERVICE), CARD) for word in ("A", "B", "C")]
    assert told(vote, question(banks, ASKED)) is None
    vote.hear([*there, *here])
    assert told(vote, question(banks, ASKED)) == ZIP
    vote.hear([example(banks, question(banks, f"{ASKED} {word}", THERE), CARD) for word in ("A", "B")])
    assert told(vote, question(banks, ASKED)) == CARD, "what was heard since is found"


@pytest.mark.parametrize("recall", ["backoff", "additive", "grammar"])
def test_whoever_makes_something_of_calls_can_be_given_similar_ones_alone(banks, memory, recall):
    """At this company most calls were answered by CARD, of which the most similar one is told that it is ZIP."""
    few = Memory(WorldModelConfig(coupling="memory", recall=recall, reads=1), banks)
    other = [example(banks, question(banks, f"Hello {word}, {DISPUTE}"), CARD) for word in ("A", "B", "C", "D")]
    for remembering in (few, everything := memory(recall)):
        remembering.hear([*other, example(banks, question(banks), ZIP)])
    meaning = banks.env.knowledge.meaning
    assert meaning(told(few, question(banks))) == meaning(ZIP)
    assert meaning(told(everything, question(banks))) == meaning(CARD)


@pytest.mark.parametrize("reads", [0, 8])
def test_the_nearest_call_is_one_to_such_a_department(banks, reads):
    """However like another's is; of all calls it is the same one as of those that are read."""
    near = Memory(WorldModelConfig(coupling="memory", recall="nearest", reads=reads), banks)
    near.hear([example(banks, question(banks, ASKED, phone=SERVICE), CARD)])
    assert told(near, question(banks, ASKED)) == CARD, "nothing else was heard"
    near.hear([example(banks, question(banks, DISPUTE, THERE), ZIP)])
    assert told(near, question(banks, ASKED)) == ZIP


# --- in an episode ---------------------------------------------------------------------------


@pytest.mark.parametrize("recall", RECALLS)
def test_an_episode_of_which_nothing_was_heard_goes_on_without_a_note(memory, banks, scripted, attempt, recall):
    (row,), engine = scripted(memory(recall), playing(SEARCH, FORM, CALL, ""), [attempt("bill")], banks)
    assert Role.NOTE not in row.roles
    assert [t.tool for t in row.turns] == ["search_company", "auth_info_form", "make_phone_call", ""]
    assert [p.session for p in engine.prompts] == [0, None, 0, 0, 0]  # once the policy was asked what it means


@pytest.mark.parametrize("recall", RECALLS)
def test_what_was_heard_in_one_episode_is_noted_in_the_next(memory, banks, scripted, attempt, recall):
    """A scout asks, the loop tells, and who comes later reads it in the very words."""
    remembering = memory(recall)
    (scout,), _ = scripted(remembering, playing(SEARCH), [attempt("bill", scout=True)], banks)
    (heard,) = scout.examples
    answer = playing(SEARCH, FORM, CALL, "")
    (before,), _ = scripted(remembering, answer, [attempt("bill")], banks)
    remembering.hear(scout.examples)
    (row,), engine = scripted(remembering, answer, [attempt("bill")], banks)
    assert Role.NOTE not in before.roles and notes_of(row, banks) == [f"memory: {heard.reply}"]
    assert {p.adapter for p in engine.prompts} == {"policy"}


@pytest.mark.parametrize("recall", ["linear", "boosted", "additive"])
def test_what_the_environment_makes_of_it_is_asked_and_told_alike(banks, monkeypatch, recall):
    """A classifier hears and answers in the place of the memory; which, is the environment's affair."""

    class Always:
        def __init__(self, kind):
            self.kind, self.heard = kind, []

        def hear(self, examples):
            self.heard += examples

        def answer(self, asked):
            return f"{self.kind}: {len(self.heard)}" if self.heard else None

    monkeypatch.setattr(type(banks.env.knowledge), "classifier", lambda self, kind: Always(kind))
    remembering = Memory(WorldModelConfig(coupling="memory", recall=recall), banks)
    assert told(remembering, question(banks)) is None
    remembering.hear([example(banks, question(banks), ZIP)])
    assert told(remembering, question(banks)) == f"{recall}: 1"
