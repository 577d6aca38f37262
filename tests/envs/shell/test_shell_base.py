"""The shipped base that speaks shell: its files, how it cuts text, and that it does what a note says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sandboxed import needs_sandbox

from lfo.config import EnvConfig, ModelConfig, RunConfig
from lfo.couplings import Truth
from lfo.envs import make_environment
from lfo.envs.base import written
from lfo.evaluate import play_tasks
from lfo.lab import base_report, shell_report
from lfo.lab.untrained import untrained
from lfo.text import load_codec
from lfo.text.codec import SPECIAL_TOKENS
from lfo.types import Call, sha256

FOLDER = Path(__file__).resolve().parents[3] / "data" / "base_shell"


@pytest.fixture(scope="module")
def shell_codec():
    return load_codec(ModelConfig(base=str(FOLDER)), make_environment(EnvConfig(name="shell")))


def test_its_files_are_those_of_the_recipe():
    expected = json.loads((FOLDER / "recipe.json").read_text())["sha256"]
    assert {"model.safetensors", "tokenizer.json"} <= set(expected)
    assert {name: sha256(FOLDER / name) for name in expected} == expected
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 12e6


def test_what_is_copied_is_cut_alike_wherever_it_stands(shell_codec):
    """In an instruction, in a command after a blank, after what JSON escapes, and in what is printed."""
    path = shell_codec.encode("sextant/notes/walnut.txt")
    command = written(Call("bash", {"command": "cat sextant/notes/walnut.txt\nsextant/notes/walnut.txt"}))
    for text in ("Show sextant/notes/walnut.txt.", command, "The output of the OS:\nsextant/notes/walnut.txt"):
        ids = shell_codec.encode(text)
        assert any(ids[i : i + len(path)] == path for i in range(len(ids)))
        assert shell_codec.decode(ids) == text
    assert all(len(shell_codec.encode(token)) == 1 for token in SPECIAL_TOKENS)


def test_commands_are_half_as_long_as_with_the_other_base(shell_codec, codec):
    tasks = [task for task in shell_codec.env.world.tasks if task.split == "train"]
    commands = [written(Call("bash", {"command": task.ground_truth})) for task in tasks]
    own, other = (sum(len(c.encode(command)) for command in commands) for c in (shell_codec, codec))
    assert own < 0.55 * other


@needs_sandbox
def test_it_acts_and_does_what_a_note_says():
    """Greedy and untrained, on house tasks of new machines; the card has the figures of more tasks."""
    config = RunConfig(env=EnvConfig(name="shell", levels=(1, 2, 3)), model=ModelConfig(base=str(FOLDER)))
    player = untrained(config)
    tasks = [task for task in player.env.tasks("test") if task.house][:20]
    rows = play_tasks(player.engine, player.codec, Truth(player.codec), tasks, config.rollout, 1)
    notes = [shell_report.notes_of(row, player.codec.decode) for row in rows]
    obeyed, run = shell_report.obeyed_notes(rows, notes)
    readable, made = base_report.parsing(rows)
    assert run >= 15 and obeyed / run >= 0.5, (obeyed, run)
    assert readable / made >= 0.9, (readable, made)
