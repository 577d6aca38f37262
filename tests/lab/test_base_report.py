"""base_report: copies, readable calls and what forms know, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from lfo.envs.phone.tools import form as fill_in
from lfo.envs.phone.tools import phone_call, search
from lfo.envs.phone.vocabulary import DEPARTMENTS, FIELDS, INDUSTRIES
from lfo.lab.base_report import conditional_information, copying, entropy_bits, form_information, parsing
from lfo.types import Hangup, Malformed, Outcome, Rollout, StopReason, Turn


def played(task_id: str, turns: Sequence[Turn]) -> Rollout:
    return Rollout(task_id, 0, [], [], [], list(turns), StopReason.AGENT_STOPPED, Outcome(False, 0.0))


def form(*fields: str, answer: dict | None = None) -> Turn:
    return Turn(fill_in(fields), json.dumps((answer or {}) | {"unavailable": []}), "ok")


def call(number: str, status: str = "auth_failed", **auth_info: str) -> Turn:
    return Turn(phone_call(number, auth_info), "{}", status)


def directory(*numbers: str) -> Turn:
    return Turn(search("x"), json.dumps({"departments": [{"name": "Billing", "phone": n} for n in numbers]}), "ok")


def test_copies_by_hand():
    values = {"email": "ana77@example.com", "last_4_ssn": "1111", "last_4_cc": "3333"}
    turns = [
        call("800-555-0003", email="ana77@example.com"),  # nothing was heard yet: number 0 of 1, value 0 of 1
        directory("800-555-0003", "800-555-0004"),
        form("email", "last_4_ssn", "last_4_cc", answer=values),
        call("800-555-0003", email="ana77@example.com", last_4_ssn="1111"),  # 1 of 1, 2 of 2
        call("800-555-0000", email="ana7@example.com", last_4_ssn="3333"),  # 0 of 1, 0 of 2: the 3333 is the card's
        call("800-555-000", last_4_cc="333"),  # 0 of 1, 0 of 1: parts are no copies
        call("800-555-0004"),  # 1 of 1
        Turn(Malformed("make_phone_call<|args|>{", "no"), "", "error"),
    ]
    other = [call("800-555-0003")]  # another row's directory does not count: 0 of 1
    rows = [played("t", turns), played("t", other)]
    assert copying(rows) == {"values": (2, 6), "numbers": (1, 3), "later numbers": (1, 3)}
    assert copying([]) == {"values": (0, 0), "numbers": (0, 0), "later numbers": (0, 0)}


def test_parsed_calls_by_hand():
    turns = [directory("1"), Turn(Malformed("x", "no"), "{}", "error"), call("1"), Turn(Hangup(), "", "stopped")]
    assert parsing([played("t", turns), played("t", turns[:1])]) == (3, 4)


def test_conditional_information_by_hand():
    copy = [(x, x, "z") for x in "aabb"]
    assert conditional_information(copy) == pytest.approx(1.0)  # one fair bit, known
    assert conditional_information([(x, y, "z") for x in "ab" for y in "cd"]) == pytest.approx(0.0)
    assert conditional_information([(x, x, x) for x in "aabb"]) == pytest.approx(0.0)  # z has told already
    # X is Y in the quarter z=1 (one bit), and independent of it in the rest
    mixed = [(x, x, 1) for x in "aabb"] + [(x, y, 2) for x in "ab" for y in "ab" for _ in range(3)]
    assert conditional_information(mixed) == pytest.approx(0.25)
    # p(x=a, y=a) = 1/2, p(a, b) = p(b, b) = 1/4
    expected = 0.5 * math.log2(Fraction(1, 2) / (Fraction(3, 4) * Fraction(1, 2)))
    expected += 0.25 * math.log2(Fraction(1, 4) / (Fraction(3, 4) * Fraction(1, 2)))
    expected += 0.25 * math.log2(Fraction(1, 4) / (Fraction(1, 4) * Fraction(1, 2)))
    assert conditional_information([("a", "a", 0)] * 2 + [("a", "b", 0), ("b", "b", 0)]) == pytest.approx(expected)


def test_form_information_tells_a_rule_from_an_accident(world):
    """First field: dealt at random. Number of fields: one per goal department, however the field names fall."""
    rng = random.Random(0)
    tasks = world.split("train", (1, 2))[:80]
    names = list(DEPARTMENTS)
    rows = []
    for task in tasks:
        department = next(d for d in names if task.goals[0] in DEPARTMENTS[d].goals)
        for _ in range(3):
            fields = rng.sample(list(FIELDS), 1 + names.index(department) % 4)
            rows.append(played(task.task_id, [directory("1"), form(*fields), form("name")]))
    rows.append(played(tasks[0].task_id, [call("1")]))  # no form, nothing to tell
    found = form_information(rows, world, permutations=200)
    assert found["size"]["p"] == pytest.approx(1 / 201) and found["size"]["bits"] > found["size"]["by_chance"] + 0.3
    assert found["first"]["p"] > 0.01
    assert found["first"]["bits"] == pytest.approx(found["first"]["by_chance"], abs=0.3)


def test_what_the_industry_tells_is_not_held_against_the_department(world):
    """A form that names the industry and no more: departments differ by industry, the given industry explains it."""
    tasks = world.split("train", (1, 2))[:60]
    rows = []
    for task in tasks:
        industry = INDUSTRIES.index(world.companies[task.company_id].industry)
        rows.append(played(task.task_id, [form(*list(FIELDS)[industry : 2 * industry + 1])]))
    found = form_information(rows, world, permutations=50)
    assert all(entry["bits"] == pytest.approx(0.0, abs=1e-9) and entry["p"] == 1.0 for entry in found.values())


def test_entropy_by_hand():
    assert entropy_bits(["a", "b"]) == 1.0
    assert entropy_bits(["a"] * 5) == 0.0
    assert entropy_bits(["a", "a", "b", "c"]) == 1.5
    assert math.copysign(1, entropy_bits(["a"])) == 1  # not -0.0
