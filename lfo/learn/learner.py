"""Samples and examples -> weights: one frozen base, LoRA adapters by name, one optimizer.

The policy learns what its objective makes of outcomes, the listener learns replies (cross-entropy). One backward pass
and one gradient clip per adapter: a joint clip would let lambda reach the policy through the norm alone. Where the
layout has one adapter, both losses fall on it; where adapters are stacked, the policy acts through both added, and
each loss still moves its own alone.

Under several processes (`lfo.distributed`) all of them are given the same samples and examples. Each takes a share,
and as many micro-batches as the others, if need be of padding: every forward and backward pass is a collective on one
adapter, and a process on another adapter, or on none, would spoil or stop it.

Knows no environment, no coupling and no sampler: adapters leave as peft folders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn.utils import clip_grads_with_norm_

from lfo import distributed
from lfo.config import RunConfig, derive_seed
from lfo.learn import adapters, objectives
from lfo.learn.batches import acted, actions, at, heard, pack, placed, shares
from lfo.learn.forward import Scorer
from lfo.learn.objectives import LossSum, PolicyTokens, Scores
from lfo.protocols import AdapterLayout, Objective
from lfo.text.base import load_base
from lfo.types import APART, AVERAGE, BASE, POLICY, WORLD_MODEL, Encoded, Rollout, Sample

VALUE_HEAD = "value_head"  # no adapter: trained with the policy, and of no use to a sampler
CAP = 2.0  # of the importance weight of a sample that is learned "capped"
PUSH = 2.0  # nats, at most, by which a teacher's opinion of one token counts
DECAY = 0.95  # of the running average of a policy that teaches, per step


class Learner:
    """The trainable side of a run.

    layout: which LoRA adapters there are. trained_tokens: of this process, through forward and backward since
    construction; what sequences share counts for each of them.

    Raises (on construction):
        FileNotFoundError: the folder of the base model is missing.
    """

    def __init__(
        self,
        config: RunConfig,
        layout: AdapterLayout,
        objective: Objective,
        pad_id: int,
        device: str = "cpu",
        bf16: bool = False,
    ):
        """pad_id: a token that may stand where there is nothing to learn. bf16: forward passes run under autocast."""
        self.config, self.layout, self.objective, self.pad_id = config, layout, objective, pad_id
        self.device = torch.device(device)
        self.lam = config.world_model.lam if config.world_model else 0.0
        d, alone = config.distributed, distributed.size() == 1
        base = load_base(config.model.base, device, getattr(torch, config.model.dtype), stay=not alone)
        self.model = adapters.with_adapters(base, config.model, layout.names, config.seed)
        if bf16 or config.model.dtype == "float32":
            adapters.simplify(self.model)
        if d.gradient_checkpointing:  # transformers renamed it
            enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        self.scorer = Scorer(self.model, bf16, objective.uses_values).train()
        if alone:
            self.scorer.to(self.device)
        trained = [n for n in layout.names if n != AVERAGE] + [VALUE_HEAD] * objective.uses_values
        self.optimizer = torch.optim.AdamW(
            [{"params": self.parameters(name), "lr": 0.0, "name": name} for name in trained],
            betas=(0.9, 0.95),
            weight_decay=config.weight_decay,
            fused=True,
        )
        if not alone:
            self.scorer, self.optimizer = distributed.shard(self.scorer, self.optimizer, base._no_split_modules)
        self._active: str | None = None
        self.trained_tokens = 0
        self.averages: dict[str, list[torch.Tensor]] = {}  # of world models, from the first update on
        self.updates = 0

    def parameters(self, adapter: str) -> list[torch.nn.Parameter]:
        """The trainable tensors of one adapter, in model order, or of the value head."""
        if adapter == VALUE_HEAD:
            return list(self.scorer.value_head.parameters()) if self.objective.uses_values else []
        return adapters.parameters(self.model, adapter)

    def activate(self, adapter: str) -> None:
        """Run forward passes through this adapter; see `adapters.activate`."""
        if adapter != self._active:
            adapters.activate(self.model, self.layout, adapter)
            self._active = adapter

    # --- updates ------------------------------------------------------------------------------

    def update(
        self, samples: Sequence[Sample], examples: Sequence[Encoded], lr_factor: float, seed: int
    ) -> dict[str, float]:
        """One optimizer step on ``policy_loss + lam * world_model_loss``; either part may be empty.

        The world model's loss is taken on `examples`, and on what samples have `heard`, in the policy's own pass.
        Where samples have their `own` log-probabilities, the ratio is taken to these, and each token is weighted for
        their difference from the sampler's, up to `policy.tis_cap`.
        """
        metrics: dict[str, float] = {}
        if samples:
            self._seed_dropout(seed, POLICY)
            metrics |= self._learn_actions(samples)
        if examples and self.lam > 0:
            for name in reversed(self.layout.listeners):  # told is of the first
                metrics |= self._learn_replies(examples, seed, name)
        return metrics | self._step(lr_factor)

    def replay(self, examples: Sequence[Encoded], lr_factor: float, seed: int, adapter=None) -> dict[str, float]:
        """One optimizer step on ``lam * world_model_loss`` alone, of this listener; None: of the first."""
        return self._learn_replies(examples, seed, adapter or self.layout.listener) | self._step(lr_factor)

    def _learn_actions(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Backward of all that moves the policy, before any of the world model's; returns metrics."""
        acting = [sample for sample in samples if sample.how not in APART]
        base = self.action_logprobs(acting, BASE) if self.config.policy.kl else None
        self.activate(POLICY)
        loss, replies = self._policy_backward(acting, base) if acting else (_add([]), _add([]))
        metrics = _world_metrics(replies) if replies.count else {}
        if loss.count:
            metrics |= {f"policy/{name}": value / loss.count for name, value in loss.metrics.items()}
            metrics.setdefault("policy/loss", loss.mean().item())  # unless it has parts, and says which is the policy's
        if distilled := [sample for sample in samples if sample.how == "distilled"]:
            loss = self._distil(distilled)
            metrics["distillation/neg_logprob"] = loss.metrics["neg_logprob"] / loss.count
        if imitated := [sample for sample in samples if sample.how == "imitated"]:
            metrics["policy/imitation_loss"] = self._imitate(imitated).mean().item()
        for p in self.parameters(WORLD_MODEL) if self.layout.stacked else ():
            p.grad = None  # the policy's loss went through the world model, but moves the policy alone
        return metrics

    def _policy_backward(
        self, samples: Sequence[Sample], base: Sequence[Sequence[float]] | None
    ) -> tuple[LossSum, LossSum]:
        """Backward of the objective's loss and what is added to it, divided by all action tokens, and of the world
        model's on the replies in the same forward pass (ECHO, arXiv 2605.24517, eq. 1), divided by all of theirs.

        base: the frozen base's `action_logprobs` of the samples. Returns the objective's loss by itself, and the world
        model's.
        """
        c, judged = self.config.policy, self.objective.uses_values
        acting = [acted(sample) for sample in samples]
        replies = [heard(sample) if self.lam > 0 else [] for sample in samples]
        acts, hears = (sum(map(len, places)) for places in (acting, replies))
        losses, heard_losses = [], []
        asked = [s.tokens for s in samples], acting, replies
        for index, logprobs, correct, *others in self._scored(*asked, entropy=c.entropy > 0, values=judged):
            part, places = [samples[i] for i in index], [acting[i] for i in index]
            mine = sum(map(len, places))
            sampled = at([s.old_logprobs for s in part], places).to(self.device)
            tokens = PolicyTokens(sampled, at([s.advantages or () for s in part], places).to(self.device))
            scores = Scores(logprobs[:mine])
            if judged:
                scores.values = others.pop()[:mine]
                tokens.returns = at([s.returns or () for s in part], places).to(self.device)
                tokens.old_values = at([s.values or () for s in part], places).to(self.device)
            if samples[0].own is not None:
                tokens.old_logprobs = torch.tensor([x for s in part for x in s.own], device=self.device)
                tokens.weights = objectives.tis_weights(tokens.old_logprobs, sampled, c.tis_cap)
            if any(sample.how != "ratio" for sample in samples):
                how = [s.how for s, where in zip(part, places, strict=True) for _ in where]
                _without_ratio(tokens, how, logprobs[:mine].detach(), sampled)
            if base is not None:
                tokens.base_logprobs = torch.tensor([x for i in index for x in base[i]], device=self.device)
            if others:
                scores.entropies = others.pop()[:mine]
            loss, more = self.objective.loss(scores, tokens), objectives.regularisers(scores, tokens, c.entropy, c.kl)
            loss.metrics |= more.metrics
            loss.metrics["logprob_gap"] = (logprobs[:mine].detach() - sampled).abs().sum().item()
            if tokens.weights is not None:
                loss.metrics["tis_weight"] = tokens.weights.sum().item()
            world = objectives.world_model_loss(logprobs[mine:], correct[mine:])
            self._backward(loss.mean(acts) + more.mean(acts) + self.lam * world.mean(hears))
            losses.append(loss)
            heard_losses.append(world)
        return _add(losses), _add(heard_losses)

    def _distil(self, samples: Sequence[Sample]) -> LossSum:
        """Backward of `context_distillation` times the loss on actions in a context that they were not sampled in.

        The importance ratio is dropped, since the two contexts differ by design (RLTF-SD, arXiv 2602.02482: dropping
        it is more stable than clipping it): the old policy is the present one.
        """
        actions = [acted(sample) for sample in samples]
        count, losses = sum(map(len, actions)), []
        for index, logprobs, _ in self._scored([s.tokens for s in samples], actions):
            advantages = at([samples[i].advantages for i in index], [actions[i] for i in index]).to(self.device)
            loss = self.objective.loss(Scores(logprobs), PolicyTokens(logprobs.detach(), advantages))
            self._backward(self.config.world_model.context_distillation * loss.mean(count))
            losses.append(loss)
        return _add(losses)

    def _imitate(self, samples: Sequence[Sample]) -> LossSum:
        """Backward of the cross-entropy on actions that succeeded, each sample's times its weight."""
        actions = [acted(sample) for sample in samples]
        count, losses = sum(map(len, actions)), []
        for index, logprobs, _ in self._scored([s.tokens for s in samples], actions):
            weights = [samples[i].weight for i in index for _ in actions[i]]
            weighted = objectives.imitation_loss(logprobs * torch.tensor(weights, device=self.device))
            self._backward(weighted.mean(count))
            losses.append(objectives.imitation_loss(logprobs))
        return _add(losses)

    def _learn_replies(self, examples: Sequence[Encoded], seed: int, adapter: str) -> dict[str, float]:
        """Backward of a world model's loss over `examples`, divided by their reply tokens; returns metrics."""
        self.activate(adapter)
        self._seed_dropout(seed, WORLD_MODEL if adapter == self.layout.listener else adapter)
        count, losses = sum(len(e.reply) for e in examples), []
        for _, logprobs, correct in self._scored(*_told(examples), temperature=1.0):
            losses.append(objectives.world_model_loss(logprobs, correct))
            self._backward(self.lam * losses[-1].mean(count))
        return _world_metrics(_add(losses))

    @staticmethod
    def _backward(loss: torch.Tensor) -> None:
        """Backward of a share of a loss that was divided by the global count: shares add up, FSDP2 takes their mean.

        To be called before another adapter is activated: layers that are checkpointed run again here.
        """
        (loss * distributed.size()).backward()

    @staticmethod
    def _seed_dropout(seed: int, adapter: str) -> None:
        """A stream of its own for each adapter, and for each process."""
        torch.manual_seed(derive_seed(seed, adapter) + distributed.rank())

    def _step(self, lr_factor: float) -> dict[str, float]:
        """Clip every adapter on its own and step; adapters without a gradient stay as they are."""
        norms, rates = {}, dict.fromkeys(self.layout.listeners, getattr(self.config.world_model, "learning_rate", 0.0))
        rates[POLICY] = self.config.policy.learning_rate  # also where it listens
        if self.config.ppo:
            rates[VALUE_HEAD] = self.config.ppo.value_learning_rate
        for group in self.optimizer.param_groups:
            name = group["name"]
            group["lr"] = rates[name] * lr_factor
            if grads := [p.grad for p in group["params"] if p.grad is not None]:
                norm = distributed.norm(grads)
                clip_grads_with_norm_(group["params"], self.config.policy.max_grad_norm, norm)
                norms[f"{name}/grad_norm"] = norm.item()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._average([name for name in self.layout.listeners if name != POLICY and f"{name}/grad_norm" in norms])
        return norms

    @torch.no_grad()
    def _average(self, names: Sequence[str]) -> None:
        """Move the exponential moving averages (EMA) of these world models' weights towards them.

        The decay grows from 0 to `world_model.decay`, so that the beginning is soon forgotten.
        """
        for name in names:
            weights = self.parameters(name)
            if name not in self.averages:
                self.averages[name] = [w.detach().clone() for w in weights]
            decay = min(self.config.world_model.decay, self.updates / (self.updates + 10))
            torch._foreach_lerp_(self.averages[name], weights, 1 - decay)
        self.updates += self.layout.listener in names  # the others have as many

    @torch.no_grad()
    def follow(self) -> None:
        """After a step: move the policy's running average, if there is one, towards it (SDPO, arXiv 2601.20802)."""
        if AVERAGE in self.layout.names:
            torch._foreach_lerp_(self.parameters(AVERAGE), self.parameters(POLICY), 1 - DECAY)

    # --- scores -------------------------------------------------------------------------------

    def _scored(
        self,
        sequences: Sequence[Sequence[int]],
        *asked: Sequence[Sequence[int]],
        temperature: float | None = None,
        entropy: bool = False,
        values: bool = False,
    ) -> Iterator[tuple[list[int], *tuple[torch.Tensor, ...]]]:
        """A forward pass over each of this process's micro-batches, as many as any process has.

        asked: see `pack`. temperature: None for that of sampling. Yields which sequences these are (none, where there
        is only padding), the log-probabilities that were asked for, whether each token was the arg-max, with `entropy`
        the entropies, and with `values` the values.
        """
        temperature = temperature or self.config.rollout.temperature or 1.0
        every = shares([len(s) for s in sequences], self.config.distributed.micro_batch_tokens, distributed.size())
        for index in every[distributed.rank()]:
            part = [sequences[i] for i in index] or [[self.pad_id] * 2]
            batch = pack(part, *([places[i] for i in index] or [[]] for places in asked))
            if torch.is_grad_enabled():
                self.trained_tokens += batch.count
            yield index, *self.scorer(batch.to(self.device), temperature, entropy, values)

    @torch.no_grad()
    def action_logprobs(self, samples: Sequence[Sample], adapter: str = POLICY) -> list[list[float]]:
        """Log-probabilities (nats) of each sample's actions under the policy as it is now, or `BASE`; no dropout."""
        self.activate(adapter)
        return self._evaluated([s.tokens for s in samples], [acted(s) for s in samples])

    @torch.no_grad()
    def values(self, rollouts: Sequence[Rollout]) -> list[list[float]]:
        """What the value head says before each token of each rollout's actions, as it is now; no dropout."""
        self.activate(POLICY)
        return self._evaluated([row.tokens for row in rollouts], [actions(row.roles) for row in rollouts], values=True)

    def taught(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples; those that are `taught` get advantages: how many nats likelier a teacher finds each token.

        The policy gradient of KL(policy || teacher) on the policy's own tokens, cut at `PUSH` (on-policy distillation,
        arXiv 2306.13649; with feedback in the teacher's context SDPO, arXiv 2601.20802).
        """
        asked = [sample for sample in samples if sample.taught]
        if not asked:
            return list(samples)
        theirs = iter(self.action_logprobs([sample.taught for sample in asked], self.config.feedback.actor))
        mine = iter(self.action_logprobs(asked))
        return [_pushed(s, next(theirs), next(mine)) if s.taught else s for s in samples]

    @torch.no_grad()
    def surprise(self, examples: Sequence[Encoded]) -> list[float]:
        """Negative log-probability (nats) of each reply under the world model as it is, summed over its tokens."""
        self.activate(self.layout.listener)
        return [-sum(logprobs) for logprobs in self._evaluated(*_told(examples), temperature=1.0)]

    def _evaluated(self, sequences, asked, temperature: float | None = None, values: bool = False) -> list[list[float]]:
        """The log-probabilities, or values, that are asked of each sequence, of all processes."""
        self.scorer.eval()
        mine: dict[int, list[float]] = {}
        for index, logprobs, _, *judged in self._scored(sequences, asked, temperature=temperature, values=values):
            parts = (judged[0] if values else logprobs).split([len(asked[i]) for i in index])
            mine |= zip(index, (part.tolist() for part in parts), strict=True)
        self.scorer.train()
        return distributed.join([*mine], [*mine.values()])

    # --- adapters and checkpoints -------------------------------------------------------------

    def save_adapters(self, folder: str | Path) -> dict[str, Path]:
        """Write every adapter as a peft folder ``folder/<name>/``, the world model averaged; return where they are.

        Beside them ``folder/value_head.safetensors``, where there is one: nothing that acts asks for it.
        """
        paths = adapters.save(self.model, self.layout, self.averages, Path(folder))
        if self.objective.uses_values:
            weight, bias = distributed.whole([p.detach() for p in self.parameters(VALUE_HEAD)])
            if distributed.first():
                save_file({"weight": weight, "bias": bias}, Path(folder) / f"{VALUE_HEAD}.safetensors")
        return paths

    def state(self) -> dict:
        """Adapters, value head and optimizer, gathered, for a checkpoint that any number of processes can load.

        Random numbers are derived from seed and step, so need no state.
        """
        return distributed.whole(
            {
                "adapters": adapters.state(self.model, self.layout.names),
                "value_head": [p.detach() for p in self.parameters(VALUE_HEAD)],
                "optimizer": self.optimizer.state_dict(),
                "averages": self.averages,
                "updates": self.updates,
            }
        )

    def load_state(self, state: dict) -> None:
        """Go on from `state`: adapters, value head, optimizer and running averages.

        Raises:
            CheckpointError: the checkpoint has other adapters or other shapes than this run.
        """
        adapters.load_state(self.model, self.layout.names, state["adapters"])
        with torch.no_grad():
            for p, value in zip(self.parameters(VALUE_HEAD), state.get("value_head", []), strict=True):
                p.copy_(distributed.like(value, p))
        moments = state["optimizer"]["state"]
        for index, p in enumerate(p for group in self.optimizer.param_groups for p in group["params"]):
            for key, value in moments.get(index, {}).items():
                moments[index][key] = distributed.like(value, p) if value.shape == p.shape else value
        self.optimizer.load_state_dict(state["optimizer"])
        self.averages = {
            name: [distributed.like(a, p) for a, p in zip(average, self.parameters(name), strict=True)]
            for name, average in state["averages"].items()
        }
        self.updates = state["updates"]


def _without_ratio(tokens: PolicyTokens, how: Sequence[str], now: torch.Tensor, sampled: torch.Tensor) -> None:
    """Where there is no ratio, or it is a capped weight, the old policy is the present one. now, sampled: (N,)."""
    kept, capped = (now.new_tensor([way == kind for way in how], dtype=torch.bool) for kind in ("ratio", "capped"))
    weights = torch.ones_like(now) if tokens.weights is None else tokens.weights
    tokens.weights = torch.where(kept, weights, torch.where(capped, objectives.tis_weights(now, sampled, CAP), 1.0))
    tokens.old_logprobs = torch.where(kept, tokens.old_logprobs, now)


def _pushed(sample: Sample, theirs: Sequence[float], mine: Sequence[float]) -> Sample:
    pushes = [max(-PUSH, min(PUSH, teacher - own)) for teacher, own in zip(theirs, mine, strict=True)]
    return dataclasses.replace(sample, advantages=placed(pushes, acted(sample), len(sample.tokens)), taught=None)


def _told(examples: Sequence[Encoded]) -> tuple[list[tuple[int, ...]], list[range]]:
    """Examples as sequences, and where their replies are."""
    sequences = [e.prompt + e.reply for e in examples]
    return sequences, [range(len(e.prompt), len(s)) for e, s in zip(examples, sequences, strict=True)]


def _add(parts: Sequence[LossSum]) -> LossSum:
    """The sum of detached losses, those of the other processes included."""
    names = list(parts[0].metrics) if parts else []
    total = sum((p.total.detach() for p in parts), torch.zeros(()))
    sums = [sum(p.metrics[name] for p in parts) for name in names]
    total, count, *sums = distributed.totals(total, sum(p.count for p in parts), *sums)
    return LossSum(torch.as_tensor(total), int(count), dict(zip(names, sums, strict=True)))


def _world_metrics(loss: LossSum) -> dict[str, float]:
    return {
        "world_model/loss": loss.mean().item(),
        "world_model/accuracy": loss.metrics.get("correct", 0) / max(1, loss.count),
    }
