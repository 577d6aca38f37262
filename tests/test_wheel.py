"""The wheel carries base, worlds and configs, and what is installed from it trains anywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from test_layout import tracked_files

import lfo
from lfo.config import load_config, located
from lfo.envs.phone import load_world

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy of what git tracks, with the environment's own setuptools, which torch needs anyway."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("lfo", "configs", "data"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
    (source / "data" / "base" / "recipe-checkpoint.pt").touch()  # as an interrupted `make base` leaves it
    subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=source, check=True, capture_output=True)
    (path,) = out.glob("lfo-*.whl")
    return path


def test_the_wheel_has_what_git_tracks_and_nothing_else(wheel):
    """Every file of lfo/, configs/ and data/, byte for byte."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        places = {name: f"lfo/shipped/{name}" if name[:4] != "lfo/" else name for name in tracked_files()}
        wanted = {n: place for n, place in places.items() if n.split("/")[0] in ("lfo", "configs", "data")}
        wanted = {n: place for n, place in wanted.items() if not (ROOT / n).is_symlink()}
        assert held == set(wanted.values())
        for name, place in wanted.items():
            assert archive.read(place) == (ROOT / name).read_bytes(), name


def test_what_is_shipped_is_found_from_anywhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert load_config("configs/laptop.yaml") == load_config(ROOT / "configs" / "laptop.yaml")
    assert load_world(located("data/world")).seed == 0
    assert located("data/base").samefile(ROOT / "data" / "base")
    assert located("configs/none.yaml") == Path("configs/none.yaml")


def test_what_lies_in_the_working_directory_comes_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("configs").mkdir()
    Path("configs/laptop.yaml").write_text("name: mine\n")
    assert located("configs/laptop.yaml") == Path("configs/laptop.yaml")
    assert load_config("configs/laptop.yaml").name == "mine"


@pytest.mark.slow
def test_it_trains_in_an_empty_environment_far_from_the_repository(wheel, tmp_path):
    """Minutes and a network: installs PyTorch and all else afresh."""
    python = tmp_path / "venv" / "bin" / "python"
    away = tmp_path / "away"
    away.mkdir()
    names = ("PYTHONPATH", "LFO_PROFILE")
    clean = {name: value for name, value in os.environ.items() if name not in names}

    def run(*command: str | Path) -> str:
        done = subprocess.run(list(map(str, command)), cwd=away, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", f"lfo[cpu] @ {wheel.as_uri()}")
    assert not Path(run(python, "-c", "import lfo; print(lfo.__file__)").strip()).is_relative_to(ROOT)
    command = python.with_name("lfo")
    assert lfo.__version__ in run(python, "-m", "pip", "show", "lfo")
    run(command, "train", "--quiet", "--config", "configs/smoke.yaml", "--run", "runs/mine")
    rows = [json.loads(line) for line in (away / "runs/mine/metrics.jsonl").read_text().splitlines()]
    assert [row["tasks"] for row in rows if row["kind"] == "step"] == [4, 8]
    assert "n=" in run(command, "evaluate", "--run", "runs/mine", "--episodes", "1")
    assert sorted(path.name for path in away.iterdir()) == ["runs"]
