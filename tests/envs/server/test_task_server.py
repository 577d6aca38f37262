"""The task server and its client over real HTTP: the paths, sessions, deaths in the middle, and training against it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx
import pytest
from sandboxed import needs_sandbox
from task_serving import ROOT, Command, serving

import lfo
from lfo.cli import build_parser, main
from lfo.config import ConfigError, EnvConfig, load_config
from lfo.envs import make_environment
from lfo.envs.base import parse_action
from lfo.envs.phone.callers import REFERENCE_POLICIES
from lfo.envs.server import wire
from lfo.envs.server.app import listen, open_sessions, require_server
from lfo.envs.server.client import (
    RemoteEnvironment,
    RemoteEpisode,
    TaskServer,
    TaskServerFull,
    TaskServerGone,
    TaskServerRefused,
)
from lfo.envs.server.sessions import ChatHistory, NotFound, Sessions, TooManySessions
from lfo.envs.twc import explorer
from lfo.envs.twc.episode import PUT, TAKE, TOOLS, TwcEpisode
from lfo.protocols import Environment
from lfo.runs import RunFolder
from lfo.train import Run, train
from lfo.types import Call, Hangup, Malformed, StopReason

SMOKE, SHELL_SMOKE = (str(ROOT / "configs" / f"{name}.yaml") for name in ("smoke", "shell_smoke"))
PHONE, SHELL = load_config(SMOKE).env, load_config(SHELL_SMOKE).env


def post(url: str, path: str, **body) -> httpx.Response:
    return httpx.post(f"{url}/api/{path}", json=body, timeout=60, trust_env=False)


def remote(url: str, config: EnvConfig = PHONE, patience: float = 60.0, **options) -> RemoteEnvironment:
    return RemoteEnvironment(config, TaskServer(url, patience_seconds=patience), **options)


@pytest.fixture(scope="module")
def sessions():
    return open_sessions(PHONE, 600, 128)


@pytest.fixture(scope="module")
def url(sessions):
    with serving(sessions) as address:
        yield address


def compare(env: Environment, here: Environment, task, seed: int, policy: str) -> None:
    """A reference caller plays here, and what it did is done there."""
    mine, theirs = here.episode(task, seed), env.episode(task, seed)
    agent = REFERENCE_POLICIES[policy](mine, here.world, random.Random(seed))
    assert theirs.request == mine.request
    observation = mine.request
    while mine.stop is None:
        action = agent.act(observation)
        observation = mine.step(action)
        assert theirs.step(action) == observation
    assert theirs.turns == mine.turns and theirs.stop is mine.stop and theirs.outcome() == mine.outcome()
    theirs.close()


# ---------------------------------------------------------------- the paths


def test_it_is_not_started_where_no_episode_can_be_played(monkeypatch, capsys):
    monkeypatch.setattr("lfo.envs.shell.sandbox.shutil.which", lambda name: None)
    assert main(["task-server", "--config", str(SHELL_SMOKE), "--port", "0", "--history-port", "0"]) == 1
    assert "apt-get install bubblewrap" in capsys.readouterr().err


@needs_sandbox
def test_the_command_serves_what_the_guide_asks_of_it(tmp_path):
    """With curl, as the guide does it, where there is one; SIGTERM ends it."""
    command = Command(SHELL_SMOKE)
    try:
        for port in (command.port, command.history_port):
            address = f"http://127.0.0.1:{port}"
            assert post(address, "ping").json() == {"response": "Hello, World!"}
            assert post(address, "ping", foo=1).status_code == 422
            words = ["curl", "-sS", "-X", "POST", "-H", "Content-Type: application/json", "-d", "{}"]
            if shutil.which("curl"):
                said = subprocess.run([*words, f"{address}/api/ping"], capture_output=True, check=True)
                assert json.loads(said.stdout) == {"response": "Hello, World!"}
        env = make_environment(SHELL)
        listed = post(command.url, "get_sample_index_list").json()["sample_index_list"]
        assert listed == [task.task_id for split in ("train", "validation", "test") for task in env.tasks(split)]
        task = env.tasks("train")[0]
        began = post(command.url, "reset", sample_index=task.task_id).json()
        assert began["request"] == task.instruction
        said = f"I know how.\nAct: bash\n```bash\n{task.ground_truth}\n```"
        assert post(command.url, "interact", session_id=began["session_id"], action=said).json()["stop"] is None
        last = post(command.url, "interact", session_id=began["session_id"], action="Act: finish").json()
        finish = {"tool": "finish", "arguments": {}}
        assert last == {"action": finish, "observation": "", "status": "finished", "stop": "success"}
        done = post(command.url, "complete", session_id=began["session_id"]).json()
        assert done["outcome"]["success"] and done["outcome"]["reward"] == 1.0
        metric = post(command.url, "calculate_metric", outcomes=[done["outcome"]]).json()["metric"]
        assert (metric["correct"], metric["n"]) == (1, 1)
        assert post(command.url, "release", session_id=began["session_id"]).json() == {"released": True}
        items = post(command.history, "get_chat_history_item_dict_deep_copy").json()["chat_history_item_dict"]
        assert items["0"] == {"role": "user", "content": env.system} and items["1"]["role"] == "agent"
        assert post(command.history, "set", prompt_index=1, role="agent", content="Yes.").status_code == 200
        told = post(command.history, "construct", chat_history_item_index=1, expected_role="agent").json()
        assert told == {"chat_history_item": {"role": "agent", "content": "Yes."}}
    finally:
        assert command.stop() in (0, -15)


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("reset", {"sample_index": "train-9999"}, 404, "no task 'train-9999'"),
        ("reset", {"sample_index": "train-000", "options": {"louder": True}}, 422, "louder"),
        ("reset", {}, 422, "sample_index"),
        ("reset", {"sample_index": "train-000", "speed": 3}, 422, "speed"),
        ("interact", {"session_id": "nobody", "action": {}}, 410, "no session 'nobody'"),
        ("complete", {"session_id": "nobody"}, 410, "no session 'nobody'"),
        ("get_attribute", {"name": "rules"}, 404, "no attribute 'rules'"),
        ("set_attribute", {"name": "system", "value": "x"}, 404, "cannot be set"),
        ("set_attribute", {"name": "session_seconds", "value": 0}, 422, "above 0"),
        ("get_sample_index_list", {"split": "secret"}, 422, "validation"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(url, path, body, status, sentence):
    answer = post(url, path, **body)
    assert answer.status_code == status and sentence in answer.text


def test_attributes_tell_what_is_served(url):
    assert post(url, "get_attribute", name="environment").json()["value"]["name"] == "phone"
    tools = post(url, "get_attribute", name="tools").json()["value"]
    assert [tool["function"]["name"] for tool in tools] == list(make_environment(PHONE).tools)
    assert post(url, "set_attribute", name="max_sessions", value=64).status_code == 200
    assert post(url, "get_attribute", name="max_sessions").json() == {"value": 64}


def test_a_chat_history_knows_who_says_what():
    history = ChatHistory("Be good.")
    assert history.construct(wire.Construct(chat_history_item_index=0)).content == "Be good."
    with pytest.raises(ValueError, match="item 0 is the user's"):
        history.construct(wire.Construct(chat_history_item_index=0, expected_role="agent"))
    with pytest.raises(NotFound, match="no chat history item 7; items: 0, 1"):
        history.construct(wire.Construct(chat_history_item_index=7))


# ---------------------------------------------------------------- sessions


def test_a_call_that_does_not_fit_is_malformed_like_everywhere(url):
    env = make_environment(PHONE)
    for tool, arguments in (("shout", {}), ("search_company", {"name": "x"}), ("search_company", {"company_name": 3})):
        session = post(url, "reset", sample_index="train-000").json()["session_id"]
        action = {"tool": tool, "arguments": arguments}
        said = post(url, "interact", session_id=session, action=action).json()
        mine = env.episode(env.tasks("train")[0], 0)
        mine.step(parse_action(f"{tool}<|args|>{json.dumps(arguments)}", env.tools))
        assert (said["observation"], said["status"]) == (mine.turns[0].observation, "error")
        post(url, "release", session_id=session)


def test_a_turn_that_is_asked_for_again_is_not_taken_again(url):
    session = post(url, "reset", sample_index="train-000").json()["session_id"]
    search = {"tool": "search_company", "arguments": {"company_name": "Bank"}}
    first, again = (post(url, "interact", session_id=session, turn=0, action=search).json() for _ in range(2))
    assert first == again
    other = post(url, "interact", session_id=session, turn=0, action={})
    assert other.status_code == 409 and "is in turn 1" in other.text
    assert post(url, "interact", session_id=session, turn=5, action={}).status_code == 409
    assert post(url, "interact", session_id=session, turn=1, action={}).json()["stop"] == "agent_stopped"
    over = post(url, "interact", session_id=session, action=search)
    assert over.status_code == 409 and "ended" in over.text
    assert post(url, "release", session_id=session).json()["released"]


def test_what_the_game_does_not_understand_is_recorded_as_where_it_is_played():
    """The public world records such a call as malformed; asked for again, it is the same turn."""
    room = explorer.attempt(random.Random(0)).room
    task = SimpleNamespace(task_id="one")
    world = SimpleNamespace(
        system="", tools=TOOLS, tasks=lambda _: [task], episode=lambda *_: TwcEpisode(room.task, 9, room.replay)
    )
    here, lost = world.episode(), Call(PUT, {"thing": room.thing, "place": "moon"})
    with serving(Sessions(lambda: world, 600, 8, {})) as url:
        there = RemoteEpisode(TaskServer(url), wire.Reset(sample_index="one"))
        assert there.step(lost) == here.step(lost)
        assert there.turns == here.turns and isinstance(there.turns[0].action, Malformed)
        said = there._take(0, lost)
        assert (said.action, said.observation) == (here.turns[0].action, here.turns[0].observation)
        there._server.post("release", wire.Session(session_id=there._id), wire.Released)
        take = Call(TAKE, {"thing": room.thing})
        assert there.step(take) == here.step(take) and there.turns == here.turns, "played again from what is recorded"
        assert there.outcome() == here.outcome()
        there.close()


def test_a_session_that_is_begun_again_gives_up_the_old_one(url, sessions):
    before = len(sessions._open)
    for index in ("train-000", "train-001"):
        post(url, "reset", session_id="mine", sample_index=index)
    assert len(sessions._open) == before + 1
    assert sessions._open["mine"].episode.request == make_environment(PHONE).tasks("train")[1].request
    assert post(url, "release", session_id="mine").json()["released"]


def test_idle_sessions_are_released_and_their_episodes_closed():
    sessions = open_sessions(PHONE, 0.2, 8)
    closed = []
    with serving(sessions) as url:
        session = post(url, "reset", sample_index="train-000").json()["session_id"]
        episode = sessions._open[session].episode
        episode.close = lambda: closed.append(session)
        deadline = time.monotonic() + 30
        while not closed and time.monotonic() < deadline:
            time.sleep(0.05)
        assert closed == [session]
        assert post(url, "interact", session_id=session, action={}).status_code == 410


def test_a_client_takes_an_episode_up_again_that_was_idle_for_too_long(url, sessions):
    env, here = remote(url), make_environment(PHONE)
    task = env.tasks("train")[0]
    episode, mine = env.episode(task, 3), here.episode(task, 3)
    search = Call("search_company", {"company_name": "Bank"})
    assert episode.step(search) == mine.step(search)
    sessions.release(episode._id)
    assert episode.step(search) == mine.step(search) and len(sessions._open[episode._id].episode.turns) == 2
    sessions.release(episode._id)
    episode.cut()
    mine.cut()
    assert episode.stop is StopReason.TOKEN_BUDGET and episode.outcome() == mine.outcome() == episode.outcome()
    episode.close()
    assert episode._id not in sessions._open
    with pytest.raises(RuntimeError, match="this episode ended"):
        episode.step(Hangup())


def test_a_full_server_is_waited_for(sessions):
    full = open_sessions(PHONE, 0.5, 1)
    with serving(full) as url:
        post(url, "reset", sample_index="train-000")
        refused = post(url, "reset", sample_index="train-001")
        assert refused.status_code == 503 and "1 sessions are open, and max_sessions is 1" in refused.text
        env = remote(url)
        env.episode(env.tasks("train")[1], 0).close()  # once the idle one is released


def test_a_server_that_stays_full_is_not_called_dead():
    with serving(open_sessions(PHONE, 600, 1)) as url:
        post(url, "reset", sample_index="train-000")
        env = remote(url, patience=0.2)
        with pytest.raises(TaskServerFull, match=rf"{url} is full: 1 sessions are open, and max_sessions is 1; .*more"):
            env.episode(env.tasks("train")[1], 0)


def test_however_many_ask_at_once_no_more_are_open_than_may_be():
    """Episodes that take their time to begin: all who ask see room before the first one has taken it."""
    few = open_sessions(PHONE, 600, 3)
    environment, closed = few._environment(), []

    class Slow:
        tasks = staticmethod(environment.tasks)

        def episode(self, task, seed):
            time.sleep(0.2)
            episode = environment.episode(task, seed)
            episode.close = lambda: closed.append(episode)
            return episode

    few._environment = lambda **options: Slow()

    def ask(_):
        with contextlib.suppress(TooManySessions):
            few.reset(wire.Reset(sample_index="train-000"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert len(few._open) == 3 and len(closed) == 5


def test_an_episode_that_cannot_be_closed_does_not_end_the_sweep():
    sessions = open_sessions(PHONE, 0.1, 8)
    bad, good = (sessions.reset(wire.Reset(sample_index="train-000")).session_id for _ in range(2))
    closed = []

    def fail():
        raise OSError("the sandbox is gone")

    sessions._open[bad].episode.close, sessions._open[good].episode.close = fail, lambda: closed.append(good)
    thread = threading.Thread(target=sessions.sweep, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not closed and time.monotonic() < deadline:
        time.sleep(0.05)
    assert closed == [good] and thread.is_alive()
    sessions.close()
    thread.join(10)


# ---------------------------------------------------------------- the first contact


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:8000", "is no address .*it is like http://127.0.0.1:8000"),
        ("ftp://127.0.0.1", "names no http:// and no machine"),
        ("http://", "names no http:// and no machine"),
        ("http://127.0.0.1:port", "is no address"),
    ],
)
def test_what_is_no_address_is_said_at_once(address, sentence):
    with pytest.raises(ConfigError, match=sentence):
        TaskServer(address)


def test_where_nobody_ever_answered_nobody_waits_long(monkeypatch):
    """Though a server that was there would be waited for for minutes: the pauses are added up, and none is made."""
    paused = []
    clock = SimpleNamespace(monotonic=lambda: sum(paused), sleep=paused.append)
    monkeypatch.setattr("lfo.envs.server.client.time", clock)
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(TaskServerGone, match=rf"127.0.0.1:{port} does not answer .*refused"):
        RemoteEnvironment(dataclasses.replace(PHONE, server=f"http://127.0.0.1:{port}"))
    assert sum(paused) < 15


def test_a_port_that_there_is_not_is_said():
    with pytest.raises(OSError, match=r"port 99999 is none; choose one from 0 .* to 65535"):
        listen("127.0.0.1", 99999)


def test_the_address_that_is_printed_is_taken(url):
    assert remote(f"{url}/api").tasks("test") and remote(f"{url}/api/").tasks("test")


def test_another_version_is_named(sessions):
    other = Sessions(lambda **options: make_environment(PHONE), 60, 8, sessions._facts | {"version": "0.0.1"})
    with serving(other) as url, pytest.raises(ConfigError, match=rf"is lfo 0\.0\.1, and this is lfo {lfo.__version__}"):
        remote(url)


class Foreign(BaseHTTPRequestHandler):
    """Somebody else's server: an answer of its own to everything, with a status that its address names."""

    def do_POST(self):
        status = int(self.path.split("/")[1])
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b'{"detail": "Not Found"}' if status == 404 else b'{"hello": "there"}')

    def log_message(self, *args):
        pass


@pytest.mark.parametrize("status", [200, 404, 418])
def test_somebody_elses_server_is_told_apart(status):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(TaskServerRefused, match=r"is env.server the address that `lfo task-server` prints") as said:
            remote(f"http://127.0.0.1:{server.server_port}/{status}")
        assert "pydantic" not in str(said.value)
    finally:
        server.shutdown()
        server.server_close()


# ---------------------------------------------------------------- the same episodes


@pytest.mark.parametrize("policy", [*REFERENCE_POLICIES])
def test_the_phone_is_the_same_through_http(url, policy):
    env, here = remote(url), make_environment(PHONE)
    for seed, task in enumerate(env.tasks("test")[:4]):
        compare(env, here, task, seed, policy)


def test_options_of_the_environment_go_along(url):
    """A refusal in words that training never has."""
    there, here = remote(url, held_out_phrasing=True), make_environment(PHONE, held_out_phrasing=True)
    compare(there, here, here.tasks("test")[0], 1, "typical-prior")


def test_sixty_four_sessions_at_once(sessions, url):
    """Each of them is the episode that it would be alone; none is left open."""
    env, here = remote(url), make_environment(PHONE)
    sessions.max_sessions = 128
    tasks = env.tasks("train")[:64]
    with ThreadPoolExecutor(64) as pool:
        episodes = list(pool.map(lambda task: env.episode(task, 0), tasks))
        assert post(url, "get_attribute", name="sessions").json()["value"] >= 64
        search = Call("search_company", {"company_name": "Bank"})
        for _ in range(2):
            said = list(pool.map(lambda episode: episode.step(search), episodes))
        outcomes = list(pool.map(lambda episode: (episode.cut(), episode.outcome(), episode.close())[1], episodes))
    alone = [here.episode(task, 0) for task in tasks]
    assert said == [(episode.step(search), episode.step(search))[1] for episode in alone]
    assert outcomes == [(episode.cut(), episode.outcome())[1] for episode in alone]
    assert not {episode._id for episode in episodes} & set(sessions._open)


def test_any_environment_can_be_behind_it():
    from toy import Counting

    with serving(Sessions(Counting, 60, 8, {})) as url:
        session = post(url, "reset", sample_index="train-2").json()["session_id"]
        action = {"tool": "count", "arguments": {"number": "2"}}
        said = post(url, "interact", session_id=session, action=action).json()
        assert said == {"action": action, "observation": "right", "status": "right", "stop": "success"}
        assert post(url, "complete", session_id=session).json()["outcome"]["reward"] == 1


# ---------------------------------------------------------------- deaths


@needs_sandbox
def test_killed_in_the_middle_and_started_again_nothing_is_lost():
    """SIGKILL after each of the first two actions: files made before it are there after it."""
    command = Command(SHELL_SMOKE)
    try:
        env = remote(command.url, SHELL)
        task = next(task for task in env.tasks("train") if not task.machine)
        episode = env.episode(task, 0)
        assert "made" not in episode.step(Call("bash", {"command": "ls"}))
        command.kill()
        command.start()
        episode.step(Call("bash", {"command": "mkdir made; echo kept > made/file"}))
        command.kill()
        command.start()
        assert episode.step(Call("bash", {"command": "cat made/file"})) == "The output of the OS:\nkept"
        command.kill()
        command.start()
        episode.step(Call("bash", {"command": f"rm -r made\n{task.ground_truth}"}))
        episode.step(Call("finish", {}))
        assert episode.outcome().success and len(episode.turns) == 5
        episode.close()
    finally:
        command.kill()


def test_a_server_that_stays_away_is_named_with_the_remedy(sessions):
    with serving(open_sessions(PHONE, 60, 8)) as url:
        env = remote(url, patience=0.3)
        episode = env.episode(env.tasks("train")[0], 0)
    with pytest.raises(TaskServerGone, match=rf"{url} does not answer .*start it with `lfo task-server`"):
        episode.step(Hangup())
    episode.close()  # asks once, and lets it be
    with pytest.raises(TaskServerGone):
        remote(url, patience=0)


def test_an_episode_that_is_lost_again_and_again_is_given_up(url, monkeypatch):
    env = remote(url)
    episode = env.episode(env.tasks("train")[0], 0)
    monkeypatch.setattr(episode, "_begin", lambda: None)
    post(url, "release", session_id=episode._id)
    with pytest.raises(TaskServerGone, match="lost an episode 8 times; raise --session-seconds"):
        episode.step(Hangup())


# ---------------------------------------------------------------- who may ask, and for what


def test_a_token_is_asked_for(monkeypatch):
    with serving(open_sessions(PHONE, 60, 8), token="open sesame") as url:
        assert post(url, "ping").status_code == 401
        monkeypatch.setenv(wire.TOKEN, "guess")
        with pytest.raises(TaskServerRefused, match=r"a token is needed; set LFO_TASK_TOKEN"):
            remote(url)
        monkeypatch.setenv(wire.TOKEN, "open sesame")
        assert remote(url).tasks("test")


def test_without_a_token_nobody_else_is_let_in(monkeypatch, capsys):
    monkeypatch.delenv(wire.TOKEN, raising=False)
    assert main(["task-server", "--config", SMOKE, "--host", "0.0.0.0"]) == 1
    assert "--host 0.0.0.0 lets others in: set a token in LFO_TASK_TOKEN" in capsys.readouterr().err


def test_a_page_that_calls_itself_otherwise_is_not_answered(url):
    """DNS rebinding: a browser on this machine is led here under another's name."""
    path = f"{url}{wire.PREFIX}/ping"
    assert httpx.post(path, json={}).status_code == 200
    assert httpx.post(path, json={}, headers={"Host": "evil.example"}).status_code == 400


def test_a_port_that_is_taken_is_named(url, capsys):
    taken = url.rpartition(":")[2]
    assert main(["task-server", "--config", SMOKE, "--port", taken]) == 1
    assert f"port {taken} of 127.0.0.1 cannot be had" in capsys.readouterr().err


def test_an_answers_body_does_not_wait_for_its_head():
    """Connections send at once: asyncio sees to that for sockets that it has made itself, and not for ours."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -e \"\.\[server\]\""):
        require_server()


def test_no_two_servers_share_a_port():
    tasks = build_parser().parse_args(["task-server", "--config", "x"])
    vllm = build_parser().parse_args(["serve", "--config", "x"])
    assert len({tasks.port, tasks.history_port, vllm.port}) == 3


def test_another_environment_is_refused_by_name(url):
    with pytest.raises(ConfigError, match=r"has other settings \(env.levels, env.name differ\)"):
        remote(url, EnvConfig(name="shell", levels=(1,)))


def test_an_address_is_asked_for():
    with pytest.raises(ValueError, match=r"env.server is '127.0.0.1:8000'; .*http://127.0.0.1:8000"):
        EnvConfig(server="127.0.0.1:8000")


# ---------------------------------------------------------------- training against it


def rows_of(folder) -> list[dict]:
    timed = ("seconds", "tokens_per_second")
    return [{k: v for k, v in row.items() if k not in timed} for row in RunFolder(folder).metrics()]


@pytest.fixture(scope="module")
def trained_here(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "here"
    return train(make_config(), folder, progress=False)


def test_training_against_the_server_is_the_same_run(url, make_config, trained_here, tmp_path):
    """One setting; also when it goes on where it was not begun."""
    config = make_config(**{"env.server": url})
    assert rows_of(train(config, tmp_path / "there", progress=False)) == rows_of(trained_here)
    run = Run(make_config(), tmp_path / "there")
    assert run.resume() and run.done and RunFolder(trained_here).finished(config)


def test_a_server_that_is_killed_while_a_run_trains_changes_nothing(make_config, trained_here, tmp_path):
    command, config = Command(SMOKE), make_config()

    class Deadly(RemoteEnvironment):
        begun = 0

        def episode(self, *asked):
            self.begun += 1
            if self.begun in (3, 9):
                command.kill()
                command.start()
            return super().episode(*asked)

    try:
        env = Deadly(dataclasses.replace(config.env, server=command.url))
        assert rows_of(train(config, tmp_path, env, progress=False)) == rows_of(trained_here) and env.begun > 9
    finally:
        command.kill()
