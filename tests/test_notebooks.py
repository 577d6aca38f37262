"""The notebooks as files. Sources stand in notebooks/, without outputs; results/ has what papermill wrote of them.

nbval runs the sources (see the Makefile).
"""

from __future__ import annotations

import ast
import csv
import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from lfo.lab.report import provenance_of
from lfo.lab.sweep import read_grid

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXECUTED = sorted((ROOT / "results").glob("*.ipynb"))
MOST_WORDS = 250  # of a last section

EVERY_SOURCE = pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
EVERY_EXECUTED = pytest.mark.parametrize("path", EXECUTED, ids=lambda p: p.stem)


def cells(path: Path, kind: str) -> list[dict]:
    return [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == kind]


def sources(path: Path, kind: str) -> list[str]:
    return ["".join(c["source"]) for c in cells(path, kind)]


def test_there_are_notebooks_to_check():
    assert [p.name[:2] for p in SOURCES] == ["00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10"]
    assert {p.name for p in EXECUTED} <= {p.name for p in SOURCES}, "an executed notebook has no source"


# --- the sources -----------------------------------------------------------------------------


@EVERY_SOURCE
def test_sources_hold_no_outputs(path):
    assert set(json.loads(path.read_text(encoding="utf-8"))["metadata"]) == {"kernelspec", "language_info"}
    assert not any(c["outputs"] or c["execution_count"] for c in cells(path, "code"))
    assert not any("NBVAL" in source for source in sources(path, "code")), "there is no output to compare with"


@EVERY_SOURCE
def test_one_parameters_cell_of_literals_with_units(path):
    tagged = [c for c in cells(path, "code") if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1
    source = "".join(tagged[0]["source"])
    for node, line in zip(ast.parse(source).body, source.strip().splitlines(), strict=True):
        assert isinstance(node, ast.Assign)
        ast.literal_eval(node.value)  # raises where it is no literal
        assert "#" in line, f"a unit or a meaning is missing: {line}"


@EVERY_SOURCE
def test_it_says_what_a_reader_needs(path):
    opening, *_, last = sources(path, "markdown")
    for word in ("Question", "reads", "writes", "run time", "papermill"):
        assert word in opening
    assert last.startswith("## What this shows") and "does not" in last.lower(), "it ends with what it does not show"
    assert len(last.split()) <= MOST_WORDS
    assert "assert " in "".join(sources(path, "code"))


@EVERY_SOURCE
def test_what_it_names_is_there(path):
    said = "\n".join(sources(path, "markdown"))
    for target in re.findall(r"\]\((\.\./[^)#]+)", said):
        assert (path.parent / target).exists(), target
    if (ROOT / "results" / path.name).exists():  # else it has yet to be run
        for name in re.findall(r"`(results/\d\d_\w+\.\w+)`", said):
            assert (ROOT / name).exists(), name


@EVERY_SOURCE
def test_no_logic_in_notebooks(path):
    for source in sources(path, "code"):
        for node in ast.walk(ast.parse(source)):
            assert not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.While), "this belongs into lfo/"


# --- what was executed -----------------------------------------------------------------------


@EVERY_EXECUTED
def test_executed_outputs_are_committed_small_and_clean(path):
    assert path.stat().st_size < 300_000
    assert set(json.loads(path.read_text(encoding="utf-8"))["metadata"]) <= {"kernelspec", "language_info"}
    code = cells(path, "code")
    assert any(c["outputs"] for c in code)
    assert all(c["execution_count"] for c in code), "a cell was not executed"
    assert not any(o["output_type"] == "error" for c in code for o in c["outputs"])


@pytest.fixture
def as_committed():
    """results/ is as it was committed; who trained something since is not asked whether all of it fits together."""
    here = subprocess.run(["git", "status", "--porcelain", "results"], cwd=ROOT, capture_output=True, check=False)
    if here.returncode or here.stdout:
        pytest.skip("results/ is not as it was committed")


@pytest.mark.usefixtures("as_committed")
@pytest.mark.parametrize(
    ("table", "grid", "place"),
    [
        ("04_factorial", "science", "runs"),
        ("04_second_base", "second_base", "second_base"),
        ("04_six", "six", "six"),
        ("04_reads", "reads", "reads"),
        ("04_confirm", "confirm", "confirm"),
        ("04_again", "again", "again"),
        ("06_richer", "richer", "richer"),
        ("08_overview", "feedback_grid", "runs"),
    ],
)
def test_tables_have_the_arms_and_runs_of_their_grid(table, grid, place):
    """A run that was taken out of a grid, or added, makes its tables stale as well."""
    planned = Counter(folder.parent.name for folder in read_grid(ROOT / "configs" / f"{grid}.yaml", place))
    with (ROOT / "results" / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        assert {row["arm"]: int(row["runs"]) for row in csv.DictReader(file)} == planned


@pytest.mark.usefixtures("as_committed")
def test_all_runs_of_all_grids_are_there(monkeypatch):
    """Those that `make science` trains: as many as docs/use.md says."""
    monkeypatch.chdir(ROOT)
    makefile = Path("Makefile").read_text(encoding="utf-8")
    pairs = re.findall(r"(configs/\w+\.yaml)=(results/\w+)", makefile)
    pairs += [(path, "results/ablation") for path in Path("configs").glob("ablation_*.yaml")]
    tuned = re.search(r"^TUNINGS := (.*)$", makefile, re.MULTILINE)[1].split()
    pairs += [(f"configs/tuning_{name}.yaml", f"results/tuning/{name}") for name in tuned]
    runs = {folder for grid, out in pairs for folder in read_grid(grid, out)}
    lacking = [folder for folder in runs if not (folder / "metrics.jsonl").exists()]
    assert not lacking and f"all {len(runs):,} are there" in Path("docs/use.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("as_committed")
def test_figures_and_tables_are_of_the_runs_beside_them():
    """What is committed fits together: a run that was trained again makes every table with it stale."""
    names = "runs ablation dials reasons six second_base confirm reads again bounds levels".split()
    places = [ROOT / "results" / name for name in (*names, "shell", "twc")]
    folders = [(path.parent, place) for place in places for path in place.rglob("config.json")]
    facts: dict[tuple[str, str], list[dict]] = {}  # an arm may be in several places
    for folder, place in folders:
        arm = folder.parent.relative_to(place).as_posix()  # under a position of the dials, where there is one
        for name in (arm, f"{place.name}/{arm}"):
            facts.setdefault((name, folder.name), []).extend(provenance_of({"": [folder]})["runs"])
    stale, compared = set(), 0
    for path in sorted((ROOT / "results").glob("*.json")):
        written = json.loads(path.read_text(encoding="utf-8"))
        names = {arm: config["name"] for arm, config in written.get("configs", {}).items()}
        for run in written.get("runs", []):
            arm = run["arm"] if "/" in run["arm"] else names.get(run["arm"])
            if found := facts.get((arm, run["run"])):
                compared += 1
                stale |= set() if run | {"arm": ""} in found else {f"{path.name}: {run['arm']}, {run['run']}"}
    assert not stale and compared >= 3 * len(folders), "every run is in several figures and tables"


@pytest.mark.parametrize("figure", sorted((ROOT / "results").glob("*.png")), ids=lambda p: p.stem)
def test_every_figure_has_its_provenance(figure):
    facts = json.loads(figure.with_suffix(".json").read_text(encoding="utf-8"))
    runs = facts.get("runs", [facts])
    assert runs
    for run in runs:
        assert {"commit", "packages", "machine"} <= set(run)
    assert figure.with_suffix(".svg").exists()
