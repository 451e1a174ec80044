"""`rfa.filter`, `rfa.forecast` and `rfa.detect`: recorded data filtered, forecast, and checked for rare rows."""

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
from rfa.library.incidents import Detection, incident_columns
from rfa.library.models import Filters, check_mixture, covariate_inputs, filters, notify_on_compile
from rfa.library.options import LEVELS, AlarmRule, OutputOptions
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
# Share of rows inside the gate, where the filter is right.
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
    """Filter the series in a table; the estimate of a row uses that row and those before it.

    Args:
        data: a pandas or polars frame, an Arrow table or stream, an array `[N]`, `[N, P]` or with fields; or the path
            of a file. Rows may be in any order, and keep it. Folders, patterns such as "data/*.csv" and lists of files
            give one result with the name of the file in the column `file`.
        time: the time column; of an array, the times themselves `[N]`. Default: found by name or content, else counted.
        columns, by: the columns to filter, by default all numeric ones; the columns whose cells label series.
        model: "default" (a mixture of "series" and simple forecasts), "series" (a trained network), "auto" (untrained;
            the default without the bundle of "series"), "auto-joint" (scores rows by the correlation of their columns),
            or the name or folder of a bundle.
        system: instead of `model`, a linear system by matrices or as a preset (see the guide to systems), or the models
            of `rfa.fit`, of which each series takes its own.
        levels, smooth: of the intervals; also estimate each row from all rows.
        minimum, maximum: of possible values: no estimate or bound lies outside.
        alarm: a rate such as "1/day" or 0.001 (of the rows), or the fields of the server's `alarm`.
        tz, time_format: the zone of times that name none, and of the days and weeks that the default model follows; the
            format of times of text, as in `datetime.strptime`.
        strict: raise for rows out of order and cells that are no numbers, instead of sorting and skipping them.
        missing: words and numbers that are missing values; "none" keeps numbers that look like these.
        known: columns whose future is known, such as prices, promotions and holidays: numbers, yes and no, or words.
            Only "default" and "series" use them, where they have helped.

    Returns:
        The same kind of frame (of an array, one with fields) with, for each column x, `x_mean`, `x_std`, `x_low90`,
        `x_high90` (a pair per level), and with `smooth` `x_smooth_mean`, `x_smooth_std`; for each row `weight`, the
        share that was used; `nis`; `anomaly`, 1 minus the probability of so unusual a row; `confidence`; `alarm`, if
        requested; and `outlier`, outside the 0.999 gate of the filter.

    Raises:
        ValueError: If an argument, column or row is invalid; the message names it and says what to do.
        FileNotFoundError: there is no such bundle.
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
    """Forecast the next rows of each series.

    Args:
        horizon: a number of rows such as 24, or a span of time such as "6h" for all rows in it. Rows are the usual step
            apart; steps of days, weeks or months follow the calendar of `tz`, without weekends if there were none.
        minimum, maximum: of possible values: no number of the forecast lies outside.
        weights: whether to return the weights of the models that "default" mixes; other models have none.
        known: columns whose future is known. Rows at the end that have values in these columns alone are the future:
            the forecast begins after the last row with another value.
        data, time, columns, by, model, system, levels, tz, time_format, strict, missing: see `rfa.filter`.

    Returns:
        The same kind of frame with a row for each time: the keys; the time as written, or counted in `t`; and for
        each column x the forecast `x_mean`, `x_std`, `x_median`, `x_low90`, `x_high90` (a pair per level), and with
        `weights` `x_weight_network`, `x_weight_smoothing` and so on.

    Raises:
        ValueError: If an argument, column or row is invalid; the message names it and says what to do.
        FileNotFoundError: there is no such bundle.
    """
    request = OutputOptions.of(levels, limits=(minimum, maximum), weights=weights)
    table = read(data, time, columns, by, tz, time_format, strict=strict, missing=missing, known=known)
    filters_of, span = filters(model, table.columns, system), as_written(horizon)

    def work(key: Key, series: Series) -> tuple[np.ndarray, Clock, New]:
        times = table.future_times(series, span)
        leads = (times - series.times[-1]).tolist()
        new: dict[str, Column] = {}
        for part, runtime in filters_of(key, series):
            if weights:
                check_mixture(runtime, "weights")
            options = request.with_horizon(followed(runtime, usual_step(part) or 1.0, leads[-1]))
            state = run_series(table, runtime, key, part, options)[0].state
            inputs = covariate_inputs(part, ())
            later = None if inputs is None else inputs.at(times)
            readout = request.readout._replace(utc_offsets=series.utc_offsets)
            found = runtime.ahead(state, request.levels, leads, readout, covariates=later)
            new |= _forecast_columns(part, found, request.levels)
        return np.repeat(rows_of(series)[-1], len(times)), table.clock(series, times), new

    with notify_on_compile():
        found = list(table.each(work).values())
    rows = np.concatenate([rows for rows, _, _ in found])
    clock = {name: concatenated([times[name] for _, times, _ in found]) for name in found[0][1]}
    new = {name: np.concatenate([outputs[name] for _, _, outputs in found]) for name in found[0][2]}
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
    """Find the rows that are as rare on their series as a rate says, given the rows before each.

    Args:
        rate: a share of the rows such as 0.001, or a number per second, minute, hour, day, week or month: "1/day". It
            holds for series whose behaviour does not change.
        quiet: for this many rows after an alarm only a much rarer row raises another.
        direction: "up" above the forecast, "down" below it, or "both".
        min_deviation: the least distance from the forecast of an alarm.
        range: lowest and highest value, None for no limit: a value outside is an alarm, however common.
        rules: what may be an alarm, with a share of the rate each: an unusual "value"; a "stretch" of changed level or
            spread; a "standstill"; and a "gap" without values, at the row that ends it.
        mute: maintenance windows in `tz`, whose rows count as missing: "sat 22:00-23:30", "mon-fri 02:00-03:00",
            "2026-03-01T22:00/2026-03-02T01:00", or two times in seconds since 1970.
        data, time, columns, by, model, system, levels, tz, time_format, strict, missing, known: see `rfa.filter`.

    Raises:
        ValueError: If an argument, column or row is invalid; the message names it and says what to do.
        FileNotFoundError: there is no such bundle.
    """
    alarm: dict[str, Any] = {
        "rate": rate,
        "quiet": quiet,
        "direction": direction,
        "min_deviation": float(min_deviation),
    }
    limits = None if range is None else [None if limit is None else float(limit) for limit in range]
    alarm |= {"range": limits, "rules": list(rules), "mute": list(mute)}
    request = OutputOptions.of(levels, (), alarm, tz=tz)
    table = read(data, time, columns, by, tz, time_format, strict=strict, missing=missing, known=known)
    work = functools.partial(_detect_series, table, filters(model, table.columns, system), request)
    with notify_on_compile():
        found = list(table.each(work).values())
    return _detection(table, found)


class _Detected(NamedTuple):
    """Rows of the alarms of a series, new columns of these, and its tally; and of its incidents a row and columns."""

    rows: np.ndarray
    new: New
    tally: np.ndarray
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
        expected = _expected_columns(part, one, step, alarms, request.levels)
        named = {**expected, "alarm": one["alarm"][alarms] == 1}
        new |= expected if len(parts) == 1 else rename_row_outputs(part.names[0], named)
    incidents = [
        incident_columns(part, result.incidents.listed, functools.partial(table.clock, series))
        for part, result in parts
    ]
    listed = {name: concatenated([columns[name] for columns in incidents]) for name in incidents[0]}
    count = sum(len(result.incidents.listed) for _, result in parts)
    tally = np.sum([result.tally for _, result in parts], axis=0)
    return _Detected(rows_of(series)[alarms], new, tally, np.repeat(rows_of(series)[:1], count), listed)


def _detection(table: Table, found: Sequence[_Detected]) -> Detection[Any]:
    """The detection of all series."""
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
    )  # fmt: skip


def ends(name: str, level: float) -> tuple[str, str]:
    """Names of the ends of a column's interval: those of level 0.9 are `x_low90` and `x_high90`."""
    share = f"{100 * level:.12g}"
    return f"{name}_low{share}", f"{name}_high{share}"


def rename_row_outputs(column: str, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Prefix the outputs of a row with the column, for columns that are filtered separately."""
    of_row = (*SCORES, "alarm", "outlier")
    return {f"{column}_{name}" if name in of_row else name: values for name, values in outputs.items()}


def beyond_gate(nis: np.ndarray, seen: np.ndarray, flag: float) -> np.ndarray:
    """Whether a nis `[N]` is rarer than 1 - flag under the filter: chi-square of the components seen `[N]` (Wilson and
    Hilferty 1931)."""
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


def _expected_columns(
    series: Series, outputs: dict[str, np.ndarray], step: float, rows: np.ndarray, levels: Sequence[float]
) -> New:
    """The forecasts of these rows, with intervals as wide as those one usual step ahead."""
    new: dict[str, Column] = {}
    before, is_first = np.maximum(rows - 1, 0), rows == 0
    for a, name in enumerate(series.names):
        expected = np.where(is_first, np.nan, series.values[rows, a] - outputs[f"innovation.{name}"][rows])
        new[f"{name}_expected"] = expected
        for level in levels:
            lower, upper = (
                outputs[f"forecast.{step!r}.{end}.{level_name(level)}.{name}"] for end in ("lower", "upper")
            )
            half = (upper - lower)[before] / 2
            new |= dict(zip(ends(f"{name}_expected", level), (expected - half, expected + half), strict=True))
    new["anomaly"] = outputs["anomaly"][rows]
    return new


def _in_row_order(table: Table, found: Mapping[Key, New]) -> New:
    """The new columns of all rows; NaN or False in rows of no series."""
    columns: dict[str, np.ndarray] = {}
    for key, outputs in found.items():
        for name, values in outputs.items():
            if name not in columns:
                missing = False if values.dtype.kind == "b" else np.nan
                columns[name] = np.full(len(table.data.table), missing, values.dtype)
            columns[name][rows_of(table.series[key])] = values
    return columns
