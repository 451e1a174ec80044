"""Upper bounds on the memory that replies use until they are sent, in bytes.

A request reserves this memory before it is accepted. Tests compare every constant with Python and NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# A number in an array, and in JSON with its comma and brackets.
NUMBER: Final = 8
JSON_NUMBER: Final = 26
# Overheads in addition to the numbers: a step in the queues, a component, a level and an interval.
STEP: Final = 3_440
STEP_COMPONENT: Final = 190
STEP_LEVEL: Final = 160
STEP_BAND: Final = 170
# Names in the JSON of a step, a forecast and a level.
JSON_STEP: Final = 470
JSON_FORECAST: Final = 76
JSON_LEVEL: Final = 28
# The weight of an expert, in lists.
WEIGHT: Final = 120
# Numbers of a forecast: mean, std and median.
MOMENTS: Final = 3
# Number of columns that do not belong to a component.
WHOLE_COLUMNS: Final = 8
# A waiting series with its options, without its numbers and state.
PART: Final = 8_000
# A horizon in the options of the filter and of the job.
LEAD: Final = 100
# Columns of a filtered series in addition to the reply: the checks of its forecasts, and of those at each horizon.
TALLIED_COLUMNS, TALLIED_OF_HORIZON = 44, 8
# An incident, and its JSON.
INCIDENT: Final = 1_600
# A step of a smoothed sequence, without its numbers.
SMOOTHED_STEP: Final = 1_600
SMOOTHED_COMPONENT: Final = 80
# A generated token with its text, alternatives and latent, and its JSON.
TOKEN: Final = 800
TOKEN_ARRAY: Final = 160
TOP_TOKEN: Final = 16
JSON_TOKEN: Final = 400
JSON_TOP_TOKEN: Final = 200
# A buffered reply before its first byte, and the pieces in the connection.
HELD: Final = 1 << 20
PIECES: Final = 1 << 16
# A state is packed, sealed, and encoded in base64.
STATE_COPIES: Final = 4
# A character of a returned prompt, joined to the text, escaped, and in the reply.
TEXT_COPIES: Final = 8


@dataclass(frozen=True)
class StepShape:
    """Size of one step of a filter.

    Args:
        size: number of components of an observation.
        levels, horizon, samples: numbers of levels, horizons and samples.
        experts: number of weights for each forecast.
    """

    size: int
    levels: int
    horizon: int
    samples: int
    experts: int = 0

    @property
    def numbers(self) -> int:
        """Approximate number of numbers in the JSON of a step."""
        intervals = 2 * self.levels
        return self.size * (4 + intervals + self.horizon * (MOMENTS + intervals + self.experts) + self.samples)

    @property
    def numbers_ahead(self) -> int:
        """Number of numbers in the forecast of one future row."""
        return 1 + self.size * (MOMENTS + 2 * self.levels + self.experts)

    @property
    def held_bytes(self) -> int:
        """Memory of a step until it is encoded, in bytes."""
        state = STEP + self.size * STEP_COMPONENT + self.levels * (STEP_LEVEL + self.size * STEP_BAND)
        weights = WEIGHT * self.size * self.horizon * self.experts
        return state + weights + NUMBER * self.size * (self.horizon * (MOMENTS + 2 * self.levels) + self.samples)

    @property
    def json_bytes(self) -> int:
        """Size of a step as JSON, in bytes."""
        names = JSON_STEP + self.horizon * JSON_FORECAST + (1 + self.horizon) * self.levels * JSON_LEVEL
        return names + JSON_NUMBER * self.numbers

    @property
    def readout_bytes(self) -> int:
        """Memory that all steps share, in bytes."""
        return 4 * NUMBER * (1 + self.horizon) * (8 + self.levels)


def filter_bytes(shape: StepShape, count: int, ahead: int, *, is_streamed: bool) -> int:
    """Return the memory of a filter request without smoothing, in bytes.

    Args:
        count: number of observations.
        ahead: maximum number of steps that are not yet sent.
    """
    held = min(count, ahead) * shape.held_bytes + shape.readout_bytes
    return held + _body_bytes(count * shape.json_bytes, is_streamed=is_streamed)


def smoothing_bytes(shape: StepShape, count: int, states: int, *, is_streamed: bool) -> int:
    """Return the memory of a filter request with smoothing, in bytes.

    Args:
        states: number of components of the state.
    """
    trace = SMOOTHED_STEP + NUMBER * (3 * states**2 + 2 * states) + shape.size * SMOOTHED_COMPONENT
    held = count * (shape.held_bytes + trace) + shape.readout_bytes
    return held + _body_bytes(count * (shape.json_bytes + trace), is_streamed=is_streamed)


def whole_bytes(shape: StepShape, count: int) -> int:
    """Return the memory of the columns of all steps, which exist three times: as parts, joined, and encoded."""
    return 3 * NUMBER * count * (shape.numbers + WHOLE_COLUMNS)


def ahead_bytes(shape: StepShape, rows: int) -> int:
    """Return the memory of the forecasts of future rows, which exist three times: as computed, in columns, and
    encoded."""
    return 3 * NUMBER * rows * shape.numbers_ahead


def series_bytes(shape: StepShape, count: int) -> int:
    """Return the memory of one of several series, from its completion until its result is encoded."""
    tallied = TALLIED_COLUMNS + TALLIED_OF_HORIZON * shape.horizon
    return NUMBER * count * (shape.numbers + WHOLE_COLUMNS + tallied) + STEP


def many_bytes(held: Sequence[int], ahead: int, threads: int) -> int:
    """Return the memory of completed series that are encoded, or wait to be encoded, at the same time.

    Args:
        held: `series_bytes` of each series.
        ahead: number of bytes that may wait for the reader.
        threads: number of series that are filtered at the same time.
    """
    largest = max(held, default=0)
    # The series that is being encoded exists three times: as computed, in columns, and as bytes.
    return min(sum(held), ahead + (threads + 1) * largest) + 3 * largest + HELD + PIECES


def frame_bytes(shape: StepShape) -> int:
    """Return the memory of one reply frame of a live stream: the step, the parts of its JSON, the joined JSON, and the
    message."""
    return shape.held_bytes + 3 * shape.json_bytes


def generation_bytes(tokens: int, top: int, latent: int, ahead: int | None) -> int:
    """Return the memory of the tokens in a reply, for all continuations together.

    Args:
        top: number of alternatives for each token.
        latent: number of numbers in a token's latent, or 0 without latents.
        ahead: for a stream, the maximum number of tokens that are not yet sent. Tokens that were sent are kept without
            details.
    """
    more = (TOKEN_ARRAY + top * TOP_TOKEN if top else 0) + (TOKEN_ARRAY + latent * NUMBER // 2 if latent else 0)
    with_details = tokens if ahead is None else min(tokens, ahead)
    encoded = tokens * (JSON_TOKEN + top * JSON_TOP_TOKEN + latent * JSON_NUMBER)
    return tokens * TOKEN + with_details * more + _body_bytes(encoded, is_streamed=ahead is not None)


def cache_bytes(cache: int, tokens: int, samples: int) -> int:
    """Return the memory of the attention contexts of a request.

    Args:
        cache: bytes per token.
        tokens: number of tokens of the prompt and one continuation.
        samples: number of continuations.
    """
    return cache * tokens * samples


def _body_bytes(encoded: int, *, is_streamed: bool) -> int:
    return min(encoded, PIECES if is_streamed else HELD + PIECES)
