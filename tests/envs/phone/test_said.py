"""What docs/ and docstrings say of the phone world's tasks, users and forms, counted."""

from __future__ import annotations

import itertools
import random
from collections import Counter

from lfo.config import EnvConfig, evaluation_seed
from lfo.envs.phone import make
from lfo.envs.phone.callers import ConstantForm, run_scripted
from lfo.envs.phone.episode import PhoneEpisode
from lfo.envs.phone.vocabulary import COMMON_FIELDS


def episode_of(env, task) -> PhoneEpisode:
    """With the user that an evaluation sends."""
    return PhoneEpisode(env.world, task, env.rules, evaluation_seed(task.task_id))


def test_users_of_evaluations_are_as_metrics_md_says():
    """docs/metrics.md: the same in all worlds, a little kinder at new companies."""
    for world in (1, 23):
        env = make(EnvConfig(world_seed=world))
        for split, expected in (("validation", (70, 18, 12)), ("test", (79, 16, 5))):
            found = Counter(episode_of(env, task)._user.behaviour for task in env.world.split(split)[:100])
            assert tuple(found[name] for name in ("cooperative", "partial", "difficult")) == expected


def test_what_dreams_and_cloning_cannot_learn_is_as_method_md_says():
    """docs/method.md: goals that a circumstance moves; departments that want another one first, by level."""
    worlds = [make(EnvConfig(world_seed=seed)).world for seed in range(1, 6)]
    tasks = [(task, world.demands_of(task)) for world in worlds for task in world.split("train")]
    assert round(100 * sum(bool(demands.moved) for _, demands in tasks) / len(tasks)) == 9
    gated = {
        level: [
            any(demands.of[name].after for name in demands.to_call()) for task, demands in tasks if task.level == level
        ]
        for level in (3, 5)
    }
    assert 0.3 < sum(gated[3]) / len(gated[3]) < 0.37 and all(gated[5])


def test_no_other_form_of_at_most_four_common_fields_wins_as_many_tasks(monkeypatch):
    """`ConstantForm`: the form was chosen by the training tasks of world 100."""
    env = make(EnvConfig(world_seed=100))
    chosen = ConstantForm(episode_of(env, env.world.tasks[0]), env.world, random.Random(0)).choose_fields()
    wins: Counter[tuple[str, ...]] = Counter()
    for size in range(5):
        for fields in itertools.combinations(COMMON_FIELDS, size):
            monkeypatch.setattr(ConstantForm, "choose_fields", lambda self, fields=fields: fields)
            played = (episode_of(env, task) for task in env.world.split("train"))
            wins[fields] = sum(run_scripted(e, ConstantForm(e, env.world, random.Random(0))).success for e in played)
    (best, most), (_, next_most) = wins.most_common(2)
    assert set(best) == set(chosen) and most > next_most
