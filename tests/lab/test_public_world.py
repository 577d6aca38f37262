"""public_world and small_factorial: what is read from run folders written by hand, also from few, and from none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from lfo.config import ModelConfig, as_dict, load_config
from lfo.envs.base import written
from lfo.envs.twc.tasks import all_tasks
from lfo.lab import factorial, public_world, small_factorial
from lfo.lab.attempts import ATTEMPTS
from lfo.lab.factorial import FROZEN, TRAINED
from lfo.lab.public_world import SPLITS
from lfo.lab.reading import write_measurement
from lfo.lab.small_factorial import NOTES
from lfo.lab.sweep import finished, progress, read_grid
from lfo.proportions import wilson
from lfo.runs import RunFolder
from lfo.types import Call, Malformed, Outcome, Rollout, StopReason, Turn

ROOT = Path(__file__).resolve().parents[2]
OUTCOMES = {  # of four games at the end: known things, new things
    "nothing_frozen": ("1000", "0000"),
    "truth_frozen": ("1110", "1111"),
    "imagine": ("1100", "1000"),
}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """The grid; of three arms some seeds are finished."""
    grid = read_grid(ROOT / "configs" / "twc_grid.yaml", tmp_path_factory.mktemp("twc"))
    chosen = {folder: dataclasses.replace(config, eval_tasks=4) for folder, config in grid.items()}
    for folder, config in chosen.items():
        if folder.parent.name in OUTCOMES and (config.seed < 2 or folder.parent.name != "imagine"):
            write_run(folder, config)
    return chosen


def write_run(folder: Path, config) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(as_dict(config)))
    (folder / "metrics.jsonl").write_text("")
    rows = []
    for split, successes in zip(SPLITS, OUTCOMES[folder.parent.name], strict=True):
        rows.append({"kind": "outcomes", "split": split, "successes": successes, "tasks": config.task_budget})
    RunFolder(folder).log(rows)


@pytest.fixture
def runs(chosen):
    return finished(chosen)


def test_a_sweep_ends_with_the_summary_of_its_own_splits(runs):
    found = factorial.dial_summary(runs).query("metric == 'success' and world == 'all'").set_index(["arm", "split"])
    assert found.loc["imagine", "median"].to_dict() == {"train": 0.5, "test": 0.25}


def test_the_grid_is_the_factorial(chosen):
    """Nobody, a table, the world model and the truth, each frozen and trained; feedback is for who is trained."""
    runs, controls = {}, ("feedback_shuffled", "feedback_none", "imitate")
    for folder, config in chosen.items():
        if folder.parent.name in controls:
            continue
        runs.setdefault((config.policy.learning_rate > 0, config.coupling, config.feedback is not None), []).append(
            folder
        )
        assert config.env.name == "twc" and config.eval_splits == ("train", "test")
        assert config.model.base == "data/base_twc"
    couplings = ("none", "memory", "imagine", "truth")
    assert set(runs) == {(t, c, False) for t in (True, False) for c in couplings} | {(True, "none", True)}
    assert {len(folders) for folders in runs.values()} == {3}
    of = {(config.name, config.seed): config for config in chosen.values()}
    for source in ("shuffled", "none"):
        said = dataclasses.replace(of["feedback", 0].feedback, source=source)
        assert of[f"feedback_{source}", 0] == dataclasses.replace(
            of["feedback", 0], name=f"feedback_{source}", feedback=said
        )
    imitating = dataclasses.replace(of["nothing", 0].policy, imitate=0.5)
    assert of["imitate", 0] == dataclasses.replace(of["nothing", 0], name="imitate", policy=imitating)


def test_the_summary_is_of_every_arm_at_known_and_at_new_things(runs):
    found = small_factorial.summary(runs, SPLITS, "thing")
    assert len(found) == 6 and set(found["split"]) == set(SPLITS)
    told = found.set_index(["arm", "split"])
    assert told.loc[("truth_frozen", "train"), "success"] == 0.75 and told.loc[("truth_frozen", "test"), "success"] == 1
    assert told.loc[("imagine", "train"), ["notes", "policy", "runs"]].tolist() == ["world model", TRAINED, 2]
    assert told.loc[("nothing_frozen", "train"), "policy"] == FROZEN
    assert ((found["low"] <= found["success"]) & (found["success"] <= found["high"])).all()
    assert set(found["notes"]) <= set(NOTES)


def test_tables_and_figure(runs):
    found = small_factorial.summary(runs, SPLITS, "thing")
    table = small_factorial.factorial_table(found, SPLITS).set_index("arm")
    assert table.loc["truth_frozen", SPLITS["test"]] == "100% [100, 100]" and table.loc["imagine", "runs"] == 2
    pairs = [("truth_frozen", "nothing_frozen"), ("imagine", "table")]
    gains = small_factorial.gains(runs, SPLITS, "thing", pairs, "things")
    first, second, *rest = gains["points"]
    assert first.startswith("+50 [") and second == "+100 [+100, +100]" and rest == ["not yet run"] * 2
    fig = small_factorial.factorial_figure(found, SPLITS, "who")
    heights = [patch.get_height() for patch in fig.axes[1].patches]
    assert 1.0 in heights and 0.25 in heights and fig.axes[0].get_title() == SPLITS["train"]
    hatched = [i for i, patch in enumerate(fig.axes[1].patches) if patch.get_hatch()]
    assert hatched == [small_factorial.NOTES.index("feedback")], (
        "two attempts of the frozen policy, whose bars come first"
    )
    plt.close(fig)


def test_where_nothing_is_finished_it_says_so(chosen):
    found = small_factorial.summary({}, SPLITS, "thing")
    assert len(found) == 0 and len(small_factorial.factorial_table(found, SPLITS)) == 0
    pairs = [("imagine", "table")]
    assert set(small_factorial.gains({}, SPLITS, "thing", pairs, "things")["points"]) == {"not yet run"}
    assert len(public_world.knowledge_table({})) == 0
    plt.close(small_factorial.factorial_figure(found, SPLITS, "who"))
    assert len(small_factorial.second_attempts({}, SPLITS, "thing")) == 0
    said = progress(chosen)
    assert said.startswith("8 of 36 runs are finished; still to be run: table_frozen (0 of 3), ")
    assert "imagine (2 of 3)" in said and "truth_frozen" not in said
    other = {folder: dataclasses.replace(config, seed=7) for folder, config in chosen.items()}
    assert finished(other) == {}, "a run of other settings is another run"
    assert progress({}) == "0 of 0 runs are finished."


def test_what_a_world_model_knows_is_what_it_knows_at_the_end(runs):
    """Of two runs, medians; what was known on the way does not count."""
    for shares, folder in zip(((0.5, 0.0, 1.0), (0.75, 0.5, 1.0)), runs["imagine"], strict=True):
        names = ("rule_accuracy", "rule_accuracy_right", "rule_accuracy_wrong")
        asked = {"kind": "rules", "split": "test", "n": 32, **dict(zip(names, shares, strict=True))}
        early = dict.fromkeys(names, 0.9)
        RunFolder(folder).log([asked | {"tasks": 0, **early}, asked | {"tasks": 320}])
    (row,) = public_world.knowledge_table({"imagine": runs["imagine"]}).to_dict("records")
    assert (row["things"], row["runs"], row["questions"]) == (SPLITS["test"], 2, 32)
    assert (row["answers right"], row["of right places"], row["of wrong places"]) == (0.625, 0.25, 1.0)
    assert (row["low"], row["high"]) == wilson(20, 32) and row["low"] < 0.5, "no more than a coin could say"


def test_where_a_run_began_is_a_row_of_its_own(chosen, tmp_path):
    folder = tmp_path / "imagine" / "seed0"
    write_run(folder, next(config for config in chosen.values() if config.name == "imagine"))
    rows = RunFolder(folder).metrics()
    (folder / "metrics.jsonl").write_text("")
    RunFolder(folder).log([row | {"tasks": 0, "successes": "0001"} for row in rows] + rows)
    begun = small_factorial.beginnings({"imagine": [folder]}, SPLITS, "thing")
    assert list(begun["arm"]) == ["imagine, before it heard anything"] * 2 and list(begun["success"]) == [0.25] * 2
    assert list(small_factorial.summary({"imagine": [folder]}, SPLITS, "thing")["success"]) == [0.5, 0.25]


def test_a_second_try_counts_what_the_first_one_reached(runs):
    """Of four things the first is put right at once, the second at the second try."""
    for folder in runs["nothing_frozen"]:
        rows = []
        for split in SPLITS:
            tasks = [task.task_id for task in all_tasks() if task.split == split][:4]
            tries = [(0, 1, 1), *((k, 1, 0) for k in (1, 2, 3)), *((k, 2, int(k == 1)) for k in (1, 2, 3))]
            facts = {"split": split, "level": 1, "calls": 1}
            rows += [facts | {"task_id": tasks[k], "attempt": n, "success": success} for k, n, success in tries]
        write_measurement(RunFolder(folder), ATTEMPTS, rows)
    found = small_factorial.second_attempts({"nothing_frozen": runs["nothing_frozen"]}, SPLITS, "thing")
    assert found["success"].tolist() == [0.5, 0.5] and set(found["runs"]) == {3} and set(found["notes"]) == {"feedback"}


def test_the_world_by_hand():
    table = public_world.world_table().set_index("split")
    assert table["games"].tolist() == [193, 123, 114]
    task = all_tasks()[0]
    assert [call.tool for call in public_world.solution(task)] == ["take", "open", "put"]
    tasks = [task for task in all_tasks() if task.split == "test"]
    assert table.loc["test", "chance"] == pytest.approx(sum(len(t.right) / len(t.places) for t in tasks) / len(tasks))
    kitchen = [task.right for task in all_tasks() if (task.room, task.split) == ("kitchen", "train")]
    best = max(sum(place in right for right in kitchen) for place in {place for right in kitchen for place in right})
    usual = public_world.usual_places()["kitchen"]
    assert sum(usual in right for right in kitchen) == best > len(kitchen) / 4
    assert table["constant"].between(0.5, 0.6).all()


def test_a_base_that_is_not_there_has_a_sentence():
    [row] = public_world.tokens({"x": ModelConfig(base="models/nowhere")}).to_dict("records")
    assert row["base"] == "x" and row["note"].startswith("no base model in 'models/nowhere'")


def test_tokens_are_counted(base_path):
    if reason := public_world.unplayable():
        pytest.skip(reason)
    [row] = public_world.tokens({"x": ModelConfig(base=str(base_path))}, count=2).to_dict("records")
    assert row["note"] == "" and 0 < row["actions"] < row["episode"] - row["first message"]
    assert "> put" in public_world.solved(all_tasks()[0])


def place_put(thing: str, place: str) -> Call:
    return Call("put", {"thing": thing, "place": place})


def test_names_are_copies_where_they_stand_in_the_room():
    """Also in what the game did not understand; who says no call says no name."""
    task = all_tasks()[0]
    actions = [
        Call("take", {"thing": task.thing}),
        Malformed(written(place_put(task.thing, "wardrob")), "Unknown action"),
        Malformed("put it away", "A call needs"),
        place_put(task.thing, "bed"),
    ]
    turns = [Turn(action, "", "") for action in actions]
    row = Rollout(task.task_id, 0, [], [], [], turns, StopReason.MAX_TURNS, Outcome(False, 0.0))
    assert public_world.copied_names([row]) == (4, 5)
    assert public_world.first_place(row) == "wardrob"
    assert public_world.first_place(dataclasses.replace(row, turns=turns[:1])) is None


def test_an_evaluation_is_of_all_games():
    config = load_config(ROOT / "configs" / "twc_embedded.yaml")
    splits = [task.split for task in all_tasks()]
    assert config.eval_tasks >= max(splits.count(split) for split in config.eval_splits)
    assert config.task_budget > splits.count("train"), "every game is met in training"


def test_the_shipped_config_names_the_short_template():
    assert load_config(ROOT / "configs" / "twc.yaml").model.dialect == "configs/twc_tools.jinja"
