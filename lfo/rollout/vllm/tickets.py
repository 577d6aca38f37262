"""Tickets for both vLLM engines, and who may be under way at the same time.

On CPU, vLLM 0.32 gives rows without an adapter the last of the adapters in their batch. So either requests of adapters
are under way or requests of the bare base, and the other kind is held back. Everything else starts when it is asked
for and is given back when it is done: no request waits for another of its kind.

Knows nothing about vLLM: how a request is begun and how its answer arrives is up to the engines.
"""

from __future__ import annotations

import abc
import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path

from lfo.rollout.engine import Completion, Prompt, require_adapter, require_folder
from lfo.types import BASE

Answers = list[tuple[int, Completion]]


class TicketEngine(abc.ABC):
    """The part of an `Engine` that both kinds of vLLM share."""

    def __init__(self) -> None:
        self.generated_tokens = 0
        self._tickets = itertools.count()
        self._held: dict[int, Prompt] = {}  # in the order in which they came
        self._under_way: dict[int, Prompt] = {}  # all of one kind
        self._answered: Answers = []  # not fetched yet

    def submit(self, prompt: Prompt) -> int:
        """See `Engine.submit`."""
        require_adapter(prompt, self._loaded())
        ticket = next(self._tickets)
        self._held[ticket] = prompt
        self._start()
        return ticket

    def ready(self) -> Answers:
        """See `Engine.ready`. When it raises, all requests are forgotten; the engine can be asked again."""
        while not self._answered and self._busy():
            self._work()
        answered, self._answered = self._answered, []
        return answered

    # --- what the engines do ------------------------------------------------------------------

    @abc.abstractmethod
    def _loaded(self) -> Iterable[str]:
        """The names of the loaded adapters."""

    @abc.abstractmethod
    def _begin(self, ticket: int, prompt: Prompt) -> None:
        """Let vLLM begin with a request."""

    @abc.abstractmethod
    def _progress(self) -> Answers:
        """Some work on the requests that were begun; those that it finished."""

    @abc.abstractmethod
    def _abandon(self, tickets: list[int]) -> None:
        """Stop working on these requests, which were begun."""

    # --- who is under way ---------------------------------------------------------------------

    def _busy(self) -> bool:
        return bool(self._held or self._under_way)

    def _settle(self) -> None:
        """Finish what is under way or held back; `ready` will tell. For when adapters or memory are about to change."""
        while self._busy():
            self._work()

    def _work(self) -> None:
        try:
            answers = self._progress()
            for ticket, completion in answers:
                del self._under_way[ticket]
                self.generated_tokens += len(completion.tokens)
            self._answered += answers
            self._start()
        except BaseException:  # an interrupt in a notebook, too: whoever asks next has nothing to do with these
            tickets = list(self._under_way)
            for requests in (self._held, self._under_way, self._answered):
                requests.clear()
            self._abandon(tickets)
            raise

    def _start(self) -> None:
        """Begin with those that may be under way now.

        While one kind is held back the other begins with nothing new: both have their turn.
        """
        if not self._held:
            return
        bare = _is_bare(next(iter((self._under_way or self._held).values())))
        kin = [ticket for ticket, prompt in self._held.items() if _is_bare(prompt) == bare]
        if self._under_way and len(kin) < len(self._held):
            return
        for ticket in kin:
            prompt = self._held.pop(ticket)
            self._begin(ticket, prompt)  # where it raises, this one alone is forgotten
            self._under_way[ticket] = prompt


def _is_bare(prompt: Prompt) -> bool:
    return prompt.adapter == BASE


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
