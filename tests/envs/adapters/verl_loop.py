"""What docs/integrations.md shows for verl, played: on verl's own base classes where verl is installed.

Elsewhere a base class with the same four things stands in for its loop's, which renders whole conversations with the
chat template, and one with a name for its tools'.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import types
from types import SimpleNamespace

from test_docs import shown

HERE = importlib.util.find_spec("verl") is not None
LOOPS, TOOLS, SCHEMAS = "verl.experimental.agent_loop.agent_loop", "verl.tools.base_tool", "verl.tools.schemas"


class StandIn:
    """What the page uses of verl 0.9's `AgentLoopBase`."""

    def __init__(self, trainer_config, server_manager, tokenizer, **_):
        self.rollout_config = trainer_config.config.actor_rollout_ref.rollout
        self.server_manager, self.tokenizer = server_manager, tokenizer

    async def ct_build_initial_tokens(self, messages, tools=None):
        told = {"tools": tools, "add_generation_prompt": True, "return_dict": False}
        return list(self.tokenizer.apply_chat_template(messages, **told))

    async def ct_merge_assistant_token(self, ids, new, mask):
        return SimpleNamespace(token_ids=[*ids, *new]), [*mask, *[1] * len(new)], None

    async def ct_merge_context_msg(self, before, after, ids, mask, tools=None):
        (more,) = after[len(before) :]
        text = f"\n<|im_start|>user\n<tool_response>\n{more['content']}\n</tool_response><|im_end|>\n"
        new = self.tokenizer.encode(f"{text}<|im_start|>assistant\n")
        return SimpleNamespace(token_ids=[*ids, *new]), [*mask, *[0] * len(new)], None


class StandInTool:
    """What the page uses of verl 0.9's `BaseTool`."""

    def __init__(self, config, tool_schema):
        self.name = tool_schema["function"]["name"]


def page(wanted: str = "AgentLoopBase, AgentLoopOutput") -> dict:
    """The names of the page's program that mentions this."""
    made: dict = {}
    if not HERE:
        for place in (LOOPS, TOOLS, SCHEMAS):
            parts = place.split(".")
            names = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
            made |= {name: types.ModuleType(name) for name in names}
        vars(made[LOOPS]).update(AgentLoopBase=StandIn, AgentLoopOutput=SimpleNamespace)
        made[LOOPS].register = lambda name: lambda kind: kind
        made[TOOLS].BaseTool, made[SCHEMAS].ToolResponse = StandInTool, SimpleNamespace
        sys.modules.update(made)
    try:
        return shown("integrations.md", wanted)
    finally:
        for name in made:
            del sys.modules[name]


def message(text: str) -> str:
    """An action as a chat model writes it; none for the empty one."""
    tool, _, arguments = text.partition("<|args|>")
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>' if tool else "Bye."


class Scripted:
    """verl's server: the n-th completion is the n-th message. Remembers what was read before each."""

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts, self.read = tokenizer, [*texts, ""], []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        self.read.append(self.tokenizer.decode(prompt_ids))
        ids = self.tokenizer.encode(f"{message(self.texts[len(self.read) - 1])}<|im_end|>")
        blank = {"log_probs": None, "num_preempted": None, "routed_experts": None, "extra_fields": {}}
        return SimpleNamespace(token_ids=ids, **blank)


def play(names: dict, tokenizer, task, seed: int, texts, length: int = 100_000):
    """What is read before each message, and the loop's output, of an episode in which these actions are said."""
    env = names["ENV"]
    index = [t.task_id for t in env.tasks(task.split)].index(task.task_id)
    (row,) = [r for r in names["rows"](task.split, seed) if r["extra_info"]["index"] == index]
    server = Scripted(tokenizer, texts)
    loop = names["EpisodeLoop"]
    return server.read, run(loop, server, {"raw_prompt": row["prompt"], "extra_info": row["extra_info"]}, length)


def run(loop: type, server: Scripted, row: dict, length: int = 100_000, **others):
    """The output of a loop of verl's for a row. others: what this loop is made with besides."""
    turns = {"max_user_turns": None, "max_assistant_turns": None, "max_parallel_calls": 1, "format": "hermes"}
    turns |= {"max_tool_response_length": length, "tool_response_truncate_side": "left"}
    lengths = {"response_length": length, "prompt_length": length, "full_determinism": False}
    rollout = SimpleNamespace(**lengths, multi_turn=SimpleNamespace(**turns))
    config = SimpleNamespace(config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)))
    others |= {"processor": None, "dataset_cls": None, "hf_model_type": "qwen3"}

    async def play():
        made = loop(config, server, server.tokenizer, data_config=SimpleNamespace(config={}), **others)
        return await made.run({}, **row)

    return asyncio.run(play())
