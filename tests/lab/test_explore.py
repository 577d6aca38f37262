"""explore: what notebook 00 shows, without a browser."""

from __future__ import annotations

import dataclasses
import json

import pytest

from lfo.config import as_dict, load_config
from lfo.lab.explore import SOURCES, UNTRAINED, Explorer, Panel, playable
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
