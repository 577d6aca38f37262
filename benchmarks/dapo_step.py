"""A whole DAPO step: 8 rollouts of each of 8 tasks, one update of a LoRA on all of them, the new weights in use.

    python benchmarks/dapo_step.py [--quick]    # in an environment with TRL (.venv-bench)

The peer is TRL's GRPOTrainer with peft and ``loss_type="dapo"``: the same base, LoRA, prompts, group size and number
of updates. It meets the environment through its `rollout_func`, in which transformers' `generate` reads the whole
history again in every turn (on CPU TRL has nothing else), driven by the same loop as the torch engine, so that both
play the same episodes to the same ends. TRL's tool loop would add an answer that nobody asked for after the last call.

With a learning rate of 0 both do all the work and sample the same tokens in every step, with the same random numbers.
The run of lfo keeps the groups that dynamic sampling would drop, since TRL keeps them. Of TRL's settings the fastest
here are used: no gradient checkpointing, no reference model, no second forward pass for old log-probabilities (the
update is on-policy), fused attention, micro-batches of 16. A step in which the two did not sample as many tokens, or
lfo did not learn from all of its own, stops the benchmark.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time

import common

from lfo.config import RunConfig, derive_seed
from lfo.rollout.play import play
from lfo.rollout.tasks import TaskStream
from lfo.text.base import load_tokenizer
from lfo.train import Run
from lfo.types import Role, Rollout

OURS, TRL = "lfo, one step", "TRL GRPOTrainer, one step"


class Phases(common.HfGenerate):
    """TRL's generation, timed and counted."""

    seconds, tokens = 0.0, 0

    def ready(self):
        start = time.perf_counter()
        done = super().ready()
        self.seconds += time.perf_counter() - start
        self.tokens += sum(len(completion.tokens) for _, completion in done)
        return done


def rollout_func(run: Run, engine: common.HfGenerate):
    """What TRL calls for a step's completions: plays the tasks that lfo's run plays in the same step."""
    tasks = {task.task_id: task for task in run.env.tasks("train")}
    steps = iter(range(1_000_000))

    def play_prompts(prompts: list[str], trainer) -> dict:
        c, step = run.config, next(steps)
        size = c.rollout.group_size
        first = step * len(prompts) // size
        groups = [
            run.coupling.waves(tasks[name], group, derive_seed(c.seed, "episode", group), size)
            for group, name in enumerate(prompts[::size], first)
        ]
        engine.model = trainer.accelerator.unwrap_model(trainer.model)
        seed = derive_seed(c.seed, "rollout", step, 0)
        return as_completions(play(engine, run.codec, groups, run.coupling, c.rollout, seed))

    return play_prompts


def as_completions(rows: list[Rollout]) -> dict:
    """Rollouts as TRL wants them: what comes before the first action is the prompt."""
    starts = [row.roles.index(Role.ACTION) for row in rows]
    acted = [[int(role == Role.ACTION) for role in row.roles] for row in rows]
    return {
        "prompt_ids": [row.tokens[:start] for row, start in zip(rows, starts, strict=True)],
        "completion_ids": [row.tokens[start:] for row, start in zip(rows, starts, strict=True)],
        "env_mask": [mask[start:] for mask, start in zip(acted, starts, strict=True)],
        "logprobs": None,
        "reward": [row.outcome.reward for row in rows],
    }


def trl_trainer(run: Run, engine: common.HfGenerate, steps: int, callback, folder: str):
    """A GRPOTrainer that does what `run` does."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOTrainer

    c = run.config
    tasks = TaskStream(run.env.tasks("train"), c.seed).take(steps * c.rollout.tasks_per_step)
    return GRPOTrainer(
        model=common.plain_base(),
        processing_class=load_tokenizer(c.model.base),
        args=trl_config(c, run.bf16, steps, folder),
        train_dataset=Dataset.from_dict({"prompt": [task.task_id for task in tasks]}),
        reward_funcs=lambda reward, **_: reward,
        peft_config=LoraConfig(
            r=c.model.rank,
            lora_alpha=2 * c.model.rank,
            lora_dropout=0.0,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
        rollout_func=rollout_func(run, engine),
        callbacks=[callback],
    )


def trl_config(c: RunConfig, bf16: bool, steps: int, folder: str):
    from trl import GRPOConfig

    rollouts = c.rollout.tasks_per_step * c.rollout.group_size
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        max_steps=steps,
        learning_rate=0.0,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=rollouts // 16,
        num_generations=c.rollout.group_size,
        max_completion_length=c.rollout.max_tokens,
        temperature=c.rollout.temperature,
        loss_type="dapo",
        epsilon=c.policy.clip[0],
        epsilon_high=c.policy.clip[1],
        max_grad_norm=c.policy.max_grad_norm,
        beta=0.0,
        bf16=bf16,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def turns(run: Run, engine: Phases, costs: dict[str, list[float]]):
    """TRL's loop is its own: after each of its steps lfo does one. Step 0 warms up."""
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        since = 0.0

        def on_train_begin(self, args, state, control, **_):
            self.since = time.perf_counter()

        def on_step_end(self, args, state, control, **_):
            theirs, start = time.perf_counter() - self.since, time.perf_counter()
            metrics = run.advance()
            ours = time.perf_counter() - start
            generated = f"{engine.tokens} tokens in {engine.seconds:.2f} s"
            print(f"{TRL}: {theirs:.2f} s, generating {generated}", file=sys.stderr)
            print(f"{OURS}: {ours:.2f} s, {metrics['sampled_tokens']} tokens, {metrics['seconds']}", file=sys.stderr)
            require_same_work(run, metrics, engine.tokens)
            if state.global_step > 1:
                costs[TRL].append(theirs)
                costs[OURS].append(ours)
            engine.seconds, engine.tokens, self.since = 0.0, 0, time.perf_counter()

    return Turns()


def require_same_work(run: Run, metrics: dict, their_tokens: int) -> None:
    """
    Raises:
        RuntimeError: lfo did not sample as many tokens as TRL, or did not learn from all of its own.
    """
    r = run.config.rollout
    everything = round(metrics["tokens_per_rollout"] * r.tasks_per_step * r.group_size)
    if (metrics["sampled_tokens"], metrics["trained_tokens"]) != (their_tokens, everything):
        raise RuntimeError("lfo and TRL did not do the same work in this step; the ratio would mean nothing.")


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments)
    if importlib.util.find_spec("trl") is None:
        sys.exit("TRL is not installed here: install lfo with the extra 'bench' (see benchmarks/README.md).")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    costs: dict[str, list[float]] = {OURS: [], TRL: []}
    with tempfile.TemporaryDirectory() as folder:
        settings = size.settings(**common.NO_WORLD_MODEL, **{"policy.groups_per_update": size.tasks})
        run, engine = common.EveryGroup(settings, folder), Phases(None)
        run.publish()
        trl_trainer(run, engine, size.rounds + 1, turns(run, engine, costs), folder).train()
    faster = common.ratios(costs[TRL], costs[OURS])
    common.record([common.row(size, "dapo_step", OURS, TRL, faster, "x faster")])


if __name__ == "__main__":
    main()
