"""attempts: who failed tries again and reads what was answered; success within k attempts, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pandas as pd
import pytest
from test_factorial import write_run

from lfo.lab import attempts
from lfo.lab.attempts import ATTEMPTS, attempt_rows, attempt_table, measure_attempts, retry_table, second_by_level
from lfo.lab.transfer_tables import KEPT, NOTED, attempt_frame, within
from lfo.runs import RunError

NEEDED = {"a": 1, "b": 3, "c": 9}  # attempts until a task succeeds


@pytest.fixture
def played(monkeypatch):
    """Episodes of three actions, two of them calls; what was played, and how many earlier attempts at each task were
    known then."""
    return play_as(monkeypatch, {"calls_per_task": 2.0})


def play_as(monkeypatch, metrics: dict) -> list[dict]:
    seen = []

    def play(engine, codec, coupling, tasks, rollout, episodes):
        before = {task.task_id: len(coupling.earlier.get(task.task_id, ())) for task in tasks}
        seen.append(before)
        facts = {"outcome": SimpleNamespace(metrics=metrics), "turns": [None] * 3}
        return [SimpleNamespace(success=before[t.task_id] + 1 >= NEEDED[t.task_id], **facts) for t in tasks]

    monkeypatch.setattr(attempts, "play_tasks", play)
    return seen


def player(*names: str) -> SimpleNamespace:
    tasks = [SimpleNamespace(task_id=name, level=1) for name in names]
    config = SimpleNamespace(rollout=None, feedback=None, eval_splits=("test",), eval_tasks=2)
    env = SimpleNamespace(tasks=lambda split: tasks)
    return SimpleNamespace(engine=None, codec=None, coupling=None, config=config, env=env)


def test_who_failed_tries_again(played):
    subject = player("a", "b", "c")
    rows = attempt_rows(subject, subject.env.tasks("test"), most=4)
    assert played == [{"a": 0, "b": 0, "c": 0}, {"b": 1, "c": 1}, {"b": 2, "c": 2}, {"c": 3}]
    assert [(r["task_id"], r["attempt"], r["success"], r["calls"]) for r in rows[:4]] == [
        *(("a", 1, 1, 2), ("b", 1, 0, 2), ("c", 1, 0, 2), ("b", 2, 0, 2))
    ]
    assert len(rows) == 3 + 2 + 2 + 1


def test_where_the_environment_knows_no_calls_actions_are_counted(monkeypatch):
    play_as(monkeypatch, {"rounds": 3.0})
    subject = player("a")
    assert [row["calls"] for row in attempt_rows(subject, subject.env.tasks("test"), most=2)] == [3]


def test_nobody_tries_again_who_succeeded(played):
    subject = player("a")
    assert len(attempt_rows(subject, subject.env.tasks("test"), most=4)) == 1 and len(played) == 1


def test_attempts_are_measured_once(played, tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", {}, {"test": ["00"]})
    monkeypatch.setattr(attempts, "load_player", lambda folder: player("a", "c"))
    table = measure_attempts(folder, most=2)
    assert table[["split", "task_id", "attempt"]].to_numpy().tolist() == [
        *(["test", "a", 1], ["test", "c", 1], ["test", "c", 2])  # as many tasks as are evaluated
    ]
    monkeypatch.setattr(attempts, "load_player", None)
    assert measure_attempts(folder, most=2).equals(table) and (folder / ATTEMPTS).exists()
    assert measure_attempts(folder, most=3).equals(table), "a clone has no adapters to try again with"
    (folder / "adapters" / "v00001").mkdir(parents=True)
    monkeypatch.setattr(attempts, "load_player", lambda folder: player("a", "c"))
    assert measure_attempts(folder, most=3)["attempt"].max() == 3, "who failed twice has another one"


def test_whoever_was_trained_with_feedback_is_told_by_what_it_stands_around(monkeypatch):
    """Its own coupling would cut what it is told to what fits in training."""
    seen = []

    def play(engine, codec, coupling, tasks, rollout, episodes):
        seen.append((coupling.first, coupling.notes))
        return [SimpleNamespace(success=True, turns=[], outcome=SimpleNamespace(metrics={})) for _ in tasks]

    monkeypatch.setattr(attempts, "play_tasks", play)
    subject = player("a")
    subject.coupling = SimpleNamespace(inner="inside")
    for subject.config.feedback in (None, object()):
        attempt_rows(subject, subject.env.tasks("test"), most=1)
    assert seen == [(subject.coupling, False), ("inside", True)]


def test_notes_may_be_kept_and_are_measured_by_themselves(monkeypatch, tmp_path):
    kept = []

    def play(engine, codec, coupling, tasks, rollout, episodes):
        kept.append(coupling.notes)
        return [SimpleNamespace(success=True, turns=[], outcome=SimpleNamespace(metrics={})) for _ in tasks]

    monkeypatch.setattr(attempts, "play_tasks", play)
    monkeypatch.setattr(attempts, "load_player", lambda folder: player("a"))
    folder = write_run(tmp_path / "run", {}, {"test": ["00"]})
    for notes in (False, True, True):
        measure_attempts(folder, most=2, notes=notes)
    assert kept == [False, True] and (folder / NOTED).exists() and (folder / ATTEMPTS).exists()
    guided = write_run(tmp_path / "guided", {"feedback": {}}, {"test": ["00"]})
    with pytest.raises(RunError, match="leave `notes` out"):
        measure_attempts(guided, notes=True)


# --- the table -------------------------------------------------------------------------------


def write_attempts(folder, *tries: tuple[str, int, int, int], file: str = ATTEMPTS) -> None:
    """tries: task, attempt, success, calls."""
    names = ("task_id", "attempt", "success", "calls")
    rows = [{"split": "test", "level": 2} | dict(zip(names, row, strict=True)) for row in tries]
    pd.DataFrame(rows).to_csv(folder / file, index=False)


def test_success_within_k_attempts_by_hand(tmp_path):
    """One run serves one of two tasks at once and the other at the second try; another only one, at the second."""
    folders = [write_run(tmp_path / f"seed{s}", {}, {"test": ["00"]}, seed=s) for s in range(2)]
    first, second = "test-000", "test-001"
    write_attempts(folders[0], (first, 1, 1, 1), (second, 1, 0, 2), (second, 2, 1, 1))
    write_attempts(folders[1], (first, 1, 0, 3), (second, 1, 0, 1), (first, 2, 1, 1), (second, 2, 0, 3))
    table = attempt_table({"ours": folders}, most=2)
    assert table["attempts"].tolist() == [1, 2] and set(table["runs"]) == {2}
    assert table["companies"].unique().tolist() == ["new companies (test)"]
    assert table["success"].tolist() == [(0.5 + 0) / 2, (1 + 0.5) / 2]
    once, again = table["calls per success"]
    assert math.isinf(once) and again == (4 / 2 + 8 / 1) / 2  # no success at all: half of two runs have no price
    assert (table["low"] <= table["success"]).all() and (table["success"] <= table["high"]).all()
    levels = attempt_table({"ours": folders}, most=2, by="level").query("attempts == 2").set_index("level")
    assert levels["success"].to_dict() == {2: (1 + 0.5) / 2}, "both tasks are of level 2"
    (said,) = second_by_level({"ours": folders}).to_dict("records")
    assert said["arm"] == "ours" and said["level 2"].startswith("75%") and "level 1" not in said
    write_attempts(folders[1], (first, 1, 1, 1), (second, 1, 1, 1), file=NOTED)
    assert not attempt_frame({"ours": folders[:1]})["arm"].str.endswith(KEPT).any(), "the first run was not measured so"
    table = attempt_table({"ours": folders}, most=2).set_index(["arm", "attempts"])
    assert (table.loc[(f"ours{KEPT}", 2), "success"], table.loc[(f"ours{KEPT}", 2), "runs"]) == (1, 1)
    assert table.loc[("ours", 2), "success"] == (1 + 0.5) / 2, "an arm of its own"
    assert {curve.arm for curve in within({"ours": folders}, "test", 2)} == {"ours", f"ours{KEPT}"}


def test_how_much_more_than_one_who_learns_nothing_by_hand(tmp_path):
    """Of two tasks it serves one within two attempts, and the other at the third; who learns serves both."""
    first, second = "test-000", "test-001"
    runs = {arm: [write_run(tmp_path / arm, {"name": arm}, {"test": ["00"]})] for arm in ("nothing", "ours", "worse")}
    write_attempts(*runs["nothing"], (first, 1, 1, 1), (second, 1, 0, 1), (second, 2, 0, 1), (second, 3, 1, 1))
    write_attempts(*runs["ours"], (first, 1, 1, 1), (second, 1, 0, 1), (second, 2, 1, 1))
    write_attempts(*runs["worse"], *((task, attempt, 0, 1) for task in (first, second) for attempt in (1, 2)))
    table = retry_table(runs, "nothing").set_index("arm")
    assert table["more"].to_dict() == {"ours": 0.5, "worse": -0.5} and set(table["runs"]) == {1}
    assert table.loc["ours", "low"] == 0 <= table.loc["ours", "high"] == 1, "where the same task is drawn twice"
    assert set(table["companies"]) == {"new companies (test)"}


def test_what_was_not_measured_is_named(tmp_path):
    folder = write_run(tmp_path / "run", {}, {"test": ["00"]})
    with pytest.raises(RunError, match=r"attempts\.csv is missing; run notebook 04"):
        attempt_table({"ours": [folder]})
