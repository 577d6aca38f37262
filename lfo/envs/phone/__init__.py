"""The phone-call environment: companies that hide what they demand of a caller, and say it when they are called.

`vocabulary` and `records` say what it is made of, `rules` what is hidden, `world` draws it; `user`, `csr` and
`phrasings` are the people in it; `tools`, `episode` and `environment` are what an agent meets; `knowledge` is what a
world model is told and asked; `callers` are scripted agents to compare with, `explorer` one more, in throw-away worlds,
for bases to be pretrained on.
"""

from __future__ import annotations

import functools

from lfo.config import EnvConfig
from lfo.envs.phone.environment import PhoneCallEnv, PhoneEnvironment
from lfo.envs.phone.episode import AS_DECIDED, Rules
from lfo.envs.phone.world import World, generate_world, load_world

__all__ = ["PhoneCallEnv", "PhoneEnvironment", "Rules", "World", "generate_world", "load_world", "make"]

_world = functools.lru_cache(maxsize=2)(generate_world)  # drawing one takes a while


def make(config: EnvConfig, held_out_phrasing: bool = False) -> PhoneEnvironment:
    """The environment of a run: the world of `world_seed`, tasks of `levels` only."""
    turns = config.max_turns or AS_DECIDED.max_turns
    rules = Rules(max_turns=turns, values=config.values, reward=config.reward, replies=config.replies)
    world = _world(config.world_seed, config.circumstances)
    return PhoneEnvironment(world, rules, config.levels, held_out_phrasing)
