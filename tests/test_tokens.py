"""tokens: text to ids and back, who wrote which token, what the world model reads, masks."""

from __future__ import annotations

import json
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lfo.base import load_tokenizer
from lfo.config import EnvConfig, ModelConfig
from lfo.env import Episode, Oracle, RandomForm, run_scripted
from lfo.records import Turn
from lfo.tokens import (
    CALL_PREFIX,
    CHAT_IMAGINED,
    CHAT_QUESTION,
    CHAT_RULES,
    PREDICTED_TOOLS,
    SPECIAL_TOKENS,
    STATE_TOKENS,
    CallExample,
    ChatCodec,
    Codec,
    Role,
    TokenizerError,
    collate_calls,
    collate_trajectories,
    load_codec,
    reply_mask,
    segments,
    state_text,
    without,
)
from lfo.tools import TOOLS, Malformed, ToolCall, format_call, json_schema, parse_action


@pytest.fixture(scope="module")
def episode(tiny) -> Episode:
    """The oracle's way through the fraud task of the small world: directory, form, two calls."""
    task = next(t for t in tiny.tasks if t.task_id == "fraud")
    episode = Episode(tiny, task, EnvConfig(), 0)
    return run_scripted(episode, Oracle(episode, tiny, None))


def call_turn(number: str, status: str = "auth_failed", message: str = "Billing. I need your email address.") -> Turn:
    action = format_call("make_phone_call", {"phone_number": number, "auth_info": {}})
    return Turn(action, json.dumps({"status": status, "message": message}), "make_phone_call", status)


# --- text and ids ----------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"])))  # all but lone surrogates, which have no UTF-8 form
def test_any_text_makes_the_round_trip(codec, text):
    assert codec.decode(codec.encode(text)) == text


@pytest.mark.parametrize(
    "text", ["", "  two  spaces ", "a\n\tb\r\n", "don't", "é e\u0301 😀 漢", "<|end|><|tool|>", "<|x|>"]
)
def test_awkward_text_makes_the_round_trip(codec, text):
    assert codec.decode(codec.encode(text)) == text


def test_structure_is_one_token_each(codec):
    for token in SPECIAL_TOKENS:
        assert len(codec.encode(token)) == 1
    assert (codec.decode([codec.pad_id]), codec.decode([codec.end_id])) == ("<|pad|>", "<|end|>")
    assert codec.decode([codec.csr_end_id]) == "<|/csr|>"


def test_a_tokenizer_without_the_tags_is_refused():
    bare = Tokenizer(models.WordLevel({"[UNK]": 0, "<|pad|>": 1, "<|task|>": 2}, unk_token="[UNK]"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(TokenizerError) as error:
        Codec(PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="[UNK]"))
    assert "lacks <|/task|>, <|tool|>," in str(error.value) and "embedded base" in str(error.value)
    assert "<|pad|>" not in str(error.value) and "<|task|>" not in str(error.value)


# --- the policy's trajectory -----------------------------------------------------------------


def test_the_pieces_of_a_trajectory_are_the_text(codec, episode):
    """Each piece is tokenised by itself; their concatenation decodes to the dialect of the module's first lines."""
    ids, text = codec.prompt(episode.request), f"<|task|>{episode.request}<|/task|>"
    for turn in episode.turns:
        ids += [*codec.opener, *codec.encode(turn.action), codec.end_id, *codec.observation(turn.observation)]
        text += f"<|tool|>{turn.action}<|end|><|obs|>{turn.observation}<|/obs|>"
    assert codec.decode(ids) == text
    assert len(episode.turns) == 4


def test_action_text_takes_off_one_closing_tag(codec):
    call = format_call("search_company", {"company_name": "Harbor Bank"})
    ids = codec.encode(call)
    assert codec.action_text([*ids, codec.end_id]) == call
    assert codec.action_text(ids) == call  # never closed
    assert codec.action_text([codec.end_id]) == "" == codec.action_text([])
    assert codec.action_text([*ids, codec.end_id, codec.end_id]) == call + "<|end|>"


def test_imagined_is_the_sampled_reply_between_its_own_tags(codec):
    reply = codec.world_reply('{"status": "success", "message": "Sales. Done."}')
    assert codec.decode(codec.imagined(reply)) == (
        '<|imagine|>{"status": "success", "message": "Sales. Done."}<|/imagine|>'
    )
    assert codec.imagined(reply[:-1]) == codec.imagined(reply)  # cut off by the token limit
    assert codec.imagined(reply)[1:-1] == reply[:-1]  # the sampler's ids, not another tokenisation


def test_a_phone_number_fits_into_its_tokens(codec, world):
    numbers = [d.phone for c in world.companies.values() for d in c.departments]
    assert all(len(codec.encode(n)) < codec.number_tokens for n in numbers)
    call = format_call("make_phone_call", {"phone_number": numbers[0], "auth_info": {}})
    ids = codec.encode(call)
    assert codec.call_prefix() == ids[: len(codec.call_prefix())] and call.startswith(CALL_PREFIX)
    assert codec.decode(ids[len(codec.call_prefix()) :][: codec.number_tokens]).startswith(numbers[0])


def test_segments_end_where_the_role_changes(codec, make_trajectory):
    task, call, answer = codec.prompt("Please."), codec.encode("search_company"), codec.observation("{}")
    row = make_trajectory(task, call, answer, call)
    assert segments(codec, row) == [
        (Role.PROMPT, "<|task|>Please.<|/task|>", len(task)),
        (Role.ACTION, "search_company", len(call)),
        (Role.OBSERVATION, "<|obs|>{}<|/obs|>", len(answer)),
        (Role.ACTION, "search_company", len(call)),
    ]
    assert segments(codec, make_trajectory([])) == []


def test_a_trajectory_without_the_tokens_of_a_role(make_trajectory):
    row = make_trajectory([1, 2], [3], [4, 5, 6], [7], logprob=-2.0)
    row.roles[3:5] = [int(Role.IMAGINED)] * 2
    bare = without(row, Role.IMAGINED)
    assert bare.tokens == [1, 2, 3, 6, 7] and len(row.tokens) == 7
    assert bare.roles == [Role.PROMPT, Role.PROMPT, Role.ACTION, Role.OBSERVATION, Role.ACTION]
    assert bare.logprobs == [0, 0, -2.0, 0, -2.0]
    assert without(bare, Role.IMAGINED) == bare


# --- the world model's state -----------------------------------------------------------------


def test_state_by_hand():
    departments = [{"name": "Billing", "phone": "800-555-0003"}, {"name": "Sales", "phone": "800-555-0005"}]
    turns = [
        Turn("search", json.dumps({"departments": departments}), "search_company", "ok"),
        Turn("form", '{"email": "ana77@example.com", "unavailable": ["last_4_cc"]}', "auth_info_form", "ok"),
        call_turn("800-555-0003"),
        Turn("gibberish", '{"error": "no"}', "", "error"),
        Turn("form", "not JSON", "auth_info_form", "refused"),
    ]
    assert state_text("Please.", []) == (
        "Please. Step 1. Directory: . Previous Actions: . Collected Auth: []. Unavailable: []."
    )
    rest = "make_phone_call 800-555-0003 auth_failed; none error; auth_info_form refused."
    collected = 'Collected Auth: ["email"]. Unavailable: ["last_4_cc"].'
    directory = "Please. Step 6. Directory: Billing 800-555-0003; Sales 800-555-0005."
    assert state_text("Please.", turns) == (
        f"{directory} Previous Actions: search_company ok; auth_info_form ok; {rest} {collected}"
    )
    assert state_text("Please.", turns, dropped=2) == f"{directory} Previous Actions: {rest} {collected}"


def test_world_example_is_the_template(codec, episode):
    examples = codec.call_examples("fraud", episode.request, episode.turns, "phone")
    assert [e.status for e in examples] == ["success", "success"]
    for example, i in zip(examples, (2, 3), strict=True):
        turn = episode.turns[i]
        assert codec.decode([*example.prompt, *example.reply]) == (
            f"<|state|>{state_text(episode.request, episode.turns[:i])}<|/state|>"
            f"<|action|>{turn.action}<|/action|><|predict_csr|><|csr|>{turn.observation}<|/csr|>"
        )
        assert (example.task_id, example.reply_text) == ("fraud", turn.observation)
        assert codec.reply_text(example.reply) == turn.observation


@pytest.mark.parametrize(("predict", "turns"), [("nothing", []), ("phone", [2, 3]), ("phone+form", [1, 2, 3])])
def test_what_is_predicted_is_an_option(codec, episode, predict, turns):
    found = codec.call_examples("fraud", episode.request, episode.turns, predict)
    assert [e.reply_text for e in found] == [episode.turns[i].observation for i in turns]
    assert len(codec.call_examples("fraud", episode.request, episode.turns, "all")) == 4
    assert predict in PREDICTED_TOOLS


def test_values_of_the_form_never_enter_a_state(world):
    """What the user gave stands in no state of any step, neither of exploratory episodes nor of the oracle's."""
    seen = 0
    for i, task in enumerate(world.split("train")[:60]):
        episode = Episode(world, task, EnvConfig(slack=9), i)
        run_scripted(episode, (Oracle, RandomForm)[i % 2](episode, world, random.Random(i)))
        for step in range(len(episode.turns) + 1):
            state = state_text(episode.request, episode.turns[:step])
            for department in world.companies[task.company_id].departments:
                state = state.replace(department.phone, "")  # four digits may be like those of a value
            assert not [v for v in episode.collected.values() if v in state]
            seen += len(episode.collected)
    assert seen > 300


def test_a_long_state_drops_its_oldest_actions_and_keeps_the_directory(codec, tiny, episode):
    turns = [episode.turns[0], *(call_turn(f"800-555-{i:04d}") for i in range(100))]
    prompt = codec.decode(codec.world_prompt(episode.request, turns, "x"))
    state = prompt.partition("<|state|>")[2].partition("<|/state|>")[0]
    assert 450 < len(codec.encode(f"<|state|>{state}<|/state|>")) <= STATE_TOKENS
    for department in tiny.companies["bank"].departments:
        assert f"{department.name} {department.phone}" in state
    kept = [i for i in range(100) if f"make_phone_call 800-555-{i:04d}" in state]
    assert kept == list(range(kept[0], 100)) and kept[0] > 10
    assert "search_company ok" not in state
    assert state.startswith(f"{episode.request} Step 102.")
    longer = codec.encode(f"<|state|>{state_text(episode.request, turns, kept[0])}<|/state|>")
    assert len(longer) > STATE_TOKENS  # not one action more than necessary was dropped


@pytest.fixture
def played(codec, episode, make_trajectory):
    """The episode as the rollout loop writes it: a trajectory whose openers stand with what is before them."""
    pieces = [[*codec.prompt(episode.request), *codec.opener]]
    for turn in episode.turns:
        pieces += [[*codec.encode(turn.action), codec.end_id], [*codec.observation(turn.observation), *codec.opener]]
    pieces[-1] = pieces[-1][:-1]  # nobody acts after the last answer
    return make_trajectory(*pieces, turns=episode.turns)


@pytest.mark.parametrize(("predict", "turns"), [("phone", [2, 3]), ("phone+form", [1, 2, 3]), ("nothing", [])])
def test_replies_in_a_trajectory_are_found(codec, episode, played, predict, turns):
    """What the world model learns there is what it learns elsewhere: the answer and its closing tag."""
    mask = reply_mask(played, predict)
    heard = codec.decode([i for i, learned in zip(played.tokens, mask, strict=True) if learned])
    assert heard == "".join(f"{episode.turns[i].observation}<|/obs|>" for i in turns)


def test_the_template_trajectory_is_what_the_policy_reads(base_path, episode, played):
    """A world-model example continues the very tokens of the trajectory, and says what was asked."""
    codec = Codec.load(base_path, "trajectory")
    examples = codec.call_examples("fraud", episode.request, episode.turns, "phone")
    for example, i in zip(examples, (2, 3), strict=True):
        assert [*example.prompt, *example.reply] == played.tokens[: len(example.prompt) + len(example.reply)]
        assert codec.reply_text(example.reply) == episode.turns[i].observation
        assert codec.asked_about(example.prompt) == episode.turns[i].action


def test_what_a_world_prompt_asks_about(codec, episode):
    (first, _) = codec.call_examples("fraud", episode.request, episode.turns, "phone")
    assert codec.asked_about(first.prompt) == episode.turns[2].action


@pytest.mark.parametrize("number", [r"\ud800", r"\u0000", "😀" * 20, "<|/state|>", "x" * 50, ""])
def test_whatever_was_dialled_can_be_said_to_the_world_model(codec, number):
    """A lone surrogate is legal JSON and has no UTF-8 form."""
    turn = Turn(f'{CALL_PREFIX}{number}", "auth_info": {{}}}}', "{}", "make_phone_call", "wrong_department")
    assert len(codec.world_prompt("Please.", [turn], turn.action)) > 10
    assert len(state_text("Please.", [turn])) < 200


# --- the chat dialect ------------------------------------------------------------------------

NO_THOUGHT = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module", params=["qwen3", "qwen3 thinking", "chatml"])
def chat(request, chat_path) -> ChatCodec:
    """Codecs of the small chat tokenizer: with a template that behaves as Qwen3's, and with the shipped one."""
    template = "" if request.param.startswith("qwen3") else "configs/chatml_tools.jinja"
    model = ModelConfig(str(chat_path), dialect="chat", chat_template=template, thinking="thinking" in request.param)
    return load_codec(model)


def chat_message(chat: ChatCodec, action: str) -> tuple[str, dict]:
    """What a chat model samples to take this action, and the same as a message for the template."""
    call = parse_action(action)
    function = {"name": call.tool, "arguments": call.arguments}
    thought = f"<think>\nNow {call.tool}.\n</think>\n\n" if chat._thinking else ""
    text = f"{thought}<tool_call>\n{json.dumps(function)}\n</tool_call>"
    return text, {"role": "assistant", "content": thought, "tool_calls": [{"type": "function", "function": function}]}


def test_the_pieces_of_a_chat_are_the_template(chat, episode):
    """The oracle's whole way: the same text and the same tokens as the template's rendering of it all.

    An empty thought of an earlier message is left out by Qwen3's template; what was sampled is kept here.
    """
    messages = [{"role": "system", "content": CHAT_RULES}, {"role": "user", "content": episode.request}]
    ids = chat.prompt(episode.request)
    for turn in episode.turns:
        text, message = chat_message(chat, turn.action)
        ids += [*chat.opener, *chat.encode(text), chat.end_id, *chat.observation(turn.observation)]
        messages += [message, {"role": "tool", "content": turn.observation}]
    tools = [json_schema(tool) for tool in TOOLS]
    whole = chat.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    assert len(episode.turns) == 4
    assert chat.decode(ids).replace(NO_THOUGHT, "") == whole.replace(NO_THOUGHT, "")
    assert chat.encode(chat.decode(ids)) == ids  # cut where tokens end anyway
    if NO_THOUGHT not in chat.decode(chat.opener):
        assert chat.decode(ids) == whole


def test_every_tool_is_shown_to_a_chat_model(chat):
    prompt = chat.decode(chat.prompt("Please."))
    assert all(json.dumps(json_schema(tool)) in prompt for tool in TOOLS)
    assert prompt.index("Please.") > prompt.index("make_phone_call")


def test_chat_actions_are_those_of_the_environment(chat, episode):
    for turn in episode.turns:
        text, _ = chat_message(chat, turn.action)
        assert parse_action(chat.action_text([*chat.encode(text), chat.end_id])) == parse_action(turn.action)
    assert chat.action_text([*chat.encode("All done."), chat.end_id]) == ""
    assert chat.action_text([chat.end_id]) == ""


def test_a_chat_message_that_was_cut_off_is_malformed_unless_its_call_was_made(chat):
    text, _ = chat_message(chat, format_call("search_company", {"company_name": "x"}))
    assert parse_action(chat.action_text(chat.encode(text))) == ToolCall("search_company", {"company_name": "x"})
    for cut in (text[:-15], "<think>\nOn the one hand", "I think that", ""):
        assert isinstance(parse_action(chat.action_text(chat.encode(cut))), Malformed)


def test_a_chat_call_can_be_begun(chat):
    """The forced beginning and a sampled number are the beginning of the template's own call, after no thought."""
    text = chat.decode([*chat.opener, *chat.call_prefix()])
    assert text.removeprefix("<|im_start|>assistant\n").removeprefix(NO_THOUGHT) == (
        '<tool_call>\n{"name": "make_phone_call", "arguments": {"phone_number": "'
    )
    assert chat.number_tokens == 13
    rest = chat.encode('800-555-0100", "auth_info": {}}}\n</tool_call>')
    call = parse_action(chat.action_text([*chat.call_prefix(), *rest, chat.end_id]))
    assert call == ToolCall("make_phone_call", {"phone_number": "800-555-0100", "auth_info": {}})


def test_an_imagined_reply_is_a_user_message_of_its_own(chat):
    reply = chat.world_reply('{"status": "success"}')
    assert reply[-1] == chat.csr_end_id and chat.reply_text(reply) == '{"status": "success"}'
    text = chat.decode(chat.imagined(reply))
    assert text == f"<|im_start|>user\n{CHAT_IMAGINED.format(reply=chat.reply_text(reply))}<|im_end|>\n"
    assert chat.imagined(reply[:-1]) == chat.imagined(reply)  # cut off by the token limit


def test_the_world_model_is_asked_in_a_chat_without_tools(chat, episode):
    (example, _) = chat.call_examples("fraud", episode.request, episode.turns, "phone")
    text, call = chat.decode(example.prompt), episode.turns[2].action
    state = f"<|state|>{state_text(episode.request, episode.turns[:2])}<|/state|>"
    question = f"<|im_start|>user\n{CHAT_QUESTION.format(state=state, action=call)}<|im_end|>\n<|im_start|>assistant\n"
    assert text.removesuffix(NO_THOUGHT) == question  # no thinking, whatever the policy does
    assert text.partition("<|action|>")[2].partition("<|/action|>")[0] == call
    assert chat.decode(example.reply) == f"{episode.turns[2].observation}<|im_end|>"
    long = chat.decode(chat.world_prompt(episode.request, [call_turn("800-555-0003")] * 200, call))
    assert len(chat.encode(long.partition("<|/state|>")[0])) < STATE_TOKENS + 10


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (
            "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
            "does not show the model its tools",
        ),
        ("{{ tools }}{% for m in messages %}{{ m.content }}.{% endfor %}", "with a token of its own"),
        (
            "{{ tools }}{{ messages | length }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
            "changes the",
        ),
        (
            "{{ tools }}{% for m in messages if m.role != 'tool' %}{{ m.content }}<|im_end|>{% endfor %}",
            "leaves out what",
        ),
        ("{{ tools }}{{ raise_exception('no tools here') }}", "fails on a conversation with tools (no tools here)"),
        ("{{ tools }}{{ messages[0].contents.x }}", "fails on a conversation with tools ("),
    ],
)
def test_a_template_that_cannot_serve_is_refused(chat_path, tmp_path, template, problem):
    path = tmp_path / "template.jinja"
    path.write_text(template)
    with pytest.raises(TokenizerError) as error:
        load_codec(ModelConfig(str(chat_path), dialect="chat", chat_template=str(path)))
    assert problem in str(error.value)


def test_the_dialect_chooses_the_codec(codec, toy_path, chat_path, tmp_path):
    assert type(load_codec(ModelConfig(str(toy_path)))) is Codec
    assert type(load_codec(ModelConfig(str(chat_path), dialect="chat"))) is ChatCodec
    with pytest.raises(TokenizerError, match=r"has no chat template; set model\.chat_template"):
        load_codec(ModelConfig(str(toy_path), dialect="chat"))
    with pytest.raises(TokenizerError, match="lacks"):
        load_codec(ModelConfig(str(chat_path)))


def test_a_chat_tokenizer_without_padding_pads_with_its_end(chat_path):
    tokenizer = load_tokenizer(chat_path)
    assert ChatCodec(tokenizer).pad_id == tokenizer.pad_token_id != ChatCodec(tokenizer).end_id
    tokenizer.pad_token = None
    assert ChatCodec(tokenizer).pad_id == ChatCodec(tokenizer).end_id


# --- batches ---------------------------------------------------------------------------------


def test_policy_mask_by_hand(make_trajectory):
    """P prompt, A action, O observation: P P A A O | A and P A, padded to the longer row."""
    long = make_trajectory([10, 11], [12, 13], [14], [15], logprob=-2.0)
    short = make_trajectory([20], [21], logprob=-3.0)
    batch = collate_trajectories([long, short], [0.5, -1.5], pad_id=99)
    assert batch.tokens.tolist() == [[10, 11, 12, 13, 14, 15], [20, 21, 99, 99, 99, 99]]
    assert batch.attention.tolist() == [[1] * 6, [1, 1, 0, 0, 0, 0]]
    assert batch.loss_mask.tolist() == [[0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert batch.old_logprobs.tolist() == [[0, 0, -2, -2, 0, -2], [0, -3, 0, 0, 0, 0]]
    assert batch.advantages.tolist() == [0.5, -1.5]
    assert (batch.tokens.dtype, batch.loss_mask.dtype) == (torch.int64, torch.float32)


def test_a_row_without_an_advantage_only_listens(make_trajectory):
    """Prompt, action, <|obs|> reply <|/obs|> <|tool|>, action: the reply and its tag, and who acts its actions."""
    call = Turn("call", "reply", "make_phone_call", "success")
    rows = [make_trajectory([1], [2, 3], [4, 5, 6, 7], [8], turns=[call, call]) for _ in range(2)]
    batch = collate_trajectories(rows, [0.5, None], pad_id=0, predict="phone")
    assert batch.heard.tolist() == [[0, 0, 0, 0, 1, 1, 0, 0]] * 2
    assert batch.loss_mask.tolist() == [[0, 1, 1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 1, 1, 0, 0]]
    assert batch.advantages.tolist() == [0.5, 0.0]
    assert collate_trajectories(rows, [0.5, 0.5], pad_id=0).heard.sum() == 0


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.ACTION])
def test_only_actions_are_trained(make_trajectory, role):
    row = make_trajectory([10, 11], [12])
    row.roles[1] = int(role)
    assert collate_trajectories([row], [1.0], 0).loss_mask.tolist() == [[0, 0, 1]]


def test_world_model_mask_by_hand():
    rows = [CallExample((1, 2, 3), (4, 5), "success", "", "t"), CallExample((6,), (7, 8, 9), "success", "", "t")]
    batch = collate_calls(rows, pad_id=0)
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]]
    assert batch.attention.tolist() == [[1] * 5, [1, 1, 1, 1, 0]]
    assert batch.loss_mask.tolist() == [[0, 0, 0, 1, 1], [0, 1, 1, 1, 0]]
    assert batch.old_logprobs.shape == (2, 5) and batch.advantages.tolist() == [0, 0]


@pytest.mark.parametrize("batch", [collate_trajectories([], [], 0), collate_calls([], 0)])
def test_an_empty_batch_has_a_shape(batch):
    assert batch.tokens.shape == batch.loss_mask.shape == batch.old_logprobs.shape == (0, 1)
    assert batch.to("cpu").advantages.shape == (0,)
