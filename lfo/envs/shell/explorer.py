"""The exploratory user of throw-away machines, whose transcripts the embedded shell base is pretrained on.

It knows what commands do, one at a time (`LESSONS`: instructions that are shown on the screen), tries what seems to fit
where something is asked for, reads errors, obeys notes, and guesses what house tools want. Trees, machines and what
they hide are drawn anew for every transcript, of made-up words; of `lfo.envs.shell.templates` it meets the first two
drafts of a skill, in the first wording, never those of the test split.
"""

from __future__ import annotations

import dataclasses
import json
import random
import shlex
import string
from collections.abc import Sequence

from lfo.envs.shell import machines
from lfo.envs.shell.episode import AS_DECIDED, BASH, FINISH, observed
from lfo.envs.shell.machines import COMMON, KINDS, REFUSALS, Desk, Machine, house_draft, refusal
from lfo.envs.shell.sandbox import Ran, Sandbox
from lfo.envs.shell.templates import SKILLS, Draft
from lfo.envs.shell.trees import ROOTS, Tree, Words, words_of
from lfo.types import Call, Turn

SOURCES = ("memory", "world model", "truth", "scout", "feedback", "earlier attempt")  # who says a note is no matter
NOTED, FOLLOWED, MADE_UP = 0.6, 0.9, 0.15  # shares: tasks with notes; those that are followed; those that are wrong
SEEN = 2  # drafts of a skill that are not the test split's
MARK = "\x01"  # ends what a command printed, followed by its status

# What commands do: said, and done. The names in braces are those of `_named`.
LESSONS = (
    ("Show {note}.", "cat {note}"),
    ("What is in {conf}?", "cat {conf}"),
    ("Show the names in {root}.", "ls {root}"),
    ("What is in the folder {place}?", "ls {place}"),
    ("Show all names in {place} with their sizes and permissions.", "ls -la {place} | head -n 1"),
    ("Show the lines of {note} in alphabetical order.", "sort {note}"),
    ("Show the lines of {note} from Z to A.", "sort -r {note}"),
    ("Show {left} and {right} in one order.", "sort {left} {right}"),
    ("Show the lines of {ps} by the number in their third column.", "sort -k3,3n {ps}"),
    ("Show the lines of {ps}, the largest third column first.", "sort -k3,3nr {ps}"),
    ("Show the lines of {cron}, the smallest second column first.", "sort -k2,2n {cron}"),
    ("Show the lines of {table} by the fourth column.", "sort -t, -k4,4n {table}"),
    ("Which lines of {left} and {right} are there twice?", "sort {left} {right} | uniq -d"),
    ("Which lines of {left} and {right} are there once only?", "sort {left} {right} | uniq -u"),
    ("Show the different lines of {left} and {right}.", "sort -u {left} {right}"),
    ("Count equal lines of {left} and {right}.", "sort {left} {right} | uniq -c"),
    ("Show the lines of {log} with {level}.", "grep {level} {log}"),
    ("Show the lines of {log} without {level}.", "grep -v {level} {log}"),
    ("Count the lines of {log} with {level}.", "grep -c {level} {log}"),
    ("Show the lines of {note} with {word}, and their numbers.", "grep -n {word} {note}"),
    ("Which files in {root}/notes contain {word}?", "grep -l {word} {root}/notes/*"),
    ("Show the first {n} lines of {log}.", "head -n {n} {log}"),
    ("Show {log} up to its last {n} lines.", "head -n -{n} {log}"),
    ("Show the last {n} lines of {log}.", "tail -n {n} {log}"),
    ("Show {log} from line {n} on.", "tail -n +{n} {log}"),
    ("Show {table} without its header.", "tail -n +2 {table}"),
    ("Show line {n} of {note}.", "head -n {n} {note} | tail -n 1"),
    ("How does each file in {root}/notes begin?", "for f in {root}/notes/*; do head -n 1 $f; done"),
    ("How does each file in {root}/lists end?", "for f in {root}/lists/*; do tail -n 1 $f; done"),
    ("Show column {col} of {table}.", "cut -d, -f{col} {table}"),
    ("Show the columns 2 and {col} of {table}.", "cut -d, -f2,{col} {table}"),
    ("Show the first word of every line of {ps}.", "cut -d' ' -f1 {ps}"),
    ("Show the second word of every line of {log}.", "cut -d' ' -f2 {log}"),
    ("Show {note} with capital letters.", "tr a-z A-Z < {note}"),
    ("Show {left} with dots for the letter a.", "tr a . < {left}"),
    ("Show {note} with a dash for every blank.", "tr ' ' - < {note}"),
    ("Show {note} without blanks.", "tr -d ' ' < {note}"),
    ("How many lines has {note}?", "wc -l < {note}"),
    ("How many words has {log}?", "wc -w < {log}"),
    ("How many bytes has {conf}?", "wc -c < {conf}"),
    ("Show {note} with {new} for {word}.", "sed 's/{word}/{new}/' {note}"),
    ("Show {conf} without the lines that begin with #.", "sed '/^#/d' {conf}"),
    ("Set {key} to {n} in {conf}.", "sed -i 's/^{key}=.*/{key}={n}/' {conf}"),
    ("Show {conf} with {n} as {key}.", "sed 's/^{key}=.*/{key}={n}/' {conf}"),
    ("Show the last column of {cron}.", "awk '{{ print $6 }}' {cron}"),
    ("Show the second column of {ps}, then the first.", "awk '{{ print $2, $1 }}' {ps}"),
    ("Show the lines of {ps} whose second column is {user}.", "awk '$2 == \"{user}\"' {ps}"),
    ("Show the names in {table} of age {n}0 and less.", "awk -F, '$4 <= {n}0 {{ print $1 }}' {table}"),
    ("Add up the third column of {ps}.", "awk '{{ s += $3 }} END {{ print s }}' {ps}"),
    ("What is the highest third column in {ps}?", "awk '$3 > m {{ m = $3 }} END {{ print m }}' {ps}"),
    ("Show the files below {root} that end in .tmp.", "find {root} -name '*.tmp'"),
    ("Show the files in {place}.", "find {place} -type f"),
    ("Show the empty files below {root}.", "find {root} -type f -empty"),
    ("Show the folders in {root}.", "find {root} -type d"),
    ("Delete the empty files below {root}.", "find {root} -type f -empty -delete"),
    ("Delete everything in {root}/lists but {left}.", "find {root}/lists -type f ! -path {left} -delete"),
    ("Show {left} and {right} side by side.", "paste {left} {right}"),
    ("Show {left} and {right} side by side with a colon.", "paste -d: {left} {right}"),
    ("Show two lines of {left} in each line.", "paste - - < {left}"),
    ("Show {right} in one line, with a colon between.", "paste -sd: {right}"),
    ("Which lines do the sorted {left} and {right} share?", "comm -12 {left} {right}"),
    ("Which lines has only the sorted {right}?", "comm -13 {left} {right}"),
    ("Which mode has {conf}?", "stat -c %a {conf}"),
    ("What is the size of {note}?", "stat -c %s {note}"),
    ("Show the sizes and names in {root}/notes.", "stat -c '%s %n' {root}/notes/*"),
    ("What is the SHA-256 of {note}?", "sha256sum < {note} | cut -d' ' -f1"),
    ("What is the MD5 of {conf}?", "md5sum < {conf} | cut -d' ' -f1"),
    ("Set the mode of {note} to {mode}.", "chmod {mode} {note}"),
    ("Set the mode of {table} to {mode}.", "chmod {mode} {table}"),
    ("Make {script} executable.", "chmod +x {script}"),
    ("Nobody shall write {conf}.", "chmod a-w {conf}"),
    ("Make the folder {root}/{new}.", "mkdir {root}/{new}"),
    ("Make a folder {root}/{new} of mode {mode}.", "mkdir -m {mode} {root}/{new}"),
    ("Make the folders {root}/{new}/{word} at once.", "mkdir -p {root}/{new}/{word}"),
    ("Copy {note} as {root}/{new}.", "cp {note} {root}/{new}"),
    ("Copy the folder {place} as {root}/{new}.", "cp -r {place} {root}/{new}"),
    (
        "Copy the .tmp files below {root} into {root}/lists.",
        "find {root} -name '*.tmp' -exec cp {{}} {root}/lists/ \\;",
    ),
    ("Rename {left} to {root}/lists/{new}.txt.", "mv {left} {root}/lists/{new}.txt"),
    ("Name the .txt files in {root}/lists .old.", "for f in {root}/lists/*.txt; do mv $f ${{f%.txt}}.old; done"),
    ("Delete {note}.", "rm {note}"),
    ("Delete the folder {root}/lists.", "rm -r {root}/lists"),
    ("Give {note} a second name {root}/{new}, a hard link.", "ln {note} {root}/{new}"),
    ("Make a symbolic link {root}/{new} to {conf}.", "ln -s $PWD/{conf} {root}/{new}"),
    ("Pack {root}/lists into {root}/{new}.tar.gz.", "tar -czf {root}/{new}.tar.gz {root}/lists"),
    ("What is in the archive of {root}/conf?", "tar -cz {root}/conf | tar -tz"),
    (
        "Pack the names that ls prints of {note} into {root}/{new}.tar.gz.",
        "ls {note} | tar -czf {root}/{new}.tar.gz -T -",
    ),
    ("Show {note}, packed and unpacked.", "gzip < {note} | zcat"),
    ("Compress {conf} by gzip.", "gzip {conf}"),
    ("Run {script} with {new}.", "bash {script} {new}"),
    ("With which status does {script} exit?", "bash {script} > /dev/null; echo $?"),
    ("Say {new}.", "echo {new}"),
    ("Write {word} to {out}.", "echo {word} > {out}"),
    ("Append {word} to {note}.", "echo {word} >> {note}"),
    ("Make an empty file {root}/{new}.", ": > {root}/{new}"),
    ("Say each line of {left} twice.", "cat {left} | while read n; do echo $n $n; done"),
    ("How often does each word occur in {left}?", "sort {left} | uniq -c | awk '{{ print $2, $1 }}'"),
)

_ONSETS = "b bl br c ch cl d dr f fl g gl gr h j k l m n p pl pr qu r s sh sl st t th tr v w y z".split()
_VOWELS = "a e i o u a e i o u ai ea ee oo ou".split()
_CODAS = ["", "", "", *"ck d k l ll m n nd ng nt p r rk rn rt s ss t x".split()]


# What the environment calls something: made up by chance, it is not used.
_TAKEN = {word.lower() for split in ROOTS for some in dataclasses.astuple(words_of(split)) for word in some}
_TAKEN |= {*machines.MACHINES, *machines.TOOLS}


def made_up(rng: random.Random) -> str:
    """A word that means nothing and is no name in the environment: mostly of one to three syllables, else of letters
    in any order, so that whatever is to be copied was copied before."""
    if rng.random() < 0.3:
        word = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 8)))
    else:
        count = rng.choices((1, 2, 3), (4, 5, 1))[0]
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(count))
    return made_up(rng) if word in _TAKEN else word


def throwaway_words(rng: random.Random) -> Words:
    """Made-up words for one tree, all different."""
    drawn: dict[str, None] = {}
    while len(drawn) < 48:
        drawn[made_up(rng)] = None
    pool = list(drawn)
    names, cities = [w.capitalize() for w in pool[:10]], [w.capitalize() for w in pool[10:15]]
    answers = [f"{word}.txt" for word in pool[15:17]]
    return Words(pool[17:18], names, cities, pool[18:30], pool[30:34], pool[34:37], answers)


@dataclasses.dataclass(frozen=True)
class Transcript:
    """An episode that was played. notes: read before the first action, as they stand between their tags."""

    request: str
    notes: tuple[str, ...]
    turns: tuple[Turn, ...]

    def record(self) -> str:
        """As a line of JSON."""
        turns = [(t.action.tool, t.action.arguments, t.observation, t.status) for t in self.turns]
        return json.dumps([self.request, self.notes, turns])


def read_transcript(line: str) -> Transcript:
    """The inverse of `Transcript.record`."""
    request, notes, turns = json.loads(line)
    return Transcript(request, tuple(notes), tuple(Turn(Call(t, a), said, status) for t, a, said, status in turns))


# --- commands that any shell knows -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the exploratory user will do on a tree, whatever is printed. finishes: whether it says that it is done."""

    request: str
    notes: tuple[str, ...]
    initialization: str
    commands: tuple[str, ...]
    finishes: bool


def lesson(rng: random.Random) -> Plan:
    """What a command does, and what it shows."""
    tree = Tree(rng, throwaway_words(rng))
    said, command = rng.choice(LESSONS)
    names = _named(tree, rng)
    return Plan(said.format(**names), (), tree.initialization(), (command.format(**names),), True)


def _named(tree: Tree, rng: random.Random) -> dict[str, object]:
    left, right = tree.lists
    note = rng.choice(tree.note_files)
    return {
        "root": tree.root, "new": tree.new, "out": tree.out, "note": note, "left": left, "right": right,
        "log": tree.log_file, "table": tree.table, "conf": tree.conf_file, "script": tree.script,
        "cron": tree.cron_file, "ps": tree.ps_file, "place": f"{tree.root}/{rng.choice(tree.places)}",
        "word": tree.notes[note][0].split()[0], "level": rng.choice(("INFO", "WARN", "ERROR")),
        "n": rng.randint(2, 6), "col": rng.randint(1, 4), "key": rng.choice(list(tree.conf)),
        "mode": rng.choice((600, 640, 644, 700, 750, 755, 444, 400, 440)), "user": rng.choice(tree.processes)[1],
    }  # fmt: skip


def attempt(rng: random.Random) -> Plan:
    """An attempt at a task of a skill: perhaps a look around, perhaps a slip, one of what seems to fit, a check."""
    tree = Tree(rng, throwaway_words(rng))
    drafts = rng.choice(SKILLS)(tree)[:SEEN]
    draft = rng.choice(drafts)
    tried = rng.choice([draft.truth, draft.wrong, rng.choice([d for d in drafts if d is not draft]).truth])
    commands, notes = [], ()
    if rng.random() < 0.2:
        commands.append(_look(rng, tree, draft))
    if rng.random() < 0.12:
        commands.append(_slip(rng, tried))
    if rng.random() < 0.08:
        failed = _slip(rng, tried)
        notes = (f"{rng.choice(SOURCES)}: {failed} failed: bash: line 1: {failed.split()[0]}: command not found",)
    commands.append(tried)
    if tree.out in tried and rng.random() < 0.2:
        commands.append(f"cat {tree.out}")
        if tried != draft.truth and rng.random() < 0.7:
            commands.append(draft.truth)
    done = commands[: AS_DECIDED.max_round]
    finishes = len(done) < AS_DECIDED.max_round
    return Plan(reworded(draft.said[0], rng), notes, tree.initialization(), tuple(done), finishes)


def reworded(said: str, rng: random.Random) -> str:
    """An instruction, half of the time with other words for writing."""
    if not said.startswith("Write the ") or rng.random() < 0.5:
        return said
    return rng.choice(("Put", "Store", "Save")) + said.removeprefix("Write").replace(" to ", " in ", 1)


def _look(rng: random.Random, tree: Tree, draft: Draft) -> str:
    files = [path for path in tree.files if path in draft.said[0]] or [tree.table]
    shown = rng.choice(files)
    return rng.choice(("ls", f"ls {tree.root}", f"cat {shown}", f"head -n 3 {shown}", f"ls {shown}"))


def _slip(rng: random.Random, command: str) -> str:
    """A command with two letters exchanged in one of its words, mostly so that it fails."""
    words = command.split(" ")
    places = [i for i, word in enumerate(words) if len(word) > 2 and word.isascii() and "'" not in word]
    if not places:
        return command
    i = rng.choice(places)
    at = rng.randrange(len(words[i]) - 1)
    words[i] = words[i][:at] + words[i][at + 1] + words[i][at] + words[i][at + 2 :]
    return " ".join(words)


def play(box: Sandbox, plan: Plan) -> Transcript:
    """A plan carried out in a sandbox that may be used again: all in one command, on a tree of its own."""
    said, turns = box.run(_script(plan)).output.split(MARK), []
    for command, output, status in zip(plan.commands, said[::2], map(int, said[1::2]), strict=False):
        call = Call(BASH, {"command": command})
        turns.append(Turn(call, observed(Ran(status, output)), "failed" if status else "ok"))
    if plan.finishes:
        turns.append(Turn(Call(FINISH, {}), "", "finished"))
    return Transcript(plan.request, plan.notes, tuple(turns))


def _script(plan: Plan) -> str:
    runs = [f"bash -c {shlex.quote(c)} bash < /dev/null 2>&1; printf '{MARK}%d{MARK}' $?" for c in plan.commands]
    return "\n".join(["rm -rf ./*", f"( {plan.initialization}\n)", *runs])


# --- house tools ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class HouseTranscript(Transcript):
    """wanted: of each tool, as its refusal says it. order: the tools, as the instruction names them."""

    wanted: dict[str, machines.Wanted] = dataclasses.field(default_factory=dict)
    order: tuple[str, ...] = ()


def house_attempt(rng: random.Random) -> HouseTranscript:
    """A task of house tools on a machine that was never before, whose tools want anything at random.

    What they say comes from the same `Desk` as in a sandbox.
    """
    kind, name = rng.choice(list(KINDS)), made_up(rng)
    drawn = {tool: any_wanted(rng) for tool in (*COMMON, *KINDS[kind])}
    machine = Machine(name, kind, True, "different", drawn)
    draft, tools = house_draft(rng, machine, Tree(rng, throwaway_words(rng)))
    desk = Desk({name: machine}, name, rng.randrange(len(REFUSALS) - 1))
    told = _told(rng, tools, drawn) if rng.random() < NOTED else {}
    source, follows = rng.choice(SOURCES), rng.random() < FOLLOWED
    notes = tuple(f"{source}: {_note(rng, tool, wanted)}" for tool, wanted in told.items())
    files = {call.split()[0]: call.split()[-1] for call in draft.truth.split("\n")}
    calls = [_call(rng, tool, files[tool], told.get(tool) if follows else None) for tool in tools]
    turns = _carried_out(rng, desk, calls, {tool: _flags(drawn[tool], files[tool], tool) for tool in tools})
    return HouseTranscript(draft.said[0], notes, tuple(turns), drawn, tools)


def any_wanted(rng: random.Random) -> machines.Wanted:
    """One to three flags with values, all alike likely."""
    chosen = rng.sample(list(machines.FLAGS), rng.randint(1, 3))
    return {flag: rng.choice(machines.FLAGS[flag]) for flag in chosen}


def _told(rng: random.Random, tools: Sequence[str], drawn: dict[str, machines.Wanted]) -> dict[str, machines.Wanted]:
    """What notes say of the tools: mostly of all that are needed, in order, and the truth."""
    told = {tool: any_wanted(rng) if rng.random() < MADE_UP else drawn[tool] for tool in tools}
    if rng.random() < 0.15:
        told.pop(rng.choice(tools))
    if rng.random() < 0.15:
        other = rng.choice(list(drawn))
        told.setdefault(other, drawn[other])
    return dict(rng.sample(list(told.items()), len(told))) if rng.random() < 0.2 else told


def _note(rng: random.Random, tool: str, wanted: machines.Wanted) -> str:
    """A refusal, as it is read at a shell or as it is quoted."""
    said = refusal(tool, wanted, rng.randrange(len(REFUSALS) - 1))
    return observed(Ran(2, said)) if rng.random() < 0.7 else said


def _flags(wanted: machines.Wanted, file: str, tool: str) -> str:
    return " ".join([tool, *(f"{flag} {value}" for flag, value in sorted(wanted.items())), file])


def _call(rng: random.Random, tool: str, file: str, told: machines.Wanted | None) -> str:
    """What it was told, or a guess, or the tool with little or nothing."""
    if told is not None:
        return _flags(told, file, tool)
    return rng.choices((_flags(any_wanted(rng), file, tool), f"{tool} {file}", tool), (8, 2, 1))[0]


def _carried_out(rng: random.Random, desk: Desk, calls: Sequence[str], right: dict[str, str]) -> list[Turn]:
    """Calls in one action or in several, what is said to them, now and then a second try after a refusal."""
    actions = ["\n".join(calls)] if len(calls) > 1 and rng.random() < 0.15 else list(calls)
    turns: list[Turn] = []
    while actions and len(turns) < AS_DECIDED.max_round:
        command = actions.pop(0)
        answers = [desk(call.split()) for call in command.split("\n")]
        seen = observed(Ran(answers[-1][0], "\n".join(text for _, text in answers)))
        turns.append(Turn(Call(BASH, {"command": command}), seen, "failed" if answers[-1][0] else "ok"))
        if answers[-1][0] == 2 and rng.random() < 0.4:
            actions.insert(0, right[command.split("\n")[-1].split()[0]])
    if len(turns) < AS_DECIDED.max_round and rng.random() < 0.95:
        turns.append(Turn(Call(FINISH, {}), "", "finished"))
    return turns
