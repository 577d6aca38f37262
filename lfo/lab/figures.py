"""Figures: learning curves, signals and bars of training runs and of frozen ones, and of the environment.

Drawn from run folders, tables and the world's tasks. Never loads a model, nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.lines import Line2D

from lfo.lab.factorial import final_table
from lfo.lab.reading import SPLIT_NAMES, Runs, aligned, frame, seeds_of, split_titles, success_frame
from lfo.lab.transfer_tables import transfer_table


def style() -> None:
    """One look for all figures; colours that colour-blind readers can tell apart."""
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind")
    plt.rcParams.update({"figure.dpi": 80, "savefig.dpi": 120, "svg.hashsalt": "lfo", "axes.titlesize": "medium"})


# --- training --------------------------------------------------------------------------------


def learning_curves(runs: Runs) -> plt.Figure:
    """Success against sampled tasks on every split: the median over the runs, in a band from least to most."""
    data = success_frame(runs)
    titles = split_titles(runs, data)
    fig, axes = plt.subplots(1, len(titles), figsize=(13, 4), sharey=True, squeeze=False)
    axes = axes[0]
    colours = dict(zip(runs, sns.color_palette(n_colors=len(runs)), strict=True))
    dashes = {arm: "--" if i >= len(sns.color_palette()) else "-" for i, arm in enumerate(runs)}  # colours come again
    for ax, (split, title) in zip(axes, titles.items(), strict=True):
        part = data[data["split"] == split]
        for arm, one in part.groupby("arm", sort=False):
            curves = aligned(one)
            look = {"color": colours[arm], "ls": dashes[arm], "lw": 2.5, "marker": "o", "ms": 4}
            ax.plot(curves.index, curves.median(axis=1), label=f"{arm} ({seeds_of(one)})", **look)
            ax.fill_between(curves.index, curves.min(axis=1), curves.max(axis=1), color=colours[arm], alpha=0.15, lw=0)
        ax.axhline(0.7, color="grey", lw=1, ls=":")
        ax.set(title=title, xlabel="sampled tasks", ylim=(-0.02, 1.02))
    axes[0].set_ylabel("success, greedy")
    title = {"title": "median and range of", "title_fontsize": "small"}
    axes[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize="small", **title)
    fig.tight_layout()
    return fig


def success_by_level(runs: Runs) -> plt.Figure:
    """Success at the last evaluation by level and split: medians over the runs with 95% intervals."""
    table = final_table(runs).query("level != 'all'")
    titles = [title for title in split_titles(runs, success_frame(runs)).values() if title in set(table["companies"])]
    fig, axes = plt.subplots(1, len(titles), figsize=(13, 3.6), sharey=True, squeeze=False, layout="constrained")
    axes = axes[0]
    for ax, title in zip(axes, titles, strict=True):
        _interval_bars(ax, table[table["companies"] == title], "arm")
        ax.set(title=title, xlabel="level", ylim=(0, 1.02))
    axes[0].set_ylabel("success, 95% interval")
    handles, labels = max((ax.get_legend_handles_labels() for ax in axes), key=lambda found: len(found[1]))
    axes[-1].legend(handles, labels, fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    return fig


def world_model_curves(runs: Runs) -> plt.Figure:
    """What the world model knows against sampled tasks: answers to calls on the tasks' ways, reply-token accuracy."""
    rules, steps = frame(runs, "rules"), frame(runs, "step")
    fig, axes = plt.subplots(1, 2, figsize=(11, 3.8))
    named = rules.assign(companies=rules["split"].map(split_titles(runs, rules)))
    sns.lineplot(named, x="tasks", y="rule_accuracy", hue="companies", style="arm", errorbar=("pi", 100), ax=axes[0])
    axes[0].set(title="calls to which it says what would be answered", xlabel="sampled tasks", ylabel="share")
    axes[0].set_ylim(-0.02, 1.02)
    axes[0].legend(fontsize="x-small", title=None)
    for column, label in (("world_model/accuracy", "new replies"), ("replay/world_model/accuracy", "replayed replies")):
        if column in steps:
            sns.lineplot(steps, x="tasks", y=column, label=label, errorbar=("pi", 100), ax=axes[1])
    axes[1].set(title="reply tokens predicted (teacher-forced)", xlabel="sampled tasks", ylabel="share", ylim=(0, 1.02))
    fig.tight_layout()
    return fig


def training_signals(runs: Runs) -> plt.Figure:
    """Is learning healthy: sampler entropy, gradient norms before clipping, informative groups; a panel for each of
    these that any run logged."""
    steps = frame(runs, "step", needed=True)
    panels = {
        "policy/neg_logprob": "action-token entropy (nats, sampled)",
        "policy/grad_norm": "policy gradient norm",
        "replay/world_model/grad_norm": "world-model gradient norm (replay)",
        "share_kept": "informative groups (share)",
    }
    steps = steps.assign(share_kept=steps["groups_kept"] / steps["groups_sampled"])
    panels = {column: title for column, title in panels.items() if column in steps}
    fig, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.2), squeeze=False)
    for ax, (column, title) in zip(axes[0], panels.items(), strict=True):
        sns.lineplot(steps, x="tasks", y=column, hue="arm", errorbar=("pi", 100), ax=ax, legend=ax is axes[0, 0])
        ax.set(title=title, xlabel="sampled tasks", ylabel="")
    axes[0, 0].legend(fontsize="x-small")
    fig.tight_layout()
    return fig


# --- frozen runs -----------------------------------------------------------------------------


def transfer_figure(runs: Runs, by: str) -> plt.Figure:
    """`transfer_table` by level or variation, known phrasings: one panel for known and one for new companies."""
    table = transfer_table(runs, by).query("phrasings == 'known'").rename(columns={by: "level"})
    fig, axes = plt.subplots(1, 2, figsize=(13, 3.8), sharey=True, layout="constrained")
    for ax, title in zip(axes, SPLIT_NAMES.values(), strict=True):
        _interval_bars(ax, table[table["companies"] == title].fillna({"low": 0, "high": 1}), "arm")
        ax.set(title=title, xlabel=by, ylim=(0, 1.02))
    axes[0].set_ylabel("success, median of runs, 95%")
    axes[1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    return fig


def _interval_bars(ax: plt.Axes, data: pd.DataFrame, hue: str) -> None:
    """Bars of `success` grouped by level, one colour per value of `hue`, with whiskers from `low` to `high`."""
    if data.empty:  # a split that was not evaluated
        return
    names, levels = list(data[hue].unique()), sorted(data["level"].unique())
    width = 0.84 / len(names)
    for i, name in enumerate(names):
        one = data[data[hue] == name].sort_values("level")
        x = np.array([levels.index(v) for v in one["level"]]) + (i - (len(names) - 1) / 2) * width
        error = np.vstack([one["success"] - one["low"], one["high"] - one["success"]]).clip(min=0)
        hatch = "///" if i >= len(sns.color_palette()) else None  # colours come again
        ax.bar(x, one["success"], width, yerr=error, error_kw={"lw": 1, "capsize": 2}, label=name, hatch=hatch)
    ax.set_xticks(range(len(levels)), levels)
    ax.grid(axis="x", visible=False)


# --- the environment (notebook 01) -----------------------------------------------------------


def reference_figure(rows: Sequence[Mapping]) -> plt.Figure:
    """Success of the reference policies by level with Wilson 95% intervals; one panel per set of rules, if given."""
    data = pd.DataFrame(rows).query("level > 0")
    panels = dict(list(data.groupby("rules", sort=False))) if "rules" in data else {"": data}
    size = (max(8.5, 4.2 * len(panels)), 4)
    fig, axes = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for ax, (title, part) in zip(axes[0], panels.items(), strict=True):
        _interval_bars(ax, part, "policy")
        ax.set(title=title, xlabel="level", ylim=(0, 1.04))
    axes[0, 0].set_ylabel("success, 95% interval")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize="small", frameon=False)
    return fig


def learnability_figure(rows: Sequence[Mapping]) -> plt.Figure:
    """Exact field sets against observed calls: median over the seeds, all seeds shaded, with what to compare it to."""
    data = pd.DataFrame(rows)
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True, layout="constrained")
    colours = sns.color_palette()
    for ax, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        part = data[data["split"] == split]
        by_calls = part.groupby("calls")["accuracy"]
        middle = by_calls.median()
        ax.fill_between(middle.index, by_calls.min(), by_calls.max(), color=colours[0], alpha=0.2, lw=0)
        seeds = part["seed"].nunique()
        ax.plot(middle.index, middle, marker="o", color=colours[0], label=f"decision trees (median of {seeds} seeds)")
        ax.axhline(part["typical"].iloc[0], color=colours[2], ls="--", label="typical requirements (hidden)")
        ax.axhline(part["chance"].iloc[0], color="grey", ls=":", label="always the most frequent set")
        ax.set_xscale("log")
        ax.set_xticks(middle.index, [str(n) for n in middle.index])
        ax.minorticks_off()
        ax.set(title=title, xlabel="observed calls of the random policy", ylim=(-0.02, 1.04))
    axes[0].set_ylabel("departments with the exact set")
    axes[1].legend(loc="upper left", fontsize="small")
    return fig


def entropy_figure(rows: Sequence[Mapping]) -> plt.Figure:
    """Bits of uncertainty about a department's field set, by what is known about the department."""
    data = pd.DataFrame(rows)
    fig, ax = plt.subplots(figsize=(8.5, 2.8), layout="constrained")
    bars = ax.barh(data["given"], data["bits"], color=sns.color_palette()[0])
    cases = ["1 case" if cells == 1 else f"{cells} cases" for cells in data["cells"]]
    labels = [f"{bits:.2f} bits ({case})" for bits, case in zip(data["bits"], cases, strict=True)]
    ax.bar_label(bars, labels, padding=4)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="entropy of the required field set (bits)", ylabel="known", xlim=(0, 1.4 * data["bits"].max()))
    return fig


REPLY_STYLES = {"reasons": "-", "list": "--"}


def dial_figure(rows: Sequence[Mapping]) -> plt.Figure:
    """`lfo.lab.dials.dial_rows`: answers that are right against the number of circumstances, by teller, replies (with
    reasons or dashed), calls heard (across) and companies (down): the mean of the worlds, in a band from the least to
    the most."""
    data = pd.DataFrame(rows)
    heard, tellers = sorted(data["heard"].unique()), list(data["teller"].unique())
    colours = dict(zip(tellers, sns.color_palette(n_colors=len(tellers)), strict=True))
    size = (4 * len(heard) + 2.5, 6.4)
    fig, axes = plt.subplots(2, len(heard), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained")
    for row, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        for ax, count in zip(row, heard, strict=True):
            part = data[(data["split"] == split) & (data["heard"] == count)]
            for (teller, replies), one in part.groupby(["teller", "replies"], sort=False):
                right, colour = one.groupby("circumstances")["right"], colours[teller]
                middle = right.mean()
                ax.plot(middle.index, middle, marker="o", color=colour, ls=REPLY_STYLES[replies])
                ax.fill_between(middle.index, right.min(), right.max(), color=colour, alpha=0.15, lw=0)
            ax.set(title=f"{title}, {count} calls heard", ylim=(-0.02, 1.02))
        row[0].set_ylabel("answers that mean what is true")
    axes[0, 0].set_xticks(sorted(data["circumstances"].unique()))
    for ax in axes[1]:
        ax.set_xlabel("kinds of circumstances")
    lines = [Line2D([], [], color=colour, marker="o", label=teller) for teller, colour in colours.items()]
    kinds = [kind for kind in REPLY_STYLES if kind in set(data["replies"])]
    lines += [Line2D([], [], color="grey", ls=REPLY_STYLES[kind], label=f"replies: {kind}") for kind in kinds]
    axes[0, -1].legend(handles=lines, fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    return fig
