"""The exploratory caller and data/base/recipe.py: what is read of earlier attempts and of notes, and what a base
practises that never reads a note."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

from scripted import NO, YES

from lfo.envs.phone.callers import Oracle, RandomForm, run_scripted
from lfo.envs.phone.episode import PhoneEpisode, Rules
from lfo.envs.phone.explorer import attempt, lesson, throwaway_world
from lfo.envs.phone.phrasings import read_reply
from lfo.envs.phone.tools import FORM, PHONE, form, phone_call, search
from lfo.types import Hangup, Malformed, Turn

recipe = runpy.run_path(str(Path(__file__).resolve().parents[3] / "data" / "base" / "recipe.py"))


def test_lessons_by_hand():
    given = phone_call("800-555-0003", {"account_number": "123456", "email": "ana77@example.com"})
    assert lesson(Turn(given, NO, "auth_failed")) == f'["account_number", "email"] {NO}'
    assert lesson(Turn(phone_call("1"), YES, "success")) == f"[] {YES}"
    declined = Turn(form(["email", "name"]), '{"declined": "no"}', "declined")
    assert lesson(declined) == '["email", "name"] {"declined": "no"}'
    filled = Turn(form(["email"]), '{"email": "ana77@example.com", "unavailable": []}', "ok")
    nothing = [
        filled,
        Turn(search("Harbor Bank"), "{}", "ok"),
        Turn(Hangup(), "", "stopped"),
        Turn(Malformed("x", "no"), "no", "error"),
    ]
    assert [lesson(turn) for turn in nothing] == [""] * 4
    assert lesson(Turn(form(["email"]), '{"refused": "no"}', "refused")) == ""


def test_no_lesson_carries_a_personal_value(world):
    """Whatever the user gave: which fields were handed over stands in a lesson, their values do not."""
    lessons, values = 0, 0
    for i, task in enumerate(world.tasks[::10]):
        episode = PhoneEpisode(world, task, Rules(slack=9), i)
        run_scripted(episode, (Oracle, RandomForm)[i % 2](episode, world, random.Random(i)))
        for turn in episode.turns:
            said = lesson(turn)
            assert not [v for v in (*episode.collected.values(), *episode._user.truth.values()) if v in said]
            assert bool(said) == (turn.tool == PHONE or turn.status == "declined")
            lessons += bool(said)
            values += bool(said) and len(episode.collected)
    assert lessons > 80 and values > 200


def test_who_follows_notes_asks_for_what_they_name():
    """Notes are read once the company was looked up, and most forms ask for no field that none of them names."""
    rng, named, others = random.Random(1), [], []
    throwaway = throwaway_world(rng, tasks=24)
    for task in throwaway.tasks * 4:
        transcript = attempt(throwaway, task, rng, noted=1.0)
        turns = transcript.episode.turns
        assert turns[0].tool == "search_company" and transcript.listed
        recalls = not transcript.notes or transcript.notes[0].startswith("earlier attempt")  # or succeeded at once
        if recalls or len(turns) < 2 or turns[1].tool != FORM:
            continue
        said = set().union(*(read_reply(note.partition(": ")[2])[1] for note in transcript.notes))
        asked = set(turns[1].action.arguments["fields"])
        named.append(asked <= said)
        others.append(len(said))
    assert len(named) > 40 and sum(named) > 0.75 * len(named) and max(others) < 10


def test_a_base_without_notes_practises_whom_to_call_next_all_the_same():
    """Once for each call that is supposed; no document has a note."""
    rng, asked = random.Random(3), []
    throwaway = throwaway_world(rng, tasks=24)
    for task in throwaway.tasks:
        transcript = attempt(throwaway, task, rng, 0)
        documents = [recipe["segments"](transcript), *recipe["intentions"](transcript)]
        texts = ["".join(text for text, _ in document) for document in documents]
        assert not any("<|note|>" in text for text in texts)
        supposed = [text.count("<|tool|>") for text in texts[1:]]
        assert len(set(supposed)) == len(supposed)
        asked.append(len(transcript.intentions))
    assert max(asked) > 1
