"""How cost grows with batch size, trajectory length and model width: the exponent b of seconds = a * size ** b.

    python benchmarks/scaling.py [--quick]

Fitted by least squares on logarithms, one fit per round. `rollout`: the torch engine samples every row to the given
length from a prompt of 32 tokens. `update`: one update of the policy's LoRA on rows of that length, half of them
action tokens. Contents are random: only shapes matter, and nothing stops early. Widths are those of random Qwen3 models
of 4 layers, the MLP 8/3 as wide; the rest is the embedded base.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import common
import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from lfo.learn.learner import Learner
from lfo.learn.objectives import Dapo
from lfo.rollout import Prompt, complete
from lfo.rollout.torch_engine import TorchEngine
from lfo.text.base import bf16_pays
from lfo.types import Role, Sample

VOCABULARY, PROMPT, HEAD = 1164, 32, 32
ROWS, LENGTH = 8, 128  # unless that is what grows
SIZES = {"rows": (8, 16, 32, 64, 128), "tokens": (128, 256, 512, 1024), "width": (64, 128, 256, 512)}
QUICK = {"rows": (8, 16), "tokens": (64, 128), "width": (64, 128)}


def random_base(folder: Path, width: int) -> str:
    """A Qwen3 of 4 layers with random weights, two query heads to each key and value head, as the embedded base has."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=4,
        num_attention_heads=width // HEAD,
        num_key_value_heads=max(1, width // HEAD // 2),
        head_dim=HEAD,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder / str(width))
    return str(folder / str(width))


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1, VOCABULARY) for _ in range(count)]


def some_sample(rng: random.Random, length: int, advantage: float) -> Sample:
    roles = [int(Role.PROMPT if i < PROMPT or i // 16 % 2 else Role.ACTION) for i in range(length)]
    per_token = [advantage if role == Role.ACTION else 0.0 for role in roles]
    return Sample(tokens(rng, length), roles, [-5.0 if role == Role.ACTION else 0.0 for role in roles], per_token)


def rollout(base: str) -> Callable[[int, int], float]:
    engine = TorchEngine(base)

    def seconds(rows: int, length: int) -> float:
        rng = random.Random(0)
        prompts = [Prompt(tokens(rng, PROMPT), "base", length - PROMPT, -1, 1.0, i, i) for i in range(rows)]
        start = time.perf_counter()
        complete(engine, prompts)
        took = time.perf_counter() - start
        for i in range(rows):
            engine.end_session(i)
        return took

    return seconds


def update(base: str, size: common.Size, bf16: bool) -> Callable[[int, int], float]:
    config = size.settings(**common.NO_WORLD_MODEL, **{"model.base": base})
    learner = Learner(config, common.ALONE.layout, Dapo(config), pad_id=0, bf16=bf16)

    def seconds(rows: int, length: int) -> float:
        rng = random.Random(0)
        samples = [some_sample(rng, length, 1.0 if i % 2 else -1.0) for i in range(rows)]
        start = time.perf_counter()
        learner.update(samples, [], 1.0, 0)
        return time.perf_counter() - start

    return seconds


def main(arguments=None) -> None:
    size, bf16 = common.size(__doc__, arguments), bf16_pays()
    sizes = QUICK if size.quick else SIZES
    with tempfile.TemporaryDirectory() as folder:
        bases = {0: common.BASE} | {width: random_base(Path(folder), width) for width in sizes["width"]}
        work = {("rollout", width): rollout(base) for width, base in bases.items()}
        work |= {("update", width): update(base, size, bf16) for width, base in bases.items()}

        def exponent(phase: str, axis: str) -> float:
            measured = []
            for n in sizes[axis]:
                rows, length = n if axis == "rows" else ROWS, n if axis == "tokens" else LENGTH
                measured.append(work[phase, n if axis == "width" else 0](rows, length))
            shown = ", ".join(f"{n}: {s:.3f} s" for n, s in zip(sizes[axis], measured, strict=True))
            print(f"  {phase}, {axis} {shown}", file=sys.stderr)
            return float(np.polyfit(np.log(sizes[axis]), np.log(measured), 1)[0])

        contenders = {
            (phase, axis): lambda _, phase=phase, axis=axis: exponent(phase, axis)
            for axis in sizes
            for phase in ("rollout", "update")
        }
        fits = common.in_turn(contenders, size.rounds)
    found = []
    for (phase, axis), values in fits.items():
        unit = f"exponent, {sizes[axis][0]} to {sizes[axis][-1]} {axis}"
        found.append(common.row(size, "scaling", f"seconds of {phase}", axis, values, unit))
    common.record(found)


if __name__ == "__main__":
    main()
