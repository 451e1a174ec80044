"""A bank of local filters for one column of any numbers: level, trend and season, found while it is filtered.

Each filter i of the bank is a Kalman filter of a small system, of the column less a profile j of its season:

    level   x' = x + w, E[w²] = q_i tau        y - s_j(t) = x + e, E[e²] = 1 in units of the noise
    trend   x' = x + b (1 - φ^tau) / (1 - φ), b' = φ^tau b, with gains in steady state

tau is the lag over the typical lag of the stream. The gain is that under the Student-t weight w(z) of math.md, z the
innovation over the filter's own mean error; the two fastest levels have none, so that what stood still and moves is
followed. Profiles are none, of the day, of the week (of times in seconds; where a stream has other ones they are never
repeated, and so never used), and of a period that the autocorrelation of the last observations shows. A profile has a
number for each slot of its period, the mean of what was seen there less the level; what does not fit counts by its
weight, unless it did not the last time either.

How good a filter is depends on how far ahead it looks. So for each lead of LEADS (in typical lags) every filter's mean
absolute error E_l,e of forecasts so far ahead is followed, and what is told is the mean of all forecasts by the weights

    w_l,e ∝ (E_l,e / min_e E_l,e)^(-12)

between two leads by E interpolated in log time. The mean absolute error of that mixture, A_l, gives the deviation,
√(π/2) A_l, of Student's t (student.py) with as many degrees of freedom as errors lie apart: n of one lag, 1.5 n s / h
of n forecasts h lags ahead that begin s lags apart. Up to ENOUGH of them what is missing is made up for by the lead
before, which grows from one lag ahead as

    1 + (h - 1) κ + (h² - 1) LINES / (n + 2)³           κ = (n k² + WALKS) / (n + WALKS)

a local level's with the mixture's gain k, a walk's, and that of a line whose slope so few rows leave open; and by what
the filters differ among themselves there. An error after a shorter lag counts as one after the typical lag by it. Of
fewer than 12 errors the weights are E^(-n), the likelihood of a scale that nothing is known of.

Of the variance of an innovation the state has before the observation a share k, after it k (1 - k) by the errors with
this one, or the variance among the filters where that is more; and w (1 - w) k² e² for what may have been an outlier.

Numbers are held less the first observation. What is found is the same for times that are shifted, and for y times a it
is a times the same. A stream's state has SMALL numbers, which an observation changes in a copy until it is taken, the
times that waiting forecasts are for, and MEMORY numbers of profiles, waiting forecasts and last observations, which
`remember` changes once the observation is taken.

The bank has BANK lanes, KINDS for each profile, and what is done to all of them is done in loops over lanes that lie
side by side, without a branch: those become vector instructions. So scratch lies behind the copy of the state, in one
array, of whose parts a compiler knows that they do not overlap, and what is one number for a profile is spread over its
lanes.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit, source_inline_jit
from rfa.runtime.filters.correlation import joint_square
from rfa.runtime.filters.observed import LOG_LIKELIHOOD, NIS, PRECISION, WEIGHT, predictive_log_density
from rfa.runtime.filters.student import normal_square, stretching, widening

# In typical lags, ascending; the first is one.
LEADS = np.array([1.0, 4.0, 12.0, 24.0, 48.0, 168.0, 336.0])
_LOG_LEADS = np.log(LEADS)
COUNT_OF_LEADS, PLACES = len(LEADS), 16
STRIDES = np.maximum(np.ceil(LEADS / PLACES), 1).astype(np.int64)
# Of the kinds of filters: the drift of levels; the gains and the damping of trends, which come after them.
DRIFTS = np.array([1e-5, 3e-4, 0.01, 0.1, 1.0, 100.0])
TREND_LEVEL, TREND_SLOPE, DAMPING = np.array([0.7, 0.25]), np.array([0.15, 0.02]), np.array([0.9, 0.98])
_LOG_DAMPING = np.log(DAMPING)
LEVELS, TRENDS = len(DRIFTS), len(DAMPING)
KINDS = LEVELS + TRENDS
# The level that a profile is seen above.
GROUND = 3
NO_SEASON, DAY, WEEK, FOUND = range(4)
PROFILES = 4
CLOCK = np.array([0.0, 86_400.0, 604_800.0, 0.0])
BANK = PROFILES * KINDS


def _of_lanes(levels, trends):
    """A number of each kind, for all lanes."""
    return np.tile(np.concatenate((np.broadcast_to(levels, LEVELS), np.broadcast_to(trends, TRENDS))), PROFILES)


# By lane: whether it is a trend, its gains, and whether outliers weigh less.
IS_TREND = _of_lanes(0.0, 1.0)
DRIFT = _of_lanes(DRIFTS, 0.0)
LEVEL_GAIN, SLOPE_GAIN = _of_lanes(0.0, TREND_LEVEL), _of_lanes(0.0, TREND_SLOPE)
IS_ROBUST = _of_lanes(np.arange(LEVELS) <= GROUND, 1.0)
# What is left of a slope, and what it has added, after a typical lag and after each of LEADS.
KEPT = _of_lanes(1.0, DAMPING)
REACHES = np.stack([_of_lanes(0.0, (1 - DAMPING**lead) / (1 - DAMPING)) for lead in LEADS])
SLOTS = np.array([0, 720, 1008, 512])
RING = 1024
# Observations from which on the typical lag is trusted to set the profiles up; fewest slots of one.
SET_UP, FEWEST_SLOTS = 16, 4.0
# Observations of the first search for a period; they double, up to the ring.
FIRST_SEARCH = 64
SAME_PERIOD = 0.02
# Forecasts over which errors are followed, of a filter and of the mixture.
FILTER_MEMORY, MIXTURE_MEMORY, YOUNG = 100.0, 200.0, 20.0
INVERSE_NU = 0.05
PROFILE_GAIN = 0.15
# The weight of an observation that does not fit.
ODD = 0.5
# Times a mean error that an error counts for, at most; and the least of such errors, of the deviation of the column.
LARGEST_ERROR, LEAST_SHARE = 8.0, 0.01
MEAN_TO_STD = np.sqrt(np.pi / 2)
# Of |y|: the error before a second observation, and the least one.
FIRST_GUESS, RESOLUTION, TINY = 0.25, 1e-12, 1e-150
# Of a column that has shown nothing yet, at 0.
UNKNOWN_VARIANCE = 1e12
# Errors as small as this share of the deviation are alike: profiles have seven digits.
SAME = 1e-6
# Deviations that an innovation counts for, at most: of a column that stood still nothing says how far it may go, and as
# many as values stood. What is left of its error by each of those.
FURTHEST_OFF, TIED = 1e3, 0.1
# Of an error's square a typical lag ahead, what is left no time ahead.
LEAST_GROWTH = 0.05
# Errors by which a lead is known, and for how many of them an error of forecasts that overlap counts.
ENOUGH, OVERLAP = 3.0, np.minimum(1.5 * STRIDES / LEADS, 1.0)
# Errors of a walk that are taken as seen beforehand; variance of a slope times n³, half a least-squares line's.
WALKS, LINES = 1.0, 6.0
# Of the ratio of errors, in the weights.
POWER = 12
# A forecast that there was none of.
ABSENT = 3e38
OUTLIERS = (0.02, 10.0)

# Numbers of a state, in their order.
COUNT, ROWS, ORIGIN, ELAPSED, DEVIATION, CENTRE, GAIN, NEXT_SEARCH, LARGEST, VARIANCE, TRUST = range(11)
PERIOD = 11
USED = PERIOD + PROFILES  # slots of a profile; 0 is none
BEGUN = USED + PROFILES  # whether it has come round
SPREAD = BEGUN + PROFILES
BASE = SPREAD + BANK  # level or trend of each lane
SLOPE = BASE + BANK
ERROR = SLOPE + BANK
SCORED = ERROR + COUNT_OF_LEADS * BANK
MIXTURE = SCORED + COUNT_OF_LEADS * PROFILES
MIXED = MIXTURE + COUNT_OF_LEADS
HEAD = MIXED + COUNT_OF_LEADS
HELD = HEAD + COUNT_OF_LEADS
SMALL = -(-(HELD + COUNT_OF_LEADS) // KINDS) * KINDS
DUE = SMALL  # of the waiting forecasts, which are not copied
STATE = DUE + COUNT_OF_LEADS * PLACES
# Numbers of a memory: profiles with the visits of their slots, the ring, the waiting forecasts.
PROFILE = np.concatenate(([0], 2 * np.cumsum(SLOTS)))[:-1]
LAST = int(2 * SLOTS.sum())
WAITING = LAST + RING
MEMORY = WAITING + (COUNT_OF_LEADS - 1) * PLACES * (BANK + 1)
# Scratch behind the copy of a column's state: by lane forecasts, their weights, what the profile adds, what a slope
# does, and what the loops over lanes are given; by kind sums; by profile its season and its level before; the value;
# and the observations of a search, with zeros behind them.
FORESEEN = SMALL
WEIGHTS, ADDED, REACH, ONE, TWO, THREE, FOUR = (FORESEEN + k * BANK for k in range(1, 8))
SUM = FORESEEN + 8 * BANK
SEASON = SUM + 2 * KINDS
BEFORE = SEASON + PROFILES
REST = BEFORE + PROFILES
SEARCHED = REST + 1
LAGS_AT_ONCE = 8
WORK = SEARCHED + RING + LAGS_AT_ONCE
# The error of what says nothing, and the ratio of errors that is as good as none: their weights are nothing beside 1.
HOPELESS, LEAST_RATIO = 1e300, 1e-20


@inline_jit
def _spread_out(state, at, j, value):
    """A number of a profile, for all its lanes."""
    for i in range(KINDS):
        state[at + j * KINDS + i] = value


@inline_jit
def _sum_of(state, at):
    """Of a number by kind."""
    return ((state[at] + state[at + 1]) + (state[at + 2] + state[at + 3])) + (
        (state[at + 4] + state[at + 5]) + (state[at + 6] + state[at + 7])
    )


@inline_jit
def _slot(state, j, ahead):
    """The slot of a profile so far ahead of the last observation."""
    slots, turns = int(state[USED + j]), (state[ELAPSED] + ahead) / state[PERIOD + j]
    # Even steps lie in the middle of their slots, where rounding moves none into another.
    return int((turns - np.floor(turns)) * slots + 0.5) % slots


@inline_jit
def _set_reach(state, steps):
    """What slopes add in so many typical lags."""
    for trend in range(TRENDS):
        reach = (1 - np.exp(_LOG_DAMPING[trend] * steps)) / (1 - DAMPING[trend])
        for j in range(PROFILES):
            state[REACH + j * KINDS + LEVELS + trend] = reach


@inline_jit
def _foresee(state, memory, ahead):
    """The forecasts of the bank so far ahead; the season of a profile is ABSENT where it has none."""
    for j in range(PROFILES):
        season = 0.0
        if j > 0:
            season = ABSENT
            if state[BEGUN + j] > 0:
                slot, slots = _slot(state, j, ahead), int(state[USED + j])
                if memory[PROFILE[j] + slots + slot] != 0:
                    season = np.float64(memory[PROFILE[j] + slot])
        state[SEASON + j] = season
        _spread_out(state, ADDED, j, season if season != ABSENT else 0.0)
    for e in range(BANK):
        state[FORESEEN + e] = state[ADDED + e] + state[BASE + e] + state[SLOPE + e] * state[REACH + e]


@inline_jit
def _between(steps):
    """The last lead that is not behind so many steps, and how far on the way to the next."""
    low = 0
    while low < COUNT_OF_LEADS - 1 and LEADS[low + 1] <= steps:
        low += 1
    if low == COUNT_OF_LEADS - 1 or steps <= LEADS[low]:
        return low, 0.0
    return low, (np.log(steps) - _LOG_LEADS[low]) / (_LOG_LEADS[low + 1] - _LOG_LEADS[low])


@inline_jit
def _mix(state, low, share):
    """Weigh the forecasts by their errors between two leads; their mean, and the sum of the weights."""
    floor = SAME * state[DEVIATION] + TINY
    after = min(low + 1, COUNT_OF_LEADS - 1)
    for j in range(PROFILES):
        is_there = state[SEASON + j] != ABSENT
        of_first, of_low, of_next = 0.0, 0.0, 0.0
        if is_there:
            has_next = share > 0 and state[SCORED + after * PROFILES + j] >= 3
            of_next = share if has_next else 0.0
            if state[SCORED + low * PROFILES + j] >= 3:
                of_low = 1 - of_next
            else:
                of_first = (1 - of_next) * np.sqrt(LEADS[low])
        _spread_out(state, ONE, j, of_first)
        _spread_out(state, TWO, j, of_low)
        _spread_out(state, THREE, j, of_next)
        _spread_out(state, FOUR, j, floor if is_there else HOPELESS)
    one, other = ERROR + low * BANK, ERROR + after * BANK
    for e in range(BANK):
        state[WEIGHTS + e] = (
            state[ONE + e] * state[ERROR + e]
            + state[TWO + e] * state[one + e]
            + state[THREE + e] * state[other + e]
            + state[FOUR + e]
        )
    for i in range(KINDS):
        least = state[WEIGHTS + i]
        for j in range(1, PROFILES):
            least = min(least, state[WEIGHTS + j * KINDS + i])
        state[SUM + i] = least
    least = state[SUM]
    for i in range(1, KINDS):
        least = min(least, state[SUM + i])
    for e in range(BANK):
        ratio = max(least / state[WEIGHTS + e], LEAST_RATIO)
        cube = ratio * ratio * ratio
        state[WEIGHTS + e] = (cube * cube) * (cube * cube)
    if state[COUNT] <= POWER:
        # So few errors do not tell filters apart any better.
        for e in range(BANK):
            state[WEIGHTS + e] **= (state[COUNT] - 1) / POWER if state[COUNT] > 1 else 0.0
    for i in range(KINDS):
        total, mean = 0.0, 0.0
        for j in range(PROFILES):
            weight = state[WEIGHTS + j * KINDS + i]
            total += weight
            mean += weight * state[FORESEEN + j * KINDS + i]
        state[SUM + i], state[SUM + KINDS + i] = total, mean
    total = _sum_of(state, SUM)
    return _sum_of(state, SUM + KINDS) / total, total


@inline_jit
def _apart(state, lead):
    """Errors of the mixture that far ahead that are apart: those of overlapping forecasts are alike."""
    return state[MIXED + lead] * OVERLAP[lead]


@inline_jit
def _growth(steps, walk, line):
    """Of an error's square, over that one step ahead: of a level, of a walk's share and of a line's slope."""
    return max(1 + (steps - 1) * walk + max(steps * steps - 1, 0.0) * line, LEAST_GROWTH)


@inline_jit
def _mixture_error(state, steps, low, share):
    """Mean absolute error of the mixture so many steps ahead, which lie between two leads; one over the errors that it
    rests on; and what share of it nothing was scored of."""
    count = max(state[COUNT] - 1, 1.0)
    walk = (count * state[GAIN] * state[GAIN] + WALKS) / (count + WALKS)
    line = LINES / (count + 2) ** 3
    known = low
    while known > 0 and _apart(state, known) < ENOUGH:
        known -= 1
    error, reach, rests, lacking = state[MIXTURE + known], LEADS[known], count, 0.0
    if known > 0:
        rests = _apart(state, known)
    while known < low:
        known += 1
        there, grown = _apart(state, known) / ENOUGH, _growth(LEADS[known], walk, line) / _growth(reach, walk, line)
        error = np.sqrt((1 - there) * error * error * grown + there * state[MIXTURE + known] ** 2)
        reach, rests, lacking = LEADS[known], min(rests, ENOUGH), 1 - there
    if steps != reach:
        there = min(_apart(state, low + 1) / ENOUGH, 1.0) if share > 0 else 0.0
        between = error + share * (state[MIXTURE + low + 1] - error) if there > 0 else 0.0
        grown = _growth(steps, walk, line) / _growth(reach, walk, line)
        error = np.sqrt((1 - there) * error * error * grown + there * between * between)
        if steps > reach:
            lacking = max(lacking, 1 - there)
            rests = min(rests, max(_apart(state, low + 1), ENOUGH) if there > 0 else ENOUGH)
    return max(error, RESOLUTION * state[LARGEST] + TINY), 1 / rests, lacking


@inline_jit
def _score(state, lead, value, forecasts):
    """Hold the bank's forecasts, from `forecasts` on, against a value."""
    for j in range(PROFILES):
        rate, room = 0.0, 0.0
        if state[forecasts + j * KINDS] < ABSENT / 2:
            place = SCORED + lead * PROFILES + j
            state[place] = min(state[place] + 1, FILTER_MEMORY)
            # Young errors are not bounded.
            rate, room = 1 / state[place], 0.0 if state[place] > YOUNG else HOPELESS
        _spread_out(state, ONE, j, rate)
        _spread_out(state, TWO, j, room)
    floor, errors = LEAST_SHARE * state[DEVIATION], ERROR + lead * BANK
    for e in range(BANK):
        mean = state[errors + e]
        error = min(abs(value - state[forecasts + e]), LARGEST_ERROR * max(mean, floor) + state[TWO + e])
        state[errors + e] = mean + (error - mean) * state[ONE + e]


@inline_jit
def _score_mixture(state, lead, error, stands):
    """Follow the mixture's error; of a column that stands still an error of 0 tells of its resolution alone."""
    count = min(state[MIXED + lead] + 1, MIXTURE_MEMORY)
    mean, floor = state[MIXTURE + lead], LEAST_SHARE * state[DEVIATION]
    bounded = min(error, LARGEST_ERROR * max(mean, floor)) if count > YOUNG else error
    after = TIED * mean if stands else mean + (bounded - mean) / count
    state[MIXED + lead], state[MIXTURE + lead] = count, after


@inline_jit
def _score_waiting(state, due, memory, value, is_seen, lag, unit):
    """Score the forecasts whose time has come; they leave their places."""
    now, near = state[ELAPSED], 0.5 * min(unit, lag)
    for lead in range(1, COUNT_OF_LEADS):
        while state[HELD + lead] > 0:
            place = int(state[HEAD + lead])
            ahead = due[DUE + lead * PLACES + place] - now
            if ahead > near:
                break
            state[HEAD + lead] = (place + 1) % PLACES
            state[HELD + lead] -= 1
            if is_seen and ahead >= -near:
                at = WAITING + ((lead - 1) * PLACES + place) * (BANK + 1)
                for e in range(BANK):
                    state[THREE + e] = memory[at + e]
                _score(state, lead, value, THREE)
                _score_mixture(state, lead, abs(value - np.float64(memory[at + BANK])), False)


@inline_jit
def _predict(state, tau):
    """Time passes: spreads grow, trends go on."""
    for e in range(BANK):
        state[SPREAD + e] += DRIFT[e] * tau
        state[ONE + e], state[REACH + e] = KEPT[e], REACHES[0, e]
    if tau != 1:
        _set_reach(state, tau)
        for trend in range(TRENDS):
            power = np.exp(_LOG_DAMPING[trend] * tau)
            for j in range(PROFILES):
                state[ONE + j * KINDS + LEVELS + trend] = power
    for e in range(BANK):
        state[BASE + e] += state[SLOPE + e] * state[REACH + e]
        state[SLOPE + e] *= state[ONE + e]
        state[REACH + e] = 0.0


@inline_jit
def _weight(off, error):
    """The Student-t weight of an innovation, by the mean error of its filter."""
    z = off / (MEAN_TO_STD * error)
    return min(1.0, (1 + INVERSE_NU) / (1 + z * z * INVERSE_NU))


@inline_jit
def _update(state, value, noise):
    """Condition all filters on a value; `noise` is the variance of its noise over the usual one."""
    is_first, is_old = state[COUNT] == 0, state[COUNT] > YOUNG
    for j in range(PROFILES):
        before, season = state[BASE + j * KINDS + GROUND], state[SEASON + j]
        state[BEFORE + j] = before
        # A slot that was never seen will begin at what leaves the level as it is.
        _spread_out(state, ONE, j, value - season if season != ABSENT else before)
        _spread_out(state, TWO, j, 1.0 if j == 0 or state[BEGUN + j] > 0 else 0.0)
    most = max(noise, 1.0)
    for e in range(BANK):
        off, error, spread = state[ONE + e] - state[BASE + e], state[ERROR + e], state[SPREAD + e]
        weight = _weight(off, error) if is_old and IS_ROBUST[e] > 0 and error > 0 else 1.0
        level = weight * spread / (weight * spread + noise)
        gain = LEVEL_GAIN[e] * weight / most if IS_TREND[e] > 0 else level
        slope = 0.0 if is_first else SLOPE_GAIN[e] * weight / most
        state[BASE + e] += state[TWO + e] * (1.0 if is_first else gain) * off
        state[SLOPE + e] += state[TWO + e] * slope * off
        state[SPREAD + e] = noise if is_first else spread * noise / (spread + noise)


@inline_jit
def _gain(state, total, noise):
    """The gain of the mixture, before the update."""
    for i in range(KINDS):
        weight = 0.0
        for j in range(PROFILES):
            weight += state[WEIGHTS + j * KINDS + i]
        level = state[SPREAD + i] / (state[SPREAD + i] + noise)
        state[SUM + i] = weight * (LEVEL_GAIN[i] if IS_TREND[i] > 0 else level)
    return _sum_of(state, SUM) / total


@inline_jit
def _filtered(state, total):
    """The mean of what the filters say of now, by the weights of one step ahead, and how they differ, squared."""
    for i in range(KINDS):
        mean = 0.0
        for j in range(PROFILES):
            e = j * KINDS + i
            state[FORESEEN + e] = state[ADDED + e] + state[BASE + e]
            mean += state[WEIGHTS + e] * state[FORESEEN + e]
        state[SUM + i] = mean
    mean = _sum_of(state, SUM) / total
    return mean, _difference(state, mean, total)


@inline_jit
def _difference(state, mean, total):
    """Mean square of what forecasts differ by from their mean."""
    for i in range(KINDS):
        square = 0.0
        for j in range(PROFILES):
            off = state[FORESEEN + j * KINDS + i] - mean
            square += state[WEIGHTS + j * KINDS + i] * off * off
        state[SUM + i] = square
    return _sum_of(state, SUM) / total


@inline_jit
def _few(state):
    """One over the errors that were scored, of which one at least is counted."""
    return 1 / max(state[COUNT] - 1, 1.0)


@source_inline_jit
def _observe_column(state, due, memory, value, lag, unit, scale, out, few, a):
    """Condition a column on a value, NaN where missing; nis, weight and log-determinant of it."""
    is_seen, noise = value == value, scale * scale
    is_first = state[COUNT] == 0
    if is_seen and is_first:
        state[ORIGIN] = value
        state[MIXTURE] = FIRST_GUESS * abs(value)
    tau = lag / unit
    state[ELAPSED] += lag
    rest = value - state[ORIGIN] if is_seen else 0.0
    if is_seen:
        state[LARGEST] = max(state[LARGEST], abs(value))
    # The season is that of now, and trends have gone on: forecasts of no step ahead.
    _predict(state, tau)
    _foresee(state, memory, 0.0)
    mean, total = _mix(state, 0, 0.0)
    gain = _gain(state, total, noise)
    low, share = _between(tau)
    error, few[0, a], _ = _mixture_error(state, tau, low, share)
    usual = (MEAN_TO_STD * error) ** 2
    spread = usual * (gain + (1 - gain) * noise)
    few[1, a] = _few(state)
    wide = widening(1.0, few[0, a]) ** 2
    prior = max(gain * usual * wide, state[VARIANCE])
    innovation = rest - mean if is_seen and not is_first else 0.0
    out.innovation[a] = innovation
    stood = state[DEVIATION] == 0
    furthest = max(min(state[COUNT], FURTHEST_OFF), 1.0) if stood else FURTHEST_OFF
    spread = max(spread, (innovation / furthest) ** 2)
    square, weight, after = innovation * innovation / spread, 1.0, prior
    filtered = mean
    _score_waiting(state, due, memory, rest, is_seen, lag, unit)
    if is_seen:
        weight = state[TRUST] = _weight(innovation, error) if state[COUNT] > YOUNG else 1.0
        if not is_first:
            for j in range(PROFILES):
                if state[SEASON + j] == ABSENT:
                    state[FORESEEN + j * KINDS] = ABSENT
            _score(state, 0, rest, FORESEEN)
            usual_error, _, _ = _mixture_error(state, 1.0, 0, 0.0)
            _score_mixture(state, 0, abs(innovation) * usual_error / error, stood and rest == 0)
        _update(state, rest, noise)
        filtered, doubt = _filtered(state, total)
        size = min(state[COUNT] + 1, 10 * FILTER_MEMORY)
        state[DEVIATION] += (abs(rest - state[CENTRE]) - state[DEVIATION]) / size
        state[CENTRE] += (rest - state[CENTRE]) / size
        state[GAIN] = gain
        state[COUNT] += 1
        # By the errors with this one; where the filters are further apart by that; and it may have been an outlier.
        few[1, a] = _few(state)
        error, _, _ = _mixture_error(state, tau, low, share)
        kept = gain / (gain + (1 - gain) * noise) if gain < 1 else 1.0
        left = (MEAN_TO_STD * error) ** 2 * (1 - gain) * noise * kept
        trust = _weight(innovation, error)
        after = max(left, doubt, 1e-6 * spread) + trust * (1 - trust) * (kept * innovation) ** 2
        after *= widening(1.0, few[1, a]) ** 2
    if state[COUNT] == 0:
        after = spread = UNKNOWN_VARIANCE
    state[VARIANCE] = after
    state[ROWS] += 1
    state[REST] = rest if is_seen else mean
    out.mean[a] = state[ORIGIN] + filtered
    out.covariance[a, a], out.innovation_covariance[a, a] = after, spread * wide
    # What a surprise adds was unknown before it, too: looking back is never less sure. Before the first there was none.
    out.predicted_mean[a] = 0.0 if is_first else state[ORIGIN] + mean
    out.predicted_covariance[a, a] = max(prior, after)
    log_det = np.log(spread * stretching(square, few[0, a]))
    return normal_square(square, few[0, a]), weight, log_det, is_seen and not is_first


@inline_jit
def observe(state, due, memory, values, lag, unit, scale, out, few, joint):
    """Condition the columns of a stream on values `[P]`, NaN where missing.

    Args:
        state: a copy of the stream's, with scratch behind it, `[P, WORK]`.
        due: the stream's own, `[P, STATE]`, of which the times of waiting forecasts are read.
        memory: `[P, MEMORY]`.
        lag, unit: since the observation before, and the typical one.
        scale: factor on the deviation of the noise.
        few: of innovation and state, `[2, P]`, as of student.py; set here.
        joint: of correlation.py z, set here, what was learned, and scratch; of no rows where columns are apart.
    """
    z, learned, factor = joint
    is_joint = len(learned) > 0
    nis, weight, log_det, count, precision = 0.0, 0.0, 0.0, 0, 0.0
    for a in range(len(values)):
        one, trust, size, is_scored = _observe_column(
            state[a], due[a], memory[a], values[a], lag, unit, scale, out, few, a
        )
        precision += out.covariance[a, a]
        if is_joint:
            z[a] = np.copysign(np.sqrt(one), out.innovation[a]) if is_scored else np.nan
        if is_scored:
            nis, weight, log_det, count = nis + one, weight + trust, log_det + size, count + 1
    if is_joint:
        nis, size = joint_square(z, learned, factor)
        log_det += size
    out.scalars[PRECISION] = len(values) / precision
    out.scalars[NIS], out.scalars[WEIGHT] = nis, weight / count if count > 0 else 1.0
    out.scalars[LOG_LIKELIHOOD] = predictive_log_density(nis, log_det, np.float64(count), OUTLIERS)


@inline_jit
def is_finite(state):
    """Whether all numbers of a stream's copy `[P, WORK]` are."""
    total = 0.0
    for a in range(len(state)):
        column = state[a]
        for i in range(KINDS):
            column[SUM + i] = 0.0
        for k in range(0, SMALL, KINDS):
            for i in range(KINDS):
                column[SUM + i] += column[k + i]
        total += _sum_of(column, SUM)
    return np.isfinite(total)


@inline_jit
def forecast(state, memory, horizon, unit, mean, covariance, few):
    """Mean `[P]` and variances, on the diagonal of `[P, P]`, of an observation to come after `horizon`, and how few
    errors they rest on, `[P]`."""
    steps = horizon / unit
    low, share = _between(steps)
    for a in range(len(mean)):
        _set_reach(state[a], steps)
        _foresee(state[a], memory[a], horizon)
        middle, total = _mix(state[a], low, share)
        mean[a] = state[a, ORIGIN] + middle
        error, few[a], lacking = _mixture_error(state[a], steps, low, share)
        variance = (MEAN_TO_STD * error) ** 2
        if lacking > 0:
            variance += lacking * _difference(state[a], middle, total)
        covariance[a, a] = variance * widening(1.0, few[a]) ** 2 if state[a, COUNT] > 0 else UNKNOWN_VARIANCE


@inline_jit
def remember(state, due, memory, values, unit):
    """Keep what an observation leaves for later ones, once it is taken; the arguments are those of `observe`."""
    for a in range(len(values)):
        _remember_column(state[a], due[a], memory[a], values[a], unit)


@source_inline_jit
def _remember_column(state, due, memory, value, unit):
    rest, rows = state[REST], int(state[ROWS])
    is_seen = value == value
    memory[LAST + (rows - 1) % RING] = rest
    if is_seen:
        _visit(state, memory, rest, unit)
    if rows == SET_UP:
        for j in range(DAY, FOUND):
            if CLOCK[j] >= FEWEST_SLOTS * unit:
                state[PERIOD + j] = CLOCK[j]
                state[USED + j] = min(np.rint(CLOCK[j] / unit), SLOTS[j])
    for lead in range(1, COUNT_OF_LEADS):
        if rows % STRIDES[lead] == 0 and state[HELD + lead] < PLACES and state[COUNT] > 0 and rows > 1:
            _wait(state, due, memory, lead, unit)
    if rows == max(state[NEXT_SEARCH], FIRST_SEARCH):
        state[NEXT_SEARCH] = 2 * rows if rows < RING else rows + RING
        _search(state, memory, unit, min(rows, RING))


@inline_jit
def _wait(state, due, memory, lead, unit):
    """Keep the forecasts of a lead until their time has come."""
    place = int(state[HEAD + lead] + state[HELD + lead]) % PLACES
    at = WAITING + ((lead - 1) * PLACES + place) * (BANK + 1)
    for e in range(BANK):
        state[REACH + e] = REACHES[lead, e]
    _foresee(state, memory, LEADS[lead] * unit)
    mean, _ = _mix(state, lead, 0.0)
    for e in range(BANK):
        memory[at + e] = state[FORESEEN + e]
    for j in range(1, PROFILES):
        if state[SEASON + j] == ABSENT:
            memory[at + j * KINDS] = ABSENT
    memory[at + BANK] = mean
    due[DUE + lead * PLACES + place] = state[ELAPSED] + LEADS[lead] * unit
    state[HELD + lead] += 1


@inline_jit
def _visit(state, memory, rest, unit):
    """Take a value into the profiles."""
    for j in range(1, PROFILES):
        slots = int(state[USED + j])
        if slots == 0:
            continue
        if state[ELAPSED] > state[PERIOD + j] + SET_UP * unit:
            state[BEGUN + j] = 1.0  # it has come round
        slot = _slot(state, j, 0.0)
        # Of a slot of many observations as much is kept of a period as of one.
        least = PROFILE_GAIN * min(slots * unit / state[PERIOD + j], 1.0)
        place, visits = PROFILE[j] + slot, PROFILE[j] + slots + slot
        above = rest - state[BEFORE + j]
        if memory[visits] == 0:
            memory[place] = above
            memory[visits] = 1
            continue
        count, is_odd = abs(memory[visits]), state[TRUST] < ODD
        # What does not fit is no season, unless it was so the last time, too.
        trust = 1.0 if is_odd and memory[visits] < 0 else state[TRUST]
        memory[place] += trust * max(1 / (count + 1), least) * (above - memory[place])
        count = min(count + 1, 1 / least)
        memory[visits] = -count if is_odd else count


@inline_jit
def _search(state, memory, unit, count):
    """Look for a period in the last observations, and make a profile of it if there is a new one."""
    first = int(state[ROWS]) - count
    for k in range(count):
        state[SEARCHED + k] = memory[LAST + (first + k) % RING]
    steps = dominant_period(state[SEARCHED:], count)
    if steps < FEWEST_SLOTS:
        return
    period = steps * unit
    for j in range(1, PROFILES):
        if state[USED + j] > 0 and abs(period / state[PERIOD + j] - 1) < SAME_PERIOD:
            return
    slots = min(int(steps), SLOTS[FOUND])
    state[PERIOD + FOUND], state[USED + FOUND], state[BEGUN + FOUND] = period, slots, 1.0
    at = PROFILE[FOUND]
    for k in range(2 * slots):
        memory[at + k] = 0.0
    for k in range(count):
        slot = _slot(state, FOUND, -(count - 1 - k) * unit + np.ceil(count / steps) * period)
        visits, value = memory[at + slots + slot], memory[LAST + (first + k) % RING]
        memory[at + slot] += max(1 / (visits + 1), PROFILE_GAIN) * (value - memory[at + slot])
        memory[at + slots + slot] = min(visits + 1, 1 / PROFILE_GAIN)
    above = memory[LAST + (first + count - 1) % RING] - memory[at + _slot(state, FOUND, 0.0)]
    for i in range(KINDS):
        state[BASE + FOUND * KINDS + i], state[SLOPE + FOUND * KINDS + i] = above if i >= GROUND else 0.0, 0.0
    for lead in range(COUNT_OF_LEADS):
        state[SCORED + lead * PROFILES + FOUND] = 0.0
        for e in range(FOUND * KINDS, BANK):
            # Until it is scored it counts as the worst of those without a season.
            state[ERROR + lead * BANK + e] = _worst(state, lead)
            if lead > 0:
                for place in range(PLACES):
                    memory[WAITING + ((lead - 1) * PLACES + place) * (BANK + 1) + e] = ABSENT


@inline_jit
def _worst(state, lead):
    worst = 0.0
    for e in range(KINDS):
        worst = max(worst, state[ERROR + lead * BANK + e])
    return worst


@inline_jit
def dominant_period(rest, count):
    """The lag at which values, less their line, are most like themselves; 0 where there is none.

    Args:
        rest: the values in the first `count` places; others are LAGS_AT_ONCE more. What their line leaves of them,
            bounded, is there after it.
    """
    middle, mean, slope, square = (count - 1) / 2, 0.0, 0.0, 0.0
    for k in range(count):
        mean += rest[k] / count
        slope += (k - middle) * rest[k]
        square += (k - middle) ** 2
    slope /= square
    power = 0.0
    for k in range(count):
        rest[k] -= mean + slope * (k - middle)
        power += rest[k] * rest[k] / count
    bound, total = 4 * np.sqrt(power), 0.0
    for k in range(count):
        rest[k] = min(max(rest[k], -bound), bound)
        total += rest[k] * rest[k]
    for k in range(count, count + LAGS_AT_ONCE):
        rest[k] = 0.0
    if total <= (RESOLUTION * (abs(mean) + bound)) ** 2 * count:
        return 0.0
    found, best, lowest = 0.0, 0.0, 1.0
    before, last = 1.0, 1.0
    for first in range(1, count // 3 + 2, LAGS_AT_ONCE):
        products = _products(rest, first, count)
        for k in range(LAGS_AT_ONCE):
            lag = first + k
            if lag >= count // 3 + 2:
                break
            like = products[k] / total * count / (count - lag)
            if (
                lag > 2 and last >= before and last >= like and last > 0.2 and last - lowest > 0.25
                and last > 1.08 * best
            ):  # fmt: skip
                found, best = lag - 1.0, last
            lowest = min(lowest, last)
            before, last = last, like
    return found


@inline_jit
def _products(rest, lag, count):
    """Sums of the products of values so far apart, and up to LAGS_AT_ONCE - 1 further; behind the values are zeros."""
    a, b, c, d, e, f, g, h = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(count - lag):
        one, at = rest[k], k + lag
        a += one * rest[at]
        b += one * rest[at + 1]
        c += one * rest[at + 2]
        d += one * rest[at + 3]
        e += one * rest[at + 4]
        f += one * rest[at + 5]
        g += one * rest[at + 6]
        h += one * rest[at + 7]
    return a, b, c, d, e, f, g, h
