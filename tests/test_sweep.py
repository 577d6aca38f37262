"""sweep: grids of configs, and many runs side by side."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest

from lfo.cli import main
from lfo.config import as_dict
from lfo.sweep import SweepError, _tasks_done, read_grid, seeded, train_many
from lfo.train import published_adapters, train

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def base_config(make_config, tmp_path):
    settings = {"levels": [1], "task_budget": 1, "eval_splits": ["validation"], "world_model.predict": "nothing"}
    config = make_config(name="tiny", **settings)
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(as_dict(config)))
    return config, path


def test_a_grid_is_every_combination_for_every_seed(base_config, tmp_path):
    _, path = base_config
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        f"config: {path}\nseeds: [3, 4]\nfixed: {{task_budget: 2}}\n"
        "grid: {policy.clip_low: [0.1, 0.3], rollout.group_size: [2, 4]}\n"
    )
    runs = read_grid(grid, tmp_path / "out")
    assert [folder.name for folder in runs][:3] == [
        "tiny,clip_low=0.1,group_size=2,seed=3",
        "tiny,clip_low=0.1,group_size=2,seed=4",
        "tiny,clip_low=0.1,group_size=4,seed=3",
    ]
    chosen = {(c.policy.clip_low, c.rollout.group_size, c.seed) for c in runs.values()}
    assert chosen == {(low, size, seed) for low in (0.1, 0.3) for size in (2, 4) for seed in (3, 4)}
    assert {c.task_budget for c in runs.values()} == {2} and {f.parent for f in runs} == {tmp_path / "out"}


def test_a_grid_may_be_a_single_run(base_config, tmp_path):
    config, path = base_config
    (tmp_path / "grid.yaml").write_text(f"config: {path}\n")
    assert read_grid(tmp_path / "grid.yaml", "out") == {Path("out/tiny,run,seed=0"): config}


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("tuning_*.yaml")), ids=lambda p: p.name)
def test_shipped_grids_load(path, monkeypatch):
    monkeypatch.chdir(ROOT)  # a grid names its config from there
    runs = read_grid(path, "out")
    assert len(runs) > 1 and all(c.eval_splits == ("validation",) for c in runs.values())  # never tune on test


def test_seeds_of_one_config(base_config):
    config, _ = base_config
    runs = seeded(config, [0, 7], "out")
    assert runs == {Path("out/tiny-seed0"): config, Path("out/tiny-seed7"): dataclasses.replace(config, seed=7)}


def test_a_failed_run_is_named_and_the_others_are_finished(base_config, tmp_path):
    """Two processes: one is trained to its end, the other has no base; its log says so."""
    config, _ = base_config
    broken = dataclasses.replace(config, model=dataclasses.replace(config.model, base="nowhere"))
    with pytest.raises(SweepError) as error:
        train_many({tmp_path / "broken": broken, tmp_path / "good": config}, workers=2, progress=False)
    log = tmp_path / "broken" / "log.txt"
    assert str(error.value).startswith(f"1 of 2 runs failed; see {log}: lfo train: no base model in 'nowhere'")
    assert set(published_adapters(tmp_path / "good")) == {"policy"}
    rows = [json.loads(line) for line in (tmp_path / "good" / "metrics.jsonl").read_text().splitlines()]
    assert [row["tasks"] for row in rows if row["kind"] == "step"] == [1]


class Process:
    """A process that has run already, or one that never ends."""

    def __init__(self, returncode: int | None = 0):
        self.returncode, self.waited = returncode, False

    def poll(self):
        return self.returncode

    def wait(self):
        self.waited = True


@pytest.fixture
def in_process(monkeypatch):
    """Runs are trained here, without processes of their own; the folders, in the order in which they were started."""
    started = []

    def start(folder, config, environment):
        started.append((folder, environment["OMP_NUM_THREADS"]))
        train(config, folder, progress=False)
        return Process()

    monkeypatch.setattr("lfo.sweep._start", start)
    monkeypatch.setattr("lfo.sweep.POLL_SECONDS", 0.0)
    return started


def test_the_command_trains_a_grid_and_ranks_it(base_config, tmp_path, in_process, capsys):
    _, path = base_config
    (tmp_path / "grid.yaml").write_text(f"config: {path}\ngrid: {{policy.clip_low: [0.1, 0.3]}}\n")
    out = tmp_path / "out"
    assert main(["sweep", "--grid", str(tmp_path / "grid.yaml"), "--out", str(out), "--workers", "1"]) == 0
    names = ["tiny,clip_low=0.1,seed=0", "tiny,clip_low=0.3,seed=0"]
    assert [folder.name for folder, _ in in_process] == names
    shown = capsys.readouterr()
    assert shown.out.endswith(f"wrote {out / 'summary.csv'}\n") and all(name in shown.out for name in names)
    assert "2/2" in shown.err  # the bar counts sampled tasks
    assert sorted(pd.read_csv(out / "summary.csv")["run"]) == names


def test_cores_are_shared_out(base_config, tmp_path, in_process, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    runs = seeded(base_config[0], [0, 1], tmp_path)
    assert train_many(runs, progress=False) == list(runs)
    assert [threads for _, threads in in_process] == ["2", "2"]


def test_ctrl_c_waits_for_every_checkpoint(base_config, tmp_path, monkeypatch):
    processes = [Process(None), Process(None)]
    waiting = iter(processes)
    monkeypatch.setattr("lfo.sweep._start", lambda *_: next(waiting))

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_many(seeded(base_config[0], [0, 1], tmp_path), workers=2, progress=False)
    assert all(p.waited for p in processes)


def test_progress_is_read_from_whole_lines(tmp_path):
    assert _tasks_done(tmp_path) == 0
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "tasks": 8}\n{"kind": "step", "ta')
    assert _tasks_done(tmp_path) == 8
    (tmp_path / "metrics.jsonl").write_text('{"ki')
    assert _tasks_done(tmp_path) == 0
