"""transfer: what a run's newest adapters do elsewhere is played once and written down, episode by episode."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest

from lfo import evaluate
from lfo.couplings import Imagine, Noted, Plain, Truth
from lfo.envs import make_environment
from lfo.envs.phone import PhoneEnvironment, Rules, callers
from lfo.envs.phone.knowledge import PhoneKnowledge
from lfo.envs.phone.phrasings import read_reply
from lfo.envs.phone.records import VARIATIONS
from lfo.envs.phone.tools import FORM
from lfo.envs.phone.vocabulary import CIRCUMSTANCES, FIELDS
from lfo.envs.phone.world import LEVELS
from lfo.lab import transfer
from lfo.lab.player import load_player
from lfo.lab.reading import SPLIT_NAMES
from lfo.lab.told import told_as_in, usual_world
from lfo.lab.transfer import CONDITIONS, TELLERS, measure, measure_notes, measure_told, measure_way
from lfo.lab.transfer_tables import TRANSFER, WAY, level_overview, notes_frame, told_frame, transfer_frame, way_table
from lfo.rollout.tasks import TaskStream
from lfo.runs import RunError, RunFolder
from lfo.text.codec import Codec
from lfo.types import Call, Malformed, Role, Turn


@pytest.fixture(scope="module")
def run(make_config, base_path, base_adapters, tmp_path_factory):
    """A run folder with untrained adapters on the embedded base."""
    settings = {"model.base": str(base_path), "world_model.coupling": "imagine"}
    short = {"rollout.max_action_tokens": 48, "rollout.max_tokens": 600}
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.begin(make_config(**settings, **short))
    shutil.copytree(base_adapters["policy"].parent, folder.version(1))
    folder.log([{"kind": "step", "tasks": 2}])
    return folder.path


def nothing(task):
    return SimpleNamespace(task_id=task.task_id, turns=[], success=False)


def example_of(task_id):
    return SimpleNamespace(task_id=task_id)


def companies(rows, world):
    of = {task.task_id: task.company_id for task in world.tasks}
    return [of[task_id] for task_id in rows["task_id"]]


def test_one_row_per_episode_of_every_condition(run, world):
    rows = measure(run, episodes=2, tasks_per_level=1)
    assert len(rows) == len(CONDITIONS) * len(LEVELS) * 2
    facts = ["split", "held_out_phrasing", "task_id", "level", "variation", "episode"]
    assert list(rows.columns) == [*facts, "called", "success", "needed", "requested", "useful", "failed"]
    assert (rows["useful"] <= rows[["needed", "requested"]].min(axis=1)).all() and rows["requested"].any()
    assert set(zip(rows["split"], rows["held_out_phrasing"], strict=True)) == set(CONDITIONS)
    tasks = {t.task_id: t for t in world.split("test") + world.split("validation")}
    for row in rows.itertuples():
        task = tasks[row.task_id]
        rules = [r for (company, _), r in world.rules.items() if company == task.company_id]
        assert (row.split, row.level) == (task.split, task.level) and {r.variation for r in rules} == {row.variation}
    assert sorted(rows["episode"].unique()) == [0, 1] and set(rows["success"]) <= {0, 1}
    arms = level_overview(transfer_frame({"ours": [run]}), "held_out_phrasing")["arm"]
    assert set(arms) == {"ours, phrasings known", "ours, phrasings held out"}


def test_what_a_form_requests_beside_what_the_task_needs(run, world):
    """An oracle asks for what is needed, whatever users withhold, and nothing else; one field swapped is one less."""
    knowledge = make_environment(RunFolder(run).config.env).knowledge
    for task in world.split("test"):
        episode = callers.play_scripted(world, task, "oracle")
        row = SimpleNamespace(task_id=task.task_id, turns=episode.turns, success=episode.success)
        outcome = transfer._outcome(world, knowledge, row)
        assert outcome["needed"] == outcome["requested"] == outcome["useful"] and outcome["success"]
        assert outcome["failed"] == ""
    task = world.split("test", (2,))[0]
    needed = world.demands_of(task).needed()
    other = next(f for f in FIELDS if f not in needed)
    form = Call(FORM, {"fields": [other, needed[0]]})
    turns = [Turn(Malformed("", "no such tool"), "", "malformed"), Turn(form, "{}", "declined"), Turn(form, "{}", "ok")]
    row = SimpleNamespace(task_id=task.task_id, turns=turns, success=False)
    counts = {"success": 0, "needed": len(needed), "requested": 2, "useful": 1}
    assert transfer._outcome(world, knowledge, row) == counts | {"failed": "declined_form malformed_call"}


def test_all_tasks_of_the_world_unless_told_otherwise(run, world, monkeypatch):
    heard = []

    def played(engine, codec, coupling, tasks, rollout, episodes):
        heard.append((tasks[0].split, codec.env.held_out_phrasing))
        return [SimpleNamespace(task_id=t.task_id, turns=[], success=True) for t in tasks for _ in range(episodes)]

    monkeypatch.setattr(transfer, "play_tasks", played)
    rows = measure(run, episodes=1)
    assert tuple(heard) == CONDITIONS
    assert set(rows["task_id"]) == {t.task_id for t in world.split("validation") + world.split("test")}
    assert (rows["success"] == 1).all() and not rows["requested"].any() and (rows["needed"] > 0).any()


def test_a_company_of_which_a_task_was_sampled_is_told_apart(run, world, monkeypatch):
    """The first two tasks of the run's stream; whether anything was learned from what was heard does not matter."""
    tasks = TaskStream(make_environment(RunFolder(run).config.env).tasks("train"), 0).take(2)
    sampled = {task.company_id for task in tasks}
    assert len(sampled) == 2
    monkeypatch.setattr(transfer, "play_tasks", lambda *args: [nothing(t) for t in args[3] for _ in range(args[5])])
    rows = measure(run, episodes=3)  # which nothing else here has measured
    assert rows["called"].tolist() == [c in sampled for c in companies(rows, world)]
    assert rows["called"].any() and not rows[rows["split"] == "test"]["called"].any()


def test_a_memory_remembers_what_its_run_heard(run, monkeypatch):
    heard, told = [example_of("train-000")], []
    monkeypatch.setattr(RunFolder, "examples", lambda self: heard)
    monkeypatch.setattr(Imagine, "hear", lambda self, examples: told.append((self, list(examples))))

    def played(engine, codec, coupling, tasks, rollout, episodes):
        assert (coupling, heard) in told, "its coupling was told nothing"
        return [nothing(t) for t in tasks for _ in range(episodes)]

    monkeypatch.setattr(transfer, "play_tasks", played)
    assert len(measure(run, episodes=4, tasks_per_level=1)) == len(CONDITIONS) * len(LEVELS) * 4


def test_what_was_measured_is_not_played_again_and_anything_else_is(run):
    rows = measure(run, episodes=2, tasks_per_level=1)
    rows.assign(success=7).to_csv(run / TRANSFER, index=False)
    assert set(measure(run, episodes=2, tasks_per_level=1)["success"]) == {7}
    fewer = measure(run, episodes=1, tasks_per_level=1)
    assert len(fewer) == len(rows) // 2 and set(fewer["success"]) <= {0, 1}


def test_what_was_measured_with_older_adapters_is_played_again(run):
    rows = measure(run, episodes=1, tasks_per_level=1)
    rows.assign(success=7).to_csv(run / TRANSFER, index=False)
    (adapter,) = run.glob("adapters/v*/policy/adapter_model.safetensors")
    before = adapter.stat().st_mtime - 1
    os.utime(run / TRANSFER, (before, before))
    assert set(measure(run, episodes=1, tasks_per_level=1)["success"]) <= {0, 1}


# --- told ------------------------------------------------------------------------------------


def test_episodes_by_what_the_policy_is_told(run, world, monkeypatch):
    """The same tasks and users each time: without and with imagined replies, and with those of three who know rules."""
    seen = {}

    def played(engine, codec, coupling, tasks, rollout, episodes, seed):
        seen.setdefault((seed, *(t.task_id for t in tasks)), []).append(coupling)
        return [SimpleNamespace(success=isinstance(coupling, Noted), task_id=t.task_id) for t in tasks]

    monkeypatch.setattr(transfer, "play_tasks", played)
    rows = measure_told(run)
    assert len(seen) == 2
    for couplings in seen.values():
        assert [type(coupling) for coupling in couplings] == [Plain, Imagine, Truth, Truth, Truth]
    assert list(rows["told"].unique()) == list(TELLERS)
    won = rows.groupby("told")["success"].max()
    assert won.drop("nothing").all() and not won["nothing"]
    table = level_overview(told_frame({"imagine": [run]}), "told").set_index(["arm", "companies"])
    assert len(table) == 2 * len(TELLERS) and set(table["runs"]) == {1}
    for split, (companies, levels) in zip(SPLIT_NAMES, table.groupby("companies"), strict=True):
        asked = set(rows.loc[rows["split"] == split, "task_id"])
        there = {f"level {task.level}" for task in world.split(split) if task.task_id in asked}
        for told, said in (("nothing", "0% [0, 0]"), ("truth", "100% [100, 100]")):
            row = levels.loc[f"imagine, told {told}", companies].filter(like="level").to_dict()
            assert {level for level, cell in row.items() if cell == said} == there
    monkeypatch.setattr(transfer, "play_tasks", None)
    assert measure_told(run).equals(rows)


def test_how_many_notes_are_told_and_read(run, monkeypatch):
    """Counted are notes, not what looks like one in an answer."""
    codec = load_player(run).codec
    note, request, told = codec.note("memory", codec.encode("never mind")), codec.prompt("Call them."), []

    def played(engine, codec, coupling, tasks, rollout, episodes, seed):
        told.append(coupling.most_notes)
        tokens = [*request, *note, *note, *note]
        roles = [Role.PROMPT] * len(request) + [Role.NOTE] * 2 * len(note) + [Role.OBSERVATION] * len(note)
        return [SimpleNamespace(success=True, task_id=t.task_id, tokens=tokens, roles=roles) for t in tasks]

    monkeypatch.setattr(transfer, "play_tasks", played)
    rows = measure_notes(run)
    assert told == 2 * [1, 2, 6] and list(rows["most"].unique()) == [1, 2, 6]
    assert set(rows["notes"]) == {2} and set(rows["split"]) == {"validation", "test"}
    arms = level_overview(notes_frame({"imagine": [run]}), "notes at most")["arm"]
    assert arms.unique().tolist() == [f"imagine, notes at most {most}" for most in (1, 2, 6)]
    monkeypatch.setattr(transfer, "play_tasks", None)
    assert measure_notes(run).equals(rows)


def test_what_is_known_of_calls_before_and_after_somebody_has_served(run, monkeypatch):
    """By somebody who says of every call what would be answered if it were the first."""

    def alone(engine, codec, coupling, asked):
        return [codec.env.knowledge.truth(dataclasses.replace(q, turns=q.turns[:1])) for q in asked]

    monkeypatch.setattr(transfer, "answers", alone)
    rows = measure_way(run)
    assert set(rows["split"]) == {"validation", "test"} and set(rows["call"]) == {"first", "later"}
    assert rows.query("call == 'first'")["right"].all(), "nobody has served: nothing is different"
    assert 0 < rows.query("call == 'later'")["right"].mean() < 1, "some departments want another to be called first"
    assert set(rows["variation"]) <= set(VARIATIONS) and (run / WAY).exists()
    monkeypatch.setattr(transfer, "answers", None)
    assert measure_way(run).equals(rows)
    table = way_table({"imagine": [run]}).set_index(["companies", "call"])
    assert len(table) == 4 and table["calls"].sum() == len(rows) and (table["runs"] == 1).all()
    assert (table.xs("first", level="call")[["known", "usual"]] == 1).all(axis=None)
    later = rows.query("split == 'test' and call == 'later'")
    assert later["task_id"].duplicated().any(), "of calls, however many a task has"
    assert table.loc[("new companies (test)", "later"), "known"] == pytest.approx(later["right"].mean())


def test_memories_and_world_models_are_asked_what_they_know(run, make_config, base_path, tmp_path, monkeypatch):
    """A table that has heard nothing says nothing, and whoever is told the truth predicts nothing."""
    settings = {"model.base": str(base_path), "env.levels": [1], "eval_splits": ["test"]}
    for coupling in ("memory", "imagine", "truth"):
        RunFolder(tmp_path / coupling).begin(make_config(**settings, **{"world_model.coupling": coupling}))
        shutil.copytree(run / "adapters", tmp_path / coupling / "adapters")
    assert not measure_way(tmp_path / "memory")["right"].any()
    player = load_player(tmp_path / "imagine")
    known = {tuple(player.codec.question(s.question)): s.truth for s in player.env.knowledge.steps("test")}
    monkeypatch.setattr(evaluate, "predict_replies", lambda engine, codec, asked, c: [known[tuple(q)] for q in asked])
    assert measure_way(tmp_path / "imagine")["right"].all()
    with pytest.raises(RunError, match="has the coupling truth, which predicts no replies"):
        measure_way(tmp_path / "truth")


def test_only_policies_that_imagine_are_told_anything(tmp_path, make_config):
    RunFolder(tmp_path).begin(make_config(**{"world_model.coupling": "stacked"}))
    with pytest.raises(RunError, match="has the coupling stacked; only `imagine` is told anything"):
        measure_told(tmp_path)


def test_the_usual_world(world):
    """What typical companies demand, of every company; the house field where anything is demanded at all."""
    typical, house = usual_world(world), usual_world(world, house=True)
    changed = {world.rules[key].variation for key, rule in typical.rules.items() if world.rules[key] != rule}
    assert set(typical.rules) == set(world.rules) and changed == {"extra", "different"}
    for key, rule in typical.rules.items():
        industry = world.companies[rule.company_id].industry
        assert (rule.required, rule.after) == (
            world.typical.required[industry][rule.department],
            world.rules[key].after,
        )
        own = {world.typical.house_field[industry]} if rule.required else set()
        assert set(house.rules[key].required) == {*rule.required} | own


def test_circumstances_are_the_usual_ones_in_the_usual_world(world):
    """No exceptions; everything that can be looked up, and the tasks, are as they are."""
    for house in (False, True):
        usual = usual_world(world, house)
        for company_id, company in world.companies.items():
            assert usual.effects[company_id] == world.typical.effects[company.industry]
        odd = {world.variation(c) for c, effects in usual.effects.items() if effects != world.effects[c]}
        assert odd == {"extra", "different"}
        assert (usual.companies, usual.tasks, usual.profiles) == (world.companies, world.tasks, world.profiles)


def said(teller: Truth, question) -> str:
    """What somebody who asks no model says."""
    with pytest.raises(StopIteration) as end:
        next(teller.answer(question))
    return teller.codec.reply_text(end.value.value)


def test_who_knows_says_what_is_demanded_or_what_is_thought_to_be(codec, world):
    """Along the ways of tasks, in the words of a CSR, the same each time; who knows what is usual may be mistaken."""
    right, mistaken = Counter(), Counter()
    tellers = {believed: told_as_in(w, codec) for believed, w in (("truth", world), ("usual", usual_world(world)))}
    for step in PhoneKnowledge(world).steps("test"):
        typical = world.variation(step.company_id) == "typical"
        answers = {believed: said(teller, step.question) for believed, teller in tellers.items()}
        assert answers == {believed: said(teller, step.question) for believed, teller in tellers.items()}
        assert answers["truth"] == step.truth
        assert read_reply(answers["usual"])[0] in ("auth_failed", "success", "routing_violation", "wrong_department")
        same = read_reply(answers["usual"]) == read_reply(step.truth)
        assert same or not typical
        (right if same else mistaken)[typical] += 1
    assert right[True] > 50 and mistaken[False] > 10


def test_who_knows_gives_reasons_where_the_run_does(codec, world):
    reasons = [reason for kind in CIRCUMSTANCES.values() for reason in kind.because]
    steps = PhoneKnowledge(world).steps("test")[::3]
    for replies in ("list", "reasons"):
        own = Codec(codec.tokenizer, PhoneEnvironment(world, Rules(replies=replies)))
        texts = [said(told_as_in(usual_world(world), own), step.question).lower() for step in steps]
        assert any(reason in text for text in texts for reason in reasons) == (replies == "reasons")


def test_a_run_without_adapters_says_so(tmp_path, make_config):
    RunFolder(tmp_path).begin(make_config())
    with pytest.raises(RunError, match="holds no adapters; train there first"):
        measure(tmp_path, 1, 1)
