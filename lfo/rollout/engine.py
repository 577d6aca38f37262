"""The contract between whoever plays episodes and whoever holds the weights."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from lfo.config import derive_seed


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


class UnknownAdapter(ValueError):
    """A prompt names an adapter that was not loaded; the message names those that are."""


class Engine(Protocol):
    """Generates with several adapters of one base; "base" names the base without any."""

    generated_tokens: int  # since construction, for tokens/s

    def load(self, adapters: dict[str, Path]) -> None:
        """Use these peft folders from now on; each version of an adapter has a folder of its own."""

    def generate(self, prompts: list[Prompt], seed: int) -> list[Completion]:
        """Continue every prompt. Same adapters, prompts and seed -> same completions."""

    def end_sessions(self) -> None:
        """Forget all sessions and their caches."""

    def sleep(self) -> None:
        """Give accelerator memory to the learner; the next `load` or `generate` takes it back."""


def row_seeds(prompts: Sequence[Prompt], seed: int) -> list[int]:
    """A seed for every prompt that the other prompts have no part in: which process plays what changes no sample.

    It follows from the session or, for a one-off, from what is asked and how often it was asked before.
    """
    asked: Counter = Counter()
    seeds = []
    for prompt in prompts:
        name = prompt.session if prompt.session is not None else (prompt.adapter, *prompt.tokens)
        seeds.append(derive_seed(seed, name, asked[name]))
        asked[name] += 1
    return seeds


def require_adapters(prompts: Iterable[Prompt], loaded: Iterable[str]) -> None:
    """
    Raises:
        UnknownAdapter: a prompt asks for an adapter that is not among `loaded`.
    """
    for prompt in prompts:
        if prompt.adapter not in loaded:
            raise UnknownAdapter(f"no adapter '{prompt.adapter}' is loaded; loaded: {', '.join(loaded)}.")


def require_folder(folder: str | Path) -> Path:
    """The folder of an adapter.

    Raises:
        FileNotFoundError: it holds none.
    """
    folder = Path(folder)
    if not (folder / "adapter_config.json").exists():
        raise FileNotFoundError(f"{folder} holds no peft adapter (adapter_config.json is missing).")
    return folder


def version_name(adapter: str, folder: str | Path) -> str:
    """A name for what the folder holds now: another path or other weights give another name.

    vLLM keeps the KV cache of an adapter under its name and path, whatever the weights are by then
    (its issues 30931 and 42125): with these names no cache outlives the weights it was made with, and
    processes that share a server agree on the names.
    """
    folder = require_folder(folder).resolve()
    digest = hashlib.sha256(str(folder).encode())
    for path in sorted(folder.glob("adapter_*")):
        digest.update(path.read_bytes())
    return f"{adapter}-{digest.hexdigest()[:16]}"


def vllm_batches(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Indices of the prompts that vLLM may see at the same time: those of adapters, and those of the bare base.

    On CPU, vLLM 0.32 gives rows without an adapter the last of the adapters in their batch.
    """
    bare = [i for i, prompt in enumerate(prompts) if prompt.adapter == "base"]
    return [batch for batch in ([i for i in range(len(prompts)) if i not in set(bare)], bare) if batch]
