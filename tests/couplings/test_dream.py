"""dream: which tasks are dreamt and when, what the world model is asked, and how what it says is judged."""

from __future__ import annotations

import itertools
import json

import pytest
from scripted import VERDICTS, YES, Scripted, by_turn

from lfo.config import ConfigError, RolloutConfig, RunConfig, WorldModelConfig, derive_seed, load_config
from lfo.couplings import Dream, make_coupling
from lfo.envs import make_environment
from lfo.envs.base import written
from lfo.envs.phone import PhoneEnvironment
from lfo.envs.phone.tools import form, phone_call, search
from lfo.protocols import Question
from lfo.rollout.play import play
from lfo.rollout.tasks import TaskStream
from lfo.text.base import load_tokenizer
from lfo.text.codec import Codec
from lfo.types import Attempt, StopReason

SEARCH, CALL = written(search("Harbor Bank")), written(phone_call("800-555-0003"))
FORM = written(form(["account_number"]))


@pytest.fixture(scope="module")
def codec(base_path, tiny) -> Codec:
    return Codec(load_tokenizer(base_path), PhoneEnvironment(tiny))


def dream(codec: Codec, agreement: float = 1.0, **settings) -> Dream:
    world_model = WorldModelConfig(coupling="dream", dream_agreement=agreement)
    return Dream(RunConfig(world_model=world_model, **settings), codec)


@pytest.fixture
def dreamt(codec, tiny):
    """dreamt(replies, actions, ...): (rollouts, engine) of dreams whose world model says `replies` in turn."""

    def run(replies, actions=(SEARCH, CALL, ""), tasks=("bill",), agreement=1.0, awake=()):
        said, act = itertools.cycle(replies), by_turn(*actions)
        engine = Scripted(codec, lambda text, p: next(said) if p.adapter == "world_model" else act(text, p))
        named = {t.task_id: t for t in tiny.tasks}
        groups = [[[Attempt(named[name], -1, 0, dreamt=name not in awake)]] for name in tasks]
        rows = play(engine, codec, groups, dream(codec, agreement), RolloutConfig(), 0, "phone")
        return rows, engine

    return run


def test_a_world_of_which_nobody_dreams_is_refused_before_the_run_begins():
    config = load_config("configs/shell_smoke.yaml", **{"world_model.coupling": "dream"})
    with pytest.raises(ConfigError, match=r"nobody dreams of this world: set world_model\.coupling to 'imagine'"):
        make_coupling(config, make_environment(config.env))


# --- which tasks -----------------------------------------------------------------------------


def test_the_first_quarter_of_the_budget_is_spent_awake(codec):
    coupling = dream(codec, task_budget=80, rollout=RolloutConfig(tasks_per_step=2, group_size=3))
    assert coupling.practice(0, 19) == [] != coupling.practice(0, 20)


def test_as_many_groups_are_dreamt_as_tasks_are_sampled(codec, tiny):
    """Tasks from a stream of their own, seeds of their own, numbers that no real group has."""
    coupling = dream(codec, seed=3, rollout=RolloutConfig(tasks_per_step=2, group_size=3))
    stream = TaskStream(tiny.tasks, derive_seed(3, "dream"))
    steps = [coupling.practice(step, 200) for step in range(3)]
    groups = [group for step in steps for group in step]
    assert [len(step) for step in steps] == [2, 2, 2]
    assert [wave[0].task for (wave,) in groups] == stream.take(6)
    for k, (wave,) in enumerate(groups):
        assert wave == [Attempt(wave[0].task, -1 - k, derive_seed(3, "dreamt episode", k), dreamt=True)] * 3
    assert coupling.practice(1, 200) == steps[1]  # a pure function of the step


def test_real_groups_are_those_of_every_coupling(codec, tiny):
    assert dream(codec).waves(tiny.tasks[0], 3, 7, 2) == [[Attempt(tiny.tasks[0], 3, 7)] * 2]


# --- what is asked ---------------------------------------------------------------------------


def test_in_a_dream_the_world_model_answers_the_phone(dreamt, codec, tiny):
    """The real Billing demands two fields; here it is content with nothing, and the calls teach no world model."""
    (row,), engine = dreamt([YES])
    assert (row.success, row.outcome.reward, row.stop, row.examples) == (True, 1.0, StopReason.SUCCESS, [])
    assert [t.tool for t in row.turns] == ["search_company", "make_phone_call"]
    assert json.loads(row.turns[1].observation) == json.loads(YES)
    asked = [p for p in engine.prompts if p.adapter == "world_model"]
    assert {(p.temperature, p.stop, p.session) for p in asked} == {(1.0, codec.reply_end_id, None)} and len(asked) == 4
    assert len({p.seed for p in asked}) == 4
    request = next(t for t in tiny.tasks if t.task_id == "bill").request
    assert asked[0].tokens == codec.question(Question(request, tuple(row.turns[:1]), phone_call("800-555-0003")))


def test_the_same_call_is_imagined_once_for_all_who_heard_the_same(dreamt):
    """Two rollouts of one task and one of another call on the same turn: four replies for each of two questions."""
    rows, engine = dreamt([YES], tasks=("bill", "bill", "offer"))
    assert [r.success for r in rows] == [True, True, False]  # Billing is not who tells about offers
    asked = [p for p in engine.prompts if p.adapter == "world_model"]
    assert len(asked) == 8 and len({tuple(p.tokens) for p in asked}) == 2


def test_who_is_awake_hears_the_real_phone(dreamt):
    (row,), engine = dreamt([YES], awake=("bill",))
    assert not row.success and row.turns[1].status == "auth_failed" and len(row.examples) == 1
    assert {p.adapter for p in engine.prompts} == {"policy"}


# --- how it is judged ------------------------------------------------------------------------


@pytest.mark.parametrize(("replies", "agreement", "success"), VERDICTS)
def test_success_needs_agreement_and_the_agent_hears_the_verdict(dreamt, replies, agreement, success):
    (row,), _ = dreamt(replies, agreement=agreement)
    assert row.success == success
    heard = json.loads(row.turns[1].observation)
    assert (heard["status"] == "success") == success
    assert heard["status"] in ("success", "auth_failed", "unreadable")


@pytest.mark.parametrize("number", ["800-555-0005", "800-555-9999"])
def test_the_success_of_another_department_serves_nobody(dreamt, number):
    """Sales, or a number that nobody has, says it is done; the charge is Billing's."""
    (row,), _ = dreamt([YES], [SEARCH, written(phone_call(number)), ""])
    assert (row.turns[1].status, row.success, row.stop) == ("success", False, StopReason.AGENT_STOPPED)


def test_the_user_of_a_dream_is_real(dreamt, tiny):
    (row,), engine = dreamt([YES], [SEARCH, FORM, CALL])
    given = json.loads(row.turns[1].observation)
    assert given["account_number"] == tiny.profiles["all"].values["account_number"] and row.success
    assert sum(p.adapter == "world_model" for p in engine.prompts) == 4  # nobody imagines the form
    greedy = written(form(["name", "email", "date_of_birth", "account_number"]))
    (row,), _ = dreamt([YES], [SEARCH, greedy, CALL])
    assert row.turns[1].status == "declined"
