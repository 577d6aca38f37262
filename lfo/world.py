"""The phone-call world: companies, what they hide, users and tasks, drawn from one seed.

`generate_world(seed)` returns public records and, apart from them, the hidden rules; `save_world`
and `load_world` keep a world in a folder, public and hidden parts in files of their own.
`oracle_plan` certifies that a task can be solved. Imports no torch, knows no agent and no text
format. Proportions follow DESIGN section 2: 25 companies per industry; 70% of them have the
typical requirements, 20% one field more, 10% something else.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import random
import string
from pathlib import Path

from lfo.records import (
    Company,
    Department,
    HiddenRule,
    Profile,
    RecordError,
    Task,
    from_dict,
    read_jsonl,
    sha256,
    write_jsonl,
)

INDUSTRIES = ("banking", "insurance", "telecom", "retail")

# Field -> how people say it. This order is the canonical order of every list of fields.
COMMON_FIELDS = {
    "name": "full name",
    "account_number": "account number",
    "last_4_ssn": "last four digits of the SSN",
    "date_of_birth": "date of birth",
    "billing_zip": "billing ZIP code",
    "last_4_cc": "last four digits of the card",
    "phone_number": "phone number",
    "email": "email address",
}
INDUSTRY_FIELDS = {
    "banking": {"branch_code": "branch code", "card_expiry": "card expiry date"},
    "insurance": {"policy_number": "policy number", "claim_number": "claim number"},
    "telecom": {"contract_number": "contract number", "sim_number": "SIM number"},
    "retail": {"order_number": "order number", "loyalty_id": "loyalty ID"},
}
FIELDS = COMMON_FIELDS | {k: v for fields in INDUSTRY_FIELDS.values() for k, v in fields.items()}

# Any user can give these, so a department that must do without a field can fall back on one.
ALWAYS_AVAILABLE = ("date_of_birth", "email", "name")


@dataclasses.dataclass(frozen=True)
class DepartmentKind:
    """What a department of this name does everywhere: public knowledge, the same in every world."""

    description: str
    goals: tuple[str, ...]  # a user's wish, each belonging to one kind only


PRIORITY = "Technical Support (Priority)"
COMMON_DEPARTMENTS = {
    "Customer Service": DepartmentKind(
        "general account questions", ("update my mailing address", "close my account", "get a copy of my contract")
    ),
    "Billing": DepartmentKind(
        "bills, charges and payments", ("dispute a charge", "explain my last bill", "change my payment method")
    ),
    "Technical Support": DepartmentKind(
        "problems with apps and devices", ("fix the mobile app", "reset my online password", "repair a device")
    ),
    PRIORITY: DepartmentKind(
        "escalated technical problems", ("escalate a fault", "get an engineer on site", "recover lost data")
    ),
    "Fraud Department": DepartmentKind(
        "suspicious activity", ("report a fraud", "block a stolen card", "unlock a frozen account")
    ),
    "Sales": DepartmentKind("new products and offers", ("ask for a quote", "hear about offers", "order a brochure")),
}
INDUSTRY_DEPARTMENTS = {
    "banking": {
        "Loans": DepartmentKind("personal loans", ("defer a loan payment", "repay a loan early")),
        "Mortgages": DepartmentKind("home mortgages", ("renew a mortgage", "get a mortgage statement")),
        "Wire Transfers": DepartmentKind("transfers abroad", ("trace a transfer", "cancel a transfer")),
        "Card Services": DepartmentKind("debit and credit cards", ("raise my card limit", "replace a worn card")),
    },
    "insurance": {
        "Claims": DepartmentKind("damage and claims", ("file a claim", "check a claim")),
        "Policy Changes": DepartmentKind("changes to a policy", ("add a driver", "change my coverage")),
        "Underwriting": DepartmentKind("risk assessment", ("appeal a refusal", "review my premium")),
        "Roadside Assistance": DepartmentKind("help on the road", ("send a tow truck", "book a replacement car")),
    },
    "telecom": {
        "Roaming": DepartmentKind("use abroad", ("activate roaming", "contest roaming fees")),
        "Number Porting": DepartmentKind("moving numbers", ("keep my number", "release my number")),
        "Device Upgrades": DepartmentKind("new handsets", ("upgrade my phone", "trade in my phone")),
        "Network Outages": DepartmentKind("lines that are down", ("report a dead line", "claim outage credit")),
    },
    "retail": {
        "Returns": DepartmentKind("returns and refunds", ("return an item", "chase a refund")),
        "Loyalty Program": DepartmentKind("points and rewards", ("transfer my points", "restore expired points")),
        "Delivery": DepartmentKind("parcels and shipping", ("reroute a parcel", "find a lost parcel")),
        "Gift Cards": DepartmentKind("gift cards and vouchers", ("activate a gift card", "replace a gift card")),
    },
}
DEPARTMENTS = COMMON_DEPARTMENTS | {n: k for kinds in INDUSTRY_DEPARTMENTS.values() for n, k in kinds.items()}
DEPARTMENT_OF_GOAL = {goal: name for name, kind in DEPARTMENTS.items() for goal in kind.goals}

# Typical requirements of the common departments; those of the others are drawn once per world.
TYPICAL_COMMON = {
    "Customer Service": ("account_number", "last_4_ssn"),
    "Billing": ("account_number", "billing_zip"),
    "Technical Support": ("account_number", "phone_number"),
    "Fraud Department": ("account_number", "last_4_ssn", "last_4_cc"),
    "Sales": (),
}
ROUTING_COMMON = {"Fraud Department": "Customer Service", PRIORITY: "Technical Support"}

OPERATING_HOURS = ("Mon-Fri 8-18", "Mon-Sat 9-20", "every day 0-24")
NAME_PREFIXES = tuple(
    "Harbor Summit Cedar Pioneer Atlas Beacon Granite Willow Falcon Meridian Cobalt Juniper Orchard Sterling Vertex "
    "Prairie Lantern Compass Redwood Aurora Keystone Mariner Maple Horizon Evergreen Canyon Silver Crescent Liberty "
    "Northgate Oakmont Brookside Highland Ironwood Clearwater Bluebird Sandstone Whitfield Ashford Kingsley Elmwood "
    "Foxglove Greystone Hawthorn Ivory Jasper Kestrel Linden Magnolia Nimbus Obsidian Pinnacle Quartz Ridgeway "
    "Sapphire Tamarack Umber Vanguard Westbrook Yarrow Zephyr Alder Birchwood Copper Dunmore Emerald Fairview "
    "Garnet Hollis Indigo Jubilee Kinetic Larkspur Monarch Nova Onyx Pacific Quarry Riverbend Solstice Thornton "
    "Unity Valley Windward Yosemite Zenith Amber Bramble Cascade Delta Eastgate Fernhill Glacier Hearth Inland "
    "Jetty Knoll Laurel Mosaic Nordic Opal Pebble Quill Rosewood Saffron Tidewater Upland Verdant Wharf Xenia "
    "Yellowstone Zircon Anchor Boulder Citadel Driftwood".split()
)
NAME_SUFFIXES = {
    "banking": ("Bank", "Savings", "Trust"),
    "insurance": ("Insurance", "Mutual", "Assurance"),
    "telecom": ("Telecom", "Mobile", "Wireless"),
    "retail": ("Stores", "Market", "Outfitters"),
}
FIRST_NAMES = tuple(
    "Ana Ben Carla David Elena Frank Grace Hugo Irene James Karen Luis Maria Nadia Oscar Paula Quinn Rosa Samuel "
    "Tina Ursula Victor Wendy Xavier Yara Zoe Amir Bella Chen Dmitri Esther Farid".split()
)
LAST_NAMES = tuple(
    "Lopez Smith Nguyen Patel Kim Garcia Muller Rossi Silva Khan Brown Dubois Ivanov Haddad Jensen Kowalski Larsen "
    "Moreau Novak Okafor Popescu Quist Reyes Sato Tanaka Usman Varga Weber Xu Yilmaz Zhang Adams".split()
)

# Level -> (what it is, tasks among 500 training tasks).
LEVELS = {
    1: ("one call, at most two fields", 100),
    2: ("one call, three or four fields", 150),
    3: ("two sequential calls", 150),
    4: ("one call, a required field is missing", 50),
    5: ("three or four departments with routing", 50),
}
SPLITS = {"train": 500, "validation": 100, "test": 100}
REQUESTS = (
    "Please call {company} for me: {goals}.",
    "I need help with {company}. I want to {goals}.",
    "Could you phone {company} and {goals}?",
)


@dataclasses.dataclass(frozen=True)
class TypicalRules:
    """The regularities of one world: what can be learned and carried over to new companies.

    required: (industry, department) -> fields. after: (industry, department) -> department or "".
    house_field: industry -> the field that cautious companies of the industry usually add.
    """

    required: dict[tuple[str, str], tuple[str, ...]]
    after: dict[tuple[str, str], str]
    house_field: dict[str, str]


@dataclasses.dataclass(frozen=True)
class World:
    """Everything that was drawn. `rules` and `typical` are hidden: the CSR, the oracle and the prior read them."""

    seed: int
    companies: dict[str, Company]
    rules: dict[tuple[str, str], HiddenRule]  # (company_id, department name)
    typical: TypicalRules
    profiles: dict[str, Profile]
    tasks: tuple[Task, ...]

    def split(self, split: str, levels: tuple[int, ...] = tuple(LEVELS)) -> list[Task]:
        """Tasks of a split at these levels, in data order."""
        return [t for t in self.tasks if t.split == split and t.level in levels]


def industry_fields(industry: str) -> tuple[str, ...]:
    """The fields a user of this industry can be asked for, in canonical order."""
    return tuple(COMMON_FIELDS) + tuple(INDUSTRY_FIELDS[industry])


def canonical(fields) -> tuple[str, ...]:
    """Known fields without repetition, in `FIELDS` order."""
    chosen = set(fields)
    return tuple(f for f in FIELDS if f in chosen)


# --- hidden rules ----------------------------------------------------------------------------


def draw_typical(rng: random.Random) -> TypicalRules:
    """Draw the requirements of the industries' own departments, one routing pair each, and house fields."""
    required, after, house = {}, {}, {}
    priority = _draw_fields(rng, tuple(COMMON_FIELDS), 2, fixed=("account_number",))
    for industry in INDUSTRIES:
        fields = industry_fields(industry)
        for name, common in TYPICAL_COMMON.items():
            required[industry, name] = common
        required[industry, PRIORITY] = priority
        own = list(INDUSTRY_DEPARTMENTS[industry])
        for name, size in zip(own, rng.sample((2, 3, 3, 4), 4), strict=True):
            required[industry, name] = _draw_fields(rng, fields, size)
        after |= {(industry, name): first for name, first in ROUTING_COMMON.items()}
        second, first = rng.sample(own, 2)
        after[industry, second] = first
        house[industry] = rng.choice(fields)
    return TypicalRules(required, after, house)


def _draw_fields(rng: random.Random, fields, size: int, fixed: tuple[str, ...] = ()) -> tuple[str, ...]:
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
        required = typical.required[company.industry, name]
        if variation == "extra" and name != "Sales":
            with_house = canonical((*required, house))
            spare = house not in required and not set(ALWAYS_AVAILABLE) <= set(with_house)
            required = with_house if spare else _draw_fields(rng, fields, 1, fixed=required)
        elif variation == "different":
            usual, size = required, max(1, len(required))
            while required == usual:
                required = _draw_fields(rng, fields, size)
        after = typical.after.get((company.industry, name), "")
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


def departments_to_call(rules: dict[tuple[str, str], HiddenRule], company_id: str, goals) -> list[str]:
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


def needed_fields(rules: dict[tuple[str, str], HiddenRule], company_id: str, goals, unavailable=()) -> tuple[str, ...]:
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


def oracle_plan(rules: dict[tuple[str, str], HiddenRule], profile: Profile, company_id: str, goals) -> Plan:
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


def level_of(rules: dict[tuple[str, str], HiddenRule], profile: Profile, company_id: str, goals) -> int | None:
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


def draw_task(rng: random.Random, task_id: str, split: str, level: int, companies, rules, profiles) -> Task:
    """Draw tasks until one is of this level and the oracle can solve it."""
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
        return Task(task_id, split, level, company.company_id, profile.profile_id, request, goals, plan.steps)
    raise ValueError(f"no task of level {level} can be drawn for split {split}; try another world seed")


def generate_world(seed: int = 0, companies_per_industry: int = 25) -> World:
    """Draw a whole world: companies, hidden rules, profiles and the tasks of all splits.

    The first half of the companies of every industry (known) carries train and validation
    tasks, the second half (new) test tasks. Profiles are never shared between splits, and the
    three variations have the same shares among known and new companies.
    """
    rng = random.Random(f"{seed}/world")
    typical = draw_typical(rng)
    phones, prefixes = phone_stock(rng), list(NAME_PREFIXES)
    rng.shuffle(prefixes)
    companies, rules, known = {}, {}, {}
    for i, industry in enumerate(INDUSTRIES):
        first_half = (companies_per_industry + (i + 1) % 2) // 2  # 13, 12, 13, 12 of 25: 50 known, 50 new
        for half, count in (("known", first_half), ("new", companies_per_industry - first_half)):
            for variation in _variations(rng, count):
                number = len(companies)
                name = f"{prefixes[number]} {rng.choice(NAME_SUFFIXES[industry])}"
                company = draw_company(rng, f"c{number:03d}", name, industry, phones)
                companies[company.company_id] = company
                known[company.company_id] = half == "known"
                for rule in draw_rules(rng, company, typical, variation):
                    rules[rule.company_id, rule.department] = rule
    profiles, tasks = {}, []
    for split, size in SPLITS.items():
        group = [
            draw_profile(rng, f"p-{split}-{industry}-{i:03d}", industry)
            for industry in INDUSTRIES
            for i in range(max(10, size // 5))
        ]
        profiles |= {p.profile_id: p for p in group}
        by_industry = collections.defaultdict(list)
        for profile in group:
            by_industry[profile.industry].append(profile)
        home = [c for c in companies.values() if known[c.company_id] == (split != "test")]
        tasks += _draw_split(rng, split, size, home, rules, by_industry)
    return World(seed, companies, rules, typical, profiles, tuple(tasks))


def _variations(rng: random.Random, count: int) -> list[str]:
    """`count` variations in the shares 70 / 20 / 10, shuffled."""
    extra, different = round(0.2 * count), round(0.1 * count)
    kinds = ["extra"] * extra + ["different"] * different
    kinds += ["typical"] * (count - len(kinds))
    rng.shuffle(kinds)
    return kinds


def _draw_split(rng, split, size, companies, rules, profiles) -> list[Task]:
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

WORLD_FILES = ("companies.jsonl", "rules.jsonl", "typical.json", "profiles.jsonl", "tasks.jsonl")
CHECKSUMS = "checksums.json"


@dataclasses.dataclass(frozen=True)
class _TypicalFile:
    """What typical.json holds: the seed and `TypicalRules`, industry -> department -> what it demands."""

    seed: int
    required: dict[str, dict[str, tuple[str, ...]]]
    after: dict[str, dict[str, str]]
    house_field: dict[str, str]


def save_world(world: World, folder: str | Path) -> Path:
    """Write a world as JSONL with its data card and checksums; the same world always gives the same bytes."""
    folder = Path(folder)
    tables = (world.companies.values(), world.rules.values(), world.profiles.values(), world.tasks)
    for name, rows in zip((n for n in WORLD_FILES if n.endswith(".jsonl")), tables, strict=True):
        write_jsonl(folder / name, rows)
    typical = _TypicalFile(
        world.seed, _nested(world.typical.required), _nested(world.typical.after), world.typical.house_field
    )
    _write_json(folder / "typical.json", dataclasses.asdict(typical))
    _write_json(folder / CHECKSUMS, {name: sha256(folder / name) for name in WORLD_FILES})
    (folder / "README.md").write_text(data_card(world), encoding="utf-8", newline="\n")
    return folder


def load_world(folder: str | Path) -> World:
    """Read what `save_world` wrote.

    Raises:
        RecordError: a file is missing or not the one that was written.
    """
    folder = Path(folder)
    verify_checksums(folder)
    typical = from_dict(_TypicalFile, json.loads((folder / "typical.json").read_text()), str(folder / "typical.json"))
    return World(
        seed=typical.seed,
        companies={c.company_id: c for c in read_jsonl(folder / "companies.jsonl", Company)},
        rules={(r.company_id, r.department): r for r in read_jsonl(folder / "rules.jsonl", HiddenRule)},
        typical=TypicalRules(_flat(typical.required), _flat(typical.after), typical.house_field),
        profiles={p.profile_id: p for p in read_jsonl(folder / "profiles.jsonl", Profile)},
        tasks=tuple(read_jsonl(folder / "tasks.jsonl", Task)),
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


def ensure_saved(world: World, folder: str | Path) -> Path:
    """Save a world unless the folder holds exactly this one already; return the folder."""
    try:
        if load_world(folder) == world and (Path(folder) / "README.md").read_text("utf-8") == data_card(world):
            return Path(folder)
    except (RecordError, OSError):
        pass
    return save_world(world, folder)


def _write_json(path: Path, data: dict) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8", newline="\n")


def _nested(table: dict[tuple[str, str], object]) -> dict[str, dict]:
    """(industry, department) -> x becomes industry -> department -> x."""
    out: dict[str, dict] = {}
    for (industry, department), value in table.items():
        out.setdefault(industry, {})[department] = value
    return out


def _flat(table: dict[str, dict]) -> dict[tuple[str, str], object]:
    return {(outer, inner): value for outer, row in table.items() for inner, value in row.items()}


# --- the data card ---------------------------------------------------------------------------


def split_counts(world: World) -> list[dict]:
    """Per split: tasks, tasks by level, companies and users that they name."""
    rows = []
    for split in SPLITS:
        tasks = world.split(split)
        levels = {f"level {n}": sum(t.level == n for t in tasks) for n in LEVELS}
        named = {"companies": len({t.company_id for t in tasks}), "users": len({t.profile_id for t in tasks})}
        rows.append({"split": split, "tasks": len(tasks), **levels, **named})
    return rows


def company_counts(world: World) -> list[dict]:
    """Per industry: companies, companies by variation, departments."""
    variation = {r.company_id: r.variation for r in world.rules.values()}
    rows = []
    for industry in INDUSTRIES:
        ids = [c.company_id for c in world.companies.values() if c.industry == industry]
        kinds = {k: sum(variation[c] == k for c in ids) for k in ("typical", "extra", "different")}
        departments = sum(len(world.companies[c].departments) for c in ids)
        rows.append({"industry": industry, "companies": len(ids), **kinds, "departments": departments})
    total = {k: sum(r[k] for r in rows) for k in rows[0] if k != "industry"}
    return [*rows, {"industry": "all", **total}]


def overlapping_tasks(world: World) -> int:
    """Validation tasks whose company and goals (in any order) a training task has too."""
    train = {(t.company_id, frozenset(t.goals)) for t in world.split("train")}
    return sum((t.company_id, frozenset(t.goals)) in train for t in world.split("validation"))


def _markdown(rows: list[dict]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(r.values()) for r in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def data_card(world: World) -> str:
    """README.md of a saved world, counted from the world itself."""
    total = company_counts(world)[-1]
    shares = " / ".join(f"{total[k] / total['companies']:.0%}" for k in ("typical", "extra", "different"))
    complete = sum(len(p.values) == len(industry_fields(p.industry)) for p in world.profiles.values())
    return DATA_CARD.format(
        seed=world.seed,
        companies=len(world.companies),
        rules=len(world.rules),
        profiles=len(world.profiles),
        complete=complete,
        lacking=len(world.profiles) - complete,
        tasks=len(world.tasks),
        split_table=_markdown(split_counts(world)),
        level_list="\n".join(f"- level {n}: {what}" for n, (what, _) in LEVELS.items()),
        company_table=_markdown(company_counts(world)),
        shares=shares,
        overlap=overlapping_tasks(world),
        validation=len(world.split("validation")),
    )


DATA_CARD = """\
---
license: apache-2.0
language: en
pretty_name: Phone-call world {seed}
tags: [synthetic, agents, tool-use, customer-service]
---

# Phone-call world {seed}

Companies, hidden rules, users and tasks of the customer-service phone-call environment of `lfo` (Learning from
Observation). All of it is drawn by a seeded program: there are no real persons in it, and a name or number that
exists is a coincidence.

## How it was made

`lfo generate --seed {seed}` (`lfo.world.generate_world`, world seed {seed}). The same seed writes the same bytes.
`checksums.json` holds the SHA-256 of every data file, and `lfo.world.load_world` checks them. Every task was
certified by an oracle: with a cooperative user it can be solved, in `optimal_steps` actions.

## Files

| file | rows | holds | the agent |
| --- | --- | --- | --- |
| companies.jsonl | {companies} | name, industry, departments with phone numbers | may look it up |
| tasks.jsonl | {tasks} | split, level, company, user, the request, its goals | reads the request only |
| profiles.jsonl | {profiles} | the values that a user has | sees what the form returns |
| rules.jsonl | {rules} | what every department demands, its alternative, its routing | **never** sees it |
| typical.json | 1 | the regularities behind the rules, and the seed | **never** sees it |

The hidden files exist for the simulator, the oracle and for measurements. Training on them defeats the purpose.

## Splits

{split_table}

{level_list}

Train and validation tasks share their (known) companies and never a user. Test tasks have companies and users of
their own: success there is success at **new** companies. {overlap} of {validation} validation tasks
ask for the same goals at the same company as some training task, for another user: validation measures what was
learned about known companies, test what carries over. Phrasings that are held out from training are part of the
simulator (`lfo.simulator.PHRASINGS`).

## Companies

{company_table}

typical: the requirements of `typical.json`. extra: one field more in every department, usually the industry's house
field. different: other fields. The aim is 70 / 20 / 10; it is rounded within the known and the new half of every
industry, which gives {shares}.

## Users

{complete} of {profiles} users have every field, {lacking} lack one or several (mostly the card). Whether a user
is cooperative, partial or difficult is drawn once per episode by the simulator and is not part of the data.

## Intended use and limits

For research on agents that learn from what an environment says. Not a model of real call centres: replies follow
templates in English, rules never change, a refusal always names every missing field, and four industries share one
grammar. Values of users are random: telephone numbers use the 555 exchange, addresses end in example.com. Nothing
learned here says how a real company verifies its customers.

Licence: Apache-2.0.
"""
