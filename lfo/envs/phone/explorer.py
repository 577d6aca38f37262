"""The exploratory caller of throw-away worlds: on its transcripts the embedded base of this world is pretrained, and a
real one warmed up (`lfo.lab.warm_up`).

Companies and their rules are drawn anew; the caller asks for any fields, unless notes say what is needed, which it
mostly believes. Notes are what would be answered to the calls on the way, now and then made up, or what was answered in
earlier attempts.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence

from lfo.envs.phone import rules, tools, vocabulary, world
from lfo.envs.phone.callers import RandomForm
from lfo.envs.phone.environment import PhoneEnvironment
from lfo.envs.phone.episode import AS_DECIDED, PhoneEpisode, Rules
from lfo.envs.phone.knowledge import SENT, PhoneKnowledge
from lfo.envs.phone.phrasings import read_reply
from lfo.envs.phone.records import PhoneTask
from lfo.protocols import Question
from lfo.types import Turn

NOTED, FOLLOWED = 0.6, 0.85  # share of transcripts with notes; share of those whose notes are followed
RECALLED = 0.2  # share of the noted that recall earlier attempts
MADE_UP = 0.2  # share of the others whose notes are wrong
SOURCES = ("memory", "world model", "truth", "scout", "feedback")  # who says a note is no matter
RECALL = "earlier attempt"
CALLS_FIRST = 0.08  # share of transcripts that call without a form


# --- throw-away worlds -----------------------------------------------------------------------


def throwaway_world(rng: random.Random, companies: int = 8, tasks: int = 64, held_out: bool = True) -> world.World:
    """Companies whose every department and circumstance has its own random rules, and tasks that can be solved.

    held_out: whether users speak in the phrasings as well that no task of the experiments has.
    """
    return with_tasks(redrawn(companies_only(rng, companies), rng), rng, tasks, held_out)


def trade_world(rng: random.Random, companies: int = 48) -> world.World:
    """Companies with rules of the trade, as the worlds of the experiments have them, and no tasks."""
    typical = rules.draw_typical(rng, len(vocabulary.CIRCUMSTANCES))
    offices = {industry: rules.front_office(usual) for industry, usual in typical.effects.items()}
    drawn = dataclasses.replace(companies_only(rng, companies, offices), typical=typical)
    for company in drawn.companies.values():
        variation = rng.choices(("typical", "extra", "different"), (7, 2, 1))[0]
        hidden = rules.draw_rules(rng, company, typical, variation)
        drawn.rules.update({(rule.company_id, rule.department): rule for rule in hidden})
        usual = typical.effects[company.industry]
        drawn.effects[company.company_id] = rules.draw_exceptions(rng, company.industry, usual, variation)
    return drawn


def companies_only(rng: random.Random, count: int, offices: Mapping[str, str] | None = None) -> world.World:
    """Companies that hide nothing yet. offices: industry -> a department that all of its companies have."""
    phones = [f"800-555-{i:04d}" for i in rng.sample(range(10_000), 5 * count)]
    drawn = world.World(-1, {}, {}, rules.TypicalRules({}, {}, {}, {}), {}, ())
    for i, prefix in enumerate(rng.sample(vocabulary.NAME_PREFIXES, count)):
        industry = vocabulary.INDUSTRIES[i % 4]
        name = f"{prefix} {rng.choice(vocabulary.NAME_SUFFIXES[industry])}"
        office = (offices or {}).get(industry, "")
        drawn.companies[f"x{i}"] = world.draw_company(rng, f"x{i}", name, industry, phones, office)
    return drawn


def with_tasks(drawn: world.World, rng: random.Random, tasks: int, held_out: bool = True) -> world.World:
    """The world with so many tasks that can be solved, of all levels and more."""
    made: list[PhoneTask] = []
    while len(made) < tasks:
        company = rng.choice(list(drawn.companies.values()))
        profile = world.draw_profile(rng, f"u{len(made)}", company.industry)
        names = [d.name for d in company.departments]
        chosen = rng.sample(names, min(rng.choices((1, 2, 3), (3, 4, 3))[0], len(names)))
        goals = tuple(rng.choice(vocabulary.DEPARTMENTS[n].goals) for n in chosen)
        circumstances = tuple(c for c in vocabulary.CIRCUMSTANCES if rng.random() < world.PRESENT)
        try:
            plan = rules.oracle_plan(drawn.demands(company.company_id, goals, circumstances), profile)
        except ValueError:
            continue
        if len(plan.departments) > 4 or len(plan.fields) > 8:
            continue
        drawn.profiles[profile.profile_id] = profile
        request = world.request_text(rng, company, goals, circumstances, held_out)
        task = ("train", 1, company.company_id, profile.profile_id, request, goals, plan.steps, circumstances)
        made.append(PhoneTask(f"x-{len(made)}", *task))
    return dataclasses.replace(drawn, tasks=tuple(made))


def redrawn(throwaway: world.World, rng: random.Random) -> world.World:
    """The same companies with other rules."""
    hidden = {c.company_id: rules.draw_free_rules(rng, c) for c in throwaway.companies.values()}
    gated = {i: [rule.department for rule in drawn if rule.after] for i, drawn in hidden.items()}
    effects = {i: rules.draw_free_effects(rng, throwaway.companies[i], gated[i]) for i in hidden}
    by_key = {(rule.company_id, rule.department): rule for drawn in hidden.values() for rule in drawn}
    return dataclasses.replace(throwaway, rules=by_key, effects=effects)


# --- what a caller is told -------------------------------------------------------------------


@dataclasses.dataclass
class Notes:
    """What a caller was told: said, as it stands between tags; whom to call in which order; what to ask for."""

    said: list[str]
    order: list[str]
    fields: dict[str, set[str]]  # of each department


@dataclasses.dataclass(frozen=True)
class Intention:
    """Whom a caller calls next who has read so many notes, and supposes that it has made these calls."""

    read: int
    supposed: tuple[Turn, ...]
    department: str


def directory(episode: PhoneEpisode) -> dict[str, str]:
    """Department -> number, as the caller has just read them."""
    return {d["name"]: d["phone"] for d in json.loads(episode.turns[-1].observation)["departments"]}


def rehearsed(
    knowledge: PhoneKnowledge, episode: PhoneEpisode, source: str
) -> tuple[Notes, list[Question], list[Intention]]:
    """What would be answered on the way of a caller who follows what is answered; the questions; whom it calls next.

    Who has been everywhere names again whom it called first.
    """
    steps, notes, intentions = knowledge.way(episode.request, episode.turns), Notes([], [], {}), []
    past = len(episode.turns)
    for i, step in enumerate(steps):
        intentions.append(Intention(i, step.question.turns[past:], step.department))
        status, fields, _ = read_reply(step.truth)
        notes.said.append(f"{source}: {step.truth}")
        if status not in SENT:
            notes.order.append(step.department)
            notes.fields[step.department] = set(fields)
    if steps and notes.order:
        last = knowledge.supposed(steps[-1].question.turns, steps[-1].question.call, steps[-1].truth)
        intentions.append(Intention(len(steps), last[past:], notes.order[0]))
    return notes, [step.question for step in steps], intentions


def lesson(turn: Turn) -> str:
    """Which fields were handed over in a call, or asked for in a form that was declined, and what was answered."""
    if turn.tool == tools.PHONE:
        return f"{json.dumps(list(turn.action.arguments['auth_info']))} {turn.observation}"
    declined = turn.tool == tools.FORM and turn.status == "declined"
    return f"{json.dumps(turn.action.arguments['fields'])} {turn.observation}" if declined else ""


def recalled(attempts: Sequence[PhoneEpisode], listed: Mapping[str, str]) -> Notes:
    """What was answered in earlier attempts; later ones know better."""
    notes, names = Notes([], [], {}), {phone: name for name, phone in listed.items()}
    for attempt in attempts:
        for turn in attempt.turns:
            if not (said := lesson(turn)):
                continue
            notes.said.append(f"{RECALL}: {said}")
            name = names.get(turn.action.arguments.get("phone_number"))
            status, fields, others = read_reply(turn.observation)
            if name and status in ("auth_failed", "success"):
                notes.fields[name] = {*turn.action.arguments["auth_info"], *fields}
            elif name and status == "routing_violation":
                notes.order = [*others, *(d for d in notes.order if d not in others)]
    return notes


# --- what it does ----------------------------------------------------------------------------


class NoteReader(RandomForm):
    """The exploratory policy with notes in its context, which it mostly believes."""

    def __init__(self, episode: PhoneEpisode, throwaway: world.World, rng: random.Random):
        super().__init__(episode, throwaway, rng)
        self.notes: Notes | None = None
        self.follows = rng.random() < FOLLOWED
        self.calls_first = rng.random() < CALLS_FIRST

    def call_order(self):
        usual = super().call_order()
        if not (self.notes and self.follows):
            return usual
        told = [d for d in self.notes.order if d in self.directory]
        return told + [d for d in usual if d not in (*told, *self.notes.fields)]

    def choose_fields(self):
        if self.notes and self.follows:
            on_the_way = {*self.notes.order, *self.to_call}
            told = [fields for name, fields in self.notes.fields.items() if name in on_the_way]
            fields = set().union(*(told or self.notes.fields.values()))
            return fields or None
        return None if self.calls_first and not self.notes else super().choose_fields()


@dataclasses.dataclass(frozen=True)
class Transcript:
    """An episode that was played. notes: read after the first turn, as they stand between their tags. listed: number of
    each department. answered: what would be asked on the way, and what is answered to that."""

    episode: PhoneEpisode
    notes: tuple[str, ...]
    listed: Mapping[str, str]
    intentions: tuple[Intention, ...]
    answered: tuple[tuple[Question, str], ...]


def attempt(
    throwaway: world.World, task: PhoneTask, rng: random.Random, noted: float = NOTED, decided: Rules = AS_DECIDED
) -> Transcript:
    """One episode. noted: share of episodes with notes. decided: but for how CSRs speak, which is drawn."""
    env = PhoneEnvironment(throwaway, dataclasses.replace(decided, replies=rng.choice(("list", "reasons"))))
    episode = PhoneEpisode(throwaway, task, env.rules, seed=rng.randrange(2**31))
    agent = NoteReader(episode, throwaway, rng)
    observation = episode.step(agent.act(task.request))  # looks the company up
    listed = directory(episode)
    agent.notes, asked, intentions = told(env, episode, rng, noted)
    while episode.stop is None:
        observation = episode.step(agent.act(observation))
    answered = tuple((question, env.knowledge.truth(question)) for question in asked)
    return Transcript(episode, tuple(agent.notes.said if agent.notes else ()), listed, tuple(intentions), answered)


def told(env: PhoneEnvironment, episode: PhoneEpisode, rng: random.Random, noted: float):
    """Notes, or None; questions about the way; whom a caller means to call."""
    _, asked, following = rehearsed(env.knowledge, episode, "truth")
    first = following[:1]
    if not noted:  # whom next is practised all the same, as far as what is supposed tells
        each = {len(means.supposed): means for means in reversed(following)}
        return None, asked, [dataclasses.replace(means, read=0) for means in each.values()]
    if rng.random() >= noted:
        return None, asked, first
    if rng.random() < RECALLED:
        notes = recalled(earlier(env, episode.task, rng), directory(episode))
        changed = {"read": len(notes.said)} | ({"department": notes.order[0]} if notes.order else {})
        return notes, asked, [dataclasses.replace(means, **changed) for means in first]
    knowledge = env.knowledge
    if rng.random() < MADE_UP:
        knowledge = PhoneEnvironment(redrawn(env.world, rng), env.rules).knowledge
    notes, _, following = rehearsed(knowledge, episode, rng.choice(SOURCES))
    return notes, asked, following


def earlier(env: PhoneEnvironment, task: PhoneTask, rng: random.Random) -> list[PhoneEpisode]:
    """One to three failed attempts at the same task, each but the first mostly with what was heard in those before."""
    attempts: list[PhoneEpisode] = []
    for _ in range(rng.randint(1, 3)):
        episode = PhoneEpisode(env.world, task, env.rules, seed=rng.randrange(2**31))
        agent = NoteReader(episode, env.world, rng)
        observation = episode.step(agent.act(task.request))
        agent.notes = recalled(attempts, directory(episode)) if attempts else None
        while episode.stop is None:
            observation = episode.step(agent.act(observation))
        if episode.success:
            break
        attempts.append(episode)
    return attempts
