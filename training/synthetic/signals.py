"""Generators of signals that do not depend on the calendar: heartbeat-like pulses and modulated waves."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.priors import chance, choose, cosine, log_uniform, read
from rfa.training.synthetic.recursions import interpolate, relax

# Number of points per beat, and maximum number of Gaussians per beat. A model of a heartbeat has five Gaussians.
POINTS = 256
WAVES = 5
PARTIALS = 3
SHAPES = {"sine": 50, "square": 15, "triangle": 15, "ramp": 20}


def pulses(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return a waveform W that is repeated from beat to beat, x(t) = a_k W((t - b_k) / (b_(k+1) - b_k)), `[B, N]`.

    W is a sum of one to five Gaussians of the phase. At most two of them are tall and narrow. It has the shape of
    McSharry et al., A dynamical model for generating synthetic electrocardiogram signals, 2003, with random sizes. The
    intervals b_(k+1) - b_k are p e^v, where v is an AR(1) process with a standard deviation of 0.003 to 0.15. In a
    fifth of the series, single beats come early or are missed. The sizes a_k vary by up to a third.
    """
    count = clock.count
    period = log_uniform(rng, 6, clock.length / 5, count)
    phase = beating(rng, clock.steps, period, log_uniform(rng, 0.003, 0.15, count), chance(rng, 0.2, count)[:, 0])
    beat = np.floor(phase).astype(np.int64)
    shape = (count, int(beat.max()) + 1)
    sizes = np.exp(chance(rng, 0.5, count) * log_uniform(rng, 0.01, 0.3, (count, 1)) * rng.standard_normal(shape))
    return read(_beat(rng, count), phase) * np.take_along_axis(sizes, beat, axis=1)


def beating(
    rng: np.random.Generator, steps: np.ndarray, period: np.ndarray, spread: np.ndarray, is_odd: np.ndarray
) -> np.ndarray:
    """Return the number of beats until each time, `[B, N]`. The series starts during the first beat.

    Args:
        rng: Random generator.
        steps: Times, `[B, N]`.
        period: Median interval in steps, `[B]`.
        spread: Standard deviation of the logarithm of the interval, `[B]`.
        is_odd: 1 if three beats in a hundred come early or are missed, else 0, `[B]`.
    """
    count = len(steps)
    shape = (count, int(np.ceil(2 * steps.max() / period.min())) + 4)
    kept = np.broadcast_to(rng.uniform(0, 0.95, (count, 1)), shape)
    varied = relax(kept, np.sqrt(1 - kept**2) * rng.standard_normal(shape))
    intervals = period[:, None] * np.exp(spread[:, None] * varied)
    odd = rng.choice([0.6, 0.75, 1.5, 2.0], shape)
    intervals *= np.where((rng.random(shape) < 0.03) & (is_odd[:, None] > 0), odd, 1.0)
    ends = np.cumsum(intervals, axis=1) - intervals[:, :1] * rng.random((count, 1))
    nodes = np.concatenate([ends[:, :1] - intervals[:, :1], ends], axis=1)
    return interpolate(steps, nodes, np.tile(np.arange(nodes.shape[1], dtype=np.float64), (count, 1)))


def _beat(rng: np.random.Generator, count: int) -> np.ndarray:
    """Sample a waveform, which is a sum of Gaussians of the phase, for each series, `[B, M]`."""
    u = np.arange(POINTS) / POINTS
    out = np.zeros((count, POINTS))
    waves = rng.integers(1, WAVES + 1, (count, 1))
    for k in range(WAVES):
        away = (u - rng.random((count, 1)) + 0.5) % 1 - 0.5
        low, high = (0.008, 0.05) if k < 2 else (0.02, 0.2)
        width = log_uniform(rng, low, high, (count, 1))
        size = (1.0 if k == 0 else rng.normal(0, 0.4, (count, 1))) * (waves > k)
        out += size * np.exp(-0.5 * (away / width) ** 2)
    return out


def modulated(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return sums of up to three waves with variable amplitude and frequency, x(t) = Σ_i A_i(t) w(φ_i(t)), `[B, N]`.

    The frequency φ' = f e^(r t) (1 + m cos 2π g t) changes by up to two octaves and is modulated. The amplitude is A =
    a (1 + b cos 2π g' t) with g' up to f/4, which gives beats. w is a sine, a square, a triangle or a ramp.
    """
    count = clock.count
    out = np.zeros_like(clock.steps)
    waves = rng.integers(1, PARTIALS + 1, count)
    kind = choose(rng, SHAPES, count)
    span = clock.length
    for i in range(PARTIALS):
        rows = np.flatnonzero(waves > i)
        shape = (len(rows), 1)
        steps = clock.steps[rows]
        frequency = 1 / log_uniform(rng, 4, span / 3, shape)
        octaves = np.where(rng.random(shape) < 0.25, rng.uniform(-2, 2, shape), 1e-3)
        rate = octaves * np.log(2) / span
        phase = frequency * np.expm1(rate * steps) / rate
        slow = frequency * log_uniform(rng, 0.02, 0.25, shape)
        depth = np.where(rng.random(shape) < 0.3, rng.uniform(0.05, 0.9, shape), 0.0)
        phase += depth * frequency / (2 * np.pi * slow) * cosine(slow * steps + rng.random(shape))
        swell = np.where(rng.random(shape) < 0.5, rng.uniform(0.1, 1, shape), 0.0)
        size = log_uniform(rng, 0.2, 1, shape) * (1 + swell * cosine(slow * steps + rng.random(shape)))
        out[rows] += size * _wave(kind[rows], phase + rng.random(shape))
    return out


def _wave(kind: np.ndarray, phase: np.ndarray) -> np.ndarray:
    """Return a wave of the given kind for each series, `[B, N]`."""
    out = cosine(phase)
    out[kind == "square"] = np.sign(out[kind == "square"])
    out[kind == "triangle"] = 2 / np.pi * np.arcsin(np.clip(out[kind == "triangle"], -1, 1))
    ramp = phase[kind == "ramp"]
    out[kind == "ramp"] = 2 * (ramp - np.floor(ramp)) - 1
    return out
