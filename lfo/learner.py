"""Trajectories -> weights: one frozen base, two named LoRA adapters, one optimizer.

``policy`` learns from advantages (DAPO), ``world_model`` from replies (cross-entropy). One backward
pass and one gradient clip per adapter: a joint clip would let lambda reach the policy through the
norm alone. With coupling ``shared`` there is only ``policy`` and both losses fall on it. With
``stacked`` the policy acts through both adapters added, and each loss still moves its own alone.

Under several processes (`lfo.distributed`) all of them are given the same rows and calls. Each takes a
share, and as many micro-batches as the others, if need be of padding: every forward and backward pass
is a collective on one adapter, and a process on another adapter, or on none, would spoil or stop it.

Never imports `lfo.rollout`: adapters leave as peft folders.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.save_and_load import get_peft_model_state_dict
from safetensors.torch import save_file
from torch.nn.utils import clip_grads_with_norm_
from torch.utils.checkpoint import checkpoint

from lfo import distributed
from lfo.base import load_base, load_tokenizer
from lfo.config import ConfigError, RunConfig, derive_seed
from lfo.objectives import LossSum, dapo_loss, tis_weights, world_model_loss
from lfo.records import Trajectory
from lfo.tokens import Batch, CallExample, Role, collate_calls, collate_trajectories, reply_mask, without

POLICY, WORLD_MODEL = "policy", "world_model"
PADDING = CallExample((0, 0), (), "", "", "")  # a micro-batch of it has no token under the loss


class CheckpointError(ValueError):
    """A checkpoint does not belong to this run; the message names the difference and the remedy."""


class ReplayBuffer:
    """All distinct calls so far. Replies are facts about the world, not about the policy: they do not go stale.

    The rollouts of a group often make the very same call; told once is enough.
    """

    def __init__(self, examples: Sequence[CallExample] = ()):
        self.examples: list[CallExample] = []
        self._seen: set[CallExample] = set()
        self.add(examples)

    def add(self, examples: Sequence[CallExample]) -> None:
        new = [e for e in dict.fromkeys(examples) if e not in self._seen]
        self._seen.update(new)
        self.examples += new

    def draw(self, count: int, seed: int) -> list[CallExample]:
        """`count` examples without repetition (fewer where there are fewer), a pure function of the seed."""
        return random.Random(seed).sample(self.examples, min(count, len(self.examples)))


class Learner:
    """The trainable side of a run.

    Raises (on construction):
        FileNotFoundError: the folder of the base model is missing.
    """

    def __init__(self, config: RunConfig, pad_id: int, device: str = "cpu"):
        self.config, self.pad_id, self.device = config, pad_id, torch.device(device)
        d, alone = config.distributed, distributed.size() == 1
        base = load_base(config.model.base, device, getattr(torch, d.base_dtype), stay=not alone)
        has_world_model = config.world_model.predict != "nothing"
        self.adapters = [POLICY]
        torch.manual_seed(derive_seed(config.seed, "init", POLICY))
        self.model = get_peft_model(base, self._lora(), adapter_name=POLICY)
        if has_world_model and config.world_model.coupling != "shared":
            torch.manual_seed(derive_seed(config.seed, "init", WORLD_MODEL))
            self.model.add_adapter(WORLD_MODEL, self._lora())
            self.adapters.append(WORLD_MODEL)
        if config.model.autocast:
            for layer in self.model.modules():
                if isinstance(layer, BaseTunerLayer):  # autocast casts as needed, also what is computed again
                    layer.cast_input_dtype_enabled = False
        if d.gradient_checkpointing:  # transformers renamed it
            enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        if d.compile:
            compile_layers(self.model, base._no_split_modules)
        self.scorer = _Scorer(self.model, d.logit_chunk, config.model.autocast).train()
        if alone:
            self.scorer.to(self.device)
        self.stacked = config.world_model.coupling == "stacked"
        self.world_adapter = WORLD_MODEL if WORLD_MODEL in self.adapters else POLICY
        self.optimizer = torch.optim.AdamW(
            [{"params": self.parameters(name), "lr": 0.0, "name": name} for name in self.adapters],
            betas=(0.9, 0.95),
            weight_decay=config.weight_decay,
        )
        if not alone:
            self.scorer, self.optimizer = distributed.shard(self.scorer, self.optimizer, base._no_split_modules)
        self.trained_tokens = 0  # of this process, through forward and backward since construction, padding excluded
        self.averages: dict[str, list[torch.Tensor]] = {}  # of the world model, from its first update on
        self.updates = 0

    def _lora(self) -> LoraConfig:
        m = self.config.model
        targets = ["q_proj", "v_proj", "o_proj"] if m.targets == "qvo" else "all-linear"
        return LoraConfig(
            r=m.rank, lora_alpha=m.alpha, lora_dropout=m.dropout, target_modules=targets, task_type="CAUSAL_LM"
        )

    def parameters(self, adapter: str) -> list[torch.nn.Parameter]:
        """The trainable tensors of one adapter, in model order."""
        return [p for name, p in self.model.named_parameters() if f".{adapter}." in name]

    def activate(self, adapter: str) -> None:
        """Run forward passes through one adapter; both keep requiring gradients (peft would freeze the other).

        Activating a `stacked` policy activates both: the update of its weights is the sum of theirs.
        """
        self.model.set_adapter(adapter)
        if self.stacked and adapter == POLICY:
            self.model.base_model.set_adapter(self.adapters)
        for name in self.adapters:
            self.model.set_requires_grad(name, True)

    # --- losses -------------------------------------------------------------------------------

    def token_logprobs(self, batch: Batch, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities (N,) of the tokens under the loss mask, row by row, and whether each was the arg-max.

        Logits are made at those N positions only. Sampling temperature divides them for the policy,
        so that ratios compare like with like.
        """
        if torch.is_grad_enabled():
            self.trained_tokens += int(batch.attention[batch.loss_mask.any(1)].sum())
        return self.scorer(batch.tokens, batch.attention, batch.loss_mask[:, 1:].bool(), temperature)

    def _micro_batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """This process's rows in micro-batches: as many as any process has, the last ones may be empty."""
        every = shares(lengths, self.config.distributed.micro_batch_tokens, distributed.size())
        return every[distributed.rank()]

    def _collate(
        self, rows: Sequence[Trajectory], advantages: Sequence[float | None], predict: str = "nothing"
    ) -> Batch:
        if not rows:
            return collate_calls([PADDING], self.pad_id).to(self.device)
        return collate_trajectories(rows, advantages, self.pad_id, predict).to(self.device)

    @torch.no_grad()
    def action_logprobs(self, rows: Sequence[Trajectory]) -> list[list[float]]:
        """Log-probabilities of each row's action tokens under the policy as it is now, without dropout."""
        self.activate(POLICY)
        self.scorer.eval()
        mine: dict[int, list[float]] = {}
        for index in self._micro_batches([len(r.tokens) for r in rows]):
            batch = self._collate([rows[i] for i in index], [0.0] * len(index))
            logprobs, _ = self.token_logprobs(batch, self.config.rollout.temperature or 1.0)
            counts = batch.loss_mask.sum(1).int().tolist()
            mine |= zip(index, (part.tolist() for part in logprobs.split(counts)), strict=False)
        self.scorer.train()
        return distributed.join([*mine], [*mine.values()])

    def _policy_backward(
        self,
        rows: Sequence[Trajectory],
        advantages: Sequence[float | None],
        own: Sequence[Sequence[float]] | None,
        weight: float = 0.0,
    ) -> tuple[LossSum, LossSum]:
        """Backward of the policy loss over `rows`, divided by their action tokens; before any of the world model's.

        With a `weight`, plus weight * world-model loss on the replies in the same rows, divided by their tokens, in the
        same forward pass (ECHO, arXiv 2605.24517, eq. 1). Rows without an advantage have replies only.
        """
        self.activate(POLICY)
        p = self.config.policy
        predict = self.config.world_model.predict if weight > 0 else "nothing"
        acting = [row for row, advantage in zip(rows, advantages, strict=True) if advantage is not None]
        count = sum(role == Role.ACTION for row in acting for role in row.roles)
        replies = sum(sum(reply_mask(row, predict)) for row in rows) if weight > 0 else 0
        parts, heard_parts = [], []
        for index in self._micro_batches([len(r.tokens) for r in rows]):
            batch = self._collate([rows[i] for i in index], [advantages[i] for i in index], predict)
            logprobs, correct = self.token_logprobs(batch, self.config.rollout.temperature or 1.0)
            picked = batch.loss_mask[:, 1:].bool()
            heard = batch.heard[:, 1:][picked].bool()
            per_token = batch.advantages.unsqueeze(1).expand_as(picked)[picked][~heard]
            acted, old, weights = logprobs[~heard], batch.old_logprobs[:, 1:][picked][~heard], None
            sampled = old
            if own is not None:
                old = torch.tensor([x for i in index for x in own[i]], device=self.device)
                weights = tis_weights(old, sampled, p.tis_cap)
            loss = dapo_loss(acted, old, per_token, p.clip_low, p.clip_high, weights)
            world = world_model_loss(logprobs[heard], correct[heard])
            self._backward(loss.mean(count) + weight * world.mean(replies))
            loss.metrics["logprob_gap"] = (acted.detach() - sampled).abs().sum().item()
            if weights is not None:
                loss.metrics["tis_weight"] = weights.sum().item()
            parts.append(loss)
            heard_parts.append(world)
        for p in self.parameters(WORLD_MODEL) if self.stacked else ():
            p.grad = None  # the policy's loss went through the world model, but moves the policy alone
        return _add(parts), _add(heard_parts if weight > 0 else [])

    def _internalise(self, rows: Sequence[Trajectory], advantages: Sequence[float]) -> dict[str, float]:
        """Backward of internalise * advantage-weighted log-likelihood of the actions without the imagined tokens.

        Actions keep their advantages, good and bad. The importance ratio is dropped, since the two contexts differ by
        design (RLTF-SD, arXiv 2602.02482: dropping it is more stable than clipping it, and imitating successes alone
        is worse): the old policy is the present one. The baseline is the group's own mean, so that a task on which
        every imagining rollout succeeds teaches nothing.
        """
        aided = [(row, a) for row, a in zip(rows, advantages, strict=True) if Role.IMAGINED in row.roles]
        bare = [without(row, Role.IMAGINED) for row, _ in aided]
        count = sum(role == Role.ACTION for row in bare for role in row.roles)
        parts = []
        for index in self._micro_batches([len(row.tokens) for row in bare]):
            batch = self._collate([bare[i] for i in index], [aided[i][1] for i in index])
            logprobs, _ = self.token_logprobs(batch, self.config.rollout.temperature or 1.0)
            picked = batch.loss_mask[:, 1:].bool()
            loss = dapo_loss(logprobs, logprobs.detach(), batch.advantages.unsqueeze(1).expand_as(picked)[picked])
            self._backward(self.config.policy.internalise * loss.mean(count))
            parts.append(loss)
        return {"internalise/neg_logprob": _add(parts).metrics["neg_logprob"] / count} if parts else {}

    def _world_backward(self, calls: Sequence[CallExample], weight: float) -> LossSum:
        """Backward of weight * world-model loss over `calls`, divided by their reply tokens."""
        self.activate(self.world_adapter)
        count = sum(len(c.reply) for c in calls)
        parts = []
        for index in self._micro_batches([len(c.prompt) + len(c.reply) for c in calls]):
            batch = collate_calls([calls[i] for i in index] or [PADDING], self.pad_id).to(self.device)
            loss = world_model_loss(*self.token_logprobs(batch))
            self._backward(weight * loss.mean(count))
            parts.append(loss)
        return _add(parts)

    @staticmethod
    def _backward(loss: torch.Tensor) -> None:
        """Backward of a share of a loss that was divided by the global count: shares add up, FSDP2 takes their mean.

        To be called before another adapter is activated: layers that are checkpointed run again here.
        """
        (loss * distributed.size()).backward()

    @torch.no_grad()
    def surprise(self, calls: Sequence[CallExample]) -> list[float]:
        """Negative log-probability (nats) of each reply under the world model as it is, summed over its tokens."""
        self.activate(self.world_adapter)
        self.scorer.eval()
        mine: dict[int, float] = {}
        for index in self._micro_batches([len(c.prompt) + len(c.reply) for c in calls]):
            batch = collate_calls([calls[i] for i in index] or [PADDING], self.pad_id).to(self.device)
            replies = self.token_logprobs(batch)[0].split([len(calls[i].reply) for i in index])
            mine |= zip(index, (-reply.sum().item() for reply in replies), strict=False)
        self.scorer.train()
        return distributed.join([*mine], [*mine.values()])

    # --- updates ------------------------------------------------------------------------------

    def joint_update(
        self,
        rows: Sequence[Trajectory],
        advantages: Sequence[float | None],
        calls: Sequence[CallExample],
        lr_factor: float,
        seed: int,
        own: Sequence[Sequence[float]] | None = None,
    ) -> dict[str, float]:
        """One optimizer step on ``policy_loss + lam * world_model_loss``; either part may be empty.

        The world model's loss is taken on `calls` and, with the template `trajectory`, on the replies in `rows`, of
        which those with the advantage None are there for nothing else.
        `own`: the rows' `action_logprobs` from the start of the step; then DAPO's ratio is taken to these,
        and each token is weighted for their difference from the sampler's, up to `policy.tis_cap`.
        """
        metrics: dict[str, float] = {}
        lam = self.config.world_model.lam
        if rows:
            self._seed_dropout(seed, POLICY)
            in_passing = lam if self.config.world_model.template == "trajectory" else 0.0
            loss, heard = self._policy_backward(rows, advantages, own, in_passing)
            if loss.count:
                metrics |= {f"policy/{k}": v / loss.count for k, v in loss.metrics.items()}
                metrics["policy/loss"] = loss.mean().item()
            metrics |= _world_metrics(heard) if heard.count else {}
            if self.config.policy.internalise > 0:
                metrics |= self._internalise(rows, advantages)
        if calls and lam > 0:
            self._seed_dropout(seed, WORLD_MODEL)
            metrics |= _world_metrics(self._world_backward(calls, lam))
        return metrics | self._step(lr_factor)

    def replay_update(self, calls: Sequence[CallExample], lr_factor: float, seed: int) -> dict[str, float]:
        """One optimizer step on ``lam * world_model_loss`` alone, on replayed calls."""
        self._seed_dropout(seed, WORLD_MODEL)
        metrics = _world_metrics(self._world_backward(calls, self.config.world_model.lam))
        return metrics | self._step(lr_factor)

    @staticmethod
    def _seed_dropout(seed: int, adapter: str) -> None:
        """A stream of its own for each adapter, and for each process."""
        torch.manual_seed(derive_seed(seed, adapter) + distributed.rank())

    def _step(self, lr_factor: float) -> dict[str, float]:
        """Clip every adapter on its own and step; adapters without a gradient stay as they are."""
        norms = {}
        limits = {POLICY: self.config.policy.max_grad_norm, WORLD_MODEL: self.config.world_model.max_grad_norm}
        rates = {POLICY: self.config.policy.learning_rate, WORLD_MODEL: self.config.world_model.learning_rate}
        for group in self.optimizer.param_groups:
            name = group["name"]
            group["lr"] = rates[name] * lr_factor
            if grads := [p.grad for p in group["params"] if p.grad is not None]:
                norm = distributed.norm(grads)
                clip_grads_with_norm_(group["params"], limits[name], norm)
                norms[f"{name}/grad_norm"] = norm.item()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._average()
        return norms

    @torch.no_grad()
    def _average(self) -> None:
        """Move the running average of the world model towards its weights (Polyak and Juditsky 1992).

        The decay grows from 0 to `ema`, so that the beginning is soon forgotten.
        """
        if WORLD_MODEL not in self.adapters:
            return
        weights = self.parameters(WORLD_MODEL)
        if not self.averages:
            self.averages[WORLD_MODEL] = [w.detach().clone() for w in weights]
        decay = min(self.config.world_model.ema, self.updates / (self.updates + 10))
        torch._foreach_lerp_(self.averages[WORLD_MODEL], weights, 1 - decay)
        self.updates += 1

    # --- adapters and checkpoints -------------------------------------------------------------

    def save_adapters(self, folder: str | Path) -> dict[str, Path]:
        """Write every adapter as a peft folder ``folder/<name>/``, the world model averaged; return where they are.

        A `stacked` policy is written with the world model as it is now: the sampler must be the model that is trained.
        """
        folder = Path(folder)
        now = {name: p.detach() for name, p in self.model.named_parameters() if ".lora_" in name}
        averaged = dict(now)
        for adapter, average in self.averages.items():
            averaged |= zip([name for name in now if f".{adapter}." in name], average, strict=True)
        now, averaged = distributed.whole(now) if self.stacked else {}, distributed.whole(averaged)
        if distributed.first():
            alone = [WORLD_MODEL] if self.stacked else self.adapters
            self.model.save_pretrained(str(folder), selected_adapters=alone, state_dict=averaged)
            if self.stacked:
                self._save_sum(folder / POLICY, now)
        return {name: folder / name for name in self.adapters}

    def _save_sum(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        """Both adapters as one of twice the rank (A below A, B beside B): engines such as vLLM take one per request.

        The weights that peft's ``add_weighted_adapter(combination_type="cat")`` gives, without adding a third adapter.
        """
        policy, world = (get_peft_model_state_dict(self.model, tensors, adapter_name=name) for name in self.adapters)
        both = {k: torch.cat([policy[k], world[k]], dim=0 if ".lora_A." in k else 1) for k in policy}
        config = copy.copy(self.model.peft_config[POLICY])
        config.r, config.lora_alpha, config.inference_mode = 2 * config.r, 2 * config.lora_alpha, True
        config.save_pretrained(str(folder))
        save_file(both, folder / "adapter_model.safetensors", metadata={"format": "pt"})

    def state(self) -> dict:
        """Adapters and optimizer, gathered, for a checkpoint that any number of processes can load.

        Random numbers are derived from seed and step, so need no state.
        """
        return distributed.whole(
            {
                "adapters": {n: get_peft_model_state_dict(self.model, adapter_name=n) for n in self.adapters},
                "optimizer": self.optimizer.state_dict(),
                "averages": self.averages,
                "updates": self.updates,
            }
        )

    @torch.no_grad()
    def load_state(self, state: dict) -> None:
        """
        Raises:
            CheckpointError: the checkpoint has other adapters or other shapes than this run.
        """
        if sorted(state["adapters"]) != sorted(self.adapters):
            raise CheckpointError(
                f"the checkpoint holds the adapters {sorted(state['adapters'])}, "
                f"this run trains {sorted(self.adapters)}; resume with its own config, or choose another run folder."
            )
        for name, tensors in state["adapters"].items():
            mine = get_peft_model_state_dict(self.model, adapter_name=name)
            odd = [k for k in mine if k not in tensors or tensors[k].shape != mine[k].shape]
            if odd:
                raise CheckpointError(
                    f"adapter '{name}' of the checkpoint does not fit this model (first difference: {odd[0]});"
                    " check model.rank, model.targets and model.base."
                )
            for key, value in mine.items():
                value.copy_(distributed.like(tensors[key], value))
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


class _Scorer(torch.nn.Module):
    """Tokens -> log-probabilities. All that training computes is one `forward`: FSDP2 gathers weights around it."""

    def __init__(self, model: PeftModel, chunk: int, autocast: bool):
        super().__init__()
        self.model, self.chunk, self.autocast = model, chunk, autocast

    def forward(
        self, tokens: torch.Tensor, attention: torch.Tensor, picked: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Learner.token_logprobs`. tokens, attention: (B, T); picked: (B, T - 1) bool, N of them true.

        With a chunk, logits of at most that many positions exist at a time, in the backward pass as well:
        there they are made again.
        """
        precision = torch.autocast(tokens.device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext()
        with precision:
            body = self.model.get_base_model().model
            hidden = body(tokens, attention_mask=attention, use_cache=False).last_hidden_state[:, :-1][picked]
            targets = tokens[:, 1:][picked]
            score = functools.partial(checkpoint, self._score, use_reentrant=False) if self.chunk else self._score
            chunk = self.chunk or max(1, len(targets))
            parts = zip(hidden.split(chunk), targets.split(chunk), strict=True)
            logprobs, correct = zip(*(score(some, their, temperature) for some, their in parts), strict=True)
            return torch.cat(logprobs), torch.cat(correct)

    def _score(self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float):
        """hidden (n, H), targets (n,) -> log-probabilities (n,) and whether each was the arg-max (n,)."""
        logits = self.model.get_base_model().lm_head(hidden).float() / temperature
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, targets.unsqueeze(1)).squeeze(1)
        return logprobs, logits.argmax(-1) == targets


def compile_layers(model: torch.nn.Module, names: Sequence[str]) -> None:
    """Compile the layers of these classes in place, each by itself: alike ones share what was compiled.

    Lengths stay dynamic. The same sums, rounded otherwise than without.

    Raises:
        ConfigError: TorchInductor will find no C++ compiler.
    """
    if not any(map(shutil.which, (os.environ.get("CXX") or "g++", "g++", "clang++"))):
        raise ConfigError("distributed.compile needs a C++ compiler; install g++, or set distributed.compile to false.")
    torch._dynamo.config.recompile_limit = 32  # adapter, first or later layer, with gradients or not, one row or more
    for layer in model.modules():
        if type(layer).__name__ in names:
            layer.compile(dynamic=True)


def shares(lengths: Sequence[int], budget: int, processes: int) -> list[list[list[int]]]:
    """Each process's micro-batches of row indices, the same number for all: the last ones may be empty.

    Rows are dealt out in the order of their lengths, so all have about the same to do.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    dealt = [order[r::processes] for r in range(processes)]
    every = [[[part[j] for j in b] for b in micro_batches([lengths[i] for i in part], budget)] for part in dealt]
    most = max(map(len, every))
    return [batches + [[]] * (most - len(batches)) for batches in every]


def micro_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices in batches of at most `budget` padded tokens, similar lengths together."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    batch: list[int] = []
    for i in order:
        if batch and lengths[i] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


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


def merge_adapter(base: str | Path, adapter: str | Path, out: str | Path) -> Path:
    """Merge a peft folder into a copy of its base, in fp32, and write it with the tokenizer; return the folder."""
    merged = PeftModel.from_pretrained(load_base(base), str(adapter)).merge_and_unload()
    merged.save_pretrained(str(out))
    load_tokenizer(base).save_pretrained(str(out))
    return Path(out)
