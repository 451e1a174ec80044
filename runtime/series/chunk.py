"""Process many rows of one series at once, for a network that runs on another device.

    prepare     rows → tokens and queries, patch after patch, as in `rows.process_rows`
    (device)    tokens → states, slots and quantiles
    finish      quantiles → outputs; states and slots → what the stream stores

Tokens depend only on the values. Therefore all tokens of a chunk are created before the network runs.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from rfa.runtime.compiling import inline_jit, kernel_jit
from rfa.runtime.handles import opened
from rfa.runtime.kernel_calls import call
from rfa.runtime.series import rows as series_rows
from rfa.runtime.series.config import PATCH
from rfa.runtime.series.decoder_numba import QUANTILES, QUERY_FEATURES, SeriesDecoder
from rfa.runtime.series.rows import SOURCES, reset_workspace
from rfa.runtime.series.stream_arrays import Queries, RowArrays, TokenArrays
from rfa.runtime.series.stream_numba import store
from rfa.runtime.uncertainty.copy_arrays import copy1
from rfa.runtime.uncertainty.step_outputs import Scorer
from rfa.runtime.views import packed

Array = np.ndarray
# Number of tokens after which a chunk is full. The patch with which this number is reached is completed.
TOKENS: Final = 1024
_SOURCES = (series_rows, *SOURCES)


class Chunk(NamedTuple):
    """Rows of one stream of P columns, their tokens and queries, and the results of the network.

    Attributes:
        tokens: Tokens of the rows.
        queries: Queries of the rows. Their source is a token of the chunk, or -1 - column for the last token of the
            column before the chunk.
        rows: The rows.
        last_token: Last token of each column, `[P]`. -1 if there is none in the chunk.
        quantiles: Quantiles of the queries, `[Q, quantiles]`.
        states: States of the columns' last tokens, `[P, d]`.
        means, precisions: Memory slots of the columns after the chunk, `[P, L, H, S, 4D]` and `[P, L, H, S]`.
    """

    tokens: TokenArrays
    queries: Queries
    rows: RowArrays
    last_token: Array
    quantiles: Array
    states: Array
    means: Array
    precisions: Array

    @classmethod
    def allocate(cls, decoder: SeriesDecoder, size: int, output_cost: int, horizon: int) -> Chunk:
        """Allocate a chunk.

        Args:
            decoder: The network.
            size: Number of columns.
            output_cost: Cost of the outputs of a row (`reply_rows`).
            horizon: Number of horizons.
        """
        shape, rows = decoder.initial_means.shape, most_rows(size, output_cost)
        queries = rows * size * (3 + 2 * horizon)
        return cls(
            TokenArrays.allocate(TOKENS + size * (PATCH + 1)),
            Queries.allocate(queries, QUERY_FEATURES),
            RowArrays.allocate(rows, size, horizon),
            np.empty(size, np.int64),
            np.empty((queries, QUANTILES), np.float32),
            np.empty((size, decoder.width), np.float32),
            np.empty((size, *shape), np.float32),
            np.empty((size, *shape[:3]), np.float32),
        )


def most_rows(size: int, output_cost: int) -> int:
    """Return the number of rows of a chunk. It is at least one."""
    return max(1, TOKENS // (size * output_cost))


@inline_jit
def _append_tokens(tokens, count, chunk, token):
    """Append `count` tokens to a chunk that already contains `token` tokens."""
    for k in range(count):
        copy1(tokens.features[k], chunk.tokens.features[token + k])
        chunk.tokens.ends[token + k], chunk.tokens.lags[token + k] = tokens.ends[k], tokens.lags[k]
        chunk.tokens.column[token + k], chunk.tokens.is_whole[token + k] = tokens.column[k], tokens.is_whole[k]


@inline_jit
def _append_queries(queries, count, chunk, query, token):
    """Append `count` queries to a chunk that already contains `query` queries. The tokens that they refer to begin at
    index `token`."""
    for k in range(count):
        copy1(queries.features[k], chunk.queries.features[query + k])
        source = queries.source[k]
        if source >= 0:
            source += token
        elif chunk.last_token[-1 - source] >= 0:
            source = chunk.last_token[-1 - source]
        chunk.queries.source[query + k] = source


@inline_jit
def _append_rows(rows, count, chunk, row, query):
    """Append `count` rows to a chunk that already contains `row` rows. Their queries begin at index `query`."""
    target = chunk.rows
    for k in range(count):
        to = row + k
        target.batch_row[to], target.stream[to] = rows.batch_row[k], rows.stream[k]
        target.is_read_only[to], target.unit[to] = rows.is_read_only[k], rows.unit[k]
        copy1(rows.leads[k], target.leads[to])
        copy1(rows.moments[k], target.moments[to])
        for a in range(len(chunk.last_token)):
            previous, own = rows.previous_query[k, a], rows.own_query[k, a]
            target.previous_query[to, a] = previous + query if previous >= 0 else -1
            target.own_query[to, a] = own + query if own >= 0 else -1
            target.seen[to, a], target.noise[to, a] = rows.seen[k, a], rows.noise[k, a]
            target.cells[to, a] = rows.cells[k, a]
            for h in range(rows.share.shape[2]):
                target.horizon_queries[to, a, h, 0] = rows.horizon_queries[k, a, h, 0] + query
                target.horizon_queries[to, a, h, 1] = rows.horizon_queries[k, a, h, 1] + query
                target.share[to, a, h] = rows.share[k, a, h]
            for i in range(4):
                target.scales[to, a, i] = rows.scales[k, a, i]


@kernel_jit(*_SOURCES)
def prepare(handle, chunk, batch, pool_row, cursor, end, passed, max_rows):
    """Prepare the next rows of a stream, as many as the chunk has space for, and store their cells in the pool.

    Args:
        handle: Handle of `KernelHandles` for one stream.
        chunk: Output.
        batch: Pool rows, times, values and noise of all rows (`filter_steps.Batch`).
        pool_row, cursor, end, passed: Values of the stream, `[1]`. See `next_tokens`.
        max_rows: Maximum number of rows of a patch.

    Returns:
        The numbers of tokens, queries and rows.
    """
    handles: Any = opened(handle)
    stored, options = opened(handles.pool).stored, opened(handles.options)
    buffers = opened(handles.buffers).tokens
    columns = len(chunk.last_token)
    for a in range(columns):
        chunk.last_token[a] = -1
    token = query = row = 0
    max_tokens, row_limit = len(chunk.tokens.ends) - columns * (max_rows + 1), len(chunk.rows.batch_row)
    while cursor[0] < end[0] and row < row_limit and token <= max_tokens:
        tokens, queries, rows = call(handles.next_tokens, (
            stored, batch[0], batch[1], batch[2], options.spec, cursor, end, passed,
            min(max_rows, row_limit - row), buffers.work, buffers.tokens, buffers.queries, buffers.rows,
            buffers.last_token, buffers.saved_clock,
        ))  # fmt: skip
        _append_tokens(buffers.tokens, tokens, chunk, token)
        _append_queries(buffers.queries, queries, chunk, query, token)
        for a in range(columns):
            if buffers.last_token[0, a] >= 0:
                chunk.last_token[a] = buffers.last_token[0, a] + token
        _append_rows(buffers.rows, rows, chunk, row, query)
        store(buffers.work, 0, stored, pool_row[0])
        token, query, row = token + tokens, query + queries, row + rows
    return token, query, row


@kernel_jit(*_SOURCES, allocates=True)
def finish(handle, chunk, count, batch, pool_row, outputs, trace):
    """Write the outputs of a chunk's rows, and store the stream. `prepare` must have been called with the same handle.

    Args:
        handle: Handle of `KernelHandles` for one stream.
        chunk: Chunk with the results of the network.
        count: Number of rows in the chunk.
        batch: Batch that was passed to `prepare`.
        pool_row: Row of the stream in the pool, `[1]`.
        outputs, trace: Outputs.
    """
    handles: Any = opened(handle)
    pool, options, buffers = opened(handles.pool), opened(handles.options), opened(handles.buffers)
    stored, row, work = pool.stored, buffers.row, buffers.tokens.work
    reset_workspace(row.workspace, row.mixture)
    scorer = Scorer(pool.scored, options.horizons, options.tables, options.spec, row.workspace)
    if count > 0:
        arguments = packed((
            row.out, work, chunk.rows, chunk.quantiles, row.forecast, scorer, batch, outputs, trace, row.posterior,
            pool.mixture, row.mixture,
        ))  # fmt: skip
        call(handles.score_rows, (arguments, handles.score, count))
    store(work, 0, stored, pool_row[0])
    for a in range(len(chunk.last_token)):
        stored.means[pool_row[0], a], stored.precisions[pool_row[0], a] = chunk.means[a], chunk.precisions[a]
        if chunk.last_token[a] >= 0:
            copy1(chunk.states[a], stored.hidden[pool_row[0], a])
