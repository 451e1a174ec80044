"""What is normal for a stream: learned from the stream itself, and how far an observation is from it. NumPy only.

Two sizes are watched, both free of units:

    surprise     sqrt(nis / components) of the filter: how far the observation is from its prediction
    deviation    how far it is from its own running level, in running standard deviations

Of each the learner keeps a running mean m, a quantile q of size / m that a tenth of the sizes exceed (Robbins and
Monro, 1951), the share r of those above it and their mean excess b. Above q the tail is exponential, which is the limit
of excesses over a threshold for every light tail (Pickands, 1975); below it the score rises linearly:

    p = r exp(-(size / (m q) - 1) / b)   above,      p = 1 - (1 - TAIL) size / (m q)   below
    evidence = -log(2 min(p_surprise, p_deviation)),      anomaly = 1 - e^-evidence

The minimum of two p-values, doubled, is a p-value, so anomaly > 1 - p is as rare as p on a stream that stays as it is
and has no heavier tail than the exponential one. The same evidence is no news for a while: for REFRACTORY observations
after the strongest evidence of late, what does not exceed it by the share NEWS scores at most QUIET.

The `anomaly` of a reply is another score, a probability for the surprise alone
(service/engine/filter/learned_normal.py); this one is made for alarms.

Everything about a stream is in its row of the state arrays; rows do not depend on each other. Powers and exponentials
are vectorised: for equal bits in any company, run a multiple of 16 rows, as the runtime does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Array = np.ndarray

# Score from which a row is an anomaly: chosen on the earlier 60 % of NAB's series, the same for every stream.
THRESHOLD = 0.998
# Observations that count for the mean, the quantile and the tail; before that all of them, the later ones more.
MEMORY = 1000.0
EARLY_WEIGHT = 3.0
# A mean takes at most this many times itself from one observation, from the third on.
BOUND = 5.0
TAIL = 0.1
# How fast the quantile moves at first: one over its density, of a normal size, at the quantile.
QUANTILE_GAIN, QUANTILE_START = 3.0, 20.0
# Before anything is seen: the quantile of a normal size in units of its mean, and an excess that counts as so many.
FIRST_QUANTILE, FIRST_EXCESS, PRIOR_EXCESSES = 2.06, 0.3, 60.0
LARGEST_EXCESS = 50.0
# A size in units of its mean is cut here, and is this where all before it were 0.
LARGEST = 1e6
# Observations before the first score.
WARM_UP = 10
# The running level: its rate, and the scale around it as in model/metric_filter.py.
LEVEL_RATE = 0.03
SCALE_BOUND, TRUSTED, DOUBT = 9.0, 20.0, 0.95
REFRACTORY, NEWS = 100.0, 0.1
QUIET = 0.9
# Rows that `anomalies` runs at once; see above.
ROWS = 16


class NormalState(NamedTuple):
    """What is learned of B streams of P components; the last axis of the `[B, 2]` is (surprise, deviation).

    observed `[B]` observations; held `[B]` strongest evidence of late, age `[B]` observations ago; level, variance and
    trust (observations that the variance rests on) `[B, P]`; mean, quantile, share and excess `[B, 2]`.
    """

    observed: Array
    held: Array
    age: Array
    level: Array
    variance: Array
    trust: Array
    mean: Array
    quantile: Array
    share: Array
    excess: Array


def start(streams: int, components: int) -> NormalState:
    """Nothing seen yet."""
    row, wide, pair = np.zeros(streams), np.zeros((streams, components)), np.zeros((streams, 2))
    return NormalState(
        row, row, row, wide, wide, wide, pair, pair + FIRST_QUANTILE, pair + TAIL, pair + TAIL * FIRST_EXCESS
    )


def surprise(nis: Array, count: Array) -> Array:
    """Size of an innovation from its nis and the number of components seen; NaN where there are none."""
    size = np.maximum(count, 1)
    return np.where(np.asarray(count) > 0, np.sqrt(np.maximum(nis, 0.0) / size), np.nan)


def learn(state: NormalState, surprise: Array, observation: Array) -> tuple[NormalState, Array]:
    """Score one observation of every stream by what was normal before it, then learn from it.

    Args:
        surprise: `[B]`, NaN where nothing was observed: such a row stays as it is.
        observation: `[B, P]`, NaN where a component is missing.

    Returns:
        the next state, and the anomaly score `[B]`, 0 where nothing was observed.
    """
    seen = np.isfinite(surprise)
    deviation, around = _deviation(state, np.where(seen[:, None], observation, np.nan))
    size = np.stack([np.where(seen, surprise, 0.0), deviation], axis=-1)
    ratio, above = _place(state, size)
    evidence = np.maximum(_evidence(state, ratio, above).max(axis=-1) - np.log(2.0), 0.0)
    evidence = np.where(seen & (state.observed >= WARM_UP), evidence, 0.0)
    score = -np.expm1(-evidence)
    held = np.where(state.age < REFRACTORY, state.held, 0.0)
    score = np.where(evidence > held * (1 + NEWS), score, np.minimum(score, QUIET))
    is_strongest = evidence >= held
    held, age = np.where(is_strongest, evidence, held), np.where(is_strongest, 0.0, state.age + 1)
    following = NormalState(state.observed + 1, held, age, *around, *_learned(state, size, above))
    return _where(seen, following, state), score


def _deviation(state: NormalState, observation: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    """Root mean square deviation of the components from their levels `[B]`, and level, variance and trust after."""
    known = np.isfinite(observation)
    away = np.where(known & (state.trust > 0), observation - state.level, 0.0)
    square = away * away
    has_scale = state.variance > 0
    relative = np.where(has_scale, square / np.where(has_scale, state.variance, 1.0), (square > 0) * 1.0)
    is_bounded = (relative > SCALE_BOUND) & (state.trust > TRUSTED)
    trust = np.where(is_bounded, np.maximum(DOUBT * state.trust, TRUSTED), np.minimum(state.trust + 1, MEMORY))
    taken = np.where(is_bounded, SCALE_BOUND * state.variance, square)
    variance = state.variance + (taken - state.variance) / np.maximum(trust - 1, 1)
    moved = state.level + np.maximum(1 / np.maximum(trust, 1), LEVEL_RATE) * away
    level = np.where(state.trust > 0, moved, observation)
    after = tuple(
        np.where(known, new, old)
        for new, old in ((level, state.level), (variance, state.variance), (trust, state.trust))
    )
    size = np.sqrt(np.where(known, relative, 0.0).sum(axis=-1) / np.maximum(known.sum(axis=-1), 1))
    return size, (after[0], after[1], after[2])


def _place(state: NormalState, size: Array) -> tuple[Array, Array]:
    """Sizes in units of their quantile `[B, 2]`, and their excess over it."""
    has_mean = state.mean > 0
    unit = np.where(has_mean, size / np.where(has_mean, state.mean, 1.0), np.where(size > 0, LARGEST, 0.0))
    ratio = np.minimum(unit, LARGEST) / state.quantile
    return ratio, np.maximum(ratio - 1, 0.0)


def _evidence(state: NormalState, ratio: Array, above: Array) -> Array:
    """-log p of each size."""
    tail = above * state.share / state.excess - np.log(np.minimum(state.share, 0.99))
    body = -np.log1p(-(1 - TAIL) * np.minimum(ratio, 1.0))
    return np.where(above > 0, tail, body)


def _learned(state: NormalState, size: Array, above: Array) -> tuple[Array, Array, Array, Array]:
    """mean, quantile, share and excess (per observation, so its mean over those above is excess / share) after."""
    count = state.observed[:, None] + 1
    rate = np.maximum(EARLY_WEIGHT / (count + EARLY_WEIGHT - 1), 1 / MEMORY)
    is_bounded = (count > EARLY_WEIGHT) & (state.mean > 0)
    taken = np.where(is_bounded, np.minimum(size, BOUND * state.mean), size)
    mean = state.mean + rate * (taken - state.mean)
    # Where nothing but zeros came before there is no unit: such a size tells nothing of the tail.
    above = np.where(state.mean > 0, above, 0.0)
    hit = (above > 0) * 1.0
    pace = QUANTILE_GAIN * np.maximum(1 / (count + QUANTILE_START), 1 / MEMORY)
    quantile = state.quantile * (1 + pace * (hit - TAIL))
    slow = np.maximum(1 / (count + PRIOR_EXCESSES / TAIL), 1 / MEMORY)
    share = state.share + slow * (hit - state.share)
    excess = state.excess + slow * (np.minimum(above, LARGEST_EXCESS) - state.excess)
    return mean, quantile, share, excess


def _where(chosen: Array, new: NormalState, old: NormalState) -> NormalState:
    pairs = zip(new, old, strict=True)
    return NormalState(*(np.where(chosen if a.ndim == 1 else chosen[:, None], a, b) for a, b in pairs))


def anomalies(nis: Sequence[float | None], observations: Array, tick: Callable[[], object] = lambda: None) -> Array:
    """Scores of one whole series: its filter's nis (None where nothing was observed) and observations `[N, P]`; `tick`
    is called after each."""
    values = np.asarray(observations, np.float64)
    sizes = surprise(np.array([np.nan if x is None else x for x in nis], np.float64), np.isfinite(values).sum(axis=-1))
    state, scores = start(ROWS, values.shape[1]), np.zeros(len(values))
    for i, (size, row) in enumerate(zip(sizes, values, strict=True)):
        state, score = learn(state, np.full(ROWS, size), np.broadcast_to(row, (ROWS, len(row))))
        scores[i] = score[0]
        tick()
    return scores
