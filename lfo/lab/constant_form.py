"""How far does one form go that is the same for every task, and where do policies succeed that go no further?

Where a needed field cannot be given, the user may be asked once more, for anything, and by then a CSR may have named it
all. So success is told apart by whether a needed field is lacking. Plays a scripted caller, and reads run folders.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pandas as pd

from lfo.config import EnvConfig, derive_seed
from lfo.envs import make_environment
from lfo.envs.phone.callers import play_scripted
from lfo.envs.phone.episode import PhoneEpisode
from lfo.lab.hierarchy import Curve, Study, final, middle, read_curves, tasks_of
from lfo.lab.reading import SPLIT_NAMES, Runs
from lfo.lab.statistics import in_percent
from lfo.runs import RunFolder

FORM = "constant-form"  # of `lfo.envs.phone.callers.REFERENCE_POLICIES`
WHERE = {None: "all tasks", False: "nothing is lacking", True: "a needed field is lacking"}


def form_table(runs: Runs) -> pd.DataFrame:
    """Success at the last evaluation, of all tasks and by whether the user lacks a needed field: a row per arm and
    companies, the constant form in the worlds of these runs first; medians over the runs with 95% intervals.

    share lacking: of these tasks, those where a needed field is.
    """
    envs = {c.env.world_seed: c for c in (RunFolder(f).config for folders in runs.values() for f in folders)}
    rows = []
    for split, companies in SPLIT_NAMES.items():
        curves = read_curves(runs, split)
        lack = {world: lacking(c.env, split, c.eval_tasks) for world, c in envs.items()}
        curves = [*(constant_curve(c.env, split, c.eval_tasks) for c in envs.values()), *curves]
        for arm in dict.fromkeys(curve.arm for curve in curves):
            mine = [curve for curve in curves if curve.arm == arm]
            row: dict = {"companies": companies, "arm": arm, "runs": len(mine)}
            for which, name in WHERE.items():
                chosen = [c if which is None else _where(c, lack[c.world] == which) for c in mine]
                found = Study([c for c in chosen if c.companies]).find(final, middle(arm), [arm])
                row[name] = in_percent(found.value, found.low, found.high) if found.runs else ""
            rows.append(row | {"share lacking": float(np.mean([lack[c.world].mean() for c in mine]))})
    return pd.DataFrame(rows)


def constant_curve(env: EnvConfig, split: str, count: int | None) -> Curve:
    """Whether the constant form wins the first `count` tasks of a split, with the users that evaluations have."""
    world, rules = make_environment(env).world, make_environment(env).rules
    tasks = tasks_of(env, split)[:count]
    wins = [play_scripted(world, task, FORM, rules).success for task in tasks]
    return Curve(FORM, env.world_seed, 0, np.zeros(1), np.array([wins], float), tuple(t.company_id for t in tasks))


@functools.cache
def lacking(env: EnvConfig, split: str, count: int | None) -> np.ndarray:
    """(T,): whether the user of a task's evaluation lacks a field that it needs."""
    built = make_environment(env)
    episodes = (
        PhoneEpisode(built.world, task, built.rules, derive_seed("evaluation", task.task_id, 0))
        for task in tasks_of(env, split)[:count]
    )
    return np.array([bool(episode.lacking()) for episode in episodes])


def _where(curve: Curve, chosen: np.ndarray) -> Curve:
    owners = tuple(owner for owner, there in zip(curve.companies, chosen, strict=True) if there)
    return replace(curve, successes=curve.successes[:, chosen], companies=owners)
