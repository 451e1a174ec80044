"""Requests and replies of /tokenize, /detokenize and /tokenizer_info: those of vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rfa.service.neutral import NullIs
from rfa.service.schemas.base import Reply, Request, says
from rfa.service.schemas.openai import LONGEST_MODEL_NAME, PromptText
from rfa.service.schemas.reply_types import Many
from rfa.service.schemas.sampling import TokenId
from rfa.service.schemas.text_replies import TOKEN_ID

Model = Annotated[
    str | None, Field(max_length=LONGEST_MODEL_NAME, description="null: the server's first language model")
]


class TokenizeRequest(Request):
    """A text to tokenise."""

    prompt: PromptText = Field(description="the text")
    model: Model = None
    add_special_tokens: bool | None = Field(default=None, description="ignored: prompts get no special tokens")
    return_token_strs: Annotated[bool, NullIs(False)] = Field(
        default=False, description="return the text of each token"
    )


class DetokenizeRequest(Request):
    """Tokens to join."""

    tokens: list[TokenId] = Field(max_length=1_000_000, fail_fast=True, description="token ids")
    model: Model = None


@dataclass
class TokenizeReply(Reply):
    """The tokens of a text."""

    count: Annotated[int, says("number of tokens")]
    max_model_len: Annotated[int, says("largest number of tokens of a prompt on this server")]
    tokens: Annotated[Many[int], says(TOKEN_ID)]
    token_strs: Annotated[
        Many[str] | None, says("texts of the tokens; `bytes:\\x..` if incomplete; null unless requested")
    ]


@dataclass
class DetokenizeReply(Reply):
    """The text of tokens."""

    prompt: Annotated[str, says("the text without special tokens; broken characters are replaced")]


@dataclass
class TokenizerInfo(Reply):
    """The tokenizer of a model."""

    tokenizer_class: Annotated[str, says("class in transformers that reads the bundle's tokenizer.json")]
    model: Annotated[str, says("name of the model")]
    vocab_size: Annotated[int, says("number of tokens")]
    eos_token: Annotated[str | None, says("the token that ends a text")]
    bos_token: Annotated[str | None, says("the same: it stands between texts")]
    pad_token: Annotated[str | None, says("the same; prompts are never padded")]
    eos_token_id: Annotated[int | None, says(TOKEN_ID)]
    add_bos_token: Annotated[bool, says("constant: prompts get no special tokens")]
    chat_template: Annotated[str | None, says("a plain one: a base model is not trained on dialogues")]
    model_max_length: Annotated[int, says("largest number of tokens of a prompt on this server")]
