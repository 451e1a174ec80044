"""Many rows of one series at once, for a network that runs elsewhere: its tokens before, what is told of it after.

    lay_out     rows → tokens and asks, wave after wave, as `compiled_series_rows.take` has them, without the network
    (elsewhere) tokens → states, slots and quantiles
    conclude    quantiles → what is told; states and slots → what the stream keeps

Tokens are made of the values alone, and of what came of their forecasts nothing is read in making them: so all of a
chunk's are made before the network has seen one.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from rfa.runtime.compiling import inline_jit, kernel_jit
from rfa.runtime.handles import opened
from rfa.runtime.series import rows as compiled_series_rows
from rfa.runtime.series import stream_numba
from rfa.runtime.series.config import PATCH
from rfa.runtime.series.decoder_numba import ASKED, QUANTILES, SeriesDecoder
from rfa.runtime.series.rows import SOURCES, tell
from rfa.runtime.series.stream_numba import store, wave
from rfa.runtime.uncertainty.copy_arrays import copy1
from rfa.runtime.uncertainty.step_outputs import Scorer

Array = np.ndarray
# Tokens of a chunk, but for those of the wave that reaches them.
TOKENS: Final = 1024
# Asks that a plain row may come to, of each column: its own three, and twice two leads … three of FORECASTS_PER_ROW.
_OF_ROWS = (compiled_series_rows, *SOURCES)


class Chunk(NamedTuple):
    """Rows of one stream of P columns, their tokens and asks, and what the network made of them.

    Args:
        jobs, asks, rows: as of `stream_numba`; asks are about the job whose place in the chunk `of` is, or below 0
            about the state that the column `-1 - of` had before the chunk.
        last: `[P]` the last job of each column; -1 for none.
        quantiles: of the asks, `[A, Q]`.
        states: of the columns after the chunk, `[P, d]`; of those with a job.
        means, precisions: the slots of the columns after it, `[P, L, H, S, 4D]` and `[P, L, H, S]`.
    """

    jobs: stream_numba.Jobs
    asks: stream_numba.Asks
    rows: stream_numba.Rows
    last: Array
    quantiles: Array
    states: Array
    means: Array
    precisions: Array

    @classmethod
    def of(cls, decoder: SeriesDecoder, size: int, told: int, horizon: int) -> Chunk:
        """Room for rows of so many columns, each of which is told so much about, `reply_rows`."""
        shape, rows = decoder.initial_means.shape, most_rows(size, told)
        asks = rows * size * (3 + 2 * horizon)
        return cls(
            stream_numba.jobs_for(TOKENS + size * (PATCH + 1)),
            stream_numba.asks_for(asks, ASKED),
            stream_numba.rows_for(rows, size, horizon),
            np.empty(size, np.int64),
            np.empty((asks, QUANTILES), np.float32),
            np.empty((size, decoder.width), np.float32),
            np.empty((size, *shape), np.float32),
            np.empty((size, *shape[:3]), np.float32),
        )


def most_rows(size: int, told: int) -> int:
    """Rows of a chunk, one at least."""
    return max(1, TOKENS // (size * told))


@inline_jit
def _append(made, jobs, job, asked, asks, ask, taken, rows, row, chunk, last):
    """Put a wave of so many jobs, asks and rows behind those of the chunk."""
    columns = len(last)
    for k in range(made):
        copy1(jobs.tokens[k], chunk.jobs.tokens[job + k])
        chunk.jobs.ends[job + k], chunk.jobs.lags[job + k] = jobs.ends[k], jobs.lags[k]
        chunk.jobs.column[job + k], chunk.jobs.is_whole[job + k] = jobs.column[k], jobs.is_whole[k]
    for k in range(asked):
        copy1(asks.numbers[k], chunk.asks.numbers[ask + k])
        of = asks.of[k]
        if of >= 0:
            of += job
        elif chunk.last[-1 - of] >= 0:
            of = chunk.last[-1 - of]
        chunk.asks.of[ask + k] = of
    for a in range(columns):
        if last[a] >= 0:
            chunk.last[a] = last[a] + job
    for k in range(taken):
        chunk.rows.at[row + k], chunk.rows.stream[row + k] = rows.at[k], rows.stream[k]
        chunk.rows.is_look[row + k], chunk.rows.unit[row + k] = rows.is_look[k], rows.unit[k]
        for a in range(columns):
            one, other = rows.before[k, a], rows.after[k, a]
            chunk.rows.before[row + k, a] = one + ask if one >= 0 else -1
            chunk.rows.after[row + k, a] = other + ask if other >= 0 else -1
            chunk.rows.seen[row + k, a], chunk.rows.noise[row + k, a] = rows.seen[k, a], rows.noise[k, a]
            for h in range(rows.share.shape[2]):
                chunk.rows.ahead[row + k, a, h, 0] = rows.ahead[k, a, h, 0] + ask
                chunk.rows.ahead[row + k, a, h, 1] = rows.ahead[k, a, h, 1] + ask
                chunk.rows.share[row + k, a, h] = rows.share[k, a, h]
            for i in range(4):
                chunk.rows.scales[row + k, a, i] = rows.scales[k, a, i]


@kernel_jit(*_OF_ROWS, allocates=True)
def lay_out(handle, chunk, batch, seat, cursor, end, gone, most):
    """The next rows of a stream, as many as a chunk has room for; what was seen is kept in its seat.

    Args:
        handle: of a `Taken` for one stream.
        batch: seats, times, values and noise of all rows, `filter_steps.Batch`.
        seat: of the stream, `[1]`.
        cursor, end: the rows that are still to come, `[1]`; the cursor moves on.
        gone: as of `wave`, `[1]`.
        most: rows of a wave.

    Returns:
        how many tokens, asks and rows there are.
    """
    taken: Any = opened(handle)
    streams, wanted, room = opened(taken.streams), opened(taken.wanted), opened(taken.room).wave
    columns = len(chunk.last)
    for a in range(columns):
        chunk.last[a] = -1
    job = ask = row = 0
    while cursor[0] < end[0] and row < len(chunk.rows.at) and job + columns * (most + 1) <= len(chunk.jobs.ends):
        made, asked, told = wave(
            streams.kept, batch[0], batch[1], batch[2], wanted.wanted.horizon, cursor, end, gone,
            min(most, len(chunk.rows.at) - row), room.work, room.jobs, room.asks, room.rows, room.last, room.was,
        )  # fmt: skip
        _append(made, room.jobs, job, asked, room.asks, ask, told, room.rows, row, chunk, room.last[0])
        store(room.work, 0, streams.kept, seat[0])
        job, ask, row = job + made, ask + asked, row + told
    return job, ask, row


@kernel_jit(*_OF_ROWS, allocates=True)
def conclude(handle, chunk, count, batch, seat, told, trace):
    """Tell of the rows of a chunk, of which `lay_out` was the last call of this handle, and keep what they came to."""
    taken: Any = opened(handle)
    streams, wanted, at_hand = opened(taken.streams), opened(taken.wanted), opened(taken.room)
    kept, room, known = streams.kept, at_hand.wave, at_hand.row
    scorer = Scorer(streams.told, wanted.leads, wanted.tables, wanted.wanted, known.scratch)
    # Room that is used again knows nothing of the streams of a call before.
    for k in range(len(known.scratch.loaded)):
        known.scratch.loaded[k] = -1
    if count > 0:
        tell(
            known.out, room.work, chunk.rows, count, chunk.quantiles, known.foretold, scorer, batch, told, trace,
            known.known,
        )  # fmt: skip
    store(room.work, 0, kept, seat[0])
    for a in range(len(chunk.last)):
        kept.means[seat[0], a], kept.precisions[seat[0], a] = chunk.means[a], chunk.precisions[a]
        if chunk.last[a] >= 0:
            copy1(chunk.states[a], kept.hidden[seat[0], a])
