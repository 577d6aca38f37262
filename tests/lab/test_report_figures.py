"""figures and command line for notebook 01: what is drawn and written without a model."""

from __future__ import annotations

import base64
import io
import json

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from PIL import Image

from lfo.cli import main
from lfo.envs.phone import generate_world, load_world
from lfo.lab import figures, notebooks, reading, report, tables
from lfo.lab.environment_report import hidden_entropy


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


# --- figures and tables ----------------------------------------------------------------------

ROWS = [
    {"policy": p, "level": lvl, "success": s, "low": max(0, s - 0.1), "high": min(1, s + 0.1), "n": 10}
    for p, s in (("oracle", 1.0), ("no-op", 0.0))
    for lvl in (0, 1, 2)
]


def test_interval_table():
    table = tables.interval_table(ROWS, "policy")
    assert list(table.index) == ["oracle", "no-op"]
    assert list(table.columns) == ["all", "1", "2"]
    assert table.loc["oracle", "1"] == "100.0 [90.0, 100.0]"
    assert table.loc["no-op", "all"] == "0.0 [0.0, 10.0]"


def test_reference_figure_has_a_bar_per_policy_and_level():
    ax, *others = figures.reference_figure(ROWS).axes
    assert not others
    assert [[round(bar.get_height(), 3) for bar in bars] for bars in ax.containers if hasattr(bars, "patches")] == [
        [1, 1],
        [0, 0],
    ]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2"]


def test_reference_figure_has_a_panel_per_set_of_rules():
    rows = [{"rules": name, **row} for name in ("a", "b") for row in ROWS]
    fig = figures.reference_figure(rows)
    assert [ax.get_title() for ax in fig.axes] == ["a", "b"]
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["oracle", "no-op"]


def test_entropy_figure_says_its_numbers(tiny):
    (ax,) = figures.entropy_figure(hidden_entropy(tiny)).axes
    texts = [t.get_text() for t in ax.texts]
    assert texts[0] == "2.25 bits (1 case)"
    assert texts[-1] == "0.00 bits (6 cases)"


def test_learnability_figure_draws_the_median_over_seeds():
    rows = [
        {"split": split, "calls": n, "accuracy": a, "chance": 0.1, "typical": 0.7, "seed": seed}
        for split in reading.SPLIT_NAMES
        for seed, values in enumerate(((0.1, 0.5), (0.2, 0.9), (0.3, 0.7)))
        for n, a in zip((25, 100), values, strict=True)
    ]
    fig = figures.learnability_figure(rows)
    assert [ax.get_title() for ax in fig.axes] == list(reading.SPLIT_NAMES.values())
    assert list(fig.axes[0].lines[0].get_ydata()) == [0.2, 0.7]
    assert "median of 3 seeds" in fig.axes[1].get_legend().get_texts()[0].get_text()


def test_dial_figure_draws_the_mean_over_worlds():
    rows = [
        {"circumstances": dial, "world": world, "heard": heard, "teller": "table", "split": split, "right": right}
        | {"replies": replies}
        for split in reading.SPLIT_NAMES
        for heard in (80, 320)
        for world in (100, 101)
        for replies, least in (("list", 0.3), ("reasons", 0.4))
        for dial, right in ((0, 0.8 + world / 1000), (4, least))
    ]
    known, more, new, _ = figures.dial_figure(rows).axes
    dashed, solid = known.get_lines()
    assert solid.get_xydata().tolist() == [[0, pytest.approx(0.9005)], [4, 0.4]]
    assert (solid.get_linestyle(), dashed.get_linestyle(), dashed.get_ydata()[1]) == ("-", "--", 0.3)
    assert known.get_title() == "known companies (validation), 80 calls heard" and "320" in more.get_title()
    assert new.get_title().startswith("new") and [t.get_text() for t in new.get_xticklabels()] == ["0", "4"]
    assert [text.get_text() for text in more.get_legend().get_texts()] == ["table", "replies: reasons", "replies: list"]


def test_results_without_runs_carry_the_facts(tmp_path):
    facts = {"world_seed": 3}
    path = report.save_figure(figures.reference_figure(ROWS), tmp_path / "sub" / "01_x", facts=facts)
    assert path == tmp_path / "sub" / "01_x.png"
    assert json.loads(path.with_suffix(".json").read_text()) == facts
    assert path.with_suffix(".svg").exists()
    table = report.save_table(pd.DataFrame(ROWS), tmp_path / "01_y", facts=facts)
    assert json.loads(table.with_suffix(".json").read_text()) == facts
    assert len(pd.read_csv(table)) == len(ROWS)
    assert "| oracle" in table.with_suffix(".md").read_text()


# --- executed notebooks ----------------------------------------------------------------------


def executed_notebook() -> dict:
    """What papermill leaves behind, in short."""
    image = Image.effect_noise((64, 64), 90).convert("RGBA")
    image.save(png := io.BytesIO(), "png")
    outputs = [
        {"output_type": "stream", "name": "stderr", "text": ["40%|####  | 3.1 task/s"]},
        {"output_type": "stream", "name": "stdout", "text": ["kept\n"]},
        {"output_type": "display_data", "data": {"image/png": base64.b64encode(png.getvalue()).decode()}},
    ]
    timed = {"papermill": {"duration": 3.2}, "execution": {"iopub.execute_input": "2026-01-01"}}
    cells = [
        {"cell_type": "markdown", "id": "title", "metadata": {"papermill": {}}, "source": ["# Größe"]},
        {"cell_type": "code", "id": "parameters", "metadata": {**timed, "tags": ["parameters"]}, "outputs": []},
        {"cell_type": "code", "id": "ab12", "metadata": {**timed, "tags": ["injected-parameters"]}, "outputs": []},
        {"cell_type": "code", "id": "run", "metadata": timed, "outputs": outputs},
    ]
    metadata = {
        "kernelspec": {"name": "python3"},
        "language_info": {"name": "python", "version": "3.11.7"},
        "papermill": {"input_path": "somewhere", "duration": 9.5},
    }
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def test_tidy_keeps_what_two_runs_have_in_common(tmp_path, capsys):
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(executed_notebook()), encoding="utf-8")
    assert main(["tidy", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    book = json.loads(text)
    assert book["metadata"] == {"kernelspec": {"name": "python3"}, "language_info": {"name": "python"}}
    assert [c["metadata"] for c in book["cells"]] == [
        {},
        {"tags": ["parameters"]},
        {"tags": ["injected-parameters"]},
        {},
    ]
    assert [c["id"] for c in book["cells"]] == ["title", "parameters", "injected-parameters", "run"]
    stdout, figure = book["cells"][3]["outputs"]
    assert stdout["text"] == ["kept\n"]
    image = Image.open(io.BytesIO(base64.b64decode(figure["data"]["image/png"])))
    assert (image.size, image.mode) == ((64, 64), "P")
    assert "Größe" in text
    notebooks.tidy_notebook(path)
    assert path.read_text(encoding="utf-8") == text  # nothing is left to do


def test_tidy_names_a_missing_notebook(tmp_path, capsys):
    assert main(["tidy", str(tmp_path / "gone.ipynb")]) == 1
    assert "gone.ipynb" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"cells": []}', '{"metadata": {}, "cells": [{}]}'])
def test_tidy_leaves_what_is_no_notebook_as_it_is(tmp_path, capsys, text):
    (tmp_path / "x.ipynb").write_text(text)
    assert main(["tidy", str(tmp_path / "x.ipynb")]) == 1
    assert "x.ipynb is no notebook" in capsys.readouterr().err
    assert (tmp_path / "x.ipynb").read_text() == text


# --- lfo generate ----------------------------------------------------------------------------


def test_generate_writes_a_world_that_loads(tmp_path, capsys):
    assert main(["generate", "--seed", "5", "--out", str(tmp_path / "w")]) == 0
    assert "100 companies and 700 tasks" in capsys.readouterr().out
    assert load_world(tmp_path / "w") == generate_world(5)


def test_generate_leaves_the_embedded_world_alone(tmp_path, capsys, monkeypatch):
    """Unless it is this very world, or the folder is named."""
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "--seed", "5"]) == main(["generate"]) == 0
    folders = [line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert folders == ["build/world_5_circumstances_4", "data/world"] and all(map(load_world, folders))
