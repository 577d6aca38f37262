"""benchmarks/: timed by nobody here, but every script starts, contenders take turns, the tables are what they say."""

import csv
import importlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from lfo.rollout import Prompt, complete
from lfo.rollout.play import play
from lfo.rollout.torch_engine import TorchEngine
from lfo.text.base import load_base
from lfo.train import Run

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("common", "gpu"))


@pytest.fixture
def module(monkeypatch):
    """module("rollout"): the script, imported as it is when it is started."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_says_how_it_is_run(name, module, capsys):
    with pytest.raises(SystemExit) as stop:
        module(name).main(["--help"])
    assert stop.value.code == 0
    assert f"python benchmarks/{name}.py [--quick]" in capsys.readouterr().out


def test_every_contender_of_the_world_model_is_a_run(module, monkeypatch):
    """The laptop config changes with what is found out; what a benchmark overrides in it must still fit."""
    monkeypatch.chdir(ROOT)
    arms = {name: module("common").Size(1, 2, True).settings(**arm) for name, arm in module("world_model").ARMS.items()}
    assert {config.policy.learning_rate for config in arms.values()} == {1e-12}  # too small for a sum to notice
    modelled = {name: config.world_model for name, config in arms.items() if config.world_model}
    assert all(world_model.learning_rate == 0 for world_model in modelled.values())
    assert {world_model.updates for name, world_model in modelled.items() if "replay" not in name} == {0}
    assert {config.coupling for config in arms.values()} == {"none", "echo", "shared", "imagine"}


def test_ranks_differ_in_that_alone_and_are_held_against_64(module, monkeypatch):
    monkeypatch.chdir(ROOT)
    common, ranks = module("common"), module("ranks")
    size = common.Size(2, 2, False)
    configs = {name: size.settings(**arm) for name, arm in ranks.ARMS.items()}
    assert [c.model.rank for c in configs.values()] == [64, 4, 16, 256, 64]
    memory = {name: ranks.planned(config) for name, config in configs.items()}
    assert memory["rank 4"] < memory["rank 64"] < memory["rank 256"] < memory["rank 64, 3 members with 3 votes"]
    costs = {name: [10.0, 20.0] for name in configs} | {"rank 256": [20.0, 60.0]}
    found = {row["subject"]: row["ratio"] for row in ranks.rows(size, costs, memory)}
    assert len(found) == 8 and found["rank 256"] == 2.5 and found["rank 4, memory"] < 1


def test_the_table_holds_rows_of_scripts_that_exist(module):
    table = pd.read_csv(FOLDER / "results.csv")
    assert list(table.columns) == module("common").COLUMNS
    assert set(table.benchmark) <= set(SCRIPTS)
    assert all(source.startswith(f"{name}.py") for name, source in zip(table.benchmark, table.source, strict=True))
    assert table.instructions.str.fullmatch(r"not recorded|\w+, (no )?bf16").all()
    assert set(json.loads((FOLDER / "machine.json").read_text())) == set(table.benchmark)
    assert not table.duplicated(["benchmark", "subject", "peer"]).any()
    with_interval = table.dropna()
    assert (with_interval.low <= with_interval.ratio).all()
    assert (with_interval.ratio <= with_interval.high).all()


def test_contenders_take_turns_and_the_first_round_warms_up(module):
    calls = []
    contenders = {name: lambda n, name=name: calls.append((n, name)) or float(10 * n) for name in "ab"}
    costs = module("common").in_turn(contenders, 2)
    assert calls == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]
    assert costs == {"a": [10.0, 20.0], "b": [10.0, 20.0]}


def test_a_row_is_the_median_with_its_interval(module):
    common = module("common")
    row = common.row(common.Size(3, 8, False), "rollout", "us", "them", [2.0, 4.0, 3.0], "x")
    assert (row["low"], row["ratio"], row["high"]) == (2.0, 3.0, 4.0)
    threads = f"{torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    assert row["source"] == f"rollout.py, 64 rollouts, 3 rounds, {threads}"
    one = common.row(common.size("", ["--quick"]), "rollout", "us", "them", [2.0], "x")
    assert one["ratio"] == 2.0 and math.isnan(one["low"]) and "--quick" in one["source"]


def test_rows_replace_their_old_selves_and_leave_the_others(module, tmp_path, capsys):
    common, table = module("common"), tmp_path / "results.csv"
    size = common.Size(1, 8, False)

    def rows(benchmark, **ratios):
        return [common.row(size, benchmark, "us", peer, [ratio], "x") for peer, ratio in ratios.items()]

    common.record(rows("rollout", hf=1.0, vllm=2.0), table)
    common.record(rows("dapo_step", trl=3.0), table)
    common.record(rows("rollout", hf=4.0), table)  # where there is no vLLM
    held = pd.read_csv(table)
    assert list(held.columns) == common.COLUMNS
    assert dict(zip(held.peer, held.ratio, strict=True)) == {"trl": 3.0, "vllm": 2.0, "hf": 4.0}
    assert set(json.loads((tmp_path / "machine.json").read_text())) == {"rollout", "dapo_step"}
    for ratio in (5.0, 6.0):  # seconds have no peer
        common.record([common.row(size, "run", "us", "", [ratio], "seconds")], table)
    assert pd.read_csv(table).query("benchmark == 'run'").ratio.tolist() == [6.0]
    assert "hf" in capsys.readouterr().out


# --- engines and runs ------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generate_samples_what_the_torch_engine_samples(module, toy_path, codec, temperature):
    """Same seeds, same tokens: what is compared is speed alone."""
    contexts = [codec.encode("<|task|>Please call."), codec.encode("<|task|>Could you phone Harbor Bank?<|tool|>")]
    prompts = [Prompt(tokens, "base", 12, codec.end_id, temperature, seed) for seed, tokens in enumerate(contexts)]
    theirs = complete(module("common").HfGenerate(load_base(toy_path).eval()), prompts)
    ours = complete(TorchEngine(toy_path), prompts)
    assert [c.tokens for c in theirs] == [c.tokens for c in ours]


def test_generate_begins_when_every_row_waits(module, toy_path, codec, env, make_config):
    """Played by the same loop, all rows are in its first batch, and no row is in two batches of one turn."""
    common = module("common")
    batches = []

    class Watched(common.HfGenerate):
        def generate(self, prompts):
            batches.append([prompt.session for prompt in prompts])
            return super().generate(prompts)

    groups = common.Size(1, 2, True).groups(env)
    rows = play(Watched(load_base(toy_path).eval()), codec, groups, common.ALONE, make_config().rollout, 0)
    assert len(rows) == 16 and batches[0] == [*range(16)]
    assert all(sorted(set(batch)) == sorted(batch) and set(batch) <= set(batches[0]) for batch in batches)


def test_every_group_is_learned_from(module, make_config, tmp_path):
    """What reaches the learner is counted: a toy base never succeeds, so that dynamic sampling would keep nothing."""
    config = make_config(world_model=None)
    trained = {}
    for kind in (Run, module("common").EveryGroup):
        run = kind(config, tmp_path / kind.__name__)
        run.publish()
        metrics = run.advance()
        trained[kind.__name__] = metrics["trained_tokens"]
    assert trained["Run"] == 0 < trained["EveryGroup"] <= round(4 * metrics["tokens_per_rollout"])


def test_a_run_is_extrapolated_from_its_steps(module, make_config, tmp_path):
    run, size = module("run"), module("common").Size(2, 2, True)
    config = make_config(**{"task_budget": 8, "eval_every": 4})
    phases = run.measure(config, tmp_path, steps=2)
    assert phases.times == dict.fromkeys((*run.PHASES, "other", "step"), 4) | {"evaluate": 3, "checkpoint": 4}
    assert len(phases.all) == 2 and min(phases.all) > 3 * phases.evaluate
    rows = {row["subject"]: row for row in run.rows(size, phases)}
    assert {"rollout", "joint", "replay", "publish", "evaluate", "the whole run"} <= set(rows)
    assert rows["evaluation / run"]["ratio"] < 1 and "8 tasks" in rows["rollout"]["unit"]
    assert rows["rollout"]["ratio"] == pytest.approx(2 * sum(phases.steps["rollout"][1:]), rel=0.01)  # 4 steps of 2


def test_what_auto_chose_is_held_against_the_other(module):
    found = {"auto": "fp32", "instructions": "AVX2, no bf16", "seconds": {"bf16": [3.0], "fp32": [1.0]}}
    auto, bf16, fp32 = module("precision").rows(module("common").Size(1, 2, True), "held to AVX2", found)
    assert (auto["ratio"], auto["unit"]) == (3.0, "x faster (auto: fp32)")
    assert (bf16["ratio"], fp32["ratio"], auto["instructions"]) == (3.0, 1.0, "AVX2, no bf16")


def test_a_processor_that_is_held_back_has_no_bf16(module, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert module("common").instructions().endswith(", no bf16")


# --- the GPU check ---------------------------------------------------------------------------


@pytest.fixture
def gpu(module, monkeypatch):
    monkeypatch.chdir(ROOT)
    return module("gpu")


def test_the_whole_gpu_check_runs_in_miniature(gpu, tmp_path, monkeypatch, capsys):
    table = tmp_path / "gpu.csv"
    monkeypatch.setenv("LFO_COMMIT", "a-commit")
    monkeypatch.setenv("PYTHON", sys.executable)
    command = ["scripts/gpu_check.sh", "--miniature", "--table", str(table)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all parts passed: tests shapes embedded smollm2 reading" in done.stdout
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert list(rows[0]) == gpu.COLUMNS and {row["commit"] for row in rows} == {"a-commit"}
    through = {row["source"] for row in rows if row["subject"].startswith(gpu.FINISHED)}
    wanted = {f"gpu.py {part}, {name}" for part, pieces in gpu.PARTS.items() for name in pieces}
    assert wanted - through <= {"gpu.py shapes, vllm"}  # where vLLM is not installed
    before = table.read_text()
    assert gpu.main(["embedded", "--miniature", "--table", str(table)]) == 0
    assert "measured before" in capsys.readouterr().out and table.read_text() == before


def test_the_gpu_check_explains_itself_and_knows_its_parts():
    told = subprocess.run(["scripts/gpu_check.sh", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--miniature" in told.stdout and "LFO_SMOLLM2" in told.stdout
    odd = subprocess.run(["scripts/gpu_check.sh", "test"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert odd.returncode == 1 and "no part or option 'test'" in odd.stderr


def test_a_piece_that_fails_keeps_its_rows_and_is_measured_again(gpu, tmp_path, monkeypatch):
    values = iter((1.0, 2.0))

    def piece(bench):
        value = next(values)
        yield gpu.Row("speed", value, "tokens/s")
        if value == 1.0:
            raise gpu.Failed("too slow")

    def missing(bench):
        raise gpu.Skipped("it is not installed")
        yield

    monkeypatch.setattr(gpu, "PARTS", {"part": {"piece": piece, "missing": missing}})
    book = gpu.Book(tmp_path / "gpu.csv", "a GPU", "a-commit")
    bench = gpu.Bench("cpu", True, tmp_path)
    assert [gpu.run_part(bench, book, "part", book.path) for _ in range(3)] == [False, True, True]
    assert [row["subject"] for row in book.rows()] == ["speed", "finished: piece"]
    assert book.rows()[0]["value"] == "2"
    assert not gpu.Book(book.path, "another GPU", "a-commit").finished("gpu.py part, piece")
    for vague in ("unknown", "a-commit-dirty"):
        again = gpu.Book(tmp_path / f"{vague}.csv", "a GPU", vague)
        again.write("part", "gpu.py part, piece", gpu.Row("finished: piece", 1.0, "seconds"), 1.0)
        assert not again.finished("gpu.py part, piece")


# --- what is written about them --------------------------------------------------------------


def test_every_script_that_is_named_exists():
    named = set()
    for text in (FOLDER / "README.md", ROOT / "README.md"):
        named |= set(re.findall(r"(?:benchmarks|scripts)/\w+\.(?:py|sh)", text.read_text()))
    assert all((ROOT / name).is_file() for name in named)
    assert {f"benchmarks/{name}.py" for name in SCRIPTS} | {"scripts/gpu_check.sh"} <= named
    (line,) = re.findall(r"^BENCHMARKS := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert set(line.split()) <= set(SCRIPTS)
