"""TextWorld Commonsense: who says where a thing belongs, and who is trained, by the statistics of the other notebooks.

Run folders and the table of the games are read without Java and without a model; `tokens`, `solved` and `second_tries`
play.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lfo.config import ConfigError, EnvConfig, ModelConfig, RunConfig, as_dict
from lfo.envs.base import written
from lfo.envs.twc import make
from lfo.envs.twc.episode import OPEN, PUT, TAKE
from lfo.envs.twc.game import require_game
from lfo.envs.twc.tasks import TwcTask, all_tasks
from lfo.lab.attempts import measure_attempts
from lfo.lab.factorial import FROZEN, NOTHING, TRAINED, TRUTH, WORLD_MODEL, about
from lfo.lab.hierarchy import Study, final, middle, read_curves
from lfo.lab.reading import Runs
from lfo.lab.sweep import by_arm
from lfo.runs import RunFolder
from lfo.text import TokenizerError, load_codec
from lfo.text.base import require_base
from lfo.types import Call

SPLITS = {"train": "known things (train)", "test": "new things (test)"}
NOTES = (NOTHING, "table", WORLD_MODEL, "feedback", TRUTH)
COLUMNS = "arm notes policy split success low high runs".split()


# --- the world -------------------------------------------------------------------------------


def world_table() -> pd.DataFrame:
    """Of each of the game's folds: games, things, right pairs of thing and place, and what pure chance would reach.

    chance: the share of the room's places in which the thing belongs, on average.
    """
    rows = []
    for split in ("train", "validation", "test"):
        tasks = [task for task in all_tasks() if task.split == split]
        pairs = {(task.thing, place) for task in tasks for place in task.right}
        chance = np.mean([len(task.right) / len(task.places) for task in tasks])
        opened = np.mean([task.level == 2 for task in tasks])
        row = {"split": split, "games": len(tasks), "things": len({task.thing for task in tasks})}
        rows.append(row | {"right pairs": len(pairs), "chance": chance, "to be opened": opened})
    return pd.DataFrame(rows)


def solution(task: TwcTask) -> list[Call]:
    """The calls of the game's own solution, without looking around."""
    opened = [Call(OPEN, {"place": task.right[0]})] if task.level == 2 else []
    return [Call(TAKE, {"thing": task.thing}), *opened, Call(PUT, {"thing": task.thing, "place": task.right[0]})]


def tokens(models: Mapping[str, ModelConfig], count: int = 32) -> pd.DataFrame:
    """Tokens of an episode that the game's own solution plays, on average over the first games of the train fold.

    Also of its first message, and of what the policy says in it. A base that is not there, or a game that cannot be
    played, has its sentence in the place of numbers.
    """
    return pd.DataFrame([{"base": name} | _tokens(model, count) for name, model in models.items()])


def _tokens(model: ModelConfig, count: int) -> dict:
    try:
        require_base(model.base)
        require_game()
        env = make(EnvConfig(name="twc"))
        codec = load_codec(model, env)
    except (ConfigError, FileNotFoundError, TokenizerError) as error:
        return {"note": str(error)}
    found = []
    for task in env.tasks("train")[:count]:
        episode, said, rest = env.episode(task, 0), 0, 0
        first = len(codec.prompt(episode.request))
        for call in solution(task):
            turn = len(codec.turn(call, episode.step(call)))
            answer = len(codec.observation(episode.turns[-1].observation)) + len(codec.opener)
            said, rest = said + turn - answer, rest + turn
        found.append([first + rest, first, said])
    return dict(zip(("episode", "first message", "actions"), np.mean(found, axis=0), strict=True)) | {"note": ""}


# --- the runs --------------------------------------------------------------------------------


def finished(chosen: Mapping[Path, RunConfig]) -> dict[str, list[Path]]:
    """Of the runs of a grid those that were evaluated at the end of their budget, by arm, also without adapters."""
    return by_arm(folder for folder, config in chosen.items() if _evaluated(RunFolder(folder), config))


def _evaluated(run: RunFolder, config: RunConfig) -> bool:
    written = all((run.path / name).exists() for name in ("config.json", "metrics.jsonl"))
    if not written or as_dict(run.config) != as_dict(config):
        return False
    return any(row["kind"] == "outcomes" and row["tasks"] >= config.task_budget for row in run.metrics())


def progress(chosen: Mapping[Path, RunConfig]) -> str:
    """How many runs are finished, and of which arms some are missing, in a sentence."""
    done, wanted = finished(chosen), by_arm(chosen)
    lacking = [f"{arm} ({len(done.get(arm, ()))} of {len(f)})" for arm, f in wanted.items() if done.get(arm) != f]
    rest = f"; still to be run: {', '.join(lacking)}" if lacking else ""
    return f"{sum(map(len, done.values()))} of {len(chosen)} runs are finished{rest}."


def unplayable() -> str:
    """Why the game cannot be played here, in a sentence; "" where it can."""
    try:
        require_game()
    except ConfigError as error:
        return str(error)
    return ""


def summary(runs: Runs) -> pd.DataFrame:
    """Success of every arm at its last evaluation, at known and at new things; a row per arm and split.

    success, low, high: the median over the runs and its 95% interval (`lfo.lab.hierarchy`: runs, things, games).
    """
    rows = []
    for split in SPLITS:
        study = Study(read_curves(runs, split, by="thing"))
        for arm in study.arms:
            found = study.find(final, middle(arm), [arm])
            facts = about(runs, arm)
            row = [arm, facts["notes"], facts["policy"], split, found.value, found.low, found.high, found.runs]
            rows.append(row)
    numbers = {"success": float, "low": float, "high": float, "runs": int}  # also where there is no row
    return pd.DataFrame(rows, columns=COLUMNS).astype(numbers)


def factorial_table(found: pd.DataFrame) -> pd.DataFrame:
    """The `summary`, a row per arm: success in percent with its interval, at known and at new things."""
    rows = []
    for (arm, notes, policy), part in found.groupby(["arm", "notes", "policy"], sort=False):
        row = {"arm": arm, "notes by": notes, "policy": policy, "runs": part["runs"].max()}
        for split, name in SPLITS.items():
            cell = part[part["split"] == split]
            row[name] = _said(*cell[["success", "low", "high"]].to_numpy()[0]) if len(cell) else ""
        rows.append(row)
    return pd.DataFrame(rows, columns=["arm", "notes by", "policy", "runs", *SPLITS.values()])


def _said(value: float, low: float, high: float) -> str:
    return f"{100 * value:.0f}% [{100 * low:.0f}, {100 * high:.0f}]"


def factorial_figure(found: pd.DataFrame) -> plt.Figure:
    """Success by who says the notes, policy frozen and trained side by side; a dotted line where chance would be."""
    fig, axes = plt.subplots(1, 2, figsize=(13, 4), sharey=True, layout="constrained")
    chance = world_table().set_index("split")["chance"]
    for ax, (split, title) in zip(axes, SPLITS.items(), strict=True):
        for i, policy in enumerate((FROZEN, TRAINED)):
            part = found[(found["split"] == split) & (found["policy"] == policy)].drop_duplicates("notes")
            part = part.set_index("notes").reindex(NOTES)
            error = np.vstack([part["success"] - part["low"], part["high"] - part["success"]]).clip(min=0)
            x = np.arange(len(NOTES)) + (i - 0.5) * 0.4
            ax.bar(x, part["success"], 0.38, yerr=error, error_kw={"lw": 1, "capsize": 2}, label=f"policy {policy}")
        ax.axhline(chance[split], color="grey", lw=1, ls=":")
        ax.set_xticks(range(len(NOTES)), NOTES)
        ax.grid(axis="x", visible=False)
        ax.set(title=title, xlabel="who says where it belongs", ylim=(0, 1.02))
    axes[0].set_ylabel("success, greedy, 95%")
    axes[0].legend(fontsize="small", loc="upper left")
    return fig


def second_tries(runs: Runs) -> pd.DataFrame:
    """Success within one and within two greedy attempts, medians over runs: the second one reads feedback on the first.

    Measured once for each run (`lfo.lab.attempts`), which takes its base and, the first time, the game.
    """
    rows = []
    for arm, folders in runs.items():
        tries = pd.concat([measure_attempts(folder, 2).assign(run=str(folder)) for folder in folders])
        for (split, within), name in {(s, k): SPLITS[s] for s in SPLITS for k in (1, 2)}.items():
            part = tries[(tries["split"] == split) & (tries["attempt"] <= within)]
            reached = part.groupby(["run", "task_id"])["success"].max().groupby("run").mean()
            row = {"arm": arm, "things": name, "attempts": within, "success": reached.median(), "runs": len(reached)}
            rows.append(row)
    return pd.DataFrame(rows)


def gains(found: pd.DataFrame, pairs: Iterable[Sequence[str]]) -> pd.DataFrame:
    """Differences of success between pairs of arms, in points; a pair with an arm that is missing says so."""
    rows = []
    for arm, other in pairs:
        for split, name in SPLITS.items():
            part = found[found["split"] == split].set_index("arm")["success"]
            there = {arm, other} <= set(part.index)
            row = {"arm": arm, "against": other, "things": name}
            rows.append(row | {"points": f"{100 * (part[arm] - part[other]):+.0f}" if there else "not yet run"})
    return pd.DataFrame(rows)


def solved(task: TwcTask) -> str:
    """A game and its own solution as text, for reading."""
    episode, lines = make(EnvConfig(name="twc")).episode(task, 0), []
    for call in solution(task):
        lines.append(f"> {written(call)}\n{episode.step(call)}")
    return "\n".join([episode.request, *lines])
