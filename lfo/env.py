"""One episode of the phone-call environment, its Gymnasium form, and six reference policies.

`Episode` is single-use: it is built for one task and one seed, stepped until `stop` is set, and
thrown away. `PhoneCallEnv` wraps it as a `gymnasium.Env`. Works on text; knows no tokenizer and
no model. Same task and same seed -> byte-identical episode.

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

import dataclasses
import json
import random
import re
from collections.abc import Sequence

import gymnasium

from lfo import tools
from lfo.config import EnvConfig
from lfo.records import StopReason, Task, Turn
from lfo.simulator import CsrSimulator, UserSimulator, requested_fields
from lfo.world import (
    DEPARTMENT_OF_GOAL,
    DEPARTMENTS,
    World,
    canonical,
    departments_to_call,
    industry_fields,
    needed_fields,
    oracle_plan,
)

ALREADY_ASKED = "The user has already filled in the form."
TOO_LATE = "The user is no longer there: the form comes before the first call."
TOO_MUCH = "The user declines: that is more than this needs."


@dataclasses.dataclass(frozen=True)
class StepResult:
    """observation: what the agent reads next, also after the last step. stop: None while the episode goes on."""

    observation: str
    stop: StopReason | None


class Episode:
    """A single-use episode.

    Attributes:
        request: the user's words, the agent's first observation.
        stop: None until the episode is over.
        turns: what happened so far.
        success: whether every goal was served (the binary reward).
        shaped_reward: the ladder of DESIGN section 2, in [0, 1].
    """

    def __init__(
        self,
        world: World,
        task: Task,
        config: EnvConfig,
        seed: int,
        held_out_phrasing: bool = False,
        csr: CsrSimulator | None = None,
    ):
        """`csr`: somebody with a CSR's `call` and `all_served` who answers the phone instead of one."""
        self.task, self.config = task, config
        self.request = task.request
        self.stop: StopReason | None = None
        self.turns: list[Turn] = []
        self.collected: dict[str, str] = {}
        self.unavailable: set[str] = set()
        self.counts = {"malformed": 0, "refused_form": 0, "routing_violation": 0, "wrong_department": 0, "calls": 0}
        self.milestones: set[str] = set()
        self._world = world
        self._company = world.companies[task.company_id]
        stream = f"{seed}/{task.task_id}"
        self._user = UserSimulator(world.profiles[task.profile_id], stream)
        owners = {goal: DEPARTMENT_OF_GOAL[goal] for goal in task.goals}
        self._csr = csr or CsrSimulator(self._company, world.rules, owners, stream, held_out_phrasing)
        self._forms_left = 1

    # --- stepping -----------------------------------------------------------------------------

    def step(self, action: str) -> StepResult:
        """Take one action (text between the opening and the closing tag). Never raises on its content.

        Raises:
            RuntimeError: the episode is over.
        """
        if self.stop:
            raise RuntimeError(f"this episode ended ({self.stop}); build a new Episode for another attempt.")
        call = tools.parse_action(action)
        if isinstance(call, tools.Stop):
            tool, status, data = "", "stopped", {}
            self.stop = StopReason.AGENT_STOPPED
        elif isinstance(call, tools.Malformed):
            tool, status, data = "", "error", {"error": call.reason}
            self.counts["malformed"] += 1
        else:
            tool = call.tool
            status, data = getattr(self, f"_{tool}")(**call.arguments)
        observation = json.dumps(data) if data else ""
        self.turns.append(Turn(action, observation, tool, status))
        if self.stop is None:
            self.stop = self._ended()
        return StepResult(observation, self.stop)

    def _ended(self) -> StopReason | None:
        if self._csr.all_served:
            return StopReason.SUCCESS
        if self.counts["malformed"] >= self.config.max_malformed:
            return StopReason.MALFORMED
        if len(self.turns) >= self.config.max_turns:
            return StopReason.MAX_TURNS
        return None

    def cut(self) -> None:
        """End the episode because its token budget is used up; called by the rollout loop."""
        self.stop = self.stop or StopReason.TOKEN_BUDGET

    # --- tools --------------------------------------------------------------------------------

    def _search_company(self, company_name: str) -> tuple[str, dict]:
        return "ok", tools.search_company(self._world.companies, company_name)

    def _auth_info_form(self, fields: list[str]) -> tuple[str, dict]:
        if self._forms_left == 0:
            self.counts["refused_form"] += 1
            asked = any(t.tool == "auth_info_form" and t.status != "refused" for t in self.turns)
            return "refused", {"refused": ALREADY_ASKED if asked else TOO_LATE}
        self._forms_left = 0
        extras = {*fields, *self.collected} - set(self._needed())
        if len(extras) > self.config.slack:
            return "declined", {"declined": TOO_MUCH}
        given = {f: self._user.give(f) for f in canonical(fields) if self._user.can_give(f)}
        absent = [f for f in canonical(fields) if f not in given]
        if (set(absent) - self.unavailable) & set(self._needed()):
            self._forms_left = 1  # the user may be asked for something else instead
        self.unavailable |= set(absent)
        self.collected |= given
        shown = {f: f"@{f}" for f in given} if self.config.values == "reference" else given
        return "ok", {**shown, "unavailable": absent}

    def _make_phone_call(self, phone_number: str, auth_info: dict[str, str]) -> tuple[str, dict]:
        if not self.config.form_after_call and not any(t.tool == "auth_info_form" for t in self.turns):
            self._forms_left = 0
        self.counts["calls"] += 1
        if self.config.values == "reference":
            auth_info = {f: self.collected.get(v[1:], v) if v.startswith("@") else v for f, v in auth_info.items()}
        reply = self._csr.call(phone_number, auth_info, self._user.truth, self.unavailable)
        if reply.mismatched and all(auth_info[f].strip() == self.collected.get(f) for f in reply.mismatched):
            self._forms_left = 1  # the user gave wrong values and may be asked again
        self.counts[reply.status] = self.counts.get(reply.status, 0) + 1
        if reply.status in ("success", "wrong_department") and reply.department and self._demands(reply.department):
            self.milestones.add("authenticated")
        if reply.status == "success":
            self.milestones.add("right_department")
        return reply.status, {"status": reply.status, "message": reply.message}

    def _demands(self, department: str) -> tuple[str, ...]:
        """What a department asks for; where that is nothing, nobody is authenticated."""
        return self._world.rules[self.task.company_id, department].required

    def _needed(self) -> tuple[str, ...]:
        return needed_fields(self._world.rules, self.task.company_id, self.task.goals, self.unavailable)

    # --- reward -------------------------------------------------------------------------------

    @property
    def success(self) -> bool:
        return self.stop is StopReason.SUCCESS

    @property
    def auth_before_call(self) -> bool:
        """Whether the form was answered before the first phone call."""
        tools_used = [t.tool for t in self.turns if t.status == "ok" or t.tool == "make_phone_call"]
        calls = [i for i, t in enumerate(tools_used) if t == "make_phone_call"]
        return bool(calls) and "auth_info_form" in tools_used[: calls[0]]

    @property
    def shaped_reward(self) -> float:
        """0.2 some needed field, 0.3 all, 0.5 authenticated, 0.7 right department, 1.0 done; minus penalties."""
        needed = set(self._needed()) - self.unavailable
        held = needed & set(self.collected)
        ladder = [
            (bool(held), 0.2),
            (bool(needed) and held == needed, 0.3),
            ("authenticated" in self.milestones, 0.5),
            ("right_department" in self.milestones, 0.7),
            (self.success, 1.0),
        ]
        reward = max((value for reached, value in ladder if reached), default=0.0)
        reward -= 0.1 * self.counts["refused_form"] + 0.1 * self.counts["routing_violation"]
        reward -= 0.05 * self.counts["wrong_department"]
        return max(0.0, reward)

    @property
    def reward(self) -> float:
        """What the run trains on: binary success, or the shaped ladder where the config says so."""
        return self.shaped_reward if self.config.reward == "shaped" else float(self.success)


# --- Gymnasium -------------------------------------------------------------------------------

_CHARSET = "".join(chr(i) for i in range(32, 127))


class PhoneCallEnv(gymnasium.Env):
    """The environment behind Gymnasium's interface.

    ### Action space
    `Text`: an action without its opening and closing tag, e.g.
    ``search_company<|args|>{"company_name": "Harbor Bank"}``; the empty text hangs up.

    ### Observation space
    `Text`: the user's request after `reset`, then the tool's answer as JSON.

    ### Reward
    0 until the end, then 1 for success, else 0 (or the shaped ladder, see `EnvConfig.reward`).

    ### Episode end
    terminated: success, hanging up, too many malformed calls. truncated: `max_turns`.

    `reset(options={"task": task})` chooses the task; without it the seed draws one. With
    `options={"held_out_phrasing": True}` the CSR says things as it never does in training.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self, world: World, tasks: Sequence[Task], config: EnvConfig | None = None, render_mode: str | None = None
    ):
        if not tasks:
            raise ValueError("PhoneCallEnv needs at least one task, e.g. world.split('train').")
        self.world, self.tasks, self.config = world, list(tasks), config or EnvConfig()
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Text(tools.MAX_ACTION_CHARS, min_length=0, charset=_CHARSET)
        self.observation_space = gymnasium.spaces.Text(20_000, min_length=0, charset=_CHARSET)
        self.episode: Episode | None = None

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        options = options or {}
        if unknown := set(options) - {"task", "held_out_phrasing"}:
            raise ValueError(f"unknown option '{min(unknown)}' of reset; there are 'task' and 'held_out_phrasing'.")
        task = options.get("task") or self.tasks[int(self.np_random.integers(len(self.tasks)))]
        seed, held_out = int(self.np_random.integers(2**31)), bool(options.get("held_out_phrasing"))
        self.episode = Episode(self.world, task, self.config, seed, held_out)
        return self.episode.request, {"task_id": task.task_id, "level": task.level}

    def step(self, action: str):
        if self.episode is None:
            raise RuntimeError("call reset() before step().")
        result = self.episode.step(action)
        over = result.stop is not None
        truncated = over and result.stop.truncated
        info = {"stop": str(result.stop or ""), "shaped_reward": self.episode.shaped_reward}
        return result.observation, self.episode.reward if over else 0.0, over and not truncated, truncated, info

    def render(self):
        if self.render_mode == "ansi" and self.episode:
            return "\n".join(f"> {t.action}\n{t.observation}" for t in self.episode.turns)
        return None


# --- reference policies ----------------------------------------------------------------------


class ScriptedAgent:
    """A caller that reads and follows everything said to it; subclasses decide what to ask the user for.

    It finds the departments of its goals from the directory, fills in one form, calls, and reacts
    to routing, wrong-department, mismatch and alternative replies. What it cannot know is what the
    departments demand: `choose_fields` guesses.
    """

    patience = 12  # actions before it hangs up

    def __init__(self, episode: Episode, world: World, rng: random.Random):
        self.rng = rng
        self.world = world
        self.episode = episode
        self.goals = [g for g in DEPARTMENT_OF_GOAL if g in episode.request]
        self.directory: dict[str, str] = {}
        self.to_call: list[str] = []
        self.values: dict[str, str] = {}
        self.unavailable: set[str] = set()
        self.ask_next: tuple[str, ...] | None = None
        self.last_called = ""
        self.actions = 0

    def company_name(self) -> str:
        return re.search(r"(?:call|with|phone) ([A-Z]\w+ [A-Z]\w+)", self.episode.request)[1]

    def industry(self) -> str:
        return next(c.industry for c in self.world.companies.values() if c.name == self.company_name())

    def choose_fields(self) -> Sequence[str] | None:
        """Fields for the one form, or None to call without it."""
        return None

    def act(self, observation: str) -> str:
        """The next action, given the last observation (the request at first)."""
        self.actions += 1
        data = json.loads(observation) if observation.startswith("{") else {}
        if self.actions == 1:
            return tools.format_call("search_company", {"company_name": self.company_name()})
        if "departments" in data:
            self.directory = {d["name"]: d["phone"] for d in data["departments"]}
            self.to_call = self.call_order()
            if (fields := self.choose_fields()) is not None:
                return tools.format_call("auth_info_form", {"fields": list(canonical(fields))})
        elif "unavailable" in data:
            self.unavailable |= set(data["unavailable"])
            self.values |= {f: v for f, v in data.items() if f != "unavailable"}
        elif "status" in data and not self.hear(data["status"], data["message"]):
            return ""
        if self.ask_next:
            fields, self.ask_next = self.ask_next, None
            return tools.format_call("auth_info_form", {"fields": list(fields)})
        return self.call()

    def call_order(self) -> list[str]:
        wanted = [DEPARTMENT_OF_GOAL[g] for g in self.goals]
        return [d for d in dict.fromkeys(wanted) if d in self.directory]

    def call(self) -> str:
        if not self.to_call or self.actions > self.patience:
            return ""
        self.last_called = self.to_call[0]
        arguments = {"phone_number": self.directory[self.last_called], "auth_info": dict(self.values)}
        return tools.format_call("make_phone_call", arguments)

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

    def act(self, observation: str) -> str:
        return ""


class RandomForm(ScriptedAgent):
    """The exploratory policy: one to four fields of the industry, each set of a size equally likely.

    The embedded base model was pretrained on its transcripts.
    """

    def choose_fields(self):
        fields = industry_fields(self.industry())
        return self.rng.sample(fields, self.rng.randint(1, 4))


class AskEverything(ScriptedAgent):
    """Requests every field of the industry; the user declines."""

    def choose_fields(self):
        return industry_fields(self.industry())


class RetryFromCsr(ScriptedAgent):
    """Calls empty-handed first, then asks the user for what the CSR named."""

    def may_ask_again(self, asked):
        return bool(asked - set(self.values))


class TypicalPrior(ScriptedAgent):
    """Knows the world's typical requirements and house fields, and no company's own rules.

    The best that can be carried over from known companies to new ones: a ceiling for transfer.
    """

    def choose_fields(self):
        typical, industry = self.world.typical, self.industry()
        fields = {f for name in self.to_call for f in typical.required[industry, name]}
        return fields | ({typical.house_field[industry]} if fields and self.episode.config.slack else set())


class Oracle(ScriptedAgent):
    """Reads the hidden rules. Its success is the share of episodes that can be solved at all."""

    patience = 16

    def _plan(self):
        task, world = self.episode.task, self.world
        return oracle_plan(world.rules, world.profiles[task.profile_id], task.company_id, task.goals)

    def call_order(self):
        task = self.episode.task
        return departments_to_call(self.world.rules, task.company_id, task.goals)

    def choose_fields(self):
        return self._plan().fields

    def act(self, observation):
        action = super().act(observation)
        if "unavailable" in observation and self.unavailable and not action.startswith("auth_info_form"):
            lacking = [f for f in self.episode._needed() if f not in self.values and f not in self.unavailable]
            if lacking:
                return tools.format_call("auth_info_form", {"fields": lacking})
        return action


REFERENCE_POLICIES = {
    "oracle": Oracle,
    "typical-prior": TypicalPrior,
    "retry-from-csr": RetryFromCsr,
    "random": RandomForm,
    "ask-everything": AskEverything,
    "no-op": NoOp,
}


def run_scripted(episode: Episode, agent: ScriptedAgent) -> Episode:
    """Play an episode to its end with a scripted agent."""
    observation = episode.request
    while episode.stop is None:
        observation = episode.step(agent.act(observation)).observation
    return episode
