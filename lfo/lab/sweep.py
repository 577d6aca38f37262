"""Many runs at once: one process per run, as many at a time as there are cores.

Each run is `lfo train` in a process of its own with one thread: sums depend on the number of threads, so
that a run's numbers depend neither on how many run beside it nor on the machine's cores. An
interrupted sweep goes on where each run stopped.
"""

from __future__ import annotations

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

from lfo.config import ConfigError, RunConfig, as_dict, load_config, read_yaml
from lfo.runs import RunFolder

POLL_SECONDS = 1.0
GRID_KEYS = {"config", "seeds", "worlds", "fixed", "grid", "arms"}
THREADS = "1"  # per run


def read_grid(path: str | Path, out: str | Path) -> dict[Path, RunConfig]:
    """Run folders and configs of a grid file: all combinations of its `grid` values, its `arms`, or both.

    The file names a `config`, `seeds`, settings that are `fixed` for all runs, a `grid` of lists and `arms`, each a
    name and its settings, all by dotted name; each is run with every seed. An arm's settings win over the others, and
    it may name a `config` of its own. Arms are trained in ``<out>/<arm>/seed<k>``, or with several `worlds` (their
    seeds) in ``<out>/<arm>/world<w>-seed<k>``; every arm's first seed first. Beside a grid, each of its combinations
    has a folder with all arms.

    Raises:
        ConfigError: the file, or a setting in it, does not fit.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"there is no grid {path}; configs/science.yaml is one.")
    data = read_yaml(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(data, dict) or not set(data) <= GRID_KEYS or "config" not in data:
        raise ConfigError(f"{path} must be a YAML file with these keys: {', '.join(sorted(GRID_KEYS))}.")
    grid = data.get("grid") or {}
    if not isinstance(grid, dict) or not all(isinstance(v, list) for v in grid.values()):
        raise ConfigError(f"'grid' in {path} must give a list of values for every setting.")
    runs = {}
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        label = ",".join(f"{name.rpartition('.')[2]}={value}" for name, value in settings.items())
        if "arms" in data:
            runs |= _arms(path, data, settings, Path(out) / label)
        for seed in data.get("seeds", [0]) if "arms" not in data else ():
            config = load_config(data["config"], **data.get("fixed", {}) | settings, seed=seed)
            runs[Path(out) / f"{config.name},{label or 'run'},seed={seed}"] = config
    return runs


def _arms(path: Path, data: dict, chosen: Mapping, out: Path) -> dict[Path, RunConfig]:
    """chosen: one combination of the grid."""
    arms, runs = data["arms"], {}
    if not isinstance(arms, dict) or not all(isinstance(v or {}, dict) for v in arms.values()):
        raise ConfigError(f"'arms' in {path} must give every arm a mapping of settings.")
    worlds = data.get("worlds", [None])
    for seed, world in itertools.product(data.get("seeds", [0]), worlds):
        for name, own in arms.items():
            settings = {"config": data["config"]} | data.get("fixed", {}) | chosen | (own or {})
            settings |= {"name": name, "seed": seed} | ({} if world is None else {"env.world_seed": world})
            folder = f"seed{seed}" if world is None else f"world{world}-seed{seed}"
            runs[out / name / folder] = load_config(settings.pop("config"), **settings)
    return runs


def by_arm(folders: Iterable[str | Path], parts: int = 1) -> dict[str, list[Path]]:
    """The run folders of a sweep over arms as {arm: [one folder per run]}, as figures and tables take them.

    parts: how many folders above a run name its arm; two where there is a grid beside the arms.
    """
    arms: dict[str, list[Path]] = {}
    for folder in map(Path, folders):
        arms.setdefault("/".join(folder.parts[-1 - parts : -1]), []).append(folder)
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
    workers = max(1, min(workers or os.cpu_count() or 1, len(runs)))
    sweep = _Sweep({Path(folder): config for folder, config in runs.items()})
    total, done = sum(config.task_budget for config in runs.values()), sum(sweep.done.values())
    with tqdm(total=total, initial=done, unit="task", disable=not progress, desc=f"{len(runs)} runs") as bar:
        try:
            while sweep.waiting or sweep.active:
                sweep.start(workers)
                time.sleep(POLL_SECONDS)
                sweep.look()
                bar.set_postfix(newest_numbers(sweep.begun()), refresh=False)
                bar.update(sum(sweep.done.values()) - bar.n)
        except KeyboardInterrupt:
            for process in sweep.active.values():
                process.wait()  # Ctrl-C reached them too: each saves a checkpoint
            raise
    if sweep.failed:
        log = sweep.failed[0] / "log.txt"
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise SweepError(f"{len(sweep.failed)} of {len(runs)} runs failed; see {log}: {' '.join(last)}")
    return [Path(folder) for folder in runs]


class _Sweep:
    """Runs that wait, those that are trained, by folder, and the sampled tasks of each that are done."""

    def __init__(self, runs: Mapping[Path, RunConfig]):
        self.waiting = {folder: config for folder, config in runs.items() if not RunFolder(folder).finished(config)}
        self.active: dict[Path, subprocess.Popen] = {}
        self.failed: list[Path] = []
        self.done = {
            folder: RunFolder(folder).tasks_done() if folder in self.waiting else config.task_budget
            for folder, config in runs.items()
        }
        self._since = time.time_ns()
        self._environment = os.environ | {"OMP_NUM_THREADS": THREADS}

    def start(self, workers: int) -> None:
        for folder in list(self.waiting)[: workers - len(self.active)]:
            self.active[folder] = _start(folder, self.waiting.pop(folder), self._environment)

    def look(self) -> None:
        """What was done since, and who has ended."""
        ended = [folder for folder, process in self.active.items() if process.poll() is not None]
        for folder in self.begun():
            self.done[folder] = RunFolder(folder).newest().get("tasks", 0)
        self.failed += [folder for folder in ended if self.active.pop(folder).returncode != 0]

    def begun(self) -> list[Path]:
        """The active runs whose metrics are those of a process that was started here: it writes the provenance as soon
        as it has emptied the metrics, or taken them up."""
        written = {folder: folder / "provenance.json" for folder in self.active}
        return [f for f, path in written.items() if path.exists() and path.stat().st_mtime_ns >= self._since]


def _start(folder: Path, config: RunConfig, environment: Mapping[str, str]) -> subprocess.Popen:
    """`lfo train` on a full config written beside the run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "requested.json"
    path.write_text(json.dumps(as_dict(config), indent=2) + "\n")
    command = [sys.executable, "-m", "lfo.cli", "train", "--quiet", "--config", str(path), "--run", str(folder)]
    with (folder / "log.txt").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def newest_numbers(folders: Iterable[Path]) -> dict[str, str]:
    """Training success and policy loss in the newest steps of some runs, on average, as text."""
    steps = [RunFolder(folder).newest("step") for folder in folders]
    names = {"success": "train_success", "loss": "policy/loss"}
    found = {short: [row[name] for row in steps if name in row] for short, name in names.items()}
    return {short: f"{sum(values) / len(values):.2f}" for short, values in found.items() if values}
