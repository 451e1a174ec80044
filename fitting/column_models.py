"""Fit structural models to the columns of a series and join them into one linear filter.

Each column gets its own modes (`maximum_likelihood`), and the state of the filter concatenates them. Shared noise is
then estimated from the correlation of the columns' one-step innovations in the training part, either as measurement
noise (a dense R), or as measurement and level noise. Shared noise is used if it improves the validation likelihood of
the joint filter. Columns are fitted in parallel threads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.linalg import block_diag

from rfa.data import Series
from rfa.fitting.joint import joint_log_likelihood
from rfa.fitting.maximum_likelihood import MIN_GAIN, Column, Fit, Likelihood, Limits, Report, fit_column, make_column
from rfa.fitting.parallel import fit_each
from rfa.fitting.progress import SavedFits
from rfa.fitting.scan import Robust
from rfa.fitting.seasons import candidate_periods
from rfa.fitting.structural_model import Matrices, matrices, robustness
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.text.config import StrictConfig

Shared = Literal["nothing", "measurement", "measurement and level"]

# Format of a progress bar whose work has no unit.
SHARES = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"
# Two columns are treated as uncorrelated if at most this many rows have a value in both.
MIN_COMMON = 20
# Innovations are clipped at this many standard deviations before they are correlated.
CLIP = 3.0


@dataclass(frozen=True)
class StructuralConfig(StrictConfig):
    """Settings for fitting structural models.

    Attributes:
        seasons: "auto", or periods in the unit of the times (seconds for dates). An empty list means no seasons.
        max_harmonics: Maximum number of harmonics per season.
        max_free_modes: Maximum number of Ornstein-Uhlenbeck processes and cycles in total.
        inner: Number of reweighting passes K of the filter.
        iterations: Maximum number of iterations of the optimiser per fit.
    """

    seasons: str | tuple[float, ...] = "auto"
    max_harmonics: int = 12
    max_free_modes: int = 2
    inner: int = 3
    iterations: int = 60

    def __post_init__(self) -> None:
        if isinstance(self.seasons, str):
            if self.seasons != "auto":
                raise ValueError(f'seasons must be "auto" or a list of periods, got {self.seasons!r}')
        else:
            try:
                object.__setattr__(self, "seasons", tuple(float(period) for period in self.seasons))
            except (TypeError, ValueError):
                raise ValueError(f'seasons must be "auto" or a list of periods, got {self.seasons!r}') from None
            if not all(np.isfinite(p) and p > 0 for p in self.seasons):
                raise ValueError(f"seasons must be positive periods, got {list(self.seasons)}")
        for name, least in (("max_harmonics", 1), ("max_free_modes", 0), ("inner", 1), ("iterations", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")


@dataclass(frozen=True)
class StructuralFit:
    """Result of `fit_structural`.

    Attributes:
        config: Configuration of the fitted filter.
        seasons: Periods of the seasons, in time steps.
        columns: Description of the fit of each column, as JSON types.
        joint: Description of the fit of the noise that all columns share, as JSON types.
    """

    config: LinearFilterConfig
    seasons: tuple[float, ...]
    columns: list[dict[str, Any]]
    joint: dict[str, Any]


def fit_structural(
    train: Series, validation: Series, config: StructuralConfig, *,
    report: Report | None = None, saved: SavedFits | None = None,
) -> StructuralFit:  # fmt: skip
    """Fit a structural model to every column of a series, and then the noise that the columns share. Return the fitted
    filter.

    Args:
        train, validation: Consecutive parts of one series. Parameters are fitted to the first part, and modes are
            chosen by the likelihood of the second part.
        config: Settings of the fit.
        report: Function that is called after every fit with a progress message and the completed fraction of a column's
            work.
        saved: Store of completed columns, which are not fitted again.

    Raises:
        ValueError: If a column is constant or has too few values.
        Stopped: If a signal arrived. Completed columns are saved.
    """
    times = np.concatenate([train.times, validation.times])
    values = np.concatenate([train.values, validation.values])
    count = len(train.times)
    columns = [make_column(name, times, values[:, i], count) for i, name in enumerate(train.names)]
    limits = Limits(config.max_harmonics, config.max_free_modes, config.iterations, config.inner)
    periods = [periods_of(column, train.times, train.values[:, i], config) for i, column in enumerate(columns)]
    fits = _fit_all(columns, periods, limits, report, saved)
    start = time.monotonic()
    chosen, shared, gains = _join(columns, fits, config.inner)
    record = [describe_fit(column, fit) for column, fit in zip(columns, fits, strict=True)]
    joint = {"shared_noise": shared, "validation": gains, "seconds": round(time.monotonic() - start, 1)}
    seasons = {period for fit in fits for period, _ in fit.structure.seasons}
    return StructuralFit(chosen, tuple(sorted(seasons)), record, joint)


def _fit_all(
    columns: list[Column], periods: list[list[float]], limits: Limits, report: Report | None, saved: SavedFits | None
) -> list[Fit]:
    items = {column.name: (column, own) for column, own in zip(columns, periods, strict=True)}
    if len(items) < len(columns):
        raise ValueError("column names must be unique; rename one of two equal columns")

    def fit(item: tuple[Column, list[float]], advance: Report) -> dict[str, Any]:
        return fit_column(*item, limits, advance).to_document()

    found = fit_each(items, fit, report=report, saved=saved)
    return [Fit.from_document(document) for document in found.values()]


def periods_of(column: Column, times: np.ndarray, values: np.ndarray, config: StructuralConfig) -> list[float]:
    """Return the candidate seasons of a column, as periods in steps.

    Args:
        column: The normalised column.
        times: Times of the training part, `[N]`.
        values: Values of the training part, `[N]`.
        config: Settings of the fit.

    Raises:
        ValueError: If a season is not longer than two time steps of the data.
    """
    if isinstance(config.seasons, str):
        return candidate_periods(times, values)
    periods = [period / column.time_step for period in config.seasons]
    if min(periods, default=np.inf) <= 2:
        raise ValueError(
            f"seasons must be longer than two time steps of the data ({2 * column.time_step:g}), got "
            f"{min(config.seasons):g}"
        )
    return periods


def describe_fit(column: Column, fit: Fit) -> dict[str, Any]:
    """Return a description of the fit of a column as JSON types."""
    return {
        "name": column.name,
        "structure": fit.structure.describe(),
        "step": column.time_step,
        "parameters": {name: _short(value) for name, value in fit.values().items()},
        "standard_errors": {name: None if error is None else _short(error) for name, error in fit.errors.items()},
        "center": column.center,
        "spread": column.spread,
        "train_log_likelihood": fit.train,
        "validation_log_likelihood": fit.validation,
        "seconds": round(fit.seconds, 1),
        "tried": fit.tried,
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _join(columns: list[Column], fits: list[Fit], inner: int) -> tuple[LinearFilterConfig, Shared, dict[str, float]]:
    """Join the models of all columns. Return the joint filter, the chosen shared noise, and the validation log
    likelihoods of the alternatives."""
    systems = [
        matrices(fit.structure, fit.raw, step=column.time_step, center=column.center, spread=column.spread)
        for column, fit in zip(columns, fits, strict=True)
    ]
    robust, one = _joint_robustness(fits), np.eye(len(columns))
    if len(columns) == 1:
        return joint_config(systems, one, "nothing", robust, inner), "nothing", {}
    correlation = innovation_correlation(columns, fits, inner)
    noises: dict[Shared, tuple[np.ndarray, np.ndarray]] = {
        "nothing": (one, one), "measurement": (correlation, one), "measurement and level": (correlation, correlation),
    }  # fmt: skip
    inverse = 0.0 if robust["nu"] is None else 1 / robust["nu"]
    weighing = Robust(inverse, robust["contamination"], robust["outlier_scale"], inner)
    gains: dict[str, float] = {}
    best: Shared = "nothing"
    for shared, pair in noises.items():
        gains[shared] = joint_log_likelihood(columns, fits, pair, weighing, columns[0].fitted)
        if gains[shared] > gains[best] + MIN_GAIN:
            best = shared
    return joint_config(systems, correlation, best, robust, inner), best, gains


def _joint_robustness(fits: list[Fit]) -> dict[str, Any]:
    """Return the robustness parameters of the joint filter: the medians of nu, contamination and outlier scale over the
    columns."""
    found = [robustness(fit.structure, fit.raw) for fit in fits]
    inverse = float(np.median([0.0 if one["nu"] is None else 1 / one["nu"] for one in found]))
    middle = {name: float(np.median([one[name] for one in found])) for name in ("contamination", "outlier_scale")}
    return {"nu": 1 / inverse if inverse > 0 else None, **middle}


def innovation_correlation(columns: list[Column], fits: list[Fit], inner: int) -> np.ndarray:
    """Return the correlation `[P, P]` of the standardised one-step innovations in the training part.

    The correlation of two columns is computed from the rows in which both have a value. The result is made positive
    definite.

    Args:
        columns, fits: The normalised columns, and their fits.
        inner: Number of reweighting passes K of the filter.
    """
    standard = np.full((columns[0].fitted, len(columns)), np.nan)
    for i, (column, fit) in enumerate(zip(columns, fits, strict=True)):
        scan = Likelihood(column, fit.structure, inner).scan(fit.raw, column.fitted)
        seen = np.isfinite(column.y[: column.fitted])
        standard[seen, i] = np.clip((scan.innovation / np.sqrt(scan.total))[seen], -CLIP, CLIP)
    found = np.eye(len(columns))
    for i in range(len(columns)):
        for j in range(i):
            both = np.isfinite(standard[:, i]) & np.isfinite(standard[:, j])
            if both.sum() > MIN_COMMON:
                found[i, j] = found[j, i] = np.corrcoef(standard[both, i], standard[both, j])[0, 1]
    # Pairs observed in different rows may be inconsistent, and R must be well-conditioned in float32.
    rates, basis = np.linalg.eigh(found)
    repaired = (basis * np.maximum(rates, 1e-3)) @ basis.T
    scale = np.sqrt(np.diag(repaired))
    return repaired / scale[:, None] / scale[None, :]


def joint_config(
    systems: list[Matrices], correlation: np.ndarray, shared: Shared, robust: dict[str, Any], inner: int
) -> LinearFilterConfig:
    """Return the configuration of a filter with block-diagonal dynamics, one block per column.

    Args:
        systems: Matrices of each column.
        correlation: Correlation of the shared noise, `[P, P]`.
        shared: Noise that is correlated between columns: "nothing", "measurement", or "measurement and level".
        robust: Parameters of the robust update.
        inner: Number of reweighting passes K.
    """
    deviation = np.sqrt([system.variance for system in systems])
    rho = np.eye(len(systems)) if shared == "nothing" else correlation
    process = block_diag(*(system.process for system in systems))
    if shared == "measurement and level":
        levels = np.cumsum([0, *(len(system.drift) for system in systems[:-1])])
        noise = np.sqrt(np.diag(process)[levels])
        process[np.ix_(levels, levels)] = rho * noise[:, None] * noise[None, :]
    return LinearFilterConfig.from_dict(
        {
            "drift": block_diag(*(system.drift for system in systems)).tolist(),
            "process_noise": process.tolist(),
            "measurement_noise": (rho * deviation[:, None] * deviation[None, :]).tolist(),
            "observation": block_diag(*(system.sensor[None] for system in systems)).tolist(),
            "offset": [system.offset for system in systems],
            "initial_covariance": block_diag(*(system.prior for system in systems)).tolist(),
            "inner": inner,
            **robust,
        }
    )
