"""What is optimised: advantages, the losses of DAPO and PPO, the world-model loss. Pure tensor functions.

Knows nothing about models, adapters, tokenizers or the environment. Losses come as sums and
counts, so that whoever holds the global batch divides once, by the global count, and multiplies
by lambda once: ``total = policy.mean() + lam * world_model.mean()``.

Sources: DAPO, arXiv 2503.14476 (eq. 8 the objective, section 3.4 the overlong penalty);
GRPO, arXiv 2402.03300 (group-relative advantages; eq. 4 the KL penalty); PPO, Schulman et al. 2017, arXiv 1707.06347
(eq. 7 the clipped ratio, eq. 9 the entropy bonus); GAE, Schulman et al. 2015, arXiv 1506.02438 (eq. 16);
self-imitation, Oh et al. 2018, arXiv 1806.05635; truncated importance sampling between
sampler and learner, Yao et al. 2025 ("Your efficient RL framework secretly brings you off-policy RL training").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from lfo.config import RunConfig
from lfo.learn.batches import actions, at, placed
from lfo.protocols import Objective
from lfo.types import Rollout, Sample

OVERLONG = 0.1  # last share of the token budget in which the soft penalty grows to -1
REMEMBERED = 0.9  # of the running mean of the rewards, from step to step; PPO without a critic
EPS = 1e-6  # beside a standard deviation that may be 0


@dataclasses.dataclass
class LossSum:
    """A loss before normalisation. total: scalar sum over tokens; count: tokens; metrics: sums over the same tokens."""

    total: torch.Tensor
    count: int
    metrics: dict[str, float]

    def mean(self, global_count: int | None = None) -> torch.Tensor:
        """The sum divided by the global token count; an empty component is a backward-able zero."""
        return self.total / max(1, self.count if global_count is None else global_count)


def group_advantages(rewards: torch.Tensor, counted: torch.Tensor | None = None) -> torch.Tensor:
    """The rewards of one group, normalised (GRPO, arXiv 2402.03300, section 4.1.2).

    rewards: (G,). counted: (G,) bool, whose mean is the baseline, if there is any; None: everybody's, as in GRPO. With
    the first attempts' mean a success that was helped keeps an advantage where all that were helped succeed (RLTF-SD,
    arXiv 2602.02482). Returns (G,): (r - mean) / (std + EPS), std over the group with divisor G.

    >>> group_advantages(torch.tensor([1., 0., 0., 0.]))
    tensor([ 1.7320, -0.5773, -0.5773, -0.5773])
    """
    base = rewards if counted is None or not counted.any() else rewards[counted]
    return (rewards - base.mean()) / (rewards.std(correction=0) + EPS)


def overlong_penalty(lengths: torch.Tensor, budget: int, buffer: int) -> torch.Tensor:
    """Soft overlong punishment (DAPO eq. 13): 0 up to budget - buffer, then linear, -1 at the budget and beyond."""
    return -((lengths - (budget - buffer)) / max(1, buffer)).clamp(0.0, 1.0)


def dapo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    weights: torch.Tensor | None = None,
) -> LossSum:
    """Clip-higher surrogate, summed over tokens (DAPO eq. 8 without its normaliser); no KL term.

    With clip_low = clip_high it is PPO's (eq. 7).

    logprobs, old_logprobs, advantages: (N,), one entry per ACTION token of the batch; `old_logprobs`
    are the sampler's, or with `weights` (N,), of `tis_weights`, the learner's before this step;
    `advantages` are those of the token's trajectory.
    metrics: ratio_clipped (tokens at which the clip is active), kl (k3 estimate of KL(old || new),
    nats), neg_logprob (entropy estimate of the sampler, nats) - each a sum over tokens.
    """
    log_ratio = logprobs - old_logprobs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    if weights is not None:
        surrogate = surrogate * weights
    with torch.no_grad():
        metrics = {
            "ratio_clipped": (clipped * advantages < ratio * advantages).sum().item(),
            "kl": k3(log_ratio).sum().item(),
            "neg_logprob": -old_logprobs.sum().item(),
        }
    return LossSum(-surrogate.sum(), logprobs.numel(), metrics)


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """An estimate of KL(p || q) at tokens that p sampled, never negative (GRPO eq. 4): r - 1 - log r with r = q / p.

    >>> k3(torch.tensor([1.0, 2.0, 0.5]).log())
    tensor([0.0000, 0.3069, 0.1931])
    """
    return log_ratio.exp() - 1 - log_ratio


def tis_weights(learner_logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, cap: float) -> torch.Tensor:
    """Truncated importance weight of each sampled token (Yao et al. 2025): min(p_learner / p_sampler, cap).

    logprobs: (N,), of the same weights in the learner and in the sampler, which compute in other
    precisions or with other kernels, or whose weights are older (`rollout.asynchronous`). The cap
    bounds the variance at the price of a small bias.

    >>> tis_weights(torch.tensor([0.5, 0.1, 0.3]).log(), torch.tensor([0.25, 0.1, 0.6]).log(), cap=1.5)
    tensor([1.5000, 1.0000, 0.5000])
    """
    return (learner_logprobs - sampler_logprobs).exp().clamp(max=cap)


def world_model_loss(logprobs: torch.Tensor, correct: torch.Tensor) -> LossSum:
    """Cross-entropy on reply tokens, summed (nats).

    logprobs: (N,) of the true tokens; correct: (N,) bool, whether the arg-max token was the true one.
    """
    return LossSum(-logprobs.sum(), logprobs.numel(), {"correct": correct.sum().item()})


def imitation_loss(logprobs: torch.Tensor) -> LossSum:
    """Cross-entropy on the action tokens (N,) of earlier successes, summed (nats).

    Self-imitation (Oh et al. 2018, eq. 2) weighs each by how far the return exceeds a learned value. There is no value
    here, and all of them succeeded: all weigh the same.
    """
    return LossSum(-logprobs.sum(), logprobs.numel(), {})


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """Generalised advantage estimates of an episode's steps (arXiv 1506.02438, eq. 16); after the last, nothing counts.

    delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lam A_{t+1}.

    >>> gae([0.0, 1.0], [0.5, 0.5], gamma=1.0, lam=0.5)
    [0.25, 0.5]
    """
    out, following, advantage = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + gamma * following - value + gamma * lam * advantage
        following = value
        out.append(advantage)
    return out[::-1]


def value_loss(values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float) -> torch.Tensor:
    """Half the squared error of values (N,), summed; they are followed up to `clip` from the old ones alone.

    The larger of the errors with and without the clip counts, as in the implementation of PPO that came with the paper.
    """
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2).sum()


def explained_variance(samples: Sequence[Sample]) -> float:
    """1 - Var(return - value) / Var(return) over all action tokens.

    1 where values tell everything; 0 where they tell no more than a constant, or where all returns are the same.
    """
    places = [actions(s.roles) for s in samples]
    values, returns = at([s.values for s in samples], places), at([s.returns for s in samples], places)
    spread = returns.var(correction=0).item() if len(returns) else 0.0
    return 1 - (returns - values).var(correction=0).item() / spread if spread else 0.0


@dataclasses.dataclass
class Scores:
    """The learner's log-probabilities (N,) of the action tokens; values (N,) where there is a value head, and the
    entropies (N,) of the distributions that the tokens were sampled from, where they are asked for."""

    logprobs: torch.Tensor
    values: torch.Tensor | None = None
    entropies: torch.Tensor | None = None


@dataclasses.dataclass
class PolicyTokens:
    """What is known of the action tokens of a micro-batch: (N,) each. weights: of `tis_weights`.

    returns, old_values: what a value head is to say, and what it said before the step. base_logprobs: the frozen
    base's, where they are asked for.
    """

    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor | None = None
    returns: torch.Tensor | None = None
    old_values: torch.Tensor | None = None
    base_logprobs: torch.Tensor | None = None


def regularisers(scores: Scores, batch: PolicyTokens, entropy: float, kl: float) -> LossSum:
    """What is added to any objective's loss, summed over tokens, of what was asked for: minus `entropy` times the
    entropy (PPO eq. 9), plus `kl` times the k3 estimate of KL(policy || base) (GRPO eq. 4).

    metrics: entropy, kl_to_base (nats) - each a sum over tokens, without its weight.
    """
    total, metrics = scores.logprobs.new_zeros(()), {}
    if scores.entropies is not None:
        bonus = scores.entropies.sum()
        total, metrics["entropy"] = total - entropy * bonus, bonus.item()
    if batch.base_logprobs is not None:
        penalty = k3(batch.base_logprobs - scores.logprobs).sum()
        total, metrics["kl_to_base"] = total + kl * penalty, penalty.item()
    return LossSum(total, scores.logprobs.numel(), metrics)


class Dapo:
    """DAPO (Yu et al. 2025, arXiv 2503.14476) as an `Objective`."""

    grouped, uses_values = True, False

    def __init__(self, config: RunConfig):
        self.state: dict[str, float] = {}
        self.clip = config.policy.clip
        self.budget = config.rollout.max_tokens
        self.first = bool(config.feedback) and config.feedback.baseline == "first"

    def assign(
        self, groups: Sequence[Sequence[Rollout]], values: Sequence[Sequence[float]] | None = None
    ) -> list[Sample]:
        """Group-relative advantages of reward plus soft overlong penalty, the same for every action token.

        With `feedback.baseline` first they are relative to those who read no feedback.
        """
        samples = []
        for played in filter(None, ([row for row in group if not row.scout] for group in groups)):
            lengths = torch.tensor([float(len(row.tokens)) for row in played])
            penalty = overlong_penalty(lengths, self.budget, int(OVERLONG * self.budget))
            rewards = torch.tensor([row.outcome.reward for row in played]) + penalty
            counted = torch.tensor([not (self.first and row.guided) for row in played])
            advantages = group_advantages(rewards, counted).tolist()
            samples += [
                _assigned(row, [a] * len(actions(row.roles))) for row, a in zip(played, advantages, strict=True)
            ]
        return samples

    def loss(self, scores: Scores, batch: PolicyTokens) -> LossSum:
        return dapo_loss(scores.logprobs, batch.old_logprobs, batch.advantages, *self.clip, batch.weights)


class Ppo:
    """PPO (Schulman et al. 2017, arXiv 1707.06347) as an `Objective`: every rollout by itself, its reward at its last
    action token. Without a critic it is REINFORCE with a baseline (Williams 1992), its ratio clipped."""

    grouped = False

    def __init__(self, config: RunConfig):
        self.state: dict[str, float] = {}  # "baseline": the running mean of the rewards of earlier steps
        self.clip, self.ppo = config.policy.clip, config.ppo
        self.uses_values = config.ppo.critic

    def assign(
        self, groups: Sequence[Sequence[Rollout]], values: Sequence[Sequence[float]] | None = None
    ) -> list[Sample]:
        """By GAE, normalised over all action tokens; without a critic, reward minus the running mean of rewards."""
        played = [row for group in groups for row in group if not row.scout]
        if not played:
            return []
        if values is None:
            mean = sum(row.outcome.reward for row in played) / len(played)
            baseline = self.state.get("baseline", mean)  # before these rewards; of the first ones, their own mean
            self.state["baseline"] = REMEMBERED * baseline + (1 - REMEMBERED) * mean
            return [_assigned(row, [row.outcome.reward - baseline] * len(actions(row.roles))) for row in played]
        estimates = [self._estimate(row.outcome.reward, told) for row, told in zip(played, values, strict=True)]
        returns = [[a + v for a, v in zip(*one, strict=True)] for one in zip(estimates, values, strict=True)]
        return [_assigned(*one) for one in zip(played, _normalised(estimates), returns, values, strict=True)]

    def _estimate(self, reward: float, values: Sequence[float]) -> list[float]:
        """The advantages of a rollout's action tokens, by their values."""
        return gae([0.0] * (len(values) - 1) + [reward] * bool(values), values, self.ppo.gamma, self.ppo.gae_lambda)

    def loss(self, scores: Scores, batch: PolicyTokens) -> LossSum:
        """The clipped surrogate, plus `ppo.value_weight` times the value loss where values are told.

        metrics: those of `dapo_loss`; where values are told, also loss (the surrogate alone) and value_loss (before its
        weight).
        """
        loss = dapo_loss(scores.logprobs, batch.old_logprobs, batch.advantages, *self.clip, batch.weights)
        if scores.values is None:
            return loss
        values = value_loss(scores.values, batch.old_values, batch.returns, self.ppo.value_clip)
        metrics = loss.metrics | {"loss": loss.total.item(), "value_loss": values.item()}
        return LossSum(loss.total + self.ppo.value_weight * values, loss.count, metrics)


def _normalised(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Minus the mean, over the standard deviation, both of all numbers in all rows."""
    every = torch.tensor([x for row in rows for x in row], dtype=torch.float64)
    every = (every - every.mean()) / (every.std(correction=0) + EPS)
    return [part.tolist() for part in every.split([len(row) for row in rows])]


def _assigned(row: Rollout, *numbers: Sequence[float]) -> Sample:
    """numbers: advantages, or advantages, returns and values, of the action tokens; all others have 0.0."""
    sample = Sample(row.tokens, row.roles, row.logprobs, None)
    for name, some in zip(("advantages", "returns", "values"), numbers, strict=False):
        setattr(sample, name, placed(some, actions(row.roles), len(row.tokens)))
    return sample


def make_objective(config: RunConfig) -> Objective:
    """What the policy of a run learns from outcomes."""
    return Ppo(config) if config.ppo else Dapo(config)
