"""Sixteen kinds of incidents, three series of each: they differ in step, level, noise, hour and size."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from rfa.benchmarks.oncall.parts import (
    Array,
    Clock,
    Series,
    autoregressive,
    counts,
    daily,
    generator,
    heavy,
    labelled,
    office,
)

NUMBERS = (0, 1, 2)


def errors(number: int) -> Series:
    """Simulate errors that are nearly always 0, with a burst."""
    rng = generator(1, number)
    minutes, rate, spread = ((1, 0.02, 3), (5, 0.05, 6), (5, 0.012, 1))[number]
    hour, rows, burst = ((10.3, 20, 6.0), (3.1, 6, 9.0), (19.7, 8, 5.0))[number]
    clock = Clock(minutes, 14)
    values = counts(rng, np.full(len(clock), rate), spread)
    begin = clock.row(12, hour)
    values[begin : begin + rows] = counts(rng, np.full(rows, burst), 0.3) + 1
    return labelled(f"errors_{number}", "errors burst", clock, values, (begin, begin + rows))


def latency(number: int) -> Series:
    """Simulate a skewed latency that doubles for half an hour."""
    rng = generator(2, number)
    minutes, level, memory, freedom = ((1, 120, 0.5, 3), (5, 45, 0.3, 4), (2, 310, 0.7, 3))[number]
    hour, digits = ((15.2, 1), (9.5, 1), (2.4, 0))[number]
    clock = Clock(minutes, 10)
    noise = autoregressive(rng, len(clock), memory, 0.07) + 0.04 * heavy(rng, len(clock), freedom)
    values = level * (1 + 0.3 * daily(clock.hours)) * np.exp(noise)
    begin, rows = clock.row(8, hour), 30 // minutes
    values[begin : begin + rows] *= 2
    return labelled(f"latency_{number}", "latency x2 30 min", clock, values, (begin, begin + rows), digits=digits)


def zero(number: int) -> Series:
    """Simulate requests that stop, or nearly stop, at the peak of the day."""
    rng = generator(3, number)
    minutes, days, level, day, rows = ((5, 14, 800, 11, 6), (1, 7, 40, 4, 15), (10, 21, 2600, 17, 4))[number]
    clock = Clock(minutes, days)
    mean = level * (0.15 + daily(clock.hours)) * np.where(clock.weekdays >= 5, 0.7, 1)
    values = counts(rng, mean, 0.004)
    begin = clock.row(day, 13.6)
    values[begin : begin + rows] = 0 if number < 2 else rng.poisson(20, rows)
    return labelled(f"zero_{number}", "traffic to zero", clock, values, (begin, begin + rows))


def night_drop(number: int) -> Series:
    """Simulate requests that are 40 % lower for two hours of a night."""
    rng = generator(4, number)
    minutes, days, level, spread = ((5, 14, 1500, 0.002), (10, 16, 900, 0.004), (15, 21, 5000, 0.001))[number]
    day, hour = ((11, 2.0), (10, 1.3), (17, 3.0))[number]
    clock = Clock(minutes, days)
    week = np.where(clock.weekdays >= 5, 0.75, 1)
    mean = level * (0.2 + daily(clock.hours)) * week * np.exp(autoregressive(rng, len(clock), 0.8, 0.03))
    begin, rows = clock.row(day, hour), 120 // minutes
    mean[begin : begin + rows] *= 0.6
    return labelled(f"nightdrop_{number}", "night drop 40 %", clock, counts(rng, mean, spread), (begin, begin + rows))


def leak(number: int) -> Series:
    """Simulate memory that grows by 40 % in 12, 24 or 36 hours, until a restart."""
    rng = generator(5, number)
    minutes, days, level, day, hours = ((5, 10, 2100, 8, 12), (5, 14, 900, 12, 24), (15, 21, 12000, 18, 36))[number]
    clock = Clock(minutes, days)
    noise = autoregressive(rng, len(clock), 0.85, 0.008) + 0.004 * rng.standard_normal(len(clock))
    values = level * (1 + 0.03 * daily(clock.hours) + noise)
    begin = clock.row(day, 9.0)
    end = min(len(clock), begin + hours * 60 // minutes)
    growth = level * 0.4 * (clock.times - clock.times[begin]) / (hours * 3600.0)
    values[begin:] += growth[begin:]
    values[end:] -= growth[end:]
    return labelled(f"leak_{number}", "memory leak", clock, values, (begin, end), within=10, digits=1)


def disk(number: int) -> Series:
    """Simulate a disk that fills ten times as fast for some hours. Logs on the first disk are rotated each night."""
    rng = generator(6, number)
    minutes, days, growth, level = ((5, 14, 0.02, 210), (10, 21, 0.05, 400), (1, 7, 0.01, 55))[number]
    day, hour, rows, times, digits = ((12, 16.2, 48, 10, 2), (18, 4.0, 30, 8, 1), (6, 11.0, 180, 12, 3))[number]
    clock = Clock(minutes, days)
    steps = rng.gamma(2, 0.5, len(clock)) * growth * (0.5 + daily(clock.hours))
    begin = clock.row(day, hour)
    steps[begin : begin + rows] *= times
    values = level + np.cumsum(steps)
    for night in range(1, days) if number == 0 else ():
        row = clock.row(night, 10 / 60)
        values[row:] -= 0.8 * (values[row - 1] - values[clock.row(night - 1, 0.4)])
    return labelled(f"disk_{number}", "disk fills faster", clock, values, (begin, begin + rows), digits=digits)


def stuck(number: int) -> Series:
    """Simulate a temperature in steps of 0.1 or 0.5, whose sensor is stuck for some time."""
    rng = generator(7, number)
    minutes, days, noise, unit = ((5, 10, 0.2, 0.1), (1, 5, 0.15, 0.1), (10, 21, 0.35, 0.5))[number]
    day, hour, rows = ((8, 10.5, 36), (4, 13.0, 120), (18, 9.0, 36))[number]
    clock = Clock(minutes, days)
    values = 21 + 3 * daily(clock.hours, 16) + autoregressive(rng, len(clock), 0.97, 0.8)
    values = np.round((values + noise * rng.standard_normal(len(clock))) / unit) * unit
    begin = clock.row(day, hour)
    values[begin : begin + rows] = values[begin]
    return labelled(f"stuck_{number}", "stuck sensor", clock, values, (begin, begin + rows), within=10, digits=1)


def noisy(number: int) -> Series:
    """Simulate a sensor whose noise becomes four or five times as large."""
    rng = generator(8, number)
    minutes, days, level, depth, unit = ((5, 10, 60, 5, 1), (1, 5, 1013, 2, 0.5), (10, 21, 7.2, 0.3, 0.05))[number]
    day, hour, rows, times = ((8, 22.0, 36, 4), (4, 6.0, 120, 4), (18, 14.0, 24, 5))[number]
    clock = Clock(minutes, days)
    begin, deviation = clock.row(day, hour), np.ones(len(clock))
    deviation[begin : begin + rows] = times
    slow = autoregressive(rng, len(clock), 0.95, 1.2)
    fast = heavy(rng, len(clock), 5) if number == 2 else rng.standard_normal(len(clock))
    values = level + depth * daily(clock.hours) + unit * (slow + deviation * fast)
    return labelled(f"noisy_{number}", "noisy sensor", clock, values, (begin, begin + rows), within=10, digits=2)


def missing(number: int) -> Series:
    """Simulate an hour without values. The second series has rows without values, the others have no rows."""
    rng = generator(9, number)
    minutes, days, day, hour, stray = ((1, 7, 5, 11.0, 0.002), (5, 14, 12, 2.0, 0), (10, 21, 18, 16.0, 0.001))[number]
    clock = Clock(minutes, days)
    noise = autoregressive(rng, len(clock), 0.7, 4) + 2 * heavy(rng, len(clock), 4)
    values = 35 + 30 * daily(clock.hours) + noise
    begin, rows = clock.row(day, hour), 60 // minutes
    dropped = rng.random(len(clock)) < stray
    dropped[begin - 40 : begin + rows + 40] = False
    dropped[:2] = False
    if number == 1:
        values[begin : begin + rows] = np.nan
    else:
        dropped[begin : begin + rows] = True
    return labelled(
        f"missing_{number}", "missing an hour", clock, values, (begin, begin + rows),
        within=rows + 1, digits=1, dropped=np.flatnonzero(dropped),
    )  # fmt: skip


def shift(number: int) -> Series:
    """Simulate a permanent change of the level."""
    rng = generator(10, number)
    minutes, days, level, depth, unit = ((5, 10, 50, 12, 2.0), (1, 5, 210, 20, 3.0), (15, 21, 14, 2, 0.4))[number]
    memory, day, hour, size = ((0.6, 9, 12.2, 6), (0.4, 4, 4.0, -6), (0.3, 19, 20.0, 5))[number]
    clock = Clock(minutes, days)
    noise = autoregressive(rng, len(clock), memory, 1)
    noise = noise + 0.5 * (heavy(rng, len(clock), 3) if number == 1 else rng.standard_normal(len(clock)))
    values = level + depth * daily(clock.hours) + unit * noise
    begin = clock.row(day, hour)
    values[begin:] += unit * size
    return labelled(f"shift_{number}", "level shift", clock, values, (begin, len(clock)), digits=2)


def holiday(number: int) -> Series:
    """Simulate a weekday with the logins of a weekend. The incident begins where they differ by four deviations."""
    rng = generator(11, number)
    minutes, level, share, day = ((15, 300, 0.25, 17), (10, 90, 0.1, 16), (15, 4000, 0.4, 18))[number]
    clock = Clock(minutes, 21)
    hours = office(clock.hours)
    weekend = level * (0.08 + share * hours)
    usual = np.where(clock.weekdays < 5, level * (0.08 + hours), weekend)
    first, last = clock.row(day, 0), clock.row(day + 1, 0)
    mean = usual.copy()
    mean[first:last] = weekend[first:last]
    values = counts(rng, mean * np.exp(0.04 * autoregressive(rng, len(clock), 0.6)), 0.002)
    deviation = np.sqrt(usual + (0.06 * usual) ** 2)
    differs = first + np.flatnonzero(np.abs(usual - mean)[first:last] > 4 * deviation[first:last])
    return labelled(f"holiday_{number}", "weekday as weekend", clock, values, (int(differs[0]), int(differs[-1]) + 1))


def missing_job(number: int) -> Series:
    """Simulate a nightly job that does not run in one night."""
    rng = generator(12, number)
    minutes, days, level, depth, missed = ((5, 14, 20, 10, 12), (5, 18, 8, 2, 16), (1, 10, 30, 15, 8))[number]
    hour, late, rows, size = ((2, 1, 6, 50), (4.5, 0, 2, 60), (1, 3, 40, 45))[number]
    clock = Clock(minutes, days)
    noise = autoregressive(rng, len(clock), 0.7, 2), heavy(rng, len(clock), 4)
    values = np.maximum(0, level + depth * daily(clock.hours) + noise[0] + noise[1])
    for day in range(days):
        begin = clock.row(day, hour) + int(rng.integers(0, late + 1))
        lasts = rows + (int(rng.integers(-1, 2)) if rows > 2 else 0)
        if day != missed:
            values[begin : begin + lasts] += size * (1 + 0.08 * rng.standard_normal(lasts))
    begin = clock.row(missed, hour) + late
    return labelled(f"nojob_{number}", "daily job missing", clock, values, (begin, begin + rows), digits=1)


def _cycle_shapes(number: int, phase: Array) -> tuple[Array, Array]:
    """Return the usual and the unusual shape of a cycle."""
    if number == 0:  # a tank that fills slowly and drains fast, and the reverse
        rising = np.where(phase < 0.65, phase / 0.65, (1 - phase) / 0.35)
        return rising, np.where(phase < 0.35, phase / 0.35, (1 - phase) / 0.65)
    if number == 1:  # a motor with its inrush, and one that stops and starts again
        twice = (phase < 0.15) | ((phase > 0.25) & (phase < 0.4))
        return np.where(phase < 0.4, 1 + 0.6 * np.exp(-phase * 40), 0.05), np.where(twice, 1, 0.05)
    bump = np.sin(np.pi * phase) ** 2
    return bump, np.where(np.abs(phase - 0.5) < 0.2, 0.55, 1) * bump


def cycle(number: int) -> Series:
    """Simulate cycles, of which one, two or three have another shape. The limit is three cycles."""
    rng = generator(13, number)
    minutes, days, usual, day, odd_cycles = ((1, 5, 40, 4, 2), (1, 6, 60, 5, 1), (5, 14, 24, 12, 3))[number]
    size, noise = ((3, 0.06), (12, 0.25), (40, 0.8))[number]
    clock = Clock(minutes, days)
    values, target = np.empty(len(clock)), clock.row(day, 7.0)
    row, odd_rows = 0, [target]
    while row < len(clock):
        period = max(8, round(usual * (1 + 0.02 * rng.standard_normal())))
        is_odd = row >= target and len(odd_rows) <= odd_cycles
        shape = _cycle_shapes(number, np.arange(period) / period)[is_odd]
        values[row : row + period] = shape[: len(clock) - row]
        if is_odd:
            odd_rows = [*([row] if odd_rows == [target] else odd_rows), min(row + period, len(clock))]
        row += period
    values = size * values + noise * rng.standard_normal(len(clock))
    rows = odd_rows[0], odd_rows[-1]
    return labelled(f"cycle_{number}", "cycle of another shape", clock, values, rows, within=3 * usual)


def queue(number: int) -> Series:
    """Simulate a queue that is not processed for some rows, and then twice as fast."""
    rng = generator(14, number)
    minutes, days, arrival, spread, capacity = ((1, 7, 30, 0.15, 55), (5, 14, 200, 0.1, 400), (2, 10, 12, 0.3, 22))[
        number
    ]
    day, hour, rows = ((6, 10.0, 45), (12, 15.0, 12), (8, 6.0, 60))[number]
    clock = Clock(minutes, days)
    begin = clock.row(day, hour)
    arrived = counts(rng, arrival * (0.25 + daily(clock.hours)), spread)
    waiting, values = 0, np.empty(len(clock), int)
    for row in range(len(clock)):
        done = 0 if begin <= row < begin + rows else capacity * rng.uniform(0.6, 1.1)
        waiting = max(0, int(waiting + arrived[row] - (2 * done if row >= begin + rows else done)))
        values[row] = waiting
    return labelled(f"queue_{number}", "queue does not drain", clock, values, (begin, begin + rows))


def counter(number: int) -> Series:
    """Simulate a counter that rarely restarts at 0, and does so every two or three rows in the incident."""
    rng = generator(15, number)
    minutes, days, rate, restarts = ((1, 7, 900, (2, 5)), (5, 14, 40000, (3, 8)), (1, 10, 60, (4,)))[number]
    day, hour, rows = ((6, 13.0, 40), (12, 3.0, 12), (8, 20.0, 60))[number]
    clock = Clock(minutes, days)
    steps = counts(rng, rate * (0.2 + daily(clock.hours)), 0.01)
    begin = row = clock.row(day, hour)
    resets = {0, *(clock.row(restart, 9.5) for restart in restarts)}
    while row < begin + rows:
        resets.add(row)
        row += int(rng.integers(2, 4))
    values = np.concatenate([np.cumsum(steps[a:b]) for a, b in pairwise([*sorted(resets), len(clock)])])
    return labelled(f"counter_{number}", "counter reset storm", clock, values, (begin, begin + rows))


def spike(number: int) -> Series:
    """Simulate one row that deviates by eight times the error of the best forecast, which is 1.33 times the noise."""
    rng = generator(16, number)
    minutes, days, level, depth, unit = ((5, 10, 70, 8, 1), (1, 5, 20, 3, 0.3), (10, 21, 500, 60, 10))[number]
    day, hour, sign = ((8, 3.7, 1), (4, 17.2, 1), (18, 13.0, -1))[number]
    clock = Clock(minutes, days)
    begin, n = clock.row(day, hour), len(clock)
    deviation = np.ones(n) if number < 2 else 0.4 + 0.8 * daily(clock.hours)
    fast = (rng.standard_normal(n), heavy(rng, n, 5), rng.standard_normal(n))[number]
    noise = autoregressive(rng, n, 0.9, 1.5) + deviation * fast
    values = level + depth * daily(clock.hours) + unit * noise
    values[begin] += unit * 8 * 1.33 * deviation[begin] * sign
    return labelled(f"spike_{number}", "spike of 8 sigma", clock, values, (begin, begin + 1), digits=2)


INCIDENTS: tuple[Callable[[int], Series], ...] = (
    errors, latency, zero, night_drop, leak, disk, stuck, noisy,
    missing, shift, holiday, missing_job, cycle, queue, counter, spike,
)  # fmt: skip
