"""What a GPU changes: speed, and nothing that is computed. Skipped where there is no CUDA device.

`scripts/gpu_check.sh tests` runs this file on a machine that has one.
"""

from __future__ import annotations

import copy
import os
import random
import socket

import pytest
import torch
import torch.multiprocessing as multiprocessing
from accelerate import PartialState
from transformers import AutoModelForCausalLM

from lfo import distributed
from lfo.cli import usable_device
from lfo.config import ConfigError
from lfo.couplings.plain import BOTH
from lfo.lab.player import load_player
from lfo.learn.learner import Learner
from lfo.learn.objectives import Dapo
from lfo.rollout import Prompt, complete
from lfo.rollout.torch_engine import TorchEngine
from lfo.runs import RunFolder
from lfo.text.base import bf16_pays
from lfo.train import Run, train
from lfo.types import Encoded, Role, Sample

DEVICE = "cuda"

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
    pytest.mark.filterwarnings("default"),  # NCCL and drivers warn of what is not this project's
]


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(20, 1000) for _ in range(count)]


# --- the torch engine ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engines(toy_path, toy_adapters) -> list[TorchEngine]:
    """On CPU, on the GPU; both with the same adapters."""
    made = [TorchEngine(toy_path, device) for device in ("cpu", DEVICE)]
    for engine in made:
        engine.load(toy_adapters)
    return made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_torch_engine_says_what_it_says_on_cpu(engines, codec, temperature):
    """Sampled, too: the random numbers are drawn on the CPU."""
    rng, adapters = random.Random(0), ("base", "policy", "world_model")
    asked = [Prompt(ids(rng, 3 + 5 * i), adapters[i % 3], 16, codec.end_id, temperature, i) for i in range(9)]
    expected, found = (complete(engine, asked) for engine in engines)
    assert [c.tokens for c in found] == [c.tokens for c in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def test_kept_sessions_change_nothing_on_a_gpu(engines, codec):
    """A context that grows turn by turn says what the whole context says at once."""
    rng, engine = random.Random(1), engines[1]
    context = ids(rng, 12)
    for _ in range(3):
        (kept,) = complete(engine, [Prompt(context, "policy", 8, codec.end_id, 0.0, session="s")])
        (fresh,) = complete(engine, [Prompt(context, "policy", 8, codec.end_id, 0.0)])
        assert kept.tokens == fresh.tokens
        context = [*context, *kept.tokens, *ids(rng, 5)]
    engine.end_session("s")


# --- the learner -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    rng, made = random.Random(2), []
    for i, length in enumerate((12, 19, 7, 30)):
        roles = [int(Role.PROMPT)] * 4 + [int(Role.ACTION if j % 3 else Role.OBSERVATION) for j in range(length - 4)]
        acted = [role == Role.ACTION for role in roles]
        old, advantages = [-6.0 * a for a in acted], [(-1.0) ** i * a for a in acted]
        made.append(Sample(ids(rng, length), roles, old, advantages))
    return made


@pytest.fixture(scope="module")
def examples() -> list[Encoded]:
    rng = random.Random(3)
    return [Encoded(tuple(ids(rng, 5 + 4 * i)), tuple(ids(rng, 3 + i))) for i in range(4)]


@pytest.fixture
def learners(make_config):
    """learners(bf16=..., **settings): one on CPU in fp32, and one on the GPU with the very same adapters."""

    def make(bf16: bool = False, **settings) -> tuple[Learner, Learner]:
        config = make_config(**settings)
        here = Learner(config, BOTH, Dapo(config), 0)
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for name in BOTH.names:
                for parameter in here.parameters(name):
                    parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        there = Learner(config, BOTH, Dapo(config), 0, device=DEVICE, bf16=bf16)
        there.load_state(here.state())
        return here, there

    return make


def gradients(learner: Learner, work) -> torch.Tensor:
    """Of all adapters, as the optimizer sees them."""
    seen: list[torch.Tensor] = []

    def look(optimizer, *_):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        seen.append(
            torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().cpu() for p in parameters])
        )

    handle = learner.optimizer.register_step_pre_hook(look)
    work(learner)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("frugal", [False, True], ids=["plain", "checkpointed"])
def test_log_probabilities_and_gradients_are_those_of_the_cpu(learners, samples, examples, frugal):
    settings = {"distributed.gradient_checkpointing": frugal, "distributed.micro_batch_tokens": 40}
    here, there = learners(**settings)
    pairs = zip(here.action_logprobs(samples), there.action_logprobs(samples), strict=True)
    for expected, found in pairs:
        assert found == pytest.approx(expected, abs=1e-3)
    assert there.surprise(examples) == pytest.approx(here.surprise(examples), rel=1e-3)
    expected, found = (gradients(x, lambda x: x.update(samples, examples, 0.0, 0)) for x in (here, there))
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-4 * expected.abs().max().item())


def test_an_update_moves_the_weights_as_on_cpu(learners, samples, examples):
    """Adam divides by a gradient's size, so tiny gradients are no matter of precision: directions are compared."""
    moved = []
    for learner in learners():
        before = torch.cat([p.detach().flatten().cpu() for name in BOTH.names for p in learner.parameters(name)])
        learner.update(samples, examples, 1.0, 0)
        learner.replay(examples, 1.0, 1)
        after = torch.cat([p.detach().flatten().cpu() for name in BOTH.names for p in learner.parameters(name)])
        moved.append(after - before)
    assert torch.cosine_similarity(*moved, dim=0) > 0.99


def test_bf16_is_near_fp32(learners, samples, examples):
    here, there = learners(bf16=True)
    expected, found = (gradients(x, lambda x: x.update(samples, examples, 0.0, 0)) for x in (here, there))
    assert torch.cosine_similarity(expected, found, dim=0) > 0.95


def test_the_device_says_whether_bf16_pays(make_config, tmp_path):
    assert bf16_pays(DEVICE) == torch.cuda.is_bf16_supported(including_emulation=False)
    run = Run(make_config(**{"model.autocast": "auto"}), tmp_path, device=DEVICE)
    assert run.bf16 == bf16_pays(DEVICE)


# --- FSDP ------------------------------------------------------------------------------------


def shard_and_compare(rank: int, device: str, base: str, port: int) -> None:
    """In a process of its own, the only one of its group: gradients under FSDP2 are those without."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(port)
    PartialState(cpu=torch.device(device).type == "cpu")
    tokens = torch.randint(20, 1000, (2, 24), generator=torch.Generator().manual_seed(0)).to(device)
    plain = AutoModelForCausalLM.from_pretrained(base).to(device)
    other = copy.deepcopy(plain)
    layers = plain._no_split_modules
    sharded, optimizer = distributed.shard(other, torch.optim.AdamW(other.parameters(), lr=1e-3), layers)
    for model in (plain, sharded):
        model(tokens, labels=tokens).loss.backward()
    found = distributed.whole({name: p.grad for name, p in sharded.named_parameters()})
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-5)
    optimizer.step()


def test_one_process_under_fsdp_has_the_gradients_of_none(toy_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    multiprocessing.spawn(shard_and_compare, (DEVICE, str(toy_path), port), nprocs=1)


# --- runs ------------------------------------------------------------------------------------


def test_a_run_on_a_gpu_is_played_on_a_cpu(make_config, env, tmp_path):
    config = make_config(**{"world_model.coupling": "imagine"})
    folder = RunFolder(train(config, tmp_path / "run", env, device=DEVICE, progress=False))
    assert folder.finished(config)
    player = load_player(folder.path, env)
    assert sorted(player.adapters) == ["policy", "world_model"]


def test_a_checkpoint_of_a_cpu_goes_on_on_a_gpu(make_config, env, tmp_path):
    config = make_config()
    here = Run(config, tmp_path / "run", env)
    here.publish()
    here.advance()
    here.save()
    there = Run(config, tmp_path / "run", env, device=DEVICE)
    assert there.resume() and there.step == 1
    there.publish()
    assert there.advance()["step"] == 2


def test_a_device_that_does_not_exist_is_named():
    missing = f"{DEVICE}:{torch.cuda.device_count()}"
    with pytest.raises(ConfigError, match=missing):
        usable_device(missing)
    assert usable_device(DEVICE) == DEVICE
