"""The notebooks as files: what papermill, nbval and a reader on the web rely on. nbval runs them (see the Makefile)."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

from lfo import figures

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[dict]:
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == kind]


def test_there_are_notebooks_to_check():
    assert [p.name[:2] for p in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06", "07"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_one_parameters_cell_of_literals_with_units(path):
    tagged = [c for c in cells(path, "code") if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1
    source = "".join(tagged[0]["source"])
    for node, line in zip(ast.parse(source).body, source.strip().splitlines(), strict=True):
        assert isinstance(node, ast.Assign)
        ast.literal_eval(node.value)  # raises where it is no literal
        assert "#" in line, f"a unit or a meaning is missing: {line}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_executed_outputs_are_committed_small_and_clean(path):
    assert path.stat().st_size < 300_000
    data = json.loads(path.read_text())
    assert set(data["metadata"]) <= {"kernelspec", "language_info"}
    code = cells(path, "code")
    assert any(c["outputs"] for c in code)
    assert all(c["execution_count"] for c in code), "a cell was not executed"
    assert not any(o["output_type"] == "error" for c in code for o in c["outputs"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_says_what_a_reader_needs(path):
    prose = "\n".join("".join(c["source"]) for c in cells(path, "markdown"))
    opening = "".join(cells(path, "markdown")[0]["source"])
    for word in ("Question", "reads", "writes", "run time", "papermill"):
        assert word in opening
    assert "does not" in prose.split("## ")[-1].lower(), "it ends with what it does not show"
    assert "assert " in "".join("".join(c["source"]) for c in cells(path, "code"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_no_logic_in_notebooks(path):
    for cell in cells(path, "code"):
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            assert not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.While), "this belongs into lfo/"


def test_readme_shows_the_tables_of_results():
    block = (ROOT / "README.md").read_text().partition(figures.README_MARKS[0])[2].partition(figures.README_MARKS[1])[0]
    assert block.strip() == figures.results_block(ROOT / "results"), "README is stale: run `lfo readme`"


def test_figures_and_tables_are_of_the_runs_beside_them():
    """What is committed fits together: a run that was trained again makes every table with it stale."""
    here = subprocess.run(["git", "status", "--porcelain", "results"], cwd=ROOT, capture_output=True, check=False)
    if here.returncode or here.stdout:
        pytest.skip("results/ is not as it was committed")
    folders = [path.parent for path in (ROOT / "results").glob("*/*/seed*/provenance.json")]
    facts: dict[tuple[str, str], list[dict]] = {}  # an arm may be in runs/ and, shorter, in ablation/
    for folder in folders:
        entries = figures.provenance_of({"": [folder]})["runs"]
        facts.setdefault((folder.parent.name, folder.name), []).extend(entries)
    stale, compared = set(), 0
    for path in sorted((ROOT / "results").glob("*.json")):
        for run in json.loads(path.read_text()).get("runs", []):
            if found := facts.get((run["config"]["name"], run["run"])):  # none of a grid: those are in results/tuning
                compared += 1
                stale |= set() if run | {"arm": ""} in found else {f"{path.name}: {run['arm']}, {run['run']}"}
    assert compared > 100 and not stale


@pytest.mark.parametrize("figure", sorted((ROOT / "results").glob("*.png")), ids=lambda p: p.stem)
def test_every_figure_has_its_provenance(figure):
    facts = json.loads(figure.with_suffix(".json").read_text())
    runs = facts.get("runs", [facts])
    assert runs
    for run in runs:
        assert {"commit", "packages", "machine"} <= set(run)
    assert figure.with_suffix(".svg").exists()
