"""runs: what a run folder keeps, what it says is missing, which checkpoint a run goes on from."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import lfo
from lfo.config import DistributedConfig, RolloutConfig, RunConfig, WorldModelConfig, as_dict
from lfo.runs import CheckpointError, RunError, RunFolder, differences, provenance
from lfo.types import Call, Encoded, Example, write_jsonl

CONFIG = RunConfig(name="x", seed=3, task_budget=8)
CALL = Call("count", {"number": "1"})
EXAMPLES = [Example(f"t{i}", CALL, "right", "right", Encoded((i,), (9,)), "Count.", ()) for i in range(3)]


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "x")


def publish(run: RunFolder, number: int, *names: str) -> None:
    for name in names:
        (run.version(number) / name).mkdir(parents=True)
        save_file({"w": np.ones(2)}, run.version(number) / name / "adapter_model.safetensors")


# --- what it is ------------------------------------------------------------------------------


def test_a_run_begins_with_its_config_and_where_it_comes_from(run):
    run.begin(CONFIG, processes=2, bf16=False)
    assert run.config == CONFIG
    facts = run.provenance
    assert (facts["seed"], facts["world_seed"], facts["processes"], facts["bf16"]) == (3, 0, 2, False)
    assert facts["config"] == as_dict(CONFIG) and facts["packages"]["torch"] == torch.__version__
    assert {p.name for p in run.path.iterdir()} == {"config.json", "provenance.json"}  # no temporary file is left
    run.begin(dataclasses.replace(CONFIG, seed=4))
    assert (run.config.seed, run.provenance["seed"]) == (4, 4)


def test_provenance_names_commit_packages_and_machine():
    facts = provenance()
    assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?|unknown", facts["commit"])
    assert {"torch", "transformers", "peft", "numpy"} <= set(facts["packages"])
    assert facts["packages"]["lfo"] == lfo.__version__, "also where it is not installed"
    assert "cores" in facts["machine"] and "config" not in facts


def test_provenance_says_when_the_package_is_not_what_was_committed(tmp_path, monkeypatch):
    package, results = tmp_path / "package", tmp_path / "results.csv"
    package.mkdir()
    code = package / "runs.py"
    code.write_text("one = 1\n")
    results.write_text("0.5\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr("lfo.runs.__file__", str(code))
    results.write_text("0.6\n")  # what a notebook writes is no change of the code
    clean = provenance()["commit"]
    assert re.fullmatch(r"[0-9a-f]{7,}", clean)
    new = package / "helper.py"
    new.write_text("two = 2\n")
    assert provenance()["commit"] == f"{clean}-dirty"
    new.unlink()
    code.write_text("one = 2\n")
    assert provenance()["commit"] == f"{clean}-dirty"


def test_provenance_does_without_git(monkeypatch):
    """As in the container, which has none."""
    monkeypatch.setenv("PATH", "")
    assert provenance()["commit"] == "unknown"


@pytest.mark.parametrize(
    ("ask", "file"),
    [
        (lambda run: run.config, "config.json"),
        (lambda run: run.provenance, "provenance.json"),
        (lambda run: run.metrics(), "metrics.jsonl"),
    ],
)
def test_what_is_no_run_is_named(run, ask, file):
    with pytest.raises(RunError) as error:
        ask(run)
    assert str(error.value) == f"{run.path} is no run folder ({file} is missing); train there first."


# --- metrics ---------------------------------------------------------------------------------


def test_metrics_are_appended_counted_and_dropped_after_a_checkpoint(run):
    assert (run.count_metrics(), run.newest(), run.newest("step")) == (0, {}, {})
    run.path.mkdir(parents=True)
    run.keep_metrics(0)
    rows = [{"kind": kind, "n": n} for n, kind in enumerate(("step", "success", "step", "seconds"))]
    run.log(rows[:2])
    run.log(rows[2:])
    assert run.metrics() == rows and run.count_metrics() == 4
    assert (run.newest(), run.newest("step"), run.newest("none")) == (rows[3], rows[2], {})
    run.keep_metrics(2)
    assert run.metrics() == rows[:2]


def test_metrics_that_have_no_checkpoint_are_put_aside(run):
    """Hours of a run may lie there whose checkpoints somebody has removed."""
    run.path.mkdir(parents=True)
    run.log([{"kind": "step", "n": 1}])
    run.keep_metrics(0)
    assert run.metrics() == []
    assert (run.path / "metrics.jsonl.old").read_text() == '{"kind": "step", "n": 1}\n'
    run.keep_metrics(0)
    run.log([{"kind": "step", "n": 2}])
    run.keep_metrics(0)
    assert [json.loads(line)["n"] for line in (run.path / "metrics.jsonl.old").read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize("line", ['{"n": 1}', "3", "{"])
def test_a_line_that_is_no_row_of_metrics_is_said(run, line):
    run.path.mkdir(parents=True)
    (run.path / "metrics.jsonl").write_text(f'{line}\n{{"kind": "step"}}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 1 cannot be read"):
        run.metrics()


@pytest.mark.parametrize("name", ["config", "provenance"])
@pytest.mark.parametrize("text", ["{", "3", "[3]"])
def test_what_a_run_says_of_itself_cannot_be_read(run, name, text):
    run.begin(CONFIG)
    (run.path / f"{name}.json").write_text(text)
    with pytest.raises(RunError, match=rf"{name}\.json cannot be read; restore it, or train in a new run folder"):
        getattr(run, name)


# --- one process -----------------------------------------------------------------------------

HOLD = """
import sys
from lfo.runs import RunFolder
with RunFolder(sys.argv[1]).held():
    print(flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_train_in_one_folder(run):
    """What one of them holds is free again when it ends, however it ends."""
    other = subprocess.Popen([sys.executable, "-c", HOLD, run.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with other:
        other.stdout.readline()
        with (
            pytest.raises(RunError, match=r"is being trained by another process; choose a new run folder\."),
            run.held(),
        ):
            pass
        other.kill()
    with run.held():
        pass


def test_where_nothing_can_be_held_one_trains_all_the_same(run, monkeypatch):
    def refuse(*_):
        raise OSError("No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    with run.held():
        assert run.path.is_dir()
    monkeypatch.setattr("pathlib.Path.open", refuse)
    with run.held():
        pass


def test_a_line_that_is_half_written_is_left_out(run):
    run.path.mkdir(parents=True)
    run.log([{"kind": "step", "n": 1}])
    with (run.path / "metrics.jsonl").open("a") as f:
        f.write('{"kind": "step", "n"')
    assert run.metrics() == [{"kind": "step", "n": 1}] and run.newest() == {"kind": "step", "n": 1}
    with (run.path / "metrics.jsonl").open("a") as f:
        f.write('\n{"kind": "step", "n": 2}\n')
    with pytest.raises(
        RunError, match=r"metrics\.jsonl, line 2 cannot be read; restore it, or train again in a new folder"
    ):
        run.metrics()


# --- adapters --------------------------------------------------------------------------------


def test_the_newest_adapters_are_those_that_were_published_whole(run):
    with pytest.raises(RunError) as error:
        run.adapters()
    assert str(error.value) == f"{run.path} holds no adapters; train there first: `lfo train --run {run.path}`."
    publish(run, 9, "policy")
    publish(run, 10, "policy", "world_model")
    (run.path / "adapters" / "v00011.tmp" / "policy").mkdir(parents=True)
    assert run.adapters() == {name: run.version(10) / name for name in ("policy", "world_model")}


@pytest.mark.parametrize("remove", [True, False])
def test_damaged_adapters_are_said(run, remove):
    publish(run, 1, "policy", "world_model")
    file = run.version(1) / "world_model" / "adapter_model.safetensors"
    file.unlink() if remove else file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"v00001/world_model cannot be read; restore it\."):
        run.adapters()
    save(run, 1)
    with pytest.raises(RunError, match=r"v00001/world_model cannot be read; `lfo train --run .*` publishes it again"):
        run.adapters()


def test_versions_after_a_checkpoint_are_dropped(run):
    for number in (8, 9, 10, 11):
        publish(run, number, "policy")
    (run.path / "adapters" / "v00010.tmp").mkdir()
    run.drop_versions(after=9)
    assert sorted(p.name for p in (run.path / "adapters").iterdir()) == ["v00008", "v00009"]


def test_a_measurement_holds_until_the_run_is_trained_again(run):
    publish(run, 1, "policy")
    assert not run.measured("found.csv")
    (run.path / "found.csv").touch()
    os.utime(run.version(1) / "policy" / "adapter_model.safetensors", (1, 1))
    assert run.measured("found.csv")
    publish(run, 2, "policy")
    os.utime(run.path / "found.csv", (2, 2))
    assert not run.measured("found.csv")


# --- progress --------------------------------------------------------------------------------


def finish(run: RunFolder, config: RunConfig = CONFIG, tasks: int = 8) -> None:
    run.begin(config)
    publish(run, 1, "policy")
    run.log([{"kind": "step", "tasks": tasks}, {"kind": "seconds", "tasks": tasks}])


def test_a_run_is_finished_when_this_config_was_evaluated_at_the_end(run):
    assert not run.finished(CONFIG)
    finish(run)
    assert run.finished(CONFIG)
    assert run.finished(dataclasses.replace(CONFIG, distributed=DistributedConfig(processes=4)))  # another layout
    assert not run.finished(dataclasses.replace(CONFIG, seed=4))
    run.log([{"kind": "step", "tasks": 9}])  # another step, not evaluated
    assert not run.finished(CONFIG)


def test_a_run_is_unfinished_below_its_budget_without_adapters_and_with_what_is_no_config(run):
    finish(run, tasks=7)
    assert not run.finished(CONFIG)
    finish(other := RunFolder(run.path.with_name("clone")))
    (other.version(1) / "policy" / "adapter_model.safetensors").unlink()
    (other.version(1) / "policy").rmdir()
    other.version(1).rmdir()
    assert not other.finished(CONFIG)
    (run.path / "config.json").write_text('{"sed": 1}')
    assert not run.finished(CONFIG)


def test_tasks_done_need_a_checkpoint(run):
    assert run.tasks_done() == 0
    finish(run)
    assert run.tasks_done() == 0  # as in a clone
    run.save(1, CONFIG, {}, [])
    assert run.tasks_done() == 8


# --- checkpoints -----------------------------------------------------------------------------


def save(run: RunFolder, *steps: int) -> None:
    for step in steps:
        run.save(step, CONFIG, {"step": step, "weights": torch.ones(2)}, EXAMPLES[:step])


def test_a_checkpoint_is_read_as_it_was_written(run):
    assert run.load(CONFIG) is None
    run.path.mkdir(parents=True)
    run.log([{"kind": "step"}] * 5)
    save(run, 2)
    state, examples = run.load(CONFIG)
    assert (state["step"], state["metrics"], state["weights"].tolist()) == (2, 5, [1.0, 1.0])
    assert examples == EXAMPLES[:2]


def test_the_last_two_checkpoints_are_kept(run):
    save(run, 1, 2, 3)
    assert [p.name for p in run.checkpoints] == ["step-000002.pt", "step-000003.pt"]
    assert sorted(p.name for p in run.checkpoints[0].parent.iterdir()) == [p.name for p in run.checkpoints]


def damage(path, how: str) -> None:
    data = path.read_bytes()
    if how == "of another version":
        torch.save({"step": 7}, path)
    else:
        path.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "overwritten": b"\0" * len(data)}[how])


@pytest.mark.parametrize("how", ["cut", "empty", "overwritten", "of another version"])
def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_is_taken(run, capsys, how):
    """The examples that were heard since are still in their file, and are not counted."""
    save(run, 1, 2)
    damage(run.checkpoints[-1], how)
    state, examples = run.load(CONFIG)
    assert state["step"] == 1 and examples == EXAMPLES[:1]
    said = capsys.readouterr().err
    assert said == f"{run.checkpoints[-1]} cannot be read, it is damaged or of another version: passed over.\n"


def test_where_all_checkpoints_are_damaged_nothing_is_begun_anew(run, capsys):
    save(run, 1, 2)
    for path in run.checkpoints:
        damage(path, "cut")
    with pytest.raises(CheckpointError) as error:
        run.load(CONFIG)
    assert str(error.value) == f"no checkpoint of {run.path} can be read; start again in a new run folder."
    assert capsys.readouterr().err.count("passed over") == 2


def test_metrics_without_a_checkpoint_are_not_written_over_by_another_config(run):
    """As a clone has them; the same config is trained again."""
    run.begin(CONFIG)
    assert run.load(dataclasses.replace(CONFIG, seed=4)) is None, "nothing was measured yet"
    run.log([{"kind": "step"}])
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl was written with another config \(seed differ\)"):
        run.load(dataclasses.replace(CONFIG, seed=4))
    assert run.load(CONFIG) is None and run.count_metrics() == 1
    (run.path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"metrics of no run .*choose a new run folder"):
        run.load(CONFIG)


def test_what_changed_while_a_run_waited_is_kept(run, monkeypatch):
    run.begin(CONFIG)
    assert run.provenance["earlier"] == [], "of a run that begins anew nothing was earlier"
    save(run, 1)
    for commit, machine in (("one", "a"), ("two", "a"), ("two", "a"), ("two", "b")):
        facts = {"commit": commit, "machine": machine, "config": as_dict(CONFIG)}
        monkeypatch.setattr("lfo.runs.provenance", lambda config, facts=facts: dict(facts))
        run.begin(CONFIG)
    (first, *others), last = run.provenance["earlier"], run.provenance
    assert others == [{"commit": "one"}, {"machine": "a"}] and {"commit", "machine"} <= set(first)
    assert (last["commit"], last["machine"]) == ("two", "b")


def test_another_config_is_refused_by_the_names_that_differ(run):
    save(run, 1)
    other = dataclasses.replace(CONFIG, seed=4, rollout=RolloutConfig(group_size=4))
    with pytest.raises(CheckpointError) as error:
        run.load(other)
    assert str(error.value) == (
        f"{run.checkpoints[0]} was written with another config (rollout.group_size, seed differ);"
        " resume with the old config or choose a new run folder."
    )


def test_a_checkpoint_from_before_a_setting_can_be_gone_on_from(run):
    """What an earlier version did not say is what holds by default."""
    config = dataclasses.replace(CONFIG, world_model=WorldModelConfig())
    run.save(1, config, {}, [])
    (path,) = run.checkpoints
    state = torch.load(path, weights_only=True)
    older = json.loads(state["config"])
    for name in ("members", "votes", "decay"):
        del older["world_model"][name]
    torch.save(state | {"config": json.dumps(older)}, path)
    assert run.load(config)
    with pytest.raises(CheckpointError, match=r"\(world_model\.members differ\)"):
        run.load(dataclasses.replace(CONFIG, world_model=WorldModelConfig(members=2)))


def test_another_layout_and_other_servers_are_the_same_run(run):
    served = [dataclasses.replace(CONFIG, rollout=RolloutConfig(engine=f"http://{host}:1")) for host in "ab"]
    run.save(1, served[0], {}, [])
    assert run.load(dataclasses.replace(served[1], distributed=DistributedConfig(processes=2)))
    run.begin(served[0])
    assert run.is_of(served[1]) and not run.is_of(CONFIG), "nor does a sweep start it again"
    with pytest.raises(CheckpointError, match=r"\(rollout\.engine differ\)"):
        run.load(CONFIG)


def test_missing_and_unreadable_examples_are_an_error(run):
    save(run, 2)
    path = run.path / "examples.jsonl"
    write_jsonl(path, EXAMPLES[:1])
    with pytest.raises(CheckpointError, match=r"examples\.jsonl lacks rows that the checkpoint counts on"):
        run.load(CONFIG)
    path.write_text("{}\n{}\n")
    with pytest.raises(CheckpointError, match=r"examples\.jsonl, line 1, .*start again in a new run folder"):
        run.load(CONFIG)
    path.unlink()
    with pytest.raises(CheckpointError, match="lacks rows"):
        run.load(CONFIG)


def test_missing_metrics_are_an_error(run):
    """They would be gone for good: a run that goes on appends to them."""
    run.path.mkdir(parents=True)
    run.log([{"kind": "step"}] * 2)
    save(run, 2)
    run.keep_metrics(1)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl lacks rows that the checkpoint counts on"):
        run.load(CONFIG)


def test_what_a_run_has_heard_can_be_read_by_whoever_plays_it(run):
    """In the order in which it was heard; nothing where nothing was heard yet."""
    assert run.examples() == []
    save(run, 2)
    assert run.examples() == EXAMPLES[:2] and [e.turns for e in run.examples()] == [e.turns for e in EXAMPLES[:2]]
    (run.path / "examples.jsonl").write_text("{}\n")
    with pytest.raises(CheckpointError, match=r"examples\.jsonl, line 1, .*start again in a new run folder"):
        run.examples()


def test_differences_are_dotted_names():
    assert differences({"a": 1, "b": {"c": 1, "d": 2}}, {"a": 1, "b": {"c": 3, "d": 2}, "e": None}) == ["b.c"]
    assert differences({"b": None}, {"b": {"c": 1}}) == ["b"]


def test_metrics_survive_what_json_makes_of_them(run):
    run.path.mkdir(parents=True)
    row = {"kind": "step", "lost": float("inf"), "seconds": {"rollout": 0.1}}
    run.log([row])
    assert run.metrics() == [row] == [json.loads((run.path / "metrics.jsonl").read_text())]
