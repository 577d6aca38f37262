"""The frozen base model: the one place that loads it and its tokenizer, for sampler and learner alike.

A base is a folder that transformers can read, a single ``.gguf`` file (de-quantised when it is read: the
weights are then those of the file, rounded as it rounds them), or a name on the model hub.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file, is_gguf_available, logging

from lfo.config import ConfigError

logging.disable_progress_bar()  # a bar for a model of a few MB is noise in every notebook
# peft 0.21 asks every model for a property that transformers 5.23 renamed: nothing a user could mend.
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
# It also looks for the config beside a .gguf file when an adapter is saved; the vocabulary is never modified.
warnings.filterwarnings("ignore", "Could not find a config file in .* will assume that the vocabulary", UserWarning)

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # organisation/model


def require_base(path: str | Path) -> Path:
    """The base's folder, .gguf file or hub name, if there is a model.

    Raises:
        FileNotFoundError: there is none; the message says how to get one.
        ConfigError: a .gguf file is named and the package that reads it is missing.
    """
    path = Path(path)
    if path.suffix == ".gguf" and path.is_file():
        if not is_gguf_available():
            raise ConfigError(f"to read '{path}', install the package gguf: pip install -e '.[cpu,gguf]'.")
        return path
    if (path / "config.json").exists() or _on_the_hub(path):
        return path
    raise FileNotFoundError(
        f"no base model in '{path}'; make the embedded one with `make base`, or set model.base to a model folder, a "
        ".gguf file or a name on the model hub (paths are relative to the working directory: start from the "
        "repository root; a hub needs a network, or HF_HOME with an earlier download)."
    )


def _on_the_hub(path: Path) -> bool:
    """Whether this is a hub name, not a local path, and its config is in the cache or can be fetched."""
    name = path.as_posix()
    if not HUB_NAME.fullmatch(name) or path.parent.exists():
        return False
    try:
        return cached_file(name, "config.json") is not None
    except OSError:
        return False


def source(path: str | Path) -> dict[str, str]:
    """What the `from_pretrained` methods of transformers take for this base."""
    path = require_base(path)
    if path.suffix == ".gguf":
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    return {"pretrained_model_name_or_path": str(path)}


def load_base(
    path: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, stay: bool = False
) -> PreTrainedModel:
    """The base, in fp32 if nothing is said. On CPU with eager attention: its backward beats SDPA's at this size.

    `stay`: for `device`, but still in main memory, so that it can be sharded before it gets there.
    """
    attention = {"attn_implementation": "eager"} if torch.device(device).type == "cpu" else {}
    model = AutoModelForCausalLM.from_pretrained(**source(path), dtype=dtype, **attention)
    return model if stay else model.to(device)


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(**source(path), local_files_only=Path(path).exists())
