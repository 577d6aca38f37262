"""cluster: sweeps on real Ray, on an instance of their own and on two nodes of which one is killed.

On cores that are busy with something else a node of Ray may have to be started several times, see TRIES.

docs/scale.md has the command; passed over where Ray is not installed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lfo.cli import main
from lfo.config import ConfigError, RunConfig, as_dict
from lfo.lab.cluster import SLOW, Ray
from lfo.lab.sweep import seeded, train_many
from lfo.runs import RunFolder

ROOT = Path(__file__).resolve().parents[2]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed here")
QUIET = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
PATIENT = {"RAY_agent_register_timeout_ms": "600000", "RAY_worker_register_timeout_seconds": "600"}
TRIES = 5  # of a node to start: Ray ends one whose agents take longer than 15 seconds, and has no setting for it


@pytest.fixture(autouse=True)
def settings_of_ray(monkeypatch):
    for name, value in (QUIET | PATIENT).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def config(make_config) -> RunConfig:
    """Forty steps of one task, a checkpoint after each."""
    settings = {"env.levels": [1], "task_budget": 40, "eval_every": 40, "eval_splits": ["validation"]}
    return make_config(name="tiny", world_model=None, **{"rollout.tasks_per_step": 1, **settings})


@pytest.fixture
def sweep(config, tmp_path):
    """sweep(address, out, *options): `lfo sweep` on Ray over three seeds, in a process of its own."""
    (tmp_path / "tiny.yaml").write_text(json.dumps(as_dict(config)))
    (tmp_path / "grid.yaml").write_text(f"config: {tmp_path / 'tiny.yaml'}\nseeds: [0, 1, 2]\n")
    started = []

    def start(address: str, out: Path, *options: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "lfo.cli", "sweep", "--grid", str(tmp_path / "grid.yaml"), "--out", str(out)]
        with (tmp_path / "sweep.txt").open("w") as log:
            process = subprocess.Popen([*command, "--ray", address, *options], cwd=ROOT, stdout=log, stderr=log)
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        process.wait()


@pytest.fixture
def own(sweep, tmp_path):
    """own(out, *options): such a sweep on an instance of its own, once that has started."""

    def start(out: Path, *options: str) -> subprocess.Popen:
        for _ in range(TRIES):
            process = sweep("local", out, *options)
            while process.poll() is None and not (folders(out)[0] / "requested.json").exists():
                time.sleep(0.02)
            if SLOW not in (tmp_path / "sweep.txt").read_text():
                return process
        raise AssertionError(SLOW)

    return start


def add_node(cluster):
    """With room for one run."""
    for _ in range(TRIES):
        try:
            return cluster.add_node(num_cpus=1, include_dashboard=False)
        except Exception as error:
            assert SLOW in str(error)
    raise AssertionError(SLOW)


def folders(out: Path) -> list[Path]:
    return [out / f"tiny,run,seed={seed}" for seed in range(3)]


def in_the_middle(out: Path, process: subprocess.Popen, count: int) -> list[Path]:
    """The runs that are being trained, once there are that many that have a checkpoint."""
    while True:
        begun = [folder for folder in folders(out) if RunFolder(folder).checkpoints]
        if len(begun) >= count:
            return begun
        assert process.poll() is None
        time.sleep(0.02)


def measured(folder: Path) -> list[dict]:
    """Rows of metrics without what depends on the clock."""
    rows = RunFolder(folder).metrics()
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


@needs_ray
def test_every_run_ends_as_without_ray_though_a_node_is_killed(config, sweep, tmp_path):
    """Two nodes with room for one run each, three runs; the second node is killed while it trains."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        _, node = add_node(cluster), add_node(cluster)
        process = sweep(cluster.address, tmp_path / "ray")
        begun = in_the_middle(tmp_path / "ray", process, count=2)
        starts = {folder: (folder / "provenance.json").stat().st_mtime_ns for folder in begun}
        cluster.remove_node(node, allow_graceful=False)
        assert process.wait() == 0, (tmp_path / "sweep.txt").read_text()
    finally:
        cluster.shutdown()
    again = [folder for folder, when in starts.items() if (folder / "provenance.json").stat().st_mtime_ns != when]
    assert len(again) == 1, "the run of the killed node was started again, the other one was not"
    plain = train_many(seeded(config, [0, 1, 2], tmp_path / "plain"), progress=False)
    for one, other in zip(folders(tmp_path / "ray"), plain, strict=True):
        assert RunFolder(one).finished(RunFolder(other).config)
        assert measured(one) == measured(other)
    assert (tmp_path / "ray" / "summary.csv").exists() and "120/120" in (tmp_path / "sweep.txt").read_text()


@needs_ray
def test_ctrl_c_saves_a_checkpoint_and_a_failure_is_told(config, own, tmp_path):
    """On an instance of one's own, without a cluster. Checkpoints are rare here, so that the one there is was saved."""
    rare = dataclasses.replace(config, checkpoint_every=1000)
    (tmp_path / "tiny.yaml").write_text(json.dumps(as_dict(rare)))
    process, first = own(tmp_path / "out", "--workers", "1"), folders(tmp_path / "out")[0]
    while RunFolder(first).newest("step") == {}:
        assert process.poll() is None, (tmp_path / "sweep.txt").read_text()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert "interrupted: saved" in (first / "log.txt").read_text()
    assert 0 < RunFolder(first).tasks_done() < 40
    assert not any(RunFolder(folder).checkpoints for folder in folders(tmp_path / "out")[1:])
    broken = dataclasses.replace(rare, model=dataclasses.replace(rare.model, base="nowhere"))
    (tmp_path / "tiny.yaml").write_text(json.dumps(as_dict(broken)))
    assert own(tmp_path / "broken").wait() == 1
    told, logs = (tmp_path / "sweep.txt").read_text(), [folder / "log.txt" for folder in folders(tmp_path / "broken")]
    said = "lfo sweep: 3 of 3 runs failed; see {}: lfo train: no base model in 'nowhere'"
    assert any(said.format(log) in told for log in logs), "of whichever failed first"


@needs_ray
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--ray", "127.0.0.1:1"], "no Ray cluster at '127.0.0.1:1'"),
        (["--ray", "auto", "--workers", "2"], "leave workers out"),
        (["--ray", "--gpus", "1000"], "has no 1 cores and 1000 GPUs for a run"),
    ],
)
def test_what_ray_has_not_is_said(sweep, options, told, tmp_path, capsys):
    grid = ["--grid", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "out")]
    for _ in range(TRIES):
        assert main(["sweep", *grid, *options]) == 1
        if SLOW not in (said := capsys.readouterr().err):
            break
    assert told in said
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler, "Ray would end without checkpoints"


def test_without_ray_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[cpu,ray\]'"):
        Ray()
