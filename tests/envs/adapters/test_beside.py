"""`lfo` beside another trainer, as docs/integrations.md shows it: heard through an adapter, learned, and asked."""

from __future__ import annotations

import random

import pytest
from test_docs import shown

from lfo.envs.adapters.trl import environment_factory, rows
from lfo.envs.phone import PhoneCallEnv
from lfo.envs.phone.callers import Oracle, run_scripted
from lfo.train import Run


@pytest.fixture(scope="module")
def names():
    return shown("integrations.md", "class Listened")


def test_a_world_model_learns_from_what_others_play(names, make_config, tmp_path):
    run = Run(make_config(**{"env.levels": (1,), "world_model.coupling": "imagine"}), tmp_path)
    run.publish()
    env = names["Listened"](run)
    generation = environment_factory(env)()
    for row in rows(env, "train")[:4]:
        generation.reset(**row)
        task = next(task for task in env.tasks("train") if task.task_id == row["task_id"])
        ours = PhoneCallEnv(run.env.world, [task], run.env.rules)
        ours.reset(seed=row["seed"])
        for turn in run_scripted(ours.episode, Oracle(ours.episode, run.env.world, random.Random(0))).turns:
            getattr(generation, turn.action.tool)(**turn.action.arguments)
        assert generation.get_reward() == 1.0
    heard = run.buffer.examples
    assert len(heard) >= 4 and {example.call.tool for example in heard} == {"make_phone_call"}
    encoded = [example.encoded for example in heard]
    before = run.learner.surprise(encoded)
    losses = [names["learn"](run, step) for step in range(5)]
    assert all(losses) and sum(run.learner.surprise(encoded)) < sum(before)
    example = heard[0]
    assert isinstance(names["imagined"](run, example.request, example.turns, example.call), str)
    assert (tmp_path / "adapters").is_dir()
