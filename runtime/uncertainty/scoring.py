"""Score an observation after the filter has processed it, and update its stream.

The filter provides the mean, variances, innovation, weight, nis, likelihood and moments of the forecasts. From these,
the calibrated outputs are computed: an anomaly score, a confidence, and intervals. The results of a row depend only on
its stream, regardless of the other rows in the batch. A row with a non-finite result leaves its stream unchanged.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import rfa.runtime.filters.student as students_t
from rfa.runtime import kernel_calls, typical_lag, views
from rfa.runtime.compiling import inline_jit
from rfa.runtime.filters import observed
from rfa.runtime.filters.observed import LOG_LIKELIHOOD, NIS, WEIGHT
from rfa.runtime.filters.student import stretched
from rfa.runtime.kernel_calls import Entry, call, callee
from rfa.runtime.local_time_numba import utc_offset
from rfa.runtime.typical_lag import typical_step
from rfa.runtime.uncertainty import (
    adaptive,
    alarms,
    anomaly,
    baseline,
    calibration,
    copy_arrays,
    forecast_checks,
    intervals,
    learned_tail,
    lengths,
    mute,
    pending,
    recurrence,
    rules,
    step_outputs,
    stretch,
)
from rfa.runtime.uncertainty.anomaly import calibrated_precision, decide_alarm, score_anomaly
from rfa.runtime.uncertainty.baseline import interpolate
from rfa.runtime.uncertainty.copy_arrays import clear, copy2
from rfa.runtime.uncertainty.forecast_checks import ALARMS, ASKED, EXPECTED, OUTLIERS, outlier_gate, tally_horizons
from rfa.runtime.uncertainty.intervals import check_step, forecast_intervals
from rfa.runtime.uncertainty.pending import add_pending, load_shift, match_horizons, remove_arrived, score_pending
from rfa.runtime.uncertainty.rules import (
    COMPONENT,
    FIRST_ALARM,
    PROBABILITY,
    RAISED_BY,
    RAISED_NUMBERS,
    RULES,
    UNUSUAL,
    VALUE,
    explained_share,
    note_stretch,
    stands_still,
    update_incident,
    update_rules,
    variance_share,
)
from rfa.runtime.uncertainty.step_outputs import FilterOutput, Observation, Scorer, StepOutputs
from rfa.runtime.views import members, packed

_PARTS = (
    adaptive, alarms, anomaly, baseline, calibration, copy_arrays, forecast_checks, intervals, kernel_calls, views,
    learned_tail, lengths, mute, observed, pending, recurrence, rules, step_outputs, stretch, students_t, typical_lag,
)  # fmt: skip
_OBSERVATION = Observation(0, 0.0, np.empty(0))
# Modules that contain the functions of a kernel that scores observations.
SOURCES = (*_PARTS, sys.modules[__name__])


@inline_jit
def _horizon_unit(horizons, step):
    """Return the length of one step of the horizons in time units, or 1 if the horizons are not in steps."""
    return step / horizons.step if horizons.in_steps and step > 0 else 1.0


@inline_jit
def _write_state(scorer, observation, posterior, out, row):
    """Write the mean, std, innovation and intervals of the state. Return the number of observed components, and the sum
    of all results, which is not finite if one of them is not."""
    spec, value, work = scorer.spec, observation.value, scorer.work
    is_begun = scorer.streams.counts[observation.stream] > 0
    seen, total = 0, 0.0
    for a in range(len(value)):
        is_seen = value[a] == value[a]
        seen += 1 if is_seen else 0
        work.is_scored[a] = is_seen and is_begun and posterior.has_forecast[a]
        out.mean[row, a] = posterior.mean[a]
        deviation = np.sqrt(max(posterior.covariance[a, a], 0.0))
        out.std[row, a] = deviation * spec.state_scale
        out.innovation[row, a] = posterior.innovation[a] if is_seen else np.nan
        total += posterior.mean[a] + posterior.innovation[a]
        for b in range(len(value)):
            total += posterior.covariance[a, b] + posterior.innovation_covariance[a, b]
        for level in range(out.interval.shape[1]):
            half = deviation * spec.state[level] * stretched(spec.squares[level], posterior.inverse_dof[1, a])
            out.interval[row, level, a, 0] = posterior.mean[a] - half
            out.interval[row, level, a, 1] = posterior.mean[a] + half
    return seen, total


@inline_jit
def _write_alarm(scorer, lag, step, observation, innovation, position, out, row):
    """Write whether an observation is an alarm, its rule and its incident. Update the tally."""
    rule, work, sums = scorer.spec.alarm, scorer.work, out.tally[row]
    expected, usual = min(rule.rate + rule.per_time * lag, 1.0), min(rule.rate + rule.per_time * step, 1.0)
    raised = decide_alarm(rule, work.tails, work.least, expected, usual, observation.value, innovation, work.tail)
    is_alarm, is_unusual = raised >= 0, work.tails[VALUE] <= UNUSUAL
    first = update_incident(scorer.streams.alarms.incident[observation.stream], position, is_unusual, is_alarm)
    sums[ASKED], sums[EXPECTED], sums[ALARMS] = 1, expected, 1 if is_alarm else 0
    out.alarm[row] = sums[ALARMS]
    if is_alarm:
        note_stretch(scorer.streams.alarms, observation.stream, work)
        shown = raised if raised < RULES else VALUE
        out.raised[row, RAISED_BY], out.raised[row, FIRST_ALARM] = raised, first
        out.raised[row, PROBABILITY], out.raised[row, COMPONENT] = work.tails[shown], work.components[shown]


@inline_jit
def _check_forecasts(scorer, observation, lag, unit, posterior, sums):
    """Score the forecasts for this observation. Return the number of pending forecasts that end."""
    work, stream = scorer.work, observation.stream
    if work.loaded[0] != stream:
        load_shift(scorer.streams.conformal, stream, work)
    match_horizons(scorer.spec, scorer.horizons, unit, work)
    clear(work.scored)
    arrived = 0
    if work.loaded[1] > 0:
        arrived = score_pending(scorer, observation, lag, unit)
    weight, nis = posterior.scalars[WEIGHT], posterior.scalars[NIS]
    check_step(scorer, lag / unit, posterior, weight * max(nis, 0.0), sums)
    return arrived


@inline_jit
def _update_stream(scorer, observation, step, novelty, tail_columns):
    """Copy the state of a stream, except for its forecasts, from `work` to the pool."""
    streams, work, stream = scorer.streams, scorer.work, observation.stream
    for k in range(baseline.COLUMNS):
        streams.baseline[stream, k] = work.baseline[k]
    for k in range(tail_columns):
        streams.tail[stream, k] = work.tail[k]
    streams.novelty[stream], streams.time[stream], streams.step[stream] = novelty, observation.time, step
    streams.counts[stream] += 1


# Called by its address, because it takes longer to compile than the rest of most kernels.
@callee(*_PARTS)
def _score(arguments, observation, is_finite, row):
    parts: Any = members(arguments)
    scorer, posterior, out = parts
    out.is_good[row] = False
    streams, tables, work, stream = scorer.streams, scorer.tables, scorer.work, observation.stream
    weight, nis, log_likelihood = posterior.scalars[WEIGHT], posterior.scalars[NIS], posterior.scalars[LOG_LIKELIHOOD]
    count, sums = streams.counts[stream], out.tally[row]
    lag = observation.time - streams.time[stream] if count > 0 else 0.0
    step = typical_step(streams.step[stream], lag, count)
    unit = _horizon_unit(scorer.horizons, step)
    seen, total = _write_state(scorer, observation, posterior, out, row)
    local_time = observation.time + utc_offset(scorer.spec.utc_offsets, observation.time)
    explained = explained_share(streams.alarms, observation, posterior, work.is_scored, local_time, step, work.periods)
    scored = posterior.tail[1] if posterior.tail[1] == posterior.tail[1] else nis
    scored *= variance_share(streams.alarms, stream, posterior, work.is_scored)
    is_new = explained == 0 and not stands_still(streams.alarms, observation)
    p, novelty, tail_columns = score_anomaly(scorer, stream, seen, max(scored, 0.0), is_new)
    if posterior.tail[0] == posterior.tail[0]:
        p = posterior.tail[0]
    out.anomaly[row] = 1 - max(p, explained)
    out.confidence[row] = interpolate(novelty, tables.novelty, tables.confidence)
    precision = calibrated_precision(tables.precision, posterior, novelty)
    arrived = _check_forecasts(scorer, observation, lag, unit, posterior, sums)
    if count > 0 and seen > 0:
        sums[OUTLIERS] = 1 if nis > outlier_gate(seen) else 0
        tally_horizons(scorer.spec.horizon, step, lag, work.column, work.scored, sums)
    total += forecast_intervals(scorer, posterior, out.moments[row], out.bands[row])
    for k in range(baseline.COLUMNS):
        total += work.baseline[k]
    total += novelty + out.anomaly[row] + precision + weight + nis + log_likelihood
    if not (is_finite and np.isfinite(total)):
        work.loaded[0] = -1
        return False
    out.position[row], out.precision[row], out.log_likelihood[row] = count, precision, log_likelihood
    out.weight[row], out.nis[row] = weight, nis
    if seen == 0:
        out.weight[row] = out.nis[row] = out.anomaly[row] = np.nan
    update_rules(streams.alarms, observation, posterior, local_time, step, p, explained > 0, scorer.spec, work)
    work.tails[VALUE] = max(p, explained)
    out.alarm[row] = np.nan
    for k in range(RAISED_NUMBERS):
        out.raised[row, k] = np.nan
    if seen > 0 and (scorer.spec.alarm.rate > 0 or scorer.spec.alarm.per_time > 0):
        _write_alarm(scorer, lag, step, observation, posterior.innovation, count, out, row)
    if arrived > 0:
        remove_arrived(streams.conformal, stream, work)
    copy2(work.shift[0], streams.conformal.shift[stream, 0])
    if step > 0 or not scorer.horizons.in_steps:
        add_pending(scorer, observation, unit, count, posterior)
    _update_stream(scorer, observation, step, novelty, tail_columns)
    out.is_good[row] = True
    return True


def scoring_entry(scorer: Scorer, posterior: FilterOutput, out: StepOutputs) -> Entry:
    """Return the entry of the kernel that `score_observation` calls. Only the types of the arguments matter."""
    return _score.entry((scorer, posterior, out), _OBSERVATION, True, 0)


@inline_jit
def score_observation(entry, scorer, observation, posterior, is_finite, out, row):
    """Write the outputs of an observation. Update its stream if all of them are finite.

    Args:
        entry: Entry that `scoring_entry` returned.
        scorer: Data for scoring. See `Scorer`.
        observation: The observation.
        posterior: Outputs of the filter. See `FilterOutput`.
        is_finite: Whether the filter's own state is finite.
        out, row: `StepOutputs`, and the index of the row to write.

    Returns:
        Whether the stream was updated.
    """
    return call(entry, (packed((scorer, posterior, out)), observation, is_finite, row))
