"""How notebooks begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from lfo.config import ConfigError
from lfo.lab.notebooks import start_notebook

ROOT = Path(__file__).resolve().parents[2]


def test_notebooks_start_in_the_repository_root(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # and back at the end
    monkeypatch.delenv("LFO_PROFILE", raising=False)
    assert start_notebook("laptop", "results") == ("laptop", Path("results"))
    assert Path.cwd() == ROOT


def test_profile_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LFO_PROFILE", "smoke")
    assert start_notebook("laptop", "results") == ("smoke", Path("build/smoke"))
    monkeypatch.setenv("LFO_PROFILE", "")
    assert start_notebook("laptop", "results") == ("laptop", Path("results"))


def test_an_unknown_profile_lists_what_there_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LFO_PROFILE", "laptpo")
    with pytest.raises(ConfigError, match=r"no profile 'laptpo'; profiles: .*laptop, .*smoke"):
        start_notebook("laptop", "results")


def test_an_installed_package_leaves_the_working_directory(monkeypatch, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LFO_PROFILE", raising=False)
    monkeypatch.setattr("lfo.lab.notebooks.__file__", str(tmp_path / "site-packages" / "lfo" / "lab" / "notebooks.py"))
    assert start_notebook("mine", "out") == ("mine", Path("out"))
    assert Path.cwd() == tmp_path
