"""What a world model of the game is told before a thing is put somewhere, what it is asked, and what its answers mean.

It is asked what would be answered if the thing in one's hands were put where the policy means to put it. Reads where
things belong in `truth` only, and in `examine`, which asks about it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Hashable, Sequence

from lfo.envs.base import PlainKnowledge
from lfo.envs.twc.episode import DOWN, PUT, SAME, SCORE, UP, label, unlabelled
from lfo.envs.twc.tasks import TwcTask
from lfo.protocols import Answering, Blank, Question
from lfo.types import Call, Example, Feedback, Malformed, Turn

BELONGS = "The {thing} belongs in the {place}."
IN = "You are in the "  # how a request begins, before its room
EXAMINED = 16  # things of a split whose right place, and a wrong one, are asked about
_TAG = re.compile(r"<\|.*?\|>")
_TAKEN = re.compile(r"You take the (.+?)\.")
_PUT = re.compile(r"You put the (.+?) in the (.+?)\.")
_BELONGS = re.compile(r"The (.+?) belongs in the (.+?)\.")


class TwcKnowledge(PlainKnowledge):
    """See `lfo.protocols.Knowledge`. tasks: of all splits."""

    learned = {PUT: (PUT,)}
    hint = "A note ({source}): {reply}"

    def __init__(self, tasks: Sequence[TwcTask]):
        self._tasks = tasks
        self._right = {(task.room, task.thing): task.right for task in tasks}
        self._longest = max((label(task.places, place) for task in tasks for place in task.places), key=len)

    def state(self, question: Question, dropped: int = 0) -> str:
        """The room alone: what is answered to a put depends on nothing that was done before it."""
        return question.request.partition(".")[0] + "."

    # --- what it is asked ---------------------------------------------------------------------

    def intention(self, turns: Sequence[Turn]) -> Blank | None:
        """Where the thing in one's hands is to be put; None while there is none."""
        thing = _held(turns)
        return Blank(_put(thing, self._longest), self._longest) if thing else None

    def question(self, turns: Sequence[Turn], filled: str) -> Call | None:
        """That put; None for a place where it was put before, or none at all."""
        call = _put(_held(turns), filled.partition('"')[0].strip())
        tried = [_pair(turn.action) for turn in turns if turn.tool == PUT]
        return call if call.arguments["place"] and _pair(call) not in tried else None

    def supposed(self, turns: Sequence[Turn], call: Call, reply: str) -> tuple[Turn, ...]:
        """Whoever hears where a thing belongs has put it there; whoever hears that it does not, has it still."""
        what, *where = meaning(reply)
        if what == UP:
            call = _put(*where)
        return (*turns, Turn(call, reply, what))

    def truth(self, question: Question) -> str:
        """Where the thing belongs, by the game's own solution, wherever it would be put."""
        thing = question.call.arguments["thing"]
        room = question.request.partition(".")[0].removeprefix(IN)
        return BELONGS.format(thing=thing, place=self._right[room, thing][0])

    def cases(self, question: Question) -> tuple[Hashable, ...]:
        """Of thing and place, then of the thing's last word and place: all shirts are shirts."""
        if question.call.tool != PUT:
            return ()
        thing, place = _pair(question.call)
        return (thing, place), (thing.rpartition(" ")[2], place, "any")

    def words(self, question: Question) -> str:
        """Thing and place."""
        return " ".join(map(unlabelled, question.call.arguments.values()))

    def feedback(self, turns: Sequence[Turn]) -> list[Feedback]:
        """One record per thing that was put somewhere, and per action that was not understood.

        kind: right_place, wrong_place or malformed_call.
        """
        found = []
        for turn in turns:
            if isinstance(turn.action, Malformed):
                said = _TAG.sub(" ", turn.action.text)  # as the base's recipe has it, without tags
                found.append(Feedback("malformed_call", "", f"Not understood: {said}", 0.0))
            elif turn.tool == PUT:
                right = turn.status == UP
                kind = "right_place" if right else "wrong_place"
                found.append(Feedback(kind, _pair(turn.action)[1], turn.observation, float(right)))
        return found

    def hindsight(self, turns: Sequence[Turn]) -> tuple[int, Call] | None:
        """The put that made the score go up, as it was."""
        return next(((i, t.action) for i, t in enumerate(turns) if t.tool == PUT and t.status == UP), None)

    def meaning(self, reply: str) -> Hashable:
        return meaning(reply)

    # --- what it is taught, and what it knows -------------------------------------------------

    def anonymise(self, example: Example, rng: random.Random) -> tuple[str, list[Turn], Call]:
        """As it is: things have no names of their own."""
        return example.request, list(example.turns), example.call

    def disguise(self, task_id: str, rng: random.Random) -> Callable[[str], str]:
        """Every text as it is."""
        return str

    def examine(self, ask: Answering, split: str, most: int | None = None) -> dict[str, float]:
        """Share of the answers that say rightly whether a thing belongs somewhere: of the first things of a split, one
        place where it does and one where it does not. Also of each of the two alone."""
        tasks = [task for task in self._tasks if task.split == split][:most][:EXAMINED]
        asked = [(task, place) for task in tasks for place in (task.right[0], wrong_place(task))]
        requests = [
            Question(f"{IN}{task.room}.", (), _put(task.thing, label(task.places, place))) for task, place in asked
        ]
        expected = [(UP if place in task.right else DOWN, place) for task, place in asked]
        hits = [meaning(answer)[::2] == right for answer, right in zip(ask(requests), expected, strict=True)]
        right, wrong = hits[::2], hits[1::2]
        return {
            "rule_accuracy": sum(hits) / max(1, len(hits)),
            "rule_accuracy_right": sum(right) / max(1, len(right)),
            "rule_accuracy_wrong": sum(wrong) / max(1, len(wrong)),
            "n": len(hits),
        }


def meaning(reply: str) -> tuple[str, ...]:
    """Whether the score went up, down, or nowhere, and for what where; else the text."""
    if told := _BELONGS.search(reply):
        return UP, *told.groups()
    if done := _PUT.search(reply):
        moved = next((status for status in (UP, DOWN) if SCORE[status] in reply), SAME)
        return moved, *done.groups()
    return "said", reply.strip()


def _put(thing: str, place: str) -> Call:
    return Call(PUT, {"thing": thing, "place": place})


def _pair(put: Call) -> tuple[str, str]:
    """Thing and place, without the place's number."""
    return put.arguments["thing"], unlabelled(put.arguments["place"])


def _held(turns: Sequence[Turn]) -> str:
    """The thing that was taken; "" before, and once it is where it belongs."""
    thing = ""
    for turn in turns:
        if taken := _TAKEN.match(turn.observation):
            thing = taken[1]  # as the game spells it
        elif turn.tool == PUT and turn.status == UP:
            thing = ""
    return thing


def wrong_place(task: TwcTask) -> str:
    """A place of the room where the thing does not belong: the same one whenever it is asked about."""
    places = [place for place in task.places if place not in task.right]
    return random.Random(task.task_id).choice(places)
