"""Couplings that change no context: the plain sum, one adapter for both, both stacked, and the policy's own pass.

With two disjoint adapters on a frozen base the world model's loss has no gradient on the policy: `Plain` with `BOTH`
is the negative control. What `shared` and `stacked` do differently is in their `AdapterLayout` alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence

from lfo.protocols import AdapterLayout, Question, Responder, Script
from lfo.rollout.engine import Prompt
from lfo.rollout.play import Row, Waves
from lfo.types import POLICY, WORLD_MODEL, Action, Attempt, Call, Example, Hangup, Role, Rollout, Sample, Task, Turn

BOTH = AdapterLayout((POLICY, WORLD_MODEL), (WORLD_MODEL,))
ALONE = AdapterLayout((POLICY,), ())
SHARED = AdapterLayout((POLICY,), (POLICY,))
STACKED = AdapterLayout((POLICY, WORLD_MODEL), (WORLD_MODEL,), stacked=True)
NOTES = 6  # at most, in one episode

Answer = Generator[list[Prompt], list, "list[int] | None"]  # a script whose result is a reply's tokens; None: no note


class Plain:
    """A `Coupling` that leaves the policy to itself.

    scouts: rollouts of each group that make the calls which the policy means to make, with empty hands, and end: the
    policy learns nothing from them, but the answers teach the world model.
    """

    source = "scout"  # who says what stands in the notes
    rewarded = predicts = True
    recall = None  # nothing is remembered
    votes = 1
    most_notes = NOTES

    def __init__(self, layout: AdapterLayout, scouts: int = 0):
        self.layout, self.scouts = layout, scouts

    def waves(self, task: Task, group: int, seed: int, size: int) -> Waves:
        return [[Attempt(task, group, seed, scout=i < self.scouts) for i in range(size)]]

    def before_turn(self, row: Row) -> Script:
        if row.attempt.scout:
            yield from self.scout(row)

    def scout(self, row: Row) -> Script:
        """Once there is something to ask about: the calls for real, as far as one comes with empty hands."""

        def ask(question: Question) -> Answer:
            yield from ()
            over = row.episode.stop is not None
            return None if over else row.codec.reply(row.episode.step(question.call))

        yield from self.rehearse(row, ask)
        if row.noted and row.episode.stop is None:
            row.episode.step(Hangup())

    def rehearse(self, row: Row, ask: Callable[[Question], Answer]) -> Script:
        """Once an episode, as soon as there is something to ask about: note what would be answered on the policy's way.

        The policy is asked, greedily, for the call that it means to make; what would be answered to it with empty hands
        is set into its context as a note; and it is asked again, as if it had done what the answer asks for, until it
        means no call that is new.
        """
        codec, knowledge, past = row.codec, row.codec.env.knowledge, tuple(row.episode.turns)
        turns = past
        if row.noted or knowledge is None or knowledge.intention(turns) is None:
            return
        row.noted = True
        asked: set[Question] = set()
        while len(asked) < self.most_notes:
            call = yield from self.intended(row, turns, turns[len(past) :])
            question = call and Question(row.episode.request, turns, call)
            if question is None or question in asked:
                return
            asked.add(question)
            reply = yield from ask(question)
            if reply is None:
                return
            row.add(codec.note(self.source, reply), Role.NOTE)
            turns = knowledge.supposed(turns, call, codec.reply_text(reply))

    def intended(
        self, row: Row, turns: Sequence[Turn], supposed: Sequence[Turn]
    ) -> Generator[list[Prompt], list, Call | None]:
        """A script that asks the policy, greedily, what it means to do. Its result: the call to ask about, if any.

        supposed: the last of the turns, which the policy reads as if they had been.
        """
        codec = row.codec
        if (blank := codec.env.knowledge.intention(turns)) is None:
            return None
        done = [i for turn in supposed for i in codec.turn(turn.action, turn.observation)]
        beginning, length = [*row.tokens, *done, *codec.beginning(blank)], codec.blank_length(blank)
        (filled,) = yield [Prompt(beginning, POLICY, length, codec.end_id, 0.0)]
        return codec.env.knowledge.question(turns, codec.decode(filled.tokens))

    def examples(self, row: Row, predict: str) -> list[Example]:
        """The calls whose answers are learned. What was dreamt is no fact."""
        if row.attempt.dreamt:
            return []
        return row.codec.examples(row.attempt.task.task_id, row.episode.request, row.episode.turns, predict)

    def hear(self, examples: Sequence[Example]) -> None:
        """Nothing is remembered."""

    def informed(self, question: Question, but: str = "") -> Question:
        return question

    def before_step(self, row: Row, action: Action) -> Script:
        yield from ()

    def practice(self, step: int, tasks_seen: int) -> list[Waves]:
        return []

    def responder(self, task: Task) -> Responder:
        raise RuntimeError("nothing is dreamt without the coupling 'dream'")

    def views(self, rollout: Rollout, sample: Sample | None) -> list[Sample]:
        return [sample] if sample else []

    def corrected(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        return []

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        return {}


class Echo(Plain):
    """The world model learns replies in the policy's own forward pass (ECHO, arXiv 2605.24517, eq. 1).

    tools: whose answers are learned.
    """

    def __init__(self, layout: AdapterLayout, tools: Sequence[str], scouts: int = 0):
        super().__init__(layout, scouts)
        self.tools = tools

    def views(self, rollout: Rollout, sample: Sample | None) -> list[Sample]:
        """One context with its replies; of a rollout that teaches the policy nothing they are still heard."""
        heard = replies(rollout, self.tools)
        if sample is None and any(heard):
            sample = Sample(rollout.tokens, rollout.roles, rollout.logprobs, None)
        return [dataclasses.replace(sample, heard=heard)] if sample else []


def replies(rollout: Rollout, tools: Sequence[str]) -> list[bool]:
    """Which tokens of a rollout are replies of these tools, with their closing tags.

    An observation begins with its opening tag, and the opener of the next action, where there is one, stands before it
    in the same role: that first and that last token are none.
    """
    heard, turns, tool = [], iter(rollout.turns), None
    for i, role in enumerate(rollout.roles):
        begins = i == 0 or rollout.roles[i - 1] != role
        ends = rollout.roles[i + 1 : i + 2] == [Role.ACTION]
        if begins and role == Role.ACTION:
            tool = next(turns).tool
        heard.append(role == Role.OBSERVATION and tool in tools and not begins and not ends)
    return heard
