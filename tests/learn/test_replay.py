"""replay: what is learned again, and the placebo in which replies belong to other tasks' calls."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest

from lfo.learn.replay import KEPT, ReplayBuffer, Successes, imitated, shuffled, thinned
from lfo.types import Call, Encoded, Example, Role, Turn, from_json, to_json


def example(task: str, i: int) -> Example:
    """The i-th call of a task; its reply begins with the task's name."""
    encoded = Encoded((ord(task), i), (100 * ord(task) + i,))
    status = "success" if i else "auth_failed"
    return Example(task, Call("phone", {"number": i}), f"{task}{i}", status, encoded, "a request", ())


@pytest.fixture
def calls() -> list[Example]:
    """Nine distinct calls of four tasks with a reply each, and two that were made twice."""
    made = [example(task, i) for task, size in {"a": 4, "b": 2, "c": 2, "d": 1}.items() for i in range(size)]
    return [*made, made[0], made[5]]


def filled(examples, **settings) -> ReplayBuffer:
    buffer = ReplayBuffer(**settings)
    buffer.add(examples)
    return buffer


# --- the buffer ------------------------------------------------------------------------------


def test_replay_draws_without_repetition_from_the_seed_alone(calls):
    calls = calls[:9]
    buffer = ReplayBuffer()
    assert buffer.draw(3, 0) == []
    buffer.add(calls[:2])
    buffer.add(calls[2:])
    assert sorted(buffer.draw(20, 0), key=calls.index) == calls
    drawn = buffer.draw(3, 7)
    assert len({e.encoded for e in drawn}) == 3 and drawn == filled(calls).draw(3, 7)
    assert len({tuple(e.encoded for e in buffer.draw(3, seed)) for seed in range(20)}) > 10


def test_half_of_what_is_replayed_tells_the_whole(calls):
    """As far as there is any: of nine calls two."""
    buffer = filled(calls[:9], whole=lambda example: example.task_id == "b")
    for seed in range(20):
        assert Counter(e.task_id == "b" for e in buffer.draw(4, seed))[True] == 2
        assert len(set(buffer.draw(8, seed))) == 8 and sorted(buffer.draw(20, seed), key=calls.index) == calls[:9]
    buffer = ReplayBuffer(whole=lambda example: example.task_id in "ab")
    buffer.add(calls[:9])
    drawn = Counter(e.task_id for seed in range(200) for e in buffer.draw(4, seed))
    assert drawn["a"] + drawn["b"] > 600 and min(drawn.values()) > 40


def test_replay_keeps_every_distinct_call_once_in_order(calls):
    encoded = Encoded(calls[0].encoded.prompt, (7,))
    other = dataclasses.replace(calls[0], reply="no", encoded=encoded)  # same call, another answer
    told_before = dataclasses.replace(calls[1], request="another request")  # the world model reads the same
    buffer = filled([calls[0], calls[1], calls[0]])
    buffer.add([told_before, other, calls[2], other])
    assert buffer.examples == [calls[0], calls[1], other, calls[2]]


def test_replay_in_proportion_draws_a_call_as_often_as_it_was_answered(calls):
    """Of four that were kept three are the same; nobody is preferred for telling the whole."""
    buffer = filled([calls[0], calls[1], calls[0]], whole=lambda example: example is calls[1], distinct=False)
    buffer.add([calls[0]])
    assert buffer.examples == [calls[0], calls[1], calls[0], calls[0]]
    assert buffer.draw(9, 3) == filled(buffer.examples, distinct=False).draw(9, 3) and len(buffer.draw(9, 3)) == 4
    drawn = Counter(e.reply for seed in range(200) for e in buffer.draw(1, seed))
    assert drawn.total() == 200 and 120 < drawn[calls[0].reply] < 180


# --- the placebo -----------------------------------------------------------------------------


def test_a_placebo_exchanges_replies_between_tasks(calls):
    """Prompts stay, every distinct reply is used once, none stays with its task, and the same call hears the same."""
    placebo = shuffled(calls, seed=0)
    assert [(e.encoded.prompt, e.task_id) for e in placebo] == [(e.encoded.prompt, e.task_id) for e in calls]
    assert {e.encoded.reply for e in placebo} == {e.encoded.reply for e in calls}
    assert len({e.encoded.prompt for e in placebo}) == 9
    assert not any(e.reply.startswith(e.task_id) for e in placebo)
    assert placebo[9:] == [placebo[0], placebo[5]]
    told = {e.encoded.reply: (e.status, e.reply) for e in calls}
    assert all(told[e.encoded.reply] == (e.status, e.reply) for e in placebo)
    assert shuffled(calls, seed=0) == placebo != shuffled(calls, seed=1)


def test_a_placebo_depends_on_nothing_that_the_call_says(calls):
    """Over many steps a call of one task hears the five replies of the other three about equally often."""
    heard = Counter(shuffled(calls, seed)[0].reply for seed in range(1500))
    assert set(heard) == {"b0", "b1", "c0", "c1", "d0"} and max(heard.values()) < 1.5 * min(heard.values())


def test_a_call_without_another_task_is_left_out(calls):
    assert shuffled(calls[:4], seed=0) == [] == shuffled([], seed=0)
    few = shuffled(calls[:5], seed=0)  # four calls of one task, one of another: one pair can exchange
    assert sorted(e.task_id for e in few) == ["a", "b"]
    assert {e.reply[0] for e in few} == {"a", "b"} and all(e.reply[0] != e.task_id for e in few)


def test_words_of_the_question_are_left_out_and_neither_tags_nor_reply(calls):
    """A share of them, anew each time, in their order: 30% of 1,000 words, of which chance makes 260 to 340."""
    asked = Encoded((1, *range(10, 1010), 2), (7, 8))
    shorter = [thinned(asked, 0.3, random.Random(seed), {1, 2}) for seed in (0, 0, 1)]
    assert shorter[0] == shorter[1] != shorter[2]
    for example in shorter:
        assert (example.prompt[0], example.prompt[-1], example.reply) == (1, 2, asked.reply)
        assert 660 < len(example.prompt) - 2 < 740 and list(example.prompt[1:-1]) == sorted(example.prompt[1:-1])
    assert thinned(asked, 1.0, random.Random(0), {1, 2}).prompt == (1, 2)


# --- successes -------------------------------------------------------------------------------


@pytest.fixture
def won(make_rollout):
    """won(i): a success that says i, with a turn and an example, which nobody imitates."""

    def make(i: int, **rest):
        turns = [Turn(Call("phone", {}), "yes", "ok")]
        facts = {"success": True, "turns": turns, "examples": [example("a", i)], "logprob": -0.5}
        return make_rollout([1, 2], [i, 4], [5], [6], **facts | rest)

    return make


def test_successes_are_kept_once_and_failures_not_at_all(won):
    successes = Successes()
    successes.add([won(1), won(2, success=False), won(3), won(3)])
    assert [row.tokens[2] for row in successes.rollouts] == [1, 3]
    successes.add([won(4), won(1)])  # as late as its repetition
    assert [row.tokens[2] for row in successes.rollouts] == [3, 4, 1]
    assert not any(row.turns or row.examples for row in successes.rollouts)


def test_the_latest_successes_are_kept(won):
    successes = Successes()
    for start in (0, 200):
        successes.add([won(10 + i) for i in range(start, start + 200)])
    assert KEPT == 256 and [row.tokens[2] for row in successes.rollouts] == list(range(10 + 400 - KEPT, 410))


def test_what_is_imitated_is_what_was_sampled_and_drawn_by_the_seed_alone(won):
    successes, rows = Successes(), [won(i) for i in range(20)]
    assert successes.draw(8, 0) == []
    successes.add(rows)
    drawn = [imitated(row, 0.5) for row in successes.draw(8, 0)]
    again, other = ([imitated(row, 0.5) for row in successes.draw(8, seed)] for seed in (0, 1))
    assert len({s.tokens[2] for s in drawn}) == 8 and drawn == again != other
    for sample in drawn:
        row = rows[sample.tokens[2]]
        assert (sample.tokens, sample.roles, sample.old_logprobs) == (row.tokens, row.roles, row.logprobs)
        assert sample.how == "imitated" and sample.weight == 0.5 and sample.heard is None
        assert Role.ACTION in sample.roles and len(sample.advantages) == len(sample.tokens)
    assert len(successes.draw(100, 0)) == 20


def test_successes_survive_a_checkpoint(won):
    """To the same bytes, and so to the same draws."""
    successes = Successes()
    successes.add([won(i) for i in range(9)])
    again = from_json(Successes, to_json(successes), "here")
    assert again == successes and to_json(again) == to_json(successes) and again.draw(4, 1) == successes.draw(4, 1)
