"""What memories make of scripted callers' calls, a third of which hand something over: they are never asked these.

A memory knows what was named to empty hands. To be held against a world model, which learns all that is answered, it is
given the rule that it lacks: who hands over all that would be named is served, who does not is named the rest. That a
value is wrong, or that another field will do in the place of one that the caller lacks, it says by chance at most.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

import pandas as pd

from lfo.envs.phone.phrasings import read_reply, situation_of, spoken
from lfo.envs.phone.tools import phone_call
from lfo.lab.player import load_player
from lfo.lab.probing import OWN, TRAINED, PlayedCall, scripted_calls
from lfo.lab.probing_figures import probed
from lfo.lab.reading import Runs, measurements, parts, read_measurement, write_measurement
from lfo.protocols import Answering, Question
from lfo.runs import RunError, RunFolder

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


def recalled_rows(calls: Sequence[PlayedCall], recall: Answering) -> list[dict]:
    """caller, split, task_id, gave and said as in `inspect.in_words`, silent, and right, in meaning: 0 or 1."""
    examples = [call.example for call in calls]
    empty_handed = [Question(e.request, e.turns, phone_call(e.call.arguments["phone_number"])) for e in examples]
    rows = []
    for call, e, reply in zip(calls, examples, recall(empty_handed), strict=True):
        given = e.call.arguments["auth_info"]
        about = {"caller": call.caller, "split": call.split, "task_id": e.task_id}
        about |= {"gave": ", ".join(given), "said": spoken(e.reply)}
        right = bool(reply) and with_hands_full(reply, given) == read_reply(e.reply)
        rows.append({**about, "silent": int(not reply), "right": int(right)})
    return rows


def with_hands_full(reply: str, given: Sequence[str]) -> Hashable:
    """The meaning of what is said to somebody who gives these fields, by what is said to empty hands."""
    status, named, departments = read_reply(reply)
    missing = named - set(given)
    return SERVED if named and not missing else (status, missing, departments)


def recalled_table(memories: Runs, world_models: Runs) -> pd.DataFrame:
    """Share of the calls of scripted callers whose answer is said right in meaning, by what the caller gave and by what
    is answered (`phrasings.situation_of`).

    calls, and shares, of all runs of an arm together; who is silent is wrong. The untrained base, beside the world
    models, has rows of its own.

    Raises:
        RunError: a run was not asked.
    """
    said = scripted_replies(world_models).assign(silent=0)
    said["arm"] = said["arm"].where(said["model"] == TRAINED, said["model"])
    told = measurements(memories, FILE, "run notebook 06, or `lfo.lab.recalled.measure_recalled`")
    data = pd.concat([said, told], ignore_index=True)
    data["category"] = data["said"].map(situation_of)
    anything, everything = {"gave": "anything or nothing"}, {"category": "all"}
    data["gave"] = data["gave"].map(lambda fields: "a field or more" if fields else "nothing")
    data = pd.concat([data.assign(**anything, **everything), data.assign(**everything), data.assign(**anything)])
    rows = []
    for named, part in parts(data, "arm", "split", "gave", "category"):
        shares = {"calls": len(part), "right": part["right"].mean(), "silent": part["silent"].mean()}
        rows.append(named | shares | {"runs": len(part[["world", "seed"]].drop_duplicates())})
    order = ["companies", "gave", "category"]
    return pd.DataFrame(rows).sort_values(order, kind="stable", ignore_index=True)


def scripted_replies(world_models: Runs) -> pd.DataFrame:
    """What `probing.probe` found of these calls.

    Raises:
        RunError: a run was not probed.
    """
    return probed(world_models, "replies").query(f"caller != '{OWN}'")
