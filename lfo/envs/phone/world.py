"""Drawing a phone world from one seed: companies, what they hide, users and tasks; and the oracle.

`generate_world(seed)` returns public records and, apart from them, the hidden rules; `oracle_plan` certifies that a
task can be solved; `save_world` and `load_world` keep a world in a folder, public and hidden parts in files of their
own. Knows no agent and no episode. 25 companies per industry; 70% of them have the typical requirements, 20% one field
more, 10% something else.
"""

from __future__ import annotations

import dataclasses
import json
import random
import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from lfo.envs.phone.records import Company, Department, HiddenRule, HiddenRules, PhoneTask, Profile
from lfo.envs.phone.vocabulary import (
    ALWAYS_AVAILABLE,
    COMMON_DEPARTMENTS,
    COMMON_FIELDS,
    DEPARTMENT_OF_GOAL,
    DEPARTMENTS,
    FIRST_NAMES,
    INDUSTRIES,
    INDUSTRY_DEPARTMENTS,
    INDUSTRY_FIELDS,
    LAST_NAMES,
    NAME_PREFIXES,
    NAME_SUFFIXES,
    OPERATING_HOURS,
    PRIORITY,
    REQUESTS,
    ROUTING_COMMON,
    TYPICAL_COMMON,
    canonical,
    industry_fields,
)
from lfo.types import Record, RecordError, from_json, read_jsonl, sha256, write_jsonl

# Level -> (what it is, tasks among 500 training tasks).
LEVELS = {
    1: ("one call, at most two fields", 100),
    2: ("one call, three or four fields", 150),
    3: ("two sequential calls", 150),
    4: ("one call, a required field is missing", 50),
    5: ("three or four departments with routing", 50),
}
SPLITS = {"train": 500, "validation": 100, "test": 100}


@dataclasses.dataclass(frozen=True)
class TypicalRules(Record):
    """The regularities of one world: what can be learned and carried over to new companies.

    required: industry -> department -> fields. after: industry -> department -> department to call first.
    house_field: industry -> the field that cautious companies of the industry usually add.
    """

    required: dict[str, dict[str, tuple[str, ...]]]
    after: dict[str, dict[str, str]]
    house_field: dict[str, str]

    def demands(self, industry: str, departments: Iterable[str], house: bool) -> tuple[str, ...]:
        """What such departments usually demand, all of them together; nothing more can be known of unknown companies.

        house: with the field that cautious companies add, where anything is demanded.
        """
        fields = {field for name in departments for field in self.required[industry][name]}
        return canonical({*fields, self.house_field[industry]} if fields and house else fields)


@dataclasses.dataclass(frozen=True)
class World:
    """Everything that was drawn. `rules` and `typical` are hidden: the CSR, the oracle and the prior read them."""

    seed: int
    companies: dict[str, Company]
    rules: HiddenRules
    typical: TypicalRules
    profiles: dict[str, Profile]
    tasks: tuple[PhoneTask, ...]

    def split(self, split: str, levels: Sequence[int] = tuple(LEVELS)) -> list[PhoneTask]:
        """Tasks of a split at these levels, in data order."""
        return [t for t in self.tasks if t.split == split and t.level in levels]


# --- hidden rules ----------------------------------------------------------------------------


def draw_typical(rng: random.Random) -> TypicalRules:
    """Draw the requirements of the industries' own departments, one routing pair each, and house fields."""
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
    return TypicalRules(required, after, house)


def _draw_fields(rng: random.Random, fields: Sequence[str], size: int, fixed: Sequence[str] = ()) -> tuple[str, ...]:
    """`fixed` and `size` further fields, never all of ALWAYS_AVAILABLE: one is left as the alternative."""
    while True:
        drawn = canonical((*fixed, *rng.sample([f for f in fields if f not in fixed], size)))
        if not set(ALWAYS_AVAILABLE) <= set(drawn):
            return drawn


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


# --- public records --------------------------------------------------------------------------


def draw_company(rng: random.Random, company_id: str, name: str, industry: str, phones: list[str]) -> Company:
    """A company with two to five departments. `phones` is a shuffled stock that is used up."""
    own = list(INDUSTRY_DEPARTMENTS[industry])
    while True:
        chosen = rng.sample(list(COMMON_DEPARTMENTS) + own, rng.randint(2, 5))
        if any(d in own for d in chosen) and all(first in chosen for d, first in ROUTING_COMMON.items() if d in chosen):
            break
    departments = tuple(
        Department(d, phones.pop(), DEPARTMENTS[d].description, rng.choice(OPERATING_HOURS)) for d in chosen
    )
    return Company(company_id, name, industry, departments)


def phone_stock(rng: random.Random) -> list[str]:
    """All fictitious toll-free numbers 800-555-dddd, shuffled."""
    numbers = [f"800-555-{i:04d}" for i in range(10_000)]
    rng.shuffle(numbers)
    return numbers


def draw_profile(rng: random.Random, profile_id: str, industry: str) -> Profile:
    """A user: 80% have every field, 15% lack one (mostly last_4_cc), 5% lack several."""

    def digits(n: int) -> str:
        return "".join(rng.choices(string.digits, k=n))

    first, last = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES)
    values = {
        "name": f"{first} {last}",
        "account_number": digits(6),
        "last_4_ssn": digits(4),
        "date_of_birth": f"{rng.randint(1945, 2004)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
        "billing_zip": digits(5),
        "last_4_cc": digits(4),
        "phone_number": f"{digits(3)}-555-{digits(4)}",
        "email": f"{first.lower()}{digits(2)}@example.com",
    } | {field: digits(4) for field in INDUSTRY_FIELDS[industry]}
    can_lack = [f for f in values if f not in ALWAYS_AVAILABLE]
    draw = rng.random()
    if draw < 0.05:
        lacking = rng.sample(can_lack, rng.randint(2, 3))
    elif draw < 0.20:
        lacking = ["last_4_cc" if rng.random() < 0.6 else rng.choice(can_lack)]
    else:
        lacking = []
    return Profile(profile_id, industry, {f: v for f, v in values.items() if f not in lacking})


def request_text(rng: random.Random, company: Company, goals: tuple[str, ...]) -> str:
    """What the user asks for, in one of three phrasings."""
    return rng.choice(REQUESTS).format(company=company.name, goals=" and ".join(goals))


# --- tasks and their oracle ------------------------------------------------------------------


def departments_to_call(rules: HiddenRules, company_id: str, goals: Sequence[str]) -> list[str]:
    """Departments the goals need, every prerequisite before the department that demands it."""
    order: list[str] = []

    def visit(name: str, path: tuple[str, ...]):
        if name in order:
            return
        if name in path:
            raise ValueError(f"{company_id}: routing goes round in a circle: {' -> '.join((*path, name))}")
        rule = rules[company_id, name]
        if rule.after:
            visit(rule.after, (*path, name))
        order.append(name)

    for goal in goals:
        visit(DEPARTMENT_OF_GOAL[goal], ())
    return order


def needed_fields(
    rules: HiddenRules, company_id: str, goals: Sequence[str], unavailable: Collection[str] = ()
) -> tuple[str, ...]:
    """Fields that the calls of a task need; an alternative joins for each field that is unavailable."""
    needed = set()
    for name in departments_to_call(rules, company_id, goals):
        rule = rules[company_id, name]
        needed |= set(rule.required)
        if set(rule.required) & set(unavailable):
            needed.add(rule.alternative)
    return canonical(needed)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The oracle's way: which fields to ask for first, which to ask for then, whom to call in turn."""

    fields: tuple[str, ...]
    alternatives: tuple[str, ...]
    departments: tuple[str, ...]

    @property
    def steps(self) -> int:
        return 2 + bool(self.alternatives) + len(self.departments)


def oracle_plan(rules: HiddenRules, profile: Profile, company_id: str, goals: Sequence[str]) -> Plan:
    """The shortest way through a task for a cooperative user with this profile.

    Raises:
        ValueError: no such way exists (an alternative is missing too, or routing is circular).
    """
    calls = departments_to_call(rules, company_id, goals)
    fields = needed_fields(rules, company_id, goals)
    lacking = [f for f in fields if f not in profile.values]
    alternatives = [f for f in needed_fields(rules, company_id, goals, lacking) if f not in fields]
    if any(f not in profile.values for f in alternatives):
        raise ValueError(f"{profile.profile_id} has neither {lacking} nor the alternatives {alternatives}")
    return Plan(fields, tuple(alternatives), tuple(calls))


def level_of(rules: HiddenRules, profile: Profile, company_id: str, goals: Sequence[str]) -> int | None:
    """The level of a task, or None where it fits no level's definition."""
    calls = departments_to_call(rules, company_id, goals)
    fields = needed_fields(rules, company_id, goals)
    lacking = [f for f in fields if f not in profile.values]
    routed = any(rules[company_id, name].after for name in calls)
    if lacking:
        return 4 if len(calls) == 1 and fields else None
    if len(calls) == 1:
        return 1 if len(fields) <= 2 else 2 if len(fields) <= 4 else None
    if len(calls) == 2:
        return 3
    return 5 if routed and len(calls) <= 4 else None


def _draw_goals(rng: random.Random, company: Company, level: int) -> tuple[str, ...]:
    """Goals that may make a task of this level; Sales, which demands nothing, comes up less often."""
    names = [d.name for d in company.departments if d.name != "Sales" or rng.random() < 0.3]
    count = min({1: 1, 2: 1, 3: rng.randint(1, 2), 4: 1, 5: rng.randint(1, 3)}[level], len(names))
    return tuple(rng.choice(DEPARTMENTS[name].goals) for name in rng.sample(names, count))


def draw_task(
    rng: random.Random,
    task_id: str,
    split: str,
    level: int,
    companies: Sequence[Company],
    rules: HiddenRules,
    profiles: Mapping[str, Sequence[Profile]],
) -> PhoneTask:
    """Draw tasks until one is of this level and the oracle can solve it. profiles: by industry."""
    for _ in range(20_000):
        company = rng.choice(companies)
        profile = rng.choice(profiles[company.industry])
        goals = _draw_goals(rng, company, level)
        if not goals or level_of(rules, profile, company.company_id, goals) != level:
            continue
        try:
            plan = oracle_plan(rules, profile, company.company_id, goals)
        except ValueError:
            continue
        request = request_text(rng, company, goals)
        return PhoneTask(task_id, split, level, company.company_id, profile.profile_id, request, goals, plan.steps)
    raise ValueError(f"no task of level {level} can be drawn for split {split}; try another world seed")


def generate_world(seed: int = 0, companies_per_industry: int = 25) -> World:
    """Draw a whole world: companies, hidden rules, profiles and the tasks of all splits.

    The first half of the companies of every industry (known) carries train and validation
    tasks, the second half (new) test tasks. Profiles are never shared between splits, and the
    three variations have the same shares among known and new companies.
    """
    rng = random.Random(f"{seed}/world")
    typical = draw_typical(rng)
    known, new, rules = _draw_companies(rng, typical, companies_per_industry)
    profiles, tasks = {}, []
    for split, size in SPLITS.items():
        users = {
            industry: [draw_profile(rng, f"p-{split}-{industry}-{i:03d}", industry) for i in range(max(10, size // 5))]
            for industry in INDUSTRIES
        }
        profiles |= {p.profile_id: p for group in users.values() for p in group}
        tasks += _draw_split(rng, split, size, new if split == "test" else known, rules, users)
    companies = {c.company_id: c for c in sorted(known + new, key=lambda c: c.company_id)}
    return World(seed, companies, rules, typical, profiles, tuple(tasks))


def _draw_companies(
    rng: random.Random, typical: TypicalRules, per_industry: int
) -> tuple[list[Company], list[Company], HiddenRules]:
    """Known and new companies, numbered in the order of drawing, and the rules of all."""
    phones, prefixes = phone_stock(rng), list(NAME_PREFIXES)
    rng.shuffle(prefixes)
    known, new, rules = [], [], {}
    for i, industry in enumerate(INDUSTRIES):
        first_half = (per_industry + (i + 1) % 2) // 2  # 13, 12, 13, 12 of 25: 50 known, 50 new
        for half, count in ((known, first_half), (new, per_industry - first_half)):
            for variation in _variations(rng, count):
                number = len(known) + len(new)
                name = f"{prefixes[number]} {rng.choice(NAME_SUFFIXES[industry])}"
                company = draw_company(rng, f"c{number:03d}", name, industry, phones)
                half.append(company)
                rules |= {(r.company_id, r.department): r for r in draw_rules(rng, company, typical, variation)}
    return known, new, rules


def _variations(rng: random.Random, count: int) -> list[str]:
    """`count` variations in the shares 70 / 20 / 10, shuffled."""
    extra, different = round(0.2 * count), round(0.1 * count)
    kinds = ["extra"] * extra + ["different"] * different
    kinds += ["typical"] * (count - len(kinds))
    rng.shuffle(kinds)
    return kinds


def _draw_split(
    rng: random.Random,
    split: str,
    size: int,
    companies: Sequence[Company],
    rules: HiddenRules,
    profiles: Mapping[str, Sequence[Profile]],
) -> list[PhoneTask]:
    """Tasks of one split in the levels' proportions, no two alike, shuffled."""
    tasks, seen = [], set()
    for level, (_, of_500) in LEVELS.items():
        wanted = round(size * of_500 / 500)
        while wanted:
            task = draw_task(rng, f"{split}-{len(tasks):03d}", split, level, companies, rules, profiles)
            if (key := (task.company_id, task.profile_id, task.goals)) in seen:
                continue
            seen.add(key)
            tasks.append(task)
            wanted -= 1
    rng.shuffle(tasks)
    return [dataclasses.replace(t, task_id=f"{split}-{i:03d}") for i, t in enumerate(tasks)]


# --- a world in a folder ---------------------------------------------------------------------

TABLES = {"companies.jsonl": Company, "rules.jsonl": HiddenRule, "profiles.jsonl": Profile, "tasks.jsonl": PhoneTask}
TYPICAL = "typical.json"  # the seed and `TypicalRules`
WORLD_FILES = ("companies.jsonl", "rules.jsonl", TYPICAL, "profiles.jsonl", "tasks.jsonl")
CHECKSUMS = "checksums.json"


def save_world(world: World, folder: str | Path) -> Path:
    """Write a world as JSONL with its checksums; the same world always gives the same bytes."""
    folder = Path(folder)
    tables = (world.companies.values(), world.rules.values(), world.profiles.values(), world.tasks)
    for name, rows in zip(TABLES, tables, strict=True):
        write_jsonl(folder / name, rows)
    _write_json(folder / TYPICAL, {"seed": world.seed, **dataclasses.asdict(world.typical)})
    _write_json(folder / CHECKSUMS, {name: sha256(folder / name) for name in WORLD_FILES})
    return folder


def load_world(folder: str | Path) -> World:
    """Read what `save_world` wrote.

    Raises:
        RecordError: a file is missing or not the one that was written.
    """
    folder = Path(folder)
    verify_checksums(folder)
    typical = json.loads((folder / TYPICAL).read_text(encoding="utf-8"))
    seed = typical.pop("seed")
    companies, rules, profiles, tasks = (read_jsonl(folder / name, record) for name, record in TABLES.items())
    return World(
        seed=seed,
        companies={c.company_id: c for c in companies},
        rules={(r.company_id, r.department): r for r in rules},
        typical=from_json(TypicalRules, json.dumps(typical), TYPICAL),
        profiles={p.profile_id: p for p in profiles},
        tasks=tuple(tasks),
    )


def verify_checksums(folder: str | Path) -> None:
    """Compare every file of a saved world with checksums.json.

    Raises:
        RecordError: a file is missing or differs; the message names the first one and the remedy.
    """
    folder = Path(folder)
    remedy = f"write it again with `lfo generate --out {folder}`."
    if not (folder / CHECKSUMS).is_file():
        raise RecordError(f"{folder} holds no world ({CHECKSUMS} is missing); {remedy}")
    try:
        expected = {name: str(json.loads((folder / CHECKSUMS).read_text())[name]) for name in WORLD_FILES}
    except (ValueError, KeyError, TypeError):
        raise RecordError(f"{folder / CHECKSUMS} does not name the checksum of every file; {remedy}") from None
    for name in WORLD_FILES:
        if not (folder / name).is_file():
            raise RecordError(f"{folder / name} is missing; {remedy}")
        if sha256(folder / name) != expected[name]:
            raise RecordError(f"{folder / name} is not the file that was generated (checksum); {remedy}")


def _write_json(path: Path, data: dict) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8", newline="\n")
