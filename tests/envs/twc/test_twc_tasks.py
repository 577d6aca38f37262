"""The table of games: what the game itself says, and folds that have no thing in common."""

import pytest
from playable import needs_game

from lfo.envs.twc import TwcEnvironment
from lfo.envs.twc.table import play_all
from lfo.envs.twc.tasks import FOLDS, all_tasks


def test_folds_have_no_thing_in_common():
    things = [{task.thing for task in all_tasks() if task.split == split} for split in FOLDS]
    assert [len(found) for found in things] == [174, 113, 104]
    assert len(set.union(*things)) == sum(map(len, things))


def test_every_game_can_be_won_and_lost():
    assert len(all_tasks()) == 193 + 123 + 114
    for task in all_tasks():
        assert task.right and set(task.right) < set(task.places), task
        assert task.level == task.steps - 2 and task.level in (1, 2)
    names = [task.task_id for task in all_tasks()]
    assert len(set(names)) == len(names)


def test_levels_choose_tasks():
    one, two = (TwcEnvironment(levels=[level]).tasks("train") for level in (1, 2))
    assert {t.level for t in one} == {1} and {t.level for t in two} == {2}
    assert len(one) + len(two) == len(TwcEnvironment().tasks("train")) == 193
    assert TwcEnvironment().tasks("nowhere") == []


@needs_game
@pytest.mark.parametrize("split", list(FOLDS))
def test_the_table_is_what_the_game_says(split):
    played = play_all(split, most=8)
    written = [task for task in all_tasks() if task.split == split][: len(played)]
    assert len(played) >= 5 and played == written
