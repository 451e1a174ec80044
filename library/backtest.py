"""Compute the alarms and forecasts that a filter would have made on recorded series.

The evaluation is causal. Each row is judged by the rows before it, so extending a series does not change its earlier
alarms. Rows in the probation period of NAB (`rfa.library.nab`) are not scored against labelled windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rfa.data import Key, Series, key_name
from rfa.library.incidents import describe_incidents
from rfa.library.models import filters, notify_on_compile
from rfa.library.nab import PROFILES, Labelled, detect, labelled, normalised
from rfa.library.options import LEVELS, AlarmRule, OutputOptions
from rfa.library.reading import read
from rfa.library.running import run_series
from rfa.library.several_files import takes_files
from rfa.library.spans import Span
from rfa.library.windows import read_windows
from rfa.runtime.outputs import ForecastChecks, Incident
from rfa.runtime.uncertainty.incidents import Incidents

Array = np.ndarray


@dataclass(frozen=True)
class WindowScores:
    """Evaluation of the alarms against labelled windows. Rows in NAB's probation period are not counted.

    Attributes:
        windows, found: Number of windows that contain a scored row, and number of windows that contain both a scored
            row and an alarm.
        empty: Number of windows that contain no scored row.
        incidents, true_incidents: Number of incidents, and number of incidents that overlap a window.
        delays: Time from the start of each window that was found to its first alarm, in units of the times.
    """

    windows: int
    found: int
    empty: int
    incidents: int
    true_incidents: int
    delays: tuple[float, ...]

    @property
    def precision(self) -> float | None:
        """Fraction of the incidents that overlap a window. None if there are no incidents or windows."""
        return self.true_incidents / self.incidents if self.incidents and self.windows else None

    @property
    def recall(self) -> float | None:
        """Fraction of the windows that contain an alarm. None if there are no windows."""
        return self.found / self.windows if self.windows else None

    @property
    def delay(self) -> float | None:
        """Median time from the start of a window to its first alarm. None if no window was found."""
        return float(np.median(self.delays)) if self.delays else None

    def document(self) -> dict[str, Any]:
        """Return the evaluation as a dictionary of JSON types."""
        shown = {"windows": self.windows, "found": self.found, "empty": self.empty, "incidents": self.incidents}
        return {**shown, "precision": self.precision, "recall": self.recall, "delay": self.delay}


@dataclass(frozen=True)
class SeriesBacktest:
    """Result of a backtest for one series.

    Attributes:
        name: Name of the series.
        rows: Number of rows.
        observations: Number of rows in which an alarm was possible.
        alarms: Number of alarms.
        expected: Expected number of alarms in `observations` rows at the requested rate.
        incidents: Incidents, sorted by time.
        coverage: Fraction of the values inside their intervals, by horizon ("step" for one row ahead) and level.
        scored: Number of values that were compared with a forecast, by horizon.
        scores: Scores of the alarms on the labelled windows. None if no windows were passed.
        is_alarm: Whether each row is an alarm, `[N]`.
        labelled: Rows and windows from which NAB's score is computed. None if no windows were passed.
    """

    name: str
    rows: int
    observations: int
    alarms: int
    expected: float
    incidents: tuple[Incident, ...]
    coverage: Mapping[str, Mapping[str, float | None]]
    scored: Mapping[str, int]
    scores: WindowScores | None
    is_alarm: Array
    labelled: Labelled | None

    def document(self) -> dict[str, Any]:
        """Return the result as a dictionary of JSON types."""
        found = {name: getattr(self, name) for name in ("name", "rows", "observations", "alarms", "expected")}
        found |= {"incidents": [asdict(one) for one in self.incidents], "coverage": self.coverage}
        return found | ({} if self.scores is None else {"scores": self.scores.document()})


@dataclass(frozen=True)
class Backtest:
    """Result of a backtest for all series.

    Attributes:
        series: Result of each series.
        unmatched: Names in the windows file that match no series.
    """

    series: tuple[SeriesBacktest, ...]
    unmatched: tuple[str, ...] = ()

    @classmethod
    def joined(cls, found: Mapping[str, Backtest]) -> Backtest:
        """Join the results of several files. The names of the series are preceded by the name of their file. Windows
        that match no file remain in `unmatched`."""
        series = (
            replace(one, name=f"{file}: {one.name}" if one.name else file)
            for file, each in found.items()
            for one in each.series
        )
        first, *others = (each.unmatched for each in found.values())
        return cls(tuple(series), tuple(name for name in first if all(name in each for each in others)))

    @property
    def alarms(self) -> int:
        """Number of alarms."""
        return sum(one.alarms for one in self.series)

    @property
    def expected(self) -> float:
        """Expected number of alarms in all observations at the requested rate."""
        return sum(one.expected for one in self.series)

    @property
    def coverage(self) -> dict[str, dict[str, float | None]]:
        """Fraction of the values inside their intervals over all series, by horizon and level."""
        found: dict[str, dict[str, float | None]] = {}
        for lead in self.series[0].coverage if self.series else ():
            counts = [(one.scored.get(lead, 0), one.coverage.get(lead, {})) for one in self.series]
            total = sum(count for count, _ in counts)
            found[lead] = {
                level: sum(count * (shares.get(level) or 0.0) for count, shares in counts) / total if total else None
                for level in self.series[0].coverage[lead]
            }
        return found

    @property
    def scores(self) -> WindowScores | None:
        """Evaluation of the alarms of all series against their windows. None if no windows were passed."""
        found = [one.scores for one in self.series if one.scores is not None]
        if not found:
            return None
        return WindowScores(
            sum(one.windows for one in found),
            sum(one.found for one in found),
            sum(one.empty for one in found),
            sum(one.incidents for one in found),
            sum(one.true_incidents for one in found),
            tuple(delay for one in found for delay in one.delays),
        )

    @property
    def nab(self) -> dict[str, float] | None:
        """NAB scores of the alarms by profile. None if there is no window with a scored row."""
        pairs = [(one.labelled, one.is_alarm.astype(np.float64)) for one in self.series if one.labelled is not None]
        if not any(series.windows and series.windows[-1][1] >= series.start for series, _ in pairs):
            return None
        corpus = [series for series, _ in pairs]
        return {
            name: normalised(
                corpus, sum(detect(series, alarms, 1.0, profile).score for series, alarms in pairs), profile
            )
            for name, profile in PROFILES.items()
        }

    def document(self) -> dict[str, Any]:
        """Return all results as a dictionary of JSON types."""
        scores = self.scores
        return {
            "observations": sum(one.observations for one in self.series),
            "alarms": self.alarms,
            "expected": self.expected,
            "incidents": sum(len(one.incidents) for one in self.series),
            "coverage": self.coverage,
            "scores": None if scores is None else scores.document(),
            "nab": self.nab,
            "unmatched": list(self.unmatched),
            "series": [one.document() for one in self.series],
        }

    def __str__(self) -> str:
        parts = [
            f"{len(self.series)} series, {sum(one.observations for one in self.series):,} observations",
            describe_incidents(sum(len(one.incidents) for one in self.series), self.alarms, self.expected),
        ]
        for lead, shares in self.coverage.items():
            ahead = "one step" if lead == "step" else lead
            if (share := shares.get("0.9")) is not None:
                parts.append(f"{100 * share:.1f} % of the values were inside the 90 % intervals, {ahead} ahead")
        scores, nab = self.scores, self.nab
        if scores is not None:
            parts.append(f"{scores.found} of {scores.windows} windows found")
            parts += [f"{scores.empty} windows contain no scored row"] if scores.empty else []
            if self.unmatched:
                more = f" and {len(self.unmatched) - 1} more" if len(self.unmatched) > 1 else ""
                parts.append(f"no series matches {self.unmatched[0]}{more}")
            parts += [] if scores.precision is None else [f"precision {scores.precision:.2f}"]
            parts += [] if scores.delay is None else [f"median delay {scores.delay:g}"]
        return "; ".join(parts + ([] if nab is None else [f"NAB {nab['standard']:.1f}"]))


@takes_files
def backtest(
    data: Any,
    rate: float | str = 0.001,
    *,
    windows: str | Path | Sequence[Sequence[float]] | None = None,
    horizon: Sequence[float | Span] = (),
    alarm: Mapping[str, Any] | None = None,
    time: Any = None,
    columns: Sequence[str] | str = (),
    by: Sequence[str] | str = (),
    model: str | Path | None = None,
    system: Mapping[str, Any] | None = None,
    levels: Sequence[float] = LEVELS,
    tz: str = "UTC",
) -> Backtest:
    """Return the alarms, incidents and coverage that a filter would have had on recorded series. Each row is scored
    using only the rows before it.

    Args:
        rate: Alarm rate, such as "1/day" or 0.001. See `rfa.detect`.
        alarm: Other alarm options, with the names of the fields of `alarm` in `POST /filter`.
        windows: Labelled time windows of known anomalies. They are pairs of times in seconds since 1970, or a file with
            the columns `from` and `to` and, for windows of single series, key columns. Both ends belong to the window.
        horizon: Horizons whose coverage is reported in addition to that of the next row.
        data, time, columns, by, model, system, levels, tz: See `rfa.filter`.

    Raises:
        ValueError: If an argument, column or row is invalid. The message names it and says what to do.
        FileNotFoundError: If there is no such bundle.
    """
    rule: AlarmRule = {"rate": rate, **(alarm or {})}
    request = OutputOptions.of(levels, horizon, rule, tz=tz)
    table = read(data, time, columns, by, tz)
    found_windows = None if windows is None else read_windows(windows, tz)
    filters_of = filters(model, table.columns, system)

    def work(key: Key, series: Series) -> list[SeriesBacktest]:
        own = None if found_windows is None else found_windows.of(table.by, key)
        found, parts = [], filters_of(key, series)
        for part, runtime in parts:
            result, checks = run_series(table, runtime, key, part, request)
            name = ": ".join([key_name(key)] * bool(key) + [*part.names] * (len(parts) > 1))
            is_alarm = result.columns(part.names, request.horizon)["alarm"] == 1
            found.append(judge(name, part, is_alarm, result.incidents, checks, own))
        return found

    with notify_on_compile():
        series = tuple(one for each in table.each(work).values() for one in each)
    return Backtest(series, () if found_windows is None else found_windows.unmatched())


def judge(
    name: str, series: Series, is_alarm: Array, incidents: Incidents, checks: ForecastChecks,
    windows: Sequence[tuple[float, float]] | None,
) -> SeriesBacktest:  # fmt: skip
    """Evaluate the alarms of a filtered series, and return the result.

    Args:
        is_alarm: Whether each row is an alarm.
        windows: First and last time of each window, in order and without overlap. None without labels.
    """
    coverage, scored = {"step": checks.coverage}, {"step": checks.scored}
    for lead in checks.leads:
        label = f"{lead.horizon:g}" if not series.is_dated else f"{lead.horizon:g}s"
        coverage[label], scored[label] = lead.coverage, lead.scored
    alarms = checks.alarms
    rows = None if windows is None else labelled(name, len(series.times), _rows_of(series.times, windows))
    return SeriesBacktest(
        name, len(series.times), 0 if alarms is None else alarms.observations, 0 if alarms is None else alarms.raised,
        0.0 if alarms is None else alarms.expected, tuple(incidents.listed), coverage, scored,
        None if rows is None else _score(series.times, is_alarm, incidents.listed, rows, len(windows or ())), is_alarm,
        rows,
    )  # fmt: skip


def _rows_of(times: Array, windows: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """Return the first and last row of each window that contains rows."""
    found: list[tuple[int, int]] = []
    for begin, end in windows:
        first, after = np.searchsorted(times, begin), np.searchsorted(times, end, side="right")
        if first < after:
            found.append((int(first), int(after) - 1))
    return found


def _score(times: Array, is_alarm: Array, incidents: Sequence[Incident], rows: Labelled, count: int) -> WindowScores:
    """Return the evaluation of the alarms against `count` windows. `rows` contains the first and last row of each
    window that contains rows."""
    alarms = np.flatnonzero(is_alarm)
    alarms = alarms[alarms >= rows.start]
    windows = [(max(first, rows.start), last) for first, last in rows.windows if last >= rows.start]
    firsts = [alarms[(alarms >= first) & (alarms <= last)][:1] for first, last in windows]
    delays = tuple(
        float(times[hit[0]] - times[first]) for hit, (first, _) in zip(firsts, windows, strict=True) if len(hit)
    )
    judged = [one for one in incidents if len(times) and one.begin >= times[min(rows.start, len(times) - 1)]]
    touching = [
        one for one in judged if any(one.begin <= times[last] and one.end >= times[first] for first, last in windows)
    ]
    return WindowScores(len(windows), len(delays), count - len(windows), len(judged), len(touching), delays)
