"""Score sequences and streams of events with a model that `rfa train lm` trained on sequences of integers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from rfa.library.locate import find_bundle
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.errors import invalid_state
from rfa.runtime.text.contexts import SlotContext
from rfa.runtime.text.language import Language
from rfa.runtime.text.loading import load_on_cpu
from rfa.runtime.text.scores import TokenScores, score_tokens

# Number of tokens that are read at once.
PIECE = 1_024


class EventScores(NamedTuple):
    """Scores of N events.

    Attributes:
        log_probability: Log probability of each event under the model, in nats, `[N]`.
        tail: Calibrated probability that an event is at most as probable as the observed one, `[N]`. At a given alarm
            rate, an event is an alarm if its `tail` is at most the rate.
    """

    log_probability: NDArray[np.float64]
    tail: NDArray[np.float64]


class EventModel:
    """Scores events with a language model in this process.

    Args:
        bundle: Name of a default bundle, or path of a bundle directory.
        passes: Number of reweighting passes for each token. The default is the number with which the model was
            exported, which is also the maximum.

    Raises:
        ValueError: If the bundle is not a language model, or does not support the recurrent mode or this number of
            passes.
    """

    def __init__(self, bundle: str | Path = "events", *, passes: int | None = None) -> None:
        opened = open_bundle(find_bundle(str(bundle)))
        if opened.kind != "lm":
            raise ValueError(f"bundle {opened.name!r} is not a language model; train one with `rfa train lm`")
        model = load_on_cpu(opened, "auto", 2, 1)
        if "recurrent" not in model.modes or model.vocabulary.end_of_text is None:
            raise ValueError(
                f"bundle {opened.name!r} cannot score events: it needs a recurrent mode and an end-of-text token"
            )
        self._model: Language = model
        self._passes = model.passes.checked(passes, model.name)
        self._end: int = model.vocabulary.end_of_text
        self._size = len(model.vocabulary)
        self._tokens: dict[int, list[int]] = {}

    def score(self, events: Sequence[int], *, is_ended: bool = True) -> EventScores:
        """Return the scores of a complete sequence.

        Args:
            is_ended: Whether to also score the end of the sequence, as an event after the last one.
        """
        context = cast(SlotContext, self._model.start("recurrent", passes=self._passes))
        try:
            return self._read(context, self._end, events, is_ended)
        finally:
            context.release()

    def update(self, events: Sequence[int], state: bytes | None = None) -> tuple[EventScores, bytes]:
        """Return the scores of the next events of a stream, and the state after these events.

        Args:
            state: State after the earlier events. None starts a new stream.

        Raises:
            InvalidInput: If `state` is not a state of this model.
        """
        if state is None:
            context = cast(SlotContext, self._model.start("recurrent", passes=self._passes))
            pending = self._end
        else:
            pending = int.from_bytes(state[:4], "little")
            if pending >= self._size:
                raise invalid_state()
            context = self._model.unpack(state[4:], self._passes)
        try:
            scores = self._read(context, pending, events, is_ended=False)
            last = self._encode(events[-1])[-1] if events else pending
            return scores, last.to_bytes(4, "little") + self._model.pack(context)
        finally:
            context.release()

    def _encode(self, event: int) -> list[int]:
        """Return the tokens of an event. An event that occurs in the training data has one token; other events have
        several."""
        if event not in self._tokens:
            self._tokens[event] = self._model.vocabulary.encode(f" {int(event)}")
        return self._tokens[event]

    def _read(self, context: SlotContext, pending: int, events: Sequence[int], is_ended: bool) -> EventScores:
        parts = [*map(self._encode, events), *([[self._end]] if is_ended else [])]
        if not parts:
            return EventScores(np.empty(0), np.empty(0))
        tokens = [token for part in parts for token in part]
        confidence, scores = self._model.confidence("recurrent"), []
        for start in range(0, len(tokens), PIECE):
            piece = tokens[start : start + PIECE]
            logits, _ = self._model.logits_of(context, [pending, *piece[:-1]])
            scores.append(score_tokens(logits, piece, confidence.temperature, 0))
            pending = piece[-1]
        joined, starts = TokenScores.joined(scores), np.cumsum([0, *map(len, parts[:-1])])
        # An event that did not occur in the training data has several tokens. Its tail is that of the rarest one.
        tail = np.minimum.reduceat(confidence.tail(joined.tail), starts)
        return EventScores(np.add.reduceat(joined.log_probability, starts), tail)
