"""A finished run where it was not trained: new companies, unusual rules, other levels, unheard phrasings.

`measure` plays a run's newest adapters and writes one row per episode into the run folder, once; the
tables of notebook 04 are drawn from those files alone (`lfo.figures`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from lfo.config import RunConfig, build
from lfo.evaluate import play_tasks
from lfo.records import Task
from lfo.train import load_for_playing
from lfo.world import World, generate_world

FILE = "transfer.csv"
LEVELS = (1, 2, 3, 4, 5)
CONDITIONS = (("validation", False), ("test", False), ("test", True))  # split, held-out phrasing


def measure(folder: str | Path, episodes: int = 4, tasks_per_level: int = 20) -> pd.DataFrame:
    """One row per greedy episode: split, held_out_phrasing, level, variation, task_id, episode, success.

    variation: how the task's company departs from the typical rules (typical | extra | different). The episodes
    of a task differ in the user's behaviour and in the CSR's wording; they are the same for every run. A run that
    was measured before is not played again.

    Raises:
        FileNotFoundError: the run has published no adapters.
    """
    path = Path(folder) / FILE
    if not path.exists():
        engine, codec = load_for_playing(folder)
        config = build(RunConfig, json.loads((Path(folder) / "config.json").read_text()))
        world = generate_world(config.world_seed)
        rows = []
        for split, held_out in CONDITIONS:
            tasks = [t for level in LEVELS for t in world.split(split, (level,))[:tasks_per_level]]
            played = play_tasks(engine, codec, world, tasks, config, 0, episodes, held_out)
            rows += [
                {"split": split, "held_out_phrasing": held_out, **_facts(world, task), "episode": k, "success": won}
                for task, k, won in zip(
                    (t for t in tasks for _ in range(episodes)),
                    [*range(episodes)] * len(tasks),
                    (int(row.success) for row in played),
                    strict=True,
                )
            ]
        temporary = path.with_suffix(".tmp")
        pd.DataFrame(rows).to_csv(temporary, index=False)
        temporary.replace(path)
    return pd.read_csv(path)


def _facts(world: World, task: Task) -> dict:
    variation = next(r.variation for (company, _), r in world.rules.items() if company == task.company_id)
    return {"task_id": task.task_id, "level": task.level, "variation": variation}
