"""What HTTP costs an episode, and what 64 sessions at once gain: shell tasks here, behind a server, and side by side.

    python benchmarks/task_server.py [--quick]

Each contender plays the same tasks to their ends with their ground truths, in real sandboxes: in this process one after
the other, through `lfo task-server` one after the other, and through it all at once. Every outcome must be a success.
Needs bubblewrap and the extra `server`.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import common

from lfo.config import load_config
from lfo.envs import make_environment
from lfo.protocols import Environment
from lfo.types import Call

CONFIG = "configs/shell_smoke.yaml"


def play(env: Environment, task) -> None:
    """One episode, as somebody who knows how to do it plays it."""
    episode = env.episode(task, 0)
    try:
        episode.step(Call("bash", {"command": task.ground_truth}))
        episode.step(Call("finish", {}))
        if not episode.outcome().success:
            raise RuntimeError(f"{task.task_id} was not done by its ground truth.")
    finally:
        episode.close()


def main(arguments=None) -> None:
    size = common.size(__doc__, arguments, rounds=3)
    command = [sys.executable, "-m", "lfo.cli", "task-server", "--config", CONFIG, "--port", "0", "--history-port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://[\d.]+:\d+", server.stdout.readline())[0]
        config = load_config(CONFIG).env
        here = make_environment(config)
        there = make_environment(dataclasses.replace(config, server=url))
        tasks = [task for task in here.tasks("train") if not task.machine][: 8 * size.tasks]
        with ThreadPoolExecutor(len(tasks)) as pool:

            def timed(env: Environment, each: Callable[[Callable, Iterable], Iterable]) -> float:
                start = time.perf_counter()
                list(each(lambda task: play(env, task), tasks))
                return time.perf_counter() - start

            contenders = {
                "in process, one after the other": lambda _: timed(here, map),
                "task server, one after the other": lambda _: timed(there, map),
                f"task server, {len(tasks)} sessions at once": lambda _: timed(there, pool.map),
            }
            costs = common.in_turn(contenders, size.rounds)
    finally:
        server.terminate()
        server.wait()
    common.record(rows(size, costs))


def rows(size: common.Size, costs: dict[str, list[float]]) -> list[dict]:
    """costs: seconds of all episodes by contender, the one in this process first."""
    peer, *subjects = costs
    ratios = {name: common.ratios(costs[name], costs[peer]) for name in subjects}
    return [common.row(size, "task_server", name, peer, found, "x the seconds") for name, found in ratios.items()]


if __name__ == "__main__":
    main()
