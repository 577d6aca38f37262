"""records: JSONL round trips, and one clear sentence for everything that can be wrong with a file."""

from __future__ import annotations

import dataclasses
import json

import pytest

from lfo.records import (
    Company,
    Department,
    HiddenRule,
    Profile,
    RecordError,
    StopReason,
    Task,
    Trajectory,
    Turn,
    from_dict,
    read_jsonl,
    sha256,
    write_jsonl,
)

DEPARTMENT = Department("Billing", "800-555-0100", "bills", "Mon-Fri 8-18")
COMPANY = Company("c000", "Harbor Bank", "banking", (DEPARTMENT, dataclasses.replace(DEPARTMENT, name="Loans")))
RULE = HiddenRule("c000", "Billing", ("account_number",), "date_of_birth", "", "typical")
PROFILE = Profile("p0", "banking", {"name": "Ana Lopez", "account_number": "001234"})
TASK = Task("t0", "train", 1, "c000", "p0", "Please call.", ("dispute a charge",), 3)
TRAJECTORY = Trajectory(
    task_id="t0",
    group=2,
    tokens=[1, 2, 3],
    roles=[0, 1, 2],
    logprobs=[0.0, -1.5, 0.0],
    turns=[Turn("search", '{"departments": []}', "search_company", "ok")],
    stop=StopReason.MAX_TURNS,
    success=False,
    reward=0.0,
    shaped_reward=0.2,
    auth_before_call=False,
    calls=[],
)


@pytest.mark.parametrize("row", [DEPARTMENT, COMPANY, RULE, PROFILE, TASK, TRAJECTORY], ids=lambda r: type(r).__name__)
def test_round_trip(tmp_path, row):
    path = tmp_path / "deep" / "rows.jsonl"
    assert write_jsonl(path, [row, row]) == 2
    assert read_jsonl(path, type(row)) == [row, row]
    assert [p.name for p in path.parent.iterdir()] == ["rows.jsonl"]  # no temporary file is left


def test_round_trip_keeps_types(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [TRAJECTORY])
    (back,) = read_jsonl(path, Trajectory)
    assert isinstance(back.turns[0], Turn)
    assert back.stop is StopReason.MAX_TURNS
    assert isinstance(read_jsonl_one(tmp_path, COMPANY).departments, tuple)


def read_jsonl_one(tmp_path, row):
    write_jsonl(tmp_path / "one.jsonl", [row])
    return read_jsonl(tmp_path / "one.jsonl", type(row))[0]


@pytest.mark.parametrize("text", ["a\u2028b", "a\x85b\x0b\x1c", "\ud800", "naïve ☎", 'quote " and \\', "a\r\nb"])
def test_any_character_survives_a_round_trip(tmp_path, text):
    """Actions are whatever a model wrote: other line breaks than \\n must not tear a line apart."""
    turn = Turn(text, "", "", "error")
    assert read_jsonl_one(tmp_path, turn) == turn


def test_raw_unicode_line_breaks_of_other_writers_are_data(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = dataclasses.asdict(Turn("a\u2028b", "", "", "error"))
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_jsonl(path, Turn) == [Turn("a\u2028b", "", "", "error")]


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
    with pytest.raises(RecordError, match="is missing"):
        read_jsonl(tmp_path, Turn)  # a folder


GOOD = json.dumps(dataclasses.asdict(PROFILE))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"a": ', "line 2: not JSON (Expecting value); write the file again with `lfo generate`."),
        ("", "line 2: not JSON (Expecting value); write the file again with `lfo generate`."),
        ("[1]", "line 2: a JSON object is needed, this is a list."),
        ("3", "line 2: a JSON object is needed, this is a int."),
    ],
)
def test_malformed_lines(tmp_path, line, sentence):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    with pytest.raises(RecordError) as error:
        read_jsonl(path, Profile)
    assert str(error.value) == f"{path}, {sentence}"


def test_not_utf8(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"action": "\xff"}\n')
    with pytest.raises(RecordError, match="is not UTF-8 text; write the file again"):
        read_jsonl(path, Turn)


@pytest.mark.parametrize(
    ("record", "change", "sentence"),
    [
        (Turn, {"tol": "x"}, "w: unknown tol. A Turn has: action, observation, tool, status."),
        (Turn, {"tool": None}, "w, tool: str is needed, got None."),
        (Turn, {"tool": 5}, "w, tool: str is needed, got 5."),
        (Task, {"level": "1"}, "w, level: int is needed, got '1'."),
        (Task, {"level": True}, "w, level: int is needed, got True."),
        (Task, {"level": 1.0}, "w, level: int is needed, got 1.0."),
        (Task, {"goals": "dispute a charge"}, "w, goals: a list is needed, got 'dispute a charge'."),
        (Task, {"goals": [1]}, "w, goals: str is needed, got 1."),
        (Profile, {"values": []}, "w, values: dict is needed, got []."),
        (Profile, {"values": {"name": 5}}, "w, values, name: str is needed, got 5."),
        (Company, {"departments": ["Billing"]}, "w, departments: an object is needed, got 'Billing'."),
        (Trajectory, {"success": 1}, "w, success: bool is needed, got 1."),
        (Trajectory, {"tokens": [1, "2"]}, "w, tokens: int is needed, got '2'."),
        (Trajectory, {"logprobs": ["x"]}, "w, logprobs: float is needed, got 'x'."),
        (Trajectory, {"reward": True}, "w, reward: float is needed, got True."),
        (
            Trajectory,
            {"stop": "bored"},
            "w, stop: one of success, agent_stopped, malformed, max_turns, token_budget is needed, got 'bored'.",
        ),
    ],
)
def test_unknown_and_mistyped_fields(record, change, sentence):
    rows = {Turn: TRAJECTORY.turns[0], Task: TASK, Profile: PROFILE, Company: COMPANY, Trajectory: TRAJECTORY}
    data = json.loads(json.dumps(dataclasses.asdict(rows[record])))
    assert from_dict(record, data, "w") == rows[record]
    with pytest.raises(RecordError) as error:
        from_dict(record, data | change, "w")
    assert str(error.value) == sentence


def test_missing_fields_are_named_together_with_unknown_ones():
    with pytest.raises(RecordError) as error:
        from_dict(Department, {"name": "Billing", "phone": "1", "colour": "red"}, "w")
    assert str(error.value) == (
        "w: unknown colour; missing description, operating_hours. "
        "A Department has: name, phone, description, operating_hours."
    )


def test_errors_inside_a_nested_record_say_where():
    data = json.loads(json.dumps(dataclasses.asdict(COMPANY)))
    del data["departments"][1]["phone"]
    with pytest.raises(RecordError, match=r"^f, line 1, departments: missing phone\. A Department has"):
        from_dict(Company, data, "f, line 1")


def test_whole_numbers_are_good_floats():
    data = dataclasses.asdict(TRAJECTORY) | {"reward": 1, "logprobs": [0, -1, 0]}
    back = from_dict(Trajectory, data, "w")
    assert (back.reward, back.logprobs) == (1.0, [0.0, -1.0, 0.0])
    assert all(type(x) is float for x in (back.reward, *back.logprobs))


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TASK.level = 2


def test_public_company_and_hidden_rule_share_no_rule_field():
    assert not {"required", "alternative", "after", "variation"} & set(
        json.dumps(dataclasses.asdict(COMPANY)).split('"')
    )


def test_only_budgets_truncate():
    assert {s.value for s in StopReason if s.truncated} == {"max_turns", "token_budget"}
    assert {s.value for s in StopReason if not s.truncated} == {"success", "agent_stopped", "malformed"}


def test_sha256_of_abc(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
