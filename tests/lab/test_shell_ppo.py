"""shell_ppo: what is read from run folders of the shell world that are written by hand; the grid and the claims."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from lfo.config import RunConfig, as_dict
from lfo.lab import factorial, shell_ppo, small_factorial
from lfo.lab.attempts import ATTEMPTS
from lfo.lab.factorial import FROZEN
from lfo.lab.hierarchy import tasks_of
from lfo.lab.reading import SPLIT_NAMES, write_measurement
from lfo.lab.shell_ppo import HELD_OUT, MACHINE, SPLITS, UNIT
from lfo.lab.sweep import by_arm, finished, read_grid
from lfo.lab.verdicts import read_claims, verdict_table
from lfo.runs import RunFolder

ROOT = Path(__file__).resolve().parents[2]
TASKS = 40  # of each split


@pytest.fixture(scope="module")
def chosen(tmp_path_factory) -> dict[Path, RunConfig]:
    """The grid with fewer tasks, of which four arms were run, three runs each."""
    grid = read_grid(ROOT / "configs" / "shell_grid.yaml", tmp_path_factory.mktemp("shell"))
    chosen = {folder: dataclasses.replace(config, eval_tasks=TASKS) for folder, config in grid.items()}
    for folder, config in chosen.items():
        if folder.parent.name in ("ppo", "nothing_frozen", "imagine", "phone_ppo") and config.seed < 3:
            write_run(folder, config)
    return chosen


def write_run(folder: Path, config: RunConfig) -> None:
    """One step; ppo ends with all tasks without a machine, imagine with those of house tools; each began with one."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(as_dict(config)))
    (folder / "metrics.jsonl").write_text("")
    (folder / "provenance.json").write_text("{}")
    rows = [{"kind": "step", "tasks": config.task_budget, "groups_sampled": config.task_budget}]
    for split in SPLITS:
        tasks = tasks_of(config.env, split)[:TASKS]
        once = "1" + "0" * (TASKS - 1)
        house = "".join(str(int(bool(getattr(task, "machine", "")))) for task in tasks)
        skills = house.translate(str.maketrans("01", "10"))
        end = {"ppo": skills, "imagine": house}.get(folder.parent.name, once)
        for done, successes in ((0, once), (config.task_budget, end)):
            rows.append({"kind": "outcomes", "split": split, "successes": successes, "tasks": done})
            shares = {"kind": "success", "split": split, "level": 0, "tasks": done}
            rows.append(shares | {"success": successes.count("1") / TASKS, "n": TASKS})
    RunFolder(folder).log(sorted(rows, key=lambda row: row["tasks"]))


@pytest.fixture
def runs(chosen):
    return finished(chosen)


@pytest.fixture
def shell(runs):
    return shell_ppo.of_world(runs, "shell")


# --- the grid and the claims -------------------------------------------------------------------


def test_the_grid_is_the_factorial_and_both_objectives_on_both_worlds(chosen):
    arms = {folder.parent.name: config for folder, config in chosen.items()}
    facts = {
        (c.policy.learning_rate > 0, c.coupling, c.feedback is not None)
        for c in arms.values()
        if c.env.name == "shell" and not c.ppo
    }
    couplings = ("none", "memory", "imagine", "truth")
    assert facts == {(t, c, False) for t in (True, False) for c in couplings} | {(True, "none", True)}
    assert {(c.env.name, c.ppo is not None) for c in arms.values() if c.coupling == "none" and not c.feedback} == {
        (world, ppo) for world in ("shell", "phone") for ppo in (True, False)
    }
    runs = Counter(folder.parent.name for folder in chosen)
    assert len(runs) == 13 and {arm for arm, n in runs.items() if n == 5} == {"ppo", "ppo_large", "nothing_frozen"}
    assert set(runs.values()) == {3, 5}
    ppo = arms["ppo"]
    assert (ppo.rollout.tasks_per_step, ppo.rollout.group_size, ppo.task_budget) == (50, 1, 500)


def test_the_claims_are_about_its_arms(monkeypatch):
    monkeypatch.chdir(ROOT)
    arms, claims = by_arm(read_grid("configs/shell_grid.yaml", "out")), read_claims("configs/claims.yaml", "shell")
    assert {c.arm for c in claims} | {c.other for c in claims} <= set(arms)
    assert {c.by for c in claims} == {MACHINE, UNIT} and len({(c.text, c.split) for c in claims}) == len(claims)
    doubles = {(c.arm, c.other, c.measure, c.kind, c.bar, c.by) for c in claims if c.kind == "times"}
    assert doubles == {("nothing_frozen", ppo, "success", "times", 2, UNIT) for ppo in ("ppo", "ppo_large")}


# --- read from runs ----------------------------------------------------------------------------


def test_arms_of_either_world(runs, shell):
    assert set(shell) == {"ppo", "nothing_frozen", "imagine"}
    assert set(shell_ppo.of_world(runs, "phone")) == {"phone_ppo"}


def test_house_tools_are_told_apart_from_skills(shell):
    """ppo serves no machine and imagine every one; of all tasks each has its share, and together they have all."""
    house, everything = (
        small_factorial.summary(shell, SPLITS, by).set_index(["arm", "split"])["success"] for by in (MACHINE, UNIT)
    )
    for split in SPLITS:
        assert (house["ppo", split], house["imagine", split]) == (0, 1)
        assert everything["ppo", split] + everything["imagine", split] == pytest.approx(1)
        assert 0.2 < everything["ppo", split] < 0.8


def test_success_before_and_after(runs):
    table = shell_ppo.growth_table({arm: runs[arm] for arm in ("ppo", "phone_ppo")})
    assert table["tasks"].tolist() == [*HELD_OUT.values(), *SPLIT_NAMES.values()]
    assert table["before"].str.startswith("2% [").all() and set(table["runs"]) == {3}
    served = sum(not task.machine for task in tasks_of(RunFolder(runs["ppo"][0]).config.env, "test")[:TASKS])
    assert table["times"].tolist()[1:] == [served, 1, 1]


def test_a_sweep_of_both_worlds_ends_with_their_summary(runs):
    """As `lfo sweep` writes it: ppo's share of the held-out tasks, by skill or machine, and the phone's by company."""
    table = factorial.dial_summary(runs).query("metric == 'success' and world == 'all'").set_index(["arm", "split"])
    growth = shell_ppo.growth_table({"ppo": runs["ppo"]})["after"]
    assert [f"{value:.0%}" for value in table.loc["ppo", "median"]] == [after.split()[0] for after in growth]
    assert table.loc[("phone_ppo", "test"), "runs"] == 3


def test_settings_beside_their_reference(shell):
    """imagine does all that ppo does not, on known templates."""
    table = shell_ppo.settings_table({"ppo": shell["ppo"], "imagine": shell["imagine"]}).set_index("arm")
    tasks = tasks_of(RunFolder(shell["ppo"][0]).config.env, "validation")[:TASKS]
    house = sum(bool(task.machine) for task in tasks)
    assert table.loc["ppo", ["points", "low", "high"]].tolist() == [0, 0, 0]
    assert table.loc["imagine", "points"] == pytest.approx(100 * (2 * house - TASKS) / TASKS)
    assert len(shell_ppo.settings_table({})) == 0


def test_what_the_guide_leaves_open_is_changed_one_at_a_time(monkeypatch):
    monkeypatch.chdir(ROOT)
    (reference,) = by_arm(read_grid("configs/shell_grid.yaml", "out"))["ppo"][:1]
    reference = as_dict(read_grid("configs/shell_grid.yaml", "out")[reference])
    for folder, config in read_grid("configs/shell_ppo_grid.yaml", "out").items():
        groups = ("env", "model", "policy", "ppo", "rollout")
        found = as_dict(config)
        changed = [f"{g}.{k}" for g in groups for k in found[g] if found[g][k] != reference[g][k]]
        rates = ["policy.learning_rate", "ppo.value_learning_rate"]
        assert len(changed) == 1 or changed == rates, folder
        assert found["eval_splits"] == ["validation"] and found["task_budget"] == reference["task_budget"]


def test_by_skill_and_by_level(shell):
    skills = shell_ppo.skill_table(shell).set_index(["arm", "skill"])
    assert skills.loc[("imagine", "house"), "success"] == 1 and skills.loc[("ppo", "house"), "success"] == 0
    assert (skills.loc["ppo"].drop("house")["success"] == 1).all()
    assert skills.loc["ppo", "episodes"].sum() == 2 * TASKS * 3
    levels = shell_ppo.level_table(shell)
    tasks = tasks_of(RunFolder(shell["ppo"][0]).config.env, "test")[:TASKS]
    hard = [not task.machine for task in tasks if task.level == 3]
    cell = levels.query("arm == 'ppo' and level == 3 and tasks == 'new templates (test)'")["success"]
    assert cell.tolist() == [pytest.approx(sum(hard) / len(hard))]
    fig = shell_ppo.skill_figure(levels, shell_ppo.skill_table(shell))
    labels = [label.get_text() for ax in fig.axes for label in ax.get_xticklabels()]
    assert "house" in labels and "grep" in labels
    plt.close(fig)


def test_both_objectives_in_one_figure(shell, runs):
    fig = shell_ppo.objectives_figure({"ppo": shell["ppo"]}, {"phone_ppo": runs["phone_ppo"]})
    titles = [ax.get_title() for ax in fig.axes]
    assert titles[0].startswith("shell, known") and titles[3].startswith("phone, new")
    assert max(fig.axes[0].lines[0].get_ydata()) > 0.2 and fig.axes[2].lines[0].get_xdata()[-1] == 320 * 8
    plt.close(fig)


def test_claims_know_what_they_are_about(shell):
    """Doubling is judged on all tasks; notes on machines alone, where ppo has nothing and imagine everything."""
    claims = read_claims(ROOT / "configs" / "claims.yaml", "shell")
    table = verdict_table(shell, claims)
    assert len(table) == 2 and (table["value"] > 2).all() and set(table["runs"]) == {3}
    about = dataclasses.replace(claims[0], arm="imagine", other="ppo", kind="lead", bar=0.0)
    leads = [verdict_table(shell, [dataclasses.replace(about, by=by)])["value"].tolist()[0] for by in (MACHINE, UNIT)]
    assert leads[0] == 1 and leads[1] < 0.6


def test_feedback_without_training_is_a_second_attempt(shell):
    """House tools are served at the second attempt, and nothing else is."""
    for folder in shell["nothing_frozen"]:
        rows = []
        for split in SPLITS:
            for task in tasks_of(RunFolder(folder).config.env, split)[:TASKS]:
                facts = {"split": split, "task_id": task.task_id, "level": task.level, "calls": 1}
                rows += [facts | {"attempt": k, "success": int(k == 2 and bool(task.machine))} for k in (1, 2)]
        write_measurement(RunFolder(folder), ATTEMPTS, rows)
    again = {"nothing_frozen": shell["nothing_frozen"]}
    house, everything = (small_factorial.second_attempts(again, SPLITS, by) for by in (MACHINE, UNIT))
    assert house["success"].tolist() == [1, 1] and set(house["policy"]) == {FROZEN} and set(house["runs"]) == {3}
    assert set(house["notes"]) == {"feedback"} and house["split"].tolist() == list(SPLITS)
    assert (everything["success"] < 0.8).all()


def test_where_nothing_was_run_it_says_so():
    assert len(shell_ppo.growth_table({})) == len(shell_ppo.level_table({})) == len(shell_ppo.skill_table({})) == 0
    assert len(small_factorial.second_attempts({}, SPLITS, MACHINE)) == 0
    plt.close(shell_ppo.skill_figure(shell_ppo.level_table({}), shell_ppo.skill_table({})))
    plt.close(shell_ppo.objectives_figure({}, {}))


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("lfo.envs.shell.sandbox._problem", lambda *_: "bubblewrap is not installed.")
    assert shell_ppo.unplayable() == "bubblewrap is not installed."
