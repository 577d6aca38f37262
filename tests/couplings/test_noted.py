"""Notes along the policy's way, the one slot that all who say them fill, and what `truth` says."""

from __future__ import annotations

import dataclasses
import json

import pytest
from calling import BILLING, CALL, FORM, FRAUD, LOANS, REPLY, SALES, SEARCH, SERVICE, asked_for, notes_of, playing, told
from scripted import Scripted

from lfo.config import WorldModelConfig
from lfo.couplings import Imagine, Memory, Noted, Plain, Truth
from lfo.couplings.plain import ALONE, BOTH, NOTES
from lfo.envs.base import written
from lfo.envs.phone import PhoneEnvironment, Rules
from lfo.envs.phone.callers import Oracle
from lfo.envs.phone.knowledge import looked_up
from lfo.envs.phone.phrasings import meaning, read_reply
from lfo.envs.phone.tools import PHONE, phone_call
from lfo.envs.phone.vocabulary import CIRCUMSTANCES
from lfo.lab.told import told_as_in
from lfo.protocols import Question
from lfo.text.base import load_tokenizer
from lfo.text.codec import Codec
from lfo.types import Role, Turn


def said(status: str, message: str) -> str:
    return json.dumps({"status": status, "message": message})


SERVED = {number: said("success", "Somebody. Done.") for number in (SERVICE, FRAUD, BILLING, LOANS, SALES)}
# What the small world would really answer somebody who reports a fraud, in the simplest words.
WAY = {
    FRAUD: said("routing_violation", "Fraud Department. Call Customer Service first."),
    SERVICE: said("auth_failed", "Customer Service. I need your account number and last four digits of the SSN."),
}


def asked_of(engine: Scripted, codec: Codec) -> list[str]:
    """What the world model read, in order."""
    return [codec.decode(p.tokens) for p in engine.prompts if p.adapter == "world_model"]


def intentions(engine: Scripted) -> int:
    """How often the policy was asked what it means to do."""
    return sum(p.adapter == "policy" and p.session is None for p in engine.prompts)


# --- the way ---------------------------------------------------------------------------------


def test_notes_follow_the_policys_way(scripted, imagine, bank, attempt):
    """Fraud sends to Customer Service, which wants fields; whoever has them is served there and asks Fraud again."""
    answer = playing(SEARCH, "", means=[FRAUD, SERVICE, FRAUD, FRAUD], reply=WAY)
    (row,), engine = scripted(imagine, answer, [attempt("fraud")])
    assert notes_of(row, bank) == [f"world model: {WAY[number]}" for number in (FRAUD, SERVICE, FRAUD)]
    request, directory = attempt("fraud").task.request, tuple(row.turns[:1])
    done = '{"status": "success", "message": "Customer Service. Done."}'
    served = (*directory, Turn(phone_call(SERVICE), done, "success"))
    ways = [(directory, FRAUD), (directory, SERVICE), (served, FRAUD)]
    assert asked_of(engine, bank) == [
        bank.decode(bank.question(Question(request, turns, phone_call(number)))) for turns, number in ways
    ]
    assert intentions(engine) == 4  # the last time it repeats itself
    assert [turn.tool for turn in row.turns] == ["search_company", ""]  # nothing of all that has happened


def test_each_intention_is_asked_after_the_notes_so_far(scripted, imagine, bank, attempt):
    answer = playing(SEARCH, "", means=[FRAUD, SERVICE, "nobody"], reply=WAY)
    (row,), engine = scripted(imagine, answer, [attempt("fraud")])
    texts = [bank.decode(p.tokens) for p in engine.prompts if p.session is None and p.adapter == "policy"]
    first, second = (f"<|note|>{note}<|/note|>" for note in notes_of(row, bank))
    begun = '<|tool|>make_phone_call<|args|>{"phone_number": "'
    until = f"<|task|>{attempt('fraud').task.request}<|/task|><|tool|>{SEARCH}<|end|>"
    until += f"<|obs|>{row.turns[0].observation}<|/obs|>"
    served = f"<|tool|>{written(phone_call(SERVICE))}<|end|>"
    served += (
        '<|obs|>{"status": "success", "message": "Customer Service. Done."}<|/obs|>'  # it only asked for something
    )
    assert texts == [until + begun, until + first + begun, until + first + second + served + begun]


@pytest.mark.parametrize(
    ("means", "count"),
    [
        ([FRAUD, FRAUD], 1),  # the same call on the same turns
        ([FRAUD, SERVICE, SERVICE], 2),  # whom it has been served by
        ([FRAUD, "800-555-9999"], 1),  # whom nobody has listed
        ([FRAUD, "I do not know"], 1),
        (["I do not know"], 0),
    ],
)
def test_there_are_notes_until_no_call_is_new(scripted, imagine, bank, attempt, means, count):
    (row,), engine = scripted(imagine, playing(SEARCH, "", means=means, reply=WAY), [attempt("fraud")])
    assert len(notes_of(row, bank)) == count and intentions(engine) == count + 1


def test_there_are_at_most_so_many_notes(scripted, imagine, bank, attempt):
    """Fraud is asked again whenever somebody else has served: each time that is a new question."""
    replies = SERVED | {FRAUD: WAY[FRAUD]}
    means = [FRAUD, SERVICE, FRAUD, BILLING, FRAUD, LOANS, FRAUD, SALES]
    (row,), engine = scripted(imagine, playing(SEARCH, "", means=means, reply=replies), [attempt("fraud")])
    assert len(notes_of(row, bank)) == intentions(engine) == NOTES == 6
    assert [asked_for(text) for text in asked_of(engine, bank)] == means[:NOTES]


def test_fewer_notes_may_be_told(scripted, imagine, bank, attempt, monkeypatch):
    monkeypatch.setattr(imagine, "most_notes", 1)
    replies = SERVED | {FRAUD: WAY[FRAUD]}
    (row,), engine = scripted(imagine, playing(SEARCH, "", means=[FRAUD, SERVICE], reply=replies), [attempt("fraud")])
    assert len(notes_of(row, bank)) == intentions(engine) == 1


class Forgetful(Noted):
    """Has a note to the first so many questions."""

    source = "somebody"

    def __init__(self, codec: Codec, count: int):
        super().__init__(ALONE, codec)
        self.asked: list[Question] = []
        self.count = count

    def answer(self, question: Question):
        yield from ()
        self.asked.append(question)
        return self.codec.reply(SERVED[BILLING]) if len(self.asked) <= self.count else None


@pytest.mark.parametrize("count", [0, 1, 2])
def test_there_are_no_more_notes_after_a_question_without_an_answer(scripted, bank, attempt, count):
    """The policy goes on, and is not asked again."""
    coupling = Forgetful(bank, count)
    (row,), engine = scripted(coupling, playing(SEARCH, SEARCH, "", means=[BILLING, LOANS, SALES]), [attempt("bill")])
    assert notes_of(row, bank) == [f"somebody: {SERVED[BILLING]}"] * count
    assert len(coupling.asked) == intentions(engine) == count + 1
    assert [turn.tool for turn in row.turns] == ["search_company", "search_company", ""]


def test_who_answers_gets_the_turns_that_are_supposed(scripted, bank, attempt):
    coupling = Forgetful(bank, 2)
    (row,), _ = scripted(coupling, playing(SEARCH, "", means=[BILLING, LOANS, SALES]), [attempt("bill")])
    request, past = attempt("bill").task.request, tuple(row.turns[:1])
    expected = []
    for number in (BILLING, LOANS, SALES):
        expected.append(Question(request, past, phone_call(number)))
        past = bank.env.knowledge.supposed(past, phone_call(number), SERVED[number])
    assert coupling.asked == expected


# --- scouts ----------------------------------------------------------------------------------


def test_a_scout_goes_the_way_for_real_as_far_as_empty_hands_come(scripted, bank, attempt):
    """Customer Service does not serve it, so that Fraud sends it there again, and it has nothing new to ask."""
    answer = playing(SEARCH, FORM, means=[FRAUD, SERVICE, FRAUD, FRAUD])
    (row,), engine = scripted(Plain(BOTH, scouts=1), answer, [attempt("fraud", scout=True)])
    assert [turn.action for turn in row.turns[1:4]] == [phone_call(number) for number in (FRAUD, SERVICE, FRAUD)]
    assert [turn.status for turn in row.turns[1:]] == [
        "routing_violation",
        "auth_failed",
        "routing_violation",
        "stopped",
    ]
    assert notes_of(row, bank) == [f"scout: {turn.observation}" for turn in row.turns[1:4]]
    assert [e.reply for e in row.examples] == [turn.observation for turn in row.turns[1:4]]
    assert [len(e.turns) for e in row.examples] == [1, 2, 3]  # what has happened, not what was supposed
    assert {p.adapter for p in engine.prompts} == {"policy"} and not row.success


def test_a_scout_stops_when_it_means_the_same_again(scripted, bank, attempt):
    (row,), _ = scripted(Plain(BOTH, scouts=1), playing(SEARCH, means=[FRAUD]), [attempt("fraud", scout=True)])
    assert [turn.status for turn in row.turns] == ["ok", "routing_violation", "stopped"]


def test_who_is_no_scout_is_left_alone_by_plain(scripted, bank, attempt):
    (row,), engine = scripted(Plain(BOTH, scouts=1), playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
    assert Role.NOTE not in row.roles and {p.session for p in engine.prompts} == {0}


# --- one slot --------------------------------------------------------------------------------


def sources(codec: Codec) -> list[Noted]:
    """All who set notes, with something to say."""
    asked = Question("Please call Harbor Bank.", looked_up(codec.env.world, "bank"), phone_call(BILLING))
    turns = [*asked.turns, Turn(asked.call, REPLY, "auth_failed")]
    heard = codec.examples("t", asked.request, turns, "phone")
    memories = [Memory(WorldModelConfig(coupling="memory", recall=recall), codec) for recall in ("table", "nearest")]
    for memory in memories:
        memory.hear(heard)
    return [Imagine(WorldModelConfig(), codec), Truth(codec), told_as_in(codec.env.world, codec), *memories]


def test_every_source_fills_the_same_slot(scripted, bank, attempt):
    """Token for token the same context, but for the source's name and the reply."""
    for coupling in sources(bank):
        (row,), _ = scripted(coupling, playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
        (note,) = notes_of(row, bank)
        source, reply = note.split(": ", 1)
        before = [*bank.prompt(attempt("bill").task.request), *bank.opener, *bank.encode(SEARCH), bank.end_id]
        before += bank.observation(row.turns[0].observation)
        slot, after = bank.note(source, bank.reply(reply)), [*bank.opener, *bank.encode(FORM), bank.end_id]
        assert source == coupling.source and read_reply(reply)[0] == "auth_failed"
        assert row.tokens[: len(before) + len(slot) + len(after)] == [*before, *slot, *after]
        assert [i for i, role in enumerate(row.roles) if role == Role.NOTE] == [*range(len(before), len(before + slot))]
    assert {coupling.source for coupling in sources(bank)} == {"world model", "truth", "memory"}


def test_without_its_notes_a_rollout_is_what_it_is_with_any_others(scripted, bank, attempt):
    bare = set()
    for coupling in sources(bank):
        (row,), _ = scripted(coupling, playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
        pairs = zip(row.tokens, row.roles, strict=True)
        bare.add(tuple(token for token, role in pairs if role != Role.NOTE))
    assert len(bare) == 1


# --- truth -----------------------------------------------------------------------------------


def test_the_truth_is_noted_along_the_way(scripted, bank, attempt):
    answer = playing(SEARCH, "", means=[FRAUD, SERVICE, FRAUD, FRAUD])
    (row,), engine = scripted(Truth(bank), answer, [attempt("fraud")])
    meant = [read_reply(note.removeprefix("truth: ")) for note in notes_of(row, bank)]
    assert meant == [
        ("routing_violation", frozenset(), frozenset({"Customer Service"})),
        ("auth_failed", frozenset({"account_number", "last_4_ssn"}), frozenset()),
        ("auth_failed", frozenset({"account_number", "last_4_ssn", "last_4_cc"}), frozenset()),
    ]
    assert {p.adapter for p in engine.prompts} == {"policy"}


def test_the_truth_is_what_the_phone_would_say_to_empty_hands(codec, world):
    """Before each call of the oracle, in the world of the experiments: the same call with nothing to hand over."""
    compared, env, truth = [], PhoneEnvironment(world), Truth(codec)
    for task in world.split("train")[:120]:
        episode = env.episode(task, seed=3)
        oracle, observation = Oracle(episode, world, None), episode.request
        while episode.stop is None:
            action = oracle.act(observation)
            if getattr(action, "tool", "") == PHONE and not episode.unavailable and len(episode.turns) < 12:
                empty = phone_call(action.arguments["phone_number"])
                noted = told(truth, Question(episode.request, tuple(episode.turns), empty))
                compared.append((meaning(noted), meaning(episode.step(empty))))
            if episode.stop is None:
                observation = episode.step(action)
    assert all(noted == real for noted, real in compared)
    kinds = {noted[0] for noted, _ in compared}
    assert len(compared) > 100 and {"auth_failed", "success"} <= kinds


def test_the_same_question_has_the_same_words(bank, tiny):
    asked = Question("Could you phone Harbor Bank and dispute a charge?", looked_up(tiny, "bank"), phone_call(BILLING))
    assert told(Truth(bank), asked) == told(Truth(bank), asked)
    words = {told(Truth(bank), dataclasses.replace(asked, request=f"{i}: {asked.request}")) for i in range(20)}
    assert len(words) > 1 and len({meaning(text) for text in words}) == 1


def test_truth_says_reasons_where_the_phone_does(base_path, tiny):
    """A joint account makes the bank ask for the phone number."""
    request = "Could you phone Harbor Bank and dispute a charge? It is a joint account."
    asked = Question(request, looked_up(tiny, "bank"), phone_call(BILLING))
    for replies in ("list", "reasons"):
        env = PhoneEnvironment(tiny, Rules(replies=replies))
        heard = told(Truth(Codec(load_tokenizer(base_path), env)), asked)
        assert read_reply(heard)[1] == {"account_number", "billing_zip", "phone_number"}
        assert any(said in heard for said in CIRCUMSTANCES["joint_account"].because) == (replies == "reasons")


def test_who_believes_in_another_world_says_what_is_true_there(bank, tiny):
    """Same teller, same source, another world."""
    asked = Question("Could you phone Harbor Bank and dispute a charge?", looked_up(tiny, "bank"), phone_call(BILLING))
    rule = dataclasses.replace(tiny.rules["bank", "Billing"], required=("email",))
    believed = dataclasses.replace(tiny, rules=tiny.rules | {("bank", "Billing"): rule})
    teller = told_as_in(believed, bank)
    assert teller.source == "truth" and read_reply(told(teller, asked))[1] == {"email"}
    assert read_reply(told(Truth(bank), asked))[1] == {"account_number", "billing_zip"}
