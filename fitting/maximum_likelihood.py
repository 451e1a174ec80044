"""Fit a structural model of one series by maximum likelihood. Its components are chosen by the validation likelihood.

The likelihood is that of the linear filter, with capped Student-t weights and a contaminated normal density. The
degrees of freedom nu and the contamination are fitted too, so that outliers do not bias the noise parameters. The
optimiser is L-BFGS on the raw parameters with exact gradients. Modes are added one kind at a time. Each fit starts from
the best parameters so far, and a new cycle starts at the strongest frequency of the innovations. A mode is kept if it
increases the validation log-likelihood by more than `MIN_GAIN`. The chosen modes are then fitted further while this
likelihood increases. Standard errors are computed from the inverse observed information.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from rfa.fitting.scan import Scan, gradient, scan_series
from rfa.fitting.seasons import strongest_rate
from rfa.fitting.structural_model import Standing, Structure, constrain, parameters, raw_bounds, raw_start

# Minimum gain in nats over the whole validation part. Smaller gains may be noise.
MIN_GAIN = 2.0
# Maximum number of additional fits of the chosen modes.
MORE_FITS = 4
# A fit stops when the mean log-likelihood changes by less than this relative amount.
TOLERANCE = 1e-8

# Called after every fit with a progress message and the completed fraction of a column's work.
Report = Callable[[str, float], None]
# Step of the raw parameters for the Hessian, and the standard error above which a parameter is undetermined.
HESSIAN_STEP, WORST_ERROR = 1e-4, 3.0


@dataclass(frozen=True)
class Column:
    """One normalised column of a series.

    Attributes:
        name: Name of the column.
        y: Values `[N]` with median 0 and interquartile range 1.349 in the training part. Missing values are NaN.
        step: Index in `lags` of the lag before each value, `[N]`.
        lags: Distinct lags `[U]`, in units of `time_step`.
        fitted: Number of leading values that are used for training.
        center, spread: Median, and interquartile range divided by 1.349, of the training part. They map `y` to the
            units of the data.
        time_step: Median time step, in the unit of the times.
    """

    name: str
    y: np.ndarray
    step: np.ndarray
    lags: np.ndarray
    fitted: int
    center: float
    spread: float
    time_step: float


@dataclass(frozen=True)
class Limits:
    """Limits of the search for the modes of a column.

    Attributes:
        harmonics: Maximum number of harmonics per season.
        free_modes: Maximum number of Ornstein-Uhlenbeck processes and cycles in total.
        iterations: Maximum number of L-BFGS iterations per fit.
        inner: Number of reweighting passes K of the filter.
    """

    harmonics: int
    free_modes: int
    iterations: int
    inner: int


@dataclass(frozen=True)
class Fit:
    """A structure with its maximum likelihood parameters.

    Attributes:
        structure: Structure of the model.
        raw: Raw parameters, which `constrain` maps to the parameters of the model.
        train, validation: Log-likelihoods of the training and the validation part.
        seconds: Duration of the search.
        errors: Standard errors by parameter. None if the data do not determine the parameter, or if it is at a bound.
        tried: Structures that the search tried, as JSON types.
    """

    structure: Structure
    raw: np.ndarray
    train: float
    validation: float
    seconds: float = 0.0
    errors: dict[str, float | None] = field(default_factory=dict)
    tried: list[dict[str, object]] = field(default_factory=list)

    def values(self) -> dict[str, float]:
        return constrain(self.structure, self.raw)

    def to_document(self) -> dict[str, Any]:
        """Return the fit as a dictionary of JSON types."""
        return {**asdict(self), "raw": self.raw.tolist()}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Fit:
        """Return the fit described by a dictionary that `to_document` returned."""
        structure = dict(document["structure"])
        structure["seasons"] = tuple((period, count) for period, count in structure["seasons"])
        return cls(**{**document, "structure": Structure(**structure), "raw": np.array(document["raw"])})


def make_column(name: str, times: np.ndarray, values: np.ndarray, fitted: int) -> Column:
    """Normalise a column by its first `fitted` values, and return the normalised column. The later values are used for
    validation.

    Args:
        name: Name of the column, for messages.
        times: Times, `[N]`.
        values: Values `[N]`. Missing values are NaN.
        fitted: Number of leading values that are used for training.

    Raises:
        ValueError: If the data are not sufficient for a fit. The message names the column.
    """
    start_values = values[:fitted][np.isfinite(values[:fitted])]
    if not start_values.size:
        raise ValueError(f"column {name!r} has no values in the training part; leave it out, or fit more rows")
    if start_values.size < MIN_VALUES:
        count = f"{start_values.size} value{'' if start_values.size == 1 else 's'}"
        raise ValueError(
            f"column {name!r} has {count} in the training part; a structural model needs {MIN_VALUES}; leave the "
            "column out, or fit more rows"
        )
    if np.nanmax(np.abs(values)) > MOST_SIZE:
        raise ValueError(f"column {name!r} contains values larger than {MOST_SIZE:g} in magnitude; use a larger unit")
    if fitted < len(values) and not np.isfinite(values[fitted:]).any():
        raise ValueError(f"column {name!r} has no values in the validation part; leave it out, or fit more rows")
    low, middle, high = np.percentile(start_values, [25, 50, 75])
    spread = (high - low) / 1.349 if high > low else float(start_values.std())
    if spread <= 1e-12 * abs(middle):
        raise ValueError(f"column {name!r} is constant in the training part; leave it out")
    if spread < LEAST_SPREAD:
        raise ValueError(f"column {name!r} varies by less than {LEAST_SPREAD:g}; use a smaller unit")
    gaps = np.diff(times)
    if not (gaps > 0).any():
        raise ValueError("all times of the training part are equal; fit rows with different times")
    time_step = float(np.median(gaps[gaps > 0]))
    # Lags that differ only by rounding share a transition.
    lags, step = np.unique(np.round(np.diff(times, prepend=times[0]) / time_step, 9), return_inverse=True)
    return Column(name, (values - middle) / spread, step, lags, fitted, float(middle), float(spread), time_step)


# Minimum number of training values: a few per parameter of the smallest structure.
MIN_VALUES = 40
# Largest magnitude of values that a filter accepts, and the smallest spread whose square does not underflow.
MOST_SIZE, LEAST_SPREAD = 1e12, 1e-60


class Likelihood:
    """Computes the log-likelihood of a column under a structure, as a function of the raw parameters."""

    def __init__(self, column: Column, structure: Structure, inner: int) -> None:
        self.column, self.structure, self.inner = column, structure, inner
        self.count = int(np.isfinite(column.y[: column.fitted]).sum())
        places = np.cumsum(np.where(np.arange(len(column.y)) > 0, column.lags[column.step], 0.0))
        self.system = Standing(structure, column.lags, places)

    def scan(self, raw: np.ndarray, length: int) -> Scan:
        """Filter the first `length` values of the column, and return the results for each value."""
        y, step = self.column.y[:length], self.column.step[:length]
        return scan_series(y, step, self.system.tables(raw), self.system.measurement(raw, self.inner))

    def loss(self, raw: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean negative log-likelihood of the training part, and its gradient."""
        y, step = self.column.y[: self.column.fitted], self.column.step[: self.column.fitted]
        tables = self.system.tables(raw)
        found = gradient(y, step, tables, self.system.measurement(raw, self.inner), self.system.turning)
        return -found.log_likelihood / self.count, -self.system.slope(raw, found) / self.count


def fit_structure(
    column: Column, structure: Structure, limits: Limits, start_values: dict[str, float] | None = None
) -> Fit:
    """Maximise the training likelihood of a structure, and return the fit.

    Args:
        column: The normalised series.
        structure: Modes of the model.
        limits: Limits of the search.
        start_values: Initial values by parameter. The other parameters start at their defaults.
    """
    start = time.monotonic()
    likelihood = Likelihood(column, structure, limits.inner)
    bounds = raw_bounds(structure)
    low, high = np.array(bounds).T
    raw = np.clip(raw_start(structure, start_values), low, high)
    options = {"maxiter": limits.iterations, "ftol": TOLERANCE}
    found = minimize(likelihood.loss, raw, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    best = np.clip(found.x, low, high)
    values = likelihood.scan(best, len(column.y)).log_likelihood
    train, validation = float(values[: column.fitted].sum()), float(values[column.fitted :].sum())
    return Fit(structure, best, train, validation, time.monotonic() - start)


def standard_errors(column: Column, fit: Fit, inner: int) -> dict[str, float | None]:
    """Return standard errors by parameter, from the observed information of the training part. See `Fit.errors`."""
    likelihood = Likelihood(column, fit.structure, inner)
    names, values = list(parameters(fit.structure)), fit.values()
    low, high = np.array(raw_bounds(fit.structure)).T
    inside = np.flatnonzero((fit.raw > low + HESSIAN_STEP) & (fit.raw < high - HESSIAN_STEP))
    _, here = likelihood.loss(fit.raw)
    slopes = []
    for i in inside:
        ahead = fit.raw.copy()
        ahead[i] += HESSIAN_STEP
        slopes.append(likelihood.loss(ahead)[1] - here)
    information = np.array(slopes).reshape(len(inside), len(names))[:, inside] * likelihood.count / HESSIAN_STEP
    information = (information + information.T) / 2
    reported = np.diag(information) > 1 / WORST_ERROR**2
    covariance = np.linalg.pinv(information[np.ix_(reported, reported)], hermitian=True)
    found: dict[str, float | None] = dict.fromkeys(names)
    for i, variance in zip(inside[reported], np.diag(covariance), strict=True):
        error = math.sqrt(variance) if variance > 0 else math.inf
        if error <= WORST_ERROR:
            # All raw parameters except the offset are logarithms.
            found[names[i]] = error if names[i] == "offset" else values[names[i]] * error
    return found


def fit_column(column: Column, periods: list[float], limits: Limits, report: Report | None = None) -> Fit:
    """Choose the modes of a column by the validation likelihood, and fit these modes further while this likelihood
    increases. Return the fit.

    Args:
        column: The normalised series.
        periods: Candidate seasons in steps, the strongest first.
        limits: Limits of the search.
        report: Function that is called after every fit with a message and the completed fraction. The fractions of a
            column sum to 1.
    """
    start = time.monotonic()
    tried: list[dict[str, object]] = []
    stages = list(_stages(periods, limits))
    reached, reported = 0, 0.0

    def advance(line: str) -> None:
        nonlocal reported
        if report is not None:
            # Each stage is one share of the work, as are the first fit and the additional fits.
            done = (reached + 1) / (len(stages) + 2)
            report(line, done - reported)
            reported = done

    def attempt(structure: Structure, start_values: dict[str, float] | None) -> Fit:
        fit = fit_structure(column, structure, limits, start_values)
        tried.append(
            {"structure": structure.describe(), "validation": fit.validation, "seconds": round(fit.seconds, 2)}
        )
        advance(structure.describe())
        return fit

    best = attempt(Structure(relaxations=min(1, limits.free_modes)), None)
    for reached, candidates in enumerate(stages, start=1):  # noqa: B007 - `advance` reads it
        for change in candidates:
            structure = change(best.structure)
            if structure is None or structure == best.structure:
                continue
            found = attempt(structure, _carry(best, structure) | _first_rate(column, best, structure, limits.inner))
            # Prefer fewer modes unless they lose more than MIN_GAIN.
            needed = MIN_GAIN if structure.state_size >= best.structure.state_size else -MIN_GAIN
            if found.validation <= best.validation + needed:
                break
            best = found
    final = _fit_further(column, best, limits)
    errors = standard_errors(column, final, limits.inner)
    reached = len(stages) + 1
    advance(f"{best.structure.describe()}, refined")
    return replace(final, seconds=time.monotonic() - start, errors=errors, tried=tried)


def _fit_further(column: Column, best: Fit, limits: Limits) -> Fit:
    """Continue a fit while the validation likelihood increases, and return the best fit.

    A fit may be far from the maximum when its iterations end, and the maximum may overfit the training part.
    """
    for _ in range(MORE_FITS):
        further = fit_structure(column, best.structure, limits, best.values())
        if further.validation <= best.validation:
            break
        best = further
    return best


Change = Callable[[Structure], Structure | None]


def _stages(periods: list[float], limits: Limits) -> Iterator[list[Change]]:
    """Yield the changes to a structure that the search tries, grouped by kind. The changes in a group are tried in
    order as long as the likelihood increases."""
    for period in periods:
        # Try the most harmonics first, because a pattern may have high harmonics only.
        yield [_with_season(period, _most_harmonics(period, limits.harmonics))]
        yield [_with_fewer_harmonics(period)] * len(SIZES)
    yield [lambda s: replace(s, level="damped")]
    yield [lambda s: None if s.level == "damped" else replace(s, has_trend=True)]
    remaining_modes = range(limits.free_modes)
    yield [lambda s: _within(replace(s, relaxations=s.relaxations + 1), limits) for _ in remaining_modes]
    yield [lambda s: _within(replace(s, cycles=s.cycles + 1), limits) for _ in remaining_modes]


def _with_season(period: float, count: int) -> Change:
    def change(structure: Structure) -> Structure:
        others = tuple(season for season in structure.seasons if season[0] != period)
        return replace(structure, seasons=(*others, (period, count)))

    return change


# Numbers of harmonics per season.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)


def _most_harmonics(period: float, limit: int) -> int:
    return max(k for k in SIZES if k == 1 or k <= min(limit, (period - 1e-6) / 2))


def _with_fewer_harmonics(period: float) -> Change:
    def change(structure: Structure) -> Structure | None:
        count = dict(structure.seasons).get(period, 1)
        return None if count == 1 else _with_season(period, _most_harmonics(period, count - 1))(structure)

    return change


def _within(structure: Structure, limits: Limits) -> Structure | None:
    return structure if structure.relaxations + structure.cycles <= limits.free_modes else None


def _carry(best: Fit, structure: Structure) -> dict[str, float]:
    """Return the fitted values of the parameters that the new structure shares with the best one."""
    return {name: value for name, value in best.values().items() if name in parameters(structure)}


def _first_rate(column: Column, best: Fit, structure: Structure, inner: int) -> dict[str, float]:
    """Return the initial frequency of a new cycle by parameter name. The result of the fit depends on this value,
    because the likelihood has a local maximum at every cycle in the data."""
    if structure.cycles <= best.structure.cycles:
        return {}
    scan = Likelihood(column, best.structure, inner).scan(best.raw, column.fitted)
    places = np.cumsum(column.lags[column.step[: column.fitted]])
    standard = scan.innovation * np.sqrt(scan.weight / np.where(scan.total > 0, scan.total, 1.0))
    rate = strongest_rate(places - places[0], standard)
    return {} if rate is None else {f"cycle{structure.cycles - 1}_omega": rate}
