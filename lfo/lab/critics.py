"""What is feedback good for without any training? The untrained base tries again, and reads what each of several wrote.

    python -m lfo.lab.critics --writer models/SmolLM2-135M-Instruct.Q4_1.gguf  # -> results/08_critics

Training with feedback says what becomes of a policy; this asks what a text does for one more attempt, so that a
language model can be asked that never learned to make a call. Who reads is always the embedded base, which was
pretrained on what CSRs say: success is the writer's and the reader's together. So there are controls. What was missing,
once in words like those of the example that a chat model is shown, once in a CSR's, says what this reader makes of a
perfect writer; what a CSR said last needs nobody who writes; and of every other text there is the one on another task.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from lfo.config import load_config
from lfo.couplings import alone
from lfo.envs.phone.phrasings import oxford, parse_reply, requested_fields
from lfo.envs.phone.tools import PHONE
from lfo.envs.phone.vocabulary import FIELDS, canonical
from lfo.evaluate import play_tasks
from lfo.lab.hierarchy import Study, curves_of, lead, middle, number
from lfo.lab.player import Player
from lfo.lab.report import save_table
from lfo.lab.retry import Retry
from lfo.lab.untrained import untrained
from lfo.rollout.engine import complete
from lfo.rollout.play import Row
from lfo.runs import provenance
from lfo.types import Rollout, Task, Turn

RULES, LAST, BASE_WROTE = "rules", "what was said last", "the embedded base"
AS_SHOWN, AS_ASKED = "what was missing, as in the example", "what was missing, as a CSR asks"
OTHER = ", about another task"
MEASURES = ("success", "named", "tokens")
ONE_CALL = (1, 2, 4)  # levels at which one call is enough
SHOWN = 3  # texts of every writer beside the table
Failed = Sequence[tuple[Task, Rollout]]


class Told(Retry):
    """A `Coupling` for another attempt at tasks, which are told these texts (by task_id) and nothing else."""

    def __init__(self, player: Player, texts: Mapping[str, Sequence[str]]):
        super().__init__(alone(player.coupling), {}, notes=False)
        self.texts = texts

    def lessons(self, row: Row) -> Sequence[str]:
        return self.texts[row.attempt.task.task_id]


def critic_rows(writers: Mapping[str, Player], player: Player, tasks: Sequence[Task]) -> list[dict]:
    """One row per task that `player`, told nothing, fails at after it was refused something, and per writer.

    arm (the writer), world, seed, task_id, company_id, level; success: of one more greedy attempt, with the same user
    and CSR, so that whoever is told nothing fails again; named: of the fields that were `missing`, the share that the
    text names; tokens: of the text, with the player's tokenizer; text.

    Raises:
        ValueError: nothing failed so, or more than half of what did is at one company, so that no text is of another.
    """
    config = player.config
    first = play_tasks(player.engine, player.codec, alone(player.coupling), tasks, config.rollout, episodes=1)
    failed = [pair for pair in zip(tasks, first, strict=True) if not pair[1].success and missing(pair[1].turns)]
    others = elsewhere([task.company_id for task, _ in failed])
    texts = {
        RULES: [[one.text for one in player.env.knowledge.feedback(row.turns)] for _, row in failed],
        LAST: [_said(row.turns)[-1:] for _, row in failed],
        **{name: written(writer, failed) for name, writer in writers.items()},
    }
    texts |= {name + OTHER: [said[i] for i in others] for name, said in texts.items()}
    lacking = [oxford([FIELDS[field] for field in canonical(missing(row.turns))]) for _, row in failed]
    texts[AS_SHOWN] = [[f"What was missing: the {fields}. Ask for that first."] for fields in lacking]
    texts[AS_ASKED] = [[f"I need your {fields}."] for fields in lacking]
    return [row for name, said in texts.items() for row in _tried(name, said, failed, player)]


def _tried(name: str, said: Sequence[Sequence[str]], failed: Failed, player: Player) -> list[dict]:
    """The rows of one writer."""
    told = Told(player, {task.task_id: texts for (task, _), texts in zip(failed, said, strict=True)})
    tasks = [task for task, _ in failed]
    again = play_tasks(player.engine, player.codec, told, tasks, player.config.rollout, episodes=1)
    rows, world = [], player.config.env.world_seed
    for (task, row), texts, second in zip(failed, said, again, strict=True):
        text, wanted = " ".join(texts), missing(row.turns)
        facts = {"arm": name, "world": world, "seed": 0, "task_id": task.task_id, "company_id": task.company_id}
        found = {"named": len(named(text) & wanted) / len(wanted), "tokens": len(player.codec.encode(text))}
        rows.append(facts | {"level": task.level, "success": int(second.success)} | found | {"text": text})
    return rows


def written(writer: Player, failed: Failed) -> list[list[str]]:
    """What a model writes about each attempt, greedily, asked as with `feedback.source: model`; [] where it is silent.

    In training a text that does not fit into `feedback.max_tokens` is left out; here none is.
    """
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
    """The fields that any refusal asked for."""
    refused = [turn.observation for turn in turns if turn.tool == PHONE and turn.status == "auth_failed"]
    return frozenset().union(*(requested_fields(parse_reply(said)[1]) for said in refused))


def named(text: str) -> frozenset[str]:
    """The fields that a text names in a CSR's words, or by the name that tools have for them: as ``@name``, or, where
    that has several words, as it is (`last_4_ssn`). Arguments of a call do not count."""
    text = re.sub(r'"\w+":', "", text.lower())
    plain = " ".join(text.replace("_", " ").split())
    return frozenset(
        field
        for field, spoken in FIELDS.items()
        if spoken.lower() in plain or f"@{field}" in text or ("_" in field and field.replace("_", " ") in plain)
    )


def _said(turns: Sequence[Turn]) -> list[str]:
    """What CSRs said, in order."""
    return [parse_reply(turn.observation)[1] for turn in turns if turn.tool == PHONE]


def elsewhere(companies: Sequence[str]) -> list[int]:
    """For each place one at another company; each is taken once. Raises ValueError where that cannot be."""
    most, count = max(Counter(companies).values(), default=0), len(companies)
    if not 0 < 2 * most <= count:
        raise ValueError("too few tasks failed, or too many of them at one company; name more tasks.")
    order = sorted(range(count), key=companies.__getitem__)
    paired = {place: order[(i + most) % count] for i, place in enumerate(order)}
    return [paired[place] for place in range(count)]


def critic_table(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per writer: medians over the worlds, 95% intervals. minus <control>: success beyond `LAST`; one call,
    several: success where one call is enough, and where it is not."""
    study = Study(curves_of(rows, MEASURES))
    one = rows["level"].isin(ONE_CALL)
    by = {name: Study(curves_of(part, MEASURES)) for name, part in (("one call", rows[one]), ("several", rows[~one]))}
    found = []
    for arm in study.arms:
        success, *others = (study.find(number(i), middle(arm), [arm]) for i in range(len(MEASURES)))
        more = study.find(number(0), lead(arm, LAST), [arm, LAST])
        cells = {"success": success.value, "low": success.low, "high": success.high}
        cells |= {f"minus {LAST}": more.value, "more low": more.low, "more high": more.high}
        cells |= {name: part.find(number(0), middle(arm), [arm]).value for name, part in by.items() if arm in part.arms}
        cells |= {name: other.value for name, other in zip(MEASURES[1:], others, strict=True)}
        found.append({"feedback by": arm} | cells | {"worlds": success.runs, "tasks": int((rows["arm"] == arm).sum())})
    return pd.DataFrame(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writer", help="a language model, as `model.base` names one; beside the embedded base")
    parser.add_argument(
        "--dialect", default="configs/chatml_tools.jinja", help="of the writer; `chat`: its own template"
    )
    parser.add_argument("--worlds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--tasks", type=int, default=100, help="of each world, at known companies (validation)")
    parser.add_argument("--out", type=Path, default=Path("results/08_critics"))
    args = parser.parse_args()
    rows, name = [], Path(args.writer or "").name.removesuffix(".gguf")
    for world in args.worlds:
        config = load_config("configs/feedback.yaml", **{"env.world_seed": world})
        player = untrained(config)
        writers = {BASE_WROTE: player}
        if args.writer:
            model = dataclasses.replace(config.model, base=args.writer, dialect=args.dialect)
            writers[name] = untrained(dataclasses.replace(config, model=model), player.env)
        rows += critic_rows(writers, player, player.env.tasks("validation")[: args.tasks])
        print(f"world {world}: {len(rows)} attempts in all", flush=True)
    table = pd.DataFrame(rows)
    texts = {arm: part["text"].iloc[:SHOWN].tolist() for arm, part in table.groupby("arm", sort=False)}
    asked = {"worlds": args.worlds, "tasks": args.tasks, "writer": name, "dialect": args.dialect}
    save_table(critic_table(table), args.out, facts=provenance(config) | asked | {"texts": texts})
    print(json.dumps(texts, indent=1), critic_table(table).to_markdown(index=False), sep="\n")


if __name__ == "__main__":
    main()
