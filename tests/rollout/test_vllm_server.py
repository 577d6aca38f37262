"""vllm.server: what the servers answer reaches who asked, whichever of them dies on the way.

The servers here are small stand-ins that speak vLLM's HTTP API over plain forward passes; test_vllm_engine.py does it
once more with real ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import random
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lfo.config import ConfigError
from lfo.rollout.engine import Completion, Prompt, UnknownAdapter, complete
from lfo.rollout.vllm import server as server_module
from lfo.rollout.vllm.server import NoServerLeft, ServerRefused, VllmServerEngine, serve_command
from lfo.rollout.vllm.tickets import version_name

NO_STOP = 1_000_000  # a token that is never sampled


class Http(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


class StandIn:
    """A server on a port of its own that answers as `vllm serve` does, until it is told to fail."""

    def __init__(self, model, port: int = 0):
        """model: a `Reference` of its own."""
        self.model, self.lock, self.counting = model, threading.Lock(), threading.Lock()
        self.adapters: dict[str, str] = {}  # what /v1/models would list
        self.asked = 0  # completions
        self.answered: list[dict] = []  # the requests for completions that it answered
        self.statuses: list[int] = []  # answer the next completions so instead
        self.speaks = threading.Event()  # while it is not set, completions that it hushes wait for their answers
        self.speaks.set()
        self.hushes: Callable[[dict], bool] = lambda body: True
        self.kinds: Counter = Counter()  # of the requests that it is at: for the bare base, or for adapters
        self.mixed = False  # whether there were both at a time
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
            self.model.load({name: Path(body["lora_path"])})
        self.adapters[name] = body["lora_path"]
        return 200, {}

    def complete(self, body: dict) -> tuple[int, dict]:
        if body["model"] not in [*self.adapters, "base"]:
            return 404, error(f"The model `{body['model']}` does not exist.")
        if body["logprobs"] == 2:  # the engine asks which distribution the log-probs are of
            scale = 1.0 if self.raw_logprobs else body["temperature"]
            return 200, {"choices": [{"logprobs": {"top_logprobs": [{"a": -1.0 / scale, "b": -2.0 / scale}]}}]}
        kind = "bare" if body["model"] == "base" else "adapter"
        with self.counting:
            self.asked += 1
            self.kinds[kind] += 1
            self.mixed |= self.kinds["bare"] > 0 < self.kinds["adapter"]
        answer = self.continued(body)
        with self.counting:
            self.kinds[kind] -= 1
        return answer

    def continued(self, body: dict) -> tuple[int, dict]:
        if self.hushes(body):
            self.speaks.wait()
        if self.statuses:
            return self.statuses.pop(0), error("overloaded")
        (stop,) = body["stop_token_ids"]
        prompt = Prompt(body["prompt"], body["model"], body["max_tokens"], stop, body["temperature"], body["seed"])
        with self.lock:
            completion = self.model.complete(prompt)
            self.answered.append(body)
        scores = {"token_logprobs": completion.logprobs}
        return 200, {"choices": [{"token_ids": completion.tokens, "logprobs": scores}]}


def error(message: str) -> dict:
    return {"error": {"message": message}}


@pytest.fixture
def start(toy_path, reference):
    """start(port): a stand-in that is closed after the test."""
    running = []

    def one(base: Path = toy_path, port: int = 0) -> StandIn:
        running.append(StandIn(reference(base), port))
        return running[-1]

    yield one
    for server in running:
        server.close()


@pytest.fixture
def pair(start):
    return start(), start()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(server_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(server_module, "LONGEST_PAUSE", 0.1)


def engine_for(*servers: StandIn, **settings) -> VllmServerEngine:
    return VllmServerEngine([s.url for s in servers], **({"patience_seconds": 0.1} | settings))


def mixed_prompts(count: int, temperature: float, max_new: int = 6, seed: int = 0) -> list[Prompt]:
    """Adapters and the bare base in turn; each has a seed of its own, counted from `seed`."""
    rng = random.Random(0)
    names = ("policy", "world_model", "base")
    return [
        Prompt([rng.randrange(1000) for _ in range(3 + i)], names[i % 3], max_new, NO_STOP, temperature, seed + i)
        for i in range(count)
    ]


def policy_prompts(count: int, temperature: float = 1.0) -> list[Prompt]:
    return [dataclasses.replace(p, adapter="policy") for p in mixed_prompts(count, temperature)]


# --- what is asked and answered --------------------------------------------------------------


def test_servers_answer_what_the_model_says(pair, toy_path, toy_adapters, reference):
    engine, model = engine_for(*pair), reference(toy_path, toy_adapters)
    engine.load(toy_adapters)
    prompts = mixed_prompts(6, temperature=0.0)
    completions = complete(engine, prompts)
    assert completions == [model.complete(prompt) for prompt in prompts]
    assert engine.generated_tokens == sum(len(c.tokens) for c in completions) == 36
    assert engine.ready() == [] and isinstance(completions[0], Completion)


def test_sampling_is_the_models_own_and_seeded_by_request(pair, toy_adapters):
    """How many servers there are, and who answers, changes nothing; top-k and the like are switched off by name."""
    alone, both = engine_for(pair[0]), engine_for(*pair)
    for engine in (alone, both):
        engine.load(toy_adapters)
    prompts = mixed_prompts(4, temperature=1.0, seed=7)
    first = complete(alone, prompts)
    assert complete(both, prompts) == first != complete(alone, mixed_prompts(4, temperature=1.0, seed=8))
    assert complete(both, prompts[::-1]) == first[::-1]
    body = pair[0].answered[0]
    assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1.0, 0, 0.0, 1.0)
    assert body["ignore_eos"] and body["return_token_ids"] and body["temperature"] == 1.0


def test_a_short_request_finishes_while_a_long_one_goes_on(start, toy_adapters):
    """And what it says is what it says alone."""
    server = start()
    engine = engine_for(server)
    engine.load(toy_adapters)
    short, later = policy_prompts(2)
    long = dataclasses.replace(short, max_new=40)
    alone = complete(engine, [short, later, long])
    server.speaks.clear()
    server.hushes = lambda body: body["max_tokens"] == 40
    waiting, first = engine.submit(long), engine.submit(short)
    assert engine.ready() == [(first, alone[0])]
    second = engine.submit(later)  # it joins while the long one is still waited for
    assert engine.ready() == [(second, alone[1])]
    server.speaks.set()
    assert engine.ready() == [(waiting, alone[2])] and engine.ready() == []


def test_requests_go_out_when_they_are_asked_for(start, toy_adapters):
    """Not when somebody waits for them: the learner may be at work meanwhile."""
    server = start()
    engine = engine_for(server)
    engine.load(toy_adapters)
    ticket, deadline = engine.submit(policy_prompts(1)[0]), time.monotonic() + 60
    while not server.answered:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [done for done, _ in engine.ready()] == [ticket]


def test_adapters_and_the_bare_base_are_never_asked_at_once(start, toy_adapters):
    server = start()
    engine = engine_for(server)
    engine.load(toy_adapters)
    server.speaks.clear()
    tickets = [engine.submit(prompt) for prompt in mixed_prompts(12, 1.0)]
    time.sleep(0.2)
    assert server.asked == 2  # policy and world model; the base is held back, and so are those after it
    server.speaks.set()
    done: dict = {}
    while len(done) < len(tickets):
        done |= engine.ready()
    assert sorted(done) == tickets and not server.mixed
    kinds = [body["model"] == "base" for body in server.answered]
    assert kinds == [False] * 2 + [True] * 4 + [False] * 6


def test_requests_go_round_and_sessions_stay(pair, toy_adapters):
    engine = engine_for(*pair)
    engine.load(toy_adapters)
    complete(engine, policy_prompts(8))
    assert [len(server.answered) for server in pair] == [4, 4]
    for server in pair:
        server.answered.clear()
    keys = {"a": 1, ("b", 7): 2, 3: 3}
    prompts = [Prompt([5, i], "policy", 2, NO_STOP, 1.0, session=key) for key, i in keys.items()]
    for _ in range(2):
        complete(engine, prompts)
    assert [Counter(body["prompt"][1] for body in server.answered) for server in pair] == [{1: 2, 3: 2}, {2: 2}]
    for key in keys:
        engine.end_session(key)
    engine.end_session("never asked for")


def test_a_new_version_replaces_the_old(pair, toy_adapters, tmp_path):
    """Also under the same path: a folder that was written anew has another name on the servers."""
    engine, folder = engine_for(*pair), tmp_path / "v1"
    shutil.copytree(toy_adapters["policy"], folder)
    prompt = Prompt([5, 6, 7], "policy", 6, NO_STOP, 0.0)
    engine.load({"policy": folder, "world_model": toy_adapters["world_model"]})
    first, before = complete(engine, [prompt]), [set(server.adapters) for server in pair]
    shutil.rmtree(folder)
    shutil.copytree(toy_adapters["world_model"], folder)
    engine.load({"policy": folder})
    assert complete(engine, [prompt]) != first
    for server, names in zip(pair, before, strict=True):
        assert len(server.adapters) == 2 and len(names & set(server.adapters)) == 1  # the world model's
    engine.load({"policy": folder})  # nothing new: it stays
    assert all(len(server.adapters) == 2 for server in pair)


def test_what_is_asked_before_a_load_is_answered_by_the_adapters_of_before(start, toy_adapters):
    engine = engine_for(start())
    engine.load(toy_adapters)
    prompt = policy_prompts(1)[0]
    (expected,) = complete(engine, [prompt])
    ticket = engine.submit(prompt)
    engine.load({"policy": toy_adapters["world_model"]})
    assert engine.ready() == [(ticket, expected)] and complete(engine, [prompt]) != [expected]


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
    prompts = policy_prompts(2)
    assert complete(engine, prompts) == complete(engine, prompts)
    assert not pair[0].statuses


def test_an_error_that_stays_is_reported(pair, toy_adapters):
    engine = engine_for(*pair)
    engine.load(toy_adapters)
    for server in pair:
        server.statuses = [500] * 20
    with pytest.raises(ServerRefused, match=r"http://127.* does not answer a request: 500 overloaded\."):
        complete(engine, mixed_prompts(1, 1.0))
    for server in pair:
        server.statuses = [400]
    with pytest.raises(ServerRefused, match="400 overloaded"):  # at once: the request is wrong
        complete(engine, mixed_prompts(1, 1.0))
    assert sorted(len(server.statuses) for server in pair) == [0, 1]


def test_a_silent_server_is_left_and_taken_back(pair, toy_adapters, caplog):
    engine = engine_for(*pair, request_seconds=3.0)
    engine.load(toy_adapters)
    prompts = policy_prompts(4)
    expected = complete(engine, prompts)
    pair[1].speaks.clear()
    assert complete(engine, prompts) == expected
    assert f"lost the vLLM server {pair[1].url}: timed out" in caplog.text
    pair[1].speaks.set()
    assert complete(engine, prompts) == expected and pair[1].asked == 4
    engine.load(toy_adapters)
    assert complete(engine, prompts) == expected and pair[1].asked == 6


def test_requests_of_a_dead_server_go_to_the_others(pair, start, toy_adapters):
    """It dies between two of its answers; started again, and empty, it joins at the next load."""
    engine = engine_for(*pair)
    engine.load(toy_adapters)
    prompts = policy_prompts(12)
    expected = complete(engine, prompts)
    pair[1].dies_after = len(pair[1].answered) + 2
    assert complete(engine, prompts) == expected
    pair[1].close()
    assert complete(engine, prompts) == expected
    again = start(port=pair[1].port)
    engine.load(toy_adapters)
    assert complete(engine, prompts) == expected and len(again.answered) == 6


def test_a_restarted_server_is_given_the_adapters(start, toy_adapters):
    server = start()
    engine = engine_for(server)
    engine.load(toy_adapters)
    expected = complete(engine, mixed_prompts(6, 1.0))
    server.adapters.clear()
    assert complete(engine, mixed_prompts(6, 1.0)) == expected
    assert len(server.adapters) == 2


def test_when_no_server_is_left_the_engine_waits(start, toy_adapters):
    server = start()
    engine = engine_for(server, patience_seconds=60.0)
    engine.load(toy_adapters)
    prompts = mixed_prompts(6, 1.0)
    expected = complete(engine, prompts)
    server.close()
    threading.Timer(0.3, start, kwargs={"port": server.port}).start()
    assert complete(engine, prompts) == expected


def test_when_none_comes_back_it_says_so(pair, toy_adapters):
    engine = engine_for(*pair)
    engine.load(toy_adapters)
    for server in pair:
        server.close()
    began = time.monotonic()
    for _ in range(2):  # and again: what was given up once is not given up for good
        with pytest.raises(NoServerLeft) as caught:
            complete(engine, mixed_prompts(40, 1.0))
        assert all(f"{server.url}: ConnectError" in str(caught.value) for server in pair)
        assert "start one with `lfo serve`" in str(caught.value)
    assert time.monotonic() - began < 10  # one wait for all requests, not one for each
    with pytest.raises(NoServerLeft):
        engine_for(*pair)


def test_a_server_that_does_not_fit_is_refused(start, toy_adapters):
    server = start()
    engine = engine_for(server)
    with pytest.raises(UnknownAdapter, match="no adapter 'policy' is loaded; loaded: base"):
        complete(engine, mixed_prompts(1, 1.0))
    server.refuses_adapters = True
    with pytest.raises(ServerRefused, match=r"cannot load the adapter in .*policy \(400 LoRA rank 64 .*lfo serve"):
        engine.load(toy_adapters)
    server.refuses_adapters, server.raw_logprobs = False, True
    with pytest.raises(ServerRefused, match=r"log-probs from before temperature: .*processed_logprobs"):
        engine.load(toy_adapters)


def test_an_error_leaves_nothing_behind(pair, toy_adapters):
    """Those under way beside a request that fails are forgotten: whoever asks next hears of their own requests only."""
    engine = engine_for(*pair)
    engine.load(toy_adapters)
    short, other = policy_prompts(2)
    (expected,) = complete(engine, [short])
    pair[0].speaks.clear()
    pair[1].statuses = [400]
    for _ in range(2):  # one for each server
        engine.submit(other)
    with pytest.raises(ServerRefused, match="400 overloaded"):
        engine.ready()
    assert engine.ready() == []
    pair[0].speaks.set()
    assert complete(engine, [short]) == [expected]


# --- a run -----------------------------------------------------------------------------------


def metrics_of(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


def test_a_run_whose_servers_all_die_goes_on_as_if_they_had_not(start, make_config, base_path, tmp_path, monkeypatch):
    """The run stops with one sentence; with servers elsewhere it resumes to the metrics of the undisturbed run."""
    from lfo.train import train

    impatient = functools.partialmethod(VllmServerEngine.__init__, patience_seconds=0.1)
    monkeypatch.setattr(VllmServerEngine, "__init__", impatient)
    settings = {"model.base": str(base_path), "env.levels": [1], "rollout.max_action_tokens": 32}
    settings |= {"rollout.tasks_per_step": 1, "env.max_turns": 4, "eval_splits": ["validation"]}

    def config(server: StandIn):
        return make_config(**settings, **{"rollout.engine": server.url}, world_model=None)

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
    from lfo.train import Run

    server = start(base_path)
    settings = {"model.base": str(base_path), "env.levels": [1], "env.max_turns": 2, "policy.tis_cap": 2.0}
    settings |= {"rollout.engine": server.url, "rollout.asynchronous": True}
    run = Run(make_config(**settings), tmp_path)
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
    from lfo.rollout import make_engine
    from lfo.rollout.torch_engine import TorchEngine

    assert isinstance(make_engine(make_config()), TorchEngine)
    assert isinstance(make_engine(make_config(**{"rollout.engine": start().url})), VllmServerEngine)


def test_a_config_names_several_servers(pair, make_config, toy_adapters):
    config = make_config(**{"rollout.engine": ", ".join(server.url for server in pair)})
    engine = VllmServerEngine(config.rollout.servers)
    engine.load(toy_adapters)
    complete(engine, policy_prompts(4))
    assert [len(server.answered) for server in pair] == [2, 2]


def test_serve_command_fits_the_run(make_config):
    settings = {"model.rank": 12, "model.dtype": "bfloat16", "distributed.tensor_parallel": 2}
    config = make_config(**settings)
    command, environment = serve_command(config, "0.0.0.0", 8011)
    options = dict(itertools.pairwise(command))
    assert (options["--model"], options["--host"], options["--port"]) == (config.model.base, "0.0.0.0", "8011")
    assert (options["--max-lora-rank"], options["--max-loras"], options["--dtype"]) == ("16", "4", "bfloat16")
    assert (options["--tensor-parallel-size"], options["--logprobs-mode"]) == ("2", "processed_logprobs")
    assert "--enable-lora" in command and environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    several = serve_command(
        make_config(**settings, **{"world_model.coupling": "imagine", "world_model.members": 3}), "127.0.0.1", 8011
    )[0]
    assert several[several.index("--max-loras") + 1] == "8"  # policy and three world models, of two versions
    taught = serve_command(make_config(**settings, feedback={"teacher": "average", "start": 2}), "127.0.0.1", 8011)[0]
    assert taught[taught.index("--max-loras") + 1] == "6"
    alone = serve_command(make_config(**settings, world_model=None), "127.0.0.1", 8011)[0]
    assert alone[alone.index("--max-loras") + 1] == "2"  # the policy, of two versions
    stacked = serve_command(make_config(**settings, **{"world_model.coupling": "stacked"}), "127.0.0.1", 8011)[0]
    assert dict(itertools.pairwise(stacked))["--max-lora-rank"] == "32"  # of both adapters in one
    with pytest.raises(ConfigError, match=r"LoRA ranks up to 512, these adapters have 600; lower model\.rank"):
        serve_command(make_config(**{"model.rank": 600}), "127.0.0.1", 8011)
