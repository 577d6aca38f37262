"""What the tests of the vLLM engines need: bases, adapters with random weights, and continuations to compare with.

Local on purpose: nothing here goes through the learner or the torch engine, so that the engines are judged by
transformers and peft alone. Fixtures of the same name in tests/conftest.py are hidden by these.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from lfo.config import RunConfig, build
from lfo.rollout.engine import Completion, Prompt
from lfo.text.base import load_base, load_tokenizer, require_base

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def base_path() -> Path:
    """The embedded base model; LFO_TEST_BASE names another one."""
    return require_base(os.environ.get("LFO_TEST_BASE", ROOT / "data" / "base"))


@pytest.fixture(scope="session")
def toy_path(base_path, tmp_path_factory) -> Path:
    """A base of two random layers with the real tokenizer: fast, and it knows nothing."""
    path = tmp_path_factory.mktemp("toy_base")
    tokenizer = load_tokenizer(base_path)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
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
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def make_adapters(tmp_path_factory):
    """make_adapters(base, seed, std): peft folders of a policy and a world model with random weights."""

    def make(base: Path, seed: int, std: float) -> dict[str, Path]:
        torch.manual_seed(seed)
        parent, folders = tmp_path_factory.mktemp("adapters"), {}
        for name in ("policy", "world_model"):
            lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
            model = get_peft_model(load_base(base), lora)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.normal_(std=std)
            folders[name] = parent / name
            model.save_pretrained(str(folders[name]))
        return folders

    return make


@pytest.fixture(scope="session")
def toy_adapters(make_adapters, toy_path) -> dict[str, Path]:
    """Two adapters of the toy base, large enough to change every prediction."""
    return make_adapters(toy_path, 1, 0.3)


@pytest.fixture(scope="session")
def make_config(toy_path):
    """make_config(**{"model.rank": 8}): a run of seconds on the toy base, in fp32, with these settings."""
    defaults = {
        "model.base": str(toy_path),
        "model.rank": 4,
        "model.autocast": False,
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
        for dotted, value in (defaults | settings).items():
            group, _, name = dotted.rpartition(".")
            (data.setdefault(group, {}) if group else data)[name] = value
        return build(RunConfig, data)

    return make


class Reference:
    """Continuations by a forward pass over the whole context for every token: slow, and nothing to get wrong."""

    def __init__(self, base: Path, adapters: Mapping[str, Path] | None = None):
        self._models = {"base": load_base(base).eval()}
        self.load(adapters or {})

    def load(self, adapters: Mapping[str, Path]) -> None:
        for name, folder in adapters.items():
            pristine = copy.deepcopy(self._models["base"])
            self._models[name] = PeftModel.from_pretrained(pristine, str(folder)).eval()

    @torch.no_grad()
    def distributions(self, prompt: Prompt, tokens: list[int]) -> torch.Tensor:
        """Log-probs (len(tokens) + 1, V) of each of these tokens and of the one after them; greedy: temperature 1."""
        context = torch.tensor([[*prompt.tokens, *tokens]])
        logits = self._models[prompt.adapter](context).logits[0, len(prompt.tokens) - 1 :]
        return torch.log_softmax(logits / (prompt.temperature or 1.0), -1)

    def score(self, prompt: Prompt, tokens: list[int]) -> list[float]:
        scores = self.distributions(prompt, tokens)[:-1]
        return scores.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1).tolist()

    def complete(self, prompt: Prompt) -> Completion:
        stream, said = torch.Generator().manual_seed(prompt.seed), Completion([], [])
        while len(said.tokens) < prompt.max_new and said.tokens[-1:] != [prompt.stop]:
            scores = self.distributions(prompt, said.tokens)[-1]
            token = torch.multinomial(scores.exp(), 1, generator=stream) if prompt.temperature else scores.argmax()
            said.tokens.append(int(token))
            said.logprobs.append(float(scores[int(token)]))
        return said


@pytest.fixture(scope="session")
def reference() -> type[Reference]:
    """reference(base, adapters): continuations to compare with, see `Reference`."""
    return Reference
