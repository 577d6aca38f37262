"""`imagine`: the policy reads what the world model says would be answered, before its one-shot action.

As soon as the environment has an intention to ask about (a directory was read), the policy is asked, greedily, what it
means to do; the world model answers that call, made with empty hands; its reply is set into the policy's context as a
note; and so on along the policy's way. A scout makes those calls for real and ends: the policy learns nothing from it,
but its answers are the truth that the imagination is to be held against. Closest: CoMap (arXiv 2606.02372),
WorldEvolver (arXiv 2606.30639).

`imagine_memory` lets a memory speak where it has heard of that very case, and the world model of everything else. A
world model may also be silent where it is unsure (`world_model.unsure_below`), as in both of the above.
"""

from __future__ import annotations

from collections.abc import Sequence

from lfo.config import WorldModelConfig, derive_seed
from lfo.couplings.memory import Table
from lfo.couplings.noted import Noted
from lfo.couplings.plain import BOTH, Answer
from lfo.protocols import Question
from lfo.rollout.engine import Prompt
from lfo.text.codec import Codec
from lfo.types import WORLD_MODEL, Example

REPLY_TOKENS = 112  # at most, in one imagined reply
SAMPLES = 4  # by which the world model is judged to be sure


class Imagine(Noted):
    """A `Coupling` whose notes come from the world model."""

    source = "world model"

    def __init__(self, config: WorldModelConfig, codec: Codec):
        super().__init__(BOTH, codec, config.scouts, config.context_distillation)
        self.unsure_below = config.unsure_below

    def answer(self, question: Question) -> Answer:
        """The greedy reply; None, where too few sampled replies mean the same."""
        asked, end = self.codec.question(question), self.codec.reply_end_id
        prompts = [Prompt(asked, WORLD_MODEL, REPLY_TOKENS, end, 0.0)]
        if self.unsure_below:
            seeds = [derive_seed("sure", *asked, k) for k in range(SAMPLES)]
            prompts += [Prompt(asked, WORLD_MODEL, REPLY_TOKENS, end, 1.0, seed) for seed in seeds]
        reply, *samples = yield prompts
        mean, *others = (self.codec.env.knowledge.meaning(self.codec.reply_text(r.tokens)) for r in (reply, *samples))
        return None if others.count(mean) < self.unsure_below * len(others) else reply.tokens


class ImagineMemory(Imagine):
    """`Imagine` beside a memory, which speaks where it has heard of the narrowest case."""

    def __init__(self, config: WorldModelConfig, codec: Codec):
        super().__init__(config, codec)
        self.table = Table(codec.env.knowledge)

    def hear(self, examples: Sequence[Example]) -> None:
        self.table.hear(examples)

    def answer(self, question: Question) -> Answer:
        known = self.table.exactly(question)
        if known is None:
            return (yield from super().answer(question))
        return self.codec.reply(known)
