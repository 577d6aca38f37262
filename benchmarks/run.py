"""Where the seconds of a whole laptop run go, by phase: some steps on one core, extrapolated to its 320 tasks.

    python benchmarks/run.py [--quick]

configs/laptop.yaml as it is: a few steps, one evaluation and one checkpoint. `ratio` is seconds of the whole run: the
median of a step times the steps of a run, the evaluation times the evaluations. These are the first steps of a run: a
trained policy has more groups to learn from (`joint`) and other episodes (`rollout`, `evaluate`).
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import common
import torch

from lfo.config import RunConfig, load_config
from lfo.train import Run

PHASES = ("rollout", "joint", "replay", "publish")


@dataclasses.dataclass(frozen=True)
class Phases:
    """Seconds by phase, one number per step ("evaluate", "checkpoint": one per time), of a run with this config."""

    config: RunConfig
    steps: dict[str, list[float]]  # PHASES, "other" and "step", the first step included
    evaluate: float
    checkpoint: float

    @property
    def times(self) -> dict[str, int]:
        """How often each happens in a whole run. The first evaluation comes before the first step."""
        c = self.config
        steps = -(-c.task_budget // c.rollout.tasks_per_step)
        often = {"evaluate": c.task_budget // c.eval_every + 1, "checkpoint": steps // c.checkpoint_every}
        return dict.fromkeys(self.steps, steps) | often

    def whole(self, name: str) -> list[float]:
        """Seconds of a phase in a whole run, as each step but the first has it."""
        once = {"evaluate": [self.evaluate], "checkpoint": [self.checkpoint]}
        return [seconds * self.times[name] for seconds in once.get(name) or self.steps[name][1:]]

    @property
    def all(self) -> list[float]:
        """Seconds of a whole run, as each step but the first has it."""
        fixed = self.whole("evaluate")[0] + self.whole("checkpoint")[0]
        return [seconds + fixed for seconds in self.whole("step")]


def measure(config: RunConfig, folder: str | Path, steps: int, device: str = "cpu") -> Phases:
    """The first steps of a run, one that warms up and `steps` that count, between an evaluation and a checkpoint.

    The task budget must have that many.
    """
    run = Run(config, folder, device=device)
    run.publish()
    evaluation = run.evaluate()[-1]["seconds"]["evaluate"]
    found: dict[str, list[float]] = {name: [] for name in (*PHASES, "other", "step")}
    for _ in range(steps + 1):
        began = time.perf_counter()
        seconds: Mapping[str, float] = run.advance()["seconds"]
        whole = time.perf_counter() - began
        for name in PHASES:
            found[name].append(seconds.get(name, 0.0))
        found["step"].append(whole)
        found["other"].append(max(0.0, whole - sum(seconds.get(name, 0.0) for name in PHASES)))
    began = time.perf_counter()
    run.save()
    return Phases(config, found, evaluation, time.perf_counter() - began)


def rows(size: common.Size, phases: Phases) -> list[dict]:
    """What each phase takes of a whole run, and the two shares that say where to save."""
    unit = f"seconds of {phases.config.task_budget} tasks, extrapolated"

    def row(subject: str, values: list[float], unit: str = unit) -> dict:
        return common.row(size, "run", subject, "", values, unit)

    steps, evaluated = phases.steps, phases.whole("evaluate")[0]
    pairs = list(zip(steps["replay"], steps["step"], strict=True))[1:]
    found = [row(phase, phases.whole(phase)) for phase in (*PHASES, "other", "evaluate", "checkpoint")]
    return [
        *found,
        row("the whole run", phases.all),
        row("replay / rest of the step", [replay / (step - replay) for replay, step in pairs], "share"),
        row("evaluation / run", [evaluated / seconds for seconds in phases.all], "share"),
    ]


def settings(size: common.Size) -> RunConfig:
    """The laptop run, never less than its own steps in the full benchmark; a smaller one to see that it runs."""
    smaller = {"rollout.tasks_per_step": size.tasks, "eval_tasks": 2, "eval_episodes": 1} if size.quick else {}
    return load_config("configs/laptop.yaml", **smaller)


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments, rounds=5)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        phases = measure(settings(size), folder, size.rounds)
    common.record(rows(size, phases))


if __name__ == "__main__":
    main()
