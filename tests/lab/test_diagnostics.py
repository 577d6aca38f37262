"""diagnostics: every number from a written-out run, and advice on both sides of each bound."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from lfo.config import RunConfig, WorldModelConfig, as_dict
from lfo.lab.diagnostics import (
    FALLING,
    GRADIENTS,
    LOSSES,
    LOWER_ABOVE,
    RAISE_BELOW,
    diagnose,
    diagnosis_table,
    lambda_advice,
    ratio_finding,
)
from lfo.runs import RunError


def write_run(folder, rows):
    (folder / "config.json").write_text(json.dumps(as_dict(RunConfig(world_model=WorldModelConfig()))))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def evaluation(tasks: int, success: float, rules: float | None = None, split: str = "validation") -> list[dict]:
    where = {"tasks": tasks, "split": split}
    rows = [{"kind": "success", **where, "level": level, "success": success + level} for level in (0, 1)]
    return rows + [{"kind": "rules", **where, "rule_accuracy": rules}] * (rules is not None)


def step(number: int, policy: dict | None = None, world_model: dict | None = None) -> dict:
    numbers = {f"policy/{k}": v for k, v in (policy or {}).items()}
    numbers |= {f"world_model/{k}": v for k, v in (world_model or {}).items()}
    return {"kind": "step", "step": number, "tasks": 8 * number, **numbers}


def test_a_run_by_hand(tmp_path):
    """Ten steps count; in one of them no group taught the policy; losses of either sign have a size."""
    rows = evaluation(0, 0.1, 0.0)
    rows += [step(1, {"grad_norm": 99.0, "loss": 99.0}, {"grad_norm": 99.0, "loss": 99.0, "accuracy": 0.1})]
    rows += [step(2, None, {"grad_norm": 2.0, "loss": 0.5, "accuracy": 0.2})]
    for i in range(3, 12):
        sign = (-1) ** i
        rows.append(
            step(i, {"grad_norm": 4.0, "loss": sign * 0.1}, {"grad_norm": 2.0, "loss": 0.5, "accuracy": i / 20})
        )
        if i in (5, 8):
            rows += evaluation(8 * i, 0.3 if i == 5 else 0.6, 0.4) + evaluation(8 * i, 0.9, 0.99, "test")
    rows += evaluation(88, 0.5, 0.75) + evaluation(88, 0.0, 0.0, "test")
    rows.append({"kind": "seconds", "tasks": 88, "seconds": {"evaluate": 1.0}})
    found = diagnose(write_run(tmp_path, rows))
    assert (found.tasks, found.gradient_norm_ratio, found.loss_ratio) == (88, 0.5, pytest.approx(2.5))  # lambda is 0.5
    assert (found.rule_accuracy, found.token_accuracy, found.success) == (0.75, 11 / 20, 0.5)
    assert found.success_trend == pytest.approx(0.5 - 0.3)  # over the newest three evaluations
    lower = "lower world_model.learning_rate, or raise policy.learning_rate; lambda would move the ratio alone."
    assert found.losses == f"The world model's losses are 2.5 times the policy's (healthy: 1 to 2): {lower}"
    assert found.gradients.startswith(
        "The world model's gradient norms are 0.5 times the policy's (healthy: 1 to 3): raise"
    )
    lever = " Lambda is no lever: with 'imagine' each has its own adapter, and AdamW divides lambda out."
    kept = "leave world_model.updates and learning_rate as they are"
    assert found.advice == f"The world model names the fields of the answers to 75% of the calls: {kept}.{lever}"


def test_a_baseline_has_no_ratios(tmp_path):
    rows = [*evaluation(0, 0.1), step(1, {"grad_norm": 1.0, "loss": 0.1})]
    write_run(tmp_path, rows)
    (tmp_path / "config.json").write_text(json.dumps(as_dict(RunConfig())))
    found = diagnose(tmp_path)
    missing = (found.gradient_norm_ratio, found.loss_ratio, found.rule_accuracy, found.token_accuracy)
    assert all(map(math.isnan, (*missing, found.success_trend)))  # one evaluation is no trend
    assert (found.gradients, found.losses) == ("", "")
    assert found.advice == "There is no world model: lambda has no effect."


def test_a_memory_has_no_lambda(tmp_path):
    """What it knows is examined, but nothing is learned with a weight."""
    write_run(tmp_path, [*evaluation(0, 0.1, 0.1), step(1, {"grad_norm": 1.0, "loss": 0.1})])
    config = dataclasses.replace(RunConfig(), world_model=WorldModelConfig(coupling="memory"))
    (tmp_path / "config.json").write_text(json.dumps(as_dict(config)))
    found = diagnose(tmp_path)
    assert (found.rule_accuracy, found.advice) == (0.1, "There is no world model: lambda has no effect.")


def test_a_policy_that_never_learned_has_no_ratio(tmp_path):
    rows = [*evaluation(0, 0.1, 0.1), step(1, {"grad_norm": 0.0, "loss": 0.0}, {"grad_norm": 1.0, "loss": 0.1})]
    found = diagnose(write_run(tmp_path, rows))
    assert math.isnan(found.gradient_norm_ratio) and math.isnan(found.loss_ratio)


@pytest.mark.parametrize(("what", "most"), [("gradient norms", GRADIENTS), ("losses", LOSSES)])
def test_ratios_on_both_sides_of_their_bounds(what, most):
    """Healthy from 1 to the most; beyond 10 or below a tenth they are warned of."""
    said = {ratio: ratio_finding(what, ratio, most, "imagine") for ratio in (0.09, 0.5, 1, most, most + 1, 10, 10.5)}
    assert [text.startswith("Warning: ") for text in said.values()] == [True, *[False] * 5, True]
    levers = [text.partition(": keep" if ": keep" in text else "): ")[2] for text in said.values()]
    assert levers[2] == levers[3] == " them."
    assert all("world_model.learning_rate" in text for text in (*levers[:2], *levers[4:]))
    assert [text.split()[0] for text in (*levers[:2], *levers[4:])] == ["raise", "raise", "lower", "lower", "lower"]


@pytest.mark.parametrize("coupling", ["shared", "echo"])
def test_of_one_adapter_lambda_is_the_only_lever(coupling):
    said = ratio_finding("losses", 20, LOSSES, coupling)
    assert (
        said == "Warning: The world model's losses are 20 times the policy's (healthy: 1 to 2): lower world_model.lam."
    )


def test_a_run_that_cannot_be_judged_is_named(tmp_path):
    with pytest.raises(RunError, match=r"nowhere is no run folder \(metrics\.jsonl is missing\); train there"):
        diagnose(tmp_path / "nowhere")
    write_run(tmp_path, evaluation(0, 0.1, 0.1, "test"))
    with pytest.raises(RunError, match="was never evaluated on validation tasks; let it go on"):
        diagnose(tmp_path)


@pytest.mark.parametrize(
    ("accuracy", "trend", "verdict"),
    [
        (RAISE_BELOW - 0.01, 0.5, "raise"),
        (RAISE_BELOW - 0.01, -0.5, "raise"),
        (RAISE_BELOW, -0.5, "keep"),
        (LOWER_ABOVE, -0.5, "keep"),
        (LOWER_ABOVE + 0.01, FALLING, "keep"),
        (LOWER_ABOVE + 0.01, math.nan, "keep"),
        (LOWER_ABOVE + 0.01, FALLING - 0.01, "lower"),
    ],
)
def test_advice_on_lambda(accuracy, trend, verdict):
    said = lambda_advice(accuracy, trend, 0.5, "shared")
    assert f": {verdict} lambda " in said and said.endswith(" 0.5.")


def test_advice_says_where_lambda_is_no_lever():
    weak, falling, kept = (lambda_advice(*seen, 0.5, "imagine") for seen in ((0.1, 0.0), (0.9, -0.5), (0.5, 0.0)))
    assert ": raise world_model.updates or learning_rate. Lambda is no lever:" in weak
    assert ": lower world_model.updates or learning_rate. Lambda is no lever:" in falling
    assert ": leave world_model.updates and learning_rate as they are. Lambda is no lever:" in kept
    assert "updates" not in lambda_advice(0.1, 0.0, 0.0, "imagine")  # from 0 on, lambda switches learning on
    assert "updates" not in lambda_advice(0.1, 0.0, 0.5, "shared")


def test_a_table_has_a_row_per_run(tmp_path):
    folders = []
    for seed, success in enumerate((0.25, 0.75)):
        (tmp_path / str(seed)).mkdir()
        folders.append(write_run(tmp_path / str(seed), evaluation(0, success, 0.5)))
    table = diagnosis_table({"one": folders[:1], "other": folders[1:]})
    assert table["arm"].tolist() == ["one", "other"] and table["success"].tolist() == [0.25, 0.75]
    assert table[["world", "seed"]].to_numpy().tolist() == [[0, 0], [0, 0]]
    assert "as they are" in table["advice"].iloc[0]
