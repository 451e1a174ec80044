"""The model for any series, which consists of a trained network that forecasts and a robust filter.

Each column is a stream of the network (`rfa.model.series`). The network's quantiles for the next row are the prior of
the filter (`update_numba.py`). Forecasts are the network's quantiles. The field `mean` contains the median, and the
half-widths above and below it are multiplied by the conformal factor of their horizon and level (`adaptive.py`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from rfa.runtime.bundle.bundle import Bundle, check_golden
from rfa.runtime.choices import Mode
from rfa.runtime.compiling import CompileTask
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters import auto
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StatePool
from rfa.runtime.series import decoder_numba
from rfa.runtime.series import rows as row_kernels
from rfa.runtime.series.buffer_pool import MAX_BYTES, BufferPool
from rfa.runtime.series.covariates import Regression
from rfa.runtime.series.decoder_numba import SeriesDecoder
from rfa.runtime.series.device import SeriesDevice
from rfa.runtime.series.leads import FARTHEST
from rfa.runtime.series.mixture_layout import EXPERTS, LEADS
from rfa.runtime.series.network_steps import MIXED_MAGIC, PREFIX, NetworkSteps
from rfa.runtime.series.session import NETWORK, SeriesSession
from rfa.runtime.series.work import row_work
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.calibration import Calibration
from rfa.runtime.uncertainty.input import MOST_COVARIATES
from rfa.runtime.uncertainty.interface import Piece, reply_rows

Array = np.ndarray
# Name of the mixture of the network and simple experts.
MIXTURE: Final = "default"
MOST_COLUMNS: Final = 64
CLOCK: Final = f"{PREFIX}clock"
# Horizons whose errors are scored, in typical lags, and pending forecasts of each horizon.
HORIZONS: Final = (1.0, 1.0, 4.0, 16.0, 64.0, 256.0)
MAX_PENDING: Final = 16
# Rate at which intervals adapt to a stream's errors, relative to other filters. The network already predicts widths. On
# held-out synthetic series, a quarter of the usual rate has a lower pinball loss at the same coverage.
RATE: Final = 0.25
CALIBRATED: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
# Number of cached readouts for each number of columns. A readout takes up to 90 kB.
KEPT_READOUTS: Final = 16


def calibration() -> dict[str, Any]:
    """Return the calibration of a new stream, with which intervals are the network's own quantiles."""
    return auto.calibration(CALIBRATED, HORIZONS[1:])


class SeriesRuntime(FilterRuntime):
    """A trained network that is ready to process a number of columns.

    Args:
        name, digest: Name and digest of the bundle.
        decoder: The network.
        size: Number of columns, at most MOST_COLUMNS.
        buffers: Buffers of the network. By default, new ones are created.
        device: Device that processes long pieces of a series. By default, the CPU.
        covariates: Number of columns whose future values are known.
        is_mixed: Whether forecasts are those of the mixture of the network and simple experts.
    """

    has_own_steps = True
    suits_any = True
    farthest = FARTHEST

    def __init__(
        self, name: str, digest: str, decoder: SeriesDecoder, size: int = 1, buffers: BufferPool | None = None,
        device: SeriesDevice | None = None, *, is_mixed: bool = False, covariates: int = 0,
    ) -> None:  # fmt: skip
        self.digest, self.decoder, self._is_mixed = digest, decoder, is_mixed
        self.passes, self.experts = PassesRange(1, 1), EXPERTS if is_mixed else ()
        self._describe(name, "series", np.eye(size), np.zeros(size))
        horizons = Horizons.of(HORIZONS, in_steps=True, max_pending=MAX_PENDING, rate=RATE)
        self.buffers, self.device = buffers or BufferPool(), device
        steps = NetworkSteps(decoder, size, horizons, self.buffers, device, is_mixed=is_mixed)
        self.covariates, regression = covariates, Regression(size, covariates) if covariates else None
        calibrations: dict[Mode, Calibration] = {"recurrent": Calibration(calibration())}
        self._set_up(calibrations, steps, horizons, regression, sides=2, readouts=KEPT_READOUTS)
        # Models for other numbers of columns are cached as long as they are in use.
        self._sized: WeakValueDictionary[tuple[int, int], SeriesRuntime] = WeakValueDictionary(
            {(size, covariates): self}
        )

    @property
    def learned_horizons(self) -> Array:
        """Horizons of the intervals, and those of the weights of the mixture, which reach further."""
        return LEADS if self._is_mixed else super().learned_horizons

    @property
    def own_bytes(self) -> int:
        """Size of the state of a stream in bytes, which is large with many columns. See `FilterRuntime`."""
        return self.state_bytes

    @property
    def kept_bytes(self) -> int:
        """Maximum size of the buffers in bytes. The mixture uses those of its network. See `FilterRuntime`."""
        return 0 if self._is_mixed else MAX_BYTES

    def weight(self, cost: int, t: float, state: Callable[[str], Array | None]) -> int:
        clock = state(CLOCK)
        if clock is None:
            return cost * self.observation_size
        return math.ceil(row_work(clock, np.array([t]), cost, self.observation_size)[0])

    def cut(self, pool: StatePool, piece: Piece, most: int) -> Piece:
        clock = pool.arrays[CLOCK][piece.slot.row]
        work = row_work(clock, piece.times, reply_rows(piece.readout), self.observation_size).cumsum()
        return piece.part(slice(max(1, int(np.searchsorted(work, most, side="right")))))

    def sized(self, size: int) -> SeriesRuntime:
        """Return the same model for another number of columns.

        Raises:
            InvalidInput: If there are too many columns.
        """
        if size > MOST_COLUMNS:
            message = f"model {self.name!r} supports up to {MOST_COLUMNS} columns, got {size}; send fewer columns"
            raise InvalidInput(message, param="observations", code="too_large")
        return self._variant(size, self.covariates)

    def with_covariates(self, count: int) -> SeriesRuntime:
        if count > MOST_COVARIATES:
            message = f"known must contain at most {MOST_COVARIATES} columns, got {count}; send fewer columns"
            raise InvalidInput(message, param="known", code="too_large")
        return self._variant(self.observation_size, count)

    def _variant(self, size: int, covariates: int) -> SeriesRuntime:
        found = self._sized.get((size, covariates))
        if found is None:
            found = self._sized[size, covariates] = SeriesRuntime(
                self.name, self.digest, self.decoder, size, self.buffers, self.device, is_mixed=self._is_mixed,
                covariates=covariates,
            )  # fmt: skip
        return found

    def mixed(self) -> SeriesRuntime:
        """Return the model for one column that mixes the forecasts of the network with those of simple
        experts."""
        digest = hashlib.sha256(MIXED_MAGIC + self.digest.encode()).hexdigest()
        return SeriesRuntime(MIXTURE, digest, self.decoder, 1, self.buffers, self.device, is_mixed=True)


def open_series(bundle: Bundle, device: SeriesDevice | None = None) -> SeriesRuntime:
    """Return the model of a bundle of kind "series" for one column. Its `compile_tasks` must run before the first
    request."""
    return SeriesRuntime(bundle.name, bundle.digest, SeriesDecoder.of(bundle.weights()), device=device)


def hold_to_golden(bundle: Bundle, model: SeriesRuntime) -> int:
    """Compare the network with the bundle's golden outputs, and return the number of compared values.

    Raises:
        BundleError: If a value differs by more than its tolerance.
    """
    return check_golden(bundle, {NETWORK: SeriesSession(model.decoder)})


def compile_tasks(
    bundle: Bundle, model: SeriesRuntime, report: Callable[[int], None]
) -> tuple[list[CompileTask], list[CompileTask]]:
    """Return two lists of tasks. The task in the first list compiles the network. The task in the second list compiles
    the rest. It must run after the first task and after the tasks that compile the scoring.

    Args:
        bundle: Bundle of the network.
        model: The opened model.
        report: Function that is called with the number of golden values that the network reproduced.
    """
    network: CompileTask = decoder_numba, lambda: report(hold_to_golden(bundle, model))
    return [network], [(row_kernels, partial(_compile_all, model))]


def _compile_all(model: SeriesRuntime) -> None:
    if model.device is not None:
        model.device.hold_to_golden()
        _run(model, model.device.least_tokens)
    for one in (model, model.with_covariates(1)):
        _run(one, 2)
    model.steps.disable_compilation()


def _run(model: SeriesRuntime, rows: int) -> None:
    model.filter(list(map(float, range(rows))), [[float(row)] for row in range(rows)], horizon=(1.0,))
