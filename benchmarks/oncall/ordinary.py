"""Series without an incident: with a nightly or weekly job, clean series, and series with a daylight-saving change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from rfa.benchmarks.oncall.parts import (
    Clock,
    Series,
    autoregressive,
    counts,
    daily,
    generator,
    heavy,
    hours_of,
    labelled,
    office,
    weekdays_of,
)


class Job(NamedTuple):
    """A job that adds `size` to the load for `rows`; without a size, the load drops to almost 0.

    It begins up to `early_late` rows early or late, lasts up to `shorter_longer` rows less or more, and grows by this
    fraction of its first size a day. Without weekdays (0 is Monday) it runs every day.
    """

    minutes: int
    days: int
    hour: float
    early_late: int
    rows: int
    shorter_longer: int
    size: float | None
    weekdays: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    growth: float = 0.0


JOBS = {
    "spike_exact": Job(5, 14, 3.0, 0, 1, 0, 60),
    "spike_jitter": Job(5, 18, 2.25, 2, 1, 0, 60),
    "plateau30": Job(5, 14, 1.0, 1, 6, 1, 45),
    "plateau60_1min": Job(1, 10, 4.0, 5, 60, 6, 40),
    "weekdays": Job(5, 21, 23.0, 1, 4, 1, 50, (0, 1, 2, 3, 4)),
    "dip_restart": Job(5, 14, 4.5, 1, 1, 0, None),
    "weekly_plateau": Job(15, 42, 2.0, 1, 8, 1, 45, (6,)),
    "weekly_spike": Job(15, 42, 5.0, 0, 2, 0, 60, (5,)),
    "growing": Job(10, 21, 0.5, 1, 5, 1, 40, growth=0.02),
}


def with_job(name: str) -> Series:
    """Load with a job."""
    job, rng = JOBS[name], generator(30, list(JOBS).index(name))
    clock = Clock(job.minutes, job.days)
    noise = autoregressive(rng, len(clock), 0.6, 2), heavy(rng, len(clock), 4)
    values = 40 + 15 * daily(clock.hours) * np.where(clock.weekdays >= 5, 0.8, 1) + noise[0] + 1.2 * noise[1]
    occurrences = []
    for day in range(job.days):
        if int(clock.weekdays[clock.row(day, 0)]) not in job.weekdays:
            continue
        begin = clock.row(day, job.hour) + int(rng.integers(-job.early_late, job.early_late + 1))
        end = begin + job.rows + int(rng.integers(-job.shorter_longer, job.shorter_longer + 1))
        if job.size is None:
            values[begin:end] = rng.uniform(0, 2, len(values[begin:end]))
        else:
            size = job.size * (1 + 0.1 * rng.standard_normal())
            values[begin:end] += (
                size * (1 + 0.04 * rng.standard_normal(len(values[begin:end]))) * (1 + job.growth * day)
            )
        occurrences.append((int(clock.times[begin]), int(clock.times[min(len(clock), end) - 1])))
    return labelled(f"job_{name}", "job", clock, np.maximum(values, 0), digits=1, occurrences=tuple(occurrences))


def clean_counts() -> Series:
    """Simulate requests, which are fewer on weekends."""
    rng, clock = generator(40, 0), Clock(5, 21)
    mean = 400 * (0.15 + daily(clock.hours)) * np.where(clock.weekdays >= 5, 0.6, 1)
    return labelled("clean_counts", "clean", clock, counts(rng, mean, 0.01))


def clean_heavy() -> Series:
    """Simulate latencies with heavy tails."""
    rng, clock = generator(40, 1), Clock(1, 7)
    noise = autoregressive(rng, len(clock), 0.5, 0.08), heavy(rng, len(clock), 2.5)
    values = 90 * np.exp(0.1 * daily(clock.hours) + noise[0] + 0.06 * noise[1])
    return labelled("clean_heavy", "clean", clock, values, digits=1)


def clean_slow() -> Series:
    """Load that changes slowly, without a day."""
    rng, clock = generator(40, 2), Clock(5, 14)
    return labelled("clean_ar", "clean", clock, np.exp(autoregressive(rng, len(clock), 0.96, 0.4)) * 2, digits=2)


def clean_quantised() -> Series:
    """Simulate a temperature in steps of 0.5 degrees."""
    rng, clock = generator(40, 3), Clock(10, 21)
    noise = autoregressive(rng, len(clock), 0.98, 0.8), rng.standard_normal(len(clock))
    values = np.round((21 + 3 * daily(clock.hours, 16) + noise[0] + 0.2 * noise[1]) * 2) / 2
    return labelled("clean_quantised", "clean", clock, values, digits=1)


def clean_day_noise() -> Series:
    """Simulate a rate whose noise is larger during the day."""
    rng, clock = generator(40, 4), Clock(5, 14)
    day = daily(clock.hours)
    noise = 0.7 * autoregressive(rng, len(clock), 0.5) + 0.7 * rng.standard_normal(len(clock))
    return labelled("clean_daynoise", "clean", clock, 100 + 30 * day + (1 + 6 * day) * noise, digits=1)


def clean_zeros() -> Series:
    """Simulate errors that are nearly always 0."""
    rng, clock = generator(40, 5), Clock(5, 21)
    mean = 0.03 + 0.08 * np.clip(daily(clock.hours), 0, 2)
    return labelled("clean_zeros", "clean", clock, counts(rng, mean, 4))


CLEAN: tuple[Callable[[], Series], ...] = (
    clean_counts, clean_heavy, clean_slow, clean_quantised, clean_day_noise, clean_zeros,
)  # fmt: skip

# Of each zone the first day, two weeks before the change of its clocks, and the minutes of a row.
ZONES = {
    "Europe/Berlin": ("2025-10-12", 10),
    "America/New_York": ("2026-02-22", 15),
    "Europe/London": ("2026-03-15", 5),
}


def clock_change(zone: str) -> Series:
    """Simulate logins in the office hours of a time zone, at times in UTC. In New York, a job runs at four o'clock."""
    start, minutes = ZONES[zone]
    rng, clock = generator(50, list(ZONES).index(zone)), Clock(minutes, 23, start)
    local = [datetime.fromtimestamp(int(time), ZoneInfo(zone)) for time in clock.times]
    offsets = np.array([int(offset.total_seconds()) for time in local if (offset := time.utcoffset()) is not None])
    hours, weekdays = hours_of(clock.times + offsets), weekdays_of(clock.times + offsets)
    mean = 50 + np.where(weekdays < 5, 200, 60) * office(hours) + 30 * daily(hours, 20)
    if zone == "America/New_York":
        mean = mean + 120 * ((hours >= 4) & (hours < 4.75))
    values = counts(rng, mean * np.exp(autoregressive(rng, len(clock), 0.6, 0.03)), 0.003)
    change = int(clock.times[np.flatnonzero(np.diff(offsets))[0] + 1])
    return labelled(f"clock_{zone.split('/')[1]}", "clock", clock, values, zone=zone, change=change)
