"""hierarchy: curves of runs in several worlds, nested resampling, one rule for intervals and verdicts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lfo.config import as_dict, load_config
from lfo.lab import hierarchy
from lfo.lab.hierarchy import Curve, Finding, Study, area, final, holm, judge, lead, middle, reach, times
from lfo.lab.statistics import REFUTED, SUPPORTED, UNDECIDED


def curve(arm: str, *successes: str, world: int = 1, seed: int = 0, companies: str = "aabb") -> Curve:
    """One evaluation per text of digits, 40 sampled tasks apart."""
    shares = np.array([[int(digit) for digit in text] for text in successes], dtype=float)
    return Curve(arm, world, seed, 40.0 * np.arange(len(successes)), shares, tuple(companies))


# --- reading ---------------------------------------------------------------------------------


def test_outcomes_are_read_task_by_task(tmp_path):
    folder = tmp_path / "world3-seed7"
    folder.mkdir()
    config = load_config("configs/smoke.yaml", seed=7, eval_tasks=2, eval_episodes=2, **{"env.world_seed": 3})
    (folder / "config.json").write_text(json.dumps(as_dict(config)))
    rows = [{"kind": "outcomes", "split": "test", "tasks": t, "successes": s} for t, s in ((0, "0001"), (8, "1011"))]
    rows.append({"kind": "outcomes", "split": "validation", "tasks": 0, "successes": "1111"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = hierarchy.read_curves({"ours": [folder]}, "test")
    assert (found.arm, found.world, found.seed) == ("ours", 3, 7)
    assert found.tasks.tolist() == [0, 8] and found.successes.tolist() == [[0, 0.5], [0.5, 1]]
    assert found.companies == hierarchy.companies_of(config.env, "test")[:2]
    assert hierarchy.read_curves({"ours": [folder]}, "train") == []


# --- one run ---------------------------------------------------------------------------------


def test_measures_by_hand():
    tasks, success = np.array([0.0, 40, 80, 120]), np.array([0.0, 0.8, 0.6, 1.0])
    assert final(tasks, success) == 1
    assert area(tasks, success) == pytest.approx((0.4 + 0.7 + 0.8) / 3)
    assert reach(0.7)(tasks, success) == 120  # 0.8 was not followed by another; nothing follows the last
    assert reach(0.6)(tasks, success) == 40
    assert reach(1.1)(tasks, success) == math.inf
    assert area(tasks[:1], success[1:2]) == 0.8


def test_shares_of_what_another_arm_reaches():
    curves = [curve("truth", "0000", "1100"), curve("ours", "0000", "1000"), curve("ours", "1111", world=2)]
    relative = hierarchy.relative_to(curves, "truth")
    assert [c.arm for c in relative] == ["truth", "ours"]  # nobody was told the truth in world 2
    assert Study(relative).values(final) == {"truth": [1.0], "ours": [0.5]}


# --- resampling ------------------------------------------------------------------------------


def test_what_never_varies_has_no_width():
    curves = [curve("ours", "1111", world=w, seed=s) for w in (1, 2) for s in (0, 1)]
    found = Study(curves, 50).find(final, middle("ours"), ["ours"])
    assert (found.value, found.low, found.high, found.runs) == (1, 1, 1, 4)


def test_tasks_of_a_company_stay_together():
    """Two companies, one always and one never served: a draw has both, one twice or the other twice."""
    drawn = [found["ours"][0] for found in Study([curve("ours", "1100")], 400).draws(final)]
    assert set(drawn) == {0, 0.5, 1}
    assert 0.15 < drawn.count(1) / 400 < 0.35


def test_arms_share_worlds_companies_and_tasks():
    """An arm that is better by one task of every company is better in every draw, however the tasks fall."""
    low = [curve("low", "1000", world=w, companies="abcd") for w in (1, 2)]
    same = [curve("same", "1000", world=w, companies="abcd") for w in (1, 2)]
    found = Study(low + same, 50).find(final, lead("same", "low"), ["same", "low"])
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_worlds_are_resampled_as_a_whole():
    curves = [curve("ours", "1111", world=1), curve("ours", "0000", world=2)]
    means = [np.mean(found["ours"]) for found in Study(curves, 400).draws(final)]
    assert set(means) == {0, 0.5, 1}


def test_draws_are_always_the_same():
    curves = [curve("ours", "1010", "1100", world=w, seed=s) for w in (1, 2) for s in (0, 1)]
    assert list(Study(curves, 20).draws(area)) == list(Study(curves, 20).draws(area))


def test_an_arm_that_was_not_run_has_no_runs():
    found = Study([curve("ours", "1111")], 9).find(final, lead("ours", "theirs"), ["ours", "theirs"])
    assert found.runs == 0 and math.isnan(found.value) and judge({"better": (found, 0)})["better"] == (1, UNDECIDED)


def test_how_many_times_fewer_tasks():
    ratio = times("ours", "theirs", given=800)
    assert ratio({"ours": [40, 80, 120], "theirs": [400, 800, math.inf]}) == 10
    assert ratio({"ours": [40], "theirs": [math.inf]}) == 20  # at least: it was given 800
    assert ratio({"ours": [math.inf], "theirs": [400]}) == 0
    assert math.isnan(ratio({"ours": [math.inf], "theirs": [math.inf]}))
    assert math.isnan(ratio({"ours": [0], "theirs": [40]}))


# --- verdicts --------------------------------------------------------------------------------


def test_p_values_count_draws_on_the_wrong_side():
    drawn = np.array([0.2] * 97 + [-0.1, 0.0, math.nan])
    assert hierarchy.p_above(Finding(0.2, 0, 0, 5, drawn), 0.0) == pytest.approx(2 * 4 / 101)
    assert hierarchy.p_above(Finding(0.2, 0, 0, 5, np.zeros(9)), 0.0) == 1


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []


def test_verdicts_need_runs_and_one_side():
    sure = np.full(999, 0.5)
    claims = {
        "above": (Finding(0.5, 0, 0, 5, sure), 0.1),
        "below": (Finding(0.5, 0, 0, 5, sure), 0.9),
        "few runs": (Finding(0.5, 0, 0, 4, sure), 0.1),
        "both sides": (Finding(0.5, 0, 0, 5, np.arange(999) / 999), 0.4),
    }
    assert {claim: found for claim, (_, found) in judge(claims).items()} == {
        "above": SUPPORTED,
        "below": REFUTED,
        "few runs": UNDECIDED,
        "both sides": UNDECIDED,
    }
    assert judge(claims)["above"][0] == pytest.approx(4 * 2 / 1000)
