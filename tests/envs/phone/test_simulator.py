"""csr, phrasings and user: what CSRs check and in which order, what they say and why, and how users behave."""

from __future__ import annotations

import collections
import itertools
import json
import math
import random
import re

import pytest

from lfo.envs.phone.csr import CsrSimulator
from lfo.envs.phone.phrasings import (
    PHRASINGS,
    SITUATION_STATUS,
    STYLES,
    UNKNOWN_NUMBER,
    meaning,
    oxford,
    read_reply,
    requested_fields,
    say,
    situation_of,
    spoken,
)
from lfo.envs.phone.records import Profile
from lfo.envs.phone.user import BEHAVIOURS, UserSimulator, _garble
from lfo.envs.phone.vocabulary import (
    ALWAYS_AVAILABLE,
    CIRCUMSTANCES,
    DEPARTMENTS,
    FIELDS,
    canonical,
    industry_fields,
)

TRUTH = {
    "account_number": "123456",
    "last_4_ssn": "1111",
    "last_4_cc": "3333",
    "billing_zip": "22222",
    "date_of_birth": "1980-02-03",
    "name": "Ana Lopez",
    "phone_number": "444-555-6666",
    "email": "ana77@example.com",
}
CS, FRAUD, BILLING, LOANS, SALES = (f"800-555-000{i}" for i in range(1, 6))


def csr(tiny, *goals: str, circumstances=(), seed="0", held_out=False, reasons=False) -> CsrSimulator:
    demands = tiny.demands("bank", goals, circumstances)
    return CsrSimulator(tiny.companies["bank"], demands, seed, held_out, reasons)


def right(*fields: str) -> dict[str, str]:
    return {f: TRUTH[f] for f in fields}


def within(count: int, n: int, p: float, sigmas: float = 4.0) -> bool:
    return abs(count - n * p) <= sigmas * math.sqrt(n * p * (1 - p))


# --- language --------------------------------------------------------------------------------


def test_oxford_comma():
    assert oxford(["a"]) == "a"
    assert oxford(["a", "b"]) == "a and b"
    assert oxford(["a", "b", "c"]) == "a, b, and c"
    assert oxford(["a", "b", "c", "d"]) == "a, b, c, and d"


def test_four_styles_each_with_training_and_held_out_phrasings():
    assert STYLES == ("formal", "conversational", "direct", "apologetic")
    for styles in PHRASINGS.values():
        assert tuple(styles) == STYLES
        assert all(len(variants) >= 2 for variants in styles.values())
    assert set(PHRASINGS) == set(SITUATION_STATUS)
    assert set(SITUATION_STATUS.values()) == {"success", "auth_failed", "wrong_department", "routing_violation"}


class Path:
    """In the place of a random stream: its choices are those of a path, the first of all after that."""

    def __init__(self, path: list[int]):
        self.path, self.sizes = path, []

    def choice(self, options):
        self.sizes.append(len(options))
        at = len(self.sizes) - 1
        return options[self.path[at] if at < len(self.path) else 0]


def all_said(situation: str, held_out: bool, because=None, **slots) -> list[str]:
    """Everything that `say` can say, from whatever it draws."""
    texts, paths = [], [[]]
    while paths:
        rng = Path(paths.pop())
        texts.append(say(rng, situation, held_out, because, **slots))
        taken = len(rng.path)
        for at, size in enumerate(rng.sizes[taken:], taken):
            paths += [[*rng.path, *[0] * (at - taken), other] for other in range(1, size)]
    return texts


def in_all_ways(situation: str, because=None, **slots) -> list[str]:
    """In training and held out."""
    return all_said(situation, False, because, **slots) + all_said(situation, True, because, **slots)


def test_whatever_can_be_said_is_all_phrasings():
    """What this file enumerates is as much as there is: nothing is said twice."""
    for situation, styles in PHRASINGS.items():
        slots = {"dept": "Loans", "fields": ["email"], "other": "name" if situation == "alternative" else "Sales"}
        assert len(all_said(situation, True, **slots)) == len(styles) == 4
        texts = in_all_ways(situation, **slots)
        assert len(set(texts)) == len(texts) == sum(map(len, styles.values()))
        dice = random.Random(5)
        assert {say(dice, situation, dice.random() < 0.5, **slots) for _ in range(2_000)} == set(texts)


def test_what_shares_a_status_is_told_apart_by_its_phrasing():
    """A missing field, with reasons and without, another that will do, and a wrong value."""
    why = {"abroad": "email", "joint_account": ""}
    for name, because in (("missing", None), ("missing", why), ("alternative", None), ("mismatch", None)):
        for fields in (["email"], ["email", "phone_number", "billing_zip"]):
            for text in in_all_ways(name, because, dept="Loans", fields=fields, other="name"):
                assert situation_of(f"auth_failed: {text}") == name, text
    assert situation_of("routing_violation: Loans. Billing first.") == "routing"
    assert situation_of("error: no such tool") == "error"


@pytest.mark.parametrize("situation", ["missing", "mismatch"])
def test_every_phrasing_names_exactly_its_fields(situation):
    """All styles, held-out ones included; every field alone and 100 drawn lists of two to six."""
    rng = random.Random(1)
    lists = [(f,) for f in FIELDS] + [canonical(rng.sample(list(FIELDS), rng.randint(2, 6))) for _ in range(100)]
    for fields in lists:
        for text in in_all_ways(situation, dept=rng.choice(list(DEPARTMENTS)), fields=fields):
            assert requested_fields(text) == set(fields), text


def test_every_phrasing_of_an_alternative_names_both_fields():
    for missing, other in itertools.permutations(FIELDS, 2):
        for text in in_all_ways("alternative", dept="Loans", fields=[missing], other=other):
            assert requested_fields(text) == {missing, other}, text


def test_departments_are_never_read_as_fields():
    for situation, dept in itertools.product(("routing", "wrong_department", "success"), DEPARTMENTS):
        for text in in_all_ways(situation, dept=dept, other=dept):
            assert requested_fields(text) == frozenset()


def test_a_list_of_three_is_said_with_an_oxford_comma(tiny):
    reply = csr(tiny).call(FRAUD, {}, TRUTH, set())
    assert reply.status == "routing_violation"
    talk = csr(tiny, "close my account", "report a fraud")
    talk.call(CS, right("account_number", "last_4_ssn"), TRUTH, set())
    message = talk.call(FRAUD, {}, TRUTH, set()).message
    assert "account number, last four digits of the SSN, and last four digits of the card" in message


def drawn(held_out: bool) -> set[str]:
    """Everything that a CSR can say in 3,000 draws per situation."""
    rng = random.Random(7)
    texts = set()
    for situation in PHRASINGS:
        for _ in range(3_000):
            slots = {"dept": rng.choice(("Loans", "Billing")), "other": rng.choice(("email", "Sales", "Loans"))}
            slots["fields"] = rng.choice((["email"], ["name", "email"]))
            texts.add(say(rng, situation, held_out, **slots))
    return texts


def test_held_out_phrasings_never_occur_in_training():
    training, held_out = drawn(False), drawn(True)
    assert len(held_out) > 40
    assert len(training) > len(held_out)
    assert not training & held_out
    templates = [t for styles in PHRASINGS.values() for variants in styles.values() for t in variants]
    assert len(set(templates)) == len(templates)


def test_every_phrasing_is_used_and_styles_are_equally_likely():
    rng = random.Random(2)
    counts = collections.Counter(say(rng, "success", False, dept="Sales") for _ in range(4_000))
    assert len(counts) == 4  # success has one training phrasing per style
    assert all(within(n, 4_000, 0.25) for n in counts.values())
    counts = collections.Counter(say(rng, "missing", False, dept="Sales", fields=["name"]) for _ in range(4_000))
    assert len(counts) == 8
    assert all(within(n, 4_000, 0.125) for n in counts.values())
    assert len({say(rng, "missing", True, dept="Sales", fields=["name"]) for _ in range(400)}) == 4


# --- what a reply means ---------------------------------------------------------------------


@pytest.mark.parametrize("situation", PHRASINGS)
def test_every_phrasing_is_read_back(situation):
    """Status, named fields and named departments, for all styles, the held-out ones included."""
    fields = ("account_number", "last_4_ssn", "phone_number")
    for department in DEPARTMENTS:
        other = "Technical Support (Priority)" if department == "Sales" else "Technical Support"
        slots = {"dept": department, "fields": fields, "other": other}
        if situation == "alternative":
            slots |= {"fields": ["last_4_cc"], "other": "email"}
        status = SITUATION_STATUS[situation]
        named = {"missing": fields, "mismatch": fields, "alternative": ("last_4_cc", "email")}.get(situation, ())
        departments = {other} if situation in ("routing", "wrong_department") else set()
        for text in in_all_ways(situation, **slots):
            reply = json.dumps({"status": status, "message": text})
            assert read_reply(reply) == (status, frozenset(named), frozenset(departments))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"status": "success"}', '{"message": "Billing."}', "null"])
def test_what_is_no_reply_is_unreadable(text):
    assert read_reply(text) == ("unreadable", frozenset(), frozenset())


def test_answers_of_other_tools_mean_what_they_list():
    """Which fields, not their values: an answer that nobody could foresee word by word can still be right."""
    form = json.dumps({"account_number": "123456", "unavailable": ["email"]})
    assert meaning(form) == meaning(json.dumps({"account_number": "9", "unavailable": []}))
    assert meaning(form) != meaning(json.dumps({"email": "9", "unavailable": ["account_number"]}))
    assert meaning(form) != meaning(json.dumps({"declined": "That is too much."}))
    listed = [json.dumps({"departments": [{"name": n, "phone": "1"}]}) for n in ("Sales", "Billing")]
    assert meaning(listed[0]) != meaning(listed[1]) == meaning(listed[1].replace("1", "2"))
    for text in ("", "{", "[]", '{"status": "success"}', '{"status": "success", "message": "Sales. Done."}'):
        assert meaning(text) == read_reply(text)


def test_a_number_out_of_service_names_nobody():
    reply = json.dumps({"status": "wrong_department", "message": UNKNOWN_NUMBER})
    assert read_reply(reply) == ("wrong_department", frozenset(), frozenset())


def test_a_phone_reply_is_shown_as_it_is_said():
    assert spoken('{"status": "success", "message": "Sales. Done."}') == "success: Sales. Done."
    for text in ("gibberish {", '{"departments": []}', "3"):
        assert spoken(text) == text


# --- why something is demanded ---------------------------------------------------------------

PHONE_JOINT = {"joint_account": "phone_number"}
BILL_JOINT = {"dept": "Billing", "fields": ["account_number", "billing_zip"]}


def test_a_field_is_named_after_its_reason():
    named = "the following: with a joint account, your phone number"
    named += "; and in any case your account number and billing ZIP code"
    assert set(all_said("missing", True, PHONE_JOINT, **BILL_JOINT)) == {
        f"Billing. Verification calls for {named}.",
        f"Billing, hi! Mind telling me {named}?",
        f"Billing. State {named}.",
        f"Billing. Apologies, we have to ask for {named}.",
    }
    said = all_said("missing", False, PHONE_JOINT, **BILL_JOINT)
    assert len(said) == len(set(said)) == 8 * 2  # each phrasing with each of the two reasons
    named = named.replace("with", "as it is")
    assert f"Billing. I am afraid I still need {named}." in said


def test_where_only_circumstances_demand_something_nothing_follows_them():
    because = {"large_amount": "last_4_ssn", "joint_account": "phone_number", "abroad": ""}
    assert set(all_said("missing", True, because, dept="Sales", fields=())) == {
        f"Sales{opening} the following: with a large sum, your last four digits of the SSN; with a joint account,"
        f" your phone number; for calls from overseas, nothing more{end}"
        for opening, end in (
            (". Verification calls for", "."),
            (", hi! Mind telling me", "?"),
            (". State", "."),
            (". Apologies, we have to ask for", "."),
        )
    }


def test_a_circumstance_is_spoken_of_whatever_it_demands():
    """Also nothing, what is demanded in any case, and what another one demands."""
    because = {"joint_account": "", "large_amount": "last_4_cc", "abroad": "last_4_cc"}
    card = "last four digits of the card"
    assert (
        f"Loans. State the following: with a joint account, nothing more; with a large sum, your {card}; for calls from"
        f" overseas, your {card}; and in any case your full name and {card}."
    ) in all_said("missing", True, because, dept="Loans", fields=("last_4_cc", "name"))


def test_another_department_is_named_after_its_reason():
    """The sentence goes on in small letters, but for the name of the department."""
    moved = {"abroad": "Sales"}
    assert set(all_said("routing", True, moved, dept="Loans", other="Sales")) == {
        "Loans. For calls from overseas, kindly contact Sales first.",
        "Loans, hi! For calls from overseas, try Sales first.",
        "Loans. For calls from overseas, Sales first.",
        "Loans. For calls from overseas, apologies, Sales comes first.",
    }
    assert set(all_said("wrong_department", True, moved, dept="Loans", other="Sales")) == {
        "Loans. For calls from overseas, that falls to Sales.",
        "Loans, hi! For calls from overseas, that is one for Sales.",
        "Loans. For calls from overseas, wrong place, ask Sales.",
        "Loans. For calls from overseas, apologies, only Sales can do that.",
    }
    assert len(set(all_said("routing", False, moved, dept="Loans", other="Sales"))) == 4 * 2
    assert "Loans. As you call from abroad, please call Sales first." in all_said(
        "routing", False, moved, dept="Loans", other="Sales"
    )


@pytest.mark.parametrize("because", [None, {}, {"abroad": "Sales", "joint_account": "", "large_amount": "email"}])
def test_what_has_no_reason_is_said_as_it_always_was(because):
    """Also where something else has one, and where nothing is missing: a mismatch, an alternative, a success."""
    reasons = [reason for kind in CIRCUMSTANCES.values() for reason in kind.because]
    for situation in set(PHRASINGS) - ({"missing"} if because else set()):
        slots = {"dept": "Loans", "fields": ["name"], "other": "email" if situation == "alternative" else "Billing"}
        texts = in_all_ways(situation, because, **slots)
        assert set(texts) == set(in_all_ways(situation, None, **slots))
        assert not [text for text in texts for reason in reasons if reason in text.lower()]


def spoken_reasons(text: str) -> dict[str, str]:
    """Circumstance -> the field that is named right after it, "" for nothing more, in the order of a reply."""
    found = []
    for name, kind in CIRCUMSTANCES.items():
        for reason in kind.because:
            for at in (match.start() for match in re.finditer(re.escape(f"{reason}, "), text)):
                after = text[at + len(reason) + 2 :]
                said = next((f for f, spoken in FIELDS.items() if after.startswith(f"your {spoken}")), "")
                assert said or after.startswith("nothing more"), text
                found.append((at, name, said))
    assert len({name for _, name, _ in found}) == len(found), text  # each once
    return {name: said for _, name, said in sorted(found)}


def test_every_phrasing_with_reasons_is_read_back():
    """Each circumstance in turn with its field or none, then what is missing in any case; in all styles."""
    rng = random.Random(3)
    for _ in range(60):
        fields = canonical(rng.sample(list(FIELDS), rng.randint(0, 4)))
        names = rng.sample(list(CIRCUMSTANCES), rng.randint(1, 3))
        because = {name: rng.choice(["", *fields, *FIELDS]) for name in names}
        named = {*fields, *because.values()} - {""}
        department = rng.choice(list(DEPARTMENTS))
        for text in in_all_ways("missing", because, dept=department, fields=fields):
            reply = json.dumps({"status": "auth_failed", "message": text})
            assert read_reply(reply) == ("auth_failed", frozenset(named), frozenset())
            assert list(spoken_reasons(text).items()) == list(because.items())
            always = text.partition("; and in any case your ")[2]
            assert requested_fields(always) == set(fields) and bool(always) == bool(fields)
            assert text.startswith(department)


@pytest.mark.parametrize("situation", ["routing", "wrong_department"])
def test_every_phrasing_with_a_reason_for_another_department_is_read_back(situation):
    for circumstance, department in itertools.product(CIRCUMSTANCES, DEPARTMENTS):
        other = "Technical Support (Priority)" if department == "Sales" else "Technical Support"
        for text in in_all_ways(situation, {circumstance: other}, dept=department, other=other):
            reply = json.dumps({"status": SITUATION_STATUS[situation], "message": text})
            assert read_reply(reply) == (SITUATION_STATUS[situation], frozenset(), frozenset([other]))
            assert text.startswith(f"{department}. ") or text.startswith(f"{department}, hi! ")
            (reason,) = [x for x in CIRCUMSTANCES[circumstance].because if x in text.lower()]
            assert f"{reason[0].upper()}{reason[1:]}, " in text


def test_held_out_reasons_never_occur_in_training():
    for name, kind in CIRCUMSTANCES.items():
        training, held_out = (all_said("missing", x, {name: "phone_number"}, **BILL_JOINT) for x in (False, True))
        assert not set(training) & set(held_out)
        assert all(kind.because[-1] in text for text in held_out)
        assert not [text for text in training if kind.because[-1] in text]
        assert all(any(reason in text for text in training) for reason in kind.because[:-1])


# --- circumstances ---------------------------------------------------------------------------


def test_a_circumstance_may_demand_a_field(tiny):
    """Who gives what is usual is asked for the rest only; the circumstance is spoken of whatever is missing."""
    for reasons in (False, True):
        talk = csr(tiny, "dispute a charge", circumstances=("joint_account",), reasons=reasons)
        reply = talk.call(BILLING, {}, TRUTH, set())
        assert (reply.status, reply.missing) == ("auth_failed", ("account_number", "billing_zip", "phone_number"))
        assert spoken_reasons(reply.message) == (PHONE_JOINT if reasons else {})
        assert ("; and in any case your account number and billing ZIP code" in reply.message) == reasons
        reply = talk.call(BILLING, right("account_number", "billing_zip"), TRUTH, set())
        assert (reply.status, reply.missing) == ("auth_failed", ("phone_number",))
        assert requested_fields(reply.message) == {"phone_number"}
        assert spoken_reasons(reply.message) == (PHONE_JOINT if reasons else {})
        assert "in any case" not in reply.message
        reply = talk.call(BILLING, right("phone_number", "billing_zip"), TRUTH, set())
        assert reply.missing == ("account_number",) and requested_fields(reply.message) == {"account_number"}
        assert spoken_reasons(reply.message) == ({"joint_account": ""} if reasons else {})
        assert (
            talk.call(BILLING, right("account_number", "billing_zip", "phone_number"), TRUTH, set()).status == "success"
        )


def test_what_is_demanded_anyway_is_said_twice(tiny):
    """With the circumstance that demands it, and again in any case; what is handed over, neither time."""
    for seed in range(20):
        talk = csr(tiny, "close my account", circumstances=("large_amount",), seed=str(seed), reasons=True)
        reply = talk.call(CS, {}, TRUTH, set())
        assert spoken_reasons(reply.message) == {"large_amount": "last_4_ssn"}
        anyway = reply.message.partition("; and in any case ")[2]
        assert anyway.startswith("your account number and last four digits of the SSN")
        reply = talk.call(CS, right("last_4_ssn"), TRUTH, set())
        assert spoken_reasons(reply.message) == {"large_amount": ""}
        assert requested_fields(reply.message) == {"account_number"}


def test_every_circumstance_is_spoken_of_in_turn(tiny):
    """Whatever it does at the bank, in the order in which circumstances stand: also if it leads elsewhere, changes
    nothing, or was never heard of."""
    everything = ("new_account", "on_behalf", "business_account", "abroad", "large_amount", "joint_account")
    effects = dict.fromkeys(CIRCUMSTANCES, "") | {"joint_account": "phone_number", "large_amount": "last_4_ssn"}
    for seed in range(20):
        talk = csr(tiny, "dispute a charge", circumstances=everything, seed=str(seed), reasons=True)
        reply = talk.call(BILLING, {}, TRUTH, set())
        assert list(spoken_reasons(reply.message).items()) == list(effects.items())
        assert "; and in any case your account number and billing ZIP code" in reply.message


def test_a_field_of_a_circumstance_may_be_replaced_or_wrong(tiny):
    """As any other field. The alternative is said where it would be; alone, as a mismatch, it has no reason."""
    talk = csr(tiny, "dispute a charge", circumstances=("joint_account",), reasons=True)
    bill = right("account_number", "billing_zip")
    reply = talk.call(BILLING, bill, TRUTH, {"phone_number"})
    assert (reply.missing, requested_fields(reply.message)) == (("date_of_birth",), {"phone_number", "date_of_birth"})
    reply = talk.call(BILLING, {}, TRUTH, {"phone_number"})
    assert reply.missing == ("account_number", "date_of_birth", "billing_zip")
    assert spoken_reasons(reply.message) == {"joint_account": "date_of_birth"}
    assert "; and in any case your account number and billing ZIP code" in reply.message
    reply = talk.call(BILLING, {}, TRUTH, {"billing_zip"})
    assert spoken_reasons(reply.message) == PHONE_JOINT
    assert "; and in any case your account number and date of birth" in reply.message
    reply = talk.call(BILLING, bill | {"phone_number": "0"}, TRUTH, set())
    assert (reply.mismatched, requested_fields(reply.message)) == (("phone_number",), {"phone_number"})
    assert spoken_reasons(reply.message) == {}
    assert talk.call(BILLING, bill | right("date_of_birth"), TRUTH, {"phone_number"}).status == "success"


def test_a_circumstance_may_lead_to_another_department_first(tiny):
    """Customer Service on the way to Fraud sends the caller on for that reason; Fraud does so as always, for none."""
    abroad = "As you call from abroad", "Because you are out of the country"
    for seed in range(20):
        talk = csr(tiny, "report a fraud", circumstances=("abroad",), seed=str(seed), reasons=True)
        reply = talk.call(FRAUD, {}, TRUTH, set())
        assert (reply.status, "Customer Service" in reply.message) == ("routing_violation", True)
        assert not any(reason in reply.message for reason in abroad)
        reply = talk.call(CS, right("account_number", "last_4_ssn"), TRUTH, set())
        assert reply.status == "routing_violation" and "Billing" in reply.message
        assert any(f"{reason}, " in reply.message for reason in abroad)
    assert talk.call(LOANS, {}, TRUTH, set()).status == "routing_violation"  # everybody does, whoever is called
    for number, fields in ((BILLING, "account_number billing_zip"), (CS, "account_number last_4_ssn")):
        assert talk.call(number, right(*fields.split()), TRUTH, set()).status == "success"
        assert not talk.all_served
    assert talk.call(FRAUD, right("account_number", "last_4_ssn", "last_4_cc"), TRUTH, set()).status == "success"
    assert talk.all_served


@pytest.mark.parametrize("reasons", [False, True])
def test_who_is_relieved_of_a_goal_says_so_at_once(tiny, reasons):
    """Billing asks for nothing; Customer Service serves; Loans, which had no part in it, is as ever."""
    company = [f"{r[0].upper()}{r[1:]}, " for r in CIRCUMSTANCES["business_account"].because]
    for seed in range(20):
        talk = csr(tiny, "dispute a charge", circumstances=("business_account",), seed=str(seed), reasons=reasons)
        for given in ({}, right("account_number", "billing_zip"), {"account_number": "0"}):
            reply = talk.call(BILLING, given, TRUTH, set())
            assert (reply.status, reply.department) == ("wrong_department", "Billing")
            assert "Customer Service" in reply.message and requested_fields(reply.message) == frozenset()
            assert any(reason in reply.message for reason in company) == reasons
        assert talk.call(LOANS, {}, TRUTH, set()).missing == ("name", "date_of_birth")
        reply = talk.call(LOANS, right("name", "date_of_birth"), TRUTH, set())
        assert reply.status == "wrong_department" and "Customer Service" in reply.message
        assert not any(reason in reply.message for reason in company)
        assert not talk.all_served
        assert talk.call(CS, right("account_number", "last_4_ssn"), TRUTH, set()).status == "success"
        assert talk.all_served


def test_who_has_another_part_in_a_moved_goal_does_not_send_the_caller_away(tiny):
    """The charge of a firm that calls from abroad is moved from Billing, which has to be called first all the same."""
    talk = csr(tiny, "dispute a charge", circumstances=("abroad", "business_account"))
    assert talk.call(BILLING, {}, TRUTH, set()).missing == ("account_number", "billing_zip")
    assert talk.call(CS, {}, TRUTH, set()).status == "routing_violation"
    assert talk.call(BILLING, right("account_number", "billing_zip"), TRUTH, set()).status == "success"
    assert not talk.all_served
    assert talk.call(CS, right("account_number", "last_4_ssn"), TRUTH, set()).status == "success"
    assert talk.all_served


def test_supposing_that_somebody_has_served(tiny):
    """As if they had been called: for the way, for goals, and for whom it means nothing."""
    talk = csr(tiny, "report a fraud", "dispute a charge")
    talk.suppose_served(["Loans"])
    assert talk.call(FRAUD, {}, TRUTH, set()).status == "routing_violation"
    talk.suppose_served(["Billing", "Customer Service"])
    assert talk.call(FRAUD, {}, TRUTH, set()).missing == ("account_number", "last_4_ssn", "last_4_cc")
    again = talk.call(BILLING, right("account_number", "billing_zip"), TRUTH, set())
    assert again.status == "wrong_department" and "Fraud Department" in again.message
    talk.suppose_served(["Fraud Department"])
    assert talk.all_served


@pytest.mark.parametrize("held_out", [False, True])
def test_where_only_lists_are_said_no_reply_speaks_of_a_circumstance(world, held_out):
    """Empty-handed and full-handed calls to every department, in every circumstance, for a goal of anybody's."""
    rng, reasons = random.Random(9), [r for kind in CIRCUMSTANCES.values() for r in kind.because]
    said = {True: [], False: []}
    for company in list(world.companies.values())[::4]:
        truth = dict.fromkeys(industry_fields(company.industry), "x")
        for department, explains in itertools.product(company.departments, said):
            goal = rng.choice(DEPARTMENTS[rng.choice(company.departments).name].goals)
            demands = world.demands(company.company_id, [goal], list(world.effects[company.company_id]))
            talk = CsrSimulator(company, demands, goal, held_out, explains)
            for given in ({}, truth, {"name": "wrong"} | truth, {"name": "x"}):
                said[explains].append(talk.call(department.phone, given, truth, set()).message.lower())
    heard = {explains: {r for r in reasons for text in texts if r in text} for explains, texts in said.items()}
    assert heard[False] == set() and len(heard[True]) >= (4 if held_out else 8)


# --- order of checks -------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["800-555-0009", "", "abc", "911", "800-555-00011", "٨٠٠-٥٥٥-٠٠٠١"])
def test_unknown_number(tiny, number):
    """Also a number of another company, and no check is reached: no department, nothing named."""
    reply = csr(tiny, "dispute a charge").call(number, {}, TRUTH, set())
    assert (reply.status, reply.message) == ("wrong_department", "This number is not in service.")
    assert (reply.department, reply.missing, reply.mismatched) == ("", (), ())


def test_a_number_may_be_written_without_hyphens(tiny):
    talk = csr(tiny, "hear about offers")
    assert talk.call(" (800) 555 0005 ", {}, TRUTH, set()).status == "success"


def test_routing_comes_before_authentication_and_names_the_department_to_call(tiny):
    for seed in range(40):
        talk = csr(tiny, "report a fraud", seed=str(seed), held_out=seed % 2 == 1)
        reply = talk.call(FRAUD, {"last_4_cc": "wrong"}, TRUTH, set())
        assert reply.status == "routing_violation"
        assert "Customer Service" in reply.message
        assert (reply.missing, reply.mismatched) == ((), ())
        assert requested_fields(reply.message) == frozenset()


def test_authentication_comes_before_capability(tiny):
    talk = csr(tiny, "dispute a charge")
    reply = talk.call(LOANS, right("name"), TRUTH, set())
    assert (reply.status, reply.missing) == ("auth_failed", ("date_of_birth",))
    reply = talk.call(LOANS, right("name") | {"date_of_birth": "1980-02-04"}, TRUTH, set())
    assert (reply.status, reply.mismatched) == ("auth_failed", ("date_of_birth",))
    reply = talk.call(LOANS, right("name", "date_of_birth"), TRUTH, set())
    assert reply.status == "wrong_department"
    assert "Billing" in reply.message
    assert not talk.all_served


def test_missing_comes_before_mismatch_and_the_order_given_does_not_matter(tiny):
    talk = csr(tiny, "dispute a charge")
    reply = talk.call(BILLING, {"account_number": "0"}, TRUTH, set())
    assert (reply.missing, reply.mismatched) == (("billing_zip",), ())
    assert requested_fields(reply.message) == {"billing_zip"}
    reply = talk.call(BILLING, {"billing_zip": "0", "account_number": "0"}, TRUTH, set())
    assert reply.mismatched == ("account_number", "billing_zip")
    assert "mismatch" in reply.message.lower()


def test_service_on_the_way(tiny):
    """Fraud needs Customer Service first, although no goal is served there."""
    talk = csr(tiny, "report a fraud")
    ids = right("account_number", "last_4_ssn", "last_4_cc")
    assert talk.call(CS, ids, TRUTH, set()).status == "success"
    again = talk.call(CS, ids, TRUTH, set())  # once is enough
    assert again.status == "wrong_department"
    assert "Fraud Department" in again.message
    assert not talk.all_served
    assert talk.call(FRAUD, ids, TRUTH, set()).status == "success"
    assert talk.all_served


def test_several_goals_are_served_in_any_order(tiny):
    goals = ("dispute a charge", "hear about offers")
    for order in ((BILLING, SALES), (SALES, BILLING)):
        talk = csr(tiny, *goals)
        for number in order:
            assert not talk.all_served
            assert talk.call(number, right("account_number", "billing_zip"), TRUTH, set()).status == "success"
        assert talk.all_served


def test_more_fields_than_needed_do_no_harm_even_wrong_ones(tiny):
    talk = csr(tiny, "dispute a charge")
    given = right("account_number", "billing_zip") | {"last_4_ssn": "wrong", "what": "ever"}
    assert talk.call(BILLING, given, TRUTH, set()).status == "success"


def test_values_are_compared_without_outer_blanks(tiny):
    talk = csr(tiny, "dispute a charge")
    given = {"account_number": " 123456\n", "billing_zip": "22222 "}
    assert talk.call(BILLING, given, TRUTH, set()).status == "success"


# --- alternatives ----------------------------------------------------------------------------


def test_alternative_is_offered_and_accepted_only_for_unavailable_fields(tiny):
    def talk():
        return csr(tiny, "close my account")

    birth = right("account_number", "date_of_birth")
    reply = talk().call(CS, birth, TRUTH, set())
    assert (reply.status, reply.missing) == ("auth_failed", ("last_4_ssn",))  # the user has it: no substitute
    reply = talk().call(CS, birth, TRUTH, {"billing_zip"})
    assert (reply.status, reply.missing) == ("auth_failed", ("last_4_ssn",))
    reply = talk().call(CS, right("account_number"), TRUTH, {"last_4_ssn"})
    assert (reply.status, reply.missing) == ("auth_failed", ("date_of_birth",))
    assert requested_fields(reply.message) == {"last_4_ssn", "date_of_birth"}
    assert talk().call(CS, birth, TRUTH, {"last_4_ssn"}).status == "success"
    # One alternative stands in for everything that is unavailable.
    assert talk().call(CS, right("date_of_birth"), TRUTH, {"last_4_ssn", "account_number"}).status == "success"


def test_a_department_that_wants_the_birth_date_has_another_alternative(tiny):
    talk = csr(tiny, "defer a loan payment")
    reply = talk.call(LOANS, right("name"), TRUTH, {"date_of_birth"})
    assert reply.missing == ("email",)
    assert talk.call(LOANS, right("name", "email"), TRUTH, {"date_of_birth"}).status == "success"


def test_other_missing_fields_are_named_together_with_the_alternative(tiny):
    talk = csr(tiny, "close my account")
    reply = talk.call(CS, {}, TRUTH, {"last_4_ssn"})
    assert reply.missing == ("account_number", "date_of_birth")
    assert requested_fields(reply.message) == {"account_number", "date_of_birth"}


def test_a_wrong_alternative_is_a_mismatch(tiny):
    talk = csr(tiny, "close my account")
    reply = talk.call(CS, right("account_number") | {"date_of_birth": "2000-01-01"}, TRUTH, {"last_4_ssn"})
    assert (reply.status, reply.mismatched) == ("auth_failed", ("date_of_birth",))


def test_a_made_up_value_for_an_unavailable_field_is_a_mismatch(tiny):
    truth = {f: v for f, v in TRUTH.items() if f != "last_4_ssn"}
    talk = csr(tiny, "close my account")
    reply = talk.call(CS, right("account_number", "date_of_birth") | {"last_4_ssn": "0000"}, truth, {"last_4_ssn"})
    assert (reply.status, reply.mismatched) == ("auth_failed", ("last_4_ssn",))


@pytest.mark.parametrize(("held_out", "reasons"), list(itertools.product((False, True), repeat=2)))
def test_every_refusal_names_exactly_what_is_missing(world, held_out, reasons):
    """3,000 calls all over the world, in any circumstances, with some fields missing, wrong or unavailable.

    With reasons each circumstance is spoken of once, in order, with its field or nothing more, then what is missing in
    any case.
    """
    rng = random.Random(f"refusals/{held_out}/{reasons}")
    seen = collections.Counter()
    keys = sorted(world.rules)
    for i in range(3_000):
        company_id, department = rng.choice(keys)
        company = world.companies[company_id]
        circumstances = [name for name in world.effects[company_id] if rng.random() < 0.35]
        demands = world.demands(company_id, DEPARTMENTS[department].goals[:1], circumstances)
        rule = demands.of[department]
        fields = industry_fields(company.industry)
        truth = {f: f"value of {f}" for f in fields}
        talk = CsrSimulator(company, demands, str(i), held_out, reasons)
        talk.suppose_served(demands.to_call()[:-1])
        unavailable = {f for f in fields if rng.random() < 0.2}
        given = {f: rng.choice((truth[f], truth[f], "wrong")) for f in fields if rng.random() < 0.6}
        number = next(d.phone for d in company.departments if d.name == rule.department)
        reply = talk.call(number, given, truth, unavailable)

        replaced = {f for f in rule.required if f in unavailable and f not in given}
        asked = set(rule.required) - replaced | ({rule.alternative} if replaced else set())
        missing = {f for f in asked if f not in given}
        wrong = {f for f in asked if given.get(f) == "wrong"}
        assert set(reply.missing) == missing
        if missing:
            kind = "alternative" if missing == {rule.alternative} and replaced else "missing"
            named = missing | replaced if kind == "alternative" else missing
            assert reply.status == "auth_failed"
            assert requested_fields(reply.message) == named, reply.message
            special = circumstances if reasons and kind == "missing" else []
            owed = lambda field: rule.alternative if field in replaced else field  # noqa: E731, B023
            fields = {name: owed(world.effects[company_id][name].field) for name in CIRCUMSTANCES if name in special}
            expected = [(name, field if field in missing else "") for name, field in fields.items()]
            assert list(spoken_reasons(reply.message).items()) == expected, reply.message
            if special:
                always = set(map(owed, world.rules[company_id, department].required)) & missing
                assert requested_fields(reply.message.partition("in any case")[2]) == always
                seen["reasons"] += 1
        elif wrong:
            kind = "mismatch"
            assert reply.status == "auth_failed"
            assert requested_fields(reply.message) == wrong == set(reply.mismatched)
        else:
            kind = "success"
            assert reply.status == "success"
            assert requested_fields(reply.message) == frozenset()
        assert reply.message.startswith(rule.department)
        assert not any(v in reply.message for v in (*truth.values(), "wrong"))
        seen[kind] += 1
    assert min(seen[k] for k in ("missing", "alternative", "mismatch", "success")) > 50, seen
    assert (seen["reasons"] > 500) == reasons


def test_a_refusal_means_the_same_with_reasons_and_as_a_list(world):
    """Any call to any department, in any circumstances: status, fields and departments; only words are added."""
    rng, words, keys = random.Random("meaning"), collections.Counter(), sorted(world.rules)
    for i in range(1_000):
        company_id, department = rng.choice(keys)
        company, truth = world.companies[company_id], world.profiles[rng.choice(list(world.profiles))].values
        circumstances = [name for name in world.effects[company_id] if rng.random() < 0.5]
        goal = rng.choice(DEPARTMENTS[rng.choice(company.departments).name].goals)
        demands = world.demands(company_id, [goal], circumstances)
        given = {f: rng.choice((value, value, "wrong")) for f, value in truth.items() if rng.random() < 0.3}
        unavailable = {f for f in FIELDS if rng.random() < 0.2}
        number = next(d.phone for d in company.departments if d.name == department)
        replies = [
            CsrSimulator(company, demands, str(i), reasons=reasons).call(number, given, truth, unavailable)
            for reasons in (False, True)
        ]
        listed, explained = (json.dumps({"status": r.status, "message": r.message}) for r in replies)
        assert read_reply(listed) == read_reply(explained) and meaning(listed) == meaning(explained)
        assert replies[0].missing == replies[1].missing
        words[listed == explained] += 1
    assert min(words[True], words[False]) > 100


@pytest.mark.parametrize("circumstances", [(), ("abroad", "joint_account")])
def test_same_stream_same_words(tiny, circumstances):
    def talk(seed):
        one = csr(tiny, "dispute a charge", seed=seed)
        return [one.call(BILLING, {}, TRUTH, set()).message for _ in range(20)]

    assert talk("a") == talk("a") != talk("b")
    assert len(set(talk("a"))) > 3  # phrasing is drawn per call


# --- users -----------------------------------------------------------------------------------

FULL = Profile("p", "banking", {f: f"{i}{i + 1} {i}" for i, f in enumerate(industry_fields("banking"), 10)})


def users(n: int) -> list[UserSimulator]:
    return [UserSimulator(FULL, str(seed)) for seed in range(n)]


def test_behaviour_frequencies():
    assert BEHAVIOURS == {"cooperative": 0.7, "partial": 0.2, "difficult": 0.1}
    counts = collections.Counter(u.behaviour for u in users(3_000))
    assert all(within(counts[b], 3_000, p) for b, p in BEHAVIOURS.items())


def test_partial_users_lack_each_field_with_probability_03():
    partial = [u for u in users(3_000) if u.behaviour == "partial"]
    for field in FULL.values:
        lacking = sum(not u.can_give(field) for u in partial)
        assert lacking == 0 if field in ALWAYS_AVAILABLE else within(lacking, len(partial), 0.3)
    assert all(u.can_give(f) for u in users(300) if u.behaviour != "partial" for f in FULL.values)


def test_difficult_users_give_each_field_wrongly_at_first_with_probability_02():
    difficult = [u for u in users(3_000) if u.behaviour == "difficult"]
    for field in FULL.values:
        wrong = 0
        for user in difficult:
            first, second, third = (user.give(field) for _ in range(3))
            wrong += first != user.truth[field]
            assert second == third == FULL.values[field]
        assert within(wrong, len(difficult), 0.2)
    for user in users(300):
        if user.behaviour != "difficult":
            assert all(user.give(f) == v for f, v in FULL.values.items())


def test_a_wrong_value_differs_in_one_digit_or_in_word_order():
    profile = Profile("p", "banking", {"name": "Ana Lopez", "account_number": "123456"})
    names, numbers = set(), set()
    for seed in range(2_000):
        user = UserSimulator(profile, str(seed))
        if user.behaviour == "difficult":
            names.add(user.give("name"))
            numbers.add(user.give("account_number"))
    assert names == {"Ana Lopez", "Lopez Ana"}
    assert len(numbers) > 10
    assert all(sum(a != b for a, b in zip(n, "123456", strict=True)) in (0, 1) for n in numbers)


@pytest.mark.parametrize("value", ["0412", "0", "444-555-6666", "ana77@example.com", "Ana Lopez"])
def test_a_garbled_value_is_never_the_right_one(value):
    for seed in range(200):
        assert _garble(random.Random(seed), value) != value


def test_fields_that_the_profile_lacks_cannot_be_given():
    user = UserSimulator(Profile("p", "banking", {"name": "Ana Lopez"}), "0")
    assert user.can_give("name")
    assert not user.can_give("last_4_cc")


def test_a_user_is_a_function_of_profile_and_seed():
    for seed in range(50):
        one, two = UserSimulator(FULL, str(seed)), UserSimulator(FULL, str(seed))
        assert one.behaviour == two.behaviour
        # Asked in another order, the same user gives the same answers.
        answers = {f: one.give(f) for f in FULL.values if one.can_give(f)}
        assert answers == {f: two.give(f) for f in reversed(FULL.values) if two.can_give(f)}
