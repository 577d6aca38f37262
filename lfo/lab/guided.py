"""Feedback while a run trains: who succeeds with it and without, in which place of a group, and why the others fail."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from lfo.lab.reading import Runs, aligned, by_run, count_runs, frame
from lfo.runs import RunFolder

SHARES = {"first_try_success": "first try", "feedback_success": "with feedback", "recovery": "recovered groups"}


def guided_runs(runs: Runs) -> Runs:
    """The arms whose later attempts read feedback."""
    return {arm: folders for arm, folders in runs.items() if RunFolder(folders[0]).config.feedback}


def feedback_table(runs: Runs) -> pd.DataFrame:
    """A row per arm: means over the steps of a run, medians over the runs. Shares, and tokens per rollout.

    place k: success of the k-th rollouts; failed <kind>: share of the failed rollouts. docs/metrics.md defines them.
    """
    steps = frame(runs, "step", needed=True)
    places = [name for name in steps if name.startswith("success_at_")]
    kinds = sorted(name for name in steps if name.startswith("failed_"))
    names = [*SHARES, *sorted(places), "feedback_tokens_per_rollout", *kinds]
    steps = steps.reindex(columns=[*steps.columns, *(name for name in names if name not in steps)])
    steps[kinds] = steps[kinds].fillna(0.0)  # a kind that no failure of a step was of is not logged
    said = SHARES | {name: name.replace("success_at_", "place ") for name in places}
    said |= {name: name.replace("_", " ") for name in (*kinds, "feedback_tokens_per_rollout")}
    rows = []
    for arm, part in steps.groupby("arm", sort=False):
        means = by_run(part)[names].mean().median()
        rows.append({"arm": arm} | {said[name]: means[name] for name in names} | {"runs": count_runs(part)})
    return pd.DataFrame(rows)


def training_figure(runs: Runs) -> plt.Figure:
    """First tries, and rollouts with feedback, against sampled tasks: medians over the runs of every arm."""
    steps = frame(runs, "step", needed=True)
    fig, axes = plt.subplots(1, 2, figsize=(13, 4), sharey=True, layout="constrained")
    for ax, name in zip(axes, list(SHARES)[:2], strict=True):
        colours = sns.color_palette(n_colors=len(runs))
        for (arm, part), colour in zip(steps.groupby("arm", sort=False), colours, strict=True):
            known = part.dropna(subset=[name]).assign(success=lambda rows, name=name: rows[name])
            if len(known):
                middle = aligned(known).median(axis=1).rolling(5, min_periods=1).mean()
                ax.plot(middle.index, middle, color=colour, label=arm)
        ax.set(title=SHARES[name], xlabel="sampled tasks", ylim=(-0.02, 1.02))
    axes[0].set_ylabel("success in training, mean of 5 steps")
    axes[1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    return fig
