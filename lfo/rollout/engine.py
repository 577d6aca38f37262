"""The contract between whoever plays episodes and whoever holds the weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A request for one continuation.

    tokens: the whole context. adapter: name of a loaded adapter. stop: the token that ends the
    continuation (kept in it). temperature: 0 is greedy. session: requests with the same key extend
    each other's tokens, so an engine may keep their KV cache between calls; None for a one-off.
    """

    tokens: list[int]
    adapter: str
    max_new: int
    stop: int
    temperature: float
    session: int | None = None


@dataclasses.dataclass(frozen=True)
class Completion:
    """Sampled tokens and their log-probabilities (nats) under the temperature-scaled distribution."""

    tokens: list[int]
    logprobs: list[float]


class Engine(Protocol):
    """Generates with several adapters of one base."""

    def load(self, adapters: dict[str, Path]) -> None:
        """Use these peft folders from now on; each version of an adapter has a folder of its own."""

    def generate(self, prompts: list[Prompt], seed: int) -> list[Completion]:
        """Continue every prompt. Same adapters, prompts and seed -> same completions."""

    def end_sessions(self) -> None:
        """Forget all sessions and their caches."""
