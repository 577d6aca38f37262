"""The frozen base model from its folder: the one place that loads it, for sampler and learner alike."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

logging.disable_progress_bar()  # a bar for a model of a few MB is noise in every notebook
# peft 0.21 asks every model for a property that transformers 5.23 renamed: nothing a user could mend.
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)


def require_base(path: str | Path) -> Path:
    """The folder, if it holds a model.

    Raises:
        FileNotFoundError: it does not; the message says how to get one.
    """
    path = Path(path)
    if not (path / "config.json").exists():
        raise FileNotFoundError(
            f"no base model in '{path}'; make the embedded one with `make base`, or set model.base to a model folder "
            "(paths are relative to the working directory: start from the repository root)."
        )
    return path


def load_base(path: str | Path, device: str | torch.device = "cpu") -> PreTrainedModel:
    """The base in fp32. On CPU with eager attention, whose backward is faster than SDPA's at this size."""
    attention = {"attn_implementation": "eager"} if torch.device(device).type == "cpu" else {}
    model = AutoModelForCausalLM.from_pretrained(str(require_base(path)), dtype=torch.float32, **attention)
    return model.to(device)
