"""simulator: what CSRs check and in which order, what they say, and how users behave."""

from __future__ import annotations

import collections
import itertools
import json
import math
import random

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
    spoken,
)
from lfo.envs.phone.records import Profile
from lfo.envs.phone.user import BEHAVIOURS, UserSimulator, _garble
from lfo.envs.phone.vocabulary import ALWAYS_AVAILABLE, DEPARTMENTS, FIELDS, canonical, industry_fields

TRUTH = {
    "account_number": "123456",
    "last_4_ssn": "1111",
    "last_4_cc": "3333",
    "billing_zip": "22222",
    "date_of_birth": "1980-02-03",
    "name": "Ana Lopez",
    "email": "ana77@example.com",
}
CS, FRAUD, BILLING, LOANS, SALES = (f"800-555-000{i}" for i in range(1, 6))


def csr(tiny, *goals: str, seed="0", held_out=False) -> CsrSimulator:
    return CsrSimulator(tiny.companies["bank"], tiny.rules, goals, seed, held_out)


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


TEMPLATES = [
    (situation, style, k)
    for situation, styles in PHRASINGS.items()
    for style, variants in styles.items()
    for k in range(len(variants))
]


@pytest.mark.parametrize("situation", ["missing", "mismatch"])
def test_every_phrasing_names_exactly_its_fields(situation):
    """All styles, held-out ones included; every field alone and 300 drawn lists of two to six."""
    rng = random.Random(1)
    lists = [(f,) for f in FIELDS] + [canonical(rng.sample(list(FIELDS), rng.randint(2, 6))) for _ in range(300)]
    for variants in PHRASINGS[situation].values():
        for template in variants:
            for fields in lists:
                text = template.format(dept=rng.choice(list(DEPARTMENTS)), fields=oxford([FIELDS[f] for f in fields]))
                assert requested_fields(text) == set(fields), text


def test_every_phrasing_of_an_alternative_names_both_fields():
    for variants in PHRASINGS["alternative"].values():
        for template in variants:
            for missing, other in itertools.permutations(FIELDS, 2):
                text = template.format(dept="Loans", fields=FIELDS[missing], other=FIELDS[other])
                assert requested_fields(text) == {missing, other}, text


def test_departments_are_never_read_as_fields():
    for situation in ("routing", "wrong_department", "success"):
        for variants in PHRASINGS[situation].values():
            for template, dept in itertools.product(variants, DEPARTMENTS):
                assert requested_fields(template.format(dept=dept, other=dept)) == frozenset()


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
    assert len(set(templates)) == len(templates) == len(TEMPLATES)


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
        for text in (text for variants in PHRASINGS[situation].values() for text in variants):
            slots = {"dept": department, "fields": oxford([FIELDS[f] for f in fields]), "other": other}
            if situation == "alternative":
                slots |= {"fields": FIELDS["last_4_cc"], "other": FIELDS["email"]}
            status = SITUATION_STATUS[situation]
            reply = json.dumps({"status": status, "message": text.format(**slots)})
            named = {"missing": fields, "mismatch": fields, "alternative": ("last_4_cc", "email")}.get(situation, ())
            departments = {other} if situation in ("routing", "wrong_department") else set()
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


@pytest.mark.parametrize("held_out", [False, True])
def test_every_refusal_names_exactly_what_is_missing(world, held_out):
    """2,000 calls all over the world with some fields missing, wrong or unavailable."""
    rng = random.Random(f"refusals/{held_out}")
    seen = collections.Counter()
    keys = sorted(world.rules)
    for i in range(2_000):
        rule = world.rules[rng.choice(keys)]
        company = world.companies[rule.company_id]
        fields = industry_fields(company.industry)
        truth = {f: f"value of {f}" for f in fields}
        talk = CsrSimulator(company, world.rules, DEPARTMENTS[rule.department].goals[:1], str(i), held_out)
        if rule.after:
            talk._served.add(rule.after)
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


def test_same_stream_same_words(tiny):
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
