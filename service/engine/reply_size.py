"""Upper bounds on the memory that replies use until they are sent, in bytes.

A request reserves this memory before it is accepted. Tests compare every constant with Python and NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Size of a number in an array, and in JSON with its comma and brackets.
NUMBER: Final = 8
JSON_NUMBER: Final = 26
# Overheads in addition to the numbers: for a step in the queues, a component, a level and an interval.
STEP: Final = 3_440
STEP_COMPONENT: Final = 190
STEP_LEVEL: Final = 160
STEP_BAND: Final = 170
# Size of the names in the JSON of a step, a forecast and a level.
JSON_STEP: Final = 470
JSON_FORECAST: Final = 76
JSON_LEVEL: Final = 28
# Size of the weight of an expert in lists.
WEIGHT: Final = 120
# Number of moments of a forecast: mean, std and median.
MOMENTS: Final = 3
# Number of columns that do not belong to a component.
WHOLE_COLUMNS: Final = 8
# Size of a series that waits with its options, without its numbers and state.
PART: Final = 8_000
# Size of a horizon in the options of the filter and of the job.
LEAD: Final = 100
# Number of columns of a filtered series that are not in the reply: checks of forecasts, in total and per horizon.
TALLIED_COLUMNS, TALLIED_OF_HORIZON = 44, 8
# Size of an incident and its JSON.
INCIDENT: Final = 1_600
# Size of a step of a smoothed sequence, without its numbers, and of each of its components.
SMOOTHED_STEP: Final = 1_600
SMOOTHED_COMPONENT: Final = 80
# Size of a generated token with its text, of its alternatives and latent, and of its JSON.
TOKEN: Final = 800
TOKEN_ARRAY: Final = 160
TOP_TOKEN: Final = 16
JSON_TOKEN: Final = 400
JSON_TOP_TOKEN: Final = 200
# Size of a buffered reply before its first byte is sent, and of the pieces in the connection.
HELD: Final = 1 << 20
PIECES: Final = 1 << 16
# Number of copies of a state: it is packed, sealed, and encoded in base64.
STATE_COPIES: Final = 4
# Bytes per character of a returned prompt, which is joined to the text, escaped, and copied to the reply.
TEXT_COPIES: Final = 8


@dataclass(frozen=True)
class StepShape:
    """Numbers that determine the size of one step of a filter.

    Args:
        size: Number of components of an observation.
        levels: Number of levels of the intervals.
        horizon: Number of horizons.
        samples: Number of samples.
        experts: Number of models whose weights each forecast contains. 0 if weights are not requested.
    """

    size: int
    levels: int
    horizon: int
    samples: int
    experts: int = 0

    @property
    def numbers(self) -> int:
        """Estimate of how many numbers the JSON of a step contains."""
        intervals = 2 * self.levels
        return self.size * (4 + intervals + self.horizon * (MOMENTS + intervals + self.experts) + self.samples)

    @property
    def numbers_ahead(self) -> int:
        """How many numbers the forecast of one future row contains."""
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
        """Memory of the arrays for levels and horizons that all steps share, in bytes."""
        return 4 * NUMBER * (1 + self.horizon) * (8 + self.levels)


def filter_bytes(shape: StepShape, count: int, ahead: int, *, is_streamed: bool) -> int:
    """Return the memory of a filter request without smoothing, in bytes.

    Args:
        count: Number of observations.
        ahead: Maximum number of steps that are not sent yet.
        is_streamed: Whether the reply is streamed.
    """
    held = min(count, ahead) * shape.held_bytes + shape.readout_bytes
    return held + _body_bytes(count * shape.json_bytes, is_streamed=is_streamed)


def smoothing_bytes(shape: StepShape, count: int, states: int, *, is_streamed: bool) -> int:
    """Return the memory of a filter request with smoothing, in bytes.

    Args:
        count: Number of observations.
        states: Number of components of the state.
        is_streamed: Whether the reply is streamed.
    """
    trace = SMOOTHED_STEP + NUMBER * (3 * states**2 + 2 * states) + shape.size * SMOOTHED_COMPONENT
    held = count * (shape.held_bytes + trace) + shape.readout_bytes
    return held + _body_bytes(count * (shape.json_bytes + trace), is_streamed=is_streamed)


def whole_bytes(shape: StepShape, count: int) -> int:
    """Return the memory of the columns of `count` steps in bytes. They exist three times: in parts, joined, and
    encoded."""
    return 3 * NUMBER * count * (shape.numbers + WHOLE_COLUMNS)


def ahead_bytes(shape: StepShape, rows: int) -> int:
    """Return the memory of the forecasts of `rows` future rows in bytes. They exist three times: as computed, in
    columns, and encoded."""
    return 3 * NUMBER * rows * shape.numbers_ahead


def series_bytes(shape: StepShape, count: int) -> int:
    """Return the memory of one series in a request with several series, from its completion until its result is
    encoded, in bytes."""
    tallied = TALLIED_COLUMNS + TALLIED_OF_HORIZON * shape.horizon
    return NUMBER * count * (shape.numbers + WHOLE_COLUMNS + tallied) + STEP


def many_bytes(held: Sequence[int], ahead: int, threads: int) -> int:
    """Return the memory in bytes of the completed series that are not yet sent: those that wait to be encoded, and
    those that are being encoded.

    Args:
        held: Result of `series_bytes` for each series.
        ahead: Number of bytes that may wait for the reader.
        threads: Number of series that are filtered at the same time.
    """
    largest = max(held, default=0)
    # The series that is being encoded exists three times: as computed, in columns, and as bytes.
    return min(sum(held), ahead + (threads + 1) * largest) + 3 * largest + HELD + PIECES


def frame_bytes(shape: StepShape) -> int:
    """Return the memory of one reply frame of a live stream in bytes. It consists of the step, the parts of its JSON,
    the joined JSON, and the message."""
    return shape.held_bytes + 3 * shape.json_bytes


def generation_bytes(tokens: int, top: int, latent: int, ahead: int | None) -> int:
    """Return the memory of the tokens in a reply, in bytes.

    Args:
        tokens: Number of tokens in all continuations together.
        top: Number of alternatives for each token.
        latent: Number of numbers in the latent of a token, or 0 without latents.
        ahead: Maximum number of tokens of a stream that are not sent yet. Other tokens are stored without details. None
            if the reply is not streamed.
    """
    more = (TOKEN_ARRAY + top * TOP_TOKEN if top else 0) + (TOKEN_ARRAY + latent * NUMBER // 2 if latent else 0)
    with_details = tokens if ahead is None else min(tokens, ahead)
    encoded = tokens * (JSON_TOKEN + top * JSON_TOP_TOKEN + latent * JSON_NUMBER)
    return tokens * TOKEN + with_details * more + _body_bytes(encoded, is_streamed=ahead is not None)


def cache_bytes(cache: int, tokens: int, samples: int) -> int:
    """Return the memory of the contexts of a request in attention mode, in bytes.

    Args:
        cache: Bytes per token.
        tokens: Number of tokens in the prompt and one continuation.
        samples: Number of continuations.
    """
    return cache * tokens * samples


def _body_bytes(encoded: int, *, is_streamed: bool) -> int:
    return min(encoded, PIECES if is_streamed else HELD + PIECES)
