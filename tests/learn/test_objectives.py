"""objectives: advantages, losses and the overlong penalty against numbers worked out by hand."""

from __future__ import annotations

import doctest
import math

import pytest
import torch

from lfo.learn import objectives
from lfo.learn.objectives import (
    Dapo,
    LossSum,
    PolicyTokens,
    Ppo,
    Scores,
    dapo_loss,
    explained_variance,
    gae,
    group_advantages,
    imitation_loss,
    k3,
    make_objective,
    overlong_penalty,
    regularisers,
    tis_weights,
    value_loss,
    world_model_loss,
)
from lfo.types import Role, Sample


def test_doctests():
    outcome = doctest.testmod(objectives)
    assert outcome.attempted >= 1 and outcome.failed == 0


# --- advantages ------------------------------------------------------------------------------


def test_advantages_of_four_rollouts_by_hand():
    """Mean 1/4, variance ((3/4)^2 + 3 (1/4)^2) / 4 = 3/16: the winner gets (3/4) / (sqrt(3)/4) = sqrt(3)."""
    advantages = group_advantages(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    third = 1 / math.sqrt(3)
    assert advantages.tolist() == pytest.approx([-third, math.sqrt(3), -third, -third], rel=1e-5)


def test_advantages_do_not_cross_groups(make_config, make_rollout):
    """One group has rewards 1 and 0, the other 10, 20 and 30, whose variance is 200/3."""
    groups = [[make_rollout([1], [2], reward=r) for r in rewards] for rewards in ((1, 0), (10, 20, 30))]
    found = [sample.advantages[1] for sample in Dapo(make_config()).assign(groups)]
    side = 10 / math.sqrt(200 / 3)
    assert found == pytest.approx([1, -1, -side, 0, side], abs=1e-4)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_group_of_one_mind_teaches_nothing(reward):
    assert group_advantages(torch.full((4,), reward)).tolist() == [0.0] * 4


# --- the overlong penalty --------------------------------------------------------------------


def test_overlong_penalty_points():
    """Budget 100, buffer 20: nothing up to 80, then a straight line to -1 at 100."""
    lengths = torch.tensor([0.0, 80, 85, 90, 99, 100, 150])
    assert overlong_penalty(lengths, 100, 20).tolist() == pytest.approx([0, 0, -0.25, -0.5, -0.95, -1, -1])


def test_without_a_buffer_the_penalty_is_a_step():
    assert overlong_penalty(torch.tensor([99.0, 100, 101]), 100, 0).tolist() == [0, 0, -1]


# --- DAPO ------------------------------------------------------------------------------------

# ratio, advantage -> surrogate, clipped?, d surrogate / d log-prob; clip range [0.8, 1.28]
CASES = [
    (1.0, 2.0, 2.0, False, 2.0),
    (1.25, 1.0, 1.25, False, 1.25),  # above 1.2: only clip-higher lets it pass
    (1.5, 1.0, 1.28, True, 0.0),
    (0.5, 1.0, 0.5, False, 0.5),  # the minimum keeps what makes the objective worse
    (0.5, -1.0, -0.8, True, 0.0),
    (0.75, -1.0, -0.8, True, 0.0),  # 0.75 is as far below 1 as 1.25 is above, and is clipped
    (1.5, -1.0, -1.5, False, -1.5),
    (1.3, 0.0, 0.0, False, 0.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "surrogate", "clipped", "slope"), CASES)
def test_one_token_by_hand(ratio, advantage, surrogate, clipped, slope):
    old = torch.tensor([-2.0])
    new = (old + math.log(ratio)).requires_grad_()
    loss = dapo_loss(new, old, torch.tensor([advantage]))
    loss.total.backward()
    assert loss.total.item() == pytest.approx(-surrogate, abs=1e-6)
    assert new.grad.item() == pytest.approx(-slope, abs=1e-6)
    assert loss.metrics["ratio_clipped"] == clipped
    assert loss.metrics["kl"] == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)
    assert loss.metrics["neg_logprob"] == 2.0


def test_tokens_are_summed_and_counted():
    ratios, advantages = (torch.tensor([case[i] for case in CASES]) for i in (0, 1))
    old = torch.linspace(-3, -1, len(CASES))
    loss = dapo_loss(old + ratios.log(), old, advantages)
    assert loss.count == len(CASES)
    assert loss.total.item() == pytest.approx(-sum(case[2] for case in CASES), abs=1e-5)
    assert loss.metrics["ratio_clipped"] == 3
    assert loss.metrics["neg_logprob"] == pytest.approx(2.0 * len(CASES))
    assert loss.mean().item() == pytest.approx(loss.total.item() / len(CASES))


def test_the_clip_range_is_a_setting():
    old = torch.tensor([-1.0, -1.0])
    loss = dapo_loss(old + torch.tensor([2.0, 0.1]).log(), old, torch.tensor([1.0, -1.0]), clip_low=0.5, clip_high=0.1)
    assert loss.total.item() == pytest.approx(-(1.1 - 0.5))


def test_importance_weights_by_hand():
    """Learner 0.6, 0.3, 0.2 and sampler 0.2, 0.3, 0.4: ratios 3, 1 and 1/2, of which the first is cut to 2."""
    learner, sampler = (torch.tensor(p).log() for p in ([0.6, 0.3, 0.2], [0.2, 0.3, 0.4]))
    assert tis_weights(learner, sampler, cap=2.0).tolist() == pytest.approx([2, 1, 0.5])


@pytest.mark.parametrize(("ratio", "advantage", "surrogate", "clipped", "slope"), CASES)
def test_importance_weights_multiply_what_the_clip_leaves(ratio, advantage, surrogate, clipped, slope):
    """They are constants: the clip looks at the learner's own ratio alone."""
    old = torch.tensor([-2.0])
    new = (old + math.log(ratio)).requires_grad_()
    loss = dapo_loss(new, old, torch.tensor([advantage]), weights=torch.tensor([0.5]))
    loss.total.backward()
    assert loss.total.item() == pytest.approx(-0.5 * surrogate, abs=1e-6)
    assert new.grad.item() == pytest.approx(-0.5 * slope, abs=1e-6)
    assert loss.metrics["ratio_clipped"] == clipped


# --- what is added to an objective -----------------------------------------------------------


def test_an_entropy_bonus_and_a_penalty_by_hand():
    """Entropies 1 and 3 nats. The base thinks the tokens half and twice as likely: 1/2 - 1 + ln 2, and 2 - 1 - ln 2.

    Slopes of the penalty: 1 - base / policy, so 1/2 and -1; those of minus 0.1 times the entropy: -0.1.
    """
    logprobs = torch.tensor([0.4, 0.2]).log().requires_grad_()
    entropies = torch.tensor([1.0, 3.0], requires_grad=True)
    known = PolicyTokens(logprobs.detach(), torch.ones(2), base_logprobs=torch.tensor([0.2, 0.4]).log())
    found = regularisers(Scores(logprobs, entropies=entropies), known, entropy=0.1, kl=0.2)
    found.total.backward()
    assert found.total.item() == pytest.approx(-0.1 * 4 + 0.2 * 0.5)
    assert found.metrics == {"entropy": pytest.approx(4), "kl_to_base": pytest.approx(0.5)} and found.count == 2
    assert logprobs.grad.tolist() == pytest.approx([0.2 * 0.5, -0.2])
    assert entropies.grad.tolist() == pytest.approx([-0.1, -0.1])


def test_what_was_not_asked_for_adds_nothing():
    logprobs = torch.tensor([-1.0], requires_grad=True)
    found = regularisers(Scores(logprobs), PolicyTokens(logprobs.detach(), torch.ones(1)), 0.0, 0.0)
    assert (found.total.item(), found.metrics) == (0.0, {})


@pytest.mark.parametrize("ratio", [0.1, 0.9, 1.0, 1.1, 5.0])
def test_the_estimate_of_a_divergence_is_never_negative(ratio):
    estimate = k3(torch.tensor(ratio).log()).item()
    assert estimate == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6) and (estimate > 0 or ratio == 1)


def test_the_estimate_is_the_divergence_on_average():
    """p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2), weighed by p: KL(p || q) = 1/2 ln 2 - 1/4 ln 2."""
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    assert (p * k3(q.log() - p.log())).sum().item() == pytest.approx(0.25 * math.log(2))


def test_imitation_is_cross_entropy_by_hand():
    """Probabilities 1/2 and 1/4: (ln 2 + ln 4) nats over two tokens."""
    loss = imitation_loss(torch.tensor([0.5, 0.25]).log())
    assert loss.mean().item() == pytest.approx(1.5 * math.log(2)) and (loss.count, loss.metrics) == (2, {})


# --- DAPO as an objective --------------------------------------------------------------------


@pytest.fixture
def dapo(make_config):
    """Its soft penalty grows over the last 10 of 100 tokens."""
    return Dapo(make_config(**{"rollout.max_tokens": 100, "policy.clip": [0.5, 0.1]}))


def test_a_rollouts_advantage_is_that_of_each_of_its_actions(dapo, make_rollout):
    """One of four succeeds: sqrt(3) for its action tokens, -1 / sqrt(3) for the others'."""
    group = [make_rollout([1, 2], [3, 4 + i], [5], [6], success=i == 1, logprob=-0.5) for i in range(4)]
    assert not dapo.uses_values
    for i, (rollout, sample) in enumerate(zip(group, dapo.assign([group]), strict=True)):
        a = math.sqrt(3) if i == 1 else -1 / math.sqrt(3)
        assert sample.advantages == pytest.approx([0, 0, a, a, 0, a], rel=1e-5)
        assert (sample.tokens, sample.roles, sample.old_logprobs) == (rollout.tokens, rollout.roles, rollout.logprobs)
        assert sample.how == "ratio" and sample.heard is None and sample.returns is None
        assert sample.roles == [Role.PROMPT] * 2 + [Role.ACTION] * 2 + [Role.OBSERVATION, Role.ACTION]


def test_scouts_have_no_part_in_their_group(dapo, make_rollout):
    """Without the scout's success this group is of one mind, and of another length: no sample, no share in the mean."""
    losers = [make_rollout([1], [2], group=1) for _ in range(2)]
    scout = make_rollout([1], [2] * 99, group=1, success=True, scout=True)
    other = [make_rollout([1], [3], group=2, success=i == 0) for i in range(2)]
    samples = dapo.assign([[scout, *losers], other])
    assert [sample.advantages[1] for sample in samples] == pytest.approx([0, 0, 1, -1], abs=1e-5)
    assert dapo.assign([[scout]]) == [] == dapo.assign([])


def test_what_is_too_long_is_punished(dapo, make_rollout):
    """Two successes of 90 and 95 tokens, budget 100: rewards 1 and 1/2, so advantages 1 and -1."""
    group = [make_rollout([1], [2] * (n - 1), success=True) for n in (90, 95)]
    assert [sample.advantages[1] for sample in dapo.assign([group])] == pytest.approx([1, -1], abs=1e-4)


def test_the_objective_is_the_clipped_loss(dapo):
    old, advantages, weights = torch.tensor([-1.0, -1.0]), torch.tensor([1.0, -1.0]), torch.tensor([0.5, 1.0])
    new = old + torch.tensor([2.0, 0.1]).log()
    assert dapo.loss(Scores(new), PolicyTokens(old, advantages)).total.item() == pytest.approx(-(1.1 - 0.5))
    weighted = dapo.loss(Scores(new), PolicyTokens(old, advantages, weights))
    assert weighted.total.item() == pytest.approx(-(0.55 - 0.5))


# --- PPO -------------------------------------------------------------------------------------


def test_three_tokens_of_gae_by_hand():
    """Values 1/2, 1/4, 1/2, reward 1 at the end, gamma 1/2: deltas -3/8, 0, 1/2; gamma lambda = 1/4 hands them on."""
    assert gae([0.0, 0.0, 1.0], [0.5, 0.25, 0.5], gamma=0.5, lam=0.5) == [-0.375 + 0.125 / 4, 0.125, 0.5]


@pytest.mark.parametrize(("lam", "expected"), [(0.0, [-0.25, 0.25, 0.5]), (1.0, [0.5, 0.75, 0.5])])
def test_lambda_goes_from_one_step_to_the_outcome(lam, expected):
    """Undiscounted: 0 looks at the next value alone, 1 at the outcome alone."""
    assert gae([0.0, 0.0, 1.0], [0.5, 0.25, 0.5], gamma=1.0, lam=lam) == expected


def test_nothing_done_is_nothing_estimated():
    assert gae([], [], 1.0, 1.0) == []


# value, return -> half the squared error that counts, its slope; the old value is 1, the clip 0.2
VALUES = [
    (1.1, 2.0, 0.405, -0.9),  # within the clip
    (1.5, 2.0, 0.32, 0.0),  # clipped at 1.2, which is farther away: it has moved far enough
    (1.5, 1.0, 0.125, 0.5),  # moved away from where it should be: the error without the clip is larger
    (0.5, 0.0, 0.32, 0.0),  # clipped at 0.8
]


@pytest.mark.parametrize(("value", "target", "error", "slope"), VALUES)
def test_a_value_is_followed_up_to_the_clip(value, target, error, slope):
    values = torch.tensor([value], requires_grad=True)
    found = value_loss(values, torch.tensor([1.0]), torch.tensor([target]), clip=0.2)
    found.backward()
    assert found.item() == pytest.approx(error) and values.grad.item() == pytest.approx(slope)


def judged(values: list[float], returns: list[float]) -> Sample:
    """A prompt token, then actions."""
    roles = [Role.PROMPT] + [Role.ACTION] * len(values)
    none = [0.0] * len(roles)
    return Sample([1] * len(roles), roles, none, none, values=[9.0, *values], returns=[-9.0, *returns])


def test_explained_variance_by_hand():
    """Returns 0, 1, 0, 1 (variance 1/4); errors 1/2, 1/2, 0, 0 (variance 1/16)."""
    samples = [judged([-0.5, 0.5], [0.0, 1.0]), judged([0.0, 1.0], [0.0, 1.0])]
    assert explained_variance(samples) == pytest.approx(0.75)
    assert explained_variance([judged([7.0, 7.0], [0.0, 1.0])]) == pytest.approx(0)  # a constant explains nothing
    assert explained_variance([judged([0.0, 3.0], [1.0, 1.0])]) == 0 == explained_variance([])


@pytest.fixture
def make_ppo(make_config):
    """make_ppo(**settings): with clips of 1/2 for ratios and 1 for values."""
    defaults = {"policy.clip": [0.5, 0.5], "ppo.value_clip": 1.0, "ppo.gae_lambda": 1.0}
    return lambda **settings: Ppo(make_config(**(defaults | settings)))


def test_the_settings_say_which_objective_it_is(make_config):
    assert type(make_objective(make_config())) is Dapo and type(make_objective(make_config(ppo={}))) is Ppo


def test_an_outcome_is_told_apart_from_what_was_expected(make_ppo, make_rollout):
    """Values 1/2 everywhere, a success of two action tokens and a failure of two: advantages 1/2 and -1/2, normalised
    to 1 and -1; returns are the outcomes. Prompts and observations have none; a scout has no part."""
    won = make_rollout([1, 2], [3], [5], [6], success=True, logprob=-0.5)
    lost = make_rollout([1, 2], [3, 4], success=False)
    scout = make_rollout([1, 2], [3], success=True, scout=True)
    ppo = make_ppo()
    first, second = ppo.assign([[won, scout], [lost]], [[0.5, 0.5], [0.5, 0.5]])
    assert (first.tokens, first.roles, first.old_logprobs) == (won.tokens, won.roles, won.logprobs)
    assert first.advantages == pytest.approx([0, 0, 1, 0, 1], abs=1e-5) and first.returns == [0, 0, 1, 0, 1]
    assert second.advantages == pytest.approx([0, 0, -1, -1], abs=1e-5) and second.returns == [0, 0, 0, 0]
    assert first.values == [0, 0, 0.5, 0, 0.5] and not ppo.grouped and ppo.uses_values and ppo.state == {}
    assert ppo.assign([], None) == [] and ppo.state == {}


def test_without_a_critic_the_baseline_is_the_running_mean(make_ppo, make_rollout):
    """Rewards 1, 0, then 1, 1: baselines 1/2 (their own mean), then still 1/2; after these 0.9 / 2 + 0.1 = 0.55."""
    ppo = make_ppo(**{"ppo.critic": False})
    won, lost = make_rollout([1], [3, 4], success=True), make_rollout([1], [2], success=False)
    first, second = ppo.assign([[won, lost]])
    assert (first.advantages, second.advantages) == ([0, 0.5, 0.5], [0, -0.5])
    assert ppo.state == {"baseline": 0.5} and first.returns is None is first.values and not ppo.uses_values
    assert [sample.advantages[1] for sample in ppo.assign([[won], [won]])] == [0.5, 0.5]
    assert ppo.state == {"baseline": pytest.approx(0.55)}


def test_its_loss_by_hand(make_ppo):
    """Ratios 2 and 1/10 with advantages 1 and -1, clipped at 3/2 and 1/2: surrogate 1. Values 1 and 3, returns 0 and 4,
    old values 0 and 1, the second clipped at 2: errors 1/2 and 2, of which half counts."""
    old, advantages = torch.tensor([-1.0, -1.0]), torch.tensor([1.0, -1.0])
    new = old + torch.tensor([2.0, 0.1]).log()
    told = {"returns": torch.tensor([0.0, 4.0]), "old_values": torch.tensor([0.0, 1.0])}
    ppo = make_ppo(**{"ppo.value_weight": 0.5})
    loss = ppo.loss(Scores(new, torch.tensor([1.0, 3.0])), PolicyTokens(old, advantages, **told))
    assert loss.metrics["loss"] == pytest.approx(-1) and loss.metrics["value_loss"] == pytest.approx(2.5)
    assert loss.total.item() == pytest.approx(-1 + 0.5 * 2.5) and loss.count == 2
    assert loss.metrics["ratio_clipped"] == 2
    alone = ppo.loss(Scores(new), PolicyTokens(old, advantages))  # where nobody judges
    assert alone.total.item() == pytest.approx(-1) and "value_loss" not in alone.metrics


# --- the world model -------------------------------------------------------------------------


def test_world_model_loss_by_hand():
    """Probabilities 1/2 and 1/4: (ln 2 + ln 4) nats over two tokens, one of them the arg-max."""
    loss = world_model_loss(torch.tensor([0.5, 0.25]).log(), torch.tensor([True, False]))
    assert loss.total.item() == pytest.approx(3 * math.log(2))
    assert (loss.count, loss.metrics) == (2, {"correct": 1})
    assert loss.mean().item() == pytest.approx(1.5 * math.log(2))


# --- normalisation ---------------------------------------------------------------------------


def test_parts_divided_by_the_global_count_add_up_to_the_whole():
    logprobs = torch.tensor([-0.5, -1.0, -3.0])
    whole = world_model_loss(logprobs, torch.ones(3, dtype=torch.bool))
    parts = [world_model_loss(part, torch.ones(len(part), dtype=torch.bool)) for part in logprobs.split([2, 1])]
    assert whole.mean().item() == pytest.approx(1.5)
    assert sum(part.mean(3).item() for part in parts) == pytest.approx(1.5)
    assert sum(part.mean().item() for part in parts) != pytest.approx(1.5)


def test_an_empty_component_is_a_zero_that_can_go_backward():
    weights = torch.ones(3, requires_grad=True)
    nothing = weights[:0]
    policy = dapo_loss(nothing, nothing.detach(), nothing.detach())
    world = world_model_loss(nothing, torch.zeros(0, dtype=torch.bool))
    total = policy.mean() + 0.5 * world.mean()
    total.backward()
    assert (total.item(), policy.count, world.count) == (0.0, 0, 0)
    assert weights.grad.tolist() == [0.0, 0.0, 0.0]
    assert LossSum(torch.tensor(0.0), 0, {}).mean(0).item() == 0.0
