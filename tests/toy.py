"""A toy environment: count up to a number that the request names. All that the core knows of an environment is here."""

from __future__ import annotations

from lfo.envs.base import Tool
from lfo.types import Call, Malformed, Outcome, StopReason, Task, Turn

COUNT = Tool("count", "WRITE", "Say a number.", {"number": {"type": "string"}})


class Counter:
    """`Episode`: the first number that is said decides."""

    def __init__(self, task: Task):
        self.goal, self.turns, self.stop, self.closed = task.level, [], None, False
        self.request = f"Count to {self.goal}."

    def step(self, action) -> str:
        if self.stop:
            raise RuntimeError("this episode is over")
        said = action.arguments["number"] if isinstance(action, Call) else ""
        told = action.reason if isinstance(action, Malformed) else "right" if said == str(self.goal) else "wrong"
        self.turns.append(Turn(action, told, told if isinstance(action, Call) else "error"))
        self.stop = StopReason.SUCCESS if told == "right" else StopReason.MAX_TURNS if len(self.turns) == 2 else None
        return told

    def cut(self) -> None:
        self.stop = self.stop or StopReason.TOKEN_BUDGET

    def outcome(self) -> Outcome:
        return Outcome(self.stop is StopReason.SUCCESS, float(self.stop is StopReason.SUCCESS))

    def close(self) -> None:
        self.closed = True


class Counting:
    """`Environment` without anything to model."""

    system, tools, knowledge = "Count.", {"count": COUNT}, None

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{n}", split, n) for n in (1, 2, 3)]

    def episode(self, task: Task, seed: int, responder=None) -> Counter:
        return Counter(task)
