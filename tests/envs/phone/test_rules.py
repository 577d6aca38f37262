"""rules: what rules and circumstances come to by hand, the oracle's plan and the level of a request, what is drawn."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import random

import pytest

from lfo.envs.phone import rules as r
from lfo.envs.phone import vocabulary as v
from lfo.envs.phone.records import Effect, HiddenRule, Profile
from lfo.envs.phone.world import draw_company, phone_stock

CS, FRAUD, BILLING, LOANS, SALES = "Customer Service", "Fraud Department", "Billing", "Loans", "Sales"
USUAL = {  # what the hand-made bank demands without any circumstance
    CS: ("account_number", "last_4_ssn"),
    FRAUD: ("account_number", "last_4_ssn", "last_4_cc"),
    BILLING: ("account_number", "billing_zip"),
    LOANS: ("name", "date_of_birth"),
    SALES: (),
}
DISPUTE, CLOSE, REPORT, DEFER = "dispute a charge", "close my account", "report a fraud", "defer a loan payment"


@pytest.fixture
def at_bank(tiny):
    """at_bank("abroad", goals=(...)): what the hand-made bank demands in these circumstances."""

    def demanded(*circumstances: str, goals=(DISPUTE,)) -> r.Demands:
        return tiny.demands("bank", goals, circumstances)

    return demanded


def required(demanded: r.Demands) -> dict[str, tuple[str, ...]]:
    return {name: demand.required for name, demand in demanded.of.items()}


def after(demanded: r.Demands) -> dict[str, str]:
    return {name: demand.after for name, demand in demanded.of.items() if demand.after}


def because(demanded: r.Demands) -> dict[str, str]:
    """What each circumstance demands, which is the same at every department."""
    first, *others = [dict(demand.because) for demand in demanded.of.values()]
    assert all(other == first for other in others)
    return first


def why_after(demanded: r.Demands) -> dict[str, str]:
    return {name: demand.why_after for name, demand in demanded.of.items() if demand.why_after}


def within(count: int, n: int, p: float, sigmas: float = 4.0) -> bool:
    return abs(count - n * p) <= sigmas * math.sqrt(n * p * (1 - p))


# --- what circumstances change ---------------------------------------------------------------


@pytest.mark.parametrize("circumstances", [(), ("on_behalf",), ("new_account",)])
def test_without_effect_the_rules_are_what_is_demanded(tiny, at_bank, circumstances):
    """Also in a circumstance that changes nothing there, and in one that the bank has never heard of."""
    demanded = at_bank(*circumstances)
    assert required(demanded) == USUAL and after(demanded) == {FRAUD: CS}
    assert because(demanded) == dict.fromkeys(circumstances, "") and why_after(demanded) == {}
    assert (demanded.owners, demanded.moved) == ({DISPUTE: BILLING}, {})
    for name, demand in demanded.of.items():
        assert (demand.department, demand.alternative) == (name, tiny.rules["bank", name].alternative)
        assert demand.usual == demand.required


def test_a_field_is_demanded_on_top_everywhere(at_bank):
    demanded = at_bank("joint_account")
    assert required(demanded) == {
        CS: ("account_number", "last_4_ssn", "phone_number"),
        FRAUD: ("account_number", "last_4_ssn", "last_4_cc", "phone_number"),
        BILLING: ("account_number", "billing_zip", "phone_number"),
        LOANS: ("name", "date_of_birth", "phone_number"),
        SALES: ("phone_number",),
    }
    assert because(demanded) == {"joint_account": "phone_number"}
    assert {name: demand.usual for name, demand in demanded.of.items()} == USUAL
    assert after(demanded) == {FRAUD: CS} and demanded.owners == {DISPUTE: BILLING}


def test_what_is_demanded_anyway_is_also_what_a_circumstance_demands(at_bank):
    """A large amount demands the SSN everywhere, whether the department's own rule does so or not."""
    demanded = at_bank("large_amount")
    assert required(demanded) == USUAL | {
        BILLING: ("account_number", "last_4_ssn", "billing_zip"),
        LOANS: ("name", "last_4_ssn", "date_of_birth"),
        SALES: ("last_4_ssn",),
    }
    assert because(demanded) == {"large_amount": "last_4_ssn"}
    assert {name: demand.usual for name, demand in demanded.of.items()} == USUAL


def test_another_department_comes_first_for_whoever_waits_for_nobody(at_bank):
    """Fraud waits for Customer Service, which waits for Billing: a chain of three. Billing itself waits for nobody."""
    demanded = at_bank("abroad", goals=(REPORT,))
    assert required(demanded) == USUAL
    assert after(demanded) == {CS: BILLING, FRAUD: CS, LOANS: BILLING, SALES: BILLING}
    assert why_after(demanded) == dict.fromkeys((CS, LOANS, SALES), "abroad") and because(demanded) == {"abroad": ""}
    assert demanded.to_call() == [BILLING, CS, FRAUD]
    assert at_bank("abroad").to_call() == [BILLING]
    assert at_bank("abroad", goals=(CLOSE, DISPUTE)).to_call() == [BILLING, CS]


def test_another_department_serves_instead(at_bank):
    """Its own goals are not moved, and nothing else changes: neither what is demanded nor who comes first."""
    demanded = at_bank("business_account", goals=(REPORT, CLOSE, DEFER))
    assert because(demanded) == {"business_account": ""}
    assert demanded.of == {n: dataclasses.replace(d, because=because(demanded)) for n, d in at_bank().of.items()}
    assert demanded.owners == dict.fromkeys((REPORT, CLOSE, DEFER), CS)
    assert demanded.moved == dict.fromkeys((REPORT, DEFER), "business_account")
    assert demanded.to_call() == [CS]


def test_circumstances_add_up(at_bank):
    """Each is kept, in the order in which circumstances stand, with the field that it demands or none."""
    demanded = at_bank("business_account", "abroad", "joint_account", "large_amount", goals=(REPORT,))
    assert list(because(demanded).items()) == [
        ("joint_account", "phone_number"),
        ("large_amount", "last_4_ssn"),
        ("abroad", ""),
        ("business_account", ""),
    ]
    assert (demanded.owners, demanded.moved) == ({REPORT: CS}, {REPORT: "business_account"})
    assert demanded.to_call() == [BILLING, CS]
    assert demanded.of[CS].required == ("account_number", "last_4_ssn", "phone_number")
    assert why_after(demanded) == dict.fromkeys((CS, LOANS, SALES), "abroad")
    assert demanded.of[BILLING].required == ("account_number", "last_4_ssn", "billing_zip", "phone_number")
    assert demanded.needed() == ("account_number", "last_4_ssn", "billing_zip", "phone_number")


def test_a_field_that_two_circumstances_demand_is_demanded_once(tiny):
    rules = [rule for rule in tiny.rules.values() if rule.company_id == "bank"]
    effects = dict.fromkeys(("joint_account", "abroad"), Effect(field="phone_number"))
    demand = r.demands(rules, effects, (DISPUTE,)).of[BILLING]
    assert demand.required == ("account_number", "billing_zip", "phone_number")
    assert demand.because == dict.fromkeys(("joint_account", "abroad"), "phone_number")  # and neither is lost


def test_a_company_demands_what_its_own_effects_say(tiny):
    """The shop makes nothing of what changes everything at the bank."""
    everything = tuple(v.CIRCUMSTANCES)
    demanded, usual = (tiny.demands("shop", ("ask for a quote",), told) for told in (everything, ()))
    assert because(demanded) == dict.fromkeys(everything, "") and because(usual) == {}
    assert demanded.of == {name: dataclasses.replace(d, because=because(demanded)) for name, d in usual.of.items()}
    assert (demanded.owners, demanded.moved) == (usual.owners, usual.moved)
    bill = next(task for task in tiny.tasks if task.task_id == "bill")
    assert tiny.demands_of(bill) == tiny.demands("bank", (DISPUTE,))
    joint = dataclasses.replace(bill, circumstances=("joint_account",))
    assert tiny.demands_of(joint) == tiny.demands("bank", (DISPUTE,), ("joint_account",)) != tiny.demands_of(bill)


# --- fields ----------------------------------------------------------------------------------


def test_needed_fields_by_hand(at_bank):
    assert at_bank(goals=(REPORT, DISPUTE)).needed() == ("account_number", "last_4_ssn", "billing_zip", "last_4_cc")
    # An alternative joins where its own department lacks something; the lacking field stays listed.
    loan = at_bank(goals=(DEFER,))
    assert loan.needed(["name"]) == ("name", "date_of_birth", "email")
    assert loan.needed(["last_4_cc"]) == ("name", "date_of_birth")


def test_needed_fields_in_circumstances_by_hand(at_bank):
    joint = at_bank("joint_account")
    assert joint.needed() == ("account_number", "billing_zip", "phone_number")
    assert joint.needed(["phone_number"]) == ("account_number", "date_of_birth", "billing_zip", "phone_number")
    # On the way: Billing's alternative and that of Loans, each for its own lacking field.
    abroad = at_bank("abroad", goals=(DEFER,))
    assert abroad.needed() == ("name", "account_number", "date_of_birth", "billing_zip")
    assert abroad.needed(["billing_zip", "name"]) == ("name", "account_number", "date_of_birth", "billing_zip", "email")
    # Who is relieved of the goal is not called and demands nothing.
    assert at_bank("business_account", goals=(REPORT,)).needed(["last_4_cc"]) == USUAL[CS]


# --- the oracle's plan -----------------------------------------------------------------------


def test_plan_by_hand(tiny, at_bank):
    everyone, nocard = tiny.profiles["all"], tiny.profiles["nocard"]
    plan = r.oracle_plan(at_bank(goals=(REPORT,)), everyone)
    assert plan.fields == ("account_number", "last_4_ssn", "last_4_cc")
    assert plan.alternatives == ()
    assert plan.departments == (CS, FRAUD)
    assert plan.steps == 4  # search, form, two calls
    plan = r.oracle_plan(at_bank(goals=(REPORT,)), nocard)
    assert plan.alternatives == ("date_of_birth",)
    assert plan.steps == 5  # and a second form
    plan = r.oracle_plan(at_bank(goals=("hear about offers",)), everyone)
    assert (plan.fields, plan.steps) == ((), 3)


def test_plan_in_circumstances_by_hand(tiny, at_bank):
    everyone, nocard = tiny.profiles["all"], tiny.profiles["nocard"]
    plan = r.oracle_plan(at_bank("abroad", goals=(REPORT,)), everyone)
    assert plan.fields == ("account_number", "last_4_ssn", "billing_zip", "last_4_cc")
    assert (plan.departments, plan.steps) == ((BILLING, CS, FRAUD), 5)
    plan = r.oracle_plan(at_bank("business_account", goals=(REPORT,)), nocard)
    assert (plan.fields, plan.alternatives, plan.departments, plan.steps) == (USUAL[CS], (), (CS,), 3)


def test_what_cannot_be_solved_has_no_plan(tiny, at_bank):
    ghost = Profile("ghost", "banking", {"account_number": "1", "last_4_ssn": "2"})
    with pytest.raises(ValueError, match=r"ghost has neither .*'last_4_cc'.* nor the alternatives .*'date_of_birth'"):
        r.oracle_plan(at_bank(goals=(REPORT,)), ghost)
    with pytest.raises(ValueError, match="neither"):
        r.oracle_plan(at_bank("joint_account", goals=(CLOSE,)), ghost)
    circle = [rule for rule in tiny.rules.values() if rule.company_id == "bank" and rule.department != CS]
    circle.append(HiddenRule("bank", CS, (), "name", FRAUD, "typical"))
    with pytest.raises(ValueError, match=f"circle: {FRAUD} -> {CS} -> {FRAUD}"):
        r.demands(circle, {}, (REPORT,)).to_call()


def test_level_of_by_hand(tiny, at_bank):
    everyone, nocard = tiny.profiles["all"], tiny.profiles["nocard"]

    def level(profile, *goals):
        return r.level_of(at_bank(goals=goals), profile)

    assert level(everyone, DISPUTE) == 1
    assert level(everyone, REPORT) == 3
    assert level(nocard, DISPUTE) == 1
    assert level(nocard, REPORT) is None  # two calls and something missing
    assert level(everyone, REPORT, DISPUTE) == 5
    assert level(everyone, DISPUTE, CLOSE, "ask for a quote") is None  # no routing
    no_zip = Profile("z", "banking", {f: value for f, value in everyone.values.items() if f != "billing_zip"})
    assert level(no_zip, DISPUTE) == 4


def test_level_of_circumstances_by_hand(tiny, at_bank):
    everyone, nocard = tiny.profiles["all"], tiny.profiles["nocard"]
    assert r.level_of(at_bank("joint_account"), everyone) == 2  # a third field
    assert r.level_of(at_bank("joint_account", goals=("ask for a quote",)), everyone) == 1  # the only field
    assert r.level_of(at_bank("abroad"), everyone) == 1  # Billing itself comes first
    assert r.level_of(at_bank("abroad", goals=(CLOSE,)), everyone) == 3
    assert r.level_of(at_bank("abroad", goals=(REPORT,)), everyone) == 5
    # Customer Service serves instead: one call, and nobody asks for the card.
    assert r.level_of(at_bank("business_account", goals=(REPORT,)), nocard) == 1
    no_phone = Profile("n", "banking", {f: value for f, value in everyone.values.items() if f != "phone_number"})
    assert r.level_of(at_bank("joint_account"), no_phone) == 4


@pytest.mark.parametrize(("count", "level"), [(0, 1), (2, 1), (3, 2), (6, 2), (7, None)])
def test_levels_one_and_two_by_the_number_of_fields(tiny, count, level):
    fields = ("account_number", "last_4_ssn", "billing_zip", "last_4_cc", "phone_number", "branch_code", "card_expiry")
    rule = dataclasses.replace(tiny.rules["bank", BILLING], required=fields[:count])
    assert r.level_of(r.demands([rule], {}, (DISPUTE,)), tiny.profiles["all"]) == level


# --- drawing ---------------------------------------------------------------------------------


def test_special_fields_by_hand():
    """Neither the account number, nor what stands in for something else."""
    common = ["last_4_ssn", "billing_zip", "last_4_cc", "phone_number"]
    assert r.special_fields("banking") == [*common, "branch_code", "card_expiry"]
    assert r.special_fields("telecom") == [*common, "contract_number", "sim_number"]


@pytest.mark.parametrize(("circumstances", "ways"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 2)])
def test_one_circumstance_in_three_changes_the_way_each_other_one_demands_a_field(circumstances, ways):
    kinds, offices, seen = collections.Counter(), collections.Counter(), set()
    for seed in range(100):
        typical = r.draw_typical(random.Random(seed), circumstances)
        assert list(typical.effects) == list(v.INDUSTRIES)
        for industry, effects in typical.effects.items():
            assert list(effects) == list(v.CIRCUMSTANCES)[:circumstances]
            changed = [{k: x for k, x in dataclasses.asdict(e).items() if x} for e in effects.values()]
            assert all(len(change) == 1 for change in changed)  # each changes one thing
            fields = [change["field"] for change in changed if "field" in change]
            assert len(fields) == circumstances - ways == len(set(fields))
            assert set(fields) <= set(r.special_fields(industry))
            office = {x for change in changed for k, x in change.items() if k != "field"}
            assert len(office) == (ways > 0) and {r.front_office(effects)} == (office or {""})
            kinds.update(k for change in changed for k in change)
            offices.update(office)
            seen |= {name for name, e in effects.items() if not e.field}
    assert set(offices) == (set(r.FRONT_OFFICES) if ways else set())
    assert seen == (set(list(v.CIRCUMSTANCES)[:circumstances]) if ways else set())  # any may be the one
    if ways:
        assert within(kinds["first"], 400 * ways, 0.5) and kinds["first"] + kinds["instead"] == 400 * ways


def test_typical_rules_without_circumstances_are_those_with_some():
    """The dial adds something and changes nothing else."""
    without, some = (r.draw_typical(random.Random(3), n) for n in (0, 4))
    assert dataclasses.replace(some, effects=without.effects) == without
    assert all(effects == {} for effects in without.effects.values())


def test_typical_demands_by_hand():
    effects = {"joint_account": Effect("last_4_cc"), "abroad": Effect(first=BILLING), "on_behalf": Effect("last_4_ssn")}
    typical = r.TypicalRules({"banking": USUAL}, {"banking": {}}, {"banking": "card_expiry"}, {"banking": effects})
    bill = ("account_number", "billing_zip")
    assert typical.demands("banking", [BILLING], house=False) == bill
    assert typical.demands("banking", [BILLING], house=True) == (*bill, "card_expiry")
    assert typical.demands("banking", [SALES], house=True) == ()  # where nothing is demanded, nothing more is either
    assert typical.demands("banking", [SALES], True, ["joint_account"]) == ("last_4_cc",)
    circumstances = ["abroad", "large_amount", "on_behalf", "joint_account"]  # of the second, nothing is known
    everything = ("account_number", "last_4_ssn", "billing_zip", "last_4_cc", "card_expiry")
    assert typical.demands("banking", [BILLING, CS], True, circumstances) == everything


@pytest.mark.parametrize(("variation", "exceptions"), [("typical", 0), ("extra", 1), ("different", 4)])
def test_exceptions_by_variation(variation, exceptions):
    """A company makes something else of so many circumstances, and always demands a field for it."""
    usual = {
        "joint_account": Effect(field="last_4_cc"),
        "large_amount": Effect(field="last_4_ssn"),
        "abroad": Effect(first=BILLING),
        "business_account": Effect(instead=BILLING),
    }
    rng, before, changed, demanded = random.Random(4), dict(usual), collections.Counter(), set()
    for _ in range(300):
        effects = r.draw_exceptions(rng, "banking", usual, variation)
        assert list(effects) == list(usual) and usual == before
        others = {name: e for name, e in effects.items() if e != usual[name]}
        assert len(others) == exceptions
        assert all(e == Effect(e.field) and e.field != usual[name].field for name, e in others.items())
        changed.update(list(others))
        demanded |= {e.field for e in others.values()}
    assert demanded == (set(r.special_fields("banking")) if exceptions else set())
    assert all(within(changed[name], 300, exceptions / 4) for name in usual) if exceptions < 4 else True
    assert r.draw_exceptions(rng, "banking", {}, variation) == {}


def throw_away(seed: int):
    """A company of a throw-away world, its rules and what it makes of circumstances."""
    rng = random.Random(seed)
    company = draw_company(rng, "x", "Harbor Bank", v.INDUSTRIES[seed % 4], phone_stock(random.Random(seed))[:5])
    rules = r.draw_free_rules(rng, company)
    return company, rules, r.draw_free_effects(rng, company, {rule.department for rule in rules if rule.after})


def test_free_rules_of_throw_away_worlds():
    sizes, routed, total = collections.Counter(), 0, 0
    for seed in range(300):
        company, rules, _ = throw_away(seed)
        names = [d.name for d in company.departments]
        assert [rule.department for rule in rules] == names
        for rule in rules:
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


def test_free_effects_of_throw_away_worlds():
    """Each changes one thing at most, leads to a department that waits for nobody, and never alters an alternative."""
    kinds = collections.Counter()
    for seed in range(300):
        company, rules, effects = throw_away(seed)
        free = {rule.department for rule in rules if not rule.after}
        assert list(effects) == list(v.CIRCUMSTANCES)
        for effect in effects.values():
            changed = {k: x for k, x in dataclasses.asdict(effect).items() if x}
            kinds[next(iter(changed), "nothing")] += 1
            assert len(changed) <= 1
            assert set(changed.values()) <= {*r.special_fields(company.industry), *free}
    for kind, share in (("field", 0.7), ("first", 0.1), ("instead", 0.1), ("nothing", 0.1)):
        assert within(kinds[kind], 1_800, share), kinds


def test_whatever_is_drawn_freely_can_be_solved():
    """Any two goals in any circumstances, with a user who has everything, and with one who has what everyone has."""
    rng, longest = random.Random(6), 0
    for seed in range(100):
        company, rules, effects = throw_away(seed)
        values = dict.fromkeys(v.industry_fields(company.industry), "1")
        everyone = Profile("all", company.industry, values)
        poor = Profile("poor", company.industry, dict.fromkeys(v.ALWAYS_AVAILABLE, "1"))
        goals = [goal for d in company.departments for goal in v.DEPARTMENTS[d.name].goals]
        for wanted in itertools.islice(itertools.combinations(rng.sample(goals, len(goals)), 2), 10):
            chosen = [name for name in effects if rng.random() < 0.5]
            demanded = r.demands(rules, {name: effects[name] for name in chosen}, wanted)
            order = r.oracle_plan(demanded, everyone).departments
            assert all(demanded.of[name].after in ("", *order[:i]) for i, name in enumerate(order))
            assert {*demanded.owners.values()} <= {*order} <= {d.name for d in company.departments}
            assert r.oracle_plan(demanded, poor).departments == order
            longest = max(longest, len(order))
    assert longest >= 4
