"""Weights -> trajectories: the engines that sample, and the loop that plays episodes.

Knows nothing about optimisers: adapters come in as versioned peft folders, trajectories go out as records. `lfo.learn`
is never imported here, nor the other way round.
"""

from __future__ import annotations

from lfo.config import RunConfig
from lfo.protocols import Engine
from lfo.rollout.engine import Completion, Prompt, UnknownAdapter, complete

__all__ = ["Completion", "Prompt", "UnknownAdapter", "complete", "make_engine"]


def make_engine(config: RunConfig, device: str = "cpu") -> Engine:
    """The engine that `rollout.engine` names. `device`: of the torch engine; the others have their own."""
    if config.rollout.servers:
        from lfo.rollout.vllm.server import VllmServerEngine

        return VllmServerEngine(config.rollout.servers)
    if config.rollout.engine == "vllm":
        from lfo.rollout.vllm.engine import VllmEngine

        return VllmEngine(config)
    from lfo.rollout.torch_engine import TorchEngine

    return TorchEngine(config.model.base, device)
