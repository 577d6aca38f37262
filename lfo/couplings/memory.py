"""`memory`: the policy reads what was answered to such a call before. Nothing is learned, everything is remembered.

The control that any learned world model has to beat, and for many worlds the better choice. `table` looks a call up by
what it is a case of (`Knowledge.cases`), the narrowest first; `nearest` takes the reply to the most similar call, by
TF-IDF over what the world model would read; `vote` takes the meaning that most of the three nearest have.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from lfo.config import WorldModelConfig
from lfo.couplings.noted import Noted
from lfo.couplings.plain import ALONE, Answer
from lfo.protocols import Question
from lfo.text.codec import Codec
from lfo.types import Example

NEIGHBOURS = {"nearest": 1, "vote": 3}


class Memory(Noted):
    """A `Coupling` whose notes are replies that were heard, to calls with empty hands."""

    source = "memory"

    def __init__(self, config: WorldModelConfig, codec: Codec):
        super().__init__(ALONE, codec, config.scouts, config.context_distillation)
        self.recall = config.recall
        self.heard: dict[Example, None] = {}  # in the order in which they came
        self.table: dict[Hashable, list[str]] = defaultdict(list)
        self._index: tuple | None = None  # of what was heard

    def hear(self, examples: Sequence[Example]) -> None:
        knowledge = self.codec.env.knowledge
        for example in examples:
            asked = Question(example.request, example.turns, example.call)
            if example in self.heard or not (cases := knowledge.cases(asked)):
                continue
            self.heard[example], self._index = None, None
            for case in cases:
                self.table[case].append(example.reply)

    def answer(self, question: Question) -> Answer:
        yield from ()  # nobody is asked
        reply = self._looked_up(question) if self.recall == "table" else self._nearest(question)
        return None if reply is None else self.codec.reply(reply)

    def _looked_up(self, question: Question) -> str | None:
        """What was meant most often in the narrowest case of which anything was heard."""
        known = [self.table[case] for case in self.codec.env.knowledge.cases(question) if case in self.table]
        return self._usual(known[0]) if known else None

    def _usual(self, replies: Sequence[str]) -> str:
        """The first of the replies with the most frequent meaning; of equally frequent ones, the first."""
        meanings = [self.codec.env.knowledge.meaning(reply) for reply in replies]
        return replies[meanings.index(Counter(meanings).most_common(1)[0][0])]

    def _nearest(self, question: Question) -> str | None:
        """By the cosine of TF-IDF vectors (Salton and Buckley 1988), words and pairs of words."""
        if not self.heard:
            return None
        if self._index is None:
            from sklearn.feature_extraction.text import TfidfVectorizer

            vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
            asked = [Question(e.request, e.turns, e.call) for e in self.heard]
            self._index = vectorizer, vectorizer.fit_transform(map(self._words, asked))
        vectorizer, matrix = self._index
        likeness = (matrix @ vectorizer.transform([self._words(question)]).T).toarray()[:, 0]
        nearest = (-likeness).argsort(kind="stable")[: NEIGHBOURS[self.recall]]
        heard = list(self.heard)
        return self._usual([heard[i].reply for i in nearest])

    def _words(self, question: Question) -> str:
        return self.codec.env.knowledge.words(question)
