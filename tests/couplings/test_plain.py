"""plain: couplings that change no context, which adapters each has, and the replies that echo listens to."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from toy import Counting

from lfo.config import ConfigError, ModelConfig, RunConfig, WorldModelConfig
from lfo.couplings import Dream, Echo, Imagine, Memory, Plain, Truth, alone, make_coupling
from lfo.couplings.plain import BOTH, replies
from lfo.envs.base import written
from lfo.envs.phone import PhoneEnvironment
from lfo.envs.phone.callers import Oracle, run_scripted
from lfo.envs.phone.tools import phone_call
from lfo.types import Attempt, Role, Sample, Task, Turn

TASK = Task("t", "train", 1)


@pytest.fixture
def made(toy_path, env):
    """made(coupling): the codec and the coupling of a run; None: without a world model."""

    def make(coupling: str | None):
        world_model = WorldModelConfig(coupling=coupling) if coupling else None
        return make_coupling(RunConfig(model=ModelConfig(base=str(toy_path)), world_model=world_model), env)

    return make


@pytest.mark.parametrize(
    ("name", "kind", "adapters", "listener", "stacked"),
    [
        (None, Plain, ("policy",), None, False),
        ("none", Plain, ("policy", "world_model"), "world_model", False),
        ("shared", Plain, ("policy",), "policy", False),
        ("echo", Echo, ("policy",), "policy", False),
        ("stacked", Plain, ("policy", "world_model"), "world_model", True),
        ("imagine", Imagine, ("policy", "world_model"), "world_model", False),
        ("dream", Dream, ("policy", "world_model"), "world_model", False),
        ("memory", Memory, ("policy",), None, False),
        ("truth", Truth, ("policy",), None, False),
    ],
)
def test_every_coupling_has_its_class_and_its_adapters(made, name, kind, adapters, listener, stacked):
    codec, coupling = made(name)
    assert type(coupling) is kind
    layout = coupling.layout
    assert (layout.names, layout.listener, layout.stacked) == (adapters, listener, stacked)
    assert codec.in_passing == (name == "echo")


def test_a_world_model_needs_something_to_model(toy_path):
    config = RunConfig(model=ModelConfig(base=str(toy_path)), world_model=WorldModelConfig())
    with pytest.raises(ConfigError) as error:
        make_coupling(config, Counting())
    assert str(error.value) == "environment 'phone' has nothing to model; leave world_model out."


def test_what_a_world_model_may_predict_is_the_environments_affair(toy_path, env):
    config = RunConfig(model=ModelConfig(base=str(toy_path)), world_model=WorldModelConfig(predict="phones"))
    with pytest.raises(ConfigError) as error:
        make_coupling(config, env)
    assert str(error.value) == "world_model.predict is 'phones'; environment 'phone' knows: phone, phone+form, all."


@pytest.mark.parametrize("name", ["imagine", "memory", "truth"])
def test_alone_is_the_same_adapters_without_notes(made, name):
    _, coupling = made(name)
    assert type(alone(coupling)) is Plain and alone(coupling).layout == coupling.layout


def test_plain_plays_a_group_in_one_wave_and_learns_from_each_rollout_as_it_was(make_rollout):
    plain = Plain(BOTH)
    assert plain.waves(TASK, 3, 7, 4) == [[Attempt(TASK, 3, 7)] * 4]
    assert plain.practice(step=9, tasks_seen=999) == []
    row = SimpleNamespace(attempt=Attempt(TASK, 3, 7))
    assert list(plain.before_turn(row)) == [] == list(plain.before_step(row, None))
    assert plain.hear([]) is None  # whatever is said, nothing is remembered
    row, sample = make_rollout([1], [2]), Sample([1, 2], [0, 1], [0.0, -1.0], [0.0, 0.5])
    assert plain.views(row, sample) == [sample] and plain.views(row, None) == []
    with pytest.raises(RuntimeError, match="without the coupling 'dream'"):
        plain.responder(TASK)


# --- echo ------------------------------------------------------------------------------------


@pytest.fixture
def played(codec, tiny, make_rollout):
    """The oracle's way through the fraud task, as the loop writes it: openers stand with what is before them."""
    episode = PhoneEnvironment(tiny).episode(next(t for t in tiny.tasks if t.task_id == "fraud"), 0)
    run_scripted(episode, Oracle(episode, tiny, None))
    pieces = [[*codec.prompt(episode.request), *codec.opener]]
    for turn in episode.turns:
        said = [*codec.encode(written(turn.action)), codec.end_id]
        pieces += [said, [*codec.observation(turn.observation), *codec.opener]]
    pieces[-1] = pieces[-1][:-1]  # nobody acts after the last answer
    return make_rollout(*pieces, turns=episode.turns)


@pytest.mark.parametrize(("predict", "turns"), [("phone", [2, 3]), ("phone+form", [1, 2, 3]), ("all", [0, 1, 2, 3])])
def test_replies_in_a_trajectory_are_found(codec, env, played, predict, turns):
    """What the world model learns there is what it learns elsewhere: the answer and its closing tag."""
    heard = replies(played, env.knowledge.learned[predict])
    text = codec.decode([i for i, learned in zip(played.tokens, heard, strict=True) if learned])
    assert text == "".join(f"{played.turns[i].observation}<|/obs|>" for i in turns)


def test_replies_by_hand(make_rollout):
    """Prompt, action, <|obs|> reply <|/obs|> <|tool|>, action that hangs up, and a note between, which is no reply."""
    call = Turn(phone_call("1"), "reply", "success")
    row = make_rollout([1], [2, 3], [4, 5, 6, 7], [8], turns=[call, call])
    assert replies(row, ("make_phone_call",)) == [False] * 4 + [True, True] + [False] * 2
    assert replies(row, ("search_company",)) == [False] * 8
    told = dataclasses.replace(row, tokens=[*row.tokens[:6], 9, *row.tokens[6:]])
    told.roles = [*row.roles[:6], int(Role.FEEDBACK), *row.roles[6:]]  # before the opener of what comes next
    assert replies(told, ("make_phone_call",)) == [False] * 4 + [True, True] + [False] * 3
    row.roles[3:7] = [int(Role.NOTE)] * 4
    assert replies(row, ("make_phone_call",)) == [False] * 8


def test_echo_hears_in_the_context_that_is_learned_from_and_where_nothing_is(made, make_rollout):
    _, echo = made("echo")
    call = Turn(phone_call("1"), "reply", "success")
    row = make_rollout([1], [2], [4, 5, 6, 7], [8], turns=[call, call], logprob=-2.0)
    heard = [False] * 3 + [True, True] + [False] * 2
    sample = Sample(row.tokens, row.roles, row.logprobs, [0.5] * 7)
    assert echo.views(row, sample) == [dataclasses.replace(sample, heard=heard)]
    (listening,) = echo.views(row, None)
    assert (listening.tokens, listening.roles, listening.heard) == (row.tokens, row.roles, heard)
    assert listening.advantages is None and listening.old_logprobs == row.logprobs
    silent = make_rollout([1], [2], [4, 5], turns=[Turn(phone_call("1"), "", "x")])
    silent.roles[2:] = [int(Role.PROMPT)] * 2
    assert echo.views(silent, None) == []
    acted = Sample(silent.tokens, silent.roles, silent.logprobs, [1.0] * 4)
    assert echo.views(silent, acted) == [dataclasses.replace(acted, heard=[False] * 4)]
