"""The hidden conventions: what the house tools of a machine demand. Drawn from the world's seed.

A machine has a kind, as a company has an industry, and four house tools, each of which hands a file on: two that every
machine has, two of its kind. A tool wants flags with values of the house, which no manual names: they are usual for
its kind; 70% of the machines do as is usual, 20% want one flag more from all their tools, 10% want others. A refusal
names all that is missing, and locks the tool for the rest of the episode, so that asking first does not replace
knowing. The rules live outside the sandbox, behind a `Desk`: no file inside tells them.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence

from lfo.envs.shell.templates import Draft, Says
from lfo.envs.shell.trees import Tree

FLAGS = {
    "--to": "/srv/vault /srv/cold /srv/depot /srv/attic".split(),
    "--as": "csv json tsv xml".split(),
    "--zone": "north south east west".split(),
    "--keep": "7d 30d 90d".split(),
    "--owner": "ops dev sec".split(),
    "--rank": "low mid high".split(),
    "--seal": "wax lead tape".split(),
}
COMMON = {"stash": "keep a copy of {file} in the archive", "post": "publish {file}"}
KINDS = {
    "web server": {"mirror": "copy {file} to the mirrors", "purge": "drop {file} from the caches"},
    "mail server": {"spool": "put {file} into the queue", "relay": "send {file} on"},
    "database": {"ingest": "load {file}", "dump": "write {file} to the dump"},
    "build machine": {"ship": "deliver {file}", "stamp": "sign {file}"},
}
TOOLS = sorted({*COMMON, *(tool for tools in KINDS.values() for tool in tools)})
MACHINES = """
ash badger beech birch bison cedar crane cypress dove eagle elder elk elm falcon fern fig finch fir fox gecko goose
hare hawk heron hickory holly hornet ibis iris ivy jackal jay juniper kestrel kite lark larch laurel linden lion lotus
lynx magpie maple marten mole moose moss myrtle newt oak olive orca oriole otter owl palm panda pine plover poplar puma
quail raven robin rook rose sage seal shrew spruce stork swan swift teak tern thyme tiger toad viper willow wren yew
zebra
""".split()
EACH_KIND = 20
HOUSE_TASKS = {"train": 96, "validation": 24, "test": 48}
SAID = ("On {machine}, a {kind}: {deeds}.", "There is a {kind} called {machine}. There, {deeds}.")
WHERE = re.compile(r"On (\w+), a ([a-z ]+):|There is a ([a-z ]+) called (\w+)\.")

REFUSALS = (
    "{tool}: refused. Missing: {wanted}.",
    "{tool}: this cannot be done without {wanted}.",
    "{tool}: what is wanted here is {wanted}.",  # held out
)
LOCKED = "{tool}: locked until tomorrow, after a refused call."
DONE = "{tool}: done with {file}."
SERVED = "--served"  # asks whether a file was handed on; for evaluations

Wanted = dict[str, str]  # flag -> value


@dataclasses.dataclass(frozen=True)
class Machine:
    """known: training and validation tasks are done on it. variation: typical, extra or different."""

    name: str
    kind: str
    known: bool
    variation: str
    wanted: dict[str, Wanted]  # tool -> what it demands


HiddenHouse = dict[str, Machine]  # by name


def draw_machines(seed: int) -> HiddenHouse:
    """All machines of a world; known and new ones have the same shares of the three variations."""
    rng = random.Random(f"{seed}/machines")
    names = rng.sample(MACHINES, EACH_KIND * len(KINDS))
    machines = {}
    for kind, own in KINDS.items():
        usual = {tool: _draw(rng, rng.randint(1, 3)) for tool in (*COMMON, *own)}
        for known in (True, False):
            for variation in _variations(rng, EACH_KIND // 2):
                name = names.pop()
                machines[name] = Machine(name, kind, known, variation, _varied(rng, usual, variation))
    return machines


def _draw(rng: random.Random, count: int) -> Wanted:
    return {flag: rng.choice(FLAGS[flag]) for flag in rng.sample(list(FLAGS), count)}


def _variations(rng: random.Random, count: int) -> list[str]:
    extra, different = round(0.2 * count), round(0.1 * count)
    kinds = ["extra"] * extra + ["different"] * different + ["typical"] * (count - extra - different)
    rng.shuffle(kinds)
    return kinds


def _varied(rng: random.Random, usual: dict[str, Wanted], variation: str) -> dict[str, Wanted]:
    if variation == "different":
        return {tool: _draw(rng, rng.randint(1, 3)) for tool in usual}
    more = _draw(rng, 1) if variation == "extra" else {}
    return {tool: more | wanted for tool, wanted in usual.items()}


class Desk:
    """Answers the house tools of a machine in one episode; see `lfo.envs.shell.systems.Desk`.

    phrasing: an index of `REFUSALS`.
    """

    def __init__(self, house: HiddenHouse, machine: str, phrasing: int = 0):
        self._wanted, self._phrasing = house[machine].wanted, phrasing
        self.tools = tuple(self._wanted)
        self.served: set[tuple[str, str]] = set()  # tool and file
        self.locked: set[str] = set()

    def __call__(self, words: Sequence[str]) -> tuple[int, str]:
        tool, *arguments = words
        if tool not in self._wanted:
            return 1, f"{tool}: there is no such tool here."
        if arguments[:1] == [SERVED]:
            return 0, "yes" if (tool, " ".join(arguments[1:])) in self.served else "no"
        if tool in self.locked:
            return 3, LOCKED.format(tool=tool)
        given, files = _read(arguments)
        if given == self._wanted[tool] and len(files) == 1:
            self.served.add((tool, files[0]))
            return 0, DONE.format(tool=tool, file=files[0])
        self.locked.add(tool)
        return 2, refusal(tool, self._wanted[tool], self._phrasing)


def _read(arguments: Sequence[str]) -> tuple[Wanted, list[str]]:
    """Flags with their values, also as --flag=value, and what is left."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    given, files = {}, []
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            given[word] = words.pop(0) if words else ""
        else:
            files.append(word)
    return given, files


def refusal(tool: str, wanted: Wanted, phrasing: int) -> str:
    """What a tool says to whoever does not give it exactly what it wants: all of it."""
    named = [f"{flag} {value}" for flag, value in sorted(wanted.items())]
    listed = ", ".join(["a file", *named[:-1]]) + f" and {named[-1]}"
    return REFUSALS[phrasing].format(tool=tool, wanted=listed)


def house_draft(rng: random.Random, machine: Machine, tree: Tree) -> tuple[Draft, tuple[str, ...]]:
    """A task that one or two house tools do, and their names."""
    tools = rng.sample(list(machine.wanted), rng.randint(1, 2))
    deeds = COMMON | KINDS[machine.kind]
    files = rng.sample([tree.table, tree.log_file, tree.conf_file, *tree.note_files], len(tools))
    asked = " and ".join(
        f"{deeds[tool].format(file=file)} with {tool}" for tool, file in zip(tools, files, strict=True)
    )
    said = tuple(text.format(machine=machine.name, kind=machine.kind, deeds=asked) for text in SAID)
    calls = [
        " ".join([tool, *(f"{flag} {value}" for flag, value in sorted(machine.wanted[tool].items())), file])
        for tool, file in zip(tools, files, strict=True)
    ]
    expect = {f"{tool} served": Says(f"{tool} {SERVED} {file}", "yes") for tool, file in zip(tools, files, strict=True)}
    wrong = "\n".join([*calls[:-1], f"{tools[-1]} {files[-1]}"])
    level = 3 if len(tools) == 2 else 1 if len(machine.wanted[tools[0]]) == 1 else 2
    return Draft(level, said, "\n".join(calls), wrong, expect), tuple(tools)
