"""The shell world as an environment of `lfo`: tasks, machines and the rules of an episode."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lfo.envs.shell.episode import AS_DECIDED, TOOLS, Rules, ShellEpisode
from lfo.envs.shell.knowledge import ShellKnowledge
from lfo.envs.shell.machines import HiddenHouse, draw_machines
from lfo.envs.shell.records import ShellTask
from lfo.envs.shell.systems import AS_USUAL, Limits
from lfo.envs.shell.tasks import draw_tasks
from lfo.protocols import Responder

SYSTEM = """You act on a Linux machine through bash. Each of your messages is one action, in one of two forms.

To run commands, and to read what they print next:
Act: bash
```bash
echo "commands in here"
```

When the task is done:
Act: finish

Anything else ends the attempt. Every action has a fresh shell in your home folder: files stay, variables and the
current folder do not. You have {rounds} actions. Commands must not wait for input."""


@dataclasses.dataclass(frozen=True)
class World:
    """Everything that was drawn. `house` is hidden."""

    seed: int
    house: HiddenHouse
    tasks: tuple[ShellTask, ...]


def draw_world(seed: int = 0) -> World:
    """The machines and tasks of a world."""
    house = draw_machines(seed)
    return World(seed, house, draw_tasks(seed, house))


class ShellEnvironment:
    """See `lfo.protocols.Environment`. held_out_phrasing: instructions and refusals in words training never has.

    sandbox: on which system commands run, as `env.sandbox` has it (`lfo.envs.shell.sandbox`).
    """

    tools = TOOLS

    def __init__(
        self,
        world: World,
        rules: Rules = AS_DECIDED,
        levels: Sequence[int] = (1, 2, 3),
        held_out_phrasing: bool = False,
        limits: Limits = AS_USUAL,
        sandbox: str = "",
    ):
        self.world, self.rules, self.levels = world, rules, tuple(levels)
        self.held_out_phrasing, self.limits, self.sandbox = held_out_phrasing, limits, sandbox
        self.system = SYSTEM.format(rounds=rules.max_round)
        self.knowledge = ShellKnowledge(world.house, world.tasks)

    def tasks(self, split: str) -> list[ShellTask]:
        return [task for task in self.world.tasks if task.split == split and task.level in self.levels]

    def episode(self, task: ShellTask, seed: int, responder: Responder | None = None) -> ShellEpisode:
        how = (self.held_out_phrasing, self.limits, self.sandbox)
        return ShellEpisode(task, self.world.house, self.rules, seed, *how)
