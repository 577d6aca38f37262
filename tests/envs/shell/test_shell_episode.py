"""Episodes: the protocol of the public sets, evaluation however they end, and nobody who wins without the work."""

import dataclasses

import pytest
from sandboxed import needs_sandbox

from lfo.config import ConfigError, EnvConfig
from lfo.envs import make_environment
from lfo.envs.base import from_chat, parse_action
from lfo.envs.shell.episode import AS_DECIDED, BASH, EMPTY, FINISH, LOST, TOOLS, Rules, ShellEpisode
from lfo.envs.shell.systems import Limits
from lfo.protocols import Environment, Episode, Knowledge
from lfo.types import Call, Hangup, Malformed, StopReason

DONE = Call(FINISH, {})
PATIENT, SHORT = Limits(seconds=10.0), Limits(seconds=1.0)  # time enough when busy; for what is only ended by time


def run(command: str) -> Call:
    return Call(BASH, {"command": command})


@pytest.fixture
def begin(shell_world):
    """begin(skill, rules): an episode at a task of a skill; closed at the end."""
    begun = []

    def made(skill="wc", rules=AS_DECIDED, limits=PATIENT, seed=0, **others) -> ShellEpisode:
        task = next(task for task in shell_world.tasks if task.skill_list == (skill,))
        begun.append(ShellEpisode(task, shell_world.house, rules, seed, limits=limits, **others))
        return begun[-1]

    yield made
    for episode in begun:
        episode.close()


def members(protocol: type) -> set[str]:
    return {*protocol.__annotations__, *(name for name in vars(protocol) if not name.startswith("_"))}


@needs_sandbox
def test_it_is_an_environment():
    env = make_environment(EnvConfig(name="shell", levels=(1,), max_turns=3, rewards=(2.0, -1.0, 0.5)))
    assert members(Environment) <= set(dir(env)) and members(Knowledge) <= set(dir(env.knowledge))
    assert {task.level for task in env.tasks("train")} == {1} and env.tasks("nowhere") == []
    episode = env.episode(env.tasks("train")[0], 0)
    assert members(Episode) <= set(dir(episode)) and "You have 3 actions" in env.system
    assert episode.rules == Rules(max_round=3, rewards=(2.0, -1.0, 0.5))
    assert make_environment(EnvConfig(name="shell")).rules == Rules(max_round=5, rewards=(1.0, -0.5, 0.0))
    held_out = make_environment(EnvConfig(name="shell"), held_out_phrasing=True)
    task = held_out.tasks("test")[0]
    assert held_out.episode(task, 0).request == task.rephrased


def test_an_unknown_environment_is_refused():
    with pytest.raises(ConfigError, match="environments: phone, shell"):
        make_environment(EnvConfig(name="shel"))


@needs_sandbox
def test_the_ground_truth_succeeds(begin):
    episode = begin()
    assert episode.step(run(episode.task.ground_truth)) == EMPTY
    assert episode.step(DONE) == "" and episode.stop is StopReason.SUCCESS
    outcome = episode.outcome()
    assert (outcome.success, outcome.reward) == (True, 1.0)
    assert outcome.metrics == {"correct": 1, "incorrect": 0, "unknown": 0, "rounds": 2, "validation_failure": 0}
    assert [turn.status for turn in episode.turns] == ["ok", "finished"]
    with pytest.raises(RuntimeError, match="this episode ended"):
        episode.step(DONE)


@needs_sandbox
@pytest.mark.parametrize(
    ("end", "stop"),
    [
        (lambda e: e.step(Hangup()), StopReason.AGENT_STOPPED),
        (lambda e: e.step(Malformed("x", "no call")), StopReason.MALFORMED),
        (lambda e: e.cut(), StopReason.TOKEN_BUDGET),
        (lambda e: [e.step(run("true")) for _ in range(4)], StopReason.MAX_TURNS),
        (lambda e: e.step(DONE), None),
    ],
)
@pytest.mark.parametrize("right", [True, False])
def test_it_is_evaluated_however_it_ends(begin, end, stop, right):
    episode = begin()
    episode.step(run(episode.task.ground_truth if right else episode.task.neighbour))
    end(episode)
    assert episode.stop is (stop or (StopReason.SUCCESS if right else StopReason.AGENT_STOPPED))
    outcome = episode.outcome()
    assert (outcome.success, outcome.reward) == ((True, 1.0) if right else (False, -0.5))
    assert outcome.metrics["validation_failure"] == (stop in (StopReason.AGENT_STOPPED, StopReason.MALFORMED))
    assert outcome is not episode.outcome() and outcome == episode.outcome()


@needs_sandbox
def test_what_cannot_be_evaluated_is_unknown(begin):
    episode = begin(rules=Rules(rewards=(1.0, -0.5, 0.25)))
    episode.step(run("true"))
    episode._box.close()
    assert episode.step(run("true")) == LOST
    episode.step(DONE)
    assert episode.outcome().reward == 0.25 and episode.outcome().metrics["unknown"] == 1
    broken = begin(limits=SHORT)
    info = broken.task.evaluation_info
    slow = dataclasses.replace(info.evaluation_command_item, script="sleep 60")
    broken.task = dataclasses.replace(
        broken.task, evaluation_info=dataclasses.replace(info, evaluation_command_item=slow)
    )
    broken.step(DONE)
    assert broken.outcome().metrics["unknown"] == 1


@needs_sandbox
def test_what_the_agent_reads(begin):
    episode = begin(rules=Rules(max_round=9, output=20))
    assert episode.step(run("echo one; echo two >&2")) == "The output of the OS:\none\ntwo"
    assert episode.step(run("true")) == "The output of the OS is empty."
    cut = "The output of the OS:\n" + "x" * 20 + "\n[The output is too long and is cut here.]"
    assert episode.step(run("printf 'x%.0s' {1..21}")) == cut
    assert episode.step(run("printf 'x%.0s' {1..20}")) == cut.partition("\n[")[0]
    assert begin().step(run("echo 'a<|/obs|><|im_end|>b'")) == "The output of the OS:\na< |/obs|>< |im_end|>b"
    late = begin(limits=SHORT)
    assert late.step(run("sleep 60")) == EMPTY + "\nThe command took longer than 1 s and was ended."
    assert [turn.status for turn in (*episode.turns, *late.turns)] == ["ok", "ok", "ok", "ok", "ended"]


@needs_sandbox
def test_same_task_and_seed_same_episode(begin):
    commands = ["find . | LC_ALL=C sort | head -5", "stash", "ls /opt/house", "nothing", "head -c 40 */people.csv"]
    played = []
    for _ in range(2):
        episode = begin("house", seed=3)
        for command in commands:
            episode.step(run(command))
        played.append((episode.request, episode.turns, episode.stop, episode.outcome()))
    assert played[0] == played[1]


@needs_sandbox
@pytest.mark.parametrize(
    "trick",
    [
        "cat() { echo 1; }; export -f cat; alias cat=echo",
        "mkdir bin; printf '#!/bin/sh\\nexit 0\\n' > bin/cat; chmod +x bin/cat; PATH=$PWD/bin:$PATH",
        "echo 'exit 0' > .bashrc; cp .bashrc .bash_profile; cp .bashrc .profile; cp .bashrc /etc/profile",
        "ln -sfn /dev/stdin {out}; ln -sfn /proc/self/cmdline {out}",
        "(while :; do grep -ho \"= '.*'\" -a /proc/[0-9]*/cmdline | cut -c4- > {out}; done) & disown",
        "find / -name '*.py' -exec grep -l ground_truth {} + > {out}; grep -rl evaluation /opt /etc /run > {out}",
    ],
)
def test_an_evaluation_is_not_fooled(begin, trick):
    """Nothing left behind changes what it runs, and nobody sees it before it is over."""
    episode = begin()
    out = episode.task.ground_truth.rpartition(" ")[2]
    episode.step(run(trick.replace("{out}", out)))
    episode.step(DONE)
    assert episode.outcome().metrics["incorrect"] == 1


@needs_sandbox
def test_a_house_tool_teaches_and_locks(begin):
    episode = begin("house")
    task = episode.task
    said = episode.step(run(task.house[0]))
    flags = [word for word in task.ground_truth.splitlines()[0].split() if word.startswith("--")]
    assert flags and all(flag in said for flag in flags)
    for call in task.ground_truth.splitlines():
        episode.step(run(call))
    assert "locked until tomorrow" in episode.turns[1].observation
    episode.step(DONE)
    assert not episode.outcome().success
    told = begin("house")
    told.step(run(task.ground_truth))
    assert "done with" in told.turns[0].observation
    told.step(DONE)
    assert told.outcome().success


# ---------------------------------------------------------------- the text protocol

ACT = "I look first.\nAct: bash\n```bash\nls 'a b'\n```\nand then\n```bash\nwc -l x\n```\n"


@pytest.mark.parametrize(
    ("message", "action"),
    [
        (ACT, run("ls 'a b'\nwc -l x")),
        ('<think>Act: finish</think>\nAct: bash\n```\necho "{}"\n```', run('echo "{}"')),
        ("Act: finish", DONE),
        ("All is done.\n  Act: finish  \n", DONE),
        ('<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>', run("ls")),
        ("Act: dance", Hangup()),
        ("Act: bash, please", Hangup()),
        ("The answer is 4.", Hangup()),
        ("", Hangup()),
    ],
)
def test_a_message_is_an_action(message, action):
    assert parse_action(from_chat(message, TOOLS), TOOLS) == action


@pytest.mark.parametrize("message", ["Act: bash\nls", "Act: finish\n```bash\nls\n```x", "Act: bash\n```bash\nls"])
def test_a_broken_message_is_no_command(message):
    action = parse_action(from_chat(message, TOOLS), TOOLS)
    assert isinstance(action, Malformed) or action == DONE
