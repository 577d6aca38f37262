"""What numbers from a few runs say: medians with intervals, tasks to a threshold. Plain numbers in and out.

Knows nothing about files, runs or models. What resamples worlds, runs, companies and tasks is `lfo.lab.hierarchy`;
here are numbers of which there is one per run. Their intervals are percentile bootstraps over the runs (Efron and
Tibshirani 1993, chapter 13), as in Agarwal et al. 2021 (arXiv 2108.13264), and not BCa: its acceleration
comes from the jackknife, which is inconsistent for medians and undefined where a value is infinite. With n
runs no interval for a median is wider than from the smallest to the largest value, which covers the true
median with probability 1 - 2**(1 - n): 75% for three runs, 94% for five. One run has no interval (nan).

Tasks to a threshold are right-censored: a run that never arrives is known only to need more than its
budget. Its median is that of the Kaplan-Meier estimate and may lie beyond the budget: infinity.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 9999
ENOUGH = 5  # worlds, or seeds of one: fewer decide no hypothesis, since the signs of n agree in 2**(1 - n) cases


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A statistic of `n` runs with its 95% interval; low and high are nan where n is 1."""

    value: float
    low: float
    high: float
    n: int


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)  # of no run at all


def bootstrap_interval(sample: Sequence, statistic: Callable[..., float]) -> tuple[float, float]:
    """95% percentile interval of `statistic(sample)`; always the same for the same sample.

    Quantiles are values that occurred, so that infinite ones are no obstacle; resamples without a value (nan) are left
    out. A statistic that takes an `axis` is given all resamples at once.
    """
    if len(sample) < 2:
        return np.nan, np.nan
    rng = np.random.default_rng(0)
    with np.errstate(invalid="ignore"), warnings.catch_warnings():  # of scipy's own interval, which is not used
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        draws = stats.bootstrap(
            [np.asarray(sample)], statistic, n_resamples=RESAMPLES, method="percentile", rng=rng
        ).bootstrap_distribution
    draws = draws[~np.isnan(draws)]
    if not len(draws):
        return np.nan, np.nan
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def in_percent(value: float, low: float, high: float) -> str:
    """A share and its interval as text, or what there is of them."""
    if math.isnan(value):
        return ""
    return f"{100 * value:.0f}%" + ("" if math.isnan(low) else f" [{100 * low:.0f}, {100 * high:.0f}]")


def pass_hat_k(successes: Sequence[int], trials: int, k: int) -> float:
    """pass^k: the chance that k episodes of a task all succeed, mean over tasks (tau-bench, arXiv 2406.12045, eq. 1).

    successes: of `trials` episodes of each task.
    """
    return float(np.mean([math.comb(c, k) / math.comb(trials, k) for c in successes]))


def calibration_error(confidence: Sequence[float], right: Sequence[bool]) -> float:
    """Expected calibration error (Guo et al. 2017, arXiv 1706.04599, eq. 3), one bin per value of the confidence.

    Meant for confidences of few possible values, such as shares of k samples. Never 0 by chance: a bin of few
    answers is off even where the model is calibrated.
    """
    confidence, right = np.asarray(confidence, dtype=float), np.asarray(right, dtype=float)
    bins = [confidence == value for value in np.unique(confidence)]
    return float(sum(abs(right[b].mean() - confidence[b].mean()) * b.mean() for b in bins))


# --- over runs -------------------------------------------------------------------------------


def median(values: Sequence[float]) -> Estimate:
    """Median over the runs; `NOTHING` where there is none."""
    if not len(values):
        return NOTHING
    return Estimate(float(np.median(values)), *bootstrap_interval(values, np.median), len(values))


# --- verdicts --------------------------------------------------------------------------------

SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"


def together(verdicts: Sequence[str]) -> str:
    """The verdict on a hypothesis with several parts: one that is refuted refutes it, it takes all to support it."""
    if REFUTED in verdicts:
        return REFUTED
    return SUPPORTED if set(verdicts) == {SUPPORTED} else UNDECIDED


# --- tasks to a threshold --------------------------------------------------------------------

ROUNDING = 1e-9  # what is this close to a threshold is there


def arrival(tasks: Sequence[float], success: Sequence, threshold: float) -> np.ndarray:
    """Sampled tasks until the first of two evaluations in a row at or above the threshold; infinity if there is none.

    tasks: (E,) in order; success: (E,), or (E, ...) for several at once. At the last evaluation alone nobody arrives,
    unless it is the only one. The spacing of evaluations is the resolution.
    """
    above = np.asarray(success, dtype=float) >= threshold - ROUNDING
    stays = above & np.concatenate([above[1:], np.zeros_like(above[:1])]) if len(above) > 1 else above
    first = np.asarray(tasks, dtype=float)[stays.argmax(axis=0)]
    return np.where(stays.any(axis=0), first, math.inf)[()]


@dataclasses.dataclass(frozen=True, order=True)
class Arrival:
    """Sampled tasks until a run reached a threshold; or, where `reached` is False, those it was given in vain."""

    tasks: float
    reached: bool

    @property
    def value(self) -> float:
        """The tasks it took; infinity where that is beyond the budget."""
        return self.tasks if self.reached else np.inf


def tasks_to_threshold(tasks: Sequence[float], success: Sequence[float], threshold: float) -> Arrival:
    """The `arrival` of one run, or its last evaluation, censored."""
    found = float(arrival(tasks, success, threshold))
    return Arrival(found, True) if math.isfinite(found) else Arrival(float(max(tasks)), False)


def kaplan_meier_median(runs: Sequence[Arrival]) -> float:
    """Tasks by which half of the runs arrive (Kaplan and Meier 1958); infinity beyond the budget.

    Where exactly half arrive between two times it is their middle, as for uncensored numbers: half of two is not enough
    if the other never arrives.
    """
    censored = stats.CensoredData.right_censored([r.tasks for r in runs], [not r.reached for r in runs])
    curve = stats.ecdf(censored).sf
    times, alive = np.append(curve.quantiles, np.inf), np.append(curve.probabilities, 0.0)
    reaches, passes = np.argmax(alive < 0.5 + 1e-9), np.argmax(alive < 0.5 - 1e-9)
    return float((times[reaches] + times[passes]) / 2)
