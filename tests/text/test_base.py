"""base: how the frozen model is loaded, and the bars that the embedded one must pass.

It knows the language of the environment, and its forms none of its rules: it copies, its calls can be read, its
form choices say nothing about the department, its success is the exploratory policy's - and it follows
notes. All bars are measured on the same rollouts, those of the model card: 64 training tasks of all
levels, 16 times each, sampled at temperature 1 from the untrained base, without and with true notes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from scipy.stats import binom
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import is_gguf_available

from lfo.config import ConfigError, ModelConfig, RolloutConfig, RunConfig, derive_seed, load_config
from lfo.couplings import Plain, Truth
from lfo.couplings.plain import BOTH
from lfo.envs.phone.callers import play_scripted
from lfo.envs.phone.tools import phone_call, search
from lfo.lab.base_report import copying, form_information, parsing
from lfo.lab.untrained import untrained
from lfo.protocols import Blank
from lfo.rollout.play import play
from lfo.rollout.torch_engine import TorchEngine
from lfo.text import TokenizerError, load_codec
from lfo.text.base import bf16_pays, fastest, load_base, load_tokenizer, require_base, source
from lfo.text.codec import SPECIAL_TOKENS
from lfo.types import Attempt, sha256

ROOT = Path(__file__).resolve().parents[2]
TASKS, ROLLOUTS = 64, 16


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


def test_a_name_on_the_hub_is_looked_up_there(monkeypatch, tmp_path):
    """In the hub's cache where there is no network; never where the name may mean a folder."""
    asked = []

    def cached_file(name: str, filename: str) -> str | None:
        asked.append((name, filename))
        if name != "Qwen/Qwen3-0.6B":
            raise OSError("no network, and not in the cache")
        return "config.json"

    monkeypatch.setattr("lfo.text.base.cached_file", cached_file)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert source("Qwen/Qwen3-0.6B") == {"pretrained_model_name_or_path": "Qwen/Qwen3-0.6B"}
    for name in ("data/no-such", "Qwen/no-such", "nowhere", "a/b/c"):
        with pytest.raises(FileNotFoundError, match="no base model in"):
            require_base(name)
    assert asked == [("Qwen/Qwen3-0.6B", "config.json"), ("Qwen/no-such", "config.json")]


# --- a base in one GGUF file -----------------------------------------------------------------


def test_reading_gguf_needs_a_package(monkeypatch, tmp_path):
    path = tmp_path / "model.gguf"
    path.touch()
    monkeypatch.setattr("lfo.text.base.is_gguf_available", lambda: False)
    with pytest.raises(ConfigError, match=r"install the package gguf: pip install -e '\.\[cpu,gguf\]'"):
        require_base(path)
    monkeypatch.setattr("lfo.text.base.is_gguf_available", lambda: True)
    assert source(path) == {"pretrained_model_name_or_path": str(tmp_path), "gguf_file": "model.gguf"}
    with pytest.raises(FileNotFoundError, match="no base model in"):
        require_base(tmp_path / "other.gguf")


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as GGUF, as docs/bases.md obtains it."""
    path = Path(os.environ.get("LFO_SMOLLM2", ""))
    if not path.is_file():
        pytest.skip("LFO_SMOLLM2 names no .gguf file (docs/bases.md)")
    if not is_gguf_available():
        pytest.skip("the package gguf is not installed (extra gguf)")
    return path


def test_smollm2_shows_its_tools_with_the_shipped_template(smollm2, env):
    with pytest.raises(TokenizerError, match=r"does not show the model its tools .* configs/chatml_tools\.jinja"):
        load_codec(ModelConfig(str(smollm2), dialect="chat"), env)
    config = load_config(ROOT / "configs" / "smollm2_135m.yaml").model
    codec = load_codec(dataclasses.replace(config, base=str(smollm2)), env)
    function = {"name": "search_company", "arguments": search("Harbor Bank").arguments}
    blank = Blank(phone_call("800-555-0100"), "800-555-0100")
    ids = [*codec.prompt("Please call Harbor Bank."), *codec.opener]
    ids += [*codec.encode(f"<tool_call>\n{json.dumps(function)}\n</tool_call>"), codec.end_id]
    ids += [*codec.observation('{"departments": []}'), *codec.beginning(blank)]
    assert codec.encode(codec.decode(ids)) == ids
    assert codec.decode([codec.end_id]) == "<|im_end|>"
    assert codec.blank_length(blank) == 13


def test_smollm2_is_read_in_fp32_and_speaks(smollm2):
    model, tokenizer = load_base(smollm2), load_tokenizer(smollm2)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.num_parameters() == 134_515_008
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")
    said = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(said)


def test_smollm2_can_be_saved_as_any_base(smollm2, tmp_path):
    """transformers refuses to save what was read from a .gguf file, merged adapters included."""
    model = load_base(smollm2)
    model.save_pretrained(tmp_path)
    saved = load_base(tmp_path).state_dict()
    assert all(torch.equal(weight, saved[name]) for name, weight in model.state_dict().items())


# --- the shipped weights ---------------------------------------------------------------------


def test_plain_transformers_loads_it(base_path):
    model = AutoModelForCausalLM.from_pretrained(base_path)
    tokenizer = AutoTokenizer.from_pretrained(base_path)
    assert model.config.model_type == "qwen3"
    assert 1.8e6 <= model.num_parameters() <= 5e6  # "about 2 to 5 million"
    assert model.get_input_embeddings().num_embeddings >= len(tokenizer)
    assert all(len(tokenizer.encode(t, add_special_tokens=False)) == 1 for t in SPECIAL_TOKENS)


@pytest.mark.parametrize("name", ["base", "base_without_notes"])
def test_its_files_are_those_of_the_recipe(name):
    folder = ROOT / "data" / name
    expected = json.loads((folder / "recipe.json").read_text())["sha256"]
    assert "model.safetensors" in expected and "tokenizer.json" in expected
    assert {name: sha256(folder / name) for name in expected} == expected


def test_the_second_base_differs_in_its_weights_alone():
    """Tokenizer and shape are the same; how both were made is the recipe's."""
    ours, theirs = ROOT / "data" / "base", ROOT / "data" / "base_without_notes"
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    assert sha256(ours / "model.safetensors") != sha256(theirs / "model.safetensors")
    curriculum = runpy.run_path(str(ours / "recipe.py"))["curriculum"]
    for folder, noted in ((ours, 0.6), (theirs, 0.0)):
        made, way = json.loads((folder / "recipe.json").read_text()), curriculum(noted)
        assert (made["noted"], made["steps"], made["polish_from"]) == (noted, way.steps, way.polish_from)


def test_the_second_base_copies_and_makes_little_of_a_note():
    """What its card says, measured again on the same tasks, up to what half as many rollouts leave open."""
    folder = ROOT / "data" / "base_without_notes"
    player = untrained(RunConfig(model=ModelConfig(base=str(folder))))
    tasks = player.env.tasks("train")[:TASKS]
    groups = [[[Attempt(task, i, derive_seed("base", i))] * (ROLLOUTS // 2)] for i, task in enumerate(tasks)]
    truth = Truth(player.codec)
    plain, noted = (
        play(player.engine, player.codec, groups, coupling, player.config.rollout, 0)
        for coupling in (player.coupling, truth)
    )
    measured = json.loads((folder / "recipe.json").read_text())["measured"]
    for kind in ("values", "numbers"):
        faithful, emitted = copying(plain)[kind]
        assert faithful / emitted == pytest.approx(measured["faithful_copies"][kind], abs=0.03), kind
        assert faithful / emitted >= 0.95
    readable, made = parsing(plain)
    assert readable / made == pytest.approx(measured["readable_calls"], abs=0.03)
    without, told = (sum(row.success for row in rows) / len(rows) for rows in (plain, noted))
    assert without == pytest.approx(measured["success"], abs=0.05)
    assert told == pytest.approx(measured["success_with_truth"], abs=0.06)  # the first base: 0.67


@pytest.fixture(scope="module")
def engine(base_path, base_adapters):
    """The base, acting through adapters that change nothing."""
    engine = TorchEngine(base_path)
    engine.load(base_adapters)
    return engine


@pytest.fixture(scope="module")
def tasks(world):
    return world.split("train")[:TASKS]


@pytest.fixture(scope="module")
def groups(tasks):
    return [[[Attempt(task, i, derive_seed("base", i))] * ROLLOUTS] for i, task in enumerate(tasks)]


@pytest.fixture(scope="module")
def rows(engine, codec, groups):
    return play(engine, codec, groups, Plain(BOTH), RolloutConfig(), 0)


@pytest.fixture(scope="module")
def noted(engine, codec, groups):
    """What would be answered on the policy's way is set into its context, as `imagine` does."""
    return play(engine, codec, groups, Truth(codec), RolloutConfig(), 0)


def test_it_copies(rows, noted):
    """Who has dialled a wrong number once goes on to dial others, so later calls have a bar of their own."""
    for kind, bar in {"values": 0.99, "numbers": 0.97, "later numbers": 0.5}.items():
        faithful, emitted = copying(rows + noted)[kind]
        assert emitted >= 200 and faithful / emitted >= bar, f"{kind}: {faithful} of {emitted}"


def test_its_calls_can_be_read(rows, noted):
    readable, made = parsing(rows + noted)
    assert made >= 1000
    assert readable / made >= 0.97, f"{readable} of {made}"


def test_its_forms_say_nothing_about_the_department(rows, world):
    """Mutual information of the number of fields, and of the first field, with the department: as by chance."""
    found = form_information(rows, world)
    assert found["size"]["p"] > 0.01, found
    assert found["first"]["p"] > 0.01, found


def test_its_success_is_that_of_the_exploratory_policy(rows, world, tasks):
    """Within the central 99.9% of as many episodes with the exploratory policy's rate on the same tasks."""
    played = [play_scripted(world, task, "random", seed=k) for task in tasks for k in range(20)]
    reference = sum(episode.success for episode in played) / len(played)
    low, high = binom.interval(0.999, len(rows), reference)
    assert low <= sum(r.success for r in rows) <= high, (sum(r.success for r in rows), low, high)
    assert reference < 0.1


def test_it_follows_notes(noted):
    assert sum(r.success for r in noted) / len(noted) >= 0.60


def test_its_card_tells_what_it_does(base_path, rows, noted):
    """Up to what another processor rounds otherwise."""
    measured = json.loads((base_path / "recipe.json").read_text())["measured"]
    readable, made = parsing(rows + noted)
    assert measured["rollouts"] == len(rows) == len(noted)
    for kind, (faithful, emitted) in copying(rows + noted).items():
        assert measured["faithful_copies"][kind] == pytest.approx(faithful / emitted, abs=0.03)
    assert measured["readable_calls"] == pytest.approx(readable / made, abs=0.01)
    assert measured["success"] == pytest.approx(sum(r.success for r in rows) / len(rows), abs=0.03)
    assert measured["success_with_truth"] == pytest.approx(sum(r.success for r in noted) / len(noted), abs=0.05)


# ---------------------------------------------------------------- bf16 or fp32


@pytest.mark.parametrize(("bf16", "pays"), [(0.5, True), (0.9, False), (40.0, False)])
def test_bf16_is_chosen_where_it_is_clearly_faster(bf16, pays, monkeypatch):
    monkeypatch.setattr("lfo.text.base.fastest", lambda *contenders: [bf16, 1.0])
    assert bf16_pays.__wrapped__("cpu") is pays


def test_bf16_is_chosen_alike_whenever_it_is_asked(monkeypatch):
    """Two runs of one process must not differ in precision because the machine was busy in between."""
    chosen = bf16_pays("cpu")
    monkeypatch.setattr("lfo.text.base.fastest", lambda *contenders: [1.0, 10.0] if not chosen else [10.0, 1.0])
    assert bf16_pays("cpu") is chosen


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the variables are those of x86 processors")
def test_a_processor_without_bf16_instructions_learns_in_fp32():
    """oneDNN and ATen are kept to AVX2, as on most laptops, where bf16 is emulated and far slower than fp32."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    command = [sys.executable, "-c", "from lfo.text.base import bf16_pays; print(bf16_pays())"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT)
    assert told.stdout.strip() == "False"


def test_the_fastest_round_counts_in_processor_time(monkeypatch):
    clock = iter([0.0, 9.0, 9.0, 9.5, 10.0, 12.0, 12.0, 12.4, 20.0, 23.0, 23.0, 23.1])  # two at a time; warm-up first
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    assert fastest(lambda: None, lambda: None, rounds=2) == pytest.approx([2.0, 0.1])
