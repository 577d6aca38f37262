"""TextWorld Commonsense: its games; the factorial is `lfo.lab.small_factorial`'s.

The table of the games is read without Java and without a model; `tokens` and `solved` play.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lfo.config import ConfigError, EnvConfig, ModelConfig
from lfo.envs.base import parse_action, written
from lfo.envs.twc import make
from lfo.envs.twc.episode import OPEN, PUT, TAKE, TOOLS, unlabelled
from lfo.envs.twc.game import require_game
from lfo.envs.twc.tasks import TwcTask, all_tasks
from lfo.lab.reading import RUN, THING_NAMES, Runs, frame
from lfo.lab.tables import at_last
from lfo.proportions import wilson
from lfo.text import TokenizerError, load_codec
from lfo.text.base import require_base
from lfo.types import Call, Malformed, Rollout, Turn

SPLITS = THING_NAMES


# --- the world -------------------------------------------------------------------------------


def world_table() -> pd.DataFrame:
    """Of each of the game's folds: games, things, right pairs of thing and place, and what needs no world model.

    chance: the share of the room's places in which the thing belongs, on average. constant: what somebody reaches who
    puts everything into one place of the room, that in which most things of the train fold belong.
    """
    rows, usual = [], usual_places()
    for split in ("train", "validation", "test"):
        tasks = [task for task in all_tasks() if task.split == split]
        pairs = {(task.thing, place) for task in tasks for place in task.right}
        chance = np.mean([len(task.right) / len(task.places) for task in tasks])
        opened = np.mean([task.level == 2 for task in tasks])
        constant = np.mean([usual.get(task.room) in task.right for task in tasks])
        row = {"split": split, "games": len(tasks), "things": len({task.thing for task in tasks})}
        rows.append(row | {"right pairs": len(pairs), "chance": chance, "constant": constant, "to be opened": opened})
    return pd.DataFrame(rows)


def usual_places() -> dict[str, str]:
    """Of each room the place in which most things of the train fold belong; of equal ones the first in the alphabet."""
    found = defaultdict(Counter)
    for task in all_tasks():
        if task.split == "train":
            found[task.room].update(task.right)
    return {room: min(counts, key=lambda place: (-counts[place], place)) for room, counts in found.items()}


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


def copied_names(rows: Sequence[Rollout]) -> tuple[int, int]:
    """(faithful, emitted): names in calls, also in those that the game did not understand; faithful ones are names of
    something in the room."""
    tasks = {task.task_id: task for task in all_tasks()}
    emitted = faithful = 0
    for row in rows:
        task = tasks[row.task_id]
        for call in map(_as_call, row.turns):
            named = call.arguments.values() if call else ()
            emitted += len(named)
            faithful += sum(unlabelled(name) in (task.thing, *task.places) for name in named)
    return faithful, emitted


def first_place(row: Rollout) -> str | None:
    """Where the thing was first put, or was to be put; None: nowhere."""
    calls = filter(None, map(_as_call, row.turns))
    return next((unlabelled(call.arguments["place"]) for call in calls if call.tool == PUT), None)


def _as_call(turn: Turn) -> Call | None:
    """The call of a turn, understood or not; None for what is none."""
    action = turn.action
    action = parse_action(action.text, TOOLS) if isinstance(action, Malformed) else action
    return action if isinstance(action, Call) else None


# --- the runs --------------------------------------------------------------------------------


def unplayable() -> str:
    """Why the game cannot be played here, in a sentence; "" where it can."""
    try:
        require_game()
    except ConfigError as error:
        return str(error)
    return ""


def knowledge_table(runs: Runs) -> pd.DataFrame:
    """What the world models know at the end (`TwcKnowledge.examine`), medians over the runs: the share of answers that
    say rightly whether a thing belongs somewhere, also of right and of wrong places alone. A coin has half of all.

    low, high: Wilson 95% interval of the first over the questions of one run, which are the same in every run.
    """
    shares = {"rule_accuracy": "answers right", "rule_accuracy_right": "of right places"}
    shares |= {"rule_accuracy_wrong": "of wrong places"}
    known = frame(runs, "rules").reindex(columns=["arm", *RUN, "tasks", "split", "n", *shares])
    found = at_last(known[known["split"].isin(SPLITS)]).groupby(["arm", "split"], sort=False)
    table = found[[*shares]].median().assign(questions=found["n"].max(), runs=found.size())
    asked = zip(table["rule_accuracy"], table["questions"], strict=True)
    bounds = [wilson(round(share * n), int(n)) for share, n in asked]
    table = table.assign(low=[low for low, _ in bounds], high=[high for _, high in bounds])
    table = table.rename(columns=shares).reset_index()
    return table.assign(split=table["split"].map(SPLITS)).rename(columns={"split": "things"})


def solved(task: TwcTask) -> str:
    """A game and its own solution as text, for reading."""
    episode, lines = make(EnvConfig(name="twc")).episode(task, 0), []
    for call in solution(task):
        lines.append(f"> {written(call)}\n{episode.step(call)}")
    return "\n".join([episode.request, *lines])
