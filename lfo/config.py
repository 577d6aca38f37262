"""What a run is: frozen, validated settings with their units. Knows nothing about how they are used.

`load_config` reads YAML and applies overrides; both are strict, so that a misspelt name stops a
run before it starts and says what was probably meant. `derive_seed` gives every random draw of a
run its own seed, a pure function of the run's seed and of what is drawn: nothing depends on how
often a generator was used before, which is what makes resuming exact. `start_notebook` opens every
notebook.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import json
import math
import os
import typing
from collections.abc import Mapping
from pathlib import Path

import yaml

# Overrides that make any config a baseline: DAPO on task success, nothing else.
NO_WORLD_MODEL = {
    "world_model.coupling": "none",
    "world_model.predict": "nothing",
    "world_model.lam": 0.0,
    "world_model.updates": 0,
    "world_model.probes": 0,
    "world_model.disguise": 0.0,
    "world_model.shuffle": False,
    "world_model.template": "call",
    "world_model.schedule": "joint",
    "policy.internalise": 0.0,
    "policy.surprise": 0.0,
}
SCHEDULES = ("joint", "alternating", "world_first", "hierarchical")
COUPLINGS = ("none", "shared", "stacked", "imagine", "dream")
PREDICT = ("nothing", "phone", "phone+form", "all")


class ConfigError(ValueError):
    """A setting is unknown or out of range. The message names it and the remedy."""


def _one_of(config, name: str, *allowed: str) -> None:
    value = getattr(config, name)
    if value not in allowed:
        raise ConfigError(f"{type(config).__name__}.{name} is {value!r}; choose one of: {', '.join(allowed)}.")


def _at_least(config, low: float, *names: str) -> None:
    for name in names:
        if getattr(config, name) < low:
            raise ConfigError(f"{type(config).__name__}.{name} is {getattr(config, name)}; it must be >= {low}.")


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Rules of an episode (DESIGN section 2)."""

    max_turns: int = 16  # agent actions
    max_malformed: int = 3  # calls that cannot be read
    slack: int = 1  # fields beyond what the task needs that the user still shares
    form_after_call: bool = False  # whether the first form may follow a phone call
    values: str = "literal"  # literal: form values pass through the model; reference: handles such as @email do
    reward: str = "binary"  # binary | shaped: what the policy trains on; figures always report binary success

    def __post_init__(self):
        _at_least(self, 1, "max_turns", "max_malformed")
        _at_least(self, 0, "slack")
        _one_of(self, "values", "literal", "reference")
        _one_of(self, "reward", "binary", "shaped")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The frozen base and the shape of the LoRA adapters (Hu et al. 2021, arXiv 2106.09685)."""

    base: str = "data/base"  # folder or .gguf file, relative to the working directory, or a name on the model hub
    dialect: str = "tags"  # tags: the embedded base's; chat: the model's own chat template with JSON tool schemas
    chat_template: str = ""  # a template file in place of the tokenizer's own, e.g. configs/chatml_tools.jinja
    thinking: bool = False  # whether a chat model that can think before it acts does (`enable_thinking`)
    rank: int = 16
    alpha: int = 32  # the update is scaled by alpha / rank
    dropout: float = 0.0  # on the adapters' input
    targets: str = "all-linear"  # all-linear | qvo (query, value and output projections)
    autocast: bool = True  # learner's forward passes in bf16

    def __post_init__(self):
        _at_least(self, 1, "rank", "alpha")
        _at_least(self, 0.0, "dropout")
        _one_of(self, "targets", "all-linear", "qvo")
        _one_of(self, "dialect", "tags", "chat")
        if self.dialect == "tags" and (self.chat_template or self.thinking):
            raise ConfigError("model.chat_template and model.thinking belong to model.dialect 'chat'.")


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """DAPO on task success (Yu et al. 2025, arXiv 2503.14476)."""

    learning_rate: float = 1e-3
    clip_low: float = 0.2  # ratio is clipped to [1 - clip_low, 1 + clip_high]
    clip_high: float = 0.28  # "clip-higher"
    groups_per_update: int = 2  # groups in one optimizer step
    epochs: int = 1  # passes over a step's groups; the world model joins in the first
    internalise: float = 0.0  # weight of the same actions without the imagined tokens before them; `imagine` only
    surprise: float = 0.0  # weight of the world model's surprise in the reward, per nat and reply token; a comparison
    max_grad_norm: float = 1.0
    overlong_buffer: int = 64  # tokens before the budget in which the soft overlong penalty grows to -1
    tis_cap: float = 0.0  # cap of the truncated importance weight learner / sampler (2 is usual); 0: no such weight

    def __post_init__(self):
        _at_least(self, 0.0, "learning_rate", "clip_low", "clip_high", "max_grad_norm", "overlong_buffer", "tis_cap")
        _at_least(self, 0.0, "internalise", "surprise")
        _at_least(self, 1, "groups_per_update", "epochs")


@dataclasses.dataclass(frozen=True)
class WorldModelConfig:
    """Cross-entropy on what the environment says, and how it reaches the policy (DESIGN section 4)."""

    # none: the plain sum; shared: one adapter; stacked: the policy acts through both adapters; imagine: predictions
    # enter the context; dream: the policy also practises on calls that the world model answers
    coupling: str = "imagine"
    predict: str = "phone"  # what is predicted; "nothing" switches the world model off (baseline DAPO)
    # call: an example of its own per call; trajectory: the replies in the policy's own forward pass, `shared` only
    template: str = "call"
    lam: float = 0.5  # weight of the world-model loss
    learning_rate: float = 3e-3  # of the world-model adapter; `shared` has only the policy's
    # joint | alternating | world_first | hierarchical: who learns in which step (schedule.turns)
    schedule: str = "joint"
    world_first_tasks: int = 80  # sampled tasks from which the world model alone learns; `world_first` only
    policy_every: int = 4  # steps between the policy's turns; `hierarchical` only
    updates: int = 20  # replay updates per step, beyond the one in the joint step
    batch: int = 16  # examples per replay update
    ema: float = 0.95  # decay per update of the running average of the world model that is published; 0 switches it off
    probes: int = 0  # rollouts of each group that make the imagined call for real, for the world model alone
    disguise: float = 0.0  # share of the replayed calls that are made to look like calls at an unknown company
    shuffle: bool = False  # placebo: calls are learned with the replies of other tasks' calls (sampling.shuffled)
    dreams: int = 8  # dreamt groups per step; `dream` only, as the next three
    dream_after: int = 80  # sampled tasks before the first dream
    dream_samples: int = 4  # imagined replies to a dreamt call
    dream_agreement: float = 1.0  # share of them that must say success for the call to be one
    max_grad_norm: float = 1.0

    def __post_init__(self):
        _one_of(self, "coupling", *COUPLINGS)
        _one_of(self, "predict", *PREDICT)
        _one_of(self, "template", "call", "trajectory")
        _one_of(self, "schedule", *SCHEDULES)
        _at_least(self, 0.0, "lam", "learning_rate", "max_grad_norm")
        _at_least(self, 0, "updates", "probes", "ema", "dreams", "dream_after", "world_first_tasks")
        if self.ema >= 1:
            raise ConfigError(f"WorldModelConfig.ema is {self.ema}; it must be < 1.")
        _at_least(self, 1, "batch", "dream_samples", "policy_every")
        if not 0 <= self.disguise <= 1:
            raise ConfigError(f"WorldModelConfig.disguise is {self.disguise}; it must be >= 0 and <= 1.")
        if not 0 < self.dream_agreement <= 1:
            raise ConfigError(f"WorldModelConfig.dream_agreement is {self.dream_agreement}; it must be > 0 and <= 1.")
        if self.template == "trajectory" and (self.coupling != "shared" or self.shuffle):
            raise ConfigError("template 'trajectory' is the policy's own pass: set coupling 'shared' and no shuffle.")
        if self.disguise and self.template != "call":
            raise ConfigError("world_model.disguise rewrites examples of the template 'call'.")
        if self.schedule != "joint" and (self.predict == "nothing" or self.template == "trajectory"):
            raise ConfigError(f"schedule '{self.schedule}' takes a world model and the template 'call'.")
        if self.shuffle and self.predict != "phone":
            raise ConfigError("world_model.shuffle deals out phone replies: set world_model.predict to 'phone'.")
        if self.coupling not in ("none", "shared") and self.predict == "nothing":
            raise ConfigError(
                f"coupling '{self.coupling}' needs a world model: set world_model.predict to 'phone' or more."
            )


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """How trajectories are sampled."""

    tasks_per_step: int = 8  # informative groups wanted in one step
    group_size: int = 8  # rollouts of one task
    max_refills: int = 2  # more rounds of sampling when dynamic sampling drops groups
    temperature: float = 1.0
    max_action_tokens: int = 96
    max_tokens: int = 640  # budget of a trajectory, everything included
    engine: str = "torch"  # torch | vllm (in the learner's process) | server (vLLM servers, see `lfo serve`)
    servers: tuple[str, ...] = ()  # addresses of engine "server", such as http://127.0.0.1:8000
    dtype: str = "float32"  # float32 | bfloat16: of vLLM's weights and arithmetic; the torch engine is always float32
    gpu_memory: float = 0.4  # engine "vllm": share of the GPU's memory for weights and KV cache
    # the next step's rollouts are sampled while the learner learns, one version behind; needs policy.tis_cap
    asynchronous: bool = False
    row_streams: bool = False  # a random stream per rollout, not per batch: any number of processes samples the same

    def __post_init__(self):
        _at_least(self, 1, "tasks_per_step", "max_action_tokens", "max_tokens")
        _at_least(self, 2, "group_size")
        _at_least(self, 0, "max_refills", "temperature")
        _one_of(self, "engine", "torch", "vllm", "server")
        _one_of(self, "dtype", "float32", "bfloat16")
        if not 0 < self.gpu_memory <= 1:
            raise ConfigError(f"RolloutConfig.gpu_memory is {self.gpu_memory}; it must be above 0 and at most 1.")
        if (self.engine == "server") != bool(self.servers):
            raise ConfigError("rollout.engine 'server' and rollout.servers, the addresses, must be given together.")
        if bad := [url for url in self.servers if not url.startswith(("http://", "https://"))]:
            raise ConfigError(f"rollout.servers has '{bad[0]}'; give addresses such as http://127.0.0.1:8000.")
        if self.asynchronous and self.engine == "vllm":
            raise ConfigError(
                "engine 'vllm' sleeps while the learner learns: set rollout.engine to 'server' for"
                " rollouts beside it, or rollout.asynchronous to false."
            )


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """How a run is laid out over GPUs, and what bounds the learner's memory; `lfo plan` adds it up."""

    processes: int = 1  # learner ranks, one GPU each; FSDP2 shards base, adapters and optimizer over them
    tensor_parallel: int = 1  # GPUs that one vLLM engine or server is split over
    base_dtype: str = "float32"  # float32 | bfloat16: of the frozen base in the learner; adapters are always float32
    gradient_checkpointing: bool = False  # keep the inputs of the layers only, compute the rest again in the backward
    micro_batch_tokens: int = 4_096  # padded tokens in one forward pass; a longer trajectory is one by itself
    logit_chunk: int = 0  # positions whose logits exist at a time; 0: those of the whole micro-batch
    compile: bool = False  # the learner's layers through TorchInductor: faster after a minute; wants a C++ compiler
    gpu_gib: float = 24.0  # memory of one GPU

    def __post_init__(self):
        _at_least(self, 1, "processes", "tensor_parallel", "micro_batch_tokens", "gpu_gib")
        _at_least(self, 0, "logit_chunk")
        _one_of(self, "base_dtype", "float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One complete training run."""

    name: str = "dual_lora"
    seed: int = 0
    world_seed: int = 0
    levels: tuple[int, ...] = (1, 2)  # of train, validation and test tasks
    task_budget: int = 320  # sampled tasks, those that dynamic sampling drops included
    eval_every: int = 80  # sampled tasks between evaluations
    eval_splits: tuple[str, ...] = ("validation", "test")  # known and new companies; tuning looks at validation only
    eval_tasks: int = 50  # tasks per split and evaluation, at most
    eval_episodes: int = 2  # episodes per evaluated task
    checkpoint_every: int = 5  # steps
    warmup_tasks: int = 16  # the learning rates rise linearly over these, then fall by a cosine to a tenth
    weight_decay: float = 0.0
    env: EnvConfig = EnvConfig()
    model: ModelConfig = ModelConfig()
    policy: PolicyConfig = PolicyConfig()
    world_model: WorldModelConfig = WorldModelConfig()
    rollout: RolloutConfig = RolloutConfig()
    distributed: DistributedConfig = DistributedConfig()

    def __post_init__(self):
        _at_least(self, 1, "task_budget", "eval_every", "eval_tasks", "eval_episodes", "checkpoint_every")
        _at_least(self, 0, "warmup_tasks", "weight_decay", "seed")
        if self.world_model.probes > self.rollout.group_size - 2:
            raise ConfigError(
                f"world_model.probes is {self.world_model.probes} of rollout.group_size {self.rollout.group_size};"
                " at least 2 rollouts of a group must be left to the policy."
            )
        if self.world_model.template == "trajectory" and (
            self.rollout.temperature != 1 or self.model.dialect != "tags"
        ):
            raise ConfigError(
                "template 'trajectory' needs rollout.temperature 1, for one pass, and the dialect 'tags'."
            )
        if self.policy.internalise > 0 and self.world_model.coupling != "imagine":
            raise ConfigError("policy.internalise is about imagined tokens: set world_model.coupling to 'imagine'.")
        if self.rollout.asynchronous and self.policy.tis_cap == 0:
            raise ConfigError(
                "asynchronous rollouts are a version behind: set policy.tis_cap, which corrects for it, to 2, say."
            )
        if self.policy.surprise > 0 and self.world_model.predict == "nothing":
            raise ConfigError("policy.surprise needs a world model: set world_model.predict to 'phone' or more.")
        if self.world_model.coupling == "dream" and self.env.reward != "binary":
            raise ConfigError("a dreamt reply tells success and nothing else: set env.reward to 'binary'.")
        if not self.eval_splits or any(s not in ("train", "validation", "test") for s in self.eval_splits):
            raise ConfigError(f"RunConfig.eval_splits is {self.eval_splits}; choose among train, validation, test.")
        if not self.levels or any(level not in range(1, 6) for level in self.levels):
            raise ConfigError(f"RunConfig.levels is {self.levels}; give one or more of 1 to 5.")


# --- strict loading --------------------------------------------------------------------------


def build(kind: type, data: Mapping, where: str = ""):
    """A config dataclass from plain data.

    Raises:
        ConfigError: a name is unknown (the closest known one is suggested) or a value has the wrong type.
    """
    hints = typing.get_type_hints(kind)
    values = {}
    for name, value in data.items():
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(hints)}."
            raise ConfigError(f"unknown setting '{where}{name}'; {hint}")
        values[name] = _typed(hints[name], value, f"{where}{name}")
    return kind(**values)


def _typed(hint, value, where: str):
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"'{where}' is a group of settings, got {value!r}.")
        return build(hint, value, f"{where}.")
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"'{where}' must be a list, got {value!r}.")
        return tuple(_typed(typing.get_args(hint)[0], v, where) for v in value)
    if hint is float and isinstance(value, int | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            value = float(value)  # YAML reads 1e-3, without a dot, as text
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"'{where}' must be a finite number, got {value!r}.")
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise ConfigError(f"'{where}' must be of type {hint.__name__}, got {value!r}.")
    return value


def load_config(path: str | Path, **overrides) -> RunConfig:
    """A run config from YAML. Overrides are given by dotted name: ``{"policy.learning_rate": 1e-3}``.

    Raises:
        ConfigError: the file is missing or something in it or in the overrides does not fit.
    """
    path = Path(path)
    if not path.exists():
        known = ", ".join(sorted(str(p) for p in path.parent.glob("*.yaml"))) or "none in this folder"
        raise ConfigError(f"there is no config {path}; configs: {known}.")
    data = read_yaml(path.read_text(encoding="utf-8"), str(path)) or {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} must hold a mapping of settings.")
    data = {k: dict(v) if isinstance(v, Mapping) else v for k, v in data.items()}
    for dotted, value in overrides.items():
        group, _, name = dotted.rpartition(".")
        settings = data.setdefault(group, {}) if group else data
        if not isinstance(settings, dict):
            raise ConfigError(f"'{group}' in {path} is a single value, so '{dotted}' cannot be set.")
        settings[name] = value
    return build(RunConfig, data)


def read_yaml(text: str, where: str):
    """What a YAML text says; ConfigError names `where` it cannot be read."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line} is not YAML ({getattr(error, 'problem', None) or 'unreadable'}).") from None


def as_dict(config) -> dict:
    """Plain data that `build` reads back."""
    return dataclasses.asdict(config)


def completed(data: Mapping) -> dict:
    """A run's config as it was written, with the defaults of settings that came later; as it is where none fits."""
    with contextlib.suppress(ConfigError):
        return json.loads(json.dumps(as_dict(build(RunConfig, data))))
    return dict(data)


# --- notebooks -------------------------------------------------------------------------------

SMOKE_RESULTS = "build/smoke"  # what the smoke profile writes never replaces results


def start_notebook(profile: str, results_dir: str | Path) -> tuple[str, Path]:
    """The profile and the results folder that apply, after changing to the repository root.

    The environment variable LFO_PROFILE wins over the notebook's own profile. Jupyter and nbval start
    in notebooks/, papermill where it is told to: afterwards relative paths mean the same in all of them.

    Raises:
        ConfigError: no config of configs/ has the profile's name.
    """
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file():  # else lfo is installed elsewhere: stay in the working directory
        os.chdir(root)
    profile = os.environ.get("LFO_PROFILE") or profile
    known = sorted(p.stem for p in Path("configs").glob("*.yaml"))
    if profile not in known:
        raise ConfigError(f"there is no profile '{profile}'; profiles: {', '.join(known)}.")
    return profile, Path(SMOKE_RESULTS if profile == "smoke" else results_dir)


# --- seeding ---------------------------------------------------------------------------------


def derive_seed(*parts) -> int:
    """A seed in [0, 2**31) from anything printable, e.g. ``derive_seed(run_seed, "rollout", step)``."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "little") % 2**31
