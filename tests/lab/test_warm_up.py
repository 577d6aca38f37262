"""warm_up: what a real model is shown of the public world, and the base that comes of it."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import torch
from playable import needs_sandbox

from lfo.config import EnvConfig, ModelConfig
from lfo.envs import make_environment
from lfo.envs.base import written
from lfo.envs.phone import explorer as phone_explorer
from lfo.envs.phone.vocabulary import CIRCUMSTANCES
from lfo.envs.shell.oracle import demonstrations
from lfo.envs.twc import explorer
from lfo.envs.twc.episode import with_numbers
from lfo.lab.warm_up import fitting, in_a_room, meant, spoken, warm_up, what_is_shown
from lfo.text import load_codec
from lfo.text.base import load_base
from lfo.types import Hangup

BASE = Path(__file__).resolve().parents[2] / "data" / "base_twc"


@pytest.fixture(scope="module")
def codec():
    return load_codec(ModelConfig(base=str(BASE)), make_environment(EnvConfig(name="twc")))


@pytest.fixture(scope="module")
def noted():
    """An episode with notes and without slips."""
    rng = random.Random(3)
    return next(t for t in (explorer.attempt(rng) for _ in range(1000)) if t.notes and not t.slips)


def test_it_learns_to_say_the_calls_and_nothing_else(codec, noted):
    """Request, notes once the thing is in hand, observations: read, and not trained on."""
    ids, mask = spoken(codec, with_numbers(noted.room.request), noted.turns, noted.notes)
    said = codec.decode([token for token, trained in zip(ids, mask, strict=True) if trained])
    calls = [written(turn.action) for turn in noted.turns]
    assert said == "".join(f"{call}<|end|>" for call in calls)
    first = noted.turns[0]
    text = codec.decode(ids)
    assert text.startswith(f"<|task|>{with_numbers(noted.room.request)}<|/task|><|tool|>{calls[0]}<|end|>")
    told = "".join(f"<|note|>{note}<|/note|>" for note in noted.notes)
    assert f"<|obs|>{first.observation}<|/obs|>{told}<|tool|>{calls[1]}" in text


def test_a_fifth_of_what_it_reads_are_answers(codec):
    rng = random.Random(0)
    answers = [codec.decode(in_a_room(codec, rng)[0]).startswith("<|state|>") for _ in range(300)]
    assert 0.12 < sum(answers) / len(answers) < 0.28


def test_what_comes_of_it_is_a_plain_base(codec, tmp_path):
    """Merged: other weights than before, no adapter left, and what it was made of beside them."""
    shown = what_is_shown(codec, codec.env, "twc")
    warm_up(
        codec,
        shown,
        BASE,
        ModelConfig(base=str(tmp_path / "warm"), rank=4),
        steps=3,
        documents=2,
        rate=1e-2,
    )
    before, after = load_base(BASE).state_dict(), load_base(tmp_path / "warm").state_dict()
    assert before.keys() == after.keys() and any(not torch.equal(before[name], after[name]) for name in before)
    facts = json.loads((tmp_path / "warm" / "recipe.json").read_text())
    assert (facts["base"], facts["steps"], len(facts["measured"]["loss"])) == ("base_twc", 3, 3)
    assert load_codec(ModelConfig(base=str(tmp_path / "warm")), codec.env).encode("a") == codec.encode("a")


@pytest.fixture(scope="module", params=["tags", "chat"])
def phone(request, chat_path):
    base = ModelConfig(str(chat_path), dialect="chat") if request.param == "chat" else ModelConfig()
    return load_codec(base, make_environment(EnvConfig(values="reference")))


def test_of_phone_calls_it_sees_worlds_that_were_never_before(phone):
    """Three kinds of document: an episode with what it says trained, a number to be called, a reply. Nothing is
    trained on what was noted or observed."""
    shown, rng = what_is_shown(phone, phone.env, "phone"), random.Random(5)
    kinds, noted, names = {"number": 0, "reply": 0, "episode": 0}, 0, set()
    for _ in range(60):
        ids, mask = shown(rng)
        assert len(ids) == len(mask)
        text, said = phone.decode(ids), phone.decode([i for i, trained in zip(ids, mask, strict=True) if trained])
        number = re.fullmatch(r"800-555-\d{4}", said) is not None
        kind = "number" if number else "reply" if said.startswith('{"status"') else "episode"
        kinds[kind] += 1
        if kind == "episode":
            assert not any(kind.said[-1] in text for kind in CIRCUMSTANCES.values()), "held out"
            assert said.count("search_company") == 1 and "departments" not in said and "status" not in said
            names |= set(re.findall(r'"company_name": "([^"]+)"', said))
        noted += "A note (" in text or "<|note|>" in text
    assert min(kinds.values()) > 3 and kinds["episode"] > 25 and noted > 10
    assert len(names) > 15, "not the same companies again and again"
    assert phone.action([phone.end_id]) == Hangup(), "which is how an episode ends here that hangs up"


def test_nothing_longer_than_a_run_can_read_is_shown(phone):
    shown = what_is_shown(phone, phone.env, "phone")
    lengths = sorted(len(shown(random.Random(seed))[0]) for seed in range(20))
    longest = lengths[10]
    assert max(len(fitting(shown, longest, random.Random(seed))[0]) for seed in range(20)) <= longest < lengths[-1]
    with pytest.raises(ValueError, match="at most 3 tokens, rollout"):
        fitting(shown, 3, random.Random(0))


def test_whom_it_means_to_call_is_asked_after_the_notes_and_what_is_supposed(phone):
    """Request, directory, the notes so far, what is supposed, then a call begun: what `Plain.intended` reads."""
    world, rng = phone_explorer.throwaway_world(random.Random(2), tasks=12), random.Random(0)
    for task in world.tasks:
        transcript = phone_explorer.attempt(world, task, rng, noted=1.0, decided=phone.env.rules)
        looked_up, blank = transcript.episode.turns[0], phone.env.knowledge.intention(transcript.episode.turns)
        for means in transcript.intentions:
            ids, mask = meant(phone, transcript, means)
            asked = [*phone.prompt(task.request), *phone.turn(looked_up.action, looked_up.observation)]
            for source, _, said in (note.partition(": ") for note in transcript.notes[: means.read]):
                asked += phone.note(source, phone.encode(said))
            asked += [i for turn in means.supposed for i in phone.turn(turn.action, turn.observation)]
            asked += phone.beginning(blank)
            assert ids[: len(asked)] == asked and mask[: len(asked)] == [0] * len(asked) and all(mask[len(asked) :])
            assert phone.decode(ids[len(asked) :]) == transcript.listed[means.department]


@needs_sandbox
def test_of_the_shell_it_sees_one_training_task_of_every_skill_done():
    env = make_environment(EnvConfig(name="shell", levels=(1, 2, 3), max_turns=5))
    shown = demonstrations(env)
    tasks = {task.instruction: task for task in env.tasks("train")}
    skills = [tasks[request].skill for request, _ in shown]
    assert sorted(skills) == sorted({task.skill for task in tasks.values() if not task.house})
    for request, (command, end) in shown:
        assert command.action.arguments["command"] == tasks[request].ground_truth
        assert command.status in ("ok", "failed") and end.status == "finished" and not tasks[request].house


@needs_sandbox
def test_what_is_shown_is_by_world_and_a_world_without_is_refused(codec):
    env = make_environment(EnvConfig(name="shell", levels=(1, 2, 3), max_turns=5))
    shell = load_codec(ModelConfig(base=str(BASE.parent / "base_shell")), env)
    ids, mask = what_is_shown(shell, env, "shell")(random.Random(0))
    assert "<|end|>finish" not in shell.decode(ids[: mask.index(1)]) and shell.decode(ids).count("<|end|>") == 2
    with pytest.raises(ValueError, match="a warm-up is written for phone, twc and shell"):
        what_is_shown(codec, codec.env, "my_world")
