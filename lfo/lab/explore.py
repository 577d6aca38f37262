"""Notebook 00: a task played by hand, or by a run's policy that is told by whoever one chooses what would be answered.

`Explorer` does what is asked and knows no widget; `Panel` shows it with ipywidgets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import ipywidgets as widgets
import pandas as pd

from lfo.config import RunConfig, WorldModelConfig
from lfo.couplings import Imagine, Memory, Truth, alone
from lfo.envs import make_environment
from lfo.envs.phone.tools import FORM
from lfo.envs.phone.typed import HELP, answered, ending
from lfo.evaluate import inspect_replies, play_tasks
from lfo.lab.inspect import in_words
from lfo.lab.player import load_player
from lfo.lab.render import advantages_of, rollouts_html, segments
from lfo.lab.untrained import untrained
from lfo.protocols import Coupling
from lfo.rollout.play import play
from lfo.runs import RunFolder
from lfo.types import WORLD_MODEL, Example, Role, Rollout, Task

UNTRAINED = "the untrained base"
SOURCES = ("nobody", "memory", "world model", "truth")
WORLDS = range(5)
TASKS = 20  # of each split, to choose from
MOST = 6  # predictions beside what was said
# JupyterLab sets tables as numbers, to the right, and breaks lines within words.
STYLE = """<style>
.explore-form :is(td, th), .explore-beside :is(td, th) { text-align: left !important; }
.explore-hand pre { white-space: pre-wrap !important; word-break: normal !important; }
</style>"""


def playable(places: Sequence[str | Path]) -> list[str]:
    """The run folders somewhere below these that hold adapters, of the phone world: what is shown here is its form."""
    folders = sorted({path.parent for place in places for path in Path(place).glob("**/config.json")})
    trained = [RunFolder(folder) for folder in folders if any(folder.glob("adapters/v*"))]
    return [str(run.path) for run in trained if run.config.env.name == "phone"]


class Explorer:
    """One world and one policy in it. Remembers what was heard in all that it played."""

    def __init__(self, run: str, world_seed: int, config: RunConfig):
        """run: a run folder, or `UNTRAINED`; config: of the base where it is untrained."""
        folder = None if run == UNTRAINED else RunFolder(run)
        config = folder.config if folder else config
        env = make_environment(dataclasses.replace(config.env, world_seed=world_seed))
        self.player = load_player(run, env) if folder else untrained(config, env)
        at_home = folder is not None and config.env.world_seed == world_seed
        self.heard: list[Example] = folder.examples() if at_home else []

    @property
    def sources(self) -> list[str]:
        """Who can tell its policy something; a world model only where the run has one."""
        listens = self.player.coupling.layout.listener == WORLD_MODEL
        return [source for source in SOURCES if listens or source != "world model"]

    def told_by(self, source: str) -> Coupling:
        """The coupling whose notes this source says. The memory has heard what the run has, and all played here."""
        codec, asked = self.player.codec, self.player.config.world_model or WorldModelConfig()
        if source == "nobody":
            return alone(self.player.coupling)
        if source == "truth":
            return Truth(codec)
        hears = (Memory if source == "memory" else Imagine)(asked, codec)
        hears.hear(self.heard)
        return hears

    def greedy(self, task: Task, source: str) -> dict[str, str]:
        """One greedy episode in a row of a table: what was noted, which fields the form asked for, how it ended."""
        p = self.player
        (row,) = play_tasks(p.engine, p.codec, self.told_by(source), [task], p.config.rollout, episodes=1)
        notes = [text for role, text, _ in segments(p.codec, row) if role == Role.NOTE]
        forms = [turn.action.arguments["fields"] for turn in row.turns if turn.tool == FORM]
        return {
            "note by": source,
            "note": " ".join(notes) or "-",
            "form": "; ".join(map(", ".join, forms)) or "-",
            "success": "yes" if row.success else f"no ({row.stop})",
        }

    def compare(self, task: Task) -> pd.DataFrame:
        """The same task, greedily, told by everybody in turn."""
        return pd.DataFrame([self.greedy(task, source) for source in self.sources])

    def group(self, task: Task, source: str, size: int = 4) -> list[Rollout]:
        """A group of rollouts, sampled as in training; what was said in them is heard."""
        p, coupling = self.player, self.told_by(source)
        waves = coupling.waves(task, 0, 0, size)
        rows = play(p.engine, p.codec, [waves], coupling, p.config.rollout, 0, "phone")
        self.heard += [example for row in rows for example in row.examples]
        return rows

    def beside(self, rows: Sequence[Rollout]) -> pd.DataFrame:
        """What the world model predicts beside what the CSR said to the first calls of these rollouts."""
        calls = list(dict.fromkeys(example for row in rows for example in row.examples))[:MOST]
        if "world model" not in self.sources or not calls:
            return pd.DataFrame({"world model": ["no call was made, or there is no world model"]})
        p = self.player
        found = in_words(inspect_replies(p.engine, p.codec, calls, p.coupling))
        return pd.DataFrame(found)[["gave", "said", "predicted", "right"]]

    def html(self, rows: Sequence[Rollout]) -> str:
        """The rollouts with their tokens by role and their advantages."""
        return rollouts_html(self.player.codec, rows, advantages_of(rows, self.player))


class Panel(widgets.VBox):
    """World, run, task and source to choose from; below them what the policy does, and a line to play by hand."""

    def __init__(self, places: Sequence[str | Path], config: RunConfig, size: int = 4):
        """places: where run folders are looked for; size: rollouts of a group."""
        self.config, self.size, self.quiet = config, size, False
        self.homes = {run: RunFolder(run).config.env.world_seed for run in playable(places)}
        worlds = sorted({*WORLDS, *self.homes.values()})
        self.world = widgets.Dropdown(options=worlds, description="world")
        self.run = widgets.Dropdown(options=[UNTRAINED, *self.homes], description="policy")
        self.task = widgets.Dropdown(description="task")
        self.source = widgets.ToggleButtons(description="note by")
        self.line = widgets.Text(description="you say", placeholder=HELP, continuous_update=False)
        self.line.layout.width = "100%"
        self.shown = {name: widgets.HTML() for name in ("form", "beside", "rollouts", "hand")}
        for name, html in self.shown.items():
            html.add_class(f"explore-{name}")
            html.add_class("jp-RenderedHTMLCommon")  # tables as Jupyter draws them elsewhere
        for chosen, act in (
            (self.world, self._open),
            (self.run, self._at_home),
            (self.task, self._choose),
            (self.source, self._watch),
            (self.line, self._say),
        ):
            chosen.observe(lambda change, act=act: self.quiet or self._do(act), names="value")
        tabs = widgets.Tab([widgets.VBox(list(self.shown.values())[:3]), widgets.VBox([self.line, self.shown["hand"]])])
        tabs.titles = ("watch the policy", "play yourself")
        above = widgets.HBox([self.world, self.run, self.task])
        super().__init__([widgets.HTML(STYLE), above, self.source, tabs])
        self._open()

    def _do(self, act: Callable[[], None]) -> None:
        """What goes wrong is said here, too: Jupyter says it in a log that nobody looks at."""
        try:
            act()
        except Exception as error:
            self._show("form", f"<p>{escape(f'{type(error).__name__}: {error}')}</p>")
            raise
        finally:
            self.quiet = False

    def _at_home(self) -> None:
        """A run is shown in its own world first; any other may be chosen then."""
        self.quiet = True
        self.world.value = self.homes.get(self.run.value, self.world.value)
        self.quiet = False
        self._open()

    def _open(self) -> None:
        self.quiet, self.task.options, self.quiet = True, (), False  # none to choose where no policy can be had
        for name in self.shown:
            self._show(name, "")
        self.explorer = Explorer(self.run.value, self.world.value, self.config)
        tasks = [
            task for split in ("train", "validation", "test") for task in self.explorer.player.env.tasks(split)[:TASKS]
        ]
        self.quiet = True  # what is set here is chosen by nobody
        self.task.options = [(f"{task.task_id}, level {task.level}", task) for task in tasks]
        self.source.options = self.explorer.sources
        self.task.index = self.source.index = 0
        self.quiet = False
        self._choose()

    def _choose(self) -> None:
        self.rows: dict[str, dict] = {}
        self.episode = self.explorer.player.env.episode(self.task.value, seed=0)
        self.said = [self.episode.request, HELP]
        self._show("hand", f"<pre>{escape(chr(10).join(self.said))}</pre>")
        self._watch()

    def _watch(self) -> None:
        """Play the task anew, told by the chosen source; what the form was when others told it stays beside it."""
        task, source = self.task.value, self.source.value
        if task is None:
            return
        self.rows[source] = self.explorer.greedy(task, source)
        rows = self.explorer.group(task, source, self.size)
        self._show("form", f"<h3>Its form, greedily</h3>{_table(pd.DataFrame(self.rows.values()))}")
        self._show("beside", f"<h3>World model beside the CSR</h3>{_table(self.explorer.beside(rows))}")
        self._show("rollouts", self.explorer.html(rows))

    def _say(self) -> None:
        """Take the line that was typed to the episode that is played by hand."""
        text = self.line.value
        if not text.strip() or self.episode.stop is not None:
            return
        self.said += [f"> {text}", answered(text, self.episode)]
        if self.episode.stop is not None:
            self.said.append(ending(self.episode))
        self.quiet, self.line.value, self.quiet = True, "", False
        self._show("hand", f"<pre>{escape(chr(10).join(filter(None, self.said)))}</pre>")

    def _show(self, name: str, html: str) -> None:
        self.shown[name].value = html


def _table(frame: pd.DataFrame) -> str:
    return frame.to_html(index=False, justify="left", border=0)  # which escapes what it is given
