"""What becomes of claims that were written down: supported, refuted or undecided, by one rule for all of them.

A claim is that one arm leads another by more than a bar, needs so many times fewer tasks, or is above a bar by itself;
the rule is that of `lfo.lab.hierarchy.judge`, over the whole table. `read_claims` reads what configs/claims.yaml says.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from lfo.config import ConfigError, located, read_yaml
from lfo.lab.factorial import MEASURES, MOST, baseline_of, told_the_truth
from lfo.lab.hierarchy import (
    Finding,
    Study,
    judge,
    lead,
    middle,
    reach,
    read_curves,
    relative_to,
    shared_area,
    times_fewer,
)
from lfo.lab.reading import Runs
from lfo.lab.tables import known
from lfo.lab.transfer_tables import informed, transferred, within

KINDS = ("lead", "times", "level")
OF = ("success", "transfer", "attempts", "told", "rules")
JUDGED = {**MEASURES, "tasks_to_90": reach(MOST)}
RELATIVE = {"truth": told_the_truth, "baseline": baseline_of}
COLUMNS = "claim split value low high runs p verdict".split()


@dataclasses.dataclass(frozen=True)
class Claim:
    """An arm is better than another by more than `bar`.

    measure: a key of `JUDGED`. kind: "lead", the difference of the medians; "times", how many times the
    other's median is the arm's; "level", the arm's own median, with "" as the other. levels: of the tasks; None: all.
    relative: to what is reached at the end in the same world, by the arm that is frozen and told the truth ("truth") or
    by the baseline ("baseline"); "": to nothing. question: of a notebook, 0: of none. by: what has hidden rules of its
    own, as for `read_curves`; tasks without one do not count.
    of: what is measured, "success" of the runs' own evaluations; or at the end, where "success" is the only measure:
    "transfer", what `lfo.lab.transfer.measure` found, also on tasks that the runs do not have; "attempts", success
    within two of them (`lfo.lab.attempts`); "told", success of a policy that is told the truth, and not what it is told
    in training (`lfo.lab.transfer.measure_told`); "rules", the share of held-out tasks' calls whose reply was known,
    which is one number a run, so that only worlds and runs are resampled.
    """

    text: str
    arm: str
    other: str
    measure: str
    kind: str
    bar: float
    split: str
    levels: tuple[int, ...] | None = None
    relative: str = ""
    question: int = 0
    by: str = "company_id"
    of: str = "success"

    def __post_init__(self):
        for name, allowed in (("kind", KINDS), ("of", OF), ("measure", JUDGED), ("relative", ("", *RELATIVE))):
            if getattr(self, name) not in allowed:
                raise TypeError(f"{name} is one of {', '.join(filter(None, allowed))}, not {getattr(self, name)}")
        if (self.kind == "level") == bool(self.other):
            raise TypeError("a level has no other, and only a level has none")
        if self.measure.startswith("tasks_to") and self.kind != "times":
            raise TypeError("fewer tasks are better: they are compared as times")
        if self.of != "success" and (self.measure != "success" or self.by != "company_id"):
            raise TypeError(f"of {self.of} the measure is success, by company_id")
        if self.of in ("attempts", "told", "rules") and (self.levels or self.relative):
            raise TypeError(f"of {self.of} there are no levels, and nothing is relative")

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.arm, self.other) if self.other else (self.arm,)


def read_claims(path: str | Path, table: str) -> list[Claim]:
    """The claims of one table of a YAML file. An entry with a list of arms, others, measures or splits is a claim for
    each, as is one with `pairs` of an arm and another; {arm}, {other} and {measure} in its text are filled in.

    Raises:
        ConfigError: there is no such table, or an entry is no claim.
    """
    data = read_yaml(located(path).read_text(encoding="utf-8"), str(path))
    if table not in data:
        raise ConfigError(f"{path} has no table '{table}'; it has: {', '.join(data)}.")
    claims = []
    for entry in data[table]:
        try:
            claims += _claims(**entry)
        except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            raise ConfigError(f"{path}, '{table}': {entry} is no claim ({error}).") from None
    return claims


def _claims(text: str, measure, split, arm=None, other="", pairs=None, levels=None, **rest) -> Iterator[Claim]:
    """One for each of the pairs, or of the arms and others, and of the measures and splits, each a value or a list."""
    if bool(pairs) == bool(arm) or (pairs and other):
        raise TypeError("it has arms and others, or else pairs of both")
    pairs = pairs or [*itertools.product(_listed(arm), _listed(other))]
    if not all((pairs, _listed(measure), _listed(split))) or not all(isinstance(pair, (list, tuple)) for pair in pairs):
        raise TypeError("a list has nothing in it, or pairs are no lists of an arm and another")
    for (a, b), m, s in itertools.product(pairs, _listed(measure), _listed(split)):
        said = text.format(arm=a, other=b, measure=m)
        yield Claim(said, a, b, m, split=s, levels=levels and tuple(levels), **rest)


def _listed(value) -> list:
    return value if isinstance(value, list) else [value]


def concerned(runs: Runs, claims: Sequence[Claim]) -> Runs:
    """The runs of the arms that the claims are about."""
    named = {arm for claim in claims for arm in claim.arms}
    return {arm: folders for arm, folders in runs.items() if arm in named}


def verdict_table(runs: Runs, claims: Sequence[Claim]) -> pd.DataFrame:
    """What becomes of every claim: a claim with an arm that was not run, or not measured there, is left out.

    value, low, high: the difference, ratio or level and its 95% interval; runs: of the arm with fewer; p: Holm's, over
    the table.
    """
    study, judged = functools.cache(functools.partial(_study, runs)), {}
    for claim in claims:
        one = study(claim.split, claim.levels, claim.relative, claim.by, claim.of)
        if set(claim.arms) <= set(one.arms):
            judged[claim] = _find(one, claim), claim.bar
    rows = []
    for claim, (p, verdict) in judge(judged).items():
        found = judged[claim][0]
        numbers = {"value": found.value, "low": found.low, "high": found.high, "runs": found.runs}
        rows.append({"claim": claim.text, "split": claim.split, **numbers, "p": p, "verdict": verdict})
    return pd.DataFrame(rows, columns=COLUMNS)


def _study(runs: Runs, split: str, levels: tuple[int, ...] | None, relative: str, by: str, of: str) -> Study:
    if of == "rules":
        return Study(known(runs, split))
    if of == "attempts":
        return Study(within(runs, split, 2))
    if of == "told":
        return Study(informed(runs, split))
    curves = transferred(runs, split, levels) if of == "transfer" else read_curves(runs, split, levels, by=by)
    return Study(relative_to(curves, RELATIVE[relative](runs)) if relative else curves)


def _find(study: Study, claim: Claim) -> Finding:
    """Areas are compared over the tasks that both arms were given."""
    measure, arms = JUDGED[claim.measure], claim.arms
    if claim.measure == "area":
        measure = shared_area(study, arms)
    if claim.kind == "times":
        return times_fewer(study, measure, *arms)
    return study.find(measure, lead(*arms) if claim.kind == "lead" else middle(*arms), arms)
