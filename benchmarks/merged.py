"""Whether a merged model answers faster than an adapter on its base: the same tasks, played by both.

    python benchmarks/merged.py [--quick]

The embedded base with an adapter of random weights, phone tasks, greedy. Loading counts apart: `ratio` is seconds of
playing, and of loading. Both must say the same tokens.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import common
import torch

from lfo.config import load_config
from lfo.lab.epochs import Evaluated, evaluate_adapters, evaluate_merged, merge
from lfo.learn.adapters import with_adapters
from lfo.text.base import load_base


def random_adapter(folder: Path, config) -> Path:
    model = with_adapters(load_base(common.BASE), config.model, ["default"], 0)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.02)
    model.save_pretrained(str(folder))
    return folder


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments, rounds=3)
    config, count = load_config("configs/laptop.yaml", world_model=None), 8 * size.tasks
    playing: dict[str, list[float]] = {"dynamic": [], "merged": []}
    said: dict[str, list] = {}
    with tempfile.TemporaryDirectory() as folder:
        adapter = random_adapter(Path(folder) / "adapter", config)
        merged = merge(common.BASE, adapter, Path(folder) / "merged")
        ways = {
            "dynamic": lambda: evaluate_adapters(config, [adapter], count, "train")[0],
            "merged": lambda: evaluate_merged(config, merged, count, "train"),
        }

        def timed(name: str, number: int) -> float:
            start = time.perf_counter()
            found: Evaluated = ways[name]()
            if number:
                playing[name].append(found.seconds)
            said[name] = [row.tokens for row in found.rollouts]
            return time.perf_counter() - start - found.seconds

        contenders = {name: lambda number, name=name: timed(name, number) for name in ways}
        loading = common.in_turn(contenders, size.rounds)
    if said["merged"] != said["dynamic"]:
        raise RuntimeError("merged and dynamic said different tokens.")
    common.record(rows(size, playing, loading))


def rows(size: common.Size, playing: dict[str, list[float]], loading: dict[str, list[float]]) -> list[dict]:
    """Seconds by way and round."""
    found = []
    for what, costs in {"playing": playing, "loading": loading}.items():
        ratios = common.ratios(costs["merged"], costs["dynamic"])
        found.append(common.row(size, "merged", f"merged, {what}", f"dynamic, {what}", ratios, "x the seconds"))
    return found


if __name__ == "__main__":
    main()
