"""world: proportions, hidden rules, levels, splits, leaks, determinism - and what the oracle certifies."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lfo.envs.phone import vocabulary as v
from lfo.envs.phone import world as w
from lfo.envs.phone.records import HiddenRule, Profile
from lfo.types import RecordError

INDUSTRIES = ("banking", "insurance", "telecom", "retail")


def within(count: int, n: int, p: float, sigmas: float = 4.0) -> bool:
    """Whether a binomial count is as near to n * p as chance allows (4 sigma: wrong once in 16,000)."""
    return abs(count - n * p) <= sigmas * math.sqrt(n * p * (1 - p))


def variation_of(world, company_id: str) -> str:
    (variation,) = {r.variation for r in world.rules.values() if r.company_id == company_id}
    return variation


# --- companies -------------------------------------------------------------------------------


def test_hundred_companies_25_per_industry(world):
    assert len(world.companies) == 100
    assert collections.Counter(c.industry for c in world.companies.values()) == dict.fromkeys(INDUSTRIES, 25)
    assert len({c.name for c in world.companies.values()}) == 100
    assert all(key == c.company_id for key, c in world.companies.items())


def test_two_to_five_departments_one_of_them_the_industrys_own(world):
    assert {len(c.departments) for c in world.companies.values()} == {2, 3, 4, 5}
    for c in world.companies.values():
        names = [d.name for d in c.departments]
        assert len(set(names)) == len(names)
        assert set(names) <= set(v.COMMON_DEPARTMENTS) | set(v.INDUSTRY_DEPARTMENTS[c.industry])
        assert set(names) & set(v.INDUSTRY_DEPARTMENTS[c.industry])


def test_phone_numbers_are_unique_and_fictitious(world):
    phones = [d.phone for c in world.companies.values() for d in c.departments]
    assert len(set(phones)) == len(phones)
    assert all(re.fullmatch(r"800-555-\d{4}", p) for p in phones)
    stock = w.phone_stock(random.Random(0))
    assert len(set(stock)) == 10_000
    assert stock != sorted(stock)


def test_half_known_half_new(world):
    known = {t.company_id for t in world.tasks if t.split != "test"}
    new = {t.company_id for t in world.tasks if t.split == "test"}
    assert not known & new
    # A company may carry no task by chance, never more than the half of all.
    assert len(known) == 50
    assert 40 <= len(new) <= 50
    for industry, n in zip(INDUSTRIES, (13, 12, 13, 12), strict=True):
        assert sum(world.companies[c].industry == industry for c in known) == n


def test_goals_belong_to_one_department_and_can_be_told_apart():
    goals = [g for kind in v.DEPARTMENTS.values() for g in kind.goals]
    assert len(set(goals)) == len(goals)
    assert not [(a, b) for a in goals for b in goals if a != b and a in b]
    assert v.DEPARTMENT_OF_GOAL["report a fraud"] == "Fraud Department"


def test_fields():
    assert len(v.FIELDS) == 8 + 4 * 2
    assert len(set(v.FIELDS.values())) == len(v.FIELDS)
    assert v.industry_fields("retail")[-2:] == ("order_number", "loyalty_id")
    assert v.canonical(["email", "name", "nonsense", "name"]) == ("name", "email")


# --- hidden rules ----------------------------------------------------------------------------


def test_every_department_has_one_rule_and_no_other_has(world):
    expected = {(c.company_id, d.name) for c in world.companies.values() for d in c.departments}
    assert set(world.rules) == expected
    assert all(key == (r.company_id, r.department) for key, r in world.rules.items())


def test_rules_are_well_formed(world):
    for rule in world.rules.values():
        company = world.companies[rule.company_id]
        assert rule.required == v.canonical(rule.required)
        assert set(rule.required) <= set(v.industry_fields(company.industry))
        assert rule.alternative not in rule.required
        assert rule.alternative in ("date_of_birth", "email", "name")
        if "date_of_birth" not in rule.required:
            assert rule.alternative == "date_of_birth"
        assert rule.after in {"", *(d.name for d in company.departments)} - {rule.department}


def test_variation_shares(world):
    shares = collections.Counter(variation_of(world, c) for c in world.companies)
    assert 68 <= shares["typical"] <= 74
    assert 18 <= shares["extra"] <= 22
    assert 7 <= shares["different"] <= 12
    assert sum(shares.values()) == 100


def test_variations_are_spread_over_known_and_new_companies(world):
    numbers = [int(c[1:]) for c in world.companies]
    assert numbers == list(range(100))
    # Known companies are the first 13, 12, 13, 12 of each industry's 25.
    known = {f"c{25 * i + k:03d}" for i, n in enumerate((13, 12, 13, 12)) for k in range(n)}
    assert {t.company_id for t in world.tasks if t.split == "train"} <= known
    for variation, fewest in (("typical", 34), ("extra", 8), ("different", 4)):
        assert sum(variation_of(world, c) == variation for c in known) >= fewest
        assert sum(variation_of(world, c) == variation for c in world.companies if c not in known) >= fewest


COMMON = {
    "Customer Service": ("account_number", "last_4_ssn"),
    "Billing": ("account_number", "billing_zip"),
    "Technical Support": ("account_number", "phone_number"),
    "Fraud Department": ("account_number", "last_4_ssn", "last_4_cc"),
    "Sales": (),
}


def test_typical_companies_have_the_typical_requirements(world):
    seen = set()
    for (company_id, name), rule in world.rules.items():
        if rule.variation == "typical":
            industry = world.companies[company_id].industry
            assert rule.required == world.typical.required[industry][name]
            if name in COMMON:
                assert rule.required == COMMON[name]
                seen.add(name)
    assert seen == set(COMMON)


def test_extra_companies_ask_for_exactly_one_field_more(world):
    checked = 0
    for (company_id, name), rule in world.rules.items():
        if rule.variation == "extra":
            usual = set(world.typical.required[world.companies[company_id].industry][name])
            assert usual <= set(rule.required)
            assert len(rule.required) - len(usual) == (name != "Sales")
            checked += 1
    assert checked > 20


def test_extra_fields_are_mostly_the_industrys_house_field(world):
    """Drawn once per company: the house field with 0.75 + 0.25 / 10, unless a department has it already."""
    companies = {r.company_id for r in world.rules.values() if r.variation == "extra"}
    of_the_house = 0
    for company_id in companies:
        industry = world.companies[company_id].industry
        added = []
        for name in (d.name for d in world.companies[company_id].departments if d.name != "Sales"):
            usual = world.typical.required[industry][name]
            if world.typical.house_field[industry] not in usual:
                added += set(world.rules[company_id, name].required) - set(usual)
        of_the_house += world.typical.house_field[industry] in added
    assert len(companies) == 20
    assert within(of_the_house, 20, 0.775)


def test_different_companies_ask_for_something_else(world):
    checked = 0
    for (company_id, name), rule in world.rules.items():
        if rule.variation == "different":
            usual = world.typical.required[world.companies[company_id].industry][name]
            assert rule.required != usual
            assert len(rule.required) == max(1, len(usual))
            checked += 1
    assert checked > 8


def test_routing(world):
    for (company_id, name), rule in world.rules.items():
        company = world.companies[company_id]
        present = {d.name for d in company.departments}
        typical = world.typical.after[company.industry].get(name, "")
        assert rule.after == (typical if typical in present else "")
        if name == "Fraud Department":
            assert rule.after == "Customer Service"
        if name == "Technical Support (Priority)":
            assert rule.after == "Technical Support"
    for industry in INDUSTRIES:
        assert len(set(world.typical.after[industry]) & set(v.INDUSTRY_DEPARTMENTS[industry])) == 1


def test_industry_departments_are_drawn_per_world_seed(world):
    sizes = {i: sorted(len(world.typical.required[i][n]) for n in v.INDUSTRY_DEPARTMENTS[i]) for i in INDUSTRIES}
    assert all(some == [2, 3, 3, 4] for some in sizes.values())
    other = w.draw_typical(random.Random("another"))
    assert other.required != world.typical.required
    assert all(other.required[i][n] == fields for i in INDUSTRIES for n, fields in COMMON.items())


def test_free_rules_of_throw_away_worlds():
    rng = random.Random(3)
    sizes, routed, total = collections.Counter(), 0, 0
    for i in range(300):
        company = w.draw_company(rng, "x", "Harbor Bank", INDUSTRIES[i % 4], w.phone_stock(random.Random(i))[:5])
        names = [d.name for d in company.departments]
        for rule in w.draw_free_rules(rng, company):
            sizes[len(rule.required)] += 1
            total += 1
            routed += bool(rule.after)
            assert set(rule.required) <= set(v.industry_fields(company.industry))
            assert rule.alternative not in rule.required
            assert rule.variation == "free"
            if rule.after:
                assert names.index(rule.after) < names.index(rule.department)
    assert set(sizes) == {0, 1, 2, 3, 4}
    assert within(sizes[0], total, 1 / 20)
    assert within(sizes[1], total, 3 / 20)
    assert within(routed, total - 300, 0.25)  # the first department of a company cannot be routed


# --- profiles --------------------------------------------------------------------------------


def test_profiles_80_15_5():
    rng = random.Random(5)
    profiles = [w.draw_profile(rng, str(i), INDUSTRIES[i % 4]) for i in range(4000)]
    lacking = [set(v.industry_fields(p.industry)) - set(p.values) for p in profiles]
    counts = collections.Counter(min(len(some), 2) for some in lacking)
    assert within(counts[0], 4000, 0.80)
    assert within(counts[1], 4000, 0.15)
    assert within(counts[2], 4000, 0.05)
    assert max(map(len, lacking)) == 3
    # One missing field: the card with 0.6, else one of 10 - 3 fields, the card among them.
    assert within(sum(some == {"last_4_cc"} for some in lacking), counts[1], 0.6 + 0.4 / 7)
    assert not any(some & {"name", "date_of_birth", "email"} for some in lacking)


def test_profile_values_look_like_what_they_are(world):
    patterns = {
        "name": r"[A-Z][a-z]+ [A-Z][a-z]+",
        "account_number": r"\d{6}",
        "date_of_birth": r"(19[4-9]\d|200[0-4])-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])",
        "billing_zip": r"\d{5}",
        "phone_number": r"\d{3}-555-\d{4}",
        "email": r"[a-z]+\d\d@example\.com",
    }
    for p in world.profiles.values():
        assert set(p.values) <= set(v.industry_fields(p.industry))
        for field, value in p.values.items():
            assert re.fullmatch(patterns.get(field, r"\d{4}"), value), (field, value)


# --- tasks -----------------------------------------------------------------------------------


def test_split_sizes_and_level_proportions(world):
    levels = {s: collections.Counter(t.level for t in world.tasks if t.split == s) for s in w.SPLITS}
    assert levels["train"] == {1: 100, 2: 150, 3: 150, 4: 50, 5: 50}
    assert levels["validation"] == levels["test"] == {1: 20, 2: 30, 3: 30, 4: 10, 5: 10}
    assert len(world.tasks) == 700
    assert len({t.task_id for t in world.tasks}) == 700


def test_split_selects_by_level_in_data_order(world):
    some = world.split("train", (1, 2))
    assert len(some) == 250
    assert some == [t for t in world.split("train") if t.level <= 2]
    assert world.split("nowhere") == []


def path_by_hand(world, task) -> list[str]:
    """The departments a task needs, found without lfo's own planner."""
    todo, path = [v.DEPARTMENT_OF_GOAL[g] for g in task.goals], set()
    while todo:
        name = todo.pop()
        if name and name not in path:
            path.add(name)
            todo.append(world.rules[task.company_id, name].after)
    return sorted(path)


def test_every_task_fits_its_levels_definition(world):
    for t in world.tasks:
        path = path_by_hand(world, t)
        rules = [world.rules[t.company_id, name] for name in path]
        fields = {f for r in rules for f in r.required}
        lacking = fields - set(world.profiles[t.profile_id].values)
        if t.level == 4:
            assert (len(path), bool(lacking)) == (1, True), t
        else:
            assert not lacking, t
        if t.level in (1, 2):
            assert len(path) == 1, t
            assert len(fields) in ((0, 1, 2) if t.level == 1 else (3, 4)), t
        if t.level == 3:
            assert len(path) == 2, t
        if t.level == 5:
            assert len(path) in (3, 4), t
            assert any(r.after for r in rules), t
        assert t.optimal_steps == 2 + len(path) + bool(lacking), t
    by_level = {n: {t.optimal_steps for t in world.tasks if t.level == n} for n in range(1, 6)}
    assert by_level == {1: {3}, 2: {3}, 3: {4}, 4: {4}, 5: {5, 6}}


def test_departments_needed_are_the_hand_made_path_in_a_legal_order(world):
    for t in world.tasks:
        order = w.departments_to_call(world.rules, t.company_id, t.goals)
        assert sorted(order) == path_by_hand(world, t)
        for i, name in enumerate(order):
            after = world.rules[t.company_id, name].after
            assert not after or after in order[:i]


def test_requests_name_the_company_and_the_goals_and_nothing_hidden(world):
    for t in world.tasks:
        company = world.companies[t.company_id]
        assert company.name in t.request
        assert all(g in t.request for g in t.goals)
        rest = t.request.replace(company.name, "")
        assert not [d for d in v.DEPARTMENTS if d in rest]
        assert not [value for value in world.profiles[t.profile_id].values.values() if value in rest]
        for spoken in v.FIELDS.values():
            assert spoken not in rest


def test_no_company_profile_or_task_leaks_between_splits(world):
    def of(split, *names):
        return {tuple(getattr(t, n) for n in names) for t in world.tasks if t.split == split}

    for split in ("train", "validation"):
        assert not of(split, "company_id") & of("test", "company_id")
        assert not of(split, "profile_id") & of("test", "profile_id")
        assert not of(split, "request") & of("test", "request")
    assert of("validation", "company_id") <= of("train", "company_id")
    assert not of("train", "profile_id") & of("validation", "profile_id")
    whole = [(t.company_id, t.profile_id, t.goals) for t in world.tasks]
    assert len(set(whole)) == len(whole)


def test_no_two_profiles_are_the_same_person(world):
    people = [tuple(sorted(p.values.items())) for p in world.profiles.values()]
    assert len(set(people)) == len(people)
    assert {t.profile_id for t in world.tasks} <= set(world.profiles)
    assert all(world.profiles[t.profile_id].industry == world.companies[t.company_id].industry for t in world.tasks)


# --- determinism -----------------------------------------------------------------------------


def digest(world) -> str:
    return hashlib.sha256(repr(world).encode()).hexdigest()


def test_same_seed_same_world_other_seed_other_world(world):
    assert w.generate_world(0) == world
    other = w.generate_world(1)
    assert other.rules != world.rules
    assert other.tasks != world.tasks
    assert collections.Counter(t.level for t in other.tasks) == collections.Counter(t.level for t in world.tasks)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_world_does_not_depend_on_the_process(world, hash_seed):
    """Sets iterate differently in every process: none may decide what is drawn."""
    code = (
        "import hashlib; from lfo.envs.phone.world import generate_world; "
        "print(hashlib.sha256(repr(generate_world(0)).encode()).hexdigest())"
    )
    env = os.environ | {"PYTHONHASHSEED": hash_seed}
    root = Path(w.__file__).resolve().parents[3]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == digest(world)


def test_world_is_frozen(world):
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.seed = 3


# --- the oracle's plan -----------------------------------------------------------------------


def test_plan_by_hand(tiny):
    everyone, nocard = tiny.profiles["all"], tiny.profiles["nocard"]
    plan = w.oracle_plan(tiny.rules, everyone, "bank", ("report a fraud",))
    assert plan.fields == ("account_number", "last_4_ssn", "last_4_cc")
    assert plan.alternatives == ()
    assert plan.departments == ("Customer Service", "Fraud Department")
    assert plan.steps == 4  # search, form, two calls
    plan = w.oracle_plan(tiny.rules, nocard, "bank", ("report a fraud",))
    assert plan.alternatives == ("date_of_birth",)
    assert plan.steps == 5  # and a second form
    plan = w.oracle_plan(tiny.rules, everyone, "bank", ("hear about offers",))
    assert (plan.fields, plan.steps) == ((), 3)


def test_needed_fields_by_hand(tiny):
    goals = ("report a fraud", "dispute a charge")
    assert w.needed_fields(tiny.rules, "bank", goals) == ("account_number", "last_4_ssn", "billing_zip", "last_4_cc")
    # An alternative joins where its own department lacks something; the lacking field stays listed.
    assert w.needed_fields(tiny.rules, "bank", ("defer a loan payment",), ["name"]) == (
        "name",
        "date_of_birth",
        "email",
    )
    assert w.needed_fields(tiny.rules, "bank", ("defer a loan payment",), ["last_4_cc"]) == ("name", "date_of_birth")


def test_unsolvable_draws_are_rejected(tiny):
    ghost = Profile("ghost", "banking", {"account_number": "1", "last_4_ssn": "2"})
    with pytest.raises(ValueError, match="neither"):
        w.oracle_plan(tiny.rules, ghost, "bank", ("report a fraud",))
    circle = tiny.rules | {
        ("bank", "Customer Service"): HiddenRule("bank", "Customer Service", (), "name", "Fraud Department", "typical")
    }
    with pytest.raises(ValueError, match="circle: Fraud Department -> Customer Service -> Fraud Department"):
        w.departments_to_call(circle, "bank", ("report a fraud",))
    companies = [tiny.companies["shop"]]
    with pytest.raises(ValueError, match="no task of level 5 can be drawn for split train"):
        w.draw_task(random.Random(0), "t", "train", 5, companies, tiny.rules, {"retail": [tiny.profiles["all"]]})
    # A level-4 draw whose user lacks the alternative too is not handed out.
    with pytest.raises(ValueError, match="no task of level 4"):
        users = {"banking": [Profile("ghost", "banking", {"account_number": "1", "name": "Ana Lopez"})]}
        w.draw_task(random.Random(0), "t", "train", 4, [tiny.companies["bank"]], tiny.rules, users)


def test_level_of_by_hand(tiny):
    everyone, nocard = tiny.profiles["all"], tiny.profiles["nocard"]

    def level(profile, *goals):
        return w.level_of(tiny.rules, profile, "bank", goals)

    assert level(everyone, "dispute a charge") == 1
    assert level(everyone, "report a fraud") == 3
    assert level(nocard, "dispute a charge") == 1
    assert level(nocard, "report a fraud") is None  # two calls and something missing
    assert level(everyone, "report a fraud", "dispute a charge") == 5
    assert level(everyone, "dispute a charge", "close my account", "ask for a quote") is None  # no routing
    no_zip = Profile("z", "banking", {f: value for f, value in everyone.values.items() if f != "billing_zip"})
    assert level(no_zip, "dispute a charge") == 4
    more = tiny.rules | {
        ("bank", "Billing"): dataclasses.replace(
            tiny.rules["bank", "Billing"], required=("name", "account_number", "billing_zip")
        )
    }
    assert w.level_of(more, everyone, "bank", ("dispute a charge",)) == 2
    five = ("name", "account_number", "billing_zip", "phone_number", "email")
    more["bank", "Billing"] = dataclasses.replace(tiny.rules["bank", "Billing"], required=five)
    assert w.level_of(more, everyone, "bank", ("dispute a charge",)) is None


# --- a world in a folder ---------------------------------------------------------------------

ROOT = Path(w.__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def saved(world, tmp_path_factory) -> Path:
    return w.save_world(world, tmp_path_factory.mktemp("saved") / "deep" / "world")


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    """A saved world to spoil."""
    return Path(shutil.copytree(saved, tmp_path / "world"))


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_a_world_survives_its_folder(world, saved):
    assert w.load_world(saved) == world
    assert set(contents(saved)) == {*w.WORLD_FILES, "checksums.json"}


def test_hand_made_world_survives_too(tiny, tmp_path):
    assert w.load_world(w.save_world(tiny, tmp_path)) == tiny


def test_same_seed_same_bytes(saved, tmp_path):
    assert contents(w.save_world(w.generate_world(0), tmp_path)) == contents(saved)
    other = contents(w.save_world(w.generate_world(1), tmp_path))
    assert not [name for name in w.WORLD_FILES if other[name] == contents(saved)[name]]


def test_committed_data_is_what_the_seed_gives(saved):
    """After a change of the generator: `lfo generate`."""
    committed = contents(ROOT / "data" / "world")
    assert {name: committed[name] for name in contents(saved)} == contents(saved)


def test_public_files_hold_nothing_hidden(saved):
    """Hidden and public parts share the names of companies and departments only."""
    for name in ("companies.jsonl", "tasks.jsonl"):
        text = (saved / name).read_text()
        hidden = {*v.FIELDS, "required", "alternative", "after", "variation"} - {"name"}
        assert not [word for word in hidden if f'"{word}"' in text]


def test_checksums_are_those_of_the_files(saved):
    listed = json.loads((saved / "checksums.json").read_text())
    assert listed == {n: hashlib.sha256((saved / n).read_bytes()).hexdigest() for n in w.WORLD_FILES}


def one_sentence(error: pytest.ExceptionInfo, folder: Path) -> str:
    text = str(error.value).replace(str(folder), "FOLDER")
    assert text.endswith("write it again with `lfo generate --out FOLDER`.")
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", w.WORLD_FILES)
def test_a_changed_file_is_refused(copy, name):
    (copy / name).write_bytes(
        (copy / name).read_bytes().replace(b"account_number", b"account_numbr").replace(b"0", b"1")
    )
    with pytest.raises(RecordError) as error:
        w.load_world(copy)
    assert f"{name} is not the file that was generated" in one_sentence(error, copy)


@pytest.mark.parametrize("name", [*w.WORLD_FILES, "checksums.json"])
def test_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises(RecordError) as error:
        w.load_world(copy)
    assert f"{name} is missing" in one_sentence(error, copy)


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"rules.jsonl": "ab"}', "\x00"])
def test_unreadable_checksums_are_named(copy, text):
    (copy / "checksums.json").write_text(text)
    with pytest.raises(RecordError) as error:
        w.load_world(copy)
    assert "checksums.json does not name the checksum of every file" in one_sentence(error, copy)
