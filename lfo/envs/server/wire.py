"""What client and task server say to each other: the bodies of requests and answers, all strict JSON objects.

The paths are those of LifelongAgentBench's servers (arXiv 2505.11942). The bodies are ours: there a session travels to
and fro as a whole and the server has one at a time; here it stays on the server, under an id.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from lfo import __version__
from lfo.types import Action, Outcome, StopReason

PREFIX = "/api"
VERSION = f"{__version__} (protocol 2)"  # raised whenever a body changes: 2 says the action as it was recorded
TOKEN = "LFO_TASK_TOKEN"  # the environment variable that holds it, on both sides
GONE = 410  # HTTP: there is no such session (any more)
FULL = 503  # HTTP: there are as many sessions as may be


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Nothing(Body):
    """What is asked without saying more: ``{}``, or no body."""


class Pong(Body):
    response: str = "Hello, World!"


class GetAttribute(Body):
    name: str


class Attribute(Body):
    value: JsonValue


class SetAttribute(Body):
    name: str
    value: JsonValue


class Listing(Body):
    split: Literal["train", "validation", "test"] | None = None  # None: all of them, one after the other


class SampleIndexList(Body):
    sample_index_list: list[str]  # task ids


class Reset(Body):
    """Begin an episode; a session of that id that is open is given up. options: of the environment, by name."""

    session_id: str = Field("", max_length=64)  # "": the server chooses one
    sample_index: str
    seed: int = 0
    options: dict[str, bool] = {}


class Began(Body):
    session_id: str
    request: str


class Interact(Body):
    """Take an action: a call, a hang-up ``{}``, what could not be read and why, or as a string a chat model's message.

    turn: its number, from 0 on; None: the next one. The last turn may be asked for again, with the same action: it is
    answered again and not taken again.
    """

    session_id: str
    turn: int | None = Field(None, ge=0)
    action: Action | str


class Answered(Body):
    """What the agent reads next; status: the environment's word for it; stop: why the episode ended, if it did; action:
    as it was recorded, malformed where the environment could make nothing of it."""

    action: Action
    observation: str
    status: str
    stop: StopReason | None


class Session(Body):
    session_id: str


class Completed(Body):
    outcome: Outcome
    stop: StopReason


class Released(Body):
    released: bool  # false: there was no such session


class Outcomes(Body):
    outcomes: list[Outcome]


class Metric(Body):
    metric: dict[str, float]  # means; n: of how many


# --- the chat history --------------------------------------------------------------------------

Speaker = Literal["user", "agent"]


class Item(Body):
    role: Speaker
    content: str


class Construct(Body):
    chat_history_item_index: int = Field(ge=0)
    expected_role: Speaker | None = None


class Constructed(Body):
    chat_history_item: Item


class Items(Body):
    chat_history_item_dict: dict[int, Item]


class SetItem(Body):
    prompt_index: int = Field(ge=0)
    role: Speaker
    content: str
