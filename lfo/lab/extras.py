"""What is installed with an extra is asked for before anything heavy is imported: a refusal comes at once."""

from __future__ import annotations

import importlib.util

from lfo.config import ConfigError, RunConfig


def require(name: str, extra: str, without: str) -> None:
    """name: as it is told; extra: its own, which is also the name of its package; without: how to do without it.

    Raises:
        ConfigError: it is not installed; the message has the command.
    """
    if importlib.util.find_spec(extra) is None:
        raise ConfigError(f"{name} is not installed: pip install -e '.[cpu,{extra}]', or {without}.")


def require_tracker(config: RunConfig) -> None:
    """See `require`; a run without a tracker needs none."""
    if config.tracker:
        require(f"tracker '{config.tracker}'", config.tracker, "leave tracker out")


def require_ray() -> None:
    """See `require`."""
    require("Ray", "ray", "leave --ray out")
