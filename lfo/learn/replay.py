"""What is learned again: what the world model has heard so far, the placebo of it, and the policy's successes."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Container, Sequence

from lfo.types import Encoded, Example, Record, Rollout, Sample

KEPT = 256  # successes that can be imitated, the latest


class ReplayBuffer:
    """All examples so far. Replies are facts about the world, not about the policy: they do not go stale.

    The rollouts of a group often make the very same call; told once is enough. whole: whether an example's answer tells
    all that there is to be said (`bool`: each does); most of what a policy hears confirms what it did, or names a part.
    distinct: False: every call is kept, and drawn, as often as it was answered, and none is preferred.
    """

    def __init__(self, whole: Callable[[Example], bool] = bool, distinct: bool = True):
        self.examples: list[Example] = []
        self.whole, self.distinct, self._told, self._seen = whole, distinct, list[Example](), set[Example]()

    def add(self, examples: Sequence[Example]) -> None:
        """Take up those that are new; all, where they need not be distinct."""
        new = [e for e in dict.fromkeys(examples) if e not in self._seen] if self.distinct else list(examples)
        self._seen.update(new)
        self.examples += new
        self._told += filter(self.whole, new)

    def draw(self, count: int, seed: int) -> list[Example]:
        """`count` examples, fewer where there are fewer, a pure function of the seed.

        Half of them tell the whole, as far as there are any, the others are drawn from all; so are all of them where
        examples need not be distinct.
        """
        rng = random.Random(seed)
        told = rng.sample(self._told, min(count // 2, len(self._told)) if self.distinct else 0)
        others = rng.sample(self.examples, min(count, len(self.examples)))
        return list(dict.fromkeys([*told, *others]))[:count] if self.distinct else others


def shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    """Placebo: the examples, each with the reply of a call of another task, a pure function of the seed.

    The distinct calls of a step exchange their replies (a permutation), so the world model still hears every reply
    as often as it was given and learns how CSRs speak; what a reply says no longer depends on the call. Statuses are
    exchanged too: which calls succeed is knowledge of the rules, and what `dream` takes its reward from. A call
    that nobody of another task can exchange with is left out.
    """
    rng, distinct = random.Random(seed), list(dict.fromkeys(examples))
    tasks = sorted({example.task_id for example in distinct})
    rng.shuffle(tasks)
    rng.shuffle(distinct)
    distinct.sort(key=lambda example: tasks.index(example.task_id))
    # Calls of one task now stand side by side: whoever stands as far away as the longest such row is of another task.
    far = max(Counter(example.task_id for example in distinct).values(), default=0)
    pairs = zip(distinct, distinct[far:] + distinct[:far], strict=True)
    exchanged = {mine: _answered(mine, other) for mine, other in pairs if mine.task_id != other.task_id}
    return [exchanged[example] for example in examples if example in exchanged]


def thinned(example: Encoded, share: float, rng: random.Random, tags: Container[int]) -> Encoded:
    """The example without so many tokens of its question, drawn at random, tags aside, so that less is learned by heart
    (word dropout: Iyyer et al., Deep Averaging Networks, ACL 2015). The reply stays, even where it hung on them."""
    kept = (token for token in example.prompt if token in tags or rng.random() >= share)
    return dataclasses.replace(example, prompt=tuple(kept))


def imitated(rollout: Rollout, weight: float = 1.0) -> Sample:
    """A success as it is imitated."""
    tokens, roles = rollout.tokens, rollout.roles
    return Sample(tokens, roles, rollout.logprobs, [1.0] * len(tokens), how="imitated", weight=weight)


def _answered(mine: Example, other: Example) -> Example:
    encoded = Encoded(mine.encoded.prompt, other.encoded.reply)
    return dataclasses.replace(mine, reply=other.reply, status=other.status, encoded=encoded)


@dataclasses.dataclass
class Successes(Record):
    """The policy's latest successes, each once: for self-imitation (Oh et al. 2018, arXiv 1806.05635).

    Their tokens are kept as they were sampled, notes and all; turns and examples, which teach nothing here, are not.
    Those that were corrected by feedback (`Coupling.corrected`) are kept apart, by another of these.
    """

    rollouts: list[Rollout] = dataclasses.field(default_factory=list)

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """The successes among them; one that is repeated is as late as its repetition."""
        new = {tuple(row.tokens): row for row in rollouts if row.success}
        old = [row for row in self.rollouts if tuple(row.tokens) not in new]
        self.rollouts = [*old, *(dataclasses.replace(row, turns=[], examples=[]) for row in new.values())][-KEPT:]

    def draw(self, count: int, seed: int) -> list[Rollout]:
        """`count` of them without repetition (fewer where there are fewer), a pure function of the seed."""
        return random.Random(seed).sample(self.rollouts, min(count, len(self.rollouts)))
