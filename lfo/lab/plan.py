"""What a run needs of every GPU's memory, item by item, before a GPU is rented (``lfo plan``).

Knows shapes and formulas; loads no weights and touches no GPU. Bytes per GPU, with

    P  parameters of the base         L  layers          h  hidden width    q, k  widths of queries, keys
    m  inner width of the MLP         V  vocabulary      A  adapters        a     parameters of an adapter
    n  FSDP ranks                     t  GPUs of one vLLM engine            S     tokens of a trajectory
    M  tokens of a micro-batch: one trajectory, or as many as fit into distributed.micro_batch_tokens
    w, c  bytes of a base weight, of a number the base computes with (2 under autocast, else w)

**Learner.** FSDP2 shards base, adapters, gradients and optimizer; a layer is gathered when it is used.

=================  ======================================================================  ==================
base               w P / n                                                                 always
adapters           4 A a / n, in fp32                                                      always
optimizer          8 A a / n: Adam's two moments                                           always
running averages   4 a / n each: of the world model that is published, of a policy that    always
                   teaches (`feedback.teacher: average`)
gradients          4 A a / n                                                               loss, backward
all-gather         w (the rest outside the layers + 2 layers), if n > 1: FSDP2 keeps       loss, backward
                   embedding and head until the backward pass, and fetches a layer ahead
kept activations   M L (what a layer keeps), or M L h w with gradient checkpointing;       loss, backward
                   and M h 4 of the last norm
bf16 weights       2 (weights of the linear layers): autograd keeps the copies that        loss, backward
                   autocast makes of an fp32 base; 2 (one layer) with checkpointing
one layer          M (what a layer keeps): computed again; with checkpointing only         backward
layer gradients    M m (c + 2, 4 or 4): of the MLP's inner values through base and         backward
                   adapter (under autocast: without, with dropout; without autocast), or
                   of attention's scores if they need more
logits             12 N V: fp32 logits, log-softmax and gradient at N positions; N is M,   loss
                   or what `learn.forward` makes at a time; and 2 h V for the head's copy;
                   8 N V more with `policy.entropy`: probabilities, and their products
=================  ======================================================================  ==================

What a layer keeps per token (`kept_per_token`) follows the ops of transformers' Qwen3 and Llama, of peft's LoRA and of
the learner's attention. All sequences are taken as full, as different from each other, and all their tokens as actions:
an upper bound. PPO's value head, h + 1 numbers, is left out. The learner's terms are tested against the peak of real
updates on CPU, within 10% (tests/lab/test_plan.py).

**Torch engine**, in the learner's process, all in fp32: the base and a merged copy for every adapter; and, while an
adapter is published, one more copy, its fused maps twice. A KV cache for the policy's rows and one for questions to the
world model: they double when they grow (`rollout.kv_cache`), and half of one is there again while it does.

**vLLM**: its share of the GPU, of which w P / t are weights, w A a adapters, and the rest, less its
workspace, KV cache: w (2 k L) / t for every token that is in it. A stacked policy counts twice: it is
served as the sum of both adapters. An engine in the learner's process sleeps while the learner learns:
weights and cache are gone then.

CUDA's context and vLLM's workspace are estimates, marked ~: nothing here has measured them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoConfig, PretrainedConfig

from lfo.config import ConfigError, ModelConfig, RunConfig
from lfo.couplings.imagine import REPLY_TOKENS
from lfo.learn.forward import LOGITS
from lfo.rollout.kv_cache import doubled
from lfo.rollout.torch_engine import ROWS, rows_within
from lfo.text.base import bf16_pays, source
from lfo.text.codec import STATE_TOKENS

GIB = 2**30
ROLLOUT, LOSS, BACKWARD, PUBLISH = MOMENTS = ("rollout", "loss", "backward", "publish")
CUDA_CONTEXT = 1.0 * GIB  # estimate: context, library workspaces, NCCL, fragments
VLLM_WORKSPACE = 2.0 * GIB  # estimate: activations of a prefill, CUDA graphs
SERVER_SHARE = 0.9  # of the memory that `vllm serve` takes by itself
QUESTION = STATE_TOKENS + 200 + REPLY_TOKENS  # tokens of a question to the world model, its call and its reply
SIMILAR = 100 + REPLY_TOKENS  # of a call that it reads before: a request and a reply


@dataclasses.dataclass(frozen=True)
class Shape:
    """A decoder with gated MLP and grouped-query attention, without biases but those (Qwen2.5, Qwen3, Llama)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int  # width of the MLP
    vocabulary: int
    tied: bool  # whether the head is the embedding
    qk_norm: bool  # whether queries and keys are normalised (Qwen3)
    qkv_bias: bool = False  # whether queries, keys and values have biases (Qwen2, Qwen2.5)

    @classmethod
    def of(cls, config: PretrainedConfig) -> Shape:
        heads = config.num_attention_heads
        return cls(
            config.num_hidden_layers,
            config.hidden_size,
            heads,
            config.num_key_value_heads,
            getattr(config, "head_dim", None) or config.hidden_size // heads,
            config.intermediate_size,
            config.vocab_size,
            config.tie_word_embeddings,
            config.model_type.startswith("qwen3"),
            config.model_type == "qwen2",
        )

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        return self.kv_heads * self.head_dim

    def linears(self, targets: str = "all-linear") -> list[tuple[int, int]]:
        """(inputs, outputs) of a layer's linear maps: query, key, value, output; then gate, up, down."""
        h, q, k, m = self.hidden, self.query, self.key, self.inner
        return [(h, q), (h, k), (h, k), (q, h)] + ([(h, m), (h, m), (m, h)] if targets == "all-linear" else [])

    @property
    def linear_parameters(self) -> int:
        """Of one layer."""
        return sum(i * o for i, o in self.linears())

    @property
    def layer_parameters(self) -> int:
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return self.linear_parameters + norms + (self.query + 2 * self.key if self.qkv_bias else 0)

    @property
    def root_parameters(self) -> int:
        """Outside the layers: embedding, last norm, head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.root_parameters

    def adapter_parameters(self, model: ModelConfig) -> int:
        return self.layers * model.rank * sum(i + o for i, o in self.linears(model.targets))


# For bases that cannot be reached from here, by the last part of `model.base` without what VARIANT says.
SHAPE_CARDS = {
    "qwen3-8b": Shape(36, 4096, 32, 8, 128, 12_288, 151_936, False, True),
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 3_072, 151_936, True, True),
    "qwen2.5-32b": Shape(64, 5120, 40, 8, 128, 27_648, 152_064, False, False, True),
    "smollm2-135m": Shape(30, 576, 9, 3, 64, 1_536, 49_152, True, False),
}
VARIANT = re.compile(r"(-base|-instruct)?([.-]\w+\.gguf)?$")  # of a base, with the same shape


def shape_of(base: str) -> Shape:
    """From the config in a base's folder, else from a shape card, else from the hub's config.

    Raises:
        ConfigError: none of these is known.
    """
    name = base.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    card = SHAPE_CARDS.get(VARIANT.sub("", name))
    if card and not (Path(base) / "config.json").exists():
        return card
    try:
        return Shape.of(AutoConfig.from_pretrained(**source(base)))
    except (OSError, ConfigError):
        raise ConfigError(
            f"the shape of '{base}' is not known: there is no config.json of it here, and no shape card;"
            f" set model.base to a model folder, or to one of: {', '.join(SHAPE_CARDS)}."
        ) from None


@dataclasses.dataclass(frozen=True)
class Item:
    """Bytes on one GPU, and the moments of a step at which they are needed."""

    name: str
    bytes: float
    moments: tuple[str, ...] = MOMENTS


@dataclasses.dataclass(frozen=True)
class GpuPlan:
    """The items on each of `count` equal GPUs. `note`: what the KV cache has room for; `problem`: what is wrong."""

    role: str
    count: int
    capacity: float
    items: tuple[Item, ...]
    note: str = ""
    problem: str = ""

    def need(self, moment: str) -> float:
        return sum(item.bytes for item in self.items if moment in item.moments)

    @property
    def peak(self) -> str:
        return max(MOMENTS, key=self.need)

    @property
    def fits(self) -> bool:
        return not self.problem and self.need(self.peak) <= self.capacity


# --- the learner -----------------------------------------------------------------------------


def in_bf16(model: ModelConfig, device: str) -> bool:
    """What `model.autocast` comes to; "auto" is what pays on a CPU, and bf16 on a GPU (Ampere or newer)."""
    return bool(model.autocast) if model.autocast != "auto" else device != "cpu" or bf16_pays(device)


@dataclasses.dataclass(frozen=True)
class _Numbers:
    """Sizes in bytes: `base`, `compute` and `lora` of a number, those of the adapters' inputs (`norm`, `inner`), and
    the `masks` of dropout by the size of the number that it decides on."""

    base: int
    autocast: bool
    compute: int
    lora: int
    norm: int  # from a norm: inputs of queries, keys, values, gate and up
    inner: int  # from attention or the MLP's inner values
    masks: dict[int, int]

    @classmethod
    def of(cls, model: ModelConfig, device: str) -> _Numbers:
        base = _bytes(model.dtype)
        autocast = in_bf16(model, device)
        compute = 2 if autocast else base
        lora = 2 if autocast else 4
        seen = (base, compute) if autocast else (lora, lora)  # without autocast peft casts before dropout
        masks = {n: n if device == "cpu" else 1 for n in (2, 4)}  # like the input on CPU, boolean on CUDA
        return cls(base, autocast, compute, lora, *seen, masks if model.dropout else {2: 0, 4: 0})


def _bytes(dtype: str) -> int:
    return {"float32": 4, "bfloat16": 2}[dtype]


def kept_per_token(shape: Shape, model: ModelConfig, n: _Numbers, length: int, device: str, active: int) -> float:
    """Bytes per token that autograd keeps of one layer, run through `active` adapters.

    norms        2 h in fp32, and (q + k) in fp32 where queries and keys are normalised
    adapters     for each adapted map its input as the adapter multiplies it, its dropout mask and the
                 low-rank product; maps and adapters share an input that neither dropout nor a cast has copied.
                 Under autocast the learner keeps peft from casting inputs to fp32 first
    attention    queries, keys and values of the sequences; fused: result and log-sum-exp; as products, in bf16
                 on CPU: for every head and earlier token the softmax
    MLP          3 m: gate, its activation, up
    """
    h, q, k, m, c = shape.hidden, shape.query, shape.key, shape.inner, n.compute
    norms = 2 * h * 4 + ((q + k) * 4 if shape.qk_norm else 0)
    everything = model.targets == "all-linear"
    norm_inputs, inner_inputs = ([h] * 5, [q, m]) if everything else ([h] * 3, [q])
    adapters = active * (len(norm_inputs) + len(inner_inputs)) * model.rank * n.lora
    for inputs, distinct, size, own in (
        (norm_inputs, [h] * (1 + everything), n.norm, n.base),
        (inner_inputs, inner_inputs, n.inner, n.compute),
    ):
        shared = not n.masks[size] and own == size == n.lora
        adapters += (sum(distinct) if shared else active * sum(inputs)) * (n.masks[size] + n.lora)
    made = shape.heads * length * c if _products(n, device) else q * c + shape.heads * 4
    return norms + adapters + (q + 2 * k) * c + made + 3 * m * c


def _products(n: _Numbers, device: str) -> bool:
    """Whether attention is written out as products (`learn.forward.attend`)."""
    return device == "cpu" and n.compute == 2


def layer_gradients_per_token(shape: Shape, model: ModelConfig, n: _Numbers, length: int, device: str) -> float:
    """Bytes per token that the backward pass of one layer needs beyond what was kept.

    First the gradients of the MLP's inner values: through the base, and through the adapter, where dropout
    under autocast makes a copy; then, when the MLP is done with, attention's scores.
    """
    c, m = n.compute, shape.inner
    if model.targets == "all-linear":
        mask = n.masks[n.inner]
        mlp = m * (c + n.lora + (n.lora if mask and n.autocast else 0))
        done = m * (3 * c + mask + n.lora) + 2 * shape.hidden * (n.masks[n.norm] + n.lora)
    else:
        mlp, done = 3 * m * c, 3 * m * c
    return max(mlp, shape.heads * length * 2 * c - done if _products(n, device) else 0)


def learner_items(shape: Shape, config: RunConfig, device: str, logits: int = LOGITS) -> list[Item]:
    """See the module's table, where a trajectory or a question is longest. logits: that exist at a time."""
    lengths = [config.rollout.max_tokens, *([question_tokens(config)] if _reads(config) else [])]
    each = [_learner_items(shape, config, device, logits, length) for length in lengths]
    return [max(same, key=lambda item: item.bytes) for same in zip(*each, strict=True)]


def _learner_items(shape: Shape, config: RunConfig, device: str, logits: int, length: int) -> list[Item]:
    """With rows of this length."""
    model, d = config.model, config.distributed
    n = _Numbers.of(model, device)
    tokens = max(1, d.micro_batch_tokens // length) * length
    kept = tokens * kept_per_token(shape, model, n, length, device, 2 if config.coupling == "stacked" else 1)
    copies = 2 if n.autocast and n.base == 4 else 0
    learning = (LOSS, BACKWARD)
    adapters = 4 * _adapters(config) * shape.adapter_parameters(model) / d.processes
    inputs = tokens * shape.hidden * n.base
    last = tokens * shape.hidden * 4
    layers = 1 if d.gradient_checkpointing else shape.layers
    gathered = n.base * (shape.root_parameters + 2 * shape.layer_parameters) if d.processes > 1 else 0
    positions, each = min(tokens, max(1, logits // shape.vocabulary)), 12 + 8 * (config.policy.entropy > 0)
    return [
        Item("base", n.base * shape.parameters / d.processes),
        Item("adapters", adapters),
        Item("optimizer", 2 * adapters),
        Item("running averages", adapters / _adapters(config) * (_adapters(config) - 1 + _teaching(config))),
        Item("gradients", adapters, learning),
        Item("all-gather buffers", gathered, learning),
        Item("kept activations", shape.layers * (inputs if d.gradient_checkpointing else kept) + last, learning),
        Item("bf16 weights", copies * layers * shape.linear_parameters, (BACKWARD,) if layers == 1 else learning),
        Item("one layer again", kept if d.gradient_checkpointing else 0, (BACKWARD,)),
        Item("layer gradients", tokens * layer_gradients_per_token(shape, model, n, length, device), (BACKWARD,)),
        Item("logits", (each * positions + copies * shape.hidden) * shape.vocabulary, (LOSS,)),
    ]


def _reads(config: RunConfig) -> bool:
    return bool(config.world_model and config.world_model.reads) and config.coupling != "memory"


def question_tokens(config: RunConfig) -> int:
    """Tokens of a question to the world model, with all that it reads before, and of its reply."""
    return QUESTION + (config.world_model.reads * SIMILAR if _reads(config) else 0)


SINGLE = ("shared", "echo", "cloning", "memory", "truth")  # couplings that train one adapter


def _adapters(config: RunConfig) -> int:
    """How many adapters a run trains."""
    return 1 if config.world_model is None or config.coupling in SINGLE else 1 + config.world_model.members


def _teaching(config: RunConfig) -> int:
    """How many running averages act in rollouts."""
    return int(bool(config.feedback) and config.feedback.teacher == "average")


# --- the engines -----------------------------------------------------------------------------


def torch_engine_items(shape: Shape, config: RunConfig) -> list[Item]:
    """What the torch engine holds beside the learner: the base and its merged copies, and caches at their largest."""
    r, per_place = config.rollout, 4 * 2 * shape.key * shape.layers
    fused = shape.layers * shape.hidden * (shape.query + 2 * shape.key + 2 * shape.inner)
    rows = min(ROWS, rows_within(per_place))
    played = min(rows, r.tasks_per_step * r.group_size)
    policy = per_place * doubled(0, played) * doubled(0, r.max_tokens + r.max_action_tokens)
    members = _adapters(config) - 1
    world_model = per_place * doubled(0, rows) * doubled(0, question_tokens(config)) * (members > 0)
    f = config.feedback  # a teacher plays whole episodes, or reads some of them before it writes
    teacher = policy if f and (f.teacher != "live" or f.source in ("model", "both")) else 0
    return [
        Item("engine: base and merged copies", 4 * shape.parameters * (1 + _adapters(config) + _teaching(config))),
        Item("engine: a copy being merged", 4 * (shape.parameters + fused), (PUBLISH,)),
        Item("engine: KV caches", policy + world_model * members + teacher),
        Item("engine: a cache that grows", max(policy, world_model) / 2, (ROLLOUT,)),
    ]


def vllm_items(shape: Shape, config: RunConfig, share: float) -> tuple[list[Item], str, str]:
    """Items of one vLLM GPU that takes `share` bytes, what its KV cache has room for, and what is wrong."""
    d, b = config.distributed, _bytes(config.model.dtype)
    served = _adapters(config) + _teaching(config) + (1 if config.coupling == "stacked" else 0)
    weights, adapters = b * shape.parameters / d.tensor_parallel, b * served * shape.adapter_parameters(config.model)
    cache = share - weights - adapters - VLLM_WORKSPACE
    capacity = int(max(0, cache) / (b * 2 * shape.key * shape.layers / d.tensor_parallel))
    length = config.rollout.max_tokens
    items = [
        Item("engine: weights", weights, (ROLLOUT, PUBLISH)),
        Item("engine: adapters", adapters, (ROLLOUT, PUBLISH)),
        Item("engine: workspace ~", VLLM_WORKSPACE),
        Item("engine: KV cache", max(0, cache), (ROLLOUT, PUBLISH)),
    ]
    note = f"the KV cache holds {capacity:,} tokens: {capacity / length:.1f} trajectories of {length:,} at a time"
    return items, note, "" if capacity >= length else "the KV cache cannot hold one trajectory"


def plan(config: RunConfig, device: str = "cuda", gpu_gib: float = 24.0) -> list[GpuPlan]:
    """The GPUs of a run, of this size, by what they are for. On "cpu" one process and its main memory.

    Raises:
        ConfigError: the base's shape is not known.
    """
    shape, d, r = shape_of(config.model.base), config.distributed, config.rollout
    capacity = gpu_gib * GIB
    context = [Item("CUDA context ~", CUDA_CONTEXT)] if device != "cpu" else []
    learner = learner_items(shape, config, device) + context
    if r.servers:
        engine, note, problem = vllm_items(shape, config, SERVER_SHARE * capacity)
        return [
            GpuPlan("learner", d.processes, capacity, tuple(learner)),
            GpuPlan(
                "vLLM server", len(r.servers) * d.tensor_parallel, capacity, tuple(engine + context), note, problem
            ),
        ]
    if r.engine == "vllm":
        engine, note, problem = vllm_items(shape, config, r.gpu_memory * capacity)
        return [GpuPlan("learner and vLLM", d.processes, capacity, tuple(learner + engine), note, problem)]
    items = tuple(learner + torch_engine_items(shape, config))
    return [GpuPlan("learner and torch engine", d.processes, capacity, items)]


def render(plans: Sequence[GpuPlan]) -> str:
    """A table for each kind of GPU: items, the moments at which they are needed, the peak, the verdict."""
    lines = []
    for p in plans:
        unit, name = (GIB, "GiB") if p.need(p.peak) > 4 * GIB else (2**20, "MiB")
        lines += [f"{p.role}: {p.count} x {p.capacity / GIB:.0f} GiB", f"  {'':32} {name:>8}  needed at"]
        for item in p.items:
            when = "always" if item.moments == MOMENTS else ", ".join(item.moments)
            lines += [f"  {item.name:32} {item.bytes / unit:8.2f}  {when}"] if item.bytes else []
        lines += [f"  {f'peak, at {p.peak}':32} {p.need(p.peak) / unit:8.2f}"]
        lines += [f"  {p.note}"] if p.note else []
        short = p.problem or f"{(p.need(p.peak) - p.capacity) / GIB:.2f} GiB are missing"
        lines += ["  fits" if p.fits else f"  does not fit: {short}", ""]
    return "\n".join(lines).rstrip()
