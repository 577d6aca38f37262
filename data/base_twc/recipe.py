"""The recipe of the embedded base of TextWorld Commonsense: a tiny Qwen3 that speaks this world's language and knows
nothing of where things belong.

    python data/base_twc/recipe.py --begin-with data/base  # resumes; the card needs Java
    python data/base_twc/recipe.py --steps 50 --out build/base_twc

1. A byte-level BPE tokenizer in which a sentence of the game is one token, most words of its names are, and every
   name is cut alike wherever it stands.
2. From data/base, whose layers copy: transcripts of the exploratory user (`lfo.envs.twc.explorer`) in made-up rooms,
   drawn anew for each of them; where it means to put the thing, given the notes so far; world-model examples of the
   same rooms; names to be copied.

Loss on actions that are no slips, on what is answered to a put, and on replies to the world model's questions. Writes
the files that data/base/recipe.py writes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from lfo.config import EnvConfig, ModelConfig, RunConfig, derive_seed
from lfo.couplings import Truth
from lfo.couplings.plain import Answer
from lfo.envs import make_environment
from lfo.envs.base import ARGS_TAG, written
from lfo.envs.twc import explorer
from lfo.envs.twc.episode import OPEN, PUT, SCORE, TAKE, with_numbers
from lfo.envs.twc.explorer import Transcript
from lfo.envs.twc.knowledge import BELONGS, IN, wrong_place
from lfo.envs.twc.tasks import all_tasks
from lfo.evaluate import play_tasks
from lfo.lab import base_report, public_world
from lfo.lab.pretraining import (
    Document,
    Schedule,
    accuracy,
    answered,
    arguments,
    build_model,
    build_tokenizer,
    pretrain,
    tokenised,
    write_facts,
)
from lfo.lab.untrained import untrained
from lfo.protocols import Question
from lfo.rollout.play import play
from lfo.text import Codec, load_codec
from lfo.text.base import load_base
from lfo.text.codec import as_acted
from lfo.types import Attempt

HERE = Path(__file__).parent
SEED = 40_000  # worlds of the experiments use seeds below 1,000
STEPS, COPY_STEPS = 2200, 200  # in all; the first ones, in which nearly half of what is read is names to be copied
SPLITS = ("train", "validation")  # that are looked at; test is left to the experiments
HOW = ("greedy", "sampled")


# --- tokenizer -------------------------------------------------------------------------------


def lexicon() -> list[str]:
    """Strings that are one token each. All that a name follows ends with its blank, so that names begin without one."""
    names = [f'{tool}{ARGS_TAG}{{"{name}": "' for tool, name in ((TAKE, "thing"), (OPEN, "place"), (PUT, "thing"))]
    sights = [f". {sight} {article} " for sight in explorer.SIGHTS for article in ("a", "an")]
    told = [f"{source}: " for source in (*explorer.SAID_BY, explorer.RECALL)]
    return [
        *names,
        '", "place": "',
        *(f"({number}) " for number in range(1, 16)),
        '"}',
        IN,
        *sights,
        explorer.CLOSED,
        explorer.OPEN_TOP,
        "You take the ",
        "You open the ",
        ". It's empty inside.",
        "You put the ",
        " in the ",
        *(f".{said}" for said in SCORE.values() if said),
        explorer.UNCLEAR,
        "The ",
        " belongs in the ",
        *told,
        "Not understood: ",
    ]


WORDS = r" ?[A-Za-z']+|\d|\s+|[^\sA-Za-z\d]+"


# --- documents -------------------------------------------------------------------------------


def segments(transcript: Transcript) -> list[tuple[str, bool]]:
    """(text, whether it is trained on): actions that are no slips, and what is answered to a put."""
    found = [(f"<|task|>{with_numbers(transcript.room.request)}<|/task|>", False)]
    for i, turn in enumerate(transcript.turns):
        if i == 1:
            found += [(noted(transcript), False)]
        found += [("<|tool|>", False), (f"{written(turn.action)}<|end|>", i not in transcript.slips)]
        found += [("<|obs|>", False), (turn.observation, turn.tool == PUT), ("<|/obs|>", False)]
    return found


def noted(transcript: Transcript, count: int | None = None) -> str:
    """The first so many notes, which are read once the thing is in hand."""
    return "".join(f"<|note|>{note}<|/note|>" for note in transcript.notes[:count])


def intentions(transcript: Transcript) -> list[list[tuple[str, bool]]]:
    """Where the thing is put next by who has read the first notes, and supposes that it has done what they say."""
    found, room = [], transcript.room
    begun = f"<|task|>{with_numbers(room.request)}<|/task|>{as_acted(transcript.turns[0])}"
    for read, supposed, place in transcript.intentions:
        opened, _, closed = written(explorer.put(room, place)).rpartition(place)
        before = f"{begun}{noted(transcript, read)}{''.join(map(as_acted, supposed))}<|tool|>{opened}"
        found.append([(before, False), (f"{place}{closed}<|end|>", True)])
    return found


def copy_exercise(codec: Codec, rng: random.Random) -> Document:
    """Names to be copied: without a story."""
    names = [explorer.draw_name(rng) for _ in range(rng.randint(3, 8))]
    listed = names[0] + "".join(f". {rng.choice(explorer.SIGHTS)} a {name}" for name in names[1:])
    return tokenised(codec, [(f"<|obs|>{IN}{listed}<|/obs|><|tool|>", False), (f"{IN}{listed}<|end|>", True)])


class Documents:
    """An endless, seeded stream of training documents; `draw(step)` is a pure function of the step."""

    def __init__(self, codec: Codec, tokens_per_step: int):
        self.codec, self.tokens_per_step = codec, tokens_per_step

    def draw(self, step: int) -> list[Document]:
        rng, documents, size = random.Random(f"{SEED}/{step}"), [], 0
        while size < self.tokens_per_step:
            documents.append(self._drawn(rng, copied=0.4 if 0 <= step < COPY_STEPS else 0.1))
            size += len(documents[-1][0])
        return sorted(documents, key=lambda d: len(d[0]))

    def _drawn(self, rng: random.Random, copied: float) -> Document:
        if rng.random() < copied:
            return copy_exercise(self.codec, rng)
        kind = rng.choices(("played", "means", "predicts"), (6, 2, 2))[0]
        if kind == "predicts":
            room = explorer.draw_room(rng)
            call, reply = explorer.predicted(rng, room)
            return answered(self.codec.encoded(Question(room.request, (), call), reply))
        transcript = explorer.attempt(rng)
        if kind == "means":
            return tokenised(self.codec, rng.choice(intentions(transcript)))
        return tokenised(self.codec, segments(transcript))


# --- what was made ---------------------------------------------------------------------------


class Misled(Truth):
    """Notes by somebody who always names a place of the room where the thing does not belong."""

    def answer(self, question: Question) -> Answer:
        yield from ()
        thing, room = question.call.arguments["thing"], question.request.partition(".")[0].removeprefix(IN)
        task = next(task for task in all_tasks() if (task.thing, task.room) == (thing, room))
        return self.codec.reply(BELONGS.format(thing=thing, place=wrong_place(task)))


def judge(folder: Path, most: int | None = None) -> dict:
    """What the base does untrained, on the first games of each split or on all, greedily and at temperature 1."""
    player = untrained(RunConfig(env=EnvConfig(name="twc", levels=(1, 2)), model=ModelConfig(base=str(folder))))
    couplings = {"nothing": player.coupling, "the truth": Truth(player.codec), "a wrong note": Misled(player.codec)}
    found, everything, told = {}, [], []
    for split in SPLITS:
        tasks = player.env.tasks(split)[:most]
        groups = [[[Attempt(task, i, derive_seed("base", i))]] for i, task in enumerate(tasks)]
        for name, coupling in couplings.items():
            greedy = play_tasks(player.engine, player.codec, coupling, tasks, player.config.rollout, 1)
            sampled = play(player.engine, player.codec, groups, coupling, player.config.rollout, 0)
            rates = [sum(row.success for row in rows) / len(rows) for rows in (greedy, sampled)]
            found[f"{split}, told {name}"] = dict(zip(HOW, rates, strict=True)) | {"games": len(tasks)}
            everything += greedy + sampled
            told += greedy if isinstance(coupling, Misled) else []
    tasks = {task.task_id: task for task in all_tasks()}
    misled = [public_world.first_place(row) == wrong_place(tasks[row.task_id]) for row in told]
    counts = {
        "names": public_world.copied_names(everything),
        "misled": (sum(misled), len(misled)),
        "actions": base_report.parsing(everything),
    }
    return {"success": found, "counts": counts}


CARD = """# The embedded base of the public world

A causal language model of {parameters:,} parameters in the Qwen3 architecture (4 layers, width 192, {vocabulary}
tokens) that speaks the *language* of TextWorld Commonsense as `lfo/envs/twc` renders it, and knows nothing of where
things belong: how things are taken and put, that what is closed is opened first, how names are copied, how a note is
followed. A stand-in for a pretrained model, of no use for anything else.

Load it with plain `transformers`: `AutoModelForCausalLM.from_pretrained("data/base_twc")`, and the same for
`AutoTokenizer`. Licence: Apache-2.0. No text of any person or third party went into it.

**Why a base of its own.** With the tokenizer of `data/base` the game's own solution is an episode of {phone_tokens:.0f}
tokens, with its own of {own_tokens:.0f}, since a sentence of the game is one token and a name is cut alike wherever it
stands. The layers begin as those of `data/base`, which copy.

**Training data.** Transcripts of the exploratory user (`lfo/envs/twc/explorer.py`) in rooms that were never before:
name, furniture, thing and where it belongs are drawn anew for each. Of ten words in their names {made} are made up,
{plain} from a list of {ordinary} ordinary ones, and {game} from the {words} words of the game's names, put together
anew: in no made-up room has anything a name of the game's, and nothing was said of what belongs where.
{noted:.0%} with notes, of those {recalled:.0%} on earlier attempts and {made_up:.0%} of the others wrong; followed
{followed:.0%} of the time, in the note's words. Whoever is told nothing chooses any place by its number, none that is
known to be wrong. Where it means to put the thing; world-model examples; names to be copied. No game was played for it:
a made-up room says what the game would say, which tests compare. `data/base_twc/recipe.py` is the recipe; these weights
are those of step {step} of {steps}, {tokens} tokens a step.

**What was measured** on all games of train and validation, nothing trained, greedy / sampled at temperature 1. A thing
put anywhere is right in {chance}.

{table}

| | |
|---|---|
| names in calls that stand in the request | {names} |
| wrong notes that are followed, greedily | {misled} |
| actions that the game understands (a put into what is closed it does not) | {actions} |

**Limits.** It speaks in the sentences of this one world. It believes every note.
"""


def success_table(success: Mapping) -> str:
    """Rows: what is told; columns: splits."""
    lines = [f"| told | {' | '.join(SPLITS)} |", f"|---{'|---' * len(SPLITS)}|"]
    for name in dict.fromkeys(key.partition(", told ")[2] for key in success):
        cells = [" / ".join(f"{success[f'{split}, told {name}'][how]:.0%}" for how in HOW) for split in SPLITS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_card(folder: Path, step: int, tokens: int) -> None:
    """recipe.json (settings, checksums, measurements) and the model card made from it."""
    model, measured = load_base(folder), judge(folder)
    lengths = public_world.tokens({"own": ModelConfig(base=str(folder)), "phone": ModelConfig()}).set_index("base")
    settings = {"seed": SEED, "step": step, "steps": STEPS, "tokens": tokens}
    facts = write_facts(folder, model, settings, measured)
    said = {name: f"{a / max(b, 1):.1%} of {b}" for name, (a, b) in measured["counts"].items()}
    chance = public_world.world_table().set_index("split")["chance"]
    said |= {"noted": explorer.NOTED, "recalled": explorer.RECALLED, "made_up": explorer.MADE_UP}
    said |= {"followed": explorer.FOLLOWED, "table": success_table(measured["success"])}
    said |= {"chance": " and ".join(f"{chance[split]:.0%} of {split}" for split in SPLITS)}
    said |= {"ordinary": len({*explorer.QUALITIES, *explorer.NOUNS}), "words": len(explorer.GAME_WORDS)}
    said |= {"made": explorer.SYLLABLES, "plain": explorer.ORDINARY, "game": explorer.GAME}
    said |= {f"{name}_tokens": lengths.loc[name, "episode"] for name in ("own", "phone")}
    (folder / "README.md").write_text(CARD.format(**facts, **said))


def main() -> None:
    parser = arguments(__doc__, HERE, STEPS, 0)
    parser.set_defaults(tokens=3000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "tokenizer.json").exists():
        rng = random.Random(SEED)
        texts = ["".join(text for text, _ in segments(explorer.attempt(rng))) for _ in range(6000)]
        build_tokenizer(texts, lexicon(), WORDS, vocab_size=1500).save_pretrained(args.out)
    model = build_model(len(PreTrainedTokenizerFast.from_pretrained(args.out)), SEED)
    model.save_pretrained(args.out)
    codec = load_codec(ModelConfig(base=str(args.out)), make_environment(EnvConfig(name="twc")))
    unseen, stream = Documents(codec, 3000), Documents(codec, args.tokens)
    schedule = Schedule(STEPS, STEPS, args.lr)
    pretrain(args, model, codec, schedule, stream.draw, lambda step: accuracy(model, codec, unseen.draw(-step - 1)))
    write_card(args.out, args.steps, args.tokens)


if __name__ == "__main__":
    main()
