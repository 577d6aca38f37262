"""A finished run where it was not trained: new companies, unusual rules, other levels, unheard phrasings; told more.

`measure`, `measure_told` and `measure_notes` play a run's newest adapters and write one row per episode into the run
folder, once, `measure_way` asks its world model or memory and writes one per question; the tables of notebook 04 are
drawn from those files alone (`lfo.lab.transfer_tables`).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pandas as pd

from lfo.config import derive_seed
from lfo.couplings import Noted, Plain, alone, make_coupling
from lfo.envs import make_environment
from lfo.envs.phone import World
from lfo.envs.phone.records import PhoneTask
from lfo.envs.phone.tools import FORM
from lfo.envs.phone.world import LEVELS
from lfo.evaluate import answers, play_tasks
from lfo.lab.player import Player, load_player
from lfo.lab.reading import read_measurement, write_measurement
from lfo.lab.told import told_as_in, usual_world
from lfo.lab.transfer_tables import NOTES, TOLD, TRANSFER, WAY
from lfo.protocols import Knowledge
from lfo.rollout.tasks import TaskStream
from lfo.runs import RunError, RunFolder
from lfo.types import Role, Rollout

CONDITIONS = (("validation", False), ("test", False), ("test", True))  # split, held-out phrasing
MOST = (1, 2, Plain.most_notes)  # notes in an episode
TELLERS = ("nothing", "imagined", "typical", "typical and house", "truth")


def measure(folder: str | Path, episodes: int = 2, tasks_per_level: int | None = None) -> pd.DataFrame:
    """One row per greedy episode: split, held_out_phrasing, level, variation, task_id, episode, called, success,
    needed, requested, useful, failed.

    variation: how the task's company departs from the typical rules (typical | extra | different). called: whether a
    task at the company was sampled in training. needed: fields that the task's calls demand, with an alternative for
    each that the user declared unavailable; requested: fields that the agent asked the user for, also in forms that
    were declined; useful: both at once; failed: what went wrong, as `Knowledge.feedback` has it, in episodes without
    success (not in tables from before 26 November 2026). The episodes of a task differ in the user's behaviour and in
    the CSR's wording; they are the same for every run.
    tasks_per_level: the first ones of each split; None: all. What was measured before, on the same tasks with the same
    adapters, is not played again.

    Raises:
        RunError: the run has published no adapters.
    """
    run = RunFolder(folder)
    everywhere = dataclasses.replace(run.config.env, levels=tuple(LEVELS))
    envs = {held_out: make_environment(everywhere, held_out_phrasing=held_out) for held_out in (False, True)}
    world = envs[False].world
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
    if run.measured(TRANSFER):
        table = read_measurement(run, TRANSFER)
        if table.reindex(columns=list(planned[0])).equals(pd.DataFrame(planned)):
            return table
    player, played = load_player(folder, envs[False]), []
    for split, held_out in CONDITIONS:
        codec, coupling = make_coupling(player.config, envs[held_out])
        coupling.hear(run.examples())  # a memory's own knowledge
        played += play_tasks(player.engine, codec, coupling, tasks[split], player.config.rollout, episodes)
    company = {task.task_id: task.company_id for task in world.tasks}
    stream = TaskStream(make_environment(run.config.env).tasks("train"), run.config.seed)
    called = {task.company_id for task in stream.take(run.newest()["tasks"])}
    heard = [{"called": company[plan["task_id"]] in called} for plan in planned]
    knowledge = player.env.knowledge
    rows = [plan | of | _outcome(world, knowledge, row) for plan, of, row in zip(planned, heard, played, strict=True)]
    return write_measurement(run, TRANSFER, rows)


def _facts(world: World, task: PhoneTask) -> dict:
    return {"task_id": task.task_id, "level": task.level, "variation": world.variation(task.company_id)}


def _outcome(world: World, knowledge: Knowledge, row: Rollout) -> dict:
    task = next(t for t in world.tasks if t.task_id == row.task_id)
    forms = [turn for turn in row.turns if turn.tool == FORM]
    requested = {field for turn in forms for field in turn.action.arguments["fields"]}
    unavailable = {field for turn in forms for field in json.loads(turn.observation).get("unavailable", ())}
    needed = set(world.demands_of(task).needed(unavailable))
    counts = {"needed": len(needed), "requested": len(requested), "useful": len(requested & needed)}
    kinds = set() if row.success else {one.kind for one in knowledge.feedback(row.turns) if one.score < 1}
    return {"success": int(row.success), **counts, "failed": " ".join(sorted(kinds))}


# --- told more or less -----------------------------------------------------------------------


def measure_told(folder: str | Path) -> pd.DataFrame:
    """One row per greedy episode of the run's own evaluation: split, told, variation, task_id, success. For runs that
    `imagine`.

    told: what the policy reads before it asks the user for anything. nothing: all it has is distilled
    (`world_model.context_distillation`). imagined: what its world model says, as in training. typical: what departments
    like the one that it means to call usually demand. typical and house: with it, the field that companies of the trade
    like to add, which does no harm where it is not demanded (`slack` of `lfo.envs.phone.Rules`); no more can be known
    of a company that nobody ever called. truth: what this one demands. Measured once, as by `measure`.

    Raises:
        RunError: the run's policy never reads imagined replies, or the run has published no adapters.
    """
    run = RunFolder(folder)
    if run.measured(TOLD) and set((table := read_measurement(run, TOLD))["told"]) == set(TELLERS):
        return table
    if run.config.coupling != "imagine":
        raise RunError(f"{folder} has the coupling {run.config.coupling}; only `imagine` is told anything.")
    player, rows = load_player(folder), []
    couplings, world = _tellers(player), player.env.world
    variation = {task.task_id: world.variation(task.company_id) for task in world.tasks}
    for split, told in itertools.product(player.config.eval_splits, TELLERS):
        for row in _evaluation(player, split, couplings[told]):
            where = {"split": split, "told": told, "variation": variation[row.task_id]}
            rows.append({**where, "task_id": row.task_id, "success": int(row.success)})
    return write_measurement(run, TOLD, rows)


def measure_notes(folder: str | Path) -> pd.DataFrame:
    """One row per greedy episode of the run's own evaluation: split, most, task_id, notes, success. For runs whose
    dialect opens a note by a token of its own, as `tags` does.

    most: how many notes the policy is told at most, of those that its run would tell it; notes: how many it read.
    Measured once, as by `measure`.

    Raises:
        RunError: the run has published no adapters.
    """
    run = RunFolder(folder)
    if run.measured(NOTES):
        return read_measurement(run, NOTES)
    player, rows = load_player(folder), []
    opener = player.codec.note("", ())[0]
    for split, most in itertools.product(player.config.eval_splits, MOST):
        getattr(player.coupling, "inner", player.coupling).most_notes = most  # of whoever notes, beside feedback too
        for row in _evaluation(player, split, player.coupling):
            notes = sum((role, token) == (Role.NOTE, opener) for role, token in zip(row.roles, row.tokens, strict=True))
            where = {"split": split, "most": most, "task_id": row.task_id}
            rows.append({**where, "notes": notes, "success": int(row.success)})
    return write_measurement(run, NOTES, rows)


def measure_way(folder: str | Path) -> pd.DataFrame:
    """One row per call on the ways of the tasks of the run's own evaluation splits: split, task_id, call, variation,
    right. For runs with a world model or a memory.

    call: `first`, made while nobody has served the caller, or `later`. variation: as in `measure`. right: what is said
    of it means what would be answered. Measured once, as by `measure`.

    Raises:
        RunError: nobody in the run says what would be answered, or it has published no adapters.
    """
    run = RunFolder(folder)
    if run.measured(WAY):
        return read_measurement(run, WAY)
    player, rows = load_player(folder), []
    coupling, knowledge, world = player.coupling, player.env.knowledge, player.env.world
    if not coupling.recall and not coupling.layout.listener:
        raise RunError(f"{folder} has the coupling {run.config.coupling}, which predicts no replies.")
    for split in player.config.eval_splits:
        steps = knowledge.steps(split)
        said = answers(player.engine, player.codec, coupling, [step.question for step in steps])
        for step, text in zip(steps, said, strict=True):
            *_, served = knowledge.place(step.question)
            where = {"split": split, "task_id": step.task_id, "call": "later" if served else "first"}
            right = int(knowledge.meaning(text) == knowledge.meaning(step.truth))
            rows.append({**where, "variation": world.variation(step.company_id), "right": right})
    return write_measurement(run, WAY, rows)


def _evaluation(player: Player, split: str, coupling: Plain) -> list[Rollout]:
    """The greedy episodes of a run's own evaluation, with this coupling."""
    c = player.config
    tasks, seed = player.env.tasks(split)[: c.eval_tasks], derive_seed(c.seed, split)
    return play_tasks(player.engine, player.codec, coupling, tasks, c.rollout, c.eval_episodes, seed)


def _tellers(player: Player) -> dict[str, Noted]:
    """The couplings of `measure_told`, by what is told."""
    world = player.env.world
    worlds = {"typical": usual_world(world), "typical and house": usual_world(world, house=True), "truth": world}
    knowing = {told: told_as_in(believed, player.codec) for told, believed in worlds.items()}
    return {"nothing": alone(player.coupling), "imagined": player.coupling, **knowing}
