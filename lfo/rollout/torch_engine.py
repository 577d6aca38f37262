"""Decoding with plain torch on CPU or GPU, row by row at its own pace.

Every adapter is merged into its own fp32 copy of the pristine base (never into live weights, so no rounding
accumulates). `decoder` has the forward pass, `kv_cache` keys and values, `batch` the rows of one adapter.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel

from lfo.rollout.batch import Batch, Request
from lfo.rollout.decoder import Decoder, require_supported
from lfo.rollout.engine import Completion, Prompt, require_adapter, require_folder
from lfo.text.base import load_base

ROWS = 128  # that one adapter decodes or keeps at a time
CACHE = 4 * 2**30  # bytes that their keys and values take, at most, while rows have up to 1,024 tokens


def rows_within(token_bytes: int) -> int:
    """How many rows of 1,024 tokens `CACHE` holds, at least 1; a power of two, as caches grow. token_bytes: of a
    token's keys and values."""
    return 1 << max(0, (CACHE // (token_bytes * 1024)).bit_length() - 1)


class TorchEngine:
    """An `Engine` on one device.

    Raises (on construction):
        FileNotFoundError: the folder of the base model is missing.
        ConfigError: the decoder does not know this kind of model.
    """

    def __init__(self, base: str | Path, device: str = "cpu", rows: int = ROWS, budget: int = 1024):
        """rows: that one adapter decodes or keeps at a time, others wait; fewer where `CACHE` holds no more.
        budget: tokens that it reads at a time."""
        self._pristine = load_base(base, device).eval()
        require_supported(self._pristine.config)
        self._limits = (rows, max(rows, budget))
        self._batches: dict[str, Batch] = {}  # by adapter; the base's is made when it is first asked
        self._tickets = 0
        self.generated_tokens = 0  # since construction, for tokens/s

    def _batch(self, model: PreTrainedModel) -> Batch:
        rows, budget = self._limits
        decoder = Decoder(model)
        return Batch(decoder, min(rows, rows_within(decoder.token_bytes)), budget)

    def load(self, adapters: Mapping[str, Path]) -> None:
        """See `Engine.load`.

        Raises:
            RuntimeError: requests are under way.
            FileNotFoundError: a folder holds no adapter.
        """
        if any(batch.busy for batch in self._batches.values()):
            raise RuntimeError("adapters cannot be loaded while requests are under way.")
        for name, folder in adapters.items():
            model = PeftModel.from_pretrained(copy.deepcopy(self._pristine), str(require_folder(folder)))
            self._batches[name] = self._batch(model.merge_and_unload())
        for batch in self._batches.values():
            batch.reset()

    def submit(self, prompt: Prompt) -> int:
        """See `Engine.submit`.

        Raises:
            UnknownAdapter: the prompt's adapter was not loaded.
            ValueError: there is nothing to continue, or no token may be said.
        """
        require_adapter(prompt, self._batches)
        if not prompt.tokens or prompt.max_new < 1:
            raise ValueError("a prompt needs at least one token, and max_new at least 1.")
        if prompt.adapter not in self._batches:  # the base, for the first time
            self._batches[prompt.adapter] = self._batch(self._pristine)
        self._tickets += 1
        self._batches[prompt.adapter].waiting.append(Request(self._tickets, prompt))
        return self._tickets

    def ready(self) -> list[tuple[int, Completion]]:
        """See `Engine.ready`. When it raises, all is forgotten; the engine can be asked again."""
        done: list[Request] = []
        try:
            while not done and (busy := [batch for batch in self._batches.values() if batch.busy]):
                done = [request for batch in busy for request in batch.tick()]
        except BaseException:  # an interrupt in a notebook, too: it may have come in the middle of a step
            for batch in self._batches.values():
                batch.reset()
            raise
        completions = [(request.ticket, request.completion()) for request in done]
        self.generated_tokens += sum(len(completion.tokens) for _, completion in completions)
        return completions

    def end_session(self, session: Hashable) -> None:
        for batch in self._batches.values():
            batch.end_session(session)

    def sleep(self) -> None:
        """The torch engine keeps its memory."""
