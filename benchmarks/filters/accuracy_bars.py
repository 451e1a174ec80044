"""The targets of the linear filter's accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rfa.benchmarks.filters.references import RIVALS

# The best rows of the survey's table of robust filters, each tuned for the scenario.
BEST_PUBLISHED = {"Student-t": 1.524, "mixture": 1.286}
SPIKED = ("5 % x10", "5 % x20")
# The filter with default options, and with the option that has targets of its own.
FILTERS = ("linear", "linear, learned")


def coverage_error(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the largest |coverage - level|, and its standard error."""
    level = max(row["coverage"], key=lambda level: abs(row["coverage"][level] - float(level)))
    return abs(row["coverage"][level] - float(level)), row["coverage_error"][level]


class Bar(NamedTuple):
    """A target: at most `bar`. error: standard error of the value, None if it is not random."""

    name: str
    value: float
    error: float | None
    bar: float


def _error_bars(plane: Mapping[str, Any], label: str) -> list[Bar]:
    value, error = plane["clean"][label]["over_kalman"]
    found = [Bar(f"{label}: clean, error over the Kalman filter's", value, error, 0.01)]
    for name in SPIKED:
        value, error = plane[name][label]["over_oracle"]
        found.append(Bar(f"{label}: {name}, error over the oracle's", value, error, 0.03))
    for name, best in BEST_PUBLISHED.items():
        rival = min(RIVALS, key=lambda rival: plane[name][rival]["rmse"])
        for title in (label, f"{label}, nu tuned"):
            if title in plane[name]:
                row = plane[name][title]
                value, error = row[f"over_{rival}"]
                found.append(Bar(f"{title}: {name}, error", row["rmse"], row["rmse_error"], best))
                found.append(Bar(f"{title}: {name}, error over the {rival}'s on the same streams", value, error, 0.0))
    return found


def _interval_bars(system: str, rows: Mapping[str, Any], label: str) -> list[Bar]:
    found = []
    for name in ("clean", *SPIKED):
        value, error = coverage_error(rows[name][label])
        found.append(Bar(f"{label}: {system} {name}, coverage error", value, error, 0.01))
    wider = rows["clean"][label]["width90"] / rows["clean"]["oracle"]["width90"] - 1
    return [*found, Bar(f"{label}: {system} clean, width of the 90 % intervals over the oracle's", wider, None, 0.05)]


def _shift_bars(shifts: Mapping[str, Any], label: str) -> list[Bar]:
    found = []
    for jump, rows in shifts.items():
        late, spread, kalman = (
            np.inf if x is None else x
            for x in (rows[label]["median"], rows[label]["median_error"], rows["kalman"]["median"])
        )
        ratio = late / kalman if np.isfinite(late) else np.inf
        error = spread / kalman if np.isfinite(spread) else None
        found.append(Bar(f"{label}: jump of {jump}, median delay over the Kalman filter's", ratio, error, 2.0))
    return found


def bars(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every target with the measured value and its standard error."""
    found: list[Bar] = []
    for label in FILTERS:
        found += _error_bars(document["tracking"], label)
        for system in ("tracking", "rotation"):
            found += _interval_bars(system, document[system], label)
        found += _shift_bars(document["level_shift"], label)
    return [
        bar._asdict() | {"value": bar.value if np.isfinite(bar.value) else None, "is_met": bool(bar.value <= bar.bar)}
        for bar in found
    ]
