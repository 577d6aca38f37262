"""What a run writes into its folder, told to a tracker while it is trained, by accelerate's tracker API.

A tracker (`tracker` in the config: TensorBoard, Weights & Biases or Trackio) reads the folder and nothing else: rows of
metrics as they are appended, figures at the end. How many rows it was told stands in `tracker.json`, so that a run that
is resumed goes on in the same place there and tells nothing twice, and one that gets a tracker later tells all of it.
docs/tracking.md says under which names.
"""

from __future__ import annotations

import importlib
import io
import itertools
import json
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from accelerate import PartialState
from accelerate.tracking import GeneralTracker, TensorBoardTracker, TrackioTracker, WandBTracker

from lfo.config import RunConfig, as_dict, flat
from lfo.lab.extras import require_tracker
from lfo.lab.report import figures_of
from lfo.runs import RunFolder

TABLES = ("prediction", "trajectory")  # kinds of rows that are text
PLACES = ("split", "level", "category")  # what tells rows of a kind apart
UNTOLD = ("kind", "tasks", "step", *PLACES)  # what is no metric: `tasks` is the axis


class Tracked(RunFolder):
    """A run folder that tells the config's tracker what is logged in it, for `lfo.train.train`.

    Raises:
        ConfigError: the tracker's package is not installed.
    """

    def __init__(self, path: str | Path, config: RunConfig):
        require_tracker(config)
        super().__init__(path)
        self.tracker, self._of = config.tracker, config
        self._told: GeneralTracker | None = None
        self._state: dict = {}

    def log(self, rows: Iterable[Mapping]) -> None:
        super().log(rows)
        self.tell()

    def tell(self) -> None:
        """All that is new in the metrics. The tracker is started with the first row."""
        if self._told is None:
            self._start()
        rows = self.metrics()
        for tasks, new in itertools.groupby(rows[self._state["rows"] :], lambda row: row["tasks"]):
            self._tell(tasks, list(new))
        self._state["rows"] = max(self._state["rows"], len(rows))
        self._left.write_text(json.dumps(self._known() | {self.tracker: self._state}) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Tell the figures, and end the tracker."""
        if self._told is None:
            return
        rows = self.metrics()
        try:
            if any(row["kind"] == "step" for row in rows):
                self._draw(rows[-1]["tasks"])
        finally:
            self._told.finish()
            self._told = None

    @property
    def _left(self) -> Path:
        return self.path / "tracker.json"

    def _known(self) -> dict:
        """Of every tracker that was told, under which id, and how many rows."""
        return json.loads(self._left.read_text(encoding="utf-8")) if self._left.exists() else {}

    def _start(self) -> None:
        """Where the run was left, if it goes on from a checkpoint."""
        name, found = self.tracker, self._known() if self.checkpoints else {}
        known = name in found
        self._state = found[name] if known else {"id": uuid.uuid4().hex[:8], "rows": 0}
        PartialState()  # through which trackers log; `lfo train` has it already
        self._told = make_tracker(self._of, self.path, self._state["id"])
        self._told.start()
        if name == "wandb":  # its own steps may not go back; those of a run that is resumed would
            self._told.tracker.define_metric("*", step_metric="tasks")
        if not known:
            settings = flat(as_dict(self._of))
            self._told.store_init_configuration({k: _plain(v) for k, v in settings.items()})

    def _tell(self, tasks: int, rows: Sequence[dict]) -> None:
        """rows: all with the same number of sampled tasks."""
        values = {name: value for row in rows if row["kind"] not in TABLES for name, value in numbers(row).items()}
        for kind in TABLES:
            if texts := [row for row in rows if row["kind"] == kind]:
                columns = [name for name in texts[0] if name not in ("kind", "tasks", "step")]
                values[kind] = self._table(pd.DataFrame(texts, columns=columns))
        self._log(values, tasks)

    def _log(self, values: dict, tasks: int) -> None:
        if self.tracker == "wandb":
            self._told.log(values | {"tasks": tasks})
        else:
            self._told.log(values, step=tasks)

    def _table(self, table: pd.DataFrame):
        """As the tracker has tables; TensorBoard has none, and shows Markdown."""
        if self.tracker == "tensorboard":
            cells = table.astype(str).map(lambda text: text.replace("|", "\\|").replace("\n", "<br>"))
            return cells.to_markdown(index=False)
        return importlib.import_module(self.tracker).Table(dataframe=table)

    def _draw(self, tasks: int) -> None:
        images = {name: pixels(fig) for name, fig in figures_of({self._of.name: [self.path]}).items()}
        if self.tracker == "tensorboard":
            batches = {name: image[None] for name, image in images.items()}
            self._told.log_images(batches, step=tasks, dataformats="NHWC")
        else:
            kind = importlib.import_module(self.tracker).Image
            self._log({name: kind(image) for name, image in images.items()}, tasks)


def make_tracker(config: RunConfig, folder: Path, identity: str) -> GeneralTracker:
    """accelerate's tracker, not yet started. identity: what a run that is resumed goes on under."""
    if config.tracker == "tensorboard":
        return TensorBoardTracker("tensorboard", folder)  # its files lie in <folder>/tensorboard
    project = os.environ.get(f"{config.tracker.upper()}_PROJECT", "lfo")
    facts = {"name": f"{config.name}-seed{config.seed}-{identity}", "group": config.name, "resume": "allow"}
    if config.tracker == "wandb":
        return WandBTracker(project, id=identity, dir=str(folder), **facts)
    return TrackioTracker(project, embed=False, **facts)


def numbers(row: dict) -> dict[str, float]:
    """The numbers of a row of metrics under their documented names: of a step as they are, else below what they are of,
    as in ``success/validation/level 3/n``; seconds are ``seconds/<phase>``."""
    place = [] if row["kind"] in ("step", "seconds") else [row["kind"], *(_named(row, key) for key in PLACES)]
    prefix = "".join(f"{part}/" for part in place if part)
    told = {name: value for name, value in row.items() if name not in UNTOLD}
    told |= {f"seconds/{phase}": value for phase, value in told.pop("seconds", {}).items()}
    return {prefix + name: value for name, value in told.items() if isinstance(value, int | float)}


def _named(row: dict, key: str) -> str:
    """Level 0 is all levels together."""
    value = row.get(key)
    return (f"level {value}" if key == "level" else value) if value else ""


def _plain(value) -> str | float | None:
    """A setting as trackers take it."""
    return value if isinstance(value, str | int | float | None) else json.dumps(value)


def pixels(fig: plt.Figure) -> np.ndarray:
    """A figure as bytes of shape (height, width, 3); closes it."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png")
    plt.close(fig)
    return (plt.imread(io.BytesIO(buffer.getvalue()))[..., :3] * 255).round().astype(np.uint8)
