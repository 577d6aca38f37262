"""Rollouts as HTML to read: every token coloured by its role, every outcome beside it. Plays and decides nothing.

The HTML stands alone (no script, font or image from elsewhere) and all text in it is escaped. Colours are
translucent, so that light and dark pages both show through, and each stretch of tokens also says its role
in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from lfo.records import Trajectory
from lfo.sampling import by_group, informative
from lfo.tokens import Codec, Role, segments

# Okabe and Ito's palette, which colour-blind readers can tell apart, as red, green, blue.
COLOURS = {
    Role.PROMPT: "128,128,128",
    Role.ACTION: "0,114,178",
    Role.OBSERVATION: "0,158,115",
    Role.IMAGINED: "204,121,167",
    Role.FEEDBACK: "230,159,0",
}
ROLES = {
    Role.PROMPT: "the task",
    Role.ACTION: "what the policy wrote: the only tokens its loss sees",
    Role.OBSERVATION: "what the environment answered",
    Role.IMAGINED: "what the world model expects the environment to answer",
    Role.FEEDBACK: "feedback on earlier attempts",
}
STYLE = """
.rollouts { font: 14px/1.6 system-ui, sans-serif; }
.rollouts details { border: 1px solid rgba(128,128,128,.4); border-radius: 4px; margin: .4em 0; padding: .2em .7em; }
.rollouts summary { cursor: pointer; font-variant-numeric: tabular-nums; }
.rollouts p.tokens { white-space: pre-wrap; overflow-wrap: anywhere; font-family: ui-monospace, monospace; }
.rollouts mark { color: inherit; border-radius: 3px; padding: .1em .2em; }
.rollouts mark small { font-family: system-ui, sans-serif; opacity: .75; }
""" + "\n".join(
    f".rollouts mark.{role.name.lower()} {{ background: rgba({rgb},.22); border-bottom: 2px solid rgb({rgb}); }}"
    for role, rgb in COLOURS.items()
)


def rollouts_html(codec: Codec, rows: Sequence[Trajectory], advantages: Sequence[float]) -> str:
    """A fragment: the legend, then group by group each rollout with its outcome, its turns and its tokens.

    advantages: one per row; not shown for groups that dynamic sampling drops, since nothing learns from them.
    """
    advantage = dict(zip(map(id, rows), advantages, strict=True))
    legend = " ".join(f"{_mark(role, role.name.lower())} {escape(meaning)}" for role, meaning in ROLES.items())
    parts = [f"<style>{STYLE}</style>", f"<p>{legend}</p>"]
    for group in by_group(rows).values():
        played = [r for r in group if not r.probe]
        wins, taught = sum(r.success for r in played), informative(played)
        fate = "" if taught else ": all alike, so dynamic sampling drops the group"
        parts.append(f"<h3>{escape(group[0].task_id)}: {wins} of {len(played)} rollouts succeeded{fate}</h3>")
        for i, row in enumerate(group, start=1):
            parts.append(_rollout(codec, i, row, advantage[id(row)] if taught and not row.probe else None))
    return f'<div class="rollouts">{"".join(parts)}</div>'


def _rollout(codec: Codec, number: int, row: Trajectory, advantage: float | None) -> str:
    facts = [
        f"<b>{'✓' if row.success else '✗'} {'probe' if row.probe else 'rollout'} {number}</b>",
        f"stop {escape(row.stop)}",
        f"reward {row.reward:g}",
        f"advantage {'none' if advantage is None else f'{advantage:+.2f}'}",
        f"shaped reward {row.shaped_reward:.2f}",
        f"{len(row.tokens)} tokens",
    ]
    turns = "".join(f"<li>{escape(t.tool or 'no tool')}: {escape(t.status)}</li>" for t in row.turns)
    tokens = " ".join(_mark(role, f"{role.name.lower()} {n}", text) for role, text, n in segments(codec, row))
    return (
        f"<details{' open' * (number == 1)}><summary>{' · '.join(facts)}</summary><ol>{turns}</ol>"
        f'<p class="tokens">{tokens}</p></details>'
    )  # fmt: skip


def _mark(role: Role, label: str, text: str = "") -> str:
    return f'<mark class="{role.name.lower()}"><small>{label}</small> {escape(text)}</mark>'


def show_rollouts(codec: Codec, rows: Sequence[Trajectory], advantages: Sequence[float]):
    """`rollouts_html` as the output of a notebook cell."""
    from IPython.display import HTML

    return HTML(rollouts_html(codec, rows, advantages))


def save_rollouts(
    codec: Codec, rows: Sequence[Trajectory], advantages: Sequence[float], path: str | Path, title: str
) -> Path:
    """`rollouts_html` as one page of its own; return its path."""
    page = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="color-scheme" content="light dark">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title></head><body><h2>{escape(title)}</h2>"
        f"{rollouts_html(codec, rows, advantages)}</body></html>\n"
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")  # a model may write what has no UTF-8 form
    return path
