"""Which worlds can a memory master, and in which must something be learned? Both dials, without a language model.

Calls with empty hands along the ways of training tasks are heard; then tellers (`lfo.couplings.memory`) answer the
calls on the ways of validation tasks (known companies) and test tasks (new ones). Notebook 01 draws the rows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from lfo.config import EnvConfig, derive_seed
from lfo.couplings.memory import make_teller
from lfo.envs import make_environment
from lfo.envs.phone.environment import PhoneEnvironment
from lfo.envs.phone.knowledge import PhoneKnowledge, Step, looked_up
from lfo.envs.phone.phrasings import parse_reply
from lfo.lab.factorial import MEMORIES
from lfo.lab.told import usual_world
from lfo.types import Encoded, Example, Question

USUAL = "usual rules"  # of the world, known to the letter, and no company's own
HEARD = (80, 160, 320, 640)
REPLIES = ("list", "reasons")


def heard_calls(env: PhoneEnvironment, count: int, seed: int = 0) -> list[Example]:
    """The first calls that somebody hears who follows the ways of training tasks, in random order, with empty hands."""
    knowledge, tasks, heard = env.knowledge, env.tasks("train"), []
    random.Random(derive_seed("heard", seed)).shuffle(tasks)
    for task in tasks:
        for step in knowledge.way(task.request, looked_up(env.world, task.company_id), task.task_id):
            heard.append(as_example(step))
    return heard[:count]


def as_example(step: Step) -> Example:
    asked, status = step.question, parse_reply(step.truth)[0]
    return Example(step.task_id, asked.call, step.truth, status, Encoded((), ()), asked.request, asked.turns)


def dial_rows(
    circumstances: Sequence[int],
    worlds: Sequence[int],
    heard: Sequence[int] = HEARD,
    recalls: Sequence[str] = MEMORIES,
) -> list[dict]:
    """Share of calls to which the answer means what the truth means: one row per position of both dials, world, number
    of calls heard, teller and split."""
    rows = []
    for kinds, said, seed in itertools.product(circumstances, REPLIES, worlds):
        env = make_environment(EnvConfig(world_seed=seed, circumstances=kinds, replies=said))
        dials = {"circumstances": kinds, "replies": said, "world": seed}
        rows += [dials | row for row in _answered(env, heard_calls(env, max(heard), seed), heard, recalls)]
    return rows


def _answered(
    env: PhoneEnvironment, calls: Sequence[Example], heard: Sequence[int], recalls: Sequence[str]
) -> Iterator[dict]:
    """What tellers get right in one world who heard the first of these calls."""
    for count in heard:
        tellers = {recall: make_teller(recall, env.knowledge) for recall in recalls}
        for teller in tellers.values():
            teller.hear(calls[:count])
        answers = {name: teller.answer for name, teller in tellers.items()}
        answers[USUAL] = PhoneKnowledge(usual_world(env.world)).truth
        for (name, answer), split in itertools.product(answers.items(), ("validation", "test")):
            yield {"heard": count, "teller": name, "split": split} | right(env, answer, split)


def right(env: PhoneEnvironment, answer: Callable[[Question], str | None], split: str) -> dict:
    """Share of the calls on the ways of a split's tasks whose answer means what the truth means, and their number."""
    meaning, steps = env.knowledge.meaning, env.knowledge.steps(split)
    hits = [meaning(answer(step.question) or "") == meaning(step.truth) for step in steps]
    return {"right": sum(hits) / len(hits), "n": len(hits)}
