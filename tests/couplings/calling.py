"""What the tests of couplings share: a bank's calls, a policy whose acts and intentions are written out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from scripted import by_turn, spans

from lfo.couplings import Noted
from lfo.envs.base import written
from lfo.envs.phone.tools import form, phone_call, search
from lfo.protocols import Question
from lfo.types import Role

SEARCH, UNKNOWN = written(search("Harbor Bank")), written(search("Nobody Knows"))
FORM = written(form(["account_number", "billing_zip"]))
SERVICE, FRAUD, BILLING, LOANS, SALES = (f"800-555-000{i}" for i in range(1, 6))
CALL = written(phone_call(BILLING))
REPLY = '{"status": "auth_failed", "message": "Billing. I need your account number."}'


def playing(*actions: str, means: Sequence[str] = (BILLING,), reply: str | Mapping[str, str] = REPLY):
    """A policy that plays `actions` and means to call the n-th number after n notes, the last one for ever.

    reply: what the world model says, to everything or by the number that is called.
    """

    def answer(text: str, prompt) -> str:
        if prompt.adapter == "world_model":
            return reply if isinstance(reply, str) else reply[asked_for(text)]
        if text.endswith('"phone_number": "'):
            return f'{means[min(text.count("<|note|>"), len(means) - 1)]}", "auth_info": {{}}}}'
        return by_turn(*actions)(text, prompt)

    return answer


def asked_for(text: str) -> str:
    """The number whose answer the world model is asked for."""
    return re.findall(r'"phone_number": "([\d-]*)"', text)[-1]


def notes_of(row, codec, kind: Role = Role.NOTE) -> list[str]:
    """The texts of a rollout's notes of a kind in the `tags` dialect, each with who says it."""
    text = "".join(text for text, role in spans(row, codec) if role is kind)
    found = re.findall(r"<\|note\|>(.*?)<\|/note\|>", text)
    assert text == "".join(f"<|note|>{note}<|/note|>" for note in found)
    return found


def told(coupling: Noted, question: Question) -> str | None:
    """What a coupling notes to a question that it asks no model for."""
    try:
        next(coupling.answer(question))
    except StopIteration as end:
        return end.value and coupling.codec.reply_text(end.value)
    raise AssertionError("a model was asked")
