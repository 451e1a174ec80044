"""Filters of systems with a known input.

A stream is followed as if there were none, and what is told is moved by what the system makes of it
(`rfa.model.driven`): so every runtime takes an input, in every mode, with the numbers that it has without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from rfa.export.bundle import Bundle
from rfa.model.driven import HeldInput
from rfa.service.engine.filter.conclude import Told
from rfa.service.engine.filter.steps import Readout
from rfa.service.runtime.filter_steps import SHORTEST_LAG, Batch, Traced
from rfa.service.runtime.pool import StateField, StatePool

Array = np.ndarray
RESPONSE = "response"
# Of the state: F and G of a lag take n³ operations.
MOST_STATES = 16


@dataclass(frozen=True)
class Response:
    """What the system makes of the inputs up to each observation.

    Attributes:
        states, inputs: `[R, n]`.
        seen: `[R, P]`, of the observations.
    """

    states: Array
    inputs: Array
    seen: Array


class DrivenSystem:
    """A linear system that may have an input.

    Args:
        drift: A `[n, n]`.
        matrix: C `[P, n]`.
    """

    def __init__(self, drift: Array, matrix: Array) -> None:
        self._held, self._matrix = HeldInput(drift), matrix
        self.size = len(drift)
        self.fields: Mapping[str, StateField] = {RESPONSE: StateField((self.size,), np.float64)}

    @classmethod
    def of(cls, bundle: Bundle, matrix: Array) -> Self | None:
        """That of a bundle; None where the model is not linear, or too large."""
        if bundle.manifest.family != "linear" or matrix.shape[1] > MOST_STATES:
            return None
        return cls(np.array(bundle.config["drift"], np.float64), matrix)

    def respond(self, pool: StatePool, batch: Batch, inputs: Array | None) -> Response | None:
        """The response before each observation, or None where nothing drives or ever drove these streams.

        Args:
            inputs: per unit time, held since the observation before, `[R, n]`; a stream's first has none.
        """
        responses = pool.arrays[RESPONSE].take(batch.seats, axis=0)
        if inputs is None:
            if not responses.any():
                return None
            inputs = np.zeros_like(responses)
        is_first = np.diff(batch.seats, prepend=-1) != 0
        is_begun = pool.arrays["clock.count"].take(batch.seats) > 0
        since = np.where(is_begun, pool.arrays["clock.time"].take(batch.seats), batch.times)
        lags = batch.times - np.where(is_first, since, np.roll(batch.times, 1))
        lags[lags < SHORTEST_LAG] = 0.0
        states = np.empty_like(responses)
        for row, lag in enumerate(lags.tolist()):
            f, g = self._held.moves(lag)
            states[row] = f @ (responses[row] if is_first[row] else states[row - 1]) + g @ inputs[row]
        return Response(states, inputs, self._seen(states))

    def keep(self, pool: StatePool, batch: Batch, response: Response, is_good: Array) -> None:
        """Let the streams that took their observations go on from the response."""
        for row in np.flatnonzero(is_good).tolist():
            pool.arrays[RESPONSE][batch.seats[row]] = response.states[row]

    def move(self, told: Told, trace: Traced, response: Response, readout: Readout) -> None:
        """Move what is told of the system without its input, and what smoothing needs, to the system with it; the last
        input is taken to go on in forecasts."""
        ahead = np.empty((len(response.states), len(readout.horizon), len(self._matrix)))
        for h, lead in enumerate(readout.horizon):
            f, g = self._held.moves(lead)
            for row, (state, held) in enumerate(zip(response.states, response.inputs, strict=True)):
                ahead[row, h] = self._seen((f @ state + g @ held)[None])[0]
        told.mean[:] += response.seen
        told.interval[:] += response.seen[:, None, :, None]
        told.moments[:, :, 0] += ahead
        told.bands[:] += ahead[:, :, None, :, None]
        if len(trace.mean):
            trace.mean[:] += response.states
            trace.predicted_mean[:] += response.states

    def _seen(self, states: Array) -> Array:
        """C s of each, a row at a time: so it has the same bits in any company."""
        return np.stack([self._matrix @ state for state in states])
