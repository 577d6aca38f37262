"""Who says the notes, and who is trained, in one world and few runs: the factorial of notebooks 09 and 10.

The statistics are those of the phone's (`lfo.lab.hierarchy`). Reads run folders alone, of those that are finished
(`lfo.lab.sweep.finished`), also without adapters; `second_attempts` plays. `splits` are those that are shown, each with
its title.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.container import BarContainer

from lfo.lab.attempts import measure_attempts
from lfo.lab.factorial import FROZEN, NOTHING, TRUTH, WORLD_MODEL, about, draw_bars
from lfo.lab.hierarchy import Finding, Measure, Study, curves_of, final, lead, middle, number, read_curves, tasks_of
from lfo.lab.reading import Runs
from lfo.lab.statistics import in_percent
from lfo.runs import RunFolder

NOTES = (NOTHING, "table", WORLD_MODEL, "feedback", TRUTH)
COLUMNS = "arm notes policy split success low high runs".split()
Splits = Mapping[str, str]


def summary(runs: Runs, splits: Splits, by: str) -> pd.DataFrame:
    """Success of every arm at its last evaluation, a row per arm and split; by: as for `hierarchy.read_curves`.

    success, low, high: the median over the runs and its 95% interval.
    """
    return _measured(runs, splits, by, final)


def _measured(runs: Runs, splits: Splits, by: str, measure: Measure) -> pd.DataFrame:
    rows = []
    for split in splits:
        study = Study(read_curves(runs, split, by=by))
        rows += [summary_row(runs, arm, split, study.find(measure, middle(arm), [arm])) for arm in study.arms]
    return framed(rows)


def summary_row(runs: Runs, arm: str, split: str, found: Finding) -> dict:
    """A row of the `summary`."""
    facts = about(runs, arm)
    values = [arm, facts["notes"], facts["policy"], split, found.value, found.low, found.high, found.runs]
    return dict(zip(COLUMNS, values, strict=True))


def framed(rows: Sequence[Mapping]) -> pd.DataFrame:
    """Rows of the `summary` as a table, also where there is none."""
    numbers = {"success": float, "low": float, "high": float, "runs": int}
    return pd.DataFrame(rows, columns=COLUMNS).astype(numbers)


def beginnings(runs: Runs, splits: Splits, by: str) -> pd.DataFrame:
    """Success at the first evaluation, before anything was learned, as rows of the `summary`: what notes are worth that
    nobody knows anything for."""
    begun = _measured(runs, splits, by, number(0))
    return begun.assign(arm=begun["arm"] + ", before it heard anything")


def second_attempts(runs: Runs, splits: Splits, by: str) -> pd.DataFrame:
    """Success within two greedy attempts, the second of which reads feedback on the first, as rows of the `summary` by
    the notes "feedback"; splits, by: as there.

    Measured once for each run (`lfo.lab.attempts`), which takes its base and, the first time, what its world needs.
    """
    rows = []
    for arm, folders in runs.items():
        tries = pd.concat([_attempts(arm, RunFolder(folder), splits, by) for folder in folders])
        for split in splits:
            study = Study(curves_of(tries[tries["split"] == split], ["success"]))
            for found in (study.find(number(0), middle(name), [name]) for name in study.arms):
                row = {"arm": f"{arm}, within 2 attempts", "notes": "feedback", "policy": FROZEN, "split": split}
                rows.append(row | {"success": found.value, "low": found.low, "high": found.high, "runs": found.runs})
    return framed(rows)


def _attempts(arm: str, run: RunFolder, splits: Splits, by: str) -> pd.DataFrame:
    """Whether each task succeeded within two attempts, as `curves_of` takes it; tasks that belong to nothing are left
    out."""
    tries = measure_attempts(run.path, 2)
    within = tries[tries["attempt"] <= 2].groupby(["split", "task_id"], sort=False)["success"].max().reset_index()
    belongs = {task.task_id: getattr(task, by) for split in splits for task in tasks_of(run.config.env, split)}
    within["company_id"] = within["task_id"].map(belongs)
    facts = {"arm": arm, "world": run.config.env.world_seed, "seed": run.config.seed}
    return within[within["company_id"] != ""].assign(**facts)


def factorial_table(found: pd.DataFrame, splits: Splits) -> pd.DataFrame:
    """The `summary`, a row per arm: success in percent with its interval, on each split."""
    rows = []
    for (arm, notes, policy), part in found.groupby(["arm", "notes", "policy"], sort=False):
        row = {"arm": arm, "notes by": notes, "policy": policy, "runs": part["runs"].max()}
        for split, name in splits.items():
            cell = part[part["split"] == split]
            row[name] = in_percent(*cell[["success", "low", "high"]].to_numpy()[0]) if len(cell) else ""
        rows.append(row)
    return pd.DataFrame(rows, columns=["arm", "notes by", "policy", "runs", *splits.values()])


def factorial_figure(
    found: pd.DataFrame, splits: Splits, says: str, without: Mapping[str, Mapping[str, float]] | None = None
) -> plt.Figure:
    """Success by who says the notes, policy frozen and trained side by side; of several arms alike the first.

    says: what is asked below the bars. without: what is reached without learning, by name and split, as lines.
    """
    fig, axes = plt.subplots(1, len(splits), figsize=(13, 4), sharey=True, layout="constrained")
    for ax, (split, title) in zip(axes, splits.items(), strict=True):
        draw_bars(ax, found[found["split"] == split], NOTES)
        frozen = next(bars for bars in ax.containers if isinstance(bars, BarContainer))
        frozen[NOTES.index("feedback")].set(hatch="//", edgecolor="white")  # no bar of one attempt
        for (name, reached), style in zip((without or {}).items(), (":", "--"), strict=False):
            ax.axhline(reached[split], color="grey", lw=1, ls=style, label=name)
        ax.set(title=title, xlabel="", ylim=(0, 1.02))
    axes[0].set_ylabel("success, greedy, 95%")
    axes[0].legend(fontsize="small", loc="upper left")
    fig.supxlabel(f"{says}; hatched: within two attempts, all others: at the first", fontsize="medium")
    return fig


def gains(runs: Runs, splits: Splits, by: str, pairs: Iterable[Sequence[str]], where: str) -> pd.DataFrame:
    """How much the median of an arm is above that of another at the end, in points with its 95% interval, by pair and
    split; a pair with an arm that is missing says so.

    by: as for `summary`. where: what the column of the splits is called.
    """
    rows, studies = [], {split: Study(read_curves(runs, split, by=by)) for split in splits}
    for (arm, other), (split, name) in itertools.product(pairs, splits.items()):
        points = "not yet run"
        if {arm, other} <= set(studies[split].arms):
            found = studies[split].find(final, lead(arm, other), [arm, other])
            points = "{:+.0f} [{:+.0f}, {:+.0f}]".format(*(100 * x for x in (found.value, found.low, found.high)))
        rows.append({"arm": arm, "against": other, where: name, "points": points})
    return pd.DataFrame(rows)
