"""The small world, played by engines whose answers are written out."""

from __future__ import annotations

import pytest
from scripted import Scripted

from lfo.config import RolloutConfig, WorldModelConfig
from lfo.couplings import Imagine
from lfo.envs.phone import PhoneEnvironment
from lfo.rollout.play import play
from lfo.text.base import load_tokenizer
from lfo.text.codec import Codec
from lfo.types import Attempt


@pytest.fixture(scope="session")
def bank(base_path, tiny) -> Codec:
    """The codec of the small world."""
    return Codec(load_tokenizer(base_path), PhoneEnvironment(tiny))


@pytest.fixture
def imagine(bank) -> Imagine:
    return Imagine(WorldModelConfig(), bank)


@pytest.fixture(scope="session")
def attempt(tiny):
    """attempt(task_id): a rollout in the small world."""

    def make(task_id: str, group: int = 0, scout: bool = False) -> Attempt:
        return Attempt(next(t for t in tiny.tasks if t.task_id == task_id), group, 0, scout)

    return make


@pytest.fixture
def scripted(bank):
    """scripted(coupling, answer, attempts): (rollouts of one group, the engine that was asked)."""

    def run(coupling, answer, attempts, codec=bank, late=(), **rollout):
        engine = Scripted(codec, answer, late)
        return play(engine, codec, [[attempts]], coupling, RolloutConfig(**rollout), 5, "phone"), engine

    return run
