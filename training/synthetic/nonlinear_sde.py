"""Generators of physical systems that are nonlinear stochastic differential equations."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.systems import (
    DOUBLE_WELL,
    FITZHUGH_NAGUMO,
    LOGISTIC,
    PENDULUM,
    PREDATOR_PREY,
    VAN_DER_POL,
    System,
    simulate,
)

SYSTEMS = (
    System(DOUBLE_WELL, 2, ((0, 0.35), (0.05, 1), (0, 0)), (1, 0, 0), 6, (1.0, 0)),
    System(VAN_DER_POL, 2, ((0.1, 3.5), (0, 0), (0, 0)), (1, 0, 0), 7, (0.3, 0.6), (0, 1), 240),
    System(FITZHUGH_NAGUMO, 2, ((0.1, 0.7), (0.05, 0.15), (0.5, 0.8)), (0, 0, 0), 35, (0.3, 0.05), (0, 1), 240),
    System(PREDATOR_PREY, 1, ((1.5, 8), (0.3, 1.5), (0, 0)), (0.3, -0.5, 0), 8, (0.3, 0.3), (0, 1)),
    System(LOGISTIC, 1, ((0.2, 2), (0, 0), (0, 0)), (0.5, 0, 0), 6, (0.8, 0)),
    System(PENDULUM, 2, ((0.05, 0.5), (0, 1.5), (0.5, 1)), (0.5, 0, 0), 7, (0, 0.5), (1,)),
)  # fmt: skip


def nonlinear_sde(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return the values of one variable of a noisy system, `[B, N]`.

        double well            dx = (x - x³ + p cos z) dt + σ dW,  dz = q dt
        Van der Pol            dx = y dt + …,  dy = (p (1 - x²) y - x) dt + σ dW
        FitzHugh and Nagumo    dv = (v - v³/3 - w + p) dt + σ dW,  dw = q (v + .7 - r w) dt + …
        predator and prey      du = (1 - e^u/p - e^v) dt + σ dW,  dv = q (e^u - 1) dt + …     u, v logarithms
        logistic growth        du = p (1 - e^u) dt + σ dW,  where e^u is Gamma(2p/σ²) with mean 1
        driven pendulum        dθ = y dt,  dy = (-p y - sin θ + q cos z) dt + σ dW,  dz = r dt

    A cycle has 8 to N/2 values.
    """
    return simulate(rng, SYSTEMS, clock.steps, clock.length)
