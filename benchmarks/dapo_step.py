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

from lfo.base import load_tokenizer
from lfo.config import NO_WORLD_MODEL, RunConfig, derive_seed
from lfo.rollout import Job, play
from lfo.sampling import TaskStream
from lfo.tokens import Role
from lfo.train import Run

OURS, TRL = "lfo, one step", "TRL GRPOTrainer, one step"


class Phases(common.HfGenerate):
    """TRL's generation, timed and counted."""

    seconds, tokens = 0.0, 0

    def generate(self, prompts, seed):
        start = time.perf_counter()
        said = super().generate(prompts, seed)
        self.seconds += time.perf_counter() - start
        self.tokens += sum(len(c.tokens) for c in said)
        return said


def rollout_func(run: Run, engine: common.HfGenerate):
    """What TRL calls for a step's completions: plays the tasks that lfo's run plays in the same step."""
    tasks = {task.task_id: task for task in run.world.tasks}
    steps = iter(range(1_000_000))

    def play_prompts(prompts: list[str], trainer) -> dict:
        c, step = run.config, next(steps)
        first = step * len(prompts) // c.rollout.group_size
        groups = [first + i // c.rollout.group_size for i in range(len(prompts))]
        jobs = [Job(tasks[name], g, derive_seed(c.seed, "episode", g)) for name, g in zip(prompts, groups, strict=True)]
        engine.model = trainer.accelerator.unwrap_model(trainer.model)
        seed = derive_seed(c.seed, "rollout", step, 0)
        rows = play(engine, run.codec, run.world, jobs, c.env, c.rollout, seed, predict="nothing")
        starts = [row.roles.index(Role.ACTION) for row in rows]
        return {
            "prompt_ids": [row.tokens[:start] for row, start in zip(rows, starts, strict=True)],
            "completion_ids": [row.tokens[start:] for row, start in zip(rows, starts, strict=True)],
            "env_mask": [
                [int(x == Role.ACTION) for x in r.roles[start:]] for r, start in zip(rows, starts, strict=True)
            ],
            "logprobs": None,
            "reward": [row.reward for row in rows],
        }

    return play_prompts


def trl_trainer(run: Run, engine: common.HfGenerate, steps: int, callback, folder: str):
    """A GRPOTrainer that does what `run` does."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    c: RunConfig = run.config
    tasks = TaskStream(run.world.split("train", c.levels), c.seed).take(steps * c.rollout.tasks_per_step)
    rollouts = c.rollout.tasks_per_step * c.rollout.group_size
    config = GRPOConfig(
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
        epsilon=c.policy.clip_low,
        epsilon_high=c.policy.clip_high,
        max_grad_norm=c.policy.max_grad_norm,
        beta=0.0,
        bf16=c.model.autocast,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=common.plain_base(),
        processing_class=load_tokenizer(c.model.base),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [task.task_id for task in tasks]}),
        reward_funcs=lambda reward, **_: reward,
        peft_config=LoraConfig(
            r=c.model.rank, lora_alpha=c.model.alpha, lora_dropout=0.0, target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
        rollout_func=rollout_func(run, engine),
        callbacks=[callback],
    )  # fmt: skip


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments)
    if importlib.util.find_spec("trl") is None:
        sys.exit("TRL is not installed here: install lfo with the extra 'bench' (see benchmarks/README.md).")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from transformers import TrainerCallback

    overrides = NO_WORLD_MODEL | {"policy.groups_per_update": size.tasks}
    costs: dict[str, list[float]] = {OURS: [], TRL: []}
    with tempfile.TemporaryDirectory() as folder:
        run, engine = common.EveryGroup(size.settings(**overrides), folder), Phases(None)
        run.publish()

        class Turns(TrainerCallback):
            """TRL's loop is its own: after each of its steps lfo does one. Step 0 warms up."""

            since = 0.0

            def on_train_begin(self, args, state, control, **_):
                self.since = time.perf_counter()

            def on_step_end(self, args, state, control, **_):
                theirs, start = time.perf_counter() - self.since, time.perf_counter()
                metrics = run.advance()
                ours = time.perf_counter() - start
                everything = round(metrics["tokens_per_rollout"] * size.tasks * run.config.rollout.group_size)
                if (metrics["sampled_tokens"], metrics["trained_tokens"]) != (engine.tokens, everything):
                    raise RuntimeError(
                        "lfo and TRL did not do the same work in this step; the ratio would mean nothing."
                    )
                generated = f"{engine.tokens} tokens in {engine.seconds:.2f} s"
                print(f"{TRL}: {theirs:.2f} s, generating {generated}", file=sys.stderr)
                print(
                    f"{OURS}: {ours:.2f} s, {metrics['sampled_tokens']} tokens, {metrics['seconds']}", file=sys.stderr
                )
                if state.global_step > 1:
                    costs[TRL].append(theirs)
                    costs[OURS].append(ours)
                engine.seconds, engine.tokens, self.since = 0.0, 0, time.perf_counter()

        trl_trainer(run, engine, size.rounds + 1, Turns(), folder).train()
    faster = common.ratios(costs[TRL], costs[OURS])
    common.record([common.row(size, "dapo_step", OURS, TRL, faster, "x faster")])


if __name__ == "__main__":
    main()
