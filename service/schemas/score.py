"""Requests and replies of /score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rfa.runtime.choices import Mode
from rfa.runtime.uncertainty.alarms import LARGEST_RATE
from rfa.service.neutral import NullIs
from rfa.service.schemas.base import Reply, Request, says
from rfa.service.schemas.fields import InitialState, ReturnState, TextModel
from rfa.service.schemas.filter_replies import AlarmChecks
from rfa.service.schemas.openai import ONE_OF_PROMPTS, Prompts, is_one_prompt
from rfa.service.schemas.reply_types import Many, State, TokenTexts
from rfa.service.schemas.text_replies import CONFIDENCE, LOGPROB, TOKEN_ID
from rfa.service.schemas.text_requests import DECODE, TextPasses, check_state_use

UNSCORED = "; null for the first token of a text, unless the text continues a `state`."


class TokenAlarmRequest(Request):
    """Options for alarms about tokens. A token raises an alarm if its tail probability is at most the rate."""

    rate: float = Field(
        gt=0,
        le=LARGEST_RATE,
        description="Alarm rate: expected fraction of tokens in ordinary texts that raise an alarm.",
    )


class ScoreRequest(Request):
    """Texts whose tokens are scored. No text is generated."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"inputs": "It was the best of times"}, {"inputs": [[40, 73, 75], [1, 2]], "top_n_tokens": 2}]
        }
    )

    inputs: Annotated[Prompts, ONE_OF_PROMPTS] = Field(
        description="One text or several texts, as strings or lists of token ids."
    )
    model: TextModel = None
    top_n_tokens: Annotated[int, NullIs(0)] = Field(
        default=0, ge=0, le=20, description="Number of the most probable tokens to return at each position."
    )
    decode: Mode | None = Field(default=None, description=DECODE)
    passes: TextPasses = None
    alarm: TokenAlarmRequest | None = Field(default=None, description="Options for alarms; null disables alarms.")
    stream: Annotated[bool, NullIs(False)] = Field(
        default=False, description="Whether to send the scores as they are computed."
    )
    state: InitialState = None
    return_state: ReturnState = False

    @model_validator(mode="after")
    def check_state(self) -> Self:
        """Check that a state is only used with one text and in recurrent mode."""
        check_state_use(self, "", [] if is_one_prompt(self.inputs) else ["inputs"])
        return self


TextIndex = Annotated[int, says("Index of the text in `inputs`.")]
ScoringModel = Annotated[str, says("Name of the model that computed the scores.")]


@dataclass
class ScoredTokens(Reply):
    """Scores of consecutive tokens of a text. All lists have one entry per token."""

    index: TextIndex
    first: Annotated[int, says("Position in the text of the first token of the lists, counted from 0.")]
    token_ids: Annotated[Many[int], says(TOKEN_ID)]
    tokens: TokenTexts
    logprobs: Annotated[Many[float | None], says(LOGPROB + UNSCORED)]
    ranks: Annotated[Many[int | None], says("Rank of the token; 1 is the most probable token" + UNSCORED)]
    entropies: Annotated[Many[float | None], says("Entropy of the predicted distribution, in nats" + UNSCORED)]
    confidences: Annotated[Many[float | None], says(CONFIDENCE + UNSCORED)]
    tails: Annotated[
        Many[float | None],
        says(
            "Tail probability: calibrated probability of a token that is at most as probable as this one. If the "
            "bundle has a table of tail probabilities, it is the fraction of such tokens in held-out texts" + UNSCORED
        ),
    ]
    alarms: Annotated[Many[bool | None] | None, says("Whether each token raises an alarm; null without `alarm`.")]
    top_logprobs: Annotated[
        Many[dict[str, float] | None] | None,
        says("Log probabilities of the most probable tokens, by the text of the token; null unless requested."),
    ]


@dataclass
class ScoreSum(Reply):
    """Results for one whole text."""

    index: TextIndex
    log_likelihood: Annotated[float, says("Sum of the log probabilities of all scored tokens.")]
    scored_tokens: Annotated[int, says("Number of scored tokens.")]
    scored_bytes: Annotated[int, says("Number of bytes of the scored tokens.")]
    alarm_checks: Annotated[
        AlarmChecks | None, says("Comparison of the alarms with the requested rate; null without `alarm`.")
    ]
    state: State


@dataclass
class ScoredText(ScoreSum, ScoredTokens):
    """Scores of all tokens of a text, and the results for the whole text."""


@dataclass
class ScoreReply(Reply):
    """Reply with the scores of all texts."""

    model: ScoringModel
    scores: Annotated[list[ScoredText], says("Scores of each text, in the order of `inputs`.")]


@dataclass
class ScoredPiece(ScoredTokens):
    """Line of a streamed reply with the scores of the next tokens of a text."""


@dataclass
class ScoreDone(Reply):
    """Last line of a streamed reply."""

    done: Annotated[Literal[True], says("Always true, which marks the last line of the reply.")]
    model: ScoringModel
    scores: Annotated[list[ScoreSum], says("Results for each text, in the order of `inputs`.")]
