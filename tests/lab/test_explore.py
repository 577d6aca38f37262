"""explore: what notebook 00 shows, without a browser."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil

import pytest

from lfo.config import as_dict, load_config
from lfo.lab.explore import SOURCES, UNTRAINED, Explorer, Panel, playable
from lfo.runs import RunError, RunFolder
from lfo.train import train
from lfo.types import Role


@pytest.fixture(scope="module")
def config():
    return load_config("configs/smoke.yaml")


@pytest.fixture(scope="module")
def panel(config) -> Panel:
    return Panel([], config, size=2)


def test_only_phone_runs_with_adapters_can_be_played(make_config, tmp_path):
    """A run of another world has no form, and nobody to call."""
    for name, world, trained in (("arm/seed0", "phone", True), ("arm/seed1", "phone", False), ("other", "shell", True)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps(as_dict(make_config(**{"env.name": world}))))
        if trained:
            (tmp_path / name / "adapters/v00001").mkdir(parents=True)
    assert playable([tmp_path, tmp_path / "none"]) == [str(tmp_path / "arm" / "seed0")]


@pytest.fixture(scope="module")
def run(make_config, base_path, tmp_path_factory) -> str:
    """A run of two tasks in world 107, with a world model, of a base that calls."""
    settings = {"model.base": str(base_path), "env.levels": [1], "env.world_seed": 107, "world_model.scouts": 1}
    settings |= {"task_budget": 2, "eval_every": 2, "eval_tasks": 1, "rollout.max_tokens": 400}
    settings |= {"rollout.max_action_tokens": 48, "rollout.group_size": 3}
    return str(train(make_config(**settings), tmp_path_factory.mktemp("runs") / "seed0", progress=False))


def test_a_run_is_shown_in_its_own_world_with_all_that_it_heard(config, run):
    panel = Panel([run], config, size=2)
    assert panel.world.options == (0, 1, 2, 3, 4, 107) and panel.world.value == 0
    panel.run.value = run
    assert panel.world.value == 107 and panel.explorer.player.env.world.seed == 107
    assert "world model" in panel.source.options and len(panel.explorer.heard) >= len(RunFolder(run).examples()) > 0
    panel.source.value = "memory"
    assert "memory" in panel.rows
    panel.world.value = 0
    assert panel.explorer.player.env.world.seed == 0 and panel.run.value == run, "any world may be chosen then"


def test_what_goes_wrong_is_shown(config, run, tmp_path):
    lost = tmp_path / "lost"
    shutil.copytree(run, lost)
    panel = Panel([lost], config, size=2)
    shutil.rmtree(lost / "adapters")
    with contextlib.suppress(RunError):
        panel.run.value = str(lost)
    assert "holds no adapters; train there first" in panel.shown["form"].value and not panel.quiet
    assert not panel.task.options and not panel.shown["rollouts"].value, "nothing of another policy is shown"


def test_a_source_that_is_chosen_changes_note_and_form(panel):
    assert panel.run.options == (UNTRAINED,) and panel.source.options == SOURCES
    assert list(panel.rows) == ["nobody"] and panel.rows["nobody"]["note"] == "-"
    panel.source.value = "truth"
    assert list(panel.rows) == ["nobody", "truth"]
    told, untold = panel.rows["truth"], panel.rows["nobody"]
    assert "truth" in told["note"] and told["form"] != untold["form"] and told["success"] == "yes"
    for shown, wanted in (("form", "<td>truth</td>"), ("rollouts", 'class="note"'), ("beside", "<table")):
        assert wanted in panel.shown[shown].value
    panel.task.index = 1
    assert list(panel.rows) == ["truth"], "another task begins anew"


def test_one_plays_by_hand(panel):
    panel.line.value = "ask <everything>"
    assert panel.line.value == "" and "&lt;everything&gt;&#x27; is no field" in panel.shown["hand"].value
    panel.line.value = "hang up"
    assert "You hung up" in panel.shown["hand"].value
    before = panel.shown["hand"].value
    panel.line.value = "hang up"
    assert panel.shown["hand"].value == before, "it is over"


def test_the_memory_hears_what_is_played(config):
    """Asked to go on with the truth, the policy calls; a memory then says to the same task what was answered."""
    explorer = Explorer(UNTRAINED, 0, config)
    task = explorer.player.env.tasks("train")[0]
    assert not explorer.heard
    explorer.group(task, "truth", size=2)
    assert explorer.heard
    rows = explorer.group(task, "nobody", size=2)
    assert len(explorer.beside(rows)) >= 1 and not any(Role.NOTE in row.roles for row in rows)


def test_without_a_world_model_there_is_none_to_ask(config):
    explorer = Explorer(UNTRAINED, 0, dataclasses.replace(config, world_model=None))
    assert "world model" not in explorer.sources
    assert "no world model" in explorer.beside([]).to_string()
