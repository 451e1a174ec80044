"""Filter and forecast recorded data and find unusual rows, with `rfa.filter`, `rfa.forecast` and `rfa.detect`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, NamedTuple, SupportsIndex, TypeVar

import numpy as np

from rfa.data import Key, Series, usual_step
from rfa.data.table import unique_names
from rfa.library.frames import Clock, Column, New, concatenated
from rfa.library.incidents import Detection, expected_columns, incident_columns
from rfa.library.models import Filters, check_mixture, covariate_inputs, filters, notify_on_compile
from rfa.library.options import LEVELS, AlarmRule, OutputOptions, ends
from rfa.library.reading import Table, read
from rfa.library.running import rows_of, run_series
from rfa.library.several_files import takes_files
from rfa.library.spans import Span, as_written
from rfa.runtime.filters.ahead import followed
from rfa.runtime.filters.sequence import FilteredSequence
from rfa.runtime.uncertainty.alarms import SHARES, count_alarms
from rfa.runtime.uncertainty.forecast_checks import ALARMS, ASKED, EXPECTED
from rfa.runtime.uncertainty.input import level_name
from rfa.runtime.uncertainty.interface import Ahead
from rfa.runtime.uncertainty.mute import Window

Frame = TypeVar("Frame")
# Probability that a row lies inside the gate if the filter's model is correct.
OUTLIER: Final = 0.999
SCORES: Final = ("weight", "nis", "anomaly", "confidence")


@takes_files
def filter(
    data: Frame,
    *,
    time: Any = None,
    columns: Sequence[str] | str = (),
    by: Sequence[str] | str = (),
    model: str | Path | None = None,
    system: Mapping[str, Any] | None = None,
    levels: Sequence[float] = LEVELS,
    alarm: AlarmRule | None = None,
    smooth: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
    tz: str = "UTC",
    time_format: str | None = None,
    strict: bool = False,
    missing: Sequence[str | float] | str | float = (),
    known: Sequence[str] | str = (),
) -> Frame:
    """Filter every series in a table. The estimate for a row uses this row and the rows before it.

    Args:
        data: A pandas or polars frame, an Arrow table or stream, an array `[N]` or `[N, P]`, a structured array, or
            the path of a file. Rows may be in any order, which the result preserves. Directories, patterns such as
            "data/*.csv" and lists of files are also accepted; the result then names the file in the column `file`.
        time: Name of the time column. For an array, it may be the times themselves, `[N]`. By default, the column is
            detected from its name or values. If there is none, the row number is the time.
        columns: Columns to filter. The default is all numeric columns.
        by: Columns that identify the series.
        model: "default" (a mixture of "series" and simple forecasts), "series" (a trained network), "auto" (needs no
            training; it is the default if the bundle of "series" is missing), "auto-joint" (scores rows by the
            correlation of their columns), or the name or directory of a bundle.
        system: A linear system given by matrices or as a preset (see the guide to systems), or the models of `rfa.fit`,
            which contain one system for each series. It replaces `model`.
        levels: Levels of the intervals.
        smooth: Whether to also compute smoothed estimates, which use all rows.
        minimum, maximum: Smallest and largest possible value. No estimate or bound lies outside.
        alarm: An alarm rate such as "1/day", a fraction of the rows such as 0.001, or a dictionary with the fields of
            `alarm` in `POST /filter`.
        tz: Time zone of times without a time zone, and of the days and weeks that the default model uses.
        time_format: Format of times given as text, as in `datetime.strptime`.
        strict: Whether to raise an error for rows out of order and cells that are not numbers, instead of sorting the
            rows and skipping the cells.
        missing: Words and numbers that mark missing values. "none" disables the automatic search for such numbers.
        known: Columns whose future values are known, such as prices, promotions and holidays. They may contain numbers,
            yes and no, or words. Only "default" and "series" use them, and only where they have improved the forecasts.

    Returns:
        A table of the same type as `data`; for an array, a structured array. For each column x it contains `x_mean`,
        `x_std`, `x_low90` and `x_high90` (a pair per level), and with `smooth` also `x_smooth_mean` and `x_smooth_std`.
        For each row it contains `weight`, the robust weight in the update; `nis`, the normalised innovation squared;
        `anomaly`, which is 1 minus the probability of a row that is at least as unusual; `confidence`; `alarm`, if
        requested; and `outlier`, whether the row lies outside the 0.999 gate of the filter.

    Raises:
        ValueError: If an argument, column or row is invalid. The message names it and says what to do.
        FileNotFoundError: If there is no such bundle.
    """
    request = OutputOptions.of(levels, (), alarm, limits=(minimum, maximum), tz=tz)
    table = read(data, time, columns, by, tz, time_format, strict=strict, missing=missing, known=known)
    work = functools.partial(_filter_series, table, filters(model, table.columns, system), request, smooth)
    with notify_on_compile():
        found = table.each(work)
    return table.data.joined(_in_row_order(table, found))


def _filter_series(
    table: Table, filters_of: Filters, request: OutputOptions, smooth: bool, key: Key, series: Series
) -> New:
    new: dict[str, Column] = {}
    parts = filters_of(key, series)
    for part, runtime in parts:
        outputs = _output_columns(part, run_series(table, runtime, key, part, request, smooth=smooth)[0], request)
        new |= outputs if len(parts) == 1 else rename_row_outputs(part.names[0], outputs)
    return new


@takes_files
def forecast(
    data: Frame,
    horizon: SupportsIndex | Span,
    *,
    time: Any = None,
    columns: Sequence[str] | str = (),
    by: Sequence[str] | str = (),
    model: str | Path | None = None,
    system: Mapping[str, Any] | None = None,
    levels: Sequence[float] = LEVELS,
    minimum: float | None = None,
    maximum: float | None = None,
    weights: bool = False,
    tz: str = "UTC",
    time_format: str | None = None,
    strict: bool = False,
    missing: Sequence[str | float] | str | float = (),
    known: Sequence[str] | str = (),
) -> Frame:
    """Forecast the rows that follow the last row of each series.

    Args:
        horizon: A number of rows such as 24, or a duration such as "6h" for all rows in it. The rows are one typical
            time step of the series apart. Steps of days, weeks or months follow the calendar of `tz`. Weekdays
            and times of day at which the series never has rows, such as closed days and nights, are skipped.
        minimum, maximum: Smallest and largest possible value. No number in the forecast lies outside.
        weights: Whether to return the weights of the models that "default" combines. Other models have no weights.
        known: Columns whose future values are known. Rows at the end that contain values only in these columns are in
            the future. The forecast starts after the last row with another value, with the times of these rows.
        data, time, columns, by, model, system, levels, tz, time_format, strict, missing: See `rfa.filter`.

    Returns:
        A table of the same type as `data` with one row per forecast time. It contains the key columns, and the time in
        the format of the data, or the row number in `t`. For each column x it contains `x_mean`, `x_std`, `x_median`,
        `x_low90` and `x_high90` (a pair per level), and with `weights` also `x_weight_network`, `x_weight_smoothing`
        and so on.

    Raises:
        ValueError: If an argument, column or row is invalid. The message names it and says what to do.
        FileNotFoundError: If there is no such bundle.
    """
    request = OutputOptions.of(levels, limits=(minimum, maximum), weights=weights)
    table = read(data, time, columns, by, tz, time_format, strict=strict, missing=missing, known=known)
    filters_of = filters(model, table.columns, system)
    work = functools.partial(_forecast_series, table, filters_of, request, as_written(horizon))
    with notify_on_compile():
        found = list(table.each(work).values())
    return _joined(table, found)


class _Forecast(NamedTuple):
    """Forecast of one series.

    Attributes:
        rows: Row number of the last row of the series in the table, for each forecast time.
        clock, new: Columns with the forecast times, and with the forecast.
    """

    rows: np.ndarray
    clock: Clock
    new: New


def _forecast_series(
    table: Table, filters_of: Filters, request: OutputOptions, span: str, key: Key, series: Series
) -> _Forecast:
    times = table.future_times(series, span)
    leads = (times - series.times[-1]).tolist()
    new: dict[str, Column] = {}
    for part, runtime in filters_of(key, series):
        if request.weights:
            check_mixture(runtime, "weights")
        options = request.with_horizon(followed(runtime, usual_step(part) or 1.0, leads[-1]))
        state = run_series(table, runtime, key, part, options)[0].state
        inputs = covariate_inputs(part, ())
        later = None if inputs is None else inputs.at(times)
        readout = request.readout._replace(utc_offsets=series.utc_offsets)
        found = runtime.ahead(state, request.levels, leads, readout, covariates=later)
        new |= _forecast_columns(part, found, request.levels)
    return _Forecast(np.repeat(rows_of(series)[-1], len(times)), table.clock(series, times), new)


def _joined(table: Table, found: Sequence[_Forecast]) -> Any:
    rows = np.concatenate([one.rows for one in found])
    clock = {name: concatenated([one.clock[name] for one in found]) for name in found[0].clock}
    new = {name: np.concatenate([one.new[name] for one in found]) for name in found[0].new}
    return table.data.made(table.by, rows, clock, new)


def _forecast_columns(series: Series, found: Ahead, levels: Sequence[float]) -> New:
    new: dict[str, Column] = {}
    for a, name in enumerate(series.names):
        new |= {f"{name}_{what}": found.moments[:, k, a] for k, what in enumerate(("mean", "std", "median"))}
        for number, level in enumerate(levels):
            new |= dict(zip(ends(name, level), found.bands[:, number, a].T, strict=True))
        new |= {f"{name}_weight_{expert}": found.weights[:, a, k] for k, expert in enumerate(found.experts)}
    return new


@takes_files
def detect(
    data: Frame,
    rate: float | str = 0.001,
    *,
    quiet: int = 0,
    direction: str = "both",
    min_deviation: float = 0.0,
    range: tuple[float | None, float | None] | None = None,
    rules: Sequence[str] = tuple(SHARES),
    mute: Sequence[Window] = (),
    time: Any = None,
    columns: Sequence[str] | str = (),
    by: Sequence[str] | str = (),
    model: str | Path | None = None,
    system: Mapping[str, Any] | None = None,
    levels: Sequence[float] = LEVELS,
    tz: str = "UTC",
    time_format: str | None = None,
    strict: bool = False,
    missing: Sequence[str | float] | str | float = (),
    known: Sequence[str] | str = (),
) -> Detection[Frame]:
    """Find the rows of each series that are unusual given the rows before them, at a requested alarm rate.

    Args:
        rate: A fraction of the rows such as 0.001, or a number per second, minute, hour, day, week, month or year such
            as "1/day". The rate is accurate for series whose behaviour does not change.
        quiet: Number of rows after an alarm during which only a much rarer row raises another alarm.
        direction: "up" reports values above the forecast, "down" values below it, and "both" reports both.
        min_deviation: Minimum distance between the observed value and the forecast for an alarm.
        range: Lowest and highest ordinary value, or None for no limit. Every value outside raises an alarm.
        rules: Rules that may raise an alarm. They share the requested rate. "value" reports an unusual value, "stretch"
            a changed level or spread, "standstill" a value that no longer changes, and "gap" a time without values, at
            the row that ends it.
        mute: Maintenance windows in `tz`, whose rows count as missing, such as "sat 22:00-23:30", "mon-fri
            02:00-03:00", "2026-03-01T22:00/2026-03-02T01:00", or a pair of times in seconds since 1970.
        data, time, columns, by, model, system, levels, tz, time_format, strict, missing, known: See `rfa.filter`.

    Raises:
        ValueError: If an argument, column or row is invalid. The message names it and says what to do.
        FileNotFoundError: If there is no such bundle.
    """
    limits = None if range is None else [None if limit is None else float(limit) for limit in range]
    alarm: dict[str, Any] = {"rate": rate, "quiet": quiet, "direction": direction, "range": limits}
    alarm |= {"min_deviation": float(min_deviation), "rules": list(rules), "mute": list(mute)}
    request = OutputOptions.of(levels, (), alarm, tz=tz)
    table = read(data, time, columns, by, tz, time_format, strict=strict, missing=missing, known=known)
    work = functools.partial(_detect_series, table, filters(model, table.columns, system), request)
    with notify_on_compile():
        return _detection(table, list(table.each(work).values()))


class _Detected(NamedTuple):
    """Alarms and incidents of one series.

    Attributes:
        rows, new: Row numbers of the alarms in the table, and the columns that are added to these rows.
        tally: Counts from which the alarm rate is checked.
        omitted: Number of incidents that are not listed.
        incident_rows, incidents: For each incident, a row number of the series, and the columns of the incidents.
    """

    rows: np.ndarray
    new: New
    tally: np.ndarray
    omitted: int
    incident_rows: np.ndarray
    incidents: New


def _detect_series(table: Table, filters_of: Filters, request: OutputOptions, key: Key, series: Series) -> _Detected:
    step = usual_step(series) or 1.0
    options = request.with_horizon([step])
    parts = [(part, run_series(table, runtime, key, part, options)[0]) for part, runtime in filters_of(key, series)]
    outputs = [result.columns(part.names, (step,)) for part, result in parts]
    alarms = np.flatnonzero(np.any([one["alarm"] == 1 for one in outputs], axis=0))
    new: dict[str, Column] = {}
    for (part, _), one in zip(parts, outputs, strict=True):
        expected = expected_columns(part, one, step, alarms, request.levels)
        named = {**expected, "alarm": one["alarm"][alarms] == 1}
        new |= expected if len(parts) == 1 else rename_row_outputs(part.names[0], named)
    incidents = [
        incident_columns(part, result.incidents.listed, functools.partial(table.clock, series))
        for part, result in parts
    ]
    listed = {name: concatenated([columns[name] for columns in incidents]) for name in incidents[0]}
    count = sum(len(result.incidents.listed) for _, result in parts)
    tally = np.sum([result.tally for _, result in parts], axis=0)
    omitted = sum(result.incidents.omitted for _, result in parts)
    return _Detected(rows_of(series)[alarms], new, tally, omitted, np.repeat(rows_of(series)[:1], count), listed)


def _detection(table: Table, found: Sequence[_Detected]) -> Detection[Any]:
    """Return the result of `detect`, which contains the alarms of all series."""
    rows = np.concatenate([one.rows for one in found])
    new = {name: np.concatenate([one.new[name] for one in found]) for name in found[0].new}
    order = np.argsort(rows, kind="stable")
    incidents = {name: concatenated([one.incidents[name] for one in found]) for name in found[0].incidents}
    names = unique_names([*table.by, *incidents])[len(table.by) :]
    sums = np.sum([one.tally for one in found], axis=0)
    checks = count_alarms(sums[ASKED], sums[EXPECTED], sums[ALARMS])
    return Detection(
        table.data.joined({name: values[order] for name, values in new.items()}, rows[order]),
        table.data.made(
            table.by, np.concatenate([one.incident_rows for one in found]), {},
            dict(zip(names, incidents.values(), strict=True)),
        ),
        int(sums[ALARMS]), float(sums[EXPECTED]), int(sums[ASKED]), None if checks is None else checks.bound,
        sum(one.omitted for one in found),
    )  # fmt: skip


def rename_row_outputs(column: str, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping from names to outputs of a row. The name of the column is a prefix of each name."""
    of_row = (*SCORES, "alarm", "outlier")
    return {f"{column}_{name}" if name in of_row else name: values for name, values in outputs.items()}


def beyond_gate(nis: np.ndarray, seen: np.ndarray, flag: float) -> np.ndarray:
    """Return whether each row lies outside the chi-square gate of the filter, `[N]`.

    The quantile is approximated as in Wilson and Hilferty (1931).

    Args:
        nis: Normalised innovation squared of each row, `[N]`.
        seen: Number of observed components of each row, which is the number of degrees of freedom, `[N]`.
        flag: Probability that a row lies inside the gate.
    """
    spread = 2 / (9 * np.maximum(seen, 1))
    gate: np.ndarray = nis > seen * (1 - spread + NormalDist().inv_cdf(flag) * np.sqrt(spread)) ** 3
    return gate


def _output_columns(series: Series, result: FilteredSequence, request: OutputOptions) -> New:
    outputs = result.columns(series.names)
    new: dict[str, Column] = {}
    for name in series.names:
        new |= {f"{name}_mean": outputs[f"mean.{name}"], f"{name}_std": outputs[f"std.{name}"]}
        for level in request.levels:
            low, high = ends(name, level)
            new |= {
                low: outputs[f"lower.{level_name(level)}.{name}"],
                high: outputs[f"upper.{level_name(level)}.{name}"],
            }
        if result.smoothed is not None:
            new |= {f"{name}_smooth_{part}": outputs[f"smoothed.{part}.{name}"] for part in ("mean", "std")}
    new |= {name: outputs[name] for name in SCORES}
    if request.alarm is not None:
        new["alarm"] = outputs["alarm"] == 1
    new["outlier"] = beyond_gate(outputs["nis"], (~np.isnan(series.values)).sum(axis=1), OUTLIER)
    return new


def _in_row_order(table: Table, found: Mapping[Key, New]) -> New:
    """Return the new columns for all rows of the table. Rows that belong to no series contain NaN or False."""
    columns: dict[str, np.ndarray] = {}
    for key, outputs in found.items():
        for name, values in outputs.items():
            if name not in columns:
                missing = False if values.dtype.kind == "b" else np.nan
                columns[name] = np.full(len(table.data.table), missing, values.dtype)
            columns[name][rows_of(table.series[key])] = values
    return columns
