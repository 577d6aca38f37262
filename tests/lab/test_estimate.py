"""estimate: hours worked out by hand from seconds that short runs are made to report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from lfo.cli import main
from lfo.config import FeedbackConfig, as_dict, load_config
from lfo.couplings.dream import AWAKE
from lfo.lab.estimate import estimate, kind, measure, shortened

ROOT = Path(__file__).resolve().parents[2]
STEPS = [
    {"rollout": 90.0, "joint": 90.0, "replay": 90.0},
    {"rollout": 4.0, "joint": 2.0, "replay": 6.0},
    {"rollout": 6.0, "joint": 2.0, "replay": 10.0},
]
# Per task, first step left out, 2 tasks a step: rollout 2.5, joint 1, replay 4; an evaluation takes 10.


@pytest.fixture
def timed(monkeypatch):
    """Nothing is trained: every short run reports STEPS; the runs that were asked for."""
    asked = {}

    def train(runs, workers):
        asked.update(runs)
        for folder, config in runs.items():
            folder.mkdir(parents=True)
            n = config.rollout.tasks_per_step
            rows = [{"kind": "seconds", "tasks": 0, "seconds": {"evaluate": 99.0}}]
            rows += [{"kind": "step", "tasks": n * (i + 1), "seconds": s} for i, s in enumerate(STEPS)]
            rows.append({"kind": "seconds", "tasks": 3 * n, "seconds": {"evaluate": 10.0}})
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr("lfo.lab.estimate.train_many", train)
    return asked


@pytest.fixture
def config(make_config):
    return make_config(
        **{"world_model.coupling": "imagine", "world_model.updates": 20, "task_budget": 80, "eval_every": 40}
    )


def varied(config, **settings):
    return dataclasses.replace(config, world_model=dataclasses.replace(config.world_model, **settings))


def test_seconds_by_hand(config, timed):
    cost = measure([config], workers=1)["imagine"]
    assert cost.seconds(config) == 80 * 7.5 + 3 * 10  # evaluations at 0, 40 and 80 tasks
    assert cost.seconds(config, done=50) == 30 * 7.5 + 10
    assert cost.seconds(varied(config, updates=5)) == 80 * 4.5 + 30
    assert cost.seconds(varied(config, lam=0.0)) == 80 * 3.5 + 30
    epochs = dataclasses.replace(config, policy=dataclasses.replace(config.policy, epochs=3))
    assert cost.seconds(epochs) == 80 * 9.5 + 30


def test_what_feedback_corrected_is_replayed_as_well(config, timed):
    """Two updates a step were timed, of the policy alone; or beside 20 of the world model."""
    alone = dataclasses.replace(config, world_model=None, feedback=FeedbackConfig(start=2, updates=2))
    cost = measure([alone], workers=1)["baseline, feedback"]
    assert cost.seconds(alone) == 80 * 7.5 + 30
    more = dataclasses.replace(alone, feedback=FeedbackConfig(start=2, updates=4))
    assert cost.seconds(more) == 80 * 11.5 + 30
    both = dataclasses.replace(config, feedback=FeedbackConfig(start=2, updates=20))
    assert measure([both], workers=1)["imagine, feedback"].seconds(varied(both, updates=0)) == 80 * 5.5 + 30


def test_worlds_and_objectives_are_kinds_of_their_own():
    ppo, shell = load_config(ROOT / "configs" / "ppo.yaml"), load_config(ROOT / "configs" / "shell_ppo.yaml")
    told = load_config(ROOT / "configs" / "shell.yaml")
    voting = [varied(told, **votes) for votes in ({"members": 3, "votes": 2}, {"votes": 9})]
    assert [kind(c) for c in voting] == ["imagine, 3 x 2, shell", "imagine, 1 x 9, shell"], "replies cost as well"
    assert kind(varied(told, reads=8)) == "imagine, 8 read, shell", "and so does what is read"
    assert [kind(c) for c in (ppo, shell, told)] == ["baseline, ppo", "baseline, ppo, shell", "imagine, shell"]


def test_one_run_of_each_kind_is_timed_and_the_dearest(config, timed):
    """Side by side as many as there will be: copies differ in their seed."""
    cheap, alone = varied(config, updates=2), dataclasses.replace(config, world_model=None)
    costs = measure([config, cheap, alone], workers=4)
    assert sorted(costs) == ["baseline", "imagine"] and costs["imagine"].config == config
    assert sorted((kind(c), c.seed, c.task_budget) for c in timed.values()) == [
        ("baseline", 0, 6),
        ("baseline", 1, 6),
        ("imagine", 0, 6),
        ("imagine", 1, 6),
    ]
    assert {c.world_model.updates for c in timed.values() if c.world_model} == {20}


def test_a_short_run_does_all_that_the_long_one_does(config):
    short = shortened(varied(config, coupling="dream", schedule="alternating"))
    assert (short.task_budget, short.eval_every, short.rollout.max_refills) == (6, 6, 0)
    assert short.world_model.schedule == "joint" and AWAKE * short.task_budget < 2  # it dreams from its first step on
    assert short.world_model.updates == config.world_model.updates


def begun(folder: Path, config, tasks: int, adapters: bool, checkpoint: bool) -> Path:
    for name in ["adapters/v00001"] * adapters + ["checkpoints"] * checkpoint:
        (folder / name).mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    if checkpoint:
        (folder / "checkpoints" / "step-000005.pt").write_text("")
    (folder / "config.json").write_text(json.dumps(as_dict(config)))
    row = {"kind": "seconds", "tasks": tasks, "seconds": {"evaluate": 360.0}}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_what_is_done_is_taken_off(config, timed, tmp_path):
    """A finished run, one stopped after 50 tasks, one of a clone (metrics alone: it starts again), one not begun."""
    runs = {
        begun(tmp_path / "finished", config, 80, adapters=True, checkpoint=True): config,
        begun(tmp_path / "stopped", config, 50, adapters=True, checkpoint=True): config,
        begun(tmp_path / "cloned", config, 80, adapters=False, checkpoint=False): config,
        tmp_path / "new": varied(config, coupling="shared"),
    }
    table = estimate(runs, workers=2).set_index("kind")
    assert table.loc["imagine"].tolist() == pytest.approx([3, 1, 110, (630 + 235) / 3600, 0.3])
    assert table.loc["shared"].tolist() == pytest.approx([1, 0, 80, 630 / 3600, 0])
    assert table.loc["all, 2 at a time"].tolist() == pytest.approx([4, 1, 190, (630 + 235 + 630) / 2 / 3600, 0.15])


def test_no_run_is_split(config, timed, tmp_path):
    """Two runs on two workers take as long as the longer one."""
    runs = {tmp_path / "a": config, tmp_path / "b": dataclasses.replace(config, task_budget=8)}
    assert estimate(runs, workers=2)["hours"].iloc[-1] == pytest.approx(630 / 3600)


def test_the_command_knows_when_all_is_done(config, timed, tmp_path, capsys):
    (tmp_path / "one.json").write_text(json.dumps(as_dict(config)))
    (tmp_path / "grid.yaml").write_text(f"config: {tmp_path / 'one.json'}\narms: {{a: {{}}}}\n")
    begun(tmp_path / "out" / "a" / "seed0", dataclasses.replace(config, name="a"), 80, adapters=True, checkpoint=True)
    entry, out = f"{tmp_path / 'grid.yaml'}={tmp_path / 'out'}", tmp_path / "estimate"
    assert main(["estimate", entry, "--workers", "3", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        "all,",
        "1",
        "at",
        "a",
        "time",
        "1",
        "1",
        "0",
        "0.00",
        "0.10",
    ]
    assert not timed
    assert out.with_suffix(".csv").read_text().splitlines()[-1].startswith('"all, 1 at a time",1,1,0,0.0')
    facts = json.loads(out.with_suffix(".json").read_text())
    assert facts["grids"] == [entry] and {"commit", "machine", "wall_seconds"} <= set(facts)
    assert main(["estimate", "grid.yaml"]) == 1
    assert "takes GRID=FOLDER" in capsys.readouterr().err
