"""The contract between whoever plays episodes and whoever holds the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

from lfo.protocols import Engine
from lfo.types import BASE


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A request for one continuation.

    tokens: the whole context. adapter: a loaded adapter, or `BASE`. stop: the token that ends the continuation (kept
    in it). temperature: 0 is greedy. seed: of this continuation's own random stream, so that other requests never
    matter. session: requests of a session usually extend each other, so an engine may keep their KV cache; None for
    a one-off.
    """

    tokens: Sequence[int]
    adapter: str
    max_new: int
    stop: int
    temperature: float
    seed: int = 0
    session: Hashable | None = None


@dataclasses.dataclass(frozen=True)
class Completion:
    """Sampled tokens and their log-probabilities (nats) under the temperature-scaled distribution."""

    tokens: list[int]
    logprobs: list[float]


class UnknownAdapter(ValueError):
    """A prompt names an adapter that was not loaded; the message names those that are."""


def complete(engine: Engine, prompts: Iterable[Prompt]) -> list[Completion]:
    """Continue every prompt, in their order.

    Raises:
        RuntimeError: the engine was at work on something else, whose completions would be lost.
    """
    tickets = [engine.submit(prompt) for prompt in prompts]
    done: dict[int, Completion] = {}
    while len(done) < len(tickets):
        done |= engine.ready()
        if not done.keys() <= set(tickets):
            raise RuntimeError("complete() wants the engine for itself: other requests were under way.")
    return [done[ticket] for ticket in tickets]


def require_adapter(prompt: Prompt, loaded: Iterable[str]) -> None:
    """Refuse an adapter that nobody loaded.

    Raises:
        UnknownAdapter: the prompt asks for an adapter that is neither among `loaded` nor `BASE`.
    """
    known = dict.fromkeys([BASE, *loaded])
    if prompt.adapter not in known:
        raise UnknownAdapter(f"no adapter '{prompt.adapter}' is loaded; loaded: {', '.join(known)}.")


def require_folder(folder: str | Path) -> Path:
    """The folder of an adapter.

    Raises:
        FileNotFoundError: it holds none.
    """
    if not (Path(folder) / "adapter_config.json").exists():
        raise FileNotFoundError(f"{folder} holds no peft adapter (adapter_config.json is missing).")
    return Path(folder)
