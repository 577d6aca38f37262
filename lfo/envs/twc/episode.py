"""One episode of the game: take the thing, open what is closed, put the thing where it belongs.

The game's replies do not carry its score, so it is said in words when the score moves; nothing else is added to them.
What it says first has its places numbered, so that whoever knows nothing can choose any of them alike.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence

from lfo.envs.base import Tool, require_open, written
from lfo.envs.twc.game import FURNITURE, UNREAD, Seen, replay
from lfo.envs.twc.tasks import TwcTask
from lfo.types import Action, Call, Hangup, Malformed, Outcome, StopReason, Turn

TAKE, OPEN, PUT = "take", "open", "put"
_NAME = {"type": "string"}
TOOLS = {
    TAKE: Tool(TAKE, "WRITE", "Take a thing.", {"thing": _NAME}),
    OPEN: Tool(OPEN, "WRITE", "Open what is closed.", {"place": _NAME}),
    PUT: Tool(PUT, "WRITE", "Put a thing where it belongs.", {"thing": _NAME, "place": _NAME}),
}
COMMANDS = {TAKE: "take {thing}", OPEN: "open {place}", PUT: "put {thing} in {place}"}
UP, DOWN, SAME = "up", "down", "same"  # statuses: what became of the score
SCORE = {UP: " The score went up.", DOWN: " The score went down.", SAME: ""}
Play = Callable[[Sequence[str]], tuple[Seen, Seen]]
_NUMBER = re.compile(r"^\s*\(\d+\)")


class TwcEpisode:
    """A single-use episode; see `lfo.protocols.Episode`. It holds nothing: the game is played again at every step.

    max_turns: actions; None: so many that a thing put wrong cannot be put right, see `limit`.
    play: what is seen before and after the last of some commands, as `replay` says it; None: what the game says.

    Raises (on construction):
        ConfigError: textworld-express or Java is missing.
    """

    def __init__(self, task: TwcTask, max_turns: int | None = None, play: Play | None = None):
        self.task = task
        self._replay = play or functools.partial(replay, task.fold, task.seed)
        self.request = with_numbers(self._replay(())[1].text)
        self.max_turns = max_turns or limit(task, self.request)
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        self._commands: list[str] = []  # that the game understood
        self._score = 0.0

    def step(self, action: Action) -> str:
        """Take an action; returns what the agent reads next, "" for nothing. Never raises on what an action says.

        A place is named with its number or without, and only the name counts. A command that the game does not
        understand is recorded as malformed: its answer is about words, not the world.

        Raises:
            RuntimeError: the episode is over.
        """
        require_open(self.stop)
        if isinstance(action, Call):
            action, observation, status = self._play(action)
        elif isinstance(action, Malformed):
            observation, status = action.reason, "error"
        else:
            observation, status, self.stop = "", "stopped", StopReason.AGENT_STOPPED
        self.turns.append(Turn(action, observation, status))
        if self._score == 1:
            self.stop = StopReason.SUCCESS
        if self.stop is None and len(self.turns) >= self.max_turns:
            self.stop = StopReason.MAX_TURNS
        return observation

    def _play(self, call: Call) -> tuple[Call | Malformed, str, str]:
        named = {name: unlabelled(value) for name, value in call.arguments.items()}
        command = " ".join(COMMANDS[call.tool].format(**named).split())
        before, after = self._replay([*self._commands, command])
        if after.text.startswith(UNREAD):
            return Malformed(written(call), after.text), after.text, "error"
        self._commands.append(command)
        self._score = after.score
        return call, said(before, after), moved(before, after)

    def cut(self) -> None:
        """End the episode because its token budget is used up; one that is over keeps its reason."""
        self.stop = self.stop or StopReason.TOKEN_BUDGET

    def outcome(self) -> Outcome:
        """success: the thing is where it belongs. reward: 1 or 0. calls_per_task: puts that the game understood."""
        unread = sum(isinstance(turn.action, Hangup | Malformed) for turn in self.turns)
        puts = sum(turn.tool == PUT for turn in self.turns)
        metrics = {"actions": len(self.turns), "calls_per_task": puts, "not_understood": unread}
        return Outcome(self._score == 1, float(self._score == 1), {k: float(v) for k, v in metrics.items()})

    def close(self) -> None:
        """Nothing to give back."""


def limit(task: TwcTask, request: str) -> int:
    """Actions after which one wrong put has failed: as many as the game's own solution has.

    That one looks around first, which the request does here, so there is one to spare, and two are needed to make good
    for a thing put wrong. Where the solution opens a place, and the thing belongs in an open one as well, the spare one
    would do: there it is left out.
    """
    somewhere_open = any(f") {place} that is closed" not in request for place in task.right)
    return task.steps - (task.level == 2 and somewhere_open)


def with_numbers(text: str) -> str:
    """What the game says first, with a number before each place: "a (2) wardrobe that is closed"."""
    numbers = itertools.count(1)
    return FURNITURE.sub(lambda found: f"a ({next(numbers)}) {found[1]}{found[2]}.", text)


def label(places: Sequence[str], place: str) -> str:
    """One of a room's places, with its number."""
    return f"({places.index(place) + 1}) {place}"


def unlabelled(place: str) -> str:
    """A place without its number, if it has one."""
    return _NUMBER.sub("", place).strip()


def moved(before: Seen, after: Seen) -> str:
    """What became of the score."""
    return UP if after.score > before.score else DOWN if after.score < before.score else SAME


def said(before: Seen, after: Seen) -> str:
    """A reply as the agent reads it."""
    return after.text + SCORE[moved(before, after)]
