"""Tables of training runs: how fast, how far, at what cost. Read from run folders alone.

The numbers that pages quote, with intervals over worlds and companies, are `lfo.lab.factorial.summary`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lfo.lab.hierarchy import Curve, Study, curves_of, final, lead, middle, number, read_curves
from lfo.lab.reading import RUN, SPLIT_NAMES, Runs, alike, arrivals, count_runs, frame, spending, success_frame
from lfo.lab.statistics import in_percent, kaplan_meier_median
from lfo.runs import RunError, RunFolder

THRESHOLDS = (0.5, 0.7, 0.9)
WAYS = {"rule_accuracy": "ways", "rule_accuracy_typical": "usual", "rule_accuracy_way": "routing"}
KNOWN_AFTER = (40, 80, 160, 320)  # sampled tasks
EACH = ["arm", *RUN]  # what tells runs apart
# What steps log of calls, and what is made of it over a run.
CALLS = {"train_calls_per_task": "mean", "replies_per_rollout": "mean", "examples_seen": "max"}


# --- how fast --------------------------------------------------------------------------------


def threshold_table(runs: Runs) -> pd.DataFrame:
    """Median tasks to 50 / 70 / 90% over the runs, by arm and split; '> N' where the median run never arrived."""
    rows = []
    for (arm, split), part in success_frame(runs).groupby(["arm", "split"], sort=False):
        row = {"arm": arm, "split": split, "runs": count_runs(part)}
        for threshold in THRESHOLDS:
            row[f"tasks to {threshold:.0%}"] = median_arrival(part, threshold)
        rows.append(row)
    return pd.DataFrame(rows)


def median_arrival(success: pd.DataFrame, threshold: float) -> str:
    """Median tasks to `threshold` as text. `success`: rows of one arm, one split and one level."""
    middle = kaplan_meier_median(arrivals(success, threshold))
    return f"{middle:.0f}" if np.isfinite(middle) else f"> {success.groupby(EACH)['tasks'].max().min()}"


# --- how far, and at what cost ---------------------------------------------------------------


def at_last(data: pd.DataFrame) -> pd.DataFrame:
    """The rows of every run's last evaluation."""
    return data[data["tasks"] == data.groupby(EACH)["tasks"].transform("max")]


def again_table(first: Runs, again: Runs) -> pd.DataFrame:
    """Success at the end, where the same configs were trained twice from the same seeds: medians over the runs, how far
    the second are ahead of the first (95%), and how far the two of a world are apart, on average. Shares; runs: pairs.

    On the same machine, with the same code, they would be the same runs: this is what rounding alone makes of them.
    """
    rows = []
    for (arm, folders), (split, companies) in itertools.product(again.items(), SPLIT_NAMES.items()):
        names = {Path(f).name for f in folders} & {Path(f).name for f in first.get(arm, ())}
        both = {"first": first.get(arm, ()), "again": folders}
        twice = {name: [f for f in found if Path(f).name in names] for name, found in both.items()}
        study = Study(read_curves(twice, split))
        if study.arms:
            ahead = study.find(final, lead("again", "first"), ["again", "first"])
            ends = {name: study.find(final, middle(name), [name]).value for name in twice}
            rows.append({"arm": arm, "companies": companies} | ends | {"ahead": ahead.value, "low": ahead.low})
            rows[-1] |= {"high": ahead.high, "apart": np.abs(ahead.parts).mean(), "runs": ahead.runs}
    return pd.DataFrame(rows)


def behaviour_table(runs: Runs) -> pd.DataFrame:
    """What was done at the last evaluation, medians over the runs, by arm and split; docs/metrics.md defines each."""
    last = at_last(frame(runs, "behaviour", needed=True)).drop(columns=["kind", "tasks", "step", *RUN], errors="ignore")
    return last.groupby(["arm", "split"], sort=False).median().reset_index()


def reply_table(runs: Runs) -> pd.DataFrame:
    """Semantic accuracy of the world model on real replies at the last evaluation, by category; empty without calls."""
    replies = frame(runs, "reply")
    if replies.empty:
        return pd.DataFrame(columns=["arm", "split", "category", "n", "accuracy"])
    last = at_last(replies)
    last = last.assign(hits=last["accuracy"] * last["n"])
    table = last.groupby(["arm", "split", "category"])[["hits", "n"]].sum().reset_index()
    return table.assign(accuracy=table["hits"] / table["n"]).drop(columns="hits")


def knowledge_table(runs: Runs) -> pd.DataFrame:
    """What is known at the end of what would be answered: shares that mean the right thing, by arm and companies.

    ways, usual, routing: of calls on the ways of the split's tasks, those to companies with typical rules only, and
    those that send the caller elsewhere; medians over the runs. own calls, and by category (success, wrong_department,
    auth_failed, routing_violation): of what was really answered to greedy episodes, of all runs together (`calls`); of
    a memory there are none. Of a routing_violation the department that it names must be right, of a way to call
    (`routing`) all that is demanded there, too. `learned`: calls that it was trained on.
    """
    rules, replies = frame(runs, "rules"), reply_table(runs)
    if rules.empty:
        return pd.DataFrame(columns=["arm", "companies", *WAYS.values()])
    ways = at_last(rules).groupby(["arm", "split"])[list(WAYS)].median().rename(columns=WAYS)
    by = replies.assign(hits=replies["accuracy"] * replies["n"]).groupby(["arm", "split"])[["hits", "n"]].sum()
    own = replies.pivot(index=["arm", "split"], columns="category", values="accuracy")
    own.insert(0, "calls", by["n"])
    own.insert(1, "own calls", by["hits"] / by["n"])
    names = SPLIT_NAMES | {"train": "calls that were learned"}
    wanted = pd.MultiIndex.from_product([runs, names], names=["arm", "split"])
    table = ways.join(own, how="outer")
    table = table.reindex(wanted.intersection(table.index, sort=False)).reset_index()
    return table.assign(split=table["split"].map(names)).rename(columns={"split": "companies"})


def untrained_table(runs: Runs) -> pd.DataFrame:
    """Whether training made a world model better than the base that it began as: shares of the real replies to greedy
    episodes that it had right in meaning, before the first task and at the end, by kind of reply; all runs pooled.

    The calls are each evaluation's own policy's, so that the two columns are not about the same calls.
    """
    replies = frame(runs, "reply")
    if replies.empty:
        return pd.DataFrame(columns=["arm", "companies", "reply", "untrained", "calls then", "trained", "calls"])
    replies = replies[replies["split"].isin(SPLIT_NAMES)].assign(hits=lambda rows: rows["accuracy"] * rows["n"])
    everything = pd.concat([replies.assign(category="all"), replies])
    by = ["arm", "split", "category"]
    before, after = (
        part.groupby(by, sort=False)[["hits", "n"]].sum()
        for part in (everything[everything["tasks"] == 0], at_last(everything))
    )
    table = before.add_suffix(" then").join(after, how="outer").reset_index()
    table["untrained"], table["trained"] = table["hits then"] / table["n then"], table["hits"] / table["n"]
    table = table.assign(split=table["split"].map(SPLIT_NAMES)).rename(
        columns={"split": "companies", "category": "reply", "n then": "calls then", "n": "calls"}
    )
    return table[["arm", "companies", "reply", "untrained", "calls then", "trained", "calls"]]


def known(runs: Runs, split: str) -> list[Curve]:
    """The share of ways of a split's tasks whose reply is known at the end, one number a run; memories and world
    models have one."""
    rules = frame(runs, "rules")
    rows = at_last(rules[rules["split"] == split]) if len(rules) else pd.DataFrame({"arm": []})
    return curves_of(rows.assign(task_id="", company_id=""), ["rule_accuracy"])


def known_table(runs: Runs) -> pd.DataFrame:
    """How fast is it known what would be answered? Shares as in `known`, after so many sampled tasks: medians over the
    runs with 95% intervals over worlds and runs; runs that were not evaluated at all of these are left out."""
    names, rows, rules = [f"{tasks} tasks" for tasks in KNOWN_AFTER], [], frame(runs, "rules")
    for split, companies in SPLIT_NAMES.items() if len(rules) else ():
        there = rules[rules["split"] == split].pivot(index=EACH, columns="tasks", values="rule_accuracy")
        there = there.reindex(columns=list(KNOWN_AFTER)).dropna().reset_index().assign(task_id="", company_id="")
        study = Study(curves_of(there, KNOWN_AFTER))
        for arm in study.arms:
            each = [study.find(number(place), middle(arm), [arm]) for place in range(len(names))]
            shares = {name: in_percent(one.value, one.low, one.high) for name, one in zip(names, each, strict=True)}
            rows.append({"companies": companies, "arm": arm, "runs": each[0].runs} | shares)
    return pd.DataFrame(rows, columns=["companies", "arm", "runs", *names])


GAINS = {"gain": "mean", "least": "min", "most": "max", "ahead": lambda gains: (gains > 0).sum()}


def reasons_table(runs: Runs) -> pd.DataFrame:
    """What reasons are worth to whoever predicts replies: shares of the ways of held-out tasks whose reply is known at
    the end (as in `knowledge_table`), where CSRs only list what they want, and where they say why.

    runs: of both dials, ``<combination>/<arm>``. Compared are runs of the same arm, circumstances, world and seed; at 0
    circumstances there is nothing to give a reason for. list, reasons, gain: means over these; least, most: what is
    gained in any of them; ahead: in how many it is above 0.
    """
    rules = frame(runs, "rules")
    if rules.empty:
        return pd.DataFrame(columns=["arm", "circumstances", "companies", "runs", "list", "reasons", *GAINS])
    worlds = {name: RunFolder(folders[0]).config.env for name, folders in runs.items()}
    last = at_last(rules)
    last = last.assign(
        replies=last["arm"].map(lambda name: worlds[name].replies),
        circumstances=last["arm"].map(lambda name: worlds[name].circumstances),
        arm=last["arm"].str.rpartition("/")[2],
    )
    place = ["arm", "circumstances", "split"]
    pairs = last.pivot(index=[*place, *RUN], columns="replies", values="rule_accuracy")
    pairs = pairs.reindex(columns=["list", "reasons"]).dropna().query("circumstances > 0")
    by = pairs.assign(gain=pairs["reasons"] - pairs["list"]).groupby(place)
    means = by[["list", "reasons"]].mean()
    table = by["gain"].agg(**GAINS).join(means)[[*means, *GAINS]].reset_index()
    table.insert(3, "runs", by.size().to_numpy())
    return table.assign(split=table["split"].map(SPLIT_NAMES)).rename(columns={"split": "companies"})


def prediction_table(runs: Runs) -> pd.DataFrame:
    """Some predictions of the world model beside what was said, at the last evaluation of each arm's first run."""
    columns = ["arm", "split", "task_id", "said", "predicted", "right"]
    shown = frame({arm: folders[:1] for arm, folders in runs.items()}, "prediction")
    return pd.DataFrame(columns=columns) if shown.empty else at_last(shown)[columns].reset_index(drop=True)


def sweep_table(folders: Sequence[str | Path]) -> pd.DataFrame:
    """One row per run: best and last success, mean over all evaluations, tasks to 70%.

    On the validation tasks, or where they were not evaluated, on the first split that was.
    """
    data = success_frame({Path(f).name: [f] for f in folders})
    split = "validation" if "validation" in set(data["split"]) else data["split"].iloc[0]
    rows = []
    for run, one in data[data["split"] == split].groupby("arm", sort=False):
        scores, arrival = one["success"], arrivals(one, 0.7)[0].value
        numbers = {"mean success": scores.mean(), "best": scores.max(), "last": scores.iloc[-1]}
        rows.append({"run": run, "split": split, **numbers, "tasks to 70%": arrival})
    return pd.DataFrame(rows).sort_values("mean success", ascending=False)


def compute_table(runs: Runs) -> pd.DataFrame:
    """What the arms cost per sampled task, and as multiples of the first arm's: tokens sampled and trained on, and
    seconds as `pace_table` compares them. rollouts per task: the size of a group, scouts included, dreams apart. groups
    kept: the share that taught anything, of those that were sampled. calls, replies per rollout: how many were made,
    and how many of them the coupling took up. calls heard: different ones in all, those of scouts as well (of
    `cloning`: what it imitates; who is told the truth learns nothing of them).

    Medians over the runs. Tokens of dreams are counted, dreamt tasks apart from the sampled ones. A baseline of equal
    compute is the first arm with so many more rollouts of a task (`rollout.group_size`) as the other's tokens are.

    Raises:
        RunError: a run is older than these counts.
    """
    kinds, steps = ("sampled_tokens", "trained_tokens"), frame(runs, "step", needed=True)
    if not set(kinds) <= set(steps) or steps[list(kinds)].isna().any(axis=None):
        raise RunError("a run was trained before tokens were counted; train it again to compare what arms cost.")
    steps = steps.assign(dreamt=steps.get("dreamt_groups", 0.0)).fillna({"dreamt": 0.0})
    steps = steps.reindex(columns=[*steps, *(name for name in CALLS if name not in steps)])
    sums = {"tasks": "max", **dict.fromkeys((*kinds, "dreamt", "groups_kept", "groups_sampled"), "sum"), **CALLS}
    each = steps.groupby(EACH, sort=False).agg(sums).reset_index()
    rows: list[dict] = []
    for arm, part in each.groupby("arm", sort=False):
        tasks, dreamt = (int(part[name].median()) for name in ("tasks", "dreamt"))
        kept = (part["groups_kept"] / part["groups_sampled"]).median()
        size = float(RunFolder(runs[arm][0]).config.rollout.group_size)
        row = {"arm": arm, "runs": len(part), "tasks": tasks, "dreamt tasks": dreamt, "rollouts per task": size}
        row["groups kept"] = kept
        calls, replies, heard = part[list(CALLS)].median()
        row |= {"calls per rollout": calls, "replies per rollout": replies, "calls heard": heard}
        for kind in kinds:
            name = kind.replace("_", " ")
            row[f"{name} per task"] = (part[kind] / part["tasks"]).median()
            first = (rows[0] if rows else row)[f"{name} per task"]
            row[f"{name}, multiple"] = row[f"{name} per task"] / first if first else np.nan
        rows.append(row)
    return pd.DataFrame(rows).merge(pace_table(runs, rows[0]["arm"]), on="arm")


def pace_table(runs: Runs, reference: str) -> pd.DataFrame:
    """Arm by arm: wall seconds per sampled task, as multiples of the reference's, evaluation left out; medians.

    A run is held against the reference's of the same world and seed, where both were made `alike`. compared: how many
    were; of none the multiple is nan.
    """
    paces = {arm: dict(map(_pace, folders)) for arm, folders in alike(runs, reference).items()}
    first, rows = paces.get(reference, {}), []
    for arm in runs:
        multiples = [pace / first[run] for run, pace in paces.get(arm, {}).items() if first[run]]
        middle = float(np.median(multiples)) if multiples else np.nan
        rows.append({"arm": arm, "seconds, multiple": middle, "compared": len(multiples)})
    return pd.DataFrame(rows)


def _pace(folder: Path) -> tuple[tuple[int, int], float]:
    """A run's world and seed, and its seconds per task."""
    run = RunFolder(folder)
    *_, (seconds, last) = spending(run, "seconds")
    if not last["tasks"]:
        raise RunError(f"{folder} has not made a step yet; let it go on, or leave it out.")
    return (run.config.env.world_seed, run.config.seed), seconds / last["tasks"]


def phase_seconds(runs: Runs) -> pd.DataFrame:
    """Wall seconds per phase of the loop, summed over a run, median over the runs."""
    data = pd.concat([frame(runs, "step"), frame(runs, "seconds")])
    columns = [c for c in data if c.startswith("seconds.")]
    table = data.groupby(EACH)[columns].sum().groupby("arm").median()
    return table.rename(columns=lambda c: c.removeprefix("seconds.")).reset_index()


# --- the environment (notebook 01) -----------------------------------------------------------


def interval_table(rows: Sequence[Mapping], index: str) -> pd.DataFrame:
    """Success with its interval in percent, "95.0 [90.1, 97.6]": a line per `index`, a column per level (0: all)."""
    data = pd.DataFrame(rows)
    data["text"] = [f"{100 * r.success:.1f} [{100 * r.low:.1f}, {100 * r.high:.1f}]" for r in data.itertuples()]
    data["level"] = [str(level or "all") for level in data["level"]]
    table = data.pivot(index=index, columns="level", values="text")
    return table.loc[data[index].unique(), data["level"].unique()]
