"""Detect recurring deviations, such as those of a nightly job or a weekly report, which are not rare.

A column stores the start, the length and the signed peak of its last EPISODES episodes of large deviations.

The candidate periods L of a deviation d at time t are an hour, a day, a week, and the time since the start of each
earlier episode. Let s be the fraction of the times t - L, ..., t - PERIODS L that lie in an episode with the sign of d.
The tail probability of d is at least s if

* at least LEAST_PERIODS of these times lie in such episodes (two occurrences are not sufficient),
* |d| is at most SIZE_RATIO times the mean of their peaks, so that larger deviations are still reported, and
* L is an hour, a day or a week, or a coincidence is unlikely. If similar episodes cover a fraction c of the time, the
  probability of a coincidence is below 4 c^3. Its product with the number of candidate periods must be at most
  BY_CHANCE. Only episodes with at least 1/SIZE_RATIO of the size of d are included in c.

A change of the value is expected if an episode with its sign, and at most SIZE_RATIO times its size, occurred an hour,
a day or a week before. Expected changes are also stored as episodes. The tolerance of a time is TOLERANCE typical lags.
If L is at least a day, it is DAILY_TOLERANCE_FACTOR times as large, but at most LARGEST_DAILY_TOLERANCE seconds (or
TOLERANCE typical lags, if that is longer). On a working day, the times of earlier working days are also tried. For L/4
after a recurring deviation, one matching time is sufficient, because the filter may also deviate at the end of a job
that runs only on some nights.

Rows after a recurring deviation are attributed to it for DURATION_FACTOR times the mean time to the ends of earlier
ones, excluding the longest. The deviation begins with the largest episode of the last quarter of the period. It ends
with the first episode within a quarter of the period that has the other sign and at least the fraction END_FRACTION of
its size. Rows in between are attributed to it if their own deviation is at most SIZE_RATIO times as large, because a
forecast may expect the end at any of these rows.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit

EPISODES = 56
# Number of oldest episodes, of which a new one replaces the smallest.
OLDEST = 32
# Numbers of an episode in addition to its start.
LENGTH, PEAK = range(2)
PERIODS, LEAST_PERIODS = 4, 3
SIZE_RATIO, TOLERANCE = 1.5, 2.5
BY_CHANCE = 0.05
# Shortest period in typical lags. The periods that are tried first are an hour, a day, a working day and a week.
SHORTEST_PERIOD = 20.0
DAY, WORKDAY = 86_400.0, 2
USUAL_PERIODS = np.array([3_600.0, DAY, DAY, 7 * DAY])
# Tolerance of a time of day. A job may begin ten minutes late.
DAILY_TOLERANCE_FACTOR, LARGEST_DAILY_TOLERANCE = 4.0, 600.0
# Limits on the duration and the size of a recurring deviation's end, and the minimum number of known ends.
DURATION_FACTOR, END_FRACTION, LEAST_ENDS = 1.25, 0.5, 2
# Weekday of the first day of 1970 (Monday is 0), and number of working days.
FIRST_WEEKDAY, WORKDAYS = 3.0, 5.0


@inline_jit
def _ongoing(begins, episodes, time, deviation, step):
    """Return the index of the episode with the given sign that has lasted until now, or -1 if there is none."""
    for k in range(EPISODES):
        if episodes[k, PEAK] * deviation > 0 and abs(time - begins[k] - episodes[k, LENGTH]) <= TOLERANCE * step:
            return k
    return -1


@inline_jit
def _tolerance(step, period):
    """Return the difference up to which two times are treated as equal."""
    return (
        max(TOLERANCE * step, min(DAILY_TOLERANCE_FACTOR * TOLERANCE * step, LARGEST_DAILY_TOLERANCE))
        if period >= DAY
        else TOLERANCE * step
    )


@inline_jit
def _peak_at(begins, episodes, time, deviation, tolerance):
    """Return the largest peak with the given sign around the given time, or 0 if there is none."""
    peak = 0.0
    for k in range(EPISODES):
        since = time - begins[k]
        is_at = -tolerance <= since <= episodes[k, LENGTH] + tolerance
        if is_at and episodes[k, PEAK] * deviation > 0:
            peak = max(peak, abs(episodes[k, PEAK]))
    return peak


@inline_jit
def _share_with_period(begins, episodes, time, deviation, step, period, least, weekday):
    """Return the fraction of the last times, at the given period, that had the deviation. Return 0 if there are fewer
    than `least`.

    Args:
        weekday: Days since Monday if weekends are skipped. Otherwise, infinity.
    """
    count, peaks = 0, 0.0
    for k in range(1, PERIODS + 1):
        skipped = (7 - WORKDAYS) * DAY if k > weekday else 0.0
        peak = _peak_at(begins, episodes, time - k * period - skipped, deviation, _tolerance(step, period))
        count, peaks = count + (1 if peak > 0 else 0), peaks + peak
    return count / PERIODS if count >= least and abs(deviation) * count <= SIZE_RATIO * peaks else 0.0


@inline_jit
def comes_again(begins, episodes, time, change, step):
    """Return whether a change of the value occurs an hour, a day or a week after an episode that is at most SIZE_RATIO
    times as large."""
    for k in range(len(USUAL_PERIODS)):
        if step > 0 and USUAL_PERIODS[k] >= SHORTEST_PERIOD * step:
            peak = _peak_at(begins, episodes, time - USUAL_PERIODS[k], change, TOLERANCE * step)
            if 0 < peak <= SIZE_RATIO * abs(change):
                return True
    return False


@inline_jit
def recurring_share(begins, episodes, time, deviation, step, recurred, period):
    """Return the fraction of the last periods that had the given deviation, and its period. The fraction is 0 if the
    deviation does not recur.

    Args:
        begins, episodes: State, `[EPISODES]` and `[EPISODES, 2]`. A peak of 0 means that an episode is not used.
        time, deviation: Time of the row, and its deviation.
        step: Typical lag.
        recurred, period: Time and period of the last recurring deviation. The period is 0 if there is none.
    """
    ongoing = _ongoing(begins, episodes, time, deviation, step)
    begin, oldest, covered, tried = time if ongoing < 0 else begins[ongoing], time, 0.0, 0
    for k in range(EPISODES):
        oldest = min(oldest, begins[k] if episodes[k, PEAK] != 0 else time)
        if k != ongoing and episodes[k, PEAK] * deviation > 0:
            tried += 1
            if SIZE_RATIO * abs(episodes[k, PEAK]) >= abs(deviation):
                covered += episodes[k, LENGTH] + 2 * TOLERANCE * step
    # Beyond this period, memory contains too few periods.
    longest = (time - oldest + TOLERANCE * step) / LEAST_PERIODS
    by_chance = 4 * tried * (covered / (time - oldest)) ** 3 if time > oldest else 1.0
    usual, weekday = len(USUAL_PERIODS), (np.floor(time / DAY) + FIRST_WEEKDAY) % 7
    for k in range(usual + EPISODES + 1):  # There is one loop, because each call is compiled into it.
        least, lag, skips = LEAST_PERIODS, USUAL_PERIODS[min(k, usual - 1)], np.inf
        if k == usual + EPISODES:
            least, lag = 1, period if 0 < time - recurred <= period / 4 else 0.0
        elif k >= usual:
            is_alike = episodes[k - usual, PEAK] * deviation > 0 and by_chance <= BY_CHANCE
            lag = begin - begins[k - usual] if is_alike else 0.0
        elif k == WORKDAY:
            lag, skips = lag if weekday < WORKDAYS else 0.0, weekday
        if step > 0 and SHORTEST_PERIOD * step <= lag <= max(longest, lag if least == 1 else 0.0):
            share = _share_with_period(begins, episodes, time, deviation, step, lag, least, skips)
            if share > 0:
                return share, lag if least > 1 else 0.0
    return 0.0, 0.0


@inline_jit
def _end_after(begins, episodes, time, deviation, longest):
    """Return the time from a deviation to the end of the first episode with which the deviation ends. Return 0 if there
    is none within `longest`."""
    first, end = longest, 0.0
    for k in range(EPISODES):
        since, undone = begins[k] - time, -episodes[k, PEAK] * np.sign(deviation)
        if undone >= END_FRACTION * abs(deviation) and 0 < since <= first:
            first, end = since, since + episodes[k, LENGTH]
    return end


@inline_jit
def follows(begins, episodes, time, deviation, step, recurred, period):
    """Return whether a row is attributed to a recurring deviation before it.

    Args:
        begins, episodes, time, deviation, step: See `recurring_share`.
        recurred, period: Time and period of the last recurring deviation. See `recurring_share`.
    """
    if not 0 < time - recurred <= period / 4:
        return False
    start, peak, tolerance = recurred, 0.0, _tolerance(step, period)
    ends, longest, total = 0, 0.0, 0.0
    for k in range(EPISODES):
        if recurred - period / 4 <= begins[k] <= recurred and abs(episodes[k, PEAK]) > abs(peak):
            start, peak = begins[k], episodes[k, PEAK]
    if abs(deviation) > SIZE_RATIO * abs(peak) or peak == 0:
        return False
    for k in range(1, PERIODS + 1):
        before = start - k * period
        if SIZE_RATIO * _peak_at(begins, episodes, before, peak, tolerance) >= abs(peak):
            end = _end_after(begins, episodes, before, peak, period / 4)
            ends, longest, total = ends + (1 if end > 0 else 0), max(longest, end), total + end
    return ends >= LEAST_ENDS and time - start <= DURATION_FACTOR * (total - longest) / (ends - 1) + TOLERANCE * step


@inline_jit
def add_episode(begins, episodes, newest, time, deviation, step):
    """Add a large deviation to its episode. If there is none, start a new episode.

    Returns:
        The index of the newest episode. `newest` is this index before the call.
    """
    k = _ongoing(begins, episodes, time, deviation, step)
    if k < 0:
        newest = k = (newest + 1) % EPISODES
        least = k
        for old in range(OLDEST):
            j = (k + old) % EPISODES
            if abs(episodes[j, PEAK]) < abs(episodes[least, PEAK]):
                least = j
        begins[least] = begins[k]
        for part in range(PEAK + 1):
            episodes[least, part] = episodes[k, part]
        begins[k], episodes[k, PEAK] = time, deviation
    episodes[k, LENGTH] = time - begins[k]
    if abs(deviation) > abs(episodes[k, PEAK]):
        episodes[k, PEAK] = deviation
    return newest
