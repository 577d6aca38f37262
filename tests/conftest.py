"""Shared fixtures: the world of the experiments, a small one written out by hand, models and run configs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lfo.config import RunConfig, build
from lfo.envs.phone import PhoneEnvironment, Rules, generate_world
from lfo.envs.phone.records import Company, Department, Effect, HiddenRule, PhoneTask, Profile
from lfo.envs.phone.rules import TypicalRules
from lfo.envs.phone.user import UserSimulator
from lfo.envs.phone.vocabulary import DEPARTMENTS
from lfo.envs.phone.world import World
from lfo.protocols import AdapterLayout
from lfo.text.base import load_tokenizer, require_base
from lfo.text.codec import Codec
from lfo.types import Outcome, Role, Rollout, StopReason

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def world() -> World:
    return generate_world(0)


def _hand_made_world() -> World:
    """One bank whose rules a reader can hold in mind, one user who has everything, one without a card.

    No task speaks of a circumstance; four of them would change something at the bank, each something else.
    """
    names = ("Customer Service", "Fraud Department", "Billing", "Loans", "Sales")
    departments = tuple(
        Department(n, f"800-555-000{i}", DEPARTMENTS[n].description, "Mon-Fri 8-18") for i, n in enumerate(names, 1)
    )
    other = (Department("Sales", "800-555-0009", DEPARTMENTS["Sales"].description, "Mon-Fri 8-18"),)
    rules = [
        HiddenRule("bank", "Customer Service", ("account_number", "last_4_ssn"), "date_of_birth", "", "typical"),
        HiddenRule(
            "bank",
            "Fraud Department",
            ("account_number", "last_4_ssn", "last_4_cc"),
            "date_of_birth",
            "Customer Service",
            "typical",
        ),
        HiddenRule("bank", "Billing", ("account_number", "billing_zip"), "date_of_birth", "", "typical"),
        HiddenRule("bank", "Loans", ("name", "date_of_birth"), "email", "", "different"),
        HiddenRule("bank", "Sales", (), "date_of_birth", "", "typical"),
        HiddenRule("shop", "Sales", (), "date_of_birth", "", "typical"),
    ]
    effects = {
        "joint_account": Effect(field="phone_number"),
        "large_amount": Effect(field="last_4_ssn"),  # Customer Service and Fraud Department demand it anyway
        "abroad": Effect(first="Billing"),
        "business_account": Effect(instead="Customer Service"),
        "on_behalf": Effect(),
    }
    values = {
        "name": "Ana Lopez",
        "account_number": "123456",
        "last_4_ssn": "1111",
        "date_of_birth": "1980-02-03",
        "billing_zip": "22222",
        "last_4_cc": "3333",
        "phone_number": "444-555-6666",
        "email": "ana77@example.com",
        "branch_code": "7777",
        "card_expiry": "9999",
    }
    no_card = {f: v for f, v in values.items() if f != "last_4_cc"}
    tasks = [
        ("bill", "all", ("dispute a charge",), 3),
        ("fraud", "all", ("report a fraud",), 4),
        ("nocard", "nocard", ("report a fraud",), 5),
        ("loan", "all", ("defer a loan payment",), 3),
        ("offer", "all", ("hear about offers",), 3),
        ("two", "all", ("dispute a charge", "close my account"), 4),
    ]
    return World(
        seed=-1,
        companies={
            "bank": Company("bank", "Harbor Bank", "banking", departments),
            "shop": Company("shop", "Summit Stores", "retail", other),
        },
        rules={(r.company_id, r.department): r for r in rules},
        typical=TypicalRules({}, {}, {}, {}),
        profiles={"all": Profile("all", "banking", values), "nocard": Profile("nocard", "banking", no_card)},
        tasks=tuple(
            PhoneTask(
                name, "train", 1, "bank", who, f"Please call Harbor Bank for me: {' and '.join(goals)}.", goals, steps
            )
            for name, who, goals, steps in tasks
        ),
        effects={"bank": effects, "shop": {}},
    )


@pytest.fixture(scope="session")
def tiny() -> World:
    return _hand_made_world()


@pytest.fixture(scope="session")
def seed_where(tiny: World):
    """seed_where(task, test): the first episode seed whose (fresh) user passes `test`."""

    def search(task: PhoneTask, test) -> int:
        profile = tiny.profiles[task.profile_id]
        return next(s for s in range(10_000) if test(UserSimulator(profile, f"{s}/{task.task_id}")))

    return search


# --- models ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def base_path() -> Path:
    """The embedded base model; LFO_TEST_BASE names another one, e.g. to judge it before it is shipped."""
    return require_base(os.environ.get("LFO_TEST_BASE", ROOT / "data" / "base"))


@pytest.fixture(scope="session")
def env(world) -> PhoneEnvironment:
    return PhoneEnvironment(world)


@pytest.fixture(scope="session")
def codec(base_path, env) -> Codec:
    return Codec(load_tokenizer(base_path), env)


@pytest.fixture(scope="session")
def toy_path(codec, tmp_path_factory) -> Path:
    """A base of two random layers with the real tokenizer: fast, and it knows nothing."""
    path = tmp_path_factory.mktemp("toy_base")
    random_model(len(codec.tokenizer), codec.pad_id).save_pretrained(path)
    codec.tokenizer.save_pretrained(path)
    return path


def random_model(vocabulary: int, pad_id: int) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.3,  # large enough for the context to matter
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=pad_id,
    )
    return Qwen3ForCausalLM(config)


@pytest.fixture(scope="session")
def chat_path(world, tmp_path_factory) -> Path:
    """A random base of two layers with a small chat tokenizer and a template that behaves as Qwen3's."""
    path = tmp_path_factory.mktemp("chat_base")
    bpe = Tokenizer(models.BPE())
    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.Sequence(split), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((task.request for task in world.tasks), trainer)
    bpe.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>", "<tool_call>", "</tool_call>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = (ROOT / "tests" / "data" / "qwen3_like.jinja").read_text(encoding="utf-8")
    tokenizer.save_pretrained(path)
    random_model(len(tokenizer), tokenizer.pad_token_id).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def make_config(toy_path):
    """make_config(**{"policy.epochs": 2}): a run of seconds on the toy base, in fp32, with these settings.

    Without a world model: ``make_config(world_model=None)``.
    """
    defaults = {
        "model.base": str(toy_path),
        "model.rank": 4,
        "model.autocast": False,
        "policy.learning_rate": 0.01,
        "world_model.coupling": "none",
        "world_model.learning_rate": 0.01,
        "world_model.updates": 2,
        "rollout.tasks_per_step": 2,
        "rollout.group_size": 2,
        "rollout.max_refills": 0,
        "rollout.max_action_tokens": 8,
        "task_budget": 4,
        "eval_every": 4,
        "eval_tasks": 1,
        "eval_episodes": 1,
        "checkpoint_every": 1,
        "warmup_tasks": 0,
    }

    def make(**settings) -> RunConfig:
        data: dict = {}
        without = {name for name, value in settings.items() if value is None}
        for dotted, value in (defaults | settings).items():
            group, _, name = dotted.rpartition(".")
            if group not in without:
                (data.setdefault(group, {}) if group else data)[name] = value
        return build(RunConfig, data)

    return make


def _learner(config: RunConfig, pad_id: int):
    from lfo.learn.learner import Learner
    from lfo.learn.objectives import Dapo

    layout = AdapterLayout(("policy", "world_model"), ("world_model",))
    return Learner(config, layout, Dapo(config), pad_id)


@pytest.fixture(scope="session")
def toy_adapters(make_config, codec, tmp_path_factory) -> dict[str, Path]:
    """Two peft folders for the toy base with random weights, large enough to change every prediction."""
    learner = _learner(make_config(), codec.pad_id)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in learner.model.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.3)
    return learner.save_adapters(tmp_path_factory.mktemp("toy_adapters"))


@pytest.fixture(scope="session")
def base_adapters(base_path, make_config, codec, tmp_path_factory) -> dict[str, Path]:
    """Untrained adapters for the embedded base: they change nothing."""
    learner = _learner(make_config(**{"model.base": str(base_path)}), codec.pad_id)
    return learner.save_adapters(tmp_path_factory.mktemp("base_adapters"))


@pytest.fixture(scope="session")
def make_rollout():
    """make_rollout(prompt, action, observation, ...): token lists that take turns, or a group's bare outcome."""

    def make(
        *pieces: list[int], group=0, success=False, reward=None, logprob=-1.0, metrics=(), examples=(), **rest
    ) -> Rollout:
        kinds = [Role.PROMPT] + [Role.ACTION, Role.OBSERVATION] * len(pieces)
        roles = [int(kind) for kind, piece in zip(kinds, pieces, strict=False) for _ in piece]
        facts = {"task_id": f"t{group}", "turns": [], "stop": StopReason.SUCCESS if success else StopReason.MAX_TURNS}
        return Rollout(
            group=group,
            tokens=[i for piece in pieces for i in piece],
            roles=roles,
            logprobs=[logprob if role == Role.ACTION else 0.0 for role in roles],
            outcome=Outcome(success, float(success) if reward is None else reward, dict(metrics)),
            examples=list(examples),
            **(facts | rest),
        )

    return make


@pytest.fixture(scope="session")
def generous(tiny) -> PhoneEnvironment:
    """The small world with a user so generous that some rollouts of an untrained policy succeed."""
    return PhoneEnvironment(tiny, Rules(slack=3), levels=(1,))
