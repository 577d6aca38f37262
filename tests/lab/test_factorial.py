"""factorial: what an arm is, the summary, tables and figures, from run folders written by hand."""

from __future__ import annotations

import colorsys
import itertools
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from lfo.config import RunConfig, as_dict, build
from lfo.envs import make_environment
from lfo.lab import factorial, figures, hierarchy
from lfo.lab.factorial import FROZEN, NOTHING, PLACEBO, TRAINED, TRUTH, WORLD_MODEL, facts
from lfo.lab.hierarchy import tasks_of
from lfo.lab.reading import SPLIT_NAMES
from lfo.runs import RunFolder

# What the arms differ in, and what becomes of four tasks (validation, test) at 0, 40, 80 and 120 tasks, by world.
ARMS = {
    "baseline": {"world_model": None},
    "imagine": {"world_model": {"coupling": "imagine"}},
    "placebo": {"world_model": {"coupling": "imagine", "shuffle": True}},
    "truth_frozen": {"world_model": {"coupling": "truth"}, "policy": {"learning_rate": 0}},
}
CURVES = {
    ("baseline", 101): ["0000", "0000", "1000", "1000"],
    ("baseline", 102): ["0000", "1000", "1000", "1000"],
    ("imagine", 101): ["0000", "1100", "1110", "1110"],
    ("imagine", 102): ["0000", "0000", "1110", "1110"],
    ("placebo", 101): ["0000", "0000", "0000", "0000"],
    ("placebo", 102): ["0000", "0000", "0000", "0000"],
    ("truth_frozen", 101): ["1100", "1100", "1100"],
    ("truth_frozen", 102): ["1100", "1100", "1100"],
}


def write_run(folder: Path, settings: dict, outcomes: dict[str, list[str]], world: int = 0, seed: int = 0) -> Path:
    """A run that was evaluated every 40 tasks. outcomes: split -> a digit per task at each evaluation."""
    folder.mkdir(parents=True)
    (digits, *_), *_ = outcomes.values()
    config = {"seed": seed, "eval_tasks": len(digits), "env": {"world_seed": world}} | settings
    (folder / "config.json").write_text(json.dumps(as_dict(build(RunConfig, config))))
    rows = []
    for split, evaluations in outcomes.items():
        for i, successes in enumerate(evaluations):
            where = {"tasks": 40 * i, "split": split}
            share = successes.count("1") / len(successes)
            rows.append({"kind": "success", "level": 0, "success": share, "n": len(successes), **where})
            rows.append({"kind": "outcomes", "successes": successes, **where})
    made_on(folder, "AVX2")
    (folder / "metrics.jsonl").write_text("")
    RunFolder(folder).log(sorted(rows, key=lambda row: row["tasks"]))
    return folder


def made_on(folder: Path, instructions: str) -> None:
    provenance = {"machine": "two cores", "instructions": instructions, "bf16": False}
    (folder / "provenance.json").write_text(json.dumps(provenance))


def add_steps(folder: Path, *numbers: dict) -> None:
    """A step before every evaluation but the first, with these numbers in turn."""
    run, rows, again = RunFolder(folder), [], itertools.cycle(numbers)
    for tasks, evaluation in itertools.groupby(run.metrics(), lambda row: row["tasks"]):
        step = {"kind": "step", "tasks": tasks, "groups_kept": 1, "groups_sampled": 4, "seconds": {}}
        rows += [*([step | next(again)] if tasks else []), *evaluation]
    (folder / "metrics.jsonl").write_text("")
    run.log(rows)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, list[Path]]:
    """At new companies nobody ever succeeds but with the truth."""
    out, found = tmp_path_factory.mktemp("runs"), {}
    for (arm, world), curve in CURVES.items():
        new = ["1111"] * len(curve) if arm == "truth_frozen" else ["0000"] * len(curve)
        folder, both = out / arm / f"world{world}-seed0", {"validation": curve, "test": new}
        found.setdefault(arm, []).append(write_run(folder, ARMS[arm], both, world))
    return found


@pytest.fixture(scope="module")
def summary(runs) -> pd.DataFrame:
    return factorial.summary(runs)


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


# --- what an arm is --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (NOTHING, TRAINED)),
        ({"policy": {"learning_rate": 0}}, (NOTHING, FROZEN)),
        ({"world_model": {}}, (WORLD_MODEL, TRAINED)),
        ({"world_model": {"members": 3}}, ("imagine_ensemble", TRAINED)),
        ({"world_model": {"votes": 3}}, ("imagine_voting", TRAINED)),
        ({"world_model": {"unsure_below": 0.5}}, ("imagine_silent", TRAINED)),
        ({"world_model": {"reads": 8}}, ("imagine_reading", TRAINED)),
        ({"world_model": {"coupling": "memory", "recall": "vote", "reads": 8}}, ("vote_similar", TRAINED)),
        ({"world_model": {"shuffle": True}}, (PLACEBO, TRAINED)),
        ({"world_model": {"coupling": "memory", "recall": "nearest"}}, ("nearest", TRAINED)),
        ({"world_model": {"coupling": "truth"}, "policy": {"learning_rate": 0}}, (TRUTH, FROZEN)),
        ({"world_model": {"coupling": "shared"}}, ("shared", TRAINED)),
        ({"world_model": {"coupling": "none"}}, ("none", TRAINED)),
        ({"feedback": {}}, ("feedback", TRAINED)),
        ({"feedback": {}, "world_model": {}}, (f"{WORLD_MODEL}, feedback", TRAINED)),
    ],
)
def test_who_says_the_notes_and_who_learns(settings, expected):
    found = facts(build(RunConfig, settings))
    assert (found["notes"], found["policy"]) == expected
    assert (found["circumstances"], found["replies"]) == (4, "reasons")


def test_the_dials_are_those_of_the_world():
    found = facts(build(RunConfig, {"env": {"circumstances": 2, "replies": "list"}}))
    assert (found["circumstances"], found["replies"]) == (2, "list")


def test_who_is_told_the_truth(runs):
    assert factorial.told_the_truth(runs) == "truth_frozen"
    assert factorial.told_the_truth({"imagine": runs["imagine"]}) == ""


# --- the summary -----------------------------------------------------------------------------


def test_summary_by_hand(summary):
    """imagine, known: areas 0.5417 and 0.375; 70% after 80 tasks, 70% of the truth's half after 40 and 80."""
    assert list(summary.columns) == factorial.COLUMNS
    rows = summary.query("split == 'validation'").set_index(["arm", "world", "metric"])
    assert rows.loc[("imagine", "all", "success"), ["median", "runs"]].tolist() == [0.75, 2]
    assert rows.loc[("imagine", "all", "area"), "median"] == pytest.approx((1.625 / 3 + 0.375) / 2)
    assert rows.loc[("imagine", "all", "tasks_to_70"), "median"] == 80
    assert rows.loc[("imagine", "all", "tasks_to_70_of_truth"), "median"] == 60
    assert np.isinf(rows.loc[("baseline", "all", "tasks_to_70_of_truth"), "median"])
    assert rows.loc[("imagine", 101, "success"), ["median", "runs"]].tolist() == [0.75, 1]
    assert rows.loc[("placebo", "all", "success"), ["median", "low", "high"]].tolist() == [0, 0, 0]
    about = ["notes", "policy", "circumstances", "replies"]
    assert rows.loc[("truth_frozen", "all", "success"), about].tolist() == [TRUTH, FROZEN, 4, "reasons"]
    assert rows.loc[("imagine", "all", "success"), "source"].endswith("/imagine/*/metrics.jsonl")
    interval = rows.loc[("imagine", "all", "success"), ["low", "high"]]
    assert interval["low"] < 0.75 < interval["high"] <= 1


def test_what_the_baseline_ends_with_can_be_reached(summary):
    """A quarter, known: baseline after 80 and 40 tasks, imagine after 40 and 80; new: it reaches nothing."""
    table = factorial.factor_table(summary).set_index(["arm", "companies"])
    known, new = SPLIT_NAMES.values()
    assert list(table.columns) == [
        *("tasks", "tasks low", "tasks high", "times fewer", "low", "high"),
        "seconds, times fewer",
    ]
    assert table.loc[("baseline", known), "tasks"] == table.loc[("imagine", known), "tasks"] == 60
    assert table.loc[("imagine", known), "times fewer"] == 1 and np.isnan(table.loc[("baseline", known), "times fewer"])
    assert table.loc[("placebo", known), ["tasks", "times fewer"]].tolist() == [np.inf, 0]
    assert new not in table.index.get_level_values("companies")
    assert factorial.factor_table(summary.iloc[:0]).empty, "nor where nobody reaches anything"


def test_without_the_truth_nothing_is_relative_to_it(runs):
    table = factorial.summary({"imagine": runs["imagine"]})
    metrics = {name for name in table["metric"] if not name.startswith("success_level_")}
    assert metrics == {"success", "area", "tasks_to_70", "seconds_to_70"}


def test_seconds_to_the_same_success(tmp_path):
    """A step takes ours 3 seconds and theirs 5: after one and two steps 3 and 10 seconds."""
    curves = {"imagine": ["00", "11", "11"], "baseline": ["00", "00", "11", "11"], "placebo": ["00", "00", "00"]}
    runs = {arm: [write_run(tmp_path / arm / "seed0", ARMS[arm], {"validation": curves[arm]})] for arm in curves}
    for arm, folders in runs.items():
        add_steps(folders[0], {"seconds": {"rollout": 2.0, "joint": 1.0 if arm == "imagine" else 3.0}})
    table = factorial.summary(runs).set_index(["arm", "metric"])["median"]
    assert [table[arm, "seconds_to_70"] for arm in curves] == [3, 10, np.inf]
    assert table["imagine", "seconds_ratio_to_70"] == pytest.approx(10 / 3)
    assert table["imagine", "seconds_ratio_to_90_of_baseline"] == pytest.approx(10 / 3), "all of what it ends with is 1"
    assert table["placebo", "seconds_ratio_to_70"] == 0 and ("baseline", "seconds_ratio_to_70") not in table.index
    outcomes = {"validation": ["00", "00", "00"]}
    never = {
        "imagine": runs["imagine"],
        "baseline": [write_run(tmp_path / "never" / "seed0", ARMS["baseline"], outcomes)],
    }
    add_steps(never["baseline"][0], {"seconds": {"rollout": 4.0}})
    found = factorial.summary(never).set_index(["arm", "metric"])
    assert found.loc[("imagine", "seconds_ratio_to_70"), "median"] == pytest.approx(8 / 3)  # at least


def test_seconds_of_another_kind_of_machine_are_held_against_nothing(tmp_path):
    curves = {"baseline": ["00", "11", "11"], "imagine": ["00", "11", "11"], "truth_frozen": ["11", "11"]}
    runs = {arm: [write_run(tmp_path / arm, ARMS[arm], {"test": curve}, world=1)] for arm, curve in curves.items()}
    for arm, (folder,) in runs.items():
        add_steps(folder, {"seconds": {"rollout": 2.0}})
        made_on(folder, "AVX2" if arm == "baseline" else "AVX512")
    table = factorial.summary(runs).set_index(["arm", "metric"])
    assert table.loc[("baseline", "seconds_to_70_of_truth"), "median"] == 2, "the truth says how far, not how fast"
    assert not [metric for arm, metric in table.index if arm == "imagine" and metric.startswith("seconds")]


def test_what_was_heard_in_training(tmp_path):
    """Means over the steps; of a run that logged no replies, calls alone."""
    heard = {"train_calls_per_task": 2.0, "replies_per_rollout": 1.5}
    curves = {"test": ["00", "00", "00"]}
    runs = {arm: [write_run(tmp_path / arm / "seed0", ARMS[arm], curves)] for arm in ("imagine", "baseline")}
    add_steps(runs["imagine"][0], heard, {name: value + 1 for name, value in heard.items()})
    add_steps(runs["baseline"][0], {"train_calls_per_task": 1.0})
    table = factorial.summary(runs).query("split == 'train'").set_index(["arm", "metric"])
    assert table["median"].to_dict() == {
        ("imagine", "train_calls_per_task"): 2.5,
        ("baseline", "train_calls_per_task"): 1.0,
        ("imagine", "replies_per_rollout"): 2.0,
    }
    assert set(table["world"]) == {"all"} and table["runs"].eq(1).all()


def test_runs_without_outcomes_are_no_part_of_it(tmp_path):
    folder = write_run(tmp_path / "old" / "seed0", {}, {"validation": ["01"]})
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"outcomes"', '"something"'))
    assert factorial.summary({"old": [folder]}).empty


def test_the_factorial_in_words(summary):
    table = factorial.factorial_table(summary).set_index("arm")
    assert list(table.columns) == [
        *("notes by", "policy", "runs", "success, known", "success, new", "area, known", "area, new"),
        *("tasks to 70% of the truth, known", "tasks to 70% of the truth, new"),
    ]
    assert table.loc["placebo"].tolist() == [
        *("placebo", "trained", 2, *["0% [0, 0]"] * 4, "never [never, never]", "never [never, never]")
    ]
    assert table.loc["truth_frozen", "success, new"] == "100% [100, 100]"
    assert table.loc["truth_frozen", "tasks to 70% of the truth, new"] == "0 [0, 0]"
    assert table.loc["imagine", "tasks to 70% of the truth, known"].startswith("60 [")
    alone = factorial.factorial_table(summary.query("metric == 'success'")).set_index("arm")
    assert alone.equals(table[[name for name in table if not name.startswith(("area", "tasks"))]])


def test_the_summary_has_success_by_level(runs, summary):
    rows = summary[summary["metric"].str.startswith("success_level_")]
    found = {(r.arm, SPLIT_NAMES[r.split], r.metric): (r.median, r.low, r.high, r.runs) for r in rows.itertuples()}
    levels = factorial.level_table(runs).itertuples()
    assert len(rows) == len(found) and found == {
        (r.arm, r.companies, f"success_level_{r.level}"): (r.success, r.low, r.high, r.runs) for r in levels
    }


def test_success_by_level(tmp_path):
    """Who serves tasks of level 3 and no other."""
    config = build(RunConfig, {})
    levels = {split: [task.level for task in tasks_of(config.env, split)] for split in ("validation", "test")}
    outcomes = {split: ["".join(str(int(level == 3)) for level in found)] for split, found in levels.items()}
    runs = {"three": [write_run(tmp_path / "three" / "seed0", {}, outcomes)]}
    table = factorial.level_table(runs)
    assert table.groupby("level")["success"].max().to_dict() == {1: 0, 2: 0, 3: 1, 4: 0, 5: 0}
    assert len(table) == 10 and table[["low", "high"]].to_numpy().tolist() == [[s, s] for s in table["success"]]
    said = factorial.by_level(runs)
    assert list(said.columns) == ["companies", "arm", "runs", *(f"level {n}" for n in range(1, 6))]
    assert said[["companies", "arm"]].to_numpy().tolist() == [[name, "three"] for name in SPLIT_NAMES.values()]
    assert said["level 3"].tolist() == ["100% [100, 100]"] * 2 and said["level 2"].tolist() == ["0% [0, 0]"] * 2
    part = factorial.overview(table[(table["level"] > 2) | (table["companies"] != SPLIT_NAMES["test"])], "level")
    assert part["level 1"].tolist() == ["0% [0, 0]", ""] and part["runs"].tolist() == [1, 1]
    assert factorial.overview(table.iloc[:0], "level").empty


def test_what_bounds_arms_stands_before_them_where_they_were_run(tmp_path):
    """In their worlds, with their circumstances, and at companies where all of them were evaluated."""
    tuned = {"eval_splits": ["validation"]}
    everywhere = {"validation": ["0000"], "test": ["0000"]}
    runs = {"ours": [write_run(tmp_path / "ours" / f"world{w}", tuned, {"validation": ["1111"]}, w) for w in (0, 1)]}
    told = [write_run(tmp_path / "truth" / f"world{w}", {}, everywhere, w) for w in (0, 1, 2)]
    other = write_run(tmp_path / "truth" / "plain", {"env": {"world_seed": 0, "circumstances": 0}}, everywhere)
    bounded = factorial.with_bounds(runs, {"truth_frozen": [*told, other], "elsewhere": [told[2]]})
    assert bounded == {"truth_frozen": told[:2]} | runs and list(bounded) == ["truth_frozen", "ours"]
    assert factorial.with_bounds(runs, {}) == runs
    said = factorial.by_level(bounded)
    assert said["arm"].tolist() == ["truth_frozen", "ours"] and set(said["companies"]) == {SPLIT_NAMES["validation"]}


def test_success_by_how_unusual_the_rules_are(tmp_path):
    """Who serves companies that do as is usual in their trade; of the second world there is one task, at another."""
    runs: dict[str, list[Path]] = {"usual": []}
    for seed, count in ((0, None), (1, 1)):
        env = build(RunConfig, {"env": {"world_seed": seed}}).env
        world, tasks = make_environment(env).world, tasks_of(env, "test")[:count]
        usual = [int(world.variation(task.company_id) == "typical") for task in tasks]
        outcomes = {"test": ["".join(map(str, usual))]}
        runs["usual"].append(write_run(tmp_path / f"world{seed}", {}, outcomes, seed))
    found = factorial.rules_table(runs).set_index("rules")
    assert set(found["companies"]) == {SPLIT_NAMES["test"]}
    assert found["success"].to_dict() == {"typical": 1, "extra": 0, "different": 0}
    assert found["runs"].to_dict() == {"typical": 1, "extra": 2, "different": 1}


# --- figures ---------------------------------------------------------------------------------


def test_a_bar_for_every_teller_frozen_and_trained(summary):
    """Of placebo, which is no teller of the factorial, nothing is drawn."""
    known, new = factorial.factorial_figure(summary).axes
    assert [tick.get_text() for tick in known.get_xticklabels()] == [NOTHING, WORLD_MODEL, TRUTH]
    bars = {c.get_label(): [bar.get_height() for bar in c] for c in known.containers if hasattr(c, "patches")}
    assert bars["policy frozen"][2] == 0.5 and np.isnan(bars["policy frozen"][:2]).all()
    assert bars["policy trained"][:2] == [0.25, 0.75] and np.isnan(bars["policy trained"][2])
    assert [c[2].get_height() for c in new.containers if c.get_label() == "policy frozen"] == [1.0]


def test_of_two_arms_in_one_cell_the_first_is_drawn(summary):
    silent = summary.query("arm == 'imagine'").assign(arm="imagine_silent", median=0.0)
    known, _ = factorial.factorial_figure(pd.concat([summary, silent])).axes
    (trained,) = (c for c in known.containers if c.get_label() == "policy trained")
    assert trained[1].get_height() == 0.75


def test_areas_are_over_the_tasks_that_every_trained_arm_was_given(tmp_path):
    """Two evaluations of one arm, three of another with half as much area in the first half, and a look in between."""
    runs = {
        arm: [write_run(tmp_path / arm, {"task_budget": 40 * len(curve) - 40, "eval_every": 20}, {"test": curve})]
        for arm, curve in {"short": ["00", "11"], "long": ["00", "10", "11"]}.items()
    }
    frozen = {"task_budget": 8, "policy": {"learning_rate": 0}}
    assert factorial.shared_tasks(runs | {"frozen": [write_run(tmp_path / "frozen", frozen, {"test": ["00"]})]}) == 40
    table = factorial.summary(runs).query("metric == 'area'").set_index("arm")["median"]
    assert table.to_dict() == {"short": 0.5, "long": 0.25}


def test_success_against_circumstances(summary):
    tables = [summary.assign(circumstances=dial, median=1 - dial / 10) for dial in (4, 0)]
    known, new = factorial.phase_figure(pd.concat(tables)).axes
    (line,) = known.get_lines()
    assert [tick.get_text() for tick in known.get_xticklabels()] == ["0\n(2)", "4\n(2)"], "with the runs of each"
    assert (line.get_label(), line.get_xydata().tolist()) == (TRUTH, [[0, 1], [4, 0.6]])
    assert (known.get_title(), new.get_title()) == (
        "known companies (validation), replies: reasons",
        "new companies (test), replies: reasons",
    )
    assert known.yaxis.get_major_formatter()(0.6) == "60%"


def test_who_says_notes_stands_beside_others(summary):
    """So that intervals can be told apart: a little before and after the position of the dial."""
    beside = summary.query("notes == @TRUTH").assign(arm="table_frozen", notes="table")
    known, _ = factorial.phase_figure(pd.concat([summary, beside])).axes
    dial = summary["circumstances"].iloc[0]
    places = {line.get_label(): line.get_xdata().tolist() for line in known.get_lines()}
    assert places == {"table": [pytest.approx(dial - 0.03)], TRUTH: [pytest.approx(dial + 0.03)]}
    (one, other) = (ends.get_segments()[0][:, 0] for ends in known.collections)
    assert one == pytest.approx([dial - 0.03] * 2) and other == pytest.approx([dial + 0.03] * 2)


def test_other_grids_follow_the_headline_and_say_what_they_can(runs, summary, tmp_path):
    """Of who was evaluated at both ends alone nobody knows when it arrived, though an arm that never changes beside it
    had arrived before."""
    once, told = {"task_budget": 40, "eval_every": 40}, {"validation": ["1111", "1111"]}
    ends = {
        "imagine": [write_run(tmp_path / "seed0", once, {"validation": ["0000", "1111"]}, 101)],
        "truth_frozen": [write_run(tmp_path / "seed1", once | ARMS["truth_frozen"], told, 101)],
    }
    table, named = factorial.all_summaries(summary, {"ends": ends, "again": {"imagine": runs["imagine"]}, "none": {}})
    assert set(named) == {"ends/imagine", "ends/truth_frozen", "again/imagine"}
    assert table[: len(summary)].equals(summary)
    source = table[len(summary) :].groupby("source")["metric"].agg(set)
    short = set().union(*(metrics for path, metrics in source.items() if path.startswith(tmp_path.as_posix())))
    (full,) = (metrics for path, metrics in source.items() if not path.startswith(tmp_path.as_posix()))
    assert "success" in short and all(metric.startswith("success") for metric in short)
    assert short < full and "tasks_to_70" in full
    beside = factorial.summary({"imagine": runs["imagine"], "truth_frozen": ends["truth_frozen"]})
    assert set(beside.query("metric == 'tasks_to_70_of_truth'")["arm"]) == {"imagine", "truth_frozen"}


def test_a_row_for_every_position_of_the_dials(summary):
    """Of frozen policies; the truth alone has one here, 50% at known companies and 100% at new ones."""
    tables = [summary.assign(circumstances=dial) for dial in (4, 0)]
    table = factorial.dial_table(pd.concat(tables))
    assert list(table.columns) == ["replies", "circumstances", "companies", "runs", TRUTH]
    assert table["circumstances"].tolist() == [0, 0, 4, 4] and set(table["replies"]) == {"reasons"}
    assert [cell.partition(" ")[0] for cell in table[TRUTH]] == ["50%", "100%"] * 2


def test_who_has_more_runs_than_others_stands_in_the_same_row(summary):
    more = summary.query("arm == 'truth_frozen'").assign(arm="table_frozen", notes="table", runs=3)
    table = factorial.dial_table(pd.concat([summary, more]))
    assert list(table.columns) == ["replies", "circumstances", "companies", "runs", "table", TRUTH]
    assert table["runs"].tolist() == [2, 2] and table[["table", TRUTH]].notna().all().all()


def test_curves_against_what_they_cost(tmp_path):
    """Two steps of 4 and 6 groups of 8; an evaluation before, between and after."""
    folder = write_run(tmp_path / "arm" / "seed0", {}, {"validation": ["00", "10", "11"], "test": ["00", "00", "10"]})
    run = RunFolder(folder)
    steps = [
        {"kind": "step", "tasks": t, "groups_sampled": n, "sampled_tokens": 100, "trained_tokens": 10 * n}
        | {"seconds": {"rollout": 2.0, "joint": 1.0}}
        for t, n in ((40, 4), (80, 6))
    ]
    rows = run.metrics()
    (folder / "metrics.jsonl").write_text("")
    run.log([*rows[:4], steps[0], *rows[4:8], steps[1], *rows[8:]])
    found = {against: factorial.cost_curve(folder, "validation", against) for against in factorial.AGAINST}
    assert {against: cost.tolist() for against, (cost, _) in found.items()} == {
        "tasks": [0, 40, 80],
        "episodes": [0, 32, 80],
        "tokens": [0, 140, 300],
        "seconds": [0, 3, 6],
    }
    assert all(success.tolist() == [0, 0.5, 1] for _, success in found.values())
    known, new = factorial.curve_figure({"arm": [folder]}, "seconds").axes
    assert known.get_lines()[0].get_xydata().tolist() == [[0, 0], [3, 0.5], [6, 1]]
    assert new.get_lines()[0].get_ydata().tolist() == [0, 0, 0.5] and new.get_xlabel().startswith("seconds")
    assert new.get_legend().get_title().get_text().endswith("to the end of the shortest")


def test_arms_of_any_number_can_be_drawn(runs):
    """Of whom there are several alike, those after the first have diamonds."""
    figures.style()
    many = {f"{arm} {k}": folders for k in range(3) for arm, folders in runs.items()}
    known = factorial.curve_figure(many).axes[::2]
    kinds = ("policy frozen", "trained with notes", "trained without notes")
    assert [ax.get_title() for ax in known] == [f"{kind}, {SPLIT_NAMES['validation']}" for kind in kinds]
    lines = [line for ax in known for line in ax.get_lines()]
    assert (
        len(lines) == 12 and len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}) == 12
    )
    assert sorted(line.get_marker() for line in lines) == ["D"] * 8 + ["o"] * 4
    looks = factorial.looks_of({f"{arm} {k}": folders for k in range(5) for arm, folders in runs.items()})
    assert len({tuple(look.items()) for look in looks.values()}) == len(looks) == 20, "other markers where colours end"


def test_what_nobody_can_change_is_a_line_across(tmp_path):
    """Who is frozen and told nothing, or the truth, is evaluated twice, which looks like a run that broke off."""
    frozen = {"policy": {"learning_rate": 0}}
    arms = {"baseline": {}, "nothing_frozen": frozen, "table_frozen": frozen | {"world_model": {"coupling": "memory"}}}
    runs = {arm: [write_run(tmp_path / arm, settings, {"test": ["0", "1"]}, 1)] for arm, settings in arms.items()}
    _, new = factorial.curve_figure(runs).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in new.get_lines()}
    assert lines == {
        "baseline (1)": [[0, 0], [40, 1]],
        "nothing_frozen (1), unchanging": [[0, 1], [1, 1]],
        "table_frozen (1)": [[0, 0], [40, 1]],
    }
    assert new.get_legend().get_title().get_text().endswith("dashed: policy frozen")


@pytest.mark.parametrize("against", ["tasks", "episodes"])
def test_a_band_is_the_interval_of_what_is_resampled(tmp_path, against):
    """Of success; one run of tasks of which half succeed at the end may as well have none or all."""
    folder = write_run(tmp_path / "arm" / "seed0", {}, {"test": ["0000", "0101"]})
    add_steps(folder, {})
    _, new = factorial.curve_figure({"arm": [folder]}, against).axes
    heights = [vertex[1] for band in new.collections for path in band.get_paths() for vertex in path.vertices]
    study = hierarchy.Study(hierarchy.read_curves({"arm": [folder]}, "test"), factorial.BANDS)
    found = study.find(hierarchy.final, hierarchy.middle("arm"), ["arm"])
    assert (min(heights), max(heights)) == (0, found.high) and 0.5 < found.high <= 1


def test_grey_is_the_baseline_alone(runs):
    figures.style()
    looks = factorial.looks_of({f"{arm} {k}": folders for k in range(5) for arm, folders in runs.items()})
    assert not any(len(set(look["color"])) == 1 for look in looks.values() if not isinstance(look["color"], str))


def test_feedback_beside_notes_and_its_control_do_not_look_alike(tmp_path):
    told = {"plain": {}, "feedback": {"feedback": {}}, "control": {"feedback": {"source": "none"}}}
    runs = {
        arm: [write_run(tmp_path / arm / "world1-seed0", {"world_model": {}} | settings, {"test": ["0"]}, 1)]
        for arm, settings in told.items()
    }
    looks = factorial.looks_of(runs)
    assert [looks[arm]["marker"] for arm in told] == ["o", "s", "X"]
    hues, lights, _ = zip(*(colorsys.rgb_to_hls(*to_rgb(looks[arm]["color"])) for arm in told), strict=True)
    assert max(hues) - min(hues) < 1e-6, "whose notes these are"
    assert lights[1] < lights[0] < lights[2], "dark, plain, pale"


def test_what_is_known_is_drawn_against_tasks(tmp_path):
    folder = write_run(tmp_path / "arm" / "seed0", {}, {"test": ["0", "0"]})
    known = [{"kind": "rules", "tasks": 40 * i, "split": "test", "rule_accuracy": 0.5 * i} for i in range(2)]
    RunFolder(folder).log(known)
    ax, new = factorial.curve_figure({"arm": [folder]}, kind="rules").axes
    assert new.get_lines()[0].get_xydata().tolist() == [[0, 0], [40, 0.5]] and not ax.get_lines()
    assert ax.get_ylabel().startswith("known replies")


def test_of_no_arms_the_panels_are_empty():
    assert [ax.get_lines()[:] for ax in factorial.curve_figure({}).axes] == [[], []]


def test_a_colour_is_who_says_the_notes(tmp_path):
    """Frozen policies are dashed; of two arms that are alike the second has a colour of its own."""
    arms = {"table": {}, "table_frozen": {"policy": {"learning_rate": 0}}, "again": {}, "baseline": {}}
    memory = {"world_model": {"coupling": "memory", "recall": "table"}}
    settings = {arm: own | (memory if arm != "baseline" else {}) for arm, own in arms.items()}
    runs = {arm: [write_run(tmp_path / arm, settings[arm], {"test": ["0", "1"]})] for arm in arms}
    _, new = factorial.curve_figure(runs).axes
    assert new.get_legend().get_title().get_text().startswith("median and 95% interval")
    assert {line.get_label() for line in new.get_lines()} == {f"{arm} (1)" for arm in arms}, "how many runs"
    lines = {line.get_label().split()[0]: line for line in new.get_lines()}
    assert lines["table"].get_color() == factorial.COLOURS["table"], "in every figure the same"
    assert [lines[arm].get_linestyle() for arm in arms] == ["-", "--", "-", "-"]
    assert lines["table"].get_color() == lines["table_frozen"].get_color()
    assert len({lines[arm].get_color() for arm in ("table", "again", "baseline")}) == 3
