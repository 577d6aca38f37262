"""`dream`: the policy also practises on calls that the world model answers (Dyna, Sutton 1991).

Everything but the answer is real: nobody is called; the form is still answered, or declined, by the user. Success is
read off the imagined replies, and a policy will find whatever a world model is too optimistic about, so it is read
conservatively: a call is imagined several times, and enough of the replies must say so.
"""

from __future__ import annotations

from lfo.config import RunConfig, derive_seed
from lfo.couplings.imagine import REPLY_TOKENS
from lfo.couplings.plain import BOTH, Plain
from lfo.protocols import Question, Responder, Script
from lfo.rollout.engine import Prompt
from lfo.rollout.play import Row, Waves
from lfo.rollout.tasks import TaskStream
from lfo.text.codec import Codec
from lfo.types import WORLD_MODEL, Action, Attempt, Task

SAMPLES = 4  # imagined replies to a dreamt call
AWAKE = 0.25  # share of the task budget before the first dream


class Dream(Plain):
    """A `Coupling` whose policy practises on training tasks in dreams.

    Their tasks come from a stream of their own and do not count as sampled; real tasks and users are the same with and
    without dreams.
    """

    def __init__(self, config: RunConfig, codec: Codec):
        super().__init__(BOTH, config.world_model.scouts)
        self.config, self.codec = config, codec
        self.tasks = codec.env.tasks("train")
        for task in self.tasks[:1]:  # a world of which nobody dreams says so before the run begins
            self.responder(task)

    def practice(self, step: int, tasks_seen: int) -> list[Waves]:
        c = self.config
        if tasks_seen < AWAKE * c.task_budget:
            return []
        count = c.rollout.tasks_per_step
        stream = TaskStream(self.tasks, derive_seed(c.seed, "dream"), step * count)
        groups = []
        for k, task in enumerate(stream.take(count), start=step * count):
            seed = derive_seed(c.seed, "dreamt episode", k)
            groups.append([[Attempt(task, -1 - k, seed, dreamt=True) for _ in range(c.rollout.group_size)]])
        return groups

    def responder(self, task: Task) -> Responder:
        return self.codec.env.knowledge.responder(task, self.config.world_model.dream_agreement)

    def before_step(self, row: Row, action: Action) -> Script:
        """Let the responder of a dreamt episode know the replies to the call that comes now.

        Rollouts that have said and heard the same hear the same, as with the real environment.
        """
        if row.responder is None or not self.codec.env.knowledge.is_dreamt(action):
            return
        episode = row.episode
        asked = self.codec.question(Question(episode.request, tuple(episode.turns), action))
        seeds = [derive_seed(row.seed, "dream", len(episode.turns), k) for k in range(SAMPLES)]
        end = self.codec.reply_end_id
        replies = yield [Prompt(asked, WORLD_MODEL, REPLY_TOKENS, end, 1.0, seed) for seed in seeds]
        row.responder.heard([self.codec.reply_text(reply.tokens) for reply in replies])
