"""What a world model of the phone world is told before a call, what it is asked, and how its answers are read.

Works on requests, turns and calls; knows no tokens and no model. Reads the hidden rules in `rules` and `examine` only,
to know what is true.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable, Hashable, Iterable, Sequence

from lfo.envs.base import written
from lfo.envs.phone import phrasings
from lfo.envs.phone.csr import DreamtCsr
from lfo.envs.phone.records import Company, PhoneTask
from lfo.envs.phone.tools import FORM, PHONE, SEARCH, phone_call, search, search_company
from lfo.envs.phone.vocabulary import DEPARTMENTS
from lfo.envs.phone.world import LEVELS, World
from lfo.protocols import Blank, Question
from lfo.types import Action, Call, Example, Malformed, Turn

_NUMBER = re.compile(r"\d{3}-\d{3}-\d{4}")
_SOME_NUMBER = "800-555-0100"


@dataclasses.dataclass(frozen=True)
class RuleQuestion:
    """An empty-handed call to a department that demands something, and no other call first.

    truth: the fields that the reply must name.
    """

    company_id: str
    department: str
    variation: str
    question: Question
    truth: frozenset[str]


class PhoneKnowledge:
    """See `lfo.protocols.Knowledge`. levels: those of the tasks that a run trains on."""

    learned = {"phone": (PHONE,), "phone+form": (PHONE, FORM), "all": (PHONE, FORM, SEARCH)}
    hint = "Before you go on: a call made with nothing but its number would probably be answered with\n{reply}"

    def __init__(self, world: World, levels: Sequence[int] = tuple(LEVELS)):
        self._world = world
        self._company_of = {task.task_id: world.companies[task.company_id] for task in world.tasks}
        called = (self._company_of[task.task_id] for task in world.split("train", levels))
        self._names = sorted({company.name.split()[0] for company in called})

    # --- what it is told ----------------------------------------------------------------------

    def state(self, request: str, turns: Sequence[Turn], dropped: int = 0) -> str:
        """The compressed state: the oldest `dropped` previous actions are left out, the directory stays.

        Values of the form do not appear, only which fields were collected.
        """
        listed = "; ".join(f"{d['name']} {d['phone']}" for d in _last_listed(turns))
        return f"{request} Step {len(turns) + 1}. Directory: {listed}. {_progress(turns, dropped)}"

    # --- what it is asked ---------------------------------------------------------------------

    def intention(self, turns: Sequence[Turn]) -> Blank | None:
        """Whom the policy means to call; asked once it has read a directory."""
        return Blank(phone_call(_SOME_NUMBER), _SOME_NUMBER) if _last_listed(turns) else None

    def question(self, turns: Sequence[Turn], filled: str) -> Call | None:
        """An empty-handed call to the listed number that was filled in: it gives nothing, so the reply names all."""
        found = _NUMBER.search(filled)
        listed = {d["phone"] for d in _last_listed(turns)}
        return phone_call(found[0]) if found and found[0] in listed else None

    def responder(self, task: PhoneTask, agreement: float) -> DreamtCsr:
        return DreamtCsr(self._world.companies[task.company_id], task.goals, agreement)

    def is_dreamt(self, action: Action) -> bool:
        return isinstance(action, Call) and action.tool == PHONE

    def meaning(self, reply: str) -> Hashable:
        return phrasings.meaning(reply)

    # --- what it is taught --------------------------------------------------------------------

    def anonymise(self, example: Example, rng: random.Random) -> tuple[str, list[Turn], Call]:
        """A call at a company that nobody knows, so that the world model learns what is usual beside what is special.

        The first word of the name of some company of the training tasks takes the place of the company's own, so one
        in ten becomes a real one again; numbers are made up, the same for the same; the directory is shuffled, and of
        the lines that neither the calls so far nor the reply are about half are left out. Entities are anonymised to
        the same end in arXiv 1506.03340, section 2. Where the reply has numbers in it (a directory, a filled form)
        nothing is changed.
        """
        if _NUMBER.search(example.reply):
            return example.request, list(example.turns), example.call
        turns = _with_thinned_directory(example, rng)
        company = self._company_of[example.task_id]
        own, other = re.compile(rf"\b{re.escape(company.name.split()[0])}\b"), rng.choice(self._names)
        made_up = {d.phone: d.phone[:-4] + f"{rng.randrange(10_000):04d}" for d in company.departments}

        def masked(text: str) -> str:
            return _NUMBER.sub(lambda number: made_up.get(number[0], number[0]), own.sub(other, text))

        turns = [Turn(_masked_action(t.action, masked), masked(t.observation), t.status) for t in turns]
        return masked(example.request), turns, _masked_action(example.call, masked)

    # --- what it knows ------------------------------------------------------------------------

    def rules(self, split: str) -> list[RuleQuestion]:
        """`rule_questions` about the companies of a split's tasks, of all levels."""
        return rule_questions(self._world, sorted({t.company_id for t in self._world.split(split)}))

    def examine(self, ask: Callable[[Sequence[Question]], list[str]], split: str) -> dict[str, float]:
        """Share of the `rules` of a split whose exact required fields the answer names.

        Also by whether the company follows the typical rules.
        """
        asked = self.rules(split)
        answers = ask([q.question for q in asked])
        hits = [phrasings.read_reply(text)[1] == q.truth for text, q in zip(answers, asked, strict=True)]
        typical = [hit for hit, q in zip(hits, asked, strict=True) if q.variation == "typical"]
        return {
            "rule_accuracy": sum(hits) / max(1, len(hits)),
            "rule_accuracy_typical": sum(typical) / max(1, len(typical)),
            "n": len(hits),
        }


def rule_questions(world: World, companies: Iterable[str]) -> list[RuleQuestion]:
    """One question per department; those that require nothing, or another call first, are left out."""
    rules = [world.rules[c, d.name] for c in companies for d in world.companies[c].departments]
    return [
        RuleQuestion(
            rule.company_id,
            rule.department,
            rule.variation,
            empty_handed(world, world.companies[rule.company_id], rule.department, rule.department),
            frozenset(rule.required),
        )
        for rule in rules
        if rule.required and not rule.after
    ]


def empty_handed(world: World, company: Company, department: str, wanted: str) -> Question:
    """What if `department` is called with empty hands, for a goal of the department `wanted`?"""
    directory = json.dumps(search_company(world.companies, company.name))
    looked_up = Turn(search(company.name), directory, "ok")
    phone = next(d.phone for d in company.departments if d.name == department)
    request = f"Please call {company.name} for me: {DEPARTMENTS[wanted].goals[0]}."
    return Question(request, (looked_up,), phone_call(phone))


def _last_search(turns: Sequence[Turn]) -> int | None:
    """Where the directory that was read last was looked up."""
    return next((i for i in reversed(range(len(turns))) if turns[i].tool == SEARCH), None)


def _last_listed(turns: Sequence[Turn]) -> list[dict]:
    """The departments of the directory that was read last; none before that, and where no company was found."""
    at = _last_search(turns)
    return [] if at is None else json.loads(turns[at].observation)["departments"]


def _progress(turns: Sequence[Turn], dropped: int = 0) -> str:
    """What was done and collected so far, without the directory."""
    actions, collected, unavailable = [], [], []
    for turn in turns:
        where = ""
        if turn.tool == FORM and turn.status == "ok":
            data = json.loads(turn.observation)
            collected += [f for f in data if f != "unavailable"]
            unavailable += data["unavailable"]
        elif turn.tool == PHONE:
            number = turn.action.arguments["phone_number"]
            where = f" {json.dumps(number)[1:-1][:20]}"  # escaped: a model may write what has no UTF-8 form
        actions.append(f"{turn.tool or 'none'}{where} {turn.status}")
    done = f"Previous Actions: {'; '.join(actions[dropped:])}."
    return f"{done} Collected Auth: {json.dumps(collected)}. Unavailable: {json.dumps(unavailable)}."


def _with_thinned_directory(example: Example, rng: random.Random) -> list[Turn]:
    """The turns, with the directory shuffled, about half of the lines that nothing said is about left out."""
    turns, listed = list(example.turns), _last_listed(example.turns)
    if listed:
        told = _progress(turns) + written(example.call) + example.reply
        kept = [d for d in listed if d["phone"] in told or d["name"] in told or rng.random() < 0.5]
        rng.shuffle(kept)
        at = _last_search(turns)
        turns[at] = dataclasses.replace(turns[at], observation=json.dumps({"departments": kept}))
    return turns


def _masked_action(action: Action, masked: Callable[[str], str]) -> Action:
    if isinstance(action, Call):
        return Call(action.tool, json.loads(masked(json.dumps(action.arguments))))
    return Malformed(masked(action.text), masked(action.reason)) if isinstance(action, Malformed) else action
