"""base: which calls can be read, what is said of the others, a chat model's messages; on the phone world's tools."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfo.envs.base import ARGS_TAG, MAX_ACTION_CHARS, Tool, from_chat, written
from lfo.envs.base import parse_action as parse
from lfo.envs.phone.tools import TOOLS
from lfo.envs.phone.vocabulary import FIELDS
from lfo.types import Call, Hangup, Malformed, Turn, from_json, to_json


def parse_action(text: str) -> Call | Hangup | Malformed:
    return parse(text, TOOLS)


FORM = "auth_info_form<|args|>"
CALL = "make_phone_call<|args|>"
SEARCH = "search_company<|args|>"


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ('search_company<|args|>{"company_name": "Harbor Bank"}', "search_company", {"company_name": "Harbor Bank"}),
        ('  search_company <|args|> {"company_name":""} ', "search_company", {"company_name": ""}),
        ('auth_info_form<|args|>{"fields": []}', "auth_info_form", {"fields": []}),
        ('auth_info_form<|args|>{"fields": ["email", "name"]}', "auth_info_form", {"fields": ["email", "name"]}),
        (
            'make_phone_call<|args|>{"auth_info": {"what": "ever"}, "phone_number": "x"}',
            "make_phone_call",
            {"phone_number": "x", "auth_info": {"what": "ever"}},
        ),
        ('search_company<|args|>{"company_name": "<|args|>"}', "search_company", {"company_name": "<|args|>"}),
        ('search_company<|args|>{"company_name": "\\ud83d\\ude00"}', "search_company", {"company_name": "😀"}),
    ],
)
def test_good_calls(text, tool, arguments):
    assert parse_action(text) == Call(tool, arguments)


@pytest.mark.parametrize("text", ["", " ", "\n\t\u3000"])
def test_nothing_is_a_stop(text):
    assert parse_action(text) == Hangup()


NO_JSON = "The arguments are not valid JSON."
NO_TAG = "A call needs <|args|> between the tool and its arguments."
NO_TOOL = "There is no such tool. Tools: search_company, auth_info_form, make_phone_call."
PHONE_TAKES = "make_phone_call takes exactly: phone_number, auth_info."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", NO_TAG),
        ('search_company{"company_name": "x"}', NO_TAG),
        ("<|args|>{}", NO_TOOL),
        ("Search_company<|args|>{}", NO_TOOL),
        ("hang_up<|args|>{}", NO_TOOL),
        (SEARCH, NO_JSON),
        (SEARCH + '{"company_name": "x"', NO_JSON),
        (SEARCH + '{"company_name": "x"} and more', NO_JSON),
        (SEARCH + "{'company_name': 'x'}", NO_JSON),
        (SEARCH + '{"company_name": "x", "company_name": "y"}', NO_JSON),
        (CALL + '{"phone_number": "1", "auth_info": {"name": "a", "name": "b"}}', NO_JSON),
        (SEARCH + '{"company_name": "\\ud800"}', NO_JSON),  # half a surrogate pair is no text
        (SEARCH + "[" * 3_000, NO_JSON),
        (SEARCH + '{"company_name": ' * 200, NO_JSON),
        (SEARCH + '{"a":' * 500 + "1" + "}" * 500, "search_company takes exactly: company_name."),
        (SEARCH + "9" * 3_900, "search_company takes exactly: company_name."),
        (SEARCH + "NaN", "search_company takes exactly: company_name."),
        (SEARCH + "null", "search_company takes exactly: company_name."),
        (SEARCH + '["company_name"]', "search_company takes exactly: company_name."),
        (SEARCH + '{"company": "x"}', "search_company takes exactly: company_name."),
        (SEARCH + '{"company_name": "x", "limit": 3}', "search_company takes exactly: company_name."),
        (SEARCH + '{"company_name": 1e999}', "company_name must be a string."),
        (SEARCH + '{"company_name": null}', "company_name must be a string."),
        (FORM + '{"fields": "name"}', "fields must be a list of strings."),
        (FORM + '{"fields": {"name": "name"}}', "fields must be a list of strings."),
        (FORM + '{"fields": [["name"]]}', "fields must be a list of strings."),
        (FORM + '{"fields": [1]}', "fields must be a list of strings."),
        (FORM + '{"fields": ["Name"]}', f"fields may only contain: {', '.join(FIELDS)}."),
        (FORM + '{"fields": ["name", "name"]}', "fields must not repeat a field."),
        (CALL + '{"phone_number": "1"}', PHONE_TAKES),
        (CALL + '{"phone_number": "1", "auth_info": {}, "truth": true}', PHONE_TAKES),
        (CALL + '{"phone_number": 8005550100, "auth_info": {}}', "phone_number must be a string."),
        (CALL + '{"phone_number": "1", "auth_info": []}', "auth_info must be an object of strings."),
        (CALL + '{"phone_number": "1", "auth_info": {"name": 5}}', "auth_info must be an object of strings."),
        (
            CALL + '{"phone_number": "1", "auth_info": {"name": {"name": "x"}}}',
            "auth_info must be an object of strings.",
        ),
    ],
)
def test_bad_calls_say_what_is_wrong(text, reason):
    assert parse_action(text) == Malformed(text, reason)


def test_length_limit_is_exact():
    def sized(n):
        frame = len(written(Call("search_company", {"company_name": ""})))
        return written(Call("search_company", {"company_name": "x" * (n - frame)}))

    assert len(sized(MAX_ACTION_CHARS)) == MAX_ACTION_CHARS
    assert isinstance(parse_action(sized(MAX_ACTION_CHARS)), Call)
    assert parse_action(sized(MAX_ACTION_CHARS + 1)) == Malformed(sized(MAX_ACTION_CHARS + 1), "The call is too long.")


def test_written_is_the_tags_dialect():
    text = written(Call("make_phone_call", {"phone_number": "800-555-0100", "auth_info": {"name": "Ana"}}))
    assert text == 'make_phone_call<|args|>{"phone_number": "800-555-0100", "auth_info": {"name": "Ana"}}'


ARGUMENTS = {
    "search_company": st.fixed_dictionaries({"company_name": st.text(max_size=50)}),
    "auth_info_form": st.fixed_dictionaries({"fields": st.lists(st.sampled_from(list(FIELDS)), unique=True)}),
    "make_phone_call": st.fixed_dictionaries(
        {"phone_number": st.text(max_size=20), "auth_info": st.dictionaries(st.text(max_size=9), st.text(max_size=9))}
    ),
}
CALLS = st.sampled_from(sorted(TOOLS)).flatmap(lambda tool: st.tuples(st.just(tool), ARGUMENTS[tool]))
FAST = settings(max_examples=150, deadline=None, derandomize=True, database=None)


@FAST
@given(CALLS)
def test_what_was_written_is_read_back(call):
    assert parse_action(written(Call(*call))) == Call(*call)


@pytest.mark.parametrize("text", ["", "hello", SEARCH + "{", CALL + "{}"])
def test_what_is_no_call_is_written_as_it_was_said(text):
    assert written(parse_action(text)) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(list(FIELDS)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["fields", "auth_info", "phone_number", "company_name", "name"]), inner)
    ),
    max_leaves=10,
)


@FAST
@given(st.sampled_from([*sorted(TOOLS), "", "tool"]), JSON | st.text(max_size=30))
def test_parse_never_raises_and_only_lets_typed_arguments_through(tool, payload):
    text = payload if isinstance(payload, str) else json.dumps(payload)
    call = parse_action(f"{tool}{ARGS_TAG}{text}")
    if isinstance(call, Call):
        assert set(call.arguments) == set(TOOLS[call.tool].parameters)
        assert isinstance(call.arguments.get("phone_number", ""), str)
        assert all(isinstance(v, str) for v in call.arguments.get("auth_info", {}).values())
        assert set(call.arguments.get("fields", [])) <= set(FIELDS)
    else:
        assert isinstance(call, Malformed)


SORTING = {
    "sort": Tool("sort", "WRITE", "Sort.", {"items": {"type": "array", "items": {"type": "string"}}}),
    "count": Tool("count", "READ", "Count.", {}),
}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('sort<|args|>{"items": ["a", "a"]}', "items must not repeat a value."),
        ("sort<|args|>{}", "sort takes exactly: items."),
        ("search_company<|args|>{}", "There is no such tool. Tools: sort, count."),
    ],
)
def test_another_world_has_other_tools(text, reason):
    assert parse(text, SORTING) == Malformed(text, reason)


def test_tools_of_another_world_can_be_called():
    assert parse('sort<|args|>{"items": ["any", "thing"]}', SORTING) == Call("sort", {"items": ["any", "thing"]})
    assert parse("count<|args|>{}", SORTING) == Call("count", {})


# --- calls in a chat model's words -----------------------------------------------------------

GOOD = '<tool_call>\n{"name": "search_company", "arguments": {"company_name": "Harbor Bank"}}\n</tool_call>'
OTHER = GOOD.replace("Harbor", "Other")


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        f"<think>\nWhom?\n</think>\n\n{GOOD}",
        f"Whom?\n</think>\n\n{GOOD}",  # the template had opened the thought
        f"<think>{OTHER}</think>{GOOD}",  # a call that was only thought of
        f"I will look it up.\n{GOOD}\nOne moment.",
        GOOD + OTHER,  # one call a turn: the first
        GOOD.removesuffix("</tool_call>"),
        '<tool_call>{"arguments": "{\\"company_name\\": \\"Harbor Bank\\"}", "name": "search_company"}</tool_call>',
    ],
)
def test_a_chat_call_is_the_same_action(message):
    assert parse_action(from_chat(message)) == Call("search_company", {"company_name": "Harbor Bank"})


@pytest.mark.parametrize("message", ["", "Done!", "<think>\nShould I\n</think>\n\nGoodbye.", f"<think>I could {GOOD}"])
def test_a_message_without_a_call_hangs_up(message):
    assert from_chat(message) == ""


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ('{"name": "search_company", "arguments": {"company_name": ', NO_JSON),
        ('{"name": "search_company", "arguments": {"company_name": "x", "company_name": "y"}}', NO_JSON),
        ('{"name": "search_company", "parameters": {}}', "search_company takes exactly: company_name."),
        ('{"name": "search_company", "arguments": ["x"]}', "search_company takes exactly: company_name."),
        ('{"name": "search_company", "arguments": "Harbor Bank"}', NO_JSON),
        ('{"name": "hang_up", "arguments": {}}', NO_TOOL),
        ('{"name": null, "arguments": {}}', NO_TOOL),
        ('[{"name": 1}]', NO_TOOL),
        ("search_company", NO_TOOL),
        ("", NO_TOOL),
        ("[" * 3_000, NO_TOOL),
    ],
)
def test_a_broken_chat_call_is_malformed(payload, reason):
    assert parse_action(from_chat(f"<tool_call>{payload}</tool_call>")).reason == reason


@pytest.mark.parametrize("call", ['{"name": "\\ud83d", "arguments": {}}', '{"name": "a", "arguments": "\\ud83d"}'])
def test_half_a_character_in_a_chat_call_can_be_written_down(call):
    """Else a checkpoint with this turn could not be read again."""
    action = parse_action(from_chat(f"<tool_call>{call}</tool_call>"))
    assert from_json(Turn, to_json(Turn(action, "", "error")), "here").action == action


MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>", GOOD, '{"name": "', "[", "}", "a"]


@given(st.lists(st.sampled_from(MARKS)).map("".join))
def test_any_chat_message_can_be_read(message):
    assert isinstance(parse_action(from_chat(message)), Call | Hangup | Malformed)
