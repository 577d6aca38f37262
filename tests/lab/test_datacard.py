"""datacard: a world in a folder with its card, and what the card counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lfo.envs.phone import world as w
from lfo.lab import datacard

ROOT = Path(w.__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def saved(world, tmp_path_factory) -> Path:
    return datacard.save_with_card(world, tmp_path_factory.mktemp("saved"))


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_committed_data_is_what_the_seed_gives(saved):
    """After a change of the generator: `lfo generate`."""
    assert contents(ROOT / "data" / "world") == contents(saved)


def test_ensure_saved_writes_only_what_is_not_there(world, saved, tmp_path):
    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    before = {p: p.stat().st_mtime_ns for p in copy.iterdir()}
    assert datacard.ensure_saved(world, copy) == copy
    assert {p: p.stat().st_mtime_ns for p in copy.iterdir()} == before
    for spoil in (copy / "rules.jsonl", copy / "README.md"):
        whole = contents(copy)
        spoil.write_text("")
        assert contents(datacard.ensure_saved(world, copy)) == whole
        spoil.unlink()
        assert contents(datacard.ensure_saved(world, copy)) == whole
    assert w.load_world(datacard.ensure_saved(world, tmp_path / "new")) == world


def test_counts_of_the_card(world):
    assert [r["tasks"] for r in datacard.split_counts(world)] == [500, 100, 100]
    levels = {"level 1": 100, "level 2": 150, "level 3": 150, "level 4": 50, "level 5": 50}
    named = {"companies": 0, "users": 0}
    assert datacard.split_counts(world)[0] | named == {"split": "train", "tasks": 500} | levels | named
    assert [r["companies"] for r in datacard.company_counts(world)] == [25, 25, 25, 25, 100]
    everywhere = datacard.company_counts(world)[-1]
    assert everywhere["typical"] + everywhere["extra"] + everywhere["different"] == 100
    assert everywhere["departments"] == len(world.rules)
    train = [t for t in world.tasks if t.split == "train"]
    alike = [
        v
        for v in world.tasks
        if v.split == "validation" and any(v.company_id == t.company_id and set(v.goals) == set(t.goals) for t in train)
    ]
    assert datacard.overlapping_tasks(world) == len(alike)


def test_the_card_says_how_to_draw_the_same_world():
    for seed, circumstances in ((1, 0), (3, 6)):
        card = datacard.data_card(w.generate_world(seed, circumstances))
        assert f"`lfo generate --seed {seed} --circumstances {circumstances}`" in card
        assert f"Requests speak of {circumstances} kinds of circumstances" in card
        assert "{" not in card and max(map(len, card.splitlines())) <= 120


def test_the_card_says_what_the_data_is(world, saved):
    card = (saved / "README.md").read_text()
    assert card == datacard.data_card(world)
    assert "{" not in card
    assert max(map(len, card.splitlines())) <= 120
    for phrase in (
        "license: apache-2.0",
        "world seed 0",
        "no real persons",
        "| train | 500 | 100 | 150 | 150 | 50 | 50 | 50 |",
        "| all | 100 | 72 | 20 | 8 | 392 |",
        "72% / 20% / 8%",
        "42 of 100 validation tasks",
        "**never** sees it",
        "| circumstances.jsonl | 400 |",
        "Requests speak of 4 kinds of circumstances",
    ):
        assert phrase in card
    assert all(f"| {name} |" in card for name in w.WORLD_FILES)
    for n, (what, _) in w.LEVELS.items():
        assert f"- level {n}: {what}" in card
