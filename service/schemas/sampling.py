"""Sampling options that /generate and /v1/completions share, and neutral fields that other servers' clients send."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rfa.service.neutral import NullIs, Only
from rfa.service.schemas.base import Request

NEUTRAL = "for compatibility: only values without effect"
NO_EFFECT = "ignored: generated text has no special tokens"
MAX_STOP_TOKENS = 256
MAX_BIASED = 1_024

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]
Neutral = Annotated[Any, Only(None, False)]


class SamplingFields(Request):
    """Options of the choice of tokens, with vLLM's names and meanings."""

    repetition_penalty: Annotated[float, NullIs(1.0)] = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description="logits of tokens in the prompt or the new text are divided by it if positive, else multiplied; "
        "1: none",
    )
    presence_penalty: Annotated[float, NullIs(0.0)] = Field(
        default=0.0, ge=-2, le=2, description="subtracted from the logits of tokens that are in the new text"
    )
    frequency_penalty: Annotated[float, NullIs(0.0)] = Field(
        default=0.0, ge=-2, le=2, description="subtracted from a token's logit for each time that it is in the new text"
    )
    logit_bias: dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=MAX_BIASED, description="numbers to add to logits, by token id as a string"
    )
    min_p: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="drop tokens below this share of the largest probability; null and 0: none",
    )
    typical_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="sample from the smallest set with this probability whose surprise is nearest to the entropy; "
        "null and 1: all",
    )
    min_tokens: Annotated[int, NullIs(0)] = Field(
        default=0, ge=0, le=1_000_000, description="no end-of-text or stop token before this number of generated tokens"
    )
    stop_token_ids: list[TokenId] | None = Field(
        default=None, max_length=MAX_STOP_TOKENS, description="the text ends after any of these tokens"
    )
    ignore_eos: Annotated[bool, NullIs(False)] = Field(default=False, description="do not end at the end-of-text token")

    # Fields of vLLM, which its clients and benchmarks send.
    skip_special_tokens: bool | None = Field(default=None, description=NO_EFFECT)
    spaces_between_special_tokens: bool | None = Field(default=None, description=NO_EFFECT)
    add_special_tokens: bool | None = Field(default=None, description="ignored: prompts get no special tokens")
    use_beam_search: Neutral = Field(default=None, description=NEUTRAL)
    early_stopping: Neutral = Field(default=None, description=NEUTRAL)
    include_stop_str_in_output: Neutral = Field(default=None, description=NEUTRAL)
    length_penalty: Annotated[Any, Only(None, 1.0)] = Field(default=None, description=NEUTRAL)
    bad_words: Annotated[Any, Only(None, [])] = Field(default=None, description=NEUTRAL)
    allowed_token_ids: Annotated[Any, Only(None)] = Field(default=None, description=NEUTRAL)
    priority: Annotated[Any, Only(None, 0)] = Field(default=None, description=NEUTRAL)
    response_format: Annotated[Any, Only(None, {"type": "text"})] = Field(default=None, description=NEUTRAL)
