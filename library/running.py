"""Filter one series of a caller's data."""

from __future__ import annotations

import numpy as np

from rfa.data import Key, Series, usual_step
from rfa.library.models import covariate_inputs
from rfa.library.options import OutputOptions
from rfa.library.reading import Table
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.sequence import FilteredSequence
from rfa.runtime.outputs import ForecastChecks
from rfa.runtime.uncertainty.alarms import is_most
from rfa.runtime.uncertainty.diagnostics import diagnose
from rfa.runtime.uncertainty.forecast_checks import summarise
from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION, LARGEST_TIME
from rfa.runtime.uncertainty.interface import FilterOptions


def run_series(
    table: Table, runtime: FilterRuntime, key: Key, series: Series, request: OutputOptions, *,
    smooth: bool = False,
) -> tuple[FilteredSequence, ForecastChecks]:  # fmt: skip
    """Filter a series, and return the results and the checks of its forecasts. The diagnostics of the results are added
    to the table.

    Raises:
        ValueError: If the filter or the alarm rate does not support the series.
    """
    alarms = request.alarms
    if alarms.needs_times and series.clock is None:
        needs, remedy = (
            ("an alarm rate per unit of time", "use a fraction of the rows such as 0.001")
            if alarms.needs_times == "rate"
            else ("mute", "leave out mute")
        )
        raise ValueError(f"{needs} requires times, but no time column was found; specify it with `time`, or {remedy}")
    for row in np.flatnonzero(np.abs(series.times) > LARGEST_TIME)[:1].tolist():
        raise ValueError(f"row {rows_of(series)[row] + 1}: times must be at most {LARGEST_TIME:g} in absolute value")
    if is_most(alarms, step := usual_step(series)):
        raise ValueError(
            f"the alarm rate requests an alarm for more than half of the rows, which are {step:,.12g} s apart; use a "
            'lower rate such as "1/week", or a fraction of the rows such as 0.001'
        )
    if runtime.covariates:
        runtime.check_input(alarms, None, is_given=False)
    check_sizes(series)
    options = FilterOptions(
        series.times, series.values, np.ones(len(series.times)), request.levels, request.horizon,
        alarm=alarms, smooth=smooth, range=request.range, inputs=covariate_inputs(series, request.horizon),
        utc_offsets=series.utc_offsets,
    )  # fmt: skip
    result = FilteredSequence.collect(runtime.work(options))
    size, horizon = runtime.observation_size, options.horizon
    checks = summarise(result.tally, runtime.levels, size, horizon, is_fresh=True)
    if found := diagnose(runtime, checks, step=result.state.step, names=series.names):
        table.diagnostics.setdefault(key, []).extend(found)
    return result, checks


def check_sizes(series: Series, first_row: int = 1) -> None:
    """Check that no value exceeds LARGEST_OBSERVATION in absolute value.

    Args:
        series: The series to check.
        first_row: Number that messages use for the first row of the table.

    Raises:
        ValueError: If a value is larger. The message names its row and column.
    """
    if series.covariates is not None:
        for row, k in np.argwhere(np.abs(series.covariates.values) > LARGEST_OBSERVATION)[:1].tolist():
            name, size = series.covariates.names[k], series.covariates.values[row, k]
            raise ValueError(
                f"column {name!r}: values must be at most {LARGEST_OBSERVATION:g} in absolute value, got {size:g}"
            )
    for row, a in np.argwhere(np.abs(series.values) > LARGEST_OBSERVATION)[:1].tolist():
        place = row if series.rows is None else series.rows[row]
        raise ValueError(
            f"row {first_row + place}, column {series.names[a]!r}: values must be at most {LARGEST_OBSERVATION:g} in "
            f"absolute value, got {series.values[row, a]:g}; use a larger unit, or leave the cell empty"
        )


def rows_of(series: Series) -> np.ndarray:
    """Return the row numbers of a series in the table."""
    assert series.rows is not None  # always set for a frame
    return series.rows
