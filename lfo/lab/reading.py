"""Run folders -> data frames: what figures and tables are made from. Never loads a model, nor torch.

`docs/metrics.md` defines every logged metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lfo.lab.statistics import Arrival, Estimate, tasks_to_threshold
from lfo.runs import RunError, RunFolder

Runs = Mapping[str, Sequence[str | Path]]  # label -> run folders, one per world and seed
RUN = ("world", "seed")  # what tells the runs of an arm apart
SPLIT_NAMES = {"validation": "known companies (validation)", "test": "new companies (test)"}
THING_NAMES = {"train": "known things (train)", "test": "new things (test)"}
TEMPLATE_NAMES = {"validation": "known templates (validation)", "test": "new templates (test)"}
NAMES_OF = {"phone": SPLIT_NAMES, "twc": THING_NAMES, "shell": TEMPLATE_NAMES}  # by environment
PHRASING_NAMES = {False: "known", True: "held out"}


def frame(runs: Runs, kind: str, needed: bool = False) -> pd.DataFrame:
    """Rows of metrics of one kind of all runs, with columns `arm`, `world` and `seed`.

    Raises:
        RunError: they are `needed`, and there is none; or something is no run folder.
    """
    frames = []
    for arm, run in _folders(runs):
        rows = [row for row in run.metrics() if row["kind"] == kind]
        frames.append(pd.json_normalize(rows).assign(**_identity(arm, run)))
    if needed and not any(map(len, frames)):
        names = ", ".join(str(run.path) for _, run in _folders(runs))
        raise RunError(f"there are no '{kind}' rows yet in {names}; let the run go on, or start it again.")
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def success_frame(runs: Runs) -> pd.DataFrame:
    """Success over all levels, a row per run, split and evaluation. Raises what `frame` raises."""
    return frame(runs, "success", needed=True).query("level == 0")


def split_titles(runs: Runs, data: pd.DataFrame) -> dict[str, str]:
    """The splits that there are rows of, each with its title in the world of the runs; others by their own names."""
    environment = next(run.config.env.name for _, run in _folders(runs))
    names, there = NAMES_OF.get(environment, {}), list(dict.fromkeys(data["split"]))
    return {split: names[split] for split in names if split in there} | {s: s for s in there if s not in names}


def _folders(runs: Runs) -> Iterator[tuple[str, RunFolder]]:
    return ((arm, RunFolder(folder)) for arm, folders in runs.items() for folder in folders)


def _identity(arm: str, run: RunFolder) -> dict:
    config = run.config
    return {"arm": arm, "world": config.env.world_seed, "seed": config.seed}


def worlds_first(runs: Runs) -> list[Path]:
    """All folders, those of one world before those of the next: to draw a world takes a while."""
    folders = [Path(folder) for part in runs.values() for folder in part]
    return sorted(folders, key=lambda folder: RunFolder(folder).config.env.world_seed)


def by_run(data: pd.DataFrame):
    """The rows of each run of an arm; a table of one world may do without the column `world`."""
    return data.groupby([name for name in RUN if name in data])


def spending(run: RunFolder, against: str) -> Iterator[tuple[float, dict]]:
    """Every row of metrics, and what the run had cost by then: sampled tasks, episodes, tokens or seconds of steps."""
    spent, size = 0.0, run.config.rollout.group_size
    for row in run.metrics():
        if row["kind"] == "step" and against == "episodes":
            spent += row["groups_sampled"] * size
        elif row["kind"] == "step" and against == "tokens":
            spent += row["sampled_tokens"] + row["trained_tokens"]
        elif row["kind"] == "step" and against == "seconds":
            spent += math.fsum(row["seconds"].values())
        yield float(row["tasks"]) if against == "tasks" else spent, row


def alike(runs: Runs, reference: str) -> dict[str, list[Path]]:
    """The runs whose seconds compare with the reference's: of its worlds and seeds, and made on the same kind of
    machine (cores, instruction set, precision) as its run there, not necessarily under the same load."""
    there = {_made(run) for arm, run in _folders(runs) if arm == reference} - {None}
    return _kept(runs, lambda run: _made(run) in there)


def _made(run: RunFolder) -> tuple | None:
    """A run's world and seed and the kind of its machine; one that does not say its machine is like no other."""
    said, config = run.provenance, run.config
    kind = [said.get(name) for name in ("machine", "instructions", "bf16")]
    return None if None in kind else (config.env.world_seed, config.seed, *kind)


# --- measurements ----------------------------------------------------------------------------


def measurable(runs: Runs, file: str) -> dict[str, list[Path]]:
    """The runs that have the measurement `file`, or adapters to measure by, which a clone has not."""
    return _kept(runs, lambda run: run.measured(file) or any(run.path.glob("adapters/v*")))


def measured(runs: Runs, file: str) -> dict[str, list[Path]]:
    """The runs that have the measurement `file`."""
    return _kept(runs, lambda run: run.measured(file))


def _kept(runs: Runs, keep: Callable[[RunFolder], bool]) -> dict[str, list[Path]]:
    found = {arm: [run.path for run in map(RunFolder, folders) if keep(run)] for arm, folders in runs.items()}
    return {arm: folders for arm, folders in found.items() if folders}


def measurements(runs: Runs, file: str, remedy: str) -> pd.DataFrame:
    """The table that a measurement left as `file` in every run folder, with columns `arm`, `world` and `seed`.

    Raises:
        RunError: a run lacks it; the message names the remedy.
    """
    frames = []
    for arm, run in _folders(runs):
        if not (run.path / file).exists():
            raise RunError(f"{run.path / file} is missing; {remedy}.")
        frames.append(read_measurement(run, file).assign(**_identity(arm, run)))
    return pd.concat(frames, ignore_index=True)


def read_measurement(run: RunFolder, file: str) -> pd.DataFrame:
    return pd.read_csv(run.path / file, keep_default_na=False)  # empty texts stay texts


def write_measurement(run: RunFolder, file: str, rows: Sequence[Mapping]) -> pd.DataFrame:
    """Write a measurement into a run folder, whole or not at all; return it as it will be read."""
    path = run.path / file
    temporary = path.with_suffix(".tmp")
    pd.DataFrame(rows).to_csv(temporary, index=False)
    temporary.replace(path)
    return read_measurement(run, file)


# --- parts of a table ------------------------------------------------------------------------


def parts(data: pd.DataFrame, *keys: str | None) -> Iterator[tuple[dict, pd.DataFrame]]:
    """The parts of `data` that agree in these columns, each with the cells that say so in a table; None is no column.

    Splits and phrasings are said in words, under "companies" and "phrasings".
    """
    columns = [key for key in keys if key]
    for values, part in data.groupby(columns, sort=False):
        yield dict(_said(*pair) for pair in zip(columns, values, strict=True)), part


def _said(column: str, value) -> tuple[str, object]:
    if column == "split":
        return "companies", SPLIT_NAMES[value]
    return ("phrasings", PHRASING_NAMES[bool(value)]) if column == "held_out_phrasing" else (column, value)


def cells(estimate: Estimate, name: str, prefix: str = "") -> dict[str, float]:
    """An estimate as cells of a table: its value under `name`, its interval under low and high."""
    return {name: estimate.value, f"{prefix}low": estimate.low, f"{prefix}high": estimate.high}


# --- curves ----------------------------------------------------------------------------------


def arrivals(success: pd.DataFrame, threshold: float) -> list[Arrival]:
    """Tasks to `threshold` of every run. `success`: rows of one arm, one split and one level."""
    return [tasks_to_threshold(one["tasks"], one["success"], threshold) for _, one in by_run(success)]


def aligned(success: pd.DataFrame) -> pd.DataFrame:
    """A column per run, a row per evaluated number of tasks; a run not evaluated there is interpolated linearly.

    `success`: rows of one arm, one split and one level. Refills let runs be evaluated at different numbers of tasks.
    """
    grid, runs = np.unique(success["tasks"]), by_run(success)
    grid = grid[grid <= runs["tasks"].max().min()]  # no further than the shortest run
    columns = {run: np.interp(grid, one["tasks"], one["success"]) for run, one in runs}
    return pd.DataFrame(columns, index=grid)


def count_runs(data: pd.DataFrame) -> int:
    return by_run(data).ngroups


def seeds_of(data: pd.DataFrame) -> str:
    """How many runs there are, in words: of one world "3 seeds", of several "15 runs"."""
    count, worlds = count_runs(data), data["world"].nunique() if "world" in data else 1
    return f"{count} {'run' if worlds > 1 else 'seed'}{'' if count == 1 else 's'}"
