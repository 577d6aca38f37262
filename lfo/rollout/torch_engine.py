"""Batched decoding with plain torch on CPU or GPU.

Every adapter is merged into its own fp32 copy of the pristine base (never into live weights, so
no rounding accumulates). The KV cache of a session lives across the turns of an episode: new
tokens are appended as one chunk for all rows (shorter rows are padded and masked), then the rows
are decoded in lock-step, and those that have said their action are set aside as soon as they are
a quarter. Between turns, rows whose episode ended are dropped and gaps are closed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from lfo.base import load_base
from lfo.rollout.engine import Completion, Prompt, require_adapters, require_folder, row_seeds
from lfo.rollout.kv_cache import Session

SET_ASIDE = 0.25  # once this share of the rows that are decoded has stopped, the others go on without them


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
        # From transformers 5.23 on, a step of this attention copies no keys for the heads of a group.
        self._pristine.set_attn_implementation("sdpa")
        self._models: dict[str, PreTrainedModel] = {"base": self._pristine}
        self._sessions: dict[str, Session] = {}
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
        generator = torch.Generator().manual_seed(seed)
        done: dict[int, Completion] = {}
        batches: dict[tuple, list[int]] = {}
        for i, prompt in enumerate(prompts):
            batches.setdefault((prompt.adapter, prompt.session is not None), []).append(i)
        for (adapter, in_session), indices in batches.items():
            rows = [prompts[i] for i in indices]
            session = self._session(adapter, rows) if in_session else Session([*range(len(rows))], self.device)
            streams = [generator] * len(rows)
            if self._row_streams:
                streams = [torch.Generator().manual_seed(s) for s in row_seeds(rows, seed)]
            done |= zip(indices, self._decode(self._models[adapter], session, rows, streams), strict=True)
        return [done[i] for i in range(len(prompts))]

    def _session(self, adapter: str, rows: list[Prompt]) -> Session:
        names = [row.session for row in rows]
        session = self._sessions.get(adapter)
        if session is None or not set(names) <= set(session.names):
            session = self._sessions[adapter] = Session(names, self.device)
        elif names != session.names:
            index = torch.tensor([session.names.index(name) for name in names], device=self.device)
            session = self._sessions[adapter] = session.part(index)
        session.compact()
        return session

    @torch.inference_mode()
    def _decode(self, model, session: Session, rows: list[Prompt], streams: list) -> list[Completion]:
        """Feed what is new, then sample token by token until every row stopped. streams: a random generator per row."""
        logits = self._read(model, session, rows)
        temperature = torch.tensor([row.temperature for row in rows], device=self.device).unsqueeze(1)
        stops = torch.tensor([row.stop for row in rows], device=self.device)
        budget = torch.tensor([row.max_new for row in rows], device=self.device)
        longest = max(row.max_new for row in rows)
        draws = uniform(streams, longest).to(self.device)
        said: list[Completion] = [Completion([], []) for _ in rows]
        part, index = session, torch.arange(len(rows), device=self.device)  # those not set aside, and who they are
        active, length = torch.ones_like(index, dtype=torch.bool), 0
        while True:
            picked, scores = sample(logits, temperature[index], draws[index, length])
            length += 1
            for i, token, score, speaks in zip(*(t.tolist() for t in (index, picked, scores, active)), strict=True):
                if speaks:
                    said[i].tokens.append(token)
                    said[i].logprobs.append(score)
            active = active & (picked != stops[index]) & (length < budget[index])
            if not active.any():
                break
            if active.float().mean() <= 1 - SET_ASIDE:
                if part is not session:  # a part of the whole, not of a part: two caches at most
                    session.take_back(part, index)
                index, picked, active = index[active], picked[active], active[active]
                part = session.part(index)
            logits = self._step(model, part, picked, active)
        if part is not session:
            session.take_back(part, index)
        self.generated_tokens += sum(len(completion.tokens) for completion in said)
        return said

    def _read(self, model, session: Session, rows: list[Prompt]) -> torch.Tensor:
        """Feed what is new; logits (B, V). Rows that begin with the same context read it once and then part."""
        new = [row.tokens[n:] for row, n in zip(rows, session.consumed, strict=True)]
        places = {context: i for i, context in enumerate(dict.fromkeys(map(tuple, new)))}
        if any(session.consumed) or len(places) == len(rows):
            return self._feed(model, session, new)
        each = torch.tensor([places[tuple(tokens)] for tokens in new], device=self.device)
        once = Session([*range(len(places))], self.device)
        logits = self._feed(model, once, [list(context) for context in places])
        parted = once.part(each)
        session.cache, session.mask, session.consumed = parted.cache, parted.mask, parted.consumed
        return logits[each]

    def _feed(self, model, session: Session, new: list[list[int]]) -> torch.Tensor:
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

    def _step(self, model, session: Session, tokens: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        """Append one token to the active rows; logits (B, V)."""
        hidden = self._forward(model, session, tokens.unsqueeze(1), active.long().unsqueeze(1))
        return model.lm_head(hidden[:, -1])

    def _forward(self, model, session: Session, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
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


def uniform(streams: Iterable[torch.Generator], count: int) -> torch.Tensor:
    """Numbers in [0, 1), (B, count): row by row from each row's stream, which rows may share."""
    return torch.stack([torch.rand(count, generator=stream, dtype=torch.float64) for stream in streams])


def sample(logits: torch.Tensor, temperature: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row and its log-probability; greedy where the temperature is 0.

    logits (B, V), temperature (B, 1), draws (B,) in [0, 1), at which the distribution function is inverted. The
    log-probability of a greedy token is taken at temperature 1.
    """
    scale = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    logprobs = torch.log_softmax(logits.float() / scale, dim=-1)
    below = logprobs.exp().double().cumsum(-1)
    sampled = torch.searchsorted(below, draws.unsqueeze(1) * below[:, -1:], right=True)
    picked = torch.where(temperature > 0, sampled, logprobs.argmax(-1, keepdim=True))
    return picked.squeeze(1), logprobs.gather(1, picked).squeeze(1)
