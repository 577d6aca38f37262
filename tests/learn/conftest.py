"""Fixtures of the learner's tests."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from learning import LAYOUTS, as_sampled_by, ids, samples_of

from lfo.config import RunConfig
from lfo.learn.learner import Learner
from lfo.learn.objectives import make_objective
from lfo.types import AVERAGE, Encoded, Sample


def new_learner(config: RunConfig) -> Learner:
    layout = LAYOUTS[config.world_model.coupling if config.world_model else None]
    layout = LAYOUTS["ensemble"] if config.world_model and config.world_model.members == 2 else layout
    if config.feedback and config.feedback.teacher == AVERAGE:
        layout = dataclasses.replace(layout, names=(*layout.names, AVERAGE))
    return Learner(config, layout, make_objective(config), pad_id=0, bf16=config.model.autocast is True)


@pytest.fixture
def fresh_learner(make_config):
    """fresh_learner(**settings): a learner on the toy base, as it begins."""
    return lambda **settings: new_learner(make_config(**settings))


@pytest.fixture
def make_learner(make_config):
    """make_learner(**settings): a learner on the toy base whose adapters have started to differ from nothing."""

    def make(**settings) -> Learner:
        learner = new_learner(make_config(**settings))
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for name in learner.layout.names:
                for parameter in learner.parameters(name):
                    parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        return learner

    return make


@pytest.fixture(scope="module")
def examples() -> list[Encoded]:
    """Five world-model examples of different lengths; the last two have a call in common."""
    rng = random.Random(2)
    made = [Encoded(tuple(ids(rng, 4 + 3 * i)), tuple(ids(rng, 2 + i))) for i in range(4)]
    return [*made, Encoded(made[3].prompt, tuple(ids(rng, 6)))]


@pytest.fixture(scope="module")
def samples(make_rollout, make_config) -> list[Sample]:
    """Four rollouts of two groups with 5 to 14 tokens, those of a group with the same prompt.

    Log-probs are the untrained policy's: all ratios are 1 there.
    """
    rng = random.Random(1)
    prompts = [ids(rng, 3), ids(rng, 4)]
    pieces = [[2], [3, 2, 1], [5, 3, 4], [1, 2, 2]]
    rollouts = [
        make_rollout(prompts[i // 2], *(ids(rng, n) for n in sizes), group=i // 2) for i, sizes in enumerate(pieces)
    ]
    return as_sampled_by(new_learner(make_config()), samples_of(rollouts))
