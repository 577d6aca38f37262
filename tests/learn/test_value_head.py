"""The value head: what it says and learns, against the plain model; there is none under DAPO."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from learning import close, gradients, plain, same, weights

from lfo.learn.learner import VALUE_HEAD, Learner
from lfo.types import POLICY, Role, Sample

VALUE, TARGET = 0.25, 1.0  # said before the step, and to be said, at every action token


@pytest.fixture
def learner(make_learner) -> Learner:
    """A value head that says something, no clip on values, and weight 1/2."""
    made = make_learner(**{"world_model": None, "ppo.value_clip": 100.0, "ppo.value_weight": 0.5})
    with torch.no_grad():
        for p in made.parameters(VALUE_HEAD):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(5)) / 4)
    return made


def actions(sample) -> list[int]:
    return [t for t, role in enumerate(sample.roles) if role == Role.ACTION]


def plain_values(learner: Learner, samples) -> tuple[torch.nn.Module, torch.nn.Linear, torch.Tensor]:
    """The plain model, a copy of the head, and what it says of the last hidden states before each action token."""
    model, head = plain(learner), torch.nn.Linear(32, 1)
    head.load_state_dict(learner.scorer.value_head.state_dict())
    said = []
    for sample in samples:
        hidden = model.get_base_model().model(torch.tensor([sample.tokens])).last_hidden_state[0]
        said.append(head(hidden[[t - 1 for t in actions(sample)]]).squeeze(1))
    return model, head, torch.cat(said)


@pytest.mark.parametrize("chunk", [3, 2**20])
def test_it_judges_the_state_before_each_action_token(learner, samples, make_rollout, chunk):
    learner.scorer.chunk = chunk
    _, _, expected = plain_values(learner, samples)
    found = learner.values(samples)
    assert [len(row) for row in found] == [len(actions(sample)) for sample in samples]
    assert [v for row in found for v in row] == pytest.approx(expected.tolist(), abs=1e-5)
    assert learner.scorer.training and expected.std() > 0.01


def judged(sample: Sample, advantage: float) -> Sample:
    flat = [advantage] * len(sample.tokens)
    told = {"values": [VALUE] * len(sample.tokens), "returns": [TARGET] * len(sample.tokens)}
    return dataclasses.replace(sample, advantages=flat, **told)


def test_its_loss_moves_head_and_adapter_as_in_the_plain_model(learner, samples):
    """Without advantages the value loss is all there is: 1/2 times half the squared error, mean over action tokens."""
    model, head, said = plain_values(learner, samples)
    loss = 0.5 * (said - TARGET).square()
    (0.5 * loss.mean()).backward()
    step, seen = learner.optimizer.step, {}
    learner.config = dataclasses.replace(
        learner.config, policy=dataclasses.replace(learner.config.policy, max_grad_norm=1e9)
    )
    learner.optimizer.step = lambda: seen.update({n: gradients(learner, n) for n in (POLICY, VALUE_HEAD)})
    metrics = learner.update([judged(s, 0.0) for s in samples], [], 1.0, 0)
    learner.optimizer.step = step
    assert metrics["policy/value_loss"] == pytest.approx(loss.mean().item(), rel=1e-4) and metrics["policy/loss"] == 0
    assert close(seen[VALUE_HEAD], [p.grad for p in head.parameters()])
    assert close(seen[POLICY], [p.grad for name, p in model.named_parameters() if ".lora_" in name], 1e-3)


def test_it_has_a_rate_of_its_own(make_learner, samples):
    """At rate 0 it stays what it was, nothing, while the policy moves."""
    for rate in (0.0, 0.01):
        learner = make_learner(**{"world_model": None, "ppo.value_learning_rate": rate})
        before = weights(learner, VALUE_HEAD)
        assert not any(p.any() for p in before) and learner.values(samples[:1]) == [[0.0] * len(actions(samples[0]))]
        policy = weights(learner, POLICY)
        learner.update([judged(s, 1.0) for s in samples], [], 1.0, 0)
        assert same(before, weights(learner, VALUE_HEAD)) == (rate == 0.0) and not same(
            policy, weights(learner, POLICY)
        )


@pytest.mark.parametrize("settings", [{}, {"ppo.critic": False}])
def test_where_nobody_judges_there_is_none(make_learner, settings, tmp_path):
    learner = make_learner(world_model=None, **settings)
    assert learner.scorer.value_head is None and learner.parameters(VALUE_HEAD) == []
    assert [group["name"] for group in learner.optimizer.param_groups] == [POLICY]
    learner.save_adapters(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if "value" in path.name] == []
