"""Filter a live stream in this process, with `rfa.Stream`. Its state can be saved as bytes, or as a state token of the
server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from rfa.library.late import Late, late_options
from rfa.library.models import Model, check_mixture, find_model, notify_on_compile
from rfa.library.observations import known_values, numbers, seconds_since_1970
from rfa.library.options import LEVELS, AlarmRule, OutputOptions, check_seed
from rfa.library.spans import Ahead, Span, leads_of, rows_ahead
from rfa.library.state_bytes import describe, stored_stream
from rfa.library.state_tokens import TOKEN_SECONDS, TokenAccess
from rfa.runtime.errors import InvalidInput, RefusedRow
from rfa.runtime.filters.ahead import points
from rfa.runtime.filters.late import LateWindow, Snapshot, split_state
from rfa.runtime.filters.state import FilterState
from rfa.runtime.filters.steps import Batch
from rfa.runtime.outputs import FilterStep, FilterWarning, ForecastChecks, ForecastPoint
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.diagnostics import diagnose
from rfa.runtime.uncertainty.forecast_checks import no_checks, summarise
from rfa.runtime.uncertainty.input import (
    LARGEST_TIME,
    LEAST_NOISE,
    MOST_NOISE,
    out_of_range,
)
from rfa.runtime.uncertainty.interface import LateOptions, Row, Stepped

Time = float | datetime | np.datetime64
Observation = float | Sequence[float | None] | np.ndarray | None


class Stream:
    """Filters a live stream and computes one estimate for each observation.

    The results are the same, bit for bit, as those of `rfa.filter` for the whole series, and of `/filter/stream` of the
    server. A stream must be used from one thread at a time.

    Args:
        columns: Number of columns of each observation. The default is the number in the bundle's manifest, or 1 if it
            accepts any number.
        model: "default" (a mixture of "series" and simple forecasts), "series" (a trained network for any series),
            "auto" (needs no training; it is the default if the bundle of "series" is missing), "auto-joint" (scores
            rows by the correlation of their columns), the name of a default bundle, or the directory of a bundle.
        system: A linear system given by its matrices or as a preset, which replaces `model`. See the guide to systems.
        levels: Levels of the intervals.
        horizon: Horizons of the forecasts to compute at each step, in units of the times, or as durations such as "6h"
            if times are in seconds. Their intervals adapt to the stream.
        alarm: A rate such as "1/day" (with times in seconds), a fraction of the observations such as 0.001, or the
            fields of `alarm` in `POST /filter`, as in `{"rate": "1/day", "direction": "up", "quiet": 10}`.
        samples: Number of samples of the state to return with each step.
        minimum, maximum: Smallest and largest possible value. No estimate, forecast, bound or sample lies outside.
        weights: Whether each step contains the `weights` of the models that "default" combines, for each horizon and
            column.
        known: Names of columns whose future values are known, such as a price or a holiday. See `update`.
        seed: Seed of the samples.
        tz: Time zone of the days and weeks that the default model uses, such as "Europe/Berlin". Times must be in
            seconds since 1970.
        late: Window in which late observations are accepted, such as "5min" (with times in seconds) or 300.0, at most
            512 rows back. After a late observation, the results are the same, bit for bit, as if all observations had
            arrived in order. By default, late observations are rejected.

    Attributes:
        refused: Number of rejected observations.

    Raises:
        ValueError: If an argument is invalid. The message names it.
        FileNotFoundError: If there is no such bundle.
    """

    refused = 0

    def __init__(
        self,
        columns: int | None = None,
        *,
        model: str | Path | None = None,
        system: Mapping[str, Any] | None = None,
        levels: Sequence[float] = LEVELS,
        horizon: Sequence[float | Span] = (),
        alarm: AlarmRule | None = None,
        samples: int = 0,
        minimum: float | None = None,
        maximum: float | None = None,
        weights: bool = False,
        known: Sequence[str] = (),
        seed: int = 0,
        tz: str = "UTC",
        late: Late | None = None,
    ) -> None:
        request = OutputOptions.of(levels, horizon, alarm, samples, (minimum, maximum), weights=weights, tz=tz)
        window = late_options(late)
        check_seed(seed)
        found = find_model(model, columns, system, len(known))
        self._open(found, request, found.runtime.start(seed), known, window)

    def _open(
        self, model: Model, request: OutputOptions, state: FilterState, known: Sequence[str], late: LateOptions | None
    ) -> None:
        self._covariates = tuple(known)
        self._model, self._request, self._seed = model, request, state.seed
        self._runtime, self._size = model.runtime, model.runtime.observation_size
        self._alarms = request.alarms
        if request.weights:
            check_mixture(self._runtime, "weights")
        if known:
            self._runtime.check_input(self._alarms, None, is_given=False)
        self._readout = self._runtime.readout(request.levels, request.horizon, request.samples, request.readout)
        self._pool = StatePool(self._runtime.state_fields, 1)
        self._pool_slot = self._pool.acquire()
        self._runtime.put(self._pool, self._pool_slot, state)
        self._batch = Batch(self._pool.rows([self._pool_slot]), np.zeros(1), np.zeros((1, self._size)), np.ones(1))
        self._count, self._time = state.count, state.time if state.count else -math.inf
        self._sums = no_checks(len(self._runtime.levels), len(request.horizon), self._size)
        self._is_fresh, self._has_run = not state.count, False
        self._window = None if late is None else self._open_window(late, state)

    def _open_window(self, late: LateOptions, state: FilterState) -> LateWindow:
        if not late.packed:
            return LateWindow(late.length, Snapshot(0, state, self._sums.copy()))
        window = LateWindow.unpack(late.packed, self._runtime, late.length, self._sums.copy())
        if window.is_behind:
            self._runtime.put(self._pool, self._pool_slot, window.first_state)
            self._catch_up(window)
        return window

    @property
    def columns(self) -> int:
        """Number of columns of each observation."""
        return self._size

    @property
    def count(self) -> int:
        """Number of observations so far, including those before the stream was resumed."""
        return self._count

    @property
    def time(self) -> float | None:
        """Time of the last observation. None before the first observation."""
        return self._time if self._count else None

    @property
    def calibration(self) -> ForecastChecks:
        """Coverage of the forecasts since this object was created, one step ahead and at each horizon, and the number
        of alarms."""
        horizon = self._request.horizon
        return summarise(self._sums, self._runtime.levels, self._size, horizon, is_fresh=self._is_fresh)

    @property
    def warnings(self) -> list[FilterWarning]:
        """Warnings about the outputs so far, derived from `calibration`."""
        step = self._runtime.get(self._pool, self._pool_slot, self._seed).step
        return diagnose(self._model.runtime, self.calibration, step=step)

    def update(
        self,
        t: Time | None,
        y: Observation,
        *,
        noise: float = 1.0,
        known: Mapping[str, float | Sequence[float | None]] | None = None,
    ) -> FilterStep:
        """Update the estimate with an observation. A rejected observation does not change the stream, which can
        continue.

        Args:
            t: Time of the observation, as a number or a date. A date is converted to seconds since 1970, and is in UTC
                unless it has a time zone. If None, the number of the row is used.
            y: A number, or one number per column. None and NaN mark missing values.
            noise: Factor by which the standard deviation of the measurement noise is multiplied.
            known: For each known column, the value at this time, or a list of this value and the values at each
                `horizon`. Values that are left out or None are unknown.

        Returns:
            A step with the same fields as in replies of the server, such as `mean`, `std`, `interval["0.9"]`,
            `innovation`, `anomaly`, `alarm` and `forecast`. Their values are lists with one entry per column. The step
            of a late observation also contains `late`, and `recomputed`, the number of later observations that were
            filtered again.

        Raises:
            RefusedRow: If the observation is not finite, is too large, has another number of columns, is earlier than
                the last observation or the window of `late`, or repeats an observation in that window. It is a
                subclass of ValueError.
        """
        time: float | None = None
        try:
            time = self._check_time(t)
            if time < self._time and self._window is None:
                message = f"t must not be smaller than the previous time: {time!r} comes after {self._time!r}"
                raise InvalidInput(message, param="t", code="time_not_monotonic")
            row = self._row(time, y, noise, known or {})
            if self._has_run:
                return self._take(row)
            with notify_on_compile():
                step = self._take(row)
            self._has_run = True
            return step
        except ValueError as error:
            self.refused += 1
            found = error if isinstance(error, InvalidInput) else InvalidInput(str(error))
            raise RefusedRow(found, time, self._count + self.refused - 1) from None

    def _row(
        self, time: float, y: Observation, noise: float, known: Mapping[str, float | Sequence[float | None]]
    ) -> Row:
        values = numbers(y, self._size)
        if noise != 1.0 and not LEAST_NOISE <= noise <= MOST_NOISE:
            raise ValueError(f"noise must be between {LEAST_NOISE:g} and {MOST_NOISE:g}, got {noise!r}")
        inputs = known_values(known, self._covariates, 1 + len(self._request.horizon))
        held = None if inputs is None else inputs.ravel().tolist()
        return Row(self._pool_slot, time, values, noise, self._readout, self._seed, held)

    def _take(self, row: Row) -> FilterStep:
        if self._window is not None and row.t <= self._time:
            return self._take_late(row, self._window)
        stepped = self._advance(row)
        if stepped is None:
            raise out_of_range("y", self._model.name)
        self._sums += stepped.tally
        self._count, self._time = self._count + 1, row.t
        if self._window is not None:
            self._window.append(row, self._snapshot)
        return stepped.step

    def _take_late(self, row: Row, window: LateWindow) -> FilterStep:
        snapshot = window.add(row)
        if snapshot is not None:
            self._runtime.put(self._pool, self._pool_slot, snapshot.state)
            self._sums = snapshot.totals.copy()
        self._catch_up(window)
        self._count, self._time = window.count, window.newest
        answer = window.take_answer()
        if isinstance(answer, InvalidInput):
            raise answer
        assert answer is not None  # a row was added
        return answer

    def _catch_up(self, window: LateWindow) -> None:
        """Filter the rows in the window for late rows that the state does not yet include."""
        while window.is_behind:
            row = window.next_row._replace(slot=self._pool_slot, readout=self._readout, seed=self._seed)
            stepped = self._advance(row)
            if stepped is not None and window.is_counted:
                self._sums += stepped.tally
            error = out_of_range("y", self._model.name) if stepped is None else None
            window.accept(stepped, error, self._snapshot)

    def _snapshot(self, index: int) -> Snapshot:
        return Snapshot(index, self._runtime.get(self._pool, self._pool_slot, self._seed), self._sums.copy())

    def _advance(self, row: Row) -> Stepped | None:
        batch = self._batch
        if self._readout.samples:  # drawing may fail after the update, which `advance` then undoes
            return self._runtime.advance(self._pool, [row])[0]
        batch.times[0], batch.noise[0] = row.t, row.noise
        batch.values[0] = np.nan if row.observation is None else row.observation
        (stepped,) = self._runtime.stepped(self._pool, batch, self._readout, [row])
        return stepped

    def forecast(self, horizon: Ahead, *, known: Mapping[str, Sequence[float]] | None = None) -> list[ForecastPoint]:
        """Forecast observations from the current state. This does not change the stream.

        Args:
            horizon: A number of rows, which are one typical time step of this stream apart; a duration such as "6h"
                for all rows in it; or a list of horizons in units of the times.
            known: For each known column, the values at these horizons. Values that are left out or None are unknown.

        Returns:
            One forecast per horizon, with `t`, `mean`, `std` and `interval["0.9"]`. The last three are lists with one
            entry per column.

        Raises:
            ValueError: If the stream has no observation yet, or the horizon is invalid.
        """
        if not self._count:
            raise ValueError("a stream without observations cannot forecast; call update with an observation first")
        state = self._runtime.get(self._pool, self._pool_slot, self._seed)
        if isinstance(horizon, Sequence) and not isinstance(horizon, str):
            leads = leads_of(horizon)
            if not leads:
                raise ValueError("horizon must not be empty; pass a number of rows such as 24, or a list of horizons")
        else:
            step = state.step or 1.0
            leads = tuple(k * step for k in range(1, rows_ahead(horizon, step) + 1))
        levels = self._request.levels
        later = known_values(known or {}, self._covariates, len(leads))
        return points(self._runtime.ahead(state, levels, leads, self._request.readout, covariates=later), levels)

    @property
    def state(self) -> bytes:
        """State of the stream as bytes, from which `Stream.resume` continues."""
        late = None if self._window is None else self._window.length
        return describe(self._model, self._request, self._covariates, late) + self._packed()

    @classmethod
    def resume(cls, state: bytes, *, model: str | Path | None = None) -> Stream:
        """Create a stream from a saved state. Later observations give the same results, bit for bit, as without the
        interruption.

        Args:
            state: Value of `state` of the earlier stream.
            model: Directory of the bundle, if it was moved.

        Raises:
            ValueError: If `state` is not a state of a stream, or belongs to another version of its model.
            FileNotFoundError: If the bundle is missing.
        """
        found = stored_stream(state, model)
        return cls._resumed(found.model, found.request, found.payload, found.covariates, found.late)

    def token(
        self, key: str, *, api_key: str | None = None, audience: str = "rfa", seconds: int = TOKEN_SECONDS
    ) -> str:
        """Return the state as a state token, which can be sent as `state` to `/filter` or `/filter/stream` of a server.

        Args:
            key: Key from RFA_STATE_KEYS of the server. If several keys are given, separated by commas, the first one
                seals the token.
            api_key: The API key that the request will contain, if the server requires one.
            audience: RFA_STATE_AUDIENCE of the server.
            seconds: Lifetime of the token in seconds.

        Raises:
            ValueError: If the key is invalid.
        """
        access = TokenAccess(key, api_key, audience, seconds)
        return access.seal(self._model, self._packed(), self._count)

    @classmethod
    def from_token(
        cls,
        token: str,
        key: str,
        columns: int | None = None,
        *,
        api_key: str | None = None,
        audience: str = "rfa",
        seconds: int = TOKEN_SECONDS,
        model: str | Path | None = None,
        system: Mapping[str, Any] | None = None,
        levels: Sequence[float] = LEVELS,
        horizon: Sequence[float | Span] = (),
        alarm: AlarmRule | None = None,
        samples: int = 0,
        minimum: float | None = None,
        maximum: float | None = None,
        weights: bool = False,
        known: Sequence[str] = (),
        tz: str = "UTC",
        late: Late | None = None,
    ) -> Stream:
        """Create a stream from a state token of the server. It continues with the server's results, bit for bit.

        Args:
            token: The `state` of a reply of `/filter` or `/filter/stream`.
            key: RFA_STATE_KEYS of the server.
            columns: Number of columns, as in the requests to the server. The other arguments must also match these
                requests, because a token does not contain them.

        Raises:
            ValueError: If the token has expired, or does not belong to this key, model, number of columns and API key.
            FileNotFoundError: If there is no such bundle.
        """
        found = find_model(model, columns, system, len(known))
        request = OutputOptions.of(levels, horizon, alarm, samples, (minimum, maximum), weights=weights, tz=tz)
        payload = TokenAccess(key, api_key, audience, seconds).open(found, token)
        return cls._resumed(found, request, payload, known, late)

    @classmethod
    def _resumed(
        cls, model: Model, request: OutputOptions, payload: bytes, known: Sequence[str], late: Late | None
    ) -> Stream:
        stream = cls.__new__(cls)
        packed, window = split_state(payload, model.runtime)
        stream._open(model, request, model.runtime.unpack(packed), known, late_options(late, window))
        return stream

    def _packed(self) -> bytes:
        window = b"" if self._window is None else self._window.pack(self._runtime)
        return self._runtime.pack(self._runtime.get(self._pool, self._pool_slot, self._seed)) + window

    def _check_time(self, t: Time | None) -> float:
        if t is None:
            if needs := self._alarms.needs_times:
                raise ValueError(f"alarm.{needs} requires the argument t, in seconds")
            time = float(self._count)
        else:
            time = t if type(t) is float else seconds_since_1970(t)
        if not -LARGEST_TIME <= time <= LARGEST_TIME:
            raise ValueError(f"t must be finite and at most {LARGEST_TIME:g} in absolute value, got {t!r}")
        return time
