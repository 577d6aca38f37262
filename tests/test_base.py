"""base: how the frozen model is loaded, and the bars that the embedded one must pass (DESIGN section 6).

It knows the language of the environment and none of its rules: it copies, its calls can be read, its
form choices say nothing about the department, its success is the exploratory policy's - and it follows
hints. All bars are measured on the same rollouts, those of the model card: 64 training tasks of levels 1
and 2, four times each, sampled at temperature 1 from the untrained base, without and with a true hint.
"""

from __future__ import annotations

import json

import pytest
import torch
from scipy.stats import binom
from transformers import AutoModelForCausalLM, AutoTokenizer

from lfo.base import load_base, require_base
from lfo.config import EnvConfig, RolloutConfig, derive_seed
from lfo.evaluate import TruthfulEngine, copying, form_information, parsing, reference_rows
from lfo.records import sha256
from lfo.rollout import Job, TorchEngine, play
from lfo.tokens import SPECIAL_TOKENS

TASKS, ROLLOUTS = 64, 4


# --- loading ---------------------------------------------------------------------------------


def test_the_base_is_loaded_in_fp32(toy_path):
    model = load_base(toy_path)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config._attn_implementation == "eager"


def test_no_base_is_one_sentence_with_a_remedy(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        load_base(tmp_path)
    assert str(error.value).startswith(f"no base model in '{tmp_path}'; make the embedded one with `make base`")
    (tmp_path / "config.json").touch()
    assert require_base(str(tmp_path)) == tmp_path


# --- the shipped weights ---------------------------------------------------------------------


def test_plain_transformers_loads_it(base_path):
    model = AutoModelForCausalLM.from_pretrained(base_path)
    tokenizer = AutoTokenizer.from_pretrained(base_path)
    assert model.config.model_type == "qwen3"
    assert 1.8e6 <= model.num_parameters() <= 5e6  # "about 2 to 5 million"
    assert model.get_input_embeddings().num_embeddings >= len(tokenizer)
    assert all(len(tokenizer.encode(t, add_special_tokens=False)) == 1 for t in SPECIAL_TOKENS)


def test_its_files_are_those_of_the_recipe(base_path):
    expected = json.loads((base_path / "recipe.json").read_text())["sha256"]
    assert "model.safetensors" in expected and "tokenizer.json" in expected
    assert {name: sha256(base_path / name) for name in expected} == expected


@pytest.fixture(scope="module")
def tasks(world):
    return world.split("train", (1, 2))[:TASKS]


@pytest.fixture(scope="module")
def engine(base_path):
    return TorchEngine(base_path)


@pytest.fixture(scope="module")
def jobs(tasks):
    return [Job(task, i, derive_seed("base", i)) for i, task in enumerate(tasks) for _ in range(ROLLOUTS)]


@pytest.fixture(scope="module")
def rows(engine, codec, world, jobs):
    return play(engine, codec, world, jobs, EnvConfig(), RolloutConfig(), 0, policy="base")


@pytest.fixture(scope="module")
def hinted(engine, codec, world, jobs):
    """What the department that the policy means to call demands is set into its context, as `imagine` does."""
    truthful = TruthfulEngine(engine, codec, world)
    return play(truthful, codec, world, jobs, EnvConfig(), RolloutConfig(), 0, policy="base", imagine=True)


def test_it_copies(rows, hinted):
    faithful, emitted = copying(rows + hinted)
    assert emitted >= 1000
    assert faithful / emitted >= 0.99, f"{faithful} of {emitted}"


def test_its_calls_can_be_read(rows, hinted):
    readable, made = parsing(rows + hinted)
    assert made >= 1000
    assert readable / made >= 0.97, f"{readable} of {made}"


def test_its_forms_say_nothing_about_the_department(rows, world):
    """Mutual information of the number of fields, and of the first field, with the department: as by chance."""
    found = form_information(rows, world)
    assert found["size"]["p"] > 0.01, found
    assert found["first"]["p"] > 0.01, found


def test_its_success_is_that_of_the_exploratory_policy(rows, world, tasks):
    """Within the central 99.9% of as many episodes with the exploratory policy's rate on the same tasks."""
    reference = next(r for r in reference_rows(world, tasks, 20, policies=["random"]) if r["level"] == 0)
    low, high = binom.interval(0.999, len(rows), reference["success"])
    assert low <= sum(r.success for r in rows) <= high, (sum(r.success for r in rows), low, high)
    assert reference["success"] < 0.1


def test_it_follows_a_hint(hinted):
    assert sum(r.success for r in hinted) / len(hinted) >= 0.5


def test_its_card_tells_what_it_does(base_path, rows, hinted):
    """Up to what another processor rounds otherwise."""
    measured = json.loads((base_path / "recipe.json").read_text())["measured"]
    (faithful, emitted), (readable, made) = copying(rows + hinted), parsing(rows + hinted)
    assert measured["rollouts"] == len(rows) == len(hinted)
    assert measured["faithful_copies"] == pytest.approx(faithful / emitted, abs=0.01)
    assert measured["readable_calls"] == pytest.approx(readable / made, abs=0.01)
    assert measured["success"] == pytest.approx(sum(r.success for r in rows) / len(rows), abs=0.03)
    assert measured["success_with_true_hints"] == pytest.approx(sum(r.success for r in hinted) / len(hinted), abs=0.05)
