"""Generators of chaotic systems: flows, maps and a delay equation."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.priors import choose, log_uniform
from rfa.training.synthetic.recursions import array_jit
from rfa.training.synthetic.systems import (
    DUFFING,
    HINDMARSH_ROSE,
    LORENZ,
    ROSSLER,
    THOMAS,
    System,
    simulate,
)

FLOWS = (
    System(LORENZ, 3, ((10, 10), (26, 45), (8 / 3, 8 / 3)), (1, 1, 25), 0.7, seen=(0, 1, 2)),
    System(ROSSLER, 2, ((0.18, 0.22), (0.2, 0.2), (5, 9)), (1, 1, 1), 6, seen=(0, 1, 2), resolution=120),
    System(DUFFING, 2, ((0.15, 0.3), (0.28, 0.45), (1, 1.2)), (0.5, 0, 0), 6, seen=(0, 1)),
    System(HINDMARSH_ROSE, 2, ((2.8, 3.4), (0.002, 0.01), (4, 4)), (-1, 0, 2), 12, resolution=240),
    System(THOMAS, 1, ((0.12, 0.19), (0, 0), (0, 0)), (1, 0.5, 0), 12, seen=(0, 1, 2)),
)  # fmt: skip
KINDS = {"flow": 65, "map": 20, "delay": 15}
LOGISTIC, HENON, IKEDA = 0, 1, 2
# Number of iterations of a map, and of delays of a delay equation, before the first value. Number of integration steps
# per delay.
BURN_IN, DELAY_STEPS = 100, 40


def chaos(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return the values of one variable of a chaotic system on its attractor, without noise, `[B, N]`.

    The flows are those of Lorenz, Rössler, Duffing (driven), Hindmarsh-Rose (bursts) and Thomas, with 8 to N/2 values
    per cycle. The maps, which have one iteration per time step, are the logistic map x' = r x (1 - x) with r from 3.6
    to 4, the Hénon map x' = 1 - a x² + y, y' = 0.3 x with a from 1.2 to 1.4, and the Ikeda map. The delay equation is
    that of Mackey and Glass, x' = 0.2 x(t - τ) / (1 + x(t - τ)^10) - 0.1 x with τ from 17 to 40.
    """
    count = clock.count
    kind = choose(rng, KINDS, count)
    out = np.empty_like(clock.steps)
    rows = np.flatnonzero(kind == "flow")
    if len(rows):
        out[rows] = simulate(rng, FLOWS, clock.steps[rows], clock.length)
    rows = np.flatnonzero(kind == "map")
    if len(rows):
        out[rows] = _maps(rng, clock[rows])
    rows = np.flatnonzero(kind == "delay")
    if len(rows):
        out[rows] = _delays(rng, clock[rows])
    return out


def _maps(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    kind = rng.integers(0, 3, clock.count)
    low, high = np.array([3.6, 1.2, 0.82])[kind], np.array([4.0, 1.4, 0.9])[kind]
    values = iterate(kind, rng.uniform(low, high), rng.uniform(0.1, 0.4, clock.count), clock.grid_length + BURN_IN)
    return clock.from_grid(values[:, BURN_IN:])


@array_jit
def iterate(system, parameter, start, length):
    """Iterate a map for each series, and return its first variable, `[B, N]`.

    Args:
        system: LOGISTIC, HENON or IKEDA, `[B]`.
        parameter: Parameter of the map, `[B]`.
        start: Initial state, `[B]`.
        length: Number of values N.
    """
    out = np.empty((len(system), length))
    for b in range(len(system)):
        x, y, p = start[b], 0.1, parameter[b]
        for n in range(length):
            if system[b] == LOGISTIC:
                x = p * x * (1 - x)
            elif system[b] == HENON:
                x, y = 1 - p * x * x + y, 0.3 * x
            else:
                turn = 0.4 - 6 / (1 + x * x + y * y)
                x, y = 1 + p * (x * np.cos(turn) - y * np.sin(turn)), p * (x * np.sin(turn) + y * np.cos(turn))
            out[b, n] = x
    return out


def _delays(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    # A cycle takes about three delays.
    delay = rng.uniform(17, 40, clock.count)
    unit = 3 * delay / log_uniform(rng, 8, clock.length / 4, clock.count)
    return mackey_glass(clock.lags * unit[:, None], delay, rng.uniform(0.5, 1.3, clock.count), DELAY_STEPS, BURN_IN)


@array_jit
def mackey_glass(durations, delay, start, pieces, delays_before):
    """Return x of the Mackey-Glass equation after each duration, `[B, N]`. Heun's method takes `pieces` steps per
    delay. x is interpolated between the steps."""
    out = np.empty_like(durations)
    for b in range(durations.shape[0]):
        dt = delay[b] / pieces
        kept = np.full(pieces, start[b])
        x, before, now, at = start[b], start[b], 0.0, 0
        target = delays_before * delay[b]
        for n in range(durations.shape[1]):
            target += durations[b, n]
            while now < target:
                lagged, following = kept[at], kept[(at + 1) % pieces]
                first = 0.2 * lagged / (1 + lagged**10) - 0.1 * x
                second = 0.2 * following / (1 + following**10) - 0.1 * (x + dt * first)
                kept[at] = x
                before, x = x, x + dt / 2 * (first + second)
                at = (at + 1) % pieces
                now += dt
            share = (now - target) / dt
            out[b, n] = x + share * (before - x)
    return out
