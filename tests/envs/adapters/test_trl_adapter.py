"""The adapter for TRL: what TRL takes for tools, what it hands over, and one real step of its GRPOTrainer.

The step needs TRL; docs/integrations.md has the command.
"""

from __future__ import annotations

import importlib.util
import inspect
import random

import pytest
import torch
from test_docs import shown
from toy import Counting, Kept
from transformers import AutoModelForCausalLM
from transformers.utils import get_json_schema

from lfo.envs.adapters.trl import OVER, _Instance, environment_factory, rows
from lfo.envs.base import Tool, written
from lfo.envs.phone import PhoneCallEnv, PhoneEnvironment, Rules
from lfo.envs.phone.callers import Oracle, run_scripted
from lfo.envs.phone.tools import TOOLS as PHONE_TOOLS
from lfo.envs.shell.episode import TOOLS as SHELL_TOOLS
from lfo.envs.twc.episode import TOOLS as TWC_TOOLS
from lfo.text.base import load_tokenizer

needs_trl = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None,
    reason="TRL is not installed here; docs/integrations.md says how this is run in an environment of its own",
)


def toy(*tools: Tool) -> Counting:
    """The counting environment, with these tools besides its own."""
    env = Counting()
    env.tools = {**Counting.tools, **{tool.name: tool for tool in tools}}
    return env


def taken_for_tools(kind: type) -> set[str]:
    """The methods that TRL 1.16 shows the model (`GRPOTrainer.__init__`)."""
    methods = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
    assert {"reset", "get_reward"} <= methods
    return methods - {"reset", "get_reward"}


def test_exactly_our_tools_are_exposed(env):
    assert taken_for_tools(environment_factory(env)) == set(env.tools)
    assert environment_factory(env).__name__ == "PhoneEnvironment"


def test_a_stray_method_would_be_seen(env):
    kind = type("Stray", (environment_factory(env),), {"close": lambda self: None})
    assert taken_for_tools(kind) == {*env.tools, "close"}


def bare(schema):
    """A schema without descriptions and titles, of which the two sides have their own."""
    if not isinstance(schema, dict):
        return schema
    dropped = ("description", "title") if isinstance(schema.get("type"), str) else ()
    return {key: bare(value) for key, value in schema.items() if key not in dropped}


TOOLS = [*PHONE_TOOLS.values(), *SHELL_TOOLS.values(), *TWC_TOOLS.values()]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_model_reads_the_schema_that_ours_reads(tool):
    read = get_json_schema(getattr(environment_factory(toy(tool))(), tool.name))["function"]
    ours = tool.schema()["function"]
    assert (read["name"], read["description"]) == (ours["name"], ours["description"])
    assert {"required": [], **bare(read["parameters"])} == bare(ours["parameters"])
    assert all(parameter["description"] for parameter in read["parameters"]["properties"].values())


def test_a_tool_without_arguments_and_one_with_any_texts_are_read():
    more = Tool("more", "READ", "Go on.", {}), Tool("say", "WRITE", "Say.", {"words": {"type": "array", "items": TEXT}})
    env = environment_factory(toy(*more))()
    assert get_json_schema(env.more)["function"]["parameters"]["properties"] == {}
    words = get_json_schema(env.say)["function"]["parameters"]["properties"]["words"]
    assert words == {"type": "array", "items": TEXT, "description": "The words."}


TEXT = {"type": "string"}


@pytest.mark.parametrize("name", ["reset", "get_reward", "_hidden"])
def test_a_tool_that_trl_would_hide_is_refused(name):
    with pytest.raises(ValueError, match=f"the tool '{name}'; give it another name"):
        environment_factory(toy(Tool(name, "READ", "It.", {})))


@pytest.mark.parametrize(
    "schema", [{"type": "integer"}, {"type": "object"}, {"type": "array", "items": {"type": "integer"}}]
)
def test_an_argument_that_is_not_simple_is_refused(schema):
    with pytest.raises(ValueError, match=r"lift takes weight as .*; use a string, an array or an object of strings"):
        environment_factory(toy(Tool("lift", "WRITE", "Lift.", {"weight": schema})))


def test_rows_are_what_a_data_set_is_made_of(env):
    found = rows(env, "validation", seed=3)
    assert [row["task_id"] for row in found] == [task.task_id for task in env.tasks("validation")]
    assert {row["seed"] for row in found} == {3}
    assert found[0]["prompt"] == [{"role": "system", "content": env.system}, {"role": "user", "content": ""}]
    with pytest.raises(ValueError, match="no tasks in 'tests'; splits: train, validation, test"):
        rows(env, "tests")


@pytest.mark.parametrize("row", [{}, {"task_id": "nobody", "seed": 0}, {"task_id": "train-1"}])
def test_a_row_of_somebody_else_is_refused(row):
    with pytest.raises(ValueError, match=r"lfo\.envs\.adapters\.trl\.rows makes them"):
        environment_factory(Counting())().reset(**row)


def test_after_the_end_a_call_does_nothing():
    env = environment_factory(kept := Kept())()
    assert env.reset(**rows(kept, "train")[1]) == "Count to 2."
    assert [env.count(number="2"), env.count(number="3")] == ["right", OVER]
    assert [env.get_reward(), env.get_reward(), len(kept.made[0].turns)] == [1.0, 1.0, 1]


def test_a_message_without_a_call_hangs_up():
    env = environment_factory(kept := Kept())()
    env.reset(**rows(kept, "train")[1])
    env.count(number="1")
    assert env.get_reward() == 0.0
    assert [turn.status for turn in kept.made[0].turns] == ["wrong", "error"]  # the toy's word for no call at all


def test_an_instance_is_used_again_and_every_episode_is_closed():
    env = environment_factory(kept := Kept())()
    for row in rows(kept, "train"):
        env.reset(**row)  # of the second, nobody asks how it went
        if row["task_id"] != "train-2":
            env.get_reward()
            assert kept.made[-1].closed
    assert [episode.closed for episode in kept.made] == [True, True, True]


# --- TRL itself ------------------------------------------------------------------------------

# The embedded base's own dialect (lfo/text/codec.py) as a chat template, and how TRL reads a call in it.
TEMPLATE = """
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|task|>{{ m.content }}<|/task|>
{%- elif m.role == 'tool' -%}<|obs|>{{ m.content }}<|/obs|>
{%- elif m.role == 'assistant' -%}<|tool|>{{ m.content }}
{%- for c in m.tool_calls or [] -%}{{ c.function.name }}<|args|>{{ c.function.arguments | tojson }}{%- endfor -%}
<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|tool|>{%- endif -%}
"""
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|tool|>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"(?P<name>\w+)<\|args\|>",
            "close_pattern": r"<\|end\|>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close_pattern": r"<\|end\|>", "content": "text"},
    },
}


@pytest.fixture
def ended(monkeypatch) -> list:
    """(episode, reward) of every generation that TRL asked about."""
    found, get_reward = [], _Instance.get_reward

    def remembered(self):
        found.append((self._episode, get_reward(self)))
        return found[-1][1]

    monkeypatch.setattr(_Instance, "get_reward", remembered)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    return found


def trainer_of(env: PhoneEnvironment, base_path, folder):
    """The page's trainer, for one step of eight episodes of the embedded base."""
    tokenizer = load_tokenizer(base_path)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, RESPONSE
    model = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32)
    settings = {"max_steps": 1, "logging_steps": 1, "learning_rate": 1e-4, "num_generations": 4, "use_cpu": True}
    settings |= {"per_device_train_batch_size": 8, "max_completion_length": 1024, "bf16": False, "report_to": "none"}
    make = shown("integrations.md", "GRPOTrainer(")["trainer"]
    return make(env, model, tokenizer, output_dir=str(folder), **settings)


@needs_trl
@pytest.mark.filterwarnings("default")  # TRL's own warnings are not this project's
def test_a_real_step_of_grpo(world, base_path, tmp_path, ended):
    """The base calls tools by itself; each of its episodes is played again in `PhoneCallEnv`."""
    env = PhoneEnvironment(world, Rules(slack=3, reward="shaped"), levels=(1,))
    trainer = trainer_of(env, base_path, tmp_path)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    assert {tool.__name__ for tool in trainer.tools} == set(env.tools)
    trainer.train()
    log = trainer.state.log_history[0]
    rewards = [reward for _, reward in ended]
    assert len(ended) == 8 and len({episode.task.task_id for episode, _ in ended}) == 2
    assert log["rewards/PhoneEnvironment/mean"] == pytest.approx(sum(rewards) / 8) and len(set(rewards)) > 1
    assert log["tools/call_frequency"] > 1 and log["grad_norm"] > 0
    assert any((weight != before[name]).any() for name, weight in trainer.model.named_parameters())
    for episode, reward in ended:
        ours = PhoneCallEnv(world, [episode.task], env.rules)
        request, _ = ours.reset(seed=0)  # that of all rows
        steps = [ours.step(written(turn.action)) for turn in episode.turns]
        assert (request, [step[0] for step in steps]) == (episode.request, [turn.observation for turn in episode.turns])
        assert steps[-1][1] == reward


def solved(env: PhoneEnvironment, task) -> list[str]:
    """The calls of the oracle, which ends an episode by its last one."""
    ours = PhoneCallEnv(env.world, [task], env.rules)
    ours.reset(seed=0)
    episode = run_scripted(ours.episode, Oracle(ours.episode, env.world, random.Random(0)))
    assert episode.success
    return [written(turn.action) for turn in episode.turns]


@needs_trl
@pytest.mark.filterwarnings("default")
def test_trl_goes_on_after_the_end(world, base_path, tmp_path, ended, monkeypatch):
    """The oracle's calls are put into the model's mouth, then one more: TRL makes it too, and hears that it is over."""
    env = PhoneEnvironment(world, levels=(1,))
    tasks = env.tasks("train")[:2]
    monkeypatch.setattr(env, "tasks", lambda split: tasks if split == "train" else [])
    calls = {
        task.request: [*solved(env, task), 'search_company<|args|>{"company_name": "Bank"}', "Bye"] for task in tasks
    }
    trainer, heard = trainer_of(env, base_path, tmp_path), []
    tokenizer = trainer.processing_class

    def generate(prompt_ids, *_, **__):
        heard[:] = [*heard, *(texts := tokenizer.batch_decode(prompt_ids))]
        turns = [(text.partition("<|task|>")[2].partition("<|/task|>")[0], text.count("<|obs|>")) for text in texts]
        return [tokenizer.encode(f"{calls[request][n]}<|end|>") for request, n in turns], None

    monkeypatch.setattr(trainer, "_generate_single_turn", generate)
    trainer.train()
    assert [reward for _, reward in ended] == [1.0] * 8
    assert all([written(t.action) for t in episode.turns] == calls[episode.request][:-2] for episode, _ in ended)
    assert sum(text.endswith(f"<|obs|>{OVER}<|/obs|><|tool|>") for text in heard) == 8
