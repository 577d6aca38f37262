"""What a run is: frozen, validated settings with their units. Knows nothing about how they are used.

`load_config` reads YAML, `override` applies a notebook's parameters; both are strict, so that a
misspelt name stops a run before it starts and says what was probably meant.
"""

from __future__ import annotations

import dataclasses
import difflib
import random
import types
import typing
from pathlib import Path

import numpy as np
import yaml


class ConfigError(ValueError):
    """A setting is unknown or out of range. The message names it and the remedy."""


def _one_of(config, name: str, *allowed: str) -> None:
    value = getattr(config, name)
    if value not in allowed:
        raise ConfigError(f"{type(config).__name__}.{name} is {value!r}; choose one of: {', '.join(allowed)}.")


def _at_least(config, low: float, *names: str) -> None:
    for name in names:
        if getattr(config, name) < low:
            raise ConfigError(f"{type(config).__name__}.{name} is {getattr(config, name)}; it must be >= {low}.")


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Rules of an episode (DESIGN section 2)."""

    max_turns: int = 16  # agent actions
    max_malformed: int = 3  # calls that cannot be read
    slack: int = 1  # fields beyond what the task needs that the user still shares
    form_after_call: bool = False  # whether the first form may follow a phone call
    values: str = "literal"  # literal: form values pass through the model; reference: handles such as @email do
    reward: str = "binary"  # binary | shaped: what the policy trains on; figures always report binary success

    def __post_init__(self):
        _at_least(self, 1, "max_turns", "max_malformed")
        _at_least(self, 0, "slack")
        _one_of(self, "values", "literal", "reference")
        _one_of(self, "reward", "binary", "shaped")
