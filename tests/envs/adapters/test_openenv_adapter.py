"""The adapter for OpenEnv, over real HTTP and WebSockets: sessions, the task API, what goes wrong, the page's program.

Needs OpenEnv; docs/integrations.md has the command.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving import serving
from toy import Counting, Kept

from lfo.envs.phone import PhoneCallEnv, PhoneEnvironment
from lfo.envs.shell import ShellEnvironment, draw_world

if importlib.util.find_spec("openenv") is None:
    pytest.skip("OpenEnv is not installed here; docs/integrations.md says how this is run", allow_module_level=True)

import httpx

from lfo.envs.adapters import openenv

pytestmark = pytest.mark.filterwarnings("default")  # OpenEnv's own warnings are not this project's
PAGE = Path(__file__).resolve().parents[3] / "docs" / "integrations.md"


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def url(kept):
    with serving(openenv.app(kept, sessions=3)) as url:
        yield url


def count(number: str) -> openenv.ToolCall:
    return openenv.ToolCall(tool="count", arguments={"number": number})


def test_an_episode(url):
    with openenv.Client(url).sync() as client:
        begun = client.reset(seed=3, episode_id="mine", split="test", index=1)
        assert (begun.observation.text, begun.reward, begun.done) == ("Count to 2.", None, False)
        schemas = [tool.schema() for tool in Counting.tools.values()]
        assert begun.metadata == {"task_id": "test-2", "level": 2, "system": "Count.", "tools": schemas}
        state = client.state()
        assert (state.episode_id, state.step_count, state.task_id, state.stop) == ("mine", 0, "test-2", "")
        first = client.step(count("1"), timeout_s=5)
        assert (first.observation.text, first.reward, first.done) == ("wrong", 0.0, False)
        last = client.step(count("2"))
        assert (last.observation.text, last.reward, last.done) == ("right", 1.0, True)
        assert last.metadata == {"stop": "success", "success": True}
        assert (client.state().step_count, client.state().stop) == (2, "success")


def test_what_cannot_be_done_is_answered_and_the_session_goes_on(url):
    with openenv.Client(url).sync() as client:
        with pytest.raises(RuntimeError, match="no episode has begun in this session; call reset first"):
            client.step(count("1"))
        with pytest.raises(RuntimeError, match="no task 3; there are 0 to 2"):
            client.reset(index=3)
        with pytest.raises(RuntimeError, match="seed, episode_id, split and index, not spilt"):
            client.reset(spilt="test")
        client.reset(index=0)
        assert client.step(openenv.ToolCall(tool="shout")).observation.text.startswith("There is no such tool")
        assert client.step(openenv.ToolCall(tool="count")).observation.text == "count takes exactly: number."
        with pytest.raises(RuntimeError, match="this episode is over"):
            client.step(count("1"))


def test_a_call_without_a_tool_hangs_up(env):
    with serving(openenv.app(env)) as url, openenv.Client(url).sync() as client:
        with pytest.raises(RuntimeError, match="no tasks in 'dev'; splits: train, validation, test"):
            client.reset(split="dev")
        client.reset(seed=0)
        over = client.step(openenv.ToolCall())
        assert (over.done, over.reward, over.metadata) == (True, 0.0, {"stop": "agent_stopped", "success": False})


def test_the_seed_draws_the_task(url):
    with openenv.Client(url).sync() as client:
        drawn = [client.reset(seed=seed).metadata["task_id"] for seed in range(12)]
        assert drawn == [client.reset(seed=seed).metadata["task_id"] for seed in range(12)] and len(set(drawn)) == 3


def test_every_episode_is_closed(url, kept):
    with openenv.Client(url).sync() as client:
        client.reset(index=0)
        client.reset(index=1)
        assert [episode.closed for episode in kept.made] == [True, False]
    deadline = time.monotonic() + 10
    while not kept.made[1].closed and time.monotonic() < deadline:  # the server ends the session when it notices
        time.sleep(0.01)
    assert kept.made[1].closed


def test_sessions_side_by_side(url):
    """Three clients, whose turns alternate, each in an episode of its own; a fourth is refused."""

    async def play():
        clients = [openenv.Client(url) for _ in range(3)]
        begun = await asyncio.gather(*(c.reset(seed=0, index=n) for n, c in enumerate(clients)))
        assert [b.observation.text for b in begun] == ["Count to 1.", "Count to 2.", "Count to 3."]
        with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
            await openenv.Client(url).reset()
        wrong = await asyncio.gather(*(c.step(count("9")) for c in clients))
        right = await asyncio.gather(*(c.step(count(str(n))) for n, c in enumerate(clients, start=1)))
        assert [(w.done, r.done, r.reward) for w, r in zip(wrong, right, strict=True)] == [(False, True, 1.0)] * 3
        await asyncio.gather(*(c.close() for c in clients))

    asyncio.run(play())


def test_tasks_and_schemas_over_http(url):
    """And why an episode needs a WebSocket: over plain HTTP every request has a session of its own."""
    with httpx.Client(base_url=url) as http:
        assert [split["name"] for split in http.get("/Kept/splits").json()] == ["train", "validation", "test"]
        assert http.post("/Kept/num_tasks", json={"split": "test"}).json() == {"num_tasks": 3}
        assert len(http.post("/Kept/tasks", json={"split": "test"}).json()["tasks"]) == 3
        third = http.post("/Kept/task", json={"split": "test", "index": 2}).json()
        assert third == {"task": {"id": "test-3", "index": 2, "level": 3}}
        assert {"tool", "arguments"} <= set(http.get("/schema").json()["action"]["properties"])
        assert http.get("/metadata").json()["description"] == "Count."
        begun = http.post("/reset", json={"seed": 0, "split": "test", "index": 2}).json()
        assert begun["observation"]["text"] == "Count to 3."
        assert http.post("/step", json={"action": {"tool": "count", "arguments": {"number": "3"}}}).status_code == 500


def blocks(*wanted: str) -> list[str]:
    shown = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [next(block for block in shown if word in block) for word in wanted]


def test_the_programs_of_the_page(tmp_path):
    """The server in a process of its own, the client here."""
    server, client = blocks("uvicorn.run", "openenv import Client")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (tmp_path / "server.py").write_text(server.replace("8000", port), encoding="utf-8")
    with subprocess.Popen([sys.executable, tmp_path / "server.py"], stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 500  # importing OpenEnv takes its time where others are at work
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/health")
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            assert process.poll() is None, process.stderr.read()
            names: dict = {}
            exec(client.replace("8000", port), names)
        finally:
            process.terminate()
    assert names["begun"].observation.text.startswith("Please ")
    assert names["read"].observation.text.startswith('{"departments": [{') and not names["read"].done


def test_the_seed_draws_what_gymnasium_draws(world):
    env = PhoneEnvironment(world, levels=(1, 2))
    ours = PhoneCallEnv(world, env.tasks("validation"))
    session = openenv.Session(env)
    for seed in range(4):
        begun = session.reset(seed=seed, split="validation")
        request, info = ours.reset(seed=seed)
        assert (begun.text, begun.metadata["task_id"]) == (request, info["task_id"])
        step = ours.step('search_company<|args|>{"company_name": "Bank"}')
        read = session.step(openenv.ToolCall(tool="search_company", arguments={"company_name": "Bank"}))
        assert (read.text, read.reward, read.done) == (step[0], step[1], False)


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")  # the server's, as it ends beside its client
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed (apt-get install bubblewrap)")
def test_the_shell_world_is_served():
    with serving(openenv.app(ShellEnvironment(draw_world(0)))) as url, openenv.Client(url).sync() as client:
        client.reset(seed=0, index=0)
        read = client.step(openenv.ToolCall(tool="bash", arguments={"command": "echo $((6 * 7))"}))
        assert "42" in read.observation.text and (read.reward, read.done) == (0.0, False)
        over = client.step(openenv.ToolCall(tool="finish"))
        assert (over.reward, over.done) == (-0.5, True)  # nothing was done
