"""A Gymnasium environment, the example of docs/integrations.md, goes through rollout, learning and evaluation."""

from __future__ import annotations

import gymnasium
import pytest
from safetensors.torch import load_file
from scripted import Scripted, by_turn
from test_docs import members, shown

from lfo.config import RolloutConfig
from lfo.couplings.plain import ALONE, Plain
from lfo.envs.adapters import gym
from lfo.envs.adapters.gym import GymEnvironment, GymEpisode
from lfo.envs.base import parse_action, written
from lfo.lab.player import load_player
from lfo.protocols import Environment, Episode
from lfo.rollout.play import play
from lfo.runs import RunFolder
from lfo.text.base import load_tokenizer
from lfo.text.codec import Codec
from lfo.train import train
from lfo.types import Attempt, Hangup, Malformed, Outcome, StopReason

EVEN, ODD = "Say something of even length.", "Say something of odd length."


@pytest.fixture(scope="module")
def names() -> dict:
    return shown("integrations.md", "class Parity")


@pytest.fixture(scope="module")
def parity(names) -> GymEnvironment:
    return names["parity"]


def act(text: str) -> str:
    return f'act<|args|>{{"action": "{text}"}}'


def begin(env: GymEnvironment, request: str) -> GymEpisode:
    """An episode of the first task with this request."""
    return next(e for e in (env.episode(task, 0) for task in env.tasks("train")) if e.request == request)


def said(episode: GymEpisode, *texts: str) -> list[str]:
    return [episode.step(parse_action(text, GymEnvironment.tools)) for text in texts]


def test_it_is_an_environment(parity):
    assert members(Environment) <= set(dir(parity))
    assert members(Episode) <= set(dir(begin(parity, EVEN)))


def test_a_task_is_a_seed(parity):
    tasks = parity.tasks("test")
    assert [(task.task_id, task.level, task.seed) for task in tasks[:2]] == [("test-200", 1, 200), ("test-201", 1, 201)]
    assert len(tasks) == 40 and parity.tasks("none") == []
    requests = [parity.episode(task, 0).request for task in tasks]
    assert set(requests) == {EVEN, ODD} and requests == [parity.episode(task, 1).request for task in tasks]


def test_episodes_are_won_lost_and_given_up(parity):
    episode = begin(parity, EVEN)
    assert said(episode, act("odd"), act("even")) == ["Wrong.", "Right."]
    assert episode.stop is StopReason.SUCCESS and episode.outcome() == Outcome(True, 1.0)
    with pytest.raises(RuntimeError, match=r"this episode ended \(success\)"):
        episode.step(Hangup())
    episode = begin(parity, ODD)
    assert said(episode, act("even"), act("even")) == ["Wrong.", "Wrong."]
    assert episode.stop is StopReason.MAX_TURNS and episode.outcome() == Outcome(False, 0.0)
    episode = begin(parity, ODD)
    assert said(episode, "") == [""]
    assert episode.stop is StopReason.AGENT_STOPPED and [turn.status for turn in episode.turns] == ["stopped"]
    episode = begin(parity, ODD)
    episode.cut()
    assert episode.stop is StopReason.TOKEN_BUDGET and not episode.outcome().success


def test_what_is_no_action_reaches_nobody(parity):
    episode = begin(parity, ODD)
    heard = said(episode, "shout", act("é"), act("x" * 81), act(""), act("yes"))
    assert heard[0].startswith("A call needs") and heard[-1] == "Right."
    assert len(set(heard[1:4])) == 1 and heard[1].startswith("This is no action here")
    assert [turn.status for turn in episode.turns] == ["error"] * 4 + ["ok"]
    assert isinstance(episode.turns[0].action, Malformed) and episode.outcome().success


class Scored(gymnasium.Env):
    """Ends with the third action; each is worth half a point if it says so."""

    observation_space = action_space = gymnasium.spaces.Text(10)
    open = 0

    def reset(self, *, seed=None, options=None):
        self.steps, Scored.open = 0, Scored.open + 1
        return "Go.", {}

    def step(self, action):
        self.steps += 1
        return "Next.", 0.5 * (action == "half"), self.steps == 3, False, {}

    def close(self):
        Scored.open -= 1


@pytest.mark.parametrize(
    ("texts", "stop", "outcome"),
    [
        (["half", "no", "half"], StopReason.SUCCESS, Outcome(True, 1.0)),
        (["half", "no", "no"], StopReason.AGENT_STOPPED, Outcome(False, 0.5)),
        (["half", "half", None], StopReason.SUCCESS, Outcome(True, 1.0)),
        (["half", None], StopReason.AGENT_STOPPED, Outcome(False, 0.5)),
    ],
)
def test_success_is_a_sum_of_rewards(texts, stop, outcome):
    episode = GymEnvironment(Scored, "Score.", {"train": [0]}).episode(gym.SeedTask("t", "train", 1, 0), 0)
    said(episode, *("" if text is None else act(text) for text in texts))
    assert (episode.stop, episode.outcome()) == (stop, outcome)


def test_episodes_are_played_side_by_side_and_closed():
    env = GymEnvironment(Scored, "Score.", {"train": [0]}, reward_threshold=1.5)
    Scored.open = 0  # the environment that was looked at is closed, and was never begun
    pair = [env.episode(task, 0) for task in env.tasks("train") * 2]
    for episode in pair * 3:
        said(episode, act("half"))
    assert [episode.stop for episode in pair] == [StopReason.SUCCESS] * 2 and Scored.open == 2
    for episode in pair:
        episode.close()
    assert Scored.open == 0


@pytest.mark.parametrize("name", ["observation", "action"])
def test_what_is_no_text_is_refused(name):
    def make():
        env = Scored()
        setattr(env, f"{name}_space", gymnasium.spaces.Discrete(3))
        return env

    with pytest.raises(TypeError, match=rf"{name} space is Discrete\(3\), not Text; .*\.Transform{name.capitalize()}"):
        GymEnvironment(make, "Count.", {"train": [0]})
    assert hasattr(gymnasium.wrappers, f"Transform{name.capitalize()}")


# --- rollout, learning, evaluation -----------------------------------------------------------


def test_a_rollout_calls_the_tool(base_path, parity):
    codec = Codec(load_tokenizer(base_path), parity)
    task = next(task for task in parity.tasks("train") if parity.episode(task, 0).request == EVEN)
    engine = Scripted(codec, by_turn(act("odd"), act("even")))
    plain = Plain(ALONE)
    (row,) = play(engine, codec, [[[Attempt(task, 0, 0)]]], plain, RolloutConfig(), 0)
    assert row.success and row.outcome.reward == 1.0
    assert codec.decode(row.tokens) == (
        f"<|task|>{EVEN}<|/task|><|tool|>{act('odd')}<|end|><|obs|>Wrong.<|/obs|>"
        f"<|tool|>{act('even')}<|end|><|obs|>Right.<|/obs|>"
    )


class Spoken(GymEpisode):
    """Whatever is written is said: a policy that knows nothing calls no tool, but hits a parity half of the time."""

    made: list[Spoken] = []
    closed = False

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.made.append(self)

    def step(self, action):
        return super().step(parse_action(act("x" * (2 + len(written(action)) % 78)), GymEnvironment.tools))

    def close(self):
        super().close()
        self.closed = True


def test_a_run_of_it_samples_learns_and_is_evaluated(make_config, parity, tmp_path, monkeypatch):
    monkeypatch.setattr(gym, "GymEpisode", Spoken)
    settings = {"task_budget": 8, "eval_every": 4, "eval_splits": ["validation"], "rollout.group_size": 4}
    config = make_config(world_model=None, **settings)
    folder = RunFolder(train(config, tmp_path / "run", parity, progress=False))
    rows = folder.metrics()
    steps = [row for row in rows if row["kind"] == "step"]
    assert [row["tasks"] for row in steps] == [2, 4, 6, 8]
    taught = [row for row in steps if row["groups_kept"]]
    assert taught and all(0 < row["train_success"] < 1 and row["policy/grad_norm"] > 0 for row in taught)
    assert [row["tasks"] for row in rows if row["kind"] == "success" and row["level"] == 0] == [0, 4, 8]
    assert Spoken.made and all(episode.closed for episode in Spoken.made)
    before, after = (
        load_file(v / "policy" / "adapter_model.safetensors") for v in sorted((folder.path / "adapters").iterdir())
    )
    assert any((before[name] != after[name]).any() for name in before)
    assert folder.finished(config) and load_player(folder.path, parity).env is parity
