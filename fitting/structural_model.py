"""A structural model of one series as a linear SDE with real parameters: level, trend, seasons and free modes.

    y = b + level + Σ modes + e,  Var e = r                    every mode adds its first state to the observation
    level       dl = φ s dt + dw          random walk, with a trend s if φ > 0; or dl = -μ l dt + dw ("damped")
    trend       ds = -φ s dt + dw         s is the remaining change of the level, so A stays well-conditioned as φ → 0
    relaxation  dx = -μ x dt + dw         an Ornstein-Uhlenbeck process, which is AR(1) at a fixed lag
    season      harmonics k = 1 … of a period T, each a damped oscillator with ω = 2π k / T
    cycle       dz = (-μ + iω) z dt + dw  a damped oscillator of unknown frequency

This is Harvey's structural model (Forecasting, Structural Time Series Models and the Kalman Filter, §2.3, §8, §9) in
continuous time. `constrain` maps raw parameters to constrained parameters. Times are in units of the median step of the
data, and values are in units of their spread. `matrices` converts both to the units of the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from rfa.fitting.scan import Gradient, Measurement, Robust, Tables

Level = Literal["random_walk", "damped"]

# Prior variance of a random-walk level, and the largest prior variance of a mode, in squared spreads.
PRIOR = 4.0
# The filter is the Kalman filter if 1/nu is below this value.
GAUSSIAN = 2e-4
# Frequencies within this relative distance are treated as equal.
SAME_FREQUENCY = 1e-3


@dataclass(frozen=True)
class Structure:
    """Modes of a structural model.

    Attributes:
        level: Kind of the level: a random walk, or a damped level that returns to its mean.
        has_trend: Whether the level has a trend.
        seasons: Period in steps and number of harmonics of each season.
        relaxations, cycles: Numbers of Ornstein-Uhlenbeck processes and of cycles.
    """

    level: Level = "random_walk"
    has_trend: bool = False
    seasons: tuple[tuple[float, int], ...] = ()
    relaxations: int = 0
    cycles: int = 0

    def __post_init__(self) -> None:
        if self.has_trend and self.level != "random_walk":
            raise ValueError(f"trend requires level='random_walk', got {self.level!r}")

    def harmonics(self) -> list[tuple[int, float]]:
        """Return (season, ω) for every seasonal oscillator below the Nyquist frequency. If two seasons have a frequency
        in common, only the first one gets it."""
        found: list[tuple[int, float]] = []
        for season, (period, count) in enumerate(self.seasons):
            for k in range(1, count + 1):
                omega = 2 * math.pi * k / period
                is_new = all(abs(omega - other) > SAME_FREQUENCY * omega for _, other in found)
                if is_new and omega < math.pi * (1 - SAME_FREQUENCY):
                    found.append((season, omega))
        return found

    @property
    def state_size(self) -> int:
        return 1 + self.has_trend + self.relaxations + 2 * (len(self.harmonics()) + self.cycles)

    def describe(self) -> str:
        """Return a description of the structure, with periods in steps."""
        parts = [f"{self.level.replace('_', ' ')} level"] + ["trend"] * self.has_trend
        parts += [f"season {period:g} x {count}" for period, count in self.seasons]
        parts += [f"{n} {name}{'s' * (n > 1)}" for name, n in self._free() if n]
        return ", ".join(parts)

    def _free(self) -> tuple[tuple[str, int], tuple[str, int]]:
        return ("relaxation", self.relaxations), ("cycle", self.cycles)


class Parameter(NamedTuple):
    """Initial value and bounds of a constrained parameter. All parameters except the offset are positive."""

    start: float
    low: float
    high: float


def parameters(structure: Structure) -> dict[str, Parameter]:
    """Return the initial values and bounds of the parameters by name, in the order of the vector of raw parameters.

    Times are in steps, and values in multiples of the scale of the series.
    """
    found = {
        "offset": Parameter(0.0, -3.0, 3.0),
        "noise": Parameter(0.02, 1e-5, 10.0),
        "inverse_nu": Parameter(0.1, 1e-4, 0.45),
        "contamination": Parameter(0.05, 1e-4, 0.3),
        "outlier_scale": Parameter(3.0, 1.5, 20.0),
        "level_noise": Parameter(0.01, 1e-9, 10.0),
    }
    if structure.level == "damped":
        found["level_decay"] = Parameter(2e-3, 1e-6, 0.1)
    if structure.has_trend:
        found |= {"trend_noise": Parameter(1e-3, 1e-9, 10.0), "trend_decay": Parameter(0.2, 1e-3, 2.0)}
    for i in range(structure.relaxations):
        found |= {f"relaxation{i}_noise": Parameter(0.02, 1e-9, 10.0)}
        found |= {f"relaxation{i}_decay": Parameter(0.5 / 6**i, 1e-3, 5.0)}
    for i, (season, _) in enumerate(structure.harmonics()):
        if f"season{season}_decay" not in found:
            found[f"season{season}_decay"] = Parameter(2e-3, 1e-6, 0.1)
        found[f"harmonic{i}_noise"] = Parameter(1e-4, 1e-10, 1.0)
    for i in range(structure.cycles):
        found |= {f"cycle{i}_noise": Parameter(5e-3, 1e-9, 10.0), f"cycle{i}_decay": Parameter(0.1, 1e-4, 2.0)}
        found[f"cycle{i}_omega"] = Parameter(0.4 / 2**i, 1e-3, 0.95 * math.pi)
    return found


def raw_start(structure: Structure, start_values: dict[str, float] | None = None) -> np.ndarray:
    """Return the raw initial values for the search. Constrained values in `start_values` replace the defaults."""
    values = start_values or {}
    return np.array([_raw(name, values.get(name, p.start)) for name, p in parameters(structure).items()])


def raw_bounds(structure: Structure) -> list[tuple[float, float]]:
    """Return the bounds of the raw values, in the order of `raw_start`."""
    return [(_raw(name, p.low), _raw(name, p.high)) for name, p in parameters(structure).items()]


def _raw(name: str, value: float) -> float:
    return value if name == "offset" else math.log(value)


def constrain(structure: Structure, raw: np.ndarray) -> dict[str, float]:
    """Convert a vector of raw parameters to constrained parameters by name. The offset is unchanged, and all others are
    exponentials of the raw values."""
    return {
        name: float(x) if name == "offset" else math.exp(x) for name, x in zip(parameters(structure), raw, strict=True)
    }


class Mode(NamedTuple):
    """A block of the state with one or two components, and the names of its parameters.

    A block with `omega` (a number or a parameter name) is a damped oscillator. Without `omega`, a block is an
    Ornstein-Uhlenbeck process or, without `decay`, a random walk. In the block of a trend, `noise` is the noise of the
    level, and `trend` contains the decay and the noise of the second state.
    """

    noise: str
    decay: str | None = None
    omega: float | str | None = None
    trend: tuple[str, str] | None = None

    @property
    def width(self) -> int:
        return 1 if self.omega is None and self.trend is None else 2


def modes(structure: Structure) -> list[Mode]:
    """Return the blocks of a structure, in the order of the state."""
    level_decay = "level_decay" if structure.level == "damped" else None
    found = [Mode("level_noise", level_decay, None, ("trend_decay", "trend_noise") if structure.has_trend else None)]
    found += [Mode(f"relaxation{i}_noise", f"relaxation{i}_decay") for i in range(structure.relaxations)]
    for i, (season, omega) in enumerate(structure.harmonics()):
        found.append(Mode(f"harmonic{i}_noise", f"season{season}_decay", omega))
    found += [Mode(f"cycle{i}_noise", f"cycle{i}_decay", f"cycle{i}_omega") for i in range(structure.cycles)]
    return found


class Standing:
    """The system matrices of a structure at the rows of one series, in the coordinates of `scan`, in which F is
    diagonal.

    The coordinates of an oscillator rotate with its frequency. Its state therefore only decays, and its sensor rotates:
    c = (cos ωt, -sin ωt). The first state of a trend is the limit of the level, l + s, which is a random walk.

    Args:
        structure: Modes of the series.
        lags: Distinct lags `[U]` in steps.
        places: Times of the rows `[N]` in steps since the first row.
    """

    def __init__(self, structure: Structure, lags: np.ndarray, places: np.ndarray) -> None:
        self.structure, self.lags, self.places = structure, lags[:, None], places
        self.names = list(parameters(structure))
        self.modes = modes(structure)
        index = {name: i for i, name in enumerate(self.names)}
        each = [(mode, k) for mode in self.modes for k in range(mode.width)]
        # Indices of the parameters that drive and damp each state, or -1.
        self._noise = np.array([index[mode.trend[1] if mode.trend and k else mode.noise] for mode, k in each])
        self._decay = np.array([index.get(_decay(mode, k), -1) for mode, k in each])
        self._is_damped = self._decay >= 0
        self.turning = 2 * structure.cycles
        self._sensor = np.zeros((len(places), len(each)))
        column = 0
        for mode in self.modes:
            if isinstance(mode.omega, float):
                self._turn(column, mode.omega)
            elif mode.omega is None:
                self._sensor[:, column] = 1.0
                if mode.trend:
                    self._sensor[:, column + 1] = -1.0
            column += mode.width

    def _turn(self, column: int, omega: float) -> None:
        np.cos(omega * self.places, out=self._sensor[:, column])
        np.sin(-omega * self.places, out=self._sensor[:, column + 1])

    def tables(self, raw: np.ndarray) -> Tables:
        """Return the tables of the system for raw parameters. The tables of all calls share one sensor array."""
        rate, noise = self._rates(raw), np.exp(raw[self._noise])
        for i in range(self.structure.cycles):
            omega = math.exp(raw[self.names.index(f"cycle{i}_omega")])
            self._turn(len(rate) - self.turning + 2 * i, omega)
        prior = np.full(len(rate), PRIOR)
        prior[self._is_damped] = _bounded(noise[self._is_damped] / (2 * rate[self._is_damped]))
        table, cross, prior_cross = noise * _decayed(2 * rate, self.lags), np.zeros(len(self.lags)), np.zeros(1)
        if self.structure.has_trend:
            cross = noise[1] * _decayed(rate[1:2], self.lags)[:, 0]
            table[:, 0] += noise[1] * self.lags[:, 0]
            prior[0] += prior[1]
            prior_cross[0] = prior[1]
        return Tables(np.exp(-rate * self.lags), table, cross, prior, prior_cross, self._sensor)

    def slope(self, raw: np.ndarray, found: Gradient) -> np.ndarray:
        """Convert derivatives with respect to the tables to derivatives with respect to the raw parameters."""
        rate, noise, lags = self._rates(raw), np.exp(raw[self._noise]), self.lags
        by, damped = found.tables, self._is_damped
        by_prior = by.prior.copy()
        double = _decayed(2 * rate, lags)
        by_intensity = (by.noise * double).sum(axis=0)
        by_rate = (by.decay * -lags * np.exp(-rate * lags)).sum(axis=0)
        by_rate += (by.noise * noise * 2 * _decayed_slope(2 * rate, lags)).sum(axis=0)
        if self.structure.has_trend:
            by_prior[1] += by.prior[0] + by.prior_cross[0]
            by_intensity[1] += (by.noise[:, 0] * lags[:, 0]).sum()
            by_intensity[1] += (by.cross * _decayed(rate[1:2], lags)[:, 0]).sum()
            by_rate[1] += noise[1] * (by.cross * _decayed_slope(rate[1:2], lags)[:, 0]).sum()
        variance = noise[damped] / (2 * rate[damped])
        by_variance = by_prior[damped] * (PRIOR / (variance + PRIOR)) ** 2
        by_intensity[damped] += by_variance / (2 * rate[damped])
        by_rate[damped] -= by_variance * variance / rate[damped]
        slope = np.zeros(len(raw))
        np.add.at(slope, self._noise, by_intensity * noise)
        np.add.at(slope, self._decay[damped], by_rate[damped] * rate[damped])
        for i, (cosine, sine) in enumerate(zip(by.sensor.T[::2], by.sensor.T[1::2], strict=True)):
            at = self.names.index(f"cycle{i}_omega")
            turned = math.exp(raw[at]) * self.places[: len(cosine)]
            slope[at] = -(turned * (cosine * np.sin(turned) + sine * np.cos(turned))).sum()
        scalars = [self.names.index(name) for name in SCALARS]
        slope[scalars] += found.scalars * np.where(np.array(SCALARS) == "offset", 1.0, np.exp(raw[scalars]))
        return slope

    def level(self, raw: np.ndarray) -> tuple[float, float]:
        """Return the decay rate and the noise of the level for raw parameters."""
        return float(self._rates(raw)[0]), math.exp(raw[self.names.index("level_noise")])

    def measurement(self, raw: np.ndarray, inner: int) -> Measurement:
        offset, *others = (float(raw[self.names.index(name)]) for name in SCALARS)
        variance, inverse_nu, contamination, scale = map(math.exp, others)
        return Measurement(offset, variance, Robust(inverse_nu, contamination, scale, inner))

    def _rates(self, raw: np.ndarray) -> np.ndarray:
        return np.where(self._is_damped, np.exp(raw[self._decay]), 0.0)


# Parameters in the order of `Measurement` and `Gradient.scalars`.
SCALARS = ("offset", "noise", "inverse_nu", "contamination", "outlier_scale")


def _decay(mode: Mode, k: int) -> str:
    name = mode.trend[0] if mode.trend and k else mode.decay
    return name or ""


def _decayed(rate: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Return the integral ∫ e^{-rate u} du over each lag, `[U, n]`."""
    safe = np.where(rate > 0, rate, 1.0)
    return np.where(rate > 0, -np.expm1(-safe * lags) / safe, lags)


def _decayed_slope(rate: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Return the derivative of `_decayed` with respect to the rate. It is 0 where the rate is 0."""
    safe = np.where(rate > 0, rate, 1.0)
    return np.where(rate > 0, (lags * np.exp(-safe * lags) - _decayed(safe, lags)) / safe, 0.0)


def _bounded(variance: np.ndarray) -> np.ndarray:
    """Return the stationary variance, limited smoothly to `PRIOR`."""
    return variance * PRIOR / (variance + PRIOR)


def sensor(structure: Structure) -> np.ndarray:
    """Return the row c `[n]` of the observation matrix, which is 1 at the first state of every mode."""
    widths = [mode.width for mode in modes(structure)]
    row = np.zeros(structure.state_size)
    row[np.cumsum([0, *widths[:-1]])] = 1
    return row


class Matrices(NamedTuple):
    """Matrices of the system of one column with n states, in the units of the data.

    Attributes:
        drift: Drift matrix A, `[n, n]`.
        process: Process noise, `[n, n]`.
        prior: Prior covariance, `[n, n]`.
        sensor: Row of the observation matrix, `[n]`.
        variance: Measurement variance.
        offset: Offset that is added to each observation.
    """

    drift: np.ndarray
    process: np.ndarray
    prior: np.ndarray
    sensor: np.ndarray
    variance: float
    offset: float


def matrices(structure: Structure, raw: np.ndarray, *, step: float, center: float, spread: float) -> Matrices:
    """Return the matrices of a system for raw parameters, in the units of the data.

    Args:
        structure: Modes of the model.
        raw: Raw parameters.
        step: Median time step of the data.
        center, spread: Values of the data are center + spread · y.
    """
    values = constrain(structure, raw)
    drifts, noises, priors = zip(*(_block(mode, values) for mode in modes(structure)), strict=True)
    variance = spread**2
    return Matrices(
        block_diag(*drifts) / step,
        block_diag(*noises) * variance / step,
        np.diag(np.concatenate(priors)) * variance,
        sensor(structure),
        values["noise"] * variance,
        center + spread * values["offset"],
    )


def _block(mode: Mode, values: dict[str, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A, Q and the prior variances of one block."""
    noise, free = values[mode.noise], np.array([PRIOR])
    if mode.trend is not None:
        decay, trend = (values[name] for name in mode.trend)
        prior = np.concatenate([free, _bounded(np.array([trend / (2 * decay)]))])
        return np.array([[0.0, decay], [0.0, -decay]]), np.diag([noise, trend]), prior
    if mode.decay is None:
        return np.zeros((1, 1)), np.array([[noise]]), free
    decay = values[mode.decay]
    prior = _bounded(np.full(mode.width, noise / (2 * decay)))
    if mode.omega is None:
        return np.array([[-decay]]), np.array([[noise]]), prior
    omega = values[mode.omega] if isinstance(mode.omega, str) else mode.omega
    return np.array([[-decay, -omega], [omega, -decay]]), noise * np.eye(2), prior


def robustness(structure: Structure, raw: np.ndarray) -> dict[str, Any]:
    """Return the parameters nu, contamination and outlier_scale of the robust update. nu is None if 1/nu is below
    `GAUSSIAN`."""
    values = dict(zip(parameters(structure), raw, strict=True))
    inverse_nu, contamination, scale = (
        math.exp(values[name]) for name in ("inverse_nu", "contamination", "outlier_scale")
    )
    return {
        "nu": 1 / inverse_nu if inverse_nu > GAUSSIAN else None,
        "contamination": contamination,
        "outlier_scale": scale,
    }
