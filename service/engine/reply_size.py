"""What a reply takes of memory until it is sent, in bytes: upper estimates, from what a request asks for.

A request leases them from the process's budget before it is accepted. Tests hold every constant to what Python and
NumPy really take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# A number in an array, and one in JSON with its comma and its share of brackets.
NUMBER: Final = 8
JSON_NUMBER: Final = 26
# Beside its numbers: a step with its place in the queues, a component of it, a level and a band of its intervals.
STEP: Final = 3_400
STEP_COMPONENT: Final = 190
STEP_LEVEL: Final = 160
STEP_BAND: Final = 170
# In JSON: a step's names, a forecast's, a level's.
JSON_STEP: Final = 420
JSON_FORECAST: Final = 64
JSON_LEVEL: Final = 28
# Columns that there is one of.
WHOLE_COLUMNS: Final = 8
# A series that waits for its turn, with its request and all that it is to be told, beside its numbers and its state.
PART: Final = 8_000
# A lead that it is to be forecast at, twice: in what is asked of its filter, and of its job.
LEAD: Final = 100
# Columns of a filtered series that no reply tells: what becomes of its forecasts, and of those of each horizon.
TALLIED_COLUMNS, TALLIED_OF_HORIZON = 40, 8
# What a smoothed sequence keeps of a step beside its numbers.
SMOOTHED_STEP: Final = 1_600
SMOOTHED_COMPONENT: Final = 80
# A generated token with its text, its most probable alternatives and its latent; in JSON.
TOKEN: Final = 800
TOKEN_ARRAY: Final = 160
TOP_TOKEN: Final = 16
JSON_TOKEN: Final = 400
JSON_TOP_TOKEN: Final = 200
# What a body in pieces keeps before its first byte, and at the end of a connection.
HELD: Final = 1 << 20
PIECES: Final = 1 << 16
# A state that is read or written: packed, sealed, in base64.
STATE_COPIES: Final = 4
# Characters of a prompt that is told again: joined to the text, escaped, and in the reply.
TEXT_COPIES: Final = 8


@dataclass(frozen=True)
class StepShape:
    """What a step of a filter tells.

    Args:
        size: components of an observation.
        levels, horizon, samples: how many of each.
    """

    size: int
    levels: int
    horizon: int
    samples: int

    @property
    def numbers(self) -> int:
        """In JSON, but for a few."""
        intervals = 2 * self.levels
        return self.size * (4 + intervals + self.horizon * (2 + intervals) + self.samples)

    @property
    def numbers_ahead(self) -> int:
        """Of a row that comes next."""
        return 1 + self.size * (2 + 2 * self.levels)

    @property
    def held_bytes(self) -> int:
        """Until it is encoded."""
        state = STEP + self.size * STEP_COMPONENT + self.levels * (STEP_LEVEL + self.size * STEP_BAND)
        return state + NUMBER * self.size * (self.horizon * (2 + 2 * self.levels) + self.samples)

    @property
    def json_bytes(self) -> int:
        """Encoded."""
        names = JSON_STEP + self.horizon * JSON_FORECAST + (1 + self.horizon) * self.levels * JSON_LEVEL
        return names + JSON_NUMBER * self.numbers

    @property
    def readout_bytes(self) -> int:
        """What is looked up once for all steps."""
        return 4 * NUMBER * (1 + self.horizon) * (8 + self.levels)


def filter_bytes(shape: StepShape, count: int, ahead: int, *, is_streamed: bool) -> int:
    """A filter request whose steps are sent as they are made.

    Args:
        count: observations.
        ahead: steps that are made, at most, before their reader takes them.
    """
    held = min(count, ahead) * shape.held_bytes + shape.readout_bytes
    return held + _body_bytes(count * shape.json_bytes, is_streamed=is_streamed)


def smoothing_bytes(shape: StepShape, count: int, states: int, *, is_streamed: bool) -> int:
    """One whose steps change until the last observation is in.

    Args:
        states: components of the state.
    """
    trace = SMOOTHED_STEP + NUMBER * (3 * states**2 + 2 * states) + shape.size * SMOOTHED_COMPONENT
    held = count * (shape.held_bytes + trace) + shape.readout_bytes
    return held + _body_bytes(count * (shape.json_bytes + trace), is_streamed=is_streamed)


def whole_bytes(shape: StepShape, count: int) -> int:
    """Columns of all steps: as they came, joined, and encoded."""
    return 3 * NUMBER * count * (shape.numbers + WHOLE_COLUMNS)


def ahead_bytes(shape: StepShape, rows: int) -> int:
    """Rows that come next, as they came, in columns, and encoded."""
    return 3 * NUMBER * rows * shape.numbers_ahead


def series_bytes(shape: StepShape, count: int) -> int:
    """A series of many from its end until it is encoded, its names and keys included."""
    tallied = TALLIED_COLUMNS + TALLIED_OF_HORIZON * shape.horizon
    return NUMBER * count * (shape.numbers + WHOLE_COLUMNS + tallied) + STEP


def many_bytes(held: Sequence[int], ahead: int, lanes: int) -> int:
    """The series of a request that are told, or wait for that, at the same time.

    Args:
        held: `series_bytes` of each.
        ahead: what may wait for the reader.
        lanes: series at work at the same time.
    """
    largest = max(held, default=0)
    # One that is encoded exists three times: as it came, in columns, and as bytes.
    return min(sum(held), ahead + (lanes + 1) * largest) + 3 * largest + HELD + PIECES


def frame_bytes(shape: StepShape) -> int:
    """An answer of a live stream: the step, its JSON in pieces and as a whole, and as a message."""
    return shape.held_bytes + 3 * shape.json_bytes


def generation_bytes(tokens: int, top: int, latent: int, ahead: int | None) -> int:
    """The tokens of a reply, of all continuations.

    Args:
        top: alternatives at each token.
        latent: numbers of each token's latent, 0 where it is not told.
        ahead: tokens that are made before their reader takes them, for a stream; its tokens are kept without the rest.
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
