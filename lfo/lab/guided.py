"""Feedback while a run trains: who succeeds with it and without, in which place of a group, and why the others fail.

And what notebook 08 makes of it: an answer to each of its questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.ticker import PercentFormatter

from lfo.lab.factorial import MOST, NOTED, baseline_of, draw_curves, in_tasks, level_table, looks_of, overview
from lfo.lab.hierarchy import Study, final, middle, reach, read_curves, relative_to, times_fewer
from lfo.lab.reading import SPLIT_NAMES, Runs, aligned, by_run, count_runs, frame
from lfo.lab.statistics import together
from lfo.lab.verdicts import Claim
from lfo.runs import RunFolder

QUESTIONS = {
    1: "sample efficiency: does feedback save tasks?",
    2: "does the policy without feedback learn, or does it only follow?",
    3: "quality of feedback: are rules better than a model, and as good as both?",
    4: "new companies: does it hold there?",
    5: "levels 1 to 5: does it help where tasks are hard?",
}
OPEN = "not yet run"
FIRST, LATER = "first_try_success", "later_success"
SHARES = {
    FIRST: "first try",
    "feedback_success": "with feedback",
    LATER: "later places",
    "recovery": "recovered groups",
}


def guided_runs(runs: Runs) -> Runs:
    """The arms whose later attempts read feedback."""
    return {arm: folders for arm, folders in runs.items() if RunFolder(folders[0]).config.feedback}


def feedback_table(runs: Runs) -> pd.DataFrame:
    """A row per arm: means over the steps of a run, medians over the runs. Shares, and tokens per rollout.

    place k: success of the k-th rollouts; first try, later places: of those before `feedback.start`, and from there on,
    whether or not there was anything to read; failed <kind>: share of failed rollouts. docs/metrics.md defines them.
    at first, at last: with feedback, in the first and the last quarter of the steps.
    """
    steps = _steps(runs)
    places = [name for name in steps if name.startswith("success_at_")]
    kinds = sorted(name for name in steps if name.startswith("failed_"))
    lengths = ["feedback_tokens_per_rollout", "tokens_per_rollout"]
    names = [*SHARES, *sorted(places), *lengths, *kinds]
    steps = steps.reindex(columns=[*steps.columns, *(name for name in names if name not in steps)])
    steps[kinds] = steps[kinds].fillna(0.0)  # a kind that no failure of a step was of is not logged
    said = SHARES | {name: name.replace("success_at_", "place ") for name in places}
    said |= {name: name.replace("_", " ") for name in (*kinds, *lengths)}
    rows = []
    for arm, part in steps.groupby("arm", sort=False):
        means = by_run(part)[names].mean().median()
        along = part["tasks"] / by_run(part)["tasks"].transform("max")
        quarters = {"at first": part[along <= 0.25], "at last": part[along > 0.75]}
        ends = {name: by_run(some)["feedback_success"].mean().median() for name, some in quarters.items()}
        rows.append({"arm": arm} | {said[name]: means[name] for name in names} | ends | {"runs": count_runs(part)})
    return pd.DataFrame(rows)


def unaided_table(runs: Runs) -> pd.DataFrame:
    """What policies do without notes at the last evaluation, by arm and companies: medians over the runs with 95%
    intervals; with notes: the same episodes with those that their coupling says, where it says some; tasks: to most of
    what the baseline ends with, times fewer (their low, high): than its own, 0 where the median run never arrives."""
    bare, noted = _unaided(runs)
    rows, baseline = [], baseline_of(runs)
    for split, companies in SPLIT_NAMES.items():
        alone = [*read_curves(bare, split), *read_curves(noted, split, kind="unaided_outcomes")]
        study, told = Study(alone), Study(read_curves(noted, split))
        shares = Study(relative_to(alone, baseline))
        for arm in study.arms:
            found = study.find(final, middle(arm), [arm])
            row = {"arm": arm, "companies": companies, "without notes": found.value, "low": found.low}
            arrived = shares.find(reach(MOST), middle(arm), [arm]) if arm in shares.arms else None
            tasks = in_tasks({"median": arrived.value, "low": arrived.low, "high": arrived.high}) if arrived else ""
            with_notes = told.find(final, middle(arm), [arm]).value if arm in noted else None
            row |= {"high": found.high, "with notes": with_notes, f"tasks to {MOST:.0%} of the baseline": tasks}
            if arrived and arm != baseline:
                fewer = times_fewer(shares, reach(MOST), arm, baseline)
                row |= {"times fewer": fewer.value, "times low": fewer.low, "times high": fewer.high}
            rows.append(row | {"runs": found.runs})
    return pd.DataFrame(rows)


def unaided_levels(runs: Runs) -> pd.DataFrame:
    """What policies do without notes at the last evaluation, at each level (`lfo.lab.factorial.overview`)."""
    bare, noted = _unaided(runs)
    return overview(pd.concat([level_table(bare), level_table(noted, kind="unaided_outcomes")]), "level")


def unaided_figure(runs: Runs, looks: Mapping[str, dict] | None = None) -> plt.Figure:
    """Success without notes against sampled tasks, at known and at new companies. looks: of the lines, as in other
    figures."""
    fig, axes = plt.subplots(1, 2, figsize=(13, 4), sharey=True, layout="constrained")
    bare, noted = _unaided(runs)
    looks = looks or looks_of({**bare, **noted})
    for part, kind in ((bare, "success"), (noted, "unaided")):
        draw_curves(axes, part, SPLIT_NAMES, "tasks", looks, kind)
    axes[0].autoscale(axis="y")  # few come half way up
    return fig


def _unaided(runs: Runs) -> tuple[dict, dict]:
    """The arms whose policies are trained and read no notes, and those of the others' runs, where they read some, that
    were evaluated without."""
    bare, noted = {}, {}
    for arm, folders in runs.items():
        config = RunFolder(folders[0]).config
        if config.policy.learning_rate and config.coupling not in NOTED:
            bare[arm] = folders
        alone = [f for f in folders if any(row["kind"] == "unaided_outcomes" for row in RunFolder(f).metrics())]
        if alone:
            noted[arm] = alone
    return bare, noted


def _steps(runs: Runs) -> pd.DataFrame:
    """Metrics of all steps; first tries by their places, since runs before 25 November 2026 counted among them whoever
    had nothing to read in the end, which is more often so where everybody succeeded."""
    steps = frame(runs, "step", needed=True)
    for arm, folders in runs.items():
        start, mine = RunFolder(folders[0]).config.feedback.start, steps["arm"] == arm
        places = {int(name.rpartition("_")[2]): name for name in steps if name.startswith("success_at_")}
        first = steps.loc[mine, [name for k, name in places.items() if k < start]].mean(axis=1)
        steps.loc[mine, FIRST] = first.fillna(steps.loc[mine, FIRST])
        steps.loc[mine, LATER] = steps.loc[mine, [name for k, name in places.items() if k >= start]].mean(axis=1)
    return steps


def training_figure(runs: Runs, looks: Mapping[str, dict] | None = None) -> plt.Figure:
    """First tries, and rollouts with feedback, against sampled tasks: medians over the runs of every arm that has any.
    looks: of the lines, as in other figures."""
    steps, looks = _steps(guided_runs(runs)), looks or looks_of(runs)
    fig, axes = plt.subplots(1, 2, figsize=(13, 4), sharey=True, layout="constrained")
    titles = {FIRST: "first tries", "feedback_success": "attempts with feedback, or with what stands in its place"}
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        for arm, part in steps.groupby("arm", sort=False):
            known = part.dropna(subset=[name]).assign(success=lambda rows, name=name: rows[name])
            if len(known):
                middle = aligned(known).median(axis=1).rolling(5, min_periods=1).mean()
                label = f"{arm} ({count_runs(known)})"
                ax.plot(middle.index, middle, label=label, markevery=8, ms=5, **looks[arm])
        ax.set(title=title, xlabel="sampled tasks")
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[0].set_ylabel("success in training, mean of 5 steps")
    axes[1].legend(title="median (runs)", fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    return fig


# --- what notebook 08 makes of it ------------------------------------------------------------


def question_table(claims: Sequence[Claim], verdicts: pd.DataFrame) -> pd.DataFrame:
    """An answer to each of `QUESTIONS`, from what became of the claims that belong to it.

    supported where all of them are, refuted where one is, not yet run where none was judged, else undecided. The
    question about new companies has the claims of all others on them as well.
    """
    judged = {(row.claim, row.split): row.verdict for row in verdicts.itertuples()}
    rows = []
    for number, text in QUESTIONS.items():
        there = [c for c in claims if c.question == number or (number == 4 and c.question and c.split == "test")]
        found = [judged.get((c.text, c.split), OPEN) for c in there]
        answer = OPEN if set(found) == {OPEN} else together(found)
        counts = ", ".join(f"{count} {what}" for what, count in sorted(Counter(found).items()))
        rows.append({"question": f"{number}. {text}", "answer": answer, "claims": counts})
    return pd.DataFrame(rows)
