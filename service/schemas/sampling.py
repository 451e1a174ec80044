"""Sampling options of /generate and the OpenAI endpoints, and fields of other servers that have no effect here."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rfa.service.neutral import NullIs, Only
from rfa.service.schemas.base import Request

TOP_P = "Sample only from the smallest set of tokens whose probabilities sum to at least this value."
NEUTRAL = "Accepted for compatibility; only values without an effect are allowed."
NO_EFFECT = "Ignored, because generated text contains no special tokens."
MAX_STOP_TOKENS = 256
MAX_BIASED = 1_024

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]
Share = Annotated[float, Field(gt=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2), NullIs(0.0)]
Neutral = Annotated[Any, Only(None, False)]


class SamplingFields(Request):
    """Options for sampling tokens, with the names and meanings of vLLM."""

    repetition_penalty: Annotated[float, NullIs(1.0)] = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description=(
            "Repetition penalty for tokens that occur in the prompt or the generated text. Positive logits of these "
            "tokens are divided by it, and negative ones are multiplied by it; 1 has no effect."
        ),
    )
    presence_penalty: Penalty = Field(
        default=0.0,
        description="Presence penalty, which is subtracted from the logits of tokens that occur in the generated text.",
    )
    frequency_penalty: Penalty = Field(
        default=0.0,
        description=(
            "Frequency penalty, which is subtracted from the logit of a token once for each of its occurrences in the "
            "generated text."
        ),
    )
    logit_bias: dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=MAX_BIASED, description="Numbers to add to the logits, by token id as a string."
    )
    min_p: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description=(
            "Sample only from tokens with at least this fraction of the largest probability; null and 0 mean no limit."
        ),
    )
    typical_p: Share | None = Field(
        default=None,
        description=(
            "Typical sampling: sample only from the tokens whose information content is nearest to the entropy. Their "
            "total probability is at least this value; null and 1 mean no limit."
        ),
    )
    min_tokens: Annotated[int, NullIs(0)] = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Minimum number of tokens before the end-of-text token or a stop token can be generated.",
    )
    stop_token_ids: list[TokenId] | None = Field(
        default=None, max_length=MAX_STOP_TOKENS, description="Ids of tokens that end the text."
    )
    ignore_eos: Annotated[bool, NullIs(False)] = Field(
        default=False, description="Whether the text continues after the end-of-text token."
    )

    # Fields of vLLM that some clients and benchmarks send.
    skip_special_tokens: bool | None = Field(default=None, description=NO_EFFECT)
    spaces_between_special_tokens: bool | None = Field(default=None, description=NO_EFFECT)
    add_special_tokens: bool | None = Field(
        default=None, description="Ignored, because prompts contain no special tokens."
    )
    use_beam_search: Neutral = Field(default=None, description=NEUTRAL)
    early_stopping: Neutral = Field(default=None, description=NEUTRAL)
    include_stop_str_in_output: Neutral = Field(default=None, description=NEUTRAL)
    length_penalty: Annotated[Any, Only(None, 1.0)] = Field(default=None, description=NEUTRAL)
    bad_words: Annotated[Any, Only(None, [])] = Field(default=None, description=NEUTRAL)
    allowed_token_ids: Annotated[Any, Only(None)] = Field(default=None, description=NEUTRAL)
    priority: Annotated[Any, Only(None, 0)] = Field(default=None, description=NEUTRAL)
    response_format: Annotated[Any, Only(None, {"type": "text"})] = Field(default=None, description=NEUTRAL)
