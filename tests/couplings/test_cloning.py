"""cloning: the policy is taught what it heard that it should have done; retry: it reads what was answered before."""

from __future__ import annotations

import itertools
import json

import pytest
from calling import BILLING, CALL, FORM, REPLY, SEARCH, notes_of, playing, told

from lfo.config import ConfigError, WorldModelConfig, load_config
from lfo.couplings import Imagine, Plain
from lfo.couplings.cloning import Cloning
from lfo.couplings.imagine import SAMPLES, ImagineMemory
from lfo.couplings.plain import ALONE, SHARED
from lfo.envs.base import written
from lfo.envs.phone.knowledge import looked_up
from lfo.envs.phone.phrasings import parse_reply
from lfo.envs.phone.tools import form, phone_call
from lfo.evaluate import predict_replies
from lfo.lab.retry import Retry
from lfo.protocols import AdapterLayout
from lfo.train import train
from lfo.types import Example, Question, Role, Turn

# --- cloning ---------------------------------------------------------------------------------


def test_a_scout_hears_what_the_form_should_have_been(scripted, bank, attempt):
    """Billing names account number and ZIP code; the form that asks for them comes after the directory."""
    (row,), _ = scripted(Cloning(SHARED, scouts=1), playing(SEARCH), [attempt("bill", scout=True)])
    (example,) = row.examples
    said = bank.decode(example.encoded.reply)
    assert said == f"{written(form(['account_number', 'billing_zip']))}<|end|>"
    context = bank.decode(example.encoded.prompt)
    assert context.endswith(f"<|obs|>{row.turns[0].observation}<|/obs|><|tool|>") and "<|note|>" not in context


def test_a_success_is_cloned_and_a_failure_with_a_form_is_not(scripted, bank, attempt):
    paid = written(phone_call(BILLING, {"account_number": "123456", "billing_zip": "22222"}))
    (row,), _ = scripted(Cloning(SHARED), playing(SEARCH, FORM, paid), [attempt("bill")])
    assert row.success and bank.decode(row.examples[0].encoded.reply) == f"{FORM}<|end|>"
    (row,), _ = scripted(Cloning(SHARED), playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
    assert not row.success and row.examples == []


def test_the_loss_of_a_clone_is_on_what_the_policy_says(bank, attempt, tiny):
    """The context is token by token what the policy reads in an episode."""
    task = attempt("bill").task
    encoded = bank.acted(task.request, looked_up(tiny, "bank"), form(["email"]))
    search, directory = looked_up(tiny, "bank")[0].action, looked_up(tiny, "bank")[0].observation
    read = [*bank.prompt(task.request), *bank.opener, *bank.encode(written(search)), bank.end_id]
    assert list(encoded.prompt) == [*read, *bank.observation(directory), *bank.opener]


def test_a_cloning_run_learns_without_rewards_and_without_a_world_model(toy_path, tmp_path):
    settings = {"world_model.coupling": "cloning", "world_model.scouts": 2, "model.base": str(toy_path)}
    run = train(load_config("configs/smoke.yaml", **settings, eval_tasks=2), tmp_path / "run", progress=False)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"reply", "rules"}.isdisjoint(row["kind"] for row in rows)
    assert not any("policy/loss" in row for row in rows)
    assert {path.name for path in (run / "adapters").glob("v*/*") if path.is_dir()} == {"policy"}


def test_what_cannot_be_cloned_is_refused():
    with pytest.raises(ConfigError, match=r"coupling 'cloning' needs .*no anonymise"):
        load_config("configs/laptop.yaml", **{"world_model.coupling": "cloning"})


# --- another attempt -------------------------------------------------------------------------


def test_a_second_attempt_reads_what_was_handed_over_and_answered(scripted, bank, attempt):
    (first,), _ = scripted(Plain(ALONE), playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
    earlier: dict = {}
    retry = Retry(Plain(ALONE), earlier, notes=False)
    (again,), _ = scripted(retry, playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
    assert again.tokens == first.tokens  # nothing was heard yet: the first coupling plays
    earlier["bill"] = [first]
    (again,), engine = scripted(retry, playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
    answer = parse_reply(first.turns[2].observation)[1]
    assert notes_of(again, bank, Role.FEEDBACK) == [f"earlier attempt: Gave nothing. {answer}"]
    assert [p.adapter for p in engine.prompts] == ["policy"] * 4  # nobody imagines anything
    where = again.roles.index(int(Role.FEEDBACK))
    assert again.roles[where - 1] == Role.OBSERVATION and again.roles.count(int(Role.ACTION)) > 0


# --- imagine beside a memory, and silent where unsure ----------------------------------------


@pytest.fixture
def question(tiny) -> Question:
    return Question("Please call Harbor Bank for me: dispute a charge.", looked_up(tiny, "bank"), phone_call(BILLING))


def test_memory_speaks_where_it_heard_of_that_very_case(bank, question):
    coupling = ImagineMemory(WorldModelConfig(coupling="imagine_memory", reads=1), bank)
    with pytest.raises(AssertionError, match="a model was asked"):
        told(coupling, question)
    turns = [*question.turns, Turn(question.call, REPLY, "auth_failed")]
    heard: list[Example] = bank.examples("t", question.request, turns, "phone")
    coupling.hear(heard)
    assert told(coupling, question) == REPLY
    joint = Question(f"{question.request} It is a joint account.", question.turns, question.call)
    with pytest.raises(AssertionError, match="a model was asked"):
        told(coupling, joint)
    assert coupling.informed(joint).similar == (f"memory: {question.request} {REPLY}",), "and reads of that one"


@pytest.mark.parametrize(("dissenting", "noted"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_of_several_world_models_the_most_replies_are_noted(scripted, bank, attempt, dissenting, noted):
    """Each has a greedy reply and two sampled ones; wording is no matter, and that of the first stands in the note."""
    same = [REPLY, REPLY.replace(". I need", ", hi! I just need")]
    other = REPLY.replace("account number", "email address")
    coupling = Imagine(WorldModelConfig(members=3, votes=3), bank)
    members = ("world_model", "world_model_2", "world_model_3")
    assert coupling.layout == AdapterLayout(("policy", *members), members)

    def answer(text: str, prompt) -> str:
        if prompt.adapter in members[:dissenting]:
            return other
        return (
            same[prompt.temperature > 0] if prompt.adapter in members else playing(SEARCH, FORM, CALL, "")(text, prompt)
        )

    (row,), engine = scripted(coupling, answer, [attempt("bill")])
    assert notes_of(row, bank) == [f"world model: {(REPLY, other)[noted]}"]
    asked = [p for p in engine.prompts if p.adapter != "policy"]
    assert [(p.adapter, p.temperature) for p in asked] == [(m, 0.0) for m in members] + [
        (m, 1.0) for m in members for _ in range(2)
    ]
    assert len({p.seed for p in asked if p.temperature}) == 6, "no two draws are the same"
    assert predict_replies(engine, bank, [asked[0].tokens], coupling) == [(REPLY, other)[noted]]


@pytest.mark.parametrize("votes", [1, 5])
def test_one_world_model_votes_with_itself_if_it_may(scripted, bank, attempt, votes):
    """Its greedy reply is outvoted by what it samples; of a single vote it is the one."""
    other = REPLY.replace("account number", "email address")

    def answer(text: str, prompt) -> str:
        if prompt.adapter == "world_model":
            return other if prompt.temperature else REPLY
        return playing(SEARCH, FORM, CALL, "")(text, prompt)

    coupling = Imagine(WorldModelConfig(votes=votes), bank)
    (row,), engine = scripted(coupling, answer, [attempt("bill")])
    assert notes_of(row, bank) == [f"world model: {REPLY if votes == 1 else other}"]
    assert sum(p.adapter == "world_model" for p in engine.prompts) == votes


@pytest.mark.parametrize(("fields", "noted"), [(["email address", "full name"], False), (["email address"], True)])
def test_several_world_models_are_silent_where_they_disagree(scripted, bank, attempt, fields, noted):
    """Three times five replies: of the fourteen others half have to mean the same."""
    said = itertools.cycle(["account number", *fields])
    coupling = Imagine(WorldModelConfig(members=3, unsure_below=0.5), bank)

    def answer(text: str, prompt) -> str:
        if prompt.adapter != "policy":
            return REPLY.replace("account number", next(said))
        return playing(SEARCH, FORM, CALL, "")(text, prompt)

    (row,), engine = scripted(coupling, answer, [attempt("bill")])
    assert notes_of(row, bank) == ([f"world model: {REPLY}"] if noted else [])
    assert sum(p.adapter != "policy" for p in engine.prompts) == 3 * (1 + SAMPLES)
    assert coupling.votes == 1 + SAMPLES, "it is examined by as many votes"


@pytest.mark.parametrize(("agreeing", "noted"), [(4, True), (2, True), (1, False)])
def test_a_world_model_that_is_unsure_is_silent(scripted, bank, attempt, agreeing, noted):
    """Half of four sampled replies have to mean what the greedy one means; their wording is no matter."""
    same, other = REPLY.replace(". I need", ", hi! I just need"), REPLY.replace("account number", "email address")
    coupling = Imagine(WorldModelConfig(unsure_below=0.5), bank)
    drawn = iter([same] * agreeing + [other] * (SAMPLES - agreeing))

    def answer(text: str, prompt) -> str:
        if prompt.adapter == "world_model" and prompt.temperature:
            return next(drawn)
        return playing(SEARCH, FORM, CALL, "")(text, prompt)

    (row,), engine = scripted(coupling, answer, [attempt("bill")])
    assert notes_of(row, bank) == ([f"world model: {REPLY}"] if noted else [])
    assert [p.temperature for p in engine.prompts if p.adapter == "world_model"] == [0.0, 1.0, 1.0, 1.0, 1.0]
