"""Rarity of an observation in its stream (anomaly score, confidence and alarms), and the calibrated precision."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.bundle.novelty import NOVELTY_CAP, NOVELTY_RATE
from rfa.runtime.compiling import inline_jit, source_inline_jit
from rfa.runtime.filters.observed import PRECISION
from rfa.runtime.uncertainty import learned_tail
from rfa.runtime.uncertainty.baseline import LEVEL, SPREAD, interpolate, learn, share_below, size_of_one, standard
from rfa.runtime.uncertainty.learned_tail import BODY, HELD, QUIET, learn_tail_probability, least_early
from rfa.runtime.uncertainty.rules import GAP, RANGE, RULES, STRETCH, VALUE

# Value that replaces a variance that is zero, or negative because of rounding.
LEAST_VARIANCE = 1e-300
# Factor by which the evidence of an alarm must be larger in the quiet time after another alarm.
NEWS = 1.1


@source_inline_jit
def _tail_probability(scorer, stream, learns, seen, nis):
    """Return the tail probability of an observation in its stream, z under the model alone, and the number of columns
    of the tail in `work` that changed. Most observations change only the first columns."""
    streams, tail_model, work = scorer.streams, scorer.tables.tail_model, scorer.work
    size = np.float64(max(seen, 1))
    root = (nis / size) ** (1 / 3)
    z, share = learn(streams.baseline[stream], root, size, learns, tail_model, work.baseline)
    score = min(size_of_one(z), learned_tail.LARGEST_SCORE)
    tail = streams.tail[stream]
    is_early, threshold = not learned_tail.has_begun(tail), np.float64(tail[learned_tail.THRESHOLD])
    count = learned_tail.COLUMNS if is_early or score > threshold else learned_tail.GRID
    for k in range(count):
        work.tail[k] = tail[k]  # in float64 from here on
    noise = np.exp(work.baseline[LEVEL] / 2)
    p = learn_tail_probability(score, noise, learns, work.tail)
    if is_early:
        p = max(1 - share, least_early(score * noise, tail))
    elif p > BODY:
        # Below the threshold, whose fraction is 1 - BODY according to the bundle's table.
        edge = share_below(standard(threshold ** (2 / 3), 1.0), streams.baseline[stream][SPREAD], tail_model)
        p = 1 - (1 - BODY) * (share / edge if share < edge else 1.0)
    return p, standard(root, size), count


@source_inline_jit
def score_anomaly(scorer, stream, seen, nis, is_new):
    """Return the tail probability, the running mean of the novelty after the observation, and the number of columns
    written to `work.tail`.

    Args:
        seen: Number of observed components.
        nis: Normalised innovation squared.
        is_new: Whether the observation neither recurs nor is part of a standstill. Other observations do not update the
            baseline and the tail.
    """
    work = scorer.work
    learns = False
    for a in range(len(work.is_scored)):
        learns = learns or (is_new and work.is_scored[a])
    p, z, count = _tail_probability(scorer, stream, learns, seen, nis)
    novelty = scorer.streams.novelty[stream]
    if seen > 0:
        bounded = min(max(z, -NOVELTY_CAP), NOVELTY_CAP)
        novelty = (1 - NOVELTY_RATE) * novelty + NOVELTY_RATE * bounded
    return p, novelty, count


@inline_jit
def _raised_by(alarm, tails, least, expected, usual, is_there):
    """Return the rule that raises an alarm, or -1 if there is none. The share of a rule that cannot raise an alarm is
    added to that of "value"."""
    found, share = -1, 1.0
    for k in range(STRETCH, RULES):
        rate = alarm.shares[k] * (usual if k == GAP else expected)
        if alarm.shares[k] > 0 and least[k] <= rate:
            share -= alarm.shares[k]
            # Standstills and gaps have neither direction nor size.
            is_asked = is_there if k == STRETCH else alarm.direction == 0 and alarm.deviation == 0
            if is_asked and tails[k] <= rate:
                found = k
    return VALUE if alarm.shares[VALUE] > 0 and is_there and tails[VALUE] <= share * expected else found


@inline_jit
def decide_alarm(rule, tails, least, expected, usual, value, innovation, tail):
    """Return the rule by which an observation is an alarm, and update `tail`. Return -1 if it is not an alarm.

    Args:
        rule: Conditions for an alarm.
        tails, least: See `rules.update_rules`.
        expected, usual: Rate of alarms for the time since the previous observation, and for a typical lag.
        value, innovation: Values and innovations of the components, `[P]`.
        tail: State of the quiet time. See learned_tail.py.
    """
    is_outside, is_there = False, False
    for a in range(len(value)):
        if value[a] == value[a]:
            is_outside = is_outside or value[a] < rule.low or value[a] > rule.high
            size = innovation[a] if rule.direction >= 0 else -innovation[a]
            if rule.direction == 0:
                size = abs(size)
            is_there = is_there or (size > 0 and size >= rule.deviation)
    raised = _raised_by(rule, tails, least, expected, usual, is_there)
    if raised != VALUE and is_outside:
        raised = RANGE
    evidence = -np.log(tails[raised if 0 <= raised < RULES else VALUE])
    if tail[QUIET] > 0:
        raised = raised if evidence > NEWS * tail[HELD] else -1
        tail[QUIET] -= 1
    if raised >= 0:
        tail[QUIET], tail[HELD] = rule.quiet, evidence
    return raised


@inline_jit
def calibrated_precision(table, posterior, novelty):
    """Return the inverse of the calibrated variance of the state. This variance is that of the model times a factor for
    the gain and a factor for the running mean of the novelty."""
    state, innovation = 0.0, 0.0
    for a in range(len(posterior.mean)):
        state += posterior.covariance[a, a]
        innovation += posterior.innovation_covariance[a, a]
    gain = state / max(innovation, LEAST_VARIANCE)
    factor = interpolate(gain, table.gain, table.by_gain) * interpolate(novelty, table.novelty, table.by_novelty)
    return posterior.scalars[PRECISION] / factor
