"""The page's loop for verl: what the model reads, which tokens are its own, and where it is cut.

On verl's own base class where it is installed, elsewhere on a stand-in (`verl_loop`); docs/integrations.md says how.
"""

from __future__ import annotations

import inspect
import itertools
import random

import pytest
import verl_loop
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


@pytest.mark.skipif(not verl_loop.HERE, reason="verl is not installed here; docs/integrations.md says how")
def test_the_page_calls_verl_as_it_is():
    """The loop is registered by its name, and the server's words are those that the script's are called with."""
    from verl.experimental.agent_loop import agent_loop
    from verl.workers.rollout.llm_server import LLMServerClient

    names = verl_loop.page()
    assert issubclass(names["EpisodeLoop"], agent_loop.AgentLoopBase) and "lfo" in agent_loop._agent_loop_registry
    inspect.signature(LLMServerClient.generate).bind(None, "1", prompt_ids=[], sampling_params={})
