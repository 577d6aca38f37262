"""learner: which weights each loss reaches, clipping, replay, checkpoints, and that the sampler sees the same model."""

from __future__ import annotations

import dataclasses
import math
import random
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lfo.base import load_base
from lfo.config import ConfigError
from lfo.learner import (
    POLICY,
    WORLD_MODEL,
    CheckpointError,
    Learner,
    ReplayBuffer,
    merge_adapter,
    micro_batches,
    shares,
)
from lfo.objectives import dapo_loss, world_model_loss
from lfo.records import Turn
from lfo.rollout import Prompt, TorchEngine
from lfo.tokens import CallExample, Role, collate_calls, collate_trajectories, without

ADVANTAGES = [1.0, -0.5, 2.0, -1.0]


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(20, 1000) for _ in range(count)]


@pytest.fixture(scope="module")
def calls() -> list[CallExample]:
    """Five world-model examples of different lengths."""
    rng = random.Random(2)
    return [CallExample(tuple(ids(rng, 4 + 3 * i)), tuple(ids(rng, 2 + i)), "success", "", "t") for i in range(5)]


@pytest.fixture(scope="module")
def rows(make_trajectory, make_config):
    """Four trajectories of two groups with 5 to 14 tokens; log-probs are the untrained policy's: all ratios are 1."""
    rng = random.Random(1)
    pieces = [[3, 2], [4, 3, 2, 1], [2, 5, 3, 4], [3, 1, 2, 2]]
    rows = [make_trajectory(*(ids(rng, n) for n in sizes), group=i // 2) for i, sizes in enumerate(pieces)]
    return as_sampled_by(Learner(make_config(), 0), rows)


def as_sampled_by(learner: Learner, rows):
    """The rows with the log-probs that this policy gives their actions."""
    learner.activate(POLICY)
    out = []
    for row in rows:
        with torch.no_grad():
            logprobs, _ = learner.token_logprobs(collate_trajectories([row], [0.0], 0))
        acted = iter(logprobs.tolist())
        logprobs = [next(acted) if role == Role.ACTION else 0.0 for role in row.roles]
        out.append(dataclasses.replace(row, logprobs=logprobs))
    return out


@pytest.fixture
def make_learner(make_config):
    """make_learner(**settings): a learner on the toy base whose adapters have started to differ from nothing."""

    def make(**settings) -> Learner:
        learner = Learner(make_config(**settings), pad_id=0)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for name in learner.adapters:
                for parameter in learner.parameters(name):
                    parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        return learner

    return make


def weights(learner: Learner, adapter: str) -> list[torch.Tensor]:
    return [p.detach().clone() for p in learner.parameters(adapter)]


def gradients(learner: Learner, adapter: str) -> list:
    return [p.grad for p in learner.parameters(adapter)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Bit for bit."""
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# --- what is trained -------------------------------------------------------------------------


@pytest.mark.parametrize("first", [POLICY, WORLD_MODEL])
def test_after_every_activation_both_adapters_train_and_the_base_does_not(make_learner, first):
    learner = make_learner()
    second = WORLD_MODEL if first == POLICY else POLICY
    for active in (first, second, second, first):
        learner.activate(active)
        trainable = {n for n, p in learner.model.named_parameters() if p.requires_grad}
        assert trainable == {n for n, _ in learner.model.named_parameters() if ".lora_" in n}
        assert {n.split(".")[-2] for n in trainable} == {POLICY, WORLD_MODEL}
        assert learner.model.active_adapter == active


def test_one_optimizer_has_one_group_per_adapter(make_learner):
    learner = make_learner()
    groups = learner.optimizer.param_groups
    assert [g["name"] for g in groups] == [POLICY, WORLD_MODEL]
    held = {id(p) for g in groups for p in g["params"]}
    assert held == {id(p) for n, p in learner.model.named_parameters() if ".lora_" in n}
    assert sum(len(g["params"]) for g in groups) == len(held)


@pytest.mark.parametrize(
    ("targets", "modules"),
    [
        ("qvo", {"q_proj", "v_proj", "o_proj"}),
        ("all-linear", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
    ],
)
def test_targets_of_the_adapters(make_learner, targets, modules):
    learner = make_learner(**{"model.targets": targets})
    assert {
        n.split(".lora_")[0].split(".")[-1] for n, _ in learner.model.named_parameters() if ".lora_" in n
    } == modules


def test_the_policy_starts_the_same_with_and_without_a_world_model(make_config):
    """Seeded apart, so that the baseline and the dual run differ by what is learned alone."""
    settings = ({}, {"world_model.predict": "nothing"}, {"world_model.coupling": "shared"})
    starts = [Learner(make_config(**s), 0) for s in settings]
    assert all(same(weights(starts[0], POLICY), weights(other, POLICY)) for other in starts[1:])
    assert [s.adapters for s in starts] == [[POLICY, WORLD_MODEL], [POLICY], [POLICY]]
    assert not same(weights(starts[0], POLICY), weights(Learner(make_config(seed=1), 0), POLICY))


# --- which loss reaches which adapter --------------------------------------------------------


def test_gradients_do_not_cross(make_learner, rows, calls):
    learner = make_learner()
    learner.activate(WORLD_MODEL)
    world_model_loss(*learner.token_logprobs(collate_calls(calls, 0))).mean().backward()
    assert gradients(learner, POLICY) == [None] * len(learner.parameters(POLICY))
    assert all(g.abs().sum() > 0 for g in gradients(learner, WORLD_MODEL))
    learner.model.zero_grad(set_to_none=True)
    learner.activate(POLICY)
    logprobs, _ = learner.token_logprobs(collate_trajectories(rows, ADVANTAGES, 0))
    dapo_loss(logprobs, logprobs.detach(), torch.ones_like(logprobs)).mean().backward()
    assert gradients(learner, WORLD_MODEL) == [None] * len(learner.parameters(WORLD_MODEL))
    assert all(g.abs().sum() > 0 for g in gradients(learner, POLICY))


def updated(learner: Learner, rows, calls) -> Learner:
    """Three joint updates, each followed by replay - where lambda is not 0, as in the loop."""
    for step in range(3):
        learner.joint_update(rows, ADVANTAGES, calls, 1.0, seed=step)
        for i in range(2 if learner.config.world_model.lam > 0 else 0):
            learner.replay_update(calls[i:], 1.0, seed=100 * step + i)
    return learner


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_coupling_none_leaves_the_policy_untouched_by_lambda(make_learner, rows, calls, dropout):
    """The negative control, bit for bit: with disjoint adapters lambda cannot reach the policy."""
    before = weights(make_learner(), POLICY)
    settings = {"model.dropout": dropout, "weight_decay": 0.1}
    runs = {lam: updated(make_learner(**settings, **{"world_model.lam": lam}), rows, calls) for lam in (0.0, 0.5, 2.0)}
    assert not same(before, weights(runs[0.0], POLICY))
    assert same(weights(runs[0.0], POLICY), weights(runs[0.5], POLICY))
    assert same(weights(runs[0.0], POLICY), weights(runs[2.0], POLICY))
    assert not same(weights(runs[0.0], WORLD_MODEL), weights(runs[0.5], WORLD_MODEL))


def test_on_an_adapter_of_its_own_lambda_is_hardly_a_lever(make_learner, rows, calls):
    """AdamW divides a gradient's scale out again: fourfold lambda changes each step by far less than the step."""
    settings = {"world_model.max_grad_norm": 1e9}
    start = weights(make_learner(**settings), WORLD_MODEL)
    ends = []
    for lam in (0.5, 2.0):
        learner = make_learner(**settings, **{"world_model.lam": lam})
        updated(learner, rows, calls)
        ends.append(weights(learner, WORLD_MODEL))
    moved = sum((a - b).norm() for a, b in zip(ends[0], start, strict=True))
    apart = sum((a - b).norm() for a, b in zip(*ends, strict=True))
    assert moved > 0 and apart < 0.02 * moved


def test_coupling_shared_is_one_adapter_that_lambda_reaches(make_learner, rows, calls):
    runs = {}
    for lam in (0.0, 0.5):
        learner = make_learner(**{"world_model.coupling": "shared", "world_model.lam": lam})
        assert (learner.adapters, learner.world_adapter) == ([POLICY], POLICY)
        metrics = learner.joint_update(rows, ADVANTAGES, calls, 1.0, seed=0)
        assert set(metrics) >= {"policy/loss", "policy/grad_norm"} and "world_model/grad_norm" not in metrics
        runs[lam] = weights(learner, POLICY)
    assert not same(runs[0.0], runs[0.5])


def test_shared_gradient_is_policy_plus_lambda_times_world_model(make_learner, rows, calls, monkeypatch):
    learner = make_learner(**{"world_model.coupling": "shared", "world_model.lam": 0.3, "policy.max_grad_norm": 1e9})
    rows = as_sampled_by(learner, rows)
    learner.activate(POLICY)
    logprobs, _ = learner.token_logprobs(collate_trajectories(rows, ADVANTAGES, 0))
    counts = [sum(role == Role.ACTION for role in row.roles) for row in rows]
    per_token = torch.tensor([a for a, n in zip(ADVANTAGES, counts, strict=True) for _ in range(n)])
    world = world_model_loss(*learner.token_logprobs(collate_calls(calls, 0)))
    total = dapo_loss(logprobs, logprobs.detach(), per_token).mean() + 0.3 * world.mean()
    expected = torch.autograd.grad(total, learner.parameters(POLICY))
    seen = []
    monkeypatch.setattr(learner.optimizer, "step", lambda: seen.extend(g.clone() for g in gradients(learner, POLICY)))
    learner.joint_update(rows, ADVANTAGES, calls, 1.0, seed=0)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(seen, expected, strict=True))


@pytest.fixture
def replied(make_trajectory):
    """Four trajectories of two groups whose observations are phone answers of 3 to 5 tokens, tags aside."""
    rng, call = random.Random(5), Turn("call", "reply", "make_phone_call", "auth_failed")
    pieces = [[3, 2, 5, 2], [4, 3, 6], [2, 5, 5, 4], [3, 1, 6, 2]]
    return [make_trajectory(*(ids(rng, n) for n in sizes), group=i // 2, turns=[call] * 2)
            for i, sizes in enumerate(pieces)]  # fmt: skip


def test_replies_are_learned_in_the_policys_own_forward_pass(make_learner, replied, monkeypatch):
    """One pass; its gradient is DAPO's on the rows with an advantage plus lambda * cross-entropy on all replies."""
    settings = {"world_model.coupling": "shared", "world_model.template": "trajectory", "world_model.lam": 0.3}
    learner = make_learner(**settings, **{"policy.max_grad_norm": 1e9})
    rows, advantages = as_sampled_by(learner, replied), [*ADVANTAGES[:3], None]
    learner.activate(POLICY)
    policy, _ = learner.token_logprobs(collate_trajectories(rows[:3], ADVANTAGES[:3], 0))
    counts = [sum(role == Role.ACTION for role in row.roles) for row in rows[:3]]
    per_token = torch.tensor([a for a, n in zip(ADVANTAGES, counts, strict=False) for _ in range(n)])
    heard = world_model_loss(*learner.token_logprobs(collate_trajectories(rows, [None] * 4, 0, "phone")))
    total = dapo_loss(policy, policy.detach(), per_token).mean() + 0.3 * heard.mean()
    expected = torch.autograd.grad(total, learner.parameters(POLICY))
    passes, forward = [], learner.token_logprobs
    monkeypatch.setattr(learner, "token_logprobs", lambda *a: passes.append(1) or forward(*a))
    seen, metrics = gradients_of_update(
        learner, monkeypatch, lambda: learner.joint_update(rows, advantages, [], 1.0, 0)
    )
    assert len(passes) == 1 and heard.count == 3 + 5 + 3 + 4
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(seen[POLICY], expected, strict=True))
    assert metrics["world_model/loss"] == pytest.approx(heard.mean().item(), rel=1e-5)
    assert metrics["policy/loss"] == pytest.approx(dapo_loss(policy, policy, per_token).mean().item(), abs=1e-5)
    alone = learner.joint_update(rows, [None] * 4, [], 1.0, 0)
    assert "world_model/loss" in alone and "policy/loss" not in alone


@pytest.mark.parametrize("template", ["call", "trajectory"])
def test_shared_without_lambda_is_the_baseline(make_learner, replied, calls, template):
    """Bit for bit, whatever there is to hear."""
    shared = {"world_model.coupling": "shared", "world_model.lam": 0.0, "world_model.template": template}
    runs = [make_learner(**shared), make_learner(**{"world_model.predict": "nothing"})]
    for learner, heard in zip(runs, (calls, []), strict=True):  # a baseline hears nothing
        for step in range(3):
            learner.joint_update(replied, ADVANTAGES, heard, 1.0, seed=step)
    assert same(weights(runs[0], POLICY), weights(runs[1], POLICY))


def shaken(learner: Learner) -> Learner:
    """The world model far from nothing, and from its running average."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in learner.parameters(WORLD_MODEL):
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return learner


def test_stacked_adapters_act_together_and_learn_apart(make_learner, rows, calls, monkeypatch):
    """The policy's loss depends on the world model and moves the policy alone; the world model learns as in `none`."""
    seen = {}
    for coupling in ("none", "stacked"):
        learner = shaken(make_learner(**{"world_model.coupling": coupling}))
        acted, _ = gradients_of_update(
            learner, monkeypatch, lambda x=learner: x.joint_update(rows, ADVANTAGES, [], 1, 0)
        )
        assert all(g is None for g in acted[WORLD_MODEL]) and all(g.abs().sum() > 0 for g in acted[POLICY])
        both, _ = gradients_of_update(
            learner, monkeypatch, lambda x=learner: x.joint_update(rows, ADVANTAGES, calls, 1, 0)
        )
        assert same(both[POLICY], acted[POLICY])
        seen[coupling] = both
    assert same(seen["none"][WORLD_MODEL], seen["stacked"][WORLD_MODEL])
    assert not any(torch.allclose(a, b) for a, b in zip(seen["none"][POLICY], seen["stacked"][POLICY], strict=True))


@pytest.fixture
def imagining(make_trajectory):
    """Four trajectories of two groups; two tokens before the last action are imagined, in the last row none."""
    rng = random.Random(6)
    rows = [make_trajectory(*(ids(rng, n) for n in (3, 2, 5, 2 + i)), group=i // 2) for i in range(4)]
    for row in rows[:3]:
        row.roles[7:9] = [int(Role.IMAGINED)] * 2
    return rows


def test_internalising_is_advantage_weighted_likelihood_without_the_imagined_tokens(
    make_learner, imagining, monkeypatch
):
    """Added to the policy's gradient: weight times that of -A log p of the actions, imagined tokens cut out."""
    seen = {}
    for weight in (0.0, 0.5):
        settings = {"world_model.coupling": "imagine", "policy.internalise": weight, "policy.max_grad_norm": 1e9}
        learner = make_learner(**settings)
        seen[weight], metrics = gradients_of_update(
            learner, monkeypatch, lambda x=learner: x.joint_update(imagining, ADVANTAGES, [], 1.0, 0)
        )
        assert ("internalise/neg_logprob" in metrics) == (weight > 0)
    learner.activate(POLICY)
    learner.model.zero_grad(set_to_none=True)
    bare = [without(row, Role.IMAGINED) for row in imagining[:3]]
    logprobs, _ = learner.token_logprobs(collate_trajectories(bare, ADVANTAGES[:3], 0))
    per_token = torch.tensor([a for i, a in enumerate(ADVANTAGES[:3]) for _ in range(4 + i)])
    expected = torch.autograd.grad(-0.5 * (per_token * logprobs).mean(), learner.parameters(POLICY))
    added = [a - b for a, b in zip(seen[0.5][POLICY], seen[0.0][POLICY], strict=True)]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(added, expected, strict=True))
    assert metrics["internalise/neg_logprob"] == pytest.approx(-logprobs.mean().item(), rel=1e-4)
    assert all(g is None for g in seen[0.5][WORLD_MODEL])


def test_nothing_imagined_is_nothing_to_internalise(make_learner, rows):
    """Bit for bit the update without it."""
    runs = [make_learner(**{"world_model.coupling": "imagine", "policy.internalise": w}) for w in (0.0, 0.5)]
    for learner in runs:
        assert "internalise/neg_logprob" not in learner.joint_update(rows, ADVANTAGES, [], 1.0, seed=0)
    assert same(weights(runs[0], POLICY), weights(runs[1], POLICY))


# --- updates ---------------------------------------------------------------------------------


def gradients_of_update(learner: Learner, monkeypatch, update) -> tuple[dict[str, list], dict[str, float]]:
    """Gradients of every adapter as the optimizer would see them, and the update's metrics."""
    seen: dict[str, list] = {}

    def step():
        seen.update({n: [None if g is None else g.clone() for g in gradients(learner, n)] for n in learner.adapters})

    monkeypatch.setattr(learner.optimizer, "step", step)
    return seen, update()


def norm(grads: list[torch.Tensor]) -> float:
    return torch.cat([g.flatten() for g in grads]).norm().item()


def test_each_adapter_is_clipped_by_itself(make_learner, rows, calls, monkeypatch):
    """A joint clip to 0.002 would leave the policy with its small share of the joint norm instead."""
    limits = {"policy.max_grad_norm": 0.002, "world_model.max_grad_norm": 0.001}
    learner = make_learner(**limits)
    seen, metrics = gradients_of_update(
        learner, monkeypatch, lambda: learner.joint_update(rows, ADVANTAGES, calls, 1.0, 0)
    )
    assert norm(seen[POLICY]) == pytest.approx(0.002, rel=1e-3)
    assert norm(seen[WORLD_MODEL]) == pytest.approx(0.001, rel=1e-3)
    free = make_learner(**dict.fromkeys(limits, 1e9))
    unclipped, _ = gradients_of_update(free, monkeypatch, lambda: free.joint_update(rows, ADVANTAGES, calls, 1.0, 0))
    for name in (POLICY, WORLD_MODEL):  # what is reported is the norm before clipping
        assert metrics[f"{name}/grad_norm"] == pytest.approx(norm(unclipped[name]), rel=1e-4)
        assert metrics[f"{name}/grad_norm"] > 0.01


def test_lambda_multiplies_the_world_models_gradient_once(make_learner, rows, calls, monkeypatch):
    grads = []
    for lam in (0.5, 2.0):
        learner = make_learner(**{"world_model.lam": lam, "world_model.max_grad_norm": 1e9})
        joint, _ = gradients_of_update(learner, monkeypatch, lambda x=learner: x.joint_update([], [], calls, 1.0, 0))
        learner.optimizer.zero_grad()
        replay, _ = gradients_of_update(learner, monkeypatch, lambda x=learner: x.replay_update(calls, 1.0, 0))
        assert same(joint[WORLD_MODEL], replay[WORLD_MODEL])
        grads.append(joint[WORLD_MODEL])
    assert all(torch.allclose(4 * a, b, rtol=1e-4, atol=1e-7) for a, b in zip(*grads, strict=True))


def test_micro_batches_give_the_gradient_of_one_batch(make_learner, rows, calls, monkeypatch):
    seen = []
    for budget in (10_000, 1):
        learner = make_learner(**{"distributed.micro_batch_tokens": budget})
        found, metrics = gradients_of_update(
            learner, monkeypatch, lambda x=learner: x.joint_update(rows, ADVANTAGES, calls, 1.0, 0)
        )
        seen.append((found, metrics))
    (one, metrics_one), (many, metrics_many) = seen
    for name in (POLICY, WORLD_MODEL):
        assert all(torch.allclose(a, b, atol=1e-6, rtol=1e-4) for a, b in zip(one[name], many[name], strict=True))
    assert metrics_one == pytest.approx(metrics_many, rel=1e-4, abs=1e-6)


def test_surprise_is_what_a_reply_costs(make_learner, calls):
    """Nats of each reply, whatever the batches and without dropout or gradients; an expected reply costs less."""
    learner = make_learner(**{"model.dropout": 0.5})
    first = learner.surprise(calls)
    one_by_one = make_learner(**{"model.dropout": 0.5, "distributed.micro_batch_tokens": 1})
    assert one_by_one.surprise(calls) == pytest.approx(first, rel=1e-4) and all(nats > 0 for nats in first)
    learner.activate(WORLD_MODEL)
    learner.scorer.eval()
    alone, _ = learner.token_logprobs(collate_calls(calls[2:3], 0))
    assert first[2] == pytest.approx(-alone.sum().item(), rel=1e-4)
    assert all(g is None for g in gradients(learner, WORLD_MODEL)) and learner.surprise([]) == []
    for step in range(5):
        learner.replay_update(calls[:1], 1.0, seed=step)
    assert learner.surprise(calls[:1])[0] < first[0]


def test_tokens_that_were_trained_on_are_counted(make_learner, rows, calls):
    """Everything that goes forward and backward, padding aside; nothing that only goes forward."""
    learner = make_learner()
    policy, world = sum(len(r.tokens) for r in rows), sum(len(c.prompt) + len(c.reply) for c in calls)
    learner.joint_update(rows, ADVANTAGES, calls, 1.0, seed=0)
    assert learner.trained_tokens == policy + world
    learner.replay_update(calls, 1.0, seed=0)
    as_sampled_by(learner, rows)
    assert learner.trained_tokens == policy + 2 * world


def test_micro_batches_by_hand():
    """At most 6 padded tokens: 1 and 3 make 2 x 3; another 3 would make 9."""
    assert list(micro_batches([5, 1, 3, 3], budget=6)) == [[1, 2], [3], [0]]
    assert list(micro_batches([9, 9], budget=6)) == [[0], [1]]  # a row longer than the budget goes alone
    assert list(micro_batches([2, 2, 2], budget=6)) == [[0, 1, 2]]
    assert list(micro_batches([], budget=6)) == []


def test_shares_by_hand():
    """By length 1, 2, 2, 3, 9: every second row to each; the other process waits while rows of 9 and 3 go alone."""
    assert shares([3, 1, 2, 9, 2], budget=6, processes=2) == [[[1, 4], [3]], [[2, 0], []]]
    assert shares([5], budget=6, processes=3) == [[[0]], [[]], [[]]]
    assert shares([], budget=6, processes=2) == [[], []]
    assert shares([3, 1, 3], budget=6, processes=1) == [[[1, 0], [2]]]


# --- compiled --------------------------------------------------------------------------------


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler on this machine")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")  # torch's own, from within
def test_compiled_layers_give_the_same_sums(make_learner, calls):
    """Loss and gradients, at lengths that were compiled for and at others."""
    plain, compiled = make_learner(), make_learner(**{"distributed.compile": True})
    for some in (calls, calls[1:3]):
        losses, grads = [], []
        for learner in (plain, compiled):
            losses.append(learner._world_backward(some, 0.5).mean().item())
            grads.append(gradients(learner, WORLD_MODEL))
            learner.optimizer.zero_grad(set_to_none=True)
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        assert grads[0] and all((a - b).norm() < 1e-4 * a.norm() for a, b in zip(*grads, strict=True))
    layers = [m for m in compiled.model.modules() if getattr(m, "_compiled_call_impl", None)]
    assert len(layers) == compiled.model.config.num_hidden_layers


def test_compiling_without_a_compiler_names_the_remedy(make_learner, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(ConfigError, match=r"install g\+\+, or set distributed.compile to false"):
        make_learner(**{"distributed.compile": True})


# --- what bounds memory ----------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunked_logprobs_are_the_unchunked_ones(make_learner, rows, monkeypatch, chunk):
    """In value and gradient; and never more positions at a time, in the forward pass and when it is made again."""
    whole, chunked = make_learner(), make_learner(**{"distributed.logit_chunk": chunk})
    made, score = [], chunked.scorer._score
    monkeypatch.setattr(
        chunked.scorer, "_score", lambda hidden, *rest: made.append(len(hidden)) or score(hidden, *rest)
    )
    batch = collate_trajectories(rows, ADVANTAGES, 0)
    results = []
    for learner in (whole, chunked):
        learner.activate(POLICY)
        logprobs, correct = learner.token_logprobs(batch, temperature=0.7)
        (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
        results.append((logprobs, correct, gradients(learner, POLICY)))
    (one, right, grads), (other, also_right, other_grads) = results
    assert torch.allclose(one, other, rtol=0, atol=1e-5) and torch.equal(right, also_right)  # 1 row: another kernel
    assert all((a - b).norm() < 1e-5 * a.norm() for a, b in zip(grads, other_grads, strict=True))
    assert max(made) == min(chunk, len(one)) and sum(made) == 2 * len(one)
    nothing = collate_calls([CallExample((1, 2), (), "", "", "")], 0)
    assert [len(t) for t in chunked.token_logprobs(nothing)] == [0, 0]


@pytest.mark.parametrize("autocast", [False, True])
def test_gradient_checkpointing_changes_no_gradient(make_learner, rows, calls, monkeypatch, autocast):
    """Dropout included: the masks of the second forward pass are those of the first."""
    grads = []
    for on in (False, True):
        settings = {"distributed.gradient_checkpointing": on, "distributed.micro_batch_tokens": 20}
        learner = make_learner(**settings, **{"model.dropout": 0.2, "model.autocast": autocast})
        passes = count_passes(learner)
        seen, _ = gradients_of_update(
            learner, monkeypatch, lambda x=learner: x.joint_update(rows, ADVANTAGES, calls, 1.0, 0)
        )
        grads.append((seen, len(passes)))
    (plain, once), (checkpointed, twice) = grads
    assert twice == 2 * once
    for name in (POLICY, WORLD_MODEL):
        assert same(plain[name], checkpointed[name])


def count_passes(learner: Learner) -> list:
    """A list that grows with every pass through the first layer's query projection."""
    passes: list = []
    layer = learner.model.get_base_model().model.layers[0].self_attn.q_proj
    layer.register_forward_hook(lambda *_: passes.append(1))
    return passes


def test_another_adapter_before_the_backward_would_be_noticed(make_learner, rows):
    """peft#2832: layers that run again in the backward pass run with the adapter that is active by then."""
    batch = collate_trajectories(rows, ADVANTAGES, 0)
    grads = {}
    for then in (POLICY, WORLD_MODEL):
        learner = make_learner(**{"distributed.gradient_checkpointing": True})
        learner.activate(POLICY)
        loss = learner.token_logprobs(batch)[0].sum()
        learner.activate(then)
        loss.backward()
        grads[then] = [g if g is None else g.clone() for g in gradients(learner, POLICY)]
    pairs = list(zip(grads[POLICY], grads[WORLD_MODEL], strict=True))
    assert not any(wrong is not None and torch.allclose(right, wrong, rtol=1e-3) for right, wrong in pairs)


def test_a_base_in_bf16_has_adapters_in_fp32(make_learner, rows, calls, tmp_path, toy_path):
    learner = make_learner(**{"distributed.base_dtype": "bfloat16"})
    kinds = {(".lora_" in name, p.dtype) for name, p in learner.model.named_parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    batch = collate_trajectories(rows, ADVANTAGES, 0)
    exact = make_learner().token_logprobs(batch)[0]
    rounded = learner.token_logprobs(batch)[0]
    assert rounded.dtype == torch.float32 and not torch.equal(exact, rounded)
    assert torch.allclose(exact, rounded, atol=0.3)
    losses = [learner.replay_update(calls, 1.0, seed)["world_model/loss"] for seed in range(10)]
    assert losses[-1] < losses[0] - 0.1
    TorchEngine(toy_path).load(learner.save_adapters(tmp_path))


# --- sampler and learner compute differently ---------------------------------------------------


def test_own_logprobs_are_those_of_the_policy_without_dropout(make_learner, rows):
    sharp = make_learner()
    rows = as_sampled_by(sharp, rows)
    expected = [[p for p, role in zip(r.logprobs, r.roles, strict=True) if role == Role.ACTION] for r in rows]
    noisy = make_learner(**{"model.dropout": 0.5, "distributed.micro_batch_tokens": 20})
    for learner in (sharp, noisy):
        found = learner.action_logprobs(rows)
        assert found == [pytest.approx(e, abs=1e-5) for e in expected]
        assert learner.scorer.training
    assert sharp.action_logprobs([]) == []


@pytest.mark.parametrize(("cap", "weight"), [(5.0, 2.0), (1.5, 1.5)])
def test_importance_sampling_weighs_every_token(make_learner, rows, monkeypatch, cap, weight):
    """The sampler thought every action half as likely as the learner does: weight 2, or the cap; all ratios are 1."""
    settings = {"policy.max_grad_norm": 1e9, "policy.tis_cap": cap}
    learner, other = make_learner(**settings), make_learner(**settings)
    rows = as_sampled_by(learner, rows)
    doubted = [dataclasses.replace(row, logprobs=[p - math.log(2) for p in row.logprobs]) for row in rows]
    own = learner.action_logprobs(rows)
    plain, _ = gradients_of_update(other, monkeypatch, lambda: other.joint_update(rows, ADVANTAGES, [], 1.0, 0))
    seen, metrics = gradients_of_update(
        learner, monkeypatch, lambda: learner.joint_update(doubted, ADVANTAGES, [], 1.0, 0, own)
    )
    pairs = zip(seen[POLICY], plain[POLICY], strict=True)
    assert all(torch.allclose(a, weight * b, rtol=1e-3, atol=1e-6) for a, b in pairs)
    assert metrics["policy/tis_weight"] == pytest.approx(weight, rel=1e-4)
    assert metrics["policy/logprob_gap"] == pytest.approx(math.log(2), rel=1e-4)
    assert metrics["policy/ratio_clipped"] == 0 and metrics["policy/kl"] == pytest.approx(0, abs=1e-5)


def test_weight_decay_needs_a_gradient(make_learner, rows, calls):
    learner = make_learner(weight_decay=0.5)
    before = {name: weights(learner, name) for name in learner.adapters}
    learner.replay_update(calls, 1.0, seed=0)
    assert same(weights(learner, POLICY), before[POLICY])
    assert not same(weights(learner, WORLD_MODEL), before[WORLD_MODEL])
    learner = make_learner(weight_decay=0.5)
    learner.joint_update(rows, ADVANTAGES, [], 1.0, seed=0)
    assert not same(weights(learner, POLICY), before[POLICY])
    assert same(weights(learner, WORLD_MODEL), before[WORLD_MODEL])
    after = weights(learner, POLICY)
    learner.joint_update([], [], [], 1.0, seed=0)  # nothing at all
    learner.replay_update(calls, 1.0, seed=0)
    assert same(weights(learner, POLICY), after)  # neither decay nor momentum of the step before
    assert not same(weights(learner, WORLD_MODEL), before[WORLD_MODEL])


def test_metrics_by_hand(make_learner, rows, calls):
    """All ratios are 1: the loss is minus the mean advantage over action tokens; nothing is clipped; no gap."""
    learner = make_learner()
    rows = as_sampled_by(learner, rows)
    counts = [sum(role == Role.ACTION for role in row.roles) for row in rows]
    metrics = learner.joint_update(rows, ADVANTAGES, calls, 1.0, seed=0)
    expected = -sum(a * n for a, n in zip(ADVANTAGES, counts, strict=True)) / sum(counts)
    assert metrics["policy/loss"] == pytest.approx(expected, abs=1e-5)
    assert metrics["policy/ratio_clipped"] == 0.0
    assert metrics["policy/kl"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["policy/logprob_gap"] == pytest.approx(0.0, abs=1e-4)
    logprobs = [p for row in rows for p, role in zip(row.logprobs, row.roles, strict=True) if role == Role.ACTION]
    assert metrics["policy/neg_logprob"] == pytest.approx(-sum(logprobs) / sum(counts), rel=1e-5)
    assert metrics["world_model/loss"] > 0 and 0 <= metrics["world_model/accuracy"] <= 1


def test_the_first_step_moves_every_weight_by_the_learning_rate(make_learner, rows, calls):
    """Adam's first step is the learning rate times the gradient's sign: 0.01 x 0.5, and 0.04 x 0.5."""
    learner = make_learner(**{"policy.learning_rate": 0.01, "world_model.learning_rate": 0.04})
    before = {name: weights(learner, name) for name in learner.adapters}
    learner.joint_update(rows, ADVANTAGES, calls, 0.5, seed=0)
    for name, rate in ((POLICY, 0.005), (WORLD_MODEL, 0.02)):
        moved = torch.cat([(a - b).abs().flatten() for a, b in zip(weights(learner, name), before[name], strict=True)])
        assert moved.max().item() == pytest.approx(rate, rel=1e-3)
        assert moved.median().item() == pytest.approx(rate, rel=1e-2)


def test_learning_learns(make_learner, rows, calls):
    """Better actions become likelier, worse ones rarer; replies become predictable."""
    learner = make_learner()
    rows = as_sampled_by(learner, rows)
    first = learner.joint_update(rows, ADVANTAGES, calls, 1.0, seed=0)
    for step in range(30):
        last = learner.joint_update(rows, ADVANTAGES, calls, 1.0, seed=step)
    assert last["policy/loss"] < first["policy/loss"] - 0.1
    assert last["world_model/accuracy"] > 0.9 > first["world_model/accuracy"]
    learner.activate(POLICY)
    with torch.no_grad():
        for row, advantage in zip(rows, ADVANTAGES, strict=True):
            logprobs, _ = learner.token_logprobs(collate_trajectories([row], [0.0], 0))
            assert (logprobs.sum().item() - sum(row.logprobs)) * advantage > 0


def test_an_empty_replay_changes_nothing(make_learner):
    learner = make_learner()
    before = weights(learner, WORLD_MODEL)
    assert learner.replay_update([], 1.0, seed=0) == {"world_model/loss": 0.0, "world_model/accuracy": 0.0}
    assert same(weights(learner, WORLD_MODEL), before)


def test_bf16_is_close_to_fp32(make_learner, rows):
    full, half = make_learner(), make_learner(**{"model.autocast": True})
    batch = collate_trajectories(rows, ADVANTAGES, 0)
    for learner in (full, half):
        learner.activate(POLICY)
    exact, rounded = full.token_logprobs(batch)[0], half.token_logprobs(batch)[0]
    assert rounded.dtype == torch.float32 and not torch.equal(exact, rounded)
    assert torch.allclose(exact, rounded, atol=0.3)


def test_replay_draws_without_repetition_from_the_seed_alone(calls):
    buffer = ReplayBuffer()
    assert buffer.draw(3, 0) == []
    buffer.add(calls[:2])
    buffer.add(calls[2:])
    assert sorted(buffer.draw(9, 0), key=calls.index) == calls
    drawn = buffer.draw(3, 7)
    assert len({c.prompt for c in drawn}) == 3 and drawn == ReplayBuffer(calls).draw(3, 7)
    assert len({tuple(c.prompt for c in buffer.draw(3, seed)) for seed in range(20)}) > 10


def test_replay_keeps_every_distinct_call_once_in_order(calls):
    other = dataclasses.replace(calls[0], reply=calls[0].reply[:-1])  # same call, another answer
    buffer = ReplayBuffer([calls[0], calls[1], calls[0]])
    buffer.add([calls[1], other, calls[2], other])
    assert buffer.examples == [calls[0], calls[1], other, calls[2]]


def test_the_published_world_model_is_the_running_average(make_learner, rows, calls, tmp_path):
    learner, seen = make_learner(**{"world_model.ema": 0.15}), []
    for i in range(4):
        learner.joint_update(rows, ADVANTAGES, calls, 1.0, seed=i)
        seen.append(weights(learner, WORLD_MODEL))
    expected = seen[0]
    for decay, now in zip([1 / 11, 0.15, 0.15], seen[1:], strict=True):  # 2 / 12 and 3 / 13 are beyond 0.15
        expected = [decay * a + (1 - decay) * b for a, b in zip(expected, now, strict=True)]
    published = learner.save_adapters(tmp_path)
    learner.activate(POLICY)
    assert same(weights(learner, WORLD_MODEL), seen[-1])  # what is trained stays what it was
    for name, truth in ((POLICY, weights(learner, POLICY)), (WORLD_MODEL, expected)):
        saved = load_file(published[name] / "adapter_model.safetensors")
        assert sum(v.sum().item() for v in saved.values()) == pytest.approx(
            sum(w.sum().item() for w in truth), abs=1e-4
        )


def test_without_averaging_the_weights_are_published(make_learner, rows, calls, tmp_path):
    learner = updated(make_learner(**{"world_model.ema": 0.0}), rows, calls)
    saved = load_file(learner.save_adapters(tmp_path)[WORLD_MODEL] / "adapter_model.safetensors")
    assert sorted(v.sum().item() for v in saved.values()) == pytest.approx(
        sorted(w.sum().item() for w in weights(learner, WORLD_MODEL))
    )


# --- sampler and checkpoints -----------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_sampler_sees_the_learners_model(make_learner, make_trajectory, toy_path, tmp_path, temperature):
    """Adapters through their folders, merged, sampled from with a cache: no gap at either temperature."""
    learner = make_learner(**{"rollout.temperature": temperature})
    updated_weights = learner.save_adapters(tmp_path / "v1")
    assert updated_weights == {name: tmp_path / "v1" / name for name in (POLICY, WORLD_MODEL)}
    engine = TorchEngine(toy_path)
    engine.load(updated_weights)
    rng = random.Random(0)
    sampled = []
    for length in (3, 9, 5):
        prompt = ids(rng, length)
        completion = engine.generate([Prompt(prompt, POLICY, 7, -1, temperature)], seed=length)[0]
        sampled.append(make_trajectory(prompt, completion.tokens))
        sampled[-1].logprobs = [0.0] * length + completion.logprobs
    metrics = learner.joint_update(sampled, [1.0, -1.0, 0.0], [], 1.0, seed=0)
    assert metrics["policy/logprob_gap"] < 1e-4

    question = ids(rng, 6)
    reply = engine.generate([Prompt(question, WORLD_MODEL, 5, -1, 1.0)], seed=0)[0]
    learner.activate(WORLD_MODEL)
    example = CallExample(tuple(question), tuple(reply.tokens), "success", "", "t")
    logprobs, _ = learner.token_logprobs(collate_calls([example], 0))
    assert logprobs.tolist() == pytest.approx(reply.logprobs, abs=1e-4)


@pytest.mark.parametrize("coupling", ["none", "stacked"])
def test_the_sampler_acts_with_the_weights_that_are_trained(
    make_learner, make_trajectory, calls, toy_path, tmp_path, coupling
):
    """`stacked`: one published adapter holds the sum of both, the world model as trained and not averaged."""
    learner = make_learner(**{"world_model.coupling": coupling})
    learner.replay_update(calls, 1.0, seed=0)  # starts the running average
    shaken(learner)
    engine = TorchEngine(toy_path)
    engine.load(learner.save_adapters(tmp_path))
    prompt = [5, 6, 7, 8]
    completion = engine.generate([Prompt(prompt, POLICY, 9, -1, 1.0)], seed=0)[0]
    row = make_trajectory(prompt, completion.tokens)
    row.logprobs = [0.0] * len(prompt) + completion.logprobs
    assert learner.joint_update([row], [1.0], [], 1.0, seed=0)["policy/logprob_gap"] < 1e-4
    rank = {"none": 4, "stacked": 8}[coupling]
    assert LoraConfig.from_pretrained(str(tmp_path / POLICY)).r == rank
    assert LoraConfig.from_pretrained(str(tmp_path / WORLD_MODEL)).r == 4


def test_a_checkpoint_goes_on_bit_for_bit(make_learner, rows, calls, tmp_path):
    whole = updated(make_learner(**{"model.dropout": 0.2}), rows, calls)
    torch.save(whole.state(), tmp_path / "state.pt")
    resumed = make_learner(**{"model.dropout": 0.2})
    resumed.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for learner in (whole, resumed):
        updated(learner, rows, calls)
    for name in (POLICY, WORLD_MODEL):
        assert same(weights(whole, name), weights(resumed, name))
    assert same(whole.averages[WORLD_MODEL], resumed.averages[WORLD_MODEL])


def test_a_checkpoint_of_another_run_is_refused(make_learner):
    state = make_learner().state()
    with pytest.raises(CheckpointError) as error:
        make_learner(**{"world_model.coupling": "shared"}).load_state(state)
    assert "['policy', 'world_model'], this run trains ['policy']" in str(error.value)
    with pytest.raises(CheckpointError, match=r"does not fit this model .*model\.rank"):
        make_learner(**{"model.rank": 2}).load_state(state)
    with pytest.raises(CheckpointError, match="does not fit this model"):
        make_learner(**{"model.targets": "all-linear"}).load_state(make_learner(**{"model.targets": "qvo"}).state())


def test_a_missing_base_says_how_to_get_one(make_config):
    with pytest.raises(FileNotFoundError, match=r"no base model in 'nowhere'; make the embedded one with `make base`"):
        Learner(make_config(**{"model.base": "nowhere"}), 0)


def test_a_merged_adapter_is_a_plain_model(toy_path, toy_adapters, codec, tmp_path):
    out = merge_adapter(toy_path, toy_adapters[POLICY], tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    beside = PeftModel.from_pretrained(load_base(toy_path), str(toy_adapters[POLICY])).eval()
    tokens = torch.tensor([codec.encode("Please call Harbor Bank for me: dispute a charge.")])
    with torch.no_grad():
        assert torch.allclose(merged(tokens).logits, beside(tokens).logits, atol=1e-4)
        assert not torch.allclose(merged(tokens).logits, load_base(toy_path).eval()(tokens).logits, atol=1e-2)
    assert AutoTokenizer.from_pretrained(out).encode("a charge") == codec.encode("a charge")
    assert not list(Path(out).glob("adapter*"))
