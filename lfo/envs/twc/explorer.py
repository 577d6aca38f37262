"""The exploratory user of made-up rooms, whose transcripts the embedded base of this world is pretrained on.

Room, thing, places and where the thing belongs are drawn anew for every transcript. Their names are put together of
made-up words, of ordinary ones, and of the words of the game's names, never so that one of these comes out. A `Room`
says what the game would say (held against it in tests), so that no Java is needed. The user takes the thing, opens what
is closed, does what a note says, in the note's words, and else chooses any place that is not known to be wrong, by its
number: a small model that has to choose among many names mixes them, and among numbers it does not.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from lfo.envs.shell.explorer import made_up
from lfo.envs.twc.episode import COMMANDS, DOWN, OPEN, PUT, SCORE, TAKE, UP, TwcEpisode, label, unlabelled
from lfo.envs.twc.game import UNREAD, Seen
from lfo.envs.twc.knowledge import BELONGS, IN, TwcKnowledge
from lfo.envs.twc.tasks import TwcTask, all_tasks
from lfo.types import Call, Turn

NOTED, FOLLOWED, MADE_UP = 0.7, 0.9, 0.2  # shares: rooms with notes; those that are followed; those that are wrong
RECALLED = 0.2  # share of the noted whose notes are on earlier attempts
SLIPS = 0.06  # share of the closed places into which a thing is put before they are opened
KINDRED = 0.1  # share of the notes on another thing of that kind, as a table has them
SAID_BY = ("memory", "world model", "truth", "scout")  # who says a note is no matter
RECALL = "earlier attempt"

# Of a room, in turn.
SIGHTS = ("In one part of the room you see", "There is also", "You also see", "In another part of the room you see")
CLOSED, OPEN_TOP, FIXED = " that is closed", ", that has nothing on it", ""  # what a piece of furniture is like
UNCLEAR = f"{UNREAD}: I'm not sure what you mean."

# The game's names, none of which a made-up room has, and their words: what belongs where is in none of them.
NAMES = frozenset(name for task in all_tasks() for name in (task.room, task.thing, *task.places))
GAME_WORDS = tuple(sorted({word for name in NAMES for word in name.split()} - {"of"}))
GAME, ORDINARY, SYLLABLES = 4, 2, 4  # of ten words: of the game's names, ordinary, made up

# Ordinary words, whatever they mean.
QUALITIES = (
    "red green blue yellow white black brown grey pink purple orange golden silver dark pale bright old new big small "
    "tall short wide narrow round flat long thin thick heavy light hard soft warm cold dry wet clean dirty fresh "
    "sweet sour bitter quiet loud quick slow strong weak rich poor plain striped broken empty full wild tame rusty "
    "wooden stone iron paper glass woollen leather rubber spare lost used ripe frozen"
).split()
NOUNS = (
    "anchor apple arrow badge bag ball barrel bean bell bicycle bird board boat bone book bottle bowl branch brick "
    "bridge bucket button cable cage cake camera candle cannon cap card cart castle cat cave chain chalk cheese chest "
    "church circle clock cloth cloud coal coin collar comb compass copper corn cotton crate crown curtain desk dish "
    "dog door drum duck egg engine farm feather fence field file flag flower flute fork fountain fox frame garden gate "
    "goat grain grape grass hammer harbour hat hay hill hook horn horse hut ice ink island jar key kite knife knot "
    "ladder lake lamp leaf lemon letter lid line lock map market mask meadow medal milk mill mirror moon mountain "
    "mouse nail needle nest net nut oar office onion orchard organ paddle page pear pebble pen pepper piano picture "
    "pillar pin pipe plank plate pond post pot potato pump puzzle quarry rack rail ribbon rice ring river road rocket "
    "roof rope rose sack saddle sail salt sand saw scale school seed shed sheep shell ship shirt shop shovel sieve "
    "sign skirt sledge snow soap spade spoon stable stairs stamp star station stool storm stove straw street string "
    "sugar sword table tail tent thread ticket tile tower town toy train tray tree trumpet tub tunnel valley van vase "
    "wagon wall watch water wax well wheel whistle window wing wire wolf wool workshop yard"
).split()


@dataclasses.dataclass(frozen=True)
class Room:
    """A made-up game. furniture: (name, what it is like), in order; right: where the thing belongs."""

    name: str
    furniture: tuple[tuple[str, str], ...]
    thing: str
    right: tuple[str, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """Where something can be put."""
        return tuple(name for name, like in self.furniture if like != FIXED)

    @property
    def closed(self) -> set[str]:
        return {name for name, like in self.furniture if like == CLOSED}

    @property
    def request(self) -> str:
        """What the game says first, before its places are numbered."""
        seen = [f"{'a' if like else _article(name)} {name}{like}" for name, like in self.furniture]
        seen.append(f"{_article(self.thing)} {self.thing}")
        sights = [f" {SIGHTS[i % len(SIGHTS)]} {one}." for i, one in enumerate(seen)]
        return f"{IN}{self.name}.{''.join(sights)}"

    @property
    def task(self) -> TwcTask:
        level = 1 + (self.right[0] in self.closed)
        return TwcTask("made-up", "train", level, 0, self.name, self.thing, self.places, self.right, level + 2)

    def replay(self, commands: Sequence[str]) -> tuple[Seen, Seen]:
        """What is seen before and after the last of these commands; see `lfo.envs.twc.game.replay`."""
        before = after = Seen(self.request, 0.0)
        held, closed = False, self.closed
        into = {COMMANDS[PUT].format(thing=self.thing, place=place): place for place in self.places}
        for command in commands:
            before, text, score = after, UNCLEAR, after.score
            place = into.get(command)
            if command == COMMANDS[TAKE].format(thing=self.thing) and not held:
                held, text, score = True, f"You take the {self.thing}.", 0.5
            elif (shut := command.removeprefix("open ")) != command and shut in closed:
                closed, text = closed - {shut}, f"You open the {shut}. It's empty inside."
            elif place and place not in closed and held:
                held, text, score = False, put_reply(self.thing, place), float(place in self.right)
            after = Seen(text, score)
        return before, after


def _article(name: str) -> str:
    return "an" if name[0] in "aeiou" else "a"


def put_reply(thing: str, place: str) -> str:
    return f"You put the {thing} in the {place}."


# --- what is drawn ---------------------------------------------------------------------------


def draw_room(rng: random.Random) -> Room:
    """A room that was never before, of two to thirteen pieces of furniture, sooner few than many."""
    names, count = [], min(rng.randint(4, 15), rng.randint(4, 15))
    while len(names) < count:
        name = draw_name(rng, names)
        names += [name] if name not in names and name not in NAMES else []
    room, thing, *rest = names
    like = [rng.choices((CLOSED, OPEN_TOP, FIXED), (4, 8, 1))[0] for _ in rest]
    like[:2] = [one or OPEN_TOP for one in like[:2]]  # there are places
    furniture = tuple(zip(rest, like, strict=True))
    places = [name for name, one in furniture if one != FIXED]
    right = rng.sample(places, min(len(places) - 1, rng.choices((1, 2, 3), (7, 2, 1))[0]))
    return Room(room, furniture, thing, tuple(right))


def draw_name(rng: random.Random, others: Sequence[str] = ()) -> str:
    """One to three words, the last one now and then that of another name."""
    last = rng.choice(others).split()[-1] if others and rng.random() < 0.2 else _word(rng, NOUNS)
    words = [_word(rng, QUALITIES + NOUNS) for _ in range(rng.choices((0, 1, 2), (4, 5, 2))[0])]
    return (" of " if words and rng.random() < 0.05 else " ").join([" ".join(words), last]).strip()


def _word(rng: random.Random, ordinary: Sequence[str]) -> str:
    (words,) = rng.choices((GAME_WORDS, ordinary, None), (GAME, ORDINARY, SYLLABLES))
    return rng.choice(words) if words else made_up(rng)


# --- what the user does ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Transcript:
    """An episode that was played. slips: indices of turns that are not to be learned. notes: read after the first turn,
    as they stand between their tags. intentions: after so many of the notes, what is supposed to have been done, and
    where the thing is meant to be put then."""

    room: Room
    turns: tuple[Turn, ...]
    slips: tuple[int, ...]
    notes: tuple[str, ...]
    intentions: tuple[tuple[int, tuple[Turn, ...], str], ...]


@dataclasses.dataclass
class Told:
    """What a user was told: notes, the places that are said to be right and wrong, and what it intended on the way."""

    notes: list[str]
    right: list[str]
    wrong: list[str]
    intentions: list[tuple[int, tuple[Turn, ...], str]]

    def means(self, rng: random.Random, room: Room, tried: Sequence[str] = ()) -> str:
        """Where the thing is put next: where it is said to belong, else by its number any place not known as wrong."""
        told = [place for place in self.right if place not in tried]
        left = [place for place in room.places if place not in (*self.wrong, *tried)]
        return rng.choice(told) if told else label(room.places, rng.choice(left or room.places))


def untold(rng: random.Random, room: Room) -> Told:
    """Nothing was said: the thing is meant to be put anywhere."""
    told = Told([], [], [], [])
    told.intentions.append((0, (), told.means(rng, room)))
    return told


def attempt(rng: random.Random) -> Transcript:
    """A user in a room that was never before, told something or nothing."""
    room = draw_room(rng)
    told = _told(rng, room) if rng.random() < NOTED else untold(rng, room)
    return play(rng, room, told, follows=rng.random() < FOLLOWED)


def play(rng: random.Random, room: Room, told: Told, follows: bool) -> Transcript:
    """One episode of a user who has been told that."""
    episode, slips, tried = TwcEpisode(room.task, room.task.steps, room.replay), [], []
    _take(episode)
    while episode.stop is None:
        said = (told if follows else Told([], [], [], [])).means(rng, room, tried)
        place = unlabelled(said)
        opened = [unlabelled(turn.action.arguments["place"]) for turn in episode.turns if turn.tool == OPEN]
        if place in room.closed and place not in opened:
            if rng.random() < SLIPS:
                slips.append(len(episode.turns))
                _step(episode, put(room, said))
            _step(episode, Call(OPEN, {"place": said}))
        _step(episode, put(room, said))
        tried.append(place)
        _take(episode)
    return Transcript(room, tuple(episode.turns), tuple(slips), tuple(told.notes), tuple(told.intentions))


def _step(episode: TwcEpisode, call: Call) -> None:
    if episode.stop is None:
        episode.step(call)


def _take(episode: TwcEpisode) -> None:
    _step(episode, Call(TAKE, {"thing": episode.task.thing}))


def put(room: Room, place: str) -> Call:
    """The thing of a room put somewhere, as it is said."""
    return Call(PUT, {"thing": room.thing, "place": place})


def _told(rng: random.Random, room: Room) -> Told:
    """Notes on earlier attempts, where the thing belongs, or what would be answered, place by place."""
    if rng.random() < RECALLED:
        return _recalled(rng, room)
    if rng.random() < MADE_UP:
        room = dataclasses.replace(room, right=(rng.choice(room.places),))
    source, knowledge = rng.choice(SAID_BY), TwcKnowledge([room.task])
    if rng.random() < 0.4:
        right = room.right[0]
        note = f"{source}: {BELONGS.format(thing=room.thing, place=right)}"
        return Told([note], [right], [], untold(rng, room).intentions)
    kindred = f"{_word(rng, QUALITIES)} {room.thing.split()[-1]}"
    told, turns = Told([], [], [], []), ()
    for _ in range(min(len(room.places), rng.randint(1, 6))):
        meant = told.means(rng, room)
        told.intentions.append((len(told.notes), turns, meant))
        place = unlabelled(meant)
        status = UP if place in room.right else DOWN
        said = put_reply(kindred if rng.random() < KINDRED else room.thing, place) + SCORE[status]
        told.notes.append(f"{source}: {said}")
        (told.right if status == UP else told.wrong).append(place)
        if status == UP:
            return told
        turns = knowledge.supposed(turns, put(room, meant), said)
    told.intentions.append((len(told.notes), turns, told.means(rng, room)))
    return told


def _recalled(rng: random.Random, room: Room) -> Told:
    """What one to three earlier attempts have to tell, each of which has heard of those before."""
    told = untold(rng, room)
    for _ in range(rng.randint(1, 3)):
        turns = play(rng, room, told, follows=True).turns
        if turns[-1].tool == PUT and turns[-1].status == UP:
            break  # who has succeeded does not try again
        for one in TwcKnowledge([room.task]).feedback(turns):
            note = f"{RECALL}: {one.text}"
            told.notes += [note] if note not in told.notes else []
            told.wrong += [one.about] if one.kind == "wrong_place" else []
    return told


def predicted(rng: random.Random, room: Room) -> tuple[Call, str]:
    """A put anywhere, with the place's number or without, and what is answered to it."""
    place = rng.choice(room.places)
    said = rng.choice((place, label(room.places, place)))
    return put(room, said), put_reply(room.thing, place) + SCORE[UP if place in room.right else DOWN]
