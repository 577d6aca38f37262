"""figures: tables worked out by hand from run folders written by hand; what every result file has beside it."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from test_factorial import write_run as write_outcomes

from lfo.config import RunConfig, as_dict, build
from lfo.lab import factorial, figures, reading, report, tables, transfer_tables
from lfo.runs import RunError, RunFolder
from lfo.text import base

# Success on (validation, test) at 0, 40 and 80 tasks; 20 episodes each, half of them on level 1.
CURVES = {
    ("dual", 0): [(0.0, 0.1), (0.5, 0.3), (0.9, 0.7)],
    ("dual", 1): [(0.1, 0.1), (0.4, 0.5), (0.6, 0.8)],
    ("dual", 2): [(0.0, 0.0), (0.7, 0.2), (0.8, 0.4)],
    ("plain", 0): [(0.1, 0.0), (0.1, 0.2), (0.5, 0.2)],
    ("plain", 1): [(0.0, 0.0), (0.2, 0.2), (0.4, 0.3)],
}


def success_rows(tasks: int, split: str, share: float) -> list[dict]:
    """Both levels and all of them; level 1 does twice as well as level 2 (as far as 20 episodes allow)."""
    hits = round(20 * share)
    level_1 = min(10, (2 * hits + 2) // 3)
    counts = {0: (hits, 20), 1: (level_1, 10), 2: (hits - level_1, 10)}
    where = {"kind": "success", "tasks": tasks, "step": tasks // 8, "split": split}
    rows = [
        {**where, "level": level, "success": h / n, "low": 0, "high": 1, "n": n} for level, (h, n) in counts.items()
    ]
    return [*rows, {**where, "kind": "outcomes", "successes": "1" * hits + "0" * (20 - hits)}]


def step_row(step: int, world_model: bool) -> dict:
    row = {"kind": "step", "step": step, "tasks": 8 * step, "groups_kept": 3, "groups_sampled": 6}
    row |= {"sampled_tokens": 100 + step, "trained_tokens": 300 if world_model else 100}
    row |= {"policy/neg_logprob": 0.5, "policy/grad_norm": 1.0 / step, "seconds": {"rollout": 2.0, "joint": 0.5}}
    if world_model:
        row |= {"world_model/accuracy": 0.5, "replay/world_model/accuracy": 0.6, "replay/world_model/grad_norm": 0.3}
        row["seconds"] = {"rollout": 3.0, "joint": 0.5, "replay": 1.5}
    return row


def write_run(folder: Path, seed: int, rows: list[dict], world: int = 0) -> Path:
    folder.mkdir(parents=True)
    config = {"seed": seed, "name": folder.name, "eval_tasks": 20, "env": {"world_seed": world}}
    (folder / "config.json").write_text(json.dumps(config))
    facts = {"commit": "abc1234", "packages": {"torch": "2"}, "machine": "x", "seed": seed, "config": config}
    facts |= {"instructions": "AVX2", "bf16": False}
    (folder / "provenance.json").write_text(json.dumps(facts))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows_of(arm: str, seed: int, splits=("validation", "test")) -> list[dict]:
    """Everything that a run logs, evaluations between the steps."""
    rows = []
    for i, shares in enumerate(CURVES[arm, seed]):
        tasks = 40 * i
        for split, share in zip(("validation", "test"), shares, strict=True):
            if split not in splits:
                continue
            rows += success_rows(tasks, split, share)
            if arm == "dual":
                rows.append({"kind": "rules", "tasks": tasks, "split": split, "rule_accuracy": 0.3 * i, "n": 9})
                rows += [
                    {"kind": "reply", "tasks": tasks, "split": split, "category": "auth_failed", "accuracy": a, "n": n}
                    for a, n in [(0.25 * i, 8 * (seed + 1))]
                ]
        rows.append({"kind": "seconds", "tasks": tasks, "seconds": {"evaluate": 4.0}})
        rows += [step_row(5 * i + j, arm == "dual") for j in range(1, 6)] * (i < 2)
    return rows


@pytest.fixture
def runs(tmp_path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for arm, seed in CURVES:
        found.setdefault(arm, []).append(write_run(tmp_path / f"{arm}-{seed}", seed, rows_of(arm, seed)))
    return found


@pytest.fixture
def worlds(tmp_path) -> dict[str, list[Path]]:
    """Two runs of one arm with the same seed, in two worlds."""
    folders = [write_run(tmp_path / f"world{w}-seed0", 0, rows_of("dual", w), w) for w in (0, 1)]
    return {"dual": folders}


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


# --- reading ---------------------------------------------------------------------------------


def test_rows_know_their_arm_and_seed(runs):
    data = reading.frame(runs, "success")
    assert len(data) == 5 * 3 * 2 * 3
    assert set(zip(data["arm"], data["seed"], strict=True)) == set(CURVES)
    assert len(reading.frame({"plain": runs["plain"]}, "rules")) == 0
    assert "seconds.rollout" in reading.frame(runs, "step")  # nested entries become columns


def test_runs_of_one_seed_in_two_worlds_are_two(worlds):
    """Success on validation at the end: 0.9 and 0.6."""
    data = reading.frame(worlds, "success")
    assert set(zip(data["world"], data["seed"], strict=True)) == {(0, 0), (1, 0)}
    known = reading.success_frame(worlds).query("split == 'validation'")
    assert reading.seeds_of(known) == "2 runs" and reading.count_runs(known) == 2
    assert reading.aligned(known).loc[80].tolist() == [0.9, 0.6]
    assert [a.value for a in reading.arrivals(known, 0.5)] == [40, math.inf]
    final = factorial.final_table(worlds).iloc[0]
    assert final[["level", "success", "runs"]].tolist() == ["all", 0.75, 2]
    assert tables.compute_table(worlds)["runs"].tolist() == [2]
    assert tables.phase_seconds(worlds)["rollout"].tolist() == [30.0]
    assert "dual (2 runs)" in lines_of(figures.learning_curves(worlds).axes[0])


@pytest.mark.parametrize(
    ("world", "splits", "titles"),
    [
        ("phone", ("validation",), ["known companies (validation)"]),
        ("twc", ("test",), ["new things (test)"]),
        ("shell", ("validation", "test"), ["known templates (validation)", "new templates (test)"]),
    ],
)
def test_curves_have_a_panel_for_every_split_with_its_title_in_this_world(tmp_path, world, splits, titles):
    folder = write_run(tmp_path / "dual-0", 0, rows_of("dual", 0, splits))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"env": config["env"] | {"name": world}}))
    runs = {"dual": [folder]}
    for fig in (figures.learning_curves(runs), figures.success_by_level(runs)):
        assert [ax.get_title() for ax in fig.axes] == titles
    known, _ = figures.world_model_curves(runs).axes
    assert {text.get_text() for text in known.get_legend().get_texts()} >= set(titles)


def test_a_table_of_one_world_may_lack_it(runs):
    data = reading.success_frame({"dual": runs["dual"]}).query("split == 'test'").drop(columns="world")
    assert reading.seeds_of(data) == "3 seeds" and len(reading.arrivals(data, 0.5)) == 3


def test_a_run_that_was_not_started_is_named(tmp_path):
    with pytest.raises(RunError, match=rf"{tmp_path}/run is no run folder \(metrics.jsonl is missing\); train there"):
        reading.frame({"a": [tmp_path / "run"]}, "success")


def test_a_line_that_is_just_being_written_is_left_out(runs):
    path = runs["dual"][0] / "metrics.jsonl"
    known = reading.frame(runs, "success")
    path.write_text(path.read_text() + '{"kind": "success", "ta')
    assert reading.frame(runs, "success").equals(known)


@pytest.mark.parametrize(
    "draw",
    [
        figures.learning_curves,
        figures.training_signals,
        tables.threshold_table,
        factorial.final_table,
    ],
)
def test_a_run_that_has_only_begun_is_named(tmp_path, draw):
    folder = write_run(tmp_path / "fresh", 0, [])
    with pytest.raises(RunError, match=r"there are no '(success|step)' rows yet in .*fresh; let the run go on"):
        draw({"a": [folder]})


def test_parts_of_a_table_say_what_they_are(runs):
    data = reading.frame(runs, "success").assign(held_out_phrasing=False)
    named, part = next(reading.parts(data, "arm", "split", "held_out_phrasing", None))
    assert named == {"arm": "dual", "companies": reading.SPLIT_NAMES["validation"], "phrasings": "known"}
    assert len(part) == 3 * 3 * 3 and set(part["arm"]) == {"dual"}


def test_a_measurement_is_read_as_it_was_written(tmp_path):
    run = RunFolder(tmp_path)
    table = reading.write_measurement(run, "x.csv", [{"name": "", "n": 1}, {"name": "b", "n": 2}])
    assert table["name"].tolist() == ["", "b"] and [p.name for p in tmp_path.iterdir()] == ["x.csv"]


def test_what_can_be_measured_is_told_from_what_was(runs):
    done, trained = runs["dual"][:2]
    reading.write_measurement(RunFolder(done), "x.csv", [{"n": 1}])
    (trained / "adapters" / "v1").mkdir(parents=True)
    assert reading.measured(runs, "x.csv") == {"dual": [done]}
    assert reading.measurable(runs, "x.csv") == {"dual": [done, trained]}, "arms without either are left out"


# --- tables ----------------------------------------------------------------------------------


def test_threshold_table_by_hand(runs):
    """dual, validation, 50%: after 40 tasks, never, after 40; 70%: never, never, after 40 - its median is never."""
    table = tables.threshold_table(runs).set_index(["arm", "split"])
    expected = {
        ("dual", "validation"): (3, "40", "> 80", "> 80"),
        ("dual", "test"): (3, "> 80", "> 80", "> 80"),  # 40 and twice never
        ("plain", "validation"): (2, "> 80", "> 80", "> 80"),  # one of them at the last evaluation alone
        ("plain", "test"): (2, "> 80", "> 80", "> 80"),
    }
    assert {key: tuple(row) for key, row in zip(table.index, table.to_numpy().tolist(), strict=True)} == expected
    assert list(table.columns) == ["runs", "tasks to 50%", "tasks to 70%", "tasks to 90%"]


def test_of_runs_that_were_given_less_no_more_is_known(runs):
    """One of plain's two runs ends after 40 tasks: that it takes more than 80 is not known."""
    path = runs["plain"][0] / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows if r.get("tasks", 0) < 80))
    table = tables.threshold_table(runs).set_index(["arm", "split"])
    assert table.loc[("plain", "test"), "tasks to 90%"] == "> 40"


def test_who_falls_back_did_not_arrive(runs):
    """dual's third seed has 50% after 40 tasks and not after 80: now 40, never and never."""
    path = runs["dual"][2] / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    late = [r | ({"success": 0.3} if r["kind"] == "success" and r["tasks"] == 80 else {}) for r in rows]
    path.write_text("".join(json.dumps(r) + "\n" for r in late))
    table = tables.threshold_table(runs).set_index(["arm", "split"])
    assert table.loc[("dual", "validation"), "tasks to 50%"] == "> 80"


KNOWN = reading.SPLIT_NAMES["validation"]


def final_of(runs, arm: str, level: int | str) -> pd.Series:
    """Of known companies."""
    return factorial.final_table(runs).set_index(["arm", "companies", "level"]).loc[arm, KNOWN, level]


def test_final_table_has_medians_of_the_runs(runs):
    """dual at 80 tasks: 18, 12 and 16 of 20, the first ones of the split. Tasks 8, 11, 17 and 19 are of level 1."""
    row = final_of(runs, "dual", "all")
    assert (row["success"], row["runs"]) == (0.8, 3) and 0.4 < row["low"] < 0.8 < row["high"]
    assert final_of(runs, "dual", 1)["success"] == 0.5, "3, 2 and 2 of 4"
    assert final_of(runs, "dual", 2)["success"] == pytest.approx(5 / 7), "6, 3 and 5 of 7"
    first = factorial.final_table(runs).iloc[:4][["arm", "companies", "level"]].to_numpy().tolist()
    assert first == [*(["dual", KNOWN, level] for level in ("all", 1, 2)), ["dual", reading.SPLIT_NAMES["test"], "all"]]


def test_each_run_counts_with_its_own_last_evaluation(runs):
    """Seed 2 was stopped after 40 tasks: 18, 12 and 14 of 20."""
    path = runs["dual"][2] / "metrics.jsonl"
    rows = [r for r in map(json.loads, path.read_text().splitlines()) if r["tasks"] < 80]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert final_of(runs, "dual", "all")["success"] == 0.7


def test_reply_table_weighs_by_replies(runs):
    """At 80 tasks every run has 50%, of 8, 16 and 24 replies."""
    table = tables.reply_table(runs).set_index(["arm", "split", "category"])
    assert table.loc[("dual", "validation", "auth_failed")].to_dict() == {"n": 48, "accuracy": 0.5}
    path = runs["dual"][2] / "metrics.jsonl"
    path.write_text(path.read_text().replace('"accuracy": 0.5, "n": 24', '"accuracy": 1.0, "n": 24'))
    table = tables.reply_table(runs).set_index(["arm", "split", "category"])
    assert table.loc[("dual", "validation", "auth_failed"), "accuracy"] == pytest.approx((4 + 8 + 24) / 48)


def test_trained_stands_beside_untrained(tmp_path):
    """Of ten replies two were right before, of thirty twenty-one at the end; what was learned does not count."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(as_dict(build(RunConfig, {}))))
    replies = [("test", 0, "success", 1.0, 2), ("test", 0, "auth_failed", 0.0, 8), ("test", 8, "success", 0.7, 30)]
    rows = [
        {
            "kind": "reply",
            "tasks": tasks,
            "step": tasks,
            "split": split,
            "category": category,
            "accuracy": share,
            "n": n,
        }
        for split, tasks, category, share, n in [*replies, ("train", 8, "success", 1.0, 9)]
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = tables.untrained_table({"imagine": [folder]}).set_index("reply")
    assert set(table.index) == {"all", "success", "auth_failed"}
    assert table.loc["all", ["untrained", "calls then", "trained", "calls"]].tolist() == pytest.approx(
        [0.2, 10, 0.7, 30]
    )
    assert table.loc["success", ["untrained", "trained"]].tolist() == pytest.approx([1.0, 0.7])
    assert math.isnan(table.loc["auth_failed", "trained"]) and tables.untrained_table({}).empty


def test_how_fast_it_is_known_what_would_be_answered(tmp_path):
    """Of two worlds one run knows half as much as the other; an arm that was evaluated once is left out."""
    runs: dict[str, list[Path]] = {"memory": [], "once": []}
    slow, fast = (0.0, 0.0, 0.25, 0.5), (0.0, 0.0, 0.5, 1.0)
    for arm, world, shares in (("memory", 1, fast), ("memory", 2, slow), ("once", 1, (0.5,))):
        folder = tmp_path / arm / f"world{world}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(as_dict(build(RunConfig, {"env": {"world_seed": world}}))))
        rows = [
            {"kind": "rules", "tasks": tasks, "split": "test", "rule_accuracy": s}
            for tasks, s in zip(tables.KNOWN_AFTER, shares, strict=False)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        runs[arm].append(folder)
    (row,) = tables.known_table(runs).to_dict("records")
    assert (row["arm"], row["companies"], row["runs"]) == ("memory", "new companies (test)", 2)
    assert (row["160 tasks"], row["320 tasks"]) == ("38% [25, 50]", "75% [50, 100]")
    assert tables.known_table({}).empty


def test_how_far_a_second_training_ends_from_the_first(tmp_path):
    """In two worlds, once a quarter better and once as much worse: on the whole as good, and a quarter apart."""
    ends = {
        ("first", 1): "1100",
        ("first", 2): "1100",
        ("first", 3): "1111",
        ("again", 1): "1110",
        ("again", 2): "1000",
    }
    runs: dict[str, list[Path]] = {"first": [], "again": []}
    for (place, world), won in ends.items():
        runs[place].append(write_outcomes(tmp_path / place / f"world{world}", {}, {"test": ["0000", won]}, world))
    again = {"none": runs["again"], "never before": runs["again"]}
    (row,) = tables.again_table({"none": runs["first"], "other": []}, again).to_dict("records")
    assert (row["arm"], row["companies"], row["runs"]) == ("none", "new companies (test)", 2)
    assert (row["first"], row["again"], row["ahead"], row["apart"]) == (0.5, 0.5, 0, 0.25), "nobody has a third world"
    assert row["low"] < 0 < row["high"]
    (row,) = tables.again_table({"none": runs["first"][:1]}, {"none": runs["again"]}).to_dict("records")
    assert (row["again"], row["ahead"], row["runs"]) == (0.75, 0.25, 1), "the second world has no first training here"


def test_what_reasons_are_worth(tmp_path):
    """Compared are runs of the same world and seed: of three worlds with reasons two were run with lists, one of which
    lost. At 0 circumstances there are no reasons."""
    runs: dict[str, list[Path]] = {}
    for replies, circumstances, world, share in (
        ("list", 4, 1, 0.25),
        ("list", 0, 1, 0.5),
        ("reasons", 4, 1, 0.75),
        ("reasons", 4, 2, 1.0),
        ("list", 4, 3, 0.5),
        ("reasons", 4, 3, 0.25),
        ("reasons", 0, 1, 1.0),
    ):
        env = {"circumstances": circumstances, "replies": replies, "world_seed": world}
        folder = tmp_path / f"{replies}{circumstances}" / "imagine" / f"world{world}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(as_dict(build(RunConfig, {"env": env}))))
        rows = [
            {"kind": "rules", "tasks": t, "step": t, "split": "test", "rule_accuracy": share * t / 8} for t in (0, 8)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        runs.setdefault(f"{replies}{circumstances}/imagine", []).append(folder)
    (row,) = tables.reasons_table(runs).to_dict("records")
    assert row["companies"] == "new companies (test)" and (row["arm"], row["circumstances"]) == ("imagine", 4)
    numbers = ("runs", "list", "reasons", "gain", "least", "most", "ahead")
    assert [row[name] for name in numbers] == [2, 0.375, 0.5, 0.125, -0.25, 0.5, 1]
    assert tables.reasons_table({}).empty


def test_what_is_known_stands_beside_what_was_learned(runs):
    """A row per kind of companies, and one of the calls that were learned; a memory answers no calls."""
    for folder in runs["dual"]:
        with (folder / "metrics.jsonl").open("a") as file:
            for split, kind, numbers in (
                ("test", "rules", {"rule_accuracy": 0.6, "rule_accuracy_typical": 0.5, "rule_accuracy_way": 0.75}),
                ("train", "reply", {"category": "auth_failed", "accuracy": 1.0, "n": 2}),
            ):
                file.write(json.dumps({"kind": kind, "tasks": 80, "step": 2, "split": split, **numbers}) + "\n")
    table = tables.knowledge_table(runs).set_index(["arm", "companies"])
    assert table.loc[("dual", "new companies (test)"), ["ways", "usual", "routing"]].tolist() == [0.6, 0.5, 0.75]
    assert table.loc[("dual", "known companies (validation)"), "own calls"] == 0.5
    assert table.loc[("dual", "calls that were learned"), ["auth_failed", "calls"]].tolist() == [1, 3 * 2]
    assert "plain" not in table.index.get_level_values("arm") and tables.knowledge_table({"plain": runs["plain"]}).empty


def test_without_a_call_there_are_no_replies(runs):
    plain = {"plain": runs["plain"]}
    assert tables.reply_table(plain).empty and tables.prediction_table(plain).empty


def test_predictions_are_those_of_the_last_evaluation_of_the_first_run(runs):
    for folder, words in zip(runs["dual"], ("first", "second", "third"), strict=True):
        rows = [
            {"kind": "prediction", "tasks": t, "split": "test", "task_id": "test-000", "said": "a", "right": t > 0}
            | {"predicted": f"{words} {t}"}
            for t in (0, 80)
        ]
        RunFolder(folder).log(rows)
    assert tables.prediction_table(runs)[["predicted", "right"]].to_numpy().tolist() == [["first 80", True]]


def test_sweep_table_puts_the_best_first(runs):
    table = tables.sweep_table([*runs["plain"], *runs["dual"]])
    assert list(table["run"]) == ["dual-2", "dual-0", "dual-1", "plain-0", "plain-1"]
    best = table.iloc[0]
    assert best["mean success"] == pytest.approx(0.5)
    assert (best["best"], best["last"], best["tasks to 70%"]) == (0.8, 0.8, 40)
    assert set(table["split"]) == {"validation"}


def test_sweep_table_takes_the_first_split_that_there_is(tmp_path):
    folders = [write_run(tmp_path / f"dual-{seed}", seed, rows_of("dual", seed, ["test"])) for seed in range(3)]
    table = tables.sweep_table(folders)
    assert table.iloc[0]["run"] == "dual-1" and set(table["split"]) == {"test"}


def test_what_arms_cost_by_hand(runs):
    """Ten steps of 8 tasks: 100 or 300 trained tokens each; 101 to 110 sampled ones."""
    plain, dual = tables.compute_table({"plain": runs["plain"], "dual": runs["dual"]}).to_dict("records")
    assert (plain["runs"], plain["tasks"], dual["runs"]) == (2, 80, 3)
    assert (plain["trained tokens per task"], dual["trained tokens per task"]) == (1000 / 80, 3000 / 80)
    assert plain["sampled tokens per task"] == dual["sampled tokens per task"] == 1055 / 80
    assert (plain["trained tokens, multiple"], dual["trained tokens, multiple"]) == (1.0, 3.0)
    assert dual["sampled tokens, multiple"] == 1.0 and dual["groups kept"] == 3 / 6
    assert dual["rollouts per task"] == 8
    assert (plain["dreamt tasks"], dual["dreamt tasks"]) == (0, 0)
    assert math.isnan(plain["calls heard"]), "these steps do not say"


def test_what_arms_heard_by_hand(runs):
    """The first step hears three different calls, every later one one more."""
    for folder in runs["dual"]:
        path = folder / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for count, row in enumerate(row for row in rows if row["kind"] == "step"):
            row |= {"train_calls_per_task": 1.0 + count % 2, "replies_per_rollout": 1.0, "examples_seen": 3 + count}
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    (dual,) = tables.compute_table({"dual": runs["dual"]}).to_dict("records")
    assert [dual[name] for name in ("calls per rollout", "replies per rollout", "calls heard")] == [1.5, 1.0, 12]


def test_dreamt_tasks_are_reported_beside_the_real_ones(runs):
    """Four groups were dreamt in every other of ten steps; the plain arm's steps do not speak of dreams."""
    for folder in runs["dual"]:
        path = folder / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in (r for r in rows if r["kind"] == "step" and r["step"] % 2):
            row["dreamt_groups"] = 4
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    plain, dual = tables.compute_table({"plain": runs["plain"], "dual": runs["dual"]}).to_dict("records")
    assert (plain["tasks"], plain["dreamt tasks"], dual["tasks"], dual["dreamt tasks"]) == (80, 0, 80, 20)


def test_arms_are_not_compared_with_a_first_one_that_trained_on_nothing(runs):
    path = runs["plain"][0] / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(
        "".join(json.dumps(r | ({"trained_tokens": 0} if r["kind"] == "step" else {})) + "\n" for r in rows)
    )
    plain, dual = tables.compute_table({"plain": [path.parent], "dual": runs["dual"]}).to_dict("records")
    assert math.isnan(plain["trained tokens, multiple"]) and math.isnan(dual["trained tokens, multiple"])


def test_runs_without_token_counts_have_no_costs(runs, tmp_path):
    path = runs["dual"][2] / "metrics.jsonl"
    path.write_text(path.read_text().replace("trained_tokens", "something_else"))
    with pytest.raises(RunError, match="trained before tokens were counted; train it again"):
        tables.compute_table(runs)
    assert "compute.csv" not in {p.name for p in report.report(runs, tmp_path / "report")}


def test_phase_seconds_are_summed_over_a_run(runs):
    """Ten steps and three evaluations."""
    table = tables.phase_seconds(runs).set_index("arm")
    assert table.loc["dual"].to_dict() == {"rollout": 30.0, "joint": 5.0, "replay": 15.0, "evaluate": 12.0}
    assert table.loc["plain", ["rollout", "replay"]].tolist() == [20.0, 0.0]


# --- figures ---------------------------------------------------------------------------------


def lines_of(ax) -> dict[str, tuple[list, list]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.get_lines()}


def test_learning_curves_draw_medians_and_say_of_how_many(runs):
    known, new = figures.learning_curves(runs).axes
    assert lines_of(known)["dual (3 seeds)"] == ([0, 40, 80], [0.0, 0.5, 0.8])
    assert lines_of(known)["plain (2 seeds)"] == ([0, 40, 80], pytest.approx([0.05, 0.15, 0.45]))
    assert lines_of(new)["dual (3 seeds)"] == ([0, 40, 80], [0.1, 0.3, 0.7])
    plain, dual = (band.get_paths()[0].get_extents() for band in known.collections)
    assert {dual.y1, plain.y1} == {0.9, 0.5} and min(dual.y0, plain.y0) == 0.0  # from the least to the most
    assert (known.get_title(), new.get_title()) == tuple(reading.SPLIT_NAMES.values())


def test_a_median_is_drawn_where_all_seeds_were_evaluated(runs):
    path = runs["dual"][2] / "metrics.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if '"tasks": 80' not in line))
    known, _ = figures.learning_curves(runs).axes
    assert lines_of(known)["dual (3 seeds)"] == ([0, 40], [0.0, 0.5])


def test_one_seed_is_said_to_be_one(runs):
    known, _ = figures.learning_curves({"dual": runs["dual"][:1]}).axes
    assert "dual (1 seed)" in lines_of(known)


def test_success_by_level_has_a_bar_per_arm_and_level(runs):
    known, _ = figures.success_by_level(runs).axes
    bars = [
        (container.get_label(), [bar.get_height() for bar in container])
        for container in known.containers
        if hasattr(container, "patches")
    ]
    assert [label for label, _ in bars] == ["dual", "plain"]
    assert bars[0][1] == pytest.approx([final_of(runs, "dual", level)["success"] for level in (1, 2)])
    assert [t.get_text() for t in known.get_xticklabels()] == ["1", "2"]


def test_runs_that_looked_at_validation_only_can_be_drawn(tmp_path):
    """As in tuning: the other panel stays empty."""
    folder = write_run(tmp_path / "tuned", 0, rows_of("dual", 0, splits=("validation",)))
    paths = report.report({"tuned": [folder]}, tmp_path / "out")
    assert all(p.exists() for p in paths)


def test_runs_without_a_single_informative_group_can_be_drawn(tmp_path):
    rows = [{k: v for k, v in row.items() if not k.startswith("policy/")} for row in rows_of("plain", 0)]
    assert report.report({"stuck": [write_run(tmp_path / "stuck", 0, rows)]}, tmp_path / "out")


# --- writing ---------------------------------------------------------------------------------

FILES = {"learning_curves", "success_by_level", "training_signals", "world_model"}
TABLES = {"compute", "final_success", "tasks_to_threshold", "summary", "phase_seconds", "reply_accuracy"}


def test_a_report_is_complete_and_every_file_has_its_provenance(runs, tmp_path):
    out = tmp_path / "report"
    paths = report.report(runs, out)
    assert sorted(p.name for p in paths) == sorted([f"{n}.png" for n in FILES] + [f"{n}.csv" for n in TABLES])
    for path in paths:
        others = {".png": [".svg", ".json"], ".csv": [".md", ".json"]}[path.suffix]
        assert path.stat().st_size > 0 and all(path.with_suffix(s).stat().st_size > 0 for s in others)
        facts = json.loads(path.with_suffix(".json").read_text())
        entries = facts["runs"]
        assert {arm: config["seed"] for arm, config in facts["configs"].items()} == {"dual": 0, "plain": 0}
        assert [(e["arm"], e["run"], e["seed"]) for e in entries] == [(a, f"{a}-{s}", s) for a, s in CURVES]
        assert {e["commit"] for e in entries} == {"abc1234"}
        assert [e["wall_seconds"] for e in entries] == [62, 62, 62, 37, 37]  # e.g. 10 x 5 s + 3 x 4 s
    assert plt.get_fignums() == []


def test_runs_of_earlier_versions_are_reported_without_what_takes_outcomes(runs, tmp_path):
    for folder in runs["plain"]:
        path = folder / "metrics.jsonl"
        path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if '"outcomes"' not in line))
    without = (FILES | TABLES) - {"summary", "final_success", "success_by_level"}
    for arms in (runs, {"plain": runs["plain"]}):  # nor is a part of what is asked for shown
        paths = report.report(arms, tmp_path / "report")
        assert {p.stem for p in paths} == without - ({"world_model", "reply_accuracy"} if len(arms) == 1 else set())


def test_a_baseline_is_reported_without_a_world_model(runs, tmp_path):
    paths = report.report({"plain": runs["plain"]}, tmp_path / "report")
    assert {p.stem for p in paths} == (FILES | TABLES) - {"world_model", "reply_accuracy"}


def test_the_same_runs_give_the_same_bytes(runs, tmp_path):
    for out in ("one", "two"):
        report.report(runs, tmp_path / out)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_tables_are_written_for_people_and_for_programs(runs, tmp_path):
    path = report.save_table(factorial.final_table(runs), tmp_path / "final", runs)
    assert path == tmp_path / "final.csv"
    assert pd.read_csv(path).loc[0, ["arm", "success"]].tolist() == ["dual", 0.8]
    header = path.with_suffix(".md").read_text().splitlines()[0]
    assert [cell.strip() for cell in header.strip("|").split("|")] == list(pd.read_csv(path).columns)


def test_a_report_loads_no_model(runs, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a report must not load a model")

    monkeypatch.setattr(base, "load_base", refuse)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", refuse)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", refuse)
    assert report.report(runs, tmp_path / "report")


def test_results_are_read_without_torch(runs, tmp_path):
    """Neither the import nor a whole report with its tables loads it."""
    code = f"""if True:
        import sys
        from lfo.lab import diagnostics, probing_figures, report, verdicts
        report.report({{"dual": {[str(p) for p in runs["dual"]]}}}, {str(tmp_path / "report")!r})
        sys.exit("torch" in sys.modules)"""
    environment = os.environ | {"MPLBACKEND": "Agg"}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0


# --- transfer --------------------------------------------------------------------------------


@pytest.fixture
def transferred(tmp_path):
    """Two seeds of one arm: two validation tasks, two test tasks (also with held-out phrasings), two episodes each."""
    wins = {0: [(2, 1), (1, 0), (0, 0)], 1: [(2, 2), (2, 0), (1, 1)]}  # per condition: successes of the two tasks
    folders = []
    for seed, counts in wins.items():
        folder, rows = write_run(tmp_path / f"arm-{seed}", seed, []), []
        for (split, held_out), won in zip((("validation", 0), ("test", 0), ("test", 1)), counts, strict=True):
            for task, (variation, count) in enumerate(zip(("typical", "extra"), won, strict=True)):
                rows += [
                    {
                        "split": split,
                        "held_out_phrasing": bool(held_out),
                        "task_id": f"{split}-{task:03d}",
                        "level": 1,
                        "variation": variation,
                        "needed": 2,
                        "episode": k,
                        "called": split == "validation" and not task,
                        "success": int(k < count),
                        "requested": 3,
                        "useful": 1 + (k < count),
                    }
                    for k in range(2)
                ]
        pd.DataFrame(rows).to_csv(folder / "transfer.csv", index=False)
        folders.append(folder)
    return {"arm": folders}


def test_transfer_by_condition_and_by_rules(transferred):
    table = transfer_tables.transfer_table(transferred)
    assert table["success"].tolist() == pytest.approx([(0.75 + 1) / 2, (0.25 + 0.5) / 2, (0 + 0.5) / 2])
    assert table["phrasings"].tolist() == ["known", "known", "held out"] and set(table["runs"]) == {2}
    split = transfer_tables.transfer_table(transferred, "variation").set_index(["companies", "phrasings", "variation"])
    known = reading.SPLIT_NAMES["validation"]
    assert split.loc[(known, "known", "typical"), "success"] == 1.0
    assert split.loc[(known, "known", "extra"), ["low", "success", "high"]].tolist() == [0.5, 0.75, 1.0]
    met = transfer_tables.transfer_table(transferred, "acquaintance")
    assert met["acquaintance"].tolist() == [
        *("typical, called before", "extra, never called"),
        *("typical, never called", "extra, never called") * 2,
    ]
    assert len(figures.transfer_figure(transferred, "variation").axes) == 2


def test_what_new_words_cost(transferred):
    """Seed 0 has 1 success of 4 in known phrasings, none in others, seed 1 has 2 and 2; another arm loses nothing."""
    other = [Path(shutil.copytree(folder, f"{folder}-other")) for folder in transferred["arm"]]
    for path in (folder / "transfer.csv" for folder in other):
        pd.read_csv(path).assign(success=1).to_csv(path, index=False)
    lost, nothing = transfer_tables.phrasing_table(transferred | {"other": other}).to_dict("records")
    assert (lost["arm"], lost["lost"], lost["minus other"], lost["runs"]) == ("arm", 0.125, 0.125, 2)
    assert lost["low"] < 0.125 < lost["high"] and [nothing[name] for name in ("lost", "minus other")] == [0, 0]


def test_what_went_wrong_is_counted_over_failures(transferred):
    """Of known test episodes seed 0 fails in three of four, seed 1 in two, every first one in two ways. Older tables
    say nothing."""
    assert transfer_tables.failure_table(transferred).empty
    for folder in transferred["arm"]:
        path = folder / "transfer.csv"
        table = pd.read_csv(path)
        kinds = [f"missing_auth{' wrong_order' * (row.episode == 0)}" for row in table.itertuples()]
        table["failed"] = [kind * (1 - won) for kind, won in zip(kinds, table["success"], strict=True)]
        table.to_csv(path, index=False)
    rows = transfer_tables.failure_table(transferred).set_index("companies")
    new = rows.loc[reading.SPLIT_NAMES["test"]]
    assert new["failed"].startswith("62%") and new["missing auth"] == "100%" and new["runs"] == 2
    assert new["wrong order"].startswith("42%")  # one of three, and one of two; too many draws have no failure


def test_precision_and_recall_of_the_form(transferred):
    """Validation, four episodes of 3 requested and 2 needed fields: 7 useful ones in seed 0, 8 in seed 1; of seed 0's
    second task, drawn twice, 6."""
    known = reading.SPLIT_NAMES["validation"]
    row = transfer_tables.form_table(transferred).set_index("companies").loc[known]
    assert row[["precision", "precision low", "precision high"]].tolist() == pytest.approx([7.5 / 12, 6 / 12, 8 / 12])
    assert row[["recall", "complete", "requested", "needed", "runs"]].tolist() == [7.5 / 8, 3.5 / 4, 3.0, 2.0, 2]
    # One seed requests nothing, then both.
    for folder, expected in zip(transferred["arm"], (8 / 12, math.nan), strict=True):
        path = folder / "transfer.csv"
        pd.read_csv(path).assign(requested=0, useful=0).to_csv(path, index=False)
        row = transfer_tables.form_table(transferred).set_index("companies").loc[known]
        assert row["precision"] == pytest.approx(expected, nan_ok=True)
    assert row["recall"] == row["complete"] == 0


def test_success_by_what_the_policy_is_told(transferred):
    """Four episodes each: two seeds have 1 and 2 successes when told nothing, 2 and 4 with what they imagine."""
    wins = ({"nothing": 1, "imagined": 2}, {"nothing": 2, "imagined": 4})
    for folder, counts in zip(transferred["arm"], wins, strict=True):
        rows = [
            {"split": "test", "told": told, "task_id": f"test-{k // 2:03d}", "success": int(k < won)}
            for told, won in counts.items()
            for k in range(4)
        ]
        pd.DataFrame(rows).to_csv(folder / "told.csv", index=False)
    nothing, imagined = transfer_tables.told_table(transferred).to_dict("records")
    assert nothing["told"] == "nothing"
    assert [nothing[name] for name in ("success", "minus imagined", "gain low", "gain high")] == [0.375, -0.375, -1, 0]
    assert [imagined[name] for name in ("success", "low", "high", "minus imagined")] == [0.75, 0.0, 1.0, 0.0]
    assert (imagined["runs"], imagined["tasks"], imagined["companies"]) == (2, 2, reading.SPLIT_NAMES["test"])
    (transferred["arm"][0] / "told.csv").unlink()
    with pytest.raises(RunError, match=r"told\.csv is missing; run notebook 05"):
        transfer_tables.told_table(transferred)


def test_success_by_how_many_notes_the_policy_is_told(transferred):
    """Two tasks: told one note at most both are won, told six the second is lost, on which two are read then."""
    rows = [("test-000", 1, 1, 1), ("test-001", 1, 1, 1), ("test-000", 6, 1, 1), ("test-001", 6, 2, 0)]
    told = pd.DataFrame(rows, columns=["task_id", "most", "notes", "success"]).assign(split="test")
    told.to_csv(transferred["arm"][0] / "notes.csv", index=False)
    one, six = transfer_tables.notes_table({"arm": transferred["arm"][:1]}).to_dict("records")
    assert (one["notes at most"], one["notes read"], one["success"], one["runs"]) == (1, 1, 1, 1)
    assert (six["notes at most"], six["notes read"], six["success"], six["low"]) == (6, 1.5, 0.5, 0)


def test_pass_k_falls_with_k(transferred):
    """Validation: seed 0 has 2 and 1 of 2, so pass^2 is 1/2; seed 1 has 2 and 2, so it is 1."""
    table = transfer_tables.pass_k_table(transferred).set_index("companies")
    row = table.loc[reading.SPLIT_NAMES["validation"]]
    assert (row["pass^1"], row["pass^2"]) == pytest.approx(((0.75 + 1) / 2, (0.5 + 1) / 2))
    assert row[["low", "high", "runs"]].tolist() == [0.0, 1.0, 2]  # seed 0's second task alone, or seed 1


def test_what_was_not_measured_is_named(transferred):
    (transferred["arm"][0] / "transfer.csv").unlink()
    with pytest.raises(RunError, match=r"transfer\.csv is missing; run notebook 04"):
        transfer_tables.transfer_table(transferred)
