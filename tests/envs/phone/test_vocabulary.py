"""vocabulary: fields and goals can be told apart, and a request says which circumstances it speaks of."""

from __future__ import annotations

import itertools
import random

from lfo.envs.phone import vocabulary as v
from lfo.envs.phone.world import request_text

CIRCUMSTANCES = list(v.CIRCUMSTANCES)
PHRASES = [phrase for kind in v.CIRCUMSTANCES.values() for phrase in (*kind.said, *kind.because)]


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


# --- circumstances ---------------------------------------------------------------------------


def test_every_circumstance_is_put_in_several_ways_one_of_them_held_out():
    assert len(v.CIRCUMSTANCES) == 6
    assert len(set(PHRASES)) == len(PHRASES) == 6 * (4 + 3)
    for kind in v.CIRCUMSTANCES.values():
        assert len(kind.said) >= 3 and len(kind.because) >= 3
        assert all(said[0].isupper() and said.endswith(".") and said.count(".") == 1 for said in kind.said)
        assert all(because[0].islower() and because[-1].isalpha() for because in kind.because)


def test_circumstances_name_nothing_else():
    """Neither a field, nor a department, nor a goal, nor each other, nor where a reply's opening ends."""
    goals = list(v.DEPARTMENT_OF_GOAL)
    for phrase in PHRASES:
        named = (*v.FIELDS.values(), *v.DEPARTMENTS, *goals)
        assert not [name for name in named if name.lower() in phrase.lower()]
        assert ". " not in phrase and "! " not in phrase and "{" not in phrase
    assert not [(a, b) for a, b in itertools.permutations(PHRASES, 2) if a.lower() in b.lower()]


def test_goals_and_requests_speak_of_no_circumstance():
    said = [said for kind in v.CIRCUMSTANCES.values() for said in kind.said]
    for request in v.REQUESTS:
        assert not [phrase for phrase in said if phrase in request]
    assert not [(phrase, goal) for phrase in said for goal in v.DEPARTMENT_OF_GOAL if phrase in goal]


def test_a_request_says_its_goals_and_circumstances_in_any_phrasing(tiny):
    """Every subset of circumstances, every phrasing of each somewhere, whatever the order; also held-out ones."""
    rng, bank, heard = random.Random(1), tiny.companies["bank"], set()
    goals = [goal for department in bank.departments for goal in v.DEPARTMENTS[department.name].goals]
    subsets = [some for n in range(7) for some in itertools.combinations(CIRCUMSTANCES, n)]
    for circumstances, held_out in itertools.product(subsets, (False, True)):
        wanted = tuple(rng.sample(goals, rng.randint(1, 3)))
        request = request_text(rng, bank, wanted, circumstances, held_out)
        assert v.circumstances_in(request) == circumstances
        assert v.goals_in(request) == wanted
        heard |= {phrase for phrase in PHRASES if phrase in request}
    assert heard == {said for kind in v.CIRCUMSTANCES.values() for said in kind.said}


def test_requests_say_each_circumstance_in_a_sentence_of_its_own_in_any_order(tiny):
    rng, orders = random.Random(2), set()
    for _ in range(200):
        request = request_text(rng, tiny.companies["bank"], ("dispute a charge",), CIRCUMSTANCES[:3])
        start = next(text for text in v.REQUESTS if request.startswith(text.partition("{")[0]))
        opening = start.format(company="Harbor Bank", goals="dispute a charge")
        sentences = request.removeprefix(opening).replace(". ", ".|").strip().split("|")
        orders.add(tuple(next(n for n in CIRCUMSTANCES if s in v.CIRCUMSTANCES[n].said) for s in sentences))
    assert orders == set(itertools.permutations(CIRCUMSTANCES[:3]))


def test_training_requests_never_have_the_held_out_phrasing(tiny):
    rng, held_out = random.Random(3), [kind.said[-1] for kind in v.CIRCUMSTANCES.values()]
    for _ in range(200):
        request = request_text(rng, tiny.companies["bank"], ("dispute a charge",), CIRCUMSTANCES)
        assert not [said for said in held_out if said in request]


def test_rephrased_by_hand():
    request = "Could you phone Harbor Bank and report a fraud? I am out of the country. The account is in two names."
    assert v.rephrased(request) == (
        "Could you phone Harbor Bank and report a fraud? I am in a foreign country. Two of us hold the account."
    )


def test_a_rephrased_request_means_the_same_in_phrasings_of_its_own(tiny):
    rng = random.Random(4)
    for _ in range(200):
        circumstances = tuple(name for name in CIRCUMSTANCES if rng.random() < 0.5)
        request = request_text(rng, tiny.companies["bank"], ("dispute a charge",), circumstances, rng.random() < 0.5)
        other = v.rephrased(request)
        assert v.circumstances_in(other) == circumstances and v.goals_in(other) == ("dispute a charge",)
        assert all(v.CIRCUMSTANCES[name].said[-1] in other for name in circumstances)
        assert sum(phrase in other for phrase in PHRASES) == len(circumstances)
        assert v.rephrased(other) == other
        assert circumstances or other == request
