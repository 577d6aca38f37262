"""The phone world as an environment of `lfo`, and as one of Gymnasium.

Joins a world, the rules of its episodes and what a world model is told about it. Draws nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium

from lfo.envs.base import MAX_ACTION_CHARS, parse_action, written
from lfo.envs.phone.csr import DreamtCsr
from lfo.envs.phone.episode import AS_DECIDED, PhoneEpisode, Rules
from lfo.envs.phone.knowledge import PhoneKnowledge
from lfo.envs.phone.records import PhoneTask
from lfo.envs.phone.tools import TOOLS
from lfo.envs.phone.world import LEVELS, World

SYSTEM = (
    "You get things done by phone for a user. Every turn is one call of one tool. Look the company up, then ask the "
    "user for the personal fields that the phone call will need, then make the call. The user answers one form and "
    "shares no more than is needed. When everything is done, make no call."
)


class PhoneEnvironment:
    """See `lfo.protocols.Environment`. held_out_phrasing: users and CSRs say things as never in training."""

    system = SYSTEM
    tools = TOOLS

    def __init__(
        self,
        world: World,
        rules: Rules = AS_DECIDED,
        levels: Sequence[int] = tuple(LEVELS),
        held_out_phrasing: bool = False,
    ):
        self.world, self.rules, self.levels = world, rules, tuple(levels)
        self.held_out_phrasing = held_out_phrasing
        self.knowledge = PhoneKnowledge(world, self.levels, rules.replies == "reasons")

    def tasks(self, split: str) -> list[PhoneTask]:
        return self.world.split(split, self.levels)

    def episode(self, task: PhoneTask, seed: int, responder: DreamtCsr | None = None) -> PhoneEpisode:
        return PhoneEpisode(self.world, task, self.rules, seed, self.held_out_phrasing, responder)


_CHARSET = "".join(chr(i) for i in range(32, 127))


class PhoneCallEnv(gymnasium.Env):
    """The phone world behind Gymnasium's interface.

    ### Action space
    `Text`: an action without its opening and closing tag, e.g.
    ``search_company<|args|>{"company_name": "Harbor Bank"}``; the empty text hangs up.

    ### Observation space
    `Text`: the user's request after `reset`, then the tool's answer as JSON.

    ### Reward
    0 until the end, then 1 for success, else 0 (or the shaped ladder, see `Rules.reward`).

    ### Episode end
    terminated: success, hanging up, too many malformed calls. truncated: `max_turns`.

    `reset(options={"task": task})` chooses the task; without it the seed draws one. With
    `options={"held_out_phrasing": True}` user and CSR say things as they never do in training.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self, world: World, tasks: Sequence[PhoneTask], rules: Rules = AS_DECIDED, render_mode: str | None = None
    ):
        if not tasks:
            raise ValueError("PhoneCallEnv needs at least one task, e.g. world.split('train').")
        self.world, self.tasks, self.rules = world, list(tasks), rules
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Text(MAX_ACTION_CHARS, min_length=0, charset=_CHARSET)
        self.observation_space = gymnasium.spaces.Text(20_000, min_length=0, charset=_CHARSET)
        self.episode: PhoneEpisode | None = None

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        options = options or {}
        if unknown := set(options) - {"task", "held_out_phrasing"}:
            raise ValueError(f"unknown option '{min(unknown)}' of reset; there are 'task' and 'held_out_phrasing'.")
        task = options.get("task") or self.tasks[int(self.np_random.integers(len(self.tasks)))]
        seed, held_out = int(self.np_random.integers(2**31)), bool(options.get("held_out_phrasing"))
        self.episode = PhoneEpisode(self.world, task, self.rules, seed, held_out)
        return self.episode.request, {"task_id": task.task_id, "level": task.level}

    def step(self, action: str):
        if self.episode is None:
            raise RuntimeError("call reset() before step().")
        observation = self.episode.step(parse_action(action, TOOLS))
        stop, outcome = self.episode.stop, self.episode.outcome()
        truncated = stop is not None and stop.truncated
        info = {"stop": str(stop or ""), "shaped_reward": self.episode.shaped_reward}
        return observation, outcome.reward if stop else 0.0, stop is not None and not truncated, truncated, info

    def render(self) -> str | None:
        if self.render_mode == "ansi" and self.episode:
            return "\n".join(f"> {written(t.action)}\n{t.observation}" for t in self.episode.turns)
        return None
