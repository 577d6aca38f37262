"""Text <-> token ids: the only module that calls a tokenizer.

Every token of a trajectory gets a `Role` when it is made; all masks follow from the roles. A
trajectory is assembled from pieces - the prompt, each sampled action as the sampler emitted it,
each observation rendered once - and is never tokenised again.

There are two dialects. `Codec` is `tags`, that of the embedded base model::

    <|task|>request<|/task|><|tool|>search_company<|args|>{...}<|end|><|obs|>{...}<|/obs|><|tool|>...

After every observation the next action is already opened, so the policy always acts as the agent.
The world model reads its own template, trained on the reply and its closing tag only::

    <|state|>...<|/state|><|action|>call<|/action|><|predict_csr|><|csr|>reply<|/csr|>

or, with the template `trajectory`, what the policy itself reads, where a reply ends with ``<|/obs|>``.

`ChatCodec` is `chat`: the model's own chat template with JSON tool schemas, for Qwen3 and others.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from lfo.base import load_tokenizer
from lfo.config import ModelConfig
from lfo.records import Trajectory, Turn
from lfo.tools import ARGS_TAG, TOOLS, json_schema, read_tool_call

SPECIAL_TOKENS = (
    "<|pad|>", "<|task|>", "<|/task|>", "<|tool|>", "<|args|>", "<|end|>", "<|obs|>", "<|/obs|>",
    "<|imagine|>", "<|/imagine|>", "<|feedback|>", "<|/feedback|>", "<|state|>", "<|/state|>", "<|action|>",
    "<|/action|>", "<|predict_csr|>", "<|csr|>", "<|/csr|>",
)  # fmt: skip

# What the world model learns to predict -> the tools whose answers are its targets.
PREDICTED_TOOLS = {
    "nothing": (),
    "phone": ("make_phone_call",),
    "phone+form": ("make_phone_call", "auth_info_form"),
    "all": ("make_phone_call", "auth_info_form", "search_company"),
}
STATE_TOKENS = 512  # at most, per world-model state (DESIGN section 3)
CALL_PREFIX = 'make_phone_call<|args|>{"phone_number": "'


class Role(enum.IntEnum):
    """Who wrote a token. The policy loss sees ACTION tokens only."""

    PROMPT = 0
    ACTION = 1
    OBSERVATION = 2
    IMAGINED = 3
    FEEDBACK = 4


@dataclasses.dataclass(frozen=True)
class CallExample:
    """One world-model example: what was known before a call, the call, and what was answered.

    prompt, reply: token ids; the loss is taken on `reply`, which ends with the closing tag.
    status, reply_text: the true answer, for metrics by category.
    """

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    status: str
    reply_text: str
    task_id: str


class TokenizerError(ValueError):
    """The tokenizer cannot serve the dialect; the message names what is missing."""


class Codec:
    """Renders and reads the `tags` dialect with one tokenizer.

    template: what the world model reads, see `WorldModelConfig`. csr_end_id: the token that closes a reply there.
    """

    template = "call"

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str = "call"):
        self.tokenizer, self.template = tokenizer, template
        ids = {t: tokenizer.convert_tokens_to_ids(t) for t in SPECIAL_TOKENS}
        if missing := [t for t, i in ids.items() if i is None or i == tokenizer.unk_token_id]:
            raise TokenizerError(f"the tokenizer lacks {', '.join(missing)}; the tags dialect needs the embedded base.")
        self._ids = ids
        self.pad_id, self.end_id = ids["<|pad|>"], ids["<|end|>"]
        self.csr_end_id = ids["<|/obs|>" if template == "trajectory" else "<|/csr|>"]

    @classmethod
    def load(cls, path: str | Path, template: str = "call") -> Codec:
        return cls(load_tokenizer(path), template)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    # --- the policy's trajectory --------------------------------------------------------------

    def prompt(self, request: str) -> list[int]:
        """The task, with the first action not yet opened."""
        return self.encode(f"<|task|>{request}<|/task|>")

    @property
    def opener(self) -> list[int]:
        return [self._ids["<|tool|>"]]

    def observation(self, text: str) -> list[int]:
        return self.encode(f"<|obs|>{text}<|/obs|>")

    def imagined(self, reply: Sequence[int]) -> list[int]:
        """A reply sampled from the world model, set into the policy's context as it was sampled."""
        body = [i for i in reply if i != self.csr_end_id]
        return [self._ids["<|imagine|>"], *body, self._ids["<|/imagine|>"]]

    def action_text(self, ids: Sequence[int]) -> str:
        """The action between its tags; a call that never closed keeps its text and will not parse."""
        ids = list(ids)
        return self.decode(ids[:-1] if ids and ids[-1] == self.end_id else ids)

    @property
    def number_tokens(self) -> int:
        """How many tokens it takes to say a phone number, and one for what closes it."""
        return len(self.encode("800-555-0100")) + 1

    def call_prefix(self) -> list[int]:
        """The beginning of a phone call, to ask the policy whom it means to call."""
        return self.encode(CALL_PREFIX)

    # --- the world model's examples -----------------------------------------------------------

    def world_prompt(self, request: str, turns: Sequence[Turn], action: str) -> list[int]:
        """State before `action`, the action, and the opening of the reply; at most STATE_TOKENS of state.

        With the template `trajectory`: the whole episode so far, as the policy reads it.
        """
        if self.template == "trajectory":
            past = [f"<|tool|>{turn.action}<|end|><|obs|>{turn.observation}<|/obs|>" for turn in turns]
            return self.encode(f"<|task|>{request}<|/task|>{''.join(past)}<|tool|>{action}<|end|><|obs|>")
        return self.encode(f"{self._state(request, turns)}<|action|>{action}<|/action|><|predict_csr|><|csr|>")

    def _state(self, request: str, turns: Sequence[Turn]) -> str:
        """The state between its tags; the oldest actions are dropped until it has at most STATE_TOKENS."""
        for dropped in range(len(turns) + 1):
            state = f"<|state|>{state_text(request, turns, dropped)}<|/state|>"
            if len(self.encode(state)) <= STATE_TOKENS:
                break
        return state

    def asked_about(self, prompt: Sequence[int]) -> str:
        """The action of a `world_prompt`."""
        opening, closing = ("<|tool|>", "<|end|>") if self.template == "trajectory" else ("<|action|>", "<|/action|>")
        return self.decode(prompt).rpartition(opening)[2].partition(closing)[0]

    def world_reply(self, text: str) -> list[int]:
        return [*self.encode(text), self.csr_end_id]

    def reply_text(self, ids: Sequence[int]) -> str:
        """A sampled reply as text, without its closing tag."""
        return self.decode([i for i in ids if i != self.csr_end_id])

    def call_examples(self, task_id: str, request: str, turns: Sequence[Turn], predict: str) -> list[CallExample]:
        """World-model examples from the turns of one rollout; `predict` is a key of PREDICTED_TOOLS."""
        return [
            CallExample(
                tuple(self.world_prompt(request, turns[:i], turn.action)),
                tuple(self.world_reply(turn.observation)),
                turn.status,
                turn.observation,
                task_id,
            )
            for i, turn in enumerate(turns)
            if turn.tool in PREDICTED_TOOLS[predict]
        ]


CHAT_RULES = (
    "You get things done by phone for a user. Every turn is one call of one tool. Look the company up, then ask the "
    "user for the personal fields that the phone call will need, then make the call. The user answers one form and "
    "shares no more than is needed. When everything is done, make no call."
)
CHAT_IMAGINED = "Before you go on: a call made with nothing but its number would probably be answered with\n{reply}"
CHAT_QUESTION = "{state}\n<|action|>{action}<|/action|>\nWhat is answered?"
_SAID, _TOLD = "@@said@@", "@@told@@"  # stand for what an assistant and a tool say while the template is taken apart


class ChatCodec(Codec):
    """The `chat` dialect: a system message with the tools, the request, then assistant and tool messages.

    Nothing of a template is written here: the text around a message is what appears when the template
    renders a conversation with that message in it. The prompt is rendered once, every observation once,
    and nothing that stands in a trajectory is ever rendered or tokenised again. So a trajectory is the
    template's rendering of the whole conversation, but for one thing: templates such as Qwen3's take
    the (empty) thinking block of an earlier message out again, and what was sampled stays here.

    The world model is asked in a user message, without tools and without thinking, and answers in
    the assistant's.

    Raises (on construction):
        TokenizerError: the template shows the model no tools, or cannot be taken apart.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, thinking: bool = False):
        self.tokenizer, self._thinking = tokenizer, thinking
        self._schemas = [json_schema(tool) for tool in TOOLS]
        start = self._render(_conversation("."))
        if lacking := [tool for tool in TOOLS if tool not in start]:
            raise TokenizerError(
                f"the chat template does not show the model its tools ({', '.join(lacking)} are missing);"
                " set model.chat_template to a template that does, e.g. configs/chatml_tools.jinja."
            )
        opened = self._render(_conversation("."), opened=True)
        self._opener = self.encode(_without(opened, start))
        self.end_id = self.encode(_after(self._render(_conversation(".", said=_SAID)), _SAID))[0]
        if self.end_id not in tokenizer.added_tokens_decoder:
            raise TokenizerError("the chat template does not end a message of the assistant with a token of its own.")
        self.csr_end_id = self.end_id
        self.pad_id = self.end_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        answered = _conversation(".", said=_SAID, told=_TOLD)
        hint = {"role": "user", "content": CHAT_IMAGINED.format(reply=_SAID)}
        hinted = _without(_after(self._render([*answered, hint]), _TOLD), _after(self._render(answered), _TOLD))
        self._imagined = [self.encode(part) for part in hinted.split(_SAID)]
        call = {"name": "make_phone_call", "arguments": {"phone_number": _SAID, "auth_info": {}}}
        message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
        calling = self._render([*_conversation("."), message])
        self._call_prefix = self.encode(_without(calling.partition(_SAID)[0], opened))

    def _render(self, messages: list[dict], opened: bool = False) -> str:
        """The template's text; `opened`: with the header of the assistant's next message."""
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                tools=self._schemas,
                tokenize=False,
                add_generation_prompt=opened,
                enable_thinking=self._thinking,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise TokenizerError(f"the chat template fails on a conversation with tools ({error}).") from None

    def prompt(self, request: str) -> list[int]:
        return self.encode(self._render(_conversation(request)))

    @property
    def opener(self) -> list[int]:
        """The header of the assistant's message, and an empty thinking block where thinking is switched off."""
        return list(self._opener)

    def observation(self, text: str) -> list[int]:
        """What follows the assistant's closing token: the tool's message."""
        rest = _after(self._render(_conversation(".", said=_SAID, told=text)), _SAID)
        return self.encode(_without(rest, self.decode([self.end_id])))

    def imagined(self, reply: Sequence[int]) -> list[int]:
        """A reply sampled from the world model, as it was sampled, in a user message of its own."""
        before, after = self._imagined
        return [*before, *(i for i in reply if i != self.csr_end_id), *after]

    def action_text(self, ids: Sequence[int]) -> str:
        """The message's first tool call in the form the environment reads; cut off before a call it is malformed."""
        ids = list(ids)
        closed = bool(ids) and ids[-1] == self.end_id
        message = self.decode(ids[:-1] if closed else ids)
        return read_tool_call(message) or ("" if closed else ARGS_TAG + message)

    def call_prefix(self) -> list[int]:
        return list(self._call_prefix)

    def world_prompt(self, request: str, turns: Sequence[Turn], action: str) -> list[int]:
        question = CHAT_QUESTION.format(state=self._state(request, turns), action=action)
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return self.encode(text)


def _conversation(request: str, said: str | None = None, told: str | None = None) -> list[dict]:
    """The first messages, up to the assistant's first (`said`) or the first answer of a tool (`told`)."""
    messages = [{"role": "system", "content": CHAT_RULES}, {"role": "user", "content": request}]
    messages += [] if said is None else [{"role": "assistant", "content": said}]
    return messages + ([] if told is None else [{"role": "tool", "content": told}])


def _after(text: str, mark: str) -> str:
    """What follows `mark` in a rendering."""
    if mark not in text:
        raise TokenizerError("the chat template leaves out what an assistant or a tool says.")
    return text.partition(mark)[2]


def _without(text: str, beginning: str) -> str:
    """A rendering without what it begins with."""
    if not text.startswith(beginning):
        raise TokenizerError("the chat template changes the beginning of a conversation when the conversation goes on.")
    return text.removeprefix(beginning)


def load_codec(model: ModelConfig, template: str = "call") -> Codec:
    """The codec of a run's base and dialect, and of what its world model reads (`tags` only).

    Raises:
        FileNotFoundError: there is no base, or no file `model.chat_template`.
        TokenizerError: the tokenizer or its template cannot serve the dialect.
    """
    if model.dialect == "tags":
        return Codec.load(model.base, template)
    tokenizer = load_tokenizer(model.base)
    if model.chat_template:
        tokenizer.chat_template = Path(model.chat_template).read_text(encoding="utf-8")
    if not tokenizer.chat_template:
        raise TokenizerError(
            f"the tokenizer of '{model.base}' has no chat template; set model.chat_template to a file."
        )
    return ChatCodec(tokenizer, model.thinking)


def state_text(request: str, turns: Sequence[Turn], dropped: int = 0) -> str:
    """The compressed state: the oldest `dropped` previous actions are left out, the directory stays.

    Values of the form do not appear, only which fields were collected.
    """
    directory, actions, collected, unavailable = [], [], [], []
    for turn in turns:
        try:
            data = json.loads(turn.observation) if turn.observation else {}
        except json.JSONDecodeError:
            data = {}
        where = ""
        if turn.tool == "search_company":
            directory = [f"{d['name']} {d['phone']}" for d in data.get("departments", [])]
        elif turn.tool == "auth_info_form" and turn.status == "ok":
            collected += [f for f in data if f != "unavailable"]
            unavailable += data["unavailable"]
        elif turn.tool == "make_phone_call":
            number = json.loads(turn.action.partition("<|args|>")[2])["phone_number"]
            where = f" {json.dumps(number)[1:-1][:20]}"  # escaped: a model may write what has no UTF-8 form
        actions.append(f"{turn.tool or 'none'}{where} {turn.status}")
    parts = [request, f"Step {len(turns) + 1}.", f"Directory: {'; '.join(directory)}."]
    parts.append(f"Previous Actions: {'; '.join(actions[dropped:])}.")
    parts.append(f"Collected Auth: {json.dumps(collected)}. Unavailable: {json.dumps(unavailable)}.")
    return " ".join(parts)


def reply_mask(row: Trajectory, predict: str) -> list[bool]:
    """Which tokens of a trajectory are replies, with their closing tags, that `predict` names (PREDICTED_TOOLS).

    An observation ends with the opener of the next action, where there is one: its first and that token are none.
    """
    mask, turns, tool = [], iter(row.turns), None
    for i, role in enumerate(row.roles):
        begins = i == 0 or row.roles[i - 1] != role
        ends = i + 1 < len(row.roles) and row.roles[i + 1] != role
        if begins and role == Role.ACTION:
            tool = next(turns).tool
        mask.append(role == Role.OBSERVATION and tool in PREDICTED_TOOLS[predict] and not begins and not ends)
    return mask


def without(row: Trajectory, role: Role) -> Trajectory:
    """The trajectory as if nobody had written the tokens of this role; `logprobs` stay those of the full context."""
    kept = [i for i, r in enumerate(row.roles) if r != role]
    lists = {name: [getattr(row, name)[i] for i in kept] for name in ("tokens", "roles", "logprobs")}
    return dataclasses.replace(row, **lists)


def segments(codec: Codec, row: Trajectory) -> list[tuple[Role, str, int]]:
    """A trajectory as (role, text, tokens) pieces, each as long as the role stays the same."""
    out, start = [], 0
    for i in range(1, len(row.tokens) + 1):
        if i == len(row.tokens) or row.roles[i] != row.roles[start]:
            out.append((Role(row.roles[start]), codec.decode(row.tokens[start:i]), i - start))
            start = i
    return out


# --- batches ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Batch:
    """Right-padded token sequences.

    tokens (B, T) int64; attention (B, T) int64, 0 on padding; loss_mask (B, T) float32, 1 on tokens
    that are predicted (position t is predicted from t-1, so column 0 is always 0); heard (B, T) float32, 1 on
    those of them that the environment said and the world model learns; old_logprobs (B, T)
    float32, the sampler's; advantages (B,) float32.
    """

    tokens: torch.Tensor
    attention: torch.Tensor
    loss_mask: torch.Tensor
    heard: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor

    def to(self, device) -> Batch:
        return Batch(*(getattr(self, f.name).to(device) for f in dataclasses.fields(self)))


def _pad(rows: Sequence[Sequence], fill, dtype) -> torch.Tensor:
    out = torch.full((len(rows), max((len(r) for r in rows), default=1)), fill, dtype=dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row, dtype=dtype)
    return out


def collate_trajectories(
    rows: Sequence[Trajectory], advantages: Sequence[float | None], pad_id: int, predict: str = "nothing"
) -> Batch:
    """Trajectories -> batch whose loss mask covers the ACTION tokens and the replies that `predict` names.

    A row whose advantage is None only listens: its actions are not in the mask.
    """
    acted = [[a is not None and x == Role.ACTION for x in r.roles] for r, a in zip(rows, advantages, strict=True)]
    heard = [reply_mask(r, predict) if predict != "nothing" else [False] * len(r.roles) for r in rows]
    either = [[float(a or h) for a, h in zip(*masks, strict=True)] for masks in zip(acted, heard, strict=True)]
    return Batch(
        tokens=_pad([r.tokens for r in rows], pad_id, torch.long),
        attention=_pad([[1] * len(r.tokens) for r in rows], 0, torch.long),
        loss_mask=_pad(either, 0.0, torch.float32),
        heard=_pad(heard, 0.0, torch.float32),
        old_logprobs=_pad([r.logprobs for r in rows], 0.0, torch.float32),
        advantages=torch.tensor([a or 0.0 for a in advantages], dtype=torch.float32),
    )


def collate_calls(rows: Sequence[CallExample], pad_id: int) -> Batch:
    """World-model examples -> batch whose loss mask covers the reply and its closing tag."""
    sequences = [[*r.prompt, *r.reply] for r in rows]
    masks = [[0.0] * len(r.prompt) + [1.0] * len(r.reply) for r in rows]
    return Batch(
        tokens=_pad(sequences, pad_id, torch.long),
        attention=_pad([[1] * len(s) for s in sequences], 0, torch.long),
        loss_mask=_pad(masks, 0.0, torch.float32),
        heard=_pad(masks, 0.0, torch.float32),
        old_logprobs=torch.zeros(len(rows), max((len(s) for s in sequences), default=1)),
        advantages=torch.zeros(len(rows)),
    )
