"""Packed batches -> log-probabilities: the learner's forward pass, through transformers' model and peft's layers.

Everything but attention works token by token and is done on the packed tokens. Attention is done on the sequences,
gathered from the tokens and padded on the right: there a causal mask hides the padding, and no other mask is needed.
Knows nothing about losses and adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from lfo.config import ConfigError
from lfo.learn.batches import Batch

PACKED = "lfo_packed"  # our attention among those of transformers
LOGITS = 2**28  # logits that exist at a time, at most: 1 GiB in fp32


class Scorer(torch.nn.Module):
    """All that training computes is one `forward`: FSDP2 gathers weights around it.

    chunk: positions whose logits exist at a time, in the backward pass as well, where they are made again.
    value_head: a linear map of the last hidden states; it says 0 at first. None: there is none.
    """

    def __init__(self, model: PeftModel, autocast: bool, values: bool):
        super().__init__()
        self.model, self.autocast = model, autocast
        base = model.get_base_model()
        last = (getattr(getattr(base, "model", None), "layers", None) or [None])[-1]
        if not hasattr(last, "mlp"):
            raise ConfigError(f"the learner cannot train '{base.config.model_type}'; choose another model.base.")
        self.chunk = max(1, LOGITS // base.config.get_text_config().vocab_size)
        base.set_attn_implementation(PACKED)
        self.value_head = torch.nn.Linear(base.config.get_text_config().hidden_size, 1) if values else None
        for p in self.value_head.parameters() if values else ():
            torch.nn.init.zeros_(p)
        self.needed: dict[str, torch.Tensor] = {}
        _only_where_needed(last.mlp, self.needed)

    def forward(
        self, batch: Batch, temperature: float = 1.0, entropy: bool = False, values: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """Log-probabilities (P,) of the tokens that were asked for, and whether each was the arg-max; with `entropy`,
        also the entropy (P,), in nats, of all that could have stood in each one's place; with `values`, also what the
        value head says (P,) before each.

        The temperature of sampling divides the logits, so that ratios compare like with like.
        """
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.autocast):
            self.needed["nodes"] = batch.needed
            body = self.model.get_base_model().model
            passed = {"rows": batch.rows, "places": batch.places}
            hidden = body(batch.tokens, position_ids=batch.positions, use_cache=False, **passed).last_hidden_state
            hidden = hidden[0].index_select(0, batch.needed[batch.before])  # its gradient is a sum in one order
            parts = zip(hidden.split(self.chunk), batch.learned.split(self.chunk), strict=True)
            score = partial(checkpoint, self._score, use_reentrant=False) if len(hidden) > self.chunk else self._score
            scores = zip(*(score(some, their, temperature, entropy) for some, their in parts), strict=True)
            scores = [torch.cat(score).index_select(0, batch.picked) for score in scores]
        judged = [self.value_head(hidden.float()).squeeze(1).index_select(0, batch.picked)] if values else []
        return (*scores, *judged)

    def _score(self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, entropy: bool):
        """hidden (n, H), targets (n,) -> log-probabilities (n,), whether each was the arg-max (n,); entropies (n,)."""
        logits = self.model.get_base_model().lm_head(hidden).float() / temperature
        every = torch.log_softmax(logits, dim=-1)
        scores = every.gather(1, targets.unsqueeze(1)).squeeze(1), logits.argmax(-1) == targets
        return (*scores, -(every.exp() * every).sum(-1)) if entropy else scores


def _only_where_needed(mlp: torch.nn.Module, needed: dict[str, torch.Tensor]) -> None:
    """Let the last layer's MLP compute the tokens alone that something is predicted from; no other is looked at."""
    whole = mlp.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        there = whole(x.index_select(1, needed["nodes"]))
        return there.new_zeros(x.shape).index_copy(1, needed["nodes"], there)

    mlp.forward = forward


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    *,
    rows: Sequence[torch.Tensor],
    places: torch.Tensor,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Causal attention of packed tokens within their sequences; see `Batch` for rows and places.

    query: (1, H, N, D); key, value: (1, K, N, D), each head of them for H / K of the query. Returns (1, N, H, D).

    Raises:
        ConfigError: the model's attention is of a kind that is not written here.
    """
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise ConfigError("the learner knows no attention with soft caps or sinks; choose another model.base.")
    packed = [x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value)]
    out = [_attend([_gathered(x, part) for x in packed], scaling, dropout, sliding_window) for part in rows]
    return torch.cat(out).index_select(0, places).unsqueeze(0), None


def _attend(
    there: Sequence[torch.Tensor], scaling: float | None, dropout: float, sliding_window: int | None
) -> torch.Tensor:
    """Causal attention of query (B, H, T, D) to key and value (B, K, T, D): (B * T, H, D)."""
    length, device = there[0].shape[2], there[0].device
    slides = sliding_window is not None and sliding_window < length
    if device.type == "cpu" and there[0].dtype == torch.bfloat16 and not dropout and not slides:
        out = _products(*there, scaling)
    else:
        mask = _sliding(length, sliding_window, device) if slides else None
        causal = mask is None
        out = F.scaled_dot_product_attention(*there, mask, dropout, is_causal=causal, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).flatten(0, 1)


AttentionInterface.register(PACKED, attend)


def _gathered(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """(N, H, D) -> (B, H, T, D)."""
    return x.index_select(0, rows.flatten()).unflatten(0, rows.shape).transpose(1, 2)


def _products(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None) -> torch.Tensor:
    """The same from two matrix products: in bf16 on CPUs four times as fast as torch's fused kernel (2.13)."""
    (b, heads, t, d), shared = query.shape, key.shape[1]
    query = query.reshape(b * shared, heads // shared * t, d)
    future = torch.full((t, t), float("-inf"), dtype=query.dtype).triu(1).repeat(heads // shared, 1)
    scores = torch.baddbmm(future, query, key.reshape(b * shared, t, d).mT, alpha=scaling or d**-0.5)
    return torch.bmm(scores.softmax(-1), value.reshape(b * shared, t, d)).view(b, heads, t, d)


def _sliding(length: int, window: int, device: torch.device) -> torch.Tensor:
    """(T, T) bool: which keys a query sees that looks back over `window` tokens, itself included."""
    back = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return (back >= 0) & (back < window)
