"""Recorded data in the process: filtered, forecast, and watched for what is rare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, Generic, SupportsIndex, TypeVar

import numpy as np

from rfa.data import Key, Series, usual_step
from rfa.library.frames import Clock, New, concatenated
from rfa.library.models import filters, notify_on_compile
from rfa.library.options import LEVELS, AlarmRule, OutputOptions
from rfa.library.reading import Table, read
from rfa.library.spans import Span, as_written
from rfa.runtime.filters.ahead import followed
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.sequence import FilteredSequence
from rfa.runtime.uncertainty.alarms import count_alarms, is_most
from rfa.runtime.uncertainty.columns import Columns
from rfa.runtime.uncertainty.diagnostics import diagnose
from rfa.runtime.uncertainty.forecast_checks import ALARMS, ASKED, EXPECTED, summarise
from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION, LARGEST_TIME, level_name
from rfa.runtime.uncertainty.interface import FilterOptions

Frame = TypeVar("Frame")
# A row is an outlier if so many are nearer to the filter's estimate where the filter is right.
OUTLIER: Final = 0.999
SCORES: Final = ("weight", "nis", "anomaly", "confidence")


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
    tz: str = "UTC",
    time_format: str | None = None,
    strict: bool = False,
) -> Frame:
    """The data with what a filter believes of each row beside it, given the rows before and at its time.

    Args:
        data: a frame of pandas or polars, a table of Arrow or what gives one, or an array `[N]`, `[N, P]` or with
            fields. Rows may be in any order, and stay where they are.
        time: the column that is the clock; of an array, the times themselves `[N]`. Else the index of dates, or the
            first column that is called like a clock or holds dates; else rows are counted.
        columns: to filter; else all that hold numbers.
        by: the columns whose cells together are the key of a row's series; each series is filtered by itself.
        model: None is "series", a trained network for any numbers ("auto", which needs no training, where numba or the
            bundle is not there); "auto-joint" judges rows by the correlation of their columns; else the name of a
            default bundle, or a bundle's folder.
        system: in the place of `model`: a linear system by its matrices or as a preset, see the guide to systems; or
            the models that `rfa.fit` gave, of which each series takes its own.
        levels: of the intervals.
        alarm: a rate such as "1/day" or 0.001 (of the rows), or all that the server takes as `alarm`; None is none.
        smooth: also the states given all rows, earlier and later.
        tz: where the clock hung whose times name no zone.
        time_format: how times of text are written, as `datetime.strptime` has it.
        strict: refuse rows that run backwards and cells that are no numbers; else they are sorted, and missing.

    Returns:
        The same kind of frame (of an array: one with fields), with these columns added. Of each column x: `x_mean`,
        `x_std`, `x_low90`, `x_high90` (a pair for each level), the estimate of the level behind it; with `smooth`
        `x_smooth_mean`, `x_smooth_std`. Of each row: `weight`, the share of it that was used; `nis`; `anomaly`, 1 minus
        the probability of so strange a row on this series; `confidence`; with `alarm` also `alarm`; and `outlier`,
        beyond the 0.999 gate of the filter.

    Raises:
        ValueError: what is wrong with which argument, column or row, and what to do.
        FileNotFoundError: there is no such bundle.
    """
    request = OutputOptions.of(levels, (), alarm)
    table = read(data, time, columns, by, tz, time_format, strict=strict)
    parts_of = filters(model, table.columns, system)

    def work(key: Key, series: Series) -> New:
        new: dict[str, np.ndarray] = {}
        parts = parts_of(key, series)
        for part, runtime in parts:
            outputs = _output_columns(part, _filtered(table, runtime, key, part, request, smooth=smooth), request)
            new |= outputs if len(parts) == 1 else each_own(part.names[0], outputs)
        return new

    with notify_on_compile():
        found = table.each(work)
    names = list(dict.fromkeys(name for outputs in found.values() for name in outputs))
    return table.data.joined({name: _in_place(table, found, name) for name in names})


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
    tz: str = "UTC",
    time_format: str | None = None,
    strict: bool = False,
) -> Frame:
    """The rows to come, of each series.

    Args:
        horizon: so many rows, 24, or all rows in a span of time, "6h": the usual step of the series apart; where days,
            weeks or months are, by the calendar of `tz`, and without weekends where there were none.
        data, time, columns, by, model, system, levels, tz, time_format, strict: see `rfa.filter`.

    Returns:
        The same kind of frame (of an array: one with fields), with a row for each time: the keys; the clock as it was
        written, where it was the index as such, where there was none rows are counted on in `t`; and of each column x
        the forecast of a measurement, `x_mean`, `x_std`, `x_low90`, `x_high90` (a pair for each level).

    Raises:
        ValueError: what is wrong with which argument, column or row, and what to do.
        FileNotFoundError: there is no such bundle.
    """
    request = OutputOptions.of(levels)
    table = read(data, time, columns, by, tz, time_format, strict=strict)
    parts_of = filters(model, table.columns, system)

    written = as_written(horizon)

    def work(key: Key, series: Series) -> tuple[np.ndarray, Clock, New]:
        times = table.future_times(series, written)
        leads = (times - series.times[-1]).tolist()
        new: dict[str, np.ndarray] = {}
        for part, runtime in parts_of(key, series):
            asked = request.with_horizon(followed(runtime, usual_step(part) or 1.0, leads[-1]))
            result = _filtered(table, runtime, key, part, asked)
            ahead = runtime.ahead(result.state, request.levels, leads)
            for a, name in enumerate(part.names):
                new |= {f"{name}_mean": ahead.moments[:, 0, a], f"{name}_std": ahead.moments[:, 1, a]}
                for number, level in enumerate(request.levels):
                    new |= dict(zip(ends(name, level), ahead.bands[:, number, a].T, strict=True))
        return np.repeat(_rows(series)[-1], len(times)), table.clock(series, times), new

    with notify_on_compile():
        found = list(table.each(work).values())
    rows = np.concatenate([rows for rows, _, _ in found])
    clock = {name: concatenated([times[name] for _, times, _ in found]) for name in found[0][1]}
    new = {name: np.concatenate([outputs[name] for _, _, outputs in found]) for name in found[0][2]}
    return table.data.made(table.by, rows, clock, new)


@dataclass(frozen=True, repr=False)
class Detection(Generic[Frame]):
    """What `rfa.detect` found.

    Attributes:
        rows: those that are alarms: the data's own columns; of each column x `x_expected`, what was forecast for it,
            with `x_expected_low90` and `x_expected_high90` (a pair for each level); and `anomaly`, 1 minus the
            probability of so strange a row on this series. Of columns that have models of their own each has an
            `x_anomaly`, and `x_alarm`, whether it was this one.
        raised: how many.
        expected: how many the rate asks for of these rows.
        observations: rows that could be one.
        bound: what the rate may be by these rows, 95 %, a share of the observations; None where there were none.
    """

    rows: Frame
    raised: int
    expected: float
    observations: int
    bound: tuple[float, float] | None

    def __str__(self) -> str:
        return f"{self.observations:,} observations, {self.raised} of them alarms, {self.expected:.3g} expected"

    def __repr__(self) -> str:
        return f"{self}\n{self.rows!r}"


def detect(
    data: Frame,
    rate: float | str = 0.001,
    *,
    quiet: int = 0,
    direction: str = "both",
    min_deviation: float = 0.0,
    range: tuple[float | None, float | None] | None = None,
    time: Any = None,
    columns: Sequence[str] | str = (),
    by: Sequence[str] | str = (),
    model: str | Path | None = None,
    system: Mapping[str, Any] | None = None,
    levels: Sequence[float] = LEVELS,
    tz: str = "UTC",
    time_format: str | None = None,
    strict: bool = False,
) -> Detection[Frame]:
    """The rows that are as rare on their series as a rate says, by what it had shown before each.

    Args:
        rate: a share of the rows such as 0.001, or a number per second, minute, hour, day or week: "1/day". It holds on
            series that stay as they are.
        quiet: for so many rows after an alarm only what is rarer by far is another.
        direction: "up" above what was expected, "down" below it, or "both".
        min_deviation: no alarm nearer to what was expected.
        range: lowest and highest value, None is no limit: what lies outside is an alarm however rare it is.
        data, time, columns, by, model, system, levels, tz, time_format, strict: see `rfa.filter`.

    Returns:
        The rows, and beside them how many were expected.

    Raises:
        ValueError: what is wrong with which argument, column or row, and what to do.
        FileNotFoundError: there is no such bundle.
    """
    rule = {"rate": rate, "quiet": quiet, "direction": direction, "min_deviation": float(min_deviation)}
    limits = None if range is None else [None if limit is None else float(limit) for limit in range]
    request = OutputOptions.of(levels, (), {**rule, "range": limits})
    table = read(data, time, columns, by, tz, time_format, strict=strict)
    parts_of = filters(model, table.columns, system)

    def work(key: Key, series: Series) -> tuple[np.ndarray, New, np.ndarray]:
        step = usual_step(series) or 1.0
        asked = request.with_horizon([step])
        parts = [(part, _filtered(table, runtime, key, part, asked)) for part, runtime in parts_of(key, series)]
        outputs = [output_columns(part, result, (step,)) for part, result in parts]
        at = np.flatnonzero(np.any([one["alarm"] == 1 for one in outputs], axis=0))
        new: dict[str, np.ndarray] = {}
        for (part, _), one in zip(parts, outputs, strict=True):
            expected = _expected(part, one, step, at, request)
            is_own = {**expected, "alarm": one["alarm"][at] == 1}
            new |= expected if len(parts) == 1 else each_own(part.names[0], is_own)
        return _rows(series)[at], new, np.sum([result.tally for _, result in parts], axis=0)

    with notify_on_compile():
        found = list(table.each(work).values())
    rows = np.concatenate([rows for rows, _, _ in found])
    new = {name: np.concatenate([outputs[name] for _, outputs, _ in found]) for name in found[0][1]}
    order = np.argsort(rows, kind="stable")
    sums = np.sum([tally for _, _, tally in found], axis=0)
    checks = count_alarms(sums[ASKED], sums[EXPECTED], sums[ALARMS])
    return Detection(
        table.data.joined({name: values[order] for name, values in new.items()}, rows[order]),
        int(sums[ALARMS]), float(sums[EXPECTED]), int(sums[ASKED]), None if checks is None else checks.bound,
    )  # fmt: skip


def ends(name: str, level: float) -> tuple[str, str]:
    """What the ends of a column's interval are called: those of 0.9 `x_low90` and `x_high90`."""
    share = f"{100 * level:.12g}"
    return f"{name}_low{share}", f"{name}_high{share}"


def each_own(column: str, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a column that is filtered by itself: what is of the row elsewhere is of this column, by its
    name."""
    of_row = (*SCORES, "alarm", "outlier")
    return {f"{column}_{name}" if name in of_row else name: values for name, values in outputs.items()}


def beyond_gate(nis: np.ndarray, seen: np.ndarray, flag: float) -> np.ndarray:
    """Whether the nis `[N]` of a row is rarer than 1 - flag where the filter is right, which is chi-square of the
    components seen `[N]` (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * np.maximum(seen, 1))
    gate: np.ndarray = nis > seen * (1 - spread + NormalDist().inv_cdf(flag) * np.sqrt(spread)) ** 3
    return gate


def check_sizes(series: Series, first_row: int = 1) -> None:
    """Hold values to the largest that filters take.

    Args:
        first_row: what the first row of the table is called.

    Raises:
        ValueError: naming the row and the column.
    """
    for row, a in np.argwhere(np.abs(series.values) > LARGEST_OBSERVATION)[:1].tolist():
        place = row if series.rows is None else series.rows[row]
        raise ValueError(
            f"row {first_row + place}, column {series.names[a]!r}: at most {LARGEST_OBSERVATION:g} in size is taken, "
            f"got {series.values[row, a]:g}; take a larger unit, or leave the cell empty"
        )


def _filtered(
    table: Table, runtime: FilterRuntime, key: Key, series: Series, request: OutputOptions, *,
    smooth: bool = False,
) -> FilteredSequence:  # fmt: skip
    rule = request.rule
    if rule.per_time and series.clock is None:
        raise ValueError(
            "the rate of alarms is per time, and the data have no time column: give a share of the rows, 0.001"
        )
    for row in np.flatnonzero(np.abs(series.times) > LARGEST_TIME)[:1].tolist():
        raise ValueError(f"row {_rows(series)[row] + 1}: a time of at most {LARGEST_TIME:g} in size is taken")
    if is_most(rule, step := usual_step(series)):
        raise ValueError(
            f"the rate of alarms is more than half of the rows, which are {step:,.12g} s apart: give a rarer one such "
            'as "1/week", or a share of the rows, 0.001'
        )
    check_sizes(series)
    options = FilterOptions(
        series.times, series.values, np.ones(len(series.times)), request.levels, request.horizon,
        alarm=rule, smooth=smooth,
    )  # fmt: skip
    result = FilteredSequence.collect(runtime.work(options))
    size, horizon = runtime.observation_size, options.horizon
    checks = summarise(result.tally, runtime.levels, size, horizon, is_fresh=True)
    if found := diagnose(runtime, checks, step=result.state.step):
        table.diagnostics.setdefault(key, []).extend(found)
    return result


def output_columns(series: Series, result: FilteredSequence, horizon: Sequence[float] = ()) -> dict[str, np.ndarray]:
    """The results of each row, by the names of `Columns`."""
    found = Columns(series.names, None, horizon)
    for piece in result.pieces:
        found.add(piece)
    if result.smoothed is not None:
        found.add_smoothed(result.smoothed)
    return found.arrays()


def _output_columns(series: Series, result: FilteredSequence, request: OutputOptions) -> New:
    outputs = output_columns(series, result)
    new: dict[str, np.ndarray] = {}
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


def _expected(
    series: Series, outputs: dict[str, np.ndarray], step: float, at: np.ndarray, request: OutputOptions
) -> New:
    """What was forecast for these rows. The width of its interval is that of a usual step."""
    new: dict[str, np.ndarray] = {}
    before, is_first = np.maximum(at - 1, 0), at == 0
    for a, name in enumerate(series.names):
        expected = series.values[at, a] - outputs[f"innovation.{name}"][at]
        new[f"{name}_expected"] = np.where(is_first, np.nan, expected)
        for level in request.levels:
            lower, upper = (
                outputs[f"forecast.{step!r}.{end}.{level_name(level)}.{name}"] for end in ("lower", "upper")
            )
            half = (upper - lower)[before] / 2
            low, high = ends(f"{name}_expected", level)
            new |= {low: new[f"{name}_expected"] - half, high: new[f"{name}_expected"] + half}
    new["anomaly"] = outputs["anomaly"][at]
    return new


def _rows(series: Series) -> np.ndarray:
    assert series.rows is not None  # of a frame
    return series.rows


def _in_place(table: Table, found: dict[Any, New], name: str) -> np.ndarray:
    """A column of all rows: NaN, or not so, in those of no series."""
    kind = next(outputs[name].dtype for outputs in found.values() if name in outputs)
    column = np.full(len(table.data.table), False if kind.kind == "b" else np.nan, kind)
    for key, outputs in found.items():
        column[_rows(table.series[key])] = outputs[name]
    return column
