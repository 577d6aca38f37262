"""Who learns in which step, and what waits for its turn (DESIGN section 4). Bookkeeping alone: nothing is learned here.

Whoever waits gets what it missed at its next turn, so that numbers of updates are those of `joint`, but for
`world_first`, where the policy lets the first tasks pass. Rollouts that wait grow no staler: the policy does not move
before its turn.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from lfo.config import WorldModelConfig
from lfo.records import Trajectory, from_dict
from lfo.tokens import CallExample


def turns(w: WorldModelConfig, step: int, tasks: int) -> tuple[bool, bool, int]:
    """Whether the policy learns in a step, whether the world model does, and its replay updates if so.

    step: counted from 0; tasks: sampled so far, this step's included.

    joint: both in every step. alternating: the policy in the first step and every other one, the world model in those
    between. world_first: the world model alone until `world_first_tasks` tasks were sampled. hierarchical: the world
    model in every step and the policy in every `policy_every`-th, so that the model has followed before the policy
    moves again (Rajeswaran et al. 2020, arXiv 2004.07804, where the policy leads).
    """
    if w.schedule == "alternating":
        return step % 2 == 0, step % 2 == 1, 2 * w.updates
    if w.schedule == "world_first":
        return tasks > w.world_first_tasks, True, w.updates
    if w.schedule == "hierarchical":
        return (step + 1) % w.policy_every == 0, True, w.updates
    return True, True, w.updates


@dataclasses.dataclass
class Due:
    """What waits: the policy's updates, each with its rollouts; the world model's calls, and for how many updates."""

    rollouts: list[list[Trajectory]] = dataclasses.field(default_factory=list)
    calls: list[CallExample] = dataclasses.field(default_factory=list)
    updates: int = 0

    def add(self, rollouts: Sequence[list[Trajectory]], calls: Sequence[CallExample], updates: int) -> None:
        self.rollouts += rollouts
        self.calls += calls
        self.updates += updates

    def take(self, policy: bool, world_model: bool) -> tuple[list[list[Trajectory]], list[CallExample], int]:
        """What waits for those whose turn it is; it waits no longer."""
        rollouts, calls, updates = [], [], 0
        if policy:
            rollouts, self.rollouts = self.rollouts, []
        if world_model:
            calls, self.calls, updates, self.updates = self.calls, [], self.updates, 0
        return rollouts, calls, updates

    def to_json(self) -> str:
        """For a checkpoint. The rollouts' calls are left out: they were heard."""
        silent = [[dataclasses.replace(row, calls=[]) for row in rows] for rows in self.rollouts]
        return json.dumps(dataclasses.asdict(Due(silent, self.calls, self.updates)))

    @classmethod
    def from_json(cls, text: str) -> Due:
        return from_dict(cls, json.loads(text), "what is due")
