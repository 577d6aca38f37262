"""How far does one form go that is the same for every task, and where do policies succeed that go no further?

Where a needed field cannot be given, the user may be asked once more, for anything, and by then a CSR may have named it
all. So success is told apart by whether a needed field is lacking. Plays scripted callers, and reads run folders.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping

import numpy as np
import pandas as pd

from lfo.config import EnvConfig, evaluation_seed
from lfo.envs import make_environment
from lfo.envs.phone.callers import ConstantForm, ScriptedAgent, run_scripted
from lfo.envs.phone.episode import PhoneEpisode
from lfo.lab.factorial import config_of_each_world, ends_of, overview
from lfo.lab.hierarchy import Curve, Study, final, middle, read_curves, tasks_of
from lfo.lab.reading import SPLIT_NAMES, Runs
from lfo.lab.statistics import in_percent

WHERE = {None: "all tasks", False: "nothing is lacking", True: "a needed field is lacking"}


class OneForm(ConstantForm):
    """Asks for the same three fields, and never again."""

    def may_ask_again(self, asked: frozenset[str]) -> bool:
        return False


CALLERS: Mapping[str, type[ScriptedAgent]] = {"constant-form": ConstantForm, "constant-form, once": OneForm}


def form_table(runs: Runs) -> pd.DataFrame:
    """Success at the last evaluation, of all tasks and by whether the user lacks a needed field: a row per arm and
    companies, `CALLERS` in the worlds of these runs first; medians over the runs with 95% intervals.

    share lacking: of these tasks, those where a needed field is.
    """
    configs, rows = config_of_each_world(runs), []
    for split, companies in SPLIT_NAMES.items():
        lack = {world: lacking(c.env, split, c.eval_tasks) for world, c in configs.items()}
        curves = [called(name, c.env, split, c.eval_tasks) for name in CALLERS for c in configs.values()]
        curves += read_curves(runs, split)
        for arm in dict.fromkeys(curve.arm for curve in curves):
            mine = [curve for curve in curves if curve.arm == arm]
            row: dict = {"companies": companies, "arm": arm, "runs": len(mine)}
            for which, name in WHERE.items():
                chosen = [c if which is None else c.of(np.flatnonzero(lack[c.world] == which)) for c in mine]
                found = Study([c for c in chosen if c.companies]).find(final, middle(arm), [arm])
                row[name] = in_percent(found.value, found.low, found.high) if found.runs else ""
            rows.append(row | {"share lacking": float(np.mean([lack[c.world].mean() for c in mine]))})
    return pd.DataFrame(rows)


def form_levels(runs: Runs) -> pd.DataFrame:
    """Success of `CALLERS` at each level (`lfo.lab.factorial.overview`), in the worlds of these runs."""
    configs, rows = config_of_each_world(runs), []
    for split, companies in SPLIT_NAMES.items():
        curves = [called(name, c.env, split, c.eval_tasks) for name in CALLERS for c in configs.values()]
        levels = {c.env.world_seed: [t.level for t in tasks_of(c.env, split)[: c.eval_tasks]] for c in configs.values()}
        for level in sorted({level for there in levels.values() for level in there}):
            there = (c.of([i for i, of in enumerate(levels[c.world]) if of == level]) for c in curves)
            rows += ends_of([curve for curve in there if curve.companies], companies=companies, level=level)
    return overview(pd.DataFrame(rows), "level")


@functools.cache
def called(name: str, env: EnvConfig, split: str, count: int | None) -> Curve:
    """Whether one of `CALLERS` wins the first `count` tasks of a split, with the users that evaluations have."""
    world, owners = make_environment(env).world, tuple(task.company_id for task in tasks_of(env, split)[:count])
    episodes = _episodes(env, split, count)
    wins = [run_scripted(e, CALLERS[name](e, world, random.Random(0))).success for e in episodes]
    return Curve(name, env.world_seed, 0, np.zeros(1), np.array([wins], float), owners)


@functools.cache
def lacking(env: EnvConfig, split: str, count: int | None) -> np.ndarray:
    """(T,): whether the user of a task's evaluation lacks a field that it needs."""
    return np.array([bool(episode.lacking()) for episode in _episodes(env, split, count)])


def _episodes(env: EnvConfig, split: str, count: int | None) -> list[PhoneEpisode]:
    built, tasks = make_environment(env), tasks_of(env, split)[:count]
    return [PhoneEpisode(built.world, t, built.rules, evaluation_seed(t.task_id)) for t in tasks]
