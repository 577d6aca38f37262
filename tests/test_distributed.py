"""distributed: two processes are one. Real processes over gloo; what they find is compared with one process."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from lfo import distributed
from lfo.cli import build_parser, parse_settings
from lfo.config import FeedbackConfig, PpoConfig, RunConfig, as_dict, build, load_config
from lfo.learn.learner import VALUE_HEAD, Learner
from lfo.learn.objectives import make_objective
from lfo.protocols import AdapterLayout
from lfo.runs import RunFolder
from lfo.train import train
from lfo.types import POLICY, WORLD_MODEL, Encoded, Role, Sample

ROOT = Path(__file__).resolve().parents[1]
CONFIG = {"model.targets": "attention", "policy.max_grad_norm": 0.1, "policy.tis_cap": 2.0, "weight_decay": 0.1}
BOTH = AdapterLayout((POLICY, WORLD_MODEL), (WORLD_MODEL,))
LAYOUTS = {
    "none": BOTH,
    "imagine": BOTH,
    "stacked": dataclasses.replace(BOTH, stacked=True),
    "echo": AdapterLayout((POLICY,), (POLICY,)),
    "ensemble": AdapterLayout((*BOTH.names, f"{WORLD_MODEL}_2"), (WORLD_MODEL, f"{WORLD_MODEL}_2")),
}
ENSEMBLE = {"coupling": "imagine", "members": 2}
ADVANTAGES = [1.0, -0.5, 2.0, -1.0, 0.7]
QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}  # spinning would starve the other


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# --- what one process and two processes are asked alike ---------------------------------------


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(20, 1000) for _ in range(count)]


def experience(make_rollout) -> tuple[list[Sample], list[Encoded]]:
    """Five samples, two with the same prompt, and five examples: one process of two has three, the other two."""
    rng = random.Random(1)
    pieces = [[3, 2], [4, 3, 2, 1], [2, 5, 3, 4], [3, 1, 2, 2], [6, 2]]
    rollouts = [make_rollout(*(ids(rng, n) for n in sizes), logprob=-6.0) for sizes in pieces]
    rollouts[3].tokens[:3] = rollouts[0].tokens[:3]
    samples = [
        Sample(r.tokens, r.roles, r.logprobs, [a] * len(r.tokens)) for r, a in zip(rollouts, ADVANTAGES, strict=True)
    ]
    examples = [Encoded(tuple(ids(rng, 4 + 3 * i)), tuple(ids(rng, 2 + i))) for i in range(5)]
    return samples, examples


def told(sample: Sample, listens: bool) -> Sample:
    """Ended by a reply of three tokens after its tag; `listens`: that is all that is learned."""
    return dataclasses.replace(
        sample,
        tokens=[*sample.tokens, 30, 31, 32, 33],
        roles=[*sample.roles, *[int(Role.OBSERVATION)] * 4],
        old_logprobs=[*sample.old_logprobs, *[0.0] * 4],
        advantages=None if listens else [*sample.advantages, *[0.0] * 4],
        heard=[*[False] * (len(sample.tokens) + 1), *[True] * 3],
    )


def distilled(sample: Sample) -> Sample:
    """The sample without its first token."""
    lists = {name: getattr(sample, name)[1:] for name in ("tokens", "roles", "old_logprobs", "advantages")}
    return dataclasses.replace(sample, **lists, how="distilled")


# samples, examples -> what the optimizer sees. With one of either the other process's share is empty.
UPDATES = {"all": (5, 5), "one sample": (1, 5), "one example": (5, 1), "no example": (5, 0), "no sample": (0, 5)}
SETTINGS = {"plain": {}, "frugal": {"gradient_checkpointing": True, "micro_batch_tokens": 20}}
CASES = [("plain", kind) for kind in UPDATES] + [("frugal", "all"), ("frugal", "one example")]


def new_learner(config: RunConfig) -> Learner:
    name = "ensemble" if config.world_model.members > 1 else config.coupling
    return Learner(config, LAYOUTS[name], make_objective(config), 0)


def begun(config: RunConfig, samples: list[Sample], examples: list[Encoded]) -> dict:
    """The checkpoint of a learner, of one process, after its first update, with weights that make every gradient
    matter."""
    learner = new_learner(config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name in learner.layout.names:
            for parameter in learner.parameters(name):
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    learner.update(samples, examples, 1.0, 0)
    return learner.state()


def gradients(learner: Learner, update) -> dict:
    """Every adapter's gradient after clipping, whole, and the metrics of the update."""
    seen, step = {}, learner.optimizer.step
    learner.optimizer.step = lambda: seen.update(
        {n: [p.grad for p in learner.parameters(n)] for n in learner.layout.names}
    )
    found = {"metrics": update()}
    learner.optimizer.step = step
    for name, grads in seen.items():  # shards of rows, gathered at once
        parts = distributed.gather([g.to_local() if isinstance(g, DTensor) else g for g in grads])
        found[name] = [None if g[0] is None else torch.cat(g) for g in zip(*parts, strict=True)]
    return found


def findings(folder: Path, config: RunConfig, samples: list[Sample], examples: list[Encoded]) -> dict:
    """From a checkpoint: gradients of updates, and what a few steps make of weights, moments and averages."""
    found: dict = {}
    for name, settings in SETTINGS.items():
        learner = new_learner(build(RunConfig, as_dict(config) | {"distributed": settings}))
        learner.scorer.chunk = 3 if name == "frugal" else learner.scorer.chunk
        learner.load_state(torch.load(folder / "begun.pt", weights_only=True))
        for kind in (kind for some, kind in CASES if some == name):
            n, m = UPDATES[kind]
            found[name, kind] = gradients(
                learner, lambda x=learner, n=n, m=m: x.update(samples[:n], examples[:m], 1.0, 0)
            )
    learner.load_state(torch.load(folder / "begun.pt", weights_only=True))
    found["loaded"] = copy.deepcopy(learner.state())
    found["own"] = learner.action_logprobs(samples)
    for seed in range(2):
        judged = [dataclasses.replace(s, own=own) for s, own in zip(samples, found["own"], strict=True)]
        found["joint"] = learner.update(judged, examples, 1.0, seed)
        found["replay"] = learner.replay(examples[: 1 + seed], 1.0, seed)
    found["state"] = learner.state()
    learner.save_adapters(folder / f"adapters_of_{distributed.size()}")
    if distributed.size() > 1:
        found["local"] = {n: (tuple(p.shape), p.to_local().numel()) for n, p in learner.model.named_parameters()}

    learner = new_learner(coupled(config, coupling="stacked"))
    learner.load_state(torch.load(folder / "begun.pt", weights_only=True))
    found["stacked"] = gradients(learner, lambda: learner.update(samples, examples, 1.0, 0))
    learner.save_adapters(folder / f"stacked_of_{distributed.size()}")
    found["surprise"], found["trained"] = learner.surprise(examples), distributed.totals(learner.trained_tokens)

    listening = [
        told(sample, listens) for sample, listens in zip(samples, [False, True, False, True, True], strict=True)
    ]
    learner = new_learner(coupled(config, coupling="echo"))
    found["in passing"] = gradients(learner, lambda: learner.update(listening, [], 1.0, 0))
    learner = new_learner(coupled(config, coupling="imagine", context_distillation=0.5))
    views = [*samples, *(distilled(sample) for sample in samples[:3])]
    found["distilled"] = gradients(learner, lambda: learner.update(views, [], 1.0, 0))

    learner = new_learner(coupled(config, **ENSEMBLE))
    learner.load_state(torch.load(folder / "ensemble.pt", weights_only=True))
    heard = [learner.update(samples, examples, 1.0, 0), learner.replay(examples[:1], 1.0, 0, learner.layout.names[-1])]
    resumed = new_learner(learner.config)
    resumed.load_state(copy.deepcopy(learner.state()))
    found["ensemble"] = [*heard, copy.deepcopy(resumed.state()), resumed.update(samples, examples, 1.0, 1)]

    added = dataclasses.replace(config.policy, entropy=0.1, kl=0.2, imitate=0.5)
    learner = new_learner(dataclasses.replace(config, policy=added))
    learner.load_state(torch.load(folder / "begun.pt", weights_only=True))
    views = [*samples, dataclasses.replace(samples[1], how="imitated")]
    found["added"] = gradients(learner, lambda: learner.update(views, [], 1.0, 0))

    config = dataclasses.replace(config, ppo=PpoConfig(value_learning_rate=0.01, value_clip=10.0))
    learner, resumed = new_learner(config), new_learner(config)
    judged = [dataclasses.replace(s, values=[0.0] * len(s.tokens), returns=[1.0] * len(s.tokens)) for s in samples]
    steps = [
        learner.update(judged[:n], examples[:m], 1.0, seed) for seed, (n, m) in enumerate([(5, 5), (1, 5), (5, 0)])
    ]
    learner.save_adapters(folder / f"judged_of_{distributed.size()}")
    resumed.load_state(copy.deepcopy(learner.state()))
    values = [each.values(judged) for each in (learner, resumed)]
    found["judged"] = {"steps": steps, "head": learner.state()["value_head"], "values": values}
    return found


def coupled(config: RunConfig, **settings) -> RunConfig:
    return dataclasses.replace(config, world_model=dataclasses.replace(config.world_model, **settings))


def gathered_by_two_threads(rank: int) -> list:
    """What the main thread and another one gather at the same time, each process in another order."""
    with ThreadPoolExecutor(1) as pool:
        if rank == 0:
            main = distributed.gather(f"main {rank}")
            return [main, pool.submit(distributed.gather, f"other {rank}").result()]
        other = pool.submit(distributed.gather, f"other {rank}")
        time.sleep(0.5)  # it is there first
        return [distributed.gather(f"main {rank}"), other.result()]


def member(rank: int, port: int, folder: Path, config: RunConfig, samples: list, examples: list) -> None:
    """One of two processes: says what it finds, for the parent to compare."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
    distributed.start()
    mine = distributed.share(7)
    talk = {
        "mine": mine,
        "joined": distributed.join(mine, ["aabbcad"[i] + str(i) for i in mine]),
        "nobody": distributed.join(distributed.share(0), []),
        "totals": distributed.totals(rank, 10.5),
        "gathered": distributed.gather(f"from {rank}"),
        "beside": gathered_by_two_threads(rank),
        "first": distributed.first(),
    }
    torch.save({"talk": talk, **findings(folder, config, samples, examples)}, folder / f"found_{rank}.pt")


@pytest.fixture(scope="module")
def one_and_two(make_config, make_rollout, tmp_path_factory):
    """What one process finds, and what each of two finds."""
    folder = tmp_path_factory.mktemp("distributed")
    config = make_config(**CONFIG)
    samples, examples = experience(make_rollout)
    torch.save(begun(config, samples, examples), folder / "begun.pt")
    torch.save(begun(coupled(config, **ENSEMBLE), samples, examples), folder / "ensemble.pt")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        multiprocessing.start_processes(member, (free_port(), folder, config, samples, examples), nprocs=2)
    two = [torch.load(folder / f"found_{rank}.pt", weights_only=False) for rank in range(2)]
    return findings(folder, config, samples, examples), two, folder


def apart(one, other, rtol: float = 1e-4, where: str = "") -> list[str]:
    """Where two findings differ by more than rounding; bit for bit with `rtol` 0."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        return [d for k in one for d in apart(one[k], other[k], rtol, f"{where}/{k}")]
    if isinstance(one, list | tuple):
        assert len(one) == len(other), where
        return [d for i, (a, b) in enumerate(zip(one, other, strict=True)) for d in apart(a, b, rtol, f"{where}/{i}")]
    if isinstance(one, torch.Tensor):
        assert one.shape == other.shape, where
        return [] if torch.allclose(one, other, rtol=rtol, atol=rtol / 100) else [where]
    if isinstance(one, float):
        other = pytest.approx(other, rel=rtol, abs=rtol / 100)
    return [] if one == other else [where]


# --- talking -----------------------------------------------------------------------------------


def test_what_processes_tell_each_other(one_and_two):
    """Places are dealt in turn, and their results come back in order."""
    _, two, _ = one_and_two
    first, second = (found["talk"] for found in two)
    assert (first.pop("mine"), second.pop("mine")) == ([0, 2, 4, 6], [1, 3, 5])
    assert (first.pop("first"), second.pop("first")) == (True, False)
    assert first == second
    assert first["joined"] == ["a0", "a1", "b2", "b3", "c4", "a5", "d6"] and first["nobody"] == []
    assert first["beside"] == [["main 0", "main 1"], ["other 0", "other 1"]]
    assert first["totals"] == [1.0, 21.0] and first["gathered"] == ["from 0", "from 1"]


def test_alone_everything_is_the_identity():
    assert (distributed.size(), distributed.rank(), distributed.first()) == (1, 0, True)
    mine = distributed.share(3)
    assert mine == [0, 1, 2] and distributed.join(mine, "xyz") == ["x", "y", "z"]
    tensor = torch.ones(2)
    assert distributed.totals(tensor, 3)[0] is tensor and distributed.whole({"a": [tensor]})["a"][0] is tensor
    assert torch.equal(distributed.like(tensor, torch.zeros(2)), tensor)
    distributed.start()
    distributed.barrier()
    assert distributed.gather("me") == ["me"] and distributed.size() == 1


# --- one model ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "kind"), CASES)
def test_gradients_and_metrics_are_those_of_one_process(one_and_two, settings, kind):
    """For both adapters, clipped by their global norms, also where one process has no sample or no example."""
    one, two, _ = one_and_two
    alone = one[settings, kind]
    for found in two:
        assert apart(alone, found[settings, kind]) == []
    n, m = UPDATES[kind]
    assert (alone[POLICY][0] is not None) == bool(n) and (alone[WORLD_MODEL][0] is not None) == bool(m)
    if n:
        clipped = torch.cat([g.flatten() for g in alone[POLICY]]).norm().item()
        assert clipped == pytest.approx(0.1, rel=1e-3) and alone["metrics"]["policy/grad_norm"] > 0.2


def test_each_loss_moves_its_own_adapter_where_both_act(one_and_two):
    one, two, _ = one_and_two
    for found in two:
        assert apart(one["stacked"], found["stacked"]) == []
    assert apart(one["stacked"][POLICY], one["plain", "all"][POLICY]) != []  # another model: both adapters act
    assert apart(one["stacked"][WORLD_MODEL], one["plain", "all"][WORLD_MODEL]) == []


@pytest.mark.parametrize("what", ["in passing", "distilled", "surprise", "trained"])
def test_replies_in_passing_distilling_and_surprise_are_those_of_one_process(one_and_two, what):
    """Two of five act and all have a reply; or all act, three in another context, too. Padding is not counted."""
    one, two, _ = one_and_two
    assert all(apart(one[what], found[what]) == [] for found in two)
    if what in ("in passing", "distilled"):
        name = {"in passing": "world_model/loss", "distilled": "distillation/neg_logprob"}[what]
        assert one[what]["metrics"][name] > 0 and any(g.abs().sum() > 0 for g in one[what][POLICY])


def test_what_is_added_to_the_objective_is_that_of_one_process(one_and_two):
    """An entropy bonus, a penalty towards the base, and one earlier success, which one process alone imitates."""
    one, two, _ = one_and_two
    assert all(apart(one["added"], found["added"]) == [] for found in two)
    assert apart(one["added"][POLICY], one["plain", "no example"][POLICY]) != []
    names = ("policy/entropy", "policy/kl_to_base", "policy/imitation_loss")
    assert all(one["added"]["metrics"][name] > 0 for name in names)


def test_what_a_value_head_learns_and_says_is_that_of_one_process(one_and_two):
    """Three updates, in one of which one process has no sample; saved, gathered, loaded again."""
    one, two, folder = one_and_two
    assert all(apart(one["judged"], found["judged"]) == [] for found in two)
    said, again = one["judged"]["values"]
    assert said == again and len(said) == 5 and all(abs(v) > 0 for row in said for v in row)
    assert all(step["policy/value_loss"] > 0 and step[f"{VALUE_HEAD}/grad_norm"] > 0 for step in one["judged"]["steps"])
    ours, theirs = (load_file(folder / f"judged_of_{n}" / f"{VALUE_HEAD}.safetensors") for n in (1, 2))
    assert ours["weight"].shape == (1, 32) and apart(ours, theirs) == []


def test_an_ensemble_learns_as_in_one_process(one_and_two):
    """Adapters are loaded and moved in the same order by all."""
    one, two, _ = one_and_two
    assert [apart(one["ensemble"], found["ensemble"]) for found in two] == [[], []]
    joint, replay, state, _ = one["ensemble"]
    assert "world_model_2/grad_norm" in joint and set(replay) & set(joint) and len(state["averages"]) == 2


def test_frugal_settings_change_nothing(one_and_two):
    one, _, _ = one_and_two
    assert all(apart(one["plain", kind], one["frugal", kind]) == [] for name, kind in CASES if name == "frugal")


def test_a_share_of_every_weight_lies_in_each_process(one_and_two):
    """Frozen base and adapters alike: half each, up to a row where the number of rows is odd."""
    _, two, _ = one_and_two
    local = [found["local"] for found in two]
    assert local[0].keys() == local[1].keys() and any("lora" in n for n in local[0])
    for name, (shape, held) in local[0].items():
        assert held + local[1][name][1] == torch.Size(shape).numel()
        assert abs(held - local[1][name][1]) <= torch.Size(shape).numel() // shape[0]


def test_training_goes_on_from_a_checkpoint_as_in_one_process(one_and_two):
    """Four optimizer steps, with importance weights: log-probs and metrics, then weights, moments and average."""
    one, two, _ = one_and_two
    for found in two:
        for what in ("own", "joint", "replay", "state"):
            assert apart(one[what], found[what]) == [], what


def test_gathered_adapters_are_peft_folders(one_and_two):
    _, _, folder = one_and_two
    for kind, name in itertools.product(("adapters", "stacked"), (POLICY, WORLD_MODEL)):
        paths = [folder / f"{kind}_of_{n}" / name for n in (1, 2)]
        alone, gathered = (json.loads((path / "adapter_config.json").read_text()) for path in paths)
        assert sorted(alone.pop("target_modules")) == sorted(gathered.pop("target_modules")) and alone == gathered
        assert apart(*(load_file(path / "adapter_model.safetensors") for path in paths)) == []


def test_checkpoints_move_between_one_and_two_processes_bit_for_bit(one_and_two, make_config):
    one, two, folder = one_and_two
    written = torch.load(folder / "begun.pt", weights_only=True)
    assert all(apart(written, found["loaded"], rtol=0) == [] for found in (one, *two))
    assert written["optimizer"]["state"] and written["averages"]
    alone = new_learner(make_config(**CONFIG))
    alone.load_state(copy.deepcopy(two[0]["state"]))
    assert apart(two[0]["state"], alone.state(), rtol=0) == []


# --- one run -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_config(make_config, base_path) -> RunConfig:
    """Three steps of two groups; with this seed the first step has a group that teaches the policy."""
    return make_config(
        **{
            "seed": 14,
            "model.base": str(base_path),
            "policy.learning_rate": 1e-3,
            "world_model.coupling": "imagine",
            "world_model.learning_rate": 4e-3,
            "env.levels": [1],
            "rollout.max_action_tokens": 48,
            "rollout.max_tokens": 400,
            "rollout.tasks_per_step": 2,
            "rollout.group_size": 6,
            "task_budget": 6,
            "eval_every": 6,
            "eval_splits": ["validation"],
        }
    )


def launched(config: RunConfig, folder: Path) -> subprocess.Popen:
    """`accelerate launch` with two processes that train in `folder`."""
    path = folder.with_suffix(".json")
    path.write_text(json.dumps(as_dict(config)))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "configs/accelerate/fsdp2.yaml"]
    command += ["--num_processes", "2", "-m", "lfo.cli", "train", "--quiet", "--config", str(path)]
    return subprocess.Popen(
        [*command, "--run", str(folder)], cwd=ROOT, env=os.environ | QUIET, stderr=subprocess.PIPE, text=True
    )


def test_the_slurm_script_starts_what_lfo_understands(tmp_path):
    """Three nodes of eight GPUs: four servers of two GPUs on the first, one launcher on each of the others."""
    until_all_serve = 'while [ "$(grep -c "lfo serve" "$LOG")" -lt 4 ]; do sleep 0.05; done'
    srun = f'printf "%s\\n" "$*" >> "$LOG"; case "$*" in *torchrun*) {until_all_serve};; *) exec sleep 60;; esac'
    programs = {"scontrol": "printf 'n%s\\n' 1 2 3", "srun": srun}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | QUIET | {"PATH": path, "LOG": str(tmp_path / "log"), "SLURM_GPUS_ON_NODE": "8"}
    environment |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-3]", "PYTHONPATH": str(ROOT)}
    arguments = ["configs/qwen3_8b.yaml", str(tmp_path / "run"), "seed=7"]
    subprocess.run(["scripts/slurm_train.sh", *arguments], cwd=ROOT, env=environment, check=True, timeout=60)
    started = sorted((tmp_path / "log").read_text().splitlines())
    serves = [line.partition(" lfo ") for line in started if " lfo serve " in line]
    pairs = [re.search(r"CUDA_VISIBLE_DEVICES=(\S+)", how)[1] for how, _, _ in serves]
    assert pairs == ["0,1", "2,3", "4,5", "6,7"]
    served = [build_parser().parse_args(command.split()) for _, _, command in serves]
    assert [(s.host, s.port) for s in served] == [("n1", 8010), ("n1", 8012), ("n1", 8014), ("n1", 8016)]
    (launch,) = [line for line in started if "torchrun" in line]
    assert "--nodes=2" in launch and "--nodelist=n2,n3" in launch and "--nproc-per-node=8" in launch
    told = build_parser().parse_args(launch.partition(" -m lfo.cli ")[2].split())
    config = load_config(told.config, **parse_settings(told.set))
    assert config.rollout.servers == [f"http://{s.host}:{s.port}" for s in served]
    assert (config.distributed.processes, config.seed) == (16, 7)
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(
            ["scripts/slurm_train.sh", *arguments], cwd=ROOT, env=environment | {"SERVER_NODES": "3"}, check=True
        )


def metrics_of(folder: Path) -> list[dict]:
    """Rows of metrics.jsonl without what depends on the clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


def killed_in_the_second_step(config: RunConfig, folder: Path) -> None:
    """Start a run, kill its second process with SIGKILL after the first checkpoint, and see the launcher give up."""
    launcher = launched(config, folder)
    try:
        deadline = time.monotonic() + 240
        while not (folder / "checkpoints" / "step-000001.pt").exists():
            assert launcher.poll() is None and time.monotonic() < deadline, launcher.communicate()[1]
            time.sleep(0.02)
        workers = [p for p in psutil.Process(launcher.pid).children() if "lfo.cli" in p.cmdline()]
        assert len(workers) == 2
        os.kill(max(p.pid for p in workers), signal.SIGKILL)
        _, stderr = launcher.communicate(timeout=120)
        assert launcher.returncode != 0 and "Signal 9 (SIGKILL)" in stderr
        assert not any(p.is_running() for p in workers)
    finally:
        if launcher.poll() is None:
            launcher.kill()


def test_killed_and_resumed_by_two_or_one_it_is_the_run_of_one(run_config, tmp_path):
    """The run of one process, never interrupted, has the metrics of both: what is sampled does not depend on it."""
    reference = train(run_config, tmp_path / "reference", progress=False)
    steps = [row for row in metrics_of(reference) if row["kind"] == "step"]
    assert len(steps) == 3 and any("policy/grad_norm" in step for step in steps)

    killed_in_the_second_step(run_config, tmp_path / "two")
    assert len(metrics_of(tmp_path / "two")) < len(metrics_of(reference))
    shutil.copytree(tmp_path / "two", tmp_path / "then_one")
    launcher = launched(run_config, tmp_path / "two")
    _, stderr = launcher.communicate(timeout=240)
    assert launcher.returncode == 0, stderr
    train(run_config, tmp_path / "then_one", progress=False)
    for name in ("two", "then_one"):
        folder = tmp_path / name
        assert apart(metrics_of(folder), metrics_of(reference)) == []
        assert (folder / "examples.jsonl").read_bytes() == (reference / "examples.jsonl").read_bytes()
        assert sorted(p.name for p in (folder / "adapters").iterdir()) == ["v00003", "v00004"]
        assert set(RunFolder(folder).adapters()) == {POLICY, WORLD_MODEL}


@pytest.mark.parametrize("learn", ["successes", "kl"])
def test_feedback_over_two_processes_is_that_of_one(run_config, tmp_path, learn):
    """Waves, a teacher that is an average, what it thinks of failures, and replayed corrections, which are sharded."""
    feedback = FeedbackConfig(start=3, teacher="average", learn=learn, updates=2 if learn == "successes" else 0)
    config = dataclasses.replace(run_config, feedback=feedback, world_model=None)
    reference = train(config, tmp_path / "one", progress=False)
    launcher = launched(config, tmp_path / "two")
    _, stderr = launcher.communicate(timeout=240)
    assert launcher.returncode == 0, stderr
    assert apart(metrics_of(tmp_path / "two"), metrics_of(reference)) == []
    steps = [row for row in metrics_of(reference) if row["kind"] == "step"]
    assert any(row.get("feedback_tokens_per_rollout") for row in steps), "somebody was told something"
    taught = "corrected/grad_norm" if learn == "successes" else "policy/grad_norm"
    assert any(row.get(taught) for row in steps), "something was learned"
