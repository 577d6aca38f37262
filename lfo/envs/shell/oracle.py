"""Whether tasks are what they say: the ground truth passes, doing nothing fails, a wrong neighbour fails. And how they
are done in the agent's own actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from lfo.envs.shell.environment import ShellEnvironment
from lfo.envs.shell.episode import BASH, FINISH
from lfo.envs.shell.machines import Desk, HiddenHouse
from lfo.envs.shell.records import ShellTask
from lfo.envs.shell.sandbox import Sandbox, require_system
from lfo.envs.shell.systems import AS_USUAL, SandboxError
from lfo.types import Call, Turn

AT_ONCE = 4  # sandboxes


@dataclasses.dataclass(frozen=True)
class Verdict:
    """problem: why a task is none, "" where it is one."""

    task: ShellTask
    problem: str


def certify(tasks: Iterable[ShellTask], house: HiddenHouse | None = None, system: str = "") -> list[Verdict]:
    """What the oracle says of each task, in their order. system: of the sandboxes, as `env.sandbox` has it.

    Raises:
        SandboxError: there can be no sandbox here.
    """
    require_system(system)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda task: Verdict(task, problem(task, house, system)), tasks))


def problem(task: ShellTask, house: HiddenHouse | None = None, system: str = "") -> str:
    """What is wrong with a task, "" for nothing."""
    try:
        nothing, truth = _tried(task, task.ground_truth, house, system)
        wrong = task.neighbour and _tried(task, task.neighbour, house, system)[1]
    except SandboxError as error:
        return str(error)
    if nothing:
        return "doing nothing passes"
    if wrong:
        return "the wrong neighbour passes"
    return "" if truth else "the ground truth does not pass"


def _tried(task: ShellTask, script: str, house: HiddenHouse | None, system: str) -> tuple[bool, bool]:
    """Whether a task passes before and after a script.

    Raises:
        SandboxError: there can be no sandbox here, or the initialization fails or takes too long.
    """
    desk = Desk(house, task.machine) if house and task.machine else None
    with Sandbox(AS_USUAL, desk.tools if desk else (), desk, system) as box:
        made = box.run(task.initialization)
        if made.status != 0:
            raise SandboxError(f"the initialization exits with {made.status}: {made.output[:200].strip()}")
        before = box.run(task.evaluation).status == 0
        box.run(script)
        return before, box.run(task.evaluation).status == 0


def demonstrations(env: ShellEnvironment) -> list[tuple[str, tuple[Turn, ...]]]:
    """Instruction and actions of one episode per skill, its first task: the ground truth is run, then it is finished.
    Nothing of what machines hide: none of them has a house tool.

    Raises:
        SandboxError: there can be no sandbox here.
        RuntimeError: a task is not done by its ground truth.
    """
    first = {task.skill: task for task in reversed(env.tasks("train")) if not task.house}
    played = []
    for task in reversed(first.values()):
        episode = env.episode(task, seed=0)
        try:
            episode.step(Call(BASH, {"command": task.ground_truth}))
            episode.step(Call(FINISH, {}))
            if not episode.outcome().success:
                raise RuntimeError(f"the ground truth of {task.task_id} does not pass: `lfo shell certify` says why")
            played.append((episode.request, tuple(episode.turns)))
        finally:
            episode.close()
    return played
