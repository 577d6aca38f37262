"""Measurements that change nothing: success by level, and what the world model knows.

Success is binary. World-model accuracy is measured twice: on the replies that the evaluated rollouts really got, by
category, and by the environment's own examination (`Knowledge.examine`), which asks about what is hidden.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from lfo import distributed
from lfo.config import RolloutConfig, RunConfig, derive_seed, evaluation_seed
from lfo.couplings import alone
from lfo.couplings.imagine import ballot
from lfo.couplings.memory import usual
from lfo.couplings.noted import as_read
from lfo.proportions import wilson
from lfo.protocols import Coupling, Engine, Question
from lfo.rollout.engine import complete
from lfo.rollout.play import play
from lfo.text.codec import Codec
from lfo.types import Attempt, Example, Role, Rollout, Task, grouped

JUDGED = 200  # replies of one evaluation, at most, that the world model's predictions are held against
SHOWN = 5  # predictions beside the truth, and episodes, of one evaluation


def play_tasks(
    engine: Engine,
    codec: Codec,
    coupling: Coupling,
    tasks: Sequence[Task],
    rollout: RolloutConfig,
    episodes: int,
    seed: int = 0,
    predict: str | None = None,
) -> list[Rollout]:
    """Greedy episodes of every task. Each (task, episode) has the same user and CSR for every policy."""
    greedy = dataclasses.replace(rollout, temperature=0.0)
    groups = [
        [[Attempt(task, i * episodes + k, evaluation_seed(task.task_id, k))]]
        for i, task in enumerate(tasks)
        for k in range(episodes)
    ]
    return play(engine, codec, groups, coupling, greedy, seed, predict)


def success_rows(rows: Sequence[Rollout], tasks: Sequence[Task]) -> list[dict]:
    """Success with Wilson intervals by level, and over all levels as level 0."""
    level = {t.task_id: t.level for t in tasks}
    return by_level([(level[row.task_id], row.success) for row in rows])


def by_level(outcomes: Sequence[tuple[int, bool]]) -> list[dict]:
    """Success with its Wilson interval, a row for all of the (level, success), as level 0, and one for each level."""
    counts, out = grouped(pair for level, success in outcomes for pair in ((0, success), (level, success))), []
    for lvl, results in sorted(counts.items()):
        low, high = wilson(sum(results), len(results))
        out.append({"level": lvl, "success": sum(results) / len(results), "low": low, "high": high, "n": len(results)})
    return out


def behaviour(rows: Sequence[Rollout]) -> dict[str, float]:
    """Means of the environment's own metrics over episodes, the share of malformed actions, tokens per episode."""
    statuses = [turn.status for row in rows for turn in row.turns]
    return {
        **means([row.outcome.metrics for row in rows]),
        "malformed": statuses.count("error") / max(1, len(statuses)),
        "tokens_per_task": sum(len(row.tokens) for row in rows) / max(1, len(rows)),
    }


def means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of every number over the rows that have it."""
    values = grouped(pair for row in rows for pair in row.items())
    return {name: sum(v) / len(v) for name, v in values.items()}


# --- the world model -------------------------------------------------------------------------


def predict_replies(engine: Engine, codec: Codec, questions: Sequence[Sequence[int]], coupling: Coupling) -> list[str]:
    """What its world models answer to questions (token ids), as text: where several replies vote, what most mean."""
    mine = distributed.share(len(questions))
    asked = [ballot(questions[i], coupling.layout.listeners, codec.reply_end_id, coupling.votes) for i in mine]
    said = iter(complete(engine, [prompt for prompts in asked for prompt in prompts]))
    texts = [[codec.reply_text(next(said).tokens) for _ in prompts] for prompts in asked]
    return distributed.join(mine, [usual(replies, codec.env.knowledge) for replies in texts])


def inspect_replies(engine: Engine, codec: Codec, examples: Sequence[Example], coupling: Coupling) -> list[dict]:
    """Prediction beside reality, one row per example.

    category: the true status. call: what was answered. right: the prediction means what the reply means
    (`Knowledge.meaning`); wording does not count.
    """
    knowledge = codec.env.knowledge
    texts = predict_replies(engine, codec, [as_read(e, codec, coupling).prompt for e in examples], coupling)
    return [
        {
            "task_id": example.task_id,
            "category": example.status,
            "call": example.call,
            "said": example.reply,
            "predicted": text,
            "right": knowledge.meaning(text) == knowledge.meaning(example.reply),
        }
        for example, text in zip(examples, texts, strict=True)
    ]


def reply_rows(engine: Engine, codec: Codec, examples: Sequence[Example], coupling: Coupling) -> list[dict]:
    """Share of predictions that mean what was really replied, by true category; and some of them beside the truth."""
    inspected = inspect_replies(engine, codec, examples, coupling)
    hits = grouped((row["category"], row["right"]) for row in inspected)
    shares = [{"category": category, "accuracy": sum(h) / len(h), "n": len(h)} for category, h in sorted(hits.items())]
    shown = [{name: row[name] for name in ("task_id", "said", "predicted", "right")} for row in inspected]
    return [{"kind": "reply", **row} for row in shares] + [{"kind": "prediction", **row} for row in spread(shown)]


def spread(rows: Sequence) -> Sequence:
    """At most `SHOWN` of them, from the first on, as far apart as they go."""
    return rows[:: max(1, len(rows) // SHOWN)][:SHOWN]


def outcome_rows(played: Sequence[Rollout], tasks: Sequence[Task], kind: str, each: str) -> list[dict]:
    """Success by level, and a digit `each` episode, task by task in data order: rows of these kinds."""
    rows = [{"kind": kind, **row} for row in success_rows(played, tasks)]
    return [*rows, {"kind": each, "successes": "".join(str(int(row.success)) for row in played)}]


def trajectory(codec: Codec, row: Rollout) -> dict:
    """An episode as it was read and said, notes included."""
    facts = {"task_id": row.task_id, "success": row.success, "stop": str(row.stop)}
    return {"kind": "trajectory", **facts, "text": codec.decode(row.tokens)}


def examine(engine: Engine, codec: Codec, coupling: Coupling, split: str, most: int | None = None) -> dict[str, float]:
    """What the world model, or a memory, knows of what a split hides, as the environment asks it.

    most: the split's first tasks that it is asked about; all of them if None.
    """
    return codec.env.knowledge.examine(lambda asked: answers(engine, codec, coupling, asked), split, most)


def answers(engine: Engine, codec: Codec, coupling: Coupling, asked: Sequence[Question]) -> list[str]:
    """What the world model, or a memory, says would be answered."""
    if coupling.recall:
        return coupling.recall(asked)
    return predict_replies(engine, codec, [codec.question(coupling.informed(one)) for one in asked], coupling)


# --- a whole evaluation ----------------------------------------------------------------------


def evaluation_rows(
    engine: Engine, codec: Codec, coupling: Coupling, config: RunConfig, learned: Sequence[Example] = ()
) -> list[dict]:
    """Success on `eval_splits` (validation: known companies, test: new ones), and what the world model knows.

    outcomes, unaided_outcomes: 1 or 0 for every episode, task by task in data order, for whoever resamples them.
    learned: what it was trained on; the predictions of some of that are held beside those of what it never saw.
    A memory is examined like a world model.
    """
    c, w, out = config, config.world_model, []
    predicts = coupling.predicts and coupling.layout.listener
    if predicts and learned:
        sample = random.Random(derive_seed(c.seed, "learned")).sample(learned, min(JUDGED, len(learned)))
        name = "learned" if "train" in c.eval_splits else "train"
        out += [{"split": name, **row} for row in reply_rows(engine, codec, sample, coupling)]
    for split in c.eval_splits:
        tasks, seed = codec.env.tasks(split)[: c.eval_tasks], derive_seed(c.seed, split)
        played = play_tasks(engine, codec, coupling, tasks, c.rollout, c.eval_episodes, seed, w and w.predict)
        rows = outcome_rows(played, tasks, "success", "outcomes")
        rows.append({"kind": "behaviour", **behaviour(played)})
        if c.policy.learning_rate and any(Role.NOTE in row.roles for row in played):  # does it learn, or only follow?
            unaided = play_tasks(engine, codec, alone(coupling), tasks, c.rollout, c.eval_episodes, seed)
            rows += outcome_rows(unaided, tasks, "unaided", "unaided_outcomes")
        if predicts:
            rows += reply_rows(engine, codec, [e for row in played for e in row.examples][:JUDGED], coupling)
        if predicts or coupling.recall:
            rows.append({"kind": "rules", **examine(engine, codec, coupling, split, c.eval_tasks)})
        if c.tracker:
            rows += [trajectory(codec, row) for row in spread(played)]
        out += [{"split": split, **row} for row in rows]
    return out
