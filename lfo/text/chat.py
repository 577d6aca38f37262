"""The `chat` dialect: the model's own chat template with JSON tool schemas, for Qwen3 and others."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from lfo.envs.base import ARGS_TAG, from_chat, written
from lfo.protocols import Blank, Environment, Question
from lfo.text.codec import Codec, TokenizerError
from lfo.types import Call, Turn

CRITIQUE = (
    "{request}\n{done}\nThis attempt failed. Say in one or two sentences, for whoever tries again: what was given, what"
    " was missing or wrong, and what to do first. Give no personal values."
)
# Shown before the question, since a small model that is only told what to write may repeat the question; names nothing
# that an environment here asks for.
EXAMPLE = {
    "request": "Book a table for tonight.",
    "done": 'reserve({"restaurant": "Il Faro"}) -> {"message": "We need your party size and the hour."}',
}
ANSWERED = "The restaurant was given; the party size and the hour were missing. Ask for both, then reserve."
QUESTION = "{state}\n<|action|>{action}<|/action|>\nWhat is answered?"
OTHER = "name another template file in model.dialect, e.g. configs/chatml_tools.jinja"
# Stand for what an assistant and a tool say, and who says a note, while the template is taken apart.
_SAID, _TOLD, _SOURCE = "@@said@@", "@@told@@", "@@source@@"


class ChatCodec(Codec):
    """A system message with the tools, the request, then assistant and tool messages.

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

    in_passing = False

    def __init__(self, tokenizer: PreTrainedTokenizerBase, env: Environment):
        self.tokenizer, self.env = tokenizer, env
        self._schemas = [tool.schema() for tool in env.tools.values()]
        start = self._render(self._conversation("."))
        if lacking := [tool for tool in env.tools if tool not in start]:
            raise TokenizerError(f"the template does not show the model its tools ({', '.join(lacking)}); {OTHER}.")
        self._opened = self._render(self._conversation("."), opened=True)
        self.opener = self.encode(_without(self._opened, start))  # with an empty thinking block
        self.end_id = self.encode(_after(self._render(self._conversation(".", said=_SAID)), _SAID))[0]
        if self.end_id not in tokenizer.added_tokens_decoder:
            raise TokenizerError(f"the template ends no message of the assistant with a token of its own; {OTHER}.")
        self.reply_end_id = self.end_id
        self.tags = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.pad_id = self.end_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        _without(self._render(self._conversation(".", said=_SAID, told=_TOLD)), start)
        self._note = self._around_a_note() if env.knowledge else None
        if env.knowledge:  # a template that cannot begin a call is refused here, not in the middle of a run
            self.beginning(Blank(Call(next(iter(env.tools)), {"argument": _SAID}), _SAID))

    def _around_a_note(self) -> tuple[str, str]:
        """What stands before and after a note's text: it is a user message of its own."""
        answered = self._conversation(".", said=_SAID, told=_TOLD)
        hint = {"role": "user", "content": self.env.knowledge.hint.format(source=_SOURCE, reply=_SAID)}
        hinted = _without(_after(self._render([*answered, hint]), _TOLD), _after(self._render(answered), _TOLD))
        return hinted.partition(_SAID)[::2]

    def _conversation(self, request: str, said: str | None = None, told: str | None = None) -> list[dict]:
        """The first messages, up to the assistant's first (`said`) or the first answer of a tool (`told`)."""
        texts = {"system": self.env.system, "user": request, "assistant": said, "tool": told}
        return [{"role": role, "content": text} for role, text in texts.items() if text is not None]

    def _render(self, messages: list[dict], opened: bool = False, tools: bool = True) -> str:
        """The template's text; `opened`: with the header of the assistant's next message."""
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                tools=self._schemas if tools else None,
                tokenize=False,
                add_generation_prompt=opened,
                enable_thinking=False,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise TokenizerError(f"the chat template fails on a conversation with tools ({error}); {OTHER}.") from None

    def prompt(self, request: str) -> list[int]:
        return self.encode(self._render(self._conversation(request)))

    def observation(self, text: str) -> list[int]:
        """What follows the assistant's closing token: the tool's message."""
        rest = _after(self._render(self._conversation(".", said=_SAID, told=text)), _SAID)
        return self.encode(_without(rest, self.decode([self.end_id])))

    def note(self, source: str, reply: Sequence[int]) -> list[int]:
        before, after = (self.encode(part.replace(_SOURCE, source)) for part in self._note)
        return [*before, *(i for i in reply if i not in self.tags), *after]

    def critique(self, request: str, turns: Sequence[Turn], source: str) -> tuple[list[int], int]:
        done = "\n".join(f"{written(turn.action)} -> {turn.observation}" for turn in turns)
        asked = CRITIQUE.format(request=request, done=done)
        return self._asked(CRITIQUE.format(**EXAMPLE), ANSWERED, asked), self.end_id

    def _asked(self, *said: str) -> list[int]:
        """A conversation without tools, what the user and the assistant said in turn, and the assistant's opening."""
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
        return self.encode(self._render(messages, opened=True, tools=False))

    def action_text(self, ids: Sequence[int]) -> str:
        """The message's first tool call in the form of `parse_action`; cut off before a call it is malformed."""
        closed = bool(ids) and ids[-1] == self.end_id
        message = self.decode(ids[:-1] if closed else ids)
        return from_chat(message, self.env.tools) or ("" if closed else ARGS_TAG + message)

    def turn(self, call: Call, observed: str) -> list[int]:
        said = self._calling(call).partition(self.decode([self.end_id]))[0]
        return [*self.opener, *self.encode(said), self.end_id, *self.observation(observed)]

    def beginning(self, blank: Blank) -> list[int]:
        return [*self.opener, *self.encode(self._calling(blank.call).partition(blank.value)[0])]

    def _calling(self, call: Call) -> str:
        """The assistant's message that makes a call, after its header."""
        function = {"name": call.tool, "arguments": call.arguments}
        message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        return _without(self._render([*self._conversation("."), message]), self._opened)

    def question(self, asked: Question) -> list[int]:
        question = QUESTION.format(state=self.state(asked), action=written(asked.call))
        return self._asked("\n".join([*asked.similar, question]))


def _after(text: str, mark: str) -> str:
    """What follows `mark` in a rendering."""
    if mark not in text:
        raise TokenizerError(f"the chat template leaves out what an assistant or a tool says; {OTHER}.")
    return text.partition(mark)[2]


def _without(text: str, beginning: str) -> str:
    """A rendering without what it begins with."""
    if not text.startswith(beginning):
        raise TokenizerError(f"the chat template changes the beginning of a conversation as it goes on; {OTHER}.")
    return text.removeprefix(beginning)
