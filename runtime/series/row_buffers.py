"""Buffers for processing rows of the series network, and the handles with which compiled code reads them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rfa.runtime.filters.observed import Observed, observed
from rfa.runtime.filters.steps import allocate_posterior
from rfa.runtime.handles import Handle
from rfa.runtime.kernel_calls import Entry
from rfa.runtime.series.clock_numba import CLOCK
from rfa.runtime.series.decoder_numba import QUANTILES, QUERY_FEATURES, SeriesDecoder
from rfa.runtime.series.mixture import MixtureWork, StoredMixture
from rfa.runtime.series.stream_arrays import Queries, RowArrays, StoredStreams, StreamWork, TokenArrays
from rfa.runtime.series.update_numba import ENDS
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.calibration import Tables
from rfa.runtime.uncertainty.step_outputs import FilterOutput, OutputSpec, StreamStates, Workspace
from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray


class Shape(NamedTuple):
    """Sizes of buffers. `max_rows` is the maximum number of rows per stream."""

    columns: int
    streams: int
    max_rows: int
    horizon: int


class TokenBuffers(NamedTuple):
    """Buffers for the tokens of a batch of streams.

    Attributes:
        begins: Index in the batch of each stream's first row in these tokens.
        is_committed: Whether all rows of a stream are valid.
        saved_clock: Copy of a clock, from which it is restored if a patch ends before the row, `[CLOCK]`.
        work, tokens, rows: Arrays of the streams, tokens and rows.
        queries: Horizons at which forecasts are computed.
        last_token: Last token of each column, `[S, P]`. -1 if there is none.
        states: States of the tokens, followed by those of the columns' previous tokens.
        quantiles: Quantiles of the queries, `[Q, QUANTILES]`.
        means, precisions: Memory slots after each token.
    """

    begins: Array
    is_committed: Array
    saved_clock: Array
    work: StreamWork
    tokens: TokenArrays
    queries: Queries
    rows: RowArrays
    last_token: Array
    states: Array
    quantiles: Array
    means: Array
    precisions: Array

    @classmethod
    def allocate(cls, decoder: SeriesDecoder, shape: Shape) -> TokenBuffers:
        """Allocate buffers that have space for the tokens and queries of all rows."""
        columns, streams, max_rows, horizon = shape
        slots = decoder.initial_means.shape
        tokens, queries = streams * columns * (max_rows + 1), streams * columns * max_rows * (3 + 2 * horizon)
        return cls(
            np.empty(streams, np.int64),
            np.empty(streams, np.bool_),
            np.empty(CLOCK),
            StreamWork.allocate(streams, columns),
            TokenArrays.allocate(tokens),
            Queries.allocate(queries, QUERY_FEATURES),
            RowArrays.allocate(streams * max_rows, columns, horizon),
            np.empty((streams, columns), np.int64),
            np.empty((tokens + streams * columns, decoder.width), np.float32),
            np.empty((queries, QUANTILES), np.float32),
            np.empty((tokens, *slots), np.float32),
            np.empty((tokens, *slots[:3]), np.float32),
        )


class RowBuffers(NamedTuple):
    """Buffers for the outputs of one row, and for the quantiles of one of its forecasts."""

    out: Observed
    posterior: FilterOutput
    forecast: Array
    workspace: Workspace
    mixture: MixtureWork

    @classmethod
    def allocate(cls, columns: int, streams: StreamStates, readout: Readout) -> RowBuffers:
        """Allocate buffers for rows of streams in a pool."""
        out = observed(columns, columns)
        np.fill_diagonal(out.transition, 1.0)
        posterior = allocate_posterior(out, len(readout.horizon), 2 * len(ENDS))
        workspace = Workspace.allocate(streams.conformal, readout)
        mixture = MixtureWork.allocate(columns, len(readout.horizon))
        return cls(out, posterior, np.empty(QUANTILES), workspace, mixture)


class PoolArrays(NamedTuple):
    """Arrays of a pool with the state of the network, of the scoring and of the mixture."""

    stored: StoredStreams
    scored: StreamStates
    mixture: StoredMixture


class RequestOptions(NamedTuple):
    """The options of a request that scoring reads: the part of a `Scorer` that changes from request to request."""

    horizons: Horizons
    tables: Tables
    spec: OutputSpec


class Buffers(NamedTuple):
    """Buffers that one call of the network uses."""

    tokens: TokenBuffers
    row: RowBuffers


class KernelHandles(NamedTuple):
    """Handles of the network's `Weights`, `PoolArrays`, `RequestOptions` and `Buffers`, which change independently. It
    also contains the entries of the kernels that other kernels call."""

    weights: Handle
    pool: Handle
    options: Handle
    buffers: Handle
    score: Entry
    score_rows: Entry
    next_tokens: Entry
    compute_states: Entry
    compute_quantiles: Entry
