"""tasks: the order of tasks, and which groups teach."""

from __future__ import annotations

import pytest

from lfo.rollout.tasks import TaskStream, informative
from lfo.types import Task

TASKS = [Task(f"t{n}", "train", 1) for n in range(6)]


def test_every_epoch_is_a_permutation_and_no_two_are_alike():
    stream = TaskStream(TASKS, seed=0)
    epochs = [stream.take(6) for _ in range(3)]
    for epoch in epochs:
        assert sorted(t.task_id for t in epoch) == [t.task_id for t in TASKS]
    assert len({tuple(t.task_id for t in epoch) for epoch in epochs}) == 3
    assert stream.position == 18


def test_a_stream_goes_on_from_a_position():
    whole = TaskStream(TASKS, seed=4).take(20)
    for position in (0, 1, 6, 13):
        assert TaskStream(TASKS, 4, position).take(20 - position) == whole[position:]


def test_how_tasks_are_taken_does_not_matter():
    stream = TaskStream(TASKS, seed=4)
    assert [t for n in (1, 4, 0, 7) for t in stream.take(n)] == TaskStream(TASKS, 4).take(12)


def test_seeds_order_tasks_differently(world):
    orders = {tuple(t.task_id for t in TaskStream(world.split("train"), seed).take(20)) for seed in range(5)}
    assert len(orders) == 5


def test_no_task_is_an_error_that_says_so():
    with pytest.raises(ValueError, match=r"no training task at these levels; widen `env\.levels`"):
        TaskStream([], 0)


@pytest.mark.parametrize(("successes", "teaches"), [(0, False), (1, True), (3, True), (4, False)])
def test_a_group_teaches_when_some_succeed_and_some_fail(make_rollout, successes, teaches):
    group = [make_rollout([1], success=i < successes) for i in range(4)]
    assert informative(group) == (group if teaches else [])


def test_a_shaped_reward_does_not_make_a_group_informative(make_rollout):
    assert informative([make_rollout([1], reward=r) for r in (0.0, 0.2, 0.7)]) == []
    assert len(informative([make_rollout([1], reward=0.5, success=s) for s in (True, False)])) == 2


def test_groups_are_judged_apart_and_scouts_do_not_count(make_rollout):
    """Group 0 has a success and a failure; group 1 fails but for its scout; group 2 succeeds but for its scout."""
    facts = [(0, True, False), (1, False, False), (2, True, False), (0, False, False), (0, True, True)]
    facts += [(1, False, False), (1, True, True), (2, True, False), (2, False, True)]
    rows = [make_rollout([n], group=g, success=s, scout=x) for n, (g, s, x) in enumerate(facts)]
    assert informative(rows) == [rows[0], rows[3]]
