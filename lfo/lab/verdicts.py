"""What becomes of the claims: supported, refuted or undecided (`statistics.decided`), each by a rule said beforehand.

Claims about speed and success are ratios of two arms (`ratio_verdicts`, notebook 04), claims that an arm is better
than others are differences seed by seed (`lead_verdicts`, notebooks 04 and 05).
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lfo.lab.ablation_figures import difference, scores
from lfo.lab.reading import SPLIT_NAMES, Runs, after, arrivals, success_frame
from lfo.lab.statistics import Estimate, Speedup, decided, median, speedup, together, verdict
from lfo.runs import RunFolder

AIM, FLOOR = 5.0, 3.0  # times fewer tasks to 70%, and the least that its interval may allow
ENOUGH_SEEDS = 3  # fewer decide no claim about an ablation
MARGIN = 0.05  # a smaller lead decides nothing: about the standard error of one evaluation of 100 episodes
Claims = Mapping[str, tuple[str, Sequence[str]]]  # what is claimed -> an arm, and the others


# --- ratios ----------------------------------------------------------------------------------


def ratio_verdicts(
    runs: Runs, ours: str = "imagine", baseline: str = "baseline", equal: str = "baseline_320"
) -> pd.DataFrame:
    """How many times fewer tasks, how many times the success: a claimed number is decided by the 95% interval.

    Supported: the whole interval lies beyond the claimed number; refuted: all of it short of it; else, and with too few
    seeds, undecided. The aim asks for less: a ratio of AIM, and an interval from FLOOR. Success is compared at the end
    of our budget with `equal`, a baseline whose schedule ends there (without such an arm with the baseline), and with
    the baseline at the end of its own; the ratio's interval is that of the extremes.
    """
    success, rows = success_frame({arm: runs[arm] for arm in (ours, baseline, equal) if arm in runs}), []

    def add(claim: str, ratio: Estimate | Speedup, found: str) -> None:
        rows.append({"claim": claim, "low": ratio.low, "high": ratio.high, "seeds": ratio.n, "verdict": found})

    for split, companies in SPLIT_NAMES.items():
        curves, which = success[success["split"] == split], companies.partition(" (")[0]
        slow, fast = (arrivals(curves[curves["arm"] == arm], 0.7) for arm in (baseline, ours))
        ratio = speedup(slow, fast)
        aim = f"{which}: {AIM:g} times fewer tasks to 70%, interval from {FLOOR:g} (the aim)"
        add(aim, ratio, decided(ratio, ratio.at_least >= AIM and ratio.low >= FLOOR, ratio.high < AIM))
        for claimed in (AIM, FLOOR):
            add(f"{which}: {claimed:g} times fewer tasks to 70%", ratio, verdict(ratio, claimed))
    now, new = budget(runs[ours]), success[success["split"] == "test"]
    equal = equal if equal in runs else baseline
    for rival, tasks in {equal: min(now, budget(runs[equal])), baseline: budget(runs[baseline])}.items():
        us, them = new[new["arm"] == ours], new[new["arm"] == rival]
        ratio = extreme_ratio(median(after(min(now, tasks), us)), median(after(tasks, them)))
        claim = f"new companies: {FLOOR:g} times the success of {rival} after {tasks} tasks"
        add(claim, ratio, verdict(ratio, FLOOR))
    return pd.DataFrame(rows)


def budget(folders: Sequence) -> int:
    """Sampled tasks that every one of these runs has seen."""
    return min(RunFolder(folder).newest()["tasks"] for folder in folders)


def extreme_ratio(ours: Estimate, other: Estimate) -> Estimate:
    """The ratio of two numbers from the worst case to the best."""
    low, high = ours.low / max(other.high, 1e-9), ours.high / max(other.low, 1e-9)
    return Estimate(np.nan, low, high, min(ours.n, other.n))


# --- leads -----------------------------------------------------------------------------------


def lead_verdicts(
    runs: Runs,
    claims: Claims,
    measure: str = "area",
    enough: int = ENOUGH_SEEDS,
    no_gain: Claims = types.MappingProxyType({}),
) -> pd.DataFrame:
    """What becomes of claims that an arm is better than each of some others, or (`no_gain`) than none, by split.

    A claim with an arm that was not run is left out. An arm is better than another where at least `enough` seeds have
    a paired difference whose whole 95% interval is above 0 and whose median is at least MARGIN. Supported: better than
    each; refuted: one of the others is better than it; else undecided. No gain is supported where every interval ends
    below MARGIN, and refuted by one other that the arm is better than.
    rival, lead, low, high: the other that comes closest, or goes furthest ahead; for no gain, the furthest behind.
    """
    table, rows = scores(runs), []
    judged = [(*claim, _better, min) for claim in claims.items()] + [(*c, _no_gain, max) for c in no_gain.items()]
    for claim, (arm, others), judge, pick in judged:
        if not {arm, *others} <= set(runs):
            continue
        for split, part in table.groupby("split", sort=False):
            leads = {other: difference(part, arm, other, measure) for other in others}
            rival = pick(leads, key=lambda other: leads[other].value)
            lead, found = leads[rival], together([judge(one, enough) for one in leads.values()])
            rows.append([claim, split, rival, lead.value, lead.low, lead.high, lead.n, found])
    return pd.DataFrame(rows, columns=["claim", "split", "rival", "lead", "low", "high", "seeds", "verdict"])


def _better(lead: Estimate, enough: int) -> str:
    ahead, behind = lead.value >= MARGIN and lead.low > 0, lead.value <= -MARGIN and lead.high < 0
    return decided(lead, supported=ahead, refuted=behind, enough=enough)


def _no_gain(lead: Estimate, enough: int) -> str:
    ahead = lead.value >= MARGIN and lead.low > 0
    return decided(lead, supported=lead.high < MARGIN, refuted=ahead, enough=enough)
