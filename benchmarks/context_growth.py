"""How should a growing context enter the KV cache: one chunk per turn, or token by token in lock-step?

    python benchmarks/context_growth.py [--quick]

Both ways play the same 64 episodes of the embedded base with the same seed.
"""

from __future__ import annotations

import time

import common

from lfo.config import RolloutConfig
from lfo.rollout import TorchEngine, play
from lfo.tokens import Codec
from lfo.world import generate_world

CHUNKED, TOKEN_BY_TOKEN = "one chunk per turn", "token by token in lock-step"


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments)
    codec, world = Codec.load(common.BASE), generate_world(0)
    jobs = size.jobs(world)

    def seconds(engine: TorchEngine) -> float:
        start = time.perf_counter()
        play(engine, codec, world, jobs, common.ENV, RolloutConfig(), 0, policy="base")
        return time.perf_counter() - start

    engines = {TOKEN_BY_TOKEN: TorchEngine(common.BASE, chunk=1), CHUNKED: TorchEngine(common.BASE)}
    costs = common.in_turn({name: lambda _, e=engine: seconds(e) for name, engine in engines.items()}, size.rounds)
    faster = common.ratios(costs[TOKEN_BY_TOKEN], costs[CHUNKED])
    common.record([common.row(size, "context_growth", CHUNKED, TOKEN_BY_TOKEN, faster, "x faster")])


if __name__ == "__main__":
    main()
