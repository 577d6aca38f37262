"""What the learner's tests share: samples, gradients as the optimizer sees them, the plain model to compare with."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import torch
from peft import PeftModel

from lfo.learn import adapters
from lfo.learn.learner import Learner
from lfo.protocols import AdapterLayout
from lfo.text.base import load_base
from lfo.types import POLICY, WORLD_MODEL, Encoded, Role, Rollout, Sample

ADVANTAGES = [1.0, -0.5, 2.0, -1.0]
BOTH = AdapterLayout((POLICY, WORLD_MODEL), (WORLD_MODEL,))
ONE = AdapterLayout((POLICY,), (POLICY,))
SECOND = "world_model_2"
LAYOUTS = {
    "none": BOTH,
    "imagine": BOTH,
    "stacked": dataclasses.replace(BOTH, stacked=True),
    "shared": ONE,
    "echo": ONE,
    "ensemble": AdapterLayout((POLICY, WORLD_MODEL, SECOND), (WORLD_MODEL, SECOND)),
    None: AdapterLayout((POLICY,), ()),
}


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(20, 1000) for _ in range(count)]


def samples_of(rollouts: Sequence[Rollout], advantages: Sequence[float | None] = ADVANTAGES) -> list[Sample]:
    """The same advantage at every token; None: it only listens."""
    pairs = zip(rollouts, advantages, strict=True)
    return [Sample(r.tokens, r.roles, r.logprobs, None if a is None else [a] * len(r.tokens)) for r, a in pairs]


def as_sampled_by(learner: Learner, samples: Sequence[Sample]) -> list[Sample]:
    """The samples with the log-probs that this policy gives their actions: all ratios are 1."""
    out = []
    for sample, logprobs in zip(samples, learner.action_logprobs(samples), strict=True):
        acted = iter(logprobs)
        old = [next(acted) if role == Role.ACTION else 0.0 for role in sample.roles]
        out.append(dataclasses.replace(sample, old_logprobs=old))
    return out


# --- weights and gradients -------------------------------------------------------------------


def weights(learner: Learner, adapter: str) -> list[torch.Tensor]:
    return [p.detach().clone() for p in learner.parameters(adapter)]


def gradients(learner: Learner, adapter: str) -> list:
    return [None if p.grad is None else p.grad.clone() for p in learner.parameters(adapter)]


def gradients_of(learner: Learner, update: Callable[[], dict]) -> tuple[dict[str, list], dict[str, float]]:
    """Gradients of every adapter as the optimizer would see them, and the update's metrics; no step is taken."""
    seen: dict[str, list] = {}
    step = learner.optimizer.step
    learner.optimizer.step = lambda: seen.update({name: gradients(learner, name) for name in learner.layout.names})
    metrics = update()
    learner.optimizer.step = step
    return seen, metrics


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Bit for bit."""
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def close(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor], rtol: float = 1e-4) -> bool:
    """Each tensor up to rounding."""
    assert len(one) == len(other) > 0
    return all((a - b).norm() <= rtol * b.norm() + 1e-7 for a, b in zip(one, other, strict=True))


# --- the plain model -------------------------------------------------------------------------


def plain(learner: Learner, adapter: str = POLICY) -> PeftModel:
    """The learner's model as transformers and peft compute it, with eager attention and a mask."""
    config = learner.config
    base = load_base(config.model.base, "cpu", getattr(torch, config.model.dtype))
    base.set_attn_implementation("eager")
    model = adapters.with_adapters(base, config.model, learner.layout.names, seed=0)
    model.load_state_dict(learner.model.state_dict())
    adapters.activate(model, learner.layout, adapter)
    return model


def plain_logprobs(
    model: PeftModel, sequences: Sequence[Sequence[int]], places: Sequence[Sequence[int]], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities of the tokens at these places, from one padded batch."""
    longest = max(map(len, sequences))
    tokens = torch.tensor([[*s, *[0] * (longest - len(s))] for s in sequences])
    mask = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sequences])
    logprobs = torch.log_softmax(model(tokens, attention_mask=mask).logits.float() / temperature, -1)
    return torch.stack([logprobs[b, t - 1, tokens[b, t]] for b, where in enumerate(places) for t in where])


def plain_policy(learner: Learner, samples: Sequence[Sample]) -> tuple[PeftModel, torch.Tensor]:
    """The plain model and its log-probabilities of the samples' actions."""
    model = plain(learner)
    places = [[t for t, role in enumerate(s.roles) if role == Role.ACTION] for s in samples]
    return model, plain_logprobs(model, [s.tokens for s in samples], places)


def plain_world(learner: Learner, examples: Sequence[Encoded]) -> tuple[PeftModel, torch.Tensor]:
    """The plain model and its log-probabilities of the examples' replies."""
    model = plain(learner, learner.layout.listener)
    places = [range(len(e.prompt), len(e.prompt) + len(e.reply)) for e in examples]
    return model, plain_logprobs(model, [e.prompt + e.reply for e in examples], places)


def judged(learner: Learner, samples: Sequence[Sample]) -> list[Sample]:
    """The samples with their own log-probabilities, as they are at the start of a step."""
    own = learner.action_logprobs(samples)
    return [dataclasses.replace(sample, own=found) for sample, found in zip(samples, own, strict=True)]
