"""`imagine`: the policy reads what the world model says would be answered, before its one-shot action.

As soon as the environment has an intention to ask about (a directory was read), the policy is asked, greedily, what it
means to do; the world model answers that call, made with empty hands; its reply is set into the policy's context as a
note; and so on along the policy's way. A scout makes those calls for real and ends: the policy learns nothing from it,
but its answers are the truth that the imagination is to be held against. Closest: CoMap (arXiv 2606.02372),
WorldEvolver (arXiv 2606.30639).
"""

from __future__ import annotations

from lfo.couplings.noted import Noted
from lfo.couplings.plain import WORLD_MODEL, Answer
from lfo.protocols import Question
from lfo.rollout.engine import Prompt

REPLY_TOKENS = 96  # at most, in one imagined reply


class Imagine(Noted):
    """A `Coupling` whose notes come from the world model."""

    source = "world model"

    def answer(self, question: Question) -> Answer:
        asked = self.codec.question(question)
        (reply,) = yield [Prompt(asked, WORLD_MODEL, REPLY_TOKENS, self.codec.reply_end_id, 0.0)]
        return reply.tokens
