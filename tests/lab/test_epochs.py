"""LoRA + PPO by epochs: the folder of each, going on after any of them, adapters that are switched and merged."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from sandboxed import needs_sandbox
from test_toy import Evenness, metrics_of

from lfo.cli import main
from lfo.config import ConfigError, RunConfig, as_dict, load_config
from lfo.lab.epochs import (
    CHECKPOINT,
    STATS,
    Options,
    epoch_config,
    evaluate_adapters,
    evaluate_merged,
    go_back,
    merge,
    train_epochs,
    training_stats,
)
from lfo.runs import CheckpointError, RunError, RunFolder

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "configs" / "qwen25_32b_os.yaml"


@pytest.fixture(scope="module")
def config(make_config) -> RunConfig:
    """Four epochs of six rollouts, in batches of two, passed over twice."""
    settings = {"rollout.group_size": 1, "rollout.tasks_per_step": 6, "task_budget": 24, "eval_every": 12}
    settings |= {"policy.epochs": 2, "policy.groups_per_update": 2, "policy.entropy": 0.01, "ppo.critic": True}
    return make_config(world_model=None, **settings, eval_splits=["validation"])


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory) -> Path:
    """A run that was never interrupted."""
    return train_epochs(config, tmp_path_factory.mktemp("epochs") / "whole", env=Evenness(), progress=False)


def weights(folder: Path, file: str = "adapter_model.safetensors") -> dict[str, torch.Tensor]:
    return load_file(folder / file)


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---------------------------------------------------------------- what the options mean


def test_the_guides_setting_is_the_shipped_configs():
    config = epoch_config(GUIDE, "shell")
    guide = Options(
        num_epochs=10,
        samples_per_epoch=50,
        learning_rate=1e-5,
        batch_size=4,
        ppo_epochs=4,
        lora_r=16,
        lora_alpha=32,
    )
    assert epoch_config(GUIDE, "shell", guide) == config == load_config(GUIDE)
    assert (config.model.dropout, config.model.targets) == (0.1, "attention")


def test_every_option_is_a_setting():
    options = Options(3, 8, 2e-5, 2, 5, 32, 64)
    config = epoch_config(GUIDE, "shell", options, {"seed": 7})
    assert (config.task_budget, config.rollout.tasks_per_step, config.seed) == (24, 8, 7)
    assert (config.policy.learning_rate, config.policy.groups_per_update, config.policy.epochs) == (2e-5, 2, 5)
    assert config.model.rank == 32


def test_groups_divide_rollouts():
    config = epoch_config(GUIDE, "shell", Options(samples_per_epoch=8, batch_size=4), {"rollout.group_size": 4})
    assert (config.rollout.tasks_per_step, config.policy.groups_per_update, config.task_budget) == (2, 1, 20)


@pytest.mark.parametrize(
    ("path", "options", "settings", "sentence"),
    [
        ("configs/ppo.yaml", {}, {}, r"ppo.yaml is for the environment 'phone', not 'shell': use `lfo train`"),
        ("configs/shell_smoke.yaml", {}, {}, "no config for PPO, it has no group of settings `ppo`"),
        (GUIDE, {"lora_alpha": 16}, {}, "--lora_alpha 16: alpha is always twice the rank here, 32"),
        (GUIDE, {"samples_per_epoch": 50}, {"rollout.group_size": 8}, "50 is no multiple of rollout.group_size 8"),
        (GUIDE, {"batch_size": 4}, {"rollout.group_size": 8}, "--batch_size 4 is no multiple of rollout.group_size 8"),
    ],
)
def test_what_does_not_fit_is_named(path, options, settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        epoch_config(ROOT / path, "shell", Options(**options), settings)


# ---------------------------------------------------------------- the folders


def test_every_epoch_has_its_folder(whole):
    assert sorted(path.name for path in whole.glob("epoch_*")) == [f"epoch_{k}" for k in (1, 2, 3, 4)]
    for path in whole.glob("epoch_*"):
        names = {"adapter_config.json", "adapter_model.safetensors", "value_head.safetensors", STATS, CHECKPOINT}
        assert names <= {file.name for file in path.iterdir()}
    assert same(weights(whole / "epoch_4"), weights(RunFolder(whole).adapters()["policy"]))
    assert not same(weights(whole / "epoch_3"), weights(whole / "epoch_4"))


def test_statistics_are_those_of_the_metrics(whole):
    steps = [row for row in RunFolder(whole).metrics() if row["kind"] == "step"]
    assert len(steps) == 4
    for number, step in enumerate(steps, 1):
        stats = json.loads((whole / f"epoch_{number}" / STATS).read_text())
        assert (stats["epoch"], stats["trajectories"]) == (number, 6)
        assert (stats["accuracy"], stats["mean_reward"]) == (step["train_success"], step["train_reward"])
        assert (stats["policy_loss"], stats["kl"]) == (step["policy/loss"], step["policy/kl"])
        assert (stats["clip_fraction"], stats["entropy"]) == (step["policy/ratio_clipped"], step["policy/entropy"])
        assert stats["explained_variance"] == step["policy/explained_variance"] and stats["seconds"] > 0


def test_ends_are_counted_where_the_environment_counts_them(config):
    metrics = {"step": 2, "groups_sampled": 6, "seconds": {"rollout": 1.0, "joint": 0.5}, "train_reward": 0.25}
    counted = {"train_correct": 0.5, "train_incorrect": 1 / 3, "train_unknown": 1 / 6}
    stats = training_stats(config, metrics | counted)
    assert (stats["correct"], stats["incorrect"], stats["unknown"]) == (3, 2, 1)
    assert stats["seconds"] == 1.5 and stats["value_loss"] is None


# ---------------------------------------------------------------- going on


@pytest.mark.parametrize("number", [1, 3, 4])
def test_after_any_epoch_it_goes_on_exactly(whole, config, tmp_path, number):
    """In another folder, which is then as the first one; 4: the last one, after which only the evaluation is left."""
    there = tmp_path / "there"
    train_epochs(config, there, whole / f"epoch_{number}", env=Evenness(), progress=False)
    assert metrics_of(there) == metrics_of(whole)
    for k in (1, 2, 3, 4):
        assert same(weights(there / f"epoch_{k}"), weights(whole / f"epoch_{k}"))
        assert same(*(weights(folder / f"epoch_{k}", "value_head.safetensors") for folder in (there, whole)))


def test_an_epoch_may_be_gone_back_to(whole, config, tmp_path):
    there = tmp_path / "there"
    shutil.copytree(whole, there)
    train_epochs(config, there, there / "epoch_2", env=Evenness(), progress=False)
    assert metrics_of(there) == metrics_of(whole) and same(weights(there / "epoch_4"), weights(whole / "epoch_4"))


class Killed(BaseException):
    """In the place of a signal that nothing can catch."""


@contextlib.contextmanager
def killed_at_the_second_copy(monkeypatch):
    calls, copytree = [], shutil.copytree

    def killed(*args, **options):
        calls.append(args)
        if len(calls) == 2:
            raise Killed
        return copytree(*args, **options)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(shutil, "copytree", killed)
        yield


def test_killed_between_checkpoint_and_folder_the_folder_is_written_later(whole, config, tmp_path, monkeypatch):
    there = tmp_path / "there"
    with killed_at_the_second_copy(monkeypatch):
        train_epochs(config, there, env=Evenness(), progress=False)
    assert not (there / "epoch_2").exists() and RunFolder(there).checkpoints[-1].name == "step-000002.pt"
    train_epochs(config, there, env=Evenness(), progress=False)
    assert sorted(path.name for path in there.glob("epoch_*")) == [f"epoch_{k}" for k in (1, 2, 3, 4)]
    assert metrics_of(there) == metrics_of(whole)
    for file in ("adapter_model.safetensors", "value_head.safetensors"):
        assert same(weights(there / "epoch_2", file), weights(whole / "epoch_2", file))
    mine, theirs = (json.loads((folder / "epoch_2" / STATS).read_text()) for folder in (there, whole))
    assert mine | {"seconds": 0} == theirs | {"seconds": 0}


@pytest.mark.parametrize("what", ["copy2", "rmtree"])
def test_killed_while_it_goes_back_nothing_is_begun_anew(whole, config, tmp_path, monkeypatch, what):
    """It goes on from a checkpoint that is there, by the plain command or by the same one again."""
    there = shutil.copytree(whole, tmp_path / "there")

    def killed(*args, **options):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(shutil, what, killed)
        go_back(config, there / "epoch_1", there)
    assert RunFolder(there).tasks_done() > 0
    plain = shutil.copytree(there, tmp_path / "plain")
    train_epochs(config, plain, env=Evenness(), progress=False)
    train_epochs(config, there, there / "epoch_1", env=Evenness(), progress=False)
    for folder in (plain, there):
        assert metrics_of(folder) == metrics_of(whole) and same(weights(folder / "epoch_4"), weights(whole / "epoch_4"))


def test_what_another_process_trains_is_not_gone_back(whole, config, tmp_path, monkeypatch):
    def taken(*_):
        raise BlockingIOError

    there = shutil.copytree(whole, tmp_path / "there")
    monkeypatch.setattr("fcntl.lockf", taken)
    with pytest.raises(RunError, match="is being trained by another process"):
        train_epochs(config, there, there / "epoch_1", env=Evenness(), progress=False)
    assert (there / "epoch_4" / STATS).exists() and len(RunFolder(there).checkpoints) == 2


def test_killed_while_it_is_copied_it_may_be_copied_again(whole, config, tmp_path, monkeypatch):
    there = tmp_path / "there"
    with killed_at_the_second_copy(monkeypatch):
        go_back(config, whole / "epoch_2", there)
    train_epochs(config, there, whole / "epoch_2", env=Evenness(), progress=False)
    assert metrics_of(there) == metrics_of(whole)


def test_what_cannot_be_gone_on_from_is_named_and_nothing_is_lost(whole, config, make_config, tmp_path):
    with pytest.raises(RunError, match=r"is no epoch's folder"):
        train_epochs(config, tmp_path / "a", tmp_path, env=Evenness(), progress=False)
    other = make_config(world_model=None, **{"ppo.critic": True, "rollout.group_size": 1, "seed": 5})
    with pytest.raises(CheckpointError, match=r"seed"):
        train_epochs(other, whole, whole / "epoch_1", env=Evenness(), progress=False)
    longer = dataclasses.replace(config, task_budget=30)
    with pytest.raises(CheckpointError, match=r"task_budget differ.* keeps its number of epochs, --num_epochs"):
        train_epochs(longer, whole, env=Evenness(), progress=False)
    assert (whole / "epoch_4" / STATS).exists() and len(RunFolder(whole).checkpoints) == 2
    copy = shutil.copytree(whole, tmp_path / "copy")
    with pytest.raises(RunError, match="holds a run already; choose another --output_dir"):
        train_epochs(config, copy, whole / "epoch_1", env=Evenness(), progress=False)


# ---------------------------------------------------------------- adapters: switched, merged, of either format


@pytest.fixture(scope="module")
def grown(toy_adapters, tmp_path_factory) -> list[Path]:
    """Two adapters that change what is said, the second in peft's older format."""
    folder = tmp_path_factory.mktemp("grown")
    one, other = (shutil.copytree(toy_adapters[name], folder / name) for name in ("policy", "world_model"))
    torch.save(load_file(other / "adapter_model.safetensors"), other / "adapter_model.bin")
    (other / "adapter_model.safetensors").unlink()
    return [one, other]


def said(evaluated) -> list[list[int]]:
    return [row.tokens for row in evaluated.rollouts]


def test_adapters_are_switched_on_one_base(config, grown):
    """Each says what it says alone, whoever was loaded before it."""
    one, other, again = evaluate_adapters(config, [*grown, grown[0]], 4, "validation", Evenness())
    assert said(one) == said(again) != said(other)
    (alone,) = evaluate_adapters(config, [grown[1]], 4, "validation", Evenness())
    assert said(alone) == said(other)
    row = other.row()
    assert row["model"] == str(grown[1]) and row["n"] == len(other.rollouts) and 0 <= row["low"] <= row["high"] <= 1


@pytest.mark.parametrize("which", [0, 1], ids=["safetensors", "bin"])
def test_merged_it_says_the_same(config, grown, tmp_path, which):
    merged = merge(config.model.base, grown[which], tmp_path / "merged")
    (dynamic,) = evaluate_adapters(config, [grown[which]], 6, "validation", Evenness())
    found = evaluate_merged(config, merged, 6, "validation", Evenness())
    assert said(found) == said(dynamic) and {row.actor for row in found.rollouts} == {"base"}


def test_merging_takes_nothing_away(config, grown, tmp_path):
    """Neither the base nor what is there already is written over, and an adapter is merged into its own base alone."""
    base = shutil.copytree(config.model.base, tmp_path / Path(config.model.base).name)
    before = (base / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="is there already and stays as it is"):
        merge(base, grown[0], base)
    assert (base / "model.safetensors").read_bytes() == before
    with pytest.raises(ConfigError, match=r"is an adapter of the base .*, not of data/base: set model.base"):
        merge("data/base", grown[0], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    assert (merge(base, grown[0], tmp_path / "merged") / "config.json").exists()


def test_what_cannot_be_evaluated_is_named(config, grown, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no peft adapter"):
        evaluate_adapters(config, [tmp_path], 1, env=Evenness())
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, base="data/base"))
    with pytest.raises(ConfigError, match=r"not of data/base: set model\.base"):
        evaluate_adapters(other, grown, 1, env=Evenness())
    with pytest.raises(ConfigError, match="holds no model; merge one there first"):
        evaluate_merged(config, tmp_path, 1, env=Evenness())


# ---------------------------------------------------------------- the commands


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--mode merge --num_samples 5", "--mode merge makes no use of --num_samples"),
        ("--mode merge --split train", "--mode merge makes no use of --split"),
        ("--mode both --use_merged_model", "--mode both makes no use of --use_merged_model"),
        ("--merged_model_path m", "--mode evaluate without --use_merged_model makes no use of --merged_model_path"),
        ("--use_merged_model --lora_weights_path a", "with --use_merged_model makes no use of --lora_weights_path"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options, sentence, capsys):
    assert main(["shell", "evaluate", *options.split()]) == 1
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "settings", "sentence"),
    [
        ({"learning_rate": 1e-4}, {"policy.learning_rate": "1e-3"}, r"=1e-3 contradicts --learning_rate .* 0.0001"),
        ({"num_epochs": 2}, {"task_budget": 300}, r"--set task_budget=300 contradicts --num_epochs, .* 100"),
        ({"samples_per_epoch": 4}, {"task_budget": 120}, r"--set task_budget=120 contradicts .* 12"),
        ({"lora_r": 4}, {"model.rank": 8}, r"--set model.rank=8 contradicts --lora_r which makes it 4"),
    ],
)
def test_settings_that_contradict_an_option_are_refused(options, settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        epoch_config(GUIDE, "shell", Options(**options), settings)


def test_settings_that_say_the_same_as_an_option_are_taken():
    same = {"model.rank": 8, "task_budget": 100, "policy.learning_rate": "1e-4"}
    config = epoch_config(GUIDE, "shell", Options(num_epochs=2, lora_r=8, learning_rate=1e-4), same)
    assert (config.model.rank, config.task_budget, config.policy.learning_rate) == (8, 100, 1e-4)


def test_more_samples_than_the_split_has_are_said(monkeypatch, capsys):
    played = SimpleNamespace(rollouts=[None] * 3, row=lambda: {"model": "x"})
    monkeypatch.setattr("lfo.lab.epochs.evaluate_adapters", lambda *args, **options: [played])
    shell = ["shell", "evaluate", "--config_path", str(ROOT / "configs" / "shell_ppo.yaml"), "--num_samples"]
    assert main([*shell, "4", "--split", "validation"]) == 0
    assert "--num_samples 4: the split 'validation' has 3 tasks, and all were played." in capsys.readouterr().out
    assert main([*shell, "3"]) == 0 and "all were played" not in capsys.readouterr().out


def test_a_tracker_may_be_told_of_epochs(config, tmp_path):
    told = dataclasses.replace(config, tracker="trackio", task_budget=6)
    run, rows = RunFolder(tmp_path / "run"), []
    run.tracker, log = "trackio", run.log
    run.log = lambda new: (rows.extend(new), log(new))
    train_epochs(told, run, env=Evenness(), progress=False)
    assert (run.path / "epoch_1" / STATS).exists() and {"step", "success"} <= {row["kind"] for row in rows}


def test_the_command_asks_for_a_tracker_that_tells(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("lfo.lab.tracking.importlib.util.find_spec", lambda name: None)
    config = ["--config_path", str(ROOT / "configs" / "shell_ppo.yaml"), "--output_dir", str(tmp_path)]
    assert main(["shell", "train", *config, "--set", "tracker=trackio"]) == 1
    assert "tracker 'trackio' is not installed: pip install" in capsys.readouterr().err


@needs_sandbox
def test_the_commands_do_what_the_guides_do(make_config, tmp_path, monkeypatch, capsys):
    """Two epochs in real sandboxes, then both ways to evaluate the second one."""
    settings = {"ppo.critic": True, "rollout.group_size": 1, "env.name": "shell", "env.levels": [1]}
    config = make_config(world_model=None, eval_splits=["test"], eval_tasks=1, **settings)
    path, out, merged = tmp_path / "os.yaml", tmp_path / "out", tmp_path / "merged"
    path.write_text(json.dumps(as_dict(config)))
    common = ["--config_path", str(path)]
    asked = [*common, "--output_dir", str(out), "--num_epochs", "2", "--samples_per_epoch", "3", "--batch_size", "2"]
    assert main(["shell", "train", *asked, "--ppo_epochs", "2", "--lora_r", "2", "--lora_alpha", "4"]) == 0
    assert capsys.readouterr().out == f"2 epochs: {out / 'epoch_1'}, ...\n"
    stats = json.loads((out / "epoch_2" / STATS).read_text())
    assert stats["correct"] + stats["incorrect"] + stats["unknown"] == stats["trajectories"] == 3
    assert json.loads((out / "epoch_2" / "adapter_config.json").read_text())["r"] == 2
    epochs = ["--lora_weights_path", *(str(out / f"epoch_{k}") for k in (1, 2))]
    evaluate, there = ["shell", "evaluate", *common], ["--merged_model_path", str(merged)]
    ask = [*evaluate, "--num_samples", "2"]
    assert main([*ask, *epochs]) == 0
    assert {"model", "accuracy", "correct"} <= set(capsys.readouterr().out.split())
    assert main([*evaluate, *epochs, *there, "--mode", "merge"]) == 1
    assert "one adapter is merged" in capsys.readouterr().err
    assert main([*ask, *there, "--lora_weights_path", str(out / "epoch_2"), "--mode", "both"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"wrote {merged}" and len(lines) == 4
    assert main([*ask, *there, "--lora_weights_path", str(out / "epoch_1"), "--mode", "both"]) == 1
    assert f"{merged} is there already" in capsys.readouterr().err
    assert main([*ask, *there, "--use_merged_model"]) == 0 and str(merged) in capsys.readouterr().out
    assert main(["shell", "train", "--config_path", str(ROOT / "configs" / "ppo.yaml")]) == 1
    assert "is for the environment 'phone', not 'shell'" in capsys.readouterr().err
