"""One episode at a shell: rounds of bash in a sandbox, and an evaluation however it ended.

The protocol is that of the public os_interaction sets (LifelongAgentBench, arXiv 2505.11942; AgentBench, arXiv
2308.03688): rules, then the instruction; an action is bash or finish; anything else ends the episode as a validation
failure. An action is a call of a tool here as everywhere in lfo, `bash` with one string and `finish` with nothing. So
one parser serves both dialects: `tags` writes the call, `chat` writes it as a tool call or, as those sets do, as text,
``Act: bash`` with fenced blocks (`lfo.envs.base.from_chat`).
"""

from __future__ import annotations

import contextlib
import random

from lfo.config import Positive, settings
from lfo.envs.base import Tool, require_open
from lfo.envs.shell.machines import REFUSALS, Desk, HiddenHouse
from lfo.envs.shell.records import ShellTask
from lfo.envs.shell.sandbox import Ran, Sandbox, require_system
from lfo.envs.shell.systems import AS_USUAL, Limits, SandboxError
from lfo.types import Action, Call, Hangup, Malformed, Outcome, StopReason, Turn

BASH, FINISH = "bash", "finish"
TOOLS = {
    BASH: Tool(BASH, "WRITE", "Run bash commands; their output is read next.", {"command": {"type": "string"}}),
    FINISH: Tool(FINISH, "WRITE", "Say that the task is done.", {}),
}
EMPTY = "The output of the OS is empty."
SAID = "The output of the OS:\n"
CUT = "\n[The output is too long and is cut here.]"
LATE = "\nThe command took longer than {seconds:g} s and was ended."
LOST = "The OS does not answer any more."
MEANT = ("correct", "incorrect", "unknown")


@settings
class Rules:
    """What holds in every episode."""

    max_round: Positive = 5  # actions
    output: Positive = 800  # characters of a command's output that are read
    rewards: tuple[float, float, float] = (1.0, -0.5, 0.0)  # of a correct, an incorrect and an unknown end


AS_DECIDED = Rules()


class ShellEpisode:
    """A single-use episode; see `lfo.protocols.Episode`. Its sandbox is made at the first command.

    held_out_phrasing: the instruction, and what house tools refuse with, in words that training never has.

    Raises (on construction):
        SandboxError: there can be no sandbox here.
    """

    def __init__(
        self,
        task: ShellTask,
        house: HiddenHouse,
        rules: Rules = AS_DECIDED,
        seed: int = 0,
        held_out_phrasing: bool = False,
        limits: Limits = AS_USUAL,
        sandbox: str = "",
    ):
        require_system(sandbox)
        self.task, self.rules, self.limits, self.sandbox = task, rules, limits, sandbox
        self.request = task.rephrased if held_out_phrasing else task.instruction
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        heard = random.Random(f"{seed}/{task.task_id}").randrange(len(REFUSALS) - 1)
        self._desk = Desk(house, task.machine, -1 if held_out_phrasing else heard) if task.machine else None
        self._box: Sandbox | None = None
        self._end: str | None = None  # of MEANT, once it is evaluated

    def step(self, action: Action) -> str:
        """Take an action; returns what the agent reads next, "" for nothing. Never raises on what an action says.

        Raises:
            RuntimeError: the episode is over.
        """
        require_open(self.stop)
        if isinstance(action, Hangup):
            status, observation, self.stop = "stopped", "", StopReason.AGENT_STOPPED
        elif isinstance(action, Malformed):
            status, observation, self.stop = "error", action.reason, StopReason.MALFORMED
        elif action.tool == FINISH:
            done = self._evaluated() == "correct"
            status, observation, self.stop = "finished", "", StopReason.SUCCESS if done else StopReason.AGENT_STOPPED
        else:
            status, observation = self._run(action)
        self.turns.append(Turn(action, observation, status))
        if self.stop is None and len(self.turns) >= self.rules.max_round:
            self.stop = StopReason.MAX_TURNS
        return observation

    def _run(self, call: Call) -> tuple[str, str]:
        try:
            ran = self._machine().run(call.arguments["command"])
        except SandboxError:
            return "lost", LOST
        return "ended" if ran.ended else "ok" if ran.status == 0 else "failed", observed(ran, self.rules, self.limits)

    def _machine(self) -> Sandbox:
        """The sandbox, as the task's initialization leaves it."""
        if self._box is None:
            self._box = Sandbox(self.limits, self._desk.tools if self._desk else (), self._desk, self.sandbox)
            made = self._box.run(self.task.initialization)
            if made.status != 0:
                self._box.close()
        return self._box

    def _evaluated(self) -> str:
        """Which of MEANT it is: the evaluation exits with 0, with something else, or cannot be run."""
        if self._end is None:
            self._end = "unknown"
            with contextlib.suppress(SandboxError):
                ran = self._machine().run(self.task.evaluation)
                self._end = "unknown" if ran.ended else "correct" if ran.status == 0 else "incorrect"
        return self._end

    def cut(self) -> None:
        """End the episode because its token budget is used up; one that is over keeps its reason."""
        self.stop = self.stop or StopReason.TOKEN_BUDGET

    def outcome(self) -> Outcome:
        """success: the evaluation passes. reward: by `Rules.rewards`."""
        end = self._evaluated()
        metrics = {name: float(name == end) for name in MEANT} | {
            "rounds": float(len(self.turns)),
            "validation_failure": float(any(isinstance(turn.action, Hangup | Malformed) for turn in self.turns)),
        }
        return Outcome(end == "correct", self.rules.rewards[MEANT.index(end)], metrics)

    def close(self) -> None:
        """End its sandbox, and whatever is running in it."""
        if self._box is not None:
            self._box.close()


def observed(ran: Ran, rules: Rules = AS_DECIDED, limits: Limits = AS_USUAL) -> str:
    """A command's output as the agent reads it; tags that end messages (``<|/obs|>``, ``<|im_end|>``) are broken up."""
    said = ran.output.rstrip("\n").replace("<|", "< |")
    cut = len(said) > rules.output or ran.ended == "output"
    late = LATE.format(seconds=limits.seconds) if ran.ended == "time" else ""
    return (f"{SAID}{said[: rules.output]}{CUT if cut else ''}" if said else EMPTY) + late
