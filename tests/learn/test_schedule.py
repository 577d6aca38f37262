"""schedule: whose turn it is, and that nothing that waits is lost or learned twice."""

from __future__ import annotations

import pytest

from lfo.config import WorldModelConfig
from lfo.learn.schedule import Due, Turns, turns
from lfo.types import Call, Encoded, Example, Turn, from_json, to_json


@pytest.mark.parametrize(
    ("schedule", "policy", "world_model", "skips", "replays"),
    [
        ("joint", "yyyyyyy", "yyyyyyy", "-------", [5] * 7),
        ("alternating", "y-y-y-y", "-y-y-yy", "-------", [10, 10, 10, 5]),
        ("world_first", "-yyyyyy", "yyyyyyy", "y------", [5] * 7),
        ("hierarchical", "---y--y", "yyyyyyy", "-------", [5] * 7),
        ("policy_leads", "yyyyyyy", "----y-y", "-------", [25, 10]),
    ],
)
def test_turns_by_hand(schedule, policy, world_model, skips, replays):
    """Seven steps of eight tasks, a budget of 56; tasks are counted with the step's own. Everybody learns in the last
    step, and there are as many replay updates as in a joint schedule."""
    w = WorldModelConfig(updates=5, schedule=schedule)
    steps = [turns(w, step, 8 * (step + 1), budget=56) for step in range(7)]
    assert "".join("-y"[t.policy] for t in steps) == policy
    assert "".join("-y"[t.world_model] for t in steps) == world_model
    assert "".join("-y"[t.skips] for t in steps) == skips
    assert [t.replays for t in steps if t.world_model] == replays and sum(replays) == 5 * 7


def test_without_a_world_model_it_is_always_the_policys_turn():
    assert {turns(None, step, 8 * step, budget=64) for step in range(8)} == {Turns(True, False, 0)}


@pytest.fixture
def step(make_rollout):
    """step(i): an update of one rollout, and two examples, of the i-th step."""

    def make(i: int):
        call = Call("phone", {"number": "1"})
        past = (Turn(call, "a reply", "ok"),)
        examples = [Example(f"t{i}", call, "no", "failed", Encoded((i, k), (7,)), "please", past) for k in range(2)]
        return [[make_rollout([1], [2, 3], group=i, success=i % 2 == 0, examples=examples)]], examples

    return make


def test_everything_is_learned_once_and_in_order(step):
    due, learned = Due(), []
    for i, (policy, world_model) in enumerate(
        [(False, True), (False, False), (True, False), (False, True), (True, True)]
    ):
        due.add(*step(i), updates=i)
        rollouts, examples, updates = due.take(policy, world_model)
        groups = [r.group for rows in rollouts for r in rows]
        learned.append((groups, sorted({e.encoded.prompt[0] for e in examples}), updates))
    assert learned == [([], [0], 0), ([], [], 0), ([0, 1, 2], [], 0), ([], [1, 2, 3], 6), ([3, 4], [4], 4)]
    assert due == Due()


def test_what_waits_survives_a_checkpoint(step):
    due = Due()
    for i in range(2):
        due.add(*step(i), updates=3)
    again = from_json(Due, to_json(due), "here")
    assert again == due and again.updates == 6
    assert [e.turns for e in again.examples] == [e.turns for e in due.examples]
    assert [row.examples for rows in again.rollouts for row in rows] == [[], []]  # they were heard
    assert from_json(Due, to_json(Due()), "here") == Due()
