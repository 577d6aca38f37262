"""learner: which weights each loss reaches, clipping, checkpoints, and that the sampler sees the same model."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from pathlib import Path

import pytest
import torch
from learning import (
    ADVANTAGES,
    SECOND,
    as_sampled_by,
    close,
    gradients_of,
    ids,
    judged,
    plain,
    plain_logprobs,
    plain_policy,
    plain_world,
    same,
    samples_of,
    weights,
)
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lfo.config import derive_seed
from lfo.lab.epochs import merge
from lfo.learn import adapters
from lfo.learn.learner import CAP, DECAY, PUSH, Learner
from lfo.learn.objectives import dapo_loss
from lfo.rollout.engine import Prompt, complete
from lfo.rollout.torch_engine import TorchEngine
from lfo.runs import CheckpointError
from lfo.text.base import load_base
from lfo.types import AVERAGE, BASE, POLICY, WORLD_MODEL, Encoded, Role, Sample

ENSEMBLE = {"world_model.coupling": "imagine", "world_model.members": 2}


def counts(samples) -> list[int]:
    return [sum(role == Role.ACTION for role in sample.roles) for sample in samples]


def per_token(samples, advantages=ADVANTAGES) -> torch.Tensor:
    return torch.tensor([a for a, n in zip(advantages, counts(samples), strict=True) for _ in range(n)])


def slopes(loss: torch.Tensor, model: PeftModel, adapter: str = POLICY) -> tuple[torch.Tensor, ...]:
    """The gradient on an adapter of a plain model."""
    return torch.autograd.grad(loss, adapters.parameters(model, adapter))


def norm(grads: list[torch.Tensor]) -> float:
    return torch.cat([g.flatten() for g in grads]).norm().item()


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
    held = {p for g in groups for p in g["params"]}
    assert held == {p for n, p in learner.model.named_parameters() if ".lora_" in n}
    assert sum(len(g["params"]) for g in groups) == len(held)


@pytest.mark.parametrize(
    ("targets", "modules"),
    [
        ("attention", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("all-linear", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
    ],
)
def test_targets_and_scale_of_the_adapters(make_learner, targets, modules):
    learner = make_learner(**{"model.targets": targets})
    names = [n for n, _ in learner.model.named_parameters() if ".lora_" in n]
    assert {n.split(".lora_")[0].split(".")[-1] for n in names} == modules
    assert {(c.r, c.lora_alpha) for c in learner.model.peft_config.values()} == {(4, 8)}


def test_the_policy_starts_the_same_with_and_without_a_world_model(fresh_learner):
    """Seeded apart, so that the baseline and the dual run differ by what is learned alone."""
    starts = [fresh_learner(), fresh_learner(world_model=None), fresh_learner(**{"world_model.coupling": "shared"})]
    assert all(same(weights(starts[0], POLICY), weights(other, POLICY)) for other in starts[1:])
    assert [s.layout.names for s in starts] == [(POLICY, WORLD_MODEL), (POLICY,), (POLICY,)]
    assert not same(weights(starts[0], POLICY), weights(fresh_learner(seed=1), POLICY))


# --- which loss reaches which adapter --------------------------------------------------------


def test_gradients_do_not_cross(make_learner, samples, examples):
    learner = make_learner()
    heard, _ = gradients_of(learner, lambda: learner.update([], examples, 1.0, seed=0))
    acted, _ = gradients_of(learner, lambda: learner.update(samples, [], 1.0, seed=0))
    for seen, moved, still in ((heard, WORLD_MODEL, POLICY), (acted, POLICY, WORLD_MODEL)):
        assert all(g is None for g in seen[still])
        assert all(g.abs().sum() > 0 for g in seen[moved])


def updated(learner: Learner, samples, examples) -> Learner:
    """Three joint updates, each followed by replay - where lambda is not 0, as in the loop."""
    for step in range(3):
        learner.update(samples, examples, 1.0, seed=step)
        for i in range(2 if learner.lam > 0 else 0):
            learner.replay(examples[i:], 1.0, seed=100 * step + i)
    return learner


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_coupling_none_leaves_the_policy_untouched_by_lambda(make_learner, samples, examples, dropout):
    """The negative control, bit for bit: with disjoint adapters lambda cannot reach the policy."""
    before = weights(make_learner(), POLICY)
    settings = {"model.dropout": dropout, "weight_decay": 0.1}
    runs = {x: updated(make_learner(**settings, **{"world_model.lam": x}), samples, examples) for x in (0.0, 0.5, 2.0)}
    assert not same(before, weights(runs[0.0], POLICY))
    assert same(weights(runs[0.0], POLICY), weights(runs[0.5], POLICY))
    assert same(weights(runs[0.0], POLICY), weights(runs[2.0], POLICY))
    assert not same(weights(runs[0.0], WORLD_MODEL), weights(runs[0.5], WORLD_MODEL))


def test_on_an_adapter_of_its_own_lambda_is_hardly_a_lever(make_learner, samples, examples):
    """AdamW divides a gradient's scale out again: fourfold lambda changes each step by far less than the step."""
    settings = {"policy.max_grad_norm": 1e9}
    start = weights(make_learner(**settings), WORLD_MODEL)
    ends = []
    for lam in (0.5, 2.0):
        learner = updated(make_learner(**settings, **{"world_model.lam": lam}), samples, examples)
        ends.append(weights(learner, WORLD_MODEL))
    moved = sum((a - b).norm() for a, b in zip(ends[0], start, strict=True))
    apart = sum((a - b).norm() for a, b in zip(*ends, strict=True))
    assert moved > 0 and apart < 0.02 * moved


def test_coupling_shared_is_one_adapter_that_lambda_reaches(make_learner, samples, examples):
    runs = {}
    for lam in (0.0, 0.5):
        learner = make_learner(**{"world_model.coupling": "shared", "world_model.lam": lam})
        assert (learner.layout.names, learner.layout.listener) == ((POLICY,), POLICY)
        metrics = learner.update(samples, examples, 1.0, seed=0)
        assert set(metrics) >= {"policy/loss", "policy/grad_norm"} and "world_model/grad_norm" not in metrics
        runs[lam] = weights(learner, POLICY)
    assert not same(runs[0.0], runs[0.5])


def test_shared_gradient_is_policy_plus_lambda_times_world_model(make_learner, samples, examples):
    """Against the plain model, from the definition."""
    settings = {"world_model.coupling": "shared", "world_model.lam": 0.3, "policy.max_grad_norm": 1e9}
    learner = make_learner(**settings)
    samples = as_sampled_by(learner, samples)
    model, logprobs = plain_policy(learner, samples)
    acted = slopes(dapo_loss(logprobs, logprobs.detach(), per_token(samples)).mean(), model)
    model, logprobs = plain_world(learner, examples)
    heard = slopes(-0.3 * logprobs.mean(), model)
    seen, _ = gradients_of(learner, lambda: learner.update(samples, examples, 1.0, seed=0))
    assert close(seen[POLICY], [a + b for a, b in zip(acted, heard, strict=True)])


@pytest.fixture
def listening(make_rollout) -> list[Sample]:
    """Four samples whose observations are replies of 3 to 5 tokens between two others; the last only listens."""
    rng = random.Random(5)
    pieces = [[3, 2, 5, 2], [4, 3, 6], [2, 5, 5, 4], [3, 1, 6, 2]]
    samples = samples_of([make_rollout(*(ids(rng, n) for n in sizes)) for sizes in pieces], [*ADVANTAGES[:3], None])
    for sample in samples:
        said = [role == Role.OBSERVATION for role in sample.roles]
        inner = [i for i in range(1, len(said) - 1) if said[i - 1] and said[i] and said[i + 1]]
        sample.heard = [i in inner for i in range(len(said))]
    return samples


def test_replies_are_learned_in_the_policys_own_forward_pass(make_learner, listening, monkeypatch):
    """One pass; its gradient is DAPO's on what has an advantage plus lambda * cross-entropy on all replies."""
    learner = make_learner(**{"world_model.coupling": "echo", "world_model.lam": 0.3, "policy.max_grad_norm": 1e9})
    samples = as_sampled_by(learner, [*listening[:3]]) + listening[3:]
    model, acted = plain_policy(learner, samples[:3])
    places = [[t for t, hears in enumerate(s.heard) if hears] for s in samples]
    heard = plain_logprobs(model, [s.tokens for s in samples], places)
    total = dapo_loss(acted, acted.detach(), per_token(samples[:3], ADVANTAGES[:3])).mean() - 0.3 * heard.mean()
    expected = slopes(total, model)
    passes, forward = [], learner.scorer.forward
    monkeypatch.setattr(learner.scorer, "forward", lambda *a: passes.append(1) or forward(*a))
    seen, metrics = gradients_of(learner, lambda: learner.update(samples, [], 1.0, 0))
    assert len(passes) == 1 and close(seen[POLICY], expected)
    assert metrics["world_model/loss"] == pytest.approx(-heard.mean().item(), rel=1e-4)
    told = dapo_loss(acted, acted, per_token(samples[:3], ADVANTAGES[:3])).mean().item()
    assert metrics["policy/loss"] == pytest.approx(told, abs=1e-5)
    alone = learner.update([dataclasses.replace(s, advantages=None) for s in samples], [], 1.0, 0)
    assert "world_model/loss" in alone and "policy/loss" not in alone


@pytest.mark.parametrize("coupling", ["shared", "echo"])
def test_shared_without_lambda_is_the_baseline(make_learner, listening, examples, coupling):
    """Bit for bit, whatever there is to hear."""
    listening = listening[:3]
    silent = [dataclasses.replace(sample, heard=None) for sample in listening]
    shared = make_learner(**{"world_model.coupling": coupling, "world_model.lam": 0.0})
    runs = [(shared, listening, examples), (make_learner(world_model=None), silent, [])]
    for learner, samples, heard in runs:
        for step in range(3):
            learner.update(samples, heard, 1.0, seed=step)
    assert same(*(weights(learner, POLICY) for learner, _, _ in runs))


def shaken(learner: Learner) -> Learner:
    """The world model far from nothing, and from its running average."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in learner.parameters(WORLD_MODEL):
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return learner


def test_stacked_adapters_act_together_and_learn_apart(make_learner, samples, examples):
    """The policy's loss depends on the world model and moves the policy alone; the world model learns as in `none`."""
    seen = {}
    for coupling in ("none", "stacked"):
        learner = shaken(make_learner(**{"world_model.coupling": coupling}))
        acted, _ = gradients_of(learner, lambda x=learner: x.update(samples, [], 1, 0))
        assert all(g is None for g in acted[WORLD_MODEL]) and all(g.abs().sum() > 0 for g in acted[POLICY])
        both, _ = gradients_of(learner, lambda x=learner: x.update(samples, examples, 1, 0))
        assert same(both[POLICY], acted[POLICY])
        seen[coupling] = both
    assert same(seen["none"][WORLD_MODEL], seen["stacked"][WORLD_MODEL])
    assert not any(torch.allclose(a, b) for a, b in zip(seen["none"][POLICY], seen["stacked"][POLICY], strict=True))


# --- distilled contexts ----------------------------------------------------------------------


def test_distilling_is_advantage_weighted_likelihood_in_the_other_context(make_learner, samples):
    """Added to the policy's gradient: weight times that of -A log p of the actions there, divided by their number."""
    parts = [(s.tokens[1:], s.roles[1:], s.old_logprobs[1:], s.advantages[1:]) for s in samples[1:]]
    other = [Sample(*part, how="distilled") for part in parts]
    settings = {"world_model.coupling": "imagine", "world_model.context_distillation": 0.5}
    learner = make_learner(**settings, **{"policy.max_grad_norm": 1e9})
    near, metrics = gradients_of(learner, lambda: learner.update(samples, [], 1.0, 0))
    assert "distillation/neg_logprob" not in metrics
    both, found = gradients_of(learner, lambda: learner.update([*samples[:2], *other, *samples[2:]], [], 1.0, 0))
    model, logprobs = plain_policy(learner, other)
    expected = slopes(-0.5 * (per_token(other, ADVANTAGES[1:]) * logprobs).mean(), model)
    assert close([a - b for a, b in zip(both[POLICY], near[POLICY], strict=True)], expected, rtol=1e-3)
    assert found["distillation/neg_logprob"] == pytest.approx(-logprobs.mean().item(), rel=1e-4)
    assert all(g is None for g in both[WORLD_MODEL])
    assert all(found[name] == value for name, value in metrics.items() if name != "policy/grad_norm")


def test_distilled_samples_need_no_logprobs_from_before_the_step(make_learner, samples):
    settings = {"world_model.coupling": "imagine", "world_model.context_distillation": 0.5, "policy.tis_cap": 2.0}
    learner = make_learner(**settings)
    other = dataclasses.replace(samples[0], how="distilled")
    found = learner.update([other, *judged(learner, samples)], [], 1.0, 0)
    assert found["distillation/neg_logprob"] > 0 and found["policy/tis_weight"] > 0


# --- with feedback ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["free", "capped"])
def test_what_was_played_with_feedback_is_learned_without_the_ratio_or_with_a_capped_weight(make_learner, samples, how):
    """The old policy is the present one: minus w A log p, w = 1, or learner over sampler up to the cap."""
    learner = make_learner(**{"policy.max_grad_norm": 1e9})
    gap = [math.log(4.0) if i % 2 else -1.0 for i in range(20)]  # the learner finds them 4 times likelier, or less
    rows = as_sampled_by(learner, samples)
    rows = [
        dataclasses.replace(s, old_logprobs=[p - g for p, g in zip(s.old_logprobs, gap, strict=False)], how=how)
        for s in rows
    ]
    seen, metrics = gradients_of(learner, lambda: learner.update(rows, [], 1.0, 0))
    model, logprobs = plain_policy(learner, rows)
    gaps = torch.tensor([g for s in rows for g, role in zip(gap, s.roles, strict=False) if role == Role.ACTION])
    assert (gaps > math.log(CAP)).any() and (gaps < 0).any()
    w = gaps.exp().clamp(max=CAP) if how == "capped" else torch.ones_like(gaps)
    assert close(seen[POLICY], slopes(-(w * per_token(rows) * logprobs).mean(), model), rtol=1e-3)
    assert metrics["policy/tis_weight"] == pytest.approx(w.mean().item(), rel=1e-3)


TEACHING = {"world_model.coupling": "imagine", "rollout.group_size": 4, "feedback.learn": "kl"}


@pytest.mark.parametrize(("teacher", "adapter"), [("live", POLICY), ("average", AVERAGE), ("base", BASE)])
def test_a_teacher_says_how_much_likelier_it_finds_each_token(make_learner, samples, teacher, adapter):
    learner = make_learner(**TEACHING, **{"feedback.teacher": teacher})
    bare, told = samples[0], samples[1]
    told = dataclasses.replace(bare, tokens=[*told.tokens[:2], *bare.tokens], roles=[0, 0, *bare.roles])
    both = [dataclasses.replace(bare, taught=told), samples[2]]
    pushed, other = learner.taught(both)
    assert other is samples[2] and pushed.taught is None and pushed.tokens == bare.tokens
    model = plain(learner, adapter)
    if teacher == "base":  # peft's own way of doing without adapters
        with model.disable_adapter():
            theirs = logprobs_of(model, told)
    else:
        theirs = logprobs_of(model, told)
    expected = (theirs - logprobs_of(plain(learner), bare)).clamp(-PUSH, PUSH)
    found = [a for a, role in zip(pushed.advantages, bare.roles, strict=True) if role == Role.ACTION]
    assert torch.allclose(torch.tensor(found), expected, atol=1e-4) and expected.abs().max() > 1e-3
    assert [a for a, role in zip(pushed.advantages, bare.roles, strict=True) if role != Role.ACTION] == [0.0] * (
        len(bare.roles) - len(found)
    )


def logprobs_of(model: PeftModel, sample: Sample) -> torch.Tensor:
    places = [t for t, role in enumerate(sample.roles) if role == Role.ACTION]
    return plain_logprobs(model, [sample.tokens], [places]).detach()


def test_the_average_begins_as_the_policy_and_follows_it_by_a_twentieth_per_step(fresh_learner, samples, examples):
    learner = fresh_learner(**TEACHING, **{"feedback.teacher": "average"})
    expected = weights(learner, POLICY)
    assert same(weights(learner, AVERAGE), expected) and DECAY == 0.95
    for step in range(3):
        before = weights(learner, AVERAGE)
        for i in range(2):  # two updates of the policy in a step, and one of the world model alone
            learner.update(samples, examples, 1.0, seed=2 * step + i)
        learner.replay(examples, 1.0, seed=step)
        assert same(weights(learner, AVERAGE), before), "only the end of a step moves it"
        learner.follow()
        expected = [0.95 * a + 0.05 * p for a, p in zip(expected, weights(learner, POLICY), strict=True)]
        assert close(weights(learner, AVERAGE), expected, rtol=1e-6)
    assert not close(weights(learner, AVERAGE), weights(learner, POLICY))
    assert {group["name"] for group in learner.optimizer.param_groups} == {POLICY, WORLD_MODEL}, "nobody trains it"


def test_the_policy_learns_the_same_with_an_average_beside_it(fresh_learner, samples, examples):
    plain_one, averaged = (
        fresh_learner(**TEACHING, **{"feedback.teacher": teacher, "model.dropout": 0.2})
        for teacher in ("base", "average")
    )
    for learner in (plain_one, averaged):
        for step in range(2):
            learner.update(samples, examples, 1.0, seed=step)
            learner.follow()
    for name in (POLICY, WORLD_MODEL):
        assert same(weights(plain_one, name), weights(averaged, name))
    assert plain_one.layout.names == (POLICY, WORLD_MODEL), "and without one there is nothing to follow"


def test_the_average_is_published_and_goes_on_from_a_checkpoint_bit_for_bit(
    make_learner, samples, examples, toy_path, tmp_path
):
    whole, resumed = (make_learner(**TEACHING, **{"feedback.teacher": "average"}) for _ in range(2))
    updated(whole, samples, examples)
    whole.follow()
    torch.save(whole.state(), tmp_path / "state.pt")
    resumed.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for learner in (whole, resumed):
        updated(learner, samples, examples)
        learner.follow()
    assert same(weights(whole, AVERAGE), weights(resumed, AVERAGE))
    published = whole.save_adapters(tmp_path / "v1")
    assert set(published) == {POLICY, WORLD_MODEL, AVERAGE}
    engine = TorchEngine(toy_path)
    engine.load(published)
    prompt = [5, 6, 7, 8]
    said = complete(engine, [Prompt(prompt, AVERAGE, 9, -1, 1.0)])[0]
    tokens = [*prompt, *said.tokens]
    there = plain_logprobs(plain(whole, AVERAGE), [tokens], [range(len(prompt), len(tokens))])
    assert torch.allclose(torch.tensor(said.logprobs), there, atol=1e-4), "who plays is the average"


# --- what is added to the objective ------------------------------------------------------------


def added(make_learner, samples, more=(), **settings):
    """What a setting adds to the policy's gradient, and the metrics with it; without it they are those of DAPO."""
    free = {"policy.max_grad_norm": 1e9}
    bare, learner = make_learner(**free), make_learner(**free, **settings)
    without, metrics = gradients_of(bare, lambda: bare.update(samples, [], 1.0, 0))
    seen, found = gradients_of(learner, lambda: learner.update([*samples, *more], [], 1.0, 0))
    assert all(found[name] == value for name, value in metrics.items() if name != "policy/grad_norm")
    assert all(g is None for g in seen[WORLD_MODEL])
    return [a - b for a, b in zip(seen[POLICY], without[POLICY], strict=True)], found, found.keys() - metrics.keys()


def test_an_entropy_bonus_is_that_of_the_whole_distribution(make_learner, samples):
    """Added to the gradient: that of minus the weight times the mean entropy at action tokens, at the temperature."""
    settings = {"rollout.temperature": 0.7, "policy.entropy": 0.3}
    sharp = lambda **more: make_learner(**{"rollout.temperature": 0.7} | more)  # noqa: E731
    slope, found, new = added(sharp, samples, **{"policy.entropy": 0.3})
    model, entropies = plain(make_learner(**settings)), []
    for sample in samples:
        spread = torch.distributions.Categorical(logits=model(torch.tensor([sample.tokens])).logits[0] / 0.7).entropy()
        entropies += [spread[t - 1] for t, role in enumerate(sample.roles) if role == Role.ACTION]
    mean = torch.stack(entropies).mean()
    assert close(slope, slopes(-0.3 * mean, model), rtol=1e-3)
    assert new == {"policy/entropy"} and found["policy/entropy"] == pytest.approx(mean.item(), rel=1e-4)


def test_no_entropy_is_computed_for_nothing(make_learner, samples, examples, monkeypatch):
    learner, asked = make_learner(), []
    score = learner.scorer._score
    monkeypatch.setattr(learner.scorer, "_score", lambda *args: asked.append(args[3]) or score(*args))
    learner.update(samples, examples, 1.0, seed=0)
    assert asked and not any(asked)


@pytest.mark.parametrize("coupling", ["none", "stacked"])
def test_the_penalty_is_towards_the_base_without_any_adapter(make_learner, samples, coupling):
    """k3 at the action tokens, whatever the world model's adapter says; the policy acts and learns as before."""
    coupled = {"world_model.coupling": coupling}
    shaking = lambda **more: shaken(make_learner(**coupled, **more))  # noqa: E731
    slope, found, new = added(shaking, samples, **{"policy.kl": 0.3})
    learner = shaking()
    model, logprobs = plain_policy(learner, samples)
    base = load_base(learner.config.model.base).eval()
    places = [[t for t, role in enumerate(s.roles) if role == Role.ACTION] for s in samples]
    with torch.no_grad():
        theirs = plain_logprobs(base, [s.tokens for s in samples], places)
    penalty = ((theirs - logprobs).exp() - 1 - (theirs - logprobs)).mean()
    assert close(slope, slopes(0.3 * penalty, model), rtol=1e-3)
    assert new == {"policy/kl_to_base"} and found["policy/kl_to_base"] == pytest.approx(penalty.item(), rel=1e-3)


def test_a_policy_that_has_not_moved_is_not_pulled_back(fresh_learner, samples):
    """At the start it is the base: no divergence and no gradient of it; after an update there is some."""
    learner, bare = fresh_learner(**{"policy.kl": 5.0}), fresh_learner()
    pulled, metrics = gradients_of(learner, lambda: learner.update(samples, [], 1.0, 0))
    free, _ = gradients_of(bare, lambda: bare.update(samples, [], 1.0, 0))
    assert metrics["policy/kl_to_base"] == pytest.approx(0, abs=1e-6) and close(pulled[POLICY], free[POLICY])
    learner.update(samples, [], 1.0, seed=0)
    assert learner.update(samples, [], 1.0, seed=1)["policy/kl_to_base"] > 1e-4


def test_the_base_is_what_it_was_and_adapters_go_on_training(make_learner, samples):
    learner, fresh = make_learner(), load_base(make_learner().config.model.base).eval()
    places = [[t for t, role in enumerate(s.roles) if role == Role.ACTION] for s in samples]
    before = learner.action_logprobs(samples)
    found = learner.action_logprobs(samples, adapters.BASE)
    with torch.no_grad():
        expected = plain_logprobs(fresh, [s.tokens for s in samples], places).split(counts(samples))
    assert found == [pytest.approx(e.tolist(), abs=1e-4) for e in expected]
    trainable = {n for n, p in learner.model.named_parameters() if p.requires_grad}
    assert trainable == {n for n, _ in learner.model.named_parameters() if ".lora_" in n}
    assert learner.action_logprobs(samples) == before != found


def test_imitation_is_cross_entropy_on_the_actions_of_earlier_successes(make_learner, samples):
    """Its own mean over tokens, beside DAPO's; what was sampled then, and with which probability, does not matter."""
    earlier = [
        dataclasses.replace(s, old_logprobs=[-9.0] * len(s.tokens), how="imitated", weight=0.5) for s in samples[1:3]
    ]
    slope, found, new = added(make_learner, samples, earlier)
    model, logprobs = plain_policy(make_learner(), earlier)
    assert close(slope, slopes(-0.5 * logprobs.mean(), model), rtol=1e-3)
    assert new == {"policy/imitation_loss"}
    assert found["policy/imitation_loss"] == pytest.approx(-logprobs.mean().item(), rel=1e-4)


def test_additions_are_those_of_one_batch_in_any_micro_batches(make_learner, samples, examples):
    """With importance weights and distilled contexts beside them."""
    settings = {"policy.entropy": 0.1, "policy.kl": 0.2, "policy.imitate": 0.5, "policy.tis_cap": 2.0}
    settings |= {"world_model.coupling": "imagine", "world_model.context_distillation": 0.5}
    others = [dataclasses.replace(samples[0], how="distilled"), dataclasses.replace(samples[2], how="imitated")]
    seen = []
    for budget in (10_000, 1):
        learner = make_learner(**settings, **{"distributed.micro_batch_tokens": budget})
        mine = [*judged(learner, samples), *others]
        seen.append(gradients_of(learner, lambda x=learner, mine=mine: x.update(mine, examples, 1.0, 0)))
    (one, metrics_one), (many, metrics_many) = seen
    assert all(close(many[name], one[name]) for name in (POLICY, WORLD_MODEL))
    assert metrics_one == pytest.approx(metrics_many, rel=1e-4, abs=1e-6)
    assert metrics_one.keys() >= {"policy/entropy", "policy/kl_to_base", "policy/imitation_loss", "policy/tis_weight"}


# --- updates ---------------------------------------------------------------------------------


def test_each_adapter_is_clipped_by_itself(make_learner, samples, examples):
    """A joint clip to 0.002 would leave the policy with its small share of the joint norm instead."""
    learner, free = make_learner(**{"policy.max_grad_norm": 0.002}), make_learner(**{"policy.max_grad_norm": 1e9})
    seen, metrics = gradients_of(learner, lambda: learner.update(samples, examples, 1.0, 0))
    unclipped, _ = gradients_of(free, lambda: free.update(samples, examples, 1.0, 0))
    for name in (POLICY, WORLD_MODEL):  # what is reported is the norm before clipping
        assert norm(seen[name]) == pytest.approx(0.002, rel=1e-3)
        assert metrics[f"{name}/grad_norm"] == pytest.approx(norm(unclipped[name]), rel=1e-4)
        assert metrics[f"{name}/grad_norm"] > 0.01


def test_lambda_multiplies_the_world_models_gradient_once(make_learner, examples):
    """The same gradient in a joint update and in replay, and lambda times that of the mean over reply tokens."""
    for lam in (0.5, 2.0):
        learner = make_learner(**{"world_model.lam": lam, "policy.max_grad_norm": 1e9})
        joint, _ = gradients_of(learner, lambda x=learner: x.update([], examples, 1.0, 0))
        replay, _ = gradients_of(learner, lambda x=learner: x.replay(examples, 1.0, 0))
        assert same(joint[WORLD_MODEL], replay[WORLD_MODEL])
        model, logprobs = plain_world(learner, examples)
        assert close(joint[WORLD_MODEL], slopes(-lam * logprobs.mean(), model, WORLD_MODEL))


def test_micro_batches_give_the_gradient_of_one_batch(make_learner, samples, examples):
    seen = []
    for budget in (10_000, 1):
        learner = make_learner(**{"distributed.micro_batch_tokens": budget})
        seen.append(gradients_of(learner, lambda x=learner: x.update(samples, examples, 1.0, 0)))
    (one, metrics_one), (many, metrics_many) = seen
    assert all(close(many[name], one[name]) for name in (POLICY, WORLD_MODEL))
    assert metrics_one == pytest.approx(metrics_many, rel=1e-4, abs=1e-6)


def test_what_samples_share_counts_for_each_of_them(make_learner, samples, examples):
    """Twice the same sample: the mean over tokens, and so the gradient, is that of the sample alone."""
    learner = make_learner(**{"policy.max_grad_norm": 1e9})
    one, metrics = gradients_of(learner, lambda: learner.update(samples[:1], examples[:1], 1.0, 0))
    two, twice = gradients_of(learner, lambda: learner.update(samples[:1] * 2, examples[:1] * 2, 1.0, 0))
    assert all(close(two[name], one[name], rtol=1e-5) for name in (POLICY, WORLD_MODEL))
    assert metrics == pytest.approx(twice, rel=1e-5)


def test_surprise_is_what_a_reply_costs(make_learner, examples):
    """Nats of each reply, whatever the batches and without dropout or gradients; an expected reply costs less."""
    learner = make_learner(**{"model.dropout": 0.5})
    first = learner.surprise(examples)
    one_by_one = make_learner(**{"model.dropout": 0.5, "distributed.micro_batch_tokens": 1})
    assert one_by_one.surprise(examples) == pytest.approx(first, rel=1e-4) and all(nats > 0 for nats in first)
    model = plain(learner, WORLD_MODEL).eval()
    places = [range(len(e.prompt), len(e.prompt) + len(e.reply)) for e in examples]
    costs = plain_logprobs(model, [e.prompt + e.reply for e in examples], places).split([len(p) for p in places])
    assert first == pytest.approx([-cost.sum().item() for cost in costs], rel=1e-4)
    assert all(p.grad is None for p in learner.parameters(WORLD_MODEL)) and learner.surprise([]) == []
    for step in range(5):
        learner.replay(examples[:1], 1.0, seed=step)
    assert learner.surprise(examples[:1])[0] < first[0]


def test_tokens_that_were_trained_on_are_counted(make_learner, samples, examples):
    """Everything that goes forward and backward, for every sample that it is part of; not what only goes forward."""
    learner = make_learner()
    policy, world = sum(len(s.tokens) for s in samples), sum(len(e.prompt) + len(e.reply) for e in examples)
    learner.update(samples, examples, 1.0, seed=0)
    assert learner.trained_tokens == policy + world
    learner.replay(examples, 1.0, seed=0)
    learner.action_logprobs(samples)
    assert learner.trained_tokens == policy + 2 * world


# --- sampler and learner compute differently ---------------------------------------------------


def test_own_logprobs_are_those_of_the_policy_without_dropout(make_learner, samples):
    sharp = make_learner(**{"rollout.temperature": 0.7})
    model = plain(sharp).eval()
    places = [[t for t, role in enumerate(s.roles) if role == Role.ACTION] for s in samples]
    expected = plain_logprobs(model, [s.tokens for s in samples], places, temperature=0.7).split(counts(samples))
    noisy = {"model.dropout": 0.5, "distributed.micro_batch_tokens": 20, "rollout.temperature": 0.7}
    for learner in (sharp, make_learner(**noisy)):
        found = learner.action_logprobs(samples)
        assert found == [pytest.approx(e.tolist(), abs=1e-5) for e in expected]
        assert learner.scorer.training
    assert sharp.action_logprobs([]) == []


@pytest.mark.parametrize(("cap", "weight"), [(5.0, 2.0), (1.5, 1.5)])
def test_importance_sampling_weighs_every_token(make_learner, samples, cap, weight):
    """The sampler thought every action half as likely as the learner does: weight 2, or the cap; all ratios are 1."""
    settings = {"policy.max_grad_norm": 1e9, "policy.tis_cap": cap}
    learner, other = make_learner(**settings), make_learner(**settings)
    samples = as_sampled_by(learner, samples)
    doubted = [dataclasses.replace(s, old_logprobs=[p - math.log(2) for p in s.old_logprobs]) for s in samples]
    alone, _ = gradients_of(other, lambda: other.update(samples, [], 1.0, 0))
    seen, metrics = gradients_of(learner, lambda: learner.update(judged(learner, doubted), [], 1.0, 0))
    assert close(seen[POLICY], [weight * g for g in alone[POLICY]], rtol=1e-3)
    assert metrics["policy/tis_weight"] == pytest.approx(weight, rel=1e-4)
    assert metrics["policy/logprob_gap"] == pytest.approx(math.log(2), rel=1e-4)
    assert metrics["policy/ratio_clipped"] == 0 and metrics["policy/kl"] == pytest.approx(0, abs=1e-5)


def test_weight_decay_needs_a_gradient(make_learner, samples, examples):
    learner = make_learner(weight_decay=0.5)
    before = {name: weights(learner, name) for name in learner.layout.names}
    learner.replay(examples, 1.0, seed=0)
    assert same(weights(learner, POLICY), before[POLICY])
    assert not same(weights(learner, WORLD_MODEL), before[WORLD_MODEL])
    learner = make_learner(weight_decay=0.5)
    learner.update(samples, [], 1.0, seed=0)
    assert not same(weights(learner, POLICY), before[POLICY])
    assert same(weights(learner, WORLD_MODEL), before[WORLD_MODEL])
    after = weights(learner, POLICY)
    learner.update([], [], 1.0, seed=0)  # nothing at all
    learner.replay(examples, 1.0, seed=0)
    assert same(weights(learner, POLICY), after)  # neither decay nor momentum of the step before
    assert not same(weights(learner, WORLD_MODEL), before[WORLD_MODEL])


def test_metrics_by_hand(make_learner, samples, examples):
    """All ratios are 1: the loss is minus the mean advantage over action tokens; nothing is clipped; no gap."""
    learner = make_learner()
    samples = as_sampled_by(learner, samples)
    metrics = learner.update(samples, examples, 1.0, seed=0)
    assert metrics["policy/loss"] == pytest.approx(-per_token(samples).mean().item(), abs=1e-5)
    assert metrics["policy/ratio_clipped"] == 0.0
    assert metrics["policy/kl"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["policy/logprob_gap"] == pytest.approx(0.0, abs=1e-4)
    logprobs = [p for s in samples for p in s.old_logprobs]
    assert metrics["policy/neg_logprob"] == pytest.approx(-sum(logprobs) / sum(counts(samples)), rel=1e-5)
    assert metrics["world_model/loss"] > 0 and 0 <= metrics["world_model/accuracy"] <= 1


def test_the_first_step_moves_every_weight_by_the_learning_rate(make_learner, samples, examples):
    """Adam's first step is the learning rate times the gradient's sign: 0.01 x 0.5, and 0.04 x 0.5."""
    learner = make_learner(**{"policy.learning_rate": 0.01, "world_model.learning_rate": 0.04})
    before = {name: weights(learner, name) for name in learner.layout.names}
    learner.update(samples, examples, 0.5, seed=0)
    for name, rate in ((POLICY, 0.005), (WORLD_MODEL, 0.02)):
        moved = torch.cat([(a - b).abs().flatten() for a, b in zip(weights(learner, name), before[name], strict=True)])
        assert moved.max().item() == pytest.approx(rate, rel=1e-3)
        assert moved.median().item() == pytest.approx(rate, rel=1e-2)


def test_learning_learns(make_learner, samples, examples):
    """Better actions become likelier, worse ones rarer; replies become predictable."""
    learner = make_learner()
    samples = as_sampled_by(learner, samples)
    first = learner.update(samples, examples, 1.0, seed=0)
    for step in range(30):
        last = learner.update(samples, examples, 1.0, seed=step)
    assert last["policy/loss"] < first["policy/loss"] - 0.1
    assert last["world_model/accuracy"] > 0.9 > first["world_model/accuracy"]
    for sample, logprobs, advantage in zip(samples, learner.action_logprobs(samples), ADVANTAGES, strict=True):
        assert (sum(logprobs) - sum(sample.old_logprobs)) * advantage > 0


def test_an_empty_replay_changes_nothing(make_learner):
    learner = make_learner()
    before = weights(learner, WORLD_MODEL)
    assert learner.replay([], 1.0, seed=0) == {"world_model/loss": 0.0, "world_model/accuracy": 0.0}
    assert same(weights(learner, WORLD_MODEL), before)


# --- adapters on disk ------------------------------------------------------------------------


def test_the_published_world_model_is_the_running_average(make_learner, samples, examples, tmp_path):
    learner, seen = make_learner(**{"world_model.decay": 0.15}), []
    for i in range(4):
        learner.update(samples, examples, 1.0, seed=i)
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


def test_the_running_average_waits_where_the_world_model_does(make_learner, samples, examples):
    learner = updated(make_learner(), samples, examples)
    before = [w.clone() for w in learner.averages[WORLD_MODEL]]
    learner.update(samples, [], 1.0, seed=5)
    assert same(learner.averages[WORLD_MODEL], before)
    learner.update(samples, examples, 1.0, seed=6)
    assert not same(learner.averages[WORLD_MODEL], before)


def test_members_of_an_ensemble_hear_the_same_in_a_step_and_replay_apart(make_learner, samples, examples):
    """Both begin elsewhere. A joint update moves both and the policy, a replay update one; each has its average."""
    learner = make_learner(**ENSEMBLE, **{"policy.max_grad_norm": 1e9})
    members = (WORLD_MODEL, SECOND)
    assert learner.layout.listeners == members and not same(weights(learner, WORLD_MODEL), weights(learner, SECOND))
    seen, metrics = gradients_of(learner, lambda: learner.update(samples, examples, 1.0, seed=0))
    replies = [e.prompt + e.reply for e in examples], [range(len(e.prompt), len(e.prompt + e.reply)) for e in examples]
    for name in members:
        model = plain(learner, name)
        truth = -learner.lam * plain_logprobs(model, *replies).mean()
        assert close(seen[name], slopes(truth, model, name))
    assert {f"{name}/grad_norm" for name in learner.layout.names} <= set(metrics)
    assert metrics["world_model/loss"] == pytest.approx(
        -plain_logprobs(plain(learner, WORLD_MODEL), *replies).mean().item()
    )
    for moved, still in (members, members[::-1]):
        learner.update(samples, examples, 1.0, seed=1)
        before, averages = {name: weights(learner, name) for name in members}, copy.deepcopy(learner.averages)
        learner.replay(examples[:2], 1.0, seed=1, adapter=moved)
        assert same(weights(learner, still), before[still]) and not same(weights(learner, moved), before[moved])
        assert same(learner.averages[still], averages[still]) and not same(learner.averages[moved], averages[moved])
    assert learner.updates == 4, "the decay grows with the updates of the first: three joint ones, one of replay"


def test_members_of_an_ensemble_have_dropout_masks_of_their_own(make_learner, samples, examples, monkeypatch):
    drawn = []
    monkeypatch.setattr(torch, "manual_seed", drawn.append)
    make_learner(**ENSEMBLE, **{"model.dropout": 0.5}).update(samples, examples, 1.0, seed=0)
    policy, second, first = drawn[-3:]
    assert len({policy, first, second}) == 3 and first == derive_seed(0, WORLD_MODEL), "one alone is as it always was"


def test_an_ensemble_is_published_and_goes_on_from_a_checkpoint(make_learner, samples, examples, tmp_path):
    def taught(learner: Learner, seed: int) -> Learner:
        learner.update(samples, examples, 1.0, seed)
        for name in learner.layout.listeners:
            learner.replay(examples[1:], 1.0, seed, name)
        return learner

    whole, resumed = taught(make_learner(**ENSEMBLE), 0), make_learner(**ENSEMBLE)
    torch.save(whole.state(), tmp_path / "state.pt")
    resumed.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    published = [taught(learner, 1).save_adapters(tmp_path / str(i)) for i, learner in enumerate((whole, resumed))]
    assert [set(paths) for paths in published] == [{POLICY, WORLD_MODEL, SECOND}] * 2
    saved = {
        name: [(paths[name] / "adapter_model.safetensors").read_bytes() for paths in published] for name in published[0]
    }
    assert all(ours == theirs for ours, theirs in saved.values())
    assert len({ours for ours, _ in saved.values()}) == 3


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_sampler_sees_the_learners_model(make_learner, make_rollout, toy_path, tmp_path, temperature):
    """Adapters through their folders, merged, sampled from with a cache: no gap at either temperature."""
    learner = make_learner(**{"rollout.temperature": temperature})
    published = learner.save_adapters(tmp_path / "v1")
    assert published == {name: tmp_path / "v1" / name for name in (POLICY, WORLD_MODEL)}
    engine = TorchEngine(toy_path)
    engine.load(published)
    rng = random.Random(0)
    sampled = []
    for length in (3, 9, 5):
        prompt = ids(rng, length)
        completion = complete(engine, [Prompt(prompt, POLICY, 7, -1, temperature)])[0]
        rollout = make_rollout(prompt, completion.tokens)
        rollout.logprobs = [0.0] * length + completion.logprobs
        sampled.append(rollout)
    metrics = learner.update(samples_of(sampled, [1.0, -1.0, 0.0]), [], 1.0, seed=0)
    assert metrics["policy/logprob_gap"] < 1e-4

    question = ids(rng, 6)
    reply = complete(engine, [Prompt(question, WORLD_MODEL, 5, -1, 1.0)])[0]
    (nats,) = learner.surprise([Encoded(tuple(question), tuple(reply.tokens))])
    assert nats == pytest.approx(-sum(reply.logprobs), abs=1e-4)


@pytest.mark.parametrize("coupling", ["none", "stacked"])
def test_the_sampler_acts_with_the_weights_that_are_trained(
    make_learner, make_rollout, examples, toy_path, tmp_path, coupling
):
    """`stacked`: one published adapter holds the sum of both, the world model as trained and not averaged."""
    learner = make_learner(**{"world_model.coupling": coupling})
    learner.replay(examples, 1.0, seed=0)  # starts the running average
    shaken(learner)
    engine = TorchEngine(toy_path)
    engine.load(learner.save_adapters(tmp_path))
    prompt = [5, 6, 7, 8]
    completion = complete(engine, [Prompt(prompt, POLICY, 9, -1, 1.0)])[0]
    rollout = make_rollout(prompt, completion.tokens)
    rollout.logprobs = [0.0] * len(prompt) + completion.logprobs
    assert learner.update(samples_of([rollout], [1.0]), [], 1.0, seed=0)["policy/logprob_gap"] < 1e-4
    rank = {"none": 4, "stacked": 8}[coupling]
    assert LoraConfig.from_pretrained(str(tmp_path / POLICY)).r == rank
    assert LoraConfig.from_pretrained(str(tmp_path / WORLD_MODEL)).r == 4


def test_a_merged_adapter_is_a_plain_model(toy_path, toy_adapters, codec, tmp_path):
    out = merge(toy_path, toy_adapters[POLICY], tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    beside = PeftModel.from_pretrained(load_base(toy_path), str(toy_adapters[POLICY])).eval()
    tokens = torch.tensor([codec.encode("Please call Harbor Bank for me: dispute a charge.")])
    with torch.no_grad():
        assert torch.allclose(merged(tokens).logits, beside(tokens).logits, atol=1e-4)
        assert not torch.allclose(merged(tokens).logits, load_base(toy_path).eval()(tokens).logits, atol=1e-2)
    assert AutoTokenizer.from_pretrained(out).encode("a charge") == codec.encode("a charge")
    assert not list(Path(out).glob("adapter*"))


# --- checkpoints -----------------------------------------------------------------------------


def test_a_checkpoint_goes_on_bit_for_bit(make_learner, samples, examples, tmp_path):
    whole = updated(make_learner(**{"model.dropout": 0.2}), samples, examples)
    torch.save(whole.state(), tmp_path / "state.pt")
    resumed = make_learner(**{"model.dropout": 0.2})
    resumed.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for learner in (whole, resumed):
        updated(learner, samples, examples)
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
    few = make_learner(**{"model.targets": "attention"}).state()
    with pytest.raises(CheckpointError, match="does not fit this model"):
        make_learner().load_state(few)


def test_a_missing_base_says_how_to_get_one(fresh_learner):
    with pytest.raises(FileNotFoundError, match=r"no base model in 'nowhere'; make the embedded one with `make base`"):
        fresh_learner(**{"model.base": "nowhere"})
