"""A run's newest world model beside reality: what it predicts and what was really replied, call by call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lfo.envs.phone.phrasings import meaning, spoken
from lfo.evaluate import inspect_replies, play_tasks
from lfo.lab.player import load_player
from lfo.runs import RunError


def inspect(folder: str | Path, split: str = "validation", calls: int = 20) -> pd.DataFrame:
    """One row per real call of one greedy episode per task, by category: see `in_words`.

    Raises:
        RunError: the run has no world model, or its policy calls nobody.
    """
    player = load_player(folder)
    if not player.coupling.layout.listener:
        raise RunError(f"{folder} has no world model; inspect another run.")
    tasks, c = player.env.tasks(split)[:calls], player.config
    predict = c.world_model.predict
    rows = play_tasks(player.engine, player.codec, player.coupling, tasks, c.rollout, episodes=1, predict=predict)
    examples = [example for row in rows for example in row.examples][:calls]
    if not examples:
        raise RunError(f"the policy of {folder} made no call in {len(tasks)} episodes; train it further.")
    found = inspect_replies(player.engine, player.codec, examples, player.coupling)
    return pd.DataFrame(in_words(found)).sort_values("category", kind="stable", ignore_index=True)


def in_words(found: Sequence[dict]) -> list[dict]:
    """What `inspect_replies` has found, to be read: task_id, category, gave, said, predicted, fields_right, right.

    category: the true status. gave: fields that were handed over. fields_right: the prediction names exactly the fields
    that the reply names. right: so do status and departments; wording does not count.
    """
    return [
        {
            "task_id": row["task_id"],
            "category": row["category"],
            "gave": ", ".join(row["call"].arguments.get("auth_info", ())),
            "said": spoken(row["said"]),
            "predicted": spoken(row["predicted"]),
            "fields_right": meaning(row["predicted"])[1] == meaning(row["said"])[1],
            "right": row["right"],
        }
        for row in found
    ]


def render(table: pd.DataFrame) -> str:
    """The table as text, and how much of it is right by category."""
    shown = table.to_markdown(index=False, tablefmt="simple", maxcolwidths=[None, None, 16, 44, 44, None, None])
    lines = [shown]
    for category, one in table.groupby("category"):
        fields, right, n = one["fields_right"].sum(), one["right"].sum(), len(one)
        lines.append(f"{category}: exact fields {fields}/{n}, status and departments too {right}/{n}")
    return "\n".join(lines)
