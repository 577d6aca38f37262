"""The only loop: sample tasks -> play groups -> learn -> publish adapters -> evaluate -> log.

A run is a folder (`lfo.runs.RunFolder`), written by the first of its processes (`lfo.distributed`). Every random draw
is seeded by (run seed, what it is for, step), so a run that was killed and resumed writes the same metrics as one that
was not, bit for bit on the same machine; only "seconds" and "tokens_per_second" differ. That holds for asynchronous
rollouts, too (`rollout.asynchronous`): a step's rollouts are sampled while the step before is learned, with the
adapters that were published before that, and are done before the next are published. No version ever depends on who was
faster, and nothing is under way at a checkpoint. Names no environment and no coupling.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from lfo import distributed
from lfo.config import ConfigError, RunConfig, derive_seed
from lfo.couplings import make_coupling
from lfo.couplings.noted import as_read
from lfo.envs import make_environment
from lfo.evaluate import evaluation_rows, means
from lfo.learn.learner import Learner
from lfo.learn.objectives import explained_variance, make_objective
from lfo.learn.replay import ReplayBuffer, Successes, imitated, shuffled, thinned
from lfo.learn.schedule import Due, turns
from lfo.protocols import Engine, Environment, Question
from lfo.rollout import make_engine
from lfo.rollout.play import Waves, play
from lfo.rollout.tasks import TaskStream, informative
from lfo.runs import RunFolder, whole
from lfo.text.base import bf16_pays
from lfo.types import APART, Encoded, Example, Record, Rollout, Sample, by_group, from_json, to_json

REPLAYED = 16  # examples of one replay update


@dataclasses.dataclass
class Sampled(Record):
    """All rollouts of a step. version: of the adapters that sampled them; tokens: generated for them, by all
    processes; rate: tokens per second."""

    rows: list[Rollout]
    version: int
    tokens: int
    rate: float


# What a checkpoint keeps of a `Run` as JSON, by attribute.
RECORDS = {"due": Due, "successes": Successes, "corrected": Successes, "ahead": Sampled | None}


class Run:
    """State of one training run; `advance` is one step of the loop.

    folder: a path, or a `RunFolder` that tells a tracker what is logged there; ConfigError where the config names
    another tracker. Sampling has a position of its own (`stream`, `sampled`, the steps that were sampled for): with
    asynchronous rollouts it is a step ahead of what was learned (`tasks_seen`, `step`).
    """

    def __init__(self, config: RunConfig, folder: str | Path, env: Environment | None = None, device: str = "cpu"):
        self.config, self.folder = config, folder if isinstance(folder, RunFolder) else RunFolder(folder)
        if config.tracker != self.folder.tracker:
            remedy = "use `lfo train`, or train in lfo.lab.tracking.Tracked(folder, config)"
            raise ConfigError(f"tracker is {config.tracker}, and {self.folder.tracker} is told: {remedy}.")
        self.env = env or make_environment(config.env)
        self.codec, self.coupling = make_coupling(config, self.env)
        self.objective = make_objective(config)
        self.bf16 = uses_bf16(config, self.folder, device)
        self.learner = Learner(config, self.coupling.layout, self.objective, self.codec.pad_id, device, self.bf16)
        self.engine: Engine = make_engine(config, device)
        distinct = not config.world_model or config.world_model.replay == "distinct"
        self.buffer = ReplayBuffer(lambda e: bool(self.env.knowledge.cases(e.question)), distinct)
        self.due, self.successes, self.corrected = Due(), Successes(), Successes()
        self.stream = TaskStream(self.env.tasks("train"), config.seed)
        self.step, self.version = 0, 0
        self.sampled = self.tasks_seen = 0
        self.ahead: Sampled | None = None  # rollouts of the next step
        self.evaluated_at = -1
        self.seconds: dict[str, float] = {}

    @property
    def done(self) -> bool:
        return self.tasks_seen >= self.config.task_budget

    def begin(self) -> bool:
        """Go on from the newest checkpoint (`save` writes one), or start anew: adapters of a run that left none are
        removed, its metrics put aside. Config and provenance are written, the adapters published; neither, and False,
        where the run is finished. Of several processes each calls `distributed.start` first.

        Raises:
            CheckpointError: the folder belongs to a run with another config.
        """
        if not self.resume():
            if self.folder.finished(self.config):  # its checkpoints are gone, and were no longer needed
                return False
            if distributed.first():
                self.folder.keep_metrics(0)
        adapters = [self.folder.version(self.version) / name for name in self.learner.layout.names]
        if self.done and self.evaluated_at == self.tasks_seen and all(map(whole, adapters)):
            return False
        if distributed.first():
            facts = {"processes": distributed.size(), "device": str(self.learner.device), "bf16": self.bf16}
            self.folder.begin(self.config, **facts)
        self.version -= bool(self.version)  # publish again under the version that the checkpoint names
        self.publish()
        if distributed.first():
            self.folder.drop_versions(after=self.version)
        return True

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
        kept = self._kept(now.rows)
        self.tasks_seen += len(by_group(now.rows))
        generated = self.engine.generated_tokens
        dreamt = self._practise()
        generated = self.engine.generated_tokens - generated
        self.engine.sleep()
        examples = [example for row in now.rows for example in row.examples]
        if self.config.world_model and self.config.world_model.shuffle:
            examples = shuffled(examples, derive_seed(self.config.seed, "shuffle", self.step))
        self.buffer.add(examples)  # before dynamic sampling drops groups: failed ones teach most
        self.coupling.hear(examples)  # before anybody samples ahead with it
        with self._sampling_ahead():
            curious = self._curiosity(kept)
            rows = [row for row in now.rows if not row.scout]
            self.corrected.add(self.coupling.corrected(rows))
            learned = self._learn(kept + self._kept(dreamt), rows, examples, factor)
        if self.config.policy.imitate:
            self.successes.add([row for row in rows if not row.guided])  # for the steps to come; its own
        self.learner.follow()
        with self._timed("publish"):
            self.publish()
        self.step += 1
        generated, trained = distributed.totals(generated, self.learner.trained_tokens - trained_before)
        return {
            "kind": "step",
            "step": self.step,
            "tasks": self.tasks_seen,
            "groups_kept": len(by_group(kept)),
            **_of_rollouts(rows),
            **self.coupling.metrics(rows),
            "examples_seen": len(self.buffer.examples),
            "lr_factor": factor,
            "sampled_tokens": now.tokens + int(generated),
            "trained_tokens": int(trained),
            **staleness,
            **(_of_dreams(dreamt) if dreamt else {}),
            **curious,
            **learned,
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            "tokens_per_second": now.rate,
        }

    def _sample(self) -> Sampled:
        """The rollouts of the first step that has none."""
        version, tokens, began = self.version, self.engine.generated_tokens, time.perf_counter()
        rows = self.sample_groups()
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

    def sample_groups(self) -> list[Rollout]:
        """All rollouts of a step, scouts included.

        Tasks are sampled until `tasks_per_step` groups are kept, at most `max_refills` more times: DAPO's dynamic
        sampling. Where every rollout counts by itself, none is dropped.
        """
        c, rows = self.config.rollout, []
        for attempt in range(1 + c.max_refills):
            wanted = c.tasks_per_step - len(by_group(self._kept(rows)))
            wanted = min(wanted, self.config.task_budget - self.stream.position)
            if wanted <= 0:
                break
            groups, first = [], self.stream.position
            for number, task in enumerate(self.stream.take(wanted), first):
                seed = derive_seed(self.config.seed, "episode", number)
                groups.append(self.coupling.waves(task, number, seed, c.group_size))
            rows += self._play(groups, derive_seed(self.config.seed, "rollout", self.sampled, attempt))
        self.sampled += 1
        return rows

    def _kept(self, rows: Sequence[Rollout]) -> list[Rollout]:
        """What the policy learns from: informative groups, or whatever it played."""
        return informative(rows) if self.objective.grouped else [row for row in rows if not row.scout]

    def _play(self, groups: Sequence[Waves], seed: int) -> list[Rollout]:
        return play(self.engine, self.codec, groups, self.coupling, self.config.rollout, seed, self.predict)

    @property
    def predict(self) -> str | None:
        """The calls whose answers are kept: for the world model, or for whoever deals out other tasks' feedback."""
        w, f = self.config.world_model, self.config.feedback
        heard = next(iter(self.env.knowledge.learned)) if f and f.source == "shuffled" else None
        return w.predict if w else heard

    def _practise(self) -> list[Rollout]:
        """Rollouts besides the sampled ones, for the policy alone, if the coupling has any."""
        groups = self.coupling.practice(self.step, self.tasks_seen)
        if not groups:
            return []
        with self._timed("dream"):
            return self._play(groups, derive_seed(self.config.seed, "dream", self.step))

    def _curiosity(self, kept: list[Rollout]) -> dict[str, float]:
        """Reward rollouts for replies that the world model, as it is, did not expect (curiosity, arXiv 1705.05363).

        A rollout's surprise is the mean over all its reply tokens, 0 without a call. Which groups are kept was
        decided on the binary outcome, and group advantages take out what a whole group has in common.
        """
        w = self.config.world_model
        if not w or not w.curiosity:
            return {}
        asked = list(dict.fromkeys(example.encoded for row in kept for example in row.examples))
        nats = dict(zip(asked, self.learner.surprise(asked), strict=True))
        surprises = []
        for row in kept:
            heard = [example.encoded for example in row.examples]
            surprise = sum(nats[e] for e in heard) / max(1, sum(len(e.reply) for e in heard))
            row.outcome = dataclasses.replace(row.outcome, reward=row.outcome.reward + w.curiosity * surprise)
            surprises.append(surprise)
        return {"surprise": sum(surprises) / len(surprises)} if surprises else {}

    # --- learning -----------------------------------------------------------------------------

    def _learn(
        self, kept: list[Rollout], rows: list[Rollout], examples: list[Example], factor: float
    ) -> dict[str, float]:
        """Joint updates over what was kept, then replay updates of the world model and of what feedback has
        corrected; means over the updates.

        kept: what the policy learns from; rows: all rollouts of the step; examples: what was heard in them.
        """
        c, w, f = self.config, self.config.world_model, self.config.feedback
        turn = turns(w, self.step, self.tasks_seen, c.task_budget)
        hears = bool(w and w.lam > 0 and self.coupling.layout.listener)
        updates = self._updates(kept) if c.policy.learning_rate and self.coupling.rewarded else []
        self.due.add([] if turn.skips else updates, examples if hears else [], max(1, len(updates)))
        updates, examples, count = self.due.take(turn.policy, turn.world_model)
        listening: list[Sample] = []
        passing = hears and self.codec.in_passing
        if passing or (f and f.learn == "kl" and turn.policy):  # dropped groups teach by replies, or have a teacher
            taught, examples = {row.group for update in updates for row in update}, [] if passing else examples
            listening = [s for row in rows if row.group not in taught for s in self.coupling.views(row, None)]
        replays = turn.replays if hears and turn.world_model and self.buffer.examples else 0
        corrections = f.updates if f and turn.policy and self.corrected.rollouts else 0
        with self._timed("joint"):
            joint = list(self._joint(updates, listening, examples, count, factor))
        with self._timed("replay"):
            return means([*joint, *self.replay(replays, corrections, factor)])

    def replay(self, replays: int, corrections: int, factor: float) -> Iterator[dict[str, float]]:
        """So many updates of the world model, then of the policy on what feedback has corrected."""
        members = self.coupling.layout.listeners
        for i, member in itertools.product(range(replays), members):
            own = [member] if member != members[0] else []  # the first one draws what it would draw alone
            seed = derive_seed(self.config.seed, "replay", self.step, i, *own)
            found = self.learner.replay(self._replayed(seed), factor, seed, member)
            yield {f"replay/{name}": value for name, value in found.items()}
        for i in range(corrections):
            seed = derive_seed(self.config.seed, "corrected", self.step, i)
            found = self.learner.update(self._corrected(seed), [], factor, seed)
            yield {f"corrected/{name.removeprefix('policy/')}": value for name, value in found.items()}

    def _joint(self, updates, listening: list[Sample], examples: list[Example], count: int, factor: float):
        """One optimizer step per update (and pass over it), with its share of the examples; then one for each share
        that is left, where the world model waited for its turn."""
        c = self.config
        assigned = self._assigned(updates)
        if self.objective.uses_values and updates:
            yield {"policy/explained_variance": explained_variance(assigned)}
        one = iter(assigned)
        parts = [[v for row in update for v in self.coupling.views(row, next(one))] for update in updates]
        if not parts and (examples or listening):
            parts = [[] for _ in range(max(1, count))]
        for i, part in enumerate(parts):
            part += listening[i :: len(parts)]
        if c.policy.tis_cap > 0:
            judged = [s for part in parts for s in part if s.how not in APART]
            for sample, own in zip(judged, self.learner.action_logprobs(judged), strict=True):
                sample.own = own  # as it is at the start of the step
        passes = [*self._passes(parts)]
        waited = [[]] * (count - len(passes))  # shares of examples for more updates than this step has
        for i, part in enumerate(passes + waited):
            seed, learns = derive_seed(c.seed, "joint", self.step, i), updates and i < len(passes)
            again = self.successes.draw(c.rollout.group_size, derive_seed(seed, "imitate")) if learns else []
            samples = self.learner.taught(part) + [imitated(row, c.policy.imitate) for row in again]
            share = [as_read(e, self.codec, self.coupling) for e in examples[i::count]] if i < count else []
            if samples or share:
                yield self.learner.update(samples, share, factor, seed)

    def _assigned(self, updates: Sequence[Sequence[Rollout]]) -> list[Sample]:
        """What is learned from the rollouts of all updates, in their order: they are one batch to the objective."""
        groups = [group for update in updates for group in by_group(update).values()]
        rows = [row for group in groups for row in group]
        values = self.learner.values(rows) if self.objective.uses_values and rows else None
        return self.objective.assign(groups, values)

    def _passes(self, parts: list[list[Sample]]) -> Iterator[list[Sample]]:
        """The samples of every optimizer step of every pass: the same in each pass, or where every rollout counts by
        itself dealt out anew, into as many parts."""
        for number in range(self.config.policy.epochs):
            if self.objective.grouped:
                yield from parts
                continue
            samples = [sample for part in parts for sample in part]
            random.Random(derive_seed(self.config.seed, "pass", self.step, number)).shuffle(samples)
            yield from (samples[i :: len(parts)] for i in range(len(parts)))

    def _updates(self, kept: Sequence[Rollout]) -> list[list[Rollout]]:
        """The rollouts of `groups_per_update` groups for each optimizer step of the policy."""
        groups, size = list(by_group(kept).values()), self.config.policy.groups_per_update
        return [[row for group in groups[i : i + size] for row in group] for i in range(0, len(groups), size)]

    def _replayed(self, seed: int) -> list[Encoded]:
        """Examples for a replay update; `anonymise` of them made to look unknown, all with `word_dropout`."""
        rng, out = random.Random(derive_seed(seed, "anonymise")), []
        for example in self.buffer.draw(REPLAYED, seed):
            if rng.random() < self.config.world_model.anonymise:
                request, past, call = self.env.knowledge.anonymise(example, rng)
                out.append(self.codec.encoded(Question(request, tuple(past), call), example.reply))
            else:
                out.append(as_read(example, self.codec, self.coupling))
        share, rng = self.config.world_model.word_dropout, random.Random(derive_seed(seed, "words"))
        return [thinned(example, share, rng, self.codec.tags) for example in out] if share else out

    def _corrected(self, seed: int) -> list[Sample]:
        """Corrected attempts for a replay update; `anonymise` of them made to look unknown."""
        rng, out = random.Random(derive_seed(seed, "anonymise")), []
        for row in self.corrected.draw(REPLAYED, seed):
            if rng.random() < self.config.feedback.anonymise:
                change = self.env.knowledge.disguise(row.task_id, rng)
                tokens, roles = self.codec.rewritten(row.tokens, row.roles, change)
                row = dataclasses.replace(row, tokens=tokens, roles=roles, logprobs=[0.0] * len(tokens))
            out.append(imitated(row))
        return out

    def publish(self) -> None:
        """Write the adapters under a new version, load them into the engine, remove the version before last."""
        self.version += 1
        folder = self.folder.version(self.version)
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
            shutil.rmtree(self.folder.version(self.version - 2), ignore_errors=True)

    def evaluate(self) -> list[dict]:
        """Rows of metrics: how the run does now."""
        self.evaluated_at, began = self.tasks_seen, time.perf_counter()
        rows = evaluation_rows(self.engine, self.codec, self.coupling, self.config, self.buffer.examples)
        seconds = time.perf_counter() - began
        if distributed.first():
            tqdm.write(evaluation_line(self, rows, seconds), file=sys.stderr)
        where = {"tasks": self.tasks_seen, "step": self.step}
        rows = [{"kind": row["kind"], **where, **row} for row in rows]
        return [*rows, {"kind": "seconds", "tasks": self.tasks_seen, "seconds": {"evaluate": seconds}}]

    # --- checkpoints --------------------------------------------------------------------------

    def save(self) -> Path | None:
        """Write a checkpoint; every process has to ask, the first one writes."""
        state = {
            "learner": self.learner.state(),
            "position": self.stream.position,
            "step": self.step,
            "version": self.version,
            "evaluated_at": self.evaluated_at,
            "objective": self.objective.state,
            **{name: to_json(getattr(self, name)) for name in RECORDS},
        }
        return self.folder.save(self.step, self.config, state, self.buffer.examples) if distributed.first() else None

    def resume(self) -> bool:
        """Go on from the newest checkpoint of the folder that can be read; False where there is none.

        Raises:
            CheckpointError: the folder belongs to a run with another config.
            RecordError: the checkpoint is of a version that kept other records.
        """
        if (found := self.folder.load(self.config)) is None:
            return False
        state, examples = found
        self.learner.load_state(state["learner"])
        self.buffer.add(examples)
        where = f"{self.folder.path}, to be begun anew in another folder"
        for name, kind in RECORDS.items():
            if name in state:  # earlier versions had none of what feedback has corrected
                setattr(self, name, from_json(kind, state[name], where))
        self.objective.state = state.get("objective", {})  # none before PPO
        self.coupling.hear(examples)
        self.stream.position, self.step = state["position"], state["step"]
        self.version, self.evaluated_at = state["version"], state["evaluated_at"]
        waiting = self.ahead.rows if self.ahead else []
        self.sampled = self.step + bool(waiting)
        self.tasks_seen = self.stream.position - len(by_group(waiting))
        if distributed.first():
            self.folder.keep_metrics(state["metrics"])
        return True

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def log(self, rows: list[dict]) -> None:
        if distributed.first():
            self.folder.log(rows)


def train(
    config: RunConfig,
    folder: str | Path,
    env: Environment | None = None,
    device: str = "cpu",
    progress: bool = True,
    after: Callable[[Run, dict], None] | None = None,
) -> Path:
    """Run to the end of the task budget, resuming where the folder already holds a part of it.

    Returns the run folder. Ctrl-C and SIGTERM save a checkpoint and say how to go on. Started by a
    launcher (`accelerate launch`, `torchrun`), its processes train one model on one run folder, which
    all of them must see; another number of processes may resume it. Raises RunError where somebody else trains there.
    after: called after each step by every process, with the run and the step's metrics.
    """
    distributed.start(device)
    run = Run(config, folder, env, device)
    with run.folder.held() if distributed.first() else contextlib.nullcontext():
        if not run.begin():
            return run.folder.path
        hidden = not (progress and distributed.first())
        bar = tqdm(total=config.task_budget, initial=run.tasks_seen, unit="task", desc=config.name, disable=hidden)
        with _interruptible() as interrupted, bar:
            stop = _go(run, bar, interrupted, after)
            path = run.save()
    if stop:
        if distributed.first() and not run.done:
            print(f"interrupted: saved {path}; start the same command again to go on from there.", file=sys.stderr)
        raise KeyboardInterrupt
    return run.folder.path


def _go(run: Run, bar: tqdm, interrupted: list, after: Callable[[Run, dict], None] | None) -> bool:
    """Steps and evaluations until the run is done or interrupted; whether it was interrupted."""
    while True:
        if _evaluation_due(run):
            run.log(run.evaluate())
        (stop,) = distributed.totals(len(interrupted))  # a signal may reach one process alone
        if run.done or stop:
            return bool(stop)
        metrics = run.advance()
        run.log([metrics])
        bar.update(run.tasks_seen - bar.n)
        loss = f"{metrics['policy/loss']:.2f}" if "policy/loss" in metrics else "-"  # no group had an advantage
        bar.set_postfix(success=f"{metrics['train_success']:.2f}", loss=loss, refresh=False)
        if run.done or run.step % run.config.checkpoint_every == 0:
            run.save()  # also before the last evaluation, whose rows say that the run is finished
        if after:
            after(run, metrics)


def uses_bf16(config: RunConfig, folder: RunFolder, device: str = "cpu") -> bool:
    """Whether the learner of a run computes in bf16: what the config says, or what is good on this device.

    A run that goes on does as it began, and all its processes do alike.
    """
    if config.model.autocast != "auto":
        return config.model.autocast
    began = folder.provenance if folder.checkpoints and (folder.path / "provenance.json").exists() else {}
    chosen = began["bf16"] if "bf16" in began else distributed.first() and bf16_pays(device)
    return distributed.gather(chosen)[0]


def evaluation_line(run: Run, rows: Sequence[dict], seconds: float) -> str:
    """What an evaluation found, for the log."""
    found = {f"success on {r['split']}": r["success"] for r in rows if r["kind"] == "success" and r["level"] == 0}
    found |= {f"rules known on {r['split']}": r["rule_accuracy"] for r in rows if "rule_accuracy" in r}
    told = ", ".join(f"{name} {share:.0%}" for name, share in found.items())
    c = run.config
    return f"{c.name}, seed {c.seed}: {run.tasks_seen} of {c.task_budget} tasks: {told} ({seconds:.0f} s)"


def _of_rollouts(rows: Sequence[Rollout]) -> dict[str, float]:
    n = len(rows)
    metrics = means([row.outcome.metrics for row in rows])
    return {
        "groups_sampled": len(by_group(rows)),
        "train_success": sum(row.success for row in rows) / n,
        "train_reward": sum(row.outcome.reward for row in rows) / n,
        **{f"train_{name}": value for name, value in metrics.items()},
        "tokens_per_rollout": sum(len(row.tokens) for row in rows) / n,
        "replies_per_rollout": sum(len(row.examples) for row in rows) / n,
    }


def _of_dreams(rows: Sequence[Rollout]) -> dict[str, float]:
    return {
        "dreamt_groups": len(by_group(rows)),
        "dreamt_groups_kept": len(by_group(informative(rows))),
        "dream_success": sum(row.success for row in rows) / len(rows),
    }


def _evaluation_due(run: Run) -> bool:
    """At the start, whenever another `eval_every` tasks were passed, and at the end."""
    passed = run.tasks_seen // run.config.eval_every > run.evaluated_at // run.config.eval_every  # -1 // n is -1
    return passed or (run.done and run.evaluated_at < run.tasks_seen)


@contextlib.contextmanager
def _interruptible() -> Iterator[list]:
    """A list that becomes truthy on Ctrl-C or SIGTERM, so that the step in progress is finished first."""
    received: list[int] = []

    def note(number, frame):
        if received and number == signal.SIGINT and distributed.size() == 1:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait; others send their own signals after the first
        received.append(number)

    previous = {}
    with contextlib.suppress(ValueError):  # not the main thread: nothing to catch
        previous = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)


def lr_factor(tasks_seen: int, budget: int, warmup: int) -> float:
    """Learning-rate factor: linear warm-up over `warmup` tasks, then a cosine from 1 to 0.1 at the budget."""
    if tasks_seen < warmup:
        return (tasks_seen + 1) / warmup
    done = min(1.0, (tasks_seen - warmup) / max(1, budget - warmup))
    return 0.55 + 0.45 * math.cos(math.pi * done)
