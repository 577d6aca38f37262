"""The file trees that tasks are about. Those of a split are made of words that no other split has."""

from __future__ import annotations

import dataclasses
import random
import shlex
from collections.abc import Sequence

ROOTS = {
    "train": "harbor meadow quarry lantern orchard copper glacier saddle thicket beacon".split(),
    "validation": "ferry bramble anvil cellar pasture".split(),
    "test": "turbine cobalt lagoon marble prairie sextant".split(),
}
NAMES = {
    "train": "Ada Bruno Clara Dario Edda Felix Gerda Hugo Ines Jonas Karla Luca Mara Nils".split(),
    "validation": "Olga Pavel Quentin Rosa Sven Thea Udo Vera Willem Xenia".split(),
    "test": "Aylin Bela Carmen Dmitri Elif Farid Greta Hassan Ilse Jarek".split(),
}
CITIES = {
    "train": "Oslo Lima Porto Turin Ghent".split(),
    "validation": "Delft Vigo Lyon Graz".split(),
    "test": "Quito Riga Busan Accra".split(),
}
WORDS = {
    "train": "river stone window paper garden silver engine bottle candle basket ladder pillow".split(),
    "validation": "anchor carpet donkey feather hammer island kettle lemon mirror needle".split(),
    "test": "walnut velvet pepper ribbon tunnel violin zipper magnet cactus hazel".split(),
}
PLACES = {
    "train": "alpha bravo delta echo golf hotel".split(),
    "validation": "india juliet kilo lima".split(),
    "test": "quebec romeo sierra tango".split(),
}
SERVICES = {
    "train": "web db mail".split(),
    "validation": "cache queue auth".split(),
    "test": "proxy index feed".split(),
}
ANSWERS = {
    "train": "answer.txt result.txt out.txt".split(),
    "validation": "found.txt reply.txt".split(),
    "test": "solution.txt outcome.txt".split(),
}
LEVELS = ("INFO", "WARN", "ERROR")
TEAMS = ("red", "blue", "green")
MESSAGES = ("disk full", "slow answer", "started", "stopped", "timeout")


@dataclasses.dataclass(frozen=True)
class Words:
    """What the words of a tree are drawn from. answers: names of files that are to be written."""

    roots: Sequence[str]
    names: Sequence[str]
    cities: Sequence[str]
    words: Sequence[str]
    places: Sequence[str]
    services: Sequence[str]
    answers: Sequence[str]


def words_of(split: str) -> Words:
    """The words of a split's trees."""
    return Words(*(of[split] for of in (ROOTS, NAMES, CITIES, WORDS, PLACES, SERVICES, ANSWERS)))


class Tree:
    """A folder with a log, tables, notes, settings, jobs and scripts, and what stands in them.

    files: path below the home folder -> text. The other attributes say the same as values, for whoever computes what
    is asked for without a shell.
    """

    def __init__(self, rng: random.Random, of: Words):
        self.rng, words = rng, rng.sample(of.words, 10)
        self.words = words
        self.root = rng.choice(of.roots)
        self.out = f"{self.root}/{rng.choice(of.answers)}"
        self.new = words[9]  # a name that nothing has yet
        self.places = rng.sample(of.places, 3)
        self.people = [
            (name, rng.choice(of.cities), rng.choice(TEAMS), rng.randint(21, 69)) for name in rng.sample(of.names, 8)
        ]
        self.log_file = f"{self.root}/logs/{words[0]}.log"
        self.log = [self._log_line(day, of.services) for day in range(1, rng.randint(10, 14))]
        self.note_files = [f"{self.root}/notes/{name}.txt" for name in sorted(words[1:4])]
        self.notes = {path: self._lines(rng.randint(4, 7)) for path in self.note_files}
        self.conf_file = f"{self.root}/conf/{words[4]}.conf"
        self.conf = {key: rng.randint(10, 99) for key in ("port", "limit", "retries")}
        self.backups = [f"{self.root}/{place}/{words[5]}{n}.bak" for n, place in enumerate(self.places, start=1)]
        self.empty = f"{self.root}/{self.places[0]}/{words[6]}.tmp"
        self.script = f"{self.root}/bin/{words[7]}.sh"
        self.printed = " ".join(rng.sample(words, 2))
        self.cron_file = f"{self.root}/crontab.txt"
        self.jobs = [
            (rng.randint(0, 59), hour, f"bin/{word}")
            for hour, word in zip(rng.sample(range(24), 4), words, strict=False)
        ]
        self.ps_file = f"{self.root}/ps.txt"
        users, pids, load = (
            rng.sample([n.lower() for n, *_ in self.people], 3),
            rng.sample(range(100, 999), 8),
            rng.sample(range(1, 99), 8),
        )
        self.processes = [(pid, rng.choice(users), cpu, rng.choice(words)) for pid, cpu in zip(pids, load, strict=True)]
        self.lists = {f"{self.root}/lists/{side}.txt": sorted(rng.sample(words, 6)) for side in ("left", "right")}
        self.files = self._files()

    def _log_line(self, day: int, services: list[str]) -> tuple[str, str, str, str]:
        rng = self.rng
        return (
            f"2031-03-{day:02d}",
            rng.choice(LEVELS) if day > 3 else LEVELS[day - 1],
            rng.choice(services),
            rng.choice(MESSAGES),
        )

    def _lines(self, count: int) -> list[str]:
        """Lines of three words and a number; two of them begin alike."""
        return [f"{' '.join(self.rng.sample(self.words[:8], 3))} {self.rng.randint(1, 99)}" for _ in range(count)]

    def _files(self) -> dict[str, str]:
        rows = {
            f"{self.root}/people.csv": ["name,city,team,age", *(",".join(map(str, row)) for row in self.people)],
            self.log_file: [" ".join(row) for row in self.log],
            **self.notes,
            self.conf_file: ["# settings", *(f"{key}={value}" for key, value in self.conf.items()), "# end"],
            **{path: [f"backup of {path}"] for path in self.backups},
            self.empty: [],
            self.script: ["#!/bin/bash", f'echo "{self.printed} $1"', "exit 3"],
            self.cron_file: [f"{minute} {hour} * * * {command}" for minute, hour, command in self.jobs],
            self.ps_file: ["PID USER CPU COMMAND", *(" ".join(map(str, row)) for row in self.processes)],
            **self.lists,
        }
        return {path: "".join(f"{line}\n" for line in lines) for path, lines in rows.items()}

    @property
    def table(self) -> str:
        return f"{self.root}/people.csv"

    def initialization(self) -> str:
        """A script that makes the tree."""
        folders = sorted({path.rpartition("/")[0] for path in self.files})
        made = [f"printf '%s' {shlex.quote(text)} > {path}" for path, text in self.files.items()]
        return "\n".join(["umask 022", f"mkdir -p {' '.join(folders)}", *made])
