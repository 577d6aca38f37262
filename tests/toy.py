"""A toy environment: count up to a number that the request names. All that the core knows of an environment is here."""

from __future__ import annotations

from lfo.couplings.memory import Table
from lfo.envs.base import Tool
from lfo.protocols import Blank
from lfo.types import Call, Feedback, Malformed, Outcome, StopReason, Task, Turn

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


class Keeping:
    """Beside an `Environment`: remembers its episodes."""

    def __init__(self, *args):
        super().__init__(*args)
        self.made: list = []

    def episode(self, task, seed: int, responder=None):
        self.made.append(super().episode(task, seed, responder))
        return self.made[-1]


class Kept(Keeping, Counting):
    """`Counting` that remembers its episodes."""


class Known:
    """`Knowledge`: what is said to a number that somebody means to say. Somebody has two tries, then it is over."""

    learned, hint = {"phone": (COUNT.name,)}, "By the {source}: {reply}"

    def state(self, question, dropped=0):
        return " ".join([question.request, *(turn.observation for turn in question.turns[dropped:])])

    def intention(self, turns):
        return Blank(Call("count", {"number": "9"}), "9") if len(turns) < 2 else None

    def question(self, turns, filled):
        return Call("count", {"number": filled[:1]})

    def supposed(self, turns, call, reply):
        return (*turns, Turn(call, reply, reply))

    def feedback(self, turns):
        return [
            Feedback(t.status, "", f"Not {t.action.arguments['number']}.", 0.0) for t in turns if t.status == "wrong"
        ]

    def impersonal(self, turns):
        return list(turns)

    def hindsight(self, turns):
        return next(((i, turn.action) for i, turn in enumerate(turns) if turn.status == "right"), None)

    def truth(self, question):
        return "right" if question.request.endswith(f" {question.call.arguments['number']}.") else "wrong"

    def cases(self, question):
        return (self.words(question),)

    def general(self, examples):
        return list(examples)

    def words(self, question):
        return f"{question.request} {question.call.arguments['number']}"

    def classifier(self, kind):
        return Table(self)

    def meaning(self, reply):
        return reply

    def anonymise(self, example, rng):
        return example.request, list(example.turns), example.call

    def disguise(self, task_id, rng):
        return lambda text: text

    def examine(self, ask, split, most=None):
        return {}

    def is_dreamt(self, action):
        return False

    def responder(self, task, agreement):
        raise AssertionError("nobody dreams of numbers")


class Guessing(Counting):
    """`Counting` with something to model."""

    knowledge = Known()
