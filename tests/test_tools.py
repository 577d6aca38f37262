"""tools: what is a readable call, what is not, and the public directory."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfo.records import Company, Department
from lfo.tools import (
    ARGS_TAG,
    MAX_ACTION_CHARS,
    TOOLS,
    Malformed,
    Stop,
    ToolCall,
    find_company,
    format_call,
    json_schema,
    parse_action,
    read_tool_call,
    search_company,
)
from lfo.world import FIELDS

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
        ('search_company<|args|>{"company_name": "\\ud800"}', "search_company", {"company_name": "\ud800"}),
    ],
)
def test_good_calls(text, tool, arguments):
    assert parse_action(text) == ToolCall(tool, arguments)


@pytest.mark.parametrize("text", ["", " ", "\n\t\u3000"])
def test_nothing_is_a_stop(text):
    assert parse_action(text) == Stop()


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
    assert parse_action(text) == Malformed(reason)


def test_length_limit_is_exact():
    def sized(n):
        frame = len(format_call("search_company", {"company_name": ""}))
        return format_call("search_company", {"company_name": "x" * (n - frame)})

    assert len(sized(MAX_ACTION_CHARS)) == MAX_ACTION_CHARS
    assert isinstance(parse_action(sized(MAX_ACTION_CHARS)), ToolCall)
    assert parse_action(sized(MAX_ACTION_CHARS + 1)) == Malformed("The call is too long.")


def test_format_call_is_the_dialect_of_the_design():
    text = format_call("make_phone_call", {"phone_number": "800-555-0100", "auth_info": {"name": "Ana"}})
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
def test_parse_is_the_inverse_of_format(call):
    assert parse_action(format_call(*call)) == ToolCall(*call)


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
    if isinstance(call, ToolCall):
        assert set(call.arguments) == set(TOOLS[call.tool]["parameters"])
        assert isinstance(call.arguments.get("phone_number", ""), str)
        assert all(isinstance(v, str) for v in call.arguments.get("auth_info", {}).values())
        assert set(call.arguments.get("fields", [])) <= set(FIELDS)
    else:
        assert isinstance(call, Malformed)


def test_schemas():
    assert [(name, spec["kind"]) for name, spec in TOOLS.items()] == [
        ("search_company", "READ"), ("auth_info_form", "WRITE"), ("make_phone_call", "WRITE"),
    ]  # fmt: skip
    schema = json_schema("make_phone_call")
    assert schema["type"] == "function"
    assert schema["function"]["name"] == "make_phone_call"
    assert schema["function"]["parameters"]["required"] == ["phone_number", "auth_info"]
    assert json_schema("auth_info_form")["function"]["parameters"]["properties"]["fields"]["items"]["enum"] == [*FIELDS]


# --- the directory ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Harbor Bank", "harbor bank", " HARBOR BANK!! ", "Harbor", "bor Ba", "Harbr Bank"])
def test_forgiving_match(tiny, name):
    assert find_company(tiny.companies, name).company_id == "bank"


@pytest.mark.parametrize("name", ["", "?!", "Har", "Zebra Airways", "o" * 3_900, "\u0000", "Harbor Bank" * 300])
def test_no_match(tiny, name):
    assert find_company(tiny.companies, name) is None
    assert search_company(tiny.companies, name) == {"departments": []}


def test_a_part_that_fits_several_names_is_no_match(tiny):
    two = tiny.companies | {"two": dataclasses.replace(tiny.companies["bank"], company_id="two", name="Harbor Trust")}
    assert find_company(two, "Harbor") is None
    assert find_company(two, "Harbor Trust").company_id == "two"


def test_every_company_is_found_in_spite_of_a_typing_error(world):
    for company in world.companies.values():
        for typed in (company.name, company.name.upper(), company.name[1:], company.name[:3] + company.name[4:]):
            assert find_company(world.companies, typed) is company, typed


def test_search_returns_the_public_directory_only(tiny):
    found = search_company(tiny.companies, "Summit Stores")
    assert found == {
        "departments": [
            {
                "name": "Sales",
                "phone": "800-555-0009",
                "description": "new products and offers",
                "operating_hours": "Mon-Fri 8-18",
            }
        ]
    }
    assert {f.name for f in dataclasses.fields(Department)} == {"name", "phone", "description", "operating_hours"}
    assert {f.name for f in dataclasses.fields(Company)} == {"company_id", "name", "industry", "departments"}


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
    assert parse_action(read_tool_call(message)) == ToolCall("search_company", {"company_name": "Harbor Bank"})


@pytest.mark.parametrize("message", ["", "Done!", "<think>\nShould I\n</think>\n\nGoodbye.", f"<think>I could {GOOD}"])
def test_a_message_without_a_call_hangs_up(message):
    assert read_tool_call(message) == ""


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
    assert parse_action(read_tool_call(f"<tool_call>{payload}</tool_call>")) == Malformed(reason)


MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>", GOOD, '{"name": "', "[", "}", "a"]


@given(st.lists(st.sampled_from(MARKS)).map("".join))
def test_any_chat_message_can_be_read(message):
    assert isinstance(parse_action(read_tool_call(message)), ToolCall | Stop | Malformed)
