"""Which tasks are sampled, and which groups have something to teach.

`TaskStream` is a pure function of the seed and a position, so a resumed run sees the same tasks. Dynamic sampling
follows DAPO (arXiv 2503.14476, eq. 11): only groups with 0 < successes < G have an advantage; every *sampled* task
counts as seen all the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from lfo.types import Rollout, Task, by_group


class TaskStream:
    """Tasks in shuffled epochs, without end. `position` counts the tasks handed out."""

    def __init__(self, tasks: Sequence[Task], seed: int, position: int = 0):
        if not tasks:
            raise ValueError("there is no training task at these levels; widen `env.levels` or choose another world.")
        self._tasks, self._seed, self.position = list(tasks), seed, position

    def take(self, count: int) -> list[Task]:
        """The next tasks; `position` moves on."""
        taken = []
        for _ in range(count):
            epoch, index = divmod(self.position, len(self._tasks))
            order = list(range(len(self._tasks)))
            random.Random(f"{self._seed}/tasks/{epoch}").shuffle(order)
            taken.append(self._tasks[order[index]])
            self.position += 1
        return taken


def informative(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts of the groups in which some succeeded and some failed, scouts left out.

    Judged on the binary outcome, never on a shaped reward.
    """
    groups = by_group(row for row in rollouts if not row.scout).values()
    return [row for group in groups if 0 < sum(one.success for one in group) < len(group) for row in group]
