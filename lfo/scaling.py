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
from lfo.learner import Learner
from lfo.plan import BACKWARD, GIB, LOSS, MOMENTS, GpuPlan, learner_items, shape_of
from lfo.records import StopReason, Trajectory
from lfo.rollout import TorchEngine, group_jobs, play
from lfo.tokens import Role, load_codec
from lfo.world import World

MIB = 2**20
PLANNED = "planned, not measured"
OTHER = "everything else"
SHORT, LONG = (256, 250, 240, 256), (1024,)  # tokens of the rows in one micro-batch


# --- planned ---------------------------------------------------------------------------------


def plan_table(plans: Mapping[str, Sequence[GpuPlan]]) -> pd.DataFrame:
    """One row per config, kind of GPU and item: GiB on one GPU, and when they are needed."""
    return pd.DataFrame(
        {**_which(name, gpu), "item": item.name, "gib": item.bytes / GIB,
         "needed": "always" if item.moments == MOMENTS else ", ".join(item.moments), "source": PLANNED}
        for name, gpus in plans.items() for gpu in gpus for item in gpu.items if item.bytes
    )  # fmt: skip


def _which(name: str, gpu: GpuPlan) -> dict[str, str]:
    return {"config": name, "role": gpu.role, "gpus": f"{gpu.count} x {gpu.capacity / GIB:.0f} GiB"}


def verdict_table(plans: Mapping[str, Sequence[GpuPlan]]) -> pd.DataFrame:
    """One row per config and kind of GPU: the peak, the moment it comes at, and whether it fits."""
    return pd.DataFrame(
        {**_which(name, gpu), "peak_at": gpu.peak, "peak_gib": gpu.need(gpu.peak) / GIB, "fits": gpu.fits,
         "note": gpu.note, "source": PLANNED}
        for name, gpus in plans.items() for gpu in gpus
    )  # fmt: skip


def memory_figure(plans: Mapping[str, Sequence[GpuPlan]], small: float = 0.25) -> plt.Figure:
    """What lies on each kind of GPU at its peak, and on learners at that of an update too, with the GPU's memory.

    Items below `small` GiB in every bar are one.
    """
    bars = {}
    for name, gpu in ((name, gpu) for name, gpus in plans.items() for gpu in gpus):
        busiest = [max((LOSS, BACKWARD), key=gpu.need)] * ("learner" in gpu.role)
        for moment in dict.fromkeys([gpu.peak, *busiest]):
            label = f"{name}, {moment}\n{gpu.count} x {gpu.role}"
            held = {item.name: item.bytes / GIB for item in gpu.items if moment in item.moments and item.bytes}
            bars[label] = (held, gpu.capacity / GIB)
    table = pd.DataFrame({label: held for label, (held, _) in bars.items()}).T.fillna(0.0)
    few = table.columns[table.max() < small]
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
    """One way to compute an update; `lengths`: tokens of its rows."""

    name: str
    lengths: tuple[int, ...] = SHORT
    attention: str = "sdpa"  # sdpa, as on GPUs; eager, as `lfo.base` loads on CPU
    coupling: str = "none"
    vocabulary: int = 1024
    autocast: bool = True
    checkpointing: bool = False
    dropout: float = 0.05
    targets: str = "all-linear"
    base_dtype: str = "float32"
    logit_chunk: int = 0

    def config(self, base: str) -> RunConfig:
        predict = "nothing" if self.coupling == "none" else "phone"
        model = {"base": base, "autocast": self.autocast, "dropout": self.dropout, "targets": self.targets}
        distributed = {"micro_batch_tokens": 1024, "gradient_checkpointing": self.checkpointing,
                       "base_dtype": self.base_dtype, "logit_chunk": self.logit_chunk}  # fmt: skip
        rollout, world_model = {"max_tokens": max(self.lengths)}, {"coupling": self.coupling, "predict": predict}
        data = {"model": model, "distributed": distributed, "rollout": rollout, "world_model": world_model}
        return build(RunConfig, data)


WAYS = (
    Way("as on a laptop", SHORT, "eager", dropout=0.0),
    Way("as qwen3_8b", LONG, checkpointing=True, base_dtype="bfloat16"),
    Way("chunked logits", LONG, vocabulary=32_768, checkpointing=True, dropout=0.0, base_dtype="bfloat16",
        logit_chunk=256),
    Way("fp32, q/v/o", SHORT, "eager", autocast=False, targets="qvo"),
    Way("checkpointing", SHORT, "eager", checkpointing=True),
    Way("long, fp32, q/v/o, checkpointing", LONG, "eager", autocast=False, checkpointing=True, dropout=0.0,
        targets="qvo"),
    Way("bf16 base", SHORT, base_dtype="bfloat16"),
    Way("sdpa, fp32, q/v/o, checkpointing", SHORT, autocast=False, checkpointing=True, dropout=0.0, targets="qvo"),
    Way("large vocabulary", LONG, vocabulary=8192, checkpointing=True),
    Way("stacked", SHORT, "eager", "stacked"),
    Way("stacked, fp32, q/v/o, checkpointing", SHORT, "eager", "stacked", autocast=False, checkpointing=True,
        dropout=0.0, targets="qvo"),
)  # fmt: skip


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
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, tie_word_embeddings=False, pad_token_id=0, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def update_peaks(way: Way, base: str) -> dict[str, float]:
    """Bytes that one update needs beyond what was there before, and what was there: planned and measured."""
    config = way.config(base)
    learner = Learner(config, 0)
    learner.model.get_base_model().set_attn_implementation(way.attention)
    rows = [_row([1] * 16, [2] * (n - 16)) for n in way.lengths]

    def update():
        learner.joint_update(rows, [1.0] * len(rows), [], 1.0, 0)

    update()  # makes the optimizer's state
    peak = measured_peak(update)
    items = learner_items(shape_of(base), config, "cpu", way.attention)
    there = sum(p.nbytes for p in learner.model.parameters())
    there += sum(t.nbytes for average in learner.averages.values() for t in average)
    there += 2 * sum(p.nbytes for name in learner.adapters for p in learner.parameters(name))  # Adam's moments
    passing = [item for item in items if item.moments != MOMENTS]
    return {
        "planned": max(sum(i.bytes for i in passing if moment in i.moments) for moment in (LOSS, BACKWARD)),
        "measured": peak,
        "planned_before": sum(i.bytes for i in items if i.moments == MOMENTS),
        "measured_before": there,
    }


def _row(prompt: list[int], action: list[int]) -> Trajectory:
    roles = [int(Role.PROMPT)] * len(prompt) + [int(Role.ACTION)] * len(action)
    logprobs = [0.0] * len(prompt) + [-1.0] * len(action)
    outcome = (StopReason.SUCCESS, True, 1.0, 1.0, True)
    return Trajectory("random", 0, prompt + action, roles, logprobs, [], *outcome, calls=[])


def peak_table(ways: Sequence[Way]) -> pd.DataFrame:
    """Planned and measured MiB of an update in each of these ways."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bases = {v: random_base(Path(folder) / str(v), v) for v in sorted({way.vocabulary for way in ways})}
        for way in ways:
            found = update_peaks(way, bases[way.vocabulary])
            planned, measured = found["planned"] / MIB, found["measured"] / MIB
            rows.append({"update": way.name, "attention": way.attention, "rows": len(way.lengths),
                         "tokens": sum(way.lengths), "planned_mib": planned, "measured_mib": measured,
                         "planned_over_measured": planned / measured})  # fmt: skip
    return pd.DataFrame(rows)


def peak_figure(peaks: pd.DataFrame) -> plt.Figure:
    """Planned and measured peaks of updates side by side."""
    fig, ax = plt.subplots(figsize=(8.5, 1.2 + 0.36 * len(peaks)), layout="constrained")
    y, colours = np.arange(len(peaks)), sns.color_palette()
    ax.hlines(y, peaks["planned_mib"], peaks["measured_mib"], color="grey", lw=1)
    ax.scatter(peaks["measured_mib"], y, color=colours[0], label="measured on CPU", zorder=3)
    ax.scatter(peaks["planned_mib"], y, color=colours[1], marker="|", s=160, lw=2.5, label="planned", zorder=4)
    for at, ratio in zip(y, peaks["planned_over_measured"], strict=True):
        ax.annotate(f"{ratio - 1:+.1%}", (1.0, at), xycoords=("axes fraction", "data"), xytext=(6, 0),
                    textcoords="offset points", va="center", fontsize="small")  # fmt: skip
    ax.set_yticks(y, peaks["update"])
    ax.invert_yaxis()
    ax.set(xlabel="MiB that one update needs beyond weights and optimizer", xlim=(0, None))
    ax.legend(loc="center right", fontsize="small")
    return fig


# --- measured: the speed of the base ---------------------------------------------------------


def speed_table(config: RunConfig, world: World, tasks: Sequence[int], repeats: int = 2) -> pd.DataFrame:
    """Tokens per second of the torch engine and of the learner, with untrained adapters, by rollouts at a time.

    tasks: groups that are played at a time. Sampled tokens are actions; trained ones are whole rollouts, through
    forward and backward pass. The better of `repeats`: whatever else runs on the machine only costs time.
    """
    codec, engine = load_codec(config.model), TorchEngine(config.model.base)
    learner, size = Learner(config, codec.pad_id), config.rollout.group_size
    with tempfile.TemporaryDirectory() as folder:
        engine.load(learner.save_adapters(folder))
    rows = []
    for count, repeat in itertools.product(tasks, range(repeats)):
        chosen = world.split("train", config.levels)[:count]
        jobs = [job for i, task in enumerate(chosen) for job in group_jobs(task, i, i, size, 0)]
        sample = functools.partial(play, engine, codec, world, jobs, config.env, config.rollout, repeat)
        played, sampled = _rate(lambda: engine.generated_tokens, sample)
        update = functools.partial(learner.joint_update, played, [1.0, -1.0] * (len(played) // 2), [], 0.0, 0)
        _, trained = _rate(lambda: learner.trained_tokens, update)
        rows += [{"tokens": "sampled", "rollouts": len(jobs), "tokens_per_second": sampled}]
        rows += [{"tokens": "trained", "rollouts": len(jobs), "tokens_per_second": trained}]
    return pd.DataFrame(rows).groupby(["tokens", "rollouts"], as_index=False).max()


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
