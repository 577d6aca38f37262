"""world: proportions, hidden rules, levels, splits, leaks, determinism, and a world in a folder."""

from __future__ import annotations

import collections
import dataclasses
import functools
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
from lfo.envs.phone.records import Effect, Profile
from lfo.envs.phone.rules import draw_typical, front_office, special_fields
from lfo.types import RecordError

INDUSTRIES = ("banking", "insurance", "telecom", "retail")
# World seed and kinds of circumstances: what is shipped, and worlds without any, with fields only, and with all kinds
# of effects. Whatever is true of a world is true of each of them.
DRAWN = [(0, 4), (0, 0), (1, 2), (5, 4), (3, 6)]

drawn = functools.cache(w.generate_world)


@pytest.fixture(params=DRAWN, ids=lambda p: f"world {p[0]}, {p[1]} circumstances")
def any_world(request) -> w.World:
    return drawn(*request.param)


def within(count: int, n: int, p: float, sigmas: float = 4.0) -> bool:
    """Whether a binomial count is as near to n * p as chance allows (4 sigma: wrong once in 16,000)."""
    return abs(count - n * p) <= sigmas * math.sqrt(n * p * (1 - p))


def variation_of(world, company_id: str) -> str:
    (variation,) = {r.variation for r in world.rules.values() if r.company_id == company_id}
    assert world.variation(company_id) == variation
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
    other = draw_typical(random.Random("another"))
    assert other.required != world.typical.required
    assert all(other.required[i][n] == fields for i in INDUSTRIES for n, fields in COMMON.items())


# --- hidden effects --------------------------------------------------------------------------


def test_every_company_makes_something_of_the_first_so_many_circumstances(any_world):
    kinds = {tuple(effects) for effects in any_world.effects.values()}
    (known,) = kinds | {tuple(effects) for effects in any_world.typical.effects.values()}
    assert known == tuple(v.CIRCUMSTANCES)[: len(known)]
    assert set(any_world.effects) == set(any_world.companies)


def test_effects_follow_the_industry_but_for_exceptions(any_world):
    """A cautious company makes something else of one circumstance, one with rules of its own of all."""
    exceptions, count = collections.Counter(), len(any_world.typical.effects["banking"])
    for company_id, company in any_world.companies.items():
        usual, effects = any_world.typical.effects[company.industry], any_world.effects[company_id]
        other = [name for name, effect in effects.items() if effect != usual[name]]
        variation = variation_of(any_world, company_id)
        assert len(other) == {"typical": 0, "extra": min(1, count), "different": count}[variation]
        assert all(effects[name] == Effect(field=effects[name].field) for name in other)
        exceptions.update(other)
    assert len(exceptions) == count  # any circumstance may be the exception


def test_effects_are_well_formed(any_world):
    """They demand what the industry's users may have, and lead to a department of the company's own."""
    for company_id, effects in any_world.effects.items():
        company = any_world.companies[company_id]
        for effect in effects.values():
            assert [bool(x) for x in (effect.field, effect.first, effect.instead)].count(True) == 1
            assert effect.field in ("", *special_fields(company.industry))
            office = effect.first or effect.instead
            assert not office or not any_world.rules[company_id, office].after


def test_companies_have_the_department_that_circumstances_lead_to(any_world):
    for company in any_world.companies.values():
        office = front_office(any_world.typical.effects[company.industry])
        assert office in {"", *(d.name for d in company.departments)}


def kinds_of_effect(world) -> set[str]:
    effects = [effect for known in world.effects.values() for effect in known.values()]
    return {kind for effect in effects for kind, what in dataclasses.asdict(effect).items() if what}


def test_every_kind_of_effect_is_drawn():
    """In the worlds of this file; in the shipped one there is nobody who serves instead."""
    assert kinds_of_effect(drawn(0, 0)) == set() and kinds_of_effect(drawn(1, 2)) == {"field"}
    assert kinds_of_effect(drawn(0, 4)) == {"field", "first"}
    assert kinds_of_effect(drawn(5, 4)) == {"field", "instead"}
    assert kinds_of_effect(drawn(3, 6)) == {"field", "first", "instead"}


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


def test_every_split_and_level_has_its_share_of_each_kind_of_company():
    """70 / 20 / 10, whatever the circumstances: no split is luckier than another."""
    for circumstances in (0, 2, 4, 6):
        world = drawn(0, circumstances)
        kinds = collections.Counter((t.split, t.level, variation_of(world, t.company_id)) for t in world.tasks)
        for split, size in w.SPLITS.items():
            for level, (_, of_500) in w.LEVELS.items():
                count = size * of_500 // 500
                shares = {"extra": count // 5, "different": count // 10, "typical": count - count // 5 - count // 10}
                assert {kind: kinds[split, level, kind] for kind in shares} == shares


def test_where_a_kind_of_company_has_no_task_of_a_level_others_have_it():
    """In world 2 no cautious company that is known has a department that wants fewer than three fields."""
    world = drawn(2, 4)
    known = {t.company_id for t in world.tasks if t.split != "test"}
    cautious = [r for r in world.rules.values() if r.company_id in known and r.variation == "extra"]
    assert cautious and min(len(r.required) for r in cautious) == 3
    kinds = collections.Counter((t.level, variation_of(world, t.company_id)) for t in world.split("train"))
    assert kinds[1, "extra"] == 0 and kinds[1, "typical"] > 70
    assert kinds[1, "typical"] + kinds[1, "different"] == 100
    assert (kinds[2, "typical"], kinds[2, "extra"], kinds[2, "different"]) == (105, 30, 15)


def effects_by_hand(world, task) -> list[Effect]:
    return [world.effects[task.company_id][name] for name in task.circumstances]


def path_by_hand(world, task) -> list[str]:
    """The departments a task needs, found without lfo's own planner."""
    effects = effects_by_hand(world, task)
    first = next((e.first for e in effects if e.first), "")
    instead = [e.instead for e in effects if e.instead][:1]
    todo, path = instead or [v.DEPARTMENT_OF_GOAL[g] for g in task.goals], set()
    while todo:
        name = todo.pop()
        if name and name not in path:
            path.add(name)
            todo.append(world.rules[task.company_id, name].after or (first if name != first else ""))
    return sorted(path)


def fields_by_hand(world, task) -> set[str]:
    fields = {f for name in path_by_hand(world, task) for f in world.rules[task.company_id, name].required}
    return fields | {e.field for e in effects_by_hand(world, task) if e.field}


def test_every_task_fits_its_levels_definition(any_world):
    for t in any_world.tasks:
        path, fields = path_by_hand(any_world, t), fields_by_hand(any_world, t)
        lacking = fields - set(any_world.profiles[t.profile_id].values)
        if t.level == 4:
            assert (len(path), bool(lacking)) == (1, True), t
        else:
            assert not lacking, t
        if t.level in (1, 2):
            assert len(path) == 1, t
            assert len(fields) in ((0, 1, 2) if t.level == 1 else (3, 4, 5, 6)), t
        if t.level == 3:
            assert len(path) == 2, t
        if t.level == 5:
            assert len(path) in (3, 4), t
            firsts = {e.first for e in effects_by_hand(any_world, t) if e.first}
            assert firsts or any(any_world.rules[t.company_id, name].after for name in path), t
        assert t.optimal_steps == 2 + len(path) + bool(lacking), t
    by_level = {n: {t.optimal_steps for t in any_world.tasks if t.level == n} for n in range(1, 6)}
    assert by_level == {1: {3}, 2: {3}, 3: {4}, 4: {4}, 5: {5, 6}}


def test_demands_are_the_hand_made_path_and_fields(any_world):
    for t in any_world.tasks:
        demanded = any_world.demands_of(t)
        order = demanded.to_call()
        assert sorted(order) == path_by_hand(any_world, t)
        assert set(demanded.needed()) == fields_by_hand(any_world, t)
        for i, name in enumerate(order):
            assert demanded.of[name].after in ("", *order[:i])


def test_requests_say_the_circumstances_as_users_do_in_training(any_world):
    """All of them and no other, in `CIRCUMSTANCES` order in the record; a held-out phrasing is in no task."""
    held_out, known = [kind.said[-1] for kind in v.CIRCUMSTANCES.values()], set(any_world.typical.effects["banking"])
    for t in any_world.tasks:
        assert v.circumstances_in(t.request) == t.circumstances
        assert not [said for said in held_out if said in t.request]
    for split in w.SPLITS:
        assert {name for t in any_world.split(split) for name in t.circumstances} == known


def test_circumstances_decide_what_many_tasks_need(world):
    """Without them, what a task needs would be another thing: they cannot be ignored."""
    changed = [
        t for t in world.tasks if world.demands_of(t).needed() != world.demands(t.company_id, t.goals, ()).needed()
    ]
    assert len(changed) > 350


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
        assert not [because for kind in v.CIRCUMSTANCES.values() for because in kind.because if because in rest]


def test_no_company_profile_or_task_leaks_between_splits(world):
    def of(split, *names):
        return {tuple(getattr(t, n) for n in names) for t in world.tasks if t.split == split}

    for split in ("train", "validation"):
        assert not of(split, "company_id") & of("test", "company_id")
        assert not of(split, "profile_id") & of("test", "profile_id")
        assert not of(split, "request") & of("test", "request")
    assert of("validation", "company_id") <= of("train", "company_id")
    assert not of("train", "profile_id") & of("validation", "profile_id")
    whole = [(t.company_id, t.profile_id, t.goals, t.circumstances) for t in world.tasks]
    assert len(set(whole)) == len(whole)


def test_no_two_profiles_are_the_same_person(world):
    people = [tuple(sorted(p.values.items())) for p in world.profiles.values()]
    assert len(set(people)) == len(people)
    assert {t.profile_id for t in world.tasks} <= set(world.profiles)
    assert all(world.profiles[t.profile_id].industry == world.companies[t.company_id].industry for t in world.tasks)


# --- determinism -----------------------------------------------------------------------------


def digest(*worlds) -> str:
    return hashlib.sha256(repr(worlds).encode()).hexdigest()


def test_same_seed_same_world_other_seed_other_world(world):
    assert w.generate_world(0) == w.generate_world(0, 4) == world
    other = w.generate_world(1)
    assert other.rules != world.rules
    assert other.effects != world.effects
    assert other.tasks != world.tasks
    assert collections.Counter(t.level for t in other.tasks) == collections.Counter(t.level for t in world.tasks)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_world_does_not_depend_on_the_process(world, hash_seed):
    """Sets iterate differently in every process: none may decide what is drawn."""
    code = (
        "import hashlib; from lfo.envs.phone.world import generate_world; "
        "print(hashlib.sha256(repr((generate_world(0), generate_world(3, 6))).encode()).hexdigest())"
    )
    env = os.environ | {"PYTHONHASHSEED": hash_seed}
    root = Path(w.__file__).resolve().parents[3]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == digest(world, drawn(3, 6))


def test_world_is_frozen(world):
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.seed = 3


@pytest.mark.parametrize("per_industry", [2, 8])
def test_a_small_world_is_as_large_a_task(per_industry):
    """So few companies that some kind of them may not exist: others have its tasks."""
    world = w.generate_world(0, 4, per_industry)
    assert len(world.companies) == 4 * per_industry
    assert collections.Counter(t.level for t in world.split("train")) == {1: 100, 2: 150, 3: 150, 4: 50, 5: 50}
    assert "different" not in {world.variation(c) for c in world.companies}


# --- what cannot be drawn --------------------------------------------------------------------


@pytest.fixture
def quiet(tiny) -> w.World:
    """The hand-made world, in which nobody speaks of a circumstance."""
    effects = {"banking": {}, "retail": {}}
    return dataclasses.replace(tiny, typical=dataclasses.replace(tiny.typical, effects=effects))


def test_what_no_company_has_is_not_drawn(quiet):
    everyone = quiet.profiles["all"]
    draw = functools.partial(w.draw_task, random.Random(0), "t", "train", world=quiet, tries=300)
    assert draw(5, [quiet.companies["shop"]], profiles={"retail": [everyone]}) is None
    task = draw(5, [quiet.companies["bank"]], profiles={"banking": [everyone]})
    assert (task.level, task.company_id, task.profile_id, task.circumstances) == (5, "bank", "all", ())
    # A draw of level 4 whose user lacks the alternative too is not handed out.
    users = {"banking": [Profile("ghost", "banking", {"account_number": "1", "name": "Ana Lopez"})]}
    assert draw(4, [quiet.companies["bank"]], profiles=users) is None


def test_a_split_that_cannot_be_filled_says_so(quiet):
    """The shop demands nothing: ten tasks would be two of level 1, and then three of level 2."""
    shop, users = [quiet.companies["shop"]], {"retail": [quiet.profiles["all"]]}
    with pytest.raises(ValueError, match="no task of level 2 can be drawn for train; try another world seed"):
        w._draw_split(random.Random(0), "train", 10, shop, quiet, users)


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
    """With an effect of each kind, and one that changes nothing; the shop makes nothing of anything."""
    assert w.load_world(w.save_world(tiny, tmp_path)) == tiny
    lines = (tmp_path / "circumstances.jsonl").read_text().splitlines()
    assert [json.loads(line)["circumstance"] for line in lines] == list(tiny.effects["bank"])


def test_any_world_survives_its_folder(any_world, tmp_path):
    loaded = w.load_world(w.save_world(any_world, tmp_path))
    assert loaded == any_world
    assert [loaded.demands_of(t) for t in loaded.tasks] == [any_world.demands_of(t) for t in any_world.tasks]


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
        hidden = {*v.FIELDS, "required", "alternative", "after", "variation", "effect", "field", "first", "instead"}
        assert not [word for word in hidden - {"name"} if f'"{word}"' in text]


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
