"""What the tests of engines need beside tests/conftest.py: adapters with random weights, continuations to compare with.

Nothing here goes through the learner or the torch engine, so that engines are judged by transformers and peft alone;
the adapters hide those of the same name in tests/conftest.py.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from lfo.rollout.engine import Completion, Prompt
from lfo.text.base import load_base


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
