"""Rules for which incidents are found, and which alarms are elsewhere. These rules were fixed before the first run.

An alarm counts at the row that raises it, and a delay is a number of rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rfa.benchmarks.oncall.parts import DAY, Array, Series

# Rows after an incident in which an alarm still finds it; after missing values the first two rows.
ROWS_AFTER = {"missing an hour": 2}
USUAL_ROWS_AFTER = 3
# Weeks of a series with a change of clocks; the last has two days.
WEEKS = (-2, -1, 0, 1)


def judge_incident(series: Series, alarms: Array) -> dict[str, Any]:
    """Return whether the incident was found, its delay, and the alarms elsewhere."""
    if series.begin is None or series.end is None:
        raise ValueError(f"{series.name} has no incident")
    last = series.end + ROWS_AFTER.get(series.kind, USUAL_ROWS_AFTER) * series.step
    inside = alarms[(alarms >= series.begin) & (alarms <= last)]
    delay = (int(inside[0]) - series.begin) // series.step if len(inside) else None
    elsewhere = (alarms < series.begin) | (alarms > series.end + DAY)
    series_end = int(series.times[0]) + series.days * DAY
    return {
        "found": "missed" if delay is None else "found" if delay <= series.within else "late",
        "delay": delay,
        "elsewhere": int(np.sum(elsewhere)),
        "expected": series.days - (min(series.end + DAY, series_end) - series.begin) / DAY,
    }


def judge_job(series: Series, alarms: Array) -> dict[str, Any]:
    """Return the alarms at each occurrence, from one row before it to two rows after it, and the alarms elsewhere."""
    at_job, elsewhere = [0] * len(series.occurrences), 0
    for alarm in alarms:
        near = [
            number
            for number, (begin, end) in enumerate(series.occurrences)
            if begin - series.step <= alarm <= end + 2 * series.step
        ]
        if near:
            at_job[near[0]] += 1
        else:
            elsewhere += 1
    return {"at_job": at_job, "elsewhere": elsewhere, "expected": series.days}


def judge_clean(series: Series, alarms: Array) -> dict[str, Any]:
    """Count all alarms as elsewhere. Around a daylight-saving change, also count them by week."""
    found: dict[str, Any] = {"elsewhere": len(alarms), "expected": series.days}
    if series.change is not None:
        weeks = (alarms - series.change) // (7 * DAY)
        found["weeks"] = [int(np.sum(weeks == week)) for week in WEEKS]
    return found
