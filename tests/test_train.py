"""train: the loop and its bookkeeping; a run that was killed and resumed is the run that was not."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from scripted import Scripted

import lfo.envs.phone.csr as csr
from lfo.config import RunConfig, as_dict, build
from lfo.couplings.memory import Nearest
from lfo.envs.base import written
from lfo.envs.phone import PhoneEnvironment, Rules, generate_world
from lfo.envs.phone.phrasings import requested_fields
from lfo.envs.phone.tools import form, phone_call, search
from lfo.evaluate import evaluation_rows
from lfo.lab.player import load_player
from lfo.learn.learner import Learner
from lfo.rollout import Prompt, complete
from lfo.rollout.play import _Group
from lfo.rollout.tasks import informative
from lfo.rollout.torch_engine import TorchEngine
from lfo.runs import CheckpointError, RunError, RunFolder
from lfo.text.chat import ChatCodec
from lfo.train import Run, _evaluation_due, _interruptible, lr_factor, train, uses_bf16
from lfo.types import AVERAGE, Encoded, Example, Role, Turn

POLICY, WORLD_MODEL = "policy", "world_model"
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def config(make_config, base_path):
    """config(**settings): seconds on the embedded base."""

    def make(**settings):
        defaults = {
            "model.base": str(base_path),
            "env.levels": [1],
            "rollout.max_action_tokens": 48,
            "rollout.max_tokens": 400,
            "rollout.tasks_per_step": 3,
            "rollout.group_size": 6,
            "task_budget": 9,
        }
        return make_config(**(defaults | settings))

    return make


def metrics_of(folder: Path) -> list[dict]:
    """Rows of metrics.jsonl without what depends on the clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


def weights_of(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {name: load_file(path / "adapter_model.safetensors") for name, path in RunFolder(folder).adapters().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_a_chat_model_is_trained_by_the_same_loop(make_config, chat_path, tmp_path):
    settings = {"model.dialect": "chat", "rollout.max_tokens": 1000, "world_model.coupling": "imagine"}
    config = make_config(**settings, **{"model.base": str(chat_path), "eval_splits": ["validation"]})
    folder = train(config, tmp_path, progress=False)
    assert metrics_of(folder)[-1]["tasks"] == 4
    player = load_player(folder)
    codec = player.codec
    prompt = Prompt([*codec.prompt("Please."), *codec.opener], POLICY, 3, codec.end_id, 0.0)
    assert isinstance(codec, ChatCodec) and complete(player.engine, [prompt])[0].tokens


# --- killed, interrupted, resumed ------------------------------------------------------------


@pytest.fixture(scope="module")
def uninterrupted(make_config, base_path, tmp_path_factory):
    """A run of six steps in the world of the experiments with generous users, and its config."""
    config = make_config(
        **{
            "seed": 2319,  # in 3 of the 6 groups the user lacks a field, so the form reopens and some succeed
            "model.base": str(base_path),
            "model.dropout": 0.1,
            "policy.learning_rate": 1e-3,
            "world_model.learning_rate": 4e-3,
            "world_model.coupling": "imagine",
            "env.levels": [1],
            "rollout.max_action_tokens": 48,
            "rollout.max_tokens": 400,
            "rollout.tasks_per_step": 1,
            "rollout.group_size": 6,
            "task_budget": 6,
            "eval_every": 3,
            "eval_splits": ["validation"],
            "checkpoint_every": 2,
        }
    )
    folder = tmp_path_factory.mktemp("uninterrupted")
    return train(config, folder, PhoneEnvironment(generate_world(0), Rules(slack=3), (1,)), progress=False), config


# `lfo train` where users share three fields more than is needed, so that some rollouts succeed
GENEROUS = """
import functools, sys
import lfo.envs.phone as phone
from lfo.cli import main
phone.Rules = functools.partial(phone.Rules, slack=3)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def started(tmp_path, uninterrupted):
    """started(): the same run as a process of its own, in a folder of its own."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(as_dict(uninterrupted[1])))
    folder = tmp_path / "run"
    processes = []

    def start() -> subprocess.Popen:
        command = [sys.executable, "-c", GENEROUS, "train", "--quiet", "--config", str(path), "--run", str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums depend on it
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start, folder
    for process in processes:
        if process.poll() is None:  # a test failed on the way
            process.kill()
            process.communicate()


def killed_after(step: int, settings, folder: Path, env, monkeypatch) -> None:
    """A run that is gone after a step; nothing is saved on the way out."""

    def log(run, rows):
        log_of(run, rows)
        if run.step == step:
            raise SystemExit

    log_of = Run.log
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Run, "log", log)
        train(settings, folder, env, progress=False)
    assert RunFolder(folder).checkpoints, "a step is logged before it is saved: else the run would begin anew"


def wait_for_steps(folder: Path, count: int, process: subprocess.Popen) -> None:
    """Until `count` steps were logged."""
    path, deadline = folder / "metrics.jsonl", time.monotonic() + 300
    while not path.exists() or path.read_text().count('"kind": "step"') < count:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.005)


def test_killed_and_interrupted_is_the_uninterrupted_run(uninterrupted, started):
    """Twice SIGKILL (a checkpoint is written every second step), SIGINT in a later step, then to the end."""
    reference, config = uninterrupted
    start, folder = started
    for steps in (2, 3):
        process = start()
        wait_for_steps(folder, steps, process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert (folder / "checkpoints" / "step-000002.pt").exists() or steps < 3
        assert len(metrics_of(folder)) < len(metrics_of(reference))

    process = start()
    wait_for_steps(folder, 4, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    saved = sorted((folder / "checkpoints").glob("*.pt"))[-1]
    assert stderr.splitlines()[-1] == f"interrupted: saved {saved}; start the same command again to go on from there."

    env = PhoneEnvironment(generate_world(0), Rules(slack=3), (1,))
    assert train(config, folder, env, progress=False) == folder
    assert metrics_of(folder) == metrics_of(reference)
    ours, theirs = weights_of(folder), weights_of(reference)
    assert ours.keys() == theirs.keys() == {POLICY, WORLD_MODEL}
    assert all(same(ours[name], theirs[name]) for name in ours)
    assert (folder / "examples.jsonl").read_bytes() == (reference / "examples.jsonl").read_bytes()


def test_the_run_did_what_a_run_does(uninterrupted):
    """Otherwise two runs that learn nothing would be the same run, too."""
    rows = metrics_of(uninterrupted[0])
    steps = [r for r in rows if r["kind"] == "step"]
    assert [(s["step"], s["tasks"]) for s in steps] == [(i, i) for i in range(1, 7)]
    assert any(s["groups_kept"] for s in steps) and any("policy/grad_norm" in s for s in steps)
    assert all("replay/world_model/loss" in s for s in steps)
    calls = [s["examples_seen"] for s in steps]
    written = (uninterrupted[0] / "examples.jsonl").read_text().splitlines()
    assert calls == sorted(calls) and calls[-1] == len(written) > 0
    assert [r["tasks"] for r in rows if r["kind"] == "success" and r["level"] == 0] == [0, 3, 6]
    kinds = {"step", "success", "outcomes", "unaided", "unaided_outcomes", "behaviour", "seconds"}
    kinds |= {"reply", "prediction", "rules"}
    assert {r["kind"] for r in rows} == kinds


def test_what_a_run_folder_holds(uninterrupted):
    folder, config = uninterrupted
    assert json.loads((folder / "config.json").read_text()) == as_dict(config)
    facts = json.loads((folder / "provenance.json").read_text())
    assert facts["seed"] == config.seed and facts["config"]["task_budget"] == 6
    assert set(facts["packages"]) == {"lfo", "torch", "transformers", "peft", "numpy"}
    assert sorted(p.name for p in (folder / "adapters").iterdir()) == ["v00006", "v00007"]  # v00001 is untrained
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["step-000004.pt", "step-000006.pt"]
    assert set(RunFolder(folder).adapters()) == {POLICY, WORLD_MODEL}
    assert RunFolder(folder).adapters()[POLICY].parent.name == "v00007"


def test_a_finished_run_is_left_alone(uninterrupted):
    folder, config = uninterrupted
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert train(config, folder) == folder
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_finished_run_is_left_alone_when_its_checkpoints_are_gone(uninterrupted, tmp_path):
    folder, config = uninterrupted
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    train(config, tmp_path / "run", progress=False)
    assert metrics_of(tmp_path / "run") == metrics_of(folder)
    assert not (tmp_path / "run" / "checkpoints").exists(), "it began anew"


def test_damaged_adapters_of_a_finished_run_are_published_again(uninterrupted, tmp_path):
    folder, config = uninterrupted
    shutil.copytree(folder, tmp_path / "run")
    damaged = RunFolder(tmp_path / "run").adapters()[WORLD_MODEL] / "adapter_model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    train(config, tmp_path / "run", progress=False)
    assert same(weights_of(tmp_path / "run")[WORLD_MODEL], weights_of(folder)[WORLD_MODEL])
    assert metrics_of(tmp_path / "run") == metrics_of(folder)


def test_a_folder_that_somebody_trains_in_is_refused(uninterrupted, tmp_path, monkeypatch):
    def taken(*_):
        raise BlockingIOError

    monkeypatch.setattr("fcntl.lockf", taken)
    with pytest.raises(RunError, match="is being trained by another process"):
        train(uninterrupted[1], tmp_path / "run", progress=False)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["train.lock"]


def test_a_finished_run_can_be_played(uninterrupted, codec):
    player = load_player(uninterrupted[0])
    assert isinstance(player.engine, TorchEngine) and player.codec.encode("a charge") == codec.encode("a charge")
    assert set(player.adapters) == {POLICY, WORLD_MODEL} and player.env.levels == (1,)


def test_another_config_is_refused_by_name(uninterrupted):
    folder, config = uninterrupted
    other = dataclasses.replace(config, seed=5, policy=dataclasses.replace(config.policy, clip=(0.1, 0.28)))
    with pytest.raises(CheckpointError) as error:
        train(other, folder, progress=False)
    assert "(policy.clip, seed differ)" in str(error.value) and "choose a new run folder" in str(error.value)


def test_a_damaged_checkpoint_is_passed_over(uninterrupted, tmp_path, capsys):
    """The run says so and goes on from the one before, to the same end."""
    folder, config = uninterrupted
    shutil.copytree(folder, tmp_path / "run")
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    env = PhoneEnvironment(generate_world(0), Rules(slack=3), (1,))
    train(config, tmp_path / "run", env, progress=False)
    assert f"{newest} cannot be read" in capsys.readouterr().err
    assert metrics_of(tmp_path / "run") == metrics_of(folder)
    assert all(same(weights_of(tmp_path / "run")[name], weights_of(folder)[name]) for name in (POLICY, WORLD_MODEL))


def test_examples_beyond_the_checkpoint_are_forgotten_and_missing_ones_noticed(uninterrupted, tmp_path):
    """Killed between writing the calls and the checkpoint, the file is ahead of it."""
    folder, config = uninterrupted
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run" / "examples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[0]]))
    run = Run(config, tmp_path / "run")
    assert run.resume() and len(run.buffer.examples) == len(lines)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(CheckpointError, match=r"examples\.jsonl lacks rows that the checkpoint counts on"):
        run.resume()
    path.unlink()
    with pytest.raises(CheckpointError, match=r"examples\.jsonl lacks rows"):
        run.resume()


def test_killed_in_the_last_evaluation_nothing_that_was_heard_is_lost(config, tmp_path, generous, monkeypatch):
    """What says that a run is finished is logged there, so by then everything has to be on disk."""
    settings = config(task_budget=1, **{"rollout.group_size": 2, "rollout.tasks_per_step": 1, "checkpoint_every": 9})
    evaluate = Run.evaluate

    def killed(run):
        if run.done:
            raise KeyboardInterrupt
        return evaluate(run)

    monkeypatch.setattr(Run, "evaluate", killed)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path, generous, progress=False)
    heard = RunFolder(tmp_path).newest("step")["examples_seen"]
    assert len(RunFolder(tmp_path).examples()) == heard > 0
    monkeypatch.setattr(Run, "evaluate", evaluate)
    train(settings, tmp_path, generous, progress=False)
    assert RunFolder(tmp_path).finished(settings)


def test_adapters_of_a_run_that_left_no_checkpoint_do_not_stay(config, tmp_path, generous):
    """Killed before its first checkpoint, then started with another config: its v00009 would pass for the newest."""
    stale = tmp_path / "adapters" / "v00009" / POLICY
    stale.mkdir(parents=True)
    settings = {"task_budget": 1, "rollout.group_size": 2, "rollout.tasks_per_step": 1, "eval_splits": ["train"]}
    train(config(**settings), tmp_path, generous, progress=False)
    assert RunFolder(tmp_path).adapters()[POLICY].parent.name == "v00002"
    assert not stale.exists()


def test_a_loop_of_ones_own_begins_like_train(config, uninterrupted, tmp_path, generous):
    """Where a run without a checkpoint lies it starts anew, and appends nothing to it; a finished one is left alone."""
    settings = config(task_budget=1, eval_splits=["train"], **{"rollout.group_size": 2, "rollout.tasks_per_step": 1})
    for _ in range(2):
        run = Run(settings, tmp_path, generous)
        assert run.begin()
        run.log([run.advance()])
    assert [row["kind"] for row in metrics_of(tmp_path)] == ["step"]
    assert RunFolder(tmp_path).config == settings and "bf16" in RunFolder(tmp_path).provenance
    folder, finished = uninterrupted
    before = (folder / "provenance.json").read_bytes()
    assert not Run(finished, folder).begin() and (folder / "provenance.json").read_bytes() == before


# --- asynchronous rollouts -------------------------------------------------------------------


BEHIND = {"rollout.asynchronous": True, "policy.tis_cap": 2.0, "rollout.group_size": 4, "rollout.tasks_per_step": 2}


def waiting(act, this: threading.Event, done: threading.Event | None = None):
    """`act`, begun when `this` has happened; then `done` happens."""

    def late(*args, **kwargs):
        assert this.wait(60)
        result = act(*args, **kwargs)
        if done:
            done.set()
        return result

    return late


def in_order(run: Run, learner_first: bool) -> Run:
    """A run in which the learner waits until the rollouts beside it are done, or they for it."""
    learn, sample = run._learn, run._sample

    def advance():
        sampled, learned = threading.Event(), threading.Event()
        last = run.stream.position >= run.config.task_budget
        if run.ahead is None:  # nothing stands beside the first step's own rollouts
            run.ahead = sample()
        if learner_first or last:
            sampled.set()
            run._sample, run._learn = waiting(sample, learned), waiting(learn, sampled, learned)
        else:
            learned.set()
            run._sample, run._learn = waiting(sample, learned, sampled), waiting(learn, sampled)
        return Run.advance(run)

    run.advance = advance
    return run


@pytest.mark.parametrize("coupling", ["imagine", "dream"])
def test_it_does_not_matter_who_is_faster(config, tmp_path, bills, coupling):
    """Learner or rollouts first: same rollouts, same metrics but for the clock, same weights; staleness 0, 1, 1."""
    settings = BEHIND | {"world_model.coupling": coupling}
    seen = []
    for learner_first in (True, False):
        run = Run(config(**settings, **{"task_budget": 5}), tmp_path / str(learner_first), bills)
        in_order(run, learner_first).publish()
        steps = []
        while not run.done:
            steps.append(run.advance())
        assert [s["tasks"] for s in steps] == [2, 4, 5] and [s["staleness"] for s in steps] == [0, 1, 1]
        assert any("policy/loss" in s for s in steps[1:]) and run.stream.position == 5 and run.ahead is None
        for step in steps:
            del step["seconds"], step["tokens_per_second"]
        seen.append((steps, weights_of(run.folder.path)))
    (ours, mine), (theirs, others) = seen
    assert ours == theirs and all(same(mine[name], others[name]) for name in mine)


def test_rollouts_are_one_version_behind(config, tmp_path, bills):
    """The second of three steps is sampled with the untrained adapters, as in a run that learns nothing."""
    frozen = {"policy.learning_rate": 0.0, "world_model.learning_rate": 0.0, "rollout.asynchronous": False}
    steps = {}
    for name, more in {"behind": {}, "untrained": frozen}.items():
        run = Run(config(**BEHIND | more, **{"task_budget": 6}), tmp_path / name, bills)
        rows = run_through(run)
        assert len(rows) == 3 * 2 * 4 and run.sampled == run.step == 3
        steps[name] = [[row.tokens for row in rows[i : i + 8]] for i in (0, 8, 16)]
    assert steps["behind"][:2] == steps["untrained"][:2] and steps["behind"][2] != steps["untrained"][2]


def test_killed_with_rollouts_ahead_it_is_the_uninterrupted_run(config, tmp_path, bills, monkeypatch):
    """Two steps after the last checkpoint; what was sampled ahead of it is in it, calls and all."""
    settings = BEHIND | {"world_model.coupling": "imagine", "checkpoint_every": 2, "eval_splits": ["train"]}
    settings = config(**settings, **{"task_budget": 9, "eval_every": 4})
    train(settings, tmp_path / "whole", bills, progress=False)

    killed_after(4, settings, tmp_path / "killed", bills, monkeypatch)
    assert [p.name for p in (tmp_path / "killed" / "checkpoints").iterdir()] == ["step-000002.pt"]
    train(settings, tmp_path / "killed", bills, progress=False)
    ours, theirs = tmp_path / "killed", tmp_path / "whole"
    assert metrics_of(ours) == metrics_of(theirs) and (ours / "examples.jsonl").read_text()
    assert (ours / "examples.jsonl").read_bytes() == (theirs / "examples.jsonl").read_bytes()
    assert all(same(weights_of(ours)[name], weights_of(theirs)[name]) for name in (POLICY, WORLD_MODEL))
    assert [r["staleness"] for r in metrics_of(ours) if r["kind"] == "step"] == [0, 1, 1, 1, 1]


def test_rollouts_that_fail_ahead_stop_the_run(config, tmp_path, bills, monkeypatch):
    run = Run(config(**BEHIND), tmp_path, bills)
    run.publish()
    run.ahead = run._sample()
    monkeypatch.setattr(run, "_play", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.advance()


# --- coupling none, the whole loop -----------------------------------------------------------


@pytest.fixture
def bills(tiny) -> PhoneEnvironment:
    """The generous small world with one easy task, four times: Billing demands what every fourth form includes."""
    bill = next(t for t in tiny.tasks if t.task_id == "bill")
    key = ("bank", "Billing")
    rules = tiny.rules | {key: dataclasses.replace(tiny.rules[key], required=("account_number",))}
    tasks = tuple(dataclasses.replace(bill, task_id=f"bill-{i}") for i in range(4))
    return PhoneEnvironment(dataclasses.replace(tiny, rules=rules, tasks=tasks), Rules(slack=3), (1,))


def run_through(run: Run) -> list:
    """Train to the end without evaluating; every rollout that was sampled."""
    rows, sample = [], run.sample_groups

    def remember():
        sampled = sample()
        rows.extend(sampled)
        return sampled

    run.sample_groups = remember
    run.publish()
    while not run.done:
        run.advance()
    return rows


def test_lambda_cannot_reach_the_policy_without_a_coupling(config, tmp_path, bills):
    """The negative control on the whole loop: same tokens, same log-probs, same policy, for every lambda."""
    settings = {"model.dropout": 0.1, "rollout.group_size": 4, "rollout.tasks_per_step": 2, "task_budget": 4}
    rows, weights = {}, {}
    for lam in (0.0, 0.5, 2.0):
        run = Run(config(**settings, **{"world_model.lam": lam}), tmp_path / str(lam), bills)
        rows[lam] = run_through(run)
        weights[lam] = weights_of(run.folder.path)
    start = Run(config(), tmp_path / "start", bills)
    start.publish()
    assert rows[0.0] == rows[0.5] == rows[2.0] and len(rows[0.0]) == 4 * 4
    assert same(weights[0.0][POLICY], weights[0.5][POLICY]) and same(weights[0.0][POLICY], weights[2.0][POLICY])
    assert not same(weights[0.0][POLICY], weights_of(start.folder.path)[POLICY])  # it did learn
    assert not same(weights[0.0][WORLD_MODEL], weights[0.5][WORLD_MODEL])
    assert not same(weights[0.5][WORLD_MODEL], weights[2.0][WORLD_MODEL])


def test_a_placebo_teaches_the_world_model_something_else(config, tmp_path, bills):
    """The same calls with other tasks' replies; without a coupling the policy is the same bit for bit."""
    settings = {"rollout.group_size": 4, "rollout.tasks_per_step": 3, "task_budget": 3}
    runs = {}
    for shuffle in (False, True):
        runs[shuffle] = Run(config(**settings, **{"world_model.shuffle": shuffle}), tmp_path / str(shuffle), bills)
        run_through(runs[shuffle])
    truth, placebo = runs[False].buffer.examples, runs[True].buffer.examples
    assert len(placebo) > 3 and {c.reply for c in placebo} <= {c.reply for c in truth}
    answers = {c.encoded.prompt: c.encoded.reply for c in truth}
    assert sum(answers[c.encoded.prompt] == c.encoded.reply for c in placebo) < len(placebo) / 2
    ours, theirs = weights_of(runs[True].folder.path), weights_of(runs[False].folder.path)
    assert same(ours[POLICY], theirs[POLICY]) and not same(ours[WORLD_MODEL], theirs[WORLD_MODEL])


def test_replayed_examples_are_anonymised_and_the_buffer_is_not(config, tmp_path, bills):
    """The share of `anonymise`; the same seed, the same names; replies stay as they were."""
    run = Run(config(**{"task_budget": 3}), tmp_path, bills)
    run_through(run)
    known = {example.encoded for example in run.buffer.examples}
    assert all(set(run._replayed(seed)) <= known for seed in range(20))
    run.config = config(**{"world_model.anonymise": 0.5})
    drawn = [encoded for seed in range(40) for encoded in run._replayed(seed)]
    changed = [encoded for encoded in drawn if encoded not in known]
    assert 0.3 < len(changed) / len(drawn) < 0.7 and {e.reply for e in changed} <= {e.reply for e in known}
    assert run._replayed(0) == run._replayed(0) != run._replayed(1)
    assert {example.encoded for example in run.buffer.examples} == known


def test_words_of_replayed_calls_are_left_out_and_of_the_buffer_none(config, tmp_path, bills):
    """Tags stay, and so does the reply; what is left stands in its order; the same seed, the same words."""
    run = Run(config(**{"task_budget": 3, "world_model.word_dropout": 0.5}), tmp_path, bills)
    run_through(run)
    heard = {example.encoded for example in run.buffer.examples}
    whole = {example.reply: [one for one in heard if one.reply == example.reply] for example in heard}
    tags = [i for i in next(iter(heard)).prompt if i in run.codec.tags]
    assert len(tags) >= 6 and all([i for i in one.prompt if i in run.codec.tags] == tags for one in heard)
    for example in (drawn := run._replayed(0)):
        assert [i for i in example.prompt if i in run.codec.tags] == tags
        longer = [one for one in whole[example.reply] if len(example.prompt) < 0.75 * len(one.prompt)]
        assert any(_is_part(example.prompt, one.prompt) for one in longer)
    assert run._replayed(0) == drawn
    run.config = config(**{"task_budget": 3})
    assert [example.reply for example in drawn] == [example.reply for example in run._replayed(0)], "the same calls"
    assert not {example.prompt for example in drawn} & {example.prompt for example in run._replayed(0)}


def _is_part(part, whole) -> bool:
    """Whether these are some of those, in their order."""
    rest = iter(whole)
    return all(token in rest for token in part)


def test_in_proportion_every_call_is_kept_as_often_as_it_was_answered(config, tmp_path, bills):
    """By default the same calls, each once (what is learned of them does not reach this policy); a checkpoint brings
    all of them back."""
    kept = {}
    for replay in ("distinct", "heard"):
        settings = {"world_model.replay": replay, "world_model.coupling": "none", "task_budget": 3}
        run = Run(config(**settings), tmp_path / replay, bills)
        run_through(run)
        kept[replay] = [example.encoded for example in run.buffer.examples]
    assert kept["distinct"] == list(dict.fromkeys(kept["heard"])) != kept["heard"]
    run.save()
    resumed = Run(run.config, run.folder.path, bills)
    assert resumed.resume() and [example.encoded for example in resumed.buffer.examples] == kept["heard"]


def test_lambda_reaches_the_policy_of_a_shared_adapter(config, tmp_path, bills):
    weights = []
    for lam in (0.0, 0.5):
        settings = {"world_model.coupling": "shared", "world_model.lam": lam, "task_budget": 3}
        run = Run(config(**settings), tmp_path / str(lam), bills)
        run_through(run)
        weights.append(weights_of(run.folder.path))
    assert set(weights[0]) == {POLICY}
    assert not same(weights[0][POLICY], weights[1][POLICY])


def test_shared_without_lambda_is_the_baseline(config, tmp_path, bills):
    """Bit for bit, on the whole loop."""
    arms = {name: {"world_model.coupling": name, "world_model.lam": 0.0} for name in ("shared", "echo")}
    arms["baseline"] = {"world_model": None}
    tokens, weights = {}, {}
    for name, settings in arms.items():
        run = Run(config(**settings, task_budget=3), tmp_path / name, bills)
        tokens[name] = [row.tokens for row in run_through(run)]
        weights[name] = weights_of(run.folder.path)[POLICY]
    for name in ("shared", "echo"):
        assert tokens[name] == tokens["baseline"] and same(weights[name], weights["baseline"])


def test_the_policys_own_pass_hears_dropped_groups_too(dealt):
    """Coupling `echo`: groups 0 and 2 are dropped, but every reply is heard, once, and no example of its own."""
    settings = {"world_model.coupling": "echo", "world_model.updates": 0, "rollout.tasks_per_step": 3}
    run = dealt([LOST, MIXED, WON], **settings)
    seen = []
    run.learner.update = lambda samples, examples, *_: (
        seen.append(([s.advantages is None for s in samples], [sum(s.heard) for s in samples], list(examples))) or {}
    )
    run.publish()
    run.advance()
    assert seen == [([False] * 2 + [True] * 4, [3] * 6, [])]


def test_a_stacked_policy_is_sampled_as_it_is_trained(config, tmp_path, bills):
    """After replay moved the world model: the first update of the next step finds no gap (fp32)."""
    settings = {"world_model.coupling": "stacked", "rollout.group_size": 8, "rollout.tasks_per_step": 2}
    run = Run(config(**settings, **{"policy.groups_per_update": 2, "task_budget": 4}), tmp_path, bills)
    run.publish()
    first, second = run.advance(), run.advance()
    assert first["groups_kept"] and second["groups_kept"]
    assert first["policy/logprob_gap"] < 1e-4 and second["policy/logprob_gap"] < 1e-4


def test_a_baseline_has_no_world_model(config, tmp_path, generous):
    run = Run(config(world_model=None, task_budget=3), tmp_path, generous)
    run.publish()
    metrics = run.advance()
    assert set(RunFolder(tmp_path).adapters()) == {POLICY}
    assert metrics["examples_seen"] == metrics["replies_per_rollout"] == 0 and not [
        k for k in metrics if "world_model" in k
    ]


def test_imagining_runs_through_the_loop(config, tmp_path, generous):
    run = Run(config(**{"world_model.coupling": "imagine", "task_budget": 3}), tmp_path, generous)
    rows = run_through(run)
    assert sum(Role.NOTE in row.roles for row in rows) > len(rows) / 2


def test_an_ensemble_learns_apart_and_survives_a_kill(config, tmp_path, bills, monkeypatch):
    """Each member replays what it draws, the first what it would draw alone."""
    drawn, replay = [], Learner.replay
    monkeypatch.setattr(Learner, "replay", lambda *args: drawn.append(args[1:2] + args[3:]) or replay(*args))
    imagine = STEPS | {"world_model.coupling": "imagine", "world_model.scouts": 1, "task_budget": 6}
    settings, (whole, killed, single) = config(**imagine, **{"world_model.members": 2}), map(tmp_path.joinpath, "wks")
    train(settings, whole, bills, progress=False)
    first, second = ([d[:2] for d in drawn if d[2] == f"{WORLD_MODEL}{which}"] for which in ("", "_2"))
    assert len(first) == len(second) > 0 and not set(map(str, first)) & set(map(str, second))
    drawn.clear()
    train(config(**imagine | {"task_budget": 2}), single, bills, progress=False)
    assert drawn[0] == (*first[0], WORLD_MODEL), "later ones differ by what was heard"
    killed_after(3, settings, killed, bills, monkeypatch)
    train(settings, killed, bills, progress=False)
    assert metrics_of(killed) == metrics_of(whole)
    weights, alone = weights_of(whole), weights_of(single)
    assert weights.keys() == weights_of(killed).keys() == {POLICY, WORLD_MODEL, f"{WORLD_MODEL}_2"}
    assert all(same(weights[name], weights_of(killed)[name]) for name in weights)
    assert not same(weights[WORLD_MODEL], weights[f"{WORLD_MODEL}_2"])
    steps, one = ([r for r in metrics_of(run) if r["kind"] == "step"] for run in (whole, single))
    assert f"replay/{WORLD_MODEL}_2/grad_norm" in steps[-1] and f"replay/{WORLD_MODEL}_2/grad_norm" not in one[-1]
    assert steps[0]["trained_tokens"] > one[0]["trained_tokens"]
    assert load_player(whole, bills).coupling.layout.listeners == (WORLD_MODEL, f"{WORLD_MODEL}_2")
    assert {row["kind"] for row in metrics_of(whole)} >= {"reply", "rules"} and alone.keys() == {POLICY, WORLD_MODEL}


def test_what_a_world_model_reads_survives_a_kill(config, tmp_path, bills, monkeypatch):
    """It learns as it is asked, after similar calls, of which none is of the same task."""
    learned, found, replay, similar = [], [], Learner.replay, Nearest.similar

    def finds(self, question, but=""):
        found.append((but, [example.task_id for example in similar(self, question, but)]))
        return similar(self, question, but)

    monkeypatch.setattr(Learner, "replay", lambda *args: learned.append(args[1]) or replay(*args))
    monkeypatch.setattr(Nearest, "similar", finds)
    reading = {"world_model.coupling": "imagine", "world_model.scouts": 1, "world_model.reads": 3}
    settings, whole, killed = config(**(STEPS | reading)), tmp_path / "whole", tmp_path / "killed"
    run = Run(settings, whole, bills)
    run_through(run)
    texts = [run.codec.decode(encoded.prompt) for encodeds in learned for encoded in encodeds]
    assert max(text.count("<|note|>memory: ") for text in texts) == 3
    assert all(own not in others for own, others in found)
    tasks = {example.task_id for example in run.buffer.examples}
    assert {own for own, others in found if others} >= tasks | {""}, "as learned, and as asked"
    killed_after(3, settings, killed, bills, monkeypatch)
    train(settings, killed, bills, progress=False)
    assert weights_of(killed).keys() == weights_of(whole).keys()
    assert all(same(weights, weights_of(killed)[name]) for name, weights in weights_of(whole).items())


def test_without_lambda_the_untrained_base_imagines(config, tmp_path, bills):
    """Lambda 0 of `imagine`: the policy learns with imagined replies in its context, the world model never moves."""
    settings = {"world_model.coupling": "imagine", "world_model.lam": 0.0, "world_model.scouts": 1, "task_budget": 12}
    run = Run(config(**settings), tmp_path, bills)
    rows = run_through(run)
    weights = weights_of(tmp_path)
    assert any(Role.NOTE in row.roles for row in rows)
    assert all(not w.any() for name, w in weights[WORLD_MODEL].items() if "lora_B" in name)
    assert any(w.any() for name, w in weights[POLICY].items() if "lora_B" in name)


@pytest.mark.parametrize("predict", ["phone+form", "all"])
def test_what_is_predicted_is_an_option_of_the_whole_loop(config, tmp_path, generous, predict):
    """With scouts and imagination: answers of the other tools are learned, imagined replies are the phone's."""
    settings = {"world_model.coupling": "imagine", "world_model.predict": predict, "world_model.scouts": 1}
    run = Run(config(**settings, **{"task_budget": 3, "eval_splits": ["train"]}), tmp_path, generous)
    rows = run_through(run)
    statuses = {call.status for call in run.buffer.examples}
    assert {"ok", "auth_failed"} <= statuses
    assert any("departments" in call.reply for call in run.buffer.examples) == (predict == "all")
    assert any(Role.NOTE in row.roles for row in rows) and any(row.scout and row.examples for row in rows)
    kinds = {row.get("category") for row in run.evaluate() if row["kind"] == "reply"}
    assert "ok" in kinds


def test_success_is_reported_with_and_without_notes(config, tmp_path, generous):
    """Runs whose policies are trained with notes have rows of another kind beside the rows of success."""
    for rate in (0.0, 1e-3):
        settings = {"world_model.coupling": "imagine", "policy.learning_rate": rate}
        run = Run(config(**settings, eval_splits=["train"]), tmp_path / str(rate), generous)
        run.publish()
        rows = run.evaluate()
        kinds = [row["kind"] for row in rows]
        assert kinds.count("unaided") == (kinds.count("success") if rate else 0)
        assert {"split", "tasks", "level", "success", "low", "high", "n"} <= set(rows[0])


# --- notes without a world model, and a frozen policy ----------------------------------------


class Written(Scripted):
    """An engine for whole runs that has no weights: what it says is written out."""

    def load(self, adapters) -> None:
        pass

    def sleep(self) -> None:
        pass


@pytest.fixture
def by_the_book(monkeypatch, codec):
    """A policy that means to call Billing, and does in every other rollout, with what Billing wants of it.

    By now its engines are in the list that this returns.
    """
    billing, field = "800-555-0003", "account_number"
    way = [search("Harbor Bank"), form([field]), phone_call(billing, {field: "123456"}), phone_call(billing)]
    reply = '{"status": "auth_failed", "message": "Billing. I need your account number."}'

    def say(text: str, prompt) -> str:
        if prompt.adapter == WORLD_MODEL:
            return reply
        if text.endswith('"phone_number": "'):
            return f'{billing}"'
        turn = text.count("<|obs|>")
        return written(way[turn]) if turn < len(way) and (turn == 0 or prompt.session % 2) else ""

    engines = []
    for who in ("lfo.train", "lfo.lab.player"):
        monkeypatch.setattr(f"{who}.make_engine", lambda *_: engines.append(Written(codec, say)) or engines[-1])
    return engines


def notes_in(engine: Scripted) -> list[str]:
    """The notes that the policy read before its actions, one list for all."""
    texts = [engine.codec.decode(p.tokens) for p in engine.prompts if p.session is not None]
    return [note for text in texts for note in re.findall(r"<\|note\|>(.*?)<\|/note\|>", text)]


REMEMBER = {"world_model.coupling": "memory", "world_model.scouts": 1, "rollout.group_size": 5}
STEPS = {
    "rollout.tasks_per_step": 2,
    "task_budget": 10,
    "checkpoint_every": 2,
    "eval_every": 4,
    "eval_splits": ["train"],
}


@pytest.mark.parametrize(("recall", "more"), [("table", {}), ("table", BEHIND), ("nearest", {}), ("vote", {})])
def test_a_memory_survives_a_kill(config, tmp_path, bills, by_the_book, monkeypatch, recall, more):
    """It is told again what it had heard until the checkpoint: the same notes from there on, and the same run."""
    settings = config(**more | REMEMBER | STEPS, **{"world_model.recall": recall})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(settings, whole, bills, progress=False)
    killed_after(3, settings, killed, bills, monkeypatch)
    assert [path.name for path in RunFolder(killed).checkpoints] == ["step-000002.pt"]
    train(settings, killed, bills, progress=False)
    uninterrupted, _, resumed = by_the_book
    assert metrics_of(killed) == metrics_of(whole)
    assert same(weights_of(killed)[POLICY], weights_of(whole)[POLICY])
    assert (killed / "examples.jsonl").read_bytes() == (whole / "examples.jsonl").read_bytes()
    after = notes_in(resumed)
    assert after and set(after) <= set(notes_in(uninterrupted)) and after == notes_in(uninterrupted)[-len(after) :]
    assert all(note.startswith('memory: {"status": ') for note in after)


def test_a_memory_notes_what_was_heard_in_the_steps_before(config, tmp_path, bills, by_the_book):
    """Nothing in the first step; later the very words of a call with empty hands that was made before."""
    run = Run(config(**REMEMBER | STEPS), tmp_path, bills)
    run.publish()
    run.advance()
    (engine,) = by_the_book
    assert notes_in(engine) == []
    replies = {f"memory: {example.reply}" for example in run.buffer.examples}
    run.advance()
    assert notes_in(engine) and set(notes_in(engine)) <= replies


def test_a_player_recalls_what_its_run_has_heard(config, tmp_path, bills, by_the_book):
    folder = train(config(**REMEMBER | STEPS), tmp_path, bills, progress=False)
    heard = {f"memory: {example.reply}" for example in RunFolder(folder).examples()}
    player = load_player(folder, bills)
    evaluation_rows(player.engine, player.codec, player.coupling, player.config)
    notes = notes_in(by_the_book[-1])
    assert len(by_the_book) == 2 and notes and set(notes) <= heard


@pytest.mark.parametrize("coupling", ["memory", "imagine_memory"])
def test_nobody_hears_while_somebody_is_sampling(config, tmp_path, bills, by_the_book, monkeypatch, coupling):
    """Else what is noted in rollouts that are sampled beside the learner would depend on who was faster."""
    settings = BEHIND | REMEMBER | {"world_model.coupling": coupling, "task_budget": 6}
    run, heard = Run(config(**settings), tmp_path, bills), []
    hear = run.coupling.hear

    def alone(examples):
        heard.append([thread.name for thread in threading.enumerate() if thread.name.startswith("rollouts")])
        hear(examples)

    monkeypatch.setattr(run.coupling, "hear", alone)
    run_through(run)
    assert heard == [[], [], []] and notes_in(by_the_book[0])


@pytest.mark.parametrize("coupling", ["memory", "truth"])
def test_who_notes_without_a_world_model_trains_the_policy_alone(config, tmp_path, bills, monkeypatch, coupling):
    """With the real engine, killed and resumed: the same run. There is no second adapter and nothing is predicted."""
    settings = config(**STEPS | {"task_budget": 6, "world_model.coupling": coupling})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(settings, whole, bills, progress=False)
    killed_after(3, settings, killed, bills, monkeypatch)
    train(settings, killed, bills, progress=False)
    assert metrics_of(killed) == metrics_of(whole)
    assert weights_of(whole).keys() == weights_of(killed).keys() == {POLICY}
    assert same(weights_of(killed)[POLICY], weights_of(whole)[POLICY])
    rows = metrics_of(whole)
    assert not [name for row in rows for name in row if "world_model" in name]
    kinds = {"step", "success", "outcomes", "unaided", "unaided_outcomes", "behaviour", "seconds"}
    kinds |= {"rules"} if coupling == "memory" else set()
    assert {row["kind"] for row in rows} == kinds
    assert load_player(whole, bills).coupling.layout.listener is None


@pytest.mark.parametrize("coupling", ["memory", "truth"])
def test_a_policy_learns_with_notes_that_nobody_learned(config, tmp_path, bills, by_the_book, coupling):
    run = Run(config(**STEPS | REMEMBER | {"world_model.coupling": coupling, "task_budget": 4}), tmp_path, bills)
    rows = run_through(run)
    assert all(row.examples for row in rows if row.scout) and informative(rows)
    assert any(f"{coupling}: " in note for note in notes_in(by_the_book[0]))
    assert any(w.any() for name, w in weights_of(tmp_path)[POLICY].items() if "lora_B" in name)


def test_the_truth_is_noted_whoever_was_called_before(config, tmp_path, bills, by_the_book):
    """From the first step on, in every rollout: what Billing wants here."""
    run = Run(config(**STEPS | {"world_model.coupling": "truth"}), tmp_path, bills)
    run.publish()
    run.advance()
    (engine,) = by_the_book
    acted = [p for p in engine.prompts if p.session is not None and "<|obs|>" in engine.codec.decode(p.tokens)]
    assert acted and len(notes_in(engine)) == len(acted)
    assert all(requested_fields(note) == {"account_number"} for note in notes_in(engine))


@pytest.mark.parametrize("coupling", ["imagine", "none"])
def test_a_frozen_policy_stays_what_it_was_while_the_world_model_learns(config, tmp_path, bills, by_the_book, coupling):
    """policy.learning_rate 0: its adapter is bit for bit that of the start, and nothing is said of its loss."""
    frozen = {"policy.learning_rate": 0.0, "weight_decay": 0.1, "world_model.coupling": coupling}
    run = Run(config(**STEPS | frozen), tmp_path, bills)
    run.publish()
    start = weights_of(tmp_path)
    steps = []
    while not run.done:
        steps.append(run.advance())
    end = weights_of(tmp_path)
    assert same(start[POLICY], end[POLICY]) and not same(start[WORLD_MODEL], end[WORLD_MODEL])
    assert all(step["groups_kept"] for step in steps), "there was something to learn"
    assert not [name for step in steps for name in step if name.startswith("policy/")]
    assert all({"world_model/loss", "replay/world_model/loss"} <= set(step) for step in steps)


def test_a_frozen_policy_with_a_memory_learns_nothing_and_remembers(config, tmp_path, bills, by_the_book):
    """Whatever it does better later, it does because of its notes."""
    run = Run(config(**STEPS | REMEMBER | {"policy.learning_rate": 0.0, "task_budget": 4}), tmp_path, bills)
    run.publish()
    start, steps = weights_of(tmp_path), [run.advance(), run.advance()]
    assert weights_of(tmp_path).keys() == {POLICY} and same(start[POLICY], weights_of(tmp_path)[POLICY])
    assert all(step["groups_kept"] and step["trained_tokens"] == 0 for step in steps)
    assert notes_in(by_the_book[0])


# --- a stronger baseline -----------------------------------------------------------------------


STRONG = {"policy.entropy": 0.01, "policy.kl": 0.1, "policy.imitate": 0.5, "rollout.group_size": 4}


def learned_by(run: Run, monkeypatch) -> list[list]:
    """The samples of each update from now on, in a list that grows."""
    seen, update = [], run.learner.update
    monkeypatch.setattr(run.learner, "update", lambda samples, *rest: seen.append(samples) or update(samples, *rest))
    return seen


@pytest.mark.parametrize("more", [{"world_model": None}, BEHIND | STRONG | {"world_model.coupling": "truth"}])
def test_what_is_added_to_dapo_survives_a_kill(config, tmp_path, bills, by_the_book, monkeypatch, more):
    """The successes of the checkpoint, byte for byte, and from there the same run; everything is logged."""
    settings = config(**STEPS | STRONG | more)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(settings, whole, bills, progress=False)
    killed_after(3, settings, killed, bills, monkeypatch)
    assert [path.name for path in RunFolder(killed).checkpoints] == ["step-000002.pt"]
    train(settings, killed, bills, progress=False)
    assert metrics_of(killed) == metrics_of(whole) and same(weights_of(killed)[POLICY], weights_of(whole)[POLICY])
    kept = [RunFolder(folder).load(settings)[0]["successes"] for folder in (whole, killed)]
    assert kept[0] == kept[1] and len(json.loads(kept[0])["rollouts"]) > 1
    first, *later = (row for row in metrics_of(whole) if row["kind"] == "step")
    assert first["policy/kl_to_base"] == pytest.approx(0, abs=1e-6) and "policy/imitation_loss" not in first
    assert all(row["policy/entropy"] > 0 and row["policy/imitation_loss"] > 0 for row in later)
    assert all(row["policy/kl_to_base"] > 0 for row in later)


def test_successes_are_imitated_as_they_were_sampled_from_the_next_step_on(
    config, tmp_path, bills, by_the_book, monkeypatch
):
    """With notes in their contexts; scouts are not among them, and not more in an update than a group has rollouts."""
    scouting = {"world_model.coupling": "truth", "world_model.scouts": 1, "rollout.group_size": 5}
    run = Run(config(**STEPS | STRONG | scouting, **{"policy.groups_per_update": 1}), tmp_path, bills)
    seen, rows, sample = learned_by(run, monkeypatch), [], run.sample_groups
    monkeypatch.setattr(run, "sample_groups", lambda: rows.append(sample()) or rows[-1])
    run.publish()
    for step in range(3):
        seen.clear()
        run.advance()
        successes = [row for before in rows[:step] for row in before if row.success and not row.scout]
        known = [(row.tokens, row.roles, row.logprobs) for row in successes]
        imitated = [[s for s in samples if s.how == "imitated"] for samples in seen]
        assert len(seen) == 2 and [len(found) > 0 for found in imitated] == [step > 0] * 2
        assert all((s.tokens, s.roles, s.old_logprobs) in known for found in imitated for s in found)
        assert all(Role.NOTE in s.roles for found in imitated for s in found) and max(map(len, imitated)) <= 5


def test_what_a_teacher_played_is_not_imitated(dealt, monkeypatch):
    """Its feedback stands in the context; what is learned of it is said by `feedback.learn`."""
    run = dealt([MIXED], **{"policy.imitate": 0.5, "rollout.tasks_per_step": 1, "world_model.updates": 0})
    rows = run.sample_groups()
    for row in rows:
        row.actor = "" if row.success else row.actor
    monkeypatch.setattr(run, "sample_groups", lambda: rows)
    run.publish()
    run.advance()
    assert any(row.success for row in rows) and run.successes.rollouts == []


def test_a_step_without_an_informative_group_imitates_nothing(dealt, monkeypatch):
    """An update of the world model is none of the policy; whoever does not imitate keeps nothing."""
    settings = {"policy.imitate": 0.5, "policy.tis_cap": 2.0, "rollout.tasks_per_step": 1, "world_model.updates": 0}
    run = dealt([WON, MIXED, LOST, MIXED], **settings)
    seen = learned_by(run, monkeypatch)
    run.publish()
    for _ in range(4):
        run.advance()
    taught = ["ratio"] * 2 + ["imitated"]
    assert [[s.how for s in samples] for samples in seen] == [[], taught, [], taught]
    bare = dealt([WON])
    bare.publish()
    bare.advance()
    assert len(run.successes.rollouts) == 1 and bare.successes.rollouts == []


# --- feedback ----------------------------------------------------------------------------------


@pytest.fixture
def told_what_was_missing(monkeypatch, codec):
    """Whoever reads feedback, or is the third rollout of a group, hands over what Billing wants; others call bare.

    By now its engines are in the list that this returns.
    """
    billing, field = "800-555-0003", "account_number"
    way = [search("Harbor Bank"), form([field]), phone_call(billing, {field: "123456"})]
    bare = [*way[:1], phone_call(billing)]

    def say(text: str, prompt) -> str:
        if text.endswith('"phone_number": "'):
            return f'{billing}"'
        turn, done = text.count("<|obs|>"), way if "earlier attempt" in text or prompt.session % 4 == 2 else bare
        return written(done[turn]) if turn < len(done) else ""

    engines = []
    monkeypatch.setattr("lfo.train.make_engine", lambda *_: engines.append(Written(codec, say)) or engines[-1])
    return engines


GUIDED = {"world_model": None, "rollout.group_size": 4}
GUIDED |= {"feedback.start": 2, "feedback.updates": 2, "feedback.anonymise": 0.5}


@pytest.mark.parametrize(
    "more",
    [
        {"feedback.wave": 1, "feedback.learn": "free"},
        BEHIND | {"feedback.start": 3, "feedback.learn": "successes"},
        BEHIND | {"feedback.start": 3, "feedback.learn": "capped", "feedback.source": "shuffled"},
        {"feedback.learn": "kl", "feedback.start": 3},
        {"feedback.wave": 1, "feedback.source": "none", "feedback.teacher": "base"},
    ],
)
def test_feedback_survives_a_kill_in_the_middle_of_a_wave(
    config, tmp_path, bills, told_what_was_missing, monkeypatch, more
):
    """Gone while a later wave plays: what was corrected before is known again, and it is the same run."""
    settings = config(**GUIDED | STEPS | more)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(settings, whole, bills, progress=False)

    waves, begin = [], _Group.wave

    def wave(group):
        later = bool(group.done) and not group.playing
        waves.extend([group] if later else [])
        if len(waves) > 8:
            raise SystemExit
        yield from begin(group)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(_Group, "wave", wave)
        train(settings, killed, bills, progress=False)
    assert any(group.done and not group.waves for group in waves)
    train(settings, killed, bills, progress=False)
    assert metrics_of(killed) == metrics_of(whole) and same(weights_of(killed)[POLICY], weights_of(whole)[POLICY])
    kept = [RunFolder(folder).load(settings)[0]["corrected"] for folder in (whole, killed)]
    assert kept[0] == kept[1] and json.loads(kept[0])["rollouts"]
    steps = [row for row in metrics_of(whole) if row["kind"] == "step"]
    assert all("first_try_success" in step and "success_at_4" in step for step in steps)


# `GENEROUS`, gone for good at the fifth action of those who read feedback in the fourth group
KILLED = """
import os, signal, sys
from lfo.rollout.play import Row
take, taken = Row.take, []
def taking(row, action, budget):
    take(row, action, budget)
    taken.extend([row.attempt.position] * (row.attempt.group == 3 and row.actor == "average"))
    if len(taken) == 5:
        print("in the middle of a wave:", taken, file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
Row.take = taking
"""


def test_sigkill_in_the_middle_of_a_wave_and_it_is_the_run_that_was_never_killed(uninterrupted, tmp_path):
    """The step before it is lost as well (a checkpoint is written every second step); the average of the policy, who
    teaches, goes on where it was, and so does the replay of what it corrected."""
    told = {"start": 4, "learn": "successes", "teacher": "average", "updates": 2, "anonymise": 0.5}
    plain = dataclasses.replace(uninterrupted[1], world_model=None, eval_every=6)
    settings = build(RunConfig, as_dict(plain) | {"feedback": told})
    env, whole, killed = PhoneEnvironment(generate_world(0), Rules(slack=3), (1,)), tmp_path / "a", tmp_path / "b"
    train(settings, whole, env, progress=False)

    (tmp_path / "config.json").write_text(json.dumps(as_dict(settings)))
    command = [sys.executable, "-c", KILLED + GENEROUS, "train", "--quiet", "--config", str(tmp_path / "config.json")]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums depend on it
    gone = subprocess.run([*command, "--run", str(killed)], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert gone.returncode == -signal.SIGKILL, gone.stderr
    assert len(set(re.findall(r"\d", gone.stderr.split("wave:")[1]))) > 1, "several were at it"
    assert [row["step"] for row in metrics_of(killed) if row["kind"] == "step"] == [1, 2, 3]
    assert [path.stem for path in RunFolder(killed).checkpoints] == ["step-000002"]

    train(settings, killed, env, progress=False)
    assert metrics_of(killed) == metrics_of(whole)
    ours, theirs = weights_of(killed), weights_of(whole)
    assert ours.keys() == theirs.keys() == {POLICY, AVERAGE} and all(same(ours[name], theirs[name]) for name in ours)
    assert not same(ours[POLICY], ours[AVERAGE])
    kept = [RunFolder(folder).load(settings)[0]["corrected"] for folder in (whole, killed)]
    assert kept[0] == kept[1] and json.loads(kept[0])["rollouts"], "otherwise there was nothing to be the same"


def test_corrected_attempts_are_replayed_without_feedback_and_at_other_companies(
    config, tmp_path, bills, told_what_was_missing, monkeypatch
):
    run = Run(config(**GUIDED | STEPS | {"feedback.learn": "successes", "feedback.anonymise": 1.0}), tmp_path, bills)
    monkeypatch.setattr(run.env.knowledge, "disguise", lambda task_id, rng: lambda text: text.replace("Harbor", "Elm"))
    seen = learned_by(run, monkeypatch)
    run.publish()
    step = run.advance()
    assert step["groups_kept"] == step["groups_sampled"] == 2 and step["recovery"] == 1
    assert (step["first_try_success"], step["feedback_success"], step["success_at_1"]) == (0.0, 1.0, 0.0)
    assert step["feedback_tokens_per_rollout"] > 0 and step["failed_missing_auth"] == 1.0
    *joint, first, second = seen
    assert len(joint) == 1 and {s.how for s in first + second} == {"imitated"} and len(first) > 0
    for sample in first + second:
        text = run.codec.decode(sample.tokens)
        assert "Elm Bank" in text and "Harbor" not in text and Role.FEEDBACK not in sample.roles
    assert all(Role.FEEDBACK not in s.roles for s in joint[0]) and any(s.how == "imitated" for s in joint[0])
    assert step["corrected/imitation_loss"] > 0 and step["corrected/grad_norm"] > 0


def test_an_evaluation_is_without_feedback(config, tmp_path, bills, told_what_was_missing):
    run = Run(config(**GUIDED | STEPS | {"feedback.teacher": "base"}), tmp_path, bills)
    run.evaluate()
    (engine,) = told_what_was_missing
    assert {p.adapter for p in engine.prompts} == {POLICY}
    assert not any("earlier attempt" in run.codec.decode(p.tokens) for p in engine.prompts)


# --- dreams ----------------------------------------------------------------------------------


def test_dreams_are_practice_and_nothing_else(config, tmp_path, bills, monkeypatch):
    """From the second step on the policy learns from dreams; tasks, users and calls stay those of a run without."""
    settings = {"rollout.group_size": 4, "rollout.tasks_per_step": 2, "task_budget": 12, "policy.learning_rate": 0.0}
    runs, steps = {}, {}
    for name in ("none", "dream"):
        run = runs[name] = Run(config(**settings, **{"world_model.coupling": name}), tmp_path / name, bills)
        learned = []
        learn = run._learn
        monkeypatch.setattr(
            run, "_learn", lambda kept, *rest, to=learned, learn=learn: to.append(kept) or learn(kept, *rest)
        )
        run.publish()
        steps[name] = [run.advance(), run.advance()]
        if name == "dream":
            assert any(row.group < 0 for rows in learned for row in rows) == (steps[name][1]["dreamt_groups_kept"] > 0)
            assert all(row.examples == [] for rows in learned for row in rows if row.group < 0)
    ours, theirs = steps["dream"], steps["none"]
    assert "dreamt_groups" not in ours[0] and ours[1]["dreamt_groups"] == 2  # a quarter of 12 tasks is 3
    assert 0 <= ours[1]["dreamt_groups_kept"] <= 2 and 0 <= ours[1]["dream_success"] <= 1
    for name in ("tasks", "groups_sampled", "groups_kept", "train_success", "examples_seen", "tokens_per_rollout"):
        assert [s[name] for s in ours] == [s[name] for s in theirs]
    assert runs["dream"].buffer.examples == runs["none"].buffer.examples


def test_dreams_differ_from_step_to_step_and_teach_the_policy(config, tmp_path, bills, by_the_book, monkeypatch):
    """A world model that says half of the time that all is done: groups are informative, the policy moves."""
    settings = {"world_model.coupling": "dream", "world_model.dream_agreement": 0.75, "rollout.tasks_per_step": 2}
    run = Run(config(**settings), tmp_path, bills)
    statuses = random.Random(0).choices(["success", "auth_failed"], k=4000)
    monkeypatch.setattr(csr, "parse_reply", lambda _: (statuses.pop(), "Billing."))
    run.tasks_seen = 9
    run.publish()
    nights = [run._practise()]
    before = [p.detach().clone() for p in run.learner.parameters(POLICY)]
    assert informative(nights[0]) and run._learn(informative(nights[0]), [], [], 1.0)["policy/grad_norm"] > 0
    assert not all(torch.equal(a, b) for a, b in zip(before, run.learner.parameters(POLICY), strict=True))
    run.step = 1
    nights.append(run._practise())
    assert {r.task_id for r in nights[0]} != {r.task_id for r in nights[1]}
    assert {r.group for rows in nights for r in rows} == {-1, -2, -3, -4}


# --- dynamic sampling ------------------------------------------------------------------------


@pytest.fixture
def dealt(config, tmp_path, generous, make_rollout, codec, monkeypatch):
    """dealt([[True, False], ...], **settings): a run whose i-th sampled group ends like this, later ones badly."""

    def make(outcomes, **settings) -> Run:
        run = Run(config(**{"rollout.group_size": 2, "task_budget": 100} | settings), tmp_path, generous)
        run.rounds = []

        def play(groups, seed):
            run.rounds.append(len(groups))
            rows = []
            for waves in groups:
                group = waves[0][0].group
                call = phone_call("800-555-0100")
                encoded = Encoded((5, 6), (7, codec.reply_end_id))
                example = Example(f"g{group}", call, "", "success", encoded, "", ())
                turns = [Turn(call, "", "success")]
                for success in outcomes[group] if group < len(outcomes) else [False, False]:
                    pieces = [5, 6], [7, 8], [1, 2, 2, 9]
                    made = {"group": group, "success": success, "examples": [example], "turns": turns}
                    rows.append(make_rollout(*pieces, **made))
            return rows

        monkeypatch.setattr(run, "_play", play)
        return run

    return make


MIXED, LOST, WON = [True, False], [False, False], [True, True]


def test_uninformative_groups_are_replaced_and_counted(dealt):
    """Four are wanted: the first round has two, the second asks for two and has one, the third asks for the last."""
    settings = {"rollout.tasks_per_step": 4, "rollout.max_refills": 2}
    run = dealt([MIXED, LOST, MIXED, WON, LOST, MIXED, MIXED, MIXED], **settings)
    everything = run.sample_groups()
    assert run.rounds == [4, 2, 1]
    assert sorted({row.group for row in informative(everything)}) == [0, 2, 5, 6]
    assert len(everything) == 14 and run.stream.position == 7


def test_refilling_has_an_end(dealt):
    run = dealt([], **{"rollout.tasks_per_step": 4, "rollout.max_refills": 2})
    assert informative(run.sample_groups()) == []
    assert run.rounds == [4, 4, 4] and run.stream.position == 12


def test_refilling_stays_within_the_budget(dealt):
    run = dealt([], **{"rollout.tasks_per_step": 4, "rollout.max_refills": 2, "task_budget": 6})
    run.publish()
    run.advance()
    assert run.rounds == [4, 2] and run.tasks_seen == 6 and run.done


def test_dropped_groups_teach_the_world_model_and_not_the_policy(dealt):
    """The step's metrics count every sampled task; all calls are kept for replay before groups are dropped."""
    run = dealt([LOST, MIXED, WON], **{"rollout.tasks_per_step": 3, "rollout.max_refills": 0, "world_model.updates": 1})
    run.publish()
    metrics = run.advance()
    assert (metrics["tasks"], metrics["groups_sampled"], metrics["groups_kept"]) == (3, 3, 1)
    assert (metrics["train_success"], metrics["examples_seen"], metrics["tokens_per_rollout"]) == (0.5, 3, 8.0)
    assert metrics["replies_per_rollout"] == 1
    assert [c.task_id for c in run.buffer.examples] == ["g0", "g1", "g2"]
    assert "policy/loss" in metrics and "world_model/loss" in metrics and "replay/world_model/loss" in metrics


def test_scouts_teach_the_world_model_and_count_for_nothing_else(config, tmp_path, generous):
    """Of three rollouts one is a scout; its calls are kept, success and advantages are those of the other two."""
    settings = {"rollout.group_size": 3, "rollout.tasks_per_step": 2, "world_model.scouts": 1, "task_budget": 4}
    run = Run(config(**settings), tmp_path, generous)
    run.publish()
    rows = run.sample_groups()
    assert [row.scout for row in rows] == [True, False, False] * 2
    assert not any(row.scout for row in informative(rows))
    metrics = run.advance()
    assert (metrics["tasks"], metrics["groups_sampled"]) == (2, 2)  # those that were sampled above were not learned


def test_a_step_without_an_informative_group_leaves_the_policy(dealt):
    run = dealt([LOST, WON], **{"rollout.tasks_per_step": 2, "world_model.updates": 1})
    before = [p.detach().clone() for p in run.learner.parameters(POLICY)]
    run.publish()
    metrics = run.advance()
    assert "policy/loss" not in metrics and metrics["world_model/loss"] > 0
    assert all(torch.equal(a, b) for a, b in zip(before, run.learner.parameters(POLICY), strict=True))


def test_groups_are_spread_over_the_updates(dealt, monkeypatch):
    """Three informative groups, two per update: two updates; every call is used once."""
    run = dealt([MIXED] * 3, **{"policy.groups_per_update": 2, "world_model.updates": 0})
    seen = []
    monkeypatch.setattr(
        run.learner,
        "update",
        lambda samples, examples, *_: seen.append(([s.advantages[2] for s in samples], len(examples))) or {},
    )
    run.publish()
    run.advance()
    assert [len(advantages) for advantages, _ in seen] == [4, 2] and [n for _, n in seen] == [3, 3]
    assert [a for advantages, _ in seen for a in advantages] == pytest.approx([1, -1] * 3, abs=1e-4)


@pytest.mark.parametrize(
    ("schedule", "policy", "world_model"),
    [
        # updates of (policy, world model) in four steps with 3, 1, 0 and 4 informative groups, two per update
        ({}, [2, 1, 0, 2], [2, 1, 1, 2]),
        ({"world_model.schedule": "alternating"}, [2, 0, 1, 0], [0, 3, 0, 3]),
        # in the last step of the budget everybody learns
        ({"world_model.schedule": "alternating", "task_budget": 16}, [2, 0, 1, 2], [0, 3, 0, 3]),
        ({"world_model.schedule": "world_first", "task_budget": 32}, [0, 0, 0, 2], [2, 1, 1, 2]),
        ({"world_model.schedule": "hierarchical"}, [0, 0, 0, 5], [2, 1, 1, 2]),
        ({"world_model.schedule": "policy_leads"}, [2, 1, 0, 2], [0, 0, 0, 6]),
    ],
)
def test_schedules_make_the_updates_of_joint(dealt, schedule, policy, world_model, monkeypatch):
    """Whoever waits makes them up later; a call is heard once, a group is learned once; replay follows the turns."""
    monkeypatch.setattr("lfo.learn.schedule.MODEL_EVERY", 4)
    deal = [MIXED] * 3 + [LOST] + [MIXED] + [LOST] * 7 + [MIXED] * 4
    run = dealt(deal, **{"rollout.tasks_per_step": 4, "world_model.updates": 3} | schedule)
    made: list = []
    run.learner.update = lambda samples, examples, *_: made.append((len(samples), len(examples))) or {}
    run.learner.replay = lambda *_: made.append("replay") or {}
    run.publish()
    seen, replays = [], []
    for _ in range(4):
        made.clear()
        run.advance()
        replays.append(made.count("replay"))
        seen.append([m for m in made if m != "replay"])
    assert [sum(bool(learned) for learned, _ in step) for step in seen] == policy
    assert [sum(bool(heard) for _, heard in step) for step in seen] == world_model
    assert sum(heard for step in seen for _, heard in step) == 32  # each group's two rollouts made the same call
    alternating, skipping, leading = (
        name in schedule.values() for name in ("alternating", "world_first", "policy_leads")
    )
    waiting = alternating and "task_budget" not in schedule
    groups = 4 if waiting or skipping else 8  # the last four wait for the next turn; the first four passed
    assert sum(learned for step in seen for learned, _ in step) == 2 * groups
    turn = 3 * (2 if alternating else 4 if leading else 1)  # of replay updates
    assert replays == [turn if n else 0 for n in world_model]


def test_a_schedule_goes_on_where_it_stopped(config, tmp_path, bills):
    """What waited at the checkpoint is learned after it."""
    settings = {"world_model.schedule": "hierarchical", "task_budget": 12}
    runs = [Run(config(**settings), tmp_path / str(i), bills) for i in range(2)]
    for run in runs:
        run.folder.path.mkdir()
        run.publish()
        run.advance()
    assert runs[0].due.rollouts  # it was informative
    runs[0].log([])
    runs[0].save()
    resumed = Run(runs[0].config, runs[0].folder.path, bills)
    assert resumed.resume()
    resumed.publish()
    for run in (resumed, runs[1]):
        while run.step < 4:
            run.advance()
    assert not resumed.due.rollouts
    assert same(weights_of(resumed.folder.path)[POLICY], weights_of(runs[1].folder.path)[POLICY])


def test_more_passes_over_the_groups_are_the_policys_alone(dealt):
    """Two epochs of two updates: every group twice, every call once, a seed for each; tokens are counted."""
    run = dealt([MIXED] * 3, **{"policy.groups_per_update": 2, "policy.epochs": 2, "world_model.updates": 0})
    seen, update = [], run.learner.update
    run.learner.update = lambda samples, examples, factor, seed: (
        seen.append((len(samples), len(examples), seed)) or update(samples, examples, factor, seed)
    )
    run.publish()
    metrics = run.advance()
    assert [samples for samples, _, _ in seen] == [4, 2, 4, 2]
    assert [examples for _, examples, _ in seen] == [3, 3, 0, 0] and len({seed for _, _, seed in seen}) == 4
    assert metrics["trained_tokens"] == 2 * 6 * 8 + 6 * 4 and metrics["sampled_tokens"] == 0


def test_curiosity_is_added_to_what_the_policy_is_rewarded_for(dealt, monkeypatch):
    """Group 0: rewards 1 + 2 * 0.5 and 0 + 0 without a call; groups are still kept for their outcome alone."""
    settings = {"world_model.curiosity": 2.0, "rollout.tasks_per_step": 2, "world_model.updates": 0}
    run = dealt([MIXED, LOST], **settings)
    asked, rewards = [], []
    monkeypatch.setattr(run.learner, "surprise", lambda calls: asked.append(calls) or [1.0] * len(calls))
    learn, sample = run._learn, run.sample_groups

    def remember(kept, *rest):
        rewards.append([row.outcome.reward for row in kept])
        return learn(kept, *rest)

    def one_without_a_call():
        rows = sample()
        rows[1].examples = []
        return rows

    monkeypatch.setattr(run, "_learn", remember)
    monkeypatch.setattr(run, "sample_groups", one_without_a_call)
    run.publish()
    metrics = run.advance()
    assert rewards == [[2.0, 0.0]] and metrics["surprise"] == 0.25  # one nat, two reply tokens
    assert [len(calls) for calls in asked] == [1] and metrics["groups_kept"] == 1 and metrics["train_success"] == 0.25


def test_importance_sampling_starts_from_the_step(dealt, monkeypatch):
    """The second update of a step still has the learner's log-probs from before the first one; without a cap, none."""
    for cap in (2.0, 0.0):
        run = dealt([MIXED] * 3, **{"policy.groups_per_update": 2, "policy.tis_cap": cap, "world_model.updates": 0})
        asked, given = [], []
        own = lambda samples, to=asked: to.append(1) or [[float(i)] for i in range(len(samples))]  # noqa: E731
        monkeypatch.setattr(run.learner, "action_logprobs", own)
        told = lambda samples, *_, to=given: to.append([s.own for s in samples]) or {}  # noqa: E731
        monkeypatch.setattr(run.learner, "update", told)
        run.publish()
        run.advance()
        expected = [[[0.0], [1.0], [2.0], [3.0]], [[4.0], [5.0]]]
        assert (asked, given) == (([1], expected) if cap else ([], [[None] * 4, [None] * 2]))


def test_the_gap_and_the_weights_are_logged(config, tmp_path, bills):
    """Torch engine and learner agree: the mean weight of the first update is 1, and so nearly of the step."""
    settings = {"policy.tis_cap": 2.0, "rollout.group_size": 4, "rollout.tasks_per_step": 4, "task_budget": 4}
    run = Run(config(seed=5, **settings), tmp_path, bills)
    run.publish()
    metrics = run.advance()
    assert metrics["groups_kept"] > 2 and metrics["policy/tis_weight"] == pytest.approx(1, abs=1e-3)
    assert metrics["policy/logprob_gap"] > 1e-3  # the second update comes after the first


# --- schedules, signals, small things --------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "factor"),
    [(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0), (54, 0.55), (104, 0.1), (500, 0.1), (29, 0.55 + 0.45 * math.sqrt(0.5))],
)
def test_learning_rate_by_hand(tasks, factor):
    """Four tasks of warm-up, then half a cosine from 1 at 4 to 0.1 at 104."""
    assert lr_factor(tasks, budget=104, warmup=4) == pytest.approx(factor)


def test_learning_rate_without_a_warm_up():
    assert lr_factor(0, 100, 0) == 1.0
    assert lr_factor(5, 5, 5) == 1.0  # nothing left after the warm-up


@pytest.mark.parametrize(
    ("evaluated_at", "seen", "due"),
    [(-1, 0, True), (0, 0, False), (0, 7, False), (0, 8, True), (0, 9, True), (9, 15, False), (9, 16, True),
     (16, 20, True), (20, 20, False)],
)  # fmt: skip
def test_when_an_evaluation_is_due(config, tmp_path, generous, evaluated_at, seen, due):
    """At the start, whenever a multiple of 8 tasks was passed, and at the end of 20."""
    run = Run(config(task_budget=20, eval_every=8), tmp_path, generous)
    run.evaluated_at, run.tasks_seen = evaluated_at, seen
    assert _evaluation_due(run) is due


def test_the_first_signal_is_noted_a_second_ctrl_c_is_obeyed():
    """SIGTERM may come twice: from a batch system to all processes, and from the sweep that the run is one of."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), _interruptible() as received:
        assert not received
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM] * 2
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_has_no_signals_to_catch():
    entered = []

    def work():
        with _interruptible() as received:
            entered.append(list(received))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [[]]


def test_a_bar_shows_what_happens(config, tmp_path, generous, capsys):
    settings = {"task_budget": 2, "rollout.tasks_per_step": 1, "rollout.group_size": 2, "eval_splits": ["train"]}
    train(config(**settings, name="shown"), tmp_path, generous)
    shown = capsys.readouterr().err
    assert "shown: 100%" in shown and "2/2" in shown
    assert all(name in shown for name in ("success=", "loss="))


def test_missing_folders_are_one_sentence(config, tmp_path, generous):
    with pytest.raises(RunError, match=r"is no run folder \(config.json is missing\)"):
        load_player(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no base model in 'nowhere'"):
        Run(config(**{"model.base": "nowhere"}), tmp_path, generous)
    RunFolder(tmp_path).begin(config())
    with pytest.raises(RunError, match=r"holds no adapters; train there first: `lfo train --run"):
        load_player(tmp_path)
    (other := tmp_path / "adapters" / "v00001" / "other").mkdir(parents=True)
    save_file({"w": torch.ones(2)}, other / "adapter_model.safetensors")
    with pytest.raises(RunError, match="has no policy adapter"):
        load_player(tmp_path)


def test_no_task_at_a_level_is_said_before_anything_is_trained(config, tmp_path, generous):
    with pytest.raises(ValueError, match="no training task at these levels"):
        Run(config(), tmp_path, PhoneEnvironment(generous.world, levels=(5,)))


def test_the_learners_turn_is_announced(make_config, tmp_path, generous, monkeypatch):
    """An engine that shares the learner's GPU gives its memory back after the rollouts, before the updates."""
    order = []
    run = Run(make_config(), tmp_path, generous)
    run.publish()
    for owner, name in ((run.engine, "ready"), (run.engine, "sleep"), (run, "_learn"), (run.engine, "load")):
        monkeypatch.setattr(owner, name, spied(order, name, getattr(owner, name)))
    run.advance()
    assert [name for i, name in enumerate(order) if order[i - 1] != name] == ["ready", "sleep", "_learn", "load"]


def spied(order: list, name: str, act):
    def call(*args, **kwargs):
        order.append(name)
        return act(*args, **kwargs)

    return call


def test_a_run_goes_on_in_the_precision_it_began_with(config, tmp_path, generous, monkeypatch):
    """Chosen by the device at first; what was chosen stands in the provenance."""
    auto = config(**{"model.autocast": "auto"})
    monkeypatch.setattr("lfo.train.bf16_pays", lambda device: True)
    run = Run(auto, tmp_path, generous)
    assert run.bf16
    run.folder.begin(auto, bf16=run.bf16)
    monkeypatch.setattr("lfo.train.bf16_pays", lambda device: False)
    assert not uses_bf16(auto, run.folder)  # no checkpoint: it begins anew
    run.save()
    assert uses_bf16(auto, run.folder)
    assert not uses_bf16(config(), run.folder)


def test_every_evaluation_leaves_a_line_in_the_log(config, tmp_path, generous, capsys):
    train(config(task_budget=2, eval_every=2, eval_splits=["train"]), tmp_path, generous, progress=False)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines if "of 2 tasks" in line] == ["0 of 2 tasks", "2 of 2 tasks"]
    assert all("success on train" in line for line in lines if "of 2 tasks" in line)
