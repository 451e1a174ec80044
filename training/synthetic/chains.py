"""Families that go from row to row: autoregressions, long memory, regimes."""

from __future__ import annotations

import numpy as np

from rfa.model.compiling import kernel
from rfa.training.synthetic.clocks import Array, Clocks
from rfa.training.synthetic.paths import heavy, scaled

BURN_IN, ORDER, REGIMES = 64, 4, 3


def autoregression(rng: np.random.Generator, clocks: Clocks) -> Array:
    """y_t = Σ a_k y_{t-k} + e_t + b e_{t-1}, stable, of order 1 to 4, in units of its deviation, `[B, N]`.

    The roots are drawn: real ones from -0.6 to 0.995, pairs of radius 0.5 to 0.99 and any angle. e is normal or heavy.
    """
    count, length = clocks.shape
    coefficients = np.zeros((count, ORDER))
    real = np.where(
        rng.random((count, 2)) < 0.7, rng.uniform(0.2, 0.995, (count, 2)), rng.uniform(-0.6, 0.2, (count, 2))
    )
    radius, angle = rng.uniform(0.5, 0.99, (count, 1)), rng.uniform(0, np.pi, (count, 1))
    pair = np.concatenate([radius * np.exp(1j * angle), radius * np.exp(-1j * angle)], axis=1)
    order = rng.integers(1, ORDER + 1, count)
    for k in range(count):
        roots = [*(pair[k] if order[k] >= 2 and rng.random() < 0.6 else ()), *real[k]][: order[k]]
        if len(roots) == 1:
            roots = [real[k, 0]]
        found = np.real(np.poly(roots))[1:]
        coefficients[k, : len(found)] = -found
    e = np.where(
        rng.random((count, 1)) < 0.7,
        rng.standard_normal((count, length + BURN_IN)),
        heavy(rng, count, length + BURN_IN),
    )
    e[:, 1:] += np.where(rng.random((count, 1)) < 0.3, rng.uniform(-0.9, 0.9, (count, 1)), 0.0) * e[:, :-1]
    return scaled(_filtered(e, coefficients)[:, BURN_IN:])


def long_memory(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Noise of the spectrum f^-2d, d ~ U(-0.3, 1.2), by Fourier synthesis of twice the length, `[B, N]` in units of its
    deviation: from d = 0.5 on it has no level."""
    count, length = clocks.shape
    bins = length + 1
    d = rng.uniform(-0.3, 1.2, (count, 1))
    frequency = np.maximum(np.arange(bins), 1) / (2 * length)
    spectrum = frequency**-d * (rng.standard_normal((count, bins)) + 1j * rng.standard_normal((count, bins)))
    spectrum[:, 0] = 0
    return scaled(np.fft.irfft(spectrum, 2 * length, axis=1)[:, :length])


def regimes(rng: np.random.Generator, clocks: Clocks) -> Array:
    """A Markov chain of two or three regimes, which stay for 10 to 300 rows; each has a level, a spread and an
    autoregression of its own, y_t = m_s + a_s (y_{t-1} - m_s) + v_s e_t (Hamilton 1989), `[B, N]`."""
    count, length = clocks.shape
    many = rng.integers(2, REGIMES + 1, count)
    stay = np.exp(rng.uniform(np.log(10), np.log(300), count))
    level, spread = 2 * rng.standard_normal((count, REGIMES)), np.exp(rng.uniform(-3, 0.5, (count, REGIMES)))
    pull = np.where(rng.random((count, REGIMES)) < 0.5, 0.0, rng.uniform(0, 0.98, (count, REGIMES)))
    y = np.empty((count, length))
    _switch(
        rng.standard_normal((count, length)), rng.random((count, length)), rng.integers(0, 1 << 30, (count, length)),
        many, stay, level, spread, pull, y,
    )  # fmt: skip
    return y


@kernel()
def _filter(e, coefficients, y):  # type: ignore[no-untyped-def]
    for b in range(y.shape[0]):
        for t in range(y.shape[1]):
            total = e[b, t]
            for k in range(min(t, coefficients.shape[1])):
                total += coefficients[b, k] * y[b, t - 1 - k]
            y[b, t] = total


def _filtered(e: Array, coefficients: Array) -> Array:
    """y_t = Σ_k a_k y_{t-k} + e_t, `[B, N]`, from rest."""
    y = np.empty_like(e)
    _filter(e, coefficients, y)
    return y


@kernel()
def _switch(e, chance, pick, many, stay, level, spread, pull, y):  # type: ignore[no-untyped-def]
    for b in range(y.shape[0]):
        s = pick[b, 0] % many[b]
        last = level[b, s]
        for t in range(y.shape[1]):
            if chance[b, t] * stay[b] < 1:
                s = (s + 1 + pick[b, t] % (many[b] - 1)) % many[b]
            last = level[b, s] + pull[b, s] * (last - level[b, s]) + spread[b, s] * e[b, t]
            y[b, t] = last
