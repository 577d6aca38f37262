"""Sampled tokens per second of the torch engine, of transformers' `generate` and of vLLM on CPU with LoRA.

    python benchmarks/rollout.py [--quick]      # in an environment with vLLM (.venv-vllm), else without that peer

All play the same episodes (8 rollouts of each of 8 tasks) with the same loop (`lfo.rollout.play`), the embedded base
and an untrained adapter, which changes no token. The torch engine and vLLM give back each row when it has said its
action; `generate` works in lock-step. Counted are the tokens of the actions; the seconds are those of whole episodes,
environment and tokenizer included. Each contender has a process of its own, so that no library's threads or settings
reach another.

- `generate`, as trainers use it: in every turn it reads the whole history again, padded on the left, with the peft
  adapter active, or merged into the base, and starts when all rows wait. It returns no log-probabilities.
- vLLM: the project's own vLLM engine, with prefix caching in blocks of 32 tokens, its fastest setting here.
- `sampled` is at temperature 1, as in training; vLLM has random streams of its own (`generate` draws the torch engine's
  tokens). `greedy` is at temperature 0, where all say the same, token for token.
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

from lfo.config import RolloutConfig, load_config
from lfo.envs import make_environment
from lfo.learn.learner import Learner
from lfo.learn.objectives import Dapo
from lfo.protocols import Engine, Environment
from lfo.rollout.play import play
from lfo.rollout.torch_engine import TorchEngine
from lfo.text import Codec, load_codec
from lfo.types import Role

TORCH, ACTIVE, MERGED, VLLM = "torch engine", "HF generate, peft active", "HF generate, merged", "vLLM on CPU, LoRA"
MODES = {"sampled": 1.0, "greedy": 0.0}
CONFIG = load_config("configs/laptop.yaml", **common.NO_WORLD_MODEL)


class Player:
    """What a contender's process holds. `build` runs in it first."""

    engine: Engine
    codec: Codec
    env: Environment

    @classmethod
    def build(cls, name: str, adapter: Path) -> None:
        cls.env = make_environment(CONFIG.env)
        cls.codec = load_codec(CONFIG.model, cls.env)
        cls.engine = engine(name, adapter)
        cls.engine.load({"policy": adapter})


def engine(name: str, adapter: Path) -> Engine:
    if name == TORCH:
        return TorchEngine(common.BASE)
    if name == VLLM:
        from lfo.rollout.vllm.engine import VllmEngine

        return VllmEngine(CONFIG)
    return common.HfGenerate.load_peft(adapter, merged=name == MERGED)


def played(size: common.Size, temperature: float, seed: int) -> tuple[float, int, str]:
    """Seconds, action tokens and a digest of the actions."""
    start = time.perf_counter()
    settings = RolloutConfig(temperature=temperature)
    rows = play(Player.engine, Player.codec, size.groups(Player.env), common.ALONE, settings, seed)
    seconds = time.perf_counter() - start
    actions = [t for r in rows for t, role in zip(r.tokens, r.roles, strict=True) if role == Role.ACTION]
    return seconds, len(actions), hashlib.sha256(str(actions).encode()).hexdigest()[:8]


def names() -> list[str]:
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here: its rows stay as they are (see benchmarks/README.md).", file=sys.stderr)
        return [TORCH, ACTIVE, MERGED]
    return [TORCH, ACTIVE, MERGED, VLLM]


def rows(size: common.Size, peers: list[str], costs: dict[tuple[str, str], list[float]]) -> list[dict]:
    """costs: seconds per token by contender and mode."""
    found = []
    for mode in MODES:
        for peer in peers:
            faster = common.ratios(costs[peer, mode], costs[TORCH, mode])
            found.append(common.row(size, "rollout", f"{TORCH}, {mode}", f"{peer}, {mode}", faster, "x tokens/s"))
    return found


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments)
    playing = names()
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner(CONFIG, common.ALONE.layout, Dapo(CONFIG), pad_id=0)
        adapter = learner.save_adapters(folder)["policy"]
        spawn = multiprocessing.get_context("spawn")
        pools = {n: ProcessPoolExecutor(1, spawn, initializer=Player.build, initargs=(n, adapter)) for n in playing}

        def per_token(name: str, mode: str, number: int) -> float:
            seconds, tokens, digest = pools[name].submit(played, size, MODES[mode], number).result()
            print(f"  {name}, {mode}: {tokens} tokens ({digest}), {tokens / seconds:.0f} tokens/s", file=sys.stderr)
            return seconds / tokens

        contenders = {
            (name, mode): lambda number, name=name, mode=mode: per_token(name, mode, number)
            for mode in MODES
            for name in playing
        }
        costs = common.in_turn(contenders, size.rounds)
        for pool in pools.values():
            pool.shutdown()
    common.record(rows(size, playing[1:], costs))


if __name__ == "__main__":
    main()
