"""A run under PPO: it learns, drops no group, is resumed exactly, and what else learns beside it still does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_toy import Even, EvenGuesses, Evenness, Stopped, metrics_of

from lfo.config import RunConfig
from lfo.envs.base import written
from lfo.lab.player import load_player
from lfo.learn.learner import VALUE_HEAD
from lfo.runs import CheckpointError, RunFolder
from lfo.train import Run, train
from lfo.types import Call, StopReason, Turn, by_group

PPO = {"policy.clip": [0.2, 0.2], "policy.epochs": 2, "policy.groups_per_update": 2, "ppo.value_weight": 0.5}


@pytest.fixture(scope="module")
def ppo(make_config):
    """ppo(**settings): rollouts of eight tasks a step, one each; without a world model, where nothing is set of it."""

    def make(**settings) -> RunConfig:
        defaults = {} if any(name.startswith("world_model.") for name in settings) else {"world_model": None}
        defaults |= {"rollout.group_size": 1, "rollout.tasks_per_step": 8, "task_budget": 32}
        defaults |= {"eval_splits": ["validation"], "eval_every": 16}
        return make_config(**(defaults | PPO | settings))

    return make


def steps_of(folder: Path) -> list[dict]:
    return [row for row in metrics_of(folder) if row["kind"] == "step"]


def published(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The newest policy and the value head beside it."""
    policy = RunFolder(folder).adapters()["policy"]
    files = {"policy": policy / "adapter_model.safetensors", VALUE_HEAD: policy.parent / f"{VALUE_HEAD}.safetensors"}
    return {name: load_file(path) for name, path in files.items() if path.exists()}


def same(one: dict, other: dict) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(
        torch.equal(one[name][k], other[name][k]) for name in one for k in one[name]
    )


@pytest.fixture(scope="module")
def finished(ppo, tmp_path_factory) -> Path:
    return train(ppo(), tmp_path_factory.mktemp("ppo") / "whole", Evenness(), progress=False)


class Said(Even):
    """Two tokens with an e among their letters succeed."""

    def step(self, action) -> str:
        right = "e" in written(action)
        self.turns.append(Turn(action, "right" if right else "wrong", "said"))
        self.stop = StopReason.SUCCESS if right else StopReason.AGENT_STOPPED
        return self.turns[-1].observation


class Saying(Evenness):
    def episode(self, task, seed, responder=None):
        return Said(task)


@pytest.mark.parametrize("critic", [True, False])
def test_success_rises(ppo, tmp_path, critic):
    """Sixteen steps of 64 rollouts, of which the first three and the last three are compared."""
    settings = {"rollout.max_action_tokens": 2, "rollout.tasks_per_step": 64, "task_budget": 1024, "eval_every": 1024}
    config = ppo(**settings, **{"ppo.critic": critic, "policy.epochs": 4, "policy.groups_per_update": 16})
    success = [row["train_success"] for row in steps_of(train(config, tmp_path, Saying(), progress=False))]
    assert len(success) == 16 and sum(success[-3:]) / 3 > sum(success[:3]) / 3 + 0.1


def test_no_group_is_dropped_and_the_value_head_is_trained(finished):
    steps = steps_of(finished)
    assert [(row["tasks"], row["groups_kept"]) for row in steps] == [(8, 8), (16, 8), (24, 8), (32, 8)]
    for row in steps:
        told = ("loss", "value_loss", "kl", "ratio_clipped", "neg_logprob", "explained_variance", "grad_norm")
        assert {f"policy/{name}" for name in told} <= set(row) and row["value_head/grad_norm"] > 0
        assert row["policy/value_loss"] >= 0 and row["policy/explained_variance"] <= 1
    assert steps[0]["policy/explained_variance"] == pytest.approx(0, abs=1e-6)  # it says 0 everywhere
    assert any(abs(row["policy/explained_variance"]) > 1e-4 for row in steps[1:])


def test_the_value_head_lies_beside_the_adapter_and_nobody_who_acts_asks_for_it(finished):
    assert set(RunFolder(finished).adapters()) == {"policy"} == set(load_player(finished, Evenness()).adapters)
    head = published(finished)[VALUE_HEAD]
    assert {k: tuple(v.shape) for k, v in head.items()} == {"weight": (1, 32), "bias": (1,)} and head["weight"].any()


@pytest.mark.parametrize("way", ["values", "running mean", "ahead"])
def test_it_goes_on_where_it_was_stopped(ppo, tmp_path, monkeypatch, way):
    """Stopped in the third step, after sampling; also with rollouts of the next step in the checkpoint."""
    behind = {"rollout.asynchronous": True, "policy.tis_cap": 2.0}
    config = ppo(**{"ppo.critic": way != "running mean", "model.dropout": 0.1} | (behind if way == "ahead" else {}))
    whole, folder, advance = tmp_path / "whole", tmp_path / "stopped", Run.advance
    train(config, whole, Evenness(), progress=False)

    def stop_in_the_third(self):
        if self.step == 2:
            self._sample()
            raise Stopped
        return advance(self)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Run, "advance", stop_in_the_third)
        train(config, folder, Evenness(), progress=False)
    assert len(steps_of(folder)) == 2
    train(config, folder, Evenness(), progress=False)
    assert metrics_of(folder) == metrics_of(whole) and same(published(folder), published(whole))
    assert (VALUE_HEAD in published(whole)) == (way != "running mean")
    runs = [Run(config, each, Evenness()) for each in (folder, whole)]
    assert all(run.resume() for run in runs) and runs[0].objective.state == runs[1].objective.state
    assert bool(runs[0].objective.state) == (way == "running mean")
    ours, theirs = (run.learner.parameters(VALUE_HEAD) for run in runs)
    assert len(ours) == (0 if way == "running mean" else 2)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_run_of_dapo_is_not_resumed_as_ppo(finished, ppo):
    with pytest.raises(CheckpointError, match=r"\(ppo, rollout.group_size differ\)"):
        Run(ppo(ppo=None, **{"rollout.group_size": 2}), finished, Evenness()).resume()


def test_every_pass_deals_the_rollouts_out_anew(ppo, tmp_path, monkeypatch):
    """Eight rollouts, two to an update, two passes: each pass has all of them, in another order; the seed decides."""
    run, seen = Run(ppo(), tmp_path, Evenness()), []
    monkeypatch.setattr(
        run.learner, "update", lambda samples, *rest: seen.append([id(s.tokens) for s in samples]) or {}
    )
    run.publish()
    rows = run.sample_groups()
    list(run._joint(run._updates(run._kept(rows)), [], [], 1, 1.0))
    assert [len(part) for part in seen] == [2] * 8
    first, second = ([i for part in half for i in part] for half in (seen[:4], seen[4:]))
    assert sorted(first) == sorted(second) == sorted(id(row.tokens) for row in rows) and first != second
    again, seen[:] = list(seen), []
    list(run._joint(run._updates(run._kept(rows)), [], [], 1, 1.0))
    assert seen == again


def test_scouts_teach_nothing_and_one_rollout_is_enough(ppo, tmp_path):
    """Of two rollouts of a task one is a scout."""
    settings = {"world_model.coupling": "memory", "world_model.scouts": 1, "rollout.group_size": 2}
    run = Run(ppo(**settings), tmp_path, EvenGuesses())
    run.publish()
    rows = run.sample_groups()
    kept = run._kept(rows)
    assert sum(row.scout for row in rows) == len(kept) == len(by_group(kept)) == 8 and not any(r.scout for r in kept)


class Counted(Even):
    """Whatever is said counts as the number one, so that there is a reply to be learned."""

    def step(self, action) -> str:
        return super().step(Call("count", {"number": "1"})) if len(written(action)) % 2 else super().step(action)


class CountedGuesses(EvenGuesses):
    def episode(self, task, seed, responder=None):
        return Counted(task)


COUPLINGS = ["none", "shared", "echo", "stacked", "imagine", "imagine_memory", "memory", "truth"]


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_it_learns_beside_every_coupling(ppo, tmp_path, coupling):
    """With what else there is to learn, and what is added to the objective."""
    settings = {"world_model.coupling": coupling, "task_budget": 8, "eval_every": 8}
    settings |= {"policy.entropy": 0.01, "policy.kl": 0.01, "policy.imitate": 0.5, "policy.tis_cap": 2.0}
    if coupling == "imagine":
        settings["world_model.context_distillation"] = 0.5
    if coupling == "echo":
        settings["policy.epochs"] = 1
    (step,) = steps_of(train(ppo(**settings), tmp_path, CountedGuesses(), progress=False))
    names = {"policy/loss", "policy/value_loss", "policy/entropy", "policy/kl_to_base", "policy/tis_weight"}
    assert names <= set(step) and ("distillation/neg_logprob" in step) == (coupling == "imagine")
    assert ("replay/world_model/loss" in step) == (coupling not in ("memory", "truth"))
    assert not any(json.dumps(value) in ("NaN", "Infinity") for value in step.values())
