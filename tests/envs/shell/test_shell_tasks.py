"""Tasks are what they say, splits share nothing, and public sets are read or refused by line and field."""

import dataclasses
import json
import re
from collections import Counter

import pytest
from sandboxed import needs_sandbox

from lfo.cli import main
from lfo.envs.shell import draw_world, trees
from lfo.envs.shell.machines import HOUSE_TASKS, Desk, draw_machines
from lfo.envs.shell.oracle import certify, problem
from lfo.envs.shell.public import ANSWER, read_public
from lfo.envs.shell.records import EvaluationInfo, PublicTask, ShellTask, bash
from lfo.envs.shell.sandbox import Sandbox
from lfo.envs.shell.tasks import EACH
from lfo.envs.shell.templates import SKILLS
from lfo.types import from_json, to_json


def test_there_are_enough_of_every_kind(shell_world):
    tasks, skills = shell_world.tasks, {skill for task in shell_world.tasks for skill in task.skill_list}
    assert len(tasks) >= 400 and len(skills) == len(SKILLS) + 1 == 29
    for split, drafts in EACH.items():
        of = [task for task in tasks if task.split == split]
        assert Counter(task.skill_list for task in of if not task.house) == {(s.__name__,): len(drafts) for s in SKILLS}
        assert sum(bool(task.house) for task in of) == HOUSE_TASKS[split]
        assert {task.level for task in of} == {1, 2, 3}
    assert len({task.task_id for task in tasks}) == len({task.sample_index for task in tasks}) == len(tasks)


def test_a_world_is_its_seed(shell_world):
    assert draw_world(0) == shell_world
    assert draw_world(1).tasks != shell_world.tasks and draw_world(1).house != shell_world.house


def test_splits_share_neither_templates_nor_trees_nor_machines(shell_world):
    of = (trees.ROOTS, trees.NAMES, trees.CITIES, trees.WORDS, trees.PLACES, trees.SERVICES, trees.ANSWERS)
    words = [{word for vocabulary in of for word in vocabulary[split]} for split in EACH]
    assert len(set.union(*words)) == sum(map(len, words))
    assert set(EACH["train"]) == set(EACH["validation"]) and not set(EACH["train"]) & set(EACH["test"])
    machines = {split: {t.machine for t in shell_world.tasks if t.split == split} - {""} for split in EACH}
    assert not (machines["train"] | machines["validation"]) & machines["test"]
    assert all(shell_world.house[name].known == (split != "test") for split in EACH for name in machines[split])


def test_held_out_wordings_are_never_said(shell_world):
    said = {task.instruction for task in shell_world.tasks}
    assert not said & {task.rephrased for task in shell_world.tasks}
    assert all(task.rephrased and task.neighbour and task.ground_truth != task.neighbour for task in shell_world.tasks)


def test_tasks_are_in_the_public_schema(shell_world):
    names = [field.name for field in dataclasses.fields(PublicTask)]
    task = shell_world.tasks[0]
    public = {name: value for name, value in json.loads(to_json(task)).items() if name in names}
    read = from_json(PublicTask, json.dumps(public), "here")
    assert read.evaluation_info == task.evaluation_info and read.sample_index == task.sample_index
    assert set(public["initialization_command_item"]) == {"command_name", "script"}


@needs_sandbox
def test_the_oracle_certifies_every_skill(shell_world):
    """A task of every draft of every skill, and house tasks of every level; `lfo shell certify` does all."""
    chosen = {}
    for task in shell_world.tasks:
        begins = "" if task.house else task.instruction[:14]
        if task.split != "validation":
            chosen.setdefault((task.split, task.skill_list, task.level, begins), task)
    assert {task.skill_list for task in chosen.values() if task.split == "test"} == {
        task.skill_list for task in shell_world.tasks
    }
    verdicts = certify(chosen.values(), shell_world.house)
    assert len(verdicts) >= 75 and [(v.task.instruction, v.problem) for v in verdicts if v.problem] == []


@needs_sandbox
def test_the_oracle_sees_what_is_wrong(shell_world, tmp_path):
    good = next(task for task in shell_world.tasks if task.skill_list == ("wc",))

    def changed(evaluation=good.evaluation, truth=good.ground_truth, **others) -> ShellTask:
        return dataclasses.replace(good, evaluation_info=EvaluationInfo(bash(evaluation), bash(truth)), **others)

    assert problem(good) == ""
    assert problem(changed(evaluation="true")) == "doing nothing passes"
    assert problem(changed(truth="false")) == "the ground truth does not pass"
    assert problem(changed(neighbour=good.ground_truth)) == "the wrong neighbour passes"
    assert (
        problem(changed(initialization_command_item=bash("echo no; exit 3"))) == "the initialization exits with 3: no"
    )


# ---------------------------------------------------------------- house tools


def test_variations_have_their_shares():
    for known in (True, False):
        drawn = Counter(machine.variation for machine in draw_machines(3).values() if machine.known == known)
        assert drawn == {"typical": 28, "extra": 8, "different": 4}


def test_typical_machines_of_a_kind_agree():
    machines = draw_machines(3).values()
    for kind in {machine.kind for machine in machines}:
        same = [machine.wanted for machine in machines if machine.kind == kind and machine.variation == "typical"]
        assert all(wanted == same[0] for wanted in same)
        more = [machine.wanted for machine in machines if machine.kind == kind and machine.variation == "extra"]
        assert all(wanted[tool].items() >= same[0][tool].items() for wanted in more for tool in same[0])
        assert any(wanted != same[0] for wanted in more)


def test_a_tool_serves_or_refuses_once(shell_world):
    name, machine = next(iter(shell_world.house.items()))
    tool, wanted = next(iter(machine.wanted.items()))
    flags = [part for flag, value in wanted.items() for part in (flag, value)]
    for words, served in [
        ([*flags, "a"], True),
        (["a", *flags], True),
        ([*(f"{flag}={value}" for flag, value in wanted.items()), "a"], True),
        ([], False),
        (["a"], False),
        (flags, False),
        ([*flags, "a", "b"], False),
        ([*flags, "--more", "x", "a"], False),
        ([*flags[:-1], "other", "a"], False),
        ([*flags[:-1]], False),
    ]:
        desk = Desk(shell_world.house, name)
        status, said = desk([tool, *words])
        assert (status == 0) == served and desk([tool, "--served", "a"]) == (0, "yes" if served else "no")
        if not served:
            assert all(f"{flag} {value}" in said for flag, value in wanted.items())
            assert desk([tool, *flags, "a"]) == (3, f"{tool}: locked until tomorrow, after a refused call.")
    assert Desk(shell_world.house, name)(["rm", "-rf"])[0] == 1


# ---------------------------------------------------------------- public sets

LIFELONG = {
    "sample_index": 5,
    "instruction": "Make a file a.",
    "initialization_command_item": {"command_name": "bash", "script": "rm -f a"},
    "evaluation_info": {
        "evaluation_command_item": {"command_name": "bash", "script": "[ -f a ]"},
        "ground_truth_command_item": {"command_name": "bash", "script": "touch a"},
    },
    "skill_list": ["touch"],
}
COUNTING = {
    "description": "How many files end in .x?",
    "explanation": "Use find.",
    "create": {"init": "mkdir -p ~/d; touch ~/d/1.x ~/d/2.x; false"},
    "evaluation": {
        "check": [None, {"language": "python", "file": "check/integer-match.py"}],
        "example": "# count\nfind ~/d -name '*.x' | wc -l",
    },
}


@pytest.fixture
def public(tmp_path):
    def written(text) -> str:
        path = tmp_path / "set.json"
        path.write_text(text if isinstance(text, str) else json.dumps(text, indent=1))
        return str(path)

    return written


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ([LIFELONG, LIFELONG | {"sample_index": 6}], [5, 6]),
        ({"3": {k: v for k, v in LIFELONG.items() if k != "sample_index"} | {"raw_entry_hash": 1}}, [3]),
        (json.dumps(LIFELONG) + "\n" + json.dumps(COUNTING) + "\n", [5, 1]),
        ([COUNTING], [0]),
    ],
)
def test_public_schemas_are_read(public, text, indices):
    tasks, problems = read_public(public(text))
    assert [task.sample_index for task in tasks] == indices and problems == []


@pytest.mark.parametrize("task", [LIFELONG, COUNTING])
def test_unknown_keys_are_left_aside(public, task):
    more = {k: v | {"more": 1} if isinstance(v, dict) else v for k, v in task.items()} | {"more": {"a": []}}
    assert read_public(public([more])) == read_public(public([task]))


def test_fields_that_python_wrote_are_read(public):
    quoted = {k: str(v) if isinstance(v, dict | list) else v for k, v in LIFELONG.items()} | {"more": "{1, 2}"}
    assert read_public(public([quoted])) == read_public(public([LIFELONG]))


@needs_sandbox
def test_imported_tasks_are_certified(public, capsys):
    wrong = LIFELONG | {"initialization_command_item": {"command_name": "bash", "script": "touch a"}}
    assert main(["shell", "import", public([LIFELONG, COUNTING, wrong])]) == 0
    assert capsys.readouterr().out == "public-0002 (5): doing nothing passes\n2 of 3 tasks certified\n"
    assert main(["shell", "import", path := public([LIFELONG, 3, {**COUNTING, "create": {}}, LIFELONG])]) == 0
    assert capsys.readouterr().out == (
        f"{path}, the task that begins in line 23: a task must be an object.\n"
        f"{path}, the task that begins in line 24, create.init: field required.\n"
        "2 of 4 tasks certified, 2 of them cannot be read\n"
    )


@needs_sandbox
def test_our_own_tasks_must_all_be_certified(shell_world, monkeypatch, capsys):
    good = next(task for task in shell_world.tasks if task.skill_list == ("wc",))
    bad = dataclasses.replace(good, neighbour=good.ground_truth)
    for tasks, status in (([good], 0), ([good, bad], 1)):
        world = dataclasses.replace(shell_world, tasks=tasks)
        monkeypatch.setattr("lfo.envs.shell.draw_world", lambda _, world=world: world)
        assert main(["shell", "certify"]) == status
        said = capsys.readouterr()
        assert f"1 of {len(tasks)} tasks certified\n" in said.out and bool(said.err) == bool(status)


@pytest.mark.parametrize("command", ["certify", "import"])
def test_a_sandbox_that_cannot_be_had_is_said_once(public, command, capsys):
    file = [public([LIFELONG, COUNTING])] if command == "import" else []
    assert main(["shell", command, *file, "--sandbox", "podman:foo"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1


@needs_sandbox
@pytest.mark.parametrize(
    ("script", "wanted", "right", "wrong"),
    [
        ("integer-match.py", "-3", ("-3", " -3 "), ("3", "three", "", "-3 4")),
        ("string-match.py", "two words", (" two words\r\n", "two words"), ("twowords", "two", "")),
        ("size-match.py", "1.5K", ("1.5K", "1536", "1536B", " 1.5 KB", "1536 Byte"), ("1.5M", "1.5", "K", "none", "")),
    ],
)
def test_answers_are_compared_as_agent_bench_does(public, script, wanted, right, wrong):
    check = [None, {"language": "python", "file": f"check/{script}"}]
    [task], _ = read_public(public([COUNTING | {"evaluation": {"check": check, "example": f"echo '{wanted}'"}}]))
    assert problem(task) == "" and ANSWER in task.instruction
    with Sandbox() as box:
        for answers, passes in ((right, True), (wrong, False)):
            for answer in answers:
                box.run(f"printf '%s\\n' '{answer}' > {ANSWER}")
                assert (box.run(task.evaluation).status == 0) == passes, answer


@needs_sandbox
def test_a_task_whose_right_answer_is_nothing_is_none(public):
    check = [None, {"language": "python", "file": "check/string-match.py"}]
    [task], _ = read_public(public([COUNTING | {"evaluation": {"check": check, "example": "true"}}]))
    assert problem(task) == "the ground truth does not pass"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            [LIFELONG, {**LIFELONG, "evaluation_info": {}}],
            r"line 23, evaluation_info\.evaluation_command_item: field req",
        ),
        ([{**LIFELONG, "instruction": 3}], r"line 2, instruction: .* string"),
        ([3], r"line 2: a task must be an object"),
        (
            [{**LIFELONG, "initialization_command_item": {"command_name": "zsh", "script": ""}}],
            r"line 2, initialization_command_item\.command_name: 'zsh' cannot be run",
        ),
        ({"1": LIFELONG, "b": {k: v for k, v in LIFELONG.items() if k != "sample_index"}}, r"line 23, sample_index: "),
        ([{**COUNTING, "create": {}}], r"line 2, create\.init: field required"),
        (
            [COUNTING | {"evaluation": {**COUNTING["evaluation"], "check": [None, {"language": "x", "file": "y"}]}}],
            r"evaluation\.check\.1\.file: 'y' is not known; integer-match.py, string-match.py, size-match.py are",
        ),
    ],
)
def test_what_is_no_task_is_named_by_line_and_field(public, text, message):
    tasks, [said] = read_public(public(text | {"9": LIFELONG} if isinstance(text, dict) else [*text, LIFELONG]))
    assert re.search(message, said) and [task.sample_index for task in tasks] == [5] * len(text)


ONE = json.dumps(LIFELONG)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{ONE}\n{{]", r"line 2: this is no JSON"),
        (f"{ONE},\n{ONE}", r"line 1: this is no JSON"),
        (f"{ONE}\ngarbage", r"line 2: this is no JSON"),
        (f"[\n{ONE},", r"line 2: this is no JSON"),
        (f"[{ONE}\n", r"line 2: this is no JSON"),
        (f"[{ONE}]\ngarbage", r"line 2: this is no JSON"),
        (f"[{ONE}\n{ONE}]", r"line 2: this is no JSON"),
        (f'{{"7":\n{ONE}', r"line 2: this is no JSON"),
        (f'{{"7": {ONE}}}\n}}', r"line 2: this is no JSON"),
        ("", r"set\.json holds no task"),
        (" \n", r"set\.json holds no task"),
        ([], r"set\.json holds no task"),
        ([3, 3], r"(?s)set\.json holds no task.*line 2: .*line 3: "),
    ],
)
def test_a_file_that_is_not_whole_or_holds_no_task_is_refused(public, text, message, capsys):
    assert main(["shell", "import", public(text)]) == 1
    said = capsys.readouterr()
    assert said.out == "" and re.search(message, said.err)


def test_a_file_that_is_no_utf_8_is_refused(tmp_path, capsys):
    (tmp_path / "set.json").write_bytes(f"[\n{ONE},\n".encode() + "ä".encode("latin-1") + b"]")
    assert main(["shell", "import", str(tmp_path / "set.json")]) == 1
    assert "set.json, line 3: this is not UTF-8 text" in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path, capsys):
    assert main(["shell", "import", str(tmp_path / "none.json")]) == 1
    assert "none.json; download a public set first" in capsys.readouterr().err
