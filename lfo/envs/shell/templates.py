"""What is asked for: a function a skill, three drafts each, made of a file tree.

Training and validation have the first two drafts of a skill, on trees of other words; the test split has the third,
which training never has, on trees that it never has. What a draft expects is computed from the tree's values, without
a shell, so that the ground truth, which is bash, is checked against something else than itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping

from lfo.envs.shell.trees import Tree


@dataclasses.dataclass(frozen=True)
class Link:
    """A symbolic link. to: where it leads in the end, below the home folder."""

    to: str


@dataclasses.dataclass(frozen=True)
class Says:
    """A command that must print this."""

    command: str
    text: str


@dataclasses.dataclass(frozen=True)
class Draft:
    """A task before it has a number.

    said: the instruction, and its held-out wording. truth: does it. wrong: a neighbour that does not. expect: path
    below the home folder -> the text that must stand there, its mode as an int, where it leads, or None: it is gone; a
    name without a meaning where a command is to say something.
    """

    level: int
    said: tuple[str, str]
    truth: str
    wrong: str
    expect: Mapping[str, str | int | Link | Says | None]


def _lines(values) -> str:
    return "\n".join(map(str, values))


def find(t: Tree) -> list[Draft]:
    folders = sorted({path.rpartition("/")[0] for path in t.files} | {t.root})
    return [
        Draft(
            1,
            (
                f"Write the paths of all files below {t.root} whose names end in .bak to {t.out}, sorted, one a line.",
                f"Which .bak files are there under {t.root}? Their paths, in order, belong into {t.out}.",
            ),
            f"find {t.root} -name '*.bak' | LC_ALL=C sort > {t.out}",
            f"find {t.root} -name '*.txt' | LC_ALL=C sort > {t.out}",
            {t.out: _lines(sorted(t.backups))},
        ),
        Draft(
            2,
            (
                f"Write the paths of all folders below and including {t.root} to {t.out}, sorted, one a line.",
                f"List every directory of {t.root}, itself among them, in order, in {t.out}.",
            ),
            f"find {t.root} -type d | LC_ALL=C sort > {t.out}",
            f"find {t.root} -type f | LC_ALL=C sort > {t.out}",
            {t.out: _lines(folders)},
        ),
        Draft(
            1,
            (
                f"Write the path of the empty file below {t.root} to {t.out}.",
                f"One file under {t.root} has nothing in it: put its path into {t.out}.",
            ),
            f"found=$(find {t.root} -type f -empty); echo $found > {t.out}",
            f"find {t.root} -name '*.bak' > {t.out}",
            {t.out: t.empty},
        ),
    ]


def grep(t: Tree) -> list[Draft]:
    errors = [" ".join(row) for row in t.log if row[1] == "ERROR"]
    return [
        Draft(
            1,
            (
                f"Write the lines of {t.log_file} that contain ERROR to {t.out}.",
                f"Copy every ERROR line of the log {t.log_file} into {t.out}.",
            ),
            f"grep ERROR {t.log_file} > {t.out}",
            f"grep WARN {t.log_file} > {t.out}",
            {t.out: _lines(errors)},
        ),
        Draft(
            1,
            (
                f"How many lines of {t.log_file} contain WARN? Write the number to {t.out}.",
                f"Count the WARN lines in {t.log_file}; {t.out} shall hold the count.",
            ),
            f"grep -c WARN {t.log_file} > {t.out}",
            f"grep WARN {t.log_file} > {t.out}",
            {t.out: str(sum(row[1] == "WARN" for row in t.log))},
        ),
        Draft(
            2,
            (
                f"Write the lines of {t.log_file} that do not contain INFO to {t.out}.",
                f"Everything in {t.log_file} but the INFO lines goes to {t.out}.",
            ),
            f"grep -v INFO {t.log_file} > {t.out}",
            f"grep INFO {t.log_file} > {t.out}",
            {t.out: _lines(" ".join(row) for row in t.log if row[1] != "INFO")},
        ),
    ]


def sed(t: Tree) -> list[Draft]:
    note = t.note_files[0]
    old = t.notes[note][0].split()[0]
    key, value = next(iter(t.conf.items()))
    settings = t.files[t.conf_file]
    return [
        Draft(
            2,
            (
                f"Replace every {old} in {note} by {t.new}.",
                f"In {note} the word {old} shall read {t.new} everywhere.",
            ),
            f"sed -i 's/{old}/{t.new}/g' {note}",
            f"sed 's/{old}/{t.new}/g' {note}",
            {note: t.files[note].replace(old, t.new).rstrip("\n")},
        ),
        Draft(
            2,
            (
                f"Delete the lines that begin with # from {t.conf_file}.",
                f"Take the comment lines (#) out of {t.conf_file}, and nothing else.",
            ),
            f"sed -i '/^#/d' {t.conf_file}",
            f"sed -i 's/^#//' {t.conf_file}",
            {t.conf_file: _lines(f"{k}={v}" for k, v in t.conf.items())},
        ),
        Draft(
            2,
            (
                f"Set {key} to {value + 1} in {t.conf_file}; leave the rest as it is.",
                f"The value of {key} in {t.conf_file} has to be {value + 1}.",
            ),
            f"sed -i 's/^{key}=.*/{key}={value + 1}/' {t.conf_file}",
            f"echo {key}={value + 1} >> {t.conf_file}",
            {t.conf_file: settings.replace(f"{key}={value}", f"{key}={value + 1}").rstrip("\n")},
        ),
    ]


def awk(t: Tree) -> list[Draft]:
    ages = [age for *_, age in t.people]
    bound = sorted(ages)[3]
    return [
        Draft(
            2,
            (
                f"Add up the ages, the last column of {t.table}, and write the sum to {t.out}.",
                f"What do all ages in {t.table} come to? Only the sum belongs into {t.out}.",
            ),
            f"awk -F, 'NR > 1 {{ s += $4 }} END {{ print s }}' {t.table} > {t.out}",
            f"awk -F, 'END {{ print NR - 1 }}' {t.table} > {t.out}",
            {t.out: str(sum(ages))},
        ),
        Draft(
            2,
            (
                f"Write the names of all people in {t.table} who are older than {bound} to {t.out}, in their order.",
                f"Who in {t.table} is over {bound}? Write the names, one a line, to {t.out}.",
            ),
            f"awk -F, 'NR > 1 && $4 > {bound} {{ print $1 }}' {t.table} > {t.out}",
            f"awk -F, 'NR > 1 && $4 <= {bound} {{ print $1 }}' {t.table} > {t.out}",
            {t.out: _lines(name for name, *_, age in t.people if age > bound)},
        ),
        Draft(
            3,
            (
                f"Write the name of the oldest person in {t.table} to {t.out}; of equally old ones the first.",
                f"{t.out} shall name whoever in {t.table} is oldest, the first of them if there are several.",
            ),
            f"awk -F, 'NR > 1 && $4 > m {{ m = $4; n = $1 }} END {{ print n }}' {t.table} > {t.out}",
            f"awk -F, 'NR > 1 && $4 > m {{ m = $4 }} END {{ print m }}' {t.table} > {t.out}",
            {t.out: next(name for name, *_, age in t.people if age == max(ages))},
        ),
    ]


def sort(t: Tree) -> list[Draft]:
    note = t.note_files[1]
    lines = t.notes[note]
    rows = [",".join(map(str, row)) for row in sorted(t.people, key=lambda row: (row[3], ",".join(map(str, row))))]
    return [
        Draft(
            1,
            (f"Write the lines of {note} to {t.out}, sorted.", f"Put {note} into alphabetical order, as {t.out}."),
            f"LC_ALL=C sort {note} > {t.out}",
            f"LC_ALL=C sort -r {note} > {t.out}",
            {t.out: _lines(sorted(lines))},
        ),
        Draft(
            2,
            (
                f"Sort the people in {t.table} by age, the youngest first; write their lines, without header, to"
                f" {t.out}.",
                f"{t.out} shall hold the rows of {t.table}, not its header, from the youngest to the oldest.",
            ),
            f"tail -n +2 {t.table} | LC_ALL=C sort -t, -k4,4n > {t.out}",
            f"tail -n +2 {t.table} | LC_ALL=C sort -t, -k4,4nr | tail -n +2 > {t.out}",
            {t.out: _lines(rows)},
        ),
        Draft(
            1,
            (
                f"Write the lines of {note} to {t.out} in reverse alphabetical order.",
                f"Sort {note} from Z to A and save that as {t.out}.",
            ),
            f"LC_ALL=C sort -r {note} > {t.out}",
            f"LC_ALL=C sort {note} > {t.out}",
            {t.out: _lines(sorted(lines, reverse=True))},
        ),
    ]


def uniq(t: Tree) -> list[Draft]:
    cities = Counter(city for _, city, *_ in t.people)
    teams = {team for _, _, team, _ in t.people}
    return [
        Draft(
            2,
            (
                f"Write the different cities in {t.table} to {t.out}, sorted, each once.",
                f"Which cities occur in {t.table}? In order, without repeats, in {t.out}.",
            ),
            f"tail -n +2 {t.table} | cut -d, -f2 | LC_ALL=C sort -u > {t.out}",
            f"tail -n +2 {t.table} | cut -d, -f2 | LC_ALL=C sort > {t.out}",
            {t.out: _lines(sorted(cities))},
        ),
        Draft(
            2,
            (
                f"How many different teams are there in {t.table}? Write the number to {t.out}.",
                f"Count the distinct values of the column team of {t.table} and leave the number in {t.out}.",
            ),
            f"tail -n +2 {t.table} | cut -d, -f3 | sort -u | wc -l > {t.out}",
            f"cut -d, -f3 {t.table} | sort | wc -l > {t.out}",
            {t.out: str(len(teams))},
        ),
        Draft(
            3,
            (
                f"Write the cities that occur more than once in {t.table} to {t.out}, sorted, each once.",
                f"{t.out} shall list, in order, every city with at least two people in {t.table}.",
            ),
            f"tail -n +2 {t.table} | cut -d, -f2 | LC_ALL=C sort | uniq -d > {t.out}",
            f"tail -n +2 {t.table} | cut -d, -f1 | LC_ALL=C sort > {t.out}",
            {t.out: _lines(sorted(city for city, n in cities.items() if n > 1))},
        ),
    ]


def cut(t: Tree) -> list[Draft]:
    return [
        Draft(
            1,
            (
                f"Write the column city of {t.table}, with its heading, to {t.out}.",
                f"Only the second column of {t.table}, heading and all, shall be in {t.out}.",
            ),
            f"cut -d, -f2 {t.table} > {t.out}",
            f"cut -d, -f3 {t.table} > {t.out}",
            {t.out: _lines(["city", *(row[1] for row in t.people)])},
        ),
        Draft(
            1,
            (
                f"Write the columns name and team of {t.table}, with their headings, to {t.out}, a comma between them.",
                f"Keep the first and the third column of {t.table} only, as {t.out}.",
            ),
            f"cut -d, -f1,3 {t.table} > {t.out}",
            f"cut -d, -f1-3 {t.table} > {t.out}",
            {t.out: _lines(["name,team", *(f"{row[0]},{row[2]}" for row in t.people)])},
        ),
        Draft(
            1,
            (
                f"Write the days of {t.log_file}, the first word of each line, to {t.out}.",
                f"From every line of {t.log_file} take its date, the part before the first blank, into {t.out}.",
            ),
            f"cut -d' ' -f1 {t.log_file} > {t.out}",
            f"cut -d' ' -f2 {t.log_file} > {t.out}",
            {t.out: _lines(row[0] for row in t.log)},
        ),
    ]


def tr(t: Tree) -> list[Draft]:
    note = t.note_files[2]
    text = t.files[note].rstrip("\n")
    return [
        Draft(
            1,
            (f"Write {note} to {t.out} in capital letters.", f"{t.out} shall say what {note} says, all in upper case."),
            f"tr a-z A-Z < {note} > {t.out}",
            f"cp {note} {t.out}",
            {t.out: text.upper()},
        ),
        Draft(
            1,
            (
                f"Write {note} to {t.out} without its digits.",
                f"Strip all digits, and nothing else, from {note}; save the rest as {t.out}.",
            ),
            f"tr -d 0-9 < {note} > {t.out}",
            f"tr -cd '0-9\\n' < {note} > {t.out}",
            {t.out: "".join(c for c in text if not c.isdigit())},
        ),
        Draft(
            1,
            (
                f"Write {note} to {t.out} with an underscore for every blank.",
                f"Turn the blanks of {note} into underscores and keep the outcome in {t.out}.",
            ),
            f"tr ' ' _ < {note} > {t.out}",
            f"tr -d ' ' < {note} > {t.out}",
            {t.out: text.replace(" ", "_")},
        ),
    ]


def head(t: Tree) -> list[Draft]:
    rows = [" ".join(row) for row in t.log]
    return [
        Draft(
            1,
            (
                f"Write the first 3 lines of {t.log_file} to {t.out}.",
                f"{t.log_file} begins with 3 lines that {t.out} shall hold.",
            ),
            f"head -n 3 {t.log_file} > {t.out}",
            f"head -n 2 {t.log_file} > {t.out}",
            {t.out: _lines(rows[:3])},
        ),
        Draft(
            1,
            (f"Write the header of {t.table} to {t.out}.", f"{t.out} shall hold the first line of {t.table} alone."),
            f"head -n 1 {t.table} > {t.out}",
            f"tail -n 1 {t.table} > {t.out}",
            {t.out: "name,city,team,age"},
        ),
        Draft(
            2,
            (
                f"Write all but the last 2 lines of {t.log_file} to {t.out}.",
                f"Leave the last 2 lines of {t.log_file} away and save the others as {t.out}.",
            ),
            f"head -n -2 {t.log_file} > {t.out}",
            f"head -n 2 {t.log_file} > {t.out}",
            {t.out: _lines(rows[:-2])},
        ),
    ]


def tail(t: Tree) -> list[Draft]:
    rows = [" ".join(row) for row in t.log]
    return [
        Draft(
            1,
            (
                f"Write the last 4 lines of {t.log_file} to {t.out}.",
                f"How does {t.log_file} end? Its last 4 lines go to {t.out}.",
            ),
            f"tail -n 4 {t.log_file} > {t.out}",
            f"head -n 4 {t.log_file} > {t.out}",
            {t.out: _lines(rows[-4:])},
        ),
        Draft(
            2,
            (
                f"Write {t.log_file} from its line 3 on to {t.out}.",
                f"Skip the first 2 lines of {t.log_file}; the rest shall be in {t.out}.",
            ),
            f"tail -n +3 {t.log_file} > {t.out}",
            f"tail -n 3 {t.log_file} > {t.out}",
            {t.out: _lines(rows[2:])},
        ),
        Draft(
            2,
            (
                f"Write the last but one line of {t.log_file} to {t.out}.",
                f"{t.out} shall hold the line of {t.log_file} that comes just before its last.",
            ),
            f"tail -n 2 {t.log_file} | head -n 1 > {t.out}",
            f"tail -n 1 {t.log_file} > {t.out}",
            {t.out: rows[-2]},
        ),
    ]


def wc(t: Tree) -> list[Draft]:
    note = t.note_files[0]
    return [
        Draft(
            1,
            (
                f"Write the number of lines of {t.log_file} to {t.out}.",
                f"How long is {t.log_file}, in lines? Answer in {t.out}.",
            ),
            f"wc -l < {t.log_file} > {t.out}",
            f"wc -w < {t.log_file} > {t.out}",
            {t.out: str(len(t.log))},
        ),
        Draft(
            1,
            (
                f"Write the number of words in {note} to {t.out}.",
                f"How many words does {note} have? Answer in {t.out}.",
            ),
            f"wc -w < {note} > {t.out}",
            f"wc -l < {note} > {t.out}",
            {t.out: str(len(t.files[note].split()))},
        ),
        Draft(
            1,
            (f"Write the number of bytes of {note} to {t.out}.", f"How large is {note}, in bytes? Answer in {t.out}."),
            f"wc -c < {note} > {t.out}",
            f"wc -w < {note} > {t.out}",
            {t.out: str(len(t.files[note]))},
        ),
    ]


def paste(t: Tree) -> list[Draft]:
    left, right = t.lists
    lines = t.files[left].split(), t.files[right].split()
    return [
        Draft(
            2,
            (
                f"Write the lines of {left} and {right} side by side to {t.out}, a comma between them.",
                f"Join {left} and {right} line by line with commas, as {t.out}.",
            ),
            f"paste -d, {left} {right} > {t.out}",
            f"paste -d, {right} {left} > {t.out}",
            {t.out: _lines(map(",".join, zip(*lines, strict=True)))},
        ),
        Draft(
            2,
            (
                f"Write all lines of {left} to {t.out} as one line, commas between them.",
                f"Make one line of {left}, its words separated by commas, and keep it in {t.out}.",
            ),
            f"paste -sd, {left} > {t.out}",
            f"cat {left} > {t.out}",
            {t.out: ",".join(lines[0])},
        ),
        Draft(
            3,
            (
                f"Write the lines of {right} to {t.out}, two of them a line, a colon between them.",
                f"Pair the lines of {right}: first and second, third and fourth, ... joined by a colon, in {t.out}.",
            ),
            f"paste -d: - - < {right} > {t.out}",
            f"paste -sd: {right} > {t.out}",
            {t.out: _lines(map(":".join, zip(lines[1][::2], lines[1][1::2], strict=True)))},
        ),
    ]


def comm(t: Tree) -> list[Draft]:
    left, right = t.lists
    a, b = (set(t.files[side].split()) for side in t.lists)
    return [
        Draft(
            2,
            (
                f"{left} and {right} are sorted. Write the lines that both have to {t.out}.",
                f"What do the sorted lists {left} and {right} have in common? Into {t.out}.",
            ),
            f"LC_ALL=C comm -12 {left} {right} > {t.out}",
            f"LC_ALL=C comm -23 {left} {right} > {t.out}",
            {t.out: _lines(sorted(a & b))},
        ),
        Draft(
            2,
            (
                f"{left} and {right} are sorted. Write the lines that only {left} has to {t.out}.",
                f"Which lines of the sorted {left} are missing from {right}? Into {t.out}.",
            ),
            f"LC_ALL=C comm -23 {left} {right} > {t.out}",
            f"LC_ALL=C comm -12 {left} {right} > {t.out}",
            {t.out: _lines(sorted(a - b))},
        ),
        Draft(
            3,
            (
                f"Write the lines that exactly one of {left} and {right} has to {t.out}, sorted.",
                f"{t.out} shall list, in order, what stands in {left} or in {right}, but not in both.",
            ),
            f"LC_ALL=C sort {left} {right} | uniq -u > {t.out}",
            f"LC_ALL=C sort {left} {right} | uniq -d > {t.out}",
            {t.out: _lines(sorted(a ^ b))},
        ),
    ]


def chmod(t: Tree) -> list[Draft]:
    return [
        Draft(
            1,
            (
                f"Let the owner, and nobody else, read, write and execute {t.script}.",
                f"Give {t.script} the mode rwx for its owner only.",
            ),
            f"chmod 700 {t.script}",
            f"chmod 755 {t.script}",
            {t.script: 0o700},
        ),
        Draft(
            1,
            (
                f"Set the permissions of {t.conf_file} to 640.",
                f"{t.conf_file} shall be rw for its owner, r for its group, nothing else.",
            ),
            f"chmod 640 {t.conf_file}",
            f"chmod 604 {t.conf_file}",
            {t.conf_file: 0o640},
        ),
        Draft(
            2,
            (
                f"Let everybody read {t.table}, and nobody write it.",
                f"Make {t.table} readable for all and writable for none.",
            ),
            f"chmod 444 {t.table}",
            f"chmod a+r {t.table}",
            {t.table: 0o444},
        ),
    ]


def ln(t: Tree) -> list[Draft]:
    link = f"{t.root}/{t.new}"
    folder = f"{t.root}/{t.places[1]}"
    return [
        Draft(
            1,
            (
                f"Make {link} a symbolic link to {t.log_file}.",
                f"{t.log_file} shall also be reached as {link}, by a symlink.",
            ),
            f"ln -s $PWD/{t.log_file} {link}",
            f"cp {t.log_file} {link}",
            {link: Link(t.log_file)},
        ),
        Draft(
            2,
            (
                f"Make {link} a symbolic link to the folder {folder}.",
                f"By the name {link}, a symlink, one shall get into {folder}.",
            ),
            f"ln -s $PWD/{folder} {link}",
            f"ln -s $PWD/{t.root} {link}",
            {link: Link(folder)},
        ),
        Draft(
            2,
            (
                f"Make {link} a hard link to {t.table}.",
                f"Give the file {t.table} the second name {link}, not by a symlink.",
            ),
            f"ln {t.table} {link}",
            f"ln -s $PWD/{t.table} {link}",
            {"links": Says(f"stat -c %h {t.table}; [ {t.table} -ef {link} ] && echo same", "2\nsame")},
        ),
    ]


def tar(t: Tree) -> list[Draft]:
    packed, folder = f"{t.root}/{t.new}.tar.gz", f"{t.root}/notes"
    names = [path.rpartition("/")[2] for path in t.note_files]
    listing = f"tar -tzf {packed} | grep -o '[a-z]*.txt$' | LC_ALL=C sort"
    return [
        Draft(
            2,
            (
                f"Pack the folder {folder} into {packed}, compressed by gzip.",
                f"Make a gzipped tar archive {packed} of {folder}.",
            ),
            f"tar -czf {packed} -C {t.root} notes",
            f"tar -czf {packed} -C {t.root} logs",
            {"packed": Says(listing, _lines(names)), t.note_files[0]: t.files[t.note_files[0]].rstrip("\n")},
        ),
        Draft(
            2,
            (
                f"Pack the files ending in .txt in {folder} into {packed}, compressed by gzip, and delete the files.",
                f"Move all .txt files of {folder} into a gzipped tar archive, {packed}; outside they shall be gone.",
            ),
            f"tar -czf {packed} --remove-files {folder}/*.txt",
            f"tar -czf {packed} {folder}/*.txt",
            {"packed": Says(listing, _lines(names)), **dict.fromkeys(t.note_files)},
        ),
        Draft(
            3,
            (
                f"Pack all files ending in .bak below {t.root} into {packed}, compressed by gzip.",
                f"A gzipped tar archive {packed} shall hold every .bak file of {t.root}, and nothing else.",
            ),
            f"find {t.root} -name '*.bak' | tar -czf {packed} -T -",
            f"tar -czf {packed} {t.root}/{t.places[0]}",
            {
                "packed": Says(
                    f"tar -tzf {packed} | grep -v '/$' | grep -o '[a-z0-9]*[.].*$' | LC_ALL=C sort",
                    _lines(sorted(path.rpartition("/")[2] for path in t.backups)),
                )
            },
        ),
    ]


def gzip(t: Tree) -> list[Draft]:
    note = t.note_files[1]
    return [
        Draft(
            1,
            (
                f"Compress {t.log_file} by gzip; only {t.log_file}.gz shall be left.",
                f"Turn {t.log_file} into {t.log_file}.gz.",
            ),
            f"gzip {t.log_file}",
            f"gzip -k {t.log_file}",
            {t.log_file: None, "log": Says(f"zcat {t.log_file}.gz", t.files[t.log_file].rstrip("\n"))},
        ),
        Draft(
            1,
            (
                f"Compress {note} by gzip to {note}.gz, and keep {note}.",
                f"Beside {note} there shall be a gzipped copy, {note}.gz.",
            ),
            f"gzip -k {note}",
            f"gzip {note}",
            {note: t.files[note].rstrip("\n"), "note": Says(f"zcat {note}.gz", t.files[note].rstrip("\n"))},
        ),
        Draft(
            2,
            (
                f"Write the lines of {t.log_file} that contain ERROR to {t.out}.gz, compressed by gzip.",
                f"The ERROR lines of {t.log_file} shall be in {t.out}.gz, gzipped.",
            ),
            f"grep ERROR {t.log_file} | gzip > {t.out}.gz",
            f"gzip < {t.log_file} > {t.out}.gz",
            {"errors": Says(f"zcat {t.out}.gz", _lines(" ".join(row) for row in t.log if row[1] == "ERROR"))},
        ),
    ]


def cp(t: Tree) -> list[Draft]:
    copy, folder = f"{t.root}/{t.places[2]}", f"{t.root}/{t.new}"
    name = t.log_file.rpartition("/")[2]
    return [
        Draft(
            1,
            (
                f"Copy {t.log_file} into the folder {copy}.",
                f"{copy} shall have a copy of {t.log_file}, which stays where it is.",
            ),
            f"cp {t.log_file} {copy}/",
            f"mv {t.log_file} {copy}/",
            {f"{copy}/{name}": t.files[t.log_file].rstrip("\n"), t.log_file: t.files[t.log_file].rstrip("\n")},
        ),
        Draft(
            2,
            (
                f"Copy the folder {t.root}/notes, with all that is in it, as {folder}.",
                f"{folder} shall be a copy of the folder {t.root}/notes.",
            ),
            f"cp -r {t.root}/notes {folder}",
            f"mkdir {folder}",
            {path.replace(f"{t.root}/notes", folder): t.files[path].rstrip("\n") for path in t.note_files}
            | {t.note_files[0]: t.files[t.note_files[0]].rstrip("\n")},
        ),
        Draft(
            2,
            (
                f"Copy all files ending in .bak below {t.root} into a new folder {folder}.",
                f"Gather copies of the .bak files of {t.root} in {folder}, which has to be made.",
            ),
            f"mkdir {folder} && find {t.root} -name '*.bak' ! -path '{folder}/*' -exec cp {{}} {folder}/ \\;",
            f"mkdir {folder} && find {t.root} -name '*.tmp' -exec cp {{}} {folder}/ \\;",
            {f"{folder}/{path.rpartition('/')[2]}": f"backup of {path}" for path in t.backups}
            | {t.backups[0]: f"backup of {t.backups[0]}"},
        ),
    ]


def mv(t: Tree) -> list[Draft]:
    old = t.note_files[2]
    new = f"{t.root}/notes/{t.new}.txt"
    text = t.files[old].rstrip("\n")
    moved = f"{t.root}/{t.places[0]}"
    return [
        Draft(
            1,
            (f"Rename {old} to {new}.", f"{old} shall be called {new} from now on."),
            f"mv {old} {new}",
            f"cp {old} {new}",
            {old: None, new: text},
        ),
        Draft(
            2,
            (
                f"Move all notes, {t.root}/notes/*.txt, into the folder {moved}.",
                f"The .txt files of {t.root}/notes belong into {moved}: take them there.",
            ),
            f"mv {t.root}/notes/*.txt {moved}/",
            f"cp {t.root}/notes/*.txt {moved}/",
            {path: None for path in t.note_files}
            | {path.replace(f"{t.root}/notes", moved): t.files[path].rstrip("\n") for path in t.note_files},
        ),
        Draft(
            3,
            (
                f"Change the ending of all files in {t.root}/notes from .txt to .md.",
                f"What is called NAME.txt in {t.root}/notes shall be called NAME.md.",
            ),
            f"for f in {t.root}/notes/*.txt; do mv $f ${{f%.txt}}.md; done",
            f"for f in {t.root}/notes/*.txt; do cp $f ${{f%.txt}}.md; done",
            {path: None for path in t.note_files}
            | {path.replace(".txt", ".md"): t.files[path].rstrip("\n") for path in t.note_files},
        ),
    ]


def mkdir(t: Tree) -> list[Draft]:
    deep = f"{t.root}/{t.new}/{t.words[1]}/{t.words[2]}"
    cities = sorted({city for _, city, *_ in t.people})
    return [
        Draft(
            1,
            (f"Make the folder {deep}, and those on the way to it.", f"{deep} shall exist, a folder in folders."),
            f"mkdir -p {deep}",
            f"mkdir -p {t.root}/{t.new} && touch {t.root}/{t.new}/{t.words[1]}",
            {"folder": Says(f"stat -c %F {deep}", "directory")},
        ),
        Draft(
            1,
            (
                f"Make a folder {t.root}/{t.new} that only its owner may enter, read and write.",
                f"{t.root}/{t.new} shall be a new folder of mode 700.",
            ),
            f"mkdir -m 700 {t.root}/{t.new}",
            f"mkdir {t.root}/{t.new}",
            {f"{t.root}/{t.new}": 0o700, "folder": Says(f"stat -c %F {t.root}/{t.new}", "directory")},
        ),
        Draft(
            3,
            (
                f"Make a folder in {t.root}/{t.new} for every city in {t.table}, of that name.",
                f"For each city that {t.table} names there shall be a folder {t.root}/{t.new}/CITY.",
            ),
            f"tail -n +2 {t.table} | cut -d, -f2 | sort -u | while read c; do mkdir -p {t.root}/{t.new}/$c; done",
            f"tail -n +2 {t.table} | cut -d, -f3 | sort -u | while read c; do mkdir -p {t.root}/{t.new}/$c; done",
            {"folders": Says(f"cd {t.root}/{t.new} && find * -type d | LC_ALL=C sort", _lines(cities))},
        ),
    ]


def rm(t: Tree) -> list[Draft]:
    folder = f"{t.root}/{t.places[1]}"
    keep, *rest = t.note_files
    return [
        Draft(
            1,
            (f"Delete all files ending in .bak below {t.root}, and nothing else.", f"Rid {t.root} of its .bak files."),
            f"find {t.root} -name '*.bak' -delete",
            f"rm -r {t.root}/{t.places[0]}",
            dict.fromkeys(t.backups) | {t.empty: ""},
        ),
        Draft(
            1,
            (f"Delete the folder {folder} with all that is in it.", f"{folder} is not needed any more: away with it."),
            f"rm -r {folder}",
            f"rm {folder}/*",
            {folder: None, t.backups[0]: f"backup of {t.backups[0]}"},
        ),
        Draft(
            2,
            (
                f"Delete everything in {t.root}/notes but {keep}.",
                f"Of all files in {t.root}/notes, only {keep} shall be left.",
            ),
            f"find {t.root}/notes -type f ! -path {keep} -delete",
            f"rm {t.root}/notes/*",
            {keep: t.files[keep].rstrip("\n"), **dict.fromkeys(rest)},
        ),
    ]


def cron(t: Tree) -> list[Draft]:
    minute, hour, _ = t.jobs[1]
    lines = [f"{m} {h} * * * {c}" for m, h, c in t.jobs]
    added = f"{t.words[8]}"
    return [
        Draft(
            2,
            (
                f"Add a line to the crontab {t.cron_file} that runs bin/{added} every day at {hour}:{minute:02d}.",
                f"bin/{added} shall run daily at {hour}:{minute:02d}: append that to {t.cron_file} as crontab has it.",
            ),
            f"echo '{minute} {hour} * * * bin/{added}' >> {t.cron_file}",
            f"echo '{hour} {minute} * * * bin/{added} daily' >> {t.cron_file}",
            {t.cron_file: _lines([*lines, f"{minute} {hour} * * * bin/{added}"])},
        ),
        Draft(
            2,
            (
                f"Write the commands of the crontab {t.cron_file} to {t.out}, in their order, without the times.",
                f"What does the crontab {t.cron_file} run? Only the commands, a line each, into {t.out}.",
            ),
            f"awk '{{ print $6 }}' {t.cron_file} > {t.out}",
            f"awk '{{ print $2 }}' {t.cron_file} > {t.out}",
            {t.out: _lines(c for *_, c in t.jobs)},
        ),
        Draft(
            3,
            (
                f"Write the commands of the crontab {t.cron_file} to {t.out}, the earliest of the day first.",
                f"{t.out} shall list what the crontab {t.cron_file} runs, in the order in which it runs on a day.",
            ),
            f"sort -k2,2n -k1,1n {t.cron_file} | awk '{{ print $6 }}' > {t.out}",
            f"sort -k2,2nr {t.cron_file} | awk '{{ print $6 }}' > {t.out}",
            {t.out: _lines(c for _, c in sorted((h, c) for _, h, c in t.jobs))},
        ),
    ]


def processes(t: Tree) -> list[Draft]:
    user = t.processes[0][1]
    by_load = sorted(t.processes, key=lambda row: -row[2])
    return [
        Draft(
            2,
            (
                f"{t.ps_file} lists processes. Write the PID of the one with the highest CPU to {t.out}.",
                f"Which PID in the process list {t.ps_file} uses most CPU? Into {t.out} with it.",
            ),
            f"tail -n +2 {t.ps_file} | sort -k3,3nr | head -n 1 | cut -d' ' -f1 > {t.out}",
            f"tail -n +2 {t.ps_file} | sort -k3,3n | head -n 1 | cut -d' ' -f1 > {t.out}",
            {t.out: str(by_load[0][0])},
        ),
        Draft(
            1,
            (
                f"{t.ps_file} lists processes. Write the number of those of the user {user} to {t.out}.",
                f"How many processes of {user} are there in {t.ps_file}? Answer in {t.out}.",
            ),
            f"awk '$2 == \"{user}\"' {t.ps_file} | wc -l > {t.out}",
            f"awk '$2 != \"{user}\"' {t.ps_file} | wc -l > {t.out}.txt",
            {t.out: str(sum(row[1] == user for row in t.processes))},
        ),
        Draft(
            3,
            (
                f"{t.ps_file} lists processes. Write the 3 PIDs with the highest CPU to {t.out}, highest first.",
                f"{t.out} shall name the PIDs of the three most demanding processes of {t.ps_file}, by falling CPU.",
            ),
            f"tail -n +2 {t.ps_file} | sort -k3,3nr | head -n 3 | cut -d' ' -f1 > {t.out}",
            f"tail -n +2 {t.ps_file} | sort -k3,3n | head -n 3 | cut -d' ' -f1 > {t.out}",
            {t.out: _lines(row[0] for row in by_load[:3])},
        ),
    ]


def scripts(t: Tree) -> list[Draft]:
    made = f"{t.root}/bin/{t.new}.sh"
    return [
        Draft(
            2,
            (
                f"Run {t.script} with bash, with the argument {t.new}, and write what it prints to {t.out}.",
                f"What does bash {t.script} {t.new} print? Keep it in {t.out}.",
            ),
            f"bash {t.script} {t.new} > {t.out}",
            f"bash {t.script} > {t.out}",
            {t.out: f"{t.printed} {t.new}"},
        ),
        Draft(
            2,
            (
                f"Write an executable bash script {made} that prints {t.printed}.",
                f"{made} shall be a bash script, one that can be executed and says {t.printed}.",
            ),
            f"printf '#!/bin/bash\\necho {t.printed}\\n' > {made} && chmod +x {made}",
            f"printf '#!/bin/bash\\necho {t.printed}\\n' > {made}",
            {"script": Says(f"$PWD/{made}", t.printed)},
        ),
        Draft(
            3,
            (
                f"Run {t.script} with bash and write its exit status to {t.out}.",
                f"With which status does {t.script}, run by bash, exit? Only the number, into {t.out}.",
            ),
            f"bash {t.script} > /dev/null; echo $? > {t.out}",
            f"bash {t.script} > {t.out}",
            {t.out: "3"},
        ),
    ]


def loops(t: Tree) -> list[Draft]:
    total = sum(len(lines) for lines in t.notes.values())
    folder = f"{t.root}/{t.places[1]}"
    return [
        Draft(
            2,
            (
                f"How many lines do the files {t.root}/notes/*.txt have together? Write the number to {t.out}.",
                f"Add up the lines of all .txt files in {t.root}/notes and leave the sum in {t.out}.",
            ),
            f"cat {t.root}/notes/*.txt | wc -l > {t.out}",
            f"ls {t.root}/notes/*.txt | wc -l > {t.out}",
            {t.out: str(total)},
        ),
        Draft(
            3,
            (
                f"Make an empty file NAME.new in {folder} for every NAME in {t.table}.",
                f"For each person in {t.table} there shall be an empty file in {folder}, called by the name and .new.",
            ),
            f"tail -n +2 {t.table} | cut -d, -f1 | while read n; do : > {folder}/$n.new; done",
            f"tail -n +2 {t.table} | cut -d, -f2 | while read n; do : > {folder}/$n.new; done",
            {
                "made": Says(
                    f"cd {folder} && ls *.new | LC_ALL=C sort", _lines(sorted(f"{row[0]}.new" for row in t.people))
                )
            },
        ),
        Draft(
            3,
            (
                f"Write the first line of each file in {t.root}/notes to {t.out}, in the order of the files' names.",
                f"{t.out} shall hold the first lines of the files in {t.root}/notes, by file name.",
            ),
            f"for f in {t.root}/notes/*; do head -n 1 $f; done > {t.out}",
            f"for f in {t.root}/notes/*; do tail -n 1 $f; done > {t.out}",
            {t.out: _lines(t.notes[path][0] for path in t.note_files)},
        ),
    ]


def checksums(t: Tree) -> list[Draft]:
    def digest(kind: str, path: str) -> str:
        return hashlib.new(kind, t.files[path].encode()).hexdigest()

    return [
        Draft(
            2,
            (
                f"Write the SHA-256 checksum of {t.table}, the checksum alone, to {t.out}.",
                f"{t.out} shall hold nothing but the sha256 of {t.table}.",
            ),
            f"sha256sum < {t.table} | cut -d' ' -f1 > {t.out}",
            f"sha256sum {t.table} > {t.out}",
            {t.out: digest("sha256", t.table)},
        ),
        Draft(
            2,
            (
                f"Write the MD5 checksum of {t.script}, the checksum alone, to {t.out}.",
                f"{t.out} shall hold nothing but the md5 of {t.script}.",
            ),
            f"md5sum < {t.script} | cut -d' ' -f1 > {t.out}",
            f"md5sum {t.script} > {t.out}",
            {t.out: digest("md5", t.script)},
        ),
        Draft(
            3,
            (
                f"Write the SHA-256 checksums of all files in {t.root}/notes, the checksums alone, to {t.out}, by file"
                " name.",
                f"One sha256 a line, by file name and without it: the files in {t.root}/notes, in {t.out}.",
            ),
            f"sha256sum {t.root}/notes/* | cut -d' ' -f1 > {t.out}",
            f"sha256sum {t.root}/notes/* | cut -d' ' -f1 | sort | head -n 2 > {t.out}",
            {t.out: _lines(digest("sha256", path) for path in t.note_files)},
        ),
    ]


def stat(t: Tree) -> list[Draft]:
    sizes = {path: len(t.files[path]) for path in t.note_files}
    largest = max(sizes, key=lambda path: (sizes[path], path))
    return [
        Draft(
            1,
            (
                f"Write the permissions of {t.script}, as an octal number, to {t.out}.",
                f"What mode, in octal, does {t.script} have? Into {t.out}.",
            ),
            f"stat -c %a {t.script} > {t.out}",
            f"stat -c %s {t.script} > {t.out}",
            {t.out: "644"},
        ),
        Draft(
            1,
            (f"Write the size of {t.table} in bytes to {t.out}.", f"How many bytes has {t.table}? Answer in {t.out}."),
            f"stat -c %s {t.table} > {t.out}",
            f"stat -c %a {t.table} > {t.out}",
            {t.out: str(len(t.files[t.table]))},
        ),
        Draft(
            3,
            (
                f"Write the path of the largest file in {t.root}/notes to {t.out}; of equal ones the last by name.",
                f"{t.out} shall name the largest of {t.root}/notes/*, by its path, the last by name if several are.",
            ),
            f"stat -c '%s %n' {t.root}/notes/* | LC_ALL=C sort -k1,1n -k2,2 | tail -n 1 | cut -d' ' -f2 > {t.out}",
            f"stat -c '%s %n' {t.root}/notes/* | LC_ALL=C sort -k1,1nr -k2,2r | tail -n 1 | cut -d' ' -f2 > {t.out}",
            {t.out: largest},
        ),
    ]


def pipelines(t: Tree) -> list[Draft]:
    def counted(values) -> str:
        return _lines(
            f"{value} {n}" for value, n in sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))
        )

    order = "LC_ALL=C sort | uniq -c | LC_ALL=C sort -k1,1nr -k2,2 | awk '{ print $2, $1 }'"
    return [
        Draft(
            3,
            (
                f"Count the lines of {t.log_file} by level, the second word, and write LEVEL NUMBER to {t.out},"
                " the most frequent first, equally frequent ones by name.",
                f"How often does each level (second word) occur in {t.log_file}? As LEVEL NUMBER, by falling number,"
                f" then by name, in {t.out}.",
            ),
            f"cut -d' ' -f2 {t.log_file} | {order} > {t.out}",
            f"cut -d' ' -f1 {t.log_file} | {order} > {t.out}",
            {t.out: counted(row[1] for row in t.log)},
        ),
        Draft(
            3,
            (
                f"Count the people in {t.table} by team and write TEAM NUMBER to {t.out}, the largest team first,"
                " equally large ones by name.",
                f"How many are in each team of {t.table}? TEAM NUMBER, by number, then by name, in {t.out}.",
            ),
            f"tail -n +2 {t.table} | cut -d, -f3 | {order} > {t.out}",
            f"tail -n +2 {t.table} | cut -d, -f1 | {order} > {t.out}",
            {t.out: counted(row[2] for row in t.people)},
        ),
        Draft(
            3,
            (
                f"Count the processes in {t.ps_file} by user and write USER NUMBER to {t.out}, the largest number"
                " first, equal ones by name.",
                f"How many processes has each user in {t.ps_file}? As USER NUMBER, by falling number, then by name, in"
                f" {t.out}.",
            ),
            f"tail -n +2 {t.ps_file} | cut -d' ' -f2 | {order} > {t.out}",
            f"tail -n +2 {t.ps_file} | cut -d' ' -f1 | {order} > {t.out}",
            {t.out: counted(row[1] for row in t.processes)},
        ),
    ]


SKILLS: tuple[Callable[[Tree], list[Draft]], ...] = (
    *(find, grep, sed, awk, sort, uniq, cut, tr, head, tail, wc, paste, comm, chmod, ln, tar, gzip, cp, mv, mkdir, rm),
    *(cron, processes, scripts, loops, checksums, stat, pipelines),
)
