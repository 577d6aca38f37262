"""Callers by rule: seven reference policies to compare learners with, and the loop that plays them.

A caller reads what an agent reads. Only the oracle and the typical prior also read what is hidden, the one the rules of
its company, the other the regularities of the world.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence

from lfo.config import evaluation_seed
from lfo.envs.phone.episode import AS_DECIDED, PhoneEpisode, Rules
from lfo.envs.phone.phrasings import requested_fields
from lfo.envs.phone.records import PhoneTask
from lfo.envs.phone.rules import Plan, oracle_plan
from lfo.envs.phone.tools import FORM, form, phone_call, search
from lfo.envs.phone.vocabulary import DEPARTMENT_OF_GOAL, DEPARTMENTS, canonical, circumstances_in, industry_fields
from lfo.envs.phone.world import World
from lfo.types import Action, Call, Hangup


class ScriptedAgent:
    """A caller that reads and follows everything said to it; subclasses decide what to ask the user for.

    It finds the departments of its goals from the directory, fills in one form, calls, and reacts
    to routing, wrong-department, mismatch and alternative replies. What it cannot know is what the
    departments demand: `choose_fields` guesses.
    """

    patience = 12  # actions before it hangs up

    def __init__(self, episode: PhoneEpisode, world: World, rng: random.Random):
        self.rng, self.world, self.episode = rng, world, episode
        self.goals = [goal for goal in DEPARTMENT_OF_GOAL if goal in episode.request]
        self.circumstances = circumstances_in(episode.request)
        self.directory: dict[str, str] = {}
        self.to_call: list[str] = []
        self.values: dict[str, str] = {}
        self.unavailable: set[str] = set()
        self.ask_next: tuple[str, ...] | None = None
        self.last_called, self.actions = "", 0

    def company_name(self) -> str:
        return re.search(r"(?:call|with|phone) ([A-Z]\w+ [A-Z]\w+)", self.episode.request)[1]

    def industry(self) -> str:
        return next(c.industry for c in self.world.companies.values() if c.name == self.company_name())

    def choose_fields(self) -> Sequence[str] | None:
        """Fields for the one form, or None to call without it."""
        return None

    def act(self, observation: str) -> Action:
        """The next action, given the last observation (the request at first)."""
        self.actions += 1
        data = json.loads(observation) if observation.startswith("{") else {}
        if self.actions == 1:
            return search(self.company_name())
        if "departments" in data:
            self.directory = {d["name"]: d["phone"] for d in data["departments"]}
            self.to_call = self.call_order()
            if (fields := self.choose_fields()) is not None:
                return form(canonical(fields))
        elif "unavailable" in data:
            self.unavailable |= set(data["unavailable"])
            self.values |= {f: v for f, v in data.items() if f != "unavailable"}
        elif "status" in data and not self.hear(data["status"], data["message"]):
            return Hangup()
        if self.ask_next:
            fields, self.ask_next = self.ask_next, None
            return form(fields)
        return self.call()

    def call_order(self) -> list[str]:
        wanted = [DEPARTMENT_OF_GOAL[g] for g in self.goals]
        return [d for d in dict.fromkeys(wanted) if d in self.directory]

    def call(self) -> Action:
        if not self.to_call or self.actions > self.patience:
            return Hangup()
        self.last_called = self.to_call[0]
        return phone_call(self.directory[self.last_called], self.values)

    def hear(self, status: str, message: str) -> bool:
        """Take a CSR's reply in; False when there is nothing left to try."""
        if status == "success":
            self.to_call = [d for d in self.to_call if d != self.last_called]
            return bool(self.to_call)
        if status in ("routing_violation", "wrong_department"):
            rest = message.replace(self.last_called, "", 1)
            named = [d for d in sorted(DEPARTMENTS, key=len, reverse=True) if d in rest and d in self.directory][:1]
            if status == "wrong_department":
                self.to_call = [d for d in self.to_call if d != self.last_called]
            self.to_call = named + [d for d in self.to_call if d not in named]
            return bool(named)
        asked = requested_fields(message) - self.unavailable
        if "ismatch" in message or self.may_ask_again(asked):
            self.ask_next = canonical(asked)
        return self.ask_next is not None

    def may_ask_again(self, asked: frozenset[str]) -> bool:
        """A form reported something unavailable, and the CSR asks for something new."""
        return bool(self.unavailable) and bool(asked - set(self.values))


class NoOp(ScriptedAgent):
    """Hangs up at once."""

    def act(self, observation: str) -> Action:
        return Hangup()


class RandomForm(ScriptedAgent):
    """The exploratory policy: one to four fields of the industry, each set of a size equally likely.

    The embedded base model was pretrained on transcripts of one that reads notes as well (`explorer`).
    """

    def choose_fields(self) -> Sequence[str] | None:
        fields = industry_fields(self.industry())
        return self.rng.sample(fields, self.rng.randint(1, 4))


class ConstantForm(ScriptedAgent):
    """Asks every user for the same three fields, and for what the CSR names where it may ask again.

    What somebody reaches who learned how to call, and nothing of who demands what. Of all forms of at most four fields
    that every industry has, these win most training tasks in world 100.
    """

    def choose_fields(self) -> Sequence[str] | None:
        return ("account_number", "last_4_ssn", "phone_number")


class AskEverything(ScriptedAgent):
    """Requests every field of the industry; the user declines."""

    def choose_fields(self) -> Sequence[str] | None:
        return industry_fields(self.industry())


class RetryFromCsr(ScriptedAgent):
    """Calls empty-handed first, then asks the user for what the CSR named."""

    def may_ask_again(self, asked: frozenset[str]) -> bool:
        return bool(asked - set(self.values))


class TypicalPrior(ScriptedAgent):
    """Knows the world's typical requirements and house fields, and no company's own rules.

    The best that can be carried over from known companies to new ones: a ceiling for transfer.
    """

    def choose_fields(self) -> Sequence[str] | None:
        typical, industry, house = self.world.typical, self.industry(), self.episode.rules.slack > 0
        effects = [typical.effects[industry][name] for name in self.circumstances if name in typical.effects[industry]]
        ways = [effect.first or effect.instead for effect in effects]
        offices = [name for name in ways if name in self.directory]
        departments = offices if any(effect.instead for effect in effects) else [*self.to_call, *offices]
        return typical.demands(industry, departments, house, self.circumstances)


class Oracle(ScriptedAgent):
    """Reads the hidden rules. Its success is the share of episodes that can be solved at all."""

    patience = 16

    def _plan(self) -> Plan:
        task, world = self.episode.task, self.world
        return oracle_plan(world.demands_of(task), world.profiles[task.profile_id])

    def call_order(self) -> list[str]:
        return self.world.demands_of(self.episode.task).to_call()

    def choose_fields(self) -> Sequence[str] | None:
        return self._plan().fields

    def act(self, observation: str) -> Action:
        action = super().act(observation)
        asking = isinstance(action, Call) and action.tool == FORM
        if "unavailable" in observation and self.unavailable and not asking:
            lacking = [f for f in self.episode.needed() if f not in self.values and f not in self.unavailable]
            if lacking:
                return form(lacking)
        return action


REFERENCE_POLICIES = {
    "oracle": Oracle,
    "typical-prior": TypicalPrior,
    "retry-from-csr": RetryFromCsr,
    "constant-form": ConstantForm,
    "random": RandomForm,
    "ask-everything": AskEverything,
    "no-op": NoOp,
}


def run_scripted(episode: PhoneEpisode, agent: ScriptedAgent) -> PhoneEpisode:
    """Play an episode to its end with a scripted agent."""
    observation = episode.request
    while episode.stop is None:
        observation = episode.step(agent.act(observation))
    return episode


def play_scripted(world: World, task: PhoneTask, policy: str, rules: Rules = AS_DECIDED, seed: int = 0) -> PhoneEpisode:
    """One finished episode of a reference policy. Each (task, seed) has the same user and CSR for every policy."""
    episode_seed = evaluation_seed(task.task_id, seed)
    episode = PhoneEpisode(world, task, rules, episode_seed)
    return run_scripted(episode, REFERENCE_POLICIES[policy](episode, world, random.Random(episode_seed)))
