"""Fit structural models to many series (`rfa fit`).

A series with dates that covers at least three weeks may get a calendar, which is a weekly pattern in local time with
holidays. The structural model is then fitted to the residuals. The calendar is used if it predicts the last quarter of
the series better than seasons do. The chosen model is then fitted to the whole series.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from rfa.data import Key, Series, key_name
from rfa.fitting.calendar import days_for, fit_pattern, pattern_at
from rfa.fitting.column_models import StructuralConfig, describe_fit, joint_config, periods_of
from rfa.fitting.maximum_likelihood import (
    MIN_GAIN,
    Column,
    Fit,
    Limits,
    Report,
    fit_column,
    fit_structure,
    make_column,
    standard_errors,
)
from rfa.fitting.parallel import fit_each
from rfa.fitting.progress import SavedFits
from rfa.fitting.structural_model import Structure, matrices, robustness
from rfa.runtime.filters.calendar import DAY_SECONDS, Calendar, Days
from rfa.runtime.filters.fitted import Models, series_label
from rfa.runtime.filters.system import System

# Fraction of a series to which models are fitted first. Modes are chosen by the likelihood of the rest. The chosen
# model is then fitted to the whole series.
FITTED_SHARE = 0.75
# Maximum number of harmonics per season, without and with a calendar. A system can have up to 64 states.
MOST_HARMONICS, BESIDE_CALENDAR = 8, 4
# Holidays are listed for this many years after the last row.
YEARS_AHEAD = 10
# Suffix of the file that stores completed series.
FITTED = ".fitted"


def fit_series(
    series: Mapping[Key, Series],
    *,
    zone: str = "UTC",
    country: str | None = None,
    holidays: Sequence[str] = (),
    config: StructuralConfig | None = None,
    report: Report | None = None,
    keep: Path | None = None,
) -> Models:
    """Fit a model to every column of every series, and return the models.

    Args:
        series: Series by key, as returned by `rfa.data.read_frame`. The key of a single series is ().
        zone: Time zone of calendar days.
        country: Country (US) or region (DE-BY) whose holidays get their own pattern. Requires the package `holidays`.
        holidays: Additional holidays, such as 2026-12-24.
        config: Settings of the fits.
        report: Function that is called after every step with a progress message and the completed fraction of a series'
            work.
        keep: File in which completed series are saved. After an interruption, the same call reads them and fits only
            the others.

    Raises:
        ValueError: If an argument is invalid, or no series can be fitted.
        Stopped: If a signal arrived. Completed series are saved.
    """
    chosen = StructuralConfig() if config is None else config
    items = _columns_by_label(series)
    listed = _holidays(list(items.values()), country, holidays)
    clock = Days(zone, 1, listed)  # checks the zone and the dates

    def fit(one: Series, advance: Report) -> dict[str, Any]:
        return _fit_one(one, clock, chosen, advance)

    request = [asdict(chosen), zone, listed, sorted(items)]
    arrays = [array for _, one in sorted(items.items()) for array in (one.times, one.values)]
    saved = None if keep is None else SavedFits(keep, request, arrays)
    failed: dict[str, str] = {}
    found = fit_each(
        items, fit, report=report, saved=saved, refused=lambda name, error: failed.update({name: str(error)})
    )
    if not found:
        raise ValueError(next(iter(failed.values()), "there are no series to fit; pass at least one"))
    parts = {part: {name: one[part] for name, one in found.items()} for part in ("system", "fit")}
    return Models(parts["system"], parts["fit"], failed)


def _columns_by_label(series: Mapping[Key, Series]) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for key, one in series.items():
        for part in one.by_column():
            label = series_label(key_name(key), part.names[0], is_only=len(one.names) == 1)
            if label in found:
                raise ValueError(f"series names must be unique, got {label!r} twice")
            found[label] = part
    return found


def fit_to(out: Path, series: Mapping[Key, Series], **how: Any) -> Models:
    """Fit models as `fit_series` does, write them to a JSON file, and return them. After an interruption, the same call
    continues.

    Args:
        out: JSON file to write.
        series: Series by key. See `fit_series`.
        how: Keyword arguments of `fit_series`.

    Raises:
        ValueError: If the file cannot be written, which is checked before fitting, or for a reason that `fit_series`
            states.
    """
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ValueError(f"{str(out)!r} cannot be written; its directory must exist and be writable")
    keep = out.with_name(out.name + FITTED)
    models = fit_series(series, keep=keep, **how)
    models.save(out)
    keep.unlink(missing_ok=True)
    return models


def _holidays(series: Sequence[Series], country: str | None, more: Sequence[str]) -> tuple[str, ...]:
    """Return the dates of holidays in the years of the series and in the next `YEARS_AHEAD` years."""
    if country is None:
        return tuple(more)
    dated = [one for one in series if one.is_dated and len(one.times)]
    if not dated:
        raise ValueError("country selects holidays by date, so the series must have dates as times")
    try:
        import holidays
    except ImportError:
        raise ValueError("country needs the package holidays; install it with pip install 'rfa-server[fit]'") from None
    first, last = min(one.times[0] for one in dated), max(one.times[-1] for one in dated)
    years = range(datetime.fromtimestamp(first, UTC).year, datetime.fromtimestamp(last, UTC).year + YEARS_AHEAD + 1)
    name, _, part = country.partition("-")
    try:
        found = holidays.country_holidays(name, subdiv=part or None, years=years)
    except NotImplementedError as error:
        raise ValueError(f"country {country!r}: {error}") from None
    return tuple(sorted({*more, *(day.isoformat() for day in found)}))


def _fit_one(series: Series, clock: Days, config: StructuralConfig, report: Report) -> dict[str, Any]:
    """Fit a series with one column. Return its system and the description of the fit."""
    start = time.monotonic()
    times, values, name = series.times, series.values[:, 0], series.names[0]
    fitted = int(FITTED_SHARE * len(times))
    column = make_column(name, times, values, fitted)
    limits = Limits(min(config.max_harmonics, MOST_HARMONICS), config.max_free_modes, config.iterations, config.inner)
    periods = periods_of(column, times[:fitted], values[:fitted], config)
    days = days_for(times, fitted, clock.zone, clock.holidays) if series.is_dated else None
    if days is not None:
        fewer = replace(limits, harmonics=min(limits.harmonics, BESIDE_CALENDAR))
        rest = _without_pattern(column, times, days), [p for p in [DAY_SECONDS / column.time_step] if p > 2], fewer
        if _validation(*rest) > _validation(column, periods, limits) + MIN_GAIN:
            column, periods, limits = rest
        else:
            days = None
    search = fit_column(column, periods, limits, lambda line, share: report(line, 0.8 * share))
    whole = make_column(name, times, values, len(times))
    pattern: np.ndarray | None = None
    if days is not None:
        pattern = fit_pattern(times, whole.y, days)
        whole = replace(whole, y=whole.y - pattern_at(pattern, days.nodes(times)))
    # The spread of the whole series differs slightly from that of its first part, but only affects the start of the
    # search.
    final = fit_structure(whole, search.structure, limits, search.values())
    errors = standard_errors(whole, final, limits.inner)
    report("whole series", 0.2)
    system = _system(whole, final, limits.inner)
    if days is not None and pattern is not None:
        shaped = (whole.spread * pattern).reshape(1, days.types, days.slots)
        system = {**system, "calendar": Calendar(days, shaped).to_document()}
    final_fit = replace(final, validation=search.validation, errors=errors, tried=search.tried)
    record = describe_fit(whole, replace(final_fit, seconds=time.monotonic() - start))
    return {"system": dict(System.from_document(system).document), "fit": record}


def _without_pattern(column: Column, times: np.ndarray, days: Days) -> Column:
    """Fit the weekly pattern to the training part of a column, and return the column minus the pattern."""
    pattern = fit_pattern(times[: column.fitted], column.y[: column.fitted], days)
    return replace(column, y=column.y - pattern_at(pattern, days.nodes(times)))


def _validation(column: Column, periods: list[float], limits: Limits) -> float:
    """Return the log-likelihood of the validation part under a model with all candidate seasons."""
    seasons = tuple((period, max(1, min(limits.harmonics, int(period / 2)))) for period in periods)
    structure = Structure(seasons=seasons, relaxations=min(1, limits.free_modes))
    return fit_structure(column, structure, limits).validation


def _system(column: Column, fit: Fit, inner: int) -> dict[str, Any]:
    """Return the system of a column as JSON types."""
    found = matrices(fit.structure, fit.raw, step=column.time_step, center=column.center, spread=column.spread)
    config = joint_config([found], np.eye(1), "nothing", robustness(fit.structure, fit.raw), inner)
    return dict(System.of(config).document)
