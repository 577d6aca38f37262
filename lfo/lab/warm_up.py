"""A real language model is shown how a world is played, before a run is worth its hours.

    python -m lfo.lab.warm_up --config configs/twc.yaml --base models/SmolLM2-135M-Instruct.Q4_1.gguf
    python -m lfo.lab.warm_up --config configs/smollm2_shell.yaml --base models/SmolLM2-135M-Instruct.Q4_1.gguf
    python -m lfo.lab.warm_up --config configs/smollm2_phone.yaml --base models/SmolLM2-135M-Instruct.Q4_1.gguf

LoRA by cross-entropy on transcripts, as a run's own codec writes them, merged into its base in fp32. Of the public
world: transcripts of the exploratory user in made-up rooms (`lfo.envs.twc.explorer`), how things are taken and put,
that what is closed is opened first, how a note is followed, and nothing of what belongs where. Of the shell: one
training task of every skill, done by its ground truth (`lfo.envs.shell.oracle.demonstrations`). Of phone calls:
transcripts of the exploratory caller in throw-away worlds (`lfo.envs.phone.explorer`), whom it means to call, and what
is answered; every document has rules of its own, and no phrasing that is held out. Writes the base that the config
names. What is longer than the config's `rollout.max_tokens` is left out.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from lfo.config import ModelConfig, load_config
from lfo.envs import make_environment
from lfo.envs.phone import PhoneEnvironment
from lfo.envs.phone import explorer as phone_explorer
from lfo.envs.shell.oracle import demonstrations
from lfo.envs.twc import explorer as twc_explorer
from lfo.envs.twc.episode import with_numbers
from lfo.lab.pretraining import Document, answered, train_step, write_facts
from lfo.learn.adapters import parameters, with_adapters
from lfo.protocols import Environment, Question
from lfo.text import Codec, load_codec
from lfo.text.base import load_base, load_tokenizer
from lfo.types import Hangup, Turn

SEED = 50_000  # worlds of the experiments use seeds below 1,000
PREDICTED = 0.2  # share of the documents that are world-model examples
INTENDED = 0.2  # and of phone calls, share of those that say whom a caller means to call
NAME = "warm_up"


def spoken(codec: Codec, request: str, turns: Sequence[Turn], notes: Sequence[str] = ()) -> Document:
    """An episode as a rollout has it; trained on what is said, calls and what closes them. notes: `SOURCE: TEXT`, read
    after the first turn."""
    ids = codec.prompt(request)
    mask = [0] * len(ids)
    for i, turn in enumerate(turns):
        if isinstance(turn.action, Hangup):
            whole, read = [*codec.opener, codec.end_id], 0
        else:
            whole, read = codec.turn(turn.action, turn.observation), len(codec.observation(turn.observation))
        ids += whole
        mask += [0] * len(codec.opener) + [1] * (len(whole) - len(codec.opener) - read) + [0] * read
        for source, _, said in (note.partition(": ") for note in notes if i == 0):
            ids += codec.note(source, codec.encode(said))
        mask += [0] * (len(ids) - len(mask))
    return ids, mask


def in_a_room(codec: Codec, rng: random.Random) -> Document:
    """Of the public world: an episode without slips, or what is answered to a put."""
    if rng.random() < PREDICTED:
        room = twc_explorer.draw_room(rng)
        call, reply = twc_explorer.predicted(rng, room)
        return answered(codec.encoded(Question(room.request, (), call), reply))
    transcript = twc_explorer.attempt(rng)
    if transcript.slips:
        return in_a_room(codec, rng)
    return spoken(codec, with_numbers(transcript.room.request), transcript.turns, transcript.notes)


def on_the_phone(codec: Codec, env: PhoneEnvironment, rng: random.Random) -> Document:
    """Of phone calls: an episode, whom its caller means to call, or what is answered to that."""
    throwaway = phone_explorer.throwaway_world(rng, tasks=1, held_out=False)
    transcript = phone_explorer.attempt(throwaway, throwaway.tasks[0], rng, decided=env.rules)
    if any(note.startswith(phone_explorer.RECALL) for note in transcript.notes):
        return on_the_phone(codec, env, rng)  # its wording is the embedded base's: runs say such things in plain words
    kind = rng.random()
    if kind < PREDICTED and transcript.answered:
        return answered(codec.encoded(*rng.choice(transcript.answered)))
    if kind < PREDICTED + INTENDED and transcript.intentions:
        return meant(codec, transcript, rng.choice(transcript.intentions))
    return spoken(codec, transcript.episode.request, transcript.episode.turns, transcript.notes)


def meant(codec: Codec, transcript: phone_explorer.Transcript, means: phone_explorer.Intention) -> Document:
    """Whom a caller means to call, as `lfo.couplings.plain` asks a policy for it; trained on the number."""
    episode, number = transcript.episode, codec.encode(transcript.listed[means.department])
    read, _ = spoken(codec, episode.request, [episode.turns[0], *means.supposed], transcript.notes[: means.read])
    read += codec.beginning(codec.env.knowledge.intention(episode.turns))
    return [*read, *number], [0] * len(read) + [1] * len(number)


def what_is_shown(codec: Codec, env: Environment, name: str) -> Callable[[random.Random], Document]:
    """What draws a document of an environment.

    Raises:
        ValueError: nobody has written what to show of it.
    """
    if name == "twc":
        return lambda rng: in_a_room(codec, rng)
    if name == "shell":
        episodes = [spoken(codec, request, turns) for request, turns in demonstrations(env)]
        return lambda rng: rng.choice(episodes)
    if name == "phone":
        return lambda rng: on_the_phone(codec, env, rng)
    raise ValueError(
        f"env.name is {name!r}: a warm-up is written for phone, twc and shell; name a config of one of them"
    )


def fitting(shown: Callable[[random.Random], Document], longest: int, rng: random.Random) -> Document:
    """The next document that has at most so many tokens.

    Raises:
        ValueError: there is hardly any.
    """
    for document in (shown(rng) for _ in range(100)):
        if len(document[0]) <= longest:
            return document
    raise ValueError(f"no document has at most {longest} tokens, rollout.max_tokens of the config: raise that")


def warm_up(
    codec: Codec,
    shown: Callable[[random.Random], Document],
    base: Path,
    model: ModelConfig,
    steps: int,
    documents: int,
    rate: float,
) -> None:
    """Train on what `shown` draws, and merge; `model.base` is where the merged weights are written, with the tokenizer
    and recipe.json."""
    began, out = time.time(), Path(model.base)
    bare = load_base(base)
    adapted = with_adapters(bare, model, [NAME], SEED)
    optimizer = torch.optim.AdamW(parameters(adapted, NAME), lr=rate, weight_decay=0.0)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 10, (steps - step) / 10)
        rng = random.Random(f"{SEED}/{step}")
        drawn = sorted((shown(rng) for _ in range(documents)), key=lambda document: len(document[0]))
        losses.append(train_step(bare, optimizer, drawn, codec.pad_id, rows=1))  # memory, not time, is scarce
        print(f"step {step + 1} of {steps}, loss {losses[-1]:.3f}, {time.time() - began:.0f} s", flush=True)
    merged = adapted.merge_and_unload()
    merged.save_pretrained(out)
    load_tokenizer(base).save_pretrained(out)
    settings = {"base": base.name, "seed": SEED, "steps": steps, "documents": documents, "rate": rate}
    write_facts(out, merged, settings, {"loss": losses})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/twc.yaml", help="whose base is written, in whose dialect")
    parser.add_argument("--base", type=Path, required=True, help="the model that is warmed up")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--documents", type=int, default=6, help="per step")
    parser.add_argument("--rate", type=float, default=5e-4)
    args = parser.parse_args()
    config = load_config(args.config)
    heard = ModelConfig(base=str(args.base), dialect=config.model.dialect)
    env = make_environment(config.env)
    codec = load_codec(heard, env)
    shown = partial(fitting, what_is_shown(codec, env, config.env.name), config.rollout.max_tokens)
    warm_up(codec, shown, args.base, config.model, args.steps, args.documents, args.rate)


if __name__ == "__main__":
    main()
