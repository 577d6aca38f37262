"""Worlds to act in, one folder each, and `adapters` to others' loops and worlds. None of them imports torch."""

from __future__ import annotations

import importlib
import pkgutil

from lfo.config import ConfigError, EnvConfig
from lfo.protocols import Environment


def make_environment(config: EnvConfig, **options) -> Environment:
    """The environment that `env.name` names: what ``lfo.envs.<name>.make`` makes of the settings and its own options.

    Raises:
        ConfigError: there is no such environment.
    """
    known = sorted({module.name for module in pkgutil.iter_modules(__path__) if module.ispkg} - {"adapters"})
    if config.name not in known:
        raise ConfigError(f"there is no environment '{config.name}'; environments: {', '.join(known)}.")
    return importlib.import_module(f"lfo.envs.{config.name}").make(config, **options)
