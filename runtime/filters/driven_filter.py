"""Filters of systems with a known input.

The filter runs without the input, and its outputs are shifted by the response to the input (`driven.py`). Therefore
every runtime and mode supports inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.filters.driven import KEPT_LAGS, HeldInput
from rfa.runtime.filters.steps import SHORTEST_LAG, Batch, Traced
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.uncertainty.step_outputs import StepOutputs

Array = np.ndarray
RESPONSE = "response"
# Maximum number of states n. It is limited because F and G of a lag take n³ operations.
MOST_STATES = 16
# Number of rows of a driven series that are processed at a time. Each new lag takes a tenth of a millisecond.
DRIVEN_ROWS = 32
KEPT_HORIZONS = 8


@dataclass(frozen=True)
class Response:
    """Response of a system to its inputs, at each of R observations.

    Attributes:
        states: Response of the state, `[R, n]`.
        seen: Response of the observations, `[R, P]`.
        ahead: Response of the forecasts if the last input is held constant, `[R, H, P]`.
    """

    states: Array
    seen: Array
    ahead: Array

    def hide(self, values: Array) -> Array:
        """Return observations `[R, P]` minus the response.

        Rows with a non-finite response become infinite, so that the filter rejects them.
        """
        parts = (part.reshape(len(values), -1) for part in (self.states, self.seen, self.ahead))
        is_finite = np.logical_and.reduce([np.isfinite(part).all(axis=1) for part in parts])
        hidden: Array = np.where(is_finite[:, None], values - self.seen, np.inf)
        return hidden


class DrivenSystem:
    """A linear system with an optional input.

    Args:
        drift: Drift matrix A, `[n, n]`.
        matrix: Observation matrix C, `[P, n]`.
        lags, horizons: Numbers of lags and of sets of horizons to cache.
    """

    def __init__(self, drift: Array, matrix: Array, *, lags: int = KEPT_LAGS, horizons: int = KEPT_HORIZONS) -> None:
        self._held, self._matrix = HeldInput(drift, lags), matrix
        self.fields: Mapping[str, StateField] = {RESPONSE: StateField((len(drift),), np.float64)}
        self._leads = functools.lru_cache(horizons)(functools.partial(_leads_of, self._held, matrix))

    @classmethod
    def of(cls, bundle: Bundle, matrix: Array) -> Self | None:
        """Return the system of a bundle, or None if the model is not linear or is too large."""
        if bundle.manifest.family != "linear" or matrix.shape[1] > MOST_STATES:
            return None
        return cls(np.array(bundle.config["drift"], np.float64), matrix)

    def respond(
        self, pool: StatePool, batch: Batch, inputs: Array | None, horizon: tuple[float, ...]
    ) -> Response | None:
        """Return the response before each observation, or None if the streams never had an input.

        Rows are processed one by one, so that results do not depend on the other rows.

        Args:
            pool, batch: States of the streams, and their observations.
            inputs: Inputs per unit time since the previous observation, `[R, n]`. They have no effect on the first row
                of a stream.
            horizon: Horizons of the forecasts.
        """
        responses = pool.arrays[RESPONSE].take(batch.slots, axis=0)
        if inputs is None:
            if not responses.any():
                return None
            inputs = np.zeros_like(responses)
        is_first = np.diff(batch.slots, prepend=-1) != 0
        is_begun = pool.arrays["clock.count"].take(batch.slots) > 0
        since = np.where(is_begun, pool.arrays["clock.time"].take(batch.slots), batch.times)
        lags = batch.times - np.where(is_first, since, np.roll(batch.times, 1))
        lags[lags < SHORTEST_LAG] = 0.0
        rows, size = len(lags), len(self._matrix)
        states, seen, ahead = np.empty_like(responses), np.empty((rows, size)), np.empty((rows, len(horizon), size))
        free, held = self._leads(horizon)
        with np.errstate(all="ignore"):  # non-finite values are rejected
            for row, lag in enumerate(lags.tolist()):
                f, g = self._held.moves(lag)
                states[row] = f @ (responses[row] if is_first[row] else states[row - 1]) + g @ inputs[row]
                seen[row] = self._matrix @ states[row]
                ahead[row] = free @ states[row] + held @ inputs[row]
        return Response(states, seen, ahead)

    def keep(self, pool: StatePool, batch: Batch, response: Response, is_good: Array) -> None:
        """Store the response for the streams whose observations were accepted."""
        for row in np.flatnonzero(is_good).tolist():
            pool.arrays[RESPONSE][batch.slots[row]] = response.states[row]

    def shift(self, out: StepOutputs, trace: Traced, response: Response) -> None:
        """Add the response to the outputs and to the trace."""
        shift(out, response.seen, response.ahead)
        if len(trace.mean):
            trace.mean[:] += response.states
            trace.predicted_mean[:] += response.states


def _leads_of(held: HeldInput, matrix: Array, horizon: tuple[float, ...]) -> tuple[Array, Array]:
    """Return C F and C G for each horizon, `[H, P, n]`."""
    shape = len(horizon), *matrix.shape
    moves = [held.moves(lead) for lead in horizon]
    free, pushed = (np.array([matrix @ move[part] for move in moves]).reshape(shape) for part in (0, 1))
    return free, pushed


def shift(out: StepOutputs, seen: Array, ahead: Array) -> None:
    """Add a response to the estimates `[R, P]` and to the forecasts `[R, H, P]`."""
    out.mean[:] += seen
    out.interval[:] += seen[:, None, :, None]
    out.moments[:, :, 0] += ahead
    out.moments[:, :, 2] += ahead
    out.bands[:] += ahead[:, :, None, :, None]
