"""Filter one series, and compute its estimates, forecasts and diagnostics."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rfa.data import future_times, key_name, usual_step
from rfa.data.durations import SECONDS, duration
from rfa.data.horizon import USUAL, parse_horizon
from rfa.runtime.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np

    from rfa.data import Key, Series
    from rfa.library.models import Filters
    from rfa.runtime.filters.filter import FilterRuntime
    from rfa.runtime.filters.sequence import FilteredSequence
    from rfa.runtime.outputs import FilterWarning, ForecastChecks
    from rfa.runtime.uncertainty.alarms import Alarm
    from rfa.runtime.uncertainty.interface import Ahead

LEVELS = (0.5, 0.9)
WIDE = "0.9"
# Coverage is printed for one-step forecasts, and for horizons of at least this many rows.
MULTI_STEP = 1.5


@dataclass(frozen=True)
class Filtered:
    """Results of a series, or of one column of a series whose columns were filtered separately.

    Attributes:
        file: Name of the file that contains the series.
        key: Values of the key columns that identify the series in the file.
        series: Series as it was read from the file.
        model: Name of the model.
        sequence: Outputs of the filter.
        warnings: Warnings about the results.
        is_part: Whether the series has several results, one for each column.
        outputs: Results of each row `[N]`, by the names of `rfa.runtime.uncertainty.columns.Columns`.
        outliers: Row numbers of the outliers, counted from 0.
        leads: Horizons of the forecasts from each row, in units of the times.
        lead_names: Horizons as written in the values of `--lead`.
        checks: Checks of the forecasts, such as the coverage of the intervals.
        future_times: Times of the forecast rows, `[M]`.
        forecast: Forecast at `future_times`. None unless requested.
    """

    file: str
    key: Key
    series: Series
    model: str
    sequence: FilteredSequence
    outputs: dict[str, np.ndarray]
    outliers: list[int]
    leads: list[float]
    lead_names: list[str]
    checks: ForecastChecks
    warnings: list[FilterWarning]
    future_times: np.ndarray
    forecast: Ahead | None
    is_part: bool

    @property
    def label(self) -> str:
        """Name of this result: the file, the key, and the column if the columns were filtered separately."""
        parts = [key_name(self.key)] * bool(self.key) + [*self.series.names] * self.is_part
        return ": ".join([self.file, *parts])

    @property
    def forecast_medians(self) -> np.ndarray:
        """Medians of the forecast, `[M, P]`."""
        assert self.forecast is not None
        return self.forecast.moments[:, 2]

    def forecast_bands(self, level: str) -> list[list[np.ndarray]]:
        """Return a list with four arrays `[M]` for each column: the mean, the standard deviation, and the lower and the
        upper bound of the interval of the given level."""
        assert self.forecast is not None
        moments, bands = self.forecast.moments, self.forecast.bands[:, LEVELS.index(float(level))]
        return [
            [moments[:, 0, a], moments[:, 1, a], bands[:, a, 0], bands[:, a, 1]] for a in range(len(self.series.names))
        ]


@dataclass(frozen=True)
class Task:
    """Options of the computation that runs for each series.

    Attributes:
        filters: Function that returns the filters of a series or of its columns.
        leads: Values of the option `--lead`.
        horizon: Value of the option `--horizon`.
        alarm: Options for alarms.
        flag: Fraction of ordinary rows below the threshold for outliers.
        smooth: Whether to also compute smoothed estimates.
        lag: Number of later rows that smoothing uses. None uses all.
        option: Name of the option for the alarm rate, for messages.
        range: Limits of all estimates and forecasts.
        weights: Whether forecasts contain the weights of the models in the mixture.
    """

    filters: Filters
    leads: Sequence[str]
    horizon: str | None
    alarm: Alarm
    flag: float
    smooth: bool
    lag: int | None
    option: str = "--alarm"
    range: tuple[float, float] = (-math.inf, math.inf)
    weights: bool = False

    def check(self) -> None:
        """Check the values of the options before a file is read.

        Raises:
            ValueError: If `--lead` or `--horizon` is invalid.
        """
        for text in self.leads:
            parse_lead(text, 1.0)
        if self.horizon is not None and self.horizon != USUAL:
            parse_horizon(self.horizon)

    def run(self, file: str, key: Key, series: Series) -> list[Filtered]:
        """Filter a series with all columns together, or each column separately. Return one result, or one result for
        each column.

        Raises:
            ValueError: If the filter or the alarm rate does not support the series.
        """
        from rfa.library.models import check_mixture, with_covariates
        from rfa.runtime.uncertainty.alarms import is_most

        if self.alarm.needs_times == "rate" and series.clock is None:
            raise ValueError(
                f"{self.option} is a rate per unit of time, but {file} has no time column; use a fraction of the rows, "
                "such as 0.001"
            )
        if self.alarm.needs_times and series.clock is None:
            raise ValueError(
                f"--mute requires times, but no time column was found in {file}; specify it with --time, or omit --mute"
            )
        if is_most(self.alarm, step := usual_step(series)):
            raise ValueError(
                f"{self.option} requests an alarm for more than half of the rows of {file}, which are {step:,.12g} s "
                "apart; use a lower rate such as 1/week, or a fraction of the rows such as 0.001"
            )
        with suggest_column_option():
            filters = with_covariates(self.filters)
            try:
                parts = filters((file, *key), series)  # models of several files
            except ValueError:
                parts = filters(key, series)
        for _, runtime in parts if self.weights else ():
            check_mixture(runtime, "--weights")
        return [self._run(file, key, part, runtime, is_part=len(parts) > 1) for part, runtime in parts]

    def _run(self, file: str, key: Key, series: Series, runtime: FilterRuntime, *, is_part: bool) -> Filtered:
        import numpy as np

        from rfa.library.filtering import beyond_gate
        from rfa.library.models import covariate_inputs
        from rfa.runtime.filters.ahead import followed
        from rfa.runtime.uncertainty.diagnostics import diagnose
        from rfa.runtime.uncertainty.forecast_checks import summarise
        from rfa.runtime.uncertainty.interface import ReadoutOptions

        step = usual_step(series) or 1.0
        leads = [parse_lead(text, step if series.is_dated else 1.0) for text in self.leads]
        times = np.empty(0) if self.horizon is None else future_times(series, self.horizon)
        distances = (times - series.times[-1]).tolist()
        followed_leads = followed(runtime, step, distances[-1]) if distances else []
        checked = [*leads, *(lead for lead in followed_leads if lead not in leads)]
        sequence = run_filter(
            runtime, series, checked, smooth=self.smooth, lag=self.lag, alarm=self.alarm, range=self.range
        )
        outputs = sequence.columns(series.names, checked)
        seen = (~np.isnan(series.values)).sum(axis=1)
        checks = summarise(sequence.tally, runtime.levels, runtime.observation_size, checked, is_fresh=True)
        forecast = None
        if distances:
            inputs = covariate_inputs(series, ())
            readout = ReadoutOptions(range=self.range, weights=self.weights, utc_offsets=series.utc_offsets)
            known = None if inputs is None else inputs.at(times)
            forecast = runtime.ahead(sequence.state, LEVELS, distances, readout, known)
        return Filtered(
            file=file,
            key=key,
            series=series,
            model=runtime.name,
            sequence=sequence,
            outputs=outputs,
            outliers=np.flatnonzero(beyond_gate(outputs["nis"], seen, self.flag)).tolist(),
            leads=leads,
            lead_names=[text.replace(" ", "") for text in self.leads],
            checks=checks,
            warnings=diagnose(
                runtime, checks, step=sequence.state.step, ahead=distances, is_whole=True, names=series.names
            ),
            future_times=times,
            forecast=forecast,
            is_part=is_part,
        )


@contextmanager
def suggest_column_option() -> Iterator[None]:
    """Context manager that adds a reference to `--column` to the error for too many columns."""
    try:
        yield
    except InvalidInput as error:
        raise ValueError(error.message + (", with --column" if error.code == "too_large" else "")) from None


def run_filter(
    runtime: FilterRuntime,
    series: Series,
    horizon: Sequence[float],
    *,
    smooth: bool = False,
    lag: int | None = None,
    alarm: Alarm | None = None,
    range: tuple[float, float] = (-math.inf, math.inf),
) -> FilteredSequence:
    """Filter a series while showing a progress bar, and return the results.

    Args:
        horizon: Horizons of the forecasts from each row, in units of the times.
        smooth: Whether to also compute smoothed estimates.
        lag: Number of later rows that smoothing uses. None uses all.
        range: Limits of all estimates and forecasts.

    Raises:
        ValueError: If the bundle requires a different number of columns.
    """
    import numpy as np
    from tqdm import tqdm

    from rfa.library.models import covariate_inputs
    from rfa.runtime.compiling import call_on_compile
    from rfa.runtime.filters.sequence import FilteredSequence
    from rfa.runtime.messages import COMPILING
    from rfa.runtime.uncertainty.alarms import NEVER
    from rfa.runtime.uncertainty.interface import FilterOptions

    if series.values.shape[1] != runtime.observation_size:
        raise ValueError(
            f"the file has {series.values.shape[1]} value columns ({', '.join(series.names)}), but bundle "
            f"{runtime.name!r} accepts {runtime.observation_size}; train a filter for this file with `rfa train "
            "filter --data CSV`"
        )
    values, times = np.asarray(series.values, np.float64), np.asarray(series.times, np.float64)
    options = FilterOptions(
        times, values, np.ones(len(times)), LEVELS, tuple(horizon), alarm=alarm or NEVER, smooth=smooth, lag=lag,
        range=range, inputs=covariate_inputs(series, horizon),
        utc_offsets=series.utc_offsets,
    )  # fmt: skip
    # Smoothing advances the bar for each filtered piece, each row of the backward pass and each output row.
    total = 2 * len(times) - (-len(times) // runtime.piece_rows) if smooth else len(times)
    with (
        tqdm(total=total, unit="row", disable=None, leave=False) as bar,
        call_on_compile(lambda: bar.write(COMPILING, file=sys.stderr)),
    ):
        return FilteredSequence.collect(runtime.work(options), bar.update)


def describe_coverage(checks: ForecastChecks) -> list[str]:
    """Return texts with the fraction of values inside their 90 % intervals, one step and several steps ahead. Return an
    empty list if no value was scored."""
    from rfa.runtime.uncertainty.diagnostics import name_steps

    shares = {"one step": checks.coverage.get(WIDE)}
    shares |= {
        f"{name_steps(lead.steps)} steps": lead.coverage.get(WIDE)
        for lead in checks.leads
        if lead.steps is not None and lead.steps >= MULTI_STEP
    }
    parts = [f"{100 * share:.1f} % {ahead} ahead" for ahead, share in shares.items() if share is not None]
    return [f"{100 * float(WIDE):g} % intervals contained {', '.join(parts)}"] if parts else []


def parse_lead(text: str, row: float) -> float:
    """Convert the value of `--lead` to units of the times. A duration with a unit is converted to seconds.

    Args:
        row: Factor for a number without a unit: the usual time step if the times are dates, and 1 otherwise.

    Raises:
        ValueError: If the value is not a positive duration.
    """
    found = duration(text)
    ahead = math.inf if found is None else found[0] * (row if found[1] is None else SECONDS[found[1]])
    if not ahead < math.inf:
        raise ValueError(f"--lead must be a positive duration such as 0.5, 30min, 6h or 1d, got {text!r}")
    return ahead


def parse_range(low: float | None, high: float | None) -> tuple[float, float]:
    """Return the lower and the upper limit that `--min` and `--max` set. If an option is missing, its limit is
    infinite.

    Raises:
        ValueError: If the minimum is not below the maximum.
    """
    from rfa.runtime.uncertainty.input import value_range

    return value_range(low, high, ("--min", "--max"))


def parse_alarm(rate: str | None, tz: str, rules: str | None, option: str = "--alarm", **options: Any) -> Alarm:
    """Return the `Alarm` that the command-line options describe.

    Args:
        rate: Fraction of the rows such as "0.001", or a number per unit of time such as "1/day". None disables alarms.
        tz: Time zone of maintenance windows.
        rules: Names separated by commas. None means all rules.
        option: Name of the option with the rate, for messages.
        options: Other fields of `alarm` in a request.

    Raises:
        ValueError: If the value of an option is invalid, or an option requires a rate and there is none.
    """
    from rfa.runtime.uncertainty.alarms import NEVER, alarm_of

    if rules is not None:
        options["rules"] = [rule.strip() for rule in rules.split(",")]
    if rate is None:
        for name in ("quiet", "rules", "mute"):
            if options.get(name):
                raise ValueError(f"--{name} requires an alarm rate, such as --alarm 1/day")
        return NEVER
    try:
        return alarm_of({"rate": float(rate) if _is_number(rate) else rate, **options}, tz)
    except InvalidInput as error:
        name, _, expected = error.message.partition(" must ")
        name = option if name == "alarm.rate" else f"--{name.removeprefix('alarm.').partition('[')[0]}"
        raise ValueError(f"{name.replace('_', '-')} must {expected}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
