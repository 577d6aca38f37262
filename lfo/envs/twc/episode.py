"""One episode of the game: take the thing, open what is closed, put the thing where it belongs.

The game's replies do not carry its score, so it is said in words when the score moves; nothing else is added to them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from lfo.envs.base import Tool, require_open, written
from lfo.envs.twc.game import UNREAD, Seen, replay
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


class TwcEpisode:
    """A single-use episode; see `lfo.protocols.Episode`. It holds nothing: the game is played again at every step.

    max_turns: actions; None: as many as the game's own solution has. That one looks around first, which the request
    does here, so there is one to spare, and two are needed to make good for a thing put wrong.
    play: what is seen before and after the last of some commands, as `replay` says it; None: what the game says.

    Raises (on construction):
        ConfigError: textworld-express or Java is missing.
    """

    def __init__(self, task: TwcTask, max_turns: int | None = None, play: Play | None = None):
        self.task, self.max_turns = task, max_turns or task.steps
        self._replay = play or functools.partial(replay, task.fold, task.seed)
        self.request = self._replay(())[1].text
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        self._commands: list[str] = []  # that the game understood
        self._score = 0.0

    def step(self, action: Action) -> str:
        """Take an action; returns what the agent reads next, "" for nothing. Never raises on what an action says.

        A command that the game does not understand is recorded as malformed: its answer is about words, not the world.

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
        command = " ".join(COMMANDS[call.tool].format(**call.arguments).split())
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


def moved(before: Seen, after: Seen) -> str:
    """What became of the score."""
    return UP if after.score > before.score else DOWN if after.score < before.score else SAME


def said(before: Seen, after: Seen) -> str:
    """A reply as the agent reads it."""
    return after.text + SCORE[moved(before, after)]
