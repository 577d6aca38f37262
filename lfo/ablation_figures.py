"""Result files -> the tables and figures of notebook 05: what each setting is worth.

Reads metrics.jsonl and config.json of run folders; never loads a model. Arms are compared seed by seed: the same
seed is the same stream of tasks.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from lfo.figures import SPLIT_NAMES, ResultError, Runs, arrivals, frame
from lfo.statistics import Estimate, kaplan_meier_median, median, paired_difference

ENOUGH_SEEDS = 3  # fewer decide no claim about an ablation
MARGIN = 0.05  # a smaller lead decides nothing: about the standard error of one evaluation of 100 episodes
MEASURES = {"success": "success after the last task", "area": "area under the learning curve"}
LINEAR_BELOW = 0.02  # the axis of lambda is linear from 0 to here and logarithmic beyond


def scores(runs: Runs) -> pd.DataFrame:
    """One row per run and split: `success` at the last evaluation, `area` under the learning curve.

    area: mean success over the sampled tasks, by the trapezoidal rule between evaluations.
    """
    data, rows = frame(runs, "success", needed=True).query("level == 0"), []
    for (arm, seed, split), one in data.groupby(["arm", "seed", "split"], sort=False):
        tasks, success = one["tasks"].to_numpy(float), one["success"].to_numpy(float)
        span = tasks[-1] - tasks[0]
        area = np.trapezoid(success, tasks) / span if span else success[-1]
        rows.append({"arm": arm, "seed": seed, "split": split, "success": success[-1], "area": float(area)})
    return pd.DataFrame(rows)


def difference(table: pd.DataFrame, ours: str, other: str, measure: str) -> Estimate:
    """Median over the common seeds of ours - other. table: `scores` of one split.

    Raises:
        ResultError: the arms have no seed in common.
    """
    by_seed = {arm: one.set_index("seed")[measure].to_dict() for arm, one in table.groupby("arm")}
    try:
        return paired_difference(by_seed[ours], by_seed[other])
    except ValueError as error:
        raise ResultError(f"{ours}, {other}: {error}") from None


def section_table(runs: Runs, reference: str = "reference") -> pd.DataFrame:
    """Arm by arm and split by split: medians over the seeds, and the area's paired difference to `reference`, 95%.

    rule accuracy: of the world model at the last evaluation; nan where there is none.
    """
    table, curves, rules = scores(runs), frame(runs, "success").query("level == 0"), frame(runs, "rules")
    rows = []
    for (arm, split), one in table.groupby(["arm", "split"], sort=False):
        part = curves[(curves["arm"] == arm) & (curves["split"] == split)]
        tasks, given = kaplan_meier_median(arrivals(part, 0.7)), part["tasks"].max()
        row = {"arm": arm, "split": split, "success": median(one["success"]).value, "area": median(one["area"]).value}
        if arm != reference:
            lead = difference(table[table["split"] == split], arm, reference, "area")
            row |= {f"minus {reference}": lead.value, "low": lead.low, "high": lead.high}
        if len(rules) and len(known := rules[(rules["arm"] == arm) & (rules["split"] == split)]):
            row["rule accuracy"] = known.groupby("seed")["rule_accuracy"].last().median()
        arrived = f"{tasks:.0f}" if np.isfinite(tasks) else f"> {given}"
        rows.append(row | {"tasks to 70%": arrived, "seeds": len(one)})
    columns = ["arm", "split", "success", "area", f"minus {reference}", "low", "high", "tasks to 70%", "rule accuracy"]
    return pd.DataFrame(rows, columns=[*columns, "seeds"])


def verdicts(
    runs: Runs,
    claims: Mapping[str, tuple[str, Sequence[str]]],
    measure: str = "area",
    enough: int = ENOUGH_SEEDS,
    no_gain: Mapping[str, tuple[str, Sequence[str]]] = types.MappingProxyType({}),
) -> pd.DataFrame:
    """What becomes of claims that an arm is better than each of some others, or (`no_gain`) than none, by split.

    claims: {claim: (arm, others)}; one with an arm that was not run is left out. An arm is better than another
    where at least `enough` seeds have a paired difference whose whole 95% interval is above 0 and whose median
    is at least MARGIN. Supported: better than each; refuted: one of the others is better than it; else undecided.
    No gain is supported where every interval ends below MARGIN, and refuted by one other that the arm is better than.
    rival, lead, low, high: the other that comes closest, or goes furthest ahead; for no gain, the furthest behind.
    """
    table, rows = scores(runs), []
    for claim, (arm, others) in {**claims, **no_gain}.items():
        if not {arm, *others} <= set(runs):
            continue
        for split, part in table.groupby("split", sort=False):
            leads = {other: difference(part, arm, other, measure) for other in others}
            judge, pick = (_no_gain, max) if claim in no_gain else (_better, min)
            rival = pick(leads, key=lambda other: leads[other].value)
            lead = leads[rival]
            rows.append({"claim": claim, "split": split, "rival": rival, "lead": lead.value, "low": lead.low,
                         "high": lead.high, "seeds": lead.n, "verdict": judge([*leads.values()], enough)})  # fmt: skip
    return pd.DataFrame(rows, columns=["claim", "split", "rival", "lead", "low", "high", "seeds", "verdict"])


def _better(leads: Sequence[Estimate], enough: int) -> str:
    """See `verdicts`."""
    decisive = [lead for lead in leads if lead.n >= enough and abs(lead.value) >= MARGIN]
    if any(lead.high < 0 for lead in decisive):
        return "refuted"
    return "supported" if sum(lead.low > 0 for lead in decisive) == len(leads) else "undecided"


def _no_gain(leads: Sequence[Estimate], enough: int) -> str:
    """See `verdicts`."""
    if any(lead.n >= enough and lead.value >= MARGIN and lead.low > 0 for lead in leads):
        return "refuted"
    return "supported" if all(lead.n >= enough and lead.high < MARGIN for lead in leads) else "undecided"


# --- figures ---------------------------------------------------------------------------------


def dose_response(runs: Runs) -> plt.Figure:
    """Success and area against lambda, a line through the medians of each coupling, seeds as points, both splits."""
    facts = {arm: json.loads((Path(folders[0]) / "config.json").read_text()) for arm, folders in runs.items()}
    doses = {arm: one["world_model"] for arm, one in facts.items()}
    table = scores(runs)
    table = table.assign(
        lam=[doses[arm]["lam"] for arm in table["arm"]], coupling=[doses[arm]["coupling"] for arm in table["arm"]]
    )
    couplings = list(table["coupling"].unique())
    fig, axes = plt.subplots(2, 2, figsize=(10, 6.6), sharex=True, sharey="row", layout="constrained")
    for row, (measure, name) in zip(axes, MEASURES.items(), strict=True):
        for ax, (split, title) in zip(row, SPLIT_NAMES.items(), strict=True):
            part = table[table["split"] == split]
            for colour, coupling in zip(sns.color_palette(n_colors=len(couplings)), couplings, strict=True):
                one = part[part["coupling"] == coupling].sort_values("lam")
                middle = one.groupby("lam")[measure].median()
                ax.plot(one["lam"], one[measure], "o", color=colour, alpha=0.45, ms=5)
                ax.plot(middle.index, middle, color=colour, lw=2, label=f"{coupling} ({_seeds(one)})")
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
    axes[0].set_ylabel(f"area, median of {_seeds(table)}")
    return fig


def _seeds(table: pd.DataFrame) -> str:
    count = table["seed"].nunique()
    return f"{count} seed{'s' * (count > 1)}"
