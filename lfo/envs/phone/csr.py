"""Who answers the phone: the customer service representatives of a company, or what a world model imagines of them.

`CsrSimulator` answers from the hidden rules, `DreamtCsr` from imagined replies; an episode calls either of them.
Neither knows anything about agents or rewards. The simulator draws its words from a random stream of its own.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable, Sequence

from lfo.envs.phone.phrasings import SITUATION_STATUS, UNKNOWN_NUMBER, parse_reply, say
from lfo.envs.phone.records import Company
from lfo.envs.phone.rules import Demand, Demands
from lfo.envs.phone.vocabulary import DEPARTMENT_OF_GOAL, canonical


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a CSR answers, and - for the reward and the tests only - what lay behind it.

    authenticated: something was demanded, and the caller gave it.
    """

    status: str
    message: str
    department: str = ""
    missing: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    authenticated: bool = False


def listed_under(company: Company, phone_number: str) -> str | None:
    """The department with this number, however the number is written."""
    digits = re.sub(r"\D", "", phone_number)
    return next((d.name for d in company.departments if re.sub(r"\D", "", d.phone) == digits), None)


class CsrSimulator:
    """All departments of the task's company. Checks: number, routing, authentication, capability, service.

    A department that would serve a goal, were it not for a circumstance, says so at once.
    """

    def __init__(self, company: Company, demands: Demands, seed: str, held_out: bool = False, reasons: bool = False):
        """held_out: it says things as it never does in training. reasons: it says what each circumstance demands."""
        self._company = company
        self._demands = demands
        self._open = dict(demands.owners)  # shrinks as goals are served
        self._gates = self._prerequisites(self._open.values())
        self._served: set[str] = set()
        self._rng = random.Random(f"{seed}/csr")
        self._held_out, self._reasons = held_out, reasons

    def _prerequisites(self, names) -> set[str]:
        """Departments that are no goal's owner but must be called on the way to one."""
        gates: set[str] = set()
        stack = list(names)
        while stack:
            after = self._demands.of[stack.pop()].after
            if after and after not in gates:
                gates.add(after)
                stack.append(after)
        return gates

    @property
    def all_served(self) -> bool:
        return not self._open

    def suppose_served(self, departments: Iterable[str]) -> None:
        """Go on as if these had served the caller."""
        for name in departments:
            self._serve(name)

    def _say(self, situation: str, department: str, because=None, **slots) -> Reply:
        because = because if self._reasons else None
        message = say(self._rng, situation, self._held_out, because, dept=department, **slots)
        return Reply(SITUATION_STATUS[situation], message, department)

    def call(self, phone_number: str, auth_info: dict[str, str], truth: dict[str, str], unavailable: set[str]) -> Reply:
        """Answer one call.

        truth: the user's right values. unavailable: fields the user was asked for and could not give;
        for those the department's alternative counts.
        """
        name = listed_under(self._company, phone_number)
        if name is None:
            return Reply("wrong_department", UNKNOWN_NUMBER)
        if elsewhere := self._moved_from(name):
            return elsewhere
        rule = self._demands.of[name]
        if rule.after and rule.after not in self._served:
            return self._say("routing", name, {rule.why_after: rule.after} if rule.why_after else {}, other=rule.after)
        if refusal := self._authenticate(rule, auth_info, truth, unavailable):
            return refusal
        return dataclasses.replace(self._serve(name), authenticated=bool(rule.required))

    def _moved_from(self, name: str) -> Reply | None:
        """What a department says that a circumstance has relieved of an open goal, and that has no other part in it."""
        if name in self._open.values() or name in self._gates:
            return None
        moved = (goal for goal in self._open if goal in self._demands.moved and DEPARTMENT_OF_GOAL[goal] == name)
        if (goal := next(moved, None)) is None:
            return None
        owner = self._open[goal]
        return self._say("wrong_department", name, {self._demands.moved[goal]: owner}, other=owner)

    def _authenticate(self, rule: Demand, auth_info, truth, unavailable) -> Reply | None:
        replaceable = {f for f in rule.required if f in unavailable and f not in auth_info}
        asked = set(rule.required) - replaceable
        if replaceable:
            asked.add(rule.alternative)
        missing = canonical(f for f in asked if f not in auth_info)
        wrong = canonical(f for f in asked if f in auth_info and auth_info[f].strip() != truth.get(f))
        if set(missing) - {rule.alternative} or (missing and not replaceable):
            reply = self._refuse(rule, missing, replaceable)
        elif missing:
            reply = self._say("alternative", rule.department, fields=canonical(replaceable), other=rule.alternative)
        elif wrong:
            reply = self._say("mismatch", rule.department, fields=wrong)
        else:
            return None
        return dataclasses.replace(reply, missing=missing, mismatched=() if missing else wrong)

    def _refuse(self, rule: Demand, missing, replaceable) -> Reply:
        """All that is missing; with reasons, for each circumstance in turn and then in any case.

        The alternative is said for whatever it replaces, in its place.
        """
        if not (self._reasons and rule.because):
            return self._say("missing", rule.department, fields=missing)

        def owed(field: str) -> str:
            field = rule.alternative if field in replaceable else field
            return field if field in missing else ""

        because = {name: owed(field) for name, field in rule.because.items()}
        return self._say("missing", rule.department, because, fields={*map(owed, rule.usual)} - {""})

    def _serve(self, name: str) -> Reply:
        mine = [goal for goal, owner in self._open.items() if owner == name]
        for goal in mine:
            del self._open[goal]
        if mine or (name in self._gates and name not in self._served):
            self._served.add(name)
            return self._say("success", name)
        owner = next(iter(self._open.values()), name)
        return self._say("wrong_department", name, other=owner)


class DreamtCsr:
    """Answers in the place of a `CsrSimulator` when a task is dreamt. Knows goals and directory, and no rule.

    Directory and user are the real ones and no phone rings. Success is read off imagined replies, and a policy will
    find whatever a world model is too optimistic about, so it is read conservatively: a call is imagined several times,
    and a goal counts as served when enough of the imagined replies say so.

    agreement: share of the imagined replies to a call that must say "success" for it to be one. A goal is served by the
    department that it belongs to; another department's success serves nobody.
    """

    def __init__(self, company: Company, goals: Iterable[str], agreement: float):
        self._company, self._agreement = company, agreement
        self._open = {goal: DEPARTMENT_OF_GOAL[goal] for goal in goals}
        self._imagined: list[Reply] = []

    @property
    def all_served(self) -> bool:
        return not self._open

    def heard(self, replies: Sequence[str]) -> None:
        """What was imagined as answers to the call that comes next."""
        self._imagined = [_read(text) for text in replies]

    def call(self, phone_number: str, auth_info: dict[str, str], truth: dict[str, str], unavailable: set[str]) -> Reply:
        """The first imagined reply that says what was decided, success or not."""
        successes = sum(r.status == "success" for r in self._imagined)
        served = successes >= self._agreement * len(self._imagined)
        if served:
            name = listed_under(self._company, phone_number)
            self._open = {goal: owner for goal, owner in self._open.items() if owner != name}
        return next(r for r in self._imagined if (r.status == "success") == served)


def _read(text: str) -> Reply:
    status, message = parse_reply(text)
    return Reply(status, message) if status in SITUATION_STATUS.values() else Reply("unreadable", text)
