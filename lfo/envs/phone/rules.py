"""What companies hide, and what it comes to for one request: demands, the way through them, and the oracle's plan.

`draw_typical` and what follows draw rules; `demands` says what a company's rules and the circumstances of a request
come to; `oracle_plan` certifies that a task can be solved. Knows no agent, no episode and no wording.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Iterable, Mapping, Sequence

from lfo.envs.phone.records import Company, Effect, HiddenRule, Profile
from lfo.envs.phone.vocabulary import (
    ALWAYS_AVAILABLE,
    CIRCUMSTANCES,
    COMMON_FIELDS,
    DEPARTMENT_OF_GOAL,
    INDUSTRIES,
    INDUSTRY_DEPARTMENTS,
    PRIORITY,
    ROUTING_COMMON,
    TYPICAL_COMMON,
    canonical,
    industry_fields,
)
from lfo.types import Record

FRONT_OFFICES = ("Customer Service", "Billing", "Technical Support")  # one that circumstances may lead to
WAYS = 3  # one circumstance in so many changes the way through a company, the others what is demanded


@dataclasses.dataclass(frozen=True)
class TypicalRules(Record):
    """The regularities of one world: what can be learned and carried over to new companies.

    required: industry -> department -> fields. after: industry -> department -> department to call first.
    house_field: industry -> the field that cautious companies of the industry usually add.
    effects: industry -> circumstance -> what it usually changes.
    """

    required: dict[str, dict[str, tuple[str, ...]]]
    after: dict[str, dict[str, str]]
    house_field: dict[str, str]
    effects: dict[str, dict[str, Effect]]

    def demands(
        self, industry: str, departments: Iterable[str], house: bool, circumstances: Iterable[str] = ()
    ) -> tuple[str, ...]:
        """What such departments usually demand in such circumstances; nothing more can be known of unknown companies.

        house: with the field that cautious companies add, where anything is demanded.
        """
        fields = {field for name in departments for field in self.required[industry][name]}
        fields |= {self.house_field[industry]} if fields and house else set()
        effects = [self.effects[industry][name] for name in circumstances if name in self.effects[industry]]
        return canonical(fields | {effect.field for effect in effects})


# --- drawing ---------------------------------------------------------------------------------


def draw_typical(rng: random.Random, circumstances: int = 0) -> TypicalRules:
    """Draw the requirements of the industries' own departments, one routing pair each, house fields and effects."""
    required, after, house = {}, {}, {}
    priority = _draw_fields(rng, tuple(COMMON_FIELDS), 2, fixed=("account_number",))
    for industry in INDUSTRIES:
        fields = industry_fields(industry)
        own = list(INDUSTRY_DEPARTMENTS[industry])
        sizes = zip(own, rng.sample((2, 3, 3, 4), 4), strict=True)
        required[industry] = TYPICAL_COMMON | {PRIORITY: priority}
        required[industry] |= {name: _draw_fields(rng, fields, size) for name, size in sizes}
        second, first = rng.sample(own, 2)
        after[industry] = ROUTING_COMMON | {second: first}
        house[industry] = rng.choice(fields)
    effects = {industry: _draw_effects(rng, industry, list(CIRCUMSTANCES)[:circumstances]) for industry in INDUSTRIES}
    return TypicalRules(required, after, house, effects)


def _draw_fields(rng: random.Random, fields: Sequence[str], size: int, fixed: Sequence[str] = ()) -> tuple[str, ...]:
    """`fixed` and `size` further fields, never all of ALWAYS_AVAILABLE: one is left as the alternative."""
    while True:
        drawn = canonical((*fixed, *rng.sample([f for f in fields if f not in fixed], size)))
        if not set(ALWAYS_AVAILABLE) <= set(drawn):
            return drawn


def special_fields(industry: str) -> list[str]:
    """What circumstances may demand: neither what nearly everyone demands nor what is left as an alternative."""
    return [f for f in industry_fields(industry) if f not in (*ALWAYS_AVAILABLE, "account_number")]


def _draw_effects(rng: random.Random, industry: str, circumstances: Sequence[str]) -> dict[str, Effect]:
    """One circumstance in three changes the way, each other one demands a field of its own."""
    ways = rng.sample(circumstances, len(circumstances) // WAYS)
    fields = rng.sample(special_fields(industry), len(circumstances))
    office = rng.choice(FRONT_OFFICES)
    effects = {}
    for name, field in zip(circumstances, fields, strict=True):
        way = rng.choice((Effect(first=office), Effect(instead=office)))
        effects[name] = way if name in ways else Effect(field=field)
    return effects


def front_office(effects: Mapping[str, Effect]) -> str:
    """The department that these lead to, which companies then have; "" if none."""
    return next((e.first or e.instead for e in effects.values() if e.first or e.instead), "")


def _alternative(required: tuple[str, ...]) -> str:
    """date_of_birth, or the next field that everyone has where that is required already."""
    return next(f for f in ALWAYS_AVAILABLE if f not in required)


def draw_rules(rng: random.Random, company: Company, typical: TypicalRules, variation: str) -> list[HiddenRule]:
    """Hidden rules of one company of the given variation (typical, extra or different)."""
    fields = industry_fields(company.industry)
    house = typical.house_field[company.industry] if rng.random() < 0.75 else rng.choice(fields)
    present = {d.name for d in company.departments}
    rules = []
    for name in (d.name for d in company.departments):
        required = typical.required[company.industry][name]
        if variation == "extra" and name != "Sales":
            with_house = canonical((*required, house))
            spare = house not in required and not set(ALWAYS_AVAILABLE) <= set(with_house)
            required = with_house if spare else _draw_fields(rng, fields, 1, fixed=required)
        elif variation == "different":
            usual, size = required, max(1, len(required))
            while required == usual:
                required = _draw_fields(rng, fields, size)
        after = typical.after[company.industry].get(name, "")
        rules.append(
            HiddenRule(
                company.company_id, name, required, _alternative(required), after if after in present else "", variation
            )
        )
    return rules


def draw_exceptions(rng: random.Random, industry: str, usual: Mapping[str, Effect], variation: str) -> dict:
    """What circumstances change at a company: the usual, with one exception if it is `extra`, if `different` all.

    An exception demands a field that the usual effect does not.
    """
    exceptional = {"typical": 0, "extra": min(1, len(usual)), "different": len(usual)}[variation]
    effects = dict(usual)
    for name in rng.sample(list(usual), exceptional):
        effects[name] = Effect(rng.choice([f for f in special_fields(industry) if f != usual[name].field]))
    return effects


def draw_free_rules(rng: random.Random, company: Company) -> list[HiddenRule]:
    """Rules without any regularity, for the throw-away worlds on which the embedded base is pretrained.

    Every department of every company gets its own random requirements (none to four fields) and,
    one time in four, a random department to call first.
    """
    fields = industry_fields(company.industry)
    names = [d.name for d in company.departments]
    rules = []
    for i, name in enumerate(names):
        required = _draw_fields(rng, fields, rng.choices((0, 1, 2, 3, 4), (1, 3, 6, 6, 4))[0])
        after = rng.choice(names[:i]) if i and rng.random() < 0.25 else ""
        rules.append(HiddenRule(company.company_id, name, required, _alternative(required), after, "free"))
    return rules


def draw_free_effects(rng: random.Random, company: Company, after: Collection[str]) -> dict[str, Effect]:
    """Effects without any regularity, for throw-away worlds. after: departments that want another one called first."""
    offices = [d.name for d in company.departments if d.name not in after]
    effects = {}
    for name in CIRCUMSTANCES:
        kind, office = rng.choices(("field", "first", "instead", ""), (7, 1, 1, 1))[0], rng.choice(offices)
        changes = {"field": rng.choice(special_fields(company.industry)), "first": office, "instead": office}
        effects[name] = Effect(**{kind: changes[kind]} if kind else {})
    return effects


# --- what they come to -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Demand:
    """What one department demands of one request.

    required, alternative, after: as in `HiddenRule`, circumstances included. usual: what the department's own rule
    requires in any case. because: every circumstance of the request -> the field that it demands, usual or not, or "".
    why_after: the circumstance for which `after` comes first, "" if it always does.
    """

    department: str
    required: tuple[str, ...]
    alternative: str
    after: str
    usual: tuple[str, ...]
    because: Mapping[str, str]
    why_after: str = ""


@dataclasses.dataclass(frozen=True)
class Demands:
    """What one company demands of one request.

    of: department -> its demand. owners: goal -> who serves it. moved: goal -> the circumstance for which it is not
    who usually does.
    """

    of: Mapping[str, Demand]
    owners: Mapping[str, str]
    moved: Mapping[str, str]

    def to_call(self) -> list[str]:
        """Departments that the goals need, every prerequisite before the department that demands it.

        Raises:
            ValueError: routing goes round in a circle.
        """
        order: list[str] = []

        def visit(name: str, path: tuple[str, ...]):
            if name in order:
                return
            if name in path:
                raise ValueError(f"routing goes round in a circle: {' -> '.join((*path, name))}")
            if after := self.of[name].after:
                visit(after, (*path, name))
            order.append(name)

        for owner in self.owners.values():
            visit(owner, ())
        return order

    def needed(self, unavailable: Collection[str] = ()) -> tuple[str, ...]:
        """Fields that all calls together need; an alternative joins for each field that is unavailable."""
        needed: set[str] = set()
        for demand in map(self.of.get, self.to_call()):
            needed |= set(demand.required)
            if set(demand.required) & set(unavailable):
                needed.add(demand.alternative)
        return canonical(needed)


def demands(rules: Iterable[HiddenRule], effects: Mapping[str, Effect], goals: Sequence[str]) -> Demands:
    """rules: of all departments of a company; effects: of all circumstances of the request, there."""
    because = {name: effects[name].field for name in CIRCUMSTANCES if name in effects}
    added = set(because.values()) - {""}
    gate, why_gate = next(((e.first, name) for name, e in effects.items() if e.first), ("", ""))
    office, why_moved = next(((e.instead, name) for name, e in effects.items() if e.instead), ("", ""))
    of = {}
    for rule in rules:
        gated = bool(gate) and not rule.after and rule.department != gate
        after, why_after = (gate, why_gate) if gated else (rule.after, "")
        required = canonical((*rule.required, *added))
        of[rule.department] = Demand(
            rule.department, required, rule.alternative, after, rule.required, because, why_after
        )
    owners = {goal: office or DEPARTMENT_OF_GOAL[goal] for goal in goals}
    moved = {goal: why_moved for goal, owner in owners.items() if owner != DEPARTMENT_OF_GOAL[goal]}
    return Demands(of, owners, moved)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The oracle's way: which fields to ask for first, which to ask for then, whom to call in turn."""

    fields: tuple[str, ...]
    alternatives: tuple[str, ...]
    departments: tuple[str, ...]

    @property
    def steps(self) -> int:
        return 2 + bool(self.alternatives) + len(self.departments)


def oracle_plan(demanded: Demands, profile: Profile) -> Plan:
    """The shortest way through a request for a cooperative user with this profile.

    Raises:
        ValueError: no such way exists (an alternative is missing too, or routing is circular).
    """
    calls, fields = demanded.to_call(), demanded.needed()
    lacking = [f for f in fields if f not in profile.values]
    alternatives = [f for f in demanded.needed(lacking) if f not in fields]
    if any(f not in profile.values for f in alternatives):
        raise ValueError(f"{profile.profile_id} has neither {lacking} nor the alternatives {alternatives}")
    return Plan(fields, tuple(alternatives), tuple(calls))


def level_of(demanded: Demands, profile: Profile) -> int | None:
    """The level of a request, or None where it fits no level's definition."""
    calls, fields = demanded.to_call(), demanded.needed()
    lacking = [f for f in fields if f not in profile.values]
    routed = any(demanded.of[name].after for name in calls)
    if lacking:
        return 4 if len(calls) == 1 and fields else None
    if len(calls) == 1:
        return 1 if len(fields) <= 2 else 2 if len(fields) <= MOST_FIELDS else None
    if len(calls) == 2:
        return 3
    return 5 if routed and len(calls) <= 4 else None


MOST_FIELDS = 6  # of a task of level 2
