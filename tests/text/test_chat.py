"""chat: a chat model's own template around the same actions and answers, and templates that cannot serve."""

from __future__ import annotations

import dataclasses
import json

import pytest
from toy import Counting

from lfo.config import ModelConfig
from lfo.envs.base import written
from lfo.envs.phone import PhoneEnvironment
from lfo.envs.phone.callers import Oracle, run_scripted
from lfo.envs.phone.environment import SYSTEM
from lfo.envs.phone.tools import TOOLS, phone_call, search
from lfo.protocols import Blank, Question
from lfo.text import ChatCodec, Codec, TokenizerError, load_codec
from lfo.text.base import load_tokenizer
from lfo.text.chat import ANSWERED, EXAMPLE, QUESTION
from lfo.text.codec import STATE_TOKENS
from lfo.types import Action, Hangup, Malformed, Turn

NO_THOUGHT = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module", params=["chat", "configs/chatml_tools.jinja"])
def chat(request, chat_path, env) -> ChatCodec:
    """Codecs of the small chat tokenizer: with a template that behaves as Qwen3's, and with the shipped one."""
    return load_codec(ModelConfig(str(chat_path), dialect=request.param), env)


@pytest.fixture(scope="module")
def episode(tiny):
    """The oracle's way through the fraud task of the small world: directory, form, two calls."""
    task = next(t for t in tiny.tasks if t.task_id == "fraud")
    episode = PhoneEnvironment(tiny).episode(task, 0)
    return run_scripted(episode, Oracle(episode, tiny, None))


def message(action: Action) -> tuple[str, dict]:
    """What a chat model samples to take this action, and the same as a message for the template."""
    function = {"name": action.tool, "arguments": action.arguments}
    text = f"<tool_call>\n{json.dumps(function)}\n</tool_call>"
    return text, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def test_the_pieces_of_a_chat_are_the_template(chat, episode):
    """The oracle's whole way: the same text and the same tokens as the template's rendering of it all.

    An empty thought of an earlier message is left out by Qwen3's template; what was sampled is kept here.
    """
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": episode.request}]
    ids = chat.prompt(episode.request)
    for turn in episode.turns:
        text, said = message(turn.action)
        ids += [*chat.opener, *chat.encode(text), chat.end_id, *chat.observation(turn.observation)]
        messages += [said, {"role": "tool", "content": turn.observation}]
    tools = [tool.schema() for tool in TOOLS.values()]
    whole = chat.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    assert len(episode.turns) == 4
    assert chat.decode(ids).replace(NO_THOUGHT, "") == whole.replace(NO_THOUGHT, "")
    assert chat.encode(chat.decode(ids)) == ids  # cut where tokens end anyway
    if NO_THOUGHT not in chat.decode(chat.opener):
        assert chat.decode(ids) == whole


def test_every_tool_is_shown_to_a_chat_model(chat):
    prompt = chat.decode(chat.prompt("Please."))
    assert len(TOOLS) == 3 and all(json.dumps(tool.schema()) in prompt for tool in TOOLS.values())
    assert prompt.index("Please.") > prompt.index("make_phone_call")


def test_chat_actions_are_those_of_the_environment(chat, episode):
    for turn in episode.turns:
        assert chat.action([*chat.encode(message(turn.action)[0]), chat.end_id]) == turn.action
    assert chat.action([*chat.encode("All done."), chat.end_id]) == Hangup()
    assert chat.action([chat.end_id]) == Hangup()


def test_a_chat_message_that_was_cut_off_is_malformed_unless_its_call_was_made(chat):
    text, _ = message(search("x"))
    assert chat.action(chat.encode(text)) == search("x")
    for cut in (text[:-15], "<think>\nOn the one hand", "I think that", ""):
        assert isinstance(chat.action(chat.encode(cut)), Malformed)


def test_a_chat_call_can_be_begun(chat):
    """The forced beginning and a sampled number are the beginning of the template's own call, after no thought."""
    blank = Blank(phone_call("800-555-0100"), "800-555-0100")
    begun = chat.beginning(blank)
    assert begun[: len(chat.opener)] == chat.opener
    assert chat.decode(begun).removeprefix("<|im_start|>assistant\n").removeprefix(NO_THOUGHT) == (
        '<tool_call>\n{"name": "make_phone_call", "arguments": {"phone_number": "'
    )
    assert chat.blank_length(blank) == 13  # a digit is a token
    rest = chat.encode('800-555-0199", "auth_info": {}}}\n</tool_call>')
    assert chat.action([*begun[len(chat.opener) :], *rest, chat.end_id]) == phone_call("800-555-0199")


def test_a_note_is_a_user_message_of_its_own(chat, env):
    reply = chat.reply('{"status": "success"}')
    assert reply[-1] == chat.reply_end_id and chat.reply_text(reply) == '{"status": "success"}'
    for source in ("world model", "memory", "truth"):
        hint = env.knowledge.hint.format(source=source, reply='{"status": "success"}')
        assert source in hint
        assert chat.decode(chat.note(source, reply)) == f"<|im_start|>user\n{hint}<|im_end|>\n"
        assert chat.note(source, reply[:-1]) == chat.note(source, reply)  # cut off by the token limit
    split = [i for letter in "please" for i in chat.encode(letter)]  # as a sampler may spell it
    assert split != chat.encode("please") and str(split)[1:-1] in str(chat.note("memory", split))
    ends = chat.encode("Done<|im_end|>.")  # or it could end its message, and speak for another
    assert chat.note("memory", ends) == chat.note("memory", [*chat.encode("Done"), *chat.encode(".")])


@pytest.mark.parametrize(
    "hint", ["{reply} (says the {source})", "{source}: {reply}", "By the {source}, {reply}, {source}."]
)
def test_who_says_a_note_stands_where_the_environment_puts_it(chat_path, env, monkeypatch, hint):
    monkeypatch.setattr(type(env.knowledge), "hint", hint)
    chat = load_codec(ModelConfig(str(chat_path), dialect="chat"), env)
    told = hint.format(source="memory", reply="done")
    assert chat.decode(chat.note("memory", chat.reply("done"))) == f"<|im_start|>user\n{told}<|im_end|>\n"


def test_the_world_model_is_asked_in_a_chat_without_tools(chat, env, episode):
    (example, _) = chat.examples("fraud", episode.request, episode.turns, "phone")
    text, call = chat.decode(example.encoded.prompt), episode.turns[2].action
    state = f"<|state|>{env.knowledge.state(Question(episode.request, tuple(episode.turns[:2]), call))}<|/state|>"
    asked = QUESTION.format(state=state, action=written(call))
    question = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
    assert text.removesuffix(NO_THOUGHT) == question  # no thinking
    assert chat.decode(example.encoded.reply) == f"{episode.turns[2].observation}<|im_end|>"
    reading = dataclasses.replace(example.question, similar=("memory: one", "memory: two"))
    assert chat.decode(chat.question(reading)) == text.replace(asked, f"memory: one\nmemory: two\n{asked}")
    long = Question(episode.request, (Turn(call, "{}", "auth_failed"),) * 200, call)
    assert len(chat.encode(chat.decode(chat.question(long)).partition("<|/state|>")[0])) < STATE_TOKENS + 10


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
        (  # a call would not begin as a message is opened
            "{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>{% endif %}",
            "changes the",
        ),
        ("{{ tools }}{{ raise_exception('no tools here') }}", "fails on a conversation with tools (no tools here)"),
        ("{{ tools }}{{ messages[0].contents.x }}", "fails on a conversation with tools ("),
    ],
)
def test_a_template_that_cannot_serve_is_refused(chat_path, env, tmp_path, template, problem):
    path = tmp_path / "template.jinja"
    path.write_text(template)
    with pytest.raises(TokenizerError) as error:
        load_codec(ModelConfig(str(chat_path), dialect=str(path)), env)
    assert problem in str(error.value)


def test_the_dialect_chooses_the_codec(toy_path, chat_path, env):
    assert type(load_codec(ModelConfig(str(toy_path)), env)) is Codec
    assert load_codec(ModelConfig(str(toy_path)), env, in_passing=True).in_passing
    assert type(load_codec(ModelConfig(str(chat_path), dialect="chat"), env)) is ChatCodec
    with pytest.raises(TokenizerError, match=r"has no chat template; name a file in model\.dialect"):
        load_codec(ModelConfig(str(toy_path), dialect="chat"), env)
    with pytest.raises(TokenizerError, match="lacks"):
        load_codec(ModelConfig(str(chat_path)), env)
    with pytest.raises(FileNotFoundError):
        load_codec(ModelConfig(str(chat_path), dialect="nowhere.jinja"), env)


def test_a_chat_tokenizer_without_padding_pads_with_its_end(chat_path, env):
    tokenizer = load_tokenizer(chat_path)
    assert ChatCodec(tokenizer, env).pad_id == tokenizer.pad_token_id != ChatCodec(tokenizer, env).end_id
    tokenizer.pad_token = None
    assert ChatCodec(tokenizer, env).pad_id == ChatCodec(tokenizer, env).end_id


def test_an_environment_without_knowledge_has_no_notes(chat_path):
    chat = load_codec(ModelConfig(str(chat_path), dialect="chat"), Counting())
    prompt = chat.decode(chat.prompt("Count to 2."))
    assert "Count to 2.<|im_end|>" in prompt
    assert json.dumps(Counting.tools["count"].schema()) in prompt and "make_phone_call" not in prompt


def test_who_writes_feedback_is_shown_how_before_it_is_asked(chat, episode):
    refused = Turn(phone_call("800-555-0199", {}), '{"status": "auth_failed", "message": "Your PIN."}', "auth_failed")
    prompt, end = chat.critique(episode.request, [refused], "earlier attempt")
    shown, answered, asked = chat.decode(prompt).split("<|im_end|>")[-4:-1]
    assert EXAMPLE["done"] in shown and "This attempt failed." in shown
    assert ANSWERED in answered and episode.request not in shown + answered
    assert f"{written(refused.action)} -> {refused.observation}\nThis attempt failed." in asked
    assert chat.decode(prompt).endswith(chat.decode(chat.opener)) and end == chat.end_id
