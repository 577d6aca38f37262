"""The rollout loop: task -> prompt -> tokens -> action -> observation -> ... -> trajectory.

Every rollout is a generator (`script`) that yields prompts and is sent completions; `play` keeps one engine busy with
the prompts of all of them, so that no rollout waits for another, except for the waves that its coupling asks for.
Knows no environment, no coupling and no dialect by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from lfo import distributed
from lfo.config import RolloutConfig, derive_seed
from lfo.protocols import Coupling, Engine, Responder, Script
from lfo.rollout.engine import Completion, Prompt
from lfo.text.codec import Codec
from lfo.types import POLICY, Action, Attempt, Example, Role, Rollout

Waves = list[list[Attempt]]


class Row:
    """A rollout in the making.

    number: its place among all rows of this `play`, with a session of that name. seed: of the `play`.
    earlier: the rollouts of the waves before its own. noted: whether its coupling has done what it does once. told: the
    feedback that it is to read, None before anybody asked. actor: the adapter that acts,
    the policy unless a coupling says otherwise.
    """

    def __init__(self, attempt: Attempt, number: int, seed: int, codec: Codec, responder: Responder | None):
        self.attempt, self.number, self.seed, self.codec, self.responder = attempt, number, seed, codec, responder
        self.episode = codec.env.episode(attempt.task, attempt.seed, responder)
        self.tokens: list[int] = []
        self.roles: list[int] = []
        self.logprobs: list[float] = []
        self.earlier: list[Rollout] = []
        self.noted = False
        self.told: list[list[int]] | None = None
        self.actor = POLICY
        self.add(codec.prompt(self.episode.request), Role.PROMPT)

    def add(self, ids: Sequence[int], role: Role, logprobs: Sequence[float] | None = None) -> None:
        self.tokens += ids
        self.roles += [int(role)] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)

    def take(self, action: Action, budget: int) -> None:
        """Take an action to the environment and append what it answers."""
        if observation := self.episode.step(action):
            self.add(self.codec.observation(observation), Role.OBSERVATION)
        if len(self.tokens) >= budget:
            self.episode.cut()

    def finish(self, examples: list[Example]) -> Rollout:
        """The rollout, with what can be learned from what was heard in it."""
        episode, attempt = self.episode, self.attempt
        return Rollout(
            task_id=attempt.task.task_id,
            group=attempt.group,
            tokens=self.tokens,
            roles=self.roles,
            logprobs=self.logprobs,
            turns=episode.turns,
            stop=episode.stop,
            outcome=episode.outcome(),
            examples=examples,
            scout=attempt.scout,
            position=attempt.position,
            actor=self.actor,
        )


def script(row: Row, coupling: Coupling, rollout: RolloutConfig) -> Script:
    """One episode, from its first action to its end."""
    while row.episode.stop is None:
        yield from coupling.before_turn(row)
        if row.episode.stop is not None:
            return
        # what opens an action belongs to what stands before it: the prompt, or an observation
        row.add(row.codec.opener, Role.OBSERVATION if row.episode.turns else Role.PROMPT)
        seed = derive_seed(derive_seed(row.seed, len(row.episode.turns)), row.number, 0)
        limit, end = rollout.max_action_tokens, row.codec.end_id
        asked = Prompt(list(row.tokens), row.actor, limit, end, rollout.temperature, seed, row.number)
        (completion,) = yield [asked]
        row.add(completion.tokens, Role.ACTION, completion.logprobs)
        action = row.codec.action(completion.tokens)
        yield from coupling.before_step(row, action)
        row.take(action, rollout.max_tokens)


def play(
    engine: Engine,
    codec: Codec,
    groups: Sequence[Waves],
    coupling: Coupling,
    rollout: RolloutConfig,
    seed: int,
    predict: str | None = None,
) -> list[Rollout]:
    """Play all groups to their ends; rollouts come group by group, in the order of their attempts.

    Several processes play the groups between them, each with its own engine; all get all rollouts.
    predict: which calls become world-model examples (`Knowledge.learned`); None: none.
    """
    places = [0, *itertools.accumulate(sum(map(len, waves)) for waves in groups)]
    mine = distributed.share(len(groups))
    table = _Table(engine, coupling, rollout, predict)
    try:
        for i in mine:
            table.seat(_Group(groups[i], places[i], seed, codec, coupling))
        table.serve()
    finally:
        table.clear()
    played = distributed.join(mine, [group.rollouts() for group in table.groups])
    return [rollout for group in played for rollout in group]


class _Group:
    """The attempts of one task: who is playing, what was played, which waves are to come."""

    def __init__(self, waves: Waves, first: int, seed: int, codec: Codec, coupling: Coupling):
        self.waves, self.next, self.seed, self.codec, self.coupling = list(waves), first, seed, codec, coupling
        self.done: dict[int, Rollout] = {}
        self.playing: set[int] = set()

    def wave(self) -> Iterator[Row]:
        """The rows of the next wave, made one by one; none after the last."""
        earlier = self.rollouts()
        for attempt in self.waves.pop(0) if self.waves else []:
            responder = self.coupling.responder(attempt.task) if attempt.dreamt else None
            row = Row(attempt, self.next, self.seed, self.codec, responder)
            row.earlier = earlier
            self.playing.add(row.number)
            self.next += 1
            yield row

    def rollouts(self) -> list[Rollout]:
        """What was played, in the order of the attempts: who was done first is no matter."""
        return [self.done[number] for number in sorted(self.done)]


class _Table:
    """Scripts and the engine that serves them: prompts go out, completions come back to whoever asked.

    A prompt that is no session's and equals one that was asked for before has the same completion, and is asked once.
    """

    def __init__(self, engine: Engine, coupling: Coupling, rollout: RolloutConfig, predict: str | None):
        self.engine, self.coupling, self.rollout, self.predict = engine, coupling, rollout, predict
        self.groups: list[_Group] = []
        self.rows: dict[int, tuple[Row, _Group, Script]] = {}  # those that are playing, by number
        self.answers: dict[int, list[Completion | None]] = {}  # of what a row has asked for
        self.asked: dict[int, list[tuple[int, int]]] = {}  # ticket -> rows and places in their answers
        self.tickets: dict[Prompt, int] = {}  # what was asked for outside of sessions -> its ticket
        self.said: dict[int, Completion] = {}  # ticket -> what came of it

    def seat(self, group: _Group) -> None:
        self.groups.append(group)
        self._begin_wave(group)

    def serve(self) -> None:
        """Until every script has come to its end."""
        while self.rows:
            for ticket, completion in self.engine.ready():
                self.said[ticket] = completion  # it may be asked for again
                for number, place in self.asked.pop(ticket, []):  # others: of a play that broke off
                    self._answer(number, place, completion)

    def clear(self) -> None:
        """Leave nothing behind, also where something failed: no episode open, no request under way."""
        with contextlib.ExitStack() as last:
            for row, _, _ in self.rows.values():
                last.callback(row.episode.close)
            for number in self.rows:
                self.engine.end_session(number)
            with contextlib.suppress(Exception):  # the engine itself may have failed
                while self.asked and (done := self.engine.ready()):
                    for ticket, _ in done:
                        self.asked.pop(ticket, None)

    def _begin_wave(self, group: _Group) -> None:
        for row in group.wave():
            self.rows[row.number] = row, group, script(row, self.coupling, self.rollout)
        for number in sorted(group.playing):
            self._go_on(number, None)

    def _go_on(self, number: int, completions: list[Completion] | None) -> None:
        """Send a script what it asked for, and ask the engine for what it wants next."""
        try:
            prompts = self.rows[number][2].send(completions)
        except StopIteration:
            self._leave(number)
            return
        self.answers[number] = [None] * len(prompts)
        if not prompts:
            self._go_on(number, [])
        for place, prompt in enumerate(prompts):
            self._ask(number, place, prompt)

    def _ask(self, number: int, place: int, prompt: Prompt) -> None:
        key = dataclasses.replace(prompt, tokens=tuple(prompt.tokens)) if prompt.session is None else None
        ticket = self.tickets.get(key)
        if ticket in self.said:
            self._answer(number, place, self.said[ticket])
        elif ticket is not None:
            self.asked[ticket].append((number, place))
        else:
            ticket = self.engine.submit(prompt)
            self.asked[ticket] = [(number, place)]
            if key is not None:
                self.tickets[key] = ticket

    def _answer(self, number: int, place: int, completion: Completion) -> None:
        answers = self.answers[number]
        answers[place] = completion
        if None not in answers:
            self._go_on(number, answers)

    def _leave(self, number: int) -> None:
        row, group, _ = self.rows[number]
        group.done[number] = row.finish(self.coupling.examples(row, self.predict) if self.predict else [])
        del self.rows[number]
        row.episode.close()
        self.engine.end_session(number)
        group.playing.discard(number)
        if not group.playing:
            self._begin_wave(group)
