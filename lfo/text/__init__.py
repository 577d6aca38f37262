"""Text <-> token ids: the base model, its tokenizer and the two dialects."""

from __future__ import annotations

from lfo.config import ModelConfig, located
from lfo.protocols import Environment
from lfo.text.base import load_tokenizer
from lfo.text.chat import ChatCodec
from lfo.text.codec import Codec, TokenizerError

__all__ = ["ChatCodec", "Codec", "TokenizerError", "load_codec"]


def load_codec(model: ModelConfig, env: Environment, in_passing: bool = False) -> Codec:
    """The codec of a run's base and dialect for an environment. in_passing: see `Codec`.

    Raises:
        FileNotFoundError: there is no base, or no template file that `model.dialect` names.
        TokenizerError: the tokenizer or its template cannot serve the dialect.
    """
    tokenizer = load_tokenizer(model.base)
    if model.dialect == "tags":
        return Codec(tokenizer, env, in_passing)
    if model.dialect != "chat":
        tokenizer.chat_template = located(model.dialect).read_text(encoding="utf-8")
    if not tokenizer.chat_template:
        raise TokenizerError(f"the tokenizer of '{model.base}' has no chat template; name a file in model.dialect.")
    return ChatCodec(tokenizer, env)
