"""The shipped base that speaks the public world: its files, how it cuts text, what it does untrained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playable import needs_game

from lfo.config import EnvConfig, ModelConfig, RunConfig
from lfo.couplings import Truth
from lfo.envs import make_environment
from lfo.envs.base import written
from lfo.envs.twc.episode import PUT
from lfo.evaluate import play_tasks
from lfo.lab import public_world
from lfo.lab.untrained import untrained
from lfo.text import load_codec
from lfo.text.codec import SPECIAL_TOKENS
from lfo.types import Call, sha256

FOLDER = Path(__file__).resolve().parents[3] / "data" / "base_twc"
GAMES = 64


@pytest.fixture(scope="module")
def twc_codec():
    return load_codec(ModelConfig(base=str(FOLDER)), make_environment(EnvConfig(name="twc")))


def test_its_files_are_those_of_the_recipe():
    expected = json.loads((FOLDER / "recipe.json").read_text())["sha256"]
    assert {"model.safetensors", "tokenizer.json"} <= set(expected)
    assert {name: sha256(FOLDER / name) for name in expected} == expected
    assert sum(path.stat().st_size for path in FOLDER.glob("[!.]*") if path.suffix != ".pt") < 12e6


def test_a_name_is_cut_alike_wherever_it_stands(twc_codec):
    """In what is seen, in an action, in what is answered, and in a note."""
    put = written(Call(PUT, {"thing": "clean brown shirt", "place": "(4) chest of drawers"}))
    seen = (
        "You are in the bedroom. You also see a clean brown shirt.",
        "You are in the bedroom. There is also a (4) chest of drawers that is closed. You also see a bed.",
        "You put the clean brown shirt in the chest of drawers. The score went down.",
        "truth: The clean brown shirt belongs in the chest of drawers.",
    )
    for name in ("clean brown shirt", "chest of drawers"):
        cut = twc_codec.encode(name)
        for text in (put, *(text for text in seen if name in text)):
            ids = twc_codec.encode(text)
            assert any(ids[i : i + len(cut)] == cut for i in range(len(ids))), text
            assert twc_codec.decode(ids) == text
    assert all(len(twc_codec.encode(token)) == 1 for token in SPECIAL_TOKENS)


@needs_game
def test_an_episode_is_less_than_half_as_long_as_with_the_other_base(base_path):
    models = {name: ModelConfig(base=str(path)) for name, path in (("own", FOLDER), ("other", base_path))}
    lengths = public_world.tokens(models, count=8).set_index("base")["episode"]
    assert lengths["own"] < 0.45 * lengths["other"]


@pytest.fixture(scope="module")
def player():
    return untrained(RunConfig(env=EnvConfig(name="twc", levels=(1, 2)), model=ModelConfig(base=str(FOLDER))))


def greedy(player, coupling):
    tasks = player.env.tasks("train")[:GAMES]
    return play_tasks(player.engine, player.codec, coupling, tasks, player.config.rollout, 1)


@needs_game
def test_told_the_truth_it_wins(player):
    rows = greedy(player, Truth(player.codec))
    assert sum(row.success for row in rows) / GAMES >= 0.85
    faithful, emitted = public_world.copied_names(rows)
    assert emitted > 2 * GAMES and faithful / emitted >= 0.97


@needs_game
def test_told_nothing_it_wins_no_more_than_chance(player):
    """Put anywhere, 22% of these games are won; it puts nearly all of its things, and knows nothing of where."""
    rows = greedy(player, player.coupling)
    assert sum(row.success for row in rows) / GAMES < 0.3
    assert sum(row.outcome.metrics["calls_per_task"] > 0 for row in rows) / GAMES > 0.5
