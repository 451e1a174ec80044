"""Random generators, clocks and statistics of the tests of synthetic series."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import FIRST_START, HOUR, Clock


def rng_of(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def regular_clock(count: int, length: int, step: float = HOUR) -> Clock:
    """The same regular clock for every series; without a calendar where the step is 0."""
    times = FIRST_START + np.arange(length) * (step or 1.0)
    return Clock(np.tile(times, (count, 1)), np.full(count, step or 1.0), np.full(count, step > 0))


def near(sample, expected) -> None:
    """The mean of independent rows `[B, …]` is what is expected, within five standard errors."""
    error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
    assert (np.abs(sample.mean(axis=0) - expected) <= 5 * error).all(), (sample.mean(axis=0), expected, error)


def correlation(x, lag: int):
    """`[B]` of each series with itself."""
    x = x - x.mean(axis=1, keepdims=True)
    return (x[:, lag:] * x[:, :-lag]).mean(axis=1) / (x**2).mean(axis=1)
