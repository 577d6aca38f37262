"""The exploratory user of made-up rooms: they say what the game says, and hide nothing that the game hides."""

from __future__ import annotations

import random
import re

import pytest
from playable import needs_game

from lfo.envs.base import written
from lfo.envs.twc import explorer, game
from lfo.envs.twc.episode import DOWN, OPEN, PUT, TAKE, UP, label, unlabelled
from lfo.envs.twc.knowledge import TwcKnowledge, meaning
from lfo.envs.twc.tasks import TwcTask, all_tasks
from lfo.types import Call, Malformed

SIGHT = re.compile(rf"(?:{'|'.join(explorer.SIGHTS)}) an? (.+?)(|{explorer.CLOSED}|{explorer.OPEN_TOP})\.")


@pytest.fixture(scope="module")
def transcripts():
    rng = random.Random(0)
    return [explorer.attempt(rng) for _ in range(1500)]


def as_room(task: TwcTask, request: str) -> explorer.Room:
    """A room of the game, as it is read."""
    *furniture, _ = SIGHT.findall(request)
    return explorer.Room(task.room, tuple(furniture), task.thing, task.right)


@needs_game
def test_a_room_says_what_the_game_says():
    """The request of every eighth game, and what is answered to commands that make sense and to others."""
    rng = random.Random(0)
    for task in all_tasks()[::8]:
        _, begun = game.replay(task.fold, task.seed, ())
        room = as_room(task, begun.text)
        assert room.request == begun.text and room.places == task.places
        assert (room.task.level, room.task.steps) == (task.level, task.steps)
        some = [*rng.sample(task.places, min(3, len(task.places))), task.right[0], room.furniture[0][0], "moon"]
        commands = [f"take {task.thing}", *(f"{do} {name}" for do in ("open", "take") for name in some)]
        commands = [*commands, *(f"put {task.thing} in {name}" for name in some), *commands]
        order = [f"put {task.thing} in {some[0]}", *rng.sample(commands, len(commands))]
        over = next(i for i in range(1, len(order) + 1) if i == len(order) or room.replay(order[:i])[1].score == 1)
        for i in (1, over // 2, over):
            assert room.replay(order[:i]) == game.replay(task.fold, task.seed, order[:i]), order[:i]


def test_rooms_are_new_and_what_belongs_where_is_chance(transcripts):
    rooms = [transcript.room for transcript in transcripts]
    assert len({room.request for room in rooms}) == len(rooms)
    ours = {name for room in rooms for name in (room.name, room.thing, *dict(room.furniture))}
    games = {name for task in all_tasks() for name in (task.room, task.thing, *task.places)}
    assert not games & ours
    words = {word for name in games for word in name.split()}
    assert words <= {word for name in ours for word in name.split()}
    assert all(set(room.right) < set(room.places) and len(room.right) <= 3 for room in rooms)
    first = sum(room.right[0] == room.places[0] for room in rooms) / len(rooms)
    assert first == pytest.approx(sum(1 / len(room.places) for room in rooms) / len(rooms), abs=0.04)


def succeeded(transcript: explorer.Transcript) -> bool:
    return transcript.turns[-1].tool == PUT and transcript.turns[-1].status == UP


def test_who_is_told_nothing_succeeds_by_chance(transcripts):
    alone = [transcript for transcript in transcripts if not transcript.notes]
    chance = sum(len(one.room.right) / len(one.room.places) for one in alone) / len(alone)
    assert sum(map(succeeded, alone)) / len(alone) == pytest.approx(chance, abs=0.05)


def test_right_notes_are_followed_and_wrong_ones_too(transcripts):
    told = [t for t in transcripts if t.notes and meaning(t.notes[-1])[0] == UP]
    named = [meaning(transcript.notes[-1])[2] for transcript in told]
    first = [next(t.action for t in one.turns if written(t.action).startswith(PUT)) for one in told]
    there = sum(f'"place": "{place}"}}' in written(put) for put, place in zip(first, named, strict=True)) / len(told)
    assert 0.85 < there < 0.97
    wrong = sum(place not in one.room.right for place, one in zip(named, told, strict=True)) / len(told)
    assert 0.05 < wrong < 0.25


def test_the_user_takes_opens_what_is_closed_and_puts(transcripts):
    for one in transcripts:
        assert one.turns[0].action == Call(TAKE, {"thing": one.room.thing})
        for i, turn in enumerate(one.turns):
            assert isinstance(turn.action, Malformed) == (i in one.slips)
            assert turn.tool != OPEN or unlabelled(turn.action.arguments["place"]) in one.room.closed
        assert len(one.turns) == one.room.task.steps or succeeded(one)
    assert 20 < sum(len(one.slips) for one in transcripts) < 100


def test_what_is_meant_next_is_what_a_policy_would_be_asked(transcripts):
    """After what is supposed, there is still something in hand, and what was said to be wrong is not meant again."""
    seen = set()
    for one in transcripts:
        knowledge = TwcKnowledge([one.room.task])
        for read, supposed, place in one.intentions:
            assert knowledge.intention((one.turns[0], *supposed)).call.arguments["thing"] == one.room.thing
            said = [unlabelled(turn.action.arguments["place"]) for turn in supposed]
            assert read == len(said) and unlabelled(place) in one.room.places
            assert unlabelled(place) not in said or len(set(said)) == len(one.room.places)
            seen.add(read)
    assert seen >= set(range(6))


def test_who_is_told_says_the_name_and_who_chooses_the_number_first(transcripts):
    for one in transcripts:
        for turn in (turn for turn in one.turns if turn.tool == PUT):
            said = turn.action.arguments["place"]
            if not any(meaning(note)[0] == UP for note in one.notes):
                assert said == label(one.room.places, unlabelled(said))


def test_who_is_told_nothing_chooses_any_place_alike(transcripts):
    alone = [one for one in transcripts if not one.notes]
    first = sum(unlabelled(one.intentions[0][2]) == one.room.places[0] for one in alone) / len(alone)
    last = sum(unlabelled(one.intentions[0][2]) == one.room.places[-1] for one in alone) / len(alone)
    chance = sum(1 / len(one.room.places) for one in alone) / len(alone)
    assert first == pytest.approx(chance, abs=0.05) and last == pytest.approx(chance, abs=0.05)


def test_a_world_model_hears_mostly_that_it_is_wrong():
    rng = random.Random(1)
    said = [meaning(explorer.predicted(rng, explorer.draw_room(rng))[1])[0] for _ in range(1000)]
    assert set(said) == {UP, DOWN} and 0.2 < said.count(UP) / len(said) < 0.45
