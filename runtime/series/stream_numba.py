"""Create the tokens and queries for rows of the series network's streams.

Every row gets a cell of the stream's clock (`clock_numba.py`), and the cells between two rows are empty. Each row
creates a token. The network reads it with the memory slots after the last complete patch, and only a token that
completes a patch changes them. The rows of a patch therefore do not depend on each other, and the network computes them
at once.

A row without values at the time of the previous row is read-only. It adds no cell, and its horizons are queries of the
existing token.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime import local_time_numba, typical_lag, views
from rfa.runtime.compiling import inline_jit, kernel_jit
from rfa.runtime.local_time_numba import utc_offset
from rfa.runtime.series import (
    averages_numba,
    clipping_numba,
    clock_numba,
    config,
    leads,
    squash_numba,
    stream_arrays,
    tokens_numba,
)
from rfa.runtime.series.averages_numba import write_average_paths, write_averages, write_summary
from rfa.runtime.series.clock_numba import (
    CLOCK,
    LAG,
    LAGS_SEEN,
    MOST_EMPTY,
    TIME,
    advance_clock,
    bounded,
    local_span,
    write_seasons,
)
from rfa.runtime.series.config import LAGS, PATCH, PATHS, REACH
from rfa.runtime.series.leads import FARTHEST, lead_table
from rfa.runtime.series.stream_arrays import CENTRE, STORED_COUNTS, STORED_NUMBERS, TOKEN_CELLS, UNIT
from rfa.runtime.series.tokens_numba import (
    CELLS,
    FILL,
    HEAD,
    ORIGIN,
    RING,
    SEEN,
    noise_bound,
    observe,
    remember_patch,
    write_paths,
    write_token,
)
from rfa.runtime.uncertainty import alarms, copy_arrays, step_outputs
from rfa.runtime.uncertainty.copy_arrays import copy3

# Other modules whose functions and arguments the kernels of this module use.
SOURCES = (
    alarms, averages_numba, clipping_numba, clock_numba, config, copy_arrays, leads, local_time_numba,
    squash_numba, step_outputs, stream_arrays, tokens_numba, typical_lag, views,
)  # fmt: skip
LEAD_TABLE = lead_table()
LEAD_NUMBERS = LEAD_TABLE.shape[1]
_STORED = np.array(STORED_COUNTS)
# Maximum horizon in cells, and the distance from an integer within which a horizon is treated as that integer.
FURTHEST = 1e9
NEAR_WHOLE = 0.25
LARGEST_VALUE = 1e140
MOST_LAGS = 1e15


@inline_jit
def load(stored, pool_row, work, stream):
    """Read a stream from the pool. A client may have changed its state, so indices are limited to valid ones."""
    for k in range(CLOCK):
        work.clock[stream, k] = stored.clock[pool_row, k]
    work.clock[stream, LAGS_SEEN] = bounded(work.clock[stream, LAGS_SEEN], 0.0, MOST_LAGS)
    for a in range(stored.numbers.shape[1]):
        for k in range(STORED_NUMBERS):
            work.numbers[stream, a, k] = stored.numbers[pool_row, a, k]
        counts = work.counts[stream, a]
        for k in range(len(_STORED)):
            counts[_STORED[k]] = max(stored.counts[pool_row, a, k], 0)
        counts[SEEN] = min(counts[SEEN], counts[CELLS])
        counts[TOKEN_CELLS] = bounded(counts[TOKEN_CELLS], max(counts[CELLS] - MOST_EMPTY, 0), counts[CELLS])
        counts[HEAD], counts[FILL] = RING - REACH, bounded(counts[FILL], 1, REACH - 1)
        seen = 0
        for k in range(REACH):
            work.ring[stream, a, RING - REACH + k] = stored.ring[pool_row, a, k]
            work.errors[stream, a, k] = stored.errors[pool_row, a, k]
            work.since[stream, a, k] = seen
            seen += (stored.seen[pool_row, a, k >> 3] >> (k & 7)) & 1
        for k in range(REACH // 8):
            work.seen[stream, a, k] = stored.seen[pool_row, a, k]
        for k in range(LAGS):
            lag = bounded(stored.lags[pool_row, a, k], 0, REACH - PATCH)
            work.lags[stream, a, k] = min(lag, counts[CELLS])
            work.offsets[stream, a, k] = stored.offsets[pool_row, a, k]
        if counts[CELLS] > 0:
            passed = min(counts[CELLS] - counts[TOKEN_CELLS], PATCH - 1)
            write_summary(
                passed, work.numbers[stream, a], counts, work.ring[stream, a], work.lags[stream, a],
                work.summary[stream, a],
            )  # fmt: skip


@inline_jit
def store(work, stream, stored, pool_row):
    """Write a stream to the pool."""
    for k in range(CLOCK):
        stored.clock[pool_row, k] = work.clock[stream, k]
    for a in range(stored.numbers.shape[1]):
        for k in range(STORED_NUMBERS):
            stored.numbers[pool_row, a, k] = work.numbers[stream, a, k]
        counts = work.counts[stream, a]
        for k in range(len(_STORED)):
            stored.counts[pool_row, a, k] = counts[_STORED[k]]
        head = counts[HEAD]
        for k in range(REACH):
            stored.ring[pool_row, a, k] = work.ring[stream, a, head + k]
            stored.errors[pool_row, a, k] = work.errors[stream, a, k]
        for k in range(REACH // 8):
            stored.seen[pool_row, a, k] = work.seen[stream, a, k]
        for k in range(LAGS):
            stored.lags[pool_row, a, k] = work.lags[stream, a, k]
            stored.offsets[pool_row, a, k] = work.offsets[stream, a, k]


@inline_jit
def _observe_cell(work, stream, a, x):
    """Add a cell to a column."""
    counts = work.counts[stream, a]
    n = counts[CELLS]
    if n < REACH and x == x:
        work.seen[stream, a, n >> 3] |= np.uint8(1 << (n & 7))
    observe(x, work.numbers[stream, a], counts, work.ring[stream, a], work.errors[stream, a], work.since[stream, a])


@inline_jit
def _make_token(work, stream, a, tokens, token):
    """Create the token of a column. Return whether it completes a patch."""
    numbers, counts = work.numbers[stream, a], work.counts[stream, a]
    ring, errors, since = work.ring[stream, a], work.errors[stream, a], work.since[stream, a]
    seasons, lags, row = work.seasons[stream], work.lags[stream, a], tokens.features[token]
    c, s, fill = write_token(
        numbers, counts, ring, errors, since, seasons, lags, work.offsets[stream, a], row,
    )  # fmt: skip
    write_averages(numbers, counts, ring, errors, since, seasons, lags, c, s, work.summary[stream, a], row)
    cells = counts[CELLS]
    tokens.ends[token], tokens.lags[token] = cells, (cells - 1) % PATCH + 1
    tokens.stream[token], tokens.column[token], tokens.is_whole[token] = stream, a, cells % PATCH == 0
    numbers[CENTRE], numbers[UNIT], counts[TOKEN_CELLS] = c, s, cells
    if cells % PATCH == 0:
        remember_patch(numbers, counts, c, s, fill)
    return cells % PATCH == 0


@inline_jit
def _add_query(work, stream, a, lead, queries, query, source):
    """Add a query of the column's last token for a horizon. Return the index after the query."""
    numbers, counts = work.numbers[stream, a], work.counts[stream, a]
    row = queries.features[query]
    ring, lags, passed = work.ring[stream, a], work.lags[stream, a], counts[CELLS] - counts[TOKEN_CELLS]
    c, s = numbers[CENTRE], numbers[UNIT]
    write_paths(lead, passed, counts, ring, lags, work.offsets[stream, a], c, s, numbers[ORIGIN], row)
    write_average_paths(lead, passed, numbers, counts, ring, lags, work.summary[stream, a], c, s, row)
    near = min(lead, FARTHEST)
    for k in range(LEAD_NUMBERS):
        row[PATHS + k] = LEAD_TABLE[near, k]
    queries.source[query] = source
    return query + 1


@inline_jit
def _make_tokens(work, stream, columns, only_whole, tokens, token, last_token):
    """Create the tokens of all columns that have values. If `only_whole` is true, create only those that complete a
    patch.

    Returns:
        The index after the tokens, and whether one of them completes a patch.
    """
    is_whole = False
    for a in range(columns):
        cells = work.counts[stream, a, CELLS]
        if cells > 0 and (cells % PATCH == 0 or not only_whole):
            is_whole = _make_token(work, stream, a, tokens, token) or is_whole
            last_token[stream, a] = token
            token += 1
    return token, is_whole


@inline_jit
def _query_previous(work, stream, columns, queries, query, rows, row, last_token):
    """Add queries of the last token of each column, for the current cell and the next one."""
    for a in range(columns):
        counts = work.counts[stream, a]
        rows.previous_query[row, a], rows.seen[row, a] = -1, counts[SEEN]
        if counts[CELLS] > 0:
            source = last_token[stream, a] if last_token[stream, a] >= 0 else -1 - (stream * columns + a)
            lead = counts[CELLS] - counts[TOKEN_CELLS] + 1
            rows.previous_query[row, a] = query
            rows.scales[row, a, 0] = work.numbers[stream, a, CENTRE]
            rows.scales[row, a, 1] = work.numbers[stream, a, UNIT]
            rows.noise[row, a] = noise_bound(work.numbers[stream, a])
            query = _add_query(work, stream, a, lead, queries, query, source)
            query = _add_query(work, stream, a, lead + 1, queries, query, source)
    return query


@inline_jit
def _query_own(work, stream, columns, unit, queries, query, rows, row, last_token):
    """Add queries of the row's own token, for the next cell and for the horizons."""
    leads = rows.leads[row]
    for a in range(columns):
        rows.own_query[row, a], rows.cells[row, a] = -1, work.counts[stream, a, CELLS]
        if work.counts[stream, a, CELLS] == 0:
            continue
        source = last_token[stream, a] if last_token[stream, a] >= 0 else -1 - (stream * columns + a)
        rows.own_query[row, a] = query
        rows.scales[row, a, 2] = work.numbers[stream, a, CENTRE]
        rows.scales[row, a, 3] = work.numbers[stream, a, UNIT]
        query = _add_query(work, stream, a, 1, queries, query, source)
        for h in range(len(leads)):
            cells = max(leads[h] / unit, 1.0) if unit > 0 else max(leads[h], 1.0)
            cells = min(cells, FURTHEST)
            first, share = np.int64(np.rint(cells)), 0.0
            if abs(cells - first) > NEAR_WHOLE:
                first = np.int64(np.floor(cells))
                share = cells - first
            rows.horizon_queries[row, a, h, 0], rows.share[row, a, h] = query, share
            query = _add_query(work, stream, a, first, queries, query, source)
            rows.horizon_queries[row, a, h, 1] = query - 1
            if share > 0:
                rows.horizon_queries[row, a, h, 1] = query
                query = _add_query(work, stream, a, first + 1, queries, query, source)
    return query


@inline_jit
def _is_read_only(work, stream, columns, now, values):
    begun = 0
    for a in range(columns):
        if values[a] == values[a]:
            return False
        begun += work.counts[stream, a, CELLS]
    return begun > 0 and now == work.clock[stream, TIME]


@inline_jit
def _begin_row(work, stream, batch_row, rows, row):
    rows.batch_row[row], rows.stream[row], rows.unit[row] = batch_row, stream, work.clock[stream, LAG]


@inline_jit
def _write_leads(spec, now, unit, rows, row):
    """Write the horizons of a row on the local clock, and the local times at them."""
    rows.moments[row, 0] = now + utc_offset(spec.utc_offsets, now)
    for h in range(len(spec.horizon)):
        at = now + spec.horizon[h]
        rows.leads[row, h] = local_span(spec.utc_offsets, now, spec.horizon[h], unit)
        rows.moments[row, 1 + h] = at + utc_offset(spec.utc_offsets, at)


@kernel_jit(*SOURCES)
def next_tokens(
    stored, pool_rows, times, values, spec, cursors, ends, passed, max_rows, work, tokens, queries, rows, last_token,
    saved_clock,
):  # fmt: skip
    """Create the next tokens of a batch of streams. For each stream, stop after the first token that completes a patch
    of a column.

    Args:
        stored: Arrays of the pool, read only. `commit` writes the content of `work`.
        pool_rows: Row in the pool of each stream, `[S]`.
        times, values: Rows of a batch, `[N]` and `[N, P]`. Missing values are NaN.
        spec: `OutputSpec` that contains the horizons and the offsets from UTC.
        cursors, ends: Range of the unprocessed rows of each stream in the batch, `[S]`. Cursors are advanced.
        passed: Number of empty cells before the next row that were already created, `[S]`. Initially 0.
        max_rows: Maximum number of rows of a stream in this call.
        work, tokens, queries, rows: Outputs.
        last_token: Output: last token of each column, `[S, P]`. -1 if there is none.
        saved_clock: Buffer, `[CLOCK]`.

    Returns:
        The numbers of tokens, queries and rows.
    """
    token = query = row = 0
    columns = values.shape[1]
    for stream in range(len(cursors)):
        if cursors[stream] == ends[stream]:
            continue
        load(stored, pool_rows[cursors[stream]], work, stream)
        for a in range(columns):
            last_token[stream, a] = -1
        is_whole, row_count = False, 0
        while cursors[stream] < ends[stream] and not is_whole and row_count < max_rows:
            batch_row = cursors[stream]
            rows.is_read_only[row] = _is_read_only(work, stream, columns, times[batch_row], values[batch_row])
            if rows.is_read_only[row]:
                _begin_row(work, stream, batch_row, rows, row)
                for a in range(columns):
                    rows.previous_query[row, a], rows.seen[row, a] = -1, work.counts[stream, a, SEEN] - 1
            else:
                # If a patch ends before the row, the clock advances again in the next call.
                for k in range(CLOCK):
                    saved_clock[k] = work.clock[stream, k]
                count = advance_clock(work.clock[stream], times[batch_row], spec.utc_offsets)
                write_seasons(work.clock[stream, LAG], work.seasons[stream])
                while passed[stream] < count - 1 and not is_whole:
                    passed[stream] += 1
                    for a in range(columns):
                        if work.counts[stream, a, CELLS] > 0:
                            _observe_cell(work, stream, a, np.nan)
                    token, is_whole = _make_tokens(work, stream, columns, True, tokens, token, last_token)
                if is_whole:
                    for k in range(CLOCK):
                        work.clock[stream, k] = saved_clock[k]
                    break
                _begin_row(work, stream, batch_row, rows, row)
                query = _query_previous(work, stream, columns, queries, query, rows, row, last_token)
                for a in range(columns):
                    if work.counts[stream, a, CELLS] > 0 or values[batch_row, a] == values[batch_row, a]:
                        _observe_cell(work, stream, a, values[batch_row, a])
                token, is_whole = _make_tokens(work, stream, columns, False, tokens, token, last_token)
                passed[stream] = 0
            unit = work.clock[stream, LAG]
            _write_leads(spec, times[batch_row], unit, rows, row)
            query = _query_own(work, stream, columns, unit, queries, query, rows, row, last_token)
            cursors[stream] += 1
            row += 1
            row_count += 1
    return token, query, row


@kernel_jit(*SOURCES)
def gather_slots(stored, pool_rows, tokens, count, means, precisions):
    """Copy the memory slots of the tokens' streams to `means` `[T, L, H, S, 4D]` and `precisions` `[T, L, H, S]`."""
    for token in range(count):
        stream, a = tokens.stream[token], tokens.column[token]
        for layer in range(means.shape[1]):
            copy3(stored.means[pool_rows[stream], a, layer], means[token, layer])
        copy3(stored.precisions[pool_rows[stream], a], precisions[token])


@kernel_jit(*SOURCES)
def commit(stored, pool_rows, is_committed, work, tokens, count, last_token, states, means, precisions):
    """Write streams to the pool: their cells, the states of the last tokens, and the memory slots after complete
    patches."""
    for stream in range(len(pool_rows)):
        if is_committed[stream]:
            store(work, stream, stored, pool_rows[stream])
            for a in range(last_token.shape[1]):
                if last_token[stream, a] >= 0:
                    for k in range(states.shape[1]):
                        stored.hidden[pool_rows[stream], a, k] = states[last_token[stream, a], k]
    for token in range(count):
        stream, a = tokens.stream[token], tokens.column[token]
        if tokens.is_whole[token] and is_committed[stream]:
            for layer in range(means.shape[1]):
                copy3(means[token, layer], stored.means[pool_rows[stream], a, layer])
            copy3(precisions[token], stored.precisions[pool_rows[stream], a])
