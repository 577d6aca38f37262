"""Who knows, and who learns? Arms by who says the notes and whether the policy is trained, over several worlds.

`summary` has every number that the pages quote, one row each; the figures are drawn from it and from curves. Reads run
folders alone. What an interval is, is said in `lfo.lab.hierarchy`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.ticker import EngFormatter, PercentFormatter

from lfo.config import RunConfig
from lfo.envs import make_environment
from lfo.envs.phone.records import VARIATIONS
from lfo.envs.phone.world import LEVELS
from lfo.lab.hierarchy import (
    Curve,
    Finding,
    Measure,
    Study,
    area,
    area_until,
    at,
    curves_of,
    final,
    middle,
    number,
    reach,
    read_curves,
    relative_to,
    times_fewer,
)
from lfo.lab.reading import RUN, SPLIT_NAMES, Runs, alike, frame, spending, split_titles
from lfo.lab.statistics import in_percent
from lfo.runs import RunFolder

FROZEN, TRAINED = "frozen", "trained"
NOTHING, WORLD_MODEL, PLACEBO, TRUTH = "nothing", "world model", "placebo", "truth"
SILENT, ENSEMBLE, VOTING, READING = "imagine_silent", "imagine_ensemble", "imagine_voting", "imagine_reading"
MEMORIES = ("table", "backoff", "nearest", "vote", "linear", "boosted", "additive", "grammar")
ORDER = (NOTHING, *MEMORIES, WORLD_MODEL, ENSEMBLE, VOTING, "imagine_memory", SILENT, TRUTH)
DRAWN = (NOTHING, *MEMORIES, WORLD_MODEL, TRUTH)  # beside frozen and trained policies; others are in tables
# A colour for everybody who says notes, the same in all curves.
COLOURS = {
    NOTHING: "0.5",
    "table": "#4477AA",
    "backoff": "#222255",
    "nearest": "#66CCEE",
    "vote": "#99CCBB",
    "linear": "#DDCC77",
    "boosted": "#EE7733",
    "additive": "#999933",
    "grammar": "#117733",
    WORLD_MODEL: "#AA3377",
    ENSEMBLE: "#662288",
    VOTING: "#9977DD",
    "imagine_memory": "#EE99AA",
    SILENT: "#CC99BB",
    PLACEBO: "#CC6677",
    TRUTH: "black",
}
HEADLINE = (
    "truth",
    "grammar_frozen",
    "additive_frozen",
    "imagine",
    "imagine_frozen",
    "backoff_frozen",
    "table_frozen",
    "baseline",
)
NOTED = ("imagine", "imagine_memory", "memory", "truth")  # the couplings that say notes, also in evaluations
COLUMNS = "arm policy notes world circumstances replies metric split median low high runs source".split()
REACHED = 0.7  # of what somebody reaches who is told the truth
MEASURES: Mapping[str, Measure] = {"success": final, "area": area, "tasks_to_70": reach(REACHED)}
OF_TRUTH = "tasks_to_70_of_truth"
MOST = 0.9  # of what the baseline ends with
OF_BASELINE, FACTOR = "tasks_to_90_of_baseline", "ratio_to_90_of_baseline"
SECONDS = "seconds_ratio_to_90_of_baseline"
HEARD = ("train_calls_per_task", "replies_per_rollout")  # steps log them
ALL = "all"  # worlds together


def facts(config: RunConfig) -> dict:
    """What an arm is: policy frozen or trained, who says the notes, and the dials of its world.

    notes: "nothing" without a world model; of a coupling that says none, its name; "placebo" of a world model that is
    taught other calls' replies, "imagine_silent" of one that is silent where it is unsure, "imagine_ensemble" of
    several, "imagine_voting" of one that has several votes, "imagine_reading" of one that reads similar calls; what is
    made of these alone is "..._similar". Where later attempts read feedback that is said as well.
    """
    w = config.world_model
    if w is None:
        notes = NOTHING
    elif w.shuffle:
        notes = PLACEBO
    else:
        ways = {ENSEMBLE: w.members > 1, VOTING: w.votes > 1, SILENT: w.unsure_below, READING: w.reads}
        imagine = next((way for way, goes in ways.items() if goes), WORLD_MODEL)
        said = {"memory": f"{w.recall}_similar" if w.reads else w.recall, "truth": TRUTH, "imagine": imagine}
        notes = said.get(w.coupling, w.coupling)
    if config.feedback:
        said = {"shuffled": "others' feedback", "none": "tried again"}.get(config.feedback.source, "feedback")
        notes = said if w is None else f"{notes}, {said}"
    policy = TRAINED if config.policy.learning_rate else FROZEN
    dials = {"circumstances": config.env.circumstances, "replies": config.env.replies}
    return {"policy": policy, "notes": notes, **dials}


def about(runs: Runs, arm: str) -> dict:
    """`facts` of an arm's first run, by which all of its runs are judged."""
    return facts(RunFolder(runs[arm][0]).config)


def told_the_truth(runs: Runs) -> str:
    """The first arm that is frozen and told the truth; "" if there is none."""
    return _first(runs, notes=TRUTH, policy=FROZEN)


def _first(runs: Runs, **wanted: str) -> str:
    """The first arm of which these `facts` are true; "" if there is none."""
    return next((arm for arm in runs if wanted.items() <= about(runs, arm).items()), "")


# --- tables ----------------------------------------------------------------------------------


def summary(runs: Runs) -> pd.DataFrame:
    """Every arm's success, area over the `shared_tasks`, tasks and seconds to 70%, over all worlds; the same to 70% of
    the truth; tasks to most of what the baseline ends with, and how many times fewer than its own; success at each
    level and in each world; what was heard in training.

    median, low, high: over the runs, see `lfo.lab.hierarchy`; tasks are inf where the median run never arrives. All
    arms must have the same dials, and one of them be frozen and told the truth for what is "of_truth". Of arms that
    were evaluated at both ends alone there is success and what was heard, unless they never change and others were
    evaluated in between.
    """
    rows, told = [], told_the_truth(runs)
    for split in splits_of(runs):
        curves = read_curves(runs, split)
        rows += _against_baseline(runs, curves, split)
        rows += _rows(runs, Study(curves), split, MEASURES | {"area": area_until(shared_tasks(runs))}, ALL)
        rows += _rows(runs, Study(relative_to(curves, told)), split, {OF_TRUTH: MEASURES["tasks_to_70"]}, ALL)
        for level in LEVELS:
            study = Study(read_curves(runs, split, (level,)))
            rows += _rows(runs, study, split, {f"success_level_{level}": final}, ALL)
        for world in sorted({curve.world for curve in curves}):
            here = Study([curve for curve in curves if curve.world == world])
            rows += _rows(runs, here, split, {"success": final}, world)
        rows += _seconds(runs, split, told)
    table = pd.DataFrame([*rows, *_heard(runs)], columns=COLUMNS)
    of_ends = table["metric"].str.match("|".join(("success", *HEARD)))
    return table[of_ends | table["arm"].isin(_seen_between(runs))].reset_index(drop=True)


def _seen_between(runs: Runs) -> list[str]:
    """Arms that were evaluated between both ends as well; where there are any, also those that never change."""
    configs = {arm: RunFolder(folders[0]).config for arm, folders in runs.items()}
    between = [arm for arm, config in configs.items() if config.eval_every < config.task_budget]
    return [*between, *(arm for arm in runs if between and arm not in between and _unchanging(about(runs, arm)))]


def _unchanging(who: Mapping) -> bool:
    """Whether somebody with these `facts` never learns anything."""
    return who["policy"] == FROZEN and who["notes"] in (NOTHING, TRUTH)


def shared_tasks(runs: Runs) -> float:
    """The sampled tasks that every trained arm was given: areas over other spans do not compare."""
    trained = [arm for arm in runs if about(runs, arm)["policy"] == TRAINED]
    return min((RunFolder(runs[arm][0]).config.task_budget for arm in trained), default=math.inf)


def splits_of(runs: Runs) -> list[str]:
    """The splits on which any of the arms is evaluated."""
    return list(dict.fromkeys(split for arm in runs for split in RunFolder(runs[arm][0]).config.eval_splits))


def dial_summary(runs: Runs) -> pd.DataFrame:
    """The `summary` of every combination of a sweep over grid and arms. runs: ``<combination>/<arm>`` -> folders."""
    cells: dict[str, dict] = {}
    for name, folders in runs.items():
        cell, _, arm = name.rpartition("/")
        cells.setdefault(cell, {})[arm] = folders
    return pd.concat([summary(cell) for cell in cells.values()], ignore_index=True)


def all_summaries(headline: pd.DataFrame, beside: Mapping[str, Runs]) -> tuple[pd.DataFrame, dict[str, list[Path]]]:
    """The `summary` of the headline and those of other grids as one table, and the others' runs as ``<grid>/<arm>``.

    Arms may have the same names: `source` tells them apart.
    """
    tables = [headline, *(summary(runs) for runs in beside.values() if runs)]
    named = {f"{name}/{arm}": list(folders) for name, runs in beside.items() for arm, folders in runs.items()}
    return pd.concat(tables, ignore_index=True), named


def _rows(runs: Runs, study: Study, split: str, measures: Mapping[str, Measure], world: int | str) -> Iterator[dict]:
    for arm in study.arms:
        for metric, measure in measures.items():
            yield _row(runs, arm, split, metric, study.find(measure, middle(arm), [arm]), world)


def _row(runs: Runs, arm: str, split: str, metric: str, found: Finding, world: int | str = ALL) -> dict:
    where = {"arm": arm, **about(runs, arm), "world": world, "metric": metric, "split": split}
    return where | _numbers(found, "median") | {"source": Path(runs[arm][0]).parent.as_posix() + "/*/metrics.jsonl"}


def _against_baseline(runs: Runs, curves: Sequence[Curve], split: str) -> Iterator[dict]:
    """Sampled tasks to most of what the baseline ends with, which everybody can reach, and the factor to its own."""
    baseline, measure = baseline_of(runs), reach(MOST)
    study = Study(relative_to(curves, baseline))
    yield from _rows(runs, study, split, {OF_BASELINE: measure}, ALL)
    for arm in study.arms:
        if arm != baseline:
            yield _row(runs, arm, split, FACTOR, times_fewer(study, measure, arm, baseline))


def baseline_of(runs: Runs) -> str:
    """The first arm whose policy is trained and reads no notes; "" if there is none."""
    return _first(runs, notes=NOTHING, policy=TRAINED)


def _seconds(runs: Runs, split: str, told: str) -> Iterator[dict]:
    """Wall seconds to the same success, and how many times an arm's those of the baseline are, where runs of the two
    were made `alike`: a slower machine is not a slower method."""
    baseline = baseline_of(runs)
    if baseline:
        runs = alike(runs, baseline) | {arm: runs[arm] for arm in (told,) if arm}
    curves = read_curves(runs, split, against="seconds")
    goals = {"to_70": (curves, REACHED), "to_70_of_truth": (relative_to(curves, told), REACHED)}
    goals["to_90_of_baseline"] = (relative_to(curves, baseline), MOST)
    for goal, (reached, share) in goals.items():
        study, measure = Study(reached), reach(share)  # of curves against seconds: seconds
        yield from _rows(runs, study, split, {f"seconds_{goal}": measure}, ALL)
        for arm in study.arms if baseline in study.arms else ():
            if arm != baseline:
                found = times_fewer(study, measure, arm, baseline)
                yield _row(runs, arm, split, f"seconds_ratio_{goal}", found)


def _heard(runs: Runs) -> Iterator[dict]:
    """Calls, and replies that are learned, per rollout of training: means over the steps of a run."""
    steps = frame(runs, "step").reindex(columns=["arm", *RUN, *HEARD]).assign(task_id="", company_id="")
    for metric in HEARD:
        study = Study(curves_of(steps.dropna(subset=[metric]), [metric]))
        yield from _rows(runs, study, "train", {metric: number(0)}, ALL)


def _numbers(found: Finding, name: str) -> dict:
    return {name: found.value, "low": found.low, "high": found.high, "runs": found.runs}


def factorial_table(table: pd.DataFrame) -> pd.DataFrame:
    """The `summary`, a row per arm: success, area and tasks to 70% of the truth, at known and at new companies; what
    it has of nobody is left out."""
    names = {"success": "success", "area": "area", OF_TRUTH: "tasks to 70% of the truth"}
    names = {metric: name for metric, name in names.items() if metric in set(table["metric"])}
    rows = []
    for (arm, notes, policy), one in table.query("world == @ALL").groupby(["arm", "notes", "policy"], sort=False):
        row = {"arm": arm, "notes by": notes, "policy": policy, "runs": one["runs"].max()}
        found = {(r["metric"], r["split"]): r for r in one.to_dict("records")}
        for (metric, name), (split, companies) in itertools.product(names.items(), SPLIT_NAMES.items()):
            cell = found.get((metric, split))
            say = in_tasks if metric == OF_TRUTH else _share
            row[f"{name}, {companies.split()[0]}"] = say(cell) if cell else ""
        rows.append(row)
    return pd.DataFrame(rows)


def factor_table(table: pd.DataFrame) -> pd.DataFrame:
    """The `summary`, a row per arm and kind of companies: tasks to most of what the baseline ends with, and how many
    times fewer than the baseline's own; inf, or 0 times, where the median run never arrives. seconds: how many times
    fewer of them, of runs that were made alike."""
    numbers = {OF_BASELINE: {"median": "tasks", "low": "tasks low", "high": "tasks high"}}
    numbers[FACTOR] = {"median": "times fewer", "low": "low", "high": "high"}
    numbers[SECONDS] = {"median": "seconds, times fewer"}
    data, names = table.assign(companies=table["split"].map(SPLIT_NAMES)), ["arm", "companies"]
    tasks, factor, seconds = (
        data[data["metric"] == m].rename(columns=said)[[*names, *said.values()]] for m, said in numbers.items()
    )
    order = list(dict.fromkeys(table["arm"]))
    tasks = tasks.sort_values("arm", key=lambda arms: arms.map(order.index), kind="stable", ignore_index=True)
    return tasks.merge(factor, on=names, how="left").merge(seconds, on=names, how="left")


def in_tasks(cell: Mapping) -> str:
    """Median and interval of sampled tasks as text, where there is one; what is infinite was never reached."""
    median, *ends = ("never" if math.isinf(cell[n]) else f"{cell[n]:.0f}" for n in ("median", "low", "high"))
    return median if math.isnan(cell["low"]) else f"{median} [{', '.join(ends)}]"


def _share(cell: Mapping) -> str:
    return in_percent(cell["median"], cell["low"], cell["high"])


def dial_table(table: pd.DataFrame) -> pd.DataFrame:
    """The `dial_summary`, a row per position of both dials and kind of companies: success by who says the notes to
    frozen policies.

    runs: of whoever has the fewest.
    """
    data = table.query("metric == 'success' and world == @ALL and policy == @FROZEN")
    said = [_share(row) for row in data.to_dict("records")]
    data = data.assign(said=said, companies=data["split"].map(SPLIT_NAMES))
    place = ["replies", "circumstances", "companies"]
    rows = data.pivot(index=place, columns="notes", values="said")[[n for n in ORDER if n in set(data["notes"])]]
    return data.groupby(place)[["runs"]].min().join(rows).reset_index().rename_axis(columns=None)


def level_table(
    runs: Runs,
    splits: Mapping[str, str] = SPLIT_NAMES,
    levels: Iterable[int] = LEVELS,
    by: str | None = None,
    kind: str = "outcomes",
) -> pd.DataFrame:
    """Success at the last evaluation by arm, companies and level: medians over the runs with 95% intervals.

    splits: with what their companies are called. levels: 0 is all of them. by, kind: as for `read_curves`.
    """
    rows: list[dict] = []
    for (split, companies), level in itertools.product(splits.items(), levels):
        chosen = (level,) if level else None
        rows += ends_of(read_curves(runs, split, chosen, by=by, kind=kind), companies=companies, level=level)
    return pd.DataFrame(rows)


def final_table(runs: Runs) -> pd.DataFrame:
    """`level_table` of whatever these runs were evaluated on, in any world: arm by arm, all levels and then each.

    Raises:
        RunError: there are no evaluations yet, or they are of an earlier version, which logged no outcomes.
    """
    data = frame(runs, "success", needed=True)
    frame(runs, "outcomes", needed=True)
    table = level_table(runs, split_titles(runs, data), sorted(set(data["level"])))
    table = table.sort_values("arm", key=lambda arms: arms.map(list(runs).index), kind="stable", ignore_index=True)
    return table.assign(level=[level or "all" for level in table["level"]])


def rules_table(runs: Runs) -> pd.DataFrame:
    """`level_table` by how a company's rules depart from those that are usual in its industry (typical | extra |
    different), all levels."""
    ruled: dict[tuple, set[str]] = defaultdict(set)
    for seed, config in config_of_each_world(runs).items():
        world = make_environment(config.env).world
        for company in world.companies:
            ruled[seed, world.variation(company)].add(company)
    rows: list[dict] = []
    for split, companies in SPLIT_NAMES.items():
        curves = read_curves(runs, split)
        for rules in VARIATIONS:
            there = (curve.at(ruled[curve.world, rules]) for curve in curves)
            rows += ends_of([curve for curve in there if curve.companies], companies=companies, rules=rules)
    return pd.DataFrame(rows)


def config_of_each_world(runs: Runs) -> dict[int, RunConfig]:
    """By the world's seed, that of one of its runs."""
    return {c.env.world_seed: c for c in (RunFolder(f).config for folders in runs.values() for f in folders)}


def ends_of(curves: Sequence[Curve], **named) -> Iterator[dict]:
    """Rows of a `level_table`: where each arm's curves end. named: columns that say what they are of."""
    study = Study(curves)
    for arm in study.arms:
        yield {"arm": arm} | named | _numbers(study.find(final, middle(arm), [arm]), "success")


def overview(table: pd.DataFrame, part: str) -> pd.DataFrame:
    """A `level_table`, or a `rules_table`, as text: a row per arm and companies, a column for each level, or kind of
    rules. runs: of the column with the fewest."""
    place = ["companies", "arm"]
    if table.empty:
        return pd.DataFrame(columns=[*place, "runs"])
    said = [in_percent(*row) for row in table[["success", "low", "high"]].to_numpy()]
    cells = table.assign(said=said).pivot(index=place, columns=part, values="said").fillna("")
    cells = cells[list(dict.fromkeys(table[part]))].rename(columns=lambda name: f"{part} {name}")
    order = pd.MultiIndex.from_product([list(dict.fromkeys(table[name])) for name in place], names=place)
    runs = table.groupby(place)[["runs"]].min()
    return runs.join(cells).reindex(order.intersection(runs.index, sort=False)).reset_index()


def by_level(runs: Runs) -> pd.DataFrame:
    """The `overview` of `level_table`: success at each level, a row per arm and companies that all arms were evaluated
    at."""
    each = [set(splits_of({arm: folders})) for arm, folders in runs.items()]
    shared = {split: name for split, name in SPLIT_NAMES.items() if all(split in splits for splits in each)}
    return overview(level_table(runs, shared), "level")


def with_bounds(runs: Runs, bounds: Runs) -> dict[str, Sequence[Path]]:
    """The arms, and before them those that bound them (policies that are told the truth): of these the runs in the same
    worlds, with the same circumstances and replies."""
    worlds = {_world_of(folder) for folders in runs.values() for folder in folders}
    there = {arm: [folder for folder in folders if _world_of(folder) in worlds] for arm, folders in bounds.items()}
    return {arm: folders for arm, folders in (there | dict(runs)).items() if folders}


def _world_of(folder: str | Path) -> tuple:
    env = RunFolder(folder).config.env
    return env.world_seed, env.circumstances, env.replies


# --- figures ---------------------------------------------------------------------------------


def factorial_figure(table: pd.DataFrame) -> plt.Figure:
    """Success by who says the notes, those of `DRAWN`, policy frozen and trained side by side: known and new
    companies."""
    data = table.query("metric == 'success' and world == @ALL")
    fig, axes = plt.subplots(1, 2, figsize=(13, 4), sharey=True, layout="constrained")
    names = [name for name in DRAWN if name in set(data["notes"])]
    for ax, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        draw_bars(ax, data[data["split"] == split].rename(columns={"median": "success"}), names)
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
        ax.set(title=title, ylim=(0, 1.02))
    told = "; ".join(f"{', '.join(kinds)}: {what}" for what, kinds in _kinds(names).items())
    fig.supxlabel(f"who says what would be answered{f' ({told})' if told else ''}", fontsize="small")
    axes[0].set_ylabel("success, greedy, 95% interval")
    axes[0].yaxis.set_major_formatter(PercentFormatter(1))
    axes[0].legend(fontsize="small", loc="upper left")
    return fig


def _kinds(names: Sequence[str]) -> dict[str, list[str]]:
    """Of those who are named for how they work, what they are."""
    similar, classifiers = ("nearest", "vote"), ("linear", "boosted", "additive")
    of = {"what similar calls were answered": similar, "classifiers": classifiers, "a parser": ("grammar",)}
    return {what: found for what, kinds in of.items() if (found := [name for name in names if name in kinds])}


def draw_bars(ax: plt.Axes, found: pd.DataFrame, names: Sequence[str]) -> None:
    """Success (with low and high) by notes, policy frozen and trained side by side; of several arms alike the first."""
    for i, policy in enumerate((FROZEN, TRAINED)):
        part = found[found["policy"] == policy].drop_duplicates("notes").set_index("notes").reindex(names)
        error = np.vstack([part["success"] - part["low"], part["high"] - part["success"]]).clip(min=0)
        x = np.arange(len(names)) + (i - 0.5) * 0.4
        ax.bar(x, part["success"], 0.38, yerr=error, error_kw={"lw": 1, "capsize": 2}, label=f"policy {policy}")
    ax.set_xticks(range(len(names)), names)
    ax.grid(axis="x", visible=False)


def phase_figure(table: pd.DataFrame) -> plt.Figure:
    """Success of frozen policies against the number of circumstances, by who says the notes, shifted a little so that
    their intervals stand side by side: replies across, companies down."""
    data = table.query("metric == 'success' and world == @ALL and policy == @FROZEN")
    replies = [kind for kind in ("list", "reasons") if kind in set(data["replies"])]
    size = (5 * len(replies) + 2.5, 7)
    fig, axes = plt.subplots(2, len(replies), figsize=size, sharey=True, squeeze=False, layout="constrained")
    names = [name for name in ORDER if name in set(data["notes"])]
    for row, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        for ax, kind in zip(row, replies, strict=True):
            part = data[(data["split"] == split) & (data["replies"] == kind)]
            for i, name in enumerate(names):
                one = part[part["notes"] == name].sort_values("circumstances")
                x, look = one["circumstances"] + (i - (len(names) - 1) / 2) * 0.06, {"color": COLOURS.get(name, "C1")}
                ax.plot(x, one["median"], marker="o", ms=5, label=name, **look)
                ax.vlines(x, one["low"], one["high"], lw=1.2, **look)
            fewest = part.groupby("circumstances")["runs"].min()
            ax.set_xticks(fewest.index, [f"{dial:.0f}\n({runs:.0f})" for dial, runs in fewest.items()])
            ax.set(title=f"{title}, replies: {kind}", xlabel="kinds of circumstances (runs)", ylim=(-0.02, 1.02))
        row[0].set_ylabel("success, greedy, 95% interval")
    axes[0, 0].yaxis.set_major_formatter(PercentFormatter(1))
    axes[0, -1].legend(title="policy frozen, notes by", fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    return fig


def curve_figure(
    runs: Runs, against: str = "tasks", kind: str = "success", looks: Mapping[str, dict] | None = None
) -> plt.Figure:
    """Success, or what else rows of metrics of this kind say, against what it cost: sampled tasks, episodes, tokens
    (sampled and trained) or seconds; medians. Of more arms than there are colours, frozen policies, those that are
    trained with notes, and those without have a row of panels each. looks: of the lines, as in other figures."""
    looks, apart = looks or looks_of(runs), len(runs) > len(sns.color_palette())
    policies = {arm: _panel_of(RunFolder(folders[0]).config) if apart else "" for arm, folders in runs.items()}
    rows = sorted(set(policies.values())) or [""]  # nothing to be drawn
    size = (13, 3.8 * len(rows))
    fig, axes = plt.subplots(len(rows), 2, figsize=size, sharex="row", sharey=True, squeeze=False, layout="constrained")
    for row, policy in zip(axes, rows, strict=True):
        part = {arm: folders for arm, folders in runs.items() if policies[arm] == policy}
        draw_curves(row, part, {split: policy + title for split, title in SPLIT_NAMES.items()}, against, looks, kind)
    return fig


def _panel_of(config: RunConfig) -> str:
    if not config.policy.learning_rate:
        return "policy frozen, "
    return f"trained {'with' if config.coupling in NOTED else 'without'} notes, "


def draw_curves(
    axes: Sequence[plt.Axes],
    runs: Runs,
    splits: Mapping[str, str],
    against: str,
    looks: Mapping[str, dict] | None = None,
    kind: str = "success",
) -> None:
    """Success of some arms, or another of `KINDS`, a split on each of the axes: medians of the runs, with 95%
    intervals, or with the runs' range of what has no single tasks. splits: with their titles. looks: of the lines,
    where other arms are drawn elsewhere."""
    looks, outcomes = looks or looks_of(runs), KINDS[kind][2]
    for ax, (split, title) in zip(axes, splits.items(), strict=True):
        study = Study(read_curves(runs, split, against=against, kind=outcomes) if outcomes else (), BANDS)
        for arm, folders in runs.items():
            look, (grid, success) = looks[arm], _aligned(folders, split, against, kind)
            if not len(grid):
                continue
            low, high = _band(study, arm, grid) if outcomes else (success.min(axis=0), success.max(axis=0))
            who, filled = about(runs, arm), {"color": look["color"], "alpha": 0.08, "lw": 0}
            if _unchanging(who):
                ax.axhline(np.median(success[:, -1]), label=f"{arm} ({len(success)}), unchanging", **look)
                ax.axhspan(low[-1], high[-1], **filled)
            else:
                ax.plot(grid, np.median(success, axis=0), label=f"{arm} ({len(success)})", ms=4, **look)
                ax.fill_between(grid, low, high, **filled)
        ax.set(title=title, xlabel=AGAINST[against], ylim=(-0.02, 1.02))
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))  # 2k, 3M
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[0].set_ylabel(KINDS[kind][1])
    if axes[-1].lines:
        title = "median and 95% interval\n(runs)" if outcomes else "median and range (runs)"
        if against in ("tokens", "seconds"):
            title += ",\nto the end of the shortest"
        if any(looks[arm]["ls"] == "--" for arm in runs):
            title += ",\ndashed: policy frozen"
        axes[-1].legend(title=title, fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))


def _band(study: Study, arm: str, grid: np.ndarray) -> tuple[list[float], list[float]]:
    """The ends of the intervals of an arm's median success after so many tasks."""
    found = [study.find(at(tasks), middle(arm), [arm]) for tasks in grid]
    return [one.low for one in found], [one.high for one in found]


def looks_of(runs: Runs) -> dict[str, dict]:
    """Of each arm: the colour of who says the notes, thick where that is the world model, darker and with squares where
    feedback is said as well, paler and with crosses where a control of it is, dashed where the policy is frozen;
    others, and those alike, have diamonds, each another colour, or triangles where colours come again."""
    palette, looks = [colour for colour in sns.color_palette() if len(set(colour)) > 1], {}  # grey is the baseline
    others: dict[tuple, int] = {}  # (notes, how many arms alike there were before) -> number of the colour
    alike: Counter = Counter()
    for arm in runs:
        notes, policy = (about(runs, arm)[name] for name in ("notes", "policy"))
        (who, _, also), before = notes.partition(", "), alike[notes, policy]
        alike[notes, policy] += 1
        if who in COLOURS and not before:
            marker, light = {"": ("o", None), "feedback": ("s", 0.2)}.get(also, ("X", 0.75))
            colour = COLOURS[who] if light is None else sns.set_hls_values(COLOURS[who], l=light)
            look = {"color": colour, "marker": marker, "lw": 2.8 if who == WORLD_MODEL else 1.5}
        else:
            number = others.setdefault((notes, before), len(others))
            look = {"color": palette[number % len(palette)], "marker": "D^vP"[number // len(palette) % 4], "lw": 1.5}
        looks[arm] = look | {"ls": "--" if policy == FROZEN else "-"}
    return looks


BANDS = 1_000  # draws of an interval that is drawn and not judged
# Rows of metrics that can be drawn: what they call their number, what it is, and the rows with its single tasks.
KINDS = {
    "success": ("success", "success, greedy", "outcomes"),
    "unaided": ("success", "success without notes, greedy", "unaided_outcomes"),
    "rules": ("rule_accuracy", "known replies to calls on the ways", None),
}
AGAINST = {
    "tasks": "sampled tasks",
    "episodes": "episodes",
    "tokens": "tokens, sampled and trained",  # lines of these and of seconds end with an arm's shortest run
    "seconds": "seconds, evaluations left out",
}


def _aligned(folders: Sequence[str | Path], split: str, against: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Success of every run on a common grid of what it cost, as far as all were evaluated."""
    curves = [cost_curve(folder, split, against, kind) for folder in folders]
    curves = [(cost, success) for cost, success in curves if len(cost)]
    if not curves:
        return np.array([]), np.array([])
    first, last = max(cost[0] for cost, _ in curves), min(cost[-1] for cost, _ in curves)
    grid = np.linspace(first, last, max(len(cost) for cost, _ in curves))
    return grid, np.array([np.interp(grid, cost, success) for cost, success in curves])


def cost_curve(folder: str | Path, split: str, against: str, kind: str = "success") -> tuple[np.ndarray, np.ndarray]:
    """What a run had cost at each of its evaluations on a split, and its success there, or another of `KINDS`."""
    costs, shares = [], []
    for spent, row in spending(RunFolder(folder), against):
        if row["kind"] == kind and row["split"] == split and row.get("level", 0) == 0:
            costs.append(spent)
            shares.append(row[KINDS[kind][0]])
    return np.array(costs), np.array(shares)
