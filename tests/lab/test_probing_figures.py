"""probing_figures: tables worked out by hand from run folders written by hand."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from lfo.lab import probing_figures
from lfo.lab.reading import SPLIT_NAMES
from lfo.runs import RunError

KNOWN, NEW = SPLIT_NAMES.values()
# Rule accuracy and success on (validation, test) at 0, 40 and 80 tasks.
CURVES = {
    0: {"validation": [(0.0, 0.1), (0.5, 0.3), (0.9, 0.7)], "test": [(0.0, 0.0), (0.1, 0.5), (0.2, 0.6)]},
    1: {"validation": [(0.1, 0.0), (0.6, 0.4), (0.7, 0.4)], "test": [(0.0, 0.0), (0.1, 0.1), (0.3, 0.2)]},
}


def reply(model: str, category: str, right: int, nats: float, words=("a b c d e", "a b c d e", "a b c d f"), **rest):
    said, predicted, anew = (f"{category}: {text}" for text in words)
    row = {
        "model": model,
        "caller": "wanderer",
        "split": "test",
        "task_id": "test-000",
        "category": category,
        "gave": "",
        "said": said,
        "predicted": predicted,
        "right": right,
        "said_anew": anew,
        "tokens": 10,
        "tokens_right": 9 if right else 5,
        "nats": nats,
    }
    return row | rest


def rule(task_id: str, department: str, truth: str, greedy: str, answer: str, confidence: float, **rest) -> dict:
    """A call and its answers: fields that are asked for, "" for anything else."""
    asked = {"truth": truth, "greedy": greedy, "answer": answer}
    row = {
        "split": "validation",
        "task_id": task_id,
        "company_id": "c0",
        "department": department,
        "variation": "typical",
        "circumstances": 2 if department == "Claims" else 0,
        **{name: f"auth_failed: {fields}" if fields else "success" for name, fields in asked.items()},
        "confidence": confidence,
        "other": "Loans",
        "other_called": 0,
        "other_wanted": 1,
    }
    return row | rest


def episode(task_id: str, department: str, success: int) -> dict:
    where = {"split": "validation", "task_id": task_id, "level": 1, "company_id": "c0"}
    return {**where, "department": department, "success": success}


def tables(seed: int) -> dict[str, list[dict]]:
    """Seed 1 is wrong where seed 0 is right about a refusal, and less sure of its rules."""
    wrong = "a b c d f" if seed else "a b c d e"
    loans = {"other_called": 1, "other_wanted": 0}
    return {
        "replies": [
            reply("world model", "auth_failed", 1 - seed, 10 * math.log(2), ("a b c d e", wrong, "a b c d f")),
            reply("world model", "success", 1, 10 * math.log(8)),
            reply("untrained base", "auth_failed", 0, 10 * math.log(4)),
            reply("untrained base", "success", 0, 10 * math.log(4)),
            reply("world model", "success", 1, 1.0, split="validation"),
        ],
        "rules": [
            rule("v0", "Billing", "email", "email", "email", 1.0),
            rule("v1", "Billing", "email", "email", "email", 1.0),
            rule("v2", "Loans", "last_4_cc, email", "email", "email", 1.0, variation="extra", **loans),
            rule("v3", "Claims", "name", "name, email", "name", 0.5, other="", other_wanted=0),
            rule("t0", "Billing", "name", "", "name" if seed else "", 0.25, split="test", company_id="c1"),
        ],
        "episodes": [
            episode(f"v{i}", name, won)
            for i, (name, won) in enumerate(
                [("Billing", 1), ("Billing", 1 - seed), ("Loans", 0), ("Claims", 1), ("", 1)]
            )
        ],
        "situations": [
            {
                "situation": name,
                "company": "Mosaic Bank",
                "department": "Loans",
                "gave": "",
                "expected": "success",
                "predicted": predicted,
                "right": int(predicted == "success"),
                "said": "s",
                "words": "w",
            }
            for name, predicted in (("first", "success"), ("second", "success" if seed else "unreadable"))
        ],
    }


@pytest.fixture
def runs(tmp_path) -> dict[str, list[Path]]:
    folders = []
    for seed, splits in CURVES.items():
        folder = tmp_path / f"run-{seed}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"seed": seed}))
        rows = []
        for split, points in splits.items():
            for i, (known, success) in enumerate(points):
                where = {"tasks": 40 * i, "split": split}
                rows.append({"kind": "rules", **where, "rule_accuracy": known})
                rows += [{"kind": "success", **where, "level": level, "success": success, "n": 9} for level in (0, 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name, rows in tables(seed).items():
            pd.DataFrame(rows).to_csv(folder / f"probing_{name}.csv", index=False)
        folders.append(folder)
    return {"arm": folders}


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


def test_what_was_not_probed_is_named(runs):
    (runs["arm"][1] / "probing_rules.csv").unlink()
    with pytest.raises(RunError, match=r"probing_rules\.csv is missing; run notebook 06"):
        probing_figures.rule_table(runs)


# --- replies ---------------------------------------------------------------------------------


def test_reply_scores_by_hand(runs):
    table = probing_figures.reply_score_table(runs).query("companies == @NEW").set_index(["model", "category"])
    both = table.loc[("world model", "all")]
    assert both["perplexity"] == pytest.approx(4)  # the geometric mean of 2 and 8, as many tokens each
    assert both["token accuracy"] == pytest.approx((18 / 20 + 14 / 20) / 2)
    assert both[["calls", "runs"]].tolist() == [2, 2]
    refusals = table.loc[("world model", "missing")]
    assert refusals[["low", "semantic accuracy", "high"]].tolist() == [0, 0.5, 1]
    reworded = 100 * (8 / 9 * 7 / 8 * 6 / 7 * 5 / 6) ** (1 / 4)  # "auth _ failed : a b c d f" for "... e"
    assert refusals["BLEU, truth reworded"] == pytest.approx(reworded)
    assert refusals["BLEU"] == pytest.approx((100 + reworded) / 2)
    assert table.loc[("untrained base", "all"), "perplexity"] == pytest.approx(4)
    assert ("untrained base", "routing_violation") not in table.index


def test_replies_of_one_status_are_told_apart(runs):
    """Without a field there may be another, and a value may be wrong: neither is a demand for something missing."""
    other = {"alternative": "No email? Then I just need your name.", "mismatch": "I see a mismatch in your email."}
    for folder, said in zip(runs["arm"], other.values(), strict=True):
        table = pd.read_csv(folder / "probing_replies.csv")
        table.loc[table["category"] == "auth_failed", "said"] = f"auth_failed: Loans, hi! {said}"
        form = table.head(1).assign(category="ok", said='{"email": ": x"}')  # no CSR says this
        pd.concat([table, form]).to_csv(folder / "probing_replies.csv", index=False)
    assert set(probing_figures.reply_scores(runs)["category"]) == {"all", "success", "ok", *other}


def test_examples_are_the_first_two_of_each_category_at_new_companies(runs):
    path = runs["arm"][0] / "probing_replies.csv"
    pd.concat([pd.read_csv(path)] * 3).to_csv(path, index=False)
    table = probing_figures.example_table(runs)
    expected = [[f"{status}: a b c d e", 1] for status in ("auth_failed", "success")] * 2
    assert table[["predicted", "right"]].to_numpy().tolist() == expected
    assert list(table["gave"]) == [""] * 4


# --- rules and confidence --------------------------------------------------------------------


def test_exact_answers_and_whose_answers_they_are(runs):
    table = probing_figures.rule_table(runs).set_index(["companies", "rules"])
    known = table.loc[(KNOWN, "all")]
    assert known[["calls", "exact answers"]].tolist() == [4, pytest.approx(2 / 4)]
    other = ["another department: its own answer", "another department: that of the first"]
    assert known[other].tolist() == pytest.approx([1 / 3, 2 / 3])  # Claims has nobody beside it
    assert table.loc[(KNOWN, "extra"), ["exact answers", *other]].tolist() == [0, 1, 0]
    assert table.loc[(NEW, "all"), "exact answers"] == 0
    combined = {count: table.loc[(KNOWN, f"typical, circumstances: {count}"), "exact answers"] for count in (0, 2)}
    assert combined == {0: 1, 2: 0}


def test_calibration_by_hand(runs):
    """Known: three answers at confidence 1, two of them right, and one right at 0.5. New: seed 1 is right at 0.25."""
    table = probing_figures.calibration_table(runs).set_index("companies")
    expected = 3 / 4 * (1 - 2 / 3) + 1 / 4 * 0.5
    assert table.loc[KNOWN, "calibration error"] == pytest.approx(expected)
    assert table.loc[KNOWN, ["confidence", "accuracy", "calls"]].tolist() == pytest.approx([3.5 / 4, 3 / 4, 4])
    assert table.loc[NEW, ["low", "calibration error", "high"]].tolist() == [0.25, 0.5, 0.75]
    assert table.loc[NEW, "by chance"] == pytest.approx(2 * 0.25 * 0.75, abs=0.06)  # one answer at 0.25
    assert table.loc[KNOWN, "right is surer"] == (0.5 + 0.5 + 0) / 3  # the wrong one is at 1, the right ones 1, 1, 0.5
    assert math.isnan(table.loc[NEW, "right is surer"])  # one answer has nothing beside it


def in_two_worlds(runs) -> dict:
    for world, folder in enumerate(runs["arm"]):
        (folder / "config.json").write_text(json.dumps({"seed": 0, "env": {"world_seed": world}}))
    return runs


def with_wrong_answers(folder: Path, confidence: float) -> None:
    """The known ones from this confidence on."""
    rules = pd.read_csv(folder / "probing_rules.csv", keep_default_na=False)
    rules.loc[(rules["split"] == "validation") & (rules["confidence"] >= confidence), "answer"] = "nobody"
    rules.to_csv(folder / "probing_rules.csv", index=False)


def test_confidence_is_read_by_what_it_was_worth_in_the_other_world(runs):
    """Of the known answers 2 of 3 are right at confidence 1 and 1 of 1 at 0.5, in the second world none and 1 of 1:
    never more where there is more confidence, so 3 of 4 at either, and 1 of 4. Another arm has nothing right."""
    with_wrong_answers(in_two_worlds(runs)["arm"][1], 1)
    shutil.copytree(runs["arm"][0].parent, beside := runs["arm"][0].parent.with_name("beside"))
    others = sorted(beside.glob("run-*"))
    for folder in others:
        with_wrong_answers(folder, 0)
    table = probing_figures.calibration_table(runs | {"another": others})
    table = table[table["arm"] == "arm"].set_index("companies")
    table = table[table["confidence is read"] == "by other worlds"]
    assert table["runs"].tolist() == [2, 2]
    assert table["confidence"].tolist() == [0.5, 0.5]  # 0.25 in the first world, 0.75 in the second
    assert table.loc[KNOWN, ["low", "calibration error", "high"]].tolist() == [0.5, 0.5, 0.5]  # 0.25 for 0.75, and back
    assert table.loc[NEW, ["low", "calibration error", "high"]].tolist() == [0.25, 0.25, 0.25]
    by_hand = sum(math.comb(4, n) * 0.75**n * 0.25 ** (4 - n) * abs(n / 4 - 0.75) for n in range(5))
    assert table.loc[KNOWN, "by chance"] == pytest.approx(by_hand, abs=0.03)  # the same at 0.25 and at 0.75
    assert table.loc[KNOWN, "right is surer"] == 0.5


def test_reliability_pools_the_seeds(runs):
    known, new = probing_figures.reliability_figure(runs).axes
    assert points_of(known) == [(0.5, 1.0), (1.0, pytest.approx(2 / 3))]
    assert points_of(new) == [(0.25, 0.5)]


def points_of(ax) -> list[tuple[float, float]]:
    return [
        tuple(point)
        for collection in ax.collections
        for point in collection.get_offsets().tolist()
        if hasattr(collection, "get_sizes") and len(collection.get_sizes())
    ]


def test_situations_count_the_runs_that_are_right(runs):
    table = probing_figures.situation_table(runs).set_index("situation")
    assert table[["right", "runs"]].to_numpy().tolist() == [[2, 2], [1, 2]]
    assert table.loc["first", "predicted"] == "success"


# --- does the policy follow? -----------------------------------------------------------------


def test_progress_is_what_was_gained_after_an_evaluation(runs):
    known = probing_figures.known_and_done(runs)
    points = probing_figures.progress_points(known).sort_values(["seed", "tasks"])
    assert points["rule_accuracy"].tolist() == [0.0, 0.5, 0.1, 0.6]
    assert points["gain"].tolist() == pytest.approx([0.2, 0.4, 0.4, 0.0])
    assert probing_figures.progress_points(known, ahead=2)["gain"].tolist() == pytest.approx([0.6, 0.4])


def test_progress_table_by_hand(runs):
    """Ranks of knowledge 1 3 2 4; of gains 2, 3.5, 3.5, 1. Relative to the other run at as many tasks: all opposed."""
    table = probing_figures.progress_table(runs).set_index("relation")
    first = table.loc["success gained by the next evaluation"]
    ranks = [(1, 2), (3, 3.5), (2, 3.5), (4, 1)]
    covariance = sum((a - 2.5) * (b - 2.5) for a, b in ranks)
    assert first["Spearman"] == pytest.approx(covariance / math.sqrt(5 * 4.5))
    assert (first["points"], first["runs"], first["verdict"]) == (4, 2, "undecided")
    fixed = table.loc["success gained by the next evaluation, tasks held fixed"]
    # knowledge -.05 -.05 .05 .05; gains -.1 .2 .1 -.2: ranks 1.5 1.5 3.5 3.5 and 2 4 3 1
    assert fixed["Spearman"] == pytest.approx((-1 * -0.5 + -1 * 1.5 + 1 * 0.5 + 1 * -1.5) / math.sqrt(4 * 5))
    assert set(table["arm"]) == {"arm"}


def test_success_itself_by_hand(runs):
    """Knowledge, and success, relative to the other run's after as many tasks."""
    points = probing_figures.progress_points(probing_figures.known_and_done(runs), ahead=0)
    assert points["gain"].tolist() == points["success"].tolist() and len(points) == 6
    table = probing_figures.progress_table(runs).set_index("relation")
    level = table.loc["success at the same evaluation, tasks held fixed"]
    both = points[["rule_accuracy", "gain"]]
    apart = (both - both.groupby(points["tasks"]).transform("mean")).round(9)
    assert level["points"] == 6
    assert level["Spearman"] == pytest.approx(apart["rule_accuracy"].rank().corr(apart["gain"].rank()))


def test_one_run_has_nothing_to_be_held_against(runs):
    table = probing_figures.progress_table({"arm": runs["arm"][:1]})
    assert table["points"].tolist() == [2, 1, 0, 0] and set(table["verdict"]) == {"undecided"}


def test_a_run_that_was_evaluated_once_shows_no_progress(runs):
    for folder in runs["arm"]:
        path = folder / "metrics.jsonl"
        path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if '"tasks": 0' in line))
    with pytest.raises(RunError, match="no run has been evaluated twice"):
        probing_figures.progress_figure(runs)


def test_lag_by_hand(runs):
    """Known: fields at 40 and 40 tasks; success never, within 80. New: fields never; success at 40 and never."""
    table = probing_figures.lag_table(runs).set_index("companies")
    known, new = table.loc[KNOWN], table.loc[NEW]
    assert (known["tasks to half of the fields"], known["tasks to half of the successes"]) == ("40", "> 80")
    assert known["lag"] == "> +40, > +40" and new["lag"] == "< -40, neither"
    assert (new["tasks to half of the fields"], new["tasks to half of the successes"]) == ("> 80", "> 80")
    assert known["ahead"] == pytest.approx((0.3 / 3 + 0.6 / 3) / 2)


def test_lag_figure_fills_what_lies_between_the_medians(runs):
    known, new = probing_figures.lag_figure(runs).axes
    curves = {line.get_label(): list(line.get_ydata()) for line in known.get_lines()}
    assert curves["exact fields named by the world model"] == pytest.approx([0.05, 0.55, 0.8])
    assert curves["success of the policy"] == pytest.approx([0.05, 0.35, 0.55])
    verticals = [line.get_xdata()[0] for line in known.get_lines() if line.get_linestyle() == "--"]
    assert verticals == [40]  # half of the fields; the median run never reaches half of the successes
    filled = [[len(area.get_paths()) for area in ax.collections] for ax in (known, new)]
    assert filled == [[1, 0], [0, 1]]  # the world model ahead, the policy ahead


def test_success_by_what_the_world_model_names(runs):
    """Billing: exact, 2 and 1 of 2 won. Claims: one field more, won. Loans: a field short, lost. One has two goals."""
    table = probing_figures.follow_table(runs)
    assert set(table["companies"]) == {KNOWN}
    by_name = table.set_index("the world model names")
    exact = by_name.loc["exactly what is required"]
    assert exact[["tasks", "low", "success", "high", "runs"]].tolist() == [0.5, 0.5, 0.75, 1.0, 2]
    assert by_name.loc["that and one field more", ["tasks", "success"]].tolist() == [0.25, 1.0]
    assert by_name.loc["anything else", ["tasks", "success"]].tolist() == [0.25, 0.0]


@pytest.mark.parametrize("way", [["routing_violation: Sales", "auth_failed: email"], ["success"], ["success"] * 2])
def test_where_more_has_to_be_known_what_is_named_decides_nothing(runs, way):
    """Somebody sends the caller elsewhere, or nothing is required: such a task is left out."""
    before = probing_figures.follow_table(runs)
    for folder in runs["arm"]:
        for name, rows in (
            ("episodes", [episode("v9", "Loans", 1)]),
            ("rules", [rule("v9", "Loans", "", "email", "email", 1.0) | {"truth": truth} for truth in way]),
        ):
            path = folder / f"probing_{name}.csv"
            pd.concat([pd.read_csv(path), pd.DataFrame(rows)]).to_csv(path, index=False)
    pd.testing.assert_frame_equal(probing_figures.follow_table(runs), before)


@pytest.mark.parametrize(
    "answer", ["auth_failed: name", "auth_failed: name, email, order_number", "success: name, email"]
)
def test_what_never_happens_has_no_success_rate(runs, answer):
    """Right, two fields more, and another answer that names one field more."""
    for folder in runs["arm"]:
        path = folder / "probing_rules.csv"
        path.write_text(path.read_text().replace("auth_failed: name, email", answer))
    table = probing_figures.follow_table(runs).set_index("the world model names")
    row = table.loc["that and one field more"]
    assert (row["tasks"], row["runs"]) == (0, 0) and math.isnan(row["success"])


TABLES = "reply_score_table rule_table calibration_table progress_table lag_table follow_table".split()


def test_runs_of_one_seed_in_two_worlds_are_two(runs):
    """Every table is that of two seeds in one world."""
    of_seeds = {name: getattr(probing_figures, name)(runs) for name in TABLES}
    in_two_worlds(runs)
    for name, table in of_seeds.items():
        assert table["runs"].max() == 2
        again = getattr(probing_figures, name)(runs)
        if "confidence is read" in again:  # of two worlds, each is read by the other, too
            again = again[again["confidence is read"] == "as it is said"].reset_index(drop=True)
        pd.testing.assert_frame_equal(again, table)
    known, _ = probing_figures.lag_figure(runs).axes
    assert len([line for line in known.get_lines() if line.get_alpha()]) == 4  # two runs, two curves of each
    legend = probing_figures.progress_figure(runs).axes[0].get_legend()
    assert [text.get_text() for text in legend.texts] == ["arm, world 0, seed 0", "arm, world 1, seed 0"]


# --- all of them -----------------------------------------------------------------------------


def test_two_arms_are_drawn_apart(runs):
    arms = {"one": runs["arm"][:1], "two": runs["arm"][1:]}
    assert len(probing_figures.lag_figure(arms).axes) == 4
    assert set(probing_figures.calibration_table(arms)["arm"]) == {"one", "two"}
    assert len(probing_figures.reply_figure(arms).axes[1].get_legend().texts) == 4  # two models of two arms
    assert len(probing_figures.progress_figure(arms).axes[0].get_legend().texts) == 2


def test_no_model_library_is_loaded(runs):
    code = f"""if True:
        import sys
        from lfo.lab import probing_figures
        probing_figures.reply_score_table({{"arm": {[str(p) for p in runs["arm"]]}}})
        sys.exit("torch" in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
