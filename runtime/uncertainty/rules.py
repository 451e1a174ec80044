"""Alarm rules other than `value`: `stretch` (a changed level or spread over the last rows), `standstill` (a value that
no longer changes) and `gap` (a time without values). Deviations that recur are exempt.

Each rule computes a separate tail probability and has a share of the alarm rate. Until a rule has enough history, its
share is added to that of the rule `value`. Columns are separate and have equal shares of the rates.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.pool import StateField
from rfa.runtime.uncertainty import learned_tail, lengths, recurrence, stretch
from rfa.runtime.uncertainty.lengths import BIN, COUNT, LONGEST, TWO, add_length, least_tail, length_tail
from rfa.runtime.uncertainty.mute import is_muted_between
from rfa.runtime.uncertainty.recurrence import add_episode, comes_again, follows, recurring_share
from rfa.runtime.uncertainty.stretch import SIZE, is_usual, learn_size, least_stretch_tail, note_alarm, stretch_tail

Array = np.ndarray[Any, Any]

# The first four rules use tail probabilities of rows. The last one compares values with limits.
VALUE, STRETCH, STANDSTILL, GAP, RANGE = range(5)
RULES = 4
# Numbers of an alarm: its rule, the position of the first alarm of its incident, its tail probability, and its
# component.
RAISED_BY, FIRST_ALARM, PROBABILITY, COMPONENT = range(4)
RAISED_NUMBERS = 4
# Numbers of a column: time and value of the last row with a value, the number of rows with this value, the newest
# episode, time and period of the last recurring deviation, and the standard deviation of innovations before a
# standstill (0 if there is none).
TIME, LAST, RUN, NEWEST, RECURRED, PERIOD, HELD = range(7)
LAST_NUMBERS = 7
# Kinds of lengths.
RUNS, GAPS = 0, 1
# Numbers of a stream: the position of the first alarm of the current incident plus 1 (0 if there is none), and the
# number of ordinary rows since the last unusual one.
INCIDENT, ORDINARY = 0, 1
# A row that is at least this rare is unusual, and an incident ends after this number of ordinary rows.
UNUSUAL, ENDS_AFTER = 0.05, 10
# Deviations that are at least this rare are stored for the test of recurrence: one in 500 rows, or RARE_PER_DAY if
# times are in seconds, but at most one in twenty. If there are several columns, those with at least half of the largest
# deviation are stored.
RARE, RARE_PER_DAY, LEAST_RARE, HALF = 2e-3, 4.0, 0.05, 0.5
# Deviations that are smaller than this number of typical deviations are not tested for recurrence.
ORDINARY_SIZE = 2.0
# Minimum tail probability of a deviation that is usual at its time of day or attributed to a recurring one, and the
# values that represent these two cases in `periods`.
USUAL, NO_PERIOD, FOLLOWS = 0.25, -1.0, -2.0
# Number of rows from which a standstill can be detected, and the largest fraction of repeated values of such a column.
FEWEST, OFTEN = 100, 0.5
# A repeated value is a standstill, and is not informative about the noise, if this is the largest probability of such
# repetition by chance. After it, a filter that interpreted it as the absence of noise must learn the noise again. The
# second number is the fraction of the standard deviation before the standstill that remains after one more row.
STILL, KEPT = 0.005, 0.99
# Shorter times, in typical lags, are not gaps. Longer ones are stored as this length, which float32 can hold.
SHORTEST_GAP, LARGEST_GAP = 2.5, 1e30


class AlarmState(NamedTuple):
    """State of the streams for their alarms, by stream index. The modules of this directory describe the arrays.

    Attributes:
        incident: Current incident, `[S, 2]`.
        last: Numbers of each column, `[S, P, LAST_NUMBERS]`.
        lengths: Lengths of runs and gaps, `[S, P, 2, lengths.NUMBERS]`.
        stretch: Statistics of the rule `stretch`, `[S, P, stretch.NUMBERS]`.
        profile: Profiles of the rule `stretch`, `[S, P, stretch.CELLS]`.
        tail: Tail of the rule `stretch`, `[S, P, learned_tail.COLUMNS]`.
        begins, episodes: Episodes of large deviations, `[S, P, EPISODES]` and `[S, P, EPISODES, 2]`.
    """

    incident: Array
    last: Array
    lengths: Array
    stretch: Array
    profile: Array
    tail: Array
    begins: Array
    episodes: Array


FIELDS = tuple(f"alarm.{name}" for name in AlarmState._fields)


def alarm_fields(size: int) -> dict[str, StateField]:
    """Return the state fields of a stream of `size` components."""
    shapes = (
        (2,), (size, LAST_NUMBERS), (size, 2, lengths.NUMBERS), (size, stretch.NUMBERS), (size, stretch.CELLS),
        (size, learned_tail.COLUMNS), (size, recurrence.EPISODES), (size, recurrence.EPISODES, 2),
    )  # fmt: skip
    dtypes: tuple[Any, ...] = (
        np.float64, np.float64, np.float32, np.float64, np.int16, np.float32, np.float64, np.float32,
    )  # fmt: skip
    return {name: StateField(shape, dtype) for name, shape, dtype in zip(FIELDS, shapes, dtypes, strict=True)}


@inline_jit
def _own_deviation(posterior, a):
    """Return the standard deviation of a component's innovation under the filter."""
    return np.sqrt(max(posterior.innovation_covariance[a, a], 1e-300))


@inline_jit
def _standard_deviation(last, posterior, a):
    """Return the standard deviation of a component's innovation. For a number of rows after a standstill, it is at
    least the value before the standstill."""
    return max(_own_deviation(posterior, a), last[HELD])


@inline_jit
def _deviation(last, posterior, a):
    """Return the innovation of a component in standard deviations."""
    return posterior.innovation[a] / _standard_deviation(last, posterior, a)


@inline_jit
def variance_share(state, stream, posterior, is_scored):
    """Return the ratio of the filter's variance and that of `_standard_deviation`, for the component with the largest
    deviation."""
    largest, share = 0.0, 1.0
    for a in range(len(is_scored)):
        last = state.last[stream, a]
        if is_scored[a] and abs(_deviation(last, posterior, a)) > largest:
            largest = abs(_deviation(last, posterior, a))
            share = (_own_deviation(posterior, a) / _standard_deviation(last, posterior, a)) ** 2
    return share


@inline_jit
def _is_large(numbers, deviation):
    """Return whether a deviation is large for its column. `learn_size` has learned the typical size of its
    deviations."""
    return abs(deviation) * np.sqrt(2 / np.pi) > ORDINARY_SIZE * numbers[SIZE]


@inline_jit
def explained_share(state, observation, posterior, is_scored, local_time, step, periods):
    """Return the minimum tail probability of a row that follows from recurrence. It is the smallest of those of its
    large deviations, or 0 if it has none.

    Args:
        local_time: Local time of the observation.
        step: Typical lag.
        periods: Output, `[P]`: the period with which the deviation of a component recurs. It is 0 if it does not recur,
            NO_PERIOD if it is only usual at this time of day, and FOLLOWS if the row is attributed to an earlier
            recurring deviation, regardless of its own deviation.
    """
    least, large = 1.0, 0
    for a in range(len(is_scored)):
        share, periods[a] = 0.0, 0.0
        if not is_scored[a]:
            continue
        last, innovation = state.last[observation.stream, a], posterior.innovation[a]
        begins, episodes = state.begins[observation.stream, a], state.episodes[observation.stream, a]
        numbers, value = state.stretch[observation.stream, a], observation.value[a]
        is_large = _is_large(numbers, _deviation(last, posterior, a))
        if is_large:
            share, periods[a] = recurring_share(
                begins, episodes, local_time, innovation, step, last[RECURRED], last[PERIOD]
            )  # fmt: skip
        if follows(begins, episodes, local_time, innovation, step, last[RECURRED], last[PERIOD]):
            share, periods[a] = max(share, USUAL), FOLLOWS
        if not is_large:
            continue
        change = value - last[LAST]
        profile = state.profile[observation.stream, a]
        if share == 0 and is_usual(numbers, profile, value, change, local_time, innovation, step):
            share, periods[a] = USUAL, NO_PERIOD
        least, large = min(least, share), large + 1
    return least if large > 0 else 0.0


@inline_jit
def _is_still(last, runs, value):
    """Return whether a value has repeated for longer than is likely in its column. The probability is computed from the
    fraction of runs that continue to a second row."""
    if value != last[LAST] or runs[COUNT] == 0 or runs[BIN] < FEWEST:
        return False
    return ((runs[TWO] + 1) / (runs[BIN] + 1)) ** last[RUN] <= STILL


@inline_jit
def stands_still(state, observation):
    """Return whether all values of a row have repeated for so long that it is a standstill. The noise is not learned
    from such a row."""
    seen, still = 0, 0
    for a in range(len(observation.value)):
        value = observation.value[a]
        if not np.isnan(value):
            seen += 1
            runs = state.lengths[observation.stream, a, RUNS]
            still += 1 if _is_still(state.last[observation.stream, a], runs, value) else 0
    return seen > 0 and still == seen


@inline_jit
def _standstill(last, runs, value):
    """Add a row to the run of a value.

    Returns:
        The tail probability of the run, and the smallest one that a run can have. The latter is infinity if the rule
        cannot raise an alarm yet.
    """
    if runs[COUNT] > 0 and value == last[LAST]:
        last[RUN] += 1
    else:
        runs[LONGEST] = max(runs[LONGEST], last[RUN])
        last[RUN] = 1.0
    before = runs[COUNT] - (last[RUN] - 1)
    repeats = before - runs[BIN]
    p, least = length_tail(runs, last[RUN]), least_tail(runs)
    add_length(runs, last[RUN])
    if before < FEWEST or repeats > OFTEN * before or last[RUN] < 2:
        p = 1.0
    return p, least if before >= FEWEST and repeats <= OFTEN * before else np.inf


@inline_jit
def _gap(last, gaps, time, step, is_expected):
    """Add the time since the last value, in typical lags, to the gaps unless it is expected.

    Returns:
        The tail probability of the gap, and the smallest one that a gap can have. The latter is infinity if no alarm is
        possible.
    """
    if is_expected or step <= 0:
        return 1.0, np.inf
    length = min((time - last[TIME]) / step, LARGEST_GAP)
    p, least = length_tail(gaps, length), least_tail(gaps)
    gaps[LONGEST] = max(gaps[LONGEST], length)
    add_length(gaps, length)
    return p if length > SHORTEST_GAP else 1.0, least


@inline_jit
def _take(work, rule, component, p, least):
    """Update the smallest tail probability under a rule, and its lower bound, with those of a component."""
    if p < work.tails[rule]:
        work.tails[rule], work.components[rule] = p, component
    work.least[rule] = min(work.least[rule], least)


@inline_jit
def update_rules(state, observation, posterior, local_time, step, p, is_explained, spec, work):
    """Compute the tail probabilities of a row under all rules except `value`, and update the state with the row.

    Args:
        local_time: Local time of the observation.
        step: Typical lag.
        p: Tail probability of the row under the rule `value`.
        is_explained: Whether the deviations of the row recur or are usual at this time of day.
        spec: `OutputSpec` that contains the maintenance windows.
        work: Buffers. `is_scored` states whether a component has a value and a forecast, and `periods` is the output of
            `explained_share`. For each rule, `tails` is set to the probability, `least` to its minimum, and
            `components` to the component that has this probability, `[RULES]`.
    """
    stream, value, columns = observation.stream, observation.value, len(observation.value)
    rare, largest = max(RARE, min(RARE_PER_DAY * step / 86_400, LEAST_RARE)), 0.0
    for k in range(RULES):
        work.tails[k], work.least[k], work.components[k] = 1.0, np.inf, 0
    for a in range(columns):
        last = state.last[stream, a]
        if work.is_scored[a] and abs(_deviation(last, posterior, a)) > largest:
            largest, work.components[VALUE] = abs(_deviation(last, posterior, a)), a
    for a in range(columns):
        if value[a] != value[a]:
            continue
        last, is_first = state.last[stream, a], state.lengths[stream, a, RUNS, COUNT] == 0
        is_still = _is_still(last, state.lengths[stream, a, RUNS], value[a])
        run, least_run = _standstill(last, state.lengths[stream, a, RUNS], value[a])
        is_expected = is_first or is_muted_between(
            last[TIME], observation.time, spec.muted, spec.muted_weekly, spec.muted_offsets
        )  # fmt: skip
        gap, least_gap = _gap(last, state.lengths[stream, a, GAPS], observation.time, step, is_expected)
        _take(work, STANDSTILL, a, run, least_run)
        _take(work, GAP, a, gap, least_gap)
        change = value[a] - last[LAST]
        last[TIME], last[LAST] = observation.time, value[a]
        if not work.is_scored[a]:
            continue
        size = abs(_deviation(last, posterior, a))
        own = _own_deviation(posterior, a)
        numbers, tail, innovation = state.stretch[stream, a], state.tail[stream, a], posterior.innovation[a]
        is_following = work.periods[a] == FOLLOWS
        stretched = stretch_tail(
            numbers, state.profile[stream, a], tail, value[a], change, innovation, is_following, local_time, step
        )  # fmt: skip
        recurs = is_explained and work.periods[a] != NO_PERIOD
        _take(work, STRETCH, a, 1.0 if recurs else stretched, least_stretch_tail(numbers, tail))
        if not is_still:
            learn_size(numbers, _deviation(last, posterior, a))
        if is_explained and work.periods[a] > 0:
            last[RECURRED], last[PERIOD] = local_time, work.periods[a]
        begins, episodes, deviation = state.begins[stream, a], state.episodes[stream, a], posterior.innovation[a]
        if p <= rare and size >= HALF * largest and deviation != 0:
            last[NEWEST] = add_episode(begins, episodes, int(last[NEWEST]), local_time, deviation, step)
        elif _is_large(state.stretch[stream, a], change / _standard_deviation(last, posterior, a)) and comes_again(
            begins, episodes, local_time, change, step
        ):
            last[NEWEST] = add_episode(begins, episodes, int(last[NEWEST]), local_time, change, step)
        if is_still:
            last[HELD] = max(last[HELD], own)
        else:
            last[HELD] = KEPT * last[HELD] if KEPT * last[HELD] > own else 0.0
    for k in range(RULES):
        work.tails[k], work.least[k] = min(work.tails[k] * columns, 1.0), work.least[k] * columns


@inline_jit
def note_stretch(state, stream, work):
    """Record the alarm of a row in the stretch of the component that raised it."""
    note_alarm(state.stretch[stream, work.components[STRETCH]], work.tails[STRETCH])


@inline_jit
def update_incident(incident, position, is_unusual, is_alarm):
    """Return the position of the first alarm of the incident that a row is part of, or -1 if there is no incident.

    Args:
        incident: State of the stream, `[2]`.
        position: Position of the row in its stream.
    """
    if is_alarm and incident[INCIDENT] == 0:
        incident[INCIDENT] = position + 1
    if incident[INCIDENT] == 0:
        return -1
    incident[ORDINARY] = 0 if is_unusual or is_alarm else incident[ORDINARY] + 1
    if incident[ORDINARY] > ENDS_AFTER:
        incident[INCIDENT] = incident[ORDINARY] = 0
    return int(incident[INCIDENT]) - 1
