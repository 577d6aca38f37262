"""Result files -> figures and tables. Never loads a model: a report rebuilds from run folders alone.

`docs/metrics.md` defines every logged metric. Every figure and table is written with its
provenance beside it: runs, seeds, commit, packages, machine, wall time.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from PIL import Image

from lfo.statistics import (
    ENOUGH_RUNS,
    Arrival,
    Estimate,
    interquartile_mean,
    kaplan_meier_median,
    median,
    median_tasks,
    pass_hat_k,
    speedup,
    tasks_to_threshold,
    verdict,
    wilson,
)

THRESHOLDS = (0.5, 0.7, 0.9)
READ_AT = 500  # sampled tasks after which success is read as well, besides the arms' budgets
AIM, FLOOR = 5.0, 3.0  # times fewer tasks to 70%, and the least that its interval may allow
SPLIT_NAMES = {"validation": "known companies (validation)", "test": "new companies (test)"}
Runs = Mapping[str, Sequence[str | Path]]  # label -> run folders, one per seed


class ResultError(ValueError):
    """A run folder lacks what a figure needs; the message says how to make it."""


def style() -> None:
    """One look for all figures; colours that colour-blind readers can tell apart."""
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind")
    plt.rcParams.update({"figure.dpi": 90, "savefig.dpi": 120, "svg.hashsalt": "lfo", "axes.titlesize": "medium"})


def read_metrics(folder: str | Path) -> list[dict]:
    """All rows of a run's metrics.jsonl.

    Raises:
        ResultError: the run was not started, or its last line was cut off.
    """
    path = Path(folder) / "metrics.jsonl"
    if not path.exists():
        raise ResultError(
            f"{path} is missing; train first, e.g. `lfo train --config configs/laptop.yaml --run {folder}`."
        )
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            raise ResultError(
                f"{path}, line {number} is not JSON; start the run again, it resumes and mends it."
            ) from None
    return rows


def frame(runs: Runs, kind: str, needed: bool = False) -> pd.DataFrame:
    """Rows of one kind of all runs, with columns `arm` and `seed`.

    Raises:
        ResultError: they are `needed`, and there is none.
    """
    frames = []
    for arm, folders in runs.items():
        for folder in folders:
            rows = [r for r in read_metrics(folder) if r["kind"] == kind]
            frames.append(pd.json_normalize(rows).assign(arm=arm, seed=_seed(folder)))
    if needed and not any(map(len, frames)):
        names = ", ".join(str(folder) for folders in runs.values() for folder in folders)
        raise ResultError(f"there are no '{kind}' rows yet in {names}; let the run go on, or start it again.")
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def written(runs: Runs, file: str, remedy: str) -> pd.DataFrame:
    """The table that a measurement left as `file` in every run folder, with columns `arm` and `seed`.

    Raises:
        ResultError: a run lacks it; the message names the remedy.
    """
    frames = []
    for arm, folders in runs.items():
        for path in (Path(folder) / file for folder in folders):
            if not path.exists():
                raise ResultError(f"{path} is missing; {remedy}.")
            frames.append(pd.read_csv(path, keep_default_na=False).assign(arm=arm, seed=_seed(path.parent)))
    return pd.concat(frames, ignore_index=True)


def _seed(folder: str | Path) -> int:
    return json.loads((Path(folder) / "config.json").read_text())["seed"]


# --- tables ----------------------------------------------------------------------------------


def arrivals(success: pd.DataFrame, threshold: float) -> list[Arrival]:
    """Tasks to `threshold` of every seed. `success`: rows of one arm, one split and one level."""
    return [tasks_to_threshold(one["tasks"], one["success"], threshold) for _, one in success.groupby("seed")]


def threshold_table(runs: Runs) -> pd.DataFrame:
    """Median tasks to 50 / 70 / 90% over the seeds, by arm and split; '> N' where the median run never arrived."""
    data = frame(runs, "success", needed=True).query("level == 0")
    rows = []
    for (arm, split), part in data.groupby(["arm", "split"], sort=False):
        row = {"arm": arm, "split": split, "seeds": part["seed"].nunique()}
        for threshold in THRESHOLDS:
            middle = kaplan_meier_median(arrivals(part, threshold))
            row[f"tasks to {threshold:.0%}"] = f"{middle:.0f}" if np.isfinite(middle) else f"> {part['tasks'].max()}"
        rows.append(row)
    return pd.DataFrame(rows)


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
        *_transfer_rows(runs),
        *_told_rows(runs),
    ]
    rows.sort(key=lambda row: [*runs].index(row["arm"]))
    return pd.DataFrame(rows, columns=["arm", "metric", "split", "median", "low", "high", "seeds", "source"])


def _curve_rows(runs: Runs) -> Iterator[dict]:
    """`summary_table`: what is read off metrics.jsonl."""
    success = frame(runs, "success", needed=True)
    measures = {"success": success.query("level == 0"), "rule_accuracy": frame(runs, "rules")}
    budgets = success.groupby(["arm", "seed"])["tasks"].max().groupby("arm").min()
    for (arm, split), part in measures["success"].groupby(["arm", "split"], sort=False):
        where = {"arm": arm, "split": split, "source": _sources(runs[arm], "metrics.jsonl")}
        for threshold in THRESHOLDS:
            estimate, given = median_tasks(arrivals(part, threshold)), part["tasks"].max()
            yield {**where, "metric": f"tasks_to_{threshold * 100:.0f}", **_texts(estimate, given)}
        levels = success[(success["arm"] == arm) & (success["split"] == split) & (success["level"] > 0)]
        for n in sorted({n for n in (*budgets, READ_AT) if n <= budgets[arm]}):
            for name, data in measures.items():
                if len(data) and len(one := data[(data["arm"] == arm) & (data["split"] == split)]):
                    yield {**where, "metric": f"{name}_at_{n}", **_texts(median(_after(n, one, name)))}
            strata = [_after(n, one, "success") for _, one in levels.groupby("level")]
            yield {**where, "metric": f"iqm_success_at_{n}", **_texts(interquartile_mean(strata))}


def _after(tasks: int, data: pd.DataFrame, name: str) -> list[float]:
    """`name` of every seed after so many sampled tasks, between two evaluations on the straight line."""
    return [float(np.interp(tasks, one["tasks"], one[name])) for _, one in data.groupby("seed")]


def _speedup_rows(runs: Runs, baseline: str) -> Iterator[dict]:
    """`summary_table`: how many times fewer tasks than the baseline, for the arms where that is known."""
    for row in speedup_table(runs, baseline).dropna(subset="times fewer").to_dict("records"):
        files = ";".join(_sources(runs[arm], "metrics.jsonl") for arm in (baseline, row["arm"]))
        texts = _texts(Estimate(row["times fewer"], row["low"], row["high"], row["seeds"]))
        texts |= {k: "inf" for k, v in texts.items() if v == ">inf"}
        texts |= {"median": f">={row['at least']:.4g}"} if np.isinf(row["times fewer"]) else {}
        yield {"arm": row["arm"], "metric": "times_fewer_to_70", "split": row["split"], **texts, "source": files}


def _transfer_rows(runs: Runs) -> Iterator[dict]:
    """`summary_table`: what is read off transfer.csv, for the arms of which all runs have one."""
    for arm, folders in runs.items():
        if not all((Path(folder) / "transfer.csv").exists() for folder in folders):
            continue
        data, where = _transfer({arm: folders}), {"arm": arm, "source": _sources(folders, "transfer.csv")}
        for (split, held_out), one in data.groupby(["split", "held_out_phrasing"], sort=False):
            scores = median(one.groupby("seed")["success"].mean())
            yield {**where, "metric": f"transfer{'_held_out' * held_out}", "split": split, **_texts(scores)}
        for (_, split), scores in _pass_k(data).items():
            yield from ({**where, "metric": name, "split": split, **_texts(one)} for name, one in scores.items())


def _told_rows(runs: Runs) -> Iterator[dict]:
    """`summary_table`: what is read off told.csv, for the arms of which all runs have one."""
    for arm, folders in runs.items():
        if not all((Path(folder) / "told.csv").exists() for folder in folders):
            continue
        where = {"arm": arm, "source": _sources(folders, "told.csv")}
        for (split, told), one in _told({arm: folders}).groupby(["split", "told"], sort=False):
            success = _texts(median(one.groupby("seed")["success"].mean()))
            yield {**where, "metric": f"told_{told.replace(' ', '_')}", "split": split, **success}


def _sources(folders: Sequence[str | Path], file: str) -> str:
    return ";".join(os.path.relpath(Path(folder) / file) for folder in folders)


def headline_table(runs: Runs, baseline: str | None = None) -> pd.DataFrame:
    """The summary, a row per arm: tasks to 70%, times fewer than `baseline`, success after the smallest budget."""
    table = summary_table(runs, baseline)
    budget = min(int(name.rpartition("_")[2]) for name in table["metric"] if name.startswith("success_at_"))
    names = {"tasks_to_70": "tasks to 70%", "times_fewer_to_70": "times fewer",
             f"success_at_{budget}": f"success after {budget} tasks"}  # fmt: skip
    rows = []
    for arm, one in table[table["metric"].isin(names)].groupby("arm", sort=False):
        row = {"arm": arm, "seeds": one["seeds"].max()}
        for split, companies in SPLIT_NAMES.items():
            cells = {cell.metric: cell for cell in one[one["split"] == split].itertuples()}
            for metric, name in names.items():
                if metric in cells:
                    cell = cells[metric]
                    interval = f" [{cell.low}, {cell.high}]" if isinstance(cell.low, str) else ""
                    row[f"{name}, {companies.split()[0]}"] = _shorter(f"{cell.median}{interval}")
        rows.append(row)
    known, new = (companies.split()[0] for companies in SPLIT_NAMES.values())
    order = ["arm", "seeds", *(f"{name}, {which}" for which in (known, new) for name in names.values())]
    return pd.DataFrame(rows).reindex(columns=[c for c in order if any(c in row for row in rows)]).fillna("")


def _shorter(text: str) -> str:
    """The same text, its numbers with two decimals at most."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), text)


def speedup_table(runs: Runs, baseline: str, threshold: float = 0.7) -> pd.DataFrame:
    """How many times fewer tasks than `baseline` every arm needs to `threshold`, by split (`statistics.Speedup`)."""
    data, rows = frame(runs, "success", needed=True).query("level == 0"), []
    for split, part in data.groupby("split", sort=False):
        slow = arrivals(part[part["arm"] == baseline], threshold)
        for arm, one in part[part["arm"] != baseline].groupby("arm", sort=False):
            ratio = speedup(slow, arrivals(one, threshold))
            rows.append({"arm": arm, "split": split, **dataclasses.asdict(ratio)})
    return pd.DataFrame(rows).rename(columns={"value": "times fewer", "at_least": "at least", "n": "seeds"})


def transfer_verdicts(
    runs: Runs, ours: str = "imagine", baseline: str = "baseline", equal: str = "baseline_320"
) -> pd.DataFrame:
    """The verdicts of notebook 04: supported, refuted or undecided, each by its rule.

    Supported: the whole 95% interval lies beyond the claimed number; refuted: all of it short of it; else, and with
    too few seeds (`statistics.verdict`), undecided. The aim asks for less: a ratio of AIM, and an interval from FLOOR.
    Success is compared at the end of our budget with `equal`, a baseline whose schedule ends there (without such an arm
    with the baseline), and with the baseline at the end of its own; the ratio's interval is that of the extremes.
    """
    equal = equal if equal in runs else baseline
    fewer = speedup_table({k: runs[k] for k in (baseline, ours)}, baseline).set_index("split")
    rows = []
    for split, companies in SPLIT_NAMES.items():
        ratio, which = fewer.loc[split], f"{companies.partition(' (')[0]}:"
        aim = f"{which} {AIM:g} times fewer tasks to 70%, interval from {FLOOR:g} (the aim)"
        rows.append([aim, ratio["low"], ratio["high"], ratio["seeds"], _aim_verdict(ratio)])
        for claimed in (AIM, FLOOR):
            rows.append([f"{which} {claimed:g} times fewer tasks to 70%", *_judged(ratio, claimed)])
    budget = {arm: min(read_metrics(folder)[-1]["tasks"] for folder in runs[arm]) for arm in (ours, equal, baseline)}
    table, now = summary_table(runs).query("split == 'test'").set_index(["arm", "metric"]), budget[ours]
    for rival, tasks in {equal: min(now, budget[equal]), baseline: budget[baseline]}.items():
        ratio = _times(table.loc[ours, f"success_at_{min(now, tasks)}"], table.loc[rival, f"success_at_{tasks}"])
        claim = f"new companies: {FLOOR:g} times the success of {rival} after {tasks} tasks"
        rows.append([claim, *_judged(ratio, FLOOR)])
    return pd.DataFrame(rows, columns=["claim", "low", "high", "seeds", "verdict"])


def _aim_verdict(ratio: Mapping) -> str:
    """Of a row of `speedup_table`; see `transfer_verdicts`."""
    if ratio["seeds"] < ENOUGH_RUNS:
        return "undecided"
    if ratio["at least"] >= AIM and ratio["low"] >= FLOOR:
        return "supported"
    return "refuted" if ratio["high"] < AIM else "undecided"


def _judged(ratio: Mapping, claimed: float) -> list:
    low, high, seeds = (ratio[name] for name in ("low", "high", "seeds"))
    return [low, high, seeds, verdict(Estimate(np.nan, low - claimed, high - claimed, seeds))]


def _times(ours: Mapping, other: Mapping) -> dict:
    """The ratio of two rows of the summary from the worst case to the best."""
    low, high = (float(ours[a]) / max(float(other[b]), 1e-9) for a, b in (("low", "high"), ("high", "low")))
    return {"low": low, "high": high, "seeds": min(ours["seeds"], other["seeds"])}


def _texts(estimate: Estimate, given: float = np.inf) -> dict:
    """The numbers of an estimate as texts: what is infinite lies beyond the tasks `given`, what is nan is left out."""
    numbers = {"median": estimate.value, "low": estimate.low, "high": estimate.high}
    texts = {k: f">{given:g}" if np.isinf(v) else f"{round(v, 4):.10g}" for k, v in numbers.items() if not np.isnan(v)}
    return texts | {"seeds": estimate.n}


def compute_table(runs: Runs) -> pd.DataFrame:
    """What the arms cost: tokens sampled and trained on per sampled task, and as multiples of the first arm's.

    Medians over the seeds. Tokens of dreams are counted, dreamt tasks apart from the sampled ones. A baseline of equal
    compute is the first arm with `policy.epochs` set to the other arm's multiple of trained tokens, rounded: all its
    trained tokens are the policy's, and each pass costs the same again.

    Raises:
        ResultError: a run is older than these counts.
    """
    kinds = ("sampled_tokens", "trained_tokens")
    steps = frame(runs, "step", needed=True)
    if not set(kinds) <= set(steps) or steps[list(kinds)].isna().any(axis=None):
        raise ResultError("a run was trained before tokens were counted; train it again to compare what arms cost.")
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


def final_table(runs: Runs) -> pd.DataFrame:
    """Success at the last evaluation, by arm, split and level (0: all); episodes pooled over seeds, Wilson 95%."""
    data = frame(runs, "success", needed=True)
    last = data[data["tasks"] == data.groupby(["arm", "seed"])["tasks"].transform("max")]
    rows = []
    for (arm, split, level), part in last.groupby(["arm", "split", "level"], sort=False):
        n = int(part["n"].sum())
        hits = round(float((part["success"] * part["n"]).sum()))
        low, high = wilson(hits, n)
        rows.append({"arm": arm, "split": split, "level": level or "all", "success": hits / n, "low": low, "high": high,
                     "episodes": n, "seeds": part["seed"].nunique()})  # fmt: skip
    return pd.DataFrame(rows)


def transfer_table(runs: Runs, by: str | None = None) -> pd.DataFrame:
    """Success of frozen runs by arm, split and phrasing, and by `by` (level | variation): median over the seeds, 95%.

    Read from the transfer.csv that `lfo.transfer.measure` leaves in each run folder.
    """
    data, rows = _transfer(runs), []
    for keys, part in data.groupby(["arm", "split", "held_out_phrasing", *([by] if by else [])], sort=False):
        estimate = median(part.groupby("seed")["success"].mean())
        arm, split, held_out, *value = keys
        rows.append({"arm": arm, "companies": SPLIT_NAMES[split], "phrasings": "held out" if held_out else "known",
                     **({by: value[0]} if by else {}), "success": estimate.value, "low": estimate.low,
                     "high": estimate.high, "seeds": estimate.n, "tasks": part["task_id"].nunique()})  # fmt: skip
    return pd.DataFrame(rows)


def told_table(runs: Runs, by: str | None = None) -> pd.DataFrame:
    """Success by what the policy is told (`lfo.transfer.measure_told`), and by `by` (variation): medians over seeds.

    low, high: 95%; minus imagined: the paired difference to what the run's own world model makes of it.
    """
    data, rows = _told(runs), []
    for (arm, split, *value), part in data.groupby(["arm", "split", *([by] if by else [])], sort=False):
        shares = part.groupby(["seed", "told"], sort=False)["success"].mean().unstack("told")
        for told in part["told"].unique():
            success, gain = median(shares[told]), median(shares[told] - shares["imagined"])
            rows.append({"arm": arm, "companies": SPLIT_NAMES[split], **({by: value[0]} if by else {}), "told": told,
                         "success": success.value, "low": success.low, "high": success.high,
                         "minus imagined": gain.value, "gain low": gain.low, "gain high": gain.high,
                         "seeds": gain.n, "tasks": part["task_id"].nunique()})  # fmt: skip
    return pd.DataFrame(rows)


def _told(runs: Runs) -> pd.DataFrame:
    return written(runs, "told.csv", "run notebook 04, or `lfo.transfer.measure_told` on the run folder")


def form_table(runs: Runs, by: str | None = None) -> pd.DataFrame:
    """Precision and recall of the fields that are asked of the user, and by `by` (level): medians over the seeds, 95%.

    Known phrasings; fields are pooled over a run's episodes (micro-averaged). precision: requested fields that the
    task's calls need; seeds that request none are left out. recall: needed fields that are requested. complete:
    episodes in which all of them are. requested, needed: per episode. Forms that the user declined count like others.
    """
    known, rows = _transfer(runs).query("not held_out_phrasing"), []
    known = known.assign(complete=known["useful"] == known["needed"])
    for (arm, split, *value), part in known.groupby(["arm", "split", *([by] if by else [])], sort=False):
        seeds, row = part.groupby("seed"), {"arm": arm, "companies": SPLIT_NAMES[split]}
        sums, means = seeds[["requested", "useful", "needed"]].sum(), seeds[["requested", "needed", "complete"]].mean()
        scores = {"precision": (sums["useful"] / sums["requested"]).dropna(), "recall": sums["useful"] / sums["needed"]}
        row |= {by: value[0]} if by else {}
        for name, score in (scores | {"complete": means["complete"]}).items():
            one = median(score) if len(score) else Estimate(np.nan, np.nan, np.nan, 0)
            row |= {name: one.value, f"{name} low": one.low, f"{name} high": one.high}
        each = means[["requested", "needed"]].median()
        rows.append(row | {"requested": each["requested"], "needed": each["needed"], "seeds": len(sums)})
    return pd.DataFrame(rows)


def pass_k_table(runs: Runs) -> pd.DataFrame:
    """pass^k for every k up to the episodes per task, known phrasings: median over the seeds, and 95% of the last."""
    rows = []
    for (arm, split), scores in _pass_k(_transfer(runs)).items():
        *_, last = scores.values()
        rows.append({"arm": arm, "companies": SPLIT_NAMES[split], **{name: one.value for name, one in scores.items()},
                     "low": last.low, "high": last.high, "seeds": last.n})  # fmt: skip
    return pd.DataFrame(rows)


def _pass_k(episodes: pd.DataFrame) -> dict[tuple[str, str], dict[str, Estimate]]:
    """{(arm, split): {pass^k: median over the seeds}} of rows of transfer.csv, known phrasings."""
    known, out = episodes.query("not held_out_phrasing"), {}
    wins = known.groupby(["arm", "split", "seed", "task_id"], sort=False)["success"].agg(["sum", "count"]).reset_index()
    for key, part in wins.groupby(["arm", "split"], sort=False):
        trials = int(part["count"].min())
        seeds = [one["sum"] for _, one in part.groupby("seed")]
        out[key] = {f"pass^{k}": median([pass_hat_k(s, trials, k) for s in seeds]) for k in range(1, trials + 1)}
    return out


def _transfer(runs: Runs) -> pd.DataFrame:
    return written(runs, "transfer.csv", "run notebook 04, or `lfo.transfer.measure` on the run folder")


def transfer_figure(runs: Runs, by: str) -> plt.Figure:
    """`transfer_table` by level or variation, known phrasings: one panel for known and one for new companies."""
    table = transfer_table(runs, by).query("phrasings == 'known'").rename(columns={by: "level"})
    fig, axes = plt.subplots(1, 2, figsize=(13, 3.8), sharey=True, layout="constrained")
    for ax, title in zip(axes, SPLIT_NAMES.values(), strict=True):
        _interval_bars(ax, table[table["companies"] == title].fillna({"low": 0, "high": 1}), "arm")
        ax.set(title=title, xlabel=by, ylim=(0, 1.02))
    axes[0].set_ylabel("success, median of seeds, 95%")
    axes[1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    return fig


def reply_table(runs: Runs) -> pd.DataFrame:
    """Semantic accuracy of the world model on real replies at the last evaluation, by category."""
    data = frame(runs, "reply")
    last = data[data["tasks"] == data.groupby(["arm", "seed"])["tasks"].transform("max")]
    last = last.assign(hits=last["accuracy"] * last["n"])
    table = last.groupby(["arm", "split", "category"])[["hits", "n"]].sum().reset_index()
    return table.assign(accuracy=table["hits"] / table["n"]).drop(columns="hits")


def sweep_table(folders: Sequence[str | Path], split: str = "validation") -> pd.DataFrame:
    """One row per run: best and last success, mean over all evaluations (area under the curve), tasks to 70%."""
    data = frame({Path(f).name: [f] for f in folders}, "success", needed=True)
    data = data[(data["level"] == 0) & (data["split"] == split)]
    rows = []
    for run, one in data.groupby("arm", sort=False):
        scores = one["success"]
        rows.append({"run": run, "split": split, "mean success": scores.mean(), "best": scores.max(),
                     "last": scores.iloc[-1], "tasks to 70%": arrivals(one, 0.7)[0].value})  # fmt: skip
    return pd.DataFrame(rows).sort_values("mean success", ascending=False)


# --- figures ---------------------------------------------------------------------------------


def learning_curves(runs: Runs) -> plt.Figure:
    """Success against sampled tasks on both splits: the median over the seeds, in a band from least to most."""
    data = frame(runs, "success", needed=True).query("level == 0")
    fig, axes = plt.subplots(1, 2, figsize=(13, 4), sharey=True)
    colours = dict(zip(runs, sns.color_palette(n_colors=len(runs)), strict=True))
    dashes = {arm: "--" if i >= len(sns.color_palette()) else "-" for i, arm in enumerate(runs)}  # colours come again
    for ax, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        part = data[data["split"] == split]
        for arm, one in part.groupby("arm", sort=False):
            curves = aligned(one)
            label = f"{arm} ({one['seed'].nunique()} seed{'s' * (one['seed'].nunique() > 1)})"
            ax.plot(curves.index, curves.median(axis=1), color=colours[arm], ls=dashes[arm], lw=2.5, marker="o", ms=4,
                    label=label)  # fmt: skip
            ax.fill_between(curves.index, curves.min(axis=1), curves.max(axis=1), color=colours[arm], alpha=0.15, lw=0)
        ax.axhline(0.7, color="grey", lw=1, ls=":")
        ax.set(title=title, xlabel="sampled tasks", ylim=(-0.02, 1.02))
    axes[0].set_ylabel("success, greedy")
    drawn = [ax for ax in axes if ax.get_legend_handles_labels()[0]]
    drawn[-1].legend(
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        fontsize="small",
        title="median and range of",
        title_fontsize="small",
    )
    fig.tight_layout()
    return fig


def aligned(success: pd.DataFrame) -> pd.DataFrame:
    """A column per seed, a row per evaluated number of tasks; a seed not evaluated there is interpolated linearly.

    `success`: rows of one arm, one split and one level. Refills let seeds be evaluated at different numbers of tasks.
    """
    grid = np.unique(success["tasks"])
    grid = grid[grid <= success.groupby("seed")["tasks"].max().min()]  # no further than the shortest run
    seeds = success.groupby("seed")
    return pd.DataFrame({k: np.interp(grid, one["tasks"], one["success"]) for k, one in seeds}, index=grid)


def success_by_level(runs: Runs) -> plt.Figure:
    """Success at the last evaluation by level and split, with Wilson 95% intervals."""
    table = final_table(runs)
    table = table[table["level"] != "all"]
    fig, axes = plt.subplots(1, 2, figsize=(11, 3.6), sharey=True)
    for ax, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        _interval_bars(ax, table[table["split"] == split], "arm")
        ax.set(title=title, xlabel="level", ylim=(0, 1.02))
    axes[0].set_ylabel("success, 95% interval")
    axes[0].legend(fontsize="small")
    fig.tight_layout()
    return fig


def world_model_curves(runs: Runs) -> plt.Figure:
    """What the world model knows against sampled tasks: exact field sets of departments, reply-token accuracy."""
    rules, steps = frame(runs, "rules"), frame(runs, "step")
    fig, axes = plt.subplots(1, 2, figsize=(11, 3.8))
    named = rules.assign(companies=rules["split"].map(SPLIT_NAMES))
    sns.lineplot(named, x="tasks", y="rule_accuracy", hue="companies", style="arm", errorbar=("pi", 100), ax=axes[0])
    axes[0].set(title="departments whose exact required fields it names", xlabel="sampled tasks", ylabel="share",
                ylim=(-0.02, 1.02))  # fmt: skip
    axes[0].legend(fontsize="x-small", title=None)
    for column, label in (("world_model/accuracy", "new replies"), ("replay/world_model/accuracy", "replayed replies")):
        if column in steps:
            sns.lineplot(steps, x="tasks", y=column, label=label, errorbar=("pi", 100), ax=axes[1])
    axes[1].set(title="reply tokens predicted (teacher-forced)", xlabel="sampled tasks", ylabel="share", ylim=(0, 1.02))
    fig.tight_layout()
    return fig


def training_signals(runs: Runs) -> plt.Figure:
    """Is learning healthy: sampler entropy, gradient norms before clipping, informative groups."""
    steps = frame(runs, "step", needed=True)
    panels = {
        "policy/neg_logprob": "action-token entropy (nats, sampled)",
        "policy/grad_norm": "policy gradient norm",
        "replay/world_model/grad_norm": "world-model gradient norm (replay)",
        "share_kept": "informative groups (share)",
    }
    steps = steps.assign(share_kept=steps["groups_kept"] / steps["groups_sampled"])
    fig, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.2))
    for ax, (column, title) in zip(axes, panels.items(), strict=True):
        if column in steps:
            sns.lineplot(steps, x="tasks", y=column, hue="arm", errorbar=("pi", 100), ax=ax, legend=ax is axes[0])
        ax.set(title=title, xlabel="sampled tasks", ylabel="")
    if axes[0].get_legend_handles_labels()[0]:  # none where no group was ever informative
        axes[0].legend(fontsize="x-small")
    fig.tight_layout()
    return fig


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


def reference_figure(rows: Sequence[Mapping]) -> plt.Figure:
    """Success of the reference policies by level with Wilson 95% intervals; one panel per set of rules, if given."""
    data = pd.DataFrame(rows).query("level > 0")
    panels = dict(list(data.groupby("rules", sort=False))) if "rules" in data else {"": data}
    size = (max(8.5, 4.2 * len(panels)), 4)
    fig, axes = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for ax, (title, part) in zip(axes[0], panels.items(), strict=True):
        _interval_bars(ax, part, "policy")
        ax.set(title=title, xlabel="level", ylim=(0, 1.04))
    axes[0, 0].set_ylabel("success, 95% interval")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize="small", frameon=False)
    return fig


def _interval_bars(ax: plt.Axes, data: pd.DataFrame, hue: str) -> None:
    """Bars of `success` grouped by level, one colour per value of `hue`, with whiskers from `low` to `high`."""
    if data.empty:  # a split that was not evaluated
        return
    names, levels = list(data[hue].unique()), sorted(data["level"].unique())
    width = 0.84 / len(names)
    for i, name in enumerate(names):
        one = data[data[hue] == name].sort_values("level")
        x = np.array([levels.index(v) for v in one["level"]]) + (i - (len(names) - 1) / 2) * width
        error = np.vstack([one["success"] - one["low"], one["high"] - one["success"]]).clip(min=0)
        hatch = "///" if i >= len(sns.color_palette()) else None  # colours come again
        ax.bar(x, one["success"], width, yerr=error, error_kw={"lw": 1, "capsize": 2}, label=name, hatch=hatch)
    ax.set_xticks(range(len(levels)), levels)
    ax.grid(axis="x", visible=False)


def learnability_figure(rows: Sequence[Mapping]) -> plt.Figure:
    """Exact field sets against observed calls: median over the seeds, all seeds shaded, with what to compare it to."""
    data = pd.DataFrame(rows)
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True, layout="constrained")
    colours = sns.color_palette()
    for ax, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        part = data[data["split"] == split]
        by_calls = part.groupby("calls")["accuracy"]
        middle = by_calls.median()
        ax.fill_between(middle.index, by_calls.min(), by_calls.max(), color=colours[0], alpha=0.2, lw=0)
        seeds = part["seed"].nunique()
        ax.plot(middle.index, middle, marker="o", color=colours[0], label=f"decision trees (median of {seeds} seeds)")
        ax.axhline(part["typical"].iloc[0], color=colours[2], ls="--", label="typical requirements (hidden)")
        ax.axhline(part["chance"].iloc[0], color="grey", ls=":", label="always the most frequent set")
        ax.set_xscale("log")
        ax.set_xticks(middle.index, [str(n) for n in middle.index])
        ax.minorticks_off()
        ax.set(title=title, xlabel="observed calls of the random policy", ylim=(-0.02, 1.04))
    axes[0].set_ylabel("departments with the exact set")
    axes[1].legend(loc="upper left", fontsize="small")
    return fig


def entropy_figure(rows: Sequence[Mapping]) -> plt.Figure:
    """Bits of uncertainty about a department's field set, by what is known about the department."""
    data = pd.DataFrame(rows)
    fig, ax = plt.subplots(figsize=(8.5, 2.8), layout="constrained")
    bars = ax.barh(data["given"], data["bits"], color=sns.color_palette()[0])
    ax.bar_label(bars, [f"{bits:.2f} bits ({cells} case{'s' * (cells > 1)})"
                        for bits, cells in zip(data["bits"], data["cells"], strict=True)], padding=4)  # fmt: skip
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="entropy of the required field set (bits)", ylabel="known", xlim=(0, 1.4 * data["bits"].max()))
    return fig


# --- writing ---------------------------------------------------------------------------------


def provenance_of(runs: Runs) -> dict:
    """Provenance of everything drawn from these runs, read from their folders."""
    entries = []
    for arm, folders in runs.items():
        for folder in folders:
            facts = json.loads((Path(folder) / "provenance.json").read_text())
            seconds = sum(sum(r.get("seconds", {}).values()) for r in read_metrics(folder))
            entries.append({"arm": arm, "run": Path(folder).name, "wall_seconds": round(seconds), **facts})
    return {"runs": entries}


def tidy_notebook(path: str | Path) -> Path:
    """Drop from an executed notebook what differs between two runs: times, paths, progress bars (stderr).

    Its figures are stored with 128 colours, about a quarter of the bytes.
    """
    path = Path(path)
    book = json.loads(path.read_text(encoding="utf-8"))
    kept = {"kernelspec": book["metadata"].get("kernelspec", {}), "language_info": {"name": "python"}}
    book["metadata"] = kept
    for cell in book["cells"]:
        tags = cell["metadata"].get("tags", [])
        cell["metadata"] = {"tags": tags} if tags else {}
        if "injected-parameters" in tags:
            cell["id"] = "injected-parameters"  # papermill draws it
        if cell["cell_type"] == "code":
            cell["outputs"] = [out for out in cell["outputs"] if out.get("name") != "stderr"]
        for data in (out.get("data", {}) for out in cell.get("outputs", [])):
            if "image/png" in data:
                data["image/png"] = _with_palette(data["image/png"])
    text = json.dumps(book, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _with_palette(png: str) -> str:
    """A base64 PNG with at most 128 colours; left alone where it is one already."""
    image = Image.open(io.BytesIO(base64.b64decode(png)))
    if image.mode == "P":
        return png
    out = io.BytesIO()
    image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(out, "png", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def save_figure(fig: plt.Figure, path: str | Path, runs: Runs | None = None, facts: Mapping | None = None) -> Path:
    """Write PNG and SVG and, beside them, the provenance; return the PNG's path.

    facts: what there is to say without, or besides, training runs, e.g. `lfo.train.provenance()`.
    """
    path = Path(path).with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, metadata={"Software": None})
    fig.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    _write_provenance(path, runs, facts)
    return path


def save_table(table: pd.DataFrame, path: str | Path, runs: Runs | None = None, facts: Mapping | None = None) -> Path:
    """Write CSV and Markdown and, beside them, the provenance (see `save_figure`); return the CSV's path."""
    path = Path(path).with_suffix(".csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format="%.4f")
    path.with_suffix(".md").write_text(table.to_markdown(index=False, floatfmt=".3f") + "\n")
    _write_provenance(path, runs, facts)
    return path


def _write_provenance(path: Path, runs: Runs | None, facts: Mapping | None) -> None:
    entries = dict(facts or {}) | (provenance_of(runs) if runs else {})
    path.with_suffix(".json").write_text(json.dumps(entries, indent=1) + "\n")


def report(runs: Runs, out: str | Path) -> list[Path]:
    """All figures and tables of these runs in one folder; return their paths."""
    style()
    out = Path(out)
    drawn = {
        "learning_curves": learning_curves,
        "success_by_level": success_by_level,
        "training_signals": training_signals,
    }
    if len(frame(runs, "rules")):
        drawn["world_model"] = world_model_curves
    tables = {"final_success": final_table, "tasks_to_threshold": threshold_table, "summary": summary_table,
              "phase_seconds": phase_seconds}  # fmt: skip
    if len(frame(runs, "reply")):
        tables["reply_accuracy"] = reply_table
    if frame(runs, "step").get("trained_tokens", pd.Series([None])).notna().all():
        tables["compute"] = compute_table
    paths = [save_figure(draw(runs), out / name, runs) for name, draw in drawn.items()]
    plt.close("all")
    return paths + [save_table(make(runs), out / name, runs) for name, make in tables.items()]


README_MARKS = ("<!-- results -->", "<!-- /results -->")


def results_block(results: str | Path) -> str:
    """README's results: what lies in `results` of notebook 04 (all arms, their controls) and of notebook 03."""
    results = Path(results)
    texts = {
        "04_headline": f"![Success against sampled tasks, by arm]({results.name}/04_learning_curves.png)\n\n"
        "Success at known and at new companies, levels 1 and 2, greedy; sampled tasks, dropped ones included; median "
        "and 95% interval over the seeds (of fewer than five: their range; [notebook 04]"
        "(notebooks/04_transfer_eval.ipynb) says what each arm is):",
        "04_verdicts": "What that makes of the claims, the interval being that of the ratio:",
        "04_controls": "Against the controls, seed by seed, the area under the learning curve; `lead` is the median "
        "difference to the `rival` that comes closest:",
        "04_told": "What bounds `imagine`: its policies told nothing, what their world models imagine, what such "
        "departments usually demand (the most that can be known of a company that was never called), or the truth:",
        "03_final_success": "What `make results` trains, by level, pooled over its seeds, with Wilson 95% intervals "
        f"([curves]({results.name}/03_learning_curves.png)):",
    }
    tables = {name: results / f"{name}.md" for name in texts}
    return "\n\n".join(f"{texts[name]}\n\n{path.read_text().strip()}" for name, path in tables.items() if path.exists())


def write_results_block(readme: str | Path, results: str | Path) -> None:
    """Put `results_block` between the two marks of README."""
    before, _, rest = Path(readme).read_text().partition(README_MARKS[0])
    after = rest.partition(README_MARKS[1])[2]
    block = f"{README_MARKS[0]}\n{results_block(results)}\n{README_MARKS[1]}"
    Path(readme).write_text(before + block + after)
