"""verdicts: claims as they are written down, and what becomes of them, by hand."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
from test_factorial import write_run

from lfo.config import ConfigError, RunConfig, build
from lfo.lab.factorial import facts
from lfo.lab.hierarchy import DRAWS, tasks_of
from lfo.lab.reading import write_measurement
from lfo.lab.sweep import by_arm, read_grid
from lfo.lab.transfer_tables import ATTEMPTS, KEPT, TOLD, TRANSFER
from lfo.lab.verdicts import COLUMNS, JUDGED, Claim, concerned, read_claims, verdict_table
from lfo.runs import RunFolder

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = ROOT / "configs" / "claims.yaml"

TRUTH = {"world_model": {"coupling": "truth"}, "policy": {"learning_rate": 0}}
# What becomes of four tasks at 0, 40, 80, ... tasks; of every seed the same.
CURVES = {
    "ours": ["0000", "1111", "1111"],
    "theirs": ["0000", "0000", "0000", "0000", "0000", "1111", "1111"],
    "never": ["0000", "0000", "0000"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, list[Path]]:
    """Five seeds of three arms, and one of an arm that is told the truth, which serves half of the tasks."""
    out = tmp_path_factory.mktemp("runs")
    found = {
        arm: [write_run(out / arm / f"seed{s}", {}, {"validation": curve}, seed=s) for s in range(5)]
        for arm, curve in CURVES.items()
    }
    return found | {"truth": [write_run(out / "truth" / "seed0", TRUTH, {"validation": ["1100"]})]}


def claim(arm: str, other: str, bar: float, measure: str = "success", kind: str = "lead", **rest) -> Claim:
    told = {"split": "validation"} | rest
    return Claim(f"{arm} and {other}", arm, other, measure, kind, bar, **told)


# --- judged ----------------------------------------------------------------------------------


def test_leads_by_hand(runs):
    """At the end ours is 1 ahead of never and level with theirs."""
    claims = [claim("ours", "never", 0.05), claim("never", "ours", 0.05), claim("ours", "theirs", 0.05)]
    table = verdict_table(runs, claims)
    assert list(table.columns) == COLUMNS
    assert table["value"].tolist() == [1, -1, 0] and table["low"].tolist() == table["high"].tolist() == [1, -1, 0]
    assert table["verdict"].tolist() == ["supported", "refuted", "refuted"] and set(table["runs"]) == {5}
    assert table["p"].tolist() == pytest.approx([3 * 2 / (DRAWS + 1)] * 3)  # the smallest there is, and Holm's three


def test_areas_are_compared_over_the_tasks_that_both_were_given(runs):
    """Over 80 tasks ours has 3/4 and theirs nothing; theirs ends 200 tasks later with all of them."""
    claims = [claim("ours", "theirs", 0.5, "area"), claim("theirs", "ours", 0.5, "area")]
    table = verdict_table(runs, claims)
    assert table["value"].tolist() == [0.75, -0.75]
    assert verdict_table(runs, [claim("ours", "theirs", 0.5)])["value"].tolist() == [0], "ends are each one's own"


def test_areas_end_where_both_were_run(runs, tmp_path):
    """In another world one of theirs had 40 tasks only: no reason to compare the first 40 here."""
    short = write_run(tmp_path / "short", {"env": {"world_seed": 9}}, {"validation": ["0000", "0000"]})
    claims = [claim("ours", "theirs", 0.5, "area")]
    assert verdict_table(runs | {"theirs": [*runs["theirs"], short]}, claims)["value"].tolist() == [0.75]


def test_ratios_by_hand(runs):
    """Ours arrives after 40 tasks, theirs after 200, never within 80: 5 and at least 2 times fewer."""
    bars = [("ours", "theirs", 3), ("ours", "theirs", 6), ("ours", "never", 1.5), ("never", "ours", 1)]
    table = verdict_table(runs, [claim(*bar, measure="tasks_to_70", kind="times") for bar in bars])
    assert table["value"].tolist() == [5, 5, 2, 0]
    assert table["verdict"].tolist() == ["supported", "refuted", "supported", "refuted"]


def test_shares_of_what_the_truth_gives(runs, tmp_path):
    """Half of the tasks is all of what the truth gives: an arm that serves half of them is there."""
    half = [write_run(tmp_path / str(s), {}, {"validation": ["0000", "1100", "1100"]}, seed=s) for s in range(5)]
    asked = {"measure": "tasks_to_70", "kind": "times"}
    claims = [claim("half", "theirs", 3, **asked, relative=relative) for relative in ("", "truth")]
    table = verdict_table(runs | {"half": half}, claims)
    assert table["value"].tolist() == [0, 5]
    without = {arm: folders for arm, folders in runs.items() if arm != "truth"}
    assert verdict_table(without | {"half": half}, claims)["value"].tolist() == [0]  # relative to what?


def test_tasks_to_most_of_what_the_baseline_ends_with(runs, tmp_path):
    """The baseline, the first that reads no notes, ends with half of the tasks, after 80; others after 40, or never."""
    half = {"validation": ["0000", "0000", "1100", "1100"]}
    own = [write_run(tmp_path / str(s), {"world_model": None}, half, seed=s) for s in range(5)]
    asked = {"measure": "tasks_to_90", "kind": "times"}
    claims = [claim(arm, "baseline", 1, relative="baseline", **asked) for arm in ("ours", "never")]
    table = verdict_table({"baseline": own} | runs, [*claims, claim("ours", "baseline", 1, **asked)])
    assert table["value"].tolist() == [2, 0, 3], "by itself half is not nine tenths, of 120 tasks that it was given"


def test_tasks_of_some_levels(tmp_path):
    tasks = tasks_of(build(RunConfig, {}).env, "validation")
    hard = ["".join(str(int(task.level >= 3)) for task in tasks)]
    arms = {"hard": hard, "none": ["0" * len(tasks)]}
    runs = {
        arm: [write_run(tmp_path / arm / str(s), {}, {"validation": curve}, seed=s) for s in range(5)]
        for arm, curve in arms.items()
    }
    claims = [claim("hard", "none", 0.6, levels=levels) for levels in (None, (3, 4, 5), (1, 2))]
    table = verdict_table(runs, claims)
    assert table["value"].tolist() == [pytest.approx(0.5), 1, 0]
    assert table["verdict"].tolist()[1:] == ["supported", "refuted"]


def test_a_claim_about_elsewhere_is_judged_by_what_was_measured_there(runs):
    """At the end ours serves all tasks of its own; measured were two of other levels, of which it serves none."""
    for arm, served in (("ours", 0), ("never", 1)):
        for folder in runs[arm]:
            tasks = {t.level: t.task_id for t in tasks_of(RunFolder(folder).config.env, "validation")}
            rows = [
                {"split": "validation", "held_out_phrasing": held_out, "level": level, "task_id": tasks[level]}
                | {"variation": "typical", "episode": 0, "success": int(served and level == 4 and not held_out)}
                | {"called": True}
                for level, held_out in itertools.product((4, 5), (False, True))
            ]
            write_measurement(RunFolder(folder), TRANSFER, rows)
    two = {arm: runs[arm] for arm in ("ours", "never")}
    claims = [claim("never", "ours", 0.05, levels=levels, of="transfer") for levels in (None, (4,), (5,))]
    table = verdict_table(two, claims)
    assert table["value"].tolist() == [0.5, 1, 0] and table["verdict"].tolist()[1:] == ["supported", "refuted"]
    assert verdict_table({}, claims).empty, "as in a clone, where nothing was measured yet"


def test_a_claim_about_one_arm_is_judged_by_its_own_level(runs):
    """At the end ours serves everybody, never nobody; the truth serves half, of which ours is twice."""
    bars = [("ours", 0.9, False), ("never", 0.1, False), ("ours", 1.9, True)]
    claims = [claim(arm, "", bar, kind="level", relative="truth" if of_truth else "") for arm, bar, of_truth in bars]
    table = verdict_table(runs, claims)
    assert table["value"].tolist() == [1, 0, 2] and table["verdict"].tolist() == ["supported", "refuted", "undecided"]
    assert table["runs"].tolist() == [5, 5, 5]


def test_a_claim_about_attempts_is_judged_by_the_first_two(runs):
    """Of two tasks the one is served at the second attempt, the other at the third; who was not measured has none."""
    rows = [
        {
            "split": "validation",
            "task_id": f"validation-00{task}",
            "level": 1,
            "attempt": k,
            "success": int(k == needed),
        }
        for task, needed in ((0, 2), (1, 3))
        for k in range(1, needed + 1)
    ]
    for folder in runs["ours"]:
        write_measurement(RunFolder(folder), ATTEMPTS, rows)
    claims = [claim(arm, "", bar, kind="level", of="attempts") for arm in ("ours", "theirs") for bar in (0.4, 0.6)]
    assert verdict_table(runs, claims)["value"].tolist() == [0.5, 0.5]
    assert verdict_table({"theirs": runs["theirs"]}, claims).empty


def test_a_claim_about_policies_that_are_told_is_judged_by_the_truth_alone(runs):
    """Told the truth ours fails at one of two tasks, theirs at none; what else they were told does not count, and who
    was not told anything has no claim."""
    for arm, missed in (("ours", 1), ("theirs", 0)):
        rows = [
            {"split": split, "told": told, "task_id": f"{split}-00{task}", "success": int(right)}
            for split in ("validation", "test")
            for task in (0, 1)
            for told, right in (("truth", task >= missed and split == "validation"), ("imagined", arm == "ours"))
        ]
        for folder in runs[arm]:
            write_measurement(RunFolder(folder), TOLD, rows)
    claims = [claim("theirs", other, 0, of="told") for other in ("ours", "never")]
    (row,) = verdict_table(runs, claims).to_dict("records")
    assert row["value"] == 0.5 and row["runs"] == 5
    with pytest.raises(TypeError, match="of told there are no levels"):
        claim("theirs", "ours", 0, of="told", levels=(1,))


def test_a_claim_about_rules_is_judged_by_what_was_known_at_the_end(runs):
    """One number a run: ours knew .75 before, and knows half; never knows what its seed says, .1 to .5."""
    for folder in (folder for arm in ("ours", "never") for folder in runs[arm]):
        run = RunFolder(folder)
        end = 0.5 if folder.parent.name == "ours" else 0.1 * (run.config.seed + 1)
        known = [(0, "validation", 0.75), (80, "validation", end), (80, "test", 0.9)]
        run.log(
            {"kind": "rules", "tasks": tasks, "step": tasks, "split": split, "rule_accuracy": share}
            for tasks, split, share in known
        )
    table = verdict_table(runs, [claim("ours", "never", 0.05, of="rules"), claim("ours", "theirs", 0, of="rules")])
    (row,) = table.to_dict("records")
    assert row["value"] == pytest.approx(0.2) and (row["low"], row["high"]) == pytest.approx((0, 0.4))
    assert verdict_table({}, [claim("ours", "never", 0.05, of="rules")]).empty
    for settings in ({"levels": (1,)}, {"relative": "truth"}, {"measure": "area"}, {"by": "unit"}):
        with pytest.raises(TypeError, match="of rules"):
            claim("ours", "never", 0.05, of="rules", **settings)


def test_fewer_than_five_runs_decide_nothing(runs):
    few = {arm: folders[:4] for arm, folders in runs.items()}
    assert verdict_table(few, [claim("ours", "never", 0.05)])["verdict"].tolist() == ["undecided"]


def test_a_claim_with_an_arm_that_was_not_run_is_left_out(runs):
    claims = [claim("ours", "nobody", 0), claim("ours", "never", 0, split="test"), claim("ours", "never", 0)]
    table = verdict_table(runs, claims)
    assert table[["claim", "split"]].to_numpy().tolist() == [["ours and never", "validation"]]
    none = verdict_table(runs, claims[:1])
    assert none.empty and list(none.columns) == COLUMNS


# --- as they are written down ----------------------------------------------------------------


def test_a_list_is_a_claim_for_each(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(
        "here:\n- {text: '{arm} is ahead: {other}, {measure}', arm: a, other: [b, c], measure: [area, success],"
        " kind: lead, bar: 0.1, split: test, levels: [3, 4]}\n"
    )
    claims = read_claims(path, "here")
    assert [c.text for c in claims] == [f"a is ahead: {o}, {m}" for o in "bc" for m in ("area", "success")]
    assert claims[0] == Claim("a is ahead: b, area", "a", "b", "area", "lead", 0.1, "test", (3, 4))


def test_pairs_are_a_claim_for_each(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(
        "here:\n- {text: '{arm} is ahead: {other}', pairs: [[a, b], [c, d]], measure: area, kind: lead, bar: 0,"
        " split: [validation, test]}\n"
    )
    claims = read_claims(path, "here")
    assert [(c.text, c.arm, c.other, c.split) for c in claims] == [
        (f"{arm} is ahead: {other}", arm, other, split)
        for arm, other in ("ab", "cd")
        for split in ("validation", "test")
    ]


@pytest.mark.parametrize(
    "entry",
    [
        "text: x, arm: a",
        "text: x, arm: a, measure: area, kind: lead, bar: 0, split: test",
        "text: x, pairs: [[a, b]], other: b, measure: area, kind: lead, bar: 0, split: test",
        "text: x, pairs: [[a, b, c]], measure: area, kind: lead, bar: 0, split: test",
        "text: x, arm: a, other: b, measure: area, kind: lead, bar: 0",
        "text: x, arm: a, other: b, measure: area, kind: level, bar: 0, split: test",
        "text: x, arm: a, other: b, measure: area, kind: leads, bar: 0, split: test",
        "text: x, arm: a, measure: area, kind: level, bar: 0, split: test, of: attempts",
        "text: '{what}', arm: a, other: b, measure: area, kind: lead, bar: 0, split: test",
        "text: x, arm: a, other: b, measure: succes, kind: lead, bar: 0, split: test",
        "text: x, arm: a, other: b, measure: area, kind: lead, bar: 0, split: test, of: transfer",
        "text: x, arm: a, other: [], measure: area, kind: lead, bar: 0, split: test",
        "text: x, pairs: [ab], measure: area, kind: lead, bar: 0, split: test",
        "text: 3, arm: a, other: b, measure: area, kind: lead, bar: 0, split: test",
        "text: '{0}', arm: a, other: b, measure: area, kind: lead, bar: 0, split: test",
        "just words",
    ],
)
def test_what_is_no_claim_is_refused(tmp_path, entry):
    path = tmp_path / "claims.yaml"
    path.write_text(f"here:\n- {{{entry}}}\n" if ": " in entry else f"here:\n- {entry}\n")
    with pytest.raises(ConfigError, match=r"'here': .* is no claim"):
        read_claims(path, "here")


def test_what_is_wrong_with_a_claim_is_said(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(
        "here:\n- {text: x, arm: a, other: b, measure: success, kind: lead, bar: 0, split: test, of: rule}\n"
    )
    with pytest.raises(ConfigError, match="of is one of success, transfer, attempts, told, rules, not rule"):
        read_claims(path, "here")
    with pytest.raises(ConfigError, match="no table 'there'; it has: here"):
        read_claims(path, "there")


def test_the_claims_are_about_arms_that_exist(monkeypatch):
    monkeypatch.chdir(ROOT)  # grids name their configs from there
    grids = {"factorial": ["science.yaml"], "ablation": [p.name for p in Path("configs").glob("ablation_*.yaml")]}
    grids |= {"feedback": ["feedback_grid.yaml"], "feedback_why": ["feedback_grid.yaml"]}
    grids |= {
        "reasons": ["science.yaml", "reasons.yaml"],
        "second_base": ["second_base.yaml"],
        "ensemble": ["science.yaml"],
        "backoff": ["science.yaml"],
        "six": ["six.yaml"],
        "confirm": ["confirm.yaml"],
        "plain": ["confirm.yaml", "plain.yaml"],
        "reads": ["reads.yaml"],
        "richer": ["richer.yaml"],
    }
    for table, files in grids.items():
        arms = {arm for file in files for arm in by_arm(read_grid(Path("configs") / file, "out"))}
        claims = read_claims(CLAIMS, table)
        assert {arm for c in claims for arm in c.arms} <= arms
        assert {c.measure for c in claims} <= set(JUDGED) and {c.kind for c in claims} == (
            {"lead", "times", "level"} if table in ("factorial", "feedback", "confirm") else {"lead"}
        )
        assert len(set(claims)) == len(claims) and len({(c.text, c.split) for c in claims}) == len(claims)
        assert 2 * len(claims) / DRAWS < 0.05, "no claim of so many could ever be decided"
        assert {c.split for c in claims} == {"validation", "test"} and all(": " in c.text for c in claims)


@pytest.mark.parametrize(
    ("table", "grid"),
    [
        ("noted", "reads"),
        ("six_words", "six"),
        ("replayed", "science"),
        ("schedule", "science"),
        ("groups", "science"),
        *((f"feedback_{about}", "feedback_grid") for about in ("aims", "imitation", "long", "rank")),
        ("feedback_sources", "tuning_sources"),
        ("feedback_levels", "feedback_levels"),
    ],
)
def test_so_are_the_claims_of_smaller_tables(table, grid, monkeypatch):
    monkeypatch.chdir(ROOT)
    claims, arms = read_claims(CLAIMS, table), by_arm(read_grid(Path("configs") / f"{grid}.yaml", "out"))
    assert claims and {arm.removesuffix(KEPT) for c in claims for arm in c.arms} <= set(arms)
    assert len({(c.text, c.split) for c in claims}) == len(claims)


def test_the_claims_of_notebook_04_are_the_ones_that_were_agreed():
    claims = read_claims(CLAIMS, "factorial")
    times = {(c.other, c.bar) for c in claims if c.kind == "times" and c.arm == "imagine" and c.relative}
    memories = ("table", "nearest", "additive", "additive_frozen", "grammar_frozen")
    assert times == {("baseline", 3), *((memory, 1.3) for memory in memories)}
    trained = {(c.arm, c.other, c.bar) for c in claims if c.levels == (3, 4, 5)}
    assert trained == {(arm, f"{arm}_frozen", 0.10) for arm in ("imagine", "table", "truth")}
    variants = [c for c in claims if {c.arm, c.other} & {"imagine_memory", "imagine_silent", "cloning"}]
    assert [(c.arm, c.other, c.measure, c.bar, c.split) for c in variants] == [
        ("imagine_memory", "imagine", "area", -0.05, "validation"),
        ("imagine_silent", "imagine", "area", -0.05, "validation"),
        ("imagine", "cloning", "area", 0, "test"),
    ]
    goals = {(c.split, c.bar, c.of) for c in claims if c.kind == "level" and c.arm == "imagine"}
    assert goals == {
        *(("validation", 0.7, "success"), ("test", 0.7, "success"), ("validation", 0.8, "rules")),
        *(("test", 0.7, "rules"), ("test", 0.9, "attempts")),
    }
    controls = [c for c in claims if c.kind == "lead" and not c.levels and c not in variants]
    assert {c.measure for c in controls} == {"area"} and {c.bar for c in controls} == {0.05}
    others = {"none", "placebo", "shared", "stacked", "dream", "baseline", "table", "nearest", "additive"}
    assert {c.other for c in controls} >= others | {"table_frozen", "nearest_frozen", "additive_frozen"}


def test_six_kinds_of_circumstances_are_all_that_differs_from_the_headline(monkeypatch):
    monkeypatch.chdir(ROOT)
    science = read_grid("configs/science.yaml", "out")
    for folder, config in read_grid("configs/six.yaml", "out").items():
        arm = folder.parent.name.replace("_six", "_frozen")
        same = science[folder.parents[1] / arm / folder.name]
        env = dataclasses.replace(same.env, circumstances=6)
        ends = same.task_budget  # evaluated at both
        assert config == dataclasses.replace(same, name=config.name, env=env, eval_every=ends)


def worlds_elsewhere(*names: str) -> set[int]:
    """The worlds of all grids with arms but these."""
    grids = {path for path in Path("configs").glob("*.yaml") if "arms:" in path.read_text()}
    others = grids - {Path(f"configs/{name}.yaml") for name in names}
    return {config.env.world_seed for path in others for config in read_grid(path, "out").values()}


def test_what_is_asked_again_elsewhere_is_what_was_asked(monkeypatch):
    """Arms of the same names, in worlds that no other grid names, with no other setting."""
    monkeypatch.chdir(ROOT)
    science, seen = read_grid("configs/science.yaml", "out"), worlds_elsewhere("confirm", "plain")
    for folder, config in read_grid("configs/confirm.yaml", "out").items():
        same = science[folder.with_name("world1-seed0")]
        env = dataclasses.replace(same.env, world_seed=config.env.world_seed)
        assert config == dataclasses.replace(same, env=env) and config.env.world_seed not in seen


def test_who_learns_calls_as_they_were_heard_differs_in_that_alone(monkeypatch):
    """From `imagine_frozen` of the same worlds, five of those that nobody had seen."""
    monkeypatch.chdir(ROOT)
    beside, grid = (read_grid(f"configs/{name}.yaml", "out") for name in ("confirm", "plain"))
    assert {folder.name for folder in grid} == {f"world{world}-seed0" for world in range(21, 26)}
    for folder, config in grid.items():
        twin = beside[Path("out", "imagine_frozen", folder.name)]
        model = dataclasses.replace(twin.world_model, anonymise=0)
        assert config == dataclasses.replace(twin, name=folder.parent.name, world_model=model)


def test_who_reads_differs_in_what_its_name_says(monkeypatch):
    """In worlds that no other grid names, with the base that was taught to read but for one, no policy trained."""
    monkeypatch.chdir(ROOT)
    science, grid = (read_grid(f"configs/{name}.yaml", "out") for name in ("science", "reads"))
    assert not worlds_elsewhere("reads") & {config.env.world_seed for config in grid.values()}
    same = {
        "unread": "imagine_frozen",
        "imagine_frozen": "imagine_frozen",
        "backoff": "backoff_frozen",
        "additive": "additive_frozen",
    }
    same |= {"grammar": "grammar_frozen", "truth_frozen": "truth_frozen", "nothing_frozen": "nothing_frozen"}
    own = {"reading": {"reads": 8, "updates": 5, "anonymise": 0}}
    own["reading_only"] = own["reading"] | {"updates": 0, "lam": 0}
    own["unread_alike"] = {"updates": 5, "anonymise": 0}
    alike = dict.fromkeys(own, "imagine_frozen")
    recalls = ("nearest", "backoff", "additive", "grammar")
    own |= {f"{recall}_similar": {"reads": 8} for recall in recalls}
    alike |= {f"{recall}_similar": f"{recall}_frozen" for recall in recalls}
    for folder, config in grid.items():
        arm = folder.parent.name
        twin = science[Path("out", (same | alike)[arm], f"world{config.env.world_seed - 10}-seed0")]
        model = dataclasses.replace(twin.model, base="data/base" if arm == "imagine_frozen" else "data/base_reading")
        env, w = dataclasses.replace(twin.env, world_seed=config.env.world_seed), twin.world_model
        every = twin.eval_every if arm in ("nothing_frozen", "truth_frozen") else 320
        expected = dataclasses.replace(twin, name=config.name, env=env, model=model, eval_every=every)
        if arm in own:
            expected = dataclasses.replace(expected, world_model=dataclasses.replace(w, **own[arm]))
        assert config == expected, arm


def test_richer_worlds_are_all_that_differs(monkeypatch):
    """But for word dropout, which is an arm of its own: in worlds that no other grid names, no policy trained."""
    monkeypatch.chdir(ROOT)
    science, grid = (read_grid(f"configs/{name}.yaml", "out") for name in ("science", "richer"))
    assert not worlds_elsewhere("richer") & {config.env.world_seed for config in grid.values()}
    same = {"richer": "imagine_frozen", "words_frozen": "imagine_frozen", "additive_richer": "additive_frozen"}
    for folder, config in grid.items():
        arm, world = folder.parent.name, config.env.world_seed
        twin = science[Path("out", same.get(arm, arm), f"world{world - 15}-seed{config.seed}")]
        model = dataclasses.replace(twin.model, base="data/base_reading" if "richer" in arm else "data/base")
        env, w = dataclasses.replace(twin.env, world_seed=world), twin.world_model
        if arm == "words_frozen":
            twin = dataclasses.replace(twin, world_model=dataclasses.replace(w, word_dropout=0.15))
        every = 8 if arm == "truth_frozen" else 320
        assert config == dataclasses.replace(twin, name=config.name, env=env, model=model, eval_every=every), arm


def test_arms_beside_three_world_models_differ_in_what_their_names_say(monkeypatch):
    monkeypatch.chdir(ROOT)
    arms, claims = by_arm(science := read_grid("configs/science.yaml", "out")), read_claims(CLAIMS, "ensemble")
    own = {"ensemble": {"members": 3, "votes": 3}, "long": {"updates": 60}, "voting": {"votes": 9}}
    own |= {"half": {"anonymise": 0.5}}
    names = ("imagine_frozen", *(f"imagine_{name}_frozen" for name in own))
    assert set(concerned(arms, claims)) == set(names)
    one, *others = (science[arms[name][0]] for name in names)
    w = one.world_model
    assert (3 * w.updates, w.anonymise) == (60, 0.9), "as many as three have, and nearly all"
    for other, changed in zip(others, own.values(), strict=True):
        assert other == dataclasses.replace(one, name=other.name, world_model=dataclasses.replace(w, **changed))
    alike = [name for name in arms if facts(science[arms[name][0]]) == facts(one)]
    assert alike == ["imagine_frozen", "imagine_long_frozen", "imagine_half_frozen"], "README shows the first"


def test_who_hears_lists_is_who_hears_reasons_in_all_else(monkeypatch):
    monkeypatch.chdir(ROOT)
    why, lists = (read_grid(f"configs/{name}.yaml", "out") for name in ("science", "reasons"))
    for one in read_claims(CLAIMS, "reasons"):
        assert one.other.removesuffix("_list") == one.arm.removesuffix("_frozen")
        for there in by_arm(lists)[one.other]:
            mine, theirs = why[by_arm(why)[one.arm][0].with_name(there.name)], lists[there]
            assert dataclasses.replace(theirs.env, replies="reasons") == mine.env
            assert dataclasses.replace(theirs, env=mine.env, name=mine.name) == mine


def test_the_arms_that_two_grids_share_are_the_same_runs(monkeypatch):
    """Else notebook 08 would train what notebook 04 has trained, in the same folder."""
    monkeypatch.chdir(ROOT)
    one, other = (read_grid(Path("configs") / f"{name}.yaml", "out") for name in ("science", "feedback_grid"))
    shared = set(one) & set(other)
    assert {folder.parent.name for folder in shared} == {
        *("baseline", "baseline_imitate", "table", "imagine", "truth_frozen", "cloning", "dream")
    }
    assert all(one[folder] == other[folder] for folder in shared)


@pytest.mark.parametrize("name", ["science", "feedback_grid", "confirm", "six", "reads", "richer", "second_base"])
def test_arms_have_world_and_seed_in_common(name, monkeypatch):
    """And so their tasks: `Run` makes its stream of the environment's tasks and the seed (`TaskStream`)."""
    monkeypatch.chdir(ROOT)
    worlds = {}
    for folder, config in read_grid(Path("configs") / f"{name}.yaml", "out").items():
        worlds.setdefault(folder.name, []).append((config.env, config.seed))
    assert len(worlds) >= 5 and all(one == first for first, *others in worlds.values() for one in others)


def test_the_second_base_is_all_that_its_arms_have_of_their_own(monkeypatch):
    monkeypatch.chdir(ROOT)
    first, second = (read_grid(Path("configs") / f"{name}.yaml", "out") for name in ("science", "second_base"))
    for folder, theirs in second.items():
        assert theirs.model.base == "data/base_without_notes"
        assert dataclasses.replace(theirs, model=first[folder].model) == first[folder]
        assert dataclasses.replace(theirs.model, base=first[folder].model.base) == first[folder].model
