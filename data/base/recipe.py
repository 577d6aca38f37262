"""The recipe of the embedded base model: a tiny Qwen3 that knows the environment's language.

    python data/base/recipe.py --compile  # about 1.1 s a step on one core; resumes where it was stopped
    python data/base/recipe.py --compile --noted 0 --out data/base_without_notes  # the second base
    python data/base/recipe.py --steps 50 --out build/base

1. A byte-level BPE tokenizer whose lexicon (JSON keys, field names, goals, departments, two-digit
   numbers) makes one token of what is one thing; that of this folder, where there is one.
2. A curriculum: copy exercises; then transcripts of the exploratory policy in throw-away worlds
   (`lfo.envs.phone.explorer`); 60% of them carry notes (what would be answered to the calls on the way; one time in six
   made up; or what was answered in an earlier attempt), followed 85% of the time; whom one would call next, given the
   notes so far, if one had done what they ask for; and world-model examples from the same calls. At first a world lasts
   60 steps and its industries have rules of their trade, as those of the experiments have others, so that taking up
   rules is practised; near the end every step has its own world in which every department of every company has its own
   random rules, and every circumstance its own random effect there, so that few are left. What the departments that
   every trade has usually demand (`lfo.envs.phone.vocabulary.TYPICAL_COMMON`) is the same in all worlds of a trade,
   those of the experiments included, so that it may be.
3. A second, shorter round with more copying at a quarter of the learning rate.

Without notes there is less to learn, and the curriculum is shorter.

Loss on action and CSR tokens only. Writes config.json, model.safetensors, the tokenizer files, recipe.json (settings,
checksums, measurements) and the model card.
"""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from lfo.config import EnvConfig, ModelConfig, RunConfig, derive_seed
from lfo.couplings import Truth
from lfo.envs import make_environment
from lfo.envs.base import ARGS_TAG, written
from lfo.envs.phone import explorer, tools, vocabulary, world
from lfo.envs.phone.callers import play_scripted
from lfo.envs.phone.explorer import FOLLOWED, NOTED, Transcript
from lfo.envs.phone.phrasings import SITUATION_STATUS
from lfo.evaluate import play_tasks, success_rows
from lfo.lab import base_report, pretraining
from lfo.lab.untrained import untrained
from lfo.rollout.play import play
from lfo.text import Codec, load_codec
from lfo.text.codec import as_acted
from lfo.types import Attempt, Turn

HERE = Path(__file__).parent
SEED = 20_000  # worlds of the experiments use seeds below 1,000
MAX_TOKENS = 800  # longer documents are left out
COPY_STEPS, WORLD_STEPS = 1000, 60  # copy exercises alone; as long as a world lasts


@dataclasses.dataclass(frozen=True)
class Curriculum:
    """steps: in all. polish_from: where a second, shorter round begins. free_from: before, a world lasts `WORLD_STEPS`
    and has rules of the trade; then none has."""

    steps: int
    polish_from: int
    free_from: int


WITH_NOTES, WITHOUT = Curriculum(5500, 5000, 4600), Curriculum(4200, 3800, 3400)


def curriculum(noted: float) -> Curriculum:
    return WITH_NOTES if noted else WITHOUT


# --- tokenizer -------------------------------------------------------------------------------


def lexicon() -> list[str]:
    """Strings that are one token each. A key such as `"email": "` is directly followed by its value."""
    glue = [
        '{"departments": [{"name": "',
        '", "phone": "',
        '", "description": "',
        '", "operating_hours": "',
        '"}, {"name": "',
        '"}]}',
        '{"status": "',
        '", "message": "',
        '"unavailable": [',
        '", "auth_info": {',
        '"}}',
        "}}",
        "]}",
        '", ',
        '"}',
        '{"declined": "',
        '{"refused": "',
        '{"error": "',
        "800-555-",
        "-555-",
        "@example.com",
        'search_company<|args|>{"company_name": "',
        'auth_info_form<|args|>{"fields": [',
        f'{tools.PHONE}{ARGS_TAG}{{"phone_number": "',
        " Step ",
        " Directory: ",
        " Previous Actions: ",
        " Collected Auth: ",
        " Unavailable: ",
        " Calls ",
    ]
    words = [
        *(f'"{f}": "' for f in vocabulary.FIELDS),
        *(f'"{f}"' for f in vocabulary.FIELDS),
        *(f" {spoken}" for spoken in vocabulary.FIELDS.values()),
        *tools.TOOLS,
        *vocabulary.DEPARTMENTS,
        *vocabulary.DEPARTMENT_OF_GOAL,
        *(kind.description for kind in vocabulary.DEPARTMENTS.values()),
        *vocabulary.OPERATING_HOURS,
        *vocabulary.NAME_PREFIXES,
        *(f" {s}" for some in vocabulary.NAME_SUFFIXES.values() for s in some),
        *SITUATION_STATUS.values(),
        *(f"{i:02d}" for i in range(100)),
    ]
    return list(dict.fromkeys(glue + words))


WORDS = r" ?[A-Za-z']+|\d|\s+|[^\sA-Za-z\d]+"


# --- documents -------------------------------------------------------------------------------


Segments = list[tuple[str, bool]]  # text, and whether it is trained on


def segments(transcript: Transcript) -> Segments:
    """A whole episode, with what was noted."""
    first, *others = map(acted, transcript.episode.turns)
    told = [(f"<|task|>{transcript.episode.request}<|/task|>", False), *first, (noted(transcript), False)]
    return told + [one for turn in others for one in turn]


def acted(turn: Turn) -> Segments:
    """A turn: trained on are the action, and what CSRs say."""
    heard = [("<|obs|>", False), (turn.observation, turn.tool == tools.PHONE), ("<|/obs|>", False)]
    return [("<|tool|>", False), (f"{written(turn.action)}<|end|>", True), *(heard if turn.observation else ())]


def noted(transcript: Transcript, count: int | None = None) -> str:
    """The first so many notes, which are read once the company was looked up."""
    return "".join(f"<|note|>{note}<|/note|>" for note in transcript.notes[:count])


def intentions(transcript: Transcript) -> list[Segments]:
    """Whom one calls next who has read the first notes, and supposes that it has made these calls."""
    found, episode = [], transcript.episode
    begun = [(f"<|task|>{episode.request}<|/task|>", False), *acted(episode.turns[0])]
    for means in transcript.intentions:
        done = f"{noted(transcript, means.read)}{''.join(map(as_acted, means.supposed))}"
        before = f'{done}<|tool|>{tools.PHONE}{ARGS_TAG}{{"phone_number": "'
        found.append([*begun, (before, False), (transcript.listed[means.department], True)])
    return found


def copy_exercise(codec: Codec, rng: random.Random) -> tuple[list[int], list[int]]:
    """A form answer to be copied into a call, and a directory to look a number up in: without a story."""
    industry = rng.choice(vocabulary.INDUSTRIES)
    fields = vocabulary.canonical(rng.sample(vocabulary.industry_fields(industry), rng.randint(2, 7)))
    values = world.draw_profile(rng, "x", industry).values
    given = {f: values[f] for f in fields if f in values}
    names = rng.sample(list(vocabulary.DEPARTMENTS), rng.randint(2, 4))
    directory = {n: f"800-555-{rng.randrange(10_000):04d}" for n in names}
    target = rng.choice(names)
    listing = "; ".join(f"{n} {p}" for n, p in directory.items())
    call = written(tools.phone_call(directory[target], given))
    return pretraining.tokenised(
        codec,
        [
            (f"<|state|>{listing}.<|/state|><|obs|>{json.dumps({**given, 'unavailable': []})}<|/obs|>", False),
            (f"<|task|>{target}<|/task|><|tool|>", False),
            (f"{call}<|end|>", True),
            (f"<|action|>{directory[target]}<|/action|><|csr|>", False),
            (f"{target}<|/csr|>", True),
        ],
    )


class Documents:
    """An endless, seeded stream of training documents; `draw(step)` is a pure function of the step."""

    def __init__(self, codec: Codec, copy_steps: int, tokens_per_step: int, noted: float = NOTED):
        self.codec, self.copy_steps, self.tokens_per_step, self.noted = codec, copy_steps, tokens_per_step, noted
        self.curriculum = curriculum(noted)
        self.trade: dict[int, world.World] = {}  # the last world with rules of the trade

    def draw(self, step: int) -> list[tuple[list[int], list[int]]]:
        rng = random.Random(f"{SEED}/{step}")
        copying = 1.0 if 0 <= step < self.copy_steps else 0.3 if step >= self.curriculum.polish_from else 0.1
        documents, size = [], 0
        throwaway, others = None, []
        while size < self.tokens_per_step:
            if rng.random() < copying:
                documents.append(copy_exercise(self.codec, rng))
            elif others and rng.random() < (0.6 if 0 <= step < self.curriculum.free_from else 0.5):
                documents.append(others.pop(rng.randrange(len(others))))
            else:
                throwaway = throwaway or self._world(step, rng)
                played, found = self._played(throwaway, rng)
                documents.append(pretraining.tokenised(self.codec, played))
                others += found
            if len(documents[-1][0]) > MAX_TOKENS:
                documents.pop()
                continue
            size += len(documents[-1][0])
        return sorted(documents, key=lambda d: len(d[0]))

    def _world(self, step: int, rng: random.Random) -> world.World:
        """One that lasts, so that the model learns to take up a trade's rules; in the end, and to test, one without."""
        if not 0 <= step < self.curriculum.free_from:
            return explorer.throwaway_world(rng, tasks=24)
        epoch = step // WORLD_STEPS
        if epoch not in self.trade:
            self.trade = {epoch: explorer.trade_world(random.Random(f"{SEED}/world/{epoch}"))}
        return explorer.with_tasks(self.trade[epoch], rng, 24)

    def _played(self, throwaway: world.World, rng: random.Random):
        """A transcript, and what else is learned from it: whom to call next, and what is answered."""
        transcript = explorer.attempt(throwaway, rng.choice(throwaway.tasks), rng, self.noted)
        episode = transcript.episode
        found = [
            pretraining.answered(e.encoded) for e in self.codec.examples("x", episode.request, episode.turns, "phone")
        ]
        found += [pretraining.answered(self.codec.encoded(question, reply)) for question, reply in transcript.answered]
        return segments(transcript), found + [pretraining.tokenised(self.codec, one) for one in intentions(transcript)]


# --- what was made ---------------------------------------------------------------------------


def judge(folder: Path, reads: bool, tasks: int = 64, rollouts: int = 16) -> dict:
    """The bars of the shipped weights on the experiments' world, sampled at temperature 1, nothing trained. reads:
    whether it was taught notes; else copies and calls are counted without any."""
    player = untrained(RunConfig(model=ModelConfig(base=str(folder))))
    real, chosen = player.env.world, player.env.tasks("train")[:tasks]
    groups = [[[Attempt(task, i, derive_seed("base", i))] * rollouts] for i, task in enumerate(chosen)]
    truth = Truth(player.codec)
    plain, noted = (
        play(player.engine, player.codec, groups, coupling, player.config.rollout, 0)
        for coupling in (player.coupling, truth)
    )
    greedy = play_tasks(player.engine, player.codec, truth, player.env.tasks("validation"), player.config.rollout, 1)
    seeded = [(task, i * rollouts + k) for i, task in enumerate(chosen) for k in range(rollouts)]
    episodes = [play_scripted(real, task, "random", seed=seed) for task, seed in seeded]
    counted = plain + noted if reads else plain
    copies, (readable, made) = base_report.copying(counted), base_report.parsing(counted)
    levels = {row["level"]: row["success"] for row in success_rows(greedy, player.env.tasks("validation"))}
    return {
        "rollouts": len(plain),
        "faithful_copies": {kind: faithful / emitted for kind, (faithful, emitted) in copies.items()},
        "copies": {kind: emitted for kind, (_, emitted) in copies.items()},
        "readable_calls": readable / made,
        "calls": made,
        "form_information": base_report.form_information(plain, real),
        "success": sum(r.success for r in plain) / len(plain),
        "success_of_exploratory_policy": sum(e.success for e in episodes) / len(episodes),
        "success_with_truth": sum(r.success for r in noted) / len(noted),
        "greedy_success_with_truth": {str(level): success for level, success in levels.items()},
    }


# Of what a card says: how transcripts carry notes, and how weights were made; of this base, and of one without notes.
KNOWN = ", how notes in the context are followed"
CARRIED = """{noted:.0%} of the transcripts carry notes, followed {followed:.0%} of the time: one in five remembers
earlier attempts, of the others one in five is made up; who is said to say them is drawn at random. Copy exercises; whom
one would call next;"""
NONE_CARRIED = "No transcript carries a note. Copy exercises; whom one would call next;"
MADE = """These weights were not
made by it in one go: they went on (`--begin-with`) from those of commit f96677e, at step 2500; at 4300, when whom one
means to call was asked after what is supposed (commit 75ecfd8); and at 4500 and 4600, when CSRs spoke of every
circumstance, the former in a draft of the wording that was not kept, so that they cannot be made again to the bit; at
last at 4000, from those of commit 94c3660. Those of f96677e had gone on in the same way from the first round's, at
commit f23aab3."""
MADE_WITHOUT = """These weights were
made by it from nothing (`--noted 0`), in fewer steps than the first base's ({first}, which also went on from earlier
weights several times)."""
COUNTED = ", copies and calls counted without notes"
CARD = """# The embedded base model{title}

A causal language model of {parameters:,} parameters in the Qwen3 architecture (4 layers, width 192, {vocabulary}
tokens) that knows the *language* of the phone-call environment, and of its rules none but what departments that every
trade has usually demand, which is the same in all worlds: how tools are called, how numbers and values are copied, how
CSRs and users talk{known}.
It is a stand-in for a pretrained model, so that everything in this repository runs on a laptop CPU. It is of no use for
anything else.

Load it with plain `transformers`: `AutoModelForCausalLM.from_pretrained("data/{name}")`, and the same for
`AutoTokenizer`. Licence: Apache-2.0. No text of any person or third party went into it.

**Training data.** Transcripts of the exploratory policy in throw-away worlds: up to step {free_from} with rules of the
trade that last {world_steps} steps, then worlds in which every department of every company has its own random
requirements and every circumstance its own random effect there, redrawn at every step.
{carried} world-model examples from the same calls.
All phrasings of users, those included that no task has, since what they have in common is language; no held-out
phrasing of CSRs. Loss on action and CSR tokens only.
`data/base/recipe.py` is the recipe ({steps} steps; the curriculum is in its opening lines). {made}
Who has once dialled a wrong number goes on to dial others.

**What was measured** on all levels of world 0, sampled at temperature 1 ({rollouts} rollouts each without notes and
with true ones{counted};
`recipe.json` has the figures, `tests/text/test_base.py` {tested}):

| | measured | {whose} |
|---|---|---|
| field values that are faithful copies | {faithful_copies[values]:.1%} of {copies[values]} | at least 99% |
| phone numbers in the first two calls | {faithful_copies[numbers]:.1%} of {copies[numbers]} | at least 97% |
| phone numbers in later calls | {faithful_copies[later numbers]:.1%} of {copies[later numbers]} | at least 50% |
| tool calls that can be read | {readable_calls:.1%} of {calls} | at least 97% |
| form tells the department: permutation p (size, first field) | {p_size:.2f}, {p_first:.2f} | above 0.01 |
| success without notes | {success:.1%} | as the exploratory policy: {success_of_exploratory_policy:.1%} |
| success with true notes | {success_with_truth:.1%} | at least 60% |

Greedy, untrained, told the truth (100 validation tasks of world 0), by level:

{by_level}

Ten tasks of level 5 in one world say little; [worlds 1 to 5](../../docs/bases.md) say more.

**Limits.** It knows the names of the departments, goals and fields of this environment only, and its tokenizer makes
one token of each; other text falls back to bytes. It was trained on sequences of up to {max_tokens} tokens.
"""


def write_card(folder: Path, model: Qwen3ForCausalLM, noted: float) -> None:
    """recipe.json (settings, checksum, measurements) and the model card made from it."""
    measured = judge(folder, noted > 0)
    way = curriculum(noted)
    settings = {"seed": SEED, "steps": way.steps, "copy_steps": COPY_STEPS, "polish_from": way.polish_from}
    settings["noted"] = noted
    facts = pretraining.write_facts(folder, model, settings, measured)
    information = measured["form_information"]
    said = {"name": folder.name, "max_tokens": MAX_TOKENS, "free_from": way.free_from, "world_steps": WORLD_STEPS}
    if noted:
        carried = CARRIED.format(noted=noted, followed=FOLLOWED)
        said |= {"known": KNOWN, "carried": carried, "made": MADE, "counted": ""}
        said |= {"title": "", "whose": "bar", "tested": "holds the bars"}
    else:
        said |= {"known": "", "carried": NONE_CARRIED, "counted": COUNTED}
        said |= {"title": " that never saw a note", "made": MADE_WITHOUT.format(first=WITH_NOTES.steps)}
        said |= {"whose": "bar of the first base", "tested": "measures a part of it again"}
    levels = measured["greedy_success_with_truth"]
    header = [f"level {level}" if level != "0" else "all levels" for level in levels]
    rows = [header, ["---"] * len(header), [f"{success:.0%}" for success in levels.values()]]
    said["by_level"] = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    said |= {"p_size": information["size"]["p"], "p_first": information["first"]["p"]}
    card = CARD.format(**facts, **measured, **said)
    (folder / "README.md").write_text(card)


def main() -> None:
    parser = pretraining.arguments(__doc__, HERE, WITH_NOTES.steps, WITH_NOTES.polish_from // 2)
    parser.add_argument("--copy-steps", type=int, default=COPY_STEPS, help="first steps, with copy exercises alone")
    parser.add_argument("--noted", type=float, default=NOTED, help="share of transcripts with notes")
    args = parser.parse_args()
    way = curriculum(args.noted)
    args.steps = min(args.steps, way.steps)
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(SEED)
    if not (args.out / "tokenizer.json").exists() and (HERE / "tokenizer.json").exists():
        PreTrainedTokenizerFast.from_pretrained(HERE).save_pretrained(args.out)
    elif not (args.out / "tokenizer.json").exists():
        corpus = []
        for _ in range(40):
            throwaway = explorer.throwaway_world(rng)
            for task in throwaway.tasks:
                read = segments(explorer.attempt(throwaway, task, rng))
                corpus.append("".join(text for text, _ in read))
        pretraining.build_tokenizer(corpus, lexicon(), WORDS).save_pretrained(args.out)
    model = pretraining.build_model(len(PreTrainedTokenizerFast.from_pretrained(args.out)), SEED)
    model.save_pretrained(args.out)
    codec = load_codec(ModelConfig(base=str(args.out)), make_environment(EnvConfig()))
    digits = [codec.encode(f"{i:02d}")[0] for i in range(100)]

    def scores(step: int) -> dict[str, float]:
        """On documents of worlds without rules of a trade; watched are two-digit numbers."""
        return pretraining.accuracy(model, codec, Documents(codec, 0, 6000, args.noted).draw(-step - 1), digits)

    stream = Documents(codec, args.copy_steps, args.tokens, args.noted)
    pretraining.pretrain(
        args, model, codec, pretraining.Schedule(way.steps, way.polish_from, args.lr), stream.draw, scores
    )
    write_card(args.out, model, args.noted)


if __name__ == "__main__":
    main()
