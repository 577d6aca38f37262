"""The exploratory user: what it does is played for real, and nothing that the environment holds out is in it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from sandboxed import needs_sandbox

from lfo.envs.shell import explorer, machines
from lfo.envs.shell.episode import FINISH, ShellEpisode
from lfo.envs.shell.records import EvaluationInfo, ShellTask, bash
from lfo.envs.shell.sandbox import Sandbox
from lfo.envs.shell.templates import SKILLS
from lfo.envs.shell.trees import Tree, words_of


@pytest.fixture(scope="module")
def plans():
    rng = random.Random(0)
    return [*(explorer.lesson(rng) for _ in range(300)), *(explorer.attempt(rng) for _ in range(300))]


@pytest.fixture(scope="module")
def houses():
    rng = random.Random(0)
    return [explorer.house_attempt(rng) for _ in range(1500)]


def task_of(plan: explorer.Plan) -> ShellTask:
    judged = EvaluationInfo(bash("true"), bash("true"))
    return ShellTask(
        task_id="x",
        split="train",
        level=1,
        sample_index=0,
        instruction=plan.request,
        initialization_command_item=bash(plan.initialization),
        evaluation_info=judged,
        skill_list=("x",),
    )


@needs_sandbox
def test_what_is_read_is_what_an_episode_would_say(plans):
    some = plans[:300:60] + plans[300::60]
    with Sandbox() as box:
        transcripts = [explorer.play(box, plan) for plan in some]
    for plan, transcript in zip(some, transcripts, strict=True):
        episode = ShellEpisode(task_of(plan), {})
        for turn in transcript.turns:
            assert episode.step(turn.action) == turn.observation
        assert [turn.status for turn in episode.turns] == [turn.status for turn in transcript.turns]
        episode.close()
        assert explorer.read_transcript(transcript.record()) == transcript


@needs_sandbox
def test_lessons_do_what_they_say():
    """None of them fails, or is about a file that is not there."""
    rng = random.Random(1)
    tree = Tree(rng, explorer.throwaway_words(rng))
    names = explorer._named(tree, rng)
    commands = [command.format(**names) for _, command in explorer.LESSONS]
    planned = [explorer.Plan("", (), tree.initialization(), (command,), False) for command in commands]
    with Sandbox() as box:
        said = [explorer.play(box, plan).turns[0].observation for plan in planned]
    failed = ("No such file", "not found", "invalid", "cannot", "syntax error", "unexpected", "missing")
    assert not [(c, s) for c, s in zip(commands, said, strict=True) if any(text in s for text in failed)]


def test_no_instruction_is_one_that_is_held_out(plans, houses, shell_world):
    held_out = {task.rephrased for task in shell_world.tasks} | {
        t.instruction for t in shell_world.tasks if t.split == "test"
    }
    assert not held_out & {plan.request for plan in [*plans, *houses]}
    rng = random.Random(2)
    tree = Tree(rng, explorer.throwaway_words(rng))
    names = explorer._named(tree, rng)
    drafts = [skill(tree) for skill in SKILLS]
    known = {said.format(**names) for said, _ in explorer.LESSONS}
    assert not known & {said for three in drafts for draft in three for said in draft.said}
    tested = {three[2].truth for three in drafts}
    assert not tested & {command.format(**names) for _, command in explorer.LESSONS}


def test_no_word_is_one_of_the_environments(plans, houses, shell_world):
    splits = [words_of(split) for split in ("train", "validation", "test")]
    taken = {root for words in splits for root in words.roots} | {*shell_world.house}
    text = " ".join([*(plan.initialization + plan.request for plan in plans), *(house.request for house in houses)])
    assert not taken & set(text.replace("/", " ").split())


def test_house_tools_want_anything(houses):
    """Of every tool each flag is wanted about as often as any other: there is no convention to be learned."""
    for tool in machines.TOOLS:
        asked = [house.wanted[tool] for house in houses if tool in house.wanted]
        flags = Counter(flag for wanted in asked for flag in wanted)
        assert set(flags) == set(machines.FLAGS) and max(flags.values()) < 1.5 * min(flags.values())


def test_most_notes_are_followed_and_some_are_wrong(houses):
    told = [house for house in houses if len(house.notes) == len(house.order) == 1]
    served = sum(": done with" in house.turns[0].observation for house in told) / len(told)
    untold = [house for house in houses if not house.notes and len(house.order) == 1]
    by_chance = sum(": done with" in house.turns[0].observation for house in untold) / len(untold)
    assert 0.65 < served < 0.85 and by_chance < 0.05


def test_nobody_acts_more_often_than_an_episode_allows(plans, houses):
    assert max(len(plan.commands) + plan.finishes for plan in plans) <= 5
    assert max(len(house.turns) for house in houses) <= 5
    assert all(turn.action.tool != FINISH for house in houses for turn in house.turns[:-1])
