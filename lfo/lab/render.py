"""Rollouts as HTML to read: every token coloured by its role, every outcome beside it.

`play_groups` samples what is shown as a step of training does; the rest plays and decides nothing.

The HTML stands alone (no script, font or image from elsewhere) and all text in it is escaped. Colours are
translucent, so that light and dark pages both show through, and each stretch of tokens also says its role
in words.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from pathlib import Path

from lfo.config import derive_seed
from lfo.lab.player import Player, load_player
from lfo.learn.objectives import Dapo
from lfo.rollout.play import play
from lfo.rollout.tasks import TaskStream, informative
from lfo.text.codec import Codec
from lfo.types import Role, Rollout, Task, by_group

# Okabe and Ito's palette, which colour-blind readers can tell apart, as red, green, blue.
COLOURS = {
    Role.PROMPT: "128,128,128",
    Role.ACTION: "0,114,178",
    Role.OBSERVATION: "0,158,115",
    Role.NOTE: "204,121,167",
    Role.FEEDBACK: "230,159,0",
}
ROLES = {
    Role.PROMPT: "the task",
    Role.ACTION: "what the policy wrote: the only tokens its loss sees",
    Role.OBSERVATION: "what the environment answered",
    Role.NOTE: "notes: what would be answered, and who says so",
    Role.FEEDBACK: "feedback on earlier attempts",
}
Advantages = Sequence[float | None] | None  # of rollouts; None: nothing is said of them
DROPPED = ": all alike, so dynamic sampling drops the group"
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


# --- what is shown ---------------------------------------------------------------------------


def play_groups(player: Player, tasks: Sequence[Task], seed: int) -> list[Rollout]:
    """A group of rollouts of every task, sampled as in a step of training."""
    c = player.config
    groups = [
        player.coupling.waves(task, i, derive_seed(seed, "group", i), c.rollout.group_size)
        for i, task in enumerate(tasks)
    ]
    return play(player.engine, player.codec, groups, player.coupling, c.rollout, seed)


def advantages_of(rows: Sequence[Rollout], player: Player) -> Advantages:
    """What each rollout's first action counts for in training; None where nothing is learned from it.

    That is so for scouts, in groups that dynamic sampling drops, and for attempts with feedback where these are
    imitated or teach nothing. Nothing is said where a policy learns from no rewards; nor under PPO, which compares no
    groups, but asks a value head that is not published.
    """
    c = player.config
    if c.ppo or not (c.policy.learning_rate and player.coupling.rewarded):
        return None
    apart = c.feedback and c.feedback.learn in ("successes", "kl")
    taught = informative(rows)
    samples = Dapo(player.config).assign(list(by_group(taught).values()))
    first = {
        id(row): next((a for a, role in zip(sample.advantages, sample.roles, strict=True) if role == Role.ACTION), 0.0)
        for row, sample in zip(taught, samples, strict=True)
    }
    return [None if apart and row.guided else first.get(id(row)) for row in rows]


def show_groups(folders: Sequence[str | Path], split: str, tasks: int):
    """As the output of a notebook cell: groups of the newest policy of the first of these runs that has adapters, which
    a clone's have not, on the first tasks of a split."""
    playable = [folder for folder in folders if any(Path(folder).glob("adapters/v*"))]
    if not playable:
        return "Nothing to play: these runs have no adapters here."
    player = load_player(playable[0])
    rows = play_groups(player, player.env.tasks(split)[:tasks], player.config.seed)
    return show_rollouts(player.codec, rows, advantages_of(rows, player))


def render_groups(folder: str | Path, tasks: int, path: str | Path) -> Path:
    """Groups of a run's newest policy on the first training tasks of the run, as a page; return its path.

    Raises:
        RunError: the run has published no adapters.
    """
    player = load_player(folder)
    c = player.config
    rows = play_groups(player, TaskStream(player.env.tasks("train"), c.seed).take(tasks), c.seed)
    title = f"{Path(folder).name}: {tasks} groups of {c.rollout.group_size} rollouts"
    return save_rollouts(player.codec, rows, advantages_of(rows, player), path, title)


def segments(codec: Codec, row: Rollout) -> list[tuple[Role, str, int]]:
    """A rollout as (role, text, tokens) pieces, each as long as the role stays the same."""
    pieces, start = [], 0
    for role, same in itertools.groupby(row.roles):
        stop = start + len(list(same))
        pieces.append((Role(role), codec.decode(row.tokens[start:stop]), stop - start))
        start = stop
    return pieces


# --- how it is shown -------------------------------------------------------------------------


def rollouts_html(codec: Codec, rows: Sequence[Rollout], advantages: Advantages) -> str:
    """A fragment: the legend, then group by group each rollout with its outcome, its turns and its tokens.

    advantages: one per row, see `advantages_of`.
    """
    told = [] if advantages is None else ["none" if a is None else f"{a:+.2f}" for a in advantages]
    said = dict(zip(map(id, rows), told, strict=advantages is not None))
    legend = " ".join(f"{_mark(role, role.name.lower())} {escape(meaning)}" for role, meaning in ROLES.items())
    parts = [f"<style>{STYLE}</style>", f"<p>{legend}</p>"]
    for group in by_group(rows).values():
        played = [row for row in group if not row.scout]
        wins, alone = sum(row.success for row in played), len(group) == 1
        fate = "" if alone or advantages is None or informative(group) else DROPPED
        parts.append(f"<h3>{escape(group[0].task_id)}: {wins} of {len(played)} rollouts succeeded{fate}</h3>")
        parts += [_rollout(codec, i, row, said.get(id(row))) for i, row in enumerate(group, start=1)]
    return f'<div class="rollouts">{"".join(parts)}</div>'


def _rollout(codec: Codec, number: int, row: Rollout, advantage: str | None) -> str:
    facts = [
        f"<b>{'✓' if row.success else '✗'} {'scout' if row.scout else 'rollout'} {number}</b>",
        f"stop {escape(row.stop)}",
        f"reward {row.outcome.reward:g}",
        *([f"advantage {advantage}"] if advantage else []),
        *(f"{escape(name.replace('_', ' '))} {value:g}" for name, value in row.outcome.metrics.items()),
        f"{len(row.tokens)} tokens",
    ]
    turns = "".join(f"<li>{escape(turn.tool or 'no tool')}: {escape(turn.status)}</li>" for turn in row.turns)
    tokens = " ".join(_mark(role, f"{role.name.lower()} {n}", text) for role, text, n in segments(codec, row))
    opening = "<details open>" if number == 1 else "<details>"
    shown = f'<ol>{turns}</ol><p class="tokens">{tokens}</p>'
    return f"{opening}<summary>{' · '.join(facts)}</summary>{shown}</details>"


def _mark(role: Role, label: str, text: str = "") -> str:
    return f'<mark class="{role.name.lower()}"><small>{label}</small> {escape(text)}</mark>'


def show_rollouts(codec: Codec, rows: Sequence[Rollout], advantages: Advantages):
    """`rollouts_html` as the output of a notebook cell."""
    from IPython.display import HTML

    return HTML(rollouts_html(codec, rows, advantages))


def save_rollouts(codec: Codec, rows: Sequence[Rollout], advantages: Advantages, path: str | Path, title: str) -> Path:
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
