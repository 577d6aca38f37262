"""Result files -> the tables and figures of notebook 06: what the world model knows, and whether the policy follows.

Drawn from the probing_*.csv that `lfo.probing.probe` leaves in each run folder and from metrics.jsonl; never loads a
model. Every number over seeds is a median with the interval of `lfo.statistics`.
"""

from __future__ import annotations

import itertools
import textwrap

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sacrebleu
import seaborn as sns

from lfo.figures import SPLIT_NAMES, ResultError, Runs, aligned, arrivals, frame, written
from lfo.statistics import (
    Arrival,
    Estimate,
    calibration_error,
    kaplan_meier_median,
    median,
    spearman,
    verdict,
    wilson,
)

HALF = 0.5  # the share at which both curves are read
DIGITS = 9  # of differences that are ranked: what is equal but for floating point is a tie


def probed(runs: Runs, name: str) -> pd.DataFrame:
    """The table `name` of `lfo.probing.probe` of all runs, with columns `arm` and `seed`.

    Raises:
        ResultError: a run was not probed.
    """
    return written(runs, f"probing_{name}.csv", "run notebook 06, or `lfo.probing.probe` on the run folder")


def _interval(estimate: Estimate, name: str) -> dict[str, float]:
    return {name: estimate.value, "low": estimate.low, "high": estimate.high}


# --- replies ---------------------------------------------------------------------------------


def reply_scores(runs: Runs) -> pd.DataFrame:
    """Scores of every seed by model, caller, split and category (the true status, or `all`).

    token_accuracy, perplexity: teacher-forced, closing tag included. semantic_accuracy: status, fields and
    departments are right. bleu: corpus BLEU of the greedy predictions; bleu_reworded: that of the true answers in
    other words, what a perfect world model can expect since the CSR's phrasing is drawn at random.
    """
    data = probed(runs, "replies")
    data = pd.concat([data, data.assign(category="all")])
    rows = []
    for keys, part in data.groupby(["arm", "model", "caller", "split", "category", "seed"], sort=False):
        rows.append(
            dict(zip(["arm", "model", "caller", "split", "category", "seed"], keys, strict=True))
            | {"calls": len(part), "token_accuracy": part["tokens_right"].sum() / part["tokens"].sum(),
               "perplexity": np.exp(part["nats"].sum() / part["tokens"].sum()),
               "semantic_accuracy": part["right"].mean(), "bleu": _bleu(part["predicted"], part["said"]),
               "bleu_reworded": _bleu(part["said_anew"], part["said"])}
        )  # fmt: skip
    return pd.DataFrame(rows)


def _bleu(predicted: pd.Series, said: pd.Series) -> float:
    """Corpus BLEU-4, 0 to 100 (Post 2018, arXiv 1804.08771), one reference per reply."""
    return sacrebleu.corpus_bleu(list(predicted), [list(said)]).score


def reply_score_table(runs: Runs) -> pd.DataFrame:
    """Medians of `reply_scores` over the seeds; semantic accuracy with its interval. calls: median too."""
    rows = []
    for keys, part in reply_scores(runs).groupby(["arm", "model", "caller", "split", "category"], sort=False):
        arm, model, caller, split, category = keys
        middle = part.median(numeric_only=True)
        rows.append(
            {"arm": arm, "model": model, "caller": caller, "companies": SPLIT_NAMES[split], "category": category,
             "calls": middle["calls"], "token accuracy": middle["token_accuracy"], "perplexity": middle["perplexity"],
             "BLEU": middle["bleu"], "BLEU, truth reworded": middle["bleu_reworded"],
             **_interval(median(part["semantic_accuracy"]), "semantic accuracy"), "seeds": len(part)}
        )  # fmt: skip
    return pd.DataFrame(rows).sort_values(["arm", "caller", "companies", "model"], kind="stable", ignore_index=True)


def reply_figure(runs: Runs) -> plt.Figure:
    """Semantic accuracy by category: a row per caller, known and new companies; bars: medians, whiskers: all seeds."""
    scores = reply_scores(runs)
    scores = scores.assign(model=scores["arm"] + ", " + scores["model"] if len(runs) > 1 else scores["model"])
    callers, categories = list(scores["caller"].unique()), sorted(scores["category"].unique())
    size = (11, 2.4 * len(callers))
    fig, axes = plt.subplots(len(callers), 2, figsize=size, sharex=True, sharey=True, squeeze=False,
                             layout="constrained")  # fmt: skip
    for row, caller in zip(axes, callers, strict=True):
        for ax, (split, title) in zip(row, SPLIT_NAMES.items(), strict=True):
            part = scores[(scores["caller"] == caller) & (scores["split"] == split)]
            sns.barplot(part, x="category", y="semantic_accuracy", hue="model", order=categories, estimator="median",
                        errorbar=("pi", 100), err_kws={"linewidth": 1}, ax=ax)  # fmt: skip
            ax.set_xticks(range(len(categories)), [category.replace("_", "\n") for category in categories])
            ax.set(title=f"{caller}, {title}", xlabel="", ylabel="replies meant right", ylim=(0, 1.02))
            ax.legend(fontsize="x-small", title=None) if ax is axes[0, 1] else ax.legend([], frameon=False)
    return fig


def example_table(runs: Runs, each: int = 2) -> pd.DataFrame:
    """Predictions beside replies at new companies: the first calls of every category and caller of the first run."""
    data = probed({arm: folders[:1] for arm, folders in list(runs.items())[:1]}, "replies")
    data = data[(data["model"] == "world model") & (data["split"] == "test")]
    first = data.groupby(["caller", "category"], sort=False).head(each).sort_values("caller", kind="stable")
    return first[["caller", "task_id", "gave", "said", "predicted", "right"]].reset_index(drop=True)


# --- rules and confidence --------------------------------------------------------------------


def rule_table(runs: Runs) -> pd.DataFrame:
    """What empty-handed calls are answered: exact field sets by companies and by how they depart from typical rules.

    Then the same calls made for another department's goal, where the company has one with other demands: share of
    answers that name what the called department demands, and what the one that the user wants does.
    """
    data = probed(runs, "rules")
    data = data.assign(exact=data["greedy"] == data["truth"])
    data = pd.concat([data.assign(variation="all"), data])
    rows = []
    for (arm, split, variation), part in data.groupby(["arm", "split", "variation"], sort=False):
        swapped = part[part["other"] != ""].groupby("seed")[["other_called", "other_wanted"]].mean().median()
        rows.append(
            {"arm": arm, "companies": SPLIT_NAMES[split], "rules": variation,
             "departments": len(part) // part["seed"].nunique(),
             **_interval(median(part.groupby("seed")["exact"].mean()), "exact fields"),
             "other goal: fields of the called": swapped["other_called"],
             "other goal: fields of the wanted": swapped["other_wanted"], "seeds": part["seed"].nunique()}
        )  # fmt: skip
    return pd.DataFrame(rows)


def calibration_table(runs: Runs) -> pd.DataFrame:
    """Confidence of the most frequent field set, how often it is the true one, and the expected calibration error."""
    rows = []
    for (arm, split), part in _answers(runs).groupby(["arm", "split"], sort=False):
        seeds = [one for _, one in part.groupby("seed")]
        errors = [calibration_error(one["confidence"], one["right"]) for one in seeds]
        rows.append(
            {"arm": arm, "companies": SPLIT_NAMES[split], "departments": len(part) // len(seeds),
             "confidence": median([one["confidence"].mean() for one in seeds]).value,
             "accuracy": median([one["right"].mean() for one in seeds]).value,
             **_interval(median(errors), "calibration error"), "seeds": len(seeds)}
        )  # fmt: skip
    return pd.DataFrame(rows)


def _answers(runs: Runs) -> pd.DataFrame:
    """Rule questions with their confidence and `right`: the answer of most samples is the true field set."""
    data = probed(runs, "rules")
    return data.assign(right=data["answer"] == data["truth"])


def reliability_figure(runs: Runs) -> plt.Figure:
    """Accuracy against confidence: answers of all seeds pooled, Wilson 95%; areas grow with the number of answers."""
    data = _answers(runs)
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True, layout="constrained")
    for ax, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        ax.plot([0, 1], [0, 1], color="grey", lw=1, ls=":", label="calibrated")
        for colour, (arm, part) in zip(sns.color_palette(), data[data["split"] == split].groupby("arm"), strict=False):
            bins = part.groupby("confidence")["right"].agg(["sum", "count"]).reset_index()
            share = bins["sum"] / bins["count"]
            ends = np.array([wilson(int(s), int(n)) for s, n in zip(bins["sum"], bins["count"], strict=True)]).T
            ax.errorbar(bins["confidence"], share, yerr=np.abs(ends - share.to_numpy()), color=colour, lw=1, capsize=2)
            ax.scatter(bins["confidence"], share, s=1000 * bins["count"] / len(part), color=colour, alpha=0.5,
                       label=f"{arm} ({part['seed'].nunique()} seeds)")  # fmt: skip
        ax.set(title=title, xlabel="share of samples that name the answer", xlim=(0, 1.05), ylim=(-0.03, 1.05))
    axes[0].set_ylabel("answers with the true field set")
    axes[1].legend(fontsize="small", loc="upper left")
    return fig


def situation_table(runs: Runs) -> pd.DataFrame:
    """The hand-written calls: what is expected, the most frequent prediction, and in how many runs it is right."""
    rows = []
    for (arm, situation), part in probed(runs, "situations").groupby(["arm", "situation"], sort=False):
        first = part.iloc[0]
        rows.append({"arm": arm, "situation": situation, "company": first["company"], "calls": first["department"],
                     "gives": first["gave"], "expected": first["expected"], "predicted": part["predicted"].mode()[0],
                     "right": int(part["right"].sum()), "runs": len(part)})  # fmt: skip
    return pd.DataFrame(rows)


# --- does the policy follow? -----------------------------------------------------------------


def known_and_done(runs: Runs) -> pd.DataFrame:
    """One row per run, split and evaluation: rule_accuracy and success (all levels) after `tasks` sampled tasks.

    Raises:
        ResultError: no run was evaluated with a world model.
    """
    keys = ["arm", "seed", "split", "tasks"]
    done = frame(runs, "success", needed=True).query("level == 0")
    return frame(runs, "rules", needed=True)[[*keys, "rule_accuracy"]].merge(done[[*keys, "success"]], on=keys)


def progress_points(runs: Runs, ahead: int = 1, split: str = "validation") -> pd.DataFrame:
    """`known_and_done` with `gain`: success gained from an evaluation to the one `ahead` after it."""
    data = known_and_done(runs).query("split == @split").sort_values("tasks", kind="stable")
    later = data.groupby(["arm", "seed"])["success"].shift(-ahead)
    data = data.assign(gain=(later - data["success"]).round(DIGITS))
    return data.dropna(subset="gain").reset_index(drop=True)


# Relation -> (evaluations ahead, whether both sides are taken relative to the runs' mean after as many tasks).
PROGRESS = {
    "success gained by the next evaluation": (1, False),
    "success gained by the one after it": (2, False),
    "success gained by the next evaluation, tasks held fixed": (1, True),
}


def progress_table(runs: Runs) -> pd.DataFrame:
    """Rank correlation of rule accuracy with the success gained after it, validation; the first row is the hypothesis.

    Whole runs are resampled. With the tasks held fixed, what all runs go through together (they start with much to
    gain and little knowledge) is taken out; evaluations that only one run has are left out there.
    """
    rows = []
    for relation, (ahead, fixed) in PROGRESS.items():
        points = progress_points(runs, ahead)
        if fixed:
            both = ["rule_accuracy", "gain"]
            same = points.groupby("tasks")[both]
            points[both] = (points[both] - same.transform("mean")).round(DIGITS)
            points = points[same.transform("size") > 1]
        members = list(zip(points["arm"], points["seed"], strict=True))
        found = spearman(points["rule_accuracy"], points["gain"], members) if members else Estimate(*[np.nan] * 3, 0)
        rows.append({"relation": relation, "points": len(points), **_interval(found, "Spearman"), "runs": found.n,
                     "verdict": verdict(found)})  # fmt: skip
    return pd.DataFrame(rows)


def progress_figure(runs: Runs) -> plt.Figure:
    """Rule accuracy at an evaluation against the success gained by the next, coloured by tasks; a marker per run."""
    points = progress_points(runs)
    if points.empty:
        raise ResultError("no run has been evaluated twice on validation tasks yet; let the runs go on.")
    fig, ax = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    colours = plt.Normalize(0, points["tasks"].max())
    for marker, ((arm, seed), part) in zip(itertools.cycle("osD^vP*X"), points.groupby(["arm", "seed"]), strict=False):
        drawn = ax.scatter(part["rule_accuracy"], part["gain"], c=part["tasks"], norm=colours, cmap="viridis", s=50,
                           marker=marker, label=f"{arm}, seed {seed}")  # fmt: skip
    fig.colorbar(drawn, label="sampled tasks")
    ax.axhline(0, color="grey", lw=1, ls=":")
    ax.legend(fontsize="x-small")
    ax.set(xlabel="departments whose exact fields the world model names", title=SPLIT_NAMES["validation"])
    ax.set_ylabel("success gained by the next evaluation")
    return fig


def lag_table(runs: Runs) -> pd.DataFrame:
    """Sampled tasks until the world model names half of the field sets, and until half of the episodes succeed.

    lag: success minus fields, seed by seed; below 0 the policy was first. ahead: rule accuracy minus success, mean
    over the evaluations, median over the seeds.
    """
    rows = []
    for (arm, split), part in known_and_done(runs).groupby(["arm", "split"], sort=False):
        knows, does = _half_way(part)
        gaps = (part["rule_accuracy"] - part["success"]).groupby(part["seed"]).mean()
        medians = [f"{m:.0f}" if np.isfinite(m) else f"> {part['tasks'].max()}"
                   for m in map(kaplan_meier_median, (knows, does))]  # fmt: skip
        rows.append(
            {"arm": arm, "companies": SPLIT_NAMES[split], "tasks to half of the fields": medians[0],
             "tasks to half of the successes": medians[1],
             "lag": ", ".join(_lag(k, d) for k, d in zip(knows, does, strict=True)),
             **_interval(median(gaps), "ahead"), "seeds": len(knows)}
        )  # fmt: skip
    return pd.DataFrame(rows)


def _half_way(part: pd.DataFrame) -> tuple[list[Arrival], list[Arrival]]:
    """Tasks of every seed to half of the field sets, and to half of the successes; rows of one arm and split."""
    part = part.sort_values("tasks")
    return arrivals(part.assign(success=part["rule_accuracy"]), HALF), arrivals(part, HALF)


def _lag(knows: Arrival, does: Arrival) -> str:
    """Success minus fields in tasks; where one never came, what is known about the difference."""
    if not (knows.reached or does.reached):
        return "neither"
    bound = "" if knows.reached and does.reached else "> " if knows.reached else "< "
    return f"{bound}{does.tasks - knows.tasks:+.0f}"


def lag_figure(runs: Runs) -> plt.Figure:
    """What the world model knows and what the policy does, against sampled tasks, and the area between the medians.

    A row per arm, known and new companies. Every seed thin, medians thick; verticals: median tasks to one half.
    """
    data = known_and_done(runs).sort_values("tasks", kind="stable")
    fig, axes = plt.subplots(len(runs), 2, figsize=(11, 3.8 * len(runs)), sharey=True, squeeze=False,
                             layout="constrained")  # fmt: skip
    names = {"rule_accuracy": "exact fields named by the world model", "success": "success of the policy"}
    colours = dict(zip(names, sns.color_palette(), strict=False))
    for row, arm in zip(axes, runs, strict=True):
        for ax, (split, title) in zip(row, SPLIT_NAMES.items(), strict=True):
            ax.set(title=f"{arm}, {title}" if len(runs) > 1 else title, xlabel="sampled tasks", ylim=(-0.02, 1.02))
            ax.axhline(HALF, color="grey", lw=1, ls=":")
            part = data[(data["arm"] == arm) & (data["split"] == split)]
            if part.empty:  # a split that was not evaluated
                continue
            middle = {}
            for (column, name), reached in zip(names.items(), _half_way(part), strict=True):
                for _, one in part.groupby("seed"):
                    ax.plot(one["tasks"], one[column], color=colours[column], alpha=0.35, lw=1)
                middle[column] = aligned(part.assign(success=part[column])).median(axis=1)
                ax.plot(middle[column], color=colours[column], lw=2.5, marker="o", ms=4, label=name)
                if np.isfinite(half := kaplan_meier_median(reached)):
                    ax.axvline(half, color=colours[column], lw=1, ls="--")
            known, done = middle.values()
            for first, column in ((known > done, "rule_accuracy"), (known < done, "success")):
                ax.fill_between(known.index, known, done, first, interpolate=True, color=colours[column], alpha=0.2)
        row[0].set_ylabel(textwrap.fill("share of departments, share of episodes", 25))
    axes[0, 0].legend(fontsize="small", loc="lower right")
    return fig


KNOWLEDGE = {"exact": "exactly what is required", "one more": "that and one field more", "other": "anything else"}


def follow_table(runs: Runs) -> pd.DataFrame:
    """Success of the last policy by what the world model names for the department that the user wants.

    One field more than is required is still shared (`EnvConfig.slack`). Left out: tasks with several goals, and
    departments that require nothing or another call first. Medians over the seeds; tasks: share of a run's.
    """
    rules = probed(runs, "rules")[["arm", "seed", "split", "company_id", "department", "truth", "greedy"]]
    data = probed(runs, "episodes").merge(rules, on=["arm", "seed", "split", "company_id", "department"])
    data["named"] = [_knowledge(t, g) for t, g in zip(data["truth"], data["greedy"], strict=True)]
    rows = []
    for (arm, split), part in data.groupby(["arm", "split"], sort=False):
        for named, meant in KNOWLEDGE.items():
            one = part[part["named"] == named]
            shares = one.groupby("seed").size() / part.groupby("seed").size()
            success = one.groupby("seed")["success"].mean()
            rows.append({"arm": arm, "companies": SPLIT_NAMES[split], "the world model names": meant,
                         "tasks": shares.fillna(0).median(),
                         **_interval(median(success) if len(success) else Estimate(*[np.nan] * 3, 0), "success"),
                         "seeds": len(success)})  # fmt: skip
    return pd.DataFrame(rows)


def _knowledge(truth: str, named: str) -> str:
    """A key of KNOWLEDGE. truth, named: field sets in canonical order."""
    required, asked = set(truth.split()), set(named.split())
    return "exact" if required == asked else "one more" if required < asked and len(asked - required) == 1 else "other"
