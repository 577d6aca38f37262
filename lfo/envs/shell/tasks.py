"""The shell tasks of a world: drafts made into numbered tasks of three splits, in the public schema."""

from __future__ import annotations

import dataclasses
import random
import shlex
from collections.abc import Iterator

from lfo.envs.shell.machines import HOUSE_TASKS, HiddenHouse, house_draft
from lfo.envs.shell.records import EvaluationInfo, ShellTask, bash
from lfo.envs.shell.templates import SKILLS, Draft, Link, Says
from lfo.envs.shell.trees import Tree, words_of

EACH = {"train": (0, 1) * 4, "validation": (0, 1), "test": (2, 2, 2)}  # split -> the drafts of a skill that it has


def draw_tasks(seed: int, house: HiddenHouse) -> tuple[ShellTask, ...]:
    """All tasks of a world, split by split, those of a split shuffled."""
    rng = random.Random(f"{seed}/shell")
    tasks: list[ShellTask] = []
    for split in EACH:
        drawn = [*_skill_tasks(rng, split), *_house_tasks(rng, split, house)]
        rng.shuffle(drawn)
        for number, task in enumerate(drawn):
            tasks.append(dataclasses.replace(task, task_id=f"{split}-{number:03d}", sample_index=len(tasks)))
    return tuple(tasks)


def _skill_tasks(rng: random.Random, split: str) -> Iterator[ShellTask]:
    for skill in SKILLS:
        for number in EACH[split]:
            tree = Tree(rng, words_of(split))
            while (draft := skill(tree)[number]) and not _tells(draft, tree):
                tree = Tree(rng, words_of(split))
            yield make_task(split, draft, tree, skill.__name__)


def _house_tasks(rng: random.Random, split: str, house: HiddenHouse) -> Iterator[ShellTask]:
    machines = [machine for machine in house.values() if machine.known == (split != "test")]
    for _ in range(HOUSE_TASKS[split]):
        machine, tree = rng.choice(machines), Tree(rng, words_of(split))
        draft, tools = house_draft(rng, machine, tree)
        yield make_task(split, draft, tree, "house", machine=machine.name, house=tools)


def _tells(draft: Draft, tree: Tree) -> bool:
    """Whether the tree asks for anything: an empty answer would tell nobody apart, nor would one that is there."""
    wanted = draft.expect.get(tree.out, "-")
    return wanted != "" and any(tree.files.get(path, "").rstrip("\n") != text for path, text in draft.expect.items())


def make_task(split: str, draft: Draft, tree: Tree, skill: str, **house) -> ShellTask:
    """A draft as a task without a number. house: see `ShellTask`."""
    return ShellTask(
        task_id="",
        split=split,
        level=draft.level,
        sample_index=0,
        instruction=draft.said[0],
        initialization_command_item=bash(tree.initialization()),
        evaluation_info=EvaluationInfo(bash(evaluation(draft)), bash(draft.truth)),
        skill_list=(skill,),
        rephrased=draft.said[1],
        neighbour=draft.wrong,
        **house,
    )


def evaluation(draft: Draft) -> str:
    """A script that exits with 0 where everything is as the draft expects."""
    return "\n".join(f"{_check(path, wanted)} || exit 1" for path, wanted in draft.expect.items())


def _check(path: str, wanted: str | int | Link | Says | None) -> str:
    if wanted is None:
        return f"[ ! -e {path} ]"
    if isinstance(wanted, int):
        return f'[ "$(stat -c %a {path})" = {wanted:o} ]'
    if isinstance(wanted, Link):
        return f'[ -L {path} ] && [ "$(readlink -f {path})" = "$PWD/{wanted.to}" ]'
    if isinstance(wanted, Says):
        return f'[ "$({wanted.command})" = {shlex.quote(wanted.text)} ]'
    return f'[ -f {path} ] && [ "$(cat {path})" = {shlex.quote(wanted)} ]'
