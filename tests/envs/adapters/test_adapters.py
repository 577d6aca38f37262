"""The same seed is the same episode through every adapter as in `PhoneCallEnv`: every observation and every reward."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import itertools
import json
import random
import re
import types
from pathlib import Path

import pytest
import verl_loop
from playable import needs_game
from sandboxed import needs_sandbox
from serving import serving
from toy import Keeping
from transformers import AutoTokenizer

import lfo
from lfo.config import ConfigError, EnvConfig
from lfo.envs import make_environment
from lfo.envs.adapters import gym, trl
from lfo.envs.adapters.shared import chosen
from lfo.envs.base import parse_action, written
from lfo.envs.phone import PhoneCallEnv, PhoneEnvironment, Rules
from lfo.envs.phone.callers import REFERENCE_POLICIES
from lfo.envs.phone.records import PhoneTask
from lfo.envs.phone.tools import TOOLS
from lfo.lab.public_world import solution
from lfo.types import Call, Malformed

CASES = [(level, rules, seed) for level in (1, 4) for rules in ("binary", "shaped") for seed in (0, 1)]
CARELESS = ('make_phone_call<|args|>{"phone_number": "800"}', 'auth_info_form<|args|>{"fields": ["shoe size"]}')


def reference(world, task, rules, seed) -> PhoneCallEnv:
    env = PhoneCallEnv(world, [task], rules)
    env.reset(seed=seed, options={"task": task})
    return env


def caller(policy: str, env: PhoneCallEnv):
    """The next action of a reference policy, given an observation; "careless" calls what cannot be read."""
    if policy == "careless":
        texts = itertools.cycle(CARELESS)
        return lambda observation: next(texts)
    agent = REFERENCE_POLICIES[policy](env.episode, env.world, random.Random(0))
    return lambda observation: written(agent.act(observation))


def played(world, task, rules, seed, policy) -> tuple[list[str], list[str], list[float]]:
    """The actions of an episode up to a hang-up, all that was read, and the reward if it ended after each action."""
    env = reference(world, task, rules, seed)
    act, texts, said, over = caller(policy, env), [], [env.episode.request], False
    while not over and (text := act(said[-1])):
        observation, _, terminated, truncated, _ = env.step(text)
        texts.append(text)
        said.append(observation)
        over = terminated or truncated
    return texts, said, [hung_up_after(reference(world, task, rules, seed), texts[:n]) for n in range(len(said))]


def hung_up_after(env: PhoneCallEnv, texts: list[str]) -> float:
    """All rewards of an episode that is ended by hanging up, unless it ends by itself."""
    rewards, over = [], False
    for text in [*texts, ""]:
        if not over:
            _, reward, terminated, truncated, _ = env.step(text)
            rewards.append(reward)
            over = terminated or truncated
    return sum(rewards)


def through_trl(world, task, rules, seed, texts) -> tuple[list[str], float]:
    return by_trl(PhoneEnvironment(world, rules), task, seed, texts)


def by_trl(env, task, seed, texts) -> tuple[list[str], float]:
    """As TRL does it: a method for each call, and nothing for a message without one."""
    (row,) = [row for row in trl.rows(env, task.split, seed) if row["task_id"] == task.task_id]
    one = trl.environment_factory(env)()
    said = [one.reset(**row)]
    for text in texts:
        tool, _, arguments = text.partition("<|args|>")
        said.append(getattr(one, tool)(**json.loads(arguments)))
    return said, one.get_reward()


class KeptPhone(Keeping, PhoneEnvironment):
    """Remembers its episodes."""


def through_verl(world, task, rules, seed, texts) -> tuple[list[str], float]:
    """The page's loop, with verl's own base class where there is one, and a chat model that says what it is to say."""
    names = program()
    names["ENV"] = kept = KeptPhone(world, rules)
    _, out = verl_loop.play(names, CHAT["tokenizer"], task, seed, texts)
    (episode,) = kept.made
    return [episode.request, *(turn.observation for turn in episode.turns[: len(texts)])], out.reward_score


program = functools.cache(verl_loop.page)
CHAT: dict = {}  # its tokenizer
OPEN = contextlib.ExitStack()
CLIENTS: dict = {}  # rules, or the name of a world -> a session of OpenEnv at a server of its own


@pytest.fixture(scope="module", autouse=True)
def ended(chat_path):
    """Servers and clients end with this module."""
    CHAT["tokenizer"] = AutoTokenizer.from_pretrained(chat_path)
    with OPEN:
        yield


def through_openenv(world, task, rules, seed, texts) -> tuple[list[str], float]:
    return by_openenv(PhoneEnvironment(world, rules), task, seed, texts, rules)


def by_openenv(env, task, seed, texts, named=None) -> tuple[list[str], float]:
    """By a client over a WebSocket; the rewards of all its steps are summed up, as trainers do."""
    from lfo.envs.adapters import openenv

    named = named or type(env)
    if named not in CLIENTS:
        client = openenv.Client(OPEN.enter_context(serving(openenv.app(env))))
        CLIENTS[named] = OPEN.enter_context(client.sync())
    index = [task.task_id for task in env.tasks(task.split)].index(task.task_id)
    steps = [CLIENTS[named].reset(seed=seed, split=task.split, index=index)]
    for text in [*texts, ""]:
        if not steps[-1].done:
            tool, _, arguments = text.partition("<|args|>")
            call = openenv.ToolCall(tool=tool, arguments=json.loads(arguments or "{}"))
            steps.append(CLIENTS[named].step(call))
    return [step.observation.text for step in steps[: len(texts) + 1]], sum(step.reward for step in steps[1:])


def through_gym(world, task, rules, seed, texts) -> tuple[list[str], float]:
    """`PhoneCallEnv` itself, wrapped: what is said to it is the argument of the one tool; the empty text hangs up."""
    env = gym.GymEnvironment(lambda: PhoneCallEnv(world, [task], rules), "Call.", {"train": [seed]})
    episode = env.episode(env.tasks("train")[0], 0)
    said = [episode.request]
    said += [episode.step(Call("act", {"action": text})) for text in texts]
    if episode.stop is None:
        episode.step(Call("act", {"action": ""}))
    return said, episode.outcome().reward


class Spoken:
    """Stands for verifiers' agent, which is one process a turn: its messages are given, and what it reads is kept."""

    def __init__(self, texts) -> None:
        self.texts, self.read, self.trace = iter(texts), [], types.SimpleNamespace(info={})

    @contextlib.asynccontextmanager
    async def interaction(self, task):
        yield self

    async def turn(self, read: str) -> types.SimpleNamespace:
        self.read.append(read)
        tool, tag, arguments = next(self.texts, "").partition("<|args|>")
        reply = f'<tool_call>{{"name": "{tool}", "arguments": {arguments}}}</tool_call>' if tag else "That is all."
        return types.SimpleNamespace(last_reply=reply, terminated=False)


def through_verifiers(world, task, rules, seed, texts) -> tuple[list[str], float]:
    """verifiers' own taskset, task and reward; who has no more to say ends the conversation."""
    import verifiers_lfo
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    taskset = {"id": "verifiers-lfo", "split": task.split, "seed": seed}
    env = load_environment(resolve_env_config({"taskset": taskset}))
    assert isinstance(env, verifiers_lfo.LfoEnv)
    env.taskset.env = kept = KeptPhone(world, rules)
    (one,) = [one for one in env.taskset if one.data.id == task.task_id]
    agent = Spoken(texts)
    asyncio.run(env.run(one, types.SimpleNamespace(agent=agent)))
    (episode,) = kept.made
    said = [*agent.read, *(turn.observation for turn in episode.turns[len(agent.read) - 1 :])]
    return said[: len(texts) + 1], asyncio.run(one.reward(agent.trace))


@pytest.fixture(scope="module")
def tasks(world) -> dict[int, PhoneTask]:
    """One of a level: an easy one of training, a hard one of test."""
    return {1: world.split("train", (1,))[0], 4: world.split("test", (4,))[0]}


THEIRS = pytest.mark.filterwarnings("default")  # others' warnings are not this project's
NEEDS_OPENENV = pytest.mark.skipif(
    importlib.util.find_spec("openenv") is None, reason="OpenEnv is not installed here; docs/integrations.md says how"
)
NEEDS_VERIFIERS = pytest.mark.skipif(
    importlib.util.find_spec("verifiers") is None, reason="verifiers is not installed; `make test-verifiers` has it"
)
ADAPTERS = [
    through_trl,
    through_gym,
    pytest.param(through_verl, marks=THEIRS),
    pytest.param(through_openenv, marks=[THEIRS, NEEDS_OPENENV]),
    pytest.param(through_verifiers, marks=[THEIRS, NEEDS_VERIFIERS]),
]


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("policy", [*REFERENCE_POLICIES, "careless"])
def test_the_same_seed_is_the_same_episode(world, tasks, adapter, policy):
    """Each episode is played again up to every one of its actions, so that each of its rewards is seen."""
    lengths = set()
    for level, reward, seed in CASES:
        rules = Rules(reward=reward)
        texts, said, rewards = played(world, tasks[level], rules, seed, policy)
        for n in range(len(said)):
            assert adapter(world, tasks[level], rules, seed, texts[:n]) == (said[: n + 1], rewards[n])
        lengths.add(len(texts))
    assert lengths == {0} if policy == "no-op" else min(lengths) >= 2


@pytest.mark.parametrize("adapter", [by_trl, pytest.param(by_openenv, marks=[THEIRS, NEEDS_OPENENV])])
@pytest.mark.parametrize("name", [pytest.param("twc", marks=needs_game), pytest.param("shell", marks=needs_sandbox)])
def test_other_worlds_are_played_as_well(adapter, name):
    """A game that is won, and a shell in which nothing but looking is done: what is read, and what it is worth."""
    env = make_environment(EnvConfig(name=name))
    task = env.tasks("train")[0]
    texts = ['bash<|args|>{"command": "pwd; ls -a"}', "finish<|args|>{}"]
    if name == "twc":
        texts = [written(call) for call in solution(task)]
    with contextlib.closing(env.episode(*chosen([task], 3, 0))) as ours:
        said = [ours.request, *(ours.step(parse_action(text, env.tools)) for text in texts)]
        reward = ours.outcome().reward
    assert ours.stop is not None and reward == (1.0 if name == "twc" else -0.5)
    assert adapter(env, task, 3, texts) == (said, reward)


def test_the_table_sees_success_failure_and_what_lies_between(world, tasks):
    """Else two adapters that answer nothing would be alike. Another seed is another episode."""
    seen = {
        case: played(world, tasks[case[1]], Rules(reward=case[2]), case[3], case[0])
        for case in [(policy, *case) for policy in REFERENCE_POLICIES for case in CASES]
    }
    rewards = {reward for _, _, rewards in seen.values() for reward in rewards}
    assert {0.0, 1.0} < rewards and len(rewards) >= 4
    assert any(said != seen[policy, level, kind, 1][1] for (policy, level, kind, _), (_, said, _) in seen.items())


def test_what_careless_callers_say_is_malformed():
    assert all(isinstance(parse_action(text, TOOLS), Malformed) for text in CARELESS)


def test_adapters_are_no_environment():
    with pytest.raises(ConfigError, match="environment 'twc' has no held_out_phrasing; leave it out"):
        make_environment(EnvConfig(name="twc"), held_out_phrasing=True)
    with pytest.raises(ConfigError, match="there is no environment 'adapters'; environments: phone, shell"):
        make_environment(EnvConfig(name="adapters"))


def test_nothing_needs_an_adapter_and_no_adapter_a_world():
    """Each is imported by whoever wants it, and knows the protocols alone."""
    root = Path(lfo.__file__).parent
    files = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.glob("**/*.py")}
    adapters = {name for name in files if name.startswith("envs/adapters/")}
    assert len(adapters) == 5
    assert not [name for name in files.keys() - adapters if "envs.adapters" in files[name]]
    imported = {name: set(re.findall(r"^\s*(?:from|import) lfo\.([\w.]+)", files[name], re.M)) for name in adapters}
    assert set().union(*imported.values()) == {"envs.adapters.shared", "envs.base", "protocols", "types"}
