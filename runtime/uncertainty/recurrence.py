"""What recurs is not rare: a nightly job, a weekly report.

A column stores its last EPISODES episodes of large deviations: begin, end and the signed peak of the deviation. For a
deviation d at time t, an hour, a day, a week and the lag from every earlier episode to this one are tried as a period
L. The share of the times t - L, t - 2L, ..., t - PERIODS L that lie in an episode of the sign of d is the least tail
probability of d, if

* at least LEAST_PERIODS of them do, so that two occurrences explain nothing,
* |d| is at most LARGER times the mean of their peaks, so that a larger deviation remains rare, and
* L is usual (an hour, a day, a week), or chance is no explanation. Episodes that cover a share c of the time have
  LEAST_PERIODS of PERIODS times in them with a probability below 4 c^3. This times the number of periods that are
  tried is at most BY_CHANCE. Only episodes of the size of d count.

A change of the value that was foreseen is an episode, too, if one of its sign and at most LARGER times its size came an
hour, a day or a week before. Times may differ by TOLERANCE typical lags. A filter that follows a job on some nights has
a deviation at its end, too, on those. So for a quarter of the period after a deviation that recurs, one of those times
is enough.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit

EPISODES = 56
# A new episode replaces the smallest of so many old ones.
OLDEST = 32
# Of an episode, beside its begin.
LENGTH, PEAK = range(2)
PERIODS, LEAST_PERIODS = 4, 3
LARGER, TOLERANCE = 1.5, 2.5
BY_CHANCE = 0.05
# The shortest period, in typical lags, and those that are tried first, in seconds.
SHORTEST_PERIOD = 20.0
USUAL_PERIODS = np.array([3_600.0, 86_400.0, 604_800.0])


@inline_jit
def _ongoing(begins, episodes, time, deviation, step):
    """The episode of this sign that has lasted until now; -1: none."""
    for k in range(EPISODES):
        if episodes[k, PEAK] * deviation > 0 and abs(time - begins[k] - episodes[k, LENGTH]) <= TOLERANCE * step:
            return k
    return -1


@inline_jit
def _peak_at(begins, episodes, time, deviation, step):
    """The largest peak of this sign around a time; 0: none."""
    peak = 0.0
    for k in range(EPISODES):
        since = time - begins[k]
        is_at = -TOLERANCE * step <= since <= episodes[k, LENGTH] + TOLERANCE * step
        if is_at and episodes[k, PEAK] * deviation > 0:
            peak = max(peak, abs(episodes[k, PEAK]))
    return peak


@inline_jit
def _share_with_period(begins, episodes, time, deviation, step, period, least):
    """The share of the last times, this period apart, that had the deviation; 0 if they are fewer than `least`."""
    count, peaks = 0, 0.0
    for k in range(1, PERIODS + 1):
        peak = _peak_at(begins, episodes, time - k * period, deviation, step)
        count, peaks = count + (1 if peak > 0 else 0), peaks + peak
    return count / PERIODS if count >= least and abs(deviation) * count <= LARGER * peaks else 0.0


@inline_jit
def comes_again(begins, episodes, time, change, step):
    """Whether a change of the value follows an episode by an hour, a day or a week."""
    for k in range(len(USUAL_PERIODS)):
        if step > 0 and USUAL_PERIODS[k] >= SHORTEST_PERIOD * step:
            peak = _peak_at(begins, episodes, time - USUAL_PERIODS[k], change, step)
            if 0 < peak <= LARGER * abs(change):
                return True
    return False


@inline_jit
def recurring_share(begins, episodes, time, deviation, step, recurred, period):
    """The share of the last periods that had this deviation, 0 where it does not recur; and its period.

    Args:
        begins, episodes: `[EPISODES]` and `[EPISODES, 2]`; a peak of 0 is none.
        step: the typical lag.
        recurred, period: time and period of the last deviation that recurred; the period is 0 for none.
    """
    ongoing = _ongoing(begins, episodes, time, deviation, step)
    begin, oldest, covered, tried = time if ongoing < 0 else begins[ongoing], time, 0.0, 0
    for k in range(EPISODES):
        oldest = min(oldest, begins[k] if episodes[k, PEAK] != 0 else time)
        if k != ongoing and episodes[k, PEAK] * deviation > 0:
            tried += 1
            if LARGER * abs(episodes[k, PEAK]) >= abs(deviation):
                covered += episodes[k, LENGTH] + 2 * TOLERANCE * step
    # Beyond it too few periods are in memory.
    longest = (time - oldest + TOLERANCE * step) / LEAST_PERIODS
    by_chance = 4 * tried * (covered / (time - oldest)) ** 3 if time > oldest else 1.0
    usual = len(USUAL_PERIODS)
    for k in range(usual + EPISODES + 1):  # in one loop: each call is compiled into it
        least, lag = LEAST_PERIODS, USUAL_PERIODS[min(k, usual - 1)]
        if k == usual + EPISODES:
            least, lag = 1, period if 0 < time - recurred <= period / 4 else 0.0
        elif k >= usual:
            is_alike = episodes[k - usual, PEAK] * deviation > 0 and by_chance <= BY_CHANCE
            lag = begin - begins[k - usual] if is_alike else 0.0
        if step > 0 and SHORTEST_PERIOD * step <= lag <= max(longest, lag if least == 1 else 0.0):
            share = _share_with_period(begins, episodes, time, deviation, step, lag, least)
            if share > 0:
                return share, lag if least > 1 else 0.0
    return 0.0, 0.0


@inline_jit
def add_episode(begins, episodes, newest, time, deviation, step):
    """Add a large deviation to its episode, or begin one.

    Returns:
        the index of the newest episode, which was `newest`.
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
