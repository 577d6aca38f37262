"""Tables of frozen runs: elsewhere (transfer.csv), and told more or less (told.csv). See `lfo.lab.transfer`."""

from __future__ import annotations

import pandas as pd

from lfo.lab.reading import Runs, cells, measurements, parts
from lfo.lab.statistics import Estimate, median, pass_hat_k

TRANSFER, TOLD = "transfer.csv", "told.csv"


def transfer_frame(runs: Runs) -> pd.DataFrame:
    return measurements(runs, TRANSFER, "run notebook 04, or `lfo.lab.transfer.measure` on the run folder")


def told_frame(runs: Runs) -> pd.DataFrame:
    return measurements(runs, TOLD, "run notebook 04, or `lfo.lab.transfer.measure_told` on the run folder")


def success_over_seeds(part: pd.DataFrame) -> Estimate:
    return median(part.groupby("seed")["success"].mean())


def transfer_table(runs: Runs, by: str | None = None) -> pd.DataFrame:
    """Success of frozen runs by arm, split and phrasing, and by `by` (level | variation): medians over seeds, 95%."""
    rows = []
    for named, part in parts(transfer_frame(runs), "arm", "split", "held_out_phrasing", by):
        success = success_over_seeds(part)
        tasks = part["task_id"].nunique()
        rows.append(named | cells(success, "success") | {"seeds": success.n, "tasks": tasks})
    return pd.DataFrame(rows)


def told_table(runs: Runs, by: str | None = None) -> pd.DataFrame:
    """Success by what the policy is told, and by `by` (variation): medians over seeds.

    low, high: 95%; minus imagined: the paired difference to what the run's own world model makes of it.
    """
    rows = []
    for named, part in parts(told_frame(runs), "arm", "split", by):
        shares = part.groupby(["seed", "told"], sort=False)["success"].mean().unstack("told")
        for told in part["told"].unique():
            gain = median(shares[told] - shares["imagined"])
            numbers = cells(median(shares[told]), "success") | cells(gain, "minus imagined", "gain ")
            rows.append(named | {"told": told} | numbers | {"seeds": gain.n, "tasks": part["task_id"].nunique()})
    return pd.DataFrame(rows)


def form_table(runs: Runs, by: str | None = None) -> pd.DataFrame:
    """Precision and recall of the fields that are asked of the user, and by `by` (level): medians over the seeds, 95%.

    Known phrasings; fields are pooled over a run's episodes (micro-averaged). precision: requested fields that the
    task's calls need; seeds that request none are left out. recall: needed fields that are requested. complete:
    episodes in which all of them are. requested, needed: per episode. Forms that the user declined count like others.
    """
    known, rows = transfer_frame(runs).query("not held_out_phrasing"), []
    known = known.assign(complete=known["useful"] == known["needed"])
    for named, part in parts(known, "arm", "split", by):
        seeds = part.groupby("seed")
        sums, means = seeds[["requested", "useful", "needed"]].sum(), seeds[["requested", "needed", "complete"]].mean()
        scores = {
            "precision": (sums["useful"] / sums["requested"]).dropna(),
            "recall": sums["useful"] / sums["needed"],
            "complete": means["complete"],
        }
        for name, score in scores.items():
            named |= cells(median(score), name, f"{name} ")
        each = means[["requested", "needed"]].median()
        rows.append(named | {"requested": each["requested"], "needed": each["needed"], "seeds": len(sums)})
    return pd.DataFrame(rows)


def pass_k_table(runs: Runs) -> pd.DataFrame:
    """pass^k for every k up to the episodes per task, known phrasings: median over the seeds, and 95% of the last."""
    rows = []
    for named, part in parts(transfer_frame(runs).query("not held_out_phrasing"), "arm", "split"):
        scores = pass_k(part)
        *_, last = scores.values()
        numbers = {name: one.value for name, one in scores.items()}
        rows.append(named | numbers | {"low": last.low, "high": last.high, "seeds": last.n})
    return pd.DataFrame(rows)


def pass_k(episodes: pd.DataFrame) -> dict[str, Estimate]:
    """{pass^k: median over the seeds} of rows of transfer.csv of one arm, one split and known phrasings."""
    wins = episodes.groupby(["seed", "task_id"], sort=False)["success"].agg(["sum", "count"]).reset_index()
    trials = int(wins["count"].min())
    seeds = [one["sum"] for _, one in wins.groupby("seed")]
    return {f"pass^{k}": median([pass_hat_k(s, trials, k) for s in seeds]) for k in range(1, trials + 1)}
