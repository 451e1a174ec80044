"""Memory of replies until they are sent, in bytes: upper estimates.

A request leases them before it is accepted. Tests compare every constant with Python and NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# A number in an array, and in JSON with comma and brackets.
NUMBER: Final = 8
JSON_NUMBER: Final = 26
# Besides numbers: a step in the queues, a component, a level and an interval.
STEP: Final = 3_440
STEP_COMPONENT: Final = 190
STEP_LEVEL: Final = 160
STEP_BAND: Final = 170
# Names in JSON, of a step, a forecast and a level.
JSON_STEP: Final = 470
JSON_FORECAST: Final = 76
JSON_LEVEL: Final = 28
# A weight of an expert, in lists.
WEIGHT: Final = 120
# Of a forecast: mean, std and median.
MOMENTS: Final = 3
# Columns without components.
WHOLE_COLUMNS: Final = 8
# A waiting series with its options, besides numbers and state.
PART: Final = 8_000
# A horizon, in the options of the filter and of the job.
LEAD: Final = 100
# Columns of a filtered series beyond the reply: checks of its forecasts, and of those of each horizon.
TALLIED_COLUMNS, TALLIED_OF_HORIZON = 44, 8
# An incident, and its JSON.
INCIDENT: Final = 1_600
# A step of a smoothed sequence besides numbers.
SMOOTHED_STEP: Final = 1_600
SMOOTHED_COMPONENT: Final = 80
# A generated token with its text, alternatives and latent; and in JSON.
TOKEN: Final = 800
TOKEN_ARRAY: Final = 160
TOP_TOKEN: Final = 16
JSON_TOKEN: Final = 400
JSON_TOP_TOKEN: Final = 200
# A buffered reply before its first byte, and pieces in the connection.
HELD: Final = 1 << 20
PIECES: Final = 1 << 16
# A state: packed, sealed, in base64.
STATE_COPIES: Final = 4
# A character of a returned prompt: joined to the text, escaped, and in the reply.
TEXT_COPIES: Final = 8


@dataclass(frozen=True)
class StepShape:
    """Size of a filter's step.

    Args:
        size: components of an observation.
        levels, horizon, samples: numbers of each.
        experts: number of weights of each forecast.
    """

    size: int
    levels: int
    horizon: int
    samples: int
    experts: int = 0

    @property
    def numbers(self) -> int:
        """Numbers in JSON, except a few."""
        intervals = 2 * self.levels
        return self.size * (4 + intervals + self.horizon * (MOMENTS + intervals + self.experts) + self.samples)

    @property
    def numbers_ahead(self) -> int:
        """Numbers of a forecast row."""
        return 1 + self.size * (MOMENTS + 2 * self.levels + self.experts)

    @property
    def held_bytes(self) -> int:
        """Memory until it is encoded."""
        state = STEP + self.size * STEP_COMPONENT + self.levels * (STEP_LEVEL + self.size * STEP_BAND)
        weights = WEIGHT * self.size * self.horizon * self.experts
        return state + weights + NUMBER * self.size * (self.horizon * (MOMENTS + 2 * self.levels) + self.samples)

    @property
    def json_bytes(self) -> int:
        """Encoded size."""
        names = JSON_STEP + self.horizon * JSON_FORECAST + (1 + self.horizon) * self.levels * JSON_LEVEL
        return names + JSON_NUMBER * self.numbers

    @property
    def readout_bytes(self) -> int:
        """Memory shared by all steps."""
        return 4 * NUMBER * (1 + self.horizon) * (8 + self.levels)


def filter_bytes(shape: StepShape, count: int, ahead: int, *, is_streamed: bool) -> int:
    """A filter request without smoothing.

    Args:
        count: observations.
        ahead: largest number of steps that are not sent yet.
    """
    held = min(count, ahead) * shape.held_bytes + shape.readout_bytes
    return held + _body_bytes(count * shape.json_bytes, is_streamed=is_streamed)


def smoothing_bytes(shape: StepShape, count: int, states: int, *, is_streamed: bool) -> int:
    """A filter request with smoothing.

    Args:
        states: components of the state.
    """
    trace = SMOOTHED_STEP + NUMBER * (3 * states**2 + 2 * states) + shape.size * SMOOTHED_COMPONENT
    held = count * (shape.held_bytes + trace) + shape.readout_bytes
    return held + _body_bytes(count * (shape.json_bytes + trace), is_streamed=is_streamed)


def whole_bytes(shape: StepShape, count: int) -> int:
    """Columns of all steps: in parts, joined, and encoded."""
    return 3 * NUMBER * count * (shape.numbers + WHOLE_COLUMNS)


def ahead_bytes(shape: StepShape, rows: int) -> int:
    """Forecast rows: as made, in columns, and encoded."""
    return 3 * NUMBER * rows * shape.numbers_ahead


def series_bytes(shape: StepShape, count: int) -> int:
    """A series of many from its end until it is encoded."""
    tallied = TALLIED_COLUMNS + TALLIED_OF_HORIZON * shape.horizon
    return NUMBER * count * (shape.numbers + WHOLE_COLUMNS + tallied) + STEP


def many_bytes(held: Sequence[int], ahead: int, threads: int) -> int:
    """Ended series that are encoded or wait for it at the same time.

    Args:
        held: `series_bytes` of each.
        ahead: bytes that may wait for the reader.
        threads: series that are filtered at the same time.
    """
    largest = max(held, default=0)
    # The encoded one exists three times: as made, in columns, and as bytes.
    return min(sum(held), ahead + (threads + 1) * largest) + 3 * largest + HELD + PIECES


def frame_bytes(shape: StepShape) -> int:
    """An answer of a live stream: step, JSON in pieces and as a whole, and message."""
    return shape.held_bytes + 3 * shape.json_bytes


def generation_bytes(tokens: int, top: int, latent: int, ahead: int | None) -> int:
    """The tokens of a reply, of all continuations.

    Args:
        top: alternatives at each token.
        latent: numbers of a token's latent; 0 without latents.
        ahead: for a stream, largest number of tokens that are not sent yet; sent ones are kept without details.
    """
    more = (TOKEN_ARRAY + top * TOP_TOKEN if top else 0) + (TOKEN_ARRAY + latent * NUMBER // 2 if latent else 0)
    with_details = tokens if ahead is None else min(tokens, ahead)
    encoded = tokens * (JSON_TOKEN + top * JSON_TOP_TOKEN + latent * JSON_NUMBER)
    return tokens * TOKEN + with_details * more + _body_bytes(encoded, is_streamed=ahead is not None)


def cache_bytes(cache: int, tokens: int, samples: int) -> int:
    """The attention contexts of a request.

    Args:
        cache: bytes of a token.
        tokens: of the prompt and of one continuation.
    """
    return cache * tokens * samples


def _body_bytes(encoded: int, *, is_streamed: bool) -> int:
    return min(encoded, PIECES if is_streamed else HELD + PIECES)
