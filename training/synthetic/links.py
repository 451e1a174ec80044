"""Convert a real-valued signal to instrument readings with a link function, a scale, an offset and quantisation."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.priors import chance, choose, log_uniform

LINKS = {
    "none": 64, "exp": 13, "softplus": 4, "floor": 6, "ceiling": 2, "share": 6, "square": 2, "absolute": 2, "binary": 1,
    "bounded": 4, "counter": 1,
}  # fmt: skip
# Link functions for which zero is a special value, so that no offset is added.
WITH_ZERO = ("exp", "softplus", "floor", "share", "square", "absolute", "binary", "bounded")
SMALLEST_SCALE, LARGEST_SCALE = 1e-3, 1e6


def link(rng: np.random.Generator, values: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Apply a random link function to each series.

    The link functions are x itself, e^(s x), log(1 + e^(s x)), max(x, c) - c, min(x, c), 1/(1 + e^-(a + s x)), x², |x|,
    1 where x > c and 0 elsewhere, x clipped between two bounds and scaled to 0 … 1, and the running sum of log(1 + e^(s
    x)).

    Args:
        rng: Random generator.
        values, truth: Signal with and without noise, `[B, N]`.

    Returns:
        The observed and the true values, `[B, N]` each, and whether zero is a special value of the link function,
        `[B]`.
    """
    kind = choose(rng, LINKS, len(values))
    both = np.stack([values, truth])
    for name in LINKS:
        rows = np.flatnonzero(kind == name)
        if len(rows) and name != "none":
            both[:, rows] = _linked(rng, name, both[:, rows])
    return both[0], both[1], np.isin(kind, WITH_ZERO)


def _linked(rng: np.random.Generator, name: str, x: np.ndarray) -> np.ndarray:
    shape = (x.shape[1], 1)
    if name == "exp":
        return np.exp(np.clip(log_uniform(rng, 0.2, 1.2, shape) * x, -12, 7))
    if name == "softplus":
        return np.logaddexp(0, log_uniform(rng, 1, 4, shape) * x)
    if name == "floor":
        lowest = rng.uniform(-1.2, 0.8, shape)
        return np.maximum(x, lowest) - lowest
    if name == "ceiling":
        return np.minimum(x, rng.uniform(0, 1.5, shape))
    if name == "share":
        return 1 / (1 + np.exp(-np.clip(rng.normal(0, 2, shape) + log_uniform(rng, 0.3, 3, shape) * x, -50, 50)))
    if name == "square":
        return x**2
    if name == "absolute":
        return np.abs(x)
    if name == "bounded":
        lowest, highest = rng.uniform(-2, -0.2, shape), rng.uniform(0.2, 2, shape)
        return (np.clip(x, lowest, highest) - lowest) / (highest - lowest)
    if name == "counter":
        return np.cumsum(np.logaddexp(0, log_uniform(rng, 0.3, 4, shape) * x), axis=2)
    return (x > rng.uniform(-1, 1.5, shape)).astype(np.float64)


def in_units(
    rng: np.random.Generator, values: np.ndarray, truth: np.ndarray, has_zero: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return values and truth in the units of an instrument, which have an offset and a scale. A third of the series
    are quantised.

    Scales cover nine decades. An offset makes all values positive (as for most physical quantities), is up to a hundred
    standard deviations of either sign, or is zero. Quantised values are multiples of 1, 2 or 5 times a power of ten,
    with one to a thousand such steps per standard deviation. The true values are not quantised.

    Args:
        rng: Random generator.
        values, truth: Signal with and without noise, `[B, N]`.
        has_zero: Whether zero is a special value, `[B]`. If so, there is no offset.
    """
    count = len(values)
    spread = values.std(axis=1, keepdims=True)
    spread = np.where(spread > 1e-9, spread, 1.0)
    kind = rng.random((count, 1))
    above = -values.min(axis=1, keepdims=True) + spread * log_uniform(rng, 0.05, 30, (count, 1))
    apart = rng.choice([-1.0, 1.0], (count, 1)) * spread * log_uniform(rng, 0.1, 100, (count, 1))
    offset = np.where(kind < 0.55, above, np.where(kind < 0.8, apart, 0.0))
    offset = np.where(has_zero[:, None] & (rng.random((count, 1)) < 0.85), 0.0, offset)
    scale = log_uniform(rng, SMALLEST_SCALE, LARGEST_SCALE, (count, 1)) / spread
    values, truth = (values + offset) * scale, (truth + offset) * scale
    coarse = chance(rng, 0.35, count)[:, 0] > 0
    finest = (spread * scale)[coarse] / log_uniform(rng, 1, 1000, (int(coarse.sum()), 1))
    grid = 10.0 ** np.floor(np.log10(finest))
    grid *= np.select([finest / grid < 2, finest / grid < 5], [1.0, 2.0], 5.0)
    values[coarse] = np.rint(values[coarse] / grid) * grid
    return values, truth
