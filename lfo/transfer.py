"""A finished run where it was not trained: new companies, unusual rules, other levels, unheard phrasings.

`measure` plays a run's newest adapters and writes one row per episode into the run folder, once; the
tables of notebook 04 are drawn from those files alone (`lfo.figures`).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pandas as pd

from lfo.config import RunConfig, build, derive_seed
from lfo.evaluate import TruthfulEngine, play_tasks
from lfo.records import Task, Trajectory
from lfo.tools import parse_action
from lfo.train import load_for_playing, up_to_date, write_measured
from lfo.world import World, canonical, generate_world, needed_fields

FILE = "transfer.csv"
TOLD = "told.csv"
TELLERS = ("nothing", "imagined", "typical", "typical and house", "truth")
LEVELS = (1, 2, 3, 4, 5)
CONDITIONS = (("validation", False), ("test", False), ("test", True))  # split, held-out phrasing


def measure(folder: str | Path, episodes: int = 2, tasks_per_level: int | None = None) -> pd.DataFrame:
    """One row per greedy episode: split, held_out_phrasing, level, variation, task_id, episode, success, needed,
    requested, useful.

    variation: how the task's company departs from the typical rules (typical | extra | different). needed: fields that
    the task's calls demand, with an alternative for each that the user declared unavailable; requested: fields that the
    agent asked the user for, also in forms that were declined; useful: both at once. The episodes of a task differ in
    the user's behaviour and in the CSR's wording; they are the same for every run.
    tasks_per_level: the first ones of each split; None: all. What was measured before, on the same tasks with the same
    adapters, is not played again.

    Raises:
        FileNotFoundError: the run has published no adapters.
    """
    config = build(RunConfig, json.loads((Path(folder) / "config.json").read_text()))
    world = generate_world(config.world_seed)
    tasks = {
        split: [task for level in LEVELS for task in world.split(split, (level,))[:tasks_per_level]]
        for split, _ in CONDITIONS
    }
    planned = [
        {"split": split, "held_out_phrasing": held_out, **_facts(world, task), "episode": k}
        for split, held_out in CONDITIONS
        for task in tasks[split]
        for k in range(episodes)
    ]
    if up_to_date(folder, FILE):
        table = pd.read_csv(Path(folder) / FILE)
        if table.reindex(columns=list(planned[0])).equals(pd.DataFrame(planned)):
            return table
    engine, codec = load_for_playing(folder)
    played = [
        row
        for split, held_out in CONDITIONS
        for row in play_tasks(engine, codec, world, tasks[split], config, 0, episodes, held_out)
    ]
    rows = [plan | _outcome(world, row) for plan, row in zip(planned, played, strict=True)]
    return write_measured(rows, folder, FILE)


def measure_told(folder: str | Path) -> pd.DataFrame:
    """One row per greedy episode of the run's own evaluation: split, told, variation, task_id, success. For runs that
    `imagine`.

    told: what the policy reads before it asks the user for anything. nothing: all it has is internalised
    (`policy.internalise`). imagined: what its world model says, as in training. typical: what departments like the one
    that it means to call usually demand. typical and house: with it, the field that companies of the trade like to add,
    which does no harm where it is not demanded (`EnvConfig.slack`); no more can be known of a company that nobody ever
    called. truth: what this one demands. Measured once, as by `measure`.

    Raises:
        FileNotFoundError: the run has published no adapters.
        ValueError: the run's policy never reads imagined replies.
    """
    if up_to_date(folder, TOLD) and set((table := pd.read_csv(Path(folder) / TOLD))["told"]) == set(TELLERS):
        return table
    config = build(RunConfig, json.loads((Path(folder) / "config.json").read_text()))
    if config.world_model.coupling != "imagine":
        raise ValueError(f"{folder} has the coupling {config.world_model.coupling}; only `imagine` is told anything.")
    world, (engine, codec) = generate_world(config.world_seed), load_for_playing(folder)
    known = {"typical": typical_demands(world), "typical and house": typical_demands(world, house=True), "truth": {}}
    rows = []
    for split, told in itertools.product(config.eval_splits, TELLERS):
        tasks, seed = world.split(split, config.levels)[: config.eval_tasks], derive_seed(config.seed, split)
        teller = TruthfulEngine(engine, codec, demanding(world, known[told])) if told in known else engine
        aided = told != "nothing"
        played = play_tasks(teller, codec, world, tasks, config, seed, config.eval_episodes, aided=aided)
        variation = {task.task_id: _variation(world, task) for task in tasks}
        rows += [{"split": split, "told": told, "variation": variation[row.task_id], "task_id": row.task_id,
                  "success": int(row.success)} for row in played]  # fmt: skip
    return write_measured(rows, folder, TOLD)


def typical_demands(world: World, house: bool = False) -> dict[tuple[str, str], tuple[str, ...]]:
    """(company_id, department) -> the fields that such departments usually demand, all of them by the typical rules.

    house: with the field that cautious companies of the industry usually add, where anything is demanded.
    """
    industry, typical, out = {c.company_id: c.industry for c in world.companies.values()}, world.typical, {}
    for company, name in world.rules:
        fields = typical.required[industry[company], name]
        more = (typical.house_field[industry[company]],) if house and fields else ()
        out[company, name] = canonical((*fields, *more))
    return out


def demanding(world: World, demands: dict[tuple[str, str], tuple[str, ...]]) -> World:
    """The same world, but for what the given departments demand."""
    changed = {key: dataclasses.replace(world.rules[key], required=fields) for key, fields in demands.items()}
    return dataclasses.replace(world, rules=world.rules | changed)


def _facts(world: World, task: Task) -> dict:
    return {"task_id": task.task_id, "level": task.level, "variation": _variation(world, task)}


def _variation(world: World, task: Task) -> str:
    return next(rule.variation for (company, _), rule in world.rules.items() if company == task.company_id)


def _outcome(world: World, row: Trajectory) -> dict:
    task = next(t for t in world.tasks if t.task_id == row.task_id)
    forms = [turn for turn in row.turns if turn.tool == "auth_info_form"]
    requested = {field for turn in forms for field in parse_action(turn.action).arguments["fields"]}
    unavailable = {field for turn in forms for field in json.loads(turn.observation).get("unavailable", ())}
    needed = set(needed_fields(world.rules, task.company_id, task.goals, unavailable))
    counts = {"needed": len(needed), "requested": len(requested), "useful": len(requested & needed)}
    return {"success": int(row.success), **counts}
