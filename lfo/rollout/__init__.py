"""Weights -> trajectories: the `Engine` protocol, the torch engine, the loop that plays episodes.

Knows nothing about optimisers: adapters come in as versioned peft folders, trajectories go out as
records. `lfo.learner` is never imported here, nor the other way round.
"""

from lfo.rollout.engine import Completion, Engine, Prompt
from lfo.rollout.episodes import Job, group_jobs, play
from lfo.rollout.torch_engine import TorchEngine

__all__ = ["Completion", "Engine", "Job", "Prompt", "TorchEngine", "group_jobs", "play"]
