"""What only a GPU can show, in parts that can be resumed; `scripts/gpu_check.sh` runs them all.

    python benchmarks/gpu.py PART [--miniature] [--table FILE]

PARTs are tests, shapes, embedded, smollm2, reading, and summary.

A part consists of pieces, each in a process of its own, so that none finds the memory of another taken. A piece writes
its rows into benchmarks/gpu.csv as soon as they are measured, and a last one when it is through, after which it is not
measured again at this commit. `value` is in `unit`; `ratio` compares it with `peer`: value / peer, but for seconds,
where it is how many times faster. `seconds` is how long it took to measure.

No network is needed, and no model but SmolLM2 for two parts: the large shapes have random weights, made on the device.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import importlib.util
import itertools
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, median
from unittest import mock
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("gpu.csv")
COLUMNS = ["part", "subject", "value", "unit", "peer", "ratio", "source", "device", "commit", "seconds"]
FINISHED = "finished"
NO_DEVICE = 2  # exit status
GIB = 2**30
PLAN_IS_RIGHT = 0.15  # how far the measured peak may be from the planned one

QWEN3_8B = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


class Failed(Exception):
    """What was measured is not as it should be."""


class Skipped(Exception):
    """It cannot be measured here, which is no fault."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Something measured."""

    subject: str
    value: float
    unit: str
    peer: str = ""
    ratio: float = math.nan


@dataclasses.dataclass(frozen=True)
class Bench:
    """Where pieces measure. folder: for what they leave to be resumed."""

    device: str
    miniature: bool
    folder: Path

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def gib(self) -> float:
        """Memory of the device."""
        import torch

        return torch.cuda.get_device_properties(0).total_memory / GIB if self.cuda else 24.0

    def clock(self) -> float:
        """Now, when all that was asked of the device is done."""
        import torch

        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


Piece = Callable[[Bench], Iterator[Row]]


# --- tests -----------------------------------------------------------------------------------


def gpu_tests(bench: Bench) -> Iterator[Row]:
    report = bench.folder / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_gpu.py"]
    done = subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, check=False)
    suite = ElementTree.parse(report).getroot().find("testsuite").attrib
    skipped, bad = int(suite["skipped"]), int(suite["failures"]) + int(suite["errors"])
    yield Row("tests/test_gpu.py, passed", int(suite["tests"]) - skipped - bad, "tests")
    yield Row("tests/test_gpu.py, failed", bad, "tests")
    yield Row("tests/test_gpu.py, skipped", skipped, "tests")
    if done.returncode:
        raise Failed(f"pytest ended with {done.returncode}")


# --- the shapes of Qwen3-8B ------------------------------------------------------------------


def shape_folder(bench: Bench, layers: int | None = None) -> Path:
    """A folder with the config of a model and nothing else."""
    from transformers import Qwen3Config

    shape = QWEN3_8B | (TINY if bench.miniature else {})
    if layers:
        shape["num_hidden_layers"] = layers
    folder = bench.folder / f"qwen3_shape_{shape['num_hidden_layers']}"
    Qwen3Config(**shape).save_pretrained(folder)
    return folder


def random_base(path, device="cpu", dtype=None, stay=False):
    """In the place of `lfo.text.base.load_base`: the model of a config with random weights, made on the device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    attention = {"attn_implementation": "eager"} if torch.device(device).type == "cpu" else {}
    with torch.device(device):
        config = AutoConfig.from_pretrained(path)
        return AutoModelForCausalLM.from_config(config, dtype=dtype or torch.float32, **attention)


def one_gpu(bench: Bench, **overrides):
    """configs/qwen3_8b.yaml on one device: what its learner does, without the others."""
    from lfo.config import load_config

    alone = {"model.base": str(shape_folder(bench)), "distributed.processes": 1, "distributed.tensor_parallel": 1}
    small = {"rollout.max_tokens": 128, "distributed.micro_batch_tokens": 128} if bench.miniature else {}
    return load_config(ROOT / "configs/qwen3_8b.yaml", **alone, **small, **overrides)


def full_sample(length: int, vocabulary: int, seed: int):
    """A trajectory that uses its whole budget and is all action: what `lfo plan` counts on."""
    import torch

    from lfo.types import Role, Sample

    tokens = torch.randint(1, vocabulary, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    acted = length - 1
    roles = [int(Role.PROMPT)] + [int(Role.ACTION)] * acted
    return Sample(tokens, roles, [0.0] + [-12.0] * acted, [0.0] + [(-1.0) ** seed] * acted)


def learner_shapes(bench: Bench) -> Iterator[Row]:
    """Updates of the policy on full trajectories, one at a time, and replay updates, as configs/qwen3_8b.yaml has."""
    import torch

    from lfo.couplings.plain import BOTH
    from lfo.learn.learner import Learner
    from lfo.learn.objectives import Dapo
    from lfo.types import Encoded

    config = one_gpu(bench)
    length, vocabulary = config.rollout.max_tokens, (TINY if bench.miniature else QWEN3_8B)["vocab_size"]
    with mock.patch("lfo.learn.learner.load_base", random_base):
        learner = Learner(config, BOTH, Dapo(config), pad_id=0, device=bench.device, bf16=True)
    if bench.cuda:
        torch.cuda.reset_peak_memory_stats()  # of making the weights
    samples = [full_sample(length, vocabulary, seed) for seed in range(4)]
    texts = [full_sample(min(640, length), vocabulary, 100 + seed).tokens for seed in range(16)]
    examples = [Encoded(tuple(text[:-64]), tuple(text[-64:])) for text in texts]
    learner.update(samples[:1], examples[:1], 0.0, 0)  # the optimizer has its moments from here on

    def rate(work: Callable[[], dict]) -> float:
        before, began = learner.trained_tokens, bench.clock()
        work()
        return (learner.trained_tokens - before) / (bench.clock() - began)

    speed = rate(lambda: learner.update(samples, examples[:1], 0.0, 1))
    yield Row(f"learner, an update on 4 trajectories of {length:,} tokens", speed, "tokens/s")
    yield Row("learner, a replay update", rate(lambda: learner.replay(examples, 0.0, 2)), "tokens/s")
    yield from memory_rows(bench, config)


def memory_rows(bench: Bench, config) -> Iterator[Row]:
    """The learner's peak against the plan's; on CPU the plan alone."""
    import torch

    from lfo.lab.plan import plan

    learner = plan(config, bench.device, bench.gib)[0]
    counted = [item for item in learner.items if learner.peak in item.moments and "CUDA context" not in item.name]
    planned = sum(item.bytes for item in counted) / GIB
    if not bench.cuda:
        yield Row("learner, planned peak of memory", planned, "GiB")
        return
    measured = torch.cuda.max_memory_allocated() / GIB
    ratio = measured / planned
    yield Row("learner, peak of memory", measured, "GiB", f"lfo plan: {planned:.2f} GiB", ratio)
    if abs(ratio - 1) > PLAN_IS_RIGHT:
        raise Failed(f"the learner needs {measured:.2f} GiB, planned were {planned:.2f} GiB")


def prompts(bench: Bench, rows: int, adapter: str):
    """Contexts of random tokens to be continued to the end of what may be said."""
    from lfo.rollout import Prompt

    vocabulary = (TINY if bench.miniature else QWEN3_8B)["vocab_size"]
    context, new = (16, 4) if bench.miniature else (512, 128)
    texts = [full_sample(context, vocabulary - 1, seed).tokens for seed in range(rows)]
    return [Prompt(text, adapter, new, vocabulary - 1, 1.0, seed) for seed, text in enumerate(texts)]


def generation_rate(bench: Bench, engine, asked) -> float:
    """Sampled tokens per second, after a round that warms up. The session is a new one, but prefixes may be kept."""
    from lfo.rollout import complete

    complete(engine, [dataclasses.replace(prompt, tokens=list(prompt.tokens)[::-1], max_new=2) for prompt in asked])
    before, began = engine.generated_tokens, bench.clock()
    complete(engine, asked)
    return (engine.generated_tokens - before) / (bench.clock() - began)


def torch_shapes(bench: Bench) -> Iterator[Row]:
    """The torch engine computes in fp32 and rearranges weights: as many layers as there is memory for."""
    from lfo.rollout.torch_engine import TorchEngine

    whole = (TINY if bench.miniature else QWEN3_8B)["num_hidden_layers"]
    layers = max(1, min(whole, int(whole * 0.85 * bench.gib / 61))) if bench.cuda else whole  # 61 GiB: twice the base
    with mock.patch("lfo.rollout.torch_engine.load_base", random_base):
        engine = TorchEngine(shape_folder(bench, layers), bench.device)
    for rows in (4,) if bench.miniature else (16, 64):
        speed = generation_rate(bench, engine, prompts(bench, rows, "base"))
        yield Row(f"torch engine, fp32, {layers} of {whole} layers, {rows} rows", speed, "tokens/s")


def zero_adapter(config, folder: Path) -> Path:
    """A peft folder whose adapter changes nothing, made without the weights of the base."""
    import torch
    from peft import LoraConfig, get_peft_model
    from peft.utils.save_and_load import get_peft_model_state_dict
    from safetensors.torch import save_file

    rank = config.model.rank
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(random_base(config.model.base, "meta"), lora)
    zeros = {name: torch.zeros(weight.shape) for name, weight in get_peft_model_state_dict(model).items()}
    lora.base_model_name_or_path = str(config.model.base)
    lora.save_pretrained(str(folder))
    save_file(zeros, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def vllm_shapes(bench: Bench) -> Iterator[Row]:
    """vLLM in this process with an adapter, its weights random (vLLM's own way of it)."""
    if importlib.util.find_spec("vllm") is None:
        raise Skipped("vLLM is not installed here")
    from lfo.rollout.vllm import engine as vllm_engine

    config = one_gpu(bench, **{"rollout.engine": "vllm", "rollout.gpu_memory": 0.85, "rollout.asynchronous": False})
    options = vllm_engine.engine_options

    def random_weights(config) -> dict:
        return options(config) | {"load_format": "dummy"}

    with mock.patch.object(vllm_engine, "engine_options", random_weights):
        engine = vllm_engine.VllmEngine(config)
    engine.load({"policy": zero_adapter(config, bench.folder / "zero_adapter")})
    for rows in (4,) if bench.miniature else (16, 64, 256):
        speed = generation_rate(bench, engine, prompts(bench, rows, "policy"))
        yield Row(f"vLLM, bf16 with an adapter, {rows} rows", speed, "tokens/s")


# --- the embedded base -----------------------------------------------------------------------


def laptop(bench: Bench):
    from lfo.config import load_config

    small = {
        "task_budget": 2,
        "eval_every": 2,
        "eval_splits": ["validation"],
        "eval_tasks": 1,
        "eval_episodes": 1,
        "rollout.tasks_per_step": 1,
        "rollout.group_size": 3,
        "world_model.updates": 1,
    }
    return load_config(ROOT / "configs/laptop.yaml", **(small if bench.miniature else {}))


def embedded(bench: Bench) -> Iterator[Row]:
    """A whole run on the device, then some steps on one core of the CPU, for the seconds of a whole run there."""
    import torch
    from run import PHASES, measure

    from lfo.runs import RunFolder
    from lfo.train import train

    config = laptop(bench)
    folder = RunFolder(train(config, bench.folder / "embedded", device=bench.device, progress=False))
    logged = folder.metrics()
    spent = sum(sum(row["seconds"].values()) for row in logged if row["kind"] in ("step", "seconds"))
    end = [r for r in logged if r["kind"] == "success" and r["level"] == 0 and r["tasks"] == logged[-1]["tasks"]]
    for row in end:
        yield Row(f"embedded run, success at the end, {row['split']}", row["success"], f"share of {row['n']}")
    yield Row("embedded run, bf16", float(folder.provenance["bf16"]), "yes or no")
    for phase in (*PHASES, "evaluate"):
        each = [row["seconds"].get(phase, 0.0) for row in logged if row["kind"] in ("step", "seconds")]
        yield Row(f"embedded run, {phase}", sum(each), "seconds")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as other:
        phases = measure(config, other, steps=1 if bench.miniature else 3)
    torch.set_num_threads(threads)
    slow = sum(median(phases.whole(name)) for name in (*PHASES, "evaluate"))
    yield Row("embedded run", spent, "seconds", f"one CPU core, extrapolated: {slow:.0f} s", slow / spent)


# --- SmolLM2 ---------------------------------------------------------------------------------


SMOLLM2 = ROOT / "configs/smollm2_135m.yaml"
# As configs/laptop.yaml trains its world model, but for the rate, which was not tuned.
READER = {
    "warmup_tasks": 16,
    "weight_decay": 0.0,
    "model.rank": 64,
    "model.dropout": 0.0,
    "model.targets": "all-linear",
    "world_model.anonymise": 0.9,
    "world_model.learning_rate": 1.0e-3,
    "distributed.gradient_checkpointing": False,
}


def smollm2_base(bench: Bench) -> dict:
    """Where the model is, and how it is spoken to; in miniature the embedded base stands in."""
    path = os.environ.get("LFO_SMOLLM2", "")
    if bench.miniature:
        return {"model.base": str(ROOT / "data/base"), "model.dialect": "tags", "rollout.max_tokens": 256}
    if not path:
        raise Skipped("LFO_SMOLLM2 names no file or folder with SmolLM2-135M")
    return {"model.base": path, "model.dialect": str(ROOT / "configs/chatml_tools.jinja")}


def smollm2_config(bench: Bench, overrides: dict):
    from lfo.config import load_config

    short = {"warmup_tasks": 8, "eval_tasks": 16, "eval_episodes": 1, "eval_splits": ["validation"]}
    if bench.miniature:
        short |= {"rollout.tasks_per_step": 1, "rollout.group_size": 2, "rollout.max_refills": 0, "eval_tasks": 1}
        overrides = overrides | ({} if "world_model" in overrides else {"world_model.updates": 1})
    return load_config(SMOLLM2, **smollm2_base(bench), **short, **overrides)


def smollm2(bench: Bench, arm: str, overrides: dict) -> Iterator[Row]:
    """Training for two minutes between two evaluations."""
    from lfo.train import Run

    config = smollm2_config(bench, overrides)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, folder, device=bench.device)
        run.publish()
        before, steps = success(run.evaluate()), []
        began = time.perf_counter()
        while not steps or time.perf_counter() - began < (0 if bench.miniature else 120):
            steps.append(run.advance())
        spent = time.perf_counter() - began
        after = success(run.evaluate())
    name = f"SmolLM2-135M, {arm}"
    yield Row(f"{name}, steps", len(steps), f"steps in {spent:.0f} s")
    yield Row(f"{name}, sampling", mean(step["tokens_per_second"] for step in steps), "tokens/s")
    learned = sum(step["seconds"].get("joint", 0.0) + step["seconds"].get("replay", 0.0) for step in steps)
    yield Row(f"{name}, learning", sum(step["trained_tokens"] for step in steps) / max(learned, 1e-9), "tokens/s")
    yield Row(f"{name}, phone calls of a rollout", mean(step["train_calls_per_task"] for step in steps), "calls")
    peer = f"before: {before:.3f}"
    yield Row(f"{name}, success on validation", after, "share", peer, after / before if before else math.nan)


def success(rows: list[dict]) -> float:
    return next(row["success"] for row in rows if row["kind"] == "success" and row["level"] == 0)


def smollm2_baseline(bench: Bench) -> Iterator[Row]:
    yield from smollm2(bench, "baseline", {"world_model": None})


def smollm2_imagine(bench: Bench) -> Iterator[Row]:
    yield from smollm2(bench, "imagine", {"world_model.coupling": "imagine"})


def smollm2_reads(bench: Bench, replies: str, world: int) -> Iterator[Row]:
    """SmolLM2 as the world model of `01_learned` (notebook 01): the calls and the replay as there."""
    from lfo.lab.learned import learned_rows
    from lfo.lab.reading import SPLIT_NAMES

    overrides, heard = READER | smollm2_base(bench), 320
    if bench.miniature:
        heard = 1
        overrides |= {"rollout.tasks_per_step": 1, "world_model.updates": 1}
    for row in learned_rows([4], [world], [heard], SMOLLM2, [replies], bench.device, **overrides):
        name = f"SmolLM2-135M, world model, {replies}, world {world}, {SPLIT_NAMES[row['split']]}"
        yield Row(name, row["right"], f"share of {row['n']} replies right", f"{heard} calls heard")


PARTS: dict[str, dict[str, Piece]] = {
    "tests": {"pytest": gpu_tests},
    "shapes": {"learner": learner_shapes, "torch": torch_shapes, "vllm": vllm_shapes},
    "embedded": {"run": embedded},
    "smollm2": {"baseline": smollm2_baseline, "imagine": smollm2_imagine},
    "reading": {
        f"{said} {world}": functools.partial(smollm2_reads, replies=said, world=world)
        for said, world in itertools.product(("reasons", "list"), (110, 111))
    },
}


# --- the table -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Book:
    """gpu.csv, as this device and this commit write it."""

    path: Path
    device: str
    commit: str

    def rows(self) -> list[dict]:
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8") as f:
            return list(csv.DictReader(f))

    def mine(self) -> list[dict]:
        return [row for row in self.rows() if self._is_mine(row)]

    def _is_mine(self, row: dict) -> bool:
        return (row["device"], row["commit"]) == (self.device, self.commit)

    @property
    def firm(self) -> bool:
        """Whether the commit says what is measured: else it may have changed since."""
        return self.commit != "unknown" and not self.commit.endswith("-dirty")

    def finished(self, source: str) -> bool:
        """Whether a piece is through."""
        through = (row["source"] == source and row["subject"].startswith(FINISHED) for row in self.mine())
        return self.firm and any(through)

    def write(self, part: str, source: str, row: Row, seconds: float) -> None:
        """Put a row in the place of its old self."""
        numbers = {"value": f"{row.value:.4g}", "ratio": "" if math.isnan(row.ratio) else f"{row.ratio:.3g}"}
        told = {"part": part, "subject": row.subject, "unit": row.unit, "peer": row.peer, "source": source}
        where = {"device": self.device, "commit": self.commit, "seconds": f"{seconds:.1f}"}
        kept = [r for r in self.rows() if not (self._is_mine(r) and (r["part"], r["subject"]) == (part, row.subject))]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("w", newline="", encoding="utf-8") as f:
            writer = csv.DictWriter(f, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows([*kept, told | numbers | where])
        temporary.replace(self.path)
        print(f"  {row.subject}: {numbers['value']} {row.unit} {row.peer} {numbers['ratio']}".rstrip(), flush=True)


def commit() -> str:
    """What is measured: the commit, "-dirty" where the tree differs from it in anything but the tables."""
    if named := os.environ.get("LFO_COMMIT"):
        return named
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head}-dirty" if head and _git("status", "--porcelain", "--", ".", ":!*.csv") else head or "unknown"


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def device_name(miniature: bool) -> str:
    """
    Raises:
        SystemExit: a GPU is asked for and there is none.
    """
    import torch

    if miniature:
        return f"CPU, {torch.backends.cpu.get_cpu_capability()}, miniature"
    if not torch.cuda.is_available():
        print("There is no CUDA device here; --miniature runs every part on the CPU.", file=sys.stderr)
        raise SystemExit(NO_DEVICE)
    return torch.cuda.get_device_name(0)


# --- running ---------------------------------------------------------------------------------


def run_piece(bench: Bench, book: Book, part: str, name: str) -> bool:
    """Whether the piece is through, now or earlier, or cannot be measured here."""
    source = f"gpu.py {part}, {name}"
    if book.finished(source):
        print(f"{part}, {name}: measured before at {book.commit}")
        return True
    print(f"{part}, {name}:", flush=True)
    began = last = time.perf_counter()
    try:
        for row in PARTS[part][name](bench):
            now = time.perf_counter()
            book.write(part, source, row, now - last)
            last = now
    except Skipped as reason:
        print(f"  skipped: {reason}")
        return True
    except Exception as error:
        traceback.print_exc()
        print(f"  failed: {error}", file=sys.stderr)
        return False
    seconds = time.perf_counter() - began
    book.write(part, source, Row(f"{FINISHED}: {name}", seconds, "seconds"), seconds)
    return True


def run_part(bench: Bench, book: Book, part: str, table: Path) -> bool:
    """All pieces; each in its own process, but for a miniature, which saves their starting."""
    if bench.miniature:
        return all([run_piece(bench, book, part, name) for name in PARTS[part]])
    good = True
    for name in PARTS[part]:
        command = [sys.executable, __file__, part, "--piece", name, "--table", str(table)]
        good &= subprocess.run(command, check=False).returncode == 0
    return good


def summarise(book: Book) -> None:
    """The rows of this device and commit."""
    shown = ["part", "subject", "value", "unit", "peer", "ratio", "seconds"]
    rows = [row for row in book.mine() if not row["subject"].startswith(FINISHED)]
    print(f"{book.device}, commit {book.commit}, {len(rows)} rows in {book.path}\n")
    print(f"| {' | '.join(shown)} |\n|{'---|' * len(shown)}")
    for row in rows:
        print(f"| {' | '.join(row[name] for name in shown)} |")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("part", choices=[*PARTS, "summary"])
    made.add_argument("--miniature", action="store_true", help="tiny shapes on the CPU, to see that it works")
    made.add_argument("--table", type=Path, help="where rows are written; by default benchmarks/gpu.csv")
    made.add_argument("--piece", help="only this piece of the part, in this process")
    return made


def main(arguments=None) -> int:
    given = parser().parse_args(arguments)
    table = (given.table or (ROOT / "build/gpu_miniature.csv" if given.miniature else TABLE)).resolve()
    os.chdir(ROOT)  # configs name the base relative to the repository
    book = Book(table, device_name(given.miniature), commit())
    if given.part == "summary":
        summarise(book)
        return 0
    folder = ROOT / "build" / "gpu" / ("miniature" if given.miniature else book.commit)
    if given.miniature or not book.firm:  # what lies there may be of another tree
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench("cpu" if given.miniature else "cuda", given.miniature, folder)
    if given.piece:
        return 0 if run_piece(bench, book, given.part, given.piece) else 1
    return 0 if run_part(bench, book, given.part, table) else 1


if __name__ == "__main__":
    sys.exit(main())
