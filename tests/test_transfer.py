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
from lfo.world import FIELDS, generate_world


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
    facts = ["split", "held_out_phrasing", "task_id", "level", "variation", "needed", "episode"]
    assert list(rows.columns) == [*facts, "success", "requested", "useful"]
    assert (rows["useful"] <= rows[["needed", "requested"]].min(axis=1)).all() and rows["requested"].any()
    assert set(zip(rows["split"], rows["held_out_phrasing"], strict=True)) == set(CONDITIONS)
    tasks = {t.task_id: t for t in world.split("test") + world.split("validation")}
    for row in rows.itertuples():
        task = tasks[row.task_id]
        rules = [r for (company, _), r in world.rules.items() if company == task.company_id]
        assert (row.split, row.level) == (task.split, task.level) and {r.variation for r in rules} == {row.variation}
    assert sorted(rows["episode"].unique()) == [0, 1] and set(rows["success"]) <= {0, 1}


def test_what_a_form_requests_beside_what_the_task_needs(world):
    """By hand: an oracle's form asks for what is needed and nothing else; one field swapped, for one field less."""
    task = world.split("test", (4,))[0]  # the user lacks a field, and has the alternative to it
    episode = play_scripted(world, task, "oracle")
    row = SimpleNamespace(task_id=task.task_id, turns=episode.turns, success=episode.success)
    needed = transfer._needed(world, task)
    assert transfer._outcome(world, row) == {"success": 1, "requested": len(needed), "useful": len(needed)}
    other = next(f for f in FIELDS if f not in needed)
    form = Turn(format_call("auth_info_form", {"fields": [other, needed[0]]}), "{}", "auth_info_form", "ok")
    row.turns = [form]
    assert transfer._outcome(world, row) == {"success": 1, "requested": 2, "useful": 1}


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


def test_episodes_by_what_the_policy_is_told(run, monkeypatch):
    """The same tasks and users four times: without and with imagined replies, and with those of two who know rules."""
    seen = {}

    def played(engine, codec, world, tasks, config, seed, episodes, aided):
        told = type(engine).__name__, aided, getattr(engine, "_rules", None) == truth
        seen.setdefault((seed, *(t.task_id for t in tasks)), []).append(told)
        return [SimpleNamespace(success=aided, task_id=t.task_id) for t in tasks]

    world = generate_world(0)
    truth = TruthfulEngine(None, None, world)._rules
    monkeypatch.setattr(transfer, "play_tasks", played)
    rows = transfer.measure_told(run)
    assert list(seen.values()) == 2 * [[
        ("TorchEngine", False, False), ("TorchEngine", True, False), ("TruthfulEngine", True, False),
        ("TruthfulEngine", True, True),
    ]]  # fmt: skip
    assert rows.groupby("told", sort=False)["success"].mean().to_dict() == {
        "nothing": 0, "imagined": 1, "typical": 1, "truth": 1,
    }  # fmt: skip
    assert set(rows["variation"]) <= {"typical", "extra", "different"}
    monkeypatch.setattr(transfer, "play_tasks", None)
    assert transfer.measure_told(run).equals(rows)


def test_only_policies_that_imagine_are_told_anything(tmp_path, make_config):
    config = make_config(**{"world_model.coupling": "stacked"})
    (tmp_path / "config.json").write_text(json.dumps(as_dict(config)))
    with pytest.raises(ValueError, match="has the coupling stacked; only `imagine` is told anything"):
        transfer.measure_told(tmp_path)


def test_the_usual_world_has_no_unusual_company(world):
    """Typical companies stay as they are; in others, some department demands something else."""
    usual = transfer.usual(world)
    changed = {key for key, rule in world.rules.items() if usual.rules[key] != rule}
    assert changed and {world.rules[key].variation for key in changed} == {"extra", "different"}
    assert {c for c, _ in changed} == {c for (c, _), rule in world.rules.items() if rule.variation != "typical"}


def test_a_run_without_adapters_says_so(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="holds no adapters; train there first"):
        measure(tmp_path, 1, 1)
