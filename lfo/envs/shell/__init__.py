"""The shell environment: real bash tasks in a sandbox, and machines whose house tools hide what they demand.

`sandbox` is where commands run, by `bubblewrap` or in `containers`, with what `systems` have in common; `trees`,
`templates` and `machines` say what tasks are made of, `tasks` draws them, `oracle` certifies them, `public` reads sets
of others; `episode` and `environment` are what an agent meets; `knowledge` is what a world model is told and asked.
"""

from __future__ import annotations

import functools

from lfo.config import EnvConfig
from lfo.envs.shell.environment import ShellEnvironment, World, draw_world
from lfo.envs.shell.episode import AS_DECIDED, Rules

__all__ = ["Rules", "ShellEnvironment", "World", "draw_world", "make"]

_world = functools.lru_cache(maxsize=2)(draw_world)


def make(config: EnvConfig, held_out_phrasing: bool = False) -> ShellEnvironment:
    """The environment of a run: the world of `world_seed`, tasks of `levels` only."""
    rules = Rules(config.max_turns or AS_DECIDED.max_round, rewards=config.rewards)
    world = _world(config.world_seed)
    return ShellEnvironment(world, rules, config.levels, held_out_phrasing, sandbox=config.sandbox)
