"""Sampling options that /generate and /v1/completions share, and neutral fields that clients of other servers send."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rfa.service.neutral import NullIs, Only
from rfa.service.schemas.base import Request

NEUTRAL = "for compatibility; only values without an effect are accepted"
NO_EFFECT = "ignored, because generated text has no special tokens"
MAX_STOP_TOKENS = 256
MAX_BIASED = 1_024

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]
Neutral = Annotated[Any, Only(None, False)]


class SamplingFields(Request):
    """Options for choosing tokens, with vLLM's names and meanings."""

    repetition_penalty: Annotated[float, NullIs(1.0)] = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description="divides positive logits and multiplies negative logits of tokens in the prompt or the new "
        "text; 1 has no effect",
    )
    presence_penalty: Annotated[float, NullIs(0.0)] = Field(
        default=0.0, ge=-2, le=2, description="number to subtract from the logits of tokens that occur in the new text"
    )
    frequency_penalty: Annotated[float, NullIs(0.0)] = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="number to subtract from a token's logit for each occurrence in the new text",
    )
    logit_bias: dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=MAX_BIASED, description="numbers to add to logits, by token id as a string"
    )
    min_p: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="drop tokens with less than this share of the largest probability; null and 0 disable the filter",
    )
    typical_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="sample from the smallest set of tokens with this probability whose information content is "
        "nearest to the entropy; null and 1 disable the filter",
    )
    min_tokens: Annotated[int, NullIs(0)] = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="number of tokens to generate before an end-of-text or stop token is allowed",
    )
    stop_token_ids: list[TokenId] | None = Field(
        default=None, max_length=MAX_STOP_TOKENS, description="ids of tokens that end the text"
    )
    ignore_eos: Annotated[bool, NullIs(False)] = Field(
        default=False, description="continue after the end-of-text token"
    )

    # Fields of vLLM that its clients and benchmarks send.
    skip_special_tokens: bool | None = Field(default=None, description=NO_EFFECT)
    spaces_between_special_tokens: bool | None = Field(default=None, description=NO_EFFECT)
    add_special_tokens: bool | None = Field(default=None, description="ignored, because prompts get no special tokens")
    use_beam_search: Neutral = Field(default=None, description=NEUTRAL)
    early_stopping: Neutral = Field(default=None, description=NEUTRAL)
    include_stop_str_in_output: Neutral = Field(default=None, description=NEUTRAL)
    length_penalty: Annotated[Any, Only(None, 1.0)] = Field(default=None, description=NEUTRAL)
    bad_words: Annotated[Any, Only(None, [])] = Field(default=None, description=NEUTRAL)
    allowed_token_ids: Annotated[Any, Only(None)] = Field(default=None, description=NEUTRAL)
    priority: Annotated[Any, Only(None, 0)] = Field(default=None, description=NEUTRAL)
    response_format: Annotated[Any, Only(None, {"type": "text"})] = Field(default=None, description=NEUTRAL)
