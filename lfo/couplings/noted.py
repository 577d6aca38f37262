"""Couplings that set notes into the policy's context, before its one-shot action: who says them differs, nothing else.

`truth` says what would really be answered, an upper bound. `memory` (`lfo.couplings.memory`) says what can be made of
the answers so far without a language model. `imagine` (`lfo.couplings.imagine`) asks the world model.
"""

from __future__ import annotations

import abc
import dataclasses

from lfo.couplings.plain import ALONE, Answer, Plain
from lfo.protocols import AdapterLayout, Coupling, Question, Script
from lfo.rollout.play import Row
from lfo.text.codec import Codec
from lfo.types import Encoded, Example, Role, Rollout, Sample


class Noted(Plain, abc.ABC):
    """A `Coupling` whose policy reads what would be answered to the calls that it means to make."""

    def __init__(self, layout: AdapterLayout, codec: Codec, scouts: int = 0, distillation: float = 0.0):
        super().__init__(layout, scouts)
        self.codec, self.distillation = codec, distillation

    def before_turn(self, row: Row) -> Script:
        yield from self.scout(row) if row.attempt.scout else self.rehearse(row, self.answer)

    @abc.abstractmethod
    def answer(self, question: Question) -> Answer:
        """The tokens of what is noted to a question; None for no note."""

    def views(self, rollout: Rollout, sample: Sample | None) -> list[Sample]:
        """With `context_distillation`, the same actions also without the notes before them.

        They keep their advantages, good and bad. The importance ratio is dropped, since the two contexts differ by
        design (RLTF-SD, arXiv 2602.02482: dropping it is more stable than clipping it, and imitating successes alone
        is worse). The baseline is the group's own mean, so that a task on which every rollout with a note succeeds
        teaches nothing.
        """
        if sample is None:
            return []
        distils = self.distillation > 0 and Role.NOTE in sample.roles
        return [sample, without(sample, Role.NOTE, "distilled")] if distils else [sample]


def without(sample: Sample, role: Role, how: str) -> Sample:
    """The sample as if nobody had written the tokens of this role, learned in that way (`Sample.how`)."""
    kept = [i for i, r in enumerate(sample.roles) if r != role]
    names = ("tokens", "roles", "old_logprobs", "advantages", "heard", "returns", "values")
    present = {name: values for name in names if (values := getattr(sample, name)) is not None}
    lists = {name: [values[i] for i in kept] for name, values in present.items()}
    return dataclasses.replace(sample, **lists, how=how)


def as_read(example: Example, codec: Codec, coupling: Coupling) -> Encoded:
    """An example as the world model of a coupling reads it: after other calls, none of the same task, if any."""
    question = coupling.informed(example.question, example.task_id)
    return codec.encoded(question, example.reply) if question.similar else example.encoded


class Truth(Noted):
    """Notes by somebody who knows what is hidden."""

    source = "truth"

    def __init__(self, codec: Codec, scouts: int = 0, distillation: float = 0.0):
        super().__init__(ALONE, codec, scouts, distillation)
        self.knowledge = codec.env.knowledge

    def answer(self, question: Question) -> Answer:
        yield from ()  # nobody is asked
        return self.codec.reply(self.knowledge.truth(question))
