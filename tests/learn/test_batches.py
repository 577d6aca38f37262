"""batches: trees of tokens by hand, and which positions of a sample are learned."""

from __future__ import annotations

import random

import pytest
import torch

from lfo.learn.batches import PARTS, Batch, acted, at, heard, micro_batches, pack, shares
from lfo.types import Role, Sample


def flat(batch: Batch) -> torch.Tensor:
    return torch.cat([part.flatten() for part in batch.rows])


def test_a_tree_by_hand():
    """Two sequences part after 5, 6; a third is the second's beginning and needs no row of its own."""
    batch = pack([[5, 6, 7], [5, 6, 8, 7], [5, 6, 8]], [[1, 2], [2, 3], [2]])
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 7]] and batch.positions.tolist() == [[0, 1, 2, 2, 3]]
    assert [part.tolist() for part in batch.rows] == [[[0, 1, 2]], [[0, 1, 3, 4]]]
    assert flat(batch)[batch.places].tolist() == [0, 1, 2, 3, 4]
    assert batch.learned.tolist() == [6, 7, 8, 7]  # after 5, 5 6, 5 6 and 5 6 8
    assert batch.needed.tolist() == [0, 1, 3] and batch.before.tolist() == [0, 1, 1, 2]
    assert batch.learned[batch.picked].tolist() == [6, 7, 8, 7, 8]
    assert batch.count == 10


def test_what_is_asked_for_comes_kind_by_kind_and_counts_once():
    batch = pack([[1, 2, 3], [1, 4, 5], [1, 2]], [[2], [], []], [[1], [1, 2], []])
    assert batch.learned[batch.picked].tolist() == [3, 2, 4, 5]
    assert batch.count == 6  # of the last sequence nothing is learned


def test_nothing_is_asked_for_of_padding():
    batch = pack([[0, 0]])
    assert (batch.tokens.tolist(), flat(batch).tolist(), batch.count) == ([[0, 0]], [0, 1], 0)
    assert [len(t) for t in (batch.learned, batch.needed, batch.before, batch.picked)] == [0, 0, 0, 0]
    assert batch.picked.dtype == torch.long


def test_every_token_of_every_sequence_is_in_the_tree_once():
    """Any sequences: each is read back from the tree; nodes are as many as there are distinct beginnings."""
    for seed in range(20):
        rng = random.Random(seed)
        sequences = [[rng.randrange(3) for _ in range(rng.randrange(2, 9))] for _ in range(rng.randrange(1, 8))]
        asked = [range(1, len(s)) for s in sequences]
        batch = pack(sequences, asked)
        beginnings = {tuple(s[: i + 1]) for s in sequences for i in range(len(s))}
        assert batch.tokens.shape == batch.positions.shape == (1, len(beginnings)) and len(batch.places) == len(
            beginnings
        )
        assert batch.learned[batch.picked].tolist() == [token for s in sequences for token in s[1:]]
        told = batch.tokens[0][batch.needed][batch.before][batch.picked].tolist()
        assert told == [token for s in sequences for token in s[:-1]]
        assert torch.equal(flat(batch)[batch.places], torch.arange(len(beginnings)))
        assert batch.count == sum(map(len, sequences))


def test_rows_of_similar_lengths_are_padded_together():
    """Lengths 1 to 10 in four parts of three, three, three and one."""
    batch = pack([[i] * i for i in range(10, 0, -1)])
    assert [tuple(part.shape) for part in batch.rows] == [(3, 3), (3, 6), (3, 9), (1, 10)]
    assert len(batch.rows) == PARTS and len(flat(batch)) == 55 + 3 + 3 + 3


def sample(roles: str, advantages: list[float] | None, told: str = "") -> Sample:
    kinds = {"p": Role.PROMPT, "a": Role.ACTION, "o": Role.OBSERVATION}
    marks = [mark == "x" for mark in told] if told else None
    return Sample([1] * len(roles), [int(kinds[r]) for r in roles], [0.0] * len(roles), advantages, marks)


def test_actions_with_an_advantage_are_learned_and_what_is_marked_is_heard():
    assert acted(sample("ppaaoa", [0.0] * 6)) == [2, 3, 5]
    assert acted(sample("aa", [1.0] * 2)) == [1]  # nothing comes before the first
    assert acted(sample("ppaaoa", None)) == []  # it only listens
    assert heard(sample("ppaaoa", None, "----x-")) == [4]
    assert heard(sample("paoo", [0.0] * 4)) == []


def test_values_at_positions():
    assert at([[1.0, 2.0, 3.0], [4.0]], [[2, 0], [0]]).tolist() == [3.0, 1.0, 4.0]
    assert at([], []).tolist() == []


def test_micro_batches_by_hand():
    """At most 6 padded tokens: 1 and 3 make 2 x 3; another 3 would make 9."""
    assert list(micro_batches([5, 1, 3, 3], budget=6)) == [[1, 2], [3], [0]]
    assert list(micro_batches([9, 9], budget=6)) == [[0], [1]]  # longer than the budget: alone
    assert list(micro_batches([2, 2, 2], budget=6)) == [[0, 1, 2]]
    assert list(micro_batches([], budget=6)) == []


def test_shares_by_hand():
    """By length 1, 2, 2, 3, 9: every second one to each; the other process waits while those of 9 and 3 go alone."""
    assert shares([3, 1, 2, 9, 2], budget=6, processes=2) == [[[1, 4], [3]], [[2, 0], []]]
    assert shares([5], budget=6, processes=3) == [[[0]], [[]], [[]]]
    assert shares([], budget=6, processes=2) == [[], []]
    assert shares([3, 1, 3], budget=6, processes=1) == [[[1, 0], [2]]]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_all_sequences_are_shared_out_once(processes):
    rng = random.Random(processes)
    lengths = [rng.randrange(1, 30) for _ in range(23)]
    every = shares(lengths, budget=40, processes=processes)
    assert len({len(batches) for batches in every}) == 1
    assert sorted(i for batches in every for batch in batches for i in batch) == list(range(23))
    for batch in (batch for batches in every for batch in batches if len(batch) > 1):
        assert len(batch) * max(lengths[i] for i in batch) <= 40
