"""Another attempt at a task: the policy reads what was answered in the earlier ones, instead of anything else.

Needs no learning: the control for whatever is said to make agents learn from failure. A policy that was trained with
feedback reads what it was trained with: notes, then the feedback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lfo.couplings.feedback import SOURCE, tell
from lfo.couplings.plain import ALONE, Plain
from lfo.protocols import Coupling, Script
from lfo.rollout.play import Row
from lfo.types import Rollout


class Retry(Plain):
    """A `Coupling` for later attempts.

    earlier: task_id -> the attempts so far, all of which are told, however long that is. first: the coupling of first
    ones. notes: whether later ones read its notes as well.
    """

    def __init__(self, first: Coupling, earlier: Mapping[str, Sequence[Rollout]], notes: bool):
        super().__init__(ALONE)
        self.first, self.earlier, self.notes = first, earlier, notes

    def before_turn(self, row: Row) -> Script:
        codec, lessons = row.codec, self.lessons(row)
        if row.told is None:
            row.told = [codec.note(SOURCE, codec.encode(lesson)) for lesson in lessons]
        if self.notes or not lessons:
            yield from self.first.before_turn(row)
        if codec.env.knowledge.intention(row.episode.turns):
            tell(row)

    def lessons(self, row: Row) -> list[str]:
        """The same feedback that rules give in training."""
        attempts = self.earlier.get(row.attempt.task.task_id, ())
        return [one.text for attempt in attempts for one in row.codec.env.knowledge.feedback(attempt.turns)]
