"""TextWorld Commonsense as an environment of `lfo`: the game's folds, its tools and what is hidden."""

from __future__ import annotations

from collections.abc import Sequence

from lfo.envs.twc.episode import TOOLS, TwcEpisode
from lfo.envs.twc.knowledge import TwcKnowledge
from lfo.envs.twc.tasks import TwcTask, all_tasks
from lfo.protocols import Responder

SYSTEM = (
    "Put the thing where it usually belongs. First take it, open a place that is closed, then put it there. Say a "
    "place's number before its name."
)


class TwcEnvironment:
    """See `lfo.protocols.Environment`. max_turns: see `TwcEpisode`."""

    system, tools = SYSTEM, TOOLS

    def __init__(self, max_turns: int | None = None, levels: Sequence[int] = (1, 2)):
        self.max_turns, self.levels = max_turns, tuple(levels)
        self.knowledge = TwcKnowledge(all_tasks())

    def tasks(self, split: str) -> list[TwcTask]:
        """The game's own folds: train; validation is its dev; test. They have no thing in common."""
        return [task for task in all_tasks() if task.split == split and task.level in self.levels]

    def episode(self, task: TwcTask, seed: int, responder: Responder | None = None) -> TwcEpisode:
        """The game of a task; there is no chance in it, so the seed changes nothing."""
        return TwcEpisode(task, self.max_turns)
