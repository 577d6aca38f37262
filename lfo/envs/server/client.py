"""An environment of ours whose episodes are played by a task server, so that learners need not be where worlds are.

What does not change (tools, tasks, what a world model is told) is made here from the settings, which the server must
have, too. An episode is what its task, its seed and its actions make it: where the server died, was restarted, or gave
up a session that was idle, the episode is begun again there and the actions so far are taken again. What the agent has
read stands.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import time
import uuid
import weakref
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import httpx
from pydantic import JsonValue, ValidationError

from lfo.config import ConfigError, EnvConfig, as_dict
from lfo.envs import make_environment
from lfo.envs.base import require_open
from lfo.envs.server import wire
from lfo.protocols import Episode, Responder
from lfo.types import Action, Outcome, StopReason, Task, Turn

REQUEST_SECONDS = 120.0  # for an answer; a command may take its time, and so may an evaluation
CONNECT_SECONDS = 5.0
PATIENCE_SECONDS = 300.0  # for a server that is away or full
FIRST_SECONDS = 5.0  # for one that was never there: the address may be wrong
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # between attempts; each pause is twice the one before
BEGINNINGS = 8  # of one episode; a server that loses more of them is not to be trusted

A = TypeVar("A", bound=wire.Body)
_log = logging.getLogger(__name__)


class TaskServerGone(ConnectionError):
    """The server stays away; the message says how it failed and what to do."""


class TaskServerFull(ConnectionError):
    """The server has no room for another session; the message says how many it has, and the remedy."""


class TaskServerRefused(ValueError):
    """The server will not do what is asked; the message is the server's."""


class SessionLost(LookupError):
    """The server does not know the session (any more)."""


class TaskServer:
    """The client's side of a connection; may be used from several threads.

    url: as `lfo task-server` prints it, with the prefix of its paths or without. patience_seconds: how long a server
    that is away or full is waited for, each time.

    Raises (on construction):
        ConfigError: this is no address.
    """

    def __init__(self, url: str, request_seconds: float = REQUEST_SECONDS, patience_seconds: float = PATIENCE_SECONDS):
        self.url, self.patience = url.rstrip("/").removesuffix(wire.PREFIX), patience_seconds
        _require_address(self.url)
        token = os.environ.get(wire.TOKEN, "")
        self._client = httpx.Client(
            timeout=httpx.Timeout(request_seconds, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),  # uvicorn keeps a connection for 5 s
            headers={"Authorization": f"Bearer {token}"} if token else {},
            trust_env=False,  # no proxy between machines
        )
        weakref.finalize(self, self._client.close)

    def post(self, path: str, asked: wire.Body, answer: type[A], patience: float | None = None) -> A:
        """The answer; asks again while the server cannot be reached or is full.

        Raises:
            SessionLost, TaskServerRefused, TaskServerFull, TaskServerGone: see there.
        """
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        for attempt in itertools.count():
            try:
                response = self._client.post(
                    f"{self.url}{wire.PREFIX}/{path}",
                    content=asked.model_dump_json(),
                    headers={"Content-Type": "application/json"},
                )
            except httpx.TransportError as error:
                failure = f"{type(error).__name__} {error}".strip()
            else:
                if response.status_code == HTTPStatus.OK:
                    return self._read(path, response, answer)
                failure = _said(response)
                if response.status_code == wire.GONE:
                    raise SessionLost(failure)
                if response.status_code not in (429, 502, wire.FULL, 504):
                    raise TaskServerRefused(f"the task server {self.url} refuses `{path}`: {failure}")
            if time.monotonic() >= deadline:
                if "max_sessions" in failure:
                    raise TaskServerFull(f"the task server {self.url} is full: {failure}")
                raise TaskServerGone(
                    f"the task server {self.url} does not answer ({failure}); start it with `lfo task-server`, then the"
                    " run again: it goes on from its last checkpoint."
                )
            if attempt == 0:
                _log.warning("task server %s: %s; trying again", self.url, failure)
            time.sleep(min(FIRST_PAUSE * 2 ** min(attempt, 10), LONGEST_PAUSE))

    def _read(self, path: str, response: httpx.Response, answer: type[A]) -> A:
        try:
            return answer.model_validate_json(response.content)
        except ValidationError:
            raise TaskServerRefused(f"what {self.url} answers to `{path}` is none of ours: {FOREIGN}") from None

    def attribute(self, name: str) -> JsonValue:
        """What a server says of itself at the first contact, for which nobody waits long.

        Raises:
            TaskServerRefused, TaskServerGone: see there.
        """
        patience = min(self.patience, FIRST_SECONDS)
        return self.post("get_attribute", wire.GetAttribute(name=name), wire.Attribute, patience).value


FOREIGN = "is env.server the address that `lfo task-server` prints?"


def _require_address(url: str) -> None:
    """
    Raises:
        ConfigError: no server can be there.
    """
    try:
        parsed = httpx.URL(url)
        problem = "" if parsed.scheme in ("http", "https") and parsed.host else "it names no http:// and no machine"
    except httpx.InvalidURL as error:
        problem = str(error)
    if problem:
        raise ConfigError(f"env.server '{url}' is no address ({problem}); it is like http://127.0.0.1:8000.")


def _said(response: httpx.Response) -> str:
    """The server's sentence, or the status, which a server that is none of ours may answer with."""
    status = response.status_code
    with contextlib.suppress(ValueError, KeyError, TypeError):
        detail = str(response.json()["detail"])
        if status not in set(HTTPStatus) or detail != HTTPStatus(status).phrase:
            return detail
    return f"status {status}; {FOREIGN}"


class RemoteEnvironment:
    """See `lfo.protocols.Environment`. here: the same environment, for all but the episodes; options: it was made with.

    Dreamt episodes are played here, since who answers in them is here.

    Raises (on construction):
        ConfigError: the server has other settings, or is of another version. TaskServerGone: it does not answer.
        TaskServerRefused: it is no task server.
    """

    def __init__(self, config: EnvConfig, server: TaskServer | None = None, **options: bool):
        own = dataclasses.replace(config, server="")
        self._here, self._options = make_environment(own, **options), options
        self._server = server or TaskServer(config.server)
        if (version := self._server.attribute("version")) != wire.VERSION:
            raise ConfigError(
                f"the task server {self._server.url} is lfo {version}, and this is lfo {wire.VERSION}; install the same"
                " version in both places."
            )
        theirs, mine = self._server.attribute("environment"), as_dict(own)
        if differing := sorted(name for name in {*theirs, *mine} if theirs.get(name) != mine.get(name)):
            raise ConfigError(
                f"the task server {self._server.url} has other settings ({', '.join(f'env.{n}' for n in differing)}"
                " differ); start it with the config of the run."
            )
        self.system, self.tools, self.knowledge = self._here.system, self._here.tools, self._here.knowledge

    def tasks(self, split: str) -> list[Task]:
        return self._here.tasks(split)

    def episode(self, task: Task, seed: int, responder: Responder | None = None) -> Episode:
        if responder is not None:
            return self._here.episode(task, seed, responder)
        return RemoteEpisode(self._server, wire.Reset(sample_index=task.task_id, seed=seed, options=self._options))


class RemoteEpisode:
    """See `lfo.protocols.Episode`. begins: what it is begun with, whenever it has to be."""

    def __init__(self, server: TaskServer, begins: wire.Reset):
        self._server, self._id = server, uuid.uuid4().hex
        self._begins = begins.model_copy(update={"session_id": self._id})
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        self._outcome: Outcome | None = None
        self.request = self._begin().request

    def _begin(self) -> wire.Began:
        return self._server.post("reset", self._begins, wire.Began)

    def step(self, action: Action) -> str:
        """See `Episode.step`.

        Raises:
            RuntimeError: the episode is over. TaskServerGone, TaskServerRefused: see there.
        """
        require_open(self.stop)
        said = self._surely(lambda: self._take(len(self.turns), action))
        self.turns.append(Turn(said.action, said.observation, said.status))
        self.stop = said.stop
        return said.observation

    def _take(self, number: int, action: Action) -> wire.Answered:
        return self._server.post(
            "interact", wire.Interact(session_id=self._id, turn=number, action=action), wire.Answered
        )

    def _surely(self, ask: Callable[[], A]) -> A:
        """An answer, also where the server lost the session: then the episode is brought there again first."""
        lost = False
        for _ in range(BEGINNINGS):
            with contextlib.suppress(SessionLost):
                if lost:
                    self._again()
                return ask()
            lost = True
        raise TaskServerGone(
            f"the task server {self._server.url} lost an episode {BEGINNINGS} times; raise --session-seconds."
        )

    def _again(self) -> None:
        """
        Raises:
            TaskServerRefused: the same actions end the episode sooner than before.
        """
        _log.warning("task server %s lost an episode of %s; it is played again", self._server.url, self._name)
        self._begin()
        for number, turn in enumerate(self.turns):
            said = self._take(number, turn.action)
            if said.stop and number + 1 < len(self.turns):
                raise TaskServerRefused(f"{self._name} ended in turn {number} ({said.stop}) when it was played again.")
            if said.observation != turn.observation:
                _log.warning("%s, turn %d: played again, it was answered otherwise", self._name, number)

    @property
    def _name(self) -> str:
        return self._begins.sample_index

    def cut(self) -> None:
        """See `Episode.cut`; the server hears of it with `outcome`."""
        self.stop = self.stop or StopReason.TOKEN_BUDGET

    def outcome(self) -> Outcome:
        if self._outcome is None:
            asked = wire.Session(session_id=self._id)
            self._outcome = self._surely(lambda: self._server.post("complete", asked, wire.Completed)).outcome
        return self._outcome

    def close(self) -> None:
        """Release the session. A server that does not answer releases it by itself."""
        with contextlib.suppress(SessionLost, TaskServerGone, TaskServerFull, TaskServerRefused):
            self._server.post("release", wire.Session(session_id=self._id), wire.Released, patience=0)
