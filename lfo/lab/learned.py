"""What does a world model make of the very calls that memories hear? A run's replay, without a policy.

The calls are those of `lfo.lab.dials.heard_calls`, so that nobody's policy decides what is heard. A run hears other
calls, and more of them with as many updates, and has a joint update on those of each step as well. Notebook 01 has this
and the tellers as one table.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Sequence

from lfo.config import load_config
from lfo.evaluate import answers
from lfo.lab.dials import REPLIES, heard_calls, right
from lfo.lab.factorial import WORLD_MODEL
from lfo.lab.reading import SPLIT_NAMES
from lfo.train import Run, lr_factor
from lfo.types import Example, Question


def learned_rows(
    circumstances: Sequence[int],
    worlds: Sequence[int],
    heard: Sequence[int],
    path: str = "configs/laptop.yaml",
    replies: Sequence[str] = REPLIES,
    device: str = "cpu",
    **overrides,
) -> list[dict]:
    """`lfo.lab.dials.dial_rows` of a world model, trained anew for every number of calls, both dials and world.

    path, overrides: of a config whose world model this is, with its replay, rates and share of anonymised calls. At
    each step as many calls are heard as the config has tasks (`rollout.tasks_per_step`). replies: what CSRs say, of
    `lfo.lab.dials.REPLIES`.

    Raises:
        ValueError: a number of calls is no multiple of that.
    """
    rows = []
    for kinds, said, seed, count in itertools.product(circumstances, replies, worlds, heard):
        world = {"env.world_seed": seed, "env.circumstances": kinds, "env.replies": said}
        config = load_config(path, task_budget=count, eval_every=count, **(overrides | world))
        if count % config.rollout.tasks_per_step:
            raise ValueError(f"{count} calls cannot be heard {config.rollout.tasks_per_step} at a time.")
        about = {"circumstances": kinds, "replies": said, "world": seed, "heard": count, "teller": WORLD_MODEL}
        with tempfile.TemporaryDirectory() as folder:
            run = Run(config, folder, device=device)
            run.begin()
            _learn(run, heard_calls(run.env, count, seed))
            rows += [about | {"split": split} | right(run.env, _answers(run, split), split) for split in SPLIT_NAMES]
    return rows


def _learn(run: Run, calls: Sequence[Example]) -> None:
    """A few of the calls at each step, and then its replay."""
    c, share = run.config, run.config.rollout.tasks_per_step
    for run.step in range(len(calls) // share):
        done = run.step * share
        new = ((call, run.codec.encoded(call.question, call.reply)) for call in calls[done : done + share])
        examples = [dataclasses.replace(call, encoded=encoded) for call, encoded in new]
        run.buffer.add(examples)
        run.coupling.hear(examples)  # for a world model that reads
        for _ in run.replay(c.world_model.updates, 0, lr_factor(done, c.task_budget, c.warmup_tasks)):
            pass  # an update each
        run.learner.follow()
    run.publish()


def _answers(run: Run, split: str) -> Callable[[Question], str | None]:
    asked = [step.question for step in run.env.knowledge.steps(split)]
    return dict(zip(asked, answers(run.engine, run.codec, run.coupling, asked), strict=True)).get
