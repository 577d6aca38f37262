"""dials: what is heard, and who answers what is true."""

from __future__ import annotations

import pytest

from lfo.config import EnvConfig
from lfo.couplings.memory import make_teller
from lfo.envs import make_environment
from lfo.lab import dials
from lfo.lab.dials import USUAL, as_example, dial_rows, heard_calls
from lfo.lab.factorial import WORLD_MODEL
from lfo.lab.learned import learned_rows


@pytest.fixture(scope="module")
def easy():
    return make_environment(EnvConfig(circumstances=0))


def test_calls_are_heard_with_empty_hands_in_random_order(easy):
    calls = heard_calls(easy, 40)
    assert len(calls) == 40 and calls == heard_calls(easy, 80)[:40] != heard_calls(easy, 40, seed=1)
    training = {task.task_id: task for task in easy.tasks("train")}
    for call in calls:
        assert call.request == training[call.task_id].request and call.call.arguments["auth_info"] == {}
        assert call.reply == easy.knowledge.truth(call.question)
    assert len({call.task_id for call in calls}) > 15


def test_somebody_who_knows_is_right_and_who_says_nothing_is_not(easy):
    steps = easy.knowledge.steps("validation")
    assert dials.right(easy, easy.knowledge.truth, "validation") == {"right": 1.0, "n": len(steps)}
    assert dials.right(easy, lambda question: None, "validation")["right"] == 0


def test_without_circumstances_a_table_that_heard_a_call_knows_it(easy):
    table = make_teller("table", easy.knowledge)
    table.hear([as_example(step) for step in easy.knowledge.steps("validation")])
    assert dials.right(easy, table.answer, "validation")["right"] > 0.95


def test_a_row_for_every_dial_world_teller_split_and_number_of_calls(easy):
    rows = dial_rows([0], [0], [1, 300], ["table"])
    keys = ("circumstances", "replies", "world", "heard", "teller", "split")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (0, replies, 0, heard, teller, split)
        for replies in ("list", "reasons")
        for heard in (1, 300)
        for teller in ("table", USUAL)
        for split in ("validation", "test")
    ]
    right = {(row["heard"], row["teller"], row["split"]): row["right"] for row in rows}
    assert right[1, "table", "validation"] < right[300, "table", "validation"]
    assert right[1, USUAL, "test"] == right[300, USUAL, "test"]  # hears nothing, knows what is usual
    steps = easy.knowledge.steps("test")
    usual = [step for step in steps if easy.world.variation(step.company_id) == "typical"]
    assert right[1, USUAL, "test"] >= len(usual) / len(steps) > 0.5


def test_reasons_are_of_use_to_whoever_reads_them():
    """A table keeps what a reply means, which is the same with and without reasons; the grammar takes it apart."""
    rows = [row for row in dial_rows([4], [100], [160], ["table", "grammar"]) if row["split"] == "validation"]
    right = {(row["teller"], row["replies"]): row["right"] for row in rows}
    assert right["table", "list"] == right["table", "reasons"] and right[USUAL, "list"] == right[USUAL, "reasons"]
    assert right["grammar", "reasons"] > right["grammar", "list"] + 0.2


def test_a_world_model_learns_from_the_calls_that_memories_hear(monkeypatch):
    """A tiny one, of two updates a step."""
    monkeypatch.setattr("lfo.lab.learned.heard_calls", lambda *args: heard.append(args[1]) or heard_calls(*args))
    heard: list[int] = []
    rows = learned_rows([0], [100], [4, 24], "configs/smoke.yaml", ["list"])
    keys = ("circumstances", "replies", "world", "heard", "teller", "split")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (0, "list", 100, count, WORLD_MODEL, split) for count in (4, 24) for split in ("validation", "test")
    ]
    assert heard == [4, 24], "the first of the same calls"
    with pytest.raises(ValueError, match="6 calls cannot be heard 4 at a time"):
        learned_rows([0], [100], [6], "configs/smoke.yaml")
    early, late = (sum(row["right"] for row in rows if row["heard"] == count) for count in (4, 24))
    assert 0 <= early < late < 2
