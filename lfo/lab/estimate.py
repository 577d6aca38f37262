"""How long the unfinished runs of a sweep will take on this machine: short runs are timed, the rest is arithmetic.

One short run of each kind is trained as the sweep would train it, as many side by side as there will be, so that what
they take from each other, and what else the machine is doing, is measured too. Settings that change the cost within a
kind are allowed for where they are many (replay updates, passes over the groups), and left out where they are few; so
is what a run takes to begin.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from lfo.config import EnvConfig, RunConfig
from lfo.lab.sweep import train_many
from lfo.runs import RunFolder

TIMED_STEPS = 3  # of a short run; the first of them warms up and is not counted


def kind(config: RunConfig) -> str:
    """Runs of one kind cost about the same: the coupling, or `baseline` without one, by how many replies are voted
    and calls are read, whether there is feedback or PPO, and the world, unless it is the phone's."""
    w = config.world_model
    name = w.coupling if w else "baseline"
    name += f", {w.members} x {w.votes}" if w and w.members * w.votes > 1 else ""
    name += f", {w.reads} read" if w and w.reads else ""
    world = "" if config.env.name == EnvConfig().name else config.env.name
    return ", ".join(filter(None, (name, config.feedback and "feedback", config.ppo and "ppo", world)))


@dataclasses.dataclass(frozen=True)
class Cost:
    """Measured seconds of a kind of run: per sampled task by phase, and per evaluation; `config` was timed."""

    config: RunConfig
    phases: dict[str, float]
    evaluation: float

    def seconds(self, config: RunConfig, done: int = 0) -> float:
        """Of a run of this kind from `done` sampled tasks to its end."""
        passes, replays = config.policy.epochs / self.config.policy.epochs, _replays(self.config)
        factors = {"joint": passes, "replay": _replays(config) / replays if replays else 1.0}
        per_task = sum(s * factors.get(phase, 1.0) for phase, s in self.phases.items())
        left = config.task_budget - done
        return left * per_task + (math.ceil(left / config.eval_every) + (done == 0)) * self.evaluation


def _replays(config: RunConfig) -> int:
    """Updates a step beside the joint ones: of the world model, and on what feedback has corrected."""
    w, f = config.world_model, config.feedback
    return (w.updates * w.members if w and w.lam > 0 else 0) + (f.updates if f else 0)


def shortened(config: RunConfig) -> RunConfig:
    """The same run as `TIMED_STEPS` steps, with one evaluation before and one after them."""
    tasks, w = TIMED_STEPS * config.rollout.tasks_per_step, config.world_model
    return dataclasses.replace(
        config,
        task_budget=tasks,
        eval_every=tasks,
        rollout=dataclasses.replace(config.rollout, max_refills=0),
        world_model=w and dataclasses.replace(w, schedule="joint"),
    )


def measure(configs: Sequence[RunConfig], workers: int) -> dict[str, Cost]:
    """The cost of every kind among `configs`: of its most expensive run, shortened, `workers` runs side by side."""
    kinds = {kind(c): c for c in sorted(configs, key=lambda c: _replays(c) * c.policy.epochs)}
    copies = math.ceil(workers / len(kinds))
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            Path(folder) / name / f"seed{seed}": dataclasses.replace(shortened(config), seed=seed)
            for seed, (name, config) in itertools.product(range(copies), kinds.items())
        }
        train_many(runs, workers)
        timed = {name: RunFolder(Path(folder) / name / "seed0").metrics() for name in kinds}
        return {name: _cost(config, timed[name]) for name, config in kinds.items()}


def _cost(config: RunConfig, rows: Sequence[Mapping]) -> Cost:
    """From the metrics of a short run of `config`, without its first step."""
    first, *steps = [row for row in rows if row["kind"] == "step"]
    tasks = steps[-1]["tasks"] - first["tasks"]
    phases = {phase: sum(row["seconds"].get(phase, 0.0) for row in steps) / tasks for phase in steps[-1]["seconds"]}
    return Cost(config, phases, [row for row in rows if row["kind"] == "seconds"][-1]["seconds"]["evaluate"])


def estimate(runs: Mapping[Path, RunConfig], workers: int | None) -> pd.DataFrame:
    """Kind by kind: runs, those finished, sampled tasks left, hours of one process; a last row for all of them.

    The last row's hours are by the clock: runs are shared among `workers` processes (None: as many as
    there are cores), and none is split. taken: hours that runs took by their metrics, which a clone has as well, of
    however many tasks; beside the hours of runs that are all still to be made they say how good this estimate is.
    """
    workers = max(1, min(workers or os.cpu_count() or 1, len(runs)))
    open_runs = {f: c for f, c in runs.items() if not RunFolder(f).finished(c)}
    done = {f: RunFolder(f).tasks_done() for f in open_runs}
    costs = measure([*open_runs.values()], workers) if open_runs else {}
    seconds = {f: costs[kind(c)].seconds(c, done[f]) for f, c in open_runs.items()}
    rows, taken = [], {f: _taken(f) for f in runs}
    for name in dict.fromkeys(map(kind, runs.values())):
        mine = [f for f, c in runs.items() if kind(c) == name]
        left = sum(runs[f].task_budget - done[f] for f in mine if f in open_runs)
        hours = sum(seconds.get(f, 0.0) for f in mine) / 3600
        taken_hours = sum(taken[f] for f in mine) / 3600
        rows.append([name, len(mine), sum(f not in open_runs for f in mine), left, hours, taken_hours])
    clock, took = (max([sum(s.values()) / workers, *s.values()]) / 3600 for s in (seconds, taken))
    totals = [sum(row[i] for row in rows) for i in (1, 2, 3)]
    rows.append([f"all, {workers} at a time", *totals, clock, took])
    return pd.DataFrame(rows, columns=["kind", "runs", "finished", "tasks left", "hours", "taken"])


def _taken(folder: Path) -> float:
    """Seconds of a run's steps and evaluations, by its metrics."""
    timed = RunFolder(folder).metrics() if (folder / "metrics.jsonl").exists() else []
    return sum(sum(row["seconds"].values()) for row in timed if "seconds" in row)
