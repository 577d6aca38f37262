"""cli: every command on tiny input, and every mistake a user can mend as one sentence."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM

import lfo.envs.phone
from lfo.cli import build_parser, main, parse_settings, usable_device
from lfo.config import ConfigError, as_dict
from lfo.envs.phone.callers import REFERENCE_POLICIES
from lfo.envs.phone.tools import phone_call
from lfo.envs.phone.typed import HELP
from lfo.types import POLICY, WORLD_MODEL, Encoded, Example


@pytest.fixture(scope="module")
def config_path(make_config, tmp_path_factory):
    """A config file of two steps on the toy base."""
    settings = {"env.levels": [1], "task_budget": 2, "eval_splits": ["validation"], "rollout.tasks_per_step": 1}
    config = make_config(**settings)
    path = tmp_path_factory.mktemp("configs") / "tiny.yaml"
    path.write_text(json.dumps(as_dict(config)))  # JSON is YAML
    return path


@pytest.fixture(scope="module")
def run_folder(config_path, tmp_path_factory):
    """The run folder of `lfo train`."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert main(["train", "--quiet", "--config", str(config_path), "--run", str(folder), "--set", "seed=3"]) == 0
    return folder


# --- the commands ----------------------------------------------------------------------------


def test_train_says_where_its_results_are(config_path, run_folder, capsys):
    settings = ["--set", "seed=3", "name=again"]
    again = run_folder.parent / "again"
    assert main(["train", "--quiet", "--config", str(config_path), "--run", str(again), *settings]) == 0
    assert capsys.readouterr().out == f"metrics: {again / 'metrics.jsonl'}; adapters: {again / 'adapters'}\n"
    written = json.loads((again / "config.json").read_text())
    assert (written["seed"], written["name"]) == (3, "again")
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["tasks"] for row in rows if row["kind"] == "step"] == [1, 2]


def test_serve_becomes_the_server(config_path, monkeypatch):
    became = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(os, "execvpe", lambda file, command, environment: became.append((command, environment)))
    arguments = ["--port", "8002", "--set", "model.rank=12", "--", "--tensor-parallel-size", "2"]
    assert main(["serve", "--config", str(config_path), *arguments]) == 0
    ((command, environment),) = became
    assert command[0] == sys.executable and command[-4:] == ["--port", "8002", "--tensor-parallel-size", "2"]
    assert command[command.index("--max-lora-rank") + 1] == "16"
    assert "127.0.0.1" in command  # nobody else may load adapters, unless --host says so
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True" and environment["PATH"] == os.environ["PATH"]


def test_evaluate_prints_success_by_level(run_folder, capsys):
    assert main(["evaluate", "--run", str(run_folder), "--episodes", "1", "--held-out-phrasing"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == f"{run_folder}: validation, held-out phrasing" and len(lines) == 2
    for line, level in zip(lines, ("all     ", "level 1 "), strict=True):
        assert re.fullmatch(rf"{level} +\d+\.\d%  \[\d+\.\d%, \d+\.\d%\]  n=20", line)


def test_evaluate_asks_nothing_of_an_environment_that_it_need_not_know(run_folder, capsys, monkeypatch):
    make = lfo.envs.phone.make
    monkeypatch.setattr(lfo.envs.phone, "make", lambda config: make(config))
    assert main(["evaluate", "--run", str(run_folder), "--episodes", "1"]) == 0
    assert "\nall " in capsys.readouterr().out


def test_train_goes_on_with_the_runs_own_config(run_folder, capsys):
    before = (run_folder / "config.json").read_bytes()
    assert main(["train", "--run", str(run_folder), "--quiet"]) == 0
    assert (run_folder / "config.json").read_bytes() == before and capsys.readouterr().out
    other = complaint(capsys, "train", "--run", run_folder, "--config", "configs/smoke.yaml")
    assert "was written with another config" in other


@pytest.mark.parametrize("option", [["evaluate", "--episodes", "0"], ["sweep", "--workers", "0"]])
def test_how_many_is_at_least_one(option, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*option, "--run", "here"])
    assert stopped.value.code == 2 and "0" in capsys.readouterr().err


def test_diagnose_prints_numbers_and_advice(run_folder, capsys):
    assert main(["diagnose", str(run_folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["tasks", "2"] and lines[-1].startswith("The world model names the fields of ")
    numbers, findings = lines[:7], lines[7:-1]
    assert all(re.fullmatch(r"[a-z ]+ (-|[-+.\de]+)", line) for line in numbers)
    assert all(re.fullmatch(r"(Warning: )?The world model's .* times the policy's .*", line) for line in findings)


def test_inspect_shows_predictions_beside_replies(run_folder, tmp_path, capsys, monkeypatch):
    """The toy policy calls nobody, so the calls are made for it."""

    def played(engine, codec, coupling, tasks, rollout, episodes, predict):
        reply = json.dumps({"status": "auth_failed", "message": "Billing. I need your email address."})
        encoded, call = Encoded(tuple(codec.encode("call")), (1,)), phone_call("800-555-0003")
        example = Example(tasks[0].task_id, call, reply, "auth_failed", encoded, "Please.", ())
        assert (len(tasks), episodes, predict) == (3, 1, "phone") and tasks[0].split == "test"
        return [SimpleNamespace(examples=[example] * 2)] * 2

    monkeypatch.setattr("lfo.lab.inspect.play_tasks", played)
    out = tmp_path / "new" / "calls.csv"
    assert main(["inspect", str(run_folder), "--split", "test", "--calls", "3", "--out", str(out)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["task_id", "category", "gave", "said", "predicted", "fields_right", "right"]
    assert shown[-2:] == ["auth_failed: exact fields 0/3, status and departments too 0/3", f"wrote {out}"]
    with out.open() as f:
        rows = list(csv.DictReader(f))
    assert [row["said"] for row in rows] == ["auth_failed: Billing. I need your email address."] * 3
    assert {row["right"] for row in rows} == {"False"}


@pytest.mark.parametrize("out", [None, "elsewhere/page.html"])
def test_trajectories_are_written_as_a_page(run_folder, tmp_path, capsys, out):
    arguments = ["--out", str(tmp_path / out)] if out else []
    assert main(["trajectories", str(run_folder), "--tasks", "3", *arguments]) == 0
    path = tmp_path / out if out else run_folder / "trajectories.html"
    assert capsys.readouterr().out == f"wrote {path}\n"
    page = path.read_text()
    assert "<title>tiny: 3 groups of 2 rollouts</title>" in page
    assert page.count("<h3>train-") == 3 and page.count("<summary>") == 6


def test_a_label_that_comes_twice_has_the_folders_of_both(run_folder, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("lfo.lab.report.report", lambda runs, out: drawn.append(runs) or [])
    assert main(["report", "a=x,y", "b=w", "a=z"]) == 0
    assert drawn == [{"a": ["x", "y", "z"], "b": ["w"]}]


def test_report_writes_figures_and_tables(run_folder, tmp_path, capsys):
    assert main(["report", f"tiny={run_folder}", "--out", str(tmp_path / "report")]) == 0
    written = capsys.readouterr().out.removeprefix("wrote ").strip().split(", ")
    assert str(tmp_path / "report" / "learning_curves.png") in written
    assert all(os.path.exists(path) for path in written)


@pytest.mark.parametrize("adapter", [POLICY, WORLD_MODEL])
def test_merge_writes_a_plain_model(run_folder, tmp_path, capsys, adapter):
    out = tmp_path / "merged"
    assert main(["merge", "--run", str(run_folder), "--adapter", adapter, "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert AutoModelForCausalLM.from_pretrained(out).config.model_type == "qwen3"


@pytest.mark.parametrize("policy", REFERENCE_POLICIES)
def test_play_shows_a_reference_policy(policy, capsys):
    assert main(["play", "--policy", policy, "--task", "train-000", "--seed", "1"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^(success|agent_stopped); success (True|False); shaped reward \d\.\d\d$", shown.splitlines()[-1])
    assert ("success True" in shown) or policy != "oracle"


def test_play_takes_what_is_typed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("search nobody\ngibberish\nhang up\n"))
    assert main(["play"]) == 0
    shown = [line.removeprefix("> ") for line in capsys.readouterr().out.splitlines()]
    assert shown[1] == shown[3] == HELP and shown[2] == "  no company of that name"
    assert shown[-1] == "agent_stopped; success False; shaped reward 0.00"


class Leaving(io.StringIO):
    """Ctrl-C in the place of a line."""

    def readline(self, *_):
        raise KeyboardInterrupt


@pytest.mark.parametrize("typed", [io.StringIO, Leaving])
def test_leaving_a_game_is_no_error(monkeypatch, capsys, typed):
    monkeypatch.setattr(sys, "stdin", typed())
    assert main(["play"]) == 130
    assert capsys.readouterr().err == ""


def test_readme_writes_the_pages_of_this_folder(monkeypatch, capsys):
    written = []
    monkeypatch.setattr("lfo.lab.pages.write_pages", written.append)
    assert main(["readme"]) == 0
    assert written == ["."] and capsys.readouterr().out == "wrote the generated parts of README.md and docs/\n"


@pytest.mark.parametrize("command", ["plan --config x", "train --run x", "serve --config x"])
def test_settings_may_be_given_one_by_one(command):
    arguments = [*command.split(), "--set", "seed=1", "name=a", "--set", "model.rank=4"]
    assert build_parser().parse_args(arguments).set == ["seed=1", "name=a", "model.rank=4"]


def test_settings_are_read_as_yaml():
    assert parse_settings(
        ["seed=1", "env.levels=[1, 2]", "policy.learning_rate=1e-3", "name=a=b", "model.autocast=no"]
    ) == {
        "seed": 1,
        "env.levels": [1, 2],
        "policy.learning_rate": "1e-3",  # text to YAML 1.1; load_config makes a number of it
        "name": "a=b",
        "model.autocast": False,
    }


# --- mistakes --------------------------------------------------------------------------------


def complaint(capsys, *arguments: str) -> str:
    """What the command says on stderr: one line, and nothing else."""
    assert main([str(a) for a in arguments]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.endswith("\n") and shown.err.count("\n") == 1
    assert shown.err.startswith(f"lfo {arguments[0]}: ")
    return shown.err.removeprefix(f"lfo {arguments[0]}: ").rstrip()


def test_the_learning_rate_of_the_help_text_is_a_number(config_path, tmp_path, capsys):
    """`1e-3` must get past the config: the sentence is about the setting after it."""
    said = complaint(
        capsys, "train", "--config", config_path, "--run", tmp_path, "--set", "policy.learning_rate=1e-3", "sed=1"
    )
    assert said == "unknown setting 'sed'; did you mean 'seed'?"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["policy.learning_rat=1"], "unknown setting 'policy.learning_rat'; did you mean 'policy.learning_rate'?"),
        (["seed"], "--set takes NAME=VALUE, got 'seed'."),
        (["env.levels=[1"], "--set env.levels, line 1 is not YAML (expected ',' or ']', but got '<stream end>')."),
        (["world_model.coupling=magic"], "'memory', 'truth' or 'cloning', got 'magic'."),
        (["model.base=nowhere"], "no base model in 'nowhere'; make the embedded one with `make base`"),
    ],
)
def test_a_wrong_setting_is_named(config_path, tmp_path, capsys, settings, sentence):
    said = complaint(capsys, "train", "--config", config_path, "--run", tmp_path / "run", "--set", *settings)
    assert sentence in said
    assert not (tmp_path / "run").exists()  # nothing was begun


def test_a_missing_config_lists_the_others(config_path, tmp_path, capsys):
    said = complaint(capsys, "train", "--config", config_path.with_name("other.yaml"), "--run", tmp_path)
    assert said == f"there is no config {config_path.with_name('other.yaml')}; configs: {config_path}."


@pytest.mark.parametrize("device", ["abacus", "cuda:77"])
def test_a_device_that_is_not_there_is_named(config_path, tmp_path, capsys, device):
    said = complaint(capsys, "train", "--config", config_path, "--run", tmp_path, "--device", device)
    assert said.startswith(f"device '{device}' cannot be used (") and "choose cpu" in said
    assert usable_device("cpu") == "cpu"
    with pytest.raises(ConfigError):
        usable_device(device)


def test_another_config_in_the_same_folder_is_refused(config_path, run_folder, capsys):
    said = complaint(capsys, "train", "--quiet", "--config", config_path, "--run", run_folder, "--set", "seed=4")
    assert "written with another config (seed differ)" in said and "choose a new run folder" in said


@pytest.mark.parametrize(
    ("command", "lacking"),
    [
        (["evaluate", "--run"], "config.json"),
        (["inspect"], "config.json"),
        (["trajectories"], "config.json"),
        (["diagnose"], "metrics.jsonl"),
    ],
)
def test_what_is_no_run_folder_says_how_to_make_one(tmp_path, capsys, command, lacking):
    said = complaint(capsys, *command, tmp_path / "nowhere")
    assert said == f"{tmp_path}/nowhere is no run folder ({lacking} is missing); train there first."


def test_a_run_without_adapters_says_how_to_train(run_folder, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(run_folder / "config.json", bare)
    for command in (["evaluate", "--run"], ["inspect"], ["trajectories"], ["merge", "--out", "merged", "--run"]):
        said = complaint(capsys, *command, bare)
        assert said == f"{bare} holds no adapters; train there first: `lfo train --run {bare}`."


def test_what_cannot_be_inspected_is_named(run_folder, tmp_path, capsys):
    said = complaint(capsys, "inspect", run_folder, "--calls", "2")
    assert said == f"the policy of {run_folder} made no call in 2 episodes; train it further."
    baseline = tmp_path / "baseline"
    shutil.copytree(run_folder, baseline)
    config = json.loads((baseline / "config.json").read_text())
    config["world_model"] = None
    (baseline / "config.json").write_text(json.dumps(config))
    said = complaint(capsys, "inspect", baseline)
    assert said == f"{baseline} has no world model; inspect another run."


@pytest.mark.parametrize(
    "arguments",
    [["inspect", "x", "--split", "tset"], ["inspect", "x", "--calls", "0"], ["trajectories", "x", "--tasks", "-1"]],
)
def test_options_that_make_no_sense_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert f"'{arguments[-1]}'" in capsys.readouterr().err


def test_an_unknown_adapter_lists_the_known_ones(run_folder, tmp_path, capsys):
    said = complaint(capsys, "merge", "--run", run_folder, "--adapter", "polcy", "--out", tmp_path / "merged")
    assert said == f"{run_folder} has no adapter 'polcy'; it has: policy, world_model."


def test_a_world_is_not_written_among_other_things(tmp_path, capsys):
    (tmp_path / "mine.txt").touch()
    for out in (tmp_path, tmp_path / "mine.txt"):
        said = complaint(capsys, "generate", "--out", out)
        assert said == f"{out} holds something else than a world; name a new folder with --out."
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    world = tmp_path / "world"
    assert main(["generate", "--out", str(world)]) == 0
    (world / "checksums.json").unlink()  # written last: somebody interrupted it
    assert main(["generate", "--out", str(world)]) == 0


@pytest.mark.parametrize(
    "argv", [("generate", "--seed", "-1"), ("plan", "--config", "x", "--gpu-gib", "0"), ("plan", "--gpu-gib", "nan")]
)
def test_numbers_that_cannot_be_are_refused(argv, capsys):
    with pytest.raises(SystemExit):
        main(list(argv))
    assert re.search(r"invalid (seed \(0 or more\)|size \(above 0\)) value", capsys.readouterr().err)


def test_a_report_needs_labels_and_runs(tmp_path, capsys):
    assert "got 'runs/0'" in complaint(capsys, "report", "runs/0")
    said = complaint(capsys, "report", f"a={tmp_path}/nowhere", "--out", tmp_path / "report")
    assert said.startswith(f"{tmp_path}/nowhere is no run folder (")


def test_what_cannot_be_played_is_named(capsys):
    assert complaint(capsys, "play", "--task", "train-999").startswith("there is no task 'train-999'; try train-000")
    known = "oracle, typical-prior, retry-from-csr, constant-form, random, ask-everything, no-op."
    assert complaint(capsys, "play", "--policy", "oracel") == f"there is no policy 'oracel'; policies: {known}"


def test_a_grid_that_does_not_fit_is_named(tmp_path, config_path, capsys):
    grid = tmp_path / "grid.yaml"
    arguments = ("sweep", "--grid", grid, "--out", tmp_path / "out")
    assert complaint(capsys, *arguments) == f"there is no grid {grid}; configs/science.yaml is one."
    grid.write_text("seed: 1")
    assert (
        complaint(capsys, *arguments)
        == f"{grid} must be a YAML file with these keys: arms, config, fixed, grid, seeds, worlds."
    )
    grid.write_text("config: [")
    assert f"{grid}, line 1 is not YAML" in complaint(capsys, *arguments)
    grid.write_text(f"config: {config_path}\ngrid: {{policy.epochs: 1}}")
    assert complaint(capsys, *arguments) == f"{grid}: 'grid.policy.epochs': input should be a valid list, got 1."
    grid.write_text(f"config: {config_path}\ngrid: {{policy.epoch: [1]}}")
    assert complaint(capsys, *arguments) == "unknown setting 'policy.epoch'; did you mean 'policy.epochs'?"


def test_the_command_is_quick_to_refuse():
    """Parsing a command imports no torch."""
    code = "import sys; from lfo.cli import main; main(['play', '--task', 'x']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr.startswith("lfo play: there is no task 'x'")


def test_an_unknown_command_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["trian"])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("generate", "train", "evaluate", "report", "merge", "play", "sweep"))
