"""A classifier made for the phone world: which fields will be demanded, and is the caller sent elsewhere?

The strongest cheap control of a world model. It is told what a field, a department and an industry are, where a world
model only reads sentences: one yes or no for every field, and a choice among departments, from the words of the
request within the industry, the department within the industry, and the company. Fields are learned from calls with
empty hands alone: who hands something over had a reason to, so that the other calls are no fair sample, and whether
somebody has served the caller says where callers are sent, not what is demanded. Its answers are put into words as
CSRs do.
"""

from __future__ import annotations

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
        sends, fields = self._models
        rng, department = random.Random(f"classifier/{question.request}/{where}"), where[2]
        status, other = sends(self._features(question, served=True))
        if status:
            situation, slots = status, {"other": other}
        elif not fields:
            return None
        else:
            known = self._features(question)
            demanded = [field for field, asks in fields.items() if asks(known)]
            situation, slots = ("missing", {"fields": demanded}) if demanded else ("success", {})
        message = say(rng, situation, False, dept=department, **slots)
        return json.dumps({"status": SITUATION_STATUS[situation], "message": message})

    def _features(self, question: Question, served: bool = False) -> dict[str, bool]:
        """What a call is predicted from; served: also from whether anybody has served the caller."""
        company, industry, department, after = self.place(question)
        request = question.request
        told = circumstances_in(request) if self.kind == "additive" else re.findall(r"\w+", request.lower())
        names = [company, f"{company} {department}", f"{industry} {department}"]
        names += [f"{industry} {department} {after}"] * served
        return dict.fromkeys([*names, *(f"{industry}: {word}" for word in told)], True)

    def _fit(self) -> tuple:
        meant = {e: read_reply(e.reply) for e in self.heard}
        sent = {e: _sent(status, others) for e, (status, _, others) in meant.items()}
        sends = self._model([self._features(e.question, served=True) for e in sent], list(sent.values()))
        asked = [e for e in self.heard if sent[e] == ("", "") and not e.call.arguments["auth_info"]]
        told = [e for e in asked if meant[e][0] in ("auth_failed", "success")]
        known = [self._features(e.question) for e in told]
        fields = {field: self._model(known, [field in meant[e][1] for e in told]) for field in FIELDS}
        return sends, fields if told else {}

    def _model(self, known: Sequence[dict[str, bool]], targets: Sequence) -> Callable:
        """Predicts the target from features; a constant where there is one target only."""
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.feature_extraction import DictVectorizer
        from sklearn.linear_model import LogisticRegression

        values = sorted(set(targets))
        if len(values) < 2:
            only = values[0] if values else False
            return lambda features: only
        encoder = DictVectorizer(sparse=self.kind != "boosted")
        if self.kind == "boosted":
            # Without a penalty leaves of few examples diverge: what was learned is then not known.
            model = HistGradientBoostingClassifier(
                max_iter=50, min_samples_leaf=3, l2_regularization=0.1, random_state=0
            )
        else:
            model = LogisticRegression(C=10.0, max_iter=500)
        model.fit(encoder.fit_transform(known), [values.index(target) for target in targets])
        return lambda features: values[model.predict(encoder.transform([features]))[0]]


def _sent(status: str, others: frozenset[str]) -> tuple[str, str]:
    """Where a reply sends the caller: the situation and the department; ("", "") for nowhere."""
    situation = {"routing_violation": "routing", "wrong_department": "wrong_department"}.get(status, "")
    return (situation, min(others)) if situation and others else ("", "")
