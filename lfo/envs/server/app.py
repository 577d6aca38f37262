"""The task server (port 8000) and the chat history (port 8001) as FastAPI applications; ``lfo task-server``.

On this machine alone by default. Elsewhere a token is needed, in the environment variable LFO_TASK_TOKEN here and on
the side of the client, which sends it as a bearer token; without TLS, which is for a proxy or a tunnel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import importlib.util
import ipaddress
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable

import anyio.to_thread

from lfo import __version__
from lfo.config import ConfigError, EnvConfig, as_dict
from lfo.envs import make_environment
from lfo.envs.server import wire
from lfo.envs.server.sessions import ChatHistory, NoSuchSession, NotFound, OutOfTurn, Sessions, TooManySessions


def require_server() -> None:
    """Refuse to go on without what serves HTTP.

    Raises:
        ConfigError: FastAPI or uvicorn is missing.
    """
    if not all(map(importlib.util.find_spec, ("fastapi", "uvicorn"))):
        raise ConfigError('the task server needs FastAPI and uvicorn: pip install -e ".[server]"')


def open_sessions(config: EnvConfig, seconds: float, most: int) -> Sessions:
    """Sessions over the environment of a run, wherever that would have its episodes played."""
    here = dataclasses.replace(config, server="")
    facts = {"version": wire.VERSION, "environment": as_dict(here)}
    return Sessions(lambda **options: make_environment(here, **options), seconds, most, facts)


def task_app(sessions: Sessions, token: str = ""):
    """The FastAPI application of a task server. It closes the sessions when it ends."""

    @contextlib.asynccontextmanager
    async def lifespan(_) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = int(sessions.max_sessions) + 8
        threading.Thread(target=sessions.sweep, name="sweep", daemon=True).start()
        yield
        sessions.close()

    def get_attribute(asked: wire.GetAttribute) -> wire.Attribute:
        return wire.Attribute(value=sessions.attribute(asked.name))

    def set_attribute(asked: wire.SetAttribute) -> None:
        sessions.set_attribute(asked.name, asked.value)

    def get_sample_index_list(asked: wire.Listing | None = None) -> wire.SampleIndexList:
        tasks = sessions.tasks(asked.split if asked else None)
        return wire.SampleIndexList(sample_index_list=[task.task_id for task in tasks])

    def reset(asked: wire.Reset) -> wire.Began:
        return sessions.reset(asked)

    def interact(asked: wire.Interact) -> wire.Answered:
        return sessions.interact(asked)

    def complete(asked: wire.Session) -> wire.Completed:
        return sessions.complete(asked.session_id)

    def release(asked: wire.Session) -> wire.Released:
        return wire.Released(released=sessions.release(asked.session_id))

    everything = [get_attribute, set_attribute, get_sample_index_list, reset, interact, complete, release]
    return _app("lfo task server", [*everything, calculate_metric], token, lifespan)


def history_app(history: ChatHistory, token: str = ""):
    """The FastAPI application of a chat history."""

    def get_attribute(asked: wire.GetAttribute) -> wire.Attribute:
        if asked.name != "version":
            raise NotFound(f"there is no attribute '{asked.name}'; attributes: version.")
        return wire.Attribute(value=__version__)

    def set_attribute(asked: wire.SetAttribute) -> None:
        raise NotFound(f"attribute '{asked.name}' cannot be set; items can, by `set`.")

    def construct(asked: wire.Construct) -> wire.Constructed:
        return wire.Constructed(chat_history_item=history.construct(asked))

    def get_chat_history_item_dict_deep_copy(_: wire.Nothing | None = None) -> wire.Items:
        return wire.Items(chat_history_item_dict=history.items)

    def set(asked: wire.SetItem) -> None:
        history.set(asked)

    everything = [get_attribute, set_attribute, construct, get_chat_history_item_dict_deep_copy, set]
    return _app("lfo chat history", everything, token)


def ping(_: wire.Nothing | None = None) -> wire.Pong:
    return wire.Pong()


def calculate_metric(asked: wire.Outcomes) -> wire.Metric:
    """Means of success, reward and the environment's own metrics over outcomes, as `complete` gives them."""
    rows = [{"success": float(o.success), "reward": o.reward} | o.metrics for o in asked.outcomes]
    names = dict.fromkeys(name for row in rows for name in row)
    has = {name: [row[name] for row in rows if name in row] for name in names}
    return wire.Metric(metric={name: sum(v) / len(v) for name, v in has.items()} | {"n": float(len(rows))})


# What is wrong -> the HTTP status; for the rest the nearest class counts.
STATUS = {NoSuchSession: wire.GONE, NotFound: 404, OutOfTurn: 409, TooManySessions: wire.FULL, RuntimeError: 409}
STATUS |= {ValueError: 422, TypeError: 422, OSError: 500}


def _app(title: str, paths: list[Callable], token: str, lifespan=None):
    """An application with a POST path for each function, by its name."""
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    app = FastAPI(title=title, version=__version__, lifespan=lifespan)
    if not token:  # a page in this machine's browser may call itself by any name, but not by these (DNS rebinding)
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])

    @app.middleware("http")
    async def guarded(request: Request, go_on):
        shown = request.headers.get("Authorization", "").encode()
        if token and not hmac.compare_digest(shown, f"Bearer {token}".encode()):
            return JSONResponse({"detail": f"a token is needed; set {wire.TOKEN} as for the server."}, 401)
        return await go_on(request)

    for kind, status in STATUS.items():
        app.add_exception_handler(kind, lambda _, error, s=status: JSONResponse({"detail": str(error)}, s))
    for path in (ping, *paths):
        app.post(f"{wire.PREFIX}/{path.__name__}")(path)
    return app


# --- running it --------------------------------------------------------------------------------


def serve(config: EnvConfig, host: str, ports: tuple[int, int], seconds: float, most: int) -> None:
    """Run both servers until Ctrl-C or SIGTERM; ports: of the tasks and of the chat history.

    Raises:
        ConfigError: the extra is missing, or others could reach it and there is no token.
        OSError: a port is taken, or no episode can be played here.
    """
    require_server()
    import uvicorn

    token = os.environ.get(wire.TOKEN, "")
    if not token and not _is_loopback(host):
        raise ConfigError(f"--host {host} lets others in: set a token in {wire.TOKEN}, here and for the learner.")
    sessions = open_sessions(config, seconds, most)
    _require_playable(config)
    apps = task_app(sessions, token), history_app(ChatHistory(sessions.attribute("system")), token)
    listening = [listen(host, port) for port in ports]
    tasks, history = (uvicorn.Server(uvicorn.Config(app, log_level="warning")) for app in apps)
    urls = [f"http://{host}:{listener.getsockname()[1]}{wire.PREFIX}" for listener in listening]
    print(f"{len(sessions.tasks(None))} tasks of '{config.name}': {urls[0]}; chat history: {urls[1]}", flush=True)
    beside = threading.Thread(target=history.run, args=([listening[1]],), daemon=True)  # signals go to the main thread
    beside.start()
    tasks.run([listening[0]])
    history.should_exit = True
    beside.join(timeout=5)


def _require_playable(config: EnvConfig) -> None:
    """Begin an episode here; raises what the environment lacks, before a learner hears of it."""
    env = make_environment(dataclasses.replace(config, server=""))
    env.episode(env.tasks("train")[0], 0).close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A socket for uvicorn; port 0: one that is free.

    Raises:
        OSError: the port is taken, or none.
    """
    if not 0 <= port <= 65_535:
        raise OSError(f"port {port} is none; choose one from 0 (any that is free) to 65535.")
    try:
        listener = socket.create_server((host, port), backlog=1024)
    except OSError as error:
        raise OSError(f"port {port} of {host} cannot be had ({error.strerror}); choose another one.") from None
    # asyncio does this for sockets of its own alone; without it the body of an answer waits for the peer to have
    # acknowledged its head, which peers delay by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
