"""Another attempt at a task: the policy reads what was answered in the earlier ones, instead of anything else.

Needs no learning: the control for whatever is said to make agents learn from failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lfo.couplings.plain import ALONE, Plain
from lfo.protocols import Coupling, Script
from lfo.rollout.play import Row
from lfo.text.codec import Codec
from lfo.types import Role, Rollout


class Retry(Plain):
    """A `Coupling` for later attempts. earlier: task_id -> the attempts so far; first: the coupling of first ones."""

    source = "earlier attempt"

    def __init__(self, codec: Codec, first: Coupling, earlier: Mapping[str, Sequence[Rollout]]):
        super().__init__(ALONE, codec)
        self.first, self.earlier = first, earlier

    def before_turn(self, row: Row) -> Script:
        lessons = self.lessons(row.attempt.task.task_id)
        if not lessons:
            yield from self.first.before_turn(row)
        elif not row.noted and self.codec.env.knowledge.intention(row.episode.turns):
            row.noted = True
            for lesson in lessons:
                row.add(self.codec.note(self.source, self.codec.encode(lesson)), Role.NOTE)

    def lessons(self, task_id: str) -> list[str]:
        turns = [turn for attempt in self.earlier.get(task_id, ()) for turn in attempt.turns]
        return [lesson for turn in turns if (lesson := self.codec.env.knowledge.lesson(turn))]
