"""Outputs of a request that generates text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.text.incremental import Vocabulary
from rfa.service.encoding import PIECE_NUMBERS, Blocks, Long
from rfa.service.engine.text.state import LanguageState
from rfa.service.schemas.text_replies import FinishReason, GenerateTimings, Token, TopToken


class TopTokens(Blocks):
    """The most probable tokens at a position. They are stored in arrays, because Python objects would need ten times
    the memory."""

    __slots__ = ("_ids", "_logprobs", "_vocabulary")

    def __init__(self, ids: NDArray[np.int64], logprobs: NDArray[np.float64], vocabulary: Vocabulary) -> None:
        self._ids = np.array(ids, np.int32)
        self._logprobs = np.array(logprobs, np.float64)
        self._vocabulary = vocabulary

    def __iter__(self) -> Iterator[TopToken]:
        tokens_of_model = self._vocabulary
        for token, logprob in zip(self._ids.tolist(), self._logprobs.tolist(), strict=True):
            yield TopToken(token, tokens_of_model.label(token), logprob, tokens_of_model.is_special(token))

    @property
    def is_short(self) -> bool:
        return True

    def blocks(self) -> Iterator[list[Any]]:
        yield list(self)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token of a continuation.

    Attributes:
        index: Position of the token in the continuation, counted from 1.
        sample: Position of the continuation in the request, counted from 0.
        token: Generated token.
        top_tokens: Most probable tokens at this position. None unless requested.
        latent: Latent of the last layer, `[H, 2D]`. None unless requested.
    """

    index: int
    sample: int
    token: Token
    top_tokens: TopTokens | None
    latent: NDArray[np.float32] | None  # [H, 2D]


def latents_of(events: Sequence[TokenEvent]) -> Blocks:
    """Return the latents of tokens as JSON items that are encoded one by one."""
    return Long(events, attrgetter("latent"), PIECE_NUMBERS)


@dataclass(frozen=True)
class FinishedText:
    """A completed continuation of the prompt."""

    text: str
    finish_reason: FinishReason
    events: list[TokenEvent]


@dataclass(frozen=True)
class Generation:
    """Result of a completed request that generates text.

    Attributes:
        last: Last token, which was not emitted as an event.
        texts: Continuations of the prompt.
        input_length: Number of tokens in the prompt.
        timings: Durations of the phases of the request.
        state: State after the last token. None unless requested.
        position: Number of tokens that `state` represents.
    """

    last: TokenEvent | None
    texts: list[FinishedText]
    input_length: int
    timings: GenerateTimings
    state: LanguageState | None = None
    position: int = 0
