"""statistics: against formulas, published tables and resamplings that can be counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lfo.lab.statistics import (
    NOTHING,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    Arrival,
    arrival,
    bootstrap_interval,
    calibration_error,
    kaplan_meier_median,
    median,
    pass_hat_k,
    tasks_to_threshold,
    together,
)
from lfo.proportions import wilson


def arrivals(*tasks: float, never: tuple = ()) -> list[Arrival]:
    """Runs that arrived after so many tasks, and runs that were given so many in vain."""
    return [Arrival(t, True) for t in tasks] + [Arrival(t, False) for t in never]


# --- proportions -----------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (5, 10), (10, 10), (81, 263)])
def test_wilson_by_its_formula(hits, n):
    z, p = 1.959964, hits / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert wilson(hits, n) == pytest.approx((middle - half, middle + half), abs=1e-6)


def test_wilson_against_published_values():
    """Newcombe 1998, Statistics in Medicine 17:857, table I, method 3."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)


def test_calibration_error_by_hand():
    """Confidence 1: one of two right, off by 0.5. Confidence 0.25: one of four right, off by nothing."""
    confidence, right = [1, 1, 0.25, 0.25, 0.25, 0.25], [1, 0, 0, 1, 0, 0]
    assert calibration_error(confidence, right) == pytest.approx(2 / 6 * 0.5)
    assert calibration_error([0.5, 0.5], [True, False]) == 0
    assert calibration_error([0.75], [False]) == 0.75


# --- over runs -------------------------------------------------------------------------------


def test_median_of_few_runs_spans_them_all():
    """Of 5 seeds the smallest is the resampled median in 5.8% of the cases (three draws or more): over 2.5%."""
    one = median([0.5, 0.1, 0.9, 0.3, 0.7])
    assert (one.value, one.low, one.high, one.n) == (0.5, 0.1, 0.9, 5)
    assert median([0.5, 0.1, 0.9, 0.3, 0.7]) == one  # drawn anew, and the same


def test_median_of_many_runs_is_narrower():
    many = median([i / 20 for i in range(21)])
    assert many.value == 0.5 and 0 < many.low < 0.5 < many.high < 1


def test_one_run_has_no_interval():
    one = median([0.4])
    assert (one.value, one.n) == (0.4, 1) and math.isnan(one.low) and math.isnan(one.high)
    assert median([]) == NOTHING


def test_resamples_without_a_value_are_left_out():
    """Both drawn alike: no value. Otherwise always 2."""
    assert bootstrap_interval([1, 3], lambda x: math.nan if x[0] == x[1] else x.mean()) == (2, 2)
    assert all(map(math.isnan, bootstrap_interval([1, 3], lambda x: math.nan)))


def test_parts_make_a_whole():
    assert together([SUPPORTED, SUPPORTED]) == SUPPORTED
    assert together([SUPPORTED, UNDECIDED]) == UNDECIDED
    assert together([SUPPORTED, UNDECIDED, REFUTED]) == REFUTED


# --- tasks to a threshold --------------------------------------------------------------------


def test_tasks_to_threshold_are_the_first_of_two_in_a_row():
    tasks, success = [0, 40, 80, 120], [0.1, 0.7, 0.5, 0.9]
    assert tasks_to_threshold(tasks, success, 0.5) == Arrival(40, True)
    assert tasks_to_threshold(tasks, [0.1, 0.7, 0.5, 0.9][::-1], 0.5) == Arrival(0, True)
    assert tasks_to_threshold(tasks, success, 0.7) == Arrival(120, False)  # 0.7 at 40 was not followed by another
    assert tasks_to_threshold(tasks, success, 0.9) == Arrival(120, False)  # nor is the last one
    assert tasks_to_threshold([8], [0.9], 0.9) == Arrival(8, True)  # all that there is
    assert tasks_to_threshold(tasks, success, 0.95) == Arrival(120, False)  # censored at what it was given
    assert tasks_to_threshold(tasks, success, 0.0) == Arrival(0, True)
    assert Arrival(120, False).value == math.inf and Arrival(120, True).value == 120


def test_arrivals_of_many_resamples_at_once():
    """A column per resample: at once, from 40 on, once and no more, never; and what is there but for rounding."""
    success = np.array([[0.8, 0.1, 0.1, 0.1], [0.8, 0.8, 0.8, 0.1], [0.1, 0.8, 0.1, 0.1]])
    assert arrival([0, 40, 80], success, 0.7).tolist() == [0, 40, math.inf, math.inf]
    assert arrival([0, 40, 80], [0.0, 0.1 + 0.2, 0.3 - 1e-12], 0.3) == 40


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (arrivals(40, 80, 200), 80),
        (arrivals(40, 80), 60),  # as for any numbers
        (arrivals(40, never=(400,)), math.inf),  # half of two is not enough
        (arrivals(40, 80, never=(400,)), 80),
        (arrivals(never=(400, 400)), math.inf),
        (arrivals(400, never=(400,)), math.inf),  # arriving at the last moment is not the same as never
        (arrivals(400, 400, never=(400,)), 400),
        # Stopped at 50, before anyone arrived, it says nothing about later: 100 is the middle of the other three.
        (arrivals(80, 100, never=(50, 300)), 100),
        # Survival 4/5 at 10; then 4/5 * 2/3 = 8/15 at 30 (one left at 20), 8/15 * 1/2 at 40.
        (arrivals(10, 30, 40, never=(20, 60)), 40),
    ],
)
def test_kaplan_meier_median_by_hand(runs, expected):
    assert kaplan_meier_median(runs) == kaplan_meier_median(runs[::-1]) == expected


def test_kaplan_meier_on_the_leukaemia_trial():
    """Freireich et al. 1963, as tabulated in every textbook: median remission 23 weeks on 6-MP, 8 on placebo."""
    treated = arrivals(6, 6, 6, 7, 10, 13, 16, 22, 23, never=(6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35))
    placebo = arrivals(1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23)
    assert (kaplan_meier_median(treated), kaplan_meier_median(placebo)) == (23, 8)


def test_pass_hat_k_by_hand():
    """4, 2 and 0 successes of 4: two of four drawn are all successes in 1, 1/6 and 0 of the cases."""
    assert pass_hat_k([4, 2, 0], trials=4, k=1) == pytest.approx((1 + 1 / 2) / 3)
    assert pass_hat_k([4, 2, 0], trials=4, k=2) == pytest.approx((1 + 1 / 6) / 3)
    assert pass_hat_k([4, 2, 0], trials=4, k=4) == pytest.approx(1 / 3)
