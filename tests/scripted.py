"""An engine whose answers are written out, and a trajectory as text: what tests of the loop and couplings share."""

from __future__ import annotations

import dataclasses
import itertools

from lfo.rollout.engine import Completion, Prompt
from lfo.types import Role

# What a dreamt CSR may say, and whether four such replies are a success at an agreement.
YES = '{"status": "success", "message": "Billing. Done."}'
NO = '{"status": "auth_failed", "message": "Billing. I need your account number."}'
VERDICTS = [
    ([YES, YES, YES, YES], 1.0, True),
    ([YES, NO, YES, YES], 1.0, False),
    ([YES, NO, YES, YES], 0.75, True),
    ([NO, YES, NO, YES], 0.75, False),
    ([NO] * 4, 0.25, False),
    (["Done!"] * 4, 1.0, False),  # no reply at all
    (['{"status": "malformed", "message": "m"}'] * 4, 0.1, False),
]


class Scripted:
    """An engine whose answers are written out, `answer(prompt text, prompt)`: a text, ended by the stop token.

    It hands back one completion at a time, those of the sessions in `late` only where nothing else is under way.
    """

    def __init__(self, codec, answer, late=()):
        self.codec, self.answer, self.late = codec, answer, set(late)
        self.prompts: list[Prompt] = []
        self.waiting: dict[int, Prompt] = {}
        self.ended: list = []
        self.generated_tokens = 0

    def load(self, adapters) -> None:
        raise AssertionError("the loop loads nothing")

    def submit(self, prompt: Prompt) -> int:
        self.prompts.append(dataclasses.replace(prompt, tokens=list(prompt.tokens)))
        self.waiting[len(self.prompts)] = self.prompts[-1]
        return len(self.prompts)

    def ready(self) -> list[tuple[int, Completion]]:
        ticket = min(self.waiting, key=lambda t: (self.waiting[t].session in self.late, t))
        return [(ticket, self.complete(self.waiting.pop(ticket)))]

    def complete(self, prompt: Prompt) -> Completion:
        text = self.answer(self.codec.decode(prompt.tokens), prompt)
        ids = [*self.codec.encode(text), prompt.stop][: prompt.max_new]
        return Completion(ids, [-0.25] * len(ids))

    def end_session(self, session) -> None:
        self.ended.append(session)


def by_turn(*actions):
    """The n-th action on turn n, the last one for ever."""
    return lambda text, prompt: actions[min(text.count("<|obs|>"), len(actions) - 1)]


def spans(row, codec) -> list[tuple[str, Role]]:
    """The trajectory as text, cut where the role changes."""
    runs = itertools.groupby(zip(row.roles, row.tokens, strict=True), key=lambda pair: pair[0])
    return [(codec.decode([i for _, i in run]), Role(role)) for role, run in runs]
