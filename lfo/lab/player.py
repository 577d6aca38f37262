"""A run's newest policy, playing: for whoever measures, shows or talks to what was trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from lfo.config import RunConfig
from lfo.couplings import make_coupling
from lfo.envs import make_environment
from lfo.protocols import Coupling, Engine, Environment
from lfo.rollout import make_engine
from lfo.runs import RunError, RunFolder
from lfo.text.codec import Codec
from lfo.types import POLICY


@dataclasses.dataclass(frozen=True)
class Player:
    """The newest policy of a run, ready to play."""

    config: RunConfig
    engine: Engine
    codec: Codec
    coupling: Coupling
    adapters: dict[str, Path]

    @property
    def env(self) -> Environment:
        return self.codec.env


def load_player(folder: str | Path, env: Environment | None = None) -> Player:
    """Engine, codec and coupling of a finished (or interrupted) run, with its newest adapters loaded.

    Raises:
        RunError: the folder holds no run, or no policy.
    """
    run = RunFolder(folder)
    config, adapters = run.config, run.adapters()
    if POLICY not in adapters:
        raise RunError(f"{folder} has no policy adapter; train there first: `lfo train --run {folder}`.")
    codec, coupling = make_coupling(config, env or make_environment(config.env))
    coupling.hear(run.examples())
    engine = make_engine(config)
    engine.load(adapters)
    return Player(config, engine, codec, coupling, adapters)
