"""LoRA + PPO by epochs: a folder for each, to be evaluated, merged or gone on from (``lfo shell train | evaluate``).

Not a second loop: an epoch is one step of `lfo.train`, in which `samples_per_epoch` rollouts are sampled and then
passed over `ppo_epochs` times in mini-batches. Names no environment.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from peft import PeftModel

from lfo import distributed
from lfo.config import ConfigError, RunConfig, as_dict, flat, load_config
from lfo.couplings import make_coupling
from lfo.couplings.plain import ALONE, Plain
from lfo.envs import make_environment
from lfo.evaluate import means, play_tasks
from lfo.proportions import wilson
from lfo.protocols import Environment, Script
from lfo.rollout import make_engine
from lfo.rollout.engine import require_folder
from lfo.rollout.play import Row
from lfo.runs import CheckpointError, RunError, RunFolder
from lfo.text.base import load_base, load_tokenizer
from lfo.train import Run, train
from lfo.types import BASE, POLICY, Rollout

STATS, CHECKPOINT = "training_stats.json", "checkpoint.pt"
# training_stats.json -> the step's metric; what a run does not log (no critic, no entropy bonus) is null
LOGGED = {
    "mean_reward": "train_reward",
    "accuracy": "train_success",
    "policy_loss": "policy/loss",
    "value_loss": "policy/value_loss",
    "kl": "policy/kl",
    "entropy": "policy/entropy",
    "neg_logprob": "policy/neg_logprob",
    "clip_fraction": "policy/ratio_clipped",
    "explained_variance": "policy/explained_variance",
}
COUNTED = ("correct", "incorrect", "unknown")  # ends, where the environment counts them


@dataclasses.dataclass(frozen=True)
class Options:
    """What is set beside the config; None: what the config says.

    samples_per_epoch, batch_size: rollouts of a step and of an optimizer step. ppo_epochs: passes over a step's.
    """

    num_epochs: int | None = None
    samples_per_epoch: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    ppo_epochs: int | None = None
    lora_r: int | None = None
    lora_alpha: int | None = None


def epoch_config(path: str | Path, world: str, options: Options = Options(), settings: Mapping = {}) -> RunConfig:
    """The config of a run by epochs in the environment `world`. settings: by dotted name, as for `load_config`.

    Raises:
        ConfigError: the config is for another environment, or is not PPO's, or an option does not fit.
    """
    plain, o = load_config(path, **settings), options
    size = plain.rollout.group_size
    _require_fitting(path, world, plain, o)
    tasks = o.samples_per_epoch // size if o.samples_per_epoch else plain.rollout.tasks_per_step
    epochs = o.num_epochs or -(-plain.task_budget // plain.rollout.tasks_per_step)
    chosen: dict[str, int | float | None] = {
        "rollout.tasks_per_step": tasks,
        "task_budget": epochs * tasks,
        "policy.learning_rate": o.learning_rate,
        "policy.groups_per_update": o.batch_size and o.batch_size // size,
        "policy.epochs": o.ppo_epochs,
        "model.rank": o.lora_r,
    }
    _require_agreeing(flat(as_dict(plain)), settings, chosen)
    return load_config(path, **(dict(settings) | {name: value for name, value in chosen.items() if value is not None}))


ELSEWHERE = "use `lfo train` with it, and `lfo evaluate`."
OPTIONS = {
    "rollout.tasks_per_step": "--samples_per_epoch",
    "task_budget": "--num_epochs, times --samples_per_epoch,",
    "policy.learning_rate": "--learning_rate",
    "policy.groups_per_update": "--batch_size",
    "policy.epochs": "--ppo_epochs",
    "model.rank": "--lora_r",
}


def _require_agreeing(plain: Mapping, settings: Mapping, chosen: Mapping) -> None:
    """
    Raises:
        ConfigError: a setting says otherwise than the option that stands for it.
    """
    for name in (name for name in OPTIONS if name in settings and chosen[name] not in (None, plain[name])):
        raise ConfigError(
            f"--set {name}={settings[name]} contradicts {OPTIONS[name]} which makes it {chosen[name]}: leave one of"
            " them out."
        )


def _require_fitting(path: str | Path, world: str, plain: RunConfig, o: Options) -> None:
    if plain.env.name != world:
        raise ConfigError(f"{path} is for the environment '{plain.env.name}', not '{world}': {ELSEWHERE}")
    if plain.ppo is None:
        raise ConfigError(f"{path} is no config for PPO, it has no group of settings `ppo`: {ELSEWHERE}")
    size, rank = plain.rollout.group_size, o.lora_r or plain.model.rank
    for name in ("samples_per_epoch", "batch_size"):
        if (getattr(o, name) or 0) % size:
            raise ConfigError(
                f"--{name} {getattr(o, name)} is no multiple of rollout.group_size {size}; set that to 1."
            )
    if o.lora_alpha not in (None, 2 * rank):
        raise ConfigError(
            f"--lora_alpha {o.lora_alpha}: alpha is always twice the rank here, {2 * rank}; leave it out, and scale"
            " --learning_rate instead."
        )


# --- a folder for each epoch -------------------------------------------------------------------


def train_epochs(
    config: RunConfig,
    folder: str | Path | RunFolder,
    resume_from: str | Path | None = None,
    env: Environment | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> Path:
    """`lfo.train.train`, with ``folder/epoch_k/`` after each step, as `write_epoch` says; resumes as that does.

    folder: as for `lfo.train.Run`. resume_from: an epoch's folder, of this run or of another one, after which to go on.

    Raises:
        RunError, CheckpointError: it is none, or of a run with another config.
    """
    run = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    try:
        if distributed.first():
            with run.held():
                if resume_from is not None:
                    go_back(config, Path(resume_from), run.path)
                complete_epoch(run)
        distributed.barrier()
        return train(config, run, env, device, progress, after=write_epoch)
    except CheckpointError as error:
        kept = " A run keeps its number of epochs, --num_epochs: its learning rate falls over all of them."
        raise CheckpointError(f"{error}{kept if 'task_budget' in str(error) else ''}") from None


def write_epoch(run: Run, metrics: Mapping) -> None:
    """What the guide has of an epoch (adapter_config.json, adapter_model.safetensors, training_stats.json), the value
    head where there is one, and the checkpoint from which training goes on."""
    checkpoint = run.save()
    if distributed.first():
        _write(run.folder, checkpoint, run.config, metrics)


def complete_epoch(run: RunFolder) -> None:
    """Write the folder of the epoch that the newest checkpoint ends, where the run was killed between the two."""
    for checkpoint in run.checkpoints[-1:]:
        number = int(checkpoint.stem.removeprefix("step-"))
        steps = [row for row in run.metrics() if row["kind"] == "step" and row["step"] == number]
        if steps and not epoch_folder(run.path, number).exists() and any(run.path.glob("adapters/v*")):
            _write(run, checkpoint, run.config, steps[-1])


def _write(run: RunFolder, checkpoint: Path, config: RunConfig, metrics: Mapping) -> None:
    """An epoch's folder, whole or not at all; the newest adapters are its own."""
    folder, adapter = epoch_folder(run.path, metrics["step"]), run.adapters()[POLICY]
    temporary = folder.with_suffix(".tmp")
    for old in (temporary, folder):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(adapter, temporary)
    for head in adapter.parent.glob("*.safetensors"):
        shutil.copy2(head, temporary)
    shutil.copy2(checkpoint, temporary / CHECKPOINT)
    (temporary / STATS).write_text(json.dumps(training_stats(config, metrics), indent=2) + "\n")
    temporary.rename(folder)


def training_stats(config: RunConfig, metrics: Mapping) -> dict:
    """Of an epoch, from the metrics of its step; seconds: of all its phases."""
    scouts = config.world_model.scouts if config.world_model else 0
    played = metrics["groups_sampled"] * (config.rollout.group_size - scouts)
    counts = {name: round(played * metrics[f"train_{name}"]) for name in COUNTED if f"train_{name}" in metrics}
    logged = {name: metrics.get(logged) for name, logged in LOGGED.items()}
    seconds = round(sum(metrics["seconds"].values()), 3)
    return {"epoch": metrics["step"], "trajectories": played, **counts, **logged, "seconds": seconds}


def epoch_folder(folder: Path, number: int) -> Path:
    return folder / f"epoch_{number}"


def go_back(config: RunConfig, epoch: Path, folder: Path) -> None:
    """Make a run folder what it was at the end of an epoch of this run, or a copy of another run what that was.

    Killed in the middle, the folder goes on from that epoch or from a later one, and may be gone back again.

    Raises:
        RunError: this is no epoch's folder, or the run folder holds another run. CheckpointError: the config differs.
    """
    if not (epoch / STATS).is_file() or not (epoch / CHECKPOINT).is_file():
        raise RunError(f"{epoch} is no epoch's folder ({STATS} or {CHECKPOINT} is missing); give one, e.g. epoch_3.")
    number, source = json.loads((epoch / STATS).read_text())["epoch"], epoch.resolve().parent
    RunFolder(source).require_same(epoch / CHECKPOINT, config)
    if folder.resolve() != source:
        if (folder / "config.json").exists():
            raise RunError(f"{folder} holds a run already; choose another --output_dir, or resume from its own epochs.")
        folder.mkdir(parents=True, exist_ok=True)
        for k in range(1, number + 1):
            shutil.copytree(epoch_folder(source, k), epoch_folder(folder, k), dirs_exist_ok=True)
        _put_back(RunFolder(folder), epoch, number)
        for name in ("provenance.json", "metrics.jsonl", "examples.jsonl", "config.json"):  # the last makes it a run
            if (source / name).exists():
                shutil.copy2(source / name, folder)
    else:
        _put_back(RunFolder(folder), epoch, number)
    for later in folder.glob("epoch_*"):
        if later.name.removeprefix("epoch_").isdecimal() and int(later.name.removeprefix("epoch_")) > number:
            shutil.rmtree(later)


def _put_back(run: RunFolder, epoch: Path, number: int) -> None:
    """Make the checkpoint of an epoch the newest one; at any time there is one to go on from."""
    wanted = run.path / "checkpoints" / f"step-{number:06d}.pt"
    wanted.parent.mkdir(exist_ok=True)
    temporary = wanted.with_suffix(".tmp")
    shutil.copy2(epoch / CHECKPOINT, temporary)
    temporary.replace(wanted)
    for later in reversed(run.checkpoints):
        if later.name > wanted.name:
            later.unlink()


# --- evaluating them ---------------------------------------------------------------------------


class Unadapted(Plain):
    """The base acts, without an adapter: a merged model is one."""

    def before_turn(self, row: Row) -> Script:
        row.actor = BASE
        yield from ()


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """seconds: of playing, without loading. rollouts: greedy, one of each task."""

    name: str
    rollouts: list[Rollout]
    seconds: float

    def row(self) -> dict:
        n, hits = len(self.rollouts), sum(row.success for row in self.rollouts)
        low, high = wilson(hits, n)
        found = means([row.outcome.metrics for row in self.rollouts])
        return {
            "model": self.name,
            "n": n,
            "accuracy": hits / n,
            "low": low,
            "high": high,
            **{name: round(n * found[name]) for name in COUNTED if name in found},
            "mean_reward": sum(row.outcome.reward for row in self.rollouts) / n,
            "seconds": round(self.seconds, 2),
        }


def require_own(base: str | Path, adapter: str | Path) -> Path:
    """The adapter's folder. Bases count as the same by their last name, wherever they lie.

    Raises:
        FileNotFoundError: the folder holds no adapter. ConfigError: it was trained on another base.
    """
    folder = require_folder(adapter)
    trained_on = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] or ""
    if Path(trained_on).name != Path(base).name:
        raise ConfigError(f"{folder} is an adapter of the base {trained_on}, not of {base}: set model.base.")
    return folder


def merge(base: str | Path, adapter: str | Path, out: str | Path) -> Path:
    """Merge an adapter of this very base into a copy of it, in fp32, and write that with the tokenizer into a new
    folder; return the folder.

    Raises:
        FileNotFoundError: there is no adapter. ConfigError: it is another base's, or the folder holds something.
    """
    folder = require_own(base, adapter)
    if Path(out).exists() and (not Path(out).is_dir() or any(Path(out).iterdir())):
        raise ConfigError(f"{out} is there already and stays as it is; name a new folder, or take it away first.")
    merged = PeftModel.from_pretrained(load_base(base), str(folder)).merge_and_unload()
    merged.save_pretrained(str(out))
    load_tokenizer(base).save_pretrained(str(out))
    return Path(out)


def evaluate_adapters(
    config: RunConfig,
    adapters: Sequence[str | Path],
    samples: int,
    split: str = "test",
    env: Environment | None = None,
    device: str = "cpu",
) -> list[Evaluated]:
    """Adapters one after the other on one base that is loaded once. samples: tasks, the first of the split.

    The policy acts without notes. Adapters are peft folders, their weights safetensors or .bin.

    Raises:
        FileNotFoundError: a folder holds no adapter. ConfigError: it is one of another base.
    """
    folders = [require_own(config.model.base, path) for path in adapters]
    table = _Table(config, samples, split, env, device)
    out = []
    for folder in folders:
        table.engine.load({POLICY: folder})
        out.append(table.play(str(folder), Plain(ALONE)))
    return out


def evaluate_merged(
    config: RunConfig,
    folder: str | Path,
    samples: int,
    split: str = "test",
    env: Environment | None = None,
    device: str = "cpu",
) -> Evaluated:
    """A model folder with its adapter merged, instead of the config's base.

    Raises:
        ConfigError: it is no model folder, or the config's engine is a server, which serves another model.
    """
    if not (Path(folder) / "config.json").is_file():
        raise ConfigError(f"{folder} holds no model; merge one there first: --mode merge.")
    if config.rollout.servers:
        raise ConfigError(
            f"rollout.engine is {config.rollout.engine}, where the base is served: set it to torch or vllm."
        )
    merged = dataclasses.replace(config, model=dataclasses.replace(config.model, base=str(folder)))
    return _Table(merged, samples, split, env, device).play(str(folder), Unadapted(ALONE))


class _Table:
    """Tasks, and an engine to play them with."""

    def __init__(self, config: RunConfig, samples: int, split: str, env: Environment | None, device: str):
        self.config, self.engine = config, make_engine(config, device)
        alone = dataclasses.replace(config, world_model=None, feedback=None)
        self.codec, _ = make_coupling(alone, env or make_environment(config.env))
        self.tasks = self.codec.env.tasks(split)[:samples]

    def play(self, name: str, coupling: Plain) -> Evaluated:
        began = time.perf_counter()
        rollouts = play_tasks(self.engine, self.codec, coupling, self.tasks, self.config.rollout, 1)
        return Evaluated(name, rollouts, time.perf_counter() - began)
