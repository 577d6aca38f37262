"""`told`: `imagine` whose notes come from somebody who knows what departments demand, and not from a world model.

The success that it brings bounds what `imagine` can: with the truth, what a perfect world model would bring.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

from lfo.config import WorldModelConfig
from lfo.couplings import Imagine
from lfo.envs.phone.phrasings import SITUATION_STATUS, say
from lfo.protocols import Question
from lfo.text.codec import Codec

Demands = Mapping[tuple[str, str], tuple[str, ...]]  # (company_id, department) -> fields


class Told(Imagine):
    """A `Coupling` for the phone world. demands: what is told of some departments, instead of the truth."""

    def __init__(self, config: WorldModelConfig, codec: Codec, demands: Demands | None = None, seed: int = 0):
        super().__init__(config, codec)
        world, self.seed = codec.env.world, seed
        required = {key: rule.required for key, rule in world.rules.items()} | dict(demands or {})
        self._listed = {
            d.phone: (d.name, required[company.company_id, d.name])
            for company in world.companies.values()
            for d in company.departments
        }

    def answer(self, question: Question):
        yield from ()  # nobody is asked
        return self.codec.reply(self.says(question))

    def says(self, question: Question) -> str:
        """What an empty-handed caller would be answered; the same question is always answered in the same words."""
        phone = question.call.arguments["phone_number"]
        department, required = self._listed[phone]
        situation, fields = ("missing", {"fields": required}) if required else ("success", {})
        rng = random.Random(f"{self.seed}/told/{question.request}/{phone}")
        message = say(rng, situation, False, dept=department, **fields)
        return json.dumps({"status": SITUATION_STATUS[situation], "message": message})
