"""What feedback-guided DAPO costs: seconds of a task over the baseline's, and in other waves over its own.

    python benchmarks/feedback.py [--quick]

Every contender is a training run on the embedded base (`lfo.train.Run.advance`), with the config of its arm and at its
own rates and tasks a step. Compared are seconds a sampled task: the baseline refills, and so samples more tasks in a
step. These are the first steps of a run, in which the policy succeeds nowhere and most of a group has something to
correct. With feedback the replay begins with the first correction.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import common

from lfo.config import load_config
from lfo.train import Run

ONE, NOTED = {"feedback.start": 2, "feedback.wave": 1}, ("imagine", "memory", "dream")
ARMS = {  # config, and what is set in it
    "baseline": ("baseline", {}),
    "baseline that imitates its successes": ("baseline", {"policy.imitate": 0.5}),
    "feedback": ("feedback", {}),
    **{f"feedback beside {name}": (f"feedback_{name}", {}) for name in NOTED},
    **{f"first attempts: {n - 1}": ("feedback", {"feedback.start": n}) for n in (2, 3, 5)},
    "one by one, all told": ("feedback", ONE),
    "one by one, the last told": ("feedback", ONE | {"feedback.accumulate": "last", "feedback.max_tokens": 100}),
    "a quarter of the length": ("feedback", {"feedback.max_tokens": 50}),
    "half of the groups": ("feedback", {"feedback.share": 0.5}),
    "twice the replay": ("feedback", {"feedback.updates": 24}),
    "four times the replay": ("feedback", {"feedback.updates": 48}),
}
Cost = tuple[float, float]  # seconds of a task, and of these its rollouts


def measure(runs: Mapping[str, Run], rounds: int) -> dict[str, list[Cost]]:
    """What a task of each run costs in every round but the first, in turn."""
    found: dict[str, list[Cost]] = {name: [] for name in runs}

    def seconds(name: str) -> float:
        run, before, began = runs[name], runs[name].tasks_seen, time.perf_counter()
        rollout = run.advance()["seconds"]["rollout"]
        taken, tasks = time.perf_counter() - began, run.tasks_seen - before
        found[name].append((taken / tasks, rollout / tasks))
        return taken / tasks

    for run in runs.values():
        run.publish()
    common.in_turn({name: lambda _, name=name: seconds(name) for name in runs}, rounds)
    return {name: costs[1:] for name, costs in found.items()}


def rows(size: common.Size, costs: Mapping[str, list[Cost]]) -> list[dict]:
    """Whole tasks against the baseline and against feedback as it is configured, rollouts against the latter's."""
    found = []
    for name, mine in costs.items():
        for peer, unit, part in (
            ("baseline", "x the seconds of a task", 0),
            ("feedback", "x the seconds of a task", 0),
            ("feedback", "x the seconds of a task's rollouts", 1),
        ):
            if name not in ("baseline", peer):
                price = common.ratios([cost[part] for cost in mine], [cost[part] for cost in costs[peer]])
                subject = name if part == 0 else f"{name}, rollouts"
                found.append(common.row(size, "feedback", subject, peer, price, unit))
    return found


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments, rounds=5)
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            name: Run(load_config(f"configs/{config}.yaml", **settings, **_size(size)), Path(folder) / name)
            for name, (config, settings) in ARMS.items()
        }
        costs = measure(runs, size.rounds)
    common.record(rows(size, costs))


def _size(size: common.Size) -> dict:
    """A budget that does not end, and fewer tasks where it is to be quick."""
    return {"task_budget": 1_000_000} | ({"rollout.tasks_per_step": size.tasks} if size.quick else {})


if __name__ == "__main__":
    main()
