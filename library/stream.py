"""`rfa.Stream`: a live stream in process; its state is bytes, or a token of the server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from rfa.library.late import Late, late_options
from rfa.library.models import Model, check_mixture, find_model, notify_on_compile
from rfa.library.observations import numbers, seconds_since_1970
from rfa.library.options import LEVELS, AlarmRule, OutputOptions, check_seed
from rfa.library.spans import Ahead, Span, leads_of, rows_ahead
from rfa.library.state_bytes import describe, stored_stream
from rfa.runtime.errors import InvalidInput, RefusedRow
from rfa.runtime.filters.ahead import points
from rfa.runtime.filters.late import LateWindow, Snapshot, packed_bytes, split_state
from rfa.runtime.filters.state import FilterState
from rfa.runtime.filters.steps import Batch
from rfa.runtime.outputs import FilterStep, FilterWarning, ForecastChecks, ForecastPoint
from rfa.runtime.pool import StatePool
from rfa.runtime.state.keys import StateKeys, decode_key
from rfa.runtime.state.names import Opened, StateScope, tenant_of_key
from rfa.runtime.state.sealer import Sealer
from rfa.runtime.state.tokens import Tokens
from rfa.runtime.uncertainty.diagnostics import diagnose
from rfa.runtime.uncertainty.forecast_checks import no_checks, summarise
from rfa.runtime.uncertainty.input import (
    LARGEST_OBSERVATION,
    LARGEST_TIME,
    LEAST_NOISE,
    MOST_NOISE,
    out_of_range,
)
from rfa.runtime.uncertainty.interface import LateOptions, Row, Stepped

Time = float | datetime | np.datetime64
Observation = float | Sequence[float | None] | np.ndarray | None
_TOKEN_SECONDS: Final = 86_400


class Stream:
    """A filter of a live stream: one observation in, one estimate out.

    It gives the same numbers, to the bit, as `rfa.filter` of the whole series and the server's `/filter/stream`. Use a
    stream from one thread at a time.

    Args:
        columns: numbers in an observation; default: 1, or that of the bundle.
        model: "default" (a mixture of "series" and simple forecasts), "series" (a trained network for any numbers),
            "auto" (no training; the default without the bundle of "series"), "auto-joint" (scores rows by the
            correlation of their columns), the name of a default bundle, or a bundle's folder.
        system: instead of `model`, a linear system by its matrices or as a preset, see the guide to systems.
        levels: of the intervals.
        horizon: forecasts to return with each step: leads in units of the times, or spans such as "6h" where times are
            seconds. Their intervals adapt to the stream.
        alarm: a rate such as "1/day" (times in seconds) or 0.001 (of the observations), or the fields of the server's
            `alarm`: `{"rate": "1/day", "direction": "up", "quiet": 10}`.
        samples: draws of the state to return with each step.
        minimum, maximum: of possible values: no estimate, forecast, bound or sample lies outside.
        weights: whether each step has `weights` of the models that "default" mixes, by their names: of each horizon,
            for each column.
        known: names of columns whose future is known, such as a price or a holiday; see `update`.
        seed: of the samples.
        tz: time zone whose days and weeks the default model follows, such as "Europe/Berlin"; times are in seconds.
        late: take late observations of this window, such as "5min" (times in seconds) or 300.0, up to 512 rows back.
            From then on the numbers are those of the order of time, to the bit. None: refuse them.

    Attributes:
        refused: number of refused observations.

    Raises:
        ValueError: If an argument is invalid; the message names it.
        FileNotFoundError: there is no such bundle.
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
        """Numbers in an observation."""
        return self._size

    @property
    def count(self) -> int:
        """Observations so far, including those before a resume."""
        return self._count

    @property
    def time(self) -> float | None:
        """Time of the last observation; None before the first."""
        return self._time if self._count else None

    @property
    def calibration(self) -> ForecastChecks:
        """Coverage of the forecasts since this object was made, one step ahead and at each horizon, and the number of
        alarms."""
        horizon = self._request.horizon
        return summarise(self._sums, self._runtime.levels, self._size, horizon, is_fresh=self._is_fresh)

    @property
    def warnings(self) -> list[FilterWarning]:
        """Reasons not to trust the outputs so far, by `calibration`."""
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
        """Condition on an observation. If it is refused, the stream does not change, and goes on.

        Args:
            t: its time: a number, or a date, taken in seconds since 1970 (UTC unless it has a zone); None counts rows.
            y: a number, or one for each column; None and NaN are missing.
            noise: factor on the standard deviation of its measurement noise.
            known: of each known column the value at this time, or a list of it and of the values at each `horizon`;
                what is left out or None is unknown.

        Returns:
            A step with the fields of the server's reply, `mean`, `std`, `interval["0.9"]`, `innovation`, `anomaly`,
            `alarm`, `forecast` and others: lists over the columns. That of a late observation also has `late`, and
            `recomputed`: the later observations that were filtered again.

        Raises:
            RefusedRow: a ValueError: it is not finite or too large, has another number of columns, is before the last
                one or the window of `late`, or repeats one of that window.
        """
        time: float | None = None
        try:
            time = self._check_time(t)
            if time < self._time and self._window is None:
                message = f"t must not be smaller than the time before it: {time!r} comes after {self._time!r}"
                raise InvalidInput(message, param="t", code="time_not_monotonic")
            values = numbers(y, self._size)
            if noise != 1.0 and not LEAST_NOISE <= noise <= MOST_NOISE:
                raise ValueError(f"noise must be between {LEAST_NOISE:g} and {MOST_NOISE:g}, got {noise!r}")
            inputs = self._inputs(known or {}, 1 + len(self._request.horizon)) if self._covariates or known else None
            held = None if inputs is None else inputs.ravel().tolist()
            row = Row(self._pool_slot, time, values, noise, self._readout, self._seed, held)
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

    def _inputs(self, known: Mapping[str, Any], leads: int) -> np.ndarray:
        """Values of the known columns at some leads, NaN where unknown, `[leads, K]`."""
        found = np.full((leads, len(self._covariates)), np.nan)
        for name, values in known.items():
            if name not in self._covariates:
                raise ValueError(
                    f"known has a column {name!r}; the stream was made with {', '.join(self._covariates) or 'none'}"
                )
            column = np.array(values, np.float64).reshape(-1)
            if len(column) > leads or (np.abs(column) > LARGEST_OBSERVATION).any():
                raise ValueError(
                    f"known[{name!r}] takes up to {leads} numbers of at most {LARGEST_OBSERVATION:g} in size"
                )
            found[: len(column), self._covariates.index(name)] = column
        return found

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
        """Filter the rows of the window that are not in the state."""
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
        if self._readout.samples:  # drawing may fail after the update: `advance` undoes it
            return self._runtime.advance(self._pool, [row])[0]
        batch.times[0], batch.noise[0] = row.t, row.noise
        batch.values[0] = np.nan if row.observation is None else row.observation
        (stepped,) = self._runtime.stepped(self._pool, batch, self._readout, [row])
        return stepped

    def forecast(self, horizon: Ahead, *, known: Mapping[str, Sequence[float]] | None = None) -> list[ForecastPoint]:
        """Forecast observations from the present state; the stream does not change.

        Args:
            horizon: a number of rows, a typical step of this stream apart; a span such as "6h", for all rows in it; or
                a list of leads in units of the times.
            known: of each known column the values at these leads; what is left out or None is unknown.

        Returns:
            A point for each: `t`, `mean`, `std`, `interval["0.9"]`, the last three over the columns.

        Raises:
            ValueError: there was no observation yet, or the horizon is invalid.
        """
        if not self._count:
            raise ValueError("there is nothing to forecast from: give the stream an observation first")
        state = self._runtime.get(self._pool, self._pool_slot, self._seed)
        if isinstance(horizon, Sequence) and not isinstance(horizon, str):
            leads = leads_of(horizon)
            if not leads:
                raise ValueError("horizon must not be empty: give rows such as 24, or leads")
        else:
            step = state.step or 1.0
            leads = tuple(k * step for k in range(1, rows_ahead(horizon, step) + 1))
        levels = self._request.levels
        later = self._inputs(known or {}, len(leads)) if self._covariates or known else None
        return points(self._runtime.ahead(state, levels, leads, self._request.readout, covariates=later), levels)

    @property
    def state(self) -> bytes:
        """The whole stream, for `Stream.resume`."""
        late = None if self._window is None else self._window.length
        return describe(self._model, self._request, self._covariates, late) + self._packed()

    @classmethod
    def resume(cls, state: bytes, *, model: str | Path | None = None) -> Stream:
        """The stream as it was when `state` was read: later observations give the same numbers, to the bit.

        Args:
            model: the bundle's folder, if it was moved.

        Raises:
            ValueError: it is no state of a stream, or of another version of its model.
            FileNotFoundError: the bundle is missing.
        """
        found = stored_stream(state, model)
        return cls._resumed(found.model, found.request, found.payload, found.covariates, found.late)

    def token(
        self, key: str, *, api_key: str | None = None, audience: str = "rfa", seconds: int = _TOKEN_SECONDS
    ) -> str:
        """The state as a token of the server: send it as `state` of `/filter` or `/filter/stream`.

        Args:
            key: one of the server's RFA_STATE_KEYS; of several, separated by commas, the first seals.
            api_key: the key that the request will have, if the server needs one.
            audience: the server's RFA_STATE_AUDIENCE.
            seconds: until it expires.

        Raises:
            ValueError: the key is invalid.
        """
        scope = _scope(self._model, api_key)
        return _tokens(key, audience, seconds).seal(Opened(self._packed(), self._count), scope)

    @classmethod
    def from_token(
        cls,
        token: str,
        key: str,
        columns: int | None = None,
        *,
        api_key: str | None = None,
        audience: str = "rfa",
        seconds: int = _TOKEN_SECONDS,
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
        """Continue a stream of the server, with the same numbers to the bit.

        Args:
            token: `state` of a reply of `/filter` or `/filter/stream`.
            key: the server's RFA_STATE_KEYS.
            columns: as in the server's requests; so are the other arguments, which a token does not hold.

        Raises:
            ValueError: the token is not of this key, model, number of columns and API key, or has expired.
            FileNotFoundError: there is no such bundle.
        """
        found = find_model(model, columns, system, len(known))
        request = OutputOptions.of(levels, horizon, alarm, samples, (minimum, maximum), weights=weights, tz=tz)
        tokens = _tokens(key, audience, seconds)
        most = found.runtime.state_bytes + packed_bytes(found.runtime)
        opened = tokens.open(token, _scope(found, api_key), most)
        return cls._resumed(found, request, opened.payload, known, late)

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
                raise ValueError(f"t (in seconds) is required by alarm.{needs}")
            time = float(self._count)
        else:
            time = t if type(t) is float else seconds_since_1970(t)
        if not -LARGEST_TIME <= time <= LARGEST_TIME:
            raise ValueError(f"t must be finite and at most {LARGEST_TIME:g} in size, got {t!r}")
        return time


def _scope(model: Model, api_key: str | None) -> StateScope:
    return StateScope(model.digest, "filter", "" if api_key is None else tenant_of_key(api_key))


def _tokens(key: str, audience: str, seconds: int) -> Tokens:
    keys = [decode_key(text.strip(), f"key {number}") for number, text in enumerate(key.split(","), 1)]
    return Tokens(Sealer(StateKeys(keys), audience), seconds)
