"""TextWorld Commonsense as an environment: the real game, its score in words, its end."""

import re
import shutil

import pytest
from playable import needs_game

from lfo.config import ConfigError, EnvConfig
from lfo.envs import make_environment
from lfo.envs.base import parse_action
from lfo.envs.twc import TwcEnvironment, game
from lfo.envs.twc.episode import DOWN, OPEN, PUT, TAKE, UP, label
from lfo.lab.public_world import solution
from lfo.types import Call, Hangup, Malformed, StopReason


@pytest.fixture(scope="module")
def env() -> TwcEnvironment:
    return make_environment(EnvConfig(name="twc"))


def task_of(env, **wanted):
    return next(t for t in env.tasks("train") if all(getattr(t, name) == value for name, value in wanted.items()))


def put(task, place: str) -> Call:
    return Call(PUT, {"thing": task.thing, "place": place})


def take(task) -> Call:
    return Call(TAKE, {"thing": task.thing})


@needs_game
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_games_own_solution_succeeds_without_looking_around(env, split):
    for task in env.tasks(split)[::40]:
        episode = env.episode(task, 0)
        for call in solution(task):
            assert episode.stop is None
            episode.step(call)
        assert episode.stop is StopReason.SUCCESS and episode.outcome().success and episode.outcome().reward == 1
        assert len(episode.turns) == task.steps - 1 <= episode.max_turns


@needs_game
def test_replies_are_the_games_and_say_where_the_score_went(env):
    task = task_of(env, thing="clean brown shirt")
    episode = env.episode(task, 0)
    assert episode.request.startswith("You are in the bedroom. ") and episode.request.endswith("a clean brown shirt.")
    assert episode.step(take(task)) == "You take the clean brown shirt. The score went up."
    assert episode.step(put(task, "bed")) == "You put the clean brown shirt in the bed. The score went down."
    assert episode.step(take(task)).endswith("The score went up.")
    assert episode.step(Call(OPEN, {"place": "wardrobe"})) == "You open the wardrobe. It's empty inside."
    assert [turn.status for turn in episode.turns] == [UP, DOWN, UP, "same"]
    assert episode.stop is StopReason.MAX_TURNS and not episode.outcome().success and episode.outcome().reward == 0


@needs_game
def test_places_are_numbered_in_order_and_the_number_changes_nothing(env):
    """Of a call only the name counts."""
    for task in env.tasks("train")[::16]:
        request = env.episode(task, 0).request
        told = re.findall(r"\((\d+)\) ([\w ]+?)(?: that is closed|, that has)", request)
        assert told == [(str(i), place) for i, place in enumerate(task.places, start=1)]
        assert re.sub(r"\(\d+\) ", "", request) == game.replay(task.fold, task.seed, ())[1].text
    task = task_of(env, thing="clean brown shirt")
    said = []
    for place in ("bed", label(task.places, "bed"), "(1) bed", " (7)bed "):
        episode = env.episode(task, 0)
        said.append([episode.step(take(task)), episode.step(put(task, place))])
    assert all(one == said[0] for one in said) and label(task.places, "bed") == "(7) bed"


@needs_game
@pytest.mark.parametrize("level", [1, 2])
def test_one_wrong_put_is_one_too_many(env, level):
    """A thing put wrong cannot be put right, neither by opening the right place nor into another one that is open."""
    several = [t for t in env.tasks("train") if t.level == level and len(t.right) > 1][:: 8 if level == 1 else 1]
    for task in [task_of(env, level=level), *several]:
        begun = env.episode(task, 0)
        shut = [p for p in task.places if f") {p} that is closed" in begun.request]
        wrong = next(p for p in task.places if p not in (*task.right, *shut))
        for right in task.right:
            opened = [Call(OPEN, {"place": right})] if right in shut else []
            episode = env.episode(task, 0)
            for call in [take(task), put(task, wrong), take(task), *opened, put(task, right)]:
                if episode.stop is None:
                    episode.step(call)
            assert episode.stop is StopReason.MAX_TURNS and not episode.outcome().success, task
    with pytest.raises(RuntimeError, match="this episode ended"):
        episode.step(take(task))


@needs_game
def test_every_right_place_can_be_reached(env):
    for task in [t for t in env.tasks("train") if len(t.right) > 1][::6]:
        for right in task.right:
            episode = env.episode(task, 0)
            opened = [Call(OPEN, {"place": right})] if f") {right} that is closed" in episode.request else []
            for call in [take(task), *opened, put(task, right)]:
                episode.step(call)
            assert episode.outcome().success


@needs_game
def test_what_the_game_does_not_understand_is_no_call(env):
    """It costs an action, and its answer teaches nobody where things belong: the wardrobe is closed."""
    task = task_of(env, thing="clean brown shirt")
    episode = env.episode(task, 0)
    episode.step(take(task))
    assert episode.step(put(task, "wardrobe")).startswith(game.UNREAD)
    turn = episode.turns[-1]
    assert isinstance(turn.action, Malformed) and turn.status == "error" and not turn.tool
    episode.step(Call(OPEN, {"place": "wardrobe"}))
    episode.step(put(task, "wardrobe"))
    assert episode.stop is StopReason.SUCCESS and episode.outcome().metrics["not_understood"] == 1


@needs_game
@pytest.mark.parametrize(
    "text", ['put<|args|>{"thing": "é\\n\\u0000", "place": "{0} %s"}', "put<|args|>{}", "dance", "x" * 5_000]
)
def test_nothing_that_is_said_raises(env, text):
    episode = env.episode(env.tasks("train")[0], 0)
    assert episode.step(parse_action(text, env.tools))
    assert isinstance(episode.turns[0].action, Malformed)


@needs_game
def test_stopping_and_cutting(env):
    task = env.tasks("test")[0]
    stopped, cut = env.episode(task, 0), env.episode(task, 0)
    assert stopped.step(Hangup()) == "" and stopped.stop is StopReason.AGENT_STOPPED
    cut.cut()
    assert cut.stop is StopReason.TOKEN_BUDGET and not cut.outcome().success


@needs_game
def test_the_same_seed_is_the_same_game_also_in_between_others(env):
    """All episodes share one Java process, which holds one game at a time."""
    first, second = env.tasks("train")[0], env.tasks("test")[5]

    def alone(task):
        episode = env.episode(task, 7)
        return [episode.request, *map(episode.step, solution(task))]

    expected = [alone(first), alone(second)]
    episodes = [env.episode(task, 7) for task in (first, second)]
    mixed = [[episode.request] for episode in episodes]
    for i in range(3):
        for said, episode, task in zip(mixed, episodes, (first, second), strict=True):
            said += [episode.step(call) for call in solution(task)[i : i + 1]]
    assert mixed == expected == [alone(first), alone(second)]


def test_without_java_or_the_package_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(game.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs Java 8 .*: apt-get install default-jre-headless\."):
        game.require_game()
    monkeypatch.setattr(game.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[cpu,twc\]'\."):
        game.require_game()
