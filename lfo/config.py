"""What a run is: frozen, validated settings with their units. Knows nothing about how they are used.

`load_config` reads YAML and applies overrides; both are strict, so that a misspelt name stops a run before it starts
and says what was probably meant. Settings that earlier versions had are read as what they are called now, or the
message says what replaced them. `derive_seed` gives every random draw of a run its own seed, a pure function of the
run's seed and of what is drawn: nothing depends on how often a generator was used before, which is what makes
resuming exact.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import textwrap
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, get_args, get_type_hints

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass


class ConfigError(ValueError):
    """A setting is unknown or out of range. The message names it and the remedy."""


def _no_bool(value):
    if isinstance(value, bool):
        raise ValueError("a number is needed")
    return value


Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Level = Annotated[int, Field(strict=True, ge=1, le=5)]
# YAML reads 1e-3, without a dot, as text: pydantic makes a number of it.
Weight = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, allow_inf_nan=False)]
Above0 = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1)]
Reward = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]


def _once(values: tuple) -> tuple:
    if len(set(values)) < len(values):
        raise ValueError("each of them can be named once")
    return values


Once = AfterValidator(_once)
Splits = Annotated[tuple[Literal["train", "validation", "test"], ...], Field(min_length=1), Once]

# Settings of one coupling, and their defaults.
OWN = {"recall": ("memory", "table"), "unsure_below": ("imagine", 0.0), "dream_agreement": ("dream", 1.0)}
COUPLINGS = "none shared echo stacked imagine imagine_memory dream memory truth cloning".split()

settings = dataclass(frozen=True, config=ConfigDict(extra="forbid"))


@settings
class EnvConfig:
    """The world to act in."""

    name: str = "phone"  # a module of lfo/envs
    world_seed: Count = 0
    levels: Annotated[tuple[Level, ...], Field(min_length=1), Once] = (1, 2, 3, 4, 5)  # of all tasks
    circumstances: Annotated[int, Field(strict=True, ge=0, le=6)] = 4  # kinds of them in requests
    replies: Literal["list", "reasons"] = "reasons"  # reasons: who refuses says what each circumstance demands
    max_turns: Positive | None = None  # agent actions; None: what the environment decides (phone 16, shell 5)
    values: Literal["literal", "reference"] = "literal"  # reference: personal data is handed over as @email
    reward: Literal["binary", "shaped"] = "binary"  # what the policy trains on; figures always report binary success
    rewards: tuple[Reward, Reward, Reward] = (1.0, -0.5, 0.0)  # shell: of a correct, an incorrect and an unknown end
    sandbox: str = ""  # shell: "" this machine's /usr by bubblewrap; a folder of `lfo shell root`; docker:IMAGE
    server: str = ""  # address of a task server (`lfo task-server`) that plays the episodes; "": in this process

    def __post_init__(self):
        if self.server and not self.server.startswith(("http://", "https://")):
            raise ConfigError(f"env.server is '{self.server}'; leave it out, or set it to http://127.0.0.1:8000, say.")


@settings
class ModelConfig:
    """The frozen base and the shape of the LoRA adapters (Hu et al. 2021, arXiv 2106.09685)."""

    base: str = "data/base"  # folder or .gguf file (`located`), or a name on the model hub
    dialect: str = "tags"  # tags: the embedded base's; chat: the model's own chat template, or that of a .jinja file
    rank: Positive = 16  # updates are scaled by alpha / rank, and alpha is always twice the rank
    dropout: Share = 0.0  # on the adapters' input
    targets: Literal["all-linear", "attention"] = "all-linear"  # attention: query, key, value and output projections
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the frozen base in learner and vLLM; adapters: float32
    autocast: Flag | Literal["auto"] = "auto"  # the learner computes in bf16; auto: where the device is good at it

    def __post_init__(self):
        if self.dialect not in ("tags", "chat") and not self.dialect.endswith(".jinja"):
            raise ConfigError(f"model.dialect is '{self.dialect}'; choose tags, chat, or a .jinja file.")


@settings
class PolicyConfig:
    """DAPO on task success (Yu et al. 2025, arXiv 2503.14476); with the group `ppo` PPO, by the same names."""

    learning_rate: Weight = 1e-3  # 0: the policy stays what the base is, and learns nothing
    clip: tuple[Weight, Weight] = (0.2, 0.28)  # the ratio is kept within [1 - low, 1 + high] ("clip-higher")
    groups_per_update: Positive = 2  # groups in one optimizer step; PPO deals out as many rollouts, shuffled
    epochs: Positive = 1  # passes over a step's groups; the world model joins in the first
    tis_cap: Weight = 0.0  # cap of the truncated importance weight learner / sampler (2 is usual); 0: no such weight
    max_grad_norm: Above0 = 1.0  # of each adapter by itself
    entropy: Weight = 0.0  # weight of the entropy bonus (PPO): of the sampling distribution, nats per action token
    kl: Weight = 0.0  # weight of the KL divergence from the frozen base (GRPO), nats per action token; DAPO has none
    # weight of the cross-entropy on as many earlier successes as a group has rollouts, in each update (self-imitation)
    imitate: Weight = 0.0

    def __post_init__(self):
        if self.extras and not self.learning_rate:
            raise ConfigError(f"policy.learning_rate 0 learns nothing: set it above 0, or {self.extras} to 0.")

    @property
    def extras(self) -> str:
        """The settings above that add something to the objective, by name; "" where it is DAPO's alone."""
        return ", ".join(f"policy.{name}" for name in ("entropy", "kl", "imitate") if getattr(self, name))


@settings
class PpoConfig:
    """PPO on task success instead of DAPO (Schulman et al. 2017, arXiv 1707.06347): every rollout by itself."""

    critic: Flag = True  # a value head judges every token; false: the baseline is the running mean of the rewards
    gamma: Share = 1.0  # discount per action token; the reward is at the last one
    gae_lambda: Share = 1.0  # of GAE (arXiv 1506.02438), per action token; 1: outcome minus value
    value_weight: Weight = 0.5  # of the value loss, which moves the policy's adapter, too
    value_clip: Weight = 0.2  # how far from what it was a value is followed in one step
    value_learning_rate: Weight = 1e-3  # of the value head; it warms up and falls as the others do


@settings
class WorldModelConfig:
    """Cross-entropy on what the environment says, and how it reaches the policy (`lfo.couplings`).

    With the couplings `memory` and `truth` nothing is learned of it: there is no world model, but somebody who says
    the same notes.
    """

    coupling: Literal[*COUPLINGS] = "imagine"
    predict: str = "phone"  # the tools whose answers are learned: what the environment calls them (`Knowledge.learned`)
    lam: Weight = 0.5  # weight of the world-model loss
    learning_rate: Weight = 3e-3  # of the world-model adapter; where there is one adapter, it has the policy's
    # who learns in which step
    schedule: Literal["joint", "alternating", "world_first", "hierarchical", "policy_leads"] = "joint"
    updates: Count = 20  # replay updates per step, beyond the one in the joint step
    # what they draw: distinct calls, half of them those whose answer tells all there is to be said; or heard: calls as
    # often as they were answered
    replay: Literal["distinct", "heard"] = "distinct"
    scouts: Count = 0  # rollouts of each group that ask what is imagined for real, for the world model alone
    anonymise: Share = 0.0  # share of the replayed calls that are made to look like calls at an unknown company
    word_dropout: Share = 0.0  # share of the tokens of a replayed question that are left out, others each time
    decay: Share = 0.95  # of the running average of an adapter of its own, which is published; per update
    members: Positive = 1  # world models, each with replays of its own; `imagine` and `imagine_memory` only, as:
    votes: Positive = 1  # replies of each to a question, all but one sampled; noted is what most of all replies mean
    reads: Count = 0  # similar calls, with their answers, read before; `memory`: answers by these alone
    shuffle: Flag = False  # placebo: calls are learned with the replies of other tasks' calls
    # share of the imagined replies to a dreamt call that must say success; `dream` only
    dream_agreement: Annotated[Above0, Field(le=1)] = 1.0
    # who makes notes of what was heard; `memory` only
    recall: Literal["table", "backoff", "nearest", "vote", "linear", "boosted", "additive", "grammar"] = "table"
    unsure_below: Share = 0.0  # share of further replies, four or more, that must agree, or no more is noted; `imagine`
    context_distillation: Weight = 0.0  # weight of the same actions without the notes before them
    curiosity: Weight = 0.0  # weight of the world model's surprise in the reward, per nat and reply token

    def __post_init__(self):
        if self.coupling == "echo" and (self.shuffle or self.anonymise or self.schedule != "joint"):
            raise ConfigError("coupling 'echo' learns in the policy's own pass: no shuffle, anonymise or schedule.")
        if self.shuffle and self.predict != "phone":
            raise ConfigError("world_model.shuffle deals out phone replies: set world_model.predict to 'phone'.")
        asked = self.coupling in ("imagine", "imagine_memory")
        if self.context_distillation and not asked and self.coupling not in ("memory", "truth"):
            raise ConfigError("world_model.context_distillation is about notes: set coupling 'imagine'.")
        unread = self.shuffle or self.anonymise or self.curiosity  # these learn, or judge, by calls as they were heard
        if self.reads and (unread or not asked) and self.coupling != "memory":
            raise ConfigError("world_model.reads: set coupling 'imagine'; no shuffle, anonymise or curiosity.")
        if self.curiosity and (self.shuffle or self.coupling in ("memory", "truth", "cloning")):
            raise ConfigError("world_model.curiosity asks who learned the replies: set coupling 'imagine', no shuffle.")
        if self.members * self.votes > 1 and (self.curiosity or not asked):
            raise ConfigError("world_model.members and votes are for notes: set coupling 'imagine', and no curiosity.")
        replayed = self.replay == "heard" or self.word_dropout
        if replayed and (not self.updates * self.lam or self.coupling in ("memory", "truth")):
            raise ConfigError("world_model.replay and word_dropout: set updates and lam above 0; no memory or truth.")
        if self.word_dropout and self.coupling in ("echo", "cloning"):
            raise ConfigError("world_model.word_dropout is for who learns replies apart: set coupling 'imagine'.")
        for name, (coupling, unused) in OWN.items():
            if getattr(self, name) != unused and not self.coupling.startswith(coupling):
                raise ConfigError(f"world_model.{name} is for coupling '{coupling}' alone: set that, or leave it out.")


@settings
class FeedbackConfig:
    """Later rollouts of a group read what went wrong in earlier ones; the policy is to do without (`Feedback`)."""

    # who says what went wrong: rules, from what was said to the agent; the model without adapters; both; imagined, by
    # what the world model would have answered; two controls: shuffled, what was said in another task's attempts, and
    # none, nothing, so that the teacher only tries again
    source: Literal["rules", "model", "both", "imagined", "shuffled", "none"] = "rules"
    start: Annotated[int, Field(strict=True, ge=2)] = 4  # the first rollout of a group that reads some
    wave: Count = 0  # rollouts that begin together from there on; 0: all the rest
    accumulate: Literal["all", "last", "summary"] = "all"  # attempts; summary: of each callee what was said last
    share: Share = 1.0  # of the groups, at the beginning
    decay: Flag = False  # that share falls linearly to 0 at the end of the budget
    max_tokens: Positive = 200  # of the feedback on one attempt
    # who plays the rollouts with feedback: the policy, its running average, or the frozen base
    teacher: Literal["live", "average", "base"] = "base"
    # what the policy learns from them: sampled, in the context that was sampled in; without the feedback, with the
    # importance ratio dropped (free) or kept up to a cap (capped); successes alone, by cross-entropy, without the
    # feedback; kl, from failed first attempts instead, by what a teacher who reads what went wrong makes of each token
    learn: Literal["sampled", "free", "capped", "successes", "kl"] = "successes"
    baseline: Literal["group", "first"] = "first"  # of advantages: the mean of all, or of those without feedback
    updates: Count = 12  # replay updates per step on corrected attempts, without their feedback
    anonymise: Share = 0.0  # share of these that are made to look like attempts at an unknown company

    def __post_init__(self):
        if self.learn == "kl" and self.source != "rules":
            raise ConfigError("feedback.learn 'kl' asks nobody for feedback: set feedback.source to 'rules'.")
        if self.source == "none" and self.teacher == "live":
            raise ConfigError("feedback.source 'none' is for a teacher: set feedback.teacher to 'base' or 'average'.")

    @property
    def actor(self) -> str:
        """The adapter of the teacher."""
        return "policy" if self.teacher == "live" else self.teacher


@settings
class RolloutConfig:
    """How trajectories are sampled."""

    tasks_per_step: Positive = 8  # informative groups wanted in one step
    group_size: Positive = 8  # rollouts of one task; 1 is for PPO alone
    max_refills: Count = 2  # more rounds of sampling when dynamic sampling drops groups
    temperature: Weight = 1.0
    max_action_tokens: Positive = 96
    max_tokens: Positive = 1_024  # of a trajectory, notes and all; none begins another turn with so many
    engine: str = "torch"  # torch | vllm (in the learner's process) | addresses of vLLM servers, see `lfo serve`
    gpu_memory: Annotated[Above0, Field(le=1)] = 0.4  # engine "vllm": share of the GPU's memory
    # the next step's rollouts are sampled while the learner learns, one version behind; needs policy.tis_cap
    asynchronous: Flag = False

    def __post_init__(self):
        if not all(url.startswith(("http://", "https://")) for url in self.servers):
            raise ConfigError(f"rollout.engine is '{self.engine}'; choose torch, vllm, or http://127.0.0.1:8010,...")
        if self.asynchronous and self.engine == "vllm":
            raise ConfigError(
                "engine 'vllm' sleeps while the learner learns: set rollout.engine to the addresses of servers for"
                " rollouts beside it, or rollout.asynchronous to false."
            )

    @property
    def servers(self) -> list[str]:
        """The addresses in `engine`."""
        return [] if self.engine in ("torch", "vllm") else [url.strip() for url in self.engine.split(",")]


@settings
class DistributedConfig:
    """How a run is laid out over GPUs, and what bounds the learner's memory; `lfo plan` adds it up."""

    processes: Positive = 1  # learner ranks, one GPU each; FSDP2 shards base, adapters and optimizer over them
    tensor_parallel: Positive = 1  # GPUs that one vLLM engine or server is split over
    gradient_checkpointing: Flag = False  # keep the inputs of the layers only, compute the rest again in the backward
    micro_batch_tokens: Positive = 4_096  # tokens in one forward pass; a longer trajectory is one by itself


@settings
class RunConfig:
    """One complete training run."""

    name: str = "run"
    seed: Count = 0
    task_budget: Positive = 320  # sampled tasks, those that dynamic sampling drops included
    eval_every: Positive = 80  # sampled tasks between evaluations
    # known (validation) and new (test) companies; tuning looks at validation only
    eval_splits: Splits = ("validation", "test")
    eval_tasks: Positive = 100  # tasks per split and evaluation, at most; the world model is asked about as many
    eval_episodes: Positive = 1  # episodes per evaluated task
    checkpoint_every: Positive = 5  # steps
    warmup_tasks: Count = 16  # the learning rates rise linearly over these, then fall by a cosine to a tenth
    weight_decay: Weight = 0.0
    # who is told of the run while it is trained (docs/tracking.md); None: nobody, all that is said lies in its folder
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = None
    env: EnvConfig = EnvConfig()
    model: ModelConfig = ModelConfig()
    policy: PolicyConfig = PolicyConfig()
    ppo: PpoConfig | None = None  # None: DAPO
    world_model: WorldModelConfig | None = None  # None: DAPO on task success alone
    feedback: FeedbackConfig | None = None  # None: no rollout knows of another
    rollout: RolloutConfig = RolloutConfig()
    distributed: DistributedConfig = DistributedConfig()

    def __post_init__(self):
        w, size, least = self.world_model, self.rollout.group_size, 1 if self.ppo else 2
        if size < least:
            raise ConfigError(f"DAPO compares rollouts: set rollout.group_size above 1, not {size}, or `ppo: {{}}`.")
        if w and w.scouts > size - least:
            raise ConfigError(f"world_model.scouts {w.scouts} of {size} rollouts: leave the policy {least} or more.")
        rewarded = self.policy.learning_rate and self.coupling != "cloning"
        if (self.ppo or self.feedback) and not rewarded:
            raise ConfigError("ppo and feedback need rewards: no coupling 'cloning', and policy.learning_rate above 0.")
        if w and self.coupling in ("shared", "echo", "cloning") and not self.policy.learning_rate:
            raise ConfigError(f"coupling '{self.coupling}' has the policy's adapter alone: set policy.learning_rate.")
        if rewarded and not (self.rollout.temperature or self.ppo or self.feedback or self.coupling == "dream"):
            raise ConfigError("rollouts of a task are all alike: set rollout.temperature above 0.")
        if self.ppo and self.feedback:
            raise ConfigError("feedback is for DAPO, which compares rollouts of a group: leave ppo out, or feedback.")
        if w and w.coupling == "cloning" and (w.anonymise or w.shuffle or not w.lam or self.model.dialect != "tags"):
            raise ConfigError("coupling 'cloning' needs lam above 0, no anonymise, no shuffle, and the dialect 'tags'.")
        if w and w.coupling == "cloning" and self.policy.extras:
            raise ConfigError(f"coupling 'cloning' learns nothing from rewards: set {self.policy.extras} to 0.")
        if self.coupling == "echo" and {self.policy.epochs, self.rollout.temperature, self.model.dialect} - {1, "tags"}:
            raise ConfigError("coupling 'echo' needs policy.epochs 1, rollout.temperature 1 and the dialect 'tags'.")
        if w and w.word_dropout and self.model.dialect != "tags":
            raise ConfigError("world_model.word_dropout would tear a chat template apart: set model.dialect to 'tags'.")
        if w and w.coupling == "dream" and self.env.reward != "binary":
            raise ConfigError("a dreamt reply tells success and nothing else: set env.reward to 'binary'.")
        if self.feedback:
            self._check_feedback(self.feedback)
        if self.rollout.asynchronous and self.policy.tis_cap == 0:
            raise ConfigError("asynchronous rollouts lag by a version: set policy.tis_cap to 2, say, to allow for it.")

    def _check_feedback(self, f: FeedbackConfig) -> None:
        w, played = self.world_model, self.rollout.group_size - (self.world_model.scouts if self.world_model else 0)
        if w and w.context_distillation:
            raise ConfigError("feedback.learn says what is learned without notes: set context_distillation to 0.")
        if self.policy.imitate and f.learn == "successes":
            raise ConfigError("feedback.learn 'successes' imitates already: set policy.imitate to 0.")
        if f.source == "imagined" and (w is None or self.coupling in ("memory", "truth") or w.members * w.votes > 1):
            raise ConfigError("feedback 'imagined' asks one world model: set coupling 'imagine', no members or votes.")
        if f.learn == "kl" and w and w.schedule != "joint":
            raise ConfigError("feedback.learn 'kl' learns in every step: set world_model.schedule to 'joint'.")
        if f.teacher == "average" and self.coupling == "stacked":
            raise ConfigError("coupling 'stacked' adds two adapters up: set feedback.teacher to 'live' or 'base'.")
        if f.start > played and f.learn != "kl":
            raise ConfigError(f"feedback.start is {f.start} of {played} rollouts of a group: lower it; some must read.")

    @property
    def coupling(self) -> str:
        """How the world model reaches the policy; "none" also where there is no world model."""
        return self.world_model.coupling if self.world_model else "none"


# --- strict loading --------------------------------------------------------------------------


def build(kind: type, data: Mapping):
    """A config dataclass from plain data.

    Raises:
        ConfigError: a name is unknown (the closest known one is suggested) or a value does not fit.
    """
    try:
        return kind(**data)
    except ValidationError as error:
        raise ConfigError(_explained(kind, error.errors()[0])) from None


def _explained(kind: type, problem: dict) -> str:
    """One of pydantic's problems in a sentence."""
    where = [part for part in problem["loc"] if isinstance(part, str)]
    if problem["type"] == "unexpected_keyword_argument":
        *groups, name = where
        known = (GROUPS[groups[0]] if groups else kind).__dataclass_fields__
        close = [f"{group}.{name}" for group, settings in GROUPS.items() if name in settings.__dataclass_fields__]
        close += [name] if name in kind.__dataclass_fields__ else []
        close = close or [".".join([*groups, near]) for near in difflib.get_close_matches(name, known, n=1)]
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(known)}."
        return f"unknown setting '{'.'.join(where)}'; {hint}"
    dotted = ".".join(where[:2])
    if reason := problem.get("ctx", {}).get("error"):
        return str(reason) if isinstance(reason, ConfigError) else f"'{dotted}': {reason}, got {problem['input']!r}."
    told = problem["msg"].replace("a valid tuple", "a list, as in [a, b]")
    return f"'{dotted}': {told[0].lower()}{told[1:]}, got {textwrap.shorten(repr(problem['input']), 80)}."


# The groups of settings by name; those that may be left out are told as `PpoConfig | None`.
GROUPS: dict[str, type] = {
    name: kind
    for name, hint in get_type_hints(RunConfig).items()
    for kind in (hint, *get_args(hint))
    if dataclasses.is_dataclass(kind)
}


def located(path: str | Path) -> Path:
    """A file or folder in the working directory, or else what `lfo` brings along by that name.

    ``configs/laptop.yaml`` and ``data/base`` are found from anywhere: an installed wheel holds them in `lfo/shipped`, a
    clone has links there. A path that is in neither place is returned as it is.
    """
    path = Path(path)
    shipped = Path(str(resources.files("lfo") / "shipped" / path))
    return path if path.exists() or not shipped.exists() else shipped


def load_config(path: str | Path, /, **overrides) -> RunConfig:
    """A run config from YAML. Overrides are given by dotted name: ``{"policy.learning_rate": 1e-3}``.

    ``{"world_model": None}`` leaves the world model out; an override within a group that is left out makes the group.

    Raises:
        ConfigError: the file is missing or something in it or in the overrides does not fit.
    """
    path = located(path)
    if not path.is_file():
        known = sorted(located(path.parent).glob("*.yaml")) or sorted(located("configs").glob("*.yaml"))
        raise ConfigError(f"there is no config {path}; configs: {', '.join(map(str, known))}.")
    data = read_yaml(path.read_text(encoding="utf-8"), str(path)) or {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} must hold a mapping of settings.")
    if "arms" in data or "grid" in data:
        raise ConfigError(f"{path} is a grid of many runs: `lfo sweep --grid {path} --out FOLDER` trains them.")
    if odd := [key for key in data if not isinstance(key, str)]:
        raise ConfigError(f"{odd[0]!r} is no name of a setting.")
    settings = flat(data)
    for name, value in overrides.items():
        group = name.rpartition(".")[0]
        if settings.get(group):
            raise ConfigError(f"'{group}' in {path} is a single value, so '{name}' cannot be set.")
        kept = {k: v for k, v in settings.items() if k != group and k.rpartition(".")[0] != name}
        settings = kept | flat({name: value})  # one of them, or a whole group
    return build(RunConfig, nested(settings))


class _Once(yaml.SafeLoader):
    """YAML in which a key comes once; by itself the last of several would win."""

    def compose_mapping_node(self, anchor):
        node, seen = super().compose_mapping_node(anchor), set()
        for key, _ in node.value:
            if (one := (key.tag, str(key.value))) in seen:
                raise yaml.MarkedYAMLError(problem=f"'{key.value}' comes twice", problem_mark=key.start_mark)
            seen.add(one)
        return node


def read_yaml(text: str, where: str):
    """What a YAML text says; ConfigError names `where` it cannot be read."""
    try:
        return yaml.load(text, _Once)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line} is not YAML ({getattr(error, 'problem', None) or 'unreadable'}).") from None


def as_dict(config) -> dict:
    """Plain data that `build` reads back."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def flat(data: Mapping) -> dict:
    """Settings by dotted name; a group that is None or empty is one by itself."""
    groups = {name: part for name, part in data.items() if isinstance(part, Mapping) and part}
    inner = {f"{group}.{name}": value for group, part in groups.items() for name, value in part.items()}
    return {name: value for name, value in data.items() if name not in groups} | inner


def nested(settings: Mapping) -> dict:
    """The inverse of `flat`."""
    data: dict = {}
    for name, value in settings.items():
        group, _, last = name.rpartition(".")
        (data.setdefault(group, {}) if group else data)[last] = value
    return data


# --- seeding ---------------------------------------------------------------------------------


def derive_seed(*parts) -> int:
    """A seed in [0, 2**31) from anything printable, e.g. ``derive_seed(run_seed, "rollout", step)``."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "little") % 2**31


def evaluation_seed(task_id: str, episode: int = 0) -> int:
    """Of an evaluation's episode: the same user and CSR for whoever plays it."""
    return derive_seed("evaluation", task_id, episode)
