"""Tables and figures of notebook 06: what the world model knows, and whether the policy follows.

Drawn from the probing_*.csv that `probing.probe` leaves in each run folder and from metrics.jsonl; never loads a
model. Every number over runs is a median with the interval of `lfo.lab.statistics`, but for `progress_table`, whose
verdicts are those of `lfo.lab.hierarchy`; a run is a world and a seed.
"""

from __future__ import annotations

import itertools
import textwrap

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sacrebleu
import seaborn as sns
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score

from lfo.envs.phone.phrasings import SITUATION_STATUS, situation_of
from lfo.lab.hierarchy import correlate, judge
from lfo.lab.reading import (
    RUN,
    SPLIT_NAMES,
    Runs,
    aligned,
    arrivals,
    by_run,
    cells,
    count_runs,
    frame,
    measurements,
    parts,
    seeds_of,
    success_frame,
)
from lfo.lab.statistics import Arrival, calibration_error, kaplan_meier_median, median
from lfo.lab.tables import median_arrival
from lfo.proportions import wilson
from lfo.runs import RunError

READINGS = {"confidence": "as it is said", "elsewhere": "by other worlds"}  # column -> how a table calls it
DRAWS = 200  # of answers that are right just as often as is said, for the calibration error of chance
HALF = 0.5  # the share at which both curves are read
DIGITS = 9  # of differences that are ranked: what is equal but for floating point is a tie


def probed(runs: Runs, name: str) -> pd.DataFrame:
    """The table `name` of `lfo.lab.probing.probe` of all runs, with columns `arm`, `world` and `seed`.

    Raises:
        RunError: a run was not probed.
    """
    return measurements(runs, f"probing_{name}.csv", "run notebook 06, or `lfo.lab.probing.probe` on the run folder")


# --- replies ---------------------------------------------------------------------------------


def _replies(runs: Runs) -> pd.DataFrame:
    """The replies of all runs; those of CSRs by what they were confronted with rather than by the status alone."""
    data = probed(runs, "replies")
    closer, of_csr = data["said"].map(situation_of), data["category"].isin(SITUATION_STATUS.values())
    return data.assign(category=closer.where(of_csr, data["category"]))


def reply_scores(runs: Runs) -> pd.DataFrame:
    """Scores of every run by model, caller, split and category (`lfo.envs.phone.phrasings.situation_of`, or `all`).

    token_accuracy, perplexity: teacher-forced, closing tag included. semantic_accuracy: status, fields and
    departments are right. bleu: corpus BLEU of the greedy predictions; bleu_reworded: that of the true answers in
    other words, what a perfect world model can expect since the CSR's phrasing is drawn at random.
    """
    data = _replies(runs)
    data = pd.concat([data, data.assign(category="all")])
    keys, rows = ["arm", "model", "caller", "split", "category", *RUN], []
    for values, part in data.groupby(keys, sort=False):
        tokens = part["tokens"].sum()
        scores = {
            "calls": len(part),
            "token_accuracy": part["tokens_right"].sum() / tokens,
            "perplexity": np.exp(part["nats"].sum() / tokens),
            "semantic_accuracy": part["right"].mean(),
            "bleu": _bleu(part["predicted"], part["said"]),
            "bleu_reworded": _bleu(part["said_anew"], part["said"]),
        }
        rows.append(dict(zip(keys, values, strict=True)) | scores)
    return pd.DataFrame(rows)


def _bleu(predicted: pd.Series, said: pd.Series) -> float:
    """Corpus BLEU-4, 0 to 100 (Post 2018, arXiv 1804.08771), one reference per reply."""
    return sacrebleu.corpus_bleu(list(predicted), [list(said)]).score


def reply_score_table(runs: Runs) -> pd.DataFrame:
    """Medians of `reply_scores` over the runs; semantic accuracy with its interval. calls: median too."""
    rows, names = (
        [],
        {
            "calls": "calls",
            "token_accuracy": "token accuracy",
            "perplexity": "perplexity",
            "bleu": "BLEU",
            "bleu_reworded": "BLEU, truth reworded",
        },
    )
    for named, part in parts(reply_scores(runs), "arm", "model", "caller", "split", "category"):
        middle = {name: part[column].median() for column, name in names.items()}
        rows.append(named | middle | cells(median(part["semantic_accuracy"]), "semantic accuracy"))
        rows[-1]["runs"] = len(part)
    return pd.DataFrame(rows).sort_values(["arm", "caller", "companies", "model"], kind="stable", ignore_index=True)


def reply_figure(runs: Runs) -> plt.Figure:
    """Semantic accuracy by category: a row per caller, known and new companies; bars: medians, whiskers: all runs."""
    scores = reply_scores(runs)
    scores = scores.assign(model=scores["arm"] + ", " + scores["model"] if len(runs) > 1 else scores["model"])
    callers, categories = list(scores["caller"].unique()), sorted(scores["category"].unique())
    size, look = (11, 2.4 * len(callers)), {"errorbar": ("pi", 100), "err_kws": {"linewidth": 1}}
    fig, axes = _grid(len(callers), size, sharex=True)
    for row, caller in zip(axes, callers, strict=True):
        for ax, (split, title) in zip(row, SPLIT_NAMES.items(), strict=True):
            part = scores[(scores["caller"] == caller) & (scores["split"] == split)]
            bars = {"x": "category", "y": "semantic_accuracy", "hue": "model", "order": categories}
            sns.barplot(part, **bars, estimator="median", ax=ax, **look)
            names = [category.replace("_", "\n") for category in categories]
            ax.set_xticks(range(len(categories)), names, fontsize="x-small")
            ax.set(title=f"{caller}, {title}", xlabel="", ylabel="replies meant right", ylim=(0, 1.02))
            ax.legend(fontsize="x-small", title=None) if ax is axes[0, 1] else ax.legend([], frameon=False)
    return fig


def example_table(runs: Runs) -> pd.DataFrame:
    """Predictions beside replies at new companies: of every category and caller the first run's first two."""
    data = _replies({arm: folders[:1] for arm, folders in list(runs.items())[:1]})
    data = data[(data["model"] == "world model") & (data["split"] == "test")]
    first = data.groupby(["caller", "category"], sort=False).head(2).sort_values("caller", kind="stable")
    return first[["caller", "task_id", "gave", "said", "predicted", "right"]].reset_index(drop=True)


# --- rules and confidence --------------------------------------------------------------------


def rule_table(runs: Runs) -> pd.DataFrame:
    """What empty-handed calls are answered: right answers by companies and by how they depart from typical rules; of
    typical ones also by the number of circumstances in the request, whose demands add up.

    Then calls to another department for the same request, where the company has one that answers something else: share
    of answers that are the called department's, and that are those of the one that was called before.
    """
    data = probed(runs, "rules")
    data = data.assign(exact=data["greedy"] == data["truth"])
    typical = data[data["variation"] == "typical"].sort_values("circumstances", kind="stable")
    combined = typical.assign(variation=[f"typical, circumstances: {count}" for count in typical["circumstances"]])
    data = pd.concat([data.assign(variation="all"), data, combined])
    rows = []
    for named, part in parts(data, "arm", "split", "variation"):
        named["rules"], runs_of = named.pop("variation"), count_runs(part)
        swapped = by_run(part[part["other"] != ""])[["other_called", "other_wanted"]].mean().median()
        rows.append(
            named
            | {"calls": len(part) // runs_of}
            | cells(median(by_run(part)["exact"].mean()), "exact answers")
            | {"another department: its own answer": swapped["other_called"]}
            | {"another department: that of the first": swapped["other_wanted"], "runs": runs_of}
        )
    return pd.DataFrame(rows)


def calibration_table(runs: Runs) -> pd.DataFrame:
    """Confidence of the most frequent answer, how often it is the true one, and the expected calibration error.

    Read as it is said, and by what the same confidence was worth at the known companies of all other worlds; beside
    each what would be measured by chance if every answer were right just as often as it is read, whatever the others
    are. Who says the same of every answer may be calibrated, too, and tells nothing: `right is surer` is the share of
    pairs of a right and a wrong answer in which the right one has more confidence, half where both have as much.
    """
    rows = []
    for (named, part), reading in itertools.product(parts(_answers(runs), "arm", "split"), READINGS):
        told = [(one[reading], one["right"]) for _, one in by_run(part.dropna(subset=reading))]
        if not told:
            continue
        middle = by_run(part)[[reading, "right"]].mean().median()
        rows.append(named | {"confidence is read": READINGS[reading], "calls": len(part) // count_runs(part)})
        rows[-1] |= {"confidence": middle[reading], "accuracy": middle["right"]}
        surer = [roc_auc_score(right, one) for one, right in told if right.nunique() > 1]
        rows[-1] |= {"right is surer": median(surer).value}
        rows[-1] |= cells(median([calibration_error(*pair) for pair in told]), "calibration error")
        rows[-1] |= {"by chance": median([_error_by_chance(one) for one, _ in told]).value, "runs": len(told)}
    return pd.DataFrame(rows)


def _error_by_chance(confidence: pd.Series) -> float:
    """Calibration error of answers that are right just as often as is said: mean of `DRAWS`, always the same ones."""
    drawn = np.random.default_rng(0).random((DRAWS, len(confidence))) < confidence.to_numpy()
    return float(np.mean([calibration_error(confidence, right) for right in drawn]))


def _answers(runs: Runs) -> pd.DataFrame:
    """Rule questions with their confidence and `right`: most samples mean what is true.

    `elsewhere`: what that confidence was worth at known companies of the arm's runs in other worlds, by isotonic
    regression (Zadrozny and Elkan 2002, doi 10.1145/775047.775151); nan where there are none.
    """
    data = probed(runs, "rules")
    data = data.assign(right=data["answer"] == data["truth"], elsewhere=np.nan)
    for (arm, world), part in data.groupby(["arm", "world"]):
        others = data[(data["arm"] == arm) & (data["world"] != world) & (data["split"] == "validation")]
        if len(others):
            worth = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
            worth.fit(others["confidence"], others["right"])
            data.loc[part.index, "elsewhere"] = worth.predict(part["confidence"])
    return data


def reliability_figure(runs: Runs) -> plt.Figure:
    """Accuracy against confidence: answers of all runs pooled, Wilson 95%; areas grow with the number of answers."""
    data = _answers(runs)
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True, layout="constrained")
    for ax, (split, title) in zip(axes, SPLIT_NAMES.items(), strict=True):
        ax.plot([0, 1], [0, 1], color="grey", lw=1, ls=":", label="calibrated")
        for colour, (arm, part) in zip(sns.color_palette(), data[data["split"] == split].groupby("arm"), strict=False):
            bins = part.groupby("confidence")["right"].agg(["sum", "count"]).reset_index()
            share = bins["sum"] / bins["count"]
            ends = np.array([wilson(int(s), int(n)) for s, n in zip(bins["sum"], bins["count"], strict=True)]).T
            ax.errorbar(bins["confidence"], share, yerr=np.abs(ends - share.to_numpy()), color=colour, lw=1, capsize=2)
            sizes, label = 1000 * bins["count"] / len(part), f"{arm} ({seeds_of(part)})"
            ax.scatter(bins["confidence"], share, s=sizes, color=colour, alpha=0.5, label=label)
        ax.set(title=title, xlabel="share of samples that name the answer", xlim=(0, 1.05), ylim=(-0.03, 1.05))
    axes[0].set_ylabel("answers that mean what is true")
    axes[1].legend(fontsize="small", loc="upper left")
    return fig


def situation_table(runs: Runs) -> pd.DataFrame:
    """The hand-written calls: what is expected, the most frequent prediction, and in how many runs it is right."""
    rows, shown = [], {"company": "company", "calls": "department", "gives": "gave", "expected": "expected"}
    for named, part in parts(probed(runs, "situations"), "arm", "situation"):
        named |= {name: part[column].iloc[0] for name, column in shown.items()}
        rows.append(named | {"predicted": part["predicted"].mode()[0], "right": int(part["right"].sum())})
        rows[-1]["runs"] = len(part)
    return pd.DataFrame(rows)


# --- does the policy follow? -----------------------------------------------------------------


def known_and_done(runs: Runs) -> pd.DataFrame:
    """One row per run, split and evaluation: rule_accuracy and success (all levels) after `tasks` sampled tasks.

    Raises:
        RunError: no run was evaluated with a world model.
    """
    keys = ["arm", *RUN, "split", "tasks"]
    done = success_frame(runs)
    return frame(runs, "rules", needed=True)[[*keys, "rule_accuracy"]].merge(done[[*keys, "success"]], on=keys)


def progress_points(known: pd.DataFrame, ahead: int = 1) -> pd.DataFrame:
    """`known_and_done` on validation tasks with `gain`: success gained from an evaluation to the one `ahead` after it;
    0: all success."""
    data = known.query("split == 'validation'").sort_values("tasks", kind="stable")
    later = data.groupby(["arm", *RUN])["success"].shift(-ahead)
    data = data.assign(gain=(later - data["success"]).round(DIGITS) if ahead else later)
    return data.dropna(subset="gain").reset_index(drop=True)


# Relation -> (evaluations ahead, whether both sides are taken relative to the runs' mean after as many tasks).
PROGRESS = {
    "success gained by the next evaluation": (1, False),
    "success gained by the one after it": (2, False),
    "success gained by the next evaluation, tasks held fixed": (1, True),
    "success at the same evaluation, tasks held fixed": (0, True),
}


def progress_table(runs: Runs) -> pd.DataFrame:
    """Rank correlation of rule accuracy with the success gained after it, validation, by arm; the first row of an arm
    is the hypothesis.

    Worlds and whole runs are resampled; verdicts on a correlation above 0, Holm over the table. With the tasks held
    fixed, what all runs go through together (they start with much to gain and little knowledge) is taken out;
    evaluations that only one run has are left out there.
    """
    known, judged, counts = known_and_done(runs), {}, {}
    for arm, (relation, (ahead, fixed)) in itertools.product(runs, PROGRESS.items()):
        points = progress_points(known[known["arm"] == arm], ahead)
        if fixed:
            both = ["rule_accuracy", "gain"]
            same = points.groupby("tasks")[both]
            points[both] = (points[both] - same.transform("mean")).round(DIGITS)
            points = points[same.transform("size") > 1]
        members = list(points[list(RUN)].itertuples(index=False, name=None))
        judged[arm, relation] = correlate(points["rule_accuracy"], points["gain"], members), 0.0
        counts[arm, relation] = len(points)
    rows = []
    for (arm, relation), (p, verdict) in judge(judged).items():
        found, named = judged[arm, relation][0], {"arm": arm, "relation": relation, "points": counts[arm, relation]}
        rows.append(named | cells(found, "Spearman") | {"runs": found.runs, "p": p, "verdict": verdict})
    return pd.DataFrame(rows)


def progress_figure(runs: Runs) -> plt.Figure:
    """Rule accuracy at an evaluation against the success gained by the next, coloured by tasks; a marker per run."""
    points = progress_points(known_and_done(runs))
    if points.empty:
        raise RunError("no run has been evaluated twice on validation tasks yet; let the runs go on.")
    fig, ax = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    colours = plt.Normalize(0, points["tasks"].max())
    for marker, (run, part) in zip(itertools.cycle("osD^vP*X"), points.groupby(["arm", *RUN]), strict=False):
        look = {"c": part["tasks"], "norm": colours, "cmap": "viridis", "s": 50, "marker": marker}
        drawn = ax.scatter(part["rule_accuracy"], part["gain"], label="{}, world {}, seed {}".format(*run), **look)
    fig.colorbar(drawn, label="sampled tasks")
    ax.axhline(0, color="grey", lw=1, ls=":")
    ax.legend(fontsize="x-small")
    ax.set(xlabel="departments whose exact fields the world model names", title=SPLIT_NAMES["validation"])
    ax.set_ylabel("success gained by the next evaluation")
    return fig


def lag_table(runs: Runs) -> pd.DataFrame:
    """Sampled tasks until the world model names half of the field sets, and until half of the episodes succeed.

    lag: success minus fields, run by run; below 0 the policy was first. ahead: rule accuracy minus success, mean
    over the evaluations, median over the runs.
    """
    rows = []
    for named, part in parts(known_and_done(runs).sort_values("tasks", kind="stable"), "arm", "split"):
        known, lags = _knowing(part), zip(arrivals(_knowing(part), HALF), arrivals(part, HALF), strict=True)
        gaps = by_run(part.assign(gap=part["rule_accuracy"] - part["success"]))["gap"].mean()
        named["tasks to half of the fields"] = median_arrival(known, HALF)
        named["tasks to half of the successes"] = median_arrival(part, HALF)
        named["lag"] = ", ".join(_lag(*pair) for pair in lags)
        rows.append(named | cells(median(gaps), "ahead") | {"runs": len(gaps)})
    return pd.DataFrame(rows)


def _knowing(part: pd.DataFrame) -> pd.DataFrame:
    """The same rows with the share of known field sets as their success."""
    return part.assign(success=part["rule_accuracy"])


def _lag(knows: Arrival, does: Arrival) -> str:
    """Success minus fields in tasks; where one never came, what is known about the difference."""
    if not (knows.reached or does.reached):
        return "neither"
    bound = "" if knows.reached and does.reached else "> " if knows.reached else "< "
    return f"{bound}{does.tasks - knows.tasks:+.0f}"


def lag_figure(runs: Runs) -> plt.Figure:
    """What the world model knows and what the policy does, against sampled tasks, and the area between the medians.

    A row per arm, known and new companies. Every run thin, medians thick; verticals: median tasks to one half.
    """
    data = known_and_done(runs).sort_values("tasks", kind="stable")
    fig, axes = _grid(len(runs), (11, 3.8 * len(runs)))
    for row, arm in zip(axes, runs, strict=True):
        for ax, (split, title) in zip(row, SPLIT_NAMES.items(), strict=True):
            ax.set(title=f"{arm}, {title}" if len(runs) > 1 else title, xlabel="sampled tasks", ylim=(-0.02, 1.02))
            ax.axhline(HALF, color="grey", lw=1, ls=":")
            part = data[(data["arm"] == arm) & (data["split"] == split)]
            if len(part):  # else a split that was not evaluated
                _knows_and_does(ax, part)
        row[0].set_ylabel(textwrap.fill("share of departments, share of episodes", 25))
    axes[0, 0].legend(fontsize="small", loc="lower right")
    return fig


def _knows_and_does(ax: plt.Axes, part: pd.DataFrame) -> None:
    """One panel of `lag_figure`; rows of one arm and split."""
    blue, orange = sns.color_palette()[:2]
    curves = {
        "exact fields named by the world model": (_knowing(part), blue),
        "success of the policy": (part, orange),
    }
    middle = []
    for name, (rows, colour) in curves.items():
        for _, one in by_run(rows):
            ax.plot(one["tasks"], one["success"], color=colour, alpha=0.35, lw=1)
        middle.append(aligned(rows).median(axis=1))
        ax.plot(middle[-1], color=colour, lw=2.5, marker="o", ms=4, label=name)
        if np.isfinite(half := kaplan_meier_median(arrivals(rows, HALF))):
            ax.axvline(half, color=colour, lw=1, ls="--")
    known, done = middle
    for first, colour in ((known > done, blue), (known < done, orange)):
        ax.fill_between(known.index, known, done, first, interpolate=True, color=colour, alpha=0.2)


def _grid(rows: int, size: tuple[float, float], sharex: bool = False) -> tuple[plt.Figure, np.ndarray]:
    """A row of two panels each, for known and new companies."""
    return plt.subplots(rows, 2, figsize=size, sharex=sharex, sharey=True, squeeze=False, layout="constrained")


REFUSED = "auth_failed: "
KNOWLEDGE = {"exact": "exactly what is required", "one more": "that and one field more", "other": "anything else"}


def follow_table(runs: Runs) -> pd.DataFrame:
    """Success of the last policy by what the world model names for the department that the user wants.

    One field more than is required is still shared (`slack` of `lfo.envs.phone.Rules`). Left out: tasks with several
    goals, and those of which something else has to be known: nothing is required, or who is called sends the caller
    elsewhere. Medians over the runs; tasks: share of a run's.
    """
    task, rules = ["arm", *RUN, "split", "task_id"], probed(runs, "rules")
    alone = ~rules.duplicated(task, keep=False) & rules["truth"].str.startswith(REFUSED)
    asked = rules.loc[alone, [*task, "department", "truth", "greedy"]]
    data = probed(runs, "episodes").merge(asked, on=[*task, "department"])
    data["named"] = [_knowledge(t, g) for t, g in zip(data["truth"], data["greedy"], strict=True)]
    rows = []
    for named, part in parts(data, "arm", "split"):
        for knowledge, meant in KNOWLEDGE.items():
            one = part[part["named"] == knowledge]
            shares = by_run(one).size() / by_run(part).size()
            success = by_run(one)["success"].mean()
            row = named | {"the world model names": meant, "tasks": shares.fillna(0).median()}
            rows.append(row | cells(median(success), "success") | {"runs": len(success)})
    return pd.DataFrame(rows)


def _knowledge(truth: str, named: str) -> str:
    """A key of KNOWLEDGE, of two answers as `lfo.lab.situations.gist` writes them."""
    if not named.startswith(REFUSED):
        return "other"
    required, asked = (set(answer.removeprefix(REFUSED).split(", ")) for answer in (truth, named))
    return "exact" if required == asked else "one more" if required < asked and len(asked - required) == 1 else "other"
