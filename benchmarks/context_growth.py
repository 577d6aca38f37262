"""How should a growing context enter the KV cache: one chunk per turn, or token by token in lock-step?

    python benchmarks/context_growth.py        # about a minute; writes benchmarks/results.csv

Both ways play the same 64 episodes of the embedded base with the same seed, in turn, several times
in one process; what counts is the ratio of their times, pair by pair.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pandas as pd

from lfo.config import EnvConfig, RolloutConfig, derive_seed
from lfo.rollout import Job, TorchEngine, play
from lfo.tokens import Codec
from lfo.train import provenance
from lfo.world import generate_world

BASE, PAIRS = "data/base", 5


def seconds(engine: TorchEngine, codec: Codec, world, jobs: list[Job]) -> float:
    start = time.perf_counter()
    play(engine, codec, world, jobs, EnvConfig(), RolloutConfig(), 0, policy="base")
    return time.perf_counter() - start


def main() -> None:
    codec, world = Codec.load(BASE), generate_world(0)
    tasks = world.split("train", (1, 2))[:8]
    jobs = [Job(task, i, derive_seed("benchmark", i)) for i, task in enumerate(tasks) for _ in range(8)]
    chunked, token_by_token = TorchEngine(BASE), TorchEngine(BASE, chunk=1)
    ratios = []
    for pair in range(PAIRS + 1):
        ratio = seconds(token_by_token, codec, world, jobs) / seconds(chunked, codec, world, jobs)
        if pair:  # the first pair warms up
            ratios.append(ratio)
    row = {
        "benchmark": "context_growth",
        "subject": "one chunk per turn",
        "peer": "token by token in lock-step",
        "ratio": round(statistics.median(ratios), 2),
        "low": round(min(ratios), 2),
        "high": round(max(ratios), 2),
        "unit": f"x faster, {len(jobs)} episodes, {PAIRS} pairs; {provenance()['machine']}",
        "source": Path(__file__).name,
    }
    pd.DataFrame([row]).to_csv(Path(__file__).parent / "results.csv", index=False)
    print(row)


if __name__ == "__main__":
    main()
