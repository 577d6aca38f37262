"""What a memory makes of calls that it is never asked about: those of scripted callers, who hand something over.

A memory knows what was named to empty hands. To be held against a world model, which learns all that is answered, it is
given the rule that it lacks: who hands over all that would be named is served, who does not is named the rest. That a
value is wrong, or that another field will do in the place of one that the caller lacks, is nothing it could say.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import pandas as pd

from lfo.envs.phone.phrasings import read_reply, situation_of, spoken
from lfo.envs.phone.tools import phone_call
from lfo.lab.probing import TRAINED, PlayedCall, scripted_calls
from lfo.lab.probing_figures import replies
from lfo.lab.reading import Runs, measurements, parts, read_measurement, write_measurement
from lfo.protocols import Question
from lfo.runs import RunError, RunFolder
from lfo.train import load_player

FILE = "recalled.csv"
SERVED = ("success", frozenset[str](), frozenset[str]())


def measure_recalled(folder: str | Path, tasks: int = 50) -> pd.DataFrame:
    """One row per call of `probing.CALLERS`, the same that `probing.probe` asks a world model: see `recalled_rows`.

    It is measured once and then read, until the run is trained again. tasks: tasks per split and caller.

    Raises:
        RunError: the run has no policy, or no memory.
    """
    run = RunFolder(folder)
    if run.measured(FILE):
        return read_measurement(run, FILE)
    player = load_player(folder)
    if not player.coupling.recall:
        raise RunError(f"{folder} remembers nothing; ask a run with the coupling memory.")
    return write_measurement(run, FILE, recalled_rows(scripted_calls(player.codec, tasks), player.coupling.recall))


def recalled_rows(calls: Sequence[PlayedCall], recall: Callable[[Sequence[Question]], list[str]]) -> list[dict]:
    """caller, split, task_id, category as in `phrasings.situation_of`, silent, and right, in meaning: 0 or 1."""
    examples = [call.example for call in calls]
    empty_handed = [Question(e.request, e.turns, phone_call(e.call.arguments["phone_number"])) for e in examples]
    rows = []
    for call, e, reply in zip(calls, examples, recall(empty_handed), strict=True):
        about = {"caller": call.caller, "split": call.split, "task_id": e.task_id}
        right = bool(reply) and with_hands_full(reply, e.call.arguments["auth_info"]) == read_reply(e.reply)
        category = situation_of(spoken(e.reply))
        rows.append({**about, "category": category, "silent": int(not reply), "right": int(right)})
    return rows


def with_hands_full(reply: str, given: Sequence[str]) -> Hashable:
    """The meaning of what is said to somebody who gives these fields, by what is said to empty hands."""
    status, named, departments = read_reply(reply)
    if status != "auth_failed":
        return status, named, departments
    return (status, named - set(given), departments) if named - set(given) else SERVED


def recalled_table(memories: Runs, world_models: Runs) -> pd.DataFrame:
    """Share of the calls of scripted callers whose answer is said right in meaning, by what is answered.

    calls, and shares, of all runs of an arm together; who is silent is wrong. For the world models' the untrained base
    is a row of its own.

    Raises:
        RunError: a run was not asked.
    """
    said = replies(world_models).query("caller != 'own policy'").assign(silent=0)
    said["arm"] = said["arm"].where(said["model"] == TRAINED, said["model"])
    frames = [said, measurements(memories, FILE, "run notebook 06, or `lfo.lab.recalled.measure_recalled`")]
    columns = ["arm", "world", "seed", "split", "category", "silent", "right"]
    data = pd.concat([frame[columns] for frame in frames])
    data = pd.concat([data, data.assign(category="all")])
    rows = []
    for named, part in parts(data, "arm", "split", "category"):
        shares = {"calls": len(part), "right": part["right"].mean(), "silent": part["silent"].mean()}
        rows.append(named | shares | {"runs": len(part[["world", "seed"]].drop_duplicates())})
    return pd.DataFrame(rows).sort_values(["companies", "category"], kind="stable", ignore_index=True)
