"""The forward pass of Llama-like models, written out for decoding: few operations, keys and values in a `KvCache`.

For small batches the price of a step is the number of its operations. So the weights are taken from the
transformers model and arranged once: queries, keys and values are one matrix, as are the gate and the way up of the
feed-forward network; and the two numbers that the rotary embedding turns are neighbours, one complex number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from lfo.config import ConfigError
from lfo.rollout.kv_cache import KvCache

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")


def require_supported(config: PreTrainedConfig) -> None:
    """Refuse what the decoder would decode wrongly.

    Raises:
        ConfigError: the decoder does not know this kind of model; the message says what it knows, and what does.
    """
    kind = config.model_type
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind not in SUPPORTED:
        odd = f"model type '{kind}'"
    elif _slides(config):
        odd = f"sliding-window attention ('{kind}')"
    elif config.hidden_act != "silu":
        odd = f"activation '{config.hidden_act}'"
    elif rope in ("dynamic", "longrope"):
        odd = f"rotary embedding '{rope}', which depends on the length of the text"
    else:
        return
    raise ConfigError(
        f"the torch engine cannot decode with {odd}; it knows {', '.join(SUPPORTED)} without sliding windows. Set "
        "rollout.engine to 'vllm' or to the addresses of its servers: they know nearly all models."
    )


def _slides(config: PreTrainedConfig) -> bool:
    if config.model_type == "mistral":
        return config.sliding_window is not None
    return "sliding_attention" in (getattr(config, "layer_types", None) or [])


@dataclasses.dataclass
class Reading:
    """Rows of similar length that read several tokens: all but the last of each, padded to (rows, width)."""

    slots: torch.Tensor  # (rows,)
    pad: torch.Tensor  # (rows * width,) for each place, which token of the step stands there
    unpad: torch.Tensor  # the places that are no padding, in the order of the step's tokens
    mask: torch.Tensor  # (rows * key heads, width * group, longest) 0, or -inf for what comes later
    longest: int  # tokens in the cache that the longest row sees


@dataclasses.dataclass
class Step:
    """What is fed at once: the last new token of the rows in slots 0, 1, ..., then the earlier ones of `readings`."""

    ids: torch.Tensor  # (tokens,)
    positions: torch.Tensor  # (tokens,)
    places: torch.Tensor  # (tokens * key heads,) where their keys go in a layer's cache, seen as (places, head_dim)
    rows: int
    mask: torch.Tensor  # (rows * key heads, 1, longest)
    readings: list[Reading]


@dataclasses.dataclass
class _Linear:
    weight: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def fused(cls, *modules: nn.Linear, norm: nn.Module | None = None) -> _Linear:
        """Several maps of the same input as one, which also multiplies with the weight of the norm before it."""
        weight = torch.cat([m.weight for m in modules]) if len(modules) > 1 else modules[0].weight.detach()
        bias = None if modules[0].bias is None else torch.cat([m.bias for m in modules])
        return cls(weight if norm is None else weight * _scale(norm.weight), bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


def _scale(norm_weight: torch.Tensor) -> torch.Tensor:
    """What `_unit` is to be multiplied with for an RMSNorm."""
    return norm_weight * math.sqrt(norm_weight.shape[-1])


def _unit(x: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """x / sqrt(sum(x^2) + floor^2), in three operations."""
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), floor)


@dataclasses.dataclass
class _Layer:
    qkv: _Linear
    qk_scale: torch.Tensor | None  # (heads + key heads, head_dim), where queries and keys are normed
    attended: _Linear
    gate_up: _Linear
    down: _Linear


class Decoder:
    """A supported model in fp32, its weights copied where they are rearranged and shared where not."""

    @torch.inference_mode()
    def __init__(self, model: PreTrainedModel):
        config = model.config
        self.device = model.device
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.turned = self.heads + self.key_heads  # which the rotary embedding turns; the values' heads follow them
        self.embedding, self.head = model.model.embed_tokens.weight.detach(), _Linear.fused(model.lm_head)
        self.rotary, self.table = model.model.rotary_emb, torch.empty(0)
        self.scale = _scale(model.model.norm.weight)
        floors = [math.sqrt(config.rms_norm_eps * size) for size in (config.hidden_size, self.head_dim)]
        self.floor, self.head_floor = (torch.tensor(floor, device=self.device) for floor in floors)
        self.layers = [self._layer(layer) for layer in model.model.layers]

    def cache(self) -> KvCache:
        return KvCache(len(self.layers), self.key_heads, self.head_dim, self.device)

    @property
    def token_bytes(self) -> int:
        """Of a token's keys and values."""
        return 2 * len(self.layers) * self.key_heads * self.head_dim * 4

    def _layer(self, layer: nn.Module) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = _Linear.fused(attention.q_proj, attention.k_proj, attention.v_proj, norm=layer.input_layernorm)
        turned = self._neighbours(torch.arange(self.turned * self.head_dim, device=self.device))
        for tensor in (qkv.weight, qkv.bias):
            if tensor is not None:
                tensor[: len(turned)] = tensor[turned]
        qk_scale = None
        if hasattr(attention, "q_norm"):
            q, k = (_scale(norm.weight) for norm in (attention.q_norm, attention.k_norm))
            qk_scale = torch.cat([q.expand(self.heads, -1), k.expand(self.key_heads, -1)])
            qk_scale = self._neighbours(qk_scale).view_as(qk_scale)
        return _Layer(
            qkv,
            qk_scale,
            _Linear.fused(attention.o_proj),
            _Linear.fused(mlp.gate_proj, mlp.up_proj, norm=layer.post_attention_layernorm),
            _Linear.fused(mlp.down_proj),
        )

    def _neighbours(self, numbers: torch.Tensor) -> torch.Tensor:
        """Head by head: the first of each half, the second of each half, ... (transformers turns halves)."""
        return numbers.reshape(-1, 2, self.head_dim // 2).transpose(1, 2).flatten()

    def _turns(self, length: int) -> None:
        """Make the table: complex numbers (length, 1, head_dim / 2) that queries and keys there are multiplied with."""
        if len(self.table) < length:
            cos, sin = self.rotary(self.embedding[:1], torch.arange(length, device=self.device).unsqueeze(0))
            half = self.head_dim // 2
            self.table = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float()).unsqueeze(1)

    # --- one step ------------------------------------------------------------------------------

    def step(self, chunks: Sequence[Sequence[int]], starts: Sequence[int], cache: KvCache) -> Step:
        """For the row in slot i: feed chunks[i], which comes after starts[i] tokens that the cache holds."""
        rows = len(chunks)
        groups: dict[int, list[int]] = {}  # by width, so that little is padding
        for slot, chunk in enumerate(chunks):
            if len(chunk) > 1:
                groups.setdefault((len(chunk) - 1).bit_length(), []).append(slot)
        ids, slots = [chunk[-1] for chunk in chunks], [*range(rows)]
        positions = [start + len(chunk) - 1 for start, chunk in zip(starts, chunks, strict=True)]
        longest = max(positions) + 1
        readings = []
        for members in groups.values():
            first, widths = len(ids), [len(chunks[slot]) - 1 for slot in members]
            for slot, width in zip(members, widths, strict=True):
                ids += chunks[slot][:-1]
                positions += range(starts[slot], starts[slot] + width)
                slots += [slot] * width
            readings.append((members, widths, first))
        numbers = torch.tensor([ids, positions, slots], device=self.device)
        heads = torch.arange(self.key_heads, device=self.device)
        places = (numbers[2].unsqueeze(1) * self.key_heads + heads) * cache.length + numbers[1].unsqueeze(1)
        mask = self._later(numbers[1, :rows], longest).repeat_interleave(self.key_heads, 0).unsqueeze(1)
        self._turns(cache.length)
        readings = [self._reading(numbers[1], *reading) for reading in readings]
        return Step(numbers[0], numbers[1], places.flatten(), rows, mask, readings)

    def _reading(self, positions: torch.Tensor, members: list[int], widths: list[int], first: int) -> Reading:
        width, pad, unpad = max(widths), [], []
        for i, own in enumerate(widths):
            pad += [*range(first, first + own), *[first] * (width - own)]
            unpad += range(i * width, i * width + own)
            first += own
        pad, unpad = (torch.tensor(places, device=self.device) for places in (pad, unpad))
        seen = positions[pad]
        longest = int(seen.max()) + 1
        shape = (len(members), self.key_heads, width, self.heads // self.key_heads, longest)
        mask = self._later(seen, longest).view(shape[0], 1, width, 1, longest).expand(shape)
        slots = torch.tensor(members, device=self.device)
        return Reading(slots, pad, unpad, mask.reshape(-1, shape[2] * shape[3], longest), longest)

    def _later(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        """(positions, length): -inf for what comes later than the position."""
        later = torch.arange(length, device=self.device) > positions.unsqueeze(1)
        return torch.zeros(later.shape, device=self.device).masked_fill_(later, -torch.inf)

    @torch.inference_mode()
    def forward(self, step: Step, cache: KvCache) -> torch.Tensor:
        """Logits (rows, V) after each row's last token; all keys and values are in the cache then."""
        x, turns = self.embedding.index_select(0, step.ids), self.table.index_select(0, step.positions)
        for layer, keys, values in zip(self.layers, *cache.buffer.unbind(0), strict=True):
            queries = self._attention_input(layer, x, turns, step.places, keys, values)
            readings = step.readings
            if layer is self.layers[-1]:  # no later layer asks for what the earlier tokens become
                x, readings = x[: step.rows], []
            attended = self._speak(queries[: step.rows], keys, values, step.mask)
            if readings:
                attended = torch.cat([attended, *(self._read(queries, keys, values, reading) for reading in readings)])
            x = x + layer.attended(attended)
            gate, up = layer.gate_up(_unit(x, self.floor)).chunk(2, -1)
            x += layer.down(F.silu(gate).mul_(up))
        return self.head(_unit(x, self.floor).mul_(self.scale))

    def _attention_input(self, layer: _Layer, x, turns, places, keys, values) -> torch.Tensor:
        """Queries (tokens, heads, head_dim); the keys and values of the tokens go into the cache."""
        qkv = layer.qkv(_unit(x, self.floor)).view(x.shape[0], -1, self.head_dim)
        qk = qkv[:, : self.turned]
        if layer.qk_scale is not None:
            qk = _unit(qk, self.head_floor).mul_(layer.qk_scale)
        pairs = torch.view_as_complex(qk.view(x.shape[0], self.turned, -1, 2))
        qk = torch.view_as_real(pairs * turns).view(x.shape[0], self.turned, self.head_dim)
        keys.view(-1, self.head_dim).index_copy_(0, places, qk[:, self.heads :].flatten(0, 1))
        values.view(-1, self.head_dim).index_copy_(0, places, qkv[:, self.turned :].flatten(0, 1))
        return qk[:, : self.heads]

    def _speak(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor):
        """Attention (rows, heads * head_dim) of one query per row, of the rows in the first slots."""
        rows, longest = queries.shape[0], mask.shape[2]
        queries = queries.reshape(rows * self.key_heads, -1, self.head_dim)
        return self._attend(queries, keys[:rows, :, :longest], values[:rows, :, :longest], mask).view(rows, -1)

    def _read(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, reading: Reading):
        """Attention (tokens, heads * head_dim) of rows that read several tokens."""
        rows, group = reading.slots.shape[0], self.heads // self.key_heads
        queries = queries.index_select(0, reading.pad).view(rows, -1, self.key_heads, group, self.head_dim)
        queries = queries.transpose(1, 2).reshape(rows * self.key_heads, -1, self.head_dim)
        keys, values = (held[:, :, : reading.longest].index_select(0, reading.slots) for held in (keys, values))
        attended = self._attend(queries, keys, values, reading.mask)
        attended = attended.view(rows, self.key_heads, -1, group, self.head_dim).transpose(1, 2)
        return attended.reshape(-1, self.heads * self.head_dim).index_select(0, reading.unpad)

    def _attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor):
        """queries (rows * key heads, Q, D); keys and values (rows, key heads, T, D). A head's group shares its keys."""
        scores = torch.baddbmm(mask, queries, keys.flatten(0, 1).transpose(1, 2), alpha=self.head_dim**-0.5)
        return torch.bmm(scores.softmax(-1), values.flatten(0, 1))
