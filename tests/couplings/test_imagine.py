"""imagine: the policy is asked, the world model answers, the answer is noted once; scouts ask for real."""

from __future__ import annotations

import itertools
import json

import pytest
from scripted import Scripted, by_turn, spans

from lfo.config import ModelConfig, RolloutConfig, WorldModelConfig
from lfo.couplings import Imagine, alone
from lfo.couplings.imagine import without
from lfo.envs.base import parse_action, written
from lfo.envs.phone import PhoneEnvironment
from lfo.envs.phone.tools import TOOLS, form, phone_call, search
from lfo.protocols import Question
from lfo.rollout.play import play
from lfo.text import load_codec
from lfo.text.base import load_tokenizer
from lfo.text.codec import Codec
from lfo.types import Attempt, Role, Sample, StopReason

SEARCH, UNKNOWN = written(search("Harbor Bank")), written(search("Nobody Knows"))
FORM = written(form(["account_number", "billing_zip"]))
BILLING = phone_call("800-555-0003")
CALL = written(BILLING)
REPLY = '{"status": "auth_failed", "message": "Billing. I need your account number."}'


@pytest.fixture(scope="module")
def codec(base_path, tiny) -> Codec:
    return Codec(load_tokenizer(base_path), PhoneEnvironment(tiny))


@pytest.fixture
def attempt(tiny):
    """attempt(task_id): a rollout in the small world."""

    def make(task_id: str, group: int = 0, scout: bool = False) -> Attempt:
        return Attempt(next(t for t in tiny.tasks if t.task_id == task_id), group, 0, scout)

    return make


def imagining(*actions: str, number: str = "800-555-0003", reply: str = REPLY):
    """A policy that plays `actions` and means to call `number`, and a world model that says `reply`."""

    def answer(text: str, prompt) -> str:
        if prompt.adapter == "world_model":
            return reply
        if text.endswith('"phone_number": "'):
            return f'{number}", "auth_info": {{}}}}'
        return by_turn(*actions)(text, prompt)

    return answer


@pytest.fixture
def scripted(codec):
    """scripted(answer, attempts): (rollouts of one group, the engine that was asked)."""

    def run(answer, attempts, coupling=None, late=(), **rollout):
        engine = Scripted(codec, answer, late)
        coupling = coupling or Imagine(WorldModelConfig(), codec)
        return play(engine, codec, [[attempts]], coupling, RolloutConfig(**rollout), 5, "phone"), engine

    return run


def notes_of(row, codec) -> list[str]:
    return [text for text, role in spans(row, codec) if role is Role.IMAGINED]


def test_one_note_between_directory_and_form(scripted, codec, attempt):
    (row,), _ = scripted(imagining(SEARCH, FORM, CALL, ""), [attempt("bill")])
    texts = [text for text, _ in spans(row, codec)]
    where = texts.index(f"<|imagine|>{REPLY}<|/imagine|>")
    assert notes_of(row, codec) == [texts[where]]
    assert texts[where - 1] == f"<|obs|>{row.turns[0].observation}<|/obs|>"
    assert texts[where + 1 : where + 3] == ["<|tool|>", f"{FORM}<|end|>"]
    assert [t.tool for t in row.turns] == ["search_company", "auth_info_form", "make_phone_call", ""]
    assert [e.status for e in row.examples] == ["auth_failed"]  # what was imagined is no example


def test_what_is_asked_before_imagining(scripted, codec, attempt):
    """First the policy, greedily, for a number; then the world model for the answer to an empty-handed call."""
    (row,), engine = scripted(imagining(SEARCH, ""), [attempt("bill")])
    _, intent, question, _ = engine.prompts
    directory = f"<|obs|>{row.turns[0].observation}<|/obs|>"
    assert (intent.adapter, intent.temperature, intent.session, intent.stop) == ("policy", 0.0, None, codec.end_id)
    assert codec.decode(intent.tokens).endswith(f'{directory}<|tool|>make_phone_call<|args|>{{"phone_number": "')
    assert intent.max_new == len(codec.encode("800-555-0003")) + 1
    assert (question.adapter, question.temperature, question.session) == ("world_model", 0.0, None)
    assert question.stop == codec.reply_end_id
    request = attempt("bill").task.request
    assert question.tokens == codec.question(Question(request, tuple(row.turns[:1]), BILLING))


def test_a_chat_is_played_and_imagined_alike(chat_path, tiny, attempt):
    """The same loop with the `chat` dialect: calls, observations and the note as messages."""
    env = PhoneEnvironment(tiny)
    chat = load_codec(ModelConfig(str(chat_path), dialect="chat"), env)

    def answer(text: str, prompt) -> str:
        if prompt.adapter == "world_model":
            return REPLY
        if text.endswith('"phone_number": "'):
            return '800-555-0003"'
        turn = text.count("<tool_response>")
        if turn == 3:
            return "Billing wants more than I was given. Goodbye."
        action = parse_action((SEARCH, FORM, CALL)[turn], TOOLS)
        return f"<tool_call>\n{json.dumps({'name': action.tool, 'arguments': action.arguments})}\n</tool_call>"

    rollout = RolloutConfig(max_action_tokens=400, max_tokens=4000)
    coupling = Imagine(WorldModelConfig(), chat)
    (row,) = play(Scripted(chat, answer), chat, [[[attempt("bill")]]], coupling, rollout, 0, "phone")
    assert [written(turn.action) for turn in row.turns] == [SEARCH, FORM, CALL, ""]
    assert row.stop is StopReason.AGENT_STOPPED
    *calls, goodbye = [text for text, role in spans(row, chat) if role is Role.ACTION]
    assert all(text.startswith("<tool_call>") and text.endswith("</tool_call><|im_end|>") for text in calls)
    assert goodbye.endswith("Goodbye.<|im_end|>")
    hint = env.knowledge.hint.format(reply=REPLY)
    assert notes_of(row, chat) == [f"<|im_start|>user\n{hint}<|im_end|>\n"]
    (example,) = row.examples
    assert chat.reply_text(example.encoded.reply) == row.turns[2].observation


def test_rows_without_a_directory_imagine_nothing(scripted, codec, attempt):
    (row,), engine = scripted(imagining(UNKNOWN, FORM, CALL, ""), [attempt("bill")])
    assert notes_of(row, codec) == [] and {p.adapter for p in engine.prompts} == {"policy"}
    (row,), _ = scripted(imagining(UNKNOWN, SEARCH, FORM, ""), [attempt("bill")])
    assert len(notes_of(row, codec)) == 1  # as soon as there is one
    texts = [text for text, _ in spans(row, codec)]
    assert SEARCH in texts[texts.index(notes_of(row, codec)[0]) - 2]


def test_a_number_that_is_not_listed_is_not_imagined(scripted, codec, attempt):
    (row,), engine = scripted(imagining(SEARCH, SEARCH, "", number="800-555-9999"), [attempt("bill")])
    assert notes_of(row, codec) == []
    assert [p.adapter for p in engine.prompts] == ["policy"] * 4  # and it is asked for only once


def test_the_first_attempts_of_a_group_are_scouts(codec, attempt):
    task = attempt("bill").task
    (wave,) = Imagine(WorldModelConfig(scouts=2), codec).waves(task, 3, 7, 4)
    assert [(a.scout, a.group, a.seed, a.task) for a in wave] == [(i < 2, 3, 7, task) for i in range(4)]


def test_a_scout_makes_the_intended_call_and_ends(scripted, codec, attempt):
    attempts = [attempt("bill", scout=True), attempt("bill")]
    (row, other), engine = scripted(imagining(SEARCH, FORM, CALL, ""), attempts)
    assert [t.tool for t in row.turns] == ["search_company", "make_phone_call", ""] and row.scout and not row.success
    assert row.turns[1].action == BILLING
    (example,) = row.examples
    assert example.status == "auth_failed" and example.call == BILLING
    assert "account number" in example.reply and "billing ZIP" in example.reply
    assert Role.IMAGINED not in row.roles
    assert not other.scout and len(other.turns) == 4 and Role.IMAGINED in other.roles
    intentions = [p for p in engine.prompts if p.adapter == "policy" and p.session is None]
    assert len(intentions) == 1  # asked once for the group


def test_a_scout_whose_call_serves_has_ended(scripted, attempt):
    """Sales demands nothing: the call succeeds with empty hands, and nothing is done after it."""
    (row,), _ = scripted(imagining(SEARCH, number="800-555-0005"), [attempt("offer", scout=True)])
    assert row.success and [t.tool for t in row.turns] == ["search_company", "make_phone_call"]


def test_a_scout_without_an_intention_asks_nobody(scripted, attempt):
    (row,), _ = scripted(imagining(SEARCH, FORM, number="800-555-9999"), [attempt("bill", scout=True)])
    assert [t.tool for t in row.turns] == ["search_company", ""] and row.examples == []


@pytest.mark.parametrize("late", [(), (0,)])
def test_rows_that_read_the_same_note_the_same(codec, attempt, late):
    """They are asked once for all of them; whoever looks a company up in another way has asked for itself."""
    asked = itertools.count(1)

    def answer(text: str, prompt) -> str:
        if prompt.adapter == "world_model":
            return f'{{"status": "auth_failed", "message": "Billing. Reply {next(asked)}."}}'
        if text.endswith('"phone_number": "'):
            return '800-555-0003"'
        other = prompt.session == 1  # which looks up nobody at first
        return by_turn(UNKNOWN if other else SEARCH, SEARCH, FORM, "")(text, prompt)

    engine = Scripted(codec, answer, late)
    groups = [[[attempt("bill", g) for _ in range(3)]] for g in range(2)]
    rows = play(engine, codec, groups, Imagine(WorldModelConfig(), codec), RolloutConfig(), 0)
    notes = [notes_of(row, codec) for row in rows]
    assert all(len(n) == 1 for n in notes)
    assert notes[0] == notes[2] == notes[3] == notes[4] == notes[5] != notes[1]
    assert sum(p.adapter == "world_model" for p in engine.prompts) == 2


def test_unaided_the_policy_is_told_nothing(scripted, codec, attempt):
    unaided = alone(Imagine(WorldModelConfig(), codec))
    (row,), engine = scripted(imagining(SEARCH, FORM, CALL, ""), [attempt("bill")], unaided)
    assert Role.IMAGINED not in row.roles and {p.session for p in engine.prompts} == {0}


def test_a_note_counts_towards_the_budget(scripted, codec, attempt):
    answer, unaided = imagining(SEARCH, SEARCH, ""), alone(Imagine(WorldModelConfig(), codec))
    (row,), _ = scripted(answer, [attempt("bill")])
    budget = len(row.tokens) - 2  # all but the last action: its opener and its end
    (cut,), _ = scripted(answer, [attempt("bill")], max_tokens=budget)
    assert (len(cut.turns), cut.stop, len(cut.tokens)) == (2, StopReason.TOKEN_BUDGET, budget)
    (bare,), _ = scripted(answer, [attempt("bill")], unaided, max_tokens=budget)
    assert (len(bare.turns), bare.stop) == (3, StopReason.AGENT_STOPPED)


# --- what is learned from --------------------------------------------------------------------


@pytest.fixture
def noted(make_rollout):
    """A rollout with a note of two tokens, and its sample."""
    row = make_rollout([1, 2], [3], [4, 5, 6], [7], logprob=-2.0)
    row.roles[3:5] = [int(Role.IMAGINED)] * 2
    return row, Sample(row.tokens, row.roles, row.logprobs, [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.7])


def test_context_distillation_learns_the_same_actions_without_the_note(codec, noted):
    row, sample = noted
    seen, bare = Imagine(WorldModelConfig(context_distillation=0.3), codec).views(row, sample)
    assert seen is sample and not seen.distilled
    assert bare.tokens == [1, 2, 3, 6, 7] and bare.distilled
    assert bare.roles == [Role.PROMPT, Role.PROMPT, Role.ACTION, Role.OBSERVATION, Role.ACTION]
    assert bare.old_logprobs == [0, 0, -2.0, 0, -2.0]
    assert bare.advantages == [0.0, 0.0, 0.5, 0.0, 0.7]
    assert len(row.tokens) == len(sample.tokens) == 7 and without(bare, Role.IMAGINED) == bare


def test_there_is_one_view_without_distillation_or_without_a_note(codec, noted, make_rollout):
    row, sample = noted
    assert Imagine(WorldModelConfig(), codec).views(row, sample) == [sample]
    distilling = Imagine(WorldModelConfig(context_distillation=0.3), codec)
    plain = make_rollout([1], [2])
    unnoted = Sample(plain.tokens, plain.roles, plain.logprobs, [0.0, 1.0])
    assert distilling.views(plain, unnoted) == [unnoted]
    assert distilling.views(row, None) == []
