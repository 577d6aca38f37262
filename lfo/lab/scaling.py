"""What a run needs: planned from shapes, measured where this machine can (notebook 07).

Peaks of memory are what torch's CPU allocator saw of one real update of a small random model; speeds are those of
the run's own base on this machine, with whatever else runs on it.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, Qwen3Config

from lfo.config import RunConfig, build
from lfo.couplings import make_coupling
from lfo.couplings.plain import ALONE, STACKED
from lfo.lab.plan import BACKWARD, GIB, LOSS, MOMENTS, GpuPlan, in_bf16, learner_items, plan, shape_of
from lfo.learn.forward import LOGITS
from lfo.learn.learner import Learner
from lfo.learn.objectives import Dapo
from lfo.protocols import Environment
from lfo.rollout import make_engine
from lfo.rollout.play import play
from lfo.types import Encoded, Role, Sample

MIB = 2**20
PLANNED = "planned, not measured"
OTHER = "everything else"
SMALL = 0.25  # GiB
SHORT, LONG = (256, 250, 240, 256), (1024,)  # tokens of the rows in one micro-batch


# --- planned ---------------------------------------------------------------------------------


def plan_table(plans: Mapping[str, Sequence[GpuPlan]]) -> pd.DataFrame:
    """One row per config, kind of GPU and item: GiB on one GPU, and when they are needed."""
    rows = []
    for name, gpu in _all(plans):
        for item in (item for item in gpu.items if item.bytes):
            needed = "always" if item.moments == MOMENTS else ", ".join(item.moments)
            rows.append({**_which(name, gpu), "item": item.name, "gib": item.bytes / GIB, "needed": needed})
    return pd.DataFrame(rows).assign(source=PLANNED)


def _all(plans: Mapping[str, Sequence[GpuPlan]]) -> list[tuple[str, GpuPlan]]:
    return [(name, gpu) for name, gpus in plans.items() for gpu in gpus]


def _which(name: str, gpu: GpuPlan) -> dict[str, str]:
    return {"config": name, "role": gpu.role, "gpus": f"{gpu.count} x {gpu.capacity / GIB:.0f} GiB"}


def verdict_table(plans: Mapping[str, Sequence[GpuPlan]]) -> pd.DataFrame:
    """One row per config and kind of GPU: the peak, the moment it comes at, and whether it fits."""
    rows = []
    for name, gpu in _all(plans):
        peak = {"peak_at": gpu.peak, "peak_gib": gpu.need(gpu.peak) / GIB}
        rows.append({**_which(name, gpu), **peak, "fits": gpu.fits, "note": gpu.note})
    return pd.DataFrame(rows).assign(source=PLANNED)


def memory_figure(plans: Mapping[str, Sequence[GpuPlan]]) -> plt.Figure:
    """What lies on each kind of GPU at its peak, and on learners at that of an update too, with the GPU's memory.

    Items below `SMALL` in every bar are one.
    """
    bars = {}
    for name, gpu in _all(plans):
        busiest = max((LOSS, BACKWARD), key=gpu.need) if "learner" in gpu.role else gpu.peak
        for moment in dict.fromkeys([gpu.peak, busiest]):
            label = f"{name}, {moment}\n{gpu.count} x {gpu.role}"
            held = {item.name: item.bytes / GIB for item in gpu.items if moment in item.moments and item.bytes}
            bars[label] = (held, gpu.capacity / GIB)
    table = pd.DataFrame({label: held for label, (held, _) in bars.items()}).T.fillna(0.0)
    few = table.columns[table.max() < SMALL]
    table = table.drop(columns=few).assign(**{OTHER: table[few].sum(axis=1)})
    fig, ax = plt.subplots(figsize=(11, 1.4 + 0.62 * len(table)), layout="constrained")
    colours = [*sns.color_palette("colorblind"), *sns.color_palette("pastel")]
    left = np.zeros(len(table))
    for colour, (item, gib) in zip(colours, table.items(), strict=False):
        ax.barh(table.index, gib, 0.62, left=left, color="lightgrey" if item == OTHER else colour, label=item, lw=0)
        left += gib.to_numpy()
    for y, (_, capacity) in enumerate(bars.values()):
        label = "" if y else "the GPU's memory"
        ax.plot([capacity] * 2, [y - 0.42, y + 0.42], color="black", lw=2.5, label=label)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel=f"GiB on one GPU ({PLANNED})", xlim=(0, None))
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small", frameon=False)
    return fig


# --- measured: the memory of an update -------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to compute an update; `lengths`: tokens of its sequences; `logits`: that exist at a time."""

    name: str
    lengths: tuple[int, ...] = SHORT
    stacked: bool = False
    vocabulary: int = 1024
    autocast: bool = True
    checkpointing: bool = False
    dropout: float = 0.05
    targets: str = "all-linear"
    dtype: str = "float32"
    logits: int = LOGITS

    def config(self, base: str) -> RunConfig:
        names = ("autocast", "dropout", "targets", "dtype")
        data = {
            "model": {"base": base} | {name: getattr(self, name) for name in names},
            "distributed": {"micro_batch_tokens": 1024, "gradient_checkpointing": self.checkpointing},
            "rollout": {"max_tokens": max(self.lengths)},
            "world_model": {"coupling": "stacked"} if self.stacked else None,
        }
        return build(RunConfig, data)


PLAIN = {"autocast": False, "targets": "attention"}
CHECKED = {"checkpointing": True, "dropout": 0.0}
WAYS = (
    Way("as on a laptop", dropout=0.0),
    Way("as qwen3_8b", LONG, checkpointing=True, dtype="bfloat16"),
    Way("few logits at a time", LONG, vocabulary=32_768, dtype="bfloat16", logits=256 * 32_768, **CHECKED),
    Way("fp32, attention's maps", **PLAIN),
    Way("fp32", autocast=False, dropout=0.0),
    Way("checkpointing", checkpointing=True),
    Way("long, fp32, attention's maps, checkpointing", LONG, **PLAIN, **CHECKED),
    Way("bf16 base", dtype="bfloat16"),
    Way("large vocabulary", LONG, vocabulary=8192, checkpointing=True),
    Way("stacked", stacked=True),
    Way("stacked, fp32, attention's maps, checkpointing", stacked=True, **PLAIN, **CHECKED),
)


def measured_peak(action: Callable[[], object]) -> int:
    """The most bytes that `action` has allocated at a time, as torch's CPU allocator saw it."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        action()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def random_base(folder: str | Path, vocabulary: int) -> str:
    """A random Qwen3 of 4 layers whose activations outweigh odds and ends, written to `folder`."""
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "head_dim": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    tokens = {"vocab_size": vocabulary, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    AutoModelForCausalLM.from_config(Qwen3Config(**sizes, **heads, **tokens)).save_pretrained(folder)
    return str(folder)


def update_peaks(way: Way, base: str) -> dict[str, float]:
    """Bytes that one update needs beyond what was there before, and what was there: planned and measured."""
    config = way.config(base)
    learner = Learner(config, STACKED if way.stacked else ALONE, Dapo(config), 0, bf16=way.autocast)
    learner.scorer.chunk = way.logits // way.vocabulary
    samples = [_sample(i, n) for i, n in enumerate(way.lengths, start=1)]

    def update():
        learner.update(samples, [], 1.0, 0)

    heard = [Encoded((1,) * 8, (2,) * 8)] if way.stacked else []
    learner.update(samples, heard, 1.0, 0)  # makes the optimizer's state, and the world model's average
    peak = measured_peak(update)
    items = learner_items(shape_of(base), config, "cpu", way.logits)
    there = sum(p.nbytes for p in learner.model.parameters())
    there += sum(t.nbytes for average in learner.averages.values() for t in average)
    there += 2 * sum(p.nbytes for name in learner.layout.names for p in learner.parameters(name))  # Adam's moments
    passing = [item for item in items if item.moments != MOMENTS]
    return {
        "planned": max(sum(i.bytes for i in passing if moment in i.moments) for moment in (LOSS, BACKWARD)),
        "measured": peak,
        "planned_before": sum(i.bytes for i in items if i.moments == MOMENTS),
        "measured_before": there,
    }


def _sample(first: int, length: int) -> Sample:
    """A prompt of 16 tokens, then actions; samples that begin otherwise share nothing."""
    roles = [int(Role.PROMPT)] * 16 + [int(Role.ACTION)] * (length - 16)
    return Sample([first] * length, roles, [-1.0] * length, [1.0] * length)


def peak_table(ways: Sequence[Way]) -> pd.DataFrame:
    """Planned and measured MiB of an update in each of these ways."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bases = {v: random_base(Path(folder) / str(v), v) for v in sorted({way.vocabulary for way in ways})}
        for way in ways:
            found = update_peaks(way, bases[way.vocabulary])
            planned, measured = found["planned"] / MIB, found["measured"] / MIB
            about = {"update": way.name, "sequences": len(way.lengths), "tokens": sum(way.lengths)}
            rows.append({**about, "planned_mib": planned, "measured_mib": measured})
    return pd.DataFrame(rows).assign(planned_over_measured=lambda t: t["planned_mib"] / t["measured_mib"])


def peak_figure(peaks: pd.DataFrame) -> plt.Figure:
    """Planned and measured peaks of updates side by side."""
    fig, ax = plt.subplots(figsize=(8.5, 1.2 + 0.36 * len(peaks)), layout="constrained")
    y, colours = np.arange(len(peaks)), sns.color_palette()
    ax.hlines(y, peaks["planned_mib"], peaks["measured_mib"], color="grey", lw=1)
    ax.scatter(peaks["measured_mib"], y, color=colours[0], label="measured on CPU", zorder=3)
    ax.scatter(peaks["planned_mib"], y, color=colours[1], marker="|", s=160, lw=2.5, label="planned", zorder=4)
    for at, ratio in zip(y, peaks["planned_over_measured"], strict=True):
        beside = {"xycoords": ("axes fraction", "data"), "xytext": (6, 0), "textcoords": "offset points"}
        ax.annotate(f"{ratio - 1:+.1%}", (1.0, at), va="center", fontsize="small", **beside)
    ax.set_yticks(y, peaks["update"])
    ax.invert_yaxis()
    ax.set(xlabel="MiB that one update needs beyond weights and optimizer", xlim=(0, None))
    ax.legend(loc="center right", fontsize="small")
    return fig


# --- measured: the speed of the base ---------------------------------------------------------


def speed_table(config: RunConfig, env: Environment, tasks: Sequence[int], repeats: int = 2) -> pd.DataFrame:
    """Tokens per second of the engine and of the learner, with untrained adapters, by rollouts at a time.

    tasks: groups that are played at a time. Sampled tokens are actions; trained ones are whole rollouts, through
    forward and backward pass. The better of `repeats`: whatever else runs on the machine only costs time.
    """
    codec, coupling = make_coupling(dataclasses.replace(config, world_model=None), env)
    engine, objective = make_engine(config), Dapo(config)
    learner = Learner(config, coupling.layout, objective, codec.pad_id, bf16=in_bf16(config.model, "cpu"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        engine.load(learner.save_adapters(folder))
    for count, repeat in itertools.product(tasks, range(repeats)):
        chosen = env.tasks("train")[:count]
        groups = [coupling.waves(task, i, i, config.rollout.group_size) for i, task in enumerate(chosen)]
        sample = functools.partial(play, engine, codec, groups, coupling, config.rollout, repeat)
        played, sampled = _rate(lambda: engine.generated_tokens, sample)
        signs = itertools.cycle((1.0, -1.0))
        samples = [Sample(row.tokens, row.roles, row.logprobs, [next(signs)] * len(row.tokens)) for row in played]
        update = functools.partial(learner.update, samples, [], 0.0, 0)
        _, trained = _rate(lambda: learner.trained_tokens, update)
        rows += [{"tokens": "sampled", "rollouts": len(played), "tokens_per_second": sampled}]
        rows += [{"tokens": "trained", "rollouts": len(played), "tokens_per_second": trained}]
    return pd.DataFrame(rows).groupby(["tokens", "rollouts"], as_index=False).max()


def rank_table(
    config: RunConfig, env: Environment, ranks: Sequence[int], tasks: int, planned: RunConfig, repeats: int = 2
) -> pd.DataFrame:
    """What LoRA ranks cost. sampled, trained: tokens per second at the base of `config` (`speed_table`, `tasks` groups
    at a time), as multiples of those of the first rank. <role>, GiB: the peak on a GPU of the config `planned`."""
    rows = []
    for rank in ranks:
        small, large = (
            dataclasses.replace(c, model=dataclasses.replace(c.model, rank=rank)) for c in (config, planned)
        )
        speeds = speed_table(small, env, [tasks], repeats).set_index("tokens")["tokens_per_second"]
        peaks = {f"{gpu.role}, GiB": gpu.need(gpu.peak) / GIB for gpu in plan(large)}
        rows.append({"rank": rank, "sampled": speeds["sampled"], "trained": speeds["trained"], **peaks})
    table = pd.DataFrame(rows)
    table[["sampled", "trained"]] /= table.loc[0, ["sampled", "trained"]]
    return table


def _rate(counter: Callable[[], int], action: Callable[[], object]) -> tuple[object, float]:
    """What the action returns, and by how much it moved the counter per second."""
    before, began = counter(), time.perf_counter()
    result = action()
    return result, (counter() - before) / (time.perf_counter() - began)


def speed_figure(speeds: pd.DataFrame) -> plt.Figure:
    """Tokens per second against rollouts at a time."""
    fig, ax = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
    for what, part in speeds.groupby("tokens", sort=False):
        ax.plot(part["rollouts"], part["tokens_per_second"], marker="o", label=what)
    ticks = sorted(speeds["rollouts"].unique())
    ax.set_xscale("log")
    ax.set_xticks(ticks, [str(n) for n in ticks])
    ax.minorticks_off()
    ax.set(xlabel="rollouts at a time", ylabel="tokens per second (CPU, measured)", ylim=(0, None))
    ax.legend()
    return fig
