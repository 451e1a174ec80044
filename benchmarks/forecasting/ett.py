"""ETTh1 (transformer loads and oil temperature): the structural filter compared with simple forecasts and statsmodels.

    rfa bench forecast --data ETTh1.csv

The first half of the rows trains, the next sixth chooses and calibrates, the last third is scored, one hour and 24
hours ahead.

    filter                   structural model; 90 % intervals as the service adapts them
    filter, fixed            the same forecasts with intervals that do not adapt
    filter, normal           the same forecasts as normal distributions, variance scaled on the validation part
    persistence              the last value; errors of the first two thirds as distribution
    seasonal naive           the value of 24 hours before
    statsmodels              UnobservedComponents: local linear trend, season of 24 hours, irregular
    statsmodels, conformal   its forecasts, calibrated as the filter is
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from rfa.benchmarks.forecasting.intervals import adaptive_widths, gamma_of
from rfa.benchmarks.forecasting.plot import draw_week
from rfa.benchmarks.forecasting.scores import block_error, crps_normal, crps_points, interval
from rfa.data import Series, load_series
from rfa.export.filter_calibration import LEVELS, ONE_SIGMA, conformal, evaluate
from rfa.fitting.column_models import StructuralConfig, fit_structural
from rfa.measured import origin, write_result
from rfa.model.batch import Batch
from rfa.model.linear_filter import LinearFilter
from rfa.training.corpus import file_hashes

# Chronological fractions of the rows for training, and for training or choosing.
TRAIN, CHOOSE = 1 / 2, 2 / 3
LEADS = (1, 24)
DAY = 24
LEVEL = 0.9
# The packaged configuration.
CONFIG = StructuralConfig()
# Scores are correlated over hours, their means over weeks hardly.
WEEK = 7 * DAY
MONTH = 30 * DAY


class Parts(NamedTuple):
    """Rows of the three parts."""

    train: slice
    validation: slice
    test: slice


class Forecast(NamedTuple):
    """Forecasts of every row `[N]` from `lead` rows before, NaN where there is none."""

    mean: np.ndarray
    deviation: np.ndarray


class Fitted(NamedTuple):
    """One column: forecasts of the filter and the rival by horizon, and how they were made."""

    filter: dict[int, Forecast]
    rival: dict[int, Forecast]
    facts: dict[str, Any]


def parts(rows: int) -> Parts:
    first, second = int(TRAIN * rows), int(CHOOSE * rows)
    return Parts(slice(0, first), slice(first, second), slice(second, rows))


def column(series: Series, index: int, rows: slice) -> Series:
    return Series(series.times[rows], series.values[rows, index : index + 1], (series.names[index],))


def filter_forecasts(
    series: Series, index: int, report: Callable[[str], None] | None = None
) -> tuple[dict[int, Forecast], dict[str, Any]]:
    """Fit the column and forecast every row. Also return the fit and its duration in seconds."""
    bounds = parts(len(series.times))
    train, validation = (column(series, index, rows) for rows in (bounds.train, bounds.validation))
    on_progress = None if report is None else lambda line, share: report(line)
    found = fit_structural(train, validation, CONFIG, report=on_progress)
    model = LinearFilter(found.config).eval()
    batch = Batch(series.times[None], series.values[None, :, index : index + 1])
    start = time.monotonic()
    seen = evaluate(model, batch, "recurrent", LEADS)
    forecasts = {
        lead: Forecast(seen.forecast_mean[k, 0, :, 0], seen.forecast_deviation[k, 0, :, 0])
        for k, lead in enumerate(seen.leads)
    }
    fitted = found.columns[0]
    shown = {key: fitted[key] for key in ("structure", "parameters", "validation_log_likelihood")}
    seconds = {"fit": fitted["seconds"], "filter": round(time.monotonic() - start, 1)}
    return forecasts, {**shown, "states": model.state_size, "fits": len(fitted["tried"]), "seconds": seconds}


def statsmodels_forecasts(y: np.ndarray, train: slice) -> tuple[dict[int, Forecast], float]:
    """Return the rival's forecasts of every row, and the duration of its fit in seconds."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    # Its state is large: divide by the spread so that its optimiser sees numbers near 1.
    center, spread = float(np.nanmean(y[train])), float(np.nanstd(y[train]))
    options = {"level": "local linear trend", "freq_seasonal": [{"period": DAY}]}
    start = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Only the parameters, because the unused smoother and parameter covariance take a minute.
        fitted = UnobservedComponents((y[train] - center) / spread, **options).fit(
            disp=False, maxiter=200, return_params=True
        )
        seconds = time.monotonic() - start
        model = UnobservedComponents((y - center) / spread, **options)
        result = model.filter(fitted)
    matrices = {name: np.asarray(model.ssm[name]) for name in ("transition", "selection", "state_cov", "design")}
    noise = float(np.asarray(model.ssm["obs_cov"]).squeeze())
    forecasts = {}
    for lead in LEADS:
        forecasts[lead] = _ahead(result.predicted_state.T[:-1], np.moveaxis(result.predicted_state_cov, -1, 0)[:-1],
                                 matrices, noise, lead)  # fmt: skip
        forecasts[lead] = Forecast(forecasts[lead].mean * spread + center, forecasts[lead].deviation * spread)
    return forecasts, seconds


def _ahead(
    mean: np.ndarray, covariance: np.ndarray, matrices: dict[str, np.ndarray], noise: float, lead: int
) -> Forecast:
    """Propagate one-step predictions of every state `[N, n]` to the observation `lead` - 1 steps later."""
    f = matrices["transition"][..., 0] if matrices["transition"].ndim == 3 else matrices["transition"]
    selection, state_noise, design = (
        m[..., 0] if m.ndim == 3 else m for m in (matrices[n] for n in ("selection", "state_cov", "design"))
    )
    q = selection @ state_noise @ selection.T
    power, added = np.eye(len(f)), np.zeros_like(f)
    for _ in range(lead - 1):
        power, added = f @ power, f @ added @ f.T + q
    row = design[0] @ power
    means, variances = np.full(len(mean), np.nan), np.full(len(mean), np.nan)
    stop = len(mean) - (lead - 1)
    means[lead - 1 :] = mean[:stop] @ row
    spread = np.einsum("i,tij,j->t", row, covariance[:stop], row) + design[0] @ added @ design[0]
    variances[lead - 1 :] = spread + noise
    return Forecast(means, np.sqrt(variances))


def naive_forecasts(y: np.ndarray, lag: int) -> np.ndarray:
    """Return the value of `lag` rows before."""
    return np.concatenate([np.full(lag, np.nan), y[:-lag]])


def score_points(y: np.ndarray, mean: np.ndarray, errors: np.ndarray, test: slice) -> dict[str, Any]:
    """Score a forecast with a fixed distribution of errors."""
    errors = errors[np.isfinite(errors)]
    low, high = np.quantile(errors, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    target, centre = y[test], mean[test]
    coverage, width = interval(target, centre + low, centre + high)
    return _score(crps_points(target - centre, errors), target - centre, coverage, width)


def score_conformal(
    y: np.ndarray, forecast: Forecast, validation: slice, test: slice, half: np.ndarray | None = None
) -> dict[str, Any]:
    """Score a forecast with standardised errors of the validation part, and half-widths `[N]` of its intervals.

    None uses the conformal half-widths of that part.
    """
    z = (y - forecast.mean) / forecast.deviation
    finite = z[validation][np.isfinite(z[validation])]
    radius = conformal(np.abs(finite), (LEVEL,))[0] * forecast.deviation if half is None else half
    mean, radius = forecast.mean[test], radius[test]
    crps = forecast.deviation[test] * crps_points(z[test], finite)
    return _score(crps, y[test] - mean, *interval(y[test], mean - radius, mean + radius))


def score_normal(y: np.ndarray, forecast: Forecast, scale: float, test: slice) -> dict[str, Any]:
    """Score normal forecasts with standard deviations multiplied by `scale`."""
    deviation = forecast.deviation[test] * scale
    radius = NormalDist().inv_cdf((1 + LEVEL) / 2) * deviation
    coverage, width = interval(y[test], forecast.mean[test] - radius, forecast.mean[test] + radius)
    return _score(crps_normal(y[test], forecast.mean[test], deviation), y[test] - forecast.mean[test], coverage, width)


def _score(crps: np.ndarray, error: np.ndarray, coverage: float, width: float) -> dict[str, Any]:
    return {
        "crps": float(crps.mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "coverage": coverage,
        "width": width,
        "each": crps,
    }


def fit_column(series: Series, index: int, report: Callable[[str], None] | None = None) -> Fitted:
    """Fit the filter and the rival to one column, and forecast every row with both."""
    name = series.names[index]
    forecasts, facts = filter_forecasts(series, index, report)
    if report is not None:
        report(f"{name}: statsmodels")
    rival, seconds = statsmodels_forecasts(series.values[:, index], parts(len(series.times)).train)
    facts["seconds"]["statsmodels"] = round(seconds, 1)
    return Fitted(forecasts, rival, facts)


def interval_widths(series: Series, columns: list[Fitted]) -> dict[int, np.ndarray]:
    """Return half-widths at `LEVEL`, `[N, columns]` by horizon. Every column is a stream."""
    bounds = parts(len(series.times))
    mean, deviation, multipliers = {}, {}, {}
    for lead in LEADS:
        forecasts = [fitted.filter[lead] for fitted in columns]
        mean[lead] = np.stack([forecast.mean for forecast in forecasts], axis=1)
        deviation[lead] = np.stack([forecast.deviation for forecast in forecasts], axis=1)
        z = np.abs((series.values - mean[lead]) / deviation[lead])[bounds.validation]
        multipliers[lead] = np.array([conformal(scores[np.isfinite(scores)], LEVELS) for scores in z.T])
    start, place = bounds.test.start, LEVELS.index(LEVEL)
    widths = adaptive_widths(series.values, mean, deviation, multipliers, start)
    return {lead: width[..., place] for lead, width in widths.items()}


def score_column(y: np.ndarray, fitted: Fitted, widths: dict[int, np.ndarray]) -> dict[str, Any]:
    """Score all methods on one column, by horizon. `widths` `[N]` by horizon are those of the adaptive intervals."""
    bounds = parts(len(y))
    before = slice(0, bounds.test.start)
    scored: dict[str, Any] = {}
    for lead in LEADS:
        mine, theirs = fitted.filter[lead], fitted.rival[lead]
        z = np.abs((y - mine.mean) / mine.deviation)[bounds.validation]
        rows = {
            "filter": score_conformal(y, mine, bounds.validation, bounds.test, widths[lead]),
            "filter, fixed": score_conformal(y, mine, bounds.validation, bounds.test),
            "filter, normal": score_normal(y, mine, conformal(z[np.isfinite(z)], (ONE_SIGMA,))[0], bounds.test),
        }
        for name, lag in (("persistence", lead), ("seasonal naive", DAY)):
            naive = naive_forecasts(y, lag)
            rows[name] = score_points(y, naive, (y - naive)[before], bounds.test)
        rows["statsmodels"] = score_normal(y, theirs, 1.0, bounds.test)
        rows["statsmodels, conformal"] = score_conformal(y, theirs, bounds.validation, bounds.test)
        own = rows["filter"]["each"]
        for row in rows.values():
            each = row.pop("each")
            row["crps_above_filter"] = float((each - own).mean())
            row["standard_error"] = block_error(each - own, WEEK)
        inside = np.abs(y - mine.mean) <= widths[lead]
        rows["filter"]["worst_month"] = worst_share(inside[bounds.test], MONTH)
        scored[str(lead)] = rows
    return scored


def worst_share(inside: np.ndarray, block: int) -> float:
    """Return the coverage of whole consecutive blocks that is furthest from `LEVEL`."""
    count = max(1, len(inside) // block)
    shares = [float(part.mean()) for part in np.array_split(inside, count)]
    return max(shares, key=lambda share: abs(share - LEVEL))


def shown_week(series: Series, columns: list[Fitted], widths: dict[int, np.ndarray]) -> dict[str, Any]:
    """Return a week in the middle of the test third, of the first and the last column, for `draw_week`."""
    test = parts(len(series.times)).test
    middle = (test.start + test.stop) // 2
    rows = slice(middle, min(middle + WEEK, test.stop))
    shown: dict[str, Any] = {}
    for index in sorted({0, len(series.names) - 1}):
        leads = {}
        for lead in LEADS:
            mean, half = columns[index].filter[lead].mean[rows], widths[lead][rows, index]
            leads[str(lead)] = {
                name: np.round(values, 4).tolist()
                for name, values in (("mean", mean), ("low", mean - half), ("high", mean + half))
            }
        shown[series.names[index]] = {"y": np.round(series.values[rows, index], 4).tolist(), "leads": leads}
    start = datetime.fromtimestamp(series.times[middle]).isoformat(sep=" ", timespec="minutes")
    return {"start": start, "level": LEVEL, "columns": shown}


def summary(columns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return, per horizon, the number of columns where the filter's CRPS is best, and its worst coverage."""
    found: dict[str, Any] = {}
    for lead in map(str, LEADS):
        rows = [column["leads"][lead] for column in columns]
        rivals = [name for name in rows[0] if not name.startswith("filter")]
        worst = {
            name: max((row[name]["coverage"] for row in rows), key=lambda share: abs(share - LEVEL))
            for name in ("filter", "filter, fixed", "statsmodels", "statsmodels, conformal")
        }
        found[lead] = {
            "columns": len(rows),
            "better_than": {name: sum(r["filter"]["crps"] < r[name]["crps"] for r in rows) for name in rivals},
            "crps_ratio": {
                name: float(np.exp(np.mean([np.log(r["filter"]["crps"] / r[name]["crps"]) for r in rows])))
                for name in rivals
            },
            "worst_coverage": worst,
        }
    return found


def write_ett(data: str | Path, out: str | Path, plot: str | Path | None = None) -> dict[str, Any]:
    """Score every column of ETTh1, write the document, and draw a week of it."""
    series = load_series(data)
    if not np.isfinite(series.values).all():
        raise ValueError(f"{Path(data).name} has missing values; ETTh1 has none")
    start = time.monotonic()
    with tqdm(range(len(series.names)), unit="column") as bar:
        fitted = [fit_column(series, index, bar.set_postfix_str) for index in bar]
    widths = interval_widths(series, fitted)
    columns = []
    for index, (name, one) in enumerate(zip(series.names, fitted, strict=True)):
        leads = score_column(series.values[:, index], one, {lead: width[:, index] for lead, width in widths.items()})
        columns.append({"name": name, "fit": one.facts, "leads": leads})
    bounds, week = parts(len(series.times)), shown_week(series, fitted, widths)
    document = {
        **origin("rfa bench forecast"),
        "seconds": round(time.monotonic() - start),
        "data": file_hashes([Path(data)]),
        "rows": {name: getattr(bounds, name).stop - getattr(bounds, name).start for name in Parts._fields},
        "level": LEVEL,
        "gamma": {str(lead): gamma_of(lead) for lead in LEADS},
        "config": CONFIG.to_dict(),
        "summary": summary(columns),
        "columns": columns,
        "week": week,
    }
    write_result(Path(out), document)
    if plot is not None:
        draw_week(week, plot)
    return document
