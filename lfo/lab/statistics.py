"""What numbers from a few seeds say: medians, ratios and correlations with intervals. Plain numbers in and out.

Knows nothing about files, runs or models. Intervals over seeds are percentile bootstraps (Efron and
Tibshirani 1993, chapter 13), as in Agarwal et al. 2021 (arXiv 2108.13264), and not BCa: its acceleration
comes from the jackknife, which is inconsistent for medians and undefined where a value is infinite. With n
seeds no interval for a median is wider than from the smallest to the largest value, which covers the true
median with probability 1 - 2**(1 - n): 75% for three seeds, 94% for five. One seed has no interval (nan).

Tasks to a threshold are right-censored: a run that never arrives is known only to need more than its
budget. Its median is that of the Kaplan-Meier estimate and may lie beyond the budget: infinity.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 9999
ENOUGH_RUNS = 5  # fewer than these decide no hypothesis


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A statistic of `n` seeds (pairs, runs) with its 95% interval; low and high are nan where n is 1."""

    value: float
    low: float
    high: float
    n: int


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)  # of no seed at all


def bootstrap_interval(
    samples: Sequence[Sequence], statistic: Callable[..., float], paired: bool = False
) -> tuple[float, float]:
    """95% percentile interval of `statistic(*samples)`; always the same for the same samples.

    Unpaired samples are resampled independently of each other (stratified). Quantiles are values that
    occurred, so that infinite ones are no obstacle; resamples without a value (nan) are left out. A
    statistic that takes an `axis` is given all resamples at once.
    """
    arrays = [np.asarray(sample) for sample in samples]
    if min(map(len, arrays)) < 2:
        return np.nan, np.nan
    rng = np.random.default_rng(0)
    with np.errstate(invalid="ignore"), warnings.catch_warnings():  # of scipy's own interval, which is not used
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        draws = stats.bootstrap(
            arrays, statistic, paired=paired, n_resamples=RESAMPLES, method="percentile", rng=rng
        ).bootstrap_distribution
    draws = draws[~np.isnan(draws)]
    if not len(draws):
        return np.nan, np.nan
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


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


# --- over seeds ------------------------------------------------------------------------------


def median(values: Sequence[float]) -> Estimate:
    """Median over the seeds; `NOTHING` where there is none."""
    if not len(values):
        return NOTHING
    return Estimate(float(np.median(values)), *bootstrap_interval([values], np.median), len(values))


def interquartile_mean(strata: Sequence[Sequence[float]]) -> Estimate:
    """Mean of the middle half of all scores (arXiv 2108.13264, section 4.3); `n`: seeds of the smallest stratum.

    strata: the seeds' scores, one sequence per kind of task (level, split), each resampled by itself.
    """

    def middle(*parts, axis=-1):
        return stats.trim_mean(np.concatenate(parts, axis), 0.25, axis)

    return Estimate(float(middle(*strata)), *bootstrap_interval(strata, middle), min(map(len, strata)))


def paired_difference(ours: Mapping[Hashable, float], baseline: Mapping[Hashable, float]) -> Estimate:
    """Median of ours - baseline over the seeds that both have: the same seed is the same stream of tasks.

    Raises:
        ValueError: no seed is common to both.
    """
    common = [seed for seed in ours if seed in baseline]
    if not common:
        raise ValueError("the two arms have no seed in common; train both with the same seeds to pair them.")
    return median([ours[seed] - baseline[seed] for seed in common])


def spearman(x: Sequence[float], y: Sequence[float], runs: Sequence[Hashable]) -> Estimate:
    """Spearman's rank correlation of points (x, y); nan where one of them never varies.

    runs: the run of each point. Points of one run depend on each other, so whole runs are resampled.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    members = [np.flatnonzero([r == run for r in runs]) for run in dict.fromkeys(runs)]

    def correlation(chosen) -> float:
        index = np.concatenate([members[int(i)] for i in chosen])
        if len(set(x[index])) < 2 or len(set(y[index])) < 2:
            return np.nan
        return float(np.corrcoef(stats.rankdata(x[index]), stats.rankdata(y[index]))[0, 1])

    everything = np.arange(len(members))
    return Estimate(correlation(everything), *bootstrap_interval([everything], correlation), len(members))


# --- verdicts --------------------------------------------------------------------------------

SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"


def verdict(estimate: Estimate | Speedup, bar: float = 0.0) -> str:
    """What the interval says about a hypothesis that predicts a value above `bar`: all of it must lie on one side."""
    return decided(estimate, supported=estimate.low > bar, refuted=estimate.high < bar)


def decided(estimate: Estimate | Speedup, supported: bool, refuted: bool, enough: int = ENOUGH_RUNS) -> str:
    """The verdict on a hypothesis for which `estimate` speaks, or speaks against it.

    Fewer than `enough` runs decide nothing, since their interval is too narrow: the signs of n runs all agree by
    chance with probability 2**(1 - n), 1 in 4 for three runs and 1 in 16 for five.
    """
    if estimate.n < enough:
        return UNDECIDED
    return SUPPORTED if supported else REFUTED if refuted else UNDECIDED


def together(verdicts: Sequence[str]) -> str:
    """The verdict on a hypothesis with several parts: one that is refuted refutes it, it takes all to support it."""
    if REFUTED in verdicts:
        return REFUTED
    return SUPPORTED if set(verdicts) == {SUPPORTED} else UNDECIDED


# --- tasks to a threshold --------------------------------------------------------------------


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
    """The first evaluation of one run with success >= threshold, or its last evaluation, censored.

    tasks: sampled tasks at each evaluation, dropped ones included; the spacing of evaluations is the resolution.
    """
    reached = [t for t, s in zip(tasks, success, strict=True) if s >= threshold]
    return Arrival(float(min(reached)), True) if reached else Arrival(float(max(tasks)), False)


def kaplan_meier_median(runs: Sequence[Arrival]) -> float:
    """Tasks by which half of the runs arrive (Kaplan and Meier 1958); infinity beyond the budget.

    Where exactly half arrive between two times it is their middle, as for uncensored numbers: half of two is not enough
    if the other never arrives.
    """
    return _kaplan_meier_median(tuple(sorted(runs)))


@functools.lru_cache(maxsize=2**16)  # few seeds have few different resamples
def _kaplan_meier_median(runs: tuple[Arrival, ...]) -> float:
    censored = stats.CensoredData.right_censored([r.tasks for r in runs], [not r.reached for r in runs])
    curve = stats.ecdf(censored).sf
    times, alive = np.append(curve.quantiles, np.inf), np.append(curve.probabilities, 0.0)
    reaches, passes = np.argmax(alive < 0.5 + 1e-9), np.argmax(alive < 0.5 - 1e-9)
    return float((times[reaches] + times[passes]) / 2)


def median_tasks(runs: Sequence[Arrival]) -> Estimate:
    """Kaplan-Meier median with its interval; infinite entries lie beyond the budget."""
    seeds = np.arange(len(runs))
    interval = bootstrap_interval([seeds], lambda chosen: kaplan_meier_median([runs[i] for i in chosen]))
    return Estimate(kaplan_meier_median(runs), *interval, len(runs))


@dataclasses.dataclass(frozen=True)
class Speedup:
    """How many times fewer tasks: baseline median / our median, over `n` seeds (of the arm that has fewer).

    value: infinite where the baseline never arrives, 0 where we do not, nan where neither does.
    at_least: the same with every run of the baseline that never arrives put at its budget - a lower bound.
    low, high: 95% interval. A median that lies beyond a budget stretches it: down to `at_least` of that
    resample, or up to what our own budget allows. "At least k-fold" is claimed from `low`.
    """

    value: float
    at_least: float
    low: float
    high: float
    n: int


def speedup(baseline: Sequence[Arrival], ours: Sequence[Arrival]) -> Speedup:
    """Ratio of tasks to a threshold; the seeds of the two arms are resampled independently."""

    def bounds(chosen_baseline, chosen_ours) -> tuple[float, float]:
        slow, least_slow = _median_and_floor([baseline[i] for i in chosen_baseline])
        fast, least_fast = _median_and_floor([ours[i] for i in chosen_ours])
        return _ratio(least_slow, fast), _ratio(slow, least_fast)

    seeds = np.arange(len(baseline)), np.arange(len(ours))
    low, _ = bootstrap_interval(seeds, lambda a, b: bounds(a, b)[0])
    _, high = bootstrap_interval(seeds, lambda a, b: bounds(a, b)[1])
    value = _ratio(kaplan_meier_median(baseline), kaplan_meier_median(ours))
    return Speedup(value, bounds(*seeds)[0], low, high, min(map(len, seeds)))


def _median_and_floor(runs: Sequence[Arrival]) -> tuple[float, float]:
    """Median tasks, and what they are at least: where the median lies beyond the budget, that of the tasks given."""
    middle = kaplan_meier_median(runs)
    return middle, middle if np.isfinite(middle) else float(np.median([r.tasks for r in runs]))


def _ratio(numerator: float, denominator: float) -> float:
    """numerator / denominator, nan for inf / inf and 0 / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.float64(numerator) / denominator)
