"""The two people an agent talks to: the user (one form) and the CSR (phone calls).

Both answer from hidden state and say in natural language what they want. Nothing here knows
about agents, rewards or tokens. Each draws from its own random stream, so that one person's
behaviour never depends on how often the other was asked.

`requested_fields` reads a CSR reply back into a set of fields: the semantic metric of the world
model and the scripted agents use it.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import string

from lfo.records import Company, HiddenRule, Profile
from lfo.world import ALWAYS_AVAILABLE, FIELDS, canonical

# --- the CSR's language ----------------------------------------------------------------------

# situation -> style -> phrasings; the last one of each style is held out from training.
# {dept} opens every reply, as a department answers the phone. {fields}, {other} are filled in.
PHRASINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "missing": {
        "formal": (
            "{dept}. To proceed we require your {fields}.",
            "{dept}. Kindly provide your {fields}.",
            "{dept}. Verification calls for your {fields}.",
        ),
        "conversational": (
            "{dept}, hi! I just need your {fields}.",
            "{dept}, hi! Can you give me your {fields}?",
            "{dept}, hi! Mind telling me your {fields}?",
        ),
        "direct": ("{dept}. I need your {fields}.", "{dept}. Give me your {fields}.", "{dept}. State your {fields}."),
        "apologetic": (
            "{dept}. Sorry, I cannot continue without your {fields}.",
            "{dept}. I am afraid I still need your {fields}.",
            "{dept}. Apologies, we have to ask for your {fields}.",
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
SITUATION_STATUS = {
    "missing": "auth_failed",
    "alternative": "auth_failed",
    "mismatch": "auth_failed",
    "routing": "routing_violation",
    "wrong_department": "wrong_department",
    "success": "success",
}


def oxford(items: list[str]) -> str:
    """'a', 'a and b', 'a, b, and c'."""
    if len(items) < 3:
        return " and ".join(items)
    return ", ".join(items[:-1]) + f", and {items[-1]}"


def say(rng: random.Random, situation: str, held_out: bool, **slots) -> str:
    """One phrasing of a situation; `fields` slots are given as field names."""
    variants = PHRASINGS[situation][rng.choice(STYLES)]
    text = variants[-1] if held_out else rng.choice(variants[:-1])
    if "fields" in slots:
        slots["fields"] = oxford([FIELDS[f] for f in canonical(slots["fields"])])
    if slots.get("other") in FIELDS:
        slots["other"] = FIELDS[slots["other"]]
    return text.format(**slots)


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


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a CSR answers, and - for the reward and the tests only - what lay behind it."""

    status: str
    message: str
    department: str = ""
    missing: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()


class CsrSimulator:
    """All departments of the task's company. Checks: number, routing, authentication, capability, service."""

    def __init__(
        self,
        company: Company,
        rules: dict[tuple[str, str], HiddenRule],
        owner_of_goal: dict[str, str],
        seed: str,
        held_out: bool = False,
    ):
        self._company = company
        self._rules = rules
        self._open = dict(owner_of_goal)  # goal -> department, shrinking as goals are served
        self._gates = self._prerequisites(owner_of_goal.values())
        self._served: set[str] = set()
        self._rng = random.Random(f"{seed}/csr")
        self._held_out = held_out

    def _prerequisites(self, names) -> set[str]:
        """Departments that are no goal's owner but must be called on the way to one."""
        gates: set[str] = set()
        stack = list(names)
        while stack:
            after = self._rules[self._company.company_id, stack.pop()].after
            if after and after not in gates:
                gates.add(after)
                stack.append(after)
        return gates

    @property
    def all_served(self) -> bool:
        return not self._open

    def _say(self, situation: str, department: str, **slots) -> Reply:
        message = say(self._rng, situation, self._held_out, dept=department, **slots)
        return Reply(SITUATION_STATUS[situation], message, department)

    def call(self, phone_number: str, auth_info: dict[str, str], truth: dict[str, str], unavailable: set[str]) -> Reply:
        """Answer one call.

        truth: the user's right values. unavailable: fields the user was asked for and could not give;
        for those the department's alternative counts.
        """
        digits = re.sub(r"\D", "", phone_number)
        match = [d.name for d in self._company.departments if re.sub(r"\D", "", d.phone) == digits]
        if not match:
            return Reply("wrong_department", UNKNOWN_NUMBER)
        name = match[0]
        rule = self._rules[self._company.company_id, name]
        if rule.after and rule.after not in self._served:
            return self._say("routing", name, other=rule.after)
        if refusal := self._authenticate(rule, auth_info, truth, unavailable):
            return refusal
        return self._serve(name)

    def _authenticate(self, rule: HiddenRule, auth_info, truth, unavailable) -> Reply | None:
        replaceable = {f for f in rule.required if f in unavailable and f not in auth_info}
        asked = set(rule.required) - replaceable
        if replaceable:
            asked.add(rule.alternative)
        missing = canonical(f for f in asked if f not in auth_info)
        wrong = canonical(f for f in asked if f in auth_info and auth_info[f].strip() != truth.get(f))
        if set(missing) - {rule.alternative} or (missing and not replaceable):
            reply = self._say("missing", rule.department, fields=missing)
        elif missing:
            reply = self._say("alternative", rule.department, fields=canonical(replaceable), other=rule.alternative)
        elif wrong:
            reply = self._say("mismatch", rule.department, fields=wrong)
        else:
            return None
        return dataclasses.replace(reply, missing=missing, mismatched=() if missing else wrong)

    def _serve(self, name: str) -> Reply:
        mine = [goal for goal, owner in self._open.items() if owner == name]
        for goal in mine:
            del self._open[goal]
        if mine or (name in self._gates and name not in self._served):
            self._served.add(name)
            return self._say("success", name)
        owner = next(iter(self._open.values()), name)
        return self._say("wrong_department", name, other=owner)


# --- the user --------------------------------------------------------------------------------

COOPERATIVE, PARTIAL, DIFFICULT = "cooperative", "partial", "difficult"
BEHAVIOURS = {COOPERATIVE: 0.7, PARTIAL: 0.2, DIFFICULT: 0.1}


class UserSimulator:
    """The user of one episode: behaviour is drawn once, before anything is asked.

    partial: every field is unavailable with probability 0.3. difficult: every field is given
    wrongly at first with probability 0.2. Fields of `world.ALWAYS_AVAILABLE` are always given,
    so that an alternative exists for whatever is unavailable.
    """

    def __init__(self, profile: Profile, seed: str):
        rng = random.Random(f"{seed}/user")
        self.behaviour = rng.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))[0]
        self.truth = dict(profile.values)
        absent = {f for f in FIELDS if rng.random() < 0.3 and f not in ALWAYS_AVAILABLE}
        garbled = {f for f in FIELDS if rng.random() < 0.2}
        self._absent = absent if self.behaviour == PARTIAL else set()
        self._wrong_at_first = {
            f: _garble(rng, v) for f, v in self.truth.items() if f in garbled and self.behaviour == DIFFICULT
        }

    def can_give(self, field: str) -> bool:
        return field in self.truth and field not in self._absent

    def give(self, field: str) -> str:
        """The value of an available field: the first time perhaps a wrong one, then the right one."""
        return self._wrong_at_first.pop(field, self.truth[field])


def _garble(rng: random.Random, value: str) -> str:
    """The value with one digit changed, or the words swapped where it has no digit."""
    places = [i for i, c in enumerate(value) if c in string.digits]
    if not places:
        return " ".join(reversed(value.split()))
    i = rng.choice(places)
    return value[:i] + str((int(value[i]) + rng.randint(1, 9)) % 10) + value[i + 1 :]
