"""Why held-out shell tasks fail, and the epochs of one run of PPO: what a single run, of a real model say, can tell.

`measure_ends` plays a run's newest policy and writes one row per task into the run folder, the whole episode in it; the
tables and the figure are drawn from that and from metrics.jsonl alone.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from lfo.config import EnvConfig
from lfo.envs.shell.records import ShellTask
from lfo.envs.shell.trees import ROOTS
from lfo.evaluate import play_tasks
from lfo.lab.epochs import training_stats
from lfo.lab.hierarchy import tasks_of
from lfo.lab.player import Player, load_player
from lfo.lab.reading import TEMPLATE_NAMES, Runs, measurements, read_measurement, write_measurement
from lfo.lab.shell_report import copied_paths
from lfo.lab.untrained import untrained
from lfo.proportions import wilson
from lfo.runs import RunFolder
from lfo.types import Call, Rollout

ENDS = "ends.csv"
BEFORE, AFTER = "before", "after"
SPLIT_TITLES = TEMPLATE_NAMES
# How a task can end, in the order in which it is asked: what comes first is held responsible.
SUCCESS, UNREADABLE, MISCOPIED, OTHER = (
    "success",
    "an action that cannot be read",
    "a path that was never read",
    "another command than is wanted",
)
ALL_ENDS = (SUCCESS, UNREADABLE, MISCOPIED, OTHER)


def end_of(row: Rollout, request: str) -> str:
    """Which of the ends above it is. request: what was read first.

    A path that was never read is no proof that nothing else was wrong: a few tasks ask for one that is put together.
    """
    if row.success:
        return SUCCESS
    if any(not isinstance(turn.action, Call) for turn in row.turns):
        return UNREADABLE
    faithful, emitted = copied_paths([row], {row.task_id: request})
    return MISCOPIED if faithful < emitted else OTHER


def measure_ends(folder: str | Path) -> pd.DataFrame:
    """One row per held-out task and policy: split, task_id, skill, policy (`before` is the base, untrained), end, and
    turns, the greedy episode as JSON. Measured once."""
    run = RunFolder(folder)
    if run.measured(ENDS):
        return read_measurement(run, ENDS)
    rows = []
    for policy, player in ((BEFORE, untrained(run.config)), (AFTER, load_player(folder))):
        for split in SPLIT_TITLES:
            tasks = player.env.tasks(split)[: run.config.eval_tasks]
            rows += [{"split": split, "policy": policy, **row} for row in _played(player, tasks)]
    return write_measurement(run, ENDS, rows)


def _played(player: Player, tasks: Sequence[ShellTask]) -> list[dict]:
    played = play_tasks(player.engine, player.codec, player.coupling, tasks, player.config.rollout, episodes=1)
    return [
        {
            "task_id": task.task_id,
            "skill": task.skill,
            "end": end_of(row, task.instruction),
            "turns": json.dumps([dataclasses.asdict(turn) for turn in row.turns]),
        }
        for task, row in zip(tasks, played, strict=True)
    ]


def end_table(runs: Runs, by: str = "split") -> pd.DataFrame:
    """How tasks end, in percent of an arm's held-out tasks, house tools left out, of all its runs together, before and
    after training; by: known and new templates, or `root`, the folder in which a task's tree is, of the known ones.

    Runs without a measurement (`measure_ends`) are left out.
    """
    measured = {arm: [folder for folder in folders if (Path(folder) / ENDS).exists()] for arm, folders in runs.items()}
    measured = {arm: folders for arm, folders in measured.items() if folders}
    columns = ["arm", "tasks" if by == "split" else by, "policy", *ALL_ENDS, "episodes"]
    if not measured:
        return pd.DataFrame(columns=columns)
    data = measurements(measured, ENDS, "run `lfo.lab.shell_failures.measure_ends` on it")
    data = data[data["skill"] != "house"]
    if by == "split":
        data = data.assign(tasks=data["split"].map(SPLIT_TITLES))
    else:
        roots = _roots(RunFolder(next(iter(measured.values()))[0]).config.env)
        data = data[data["split"] == "validation"].assign(root=data["task_id"].map(roots))
    rows = []
    for names, part in data.groupby(columns[:3], sort=False):
        shares = 100 * part["end"].value_counts(normalize=True)
        row = dict(zip(columns[:3], names, strict=True))
        rows.append(row | {end: shares.get(end, 0.0) for end in ALL_ENDS} | {"episodes": len(part)})
    return pd.DataFrame(rows, columns=columns)


def _roots(env: EnvConfig) -> dict[str, str]:
    """Validation task_id -> the folder in which the task's tree is."""
    return {
        task.task_id: next((root for root in ROOTS["validation"] if root in task.initialization), "")
        for task in tasks_of(env, "validation")
    }


# --- epochs ----------------------------------------------------------------------------------


def epoch_table(folder: str | Path) -> pd.DataFrame:
    """One row per epoch of a run: what `training_stats.json` has, and the share of validation failures."""
    run = RunFolder(folder)
    steps = [row for row in run.metrics() if row["kind"] == "step"]
    rows = [training_stats(run.config, row) | {"unreadable": row["train_validation_failure"]} for row in steps]
    return pd.DataFrame(rows)


def held_out_table(folder: str | Path) -> pd.DataFrame:
    """Greedy success of a run on its held-out tasks at every evaluation: split, level (0 is all), success with its 95%
    Wilson interval over the tasks, n of them."""
    rows = [row for row in RunFolder(folder).metrics() if row["kind"] == "success"]
    found = pd.DataFrame(rows)[["tasks", "split", "level", "success", "low", "high", "n"]]
    return found.rename(columns={"tasks": "episodes"}).assign(split=found["split"].map(SPLIT_TITLES))


def epoch_figure(folder: str | Path) -> plt.Figure:
    """A run's curve: the share that succeeds of what each epoch samples, and greedy success on held-out tasks."""
    epochs, held_out = epoch_table(folder), held_out_table(folder).query("level == 0")
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    played = epochs["trajectories"].cumsum()
    bounds = [wilson(int(hits), int(n)) for hits, n in zip(epochs["correct"], epochs["trajectories"], strict=True)]
    _draw(left, played, epochs["accuracy"], *zip(*bounds, strict=True), "succeed")
    left.plot(played, epochs["unreadable"], marker="x", ls=":", label="say what cannot be read")
    left.set(title="training tasks, sampled, before each epoch's update", xlabel="episodes", ylabel="share, 95%")
    for title, part in held_out.groupby("split", sort=False):
        _draw(right, part["episodes"], part["success"], part["low"], part["high"], title)
    right.set(title="held-out tasks, greedy", xlabel="episodes")
    for ax in (left, right):
        ax.set_ylim(0, 1.3 * max([high for _, high in bounds] + held_out["high"].tolist()))  # room for the legend
        ax.legend(loc="upper right")
    return fig


def _draw(ax: plt.Axes, x, y, low, high, label: str) -> None:
    (line,) = ax.plot(x, y, marker="o", label=label)
    ax.fill_between(x, low, high, alpha=0.15, color=line.get_color(), lw=0)
