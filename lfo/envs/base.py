"""What environments have in common: splits, tools, how a call of one is written, how what an agent wrote is read.

An action in the `tags` dialect is ``tool<|args|>{...json...}``, between ``<|tool|>``, which the rollout loop says, and
``<|end|>``, which the policy says. An empty action calls no tool: the agent hangs up. `from_chat` brings a chat model's
message into this form.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence

from lfo.config import ConfigError
from lfo.protocols import Responder, Teller
from lfo.types import Action, Call, Hangup, Malformed, StopReason, Task

SPLITS = ("train", "validation", "test")
ARGS_TAG = "<|args|>"
MAX_ACTION_CHARS = 4_000  # longer than any sensible call; guards the JSON parser


@dataclasses.dataclass(frozen=True)
class Tool:
    """A tool that an agent can call.

    kind: READ changes nothing, WRITE does. parameters: name -> JSON schema; all are required. An array's items may
    have a `title`, which names one of them in complaints.
    """

    name: str
    kind: str
    description: str
    parameters: Mapping[str, dict]

    def schema(self) -> dict:
        """OpenAI-style function schema, for chat templates."""
        parameters = {"type": "object", "properties": dict(self.parameters), "required": list(self.parameters)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def complaint(self, arguments) -> str:
        """What is wrong with the arguments of a call, "" if nothing."""
        if not isinstance(arguments, dict) or set(arguments) != set(self.parameters):
            return f"{self.name} takes exactly: {', '.join(self.parameters)}."
        complaints = (_complaint(name, schema, arguments[name]) for name, schema in self.parameters.items())
        return next(filter(None, complaints), "")


def _complaint(name: str, schema: dict, value) -> str:
    if schema["type"] == "string" and not isinstance(value, str):
        return f"{name} must be a string."
    if schema["type"] == "array":
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            return f"{name} must be a list of strings."
        known = schema["items"].get("enum")
        if known and any(v not in known for v in value):
            return f"{name} may only contain: {', '.join(known)}."
        if len(set(value)) < len(value):
            return f"{name} must not repeat a {schema['items'].get('title', 'value')}."
    if schema["type"] == "object" and not (isinstance(value, dict) and all(isinstance(v, str) for v in value.values())):
        return f"{name} must be an object of strings."
    return ""


class PlainKnowledge:
    """Base of a `Knowledge` of which nobody dreams, that has no classifiers, and in which nothing is anybody's own."""

    def classifier(self, kind: str) -> Teller:
        raise ConfigError(f"there is no '{kind}' here: set world_model.recall to table, backoff, nearest or vote.")

    def responder(self, task: Task, agreement: float) -> Responder:
        raise ConfigError("nobody dreams of this world: set world_model.coupling to 'imagine'.")

    def is_dreamt(self, action: Action) -> bool:
        return False

    def impersonal(self, turns: Sequence) -> list:
        return list(turns)

    general = impersonal  # nor does an answer depend on who asks


def require_open(stop: StopReason | None) -> None:
    """Raises RuntimeError where an episode is over: it is used once."""
    if stop:
        raise RuntimeError(f"this episode ended ({stop}); build a new one for another attempt.")


def written(action: Action) -> str:
    """An action as text; the inverse of `parse_action`."""
    if isinstance(action, Call):
        return f"{action.tool}{ARGS_TAG}{json.dumps(action.arguments)}"
    return action.text if isinstance(action, Malformed) else ""


def parse_action(text: str, tools: Mapping[str, Tool]) -> Action:
    """Read an action. Never raises, whatever the text."""
    if not text.strip():
        return Hangup()
    if len(text) > MAX_ACTION_CHARS:
        return Malformed(text, "The call is too long.")
    tool, tag, payload = text.partition(ARGS_TAG)
    tool = tool.strip()
    if not tag:
        return Malformed(text, f"A call needs {ARGS_TAG} between the tool and its arguments.")
    if tool not in tools:
        return Malformed(text, f"There is no such tool. Tools: {', '.join(tools)}.")
    try:
        arguments = json.loads(payload, object_pairs_hook=_unique)
        json.dumps(arguments, ensure_ascii=False).encode()  # half a surrogate pair can be escaped, but is no text
    except (ValueError, RecursionError):
        return Malformed(text, "The arguments are not valid JSON.")
    problem = tools[tool].complaint(arguments)
    return Malformed(text, problem) if problem else Call(tool, arguments)


_NAME = re.compile(r'"name"\s*:\s*"(\w+)"')


def from_chat(message: str, tools: Mapping[str, Tool] | None = None) -> str:
    """A chat model's message as an action: its first ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``.

    Without one, the first ``Act: NAME`` of a tool that takes one argument at most, which are the fenced blocks after
    it, joined (the text protocol of AgentBench, arXiv 2308.03688). Thinking (``<think>...</think>``, or the rest of a
    message where it never ends) and all other text is left out. A message without a call is the empty action; a broken
    call becomes an action that `parse_action` finds malformed. Never raises; half a surrogate pair, which is no text,
    becomes a question mark.
    """
    return _called(message, tools or {}).encode(errors="replace").decode()


def _called(message: str, tools: Mapping[str, Tool]) -> str:
    spoken = message.rpartition("</think>")[2].partition("<think>")[0]
    _, opened, rest = spoken.partition("<tool_call>")
    if not opened:
        return _acted(spoken, tools)
    payload = rest.partition("</tool_call>")[0]
    try:
        call = json.loads(payload, object_pairs_hook=_unique)
        name, arguments = call["name"], call["arguments"]
        return f"{name}{ARGS_TAG}{arguments if isinstance(arguments, str) else json.dumps(arguments)}"
    except (ValueError, RecursionError, TypeError, KeyError):
        named = _NAME.search(payload)
        return f"{named[1] if named else ''}{ARGS_TAG}{payload.strip()}"


_ACT = re.compile(r"^[ \t]*Act:[ \t]*(\w+)[ \t]*$", re.MULTILINE)
_FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _acted(spoken: str, tools: Mapping[str, Tool]) -> str:
    act = _ACT.search(spoken)
    if act is None or act[1] not in tools or len(tools[act[1]].parameters) > 1:
        return ""
    blocks = _FENCED.findall(spoken[act.end() :])
    arguments = dict.fromkeys(tools[act[1]].parameters, "".join(blocks).rstrip("\n")) if blocks else {}
    return f"{act[1]}{ARGS_TAG}{json.dumps(arguments)}"


def _unique(pairs: list[tuple[str, object]]) -> dict:
    """A JSON object whose keys must not repeat."""
    if len({k for k, _ in pairs}) < len(pairs):
        raise ValueError("repeated key")
    return dict(pairs)
