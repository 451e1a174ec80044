"""Requests and replies of /tokenize, /detokenize and /tokenizer_info. They have the fields of vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rfa.service.neutral import NullIs
from rfa.service.schemas.base import Reply, Request, says
from rfa.service.schemas.openai import LanguageModelName, PromptText
from rfa.service.schemas.reply_types import Many
from rfa.service.schemas.sampling import TokenId
from rfa.service.schemas.text_replies import TOKEN_ID


class TokenizeRequest(Request):
    """Text to tokenise."""

    prompt: PromptText = Field(description="Text to tokenise.")
    model: LanguageModelName = None
    add_special_tokens: bool | None = Field(
        default=None, description="Ignored, because prompts contain no special tokens."
    )
    return_token_strs: Annotated[bool, NullIs(False)] = Field(
        default=False, description="Whether to return the text of each token."
    )


class DetokenizeRequest(Request):
    """Token ids to decode."""

    tokens: list[TokenId] = Field(max_length=1_000_000, fail_fast=True, description="Ids of the tokens to decode.")
    model: LanguageModelName = None


PromptLimit = Annotated[int, says("Maximum number of tokens in a prompt on this server.")]


@dataclass
class TokenizeReply(Reply):
    """Tokens of a text."""

    count: Annotated[int, says("Number of tokens in the text.")]
    max_model_len: PromptLimit
    tokens: Annotated[Many[int], says(TOKEN_ID)]
    token_strs: Annotated[
        Many[str] | None,
        says("Text of each token, or `bytes:\\x..` if its bytes are not complete characters; null unless requested."),
    ]


@dataclass
class DetokenizeReply(Reply):
    """Text of the tokens in the request."""

    prompt: Annotated[str, says("Text of the tokens, without special tokens and with invalid bytes replaced.")]


@dataclass
class TokenizerInfo(Reply):
    """Description of the tokenizer of a model."""

    tokenizer_class: Annotated[
        str, says("Name of the class of transformers that can load the file tokenizer.json of the bundle.")
    ]
    model: Annotated[str, says("Name of the model.")]
    vocab_size: Annotated[int, says("Number of tokens in the vocabulary.")]
    eos_token: Annotated[str | None, says("Token that ends a text.")]
    bos_token: Annotated[str | None, says("Same token as `eos_token`, which separates texts.")]
    pad_token: Annotated[str | None, says("Same token as `eos_token`; prompts are never padded.")]
    eos_token_id: Annotated[int | None, says(TOKEN_ID)]
    add_bos_token: Annotated[bool, says("Always false, because prompts contain no special tokens.")]
    chat_template: Annotated[
        str | None,
        says("Template that converts a dialogue to a prompt. The models are not trained on dialogues."),
    ]
    model_max_length: PromptLimit
