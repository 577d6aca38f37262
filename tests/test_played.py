"""The embedded base plays with imagination: what the loop, a coupling and the torch engine make of it together."""

from __future__ import annotations

import json
import re

import pytest
import torch
from scripted import spans

from lfo.config import RolloutConfig, WorldModelConfig
from lfo.couplings import Imagine, alone
from lfo.couplings.plain import NOTES
from lfo.envs.base import written
from lfo.envs.phone.phrasings import parse_reply
from lfo.envs.phone.vocabulary import FIELDS
from lfo.rollout.play import play
from lfo.rollout.torch_engine import TorchEngine
from lfo.text.base import load_base
from lfo.types import Attempt, Role


@pytest.fixture(scope="module")
def played(base_path, base_adapters, codec, world):
    """play_again(seed, ...): six groups of four in the world of the experiments, and what it made of seed 0."""
    engine, coupling = TorchEngine(base_path), Imagine(WorldModelConfig(), codec)
    engine.load(base_adapters)
    tasks = world.split("train", (1, 2, 3))[:6]
    groups = [coupling.waves(task, g, 100 + g, 4) for g, task in enumerate(tasks)]

    def play_again(seed: int, coupling=coupling, groups=groups, **rollout):
        return play(engine, codec, groups, coupling, RolloutConfig(**rollout), seed, "phone")

    return play_again(0), play_again, groups, coupling


def test_the_base_plays_what_the_records_say(played, codec):
    rows, _, groups, _ = played
    attempts = [attempt for (wave,) in groups for attempt in wave]
    assert [(r.task_id, r.group) for r in rows] == [(a.task.task_id, a.group) for a in attempts]
    for row in rows:
        assert len(row.tokens) == len(row.roles) == len(row.logprobs)
        sampled = [role == Role.ACTION for role in row.roles]
        assert all((p < 0.0) <= is_sampled for p, is_sampled in zip(row.logprobs, sampled, strict=True))
        actions = [text for text, role in spans(row, codec) if role is Role.ACTION]
        assert [codec.action(codec.encode(a)) for a in actions] == [t.action for t in row.turns]
        seen = [text for text, role in spans(row, codec) if role is Role.OBSERVATION and text != "<|tool|>"]
        heard = [f"<|obs|>{t.observation}<|/obs|>" for t in row.turns if t.observation]
        assert [s.removesuffix("<|tool|>") for s in seen] == heard
    assert len({len(r.turns) for r in rows}) > 1  # rows left while others went on


def test_stored_logprobs_are_those_of_the_merged_model(played, base_path):
    """Untrained adapters change nothing, so the bare base says the same, in one forward pass without a cache."""
    rows, *_ = played
    model = load_base(base_path).eval()
    for row in rows[::5]:
        with torch.no_grad():
            logprobs = torch.log_softmax(model(torch.tensor([row.tokens])).logits[0], dim=-1)
        acted = [t for t, role in enumerate(row.roles) if role == Role.ACTION]
        expected = logprobs[[t - 1 for t in acted], [row.tokens[t] for t in acted]]
        assert torch.allclose(torch.tensor([row.logprobs[t] for t in acted]), expected, atol=1e-4)


def test_each_row_has_its_notes_in_one_place_and_rows_that_read_the_same_note_the_same(played, codec):
    """At most NOTES of them, all by the world model, after the first directory."""
    rows, *_ = played
    notes: dict[str, set[str]] = {}
    for row in rows:
        cut = spans(row, codec)
        found = [i for i, (_, role) in enumerate(cut) if role is Role.NOTE]
        read = [i for i, (text, _) in enumerate(cut) if text.startswith('<|obs|>{"departments": [{')]
        assert len(found) <= min(1, len(read))
        if found:
            assert found[0] == read[0] + 1
        if read:
            before = "".join(text for text, _ in cut[: read[0]])
            notes.setdefault(before, set()).add(cut[found[0]][0] if found else "")
    assert len(notes) < len(rows) and all(len(texts) == 1 for texts in notes.values())
    said = [text for texts in notes.values() for text in texts if text]
    assert all(1 <= text.count("<|note|>world model: ") == text.count("<|/note|>") <= NOTES for text in said)
    assert sum(texts != {""} for texts in notes.values()) >= 4  # the policy named a listed number


def test_same_seed_same_trajectories(played):
    rows, play_again, groups, coupling = played
    assert play_again(0) == rows
    assert [r.tokens for r in play_again(1)] != [r.tokens for r in rows]
    one = [[wave[:1]] for (wave,) in groups]
    greedy = [play_again(seed, alone(coupling), one, temperature=0.0) for seed in (0, 1)]
    assert greedy[0] == greedy[1]


def test_hidden_rules_are_heard_on_the_phone_and_nowhere_else(played, codec):
    """How a CSR says a field, as in "billing ZIP code", stands in phone replies only."""
    rows, play_again, groups, coupling = played
    attempts = [attempt for (wave,) in groups for attempt in wave]
    rows = rows + play_again(3, alone(coupling))
    spoken = re.compile("|".join(map(re.escape, FIELDS.values())))
    for row, attempt in zip(rows, attempts * 2, strict=True):
        phone_replies = {f"<|obs|>{t.observation}<|/obs|>" for t in row.turns if t.tool == "make_phone_call"}
        for text, role in spans(row, codec):
            if role is Role.PROMPT:
                assert text == f"<|task|>{attempt.task.request}<|/task|><|tool|>"
            if role is Role.OBSERVATION and text.removesuffix("<|tool|>") not in phone_replies:
                assert not spoken.search(text)
        for turn in row.turns:
            if turn.tool == "search_company":
                listed = json.loads(turn.observation)["departments"]
                assert all(set(d) == {"name", "phone", "description", "operating_hours"} for d in listed)
        for example in row.examples:  # the world model's state is built from the same observations
            known = codec.decode(example.encoded.prompt)
            assert written(example.call) in known
            for turn in example.turns:
                if turn.tool == "make_phone_call":  # what CSRs said before is known
                    known = known.replace(parse_reply(turn.observation)[1], "")
            assert not spoken.search(known)
    assert any(spoken.search(t.observation) for r in rows for t in r.turns if t.tool == "make_phone_call")


def test_an_attempt_is_all_that_a_group_shares(played):
    """Rows of a group meet the same people: the same forms have the same answers."""
    rows, _, groups, _ = played
    assert all(wave == [Attempt(wave[0].task, wave[0].group, wave[0].seed)] * 4 for (wave,) in groups)
    answers: dict[tuple, set[str]] = {}
    for row in rows:
        for i, turn in enumerate(row.turns):
            if turn.tool == "auth_info_form":
                asked = tuple(t.action for t in row.turns[: i + 1])
                answers.setdefault((row.group, asked), set()).add(turn.observation)
    assert answers and all(len(said) == 1 for said in answers.values())
