"""Weights of the experts of the mixture, and the errors of its forecasts. See `mixture_numba.py` for the equations."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.series import mixture_layout as at
from rfa.runtime.series.profile_numba import UNSEEN
from rfa.runtime.series.smoothing_numba import free_slot, has_arrived

RATE, LARGEST, FASTEST = 0.5, 10.0, 0.5
# Ratio of errors: the fraction that the last ones retain, and its bounds.
KEPT, LEAST_RATIO, LARGEST_RATIO = 0.99, 0.2, 2.0
# Number of errors that the mean error of the forecasts' means covers, number of zeros before there are others, and
# number of values from which on errors count, because the first ones are not representative of the mean.
OFFSETS, FIRST_ERRORS, OFFSETS_FROM = 400.0, 30.0, 32
# Minimum number of scored forecasts of a horizon from which on its weights are used fully, and the largest error of a
# mean, in units of the usual error.
TRUSTED_FROM, FURTHEST_OFF = 4.0, 20.0
# Fraction of the largest of the last errors that remains after a row, and the factor by which a surprise is larger than
# all earlier errors.
KEPT_RECENT, FAR_LARGER = 0.5, 1.5
# Number of errors near an entry of LEADS before the requested horizons near it take turns.
FIRST_TURNS = 32
_TINY = 1e-150
_PRIOR_LOGS = -np.log(at.PRIOR)
_FIRST = at.FIRST_EXPERT_SLOT


@inline_jit
def _rate(numbers, lead, k):
    squares = numbers[at.SQUARES + lead * at.EXPERT_COUNT + k]
    return min(FASTEST, RATE * np.sqrt(_PRIOR_LOGS[k] / (1 + squares)))


@inline_jit
def score_experts(numbers, memory, cell, value):
    """Score the experts' forecasts for the current cell. A missing value ends them without a score."""
    for lead in range(at.LEAD_COUNT):
        for i in range(at.EXPERT_PENDING[lead]):
            slot = _FIRST[lead] + i
            if has_arrived(numbers, at.EXPERT_DUE + slot, cell) and value == value:
                _score_slot(numbers, memory, lead, slot, value)


@inline_jit
def _score_slot(numbers, memory, lead, slot, value):
    off, first = value - numbers[at.EXPERT_BASE + slot], at.EXPERT_FORECAST + slot * at.FORECASTS
    mixed, mean = np.float64(memory[first + at.MIXED]), np.float64(memory[first + at.MIXED_MEAN])
    numbers[at.SCORED + lead] += 1
    count = numbers[at.SCORED + lead]
    share = max(1 / count, 1 - KEPT)
    error, network = abs(mixed - off), abs(np.float64(memory[first + at.NETWORK]) - off)
    numbers[at.MIXTURE_ERROR + lead] += share * (error - numbers[at.MIXTURE_ERROR + lead])
    numbers[at.NETWORK_ERROR + lead] += share * (network - numbers[at.NETWORK_ERROR + lead])
    if lead == 0:
        numbers[at.MEAN_SIZE] += share * (abs(value) - numbers[at.MEAN_SIZE])
        is_surprise, kept = error > FAR_LARGER * numbers[at.LARGEST_ERROR], KEPT_RECENT * numbers[at.SURPRISE]
        numbers[at.SURPRISE] = max(error, kept) if is_surprise else kept
        numbers[at.RECENT] = max(error, KEPT_RECENT * numbers[at.RECENT])
        numbers[at.LARGEST_ERROR] = max(error, numbers[at.LARGEST_ERROR])
    if numbers[at.SEEN] >= OFFSETS_FROM:
        bound = FURTHEST_OFF * numbers[at.MIXTURE_ERROR + lead]
        _add_offset(numbers, lead, min(max(off - mean, -bound), bound))
    scale, sign = numbers[at.MIXTURE_ERROR + lead] + _TINY, np.sign(mixed - off)
    for k in range(at.EXPERT_COUNT):
        if memory[first + k] == UNSEEN:  # the loss is zero, as if the forecast were that of the mixture
            continue
        loss = sign * (np.float64(memory[first + k]) - mixed) / scale
        loss = min(max(loss, -LARGEST), LARGEST)
        rate = _rate(numbers, lead, k)
        numbers[at.REGRET + lead * at.EXPERT_COUNT + k] += loss * (1 + rate * loss)
        numbers[at.SQUARES + lead * at.EXPERT_COUNT + k] += loss * loss
        numbers[at.OWN_SCORED + lead * at.EXPERT_COUNT + k] += 1


@inline_jit
def _add_offset(numbers, lead, error):
    """Add an error of the forecasts' means."""
    numbers[at.OFFSET_COUNT + lead] += 1
    share = max(1 / numbers[at.OFFSET_COUNT + lead], 1 / OFFSETS)
    numbers[at.OFFSET + lead] += share * (error - numbers[at.OFFSET + lead])
    numbers[at.SQUARED + lead] += share * (error**2 - numbers[at.SQUARED + lead])
    product = error * numbers[at.OFFSET_BEFORE + lead]
    numbers[at.PRODUCT + lead] += share * (product - numbers[at.PRODUCT + lead])
    numbers[at.OFFSET_BEFORE + lead] = error


@inline_jit
def _least_scored(lead):
    """Return the number of scored forecasts from which the errors at a horizon have their full weight. It is at least
    the number of pending forecasts, because their errors overlap."""
    return max(TRUSTED_FROM, np.float64(at.EXPERT_PENDING[lead]))


@inline_jit
def expert_weights(numbers, lead, out):
    """Compute the weights of the experts at a horizon, `[EXPERT_COUNT]`, which sum to one.

    Before forecasts of an expert were scored, the network has its weight. Only the network can predict how far series
    move, and the first forecast of a season would repeat the season whether there is one or not.
    """
    most, total = -np.inf, 0.0
    for k in range(at.EXPERT_COUNT):
        rate = _rate(numbers, lead, k)
        out[k] = np.log(rate) - _PRIOR_LOGS[k] - rate * numbers[at.REGRET + lead * at.EXPERT_COUNT + k]
        most = max(most, out[k])
    for k in range(at.EXPERT_COUNT):
        is_scored = numbers[at.OWN_SCORED + lead * at.EXPERT_COUNT + k] > 0
        out[k] = np.exp(out[k] - most) if is_scored or k == at.NETWORK else 0.0
        total += out[k]
    others = 0.0
    least = max(_least_scored(lead), np.sqrt(numbers[at.SCORED + lead]))
    for k in range(at.EXPERT_COUNT):
        trust = min(numbers[at.OWN_SCORED + lead * at.EXPERT_COUNT + k] / least, 1.0)
        out[k] *= trust / total
        others += out[k] if k != at.NETWORK else 0.0
    out[at.NETWORK] = 1 - others


@inline_jit
def error_ratio(numbers, lead):
    """Return the ratio of the mean absolute errors of the mixture and of the network at a horizon. It is close to 1
    while there are few errors."""
    network = numbers[at.NETWORK_ERROR + lead]
    if not network > 0:
        return 1.0
    count, equal = numbers[at.SCORED + lead], _least_scored(lead)
    ratio = (count * numbers[at.MIXTURE_ERROR + lead] / network + equal) / (count + equal)
    return min(max(ratio, LEAST_RATIO), LARGEST_RATIO)


@inline_jit
def next_horizon(leads, nearest, lead, turn):
    """Return the index of the requested horizon near an entry of LEADS whose turn it is, or -1 if there is none.

    The shortest one has the first turns, because its values arrive first.
    """
    count, shortest = 0, -1
    for h in range(len(leads)):
        if nearest[h] == lead:
            count += 1
            shortest = h if shortest < 0 or leads[h] < leads[shortest] else shortest
    if turn < FIRST_TURNS or count == 0:
        return shortest
    turn %= count
    for h in range(len(leads)):
        if nearest[h] == lead:
            if turn == 0:
                return h
            turn -= 1
    return shortest


@inline_jit
def add_experts(numbers, memory, lead, cells, forecasts):
    """Store the forecasts of the experts, and of the mixture after them, at a horizon in cells until their value is
    observed. Missing forecasts are UNSEEN.
    """
    free = free_slot(numbers, at.EXPERT_DUE + _FIRST[lead], at.EXPERT_PENDING[lead], cells)
    if free < 0:
        return
    slot = _FIRST[lead] + free
    numbers[at.EXPERT_BASE + slot] = numbers[at.LATEST]
    first = at.EXPERT_FORECAST + slot * at.FORECASTS
    for k in range(at.FORECASTS):
        is_there = forecasts[k] == forecasts[k]
        memory[first + k] = np.float32(forecasts[k] - numbers[at.LATEST]) if is_there else UNSEEN


@inline_jit
def mean_error(numbers, lead, usual):
    """Return an estimate of the mean error of the forecast means at a horizon. It is `usual`, plus the part of the
    difference of the observed mean error from `usual` that chance does not explain. If squares of errors overflowed, as
    in a damaged state, it is `usual`."""
    away, count = numbers[at.OFFSET + lead] - usual, min(numbers[at.OFFSET_COUNT + lead], OFFSETS)
    # Errors of overlapping forecasts may be correlated, by the correlation of two successive ones, which initially is
    # that of full overlap.
    overlapping = min(at.LEADS[lead], at.EXPERT_PENDING[lead])
    squared_mean = numbers[at.OFFSET + lead] ** 2
    covariance = numbers[at.PRODUCT + lead] - squared_mean
    correlation = min(max(covariance / (numbers[at.SQUARED + lead] - squared_mean + _TINY), 0.0), 0.99)
    share = count / (count + FIRST_ERRORS)
    correlation = share * correlation + (1 - share) * (1 - 1 / overlapping)
    count *= (1 - correlation) / (1 + correlation)
    trust = count / (count + FIRST_ERRORS)
    found = usual + trust * away * max(1 - numbers[at.SQUARED + lead] / (count * away * away + _TINY), 0.0)
    return found if np.isfinite(found) else usual
