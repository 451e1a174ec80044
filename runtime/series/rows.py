"""Process rows of the series network in compiled loops: tokens, the network, the robust filter, and the scored
outputs."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from typing import Any

import numpy as np

import rfa.runtime.filters.observed as filter_observed
from rfa.runtime import handles
from rfa.runtime.compiling import inline_jit, kernel_jit
from rfa.runtime.filters import steps as filter_steps
from rfa.runtime.filters.observed import LOG_LIKELIHOOD, NIS, PRECISION, WEIGHT, predictive_log_density
from rfa.runtime.filters.steps import store_trace
from rfa.runtime.handles import opened
from rfa.runtime.kernel_calls import call, callee
from rfa.runtime.series import config, decoder_numba, mixture_numba, row_buffers, stream_numba, update_numba
from rfa.runtime.series import mixture as stored_mixture
from rfa.runtime.series.mixture_layout import MIXED
from rfa.runtime.series.mixture_numba import (
    finish_column,
    mix_column,
    observe_column,
    remember_forecasts,
    score_value,
    write_weights,
)
from rfa.runtime.series.stream_numba import commit, gather_slots
from rfa.runtime.series.update_numba import (
    FIRST_WITH_FORECAST,
    FIRST_WITH_NETWORK,
    repeat_column,
    update_column,
    write_forecasts,
)
from rfa.runtime.uncertainty import adaptive, calibration, scoring
from rfa.runtime.uncertainty.copy_arrays import copy1, copy2
from rfa.runtime.uncertainty.step_outputs import Observation, Scorer
from rfa.runtime.views import members, packed

OUTLIERS = (0.02, 10.0)
# Other modules whose functions the kernels of this module call.
SOURCES = (
    adaptive, calibration, config, decoder_numba, filter_observed, filter_steps, handles, mixture_numba, row_buffers,
    stored_mixture, stream_numba, update_numba, *mixture_numba.SOURCES, *scoring.SOURCES, *decoder_numba.SOURCES,
    *stream_numba.SOURCES,
)  # fmt: skip


@callee(*SOURCES)
def score_rows(arguments, score, count):
    """Write the outputs of rows. After an invalid row, all later rows of its stream are invalid.

    Args:
        arguments: Packed arguments. See `process_rows`.
        score: Entry that `scoring_entry` returned.
        count: Number of rows.
    """
    parts: Any = members(arguments)
    out, work, rows, quantiles, forecast, scorer, batch, outputs, trace, posterior, mixture, mixture_work = parts
    pool_rows, times, values, noise = members(batch)
    size = values.shape[1]
    lost = -1
    for row in range(count):
        batch_row, stream = rows.batch_row[row], rows.stream[row]
        if stream == lost:
            outputs.is_good[batch_row] = False
            continue
        nis, weight, log_det, scored, precision = 0.0, 0.0, 0.0, 0, 0.0
        dof = posterior.inverse_dof
        for a in range(size):
            posterior.has_forecast[a] = rows.seen[row, a] >= FIRST_WITH_FORECAST
            numbers = work.numbers[stream, a]
            if rows.is_read_only[row]:
                one, trust, log_size, is_scored = repeat_column(numbers, rows, row, out, dof, a)
            else:
                one, trust, log_size, is_scored = update_column(
                    numbers, rows, row, quantiles, values[batch_row, a], noise[batch_row], out, dof, a
                )
            precision += out.covariance[a, a]
            mixture_work.squares[a] = one if is_scored else np.nan
            if is_scored:
                nis, weight, log_det, scored = nis + one, weight + trust, log_det + log_size, scored + 1
            write_forecasts(rows, row, quantiles, rows.leads[row], rows.unit[row], posterior, forecast, a)
        if len(mixture.numbers) > 0:
            weights = outputs.weights[batch_row]
            _mix(
                mixture, mixture_work, rows, row, quantiles, pool_rows[batch_row], values[batch_row], posterior, weights
            )
            if noise[batch_row] != 1:
                posterior.tail[1] = np.nan
        else:  # a mixture may have used these buffers before
            posterior.tail[0] = posterior.tail[1] = np.nan
        out.scalars[PRECISION] = size / precision
        out.scalars[NIS], out.scalars[WEIGHT] = nis, weight / scored if scored > 0 else 1.0
        out.scalars[LOG_LIKELIHOOD] = predictive_log_density(nis, log_det, np.float64(scored), OUTLIERS)
        observation = Observation(pool_rows[batch_row], times[batch_row], values[batch_row])
        if not scoring.score_observation(score, scorer, observation, posterior, True, outputs, batch_row):
            lost, mixture_work.loaded[0] = stream, -1
            continue
        if len(mixture.numbers) > 0:
            _finish(mixture, mixture_work, rows, row, posterior, outputs)
        if len(trace.state) > 0:
            store_trace(out, posterior, trace, batch_row)
            copy1(out.mean, trace.mean[batch_row])
            copy2(out.covariance, trace.state_covariance[batch_row])


@inline_jit
def _mix(mixture, work, rows, row, quantiles, pool_row, values, posterior, weights):
    """Replace the network's forecasts by those of the mixture, and write its weights. The mixture of the stream is
    copied to `work`."""
    if work.loaded[0] != pool_row:
        work.loaded[0] = pool_row
        copy2(mixture.numbers[pool_row], work.numbers)
        copy2(mixture.memory[pool_row], work.memory)
    unit, leads, moments, least, counts, nis = rows.unit[row], rows.leads[row], rows.moments[row], 1.0, 0, 0.0
    for a in range(len(values)):
        numbers, memory = work.numbers[a], work.memory[a]
        square = work.squares[a]
        if not np.isnan(square) and rows.seen[row, a] >= FIRST_WITH_NETWORK:
            for q in range(len(work.prior)):
                quantile = quantiles[rows.previous_query[row, a], q]
                work.prior[q] = rows.scales[row, a, 0] + rows.scales[row, a, 1] * quantile
            mixed = score_value(numbers, memory, rows.cells[row, a], moments[0], values[a], work)
            if not np.isnan(mixed):
                square, posterior.innovation[a] = mixed, values[a] - work.prior_forecasts[MIXED]
        nis += 0.0 if np.isnan(square) else square
        observe_column(numbers, memory, rows.cells[row, a], values[a], unit, moments[0], work)
        mix_column(numbers, memory, leads, moments, unit, posterior, a, work)
        if weights.shape[2] > 0:
            write_weights(numbers, leads, unit, weights, a, work)
        if work.tail[0] == work.tail[0]:
            least, counts = min(least, work.tail[0]), counts + 1
    posterior.tail[0] = min(len(values) * least, 1.0) if counts == len(values) else np.nan
    posterior.tail[1] = nis


@inline_jit
def _finish(mixture, work, rows, row, posterior, outputs):
    """Finish the outputs of an accepted row, and store its mixture."""
    pool_row = work.loaded[0]
    for a in range(len(work.numbers)):
        numbers, memory = work.numbers[a], work.memory[a]
        finish_column(numbers, rows.leads[row], rows.unit[row], posterior, outputs, rows.batch_row[row], a, work)
        if not rows.is_read_only[row]:
            remember_forecasts(numbers, memory, rows.leads[row], rows.unit[row], a, work)
    copy2(work.numbers, mixture.numbers[pool_row])
    copy2(work.memory, mixture.memory[pool_row])


@inline_jit
def reset_workspace(workspace, mixture):
    """Mark a reused workspace as empty, so that it is not used for a stream of an earlier call."""
    for k in range(len(workspace.loaded)):
        workspace.loaded[k] = -1
    mixture.loaded[0] = -1


@inline_jit
def _find_streams_left(cursors, ends, buffers):
    """Return whether any stream has unprocessed rows. Mark the streams with unprocessed rows, so that they are
    committed."""
    is_left = False
    for stream in range(len(cursors)):
        buffers.begins[stream] = cursors[stream]
        buffers.is_committed[stream] = cursors[stream] < ends[stream]
        is_left = is_left or buffers.is_committed[stream]
    return is_left


@inline_jit
def _gather_states(hidden, pool_rows, tokens, query_count, buffers):
    """Append the states of the columns' tokens before this call to those of the new tokens. Return the total number."""
    columns = hidden.shape[1]
    for stream in range(len(pool_rows)):
        for a in range(columns):
            copy1(hidden[pool_rows[stream], a], buffers.states[tokens + stream * columns + a])
    source = buffers.queries.source
    for k in range(query_count):
        if source[k] < 0:
            source[k] = tokens - 1 - source[k]
    return tokens + len(pool_rows) * columns


@kernel_jit(*SOURCES)
def process_rows(handle, batch, outputs, trace, pool_rows, cursors, ends, passed, max_rows, with_outputs):
    """Process the rows of a batch of streams with the network, one patch at a time.

    Args:
        handle: Handle of `KernelHandles`.
        batch: Pool rows, times, values and noise of all rows (`filter_steps.Batch`).
        outputs, trace: Outputs.
        pool_rows: Row in the pool of each stream, `[S]`.
        cursors, ends: Range of the unprocessed rows of each stream in the batch, `[S]`. Cursors are advanced.
        passed: Number of empty cells that were already created. See `next_tokens`.
        max_rows: Maximum number of rows of a stream per patch.
        with_outputs: Whether to write outputs.

    Returns:
        (0, 0), or the numbers of tokens and rows of a patch with an invalid row, which is not committed.
    """
    handles: Any = opened(handle)
    pool, options = opened(handles.pool), opened(handles.options)
    all_buffers = opened(handles.buffers)
    buffers, row_buffers = all_buffers.tokens, all_buffers.row
    stored, tokens = pool.stored, buffers.tokens
    reset_workspace(row_buffers.workspace, row_buffers.mixture)
    scorer = Scorer(pool.scored, options.horizons, options.tables, options.spec, row_buffers.workspace)
    while _find_streams_left(cursors, ends, buffers):
        count, query_count, rows = call(handles.next_tokens, (
            stored, batch[0], batch[1], batch[2], options.spec, cursors, ends, passed, max_rows, buffers.work,
            tokens, buffers.queries, buffers.rows, buffers.last_token, buffers.saved_clock,
        ))  # fmt: skip
        means, precisions, states = buffers.means[:count], buffers.precisions[:count], buffers.states[:count]
        gather_slots(stored, pool_rows, tokens, count, means, precisions)
        call(handles.compute_states, (
            tokens.features[:count], tokens.ends[:count], tokens.lags[:count], handles.weights, means, precisions,
            states,
        ))  # fmt: skip
        if with_outputs and rows > 0:
            all_states = buffers.states[: _gather_states(stored.hidden, pool_rows, count, query_count, buffers)]
            queries = buffers.queries.features[:query_count]
            call(
                handles.compute_quantiles,
                (all_states, buffers.queries.source, queries, handles.weights, buffers.quantiles),
            )
            arguments = packed((
                row_buffers.out, buffers.work, buffers.rows, buffers.quantiles, row_buffers.forecast, scorer, batch,
                outputs, trace, row_buffers.posterior, pool.mixture, row_buffers.mixture,
            ))  # fmt: skip
            call(handles.score_rows, (arguments, handles.score, rows))
            for k in range(rows):
                if not outputs.is_good[buffers.rows.batch_row[k]]:
                    return count, rows
        commit(
            stored, pool_rows, buffers.is_committed, buffers.work, tokens, count, buffers.last_token, states, means,
            precisions,
        )  # fmt: skip
    return 0, 0
