"""The recipe of the embedded shell base: a tiny Qwen3 that knows bash a little and none of the house conventions.

    python data/base_shell/recipe.py --begin-with data/base  # resumes where it was stopped
    python data/base_shell/recipe.py --batches 30 --steps 50 --out build/base_shell

1. Transcripts of the exploratory user (`lfo.envs.shell.explorer`) on throw-away trees, played in the sandbox once
   and kept in transcripts/ beside the model: what commands do, and attempts at tasks of the skills. Attempts take one
   of what seems to fit, which is right in a third of the cases.
2. A byte-level BPE tokenizer in which what is to be copied is cut alike wherever it stands: a blank belongs to
   the words of instructions and to nothing else.
3. From data/base, whose layers copy: the transcripts; tasks of house tools on machines of their own, which want
   anything at random, with notes in 60% of them; what the user means to run next; world-model examples of both.

Loss on action tokens, on what house tools say and on replies to the world model's questions. Writes the files that
data/base/recipe.py writes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from lfo.config import EnvConfig, ModelConfig, RunConfig, derive_seed
from lfo.couplings import Truth
from lfo.envs import make_environment
from lfo.envs.base import ARGS_TAG, written
from lfo.envs.shell import explorer, machines
from lfo.envs.shell.episode import BASH, EMPTY, FINISH, SAID, observed
from lfo.envs.shell.knowledge import ShellKnowledge
from lfo.envs.shell.sandbox import Ran, Sandbox
from lfo.envs.shell.templates import SKILLS
from lfo.envs.shell.trees import Tree
from lfo.evaluate import play_tasks
from lfo.lab import base_report, pretraining, shell_report
from lfo.lab.untrained import untrained
from lfo.protocols import Question
from lfo.rollout.play import play
from lfo.text import Codec, load_codec
from lfo.text.base import load_base
from lfo.text.codec import as_acted
from lfo.types import Attempt, Call

HERE = Path(__file__).parent
SEED = 30_000  # worlds of the experiments use seeds below 1,000
BATCHES, EACH = 700, 16  # transcripts that are played: so many times so many
LESSONS = 0.4  # share of them that show what a command does
UNSEEN = 20  # batches, the last ones, on which training is watched
MAX_TOKENS = 640  # longer documents are left out
STEPS = 4000
OPENED = f'{BASH}{ARGS_TAG}{{"command": "'


# --- tokenizer -------------------------------------------------------------------------------


def lexicon() -> list[str]:
    """Strings that are one token each. What JSON escapes must not run into the word after it."""
    return [
        OPENED,
        '"}',
        f"{FINISH}{ARGS_TAG}{{}}",
        EMPTY,
        SAID,
        "\\n",
        '\\"',
        "\\\\",
        " > ",
        " | ",
        " < ",
        "LC_ALL=C ",
        "/people.csv",
        "/crontab.txt",
        "/ps.txt",
        "/logs/",
        "/notes/",
        "/conf/",
        "/lists/",
        "/bin/",
        ".log",
        ".txt",
        ".conf",
        ".csv",
        "2031-03-",
        ": refused. Missing: a file",
        ": this cannot be done without a file",
        ": locked until tomorrow, after a refused call.",
        ": done with ",
        "bash: line 1: ",
        ": command not found",
        ": No such file or directory",
        " Round ",
        " Previous Actions: ",
        " failed: ",
    ]


def spoken() -> list[str]:
    """The words of instructions, those from trees left out: what two trees' instructions have in common."""
    rng = random.Random(SEED)
    one, other = ([skill(Tree(rng, explorer.throwaway_words(rng))) for skill in SKILLS] for _ in range(2))
    said = [text for drafts in zip(one, other, strict=True) for text in _in_common(*drafts)]
    said += [re.sub(r"\{\w+\}", "", text) for text, _ in explorer.LESSONS]
    said += [
        *machines.KINDS,
        *machines.COMMON.values(),
        *(deed for own in machines.KINDS.values() for deed in own.values()),
    ]
    return sorted({word for text in said for word in re.findall(r"[A-Za-z]+", text.replace("{file}", ""))})


def _in_common(drafts: list, others: list) -> list[str]:
    known = zip(drafts[: explorer.SEEN], others[: explorer.SEEN], strict=True)
    return [" ".join(set(a.said[0].split()) & set(b.said[0].split())) for a, b in known]


def words() -> str:
    """What no token goes beyond, as a regular expression."""
    return rf" (?:{'|'.join(spoken())})\b|[A-Za-z]+|\d|\s|[^\sA-Za-z\d]+"


# --- transcripts -----------------------------------------------------------------------------


def play_transcripts(folder: Path, batches: int) -> None:
    """Play, in one sandbox, what is not in the folder yet: a file a batch."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [number for number in range(batches) if not (folder / f"{number:05d}.jsonl").exists()]
    with Sandbox() as box:
        for number in missing:
            rng = random.Random(f"{SEED}/plans/{number}")
            plans = [explorer.lesson(rng) if rng.random() < LESSONS else explorer.attempt(rng) for _ in range(EACH)]
            text = "".join(f"{explorer.play(box, plan).record()}\n" for plan in plans)
            (folder / f"{number:05d}.jsonl").write_text(text)


def read_transcripts(folder: Path) -> list[explorer.Transcript]:
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines())
    return [explorer.read_transcript(line) for line in lines]


def opening(transcript: explorer.Transcript, notes: int | None = None) -> str:
    """What is read before the first action, with the first so many notes."""
    told = "".join(f"<|note|>{note}<|/note|>" for note in transcript.notes[:notes])
    return f"<|task|>{transcript.request}<|/task|>{told}"


def segments(transcript: explorer.Transcript) -> list[tuple[str, bool]]:
    """(text, whether it is trained on): actions, and what house tools say."""
    house, found = isinstance(transcript, explorer.HouseTranscript), [(opening(transcript), False)]
    for turn in transcript.turns:
        found += [("<|tool|>", False), (f"{written(turn.action)}<|end|>", True)]
        if turn.observation:
            found += [("<|obs|>", False), (turn.observation, house), ("<|/obs|>", False)]
    return found


def intentions(transcript: explorer.HouseTranscript, knowledge: ShellKnowledge) -> list[list[tuple[str, bool]]]:
    """What is run next by who has read the first notes, and supposes that it has done what they ask for."""
    turns, found = (), []
    for read, tool in enumerate([*transcript.order, transcript.order[0]]):
        before = f"{opening(transcript, read)}{''.join(map(as_acted, turns))}<|tool|>{OPENED}"
        found.append([(before, False), (f"{tool} ", True)])
        turns = knowledge.supposed(turns, Call(BASH, {"command": tool}), "")
        if read >= len(transcript.notes):
            break
    return found


def asked(transcript: explorer.HouseTranscript, rng: random.Random) -> tuple[Question, str]:
    """What one of its tools would say that is run with nothing but its name, and the answer."""
    tool = rng.choice(transcript.order)
    said = machines.refusal(tool, transcript.wanted[tool], rng.randrange(len(machines.REFUSALS) - 1))
    return Question(transcript.request, (), Call(BASH, {"command": tool})), observed(Ran(2, said))


def copy_exercise(codec: Codec, rng: random.Random) -> pretraining.Document:
    """Names to be copied: without a story."""
    names = [explorer.made_up(rng) for _ in range(rng.randint(4, 9))]
    listed = "".join(f"{name}{rng.choice(('/', '.', ' ', ','))}" for name in names).rstrip()
    return pretraining.tokenised(
        codec, [(f"<|obs|>{listed}<|/obs|><|tool|>{OPENED}", False), (f'{listed}"}}<|end|>', True)]
    )


class Documents:
    """An endless, seeded stream of training documents; `draw(step)` is a pure function of the step."""

    def __init__(self, codec: Codec, transcripts: Sequence[explorer.Transcript], tokens_per_step: int):
        self.codec, self.transcripts, self.tokens_per_step = codec, transcripts, tokens_per_step

    def draw(self, step: int) -> list[pretraining.Document]:
        rng, documents, size = random.Random(f"{SEED}/{step}"), [], 0
        while size < self.tokens_per_step:
            document = self._drawn(rng)
            if len(document[0]) <= MAX_TOKENS:
                documents.append(document)
                size += len(document[0])
        return sorted(documents, key=lambda d: len(d[0]))

    def _drawn(self, rng: random.Random) -> pretraining.Document:
        kind = rng.choices(("copy", "known", "house", "means", "predicts", "asked"), (12, 44, 26, 6, 8, 12))[0]
        if kind == "copy":
            return copy_exercise(self.codec, rng)
        transcript = rng.choice(self.transcripts) if kind == "known" else explorer.house_attempt(rng)
        if kind == "means":
            return pretraining.tokenised(self.codec, rng.choice(intentions(transcript, self.codec.env.knowledge)))
        if kind == "asked":
            return pretraining.answered(self.codec.encoded(*asked(transcript, rng)))
        if kind == "predicts":
            transcript = transcript if rng.random() < 0.5 else rng.choice(self.transcripts)
            return pretraining.answered(rng.choice(self._examples(transcript)).encoded)
        return pretraining.tokenised(self.codec, segments(transcript))

    def _examples(self, transcript: explorer.Transcript):
        return self.codec.examples("x", transcript.request, transcript.turns, BASH)


# --- what was made ---------------------------------------------------------------------------


def judge(folder: Path, tasks: int = 48) -> dict:
    """What the base does untrained, on so many tasks of each split, greedily and sampled at temperature 1."""
    config = RunConfig(env=EnvConfig(name="shell", levels=(1, 2, 3)), model=ModelConfig(base=str(folder)))
    player = untrained(config)
    couplings = {"no note": player.coupling, "the truth told": Truth(player.codec)}
    found, told, everything = {}, [], []
    for split in ("train", "validation", "test"):
        chosen = player.env.tasks(split)[:tasks]
        groups = [[[Attempt(task, i, derive_seed("base", i))]] for i, task in enumerate(chosen)]
        for name, coupling in couplings.items():
            greedy = play_tasks(player.engine, player.codec, coupling, chosen, config.rollout, 1)
            sampled = play(player.engine, player.codec, groups, coupling, config.rollout, 0)
            found[f"{split}, {name}"] = {
                how: shell_report.by_kind(rows, chosen) for how, rows in (("greedy", greedy), ("sampled", sampled))
            }
            everything += sampled
            told += greedy + sampled if coupling is not player.coupling else []
    requests = {task.task_id: task.instruction for task in player.env.world.tasks}
    notes = [shell_report.notes_of(row, player.codec.decode) for row in told]
    counts = {
        "paths": shell_report.copied_paths(everything, requests),
        "notes": shell_report.obeyed_notes(told, notes),
        "actions": base_report.parsing(everything),
    }
    return {"tasks": tasks, "success": found, "counts": counts}


CARD = """# The embedded shell base

A causal language model of {parameters:,} parameters in the Qwen3 architecture (4 layers, width 192, {vocabulary}
tokens) that knows the *language* of the shell world and none of its rules: how an action is written, what single
commands do, how names and flags are copied, how notes in the context are followed. What a task asks for it has to find
out: untrained it tries one of what seems to fit. A stand-in for a pretrained model, of no use for anything else.

Load it with plain `transformers`: `AutoModelForCausalLM.from_pretrained("data/base_shell")`, and the same for
`AutoTokenizer`. Licence: Apache-2.0. No text of any person or third party went into it.

**Why a base of its own.** With the tokenizer of `data/base` a command of the training tasks takes 64 tokens and an
instruction 55, and an episode of the exploratory user 205 (95% of them below 415); with its own 31, 32 and 95 (below
187). What is computed for an episode, and what has to be copied token by token, is halved. The layers begin as
those of `data/base`, which copy.

**Training data.** Transcripts of the exploratory user (`lfo/envs/shell/explorer.py`) on throw-away trees of made-up
words: {lessons:.0%} show what a single command does, on the screen; the others try the first two drafts of a skill,
in the training tasks' wording or with another verb, by a command that is right in a third of the cases. They were
played in the sandbox. House tools on machines that were never before and want anything at random; {noted:.0%}
with notes, {made_up:.0%} of those wrong, followed {followed:.0%} of the time. Of the environment's machines,
trees, held-out wordings and test templates it has read nothing, but that 18 of 11,200 played transcripts call a
file by chance as a machine is called. `data/base_shell/recipe.py` is the recipe; these weights are those of
step {step} of {steps}, {tokens} tokens a step. They were not made by it in one go: the run was stopped and went
on with other schedules at steps 700, 900, 1300 and 1700; up to step 1300 a third as many exercises were copied and
made-up words were of syllables only, and the tokenizer was built when 7,152 transcripts were played; so they cannot
be made again to the bit. Tokens that are stages on the way to longer ones (`past`, of `paste`) were hardly ever read:
names that are cut into them (`pasture`) are not copied, and more steps will not mend that.

**What was measured** on the first {tasks} tasks of each split of world 0, nothing trained:

{table}

| | |
|---|---|
| paths in commands that stand in what was read | {paths} |
| house tools first run with exactly the flags that a note names | {notes} |
| actions that can be read | {actions} |

**Limits.** It knows the commands of `LESSONS` and the drafts of the skills. Sequences of up to {max_tokens} tokens.
"""


def success_table(success: Mapping) -> str:
    """Rows: split and notes; greedy and, behind the stroke, sampled success."""
    columns = [("all", "0"), ("skills", "0"), ("house tools", "0"), ("all", "1"), ("all", "2"), ("all", "3")]
    lines = ["| | all | skills | house tools | level 1 | level 2 | level 3 |", f"|---{'|---' * len(columns)}|"]
    for name, found in success.items():
        cells = [" / ".join(f"{found[how][kind].get(level, 0):.0%}" for how in found) for kind, level in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_card(folder: Path, step: int, tokens: int) -> None:
    """recipe.json (settings, checksums, measurements) and the model card made from it."""
    model = load_base(folder)
    measured = judge(folder)
    settings = {"seed": SEED, "step": step, "steps": STEPS, "tokens": tokens}
    facts = pretraining.write_facts(folder, model, settings, measured)
    counted = {name: f"{a / max(b, 1):.1%} of {b}" for name, (a, b) in measured["counts"].items()}
    said = {"noted": explorer.NOTED, "made_up": explorer.MADE_UP, "followed": explorer.FOLLOWED, "lessons": LESSONS}
    table = success_table(measured["success"])
    said |= {"table": table, "tasks": measured["tasks"], "max_tokens": MAX_TOKENS}
    (folder / "README.md").write_text(CARD.format(**facts, **counted, **said))


def main() -> None:
    parser = pretraining.arguments(__doc__, HERE, STEPS, 0)
    parser.add_argument("--batches", type=int, default=BATCHES, help=f"transcripts that are played, by {EACH}")
    parser.set_defaults(tokens=3000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    play_transcripts(args.out / "transcripts", args.batches)
    played = read_transcripts(args.out / "transcripts")
    if not (args.out / "tokenizer.json").exists():
        rng = random.Random(SEED)
        corpus = [*rng.sample(played, min(len(played), 4000)), *(explorer.house_attempt(rng) for _ in range(1000))]
        texts = ["".join(text for text, _ in segments(transcript)) for transcript in corpus]
        pretraining.build_tokenizer(texts, lexicon(), words()).save_pretrained(args.out)
    model = pretraining.build_model(len(PreTrainedTokenizerFast.from_pretrained(args.out)), SEED)
    model.save_pretrained(args.out)
    codec = load_codec(ModelConfig(base=str(args.out)), make_environment(EnvConfig(name="shell")))
    unseen = Documents(codec, played[-UNSEEN * EACH :], 6000)
    stream = Documents(codec, played[: -UNSEEN * EACH], args.tokens)
    schedule = pretraining.Schedule(STEPS, STEPS, args.lr)

    def scores(step: int):
        return pretraining.accuracy(model, codec, unseen.draw(-step - 1))

    pretraining.pretrain(args, model, codec, schedule, stream.draw, scores)
    write_card(args.out, args.steps, args.tokens)


if __name__ == "__main__":
    main()
