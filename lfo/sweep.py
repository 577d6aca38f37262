"""Many runs at once: one process per run, as many at a time as there are cores.

Each run is `lfo train` in a process of its own with its share of the cores, so a run's numbers do
not depend on what runs beside it, and an interrupted sweep goes on where each run stopped.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tqdm import tqdm

from lfo.config import ConfigError, RunConfig, as_dict, load_config, read_yaml

POLL_SECONDS = 1.0
GRID_KEYS = {"config", "seeds", "fixed", "grid"}


def read_grid(path: str | Path, out: str | Path) -> dict[Path, RunConfig]:
    """Run folders and configs of a grid file: every combination of its `grid` values, for every seed.

    The file names a `config`, `seeds`, settings that are `fixed` for all runs and a `grid` of lists,
    all by dotted name.

    Raises:
        ConfigError: the file, or a setting in it, does not fit.
    """
    path = Path(path)
    data = read_yaml(path.read_text(encoding="utf-8"), str(path)) if path.exists() else None
    if not isinstance(data, dict) or not set(data) <= GRID_KEYS or "config" not in data:
        raise ConfigError(f"{path} must be a YAML file with these keys: {', '.join(sorted(GRID_KEYS))}.")
    grid = data.get("grid") or {}
    if not isinstance(grid, dict) or not all(isinstance(v, list) for v in grid.values()):
        raise ConfigError(f"'grid' in {path} must give a list of values for every setting.")
    names, values = list(grid), list(grid.values())
    runs = {}
    for combination in itertools.product(*values):
        settings = data.get("fixed", {}) | dict(zip(names, combination, strict=True))
        label = ",".join(f"{n.rpartition('.')[2]}={v}" for n, v in zip(names, combination, strict=True)) or "run"
        for seed in data.get("seeds", [0]):
            config = load_config(data["config"], **settings, seed=seed)
            runs[Path(out) / f"{config.name},{label},seed={seed}"] = config
    return runs


def seeded(config: RunConfig, seeds: list[int], out: str | Path) -> dict[Path, RunConfig]:
    """The same config with several seeds: ``out/<name>-seed<k>`` -> config."""
    return {Path(out) / f"{config.name}-seed{s}": dataclasses.replace(config, seed=s) for s in seeds}


class SweepError(RuntimeError):
    """A run of a sweep failed; the message names its log."""


def train_many(runs: Mapping[str | Path, RunConfig], workers: int | None = None, progress: bool = True) -> list[Path]:
    """Train every config in its run folder; return the folders, in order.

    workers: runs at a time, by default one per core. Raises SweepError when a run fails; the others
    are finished first, and starting again resumes what is missing.
    """
    cores = os.cpu_count() or 1
    workers = max(1, min(workers or cores, len(runs)))
    # Threads that wait must not spin: where cores are shared, spinning costs far more than it saves.
    environment = os.environ | {"OMP_NUM_THREADS": str(max(1, cores // workers)), "OMP_WAIT_POLICY": "PASSIVE"}
    waiting = [(Path(folder), config) for folder, config in runs.items()]
    folders, active, failed = [f for f, _ in waiting], {}, []
    total = sum(config.task_budget for _, config in waiting)
    with tqdm(total=total, unit="task", disable=not progress, desc=f"{len(folders)} runs") as bar:
        try:
            while waiting or active:
                while waiting and len(active) < workers:
                    folder, config = waiting.pop(0)
                    active[folder] = _start(folder, config, environment)
                time.sleep(POLL_SECONDS)
                for folder, process in list(active.items()):
                    if process.poll() is not None:
                        del active[folder]
                        failed += [folder] * (process.returncode != 0)
                bar.update(sum(_tasks_done(f) for f in folders) - bar.n)
        except KeyboardInterrupt:
            for process in active.values():
                process.wait()  # Ctrl-C reached them too: each saves a checkpoint
            raise
    if failed:
        log = failed[0] / "log.txt"
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise SweepError(f"{len(failed)} of {len(folders)} runs failed; see {log}: {' '.join(last)}")
    return folders


def _start(folder: Path, config: RunConfig, environment: Mapping[str, str]) -> subprocess.Popen:
    """`lfo train` on a full config written beside the run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "requested.json"
    path.write_text(json.dumps(as_dict(config), indent=2) + "\n")
    command = [sys.executable, "-m", "lfo.cli", "train", "--quiet", "--config", str(path), "--run", str(folder)]
    with (folder / "log.txt").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _tasks_done(folder: Path) -> int:
    """Sampled tasks of a run so far, from the last line of its metrics."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in reversed(lines):
        try:
            return int(json.loads(line)["tasks"])
        except (ValueError, KeyError):  # a line that is just being written
            continue
    return 0
