"""Drawing a phone world from one seed: companies, what they hide, users and tasks.

`generate_world(seed)` returns public records and, apart from them, what is hidden (`rules`); `save_world` and
`load_world` keep a world in a folder, public and hidden parts in files of their own. Knows no agent and no episode.
25 companies per industry; 70% of them have the typical requirements, 20% one field more, 10% something else. How many
kinds of circumstances requests may speak of is a dial: at 0, what a department demands depends on the company alone.
"""

from __future__ import annotations

import dataclasses
import json
import random
import string
from collections.abc import Mapping, Sequence
from pathlib import Path

from lfo.envs.phone.records import (
    CircumstanceRule,
    Company,
    Department,
    Effect,
    HiddenRule,
    HiddenRules,
    PhoneTask,
    Profile,
)
from lfo.envs.phone.rules import (
    Demands,
    TypicalRules,
    demands,
    draw_exceptions,
    draw_rules,
    draw_typical,
    front_office,
    level_of,
    oracle_plan,
)
from lfo.envs.phone.vocabulary import (
    ALWAYS_AVAILABLE,
    CIRCUMSTANCES,
    COMMON_DEPARTMENTS,
    DEPARTMENTS,
    FIRST_NAMES,
    INDUSTRIES,
    INDUSTRY_DEPARTMENTS,
    INDUSTRY_FIELDS,
    LAST_NAMES,
    NAME_PREFIXES,
    NAME_SUFFIXES,
    OPERATING_HOURS,
    REQUESTS,
    ROUTING_COMMON,
)
from lfo.types import RecordError, from_json, read_jsonl, sha256, write_jsonl

# Level -> (what it is, tasks among 500 training tasks).
LEVELS = {
    1: ("one call, at most two fields", 100),
    2: ("one call, three to six fields", 150),
    3: ("two sequential calls", 150),
    4: ("one call, a required field is missing", 50),
    5: ("three or four departments with routing", 50),
}
SPLITS = {"train": 500, "validation": 100, "test": 100}
PRESENT = 0.35  # how often a request speaks of each circumstance


@dataclasses.dataclass(frozen=True)
class World:
    """Everything that was drawn. `rules`, `effects` and `typical` are hidden: CSR, oracle and prior read them.

    effects: company_id -> circumstance -> what it changes there.
    """

    seed: int
    companies: dict[str, Company]
    rules: HiddenRules
    typical: TypicalRules
    profiles: dict[str, Profile]
    tasks: tuple[PhoneTask, ...]
    effects: dict[str, dict[str, Effect]] = dataclasses.field(default_factory=dict)

    def demands(self, company_id: str, goals: Sequence[str], circumstances: Sequence[str] = ()) -> Demands:
        """What a company demands of such a request."""
        rules = [self.rules[company_id, d.name] for d in self.companies[company_id].departments]
        known = self.effects.get(company_id, {})
        return demands(rules, {name: known.get(name, Effect()) for name in circumstances}, goals)

    def demands_of(self, task: PhoneTask) -> Demands:
        return self.demands(task.company_id, task.goals, task.circumstances)

    def variation(self, company_id: str) -> str:
        """How a company's rules were drawn: typical, extra or different."""
        return self.rules[company_id, self.companies[company_id].departments[0].name].variation

    def split(self, split: str, levels: Sequence[int] = tuple(LEVELS)) -> list[PhoneTask]:
        """Tasks of a split at these levels, in data order."""
        return [t for t in self.tasks if t.split == split and t.level in levels]


# --- public records --------------------------------------------------------------------------


def draw_company(
    rng: random.Random, company_id: str, name: str, industry: str, phones: list[str], office: str = ""
) -> Company:
    """A company with two to five departments, `office` among them. `phones` is a shuffled stock that is used up."""
    own = list(INDUSTRY_DEPARTMENTS[industry])
    while True:
        chosen = rng.sample(list(COMMON_DEPARTMENTS) + own, rng.randint(2, 5))
        routed = all(first in chosen for d, first in ROUTING_COMMON.items() if d in chosen)
        if any(d in own for d in chosen) and routed and (not office or office in chosen):
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


def request_text(
    rng: random.Random, company: Company, goals: Sequence[str], circumstances: Sequence[str], held_out: bool = False
) -> str:
    """What the user asks for, in one of three phrasings, and the circumstances, each in a sentence, in any order.

    held_out: also in the phrasings that no task has.
    """
    request = rng.choice(REQUESTS).format(company=company.name, goals=" and ".join(goals))
    said = [CIRCUMSTANCES[name].said for name in rng.sample(circumstances, len(circumstances))]
    return " ".join([request, *(rng.choice(phrasings if held_out else phrasings[:-1]) for phrasings in said)])


# --- tasks -----------------------------------------------------------------------------------


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
    world: World,
    profiles: Mapping[str, Sequence[Profile]],
    tries: int = 20_000,
) -> PhoneTask | None:
    """Draw tasks until one is of this level and the oracle can solve it; None if none is. profiles: by industry."""
    for _ in range(tries):
        company = rng.choice(companies)
        profile = rng.choice(profiles[company.industry])
        goals = _draw_goals(rng, company, level)
        circumstances = tuple(c for c in world.typical.effects[company.industry] if rng.random() < PRESENT)
        if not goals:
            continue
        demanded = world.demands(company.company_id, goals, circumstances)
        try:
            if level_of(demanded, profile) != level:
                continue
            plan = oracle_plan(demanded, profile)
        except ValueError:
            continue
        request = request_text(rng, company, goals, circumstances)
        return PhoneTask(
            task_id, split, level, company.company_id, profile.profile_id, request, goals, plan.steps, circumstances
        )
    return None


def generate_world(seed: int = 0, circumstances: int = 4, companies_per_industry: int = 25) -> World:
    """Draw a whole world: companies, hidden rules, profiles and the tasks of all splits.

    The first half of the companies of every industry (known) carries train and validation
    tasks, the second half (new) test tasks. Profiles are never shared between splits, and the
    three variations have the same shares among known and new companies, and among the tasks of every split and level.

    Args:
        circumstances: the first so many of `CIRCUMSTANCES` come up in requests.
    """
    rng = random.Random(f"{seed}/world")
    typical = draw_typical(rng, circumstances)
    world = World(seed, {}, {}, typical, {}, ())
    known, new = _draw_companies(rng, world, companies_per_industry)
    world.companies.update({c.company_id: c for c in sorted(known + new, key=lambda c: c.company_id)})
    tasks: list[PhoneTask] = []
    for split, size in SPLITS.items():
        users = {
            industry: [draw_profile(rng, f"p-{split}-{industry}-{i:03d}", industry) for i in range(max(10, size // 5))]
            for industry in INDUSTRIES
        }
        world.profiles.update({p.profile_id: p for group in users.values() for p in group})
        tasks += _draw_split(rng, split, size, new if split == "test" else known, world, users)
    return dataclasses.replace(world, tasks=tuple(tasks))


def _draw_companies(rng: random.Random, world: World, per_industry: int) -> tuple[list[Company], list[Company]]:
    """Known and new companies, numbered in the order of drawing; what they hide is written into the world."""
    phones, prefixes = phone_stock(rng), list(NAME_PREFIXES)
    rng.shuffle(prefixes)
    known, new = [], []
    for i, industry in enumerate(INDUSTRIES):
        usual = world.typical.effects[industry]
        first_half = (per_industry + (i + 1) % 2) // 2  # 13, 12, 13, 12 of 25: 50 known, 50 new
        for half, count in ((known, first_half), (new, per_industry - first_half)):
            for variation in _variations(rng, count):
                number = len(known) + len(new)
                name = f"{prefixes[number]} {rng.choice(NAME_SUFFIXES[industry])}"
                company = draw_company(rng, f"c{number:03d}", name, industry, phones, front_office(usual))
                half.append(company)
                hidden = draw_rules(rng, company, world.typical, variation)
                world.rules.update({(rule.company_id, rule.department): rule for rule in hidden})
                world.effects[company.company_id] = draw_exceptions(rng, industry, usual, variation)
    return known, new


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
    world: World,
    profiles: Mapping[str, Sequence[Profile]],
) -> list[PhoneTask]:
    """Tasks of one split in the levels' proportions, no two alike, shuffled.

    At every level each variation of companies has its share, so that no split is luckier than another; where the few
    companies of a variation have no task of the level, any may have it.
    """
    tasks, seen = [], set()
    for level, (_, of_500) in LEVELS.items():
        for variation in _variations(rng, round(size * of_500 / 500)):
            fitting = [c for c in companies if world.variation(c.company_id) == variation]
            while True:
                draw = (rng, f"{split}-{len(tasks):03d}", split, level)
                task = draw_task(*draw, fitting, world, profiles, 500) if fitting else None
                task = task or draw_task(*draw, companies, world, profiles)
                if task is None:
                    raise ValueError(f"no task of level {level} can be drawn for {split}; try another world seed")
                if (key := (task.company_id, task.profile_id, task.goals, task.circumstances)) not in seen:
                    break
            seen.add(key)
            tasks.append(task)
    rng.shuffle(tasks)
    return [dataclasses.replace(t, task_id=f"{split}-{i:03d}") for i, t in enumerate(tasks)]


# --- a world in a folder ---------------------------------------------------------------------

TABLES = {
    "companies.jsonl": Company,
    "rules.jsonl": HiddenRule,
    "circumstances.jsonl": CircumstanceRule,
    "profiles.jsonl": Profile,
    "tasks.jsonl": PhoneTask,
}
TYPICAL = "typical.json"  # the seed and `TypicalRules`
WORLD_FILES = (*TABLES, TYPICAL)
CHECKSUMS = "checksums.json"


def save_world(world: World, folder: str | Path) -> Path:
    """Write a world as JSONL with its checksums; the same world always gives the same bytes."""
    folder = Path(folder)
    changed = [
        CircumstanceRule(c, name, effect) for c, known in world.effects.items() for name, effect in known.items()
    ]
    tables = (world.companies.values(), world.rules.values(), changed, world.profiles.values(), world.tasks)
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
    tables = (read_jsonl(folder / name, record) for name, record in TABLES.items())
    companies, rules, circumstances, profiles, tasks = tables
    effects: dict[str, dict[str, Effect]] = {company.company_id: {} for company in companies}
    for rule in circumstances:
        effects[rule.company_id][rule.circumstance] = rule.effect
    return World(
        seed=seed,
        companies={c.company_id: c for c in companies},
        rules={(r.company_id, r.department): r for r in rules},
        typical=from_json(TypicalRules, json.dumps(typical), TYPICAL),
        profiles={p.profile_id: p for p in profiles},
        tasks=tuple(tasks),
        effects=effects,
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
