"""Independent oracles: plain float64 loops over complex numbers that share nothing with the model package."""

from __future__ import annotations

import cmath
import math

import filterpy.kalman
import numpy as np
import torch

from rfa.model.linear_filter import LinearFilter
from rfa.runtime.filters.linear_config import LinearFilterConfig


def float64_filter(config: LinearFilterConfig) -> LinearFilter:
    """A filter all of whose tensors have 64 bits."""
    torch.set_default_dtype(torch.float64)
    try:
        return LinearFilter(config)
    finally:
        torch.set_default_dtype(torch.float32)


def capped_update(mean, covariance, e, c, r, nu, passes):
    """Mean and covariance after an innovation `e` of the components with rows `c`, by the capped Student-t rule."""
    spread, residual = c @ covariance @ c.T + r, e
    for _ in range(passes):
        weight = min(1.0, (nu + len(c)) / (nu + residual @ np.linalg.solve(spread, residual)))
        gain = covariance @ c.T @ np.linalg.inv(c @ covariance @ c.T + r / weight)
        residual = e - c @ gain @ e
    return mean + gain @ e, covariance - gain @ c @ covariance


def to_complex(x: np.ndarray) -> np.ndarray:
    """`[..., 2D]` reals, real half first → `[..., D]` complex."""
    half = x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:]


def to_real(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x.real, x.imag], -1)


def robust_attention(q, k, v, mu, omega, sigma2, eta2, gamma2, nu, tau, times, kernel="student_t"):
    """Transport every key and value to the query's time and weigh it; nothing is rotated in advance or factored.

    q, k, v: `[B, N, H, 2D]`; times `[B, N]`. Returns out, log_norm, precision.
    """
    q, k, v = (to_complex(np.asarray(x, np.float64)) for x in (q, k, v))
    batch, length, heads, dims = q.shape
    out = np.zeros_like(q)
    log_norm, precision = np.zeros((batch, length, heads)), np.zeros((batch, length, heads))
    for b in range(batch):
        for h in range(heads):
            kappa = (nu[h] + dims) / dims
            for i in range(length):
                scores, values, evidence = [], [], 0.0
                for j in range(i + 1):
                    lag = float(times[b, i] - times[b, j])
                    shrink = math.exp(-mu[h] * lag)
                    grown = lag if mu[h] == 0 else (1 - math.exp(-2 * mu[h] * lag)) / (2 * mu[h])
                    p = 1 / (sigma2[h] * grown + eta2[h] * shrink**2 + gamma2[h])
                    carried = [shrink * cmath.exp(1j * omega[h][d] * lag) for d in range(dims)]
                    r2 = sum(abs(q[b, i, h, d] - carried[d] * k[b, j, h, d]) ** 2 for d in range(dims))
                    if kernel == "student_t":
                        w = 1 / (1 + p * r2 / nu[h])
                        scores.append(tau[h] * (math.log(p) + kappa * math.log(w)))
                    else:
                        w = math.exp(-p * r2 / nu[h])
                        scores.append(tau[h] * (math.log(p) - p * r2 / nu[h]))
                    evidence += w * p
                    values.append(np.array([carried[d] * v[b, j, h, d] for d in range(dims)]))
                top = max(scores)
                weights = [math.exp(score - top) for score in scores]
                total = sum(weights)
                out[b, i, h] = sum(w / total * value for w, value in zip(weights, values, strict=True))
                log_norm[b, i, h] = top + math.log(total)
                precision[b, i, h] = evidence
    return to_real(out), log_norm, precision


def rotary_softmax(q, k, v, omega, scale):
    """Causal complex dot-product attention with rotary positions on queries, keys and values (RoPER)."""
    q, k, v = (to_complex(np.asarray(x, np.float64)) for x in (q, k, v))
    length = q.shape[1]
    turn = np.exp(1j * np.arange(length)[:, None, None] * np.asarray(omega)[None])
    rq, rk, rv = q * turn.conj(), k * turn.conj(), v * turn.conj()
    scores = np.einsum("bihd,bjhd->bhij", rq.conj(), rk).real * np.asarray(scale)[None, :, None, None]
    scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return to_real(np.einsum("bhij,bjhd->bihd", weights, rv) * turn)


def filterpy_filter(times, y, seen, discrete, sensor, noise, prior):
    """filterpy's Kalman filter from mean zero; `discrete(lag)` gives F and Q. An update leaves out the unseen."""
    kf = filterpy.kalman.KalmanFilter(dim_x=len(prior), dim_z=len(noise))
    kf.x, kf.P = np.zeros((len(prior), 1)), np.array(prior)
    means, covariances = [], []
    for i in range(len(y)):
        if i:
            kf.F, kf.Q = discrete(times[i] - times[i - 1])
            kf.predict()
        rows = np.flatnonzero(seen[i])
        if len(rows):
            kf.update(y[i][rows, None], R=np.asarray(noise)[np.ix_(rows, rows)], H=np.asarray(sensor)[rows])
        means.append(kf.x[:, 0].copy())
        covariances.append(kf.P.copy())
    return np.array(means), np.array(covariances)
