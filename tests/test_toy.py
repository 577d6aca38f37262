"""An environment of thirty lines goes through rollout, learning, evaluation and resume."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from scripted import Scripted
from toy import Counter, Counting, Guessing, Known

from lfo.config import ConfigError, RolloutConfig, RunConfig, WorldModelConfig
from lfo.couplings import Imagine, Memory, Truth
from lfo.envs.base import written
from lfo.lab.player import load_player
from lfo.protocols import Knowledge
from lfo.rollout.play import play
from lfo.runs import RunError, RunFolder
from lfo.text.base import load_tokenizer
from lfo.text.codec import Codec
from lfo.train import Run, train
from lfo.types import Attempt, Call, Malformed, Role, StopReason, Task, Turn


@pytest.fixture(scope="module")
def config(make_config) -> RunConfig:
    """Four steps of two tasks, evaluated in between, with a checkpoint after each step."""
    settings = {"task_budget": 8, "eval_every": 4, "eval_splits": ["validation"], "rollout.group_size": 4}
    return make_config(world_model=None, **settings)


class Even(Counter):
    """Whatever is said succeeds if it has an even number of characters: an untrained policy can learn from that."""

    def step(self, action) -> str:
        right = len(written(action)) % 2 == 0
        self.turns.append(Turn(action, "right" if right else "wrong", "said"))
        self.stop = StopReason.SUCCESS if right else StopReason.AGENT_STOPPED
        return self.turns[-1].observation


class Evenness(Counting):
    """The toy environment with easier episodes; remembers them."""

    def __init__(self):
        self.made: list[Counter] = []

    def episode(self, task, seed, responder=None):
        self.made.append(Even(task))
        return self.made[-1]


def metrics_of(folder: Path) -> list[dict]:
    """Rows of metrics without what depends on the clock."""
    rows = RunFolder(folder).metrics()
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory) -> tuple[Path, Evenness]:
    """The folder of an uninterrupted run, and the environment that was passed to it."""
    env = Evenness()
    return train(config, tmp_path_factory.mktemp("toy") / "whole", env, progress=False), env


def test_the_toy_environment_by_hand():
    """The first number that is said decides; what is no call is told so; two tries, then it is over."""
    episode = Counting().episode(Task("t", "train", 2), 0)
    assert episode.step(Malformed("x", "no call")) == "no call"
    assert episode.step(Call("count", {"number": "2"})) == "right" and episode.stop is StopReason.SUCCESS
    assert [t.status for t in episode.turns] == ["error", "right"] and episode.outcome().success
    with pytest.raises(RuntimeError):
        episode.step(Call("count", {"number": "2"}))
    assert [t.task_id for t in Counting().tasks("test")] == ["test-1", "test-2", "test-3"]


def test_a_run_of_it_samples_learns_and_is_evaluated(finished, config):
    folder, env = finished
    rows = metrics_of(folder)
    steps = [row for row in rows if row["kind"] == "step"]
    assert [row["tasks"] for row in steps] == [2, 4, 6, 8]
    taught = [row for row in steps if row["groups_kept"]]
    assert len(taught) >= 2 and all(0 < row["train_success"] < 1 and row["policy/grad_norm"] > 0 for row in taught)
    assert all(row["sampled_tokens"] > 0 for row in steps)
    assert [r["tasks"] for r in rows if r["kind"] == "success" and r["level"] == 0] == [0, 4, 8]
    assert not any("world_model" in name for row in rows for name in row)
    assert env.made and all(episode.closed for episode in env.made)
    assert RunFolder(folder).finished(config) and set(RunFolder(folder).adapters()) == {"policy"}


def test_what_was_learned_changed_the_weights(finished):
    folder, _ = finished
    versions = sorted((folder / "adapters").iterdir())
    assert [v.name for v in versions] == ["v00004", "v00005"]
    before, after = (load_file(v / "policy" / "adapter_model.safetensors") for v in versions)
    assert any((before[name] != after[name]).any() for name in before)


def test_a_finished_run_can_be_played(finished, config):
    folder, _ = finished
    player = load_player(folder, Counting())
    assert isinstance(player.env, Counting) and player.config == config and set(player.adapters) == {"policy"}


class Stopped(Exception):
    """The machine went away."""


def test_it_goes_on_where_it_was_stopped(finished, config, tmp_path, monkeypatch):
    """Stopped in the third step, whose rollouts are lost; metrics and weights are those of the uninterrupted run."""
    folder, (whole, _) = tmp_path / "stopped", finished
    env, steps = Evenness(), []

    def stop_in_the_third(self):
        steps.append(self.step)
        if len(steps) == 3:
            self.sample_groups()
            raise Stopped
        return advance(self)

    advance = Run.advance
    with monkeypatch.context() as patch:
        patch.setattr(Run, "advance", stop_in_the_third)
        with pytest.raises(Stopped):
            train(config, folder, env, progress=False)
    assert steps == [0, 1, 2] and len(RunFolder(folder).checkpoints) == 2
    assert len(metrics_of(folder)) < len(metrics_of(whole))
    assert train(config, folder, env, progress=False) == folder
    assert metrics_of(folder) == metrics_of(whole)
    newest = [RunFolder(f).adapters()["policy"] / "adapter_model.safetensors" for f in (folder, whole)]
    assert newest[0].read_bytes() == newest[1].read_bytes()


def test_a_finished_run_is_left_as_it_is(finished, config, monkeypatch):
    folder, _ = finished
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(Run, "advance", lambda self: 1 / 0)
    assert train(config, folder, Evenness(), progress=False) == folder
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_finished_run_without_adapters_publishes_them_again(finished, config, tmp_path):
    """As the message says to whoever wants to play it."""
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    shutil.rmtree(folder / "adapters")
    with pytest.raises(RunError, match="train there first"):
        load_player(folder, Counting())
    train(config, folder, Evenness(), progress=False)
    weights = [RunFolder(f).adapters()["policy"] / "adapter_model.safetensors" for f in (folder, finished[0])]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert metrics_of(folder) == metrics_of(finished[0]) and RunFolder(folder).finished(config)


def test_there_is_nothing_to_model(config, tmp_path):
    modelling = dataclasses.replace(config, world_model=WorldModelConfig())
    with pytest.raises(ConfigError, match="has nothing to model; leave world_model out"):
        train(modelling, tmp_path / "none", Counting(), progress=False)
    assert not (tmp_path / "none").exists()


# --- with something to model -----------------------------------------------------------------


def test_the_toy_knows_all_that_knowledge_is_asked_for():
    wanted = {*Knowledge.__annotations__, *(name for name in vars(Knowledge) if not name.startswith("_"))}
    assert {name for name in dir(Known) if not name.startswith("_")} == wanted


@pytest.fixture
def guessing(base_path) -> Codec:
    return Codec(load_tokenizer(base_path), Guessing())


def two_tries(text: str, prompt) -> str:
    """A policy that means to say 1 and then 2, and says 2 at once; a world model that says what is true of "to 2"."""
    if prompt.adapter == "world_model":
        return "right" if '{"number": "2"}' in text else "wrong"
    return f'{1 + text.count("<|note|>")}"}}' if prompt.session is None else 'count<|args|>{"number": "2"}'


@pytest.mark.parametrize("source", ["world model", "truth", "memory"])
def test_whoever_sets_notes_sets_them_into_any_environment(guessing, source):
    """Two notes along the way, and none after its end, where there is nothing to mean any more."""
    if source == "memory":
        coupling = Memory(WorldModelConfig(coupling="memory"), guessing)
        for number, reply in ((1, "wrong"), (2, "right")):
            turn = Turn(Call("count", {"number": str(number)}), reply, reply)
            coupling.hear(guessing.examples("t", "Count to 2.", [turn], "phone"))
    else:
        coupling = Truth(guessing) if source == "truth" else Imagine(WorldModelConfig(), guessing)
    attempt = Attempt(Task("t", "train", 2), 0, 0)
    (row,) = play(Scripted(guessing, two_tries), guessing, [[[attempt]]], coupling, RolloutConfig(), 0, "phone")
    notes = f"<|note|>{source}: wrong<|/note|><|note|>{source}: right<|/note|>"
    said = 'count<|args|>{"number": "2"}'
    assert guessing.decode(row.tokens) == (
        f"<|task|>Count to 2.<|/task|>{notes}<|tool|>{said}<|end|><|obs|>right<|/obs|>"
    )
    assert row.success and [example.reply for example in row.examples] == ["right"]


class EvenGuesses(Evenness):
    knowledge = Known()


@pytest.mark.parametrize("coupling", ["imagine", "imagine_memory", "memory", "truth", "cloning"])
def test_every_coupling_that_needs_no_phone_trains_there(make_config, tmp_path, coupling):
    """To the end, with an evaluation; and what was trained can be played."""
    settings = {"task_budget": 4, "eval_splits": ["validation"], "rollout.group_size": 4}
    config = make_config(**settings, **{"world_model.coupling": coupling})
    folder = train(config, tmp_path / "run", EvenGuesses(), progress=False)
    assert RunFolder(folder).finished(config)
    player = load_player(folder, EvenGuesses())
    attempt = Attempt(Task("t", "train", 2), 0, 0)
    (row,) = play(player.engine, player.codec, [[[attempt]]], player.coupling, config.rollout, 0, "phone")
    assert (Role.NOTE in row.roles) == (coupling in ("imagine", "imagine_memory", "truth"))
