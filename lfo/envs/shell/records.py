"""A shell task, in the schema that public sets of them have (LifelongAgentBench's os_interaction), and what we add."""

from __future__ import annotations

import dataclasses

from lfo.types import Record, Task


@dataclasses.dataclass(frozen=True)
class CommandItem(Record):
    """A script. command_name: who runs it; only bash does."""

    command_name: str
    script: str


@dataclasses.dataclass(frozen=True)
class EvaluationInfo(Record):
    """evaluation_command_item: exits with 0 where the task is done. ground_truth_command_item: does it."""

    evaluation_command_item: CommandItem
    ground_truth_command_item: CommandItem


@dataclasses.dataclass(frozen=True)
class PublicTask(Record):
    """A task as public sets write it."""

    sample_index: int
    instruction: str
    initialization_command_item: CommandItem
    evaluation_info: EvaluationInfo
    skill_list: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ShellTask(Task, PublicTask):
    """A task of ours.

    rephrased: the instruction in a wording that no instruction has. neighbour: a script that does something like it,
    but wrong; "" where nobody wrote one. machine: where it is done, "" where that says nothing. house: its house tools
    that have to be run, in order.
    """

    rephrased: str = ""
    neighbour: str = ""
    machine: str = ""
    house: tuple[str, ...] = ()

    @property
    def skill(self) -> str:
        return self.skill_list[0]

    @property
    def unit(self) -> str:
        """What tasks have in common that decides about them beside chance: a machine, or else a skill."""
        return self.machine or self.skill

    @property
    def evaluation(self) -> str:
        return self.evaluation_info.evaluation_command_item.script

    @property
    def ground_truth(self) -> str:
        return self.evaluation_info.ground_truth_command_item.script

    @property
    def initialization(self) -> str:
        return self.initialization_command_item.script


def bash(script: str) -> CommandItem:
    return CommandItem("bash", script)
