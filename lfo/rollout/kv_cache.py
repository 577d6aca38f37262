"""Keys and values of a batch of rows, kept while their contexts grow by different amounts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import Cache, DynamicLayer

ROOM = 32  # tokens that a full cache is given room for beyond those that are added


class _Layer(DynamicLayer):
    """Keys and values (B, heads, T, D) in larger buffers: while there is room, only what is new is copied."""

    room: list[torch.Tensor] | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        start = self.get_seq_length()
        stop = start + key_states.shape[2]
        if self.room is None or stop > self.room[0].shape[2]:
            held = (self.keys, self.values) if start else (key_states[:, :, :0], value_states[:, :, :0])
            self.room = [F.pad(old, (0, 0, 0, stop - start + ROOM)) for old in held]
            self.is_initialized = True
        for buffer, new in zip(self.room, (key_states, value_states), strict=True):
            buffer[:, :, start:stop] = new
        self.keys, self.values = (buffer[:, :, :stop] for buffer in self.room)
        return self.keys, self.values

    def hold(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """These instead of all it holds."""
        self.keys, self.values, self.room, self.is_initialized = keys, values, None, True


class Session:
    """The KV cache of a batch of rows, each with a name of its own.

    Row i has consumed `consumed[i]` tokens; `mask` (B, T) marks the slots of the cache that hold one of them.
    """

    def __init__(self, names: list, device: torch.device):
        self.names = names
        self.consumed = [0] * len(names)
        self.cache = Cache(layer_class_to_replicate=_Layer)
        self.mask = torch.zeros(len(names), 0, dtype=torch.long, device=device)

    def compact(self) -> None:
        """Close the gaps that padding left: every row's real slots move to the front, in order.

        Without this a row that goes on for many turns pays for the longest action of every turn.
        """
        if not self.mask.numel() or bool(self.mask.all()):
            return
        order = self.mask.argsort(dim=1, descending=True, stable=True)[:, : int(self.mask.sum(1).max())]
        for layer in self.cache.layers:
            index = order[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
            layer.hold(layer.keys.gather(2, index), layer.values.gather(2, index))
        self.mask = self.mask.gather(1, order)

    def part(self, index: torch.Tensor) -> Session:
        """A session of these rows only."""
        part = Session([self.names[i] for i in index.tolist()], self.mask.device)
        part.consumed = [self.consumed[i] for i in index.tolist()]
        part.mask = self.mask[index]
        for layer in self.cache.layers:
            part.cache.layers.append(_Layer())
            part.cache.layers[-1].hold(layer.keys[index], layer.values[index])
        return part

    def take_back(self, part: Session, index: torch.Tensor) -> None:
        """What the rows of a `part` have consumed since, for the same `index`; the other rows get gaps."""
        start = self.mask.shape[1]
        for layer, own in zip(self.cache.layers, part.cache.layers, strict=True):
            layer.update(*(self._spread(new[:, :, start:], index) for new in (own.keys, own.values)))
        self.mask = torch.cat([self.mask, self._spread(part.mask[:, start:], index)], dim=1)
        for i, consumed in zip(index.tolist(), part.consumed, strict=True):
            self.consumed[i] = consumed

    def _spread(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """These rows at their places among all, zeros elsewhere."""
        return rows.new_zeros(len(self.names), *rows.shape[1:]).index_copy_(0, index, rows)
