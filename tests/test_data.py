"""Data have versions: what lies in data/ is the newest of data/CHANGELOG.md, to the byte."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from lfo.types import sha256

DATA = Path(__file__).resolve().parents[1] / "data"
SECTION = re.compile(r"^## (\d+) \((\d{4}-\d\d-\d\d)\)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| ([\w./]+) \| ([0-9a-f]{64}) \|$", re.MULTILINE)


def versions(text: str) -> list[tuple[int, str, dict[str, str]]]:
    """Number, date and checksums by file of every version, as they stand."""
    return [(int(number), date, dict(ROW.findall(body))) for number, date, body in SECTION.findall(text)]


@pytest.fixture(scope="module")
def told() -> list[tuple[int, str, dict[str, str]]]:
    return versions((DATA / "CHANGELOG.md").read_text(encoding="utf-8"))


def test_the_newest_version_is_what_lies_here(told):
    """If this fails, data were changed: write a new section, or undo the change."""
    _, _, newest = told[0]
    bases = ("base", "base_without_notes", "base_reading", "base_shell", "base_twc")
    files = [path for base in bases for path in (DATA / base).iterdir()]
    files = [path for path in files if path.suffix in (".json", ".safetensors")]
    names = {path.relative_to(DATA).as_posix() for path in files if path.name != "recipe.json"}  # how it was made
    others = {"world/checksums.json", "../lfo/envs/twc/games.csv"}
    assert newest == {name: sha256(DATA / name) for name in names | others}


def test_the_worlds_checksums_are_those_of_its_files():
    listed = json.loads((DATA / "world" / "checksums.json").read_text(encoding="utf-8"))
    files = {path.name for path in (DATA / "world").iterdir()} - {"README.md", "checksums.json"}
    assert listed == {name: sha256(DATA / "world" / name) for name in files}


def test_versions_count_up_and_differ(told):
    numbers, dates, checksums = zip(*told, strict=True)
    assert list(numbers) == list(range(len(told), 0, -1)) and list(dates) == sorted(dates, reverse=True)
    assert all(one != other for one, other in itertools.pairwise(checksums))
    assert all(set(one) >= set(other) for one, other in itertools.pairwise(checksums)), "a file was left out"
