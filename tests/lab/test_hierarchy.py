"""hierarchy: curves of runs in several worlds, nested resampling, one rule for intervals and verdicts."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lfo.config import as_dict, load_config
from lfo.lab import hierarchy
from lfo.lab.hierarchy import (
    DRAWS,
    Curve,
    Finding,
    Study,
    area,
    area_until,
    at,
    correlate,
    curves_of,
    final,
    holm,
    judge,
    lead,
    middle,
    number,
    reach,
    times,
)
from lfo.lab.statistics import REFUTED, SUPPORTED, UNDECIDED


def curve(arm: str, *successes: str, world: int = 1, seed: int = 0, companies: str = "aabb") -> Curve:
    """One evaluation per text of digits, 40 sampled tasks apart."""
    shares = np.array([[int(digit) for digit in text] for text in successes], dtype=float)
    return Curve(arm, world, seed, 40.0 * np.arange(len(successes)), shares, tuple(companies))


# --- reading ---------------------------------------------------------------------------------


def test_outcomes_are_read_task_by_task(tmp_path):
    folder = tmp_path / "world103-seed7"
    folder.mkdir()
    config = load_config("configs/smoke.yaml", seed=7, eval_tasks=2, eval_episodes=2, **{"env.world_seed": 103})
    (folder / "config.json").write_text(json.dumps(as_dict(config)))
    rows = [{"kind": "outcomes", "split": "test", "tasks": t, "successes": s} for t, s in ((0, "0001"), (8, "1011"))]
    rows.append({"kind": "outcomes", "split": "validation", "tasks": 0, "successes": "1111"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = hierarchy.read_curves({"ours": [folder]}, "test")
    assert (found.arm, found.world, found.seed) == ("ours", 103, 7)
    assert found.tasks.tolist() == [0, 8] and found.successes.tolist() == [[0, 0.5], [0.5, 1]]
    tasks = hierarchy.tasks_of(config.env, "test")[:2]
    assert found.companies == tuple(task.company_id for task in tasks)
    assert hierarchy.read_curves({"ours": [folder]}, "train") == []
    levels = [task.level for task in tasks]
    for level in set(levels):
        (part,) = hierarchy.read_curves({"ours": [folder]}, "test", (level,))
        chosen = [i for i, one in enumerate(levels) if one == level]
        assert part.successes.tolist() == found.successes[:, chosen].tolist()
    assert hierarchy.read_curves({"ours": [folder]}, "test", tuple({1, 2, 3, 4, 5} - set(levels))) == []


def test_what_was_measured_episode_by_episode_makes_curves():
    """Two runs, of other worlds: task a has 1 and 0, b has 1; and a second number, twice as large."""
    rows = pd.DataFrame(
        [
            {"arm": "ours", "world": w, "seed": 0, "task_id": t, "company_id": t.upper(), "won": x, "twice": 2 * x}
            for w in (1, 2)
            for t, x in (("a", 1), ("b", w), ("a", 0))
        ]
    )
    one, other = curves_of(rows, ["won", "twice"])
    assert (one.world, other.world, one.companies) == (1, 2, ("A", "B"))
    assert one.successes.tolist() == [[0.5, 1], [1, 2]] and other.successes.tolist() == [[0.5, 2], [1, 4]]
    assert Study([one, other]).values(number(1)) == {"ours": [1.5, 2.5]}


# --- one run ---------------------------------------------------------------------------------


def test_measures_by_hand():
    tasks, success = np.array([0.0, 40, 80, 120]), np.array([0.0, 0.8, 0.6, 1.0])
    assert final(tasks, success) == 1
    assert area(tasks, success) == pytest.approx((0.4 + 0.7 + 0.8) / 3)
    assert reach(0.7)(tasks, success) == math.inf  # 0.8 was not followed by another, and nothing follows the last
    assert reach(0.7)(tasks[:1], success[1:2]) == 0  # all that there is
    assert reach(0.6)(tasks, success) == 40
    assert reach(1.1)(tasks, success) == math.inf
    assert area(tasks[:1], success[1:2]) == 0.8


def test_measures_of_many_resamples_at_once():
    tasks, success = np.array([0.0, 40, 80]), np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert final(tasks, success).tolist() == [1, 0] and area(tasks, success).tolist() == [0.75, 0.25]
    assert reach(0.5)(tasks, success).tolist() == [40, math.inf]


def test_shares_of_what_another_arm_reaches():
    curves = [curve("truth", "0000", "1100"), curve("ours", "0000", "1000"), curve("ours", "1111", world=2)]
    curves += [curve("truth", "0000", world=3), curve("ours", "1111", world=3)]
    relative = hierarchy.relative_to(curves, "truth")
    assert [c.arm for c in relative] == ["truth", "ours"]  # not told in world 2; in world 3 the truth was of no use
    assert Study(relative).values(final) == {"truth": [1.0], "ours": [0.5]}
    of_both = hierarchy.relative_to([*curves, curve("truth", "1111", seed=1)], "truth")
    assert Study(of_both).values(final)["ours"] == [pytest.approx(1 / 3)], "of what its runs reach on average"


def test_a_share_is_of_what_is_reached_at_the_same_tasks():
    """Who serves the very tasks that the other serves has all of it in every draw, unless none of these is drawn."""
    curves = [curve(arm, "0000", "1010", companies="abcd") for arm in ("truth", "ours")]
    drawn = Study(hierarchy.relative_to(curves, "truth"), 400).draws(final)["ours"]
    assert set(drawn[~np.isnan(drawn)]) == {1.0} and 0 < np.isnan(drawn).mean() < 0.2
    many = curve("theirs", "0000", "1010", seed=1, companies="abc" + "e")
    assert [c.arm for c in hierarchy.relative_to([*curves, many], "truth")] == ["truth", "ours"], "other tasks"


# --- resampling ------------------------------------------------------------------------------


def test_tasks_at_some_companies_alone():
    """Of what another arm reaches at these: company a is served as often as there, b never."""
    reached = hierarchy.relative_to([curve("ours", "0000", "1000"), curve("truth", "1011")], "truth")
    (ours,) = (one for one in reached if one.arm == "ours")
    for companies, share in (("a", 1.0), ("b", 0.0), ("ab", 1 / 3)):
        there = ours.at(set(companies))
        assert set(there.companies) == set(companies) and there.successes.shape == (2, 2 * len(companies))
        assert there.success(np.ones((len(there.companies), 1)))[-1, 0] == pytest.approx(share)


def test_what_never_varies_has_no_width():
    curves = [curve("ours", "1111", world=w, seed=s) for w in (1, 2) for s in (0, 1)]
    found = Study(curves, 50).find(final, middle("ours"), ["ours"])
    assert (found.value, found.low, found.high, found.runs) == (1, 1, 1, 4)


def test_tasks_of_a_company_stay_together():
    """Two companies, one always and one never served: a draw has both, one twice or the other twice."""
    drawn = Study([curve("ours", "1100")], 400).draws(final)["ours"][:, 0]
    assert set(drawn) == {0, 0.5, 1}
    assert 0.15 < (drawn == 1).mean() < 0.35


def test_the_tasks_of_a_company_are_drawn_again():
    """One company with two tasks, one of them served: of two draws none, one or both are it."""
    drawn = Study([curve("ours", "10", companies="aa")], 400).draws(final)["ours"][:, 0]
    assert set(drawn) == {0, 0.5, 1} and 0.4 < (drawn == 0.5).mean() < 0.6


def test_runs_of_a_world_are_drawn_again():
    curves = [curve("ours", "1111", seed=0), curve("ours", "0000", seed=1)]
    drawn = Study(curves, 400).draws(final)["ours"]
    assert drawn.shape == (400, 2) and set(drawn.mean(axis=1)) == {0, 0.5, 1}


def test_arms_share_worlds_companies_and_tasks():
    """An arm that is better by one task of every company is better in every draw, however the tasks fall."""
    low = [curve("low", "1000", world=w, companies="abcd") for w in (1, 2)]
    same = [curve("same", "1000", world=w, companies="abcd") for w in (1, 2)]
    found = Study(low + same, 50).find(final, lead("same", "low"), ["same", "low"])
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_worlds_are_resampled_as_a_whole():
    curves = [curve("ours", "1111", world=1), curve("ours", "0000", world=2)]
    assert set(Study(curves, 400).draws(final)["ours"].mean(axis=1)) == {0, 0.5, 1}


def test_draws_are_always_the_same():
    curves = [curve("ours", "1010", "1100", world=w, seed=s) for w in (1, 2) for s in (0, 1)]
    one, other = (Study(curves, 20).draws(area)["ours"] for _ in range(2))
    assert one.tolist() == other.tolist()


def test_the_draws_of_an_arm_do_not_depend_on_the_others():
    ours = [curve("ours", "1010", "1100", world=w) for w in (1, 2)]
    theirs = [curve("theirs", "0000", "1000", world=w) for w in (1, 2)]
    alone, beside = Study(ours, 20), Study(theirs + ours, 20)
    assert alone.draws(area)["ours"].tolist() == beside.draws(area, ["ours"])["ours"].tolist()


def test_arms_are_compared_in_the_worlds_that_they_have_in_common():
    """Ours was run in one world, theirs in two; a third arm with more runs leaves nothing undefined."""
    curves = [curve("ours", "1111"), curve("theirs", "0000"), curve("theirs", "1111", world=2)]
    curves += [curve("more", "1111", seed=s) for s in range(3)]
    study = Study(curves, 50)
    found = study.find(final, lead("ours", "theirs"), ["ours", "theirs"])
    assert (found.value, found.low, found.high, found.runs) == (1, 1, 1, 1)
    assert study.find(final, middle("theirs"), ["theirs"]).runs == 2
    assert np.isnan(study.draws(final)["more"]).any(axis=1).mean() > 0.5  # where world 2 was drawn


def test_the_interval_of_a_mean_is_what_theory_says():
    """One world, one run, 100 companies of one task each, half of them served: 0.5 +- 1.96 * 0.05."""
    companies = [f"c{i}" for i in range(100)]
    shares = np.array([[1.0] * 50 + [0.0] * 50])
    found = Study([Curve("ours", 1, 0, np.array([0.0]), shares, tuple(companies))]).find(
        final, middle("ours"), ["ours"]
    )
    assert found.value == 0.5 and (found.low, found.high) == pytest.approx((0.402, 0.598), abs=0.011)


def test_an_arm_that_was_not_run_has_no_runs():
    found = Study([curve("ours", "1111")], 9).find(final, lead("ours", "theirs"), ["ours", "theirs"])
    assert found.runs == 0 and math.isnan(found.value) and judge({"better": (found, 0)})["better"] == (1, UNDECIDED)


def test_how_many_times_fewer_tasks():
    ratio = times("ours", "theirs", given=800)
    assert ratio({"ours": [40, 80, 120], "theirs": [400, 800, math.inf]}) == 10
    assert ratio({"ours": [40], "theirs": [math.inf]}) == 20  # at least: it was given 800
    assert ratio({"ours": [40], "theirs": [1000]}) == 25  # seconds: another run was given no more than 800
    assert ratio({"ours": [math.inf], "theirs": [400]}) == 0
    assert math.isnan(ratio({"ours": [math.inf], "theirs": [math.inf]}))
    assert math.isnan(ratio({"ours": [0], "theirs": [40]}))
    assert ratio({"ours": [100], "theirs": [100, math.inf]}) == 4.5, "the least: (100 + 800) / 2 of 100"
    many = {"ours": np.array([[40.0, math.nan], [80, 120], [math.inf, 40]]), "theirs": np.full((3, 1), 400.0)}
    assert ratio(many).tolist() == [10, 4, 0]  # nan is no run


def test_what_was_given_in_other_worlds_is_no_bound():
    """Theirs never arrives: within 120 tasks in the world of ours, within 40 in one of its own."""
    never = [curve("theirs", *["00"] * evaluations, companies="ab", world=w) for w, evaluations in ((0, 4), (1, 2))]
    study = Study([curve("ours", "00", "11", "11", companies="ab", world=0), *never])
    assert hierarchy.times_fewer(study, reach(0.7), "ours", "theirs").value == 3


def test_where_many_draws_have_no_value_there_is_no_interval():
    """Of one run's two tasks the one never succeeds: a quarter of the draws never arrives."""
    curves = [curve("ours", "00", "10", "10", companies="ab"), curve("theirs", "00", "00", "11", "11", companies="ab")]
    study, measure = Study(curves), reach(0.4)
    found = study.find(measure, times("ours", "theirs", given=80), ["ours", "theirs"])
    assert found.value == 2 and not np.isnan(found.drawn).any() and found.low == 0
    lost = study.find(
        measure, lambda values: np.where(np.isinf(values["ours"]), np.nan, values["ours"])[..., 0], ["ours"]
    )
    assert 0.2 < np.isnan(lost.drawn).mean() < 0.3 and math.isnan(lost.low) and math.isnan(lost.high)


def test_areas_end_together_also_between_two_evaluations():
    tasks, success = np.array([0.0, 35, 70]), np.array([0.0, 0.5, 1.0])
    straight = success * 1.0  # on one line, so that the area over any span is half of where it ends
    for end in (0, 20, 35, 50, 70, 90):
        assert area_until(end)(tasks, straight) == pytest.approx(min(end, 70) / 70 / 2), end
    both = np.stack([success, 1 - success], axis=1)
    assert area_until(50)(tasks, both) == pytest.approx([50 / 70 / 2, 1 - 50 / 70 / 2])
    assert area_until(50) is area_until(50), "by which a study knows what it has measured"


def test_success_after_so_many_tasks_lies_on_the_line():
    """Before the first evaluation and after the last it is that; for every resample at once."""
    tasks, success = np.array([0.0, 40, 80]), np.array([[0.0, 1], [0.4, 1], [0.6, 0]])
    found = {place: at(place)(tasks, success).tolist() for place in (-5, 0, 10, 40, 60, 80, 99)}
    expected = {-5: [0, 1], 0: [0, 1], 10: [0.1, 1], 40: [0.4, 1], 60: [0.5, 0.5], 80: [0.6, 0], 99: [0.6, 0]}
    assert all(found[place] == pytest.approx(value) for place, value in expected.items())
    assert at(7)(tasks[:1], success[:1]).tolist() == [0, 1]
    seconds = np.array([0.0, 0.5])  # of which evaluations may be less than one apart
    assert at(0.25)(seconds, success[:2]).tolist() == pytest.approx([0.2, 1])
    assert at(3)(np.array([3.0, 3.0]), success[:2]).tolist() == [0, 1]


# --- correlations ----------------------------------------------------------------------------


def test_spearman_by_hand():
    """Ranks 1 2 3 4 5 against 2 1 4 3 5: 1 - 6 * 4 / (5 * 24)."""
    found = correlate([1, 2, 3, 4, 50], [20, 10, 40, 30, 50], [(0, seed) for seed in range(5)])
    assert found.value == pytest.approx(0.8) and found.runs == 5
    assert -1 <= found.low < 0.8 < found.high <= 1
    assert len(found.parts) == 5 and np.isnan(found.parts).all(), "one point of a seed has no correlation"


def test_points_of_one_world_stand_or_fall_together():
    """Each world by itself falls, together they rise; one draw in nine has one world only."""
    x, y = [1, 2, 3, 11, 12, 13, 21, 22, 23], [3, 2, 1, 13, 12, 11, 23, 22, 21]
    runs = [(world, 0) for world in (1, 1, 1, 2, 2, 2, 3, 3, 3)]
    together, apart = correlate(x, y, runs), correlate(x, y, [(world, 0) for world in range(9)])
    assert together.value == apart.value == pytest.approx(stats.spearmanr(x, y).statistic) and together.runs == 3
    assert together.low == pytest.approx(-1) and apart.low > 0 and together.parts == pytest.approx([-1] * 3)
    same = correlate(x, y, [(1, world) for world, _ in runs])
    assert (same.value, same.parts) == (together.value, together.parts), "of one world the parts are its seeds"


def test_what_never_varies_has_no_correlation():
    assert math.isnan(correlate([1, 2, 3], [5, 5, 5], [(0, 0), (0, 1), (0, 2)]).value)
    nothing = correlate([], [], [])
    assert math.isnan(nothing.value) and nothing.runs == 0 and judge({"": (nothing, 0.0)})[""] == (1, UNDECIDED)


# --- verdicts --------------------------------------------------------------------------------


AGREED = (0.48, 0.49, 0.5, 0.51, 0.52)  # of five worlds


def test_p_values_count_draws_on_the_wrong_side():
    drawn = np.array([0.2] * 97 + [-0.1, 0.0, math.nan])
    assert hierarchy.p_above(Finding(0.2, 0, 0, 5, drawn, AGREED), 0.0) == pytest.approx(2 * 4 / 101)
    assert hierarchy.p_above(Finding(0.2, 0, 0, 5, np.zeros(9), AGREED), 0.0) == 1


@pytest.mark.parametrize(
    ("parts", "p"),
    [
        ((1, 2, 3, 4, 5), 2 * (1 - stats.t.cdf(3 / math.sqrt(2.5 / 5), 4))),  # mean 3, variance 2.5
        ((0.2, 0.2, 0.2, 0.2, 0.2), 0),
        ((0, 0, 0, 0, 0), 1),
        ((0.2,) * 4, 1),
        ((), 1),
        ((math.nan, math.inf, 0.2, 0.2, 0.2, 0.2), 1),
        ((-0.5, -0.51, -0.49, -0.5, -0.52), 1),
    ],
)
def test_worlds_must_agree(parts, p):
    """All draws are above the bar of 0, and yet."""
    assert hierarchy.p_above(Finding(0.2, 0, 0, 5, np.full(DRAWS, 0.2), parts), 0.0) == pytest.approx(
        max(p, 2 / (DRAWS + 1))
    )


def test_claims_of_no_effect_are_rarely_decided_however_many_there_are():
    """A hundred tables of 50 claims, each of five worlds whose mean is the bar: about one in twenty decides one."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(100):
        tables = {}
        for claim in range(50):
            parts = rng.normal(size=5)
            drawn = rng.choice(parts, (400, 5)).mean(axis=1)
            tables[claim] = Finding(float(np.mean(parts)), 0, 0, 5, np.repeat(drawn, 25), parts.tolist()), 0.0
        wrong += any(verdict != UNDECIDED for _, verdict in judge(tables).values())
    assert wrong <= 10


def test_a_lower_bound_below_the_bar_decides_nothing():
    """Theirs never arrives within 80 tasks, ours does after 40: twice, or any number of times more."""
    curves = [curve("ours", "00", "11", "11", companies="ab", world=w) for w in range(5)]
    curves += [curve("theirs", "00", "00", "00", companies="ab", world=w) for w in range(5)]
    found = hierarchy.times_fewer(Study(curves), reach(0.7), "ours", "theirs")
    assert found.value == 2 and found.parts == [2] * 5
    assert hierarchy.p_above(found, 3) == 1 and hierarchy.p_above(found, 1.5) < 0.01
    other = hierarchy.times_fewer(Study(curves), reach(0.7), "theirs", "ours")
    assert other.value == 0 and other.parts_most == [0.5] * 5 and hierarchy.p_above(other, 1) < 0.01


def test_an_upper_bound_above_the_bar_decides_nothing():
    """Ours never arrives within 40 tasks, theirs after 80: at most twice, or any number of times less."""
    curves = [curve("ours", "00", "00", companies="ab", world=w) for w in range(5)]
    curves += [curve("theirs", "00", "00", "11", "11", companies="ab", world=w) for w in range(5)]
    found = hierarchy.times_fewer(Study(curves), reach(0.7), "ours", "theirs")
    assert found.value == 0 and found.parts == [0] * 5 and found.parts_most == [2] * 5
    assert hierarchy.p_above(found, 1.3) == 1 and hierarchy.p_above(found, 3) < 0.01


def test_where_neither_arrives_nothing_is_known():
    curves = [
        curve(arm, *["00"] * n, companies="ab", world=w) for w in range(5) for arm, n in (("ours", 2), ("theirs", 3))
    ]
    found = hierarchy.times_fewer(Study(curves), reach(0.7), "ours", "theirs")
    assert found.parts == [0] * 5 and np.isinf(found.parts_most).all() and hierarchy.p_above(found, 1) == 1


def test_a_world_in_which_one_never_arrives_counts_against_what_is_claimed():
    """Ten worlds; in one ours never arrives, or theirs does not, or neither: nine times as many as the bar wants, and
    a world that leaves it open."""
    quick, slow, never = ["00", "11", "11"], ["00", "00", "00", "00", "11", "11"], ["00"] * 9
    for ours, theirs in ((never, slow), (never, never)):
        worlds = [(quick, slow)] * 9 + [(ours, theirs)]
        curves = [
            curve(arm, *successes, companies="ab", world=w)
            for w, pair in enumerate(worlds)
            for arm, successes in zip(("ours", "theirs"), pair, strict=True)
        ]
        found = hierarchy.times_fewer(Study(curves), reach(0.7), "ours", "theirs")
        assert found.value == 4 and found.parts == [4] * 9 + [0]
        assert found.parts_most[:9] == [4] * 9
        above, below = hierarchy.sides(found, 3.2)
        assert above > 0.1 and below > 0.9, "supported, did the last world count as what was given, or not at all"
    curves = [curve("ours", *slow, companies="ab", world=w) for w in range(10)]
    curves += [curve("theirs", *(never if w == 9 else quick), companies="ab", world=w) for w in range(10)]
    found = hierarchy.times_fewer(Study(curves), reach(0.7), "ours", "theirs")
    assert found.value == 0.25 and found.parts_most == [0.25] * 9 + [math.inf]
    assert hierarchy.sides(found, 1)[1] == 1, "theirs may need any number of times more"
    curves = [curve("ours", *(["11", "11"] if w == 9 else slow), companies="ab", world=w) for w in range(10)]
    curves += [curve("theirs", *quick, companies="ab", world=w) for w in range(10)]
    found = hierarchy.times_fewer(Study(curves), reach(0.7), "ours", "theirs")
    assert found.value == 0.25 and found.parts_most[9] == math.inf, "ours was there from the start"
    assert hierarchy.sides(found, 1)[1] == 1


def test_the_parts_of_one_world_are_its_seeds():
    curves = [curve("ours", text, seed=s) for s, text in enumerate(("1111", "1100", "0000"))]
    study = Study([*curves, *(curve("theirs", "1000", seed=s) for s in (0, 1))])
    assert study.find(final, lead("ours", "theirs"), ["ours", "theirs"]).parts == [0.75, 0.25]
    assert study.find(final, middle("ours"), ["ours"]).parts == [1, 0.5, 0]


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []


def test_draws_are_so_many_that_a_table_of_claims_can_be_decided():
    sure = Finding(0.5, 0, 0, 5, np.full(DRAWS, 0.5), AGREED)
    claims = {i: (sure, 0.1) for i in range(200)}
    assert {verdict for _, verdict in judge(claims).values()} == {SUPPORTED}


def test_verdicts_need_runs_and_one_side():
    sure = np.full(999, 0.5)
    claims = {
        "above": (Finding(0.5, 0, 0, 5, sure, AGREED), 0.1),
        "below": (Finding(0.5, 0, 0, 5, sure, AGREED), 0.9),
        "few worlds": (Finding(0.5, 0, 0, 8, sure, AGREED[1:]), 0.1),
        "both sides": (Finding(0.5, 0, 0, 5, np.arange(999) / 999, AGREED), 0.4),
    }
    assert {claim: found for claim, (_, found) in judge(claims).items()} == {
        "above": SUPPORTED,
        "below": REFUTED,
        "few worlds": UNDECIDED,
        "both sides": UNDECIDED,
    }
    assert judge(claims)["above"][0] == pytest.approx(4 * 2 / 1000)
