"""types: JSONL round trips, one clear sentence for everything that can be wrong with a file, small facts."""

from __future__ import annotations

import dataclasses
import json

import pytest

from lfo.envs.phone.records import CircumstanceRule, Company, Department, Effect, HiddenRule, PhoneTask, Profile
from lfo.types import (
    Call,
    Encoded,
    Example,
    Hangup,
    Malformed,
    Outcome,
    Question,
    RecordError,
    Rollout,
    StopReason,
    Task,
    Turn,
    by_group,
    from_json,
    read_jsonl,
    sha256,
    to_json,
    write_jsonl,
)

DEPARTMENT = Department("Billing", "800-555-0100", "bills", "Mon-Fri 8-18")
COMPANY = Company("c000", "Harbor Bank", "banking", (DEPARTMENT, dataclasses.replace(DEPARTMENT, name="Loans")))
RULE = HiddenRule("c000", "Billing", ("account_number",), "date_of_birth", "", "typical")
PROFILE = Profile("p0", "banking", {"name": "Ana Lopez", "account_number": "001234"})
TASK = PhoneTask("t0", "train", 1, "c000", "p0", "Please call.", ("dispute a charge",), 3)
ABROAD = dataclasses.replace(TASK, request="Please call. I am calling from abroad.", circumstances=("abroad",))
EFFECT = CircumstanceRule("c000", "abroad", Effect(first="Billing"))
CALL = Call("make_phone_call", {"phone_number": "1", "auth_info": {"name": "Ana"}})
TURNS = (Turn(CALL, "{}", "ok"), Turn(Hangup(), "", "stopped"), Turn(Malformed("x", "no"), "no", "error"))
EXAMPLE = Example("t0", CALL, "Done.", "success", Encoded((1, 2), (3,)), "Please.", TURNS)
ROLLOUT = Rollout(
    task_id="t0",
    group=2,
    tokens=[1, 2, 3],
    roles=[0, 1, 2],
    logprobs=[0.0, -1.5, 0.0],
    turns=list(TURNS),
    stop=StopReason.MAX_TURNS,
    outcome=Outcome(False, 0.2, {"calls_per_task": 1.0}),
    examples=[EXAMPLE],
    scout=True,
)
RECORDS = [DEPARTMENT, COMPANY, RULE, EFFECT, PROFILE, TASK, ABROAD, EXAMPLE, EXAMPLE.question, ROLLOUT]


def back(tmp_path, row):
    """The row, written and read again."""
    write_jsonl(tmp_path / "one.jsonl", [row])
    return read_jsonl(tmp_path / "one.jsonl", type(row))[0]


@pytest.mark.parametrize("row", RECORDS, ids=lambda r: type(r).__name__)
def test_round_trip(tmp_path, row):
    path = tmp_path / "deep" / "rows.jsonl"
    assert write_jsonl(path, [row, row]) == 2
    assert read_jsonl(path, type(row)) == [row, row]
    assert [p.name for p in path.parent.iterdir()] == ["rows.jsonl"]  # no temporary file is left


def test_round_trip_keeps_types(tmp_path):
    rollout = back(tmp_path, ROLLOUT)
    assert [type(turn.action) for turn in rollout.turns] == [Call, Hangup, Malformed]
    assert rollout.stop is StopReason.MAX_TURNS and isinstance(rollout.examples[0], Example)
    assert rollout.examples[0].request == "Please." and rollout.examples[0].turns == TURNS  # not part of equality
    assert isinstance(back(tmp_path, COMPANY).departments, tuple)


@pytest.mark.parametrize("text", ["a\u2028b", "a\x85b\x0b\x1c", "naïve ☎", 'quote " and \\', "a\r\nb", "\\ud800"])
def test_any_character_survives_a_round_trip(tmp_path, text):
    """Actions are whatever a model wrote: other line breaks than \\n must not tear a line apart."""
    turn = Turn(Malformed(text, text), text, "error")
    assert back(tmp_path, turn) == turn


def test_raw_unicode_line_breaks_of_other_writers_are_data(tmp_path):
    path = tmp_path / "rows.jsonl"
    turn = Turn(Malformed("a\u2028b", ""), "", "error")
    path.write_text(json.dumps(dataclasses.asdict(turn), ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_jsonl(path, Turn) == [turn]


def test_dicts_can_be_written_and_an_empty_file_has_no_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert write_jsonl(path, [{"a": 1}]) == 1
    assert path.read_text() == '{"a": 1}\n'
    assert write_jsonl(path, []) == 0
    assert read_jsonl(path, Turn) == []


def test_a_failed_write_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"a": 1}])
    with pytest.raises(TypeError):
        write_jsonl(path, [{"a": 2}, {"a": object()}])
    assert path.read_text() == '{"a": 1}\n'


def test_missing_file(tmp_path):
    path = tmp_path / "none.jsonl"
    with pytest.raises(RecordError) as error:
        read_jsonl(path, Turn)
    assert str(error.value) == f"{path} is missing; write the data set with `lfo generate`."
    with pytest.raises(RecordError, match="is missing; train first"):
        read_jsonl(tmp_path, Turn, remedy="train first")  # a folder


@pytest.mark.parametrize(
    ("line", "problem"),
    [('{"a": ', "invalid JSON"), ("", "invalid JSON"), ("[1]", "should be an object"), ("3", "should be an object")],
)
def test_malformed_lines_are_counted_from_one(tmp_path, line, problem):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{to_json(PROFILE)}\n{line}\n{to_json(PROFILE)}\n")
    with pytest.raises(RecordError, match=problem) as error:
        read_jsonl(path, Profile)
    assert str(error.value).startswith(f"{path}, line 2: ") and "\n" not in str(error.value)


def test_not_utf8(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"action": "\xff"}\n')
    with pytest.raises(RecordError, match="is not UTF-8 text; write the data set"):
        read_jsonl(path, Turn)


@pytest.mark.parametrize(
    ("row", "change", "place"),
    [
        (TURNS[0], {"tol": "x"}, "w, tol: "),
        (TURNS[0], {"observation": None}, "w, observation: "),
        (TURNS[0], {"status": 5}, "w, status: "),
        (TURNS[0], {"action": {"tool": "x", "arguments": []}}, "w, action, Call, arguments: "),
        (TURNS[0], {"action": {"text": "x"}}, "w, action, "),
        (TASK, {"level": "1"}, "w, level: "),
        (TASK, {"level": True}, "w, level: "),
        (TASK, {"level": 1.0}, "w, level: "),
        (TASK, {"goals": "dispute a charge"}, "w, goals: "),
        (TASK, {"goals": [1]}, "w, goals, 0: "),
        (TASK, {"circumstances": "abroad"}, "w, circumstances: "),
        (EFFECT, {"effect": {"field": 5}}, "w, effect, field: "),
        (EFFECT, {"effect": {"second": "Billing"}}, "w, effect, second: "),
        (PROFILE, {"values": []}, "w, values: "),
        (PROFILE, {"values": {"name": 5}}, "w, values, name: "),
        (COMPANY, {"departments": ["Billing"]}, "w, departments, 0: "),
        (ROLLOUT, {"tokens": [1, "2"]}, "w, tokens, 1: "),
        (ROLLOUT, {"logprobs": ["x"]}, "w, logprobs, 0: "),
        (ROLLOUT, {"scout": 1}, "w, scout: "),
        (ROLLOUT, {"stop": "bored"}, "w, stop: "),
        (ROLLOUT, {"outcome": {"success": 1, "reward": 0.0}}, "w, outcome, success: "),
        (ROLLOUT, {"outcome": {"success": True, "reward": True}}, "w, outcome, reward: "),
    ],
)
def test_unknown_and_mistyped_fields_are_named(row, change, place):
    data = json.loads(to_json(row))
    assert from_json(type(row), json.dumps(data), "w") == row
    with pytest.raises(RecordError) as error:
        from_json(type(row), json.dumps(data | change), "w")
    assert str(error.value).startswith(place) and str(error.value).endswith(".")


def test_a_missing_field_is_named_where_it_is_missing():
    data = json.loads(to_json(COMPANY))
    del data["departments"][1]["phone"]
    with pytest.raises(RecordError) as error:
        from_json(Company, json.dumps(data), "f, line 1")
    assert str(error.value) == "f, line 1, departments, 1, phone: field required."


def test_whole_numbers_are_good_floats():
    data = json.loads(to_json(ROLLOUT)) | {"logprobs": [0, -1, 0], "outcome": {"success": False, "reward": 1}}
    rollout = from_json(Rollout, json.dumps(data), "w")
    assert (rollout.outcome, rollout.logprobs) == (Outcome(False, 1.0), [0.0, -1.0, 0.0])
    assert all(type(x) is float for x in (rollout.outcome.reward, *rollout.logprobs))


def test_records_are_frozen():
    for record in (TASK, CALL, EXAMPLE):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, dataclasses.fields(record)[0].name, "x")


def test_a_task_of_an_environment_is_a_task_and_more():
    assert isinstance(TASK, Task)
    with pytest.raises(RecordError):
        from_json(Task, to_json(TASK), "w")


def test_examples_are_the_same_when_the_world_model_would_read_the_same():
    assert dataclasses.replace(EXAMPLE, request="Another.", turns=()) == EXAMPLE
    assert dataclasses.replace(EXAMPLE, encoded=Encoded((1,), (3,))) != EXAMPLE
    assert len({EXAMPLE, dataclasses.replace(EXAMPLE, turns=())}) == 1  # its call has a dict in it


def test_public_company_and_hidden_rules_share_no_rule_field():
    words = set(to_json(COMPANY).split('"'))
    hidden = {f.name for kind in (HiddenRule, CircumstanceRule, Effect) for f in dataclasses.fields(kind)}
    assert {"company_id", "departments"} <= words and hidden & words == {"company_id"}


def test_a_task_without_circumstances_need_not_say_so():
    data = json.loads(to_json(TASK))
    del data["circumstances"]
    assert from_json(PhoneTask, json.dumps(data), "w") == TASK


def test_an_example_answers_a_question():
    assert EXAMPLE.question == Question("Please.", TURNS, CALL)


def test_only_budgets_truncate():
    assert {s.value for s in StopReason if s.truncated} == {"max_turns", "token_budget"}
    assert {s.value for s in StopReason if not s.truncated} == {"success", "agent_stopped", "malformed"}


def test_a_turn_names_the_tool_that_was_called():
    assert [turn.tool for turn in TURNS] == ["make_phone_call", "", ""]


def test_rollouts_come_by_group_in_their_order(make_rollout):
    rows = [make_rollout([1], [i], group=g) for i, g in enumerate((5, 2, 5, 2, 9))]
    assert {g: [r.tokens[-1] for r in group] for g, group in by_group(rows).items()} == {5: [0, 2], 2: [1, 3], 9: [4]}
    assert by_group([]) == {}


def test_sha256_of_abc(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
