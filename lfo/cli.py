"""The command line: ``lfo generate | shell | plan | train | serve | task-server | sweep | evaluate | report | ...``.

Thin: every command parses, calls one library function and prints where the result is. Errors that
a user can mend end in one sentence, not in a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import random
import signal
import sys
import time
from pathlib import Path

from lfo.config import ConfigError, EnvConfig, load_config, read_yaml
from lfo.lab.sweep import SweepError


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lfo", description="Learning from Observation: agents that learn from replies."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_environment(commands)
    _add_training(commands)
    _add_measuring(commands)
    _add_writing(commands)
    return parser


def _add_environment(commands) -> None:
    """Commands that need no model."""
    generate = commands.add_parser("generate", help="write companies, rules, profiles and tasks as JSONL")
    generate.add_argument("--seed", type=_seed, default=0, help="world seed")
    generate.add_argument("--circumstances", type=int, default=4, choices=range(7), help="kinds of them in requests")
    generate.add_argument("--out", type=Path, help="default: data/world, or for other worlds one in build/")
    generate.set_defaults(act=_generate)

    play = commands.add_parser("play", help="play one episode yourself, or watch a reference policy")
    play.add_argument("--task", default="train-000")
    play.add_argument("--policy", default="", help="reference policy; without it you type what to do")
    play.add_argument("--seed", type=int, default=0)
    play.set_defaults(act=_play)

    shell = commands.add_parser("shell", help="the shell world: its tasks, and LoRA + PPO on them by epochs")
    whats = shell.add_subparsers(dest="what", required=True)
    certify = whats.add_parser("certify", help="does each task hold what it says, in the sandbox?")
    certify.add_argument("--seed", type=_seed, default=0, help="world seed")
    certify.set_defaults(act=_certify)
    public = whats.add_parser("import", help="read LifelongAgentBench's or AgentBench's tasks, and certify them")
    public.add_argument("file", type=Path, help="JSON or JSONL")
    public.set_defaults(act=_import)
    for parser in (certify, public):
        parser.add_argument("--sandbox", default="", help="as env.sandbox: a folder of `root`, or docker:IMAGE")
    root = whats.add_parser("root", help="unpack a root file system, for tasks with users and groups (env.sandbox)")
    root.add_argument("archive", type=Path, help=".tar, .tar.gz, .tar.xz or .tar.zst of it, as docs/shell.md says")
    root.add_argument("folder", type=Path, help="where to; a new one")
    root.set_defaults(act=_root)
    _add_epochs(whats)


# Of `lfo shell evaluate`, where they are left out.
EVALUATED = {
    "lora_weights_path": [Path("lora_checkpoints/epoch_10")],
    "merged_model_path": Path("merged_model"),
    "num_samples": 50,
    "split": "test",
}


def _add_epochs(whats) -> None:
    """LoRA + PPO by epochs, with the options of the guide (docs/shell_training.md)."""
    train = whats.add_parser("train", help="LoRA + PPO: a folder of adapters and statistics for each epoch")
    train.add_argument("--config_path", type=Path, default=Path("configs/qwen25_32b_os.yaml"))
    train.add_argument(
        "--output_dir", type=Path, default=Path("lora_checkpoints"), help="run folder, with epoch_1, ..."
    )
    for name, what in (
        ("num_epochs", "epochs"),
        ("samples_per_epoch", "rollouts of an epoch"),
        ("batch_size", "rollouts of an optimizer step"),
        ("ppo_epochs", "passes over an epoch's rollouts"),
        ("lora_r", "rank"),
        ("lora_alpha", "twice the rank"),
    ):
        train.add_argument(f"--{name}", type=_positive, help=f"{what}; default: the config's")
    train.add_argument("--learning_rate", type=float, help="default: the config's")
    train.add_argument("--resume_from", type=Path, help="an epoch's folder; without it, the newest checkpoint's place")
    train.set_defaults(act=_train_epochs)

    evaluate = whats.add_parser("evaluate", help="adapters on the base, one after the other; or merge one")
    evaluate.add_argument("--mode", choices=("evaluate", "merge", "both"), default="evaluate")
    evaluate.add_argument("--config_path", type=Path, default=Path("configs/qwen25_32b_os.yaml"))
    adapters, merged, samples, split = EVALUATED.values()
    evaluate.add_argument("--lora_weights_path", type=Path, nargs="+", help=f"epochs' folders; default: {adapters[0]}")
    evaluate.add_argument("--use_merged_model", action="store_true", help="evaluate --merged_model_path instead")
    evaluate.add_argument("--merged_model_path", type=Path, help=f"default: {merged}")
    evaluate.add_argument("--num_samples", type=_positive, help=f"tasks, the first of the split; default: {samples}")
    evaluate.add_argument("--split", choices=("train", "validation", "test"), help=f"default: {split}")
    evaluate.set_defaults(act=_evaluate_epochs)
    for parser in (train, evaluate):
        _add_settings(parser, "further settings, e.g. env.server=http://127.0.0.1:8000")
        parser.add_argument("--device", default="cpu", help="cpu or cuda")


def _add_training(commands) -> None:
    """Commands that train, or prepare it."""
    plan = commands.add_parser("plan", help="what a run needs of every GPU's memory, and whether it fits")
    plan.add_argument("--config", type=Path, required=True)
    _add_settings(plan, "e.g. distributed.processes=4")
    plan.add_argument("--gpu-gib", type=_gib, default=24.0, help="memory of one GPU")
    plan.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    plan.set_defaults(act=_plan)

    train = commands.add_parser("train", help="train, resuming where the run folder already holds a part")
    train.add_argument("--config", type=Path, help="default: the run folder's own, or configs/laptop.yaml in a new one")
    train.add_argument("--run", type=Path, required=True, help="run folder")
    _add_settings(train, "e.g. seed=1 policy.learning_rate=1e-3")
    train.add_argument("--device", default="cpu", help="cpu or cuda")
    train.add_argument("--quiet", action="store_true", help="no progress bar")
    train.set_defaults(act=_train)

    serve = commands.add_parser("serve", help="start a vLLM server that fits a run, for rollout.engine")
    serve.add_argument("--config", type=Path, required=True, help="of the run")
    _add_settings(serve, "as for the run")
    serve.add_argument("--host", default="127.0.0.1", help="0.0.0.0 to be reached from other machines")
    serve.add_argument("--port", type=int, default=8010)
    serve.add_argument("vllm", nargs="*", help="more options of `vllm serve`, after --")
    serve.set_defaults(act=_serve)

    tasks = commands.add_parser("task-server", help="play a run's episodes for learners elsewhere, for env.server")
    tasks.add_argument("--config", type=Path, required=True, help="of the run")
    _add_settings(tasks, "as for the run")
    tasks.add_argument("--host", default="127.0.0.1", help="others are let in with a token alone (LFO_TASK_TOKEN)")
    tasks.add_argument("--port", type=int, default=8000, help="of the tasks")
    tasks.add_argument("--history-port", type=int, default=8001, help="of the chat history")
    tasks.add_argument("--session-seconds", type=_positive, default=600, help="an idle session is released after these")
    tasks.add_argument("--max-sessions", type=_positive, default=256, help="at a time")
    tasks.set_defaults(act=_task_server)

    sweep = commands.add_parser("sweep", help="train a grid or arms x seeds, resumably, one process per core")
    sweep.add_argument("--grid", type=Path, required=True, help="e.g. configs/tuning_baseline.yaml")
    sweep.add_argument("--out", type=Path, required=True, help="folder of the run folders")
    sweep.add_argument("--workers", type=_positive, help="runs at a time on this machine; default: as cores allow")
    sweep.add_argument("--cores", type=_positive, default=1, help="of every run, its threads; numbers depend on them")
    sweep.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS", help="on Ray: here, or on this cluster")
    sweep.add_argument("--gpus", type=float, default=0.0, help="of every run, also in parts; Ray shares them out")
    sweep.add_argument("--retries", type=int, default=2, help="of a run whose process or machine was lost")
    sweep.add_argument("--part", default="0/1", help="one of several shares of the runs, e.g. 0/3; no table then")
    sweep.set_defaults(act=_sweep)

    estimate = commands.add_parser(
        "estimate",
        help="how long the unfinished runs of sweeps will take on this machine: trains a short one of each kind",
    )
    estimate.add_argument("grids", nargs="+", metavar="GRID=FOLDER", help="e.g. configs/science.yaml=results/runs")
    estimate.add_argument("--workers", type=_positive, help="runs at a time; default one per core")
    estimate.add_argument("--out", type=Path, help="also write OUT.csv, OUT.md and, with what it was made on, OUT.json")
    estimate.set_defaults(act=_estimate)


def _add_measuring(commands) -> None:
    """Commands that look at a run."""
    evaluate = commands.add_parser("evaluate", help="success of a run's newest policy by level, with intervals")
    evaluate.add_argument("--run", type=Path, required=True)
    evaluate.add_argument("--split", choices=("train", "validation", "test"), default="validation")
    evaluate.add_argument("--episodes", type=_positive, default=2, help="episodes per task")
    evaluate.add_argument("--held-out-phrasing", action="store_true", help="phrasings never heard in training")
    evaluate.add_argument("--unaided", action="store_true", help="no imagined replies, also where the run had them")
    evaluate.set_defaults(act=_evaluate)

    diagnose = commands.add_parser("diagnose", help="gradient and loss ratios, trend and advice on lambda")
    diagnose.add_argument("run", type=Path, help="run folder")
    diagnose.set_defaults(act=_diagnose)

    inspect = commands.add_parser("inspect", help="a run's newest world model: predicted beside real replies")
    inspect.add_argument("run", type=Path, help="run folder")
    inspect.add_argument("--split", choices=("train", "validation", "test"), default="validation")
    inspect.add_argument("--calls", type=_positive, default=20, help="real calls, of one episode per task")
    inspect.add_argument("--out", type=Path, help="write the calls to this CSV file too")
    inspect.set_defaults(act=_inspect)

    trajectories = commands.add_parser("trajectories", help="groups of rollouts of a run's newest policy, as HTML")
    trajectories.add_argument("run", type=Path, help="run folder")
    trajectories.add_argument("--tasks", type=_positive, default=4, help="groups; the first tasks of the run")
    trajectories.add_argument("--out", type=Path, help="default: trajectories.html in the run folder")
    trajectories.set_defaults(act=_trajectories)


def _add_writing(commands) -> None:
    """Commands that write what others read: reports, models, notebooks."""
    report = commands.add_parser("report", help="figures and tables from run folders")
    report.add_argument("runs", nargs="+", metavar="LABEL=FOLDER[,FOLDER...]")
    report.add_argument("--out", type=Path, default=Path("results/report"))
    report.set_defaults(act=_report)

    readme = commands.add_parser("readme", help="write the generated parts of README.md and docs/ from results/")
    readme.set_defaults(act=lambda _: _readme())

    merge = commands.add_parser("merge", help="merge an adapter into the base: a plain transformers folder")
    merge.add_argument("--run", type=Path, required=True)
    merge.add_argument("--adapter", default="policy")
    merge.add_argument("--out", type=Path, required=True)
    merge.set_defaults(act=_merge)

    tidy = commands.add_parser("tidy", help="drop times, paths and progress bars from executed notebooks")
    tidy.add_argument("notebooks", nargs="+", type=Path)
    tidy.set_defaults(act=_tidy)


def _add_settings(parser: argparse.ArgumentParser, example: str) -> None:
    parser.add_argument("--set", nargs="*", action="extend", default=[], metavar="NAME=VALUE", help=example)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 on")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"invalid seed (0 or more) value: '{text}'")
    return int(text)


def _gib(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (size := float(text)) < math.inf:
            return size
    raise argparse.ArgumentTypeError(f"invalid size (above 0) value: '{text}'")


def parse_settings(pairs: list[str]) -> dict:
    """``["seed=1", "levels=[1,2]"]`` -> overrides; values are read as YAML.

    Raises:
        ConfigError: a pair has no '='.
    """
    if bad := [p for p in pairs if "=" not in p]:
        raise ConfigError(f"--set takes NAME=VALUE, got '{bad[0]}'.")
    return {name: read_yaml(value, f"--set {name}") for name, _, value in (p.partition("=") for p in pairs)}


def usable_device(name: str) -> str:
    """The device's name.

    Raises:
        ConfigError: torch cannot use it here.
    """
    import torch

    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"device '{name}' cannot be used ({reason}); choose cpu, or cuda where there is a GPU."
        ) from None
    return name


def _generate(args) -> None:
    from lfo.envs.phone.world import CHECKSUMS, WORLD_FILES, generate_world
    from lfo.lab.datacard import save_with_card

    world, drawn = generate_world(args.seed, args.circumstances), (args.seed, args.circumstances)
    usual = "data/world" if drawn == (0, 4) else "build/world_{}_circumstances_{}".format(*drawn)
    out = args.out or Path(usual)
    a_world = any((out / name).is_file() for name in (*WORLD_FILES, CHECKSUMS))  # if only a part of one
    if out.exists() and not a_world and (out.is_file() or any(out.iterdir())):
        raise ConfigError(f"{out} holds something else than a world; name a new folder with --out.")
    folder = save_with_card(world, out)
    print(f"wrote {len(world.companies)} companies and {len(world.tasks)} tasks to {folder}")


def _certify(args) -> None:
    from lfo.envs.shell import draw_world
    from lfo.envs.shell.oracle import certify

    world = draw_world(args.seed)
    verdicts = certify(world.tasks, world.house, system=args.sandbox)
    _print_verdicts(verdicts)
    if any(verdict.problem for verdict in verdicts):
        raise ValueError("not every task is certified.")


def _import(args) -> None:
    from lfo.envs.shell.oracle import certify
    from lfo.envs.shell.public import read_public

    tasks, problems = read_public(args.file)
    for problem in problems:
        print(problem)
    _print_verdicts(certify(tasks, system=args.sandbox), unread=len(problems))


def _root(args) -> None:
    from lfo.envs.shell.bubblewrap import unpack

    folder = unpack(args.archive, args.folder)
    print(f"{folder} can be used: --set env.sandbox={folder}, or lfo shell certify --sandbox {folder}")


def _print_verdicts(verdicts, unread: int = 0) -> None:
    for verdict in verdicts:
        if verdict.problem:
            print(f"{verdict.task.task_id} ({verdict.task.sample_index}): {verdict.problem}")
    certified, count = sum(not verdict.problem for verdict in verdicts), len(verdicts) + unread
    print(f"{certified} of {count} tasks certified" + (f", {unread} of them cannot be read" if unread else ""))


def _train_epochs(args) -> None:
    from lfo import distributed
    from lfo.lab.epochs import Options, epoch_config, train_epochs

    options = Options(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Options)})
    config = epoch_config(args.config_path, "shell", options, parse_settings(args.set))
    distributed.start(args.device)
    device = usable_device(args.device)
    with _run_folder(config, args.output_dir) as run:
        folder = train_epochs(config, run, args.resume_from, device=device)
    if distributed.first():
        print(f"{config.task_budget // config.rollout.tasks_per_step} epochs: {folder / 'epoch_1'}, ...")


def _evaluate_epochs(args) -> None:
    import pandas as pd

    from lfo.lab.epochs import epoch_config, evaluate_adapters, evaluate_merged, merge

    _fill_in(args)
    config = epoch_config(args.config_path, "shell", settings=parse_settings(args.set))
    device, asked = usable_device(args.device), (args.num_samples, args.split)
    if args.mode != "evaluate":
        if len(args.lora_weights_path) > 1:
            raise ConfigError("one adapter is merged at a time; give one --lora_weights_path.")
        print(f"wrote {merge(config.model.base, args.lora_weights_path[0], args.merged_model_path)}")
    found = []
    if args.mode == "both" or (args.mode == "evaluate" and not args.use_merged_model):
        found += evaluate_adapters(config, args.lora_weights_path, *asked, device=device)
    if args.mode == "both" or (args.mode == "evaluate" and args.use_merged_model):
        found.append(evaluate_merged(config, args.merged_model_path, *asked, device=device))
    if found:
        print(pd.DataFrame([each.row() for each in found]).to_string(index=False, float_format="{:.3f}".format))
    if found and (count := len(found[0].rollouts)) < args.num_samples:
        print(f"--num_samples {args.num_samples}: the split '{args.split}' has {count} tasks, and all were played.")


def _fill_in(args) -> None:
    """The defaults of `lfo shell evaluate`.

    Raises:
        ConfigError: an option that was given would change nothing.
    """
    alone, merged = args.mode == "evaluate", args.use_merged_model
    plays = {"num_samples": args.mode != "merge", "split": args.mode != "merge"}
    of_use = plays | {"use_merged_model": alone, "lora_weights_path": not (alone and merged)}
    of_use |= {"merged_model_path": merged or not alone}
    if ignored := [f"--{name}" for name, used in of_use.items() if getattr(args, name) and not used]:
        how = (f" with{'' if merged else 'out'} --use_merged_model") if alone else ""
        raise ConfigError(
            f"--mode {args.mode}{how} makes no use of {', '.join(ignored)}: leave it out, or choose another mode."
        )
    for name, value in EVALUATED.items():
        setattr(args, name, getattr(args, name) or value)


def _plan(args) -> None:
    from lfo.lab.plan import plan, render

    config = load_config(args.config, **parse_settings(args.set))
    print(render(plan(config, args.device, args.gpu_gib)))


def _train(args) -> None:
    from lfo.lab.extras import require_tracker

    own = args.run / "config.json"
    path = args.config or (own if own.exists() else Path("configs/laptop.yaml"))
    config = load_config(path, **parse_settings(args.set))
    require_tracker(config)

    from lfo import distributed
    from lfo.train import train

    distributed.start(args.device)  # first of all: it gives each process its own GPU
    device, progress = usable_device(args.device), not args.quiet
    with _run_folder(config, args.run) as folder:
        train(config, folder, device=device, progress=progress)
    if distributed.first():
        print(f"metrics: {folder.path / 'metrics.jsonl'}; adapters: {folder.path / 'adapters'}")


def _run_folder(config, path):
    """Without a tracker nothing is imported that figures need."""
    from lfo.runs import RunFolder

    if not config.tracker:
        return contextlib.nullcontext(RunFolder(path))
    from lfo.lab.tracking import Tracked

    return contextlib.closing(Tracked(path, config))


def _serve(args) -> None:
    from lfo.rollout.vllm.engine import require_vllm
    from lfo.rollout.vllm.server import serve_command

    require_vllm()
    command, environment = serve_command(load_config(args.config, **parse_settings(args.set)), args.host, args.port)
    os.execvpe(command[0], [*command, *args.vllm], os.environ | environment)


def _task_server(args) -> None:
    from lfo.envs.server.app import serve

    env = load_config(args.config, **parse_settings(args.set)).env
    serve(env, args.host, (args.port, args.history_port), args.session_seconds, args.max_sessions)


def _sweep(args) -> None:
    from lfo.lab.extras import require_tracker
    from lfo.lab.sweep import by_arm, part_of, read_grid, train_many

    _stop_together()
    runs = part_of(read_grid(args.grid, args.out), args.part)
    for config in runs.values():
        require_tracker(config)
    folders = train_many(runs, executor=_executor(args), device="cuda" if args.gpus else "cpu")
    if args.part != "0/1":
        print(f"trained {len(folders)} runs; without --part, once all are done, the table is written")
        return
    from lfo.lab.factorial import dial_summary
    from lfo.lab.report import save_table
    from lfo.lab.tables import sweep_table

    arms = by_arm(folders, parts=len(folders[0].relative_to(args.out).parts) - 1)
    table = dial_summary(arms) if "" not in arms else sweep_table(folders)
    path = save_table(table, args.out / "summary", arms if "" not in arms else {f.name: [f] for f in folders})
    print(f"{table.to_string(index=False)}\nwrote {path}")


def _executor(args):
    """Where the runs of a sweep are trained."""
    from lfo.lab.cluster import Ray
    from lfo.lab.sweep import Processes

    if args.ray:
        return Ray(args.ray, args.workers, args.cores, args.gpus, args.retries)
    if args.gpus:
        raise ConfigError("Ray shares out GPUs: add --ray, or train one run after another by `lfo train`.")
    return Processes(args.workers, args.cores, args.retries)


def _stop_together() -> None:
    """SIGTERM as Ctrl-C, so that runs end with whoever started them: a batch system sends it to all processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def _estimate(args) -> None:
    from lfo.lab.estimate import estimate
    from lfo.lab.report import save_table
    from lfo.lab.sweep import read_grid
    from lfo.runs import provenance

    if bad := [entry for entry in args.grids if "=" not in entry]:
        raise ConfigError(f"lfo estimate takes GRID=FOLDER, e.g. configs/science.yaml=results/runs; got '{bad[0]}'.")
    _stop_together()
    runs = {}
    for entry in args.grids:
        grid, _, folder = entry.partition("=")
        runs |= read_grid(grid, folder)
    began = time.perf_counter()
    table = estimate(runs, args.workers)
    if args.out:
        facts = provenance() | {"grids": args.grids, "wall_seconds": round(time.perf_counter() - began)}
        save_table(table, args.out, facts=facts)
    print(table.to_string(index=False, float_format="{:.2f}".format))


def _evaluate(args) -> None:
    from lfo.couplings import alone
    from lfo.envs import make_environment
    from lfo.evaluate import play_tasks, success_rows
    from lfo.lab.player import load_player
    from lfo.runs import RunFolder

    options = {"held_out_phrasing": True} if args.held_out_phrasing else {}  # which not every environment has
    env = make_environment(RunFolder(args.run).config.env, **options)
    player = load_player(args.run, env)
    tasks = env.tasks(args.split)
    coupling = alone(player.coupling) if args.unaided else player.coupling
    rows = play_tasks(player.engine, player.codec, coupling, tasks, player.config.rollout, args.episodes)
    told = [args.split, *["unaided"] * args.unaided, *["held-out phrasing"] * args.held_out_phrasing]
    print(f"{args.run}: {', '.join(told)}")
    for row in success_rows(rows, tasks):
        level = f"level {row['level']}" if row["level"] else "all"
        print(f"{level:8} {row['success']:6.1%}  [{row['low']:.1%}, {row['high']:.1%}]  n={row['n']}")


def _diagnose(args) -> None:
    from lfo.lab.diagnostics import diagnose

    found = dataclasses.asdict(diagnose(args.run))
    for name, value in found.items():
        if not isinstance(value, str):
            print(f"{name.replace('_', ' '):20} {'-' if value != value else f'{value:.4g}'}")
    print(*(text for text in found.values() if isinstance(text, str) and text), sep="\n")


def _inspect(args) -> None:
    from lfo.lab.inspect import inspect, render

    table = inspect(args.run, args.split, args.calls)
    print(render(table))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(args.out, index=False)
        print(f"wrote {args.out}")


def _trajectories(args) -> None:
    from lfo.lab.render import render_groups

    print(f"wrote {render_groups(args.run, args.tasks, args.out or args.run / 'trajectories.html')}")


def _report(args) -> None:
    from lfo.lab.report import report

    runs = {}
    for entry in args.runs:
        label, _, folders = entry.partition("=")
        if not label or not folders:
            raise ConfigError(
                f"a report is drawn from LABEL=FOLDER[,FOLDER...], e.g. imagine=runs/0,runs/1; got '{entry}'."
            )
        runs.setdefault(label, []).extend(folder for folder in folders.split(",") if folder)
    print(f"wrote {', '.join(str(p) for p in report(runs, args.out))}")


def _readme() -> None:
    from lfo.lab.pages import write_pages

    write_pages(".")
    print("wrote the generated parts of README.md and docs/")


def _merge(args) -> None:
    from lfo.lab.epochs import merge
    from lfo.runs import RunFolder

    run = RunFolder(args.run)
    if args.adapter not in run.adapters():
        raise ConfigError(f"{args.run} has no adapter '{args.adapter}'; it has: {', '.join(run.adapters())}.")
    print(f"wrote {merge(run.config.model.base, run.adapters()[args.adapter], args.out)}")


def _tidy(args) -> None:
    from lfo.lab.notebooks import tidy_notebook

    for path in args.notebooks:
        tidy_notebook(path)


def _play(args) -> None:
    from lfo.envs.base import written
    from lfo.envs.phone import make
    from lfo.envs.phone.callers import REFERENCE_POLICIES
    from lfo.envs.phone.typed import play_at_prompt

    env = make(EnvConfig(levels=(1, 2, 3, 4, 5)))
    task = next((t for t in env.world.tasks if t.task_id == args.task), None)
    if task is None:
        raise ConfigError(f"there is no task '{args.task}'; try train-000 to train-499, validation-000 or test-000.")
    if args.policy and args.policy not in REFERENCE_POLICIES:
        raise ConfigError(f"there is no policy '{args.policy}'; policies: {', '.join(REFERENCE_POLICIES)}.")
    episode = env.episode(task, args.seed)
    if not args.policy:
        play_at_prompt(episode)
    else:
        agent = REFERENCE_POLICIES[args.policy](episode, env.world, random.Random(args.seed))
        observation = episode.request
        print(observation)
        while episode.stop is None:
            action = agent.act(observation)
            observation = episode.step(action)
            print(f"> {written(action)}\n{observation}")
    outcome = episode.outcome()
    print(f"{episode.stop}; success {outcome.success}; shaped reward {outcome.metrics['shaped_reward']:.2f}")


def main(argv: list[str] | None = None) -> int:
    """Exit status 0, 1 for an error that the message explains, 130 after an interruption."""
    args = build_parser().parse_args(argv)
    try:
        args.act(args)
    except (ValueError, OSError, SweepError) as error:  # ValueError: ConfigError, RunError and their like
        print(f"lfo {args.command}: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, EOFError):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
