"""`cloning`: the policy learns by heart what would have been right, from what it heard; no reward and no world model.

What was heard in an episode may tell which action would have been right at its beginning (`Knowledge.hindsight`): the
policy is trained on that action by cross-entropy, with replay, in a context without notes. The control that asks
whether knowledge has to be kept apart from the policy at all. Hindsight as a teacher: arXiv 1707.01495, arXiv
2102.02232.
"""

from __future__ import annotations

from lfo.couplings.plain import Plain
from lfo.rollout.play import Row
from lfo.types import Example


class Cloning(Plain):
    """A `Coupling` whose policy learns what it heard that it should have done."""

    rewarded = predicts = False

    def examples(self, row: Row, predict: str) -> list[Example]:
        episode, codec = row.episode, row.codec
        found = codec.env.knowledge.hindsight(episode.turns)
        if found is None:
            return []
        at, call = found
        before = tuple(episode.turns[:at])
        encoded = codec.acted(episode.request, before, call)
        return [Example(row.attempt.task.task_id, call, "", "ok", encoded, episode.request, before)]
