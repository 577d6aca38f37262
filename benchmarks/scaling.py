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

from lfo.config import NO_WORLD_MODEL
from lfo.learner import Learner
from lfo.records import StopReason, Trajectory
from lfo.rollout import Prompt, TorchEngine
from lfo.tokens import Role

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


def trajectory(rng: random.Random, length: int) -> Trajectory:
    roles = [int(Role.PROMPT if i < PROMPT or i // 16 % 2 else Role.ACTION) for i in range(length)]
    return Trajectory(
        task_id="", group=0, tokens=tokens(rng, length), roles=roles, logprobs=[-5.0] * length, turns=[],
        stop=StopReason.SUCCESS, success=True, reward=1.0, shaped_reward=1.0, auth_before_call=True, calls=[],
    )  # fmt: skip


def rollout(base: str) -> Callable[[int, int], float]:
    engine = TorchEngine(base)

    def seconds(rows: int, length: int) -> float:
        rng = random.Random(0)
        prompts = [Prompt(tokens(rng, PROMPT), "base", length - PROMPT, -1, 1.0, session=i) for i in range(rows)]
        start = time.perf_counter()
        engine.generate(prompts, 0)
        engine.end_sessions()
        return time.perf_counter() - start

    return seconds


def update(base: str, size: common.Size) -> Callable[[int, int], float]:
    learner = Learner(size.settings(**NO_WORLD_MODEL, **{"model.base": base}), pad_id=0)

    def seconds(rows: int, length: int) -> float:
        rng = random.Random(0)
        trajectories = [trajectory(rng, length) for _ in range(rows)]
        start = time.perf_counter()
        learner.joint_update(trajectories, [1.0, -1.0] * (rows // 2), [], 1.0, 0)
        return time.perf_counter() - start

    return seconds


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments)
    sizes = QUICK if size.quick else SIZES
    with tempfile.TemporaryDirectory() as folder:
        bases = {width: random_base(Path(folder), width) for width in sizes["width"]}
        work = {
            (phase, width): make(base)
            for phase, make in (("rollout", rollout), ("update", lambda base: update(base, size)))
            for width, base in {0: common.BASE, **bases}.items()
        }

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
    common.record(
        [
            common.row(
                size, "scaling", f"seconds of {phase}", axis, fits[phase, axis],
                f"exponent, {sizes[axis][0]} to {sizes[axis][-1]} {axis}",
            )
            for phase, axis in fits
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main()
