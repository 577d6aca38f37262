"""What each setting is worth (notebook 05): areas under learning curves, arm by arm, as `lfo.lab.hierarchy` has it.

Reads run folders alone.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.ticker import PercentFormatter

from lfo.lab.factorial import MEASURES
from lfo.lab.hierarchy import Finding, Study, lead, middle, read_curves, shared_area
from lfo.lab.reading import SPLIT_NAMES, Runs, by_run, frame, seeds_of
from lfo.lab.tables import known
from lfo.runs import RunFolder

NAMES = {"success": "success after the last task", "area": "area under the learning curve"}
LINEAR_BELOW = 0.02  # the axis of lambda is linear from 0 to here and logarithmic beyond


def scores(runs: Runs) -> pd.DataFrame:
    """One row per run and split: `success` at the last evaluation, `area` under the learning curve."""
    rows = []
    for split in SPLIT_NAMES:
        for curve in read_curves(runs, split):
            values = {name: float(MEASURES[name](curve.tasks, curve.successes.mean(axis=1))) for name in NAMES}
            rows.append({"arm": curve.arm, "world": curve.world, "seed": curve.seed, "split": split} | values)
    return pd.DataFrame(rows, columns=["arm", "world", "seed", "split", *NAMES])


def section_table(runs: Runs, reference: str = "reference") -> pd.DataFrame:
    """Arm by arm and split by split: medians over the runs, and how much the area is above that of `reference` over the
    tasks that both were given, 95%.

    tasks to 70%: inf where the median run never arrives. rule accuracy: of the world model at the last evaluation; nan
    where there is none.
    """
    rules, rows = frame(runs, "rules"), []
    for split in SPLIT_NAMES:
        study = Study(read_curves(runs, split))
        for arm in study.arms:
            row = {"arm": arm, "split": split}
            row |= {name: study.find(MEASURES[name], middle(arm), [arm]).value for name in NAMES}
            if arm != reference:
                row |= _lead(study, arm, reference)
            arrived = study.find(MEASURES["tasks_to_70"], middle(arm), [arm])
            row |= {"tasks to 70%": arrived.value, "runs": arrived.runs}
            if len(rules) and len(known := rules[(rules["arm"] == arm) & (rules["split"] == split)]):
                row["rule accuracy"] = by_run(known)["rule_accuracy"].last().median()
            rows.append(row)
    columns = ["arm", "split", *NAMES, f"minus {reference}", "low", "high", "tasks to 70%", "rule accuracy", "runs"]
    return pd.DataFrame(rows, columns=columns)


def knowing_table(runs: Runs, split: str = "validation", reference: str = "reference") -> pd.DataFrame:
    """Arm by arm what is known at the end of the ways of a split's tasks, and how much more that is than what is known
    by `reference` in the same worlds, and in how many of these it is more; success beside it. Medians over the runs.
    """
    knows, succeeds, rows = Study(known(runs, split)), Study(read_curves(runs, split)), []
    for arm in knows.arms:
        at_end = [study.find(MEASURES["success"], middle(arm), [arm]) for study in (knows, succeeds)]
        row = {"arm": arm, "known": at_end[0].value, "success": at_end[1].value, "runs": at_end[0].runs}
        ahead = knows.find(MEASURES["success"], lead(arm, reference), [arm, reference])
        rows.append(row | {f"minus {reference}": ahead.value, "worlds ahead": sum(part > 0 for part in ahead.parts)})
    return pd.DataFrame(rows, columns=["arm", "known", f"minus {reference}", "worlds ahead", "success", "runs"])


def _lead(study: Study, arm: str, reference: str) -> dict[str, float]:
    arms = [arm, reference]
    found: Finding = study.find(shared_area(study, arms), lead(arm, reference), arms)
    return {f"minus {reference}": found.value, "low": found.low, "high": found.high}


# --- figures ---------------------------------------------------------------------------------


def dose_response(runs: Runs) -> plt.Figure:
    """Success and area against lambda, a line through the medians of each coupling, runs as points, both splits.

    Arms without a world model have no lambda and are left out.
    """
    settings = {arm: RunFolder(folders[0]).config.world_model for arm, folders in runs.items()}
    doses = pd.DataFrame([{"arm": arm, "lam": w.lam, "coupling": w.coupling} for arm, w in settings.items() if w])
    table = scores(runs).merge(doses, on="arm")
    couplings = list(table["coupling"].unique())
    fig, axes = plt.subplots(2, 2, figsize=(10, 6.6), sharex=True, sharey="row", layout="constrained")
    for row, (measure, name) in zip(axes, NAMES.items(), strict=True):
        for ax, (split, title) in zip(row, SPLIT_NAMES.items(), strict=True):
            part = table[table["split"] == split]
            for colour, coupling in zip(sns.color_palette(n_colors=len(couplings)), couplings, strict=True):
                one = part[part["coupling"] == coupling].sort_values("lam")
                median = one.groupby("lam")[measure].median()
                ax.plot(one["lam"], one[measure], "o", color=colour, alpha=0.45, ms=5)
                ax.plot(median.index, median, color=colour, lw=2, label=f"{coupling} ({seeds_of(one)})")
            ax.set_xscale("symlog", linthresh=LINEAR_BELOW)
            ax.set(title=title)
            ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        row[0].set_ylabel(name)
    ticks = sorted(set(table["lam"]))
    for ax in axes[1]:
        ax.set_xticks(ticks, [f"{lam:g}" for lam in ticks], rotation=45)
        ax.minorticks_off()
        ax.set_xlabel(f"lambda (logarithmic beyond {LINEAR_BELOW:g})")
    axes[0, 0].legend(title="median; dots: runs", fontsize="small")
    return fig


def section_figure(runs: Runs) -> plt.Figure:
    """Area under the learning curve arm by arm, both splits: the runs as points, their median with its interval."""
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    colour = sns.color_palette()[0]
    for ax, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        study = Study(read_curves(runs, split))
        for x, (arm, areas) in enumerate(study.values(MEASURES["area"]).items()):
            found = study.find(MEASURES["area"], middle(arm), [arm])
            ends = np.abs(np.array([[found.low], [found.high]]) - found.value)
            ax.plot([x] * len(areas), areas, "o", color=colour, alpha=0.6)
            ax.errorbar([x + 0.2], [found.value], yerr=ends, fmt="_", color=colour, ms=14, lw=1, capsize=2)
        ax.set_xticks(range(len(study.arms)), study.arms, rotation=30, ha="right")
        ax.grid(axis="x", visible=False)
        ax.set(title=title)
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[0].set_ylabel("area (dots: runs; bar: 95%)")
    return fig
