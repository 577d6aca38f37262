"""The agent's three tools: what they are called, what they take, how an action is read.

Public knowledge only: a tool call is parsed and checked here, and the READ tool, which needs
nothing hidden, is answered here. The WRITE tools are answered by the people in `simulator`.

An action in the `tags` dialect is ``tool<|args|>{...json...}``: the prompt has opened it with
``<|tool|>`` and ``<|end|>`` has closed it. An empty action calls no tool: the agent hangs up.
The environment knows this form only; `read_tool_call` brings a chat model's message into it.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re

from lfo.records import Company
from lfo.world import FIELDS

ARGS_TAG = "<|args|>"
MAX_ACTION_CHARS = 4_000  # longer than any sensible call; guards the JSON parser

TOOLS = {
    "search_company": {
        "kind": "READ",
        "description": "Look a company up in the public directory.",
        "parameters": {"company_name": {"type": "string"}},
    },
    "auth_info_form": {
        "kind": "WRITE",
        "description": "Ask the user, once, for the personal fields that the calls will need.",
        "parameters": {"fields": {"type": "array", "items": {"type": "string", "enum": list(FIELDS)}}},
    },
    "make_phone_call": {
        "kind": "WRITE",
        "description": "Call a department and authenticate with the given fields.",
        "parameters": {
            "phone_number": {"type": "string"},
            "auth_info": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    },
}


def json_schema(tool: str) -> dict:
    """The tool as an OpenAI-style function schema, for chat templates."""
    spec = TOOLS[tool]
    parameters = {"type": "object", "properties": spec["parameters"], "required": list(spec["parameters"])}
    return {
        "type": "function",
        "function": {"name": tool, "description": spec["description"], "parameters": parameters},
    }


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call that could be read. `arguments` has exactly the tool's parameters, checked for type."""

    tool: str
    arguments: dict


@dataclasses.dataclass(frozen=True)
class Stop:
    """The agent called no tool."""


@dataclasses.dataclass(frozen=True)
class Malformed:
    """A call that could not be read, and what the agent is told about it."""

    reason: str


def format_call(tool: str, arguments: dict) -> str:
    """The action text of a call; the inverse of `parse_action`."""
    return f"{tool}{ARGS_TAG}{json.dumps(arguments)}"


def parse_action(text: str) -> ToolCall | Stop | Malformed:
    """Read an action. Never raises, whatever the text."""
    if not text.strip():
        return Stop()
    if len(text) > MAX_ACTION_CHARS:
        return Malformed("The call is too long.")
    tool, tag, payload = text.partition(ARGS_TAG)
    tool = tool.strip()
    if not tag:
        return Malformed(f"A call needs {ARGS_TAG} between the tool and its arguments.")
    if tool not in TOOLS:
        return Malformed(f"There is no such tool. Tools: {', '.join(TOOLS)}.")
    try:
        arguments = json.loads(payload, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return Malformed("The arguments are not valid JSON.")
    problem = _check(tool, arguments)
    return Malformed(problem) if problem else ToolCall(tool, arguments)


_NAME = re.compile(r'"name"\s*:\s*"(\w+)"')


def read_tool_call(message: str) -> str:
    """A chat model's message as an action: its first ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``.

    Thinking (``<think>...</think>``, or the rest of a message where it never ends) and all other text is
    left out. A message without a call is the empty action; a broken call becomes an action that
    `parse_action` finds malformed. Never raises.
    """
    spoken = message.rpartition("</think>")[2].partition("<think>")[0]
    _, opened, rest = spoken.partition("<tool_call>")
    if not opened:
        return ""
    payload = rest.partition("</tool_call>")[0]
    try:
        call = json.loads(payload, object_pairs_hook=_unique)
        name, arguments = call["name"], call["arguments"]
        return f"{name}{ARGS_TAG}{arguments}" if isinstance(arguments, str) else format_call(name, arguments)
    except (ValueError, RecursionError, TypeError, KeyError):
        named = _NAME.search(payload)
        return f"{named[1] if named else ''}{ARGS_TAG}{payload.strip()}"


def _unique(pairs: list[tuple[str, object]]) -> dict:
    """A JSON object whose keys must not repeat."""
    if len({k for k, _ in pairs}) < len(pairs):
        raise ValueError("repeated key")
    return dict(pairs)


def _check(tool: str, arguments) -> str:
    """What is wrong with the arguments, or ""."""
    parameters = TOOLS[tool]["parameters"]
    if not isinstance(arguments, dict) or set(arguments) != set(parameters):
        return f"{tool} takes exactly: {', '.join(parameters)}."
    for name, schema in parameters.items():
        value = arguments[name]
        if schema["type"] == "string" and not isinstance(value, str):
            return f"{name} must be a string."
        if schema["type"] == "array":
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                return f"{name} must be a list of strings."
            if any(v not in FIELDS for v in value):
                return f"{name} may only contain: {', '.join(FIELDS)}."
            if len(set(value)) < len(value):
                return f"{name} must not repeat a field."
        if schema["type"] == "object" and not (
            isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
        ):
            return f"{name} must be an object of strings."
    return ""


# --- READ: search_company --------------------------------------------------------------------


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9 ]", "", name.lower()).strip()


def find_company(companies: dict[str, Company], name: str) -> Company | None:
    """Forgiving match: case and punctuation do not matter, part of a name or a typing error is enough."""
    by_name = {_plain(c.name): c for c in companies.values()}
    wanted = _plain(name)
    if wanted in by_name:
        return by_name[wanted]
    if len(wanted) >= 4 and len(partial := [c for n, c in by_name.items() if wanted in n]) == 1:
        return partial[0]
    close = difflib.get_close_matches(wanted[:100], by_name, n=1, cutoff=0.8)
    return by_name[close[0]] if close else None


def search_company(companies: dict[str, Company], company_name: str) -> dict:
    """The READ tool: a company's public directory, empty where no name matches."""
    company = find_company(companies, company_name)
    return {"departments": [dataclasses.asdict(d) for d in company.departments] if company else []}
