"""data/base_reading: what its recipe shows, and that its weights are those of the recipe and read as the card says."""

from __future__ import annotations

import json
import random
import runpy
from itertools import combinations, groupby
from pathlib import Path

import pytest

from lfo.config import EnvConfig, ModelConfig, RunConfig, WorldModelConfig
from lfo.couplings import Imagine
from lfo.envs.phone import vocabulary
from lfo.evaluate import answers
from lfo.lab.dials import heard_calls
from lfo.lab.untrained import untrained
from lfo.text import Codec, load_codec
from lfo.types import sha256

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "data" / "base_reading"


@pytest.fixture(scope="module")
def recipe() -> dict:
    return runpy.run_path(str(FOLDER / "recipe.py"))


@pytest.fixture(scope="module")
def made(env) -> Codec:
    return load_codec(ModelConfig(base=str(ROOT / "data" / "base")), env)


@pytest.fixture(scope="module")
def drawn(recipe):
    return recipe["drawn_calls"](random.Random(7), few=False)


def trained(codec: Codec, document) -> list[str]:
    """The stretches that are trained on, as text."""
    runs = groupby(zip(*document, strict=True), key=lambda pair: pair[1])
    return [codec.decode([i for i, _ in run]) for on, run in runs if on]


def test_a_document_is_what_a_run_that_reads_would_ask(recipe, made, drawn):
    """To the token; trained on are the replies, those that are read as well."""
    library, calls = drawn
    reader = Imagine(WorldModelConfig(reads=8), Codec(made.tokenizer, WithKnowledge(made.env, library.knowledge)))
    reader.hear(list(library.heard))
    assert len(library.heard) > 8 and len(calls) >= recipe["ASKED"]
    compared = 0
    for call in calls:
        ids, mask = recipe["reading"](made, library, call, 8)
        asked = reader.informed(call.question)
        encoded = made.encoded(asked, call.reply)
        if len(asked.similar) == 8:  # of the same words a run reads one alone
            compared += 1
            assert ids == [*encoded.prompt, *encoded.reply]
        *read, answer = trained(made, (ids, mask))
        assert answer == f"{call.reply}<|/csr|>" and 1 <= len(read) <= 8
        assert read == [f"{one.reply}<|/note|>" for one in library.similar(call.question)[::-1]]
        assert trained(made, recipe["answer_alone"](made, (ids, mask))) == [answer]
    assert compared > len(calls) / 2


class WithKnowledge:
    """An environment with the knowledge of another world."""

    def __init__(self, env, knowledge):
        self.system, self.tools, self.knowledge = env.system, env.tools, knowledge


def test_none_of_what_is_asked_about_was_heard(drawn):
    library, calls = drawn
    assert not {call.task_id for call in calls} & {call.task_id for call in library.heard}
    assert not any(call.call.arguments["auth_info"] for call in [*calls, *library.heard])


def test_at_first_names_count_and_some_of_the_other_words(recipe, made, drawn):
    library, calls = drawn
    document = recipe["reading"](made, library, calls[0], 8)
    kept = recipe["names"](made)
    ids, mask = recipe["focused"](document, kept, random.Random(1))
    was = [(i, on) for i, on in zip(*document, strict=True)]
    names = [now for (i, on), now in zip(was, mask, strict=True) if on and i in kept]
    others = [now for (i, on), now in zip(was, mask, strict=True) if on and i not in kept]
    assert ids == document[0] and all(names) and 0.15 < sum(others) / len(others) < 0.45
    assert not any(now for (_, on), now in zip(was, mask, strict=True) if not on)
    assert {made.encode(f" {field}")[0] for field in vocabulary.FIELDS.values()} <= kept
    assert made.encode("I")[0] not in kept


def test_what_is_shown_is_a_pure_function_of_the_step(recipe, made):
    """Resumed or not; at first at few companies, and all words count at last."""
    one, other = (recipe["Documents"](made, 1500) for _ in range(2))
    stages = {step: one.draw(step) for step in (4, recipe["ALL_FROM"] + 1)}
    assert all(other.draw(step) == documents for step, documents in reversed(stages.items()))
    lengths = [max(map(len, (ids for ids, _ in documents))) for documents in stages.values()]
    early, late = stages.values()
    share = [sum(map(sum, (mask for _, mask in d))) / sum(len(ids) for ids, _ in d) for d in (early, late)]
    assert lengths[0] < lengths[1] and share[0] < share[1]


def test_at_first_no_company_says_anything_about_another(recipe):
    """No two of a trade; later many, most of which agree about a department, as in the worlds of the experiments."""
    agreed = []
    for seed in range(12):
        few, many = (recipe["drawn_calls"](random.Random(seed), few)[0].knowledge._world for few in (True, False))
        trades = [company.industry for company in few.companies.values()]
        assert len(set(trades)) == len(trades) <= max(recipe["FEW_COMPANIES"])
        of = [(many.companies[c].industry, d, rule.required) for (c, d), rule in many.rules.items()]
        agreed += [x == y for (i, d, x), (j, e, y) in combinations(of[:60], 2) if (i, d) == (j, e)]
    assert sum(agreed) / len(agreed) > 0.3  # some of these worlds have no trades


# --- the shipped weights ---------------------------------------------------------------------


def test_its_files_are_those_of_the_recipe(recipe):
    made, ours = json.loads((FOLDER / "recipe.json").read_text()), ROOT / "data" / "base"
    assert {name: sha256(FOLDER / name) for name in made["sha256"]} == made["sha256"]
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        assert (FOLDER / name).read_bytes() == (ours / name).read_bytes(), name
    assert all(made[name] == recipe[name.upper()] for name in ("steps", "few_until", "all_from", "reading", "some"))
    assert made["begun_with"] == "base", "the card says so"
    assert sha256(FOLDER / "model.safetensors") != sha256(ours / "model.safetensors")


def test_it_makes_more_of_similar_calls_than_it_knows_without():
    """What the card says, measured again in one of its worlds, on the first calls."""
    env = EnvConfig(world_seed=100, circumstances=4, replies="reasons")
    known = {}
    for reads in (0, 8):
        w = WorldModelConfig(reads=reads)
        player = untrained(RunConfig(model=ModelConfig(base=str(FOLDER)), env=env, world_model=w))
        player.coupling.hear(heard_calls(player.env, 320, 100))
        knowledge = player.env.knowledge
        steps = knowledge.steps("validation")[:60]
        said = answers(player.engine, player.codec, player.coupling, [step.question for step in steps])
        pairs = zip(said, steps, strict=True)
        known[reads] = sum(knowledge.meaning(reply) == knowledge.meaning(step.truth) for reply, step in pairs) / 60
    assert known[0] < 0.1 and known[8] > 0.4  # in the card: 1 and 57%
