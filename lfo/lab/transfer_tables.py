"""Tables of frozen runs: elsewhere (transfer.csv), told more or less (told.csv), by the notes they read (notes.csv),
what they know (way.csv), see `lfo.lab.transfer`; within several attempts (attempts.csv, attempts_noted.csv), see
`lfo.lab.attempts`.

Every interval is that of `lfo.lab.hierarchy`: worlds, runs, companies and tasks are resampled.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lfo.config import EnvConfig
from lfo.envs import make_environment
from lfo.lab.factorial import overview
from lfo.lab.hierarchy import Curve, Measure, Study, curves_of, lead, middle, number
from lfo.lab.reading import RUN, Runs, by_run, cells, count_runs, measurements, parts
from lfo.lab.statistics import Estimate, in_percent, pass_hat_k
from lfo.runs import RunFolder
from lfo.types import Task

TRANSFER, TOLD, NOTES, WAY, ATTEMPTS = "transfer.csv", "told.csv", "notes.csv", "way.csv", "attempts.csv"
NOTED, KEPT = "attempts_noted.csv", ", notes kept"  # of those whose later attempts read their arm's notes as well
FIRST, AT_MOST = number(0), "notes at most"


def transfer_frame(runs: Runs) -> pd.DataFrame:
    """What `lfo.lab.transfer.measure` wrote; acquaintance: a company's rules, and whether a task there was sampled in
    training."""
    rows = measurements(runs, TRANSFER, "run notebook 04, or `lfo.lab.transfer.measure` on the run folder")
    called = rows["called"].map({True: "called before", False: "never called"})
    return with_tasks(rows, runs).assign(acquaintance=rows["variation"] + ", " + called)


def transferred(runs: Runs, split: str, levels: Sequence[int] | None) -> list[Curve]:
    """Success of frozen runs on a split, known phrasings, at these levels (None: all), as curves of one place."""
    if not runs:
        return []
    rows = transfer_frame(runs).query("split == @split and not held_out_phrasing")
    return curves_of(rows if levels is None else rows[rows["level"].isin(levels)], ["success"])


def within(runs: Runs, split: str, attempts: int) -> list[Curve]:
    """Success within so many attempts on a split, of the runs where that was measured, as curves of one place."""
    there = {arm: there for arm, there in _with_file(runs, ATTEMPTS).items() if there}
    if not there:
        return []
    return curves_of(best_of(attempt_frame(there).query("split == @split"), attempts), ["success"])


def attempt_frame(runs: Runs) -> pd.DataFrame:
    """All attempts of the runs. Those whose later ones read their arm's notes as well are of an arm of their own,
    `<arm>, notes kept`, where that was measured.

    Raises:
        RunError: nobody tried again in a run.
    """
    remedy = "run notebook 04, or `lfo.lab.attempts.measure_attempts` on the run folder"
    rows, kept = measurements(runs, ATTEMPTS, remedy), _with_file(runs, NOTED)
    if any(kept.values()):
        noted = measurements(kept, NOTED, remedy)
        rows = pd.concat([rows, noted.assign(arm=noted["arm"] + KEPT)], ignore_index=True)
        runs = dict(runs) | {arm + KEPT: there for arm, there in kept.items()}
    return with_tasks(rows, runs)


def informed(runs: Runs, split: str) -> list[Curve]:
    """Success on a split of policies that are told the truth, where that was measured, as curves of one place."""
    there = _with_file(runs, TOLD)
    if not any(there.values()):
        return []
    return curves_of(told_frame(there).query("split == @split and told == 'truth'"), ["success"])


def _with_file(runs: Runs, file: str) -> Runs:
    return {arm: [folder for folder in folders if (Path(folder) / file).exists()] for arm, folders in runs.items()}


def best_of(rows: pd.DataFrame, attempts: int) -> pd.DataFrame:
    """A row per task of a run: whether any of so many first attempts succeeded."""
    tasks = rows[rows["attempt"] <= attempts].groupby(["arm", *RUN, "task_id", "company_id"], sort=False)
    return tasks["success"].max().reset_index()


def told_frame(runs: Runs) -> pd.DataFrame:
    rows = measurements(runs, TOLD, "run notebook 05 or 04, or `lfo.lab.transfer.measure_told` on the run folder")
    return with_tasks(rows, runs)


def notes_frame(runs: Runs) -> pd.DataFrame:
    rows = measurements(runs, NOTES, "run notebook 04, or `lfo.lab.transfer.measure_notes` on the run folder")
    return with_tasks(rows.rename(columns={"most": AT_MOST}), runs)


def with_tasks(rows: pd.DataFrame, runs: Runs) -> pd.DataFrame:
    """A measurement with the `company_id` and the `level` of every task."""
    configs = [(arm, RunFolder(folder).config.env) for arm, folders in runs.items() for folder in folders]
    of = {(arm, env.world_seed): _tasks(env) for arm, env in configs}
    keys = zip(rows["arm"], rows["world"], rows["task_id"], strict=True)
    tasks = [of[arm, world][task] for arm, world, task in keys]
    return rows.assign(company_id=[task.company_id for task in tasks], level=[task.level for task in tasks])


@functools.cache
def _tasks(env: EnvConfig) -> Mapping[str, Task]:
    """Those of all levels, by their ids."""
    return {task.task_id: task for task in make_environment(env).world.tasks}


def estimate(part: pd.DataFrame, numbers: Sequence[str], measure: Measure = FIRST) -> Estimate:
    """The median over the runs of one arm of a measure of some numbers."""
    (arm,) = part["arm"].unique()
    found = Study(curves_of(part, numbers)).find(measure, middle(arm), [arm])
    return Estimate(found.value, found.low, found.high, found.runs)


def transfer_table(runs: Runs, by: str | None = None) -> pd.DataFrame:
    """Success of frozen runs by arm, split and phrasing, and by `by` (level | variation | acquaintance): medians over
    runs, 95%."""
    rows = []
    for named, part in parts(transfer_frame(runs), "arm", "split", "held_out_phrasing", by):
        success, tasks = estimate(part, ["success"]), part["task_id"].nunique()
        rows.append(named | cells(success, "success") | {"runs": success.n, "tasks": tasks})
    return pd.DataFrame(rows)


def phrasing_table(runs: Runs) -> pd.DataFrame:
    """Success that is lost where users and CSRs use held-out phrasings, on the same tasks, by arm, and how much more
    that is than what the last arm loses: medians over the runs, 95%."""
    keys = ["arm", *RUN, "task_id", "company_id", "held_out_phrasing"]
    both = transfer_frame(runs).groupby(keys, sort=False)["success"].mean().unstack().dropna()
    study, rows = Study(curves_of((both[False] - both[True]).rename("lost").reset_index(), ["lost"])), []
    for arm in study.arms:
        lost = study.find(FIRST, middle(arm), [arm])
        more = study.find(FIRST, lead(arm, study.arms[-1]), [arm, study.arms[-1]])
        numbers = {"lost": lost.value, "low": lost.low, "high": lost.high, f"minus {study.arms[-1]}": more.value}
        rows.append({"arm": arm} | numbers | {"more low": more.low, "more high": more.high, "runs": lost.runs})
    return pd.DataFrame(rows)


def told_table(runs: Runs) -> pd.DataFrame:
    """Success by what the policy is told: medians over runs.

    low, high: 95%; minus imagined: the difference to what the run's own world model makes of it.
    """
    rows = []
    for named, part in parts(told_frame(runs), "arm", "split"):
        tellers = part["told"].unique()
        study = Study(curves_of(part.assign(arm=part["told"]), ["success"]))
        for told in tellers:
            success = study.find(FIRST, middle(told), [told])
            gain = study.find(FIRST, lead(told, "imagined"), [told, "imagined"])
            numbers = {"success": success.value, "low": success.low, "high": success.high}
            numbers |= {"minus imagined": gain.value, "gain low": gain.low, "gain high": gain.high}
            rows.append(named | {"told": told} | numbers | {"runs": gain.runs, "tasks": part["task_id"].nunique()})
    return pd.DataFrame(rows)


def notes_table(runs: Runs) -> pd.DataFrame:
    """Success by how many notes the policy is told at most, and how many it reads then: medians over runs.

    low, high: 95%.
    """
    found = []
    for named, part in parts(notes_frame(runs), "arm", "split"):
        study = Study(curves_of(part.assign(arm=part[AT_MOST]), ["success", "notes"]))
        for most in part[AT_MOST].unique():
            success, read = (study.find(number(place), middle(most), [most]) for place in (0, 1))
            numbers = {"notes read": read.value, "success": success.value, "low": success.low, "high": success.high}
            found.append(named | {AT_MOST: most} | numbers | {"runs": success.runs})
    return pd.DataFrame(found)


def level_overview(rows: pd.DataFrame, condition: str) -> pd.DataFrame:
    """Success at each level, as `lfo.lab.factorial.overview` says it, of every arm under each condition: a column of
    `told_frame`, `notes_frame` or `transfer_frame`."""
    found = []
    for named, part in parts(rows, "arm", condition, "split", "level"):
        (arm, under, companies, level), called = named.values(), list(named)[1]
        success = estimate(part, ["success"])
        where = {"arm": f"{arm}, {called} {under}", "companies": companies, "level": level}
        found.append(where | cells(success, "success") | {"runs": success.n})
    return overview(pd.DataFrame(found).sort_values("level", kind="stable"), "level")


def way_table(runs: Runs) -> pd.DataFrame:
    """Shares of the calls on the ways of held-out tasks whose reply is known, by whether somebody has served the caller
    before: medians over the runs, 95%. usual: of those at companies that follow the typical rules; calls: per run."""
    rows = with_tasks(measurements(runs, WAY, "run notebook 04, or `lfo.lab.transfer.measure_way`"), runs)
    each = ["arm", *RUN, "split", "call", "variation", "company_id", "task_id"]
    rows = rows.groupby(each, sort=False)["right"].agg(right="sum", asked="size").reset_index()
    found = []
    for named, part in parts(rows, "arm", "split", "call"):
        typical = part[part["variation"] == "typical"]
        known, usual = (estimate(some, ["right", "asked"], _share) for some in (part, typical))
        calls = round(part["asked"].sum() / known.n)
        found.append(named | {"calls": calls} | cells(known, "known") | {"usual": usual.value, "runs": known.n})
    return pd.DataFrame(found)


def form_table(runs: Runs) -> pd.DataFrame:
    """Precision and recall of the fields that are asked of the user: medians over the runs, 95%.

    Known phrasings; fields are pooled over a run's episodes (micro-averaged). precision: requested fields that the
    task's calls need; runs that request none have none. recall: needed fields that are requested. complete: episodes in
    which all of them are. requested, needed: per episode. Forms that the user declined count like others.
    """
    known, rows = transfer_frame(runs).query("not held_out_phrasing"), []
    known = known.assign(complete=known["useful"] == known["needed"])
    for named, part in parts(known, "arm", "split"):
        numbers = {
            "precision": estimate(part, ["useful", "requested"], _share),
            "recall": estimate(part, ["useful", "needed"], _share),
            "complete": estimate(part, ["complete"]),
        }
        for name, score in numbers.items():
            named |= cells(score, name, f"{name} ")
        each = by_run(part)[["requested", "needed"]].mean().median()
        rows.append(named | {"requested": each["requested"], "needed": each["needed"], "runs": count_runs(part)})
    return pd.DataFrame(rows)


def failure_table(runs: Runs) -> pd.DataFrame:
    """What goes wrong: episodes that fail, and of these the share in which something of each kind does; medians over
    the runs, 95%. Known phrasings; kinds are those of `failed_<kind>` in docs/metrics.md. Runs that were measured
    before kinds were are left out.
    """
    data, rows = transfer_frame(runs).query("not held_out_phrasing"), []
    if "failed" not in data:
        return pd.DataFrame()
    data = data.dropna(subset="failed")
    kinds = data["failed"].str.get_dummies(" ")
    data = pd.concat([data.assign(lost=1 - data["success"]), kinds], axis=1)
    for named, part in parts(data, "arm", "split"):
        found = {"failed": estimate(part, ["lost"])}
        found |= {kind.replace("_", " "): estimate(part, [kind, "lost"], _share) for kind in kinds}
        rows.append(named | {name: in_percent(one.value, one.low, one.high) for name, one in found.items()})
        rows[-1]["runs"] = count_runs(part)
    return pd.DataFrame(rows)


def _share(_, numbers: np.ndarray) -> np.ndarray:
    """The first of two numbers as a share of the second; nan where that is 0."""
    part, whole = numbers
    return np.divide(part, whole, out=np.full_like(np.asarray(part, dtype=float), np.nan), where=whole > 0)


def pass_k_table(runs: Runs) -> pd.DataFrame:
    """pass^k for every k up to the episodes per task, known phrasings: median over the runs, and 95% of the last."""
    rows = []
    for named, part in parts(transfer_frame(runs).query("not held_out_phrasing"), "arm", "split"):
        tasks = part.groupby(["arm", "world", "seed", "task_id", "company_id"], sort=False)["success"]
        wins = tasks.agg(["sum", "count"]).reset_index()
        trials = range(1, int(wins["count"].min()) + 1)
        for k in trials:
            wins[f"pass^{k}"] = [pass_hat_k([won], trials[-1], k) for won in wins["sum"]]
        scores = {f"pass^{k}": estimate(wins, [f"pass^{k}"]) for k in trials}
        last = scores[f"pass^{trials[-1]}"]
        numbers = {name: one.value for name, one in scores.items()}
        rows.append(named | numbers | {"low": last.low, "high": last.high, "runs": last.n})
    return pd.DataFrame(rows)
