"""Sampled tokens per second of the torch engine, of transformers' `generate` and of vLLM on CPU with LoRA.

    python benchmarks/rollout.py [--quick]      # in an environment with vLLM (.venv-vllm), else without that peer

All play the same episodes (8 rollouts of each of 8 tasks) in lock-step with the same loop (`lfo.rollout.play`), the
embedded base and an untrained adapter, which changes no token. Counted are the tokens of the actions; the seconds are
those of whole episodes, environment and tokenizer included. Each contender has a process of its own, so that no
library's threads or settings reach another.

- `generate`, as trainers use it: in every turn it reads the whole history again, padded on the left, with the peft
  adapter active, or merged into the base. It returns no log-probabilities.
- vLLM: the project's own vLLM engine, with prefix caching in blocks of 32 tokens, its fastest setting here.
- `sampled` is at temperature 1, as in training, with the engines' own random streams (`generate` draws the torch
  engine's tokens). `greedy` is at temperature 0, where all say the same, token for token, and vLLM needs no seeds.
"""

from __future__ import annotations

import hashlib
import importlib.util
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import common

from lfo.config import NO_WORLD_MODEL, RolloutConfig, load_config
from lfo.learner import Learner
from lfo.rollout import TorchEngine, VllmEngine, play
from lfo.tokens import Codec, Role
from lfo.world import generate_world

TORCH, ACTIVE, MERGED, VLLM = "torch engine", "HF generate, peft active", "HF generate, merged", "vLLM on CPU, LoRA"
MODES = {"sampled": 1.0, "greedy": 0.0}
CONFIG = load_config("configs/laptop.yaml", **NO_WORLD_MODEL)


class Player:
    """What a contender's process holds. `build` runs in it first."""

    engine = codec = world = None

    @classmethod
    def build(cls, name: str, adapter: Path) -> None:
        if name == TORCH:
            engine = TorchEngine(common.BASE)
        elif name == VLLM:
            engine = VllmEngine(CONFIG)
        else:
            engine = common.HfGenerate.load_peft(adapter, merged=name == MERGED)
        engine.load({"policy": adapter})
        cls.engine, cls.codec, cls.world = engine, Codec.load(common.BASE), generate_world(0)


def played(size: common.Size, temperature: float, seed: int) -> tuple[float, int, str]:
    """Seconds, action tokens and a digest of the actions."""
    start = time.perf_counter()
    settings = RolloutConfig(temperature=temperature)
    rows = play(Player.engine, Player.codec, Player.world, size.jobs(Player.world), common.ENV, settings, seed)
    seconds = time.perf_counter() - start
    actions = [t for r in rows for t, role in zip(r.tokens, r.roles, strict=True) if role == Role.ACTION]
    return seconds, len(actions), hashlib.sha256(str(actions).encode()).hexdigest()[:8]


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments)
    names = [TORCH, ACTIVE, MERGED, VLLM]
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here: its rows stay as they are (see benchmarks/README.md).", file=sys.stderr)
        names.remove(VLLM)
    with tempfile.TemporaryDirectory() as folder:
        adapter = Learner(CONFIG, pad_id=0).save_adapters(folder)["policy"]
        spawn = multiprocessing.get_context("spawn")
        pools = {n: ProcessPoolExecutor(1, spawn, initializer=Player.build, initargs=(n, adapter)) for n in names}

        def per_token(name: str, mode: str, number: int) -> float:
            seconds, tokens, digest = pools[name].submit(played, size, MODES[mode], number).result()
            print(f"  {name}, {mode}: {tokens} tokens ({digest}), {tokens / seconds:.0f} tokens/s", file=sys.stderr)
            return seconds / tokens

        contenders = {
            (name, mode): lambda number, name=name, mode=mode: per_token(name, mode, number)
            for mode in MODES
            for name in names
        }
        costs = common.in_turn(contenders, size.rounds)
        for pool in pools.values():
            pool.shutdown()
    common.record(
        [
            common.row(
                size, "rollout", f"{TORCH}, {mode}", f"{peer}, {mode}",
                common.ratios(costs[peer, mode], costs[TORCH, mode]), "x tokens/s",
            )
            for mode in MODES
            for peer in names[1:]
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main()
