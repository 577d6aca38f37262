"""Result files -> what README and docs/ show of them. Reads tables alone: no run, no model, no torch.

A page has places that begin with ``<!-- name -->`` and end with ``<!-- /name -->``; what stands between is written
here, everything else by people. `tests/lab/test_pages.py` sees to it that pages say what results/ says.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from lfo import config


class PageError(ValueError):
    """A page or a table cannot be used; the message names it and the remedy."""


# What README shows: row, arm and metric of summary.csv, what it is.
ROWS = (
    ("baseline", "baseline_320", "success_at_320", "DAPO on success alone, tuned for as many tasks"),
    ("imagine", "imagine", "success_at_320", "the policy reads what the world model predicts"),
    ("none", "none", "success_at_320", "the plain sum of both losses, which cannot reach the policy"),
    ("placebo", "placebo", "success_at_320", "`imagine`, its world model taught with other calls' replies"),
    ("told the truth", "imagine", "told_truth", "`imagine`'s policy, told what is really demanded"),
)
KNOWN, NEW = "validation", "test"

# What docs/results.md shows: tables, each with what is to be said before it.
TABLES = {
    "04_headline": "Success at known and at new companies, levels 1 and 2, greedy; sampled tasks, dropped ones "
    "included; median and 95% interval over the seeds (of fewer than five: their range).\n"
    "[Notebook 04](../results/04_transfer_eval.ipynb) says what each arm is.",
    "04_verdicts": "What that makes of the claims, the interval being that of the ratio:",
    "04_controls": "Against the controls, seed by seed, the area under the learning curve. `lead` is the median "
    "difference to the `rival` that comes closest:",
    "04_told": "What bounds `imagine`: its policies told nothing, what their world models imagine, what such "
    "departments usually demand\n(the most that can be known of a company that was never called), or the truth:",
    "04_costs": "What each arm cost, in tokens of a sampled task:",
    "05_verdicts": "Ablations, with a quarter of the tasks ([notebook 05](../results/05_lambda_ablation.ipynb)):",
    "03_final_success": "What `make results` trains, by level, pooled over its seeds, with Wilson 95% intervals "
    "([curves](../results/03_learning_curves.png)):",
}


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; [] where there is none."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --- README ----------------------------------------------------------------------------------


def headline(results: Path) -> str:
    """README's rows and verdict; a row whose runs were not made is left out."""
    found = {(r["arm"], r["metric"], r["split"]): r for r in read_table(results / "summary.csv")}
    lines, seeds = ["| arm | what it is | known companies | new companies |", "|---|---|---|---|"], set()
    for row, arm, metric, what in ROWS:
        cells = [found.get((arm, metric, split)) for split in (KNOWN, NEW)]
        if all(cells):
            lines.append(f"| {row} | {what} | {' | '.join(_percent(cell) for cell in cells)} |")
            seeds |= {cell["seeds"] for cell in cells}
    if not seeds:
        return "No arm was measured yet: `make notebooks`."
    caption = (
        "Success after 320 sampled tasks (dropped ones included), greedy, levels 1 and 2; "
        f"median and 95% interval over {' to '.join(sorted(seeds, key=int))} seeds:"
    )
    return "\n\n".join(filter(None, (caption, "\n".join(lines), _verdict(results))))


def _percent(row: Mapping[str, str]) -> str:
    """Median and interval of a share, in percent."""
    median, low, high = (f"{100 * float(row[name]):.0f}" for name in ("median", "low", "high"))
    return f"{median}% [{low}, {high}]"


def _verdict(results: Path) -> str:
    """What was claimed and what became of it, in one sentence."""
    aim = {row["claim"].partition(":")[0]: row["verdict"] for row in _said(results / "04_verdicts.csv", "(the aim)")}
    better = {row["split"]: row["verdict"] for row in _said(results / "04_controls.csv", "every control")}
    if len(aim) < 2 or len(better) < 2:
        return ""
    sooner, best = _places(aim["known companies"], aim["new companies"]), _places(better[KNOWN], better[NEW])
    return (
        "Verdict: the aim, five times fewer tasks to 70% than DAPO alone (its run of 800 tasks; by the median, the\n"
        "interval from three), is "
        f"{sooner};\nthat `imagine` is better than every control that was run is {best}."
    )


def _places(known: str, new: str) -> str:
    if known == new:
        return f"**{known}** at known and at new companies"
    return f"**{known}** at known companies and **{new}** at new ones"


def _said(path: Path, part: str) -> list[dict[str, str]]:
    return [row for row in read_table(path) if part in row["claim"]]


# --- docs ------------------------------------------------------------------------------------


def tables(results: Path) -> str:
    """The tables of docs/results.md; one that was not made is left out."""
    made = {name: results / f"{name}.md" for name in TABLES if (results / f"{name}.md").exists()}
    return "\n\n".join(f"{TABLES[name]}\n\n{path.read_text(encoding='utf-8').strip()}" for name, path in made.items())


def old_settings() -> str:
    """What settings used to be called, and what became of those that are gone."""
    renamed = [f"| `{old}` | `{new}` |" for old, new in config.RENAMED.items()]
    gone = [f"| `{old}` | {why} |" for old, why in config.GONE.items()]
    return "\n".join(["| was | is now |", "|---|---|", *renamed, "", "| is gone | because |", "|---|---|", *gone])


# --- writing ---------------------------------------------------------------------------------


def parts(root: str | Path) -> dict[Path, dict[str, str]]:
    """What is generated: page -> name of a place -> its text."""
    root = Path(root)
    return {
        root / "README.md": {"headline": headline(root / "results")},
        root / "docs" / "results.md": {"tables": tables(root / "results")},
        root / "docs" / "settings.md": {"old settings": old_settings()},
    }


def filled(page: str, name: str, text: str) -> str:
    """The page with the text in its place of that name.

    Raises:
        PageError: it has no such place, or more than one.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(end) < page.index(begin):
        raise PageError(f"a page needs one place '{begin} ... {end}' for what is generated; put it in.")
    before, after = page.partition(begin)[0], page.partition(end)[2]
    return f"{before}{begin}\n{text}\n{end}{after}"


def write_pages(root: str | Path = ".") -> list[Path]:
    """Write the generated parts of all pages of the repository at `root`; returns the pages."""
    made = parts(root)
    for path, places in made.items():
        page = path.read_text(encoding="utf-8")
        for name, text in places.items():
            page = filled(page, name, text)
        path.write_text(page, encoding="utf-8")
    return list(made)
