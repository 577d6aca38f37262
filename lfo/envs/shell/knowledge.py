"""What a world model of the shell is told before a command, what it is asked, and how its answers are read.

It is asked what a house tool would say that is run with nothing but its name. Reads the hidden conventions in `truth`
only, and in `examine`, which asks about them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Hashable, Sequence

from lfo.envs.base import PlainKnowledge, written
from lfo.envs.shell.episode import BASH, SAID, observed
from lfo.envs.shell.machines import DONE, LOCKED, TOOLS, WHERE, HiddenHouse, refusal
from lfo.envs.shell.records import ShellTask
from lfo.envs.shell.sandbox import Ran
from lfo.protocols import Answering, Blank, Question
from lfo.types import Call, Example, Feedback, Malformed, Turn

_TOOL = re.compile(rf"\b({'|'.join(TOOLS)})\b")
_FLAG = re.compile(r"(--\w+) (\S+?)(?=[,.]?(?:\s|$))")
_LOCKED, _DONE = (text.partition("}")[2].partition("{")[0] for text in (LOCKED, DONE))
_REMEMBERED = 120  # characters of an earlier output in a state
_SOME_TOOL = max(TOOLS, key=len)


class ShellKnowledge(PlainKnowledge):
    """See `lfo.protocols.Knowledge`. tasks: of all splits."""

    learned = {"bash": (BASH,)}
    hint = "A note ({source}), which may be wrong, on what is answered here:\n{reply}"

    def __init__(self, house: HiddenHouse, tasks: Sequence[ShellTask]):
        self._house, self._tasks = house, tasks
        self._machine_of = {task.task_id: task.machine for task in tasks}
        self._names = sorted({task.machine for task in tasks if task.machine and task.split == "train"})

    def state(self, question: Question, dropped: int = 0) -> str:
        """Instruction, round, and the actions so far with the beginnings of what they were answered."""
        done = [f"{written(t.action)[:_REMEMBERED]} ({_short(t.observation)})" for t in question.turns]
        return f"{question.request} Round {len(done) + 1}. Previous Actions: {'; '.join(done[dropped:])}."

    # --- what it is asked ---------------------------------------------------------------------

    def intention(self, turns: Sequence[Turn]) -> Blank | None:
        """The next command; its first words tell which house tool is meant, if one is."""
        return Blank(_run(_SOME_TOOL), _SOME_TOOL)

    def question(self, turns: Sequence[Turn], filled: str) -> Call | None:
        """The house tool that was filled in, with nothing but its name; None for one that was run before."""
        tool = _named(filled)
        return _run(tool) if tool and tool not in map(_tool_of, turns) else None

    def supposed(self, turns: Sequence[Turn], call: Call, reply: str) -> tuple[Turn, ...]:
        """Whoever gives a tool what it asks for is served."""
        done = DONE.format(tool=_named(call.arguments["command"]), file="it")
        return (*turns, Turn(call, observed(Ran(0, done)), "ok"))

    def truth(self, question: Question) -> str:
        """The refusal of the tool on the machine that the instruction names, in the first phrasing."""
        tool, machine = _named(question.call.arguments["command"]), self._house.get(_where(question.request)[0])
        if tool is None or machine is None or tool not in machine.wanted:
            return observed(Ran(127, f"bash: line 1: {tool}: command not found"))
        return observed(Ran(2, refusal(tool, machine.wanted[tool], 0)))

    def cases(self, question: Question) -> tuple[Hashable, ...]:
        """Of machine and tool, then of the machine's kind and tool.

        Only what is run without a flag, and for the first time, is answered with all that is wanted.
        """
        command = question.call.arguments.get("command", "")
        tool, (name, kind) = _named(command), _where(question.request)
        if tool is None or not name or "--" in command or tool in map(_tool_of, question.turns):
            return ()
        return (name, tool), (kind, tool)

    def words(self, question: Question) -> str:
        """Machine, kind and tool."""
        return " ".join([*_where(question.request), _named(question.call.arguments["command"]) or ""])

    def feedback(self, turns: Sequence[Turn]) -> list[Feedback]:
        """One record per house tool that refused, per other command that failed and per action that could not be read.

        kind: refused, failed or malformed_call.
        """
        found = []
        for turn in turns:
            said = turn.observation.removeprefix(SAID).strip()
            if isinstance(turn.action, Malformed):
                found.append(Feedback("malformed_call", "", f"An action could not be read. {turn.action.reason}", 0.0))
            elif (tool := _tool_of(turn)) and meaning(turn.observation)[0] == "refused":
                found.append(Feedback("refused", tool, said, 0.0))
            elif turn.tool == BASH and turn.status == "failed":
                command = turn.action.arguments["command"]
                text = f"{command[:_REMEMBERED]} failed: {said[:_REMEMBERED]}"
                found.append(Feedback("failed", command, text, 0.0))
        return found

    def hindsight(self, turns: Sequence[Turn]) -> tuple[int, Call] | None:
        """The first run of a house tool: as it was where it was served, else with the flags that the refusal named."""
        for i, turn in enumerate(turns):
            if tool := _tool_of(turn):
                said, *rest = meaning(turn.observation)
                words = turn.action.arguments["command"].split()
                if said == "done":
                    return i, turn.action
                if said != "refused" or len(words) < 2:
                    return None
                flags = [f"{flag} {value}" for flag, value in sorted(rest[1])]
                return i, _run(" ".join([tool, *flags, words[-1]]))
        return None

    def meaning(self, reply: str) -> Hashable:
        return meaning(reply)

    # --- what it is taught, and what it knows -------------------------------------------------

    def anonymise(self, example: Example, rng: random.Random) -> tuple[str, list[Turn], Call]:
        """Another machine's name, of the training tasks, in the place of its own: so what is usual for the kind is
        learned beside what is special."""
        return self.disguise(example.task_id, rng)(example.request), list(example.turns), example.call

    def disguise(self, task_id: str, rng: random.Random) -> Callable[[str], str]:
        """Another machine's name; a task without a machine is left as it is."""
        if not (name := self._machine_of[task_id]):
            return str
        own, other = re.compile(rf"\b{re.escape(name)}\b"), rng.choice(self._names)
        return lambda text: own.sub(other, text)

    def examine(self, ask: Answering, split: str, most: int | None = None) -> dict[str, float]:
        """Share of the house tools in a split's tasks of which the answer names exactly what they want.

        Also of those on machines that do as is usual for their kind.
        """
        asked = {
            (task.machine, tool): Question(task.instruction, (), _run(tool))
            for task in [task for task in self._tasks if task.split == split and task.house][:most]
            for tool in task.house
        }
        answers = ask(list(asked.values()))
        hits = {
            place: meaning(answer) == meaning(self.truth(question))
            for (place, question), answer in zip(asked.items(), answers, strict=True)
        }
        typical = [hit for (name, _), hit in hits.items() if self._house[name].variation == "typical"]
        return {
            "rule_accuracy": sum(hits.values()) / max(1, len(hits)),
            "rule_accuracy_typical": sum(typical) / max(1, len(typical)),
            "n": len(hits),
        }


def meaning(reply: str) -> tuple:
    """What a house tool says, whatever the wording: refused, with the flags it wants, locked or done; else the text."""
    tool = _named(reply)
    if tool and _FLAG.search(reply):
        return "refused", tool, frozenset(_FLAG.findall(reply))
    if tool and (_LOCKED in reply or _DONE in reply):
        return "locked" if _LOCKED in reply else "done", tool
    return "said", reply.strip()


def _run(command: str) -> Call:
    return Call(BASH, {"command": command})


def _named(text: str) -> str | None:
    """The first house tool in a text."""
    found = _TOOL.search(text)
    return found and found[1]


def _tool_of(turn: Turn) -> str | None:
    """The house tool that a turn runs."""
    return _named(turn.action.arguments["command"]) if turn.tool == BASH else None


def _where(request: str) -> tuple[str, str]:
    """The machine that an instruction names, and its kind; "" where it names none."""
    found = WHERE.search(request)
    return (found[1] or found[4], found[2] or found[3]) if found else ("", "")


def _short(text: str) -> str:
    """In plain characters."""
    return json.dumps(text[:_REMEMBERED])[1:-1]
