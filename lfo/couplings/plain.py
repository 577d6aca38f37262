"""Couplings that change no context: the plain sum, one adapter for both, both stacked, and the policy's own pass.

With two disjoint adapters on a frozen base the world model's loss has no gradient on the policy: `Plain` with `BOTH`
is the negative control. What `shared` and `stacked` do differently is in their `AdapterLayout` alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence

from lfo.protocols import AdapterLayout, Responder, Script
from lfo.rollout.engine import Prompt
from lfo.rollout.play import Row, Waves
from lfo.text.codec import Codec
from lfo.types import Action, Attempt, Call, Hangup, Role, Rollout, Sample, Task

POLICY, WORLD_MODEL = "policy", "world_model"
BOTH = AdapterLayout((POLICY, WORLD_MODEL), WORLD_MODEL)


class Plain:
    """A `Coupling` that leaves the policy to itself.

    codec: None where the policy is never asked for its intention. scouts: rollouts of each group that make the call
    which the policy means to make, with empty hands, and end: the policy learns nothing from them, but the answer
    teaches the world model.
    """

    def __init__(self, layout: AdapterLayout, codec: Codec | None = None, scouts: int = 0):
        self.layout, self.codec, self.scouts = layout, codec, scouts

    def waves(self, task: Task, group: int, seed: int, size: int) -> Waves:
        return [[Attempt(task, group, seed, scout=i < self.scouts) for i in range(size)]]

    def before_turn(self, row: Row) -> Script:
        if row.attempt.scout:
            yield from self.scout(row)

    def scout(self, row: Row) -> Script:
        """Once there is something to ask about: the call for real, where there is one, and the end."""
        ready, call = yield from self.intended(row)
        if call:
            row.episode.step(call)
        if ready and row.episode.stop is None:
            row.episode.step(Hangup())

    def intended(self, row: Row) -> Generator[list[Prompt], list, tuple[bool, Call | None]]:
        """A script that asks the policy, greedily and once an episode, what it means to do.

        Its result: whether there was something to ask about, and the call to ask about; None, if that is no call.
        """
        codec, turns = self.codec, row.episode.turns
        blank = None if row.noted else codec.env.knowledge.intention(turns)
        if blank is None:
            return False, None
        row.noted = True
        beginning, length = [*row.tokens, *codec.beginning(blank)], codec.blank_length(blank)
        (filled,) = yield [Prompt(beginning, POLICY, length, codec.end_id, 0.0)]
        return True, codec.env.knowledge.question(turns, codec.decode(filled.tokens))

    def before_step(self, row: Row, action: Action) -> Script:
        yield from ()

    def practice(self, step: int, tasks_seen: int) -> list[Waves]:
        return []

    def responder(self, task: Task) -> Responder:
        raise RuntimeError("nothing is dreamt without the coupling 'dream'")

    def views(self, rollout: Rollout, sample: Sample | None) -> list[Sample]:
        return [sample] if sample else []


class Echo(Plain):
    """The world model learns replies in the policy's own forward pass (ECHO, arXiv 2605.24517, eq. 1).

    tools: whose answers are learned.
    """

    def __init__(self, layout: AdapterLayout, tools: Sequence[str], codec: Codec | None = None, scouts: int = 0):
        super().__init__(layout, codec, scouts)
        self.tools = tools

    def views(self, rollout: Rollout, sample: Sample | None) -> list[Sample]:
        """One context with its replies; of a rollout that teaches the policy nothing they are still heard."""
        heard = replies(rollout, self.tools)
        if sample is None and any(heard):
            sample = Sample(rollout.tokens, rollout.roles, rollout.logprobs, None)
        return [dataclasses.replace(sample, heard=heard)] if sample else []


def replies(rollout: Rollout, tools: Sequence[str]) -> list[bool]:
    """Which tokens of a rollout are replies of these tools, with their closing tags.

    An observation begins with its opening tag, and ends with the opener of the next action, where there is one: its
    first and that token are none.
    """
    heard, turns, tool = [], iter(rollout.turns), None
    for i, role in enumerate(rollout.roles):
        begins = i == 0 or rollout.roles[i - 1] != role
        ends = i + 1 < len(rollout.roles) and rollout.roles[i + 1] != role
        if begins and role == Role.ACTION:
            tool = next(turns).tool
        heard.append(role == Role.OBSERVATION and tool in tools and not begins and not ends)
    return heard
