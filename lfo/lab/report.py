"""Figures and tables -> files, each with its provenance beside it; and `report`, all that run folders alone can tell.

Provenance: runs, seeds, commit, packages, machine, wall time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from lfo.lab import factorial, figures, tables
from lfo.lab.reading import Runs, frame
from lfo.runs import RunFolder


def report(runs: Runs, out: str | Path) -> list[Path]:
    """All figures and tables of these runs in one folder; return their paths.

    What takes the outcome of every task is left out where runs of an arm have none, as earlier versions wrote them.
    """
    made = {
        "tasks_to_threshold": tables.threshold_table,
        "phase_seconds": tables.phase_seconds,
    }
    if _with_outcomes(runs):
        made |= {"summary": factorial.summary, "final_success": factorial.final_table}
    if len(frame(runs, "reply")):
        made["reply_accuracy"] = tables.reply_table
    if frame(runs, "step").get("trained_tokens", pd.Series([None])).notna().all():
        made["compute"] = tables.compute_table
    paths = [save_figure(fig, Path(out) / name, runs) for name, fig in figures_of(runs).items()]
    plt.close("all")
    return paths + [save_table(make(runs), Path(out) / name, runs) for name, make in made.items()]


def _with_outcomes(runs: Runs) -> bool:
    """Of every arm."""
    return set(frame(runs, "outcomes").get("arm", ())) == set(runs)


def figures_of(runs: Runs) -> dict[str, plt.Figure]:
    """What can be drawn from these runs, by name."""
    figures.style()
    drawn = {
        "learning_curves": figures.learning_curves,
        "training_signals": figures.training_signals,
    }
    if _with_outcomes(runs):
        drawn["success_by_level"] = figures.success_by_level
    if len(frame(runs, "rules")):
        drawn["world_model"] = figures.world_model_curves
    return {name: draw(runs) for name, draw in drawn.items()}


def save_figure(fig: plt.Figure, path: str | Path, runs: Runs | None = None, facts: Mapping | None = None) -> Path:
    """Write PNG and SVG and, beside them, the provenance; return the PNG's path.

    facts: what there is to say without, or besides, training runs, e.g. `lfo.runs.provenance()`.
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


def provenance_of(runs: Runs) -> dict:
    """Provenance of everything drawn from these runs, read from their folders.

    configs: of every arm's first run; its other runs differ in their `seed` and `world_seed`.
    """
    entries, configs = [], {}
    for arm, folders in runs.items():
        for folder in folders:
            run = RunFolder(folder)
            seconds = sum(sum(row.get("seconds", {}).values()) for row in run.metrics())
            facts = run.provenance
            configs.setdefault(arm, facts.pop("config", {}))
            entries.append({"arm": arm, "run": run.path.name, "wall_seconds": round(seconds), **facts})
    return {"configs": configs, "runs": entries}
