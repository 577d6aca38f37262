"""ablation_figures: tables worked out by hand from run folders written by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from lfo.lab.ablation_figures import dose_response, scores, section_figure, section_table
from lfo.lab.verdicts import ENOUGH_SEEDS, MARGIN, lead_verdicts
from lfo.runs import RunError

# arm -> (coupling, lambda), and by seed the success on validation at 0, 40 and 80 tasks; on test it is half of that.
DOSES = {"reference": ("imagine", 0.5), "imagine_0": ("imagine", 0.0), "shared_2": ("shared", 2.0)}
CURVES = {
    "reference": [(0.0, 0.4, 0.8), (0.0, 0.6, 0.6), (0.0, 0.8, 0.8)],  # areas 0.4, 0.45, 0.6
    "imagine_0": [(0.0, 0.2, 0.2), (0.0, 0.2, 0.4), (0.2, 0.2, 0.2)],  # areas 0.15, 0.2, 0.2
    "shared_2": [(0.0, 0.4, 0.8), (0.0, 0.8, 0.8), (0.0, 0.6, 0.8)],  # areas 0.4, 0.6, 0.5
}


def write_run(folder: Path, arm: str, seed: int) -> Path:
    folder.mkdir(parents=True)
    coupling, lam = DOSES[arm]
    config = {"seed": seed, "world_model": {"coupling": coupling, "lam": lam}}
    (folder / "config.json").write_text(json.dumps(config))
    rows = []
    for i, success in enumerate(CURVES[arm][seed]):
        for split, factor in (("validation", 1.0), ("test", 0.5)):
            where = {"tasks": 40 * i, "split": split, "low": 0, "high": 1, "n": 20}
            rows.append({"kind": "success", "level": 0, "success": factor * success, **where})
            rows.append({"kind": "success", "level": 1, "success": 1.0, **where})
            if arm == "reference":
                rows.append({"kind": "rules", "tasks": 40 * i, "split": split, "rule_accuracy": 0.1 * i * (seed + 1)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def runs(tmp_path) -> dict[str, list[Path]]:
    return {arm: [write_run(tmp_path / arm / f"seed{s}", arm, s) for s in range(3)] for arm in DOSES}


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


def test_areas_by_hand(runs):
    table = scores(runs).set_index(["arm", "seed", "split"])
    assert table.loc[("reference", 0, "validation")].tolist() == pytest.approx([0.8, 0.4])
    assert table.loc[("reference", 2, "test")].tolist() == pytest.approx([0.4, 0.3])
    assert table.loc[("imagine_0", 1, "validation")].tolist() == pytest.approx([0.4, 0.2])
    assert len(table) == 3 * 3 * 2


def test_the_area_of_a_run_evaluated_once_is_its_success(runs):
    path = runs["imagine_0"][2] / "metrics.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if '"tasks": 0,' in line))
    table = scores({"one": runs["imagine_0"][2:]})
    assert table["area"].tolist() == [0.2, 0.1]


def test_a_section_is_compared_with_the_reference_seed_by_seed(runs):
    """Areas on validation: imagine_0 is behind by 0.25, 0.25, 0.4; shared_2 by 0, -0.15, 0.1."""
    table = section_table(runs).set_index(["arm", "split"])
    row = table.loc[("imagine_0", "validation")]
    assert row[["success", "area", "minus reference", "low", "high"]].tolist() == pytest.approx(
        [0.2, 0.2, -0.25, -0.4, -0.25]
    )
    assert row[["tasks to 70%", "seeds"]].tolist() == ["> 80", 3]
    assert table.loc[("reference", "validation"), "rule accuracy"] == pytest.approx(0.4)  # 0.2, 0.4, 0.6
    assert math.isnan(row["rule accuracy"])
    row = table.loc[("shared_2", "validation")]
    assert row[["minus reference", "low", "high"]].tolist() == pytest.approx([0.0, -0.1, 0.15])
    assert row["tasks to 70%"] == "80" and math.isnan(table.loc[("reference", "test"), "low"])


def test_a_claim_is_decided_by_its_closest_rival(runs):
    claims = {
        "some": ("reference", ["imagine_0"]),
        "best": ("reference", ["imagine_0", "shared_2"]),
        "turned": ("imagine_0", ["shared_2", "reference"]),
        "left out": ("reference", ["imagine_0", "imagine_7"]),
    }
    table = lead_verdicts(runs, claims).query("split == 'validation'").set_index("claim")
    assert table["verdict"].to_dict() == {"some": "supported", "best": "undecided", "turned": "refuted"}
    assert table["rival"].to_dict() == {"some": "imagine_0", "best": "shared_2", "turned": "shared_2"}
    assert table.loc["turned", ["lead", "low", "high", "seeds"]].tolist() == pytest.approx([-0.3, -0.4, -0.25, 3])


@pytest.mark.parametrize(
    ("lead", "enough", "expected"),
    [(-0.3, 3, "supported"), (0.8 * MARGIN, 3, "supported"), (1.2 * MARGIN, 3, "refuted"), (0.0, 4, "undecided")],
)
def test_no_gain_is_supported_where_the_interval_ends_below_the_margin(tmp_path, monkeypatch, lead, enough, expected):
    monkeypatch.setitem(CURVES, "reference", [(0.4 + lead,) * 3] * 3)
    monkeypatch.setitem(CURVES, "imagine_0", [(0.4,) * 3] * 3)
    runs = {arm: [write_run(tmp_path / arm / str(s), arm, s) for s in range(3)] for arm in ("reference", "imagine_0")}
    table = lead_verdicts(runs, {}, no_gain={"nothing gained": ("reference", ["imagine_0"])}, enough=enough)
    assert table.set_index("split").loc["validation", ["lead", "verdict"]].tolist() == [pytest.approx(lead), expected]


def test_no_gain_over_several_is_judged_by_the_one_left_furthest_behind(runs):
    (row,) = (
        lead_verdicts(runs, {}, no_gain={"x": ("reference", ["shared_2", "imagine_0"])})
        .query("split == 'validation'")
        .to_dict("records")
    )
    assert (row["rival"], row["verdict"]) == ("imagine_0", "refuted")


def test_without_a_claim_to_decide_there_is_an_empty_table(runs):
    table = lead_verdicts(runs, {"left out": ("imagine_7", ["reference"])})
    assert table.empty and "verdict" in table


def test_too_few_seeds_decide_nothing(runs):
    few = {arm: folders[: ENOUGH_SEEDS - 1] for arm, folders in runs.items()}
    assert set(lead_verdicts(few, {"some": ("reference", ["imagine_0"])})["verdict"]) == {"undecided"}


@pytest.mark.parametrize(("lead", "expected"), [(0.9 * MARGIN, "undecided"), (1.1 * MARGIN, "supported")])
def test_a_lead_within_the_margin_decides_nothing(tmp_path, monkeypatch, lead, expected):
    monkeypatch.setitem(CURVES, "reference", [(0.3 + lead,) * 3] * 3)
    monkeypatch.setitem(CURVES, "imagine_0", [(0.3,) * 3] * 3)
    runs = {arm: [write_run(tmp_path / arm / str(s), arm, s) for s in range(3)] for arm in ("reference", "imagine_0")}
    claimed = {"ahead": ("reference", ["imagine_0"])}
    assert lead_verdicts(runs, claimed).set_index("split").loc["validation", "verdict"] == expected


def test_arms_without_a_common_seed_are_named(runs):
    apart = {"reference": runs["reference"][:1], "imagine_0": runs["imagine_0"][1:]}
    with pytest.raises(RunError, match="imagine_0, reference: the two arms have no seed in common"):
        section_table(apart)


def test_doses_are_read_from_the_runs(runs):
    """The upper left panel: final success on validation against lambda, medians as a line for each coupling."""
    ax, _, lower, _ = dose_response(runs).axes
    lines = {
        line.get_label().split()[0]: line.get_xydata().tolist() for line in ax.lines if line.get_linestyle() == "-"
    }
    assert lines == {"imagine": [[0.0, 0.2], [0.5, 0.8]], "shared": [[2.0, 0.8]]}
    points = [xy for line in ax.lines if line.get_linestyle() == "None" for xy in line.get_xydata().tolist()]
    assert sorted(points) == [
        [0.0, 0.2],
        [0.0, 0.2],
        [0.0, 0.4],
        [0.5, 0.6],
        [0.5, 0.8],
        [0.5, 0.8],
        [2.0, 0.8],
        [2.0, 0.8],
        [2.0, 0.8],
    ]
    assert ax.get_xscale() == "symlog" and [t.get_text() for t in lower.get_xticklabels()] == ["0", "0.5", "2"]


def test_every_arm_of_a_section_has_its_seeds_and_its_median(runs):
    ax = section_figure(runs).axes[1]  # test: half of validation
    assert [tick.get_text() for tick in ax.get_xticklabels()] == list(DOSES)
    assert sorted(ax.lines[0].get_ydata()) == pytest.approx([0.2, 0.225, 0.3])
    medians = [bar.get_segments()[0][0][1] for bar in ax.collections]
    assert medians == pytest.approx([0.225, 0.1, 0.25])
