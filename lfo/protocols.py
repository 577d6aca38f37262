"""The seams of the house: what an environment, an engine, an objective and a coupling must be able to do.

Whoever adds one of them implements the protocol and names it where it is chosen (`lfo/envs/`, `make_engine`,
`make_objective`, `make_coupling`); nothing else in the core names it. `tests/toy.py` has an environment of thirty lines
that goes through rollout, learning, evaluation and resume.

A rollout is a Python generator, its `Script`: whenever it needs text from a model it yields prompts and is sent their
completions, and `lfo.rollout.play` keeps the engine busy with the prompts of all of them.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lfo.types import (
    Action,
    Attempt,
    Call,
    Example,
    Feedback,
    Outcome,
    Question,
    Rollout,
    Sample,
    StopReason,
    Task,
    Turn,
)

if TYPE_CHECKING:
    from lfo.envs.base import Tool
    from lfo.learn.objectives import LossSum, PolicyTokens, Scores
    from lfo.rollout.engine import Completion, Prompt
    from lfo.rollout.play import Row


Script = Generator["list[Prompt]", "list[Completion]", None]
Answering = Callable[[Sequence[Question]], list[str]]  # by whoever predicts replies, or remembers them


# --- worlds ----------------------------------------------------------------------------------


class Environment(Protocol):
    """A world to act in. Draws everything from the seeds it is given."""

    system: str  # what a chat model is told at the beginning
    tools: Mapping[str, Tool]
    knowledge: Knowledge | None  # None: there is nothing to model

    def tasks(self, split: str) -> list[Task]:
        """The tasks of a split, in data order; a split that does not exist has none."""

    def episode(self, task: Task, seed: int, responder: Responder | None = None) -> Episode:
        """A new episode; same task and seed, same episode. responder: answers in the place of those who know."""


class Episode(Protocol):
    """One attempt at a task, used once."""

    request: str  # what the agent reads first
    turns: list[Turn]
    stop: StopReason | None  # None while it goes on

    def step(self, action: Action) -> str:
        """Take an action; returns what the agent reads next, "" for nothing. Never raises on what an action says.

        Raises:
            RuntimeError: the episode is over.
        """

    def cut(self) -> None:
        """End the episode because its token budget is used up."""

    def outcome(self) -> Outcome:
        """How it went, once it is over."""

    def close(self) -> None:
        """Give back what it holds. Called once, also when the episode is given up."""


class Responder(Protocol):
    """Answers in the place of an environment, as a world model does in dreams."""

    def heard(self, replies: Sequence[str]) -> None:
        """What was imagined as answers to the call that comes next."""


class Teller(Protocol):
    """Makes something of what was heard, without a language model."""

    def hear(self, examples: Sequence[Example]) -> None:
        """What was answered; what was heard before is heard once."""

    def answer(self, question: Question) -> str | None:
        """What may be answered; None where it cannot tell."""


class Knowledge(Protocol):
    """What a world model of an environment is told, asked and taught."""

    # `world_model.predict` -> the tools whose answers are learned; those of the smallest set tell nothing of a user's.
    learned: Mapping[str, tuple[str, ...]]
    hint: str  # how a chat model is told what would be answered, with a {source} and a {reply} in it

    def state(self, question: Question, dropped: int = 0) -> str:
        """What is known before a call, in words; the oldest `dropped` actions are left out."""

    def intention(self, turns: Sequence[Turn]) -> Blank | None:
        """The call whose blank the policy fills in to say what it means to do; None: now is not the moment."""

    def question(self, turns: Sequence[Turn], filled: str) -> Call | None:
        """The call whose answer is to be noted, from what the policy filled in; None: there is none."""

    def supposed(self, turns: Sequence[Turn], call: Call, reply: str) -> tuple[Turn, ...]:
        """The turns from which one would go on if all were done that the reply to the call asks for."""

    def feedback(self, turns: Sequence[Turn]) -> list[Feedback]:
        """What an attempt with these turns may tell the next one, by what was said in it alone; nothing personal."""

    def impersonal(self, turns: Sequence[Turn]) -> list[Turn]:
        """The turns with nothing personal left in them."""

    def hindsight(self, turns: Sequence[Turn]) -> tuple[int, Call] | None:
        """Which turn would have had to be which call, by what was heard in an episode; None where nothing tells."""

    def truth(self, question: Question) -> str:
        """What would really be answered. Reads what is hidden: an upper bound for whoever has to find it out."""

    def cases(self, question: Question) -> tuple[Hashable, ...]:
        """What a question is a case of, from the narrowest to the widest; none, where its answer tells only a part.

        For whoever remembers instead of learning.
        """

    def general(self, examples: Sequence[Example]) -> list[Example]:
        """Those whose answer anybody would hear who asks the same: for whoever remembers instead of learning."""

    def words(self, question: Question) -> str:
        """What tells a question from others, in words: for whoever looks for similar ones."""

    def classifier(self, kind: str) -> Teller:
        """Somebody made for this environment: the classifiers linear, boosted and additive; or grammar, who is told how
        everything is said here."""

    def responder(self, task: Task, agreement: float) -> Responder:
        """Who answers when a task is dreamt. agreement: share of the imagined replies that must say success."""

    def is_dreamt(self, action: Action) -> bool:
        """Whether it is the responder that answers this action in a dream."""

    def meaning(self, reply: str) -> Hashable:
        """What a reply says, without its wording."""

    def anonymise(self, example: Example, rng: random.Random) -> tuple[str, list[Turn], Call]:
        """Request, turns and call of an example with nothing left in them that only its own company has."""

    def disguise(self, task_id: str, rng: random.Random) -> Callable[[str], str]:
        """How any text of an attempt at a task is rewritten so that nothing is left that only its own company has; the
        same is rewritten alike everywhere."""

    def examine(self, ask: Answering, split: str, most: int | None = None) -> dict[str, float]:
        """How much of what is hidden in a split a world model can tell, which `ask` asks; metrics by name.

        most: only the split's first tasks, so many.
        """


@dataclasses.dataclass(frozen=True)
class Blank:
    """A call with a value that the policy is asked for: the text of `call` up to `value` is put into its mouth."""

    call: Call
    value: str


# --- models ----------------------------------------------------------------------------------


class Engine(Protocol):
    """Generates with several adapters of one base; `lfo.types.BASE` names the base without any."""

    generated_tokens: int  # since construction, for tokens/s

    def load(self, adapters: Mapping[str, Path]) -> None:
        """Use these peft folders from now on; each version of an adapter has a folder of its own. Ends all sessions."""

    def submit(self, prompt: Prompt) -> int:
        """Ask for a continuation; returns a ticket. Raises UnknownAdapter."""

    def ready(self) -> list[tuple[int, Completion]]:
        """Work until at least one continuation is done; [] where nothing was asked for."""

    def end_session(self, session: Hashable) -> None:
        """Forget what was kept for a session."""

    def sleep(self) -> None:
        """Give accelerator memory to the learner; the next `load` or `submit` takes it back."""


@dataclasses.dataclass(frozen=True)
class AdapterLayout:
    """Which LoRA adapters a run trains.

    names: "policy", "world_model" where it has an adapter of its own, further members of an ensemble of those
    ("world_model_2", ...), and `AVERAGE` where that of the policy teaches.
    listeners: those that learn replies; (): there is no world model. listener: the first of them, or None.
    stacked: the policy acts through both adapters added.
    """

    names: tuple[str, ...]
    listeners: tuple[str, ...]
    stacked: bool = False

    @property
    def listener(self) -> str | None:
        return self.listeners[0] if self.listeners else None


class Objective(Protocol):
    """What the policy learns from outcomes.

    grouped: whether it compares the rollouts of a group, so that it learns nothing from groups of one mind; else every
    rollout counts by itself, and the rollouts of a step are dealt out anew in each pass over them.
    uses_values: whether there is a value head. state: what it remembers from step to step, for checkpoints.
    """

    grouped: bool
    uses_values: bool
    state: dict[str, float]

    def assign(
        self, groups: Sequence[Sequence[Rollout]], values: Sequence[Sequence[float]] | None = None
    ) -> list[Sample]:
        """Per-token advantages (and returns) of the rollouts of some groups, in their order, scouts left out.

        values: what the value head says before each of a rollout's actions' tokens, rollout by rollout, likewise.
        """

    def loss(self, scores: Scores, batch: PolicyTokens) -> LossSum:
        """The loss over the action tokens of a micro-batch."""


class Coupling(Protocol):
    """How a world model, or whatever else was observed, reaches the policy."""

    layout: AdapterLayout
    rewarded: bool  # whether the policy learns from outcomes
    predicts: bool  # whether the listener of the layout is a world model
    recall: Answering | None  # what a memory answers; None: there is no memory
    votes: int  # replies of each listener to a question, of which one is greedy: what most of all mean is its answer

    def waves(self, task: Task, group: int, seed: int, size: int) -> list[list[Attempt]]:
        """The attempts of a group; a wave begins when the one before it has ended."""

    def before_turn(self, row: Row) -> Script:
        """Before the policy acts: may ask models, set notes into the row's context, or end its episode."""

    def before_step(self, row: Row, action: Action) -> Script:
        """After the policy has said an action, before the environment takes it."""

    def examples(self, row: Row, predict: str) -> list[Example]:
        """What the listener can learn from a rollout that has ended; predict: a key of `Knowledge.learned`."""

    def hear(self, examples: Sequence[Example]) -> None:
        """What was answered to the calls of a step; after a resume, of all steps so far."""

    def informed(self, question: Question, but: str = "") -> Question:
        """The question as its world model is asked it; but: a task of which it must not be told."""

    def practice(self, step: int, tasks_seen: int) -> list[list[list[Attempt]]]:
        """Groups (each in waves) to be played besides the sampled ones, for the policy alone."""

    def responder(self, task: Task) -> Responder:
        """Who answers in an attempt of `practice` that is dreamt."""

    def views(self, rollout: Rollout, sample: Sample | None) -> list[Sample]:
        """The contexts in which a rollout is learned from; sample: how the objective would, None: not at all."""

    def corrected(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Successes of a step that are learned again, in this step and in later ones, as the policy is to remember."""

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """What is logged of a step's rollouts, scouts left out."""
