"""The frozen base model: the one place that loads it and its tokenizer, for sampler and learner alike.

A base is a folder that transformers can read, a single ``.gguf`` file (de-quantised when it is read: the
weights are then those of the file, rounded as it rounds them), or a name on the model hub.
"""

from __future__ import annotations

import functools
import re
import time
import timeit
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file, is_gguf_available, logging

from lfo.config import ConfigError, located

logging.disable_progress_bar()  # a bar for a model of a few MB is noise in every notebook
# peft 0.21 asks every model for a property that transformers 5.23 renamed: nothing a user could mend.
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
# It also looks for the config beside a .gguf file when an adapter is saved; the vocabulary is never modified.
warnings.filterwarnings("ignore", "Could not find a config file in .* will assume that the vocabulary", UserWarning)

PROBE = (512, 192, 512)  # rows, inputs and outputs of the matrix product that is timed: about a layer of a small base
CLEARLY = 0.8  # share of fp32's time that bf16 may take at most, to be worth its rounding

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # organisation/model


def require_base(path: str | Path) -> Path:
    """The base's folder, .gguf file or hub name, if there is a model.

    Raises:
        FileNotFoundError: there is none; the message says how to get one.
        ConfigError: a .gguf file is named and the package that reads it is missing.
    """
    path = located(path)
    is_gguf = path.suffix == ".gguf" and path.is_file()
    if is_gguf and not is_gguf_available():
        raise ConfigError(f"to read '{path}', install the package gguf: pip install -e '.[cpu,gguf]'.")
    if is_gguf or (path / "config.json").exists() or _on_the_hub(path):
        return path
    raise FileNotFoundError(
        f"no base model in '{path}'; make the embedded one with `make base` (others: `make help`), or set model.base "
        "to a model folder, a .gguf file or a name on the model hub (paths are relative to the working directory; a "
        "hub needs a network, or HF_HOME with an earlier download)."
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
    """The base, in fp32 if nothing is said. On CPU with eager attention, for those that call it as it is.

    `stay`: for `device`, but still in main memory, so that it can be sharded before it gets there.
    """
    attention = {"attn_implementation": "eager"} if torch.device(device).type == "cpu" else {}
    model = AutoModelForCausalLM.from_pretrained(**source(path), dtype=dtype, **attention)
    if Path(path).suffix == ".gguf":
        model.hf_quantizer.remove_quantization_config(model)  # the weights are plain now: let them be saved
    return model if stay else model.to(device)


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(**source(path), local_files_only=located(path).exists())


@functools.cache
def bf16_pays(device: str | torch.device = "cpu") -> bool:
    """Whether training under bf16 autocast is clearly faster than in fp32 on this device; asked once per process.

    A GPU says so itself. A CPU is timed: flags do not tell, since libraries emulate what a processor lacks. Without
    bf16 instructions a product takes 2 (AVX-512) to 40 times (AVX2) as long as in fp32, with them a third. Two runs on
    one machine must agree, however busy it is: what counts is processor time, of one thread, in the fastest of several
    rounds. Takes a tenth of a second, seconds where bf16 is very slow.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    rows, inputs, outputs = PROBE
    weight, x = torch.randn(outputs, inputs, device=device), torch.randn(rows, inputs, device=device)
    x.requires_grad_()

    def learn(bf16: bool) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            y = torch.nn.functional.linear(x, weight)
        y.float().sum().backward()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        bf16, fp32 = fastest(lambda: learn(True), lambda: learn(False))
    finally:
        torch.set_num_threads(threads)
    return bf16 <= CLEARLY * fp32


def fastest(*contenders: Callable[[], None], rounds: int = 10) -> list[float]:
    """Seconds of processor time of each one's fastest round; rounds are in turn, after one that warms up."""

    clock = time.process_time
    spent = [[timeit.timeit(work, timer=clock, number=1) for work in contenders] for _ in range(rounds + 1)]
    return [min(each) for each in zip(*spent[1:], strict=True)]
