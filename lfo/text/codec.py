"""Text <-> token ids: with `lfo.text.chat` the only place that calls a tokenizer.

Every token of a trajectory gets a `Role` when it is made; all masks follow from the roles. A trajectory is assembled
from pieces - the prompt, each sampled action as the sampler emitted it, each observation rendered once - and is never
tokenised again.

There are two dialects. `Codec` is `tags`, that of the embedded base model::

    <|task|>request<|/task|><|tool|>search_company<|args|>{...}<|end|><|obs|>{...}<|/obs|><|tool|>...

The rollout loop opens every action, so the policy always acts as the agent. A note, whoever
says it, is ``<|note|>source: text<|/note|>``. The world model reads its own text, trained on the reply
and its closing tag only::

    <|state|>...<|/state|><|action|>call<|/action|><|predict_csr|><|csr|>reply<|/csr|>

or, with the coupling `echo`, the episode as the policy reads it (its calls as they are usually written), where a reply
ends with ``<|/obs|>``. What the state says
is the environment's affair (`Knowledge.state`).

`lfo.text.chat.ChatCodec` is `chat`: the model's own chat template with JSON tool schemas, for Qwen3 and others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from lfo.envs.base import parse_action, written
from lfo.protocols import Blank, Environment, Question
from lfo.types import Action, Call, Encoded, Example, Turn

SPECIAL_TOKENS = tuple(
    "<|pad|> <|task|> <|/task|> <|tool|> <|args|> <|end|> <|obs|> <|/obs|> <|note|> <|/note|> "
    "<|state|> <|/state|> <|action|> <|/action|> <|predict_csr|> <|csr|> <|/csr|>".split()
)
STATE_TOKENS = 512  # at most, per world-model state


class TokenizerError(ValueError):
    """The tokenizer cannot serve the dialect; the message names what is missing."""


class Codec:
    """Renders and reads the `tags` dialect with one tokenizer, for one environment.

    in_passing: the world model reads what the policy reads. end_id closes an action, reply_end_id a reply. tags: the
    tokens that give a text its form.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, env: Environment, in_passing: bool = False):
        self.tokenizer, self.env, self.in_passing = tokenizer, env, in_passing
        ids = {t: tokenizer.convert_tokens_to_ids(t) for t in SPECIAL_TOKENS}
        if missing := [t for t, i in ids.items() if i is None or i == tokenizer.unk_token_id]:
            raise TokenizerError(f"the tokenizer lacks {', '.join(missing)}; the tags dialect needs the embedded base.")
        self._ids, self.tags = ids, set(ids.values())
        self.pad_id, self.end_id = ids["<|pad|>"], ids["<|end|>"]
        self.reply_end_id = ids["<|/obs|>" if in_passing else "<|/csr|>"]
        self.opener = [ids["<|tool|>"]]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    # --- the policy's trajectory --------------------------------------------------------------

    def prompt(self, request: str) -> list[int]:
        """The task, with the first action not yet opened."""
        return self.encode(f"<|task|>{request}<|/task|>")

    def observation(self, text: str) -> list[int]:
        return self.encode(f"<|obs|>{text}<|/obs|>")

    def note(self, source: str, reply: Sequence[int]) -> list[int]:
        """What is told to the policy beyond the episode: a reply, as it was sampled, and who says so.

        Tags in the reply are left out, or it could end the note that it stands in.
        """
        body = [i for i in reply if i not in self.tags]
        return [self._ids["<|note|>"], *self.encode(f"{source}: "), *body, self._ids["<|/note|>"]]

    def critique(self, request: str, turns: Sequence[Turn], source: str) -> tuple[list[int], int]:
        """What a model reads before it writes feedback, and the token that ends it: the attempt, and a note begun."""
        begun = [self._ids["<|note|>"], *self.encode(f"{source}: ")]
        return [*self.encode(_past(request, turns)), *begun], self._ids["<|/note|>"]

    def turn(self, call: Call, observed: str) -> list[int]:
        """A call, opener included, and what was observed, as they stand in an episode."""
        return [*self.opener, *self.encode(written(call)), self.end_id, *self.observation(observed)]

    def action(self, ids: Sequence[int]) -> Action:
        """What the policy said between its tags; text that is no call is malformed."""
        return parse_action(self.action_text(ids), self.env.tools)

    def action_text(self, ids: Sequence[int]) -> str:
        return self.decode(ids[:-1] if ids and ids[-1] == self.end_id else ids)

    def beginning(self, blank: Blank) -> list[int]:
        """What is put into the policy's mouth for it to fill in the blank, opener included."""
        return [*self.opener, *self.encode(written(blank.call).partition(blank.value)[0])]

    def blank_length(self, blank: Blank) -> int:
        """How many tokens it takes to fill in the blank, and one for what closes it."""
        return len(self.encode(blank.value)) + 1

    # --- the world model's examples -----------------------------------------------------------

    def question(self, asked: Question) -> list[int]:
        """State before a call, the call, and the opening of the reply; at most STATE_TOKENS of state."""
        call = written(asked.call)
        if self.in_passing:
            return self.encode(f"{_past(asked.request, asked.turns)}<|tool|>{call}<|end|><|obs|>")
        read = "".join(f"<|note|>{text}<|/note|>" for text in asked.similar)
        return self.encode(f"{read}{self.state(asked)}<|action|>{call}<|/action|><|predict_csr|><|csr|>")

    def state(self, asked: Question) -> str:
        """The state between its tags; the oldest actions are dropped until it has at most STATE_TOKENS, if it can."""
        for dropped in range(len(asked.turns) + 1):
            state = f"<|state|>{self.env.knowledge.state(asked, dropped)}<|/state|>"
            if len(self.encode(state)) <= STATE_TOKENS:
                break
        return state

    def reply(self, text: str) -> list[int]:
        return [*self.encode(text), self.reply_end_id]

    def reply_text(self, ids: Sequence[int]) -> str:
        """A sampled reply as text, without its closing tag."""
        return self.decode([i for i in ids if i != self.reply_end_id])

    def encoded(self, asked: Question, reply: str) -> Encoded:
        return Encoded(tuple(self.question(asked)), tuple(self.reply(reply)))

    def rewritten(self, tokens: Sequence[int], roles: Sequence[int], change: Callable[[str], str]):
        """Tokens and roles of a trajectory whose text was changed, stretch by stretch of one role."""
        out: tuple[list[int], list[int]] = [], []
        for role, part in itertools.groupby(zip(tokens, roles, strict=True), key=lambda pair: pair[1]):
            ids = self.encode(change(self.decode([token for token, _ in part])))
            out[0].extend(ids)
            out[1].extend([role] * len(ids))
        return out

    def acted(self, request: str, turns: Sequence[Turn], call: Call) -> Encoded:
        """An action as the policy says it, after these turns."""
        context = self.encode(f"{_past(request, turns)}<|tool|>")
        return Encoded(tuple(context), (*self.encode(written(call)), self.end_id))

    def examples(self, task_id: str, request: str, turns: Sequence[Turn], predict: str) -> list[Example]:
        """World-model examples from the turns of one rollout; `predict` is a key of `Knowledge.learned`."""
        tools = self.env.knowledge.learned[predict]
        found = []
        for i, turn in enumerate(turns):
            if turn.tool in tools:
                asked = Question(request, tuple(turns[:i]), turn.action)
                encoded = self.encoded(asked, turn.observation)
                found += [Example(task_id, turn.action, turn.observation, turn.status, encoded, request, asked.turns)]
        return found


def _past(request: str, turns: Sequence[Turn]) -> str:
    """An episode as the policy reads it, its calls as they are usually written."""
    return f"<|task|>{request}<|/task|>{''.join(map(as_acted, turns))}"


def as_acted(turn: Turn) -> str:
    """An action, as it is usually written, and what was observed."""
    return f"<|tool|>{written(turn.action)}<|end|><|obs|>{turn.observation}<|/obs|>"
