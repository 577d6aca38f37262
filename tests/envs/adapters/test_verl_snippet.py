"""The page's loop for verl: what the model reads, which tokens are its own, and where it is cut. And its tools.

On verl's own base classes where it is installed, elsewhere on stand-ins (`verl_loop`); docs/integrations.md says how.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
import sys
from types import ModuleType, SimpleNamespace

import pytest
import verl_loop
import yaml
from transformers import AutoTokenizer

from lfo.envs.base import written
from lfo.envs.phone import PhoneCallEnv
from lfo.envs.phone.callers import Oracle, run_scripted

pytestmark = pytest.mark.filterwarnings("default")  # verl's own warnings are not this project's


@pytest.fixture(scope="module")
def names() -> dict:
    return verl_loop.page()


@pytest.fixture(scope="module")
def tokenizer(chat_path):
    return AutoTokenizer.from_pretrained(chat_path)


@pytest.fixture(scope="module")
def solved(names):
    """A task, and the calls and answers of the oracle in it."""
    env = names["ENV"]
    task = env.tasks("train")[0]
    ours = PhoneCallEnv(env.world, [task])
    ours.reset(seed=3)
    return task, run_scripted(ours.episode, Oracle(ours.episode, env.world, random.Random(0)))


def test_what_is_said_is_learned_and_what_is_read_is_not(names, tokenizer, solved):
    task, episode = solved
    texts = [written(turn.action) for turn in episode.turns]
    read, out = verl_loop.play(names, tokenizer, task, 3, texts)
    assert len(read) == len(texts) and out.reward_score == 1.0 and out.num_turns == 2 * len(texts)
    assert names["ENV"].system in read[0] and episode.request in read[0] and '"make_phone_call"' in read[0]
    assert all(turn.observation in text for turn, text in zip(episode.turns, read[1:], strict=False))
    assert tokenizer.decode(out.prompt_ids) == read[0]
    assert len(out.response_ids) == len(out.response_mask)
    runs = itertools.groupby(zip(out.response_ids, out.response_mask, strict=True), key=lambda pair: pair[1])
    said = [tokenizer.decode([i for i, _ in part]) for own, part in runs if own]
    assert [message.removesuffix("<|im_end|>") for message in said] == [verl_loop.message(text) for text in texts]


def test_an_episode_that_is_too_long_is_cut(names, tokenizer, solved):
    task, episode = solved
    texts = [written(turn.action) for turn in episode.turns]
    read, out = verl_loop.play(names, tokenizer, task, 3, texts, length=8)
    assert len(read) == 1 and len(out.response_ids) == len(out.response_mask) == 8 and out.reward_score == 0.0
    _, whole = verl_loop.play(names, tokenizer, task, 3, texts)
    read, out = verl_loop.play(names, tokenizer, task, 3, texts, length=len(whole.response_ids) - 1)
    assert len(read) == len(texts) and out.reward_score == 0.0, "a call that is cut off is not made, nor paid"


@pytest.fixture(scope="module")
def tools() -> dict:
    """The page's program of tools."""
    return verl_loop.page("import BaseTool")


def row(tools, task, seed) -> dict:
    index = [t.task_id for t in tools["ENV"].tasks(task.split)].index(task.task_id)
    return next(itertools.islice(tools["rows"](task.split, seed), index, None))


def test_a_conversations_tools_share_its_episode(tools, solved):
    """Each call is answered as in `PhoneCallEnv`, the last one is worth the episode's reward, and then it is over."""
    task, episode = solved
    told = row(tools, task, 3)
    assert told["prompt"][-1]["content"] == episode.request
    made = {tool["tool_schema"]["function"]["name"]: tool["tool_schema"] for tool in tools["tools"]()["tools"]}
    if verl_loop.HERE:
        from verl.tools.schemas import OpenAIFunctionToolSchema

        made = {name: OpenAIFunctionToolSchema.model_validate(schema) for name, schema in made.items()}
    made = {name: tools["EpisodeTool"]({"type": "native"}, schema) for name, schema in made.items()}

    class Conversation(SimpleNamespace):
        __hash__ = object.__hash__

    def said(data, turn):
        return asyncio.run(made[turn.tool].execute("1", turn.action.arguments, agent_data=data))

    one, other = (Conversation(tools_kwargs=told["extra_info"]["tools_kwargs"]) for _ in range(2))
    answers = [said(one, turn) for turn in episode.turns]
    assert [answer.text for answer, _, _ in answers] == [turn.observation for turn in episode.turns]
    rewards = [reward for _, reward, _ in answers]
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
    assert tools["compute_score"]("lfo", "", "", {"tool_rewards": rewards}) == 1.0
    assert said(one, episode.turns[0])[0].text.startswith("This is over")
    assert said(other, episode.turns[0])[0].text == episode.turns[0].observation


@pytest.mark.skipif(not verl_loop.HERE, reason="verl is not installed here; docs/integrations.md says how")
def test_verls_own_loop_plays_the_tools(tools, tokenizer, solved, tmp_path, monkeypatch):
    from verl.experimental.agent_loop.agent_loop import ToolListWrap
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.tools.tool_registry import initialize_tools_from_config

    module = ModuleType("my_module")
    vars(module).update(tools)
    monkeypatch.setitem(sys.modules, "my_module", module)
    (tmp_path / "tools.yaml").write_text(yaml.safe_dump(tools["tools"]()))
    loaded = initialize_tools_from_config(tmp_path / "tools.yaml")

    task, episode = solved
    told = row(tools, task, 3)
    server = verl_loop.Scripted(tokenizer, [written(turn.action) for turn in episode.turns])
    asked = {"raw_prompt": told["prompt"], "tools_kwargs": told["extra_info"]["tools_kwargs"]}
    out = verl_loop.run(ToolAgentLoop, server, asked, tools=ToolListWrap(loaded))
    assert len(server.read) == len(episode.turns) + 1  # one more message, without a call
    assert all(turn.observation in text for turn, text in zip(episode.turns, server.read[1:], strict=True))
    assert tools["compute_score"]("lfo", "", "", out.extra_fields) == 1.0


@pytest.mark.skipif(not verl_loop.HERE, reason="verl is not installed here; docs/integrations.md says how")
def test_the_page_calls_verl_as_it_is():
    """The loop is registered by its name, and the server's words are those that the script's are called with."""
    from verl.experimental.agent_loop import agent_loop
    from verl.workers.rollout.llm_server import LLMServerClient

    names = verl_loop.page()
    assert issubclass(names["EpisodeLoop"], agent_loop.AgentLoopBase) and "lfo" in agent_loop._agent_loop_registry
    inspect.signature(LLMServerClient.generate).bind(None, "1", prompt_ids=[], sampling_params={})
