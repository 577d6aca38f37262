"""TextWorld Commonsense: a public world in which things have to be put where they usually belong.

The games are those of `textworld-express` (arXiv 2208.01174; the task: arXiv 2010.03790), a Java program. `game` runs
it, `tasks` reads the table of its games, which `table` has made; `episode` and `environment` are what an agent meets,
`knowledge` is what a world model is told and asked. `explorer` makes up rooms, for an embedded base to be pretrained.
"""

from __future__ import annotations

from lfo.config import EnvConfig
from lfo.envs.twc.environment import TwcEnvironment

__all__ = ["TwcEnvironment", "make"]


def make(config: EnvConfig) -> TwcEnvironment:
    """The environment of a run: games of `levels` only. There is one world, so `world_seed` says nothing here."""
    return TwcEnvironment(config.max_turns, config.levels)
