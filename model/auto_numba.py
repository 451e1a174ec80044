"""A bank of local filters for one column of any numbers: level, trend and season, found while it is filtered.

Each filter i of the bank is a Kalman filter of a small system, of the column less a profile j of its season:

    level   x' = x + w, E[w²] = q_i tau        y - s_j(t) = x + e, E[e²] = 1 in units of the noise
    trend   x' = x + b (1 - φ^tau) / (1 - φ), b' = φ^tau b, with gains in steady state

tau is the lag over the typical lag of the stream. The gain is that under the Student-t weight w(z) of math.md, z the
innovation over the filter's own mean error; the two fastest levels have none, so that what stood still and moves is
followed. Profiles are none, of the day, of the week (of times in seconds; where a stream has other ones they are never
repeated, and so never used), and of a period that the autocorrelation of the last observations shows. A profile has a
number for each slot of its period, the mean of what was seen there less the level.

How good a filter is depends on how far ahead it looks. So for each lead of LEADS (in typical lags) every filter's mean
absolute error E_l,e of forecasts so far ahead is followed, and what is told is the mean of all forecasts by the weights

    w_l,e ∝ (E_l,e / min_e E_l,e)^(-POWER)

between two leads by E interpolated in log time. The mean absolute error of that mixture, A_l, gives the deviation,
√(π/2) A_l. Where none was scored it grows from the last lead that was, as a local level's with the mixture's gain k:
1 + (h - 1) k²; by this an error after a shorter lag counts as one after the typical lag. Of the variance of an
innovation the state has before the observation a share k, after it k (1 - k).

Numbers are held less the first observation. What is found is the same for times that are shifted, and for y times a it
is a times the same. A stream's state has SMALL numbers that an observation changes, copied for each, and MEMORY numbers
of profiles, waiting forecasts and last observations, which `remember` changes once the observation is taken.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.model.compiling import part
from rfa.model.recurrence.observed import LOG_LIKELIHOOD, NIS, PRECISION, WEIGHT, predictive_log_density

# In typical lags, ascending; the first is one.
LEADS = np.array([1.0, 4.0, 12.0, 24.0, 48.0, 168.0, 336.0])
_LOG_LEADS = np.log(LEADS)
COUNT_OF_LEADS, PLACES = len(LEADS), 32
STRIDES = np.maximum(np.ceil(LEADS / PLACES), 1).astype(np.int64)
DRIFTS = np.array([3e-4, 0.01, 0.1, 1.0, 100.0])
TREND_LEVEL, TREND_SLOPE, DAMPING = np.array([0.7, 0.25]), np.array([0.15, 0.02]), np.array([0.9, 0.98])
LEVELS, TRENDS = len(DRIFTS), len(DAMPING)
KINDS = LEVELS + TRENDS
# The level that a profile is seen above.
GROUND = 2
NO_SEASON, DAY, WEEK, FOUND = range(4)
PROFILES = 4
CLOCK = np.array([0.0, 86_400.0, 604_800.0, 0.0])
BANK = PROFILES * KINDS
SLOTS = np.array([0, 720, 1008, 512])
RING = 1024
# Observations from which on the typical lag is trusted to set the profiles up; fewest slots of one.
SET_UP, FEWEST_SLOTS = 16, 4.0
# Observations of the first search for a period; they double, up to the ring.
FIRST_SEARCH = 64
SAME_PERIOD = 0.02
# Forecasts over which errors are followed, of a filter and of the mixture.
FILTER_MEMORY, MIXTURE_MEMORY, YOUNG = 100.0, 200.0, 20.0
POWER_SQUARES = 6  # half of POWER = 12
INVERSE_NU = 0.05
PROFILE_GAIN = 0.15
# Times a mean error that an error counts for, at most; and the least of such errors, of the deviation of the column.
LARGEST_ERROR, LEAST_SHARE = 8.0, 0.01
MEAN_TO_STD = np.sqrt(np.pi / 2)
# Of |y|: the error before a second observation, and the least one.
FIRST_GUESS, RESOLUTION, TINY = 0.1, 1e-12, 1e-150
# Errors as small as this share of the deviation are alike: profiles have seven digits.
SAME = 1e-6
# Deviations that an innovation counts for, at most: of a column that stood still nothing says how far it may go.
FURTHEST_OFF = 1e3
# Of an error's square a typical lag ahead, what is left no time ahead.
LEAST_GROWTH = 0.05
# A forecast that there was none of.
ABSENT = 3e38
OUTLIERS = (0.02, 10.0)

# Numbers of a state, in their order.
COUNT, ROWS, ORIGIN, ELAPSED, DEVIATION, CENTRE, GAIN, NEXT_SEARCH, LARGEST = range(9)
PERIOD = 9
USED = PERIOD + PROFILES  # slots of a profile; 0 is none
BEGUN = USED + PROFILES  # whether it has come round
SPREAD = BEGUN + PROFILES
LEVEL = SPREAD + LEVELS
TREND = LEVEL + PROFILES * LEVELS
SLOPE = TREND + PROFILES * TRENDS
ERROR = SLOPE + PROFILES * TRENDS
SCORED = ERROR + COUNT_OF_LEADS * BANK
MIXTURE = SCORED + COUNT_OF_LEADS * PROFILES
MIXED = MIXTURE + COUNT_OF_LEADS
HEAD = MIXED + COUNT_OF_LEADS
HELD = HEAD + COUNT_OF_LEADS
SMALL = HELD + COUNT_OF_LEADS
DUE = SMALL  # of the waiting forecasts, which are not copied
STATE = DUE + COUNT_OF_LEADS * PLACES
# Numbers of a memory: profiles with the visits of their slots, the ring, the waiting forecasts.
PROFILE = np.concatenate(([0], 2 * np.cumsum(SLOTS)))[:-1]
LAST = int(2 * SLOTS.sum())
WAITING = LAST + RING
MEMORY = WAITING + (COUNT_OF_LEADS - 1) * PLACES * (BANK + 1)
# Scratch of a column: the forecasts of the bank, their weights, what the profiles add, and observations of a search.
FORESEEN, WEIGHTS, SEASON, BEFORE = 0, BANK, 2 * BANK, 2 * BANK + PROFILES
SEARCHED = BEFORE + PROFILES
SCRATCH = SEARCHED + RING


@part
def _slot(state, j, ahead):
    """The slot of a profile so far ahead of the last observation."""
    period, slots = state[PERIOD + j], int(state[USED + j])
    phase = np.fmod(state[ELAPSED] + ahead, period) / period
    # Even steps lie in the middle of their slots, where rounding moves none into another.
    return int(phase * slots + 0.5) % slots


@part
def _is_seen_slot(memory, j, slot, slots):
    return memory[PROFILE[j] + slots + slot] > 0


@part
def _damped(trend, steps):
    """φ^steps, and what a slope adds until then."""
    power = DAMPING[trend] ** steps
    return power, (1 - power) / (1 - DAMPING[trend])


@part
def _foresee(state, memory, ahead, steps, work):
    """The forecasts of the bank, in `work`; ABSENT where a filter has none."""
    for j in range(PROFILES):
        first, is_used = j * KINDS, j == 0 or state[BEGUN + j] > 0
        season = 0.0
        if is_used and j > 0:
            slot, slots = _slot(state, j, ahead), int(state[USED + j])
            is_used = _is_seen_slot(memory, j, slot, slots)
            season = np.float64(memory[PROFILE[j] + slot])
        work[SEASON + j] = season if is_used else ABSENT
        for i in range(KINDS):
            if not is_used:
                work[FORESEEN + first + i] = ABSENT
            elif i < LEVELS:
                work[FORESEEN + first + i] = season + state[LEVEL + j * LEVELS + i]
            else:
                place = j * TRENDS + i - LEVELS
                _, reach = _damped(i - LEVELS, steps)
                work[FORESEEN + first + i] = season + state[TREND + place] + state[SLOPE + place] * reach


@part
def _between(steps):
    """The last lead that is not behind so many steps, and how far on the way to the next."""
    low = 0
    while low < COUNT_OF_LEADS - 1 and LEADS[low + 1] <= steps:
        low += 1
    if low == COUNT_OF_LEADS - 1 or steps <= LEADS[low]:
        return low, 0.0
    return low, (np.log(steps) - _LOG_LEADS[low]) / (_LOG_LEADS[low + 1] - _LOG_LEADS[low])


@part
def _mix(state, steps, work):
    """The mean of the forecasts by their weights, which are left in `work`."""
    low, share = _between(steps)
    least = np.inf
    floor = SAME * state[DEVIATION] + TINY
    for e in range(BANK):
        if work[FORESEEN + e] == ABSENT:
            continue
        j = e // KINDS
        error = state[ERROR + e] * np.sqrt(LEADS[low])
        if state[SCORED + low * PROFILES + j] >= 3:
            error = state[ERROR + low * BANK + e]
        if share > 0 and state[SCORED + (low + 1) * PROFILES + j] >= 3:
            error += share * (state[ERROR + (low + 1) * BANK + e] - error)
        work[WEIGHTS + e] = error + floor
        least = min(least, error + floor)
    total, mean = 0.0, 0.0
    for e in range(BANK):
        if work[FORESEEN + e] == ABSENT:
            work[WEIGHTS + e] = 0.0
            continue
        square = (least / work[WEIGHTS + e]) ** 2
        weight = 1.0
        for _ in range(POWER_SQUARES):
            weight *= square
        work[WEIGHTS + e] = weight
        total += weight
        mean += weight * work[FORESEEN + e]
    for e in range(BANK):
        work[WEIGHTS + e] /= total
    return mean / total


@part
def _mixture_error(state, steps):
    """Mean absolute error of the mixture so many steps ahead."""
    low, share = _between(steps)
    growth = state[GAIN] * state[GAIN]
    known = low
    while known > 0 and state[MIXED + known] < 5:
        known -= 1
    spread = max(1 + (steps - 1) * growth, LEAST_GROWTH)
    error = state[MIXTURE + known] * np.sqrt(spread / (1 + (LEADS[known] - 1) * growth))
    if known == low and share > 0 and state[MIXED + low + 1] >= 5:
        error = state[MIXTURE + low] + share * (state[MIXTURE + low + 1] - state[MIXTURE + low])
    return max(error, RESOLUTION * state[LARGEST] + TINY)


@part
def _learn(mean, error, count, floor):
    """A running mean of errors after one more, that counts so many times the mean at most."""
    bounded = min(error, LARGEST_ERROR * max(mean, floor)) if count > YOUNG else error
    return mean + (bounded - mean) / count


@part
def _score(state, lead, value, forecasts, at):
    """Hold the bank's forecasts, from `at` on, against a value."""
    floor = LEAST_SHARE * state[DEVIATION]
    for j in range(PROFILES):
        if forecasts[at + j * KINDS] > ABSENT / 2:
            continue
        place = SCORED + lead * PROFILES + j
        state[place] = min(state[place] + 1, FILTER_MEMORY)
        for e in range(j * KINDS, (j + 1) * KINDS):
            error, mean = abs(value - np.float64(forecasts[at + e])), ERROR + lead * BANK + e
            state[mean] = _learn(state[mean], error, state[place], floor)


@part
def _score_mixture(state, lead, error):
    state[MIXED + lead] = min(state[MIXED + lead] + 1, MIXTURE_MEMORY)
    floor = LEAST_SHARE * state[DEVIATION]
    state[MIXTURE + lead] = _learn(state[MIXTURE + lead], error, state[MIXED + lead], floor)


@part
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
                _score(state, lead, value, memory, at)
                _score_mixture(state, lead, abs(value - np.float64(memory[at + BANK])))


@part
def _weight(off, error):
    """The Student-t weight of an innovation, by the mean error of its filter."""
    if error <= 0:
        return 1.0
    z = off / (MEAN_TO_STD * error)
    return min(1.0, (1 + INVERSE_NU) / (1 + z * z * INVERSE_NU))


@part
def _predict(state, tau):
    """Time passes: spreads grow, trends go on."""
    for i in range(LEVELS):
        state[SPREAD + i] += DRIFTS[i] * tau
    for trend in range(TRENDS):
        power, reach = _damped(trend, tau)
        for j in range(PROFILES):
            place = j * TRENDS + trend
            state[TREND + place] += state[SLOPE + place] * reach
            state[SLOPE + place] *= power


@part
def _update(state, value, noise, work):
    """Condition all filters on a value; `noise` is the variance of its noise over the usual one."""
    is_first, is_old = state[COUNT] == 0, state[COUNT] > YOUNG
    for j in range(PROFILES):
        work[BEFORE + j] = state[LEVEL + j * LEVELS + GROUND]
        season = work[SEASON + j]
        if j > 0 and state[BEGUN + j] == 0:
            continue
        if season == ABSENT:  # a slot that was never seen: it will begin at what leaves the level as it is
            season = value - work[BEFORE + j]
        rest = value - season
        for i in range(LEVELS):
            place = LEVEL + j * LEVELS + i
            off = rest - state[place]
            weight = _weight(off, state[ERROR + j * KINDS + i]) if is_old and i <= GROUND else 1.0
            gain = weight * state[SPREAD + i] / (weight * state[SPREAD + i] + noise)
            state[place] += (1.0 if is_first else gain) * off
        for trend in range(TRENDS):
            place = j * TRENDS + trend
            off = rest - state[TREND + place]
            weight = _weight(off, state[ERROR + j * KINDS + LEVELS + trend]) if is_old else 1.0
            weight /= max(noise, 1.0)
            state[TREND + place] += (1.0 if is_first else TREND_LEVEL[trend] * weight) * off
            state[SLOPE + place] += (0.0 if is_first else TREND_SLOPE[trend] * weight) * off
    for i in range(LEVELS):
        state[SPREAD + i] = noise if is_first else state[SPREAD + i] * noise / (state[SPREAD + i] + noise)


@part
def _gain(state, noise, work):
    """The gain of the mixture, before the update."""
    total = 0.0
    for e in range(BANK):
        i = e % KINDS
        gain = state[SPREAD + i] / (state[SPREAD + i] + noise) if i < LEVELS else TREND_LEVEL[i - LEVELS]
        total += work[WEIGHTS + e] * gain
    return total


@part
def _observe_column(state, due, memory, value, lag, unit, scale, work, out, a):
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
    _foresee(state, memory, 0.0, 0.0, work)
    mean = _mix(state, 1.0, work)
    gain = _gain(state, noise, work)
    error = _mixture_error(state, tau)
    usual = (MEAN_TO_STD * error) ** 2
    spread = usual * (gain + (1 - gain) * noise)
    prior = gain * usual
    innovation = rest - mean if is_seen and not is_first else 0.0
    out.innovation[a] = innovation
    spread = max(spread, (innovation / FURTHEST_OFF) ** 2)
    nis, weight, after = innovation * innovation / spread, 1.0, prior
    filtered = mean
    _score_waiting(state, due, memory, rest, is_seen, lag, unit)
    if is_seen:
        weight = _weight(innovation, error) if state[COUNT] > YOUNG else 1.0
        if not is_first:
            _score(state, 0, rest, work, FORESEEN)
            _score_mixture(state, 0, abs(innovation) * _mixture_error(state, 1.0) / error)
        _update(state, rest, noise, work)
        filtered = _filtered(state, work, rest)
        after = prior * (1 - gain) * noise / (gain + (1 - gain) * noise) if gain < 1 else 0.0
        after = max(after, 1e-6 * spread)
        size = min(state[COUNT] + 1, 10 * FILTER_MEMORY)
        state[DEVIATION] += (abs(rest - state[CENTRE]) - state[DEVIATION]) / size
        state[CENTRE] += (rest - state[CENTRE]) / size
        state[GAIN] = gain
        state[COUNT] += 1
    state[ROWS] += 1
    work[FORESEEN] = rest if is_seen else mean  # for `remember`
    out.mean[a] = state[ORIGIN] + filtered
    out.covariance[a, a], out.innovation_covariance[a, a] = after, spread
    out.predicted_mean[a], out.predicted_covariance[a, a] = state[ORIGIN] + mean, prior
    return nis, weight, np.log(spread), is_seen and not is_first


@part
def _filtered(state, work, rest):
    """The mean of what the filters say of now, by the weights of one step ahead."""
    total = 0.0
    for e in range(BANK):
        weight = work[WEIGHTS + e]
        if weight == 0:
            continue
        j, i = e // KINDS, e % KINDS
        if i < LEVELS:
            total += weight * (work[SEASON + j] + state[LEVEL + j * LEVELS + i])
        else:
            total += weight * (work[SEASON + j] + state[TREND + j * TRENDS + i - LEVELS])
    return total


@part
def observe(state, due, memory, values, lag, unit, scale, work, out):
    """Condition the columns of a stream, `[P, SMALL]` in `state`, on values `[P]`, NaN where missing.

    Args:
        due: the state before it, `[P, STATE]`, of which the times of waiting forecasts are read.
        memory: `[P, MEMORY]`.
        lag, unit: since the observation before, and the typical one.
        scale: factor on the deviation of the noise.
        work: scratch `[P, SCRATCH]`, which `remember` takes.
    """
    nis, weight, log_det, count, precision = 0.0, 0.0, 0.0, 0, 0.0
    for a in range(len(values)):
        one, trust, size, is_scored = _observe_column(
            state[a], due[a], memory[a], values[a], lag, unit, scale, work[a], out, a
        )
        precision += out.covariance[a, a]
        if is_scored:
            nis, weight, log_det, count = nis + one, weight + trust, log_det + size, count + 1
    out.scalars[PRECISION] = len(values) / precision
    out.scalars[NIS], out.scalars[WEIGHT] = nis, weight / count if count > 0 else 1.0
    out.scalars[LOG_LIKELIHOOD] = predictive_log_density(nis, log_det, np.float64(count), OUTLIERS)


@part
def forecast(state, memory, horizon, unit, work, mean, covariance):
    """Mean `[P]` and variances, on the diagonal of `[P, P]`, of an observation to come after `horizon`."""
    steps = horizon / unit
    for a in range(len(mean)):
        keep = work[a, FORESEEN]
        _foresee(state[a], memory[a], horizon, steps, work[a])
        mean[a] = state[a, ORIGIN] + _mix(state[a], max(steps, 1.0), work[a])
        deviation = MEAN_TO_STD * _mixture_error(state[a], steps)
        covariance[a, a] = deviation * deviation
        work[a, FORESEEN] = keep


@part
def remember(state, memory, values, unit, work):
    """Keep what an observation leaves for later ones, once it is taken; `state` is `[P, STATE]`."""
    for a in range(len(values)):
        _remember_column(state[a], memory[a], values[a], unit, work[a])


@part
def _remember_column(state, memory, value, unit, work):
    rest, rows = work[FORESEEN], int(state[ROWS])
    is_seen = value == value
    memory[LAST + (rows - 1) % RING] = rest
    if is_seen:
        _visit(state, memory, rest, unit, work)
    if rows == SET_UP:
        for j in range(DAY, FOUND):
            if CLOCK[j] >= FEWEST_SLOTS * unit:
                state[PERIOD + j] = CLOCK[j]
                state[USED + j] = min(np.rint(CLOCK[j] / unit), SLOTS[j])
    for lead in range(1, COUNT_OF_LEADS):
        if rows % STRIDES[lead] == 0 and state[HELD + lead] < PLACES and state[COUNT] > 0 and rows > 1:
            place = int(state[HEAD + lead] + state[HELD + lead]) % PLACES
            _foresee(state, memory, LEADS[lead] * unit, LEADS[lead], work)
            mean = _mix(state, LEADS[lead], work)
            at = WAITING + ((lead - 1) * PLACES + place) * (BANK + 1)
            for e in range(BANK):
                memory[at + e] = work[FORESEEN + e]
            memory[at + BANK] = mean
            state[DUE + lead * PLACES + place] = state[ELAPSED] + LEADS[lead] * unit
            state[HELD + lead] += 1
    if rows == max(state[NEXT_SEARCH], FIRST_SEARCH):
        state[NEXT_SEARCH] = 2 * rows if rows < RING else rows + RING
        count = min(rows, RING)
        _search(state, memory, unit, work[SEARCHED : SEARCHED + count])


@part
def _visit(state, memory, rest, unit, work):
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
        above = rest - work[BEFORE + j]
        if memory[visits] == 0:
            memory[place] = above
            memory[visits] = 1
            continue
        memory[place] += max(1 / (memory[visits] + 1), least) * (above - memory[place])
        memory[visits] = min(memory[visits] + 1, 1 / least)


@part
def _search(state, memory, unit, rest):
    """Look for a period in the last `[count]` observations, and make a profile of it if there is a new one."""
    count = len(rest)
    first = int(state[ROWS]) - count
    for k in range(count):
        rest[k] = memory[LAST + (first + k) % RING]
    steps = dominant_period(rest)
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
    for i in range(LEVELS):
        state[LEVEL + FOUND * LEVELS + i] = above if i >= GROUND else 0.0
    for trend in range(TRENDS):
        state[TREND + FOUND * TRENDS + trend], state[SLOPE + FOUND * TRENDS + trend] = above, 0.0
    for lead in range(COUNT_OF_LEADS):
        state[SCORED + lead * PROFILES + FOUND] = 0.0
        for e in range(FOUND * KINDS, BANK):
            # Until it is scored it counts as the worst of those without a season.
            state[ERROR + lead * BANK + e] = _worst(state, lead)
            if lead > 0:
                for place in range(PLACES):
                    memory[WAITING + ((lead - 1) * PLACES + place) * (BANK + 1) + e] = ABSENT


@part
def _worst(state, lead):
    worst = 0.0
    for e in range(KINDS):
        worst = max(worst, state[ERROR + lead * BANK + e])
    return worst


@part
def dominant_period(rest):
    """The lag at which values `[count]`, less their line, are most like themselves; 0 where there is none.

    rest: the values; what their line leaves of them, bounded, is there after it.
    """
    count = len(rest)
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
    if total <= (RESOLUTION * (abs(mean) + bound)) ** 2 * count:
        return 0.0
    found, best, lowest = 0.0, 0.0, 1.0
    before, last = 1.0, 1.0
    for lag in range(1, count // 3 + 2):
        sum_ = 0.0
        for k in range(count - lag):
            sum_ += rest[k] * rest[k + lag]
        like = sum_ / total * count / (count - lag)
        if lag > 2 and last >= before and last >= like and last > 0.2 and last - lowest > 0.25 and last > 1.08 * best:
            found, best = lag - 1.0, last
        lowest = min(lowest, last)
        before, last = last, like
    return found
