"""What does a world model make of the very calls that memories hear? A run's learning, without a policy.

The calls of `lfo.lab.dials.heard_calls` are replayed as a run replays what it hears, so that all that differs from the
tellers there is who learns. Notebook 01 has both as one table.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Iterator, Sequence

from lfo.config import load_config
from lfo.evaluate import answers
from lfo.lab.dials import REPLIES, heard_calls, right
from lfo.train import Run, lr_factor
from lfo.types import Example

WORLD_MODEL = "world model"


def learned_rows(
    circumstances: Sequence[int], worlds: Sequence[int], heard: Sequence[int], path: str = "configs/laptop.yaml"
) -> list[dict]:
    """`lfo.lab.dials.dial_rows` of a world model, which is trained anew for every position of both dials and world.

    heard: numbers of calls, multiples of the tasks of a step (`rollout.tasks_per_step`), since so many are heard at
    each. path: of a config whose world model this is, with its replay, rates and share of anonymised calls.
    """
    rows = []
    for kinds, said, seed in itertools.product(circumstances, REPLIES, worlds):
        world = {"env.world_seed": seed, "env.circumstances": kinds, "env.replies": said}
        config = load_config(path, task_budget=max(heard), eval_every=max(heard), **world)
        dials = {"circumstances": kinds, "replies": said, "world": seed}
        with tempfile.TemporaryDirectory() as folder:
            run = Run(config, folder)
            run.begin()
            rows += [dials | row for row in _learned(run, heard_calls(run.env, max(heard), seed), heard)]
    return rows


def _learned(run: Run, calls: Sequence[Example], heard: Sequence[int]) -> Iterator[dict]:
    """What the world model of a fresh run gets right that has heard the first of these calls, a few at each step."""
    c, share = run.config, run.config.rollout.tasks_per_step
    for run.step in range(max(heard) // share):
        done = run.step * share
        new = ((call, run.codec.encoded(call.question, call.reply)) for call in calls[done : done + share])
        run.buffer.add([dataclasses.replace(call, encoded=encoded) for call, encoded in new])
        for _ in run.replay(c.world_model.updates, 0, lr_factor(done, c.task_budget, c.warmup_tasks)):
            pass  # an update each
        run.learner.follow()
        if done + share in heard:
            run.publish()
            for split in ("validation", "test"):
                asked = [step.question for step in run.env.knowledge.steps(split)]
                said = dict(zip(asked, answers(run.engine, run.codec, run.coupling, asked), strict=True))
                yield {"heard": done + share, "teller": WORLD_MODEL, "split": split} | right(run.env, said.get, split)
