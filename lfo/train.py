"""The only loop: sample tasks -> play groups -> learn -> publish adapters -> evaluate -> log.

A run is a folder, written by the first of its processes (`lfo.distributed`)::

    config.json  provenance.json  metrics.jsonl  calls.jsonl (replay buffer)
    adapters/v00012/{policy,world_model}/   checkpoints/step-000010.pt

Every random draw is seeded by (run seed, what it is for, step), so a run that was killed and
resumed writes the same metrics as one that was not, bit for bit on the same machine; only the
entries under "seconds" differ. That holds for asynchronous rollouts, too (`rollout.asynchronous`): a step's rollouts
are sampled while the step before is learned, with the adapters that were published before that, and are done before
the next are published. No version ever depends on who was faster, and nothing is under way at a checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pickle
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch
from tqdm import tqdm

from lfo import distributed
from lfo.config import RunConfig, as_dict, build, completed, derive_seed
from lfo.evaluate import behaviour, play_tasks, reply_rows, rule_accuracy, success_rows
from lfo.learner import POLICY, CheckpointError, Learner, ReplayBuffer
from lfo.objectives import group_advantages, overlong_penalty
from lfo.records import Task, Trajectory, from_dict, read_jsonl, write_jsonl
from lfo.rollout import Engine, group_jobs, make_engine, play
from lfo.sampling import TaskStream, by_group, disguised, informative, shuffled
from lfo.schedule import Due, turns
from lfo.tokens import CallExample, Codec, load_codec
from lfo.world import World, generate_world

REPORTED_PACKAGES = ("torch", "transformers", "peft", "numpy")


@dataclasses.dataclass
class Sampled:
    """All rollouts and probes of a step. version: of the adapters that sampled them; tokens: generated for them, by all
    processes; rate: tokens per second."""

    rows: list[Trajectory]
    version: int
    tokens: int
    rate: float


class Run:
    """State of one training run; `advance` is one step of the loop.

    Sampling has a position of its own (`stream`, `groups`, `sampled`, the steps that were sampled for): with
    asynchronous rollouts it is a step ahead of what was learned (`tasks_seen`, `step`).
    """

    def __init__(self, config: RunConfig, folder: str | Path, world: World | None = None, device: str = "cpu"):
        self.config, self.folder = config, Path(folder)
        self.world = world or generate_world(config.world_seed)
        self.codec = load_codec(config.model, config.world_model.template)
        self.learner = Learner(config, self.codec.pad_id, device)
        self.engine: Engine = make_engine(config, device)
        self.buffer, self.due = ReplayBuffer(), Due()
        tasks = self.world.split("train", config.levels)
        self.stream = TaskStream(tasks, config.seed)
        self.called = {task.task_id: self.world.companies[task.company_id] for task in tasks}
        self.names = sorted({company.name.split()[0] for company in self.called.values()})
        self.step, self.groups, self.version = 0, 0, 0
        self.sampled = self.tasks_seen = 0
        self.ahead: Sampled | None = None  # rollouts of the next step
        self.evaluated_at = -1
        self.seconds: dict[str, float] = {}

    @property
    def done(self) -> bool:
        return self.tasks_seen >= self.config.task_budget

    # --- one step -----------------------------------------------------------------------------

    def advance(self) -> dict:
        """Sample, learn, publish; returns the step's metrics."""
        self.seconds = {}
        trained_before = self.learner.trained_tokens
        factor = lr_factor(self.tasks_seen, self.config.task_budget, self.config.warmup_tasks)
        if self.ahead is None:
            with self._timed("rollout"):
                self.ahead = self._sample()
        now, self.ahead = self.ahead, None
        staleness = {"staleness": self.version - now.version} if self.config.rollout.asynchronous else {}
        rows, kept = now.rows, _kept(now.rows)
        self.tasks_seen += len(by_group(rows))
        before = self.engine.generated_tokens
        dreamt = self._dream()
        dream_tokens = self.engine.generated_tokens - before
        self.engine.sleep()
        with self._sampling_ahead():
            surprise = self._surprise(kept) if self.config.policy.surprise > 0 else {}
            calls = [call for row in rows for call in row.calls]
            if self.config.world_model.shuffle:
                calls = shuffled(calls, derive_seed(self.config.seed, "shuffle", self.step))
            self.buffer.add(calls)  # before dynamic sampling drops groups: failed ones teach most
            rows = [row for row in rows if not row.probe]
            metrics = self._learn(kept + _informative(dreamt), rows, calls, factor)
        with self._timed("publish"):
            self.publish()
        self.step += 1
        dream_tokens, trained = distributed.totals(dream_tokens, self.learner.trained_tokens - trained_before)
        lengths = [len(r.tokens) for r in rows]
        return {
            "kind": "step",
            "step": self.step,
            "tasks": self.tasks_seen,
            "groups_kept": len(by_group(kept)),
            "groups_sampled": len(by_group(rows)),
            "train_success": sum(r.success for r in rows) / len(rows),
            "train_shaped_reward": sum(r.shaped_reward for r in rows) / len(rows),
            "calls_seen": len(self.buffer.examples),
            "tokens_per_rollout": sum(lengths) / len(lengths),
            "lr_factor": factor,
            "sampled_tokens": now.tokens + int(dream_tokens),
            "trained_tokens": int(trained),
            **staleness,
            **_dream_metrics(dreamt),
            **surprise,
            **metrics,
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            "tokens_per_second": now.rate,
        }

    def _sample(self) -> Sampled:
        """The rollouts of the first step that has none."""
        version, tokens, began = self.version, self.engine.generated_tokens, time.perf_counter()
        _, rows = self.sample_groups()
        self.sampled += 1
        tokens = sum(distributed.gather(self.engine.generated_tokens - tokens))
        return Sampled(rows, version, tokens, tokens / (time.perf_counter() - began))

    @contextlib.contextmanager
    def _sampling_ahead(self) -> Iterator[None]:
        """With asynchronous rollouts, those of the next step are sampled beside what is done here, which may take
        neither the engine nor the tasks. Ends when both are done."""
        if not self.config.rollout.asynchronous or self.stream.position >= self.config.task_budget:
            yield
            return
        with ThreadPoolExecutor(1, "rollouts") as beside:
            ahead = beside.submit(self._sample)
            yield
            with self._timed("rollout"):
                self.ahead = ahead.result()

    def sample_groups(self) -> tuple[list[Trajectory], list[Trajectory]]:
        """DAPO's dynamic sampling: (rollouts of informative groups, all rollouts and probes).

        Tasks are sampled until `tasks_per_step` groups are informative, at most `max_refills` more times.
        """
        c = self.config.rollout
        kept: list[Trajectory] = []
        everything: list[Trajectory] = []
        for attempt in range(1 + c.max_refills):
            wanted = c.tasks_per_step - len(by_group(kept))
            wanted = min(wanted, self.config.task_budget - self.stream.position)
            if wanted <= 0:
                break
            rows = self._play(self.stream.take(wanted), attempt)
            everything += rows
            kept += _kept(rows)
        return kept, everything

    def _play(self, tasks: list[Task], attempt: int) -> list[Trajectory]:
        c = self.config
        jobs = []
        for task in tasks:
            seed = derive_seed(c.seed, "episode", self.groups)
            jobs += group_jobs(task, self.groups, seed, c.rollout.group_size, c.world_model.probes)
            self.groups += 1
        return play(
            self.engine, self.codec, self.world, jobs, c.env, c.rollout,
            derive_seed(c.seed, "rollout", self.sampled, attempt),
            predict=c.world_model.predict, imagine=c.world_model.coupling == "imagine",
        )  # fmt: skip

    def _dream(self) -> list[Trajectory]:
        """Groups of training tasks whose calls the world model answers: practice for the policy, and nothing else.

        Their tasks come from a stream of their own and do not count as sampled; real tasks and users are the same
        with and without dreams.
        """
        c, w = self.config, self.config.world_model
        if w.coupling != "dream" or not w.dreams or self.tasks_seen < w.dream_after:
            return []
        seed, before = derive_seed(c.seed, "dream", self.step), self.step * w.dreams
        stream = TaskStream(self.world.split("train", c.levels), derive_seed(c.seed, "dream"), before)
        jobs = [
            job
            for k, task in enumerate(stream.take(w.dreams), start=before)
            for job in group_jobs(task, -1 - k, derive_seed(c.seed, "dreamt episode", k), c.rollout.group_size, 0)
        ]
        with self._timed("dream"):
            return play(self.engine, self.codec, self.world, jobs, c.env, c.rollout, seed, dream=w)

    def _surprise(self, kept: list[Trajectory]) -> dict[str, float]:
        """Reward rollouts for replies that the world model, as it is, did not expect (curiosity, arXiv 1705.05363).

        A rollout's surprise is the mean over all its reply tokens, 0 without a call. Which groups are kept was
        decided on the binary outcome, and group advantages take out what a whole group has in common.
        """
        calls = list(dict.fromkeys(call for row in kept for call in row.calls))
        nats = dict(zip(calls, self.learner.surprise(calls), strict=True))
        means = [
            sum(nats[call] for call in row.calls) / sum(len(call.reply) for call in row.calls) if row.calls else 0.0
            for row in kept
        ]
        for row, mean in zip(kept, means, strict=True):
            row.reward += self.config.policy.surprise * mean
        return {"surprise": sum(means) / len(means)} if means else {}

    def _learn(
        self, kept: list[Trajectory], rows: list[Trajectory], calls: list[CallExample], factor: float
    ) -> dict[str, float]:
        """Joint updates over the informative groups, then replay updates of the world model; means over the updates.

        kept: what the policy learns from; rows: all rollouts of the step; calls: what was heard in them.
        """
        c, metrics = self.config, {}
        world_on = c.world_model.lam > 0
        policy_turn, world_turn, replays = turns(c.world_model, self.step, self.tasks_seen)
        updates = self._updates(kept)
        skips = c.world_model.schedule == "world_first" and not policy_turn  # the first tasks are the world model's
        self.due.add([] if skips else updates, calls if world_on else [], max(1, len(updates)))
        updates, calls, count = self.due.take(policy_turn, world_turn)
        kept = [row for part in updates for row in part]
        listeners: list[Trajectory] = []  # dropped groups, whose replies are learned all the same
        if world_on and c.world_model.template == "trajectory":
            taught = {row.group for row in kept}
            listeners, calls = [row for row in rows if row.group not in taught and row.calls], []
        updates = updates or [[]] * (count if calls or listeners else 0)
        advantages = dict(zip(map(id, kept), advantages_of(kept, c), strict=True))
        with self._timed("joint"):
            own = self.learner.action_logprobs(kept) if c.policy.tis_cap > 0 else []
            own = dict(zip(map(id, kept), own, strict=False))
            for i, part in enumerate(updates * c.policy.epochs):
                share = []
                if i < count:
                    part, share = part + listeners[i::count], calls[i::count]
                seed = derive_seed(c.seed, "joint", self.step, i)
                if part or share:
                    their = [advantages.get(id(r)) for r in part]
                    before = [own.get(id(r), []) for r in part] if own else None
                    self._note(metrics, self.learner.joint_update(part, their, share, factor, seed, before))
        with self._timed("replay"):
            for i in range(replays if world_on and world_turn and self.buffer.examples else 0):
                seed = derive_seed(c.seed, "replay", self.step, i)
                batch = self._disguise(self.buffer.draw(c.world_model.batch, seed), seed)
                self._note(
                    metrics, {f"replay/{k}": v for k, v in self.learner.replay_update(batch, factor, seed).items()}
                )
        return {k: sum(v) / len(v) for k, v in metrics.items()}

    def _disguise(self, calls: list[CallExample], seed: int) -> list[CallExample]:
        """`world_model.disguise` of the calls as calls at a company that nobody knows (`sampling.disguised`)."""
        rng, out = random.Random(derive_seed(seed, "disguise")), []
        for call in calls:
            if rng.random() < self.config.world_model.disguise:
                text = self.codec.decode(call.prompt)
                text = disguised(text, call.reply_text, self.called[call.task_id], self.names, rng)
                call = dataclasses.replace(call, prompt=tuple(self.codec.encode(text)))
            out.append(call)
        return out

    def _updates(self, kept: list[Trajectory]) -> list[list[Trajectory]]:
        """The rollouts of `groups_per_update` groups for each optimizer step of the policy."""
        groups, size = list(by_group(kept).values()), self.config.policy.groups_per_update
        return [[row for group in groups[i : i + size] for row in group] for i in range(0, len(groups), size)]

    def publish(self) -> None:
        """Write the adapters under a new version, load them into the engine, remove the version before last."""
        self.version += 1
        folder = self.folder / "adapters" / f"v{self.version:05d}"
        temporary = folder.with_suffix(".tmp")
        if distributed.first():
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
        names = self.learner.save_adapters(temporary)
        if distributed.first():
            temporary.rename(folder)
        distributed.barrier()
        self.engine.load({name: folder / name for name in names})
        if distributed.first():
            shutil.rmtree(self.folder / "adapters" / f"v{self.version - 2:05d}", ignore_errors=True)

    # --- evaluation ---------------------------------------------------------------------------

    def evaluate(self) -> list[dict]:
        """Success on `eval_splits` (validation: known companies, test: new ones), and what the world model knows."""
        c, out = self.config, []
        self.evaluated_at = self.tasks_seen
        has_world_model = c.world_model.predict != "nothing"
        for split in c.eval_splits:
            tasks = self.world.split(split, c.levels)[: c.eval_tasks]
            played = (self.engine, self.codec, self.world, tasks, c, derive_seed(c.seed, split), c.eval_episodes)
            rows = play_tasks(*played)
            where = {"tasks": self.tasks_seen, "step": self.step, "split": split}
            out += [{"kind": "success", **where, **row} for row in success_rows(rows, tasks)]
            if c.policy.internalise > 0:
                unaided = success_rows(play_tasks(*played, aided=False), tasks)
                out += [{"kind": "unaided", **where, **row} for row in unaided]
            out.append({"kind": "behaviour", **where, **behaviour(rows)})
            if has_world_model:
                adapter = self.learner.world_adapter
                calls = [call for row in rows for call in row.calls][:200]
                out += [{"kind": "reply", **where, **r} for r in reply_rows(self.engine, self.codec, calls, adapter)]
                companies = sorted({t.company_id for t in self.world.split(split)})
                known = rule_accuracy(self.engine, self.codec, self.world, companies, adapter)
                out.append({"kind": "rules", **where, **known})
        return out

    # --- checkpoints --------------------------------------------------------------------------

    def save(self) -> Path:
        """Write a checkpoint atomically and keep the last two."""
        folder = self.folder / "checkpoints"
        path = folder / f"step-{self.step:06d}.pt"
        state = {
            "config": json.dumps(as_dict(self.config), sort_keys=True),
            "learner": self.learner.state(),
            "position": self.stream.position,
            "groups": self.groups,
            "step": self.step,
            "version": self.version,
            "evaluated_at": self.evaluated_at,
            "calls": len(self.buffer.examples),
            "due": self.due.to_json(),
            "ahead": json.dumps(self.ahead and dataclasses.asdict(self.ahead)),
            "metrics_lines": _line_count(self.folder / "metrics.jsonl"),
        }
        if not distributed.first():
            return path
        folder.mkdir(parents=True, exist_ok=True)
        write_jsonl(self.folder / "calls.jsonl", self.buffer.examples)
        temporary = path.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(path)
        for old in sorted(folder.glob("step-*.pt"))[:-2]:
            old.unlink()
        return path

    def resume(self) -> bool:
        """Go on from the newest checkpoint of the folder; False where there is none.

        Raises:
            CheckpointError: the folder belongs to a run with another config.
        """
        found = sorted((self.folder / "checkpoints").glob("step-*.pt"))
        if not found:
            return False
        try:
            state = torch.load(found[-1], map_location="cpu", weights_only=True)
            mine, theirs = as_dict(self.config), completed(json.loads(state["config"]))
            mine["rollout"]["servers"] = theirs["rollout"]["servers"] = []  # where servers run may change
            mine["distributed"] = theirs["distributed"] = {}  # another layout, the same run
        except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError):
            raise CheckpointError(f"{found[-1]} is not a checkpoint of a run; delete it to go on without it.") from None
        if differing := _differences(json.loads(json.dumps(mine)), theirs):
            raise CheckpointError(
                f"{found[-1]} was written with another config ({', '.join(differing)} differ);"
                " resume with the old config or choose a new run folder."
            )
        self.learner.load_state(state["learner"])
        path = self.folder / "calls.jsonl"
        calls = read_jsonl(path, CallExample)[: state["calls"]] if path.exists() else []
        if len(calls) < state["calls"]:
            raise CheckpointError(f"{path} lacks calls that the checkpoint counts on; start again in a new run folder.")
        self.buffer, self.due = ReplayBuffer(calls), Due.from_json(state.get("due", "{}"))
        self.stream.position, self.groups, self.step = state["position"], state["groups"], state["step"]
        self.version, self.evaluated_at = state["version"], state["evaluated_at"]
        self._resume_ahead(json.loads(state.get("ahead", "null")))
        if distributed.first():
            _keep_lines(self.folder / "metrics.jsonl", state["metrics_lines"])
        return True

    def _resume_ahead(self, data: dict | None) -> None:
        """Take up the rollouts that were sampled ahead of a checkpoint; None: there were none."""
        self.ahead = from_dict(Sampled, data, "what was sampled ahead") if data else None
        rows = self.ahead.rows if self.ahead else []
        for row in rows:
            row.calls = [from_dict(CallExample, call, "a call") for call in row.calls]
        self.sampled = self.step + bool(rows)
        self.tasks_seen = self.stream.position - len(by_group(rows))

    # --- small things -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    @staticmethod
    def _note(metrics: dict[str, list[float]], new: dict[str, float]) -> None:
        for name, value in new.items():
            metrics.setdefault(name, []).append(value)

    def log(self, rows: list[dict]) -> None:
        if not distributed.first():
            return
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)


def train(
    config: RunConfig, folder: str | Path, world: World | None = None, device: str = "cpu", progress: bool = True
) -> Path:
    """Run to the end of the task budget, resuming where the folder already holds a part of it.

    Returns the run folder. Ctrl-C and SIGTERM save a checkpoint and say how to go on. Started by a
    launcher (`accelerate launch`, `torchrun`), its processes train one model on one run folder, which
    all of them must see; another number of processes may resume it.
    """
    distributed.start(device)
    run = Run(config, folder, world, device)
    main = distributed.first()
    run.folder.mkdir(parents=True, exist_ok=True)
    if not run.resume() and main:
        (run.folder / "metrics.jsonl").write_text("")
    if run.done and run.evaluated_at == run.tasks_seen:
        return run.folder
    if main:
        (run.folder / "config.json").write_text(json.dumps(as_dict(config), indent=2) + "\n")
        write_provenance(run.folder, config)
    run.version -= bool(run.version)  # publish again under the version that the checkpoint names
    run.publish()
    for later in (run.folder / "adapters").glob("v*") if main else ():  # of a run that was killed after the checkpoint
        if later.name > f"v{run.version:05d}":
            shutil.rmtree(later)
    bar = tqdm(total=config.task_budget, initial=run.tasks_seen, unit="task", disable=not (progress and main),
               desc=config.name)  # fmt: skip
    with _interruptible() as interrupted, bar:
        while True:
            if _evaluation_due(run):
                began = time.perf_counter()
                rows = run.evaluate()
                run.log(
                    [
                        *rows,
                        {
                            "kind": "seconds",
                            "tasks": run.tasks_seen,
                            "seconds": {"evaluate": time.perf_counter() - began},
                        },
                    ]
                )
            (stop,) = distributed.totals(len(interrupted))  # a signal may reach one process alone
            if run.done or stop:
                break
            metrics = run.advance()
            run.log([metrics])
            bar.update(run.tasks_seen - bar.n)
            bar.set_postfix(
                success=f"{metrics['train_success']:.2f}", loss=f"{metrics.get('policy/loss', math.nan):.3f}",
                tok_s=f"{metrics['tokens_per_second']:.0f}", refresh=False,
            )  # fmt: skip
            if run.step % config.checkpoint_every == 0 and not run.done:
                run.save()
        path = run.save()
    if stop:
        if main:
            print(f"interrupted: saved {path}; start the same command again to go on from there.", file=sys.stderr)
        raise KeyboardInterrupt
    return run.folder


def _informative(rows: Sequence[Trajectory]) -> list[Trajectory]:
    """The rollouts of the groups that have something to teach the policy."""
    return [row for group in by_group(rows).values() if informative(group) for row in group]


def _kept(rows: Sequence[Trajectory]) -> list[Trajectory]:
    """What the policy learns from among the rollouts of a step."""
    return _informative([row for row in rows if not row.probe])


def _dream_metrics(rows: Sequence[Trajectory]) -> dict[str, float]:
    if not rows:
        return {}
    return {
        "dreamt_groups": len(by_group(rows)),
        "dreamt_groups_kept": len(by_group(_informative(rows))),
        "dream_success": sum(r.success for r in rows) / len(rows),
    }


def _evaluation_due(run: Run) -> bool:
    """At the start, whenever another `eval_every` tasks were passed, and at the end."""
    if run.evaluated_at < 0 or (run.done and run.evaluated_at < run.tasks_seen):
        return True
    return run.tasks_seen // run.config.eval_every > run.evaluated_at // run.config.eval_every


@contextlib.contextmanager
def _interruptible() -> Iterator[list]:
    """A list that becomes truthy on Ctrl-C or SIGTERM, so that the step in progress is finished first."""
    received: list[int] = []

    def note(number, frame):
        if received and distributed.size() == 1:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait (a launcher sends its own after the first)
        received.append(number)

    signals = (signal.SIGINT, signal.SIGTERM)
    try:
        previous = [signal.signal(s, note) for s in signals]
    except ValueError:  # not the main thread: nothing to catch
        yield received
        return
    try:
        yield received
    finally:
        for s, handler in zip(signals, previous, strict=True):
            signal.signal(s, handler)


def lr_factor(tasks_seen: int, budget: int, warmup: int) -> float:
    """Learning-rate factor: linear warm-up over `warmup` tasks, then a cosine from 1 to 0.1 at the budget."""
    if tasks_seen < warmup:
        return (tasks_seen + 1) / warmup
    done = min(1.0, (tasks_seen - warmup) / max(1, budget - warmup))
    return 0.55 + 0.45 * math.cos(math.pi * done)


def advantages_of(rows: Sequence[Trajectory], config: RunConfig) -> list[float]:
    """Group-relative advantages of reward plus soft overlong penalty; probes have 0 and no part in their group."""
    played = [r for r in rows if not r.probe]
    if not played:
        return [0.0] * len(rows)
    lengths = torch.tensor([float(len(r.tokens)) for r in played])
    penalty = overlong_penalty(lengths, config.rollout.max_tokens, config.policy.overlong_buffer)
    rewards = torch.tensor([r.reward for r in played]) + penalty
    advantages = iter(group_advantages(rewards, torch.tensor([r.group for r in played])).tolist())
    return [0.0 if r.probe else next(advantages) for r in rows]


def provenance(config: RunConfig | None = None) -> dict:
    """What a figure or table needs to be traced: commit, packages, machine, config and seeds."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    facts = {
        "commit": commit.stdout.strip() or "unknown",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in REPORTED_PACKAGES},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads",
        "processes": distributed.size(),
    }
    return facts | ({"seed": config.seed, "world_seed": config.world_seed, "config": as_dict(config)} if config else {})


def write_provenance(folder: Path, config: RunConfig) -> None:
    (folder / "provenance.json").write_text(json.dumps(provenance(config), indent=2) + "\n")


def published_adapters(folder: str | Path) -> dict[str, Path]:
    """The newest adapters of a run folder, by name.

    Raises:
        FileNotFoundError: the run has published none.
    """
    versions = sorted(p for p in (Path(folder) / "adapters").glob("v*") if p.is_dir() and p.suffix != ".tmp")
    if not versions:
        raise FileNotFoundError(f"{folder} holds no adapters; train there first: `lfo train --run {folder}`.")
    return {p.name: p for p in sorted(versions[-1].iterdir()) if p.is_dir()}


def up_to_date(folder: str | Path, file: str) -> bool:
    """Whether a measurement lies in a run folder that was not trained again since: no adapters there are newer."""
    path = Path(folder) / file
    adapters = Path(folder).glob("adapters/v*/*/adapter_model.safetensors")
    return path.exists() and all(adapter.stat().st_mtime <= path.stat().st_mtime for adapter in adapters)


def write_measured(rows: list[dict], folder: str | Path, file: str) -> pd.DataFrame:
    """Write a measurement into a run folder, whole or not at all; return it as it will be read."""
    path = Path(folder) / file
    temporary = path.with_suffix(".tmp")
    pd.DataFrame(rows).to_csv(temporary, index=False)
    temporary.replace(path)
    return pd.read_csv(path, keep_default_na=False)  # empty texts stay texts


def load_for_playing(folder: str | Path, device: str = "cpu") -> tuple[Engine, Codec]:
    """Engine and codec of a finished (or interrupted) run, with its newest adapters loaded."""
    adapters = published_adapters(folder)
    if POLICY not in adapters:
        raise FileNotFoundError(f"{folder} has no policy adapter.")
    config = build(RunConfig, json.loads((Path(folder) / "config.json").read_text()))
    engine = make_engine(config, device)
    engine.load(adapters)
    return engine, load_codec(config.model, config.world_model.template)


def _line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def _keep_lines(path: Path, count: int) -> None:
    """Drop what was logged after the checkpoint: it will be logged again."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[:count]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.replace(path)


def _differences(mine: dict, theirs: dict, prefix: str = "") -> list[str]:
    """Dotted names of the settings that differ."""
    out = []
    for key in sorted(set(mine) | set(theirs)):
        a, b = mine.get(key), theirs.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            out += _differences(a, b, f"{prefix}{key}.")
        elif a != b:
            out.append(f"{prefix}{key}")
    return out
