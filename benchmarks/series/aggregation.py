"""Weights of experts at each lead: Bernstein online aggregation (Wintenberger 2017, "Optimal learning with Bernstein
online aggregation", theorem 3.3), with the linearised absolute loss.

With forecasts f_k, weights w_k and the mixture m = Σ w_k f_k, after the value y of that lead has come

    l_k = sign(m − y) (f_k − m) / s, clipped to ± LARGEST        s the mean absolute error of the mixture so far
    r_k = l_k − Σ w_i l_i                                        weights as they were when the forecast was made
    R_k ← R_k + r_k (1 + η_k r_k),   S_k ← S_k + r_k²
    η_k = min(1/2, c √(log(1 / π_k) / (1 + S_k)))
    w_k ∝ π_k η_k exp(−η_k R_k)

The linearised loss bounds the regret against the best fixed *combination* of experts by O(√(T log K)), not only against
the best expert. Nothing is discounted, so there is no memory to choose.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

import numba
import numpy as np

Array = np.ndarray
RATE, LARGEST, FASTEST = 0.5, 10.0, 0.5
_TINY: Final = 1e-12


def aggregate(forecasts: Array, values: Array, leads: Array, prior: Array) -> tuple[Array, Array]:
    """The mixture `[N, leads]` and the weights `[N, experts, leads]` at each row, from earlier rows.

    forecasts: `[experts, N, leads]`, finite. values: `[N]`, NaN if missing. leads: in rows. prior: `[experts]`, sum 1.
    """
    mixture, weights = _aggregate(forecasts, values, leads, prior)
    return mixture, weights


@numba.njit(cache=True)
def _aggregate(forecasts, values, leads, prior):
    experts, rows, count = forecasts.shape
    mixture, weights = np.zeros((rows, count)), np.zeros((rows, experts, count))
    regret, squares = np.zeros((experts, count)), np.zeros((experts, count))
    errors, scored = np.zeros(count), np.zeros(count)
    excess, logits = np.zeros(experts), np.zeros(experts)
    for t in range(rows):
        for j in range(count):
            origin = t - leads[j]
            if origin >= 0 and not np.isnan(values[t]):
                off = mixture[origin, j] - values[t]
                errors[j] += abs(off)
                scored[j] += 1
                scale, mean = errors[j] / scored[j] + _TINY, 0.0
                for k in range(experts):
                    loss = np.sign(off) * (forecasts[k, origin, j] - mixture[origin, j]) / scale
                    excess[k] = min(max(loss, -LARGEST), LARGEST)
                    mean += weights[origin, k, j] * excess[k]
                for k in range(experts):
                    r = excess[k] - mean
                    rate = min(FASTEST, RATE * np.sqrt(-np.log(prior[k]) / (1 + squares[k, j])))
                    regret[k, j] += r * (1 + rate * r)
                    squares[k, j] += r * r
            most = -np.inf
            for k in range(experts):
                rate = min(FASTEST, RATE * np.sqrt(-np.log(prior[k]) / (1 + squares[k, j])))
                logits[k] = np.log(prior[k] * rate) - rate * regret[k, j]
                most = max(most, logits[k])
            total = 0.0
            for k in range(experts):
                logits[k] = np.exp(logits[k] - most)
                total += logits[k]
            for k in range(experts):
                weights[t, k, j] = logits[k] / total
                mixture[t, j] += weights[t, k, j] * forecasts[k, t, j]
    return mixture, weights
