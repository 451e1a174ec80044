"""Generators of seasonal signals: calendar seasons, seasons of any period, and daylight."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import DAY, HOUR, WEEK, Clock
from rfa.training.synthetic.priors import chance, choose, cosine, log_uniform, read
from rfa.training.synthetic.recursions import relax

# Number of points per profile. In a daily profile, a point is a quarter of an hour.
POINTS = 96
HARMONICS = 6
# Number of cycles, such as days, whose sizes are sampled. Later cycles have the size of the last one.
LONGEST_DAYS = 1024
THURSDAY, SUNDAY = 3, 6
PROFILES = {"harmonics": 35, "bumps": 30, "boxes": 12, "bridge": 18, "free": 5}


def profiles(rng: np.random.Generator, count: int, points: int = POINTS) -> np.ndarray:
    """Sample `count` profiles with `points` values each, `[count, points]`.

    A profile is one cycle of a season with mean 0 and variance 1: a sum of harmonics whose amplitudes decay as a power
    of their frequency, a sum of one to three bumps exp(κ (cos 2π(u - c) - 1)), a sum of one to three boxes, a Brownian
    bridge, or white noise.
    """
    u = np.arange(points) / points
    kind = choose(rng, PROFILES, count)
    out = np.empty((count, points))
    for name in PROFILES:
        rows = np.flatnonzero(kind == name)
        shape = (len(rows), 1)
        found = np.zeros((len(rows), points))
        if name == "harmonics":
            fall, most = rng.uniform(0.3, 2, shape), rng.integers(1, HARMONICS + 1, shape)
            for h in range(1, HARMONICS + 1):
                size = rng.standard_normal(shape) * h**-fall * (h <= most)
                found += size * np.cos(2 * np.pi * (h * u + rng.random(shape)))
        elif name in ("bumps", "boxes"):
            for k in range(3):
                size = rng.choice([1.0, 1.0, -1.0], shape) * log_uniform(rng, 0.3, 1, shape)
                size *= 1.0 if k == 0 else rng.random(shape) < 0.5
                away = cosine(u - rng.random(shape)) - 1
                if name == "bumps":
                    found += size * np.exp(log_uniform(rng, 0.5, 60, shape) * away)
                else:
                    found += size * (away >= np.cos(np.pi * rng.uniform(0.04, 0.7, shape)) - 1)
        elif name == "bridge":
            walk = np.cumsum(rng.standard_normal((len(rows), points)), axis=1)
            found = walk - walk[:, -1:] * (u + 1 / points)
        else:
            found = rng.standard_normal((len(rows), points))
        out[rows] = found
    out -= out.mean(axis=1, keepdims=True)
    return out / (out.std(axis=1, keepdims=True) + 1e-9)


def harmonic(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return a season with up to six harmonics, x(t) = Σ_h a_h cos(2π h φ(t) + ψ_h), `[B, N]`.

    φ' = 1/p, where the period p is a calendar period or any other. a_h ~ N(0, h^-2β) with β ~ U(0.3, 2). In a quarter
    of the series, φ also has a Brownian motion of 0.01 to 0.15 cycles per cycle.
    """
    count = clock.count
    cycles = clock.steps / clock.periods(rng)[:, None]
    wander = chance(rng, 0.25, count) * log_uniform(rng, 0.01, 0.15, (count, 1))
    lags = np.diff(cycles, axis=1, prepend=0.0)
    moved = np.flatnonzero(wander)
    cycles[moved] += wander[moved] * np.cumsum(np.sqrt(lags[moved]) * rng.standard_normal(lags[moved].shape), axis=1)
    fall, most = rng.uniform(0.3, 2, (count, 1)), rng.integers(1, HARMONICS + 1, (count, 1))
    out = np.zeros_like(cycles)
    for h in range(1, HARMONICS + 1):
        rows = np.flatnonzero(most >= h)
        shape = (len(rows), 1)
        size = (rng.standard_normal(shape) if h > 1 else 1.0) * h ** -fall[rows]
        out[rows] += size * cosine(h * cycles[rows] + rng.random(shape))
    return out


def profile(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return a repeated profile P of any shape, x(t) = g_k P(t/p mod 1) in cycle k, `[B, N]`.

    In two of five series, log g_k is an AR(1) process with a standard deviation of up to 0.5. In the others, g_k is 1.
    In half of the series, P is constant between its points, which gives sharp edges. In a quarter, P changes to another
    profile, abruptly or slowly.
    """
    count = clock.count
    cycles = clock.steps / clock.periods(rng)[:, None] + rng.random((count, 1))
    is_held = rng.random(count) < 0.5
    out = read(profiles(rng, count), cycles, is_held)
    rows = np.flatnonzero(rng.random(count) < 0.25)
    along = clock.steps[rows] / clock.steps[rows, -1:]
    width = log_uniform(rng, 0.01, 1, (len(rows), 1))
    share = np.clip((along - rng.uniform(-0.2, 1, (len(rows), 1))) / width, 0, 1)
    out[rows] += share * (read(profiles(rng, len(rows)), cycles[rows], is_held[rows]) - out[rows])
    return out * _sizes(rng, cycles, 0.4)


def calendar(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return the seasons of a calendar with working days and days of rest, `[B, N]`.

        x(t) = g_day [l(w) + a D_w(h)] (1 + m Y) + b Y(year) + c M(day of the month)

    D_w is the profile of the hours h. Days of rest have a different profile from working days, or a mixture of both. w
    is the day of the week, and l is its level. In half of the series, about ten days per year are off, and some have a
    longer holiday; these days are treated as Sundays. In half of the series, each day has its own size g. In a quarter,
    the season of the year Y scales the season of the day. Without a calendar, a day has any length, and seven of them
    are a week.
    """
    count = clock.count
    days = clock.days(rng)
    of_year = days / 365.25
    # In a quarter of the series with dates, daylight saving time shifts the local hours.
    is_moved = (rng.random((count, 1)) < 0.25) & clock.has_calendar[:, None] & (clock.step[:, None] <= HOUR)
    days = days + is_moved * (np.abs(of_year % 1 - 0.53) < 0.3) / 24
    whole = np.floor(days)
    weekday = (whole.astype(np.int64) + THURSDAY) % 7
    is_off = _days_off(rng, count)
    weekday = np.where(
        np.take_along_axis(is_off, np.floor((of_year % 1) * 366).astype(np.int64), axis=1), SUNDAY, weekday
    )
    week = _week(rng, count)
    out = read(week, (weekday + (days - whole)) / 7)
    year = read(profiles(rng, count, 52), of_year + rng.random((count, 1)))
    has_modulated = np.flatnonzero(rng.random(count) < 0.25)
    out[has_modulated] *= 1 + rng.uniform(0.1, 0.6, (len(has_modulated), 1)) * np.tanh(year[has_modulated])
    step = np.where(clock.has_calendar, clock.step, HOUR)[:, None]
    out *= np.where(step > WEEK, 0.1, 1.0)  # monthly values are means over many days
    yearly = np.where(step > DAY, 1.0, chance(rng, 0.5, count) * log_uniform(rng, 0.1, 3, (count, 1)))
    slow = yearly * year
    for row in np.flatnonzero(clock.has_calendar & (clock.step >= HOUR) & (rng.random(count) < 0.15)):
        table = rng.standard_normal((1, 32)) * (rng.random((1, 32)) < 0.15)
        slow[row] += rng.uniform(0.3, 1.5) * table[0, _day_of_month(clock.times[row])]
    return out * _sizes(rng, days, 0.5) + slow


def daylight(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return sunlight with clouds, x(t) = c(t) max(0, sin φ sin δ + cos φ cos δ cos h)^q, `[B, N]`.

    h is the hour angle, or noon if the step is too long to resolve hours. δ is the declination of the sun over the
    year, φ is a latitude, and q ~ U(0.7, 1.5). The transmission of the clouds is c = 1/(1 + e^-z), where z is an
    Ornstein-Uhlenbeck process with a correlation time of an hour to three days. In half of the series, the mean of z is
    that of a clear sky.
    """
    count = clock.count
    days = clock.days(rng)
    shows_hours = (clock.step[:, None] < DAY / 3) | ~clock.has_calendar[:, None]
    latitude = rng.uniform(-0.28, 0.28, (count, 1)) * np.pi
    declination = np.deg2rad(23.45) * cosine(days / 365.25 + rng.random((count, 1)))
    elevation = np.sin(latitude) * np.sin(declination)
    hour = np.where(shows_hours, cosine(days + rng.random((count, 1))), 1.0)
    elevation += np.cos(latitude) * np.cos(declination) * hour
    light = np.maximum(elevation, 0) ** rng.uniform(0.7, 1.5, (count, 1))
    decay = np.exp(-np.diff(days, axis=1, prepend=days[:, :1]) / log_uniform(rng, 0.04, 3, (count, 1)))
    drive = np.sqrt(1 - decay**2) * rng.standard_normal(decay.shape)
    drive[:, 0] = rng.standard_normal(count)
    clouds = rng.choice([0.5, 3.0], (count, 1)) + log_uniform(rng, 0.1, 2, (count, 1)) * relax(decay, drive)
    return light / (1 + np.exp(-clouds))


def _week(rng: np.random.Generator, count: int) -> np.ndarray:
    """Sample the profile of a week, which consists of the levels and profiles of working days and days of rest,
    `[B, 7 POINTS]`."""
    work, rest = profiles(rng, count)[:, None], profiles(rng, count)[:, None]
    is_rest = np.zeros((count, 7))
    is_rest[:, 5:] = 1.0
    other = np.flatnonzero(rng.random(count) < 0.2)  # other days of rest, or none
    is_rest[other] = rng.random((len(other), 7)) < rng.choice([0.0, 0.15, 0.3], (len(other), 1))
    mixed = is_rest * rng.uniform(0, 1, count)[:, None]
    lower = is_rest * np.where(
        rng.random((count, 1)) < 0.8, rng.uniform(0, 2.5, (count, 1)), -rng.uniform(0, 2, (count, 1))
    )
    # Each day of the week has its own level in three of five series, and in all series without a day of rest.
    each = np.maximum(chance(rng, 0.6, count), ~is_rest.any(axis=1, keepdims=True))
    each = each * log_uniform(rng, 0.02, 0.5, (count, 1)) * rng.standard_normal((count, 7))
    size = (1 - is_rest * rng.uniform(-0.2, 0.9, (count, 1)))[:, :, None]
    hours = size * (work + mixed[:, :, None] * (rest - work))
    return (each[:, :, None] - lower[:, :, None] + hours).reshape(count, -1)


def _days_off(rng: np.random.Generator, count: int) -> np.ndarray:
    """Sample whether each day of a year is off, `[B, 366]`."""
    is_off = (rng.random((count, 366)) < 10 / 366) & (rng.random((count, 1)) < 0.5)
    for row in np.flatnonzero(is_off.any(axis=1) & (rng.random(count) < 0.4)):
        begin = int(rng.integers(0, 366))
        is_off[row, begin : begin + int(rng.integers(3, 15))] = True
    return is_off


def _sizes(rng: np.random.Generator, cycles: np.ndarray, share: float) -> np.ndarray:
    """Sample the size of the cycle at each time, `[B, N]`. Its logarithm is an AR(1) process in the fraction `share` of
    the series, and 0 in the others."""
    count = len(cycles)
    out = np.ones_like(cycles)
    rows = np.flatnonzero(rng.random(count) < share)
    if len(rows):
        index = np.minimum(np.floor(cycles[rows] - np.floor(cycles[rows, :1])).astype(np.int64), LONGEST_DAYS - 1)
        shape = (len(rows), int(index.max()) + 1)
        kept = np.broadcast_to(rng.uniform(0, 0.98, (len(rows), 1)), shape)
        drive = np.sqrt(1 - kept**2) * rng.standard_normal(shape)
        sizes = np.exp(log_uniform(rng, 0.02, 0.5, (len(rows), 1)) * relax(kept, drive))
        out[rows] = np.take_along_axis(sizes, index, axis=1)
    return out


def _day_of_month(times: np.ndarray) -> np.ndarray:
    """Return the day of the month, `[N]`, from 0 to 30."""
    moments = times.astype(np.int64).astype("datetime64[s]")
    return (moments.astype("datetime64[D]") - moments.astype("datetime64[M]")).astype(np.int64)
