"""The open episodes of a task server, and the messages that its chats begin with. Knows nothing of HTTP."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping

from pydantic import JsonValue

from lfo.envs.base import SPLITS, from_chat, parse_action, written
from lfo.envs.server import wire
from lfo.protocols import Environment, Episode
from lfo.types import Action, Call, Task

SWEEP_SECONDS = 1.0  # between looks for sessions that nobody uses
_log = logging.getLogger(__name__)


class NoSuchSession(LookupError):
    """It was released, was idle for too long, or was another server's."""


class TooManySessions(RuntimeError):
    """There are as many as may be; the message names the remedy."""


class NotFound(LookupError):
    """There is no such task or attribute; the message names it."""


class OutOfTurn(ValueError):
    """The turn that is asked for is neither the next one nor the last one again."""


@dataclasses.dataclass(eq=False)
class Open:
    """A session. used: when it was used last, in seconds of the monotonic clock. asked: the last action, as it came."""

    episode: Episode
    environment: Environment
    used: float
    asked: Action | None = None
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class Sessions:
    """Episodes by session id; every method may be called from any thread.

    make: the environment with some options, `held_out_phrasing` for one. seconds: that a session may be idle.
    most: sessions at a time. facts: what `attribute` tells besides.
    """

    def __init__(self, make: Callable[..., Environment], seconds: float, most: int, facts: Mapping[str, JsonValue]):
        self._environment = functools.lru_cache(maxsize=4)(make)
        self.session_seconds, self.max_sessions, self._facts = seconds, most, dict(facts)
        self._open: dict[str, Open] = {}
        self._table = threading.Lock()
        self._over = threading.Event()
        self._environment()  # a mistake in its settings is told before anybody asks

    # --- attributes ---------------------------------------------------------------------------

    def attribute(self, name: str) -> JsonValue:
        """What this server says of itself: version, environment, tools, sessions.

        Raises:
            NotFound: there is none of this name.
        """
        env = self._environment()
        known = self._facts | {
            "system": env.system,
            "tools": [tool.schema() for tool in env.tools.values()],
            "sessions": len(self._open),
            "session_seconds": self.session_seconds,
            "max_sessions": self.max_sessions,
        }
        if name not in known:
            raise NotFound(f"there is no attribute '{name}'; attributes: {', '.join(sorted(known))}.")
        return known[name]

    def set_attribute(self, name: str, value: JsonValue) -> None:
        """Change how long a session waits for its client, or how many there may be.

        Raises:
            NotFound: it is none of the two that can be set.
            ValueError: the value is no number above 0.
        """
        if name not in ("session_seconds", "max_sessions"):
            raise NotFound(f"attribute '{name}' cannot be set; session_seconds and max_sessions can.")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ValueError(f"{name} must be a number above 0, got {value!r}.")
        setattr(self, name, value)

    # --- tasks --------------------------------------------------------------------------------

    def tasks(self, split: str | None) -> list[Task]:
        return [task for name in ([split] if split else SPLITS) for task in self._environment().tasks(name)]

    def _task(self, index: str) -> Task:
        task = next((task for task in self.tasks(None) if task.task_id == index), None)
        if task is None:
            raise NotFound(f"there is no task '{index}'; get_sample_index_list tells which there are.")
        return task

    # --- a session ----------------------------------------------------------------------------

    def reset(self, asked: wire.Reset) -> wire.Began:
        """Begin an episode of a task, in a session of this id or of a new one.

        Raises:
            NotFound: there is no such task. ConfigError: the environment has no such option.
            TooManySessions: there is no room. Others: as the environment raises them.
        """
        task, key = self._task(asked.sample_index), asked.session_id or uuid.uuid4().hex
        self.release(key)
        environment = self._environment(**asked.options)
        mine = Open(environment.episode(task, asked.seed), environment, time.monotonic())
        with self._table:
            count, kept = len(self._open), self._open.get(key)
            if kept is None and count < self.max_sessions:
                kept = self._open[key] = mine
        if kept is not mine:  # there is no room, or the same was asked for again meanwhile
            mine.episode.close()
        if kept is None:
            raise TooManySessions(
                f"{count} sessions are open, and max_sessions is {self.max_sessions}; release one, wait, or start"
                " `lfo task-server` with more --max-sessions."
            )
        return wire.Began(session_id=key, request=kept.episode.request)

    def interact(self, asked: wire.Interact) -> wire.Answered:
        """Take an action; the same turn asked for again is answered again.

        Raises:
            NoSuchSession: it is not open. OutOfTurn: see there. RuntimeError: the episode is over.
        """
        with self._used(asked.session_id) as session:
            episode, action = session.episode, _checked(asked.action, session.environment)
            turns = episode.turns
            number = len(turns) if asked.turn is None else asked.turn
            if number != len(turns) and not (number == len(turns) - 1 and session.asked == action):
                raise OutOfTurn(f"the session is in turn {len(turns)}, and was asked for another turn {number}.")
            if number == len(turns):
                episode.step(action)
                session.asked = action
            turn = episode.turns[number]
            said = {"observation": turn.observation, "status": turn.status, "action": turn.action}
            return wire.Answered(**said, stop=episode.stop)

    def complete(self, session_id: str) -> wire.Completed:
        """How it went; an episode that goes on is cut. Raises NoSuchSession."""
        with self._used(session_id) as session:
            session.episode.cut()
            return wire.Completed(outcome=session.episode.outcome(), stop=session.episode.stop)

    def release(self, session_id: str) -> bool:
        """Close a session; False where there is none."""
        with self._table:
            session = self._open.pop(session_id, None)
        if session:
            with session.lock:
                session.episode.close()
        return session is not None

    @contextlib.contextmanager
    def _used(self, session_id: str) -> Iterator[Open]:
        """The session, for one thread at a time."""
        session = self._open.get(session_id)
        if session is None:
            raise NoSuchSession(f"there is no session '{session_id}'; it was released or idle for too long: reset.")
        with session.lock:
            if self._open.get(session_id) is not session:  # released while this one waited
                raise NoSuchSession(f"session '{session_id}' was released meanwhile: reset.")
            session.used = time.monotonic()
            yield session
            session.used = time.monotonic()

    # --- sessions that nobody uses ------------------------------------------------------------

    def expire(self) -> int:
        """Release those that were idle for too long; how many."""
        latest = time.monotonic() - self.session_seconds
        idle = [key for key, session in list(self._open.items()) if session.used < latest and not session.lock.locked()]
        return sum(map(self.release, idle))

    def sweep(self) -> None:
        """Expire until closed. For a thread of its own, which outlives an episode that cannot be closed."""
        while not self._over.wait(max(0.05, min(SWEEP_SECONDS, self.session_seconds))):
            try:
                self.expire()
            except Exception:
                _log.exception("a session that was idle could not be closed")

    def close(self) -> None:
        """Release all."""
        self._over.set()
        for key in list(self._open):
            self.release(key)


def _checked(action: Action | str, env: Environment) -> Action:
    """An action as the environment takes it: calls of known tools with arguments that fit, and nothing else."""
    if isinstance(action, str):
        return parse_action(from_chat(action, env.tools), env.tools)
    return parse_action(written(action), env.tools) if isinstance(action, Call) else action


class ChatHistory:
    """The messages that a chat begins with: what the environment tells a chat model, and that it was understood."""

    def __init__(self, system: str):
        self.items = {0: wire.Item(role="user", content=system), 1: wire.Item(role="agent", content="Understood.")}

    def construct(self, asked: wire.Construct) -> wire.Item:
        """An item of the chat history.

        Raises:
            NotFound: there is no such item. ValueError: somebody else says it.
        """
        index = asked.chat_history_item_index
        if index not in self.items:
            raise NotFound(f"there is no chat history item {index}; items: {', '.join(map(str, self.items))}.")
        if asked.expected_role not in (None, self.items[index].role):
            raise ValueError(f"chat history item {index} is the {self.items[index].role}'s.")
        return self.items[index]

    def set(self, asked: wire.SetItem) -> None:
        self.items[asked.prompt_index] = wire.Item(role=asked.role, content=asked.content)
