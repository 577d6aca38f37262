"""Weights -> trajectories: the `Engine` protocol, three engines, the loop that plays episodes.

Knows nothing about optimisers: adapters come in as versioned peft folders, trajectories go out as
records. `lfo.learner` is never imported here, nor the other way round.
"""

from lfo import distributed
from lfo.config import RunConfig
from lfo.rollout.engine import Completion, Engine, Prompt, UnknownAdapter
from lfo.rollout.episodes import Job, group_jobs, play
from lfo.rollout.server_engine import VllmServerEngine
from lfo.rollout.torch_engine import TorchEngine
from lfo.rollout.vllm_engine import VllmEngine

__all__ = [
    "Completion",
    "Engine",
    "Job",
    "Prompt",
    "TorchEngine",
    "UnknownAdapter",
    "VllmEngine",
    "VllmServerEngine",
    "group_jobs",
    "make_engine",
    "play",
]


def make_engine(config: RunConfig, device: str = "cpu") -> Engine:
    """The engine that `rollout.engine` names. `device`: of the torch engine; the others have their own."""
    if config.rollout.engine == "server":
        return VllmServerEngine(config.rollout.servers)
    if config.rollout.engine == "vllm":
        return VllmEngine(config)
    return TorchEngine(config.model.base, device, row_streams=config.rollout.row_streams or distributed.size() > 1)
