"""Incidents in simulated metrics: which are found, and how many alarms are raised elsewhere.

    python -m rfa.benchmarks.incidents [--models default auto] [--seeds 10 11 12]

A series is 14 days of minutes with the daily rhythm of its kind, and one incident on the ninth day or later. Each seed
has one series of each kind, and one with a job at three o'clock each night. Alarms are asked for once a day.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from tqdm import tqdm

import rfa
from rfa.benchmarks.command import finish, parser
from rfa.measured import origin

Array = np.ndarray

DAYS, DAY = 14, 1440
RATE = "1/day"
# The first rows are not counted: nothing is known of the stream yet.
BURN_IN = DAY
# An incident is found by an alarm in its first rows.
AT_ONCE = 3
# Rows after an incident that belong to it: a stream has to return to what it was.
AFTER = 60
# Rows of an incident that belong to it: to a lasting one a stream gets used.
LONGEST = 240
# Minutes of the cycle of a pump.
CYCLE = 20
JOB_AT, JOB_LASTS = 180, 8
# Seeds that the rules were not tuned on.
SEEDS = (10, 11, 12)


class Incident(NamedTuple):
    """A series with an incident in the rows begin to end, found by an alarm in the first `within` of them."""

    values: Array
    begin: int
    end: int
    within: int = AT_ONCE


class Day:
    """Random parts of a series."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.minutes = np.arange(DAYS * DAY)
        self.begin = int(rng.integers(8 * DAY, (DAYS - 1) * DAY))

    def rhythm(self, depth: float) -> Array:
        """Return a factor with mean 1, which is highest in the afternoon and lower on weekends."""
        days = self.minutes / DAY
        weekend = 1 / (1 + np.exp(-8 * np.sin(2 * np.pi * (days - 4.25) / 7) + 5))
        found: Array = (1 + depth * np.cos(2 * np.pi * (days - self.rng.uniform(0.55, 0.65)))) * (
            1 - depth / 3 * weekend
        )
        return found

    def noise(self, share: float, memory: float = 0.6) -> Array:
        """Return autoregressive noise with the given standard deviation."""
        shocks = self.rng.standard_normal(DAYS * DAY) * np.sqrt(1 - memory**2)
        for t in range(1, len(shocks)):
            shocks[t] += memory * shocks[t - 1]
        found: Array = share * shocks
        return found

    def load(self, level: float = 400.0) -> Array:
        """Return requests per minute."""
        return np.maximum(level * self.rhythm(0.5) * (1 + self.noise(0.05)), 0.0)

    def latency(self) -> Array:
        """Return latencies in milliseconds, which are skewed and grow with the load."""
        found: Array = 80 * self.rhythm(0.15) * np.exp(self.noise(0.08))
        return found

    def cpu(self) -> Array:
        """Return processor time in percent."""
        return np.clip(45 * self.rhythm(0.4) + 3 * self.noise(1.0), 1, 99)

    def during(self, rows: int) -> slice:
        return slice(self.begin, self.begin + rows)


def _changed(day: Day, values: Array, rows: int, change: Callable[[Array], Array]) -> Incident:
    values[day.during(rows)] = change(values[day.during(rows)])
    return Incident(values, day.begin, day.begin + rows)


def _level_shift(day: Day) -> Incident:
    return _changed(day, day.cpu() * 0.6, DAYS * DAY, lambda x: x + 18)


def _queue(day: Day) -> Incident:
    waiting = day.rng.poisson(20 * day.rhythm(0.4)).astype(float)
    return _changed(day, waiting, 90, lambda x: x + 15 * np.arange(1, len(x) + 1))


def _disk(day: Day) -> Incident:
    used = 40 + 0.0008 * day.minutes + 0.05 * day.rng.standard_normal(len(day.minutes))
    return _changed(day, np.round(used, 2), 240, lambda x: x + 0.4 * np.arange(1, len(x) + 1))


def _pump(day: Day) -> Incident:
    phase = day.minutes % CYCLE
    pressure = 2 + 3 * np.where(phase < 8, 1.0, np.exp(-(phase - 8) / 4)) + 0.08 * day.rng.standard_normal(DAYS * DAY)
    day.begin -= day.begin % CYCLE
    missed = _changed(day, pressure, 2 * CYCLE, lambda x: 2 + 0.08 * day.rng.standard_normal(len(x)))
    return missed._replace(within=3 * CYCLE)


def _errors(day: Day) -> Incident:
    return _changed(day, day.rng.poisson(0.05, DAYS * DAY).astype(float), 30, lambda x: day.rng.integers(3, 9, len(x)))


def _stuck(day: Day) -> Incident:
    celsius = np.round(20 * day.rhythm(0.1) + 0.3 * day.noise(1.0), 2)
    return _changed(day, celsius, 180, lambda x: np.full(len(x), x[0]))._replace(within=10)


def _silent(day: Day) -> Incident:
    values = day.load()
    values[day.during(45)] = np.nan
    return Incident(values, day.begin, day.begin + 45, 46)


def _noisy(day: Day) -> Incident:
    celsius = 20 * day.rhythm(0.1) + 0.3 * day.noise(1.0)
    change = 3 * 0.3 * day.rng.standard_normal(180)
    return _changed(day, celsius, 180, lambda x: x + change)._replace(within=20)


def _spike(day: Day) -> Incident:
    return _changed(day, day.load(), 1, lambda x: 2.5 * x)


KINDS: dict[str, Callable[[Day], Incident]] = {
    "spike": _spike,
    "dip": lambda day: _changed(day, day.load(), 2, lambda x: 0.3 * x),
    "outage": lambda day: _changed(day, day.load(), 30, lambda x: 0 * x),
    "load +50 %": lambda day: _changed(day, day.load(), 60, lambda x: 1.5 * x),
    "load -60 %": lambda day: _changed(day, day.load(), 120, lambda x: 0.4 * x),
    "latency x 4": lambda day: _changed(day, day.latency(), 20, lambda x: 4 * x),
    "latency +60 %": lambda day: _changed(day, day.latency(), 45, lambda x: 1.6 * x),
    "CPU at 99 %": lambda day: _changed(day, day.cpu(), 120, lambda x: 99 + 0 * x),
    "level shift": _level_shift,
    "queue": _queue,
    "disk": _disk,
    "pump": _pump,
    "burst of errors": _errors,
    "stuck sensor": _stuck,
    "no data": _silent,
    "noisy sensor": _noisy,
}


def simulate(kind: str, seed: int) -> Incident:
    """Return the series of a kind."""
    return KINDS[kind](Day(np.random.default_rng((seed, list(KINDS).index(kind)))))


def nightly_job(seed: int) -> Array:
    """Load with a job each night, a minute early or late."""
    day = Day(np.random.default_rng((seed, len(KINDS))))
    values = day.cpu()
    for night in range(DAYS):
        begin = night * DAY + JOB_AT + int(day.rng.integers(-1, 2))
        values[begin : begin + JOB_LASTS] += day.rng.uniform(28, 34)
    return np.minimum(values, 100.0)


class Result(NamedTuple):
    """Of a series: rows after its beginning at which alarms found the incident, alarms elsewhere and expected there."""

    found_at: int | None
    elsewhere: int
    expected: float


def alarms_of(values: Array, model: str) -> Array:
    """Return the rows with an alarm."""
    times = np.datetime64("2026-01-05", "s") + 60 * np.arange(len(values))
    table = pa.table({"t": times, "y": values})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = rfa.filter(table, alarm=RATE, model=model)
    return np.flatnonzero(found["alarm"].to_numpy(zero_copy_only=False))


def judge(incident: Incident, alarms: Array) -> Result:
    """Compare alarms with an incident. One that lasts belongs to it for four hours."""
    begin, end = incident.begin, min(incident.end, incident.begin + LONGEST) + AFTER
    in_time = alarms[(alarms >= begin) & (alarms < begin + incident.within)]
    elsewhere = alarms[(alarms >= BURN_IN) & ((alarms < begin) | (alarms >= end))]
    rows = len(incident.values) - BURN_IN - (end - begin)
    return Result(int(in_time[0]) - begin if len(in_time) else None, len(elsewhere), rows / DAY)


def job_nights(alarms: Array) -> list[int]:
    """Return the nights, counted from 1, on which the job raised an alarm."""
    minutes = alarms % DAY
    at_job = alarms[(minutes >= JOB_AT - 5) & (minutes < JOB_AT + JOB_LASTS + 5)]
    return sorted({int(row) // DAY + 1 for row in at_job})


def measure(model: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the results of a model."""
    kinds: dict[str, Any] = {kind: {"found_after": [], "elsewhere": 0, "expected": 0.0} for kind in KINDS}
    nights: list[list[int]] = []
    for seed in tqdm(seeds, unit="seed", disable=None):
        for kind, row in kinds.items():
            incident = simulate(kind, seed)
            result = judge(incident, alarms_of(incident.values, model))
            row["found_after"].append(result.found_at)
            row["elsewhere"] += result.elsewhere
            row["expected"] += result.expected
        nights.append(job_nights(alarms_of(nightly_job(seed), model)))
    found = sum(rows is not None for row in kinds.values() for rows in row["found_after"])
    elsewhere, expected = (sum(row[name] for row in kinds.values()) for name in ("elsewhere", "expected"))
    return {
        "found": found,
        "incidents": len(KINDS) * len(seeds),
        "elsewhere_over_expected": elsewhere / expected,
        "job_alarm_nights": nights,
        "kinds": kinds,
    }


def main() -> None:
    """Measure, print and write the file."""
    options = parser(__doc__, "incidents")
    options.add_argument("--models", nargs="+", default=["default", "auto"])
    options.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    given = options.parse_args()
    models = {model: measure(model, given.seeds) for model in given.models}
    here = origin("python -m rfa.benchmarks.incidents")
    finish("incidents", given.out, {**here, "seeds": list(given.seeds), "models": models})


if __name__ == "__main__":
    main()
