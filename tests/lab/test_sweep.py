"""sweep: grids of configs, and many runs side by side."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from lfo.cli import build_parser, main
from lfo.config import ConfigError, as_dict, load_config
from lfo.lab.sweep import (
    Processes,
    SweepError,
    by_arm,
    finished,
    in_small,
    newest_numbers,
    part_of,
    read_grid,
    seeded,
    train_many,
)
from lfo.runs import RunFolder
from lfo.train import train

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def base_config(make_config, tmp_path):
    settings = {"env.levels": [1], "task_budget": 1, "eval_splits": ["validation"], "world_model": None}
    config = make_config(name="tiny", **settings)
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(as_dict(config)))
    return config, path


def test_a_grid_is_every_combination_for_every_seed(base_config, tmp_path):
    _, path = base_config
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        f"config: {path}\nseeds: [3, 4]\nfixed: {{task_budget: 2}}\n"
        "grid: {policy.tis_cap: [0.1, 0.3], rollout.group_size: [2, 4]}\n"
    )
    runs = read_grid(grid, tmp_path / "out")
    assert [folder.name for folder in runs][:3] == [
        "tiny,tis_cap=0.1,group_size=2,seed=3",
        "tiny,tis_cap=0.1,group_size=2,seed=4",
        "tiny,tis_cap=0.1,group_size=4,seed=3",
    ]
    chosen = {(c.policy.tis_cap, c.rollout.group_size, c.seed) for c in runs.values()}
    assert chosen == {(low, size, seed) for low in (0.1, 0.3) for size in (2, 4) for seed in (3, 4)}
    assert {c.task_budget for c in runs.values()} == {2} and {f.parent for f in runs} == {tmp_path / "out"}


def test_a_grid_may_be_a_single_run(base_config, tmp_path):
    config, path = base_config
    (tmp_path / "grid.yaml").write_text(f"config: {path}\n")
    assert read_grid(tmp_path / "grid.yaml", "out") == {Path("out/tiny,run,seed=0"): config}


def test_arms_are_named_sets_of_settings(base_config, tmp_path):
    """An arm's settings win over the fixed ones; it may start from another config; all arms' first seeds come first."""
    config, path = base_config
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps(as_dict(dataclasses.replace(config, warmup_tasks=7))))
    (tmp_path / "arms.yaml").write_text(
        f"config: {path}\nseeds: [3, 4]\nfixed: {{task_budget: 2, policy.tis_cap: 0.1}}\n"
        f"arms:\n  plain:\n  wide: {{policy.tis_cap: 0.3}}\n  other: {{config: {other}}}\n"
    )
    runs = read_grid(tmp_path / "arms.yaml", "out")
    assert list(runs) == [Path(f"out/{arm}/seed{seed}") for seed in (3, 4) for arm in ("plain", "wide", "other")]
    assert [c.name for c in runs.values()] == ["plain", "wide", "other"] * 2
    assert [c.seed for c in runs.values()] == [3] * 3 + [4] * 3 and {c.task_budget for c in runs.values()} == {2}
    assert [(c.policy.tis_cap, c.warmup_tasks) for c in runs.values()][:3] == [(0.1, 0), (0.3, 0), (0.1, 7)]
    assert by_arm(runs) == {a: [Path(f"out/{a}/seed{s}") for s in (3, 4)] for a in ("plain", "wide", "other")}


def test_arms_in_several_worlds(base_config, tmp_path):
    """Every arm in every world with every seed, first seeds first; the world is in the folder's name."""
    (tmp_path / "arms.yaml").write_text(
        f"config: {base_config[1]}\nworlds: [1, 2]\nseeds: [0, 5]\n"
        "arms: {plain: {}, wide: {policy.tis_cap: 0.3}}\n"
    )
    runs = read_grid(tmp_path / "arms.yaml", "out")
    first = ["plain/world1-seed0", "wide/world1-seed0", "plain/world2-seed0"]
    assert list(runs)[:3] == [Path("out") / name for name in first]
    found = {(c.name, c.env.world_seed, c.seed) for c in runs.values()}
    assert found == {(arm, world, seed) for arm in ("plain", "wide") for world in (1, 2) for seed in (0, 5)}
    assert {arm: len(folders) for arm, folders in by_arm(runs).items()} == {"plain": 4, "wide": 4}


def test_an_arm_may_have_seeds_of_its_own(base_config, tmp_path):
    """More of them where more is claimed; the others keep those of the file, and first seeds still come first."""
    (tmp_path / "arms.yaml").write_text(
        f"config: {base_config[1]}\nworlds: [1]\nseeds: [0]\narms: {{plain: , claimed: {{seeds: [0, 2]}}}}\n"
    )
    runs = read_grid(tmp_path / "arms.yaml", "out")
    assert [f"{f.parent.name}/{f.name}" for f in runs] == [
        "plain/world1-seed0",
        "claimed/world1-seed0",
        "claimed/world1-seed2",
    ]
    assert [config.seed for config in runs.values()] == [0, 0, 2]


def test_an_arm_may_have_worlds_of_its_own(base_config, tmp_path):
    """What was behind in one world need not be tried in the others."""
    text = f"config: {base_config[1]}\nworlds: [2, 1]\n"
    text += "arms: {ahead: , behind: {worlds: [2]}, more: {worlds: [1, 3]}}\n"
    (tmp_path / "arms.yaml").write_text(text)
    folders = read_grid(tmp_path / "arms.yaml", "out")
    assert [f.relative_to("out").as_posix() for f in folders] == [
        *("ahead/world1-seed0", "more/world1-seed0", "ahead/world2-seed0", "behind/world2-seed0", "more/world3-seed0"),
    ]
    assert folders[Path("out/more/world3-seed0")].env.world_seed == 3
    (tmp_path / "arms.yaml").write_text(text.replace("worlds: [2, 1]\n", ""))
    with pytest.raises(ConfigError, match="an arm has `worlds` of its own; name those of all others beside `arms`"):
        read_grid(tmp_path / "arms.yaml", "out")


@pytest.mark.parametrize(
    "text", ["seeds: 3", "seeds: 3\narms: {a: }", "arms: {a: {seeds: 3}}", "arms: {a: {seeds: []}}"]
)
def test_seeds_that_are_no_list_are_said(base_config, tmp_path, text):
    (tmp_path / "arms.yaml").write_text(f"config: {base_config[1]}\n{text}\n")
    with pytest.raises(ConfigError, match=r"arms\.yaml: 'seeds': .*list"):
        read_grid(tmp_path / "arms.yaml", "out")


def test_arms_for_every_combination_of_a_grid(base_config, tmp_path):
    (tmp_path / "both.yaml").write_text(
        f"config: {base_config[1]}\nworlds: [1, 2]\nfixed: {{policy.tis_cap: 0.1}}\n"
        "grid: {env.circumstances: [0, 4], rollout.group_size: [2]}\narms: {plain: , wide: {policy.tis_cap: 0.3}}\n"
    )
    runs = read_grid(tmp_path / "both.yaml", "out")
    assert list(runs) == [
        Path(f"out/circumstances={dial},group_size=2/{arm}/world{world}-seed0")
        for dial in (0, 4)
        for world in (1, 2)
        for arm in ("plain", "wide")
    ]
    assert list(by_arm(runs, parts=2).items())[1] == (
        "circumstances=0,group_size=2/wide",
        [Path(f"out/circumstances=0,group_size=2/wide/world{world}-seed0") for world in (1, 2)],
    )
    assert {(f.parts[1][14], c.env.circumstances, c.policy.tis_cap) for f, c in runs.items()} == {
        (str(dial), dial, cap) for dial in (0, 4) for cap in (0.1, 0.3)
    }


def test_what_is_trained_again_is_what_was_trained_before(monkeypatch):
    """But for the evaluations between both ends."""
    monkeypatch.chdir(ROOT)
    again, science = (read_grid(f"configs/{name}.yaml", "out") for name in ("again", "science"))
    assert again == {folder: dataclasses.replace(science[folder], eval_every=320) for folder in again}


def test_the_science_is_in_worlds_that_nothing_else_uses(monkeypatch):
    monkeypatch.chdir(ROOT)
    science = read_grid("configs/science.yaml", "out")
    assert {config.env.world_seed for config in science.values()} == {1, 2, 3, 4, 5}
    runs = {arm: len(folders) for arm, folders in by_arm(science).items()}
    assert set(runs.values()) == {5, 15}, "five runs or more decide something"
    # In README. Who is frozen, and told nothing or the truth, does the same with any seed.
    shown = {"table", "backoff", "boosted", "additive", "grammar", "imagine"}
    thrice = shown | {f"{arm}_frozen" for arm in shown} | {"baseline", "truth"}
    assert {arm for arm, n in runs.items() if n == 15} == thrice
    others = [p for p in (ROOT / "configs").glob("*.yaml") if p.stem.startswith(("tuning", "ablation"))]
    worlds = {config.env.world_seed for path in others for config in read_grid(path, "out").values()}
    assert not worlds & {1, 2, 3, 4, 5}
    assert len({dataclasses.replace(config, name="") for config in science.values()}) == len(science)


def test_an_arm_may_have_no_world_model(base_config, tmp_path):
    """What is fixed about the world model makes one; an arm may take it away again."""
    (tmp_path / "arms.yaml").write_text(
        f"config: {base_config[1]}\nfixed: {{world_model.scouts: 0, world_model.anonymise: 0.5}}\n"
        "arms: {alone: {world_model: null}, both: {env.world_seed: 3}}\n"
    )
    alone, both = read_grid(tmp_path / "arms.yaml", "out").values()
    assert alone.world_model is None and both.world_model.anonymise == 0.5 and both.env.world_seed == 3


def test_keys_with_nothing_behind_them_say_nothing(base_config, tmp_path):
    (tmp_path / "grid.yaml").write_text(f"config: {base_config[1]}\nfixed:\nworlds:\nseeds:\ngrid:\narms: {{a: }}\n")
    assert [*read_grid(tmp_path / "grid.yaml", "out")] == [Path("out/a/seed0")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fixed: [1]", "'fixed': input should be a valid dictionary"),
        ("fixed: {3: 4}", "'fixed.*': input should be a valid string, got 3"),
        ("fixed: {seed: 3}", "'seed' is given by `seeds`"),
        ("grid: {seed: [0, 1]}", "'seed' is given by `seeds`"),
        ("grid: {3: [4]}", "'grid.*': input should be a valid string, got 3"),
        ("grid: {policy.epochs: []}", "'grid.policy.epochs': list should have at least 1 item"),
        ("worlds: 3\narms: {a: }", "'worlds': input should be a valid list, got 3"),
        ("worlds: []\narms: {a: }", "'worlds': list should have at least 1 item"),
        ("worlds: [b]\narms: {a: }", "'worlds': input should be a valid integer, got 'b'"),
        ("worlds: [1, 2]", "'worlds' are for `arms`"),
        ("seeds: [1, b]\narms: {a: }", "'seeds': input should be a valid integer, got 'b'"),
        ("arms: {}", "'arms': dictionary should have at least 1 item"),
        ("arms: {3: {}}", "'arms.*': input should be a valid string, got 3"),
        ("arms: {a: 0}", "'arms.a': input should be a valid dictionary, got 0"),
        ("arms: {a: {3: 4}}", "'arms.a': input should be a valid string, got 3"),
        ("arms: {a: {config: 3}}", "'config': input should be a valid string, got 3"),
        ("arms: {a: , b: {policy.learning_rate: x}}", "arm b: 'policy.learning_rate': "),
    ],
)
def test_grids_that_do_not_fit_say_where(base_config, tmp_path, text, problem):
    (tmp_path / "grid.yaml").write_text(f"config: {base_config[1]}\n{text}\n")
    with pytest.raises(ConfigError, match=rf"grid\.yaml[:,] {problem}"):
        read_grid(tmp_path / "grid.yaml", "out")


def test_a_grid_without_a_config_says_what_it_takes(tmp_path):
    (tmp_path / "grid.yaml").write_text("config:\narms: {a: }\n")
    with pytest.raises(ConfigError, match=r"grid\.yaml must be a YAML file with these keys: arms, config,"):
        read_grid(tmp_path / "grid.yaml", "out")


@pytest.mark.parametrize("text", ["arms: [a, b]", "arms: {a: 3}", "arms:"])
def test_arms_that_cannot_be_read_are_said(base_config, tmp_path, text):
    (tmp_path / "arms.yaml").write_text(f"config: {base_config[1]}\n{text}\n")
    with pytest.raises(ConfigError, match=r"arms\.yaml: 'arms.*': input should be a valid dictionary"):
        read_grid(tmp_path / "arms.yaml", "out")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("tuning_*.yaml")), ids=lambda p: p.name)
def test_shipped_grids_load(path, monkeypatch):
    monkeypatch.chdir(ROOT)  # a grid names its config from there
    runs = read_grid(path, "out")
    assert len(runs) > 1
    for config in runs.values():  # never tune on test; worlds from 100 on are thrown away
        assert config.eval_splits == ("validation",) or config.env.world_seed >= 100


def test_shipped_ablations_fit_each_other(monkeypatch):
    """No arm is in two files, no run is trained under two names, and the controls are what every section needs."""
    monkeypatch.chdir(ROOT)
    grids = {path.stem: read_grid(path, "out") for path in (ROOT / "configs").glob("ablation_*.yaml")}
    runs = {folder: config for grid in grids.values() for folder, config in grid.items()}
    assert len(runs) == sum(map(len, grids.values()))
    controls = by_arm(grids["ablation_controls"])
    assert list(controls) == ["reference", "placebo", "imagine_0", "none", "equal_compute"]
    assert len({dataclasses.replace(config, name="") for config in runs.values()}) == len(runs)
    assert {len(folders) for folders in by_arm(runs).values()} == {5}, "fewer decide nothing"
    assert all(set(config.eval_splits) == {"validation", "test"} for config in runs.values())


def test_arms_in_small_are_still_what_they_are(monkeypatch):
    """The first run of each, as small as configs/smoke.yaml; a setting of a group that an arm lacks is left out."""
    monkeypatch.chdir(ROOT)
    grid, tiny = read_grid("configs/feedback_grid.yaml", "out"), load_config("configs/smoke.yaml")
    arms = ["baseline", "feedback_imagine"]
    small = in_small(grid, arms, **{"feedback.start": 2, "world_model.updates": 1, "rollout.max_tokens": 300})
    assert set(small) == {next(f for f in grid if f.parent.name == arm) for arm in arms}
    baseline, both = (small[next(f for f in small if f.parent.name == arm)] for arm in arms)
    assert (baseline.feedback, baseline.world_model) == (None, None)
    for config, whole in zip(small.values(), (grid[folder] for folder in small), strict=True):
        for name in ("name", "env", "model", "policy"):
            assert getattr(config, name) == getattr(whole, name)
        assert config.rollout == dataclasses.replace(tiny.rollout, max_tokens=300)
        assert (config.task_budget, config.eval_tasks) == (tiny.task_budget, tiny.eval_tasks)
    whole = next(c for f, c in grid.items() if f.parent.name == "feedback_imagine")
    assert both.feedback == dataclasses.replace(whole.feedback, start=2)
    assert both.world_model == dataclasses.replace(whole.world_model, updates=1)
    (alone,) = in_small(read_grid("configs/shell_grid.yaml", "out"), ["ppo"]).values()
    assert alone.rollout.group_size == 1, "PPO is one by one in small as well"
    for odd in ({"arms": ["no_such"]}, {"arms": arms, "wrold_model.updates": 1}):
        with pytest.raises(ConfigError, match="is no arm of the grid and no setting"):
            in_small(grid, **odd)


def test_seeds_of_one_config(base_config):
    config, _ = base_config
    runs = seeded(config, [0, 7], "out")
    assert runs == {Path("out/tiny/seed0"): config, Path("out/tiny/seed7"): dataclasses.replace(config, seed=7)}


def test_a_failed_run_is_named_and_the_others_are_finished(base_config, tmp_path):
    """Two processes: one is trained to its end, the other has no base; its log says so."""
    config, _ = base_config
    broken = dataclasses.replace(config, model=dataclasses.replace(config.model, base="nowhere"))
    with pytest.raises(SweepError) as error:
        train_many({tmp_path / "broken": broken, tmp_path / "good": config}, workers=2, progress=False)
    log = tmp_path / "broken" / "log.txt"
    assert str(error.value).startswith(f"1 of 2 runs failed; see {log}: lfo train: no base model in 'nowhere'")
    assert set(RunFolder(tmp_path / "good").adapters()) == {"policy"}
    rows = [json.loads(line) for line in (tmp_path / "good" / "metrics.jsonl").read_text().splitlines()]
    assert [row["tasks"] for row in rows if row["kind"] == "step"] == [1]


@pytest.fixture
def in_process(monkeypatch):
    """Runs are trained here, without processes of their own; folders and threads, in the order of their starts."""
    started, one = [], threading.Lock()

    def run(processes, command, log):
        args = build_parser().parse_args(command[3:])
        with one:
            started.append((args.run, processes._environment["OMP_NUM_THREADS"]))
            train(load_config(args.config), args.run, progress=False)
        return 0

    monkeypatch.setattr(Processes, "_run", run)
    return started


def test_the_command_trains_a_grid_and_ranks_it(base_config, tmp_path, in_process, capsys):
    _, path = base_config
    (tmp_path / "grid.yaml").write_text(f"config: {path}\ngrid: {{policy.tis_cap: [0.1, 0.3]}}\n")
    out = tmp_path / "out"
    assert main(["sweep", "--grid", str(tmp_path / "grid.yaml"), "--out", str(out), "--workers", "1"]) == 0
    names = ["tiny,tis_cap=0.1,seed=0", "tiny,tis_cap=0.3,seed=0"]
    assert [folder.name for folder, _ in in_process] == names
    shown = capsys.readouterr()
    assert shown.out.endswith(f"wrote {out / 'summary.csv'}\n") and all(name in shown.out for name in names)
    assert "2/2" in shown.err  # the bar counts sampled tasks
    assert sorted(pd.read_csv(out / "summary.csv")["run"]) == names


def test_the_command_trains_arms_and_sums_them_up(base_config, tmp_path, in_process, capsys):
    (tmp_path / "arms.yaml").write_text(
        f"config: {base_config[1]}\narms: {{plain: {{}}, wide: {{policy.tis_cap: 0.3}}}}\n"
    )
    out = tmp_path / "out"
    assert main(["sweep", "--grid", str(tmp_path / "arms.yaml"), "--out", str(out)]) == 0
    assert {folder for folder, _ in in_process} == {out / "plain" / "seed0", out / "wide" / "seed0"}
    table = pd.read_csv(out / "summary.csv")
    assert set(table["arm"]) == {"plain", "wide"} and set(table["metric"]) == {
        *("success", "success_level_1", "train_calls_per_task", "replies_per_rollout"),
    }, "they were evaluated at both ends alone"
    assert set(table["split"]) == {"validation", "train"} and set(table["runs"]) == {1}
    assert capsys.readouterr().out.endswith(f"wrote {out / 'summary.csv'}\n")


@pytest.mark.parametrize("workers", [1, 2])
def test_every_run_has_one_thread_whatever_runs_beside_it(base_config, tmp_path, in_process, monkeypatch, workers):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    runs = seeded(base_config[0], [0, 1], tmp_path)
    assert train_many(runs, workers, progress=False) == list(runs)
    assert [threads for _, threads in in_process] == ["1", "1"]


def test_threads_are_the_cores_that_a_run_is_given(base_config, tmp_path, in_process):
    train_many({tmp_path: base_config[0]}, progress=False, executor=Processes(cores=3))
    assert in_process == [(tmp_path, "3")]


def test_what_is_finished_is_not_started_again(base_config, tmp_path, in_process):
    """A run of another config in the same folder is: `lfo train` then says what differs."""
    config, _ = base_config
    one, other = tmp_path / "one", tmp_path / "other"
    train_many({one: config}, progress=False)
    (one / "requested.json").write_text(json.dumps(as_dict(config), indent=2) + "\n")
    assert train_many({one: config, other: config}, progress=False) == [one, other]
    assert [folder for folder, _ in in_process] == [one, other]
    run = RunFolder(one)
    assert run.finished(config) and not run.finished(dataclasses.replace(config, seed=5))
    elsewhere = dataclasses.replace(config, tracker="wandb")
    assert run.finished(elsewhere) and [*finished({one: elsewhere}).values()] == [[one]], "who is told is no matter"
    rows = (one / "metrics.jsonl").read_text().splitlines(keepends=True)
    (one / "metrics.jsonl").write_text("".join(rows[:-1]))
    assert not run.finished(config)


def test_a_request_that_was_refused_is_not_finished(base_config, tmp_path, in_process):
    """`lfo train` refuses the folder of another run, but the request lies there."""
    config, other = base_config[0], dataclasses.replace(base_config[0], weight_decay=0.5)
    train_many({tmp_path: config}, progress=False)
    (tmp_path / "requested.json").write_text(json.dumps(as_dict(other), indent=2) + "\n")
    assert not RunFolder(tmp_path).finished(other) and RunFolder(tmp_path).finished(config)


@pytest.mark.parametrize(
    ("send", "number"), [(os.killpg, signal.SIGINT), (os.killpg, signal.SIGTERM), (os.kill, signal.SIGTERM)]
)
def test_an_interruption_saves_what_is_trained_and_starts_nothing_more(base_config, tmp_path, send, number):
    """Ctrl-C reaches `lfo sweep` and its runs; SIGTERM all of them, as from a batch system, or `lfo sweep` alone."""
    config = dataclasses.replace(base_config[0], task_budget=40, eval_every=40, checkpoint_every=100)
    path, out = tmp_path / "long.yaml", tmp_path / "out"
    path.write_text(json.dumps(as_dict(config)))
    (tmp_path / "grid.yaml").write_text(f"config: {path}\nseeds: [0, 1]\n")
    command = [sys.executable, "-m", "lfo.cli", "sweep", "--grid", str(tmp_path / "grid.yaml"), "--out", str(out)]
    sweep = subprocess.Popen([*command, "--workers", "1"], cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
    first, second = (out / f"tiny,run,seed={seed}" for seed in (0, 1))
    while RunFolder(first).newest("step") == {}:
        assert sweep.poll() is None
        time.sleep(0.05)
    send(sweep.pid, number)
    assert sweep.wait() == 130
    assert "interrupted: saved" in (first / "log.txt").read_text() and len(RunFolder(first).checkpoints) == 1
    assert 0 < RunFolder(first).tasks_done() < 40 and not (second / "log.txt").exists()


def test_a_run_whose_process_was_killed_is_started_again(tmp_path):
    """Not one that says why it ends, nor one that was asked to."""
    for how, starts, status in (("-KILL", 3, -9), ("-TERM", 1, -15)):
        counting = [sys.executable, "-c", f"import os; print('started', flush=True); os.kill(os.getpid(), {-status})"]
        processes, folder = Processes(workers=1, retries=2), tmp_path / how
        folder.mkdir()
        assert processes._train(folder, counting) == status
        assert (folder / "log.txt").read_text().count("started") == starts
        processes.close()
    assert Processes(retries=2)._train(tmp_path, [sys.executable, "-c", "print('no'); exit(1)"]) == 1
    assert (tmp_path / "log.txt").read_text() == "no\n"


@pytest.mark.parametrize(("status", "told"), [(1, "it said nothing (exit status 1)"), (-9, "was killed (SIGKILL)")])
def test_a_run_that_could_not_say_why_it_failed_has_failed(base_config, tmp_path, monkeypatch, status, told):
    monkeypatch.setattr(Processes, "_run", lambda *_: status)
    with pytest.raises(SweepError, match=re.escape(told)):
        train_many({tmp_path: base_config[0]}, progress=False)


def test_shares_are_equal_and_are_all(base_config):
    runs = seeded(base_config[0], list(range(5)), "out")
    shares = [part_of(runs, f"{i}/2") for i in range(2)]
    assert [len(share) for share in shares] == [3, 2] and shares[0] | shares[1] == runs
    assert part_of(runs, "0/1") == runs
    for wrong in ("2/2", "1", "a/b", "-1/2"):
        with pytest.raises(ConfigError, match="is no share"):
            part_of(runs, wrong)


def test_the_slurm_array_trains_its_share(base_config, tmp_path):
    """The second of two jobs, on the machine that this is."""
    (tmp_path / "grid.yaml").write_text(f"config: {base_config[1]}\nseeds: [0, 1]\n")
    (tmp_path / "lfo").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lfo.cli "$@"\n')
    (tmp_path / "lfo").chmod(0o755)
    slurm = {"ID": "6", "MIN": "5", "MAX": "6", "COUNT": "2"}
    slurm = {f"SLURM_ARRAY_TASK_{name}": value for name, value in slurm.items()}
    environment = os.environ | slurm | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = ["scripts/slurm_sweep.sh", str(tmp_path / "grid.yaml"), str(tmp_path / "out")]
    told = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    assert told.stdout == "trained 1 runs; without --part, once all are done, the table is written\n"
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name == "tiny,run,seed=1" and RunFolder(folder).adapters()
    sparse = environment | {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MAX": "7"}  # --array=5,7
    del environment["SLURM_ARRAY_TASK_ID"]
    for wrong, told in (
        (sparse, "an array with gaps leaves runs out"),
        (environment, "start this with sbatch --array"),
    ):
        refused = subprocess.run(command, cwd=ROOT, env=wrong, capture_output=True, text=True)
        assert refused.returncode == 1 and told in refused.stderr


def test_gpus_want_ray(base_config, tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text(f"config: {base_config[1]}\n")
    command = ["sweep", "--grid", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "out"), "--gpus", "0.5"]
    assert main(command) == 1 and "add --ray" in capsys.readouterr().err


def test_what_a_clone_brings_along_is_no_progress(base_config, tmp_path, in_process, capsys):
    """Committed metrics of an earlier run, without its checkpoints: all is still to be done."""
    config = base_config[0]
    RunFolder(tmp_path).begin(config)
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "tasks": 1, "train_success": 0.5}\n')
    assert RunFolder(tmp_path).tasks_done() == 0
    train_many({tmp_path: config})
    bar = capsys.readouterr().err
    assert bar.index("0/1") < bar.index("1/1")
    assert RunFolder(tmp_path).tasks_done() == 1


def test_the_bar_shows_how_the_runs_do(tmp_path):
    rows = [
        '{"kind": "step", "train_success": 0.5, "policy/loss": 0.25}',
        '{"kind": "success", "success": 1.0}',
        '{"kin',
    ]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(rows if name == "one" else rows[1:]))
    folders = [tmp_path / "one", tmp_path / "two", tmp_path / "none"]
    assert newest_numbers(folders) == {"success": "0.50", "loss": "0.25"}
    assert newest_numbers(folders[1:]) == {}
