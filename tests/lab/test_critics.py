"""critics: who fails tries again and reads what each writer wrote; what a text names, by hand."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest

from lfo.config import RunConfig, build
from lfo.envs.phone.tools import phone_call, search
from lfo.lab import critics
from lfo.lab.critics import BASE_WROTE, LAST, OTHER, RULES, critic_rows, critic_table, missing, named, written
from lfo.lab.untrained import untrained
from lfo.types import Turn


def said(status: str, message: str) -> Turn:
    return Turn(phone_call("800-555-0199", {}), json.dumps({"status": status, "message": message}), status)


@pytest.fixture(scope="module")
def player(base_path):
    settings = {"model": {"base": str(base_path)}, "env": {"world_seed": 100}, "feedback": {"start": 2}}
    return untrained(build(RunConfig, settings))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Your Billing ZIP code was missing, and the card expiry date.", {"billing_zip", "card_expiry"}),
        ('Gave {"last_4_ssn": "@last_4_ssn"}.', {"last_4_ssn"}),
        ("Give @name and the email\naddress", {"name", "email"}),
        ("Name the company, and email them.", set()),
    ],
)
def test_fields_are_named_as_people_or_tools_say_them(text, fields):
    assert named(text) == fields


def test_what_is_missing_is_what_refusals_ask_for():
    turns = [
        Turn(search("Acme"), "{}", "ok"),
        said("auth_failed", "Billing. I need your full name."),
        said("success", "Billing. Your email address was enough."),
        said("auth_failed", "Fraud Department. I need your phone number."),
    ]
    assert missing(turns) == {"name", "phone_number"}


def test_all_writers_write_about_the_same_attempts(player):
    rows = pd.DataFrame(critic_rows({BASE_WROTE: player}, player, player.env.tasks("validation")[:8]))
    assert list(rows["arm"].unique()) == [RULES, LAST, BASE_WROTE, RULES + OTHER, BASE_WROTE + OTHER]
    assert rows.groupby("arm")["task_id"].apply(tuple).nunique() == 1
    by = {arm: part.set_index("task_id") for arm, part in rows.groupby("arm")}
    company = by[RULES]["company_id"]
    assert len(company) > 2 and company.nunique() > 1
    assert (by[RULES]["named"] == 1).all()  # rules repeat whatever was asked for
    for task, text in by[RULES + OTHER]["text"].items():
        assert text in set(by[RULES]["text"][company != company[task]])
    assert by[RULES]["success"].sum() > by[RULES + OTHER]["success"].sum()


def test_a_model_that_says_nothing_tells_nothing(player, monkeypatch):
    task = player.env.tasks("validation")[0]
    attempt = type("Attempt", (), {"turns": [said("auth_failed", "Billing. I need your full name.")]})()
    end = player.codec.critique("", [], "")[1]
    monkeypatch.setattr(
        critics, "complete", lambda engine, asked: [type("Said", (), {"tokens": [end]})() for _ in asked]
    )
    assert written(player, [(task, attempt)]) == [[]]


def test_a_table_of_writers_by_hand():
    facts = {"world": 100, "seed": 0, "tokens": 10}
    found = {  # success, named, right of four tasks
        RULES: [(1, 1.0, 0.5)] * 4,
        LAST: [(1, 1.0, 1.0)] * 2 + [(0, 1.0, 1.0)] * 2,
        "model": [(1, 1.0, 1.0)] + [(0, 0.0, None)] * 3,
    }
    rows = [
        {"arm": arm, "task_id": t, "company_id": t, "success": success, "named": share, "right": right} | facts
        for arm, tasks in found.items()
        for t, (success, share, right) in zip("abcd", tasks, strict=True)
    ]
    table = critic_table(pd.DataFrame(rows)).set_index("feedback by")
    assert list(table["success"]) == [1.0, 0.5, 0.25]
    assert list(table[f"minus {LAST}"]) == [0.5, 0.0, -0.25]
    assert list(table["named"]) == [1.0, 1.0, 0.25] and list(table["right"]) == [0.5, 1.0, 1.0]
    assert list(table["tasks"]) == [4, 4, 4] and list(table["worlds"]) == [1, 1, 1]


def test_the_command_writes_the_table_and_some_of_the_texts(base_path, tmp_path, monkeypatch, capsys):
    arguments = ["critics", "--worlds", "100", "--tasks", "6", "--out", str(tmp_path / "critics")]
    monkeypatch.setattr(sys, "argv", arguments)
    critics.main()
    facts = json.loads((tmp_path / "critics.json").read_text())
    assert facts["worlds"] == [100] and facts["writer"] == "" and facts["commit"]
    table = pd.read_csv(tmp_path / "critics.csv")
    assert set(facts["texts"]) == set(table["feedback by"]) and "world 100:" in capsys.readouterr().out
