"""guided: what notebook 08 shows of runs with feedback, of some of them, and of none."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from test_factorial import add_steps, made_on, write_run

from lfo.config import COUPLINGS, WorldModelConfig
from lfo.lab import tables
from lfo.lab.factorial import factorial_table, level_table, summary
from lfo.lab.guided import (
    NOTED,
    OPEN,
    QUESTIONS,
    feedback_table,
    guided_runs,
    question_table,
    training_figure,
    unaided_figure,
    unaided_levels,
    unaided_table,
)
from lfo.lab.hierarchy import tasks_of
from lfo.lab.reading import SPLIT_NAMES
from lfo.lab.statistics import REFUTED, SUPPORTED, UNDECIDED
from lfo.lab.sweep import by_arm, read_grid
from lfo.lab.verdicts import COLUMNS, Claim, read_claims, verdict_table
from lfo.runs import RunFolder

ROOT = Path(__file__).resolve().parents[2]
STEP = {"sampled_tokens": 100, "trained_tokens": 50, "first_try_success": 0.25, "train_calls_per_task": 1.0}
STEP |= {"replies_per_rollout": 1.0}
TOLD = {"feedback_success": 0.5, "recovery": 1.0, "success_at_1": 0.25, "success_at_10": 0.5}
TOLD |= {"feedback_tokens_per_rollout": 12.0}
CLAIMS = [Claim("who wins: x", "feedback", "baseline", "area", "lead", 0.0, split, question=1) for split in SPLIT_NAMES]


@pytest.fixture
def runs(tmp_path) -> dict[str, list[Path]]:
    """Two arms in two worlds; of the arm with feedback every other step got some."""
    found: dict[str, list[Path]] = {}
    arms = {"baseline": (None, "0001"), "feedback": ({"teacher": "average"}, "0111")}
    for (arm, (feedback, end)), world in itertools.product(arms.items(), (101, 102)):
        settings = {"name": arm, "world_model": None, "feedback": feedback}
        folder = write_run(
            tmp_path / arm / str(world), settings, {split: ["0000", "0001", end] for split in SPLIT_NAMES}, world
        )
        add_steps(folder, STEP | (TOLD | {"failed_missing_auth": 1.0} if feedback else {}), STEP)
        found.setdefault(arm, []).append(folder)
    return found


def test_a_row_per_arm_with_feedback(runs):
    guided = guided_runs(runs)
    assert list(guided) == ["feedback"]
    (row,) = feedback_table(guided).to_dict("records")
    assert (row["first try"], row["with feedback"], row["place 1"], row["place 10"]) == (0.25, 0.5, 0.25, 0.5)
    assert (row["failed missing auth"], row["runs"]) == (0.5, 2), "a kind that no failure of a step was of counts 0"
    assert np.isnan(row["at first"]) and np.isnan(row["at last"]), "two steps have no quarters, the last got none"
    fig = training_figure(runs)  # of those with feedback alone
    assert [len(ax.get_lines()) for ax in fig.axes] == [1, 1]
    plt.close(fig)


# --- the questions ---------------------------------------------------------------------------


def test_without_a_run_nothing_is_answered():
    table = question_table(CLAIMS, verdict_table({}, CLAIMS))
    assert len(table) == len(QUESTIONS) == 5
    assert table["answer"].tolist()[0] == table["answer"].tolist()[3] == OPEN
    assert guided_runs({}) == {}


def test_with_some_arms_the_others_stay_open(runs):
    claims = [*CLAIMS, Claim("hard: y", "feedback", "table", "area", "lead", 0.0, "test", question=5)]
    verdicts = verdict_table(runs, claims)
    table = question_table(claims, verdicts).set_index(["question"])
    assert len(verdicts) == 2 and table["answer"].iloc[4] == OPEN and table["claims"].iloc[4] == "1 not yet run"
    assert table["answer"].iloc[0] in (SUPPORTED, UNDECIDED) and table["answer"].iloc[3] in (UNDECIDED, REFUTED)
    for part in ({}, {"baseline": runs["baseline"]}, runs):  # no arm is told the truth
        assert set(factorial_table(summary(part))["arm"] if part else []) == set(part)
        assert set(level_table(part)["arm"] if part else []) == set(part)


@pytest.mark.parametrize(
    ("verdicts", "answer"),
    [
        ((SUPPORTED, SUPPORTED), SUPPORTED),
        ((SUPPORTED, REFUTED), REFUTED),
        ((SUPPORTED, UNDECIDED), UNDECIDED),
        ((SUPPORTED, None), UNDECIDED),
        ((None, REFUTED), REFUTED),
        ((None, None), OPEN),
    ],
)
def test_an_answer_is_what_its_claims_have_in_common(verdicts, answer):
    judged = [(c, v) for c, v in zip(CLAIMS, verdicts, strict=True) if v]
    rows = [{"claim": c.text, "split": c.split, "verdict": v} for c, v in judged]
    table = question_table(CLAIMS, pd.DataFrame(rows, columns=COLUMNS))
    assert table["answer"].iloc[0] == answer
    assert table["answer"].iloc[3] == (verdicts[1] or OPEN), "those on new companies count there as well"


def test_every_question_has_claims_about_arms_that_exist(monkeypatch):
    monkeypatch.chdir(ROOT)  # grids name their configs from there
    tables = ("feedback", "feedback_sources", "feedback_levels")
    claims = {name: read_claims("configs/claims.yaml", name) for name in tables}
    assert {c.question for c in claims["feedback"]} == {0, 1, 2, 4, 5}
    assert {(c.question, c.split) for c in claims["feedback_sources"]} == {(3, "validation")}
    kinds = read_grid("configs/feedback_levels.yaml", "out")
    assert {c.question for c in claims["feedback_levels"]} == {4} and all(
        c.of == "transfer" for c in claims["feedback_levels"]
    )
    assert {(c.arm, c.other) for c in claims["feedback_levels"]} == {tuple(sorted(by_arm(kinds), reverse=True))}
    trained = {level for config in kinds.values() for level in config.env.levels}
    assert not trained & {level for c in claims["feedback_levels"] for level in c.levels}
    arms = by_arm(read_grid("configs/tuning_sources.yaml", "out"))
    named = {arm for c in claims["feedback_sources"] for arm in c.arms}
    assert {len(arms[arm]) for arm in named} == {5}, "with fewer runs nothing is decided"
    assert not set(arms) & set(by_arm(read_grid("configs/tuning_feedback.yaml", "out"))), "notebook 08 shows both"


def test_what_was_done_at_the_last_evaluation(runs):
    for folder, share in zip(runs["feedback"], (0.5, 1.0), strict=True):
        rows = [
            {"kind": "behaviour", "tasks": n, "step": 1, "split": "test", "departments_in_order": s}
            for n, s in ((0, 0.0), (80, share))
        ]
        RunFolder(folder).log(rows)
    table = tables.behaviour_table({"feedback": runs["feedback"]})
    assert table.to_dict("records") == [{"arm": "feedback", "split": "test", "departments_in_order": 0.75}]


def test_who_had_nothing_to_read_is_no_first_try(runs):
    """Logged is .25, with later rollouts of groups in which nobody failed; only the first of the first places succeeds
    as often."""
    for folder in runs["feedback"]:
        start = RunFolder(folder).config.feedback.start
        places = {f"success_at_{k}": 0.25 if k == 1 else 0.0 for k in range(1, start)} | {f"success_at_{start}": 0.75}
        step = {"kind": "step", "tasks": 10, "step": 1, "feedback_success": 0.5, "first_try_success": 0.25}
        (folder / "metrics.jsonl").write_text(json.dumps(step | places) + "\n")
    (row,) = feedback_table({"feedback": runs["feedback"]}).to_dict("records")
    assert (row["first try"], row["later places"]) == (pytest.approx(0.25 / (start - 1)), 0.75)


@pytest.fixture
def without_notes(runs, tmp_path) -> dict[str, list[Path]]:
    """Beside the two arms one that reads notes: three quarters with them, a quarter without in the second world; in the
    first it was not evaluated without."""
    imagine = []
    for world in (101, 102):
        settings = {"name": "imagine", "world_model": {"coupling": "imagine"}}
        noted = {split: ["0000", "0001", "0111"] for split in SPLIT_NAMES}
        imagine.append(write_run(tmp_path / "imagine" / str(world), settings, noted, world))
    for split, (tasks, alone) in itertools.product(
        SPLIT_NAMES, ((0, "0000"), (40, "0000"), (80, "0001"), (120, "0001"))
    ):
        where = {"tasks": tasks, "split": split}
        rows = [{"kind": "unaided_outcomes", "successes": alone, **where}]
        rows.append({"kind": "unaided", "level": 0, "success": alone.count("1") / 4, "n": 4, **where})
        RunFolder(imagine[1]).log(rows)
    frozen = write_run(tmp_path / "frozen", {"policy": {"learning_rate": 0}, "world_model": None}, noted, 101)
    return runs | {"imagine": imagine, "frozen": [frozen]}


def test_what_a_policy_can_do_without_its_notes(without_notes):
    """Who reads none can do what was measured; a frozen policy has learned nothing."""
    table = unaided_table(without_notes)
    assert len(table) == 3 * len(SPLIT_NAMES) and "frozen" not in set(table["arm"])
    found = table[table["companies"] == SPLIT_NAMES["test"]].set_index("arm")
    assert found["without notes"].to_dict() == {"baseline": 0.25, "feedback": 0.75, "imagine": 0.25}
    assert found["runs"].to_dict() == {"baseline": 2, "feedback": 2, "imagine": 1}
    assert found.loc["imagine", "with notes"] == 0.75 and found["with notes"].isna().sum() == 2
    tasks = found["tasks to 90% of the baseline"].to_dict()
    assert tasks == {"baseline": "40", "feedback": "40", "imagine": "80"}, "with no interval: draws are 0, too"
    assert found["times fewer"].dropna().to_dict() == {"feedback": 1.0, "imagine": 0.5}, "twice the tasks"
    assert unaided_table({"frozen": without_notes["frozen"]}).empty


def test_what_a_policy_can_do_without_its_notes_at_each_level(without_notes):
    """One of the four tasks is done without notes: at its level, as often as there are tasks of this level."""
    levels = [task.level for task in tasks_of(RunFolder(without_notes["imagine"][1]).config.env, "test")[:4]]
    table = unaided_levels(without_notes).set_index(["companies", "arm"]).loc[SPLIT_NAMES["test"]]
    found = {level: int(table.loc["imagine", f"level {level}"].partition("%")[0]) for level in levels}
    assert found == {n: round(100 * (n == levels[3]) / levels.count(n)) for n in levels} and len(found) > 1
    assert [*table.index] == ["baseline", "feedback", "imagine"] and table.loc["imagine", "runs"] == 1
    assert unaided_levels({"frozen": without_notes["frozen"]}).empty


def test_curves_without_notes(without_notes):
    for ax in unaided_figure(without_notes).axes:
        ends = {line.get_label().split()[0]: line.get_ydata()[-1] for line in ax.get_lines()}
        assert ends == {"baseline": 0.25, "feedback": 0.75, "imagine": 0.25}


def test_what_nobody_measured_is_not_drawn(without_notes):
    """A memory that has heard nothing says nothing: its policy is first evaluated without notes after 40 tasks."""
    path = without_notes["imagine"][1] / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [row for row in rows if row["tasks"] or not row["kind"].startswith("unaided")]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    for ax in unaided_figure(without_notes).axes:
        begin = {line.get_label().split()[0]: line.get_xdata()[0] for line in ax.get_lines()}
        assert begin == {"baseline": 0, "feedback": 0, "imagine": 40}


def test_who_says_no_notes_distils_none():
    """`NOTED` are the couplings whose notes a policy may be weaned from."""
    for coupling in COUPLINGS:
        if coupling in NOTED:
            assert WorldModelConfig(coupling=coupling, context_distillation=0.1).coupling == coupling
        else:
            with pytest.raises(ValueError, match="about notes"):
                WorldModelConfig(coupling=coupling, context_distillation=0.1)


def test_what_reads_feedback_may_unlearn_it(runs):
    """Eight steps of ten tasks, each with less success than the one before it: 1 to 8 eighths."""
    for folder in runs["feedback"]:
        steps = [
            {"kind": "step", "tasks": 10 * k, "step": k, "feedback_success": 1 - k / 8, "first_try_success": 0.0}
            | {"recovery": 1.0, "feedback_tokens_per_rollout": 1.0}
            for k in range(1, 9)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    (row,) = feedback_table({"feedback": runs["feedback"]}).to_dict("records")
    assert (row["at first"], row["at last"]) == ((7 + 6) / 16, (1 + 0) / 16)


def take(folder: Path, seconds: float) -> None:
    """As long for each step of a run that has none yet."""
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"seconds": {}', f'"seconds": {{"rollout": {seconds}, "joint": 1.0}}'))


def test_seconds_per_task_beside_those_of_the_first_arm(runs):
    for folder in runs["baseline"]:
        take(folder, 1.0)
    for folder in runs["feedback"]:
        take(folder, 3.0)
    plain, guided = tables.compute_table(runs).to_dict("records")
    assert (plain["seconds, multiple"], guided["seconds, multiple"]) == (1.0, 2.0)
    assert (plain["compared"], guided["compared"]) == (2, 2)


def test_seconds_are_compared_on_one_kind_of_machine_only(runs):
    (one, other), (same, elsewhere) = runs["baseline"], runs["feedback"]
    for folder, seconds in ((one, 1.0), (other, 1.0), (same, 5.0), (elsewhere, 99.0)):
        take(folder, seconds)
    made_on(elsewhere, "AVX512")
    _, guided = tables.pace_table(runs, "baseline").to_dict("records")
    assert (guided["seconds, multiple"], guided["compared"]) == (pytest.approx(3.0), 1)
    (same / "provenance.json").write_text("{}")
    (one / "provenance.json").write_text("{}")
    _, guided = tables.pace_table(runs, "baseline").to_dict("records")
    assert np.isnan(guided["seconds, multiple"]) and guided["compared"] == 0, "nobody knows where these were made"
