"""critics: who fails tries again and reads what each writer wrote; what a text names, by hand."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pandas as pd
import pytest

from lfo.config import RunConfig, build
from lfo.envs.base import written as written_call
from lfo.envs.phone.phrasings import oxford
from lfo.envs.phone.tools import phone_call, search
from lfo.envs.phone.vocabulary import FIELDS
from lfo.lab import critics
from lfo.lab.critics import (
    AS_ASKED,
    AS_SHOWN,
    BASE_WROTE,
    LAST,
    OTHER,
    RULES,
    critic_rows,
    critic_table,
    elsewhere,
    missing,
    named,
    written,
)
from lfo.lab.untrained import untrained
from lfo.text.chat import ANSWERED, EXAMPLE
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
        ("Give last_4_ssn, please", {"last_4_ssn"}),
        ("Give @name and the email\naddress", {"name", "email"}),
        ("Name the company, and email them.", set()),
        # phone_number and email are names of arguments here
        (written_call(phone_call("800-555-0199", {"email": "@last_4_cc"})), {"last_4_cc"}),
    ],
)
def test_fields_are_named_as_people_or_tools_say_them(text, fields):
    assert named(text) == fields


def test_the_example_names_no_field():
    assert not named(" ".join([*EXAMPLE.values(), ANSWERED]))


def test_what_is_missing_is_what_refusals_ask_for():
    turns = [
        Turn(search("Acme"), "{}", "ok"),
        said("auth_failed", "Billing. I need your full name."),
        said("success", "Billing. Your email address was enough."),
        said("auth_failed", "Fraud Department. I need your phone number."),
    ]
    assert missing(turns) == {"name", "phone_number"}


def test_a_text_from_elsewhere_is_about_another_company_and_taken_once():
    companies = ["a", "b", "a", "c", "a", "b"]
    others = elsewhere(companies)
    assert sorted(others) == list(range(6)) and all(companies[i] != companies[j] for i, j in enumerate(others))
    for bad in ([], ["a"], ["a", "a", "b"]):
        with pytest.raises(ValueError, match="name more tasks"):
            elsewhere(bad)


def test_all_writers_write_about_the_same_attempts(player, monkeypatch):
    texts = {}
    real = critics._tried

    def tried(name, said, failed, *rest):
        texts[name] = (said, failed)
        return real(name, said, failed, *rest)

    monkeypatch.setattr(critics, "_tried", tried)
    rows = pd.DataFrame(critic_rows({BASE_WROTE: player}, player, player.env.tasks("validation")[:12]))
    writers = [RULES, LAST, BASE_WROTE]
    assert list(rows["arm"].unique()) == [*writers, *(name + OTHER for name in writers), AS_SHOWN, AS_ASKED]
    assert rows.groupby("arm")["task_id"].apply(tuple).nunique() == 1
    by = {arm: part.set_index("task_id") for arm, part in rows.groupby("arm")}
    company = by[RULES]["company_id"]
    assert len(company) > 4 and company.nunique() > 2
    for told in (RULES, AS_SHOWN, AS_ASKED):
        assert (by[told]["named"] == 1).all(), "they repeat whatever was asked for"
    for task, text in by[RULES + OTHER]["text"].items():
        assert text in set(by[RULES]["text"][company != company[task]])
    for (message,), (_, row) in zip(*texts[LAST], strict=True):
        last = [turn for turn in row.turns if turn.tool == "make_phone_call"][-1]
        assert message == json.loads(last.observation)["message"]
    wanted = missing(texts[LAST][1][0][1].turns)
    assert by[AS_ASKED]["text"].iloc[0] == f"I need your {oxford([FIELDS[f] for f in FIELDS if f in wanted])}."
    assert by[RULES]["success"].sum() > by[RULES + OTHER]["success"].sum()


@pytest.mark.parametrize(("says", "kept"), [("", []), ("Give your full name.", ["Give your full name."])])
def test_what_a_model_writes_arrives_and_silence_tells_nothing(player, monkeypatch, says, kept):
    task = player.env.tasks("validation")[0]
    attempt = SimpleNamespace(turns=[said("auth_failed", "Billing. I need your full name.")])
    tokens = [*player.codec.encode(says), player.codec.critique("", [], "")[1]]
    monkeypatch.setattr(critics, "complete", lambda engine, asked: [SimpleNamespace(tokens=tokens) for _ in asked])
    assert written(player, [(task, attempt)]) == [kept]


def test_a_table_of_writers_by_hand():
    facts = {"world": 100, "seed": 0, "tokens": 10}
    found = {  # success, named of four tasks, the last of which takes several calls
        RULES: [(1, 1.0)] * 4,
        LAST: [(1, 1.0)] * 2 + [(0, 1.0)] * 2,
        "model": [(0, 1.0)] + [(0, 0.0)] * 2 + [(1, 0.0)],
    }
    rows = [
        {"arm": arm, "task_id": t, "company_id": t, "success": success, "named": share, "level": level} | facts
        for arm, tasks in found.items()
        for t, level, (success, share) in zip("abcd", (1, 2, 4, 3), tasks, strict=True)
    ]
    table = critic_table(pd.DataFrame(rows)).set_index("feedback by")
    assert list(table["success"]) == [1.0, 0.5, 0.25]
    assert list(table[f"minus {LAST}"]) == [0.5, 0.0, -0.25]
    assert list(table["one call"]) == [1.0, pytest.approx(2 / 3), 0.0] and list(table["several"]) == [1.0, 0.0, 1.0]
    assert list(table["named"]) == [1.0, 1.0, 0.25]
    assert list(table["tasks"]) == [4, 4, 4] and list(table["worlds"]) == [1, 1, 1]


def test_the_command_writes_the_table_and_some_of_the_texts(tmp_path, monkeypatch, capsys):
    arguments = ["critics", "--worlds", "100", "--tasks", "8", "--out", str(tmp_path / "critics")]
    monkeypatch.setattr(sys, "argv", arguments)
    critics.main()
    facts = json.loads((tmp_path / "critics.json").read_text())
    assert facts["worlds"] == [100] and facts["writer"] == "" and facts["commit"]
    table = pd.read_csv(tmp_path / "critics.csv").set_index("feedback by")
    assert table["tasks"].nunique() == 1 and 0 < table["tasks"].iloc[0] <= 8
    assert len(facts["texts"][RULES]) == 3 and facts["texts"][RULES][0].startswith(("Gave ", "The form asked for "))
    assert "world 100:" in capsys.readouterr().out
