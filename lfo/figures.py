"""Result files -> figures and tables. Never loads a model: a report rebuilds from run folders alone.

`docs/metrics.md` defines every logged metric. Every figure and table is written with its
provenance beside it: runs, seeds, commit, packages, machine, wall time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

THRESHOLDS = (0.5, 0.7, 0.9)
SPLIT_NAMES = {"validation": "known companies (validation)", "test": "new companies (test)"}
Runs = Mapping[str, Sequence[str | Path]]  # label -> run folders, one per seed


class ResultError(ValueError):
    """A run folder lacks what a figure needs; the message says how to make it."""


def style() -> None:
    """One look for all figures; colours that colour-blind readers can tell apart."""
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind")
    plt.rcParams.update({"figure.dpi": 90, "savefig.dpi": 120, "svg.hashsalt": "lfo", "axes.titlesize": "medium"})


def read_metrics(folder: str | Path) -> list[dict]:
    """All rows of a run's metrics.jsonl.

    Raises:
        ResultError: the run was not started, or its last line was cut off.
    """
    path = Path(folder) / "metrics.jsonl"
    if not path.exists():
        raise ResultError(f"{path} is missing; train first, e.g. `lfo train --config configs/laptop.yaml --run {folder}`.")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            raise ResultError(f"{path}, line {number} is not JSON; start the run again, it resumes and mends it.") from None
    return rows


def frame(runs: Runs, kind: str) -> pd.DataFrame:
    """Rows of one kind of all runs, with columns `arm` and `seed`."""
    frames = []
    for arm, folders in runs.items():
        for folder in folders:
            rows = [r for r in read_metrics(folder) if r["kind"] == kind]
            frames.append(pd.json_normalize(rows).assign(arm=arm, seed=_seed(folder)))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _seed(folder: str | Path) -> int:
    return json.loads((Path(folder) / "config.json").read_text())["seed"]


# --- tables ----------------------------------------------------------------------------------


def tasks_to_threshold(success: pd.DataFrame, threshold: float) -> float:
    """Sampled tasks at the first evaluation with success >= threshold; inf where it was never reached.

    `success`: rows of one run, one split and one level.
    """
    reached = success.loc[success["success"] >= threshold, "tasks"]
    return float(reached.min()) if len(reached) else float("inf")


def threshold_table(runs: Runs) -> pd.DataFrame:
    """Median tasks to 50 / 70 / 90% over the seeds, by arm and split; '> N' where the median run never arrived."""
    data = frame(runs, "success").query("level == 0")
    rows = []
    for (arm, split), part in data.groupby(["arm", "split"], sort=False):
        row = {"arm": arm, "split": split, "seeds": part["seed"].nunique()}
        for threshold in THRESHOLDS:
            per_seed = [tasks_to_threshold(one, threshold) for _, one in part.groupby("seed")]
            median = float(np.median(per_seed))
            row[f"tasks to {threshold:.0%}"] = f"{median:.0f}" if np.isfinite(median) else f"> {part['tasks'].max()}"
        rows.append(row)
    return pd.DataFrame(rows)


def final_table(runs: Runs) -> pd.DataFrame:
    """Success at the last evaluation, by arm, split and level (0: all); episodes pooled over seeds, Wilson 95%."""
    from lfo.evaluate import wilson

    data = frame(runs, "success")
    last = data[data["tasks"] == data.groupby(["arm", "seed"])["tasks"].transform("max")]
    rows = []
    for (arm, split, level), part in last.groupby(["arm", "split", "level"], sort=False):
        n = int(part["n"].sum())
        hits = round(float((part["success"] * part["n"]).sum()))
        low, high = wilson(hits, n)
        rows.append({"arm": arm, "split": split, "level": level or "all", "success": hits / n, "low": low, "high": high,
                     "episodes": n, "seeds": part["seed"].nunique()})  # fmt: skip
    return pd.DataFrame(rows)


def reply_table(runs: Runs) -> pd.DataFrame:
    """Semantic accuracy of the world model on real replies at the last evaluation, by category."""
    data = frame(runs, "reply")
    last = data[data["tasks"] == data.groupby(["arm", "seed"])["tasks"].transform("max")]
    last = last.assign(hits=last["accuracy"] * last["n"])
    table = last.groupby(["arm", "split", "category"])[["hits", "n"]].sum().reset_index()
    return table.assign(accuracy=table["hits"] / table["n"]).drop(columns="hits")


# --- figures ---------------------------------------------------------------------------------


def learning_curves(runs: Runs) -> plt.Figure:
    """Success against sampled tasks on both splits: every seed thin, the median over the seeds thick."""
    data = frame(runs, "success").query("level == 0")
    fig, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    colours = dict(zip(runs, sns.color_palette(n_colors=len(runs)), strict=True))
    for ax, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        part = data[data["split"] == split]
        for (arm, _), one in part.groupby(["arm", "seed"]):
            ax.plot(one["tasks"], one["success"], color=colours[arm], alpha=0.35, lw=1)
        for arm, one in part.groupby("arm", sort=False):
            middle = one.groupby("tasks")["success"].median()
            middle = middle[one.groupby("tasks")["seed"].nunique() == one["seed"].nunique()]
            label = f"{arm} (median of {one['seed'].nunique()} seed{'s' * (one['seed'].nunique() > 1)})"
            ax.plot(middle.index, middle, color=colours[arm], lw=2.5, marker="o", ms=4, label=label)
        ax.axhline(0.7, color="grey", lw=1, ls=":")
        ax.set(title=title, xlabel="sampled tasks", ylim=(-0.02, 1.02))
    axes[0].set_ylabel("success, greedy")
    axes[0].legend(loc="upper left", fontsize="small")
    fig.tight_layout()
    return fig


def success_by_level(runs: Runs) -> plt.Figure:
    """Success at the last evaluation by level and split, with Wilson 95% intervals."""
    table = final_table(runs)
    table = table[table["level"] != "all"]
    fig, axes = plt.subplots(1, 2, figsize=(11, 3.6), sharey=True)
    for ax, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        part = table[table["split"] == split]
        arms, levels = list(runs), sorted(part["level"].unique())
        width = 0.8 / len(arms)
        for i, arm in enumerate(arms):
            one = part[part["arm"] == arm].sort_values("level")
            x = np.array([levels.index(v) for v in one["level"]]) + (i - (len(arms) - 1) / 2) * width
            error = np.vstack([one["success"] - one["low"], one["high"] - one["success"]])
            ax.bar(x, one["success"], width, yerr=error, capsize=3, label=arm)
        ax.set_xticks(range(len(levels)), [f"level {v}" for v in levels])
        ax.set(title=title, ylim=(0, 1.02))
    axes[0].set_ylabel("success, 95% interval")
    axes[0].legend(fontsize="small")
    fig.tight_layout()
    return fig


def world_model_curves(runs: Runs) -> plt.Figure:
    """What the world model knows against sampled tasks: exact field sets of departments, reply-token accuracy."""
    rules, steps = frame(runs, "rules"), frame(runs, "step")
    fig, axes = plt.subplots(1, 2, figsize=(11, 3.8))
    named = rules.assign(companies=rules["split"].map(SPLIT_NAMES))
    sns.lineplot(named, x="tasks", y="rule_accuracy", hue="companies", style="arm", errorbar=("pi", 100), ax=axes[0])
    axes[0].set(title="departments whose exact required fields it names", xlabel="sampled tasks", ylabel="share",
                ylim=(-0.02, 1.02))  # fmt: skip
    axes[0].legend(fontsize="x-small", title=None)
    for column, label in (("world_model/accuracy", "new replies"), ("replay/world_model/accuracy", "replayed replies")):
        if column in steps:
            sns.lineplot(steps, x="tasks", y=column, label=label, errorbar=("pi", 100), ax=axes[1])
    axes[1].set(title="reply tokens predicted (teacher-forced)", xlabel="sampled tasks", ylabel="share", ylim=(0, 1.02))
    fig.tight_layout()
    return fig


def training_signals(runs: Runs) -> plt.Figure:
    """Is learning healthy: sampler entropy, gradient norms before clipping, informative groups."""
    steps = frame(runs, "step")
    panels = {
        "policy/neg_logprob": "action-token entropy (nats, sampled)",
        "policy/grad_norm": "policy gradient norm",
        "replay/world_model/grad_norm": "world-model gradient norm (replay)",
        "share_kept": "share of sampled groups that are informative",
    }
    steps = steps.assign(share_kept=steps["groups_kept"] / steps["groups_sampled"])
    fig, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.2))
    for ax, (column, title) in zip(axes, panels.items(), strict=True):
        if column in steps:
            sns.lineplot(steps, x="tasks", y=column, hue="arm", errorbar=("pi", 100), ax=ax, legend=ax is axes[0])
        ax.set(title=title, xlabel="sampled tasks", ylabel="")
    axes[0].legend(fontsize="x-small")
    fig.tight_layout()
    return fig


def phase_seconds(runs: Runs) -> pd.DataFrame:
    """Wall seconds per phase of the loop, summed over a run, median over the seeds."""
    data = pd.concat([frame(runs, "step"), frame(runs, "seconds")])
    columns = [c for c in data if c.startswith("seconds.")]
    table = data.groupby(["arm", "seed"])[columns].sum().groupby("arm").median()
    return table.rename(columns=lambda c: c.removeprefix("seconds.")).reset_index()


# --- writing ---------------------------------------------------------------------------------


def provenance_of(runs: Runs) -> dict:
    """Provenance of everything drawn from these runs, read from their folders."""
    entries = []
    for arm, folders in runs.items():
        for folder in folders:
            facts = json.loads((Path(folder) / "provenance.json").read_text())
            seconds = sum(sum(r.get("seconds", {}).values()) for r in read_metrics(folder))
            entries.append({"arm": arm, "run": Path(folder).name, "wall_seconds": round(seconds), **facts})
    return {"runs": entries}


def save_figure(fig: plt.Figure, path: str | Path, runs: Runs) -> Path:
    """Write PNG and SVG and, beside them, the provenance; return the PNG's path."""
    path = Path(path).with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, metadata={"Software": None})
    fig.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    path.with_suffix(".json").write_text(json.dumps(provenance_of(runs), indent=1) + "\n")
    return path


def save_table(table: pd.DataFrame, path: str | Path, runs: Runs) -> Path:
    """Write CSV and Markdown and, beside them, the provenance; return the CSV's path."""
    path = Path(path).with_suffix(".csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format="%.4f")
    path.with_suffix(".md").write_text(table.to_markdown(index=False, floatfmt=".3f") + "\n")
    path.with_suffix(".json").write_text(json.dumps(provenance_of(runs), indent=1) + "\n")
    return path
