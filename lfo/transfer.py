"""A finished run where it was not trained: new companies, unusual rules, other levels, unheard phrasings.

`measure` plays a run's newest adapters and writes one row per episode into the run folder, once; the
tables of notebook 04 are drawn from those files alone (`lfo.figures`).
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pandas as pd

from lfo.config import RunConfig, build, derive_seed
from lfo.evaluate import play_tasks
from lfo.records import Task
from lfo.train import load_for_playing, up_to_date
from lfo.world import World, generate_world

FILE = "transfer.csv"
UNAIDED = "unaided.csv"
LEVELS = (1, 2, 3, 4, 5)
CONDITIONS = (("validation", False), ("test", False), ("test", True))  # split, held-out phrasing


def measure(folder: str | Path, episodes: int = 4, tasks_per_level: int = 20) -> pd.DataFrame:
    """One row per greedy episode: split, held_out_phrasing, level, variation, task_id, episode, success.

    variation: how the task's company departs from the typical rules (typical | extra | different). The episodes
    of a task differ in the user's behaviour and in the CSR's wording; they are the same for every run. What was
    measured before, on the same tasks with the same adapters, is not played again.

    Raises:
        FileNotFoundError: the run has published no adapters.
    """
    path = Path(folder) / FILE
    config = build(RunConfig, json.loads((Path(folder) / "config.json").read_text()))
    world = generate_world(config.world_seed)
    asked = [
        {"split": split, "held_out_phrasing": held_out, **_facts(world, task), "episode": k}
        for split, held_out in CONDITIONS
        for task in _tasks(world, split, tasks_per_level)
        for k in range(episodes)
    ]
    if up_to_date(folder, FILE) and pd.read_csv(path).drop(columns="success").equals(pd.DataFrame(asked)):
        return pd.read_csv(path)
    engine, codec = load_for_playing(folder)
    won = [
        int(row.success)
        for split, held_out in CONDITIONS
        for row in play_tasks(
            engine, codec, world, _tasks(world, split, tasks_per_level), config, 0, episodes, held_out
        )
    ]
    return _write(pd.DataFrame(asked).assign(success=won), path)


def measure_unaided(folder: str | Path) -> pd.DataFrame:
    """One row per greedy episode of the run's own evaluation: split, aided (1: with imagined replies), success.

    Without them a policy acts on what it has internalised (`policy.internalise`). Measured once, as by `measure`.

    Raises:
        FileNotFoundError: the run has published no adapters.
    """
    path = Path(folder) / UNAIDED
    if up_to_date(folder, UNAIDED):
        return pd.read_csv(path)
    config = build(RunConfig, json.loads((Path(folder) / "config.json").read_text()))
    world, (engine, codec) = generate_world(config.world_seed), load_for_playing(folder)
    rows = []
    for split, aided in itertools.product(config.eval_splits, (1, 0)):
        tasks, seed = world.split(split, config.levels)[: config.eval_tasks], derive_seed(config.seed, split)
        played = play_tasks(engine, codec, world, tasks, config, seed, config.eval_episodes, aided=bool(aided))
        rows += [{"split": split, "aided": aided, "success": int(row.success)} for row in played]
    return _write(pd.DataFrame(rows), path)


def _write(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    temporary = path.with_suffix(".tmp")
    table.to_csv(temporary, index=False)
    temporary.replace(path)
    return pd.read_csv(path)


def _tasks(world: World, split: str, per_level: int) -> list[Task]:
    return [task for level in LEVELS for task in world.split(split, (level,))[:per_level]]


def _facts(world: World, task: Task) -> dict:
    variation = next(r.variation for (company, _), r in world.rules.items() if company == task.company_id)
    return {"task_id": task.task_id, "level": task.level, "variation": variation}
