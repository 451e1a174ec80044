"""Configuration of a linear filter, which contains the matrices of its system. The equations are in
`linear_filter.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rfa.runtime.filters.spectrum import STABILITY_TOLERANCE, spectrum, stationary
from rfa.runtime.text.config import StrictConfig, check_choice

Matrix = tuple[tuple[float, ...], ...]
Rule = Literal["capped", "learned"]
RULES = ("capped", "learned")


def _matrix(name: str, value: Any, rows: int | None, columns: int | None) -> np.ndarray:
    try:
        matrix = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a matrix of numbers") from None
    if matrix.ndim != 2 or (rows and matrix.shape[0] != rows) or (columns and matrix.shape[1] != columns):
        raise ValueError(f"{name} must be [{rows or 'any'}, {columns or 'any'}], got {list(matrix.shape)}")
    if not np.isfinite(matrix).all():
        raise ValueError(f"{name} must be finite")
    return matrix


def _covariance(name: str, value: Any, size: int | None, *, positive: bool) -> np.ndarray:
    matrix = _matrix(name, value, size, size)
    if matrix.shape[0] != matrix.shape[1] or not np.allclose(matrix, matrix.T, atol=1e-9 * np.abs(matrix).max()):
        raise ValueError(f"{name} must be symmetric")
    lowest = np.linalg.eigvalsh(matrix).min()
    if lowest < -1e-9 * max(np.abs(matrix).max(), 1e-300) or (positive and lowest <= 0):
        raise ValueError(f"{name} must be positive {'definite' if positive else 'semidefinite'}")
    return matrix


def _rows(matrix: np.ndarray) -> Matrix:
    return tuple(tuple(float(x) for x in row) for row in matrix)


@dataclass(frozen=True)
class LinearFilterConfig(StrictConfig):
    """Matrices of the system, in the units of the observations and of their times.

    Attributes:
        drift: Drift matrix A, `[n, n]`.
        process_noise: Process noise Q per unit time, `[n, n]`.
        measurement_noise: Measurement noise R, `[P, P]`.
        observation: Observation matrix C, `[P, n]`. null means the identity.
        offset: Offset b of the observations, `[P]`. null means zero.
        nu: Degrees of freedom > 2. null means the Kalman filter.
        inner: Number of reweighting passes K.
        initial_mean, initial_covariance: Prior of the state at the first observation. By default, the mean is zero and
            the covariance is the stationary covariance.
        contamination, outlier_scale: Fraction and scale of outliers in the reported log-likelihood.
        reacquire: Number of consecutive outliers >= 2 that agree with each other, after which the state jumps. With
            null, the state never jumps (`rfa.model.recurrence.dense`).
        rule: Rule of the weights: "capped", or "learned", which learns the noise distribution from the stream. The
            latter has a larger state and assumes that Q is correct. Attention mode always uses "capped".
    """

    drift: Matrix
    process_noise: Matrix
    measurement_noise: Matrix
    observation: Matrix | None = None
    offset: tuple[float, ...] | None = None
    nu: float | None = 7.0
    inner: int = 3
    initial_mean: tuple[float, ...] | None = None
    initial_covariance: Matrix | None = None
    contamination: float = 0.0
    outlier_scale: float = 10.0
    reacquire: int | None = 6
    rule: Rule = "capped"

    def __post_init__(self) -> None:
        drift = _matrix("drift", self.drift, None, None)
        n = drift.shape[0]
        _matrix("drift", self.drift, n, n)
        noise = _covariance("measurement_noise", self.measurement_noise, None, positive=True)
        p = noise.shape[0]
        values: dict[str, Any] = {
            "drift": _rows(drift),
            "process_noise": _rows(_covariance("process_noise", self.process_noise, n, positive=False)),
            "measurement_noise": _rows(noise),
        }
        if self.observation is not None:
            values["observation"] = _rows(_matrix("observation", self.observation, p, n))
        elif p != n:
            raise ValueError(
                f"observation is required, because measurement_noise is [{p}, {p}] and drift is [{n}, {n}]"
            )
        for name, size in (("offset", p), ("initial_mean", n)):
            if getattr(self, name) is not None:
                values[name] = _rows(_matrix(name, [getattr(self, name)], 1, size))[0]
        if self.initial_covariance is not None:
            values["initial_covariance"] = _rows(
                _covariance("initial_covariance", self.initial_covariance, n, positive=True)
            )
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.nu is not None and not self.nu > 2:
            raise ValueError(f"nu must be > 2 or null, got {self.nu}")
        if self.inner < 1:
            raise ValueError(f"inner must be >= 1, got {self.inner}")
        if not 0 <= self.contamination < 1 or not self.outlier_scale > 1:
            raise ValueError("contamination must be in [0, 1), and outlier_scale must be > 1")
        patience = self.reacquire
        if patience is not None and (not isinstance(patience, int) or isinstance(patience, bool) or patience < 2):
            raise ValueError(f"reacquire must be an integer >= 2 or null, got {patience!r}")
        check_choice("rule", self.rule, RULES)
        if spectrum(drift).rates.real.max() > -STABILITY_TOLERANCE and self.initial_covariance is None:
            raise ValueError(
                "initial_covariance is required, because drift has an undamped mode and hence no stationary covariance"
            )


def stationary_covariance(config: LinearFilterConfig) -> np.ndarray:
    """Return the covariance P `[n, n]` with A P + P Aᵀ + Q = 0."""
    return stationary(spectrum(np.asarray(config.drift)), np.asarray(config.process_noise))
