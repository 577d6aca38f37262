"""`memory`: the policy reads what may be said of a call from what was answered before, without any language model.

The controls that a learned world model has to beat, and in many worlds the better choice. `table` looks a call up by
what it is a case of (`Knowledge.cases`), the narrowest first; `backoff` does, and where nothing was heard of that, what
the call would be a case of if nothing had happened before; `nearest` takes the reply to the most similar call of
the same widest case, by TF-IDF over `Knowledge.words`; `vote` takes what most of the three nearest mean; `linear`,
`boosted` and `additive` are classifiers that the environment itself makes for what its answers mean, `grammar` is told
how everything is said there (`Knowledge.classifier`). All of them hear what holds for whoever asks
(`Knowledge.general`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from lfo.config import WorldModelConfig
from lfo.couplings.noted import Noted
from lfo.couplings.plain import ALONE, Answer
from lfo.protocols import Knowledge, Question, Teller
from lfo.text.codec import Codec
from lfo.types import Example

NEIGHBOURS = {"nearest": 1, "vote": 3}


class Memory(Noted):
    """A `Coupling` whose notes are made of what was heard."""

    source = "memory"

    def __init__(self, config: WorldModelConfig, codec: Codec):
        super().__init__(ALONE, codec, config.scouts, config.context_distillation)
        self.teller = make_teller(config.recall, codec.env.knowledge, config.reads)

    def hear(self, examples: Sequence[Example]) -> None:
        self.teller.hear(self.codec.env.knowledge.general(examples))

    def answer(self, question: Question) -> Answer:
        yield from ()  # no model is asked
        reply = self.teller.answer(question)
        return None if reply is None else self.codec.reply(reply)

    def recall(self, questions: Sequence[Question]) -> list[str]:
        """What is answered to these; "" where nothing is said."""
        return [self.teller.answer(question) or "" for question in questions]


def make_teller(recall: str, knowledge: Knowledge, reads: int = 0) -> Teller:
    """Who makes something of what was heard. reads: of so many similar calls alone, each time; 0: of all."""
    if recall in NEIGHBOURS:
        return Nearest(knowledge, NEIGHBOURS[recall])  # of similar calls these are the first
    if reads:
        return OfSimilar(recall, knowledge, reads)
    if recall in ("table", "backoff"):
        return Table(knowledge, backs_off=recall == "backoff")
    return knowledge.classifier(recall)


class Table:
    """Remembers replies by what the call was a case of. Replies that tell only a part are no case of anything.

    backs_off: of a call of which nothing was heard, in any case, it says what it would if nothing had happened before;
    also where that sends the caller to somebody who has served already.
    """

    def __init__(self, knowledge: Knowledge, backs_off: bool = False):
        self.knowledge, self.backs_off = knowledge, backs_off
        self.heard: set[Example] = set()
        self.replies: dict[Hashable, list[str]] = defaultdict(list)

    def hear(self, examples: Sequence[Example]) -> None:
        for example in examples:
            if example not in self.heard:
                self.heard.add(example)
                for case in self.knowledge.cases(example.question):
                    self.replies[case].append(example.reply)

    def answer(self, question: Question) -> str | None:
        own, first = self.knowledge.cases(question), dataclasses.replace(question, turns=())
        return self._heard((*own, *self.knowledge.cases(first)) if own and self.backs_off else own)

    def exactly(self, question: Question) -> str | None:
        """What was answered in the narrowest case."""
        return self._heard(self.knowledge.cases(question)[:1])

    def _heard(self, cases: Sequence[Hashable]) -> str | None:
        replies = next((self.replies[case] for case in cases if case in self.replies), None)
        return replies and usual(replies, self.knowledge)


class Nearest:
    """Remembers all calls that are a case of something, and answers as the most similar ones were answered: first come
    those of the same widest case, whatever had happened before."""

    def __init__(self, knowledge: Knowledge, neighbours: int):
        self.knowledge, self.neighbours = knowledge, neighbours
        self.heard: dict[Example, None] = {}  # in their order
        self._index: tuple | None = None  # of what was heard

    def hear(self, examples: Sequence[Example]) -> None:
        new = [e for e in dict.fromkeys(examples) if e not in self.heard and self.knowledge.cases(e.question)]
        self.heard |= dict.fromkeys(new)
        self._index = None if new else self._index

    def answer(self, question: Question) -> str | None:
        nearest = self.similar(question)
        return usual([example.reply for example in nearest], self.knowledge) if nearest else None

    def similar(self, question: Question, but: str = "") -> list[Example]:
        """The most similar first, none of the task `but`: by the cosine of TF-IDF vectors (Salton and Buckley 1988),
        words and pairs of words."""
        if not self.heard:
            return []
        if self._index is None:
            from sklearn.feature_extraction.text import TfidfVectorizer

            vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
            matrix = vectorizer.fit_transform(self.knowledge.words(e.question) for e in self.heard)
            self._index = vectorizer, matrix, [self._widest(e.question) for e in self.heard]
        vectorizer, matrix, widest = self._index
        likeness = (matrix @ vectorizer.transform([self.knowledge.words(question)]).T).toarray()[:, 0]
        heard, mine = list(self.heard), self._widest(question)
        likeness += [one == mine for one in widest]  # a cosine is at most 1
        ranked = (heard[i] for i in (-likeness).argsort(kind="stable") if heard[i].task_id != but)
        return list(itertools.islice(ranked, self.neighbours))

    def _widest(self, question: Question) -> tuple[Hashable, ...]:
        return self.knowledge.cases(dataclasses.replace(question, turns=()))[-1:]


class OfSimilar:
    """Answers from the most similar calls alone, as a world model that reads is given them (`Imagine.informed`)."""

    def __init__(self, recall: str, knowledge: Knowledge, reads: int):
        self.recall, self.library = recall, Nearest(knowledge, reads)

    def hear(self, examples: Sequence[Example]) -> None:
        self.library.hear(examples)

    def answer(self, question: Question) -> str | None:
        teller = make_teller(self.recall, self.library.knowledge)
        teller.hear(self.library.similar(question))
        return teller.answer(question)


def usual(replies: Sequence[str], knowledge: Knowledge) -> str:
    """The first of the replies with the most frequent meaning; of equally frequent ones, the earliest."""
    return replies[elected([knowledge.meaning(reply) for reply in replies])]


def elected(meanings: Sequence[Hashable]) -> int:
    """Which reply counts: the first that means what most do (self-consistency, arXiv 2203.11171)."""
    return meanings.index(Counter(meanings).most_common(1)[0][0])
