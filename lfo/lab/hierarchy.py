"""Curves of runs in several worlds, and what can be said of them: one rule for every interval and every verdict.

A run is evaluated on the same tasks again and again; tasks belong to companies, companies to worlds, and every world
has runs of several seeds. What is measured of all that is resampled as it is nested (hierarchical bootstrap, Davison
and Hinkley 1997, section 3.8; for RL: Agarwal et al. 2021, arXiv 2108.13264): worlds, then a world's runs, its
companies, and their tasks. All arms of a draw have the worlds, companies and tasks in common, so that differences and
ratios are paired. Reads run folders alone.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from lfo.config import EnvConfig, derive_seed
from lfo.envs import make_environment
from lfo.lab.reading import Runs, by_run, spending
from lfo.lab.statistics import CONFIDENCE, ENOUGH, REFUTED, SUPPORTED, UNDECIDED, arrival
from lfo.runs import RunFolder
from lfo.types import Task

# The field of a task that says whose hidden rule it is about, world by world; elsewhere each task is by itself.
BELONGS = {"phone": "company_id", "shell": "unit", "twc": "thing"}
VALUED = 0.95  # of the draws that must have a value, or there is no interval
DRAWS = 10_000  # the smallest p-value is 2 in so many: few enough for Holm over a table of two hundred claims


@dataclasses.dataclass(frozen=True)
class Curve:
    """The evaluations of one run on one split.

    tasks: (E,) sampled tasks at each, or what else it had cost by then. successes: (E, T) of each task, the mean of its
    episodes. companies: (T,). reference: (T,) what success is a share of; None: success itself.
    """

    arm: str
    world: int
    seed: int
    tasks: np.ndarray
    successes: np.ndarray
    companies: tuple[str, ...]
    reference: np.ndarray | None = None

    def at(self, companies: Collection[str]) -> Curve:
        """The same of the tasks at these companies alone."""
        return self.of([i for i, company in enumerate(self.companies) if company in companies])

    def of(self, chosen: Sequence[int]) -> Curve:
        """The same of these tasks alone, by where they stand."""
        reference = None if self.reference is None else self.reference[chosen]
        owners = tuple(self.companies[i] for i in chosen)
        return dataclasses.replace(self, successes=self.successes[:, chosen], companies=owners, reference=reference)

    def success(self, weights: np.ndarray) -> np.ndarray:
        """(E, D): at every evaluation, over tasks that count so often (T, D), as a share where there is a reference.

        nan where nothing is reached that it could be a share of.
        """
        reached = self.successes @ weights
        if self.reference is None:
            return reached / weights.sum(axis=0)
        whole = self.reference @ weights
        return reached / np.where(whole > 0, whole, math.nan)


def read_curves(
    runs: Runs,
    split: str,
    levels: Sequence[int] | None = None,
    against: str = "tasks",
    by: str | None = None,
    kind: str = "outcomes",
) -> list[Curve]:
    """The curves of all runs, on tasks of these levels (None: all); a run without outcomes of this kind is left out.

    against: what an evaluation's place on a curve is counted in, see `lfo.lab.reading.spending`. by: the field of a
    task that says to what company it belongs, or to whatever else has a hidden rule of its own (None: that of its
    world in BELONGS); tasks in which it is empty are left out.
    """
    curves = []
    for arm, folders in runs.items():
        for folder in map(RunFolder, folders):
            spent = [(s, r) for s, r in spending(folder, against) if r["kind"] == kind and r["split"] == split]
            rows = [row for _, row in spent]
            c = folder.config
            tasks = tasks_of(c.env, split)[: c.eval_tasks] if rows else ()
            owners = [getattr(task, by or BELONGS.get(c.env.name, "task_id")) for task in tasks]
            belong = [i for i, owner in enumerate(owners) if owner]
            chosen = [i for i in belong if levels is None or tasks[i].level in levels]
            if chosen:
                found = np.array([[int(digit) for digit in row["successes"]] for row in rows], dtype=float)
                successes = found.reshape(len(rows), len(tasks), c.eval_episodes).mean(axis=2)[:, chosen]
                where = np.array([cost for cost, _ in spent])
                companies = tuple(owners[i] for i in chosen)
                curves.append(Curve(arm, c.env.world_seed, c.seed, where, successes, companies))
    return curves


@functools.cache
def tasks_of(env: EnvConfig, split: str) -> tuple[Task, ...]:
    """The tasks of a split, in data order."""
    return tuple(make_environment(env).tasks(split))


def curves_of(rows: pd.DataFrame, numbers: Sequence[str]) -> list[Curve]:
    """What was measured episode by episode as curves of one run each, with some numbers in the place of evaluations.

    rows: with arm, world, seed, task_id and company_id; a task has the means of its rows.
    """
    curves = []
    for arm, part in rows.groupby("arm", sort=False):
        for (world, seed), run in by_run(part):
            tasks = run.groupby("task_id", sort=False)
            means, companies = tasks[list(numbers)].mean(), tasks["company_id"].first()
            places = np.arange(len(numbers), dtype=float)
            curves.append(Curve(arm, world, seed, places, means.to_numpy(float).T, tuple(companies)))
    return curves


def relative_to(curves: Sequence[Curve], arm: str) -> list[Curve]:
    """The curves as shares of what an arm's runs reach in the end, on average, in the same world: resampled with them.

    Worlds in which they reach nothing are left out, and runs that were evaluated on other tasks.
    """
    ends: dict[tuple, list[np.ndarray]] = defaultdict(list)
    for curve in curves:
        if curve.arm == arm:
            ends[curve.world, curve.companies].append(curve.successes[-1])
    whole = {there: np.mean(reached, axis=0) for there, reached in ends.items() if np.any(reached)}
    there = ((curve, whole.get((curve.world, curve.companies))) for curve in curves)
    return [dataclasses.replace(curve, reference=most) for curve, most in there if most is not None]


# --- one run ---------------------------------------------------------------------------------

# Of sampled tasks (E,) and success (E,), or (E, D) for D resamples at once.
Measure = Callable[[np.ndarray, np.ndarray], np.ndarray]


def final(tasks: np.ndarray, success: np.ndarray) -> np.ndarray:
    """Success at the last evaluation."""
    return success[-1]


def area(tasks: np.ndarray, success: np.ndarray) -> np.ndarray:
    """Mean success over the sampled tasks: the area under the curve, divided by its length."""
    return np.trapezoid(success, tasks, axis=0) / (tasks[-1] - tasks[0]) if len(tasks) > 1 else success[0]


@functools.cache  # the same function every time, by which `Study` knows what it has measured
def area_until(end: float) -> Measure:
    """`area` over the first `end` sampled tasks: areas over other spans do not compare.

    Between two evaluations success is taken to lie on the line through them, as the area does.
    """

    def measure(tasks: np.ndarray, success: np.ndarray) -> np.ndarray:
        kept = int(np.searchsorted(tasks, end, side="right"))
        if kept == len(tasks) or tasks[kept - 1] == end:
            return area(tasks[:kept], success[:kept])
        along = (end - tasks[kept - 1]) / (tasks[kept] - tasks[kept - 1])
        last = success[kept - 1] + along * (success[kept] - success[kept - 1])
        return area(np.append(tasks[:kept], end), np.concatenate([success[:kept], last[None]]))

    return measure


def at(place: float) -> Measure:
    """Success after so many sampled tasks, or whatever else the curves are against: on the line through the evaluations
    before and after, or at the end."""

    def measure(tasks: np.ndarray, success: np.ndarray) -> np.ndarray:
        after = min(int(np.searchsorted(tasks, place)), len(tasks) - 1)
        before = max(after - 1, 0)
        along = min(max(place - tasks[before], 0) / (tasks[after] - tasks[before] or 1), 1)
        return success[before] + along * (success[after] - success[before])

    return measure


def shared_area(study: Study, arms: Sequence[str]) -> Measure:
    """`area` over the tasks that all runs of these arms were given in the worlds that they have in common."""
    given = (float(curve.tasks[-1]) for curve in study.common(arms).curves if curve.arm in arms)
    return area_until(min(given, default=math.inf))


def reach(threshold: float) -> Measure:
    """Sampled tasks to a threshold, see `lfo.lab.statistics.arrival`."""
    return lambda tasks, success: arrival(tasks, success, threshold)


def number(place: int) -> Measure:
    """One of the numbers of `curves_of`."""
    return lambda _, numbers: numbers[place]


# --- resampling ------------------------------------------------------------------------------

Values = Mapping[str, np.ndarray | Sequence[float]]  # arm -> the measure of its runs, along the last axis
Statistic = Callable[[Values], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A statistic of some arms: its value, its 95% interval, the runs of the smallest arm, and what else verdicts ask.

    drawn: the statistic of every draw, nan where it has no value. parts: the statistic of each world by itself, or
    where there is one world, of each seed that all of the arms have. most, parts_most: the most that each draw and each
    part may be, where these are but the least.
    """

    value: float
    low: float
    high: float
    runs: int
    drawn: np.ndarray = dataclasses.field(repr=False, compare=False)
    parts: Sequence[float] = dataclasses.field(default=(), repr=False, compare=False)
    most: np.ndarray | None = dataclasses.field(default=None, repr=False, compare=False)
    parts_most: Sequence[float] | None = dataclasses.field(default=None, repr=False, compare=False)


class Study:
    """Curves of several arms on one split, and resamples of them, which are always the same for the same curves."""

    def __init__(self, curves: Sequence[Curve], count: int = DRAWS):
        self.curves, self.count = list(curves), count
        self._measured: dict[tuple[str, Measure], np.ndarray] = {}

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(curve.arm for curve in self.curves))

    def values(self, measure: Measure) -> dict[str, list[float]]:
        """The measure of every run, by arm, in the order of the curves."""
        found: dict[str, list[float]] = defaultdict(list)
        for curve in self.curves:
            everything = curve.success(np.ones((len(curve.companies), 1)))
            found[curve.arm].append(float(measure(curve.tasks, everything[:, 0])))
        return dict(found)

    def draws(self, measure: Measure, arms: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """`values` of resampled worlds, runs, companies and tasks: by arm, a draw per row; nan is no run."""
        for arm in arms or self.arms:
            if (arm, measure) not in self._measured:
                self._measured[arm, measure] = self._measure(arm, measure)
        return {arm: self._measured[arm, measure] for arm in arms or self.arms}

    def find(self, measure: Measure, statistic: Statistic, arms: Sequence[str]) -> Finding:
        """`statistic` of the values of these arms in the worlds that they have in common, with the interval of its
        draws; none (nan) where more than a few draws have no value."""
        study = self.common(arms)
        if not study.curves:
            return Finding(math.nan, math.nan, math.nan, 0, np.full(self.count, math.nan))
        found, drawn = study.values(measure), np.asarray(statistic(study.draws(measure, arms)), dtype=float)
        runs, parts = min(len(found[arm]) for arm in arms), study.parts(measure, statistic, arms)
        return Finding(float(statistic(found)), *_interval(drawn), runs, drawn, parts)

    def parts(self, measure: Measure, statistic: Statistic, arms: Sequence[str]) -> list[float]:
        """`statistic` of the runs of each world in which these arms were run; where that is one, of each seed."""
        chosen = [curve for curve in self.common(arms).curves if curve.arm in arms]
        unit = "world" if len({curve.world for curve in chosen}) > 1 else "seed"
        groups: dict[int, list[Curve]] = defaultdict(list)
        for curve in chosen:
            groups[getattr(curve, unit)].append(curve)
        studies = (Study(group) for group in groups.values() if {curve.arm for curve in group} == set(arms))
        return [float(statistic(study.values(measure))) for study in studies]

    def common(self, arms: Sequence[str]) -> Study:
        """The study of the worlds in which all of these arms were run."""
        worlds = [{curve.world for curve in self.curves if curve.arm == arm} for arm in arms]
        common = set.intersection(*worlds)
        if common == {curve.world for curve in self.curves}:
            return self
        return Study([curve for curve in self.curves if curve.world in common and curve.arm in arms], self.count)

    @functools.cached_property
    def _worlds(self) -> np.ndarray:
        """(draws, worlds): the worlds of every draw."""
        worlds = sorted({curve.world for curve in self.curves})
        return np.random.default_rng(0).choice(worlds, (self.count, len(worlds)))

    def _measure(self, arm: str, measure: Measure) -> np.ndarray:
        """(draws, runs): the measure of an arm's resampled runs; nan fills up where other worlds have more."""
        runs: dict[int, list[Curve]] = defaultdict(list)
        for curve in self.curves:
            if curve.arm == arm:
                runs[curve.world].append(curve)
        found = np.full((*self._worlds.shape, max(map(len, runs.values()))), math.nan)
        for world, curves in runs.items():
            values = np.array([self._resampled(curve, measure) for curve in curves])
            drawn, rng = values.shape[1], np.random.default_rng(derive_seed("runs", arm, world))
            picked = rng.integers(len(curves), size=(drawn, len(curves)))
            found[self._worlds == world, : len(curves)] = values[picked, np.arange(drawn)[:, None]]
        return found.reshape(self.count, -1)

    def _resampled(self, curve: Curve, measure: Measure) -> np.ndarray:
        """The measure of one run, for every time that its world was drawn."""
        weights = _resampled_tasks(curve.world, curve.companies, int((self._worlds == curve.world).sum()))
        success = curve.success(weights.astype(float))
        return np.where(np.isnan(success).any(axis=0), math.nan, measure(curve.tasks, success))


def _interval(drawn: np.ndarray) -> tuple[float, float]:
    """Of the draws that have a value, where all but a few do."""
    real, tail = drawn[~np.isnan(drawn)], (1 - CONFIDENCE) / 2
    if len(real) < VALUED * len(drawn):
        return math.nan, math.nan
    low, high = np.quantile(real, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


@functools.lru_cache(maxsize=256)  # tables ask for the same again and again
def _resampled_tasks(world: int, companies: tuple[str, ...], count: int) -> np.ndarray:
    """(T, count): how often each task of a world is drawn. As many companies as there are are drawn with replacement,
    and of each, every time, as many tasks as it has."""
    rng, members = np.random.default_rng(derive_seed("tasks", world)), defaultdict[str, list[int]](list)
    for index, company in enumerate(companies):
        members[company].append(index)
    drawn = np.empty((len(companies), count), np.uint16)  # counts are small, and many are kept
    picked = rng.multinomial(len(members), np.full(len(members), 1 / len(members)), size=count)
    for often, group in zip(picked.T, members.values(), strict=True):
        drawn[group] = rng.multinomial(often * len(group), np.full(len(group), 1 / len(group))).T
    drawn.setflags(write=False)  # whoever asks again gets the same array
    return drawn


def correlate(x: Sequence[float], y: Sequence[float], runs: Sequence[tuple[int, int]]) -> Finding:
    """Spearman's rank correlation of points (x, y), nan where one of them never varies.

    runs: world and seed of each point. Worlds are resampled, and of each its runs, every time with all of their points.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    worlds: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, (world, seed) in enumerate(runs):
        worlds[world][seed].append(index)
    rng, nested = np.random.default_rng(0), [[*seeds.values()] for seeds in worlds.values()]

    def draw() -> list[int]:
        picked = [nested[i] for i in rng.integers(len(nested), size=len(nested))]
        return [point for some in picked for i in rng.integers(len(some), size=len(some)) for point in some[i]]

    groups = [[*itertools.chain(*some)] for some in nested] if len(nested) > 1 else [*itertools.chain(*nested)]
    drawn = _ranked(x, y, [draw() for _ in range(DRAWS)])
    (found,), count = _ranked(x, y, [[*range(len(x))]]), sum(map(len, nested))
    return Finding(float(found), *_interval(drawn), count, drawn, _ranked(x, y, groups).tolist())


def _ranked(x: np.ndarray, y: np.ndarray, choices: Sequence[Sequence[int]]) -> np.ndarray:
    """Spearman's correlation of each choice of points, those of one length at once."""
    found, lengths = np.full(len(choices), math.nan), np.array([len(chosen) for chosen in choices])
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        chosen = np.array([choices[row] for row in rows], dtype=int)
        a, b = (stats.rankdata(some[chosen], axis=1) - (length + 1) / 2 for some in (x, y))
        spread = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
        found[rows] = (a * b).sum(axis=1) / np.where(spread > 0, spread, math.nan)
    return found


def middle(arm: str) -> Statistic:
    """The median of an arm's runs."""
    return lambda found: _median(found[arm])


def lead(arm: str, other: str) -> Statistic:
    """How much the median of an arm is above that of another."""
    return lambda found: _median(found[arm]) - _median(found[other])


def times(arm: str, other: str, given: float, mine_given: float = math.inf, neither: float = math.nan) -> Statistic:
    """How many times the median of an arm the median of another is.

    A run of the other that never arrives counts as the tasks that it was `given`, for a lower bound; one of the arm as
    `mine_given`, for an upper bound, where the other's counts as infinity. neither: where the medians of both never
    arrive. nan where the arm was there from the start.
    """

    def ratio(found: Values) -> np.ndarray:
        never = np.isinf(_median(found[arm])) & np.isinf(_median(found[other]))
        mine, theirs = (
            _median(np.where(np.isinf(found[name]), budget, found[name]))
            for name, budget in ((arm, mine_given), (other, given))
        )
        with np.errstate(divide="ignore", invalid="ignore"):  # of what was given nothing
            return np.where(never, neither, np.where(mine == 0, math.nan, theirs / mine))

    return ratio


def times_fewer(study: Study, measure: Measure, arm: str, other: str) -> Finding:
    """`times`, with the least that a run of the other was given in the worlds that both have, and between which bounds
    it and its parts lie."""
    arms, given = (arm, other), {arm: math.nan, other: math.nan}
    for curve in study.common(arms).curves:
        if curve.arm in arms:
            given[curve.arm] = np.fmin(given[curve.arm], curve.tasks[-1])
    found = study.find(measure, times(arm, other, given[other]), arms)
    most = study.find(measure, times(arm, other, math.inf, given[arm]), arms).drawn
    parts = study.parts(measure, times(arm, other, given[other], neither=0.0), arms)
    parts_most = study.parts(measure, times(arm, other, math.inf, given[arm], neither=math.inf), arms)
    parts_most = [math.inf if math.isnan(part) else part for part in parts_most]  # there from the start
    return dataclasses.replace(found, most=most, parts=parts, parts_most=parts_most)


def _median(values: np.ndarray | Sequence[float]) -> np.ndarray:
    """Along the last axis, of what is not nan."""
    found = np.sort(np.asarray(values, dtype=float), axis=-1)  # nan comes last
    count = (~np.isnan(found)).sum(axis=-1, keepdims=True)
    low, high = (np.take_along_axis(found, at, axis=-1)[..., 0] for at in (np.maximum(count - 1, 0) // 2, count // 2))
    return (low + high) / 2


# --- verdicts --------------------------------------------------------------------------------


def sides(finding: Finding, bar: float) -> tuple[float, float]:
    """One-sided p-values of the statistic being above the bar, and below: the larger of the bootstrap's and the parts'.

    The bootstrap's is (1 + draws on the wrong side) / (1 + all draws) (Davison and Hinkley 1997, eq. 4.11); draws
    without a value count against, and so do bounds that leave it open. By itself it does not stand a correction for
    many claims: five worlds of no effect lie on one side of the bar in one case of 16, and most of their draws do.
    The parts' is Student's (1908) of their mean; fewer than `ENOUGH` of them say nothing, nor do some without a bound,
    all alike leave no doubt.
    """
    most = finding.drawn if finding.most is None else finding.most
    wrong = (np.count_nonzero(~(finding.drawn > bar)), np.count_nonzero(~(most < bar)))
    drawn = [(1 + count) / (1 + len(finding.drawn)) for count in wrong]
    highest = finding.parts if finding.parts_most is None else finding.parts_most
    agree = _agreement(finding.parts, bar), _agreement([-part for part in highest], -bar)
    return max(drawn[0], agree[0]), max(drawn[1], agree[1])


def _agreement(parts: Sequence[float], bar: float) -> float:
    """The parts' one-sided p-value of lying above the bar."""
    found = [part for part in parts if not math.isnan(part)]
    if len(found) < ENOUGH or not np.isfinite(found).all():
        return 1.0
    if len(set(found)) == 1:
        return float(not found[0] > bar)
    return float(stats.ttest_1samp(found, bar, alternative="greater").pvalue)


def p_above(finding: Finding, bar: float) -> float:
    """Two-sided p-value of the hypothesis that the statistic is `bar`: the smaller of `sides`, doubled."""
    return min(1.0, 2 * min(sides(finding, bar)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): the chance of one false claim in the whole table stays what it is for one."""
    order = np.argsort(p_values, kind="stable")
    stepped = [p_values[i] * (len(p_values) - rank) for rank, i in enumerate(order)]
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return adjusted.tolist()


def judge(claims: Mapping[Hashable, tuple[Finding, float]]) -> dict[Hashable, tuple[float, str]]:
    """The adjusted p-value of every claim that a statistic is above a bar, and the verdict on it.

    Supported or refuted, where the adjusted p-value is below 5%, by the side that it is of; else undecided.
    """
    adjusted = holm([p_above(finding, bar) for finding, bar in claims.values()])
    verdicts = {}
    for (claim, (finding, bar)), p in zip(claims.items(), adjusted, strict=True):
        above, below = sides(finding, bar)
        side, sure = SUPPORTED if above < below else REFUTED, p < 1 - CONFIDENCE
        verdicts[claim] = (p, side if sure else UNDECIDED)
    return verdicts
