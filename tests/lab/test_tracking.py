"""tracking: what TensorBoard, Weights & Biases and Trackio are told of a run, read back from what they keep; offline.

docs/tracking.md has the command; a tracker that is not installed is passed over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import shutil
import struct
import time
from pathlib import Path

import pytest
from test_docs import shown

from lfo.cli import main
from lfo.config import ConfigError, as_dict
from lfo.lab.tracking import Tracked, numbers
from lfo.runs import RunFolder
from lfo.train import train


def needs(name: str):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed here")


EVERY_TRACKER = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(name)) for name in ("tensorboard", "wandb", "trackio")]
)


@pytest.fixture(scope="module")
def trained(make_config, base_path, tmp_path_factory):
    """A run of two steps, of which nobody was told yet."""
    settings = {"env.levels": [1], "task_budget": 2, "eval_every": 2, "eval_splits": ["validation"]}
    settings |= {"rollout.tasks_per_step": 1, "rollout.max_action_tokens": 48, "rollout.max_tokens": 400}
    config = make_config(name="tiny", tracker="wandb", **{"model.base": str(base_path), "eval_tasks": 2, **settings})
    folder = tmp_path_factory.mktemp("trained")
    silent = RunFolder(folder)
    silent.tracker = "wandb"
    train(config, silent, progress=False)
    return config, folder


# ---------------------------------------------------------------- reading back


def told_tensorboard(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
    texts = {
        tag.removesuffix("/text_summary"): [e.tensor_proto.string_val[0].decode() for e in events.Tensors(tag)]
        for tag in tags["tensors"]
        if tag.endswith("/text_summary")
    }
    return scalars, texts, set(tags["images"])


def wandb_records(path: Path):
    """The records of an offline run: LevelDB's log format behind a header of 7 bytes (no sums are checked)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # what is left of a block holds no record
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + length > len(data):  # is still being written
            return
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield Record.FromString(whole)
            whole = b""


def ended(path: Path) -> list:
    """The records of a run that has ended; wandb's service may still be writing them when the run says so."""
    for _ in range(300):
        records = list(wandb_records(path))
        if records and records[-1].HasField("exit"):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{path} has no end after 30 s.")


def told_wandb(folder: Path):
    scalars, tables, images = {}, {}, set()
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for record in ended(file):
            items = record.history.item
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            for stem in [name.removesuffix("/_type") for name in row if name.endswith("/_type")]:  # told in parts
                row[stem] = {name.removeprefix(f"{stem}/"): row[name] for name in row if name.startswith(f"{stem}/")}
            for name, value in row.items():
                kind = value.get("_type", "") if isinstance(value, dict) else ""
                if isinstance(value, int | float) and "tasks" in row:
                    scalars.setdefault(name, []).append((row["tasks"], value))
                elif kind == "table-file":
                    tables.setdefault(name, []).append((file.parent / "files" / value["path"]).read_text())
                elif kind.startswith("image"):
                    images.add(name)
    return scalars, tables, images


def told_trackio(folder: Path):
    from trackio.sqlite_storage import SQLiteStorage

    identity = json.loads((folder / "tracker.json").read_text())["trackio"]["id"]
    scalars, tables, images = {}, {}, set()
    for row in SQLiteStorage.get_logs("lfo", f"tiny-seed0-{identity}"):
        for name, value in row.items():
            kind = value.get("_type", "") if isinstance(value, dict) else ""
            if isinstance(value, int | float) and name != "step":
                scalars.setdefault(name, []).append((row["step"], value))
            elif kind == "trackio.table":
                tables.setdefault(name, []).append(json.dumps(value))
            elif kind == "trackio.image":
                images.add(name)
    return scalars, tables, images


READERS = {"tensorboard": told_tensorboard, "wandb": told_wandb, "trackio": told_trackio}


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory):
    """No account, no network, nothing in anybody's home."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        for variable in ("TRACKIO_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            patch.setenv(variable, str(home / variable.lower()))  # Trackio reads its own once, when it is imported
        patch.delenv("WANDB_PROJECT", raising=False)
        yield


@pytest.fixture
def copied(trained, tmp_path):
    """copied(tracker): config and folder of the same run, of which that tracker was told nothing."""

    def copy(name: str):
        config, folder = trained
        shutil.copytree(folder, tmp_path / "run")
        return dataclasses.replace(config, tracker=name), tmp_path / "run"

    return copy


def tell(config, folder: Path) -> None:
    with contextlib.closing(Tracked(folder, config)) as tracked:
        tracked.tell()


# ---------------------------------------------------------------- tests


def expected(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What docs/metrics.md calls it -> (sampled tasks, value), in order."""
    rows, found = RunFolder(folder).metrics(), {}
    for row in rows:
        if row["kind"] == "step":
            for name in ("train_success", "tokens_per_rollout", "replay/world_model/loss"):
                found.setdefault(name, []).append((row["tasks"], row[name]))
            found.setdefault("seconds/rollout", []).append((row["tasks"], row["seconds"]["rollout"]))
        if row["kind"] == "success":
            level = f"level {row['level']}/" if row["level"] else ""
            found.setdefault(f"success/validation/{level}success", []).append((row["tasks"], row["success"]))
        if row["kind"] == "rules":
            found.setdefault("rules/validation/rule_accuracy", []).append((row["tasks"], row["rule_accuracy"]))
    return found


@EVERY_TRACKER
def test_metrics_tables_and_figures_are_told(name, copied):
    config, folder = copied(name)
    tell(config, folder)
    scalars, tables, images = READERS[name](folder)
    for metric, values in expected(folder).items():
        assert scalars[metric] == [(tasks, pytest.approx(value)) for tasks, value in values], metric
    rows = RunFolder(folder).metrics()
    assert len(tables["trajectory"]) == 2, "one for each evaluation"
    for kind, field in (("trajectory", "task_id"), ("prediction", "task_id")):
        for row in (row for row in rows if row["kind"] == kind):
            assert any(row[field] in table for table in tables[kind])
    assert {"learning_curves", "success_by_level", "training_signals", "world_model"} <= images


@EVERY_TRACKER
def test_nothing_is_told_twice_when_a_run_is_resumed(name, copied):
    """Killed after its last step, whose checkpoint has fewer rows than the tracker was told; then it goes on."""
    config, folder = copied(name)
    whole = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(whole) if json.loads(line)["kind"] == "step")
    for count in (last + 1, last, len(whole)):
        (folder / "metrics.jsonl").write_text("".join(whole[:count]))
        tell(config, folder)
    scalars, tables, _ = READERS[name](folder)
    for metric, values in expected(folder).items():
        assert scalars[metric] == [(tasks, pytest.approx(value)) for tasks, value in values], metric
    assert len(tables["trajectory"]) == 2


@needs("tensorboard")
def test_a_run_without_a_checkpoint_begins_anew(copied):
    config, folder = copied("tensorboard")
    tell(config, folder)
    first = json.loads((folder / "tracker.json").read_text())["tensorboard"]
    shutil.rmtree(folder / "checkpoints")
    shutil.rmtree(folder / "tensorboard")
    tell(config, folder)
    second = json.loads((folder / "tracker.json").read_text())["tensorboard"]
    assert first["id"] != second["id"] and first["rows"] == second["rows"] == len(RunFolder(folder).metrics())
    assert len(told_tensorboard(folder)[0]["train_success"]) == 2


@needs("tensorboard")
def test_one_setting_is_all_it_takes(trained, tmp_path):
    """The same run by the command line: the same rows, and the tracker was told of all."""
    config, folder = trained
    path, run = tmp_path / "config.json", tmp_path / "run"
    path.write_text(json.dumps(as_dict(config)))
    assert main(["train", "--quiet", "--config", str(path), "--run", str(run), "--set", "tracker=tensorboard"]) == 0
    assert [row["kind"] for row in RunFolder(run).metrics()] == [row["kind"] for row in RunFolder(folder).metrics()]
    scalars, _, images = told_tensorboard(run)
    assert [tasks for tasks, _ in scalars["train_success"]] == [1, 2] and images
    assert RunFolder(run).finished(config) and RunFolder(run).finished(dataclasses.replace(config, tracker=None))
    assert shown("tracking.md", "def tracked")["tracked"](path, run) == run, "there is nothing left to do"


def test_a_tracker_that_nobody_tells_is_refused(make_config, tmp_path):
    with pytest.raises(ConfigError, match="use `lfo train`"):
        train(make_config(tracker="trackio"), tmp_path)


def test_a_tracker_that_is_not_installed_is_named(make_config, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[cpu,wandb\]'"):
        Tracked(tmp_path, make_config(tracker="wandb"))


def test_numbers_have_their_documented_names():
    row = {"kind": "reply", "tasks": 3, "step": 1, "split": "test", "category": "auth_failed", "accuracy": 0.5, "n": 4}
    assert numbers(row) == {"reply/test/auth_failed/accuracy": 0.5, "reply/test/auth_failed/n": 4}
    assert numbers({"kind": "seconds", "tasks": 3, "seconds": {"evaluate": 1.5}}) == {"seconds/evaluate": 1.5}
