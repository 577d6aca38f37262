"""Token sequences -> packed batches: no padding, and what several sequences begin with is there once.

The rollouts of a group share their prompt and often their first turns, and a step's examples are often the very same
call: sequences are merged into a tree in which a token is one node for all sequences that agree up to it. All that a
causal model computes at a token depends on the tokens before it alone, so one pass over the nodes serves all of them.

Knows nothing about models and losses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from lfo.types import Role, Sample

PARTS = 4  # of a batch, at most, that are padded each by itself


@dataclasses.dataclass
class Batch:
    """Sequences as a tree of N tokens.

    tokens, positions: (1, N). rows: the nodes of each sequence that is not the beginning of another, (B, T) each, of
    similar lengths, padded on the right with node 0. places: (N,) where in the `rows`, flattened, a node is found.
    learned: (M,) tokens whose log-probability is asked for, each once. needed: (K,) the nodes that they follow on, each
    once; before: (M,) which of these. picked: (P,) indices into `learned` of all that was asked for.
    count: tokens of the sequences that are learned from, shared ones as often as they are shared.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    rows: list[torch.Tensor]
    places: torch.Tensor
    learned: torch.Tensor
    needed: torch.Tensor
    before: torch.Tensor
    picked: torch.Tensor
    count: int

    def to(self, device: torch.device) -> Batch:
        tensors = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, torch.Tensor)}
        return dataclasses.replace(self, rows=[rows.to(device) for rows in self.rows], **tensors)


def placed(values: Sequence[float], places: Sequence[int], length: int) -> list[float]:
    """These values at these positions of a sequence, 0.0 at all others."""
    found = dict(zip(places, values, strict=True))
    return [found.get(t, 0.0) for t in range(length)]


def pack(sequences: Sequence[Sequence[int]], *asked: Sequence[Sequence[int]]) -> Batch:
    """asked: the positions (from 1 on) whose log-probabilities are asked for, sequence by sequence.

    With more than one such list, `picked` has all of the first, then all of the second.
    """
    tokens, positions, before, rows = _tree(sequences)
    wanted = [row[t] for kind in asked for row, places in zip(rows, kind, strict=True) for t in places]
    learned = sorted(set(wanted))
    index = {node: i for i, node in enumerate(learned)}
    needed = {node: i for i, node in enumerate(dict.fromkeys(before[node] for node in learned))}
    parts = _parts(rows, before)
    places = {node: place for place, node in enumerate(torch.cat([p.flatten() for p in parts]).tolist()) if node >= 0}
    counted = [any(kind[b] for kind in asked) for b in range(len(rows))]
    return Batch(
        tokens=torch.tensor([tokens]),
        positions=torch.tensor([positions]),
        rows=[part.clamp(min=0) for part in parts],
        places=torch.tensor([places[node] for node in range(len(tokens))]),
        learned=torch.tensor([tokens[node] for node in learned], dtype=torch.long),
        needed=torch.tensor(list(needed), dtype=torch.long),
        before=torch.tensor([needed[before[node]] for node in learned], dtype=torch.long),
        picked=torch.tensor([index[node] for node in wanted], dtype=torch.long),
        count=sum(len(row) for row, counts in zip(rows, counted, strict=True) if counts),
    )


def _tree(sequences: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int], list[list[int]]]:
    """Nodes in the order in which they come up: tokens, positions, nodes before them (-1: none); each sequence's."""
    nodes: dict[tuple[int, int], int] = {}  # (node before, token) -> node
    tokens, positions, before, rows = [], [], [], []
    for sequence in sequences:
        row, last = [], -1
        for position, token in enumerate(sequence):
            node = nodes.setdefault((last, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                positions.append(position)
                before.append(last)
            row.append(node)
            last = node
        rows.append(row)
    return tokens, positions, before, rows


def _parts(rows: Sequence[Sequence[int]], before: Sequence[int]) -> list[torch.Tensor]:
    """Rows that none goes on from, by length, in parts of equal numbers that are padded with -1."""
    followed = set(before)
    leaves = sorted({row[-1]: row for row in rows if row[-1] not in followed}.values(), key=len)
    size = -(-len(leaves) // PARTS)
    parts = [leaves[i : i + size] for i in range(0, len(leaves), size)]
    return [torch.tensor([[*row, *[-1] * (len(part[-1]) - len(row))] for row in part]) for part in parts]


def actions(roles: Sequence[int]) -> list[int]:
    """The positions of the actions; there is nothing that a first token could follow on."""
    return [t for t, role in enumerate(roles) if role == Role.ACTION and t > 0]


def acted(sample: Sample) -> list[int]:
    """The positions of the actions that are learned from."""
    return [] if sample.advantages is None else actions(sample.roles)


def heard(sample: Sample) -> list[int]:
    """The positions of the replies that are learned in the policy's own pass."""
    return [t for t, hears in enumerate(sample.heard or ()) if hears and t > 0]


def at(values: Sequence[Sequence[float]], places: Sequence[Sequence[int]]) -> torch.Tensor:
    """The values at these positions, sequence by sequence, as one tensor."""
    return torch.tensor([row[t] for row, where in zip(values, places, strict=True) for t in where])


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in batches of at most `budget` padded tokens, similar lengths together."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if not batches or lengths[i] * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(i)
    return batches


def shares(lengths: Sequence[int], budget: int, processes: int) -> list[list[list[int]]]:
    """Each process's micro-batches of indices, the same number for all: the last ones may be empty.

    Sequences are dealt out in the order of their lengths, so that all have about the same to do.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    dealt = [order[r::processes] for r in range(processes)]
    every = [[[part[j] for j in b] for b in micro_batches([lengths[i] for i in part], budget)] for part in dealt]
    most = max(map(len, every))
    return [batches + [[]] * (most - len(batches)) for batches in every]
