"""Another try after a failure: success within k attempts, and what it costs in calls, of a run's newest policy.

Real agents try again. An attempt is a new episode with the same user; from the second on the policy reads what was
answered in those before (`lfo.lab.retry`), with the notes of its coupling beside it or without.
`measure_attempts` writes one row per attempt into the run folder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lfo.evaluate import play_tasks
from lfo.lab.factorial import overview
from lfo.lab.hierarchy import Study, curves_of, lead
from lfo.lab.player import Player, load_player
from lfo.lab.reading import Runs, by_run, cells, parts, read_measurement, write_measurement
from lfo.lab.retry import Retry
from lfo.lab.transfer_tables import ATTEMPTS, FIRST, NOTED, attempt_frame, best_of, estimate
from lfo.runs import RunError, RunFolder
from lfo.types import Rollout, Task

MOST = 4


def measure_attempts(folder: str | Path, most: int = MOST, notes: bool = False) -> pd.DataFrame:
    """One row per greedy attempt: split, task_id, level, attempt (from 1), success, calls. Measured once, or
    again if there were fewer attempts and adapters are still here.

    calls: actions, where the environment knows no calls. notes: later attempts read the notes of the run's coupling as
    well, as they do anyway in a run with `feedback`; a table of its own.

    A task is tried until it succeeds, `most` times at most.

    Raises:
        RunError: `notes`, where later attempts read them anyway.
    """
    run, file = RunFolder(folder), NOTED if notes else ATTEMPTS
    if notes and run.config.feedback:
        raise RunError(f"{folder}: with `feedback` later attempts read notes anyway; leave `notes` out.")
    if run.measured(file):
        found = read_measurement(run, file)
        last, again = found.groupby(["split", "task_id"]).last(), any(run.path.glob("adapters/v*"))
        if not again or (last["success"] | (last["attempt"] >= most)).all():
            return found
    player, rows = load_player(folder), []
    for split in player.config.eval_splits:
        tasks = player.env.tasks(split)[: player.config.eval_tasks]
        rows += [{"split": split, **row} for row in attempt_rows(player, tasks, most, notes)]
    return write_measurement(run, file, rows)


def attempt_rows(player: Player, tasks: Sequence[Task], most: int, notes: bool = False) -> list[dict]:
    """`measure_attempts` of some tasks: task_id, level, attempt (from 1), success, calls."""
    earlier: dict[str, list[Rollout]] = defaultdict(list)
    guided = bool(player.config.feedback)  # its own coupling would cut what it tells to what fits in training
    first = player.coupling.inner if guided else player.coupling
    coupling = Retry(first, earlier, notes=guided or notes)
    rows, left = [], list(tasks)
    for attempt in range(1, most + 1):
        if not left:
            break
        played = play_tasks(player.engine, player.codec, coupling, left, player.config.rollout, episodes=1)
        for task, row in zip(left, played, strict=True):
            facts = {"task_id": task.task_id, "level": task.level, "attempt": attempt}
            calls = int(row.outcome.metrics.get("calls_per_task", len(row.turns)))
            rows.append(facts | {"success": int(row.success), "calls": calls})
            earlier[task.task_id].append(row)
        left = [task for task, row in zip(left, played, strict=True) if not row.success]
    return rows


def attempt_table(runs: Runs, most: int = MOST, by: str | None = None) -> pd.DataFrame:
    """Success within k attempts, medians over runs with 95% intervals, and calls per success, by arm and split, and by
    `by` (level).

    calls per success: of all attempts up to the k-th; inf where none succeeds.
    """
    rows = []
    for named, part in parts(attempt_frame(runs), "arm", "split", by):
        for k in range(1, most + 1):
            within = part[part["attempt"] <= k]
            found = estimate(best_of(part, k), ["success"])
            sums = by_run(within)[["calls", "success"]].sum()
            calls = (sums["calls"] / sums["success"]).median()
            rows.append(
                named | {"attempts": k} | cells(found, "success") | {"calls per success": calls, "runs": found.n}
            )
    return pd.DataFrame(rows)


def retry_table(runs: Runs, control: str) -> pd.DataFrame:
    """How many more tasks every arm has within two attempts than one that learns nothing and tries again, by split:
    differences of medians over the runs, 95%, of the same tasks; runs: of the arm with fewer.

    control: that arm.
    """
    rows = []
    for named, part in parts(attempt_frame(runs), "split"):
        study = Study(curves_of(best_of(part, 2), ["success"]))
        for arm in study.arms:
            if arm != control:
                found = study.find(FIRST, lead(arm, control), [arm, control])
                rows.append({"arm": arm} | named | cells(found, "more") | {"runs": found.runs})
    return pd.DataFrame(rows)


def second_by_level(runs: Runs) -> pd.DataFrame:
    """Success within two attempts at each level, as `lfo.lab.factorial.overview` says it."""
    table = attempt_table(runs, 2, "level").query("attempts == 2").sort_values("level", kind="stable")
    return overview(table, "level")
