"""imagine: the policy is asked, the world model answers, the answer is noted in its place; scouts ask for real."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from calling import BILLING, CALL, FORM, REPLY, SALES, SEARCH, UNKNOWN, notes_of, playing
from scripted import Scripted, by_turn, spans

from lfo.config import ModelConfig, RolloutConfig, WorldModelConfig
from lfo.couplings import Imagine, alone
from lfo.couplings.imagine import REPLY_TOKENS
from lfo.couplings.noted import without
from lfo.envs.base import parse_action, written
from lfo.envs.phone import PhoneEnvironment
from lfo.envs.phone.csr import CsrSimulator
from lfo.envs.phone.tools import TOOLS, phone_call
from lfo.envs.phone.vocabulary import CIRCUMSTANCES
from lfo.envs.phone.world import generate_world
from lfo.protocols import Question
from lfo.rollout.play import play
from lfo.text import load_codec
from lfo.types import Role, Sample, StopReason, Turn

NOTE = f"world model: {REPLY}"


def test_one_note_between_directory_and_form(scripted, imagine, bank, attempt):
    (row,), _ = scripted(imagine, playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
    texts = [text for text, _ in spans(row, bank)]
    where = texts.index(f"<|note|>{NOTE}<|/note|>")
    assert notes_of(row, bank) == [NOTE]
    assert texts[where - 1] == f"<|obs|>{row.turns[0].observation}<|/obs|>"
    assert texts[where + 1 : where + 3] == ["<|tool|>", f"{FORM}<|end|>"]
    assert [t.tool for t in row.turns] == ["search_company", "auth_info_form", "make_phone_call", ""]
    assert [e.status for e in row.examples] == ["auth_failed"]  # what was imagined is no example


def test_what_is_asked_before_imagining(scripted, imagine, bank, attempt):
    """First the policy, greedily, for a number; then the world model for the answer to an empty-handed call."""
    (row,), engine = scripted(imagine, playing(SEARCH, ""), [attempt("bill")])
    _, intent, question, again, _ = engine.prompts
    begun = '<|tool|>make_phone_call<|args|>{"phone_number": "'
    directory = f"<|obs|>{row.turns[0].observation}<|/obs|>"
    for asked in (intent, again):
        assert (asked.adapter, asked.temperature, asked.session, asked.stop) == ("policy", 0.0, None, bank.end_id)
        assert asked.max_new == len(bank.encode(BILLING)) + 1
    assert bank.decode(intent.tokens).endswith(f"{directory}{begun}")
    supposed = f'<|tool|>{CALL}<|end|><|obs|>{{"status": "success", "message": "Billing. Done."}}<|/obs|>'
    assert bank.decode(again.tokens).endswith(f"{directory}<|note|>{NOTE}<|/note|>{supposed}{begun}")  # what then?
    assert (question.adapter, question.temperature, question.session) == ("world_model", 0.0, None)
    assert question.stop == bank.reply_end_id
    request = attempt("bill").task.request
    assert question.tokens == bank.question(Question(request, tuple(row.turns[:1]), phone_call(BILLING)))


def test_a_world_model_that_reads_is_asked_after_similar_calls(scripted, bank, attempt):
    """The most similar last, none of the task that is named, and none before a call that is a case of nothing."""
    reader, asked = Imagine(WorldModelConfig(reads=2), bank), attempt("bill").task.request
    (row,), engine = scripted(reader, playing(SEARCH, ""), [attempt("bill")])
    question = Question(asked, tuple(row.turns[:1]), phone_call(BILLING))
    unread = bank.question(question)
    assert engine.prompts[2].tokens == unread, "nothing was heard yet"
    heard = {"one": "Please call Harbor Bank.", "two": "Help!", "three": asked}
    for name, request in heard.items():
        turns = [*question.turns, Turn(question.call, json.dumps({"status": "auth_failed", "message": name}), "")]
        reader.hear(bank.examples(name, request, turns, "phone"))
    (row,), engine = scripted(reader, playing(SEARCH, ""), [attempt("bill")])
    read, last = bank.decode(engine.prompts[2].tokens).split("<|/note|>")[:2]
    assert last == f'<|note|>memory: {asked} {{"status": "auth_failed", "message": "three"}}'
    assert read.startswith("<|note|>memory: ") and engine.prompts[2].tokens[-len(unread) :] == unread
    assert all("three" not in text for text in reader.informed(question, but="three").similar)
    reader.hear(bank.examples("four", asked, turns, "phone"))
    assert len(reader.informed(question).similar) == 1, "the two most similar are the same words"
    with_something = dataclasses.replace(question, call=phone_call(BILLING, {"email": "x"}))
    assert reader.informed(with_something) == with_something
    assert Imagine(WorldModelConfig(), bank).informed(question) == question


def test_a_chat_is_played_and_imagined_alike(chat_path, tiny, attempt):
    """The same loop with the `chat` dialect: calls, observations and the note as messages."""
    env = PhoneEnvironment(tiny)
    chat = load_codec(ModelConfig(str(chat_path), dialect="chat"), env)

    def answer(text: str, prompt) -> str:
        if prompt.adapter == "world_model":
            return REPLY
        if text.endswith('"phone_number": "'):
            return f'{BILLING}"'
        turn = text.count("<tool_response>")
        if turn == 3:
            return "Billing wants more than I was given. Goodbye."
        action = parse_action((SEARCH, FORM, CALL)[turn], TOOLS)
        return f"<tool_call>\n{json.dumps({'name': action.tool, 'arguments': action.arguments})}\n</tool_call>"

    rollout = RolloutConfig(max_action_tokens=400, max_tokens=4000)
    imagine = Imagine(WorldModelConfig(), chat)
    (row,) = play(Scripted(chat, answer), chat, [[[attempt("bill")]]], imagine, rollout, 0, "phone")
    assert [written(turn.action) for turn in row.turns] == [SEARCH, FORM, CALL, ""]
    assert row.stop is StopReason.AGENT_STOPPED
    *calls, goodbye = [text for text, role in spans(row, chat) if role is Role.ACTION]
    assert all(text.startswith("<tool_call>") and text.endswith("</tool_call><|im_end|>") for text in calls)
    assert goodbye.endswith("Goodbye.<|im_end|>")
    hint = env.knowledge.hint.format(source="world model", reply=REPLY)
    notes = [text for text, role in spans(row, chat) if role is Role.NOTE]
    assert notes == [f"<|im_start|>user\n{hint}<|im_end|>\n"]
    (example,) = row.examples
    assert chat.reply_text(example.encoded.reply) == row.turns[2].observation


def test_rows_without_a_directory_imagine_nothing(scripted, imagine, bank, attempt):
    (row,), engine = scripted(imagine, playing(UNKNOWN, FORM, CALL, ""), [attempt("bill")])
    assert notes_of(row, bank) == [] and {p.adapter for p in engine.prompts} == {"policy"}
    (row,), _ = scripted(imagine, playing(UNKNOWN, SEARCH, FORM, ""), [attempt("bill")])
    assert notes_of(row, bank) == [NOTE]  # as soon as there is one
    texts = [text for text, _ in spans(row, bank)]
    assert SEARCH in texts[texts.index(f"<|note|>{NOTE}<|/note|>") - 2]


def test_a_number_that_is_not_listed_is_not_imagined(scripted, imagine, bank, attempt):
    (row,), engine = scripted(imagine, playing(SEARCH, SEARCH, "", means=["800-555-9999"]), [attempt("bill")])
    assert notes_of(row, bank) == []
    assert [p.adapter for p in engine.prompts] == ["policy"] * 4  # and it is asked for only once


def test_the_first_attempts_of_a_group_are_scouts(bank, attempt):
    task = attempt("bill").task
    (wave,) = Imagine(WorldModelConfig(scouts=2), bank).waves(task, 3, 7, 4)
    assert [(a.scout, a.group, a.seed, a.task) for a in wave] == [(i < 2, 3, 7, task) for i in range(4)]


def test_a_scout_makes_the_intended_call_and_ends(scripted, imagine, bank, attempt):
    """The others imagine what it asks for real. What it heard stands where their notes do, for it to go on from."""
    attempts = [attempt("bill", scout=True), attempt("bill")]
    (row, other), engine = scripted(imagine, playing(SEARCH, FORM, CALL, ""), attempts)
    assert [t.tool for t in row.turns] == ["search_company", "make_phone_call", ""] and row.scout and not row.success
    assert row.turns[1].action == phone_call(BILLING)
    (example,) = row.examples
    assert example.status == "auth_failed" and example.call == phone_call(BILLING)
    assert "account number" in example.reply and "billing ZIP" in example.reply
    assert notes_of(row, bank) == [f"world model: {example.reply}"] and notes_of(other, bank) == [NOTE]
    assert not other.scout and len(other.turns) == 4
    intentions = [bank.decode(p.tokens) for p in engine.prompts if p.adapter == "policy" and p.session is None]
    assert sum("<|note|>" not in text for text in intentions) == 1  # asked once for the group
    assert len(intentions) == 3  # and then each after its own note


def test_a_scout_whose_call_serves_has_ended(scripted, imagine, attempt):
    """Sales demands nothing: the call succeeds with empty hands, and nothing is done after it."""
    (row,), _ = scripted(imagine, playing(SEARCH, means=[SALES]), [attempt("offer", scout=True)])
    assert row.success and [t.tool for t in row.turns] == ["search_company", "make_phone_call"]


def test_a_scout_without_an_intention_asks_nobody(scripted, imagine, attempt):
    answer = playing(SEARCH, FORM, means=["800-555-9999"])
    (row,), _ = scripted(imagine, answer, [attempt("bill", scout=True)])
    assert [t.tool for t in row.turns] == ["search_company", ""] and row.examples == []


@pytest.mark.parametrize("late", [(), (0,)])
def test_rows_that_read_the_same_note_the_same(imagine, bank, attempt, late):
    """They are asked once for all of them; whoever looks a company up in another way has asked for itself."""
    asked = itertools.count(1)

    def answer(text: str, prompt) -> str:
        if prompt.adapter == "world_model":
            return f'{{"status": "auth_failed", "message": "Billing. Reply {next(asked)}."}}'
        if text.endswith('"phone_number": "'):
            return f'{BILLING}"'
        other = prompt.session == 1  # which looks up nobody at first
        return by_turn(UNKNOWN if other else SEARCH, SEARCH, FORM, "")(text, prompt)

    engine = Scripted(bank, answer, late)
    groups = [[[attempt("bill", g) for _ in range(3)]] for g in range(2)]
    rows = play(engine, bank, groups, imagine, RolloutConfig(), 0)
    notes = [notes_of(row, bank) for row in rows]
    assert all(len(n) == 1 for n in notes)
    assert notes[0] == notes[2] == notes[3] == notes[4] == notes[5] != notes[1]
    assert sum(p.adapter == "world_model" for p in engine.prompts) == 2


def test_unaided_the_policy_is_told_nothing(scripted, imagine, attempt):
    (row,), engine = scripted(alone(imagine), playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
    assert Role.NOTE not in row.roles and {p.session for p in engine.prompts} == {0}


def test_a_note_counts_towards_the_budget(scripted, imagine, attempt):
    answer = playing(SEARCH, SEARCH, "")
    (row,), _ = scripted(imagine, answer, [attempt("bill")])
    budget = len(row.tokens) - 2  # all but the last action: its opener and its end
    (cut,), _ = scripted(imagine, answer, [attempt("bill")], max_tokens=budget)
    assert (len(cut.turns), cut.stop, len(cut.tokens)) == (2, StopReason.TOKEN_BUDGET, budget)
    (bare,), _ = scripted(alone(imagine), answer, [attempt("bill")], max_tokens=budget)
    assert (len(bare.turns), bare.stop) == (3, StopReason.AGENT_STOPPED)


# --- what is learned from --------------------------------------------------------------------


@pytest.fixture
def noted(make_rollout):
    """A rollout with a note of two tokens, and its sample."""
    row = make_rollout([1, 2], [3], [4, 5, 6], [7], logprob=-2.0)
    row.roles[3:5] = [int(Role.NOTE)] * 2
    return row, Sample(row.tokens, row.roles, row.logprobs, [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.7])


def test_context_distillation_learns_the_same_actions_without_the_note(bank, noted):
    row, sample = noted
    seen, bare = Imagine(WorldModelConfig(context_distillation=0.3), bank).views(row, sample)
    assert seen is sample and seen.how == "ratio"
    assert bare.tokens == [1, 2, 3, 6, 7] and bare.how == "distilled"
    assert bare.roles == [Role.PROMPT, Role.PROMPT, Role.ACTION, Role.OBSERVATION, Role.ACTION]
    assert bare.old_logprobs == [0, 0, -2.0, 0, -2.0]
    assert bare.advantages == [0.0, 0.0, 0.5, 0.0, 0.7]
    assert len(row.tokens) == len(sample.tokens) == 7 and without(bare, Role.NOTE, "distilled") == bare


def test_there_is_one_view_without_distillation_or_without_a_note(bank, imagine, noted, make_rollout):
    row, sample = noted
    assert imagine.views(row, sample) == [sample]
    distilling = Imagine(WorldModelConfig(context_distillation=0.3), bank)
    plain = make_rollout([1], [2])
    unnoted = Sample(plain.tokens, plain.roles, plain.logprobs, [0.0, 1.0])
    assert distilling.views(plain, unnoted) == [unnoted]
    assert distilling.views(row, None) == []


@pytest.mark.parametrize("held_out", [False, True])
def test_the_longest_reply_can_be_imagined(codec, held_out):
    """Every department of a world with all circumstances, asked with empty hands in all of them at once."""
    world, longest = generate_world(102, circumstances=len(CIRCUMSTANCES)), 0
    for company in world.companies.values():
        demands = world.demands(company.company_id, (), list(CIRCUMSTANCES))
        demands = dataclasses.replace(demands, of={n: dataclasses.replace(d, after="") for n, d in demands.of.items()})
        for department in company.departments:
            csr = CsrSimulator(company, demands, department.name, held_out, reasons=True)
            reply = csr.call(department.phone, {}, {}, set())
            said = json.dumps({"status": reply.status, "message": reply.message})
            longest = max(longest, len(codec.reply(said)))
    assert 96 < longest <= REPLY_TOKENS
