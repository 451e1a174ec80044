"""What `rfa filter` does with one series: filter it, forecast what comes next, check what was said."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rfa.data import future_times, key_name, usual_step
from rfa.data.durations import SECONDS, duration

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
BEYOND = 1.5  # typical lags: from there on it is further ahead than a step


@dataclass(frozen=True)
class Filtered:
    """A series and what is told about it.

    Attributes:
        file, key: where it comes from, and by which cells of its table.
        is_part: it is one of several columns of these, each filtered by itself.
        columns: what is told of each row, by the names of `Columns`.
        outliers: rows, from 0.
        leads: forecasts that are told of each row, in units of the times.
        ahead: times of the rows that come next, `[M]`.
        forecast: what is told of these, in the order of `ahead`; None where none were asked for.
    """

    file: str
    key: Key
    series: Series
    model: str
    result: FilteredSequence
    columns: dict[str, np.ndarray]
    outliers: list[int]
    leads: list[float]
    checks: ForecastChecks
    warnings: list[FilterWarning]
    ahead: np.ndarray
    forecast: Ahead | None
    is_part: bool

    @property
    def label(self) -> str:
        """How it is called among others."""
        parts = [key_name(self.key)] * bool(self.key) + [*self.series.names] * self.is_part
        return ": ".join([self.file, *parts])

    def ahead_of(self, level: str) -> list[list[np.ndarray]]:
        """Of each column mean, std, and both ends of an interval, of the rows that come next, which were asked for."""
        assert self.forecast is not None
        moments, bands = self.forecast.moments, self.forecast.bands[:, LEVELS.index(float(level))]
        return [
            [moments[:, 0, a], moments[:, 1, a], bands[:, a, 0], bands[:, a, 1]] for a in range(len(self.series.names))
        ]


@dataclass(frozen=True)
class Task:
    """What to do with each series.

    Attributes:
        filters: what filters a series, or its columns each by itself.
        leads: forecasts of each row, as they were written.
        horizon: rows that come next, as it was written; None is none.
        alarm: when a row is one.
        flag: a row is an outlier if so many are nearer.
        smooth: also the states given all rows, or those up to `lag` rows later.
    """

    filters: Filters
    leads: Sequence[str]
    horizon: str | None
    alarm: Alarm
    flag: float
    smooth: bool
    lag: int | None

    def run(self, file: str, key: Key, series: Series) -> list[Filtered]:
        """Filter a series, or its columns each by itself.

        Raises:
            ValueError: it does not fit the filter, or what is asked for cannot be told of it.
        """
        from rfa.runtime.uncertainty.alarms import is_most

        if self.alarm.per_time and series.clock is None:
            raise ValueError(f"--alarm is per time, and {file} has no time column; give a share of the rows")
        if is_most(self.alarm, step := usual_step(series)):
            raise ValueError(
                f"--alarm is more than half of the rows of {file}, which are {step:,.12g} s apart; give a rarer rate "
                "such as 1/week, or a share of the rows such as 0.001"
            )
        with choosing_columns():
            parts = self.filters(key, series)
        return [self._run(file, key, part, runtime, is_part=len(parts) > 1) for part, runtime in parts]

    def _run(self, file: str, key: Key, series: Series, runtime: FilterRuntime, *, is_part: bool) -> Filtered:
        import numpy as np

        from rfa.library.filtering import beyond_gate
        from rfa.runtime.filters.ahead import followed
        from rfa.runtime.uncertainty.diagnostics import diagnose
        from rfa.runtime.uncertainty.forecast_checks import summarise

        leads = [lead(text, row_time(series)) for text in self.leads]
        ahead = np.empty(0) if self.horizon is None else future_times(series, self.horizon)
        distances = (ahead - series.times[-1]).tolist()
        on_the_way = followed(runtime, usual_step(series) or 1.0, distances[-1]) if distances else []
        checked = [*leads, *(lead for lead in on_the_way if lead not in leads)]
        result = run_filter(runtime, series, checked, smooth=self.smooth, lag=self.lag, alarm=self.alarm)
        columns = columns_of(series, result, checked)
        seen = (~np.isnan(series.values)).sum(axis=1)
        checks = summarise(result.tally, runtime.levels, runtime.observation_size, checked, is_fresh=True)
        return Filtered(
            file,
            key,
            series,
            runtime.name,
            result,
            columns,
            np.flatnonzero(beyond_gate(columns["nis"], seen, self.flag)).tolist(),
            leads,
            checks,
            diagnose(runtime, checks, step=result.state.step, ahead=distances, is_whole=True),
            ahead,
            runtime.ahead(result.state, LEVELS, distances) if distances else None,
            is_part,
        )


@contextmanager
def choosing_columns() -> Iterator[None]:
    """What is said of too many columns says how the command is given fewer."""
    from rfa.runtime.errors import InvalidInput

    try:
        yield
    except InvalidInput as error:
        raise ValueError(error.message + (", by --column" if error.code == "too_large" else "")) from None


def run_filter(
    runtime: FilterRuntime,
    series: Series,
    horizon: Sequence[float],
    *,
    smooth: bool = False,
    lag: int | None = None,
    alarm: Alarm | None = None,
) -> FilteredSequence:
    """Filter a series, with a progress bar.

    Args:
        smooth: also the states given all rows, or those up to `lag` rows later.
        alarm: when a row is one; None is never.

    Raises:
        ValueError: the series has another number of columns than the bundle takes.
    """
    import numpy as np
    from tqdm import tqdm

    from rfa.runtime.compiling import telling_of_compilation
    from rfa.runtime.filters.sequence import FilteredSequence
    from rfa.runtime.messages import COMPILING
    from rfa.runtime.uncertainty.alarms import NEVER
    from rfa.runtime.uncertainty.interface import FilterOptions

    if series.values.shape[1] != runtime.observation_size:
        raise ValueError(
            f"the file has {series.values.shape[1]} columns of values ({', '.join(series.names)}), "
            f"bundle {runtime.name!r} takes {runtime.observation_size}; "
            "`rfa train filter --data CSV` makes a filter that fits"
        )
    values, times = np.asarray(series.values, np.float64), np.asarray(series.times, np.float64)
    options = FilterOptions(
        times, values, np.ones(len(times)), LEVELS, tuple(horizon), alarm=alarm or NEVER, smooth=smooth, lag=lag
    )
    # To smooth, a tick for each piece that is filtered, for each row looked back at, and for each row told.
    total = 2 * len(times) - (-len(times) // runtime.piece_rows) if smooth else len(times)
    with (
        tqdm(total=total, unit="row", disable=None, leave=False) as bar,
        telling_of_compilation(lambda: bar.write(COMPILING, file=sys.stderr)),
    ):
        return FilteredSequence.collect(runtime.work(options), bar.update)


def columns_of(series: Series, result: FilteredSequence, horizon: Sequence[float]) -> dict[str, np.ndarray]:
    """What is told of each row, by the names of `Columns`."""
    from rfa.runtime.uncertainty.columns import Columns

    found = Columns(series.names, None, horizon)
    for told in result.pieces:
        found.add(told)
    if result.smoothed is not None:
        found.add_smoothed(result.smoothed)
    return found.arrays()


def filter_for(bundle: str | None) -> Filters:
    """Filters of a model, None is the usual one. What describes a system runs only by its name.

    Raises:
        FileNotFoundError, ValueError: it cannot be had.
    """
    from rfa.library.models import series_runtime, usual_model
    from rfa.runtime.filters.auto import NAMES, RETIRED, AutoRuntime, retirement_note

    name = usual_model() if bundle is None else bundle
    if name in RETIRED and not Path(name).is_dir():
        sys.stderr.write(f"{retirement_note(name)}\n")
        name = RETIRED[name]
    if name in NAMES:
        return lambda key, series: [(series, AutoRuntime.of(len(series.names), name))]
    from rfa.cli.bundles import find_bundle
    from rfa.runtime.bundle.bundle import open_bundle
    from rfa.runtime.filters.filter import FilterRuntime

    opened = open_bundle(find_bundle(name, NAMES))
    if opened.kind == "series":
        model = series_runtime(opened, 1)
        return lambda key, series: [(series, model.sized(len(series.names)))]
    runtime = FilterRuntime(opened)
    return lambda key, series: [(series, runtime)]


def system_from(path: Path) -> Filters:
    """Filters of the system in a JSON file, or of those that it has for columns or series of a name.

    Raises:
        OSError, ValueError: it cannot be had, or numba is not installed.
    """
    from rfa.library.models import own_filters
    from rfa.runtime.compiling import HAS_COMPILER
    from rfa.runtime.filters.fitted import are_models
    from rfa.runtime.filters.system import InvalidSystem, System

    if not HAS_COMPILER:
        raise ValueError("--system needs numba: pip install 'rfa-server[fast]'")
    from rfa.runtime.filters.compiled_system import SystemRuntime

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is no JSON document: {error}") from None
    own = own_filters(document) if are_models(document) else None

    def filters(key: Key, series: Series) -> list[tuple[Series, SystemRuntime]]:
        try:
            found = [(series, SystemRuntime(System.from_document(document)))] if own is None else own(key, series)
        except InvalidSystem as error:
            raise ValueError(f"{path.name}: {error}") from None
        if not series.is_dated and any(runtime.calendar is not None for _, runtime in found):
            raise ValueError(f"{path.name} has a calendar, and the times of the file are no dates; name them by --time")
        return found

    return filters


def held(checks: ForecastChecks) -> str:
    """How often the values were inside their interval, one step and further ahead; nothing where none was scored."""
    shares = {"one step": checks.coverage.get(WIDE)}
    shares |= {
        f"{lead.steps:.3g} steps": lead.coverage.get(WIDE) for lead in checks.leads if (lead.steps or 0) >= BEYOND
    }
    told = [f"{100 * share:.1f} % {ahead} ahead" for ahead, share in shares.items() if share is not None]
    return f"{100 * float(WIDE):g} % intervals held {', '.join(told)}, " if told else ""


def lead(text: str, row: float) -> float:
    """How far ahead each row is forecast, in units of the times; seconds where it has a unit.

    Args:
        row: what a number without one counts, the usual time between two rows of a dated file.

    Raises:
        ValueError: it is no time above 0.
    """
    found = duration(text)
    ahead = math.inf if found is None else found[0] * (row if found[1] is None else SECONDS[found[1]])
    if not ahead < math.inf:
        raise ValueError(f"--lead takes a time above 0 such as 0.5, 30min, 6h or 1d, got {text!r}")
    return ahead


def row_time(series: Series) -> float:
    """The usual time between two rows of a dated file; 1 where times are numbers, or there are not two."""
    return usual_step(series) or 1.0 if series.is_dated else 1.0


def alarm_at(rate: str, quiet: int) -> Alarm:
    """An alarm by its rate, a share of the rows or a number per time.

    Raises:
        ValueError: it is neither.
    """
    from rfa.runtime.uncertainty.alarms import LARGEST_RATE, RATE_PATTERN, alarm

    if re.match(RATE_PATTERN, rate):
        return alarm(rate, quiet=quiet)
    try:
        share = float(rate)
    except ValueError:
        share = math.nan
    if not 0 < share <= LARGEST_RATE:
        raise ValueError(
            f"--alarm takes a share of the rows, above 0 and at most {LARGEST_RATE}, or a number per second, minute, "
            f"hour, day or week such as 1/day, got {rate!r}"
        )
    return alarm(share, quiet=quiet)
