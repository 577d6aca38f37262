"""A classifier made for the phone world: which fields will be demanded, and is the caller sent elsewhere?

The strongest cheap control of a world model. It is told what a field, a department and an industry are, where a world
model only reads sentences: one yes or no for every field, and a choice among departments, from the words of the
request within the industry, the department within the industry, and the company. What was handed over in a call
teaches nothing about those fields. Its answers are put into words as CSRs do.
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
        encoder, sends, fields = self._models
        known = encoder.transform([self._features(question)])
        rng, department = random.Random(f"classifier/{question.request}/{where}"), where[2]
        status, other = sends(known)[0]
        if status:
            situation, slots = status, {"other": other}
        else:
            demanded = [field for field, asks in fields.items() if asks(known)[0]]
            situation, slots = ("missing", {"fields": demanded}) if demanded else ("success", {})
        message = say(rng, situation, False, dept=department, **slots)
        return json.dumps({"status": SITUATION_STATUS[situation], "message": message})

    def _features(self, question: Question) -> dict[str, bool]:
        company, industry, department, served = self.place(question)
        request = question.request
        told = circumstances_in(request) if self.kind == "additive" else re.findall(r"\w+", request.lower())
        names = [company, f"{company} {department}", f"{industry} {department}", f"{industry} {department} {served}"]
        return dict.fromkeys([*names, *(f"{industry}: {word}" for word in told)], True)

    def _fit(self) -> tuple:
        from sklearn.feature_extraction import DictVectorizer

        heard = list(self.heard)
        meant = [read_reply(e.reply) for e in heard]
        encoder = DictVectorizer(sparse=self.kind != "boosted")
        known = encoder.fit_transform([self._features(e.question) for e in heard])
        sent = [_sent(status, others) for status, _, others in meant]
        sends = self._model(known, list(range(len(heard))), sent)
        about = [i for i in range(len(heard)) if sent[i] == ("", "") and meant[i][0] in ("auth_failed", "success")]
        fields = {}
        for field in FIELDS:
            rows = [i for i in about if field not in heard[i].call.arguments["auth_info"]]
            fields[field] = self._model(known, rows, [field in meant[i][1] for i in rows])
        return encoder, sends, fields

    def _model(self, known, rows: Sequence[int], targets: Sequence) -> Callable:
        """Predicts the target from features; a constant where there is one target only."""
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LogisticRegression

        values = sorted(set(targets))
        if len(values) < 2:
            only = values[0] if values else False
            return lambda asked: [only] * asked.shape[0]
        numbers = [values.index(target) for target in targets]
        if self.kind == "boosted":
            # Without a penalty leaves of few examples diverge: what was learned is then not known (worlds 100 and 101).
            model = HistGradientBoostingClassifier(max_iter=20, min_samples_leaf=3, l2_regularization=1, random_state=0)
        else:
            model = LogisticRegression(C=10.0, max_iter=500)
        model.fit(known[rows], numbers)
        return lambda asked: [values[i] for i in model.predict(asked)]


def _sent(status: str, others: frozenset[str]) -> tuple[str, str]:
    """Where a reply sends the caller: the situation and the department; ("", "") for nowhere."""
    situation = {"routing_violation": "routing", "wrong_department": "wrong_department"}.get(status, "")
    return (situation, min(others)) if situation and others else ("", "")
