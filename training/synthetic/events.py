"""Families of events: trains of pulses, counts, and demand that comes now and then."""

from __future__ import annotations

import math

import numpy as np

from rfa.model.compiling import kernel
from rfa.training.synthetic.chains import autoregression
from rfa.training.synthetic.clocks import Array, Clocks
from rfa.training.synthetic.paths import scaled
from rfa.training.synthetic.seasons import seasonal
from rfa.training.synthetic.trends import trend

LARGEST_RATE, SHAPE_POINTS = 1e5, 64


def events(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Trains of pulses, Σ_i m_i s((t - t_i) / r), `[B, N]`.

    Intervals are regular (a beating heart), jittered or random (calls), heights alike or log-normal. s is a decay e^-u,
    a bump, a box, or a beat: a free sum of bumps.
    """
    count, length = clocks.shape
    rows = clocks.rows
    interval = np.exp(rng.uniform(np.log(6), np.log(250), count))
    width = interval * np.exp(rng.uniform(np.log(0.03), np.log(0.6), count))
    kind = rng.integers(0, 4, count)
    spread = np.where(rng.random(count) < 0.6, rng.uniform(0, 0.15, count), 1.0)
    shapes = _shapes(rng, kind)
    heights = np.where(
        rng.random((count, 1)) < 0.5,
        1 + 0.1 * rng.standard_normal((count, length)),
        np.exp(0.8 * rng.standard_normal((count, length))),
    )
    y = np.zeros((count, length))
    _pulses(rows, interval, np.maximum(width, 1.0), spread, rng.exponential(size=(count, length)), heights, shapes, y)
    return scaled(y)


def _shapes(rng: np.random.Generator, kind: Array) -> Array:
    """Of each series the shape of a pulse, over 4 of its widths, `[B, SHAPE_POINTS]`."""
    u = np.linspace(0, 4, SHAPE_POINTS)
    made = np.stack([np.exp(-u), np.exp(-0.5 * ((u - 2) / 0.5) ** 2), (u < 1).astype(float), np.zeros_like(u)])[kind]
    beats = np.flatnonzero(kind == 3)
    for _ in range(4):
        middle, width = rng.uniform(0.4, 3.6, (len(beats), 1)), rng.uniform(0.08, 0.5, (len(beats), 1))
        made[beats] += rng.normal(size=(len(beats), 1)) * np.exp(-0.5 * ((u - middle) / width) ** 2)
    return made


@kernel()
def _pulses(rows, interval, width, spread, wait, height, shape, y):  # type: ignore[no-untyped-def]
    points = shape.shape[1]
    for b in range(y.shape[0]):
        begin, at, length = -4 * width[b] + wait[b, 0] * interval[b], 0, y.shape[1]
        scale = points / (4 * width[b])
        for k in range(1, length):
            if begin > rows[b, length - 1]:
                break
            while at < length and rows[b, at] < begin:
                at += 1
            t = at
            while t < length:
                place = int((rows[b, t] - begin) * scale)
                if place >= points:
                    break
                y[b, t] += height[b, k] * shape[b, place]
                t += 1
            # Regular but for a share of the interval, or exponential.
            begin += interval[b] * max(1 - spread[b] + spread[b] * wait[b, k], 0.02)


def counts(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Counts, `[B, N]`: Poisson's, or negative binomial ones, of a rate that has a season, a trend and a memory:
    log λ = m + s(t) + g(t) + a(t), means of 0.3 to 3,000."""
    count, length = clocks.shape
    share = rng.uniform(0, 0.8, (3, count, 1))
    log_rate = share[0] * seasonal(rng, clocks) + share[1] * scaled(trend(rng, clocks))
    log_rate += 0.5 * share[2] * autoregression(rng, clocks) + rng.uniform(np.log(0.3), np.log(3000), (count, 1))
    rate = np.exp(np.minimum(log_rate, np.log(LARGEST_RATE)))
    # Negative binomial: the rate of each row is a gamma about it.
    clumped = np.flatnonzero(rng.random(count) < 0.4)
    shape = np.exp(rng.uniform(np.log(0.5), np.log(20), (len(clumped), 1)))
    rate[clumped] *= rng.standard_gamma(np.broadcast_to(shape, (len(clumped), length))) / shape
    return rng.poisson(rate).astype(np.float64)


def intermittent(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Demand that comes now and then (Croston 1972), `[B, N]`.

    Rows are 0 but for a share of 0.02 to 0.6, which may have a season; sizes are log-normal, or whole from 1 on.
    """
    count, length = clocks.shape
    chance = rng.uniform(0.02, 0.6, (count, 1))
    logit = np.log(chance / (1 - chance)) + np.where(rng.random((count, 1)) < 0.5, 1.0, 0.0) * seasonal(rng, clocks)
    comes = rng.random((count, length)) * (1 + np.exp(-logit)) < 1
    sizes = np.where(
        rng.random((count, 1)) < 0.5,
        np.exp(rng.uniform(0.1, 1, (count, 1)) * rng.standard_normal((count, length))),
        1.0 + rng.poisson(np.broadcast_to(rng.uniform(0.1, 6, (count, 1)), (count, length))),
    )
    return comes * sizes


@kernel()
def _excite(chance, base, jump, decay, y):  # type: ignore[no-untyped-def]
    for b in range(y.shape[0]):
        rate = base[b]
        for t in range(y.shape[1]):
            # A Poisson number by inversion, of rates that are small.
            left, number, term = chance[b, t], 0, math.exp(-rate)
            while left > term and number < 50:
                left -= term
                number += 1
                term *= rate / number
            y[b, t] = number
            rate = min(base[b] + (rate - base[b]) * decay[b] + jump[b] * number, 20.0)


def excited(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Counts that bring more of themselves, as failures and shocks do (Hawkes 1971), `[B, N]`.

    λ_t = b + d (λ_{t-1} - b) + j n_{t-1},    j / (1 - d) of 0.2 to 0.9 events for each.
    """
    count, length = clocks.shape
    decay = np.exp(-1 / np.exp(rng.uniform(np.log(2), np.log(60), count)))
    y = np.empty((count, length))
    _excite(
        rng.random((count, length)), np.exp(rng.uniform(np.log(0.02), np.log(2), count)),
        rng.uniform(0.2, 0.9, count) * (1 - decay), decay, y,
    )  # fmt: skip
    return y
