"""Who should write feedback? The untrained base tries again where it failed, and reads what each of several wrote.

    python -m lfo.lab.critics --writer models/SmolLM2-135M-Instruct.Q4_1.gguf  # -> results/08_critics

Training with feedback says what becomes of a policy; this asks what the feedback itself is good for, so that a real
language model can be asked that never learned to make a call. The first attempts, and so what is written about, are the
same for all writers. Two controls cost nothing: what was said last, word for word, and what was written about the
attempt at another task.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from lfo.config import load_config
from lfo.couplings import alone
from lfo.couplings.retry import Retry
from lfo.envs.phone.phrasings import parse_reply, requested_fields
from lfo.envs.phone.tools import PHONE
from lfo.envs.phone.vocabulary import FIELDS
from lfo.evaluate import play_tasks
from lfo.lab.hierarchy import Study, curves_of, lead, middle, number
from lfo.lab.report import save_table
from lfo.lab.untrained import untrained
from lfo.rollout.engine import complete
from lfo.rollout.play import Row
from lfo.runs import provenance
from lfo.train import Player
from lfo.types import Rollout, Task, Turn

RULES, LAST, BASE_WROTE = "rules", "what was said last", "the embedded base"
OTHER = ", about another task"
MEASURES = ("success", "named", "tokens")
SHOWN = 3  # texts of every writer beside the table
Failed = Sequence[tuple[Task, Rollout]]


class Told(Retry):
    """A `Coupling` for another attempt at tasks, which are told these texts (by task_id)."""

    def __init__(self, player: Player, texts: Mapping[str, Sequence[str]]):
        super().__init__(alone(player.coupling), {}, notes=False)
        self.texts = texts

    def lessons(self, row: Row) -> Sequence[str]:
        return self.texts[row.attempt.task.task_id]


def critic_rows(writers: Mapping[str, Player], player: Player, tasks: Sequence[Task]) -> list[dict]:
    """One row per task that `player`, told nothing, fails at for want of a field, and per writer.

    arm (the writer), world, seed, task_id, company_id; success: greedy, at the second attempt, with the same user;
    named: the share of what was missing that the text names; right: the share of what it names that was missing, None
    where it names nothing; tokens: of the text, with the player's tokenizer.
    """
    config = player.config
    first = play_tasks(player.engine, player.codec, alone(player.coupling), tasks, config.rollout, episodes=1)
    failed = [pair for pair in zip(tasks, first, strict=True) if not pair[1].success and missing(pair[1].turns)]
    rules = player.env.knowledge.feedback
    texts = {RULES: [[one.text for one in rules(row.turns)] for _, row in failed]}
    texts[LAST] = [[_said(row.turns)[-1]] for _, row in failed]
    texts |= {name: written(writer, failed) for name, writer in writers.items()}
    others = [_elsewhere(failed, i) for i in range(len(failed))]
    texts |= {name + OTHER: [said[i] for i in others] for name, said in list(texts.items()) if name != LAST}
    return [row for name, said in texts.items() for row in _judged(name, said, failed, player)]


def _judged(name: str, said: Sequence[Sequence[str]], failed: Failed, player: Player) -> list[dict]:
    told = Told(player, {task.task_id: texts for (task, _), texts in zip(failed, said, strict=True)})
    tasks = [task for task, _ in failed]
    again = play_tasks(player.engine, player.codec, told, tasks, player.config.rollout, episodes=1)
    rows, env = [], player.config.env
    for (task, row), texts, second in zip(failed, said, again, strict=True):
        text, wanted = " ".join(texts), missing(row.turns)
        found = named(text)
        facts = {
            "arm": name,
            "world": env.world_seed,
            "seed": 0,
            "task_id": task.task_id,
            "company_id": task.company_id,
        }
        facts |= {"success": int(second.success), "named": len(found & wanted) / len(wanted)}
        right = len(found & wanted) / len(found) if found else None
        rows.append(facts | {"right": right, "tokens": len(player.codec.encode(text)), "text": text})
    return rows


def written(writer: Player, failed: Failed) -> list[list[str]]:
    """What a model writes about each attempt, as in training with `feedback.source: model`; [] where it is silent."""
    scripts = [writer.coupling.written(task.request, row.turns) for task, row in failed]
    said = complete(writer.engine, [next(script)[0] for script in scripts])
    found = []
    for script, completion in zip(scripts, said, strict=True):
        try:
            script.send([completion])
        except StopIteration as end:
            found.append([one.text for one in end.value])
    return found


def missing(turns: Sequence[Turn]) -> frozenset[str]:
    """The fields that CSRs still asked for."""
    refused = [t.observation for t in turns if t.tool == PHONE and t.status == "auth_failed"]
    return frozenset().union(*(requested_fields(parse_reply(said)[1]) for said in refused))


def named(text: str) -> frozenset[str]:
    """The fields that a text names, as people say them or as tools do."""
    plain = " ".join(text.lower().replace("_", " ").split())
    return frozenset(
        f
        for f, spoken in FIELDS.items()
        if spoken.lower() in plain or f"@{f}" in text.lower() or (" " in (key := f.replace("_", " ")) and key in plain)
    )


def _said(turns: Sequence[Turn]) -> list[str]:
    return [parse_reply(turn.observation)[1] for turn in turns if turn.tool == PHONE]


def _elsewhere(failed: Failed, i: int) -> int:
    """The next task at another company, around the list."""
    around = (j % len(failed) for j in range(i + 1, i + len(failed)))
    return next((j for j in around if failed[j][0].company_id != failed[i][0].company_id), i)


def critic_table(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per writer: medians over the worlds, 95% intervals; minus <control>: success beyond `LAST`.

    right: a mean over the texts that name a field, in all worlds.
    """
    study, found = Study(curves_of(rows, MEASURES)), []
    for arm in study.arms:
        success, *others = (study.find(number(i), middle(arm), [arm]) for i in range(len(MEASURES)))
        more, mine = study.find(number(0), lead(arm, LAST), [arm, LAST]), rows[rows["arm"] == arm]
        cells = {"success": success.value, "low": success.low, "high": success.high}
        cells |= {f"minus {LAST}": more.value, "more low": more.low, "more high": more.high}
        cells |= {name: other.value for name, other in zip(MEASURES[1:], others, strict=True)}
        cells |= {"right": mine["right"].mean(), "worlds": success.runs, "tasks": len(mine)}
        found.append({"feedback by": arm} | cells)
    return pd.DataFrame(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writer", help="a language model, as `model.base` names one; beside the embedded base")
    parser.add_argument("--dialect", default="configs/chatml_tools.jinja", help="of the writer")
    parser.add_argument("--worlds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--tasks", type=int, default=100, help="of each world, at known companies (validation)")
    parser.add_argument("--out", type=Path, default=Path("results/08_critics"))
    args = parser.parse_args()
    rows = []
    for world in args.worlds:
        config = load_config("configs/feedback.yaml", **{"env.world_seed": world})
        player = untrained(config)
        writers = {BASE_WROTE: player}
        if args.writer:
            model = dataclasses.replace(config.model, base=args.writer, dialect=args.dialect)
            writers[Path(args.writer).stem] = untrained(dataclasses.replace(config, model=model), player.env)
        rows += critic_rows(writers, player, player.env.tasks("validation")[: args.tasks])
        print(f"world {world}: {len(rows)} attempts in all", flush=True)
    table = pd.DataFrame(rows)
    texts = {arm: part["text"].iloc[:SHOWN].tolist() for arm, part in table.groupby("arm", sort=False)}
    facts = provenance(config) | {"worlds": args.worlds, "writer": Path(args.writer or "").name, "texts": texts}
    save_table(critic_table(table), args.out, facts=facts)
    print(json.dumps(texts, indent=1), critic_table(table).to_markdown(index=False), sep="\n")


if __name__ == "__main__":
    main()
