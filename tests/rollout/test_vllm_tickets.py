"""tickets: who may be under way at the same time, and what becomes of the others."""

from __future__ import annotations

import pytest

from lfo.rollout.engine import Completion, Prompt, UnknownAdapter
from lfo.rollout.vllm.tickets import TicketEngine


class Stub(TicketEngine):
    """Finishes the requests that it is told to."""

    def __init__(self):
        super().__init__()
        self.begun: list[int] = []
        self.abandoned: list[int] = []
        self.finishes: list[list[int]] = []  # tickets, one list for each time it is asked for progress
        self.breaks_at: int | None = None  # the length of a context that is too long

    def _loaded(self):
        return ["policy", "world_model"]

    def _begin(self, ticket, prompt):
        if len(prompt.tokens) == self.breaks_at:
            raise ValueError("too long")
        self.begun.append(ticket)

    def _progress(self):
        return [(ticket, Completion([1, 2], [-0.1, -0.2])) for ticket in self.finishes.pop(0)]

    def _abandon(self, tickets):
        self.abandoned += tickets

    def ask(self, *adapters: str) -> list[int]:
        return [self.submit(Prompt([5], adapter, 2, 0, 1.0)) for adapter in adapters]


def test_what_is_done_is_given_back_while_the_rest_goes_on():
    stub = Stub()
    assert stub.ready() == []
    tickets = stub.ask("policy", "world_model", "policy")
    assert stub.begun == tickets  # at once
    stub.finishes = [[], [], [tickets[1]], [tickets[2], tickets[0]]]
    assert [ticket for ticket, _ in stub.ready()] == [tickets[1]]
    (late,) = stub.ask("world_model")
    assert stub.begun[-1] == late
    assert [ticket for ticket, _ in stub.ready()] == [tickets[2], tickets[0]]
    stub.finishes = [[late]]
    assert [ticket for ticket, _ in stub.ready()] == [late]
    assert stub.ready() == [] and stub.generated_tokens == 8


def test_adapters_and_the_bare_base_take_turns():
    """And neither kind waits for ever: nothing new joins those under way while the others wait."""
    stub = Stub()
    a, b, c, d, e = stub.ask("policy", "base", "world_model", "base", "policy")
    assert stub.begun == [a]
    stub.finishes = [[a], [d], [b], [c, e]]
    assert [ticket for ticket, _ in stub.ready()] == [a]
    assert stub.begun == [a, b, d]
    assert [ticket for ticket, _ in stub.ready()] == [d]
    assert stub.begun == [a, b, d]
    assert [ticket for ticket, _ in stub.ready()] == [b]
    assert stub.begun == [a, b, d, c, e]
    assert [ticket for ticket, _ in stub.ready()] == [c, e]


def test_settling_finishes_everything_and_ready_tells_later():
    stub = Stub()
    a, b = stub.ask("policy", "base")
    stub.finishes = [[], [a], [b]]
    stub._settle()
    assert [ticket for ticket, _ in stub.ready()] == [a, b]
    assert stub.ready() == []


def test_a_request_that_cannot_begin_is_alone_with_it():
    stub = Stub()
    (a,) = stub.ask("policy")
    stub.breaks_at = 3
    with pytest.raises(ValueError, match="too long"):
        stub.submit(Prompt([1, 2, 3], "policy", 2, 0, 1.0))
    with pytest.raises(UnknownAdapter, match="no adapter 'x' is loaded; loaded: base, policy, world_model"):
        stub.ask("x")
    stub.finishes = [[a]]
    assert [ticket for ticket, _ in stub.ready()] == [a]
    assert stub.ready() == []


def test_after_an_error_the_engine_can_be_asked_again():
    stub = Stub()
    a, b, _held = stub.ask("policy", "policy", "base")
    stub.finishes = [[a]]
    stub.ready()
    with pytest.raises(IndexError):  # nothing is left to finish
        stub.ready()
    assert stub.abandoned == [b] and stub.ready() == []
    (again,) = stub.ask("base")
    stub.finishes = [[again]]
    assert [ticket for ticket, _ in stub.ready()] == [again]
