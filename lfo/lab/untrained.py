"""The base as it is, playing: what every run begins from, since an adapter that was never trained changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from pathlib import Path

from lfo.config import RunConfig
from lfo.couplings import make_coupling
from lfo.envs import make_environment
from lfo.lab.player import Player
from lfo.protocols import Engine, Environment
from lfo.rollout import Completion, Prompt, make_engine
from lfo.types import BASE


class BareEngine:
    """An `Engine` of which the bare base answers, whatever adapter is asked."""

    def __init__(self, engine: Engine):
        self._engine = engine

    @property
    def generated_tokens(self) -> int:
        return self._engine.generated_tokens

    def load(self, adapters: Mapping[str, Path]) -> None:
        """Nothing is ever loaded."""

    def submit(self, prompt: Prompt) -> int:
        return self._engine.submit(dataclasses.replace(prompt, adapter=BASE))

    def ready(self) -> list[tuple[int, Completion]]:
        return self._engine.ready()

    def end_session(self, session: Hashable) -> None:
        self._engine.end_session(session)

    def sleep(self) -> None:
        self._engine.sleep()


def untrained(config: RunConfig, env: Environment | None = None) -> Player:
    """A run's policy and world model before the first step."""
    codec, coupling = make_coupling(config, env or make_environment(config.env))
    return Player(config, BareEngine(make_engine(config)), codec, coupling, {})
