"""A world in a folder with its data card, which is counted from the world itself; the counts are notebook 01's tables.

Knows nothing about how a world is drawn (`lfo.envs.phone.world`).
"""

from __future__ import annotations

from pathlib import Path

from lfo.envs.phone.records import VARIATIONS
from lfo.envs.phone.vocabulary import INDUSTRIES, industry_fields
from lfo.envs.phone.world import LEVELS, SPLITS, World, load_world, save_world
from lfo.types import RecordError

CARD = "README.md"


def save_with_card(world: World, folder: str | Path) -> Path:
    """Write a world with its data card; the same world always gives the same bytes."""
    folder = save_world(world, folder)
    (folder / CARD).write_text(data_card(world), encoding="utf-8", newline="\n")
    return folder


def ensure_saved(world: World, folder: str | Path) -> Path:
    """Save a world with its card unless the folder holds exactly this one already; return the folder."""
    try:
        if load_world(folder) == world and (Path(folder) / CARD).read_text("utf-8") == data_card(world):
            return Path(folder)
    except (RecordError, OSError):
        pass
    return save_with_card(world, folder)


def split_counts(world: World) -> list[dict]:
    """Per split: tasks, tasks by level, companies and users that they name."""
    rows = []
    for split in SPLITS:
        tasks = world.split(split)
        levels = {f"level {n}": sum(t.level == n for t in tasks) for n in LEVELS}
        named = {"companies": len({t.company_id for t in tasks}), "users": len({t.profile_id for t in tasks})}
        rows.append({"split": split, "tasks": len(tasks), **levels, **named})
    return rows


def company_counts(world: World) -> list[dict]:
    """Per industry: companies, companies by variation, departments."""
    variation = {r.company_id: r.variation for r in world.rules.values()}
    rows = []
    for industry in INDUSTRIES:
        ids = [c.company_id for c in world.companies.values() if c.industry == industry]
        kinds = {k: sum(variation[c] == k for c in ids) for k in VARIATIONS}
        departments = sum(len(world.companies[c].departments) for c in ids)
        rows.append({"industry": industry, "companies": len(ids), **kinds, "departments": departments})
    total = {k: sum(r[k] for r in rows) for k in rows[0] if k != "industry"}
    return [*rows, {"industry": "all", **total}]


def overlapping_tasks(world: World) -> int:
    """Validation tasks whose company and goals (in any order) a training task has too."""
    train = {(t.company_id, frozenset(t.goals)) for t in world.split("train")}
    return sum((t.company_id, frozenset(t.goals)) in train for t in world.split("validation"))


def _markdown(rows: list[dict]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(r.values()) for r in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def data_card(world: World) -> str:
    """README.md of a saved world, counted from the world itself."""
    total = company_counts(world)[-1]
    shares = " / ".join(f"{total[k] / total['companies']:.0%}" for k in VARIATIONS)
    complete = sum(len(p.values) == len(industry_fields(p.industry)) for p in world.profiles.values())
    return DATA_CARD.format(
        seed=world.seed,
        companies=len(world.companies),
        rules=len(world.rules),
        effects=sum(map(len, world.effects.values())),
        kinds=len(world.typical.effects[INDUSTRIES[0]]),
        profiles=len(world.profiles),
        complete=complete,
        lacking=len(world.profiles) - complete,
        tasks=len(world.tasks),
        split_table=_markdown(split_counts(world)),
        level_list="\n".join(f"- level {n}: {what}" for n, (what, _) in LEVELS.items()),
        company_table=_markdown(company_counts(world)),
        shares=shares,
        overlap=overlapping_tasks(world),
        validation=len(world.split("validation")),
    )


DATA_CARD = """\
---
license: apache-2.0
language: en
pretty_name: Phone-call world {seed}
tags: [synthetic, agents, tool-use, customer-service]
---

# Phone-call world {seed}

Companies, hidden rules, users and tasks of the customer-service phone-call environment of `lfo` (Learning from
Observation). All of it is drawn by a seeded program: there are no real persons in it, and a name or number that
exists is a coincidence.

## How it was made

`lfo generate --seed {seed} --circumstances {kinds}` (`lfo/envs/phone/world.py`, world seed {seed}). The same
arguments write the same bytes. `checksums.json` holds the SHA-256 of every data file, which are checked when they are
read. Every task was certified by an oracle: with a cooperative user it can be solved, in `optimal_steps` actions.

## Files

| file | rows | holds | the agent |
| --- | --- | --- | --- |
| companies.jsonl | {companies} | name, industry, departments with phone numbers | may look it up |
| tasks.jsonl | {tasks} | split, level, company, user, the request, its goals | reads the request only |
| profiles.jsonl | {profiles} | the values that a user has | sees what the form returns |
| rules.jsonl | {rules} | what every department demands, its alternative, its routing | **never** sees it |
| circumstances.jsonl | {effects} | what circumstances of a request change at every company | **never** sees it |
| typical.json | 1 | the regularities behind the rules, and the seed | **never** sees it |

The hidden files exist for the simulator, the oracle and for measurements. Training on them defeats the purpose.

## Splits

{split_table}

{level_list}

Train and validation tasks share their (known) companies and never a user. Test tasks have companies and users of
their own: success there is success at **new** companies. {overlap} of {validation} validation tasks
ask for the same goals at the same company as some training task, for another user: validation measures what was
learned about known companies, test what carries over. Phrasings that are held out from training are part of the
simulator (`lfo.envs.phone.phrasings.PHRASINGS`).

## Companies

{company_table}

typical: the requirements of `typical.json`. extra: one field more in every department, usually the industry's house
field, and one circumstance that changes something else. different: other fields, other circumstances.
The aim is 70 / 20 / 10; it is rounded within the known and the new half of every industry, which gives {shares}.
Requests speak of {kinds} kinds of circumstances, each in about a third of them.

## Users

{complete} of {profiles} users have every field, {lacking} lack one or several (mostly the card). Whether a user
is cooperative, partial or difficult is drawn once per episode by the simulator and is not part of the data.

## Intended use and limits

For research on agents that learn from what an environment says. Not a model of real call centres: replies follow
templates in English, rules never change, a refusal always names every missing field, and four industries share one
grammar. Values of users are random: telephone numbers use the 555 exchange, addresses end in example.com. Nothing
learned here says how a real company verifies its customers.

Licence: Apache-2.0.
"""
