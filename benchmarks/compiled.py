"""What compiling the learner's layers saves: the learner's seconds without `distributed.compile` over those with it.

    python benchmarks/compiled.py [--quick]

Two runs of `imagine` as in configs/laptop.yaml, with learning rates of 0: both sample the same rollouts and learn from
them and from 20 replayed batches. Counted are the joint and the replay updates; sampling is never compiled. The round
that warms up compiles; lengths that come up later may make the compiler work again, and count.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import common

from lfo.config import ConfigError, RunConfig
from lfo.train import Run

PLAIN, COMPILED = "layers as they are", "compiled layers"


def contenders(size: common.Size) -> dict[str, RunConfig]:
    return {name: size.settings(**{"distributed.compile": name == COMPILED}) for name in (PLAIN, COMPILED)}


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            runs = {name: Run(config, Path(folder) / name) for name, config in contenders(size).items()}
        except ConfigError as error:  # there is no compiler
            print(f"skipped: {error}")
            return
        for run in runs.values():
            run.publish()

        def seconds(run: Run) -> float:
            spent = run.advance()["seconds"]
            return spent["joint"] + spent["replay"]

        costs = common.in_turn({name: lambda _, run=run: seconds(run) for name, run in runs.items()}, size.rounds)
    faster = common.ratios(costs[PLAIN], costs[COMPILED])
    common.record([common.row(size, "compiled", COMPILED, PLAIN, faster, "x faster")])


if __name__ == "__main__":
    main()
