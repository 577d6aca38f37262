"""What a finished run's world model knows: its predictions scored, its confidence, and a table of hand-written calls.

`probe` asks a run's newest world model once and writes these into the run folder; the tables and figures of
notebook 06 are drawn from those files alone (`lfo.lab.probing_figures`).

* episodes: freshly played ones of the run's own policy, greedy as in every evaluation; did they succeed?
* replies: the calls of freshly played episodes of the run's own policy and of `CALLERS`, scripted and the same for
  every run; each with its reply, the greedy prediction, and the reply's tokens scored teacher-forced. The untrained
  base is scored on the same calls: it speaks the CSR's language before it knows a single rule.
* rules: every question of `PhoneKnowledge.steps`, answered greedily and by several samples; how often the samples
  agree is the world model's confidence. And the same request with a call to another department: does the world model
  go by the number that is called, or by what the user wants?
* situations: `lfo.lab.situations`, hand-written calls with the answer that a reader of the rules expects; of runs in
  the world that they are about.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from peft import PeftModel
from transformers import PreTrainedModel

from lfo.config import derive_seed, evaluation_seed
from lfo.couplings.imagine import REPLY_TOKENS
from lfo.couplings.noted import as_read
from lfo.couplings.plain import Plain
from lfo.envs.phone import Rules, World
from lfo.envs.phone.callers import RandomForm, TypicalPrior, run_scripted
from lfo.envs.phone.csr import CsrSimulator
from lfo.envs.phone.episode import AS_DECIDED, PhoneEpisode
from lfo.envs.phone.knowledge import PhoneKnowledge, Step
from lfo.envs.phone.phrasings import spoken
from lfo.envs.phone.records import PhoneTask
from lfo.envs.phone.tools import PHONE, phone_call
from lfo.envs.phone.vocabulary import DEPARTMENT_OF_GOAL, circumstances_in
from lfo.evaluate import inspect_replies, play_tasks
from lfo.lab.inspect import in_words
from lfo.lab.player import Player, load_player
from lfo.lab.reading import read_measurement, write_measurement
from lfo.lab.situations import SITUATIONS, WORLD, gist, stage
from lfo.protocols import AdapterLayout, Question
from lfo.rollout.engine import Prompt, complete
from lfo.runs import RunError, RunFolder
from lfo.text import Codec
from lfo.text.base import load_base
from lfo.types import BASE, Encoded, Example, Rollout, Turn

SPLITS = ("validation", "test")  # known and new companies
TRAINED, UNTRAINED = "world model", "untrained base"


@dataclasses.dataclass
class Subject:
    """The world model of a run, of several the first, loaded. adapter: its name in the engine, where `base` is the
    untrained base.

    models: TRAINED and UNTRAINED, fp32, for teacher forcing. tasks: how many tasks of each split are played, with the
    policy or a scripted caller.
    """

    player: Player
    adapter: str
    models: dict[str, PreTrainedModel]
    tasks: int

    @property
    def world(self) -> World:
        return self.player.env.world

    @functools.cached_property
    def episodes(self) -> list[tuple[PhoneTask, Rollout]]:
        """One greedy episode of each task, by the run's own policy, at the levels that it was trained on."""
        p = self.player
        tasks = [task for split in SPLITS for task in p.env.tasks(split)[: self.tasks]]
        played = play_tasks(p.engine, p.codec, p.coupling, tasks, p.config.rollout, episodes=1)
        return list(zip(tasks, played, strict=True))

    def predict(self, questions: Sequence[Question], temperature: float = 0.0) -> list[str]:
        """What the world model answers; samples are the same for every run with the same weights."""
        engine, codec, end = self.player.engine, self.player.codec, self.player.codec.reply_end_id
        asked = map(codec.question, map(self.player.coupling.informed, questions))
        seeds = [derive_seed(derive_seed("rules"), i) for i in range(len(questions))]
        prompts = [
            Prompt(one, self.adapter, REPLY_TOKENS, end, temperature, seed)
            for one, seed in zip(asked, seeds, strict=True)
        ]
        return [codec.reply_text(said.tokens) for said in complete(engine, prompts)]


def load_subject(folder: str | Path, tasks: int) -> Subject:
    """The newest world model of a run, in its engine and for teacher forcing.

    Raises:
        RunError: the run has published no adapters, or trained no world model.
    """
    player = load_player(folder)
    adapter, base = player.coupling.layout.listener, player.config.model.base
    if adapter is None:
        raise RunError(f"{folder} trained no world model; probe another run.")
    trained = PeftModel.from_pretrained(load_base(base), str(player.adapters[adapter])).merge_and_unload()
    return Subject(player, adapter, {TRAINED: trained.eval(), UNTRAINED: load_base(base).eval()}, tasks)


def probe(folder: str | Path, tasks: int = 50, samples: int = 8) -> dict[str, pd.DataFrame]:
    """The tables `episodes`, `replies` and `rules` of a run, in the world of the hand-written `situations` these as
    well; each is measured once and then read, until the run is trained again.

    tasks: tasks per split and caller. samples: sampled answers per question about a rule.
    Raises what `load_subject` raises.
    """
    measures = {
        "episodes": episode_rows,
        "replies": reply_rows,
        "rules": functools.partial(rule_rows, samples=samples),
    }
    run, tables, subject = RunFolder(folder), {}, None
    if (run.config.env.world_seed, run.config.env.circumstances) == WORLD:
        measures["situations"] = situation_rows
    for name, measure in measures.items():
        file = f"probing_{name}.csv"
        if run.measured(file):
            tables[name] = read_measurement(run, file)
        else:
            subject = subject or load_subject(folder, tasks)
            tables[name] = write_measurement(run, file, measure(subject))
    return tables


def episode_rows(subject: Subject) -> list[dict]:
    """One row per episode of the run's own policy. department: that of the task's goal, "" where it has several."""
    rows = []
    for task, played in subject.episodes:
        about = {"split": task.split, "task_id": task.task_id, "level": task.level, "company_id": task.company_id}
        department = DEPARTMENT_OF_GOAL[task.goals[0]] if len(task.goals) == 1 else ""
        rows.append({**about, "department": department, "success": int(played.success)})
    return rows


# --- replies ---------------------------------------------------------------------------------


class Wanderer(TypicalPrior):
    """Fills in the form for its goal, then calls every listed department in random order, whatever it hears.

    So every kind of answer comes up, also where a policy that has learned something never calls.
    """

    def call_order(self) -> list[str]:
        return self.rng.sample(sorted(self.directory), len(self.directory))

    def hear(self, status: str, message: str) -> bool:
        self.to_call = self.to_call[1:]
        return bool(self.to_call)


OWN = "own policy"
CALLERS = {"random form": RandomForm, "wanderer": Wanderer}


@dataclasses.dataclass(frozen=True)
class PlayedCall:
    """A phone call of some episode. said_anew: the same answer in words drawn again."""

    caller: str  # OWN or a key of CALLERS
    split: str
    example: Example
    said_anew: str


def played_calls(subject: Subject) -> list[PlayedCall]:
    """The calls of one episode of each task by every caller; scripted ones play tasks of all levels."""
    p, calls = subject.player, []
    for task, row in subject.episodes:
        calls += _calls_of(p.codec, OWN, task, p.env.rules, row.turns)
    return calls + scripted_calls(p.codec, subject.tasks)


def scripted_calls(codec: Codec, tasks: int) -> list[PlayedCall]:
    """Those of `CALLERS`, the same for every run in a world. tasks: how many of each split."""
    world, calls = codec.env.world, []
    rules = dataclasses.replace(AS_DECIDED, replies=codec.env.rules.replies)
    for caller, split in itertools.product(CALLERS, SPLITS):
        for task in world.split(split)[:tasks]:
            seed = evaluation_seed(task.task_id)
            episode = PhoneEpisode(world, task, rules, seed)
            run_scripted(episode, CALLERS[caller](episode, world, random.Random(seed)))
            calls += _calls_of(codec, caller, task, rules, episode.turns)
    return calls


def _calls_of(codec: Codec, caller: str, task: PhoneTask, rules: Rules, turns: Sequence[Turn]) -> list[PlayedCall]:
    """The phone calls among `turns`; the actions are taken once more to hear the answers in other words."""
    world, reasons = codec.env.world, rules.replies == "reasons"
    company, demands = world.companies[task.company_id], world.demands_of(task)
    csr = CsrSimulator(company, demands, f"{task.task_id}/anew", reasons=reasons)
    episode = PhoneEpisode(world, task, rules, evaluation_seed(task.task_id), csr=csr)
    anew = [episode.step(turn.action) for turn in turns]
    examples = codec.examples(task.task_id, task.request, turns, "phone")
    other_words = [text for text, turn in zip(anew, turns, strict=True) if turn.tool == PHONE]
    return [PlayedCall(caller, task.split, *pair) for pair in zip(examples, other_words, strict=True)]


def reply_rows(subject: Subject) -> list[dict]:
    """One row per model and call: see `lfo.lab.inspect.in_words` and `teacher_forced`."""
    calls, rows, p = played_calls(subject), [], subject.player
    examples = [call.example for call in calls]
    read = [as_read(one, p.codec, p.coupling) for one in examples]
    for model, adapter in ((TRAINED, subject.adapter), (UNTRAINED, BASE)):
        asked = Plain(AdapterLayout((adapter,), (adapter,)))
        asked.informed = p.coupling.informed
        scores = teacher_forced(subject.models[model], read)
        predictions = in_words(inspect_replies(p.engine, p.codec, examples, asked))
        for call, score, prediction in zip(calls, scores, predictions, strict=True):
            del prediction["fields_right"]
            prediction |= {"right": int(prediction["right"]), "said_anew": spoken(call.said_anew)}
            rows.append({"model": model, "caller": call.caller, "split": call.split} | prediction | score)
    return rows


@torch.inference_mode()
def teacher_forced(model: PreTrainedModel, examples: Sequence[Encoded]) -> list[dict]:
    """Per example: `tokens` of the reply, closing tag included, `tokens_right` by arg-max, and their `nats`, summed.

    Every token is predicted from the true ones before it. nats: cross-entropy, so exp(nats / tokens) is the perplexity.
    """
    scores = []
    for example in examples:
        tokens = torch.tensor([[*example.prompt, *example.reply]], device=model.device)
        targets = tokens[0, len(example.prompt) :]
        logits = model(tokens, logits_to_keep=len(targets) + 1).logits[0, :-1].float()
        nats = torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        hits = int((logits.argmax(-1) == targets).sum())
        scores.append({"tokens": len(targets), "tokens_right": hits, "nats": round(nats, 4)})
    return scores


# --- rules and confidence --------------------------------------------------------------------


def rule_rows(subject: Subject, samples: int) -> list[dict]:
    """One row per call on the ways of a split's tasks; what is answered is written as `gist` does.

    task_id: the first task on whose way the call is; the same call is asked about once. variation: of the company;
    circumstances: how many the request speaks of.
    greedy: what the greedy reply means. answer: what most of `samples` replies mean, sampled at temperature 1 (the
    earliest of several); confidence: the share that means it.
    other: another department of the company that would answer something else, "" where there is none. If that is
    called instead, other_called: the greedy reply means what it would say; other_wanted: it still means what the
    department would that the user needs.
    """
    knowledge, rows = subject.player.env.knowledge, []
    for split in SPLITS:
        steps = knowledge.steps(split)
        others = [_another(subject.world, knowledge, step) for step in steps]
        greedy = _gists(subject, [step.question for step in steps])
        drawn = _gists(subject, [step.question for step in steps for _ in range(samples)], 1.0)
        swapped = _gists(subject, [other.question for other in others])
        for i, (step, other) in enumerate(zip(steps, others, strict=True)):
            answer, count = Counter(drawn[i * samples : (i + 1) * samples]).most_common(1)[0]
            kind, said = subject.world.variation(step.company_id), circumstances_in(step.question.request)
            rows.append(
                {"split": split, "task_id": step.task_id, "company_id": step.company_id}
                | {"department": step.department, "variation": kind, "circumstances": len(said)}
                | {"truth": gist(step.truth), "greedy": greedy[i], "answer": answer, "confidence": count / samples}
                | {"other": other.department if other != step else ""}
                | {"other_called": int(swapped[i] == gist(other.truth))}
                | {"other_wanted": int(swapped[i] == gist(step.truth))}
            )
    return rows


def _gists(subject: Subject, asked: Sequence[Question], temperature: float = 0.0) -> list[str]:
    return [gist(text) for text in subject.predict(asked, temperature)]


def _another(world: World, knowledge: PhoneKnowledge, step: Step) -> Step:
    """The same request with a call to the first department that would answer something else; or the step itself."""
    for department in world.companies[step.company_id].departments:
        question = dataclasses.replace(step.question, call=phone_call(department.phone))
        truth = knowledge.truth(question)
        if gist(truth) != gist(step.truth):
            return dataclasses.replace(step, department=department.name, question=question, truth=truth)
    return step


# --- hand-written situations -----------------------------------------------------------------


def situation_rows(subject: Subject) -> list[dict]:
    """One row per situation, greedy; of a run in their `WORLD`."""
    reasons = subject.player.env.rules.replies == "reasons"
    staged, rows = [stage(subject.world, situation, reasons) for situation in SITUATIONS], []
    predictions = subject.predict([question for question, _ in staged])
    for s, (_, said), predicted in zip(SITUATIONS, staged, predictions, strict=True):
        department, _, gave = s.call.partition(": ")
        about = {"situation": s.name, "company": s.company, "department": department, "gave": gave}
        found = {"expected": s.expected, "predicted": gist(predicted), "right": int(gist(predicted) == s.expected)}
        rows.append({**about, **found, "said": spoken(said), "words": spoken(predicted)})
    return rows
