"""Worlds to act in, one folder each; `adapters` to others' loops and worlds; `server`: episodes over HTTP. No torch."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from lfo.config import ConfigError, EnvConfig
from lfo.protocols import Environment


def make_environment(config: EnvConfig, **options) -> Environment:
    """The environment that `env.name` names: what ``lfo.envs.<name>.make`` makes of the settings and its own options.

    With `env.server` its episodes are played there.

    Raises:
        ConfigError: there is no such environment, it has no such option, or the server has another one.
        ConnectionError: the server does not answer.
    """
    worlds = {module.name for module in pkgutil.iter_modules(__path__) if module.ispkg}
    known = sorted(worlds - {"adapters", "server"})
    if config.name not in known:
        raise ConfigError(f"there is no environment '{config.name}'; environments: {', '.join(known)}.")
    if config.server:
        from lfo.envs.server.client import RemoteEnvironment

        return RemoteEnvironment(config, **options)
    make = importlib.import_module(f"lfo.envs.{config.name}").make
    if other := set(options) - set(inspect.signature(make).parameters):
        raise ConfigError(f"environment '{config.name}' has no {', '.join(sorted(other))}; leave it out.")
    return make(config, **options)
