"""A classifier made for the phone world: which fields will be demanded, and is the caller sent elsewhere?

The strongest cheap control of a world model. It is told what a field, a department and an industry are, where a world
model only reads sentences: one yes or no for every field, and a choice among departments, from the words of the
request within the industry, the department within the industry, and the company. Fields are learned from calls with
empty hands alone: who hands something over had a reason to, so that the other calls are no fair sample, and whether
somebody has served the caller says where callers are sent, not what is demanded. Its answers are put into words as
CSRs do.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable, Sequence

from lfo.envs.phone.phrasings import SITUATION_STATUS, read_reply, say
from lfo.envs.phone.tools import PHONE
from lfo.envs.phone.vocabulary import FIELDS, circumstances_in
from lfo.protocols import Question
from lfo.types import Example

Place = tuple[str, str, str, bool]  # company_id, industry, department, whether anybody has served the caller


class PhoneClassifier:
    """See `lfo.protocols.Teller`. kind: linear (logistic regression on words), boosted (gradient-boosted trees
    on words) or additive (logistic regression that is told, instead of the words, which circumstances they mean).

    place: where a question's call goes to; None for a number that nobody has.
    """

    def __init__(self, kind: str, place: Callable[[Question], Place | None]):
        self.kind, self.place = kind, place
        self.heard: dict[Example, None] = {}
        self._models: tuple | None = None

    def hear(self, examples: Sequence[Example]) -> None:
        phone = [e for e in dict.fromkeys(examples) if e.call.tool == PHONE and e not in self.heard]
        new = [e for e in phone if self.place(e.question)]
        self.heard |= dict.fromkeys(new)
        self._models = None if new else self._models

    def answer(self, question: Question) -> str | None:
        where = self.place(question)
        if not self.heard or where is None:
            return None
        if self._models is None:
            self._models = self._fit()
        sends, asks = self._models
        rng, department = random.Random(f"classifier/{question.request}/{where}"), where[2]
        status, _, other = sends(self._features(question, served=True))["sent"].partition(" ")
        demands = asks(self._features(question))
        demanded = [field for field, asked in demands.items() if asked]
        if status:
            situation, slots = status, {"other": other}
        elif not demands:
            return None
        else:
            situation, slots = ("missing", {"fields": demanded}) if demanded else ("success", {})
        message = say(rng, situation, False, dept=department, **slots)
        return json.dumps({"status": SITUATION_STATUS[situation], "message": message})

    def _features(self, question: Question, served: bool = False) -> dict[str, float]:
        """What a call is predicted from; served: also from whether anybody has served the caller."""
        company, industry, department, after = self.place(question)
        request, there = question.request, f"{industry} {department}"
        told = circumstances_in(request) if self.kind == "additive" else re.findall(r"\w+", request.lower())
        names = [company, f"{company} {department}", *[f"{there} {after}"] * served]
        names += [f"{industry}: {word}" for word in told]
        # Regression is penalised less for what a department of a trade usually demands than for what one company does.
        return {there: 2.0, **dict.fromkeys(names, 1.0)}

    def _fit(self) -> tuple:
        meant = {e: read_reply(e.reply) for e in self.heard}
        sent = {e: _sent(status, others) for e, (status, _, others) in meant.items()}
        sends = self._learn([self._features(e.question, served=True) for e in sent], {"sent": list(sent.values())})
        asked = [e for e in self.heard if not sent[e] and not e.call.arguments["auth_info"]]
        told = [e for e in asked if meant[e][0] in ("auth_failed", "success")]
        demands = {field: [field in meant[e][1] for e in told] for field in FIELDS}
        return sends, self._learn([self._features(e.question) for e in told], demands)

    def _learn(self, known: Sequence[dict[str, float]], targets: dict[str, list]) -> Callable:
        """Predicts every target from features, a model for each; none where nothing is known."""
        from sklearn.dummy import DummyClassifier
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.feature_extraction import DictVectorizer
        from sklearn.linear_model import LogisticRegression

        def model(values: list):
            if len(set(values)) < 2:
                return DummyClassifier()
            if self.kind != "boosted":
                return LogisticRegression(C=10.0, max_iter=500)
            # Without a penalty leaves of few examples diverge: what was learned is then not known. Features have two
            # values, for which two bins do: 255 give the same trees, more slowly.
            return HistGradientBoostingClassifier(
                max_iter=50, max_bins=2, min_samples_leaf=3, l2_regularization=0.1, random_state=0
            )

        if not known:
            return lambda features: {}
        encoder = DictVectorizer(sparse=self.kind != "boosted")
        rows = encoder.fit_transform(known)
        models = {name: model(values).fit(rows, values) for name, values in targets.items()}

        @functools.cache
        def predict(features: tuple[tuple[str, float], ...]) -> dict:
            row = encoder.transform([dict(features)])
            return {name: model.predict(row)[0] for name, model in models.items()}

        return lambda features: predict(tuple(features.items()))  # rollouts of a group ask the same


def _sent(status: str, others: frozenset[str]) -> str:
    """Where a reply sends the caller: the situation and the department; "" for nowhere."""
    situation = {"routing_violation": "routing", "wrong_department": "wrong_department"}.get(status)
    return f"{situation} {min(others)}" if situation and others else ""
