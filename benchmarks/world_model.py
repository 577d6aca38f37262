"""What the world model adds to a training step: seconds with it over seconds without it.

    python benchmarks/world_model.py [--quick]

Every contender is a training run on the embedded base (`lfo.train.Run.advance`: sample 8 rollouts of each of 8 tasks,
learn, publish) that samples the same tasks with the same seeds. With learning rates of 0 all the work is done and
nothing moves, so that `none`, `echo` and `shared` see the same trajectories. With `imagine` the policy reads imagined
tokens and acts otherwise, in episodes that may be shorter: its ratio is the price of a step, not of the world model
alone.

- `all groups`: the policy learns from every group. Then the replies that `echo` learns are in rows that the policy's
  forward pass reads anyway.
- `dynamic sampling`: as in training, the policy learns from the groups in which some rollouts succeed and some fail.
  Of an untrained policy that is a part of them, while the world model always learns from all.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import common

from lfo.train import Run

CALLS = {"world_model.scouts": 0}
ARMS = {
    "none": common.NO_WORLD_MODEL,
    "echo, in the policy's pass": {
        **CALLS,
        "world_model.coupling": "echo",
        "world_model.updates": 0,
        "world_model.anonymise": 0.0,
    },
    "shared, calls": {**CALLS, "world_model.coupling": "shared", "world_model.updates": 0},
    "imagine, calls": {**CALLS, "world_model.coupling": "imagine", "world_model.updates": 0},
    "imagine, calls, 20 replay updates": {**CALLS, "world_model.coupling": "imagine", "world_model.updates": 20},
}
GROUPS = {"all groups": common.EveryGroup, "dynamic sampling": Run}


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments)
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            (groups, arm): kind(size.settings(**overrides), Path(folder) / groups / arm)
            for groups, kind in GROUPS.items()
            for arm, overrides in ARMS.items()
        }
        costs = common.steps(runs, size.rounds)
    common.record(rows(size, costs))


def rows(size: common.Size, costs: dict[tuple[str, str], list[float]]) -> list[dict]:
    """costs: seconds of a step by groups and arm."""
    found = []
    for groups in GROUPS:
        for arm in [arm for arm in ARMS if arm != "none"]:
            price = common.ratios(costs[groups, arm], costs[groups, "none"])
            subject, peer = f"{arm} ({groups})", f"none ({groups})"
            found.append(common.row(size, "world_model", subject, peer, price, "x the seconds of a step"))
    return found


if __name__ == "__main__":
    main()
