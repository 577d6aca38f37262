"""Runs of a sweep on Ray: an instance of its own on this machine, or a cluster (Moritz et al. 2018, arXiv 1712.05889).

Ray decides where a run goes and starts it again, elsewhere, when its node is lost. The run goes on from its last
checkpoint: all nodes see the run folders, and this working directory, under the same path, and have `lfo` installed.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path

from lfo.config import ConfigError
from lfo.lab.extras import require_ray
from lfo.lab.sweep import RETRIES

LOCAL = "local"  # the address of an instance of one's own
SLOW = "The current node timed out during startup"  # Ray says so by a bare Exception


class Ray:
    """The `Executor` (`lfo.lab.sweep`) of a Ray cluster.

    Args:
        address: of the cluster ("auto": the one that this machine belongs to), or `LOCAL`.
        workers: runs at a time of an instance of one's own; a cluster has room for as many as it has room for.
        cores, gpus: of a run, GPUs also in parts. Its threads are its cores.
        retries: how often a run is started again whose process, or node, was lost.

    Raises:
        ConfigError: Ray is not installed, there is no such cluster, or the instance did not start or has no room for a
            run.
    """

    def __init__(
        self,
        address: str = LOCAL,
        workers: int | None = None,
        cores: int = 1,
        gpus: float = 0.0,
        retries: int = RETRIES,
    ):
        require_ray()
        import ray

        self._ray = ray
        own = {"include_dashboard": False, "num_cpus": workers and workers * cores} if address == LOCAL else {}
        if workers and not own:
            raise ConfigError("a Ray cluster has as many runs at a time as it has room for: leave workers out.")
        self._join(address, own)
        if own and not self._room(CPU=cores, GPU=gpus):
            self.close()
            raise ConfigError(f"this machine has no {cores} cores and {gpus:g} GPUs for a run; lower them.")
        if not self._room(CPU=cores, GPU=gpus):  # it may yet grow
            told = "waiting until it has; Ctrl-C, and lower --cores or --gpus, if it never will"
            print(f"the cluster at {address} has no {cores} cores and {gpus:g} GPUs: {told}.", file=sys.stderr)
        variables = {"OMP_NUM_THREADS": str(cores)}
        self._train = self._ray.remote(
            num_cpus=cores, num_gpus=gpus, max_retries=retries, max_calls=1, runtime_env={"env_vars": variables}
        )(train_here)  # max_calls: a process for each run
        self._runs: list = []

    def _join(self, address: str, own: dict) -> None:
        """Join that cluster, or start an instance with these settings. SIGTERM stays what it was."""
        if address != LOCAL:
            os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")  # one try; Ray's own twenty take minutes
        before = signal.getsignal(signal.SIGTERM)  # Ray takes it for itself, and would end without checkpoints
        try:
            self._ray.init(address, log_to_driver=False, **own)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(f"no Ray cluster at '{address}' ({error}); `ray status` says which there is.") from None
        except Exception as error:
            if SLOW not in str(error):
                raise
            told = "it gives its agents 15 seconds, which busy cores exceed; try again, or leave --ray out"
            raise ConfigError(f"Ray did not start ({SLOW}): {told}.") from None
        finally:
            signal.signal(signal.SIGTERM, before)

    def _room(self, **wanted: float) -> bool:
        return all(self._ray.cluster_resources().get(name, 0) >= count for name, count in wanted.items())

    def submit(self, folder: Path, arguments: Sequence[str]) -> futures.Future[int]:
        self._runs.append(self._train.remote(str(folder), list(arguments), os.getcwd()))
        return self._runs[-1].future()

    def stop(self) -> None:
        """Ray interrupts those that are trained, as Ctrl-C does: each saves a checkpoint."""
        for run in self._runs:
            self._ray.cancel(run)
        if self._runs:
            self._ray.wait(self._runs, num_returns=len(self._runs))

    def close(self) -> None:
        self._ray.shutdown()


def train_here(folder: str, arguments: Sequence[str], directory: str) -> int:
    """``lfo *arguments`` in this very process, so that nothing is left of it when its node is lost; its exit status.

    directory: to which relative paths refer. What is said goes to `folder`/log.txt.
    """
    os.chdir(directory)
    sys.argv = ["lfo", *arguments]
    log = (Path(folder) / "log.txt").open("a")
    with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            runpy.run_module("lfo.cli", run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0)
        except Exception:
            traceback.print_exc()
    return 1
