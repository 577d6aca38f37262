"""probing: every situation against the rules of its world, scores worked out by hand, files that are written once."""

from __future__ import annotations

import dataclasses
import json
import math
import random

import pandas as pd
import pytest
import torch

from lfo import probing
from lfo.base import load_base
from lfo.config import RunConfig, as_dict
from lfo.env import Episode, run_scripted
from lfo.evaluate import TruthfulEngine, meaning, rule_questions
from lfo.learner import POLICY, WORLD_MODEL, Learner
from lfo.probing import (
    OWN,
    SITUATIONS,
    Subject,
    Wanderer,
    episode_rows,
    gist,
    load_subject,
    played_calls,
    probe,
    reply_rows,
    rule_rows,
    situation_rows,
    stage,
    teacher_forced,
)
from lfo.rollout import Completion
from lfo.tokens import CallExample, state_text
from lfo.tools import format_call, parse_action
from lfo.world import DEPARTMENT_OF_GOAL, DEPARTMENTS, FIELDS


class Stub:
    """An engine that says `answer(prompt text, prompt)`; the tenth prompt it was ever given is prompt number 9."""

    def __init__(self, codec, answer=lambda text, number: ""):
        self.codec, self.answer, self.prompts = codec, answer, []

    def load(self, adapters): ...

    def end_sessions(self): ...

    def generate(self, prompts, seed):
        out = []
        for prompt in prompts:
            text = self.answer(self.codec.decode(prompt.tokens), len(self.prompts))
            self.prompts.append(prompt)
            ids = [*self.codec.encode(text), prompt.stop]
            out.append(Completion(ids, [-1.0] * len(ids)))
        return out


def subject(codec, world, engine, tasks=3) -> Subject:
    return Subject(RunConfig(), world, engine, codec, WORLD_MODEL, {}, tasks)


def reply(status: str, message: str) -> str:
    return json.dumps({"status": status, "message": message})


def missing(*fields: str, department: str = "Billing") -> str:
    """A refusal that names these fields."""
    return reply("auth_failed", f"{department}. I need your {' and '.join(FIELDS[f] for f in fields)}.")


BANK = {  # what an empty-handed caller of the hand-made bank is asked for, without another call first
    "Customer Service": "account_number last_4_ssn",
    "Billing": "account_number billing_zip",
    "Loans": "name date_of_birth",
}


@pytest.fixture
def bank(tiny):
    """The hand-made world, its bank known and its shop, which demands nothing, new."""
    tasks = [dataclasses.replace(t, split="validation") for t in tiny.tasks]
    shop = dataclasses.replace(tasks[0], split="test", company_id="shop", goals=("hear about offers",))
    return dataclasses.replace(tiny, tasks=(*tasks, shop))


# --- situations ------------------------------------------------------------------------------


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.name)
def test_what_is_expected_by_hand_is_what_the_csr_says(world, situation):
    *_, said = stage(world, situation)
    assert gist(said) == situation.expected
    assert DEPARTMENT_OF_GOAL[situation.goal] in {d.name for d in company(world, situation).departments}


def company(world, situation):
    return next(c for c in world.companies.values() if c.name == situation.company)


def test_the_situations_cover_every_answer_industry_and_kind_of_company(world):
    assert len({s.name for s in SITUATIONS}) == len(SITUATIONS) >= 12
    assert {s.expected.partition(":")[0] for s in SITUATIONS} == {
        "auth_failed", "success", "routing_violation", "wrong_department"
    }  # fmt: skip
    assert {company(world, s).industry for s in SITUATIONS} == {"banking", "insurance", "telecom", "retail"}
    new = {t.company_id for t in world.split("test")}
    for s in SITUATIONS:
        kind = world.rules[company(world, s).company_id, company(world, s).departments[0].name].variation
        assert ("new company" in s.name) == (company(world, s).company_id in new)
        if "rules" in s.name or "one field more" in s.name:
            assert (
                kind
                == {"typical rules": "typical", "rules of its own": "different", "one field more": "extra"}[
                    s.name.partition(", ")[2]
                ]
            )


def test_gist_is_the_meaning_and_not_the_wording():
    assert gist(missing("last_4_cc", "account_number")) == "auth_failed: account_number, last_4_cc"
    assert gist(reply("routing_violation", "Loans, hi! Try Billing first.")) == "routing_violation: Billing"
    assert gist(reply("success", "Loans. Done.")) == "success"
    assert gist("Loans. Done.") == "unreadable"


def test_a_staged_situation_says_what_happened_and_not_what_is_true(world):
    by_name = {s.name: s for s in SITUATIONS}
    request, turns, action, _ = stage(world, by_name["the other department has served"])
    state = state_text(request, turns)
    assert "Please call Mosaic Bank for me: report a fraud." in state
    assert 'make_phone_call 800-555-8882 success. Collected Auth: ["account_number", "last_4_ssn"]' in state
    given = parse_action(action).arguments["auth_info"]
    assert list(given) == ["account_number", "last_4_ssn"] and not any(value in state for value in given.values())
    _, turns, action, _ = stage(world, by_name["a field is unavailable"])
    assert json.loads(turns[-1].observation)["unavailable"] == ["last_4_cc"]
    assert parse_action(turns[-1].action).arguments["fields"] == ["account_number", "last_4_cc", "email"]
    *_, action, _ = stage(world, by_name["one value is made up"])
    assert parse_action(action).arguments["auth_info"]["account_number"] == "0"


def test_a_situation_is_right_when_its_gist_is(codec, world):
    engine = Stub(codec, lambda text, number: missing("account_number", "billing_zip") if number % 2 else "gibberish")
    rows = situation_rows(subject(codec, world, engine))
    assert [r["situation"] for r in rows] == [s.name for s in SITUATIONS]
    assert {r["predicted"] for r in rows} == {"auth_failed: account_number, billing_zip", "unreadable"}
    assert not any(r["right"] for r in rows)
    engine = Stub(codec, lambda text, number: reply("success", "Settled."))
    rows = situation_rows(subject(codec, world, engine))
    assert {r["situation"] for r in rows if r["right"]} == {"nothing is required", "every field is given"}
    assert all(p.temperature == 0 and p.adapter == WORLD_MODEL for p in engine.prompts)


def test_situations_of_another_world_are_refused(codec, world):
    other = dataclasses.replace(subject(codec, world, Stub(codec)), config=RunConfig(world_seed=3))
    with pytest.raises(ValueError, match="are about world 0, this run was trained in world 3"):
        situation_rows(other)


# --- replies ---------------------------------------------------------------------------------


def test_the_wanderer_calls_everybody_and_hears_every_kind_of_answer(world):
    heard = set()
    for i, task in enumerate(world.split("validation")[:20]):
        episode = Episode(world, task, RunConfig().env, seed=i)
        run_scripted(episode, Wanderer(episode, world, random.Random(i)))
        calls = [t for t in episode.turns if t.tool == "make_phone_call"]
        numbers = [parse_action(t.action).arguments["phone_number"] for t in calls]
        listed = {d.phone for d in world.companies[task.company_id].departments}
        assert len(set(numbers)) == len(numbers) and set(numbers) <= listed
        assert set(numbers) == listed or episode.success
        heard |= {t.status for t in calls}
    assert heard == {"auth_failed", "routing_violation", "wrong_department", "success"}


def calling_policy(world):
    """A policy that reads the directory, then calls its first department with empty hands, and hangs up."""

    def answer(text, number):
        if "<|obs|>" not in text:
            name = next(c.name for c in world.companies.values() if c.name in text)
            return format_call("search_company", {"company_name": name})
        if text.endswith('"phone_number": "') or text.count("<|obs|>") > 1:
            return ""
        phone = json.loads(text.partition("<|obs|>")[2].partition("<|/obs|>")[0])["departments"][0]["phone"]
        return format_call("make_phone_call", {"phone_number": phone, "auth_info": {}})

    return answer


def test_scripted_calls_are_the_same_for_every_run(codec, world):
    silent, calling = (
        played_calls(subject(codec, world, Stub(codec, answer)))
        for answer in (lambda text, number: "", calling_policy(world))
    )
    assert [c for c in calling if c.caller != OWN] == silent
    assert {(c.caller, c.split) for c in silent} == {
        (caller, split) for caller in ("random form", "wanderer") for split in ("validation", "test")
    }
    own = [c for c in calling if c.caller == OWN]
    assert len(own) == 6 and {c.split for c in own} == {"validation", "test"}


def test_said_anew_means_the_same_in_other_words(codec, world):
    calls = played_calls(subject(codec, world, Stub(codec, calling_policy(world)), tasks=10))
    assert all(meaning(c.said_anew) == meaning(c.example.reply_text) for c in calls)
    assert 0.3 < sum(c.said_anew != c.example.reply_text for c in calls) / len(calls) < 1


def test_every_token_of_a_reply_is_scored_given_the_true_ones(codec, toy_path):
    """Batched scores against one forward pass per call, position by position."""
    model = load_base(toy_path).eval()
    texts = [("a b", "Done."), ("Please call Harbor Bank.", missing("email")), ("x" * 300, "Loans. Settled.")]
    calls = [CallExample(tuple(codec.encode(p)), tuple(codec.world_reply(r)), "success", r, "t") for p, r in texts]
    scores = teacher_forced(model, codec.pad_id, calls)
    for call, score in zip(calls, scores, strict=True):
        ids = torch.tensor([[*call.prompt, *call.reply]])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0], dim=-1)
        positions = range(len(call.prompt) - 1, ids.shape[1] - 1)
        nats = -sum(logprobs[i, ids[0, i + 1]].item() for i in positions)
        hits = sum(logprobs[i].argmax() == ids[0, i + 1] for i in positions)
        assert score == {"tokens": len(call.reply), "tokens_right": hits, "nats": pytest.approx(nats, abs=1e-3)}
    assert teacher_forced(model, codec.pad_id, []) == []


def test_reply_rows_hold_both_models_on_the_same_calls(codec, world, toy_path, monkeypatch):
    toy = load_base(toy_path).eval()
    engine = Stub(codec, lambda text, number: reply("success", "Done."))
    examined = dataclasses.replace(subject(codec, world, engine, tasks=2), models={"world model": toy})
    examined.models["untrained base"] = toy
    rows = pd.DataFrame(reply_rows(examined))
    trained, base = (rows[rows["model"] == name].drop(columns="model") for name in ("world model", "untrained base"))
    assert len(trained) and trained.reset_index(drop=True).equals(base.reset_index(drop=True))
    assert {p.adapter for p in engine.prompts} == {"policy", WORLD_MODEL, "base"}
    assert (rows["right"] == (rows["category"] == "success")).all()
    assert (rows["tokens_right"] <= rows["tokens"]).all() and (rows["nats"] > 0).all()
    assert rows["said"].str.partition(":")[0].equals(rows["category"])


def test_episodes_know_the_department_of_their_only_goal(codec, bank):
    rows = episode_rows(subject(codec, bank, Stub(codec), tasks=6))
    departments = ["Billing", "Fraud Department", "Fraud Department", "Loans", "Sales", "", "Sales"]
    assert [r["department"] for r in rows] == departments  # the sixth task has two goals
    assert [r["company_id"] for r in rows] == ["bank"] * 6 + ["shop"] and not any(r["success"] for r in rows)


# --- rules -----------------------------------------------------------------------------------


def test_a_world_model_that_goes_by_the_number(codec, bank):
    rows = rule_rows(subject(codec, bank, TruthfulEngine(Stub(codec), codec, bank)), samples=3)
    assert {r["department"]: r["truth"] for r in rows} == BANK
    assert all(r["greedy"] == r["answer"] == r["truth"] and r["confidence"] == 1 for r in rows)
    assert [(r["other"], r["other_called"], r["other_wanted"]) for r in rows] == [
        ("Billing", 1, 0), ("Customer Service", 1, 0), ("Customer Service", 1, 0)
    ]  # fmt: skip
    assert {(r["split"], r["company_id"]) for r in rows} == {("validation", "bank")}


def test_a_world_model_that_goes_by_what_the_user_wants(codec, bank):
    def answer(text, number):
        department = next(DEPARTMENT_OF_GOAL[g] for k in DEPARTMENTS.values() for g in k.goals if g in text)
        return missing(*BANK[department].split())

    rows = rule_rows(subject(codec, bank, Stub(codec, answer)), samples=1)
    assert all(r["greedy"] == r["truth"] and not r["other_called"] and r["other_wanted"] for r in rows)


def test_confidence_is_the_share_of_samples_that_agree(codec, bank):
    """Of each question's four samples two name the email address, one nothing; the department does not matter."""
    samples = [missing("email"), missing("name"), missing("email"), "gibberish"]
    engine = Stub(codec)
    engine.answer = lambda text, number: samples[(number - 3) % 4] if 3 <= number < 15 else missing("last_4_cc")
    rows = rule_rows(subject(codec, bank, engine), samples=4)
    assert [(r["answer"], r["confidence"], r["greedy"]) for r in rows] == [("email", 0.5, "last_4_cc")] * 3
    assert [p.temperature for p in engine.prompts] == [0.0] * 3 + [1.0] * 12 + [0.0] * 3


def test_nobody_else_to_ask_about(codec, bank):
    """A company with one demanding department has no other goal to ask for."""
    rules = {k: dataclasses.replace(r, required=()) if k != ("bank", "Loans") else r for k, r in bank.rules.items()}
    alone = dataclasses.replace(bank, rules=rules)
    [row] = rule_rows(subject(codec, alone, TruthfulEngine(Stub(codec), codec, alone)), samples=1)
    assert (row["department"], row["other"]) == ("Loans", "")


# --- a run folder ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(make_config, codec, toy_adapters, tmp_path_factory):
    """A run folder with random adapters on the toy base."""
    folder = tmp_path_factory.mktemp("run")
    config = make_config(**{"rollout.max_action_tokens": 4, "world_model.coupling": "imagine"})
    (folder / "config.json").write_text(json.dumps(as_dict(config)))
    (folder / "adapters").mkdir()
    (folder / "adapters" / "v00001").symlink_to(toy_adapters[WORLD_MODEL].parent)
    return folder


def test_a_run_is_probed_once(run, monkeypatch):
    few = lambda codec, world, companies: rule_questions(codec, world, companies[:2])  # noqa: E731
    monkeypatch.setattr(probing, "rule_questions", few)
    tables = probe(run, tasks=1, samples=2)
    assert list(tables) == ["episodes", "replies", "rules", "situations"]
    assert all((run / f"probing_{name}.csv").exists() and len(table) for name, table in tables.items())
    assert len(tables["episodes"]) == 2 and len(tables["situations"]) == len(SITUATIONS)
    replies = tables["replies"].set_index("model")
    nats = [replies.loc[name, "nats"].sum() for name in ("world model", "untrained base")]
    assert not math.isclose(*nats), "the trained adapter is scored, and the base beside it"

    def refuse(*_):
        raise AssertionError("nothing is left to be measured")

    monkeypatch.setattr(probing, "load_subject", refuse)
    pd.DataFrame({"split": ["edited"]}).to_csv(run / "probing_rules.csv", index=False)
    assert probe(run)["rules"]["split"].tolist() == ["edited"]


def test_the_world_model_is_the_adapter_that_learned_the_replies(run, make_config, codec, tmp_path):
    assert load_subject(run, 1).adapter == WORLD_MODEL
    config = make_config(**{"world_model.coupling": "shared"})
    (tmp_path / "config.json").write_text(json.dumps(as_dict(config)))
    Learner(config, codec.pad_id).save_adapters(tmp_path / "adapters" / "v00001")
    assert load_subject(tmp_path, 1).adapter == POLICY


def test_a_run_without_a_world_model_says_so(make_config, codec, tmp_path):
    config = make_config(**{"world_model.predict": "nothing"})
    (tmp_path / "config.json").write_text(json.dumps(as_dict(config)))
    Learner(config, codec.pad_id).save_adapters(tmp_path / "adapters" / "v00001")
    with pytest.raises(ValueError, match="trained no world model; probe a run whose"):
        probe(tmp_path)


def test_a_run_without_adapters_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no adapters; train there first"):
        probe(tmp_path)
