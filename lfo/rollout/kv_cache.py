"""Keys and values of many rows of different lengths, in one buffer that is kept and grows."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

ROOM = 16  # tokens and slots that a new cache has room for; it doubles where that is not enough


class KvCache:
    """buffer (2, layers, slots, heads, length, head_dim): keys, then values. Each row owns one slot."""

    def __init__(self, layers: int, heads: int, head_dim: int, device: torch.device):
        self.buffer = torch.zeros(2, layers, 0, heads, 0, head_dim, device=device)

    @property
    def slots(self) -> int:
        return self.buffer.shape[2]

    @property
    def length(self) -> int:
        return self.buffer.shape[4]

    def reserve(self, slots: int, length: int) -> None:
        """Room for so many slots of so many tokens, at least."""
        if slots <= self.slots and length <= self.length:
            return
        more, longer = doubled(self.slots, slots) - self.slots, doubled(self.length, length) - self.length
        self.buffer = pad(self.buffer, (0, 0, 0, longer, 0, 0, 0, more))  # zeros: never read, but never NaN

    def swap(self, one: int, other: int, length: int) -> None:
        """Exchange the first `length` tokens of two slots."""
        some, others = (self.buffer[:, :, slot, :, :length] for slot in (one, other))
        kept = some.clone()
        some.copy_(others)
        others.copy_(kept)

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Give one slot the tokens from `start` to `stop` of another."""
        self.buffer[:, :, target, :, start:stop] = self.buffer[:, :, source, :, start:stop]


def doubled(size: int, needed: int) -> int:
    """The room that a cache of `size` places grows to, to hold as many as are needed."""
    return max(size, ROOM, 1 << (needed - 1).bit_length())
