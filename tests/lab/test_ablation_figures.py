"""ablation_figures: tables worked out by hand from run folders written by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from lfo.config import RunConfig, as_dict, build
from lfo.lab.ablation_figures import dose_response, knowing_table, scores, section_figure, section_table
from lfo.lab.hierarchy import Study, area, lead, read_curves

# arm -> (coupling, lambda), and by seed the success on validation at 0, 40 and 80 tasks; on test it is half of that.
DOSES = {"reference": ("imagine", 0.5), "imagine_0": ("imagine", 0.0), "shared_2": ("shared", 2.0)}
CURVES = {
    "reference": [(0.0, 0.4, 0.8), (0.0, 0.6, 0.6), (0.0, 0.8, 0.8)],  # areas 0.4, 0.45, 0.6
    "imagine_0": [(0.0, 0.2, 0.2), (0.0, 0.2, 0.4), (0.2, 0.2, 0.2)],  # areas 0.15, 0.2, 0.2
    "shared_2": [(0.0, 0.4, 0.8), (0.0, 0.8, 0.8), (0.0, 0.7, 0.7)],  # areas 0.4, 0.6, 0.525
}
TASKS = 20


def write_run(folder: Path, arm: str, seed: int) -> Path:
    folder.mkdir(parents=True)
    coupling, lam = DOSES[arm]
    config = {"seed": seed, "eval_tasks": TASKS, "world_model": {"coupling": coupling, "lam": lam}}
    (folder / "config.json").write_text(json.dumps(as_dict(build(RunConfig, config))))
    rows = []
    for i, success in enumerate(CURVES[arm][seed]):
        for split, factor in (("validation", 1.0), ("test", 0.5)):
            where, hits = {"tasks": 40 * i, "split": split}, round(factor * success * TASKS)
            rows.append({"kind": "outcomes", "successes": "1" * hits + "0" * (TASKS - hits), **where})
            if arm == "reference":
                rows.append({"kind": "rules", "rule_accuracy": 0.1 * i * (seed + 1), **where})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def runs(tmp_path) -> dict[str, list[Path]]:
    return {arm: [write_run(tmp_path / arm / f"seed{s}", arm, s) for s in range(3)] for arm in DOSES}


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


def test_what_is_known_is_compared_in_the_same_worlds(tmp_path):
    """One arm lacks the third world, in which the reference knows little: its lead is that in the other two."""
    shares = {"reference": (0.4, 0.5, 0.1), "other": (0.5, 0.7)}
    runs = {arm: [tmp_path / f"{arm}{world}" for world in range(len(values))] for arm, values in shares.items()}
    for arm, values in shares.items():
        for world, share in enumerate(values):
            folder = tmp_path / f"{arm}{world}"
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(as_dict(build(RunConfig, {"env": {"world_seed": world}}))))
            where = {"tasks": 320, "split": "validation"}
            rows = [
                {"kind": "rules", "rule_accuracy": share, **where},
                {"kind": "rules", "rule_accuracy": 0.0, **where},
            ]
            rows[1]["split"] = "test"
            rows.append({"kind": "outcomes", "successes": "1" * 10 + "0" * 90, **where})
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = knowing_table(runs).set_index("arm")
    assert table.loc["reference"].tolist() == [0.4, 0.0, 0, 0.1, 3]
    assert table.loc["other"].tolist() == pytest.approx([0.6, 0.15, 2, 0.1, 2])


def test_areas_by_hand(runs):
    table = scores(runs).set_index(["arm", "world", "seed", "split"])
    assert table.loc[("reference", 0, 0, "validation")].tolist() == pytest.approx([0.8, 0.4])
    assert table.loc[("reference", 0, 2, "test")].tolist() == pytest.approx([0.4, 0.3])
    assert table.loc[("imagine_0", 0, 1, "validation")].tolist() == pytest.approx([0.4, 0.2])
    assert len(table) == 3 * 3 * 2


def test_the_area_of_a_run_evaluated_once_is_its_success(runs):
    path = runs["imagine_0"][2] / "metrics.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if '"tasks": 0,' in line))
    table = scores({"one": runs["imagine_0"][2:]})
    assert table["area"].tolist() == [0.2, 0.1]


def test_a_section_is_compared_with_the_reference(runs):
    """Median areas on validation: 0.45, 0.2 and 0.525. 70% never, never and after 40 tasks; never, after 40 and 40."""
    table = section_table(runs).set_index(["arm", "split"])
    row = table.loc[("imagine_0", "validation")]
    assert row[["success", "area", "minus reference"]].tolist() == pytest.approx([0.2, 0.2, -0.25])
    assert row[["tasks to 70%", "runs"]].tolist() == [math.inf, 3] and math.isnan(row["rule accuracy"])
    assert row["low"] < -0.25 < row["high"] < 0
    assert table.loc[("reference", "validation"), "rule accuracy"] == pytest.approx(0.4)  # 0.2, 0.4, 0.6
    assert table.loc[("reference", "validation"), "tasks to 70%"] == math.inf
    row = table.loc[("shared_2", "validation")]
    assert row["minus reference"] == pytest.approx(0.075) and row["low"] < 0 < row["high"]
    assert row["tasks to 70%"] == 40 and math.isnan(table.loc[("reference", "test"), "low"])


def test_the_interval_is_that_of_every_other_table(runs):
    study = Study(read_curves(runs, "test"))
    found = study.find(area, lead("shared_2", "reference"), ["shared_2", "reference"])
    row = section_table(runs).set_index(["arm", "split"]).loc[("shared_2", "test")]
    assert row[["minus reference", "low", "high"]].tolist() == [found.value, found.low, found.high]


def test_areas_are_compared_over_the_tasks_that_both_were_given(runs):
    """The last evaluation of one arm's runs is not there: over what is left both have the same curve."""
    for folder, full in zip(runs["imagine_0"], runs["reference"], strict=True):
        lines = (full / "metrics.jsonl").read_text().splitlines(keepends=True)
        last = max(json.loads(line)["tasks"] for line in lines)
        (folder / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["tasks"] < last))
    row = section_table(runs).set_index(["arm", "split"]).loc[("imagine_0", "validation")]
    assert row["minus reference"] == 0 and row["low"] < 0 < row["high"]


def test_without_a_reference_nothing_is_compared(runs):
    table = section_table({"imagine_0": runs["imagine_0"]})
    assert table["minus reference"].isna().all() and len(table) == 2


def test_doses_are_read_from_the_runs(runs):
    """The upper left panel: final success on validation against lambda, medians as a line for each coupling."""
    ax, _, lower, _ = dose_response(runs).axes
    lines = {
        line.get_label().split()[0]: line.get_xydata().tolist() for line in ax.lines if line.get_linestyle() == "-"
    }
    assert lines == {"imagine": [[0.0, 0.2], [0.5, 0.8]], "shared": [[2.0, 0.8]]}
    points = [xy for line in ax.lines if line.get_linestyle() == "None" for xy in line.get_xydata().tolist()]
    assert sorted(points) == [
        *([0.0, 0.2], [0.0, 0.2], [0.0, 0.4]),
        *([0.5, 0.6], [0.5, 0.8], [0.5, 0.8]),
        *([2.0, 0.7], [2.0, 0.8], [2.0, 0.8]),
    ]
    assert ax.get_xscale() == "symlog" and [t.get_text() for t in lower.get_xticklabels()] == ["0", "0.5", "2"]


def test_every_arm_of_a_section_has_its_runs_and_its_median(runs):
    ax = section_figure(runs).axes[1]  # test: half of validation
    assert [tick.get_text() for tick in ax.get_xticklabels()] == list(DOSES)
    assert sorted(ax.lines[0].get_ydata()) == pytest.approx([0.2, 0.225, 0.3])
    medians = [bar.lines[0].get_ydata()[0] for bar in ax.containers]
    assert medians == pytest.approx([0.225, 0.1, 0.2625])
