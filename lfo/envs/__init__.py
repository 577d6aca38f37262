"""Worlds to act in, one folder each; `adapters` to others' loops and worlds; `server`: episodes over HTTP. No torch."""

from __future__ import annotations

import importlib
import pkgutil

from lfo.config import ConfigError, EnvConfig
from lfo.protocols import Environment


def make_environment(config: EnvConfig, **options) -> Environment:
    """The environment that `env.name` names: what ``lfo.envs.<name>.make`` makes of the settings and its own options.

    With `env.server` its episodes are played there.

    Raises:
        ConfigError: there is no such environment, or the server has another one.
        ConnectionError: the server does not answer.
    """
    worlds = {module.name for module in pkgutil.iter_modules(__path__) if module.ispkg}
    known = sorted(worlds - {"adapters", "server"})
    if config.name not in known:
        raise ConfigError(f"there is no environment '{config.name}'; environments: {', '.join(known)}.")
    if config.server:
        from lfo.envs.server.client import RemoteEnvironment

        return RemoteEnvironment(config, **options)
    return importlib.import_module(f"lfo.envs.{config.name}").make(config, **options)
