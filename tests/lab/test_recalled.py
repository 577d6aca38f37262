"""recalled: memories, held against world models on calls that hand something over."""

from __future__ import annotations

import dataclasses
import json

import pandas as pd
import pytest

from lfo.config import RunConfig, WorldModelConfig
from lfo.couplings.memory import Memory
from lfo.envs.phone import PhoneEnvironment, Rules
from lfo.envs.phone.phrasings import PHRASINGS, situation_of
from lfo.envs.phone.vocabulary import FIELDS
from lfo.lab import recalled
from lfo.lab.player import Player
from lfo.lab.probing import scripted_calls
from lfo.lab.reading import SPLIT_NAMES
from lfo.lab.recalled import FILE, SERVED, measure_recalled, recalled_rows, recalled_table, with_hands_full
from lfo.runs import RunError, RunFolder
from lfo.text.codec import Codec

_, NEW = SPLIT_NAMES.values()
GAVE = ("a field or more", "nothing")


def missing(*fields: str) -> str:
    named = " and ".join(FIELDS[field] for field in fields)
    return json.dumps({"status": "auth_failed", "message": f"Billing. I need your {named}."})


def test_who_hands_over_all_that_would_be_named_is_served_and_who_does_not_is_named_the_rest():
    asked = missing("email", "last_4_ssn")
    assert with_hands_full(asked, {"email": "@email", "zip": "@zip"}) == ("auth_failed", {"last_4_ssn"}, frozenset())
    assert with_hands_full(asked, {"email": "@email", "last_4_ssn": "@ssn"}) == SERVED
    sent = json.dumps({"status": "routing_violation", "message": "Billing. You have to call Sales first."})
    assert with_hands_full(sent, {"email": "@email"}) == ("routing_violation", frozenset(), {"Sales"})


@pytest.fixture(scope="module")
def player(codec, world) -> Player:
    """Of a run with a memory that has heard nothing yet."""
    env = PhoneEnvironment(world, Rules(replies="reasons"), levels=(1, 2))
    own = Codec(codec.tokenizer, env)
    config = WorldModelConfig(coupling="memory")
    return Player(RunConfig(world_model=config), None, own, Memory(config, own), {})


def test_who_knows_what_is_named_to_empty_hands_is_right_of_all_but_wrong_values_and_callers_who_lack_a_field(player):
    calls = scripted_calls(player.codec, tasks=20)
    truth = player.env.knowledge.truth
    rows = pd.DataFrame(recalled_rows(calls, lambda asked: [truth(question) for question in asked]))
    category = rows["said"].map(situation_of)
    assert (rows["silent"] == 0).all() and {"missing", "success", "routing"} <= set(category)
    lacking = pd.Series([any("unavailable" in turn.observation for turn in c.example.turns) for c in calls])
    assert (rows.loc[~lacking & (category != "mismatch"), "right"] == 1).all()
    assert (rows.loc[category == "alternative", "right"] == 0).all() and 0 < lacking.mean() < 0.3
    assert 0.1 < (rows["gave"] != "").mean() < 0.5


def test_that_a_value_is_wrong_no_memory_says(player):
    call = scripted_calls(player.codec, tasks=1)[0]
    wrong = PHRASINGS["mismatch"]["formal"][0].format(dept="Billing", fields="email address")
    said = json.dumps({"status": "auth_failed", "message": wrong})
    call = dataclasses.replace(call, example=dataclasses.replace(call.example, reply=said))
    truth = player.env.knowledge.truth
    (row,) = recalled_rows([call], lambda asked: [truth(question) for question in asked])
    assert situation_of(row["said"]) == "mismatch" and row["right"] == 0


def test_a_memory_that_has_heard_nothing_is_silent_and_wrong(player, tmp_path, monkeypatch):
    monkeypatch.setattr(recalled, "load_player", lambda folder: player)
    rows = measure_recalled(tmp_path, tasks=2)
    assert len(rows) and (rows["silent"] == 1).all() and (rows["right"] == 0).all() and (tmp_path / FILE).exists()
    monkeypatch.setattr(player.coupling, "recall", None)
    (tmp_path / FILE).unlink()
    with pytest.raises(RunError, match="remembers nothing"):
        measure_recalled(tmp_path)


def test_shares_are_of_all_calls_of_an_arm(tmp_path):
    """Two runs of a memory with one and three calls, and one of a world model."""
    rights, folders, said = {"a": [1], "b": [0, 1, 0]}, {}, "auth_failed: Billing. I need your email."
    for name, right in rights.items():
        folders[name] = tmp_path / name
        RunFolder(folders[name]).begin(RunConfig(seed=len(right)))
        about = {"caller": "wanderer", "split": "test", "gave": "", "said": said, "silent": [1 - r for r in right]}
        pd.DataFrame({**about, "right": right}).to_csv(folders[name] / FILE, index=False)
    RunFolder(tmp_path / "w").begin(RunConfig())
    about = {"split": "test", "gave": "email", "said": said, "right": [1, 1, 0]}
    about |= {"caller": ["wanderer", "own policy", "wanderer"], "model": ["world model"] * 2 + ["untrained base"]}
    pd.DataFrame(about).to_csv(tmp_path / "w" / "probing_replies.csv", index=False)
    table = recalled_table({"table": list(folders.values())}, {"imagine": [tmp_path / "w"]})
    rows = {row["arm"]: row for row in table.query("category == 'missing'").to_dict("records")}
    assert set(table["companies"]) == {NEW} and set(table["category"]) == {"all", "missing"}
    assert [rows["table"][name] for name in ("calls", "right", "silent", "runs")] == [4, 0.5, 0.5, 2]
    assert [rows["imagine"][name] for name in ("calls", "right", "silent", "runs")] == [1, 1, 0, 1]
    assert rows["untrained base"]["right"] == 0 and set(table["gave"]) == {"anything or nothing", *GAVE}
    assert table.query("category == 'all'").groupby("gave")["calls"].sum().tolist() == [2, 6, 4]
