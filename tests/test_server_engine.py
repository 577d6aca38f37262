"""server_engine: what the servers answer reaches the loop, whichever of them dies on the way.

The servers here are small stand-ins that speak vLLM's HTTP API over a torch engine; test_vllm_engine.py
does it once more with real ones.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import lfo.rollout
from lfo.config import NO_WORLD_MODEL, ConfigError
from lfo.rollout import Prompt, TorchEngine, UnknownAdapter, VllmServerEngine, make_engine, server_engine
from lfo.rollout.engine import version_name
from lfo.rollout.server_engine import NoServerLeft, ServerRefused, serve_command
from lfo.train import Run, train

NO_STOP = 1_000_000  # a token that is never sampled


class Http(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


class StandIn:
    """A server on a port of its own that answers as `vllm serve` does, until it is told to fail."""

    def __init__(self, base: Path, port: int = 0):
        self.engine, self.lock = TorchEngine(base), threading.Lock()
        self.adapters: dict[str, str] = {}  # what /v1/models would list
        self.asked = 0  # completions
        self.answered: list[dict] = []  # the requests for completions that it answered
        self.statuses: list[int] = []  # answer the next completions so instead
        self.speaks = threading.Event()  # while it is not set, completions wait for their answers
        self.speaks.set()
        self.dies_after: int | None = None  # completions; then connections break off without an answer
        self.connections: list[socket.socket] = []
        self.raw_logprobs = self.refuses_adapters = False
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            log_message = staticmethod(lambda *args: None)

            def setup(self):
                super().setup()
                stand_in.connections.append(self.connection)

            def do_GET(self):
                self.reply(503 if stand_in.dead else 200, {})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = stand_in.answer(self.path, body)
                if answer is None:
                    self.close_connection = True
                else:
                    self.reply(*answer)

            def reply(self, status: int, body: dict):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the engine has stopped waiting
                    self.wfile.write(data)

        self.http = Http(("127.0.0.1", port), Handler)
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.dies_after = 0
        self.speaks.set()
        self.http.shutdown()
        self.http.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def dead(self) -> bool:
        return self.dies_after is not None and len(self.answered) >= self.dies_after

    def answer(self, path: str, body: dict) -> tuple[int, dict] | None:
        if self.dead:
            return None
        if path == "/v1/completions":
            return self.complete(body)
        name = body["lora_name"]
        if path == "/v1/unload_lora_adapter":
            return (200, {}) if self.adapters.pop(name, None) else (404, error("cannot be found."))
        if self.refuses_adapters:
            return 400, error("LoRA rank 64 is greater than max_lora_rank 16.")
        if name in self.adapters:
            return 400, error(f"The lora adapter '{name}' has already been loaded.")
        with self.lock:
            self.engine.load({name: Path(body["lora_path"])})
        self.adapters[name] = body["lora_path"]
        return 200, {}

    def complete(self, body: dict) -> tuple[int, dict]:
        if body["model"] not in [*self.adapters, "base"]:
            return 404, error(f"The model `{body['model']}` does not exist.")
        if body["logprobs"] == 2:  # the engine asks which distribution the log-probs are of
            scale = 1.0 if self.raw_logprobs else body["temperature"]
            return 200, {"choices": [{"logprobs": {"top_logprobs": [{"a": -1.0 / scale, "b": -2.0 / scale}]}}]}
        self.asked += 1
        self.speaks.wait()
        if self.statuses:
            return self.statuses.pop(0), error("overloaded")
        prompt = Prompt(
            body["prompt"], body["model"], body["max_tokens"], body["stop_token_ids"][0], body["temperature"]
        )
        with self.lock:
            (completion,) = self.engine.generate([prompt], body["seed"])
            self.answered.append(body)
        scores = {"token_logprobs": completion.logprobs}
        return 200, {"choices": [{"token_ids": completion.tokens, "logprobs": scores}]}


def error(message: str) -> dict:
    return {"error": {"message": message}}


@pytest.fixture
def start(toy_path):
    """start(port): a stand-in that is closed after the test."""
    running = []

    def one(base: Path = toy_path, port: int = 0) -> StandIn:
        running.append(StandIn(base, port))
        return running[-1]

    yield one
    for server in running:
        server.close()


@pytest.fixture
def pair(start):
    return start(), start()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(server_engine, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(server_engine, "LONGEST_PAUSE", 0.1)


def engine_for(*servers: StandIn, **settings) -> VllmServerEngine:
    return VllmServerEngine([s.url for s in servers], **({"patience_seconds": 0.1} | settings))


def mixed_prompts(count: int, temperature: float, max_new: int = 6) -> list[Prompt]:
    rng = random.Random(0)
    names = ("policy", "world_model", "base")
    return [
        Prompt([rng.randrange(1000) for _ in range(3 + i)], names[i % 3], max_new, NO_STOP, temperature)
        for i in range(count)
    ]


# --- what is asked and answered --------------------------------------------------------------


def test_servers_answer_as_the_torch_engine_does(pair, toy_path, toy_adapters):
    torch_engine, engine = TorchEngine(toy_path), engine_for(*pair)
    for e in (torch_engine, engine):
        e.load(toy_adapters)
    prompts = mixed_prompts(6, temperature=0.0)
    completions = engine.generate(prompts, 0)
    for mine, theirs in zip(completions, torch_engine.generate(prompts, 0), strict=True):
        assert mine.tokens == theirs.tokens and mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert engine.generated_tokens == sum(len(c.tokens) for c in completions) == 36
    assert engine.generate([], 0) == []


def test_sampling_is_the_models_own_and_seeded_by_request(pair, toy_adapters):
    """How many servers there are, and who answers, changes nothing; top-k and the like are switched off by name."""
    alone, both = engine_for(pair[0]), engine_for(*pair)
    for engine in (alone, both):
        engine.load(toy_adapters)
    prompts = mixed_prompts(4, temperature=1.0)
    first = alone.generate(prompts, 7)
    assert both.generate(prompts, 7) == first != alone.generate(prompts, 8)
    body = pair[0].answered[0]
    assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1.0, 0, 0.0, 1.0)
    assert body["ignore_eos"] and body["return_token_ids"] and body["temperature"] == 1.0


def test_requests_go_round_and_sessions_stay(pair, toy_adapters):
    engine = engine_for(*pair)
    engine.load(toy_adapters)
    engine.generate(mixed_prompts(8, 1.0), 0)
    assert [len(server.answered) for server in pair] == [4, 4]
    for server in pair:
        server.answered.clear()
    for _ in range(2):
        engine.generate([Prompt([5, key], "policy", 2, NO_STOP, 1.0, session=key) for key in (3, 1, 2)], 0)
    assert [{body["prompt"][1] for body in server.answered} for server in pair] == [{2}, {1, 3}]


def test_a_new_version_replaces_the_old(pair, toy_adapters, tmp_path):
    """Also under the same path: a folder that was written anew has another name on the servers."""
    engine, folder = engine_for(*pair), tmp_path / "v1"
    shutil.copytree(toy_adapters["policy"], folder)
    prompt = Prompt([5, 6, 7], "policy", 6, NO_STOP, 0.0)
    engine.load({"policy": folder, "world_model": toy_adapters["world_model"]})
    first, before = engine.generate([prompt], 0), [set(server.adapters) for server in pair]
    shutil.rmtree(folder)
    shutil.copytree(toy_adapters["world_model"], folder)
    engine.load({"policy": folder})
    assert engine.generate([prompt], 0) != first
    for server, names in zip(pair, before, strict=True):
        assert len(server.adapters) == 2 and len(names & set(server.adapters)) == 1  # the world model's
    engine.load({"policy": folder})  # nothing new: it stays
    assert all(len(server.adapters) == 2 for server in pair)


def test_version_names_follow_path_and_weights(toy_adapters, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(toy_adapters["policy"], tmp_path / name)
    names = [version_name("policy", tmp_path / name) for name in ("a", "b", "a")]
    assert names[0] == names[2] != names[1]
    weights = tmp_path / "a" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert version_name("policy", tmp_path / "a") not in names
    with pytest.raises(FileNotFoundError, match="holds no peft adapter"):
        version_name("policy", tmp_path)


# --- faults ----------------------------------------------------------------------------------


def test_an_error_is_tried_again_elsewhere(pair, toy_adapters):
    engine = engine_for(*pair)
    engine.load(toy_adapters)
    pair[0].statuses = [503, 429]
    prompts = mixed_prompts(2, 1.0)
    assert engine.generate(prompts, 0) == engine.generate(prompts, 0)
    assert not pair[0].statuses


def test_an_error_that_stays_is_reported(pair, toy_adapters):
    engine = engine_for(*pair)
    engine.load(toy_adapters)
    for server in pair:
        server.statuses = [500] * 20
    with pytest.raises(ServerRefused, match=r"http://127.* does not answer a request: 500 overloaded\."):
        engine.generate(mixed_prompts(1, 1.0), 0)
    for server in pair:
        server.statuses = [400]
    with pytest.raises(ServerRefused, match="400 overloaded"):  # at once: the request is wrong
        engine.generate(mixed_prompts(1, 1.0), 0)
    assert sorted(len(server.statuses) for server in pair) == [0, 1]


def test_a_silent_server_is_left_and_taken_back(pair, toy_adapters, caplog):
    engine = engine_for(*pair, request_seconds=3.0)
    engine.load(toy_adapters)
    prompts = mixed_prompts(4, 1.0)
    expected = engine.generate(prompts, 0)
    pair[1].speaks.clear()
    assert engine.generate(prompts, 0) == expected
    assert f"lost the vLLM server {pair[1].url}: timed out" in caplog.text
    pair[1].speaks.set()
    assert engine.generate(prompts, 0) == expected and pair[1].asked == 4
    engine.load(toy_adapters)
    assert engine.generate(prompts, 0) == expected and pair[1].asked == 6


def test_requests_of_a_dead_server_go_to_the_others(pair, start, toy_adapters):
    """It dies between two of its answers; started again, and empty, it joins at the next load."""
    engine = engine_for(*pair)
    engine.load(toy_adapters)
    prompts = mixed_prompts(12, 1.0)
    expected = engine.generate(prompts, 0)
    pair[1].dies_after = len(pair[1].answered) + 2
    assert engine.generate(prompts, 0) == expected
    pair[1].close()
    assert engine.generate(prompts, 0) == expected
    again = start(port=pair[1].port)
    engine.load(toy_adapters)
    assert engine.generate(prompts, 0) == expected and len(again.answered) == 6


def test_a_restarted_server_is_given_the_adapters(start, toy_adapters):
    server = start()
    engine = engine_for(server)
    engine.load(toy_adapters)
    expected = engine.generate(mixed_prompts(6, 1.0), 0)
    server.adapters.clear()
    assert engine.generate(mixed_prompts(6, 1.0), 0) == expected
    assert len(server.adapters) == 2


def test_when_no_server_is_left_the_engine_waits(start, toy_adapters):
    server = start()
    engine = engine_for(server, patience_seconds=60.0)
    engine.load(toy_adapters)
    prompts = mixed_prompts(6, 1.0)
    expected = engine.generate(prompts, 0)
    server.close()
    threading.Timer(0.3, start, kwargs={"port": server.port}).start()
    assert engine.generate(prompts, 0) == expected


def test_when_none_comes_back_it_says_so(pair, toy_adapters):
    engine = engine_for(*pair)
    engine.load(toy_adapters)
    for server in pair:
        server.close()
    began = time.monotonic()
    for _ in range(2):  # and again: what was given up once is not given up for good
        with pytest.raises(NoServerLeft) as caught:
            engine.generate(mixed_prompts(40, 1.0), 0)
        assert all(f"{server.url}: ConnectError" in str(caught.value) for server in pair)
        assert "start one with `lfo serve`" in str(caught.value)
    assert time.monotonic() - began < 10  # one wait for all requests, not one for each
    with pytest.raises(NoServerLeft):
        engine_for(*pair)


def test_a_server_that_does_not_fit_is_refused(start, toy_adapters):
    server = start()
    engine = engine_for(server)
    with pytest.raises(UnknownAdapter, match="no adapter 'policy' is loaded; loaded: base"):
        engine.generate(mixed_prompts(1, 1.0), 0)
    server.refuses_adapters = True
    with pytest.raises(ServerRefused, match=r"cannot load the adapter in .*policy \(400 LoRA rank 64 .*lfo serve"):
        engine.load(toy_adapters)
    server.refuses_adapters, server.raw_logprobs = False, True
    with pytest.raises(ServerRefused, match=r"log-probs from before temperature: .*processed_logprobs"):
        engine.load(toy_adapters)


# --- a run -----------------------------------------------------------------------------------


def metrics_of(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


def test_a_run_whose_servers_all_die_goes_on_as_if_they_had_not(start, make_config, base_path, tmp_path, monkeypatch):
    """The run stops with one sentence; with servers elsewhere it resumes to the metrics of the undisturbed run."""
    monkeypatch.setattr(lfo.rollout, "VllmServerEngine", lambda urls: VllmServerEngine(urls, patience_seconds=0.1))
    settings = {"model.base": str(base_path), "levels": [1], "env.slack": 3, "rollout.max_action_tokens": 32}
    settings |= {"rollout.tasks_per_step": 1, "env.max_turns": 4, "eval_splits": ["validation"], **NO_WORLD_MODEL}

    def config(server: StandIn):
        return make_config(**settings, **{"rollout.engine": "server", "rollout.servers": [server.url]})

    healthy = start(base_path)
    train(config(healthy), tmp_path / "reference", progress=False)
    doomed = start(base_path)
    doomed.dies_after = len(healthy.answered) * 3 // 5
    with pytest.raises(NoServerLeft):
        train(config(doomed), tmp_path / "run", progress=False)
    steps = [row["step"] for row in metrics_of(tmp_path / "run") if row["kind"] == "step"]
    assert 0 < len(steps) < 4
    train(config(start(base_path)), tmp_path / "run", progress=False)
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "reference")


def test_servers_answer_while_the_learner_learns(start, make_config, base_path, tmp_path, monkeypatch):
    """With asynchronous rollouts the first update of a run waits for a request that is answered beside it."""
    server = start(base_path)
    settings = {"model.base": str(base_path), "levels": [1], "env.max_turns": 2, "policy.tis_cap": 2.0}
    settings |= {"rollout.engine": "server", "rollout.servers": [server.url], "rollout.asynchronous": True}
    run = Run(make_config(**settings, **NO_WORLD_MODEL), tmp_path)
    learn = run._learn

    def beside(*args):
        answered, deadline = len(server.answered), time.monotonic() + 60
        while run.step == 0 and len(server.answered) == answered:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return learn(*args)

    monkeypatch.setattr(run, "_learn", beside)
    run.publish()
    assert [run.advance()["staleness"] for _ in range(2)] == [0, 1] and run.done


def test_the_config_chooses_the_engine(start, make_config):
    assert isinstance(make_engine(make_config()), TorchEngine)
    settings = {"rollout.engine": "server", "rollout.servers": [start().url]}
    assert isinstance(make_engine(make_config(**settings)), VllmServerEngine)


def test_serve_command_fits_the_run(make_config):
    settings = {"model.rank": 12, "rollout.dtype": "bfloat16", "distributed.tensor_parallel": 2}
    config = make_config(**settings)
    command, environment = serve_command(config, "0.0.0.0", 8001)
    options = dict(itertools.pairwise(command))
    assert (options["--model"], options["--host"], options["--port"]) == (config.model.base, "0.0.0.0", "8001")
    assert (options["--max-lora-rank"], options["--max-loras"], options["--dtype"]) == ("16", "4", "bfloat16")
    assert (options["--tensor-parallel-size"], options["--logprobs-mode"]) == ("2", "processed_logprobs")
    assert "--enable-lora" in command and environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    stacked = serve_command(make_config(**settings, **{"world_model.coupling": "stacked"}), "127.0.0.1", 8001)[0]
    assert dict(itertools.pairwise(stacked))["--max-lora-rank"] == "32"  # of both adapters in one
    with pytest.raises(ConfigError, match=r"LoRA ranks up to 512, these adapters have 600; lower model\.rank"):
        serve_command(make_config(**{"model.rank": 600}), "127.0.0.1", 8001)
