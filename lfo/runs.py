"""A run is a folder; `RunFolder` is the one way to open it. Knows nothing about training.

::

    config.json  provenance.json  metrics.jsonl  examples.jsonl (replay buffer)
    adapters/v00012/{policy,world_model}/   checkpoints/step-000010.pt

Figures and tables read config, provenance and metrics, which is why this module loads torch only where checkpoints are
read or written. Metrics are appended; whatever else is written is written whole, into a temporary file, which then
takes the other's place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from lfo import __version__
from lfo.config import ConfigError, RunConfig, as_dict, build
from lfo.types import Example, RecordError, read_jsonl, write_jsonl, write_text

REPORTED_PACKAGES = ("torch", "transformers", "peft", "numpy")


class CheckpointError(ValueError):
    """A checkpoint does not belong to this run; the message names the difference and the remedy."""


class RunError(ValueError):
    """A run folder lacks what is asked of it; the message names the folder and the remedy."""


class RunFolder:
    """The files of one run.

    Raises (by what reads a file that is not there): RunError.
    """

    tracker: str | None = None  # who is told of what is logged here; `lfo.lab.tracking` has folders that tell somebody

    def __init__(self, path: str | Path):
        self.path = Path(path)

    # --- what it is ---------------------------------------------------------------------------

    def begin(self, config: RunConfig, **facts) -> None:
        """Write config and provenance; `facts` are added to the latter, and of a run that goes on what was different
        before (`earlier`)."""
        now = provenance(config) | facts
        then = self.provenance if self.checkpoints and (self.path / "provenance.json").exists() else {}
        other = {k: then[k] for k in now if k != "config" and then.get(k, now[k]) != now[k]}
        now["earlier"] = then.get("earlier", []) + [other] * bool(other)
        write_text(self.path / "config.json", json.dumps(as_dict(config), indent=2) + "\n")
        write_text(self.path / "provenance.json", json.dumps(now, indent=2) + "\n")

    @property
    def config(self) -> RunConfig:
        """Also of runs of earlier versions, whose settings had other names."""
        return build(RunConfig, self._json("config.json"))

    @property
    def provenance(self) -> dict:
        return self._json("provenance.json")

    def _json(self, name: str) -> dict:
        path = self._file(name)
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise RunError(f"{path} cannot be read; restore it, or train in a new run folder.") from None

    def _file(self, name: str) -> Path:
        if not (self.path / name).is_file():
            raise RunError(f"{self.path} is no run folder ({name} is missing); train there first.")
        return self.path / name

    # --- metrics ------------------------------------------------------------------------------

    def metrics(self) -> list[dict]:
        """All rows of metrics.jsonl, in order; a last line that is just being written is left out."""
        path, rows = self._file("metrics.jsonl"), []
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                rows.append((row := json.loads(line)) | {"kind": row["kind"]})  # which every row has
            except (ValueError, KeyError, TypeError):
                if number < len(lines):
                    raise RunError(
                        f"{path}, line {number} cannot be read; restore it, or train again in a new folder."
                    ) from None
        return rows

    def newest(self, kind: str = "") -> dict:
        """The newest row of metrics (of a kind); {} where there is none yet."""
        rows = self.metrics() if (self.path / "metrics.jsonl").exists() else []
        return next((row for row in reversed(rows) if kind in ("", row["kind"])), {})

    def log(self, rows: Iterable[Mapping]) -> None:
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)

    def keep_metrics(self, count: int) -> None:
        """Drop all but the first `count` rows: what was logged after a checkpoint will be logged again.

        Where none is kept, since there is no checkpoint, they stay in metrics.jsonl.old.
        """
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        if lines and not count:
            with open(f"{path}.old", "a", encoding="utf-8") as f:  # of several that began anew
                f.writelines(lines)
        write_text(path, "".join(lines[:count]))

    def count_metrics(self) -> int:
        """Rows of metrics so far."""
        path = self.path / "metrics.jsonl"
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0

    # --- adapters -----------------------------------------------------------------------------

    def version(self, number: int) -> Path:
        """The folder of a version of the adapters."""
        return self.path / "adapters" / f"v{number:05d}"

    def drop_versions(self, after: int) -> None:
        """Remove the adapters of a run that was killed after its checkpoint."""
        for folder in (self.path / "adapters").glob("v*"):
            if folder.name > self.version(after).name:
                shutil.rmtree(folder)

    def adapters(self) -> dict[str, Path]:
        """The newest published adapters, by name.

        Raises:
            RunError: the run has published none, or they are damaged.
        """
        versions = sorted(p for p in (self.path / "adapters").glob("v*") if p.is_dir() and p.suffix != ".tmp")
        if not versions:
            raise RunError(f"{self.path} holds no adapters; train there first: `lfo train --run {self.path}`.")
        found = {p.name: p for p in sorted(versions[-1].iterdir()) if p.is_dir()}
        if damaged := [path for path in found.values() if not whole(path)]:
            remedy = f"`lfo train --run {self.path}` publishes it again" if self.checkpoints else "restore it"
            raise RunError(f"{damaged[0]} cannot be read; {remedy}.")
        return found

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile no other process may train here: two would write the same files.

        Raises:
            RunError: another one does.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context((self.path / "train.lock").open("w"))
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"{self.path} is being trained by another process; choose a new run folder.") from None
            except OSError:  # a finished run that is read-only, a file system without locks
                pass
            yield

    def measured(self, file: str) -> bool:
        """Whether a measurement lies here and the run was not trained again since: no adapters are newer."""
        path = self.path / file
        adapters = self.path.glob("adapters/v*/*/adapter_model.safetensors")
        return path.exists() and all(adapter.stat().st_mtime <= path.stat().st_mtime for adapter in adapters)

    # --- progress -----------------------------------------------------------------------------

    @property
    def checkpoints(self) -> list[Path]:
        """Oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*.pt"))

    def tasks_done(self) -> int:
        """Sampled tasks that need not be repeated: metrics without a checkpoint, as a clone has, are no start."""
        return self.newest().get("tasks", 0) if self.checkpoints else 0

    def finished(self, config: RunConfig) -> bool:
        """Whether this very config was trained and evaluated to the end here, and its adapters are still there.

        Settings that are gone count as what they always are now, and those of `_anywhere` may differ. What a clone
        brings along are metrics without adapters: such a run is trained again.
        """
        if not any(self.path.glob("adapters/v*")) or not self.is_of(config):
            return False
        last = self.newest()
        return last.get("kind") == "seconds" and last["tasks"] >= config.task_budget

    def is_of(self, config: RunConfig) -> bool:
        """Whether what lies here is a run of this config, but for the settings of `_anywhere`."""
        try:
            return not differences(_anywhere(self.config), _anywhere(config))
        except (ConfigError, RunError):  # no run lies here, or one of an older kind
            return False

    # --- checkpoints --------------------------------------------------------------------------

    def save(self, step: int, config: RunConfig, state: Mapping, examples: Iterable[Example]) -> Path:
        """Write a checkpoint and keep the last two; config and state of metrics and replay buffer go with it."""
        import torch

        path = self.path / "checkpoints" / f"step-{step:06d}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        count = write_jsonl(self.path / "examples.jsonl", examples)
        kept = {"config": json.dumps(as_dict(config)), "examples": count, "metrics": self.count_metrics(), **state}
        temporary = path.with_suffix(".tmp")
        torch.save(kept, temporary)
        temporary.replace(path)
        for old in self.checkpoints[:-2]:
            old.unlink()
        return path

    def load(self, config: RunConfig) -> tuple[dict, list[Example]] | None:
        """State and replay buffer of the newest checkpoint that can be read; None where there is none at all.

        A checkpoint that cannot be read is named on standard error, and the one before it is taken.

        Raises:
            CheckpointError: the folder belongs to a run with another config, whose metrics would be lost, or no
                checkpoint can be read.
        """
        for path in reversed(self.checkpoints):
            state = _read_checkpoint(path)
            if state is None:
                print(f"{path} cannot be read, it is damaged or of another version: passed over.", file=sys.stderr)
                continue
            self.require_same(path, config, build(RunConfig, json.loads(state["config"])))
            examples = self.examples()[: state["examples"]]
            for name, count in {"examples": len(examples), "metrics": self.count_metrics()}.items():
                if count < state[name]:
                    lacking = f"{self.path / name}.jsonl lacks rows that the checkpoint counts on"
                    raise CheckpointError(f"{lacking}; start again in a new folder.")
            return state, examples
        if self.checkpoints:
            raise CheckpointError(f"no checkpoint of {self.path} can be read; start again in a new run folder.")
        if self.count_metrics():
            try:
                self.require_same(self.path / "metrics.jsonl", config)
            except (ConfigError, RunError) as error:
                raise CheckpointError(f"{self.path}: metrics of no run ({error}); choose a new run folder.") from None
        return None

    def require_same(self, path: Path, config: RunConfig, theirs: RunConfig | None = None) -> None:
        """Refuse to go on with another config than a checkpoint's, but for the settings of `_anywhere`.

        Raises:
            CheckpointError: the file at `path` is of another config, `theirs` or by default the folder's.
        """
        if differing := differences(_anywhere(config), _anywhere(theirs or self.config)):
            raise CheckpointError(
                f"{path} was written with another config ({', '.join(differing)} differ);"
                " resume with the old config or choose a new run folder."
            )

    def examples(self) -> list[Example]:
        """All distinct calls that were heard up to the newest checkpoint; with `world_model.replay: heard` all calls.

        Raises:
            CheckpointError: they cannot be read.
        """
        path = self.path / "examples.jsonl"
        try:
            return read_jsonl(path, Example, "start again in a new run folder") if path.exists() else []
        except RecordError as error:
            raise CheckpointError(str(error)) from None


def whole(adapter: Path) -> bool:
    """Whether the file of a published adapter is complete."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(adapter / "adapter_model.safetensors", "np"):
            return True
    except (SafetensorError, OSError):
        return False


def _read_checkpoint(path: Path) -> dict | None:
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        return state if isinstance(json.loads(state["config"]), dict) and "examples" in state else None
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, OSError):
        return None


def _anywhere(config: RunConfig) -> dict:
    """Another layout, another place for the episodes or for servers, or somebody else who is told, is the same run."""
    data = as_dict(config)
    here = {"engine": "servers"} if config.rollout.servers else {}
    away = {"env": data["env"] | {"server": ""}, "rollout": data["rollout"] | here}
    return data | away | {"distributed": {}, "tracker": None}


def differences(mine: dict, theirs: dict, prefix: str = "") -> list[str]:
    """Dotted names of the settings that differ."""
    out = []
    for key in sorted(set(mine) | set(theirs)):
        a, b = mine.get(key), theirs.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            out += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            out.append(f"{prefix}{key}")
    return out


def provenance(config: RunConfig | None = None) -> dict:
    """What a figure or table needs to be traced: commit, packages, machine, config and seeds."""
    import torch

    facts = {
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {"lfo": __version__} | {name: version(name) for name in REPORTED_PACKAGES},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads",
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    own = {"seed": config.seed, "world_seed": config.env.world_seed, "config": as_dict(config)} if config else {}
    return facts | own


def _commit() -> str:
    """Of the repository that this file is of; with `-dirty` where the package is not what was committed."""
    here = ["git", "-C", str(Path(__file__).parent)]
    try:
        subprocess.run([*here, "ls-files", "--error-unmatch", Path(__file__).name], capture_output=True, check=True)
        told = subprocess.run([*here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*here, "status", "--porcelain", "--", "."], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # no git, as in a container, or installed
        return "unknown"
    return f"{told.stdout.strip()}-dirty" if changed.stdout else told.stdout.strip()
