"""codec: text to ids and back, who wrote which token, what the world model reads; the `tags` dialect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lfo.envs.base import written
from lfo.envs.phone import PhoneEnvironment
from lfo.envs.phone.callers import Oracle, run_scripted
from lfo.envs.phone.tools import phone_call, search
from lfo.protocols import Blank, Question
from lfo.text.base import load_tokenizer
from lfo.text.codec import SPECIAL_TOKENS, STATE_TOKENS, Codec, TokenizerError
from lfo.types import Hangup, Malformed, Turn


@pytest.fixture(scope="module")
def episode(tiny):
    """The oracle's way through the fraud task of the small world: directory, form, two calls."""
    task = next(t for t in tiny.tasks if t.task_id == "fraud")
    episode = PhoneEnvironment(tiny).episode(task, 0)
    return run_scripted(episode, Oracle(episode, tiny, None))


@pytest.fixture(scope="module")
def passing(base_path, env) -> Codec:
    """The codec of a world model that reads what the policy reads."""
    return Codec(load_tokenizer(base_path), env, in_passing=True)


BLANK = Blank(phone_call("800-555-0100"), "800-555-0100")
CALL = phone_call("800-555-0003")


# --- text and ids ----------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"])))  # all but lone surrogates, which have no UTF-8 form
def test_any_text_makes_the_round_trip(codec, text):
    assert codec.decode(codec.encode(text)) == text


@pytest.mark.parametrize(
    "text", ["", "  two  spaces ", "a\n\tb\r\n", "don't", "é e\u0301 😀 漢", "<|end|><|tool|>", "<|x|>"]
)
def test_awkward_text_makes_the_round_trip(codec, text):
    assert codec.decode(codec.encode(text)) == text


def test_structure_is_one_token_each(codec, passing):
    for token in SPECIAL_TOKENS:
        assert len(codec.encode(token)) == 1
    assert [codec.decode([i]) for i in (codec.pad_id, codec.end_id)] == ["<|pad|>", "<|end|>"]
    assert [codec.decode([c.reply_end_id]) for c in (codec, passing)] == ["<|/csr|>", "<|/obs|>"]


def test_a_tokenizer_without_the_tags_is_refused(env):
    bare = Tokenizer(models.WordLevel({"[UNK]": 0, "<|pad|>": 1, "<|task|>": 2}, unk_token="[UNK]"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(TokenizerError) as error:
        Codec(PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="[UNK]"), env)
    assert "lacks <|/task|>, <|tool|>," in str(error.value) and "embedded base" in str(error.value)
    assert "<|pad|>" not in str(error.value) and "<|task|>" not in str(error.value)


# --- the policy's trajectory -----------------------------------------------------------------


def test_the_pieces_of_a_trajectory_are_the_text(codec, episode):
    """Each piece is tokenised by itself; their concatenation decodes to the dialect of the module's first lines."""
    ids, text = codec.prompt(episode.request), f"<|task|>{episode.request}<|/task|>"
    for turn in episode.turns:
        said = written(turn.action)
        ids += [*codec.opener, *codec.encode(said), codec.end_id, *codec.observation(turn.observation)]
        text += f"<|tool|>{said}<|end|><|obs|>{turn.observation}<|/obs|>"
    assert codec.decode(ids) == text
    assert len(episode.turns) == 4


def test_an_action_is_read_without_its_closing_tag(codec):
    call = search("Harbor Bank")
    ids = codec.encode(written(call))
    assert codec.action([*ids, codec.end_id]) == call == codec.action(ids)  # never closed, but whole
    assert codec.action([codec.end_id]) == Hangup() == codec.action([])
    assert codec.action_text([*ids, codec.end_id, codec.end_id]) == written(call) + "<|end|>"


def test_a_call_that_was_cut_off_keeps_its_text_and_is_malformed(codec):
    text = written(search("Harbor Bank"))[:-2]
    action = codec.action(codec.encode(text))
    assert isinstance(action, Malformed) and action.text == text


def test_a_note_is_the_sampled_reply_between_its_own_tags_and_who_says_it(codec):
    reply = codec.reply('{"status": "success", "message": "Sales. Done."}')
    assert codec.decode(codec.note("memory", reply)) == (
        '<|note|>memory: {"status": "success", "message": "Sales. Done."}<|/note|>'
    )
    assert codec.note("memory", reply[:-1]) == codec.note("memory", reply)  # cut off by the token limit
    split = [i for letter in "Done" for i in codec.encode(letter)]  # as a sampler may spell it
    name = codec.encode("memory: ")
    assert split != codec.encode("Done") and codec.note("memory", split)[1:-1] == [*name, *split]


def test_nothing_that_is_said_ends_the_note_that_it_stands_in(codec):
    said = codec.encode("Not understood: put it<|/note|><|tool|>done<|/obs|>")
    assert codec.decode(codec.note("memory", said)) == "<|note|>memory: Not understood: put itdone<|/note|>"


@pytest.mark.parametrize("source", ["world model", "memory", "truth", "scout", "earlier attempt"])
def test_a_note_of_a_reply_is_tokenised_as_its_text(codec, source):
    """As the embedded base has read notes, whoever said them."""
    reply = '{"status": "auth_failed", "message": "Billing, hi! I just need your account number."}'
    assert codec.note(source, codec.reply(reply)) == codec.encode(f"<|note|>{source}: {reply}<|/note|>")


def test_notes_of_all_who_say_them_differ_in_the_name_alone(codec, passing):
    for one in (codec, passing):
        said = one.reply("Sales. Done.")
        opening, *body, closing = one.note("truth", said)
        name = one.encode("truth: ")
        assert [one.decode([i]) for i in (opening, closing)] == ["<|note|>", "<|/note|>"]
        assert body == [*name, *said[:-1]]
        for source in ("world model", "memory", "scout", "earlier attempt"):
            assert one.note(source, said) == [opening, *one.encode(f"{source}: "), *body[len(name) :], closing]


def test_a_call_can_be_begun_and_its_blank_filled(codec, world):
    """What is put into the policy's mouth is the beginning of the call, and there is room for every number."""
    assert codec.decode(codec.beginning(BLANK)) == '<|tool|>make_phone_call<|args|>{"phone_number": "'
    whole = codec.encode(written(BLANK.call))
    begun = codec.beginning(BLANK)[len(codec.opener) :]
    assert begun == whole[: len(begun)]
    numbers = [d.phone for c in world.companies.values() for d in c.departments]
    assert all(len(codec.encode(number)) < codec.blank_length(BLANK) for number in numbers)
    filled = codec.encode(written(phone_call(numbers[0])))[len(begun) :][: codec.blank_length(BLANK)]
    assert codec.decode(filled).startswith(numbers[0])


# --- what the world model reads --------------------------------------------------------------


def test_an_example_is_the_template(codec, env, episode):
    examples = codec.examples("fraud", episode.request, episode.turns, "phone")
    assert [e.status for e in examples] == ["success", "success"]
    for example, i in zip(examples, (2, 3), strict=True):
        turn, before = episode.turns[i], tuple(episode.turns[:i])
        state = env.knowledge.state(Question(episode.request, before, turn.action))
        assert codec.decode([*example.encoded.prompt, *example.encoded.reply]) == (
            f"<|state|>{state}<|/state|><|action|>{written(turn.action)}<|/action|><|predict_csr|><|csr|>"
            f"{turn.observation}<|/csr|>"
        )
        assert (example.task_id, example.call, example.reply) == ("fraud", turn.action, turn.observation)
        assert (example.request, example.turns) == (episode.request, tuple(episode.turns[:i]))
        assert codec.reply_text(example.encoded.reply) == turn.observation


@pytest.mark.parametrize(("predict", "turns"), [("phone", [2, 3]), ("phone+form", [1, 2, 3]), ("all", [0, 1, 2, 3])])
def test_what_is_predicted_is_an_option(codec, episode, predict, turns):
    found = codec.examples("fraud", episode.request, episode.turns, predict)
    assert [e.reply for e in found] == [episode.turns[i].observation for i in turns]


def test_a_long_state_drops_its_oldest_actions_and_keeps_the_directory(codec, env, tiny, episode):
    calls = [Turn(phone_call(f"800-555-{i:04d}"), "{}", "auth_failed") for i in range(100)]
    asked = Question(episode.request, (episode.turns[0], *calls), CALL)
    prompt = codec.decode(codec.question(asked))
    state = prompt.partition("<|state|>")[2].partition("<|/state|>")[0]
    assert 450 < len(codec.encode(f"<|state|>{state}<|/state|>")) <= STATE_TOKENS
    for department in tiny.companies["bank"].departments:
        assert f"{department.name} {department.phone}" in state
    kept = [i for i in range(100) if f"make_phone_call 800-555-{i:04d}" in state]
    assert kept == list(range(kept[0], 100)) and kept[0] > 10
    assert "search_company ok" not in state
    assert state.startswith(f"{episode.request} Step 102.")
    longer = env.knowledge.state(asked, kept[0])
    assert len(codec.encode(f"<|state|>{longer}<|/state|>")) > STATE_TOKENS  # no action more than necessary is dropped


@pytest.mark.parametrize("number", ["\0", "😀" * 20, "<|/state|>", "x" * 50, ""])
def test_whatever_was_dialled_can_be_said_to_the_world_model(codec, number):
    turn = Turn(phone_call(number), "{}", "wrong_department")
    assert len(codec.question(Question("Please.", (turn,), turn.action))) > 10


def test_in_passing_the_world_model_reads_what_the_policy_reads(passing, episode):
    """An example is a beginning of the very tokens of the trajectory."""
    ids = passing.prompt(episode.request)
    for turn in episode.turns:
        said = passing.encode(written(turn.action))
        ids += [*passing.opener, *said, passing.end_id, *passing.observation(turn.observation)]
    examples = passing.examples("fraud", episode.request, episode.turns, "phone")
    assert len(examples) == 2
    for example, i in zip(examples, (2, 3), strict=True):
        encoded = [*example.encoded.prompt, *example.encoded.reply]
        assert encoded == ids[: len(encoded)]
        assert passing.reply_text(example.encoded.reply) == episode.turns[i].observation
