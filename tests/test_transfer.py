"""transfer: what a run's newest adapters do elsewhere is played once and written down, episode by episode."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from lfo import transfer
from lfo.config import as_dict
from lfo.evaluate import TruthfulEngine, play_scripted
from lfo.learner import Learner
from lfo.records import Turn
from lfo.tools import format_call
from lfo.transfer import CONDITIONS, FILE, LEVELS, measure
from lfo.world import FIELDS, needed_fields


@pytest.fixture(scope="module")
def run(make_config, base_path, codec, tmp_path_factory):
    """A run folder with untrained adapters on the embedded base."""
    settings = {"model.base": str(base_path), "world_model.coupling": "imagine"}
    short = {"rollout.max_action_tokens": 48, "rollout.max_tokens": 300}
    config, folder = make_config(**settings, **short), tmp_path_factory.mktemp("run")
    (folder / "config.json").write_text(json.dumps(as_dict(config)))
    Learner(config, codec.pad_id).save_adapters(folder / "adapters" / "v00001")
    return folder


def test_one_row_per_episode_of_every_condition(run, world):
    rows = measure(run, episodes=2, tasks_per_level=1)
    assert len(rows) == len(CONDITIONS) * len(LEVELS) * 2
    facts = ["split", "held_out_phrasing", "task_id", "level", "variation", "episode"]
    assert list(rows.columns) == [*facts, "success", "needed", "requested", "useful"]
    assert (rows["useful"] <= rows[["needed", "requested"]].min(axis=1)).all() and rows["requested"].any()
    assert set(zip(rows["split"], rows["held_out_phrasing"], strict=True)) == set(CONDITIONS)
    tasks = {t.task_id: t for t in world.split("test") + world.split("validation")}
    for row in rows.itertuples():
        task = tasks[row.task_id]
        rules = [r for (company, _), r in world.rules.items() if company == task.company_id]
        assert (row.split, row.level) == (task.split, task.level) and {r.variation for r in rules} == {row.variation}
    assert sorted(rows["episode"].unique()) == [0, 1] and set(rows["success"]) <= {0, 1}


def test_what_a_form_requests_beside_what_the_task_needs(world):
    """An oracle asks for what is needed, whatever users withhold, and nothing else; one field swapped is one less."""
    for task in world.split("test"):
        episode = play_scripted(world, task, "oracle")
        row = SimpleNamespace(task_id=task.task_id, turns=episode.turns, success=episode.success)
        outcome = transfer._outcome(world, row)
        assert outcome["needed"] == outcome["requested"] == outcome["useful"] and outcome["success"]
    task = world.split("test", (2,))[0]
    needed = needed_fields(world.rules, task.company_id, task.goals)
    other = next(f for f in FIELDS if f not in needed)
    turns = [Turn(format_call("auth_info_form", {"fields": [other, needed[0]]}), "{}", "auth_info_form", "ok")]
    row = SimpleNamespace(task_id=task.task_id, turns=turns, success=False)
    assert transfer._outcome(world, row) == {"success": 0, "needed": len(needed), "requested": 2, "useful": 1}


def test_all_tasks_of_the_world_unless_told_otherwise(run, world, monkeypatch):
    monkeypatch.setattr(transfer, "play_tasks", lambda *args: [
        SimpleNamespace(task_id=t.task_id, turns=[], success=True) for t in args[3] for _ in range(args[6])
    ])  # fmt: skip
    rows = measure(run, episodes=1)
    assert set(rows["task_id"]) == {t.task_id for t in world.split("validation") + world.split("test")}
    assert (rows["success"] == 1).all() and not rows["requested"].any() and (rows["needed"] > 0).any()


def test_what_was_measured_is_not_played_again_and_anything_else_is(run):
    rows = measure(run, episodes=2, tasks_per_level=1)
    rows.assign(success=7).to_csv(run / FILE, index=False)
    assert set(measure(run, episodes=2, tasks_per_level=1)["success"]) == {7}
    fewer = measure(run, episodes=1, tasks_per_level=1)
    assert len(fewer) == len(rows) // 2 and set(fewer["success"]) <= {0, 1}


def test_what_was_measured_with_older_adapters_is_played_again(run):
    rows = measure(run, episodes=1, tasks_per_level=1)
    rows.assign(success=7).to_csv(run / FILE, index=False)
    later = (run / FILE).stat().st_mtime + 1
    (adapter,) = run.glob("adapters/v*/policy/adapter_model.safetensors")
    os.utime(adapter, (later, later))
    assert set(measure(run, episodes=1, tasks_per_level=1)["success"]) <= {0, 1}


def test_episodes_by_what_the_policy_is_told(run, world, monkeypatch):
    """The same tasks and users each time: without and with imagined replies, and with those of three who know rules."""
    seen = {}
    truth = TruthfulEngine(None, None, world)._rules

    def played(engine, codec, world, tasks, config, seed, episodes, aided):
        rules = getattr(engine, "_rules", {})
        told = aided, sum(rules[phone].required != rule.required for phone, rule in truth.items() if rules)
        seen.setdefault((seed, *(t.task_id for t in tasks)), []).append(told)
        return [SimpleNamespace(success=aided, task_id=t.task_id) for t in tasks]

    monkeypatch.setattr(transfer, "play_tasks", played)
    rows = transfer.measure_told(run)
    demands = [transfer.typical_demands(world), transfer.typical_demands(world, house=True)]
    others = [sum(fields != world.rules[key].required for key, fields in one.items()) for one in demands]
    assert list(seen.values()) == 2 * [[(False, 0), (True, 0), (True, others[0]), (True, others[1]), (True, 0)]]
    assert list(rows["told"].unique()) == list(transfer.TELLERS) and min(others) > 0
    won = rows.groupby("told")["success"].max()
    assert won.drop("nothing").all() and not won["nothing"]
    monkeypatch.setattr(transfer, "play_tasks", None)
    assert transfer.measure_told(run).equals(rows)


def test_only_policies_that_imagine_are_told_anything(tmp_path, make_config):
    config = make_config(**{"world_model.coupling": "stacked"})
    (tmp_path / "config.json").write_text(json.dumps(as_dict(config)))
    with pytest.raises(ValueError, match="has the coupling stacked; only `imagine` is told anything"):
        transfer.measure_told(tmp_path)


def test_typical_demands(world):
    """What typical companies demand, of every company; the house field where anything is demanded at all."""
    typical, house = transfer.typical_demands(world), transfer.typical_demands(world, house=True)
    changed = {world.rules[key].variation for key, fields in typical.items() if world.rules[key].required != fields}
    assert set(typical) == set(world.rules) and changed == {"extra", "different"}
    for (company, name), fields in typical.items():
        own = {world.typical.house_field[world.companies[company].industry]} if fields else set()
        assert set(house[company, name]) == set(fields) | own
    told = transfer.demanding(world, typical)
    assert {key: rule.required for key, rule in told.rules.items()} == typical
    assert transfer.demanding(world, {}) == world


def test_a_run_without_adapters_says_so(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="holds no adapters; train there first"):
        measure(tmp_path, 1, 1)
