"""Many runs at once: one process per run, as many at a time as there are cores.

Each run is `lfo train` in a process of its own with one thread: sums depend on the number of threads, so
that a run's numbers depend neither on how many run beside it nor on the machine's cores. An
interrupted sweep goes on where each run stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tqdm import tqdm

from lfo.config import ConfigError, RunConfig, as_dict, completed, load_config, read_yaml

POLL_SECONDS = 1.0
GRID_KEYS = {"config", "seeds", "fixed", "grid", "arms"}
THREADS = "1"  # per run


def read_grid(path: str | Path, out: str | Path) -> dict[Path, RunConfig]:
    """Run folders and configs of a grid file: all combinations of its `grid` values, or its `arms`, for every seed.

    The file names a `config`, `seeds`, settings that are `fixed` for all runs and either a `grid` of lists or
    `arms`, each a name and its settings, all by dotted name. An arm's settings win over the fixed ones, and it may
    name a `config` of its own. Arms are trained in ``<out>/<arm>/seed<k>``, every arm's first seed first.

    Raises:
        ConfigError: the file, or a setting in it, does not fit.
    """
    path = Path(path)
    data = read_yaml(path.read_text(encoding="utf-8"), str(path)) if path.exists() else None
    if not isinstance(data, dict) or not set(data) <= GRID_KEYS or "config" not in data:
        raise ConfigError(f"{path} must be a YAML file with these keys: {', '.join(sorted(GRID_KEYS))}.")
    if "arms" in data:
        return _arms(path, data, Path(out))
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


def _arms(path: Path, data: dict, out: Path) -> dict[Path, RunConfig]:
    arms, runs = data["arms"], {}
    if "grid" in data or not isinstance(arms, dict) or not all(isinstance(v or {}, dict) for v in arms.values()):
        raise ConfigError(f"'arms' in {path} must give every arm a mapping of settings; there is no 'grid' then.")
    for seed in data.get("seeds", [0]):
        for name, own in arms.items():
            settings = {"config": data["config"]} | data.get("fixed", {}) | (own or {}) | {"name": name, "seed": seed}
            runs[out / name / f"seed{seed}"] = load_config(settings.pop("config"), **settings)
    return runs


def by_arm(folders: Iterable[str | Path]) -> dict[str, list[Path]]:
    """The run folders of a sweep over arms as {arm: [one folder per seed]}, as figures and tables take them."""
    arms: dict[str, list[Path]] = {}
    for folder in map(Path, folders):
        arms.setdefault(folder.parent.name, []).append(folder)
    return arms


def seeded(config: RunConfig, seeds: list[int], out: str | Path) -> dict[Path, RunConfig]:
    """The same config with several seeds: ``out/<name>/seed<k>`` -> config."""
    return {Path(out) / config.name / f"seed{s}": dataclasses.replace(config, seed=s) for s in seeds}


class SweepError(RuntimeError):
    """A run of a sweep failed; the message names its log."""


def train_many(runs: Mapping[str | Path, RunConfig], workers: int | None = None, progress: bool = True) -> list[Path]:
    """Train every config in its run folder; return the folders, in order.

    workers: runs at a time, by default one per core. Raises SweepError when a run fails; the others
    are finished first, and starting again resumes what is missing.
    """
    cores = os.cpu_count() or 1
    workers = max(1, min(workers or cores, len(runs)))
    environment = os.environ | {"OMP_NUM_THREADS": THREADS}
    folders, active, failed = [Path(folder) for folder in runs], {}, []
    waiting = [(Path(folder), config) for folder, config in runs.items() if not finished(Path(folder), config)]
    done = {folder: tasks_done(folder) for folder in folders}
    total = sum(config.task_budget for config in runs.values())
    with tqdm(total=total, unit="task", disable=not progress, desc=f"{len(folders)} runs") as bar:
        try:
            while waiting or active:
                while waiting and len(active) < workers:
                    folder, config = waiting.pop(0)
                    active[folder] = _start(folder, config, environment)
                time.sleep(POLL_SECONDS)
                for folder, process in list(active.items()):
                    ended = process.poll() is not None
                    done[folder] = tasks_done(folder)
                    if ended:
                        del active[folder]
                        failed += [folder] * (process.returncode != 0)
                bar.update(sum(done.values()) - bar.n)
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


def finished(folder: Path, config: RunConfig) -> bool:
    """Whether this very config was trained and evaluated to the end there, and its adapters are still there.

    Another `distributed` is the same run, as for `Run.resume`. What a clone brings along are metrics without adapters:
    such a run is trained again.
    """
    path, last = folder / "config.json", _last_row(folder)
    if not path.exists() or not any(folder.glob("adapters/v*")):
        return False
    theirs, mine = completed(json.loads(path.read_text())), json.loads(json.dumps(as_dict(config)))
    same = theirs | {"distributed": {}} == mine | {"distributed": {}}
    return same and last.get("kind") == "seconds" and last["tasks"] >= config.task_budget


def tasks_done(folder: Path) -> int:
    """Sampled tasks of a run so far."""
    return _last_row(folder).get("tasks", 0)


def _last_row(folder: Path) -> dict:
    """The newest row of a run's metrics; {} where there is none yet."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # a line that is just being written
            return json.loads(line)
    return {}
