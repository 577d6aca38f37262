"""What the adapters that hand our environments to others have in common: which task, and which of its episodes."""

from __future__ import annotations

from collections.abc import Sequence

from gymnasium.utils.seeding import np_random

from lfo.envs.base import SPLITS
from lfo.protocols import Environment
from lfo.types import Task


def tasks_of(env: Environment, split: str) -> list[Task]:
    """The tasks of a split, in data order.

    Raises:
        ValueError: the split has none.
    """
    if not (found := env.tasks(split)):
        raise ValueError(f"the environment has no tasks in '{split}'; splits: {', '.join(SPLITS)}.")
    return found


def chosen(tasks: Sequence[Task], seed: int | None, index: int | None = None) -> tuple[Task, int]:
    """The task and the seed of an episode, which are those of `PhoneCallEnv(world, tasks).reset(seed=seed)`.

    index: of the task, as its `options={"task": tasks[index]}`. Without one the seed draws it; without a seed, chance.

    Raises:
        ValueError: there is no such task.
    """
    numbers = np_random(seed)[0]
    index = int(numbers.integers(len(tasks))) if index is None else index
    if not 0 <= index < len(tasks):
        raise ValueError(f"there is no task {index}; there are 0 to {len(tasks) - 1}.")
    return tasks[index], int(numbers.integers(2**31))
