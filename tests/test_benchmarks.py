"""benchmarks/: never run here, but every script starts, contenders take turns, and the table is what it says it is."""

import dataclasses
import importlib
import json
import math
from pathlib import Path

import pandas as pd
import pytest

from lfo.base import load_base
from lfo.config import NO_WORLD_MODEL
from lfo.rollout import Prompt, TorchEngine
from lfo.train import Run

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "common")


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
    monkeypatch.chdir(FOLDER.parent)
    arms = {name: module("common").Size(1, 2, True).settings(**arm) for name, arm in module("world_model").ARMS.items()}
    assert all(config.policy.learning_rate == config.world_model.learning_rate == 0 for config in arms.values())
    assert {config.world_model.updates for name, config in arms.items() if "replay" not in name} == {0}


def test_only_one_of_two_runs_is_compiled(module, monkeypatch):
    monkeypatch.chdir(FOLDER.parent)
    plain, compiled = module("compiled").contenders(module("common").Size(1, 2, True)).values()
    assert not plain.distributed.compile and compiled.distributed.compile
    assert dataclasses.replace(compiled, distributed=plain.distributed) == plain and plain.world_model.updates == 20


def test_without_a_compiler_the_other_benchmarks_are_not_kept_from_running(module, monkeypatch, capsys):
    monkeypatch.chdir(FOLDER.parent)
    monkeypatch.setattr("shutil.which", lambda name: None)
    module("compiled").main(["--quick"])
    assert capsys.readouterr().out.startswith("skipped: distributed.compile needs a C++ compiler")


def test_the_table_holds_rows_of_scripts_that_exist(module):
    table = pd.read_csv(FOLDER / "results.csv")
    assert list(table.columns) == module("common").COLUMNS
    assert set(table.benchmark) <= set(SCRIPTS)
    assert all(source.startswith(f"{name}.py") for name, source in zip(table.benchmark, table.source, strict=True))
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
    assert row["source"] == "rollout.py, 64 rollouts, 3 rounds"
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
    assert "hf" in capsys.readouterr().out


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generate_samples_what_the_torch_engine_samples(module, toy_path, codec, temperature):
    """Same seed, same tokens: what is compared is speed alone."""
    contexts = [codec.encode("<|task|>Please call."), codec.encode("<|task|>Could you phone Harbor Bank?<|tool|>")]
    prompts = [Prompt(tokens, "base", 12, codec.end_id, temperature) for tokens in contexts]
    theirs = module("common").HfGenerate(load_base(toy_path).eval()).generate(prompts, 3)
    ours = TorchEngine(toy_path).generate(prompts, 3)
    assert [c.tokens for c in theirs] == [c.tokens for c in ours]


def test_every_group_is_learned_from(module, make_config, tmp_path):
    """What reaches the learner is counted: a toy base never succeeds, so that dynamic sampling would keep nothing."""
    config = make_config(**NO_WORLD_MODEL)
    trained = {}
    for kind in (Run, module("common").EveryGroup):
        run = kind(config, tmp_path / kind.__name__)
        run.publish()
        metrics = run.advance()
        trained[kind.__name__] = metrics["trained_tokens"]
    assert trained == {"Run": 0, "EveryGroup": round(4 * metrics["tokens_per_rollout"])}
