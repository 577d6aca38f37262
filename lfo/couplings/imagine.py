"""`imagine`: the policy reads what the world model says would be answered, before its one-shot action.

As soon as the environment has an intention to ask about (a directory was read), the policy is asked, greedily, what it
means to do; the world model answers that call, made with empty hands; its reply is set into the policy's context as a
note. A scout makes that very call for real and ends: the policy learns nothing from it, but its answer is the truth
that the imagination is to be held against. Closest: CoMap (arXiv 2606.02372), WorldEvolver (arXiv 2606.30639).
"""

from __future__ import annotations

import dataclasses

from lfo.config import WorldModelConfig
from lfo.couplings.plain import BOTH, WORLD_MODEL, Plain
from lfo.protocols import Question, Script
from lfo.rollout.engine import Prompt
from lfo.rollout.play import Row
from lfo.text.codec import Codec
from lfo.types import Role, Rollout, Sample

REPLY_TOKENS = 64  # at most, in one imagined reply


class Imagine(Plain):
    """A `Coupling` whose notes come from the world model."""

    def __init__(self, config: WorldModelConfig, codec: Codec):
        super().__init__(BOTH, codec, config.scouts)
        self.config = config

    def before_turn(self, row: Row) -> Script:
        """Once an episode, when there is something to ask about: ask, and note the answer."""
        if row.attempt.scout:
            yield from self.scout(row)
            return
        _, call = yield from self.intended(row)
        if call:
            reply = yield from self.answer(Question(row.episode.request, tuple(row.episode.turns), call))
            row.add(self.codec.note(reply), Role.IMAGINED)

    def answer(self, question: Question):
        """A script whose result is the reply's tokens."""
        asked = self.codec.question(question)
        (reply,) = yield [Prompt(asked, WORLD_MODEL, REPLY_TOKENS, self.codec.reply_end_id, 0.0)]
        return reply.tokens

    def views(self, rollout: Rollout, sample: Sample | None) -> list[Sample]:
        """With `context_distillation`, the same actions also without the note before them.

        They keep their advantages, good and bad. The importance ratio is dropped, since the two contexts differ by
        design (RLTF-SD, arXiv 2602.02482: dropping it is more stable than clipping it, and imitating successes alone
        is worse). The baseline is the group's own mean, so that a task on which every rollout with a note succeeds
        teaches nothing.
        """
        if sample is None:
            return []
        distils = self.config.context_distillation > 0 and Role.IMAGINED in sample.roles
        return [sample, without(sample, Role.IMAGINED)] if distils else [sample]


def without(sample: Sample, role: Role) -> Sample:
    """The sample as if nobody had written the tokens of this role."""
    kept = [i for i, r in enumerate(sample.roles) if r != role]
    names = ("tokens", "roles", "old_logprobs", "advantages")
    lists = {name: [getattr(sample, name)[i] for i in kept] for name in names}
    return dataclasses.replace(sample, **lists, distilled=True)
