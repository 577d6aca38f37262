"""Notes by somebody who knows what is usual in a world, and no company: the most that carries over to new ones."""

from __future__ import annotations

import dataclasses

from lfo.couplings import Truth
from lfo.envs.phone.knowledge import PhoneKnowledge
from lfo.envs.phone.vocabulary import canonical
from lfo.envs.phone.world import World
from lfo.text.codec import Codec


def told_as_in(believed: World, codec: Codec) -> Truth:
    """The coupling `truth` of somebody who takes another world for the true one."""
    teller = Truth(codec)
    teller.knowledge = PhoneKnowledge(believed, reasons=codec.env.rules.replies == "reasons")
    return teller


def usual_world(world: World, house: bool = False) -> World:
    """The world as if every company followed the typical rules; house: with the field that cautious companies add."""
    rules = {}
    for key, rule in world.rules.items():
        industry = world.companies[rule.company_id].industry
        required = canonical(world.typical.demands(industry, [rule.department], house))
        rules[key] = dataclasses.replace(rule, required=required)
    effects = {company.company_id: world.typical.effects[company.industry] for company in world.companies.values()}
    return dataclasses.replace(world, rules=rules, effects=effects)
