"""A structural model of one series, level, trend, seasons and free modes, as a linear SDE with real parameters.

    y = b + level + Σ modes + e,  Var e = r                    every mode adds its first state to the observation
    level       dl = φ s dt + dw          random walk; with a trend s > 0, else dl = -μ l dt + dw ("damped")
    trend       ds = -φ s dt + dw         s is how far the level will still go, so A keeps good eigenvectors as φ → 0
    relaxation  dx = -μ x dt + dw         AR(1) at a fixed lag
    season      harmonics k = 1 … of a period T, each a damped oscillator with ω = 2π k / T
    cycle       dz = (-μ + iω) z dt + dw  a damped oscillator of unknown frequency

Harvey's structural model (Forecasting, Structural Time Series Models and the Kalman Filter, §2.3, §8, §9) in continuous
time. `constrain` is the only way from raw parameters to constrained ones. Here time counts in median steps of the data
and values in their spread; `config` puts them back into the units of the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.linalg import block_diag
from torch import Tensor

Level = Literal["random_walk", "damped"]

# Prior variance of a level that may be anywhere in the data, and the most that a mode may have, in squared spreads.
PRIOR = 4.0
# Below this 1/nu the weights are 1: the filter is written as the Kalman filter.
GAUSSIAN = 2e-4
# Two modes of nearly one frequency are one mode; relative distance.
SAME_FREQUENCY = 1e-3


@dataclass(frozen=True)
class Structure:
    """Which modes a series has; seasons are (period in steps, harmonics)."""

    level: Level = "random_walk"
    has_trend: bool = False
    seasons: tuple[tuple[float, int], ...] = ()
    relaxations: int = 0
    cycles: int = 0

    def __post_init__(self) -> None:
        if self.has_trend and self.level != "random_walk":
            raise ValueError("a trend needs level='random_walk'")

    def harmonics(self) -> list[tuple[int, float]]:
        """(season, ω) of every oscillator of a season below Nyquist; what two seasons share belongs to the first."""
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
        """In words, periods in steps."""
        parts = [f"{self.level.replace('_', ' ')} level"] + ["trend"] * self.has_trend
        parts += [f"season {period:g} x {count}" for period, count in self.seasons]
        parts += [f"{n} {name}{'s' * (n > 1)}" for name, n in self._free() if n]
        return ", ".join(parts)

    def _free(self) -> tuple[tuple[str, int], tuple[str, int]]:
        return ("relaxation", self.relaxations), ("cycle", self.cycles)


class Parameter(NamedTuple):
    """A constrained parameter: where the search starts, and its range. All but the offset are positive."""

    start: float
    low: float
    high: float


def parameters(structure: Structure) -> dict[str, Parameter]:
    """Every parameter of a structure, by name, in spreads and steps; the order of the raw vector."""
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


def raw_start(structure: Structure, known: dict[str, float] | None = None) -> np.ndarray:
    """Where the search starts: at `known` constrained values where given."""
    values = known or {}
    return np.array([_raw(name, values.get(name, p.start)) for name, p in parameters(structure).items()])


def raw_bounds(structure: Structure) -> list[tuple[float, float]]:
    """Between which raw values the search stays, in the order of `raw_start`."""
    return [(_raw(name, p.low), _raw(name, p.high)) for name, p in parameters(structure).items()]


def _raw(name: str, value: float) -> float:
    return value if name == "offset" else math.log(value)


def constrain(structure: Structure, raw: Tensor) -> dict[str, Tensor]:
    """Raw vector → constrained parameters by name: exp of all but the offset."""
    names = list(parameters(structure))
    return {name: raw[i] if name == "offset" else torch.exp(raw[i]) for i, name in enumerate(names)}


class Mode(NamedTuple):
    """A block of one or two states: damped oscillator (ω), relaxation (no ω) or random walk (no decay).

    The trend is a block of its own kind: `noise` drives the level, `trend` (decay, noise) the second state.
    """

    noise: Tensor
    decay: Tensor | None = None
    omega: Tensor | None = None
    trend: tuple[Tensor, Tensor] | None = None


def modes(structure: Structure, values: dict[str, Tensor]) -> list[Mode]:
    """The blocks, in the order of the state."""
    level_trend = (values["trend_decay"], values["trend_noise"]) if structure.has_trend else None
    found = [Mode(values["level_noise"], values.get("level_decay"), None, level_trend)]
    found += [
        Mode(values[f"relaxation{i}_noise"], values[f"relaxation{i}_decay"]) for i in range(structure.relaxations)
    ]
    for i, (season, omega) in enumerate(structure.harmonics()):
        rate = torch.tensor(omega, dtype=torch.float64)
        found.append(Mode(values[f"harmonic{i}_noise"], values[f"season{season}_decay"], rate))
    for i in range(structure.cycles):
        noise, decay, rate = (values[f"cycle{i}_{part}"] for part in ("noise", "decay", "omega"))
        found.append(Mode(noise, decay, rate))
    return found


def bands(structure: Structure, values: dict[str, Tensor], lags: Tensor) -> tuple[Tensor, ...]:
    """Discretisation over every lag `[U]` and the prior, as in `structural_scan.Bands`, differentiable."""
    zero = torch.zeros_like(lags)
    columns: list[tuple[Tensor, ...]] = []
    prior: list[Tensor] = []
    for mode in modes(structure, values):
        blocks, variances = _discretise(mode, lags, zero)
        columns += blocks
        prior += variances
    return (*(torch.stack(column, dim=1) for column in zip(*columns, strict=True)), torch.stack(prior))


def _discretise(mode: Mode, lags: Tensor, zero: Tensor) -> tuple[list[tuple[Tensor, ...]], list[Tensor]]:
    """One block: per state (F diagonal, F upper, F lower, Q diagonal, Q upper), and its prior variances."""
    if mode.decay is None:
        level = (torch.ones_like(lags), zero, zero, mode.noise * lags, zero)
        free = torch.full_like(mode.noise, PRIOR)
        if mode.trend is None:
            return [level], [free]
        decay, noise = mode.trend
        kept = torch.exp(-decay * lags)
        once, twice = -torch.expm1(-decay * lags) / decay, -torch.expm1(-2 * decay * lags) / (2 * decay)
        # ∫ (1 - e^{-φu})², ∫ (1 - e^{-φu}) e^{-φu} and ∫ e^{-2φu} over the lag.
        level = (
            level[0],
            1 - kept,
            zero,
            mode.noise * lags + noise * (lags - 2 * once + twice),
            noise * (once - twice),
        )
        return [level, (kept, zero, zero, noise * twice, zero)], [free, _bounded(noise / (2 * decay))]
    kept = torch.exp(-mode.decay * lags)
    noise = mode.noise * -torch.expm1(-2 * mode.decay * lags) / (2 * mode.decay)
    prior = _bounded(mode.noise / (2 * mode.decay))
    if mode.omega is None:
        return [(kept, zero, zero, noise, zero)], [prior]
    turn = mode.omega * lags
    across = kept * torch.sin(turn)
    along = kept * torch.cos(turn)
    return [(along, -across, across, noise, zero), (along, zero, zero, noise, zero)], [prior, prior]


def _bounded(variance: Tensor) -> Tensor:
    """The stationary variance, smoothly kept below `PRIOR`."""
    return variance * PRIOR / (variance + PRIOR)


def sensor(structure: Structure) -> np.ndarray:
    """Row c `[n]`: 1 at the first state of every mode."""
    widths = [1 + structure.has_trend] + [1] * structure.relaxations
    widths += [2] * (len(structure.harmonics()) + structure.cycles)
    row = np.zeros(structure.state_size)
    row[np.cumsum([0, *widths[:-1]])] = 1
    return row


class Matrices(NamedTuple):
    """The system of one column in the units of the data: drift, process noise, prior covariance `[n, n]`, sensor `[n]`,
    measurement variance and offset."""

    drift: np.ndarray
    process: np.ndarray
    prior: np.ndarray
    sensor: np.ndarray
    variance: float
    offset: float


def matrices(structure: Structure, raw: np.ndarray, *, step: float, center: float, spread: float) -> Matrices:
    """The system at `raw`, for time steps of `step` and values center + spread · y."""
    with torch.no_grad():
        values = constrain(structure, torch.from_numpy(raw))
        found = modes(structure, values)
        prior = bands(structure, values, torch.zeros(1, dtype=torch.float64))[-1].numpy()
    drifts, noises = zip(*(_generator(mode) for mode in found), strict=True)
    variance = spread**2
    return Matrices(
        block_diag(*drifts) / step,
        block_diag(*noises) * variance / step,
        np.diag(prior) * variance,
        sensor(structure),
        float(values["noise"]) * variance,
        center + spread * float(values["offset"]),
    )


def _generator(mode: Mode) -> tuple[np.ndarray, np.ndarray]:
    """A and Q of one block."""
    noise = float(mode.noise)
    if mode.trend is not None:
        decay, trend = (float(x) for x in mode.trend)
        return np.array([[0.0, decay], [0.0, -decay]]), np.diag([noise, trend])
    decay = 0.0 if mode.decay is None else float(mode.decay)
    if mode.omega is None:
        return np.array([[-decay]]), np.array([[noise]])
    omega = float(mode.omega)
    return np.array([[-decay, -omega], [omega, -decay]]), noise * np.eye(2)


def robustness(structure: Structure, raw: np.ndarray) -> dict[str, Any]:
    """nu (None below `GAUSSIAN`), contamination and outlier_scale."""
    values = dict(zip(parameters(structure), raw, strict=True))
    inverse_nu, contamination, scale = (
        math.exp(values[name]) for name in ("inverse_nu", "contamination", "outlier_scale")
    )
    return {
        "nu": 1 / inverse_nu if inverse_nu > GAUSSIAN else None,
        "contamination": contamination,
        "outlier_scale": scale,
    }


__all__ = [
    "Matrices", "Structure", "bands", "constrain", "matrices", "parameters", "raw_bounds", "raw_start", "robustness",
    "sensor",
]  # fmt: skip
