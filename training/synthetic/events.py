"""Generators of shot noise, which is the sum of responses to events, and of quantities that fill up and reset."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.priors import chance, choose, log_uniform
from rfa.training.synthetic.recursions import BOX, DECAY, PULSE, TRIANGLE, interpolate, superpose

ARRIVALS = {"random": 40, "periodic": 35, "clustered": 25}
RESPONSES = {DECAY: 40, PULSE: 25, BOX: 25, TRIANGLE: 10}
MARKS = {"same": 40, "exponential": 25, "lognormal": 35}
# Maximum number of events per series. More events would look like noise.
EVENTS = 256


def events(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return shot noise x(t) = Σ_k m_k r((t - t_k) / d), `[B, N]`. It resembles jobs, orders, rain or spikes.

    Events arrive at random (a Poisson process), periodically (some with calendar periods) with a jitter of up to 0.2
    periods, or in clusters, where each event of a Poisson process is followed by a geometric number of others at
    exponential lags (Neyman-Scott). Marks m_k are equal, exponential or lognormal; in a fifth of the series, they have
    random signs. The response r is a decay, a pulse, a box or a triangle that lasts up to a third of the mean interval.
    """
    count = clock.count
    every, arrivals = arriving(rng, clock, choose(rng, ARRIVALS, count))
    kind = choose(rng, MARKS, count)[:, None]
    shape = arrivals.shape
    spread = rng.uniform(0.3, 1.2, (count, 1))
    lognormal = np.exp(spread * rng.standard_normal(shape))
    marks = np.where(kind == "same", 1.0, np.where(kind == "lognormal", lognormal, rng.standard_exponential(shape)))
    marks = np.where((chance(rng, 0.2, count) > 0) & (rng.random(shape) < 0.5), -marks, marks)
    response = choose(rng, RESPONSES, count)
    duration = every * log_uniform(rng, 0.01, 0.33, count)
    shortest = np.where((response == BOX) | (response == TRIANGLE), 1.01, 0.1)
    return superpose(clock.steps, arrivals, marks, np.maximum(duration, shortest), response)


def arriving(rng: np.random.Generator, clock: Clock, kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean interval `[B]` and the increasing times `[B, K]` of events, in steps. Times after the last event
    are infinite.

    The first event may precede the series, whose first values then contain its response.
    """
    count = clock.count
    span = clock.steps[:, -1]
    every = np.where(kind == "periodic", clock.periods(rng), log_uniform(rng, 4, clock.length / 3, count))
    every = np.maximum(every, 1.5 * span / EVENTS)
    jitter = chance(rng, 0.6, count) * log_uniform(rng, 0.005, 0.2, (count, 1))
    ticks = every[:, None] * (
        np.arange(EVENTS) + rng.random((count, 1)) + jitter * rng.standard_normal((count, EVENTS))
    )
    lags = every[:, None] * rng.standard_exponential((count, EVENTS))
    # Events within a cluster are close together. The mean interval is unchanged.
    others = log_uniform(rng, 1, 10, (count, 1))
    is_within = rng.random((count, EVENTS)) < others / (1 + others)
    fast = rng.uniform(0.01, 0.2, (count, 1))
    clustered = lags * np.where(is_within, fast, 1 + others * (1 - fast))
    times = np.where(kind[:, None] == "clustered", np.cumsum(clustered, axis=1), np.cumsum(lags, axis=1))
    times = np.sort(np.where(kind[:, None] == "periodic", ticks, times), axis=1) - 2 * every[:, None]
    return every, np.where(times <= span[:, None], times, np.inf)


def resets(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return the values of a quantity that repeatedly fills up to a threshold and is emptied, such as a tank or a
    battery, `[B, N]`.

    A cycle of period p rises for the time u p and falls for (1 - u) p, between thresholds that vary by cycle. In half
    of the series, the fall is immediate (a sawtooth). Durations vary by up to a half. The curve between the thresholds
    is linear, or y = (1 - e^(-c s)) / (1 - e^-c), as for heat and charge.
    """
    count = clock.count
    period = np.where(rng.random(count) < 0.5, clock.periods(rng), log_uniform(rng, 5, clock.length / 2, count))
    cycles = int(np.ceil(1.5 * clock.steps.max() / period.min())) + 4
    shape = (count, cycles)
    share = np.where(chance(rng, 0.5, count) > 0, 1.0, rng.uniform(0.1, 0.95, (count, 1)))
    vary = chance(rng, 0.7, count) * log_uniform(rng, 0.01, 0.5, (count, 1))
    lasts = period[:, None] * np.exp(vary * rng.standard_normal(shape) - vary**2 / 2)
    rising, falling = share * lasts, np.maximum((1 - share) * lasts, 1e-6 * period[:, None])
    nodes = np.cumsum(np.stack([rising, falling], axis=2).reshape(count, -1), axis=1)
    nodes = np.concatenate([np.zeros((count, 1)), nodes], axis=1) - rng.random((count, 1)) * period[:, None]
    blur = chance(rng, 0.6, count) * log_uniform(rng, 0.01, 0.4, (count, 1))
    full, empty = 1 + blur * rng.standard_normal(shape), blur * rng.standard_normal(shape)
    levels = np.concatenate([np.zeros((count, 1)), np.stack([full, empty], axis=2).reshape(count, -1)], axis=1)
    # The position between two thresholds, from 0 to 1, is curved and then converted to their units.
    place = interpolate(clock.steps, nodes, np.tile(np.arange(nodes.shape[1], dtype=np.float64), (count, 1)))
    index = np.minimum(place.astype(np.int64), nodes.shape[1] - 2)
    way = np.clip(place - index, 0, 1)
    bent = np.flatnonzero(rng.random(count) < 0.5)
    bend = log_uniform(rng, 0.3, 6, (len(bent), 1)) * rng.choice([-1.0, 1.0, 1.0], (len(bent), 1))
    way[bent] = np.expm1(-bend * way[bent]) / np.expm1(-bend)
    before = np.take_along_axis(levels, index, axis=1)
    out = before + way * (np.take_along_axis(levels, index + 1, axis=1) - before)
    return out * rng.choice([-1.0, 1.0, 1.0], (count, 1))
