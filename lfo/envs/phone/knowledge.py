"""What a world model of the phone world is told before a call, what it is asked, and how its answers are read.

Works on requests, turns and calls; knows no tokens and no model. Reads the hidden rules in `truth` only, and in what
asks it: `way`, `steps` and `examine`.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable, Hashable, Iterable, Sequence

from lfo.envs.base import written
from lfo.envs.phone import phrasings
from lfo.envs.phone.classifier import PhoneClassifier, Place
from lfo.envs.phone.csr import CsrSimulator, DreamtCsr
from lfo.envs.phone.grammar import Grammar
from lfo.envs.phone.records import Company, PhoneTask
from lfo.envs.phone.tools import FORM, PHONE, SEARCH, form, phone_call, search, search_company
from lfo.envs.phone.vocabulary import DEPARTMENT_OF_GOAL, FIELDS, canonical, circumstances_in, goals_in
from lfo.envs.phone.world import LEVELS, World
from lfo.protocols import Answering, Blank, Question, Teller
from lfo.types import Action, Call, Example, Feedback, Malformed, Turn

_NUMBER = re.compile(r"\d{3}-\d{3}-\d{4}")
_SOME_NUMBER = "800-555-0100"
SENT = ("routing_violation", "wrong_department")  # what sends a caller elsewhere
LONGEST_WAY = 6  # calls
SERVED = "served"
# What a reply's status is called in feedback; others say nothing.
KINDS = {
    "auth_failed": "missing_auth",
    "routing_violation": "wrong_order",
    "wrong_department": "wrong_department",
    "success": SERVED,
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A call on somebody's way through a task who follows what is answered, and has nothing in hand.

    truth: what would be answered.
    """

    task_id: str
    company_id: str
    department: str
    question: Question
    truth: str


class PhoneKnowledge:
    """See `lfo.protocols.Knowledge`. levels: those of the tasks that a run trains on; reasons: see `CsrSimulator`."""

    learned = {"phone": (PHONE,), "phone+form": (PHONE, FORM), "all": (PHONE, FORM, SEARCH)}
    hint = "A note ({source}), which may be wrong, on what is answered here:\n{reply}"

    def __init__(self, world: World, levels: Sequence[int] = tuple(LEVELS), reasons: bool = True):
        self._world, self._reasons = world, reasons
        self._company_of = {task.task_id: world.companies[task.company_id] for task in world.tasks}
        called = (self._company_of[task.task_id] for task in world.split("train", levels))
        self._names = sorted({company.name.split()[0] for company in called})
        self._directory = {d.phone: (c, d.name) for c in world.companies.values() for d in c.departments}

    # --- what it is told ----------------------------------------------------------------------

    def state(self, question: Question, dropped: int = 0) -> str:
        """The compressed state: the oldest `dropped` previous actions are left out, the directory stays.

        Values of the form do not appear, only which fields were collected; what CSRs said before does, and so does the
        name of the department that is called, where the directory has it.
        """
        turns, departments = question.turns, _last_listed(question.turns)
        listed = "; ".join(f"{d['name']} {d['phone']}" for d in departments)
        number = question.call.arguments.get("phone_number")
        callee = "".join(f" Calls {d['name']}." for d in departments if d["phone"] == number)
        return f"{question.request} Step {len(turns) + 1}. Directory: {listed}. {_progress(turns, dropped)}{callee}"

    # --- what it is asked ---------------------------------------------------------------------

    def intention(self, turns: Sequence[Turn]) -> Blank | None:
        """Whom the policy means to call; asked once it has read a directory."""
        return Blank(phone_call(_SOME_NUMBER), _SOME_NUMBER) if _last_listed(turns) else None

    def question(self, turns: Sequence[Turn], filled: str) -> Call | None:
        """An empty-handed call to the listed number that was filled in: it gives nothing, so the reply names all.

        None for a department that has served the caller already.
        """
        found = _NUMBER.search(filled)
        open_ = {d["phone"] for d in _last_listed(turns)} - set(_served(turns))
        return phone_call(found[0]) if found and found[0] in open_ else None

    def supposed(self, turns: Sequence[Turn], call: Call, reply: str) -> tuple[Turn, ...]:
        """Who refuses for want of a field would serve whoever has it; who sends the caller elsewhere would not."""
        if phrasings.read_reply(reply)[0] in SENT:
            return tuple(turns)
        number = call.arguments["phone_number"]
        name = next((d["name"] for d in _last_listed(turns) if d["phone"] == number), number)
        return (*turns, Turn(call, json.dumps({"status": "success", "message": f"{name}. Done."}), "success"))

    def feedback(self, turns: Sequence[Turn]) -> list[Feedback]:
        """One record per call, per form that was declined and per call that could not be read.

        kind: missing_auth, wrong_value, wrong_order, wrong_department, declined_form, malformed_call, or served, which
        alone is no failure. Reads what the agent said and was told, and nothing of the episode besides; a message that
        has a value of the user's in it, which only a world model could make up, is left out. In plain words: after the
        base's own wording (`explorer.lesson`), whose JSON looks like the answer to a call, the untrained
        base fills in the form and hangs up.
        """
        found, shared = [], _shared(turns)
        for turn in turns:
            if isinstance(turn.action, Malformed):
                found.append(Feedback("malformed_call", "", f"A call could not be read. {turn.action.reason}", 0.0))
            elif turn.tool == FORM and turn.status == "declined":
                asked = phrasings.oxford(turn.action.arguments["fields"])
                text = f"The form asked for {asked} and was declined: too much."
                found.append(Feedback("declined_form", FORM, text, 0.0))
            elif turn.tool == PHONE and (kind := _kind(turn.observation)):
                given, message = turn.action.arguments["auth_info"], phrasings.parse_reply(turn.observation)[1]
                if any(value in message for value in shared):
                    continue
                text = f"Gave {_named(given)}. {phrasings.in_short(message)}"
                number = turn.action.arguments["phone_number"]
                found.append(Feedback(kind, number, text, float(kind == SERVED)))
        return found

    def impersonal(self, turns: Sequence[Turn]) -> list[Turn]:
        """Values that the user gave are handles, as in `values: reference`.

        Fields, numbers and companies that nobody has may be anything, and are left out, as are calls that could not be
        read.
        """
        kept, companies = [], {company.name for company, _ in self._directory.values()}
        for turn in turns:
            action, observation = turn.action, turn.observation
            if turn.tool == PHONE:
                handles = {field: f"@{field}" for field in action.arguments["auth_info"] if field in FIELDS}
                number = action.arguments["phone_number"]
                action = phone_call(number if number in self._directory else "", handles)
            elif turn.tool == SEARCH and action.arguments["company_name"] not in companies:
                action = search("")
            elif turn.tool == FORM and turn.status == "ok":
                data = json.loads(observation)
                observation = json.dumps({f: data[f] if f == "unavailable" else f"@{f}" for f in data})
            if not isinstance(action, Malformed):
                kept.append(Turn(action, observation, turn.status))
        return kept

    def hindsight(self, turns: Sequence[Turn]) -> tuple[int, Call] | None:
        """The form, after the directory: the one that led to success, or all that was named to empty hands."""
        at = _last_search(turns)
        calls = [t for t in turns if t.tool == PHONE]
        if at is None or not calls:
            return None
        forms = [t.action for t in turns if t.tool == FORM and t.status == "ok"]
        if forms and all(t.status == "success" for t in calls):
            return at + 1, forms[0]
        if any(t.tool == FORM or t.action.arguments.get("auth_info") for t in turns[at + 1 :] if t.tool):
            return None
        named = {field for t in calls for field in phrasings.read_reply(t.observation)[1]}
        return (at + 1, form(canonical(named))) if named else None

    def truth(self, question: Question) -> str:
        """The CSR's answer to a call that hands nothing over; the same question is answered in the same words."""
        phone, request = question.call.arguments["phone_number"], question.request
        company, _ = self._directory[phone]
        if company.name not in request:  # another company was looked up: whoever is meant has no such number
            return json.dumps({"status": "wrong_department", "message": phrasings.UNKNOWN_NUMBER})
        demands = self._world.demands(company.company_id, goals_in(request), circumstances_in(request))
        csr = CsrSimulator(company, demands, f"truth/{request}/{phone}", reasons=self._reasons)
        csr.suppose_served(
            self._directory[number][1] for number in _served(question.turns) if number in self._directory
        )
        reply = csr.call(phone, {}, {}, set())
        return json.dumps({"status": reply.status, "message": reply.message})

    def cases(self, question: Question) -> tuple[Hashable, ...]:
        """Of company and department, then of industry and department; in these circumstances, then in any.

        Where anything is handed over, the answer names a part of what is demanded only.
        """
        place = self.place(question)
        if place is None or question.call.arguments["auth_info"]:
            return ()
        company_id, industry, department, served = place
        here, there = (company_id, department, served), (industry, department, served)
        circumstances = circumstances_in(question.request)
        return (*here, circumstances), (*there, circumstances), here, there

    def general(self, examples: Sequence[Example]) -> list[Example]:
        """Not those of callers who have said that they lack a field, of whom something else is demanded in its place,
        nor what is said at another company's number."""
        return [e for e in examples if phrasings.UNKNOWN_NUMBER not in e.reply and not _lacking(e.turns)]

    def place(self, question: Question) -> Place | None:
        """Where the call goes to; None for a number that nobody has."""
        found = self._directory.get(question.call.arguments.get("phone_number", ""))
        served = bool(_served(question.turns))
        return found and (found[0].company_id, found[0].industry, found[1], served)

    def classifier(self, kind: str) -> Teller:
        return Grammar(self.place) if kind == "grammar" else PhoneClassifier(kind, self.place)

    def words(self, question: Question) -> str:
        """The request, the department that is called, and who served the caller before."""
        phones = [question.call.arguments["phone_number"], *_served(question.turns)]
        named = [self._directory[phone][1].replace(" ", "_") for phone in phones if phone in self._directory]
        return " ".join([question.request, *named[:1], *(f"after_{name}" for name in named[1:])])

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
        the same end in arXiv 1506.03340, section 2. Where the reply has phone numbers in it (a directory) nothing is
        changed.
        """
        if _NUMBER.search(example.reply):
            return example.request, list(example.turns), example.call
        turns, masked = _with_thinned_directory(example, rng), self.disguise(example.task_id, rng)
        turns = [Turn(_masked_action(t.action, masked), masked(t.observation), t.status) for t in turns]
        return masked(example.request), turns, _masked_action(example.call, masked)

    def disguise(self, task_id: str, rng: random.Random) -> Callable[[str], str]:
        """Another first word in the company's name, other numbers of its departments."""
        company = self._company_of[task_id]
        own, other = re.compile(rf"\b{re.escape(company.name.split()[0])}\b"), rng.choice(self._names)
        made_up = {d.phone: d.phone[:-4] + f"{rng.randrange(10_000):04d}" for d in company.departments}

        def masked(text: str) -> str:
            return _NUMBER.sub(lambda number: made_up.get(number[0], number[0]), own.sub(other, text))

        return masked

    # --- what it knows ------------------------------------------------------------------------

    def way(self, request: str, turns: Sequence[Turn], task_id: str = "") -> list[Step]:
        """The calls of somebody who has just looked a company up and follows what is answered, up to `LONGEST_WAY`."""
        phones = {d["name"]: d["phone"] for d in _last_listed(turns)}
        goals = goals_in(request)
        owners = dict.fromkeys(owner for goal, owner in DEPARTMENT_OF_GOAL.items() if goal in goals)
        pending, served, turns, steps = [d for d in owners if d in phones], [], tuple(turns), []
        while pending and len(steps) < LONGEST_WAY:
            name = pending[0]
            question = Question(request, turns, phone_call(phones[name]))
            company, _ = self._directory[phones[name]]
            steps.append(Step(task_id, company.company_id, name, question, self.truth(question)))
            turns = self.supposed(turns, question.call, steps[-1].truth)
            status, _, others = phrasings.read_reply(steps[-1].truth)
            sent = [d for d in others if d in phones] if status in SENT else []
            served += [] if status in SENT else [name]
            if self._all_served(request, company, served):
                break
            rest = pending if status == "routing_violation" else pending[1:]
            pending = sent + [d for d in rest if d not in (*sent, *served)]
        return steps

    def _all_served(self, request: str, company: Company, departments: Sequence[str]) -> bool:
        demands = self._world.demands(company.company_id, goals_in(request), circumstances_in(request))
        return set(demands.owners.values()) <= set(departments)

    def steps(self, split: str, most: int | None = None) -> list[Step]:
        """All calls on the ways of a split's tasks, of all levels, the same ones once; of its first `most` tasks."""
        found: dict[Question, Step] = {}
        for task in self._world.split(split)[:most]:
            for step in self.way(task.request, looked_up(self._world, task.company_id), task.task_id):
                found.setdefault(step.question, step)
        return list(found.values())

    def examine(self, ask: Answering, split: str, most: int | None = None) -> dict[str, float]:
        """Share of the `steps` of a split to which the answer means what the truth means.

        Also by whether the company follows the typical rules, and of those that send the caller elsewhere.
        """
        asked = self.steps(split, most)
        answers = ask([step.question for step in asked])
        means = phrasings.meaning
        hits = {step.question: means(text) == means(step.truth) for text, step in zip(answers, asked, strict=True)}
        typical = [hits[s.question] for s in asked if self._world.variation(s.company_id) == "typical"]
        sent = [hits[s.question] for s in asked if phrasings.read_reply(s.truth)[0] in SENT]
        return {
            "rule_accuracy": sum(hits.values()) / max(1, len(hits)),
            "rule_accuracy_typical": sum(typical) / max(1, len(typical)),
            "rule_accuracy_way": sum(sent) / max(1, len(sent)),
            "n": len(hits),
        }


def _kind(reply: str) -> str:
    """What a reply on the phone is called in feedback; "" where it says nothing that can be read."""
    status, message = phrasings.parse_reply(reply)
    wrong = status == "auth_failed" and "mismatch" in message.lower()
    return "wrong_value" if wrong else KINDS.get(status, "")


def _named(fields: Iterable[str]) -> str:
    """Fields as they are spoken of; what is none, an agent has made up."""
    return phrasings.oxford([FIELDS[field] for field in fields if field in FIELDS]) or "nothing"


def looked_up(world: World, company_id: str) -> tuple[Turn]:
    """What an episode begins with: the company's directory was read."""
    company = world.companies[company_id]
    return (Turn(search(company.name), json.dumps(search_company(world.companies, company.name)), "ok"),)


def _served(turns: Sequence[Turn]) -> list[str]:
    """The numbers of the departments that have served the caller."""
    return [t.action.arguments["phone_number"] for t in turns if t.tool == PHONE and t.status == "success"]


def _last_search(turns: Sequence[Turn]) -> int | None:
    """Where the directory that was read last was looked up."""
    return next((i for i in reversed(range(len(turns))) if turns[i].tool == SEARCH), None)


def _last_listed(turns: Sequence[Turn]) -> list[dict]:
    """The departments of the directory that was read last; none before that, and where no company was found."""
    at = _last_search(turns)
    return [] if at is None else json.loads(turns[at].observation)["departments"]


def _answered(turns: Sequence[Turn]) -> list[dict]:
    """What the user answered to forms."""
    return [json.loads(turn.observation) for turn in turns if turn.tool == FORM and turn.status == "ok"]


def _shared(turns: Sequence[Turn]) -> set[str]:
    """The values that the user gave."""
    return {value for form in _answered(turns) for field, value in form.items() if field != "unavailable"}


def _lacking(turns: Sequence[Turn]) -> bool:
    """Whether the user has said that he lacks a field."""
    return any(form["unavailable"] for form in _answered(turns))


def _progress(turns: Sequence[Turn], dropped: int = 0) -> str:
    """What was done and collected so far, without the directory."""
    actions, collected, unavailable = [], [], []
    for turn in turns:
        where = said = ""
        if turn.tool == FORM and turn.status == "ok":
            data = json.loads(turn.observation)
            collected += [f for f in data if f != "unavailable"]
            unavailable += data["unavailable"]
        elif turn.tool == PHONE:
            number = turn.action.arguments["phone_number"]
            where = f" {_escaped(number)[:20]}"
            said = f" ({_escaped(phrasings.parse_reply(turn.observation)[1])})" if turn.observation else ""
        actions.append(f"{turn.tool or 'none'}{where} {turn.status}{said}")
    done = f"Previous Actions: {'; '.join(actions[dropped:])}."
    return f"{done} Collected Auth: {json.dumps(collected)}. Unavailable: {json.dumps(unavailable)}."


def _escaped(text: str) -> str:
    """In plain characters: a model, which also answers the phone in a dream, may write what has no UTF-8 form."""
    return json.dumps(text)[1:-1]


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
