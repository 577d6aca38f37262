"""The recipe of the base that reads: on from the embedded base, with calls that are asked about after similar ones.

    python data/base_reading/recipe.py  # about 1.5 s a step on one core; resumes
    python data/base_reading/recipe.py --steps 50 --out build/base_reading

In throw-away worlds tasks are heard; then the calls of others are asked about, each after the replies to the calls
most like it (`lfo.couplings.memory.Nearest`, as in a run with `world_model.reads`; other than there, where scouts are
never served, calls after somebody has served are heard, too). What can be learned is to take from these what belongs
to this call: whose rule is whose, and what which circumstance demands. None of the worlds lasts, and some have rules
of no trade, so that few stay in the weights; the others are drawn as those of the experiments are, and share with them
what the departments that every trade has usually demand (`TYPICAL_COMMON`), which does stay. The replies that
are read are learned as well, each from those before it: nine replies where there would be one. Copying what was said
of a circumstance is learned first, where there are few companies, no two of a trade, and few calls to read
(`FEW_UNTIL`). Most words of a reply are there by chance, and hide what is to be learned: up to `ALL_FROM` only names
of fields, departments and statuses count, and some of the others; but what is chosen by what comes next gets too
likely, so that from there on all words count. Beside it what the embedded base learned last, so that little is lost.

Writes what data/base/recipe.py writes.
"""

from __future__ import annotations

import itertools
import json
import random
import runpy
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

from transformers import PreTrainedTokenizerFast

from lfo.config import EnvConfig, ModelConfig
from lfo.couplings.memory import Nearest, make_teller
from lfo.envs import make_environment
from lfo.envs.phone import explorer, vocabulary
from lfo.envs.phone.knowledge import PhoneKnowledge, looked_up
from lfo.envs.phone.phrasings import SITUATION_STATUS
from lfo.lab import pretraining
from lfo.lab.dials import as_example, heard_calls, right
from lfo.lab.learned import learned_rows
from lfo.lab.pretraining import Document
from lfo.text import Codec, load_codec
from lfo.text.base import load_base
from lfo.types import Example

HERE = Path(__file__).parent
SEED = 40_000  # worlds of the experiments use seeds below 1,000
# In all; up to when few calls are read, in small worlds; from when every word counts, and the learning rate falls.
STEPS, FEW_UNTIL, ALL_FROM = 2400, 600, 1600
READING = 0.6  # of the tokens; the others are those of the first recipe
SOME = 0.3  # of the words that are no names count before
WORLD_STEPS, ASKED = 3, 12  # as long as a world lasts; the tasks of it that are asked about
COMPANIES, HEARD, READ = (8, 12, 16, 24, 48), (20, 40, 80, 120), (8, 8, 8, 8, 6, 4, 2, 1)  # one of each is drawn
FEW_COMPANIES, FEW_HEARD, FEW_READ = (2, 3, 4), (48,), (1, 2, 3, 4)  # up to FEW_UNTIL
ROWS = 6  # documents at a time: they are long


def first_recipe() -> SimpleNamespace:
    """data/base/recipe.py, whose last documents are shown again, and which measures what both bases do."""
    return SimpleNamespace(**runpy.run_path(str(HERE.parent / "base" / "recipe.py")))


def drawn_calls(rng: random.Random, few: bool) -> tuple[Nearest, list[Example]]:
    """Who heard the calls of some tasks in a throw-away world, and the calls of others there; all with empty hands.
    few: at few companies, each of which has its own rules."""
    companies, tasks = rng.choice(FEW_COMPANIES if few else COMPANIES), rng.choice(FEW_HEARD if few else HEARD)
    free, reasons = few or rng.random() < 0.25, rng.random() < 0.7
    drawn = explorer.throwaway_world(rng, companies, 1) if free else explorer.trade_world(rng, companies)
    drawn = explorer.with_tasks(drawn, rng, tasks + ASKED)
    knowledge = PhoneKnowledge(drawn, reasons=reasons)
    ways = [knowledge.way(t.request, looked_up(drawn, t.company_id), t.task_id) for t in drawn.tasks]
    calls = [[as_example(step) for step in way] for way in ways]
    library = Nearest(knowledge, max(READ))
    library.hear(knowledge.general([call for way in calls[ASKED:] for call in way]))
    return library, [call for way in calls[:ASKED] for call in way]


def reading(codec: Codec, library: Nearest, asked: Example, count: int) -> Document:
    """A question after so many similar calls, the most similar last, with its answer; all replies are trained on."""
    ids: list[int] = []
    mask: list[int] = []
    for one in library.similar(asked.question)[:count][::-1]:
        note, said = codec.encode(f"<|note|>memory: {one.request} {one.reply}<|/note|>"), len(codec.encode(one.reply))
        ids += note
        mask += [0] * (len(note) - said - 1) + [1] * (said + 1)
    question, reply = codec.question(asked.question), codec.reply(asked.reply)
    return [*ids, *question, *reply], [*mask, *[0] * len(question), *[1] * len(reply)]


def names(codec: Codec) -> set[int]:
    """Tokens that decide what a reply means: of fields as they are spoken, departments and statuses the first, and all
    of "your" and "nothing", one of which comes where it is said what something demands."""
    spoken = [f" {field}" for field in vocabulary.FIELDS.values()]
    firsts = {codec.encode(text)[0] for text in (*spoken, *vocabulary.DEPARTMENTS, *SITUATION_STATUS.values())}
    return {*firsts, *codec.encode(" your"), *codec.encode(" nothing")}


def focused(document: Document, kept: set[int], rng: random.Random) -> Document:
    """Trained on are these tokens alone, and some of the others."""
    ids, mask = document
    return ids, [m * (i in kept or rng.random() < SOME) for i, m in zip(ids, mask, strict=True)]


def answer_alone(codec: Codec, document: Document) -> Document:
    """Trained on is the answer alone."""
    ids, mask = document
    last = len(ids) - ids[::-1].index(codec.encode("<|csr|>")[0])
    return ids, [0] * last + mask[last:]


class Documents:
    """An endless, seeded stream of training documents; `draw(step)` is a pure function of the step."""

    def __init__(self, codec: Codec, tokens_per_step: int):
        self.codec, self.names, self.tokens = codec, names(codec), int(READING * tokens_per_step)
        first = first_recipe()
        self.first = first.Documents(codec, 0, tokens_per_step - self.tokens)
        self.last = first.WITH_NOTES.steps  # from where on the first recipe would have gone on
        self.heard: dict[int, tuple[Nearest, list[Example]]] = {}  # the last world

    def draw(self, step: int) -> list[Document]:
        rng, epoch, few = random.Random(f"{SEED}/{step}"), step // WORLD_STEPS, step < FEW_UNTIL
        if epoch not in self.heard:
            self.heard = {epoch: drawn_calls(random.Random(f"{SEED}/world/{epoch}"), few)}
        library, calls = self.heard[epoch]
        documents, size = self.first.draw(self.last + step), 0
        while size < self.tokens:
            read = reading(self.codec, library, rng.choice(calls), rng.choice(FEW_READ if few else READ))
            documents.append(read if step >= ALL_FROM else focused(read, self.names, rng))
            size += len(read[0])
        return sorted(documents, key=lambda d: len(d[0]))


def unseen(codec: Codec, worlds: int = 2) -> list[Document]:
    """Answers in worlds that are never trained on."""
    found = []
    for rng in (random.Random(f"{SEED}/unseen/{k}") for k in range(worlds)):
        library, calls = drawn_calls(rng, few=False)
        found += [answer_alone(codec, reading(codec, library, call, max(READ))) for call in calls]
    return sorted(found, key=lambda d: len(d[0]))


# --- what was made ---------------------------------------------------------------------------

WORLDS, CALLS, KINDS = (100, 101, 102), 320, 4  # those for tuning; the calls that are heard; kinds of circumstances


def known(folder: Path) -> dict[str, dict[str, float]]:
    """Share of the replies to calls on the ways of held-out tasks that are right in meaning, by who answers and split,
    over the tuning worlds; nothing is learned there."""
    found: dict[str, list[dict]] = {}
    readers = {"this base": folder, "the embedded base": HERE.parent / "base"}
    for (name, base), reads in itertools.product(readers.items(), (0, max(READ))):
        settings = {"model.base": str(base), "world_model.updates": 0, "world_model.anonymise": 0}
        settings["world_model.reads"] = reads
        rows = learned_rows([KINDS], WORLDS, [CALLS], replies=["reasons"], **settings)
        found[f"{name}, {reads or 'no'} calls read"] = rows
    recalls = ("backoff", "additive", "grammar")
    who = [(max(READ), "nearest"), *itertools.product((max(READ), 0), recalls)]  # of all calls the nearest is the same
    for (reads, recall), world in itertools.product(who, WORLDS):
        env = make_environment(EnvConfig(world_seed=world, circumstances=KINDS, replies="reasons"))
        teller = make_teller(recall, env.knowledge, reads)
        teller.hear(env.knowledge.general(heard_calls(env, CALLS, world)))
        rows = [{"split": split} | right(env, teller.answer, split) for split in ("validation", "test")]
        found.setdefault(f"`{recall}`, of {f'the same {reads}' if reads else f'all {CALLS}'}", []).extend(rows)
    return {name: _shares(rows) for name, rows in found.items()}


def _shares(rows: list[dict]) -> dict[str, float]:
    """Right answers among all, by split; rows: with their number `n` and share."""
    counts: dict[str, Counter] = defaultdict(Counter)
    for row in rows:
        counts[row["split"]] += Counter(right=round(row["right"] * row["n"]), n=row["n"])
    return {split: count["right"] / count["n"] for split, count in counts.items()}


CARD = """# The embedded base that reads

A causal language model of {parameters:,} parameters, tokenizer and shape those of the [embedded
base](../base/README.md), from whose weights it went on: asked what is answered to a call, it makes something of
similar calls that were read to it with their replies (`world_model.reads`), as larger models are known to
without being taught (arXiv 2005.14165). It is of no use for anything else.

Load it with plain `transformers`: `AutoModelForCausalLM.from_pretrained("data/base_reading")`, and the same for
`AutoTokenizer`. Licence: Apache-2.0. No text of any person or third party went into it.

**Training data.** {reading:.0%} of the tokens: calls in throw-away worlds that last {world_steps} steps, each after
up to {most} calls like it, of other tasks; all replies are trained on. Up to step {few_until} there are few
companies, no two of a trade, and up to four calls are read; then a quarter of the worlds has no trades, and the
others are drawn as those of the experiments are, from the same names and with the same share of exceptions: it knows
what rules are like, and of theirs what departments that every trade has usually demand, which is the same
everywhere. In three of ten worlds CSRs only list what they want. Up to step {all_from}
names of fields, departments and statuses count there, and {some:.0%} of the other words; from there on, all. The
other tokens: what the embedded base would have read next. All phrasings of users, no held-out phrasing of CSRs.
`data/base_reading/recipe.py` is the recipe ({steps} steps of {tokens} tokens); these weights were made by it, from
those of `data/base`.

**What was measured**, nothing trained. Replies to calls on the ways of held-out tasks that are right in meaning,
worlds {first} to {last} (those for tuning), {kinds} circumstances, with reasons, when {calls} calls on the ways of
training tasks had been heard; those after somebody has served as well, which a run's scouts do not hear. Beside it
what others make of the same calls, and of all: `nearest` takes the reply to the nearest, `backoff` looks up,
`additive` is a classifier that is told what fields and circumstances are, `grammar` is told how everything is said
as well:

| | known companies | new companies |
|---|---|---|
{answers}

And what the [embedded base](../base/README.md) is measured by, in world 0 ({rollouts} rollouts each without notes
and with true ones), beside that. A policy begins a little worse with this one (levels 4 and 5 have ten tasks each):

| | this base | the embedded base |
|---|---|---|
{acting}

**Limits.** Those of the embedded base, but that a question with {most} calls before it has some 700 tokens, up to
about 1,000. It reads no more than {most} calls, and such as it was taught.
"""


def write_card(folder: Path, told: Mapping) -> None:
    """recipe.json (settings, checksums, measurements) and the model card made from it. told: to this script."""
    measured = first_recipe().judge(folder, True) | {"known": known(folder)}
    settings = {"seed": SEED, **told, "few_until": FEW_UNTIL, "all_from": ALL_FROM, "reading": READING, "some": SOME}
    settings |= {"world_steps": WORLD_STEPS, "companies": COMPANIES, "heard": HEARD, "read": READ, "rows": ROWS}
    facts = pretraining.write_facts(folder, load_base(folder), settings, measured)
    first = json.loads((HERE.parent / "base" / "recipe.json").read_text())["measured"]
    answers = [f"| {name} | {of['validation']:.0%} | {of['test']:.0%} |" for name, of in measured["known"].items()]
    said = {"answers": "\n".join(answers), "acting": _acting(measured, first), "calls": CALLS, "kinds": KINDS}
    said |= {"first": WORLDS[0], "last": WORLDS[-1], "most": max(READ), "rollouts": measured["rollouts"]}
    (folder / "README.md").write_text(CARD.format(**facts, **said))


def _acting(mine: Mapping, first: Mapping) -> str:
    """Rows of a table: what both bases do that act."""
    shown: dict[str, Callable[[Mapping], float]] = {
        "field values that are faithful copies": lambda m: m["faithful_copies"]["values"],
        "phone numbers in the first two calls": lambda m: m["faithful_copies"]["numbers"],
        "phone numbers in later calls": lambda m: m["faithful_copies"]["later numbers"],
        "tool calls that can be read": lambda m: m["readable_calls"],
        "success without notes": lambda m: m["success"],
        "success with true notes": lambda m: m["success_with_truth"],
    }
    for level in first["greedy_success_with_truth"]:
        name = f"of these, level {level}" if level != "0" else "the same, greedy, 100 validation tasks"
        shown[name] = lambda m, level=level: m["greedy_success_with_truth"][level]
    return "\n".join(f"| {name} | {of(mine):.1%} | {of(first):.1%} |" for name, of in shown.items())


def main() -> None:
    parser = pretraining.arguments(__doc__, HERE, STEPS, 0)
    parser.set_defaults(tokens=5000, lr=1.5e-3, begin_with=HERE.parent / "base")
    args = parser.parse_args()
    args.steps = min(args.steps, STEPS)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(HERE.parent / "base" / name, args.out)
    model = pretraining.build_model(len(PreTrainedTokenizerFast.from_pretrained(args.out)), SEED)
    model.save_pretrained(args.out)
    codec = load_codec(ModelConfig(base=str(args.out)), make_environment(EnvConfig()))
    kept, held = sorted(names(codec)), unseen(codec)

    def scores(step: int) -> dict[str, float]:
        """Of answers in worlds without training; watched are names."""
        return pretraining.accuracy(model, codec, held, kept)

    schedule = pretraining.Schedule(STEPS, STEPS, args.lr)
    pretraining.pretrain(args, model, codec, schedule, Documents(codec, args.tokens).draw, scores, ROWS)
    write_card(
        args.out, {"steps": args.steps, "tokens": args.tokens, "lr": args.lr, "begun_with": args.begin_with.name}
    )


if __name__ == "__main__":
    main()
