"""What CSRs say and how it is read back: phrasings in four styles, and what a reply means without its wording.

The semantic metrics of the world model and the scripted callers read with it. Knows no company and no rule.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Hashable, Mapping, Sequence

from lfo.envs.phone.vocabulary import CIRCUMSTANCES, DEPARTMENTS, FIELDS, canonical

# situation -> style -> phrasings; the last one of each style is held out from training.
# {dept} opens every reply, as a department answers the phone. {fields}, {other} are filled in.
PHRASINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "missing": {
        "formal": (
            "{dept}. To proceed we require {fields}.",
            "{dept}. Kindly provide {fields}.",
            "{dept}. Verification calls for {fields}.",
        ),
        "conversational": (
            "{dept}, hi! I just need {fields}.",
            "{dept}, hi! Can you give me {fields}?",
            "{dept}, hi! Mind telling me {fields}?",
        ),
        "direct": ("{dept}. I need {fields}.", "{dept}. Give me {fields}.", "{dept}. State {fields}."),
        "apologetic": (
            "{dept}. Sorry, I cannot continue without {fields}.",
            "{dept}. I am afraid I still need {fields}.",
            "{dept}. Apologies, we have to ask for {fields}.",
        ),
    },
    "alternative": {
        "formal": (
            "{dept}. In place of your {fields} we accept your {other}.",
            "{dept}. Your {fields} may be replaced by your {other}.",
        ),
        "conversational": (
            "{dept}, hi! No {fields}? Then I just need your {other}.",
            "{dept}, hi! Without your {fields} your {other} will do.",
        ),
        "direct": ("{dept}. No {fields}: give me your {other}.", "{dept}. For a missing {fields} state your {other}."),
        "apologetic": (
            "{dept}. Sorry, without your {fields} I need your {other}.",
            "{dept}. Apologies, in lieu of your {fields} we have to ask for your {other}.",
        ),
    },
    "mismatch": {
        "formal": ("{dept}. There is a mismatch in your {fields}.", "{dept}. A mismatch was found in your {fields}."),
        "conversational": (
            "{dept}, hi! I see a mismatch in your {fields}.",
            "{dept}, hi! Looks like a mismatch in your {fields}.",
        ),
        "direct": ("{dept}. Mismatch: your {fields}.", "{dept}. Mismatch in your {fields}."),
        "apologetic": (
            "{dept}. Sorry, I see a mismatch in your {fields}.",
            "{dept}. Apologies, a mismatch shows in your {fields}.",
        ),
    },
    "routing": {
        "formal": ("{dept}. Please call {other} first.", "{dept}. Kindly contact {other} first."),
        "conversational": ("{dept}, hi! You have to call {other} first.", "{dept}, hi! Try {other} first."),
        "direct": ("{dept}. Call {other} first.", "{dept}. {other} first."),
        "apologetic": ("{dept}. Sorry, you need to call {other} first.", "{dept}. Apologies, {other} comes first."),
    },
    "wrong_department": {
        "formal": ("{dept}. This is handled by {other}.", "{dept}. That falls to {other}."),
        "conversational": ("{dept}, hi! You want {other} for that.", "{dept}, hi! That is one for {other}."),
        "direct": ("{dept}. Not here. Call {other}.", "{dept}. Wrong place, ask {other}."),
        "apologetic": ("{dept}. Sorry, you need {other} for that.", "{dept}. Apologies, only {other} can do that."),
    },
    "success": {
        "formal": ("{dept}. Thank you, your request is complete.", "{dept}. Thank you, that is now settled."),
        "conversational": ("{dept}, hi! All done, thanks!", "{dept}, hi! Thanks, sorted!"),
        "direct": ("{dept}. Done.", "{dept}. Settled."),
        "apologetic": ("{dept}. Sorry for the wait, all done.", "{dept}. Apologies for the wait, that is settled."),
    },
}
STYLES = ("formal", "conversational", "direct", "apologetic")
UNKNOWN_NUMBER = "This number is not in service."
NOTHING_MORE = "nothing more"  # is demanded for a circumstance
_BECAUSE = "the following: "  # reasons come after it
IN_ANY_CASE = "and in any case"  # what follows, a department demands whatever the circumstances
SITUATION_STATUS = {
    "missing": "auth_failed",
    "alternative": "auth_failed",
    "mismatch": "auth_failed",
    "routing": "routing_violation",
    "wrong_department": "wrong_department",
    "success": "success",
}


def oxford(items: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b, and c'."""
    if len(items) < 3:
        return " and ".join(items)
    return ", ".join(items[:-1]) + f", and {items[-1]}"


def say(rng: random.Random, situation: str, held_out: bool, because: Mapping[str, str] | None = None, **slots) -> str:
    """One phrasing of a situation; `fields` slots are given as field names.

    because: circumstance -> the field that is missing for it, "" for none, or the other department. Where something is
    missing, each circumstance is spoken of, in this order, before `fields`, which are then what is missing in any case;
    elsewhere the one for which the other department is named. None: nothing is said of any circumstance.
    """
    variants = PHRASINGS[situation][rng.choice(STYLES)]
    text = variants[-1] if held_out else rng.choice(variants[:-1])
    because = because or {}
    if situation == "missing":
        each = {_reason(rng, name, held_out): field for name, field in because.items()}
        slots["fields"] = _demanded(canonical(slots["fields"]), each)
    elif "fields" in slots:
        slots["fields"] = _named(canonical(slots["fields"]))
    elif name := next((name for name, what in because.items() if what == slots.get("other")), ""):
        reason = _reason(rng, name, held_out)
        opening, sentence = re.match(r"({dept}[.,](?: hi!)?) (.*)", text).groups()
        sentence = sentence if sentence.startswith("{") else sentence[0].lower() + sentence[1:]
        text = f"{opening} {reason[0].upper()}{reason[1:]}, {sentence}"
    if slots.get("other") in FIELDS:
        slots["other"] = FIELDS[slots["other"]]
    return text.format(**slots)


def _reason(rng: random.Random, circumstance: str, held_out: bool) -> str:
    because = CIRCUMSTANCES[circumstance].because
    return because[-1] if held_out else rng.choice(because[:-1])


def _named(fields: Sequence[str]) -> str:
    return oxford([FIELDS[f] for f in fields])


def _demanded(fields: Sequence[str], each: Mapping[str, str]) -> str:
    """'the following: as it is a joint account, your c; as you call from abroad, nothing more; and in any case your a'.

    each: reason -> the field that is demanded for it, or "". Without any it is 'your a and b'.
    """
    if not each:
        return f"your {_named(fields)}"
    said = [f"{reason}, {f'your {FIELDS[field]}' if field else NOTHING_MORE}" for reason, field in each.items()]
    said += [f"{IN_ANY_CASE} your {_named(fields)}"] if fields else []
    return f"{_BECAUSE}{'; '.join(said)}"


_SPOKEN = re.compile("|".join(sorted((re.escape(v) for v in FIELDS.values()), key=len, reverse=True)))
_BY_SPEECH = {spoken: field for field, spoken in FIELDS.items()}


def requested_fields(message: str) -> frozenset[str]:
    """All fields that a CSR message names."""
    return frozenset(_BY_SPEECH[m] for m in _SPOKEN.findall(message))


def parse_reply(text: str) -> tuple[str, str]:
    """Status and message of a phone reply in JSON; ("unreadable", the text) where it is none."""
    try:
        data = json.loads(text)
        return str(data["status"]), str(data["message"])
    except (ValueError, KeyError, TypeError):
        return "unreadable", text


_DEPARTMENT = re.compile("|".join(sorted(map(re.escape, DEPARTMENTS), key=len, reverse=True)))  # longest first


def read_reply(text: str) -> tuple[str, frozenset[str], frozenset[str]]:
    """What a reply means: its status, the fields it names, the departments it names after its own."""
    status, message = parse_reply(text)
    if status == "unreadable":
        return status, frozenset(), frozenset()
    rest = re.split(r"[.!] ", message, maxsplit=1)[-1]  # "Billing. ..." or "Billing, hi! ..."
    return status, requested_fields(message), frozenset(_DEPARTMENT.findall(rest))


def meaning(text: str) -> Hashable:
    """`read_reply`, also for the answers of the other tools: which fields the form gives, which departments are listed.

    Their values are left out: no world model can know them.
    """
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict) or "status" in data:
        return read_reply(text)
    return "answer", frozenset(data), frozenset(_DEPARTMENT.findall(text))


def in_short(message: str) -> str:
    """A CSR message without reasons: the fields that it names, once each."""
    before, reasons, _ = message.partition(_BECAUSE)
    fields = canonical(requested_fields(message))
    return f"{before}your {_named(fields)}{message[-1]}" if reasons and fields else message


def spoken(text: str) -> str:
    """A phone reply as "status: message"; anything else as it is."""
    status, message = parse_reply(text)
    return text if status == "unreadable" else f"{status}: {message}"


def _shape(situation: str) -> re.Pattern:
    """All that is said there, with anything for what is filled in."""
    texts = [re.escape(text) for texts in PHRASINGS[situation].values() for text in texts]
    return re.compile("|".join(re.sub(r"\\{\w+\\}", ".+", text) for text in texts))


_SHAPES = {situation: _shape(situation) for situation in ("alternative", "mismatch")}  # these give no reasons


def situation_of(said: str) -> str:
    """Which key of `PHRASINGS` a reply is that is written as `spoken` does; what stands before a colon in other texts.

    The status is the same where a field is missing, where another will do instead and where a value is wrong.
    """
    status, _, message = said.partition(": ")
    named = [name for name, of in SITUATION_STATUS.items() if of == status]
    closer = (name for name in named if name in _SHAPES and _SHAPES[name].fullmatch(message))
    return next(closer, named[0] if named else status)
