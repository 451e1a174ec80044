"""States behind noise, of systems that the network was not told: its error beside the exact Kalman filter's.

    python -m rfa.benchmarks.series.states     writes results/series-states.json and prints it

Systems seen through noise, STREAMS series of ROWS rows of each, one row a second: an oscillator, a constant velocity
with random acceleration, a level (a random walk), the first coordinate of Lorenz's system, and that of a robot that
turns at random. Errors are root mean squares over those of the measurements, from row BURN_IN on; inside: the share of
states in the 90 % interval. Models are asked as users ask them, `rfa.filter`; "exact" has the system's own matrices,
where it is linear.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import expm
from tqdm import tqdm

import rfa
from rfa.benchmarks.command import finish, parser
from rfa.measured import origin

Array = np.ndarray
STREAMS, ROWS, BURN_IN, SEED = 20, 1_000, 200, 3
MODELS = ("series", "auto")


class Observed(NamedTuple):
    """truth `[STREAMS, ROWS]`, what was measured, and the system's matrices as a request has them, if it is linear."""

    truth: Array
    measured: Array
    system: Mapping[str, Any] | None


def linear(rng: np.random.Generator, drift: Array, noise: Array, measurement: float) -> Observed:
    """dx = A x dt + dw, the first part of x measured each second; exact steps by Van Loan."""
    n = len(drift)
    block = expm(np.block([[-drift, noise], [np.zeros((n, n)), drift.T]]))
    move = block[n:, n:].T
    spread = np.linalg.cholesky(move @ block[:n, n:] + 1e-12 * np.eye(n))
    state, truth = np.zeros((STREAMS, n)), np.empty((STREAMS, ROWS))
    for row in range(ROWS):
        state = state @ move.T + rng.standard_normal((STREAMS, n)) @ spread.T
        truth[:, row] = state[:, 0]
    system = {
        "A": drift.tolist(), "Q": noise.tolist(), "R": [[measurement**2]], "C": [[1.0, *[0.0] * (n - 1)]],
        "P0": (100 * np.eye(n)).tolist(), "nu": None,
    }  # fmt: skip
    return Observed(truth, truth + measurement * rng.standard_normal(truth.shape), system)


def lorenz(rng: np.random.Generator) -> Observed:
    """Lorenz 1963 at 0.02 of its time a row, by Runge and Kutta."""

    def slope(x: Array) -> Array:
        a, b, c = x.T
        return np.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], axis=1)

    x, step = rng.normal((1, 1, 25), size=(STREAMS, 3)), 0.02
    truth = np.empty((STREAMS, ROWS))
    for row in range(-500, ROWS):
        k1 = slope(x)
        k2 = slope(x + step / 2 * k1)
        k3 = slope(x + step / 2 * k2)
        x = x + step / 6 * (k1 + 2 * k2 + 2 * k3 + slope(x + step * k3))
        if row >= 0:
            truth[:, row] = x[:, 0]
    return Observed(truth, truth + 2.0 * rng.standard_normal(truth.shape), None)


def robot(rng: np.random.Generator) -> Observed:
    """A robot of constant speed whose turning rate wanders: its first coordinate."""
    heading, rate, place = rng.uniform(0, 6, STREAMS), np.zeros(STREAMS), np.zeros(STREAMS)
    truth = np.empty((STREAMS, ROWS))
    for row in range(ROWS):
        rate = 0.97 * rate + 0.02 * rng.standard_normal(STREAMS)
        heading = heading + rate
        place = place + 0.5 * np.cos(heading)
        truth[:, row] = place
    return Observed(truth, truth + rng.standard_normal(truth.shape), None)


def systems(rng: np.random.Generator) -> dict[str, Observed]:
    """All of them."""
    turn = 2 * np.pi / 40
    return {
        "oscillator": linear(rng, np.array([[-0.01, -turn], [turn, -0.01]]), 0.05 * np.eye(2), 1.0),
        "constant velocity": linear(rng, np.array([[0.0, 1.0], [0.0, 0.0]]), np.diag([0.0, 1e-3]), 2.0),
        "level": linear(rng, np.array([[0.0]]), np.array([[0.1]]), 1.0),
        "Lorenz": lorenz(rng),
        "robot": robot(rng),
    }


def scored(one: Observed, **given: Any) -> dict[str, float]:
    """Error over that of the measurements, and the share of states inside."""
    off, inside = [], []
    for truth, measured in zip(one.truth, one.measured, strict=True):
        told = rfa.filter(measured, levels=(0.9,), **given)
        off.append(np.asarray(told["y_mean"])[BURN_IN:] - truth[BURN_IN:])
        low, high = (np.asarray(told[f"y_{end}90"])[BURN_IN:] for end in ("low", "high"))
        inside.append((low <= truth[BURN_IN:]) & (truth[BURN_IN:] <= high))
    raw = (one.measured - one.truth)[:, BURN_IN:]
    return {
        "error": round(float(np.sqrt(np.mean(np.square(off)) / np.mean(raw**2))), 4),
        "inside": round(float(np.mean(inside)), 4),
    }


def main() -> None:
    """Measure and write."""
    given = parser(__doc__, "series-states").parse_args()
    found: dict[str, Any] = {}
    for name, one in tqdm(systems(np.random.default_rng(SEED)).items(), disable=None):
        found[name] = {model: scored(one, model=model) for model in MODELS}
        if one.system is not None:
            found[name]["exact"] = scored(one, system=one.system)
    finish("series-states", given.out, {**origin("python -m rfa.benchmarks.series.states"), "systems": found})


if __name__ == "__main__":
    main()
