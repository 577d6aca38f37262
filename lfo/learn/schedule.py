"""Who learns in which step, and what waits for its turn. Bookkeeping alone: nothing is learned here.

Whoever waits gets what it missed at its next turn, and everybody has one in the last step, so that numbers of updates
are those of `joint`; but with `world_first` the policy lets the first tasks pass, and what feedback has corrected is
replayed at the policy's turns alone. Rollouts that wait grow no staler: the policy does not move before its turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lfo.config import WorldModelConfig
from lfo.types import Example, Record, Rollout

FIRST = 0.25  # share of the task budget from which the world model alone learns; `world_first` only
POLICY_EVERY = 4  # steps between the policy's turns; `hierarchical` only
MODEL_EVERY = 5  # steps between the world model's turns; `policy_leads` only


@dataclasses.dataclass(frozen=True)
class Turns:
    """Who learns in a step. replays: of the world model, if it does. skips: the policy lets this step's tasks pass."""

    policy: bool
    world_model: bool
    replays: int
    skips: bool = False


def turns(w: WorldModelConfig | None, step: int, tasks: int, budget: int) -> Turns:
    """step: counted from 0; tasks: sampled so far, this step's included; budget: of the run.

    joint: both in every step. alternating: the policy in the first step and every other one, the world model in those
    between. world_first: the world model alone until a quarter of the budget was sampled. hierarchical: the world model
    in every step and the policy in every fourth, so that the model has followed before the policy moves again (who
    moves seldom leads in the game of Rajeswaran et al. 2020, arXiv 2004.07804: there the policy). policy_leads: the
    policy is ahead, in every step, and the world model follows in every fifth, with the replay updates of all five
    (there the model would lead). In the last step both learn.
    """
    if w is None:
        return Turns(True, False, 0)
    last, skips = tasks >= budget, w.schedule == "world_first" and tasks <= FIRST * budget
    acts = {"alternating": step % 2 == 0, "world_first": not skips, "hierarchical": (step + 1) % POLICY_EVERY == 0}
    every = {"alternating": 2, "policy_leads": MODEL_EVERY}.get(w.schedule, 1)  # steps between the world model's turns
    waited = step % every + 1
    return Turns(last or acts.get(w.schedule, True), last or waited == every, waited * w.updates, skips)


@dataclasses.dataclass
class Due(Record):
    """What waits: the policy's updates, with their rollouts; the world model's examples, for how many updates.

    The rollouts' own examples are left out: they were heard.
    """

    rollouts: list[list[Rollout]] = dataclasses.field(default_factory=list)
    examples: list[Example] = dataclasses.field(default_factory=list)
    updates: int = 0

    def add(self, rollouts: Sequence[list[Rollout]], examples: Sequence[Example], updates: int) -> None:
        self.rollouts += [[dataclasses.replace(row, examples=[]) for row in rows] for rows in rollouts]
        self.examples += examples
        self.updates += updates

    def take(self, policy: bool, world_model: bool) -> tuple[list[list[Rollout]], list[Example], int]:
        """What waits for those whose turn it is; it waits no longer."""
        rollouts, examples, updates = [], [], 0
        if policy:
            rollouts, self.rollouts = self.rollouts, []
        if world_model:
            examples, self.examples, updates, self.updates = self.examples, [], self.updates, 0
        return rollouts, examples, updates
