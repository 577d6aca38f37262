"""shell_failures: how a task ended, by hand; a run's epochs, from a run folder that is written by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest

from lfo.config import as_dict, load_config
from lfo.lab import shell_failures
from lfo.lab.shell_failures import (
    ALL_ENDS,
    MISCOPIED,
    OTHER,
    SUCCESS,
    UNREADABLE,
    end_of,
    end_table,
    epoch_figure,
    epoch_table,
    held_out_table,
    measure_ends,
)
from lfo.runs import RunFolder
from lfo.types import Call, Malformed, Outcome, Rollout, StopReason, Turn

REQUEST = "Sort barn/list.txt into barn/sorted.txt."


def played(*commands: str, task_id: str = "t", success: bool = False, unreadable: bool = False) -> Rollout:
    turns = [Turn(Call("bash", {"command": command}), "read: loft/other.txt", "ok") for command in commands]
    turns += [Turn(Malformed("", "nothing was called"), "", "error")] if unreadable else []
    return Rollout(task_id, 0, [], [], [], turns, StopReason.AGENT_STOPPED, Outcome(success, float(success)))


@pytest.mark.parametrize(
    ("row", "end"),
    [
        (played("sort barn/lost.txt > x/y", success=True), SUCCESS),  # whatever it named
        (played("sort barn/lost.txt", unreadable=True), UNREADABLE),
        (played("sort barn/lost.txt"), MISCOPIED),
        (played("cat loft/other.txt"), MISCOPIED),  # it was printed afterwards only
        (played("ls", "cat loft/other.txt"), OTHER),
        (played("sort -r barn/list.txt > barn/sorted.txt"), OTHER),
        (played(), OTHER),
    ],
)
def test_how_a_task_ended(row, end):
    assert end_of(row, REQUEST) == end


@pytest.fixture
def run(tmp_path):
    """Two epochs of four trajectories, three of which succeed in the second; evaluated before and after."""
    config = load_config(
        "configs/shell_ppo.yaml", **{"rollout.tasks_per_step": 4, "task_budget": 8, "eval_tasks": 3, "eval_every": 8}
    )
    (tmp_path / "config.json").write_text(json.dumps(as_dict(config)))
    (tmp_path / "metrics.jsonl").write_text("")
    rows = []
    for done, share in ((0, 0.25), (8, 0.5)):
        for split in ("validation", "test"):
            facts = {"kind": "success", "tasks": done, "step": done // 4, "split": split, "n": 4}
            rows += [facts | {"level": k, "success": share, "low": 0.1, "high": 0.9} for k in (0, 1)]
    for epoch, correct in ((1, 0.5), (2, 0.75)):
        counted = {"train_success": correct, "train_correct": correct, "train_incorrect": 1 - correct}
        step = {"kind": "step", "step": epoch, "tasks": 4 * epoch, "groups_sampled": 4, "train_unknown": 0.0}
        rows.append(step | counted | {"train_validation_failure": 0.25, "train_reward": 0.1, "seconds": {"joint": 2.5}})
    RunFolder(tmp_path).log(rows)
    return tmp_path


def test_epochs_are_read_from_the_metrics(run):
    table = epoch_table(run)
    assert table["correct"].tolist() == [2, 3] and table["accuracy"].tolist() == [0.5, 0.75]
    assert set(table["trajectories"]) == {4} and set(table["unreadable"]) == {0.25} and set(table["seconds"]) == {2.5}
    held = held_out_table(run)
    assert held.query("level == 0")["success"].tolist() == [0.25, 0.25, 0.5, 0.5]
    assert held["split"].unique().tolist() == ["known templates (validation)", "new templates (test)"]


def test_a_run_has_a_curve(run):
    left, right = epoch_figure(run).axes
    assert [line.get_xdata().tolist() for line in left.lines] == [[4, 8], [4, 8]]
    assert [line.get_ydata().tolist() for line in right.lines] == [[0.25, 0.5], [0.25, 0.5]]
    plt.close("all")


def test_ends_are_measured_once_and_without_house_tools_in_the_table(run, monkeypatch):
    tasks = [SimpleNamespace(task_id=f"t{i}", skill=skill, instruction=REQUEST) for i, skill in enumerate(SKILLS)]
    rows = {
        "base": [played("sort barn/lost.txt", task_id=f"t{i}") for i in range(3)],
        "policy": [played("ls", task_id="t0"), *(played("ls", task_id=f"t{i}", success=True) for i in (1, 2))],
    }
    env = SimpleNamespace(tasks=lambda split: tasks + tasks)  # of which the config's eval_tasks are played

    def player(coupling: str) -> SimpleNamespace:
        config = RunFolder(run).config
        return SimpleNamespace(env=env, engine=None, codec=None, coupling=coupling, config=config)

    monkeypatch.setattr(shell_failures, "untrained", lambda config: player("base"))
    monkeypatch.setattr(shell_failures, "load_player", lambda folder: player("policy"))
    monkeypatch.setattr(
        shell_failures, "play_tasks", lambda engine, codec, coupling, chosen, *_, **__: rows[coupling][: len(chosen)]
    )
    assert end_table({"ppo": [run]}).empty
    assert len(measure_ends(run)) == 2 * 2 * 3
    monkeypatch.setattr(shell_failures, "play_tasks", None)
    assert json.loads(measure_ends(run)["turns"][0])[0]["action"]["arguments"] == {"command": "sort barn/lost.txt"}
    table = end_table({"ppo": [run], "other": [run.parent / "none"]}).set_index(["tasks", "policy"])
    assert set(table["episodes"]) == {2} and list(table.columns) == ["arm", *ALL_ENDS, "episodes"]
    known = table.loc["known templates (validation)"]
    assert known[MISCOPIED].to_dict() == {"before": 100, "after": 0} and known.loc["after", SUCCESS] == 50
    trees = [
        SimpleNamespace(task_id=f"t{i}", initialization=f"mkdir {root}") for i, root in enumerate(("ferry", "anvil"))
    ]
    monkeypatch.setattr(shell_failures, "tasks_of", lambda env, split: trees)
    by_root = end_table({"ppo": [run]}, "root").set_index(["root", "policy"])
    assert set(by_root["episodes"]) == {1} and by_root[SUCCESS].to_dict() == {
        ("ferry", "before"): 0,
        ("ferry", "after"): 0,
        ("anvil", "before"): 0,
        ("anvil", "after"): 100,
    }


SKILLS = ("sort", "sort", "house")
