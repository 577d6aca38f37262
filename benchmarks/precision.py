"""Whether `model.autocast: auto` chooses the faster precision: a replay update in bf16 and in fp32.

    python benchmarks/precision.py [--quick]

Measured twice, each time in a process of its own: with the instructions that this machine has, and held to AVX2, as an
older laptop is, where bf16 is emulated. A replay update is that of configs/laptop.yaml: 16 examples that rollouts of
the embedded base have heard. A ratio below 1 says that `auto` chose the slower precision.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import common

from lfo.config import RunConfig
from lfo.learn.learner import Learner
from lfo.text.base import bf16_pays
from lfo.train import Run
from lfo.types import Encoded

BF16, FP32 = "bf16", "fp32"
HELD = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
SETTINGS = {"instructions as they are": {}, "held to AVX2": HELD}
WORKER = "--worker"


def heard(run: Run) -> list[Encoded]:
    """Examples for one replay update."""
    run.publish()
    run.buffer.add([example for row in run.sample_groups() for example in row.examples])
    return run._replayed(seed=0)


def measure(size: common.Size) -> dict:
    """In the process of one setting: what `auto` chooses here, and the seconds of a replay update in each round."""
    config: RunConfig = size.settings(**{"model.autocast": False})
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, folder)
        examples = heard(run)
    learners = {
        name: Learner(config, run.coupling.layout, run.objective, run.codec.pad_id, bf16=name == BF16)
        for name in (BF16, FP32)
    }

    def seconds(learner: Learner, number: int) -> float:
        start = time.perf_counter()
        learner.replay(examples, 1.0, number)
        return time.perf_counter() - start

    contenders = {name: lambda number, its=learner: seconds(its, number) for name, learner in learners.items()}
    costs = common.in_turn(contenders, size.rounds)
    return {"auto": BF16 if bf16_pays() else FP32, "instructions": common.instructions(), "seconds": costs}


def elsewhere(variables: dict[str, str], quick: bool) -> dict:
    """`measure` in a process with these environment variables."""
    command = [sys.executable, __file__, WORKER, *["--quick"] * quick]
    done = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def rows(size: common.Size, setting: str, found: dict) -> list[dict]:
    chosen, costs = found["auto"], found["seconds"]
    other = FP32 if chosen == BF16 else BF16
    faster = common.ratios(costs[other], costs[chosen])
    unit = f"x faster (auto: {chosen})"
    said = [common.row(size, "precision", f"auto, {setting}", "the other precision", faster, unit)]
    for name in (BF16, FP32):
        said.append(common.row(size, "precision", f"replay update in {name}, {setting}", "", costs[name], "seconds"))
    return [row | {"instructions": found["instructions"]} for row in said]


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if worker := WORKER in arguments:
        arguments.remove(WORKER)
    size = common.size(__doc__, arguments)
    if worker:
        print(json.dumps(measure(size)))
        return
    found = {setting: elsewhere(variables, size.quick) for setting, variables in SETTINGS.items()}
    common.record([row for setting in found for row in rows(size, setting, found[setting])])


if __name__ == "__main__":
    main()
