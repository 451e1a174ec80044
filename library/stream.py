"""A live stream in the process: an observation in, an estimate out; its state is bytes, or the server's token."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from rfa.library.models import Model, find_model, notify_on_compile
from rfa.library.options import LEVELS, AlarmRule, OutputOptions, check_seed
from rfa.library.spans import Ahead, Span, leads_of, rows_ahead
from rfa.runtime.filters.ahead import points
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
from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION, LARGEST_TIME, LEAST_NOISE, MOST_NOISE, out_of_range
from rfa.runtime.uncertainty.interface import Row, Stepped

Time = float | datetime | np.datetime64
Observation = float | Sequence[float | None] | np.ndarray | None
# A state in bytes: this, the length of the description, the description as JSON, and what the filter packed.
_MAGIC: Final = b"RFAP\x01"
_LENGTH: Final = struct.Struct("<I")
_MOST_DESCRIPTION: Final = 2_097_152
_TOKEN_SECONDS: Final = 86_400


class Stream:
    """A filter that is fed one observation after the other; it tells what it believes after each.

    Args:
        columns: numbers of an observation; None is 1, or what the bundle takes.
        model: None is "series", a trained network for any numbers ("auto", which needs no training, where numba or the
            bundle is not there); "auto-joint" judges rows by the correlation of their columns; else the name of a
            default bundle, or a bundle's folder.
        system: in the place of `model`: a linear system by its matrices or as a preset, see the guide to systems.
        levels: of the intervals.
        horizon: forecasts to tell with each step: leads in units of the times, or spans such as "6h" where those are
            seconds. Their intervals learn how wide they must be.
        alarm: a rate such as "1/day" (times in seconds) or 0.001 (of the observations), or all that the server takes as
            `alarm`: `{"rate": "1/day", "direction": "up", "quiet": 10}`; None is none.
        samples: draws of the state to tell with each step.
        seed: of the samples.

    Raises:
        ValueError: naming what is wrong with an argument.
        FileNotFoundError: there is no such bundle.

    A stream is one thread's. It gives the same numbers, bit for bit, as `rfa.filter` of the whole series, and as the
    server's `/filter/stream`.
    """

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
        seed: int = 0,
    ) -> None:
        request = OutputOptions.of(levels, horizon, alarm, samples)
        check_seed(seed)
        found = find_model(model, columns, system)
        self._open(found, request, found.runtime.start(seed))

    def _open(self, model: Model, request: OutputOptions, state: FilterState) -> None:
        self._model, self._request, self._seed = model, request, state.seed
        self._runtime, self._size = model.runtime, model.runtime.observation_size
        self._rule = request.rule
        self._readout = self._runtime.readout(request.levels, request.horizon, request.samples, alarm=self._rule)
        self._pool = StatePool(self._runtime.state_fields, 1)
        self._pool_slot = self._pool.acquire()
        self._runtime.put(self._pool, self._pool_slot, state)
        self._batch = Batch(self._pool.rows([self._pool_slot]), np.zeros(1), np.zeros((1, self._size)), np.ones(1))
        self._count, self._time = state.count, state.time if state.count else -math.inf
        self._sums = no_checks(len(self._runtime.levels), len(request.horizon), self._size)
        self._is_fresh, self._has_run = not state.count, False

    @property
    def columns(self) -> int:
        """Numbers of an observation."""
        return self._size

    @property
    def count(self) -> int:
        """Observations so far, those before it was resumed included."""
        return self._count

    @property
    def time(self) -> float | None:
        """Of the last observation; None before the first."""
        return self._time if self._count else None

    @property
    def calibration(self) -> ForecastChecks:
        """What became of the forecasts since this object was made, of one step and of each horizon: coverage, and
        alarms if asked for."""
        horizon = self._request.horizon
        return summarise(self._sums, self._runtime.levels, self._size, horizon, is_fresh=self._is_fresh)

    @property
    def warnings(self) -> list[FilterWarning]:
        """Why not to trust it so far, by `calibration`; nothing where it is sound."""
        step = self._runtime.get(self._pool, self._pool_slot, self._seed).step
        return diagnose(self._model.runtime, self.calibration, step=step)

    def update(self, t: Time | None, y: Observation, *, noise: float = 1.0) -> FilterStep:
        """Take an observation; what is refused leaves the stream as it was.

        Args:
            t: its time: a number, or a date, which is in seconds since 1970 (without a zone: UTC); None counts rows.
            y: a number, or one for each column; None and NaN are missing.
            noise: factor on the standard deviation of its measurement noise.

        Returns:
            A step with the fields that the server tells: `mean`, `std`, `interval["0.9"]`, `innovation`, `anomaly`,
            `alarm`, `forecast` and so on, lists over the columns.

        Raises:
            ValueError: it is not finite or too large, of another number of columns, or before the last one.
        """
        at, values = self._time_of(t), _numbers(y, self._size)
        if noise != 1.0 and not LEAST_NOISE <= noise <= MOST_NOISE:
            raise ValueError(f"noise must be between {LEAST_NOISE:g} and {MOST_NOISE:g}, got {noise!r}")
        if self._has_run:
            stepped = self._advance(at, values, noise)
        else:
            with notify_on_compile():
                stepped = self._advance(at, values, noise)
            self._has_run = True
        if stepped is None:
            raise ValueError(out_of_range("y", self._model.name).message)
        self._sums += stepped.tally
        self._count, self._time = self._count + 1, at
        return stepped.step

    def _advance(self, t: float, values: list[float | None] | None, noise: float) -> Stepped | None:
        row, batch = Row(self._pool_slot, t, values, noise, self._readout, self._seed), self._batch
        if self._readout.samples:  # which may fail late: `advance` takes it back then
            return self._runtime.advance(self._pool, [row])[0]
        batch.times[0], batch.noise[0] = t, noise
        batch.values[0] = np.nan if values is None else values
        (stepped,) = self._runtime.stepped(self._pool, batch, self._readout, [row])
        return stepped

    def forecast(self, horizon: Ahead) -> list[ForecastPoint]:
        """Observations to come, from the present state; the stream stays as it is.

        Args:
            horizon: so many rows, a typical step of this stream apart; a span such as "6h", for all rows until then;
                or a list of leads in units of the times.

        Returns:
            A point for each: `t`, `mean`, `std`, `interval["0.9"]`, the last three over the columns.

        Raises:
            ValueError: there was no observation yet, or the horizon is none.
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
        return points(self._runtime.ahead(state, levels, leads), levels)

    @property
    def state(self) -> bytes:
        """All of it, to keep and to go on from with `Stream.resume`."""
        about = {
            "model": self._model.name,
            "digest": self._model.digest,
            "columns": self._size,
            "system": self._model.system,
            "wanted": self._request.document(),
        }
        description = json.dumps(about).encode()
        return b"".join((_MAGIC, _LENGTH.pack(len(description)), description, self._packed()))

    @classmethod
    def resume(cls, state: bytes, *, model: str | Path | None = None) -> Stream:
        """The stream as it was when `state` was read: what comes next gets the same numbers, bit for bit.

        Args:
            model: where its bundle lies by now, if it was moved.

        Raises:
            ValueError: it is no state of a stream, or of another version of its model.
            FileNotFoundError: its bundle is not there.
        """
        about, payload = _described(state)
        try:
            name, digest, columns, asked, system = (
                about[key] for key in ("model", "digest", "columns", "wanted", "system")
            )
            request = OutputOptions.from_document(asked)
        except (KeyError, TypeError, ValueError):
            raise ValueError("this is no state of a Stream") from None
        if model is None and system is None:
            model = name
        found = find_model(model, columns, system)
        if found.digest != digest:
            raise ValueError(f"the state is of another version of model {name!r}: begin anew")
        return cls._resumed(found, request, payload)

    def token(
        self, key: str, *, api_key: str | None = None, audience: str = "rfa", seconds: int = _TOKEN_SECONDS
    ) -> str:
        """The state as the token that a server gives out: send it as `state` of `/filter` or `/filter/stream`.

        Args:
            key: one of the server's RFA_STATE_KEYS; of several, separated by commas, the first seals.
            api_key: that it will be sent with, where the server asks for one.
            audience: the server's RFA_STATE_AUDIENCE.
            seconds: how long it is good for.

        Raises:
            ValueError: the key is none.
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
    ) -> Stream:
        """A stream that goes on where the server's stood, bit for bit.

        Args:
            token: `state` of a reply of `/filter` or `/filter/stream`.
            key: the server's RFA_STATE_KEYS.
            columns: as in the server's requests, and so are the others: a token holds what was learned, and not what is
                to be told.

        Raises:
            ValueError: the token is not of this key, model, number of columns and API key, or has expired.
            FileNotFoundError: there is no such bundle.
        """
        found = find_model(model, columns, system)
        request = OutputOptions.of(levels, horizon, alarm, samples)
        tokens = _tokens(key, audience, seconds)
        opened = tokens.open(token, _scope(found, api_key), found.runtime.state_bytes)
        return cls._resumed(found, request, opened.payload)

    @classmethod
    def _resumed(cls, model: Model, request: OutputOptions, payload: bytes) -> Stream:
        stream = cls.__new__(cls)
        stream._open(model, request, model.runtime.unpack(payload))
        return stream

    def _packed(self) -> bytes:
        return self._runtime.pack(self._runtime.get(self._pool, self._pool_slot, self._seed))

    def _time_of(self, t: Time | None) -> float:
        if t is None:
            if self._rule.per_time:
                raise ValueError("t is needed where the alarm's rate is per time, in seconds")
            at = float(self._count)
        else:
            at = t if type(t) is float else _seconds(t)
        if not self._time <= at <= LARGEST_TIME or at < -LARGEST_TIME:
            if at < self._time:
                raise ValueError(f"t must not be smaller than the time before it: {at!r} comes after {self._time!r}")
            raise ValueError(f"t must be finite and at most {LARGEST_TIME:g} in size, got {t!r}")
        return at


def _seconds(t: Any) -> float:
    if isinstance(t, datetime):
        return (t if t.tzinfo is not None else t.replace(tzinfo=UTC)).timestamp()
    try:
        if isinstance(t, np.datetime64):
            return float((t - np.datetime64(0, "s")) / np.timedelta64(1, "s"))
        return float(t)
    except (TypeError, ValueError):
        raise ValueError(f"t takes a number or a date, got {t!r}") from None


def _numbers(y: Any, size: int) -> list[float | None] | None:
    """An observation as filters take it: None where missing."""
    if y is None:
        return None
    values = y.tolist() if hasattr(y, "tolist") else y
    if isinstance(values, int | float):
        values = [values]
    try:
        if isinstance(values, str | bytes):
            raise TypeError
        if len(values) != size:
            raise ValueError(f"y has {len(values)} values, the stream takes {size}")
        found = [None if value is None or value != value else float(value) for value in values]  # noqa: PLR0124
    except TypeError:
        raise ValueError(f"y takes a number, or {size} of them, got {y!r}") from None
    for a, value in enumerate(found):
        if value is not None and not -LARGEST_OBSERVATION <= value <= LARGEST_OBSERVATION:
            raise ValueError(f"y[{a}] must be finite and at most {LARGEST_OBSERVATION:g} in size, got {value!r}")
    return found


def _described(state: bytes) -> tuple[Any, bytes]:
    """The description and the rest of a state."""
    begin = len(_MAGIC) + _LENGTH.size
    try:
        if not state.startswith(_MAGIC):
            raise ValueError
        (length,) = _LENGTH.unpack_from(state, len(_MAGIC))
        if length > _MOST_DESCRIPTION:
            raise ValueError
        return json.loads(state[begin : begin + length]), state[begin + length :]
    except (ValueError, TypeError, AttributeError, struct.error):
        raise ValueError("this is no state of a Stream") from None


def _scope(model: Model, api_key: str | None) -> StateScope:
    return StateScope(model.digest, "filter", "" if api_key is None else tenant_of_key(api_key))


def _tokens(key: str, audience: str, seconds: int) -> Tokens:
    keys = [decode_key(text.strip(), f"key {number}") for number, text in enumerate(key.split(","), 1)]
    return Tokens(Sealer(StateKeys(keys), audience), seconds)
