"""The user of an episode, who answers the form: willing or not, and not always right.

Knows a profile and a random stream of its own, so that what a user says never depends on how often anybody called.
Knows neither companies nor what they demand.
"""

from __future__ import annotations

import random
import string

from lfo.envs.phone.records import Profile
from lfo.envs.phone.vocabulary import ALWAYS_AVAILABLE, FIELDS

COOPERATIVE, PARTIAL, DIFFICULT = "cooperative", "partial", "difficult"
BEHAVIOURS = {COOPERATIVE: 0.7, PARTIAL: 0.2, DIFFICULT: 0.1}


class UserSimulator:
    """The user of one episode: behaviour is drawn once, before anything is asked.

    partial: every field is unavailable with probability 0.3. difficult: every field is given
    wrongly at first with probability 0.2. Fields of `vocabulary.ALWAYS_AVAILABLE` are always given,
    so that an alternative exists for whatever is unavailable.
    """

    def __init__(self, profile: Profile, seed: str):
        rng = random.Random(f"{seed}/user")
        self.behaviour = rng.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))[0]
        self.truth = dict(profile.values)
        absent = {f for f in FIELDS if rng.random() < 0.3 and f not in ALWAYS_AVAILABLE}
        garbled = {f for f in FIELDS if rng.random() < 0.2}
        self._absent = absent if self.behaviour == PARTIAL else set()
        self._wrong_at_first = {
            f: _garble(rng, v) for f, v in self.truth.items() if f in garbled and self.behaviour == DIFFICULT
        }

    def can_give(self, field: str) -> bool:
        return field in self.truth and field not in self._absent

    def give(self, field: str) -> str:
        """The value of an available field: the first time perhaps a wrong one, then the right one."""
        return self._wrong_at_first.pop(field, self.truth[field])


def _garble(rng: random.Random, value: str) -> str:
    """The value with one digit changed, or the words swapped where it has no digit."""
    places = [i for i, c in enumerate(value) if c in string.digits]
    if not places:
        return " ".join(reversed(value.split()))
    i = rng.choice(places)
    return value[:i] + str((int(value[i]) + rng.randint(1, 9)) % 10) + value[i + 1 :]
