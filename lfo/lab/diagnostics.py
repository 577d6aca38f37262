"""Is a run healthy, and should lambda change? Reads the run's metrics and config, nothing else.

What the world model knows is judged by `rule_accuracy`, not by token accuracy: the embedded base speaks the
CSR's language from the start, so that most reply tokens are right before it knows a single rule.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd

from lfo.lab.reading import Runs
from lfo.runs import RunError, RunFolder

RAISE_BELOW = 0.30  # rule accuracy under which the world model is too weak
LOWER_ABOVE = 0.80  # rule accuracy over which it has little left to learn
FALLING = -0.05  # success trend that counts as a fall: a standard error of 100 episodes
TREND_EVALUATIONS = 3  # the trend reaches from the first to the last of the newest so many
RECENT_STEPS = 10  # gradient norms and losses are medians over the newest so many steps
GRADIENTS, LOSSES = 3.0, 2.0  # healthy ratios world model : policy lie between 1 and these
FAR = 10.0  # a ratio this far from 1, on either side, is warned of
ONE_ADAPTER = ("shared", "echo")  # couplings in which both losses move the same weights
NO_WORLD_MODEL = "There is no world model: lambda has no effect."
SPLIT = "validation"  # settings are never chosen on the test split


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """State of a run after `tasks` sampled tasks; nan where the run has no such number.

    gradient_norm_ratio, loss_ratio: world model / policy as they stand in the sum of joint updates, so lambda is in
    both; norms before clipping, the policy's loss with its absolute value. gradients, losses: what to do about them.
    rule_accuracy: share of calls on the ways of validation tasks to which it says what would be answered.
    token_accuracy: reply tokens of the newest step predicted right. success_trend: change of success.
    """

    tasks: int
    gradient_norm_ratio: float
    loss_ratio: float
    rule_accuracy: float
    token_accuracy: float
    success: float
    success_trend: float
    gradients: str
    losses: str
    advice: str


def diagnose(folder: str | Path) -> Diagnosis:
    """What the newest rows of a run say.

    Raises:
        RunError: the run was not started, or has not been evaluated on validation tasks.
    """
    run = RunFolder(folder)
    rows, w = run.metrics(), run.config.world_model
    steps = [r for r in rows if r["kind"] == "step"][-RECENT_STEPS:]
    scores = [r["success"] for r in rows if r["kind"] == "success" and r["split"] == SPLIT and r["level"] == 0]
    known = [r["rule_accuracy"] for r in rows if r["kind"] == "rules" and r["split"] == SPLIT]
    if not scores:
        raise RunError(f"{folder} was never evaluated on {SPLIT} tasks; let it go on with {SPLIT} in eval_splits.")
    trend = scores[-1] - scores[-TREND_EVALUATIONS:][0] if len(scores) > 1 else math.nan
    accuracy = known[-1] if known else math.nan
    norms = _ratio(steps, "world_model/grad_norm", "policy/grad_norm")
    losses = _ratio(steps, "world_model/loss", "policy/loss") * (w.lam if w else math.nan)
    return Diagnosis(
        tasks=rows[-1]["tasks"],
        gradient_norm_ratio=norms,
        loss_ratio=losses,
        rule_accuracy=accuracy,
        token_accuracy=next((r["world_model/accuracy"] for r in steps[::-1] if "world_model/accuracy" in r), math.nan),
        success=scores[-1],
        success_trend=trend,
        gradients=ratio_finding("gradient norms", norms, GRADIENTS, run.config.coupling),
        losses=ratio_finding("losses", losses, LOSSES, run.config.coupling),
        advice=lambda_advice(accuracy, trend, w.lam, w.coupling) if w and w.coupling != "memory" else NO_WORLD_MODEL,
    )


def diagnosis_table(runs: Runs) -> pd.DataFrame:
    """`diagnose`, a row per run; raises what that raises."""
    rows = []
    for arm, folder in ((arm, folder) for arm, folders in runs.items() for folder in folders):
        config = RunFolder(folder).config
        run = {"arm": arm, "world": config.env.world_seed, "seed": config.seed}
        rows.append(run | dataclasses.asdict(diagnose(folder)))
    return pd.DataFrame(rows)


def _ratio(steps: list[dict], above: str, below: str) -> float:
    """Median absolute value of one number over that of the other, each over the steps that have it."""
    values = [[abs(r[name]) for r in steps if name in r] for name in (above, below)]
    one, other = (float(np.median(found)) if found else math.nan for found in values)
    return one / other if other else math.nan


def ratio_finding(what: str, ratio: float, most: float, coupling: str) -> str:
    """Whether a ratio world model / policy is healthy, and what to change where it is not; "" where there is no ratio.

    An adapter of its own has AdamW take lambda out of its steps (`lambda_advice`): lambda would change the ratio there,
    and not the training.
    """
    if math.isnan(ratio):
        return ""
    said = f"The world model's {what} are {ratio:.3g} times the policy's (healthy: 1 to {most:g})"
    if 1 <= ratio <= most:
        return f"{said}: keep them."
    change, reverse = ("raise", "lower") if ratio < 1 else ("lower", "raise")
    rates = f"{change} world_model.learning_rate, or {reverse} policy.learning_rate"
    remedy = f"{change} world_model.lam" if coupling in ONE_ADAPTER else f"{rates}; lambda would move the ratio alone"
    return f"{'' if 1 / FAR <= ratio <= FAR else 'Warning: '}{said}: {remedy}."


def lambda_advice(accuracy: float, trend: float, lam: float, coupling: str) -> str:
    """Whether the world model should have more or less weight, and by which setting, in a sentence or two.

    With an adapter of its own the world model's gradient is scaled by lambda as a whole, and AdamW divides
    the scale out again (Kingma and Ba 2015, arXiv 1412.6980, section 2.1): there, replay updates and
    learning rate are the lever, unless lambda is 0, which switches learning off.
    """
    if math.isnan(accuracy):
        return NO_WORLD_MODEL
    alone = coupling not in ONE_ADAPTER and lam > 0
    lever, now = ("world_model.updates or learning_rate", "") if alone else ("lambda", f" from {lam:g}")
    kept = "leave world_model.updates and learning_rate as they are" if alone else f"keep lambda at {lam:g}"
    advice = f"The world model names the fields of the answers to {accuracy:.0%} of the calls"
    if accuracy < RAISE_BELOW:
        advice += f", less than {RAISE_BELOW:.0%}: raise {lever}{now}."
    elif accuracy > LOWER_ABOVE and trend < FALLING and lam:
        advice += f", and success falls ({trend:+.0%}): lower {lever}{now}."
    else:
        advice += f": {kept}."
    if alone:
        advice += f" Lambda is no lever: with '{coupling}' each has its own adapter, and AdamW divides lambda out."
    return advice
