"""Many runs at once: one process per run, on the cores of this machine or wherever Ray finds room (`lfo.lab.cluster`).

Each run is `lfo train` in a process of its own with as many threads as it has cores, one unless it is given more: sums
depend on the number of threads, so that a run's numbers depend neither on how many run beside it nor on the machine.
Who is where decides an executor; that runs are finished, lost, interrupted and shown is the same above all of them. An
interrupted sweep goes on where each run stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field
from tqdm import tqdm

from lfo.config import (
    ConfigError,
    Count,
    RunConfig,
    as_dict,
    build,
    flat,
    load_config,
    located,
    nested,
    read_yaml,
    settings,
)
from lfo.runs import RunFolder

POLL_SECONDS = 1.0
RETRIES = 2  # of a run whose process, or machine, was lost; one that said why it ended is not tried again


Numbers = Annotated[list[Count], Field(min_length=1)]


@settings
class Arm:
    """What an arm of a grid has of its own beside settings."""

    config: str | None = None
    seeds: Numbers | None = None
    worlds: Numbers | None = None


@settings
class Grid:
    """A grid file: see `read_grid`."""

    config: str
    seeds: Numbers = Field(default_factory=lambda: [0])
    worlds: Numbers | None = None
    fixed: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    arms: Annotated[dict[str, dict[str, Any] | None], Field(min_length=1)] = Field(default_factory=dict)

    def __post_init__(self):
        if "seed" in {*self.fixed, *self.grid}:
            raise ConfigError("'seed' is given by `seeds`, a list.")
        if self.worlds and not self.arms:
            raise ConfigError("'worlds' are for `arms`; set env.world_seed in `grid`.")


def read_grid(path: str | Path, out: str | Path) -> dict[Path, RunConfig]:
    """Run folders and configs of a grid file: all combinations of its `grid` values, its `arms`, or both.

    The file names a `config`, `seeds`, settings that are `fixed` for all runs, a `grid` of lists and `arms`, each a
    name and its settings, all by dotted name; each is run with every seed. An arm's settings win over the others, and
    it may name a `config`, `seeds` and `worlds` of its own. Arms are trained in ``<out>/<arm>/seed<k>``, or with
    `worlds` (their seeds) in ``<out>/<arm>/world<w>-seed<k>``; the first seed of all arms first. Beside a grid, each of
    its combinations has a folder with all arms.

    Raises:
        ConfigError: the file, or a setting in it, does not fit.
    """
    path = located(path)
    if not path.exists():
        raise ConfigError(f"there is no grid {path}; configs/science.yaml is one.")
    data, runs = _grid(path), {}
    for values in itertools.product(*data.grid.values()):
        chosen = dict(zip(data.grid, values, strict=True))
        label = ",".join(f"{name.rpartition('.')[2]}={value}" for name, value in chosen.items())
        if data.arms:
            runs |= _arms(path, data, chosen, Path(out) / label)
        for seed in data.seeds if not data.arms else ():
            config = load_config(data.config, **data.fixed | chosen, seed=seed)
            runs[Path(out) / f"{config.name},{label or 'run'},seed={seed}"] = config
    return runs


def _grid(path: Path) -> Grid:
    """What a grid file says; keys with nothing behind them are left out, but for `arms`, which must have some."""
    data = read_yaml(path.read_text(encoding="utf-8"), str(path))
    keys = [field.name for field in dataclasses.fields(Grid)]
    if not isinstance(data, dict) or not set(data) <= set(keys) or not data.get("config"):
        raise ConfigError(f"{path} must be a YAML file with these keys: {', '.join(sorted(keys))}.")
    with _named(path):
        return build(Grid, {key: value for key, value in data.items() if value is not None or key == "arms"})


@contextlib.contextmanager
def _named(where: Path | str) -> Iterator[None]:
    """What does not fit in there names the file, or the arm in it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _arms(path: Path, data: Grid, chosen: Mapping, out: Path) -> dict[Path, RunConfig]:
    """chosen: one combination of the grid."""
    arms, runs = {name: dict(own or {}) for name, own in data.arms.items()}, {}
    with _named(path):
        keys = [field.name for field in dataclasses.fields(Arm)]
        apart = {name: build(Arm, {key: own.pop(key, None) for key in keys}) for name, own in arms.items()}
    seeds = {name: one.seeds or data.seeds for name, one in apart.items()}
    if not data.worlds and any(one.worlds for one in apart.values()):
        raise ConfigError(f"{path}: an arm has `worlds` of its own; name those of all others beside `arms`.")
    worlds = {name: one.worlds or data.worlds or [None] for name, one in apart.items()}
    everybody, everywhere = (sorted(set(itertools.chain(*own.values()))) for own in (seeds, worlds))
    for seed, world, (name, own) in itertools.product(everybody, everywhere, arms.items()):
        if seed in seeds[name] and world in worlds[name]:
            whole = data.fixed | chosen | own | {"name": name, "seed": seed}
            whole |= {} if world is None else {"env.world_seed": world}
            folder = f"seed{seed}" if world is None else f"world{world}-seed{seed}"
            with _named(f"{path}, arm {name}"):
                runs[out / name / folder] = load_config(apart[name].config or data.config, **whole)
    return runs


def by_arm(folders: Iterable[str | Path], parts: int = 1) -> dict[str, list[Path]]:
    """The run folders of a sweep over arms as {arm: [one folder per run]}, as figures and tables take them.

    parts: how many folders above a run name its arm; two where there is a grid beside the arms.
    """
    arms: dict[str, list[Path]] = {}
    for folder in map(Path, folders):
        arms.setdefault("/".join(folder.parts[-1 - parts : -1]), []).append(folder)
    return arms


def finished(chosen: Mapping[Path, RunConfig], parts: int = 1) -> dict[str, list[Path]]:
    """Of a grid's runs those that were evaluated at the end of their budget, as `by_arm`; also without adapters."""
    return by_arm((folder for folder, config in chosen.items() if _evaluated(RunFolder(folder), config)), parts)


def _evaluated(run: RunFolder, config: RunConfig) -> bool:
    """Whether this very config was evaluated there at the end of its budget."""
    if not (run.path / "metrics.jsonl").exists() or not run.is_of(config):
        return False
    return any(row["kind"] == "outcomes" and row["tasks"] >= config.task_budget for row in run.metrics())


def progress(chosen: Mapping[Path, RunConfig]) -> str:
    """How many runs are finished, and of which arms some are missing, in a sentence."""
    done, wanted = finished(chosen), by_arm(chosen)
    lacking = [f"{arm} ({len(done.get(arm, ()))} of {len(f)})" for arm, f in wanted.items() if done.get(arm) != f]
    rest = f"; still to be run: {', '.join(lacking)}" if lacking else ""
    return f"{sum(map(len, done.values()))} of {len(chosen)} runs are finished{rest}."


def seeded(config: RunConfig, seeds: list[int], out: str | Path) -> dict[Path, RunConfig]:
    """The same config with several seeds: ``out/<name>/seed<k>`` -> config."""
    return {Path(out) / config.name / f"seed{s}": dataclasses.replace(config, seed=s) for s in seeds}


# What an arm keeps where it is run in small, beside how many rollouts a group has, if they are few.
KEPT = ("name", "seed", "eval_splits", "env", "model", "policy", "world_model", "feedback", "ppo")


def in_small(runs: Mapping[Path, RunConfig], arms: Collection[str], **settings) -> dict[Path, RunConfig]:
    """Of some arms of a grid the first run, so small that it takes seconds, to show that everything works: what an arm
    does not keep is that of configs/smoke.yaml, and then come these settings, by dotted name, of groups that it has.

    Raises:
        ConfigError: there is no such arm, or no such setting.
    """
    tiny, chosen = as_dict(load_config("configs/smoke.yaml")), {}
    odd = [arm for arm in arms if arm not in {folder.parent.name for folder in runs}]
    if odd := [*odd, *(name for name in settings if name.partition(".")[0] not in tiny)]:
        raise ConfigError(f"'{odd[0]}' is no arm of the grid and no setting.")
    firsts: dict[Path, Path] = {}
    for folder in runs:
        if folder.parent.name in arms:
            firsts.setdefault(folder.parent, folder)
    for folder in firsts.values():
        small = tiny | {name: group for name, group in as_dict(runs[folder]).items() if name in KEPT}
        size = min(tiny["rollout"]["group_size"], runs[folder].rollout.group_size)
        small["rollout"] = small["rollout"] | {"group_size": size}
        there = {name: v for name, v in settings.items() if small.get(name.partition(".")[0]) is not None}
        chosen[folder] = build(RunConfig, nested(flat(small) | there))
    return chosen


def part_of(runs: Mapping[Path, RunConfig], part: str) -> dict[Path, RunConfig]:
    """One of several equal shares of the runs: "0/3" is the first of three, every third run from the first on.

    Raises:
        ConfigError: there is no such share.
    """
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise ConfigError(f"'{part}' is no share; those of three are 0/3, 1/3 and 2/3.")
    return dict(itertools.islice(runs.items(), int(number), None, int(count)))


class SweepError(RuntimeError):
    """A run of a sweep failed; the message names its log."""


class Executor(Protocol):
    """Where runs are trained, as many at a time as there is room for. Lost runs are started again by it."""

    def submit(self, folder: Path, arguments: Sequence[str]) -> futures.Future[int]:
        """Train there by ``lfo *arguments``, saying what it says to `folder`/log.txt; its exit status."""

    def stop(self) -> None:
        """Interrupted: start nothing more, and wait until what is trained has saved its checkpoint."""

    def close(self) -> None:
        """Give back what was taken for the runs."""


class Processes:
    """The `Executor` of one machine: a process for each run.

    workers: at a time, by default as many as there are cores for. cores: of a run, which are its threads. retries: how
    often a run is started again whose process was killed, as when memory is short.
    """

    def __init__(self, workers: int | None = None, cores: int = 1, retries: int = RETRIES):
        workers = workers or max(1, (os.cpu_count() or 1) // cores)
        self._pool = futures.ThreadPoolExecutor(workers, "runs")  # each thread waits for a process
        self._environment = os.environ | {"OMP_NUM_THREADS": str(cores)}
        self._retries, self._stopped = retries, False
        self._running: set[subprocess.Popen] = set()
        self._one = threading.Lock()  # between who starts a process and who stops all

    def submit(self, folder: Path, arguments: Sequence[str]) -> futures.Future[int]:
        return self._pool.submit(self._train, folder, [sys.executable, "-m", "lfo.cli", *arguments])

    def _train(self, folder: Path, command: Sequence[str]) -> int:
        for tries in itertools.count(1):
            with (folder / "log.txt").open("a") as log:
                status = self._run(command, log)
            asked = self._stopped or -status in (signal.SIGINT, signal.SIGTERM)
            if status >= 0 or asked or tries > self._retries:
                break
        return status

    def _run(self, command: Sequence[str], log) -> int:
        with self._one:
            if self._stopped:
                return -signal.SIGTERM
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self._environment)
            self._running.add(process)
        status = process.wait()
        self._running.discard(process)
        return status

    def stop(self) -> None:
        """Every run is told, in case the signal reached this process alone; each saves a checkpoint."""
        with self._one:
            self._stopped = True
            for process in [*self._running]:
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        self._pool.shutdown()


def train_many(
    runs: Mapping[str | Path, RunConfig],
    workers: int | None = None,
    progress: bool = True,
    executor: Executor | None = None,
    device: str = "cpu",
) -> list[Path]:
    """Train every config in its run folder; return the folders, in order.

    workers: runs at a time on this machine, by default one per core. executor: who trains them in its place; it is
    closed at the end. device: of every run. Raises SweepError when a run fails; the others are finished first, and
    starting again resumes what is missing.
    """
    sweep = _Sweep({Path(folder): config for folder, config in runs.items()})
    with contextlib.closing(executor or Processes(workers)) as executor:
        try:
            sweep.submit(executor, device)
            sweep.watch(progress)
        except KeyboardInterrupt:
            executor.stop()
            raise
    if sweep.failed:
        folder, reason = next(iter(sweep.failed.items()))
        raise SweepError(f"{len(sweep.failed)} of {len(runs)} runs failed; see {folder / 'log.txt'}: {reason}")
    return [Path(folder) for folder in runs]


class _Sweep:
    """Runs that are not finished, what becomes of each, and the sampled tasks of all that are done."""

    def __init__(self, runs: Mapping[Path, RunConfig]):
        self.runs = runs
        self.open = {folder: config for folder, config in runs.items() if not RunFolder(folder).finished(config)}
        self.ends: dict[futures.Future, Path] = {}
        self.failed: dict[Path, str] = {}
        self.done = {
            folder: RunFolder(folder).tasks_done() if folder in self.open else config.task_budget
            for folder, config in runs.items()
        }
        self._since = time.time_ns()

    def submit(self, executor: Executor, device: str) -> None:
        for folder, config in self.open.items():
            self.ends[executor.submit(folder, _arguments(folder, config, device))] = folder

    def watch(self, progress: bool) -> None:
        """Until all have ended."""
        total, waiting = sum(config.task_budget for config in self.runs.values()), set(self.ends)
        bar = tqdm(
            total=total,
            initial=sum(self.done.values()),
            unit="task",
            disable=not progress,
            desc=f"{len(self.runs)} runs",
        )
        with bar:
            while waiting:
                ended, waiting = futures.wait(waiting, POLL_SECONDS, futures.FIRST_COMPLETED)
                training = self.begun(waiting)
                self.done |= {f: RunFolder(f).newest().get("tasks", 0) for f in training + self.begun(ended)}
                self.failed |= {self.ends[end]: why for end in ended if (why := _failure(end, self.ends[end]))}
                bar.set_postfix(newest_numbers(training), refresh=False)
                bar.update(sum(self.done.values()) - bar.n)

    def begun(self, ends: Iterable[futures.Future]) -> list[Path]:
        """Of these runs those whose metrics are of a process that was started here: it writes the provenance as soon
        as it has emptied the metrics, or taken them up."""
        written = {self.ends[end]: self.ends[end] / "provenance.json" for end in ends}
        return [f for f, path in written.items() if path.exists() and path.stat().st_mtime_ns >= self._since]


def _failure(end: futures.Future[int], folder: Path) -> str:
    """Why a run failed, "" where it did not: the last line of its log, unless it was lost before it could say."""
    if error := end.exception():
        return f"it was lost ({str(error).partition(chr(10))[0] or type(error).__name__})"
    if not (status := end.result()):
        return ""
    if status < 0:
        return f"its process was killed ({signal.Signals(-status).name})"
    said = (folder / "log.txt").read_text(encoding="utf-8").strip().splitlines()
    return said[-1] if said else f"it said nothing (exit status {status})"


def _arguments(folder: Path, config: RunConfig, device: str) -> list[str]:
    """Of `lfo`, to train a full config that is written beside the run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "requested.json"
    path.write_text(json.dumps(as_dict(config), indent=2) + "\n")
    return ["train", "--quiet", "--config", str(path), "--run", str(folder), "--device", device]


def newest_numbers(folders: Iterable[Path]) -> dict[str, str]:
    """Training success and policy loss in the newest steps of some runs, on average, as text."""
    steps = [RunFolder(folder).newest("step") for folder in folders]
    names = {"success": "train_success", "loss": "policy/loss"}
    found = {short: [row[name] for row in steps if name in row] for short, name in names.items()}
    return {short: f"{sum(values) / len(values):.2f}" for short, values in found.items() if values}
