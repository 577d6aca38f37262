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

import dataclasses
from collections.abc import Sequence

from lfo.config import WorldModelConfig, derive_seed
from lfo.couplings.memory import Nearest, Table, elected
from lfo.couplings.noted import Noted
from lfo.couplings.plain import Answer
from lfo.protocols import AdapterLayout, Question
from lfo.rollout.engine import Prompt
from lfo.text.codec import Codec
from lfo.types import POLICY, WORLD_MODEL, Example

REPLY_TOKENS = 112  # at most, in one imagined reply
SAMPLES = 4  # by which a world model is judged to be sure, at least


def ballot(asked: Sequence[int], members: Sequence[str], end: int, votes: int) -> list[Prompt]:
    """What world models are asked: each for its greedy reply, then each for `votes` - 1 sampled ones of its own."""
    greedy = [Prompt(list(asked), name, REPLY_TOKENS, end, 0.0) for name in members]
    own = [("sure", *asked)] + [("sure", name, *asked) for name in members[1:]]
    drawn = [(name, derive_seed(*says, k)) for name, says in zip(members, own, strict=True) for k in range(votes - 1)]
    return greedy + [Prompt(list(asked), name, REPLY_TOKENS, end, 1.0, seed) for name, seed in drawn]


class Imagine(Noted):
    """A `Coupling` whose notes come from the world model, or from an ensemble (arXiv 1612.01474)."""

    source = "world model"

    def __init__(self, config: WorldModelConfig, codec: Codec):
        members = (WORLD_MODEL, *(f"{WORLD_MODEL}_{k}" for k in range(2, config.members + 1)))
        layout = AdapterLayout((POLICY, *members), members)
        super().__init__(layout, codec, config.scouts, config.context_distillation)
        self.unsure_below, self.votes = config.unsure_below, config.votes
        self.library = Nearest(codec.env.knowledge, config.reads) if config.reads else None
        if self.unsure_below and config.members * config.votes > 1:  # as many vote as are asked
            self.votes = max(self.votes, 1 + SAMPLES)

    def hear(self, examples: Sequence[Example]) -> None:
        if self.library:
            self.library.hear(self.codec.env.knowledge.general(examples))

    def informed(self, question: Question, but: str = "") -> Question:
        """With what was answered to similar calls, the most similar last; of one that is a case of nothing, nothing
        (retrieval, arXiv 2005.11401; examples in the context, arXiv 2005.14165)."""
        if not self.library or not self.codec.env.knowledge.cases(question):
            return question
        read = (f"memory: {one.request} {one.reply}" for one in reversed(self.library.similar(question, but)))
        return dataclasses.replace(question, similar=tuple(dict.fromkeys(read)))

    def answer(self, question: Question) -> Answer:
        """The reply that is `elected`, the greedy one where nobody votes; None, where too few others mean the same."""
        members, meaning = self.layout.listeners, self.codec.env.knowledge.meaning
        votes = max(self.votes, 1 + SAMPLES) if self.unsure_below else self.votes
        replies = yield ballot(self.codec.question(self.informed(question)), members, self.codec.reply_end_id, votes)
        meanings = [meaning(self.codec.reply_text(reply.tokens)) for reply in replies]
        chosen = elected(meanings) if len(members) * self.votes > 1 else 0
        agreeing, others = meanings.count(meanings[chosen]) - 1, len(meanings) - 1
        return None if agreeing < self.unsure_below * others else replies[chosen].tokens


class ImagineMemory(Imagine):
    """`Imagine` beside a memory, which speaks where it has heard of the narrowest case."""

    def __init__(self, config: WorldModelConfig, codec: Codec):
        super().__init__(config, codec)
        self.table = Table(codec.env.knowledge)

    def hear(self, examples: Sequence[Example]) -> None:
        super().hear(examples)
        self.table.hear(self.codec.env.knowledge.general(examples))

    def answer(self, question: Question) -> Answer:
        known = self.table.exactly(question)
        if known is None:
            return (yield from super().answer(question))
        return self.codec.reply(known)
