"""How the embedded bases are made: a tokenizer, a tiny Qwen3, and a resumable loop over documents that a recipe draws.

A document is (ids, loss mask). A recipe, such as data/base/recipe.py, says what documents there are, what its tokenizer
makes one token of, and what its card says.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lfo.text import Codec
from lfo.text.base import bf16_pays
from lfo.text.codec import SPECIAL_TOKENS
from lfo.types import Encoded, sha256

Document = tuple[list[int], list[int]]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """steps: in all. polish_from: where a second, shorter round begins; `steps` for none. peak: learning rate."""

    steps: int
    polish_from: int
    peak: float

    def rate(self, step: int, first: int = 0) -> float:
        """Warm-up over 100 steps from the first, constant, linear decay to a fiftieth up to polish_from; then a quarter
        of the peak again, down to zero."""
        if step >= self.polish_from:
            return 0.25 * self.peak * (self.steps - step) / (self.steps - self.polish_from)
        decay_from = self.polish_from * 2 / 3
        fall = 1 - 0.98 * max(0.0, (step - decay_from) / (self.polish_from - decay_from))
        return self.peak * min(1.0, (step - first + 1) / 100) * fall


# --- tokenizer and model ---------------------------------------------------------------------


def build_tokenizer(
    corpus: list[str], phrases: Sequence[str], words: str, vocab_size: int = 1600
) -> PreTrainedTokenizerFast:
    """Byte-level BPE (so that any text can be encoded) plus phrases that are one token each.

    words: a regular expression of what no token goes beyond.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(words), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        min_frequency=5,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    # The phrases are cut out of the corpus, so that no merge is spent on them.
    cut = re.compile("|".join(re.escape(p) for p in sorted([*phrases, *SPECIAL_TOKENS], key=len, reverse=True)))
    corpus = [cut.sub("\n", text) for text in corpus]
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.add_tokens([tokenizers.AddedToken(p, normalized=False) for p in phrases])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>", clean_up_tokenization_spaces=False
    )


def build_model(vocab_size: int, seed: int) -> Qwen3ForCausalLM:
    """About 2 M parameters in the Qwen3 architecture."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config)


def begin_with(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Take over the weights of an earlier base. A token that both know keeps its embedding, a note that of a hint;
    another one begins near the mean of what it was cut into before."""
    earlier, cut = Qwen3ForCausalLM.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    weights, known = earlier.state_dict(), cut.get_vocab()
    for name in [name for name in weights if "embed_tokens" in name or "lm_head" in name]:
        rows = model.state_dict()[name].clone()
        for token, index in tokenizer.get_vocab().items():
            before = known.get(token, known.get(token.replace("note|>", "imagine|>")))
            if before is not None:
                rows[index] = weights[name][before]
            else:
                rows[index] += weights[name][cut.encode(tokenizer.decode([index]))].mean(0)
        weights[name] = rows
    model.load_state_dict(weights)


# --- documents -------------------------------------------------------------------------------


def tokenised(codec: Codec, segments: Sequence[tuple[str, bool]]) -> Document:
    """The document of a segmented text: (text, whether it is trained on)."""
    ids, mask = [], []
    for text, trained in segments:
        piece = codec.encode(text)
        ids += piece
        mask += [int(trained)] * len(piece)
    return ids, mask


def answered(example: Encoded) -> Document:
    """The document of a world-model example."""
    return [*example.prompt, *example.reply], [0] * len(example.prompt) + [1] * len(example.reply)


def batches(documents: Sequence[Document], pad_id: int, rows: int = 24) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Length-sorted documents -> padded (tokens, mask) micro-batches, each [rows, tokens of the longest]."""
    for i in range(0, len(documents), rows):
        chunk = documents[i : i + rows]
        width = max(len(ids) for ids, _ in chunk)
        padded = torch.tensor([ids + [pad_id] * (width - len(ids)) for ids, _ in chunk])
        mask = torch.tensor([m + [0] * (width - len(m)) for _, m in chunk], dtype=torch.float32)
        yield padded, mask


# --- training --------------------------------------------------------------------------------


def train_step(model, optimizer, documents: Sequence[Document], pad_id: int, rows: int = 24) -> float:
    """One optimizer step over all documents, so many at a time; returns the loss in nats per trained token."""
    total = sum(sum(m) for _, m in documents)
    loss_sum = 0.0
    for ids, mask in batches(documents, pad_id, rows):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16_pays()):
            # Right padding needs no attention mask under causal attention.
            hidden = model.model(ids, use_cache=False).last_hidden_state[:, :-1]
            picked = mask[:, 1:].bool()
            logits = model.lm_head(hidden[picked])
        loss = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][picked], reduction="sum") / total
        loss.backward()
        loss_sum += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss_sum


@torch.no_grad()
def accuracy(model, codec: Codec, documents: Sequence[Document], watched: Sequence[int] = ()) -> dict[str, float]:
    """Teacher-forced accuracy of all trained tokens (`tokens`) and of the watched ones among them (`watched`)."""
    hits, some = [], []
    for ids, mask in batches(documents, codec.pad_id):
        with torch.autocast("cpu", torch.bfloat16):
            guess = model(ids).logits[:, :-1].argmax(-1)
        target, picked = ids[:, 1:], mask[:, 1:].bool()
        hits.append((guess == target)[picked])
        some.append((guess == target)[picked & torch.isin(target, torch.tensor(watched))])
    found = {"tokens": hits, "watched": some} if len(watched) else {"tokens": hits}
    return {name: torch.cat(parts).float().mean().item() for name, parts in found.items()}


def arguments(doc: str, out: Path, steps: int, begin_at: int) -> argparse.ArgumentParser:
    """What every recipe can be told; `doc` is its opening text."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=out, help="folder of the model")
    parser.add_argument("--steps", type=int, default=steps, help="stop after this many")
    parser.add_argument("--tokens", type=int, default=8000, help="tokens per step")
    parser.add_argument("--begin-with", type=Path, help="an earlier base, from which to go on")
    parser.add_argument("--begin-at", type=int, default=begin_at, help="the step at which it goes on")
    parser.add_argument("--compile", action="store_true", help="half as fast again; wants a C++ compiler")
    parser.add_argument("--lr", type=float, default=2e-3)
    return parser


def pretrain(
    args: argparse.Namespace,
    model: Qwen3ForCausalLM,
    codec: Codec,
    schedule: Schedule,
    draw: Callable[[int], list[Document]],
    scores: Callable[[int], dict[str, float]],
    rows: int = 24,
) -> None:
    """Train up to args.steps, from the checkpoint in args.out where there is one; writes the weights there.

    draw: the documents of a step, a pure function of it. scores: what is printed beside the loss, by step. rows: of
    documents at a time.
    """
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(codec.tokenizer)} tokens")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01)
    checkpoint, start = args.out / "recipe-checkpoint.pt", 0
    if args.begin_with:
        begin_with(model, codec.tokenizer, args.begin_with)
        start = args.begin_at
    first = start
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    for layer in model.model.layers if args.compile else ():
        layer.compile(dynamic=True)
    began, bar = time.time(), tqdm(range(start, args.steps), initial=start, total=args.steps, mininterval=10)
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step, first)
        loss = train_step(model, optimizer, draw(step), codec.pad_id, rows)
        if step % 50 == 49:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            seen = " ".join(f"{name} {score:.3f}" for name, score in scores(step).items())
            tqdm.write(f"step {step + 1} loss {loss:.3f} {seen} {time.time() - began:.0f}s")
        if step % 100 == 99 or step + 1 == args.steps:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, checkpoint)
            model.save_pretrained(args.out)
    model.save_pretrained(args.out)  # also where there was nothing left to do


def write_facts(folder: Path, model: Qwen3ForCausalLM, settings: Mapping, measured: Mapping) -> dict:
    """recipe.json, how a base was made and what it does, with the checksums of its files; returns what it says."""
    facts = {
        **settings,
        "parameters": model.num_parameters(),
        "vocabulary": model.config.vocab_size,
        "sha256": {name: sha256(folder / name) for name in ("model.safetensors", "tokenizer.json", "config.json")},
        "measured": measured,
    }
    (folder / "recipe.json").write_text(json.dumps(facts, indent=2) + "\n")
    return facts
