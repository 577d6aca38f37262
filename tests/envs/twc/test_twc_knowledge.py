"""What a world model of the game is told and asked; memory and truth say notes there as in any world."""

import random

import pytest
from playable import needs_game
from scripted import Scripted

from lfo.config import ConfigError, EnvConfig, RolloutConfig, WorldModelConfig
from lfo.couplings import Memory, Truth
from lfo.envs.base import written
from lfo.envs.twc import make
from lfo.envs.twc.episode import DOWN, OPEN, PUT, TAKE, UP, unlabelled
from lfo.envs.twc.knowledge import TwcKnowledge, meaning
from lfo.envs.twc.tasks import all_tasks
from lfo.lab.public_world import solution
from lfo.rollout.play import play
from lfo.runs import RunFolder
from lfo.text.base import load_tokenizer
from lfo.text.codec import Codec
from lfo.train import train
from lfo.types import Attempt, Call, Example, Feedback, Malformed, Question, Turn

SHIRT, ROOM = "clean brown shirt", "You are in the bedroom. There is a bed."
GOOD = f"You put the {SHIRT} in the wardrobe. The score went up."
BAD = f"You put the {SHIRT} in the bed. The score went down."


def put(place: str, thing: str = SHIRT) -> Call:
    return Call(PUT, {"thing": thing, "place": place})


TAKEN = Turn(Call(TAKE, {"thing": SHIRT}), f"You take the {SHIRT}. The score went up.", UP)


@pytest.fixture(scope="module")
def knowledge() -> TwcKnowledge:
    return TwcKnowledge(all_tasks())


def test_meanings():
    assert meaning(GOOD) == meaning(f"The {SHIRT} belongs in the wardrobe.") == (UP, SHIRT, "wardrobe")
    assert meaning(BAD) == (DOWN, SHIRT, "bed")
    assert meaning("You open the wardrobe. ") == ("said", "You open the wardrobe.")


def test_it_asks_where_the_thing_in_hand_is_to_be_put(knowledge):
    assert knowledge.intention(()) is None
    blank = knowledge.intention((TAKEN,))
    assert written(blank.call).partition(blank.value)[0] == f'put<|args|>{{"thing": "{SHIRT}", "place": "'
    assert knowledge.question((TAKEN,), '(7) bed"}<|end|>') == put("(7) bed")
    assert knowledge.question((TAKEN,), '"}') is None


def test_who_hears_that_it_is_wrong_is_asked_again_and_not_about_the_same(knowledge):
    turns = knowledge.supposed((TAKEN,), put("bed"), BAD)
    assert turns[-1] == Turn(put("bed"), BAD, DOWN) and knowledge.intention(turns)
    assert (
        knowledge.question(turns, 'bed"}') is None
        and knowledge.question(turns, '(7) bed"}') is None
        and knowledge.question(turns, "wardrobe") == put("wardrobe")
    )
    told = knowledge.supposed((TAKEN,), put("bed"), f"The {SHIRT} belongs in the wardrobe.")
    assert told[-1].action == put("wardrobe") and knowledge.intention(told) is None
    assert knowledge.intention(knowledge.supposed((TAKEN,), put("bed"), "what?")) is not None


def test_the_truth_is_what_makes_the_score_go_up(knowledge):
    for task in all_tasks():
        question = Question(f"You are in the {task.room}. Here.", (TAKEN,), put("moon", task.thing))
        assert meaning(knowledge.truth(question)) == (UP, task.thing, task.right[0])


def test_a_put_is_a_case_of_thing_and_place_then_of_its_kind(knowledge):
    one, other = (Question(ROOM, (), put("bed", thing)) for thing in (SHIRT, "dirty white shirt"))
    assert knowledge.cases(one)[0] != knowledge.cases(other)[0] and knowledge.cases(one)[1] == knowledge.cases(other)[1]
    assert knowledge.cases(Question(ROOM, (), TAKEN.action)) == ()
    assert knowledge.cases(Question(ROOM, (), put("(7) bed"))) == knowledge.cases(one)
    assert knowledge.words(one) == f"{SHIRT} bed"


def test_the_world_model_reads_the_room_and_nothing_that_was_done(knowledge):
    bare, later = Question(ROOM, (), put("bed")), Question(ROOM, (TAKEN,), put("bed"))
    assert knowledge.state(bare) == knowledge.state(later) == "You are in the bedroom."


def test_an_attempt_tells_the_next_one_what_became_of_the_score(knowledge):
    odd = Turn(Malformed("put<|args|>it", "Unknown action"), "Unknown action", "error")
    right, wrong = Turn(put("wardrobe"), GOOD, UP), Turn(put("bed"), BAD, DOWN)
    assert knowledge.feedback([TAKEN, wrong, odd, right]) == [
        Feedback("wrong_place", "bed", BAD, 0.0),
        Feedback("malformed_call", "", "Not understood: put it", 0.0),
        Feedback("right_place", "wardrobe", GOOD, 1.0),
    ]
    assert knowledge.hindsight([TAKEN, wrong, right]) == (2, put("wardrobe"))
    assert knowledge.hindsight([TAKEN, wrong]) is None and knowledge.impersonal([wrong]) == [wrong]


def test_the_examination_is_passed_by_who_knows(knowledge):
    right = {(task.thing, place) for task in all_tasks() for place in task.right}

    def knows(question):
        thing, place = map(unlabelled, question.call.arguments.values())
        return f"You put the {thing} in the {place}. The score went {'up' if (thing, place) in right else 'down'}."

    for split in ("train", "validation", "test"):
        told = knowledge.examine(lambda questions: list(map(knows, questions)), split)
        assert told == {"rule_accuracy": 1, "rule_accuracy_right": 1, "rule_accuracy_wrong": 1, "n": 32}
        silent = knowledge.examine(lambda questions: [""] * len(questions), split)
        assert silent["rule_accuracy"] == 0
        assert knowledge.examine(lambda questions: [""] * len(questions), split, 3)["n"] == 6


def test_nobody_dreams_or_is_classified_here(knowledge):
    with pytest.raises(ConfigError, match=r"set world_model\.recall to table"):
        knowledge.classifier("linear")
    with pytest.raises(ConfigError, match="dreams"):
        knowledge.responder(all_tasks()[0], 1.0)
    assert not knowledge.is_dreamt(put("bed"))
    assert knowledge.disguise("train-0", random.Random(0))(GOOD) == GOOD


# --- in the loop -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twc_codec(base_path) -> Codec:
    return Codec(load_tokenizer(base_path), make(EnvConfig(name="twc")))


def heard(codec, task, place: str, reply: str) -> Example:
    call = put(place, task.thing)
    encoded = codec.encoded(Question(ROOM, (), call), reply)
    return Example(task.task_id, call, reply, UP, encoded, ROOM, ())


@needs_game
@pytest.mark.parametrize("who", ["truth", "memory"])
def test_notes_are_set_once_the_thing_is_taken(twc_codec, who):
    """The policy means the wrong place, is told so or where it belongs, and puts it there."""
    task = next(t for t in all_tasks() if t.thing == SHIRT)
    coupling = Truth(twc_codec) if who == "truth" else Memory(WorldModelConfig(coupling="memory"), twc_codec)
    coupling_heard = [heard(twc_codec, task, "bed", BAD), heard(twc_codec, task, "wardrobe", GOOD)]
    coupling.hear(coupling_heard)

    def says(text, prompt):
        if prompt.session is None:  # asked for its intention
            return 'wardrobe"}' if BAD in text else 'bed"}'
        return written(solution(task)[min(text.count("<|obs|>"), 2)])

    engine = Scripted(twc_codec, says)
    [row] = play(engine, twc_codec, [[[Attempt(task, 0, 0)]]], coupling, RolloutConfig(), 0, "put")
    text = twc_codec.decode(row.tokens)
    notes = [f"<|note|>truth: The {SHIRT} belongs in the wardrobe.<|/note|>"]
    if who == "memory":
        notes = [f"<|note|>memory: {said}<|/note|>" for said in (BAD, GOOD)]
    assert row.success and "".join(notes) in text and text.count("<|note|>") == len(notes)
    assert [example.reply for example in row.examples] == [GOOD]


@needs_game
def test_the_loop_runs_in_the_game(make_config, tmp_path):
    settings = {"env.name": "twc", "env.levels": (1, 2), "world_model.coupling": "imagine", "world_model.predict": PUT}
    config = make_config(**settings, **{"eval_splits": ("train", "test"), "rollout.max_tokens": 500})
    run = RunFolder(train(config, tmp_path / "run", progress=False))
    rows = run.metrics()
    assert run.newest()["tasks"] == 4
    assert {row["split"] for row in rows if row["kind"] == "success"} == {"train", "test"}
    assert {row["n"] for row in rows if row["kind"] == "rules"} == {2}  # the one task, two places
    assert OPEN in make(config.env).tools
