"""verifiers plays our environments on this machine: its own harness and runtime, and a scripted endpoint.

README.md has the command. The episodes are those of `PhoneCallEnv`.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import random
import threading

import pytest
import verifiers.v1 as vf
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.utils.loaders import load_environment, resolve_env_config
from verifiers_lfo import LfoTaskset

from lfo.config import ConfigError
from lfo.envs.base import written
from lfo.envs.phone import PhoneCallEnv, Rules, generate_world
from lfo.envs.phone.callers import REFERENCE_POLICIES

SETTINGS = {"levels": (1,), "reward": "shaped"}
SEED = 3
CARELESS = ["make_phone_call<|args|>{}", "shout<|args|>{}", "make_phone_call<|args|>{}"]


class Endpoint(http.server.BaseHTTPRequestHandler):
    """OpenAI's chat completions, streamed: the n-th answer to a request is the n-th of its script, then no call."""

    scripts: dict[str, list[str]] = {}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        users = [message["content"] for message in body["messages"] if message["role"] == "user"]
        script, n = self.scripts[users[0]], len(users) - 1
        tool, tag, arguments = (script[n] if n < len(script) else "").partition("<|args|>")
        call = f'<tool_call>{{"name": "{tool}", "arguments": {arguments}}}</tool_call>'
        delta = {"role": "assistant", "content": f"Well. {call}" if tag else "That is all."}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        whole = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
        said = {**whole, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        done = {**whole, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for chunk in (json.dumps(said), json.dumps(done), "[DONE]"):
            self.wfile.write(f"data: {chunk}\n\n".encode())

    def log_message(self, *_) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def url():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def settings(split: str = "train") -> dict:
    return {"taskset": {"id": "verifiers-lfo", "settings": SETTINGS, "split": split, "seed": SEED}}


@pytest.fixture(scope="module")
def env():
    return load_environment(resolve_env_config(settings()))


def played(index: int, policy: str) -> tuple[list[str], list[str], float]:
    """What is said and read when a policy plays a task in `PhoneCallEnv`, and the sum of the rewards."""
    world = generate_world(0)
    task = world.split("train", SETTINGS["levels"])[index]
    env = PhoneCallEnv(world, [task], Rules(reward="shaped"))
    texts, read, total, over = [], [env.reset(seed=SEED, options={"task": task})[0]], 0.0, False
    agent = policy != "careless" and REFERENCE_POLICIES[policy](env.episode, world, random.Random(0))
    while not over:
        texts.append(written(agent.act(read[-1])) if agent else CARELESS[len(texts)])
        observation, reward, terminated, truncated, _ = env.step(texts[-1])
        read.append(observation)
        total, over = total + reward, terminated or truncated
    return texts, read, total


def test_tasks_are_those_of_the_split_and_what_a_model_is_told(env):
    tasks = list(env.taskset)
    assert [task.data.id for task in tasks] == [task.task_id for task in env.taskset.env.tasks("train")]
    told, ours = tasks[0].data.system_prompt, env.taskset.env
    assert told.startswith(ours.system) and all(f'"name": "{tool}"' in told for tool in ours.tools)
    assert "{tools}" not in told and '"arguments": {...}}' in told and tasks[0].data.seed == SEED
    assert [task.data.id for task in env.taskset.take(2)] == [task.data.id for task in tasks[:2]]


def test_a_setting_that_does_not_exist_is_refused():
    config = resolve_env_config({"taskset": {"id": "verifiers-lfo", "settings": {"level": (1,)}}}).taskset
    with pytest.raises(ConfigError, match="unknown setting 'level'; did you mean 'levels'"):
        LfoTaskset(config)


def test_verifiers_plays_the_same_episodes(env, url):
    """A caller who succeeds, one who gives up, and one whose calls cannot be read."""
    policies = ["oracle", "no-op", "careless"]
    expected = [played(index, policy) for index, policy in enumerate(policies)]
    Endpoint.scripts = {read[0]: texts for texts, read, _ in expected}
    assert len(Endpoint.scripts) == len(policies)
    context = ModelContext(model="scripted", client=EvalClientConfig(base_url=url), sampling=vf.SamplingConfig())

    async def play() -> list[vf.Episode]:
        async with env.serving():
            return [await env.run_episode(task, context) for task in env.taskset.take(len(policies))]

    episodes = asyncio.run(play())
    for episode, policy, (_, read, reward) in zip(episodes, policies, expected, strict=True):
        assert episode.ok, [error.message for error in episode.errors]
        (trace,) = episode.traces
        heard = [node.message.content for node in trace.nodes if node.message.role == "user"]
        assert heard == read[:-1], policy  # what ends an episode is answered to nobody
        assert trace.reward == reward and trace.metrics["success"] == float(policy == "oracle")
        json.dumps(trace.info["outcome"])
    assert {reward for _, _, reward in expected} >= {0.0, 1.0}
