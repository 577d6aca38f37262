"""What the seconds of a rollout are spent on in the torch engine, by torch.profiler. Records nothing.

    python benchmarks/where_time_goes.py [--quick]

`read` feeds what is new in a turn, `step` adds one token to every row. A row that has said its action is computed all
the same until a quarter of the rows have: `in use` are the rows of all steps that still had something to say.
"""

from __future__ import annotations

import common
import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lfo.config import RolloutConfig
from lfo.records import Trajectory
from lfo.rollout import TorchEngine, play
from lfo.tokens import Codec
from lfo.world import generate_world


class Labelled(TorchEngine):
    """The torch engine with its two phases named, and its steps counted."""

    steps = rows = used = 0

    def _feed(self, model, session, new):
        with record_function("read"):
            return super()._feed(model, session, new)

    def _step(self, model, session, tokens, active):
        self.steps, self.rows, self.used = self.steps + 1, self.rows + len(tokens), self.used + int(active.sum())
        with record_function("step"):
            return super()._step(model, session, tokens, active)


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments)
    torch.set_num_threads(1)  # operations do not overlap: their times add up
    codec, world, engine = Codec.load(common.BASE), generate_world(0), Labelled(common.BASE)
    jobs = size.jobs(world)

    def once() -> list[Trajectory]:
        return play(engine, codec, world, jobs, common.ENV, RolloutConfig(), 0, policy="base")

    once()
    engine.steps = engine.rows = engine.used = engine.generated_tokens = 0
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        rows = once()
    events = {e.key: e for e in seen.key_averages()}
    total = sum(e.self_cpu_time_total for e in events.values())
    phases = {name: events[name].cpu_time_total / total for name in ("read", "step")}
    print(", ".join(f"{name} {share:.0%}" for name, share in phases.items()), f"of {total / 1e6:.2f} s of operations")
    tokens, sampled = sum(len(r.tokens) for r in rows) / len(rows), engine.generated_tokens / len(rows)
    turns = pd.Series([len(r.turns) for r in rows])
    print(f"an episode has {tokens:.0f} tokens, {sampled:.0f} of them sampled, in {turns.mean():.1f} turns", end="; ")
    print(f"the longest has {turns.max()} turns")
    print(f"{engine.steps} steps for {len(rows)} rows; rows of all steps in use: {engine.used / engine.rows:.0%}")
    shares = [(e.key, e.count, e.self_cpu_time_total / total) for e in events.values()]
    table = pd.DataFrame(shares, columns=["operation", "calls", "share"]).sort_values("share", ascending=False)
    print(table.head(15).to_markdown(index=False, floatfmt=".3f"))


if __name__ == "__main__":
    main()
