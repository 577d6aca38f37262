"""What the seconds of a rollout are spent on in the torch engine, by torch.profiler. Records nothing.

    python benchmarks/where_time_goes.py [--quick]

Phases of a tick (`lfo.rollout.batch`): `arrange` gives rows to requests and moves keys and values, `prepare` makes the
indices and masks of a step, `forward` is the model, split into ticks in which some row reads a context and ticks in
which all add one token, `sample` picks tokens. What is left is `outside`: the environment, the tokenizer, the loop.
"""

from __future__ import annotations

import time

import common
import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lfo.config import RolloutConfig
from lfo.couplings import make_coupling
from lfo.envs import make_environment
from lfo.rollout.batch import Batch
from lfo.rollout.decoder import Decoder
from lfo.rollout.play import play
from lfo.rollout.torch_engine import TorchEngine
from lfo.types import Rollout

READS, STEPS = "forward, with contexts read", "forward, one token per row"
PHASES = ("arrange", "prepare", READS, STEPS, "sample")


class LabelledDecoder(Decoder):
    """A decoder whose work is named and counted."""

    ticks = rows = tokens = 0

    def step(self, chunks, starts, cache):
        self.ticks, self.rows = self.ticks + 1, self.rows + len(chunks)
        self.tokens += sum(map(len, chunks))
        with record_function("prepare"):
            return super().step(chunks, starts, cache)

    def forward(self, step, cache):
        with record_function(READS if step.readings else STEPS):
            return super().forward(step, cache)


class LabelledBatch(Batch):
    """A batch whose phases are named."""

    def _admit(self):
        with record_function("arrange"):
            return super()._admit()

    def _arrange(self, fed):
        with record_function("arrange"):
            return super()._arrange(fed)

    def _say(self, speakers, logits):
        with record_function("sample"):
            return super()._say(speakers, logits)


class Labelled(TorchEngine):
    """The torch engine with its phases named, and the ticks of its last adapter counted."""

    def _batch(self, model):
        self.decoder = LabelledDecoder(model)
        return LabelledBatch(self.decoder, *self._limits)


def tell(engine: Labelled, rows: list[Rollout], events: dict, seconds: float) -> None:
    phases = {name: events[name].cpu_time_total / 1e6 / seconds for name in PHASES if name in events}
    phases["outside"] = 1 - sum(phases.values())
    print(", ".join(f"{name} {share:.0%}" for name, share in phases.items()), f"of {seconds:.2f} s (profiled)")
    length, said = sum(len(r.tokens) for r in rows) / len(rows), engine.generated_tokens / len(rows)
    turns = pd.Series([len(r.turns) for r in rows])
    print(f"an episode has {length:.0f} tokens, {said:.0f} of them sampled, in {turns.mean():.1f} turns", end="; ")
    print(f"the longest has {turns.max()} turns")
    decoder = engine.decoder
    per_tick = f"{decoder.rows / decoder.ticks:.1f} rows and {decoder.tokens / decoder.ticks:.1f} tokens"
    print(f"{decoder.ticks} ticks for {len(rows)} episodes, each of which feeds {per_tick}; rows that follow another")
    fed = decoder.tokens / sum(len(r.tokens) for r in rows)
    print(f"as long as they agree are not fed: {fed:.0%} of all tokens were")
    operations = {key: event for key, event in events.items() if key not in PHASES}
    total = sum(event.self_cpu_time_total for event in operations.values())
    shares = [(key, event.count, event.self_cpu_time_total / total) for key, event in operations.items()]
    table = pd.DataFrame(shares, columns=["operation", "calls", "share"]).sort_values("share", ascending=False)
    print(table.head(15).to_markdown(index=False, floatfmt=".3f"))


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments)
    torch.set_num_threads(1)  # operations do not overlap: their times add up
    config = size.settings(**common.NO_WORLD_MODEL)
    env = make_environment(config.env)
    codec, coupling = make_coupling(config, env)
    engine = Labelled(common.BASE)
    engine._batches["policy"] = engine._batches["base"]  # the base acts, as an untrained adapter would

    def once() -> list[Rollout]:
        return play(engine, codec, size.groups(env), coupling, RolloutConfig(), 0)

    once()
    decoder = engine.decoder
    decoder.ticks = decoder.rows = decoder.tokens = engine.generated_tokens = 0
    start = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        rows = once()
    seconds = time.perf_counter() - start
    tell(engine, rows, {event.key: event for event in seen.key_averages()}, seconds)


if __name__ == "__main__":
    main()
