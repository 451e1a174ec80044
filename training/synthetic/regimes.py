"""Generators of series that switch between states, such as those of machines, traffic or climates."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.priors import chance, log_uniform
from rfa.training.synthetic.recursions import relax, segment_of

STATES = 5
# Number of visits to states that are sampled. After the last one, a series stays in its state.
VISITS = 400


def regimes(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return series that switch between two to five states s, x' = (m_s - x)/τ + noise_s, `[B, N]`.

    Each state has its own mean and standard deviation. The order of the states is random. In a third of the series,
    there are only two states, on and off. The time in a state has a Gamma distribution with shape k. Its mean is from 4
    steps to a third of the series, and k is from 1 (Markov) to 100 (a duty cycle). Changes are immediate or, in a third
    of the series, take τ of 1 to 30 steps. In three of four series, the states differ mainly in mean, and in the others
    mainly in standard deviation.
    """
    count = clock.count
    mean, spread = rng.standard_normal((count, STATES)), log_uniform(rng, 0.01, 0.5, (count, STATES))
    differ_by_spread = rng.random(count) < 0.25
    mean[differ_by_spread] *= 0.1
    spread[differ_by_spread] = log_uniform(rng, 0.1, 2, (int(differ_by_spread.sum()), STATES))
    approach = np.where(rng.random(count) < 1 / 3, log_uniform(rng, 1, 30, count), 0.0)
    return switching(rng, clock, visited(rng, clock.steps, *_plan(rng, clock)), mean, spread, approach)


def switching(
    rng: np.random.Generator,
    clock: Clock,
    state: np.ndarray,
    mean: np.ndarray,
    spread: np.ndarray,
    approach: np.ndarray,
) -> np.ndarray:
    """Return values that follow a sequence of states, `[B, N]`.

    Args:
        rng: Random generator.
        clock: Times of the series.
        state: State at each time, `[B, N]`.
        mean, spread: Mean and standard deviation of each state, `[B, K]`.
        approach: Time constant in steps with which the mean approaches that of a new state, `[B]`. If it is 0, the
            change is immediate.
    """
    count = clock.count
    level = np.take_along_axis(mean, state, axis=1)
    slow = np.flatnonzero(approach)
    decay = np.exp(-clock.lags[slow] / approach[slow, None])
    drive = (1 - decay) * level[slow]
    drive[:, 0] = level[slow, 0]
    level[slow] = relax(decay, drive)
    decay = np.exp(-clock.lags / log_uniform(rng, 0.2, 20, (count, 1)))
    noise = relax(decay, np.sqrt(1 - decay**2) * rng.standard_normal(decay.shape))
    return level + np.take_along_axis(spread, state, axis=1) * noise


def _plan(rng: np.random.Generator, clock: Clock) -> tuple[np.ndarray, np.ndarray]:
    """Sample the visits of states. Return the duration of each visit in steps, and the state of each visit, `[B, K]`
    each."""
    count = clock.count
    visit = log_uniform(rng, 4, clock.length / 3, (count, 1)) * log_uniform(rng, 0.4, 2.5, (count, STATES))
    shape = np.where(chance(rng, 0.5, count) > 0, 1.0, log_uniform(rng, 1, 100, (count, 1)))
    states = np.where(rng.random(count) < 1 / 3, 2, rng.integers(2, STATES + 1, count))[:, None]
    moves = 1 + np.floor(rng.random((count, VISITS)) * (states - 1)).astype(np.int64)
    state = np.cumsum(moves, axis=1) % states
    lasts = np.take_along_axis(visit, state, axis=1) * rng.standard_gamma(shape, (count, VISITS)) / shape
    return lasts, state


def visited(rng: np.random.Generator, steps: np.ndarray, lasts: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Return the state at each time, `[B, N]`. The series starts during the first visit.

    Args:
        rng: Random generator.
        steps: Times, `[B, N]`.
        lasts: Durations of the visits, `[B, K]`.
        state: States of the visits, `[B, K]`.
    """
    ends = np.cumsum(lasts, axis=1) - rng.random((len(lasts), 1)) * lasts[:, :1]
    return np.take_along_axis(state, np.minimum(segment_of(steps, ends), state.shape[1] - 1), axis=1)
