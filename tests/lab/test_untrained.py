"""untrained: what a run begins from plays like a run whose adapters were never trained."""

from __future__ import annotations

import pytest

from lfo.config import RunConfig, build
from lfo.evaluate import play_tasks
from lfo.lab.untrained import untrained
from lfo.rollout import UnknownAdapter, complete
from lfo.rollout.engine import Prompt
from lfo.rollout.torch_engine import TorchEngine
from lfo.types import Role


@pytest.fixture(scope="module")
def player(base_path):
    return untrained(build(RunConfig, {"model": {"base": str(base_path)}, "world_model": {}}))


def test_the_base_acts_and_imagines(player):
    assert player.coupling.layout.listener == "world_model"
    tasks = player.env.tasks("train")[:1]
    [row] = play_tasks(player.engine, player.codec, player.coupling, tasks, player.config.rollout, episodes=1)
    assert {Role.ACTION, Role.NOTE} <= set(row.roles)
    assert player.engine.generated_tokens >= row.roles.count(Role.ACTION)


def test_whatever_adapter_is_asked_the_base_answers(player, base_path):
    prompt, bare = (
        Prompt(player.codec.prompt("Please call Harbor Bank."), adapter, 4, player.codec.end_id, 0.0)
        for adapter in ("policy", "base")
    )
    plain = TorchEngine(base_path)
    assert complete(player.engine, [prompt]) == complete(plain, [bare])
    with pytest.raises(UnknownAdapter):
        plain.submit(prompt)
