"""Tables of training runs: how fast, how far, at what cost; and `summary_table`, every headline number by arm.

Read from run folders alone.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lfo.lab.reading import SPLIT_NAMES, Runs, after, arrivals, frame, success_frame
from lfo.lab.statistics import Estimate, interquartile_mean, kaplan_meier_median, median, median_tasks, speedup
from lfo.lab.transfer_tables import TOLD, TRANSFER, pass_k, success_over_seeds, told_frame, transfer_frame
from lfo.proportions import wilson
from lfo.runs import RunError

THRESHOLDS = (0.5, 0.7, 0.9)
READ_AT = 500  # sampled tasks after which success is read as well, besides the arms' budgets
METRICS = "metrics.jsonl"


# --- how fast --------------------------------------------------------------------------------


def threshold_table(runs: Runs) -> pd.DataFrame:
    """Median tasks to 50 / 70 / 90% over the seeds, by arm and split; '> N' where the median run never arrived."""
    rows = []
    for (arm, split), part in success_frame(runs).groupby(["arm", "split"], sort=False):
        row = {"arm": arm, "split": split, "seeds": part["seed"].nunique()}
        for threshold in THRESHOLDS:
            row[f"tasks to {threshold:.0%}"] = median_arrival(part, threshold)
        rows.append(row)
    return pd.DataFrame(rows)


def median_arrival(success: pd.DataFrame, threshold: float) -> str:
    """Median tasks to `threshold` as text. `success`: rows of one arm, one split and one level."""
    middle = kaplan_meier_median(arrivals(success, threshold))
    return f"{middle:.0f}" if np.isfinite(middle) else f"> {success['tasks'].max()}"


def speedup_table(runs: Runs, baseline: str, threshold: float = 0.7) -> pd.DataFrame:
    """How many times fewer tasks than `baseline` every arm needs to `threshold`, by split (`statistics.Speedup`)."""
    rows = []
    for split, part in success_frame(runs).groupby("split", sort=False):
        slow = arrivals(part[part["arm"] == baseline], threshold)
        for arm, one in part[part["arm"] != baseline].groupby("arm", sort=False):
            ratio = speedup(slow, arrivals(one, threshold))
            rows.append({"arm": arm, "split": split, **dataclasses.asdict(ratio)})
    return pd.DataFrame(rows).rename(columns={"value": "times fewer", "at_least": "at least", "n": "seeds"})


# --- the summary -----------------------------------------------------------------------------


def summary_table(runs: Runs, baseline: str | None = None) -> pd.DataFrame:
    """Every headline number by arm, metric and split: median over the seeds with its bootstrap 95% interval.

    tasks_to_50 / 70 / 90: Kaplan-Meier medians, ">N" beyond the N tasks that the arm's runs were given.
    success_at_N, rule_accuracy_at_N: after N sampled tasks, between two evaluations on the straight line, for every N
    that is the budget (of the shortest run) of some arm, and for 500. iqm_success_at_N: interquartile mean over seeds
    and levels. times_fewer_to_70: than `baseline`, ">=" where that never arrives. transfer, transfer_held_out: success
    of frozen runs over all levels, in known and in held-out phrasings, and pass^k, where transfer.csv was written;
    told_nothing and so on: success by what the policy is told, where told.csv was.
    low and high are empty for a single seed. source: the files it was computed from, with ";" between.
    """
    rows = [
        *_curve_rows(runs),
        *(_speedup_rows(runs, baseline) if baseline else []),
        *_transfer_rows(_with_file(runs, TRANSFER)),
        *_told_rows(_with_file(runs, TOLD)),
    ]
    rows.sort(key=lambda row: [*runs].index(row["arm"]))
    return pd.DataFrame(rows, columns=["arm", "metric", "split", "median", "low", "high", "seeds", "source"])


def _curve_rows(runs: Runs) -> Iterator[dict]:
    """What is read off the metrics."""
    success = frame(runs, "success", needed=True)
    measures = {"success": success.query("level == 0"), "rule_accuracy": frame(runs, "rules")}
    budgets = success.groupby(["arm", "seed"])["tasks"].max().groupby("arm").min()
    for (arm, split), part in measures["success"].groupby(["arm", "split"], sort=False):
        where = {"arm": arm, "split": split, "source": _sources(runs[arm], METRICS)}
        for threshold in THRESHOLDS:
            estimate, given = median_tasks(arrivals(part, threshold)), part["tasks"].max()
            yield {**where, "metric": f"tasks_to_{threshold * 100:.0f}", **_texts(estimate, given)}
        levels = success[(success["arm"] == arm) & (success["split"] == split) & (success["level"] > 0)]
        for n in sorted({n for n in (*budgets, READ_AT) if n <= budgets[arm]}):
            for name, data in measures.items():
                if len(data) and len(one := data[(data["arm"] == arm) & (data["split"] == split)]):
                    yield {**where, "metric": f"{name}_at_{n}", **_texts(median(after(n, one, name)))}
            strata = [after(n, one) for _, one in levels.groupby("level")]
            yield {**where, "metric": f"iqm_success_at_{n}", **_texts(interquartile_mean(strata))}


def _speedup_rows(runs: Runs, baseline: str) -> Iterator[dict]:
    """How many times fewer tasks than the baseline, for the arms where that is known."""
    for row in speedup_table(runs, baseline).dropna(subset="times fewer").to_dict("records"):
        files = ";".join(_sources(runs[arm], METRICS) for arm in (baseline, row["arm"]))
        texts = _texts(Estimate(row["times fewer"], row["low"], row["high"], row["seeds"]))
        texts |= {k: "inf" for k, v in texts.items() if v == ">inf"}
        if np.isinf(row["times fewer"]):
            texts["median"] = f">={row['at least']:.4g}"
        yield {"arm": row["arm"], "metric": "times_fewer_to_70", "split": row["split"], **texts, "source": files}


def _transfer_rows(runs: Runs) -> Iterator[dict]:
    """What is read off transfer.csv."""
    for arm, folders in runs.items():
        data, where = transfer_frame({arm: folders}), {"arm": arm, "source": _sources(folders, TRANSFER)}
        for (split, held_out), one in data.groupby(["split", "held_out_phrasing"], sort=False):
            metric = "transfer_held_out" if held_out else "transfer"
            yield {**where, "metric": metric, "split": split, **_texts(success_over_seeds(one))}
        for split, one in data.query("not held_out_phrasing").groupby("split", sort=False):
            for metric, score in pass_k(one).items():
                yield {**where, "metric": metric, "split": split, **_texts(score)}


def _told_rows(runs: Runs) -> Iterator[dict]:
    """What is read off told.csv."""
    for arm, folders in runs.items():
        where = {"arm": arm, "source": _sources(folders, TOLD)}
        for (split, told), one in told_frame({arm: folders}).groupby(["split", "told"], sort=False):
            metric = f"told_{told.replace(' ', '_')}"
            yield {**where, "metric": metric, "split": split, **_texts(success_over_seeds(one))}


def _with_file(runs: Runs, file: str) -> Runs:
    """The arms of which all runs have this file."""
    return {arm: folders for arm, folders in runs.items() if all((Path(f) / file).exists() for f in folders)}


def _sources(folders: Sequence[str | Path], file: str) -> str:
    return ";".join(os.path.relpath(Path(folder) / file) for folder in folders)


def _texts(estimate: Estimate, given: float = np.inf) -> dict:
    """The numbers of an estimate as texts: what is infinite lies beyond the tasks `given`, what is nan is left out."""
    numbers = {"median": estimate.value, "low": estimate.low, "high": estimate.high}
    texts = {k: f">{given:g}" if np.isinf(v) else f"{round(v, 4):.10g}" for k, v in numbers.items() if not np.isnan(v)}
    return texts | {"seeds": estimate.n}


def headline_table(runs: Runs, baseline: str | None = None) -> pd.DataFrame:
    """The summary, a row per arm: tasks to 70%, times fewer than `baseline`, success after the smallest budget."""
    table = summary_table(runs, baseline)
    budget = min(int(name.rpartition("_")[2]) for name in table["metric"] if name.startswith("success_at_"))
    names = {
        "tasks_to_70": "tasks to 70%",
        "times_fewer_to_70": "times fewer",
        f"success_at_{budget}": f"success after {budget} tasks",
    }
    rows = []
    for arm, one in table[table["metric"].isin(names)].groupby("arm", sort=False):
        row = {"arm": arm, "seeds": one["seeds"].max()}
        for cell in one.itertuples():
            interval = f" [{cell.low}, {cell.high}]" if isinstance(cell.low, str) else ""
            row[_column(names[cell.metric], cell.split)] = _shorter(f"{cell.median}{interval}")
        rows.append(row)
    order = ["arm", "seeds", *(_column(name, split) for split in SPLIT_NAMES for name in names.values())]
    return pd.DataFrame(rows).reindex(columns=[c for c in order if any(c in row for row in rows)]).fillna("")


def _column(name: str, split: str) -> str:
    return f"{name}, {SPLIT_NAMES[split].split()[0]}"


def _shorter(text: str) -> str:
    """The same text, its numbers with two decimals at most."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), text)


# --- how far, and at what cost ---------------------------------------------------------------


def _last(data: pd.DataFrame) -> pd.DataFrame:
    """The rows of every run's last evaluation."""
    return data[data["tasks"] == data.groupby(["arm", "seed"])["tasks"].transform("max")]


def final_table(runs: Runs) -> pd.DataFrame:
    """Success at the last evaluation, by arm, split and level (0: all); episodes pooled over seeds, Wilson 95%."""
    rows = []
    last = _last(frame(runs, "success", needed=True))
    for (arm, split, level), part in last.groupby(["arm", "split", "level"], sort=False):
        n = int(part["n"].sum())
        hits = round(float((part["success"] * part["n"]).sum()))
        low, high = wilson(hits, n)
        numbers = {"success": hits / n, "low": low, "high": high, "episodes": n, "seeds": part["seed"].nunique()}
        rows.append({"arm": arm, "split": split, "level": level or "all", **numbers})
    return pd.DataFrame(rows)


def reply_table(runs: Runs) -> pd.DataFrame:
    """Semantic accuracy of the world model on real replies at the last evaluation, by category."""
    last = _last(frame(runs, "reply"))
    last = last.assign(hits=last["accuracy"] * last["n"])
    table = last.groupby(["arm", "split", "category"])[["hits", "n"]].sum().reset_index()
    return table.assign(accuracy=table["hits"] / table["n"]).drop(columns="hits")


def sweep_table(folders: Sequence[str | Path], split: str = "validation") -> pd.DataFrame:
    """One row per run: best and last success, mean over all evaluations (area under the curve), tasks to 70%."""
    data = success_frame({Path(f).name: [f] for f in folders})
    rows = []
    for run, one in data[data["split"] == split].groupby("arm", sort=False):
        scores, arrival = one["success"], arrivals(one, 0.7)[0].value
        numbers = {"mean success": scores.mean(), "best": scores.max(), "last": scores.iloc[-1]}
        rows.append({"run": run, "split": split, **numbers, "tasks to 70%": arrival})
    return pd.DataFrame(rows).sort_values("mean success", ascending=False)


def compute_table(runs: Runs) -> pd.DataFrame:
    """What the arms cost: tokens sampled and trained on per sampled task, and as multiples of the first arm's.

    Medians over the seeds. Tokens of dreams are counted, dreamt tasks apart from the sampled ones. A baseline of equal
    compute is the first arm with `policy.epochs` set to the other arm's multiple of trained tokens, rounded: all its
    trained tokens are the policy's, and each pass costs the same again.

    Raises:
        RunError: a run is older than these counts.
    """
    kinds = ("sampled_tokens", "trained_tokens")
    steps = frame(runs, "step", needed=True)
    if not set(kinds) <= set(steps) or steps[list(kinds)].isna().any(axis=None):
        raise RunError("a run was trained before tokens were counted; train it again to compare what arms cost.")
    steps = steps.assign(dreamt=steps.get("dreamt_groups", 0.0)).fillna({"dreamt": 0.0})
    sums = {"tasks": "max", **dict.fromkeys((*kinds, "dreamt"), "sum")}
    each = steps.groupby(["arm", "seed"], sort=False).agg(sums).reset_index()
    rows: list[dict] = []
    for arm, part in each.groupby("arm", sort=False):
        tasks, dreamt = (int(part[name].median()) for name in ("tasks", "dreamt"))
        row = {"arm": arm, "seeds": len(part), "tasks": tasks, "dreamt tasks": dreamt}
        for kind in kinds:
            name = kind.replace("_", " ")
            row[f"{name} per task"] = (part[kind] / part["tasks"]).median()
            first = (rows[0] if rows else row)[f"{name} per task"]
            row[f"{name}, multiple"] = row[f"{name} per task"] / first if first else np.nan
        rows.append(row)
    return pd.DataFrame(rows)


def phase_seconds(runs: Runs) -> pd.DataFrame:
    """Wall seconds per phase of the loop, summed over a run, median over the seeds."""
    data = pd.concat([frame(runs, "step"), frame(runs, "seconds")])
    columns = [c for c in data if c.startswith("seconds.")]
    table = data.groupby(["arm", "seed"])[columns].sum().groupby("arm").median()
    return table.rename(columns=lambda c: c.removeprefix("seconds.")).reset_index()


# --- the environment (notebook 01) -----------------------------------------------------------


def interval_table(rows: Sequence[Mapping], index: str) -> pd.DataFrame:
    """Success with its interval in percent, "95.0 [90.1, 97.6]": a line per `index`, a column per level (0: all)."""
    data = pd.DataFrame(rows)
    data["text"] = [f"{100 * r.success:.1f} [{100 * r.low:.1f}, {100 * r.high:.1f}]" for r in data.itertuples()]
    data["level"] = [str(level or "all") for level in data["level"]]
    table = data.pivot(index=index, columns="level", values="text")
    return table.loc[data[index].unique(), data["level"].unique()]
