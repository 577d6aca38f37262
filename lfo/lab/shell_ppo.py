"""The shell world: PPO beside DAPO, and success by skill and level (notebook 09).

Run folders are read without a sandbox. The factorial is `lfo.lab.small_factorial`'s.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from lfo.envs.shell.sandbox import require_system
from lfo.envs.shell.systems import SandboxError
from lfo.lab import factorial
from lfo.lab.factorial import draw_curves
from lfo.lab.hierarchy import Finding, Measure, Study, final, lead, middle, number, read_curves
from lfo.lab.reading import SPLIT_NAMES, TEMPLATE_NAMES, Runs
from lfo.lab.statistics import in_percent
from lfo.runs import RunFolder

SPLITS = {"validation": "known machines (validation)", "test": "new machines (test)"}  # of house tools
HELD_OUT = TEMPLATE_NAMES  # of all tasks
MACHINE, UNIT = "machine", "unit"  # of a task: house tools alone, and everything
LEVELS = (1, 2, 3)


def unplayable() -> str:
    """Why no shell task can be played here, in a sentence; "" where they can."""
    try:
        require_system()
    except SandboxError as error:
        return str(error)
    return ""


def of_world(runs: Runs, name: str) -> dict:
    """The arms that act in this environment."""
    return {arm: folders for arm, folders in runs.items() if RunFolder(folders[0]).config.env.name == name}


# --- objectives ------------------------------------------------------------------------------


def growth_table(runs: Runs) -> pd.DataFrame:
    """Success of each arm before and after training, with 95% intervals, and how many times as much that is."""
    rows = []
    for arm in runs:
        shell = RunFolder(runs[arm][0]).config.env.name == "shell"
        for split, title in (HELD_OUT if shell else SPLIT_NAMES).items():
            study = Study(read_curves({arm: runs[arm]}, split))
            if study.curves:
                before, after = (_found(study, measure, arm) for measure in (number(0), final))
                times = after.value / before.value if before.value else np.nan
                row = {"arm": arm, "tasks": title, "before": _text(before), "after": _text(after), "times": times}
                rows.append(row | {"runs": after.runs})
    return pd.DataFrame(rows, columns=["arm", "tasks", "before", "after", "times", "runs"])


def _found(study: Study, measure: Measure, arm: str) -> Finding:
    return study.find(measure, middle(arm), [arm])


def _text(found: Finding) -> str:
    return in_percent(found.value, found.low, found.high)


def objectives_figure(shell: Runs, phone: Runs) -> plt.Figure:
    """Success of some arms against sampled episodes, the shell world above, the phone's below."""
    fig, axes = plt.subplots(2, 2, figsize=(13, 8), sharey=True, layout="constrained")
    draw_curves(axes[0], shell, {split: f"shell, {title}" for split, title in HELD_OUT.items()}, "episodes")
    draw_curves(axes[1], phone, {split: f"phone, {title}" for split, title in SPLIT_NAMES.items()}, "episodes")
    return fig


def settings_table(runs: Runs) -> pd.DataFrame:
    """Success of each arm at the end, on known templates, and how many points that is above the arm `ppo`, 95%."""
    study = Study(read_curves(runs, "validation", by=UNIT))
    rows = []
    for arm in study.arms:
        after, ahead = _found(study, final, arm), study.find(final, lead(arm, "ppo"), [arm, "ppo"])
        points = {"points": 100 * ahead.value, "low": 100 * ahead.low, "high": 100 * ahead.high}
        rows.append({"arm": arm, "after": _text(after)} | points | {"runs": after.runs})
    return pd.DataFrame(rows, columns=["arm", "after", "points", "low", "high", "runs"])


# --- skills and levels -----------------------------------------------------------------------


def level_table(runs: Runs) -> pd.DataFrame:
    """Success at the last evaluation by arm, split and level, medians over the runs with 95% intervals."""
    found = factorial.level_table(runs, HELD_OUT, LEVELS, UNIT).rename(columns={"companies": "tasks"})
    return found.reindex(columns="arm tasks level success low high runs".split())


def skill_table(runs: Runs) -> pd.DataFrame:
    """Share of the held-out tasks of each skill (house: with house tools) that succeed at the last evaluation, by arm.

    Of both splits and all runs together; episodes: how many there were.
    """
    rows = []
    for curve in (curve for split in HELD_OUT for curve in read_curves(runs, split, by="skill")):
        rows += [
            {"arm": curve.arm, "skill": skill, "success": success}
            for skill, success in zip(curve.companies, curve.successes[-1], strict=True)
        ]
    data = pd.DataFrame(rows, columns=["arm", "skill", "success"])
    found = data.groupby(["arm", "skill"], sort=False)["success"].agg(success="mean", episodes="size")
    return found.reset_index()


def skill_figure(levels: pd.DataFrame, skills: pd.DataFrame) -> plt.Figure:
    """Success by level, both splits, and by skill, arms down; the easiest skill, over all arms, first."""
    fig = plt.figure(figsize=(13, 8), layout="constrained")
    above, below = fig.subfigures(2, 1)
    axes = above.subplots(1, 2, sharey=True)
    arms = list(dict.fromkeys(levels["arm"]))
    colors = dict(zip(arms, sns.color_palette("tab20" if len(arms) > 10 else None, len(arms)), strict=True))
    for ax, title in zip(axes, HELD_OUT.values(), strict=True):
        part = levels[levels["tasks"] == title]
        for i, (arm, one) in enumerate(part.groupby("arm", sort=False)):
            error = np.vstack([one["success"] - one["low"], one["high"] - one["success"]]).clip(min=0)
            width = 0.8 / part["arm"].nunique()
            x = one["level"] + (i + 0.5) * width - 0.4
            ax.bar(x, one["success"], 0.95 * width, yerr=error, error_kw={"lw": 1}, label=arm, color=colors[arm])
        ax.set(title=title, xlabel="level", xticks=LEVELS, ylim=(0, 1.02))
        ax.grid(axis="x", visible=False)
    axes[0].set_ylabel("success, greedy, 95%")
    if len(levels):
        axes[1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
        table = skills.pivot(index="arm", columns="skill", values="success").loc[skills["arm"].unique()]
        table = table[table.mean().sort_values(ascending=False, kind="stable").index]
        ax = below.subplots()
        sns.heatmap(table, ax=ax, vmin=0, vmax=1, cmap="viridis", cbar_kws={"label": "success"}, linewidths=0.5)
        ax.set(xlabel="skill, both splits", ylabel="")
    return fig
