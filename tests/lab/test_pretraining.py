"""Pretraining: the schedule, documents, and a run that is stopped and goes on as if it had not been."""

from __future__ import annotations

import argparse
import random

import pytest
import torch

from lfo.lab.pretraining import (
    Schedule,
    accuracy,
    batches,
    begin_with,
    build_model,
    build_tokenizer,
    pretrain,
    tokenised,
)
from lfo.text.base import load_base


def test_the_rate_rises_stays_falls_and_begins_again_lower():
    schedule = Schedule(steps=1200, polish_from=900, peak=1.0)
    assert schedule.rate(0) == pytest.approx(0.01) and schedule.rate(300) == schedule.rate(600) == 1.0
    assert schedule.rate(899) < 0.03 and schedule.rate(900) == 0.25 and schedule.rate(1199) < 0.001
    assert schedule.rate(500, first=500) == pytest.approx(0.01)
    alone = Schedule(steps=900, polish_from=900, peak=1.0)
    assert [alone.rate(step) for step in range(0, 900, 50)] == [schedule.rate(step) for step in range(0, 900, 50)]


def test_documents_are_masked_and_padded(codec):
    ids, mask = tokenised(codec, [("<|tool|>", False), ("search_company<|end|>", True)])
    assert codec.decode([i for i, m in zip(ids, mask, strict=True) if m]) == "search_company<|end|>" and mask[0] == 0
    padded, masks = next(batches([(ids, mask), (ids * 2, mask * 2)], codec.pad_id))
    assert padded.shape == masks.shape == (2, 2 * len(ids))
    assert padded[0, len(ids) :].eq(codec.pad_id).all() and masks[0, len(ids) :].sum() == 0


def counting(step: int) -> list[tuple[list[int], list[int]]]:
    """Documents that count: what comes next is what came before, plus one."""
    starts = random.Random(step).sample(range(20, 80), 8)
    return [(list(range(start, start + 12)), [0] + [1] * 11) for start in starts]


def trained(codec, out, *stops: int) -> dict[str, torch.Tensor]:
    """The weights after runs up to each of these steps, one after the other."""
    out.mkdir()
    for stop in stops:
        model = build_model(len(codec.tokenizer), seed=0)
        args = argparse.Namespace(out=out, steps=stop, lr=1e-3, begin_with=None, begin_at=0, compile=False)
        pretrain(args, model, codec, Schedule(60, 60, 1e-3), counting, lambda step: {})
    return model.state_dict()


def test_a_run_that_was_stopped_goes_on(codec, tmp_path):
    whole, resumed = trained(codec, tmp_path / "a", 6), trained(codec, tmp_path / "b", 3, 6)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_it_learns_and_another_goes_on_from_it(codec, tmp_path):
    model = build_model(len(codec.tokenizer), seed=0)
    before = accuracy(model, codec, counting(-1))["tokens"]
    model.load_state_dict(trained(codec, tmp_path / "a", 60))
    found = accuracy(model, codec, counting(-1), watched=[90])
    assert set(found) == {"tokens", "watched"} and found["tokens"] > before + 0.3
    codec.tokenizer.save_pretrained(tmp_path / "a")
    heir = build_model(len(codec.tokenizer), seed=1)
    begin_with(heir, codec.tokenizer, tmp_path / "a")
    assert accuracy(heir, codec, counting(-1)) == accuracy(model, codec, counting(-1))


def test_a_new_token_begins_near_what_it_was_cut_into(codec, base_path, tmp_path):
    """Beside tokens that both know, which keep their embeddings."""
    words = r" ?[A-Za-z']+|\d|\s+|[^\sA-Za-z\d]+"
    tokenizer = build_tokenizer(["put the vest away"] * 9, [" in the wardrobe"], words, vocab_size=300)
    heir = build_model(len(tokenizer), seed=1)
    own = heir.get_input_embeddings().weight.detach().clone()
    begin_with(heir, tokenizer, base_path)
    told, before = heir.get_input_embeddings().weight, load_base(base_path).get_input_embeddings().weight
    index, cut = tokenizer.convert_tokens_to_ids(" in the wardrobe"), codec.encode(" in the wardrobe")
    assert len(cut) > 2 and torch.allclose(told[index] - own[index], before[cut].mean(0), atol=1e-6)
    same = tokenizer.convert_tokens_to_ids("<|tool|>"), codec.tokenizer.convert_tokens_to_ids("<|tool|>")
    assert torch.equal(told[same[0]], before[same[1]])
