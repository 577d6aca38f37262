"""What the rank of the adapters costs, and an ensemble of them: seconds of a step, and memory, over those of rank 64.

    python benchmarks/ranks.py [--quick]

Every contender is a training run on the embedded base (`lfo.train.Run.advance`), coupling `imagine`, with 20 replay
updates a step, which samples the same tasks with the same seeds. With learning rates of 0 all the work is done and
nothing moves, so that all see the same trajectories, but for the ensemble, whose votes may choose another note.

Memory is the peak that `lfo plan` names for one process on a CPU, tested against real steps in tests/lab/test_plan.py;
most of it is not the adapters'.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import common

from lfo.config import RunConfig
from lfo.lab.plan import plan
from lfo.train import Run

PEER = "rank 64"
ARMS = {
    PEER: {},
    "rank 4": {"model.rank": 4},
    "rank 16": {"model.rank": 16},
    "rank 256": {"model.rank": 256},
    "rank 64, 3 members with 3 votes": {"world_model.members": 3, "world_model.votes": 3},
}


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments, rounds=4)
    configs = {name: size.settings(**settings) for name, settings in ARMS.items()}
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: Run(config, Path(folder) / name) for name, config in configs.items()}
        costs = common.steps(runs, size.rounds)
    common.record(rows(size, costs, {name: planned(config) for name, config in configs.items()}))


def planned(config: RunConfig) -> float:
    """Bytes at the peak of a step."""
    (alone,) = plan(config, "cpu")
    return alone.need(alone.peak)


def rows(size: common.Size, costs: dict[str, list[float]], memory: dict[str, float]) -> list[dict]:
    """costs: seconds of a step by arm; memory: bytes."""
    found = []
    for arm in [arm for arm in ARMS if arm != PEER]:
        price, space = common.ratios(costs[arm], costs[PEER]), memory[arm] / memory[PEER]
        found.append(common.row(size, "ranks", arm, PEER, price, "x the seconds of a step"))
        found.append(common.row(size, "ranks", f"{arm}, memory", f"{PEER}, memory", [space], "x the planned peak"))
    return found


if __name__ == "__main__":
    main()
