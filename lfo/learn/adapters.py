"""LoRA adapters on a frozen base: making them, choosing those that act, and peft folders on disk.

Knows peft and nothing of what the adapters learn.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear
from peft.utils.save_and_load import get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import PreTrainedModel

from lfo import distributed
from lfo.config import ModelConfig, derive_seed
from lfo.protocols import AdapterLayout
from lfo.runs import CheckpointError
from lfo.types import AVERAGE, BASE

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def with_adapters(base: PreTrainedModel, config: ModelConfig, names: Sequence[str], seed: int) -> PeftModel:
    """The base with new adapters, each drawn from a seed of its own: none depends on which others there are.

    A running average begins as the first, whose average it is.
    """
    targets = ATTENTION if config.targets == "attention" else "all-linear"
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=2 * config.rank,
        lora_dropout=config.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(derive_seed(seed, "init", names[0]))
    model = get_peft_model(base, lora, adapter_name=names[0])
    for name in names[1:]:
        torch.manual_seed(derive_seed(seed, "init", names[0] if name == AVERAGE else name))
        model.add_adapter(name, copy.deepcopy(lora))
    return model


class Thin(Linear):
    """x W^T + s x A^T B^T, with dropout on the adapters' input: what peft computes for plain LoRA, in one product each.

    peft scales and adds in passes of their own over wide tensors, and casts inputs to fp32 where autocast would not.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.base_layer(x)
        for name in self.active_adapters:
            narrow = self.lora_A[name](self.lora_dropout[name](x)) * self.scaling[name]
            wide = self.lora_B[name].weight
            out = torch.addmm(out.flatten(0, -2), narrow.flatten(0, -2), wide.T).view_as(out)
        return out


def simplify(model: PeftModel) -> None:
    """Let each layer add its adapters as `Thin` does; the same sums, for a base in fp32 or under autocast."""
    for layer in model.modules():
        if type(layer) is Linear:
            layer.__class__ = Thin


def activate(model: PeftModel, layout: AdapterLayout, name: str) -> None:
    """Run forward passes through one adapter; all keep requiring gradients (peft would freeze the others).

    Activating a `stacked` policy activates both: the update of its weights is the sum of theirs. `BASE` activates none;
    peft's `disable_adapter` would freeze them all, and is nothing that `Thin` looks at.
    """
    if name == BASE:
        model.base_model.set_adapter([])
    else:
        model.set_adapter(name)
    if layout.stacked and name not in (BASE, layout.listener):
        model.base_model.set_adapter(list(layout.names))
    for each in layout.names:
        model.set_requires_grad(each, True)


def parameters(model: PeftModel, adapter: str) -> list[torch.nn.Parameter]:
    """The trainable tensors of one adapter, in model order."""
    return [p for name, p in model.named_parameters() if f".{adapter}." in name]


def save(
    model: PeftModel, layout: AdapterLayout, averages: Mapping[str, Sequence[torch.Tensor]], folder: Path
) -> dict[str, Path]:
    """Write every adapter as a peft folder ``folder/<name>/``, averaged where there is an average; every process asks.

    A `stacked` policy is written with the other adapter as it is now: the sampler must be the model that is trained.
    """
    now = {name: p.detach() for name, p in model.named_parameters() if ".lora_" in name}
    averaged = dict(now)
    for adapter, average in averages.items():
        averaged |= zip([name for name in now if f".{adapter}." in name], average, strict=True)
    now, averaged = distributed.whole(now) if layout.stacked else {}, distributed.whole(averaged)
    policy, *others = layout.names
    if distributed.first():
        alone = others if layout.stacked else list(layout.names)
        model.save_pretrained(str(folder), selected_adapters=alone, state_dict=averaged)
        if layout.stacked:
            _save_sum(model, layout.names, now, folder / policy)
    return {name: folder / name for name in layout.names}


def _save_sum(model: PeftModel, names: Iterable[str], tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Two adapters as one of twice the rank (A below A, B beside B): engines such as vLLM take one per request.

    The weights that peft's ``add_weighted_adapter(combination_type="cat")`` gives, without adding a third adapter.
    """
    one, other = (get_peft_model_state_dict(model, tensors, adapter_name=name) for name in names)
    both = {k: torch.cat([one[k], other[k]], dim=0 if ".lora_A." in k else 1) for k in one}
    config = copy.copy(model.active_peft_config)
    config.r, config.lora_alpha, config.inference_mode = 2 * config.r, 2 * config.lora_alpha, True
    config.save_pretrained(str(folder))
    save_file(both, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def state(model: PeftModel, names: Iterable[str]) -> dict[str, dict[str, torch.Tensor]]:
    return {name: get_peft_model_state_dict(model, adapter_name=name) for name in names}


@torch.no_grad()
def load_state(model: PeftModel, names: Sequence[str], state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """Put the weights of all adapters, as `state` gave them, back into the model.

    Raises:
        CheckpointError: the state is of other adapters, or of other shapes.
    """
    if sorted(state) != sorted(names):
        raise CheckpointError(
            f"the checkpoint holds the adapters {sorted(state)}, this run trains {sorted(names)};"
            " resume with its own config, or choose another run folder."
        )
    for name, tensors in state.items():
        mine = get_peft_model_state_dict(model, adapter_name=name)
        odd = [k for k in mine if k not in tensors or tensors[k].shape != mine[k].shape]
        if odd:
            raise CheckpointError(
                f"adapter '{name}' of the checkpoint does not fit this model (first difference: {odd[0]});"
                " check model.rank, model.targets and model.base."
            )
        for key, value in mine.items():
            value.copy_(distributed.like(tensors[key], value))
