"""probing: every situation against the rules of its world, scores worked out by hand, files that are written once."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re

import pandas as pd
import pytest
import torch

from lfo.config import RunConfig, WorldModelConfig, as_dict
from lfo.couplings import BOTH, Plain
from lfo.envs.base import written
from lfo.envs.phone import PhoneEnvironment, Rules
from lfo.envs.phone.callers import run_scripted
from lfo.envs.phone.episode import PhoneEpisode
from lfo.envs.phone.knowledge import PhoneKnowledge
from lfo.envs.phone.phrasings import meaning, read_reply
from lfo.envs.phone.tools import PHONE
from lfo.envs.phone.vocabulary import CIRCUMSTANCES, DEPARTMENT_OF_GOAL, FIELDS, circumstances_in, goals_in
from lfo.lab import probing
from lfo.lab.inspect import inspect, render
from lfo.lab.player import Player
from lfo.lab.probing import (
    OWN,
    Subject,
    Wanderer,
    episode_rows,
    load_subject,
    played_calls,
    probe,
    reply_rows,
    rule_rows,
    situation_rows,
    teacher_forced,
)
from lfo.lab.situations import SITUATIONS, gist, stage
from lfo.rollout import Completion
from lfo.runs import RunError, RunFolder
from lfo.text.base import load_base
from lfo.text.codec import Codec
from lfo.types import Call, Encoded

POLICY, WORLD_MODEL = BOTH.names


class Stub:
    """An engine that says `answer(prompt text, number)`; the tenth prompt it was ever given is number 9."""

    def __init__(self, codec, answer=lambda text, number: ""):
        self.codec, self.answer, self.prompts, self.done = codec, answer, [], []
        self.generated_tokens = 0

    def submit(self, prompt):
        text = self.answer(self.codec.decode(prompt.tokens), len(self.prompts))
        self.prompts.append(prompt)
        ids = [*self.codec.encode(text), prompt.stop]
        self.done.append((len(self.prompts), Completion(ids, [-1.0] * len(ids))))
        return len(self.prompts)

    def ready(self):
        done, self.done = self.done, []
        return done

    def end_session(self, session): ...


def subject(codec, world, answer=lambda text, number: "", tasks=3, replies="reasons", **config) -> Subject:
    """A world model in this world that answers so."""
    own = Codec(codec.tokenizer, PhoneEnvironment(world, Rules(replies=replies), levels=(1, 2)))
    settings = RunConfig(world_model=WorldModelConfig(), **config)
    return Subject(Player(settings, Stub(codec, answer), own, Plain(BOTH), {}), WORLD_MODEL, {}, tasks)


def reply(status: str, message: str) -> str:
    return json.dumps({"status": status, "message": message})


def missing(*fields: str, department: str = "Billing") -> str:
    """A refusal that names these fields."""
    return reply("auth_failed", f"{department}. I need your {' and '.join(FIELDS[f] for f in fields)}.")


@pytest.fixture
def bank(tiny):
    """The hand-made world, its bank known and its shop, which demands nothing, new."""
    tasks = [dataclasses.replace(t, split="validation") for t in tiny.tasks]
    request, goals = "Please call Summit Stores for me: hear about offers.", ("hear about offers",)
    shop = dataclasses.replace(tasks[0], split="test", company_id="shop", request=request, goals=goals)
    return dataclasses.replace(tiny, tasks=(*tasks, shop))


# --- situations ------------------------------------------------------------------------------


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.name)
def test_what_is_expected_by_hand_is_what_the_csr_says(world, situation):
    *_, said = stage(world, situation)
    assert gist(said) == situation.expected
    assert DEPARTMENT_OF_GOAL[situation.goal] in {d.name for d in company(world, situation).departments}
    asked, listed = stage(world, situation, reasons=False)
    assert gist(listed) == situation.expected
    assert goals_in(asked.request) == (situation.goal,) and asked.request.endswith(situation.circumstances or ".")


def company(world, situation):
    return next(c for c in world.companies.values() if c.name == situation.company)


def test_the_situations_cover_every_answer_industry_and_kind_of_company(world):
    assert len({s.name for s in SITUATIONS}) == len(SITUATIONS) >= 12
    assert {s.expected.partition(":")[0] for s in SITUATIONS} == {
        "auth_failed",
        "success",
        "routing_violation",
        "wrong_department",
    }
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


def test_the_situations_cover_what_circumstances_change(world):
    """A field, a field that is demanded anyway, a department first, exceptions; nobody serves instead in this world."""
    said = {s.name: circumstances_in(s.circumstances) for s in SITUATIONS}
    assert all(bool(said[s.name]) == bool(s.circumstances) for s in SITUATIONS)
    assert {len(names) for names in said.values()} == {0, 1, 2}
    assert {name for names in said.values() for name in names} == set(list(CIRCUMSTANCES)[:4])
    held_out = [kind.said[-1] for kind in CIRCUMSTANCES.values()]
    assert not [s.name for s in SITUATIONS if any(phrase in s.circumstances for phrase in held_out)]
    kinds = {world.variation(company(world, s).company_id) for s in SITUATIONS if s.circumstances}
    assert kinds == {"typical", "extra", "different"}
    effects = [world.effects[company(world, s).company_id][name] for s in SITUATIONS for name in said[s.name]]
    assert any(effect.first for effect in effects) and any(effect.field for effect in effects)
    assert not [effect for known in world.effects.values() for effect in known.values() if effect.instead]


def test_circumstances_decide_what_is_expected(world):
    """Without them the CSR would say something else, but where the circumstance demands what is demanded anyway."""
    for s in SITUATIONS:
        if s.circumstances and s.before == ():
            _, said = stage(world, dataclasses.replace(s, circumstances=""))
            assert (gist(said) == s.expected) == ("demanded anyway" in s.name), s.name


def test_a_situation_gives_reasons_where_its_run_does(world):
    reasons = CIRCUMSTANCES["joint_account"].because
    situation = next(s for s in SITUATIONS if s.name == "a circumstance demands a field")
    for explains in (True, False):
        _, said = stage(world, situation, explains)
        assert any(reason in said for reason in reasons) == explains


def test_gist_is_the_meaning_and_not_the_wording():
    assert gist(missing("last_4_cc", "account_number")) == "auth_failed: account_number, last_4_cc"
    assert gist(reply("routing_violation", "Loans, hi! Try Billing first.")) == "routing_violation: Billing"
    assert gist(reply("success", "Loans. Done.")) == "success"
    assert gist("Loans. Done.") == "unreadable"


def test_a_staged_situation_says_what_happened_and_not_what_is_true(world):
    by_name = {s.name: s for s in SITUATIONS}
    asked, _ = stage(world, by_name["the other department has served"])
    state = PhoneKnowledge(world).state(asked)
    assert state.startswith("Please call Vertex Outfitters for me: report a fraud. Step 4. ")
    said = read_reply(asked.turns[-1].observation)[0], json.loads(asked.turns[-1].observation)["message"]
    assert said[0] == "success"
    collected = 'Collected Auth: ["account_number", "last_4_ssn"]'
    assert f"make_phone_call 800-555-9651 success ({said[1]}). {collected}" in state
    given = asked.call.arguments["auth_info"]
    assert list(given) == ["account_number", "last_4_ssn"] and not any(value in state for value in given.values())
    asked, _ = stage(world, by_name["a field is unavailable"])
    assert json.loads(asked.turns[-1].observation)["unavailable"] == ["last_4_cc"]
    assert asked.turns[-1].action.arguments["fields"] == ["account_number", "last_4_cc", "email"]
    asked, _ = stage(world, by_name["one value is made up"])
    assert asked.call.arguments["auth_info"]["account_number"] == "0"
    asked, _ = stage(world, by_name["two circumstances"])
    assert asked.request == (
        "Please call Unity Wireless for me: claim outage credit. I am out of the country. A large sum is at stake."
    )


def test_a_situation_is_right_when_its_gist_is(codec, world):
    one_half = lambda text, number: missing("account_number", "billing_zip") if number % 2 else "gibberish"  # noqa: E731
    rows = situation_rows(subject(codec, world, one_half))
    assert [r["situation"] for r in rows] == [s.name for s in SITUATIONS]
    assert {r["predicted"] for r in rows} == {"auth_failed: account_number, billing_zip", "unreadable"}
    assert not any(r["right"] for r in rows)
    examined = subject(codec, world, lambda text, number: reply("success", "Settled."))
    rows = situation_rows(examined)
    assert {r["situation"] for r in rows if r["right"]} == {"nothing is required", "every field is given"}
    assert all(p.temperature == 0 and p.adapter == WORLD_MODEL for p in examined.player.engine.prompts)


# --- replies ---------------------------------------------------------------------------------


def test_the_wanderer_calls_everybody_and_hears_every_kind_of_answer(world):
    heard = set()
    for i, task in enumerate(world.split("validation")[:20]):
        episode = PhoneEpisode(world, task, seed=i)
        run_scripted(episode, Wanderer(episode, world, random.Random(i)))
        calls = [t for t in episode.turns if t.tool == PHONE]
        numbers = [t.action.arguments["phone_number"] for t in calls]
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
            return written(Call("search_company", {"company_name": name}))
        if text.endswith('"phone_number": "') or text.count("<|obs|>") > 1:
            return ""
        phone = json.loads(text.partition("<|obs|>")[2].partition("<|/obs|>")[0])["departments"][0]["phone"]
        return written(Call(PHONE, {"phone_number": phone, "auth_info": {}}))

    return answer


def test_scripted_calls_are_the_same_for_every_run(codec, world):
    silent, calling = (
        played_calls(subject(codec, world, answer)) for answer in (lambda text, number: "", calling_policy(world))
    )
    assert [c for c in calling if c.caller != OWN] == silent
    assert {(c.caller, c.split) for c in silent} == {
        (caller, split) for caller in ("random form", "wanderer") for split in ("validation", "test")
    }
    own = [c for c in calling if c.caller == OWN]
    assert len(own) == 6 and {c.split for c in own} == {"validation", "test"}


def test_said_anew_means_the_same_in_other_words(codec, world):
    calls = played_calls(subject(codec, world, calling_policy(world), tasks=10))
    assert all(meaning(c.said_anew) == meaning(c.example.reply) for c in calls)
    assert 0.3 < sum(c.said_anew != c.example.reply for c in calls) / len(calls) < 1


def test_calls_are_answered_as_in_the_run(codec, world):
    """Also those of scripted callers, and when they are said anew: with reasons, or as lists."""
    reasons = [reason for kind in CIRCUMSTANCES.values() for reason in kind.because]
    for replies in ("reasons", "list"):
        calls = played_calls(subject(codec, world, calling_policy(world), tasks=10, replies=replies))
        for texts in ([c.example.reply.lower() for c in calls], [c.said_anew.lower() for c in calls]):
            explained = {c.caller for c, text in zip(calls, texts, strict=True) if any(r in text for r in reasons)}
            assert explained == (set() if replies == "list" else {OWN, "random form", "wanderer"})


def test_every_token_of_a_reply_is_scored_given_the_true_ones(codec, toy_path):
    """Against all logits of a forward pass, position by position."""
    model = load_base(toy_path).eval()
    texts = [("a b", "Done."), ("Please call Harbor Bank.", missing("email")), ("x" * 300, "Loans. Settled.")]
    calls = [Encoded(tuple(codec.encode(p)), tuple(codec.reply(r))) for p, r in texts]
    scores = teacher_forced(model, calls)
    for call, score in zip(calls, scores, strict=True):
        ids = torch.tensor([[*call.prompt, *call.reply]])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0], dim=-1)
        positions = range(len(call.prompt) - 1, ids.shape[1] - 1)
        nats = -sum(logprobs[i, ids[0, i + 1]].item() for i in positions)
        hits = sum(logprobs[i].argmax() == ids[0, i + 1] for i in positions)
        assert score == {"tokens": len(call.reply), "tokens_right": hits, "nats": pytest.approx(nats, abs=1e-3)}
    assert teacher_forced(model, []) == []


def test_reply_rows_hold_both_models_on_the_same_calls(codec, world, toy_path):
    toy = load_base(toy_path).eval()
    examined = subject(codec, world, lambda text, number: reply("success", "Done."), tasks=2)
    examined.models = {"world model": toy, "untrained base": toy}
    rows = pd.DataFrame(reply_rows(examined))
    trained, base = (rows[rows["model"] == name].drop(columns="model") for name in ("world model", "untrained base"))
    assert len(trained) and trained.reset_index(drop=True).equals(base.reset_index(drop=True))
    assert {p.adapter for p in examined.player.engine.prompts} == {"policy", WORLD_MODEL, "base"}
    assert (rows["right"] == (rows["category"] == "success")).all()
    assert (rows["tokens_right"] <= rows["tokens"]).all() and (rows["nats"] > 0).all()
    assert rows["said"].str.partition(":")[0].equals(rows["category"])


def test_episodes_know_the_department_of_their_only_goal(codec, bank):
    rows = episode_rows(subject(codec, bank, tasks=6))
    departments = ["Billing", "Fraud Department", "Fraud Department", "Loans", "Sales", "", "Sales"]
    assert [r["department"] for r in rows] == departments  # the sixth task has two goals
    assert [r["company_id"] for r in rows] == ["bank"] * 6 + ["shop"] and not any(r["success"] for r in rows)


# --- rules -----------------------------------------------------------------------------------


def by_the_number(world):
    """A world model that knows what every department demands, and nothing of the way."""
    listed = {d.phone: (c.company_id, d.name) for c in world.companies.values() for d in c.departments}

    def answer(text, number):
        company_id, department = listed[re.findall(r"\d{3}-\d{3}-\d{4}", text)[-1]]
        required = world.demands(company_id, (), circumstances_in(text)).of[department].required
        return missing(*required, department=department) if required else reply("success", f"{department}. Done.")

    return answer


CS, FRAUD = "Customer Service", "Fraud Department"
WANTED = {  # what an empty-handed caller is answered in the hand-made world, once whoever comes first has served
    CS: "auth_failed: account_number, last_4_ssn",
    FRAUD: "auth_failed: account_number, last_4_ssn, last_4_cc",
    "Billing": "auth_failed: account_number, billing_zip",
    "Loans": "auth_failed: name, date_of_birth",
    "Sales": "success",
}
CALLS = [  # all calls on the ways of its tasks
    ("bill", "Billing"),
    ("fraud", FRAUD),  # is called too early, and sends the caller to Customer Service
    ("fraud", CS),
    ("fraud", FRAUD),
    ("loan", "Loans"),
    ("offer", "Sales"),
    ("two", CS),
    ("two", "Billing"),
    ("bill", "Sales"),  # of the shop
]


def test_a_world_model_that_goes_by_the_number(codec, bank):
    """Sure of itself, also where it is wrong: it knows of no department that wants another one first."""
    rows = rule_rows(subject(codec, bank, by_the_number(bank)), samples=3)
    assert [(r["task_id"], r["department"]) for r in rows] == CALLS
    truths = [WANTED[department] for _, department in CALLS]
    assert [r["greedy"] for r in rows] == [r["answer"] for r in rows] == truths
    truths[1] = f"routing_violation: {CS}"
    assert [r["truth"] for r in rows] == truths and all(r["confidence"] == 1 for r in rows)
    others = [(r["other"], r["other_called"], r["other_wanted"]) for r in rows]
    early = (FRAUD, 0, 0)  # who is called instead of Customer Service would send the caller back
    assert others == [(CS, 1, 0), (CS, 1, 0), early, (CS, 1, 0), (CS, 1, 0), (CS, 1, 0), early, (CS, 1, 0), ("", 1, 1)]
    assert [(r["split"], r["company_id"]) for r in rows] == [("validation", "bank")] * 8 + [("test", "shop")]
    assert {r["circumstances"] for r in rows} == {0}


def test_circumstances_of_the_request_are_counted(codec, bank, monkeypatch):
    """As if every word of these were one."""
    monkeypatch.setattr("lfo.lab.probing.circumstances_in", lambda request: tuple(re.findall("bill|fraud", request)))
    rows = rule_rows(subject(codec, bank, by_the_number(bank)), samples=1)
    words = {
        task.task_id: len(re.findall("bill|fraud", task.request)) for task in bank.tasks if task.split == "validation"
    }
    counted = {r["task_id"]: r["circumstances"] for r in rows if r["split"] == "validation"}
    assert counted == {task: words[task] for task in counted} and len(set(counted.values())) > 1


def test_a_world_model_that_goes_by_what_the_user_wants(codec, bank):
    """It answers for the department of the first goal, whoever is called: right where that one is called in time."""

    def answer(text, number):
        wanted = WANTED[DEPARTMENT_OF_GOAL[goals_in(text)[0]]]
        return reply("success", "Done.") if wanted == "success" else missing(*wanted.split(": ")[1].split(", "))

    rows = rule_rows(subject(codec, bank, answer), samples=1)
    right = [r["greedy"] == r["truth"] for r in rows]
    assert right == [True, False, False, True, True, True, False, True, True]
    alone = rows[-1]  # the shop has one department only
    assert all(
        (r["other_called"], r["other_wanted"]) == (0, 1) for r in rows if r["greedy"] == r["truth"] and r != alone
    )
    assert alone["other"] == "" and [r["other"] for r in rows].count("") == 1


def test_confidence_is_the_share_of_samples_that_agree(codec, bank):
    """Of each question's four samples two name the email address, one nothing; the department does not matter."""
    samples = [missing("email"), missing("name"), missing("email"), "gibberish"]
    drawn = lambda text, number: samples[(number - 8) % 4] if 8 <= number < 40 else missing("last_4_cc")  # noqa: E731
    examined = subject(codec, bank, drawn)
    rows = rule_rows(examined, samples=4)
    email, card = "auth_failed: email", "auth_failed: last_4_cc"
    found = [(r["answer"], r["confidence"], r["greedy"]) for r in rows]
    assert found == [(email, 0.5, card)] * 8 + [(card, 1.0, card)]
    asked = [0.0] * 8 + [1.0] * 32 + [0.0] * 8 + [0.0] + [1.0] * 4 + [0.0]
    assert [p.temperature for p in examined.player.engine.prompts] == asked
    assert len({p.seed for p in examined.player.engine.prompts[8:40]}) == 32


# --- a run folder ----------------------------------------------------------------------------


def run_of(config, adapters, path):
    """A run folder with these adapters."""
    folder = RunFolder(path)
    folder.begin(config)
    (path / "adapters").mkdir()
    folder.version(1).symlink_to(adapters)
    return path


@pytest.fixture(scope="module")
def run(make_config, toy_adapters, tmp_path_factory):
    """A run folder with random adapters on the toy base."""
    config = make_config(**{"rollout.max_action_tokens": 4, "world_model.coupling": "imagine"})
    return run_of(config, toy_adapters[WORLD_MODEL].parent, tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("other", [{"env.world_seed": 3}, {"env.circumstances": 2}])
def test_situations_are_staged_in_the_world_that_they_are_about_alone(make_config, tmp_path, monkeypatch, other):
    monkeypatch.setattr(probing, "load_subject", lambda *_: None)
    for name in ("episode_rows", "reply_rows", "rule_rows", "situation_rows"):
        monkeypatch.setattr(probing, name, lambda *_, **__: [{"split": "test"}])
    found = {}
    for name, settings in {"there": {}, "elsewhere": other}.items():
        (tmp_path / name).mkdir()
        config = make_config(**settings)
        (tmp_path / name / "config.json").write_text(json.dumps(as_dict(config)))
        found[name] = list(probe(tmp_path / name))
    assert found == {"there": [*found["elsewhere"], "situations"], "elsewhere": ["episodes", "replies", "rules"]}


def test_a_run_is_probed_once(run, monkeypatch):
    steps = PhoneKnowledge.steps
    monkeypatch.setattr(PhoneKnowledge, "steps", lambda self, split: steps(self, split)[:12])
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


def test_the_world_model_is_the_adapter_that_learned_the_replies(run, make_config, toy_adapters, tmp_path):
    assert load_subject(run, 1).adapter == WORLD_MODEL
    shared = make_config(**{"world_model.coupling": "shared"})
    assert load_subject(run_of(shared, toy_adapters[POLICY].parent, tmp_path), 1).adapter == POLICY


def test_a_run_without_a_world_model_says_so(make_config, toy_adapters, tmp_path):
    folder = run_of(make_config(world_model=None), toy_adapters[POLICY].parent, tmp_path)
    with pytest.raises(RunError, match="trained no world model; probe another run"):
        probe(folder)
    with pytest.raises(RunError, match="has no world model; inspect another run"):
        inspect(folder)


def test_a_memory_is_no_world_model(make_config, toy_adapters, tmp_path):
    folder = run_of(make_config(**{"world_model.coupling": "memory"}), toy_adapters[POLICY].parent, tmp_path)
    with pytest.raises(RunError, match="has no world model; inspect another run"):
        inspect(folder)


def test_a_run_without_adapters_says_so(make_config, tmp_path):
    RunFolder(tmp_path).begin(make_config())
    with pytest.raises(RunError, match="holds no adapters; train there first"):
        probe(tmp_path)


# --- predictions to look at ------------------------------------------------------------------


def test_predictions_stand_beside_replies(codec, world, monkeypatch):
    """A policy that calls empty-handed: what is missing is predicted for every other call, for the rest nothing."""

    def answer(text, number):
        if "<|predict_csr|>" in text:
            return by_the_number(world)(text, number) if number % 2 else "gibberish"
        return calling_policy(world)(text, number)

    monkeypatch.setattr("lfo.lab.inspect.load_player", lambda folder: subject(codec, world, answer).player)
    table = inspect("somewhere", calls=6)
    assert list(table) == ["task_id", "category", "gave", "said", "predicted", "fields_right", "right"]
    assert len(table) == 6 and table["category"].is_monotonic_increasing and set(table["gave"]) == {""}
    refused = table[table["category"] == "auth_failed"]
    assert (refused["right"] == (refused["predicted"] != "gibberish")).all()
    shown = render(table)
    right = refused["right"].sum()
    assert f"auth_failed: exact fields {right}/{len(refused)}, status and departments too {right}/" in shown


def test_a_policy_that_calls_nobody_has_nothing_to_inspect(codec, world, monkeypatch):
    monkeypatch.setattr("lfo.lab.inspect.load_player", lambda folder: subject(codec, world).player)
    with pytest.raises(RunError, match="made no call in 4 episodes; train it further"):
        inspect("somewhere", calls=4)
