"""Somebody who is told how everything is said here, and what a rule is: the most that can be made of what was heard.

Reads every reply with the CSRs' and users' own phrasings, takes it apart into what a department always demands and what
each circumstance changes, and counts: at this company, else what is usual in the industry. No learner knows so much
beforehand: what it answers right is about what can be known from the calls.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable

from lfo.envs.phone.classifier import Place
from lfo.envs.phone.phrasings import IN_ANY_CASE, SITUATION_STATUS, parse_reply, read_reply, requested_fields, say
from lfo.envs.phone.records import Effect
from lfo.envs.phone.tools import PHONE
from lfo.envs.phone.vocabulary import CIRCUMSTANCES, DEPARTMENT_OF_GOAL, circumstances_in, goals_in
from lfo.protocols import Question
from lfo.types import Example

REASONS = {reason: name for name, kind in CIRCUMSTANCES.items() for reason in kind.because}
_REASON = re.compile("|".join(map(re.escape, REASONS)), re.IGNORECASE)


def _parts(message: str) -> tuple[str, dict[str, str]]:
    """Of a refusal: what is said to be missing in any case, and for each circumstance that it speaks of."""
    special, _, always = message.partition(IN_ANY_CASE)
    names = [REASONS[reason.lower()] for reason in _REASON.findall(special)]
    _, *clauses = _REASON.split(special)
    return always if names else message, dict(zip(names, clauses, strict=True))


class Grammar:
    """See `lfo.protocols.Teller`. place: where a question's call goes to; None for a number that nobody has."""

    def __init__(self, place: Callable[[Question], Place | None]):
        self.place = place
        self.heard: set[Example] = set()
        self.counts: dict[Hashable, Counter] = defaultdict(Counter)

    def hear(self, examples) -> None:
        for example in examples:
            asked = example.question
            if example in self.heard or example.call.tool != PHONE or not (where := self.place(asked)):
                continue
            self.heard.add(example)
            if not example.call.arguments["auth_info"]:
                self._take_apart(where, circumstances_in(example.request), example.reply)

    def _take_apart(self, where: Place, circumstances: tuple[str, ...], reply: str) -> None:
        status, _, others = read_reply(reply)
        message = parse_reply(reply)[1]
        if status == "auth_failed":
            always, owed = _parts(message)
            self._count("fields", where, tuple(sorted(requested_fields(always))))
            for name in circumstances:
                self._count(name, where, Effect(field=min(requested_fields(owed.get(name, "")), default="")))
        elif status == "success":
            self._count("fields", where, ())
        elif reason := _REASON.search(message):
            effect = {"first" if status == "routing_violation" else "instead": min(others, default="")}
            self._count(REASONS[reason[0].lower()], where, Effect(**effect))
        elif status == "routing_violation":
            self._count("after", where, min(others, default=""))

    def _count(self, what: str, where: Place, value: Hashable) -> None:
        company, industry, department, _ = where
        about = department if what in ("fields", "after") else ""
        for key in ((what, company, about), (what, industry, about)):
            self.counts[key][value] += 1

    def _usual(self, what: str, where: Place, default):
        """What was heard most often of it at the company, else in the industry. Having no effect is easily heard of a
        circumstance (what changes the way demands no field, and a mere list gives no reasons), so that counts only
        where nothing else was heard."""
        company, industry, department, _ = where
        about = department if what in ("fields", "after") else ""
        for key in ((what, company, about), (what, industry, about)):
            said = self.counts[key].most_common()
            if real := [value for value, _ in said if value != Effect()]:
                return real[0]
        return default

    def answer(self, question: Question) -> str | None:
        if (where := self.place(question)) is None or not self.heard:
            return None
        department, served = where[2], where[3]
        effects = {name: self._usual(name, where, Effect()) for name in circumstances_in(question.request)}
        office = next((effect.instead for effect in effects.values() if effect.instead), "")
        gate = next((effect.first for effect in effects.values() if effect.first), "")
        owners = {DEPARTMENT_OF_GOAL[goal] for goal in goals_in(question.request)}
        after = self._usual("after", where, "") or (gate if gate != department else "")
        if office and department in owners and department != office:
            situation, slots = "wrong_department", {"other": office}
        elif after and not served:
            situation, slots = "routing", {"other": after}
        else:
            fields = {*self._usual("fields", where, ()), *(effect.field for effect in effects.values())} - {""}
            situation, slots = ("missing", {"fields": fields}) if fields else ("success", {})
        message = say(random.Random(f"grammar/{question.request}/{where}"), situation, False, dept=department, **slots)
        return json.dumps({"status": SITUATION_STATUS[situation], "message": message})
