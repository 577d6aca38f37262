"""The records of the phone world, as `data/world` holds them, one per line of a file.

What an agent may see (`Company`) and what it must find out (`HiddenRule`, `CircumstanceRule`) are different records in
different files, so that no observation can reach a rule by accident. Nothing here knows how they are drawn or what
happens in an episode.
"""

from __future__ import annotations

import dataclasses

from lfo.types import Record, Task


@dataclasses.dataclass(frozen=True)
class Department(Record):
    """One line of a company's public directory."""

    name: str
    phone: str
    description: str
    operating_hours: str


@dataclasses.dataclass(frozen=True)
class Company(Record):
    """What anyone can look up about a company: never its authentication or routing rules."""

    company_id: str
    name: str
    industry: str
    departments: tuple[Department, ...]


VARIATIONS = ("typical", "extra", "different")  # how a company's rules depart from the usual ones of its industry


@dataclasses.dataclass(frozen=True)
class HiddenRule(Record):
    """What one department of one company demands. Only the CSR simulator and the oracle read it.

    required: fields the caller must give, in `vocabulary.FIELDS` order.
    alternative: accepted in place of a required field that the user does not have.
    after: the department that must have served the caller before, or "".
    """

    company_id: str
    department: str
    required: tuple[str, ...]
    alternative: str
    after: str
    variation: str  # one of VARIATIONS; free in throw-away worlds


@dataclasses.dataclass(frozen=True)
class Effect(Record):
    """What a circumstance of a request changes; "" where it does not.

    field: every department demands it on top. first: the department that must have served the caller before any other.
    instead: the department that serves the request in the place of whoever usually does.
    """

    field: str = ""
    first: str = ""
    instead: str = ""


@dataclasses.dataclass(frozen=True)
class CircumstanceRule(Record):
    """What one company makes of one circumstance. Hidden, as a `HiddenRule` is."""

    company_id: str
    circumstance: str
    effect: Effect


HiddenRules = dict[tuple[str, str], HiddenRule]  # by company_id and name of the department


@dataclasses.dataclass(frozen=True)
class Profile(Record):
    """One user. `values` lacks the fields that the user does not have."""

    profile_id: str
    industry: str
    values: dict[str, str]


@dataclasses.dataclass(frozen=True)
class PhoneTask(Task):
    """Something a user wants done by phone. `goals` are served in any order that routing allows."""

    company_id: str
    profile_id: str
    request: str  # what the user says: the agent's prompt
    goals: tuple[str, ...]
    optimal_steps: int  # actions of the oracle with a cooperative user
    circumstances: tuple[str, ...] = ()  # that the request speaks of, in `vocabulary.CIRCUMSTANCES` order
