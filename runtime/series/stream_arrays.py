"""Arrays of the series network's streams: those that a pool stores between calls, and the work arrays of a call.

Shapes: P columns, S streams of a call, T tokens, Q queries, R rows. `rfa.runtime.series` defines cells and patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.series.averages_numba import SUMMARY
from rfa.runtime.series.clock_numba import CLOCK
from rfa.runtime.series.config import FEATURES, LAGS, REACH
from rfa.runtime.series.tokens_numba import CELLS, COUNTS, FILL, MASK, NUMBERS, RING, SEEN

Array = np.ndarray
# Numbers of a column after those of its tokens: centre and scale of the last token; discounted sums from which the gain
# is computed (products of innovations and the resulting changes of forecasts, and squares of innovations); mean and
# variance of the filtered row; and the discounted number, sizes and forecast deviations of innovations.
CENTRE, UNIT, MOVED, SQUARED, FILTERED, VARIANCE, MISSES, MISSED, FORESEEN = range(NUMBERS, NUMBERS + 9)
STORED_NUMBERS = NUMBERS + 9
# Stored counts: those of tokens except the index of the newest cell, and the number of cells up to the last token.
TOKEN_CELLS = COUNTS
STORED_COUNTS = (CELLS, SEEN, FILL, MASK, TOKEN_CELLS)


class StoredStreams(NamedTuple):
    """Arrays of a pool, `[pool rows, P, …]`, except `clock`, which has shape `[pool rows, CLOCK]`.

    Attributes:
        clock: State of the clocks.
        numbers, counts: Numbers and counts of each column (see `tokens_numba`).
        ring: Newest cells of each column.
        errors: Sum of the errors at each lag, `[…, REACH]`.
        seen: One bit for each of the first REACH cells. It is 1 if the cell contains a value.
        lags, offsets: Chosen season of each band, and the offset of its values, `[…, LAGS]`.
        hidden: State of the network after the last token.
        means, precisions: Memory slots after the last complete patch.
    """

    clock: Array
    numbers: Array
    counts: Array
    ring: Array
    errors: Array
    seen: Array
    lags: Array
    offsets: Array
    hidden: Array
    means: Array
    precisions: Array


class StreamWork(NamedTuple):
    """Arrays of the streams that one call processes, `[S, P, …]`.

    Attributes:
        clock: State of the clocks, `[S, CLOCK]`.
        numbers, counts: Numbers and counts of each column (see `tokens_numba`).
        ring: Newest cells of each column.
        errors: Sum of the errors at each lag, `[…, REACH]`.
        since: Number of values without a pair at each lag, `[…, REACH]`.
        seen: One bit for each of the first REACH cells. It is 1 if the cell contains a value.
        lags, offsets: Chosen season of each band, and the offset of its values, `[…, LAGS]`.
        summary: Output of `write_summary` for the last token.
        seasons: Seasons in cells that are known from the times, `[S, LAGS]`.
    """

    clock: Array
    numbers: Array
    counts: Array
    ring: Array
    errors: Array
    since: Array
    seen: Array
    lags: Array
    offsets: Array
    summary: Array
    seasons: Array

    @classmethod
    def allocate(cls, streams: int, columns: int) -> StreamWork:
        """Allocate uninitialised arrays."""
        wide = (streams, columns)
        return cls(
            np.empty((streams, CLOCK)), np.empty((*wide, STORED_NUMBERS)), np.empty((*wide, COUNTS + 1), np.int64),
            np.empty((*wide, RING), np.float32), np.empty((*wide, REACH), np.float32),
            np.empty((*wide, REACH), np.uint16), np.empty((*wide, REACH // 8), np.uint8),
            np.empty((*wide, LAGS), np.int64), np.empty((*wide, LAGS)), np.empty((*wide, SUMMARY)),
            np.empty((streams, LAGS), np.int64),
        )  # fmt: skip


class TokenArrays(NamedTuple):
    """Arrays of tokens, `[T, …]`.

    Attributes:
        features: Features of each token, `[T, FEATURES]`.
        ends: Number of cells up to each token.
        lags: Number of cells since the last complete patch.
        stream, column: Index of the stream and of the column of each token.
        is_whole: Whether the token completes a patch.
    """

    features: Array
    ends: Array
    lags: Array
    stream: Array
    column: Array
    is_whole: Array

    @classmethod
    def allocate(cls, count: int) -> TokenArrays:
        """Allocate uninitialised arrays."""
        return cls(
            np.empty((count, FEATURES), np.float32), np.empty(count, np.int64), np.empty(count, np.int64),
            np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_),
        )  # fmt: skip


class Queries(NamedTuple):
    """Queries of the network's head for horizons, `[Q, …]`.

    Attributes:
        features: Inputs of the head.
        source: Token that is queried, or -1 - (stream · P + column) for the column's token before this call.
    """

    features: Array
    source: Array

    @classmethod
    def allocate(cls, count: int, width: int) -> Queries:
        """Allocate `count` queries with `width` features each. The features are zeros."""
        return cls(np.zeros((count, width), np.float32), np.empty(count, np.int64))


class RowArrays(NamedTuple):
    """Arrays of rows, `[R, …]`. A query is given by its index, or -1 if there is none.

    Attributes:
        batch_row: Row of the batch.
        stream: Index of the stream among those of the call.
        is_read_only: Whether the row leaves the stream unchanged.
        unit: Typical lag of the stream. 0 before there is one.
        previous_query: Query of the previous token for this cell, `[R, P]`. The next query is for the cell after it.
        own_query: Query of the row's own token for the next cell, `[R, P]`.
        horizon_queries: Queries for each horizon, `[R, P, H, 2]`. Both are equal if the horizon is an integer.
        share: Weight of the second query, `[R, P, H]`.
        scales: Centre and scale of the previous token and of the row's own token, `[R, P, 4]`.
        leads: Horizons on the local clock, `[R, H]`.
        moments: Local times of the row and at its horizons, `[R, 1 + H]`.
        seen: Number of values before the row, `[R, P]`.
        noise: Bound on the noise variance of the values, `[R, P]`.
        cells: Number of cells, including that of the row, `[R, P]`.
    """

    batch_row: Array
    stream: Array
    is_read_only: Array
    unit: Array
    previous_query: Array
    own_query: Array
    horizon_queries: Array
    share: Array
    scales: Array
    seen: Array
    noise: Array
    cells: Array
    leads: Array
    moments: Array

    @classmethod
    def allocate(cls, count: int, columns: int, horizon: int) -> RowArrays:
        """Allocate uninitialised arrays."""
        wide = (count, columns)
        return cls(
            np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_), np.empty(count),
            np.empty(wide, np.int64), np.empty(wide, np.int64), np.empty((*wide, horizon, 2), np.int64),
            np.empty((*wide, horizon)), np.empty((*wide, 4)), np.empty(wide, np.int64), np.empty(wide),
            np.empty(wide, np.int64), np.empty((count, horizon)), np.empty((count, 1 + horizon)),
        )  # fmt: skip


def stored_shapes(columns: int, width: int, slots: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return the shape and dtype of each array that a stream stores, by the names of `StoredStreams`.

    Args:
        columns: Number of columns.
        width: Width of the network's states.
        slots: Shape of the means of the memory slots, `[L, H, S, 4D]`.
    """
    return {
        "clock": ((CLOCK,), np.float64),
        "numbers": ((columns, STORED_NUMBERS), np.float64),
        "counts": ((columns, len(STORED_COUNTS)), np.int64),
        "ring": ((columns, REACH), np.float32),
        "errors": ((columns, REACH), np.float32),
        "seen": ((columns, REACH // 8), np.uint8),
        "lags": ((columns, LAGS), np.int64),
        "offsets": ((columns, LAGS), np.float64),
        "hidden": ((columns, width), np.float32),
        "means": ((columns, *slots), np.float32),
        "precisions": ((columns, *slots[:3]), np.float32),
    }


def stored_streams(arrays: Mapping[str, Array], prefix: str) -> StoredStreams:
    """Return the arrays of a pool whose names begin with `prefix`."""
    return StoredStreams(*(arrays[f"{prefix}{name}"] for name in StoredStreams._fields))
