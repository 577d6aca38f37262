"""How the table of games is made: ``python -m lfo.envs.twc.table`` plays all of them and writes it, in a minute.

Of all seeds of a fold it has the first one for every thing and room, and the places where that thing makes the score go
up.
"""

from __future__ import annotations

import csv
import re

from lfo.envs.twc.game import FURNITURE, gold_path, replay, seeds
from lfo.envs.twc.tasks import FOLDS, TABLE, TwcTask

_ROOM = re.compile(r"You are in the ([\w ]+)\.")


def play_all(split: str, most: int | None = None) -> list[TwcTask]:
    """The tasks of a split, by playing its games: of the first `most` seeds, None: of all."""
    found: dict[tuple[str, str], TwcTask] = {}
    for seed in seeds(FOLDS[split])[:most]:
        _, begun = replay(FOLDS[split], seed, ())
        path = gold_path(FOLDS[split], seed)
        room, (thing, place) = _ROOM.search(begun.text)[1], path[-1].removeprefix("put ").split(" in ")
        if (thing, room) not in found:
            places = tuple(place for place, _ in FURNITURE.findall(begun.text))
            right = [place, *(p for p in places if p != place and _is_right(FOLDS[split], seed, thing, p))]
            task = TwcTask(f"{split}-{seed}", split, len(path) - 2, seed, room, thing, places, tuple(right), len(path))
            found[thing, room] = task
    return list(found.values())


def _is_right(fold: str, seed: int, thing: str, place: str) -> bool:
    """Whether the score is full once the thing is put there. To open what is open already does no harm."""
    _, after = replay(fold, seed, [f"take {thing}", f"open {place}", f"put {thing} in {place}"])
    return after.score == 1


def write() -> None:
    """Write the table of all splits."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow("split seed room thing places right steps".split())
        for split in FOLDS:
            for t in play_all(split):
                rows.writerow([split, t.seed, t.room, t.thing, "; ".join(t.places), "; ".join(t.right), t.steps])


if __name__ == "__main__":
    write()
