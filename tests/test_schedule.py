"""schedule: whose turn it is, and that nothing that waits is lost or learned twice."""

from __future__ import annotations

import pytest

from lfo.config import WorldModelConfig
from lfo.schedule import Due, turns
from lfo.tokens import CallExample


@pytest.mark.parametrize(
    ("settings", "policy", "world_model", "replays"),
    [
        ({}, "yyyyyy", "yyyyyy", 5),
        ({"schedule": "alternating"}, "y-y-y-", "-y-y-y", 10),
        ({"schedule": "world_first", "world_first_tasks": 16}, "--yyyy", "yyyyyy", 5),
        ({"schedule": "hierarchical", "policy_every": 3}, "--y--y", "yyyyyy", 5),
    ],
)
def test_turns_by_hand(settings, policy, world_model, replays):
    """Six steps of eight tasks; tasks are counted with the step's own."""
    w = WorldModelConfig(updates=5, **settings)
    steps = [turns(w, step, 8 * (step + 1)) for step in range(6)]
    assert "".join("-y"[p] for p, _, _ in steps) == policy
    assert "".join("-y"[m] for _, m, _ in steps) == world_model
    assert {count for _, _, count in steps} == {replays}


@pytest.fixture
def step(make_trajectory):
    """step(i): an update of one rollout, and two calls, of the i-th step."""

    def make(i: int):
        calls = [CallExample((i, k), (7,), "success", "", f"t{i}") for k in range(2)]
        return [[make_trajectory([1], [2, 3], group=i, success=i % 2 == 0, calls=calls)]], calls

    return make


def test_everything_is_learned_once_and_in_order(step):
    due, learned = Due(), []
    for i, (policy, world_model) in enumerate(
        [(False, True), (False, False), (True, False), (False, True), (True, True)]
    ):
        due.add(*step(i), updates=i)
        rollouts, calls, updates = due.take(policy, world_model)
        learned.append(([r.group for rows in rollouts for r in rows], sorted({c.prompt[0] for c in calls}), updates))
    assert learned == [([], [0], 0), ([], [], 0), ([0, 1, 2], [], 0), ([], [1, 2, 3], 6), ([3, 4], [4], 4)]
    assert due == Due()


def test_what_waits_survives_a_checkpoint(step):
    due = Due()
    for i in range(2):
        due.add(*step(i), updates=3)
    again = Due.from_json(due.to_json())
    assert (again.calls, again.updates) == (due.calls, 6)
    for ours, theirs in zip(again.rollouts, due.rollouts, strict=True):
        theirs[0].calls = []  # they were heard
        assert ours == theirs
    assert Due.from_json("{}") == Due()  # a checkpoint from before there were schedules
