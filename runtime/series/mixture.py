"""State of a stream of the mixture of forecasts, and its work buffers. See `mixture_numba.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rfa.runtime.filters import auto_layout
from rfa.runtime.pool import StateField
from rfa.runtime.series import mixture_layout as at
from rfa.runtime.series.config import LEVELS
from rfa.runtime.series.update_numba import ENDS

Array = np.ndarray
NUMBERS, MEMORY = "mixture.numbers", "mixture.memory"


class StoredMixture(NamedTuple):
    """Arrays of a pool that contain the mixtures of its streams, `[pool rows, P, …]`. For a network without a mixture,
    they have no rows."""

    numbers: Array
    memory: Array

    @classmethod
    def of(cls, arrays: Mapping[str, Array], columns: int) -> StoredMixture:
        """Return the arrays of a pool that contain the mixtures of its streams."""
        if NUMBERS in arrays:
            return cls(arrays[NUMBERS], arrays[MEMORY])
        return cls(np.empty((0, columns, at.NUMBERS)), np.empty((0, columns, at.MEMORY), np.float32))


class MixtureWork(NamedTuple):
    """The mixture of one stream, and buffers for one row.

    Attributes:
        loaded: Row of the stream in the pool, `[1]`. -1 if no stream is loaded.
        numbers, memory: Copy of the pool's values until the row is accepted, `[P, …]`.
        scratch: Scratch for the search of a season.
        weights: Weights of the models of exponential smoothing, `[LEAD_COUNT, MEMBERS]`.
        expert_weights: Weights of the experts, `[LEAD_COUNT, EXPERT_COUNT]`.
        forecasts: Forecasts of the experts, followed by the median and the mean of the mixture, `[H, P, FORECASTS]`.
        prior: Quantiles of the network for the value that is scored.
        half_widths: Half-widths of the network's intervals.
        prior_forecasts: Forecasts of the value that is scored, as in `forecasts`, `[FORECASTS]`.
        squares: nis of each column under the network, `[P]`. NaN if the network was not queried.
        tail: Probability of the last value if it is a count, `[1]`. See `count_tail_numba.py`.
        has_weights: Whether the weights of each of LEADS were computed for the row, `[LEAD_COUNT]`.
        nearest: Index of the entry of LEADS that is nearest to each requested horizon, `[H]`. -1 if forecasts of the
            horizon are not scored, because it is too far from all of them.
    """

    loaded: Array
    numbers: Array
    memory: Array
    scratch: Array
    weights: Array
    expert_weights: Array
    forecasts: Array
    prior: Array
    half_widths: Array
    prior_forecasts: Array
    squares: Array
    tail: Array
    has_weights: Array
    nearest: Array

    @classmethod
    def allocate(cls, columns: int, horizon: int) -> MixtureWork:
        """Allocate buffers that are reused for every row."""
        return cls(
            np.full(1, -1), np.empty((columns, at.NUMBERS)), np.empty((columns, at.MEMORY), np.float32),
            np.empty(at.RING + auto_layout.LAGS_AT_ONCE), np.empty((at.LEAD_COUNT, at.MEMBERS)),
            np.empty((at.LEAD_COUNT, at.EXPERT_COUNT)), np.empty((horizon, columns, at.FORECASTS)),
            np.empty(len(LEVELS)), np.empty(2 * len(ENDS)), np.empty(at.FORECASTS), np.empty(columns), np.empty(1),
            np.empty(at.LEAD_COUNT, np.bool_), np.empty(horizon, np.int64),
        )  # fmt: skip


def mixture_fields(columns: int) -> dict[str, StateField]:
    """Return the fields of the state of a stream. All are zero before its first value."""
    return {
        NUMBERS: StateField((columns, at.NUMBERS), np.float64),
        MEMORY: StateField((columns, at.MEMORY), np.float32),
    }
