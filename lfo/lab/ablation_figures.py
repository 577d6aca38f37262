"""What each setting is worth (notebook 05): areas under learning curves, compared seed by seed, drawn arm by arm.

Reads run folders alone. The same seed is the same stream of tasks, so arms are compared seed by seed.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from lfo.lab.reading import SPLIT_NAMES, Runs, frame, seeds_of, success_frame
from lfo.lab.statistics import Estimate, median, paired_difference
from lfo.lab.tables import median_arrival
from lfo.runs import RunError, RunFolder

MEASURES = {"success": "success after the last task", "area": "area under the learning curve"}
LINEAR_BELOW = 0.02  # the axis of lambda is linear from 0 to here and logarithmic beyond


def scores(runs: Runs) -> pd.DataFrame:
    """One row per run and split: `success` at the last evaluation, `area` under the learning curve.

    area: mean success over the sampled tasks, by the trapezoidal rule between evaluations.
    """
    rows = []
    for (arm, seed, split), one in success_frame(runs).groupby(["arm", "seed", "split"], sort=False):
        tasks, success = one["tasks"].to_numpy(float), one["success"].to_numpy(float)
        span = tasks[-1] - tasks[0]
        area = np.trapezoid(success, tasks) / span if span else success[-1]
        rows.append({"arm": arm, "seed": seed, "split": split, "success": success[-1], "area": float(area)})
    return pd.DataFrame(rows)


def difference(table: pd.DataFrame, ours: str, other: str, measure: str) -> Estimate:
    """Median over the common seeds of ours - other. table: `scores` of one split.

    Raises:
        RunError: the arms have no seed in common.
    """
    by_seed = {arm: one.set_index("seed")[measure].to_dict() for arm, one in table.groupby("arm")}
    try:
        return paired_difference(by_seed[ours], by_seed[other])
    except ValueError as error:
        raise RunError(f"{ours}, {other}: {error}") from None


def section_table(runs: Runs, reference: str = "reference") -> pd.DataFrame:
    """Arm by arm and split by split: medians over the seeds, and the area's paired difference to `reference`, 95%.

    rule accuracy: of the world model at the last evaluation; nan where there is none.
    """
    table, curves, rules = scores(runs), success_frame(runs), frame(runs, "rules")
    rows = []
    for (arm, split), one in table.groupby(["arm", "split"], sort=False):
        part = curves[(curves["arm"] == arm) & (curves["split"] == split)]
        row = {"arm": arm, "split": split, "success": median(one["success"]).value, "area": median(one["area"]).value}
        if arm != reference:
            lead = difference(table[table["split"] == split], arm, reference, "area")
            row |= {f"minus {reference}": lead.value, "low": lead.low, "high": lead.high}
        if len(rules) and len(known := rules[(rules["arm"] == arm) & (rules["split"] == split)]):
            row["rule accuracy"] = known.groupby("seed")["rule_accuracy"].last().median()
        rows.append(row | {"tasks to 70%": median_arrival(part, 0.7), "seeds": len(one)})
    columns = ["arm", "split", "success", "area", f"minus {reference}", "low", "high", "tasks to 70%", "rule accuracy"]
    return pd.DataFrame(rows, columns=[*columns, "seeds"])


# --- figures ---------------------------------------------------------------------------------


def dose_response(runs: Runs) -> plt.Figure:
    """Success and area against lambda, a line through the medians of each coupling, seeds as points, both splits.

    Arms without a world model have no lambda and are left out.
    """
    settings = {arm: RunFolder(folders[0]).config.world_model for arm, folders in runs.items()}
    doses = pd.DataFrame([{"arm": arm, "lam": w.lam, "coupling": w.coupling} for arm, w in settings.items() if w])
    table = scores(runs).merge(doses, on="arm")
    couplings = list(table["coupling"].unique())
    fig, axes = plt.subplots(2, 2, figsize=(10, 6.6), sharex=True, sharey="row", layout="constrained")
    for row, (measure, name) in zip(axes, MEASURES.items(), strict=True):
        for ax, (split, title) in zip(row, SPLIT_NAMES.items(), strict=True):
            part = table[table["split"] == split]
            for colour, coupling in zip(sns.color_palette(n_colors=len(couplings)), couplings, strict=True):
                one = part[part["coupling"] == coupling].sort_values("lam")
                middle = one.groupby("lam")[measure].median()
                ax.plot(one["lam"], one[measure], "o", color=colour, alpha=0.45, ms=5)
                ax.plot(middle.index, middle, color=colour, lw=2, label=f"{coupling} ({seeds_of(one)})")
            ax.set_xscale("symlog", linthresh=LINEAR_BELOW)
            ax.set(title=title, ylim=(-0.02, 1.02))
        row[0].set_ylabel(name)
    ticks = sorted(set(table["lam"]))
    for ax in axes[1]:
        ax.set_xticks(ticks, [f"{lam:g}" for lam in ticks], rotation=45)
        ax.minorticks_off()
        ax.set_xlabel("lambda")
    axes[0, 0].legend(fontsize="small")
    return fig


def section_figure(runs: Runs) -> plt.Figure:
    """Area under the learning curve arm by arm: the seeds as points, their median as a bar across; both splits."""
    table, arms = scores(runs), list(runs)
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    for ax, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        for x, arm in enumerate(arms):
            one = table[(table["split"] == split) & (table["arm"] == arm)]["area"]
            ax.plot([x] * len(one), one, "o", color=sns.color_palette()[0], alpha=0.6)
            ax.hlines(one.median(), x - 0.3, x + 0.3, color=sns.color_palette()[0], lw=2)
        ax.set_xticks(range(len(arms)), arms, rotation=30, ha="right")
        ax.grid(axis="x", visible=False)
        ax.set(title=title, ylim=(-0.02, 1.02))
    axes[0].set_ylabel(f"area, median of {seeds_of(table)}")
    return fig
