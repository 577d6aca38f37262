"""Trajectories -> weights: one frozen base, two named LoRA adapters, one optimizer.

``policy`` learns from advantages (DAPO), ``world_model`` from replies (cross-entropy). One backward
pass and one gradient clip per adapter: a joint clip would let lambda reach the policy through the
norm alone. With coupling ``shared`` there is only ``policy`` and both losses fall on it. With
``stacked`` the policy acts through both adapters added, and each loss still moves its own alone.

Never imports `lfo.rollout`: adapters leave as peft folders.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from peft.utils.save_and_load import get_peft_model_state_dict
from safetensors.torch import save_file

from lfo.base import load_base, load_tokenizer
from lfo.config import RunConfig, derive_seed
from lfo.objectives import LossSum, dapo_loss, world_model_loss
from lfo.records import Trajectory
from lfo.tokens import Batch, CallExample, Role, collate_calls, collate_trajectories

POLICY, WORLD_MODEL = "policy", "world_model"
MICRO_BATCH_TOKENS = 4_096  # padded tokens in one forward pass


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
        base = load_base(config.model.base, device)
        has_world_model = config.world_model.predict != "nothing"
        self.adapters = [POLICY]
        torch.manual_seed(derive_seed(config.seed, "init", POLICY))
        self.model = get_peft_model(base, self._lora(), adapter_name=POLICY)
        if has_world_model and config.world_model.coupling != "shared":
            torch.manual_seed(derive_seed(config.seed, "init", WORLD_MODEL))
            self.model.add_adapter(WORLD_MODEL, self._lora())
            self.adapters.append(WORLD_MODEL)
        self.model.to(self.device).train()
        self.stacked = config.world_model.coupling == "stacked"
        self.world_adapter = WORLD_MODEL if WORLD_MODEL in self.adapters else POLICY
        self.optimizer = torch.optim.AdamW(
            [{"params": self.parameters(name), "lr": 0.0, "name": name} for name in self.adapters],
            betas=(0.9, 0.95),
            weight_decay=config.weight_decay,
        )
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
        precision = (
            torch.autocast(self.device.type, torch.bfloat16) if self.config.model.autocast else contextlib.nullcontext()
        )
        picked = batch.loss_mask[:, 1:].bool()
        with precision:
            causal = self.model.get_base_model()
            hidden = causal.model(batch.tokens, attention_mask=batch.attention).last_hidden_state[:, :-1]
            logits = causal.lm_head(hidden[picked]).float() / temperature
        targets = batch.tokens[:, 1:][picked]
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, targets.unsqueeze(1)).squeeze(1)
        return logprobs, logits.argmax(-1) == targets

    def _policy_backward(self, rows: Sequence[Trajectory], advantages: Sequence[float]) -> LossSum:
        """Backward of the policy loss over `rows`, divided by their action tokens; before any of the world model's."""
        self.activate(POLICY)
        p = self.config.policy
        count = sum(role == Role.ACTION for row in rows for role in row.roles)
        parts, gap = [], 0.0
        for index in micro_batches([len(r.tokens) for r in rows]):
            batch = collate_trajectories([rows[i] for i in index], [advantages[i] for i in index], self.pad_id)
            batch = batch.to(self.device)
            logprobs, _ = self.token_logprobs(batch, self.config.rollout.temperature or 1.0)
            picked = batch.loss_mask[:, 1:].bool()
            per_token = batch.advantages.unsqueeze(1).expand_as(picked)[picked]
            old = batch.old_logprobs[:, 1:][picked]
            loss = dapo_loss(logprobs, old, per_token, p.clip_low, p.clip_high)
            loss.mean(count).backward()
            gap += (logprobs.detach() - old).abs().sum().item()
            parts.append(loss)
        for p in self.parameters(WORLD_MODEL) if self.stacked else ():
            p.grad = None  # the policy's loss went through the world model, but moves the policy alone
        total = _add(parts)
        total.metrics["logprob_gap"] = gap
        return total

    def _world_backward(self, calls: Sequence[CallExample], weight: float) -> LossSum:
        """Backward of weight * world-model loss over `calls`, divided by their reply tokens."""
        self.activate(self.world_adapter)
        count = sum(len(c.reply) for c in calls)
        parts = []
        for index in micro_batches([len(c.prompt) + len(c.reply) for c in calls]):
            batch = collate_calls([calls[i] for i in index], self.pad_id).to(self.device)
            loss = world_model_loss(*self.token_logprobs(batch))
            (weight * loss.mean(count)).backward()
            parts.append(loss)
        return _add(parts)

    # --- updates ------------------------------------------------------------------------------

    def joint_update(
        self,
        rows: Sequence[Trajectory],
        advantages: Sequence[float],
        calls: Sequence[CallExample],
        lr_factor: float,
        seed: int,
    ) -> dict[str, float]:
        """One optimizer step on ``policy_loss + lam * world_model_loss``; either part may be empty."""
        metrics: dict[str, float] = {}
        lam = self.config.world_model.lam
        if rows:
            torch.manual_seed(derive_seed(seed, POLICY))  # dropout: its own stream for each adapter
            loss = self._policy_backward(rows, advantages)
            metrics |= {f"policy/{k}": v / max(1, loss.count) for k, v in loss.metrics.items()}
            metrics["policy/loss"] = loss.mean().item()
        if calls and lam > 0:
            torch.manual_seed(derive_seed(seed, WORLD_MODEL))
            metrics |= _world_metrics(self._world_backward(calls, lam))
        return metrics | self._step(lr_factor)

    def replay_update(self, calls: Sequence[CallExample], lr_factor: float, seed: int) -> dict[str, float]:
        """One optimizer step on ``lam * world_model_loss`` alone, on replayed calls."""
        torch.manual_seed(derive_seed(seed, WORLD_MODEL))
        metrics = _world_metrics(self._world_backward(calls, self.config.world_model.lam))
        return metrics | self._step(lr_factor)

    def _step(self, lr_factor: float) -> dict[str, float]:
        """Clip every adapter on its own and step; adapters without a gradient stay as they are."""
        norms = {}
        limits = {POLICY: self.config.policy.max_grad_norm, WORLD_MODEL: self.config.world_model.max_grad_norm}
        rates = {POLICY: self.config.policy.learning_rate, WORLD_MODEL: self.config.world_model.learning_rate}
        for group in self.optimizer.param_groups:
            name = group["name"]
            group["lr"] = rates[name] * lr_factor
            if any(p.grad is not None for p in group["params"]):
                norms[f"{name}/grad_norm"] = torch.nn.utils.clip_grad_norm_(group["params"], limits[name]).item()
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

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """The running averages stand in for the weights."""
        trained = {name: [p.data for p in self.parameters(name)] for name in self.averages}
        try:
            for name, average in self.averages.items():
                for p, value in zip(self.parameters(name), average, strict=True):
                    p.data = value
            yield
        finally:
            for name, weights in trained.items():
                for p, value in zip(self.parameters(name), weights, strict=True):
                    p.data = value

    # --- adapters and checkpoints -------------------------------------------------------------

    def save_adapters(self, folder: str | Path) -> dict[str, Path]:
        """Write every adapter as a peft folder ``folder/<name>/``, the world model averaged; return where they are.

        A `stacked` policy is written with the world model as it is now: the sampler must be the model that is trained.
        """
        folder = Path(folder)
        with self._averaged():
            alone = [WORLD_MODEL] if self.stacked else self.adapters
            self.model.save_pretrained(str(folder), selected_adapters=alone)
        if self.stacked:
            self._save_sum(folder / POLICY)
        return {name: folder / name for name in self.adapters}

    def _save_sum(self, folder: Path) -> None:
        """Both adapters as one of twice the rank (A below A, B beside B): engines such as vLLM take one per request.

        The weights that peft's ``add_weighted_adapter(combination_type="cat")`` gives, without adding a third adapter.
        """
        policy, world = (get_peft_model_state_dict(self.model, adapter_name=name) for name in self.adapters)
        both = {k: torch.cat([policy[k], world[k]], dim=0 if ".lora_A." in k else 1) for k in policy}
        config = copy.copy(self.model.peft_config[POLICY])
        config.r, config.lora_alpha, config.inference_mode = 2 * config.r, 2 * config.lora_alpha, True
        config.save_pretrained(str(folder))
        save_file(both, folder / "adapter_model.safetensors", metadata={"format": "pt"})

    def state(self) -> dict:
        """Adapters and optimizer, for a checkpoint. Random numbers are derived from seed and step, so need no state."""
        return {
            "adapters": {n: get_peft_model_state_dict(self.model, adapter_name=n) for n in self.adapters},
            "optimizer": self.optimizer.state_dict(),
            "averages": self.averages,
            "updates": self.updates,
        }

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
            set_peft_model_state_dict(self.model, tensors, adapter_name=name)
        self.optimizer.load_state_dict(state["optimizer"])
        self.averages, self.updates = state["averages"], state["updates"]


def micro_batches(lengths: Sequence[int], budget: int = MICRO_BATCH_TOKENS) -> Iterator[list[int]]:
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
    """The sum of detached losses."""
    metrics = {k: sum(p.metrics[k] for p in parts) for k in (parts[0].metrics if parts else ())}
    total = sum((p.total.detach() for p in parts), torch.zeros(()))
    return LossSum(total, sum(p.count for p in parts), metrics)


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
