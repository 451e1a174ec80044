"""Systems: linear ones moved exactly from time to time, others by small steps, chaotic maps and flows."""

from __future__ import annotations

import math

import numpy as np

from rfa.model.compiling import kernel
from rfa.training.synthetic.clocks import Array, Clocks
from rfa.training.synthetic.paths import scaled

LORENZ, ROSSLER, LOGISTIC, HENON, GLASS = range(5)
VAN_DER_POL, DUFFING, PREDATORS, PENDULUM = range(4)
SUBSTEPS, LONGEST_LAG = 8, 32
GLASS_DELAY = 17


def physical(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Linear stochastic differential equations, exact at any lag, `[B, N]`.

    Levels that return (Ornstein and Uhlenbeck), dx = -x / τ dt + dw; damped oscillators, the real part of
    dz = (-1 / τ + iω) z dt + dw; both in units of their stationary deviation; and such velocities summed over time, in
    units of the deviation that they have.
    """
    count, length = clocks.shape
    lags = np.diff(clocks.rows, axis=1, prepend=0.0)
    memory = np.exp(rng.uniform(np.log(3), np.log(600), (count, 1)))
    kept = np.exp(-lags / memory)
    noise = np.sqrt(-np.expm1(-2 * lags / memory))
    noise[:, 0] = 1.0  # begins in its stationary state
    period = np.exp(rng.uniform(np.log(4), np.log(300), (count, 1)))
    turn = np.where(rng.random((count, 1)) < 0.4, 0.0, 2 * np.pi * lags / period)
    real, imaginary = (noise * rng.standard_normal((count, length)) for _ in range(2))
    y, velocity = _turned(kept, turn, real, imaginary)
    moves = rng.random(count) < 0.3
    y[moves] = scaled((velocity * lags).cumsum(axis=1)[moves])
    return y


@kernel()
def _turn(kept, turn, real, imaginary, y, other):  # type: ignore[no-untyped-def]
    for b in range(y.shape[0]):
        u, v = 0.0, 0.0
        for t in range(y.shape[1]):
            c, s = math.cos(turn[b, t]), math.sin(turn[b, t])
            u, v = kept[b, t] * (c * u - s * v) + real[b, t], kept[b, t] * (s * u + c * v) + imaginary[b, t]
            y[b, t], other[b, t] = u, v


def _turned(kept: Array, turn: Array, real: Array, imaginary: Array) -> tuple[Array, Array]:
    y, other = np.empty_like(real), np.empty_like(real)
    _turn(kept, turn, real, imaginary, y, other)
    return y, other


def nonlinear(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Van der Pol's, Duffing's and predators' and prey's oscillators and driven pendulums, with noise, by Heun's steps
    (eight from row to row), `[B, N]` in units of their deviation. Long gaps count as 32 steps."""
    count, length = clocks.shape
    lags = np.minimum(np.diff(clocks.rows, axis=1, prepend=0.0), LONGEST_LAG)
    pace = np.exp(rng.uniform(np.log(0.02), np.log(0.4), count))
    shape, spread = rng.uniform(0, 1, (count, 2)), np.exp(rng.uniform(np.log(0.003), np.log(0.3), count))
    y = np.empty((count, length))
    _oscillate(
        lags, rng.integers(0, 4, count), pace, shape, spread, rng.standard_normal((count, length)),
        rng.normal(size=(count, 2)), y,
    )  # fmt: skip
    return scaled(y)


@kernel()
def _oscillate(lags, kind, pace, shape, spread, noise, first, y):  # type: ignore[no-untyped-def]
    for b in range(y.shape[0]):
        u, v, phase = first[b, 0], first[b, 1], 0.0
        if kind[b] == 2:
            u, v = math.exp(0.3 * u), math.exp(0.3 * v)
        for t in range(y.shape[1]):
            dt = lags[b, t] * pace[b] / 8
            kick = spread[b] * math.sqrt(max(dt, 0.0)) * noise[b, t]
            for _ in range(8):
                du, dv = 0.0, 0.0
                for stage in range(2):
                    p, q = u + stage * du * dt, v + stage * dv * dt
                    if kind[b] == 0:
                        a, c = q, (0.2 + 4 * shape[b, 0]) * (1 - p * p) * q - p
                    elif kind[b] == 1:
                        a, c = q, p - p * p * p - 0.25 * q + (0.1 + 0.4 * shape[b, 0]) * math.cos(phase)
                    elif kind[b] == 2:
                        a, c = p * (1 - q), (0.3 + shape[b, 0]) * q * (p - 1)
                    else:
                        a, c = q, -math.sin(p) - 0.2 * q + 1.2 * shape[b, 0] * math.cos(phase)
                    if stage == 0:
                        du, dv = a, c
                    else:
                        du, dv = (du + a) / 2, (dv + c) / 2
                u, v = u + du * dt, v + dv * dt + kick / 8
                phase += (0.5 + shape[b, 1]) * dt
                if kind[b] == 2:
                    u, v = min(max(u, 1e-3), 1e2), min(max(v, 1e-3), 1e2)
                else:
                    u, v = min(max(u, -1e2), 1e2), min(max(v, -1e2), 1e2)
            y[b, t] = math.sin(u) if kind[b] == 3 else u


def chaotic(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Lorenz's and Rössler's flows, the logistic map, Hénon's map, and Mackey's and Glass's equation, row by row,
    `[B, N]` in units of their deviation."""
    count, length = clocks.shape
    y = np.empty((count, length))
    pace = np.exp(rng.uniform(np.log(0.01), np.log(0.12), count))
    _wander(rng.integers(0, 5, count), pace, rng.uniform(0, 1, (count, 3)), np.empty(GLASS_DELAY * 10), y)
    return scaled(y)


@kernel()
def _wander(kind, pace, shape, past, y):  # type: ignore[no-untyped-def]
    for b in range(y.shape[0]):
        u, v, w = shape[b, 0] - 0.5, shape[b, 1] - 0.5, 10 + 10 * shape[b, 2]
        if kind[b] == 1:
            w = shape[b, 2]
        if kind[b] == 2:
            u = 0.1 + 0.8 * shape[b, 0]
        if kind[b] == 3:
            u, v = 0.1 * u, 0.1 * v
        for k in range(len(past)):
            past[k] = 0.5 + shape[b, 0]
        at = 0
        for t in range(-64, y.shape[1]):
            if kind[b] == 0:
                h = pace[b] / 4
                for _ in range(4):
                    for _ in range(1 + int(h / 0.005)):
                        d = h / (1 + int(h / 0.005))
                        du, dv, dw = 10 * (v - u), u * (28 - w) - v, u * v - 8 / 3 * w
                        p, q, r = u + d / 2 * du, v + d / 2 * dv, w + d / 2 * dw
                        u += d * 10 * (q - p)
                        v += d * (p * (28 - r) - q)
                        w += d * (p * q - 8 / 3 * r)
                told = u
            elif kind[b] == 1:
                h = 3 * pace[b]
                steps = 1 + int(h / 0.02)
                for _ in range(steps):
                    d = h / steps
                    du, dv, dw = -v - w, u + 0.2 * v, 0.2 + w * (u - 5.7)
                    p, q, r = u + d / 2 * du, v + d / 2 * dv, w + d / 2 * dw
                    u += d * (-q - r)
                    v += d * (p + 0.2 * q)
                    w += d * (0.2 + r * (p - 5.7))
                told = u
            elif kind[b] == 2:
                u = (3.6 + 0.4 * shape[b, 1]) * u * (1 - u)
                told = u
            elif kind[b] == 3:
                u, v = 1 - 1.4 * u * u + v, 0.3 * u
                told = u
            else:
                told = past[(at - 1) % len(past)]
                for _ in range(2 + int(pace[b] * 80)):
                    late = past[at % len(past)]
                    last = past[(at - 1) % len(past)]
                    past[at % len(past)] = last + 0.1 * (0.2 * late / (1 + late**10) - 0.1 * last)
                    at += 1
            if t >= 0:
                y[b, t] = told
