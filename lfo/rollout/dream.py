"""Dreamt episodes: the world model answers the phone (Dyna, Sutton 1991: planning with a learnt model).

Directory and user are the real ones and only the CSR is dreamt: no phone rings, but the form is still
answered, or declined, by the user simulator. Success is read off the imagined replies, and a policy
will find whatever a world model is too optimistic about, so it is read conservatively: a call is
imagined several times, and the goal counts as served when enough of the imagined replies say so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lfo.config import WorldModelConfig
from lfo.records import Company, Task
from lfo.rollout.engine import Completion, Engine, Prompt
from lfo.simulator import SITUATION_STATUS, Reply, parse_reply
from lfo.tokens import Codec
from lfo.tools import ToolCall, parse_action
from lfo.world import DEPARTMENT_OF_GOAL

IMAGINED_TOKENS = 64  # at most, in one imagined reply


class DreamtCsr:
    """Answers in the place of `simulator.CsrSimulator`. Knows the task's goals and the directory, and no rule.

    agreement: share of the imagined replies to a call that must say "success" for it to be one. A goal is
    served by the department that it belongs to; another department's success serves nobody.
    """

    def __init__(self, task: Task, company: Company, agreement: float):
        self._open = {goal: DEPARTMENT_OF_GOAL[goal] for goal in task.goals}
        self._directory = {_digits(d.phone): d.name for d in company.departments}
        self._agreement = agreement
        self.imagined: list[str] = []  # replies to the call that comes next

    @property
    def all_served(self) -> bool:
        return not self._open

    def call(self, phone_number: str, auth_info: dict[str, str], truth: dict[str, str], unavailable: set[str]) -> Reply:
        """The first imagined reply that says what was decided, success or not."""
        replies = [_read(text) for text in self.imagined]
        served = sum(r.status == "success" for r in replies) >= self._agreement * len(replies)
        if served:
            name = self._directory.get(_digits(phone_number))
            self._open = {goal: owner for goal, owner in self._open.items() if owner != name}
        return next(r for r in replies if (r.status == "success") == served)


def _digits(phone_number: str) -> str:
    return re.sub(r"\D", "", phone_number)


def _read(text: str) -> Reply:
    status, message = parse_reply(text)
    return Reply(status, message) if status in SITUATION_STATUS.values() else Reply("unreadable", text)


def imagine_calls(
    engine: Engine,
    codec: Codec,
    rows: Sequence,
    completions: Sequence[Completion],
    dream: WorldModelConfig,
    seed: int,
    adapter: str,
) -> None:
    """Let the CSR of every dreamt row know the replies to the call that its sampled action makes, if it makes one.

    All calls are imagined at once, and calls that do not differ are imagined once: as with the real CSR,
    rollouts of a group that do the same hear the same.
    """
    questions: dict[int, tuple[int, ...]] = {}
    for i, (row, completion) in enumerate(zip(rows, completions, strict=True)):
        action = codec.action_text(completion.tokens)
        call = parse_action(action)
        if isinstance(call, ToolCall) and call.tool == "make_phone_call":
            questions[i] = tuple(codec.world_prompt(row.episode.request, row.episode.turns, action))
    distinct, n = list(dict.fromkeys(questions.values())), dream.dream_samples
    prompts = [Prompt(list(q), adapter, IMAGINED_TOKENS, codec.csr_end_id, 1.0) for q in distinct for _ in range(n)]
    replies = [codec.reply_text(c.tokens) for c in engine.generate(prompts, seed)] if prompts else []
    for i, question in questions.items():
        first = distinct.index(question) * n
        rows[i].csr.imagined = replies[first : first + n]
