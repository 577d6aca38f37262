"""evaluate and figures for notebook 01: what can be measured, drawn and written without a model."""

from __future__ import annotations

import base64
import io
import json
import math

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from PIL import Image

from lfo import evaluate, figures
from lfo.cli import main
from lfo.config import EnvConfig
from lfo.world import FIELDS, generate_world


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def task(world, task_id):
    return next(t for t in world.tasks if t.task_id == task_id)


# --- episodes to look at ---------------------------------------------------------------------


def test_the_same_episode_for_every_policy_and_every_time(world):
    some = world.split("validation", (2,))[0]
    first = evaluate.play_scripted(world, some, "oracle")
    assert first.success
    assert evaluate.play_scripted(world, some, "oracle").turns == first.turns
    behaviours = [
        {evaluate.play_scripted(world, some, policy, seed=seed)._user.behaviour for policy in ("oracle", "random")}
        for seed in range(20)
    ]
    assert all(len(b) == 1 for b in behaviours)
    assert len(set.union(*behaviours)) > 1


def test_a_transcript_reads_turn_by_turn(tiny):
    text = evaluate.transcript(evaluate.play_scripted(tiny, task(tiny, "offer"), "oracle"), width=2000)
    lines = text.splitlines()
    assert [line.split()[0] for line in lines] == ["USER", "AGENT", "ok", "AGENT", "ok", "AGENT", "success", "END"]
    assert lines[0] == "USER              Please call Harbor Bank for me: hear about offers."
    assert lines[3] == 'AGENT             auth_info_form {"fields": []}'
    assert lines[-1] == "END               success: success True, shaped reward 1.00"


def test_a_long_transcript_is_cut_and_wrapped(tiny):
    episode = evaluate.play_scripted(tiny, task(tiny, "bill"), "retry-from-csr")
    text = evaluate.transcript(episode, turns=2, width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("AGENT") == 2
    assert f"({len(episode.turns) - 2} more actions)" in text
    assert "more actions" not in evaluate.transcript(episode)
    hung_up = evaluate.transcript(evaluate.play_scripted(tiny, task(tiny, "bill"), "no-op"))
    assert hung_up.splitlines()[1:] == [
        "AGENT             (hangs up)",
        "END               agent_stopped: success False, shaped reward 0.00",
    ]


def test_every_check_answers_in_turn(world):
    rows = evaluate.csr_checks(world)
    assert [(r["check"], r["status"]) for r in rows] == [
        ("number", "wrong_department"),
        ("routing", "routing_violation"),
        ("authentication", "auth_failed"),
        ("authentication", "auth_failed"),
        ("capability", "wrong_department"),
        ("service", "success"),
        ("service", "success"),
    ]
    gate, goal = rows[2]["call"], rows[1]["call"]
    assert rows[1]["message"].startswith(goal)
    assert gate in rows[1]["message"].removeprefix(goal)
    assert "ismatch" in rows[3]["message"]
    assert goal in rows[4]["message"]
    assert rows == evaluate.csr_checks(world)


def test_a_world_where_not_every_check_applies_says_so(tiny):
    with pytest.raises(ValueError, match="no training task has a routed department"):
        evaluate.csr_checks(tiny)


# --- reference policies ----------------------------------------------------------------------


def test_reference_rows_by_hand(tiny):
    """Of the hand-made tasks only `offer` (Sales) demands nothing: retrying wins it and nothing else."""
    rows = evaluate.reference_rows(tiny, tiny.tasks, 2, policies=("oracle", "retry-from-csr", "no-op"))
    assert [(r["policy"], r["level"], r["n"]) for r in rows] == [
        (policy, level, 12) for policy in ("oracle", "retry-from-csr", "no-op") for level in (0, 1)
    ]
    assert [r["success"] for r in rows[::2]] == [1.0, 2 / 12, 0.0]
    assert [r["shaped_reward"] for r in rows[::2]] == [1.0, pytest.approx(2 / 12), 0.0]
    assert all(r["low"] <= r["success"] <= r["high"] for r in rows)


def test_reference_policies_on_the_world(world):
    rows = evaluate.reference_rows(world, world.split("validation"), 1)
    success = {(r["policy"], r["level"]): r["success"] for r in rows}
    assert all(success["oracle", level] == 1 for level in range(6))
    assert 0.7 < success["typical-prior", 0] < 0.95
    assert max(success[p, 0] for p in ("retry-from-csr", "random", "ask-everything", "no-op")) < 0.1


def test_either_rule_lifted_lets_ignorance_win(world):
    rows = evaluate.rule_variant_rows(world, world.split("validation", (2,)), 1)
    success = {(r["rules"], r["policy"]): r["success"] for r in rows if r["level"] == 0}
    decided, after, everything = evaluate.RULE_VARIANTS
    assert evaluate.RULE_VARIANTS[decided] == EnvConfig()
    assert (success[decided, "retry-from-csr"], success[after, "retry-from-csr"]) == (0, 1)
    assert (success[decided, "ask-everything"], success[everything, "ask-everything"]) == (0, 1)


# --- entropy ---------------------------------------------------------------------------------


def test_entropy_by_hand():
    assert evaluate.entropy_bits(["a", "b"]) == 1.0
    assert evaluate.entropy_bits(["a"] * 5) == 0.0
    assert evaluate.entropy_bits(["a", "a", "b", "c"]) == 1.5
    assert math.copysign(1, evaluate.entropy_bits(["a"])) == 1  # not -0.0


def test_hidden_entropy_by_hand(tiny):
    """Six departments, five sets, Sales twice: log2(6) - 2/6 bits; the bank has five different ones."""
    bits = {r["given"]: (r["bits"], r["cells"]) for r in evaluate.hidden_entropy(tiny)}
    assert bits["nothing"] == (pytest.approx(math.log2(6) - 2 / 6), 1)
    assert bits["industry"] == (pytest.approx(5 / 6 * math.log2(5)), 2)
    assert bits["department"] == (0, 5)
    assert bits["department and industry"] == (0, 6)
    assert bits["department and company"] == (0, 6)


def test_hidden_entropy_of_the_world(world):
    rows = evaluate.hidden_entropy(world)
    bits = [r["bits"] for r in rows]
    assert bits == sorted(bits, reverse=True)
    assert bits[0] > 4 > 2 > bits[2] > bits[3] > 0.5
    assert (bits[-1], rows[-1]["cells"]) == (0, len(world.rules))


# --- learnability ----------------------------------------------------------------------------


def test_observed_calls_say_what_the_rules_demand(world):
    """Handed over or asked for: together no call may contradict the hidden rule."""
    calls = evaluate.observe_calls(world, 300)
    assert len(calls) == 300
    assert calls == evaluate.observe_calls(world, 400)[:300]
    assert calls != evaluate.observe_calls(world, 300, seed=1)
    train = {t.company_id for t in world.split("train")}
    for call in calls:
        required = set(world.rules[call.company_id, call.department].required)
        assert call.asked == required - call.given
        assert call.company_id in train
    assert {len(call.given) for call in calls} >= {0, 1, 2}


def test_a_predictor_remembers_what_it_heard(tiny):
    """Two calls to Billing tell its set apart; a field that was handed over teaches nothing about itself."""

    def call(department, given, asked):
        return evaluate.ObservedCall("bank", department, frozenset(given), frozenset(asked))

    calls = [
        call("Billing", ["account_number"], ["billing_zip"]),
        call("Billing", ["email"], ["account_number", "billing_zip"]),
        call("Loans", [], ["name", "date_of_birth"]),
        call("Sales", [], []),
    ]
    keys = [("bank", "Billing"), ("bank", "Loans"), ("shop", "Sales")]
    assert evaluate.predict_required(tiny, calls, keys) == [
        {"account_number", "billing_zip"},
        {"name", "date_of_birth"},
        set(),
    ]


def test_replies_can_be_learned_from(world):
    rows = evaluate.learnability(world, calls=(25, 800), seeds=(0, 1))
    assert [(r["split"], r["calls"], r["seed"]) for r in rows] == [
        (split, n, seed) for seed in (0, 1) for n in (25, 800) for split in ("validation", "test")
    ]
    few, many = rows[:2], rows[2:4]
    for before, after in zip(few, many, strict=True):
        assert after["accuracy"] > before["accuracy"] + 0.2
        assert after["accuracy"] > after["chance"] + 0.4
        assert after["low"] < after["accuracy"] <= after["high"]
        assert after["n"] > 100
    assert many[0]["accuracy"] > 0.9
    assert many[1]["accuracy"] < many[1]["typical"] + 0.05 < 1


def test_what_the_scores_are_compared_with(tiny):
    rules = dict.fromkeys([("bank", "Billing"), ("bank", "Loans")])
    typical = {("banking", "Billing"): ("account_number", "billing_zip"), ("banking", "Loans"): ("email",)}
    with_typical = type(tiny)(**vars(tiny) | {"typical": type(tiny.typical)(typical, {}, {})})
    assert evaluate._constant_answers(with_typical, list(rules)) == {"chance": 0.5, "typical": 0.5}


# --- figures and tables ----------------------------------------------------------------------

ROWS = [
    {"policy": p, "level": lvl, "success": s, "low": max(0, s - 0.1), "high": min(1, s + 0.1), "n": 10}
    for p, s in (("oracle", 1.0), ("no-op", 0.0))
    for lvl in (0, 1, 2)
]


def test_interval_table():
    table = figures.interval_table(ROWS, "policy")
    assert list(table.index) == ["oracle", "no-op"]
    assert list(table.columns) == ["all", "1", "2"]
    assert table.loc["oracle", "1"] == "100.0 [90.0, 100.0]"
    assert table.loc["no-op", "all"] == "0.0 [0.0, 10.0]"


def test_reference_figure_has_a_bar_per_policy_and_level():
    ax, *others = figures.reference_figure(ROWS).axes
    assert not others
    assert [[round(bar.get_height(), 3) for bar in bars] for bars in ax.containers if hasattr(bars, "patches")] == [
        [1, 1],
        [0, 0],
    ]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2"]


def test_reference_figure_has_a_panel_per_set_of_rules():
    rows = [{"rules": name, **row} for name in ("a", "b") for row in ROWS]
    fig = figures.reference_figure(rows)
    assert [ax.get_title() for ax in fig.axes] == ["a", "b"]
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["oracle", "no-op"]


def test_entropy_figure_says_its_numbers(tiny):
    (ax,) = figures.entropy_figure(evaluate.hidden_entropy(tiny)).axes
    texts = [t.get_text() for t in ax.texts]
    assert texts[0] == "2.25 bits (1 case)"
    assert texts[-1] == "0.00 bits (6 cases)"


def test_learnability_figure_draws_the_median_over_seeds():
    rows = [
        {"split": split, "calls": n, "accuracy": a, "chance": 0.1, "typical": 0.7, "seed": seed}
        for split in figures.SPLIT_NAMES
        for seed, values in enumerate(((0.1, 0.5), (0.2, 0.9), (0.3, 0.7)))
        for n, a in zip((25, 100), values, strict=True)
    ]
    fig = figures.learnability_figure(rows)
    assert [ax.get_title() for ax in fig.axes] == list(figures.SPLIT_NAMES.values())
    assert list(fig.axes[0].lines[0].get_ydata()) == [0.2, 0.7]
    assert "median of 3 seeds" in fig.axes[1].get_legend().get_texts()[0].get_text()


def test_results_without_runs_carry_the_facts(tmp_path):
    facts = {"world_seed": 3}
    path = figures.save_figure(figures.reference_figure(ROWS), tmp_path / "sub" / "01_x", facts=facts)
    assert path == tmp_path / "sub" / "01_x.png"
    assert json.loads(path.with_suffix(".json").read_text()) == facts
    assert path.with_suffix(".svg").exists()
    table = figures.save_table(pd.DataFrame(ROWS), tmp_path / "01_y", facts=facts)
    assert json.loads(table.with_suffix(".json").read_text()) == facts
    assert len(pd.read_csv(table)) == len(ROWS)
    assert "| oracle" in table.with_suffix(".md").read_text()


# --- executed notebooks ----------------------------------------------------------------------


def executed_notebook() -> dict:
    """What papermill leaves behind, in short."""
    image = Image.effect_noise((64, 64), 90).convert("RGBA")
    image.save(png := io.BytesIO(), "png")
    outputs = [
        {"output_type": "stream", "name": "stderr", "text": ["40%|####  | 3.1 task/s"]},
        {"output_type": "stream", "name": "stdout", "text": ["kept\n"]},
        {"output_type": "display_data", "data": {"image/png": base64.b64encode(png.getvalue()).decode()}},
    ]
    timed = {"papermill": {"duration": 3.2}, "execution": {"iopub.execute_input": "2026-01-01"}}
    cells = [
        {"cell_type": "markdown", "id": "title", "metadata": {"papermill": {}}, "source": ["# Größe"]},
        {"cell_type": "code", "id": "parameters", "metadata": {**timed, "tags": ["parameters"]}, "outputs": []},
        {"cell_type": "code", "id": "ab12", "metadata": {**timed, "tags": ["injected-parameters"]}, "outputs": []},
        {"cell_type": "code", "id": "run", "metadata": timed, "outputs": outputs},
    ]
    metadata = {
        "kernelspec": {"name": "python3"},
        "language_info": {"name": "python", "version": "3.11.7"},
        "papermill": {"input_path": "somewhere", "duration": 9.5},
    }
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def test_tidy_keeps_what_two_runs_have_in_common(tmp_path, capsys):
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(executed_notebook()), encoding="utf-8")
    assert main(["tidy", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    book = json.loads(text)
    assert book["metadata"] == {"kernelspec": {"name": "python3"}, "language_info": {"name": "python"}}
    assert [c["metadata"] for c in book["cells"]] == [
        {},
        {"tags": ["parameters"]},
        {"tags": ["injected-parameters"]},
        {},
    ]
    assert [c["id"] for c in book["cells"]] == ["title", "parameters", "injected-parameters", "run"]
    stdout, figure = book["cells"][3]["outputs"]
    assert stdout["text"] == ["kept\n"]
    image = Image.open(io.BytesIO(base64.b64decode(figure["data"]["image/png"])))
    assert (image.size, image.mode) == ((64, 64), "P")
    assert "Größe" in text
    figures.tidy_notebook(path)
    assert path.read_text(encoding="utf-8") == text  # nothing is left to do


def test_tidy_names_a_missing_notebook(tmp_path, capsys):
    assert main(["tidy", str(tmp_path / "gone.ipynb")]) == 1
    assert "gone.ipynb" in capsys.readouterr().err


# --- lfo generate ----------------------------------------------------------------------------


def test_generate_writes_a_world_that_loads(tmp_path, capsys):
    from lfo.world import load_world

    assert main(["generate", "--seed", "5", "--out", str(tmp_path / "w")]) == 0
    assert "100 companies and 700 tasks" in capsys.readouterr().out
    assert load_world(tmp_path / "w") == generate_world(5)


def test_slack_that_shares_everything_is_more_than_any_form_asks():
    assert evaluate.RULE_VARIANTS["the user shares everything"].slack >= len(FIELDS)
