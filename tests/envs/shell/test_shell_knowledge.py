"""What a world model of the shell is told and asked; memory and truth say notes there as in any world."""

import random

import pytest
from sandboxed import needs_sandbox
from scripted import Scripted

from lfo.config import ConfigError, RolloutConfig, WorldModelConfig
from lfo.couplings import Memory, Truth
from lfo.envs.base import written
from lfo.envs.shell import ShellEnvironment
from lfo.envs.shell.episode import BASH, observed
from lfo.envs.shell.knowledge import ShellKnowledge, meaning
from lfo.envs.shell.machines import REFUSALS, Desk, refusal
from lfo.envs.shell.sandbox import Ran
from lfo.rollout.play import play
from lfo.runs import RunFolder
from lfo.text.base import load_tokenizer
from lfo.text.codec import Codec
from lfo.train import train
from lfo.types import Attempt, Call, Example, Feedback, Malformed, Question, Turn


def run(command: str) -> Call:
    return Call(BASH, {"command": command})


@pytest.fixture(scope="module")
def knowledge(shell_world) -> ShellKnowledge:
    return ShellKnowledge(shell_world.house, shell_world.tasks)


@pytest.fixture(scope="module")
def house_tasks(shell_world):
    return [task for task in shell_world.tasks if task.house]


def asked(task, tool=None, command=None, turns=()) -> Question:
    return Question(task.instruction, tuple(turns), run(command or tool or task.house[0]))


def test_the_truth_is_what_a_tool_says(knowledge, house_tasks, shell_world):
    for task in house_tasks:
        for tool in task.house:
            for phrasing in range(len(REFUSALS)):
                real = observed(Ran(*Desk(shell_world.house, task.machine, phrasing)([tool])))
                assert meaning(real) == meaning(knowledge.truth(asked(task, tool)))
            wanted = shell_world.house[task.machine].wanted[tool]
            assert meaning(real) == ("refused", tool, frozenset(wanted.items()))
    nowhere = next(t for t in ("dump", "ship") if t not in shell_world.house[house_tasks[0].machine].wanted)
    assert "command not found" in knowledge.truth(asked(house_tasks[0], nowhere))
    plain = next(task for task in shell_world.tasks if not task.house)
    assert "command not found" in knowledge.truth(asked(plain, "stash"))


def test_both_wordings_name_the_machine(knowledge, house_tasks):
    for task in house_tasks:
        again = Question(task.rephrased, (), run(task.house[0]))
        assert knowledge.cases(asked(task)) == knowledge.cases(again) != ()
        assert knowledge.words(asked(task)).startswith(task.machine)


def test_meanings():
    said = refusal("stash", {"--to": "/srv/cold", "--as": "csv", "--keep": "7d"}, 0)
    assert meaning(observed(Ran(2, said))) == (
        *("refused", "stash"),
        frozenset({("--to", "/srv/cold"), ("--as", "csv"), ("--keep", "7d")}),
    )
    assert meaning("stash: locked until tomorrow, after a refused call.") == ("locked", "stash")
    assert meaning("stash: done with a/b.txt.") == ("done", "stash")
    assert meaning("The output of the OS is empty.") == ("said", "The output of the OS is empty.")


def test_cases_are_of_a_first_call_without_flags(knowledge, house_tasks):
    task, tool = house_tasks[0], house_tasks[0].house[0]
    (name, _), (kind, _) = knowledge.cases(asked(task, tool))
    assert name == task.machine and kind in task.instruction
    assert knowledge.cases(asked(task, command=f"{tool} file.txt"))
    assert not knowledge.cases(asked(task, command=f"{tool} --to /srv/cold file.txt"))
    assert not knowledge.cases(asked(task, command="ls"))
    assert not knowledge.cases(asked(task, tool, turns=[Turn(run(tool), "no", "failed")]))


def test_it_asks_for_the_tool_that_is_meant(knowledge):
    blank = knowledge.intention(())
    assert written(blank.call).partition(blank.value)[0] == f'{BASH}<|args|>{{"command": "'
    assert knowledge.question((), 'cd x && stash --to y"}') == run("stash")
    assert knowledge.question((), "ls -la") is None and knowledge.question((), "stashed") is None
    turns = knowledge.supposed((), run("stash"), "whatever")
    assert knowledge.question(turns, "stash a") is None and knowledge.question(turns, "post a") == run("post")


def test_hindsight_is_what_would_have_served(knowledge, house_tasks, shell_world):
    task = next(task for task in house_tasks if len(task.house) == 1)
    tool, file = task.house[0], task.ground_truth.split()[-1]
    desk = Desk(shell_world.house, task.machine)
    refused = Turn(run(f"{tool} {file}"), observed(Ran(*desk([tool, file]))), "failed")
    turns = [Turn(run("ls"), "x", "ok"), refused]
    at, call = knowledge.hindsight(turns)
    assert at == 1 and Desk(shell_world.house, task.machine)(call.arguments["command"].split())[0] == 0
    served = Turn(run(task.ground_truth), f"{tool}: done with {file}.", "ok")
    assert knowledge.hindsight([served]) == (0, served.action)
    assert knowledge.hindsight([Turn(run(tool), refused.observation, "failed")]) is None  # nobody knows which file
    assert knowledge.hindsight(turns[:1]) is None and knowledge.hindsight([]) is None


def test_an_attempt_tells_the_next_one_what_was_refused_and_what_failed(knowledge, house_tasks, shell_world):
    task = next(task for task in house_tasks if len(task.house) == 1)
    tool = task.house[0]
    said = Desk(shell_world.house, task.machine)([tool, "f"])[1]
    failed = Turn(run("cat nothing"), observed(Ran(1, "cat: nothing: No such file or directory")), "failed")
    odd = Turn(Malformed("Act: dance", "there is no tool dance."), "there is no tool dance.", "error")
    refused = Turn(run(f"{tool} f"), observed(Ran(2, said)), "failed")
    assert knowledge.feedback([Turn(run("ls"), "x", "ok"), refused, failed, odd]) == [
        Feedback("refused", tool, said, 0.0),
        Feedback("failed", "cat nothing", "cat nothing failed: cat: nothing: No such file or directory", 0.0),
        Feedback("malformed_call", "", "An action could not be read. there is no tool dance.", 0.0),
    ]
    assert knowledge.impersonal([refused]) == [refused]


def test_anonymised_it_is_another_machine_of_the_kind(knowledge, house_tasks, codec_of_shell):
    task = house_tasks[0]
    turns = (Turn(run(f"ls {task.machine}"), "x", "ok"),)
    question = Question(task.instruction, turns, run(task.house[0]))
    encoded = codec_of_shell.encoded(question, "y")
    example = Example(task.task_id, question.call, "y", "failed", encoded, question.request, turns)
    names = set()
    for seed in range(20):
        request, _, call = knowledge.anonymise(example, random.Random(seed))
        names.add(knowledge.words(Question(request, (), call)).split()[0])
        assert call == example.call and request.partition(":")[0].endswith(task.instruction.partition(":")[0][-8:])
    assert len(names) > 10


def test_the_examination_is_passed_by_who_knows(knowledge):
    for split in ("validation", "test"):
        told = knowledge.examine(lambda questions: [knowledge.truth(q) for q in questions], split)
        assert told["rule_accuracy"] == told["rule_accuracy_typical"] == 1 and told["n"] > 15
        assert knowledge.examine(lambda questions: [""] * len(questions), split)["rule_accuracy"] == 0
        assert 0 < knowledge.examine(lambda questions: [""] * len(questions), split, 20)["n"] < told["n"]


def test_what_nobody_does_here_is_refused(knowledge, house_tasks):
    with pytest.raises(ConfigError, match="table, backoff, nearest or vote"):
        knowledge.classifier("linear")
    with pytest.raises(ConfigError, match="'imagine'"):
        knowledge.responder(house_tasks[0], 1.0)


# ---------------------------------------------------------------- notes, in a real shell


@pytest.fixture(scope="module")
def codec_of_shell(base_path, shell_world) -> Codec:
    return Codec(load_tokenizer(base_path), ShellEnvironment(shell_world))


def reading(task):
    """A policy that means the task's tools in turn, and runs them with what the notes before it name."""

    def answer(text: str, prompt) -> str:
        if prompt.session is None:  # what does it mean to do?
            means = [tool for tool in task.house if f"{tool}: done with it" not in text]
            return means[0] if means else "ls"
        calls = []
        for line in task.ground_truth.splitlines():
            tool, file = line.split()[0], line.split()[-1]
            noted = [meaning(note.partition("<|/note|>")[0]) for note in text.split("<|note|>")[1:]]
            flags = next((said[2] for said in noted if said[:2] == ("refused", tool)), ())
            calls.append(" ".join([tool, *(f"{flag} {value}" for flag, value in sorted(flags)), file]))
        over = "<|obs|>" in text
        return written(Call("finish", {})) if over else written(run("\n".join(calls)))

    return answer


def played(codec, coupling, task, scouts=0, predict="bash"):
    attempts = [Attempt(task, 0, 5, scout=i < scouts) for i in range(scouts + 1)]
    rollout = RolloutConfig(max_action_tokens=400, max_tokens=8000)
    return play(Scripted(codec, reading(task)), codec, [[attempts]], coupling, rollout, 0, predict)


@needs_sandbox
def test_who_is_told_the_truth_succeeds(codec_of_shell, house_tasks):
    for task in (next(t for t in house_tasks if len(t.house) == n) for n in (1, 2)):
        (row,) = played(codec_of_shell, Truth(codec_of_shell), task)
        text = codec_of_shell.decode(row.tokens)
        assert row.success and text.count("<|note|>truth: ") == len(task.house)


@needs_sandbox
def test_what_scouts_hear_is_remembered(codec_of_shell, house_tasks):
    """Without a note the policy fails; a scout's calls are heard, and the next attempt is told of them."""
    task = next(t for t in house_tasks if len(t.house) == 2)
    memory = Memory(WorldModelConfig(coupling="memory", predict="bash"), codec_of_shell)
    scout, alone = played(codec_of_shell, memory, task, scouts=1)
    assert scout.scout and not alone.success
    assert [turn.action for turn in scout.turns[:-1]] == [run(tool) for tool in task.house]
    assert len(scout.examples) == 2
    memory.hear(scout.examples)
    (told,) = played(codec_of_shell, memory, task)
    assert told.success and "<|note|>memory: " in codec_of_shell.decode(told.tokens)


@needs_sandbox
@pytest.mark.parametrize("coupling", ["memory", "truth", "imagine"])
def test_the_loop_runs_in_a_shell(make_config, tmp_path, coupling):
    """From its config alone: steps, replies that are learned, an evaluation. The toy base succeeds in nothing."""
    settings = {"env.name": "shell", "world_model.coupling": coupling, "world_model.predict": "bash"}
    folder = RunFolder(train(make_config(task_budget=2, eval_every=2, **settings), tmp_path / "run", progress=False))
    rows = folder.metrics()
    (step,) = (row for row in rows if row["kind"] == "step")
    assert step["train_incorrect"] == 1 and step["train_success"] == 0 and step["train_validation_failure"] == 1
    assert {row["split"] for row in rows if row["kind"] == "outcomes"} == {"validation", "test"}
