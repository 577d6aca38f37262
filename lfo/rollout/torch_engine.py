"""Batched decoding with plain torch on CPU or GPU.

Every adapter is merged into its own fp32 copy of the pristine base (never into live weights, so
no rounding accumulates). The KV cache of a session lives across the turns of an episode: new
tokens are appended as one chunk for all rows (shorter rows are padded and masked), then all rows
are decoded in lock-step. Between turns, rows whose episode ended are dropped and gaps are closed.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from peft import PeftModel
from transformers import DynamicCache, PreTrainedModel

from lfo.base import load_base
from lfo.rollout.engine import Completion, Prompt, require_adapters, require_folder, row_seeds


class _Session:
    """The KV cache of a batch of rows. Row i has consumed `consumed[i]` tokens; `mask` marks real slots."""

    def __init__(self, keys: list, device: torch.device):
        self.keys = keys
        self.consumed = [0] * len(keys)
        self.cache = DynamicCache()
        self.mask = torch.zeros(len(keys), 0, dtype=torch.long, device=device)

    def compact(self) -> None:
        """Close the gaps that padding left: every row's real slots move to the front, in order.

        Without this a row that goes on for many turns pays for the longest action of every turn.
        """
        if not self.mask.numel() or bool(self.mask.all()):
            return
        order = self.mask.argsort(dim=1, descending=True, stable=True)[:, : int(self.mask.sum(1).max())]
        for layer in self.cache.layers:
            index = order[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
            layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        self.mask = self.mask.gather(1, order)

    def keep(self, keys: list) -> None:
        """Drop the rows that are not among `keys` and put the others in that order."""
        if keys == self.keys:
            return
        index = torch.tensor([self.keys.index(k) for k in keys], device=self.mask.device)
        self.cache.batch_select_indices(index)
        self.mask = self.mask[index]
        self.consumed = [self.consumed[i] for i in index.tolist()]
        self.keys = keys


class TorchEngine:
    """An `Engine` on one device.

    Raises (on construction):
        FileNotFoundError: the folder of the base model is missing.
    """

    def __init__(self, base: str | Path, device: str = "cpu", chunk: int | None = None, row_streams: bool = False):
        """`chunk`: feed at most this many tokens at a time when a context grows; None feeds them all at once.

        `row_streams`: each prompt samples from a random stream of its own (`row_seeds`), so that the other prompts
        of the batch do not matter; otherwise all of a batch sample from one.
        """
        self.device = torch.device(device)
        self._pristine = load_base(base, device).eval()
        self._models: dict[str, PreTrainedModel] = {"base": self._pristine}
        self._sessions: dict[str, _Session] = {}
        self._chunk, self._row_streams = chunk, row_streams
        self.generated_tokens = 0  # since construction, for tokens/s

    def load(self, adapters: dict[str, Path]) -> None:
        for name, folder in adapters.items():
            model = PeftModel.from_pretrained(copy.deepcopy(self._pristine), str(require_folder(folder)))
            self._models[name] = model.merge_and_unload().eval()
        self.end_sessions()

    def end_sessions(self) -> None:
        self._sessions.clear()

    def sleep(self) -> None:
        """The torch engine keeps its memory."""

    def generate(self, prompts: list[Prompt], seed: int) -> list[Completion]:
        """See `Engine.generate`. Prompts are batched by adapter and by whether they belong to sessions."""
        require_adapters(prompts, self._models)
        generator = torch.Generator(device=self.device).manual_seed(seed)
        done: dict[int, Completion] = {}
        batches: dict[tuple, list[int]] = {}
        for i, prompt in enumerate(prompts):
            batches.setdefault((prompt.adapter, prompt.session is not None), []).append(i)
        for (adapter, in_session), indices in batches.items():
            rows = [prompts[i] for i in indices]
            session = self._session(adapter, rows) if in_session else _Session([*range(len(rows))], self.device)
            source = self._draws(rows, row_seeds(rows, seed)) if self._row_streams else generator
            done |= zip(indices, self._decode(self._models[adapter], session, rows, source), strict=True)
        return [done[i] for i in range(len(prompts))]

    def _session(self, adapter: str, rows: list[Prompt]) -> _Session:
        keys = [row.session for row in rows]
        session = self._sessions.get(adapter)
        if session is None or not set(keys) <= set(session.keys):
            session = self._sessions[adapter] = _Session(keys, self.device)
        session.keep(keys)
        session.compact()
        return session

    def _draws(self, rows: list[Prompt], seeds: list[int]) -> torch.Tensor:
        """A number in [0, 1) for each token that each row may sample (B, longest `max_new`), from its own stream."""
        draws = torch.zeros(len(rows), max(row.max_new for row in rows), dtype=torch.float64)
        for draw, row, seed in zip(draws, rows, seeds, strict=True):
            draw[: row.max_new] = torch.rand(row.max_new, generator=torch.Generator().manual_seed(seed))
        return draws.to(self.device)

    @torch.inference_mode()
    def _decode(self, model, session: _Session, rows: list[Prompt], source) -> list[Completion]:
        """Feed what is new, then sample token by token until every row stopped. source: a generator, or `_draws`."""
        logits = self._read(model, session, rows)
        temperature = torch.tensor([row.temperature for row in rows], device=self.device).unsqueeze(1)
        stops = torch.tensor([row.stop for row in rows], device=self.device)
        budget = torch.tensor([row.max_new for row in rows], device=self.device)
        active = torch.ones(len(rows), dtype=torch.bool, device=self.device)
        tokens, logprobs, alive = [], [], []
        while True:
            chance = source[:, len(tokens)] if self._row_streams else source
            picked, scores = _sample(logits, temperature, chance)
            tokens.append(picked)
            logprobs.append(scores)
            alive.append(active)
            active = active & (picked != stops) & (len(tokens) < budget)
            if not active.any():
                break
            logits = self._step(model, session, picked, active)
        kept = torch.stack(alive, 1).tolist()
        table = zip(torch.stack(tokens, 1).tolist(), torch.stack(logprobs, 1).tolist(), kept, strict=True)
        completions = [
            Completion(
                [t for t, k in zip(ids, keep, strict=True) if k], [s for s, k in zip(ps, keep, strict=True) if k]
            )
            for ids, ps, keep in table
        ]
        self.generated_tokens += sum(len(c.tokens) for c in completions)
        return completions

    def _read(self, model, session: _Session, rows: list[Prompt]) -> torch.Tensor:
        """Feed what is new; logits (B, V). One-offs that sample from the same context read it once and then part.

        Greedy ones would only say the same thing twice; they are fed as they come.
        """
        new = [row.tokens[n:] for row, n in zip(rows, session.consumed, strict=True)]
        contexts = {tuple(tokens): i for i, tokens in enumerate(new)}
        if len(contexts) == len(rows) or any(row.session is not None or row.temperature == 0 for row in rows):
            return self._feed(model, session, new)
        places = {context: i for i, context in enumerate(contexts)}
        each = torch.tensor([places[tuple(tokens)] for tokens in new], device=self.device)
        once = _Session([*range(len(contexts))], self.device)
        logits = self._feed(model, once, [list(context) for context in contexts])
        once.cache.batch_select_indices(each)
        session.cache, session.mask = once.cache, once.mask[each]
        session.consumed = [once.consumed[i] for i in each.tolist()]
        return logits[each]

    def _feed(self, model, session: _Session, new: list[list[int]]) -> torch.Tensor:
        """Append each row's new tokens to the cache; logits (B, V) after each row's last token."""
        width = max(len(n) for n in new)
        padded = torch.tensor([n + [0] * (width - len(n)) for n in new], device=self.device)
        real = torch.tensor([[1] * len(n) + [0] * (width - len(n)) for n in new], device=self.device)
        last = real.sum(1) - 1
        out = None
        step = self._chunk or width
        for start in range(0, width, step):
            stop = min(start + step, width)
            hidden = self._forward(model, session, padded[:, start:stop], real[:, start:stop])
            here = (last >= start) & (last < stop)
            picked = hidden[torch.arange(len(new)), (last - start).clamp(0, stop - start - 1)]
            out = picked if out is None else torch.where(here.unsqueeze(1), picked, out)
        return model.lm_head(out)

    def _step(self, model, session: _Session, tokens: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        """Append one token to the active rows; logits (B, V)."""
        hidden = self._forward(model, session, tokens.unsqueeze(1), active.long().unsqueeze(1))
        return model.lm_head(hidden[:, -1])

    def _forward(self, model, session: _Session, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Hidden states (B, W, H) of a chunk; `real` (B, W) is 0 where a row has nothing to add."""
        before = torch.tensor(session.consumed, device=self.device).unsqueeze(1)
        session.mask = torch.cat([session.mask, real], dim=1)
        hidden = model.model(
            input_ids=ids,
            attention_mask=session.mask,
            position_ids=before + (real.cumsum(1) - 1).clamp(min=0),
            past_key_values=session.cache,
            use_cache=True,
        ).last_hidden_state
        session.consumed = (before + real.sum(1, keepdim=True)).squeeze(1).tolist()
        return hidden


def _sample(logits: torch.Tensor, temperature: torch.Tensor, source) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row and its log-probability; greedy where the temperature is 0.

    logits (B, V), temperature (B, 1). The log-probability of a greedy token is taken at temperature 1.
    source: a generator, or one number in [0, 1) per row (B,), at which the distribution function is inverted.
    """
    scale = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    logprobs = torch.log_softmax(logits.float() / scale, dim=-1)
    if isinstance(source, torch.Tensor):
        below = logprobs.exp().double().cumsum(-1)
        sampled = torch.searchsorted(below, source.unsqueeze(1) * below[:, -1:], right=True)
    else:
        sampled = torch.multinomial(logprobs.exp(), 1, generator=source)
    picked = torch.where(temperature > 0, sampled, logprobs.argmax(-1, keepdim=True))
    return picked.squeeze(1), logprobs.gather(1, picked).squeeze(1)
