"""Equations and integration of nonlinear systems of up to three variables."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from rfa.training.synthetic.priors import choose, log_uniform
from rfa.training.synthetic.recursions import array_jit

LORENZ, ROSSLER, DUFFING, HINDMARSH_ROSE, THOMAS = 0, 1, 2, 3, 4
DOUBLE_WELL, VAN_DER_POL, FITZHUGH_NAGUMO, PREDATOR_PREY, LOGISTIC, PENDULUM = 5, 6, 7, 8, 9, 10


@njit(cache=True, error_model="numpy", inline="always")
def field(system, x, y, z, p, q, r):
    """Return the time derivatives of a system in the state (x, y, z). In driven systems, z is the phase of the
    drive."""
    if system == LORENZ:
        return p * (y - x), x * (q - z) - y, x * y - r * z
    if system == ROSSLER:
        return -y - z, x + p * y, q + z * (x - r)
    if system == DUFFING:
        return y, -p * y + x - x * x * x + q * np.cos(z), r
    if system == HINDMARSH_ROSE:
        return (
            y - x * x * x + 3 * x * x - z + p,
            1 - 5 * x * x - y,
            q * (r * (x + 1.6) - z),
        )
    if system == THOMAS:
        return np.sin(y) - p * x, np.sin(z) - p * y, np.sin(x) - p * z
    if system == DOUBLE_WELL:
        return x - x * x * x + p * np.cos(z), 0.0, q
    if system == VAN_DER_POL:
        return y, p * (1 - x * x) * y - x, 0.0
    if system == FITZHUGH_NAGUMO:
        return x - x * x * x / 3 - y + p, q * (x + 0.7 - r * y), 0.0
    if system == PREDATOR_PREY:
        return 1 - np.exp(x) / p - np.exp(y), q * (np.exp(x) - 1), 0.0
    if system == LOGISTIC:
        return p * (1 - np.exp(x)), 0.0, 0.0
    return y, -p * y - np.sin(x) + q * np.cos(z), r


@array_jit
def integrate(rng, system, state, parameters, noise, longest, durations):
    """Return the state after each duration, `[B, N, 3]`.

    The method is fourth-order Runge-Kutta in steps of at most `longest`, each followed by a normal step with variance
    noise² dt. For additive noise, it converges in first order of dt.

    Args:
        rng: Random generator.
        system: Index of the equations, `[B]`.
        state: Initial state, `[B, 3]`.
        parameters: Parameters of the equations, `[B, 3]`.
        noise: Diffusion, `[B, 3]`.
        longest: Largest step, `[B]`.
        durations: Durations between the returned states, `[B, N]`, >= 0.
    """
    count, length = durations.shape
    out = np.empty((count, length, 3))
    for b in range(count):
        kind = system[b]
        x, y, z = state[b, 0], state[b, 1], state[b, 2]
        p, q, r = parameters[b, 0], parameters[b, 1], parameters[b, 2]
        is_noisy = noise[b].max() > 0
        for n in range(length):
            pieces = int(np.ceil(durations[b, n] / longest[b]))
            dt = durations[b, n] / max(pieces, 1)
            for _ in range(pieces):
                ax, ay, az = field(kind, x, y, z, p, q, r)
                h = dt / 2
                bx, by, bz = field(kind, x + h * ax, y + h * ay, z + h * az, p, q, r)
                cx, cy, cz = field(kind, x + h * bx, y + h * by, z + h * bz, p, q, r)
                dx, dy, dz = field(kind, x + dt * cx, y + dt * cy, z + dt * cz, p, q, r)
                x += dt / 6 * (ax + 2 * bx + 2 * cx + dx)
                y += dt / 6 * (ay + 2 * by + 2 * cy + dy)
                z += dt / 6 * (az + 2 * bz + 2 * cz + dz)
                if is_noisy:
                    root = np.sqrt(dt)
                    x += root * noise[b, 0] * rng.standard_normal()
                    y += root * noise[b, 1] * rng.standard_normal()
            out[b, n, 0], out[b, n, 1], out[b, n, 2] = x, y, z
    return out


class System(NamedTuple):
    """A system of equations with its parameters and settings.

    Attributes:
        kind: Index of the equations.
        weight: Weight of the system when systems are chosen at random.
        parameters: Ranges of the parameters.
        start: Initial state.
        cycle: Time per cycle.
        noise: Diffusion of the first two variables.
        seen: Indices of the variables that may be observed.
        resolution: Number of integration steps per cycle.
    """

    kind: int
    weight: float
    parameters: tuple[tuple[float, float], ...]
    start: tuple[float, float, float]
    cycle: float
    noise: tuple[float, float] = (0.0, 0.0)
    seen: tuple[int, ...] = (0,)
    resolution: int = 60


def simulate(rng: np.random.Generator, systems: tuple[System, ...], steps: np.ndarray, length: int) -> np.ndarray:
    """Return the values of one variable of a system at the times `steps` `[B, N]`, with 8 to `length / 2` steps per
    cycle, `[B, N]`.

    The first 10 cycles are dropped, so that states are on the attractor. The noise is scaled by a factor of 0.03 to 1.
    """
    count = len(steps)
    index = choose(rng, {i: one.weight for i, one in enumerate(systems)}, count)
    drawn = [systems[i] for i in index]
    ranges = np.array([one.parameters for one in drawn])
    parameters = ranges[:, :, 0] + rng.random((count, 3)) * (ranges[:, :, 1] - ranges[:, :, 0])
    cycle = np.array([one.cycle for one in drawn])
    start = np.array([one.start for one in drawn]) + 0.1 * rng.standard_normal((count, 3))
    noise = np.array([(*one.noise, 0.0) for one in drawn]) * log_uniform(rng, 0.03, 1, (count, 1))
    durations = np.diff(steps, axis=1, prepend=0.0) * (cycle / log_uniform(rng, 8, length / 2, count))[:, None]
    durations[:, 0] = cycle * rng.uniform(10, 11, count)
    kind, resolution = np.array([(one.kind, one.resolution) for one in drawn]).T
    states = integrate(rng, kind, start, parameters, noise, cycle / resolution, durations)
    seen = np.array([rng.choice(one.seen) for one in drawn])
    return states[np.arange(count), :, seen]
