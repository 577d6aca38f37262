"""Feedback-guided DAPO: later rollouts of a group read what went wrong in earlier ones; the policy is to do without.

`Guided` stands around any other coupling. It deals the rollouts of a group out in waves, and sets what the failed
attempts of the earlier waves were told into the context of the later ones, after whatever the inner coupling notes. A
teacher (the policy, its running average, or the frozen base) plays these; `feedback.learn` says what the policy makes
of them. Closest: ERL (arXiv 2602.13949), RLTF-SD (arXiv 2602.02482), SDPO (arXiv 2601.20802); docs/feedback.md says
what differs.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Generator, Sequence

from lfo.config import RunConfig, derive_seed
from lfo.couplings.imagine import REPLY_TOKENS
from lfo.couplings.noted import without
from lfo.protocols import Coupling, Question, Script
from lfo.rollout.engine import Prompt
from lfo.rollout.play import Row, Waves
from lfo.text.codec import Codec
from lfo.types import AVERAGE, BASE, Example, Feedback, Role, Rollout, Sample, Task, Turn, by_group

SOURCE = "earlier attempt"  # who says a note on one
READ = 5  # turns of an attempt, the last ones, that a model reads before it writes feedback
WRITTEN = 100  # tokens of that, at most

Told = Generator[list[Prompt], list, list[Feedback]]  # a script whose result is feedback


class Guided:
    """A `Coupling` around another one; what it has no say in is the other one's."""

    def __init__(self, config: RunConfig, codec: Codec, inner: Coupling):
        self.config, self.feedback, self.codec, self.inner = config, config.feedback, codec, inner
        average = (AVERAGE,) if self.feedback.teacher == AVERAGE else ()
        self.layout = dataclasses.replace(inner.layout, names=inner.layout.names + average)
        self.rewarded, self.predicts, self.recall = inner.rewarded, inner.predicts, inner.recall
        self.votes = inner.votes
        self.before_step, self.examples = inner.before_step, inner.examples
        self.practice, self.responder, self.informed = inner.practice, inner.responder, inner.informed
        self.heard: dict[Example, list[Feedback]] = {}  # what failed, for the control

    # --- sampling -----------------------------------------------------------------------------

    def waves(self, task: Task, group: int, seed: int, size: int) -> Waves:
        """Scouts and first attempts, then `feedback.wave` rollouts at a time; all at once without feedback."""
        attempts = [attempt for wave in self.inner.waves(task, group, seed, size) for attempt in wave]
        if not self.guides(group):
            return [attempts]
        scouts = [attempt for attempt in attempts if attempt.scout]
        played = [attempt for attempt in attempts if not attempt.scout]
        played = [dataclasses.replace(attempt, position=i) for i, attempt in enumerate(played, start=1)]
        first, rest = played[: self.feedback.start - 1], played[self.feedback.start - 1 :]
        wave = self.feedback.wave or max(1, len(rest))
        return [[*scouts, *first], *(rest[i : i + wave] for i in range(0, len(rest), wave))]

    def guides(self, group: int) -> bool:
        """Whether this group, the task with that number of the run, gets feedback; those that are dreamt get none."""
        left = 1 - group / self.config.task_budget if self.feedback.decay else 1
        drawn = random.Random(derive_seed(self.config.seed, "feedback", group)).random()
        return group >= 0 and drawn < self.feedback.share * left

    def before_turn(self, row: Row) -> Script:
        """On the first turn, what there is to tell, and who acts; once the inner coupling may note, the telling. Where
        nothing fits into the trajectory by then, the teacher plays on unread, which still counts as guided."""
        if row.told is None:
            told = yield from self.lessons(row)
            row.told = [self.codec.note(SOURCE, self.codec.encode(one.text)) for one in told]
            if row.told or (self.feedback.source == "none" and failures(row)):
                row.actor = self.feedback.actor
        yield from self.inner.before_turn(row)
        if row.told and row.episode.stop is None and self.codec.env.knowledge.intention(row.episode.turns):
            row.told = self._fitting(row.told, len(row.tokens))
            tell(row)

    def _fitting(self, notes: list[list[int]], read: int) -> list[list[int]]:
        """The last notes that take no more than half of what is left of a trajectory after so many tokens."""
        room = max(0, self.config.rollout.max_tokens - read) // 2
        return next(notes[i:] for i in range(len(notes) + 1) if sum(map(len, notes[i:])) <= room)

    def lessons(self, row: Row) -> Told:
        """What the attempts that failed before this one have to tell, by `feedback.accumulate`."""
        found, others = [], iter(self._of_others(row))
        for one in failures(row):
            if self.feedback.source == "shuffled":
                said = [*itertools.islice(others, 1)]
            else:
                said = yield from self._of_attempt(row.episode.request, one.turns)
            found += [dataclasses.replace(record, attempt=one.position) for record in self._within(said)]
        return accumulated(found, self.feedback.accumulate)

    def _of_attempt(self, request: str, turns: Sequence[Turn]) -> Told:
        source, found = self.feedback.source, []
        if source == "imagined":
            turns = yield from self._imagined(request, turns)
        if source in ("rules", "both", "imagined"):
            found = self.codec.env.knowledge.feedback(turns)
        if source in ("model", "both"):
            found += yield from self.written(request, turns)
        return found

    def _within(self, found: Sequence[Feedback]) -> list[Feedback]:
        """As many of one attempt as fit into `feedback.max_tokens`, whole ones, from the first on."""
        totals = itertools.accumulate(len(self.codec.encode(one.text)) for one in found)
        return [one for one, total in zip(found, totals, strict=True) if total <= self.feedback.max_tokens]

    def _imagined(self, request: str, turns: Sequence[Turn]) -> Generator[list[Prompt], list, list[Turn]]:
        """The turns as the world model would have answered them: those of the smallest set of tools that one may learn.
        What a user answers stays, and with it what must not be repeated."""
        codec, tools = self.codec, min(self.codec.env.knowledge.learned.values(), key=len)
        asked = [i for i, turn in enumerate(turns) if turn.tool in tools]
        asks = [self.informed(Question(request, tuple(turns[:i]), turns[i].action)) for i in asked]
        listener, end = self.inner.layout.listener, codec.reply_end_id
        replies = yield [Prompt(question, listener, REPLY_TOKENS, end, 0.0) for question in map(codec.question, asks)]
        said = dict(zip(asked, (codec.reply_text(reply.tokens) for reply in replies), strict=True))
        return [dataclasses.replace(turn, observation=said.get(i, turn.observation)) for i, turn in enumerate(turns)]

    def written(self, request: str, turns: Sequence[Turn]) -> Told:
        """What the model without adapters writes who has read the last turns, with nothing personal in them."""
        prompt, end = self.codec.critique(request, self.codec.env.knowledge.impersonal(turns)[-READ:], SOURCE)
        (said,) = yield [Prompt(prompt, BASE, min(WRITTEN, self.feedback.max_tokens), end, 0.0)]
        text = self.codec.decode([i for i in said.tokens if i != end]).partition("<|")[0].strip()
        return [Feedback("written", "", text, 0.0)] if text else []

    def _of_others(self, row: Row) -> list[Feedback]:
        """The control: of the calls that went wrong at other tasks in earlier steps, one for each failed attempt, while
        there are any; nothing was heard with another source.

        That is less than rules tell, which have a record for every call and form of an attempt.
        """
        mine = row.attempt.task.task_id
        others = [one for example, found in self.heard.items() if example.task_id != mine for one in found]
        rng = random.Random(derive_seed(row.attempt.seed, "shuffled", row.attempt.position))
        return rng.sample(others, min(len(failures(row)), len(others)))

    def hear(self, examples: Sequence[Example]) -> None:
        self.inner.hear(examples)
        for example in examples if self.feedback.source == "shuffled" else ():
            found = self.codec.env.knowledge.feedback([Turn(example.call, example.reply, example.status)])
            self.heard.setdefault(example, [one for one in found if one.score < 1])

    # --- learning -----------------------------------------------------------------------------

    def views(self, rollout: Rollout, sample: Sample | None) -> list[Sample]:
        """By `feedback.learn`; rollouts that read no feedback as the inner coupling has it.

        The replies that are learned in passing stay in the context that was sampled in.
        """
        views, learn = self.inner.views(rollout, sample), self.feedback.learn
        if not rollout.guided:
            return views + (self._taught(rollout) if learn == "kl" and self.guides(rollout.group) else [])
        if learn == "sampled":
            return views
        listened = [dataclasses.replace(view, advantages=None) for view in views if view.heard]
        if sample is None or learn == "kl" or (learn == "successes" and not rollout.success):
            return listened
        how = "imitated" if learn == "successes" else learn
        return listened + [dataclasses.replace(without(view, Role.FEEDBACK, how), heard=None) for view in views]

    def _taught(self, rollout: Rollout) -> list[Sample]:
        """A failed attempt beside itself with feedback on it, where that would have stood: SDPO (arXiv 2601.20802)."""
        knowledge, turns, accumulate = self.codec.env.knowledge, rollout.turns, self.feedback.accumulate
        told = [] if rollout.success else self._within(knowledge.feedback(turns))
        at = next((i for i in range(len(turns)) if knowledge.intention(turns[:i])), None)
        if at is None:
            return []
        acts = Role.ACTION
        begins = [t for t, role in enumerate(rollout.roles) if role == acts and t and rollout.roles[t - 1] != acts]
        cut, none = begins[at] - len(self.codec.opener), [0.0] * len(rollout.tokens)
        notes = [self.codec.note(SOURCE, self.codec.encode(one.text)) for one in accumulated(told, accumulate)]
        note = [i for one in self._fitting(notes, cut) for i in one]
        mine = Sample(rollout.tokens, rollout.roles, rollout.logprobs, none)
        tokens = [*rollout.tokens[:cut], *note, *rollout.tokens[cut:]]
        roles = [*rollout.roles[:cut], *[int(Role.FEEDBACK)] * len(note), *rollout.roles[cut:]]
        nothing = [0.0] * len(tokens)
        return [dataclasses.replace(mine, taught=Sample(tokens, roles, nothing, nothing))] if note else []

    def corrected(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Successes with feedback, as if nobody had told them."""
        found = []
        for one in rollouts if self.feedback.updates else ():
            if one.guided and one.success:
                bare = without(Sample(one.tokens, one.roles, one.logprobs, None), Role.FEEDBACK, "imitated")
                found.append(dataclasses.replace(one, tokens=bare.tokens, roles=bare.roles, logprobs=bare.old_logprobs))
        return found

    # --- what is logged -----------------------------------------------------------------------

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """See docs/metrics.md."""
        failed, guided = [one for one in rollouts if not one.success], [one for one in rollouts if one.guided]
        told = [sum(role == Role.FEEDBACK for role in one.roles) for one in rollouts]
        found = [self.codec.env.knowledge.feedback(one.turns) for one in failed]
        kinds = Counter(kind for records in found for kind in {record.kind for record in records if record.score < 1})
        places = sorted({one.position for one in rollouts if one.position})
        shares = {
            "first_try_success": [one.success for one in rollouts if one.position < self.feedback.start],
            "feedback_success": [one.success for one in guided],
            # nothing fitted, or nothing was said
            "feedback_unread": [Role.FEEDBACK not in one.roles for one in guided],
            **{f"success_at_{k}": [one.success for one in rollouts if one.position == k] for k in places},
            # of the groups that got feedback, those in which an attempt with it succeeded
            "recovery": [any(one.success for one in group) for group in by_group(guided).values()],
        }
        return {
            **self.inner.metrics(rollouts),
            **{name: sum(found) / len(found) for name, found in shares.items() if found},
            "feedback_tokens_per_rollout": sum(told) / max(1, len(told)),
            "tokens_of_the_longest": max((len(one.tokens) for one in rollouts), default=0),
            **{f"failed_{kind}": count / len(failed) for kind, count in sorted(kinds.items())},
        }


def failures(row: Row) -> list[Rollout]:
    """The attempts of the row's group, before it, that failed."""
    return [one for one in row.earlier if not (one.scout or one.success)]


def tell(row: Row) -> None:
    """Set what a row is to be told into its context."""
    for note in row.told:
        row.add(note, Role.FEEDBACK)
    row.told = []


def accumulated(found: Sequence[Feedback], how: str) -> list[Feedback]:
    """Of the feedback on several attempts, in their order, what is told. The same words are told once, in the place of
    the first.

    all: everything; last: of the last attempt that has any; summary: of each callee, and of each kind that is about
    nobody (malformed calls, what a model wrote), what was said last.
    """
    if how == "last":
        found = [one for one in found if one.attempt == found[-1].attempt]
    if how == "summary":
        last = {one.about or one.kind: i for i, one in enumerate(found)}
        found = [found[i] for i in sorted(last.values())]
    return list({one.text: one for one in found}.values())
