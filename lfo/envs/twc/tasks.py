"""The games of the world as tasks: a table that `table` has played out of the game, and that is read without it."""

from __future__ import annotations

import csv
import dataclasses
import functools
from pathlib import Path

from lfo.types import Task

TABLE = Path(__file__).with_name("games.csv")
FOLDS = {"train": "train", "validation": "dev", "test": "test"}  # split -> the game's own word


@dataclasses.dataclass(frozen=True)
class TwcTask(Task):
    """A game. thing: to be put away; room; places: all furniture; right: those where it belongs, by the game's own
    solution first; steps: of that solution. level: 1, or 2 where the place has to be opened first."""

    seed: int
    room: str
    thing: str
    places: tuple[str, ...]
    right: tuple[str, ...]
    steps: int

    @property
    def fold(self) -> str:
        return FOLDS[self.split]


@functools.cache
def all_tasks() -> tuple[TwcTask, ...]:
    """The tasks of all splits, in the order of their seeds."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(_task(**row) for row in csv.DictReader(file))


def _task(split: str, seed: str, room: str, thing: str, places: str, right: str, steps: str) -> TwcTask:
    name, level = f"{split}-{seed}", int(steps) - 2
    return TwcTask(name, split, level, int(seed), room, thing, _parted(places), _parted(right), int(steps))


def _parted(text: str) -> tuple[str, ...]:
    return tuple(text.split("; "))
