"""One episode of the phone world: what the user and the CSR answer, and what success is worth.

A `PhoneEpisode` is single-use: it is built for one task and one seed, stepped until `stop` is set, and thrown away.
Takes actions that are read already; knows no text format, no tokenizer and no model. Same task and same seed ->
byte-identical episode.

Rules that make it a learning problem (each is tested):

* One form. A second one is refused and counted, unless the form reported needed fields as
  unavailable or a CSR reported a mismatch in what the user gave. Made-up values that do not match
  reopen nothing: otherwise a call full of them would reveal everything.
* The form comes before the first call: whoever calls first has to do without it. Otherwise one
  empty-handed call would reveal everything and nothing would have to be learned.
* No asking for everything: the user shares what the task needs and at most `slack` fields more, all
  forms together; a greedier form is declined whole and is used up.
"""

from __future__ import annotations

import json
from typing import Literal

from lfo.config import Count, Flag, Positive, settings
from lfo.envs.base import require_open
from lfo.envs.phone.csr import CsrSimulator, DreamtCsr, listed_under
from lfo.envs.phone.records import PhoneTask
from lfo.envs.phone.tools import FORM, PHONE, SEARCH, search_company
from lfo.envs.phone.user import UserSimulator
from lfo.envs.phone.vocabulary import canonical, rephrased
from lfo.envs.phone.world import World
from lfo.types import Action, Hangup, Malformed, Outcome, StopReason, Turn

ALREADY_ASKED = "The user has already filled in the form."
TOO_LATE = "The user is no longer there: the form comes before the first call."
TOO_MUCH = "The user declines: that is more than this needs."


@settings
class Rules:
    """What holds in every episode of a world. Some are lifted to show what they are for."""

    max_turns: Positive = 16  # agent actions
    max_malformed: Positive = 3  # calls that cannot be read; the episode ends with the last of them
    slack: Count = 1  # fields beyond those the task needs that the user is willing to share
    form_after_call: Flag = False  # whether the form may follow a call
    values: Literal["literal", "reference"] = "literal"  # reference: personal data is handed over as @email, say
    reward: Literal["binary", "shaped"] = "binary"  # what the policy trains on
    replies: Literal["list", "reasons"] = "reasons"  # reasons: a CSR also says what each circumstance demands


AS_DECIDED = Rules()


class PhoneEpisode:
    """A single-use episode.

    Attributes:
        request: the user's words, what the agent reads first.
        turns: what happened so far.
        stop: None until the episode is over.
        collected, unavailable: values that the user gave, and fields that the user could not give.
        counts: how often what happened that is counted, by name.
    """

    def __init__(
        self,
        world: World,
        task: PhoneTask,
        rules: Rules = AS_DECIDED,
        seed: int = 0,
        held_out_phrasing: bool = False,
        csr: CsrSimulator | DreamtCsr | None = None,
    ):
        """held_out_phrasing: user and CSR say things as they never do in training. csr: who answers instead of the
        company's own CSR."""
        self.task, self.rules = task, rules
        self.request = rephrased(task.request) if held_out_phrasing else task.request
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        self.collected: dict[str, str] = {}
        self.unavailable: set[str] = set()
        self.counts = {"malformed": 0, "refused_form": 0, "routing_violation": 0, "wrong_department": 0, "calls": 0}
        self._milestones: set[str] = set()
        self._forms_left = 1
        self._world = world
        stream = f"{seed}/{task.task_id}"
        self._user = UserSimulator(world.profiles[task.profile_id], stream)
        self._demands = world.demands_of(task)
        self._company, reasons = world.companies[task.company_id], rules.replies == "reasons"
        self._csr = csr or CsrSimulator(self._company, self._demands, stream, held_out_phrasing, reasons)
        self._tools = {SEARCH: self._search_company, FORM: self._auth_info_form, PHONE: self._make_phone_call}

    # --- stepping -----------------------------------------------------------------------------

    def step(self, action: Action) -> str:
        """Take an action; returns what the agent reads next, "" for nothing. Never raises on what an action says.

        Raises:
            RuntimeError: the episode is over.
        """
        require_open(self.stop)
        if isinstance(action, Hangup):
            status, data = "stopped", {}
            self.stop = StopReason.AGENT_STOPPED
        elif isinstance(action, Malformed):
            status, data = "error", {"error": action.reason}
            self.counts["malformed"] += 1
        else:
            status, data = self._tools[action.tool](**action.arguments)
        observation = json.dumps(data) if data else ""
        self.turns.append(Turn(action, observation, status))
        self.stop = self.stop or self._ended()
        return observation

    def _ended(self) -> StopReason | None:
        if self._csr.all_served:
            return StopReason.SUCCESS
        if self.counts["malformed"] >= self.rules.max_malformed:
            return StopReason.MALFORMED
        if len(self.turns) >= self.rules.max_turns:
            return StopReason.MAX_TURNS
        return None

    def cut(self) -> None:
        """End the episode because its token budget is used up; one that is over keeps its reason."""
        self.stop = self.stop or StopReason.TOKEN_BUDGET

    def close(self) -> None:
        """Nothing is held."""

    # --- tools --------------------------------------------------------------------------------

    def _search_company(self, company_name: str) -> tuple[str, dict]:
        return "ok", search_company(self._world.companies, company_name)

    def _auth_info_form(self, fields: list[str]) -> tuple[str, dict]:
        if self._forms_left == 0:
            self.counts["refused_form"] += 1
            asked = any(t.tool == FORM and t.status != "refused" for t in self.turns)
            return "refused", {"refused": ALREADY_ASKED if asked else TOO_LATE}
        self._forms_left = 0
        extras = {*fields, *self.collected} - set(self.needed())
        if len(extras) > self.rules.slack:
            return "declined", {"declined": TOO_MUCH}
        given = {f: self._user.give(f) for f in canonical(fields) if self._user.can_give(f)}
        absent = [f for f in canonical(fields) if f not in given]
        if (set(absent) - self.unavailable) & set(self.needed()):
            self._forms_left = 1  # the user may be asked for something else instead
        self.unavailable |= set(absent)
        self.collected |= given
        shown = {f: f"@{f}" for f in given} if self.rules.values == "reference" else given
        return "ok", {**shown, "unavailable": absent}

    def _make_phone_call(self, phone_number: str, auth_info: dict[str, str]) -> tuple[str, dict]:
        if not self.rules.form_after_call and not any(t.tool == FORM for t in self.turns):
            self._forms_left = 0
        self.counts["calls"] += 1
        if self.rules.values == "reference":
            auth_info = {f: self.collected.get(v[1:], v) if v.startswith("@") else v for f, v in auth_info.items()}
        reply = self._csr.call(phone_number, auth_info, self._user.truth, self.unavailable)
        if reply.mismatched and all(auth_info[f].strip() == self.collected.get(f) for f in reply.mismatched):
            self._forms_left = 1  # the user gave wrong values and may be asked again
        self.counts[reply.status] = self.counts.get(reply.status, 0) + 1
        if reply.authenticated:
            self._milestones.add("authenticated")
        if reply.status == "success":
            self._milestones.add("right_department")
        return reply.status, {"status": reply.status, "message": reply.message}

    def needed(self) -> tuple[str, ...]:
        """The fields that the task needs, alternatives for what the user could not give included. Hidden."""
        return self._demands.needed(self.unavailable)

    def lacking(self) -> tuple[str, ...]:
        """Those of `needed` that the user cannot give, so that the form may be filled in twice. Hidden."""
        return tuple(field for field in self.needed() if not self._user.can_give(field))

    # --- reward -------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        """success: every goal was served. reward: what the run trains on, success or the shaped ladder."""
        metrics = {
            "shaped_reward": self.shaped_reward,
            "auth_before_call": float(self.auth_before_call),
            "departments_in_order": float(self.departments_in_order),
            "calls_per_task": float(self.counts["calls"]),
        }
        reward = self.shaped_reward if self.rules.reward == "shaped" else float(self.success)
        return Outcome(self.success, reward, metrics)

    @property
    def success(self) -> bool:
        return self.stop is StopReason.SUCCESS

    @property
    def auth_before_call(self) -> bool:
        """Whether the form was answered before the first phone call."""
        done = [t.tool for t in self.turns if t.status == "ok" or t.tool == PHONE]
        return PHONE in done and FORM in done[: done.index(PHONE)]

    @property
    def departments_in_order(self) -> bool:
        """Whether every department on the way was called, and none before the one that it wants first."""
        called = {
            listed_under(self._company, t.action.arguments["phone_number"]) for t in self.turns if t.tool == PHONE
        }
        return not self.counts["routing_violation"] and set(self._demands.to_call()) <= called

    @property
    def shaped_reward(self) -> float:
        """0.2 some needed field, 0.3 all, 0.5 authenticated, 0.7 right department, 1.0 done; minus penalties."""
        needed = set(self.needed()) - self.unavailable
        held = needed & set(self.collected)
        ladder = [
            (bool(held), 0.2),
            (bool(needed) and held == needed, 0.3),
            ("authenticated" in self._milestones, 0.5),
            ("right_department" in self._milestones, 0.7),
            (self.success, 1.0),
        ]
        reward = max((value for reached, value in ladder if reached), default=0.0)
        reward -= 0.1 * self.counts["refused_form"] + 0.1 * self.counts["routing_violation"]
        reward -= 0.05 * self.counts["wrong_department"]
        return max(0.0, reward)
