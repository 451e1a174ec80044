"""Seasons: what comes again, by the calendar where there is a clock, and with any period.

    y(t) = shape(t / p + φ mod 1) · week(t) · e^{g(t)}

shape: harmonics Σ_k a_k cos(2π k u + φ_k) of amplitudes |N(0, 1)| k^-d, d ~ U(0.3, 1.5); a free profile, smooth or in
steps; a box; a bump. week: some of seven turns are damped, as weekends are of a daily pattern. g: a slow walk. Periods
are a day, a week and a year in steps of the clock where these are 3 to N / 2, else log-uniform from 3 to N / 2 rows, a
whole number in two of three.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rfa.training.synthetic.clocks import DAY, WEEK, YEAR, Array, Clocks
from rfa.training.synthetic.paths import random_walk

CALENDAR: Final = (DAY, WEEK, YEAR)
LEAST_ROWS, MOST_HARMONICS, MOST_SLOTS = 3.0, 6, 96
BY_CALENDAR = 0.8
HARMONICS, PROFILE, BOX = 0.5, 0.8, 0.9
WITH_WEEK, CHANGING = 0.3, 0.35


def draw_periods(rng: np.random.Generator, clocks: Clocks) -> Array:
    """`[B]` seconds."""
    count, length = clocks.shape
    longest = length / 2
    found = np.exp(rng.uniform(np.log(LEAST_ROWS), np.log(longest), count))
    found = np.where(rng.random(count) < 2 / 3, np.maximum(np.rint(found), LEAST_ROWS), found)
    lags = np.array(CALENDAR) / clocks.step[:, None]
    fits = (lags >= LEAST_ROWS) & (lags <= longest) & clocks.is_dated[:, None]
    # A day before a week, a week before a year: the weight of what comes first is twice that of the next.
    chance = fits * np.array([4.0, 2.0, 1.0])
    total = chance.sum(axis=1)
    pick = (rng.random(count)[:, None] * total[:, None] >= chance.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    by_calendar = (rng.random(count) < BY_CALENDAR) & (total > 0)
    return np.where(by_calendar, lags[np.arange(count), pick], found) * clocks.step


def seasonal(rng: np.random.Generator, clocks: Clocks) -> Array:
    """A season each, `[B, N]`, of mean 0 and variance 1 over its turns."""
    count, _ = clocks.shape
    period = draw_periods(rng, clocks)
    turns = clocks.turns(period) + rng.random((count, 1), np.float32)
    turns -= np.floor(turns)
    kind = rng.random(count)
    y = np.empty_like(turns)
    for which, shape in (
        (kind < HARMONICS, _harmonics),
        ((kind >= HARMONICS) & (kind < PROFILE), _profile),
        ((kind >= PROFILE) & (kind < BOX), _box),
        (kind >= BOX, _bump),
    ):
        if which.any():
            y[which] = shape(rng, turns[which], (period / clocks.step)[which])
    y -= y.mean(axis=1, keepdims=True)
    y /= y.std(axis=1, keepdims=True) + 1e-3
    weekly = np.flatnonzero(rng.random(count) < WITH_WEEK)
    y[weekly] *= _week(rng, clocks[weekly], period[weekly])
    changing = np.flatnonzero(rng.random(count) < CHANGING)
    slow = random_walk(rng, len(changing), y.shape[1]).astype(np.float32)
    y[changing] *= np.exp(rng.uniform(0, 1, (len(changing), 1)).astype(np.float32) * slow)
    return y.astype(np.float64)


def _harmonics(rng: np.random.Generator, turns: Array, rows: Array) -> Array:
    """Harmonics of a season, as many as its rows can show."""
    count = len(turns)
    base = np.exp(np.complex64(2j * np.pi) * turns)
    power, y = np.ones_like(base), np.zeros(turns.shape, np.float32)
    order = np.arange(1, MOST_HARMONICS + 1)
    amplitude = rng.standard_normal((count, MOST_HARMONICS)) * order ** -rng.uniform(0.3, 1.5, (count, 1))
    shown = np.minimum(rng.integers(1, MOST_HARMONICS + 1, count), np.maximum(rows // 2, 1))
    amplitude *= order <= shown[:, None]
    weight = (amplitude * np.exp(1j * rng.uniform(0, 2 * np.pi, amplitude.shape))).astype(np.complex64)
    for k in range(MOST_HARMONICS):
        power *= base
        y += (weight[:, k, None] * power).real
    return y


def _profile(rng: np.random.Generator, turns: Array, rows: Array) -> Array:
    """Any numbers, between which lines go or that stand for their slot: independent, or a walk that comes back."""
    count = len(turns)
    slots = np.clip(np.rint(rows), 2, MOST_SLOTS).astype(np.int64)
    free = rng.standard_normal((count, MOST_SLOTS))
    place = np.arange(MOST_SLOTS)
    walk = (free * (place < slots[:, None])).cumsum(axis=1)
    last = walk[np.arange(count), slots - 1][:, None]
    walk -= last * np.minimum((place + 1) / slots[:, None], 1.0)
    profile = np.where(rng.random((count, 1)) < 0.5, free, walk).astype(np.float32)
    at = turns * slots[:, None].astype(np.float32)
    before = np.minimum(at.astype(np.int64), slots[:, None] - 1)
    first = np.take_along_axis(profile, before, axis=1)
    second = np.take_along_axis(profile, (before + 1) % slots[:, None], axis=1)
    share = np.where(rng.random((count, 1)) < 0.5, 0.0, at - before).astype(np.float32)
    return first + share * (second - first)


def _box(rng: np.random.Generator, turns: Array, rows: Array) -> Array:
    width = np.maximum(rng.uniform(0.05, 0.6, (len(turns), 1)), 1 / rows[:, None])
    return ((turns < width) * rng.choice([-1.0, 1.0], (len(turns), 1))).astype(np.float32)


def _bump(rng: np.random.Generator, turns: Array, rows: Array) -> Array:
    width = np.maximum(rng.uniform(0.01, 0.15, (len(turns), 1)), 0.5 / rows[:, None]).astype(np.float32)
    sign = rng.choice([-1.0, 1.0], (len(turns), 1)).astype(np.float32)
    return sign * np.exp(-0.5 * ((turns - 0.5) / width) ** 2)


def _week(rng: np.random.Generator, clocks: Clocks, period: Array) -> Array:
    """What each turn counts, by its place among seven: by the calendar, two days of a week for a daily pattern."""
    count = len(period)
    is_daily = (period == DAY) & clocks.is_dated
    # The first of January 1970 was a Thursday.
    turn = np.floor(clocks.times / period[:, None]).astype(np.int64) + np.where(is_daily, 3, 0)[:, None]
    is_off = rng.random((count, 7)) < 0.3
    is_off[is_daily] = np.arange(7) >= 5
    weight = np.where(is_off, rng.uniform(0, 0.6, (count, 1)), 1.0)
    return np.take_along_axis(weight, turn % 7, axis=1).astype(np.float32)


def calendar(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Days of their own, `[B, N]`: free days here and there, the ends of months, and a year that is felt; of rows that
    are not dated a season."""
    y = seasonal(rng, clocks)
    dated = np.flatnonzero(clocks.is_dated & (clocks.step <= DAY))
    if not len(dated):
        return y
    some = clocks[dated]
    days = np.floor(some.times / DAY).astype(np.int64)
    of_month = _day_of_month(days)
    # A day in forty is free: a hash of its number tells which, so that all its rows are.
    salt = rng.integers(1, 2**31, (len(dated), 1))
    is_free = ((days * 2_654_435_761 + salt) >> 7) % 40 == 0
    ends = rng.normal(size=(len(dated), 1)) * (of_month <= 2) + rng.normal(size=(len(dated), 1)) * (of_month >= 29)
    of_year = np.cos(2 * np.pi * (some.times / YEAR + rng.random((len(dated), 1))))
    share = rng.uniform(0, 1, (3, len(dated), 1))
    y[dated] = y[dated] * np.where(is_free, share[0], 1.0) + share[1] * ends + share[2] * of_year
    return y


def _day_of_month(days: Array) -> Array:
    """From 1, of days since 1970."""
    dates = days.astype("datetime64[D]")
    found: Array = (dates - dates.astype("datetime64[M]")).astype(np.int64) + 1
    return found
