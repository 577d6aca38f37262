"""plan: the shapes are the models', the learner's peak is what a real update needs, the verdict follows."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from lfo.cli import main
from lfo.config import ConfigError, FeedbackConfig, RunConfig, load_config
from lfo.lab.plan import (
    BACKWARD,
    GIB,
    LOSS,
    SHAPE_CARDS,
    VLLM_WORKSPACE,
    GpuPlan,
    Item,
    Shape,
    learner_items,
    plan,
    question_tokens,
    render,
    shape_of,
    torch_engine_items,
    vllm_items,
)
from lfo.lab.scaling import WAYS, random_base, update_peaks
from lfo.learn.adapters import parameters, with_adapters
from lfo.learn.forward import LOGITS
from lfo.rollout import Prompt, complete, torch_engine
from lfo.rollout.decoder import Decoder
from lfo.rollout.torch_engine import TorchEngine
from lfo.text.base import load_base

ROOT = Path(__file__).resolve().parents[2]
SIZES = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}
QWEN3 = Qwen3Config(**SIZES, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def middling(tmp_path_factory):
    """middling(vocabulary): `random_base`."""
    return functools.cache(lambda vocabulary: random_base(tmp_path_factory.mktemp("middling"), vocabulary))


# --- shapes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        QWEN3,
        Qwen3Config(**SIZES, tie_word_embeddings=True),
        LlamaConfig(**SIZES, tie_word_embeddings=True),
        Qwen2Config(**SIZES, tie_word_embeddings=False),
    ],
    ids=["qwen3", "tied", "llama", "qwen2"],
)
def test_a_shape_has_the_parameters_of_its_model(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = Shape.of(config)
    assert shape.parameters == model.num_parameters()
    assert shape.layer_parameters == sum(p.numel() for p in model.model.layers[0].parameters())


@pytest.mark.parametrize("targets", ["all-linear", "attention"])
def test_an_adapter_has_the_parameters_of_pefts(make_config, toy_path, targets):
    config = make_config(**{"model.targets": targets})
    model = with_adapters(load_base(toy_path), config.model, ["policy"], 0)
    expected = sum(p.numel() for p in parameters(model, "policy"))
    assert shape_of(str(toy_path)).adapter_parameters(config.model) == expected


def test_cards_have_the_published_parameters():
    published = {"qwen3-8b": 8_190_735_360, "qwen3-0.6b": 596_049_920, "smollm2-135m": 134_515_008}
    published["qwen2.5-32b"] = 32_763_876_352
    assert {name: shape.parameters for name, shape in SHAPE_CARDS.items()} == published


def test_a_card_stands_in_for_a_base_that_is_not_here(middling, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lfo.text.base.cached_file", lambda *_: None)
    assert shape_of(middling(1024)) == Shape.of(QWEN3)
    assert shape_of("Qwen/Qwen3-8B-Base") == shape_of("models/qwen3-8b/") == SHAPE_CARDS["qwen3-8b"]
    path = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.touch()
    monkeypatch.setattr("lfo.text.base.is_gguf_available", lambda: False)
    assert shape_of(str(path)) == SHAPE_CARDS["smollm2-135m"]
    for other in ("Qwen/Qwen9-8B", "us/Qwen3-8B-pruned-4B"):
        with pytest.raises(ConfigError, match=rf"the shape of '{other}' is not known: .* one of: qwen3-8b, "):
            shape_of(other)


# --- against measured peaks ------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_an_update_needs_what_was_planned(middling, way):
    """Within 10% of the measured peak of a whole update, and exactly what was there before."""
    found = update_peaks(way, middling(way.vocabulary))
    assert found["planned"] == pytest.approx(found["measured"], rel=0.1)
    assert found["planned_before"] == pytest.approx(found["measured_before"], rel=0.001)


@pytest.mark.parametrize("limit", [None, 16])
def test_the_torch_engine_keeps_what_was_planned(make_config, toy_path, toy_adapters, monkeypatch, limit):
    """A session of a step's 40 rollouts that grows to max_tokens, all or 16 at a time; the models that decode it."""
    if limit:
        token_bytes = Decoder(load_base(toy_path)).token_bytes
        monkeypatch.setattr(torch_engine, "CACHE", limit * 1024 * token_bytes)
    config = make_config(**{"rollout.max_tokens": 40, "rollout.group_size": 20, "world_model": None})
    rows = config.rollout.tasks_per_step * config.rollout.group_size
    items = {item.name: item.bytes for item in torch_engine_items(shape_of(str(toy_path)), config)}
    engine = TorchEngine(toy_path)
    engine.load({"policy": toy_adapters["policy"]})
    complete(engine, [Prompt([5 + i] * 31, "policy", 9, -1, 1.0, session=i) for i in range(rows)])
    held = sum(batch.cache.buffer.nbytes for batch in engine._batches.values())
    assert held == items["engine: KV caches"] == 2 * items["engine: a cache that grows"]
    assert {batch.cache.slots for batch in engine._batches.values()} == {limit or 64}
    decoders = [batch.decoder for batch in engine._batches.values()]
    kept = [tensor for decoder in decoders for tensor in tensors_of(decoder)]
    kept += engine._pristine.parameters()
    weights = sum({tensor.data_ptr(): tensor.nbytes for tensor in kept}.values())
    assert weights == pytest.approx(items["engine: base and merged copies"], rel=0.01)


def test_who_teaches_or_writes_has_a_cache_of_its_own(toy_path):
    """As large as the policy's; a live teacher who only hears the rules has none, a memory neither."""

    def caches(**settings) -> float:
        config = load_config(ROOT / "configs" / "feedback.yaml", **settings)
        return {i.name: i.bytes for i in torch_engine_items(shape_of(str(toy_path)), config)}["engine: KV caches"]

    alone = caches(**{"feedback.teacher": "live"})
    assert caches() == caches(**{"feedback.teacher": "live", "feedback.source": "both"}) == 2 * alone > 0
    assert caches(**{"world_model.coupling": "memory"}) == 2 * alone


def test_every_world_model_has_a_cache_and_one_grows_at_a_time(toy_path):
    one, three = (
        {
            i.name: i.bytes
            for i in torch_engine_items(
                shape_of(str(toy_path)), load_config("configs/laptop.yaml", **{"world_model.members": members})
            )
        }
        for members in (1, 3)
    )
    policy = torch_engine_items(shape_of(str(toy_path)), load_config("configs/laptop.yaml", world_model=None))
    policy = next(i.bytes for i in policy if i.name == "engine: KV caches")
    cache, grows = "engine: KV caches", "engine: a cache that grows"
    assert three[cache] - policy == pytest.approx(3 * (one[cache] - policy)) and one[cache] > policy > 0
    assert three[grows] == one[grows]


def tensors_of(decoder) -> list[torch.Tensor]:
    maps = [m for layer in decoder.layers for m in (layer.qkv, layer.attended, layer.gate_up, layer.down)]
    return [decoder.embedding, decoder.head.weight, *(m.weight for m in maps)]


# --- what follows from the settings ----------------------------------------------------------


def bytes_of(config: RunConfig, device: str = "cuda") -> dict[str, float]:
    return {item.name: item.bytes for item in learner_items(SHAPE_CARDS["qwen3-8b"], config, device)}


@pytest.fixture
def large() -> RunConfig:
    return load_config(ROOT / "configs" / "qwen3_8b.yaml")


def with_distributed(config: RunConfig, **settings) -> RunConfig:
    return dataclasses.replace(config, distributed=dataclasses.replace(config.distributed, **settings))


POSITIONS = LOGITS // 151_936  # whose logits exist at a time


def test_shards_by_hand(large):
    """Qwen3-8B: 2 bytes of 8,190,735,360 parameters over 6; two adapters of r (inputs + outputs) in 36 layers."""
    adapter = 36 * 16 * (8192 + 5120 + 5120 + 8192 + 16_384 + 16_384 + 16_384)
    sizes = bytes_of(large)
    assert sizes["base"] == 2 * 8_190_735_360 / 6
    assert (sizes["adapters"], sizes["optimizer"]) == (4 * 2 * adapter / 6, 8 * 2 * adapter / 6)
    assert sizes["gradients"] == sizes["adapters"]
    assert sizes["kept activations"] == 36 * 10_240 * 4096 * 2 + 10_240 * 4096 * 4
    assert sizes["logits"] == 12 * POSITIONS * 151_936
    layer = SHAPE_CARDS["qwen3-8b"].layer_parameters
    assert sizes["all-gather buffers"] == 2 * (2 * 151_936 * 4096 + 4096 + 2 * layer)


def test_who_reads_before_it_answers_has_longer_rows(large):
    """Eight calls, each of a request of 100 tokens and a reply of 112, before what all are asked; also in learning."""
    short = dataclasses.replace(large, rollout=dataclasses.replace(large.rollout, max_tokens=1024))
    reading = dataclasses.replace(short, world_model=dataclasses.replace(large.world_model, reads=8))
    assert question_tokens(reading) - question_tokens(short) == 8 * 212
    kept, more = (bytes_of(with_distributed(c, micro_batch_tokens=1))["kept activations"] for c in (short, reading))
    assert more / kept == question_tokens(reading) / 1024 > 2
    packed, reads = (bytes_of(with_distributed(c, micro_batch_tokens=4096)) for c in (short, reading))
    assert all(reads[name] >= packed[name] for name in packed), "shorter rows fill a micro-batch better"
    remembering = dataclasses.replace(reading.world_model, coupling="memory")
    assert question_tokens(dataclasses.replace(reading, world_model=remembering)) == question_tokens(short), "no model"


def test_an_entropy_bonus_keeps_probabilities_and_their_products(large):
    """Two fp32 arrays more for each position: what the peak of `forward._score` grows by."""
    policy = dataclasses.replace(large.policy, entropy=0.01)
    bonus, without = bytes_of(dataclasses.replace(large, policy=policy)), bytes_of(large)
    assert bonus["logits"] - without["logits"] == 2 * 4 * POSITIONS * 151_936
    assert bonus | {"logits": 0} == without | {"logits": 0}


def test_what_a_layer_keeps_by_hand(large):
    """Per token of Qwen3-8B under autocast: norms; queries and keys; adapters' inputs, masks, products; sdpa; MLP."""
    norms = 2 * 4096 * 4 + (4096 + 1024) * 4
    adapters = (6 * 4096 + 12_288) * (1 + 2) + 7 * 16 * 2  # boolean masks on a GPU
    assert bytes_of(large)["one layer again"] == 10_240 * (
        norms + adapters + 2 * (4096 + 1024) * 2 + 32 * 4 + 3 * 12_288 * 2  # queries, keys, values, result
    )


def test_one_process_shards_and_gathers_nothing(large):
    alone = bytes_of(with_distributed(large, processes=1))
    assert alone["all-gather buffers"] == 0
    assert alone["base"] == 6 * bytes_of(large)["base"]


def test_checkpointing_and_few_logits_save_what_they_are_for(large):
    sizes, without = bytes_of(large), bytes_of(with_distributed(large, gradient_checkpointing=False))
    last = 10_240 * 4096 * 4
    assert without["kept activations"] - last == pytest.approx(36 * sizes["one layer again"])
    assert without["one layer again"] == 0
    every = {i.name: i.bytes for i in learner_items(SHAPE_CARDS["qwen3-8b"], large, "cuda", logits=2**40)}
    assert every["logits"] == 12 * 10_240 * 151_936  # of a whole trajectory


@pytest.mark.parametrize("pays", [True, False])
def test_auto_is_what_the_device_is_good_at(large, monkeypatch, pays):
    monkeypatch.setattr("lfo.lab.plan.bf16_pays", lambda device: pays)
    plans = {
        a: learner_items(
            SHAPE_CARDS["qwen3-8b"],
            dataclasses.replace(large, model=dataclasses.replace(large.model, autocast=a)),
            "cpu",
        )
        for a in ("auto", True, False)
    }
    assert plans["auto"] == plans[pays] != plans[not pays]


@pytest.mark.parametrize(
    ("coupling", "members", "count"),
    [("imagine", 1, 2), ("imagine", 3, 4), ("shared", 1, 1), ("echo", 1, 1), (None, 1, 1)],
)
def test_the_run_decides_on_the_adapters(large, coupling, members, count):
    w = coupling and dataclasses.replace(large.world_model, coupling=coupling, members=members)
    rollout = dataclasses.replace(large.rollout, temperature=1.0)
    model = dataclasses.replace(large.model, dialect="tags")
    config = dataclasses.replace(large, world_model=w, rollout=rollout, model=model)
    adapter = SHAPE_CARDS["qwen3-8b"].adapter_parameters(config.model)
    assert bytes_of(config)["adapters"] == 4 * count * adapter / 6
    sizes = bytes_of(dataclasses.replace(config, feedback=FeedbackConfig(teacher="average")))
    if coupling:
        cloning = dataclasses.replace(config, world_model=dataclasses.replace(w, coupling="cloning", members=1))
        assert bytes_of(cloning)["adapters"] == 4 * adapter / 6
    averages = [each["running averages"] / (4 * adapter / 6) for each in (bytes_of(config), sizes)]
    assert averages == [count - 1, count], "of world models, and of the policy, who is nobody's to train"
    assert sizes["optimizer"] == bytes_of(config)["optimizer"]


# --- vLLM and the verdict --------------------------------------------------------------------


def test_what_vllm_has_left_is_its_cache(large):
    """Share - weights - adapters - workspace; 36 layers of keys and values of 8 x 128 numbers, 2 bytes, over 2 GPUs."""
    items, note, problem = vllm_items(SHAPE_CARDS["qwen3-8b"], large, 20 * GIB)
    assert sum(item.bytes for item in items) == pytest.approx(20 * GIB)
    cache = next(item.bytes for item in items if item.name == "engine: KV cache")
    per_token = 36 * 2 * 8 * 128 * 2 / 2
    assert f"holds {int(cache / per_token):,} tokens" in note and not problem
    weights = next(item.bytes for item in items if item.name == "engine: weights")
    assert (weights, items[2].bytes) == (8_190_735_360, VLLM_WORKSPACE)
    world_model = dataclasses.replace(large.world_model, coupling="stacked")
    stacked, _, _ = vllm_items(SHAPE_CARDS["qwen3-8b"], dataclasses.replace(large, world_model=world_model), 20 * GIB)
    assert stacked[1].bytes == 1.5 * items[1].bytes  # the sum of both, and the world model


def test_a_cache_without_room_for_a_trajectory_does_not_fit(large):
    _, note, problem = vllm_items(SHAPE_CARDS["qwen3-8b"], large, 10.3 * GIB)
    assert problem == "the KV cache cannot hold one trajectory"
    assert "0.7 trajectories of 10,240" in note
    full = GpuPlan("vLLM server", 2, 24 * GIB, (Item("engine: weights", GIB),), note, problem)
    assert not full.fits and "does not fit: the KV cache cannot hold one trajectory" in render([full])


def test_the_peak_is_the_worst_moment():
    items = (Item("a", 5 * GIB), Item("b", 4 * GIB, (LOSS,)), Item("c", 3 * GIB, (BACKWARD, LOSS)), Item("none", 0))
    gpu = GpuPlan("learner", 3, 11.5 * GIB, items)
    assert (gpu.peak, gpu.need(LOSS), gpu.need(BACKWARD), gpu.fits) == (LOSS, 12 * GIB, 8 * GIB, False)
    assert render([gpu]).splitlines() == [
        "learner: 3 x 12 GiB",
        "                                        GiB  needed at",
        "  a                                    5.00  always",
        "  b                                    4.00  loss",
        "  c                                    3.00  backward, loss",
        "  peak, at loss                       12.00",
        "  does not fit: 0.50 GiB are missing",
    ]
    assert render([dataclasses.replace(gpu, capacity=12 * GIB)]).endswith("  fits")


def test_engines_have_the_gpus_they_share_or_own(large, monkeypatch):
    monkeypatch.setattr("lfo.text.base.cached_file", lambda *_: None)
    assert [(p.role, p.count) for p in plan(large)] == [("learner", 6), ("vLLM server", 2)]
    four = dataclasses.replace(large, rollout=dataclasses.replace(large.rollout, engine="http://a,http://b"))
    assert plan(four)[1].count == 4
    names = [item.name for p in plan(large) for item in p.items]
    assert names.count("CUDA context ~") == 2
    assert "CUDA context ~" not in [item.name for p in plan(large, "cpu") for item in p.items]


@pytest.mark.parametrize(
    "name",
    [f"qwen3_8b{part}" for part in ("", "_baseline", "_feedback", "_colocated")]
    + ["qwen3_0.6b", "smollm2_135m", "laptop"],
)
def test_the_shipped_configs_fit(name, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("lfo.text.base.cached_file", lambda *_: None)  # shape cards, whatever the hub's cache holds
    assert main(["plan", "--config", f"configs/{name}.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "  fits\n" in shown and "does not fit" not in shown
    assert main(["plan", "--config", f"configs/{name}.yaml", "--gpu-gib", "1"]) == 0
    assert "does not fit" in capsys.readouterr().out


def test_the_large_baseline_is_the_large_run_without_a_world_model():
    ours, baseline = (load_config(ROOT / "configs" / f"qwen3_8b{part}.yaml") for part in ("", "_baseline"))
    assert dataclasses.replace(ours, name=baseline.name, world_model=None) == baseline


def test_a_shape_card_is_asked_before_the_hub(monkeypatch):
    monkeypatch.setattr("lfo.lab.plan.AutoConfig.from_pretrained", lambda **_: pytest.fail("the hub was asked"))
    assert shape_of("Qwen/Qwen3-8B-Base") == SHAPE_CARDS["qwen3-8b"]
