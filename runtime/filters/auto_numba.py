"""The filter of `auto`: a bank of local filters with level, trend and season, for one column of any kind of series.

Each filter i of the bank is a Kalman filter of a small system. It observes the column minus a profile j of its season:

    level   x' = x + w, E[w²] = q_i tau        y - s_j(t) = x + e, E[e²] = 1 in units of the noise
    trend   x' = x + b (1 - φ^tau) / (1 - φ), b' = φ^tau b, with gains in steady state

tau is the lag divided by the typical lag of the stream. The gain has the Student-t weight w(z) of MATH.md, where z is
the innovation divided by the filter's own mean error. The two fastest levels have no such weight, so that they follow
jumps. The profiles are: none, the day, the week (for times in seconds), and a period found from the autocorrelation of
the last observations. A profile has a value for each slot of its period, which is the mean of the observations there
minus the level. An outlier has its weight in this mean, unless the previous observation in its slot was an outlier too.

The best filter depends on the horizon. For each horizon in LEADS (in typical lags), the mean absolute error E_l,e of
every filter's forecasts is tracked. The estimate is the mean of all forecasts with the weights

    w_l,e ∝ (E_l,e / min_e E_l,e)^(-12)

between two horizons, with E interpolated in log time. With fewer than 12 errors, the weights are E^(-n), the likelihood
of an unknown scale. The forecast has Student's t distribution (student.py) with deviation √(π/2) A_l, where A_l is the
mean absolute error of the mixture. Its degrees of freedom are the number of independent errors: n at one lag, and
1.5 n s / h for n forecasts h lags ahead that begin s lags apart. A horizon with fewer than ENOUGH independent errors
also uses the error of the previous horizon. From one lag ahead, the squared error grows by the factor

    1 + (h - 1) κ + (h² - 1) LINES / (n + 2)³           κ = (n k² + WALKS) / (n + WALKS)

whose terms are those of a local level with the mixture's gain k, of a random walk, and of a line with uncertain slope.
The variance among the filters is added. An error after a shorter lag is scaled to the typical lag.

Before the observation, the variance of the state is the fraction k of the innovation's variance. Afterwards, it is the
fraction k (1 - k), computed from the errors including this one, or the variance among the filters if that is larger.
For a possible outlier, w (1 - w) k² e² is added.

Values are relative to the first observation. Results are invariant to shifts of time, and scale with y. The memory
layout is in `auto_layout.py`.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit, source_inline_jit
from rfa.runtime.filters import auto_layout as at
from rfa.runtime.filters.auto_bank_numba import (
    FILTER_MEMORY,
    forecast_bank,
    lead_below,
    mix,
    mixture_error,
    score_bank,
    score_mixture,
    set_profile,
    set_reach,
    spread_of_forecasts,
    sum_kinds,
)
from rfa.runtime.filters.auto_season_numba import add_to_profiles, search_period
from rfa.runtime.filters.correlation import joint_square
from rfa.runtime.filters.observed import LOG_LIKELIHOOD, NIS, PRECISION, WEIGHT, predictive_log_density
from rfa.runtime.filters.student import normal_square, stretching, widening

# Periods of the profiles in seconds. It is 0 if the period is found from the data or there is none.
CLOCK = np.array([0.0, 86_400.0, 604_800.0, 0.0])
# Number of rows at the first search for a period. It doubles up to the size of the ring.
FIRST_SEARCH = 64
INVERSE_NU = 0.05
MEAN_TO_STD = np.sqrt(np.pi / 2)
# Error before a second observation, as a fraction of |y|.
FIRST_GUESS = 0.25
# Limit on an innovation as a multiple of its deviation and, in a constant column, on the number of constant values.
FURTHEST_OFF = 1e3
OUTLIERS = (0.02, 10.0)


def _by_lane(levels, trends):
    """Return the values of the eight kinds of filters, repeated for each profile."""
    kinds = np.concatenate((np.broadcast_to(levels, at.LEVELS), np.broadcast_to(trends, at.TRENDS)))
    return np.tile(kinds, at.PROFILES)


# For each lane: whether the filter is a trend, its gains, and whether the weight of outliers is reduced.
IS_TREND = _by_lane(0.0, 1.0)
DRIFT = _by_lane(at.DRIFTS, 0.0)
LEVEL_GAIN, SLOPE_GAIN = _by_lane(0.0, at.TREND_LEVEL), _by_lane(0.0, at.TREND_SLOPE)
IS_ROBUST = _by_lane(np.arange(at.LEVELS) <= at.GROUND, 1.0)
# Damping of a slope over a typical lag, and the sum of a slope over each horizon in LEADS.
DAMPED = _by_lane(1.0, at.DAMPING)
REACHES = np.stack([_by_lane(0.0, (1 - at.DAMPING**lead) / (1 - at.DAMPING)) for lead in at.LEADS])


@inline_jit
def _predict(state, tau):
    """Predict all filters over a lag of `tau` typical lags."""
    for e in range(at.BANK):
        state[at.SPREAD + e] += DRIFT[e] * tau
        state[at.ONE + e], state[at.REACH + e] = DAMPED[e], REACHES[0, e]
    if tau != 1:
        set_reach(state, tau)
        for trend in range(at.TRENDS):
            power = np.exp(at.LOG_DAMPING[trend] * tau)
            for j in range(at.PROFILES):
                state[at.ONE + j * at.KINDS + at.LEVELS + trend] = power
    for e in range(at.BANK):
        state[at.BASE + e] += state[at.SLOPE + e] * state[at.REACH + e]
        state[at.SLOPE + e] *= state[at.ONE + e]
        state[at.REACH + e] = 0.0


@inline_jit
def _weight(off, error):
    """Return the Student-t weight of an innovation."""
    z = off / (MEAN_TO_STD * error)
    return min(1.0, (1 + INVERSE_NU) / (1 + z * z * INVERSE_NU))


@inline_jit
def _update(state, value, noise):
    """Update all filters with a value. `noise` is the ratio of its noise variance to the usual noise variance."""
    is_first, is_old = state[at.COUNT] == 0, state[at.COUNT] > at.YOUNG
    for j in range(at.PROFILES):
        before, season = state[at.BASE + j * at.KINDS + at.GROUND], state[at.SEASON + j]
        state[at.LEVEL_BEFORE + j] = before
        # A slot without observations starts at the value that leaves the level unchanged.
        set_profile(state, at.ONE, j, value - season if season != at.ABSENT else before)
        set_profile(state, at.TWO, j, 1.0 if j == 0 or state[at.IS_COMPLETE + j] > 0 else 0.0)
    most = max(noise, 1.0)
    for e in range(at.BANK):
        off, error, spread = state[at.ONE + e] - state[at.BASE + e], state[at.ERROR + e], state[at.SPREAD + e]
        weight = _weight(off, error) if is_old and IS_ROBUST[e] > 0 and error > 0 else 1.0
        level = weight * spread / (weight * spread + noise)
        gain = LEVEL_GAIN[e] * weight / most if IS_TREND[e] > 0 else level
        slope = 0.0 if is_first else SLOPE_GAIN[e] * weight / most
        state[at.BASE + e] += state[at.TWO + e] * (1.0 if is_first else gain) * off
        state[at.SLOPE + e] += state[at.TWO + e] * slope * off
        state[at.SPREAD + e] = noise if is_first else spread * noise / (spread + noise)


@inline_jit
def _gain(state, total, noise):
    """Return the gain of the mixture, before the update."""
    for i in range(at.KINDS):
        weight = 0.0
        for j in range(at.PROFILES):
            weight += state[at.WEIGHTS + j * at.KINDS + i]
        level = state[at.SPREAD + i] / (state[at.SPREAD + i] + noise)
        state[at.SUM + i] = weight * (LEVEL_GAIN[i] if IS_TREND[i] > 0 else level)
    return sum_kinds(state, at.SUM) / total


@inline_jit
def _filtered(state, total):
    """Return the mixture of the filters' estimates, with the weights of one step ahead. Also return the variance among
    the estimates."""
    for i in range(at.KINDS):
        mean = 0.0
        for j in range(at.PROFILES):
            e = j * at.KINDS + i
            state[at.FORECASTS + e] = state[at.ADDED + e] + state[at.BASE + e]
            mean += state[at.WEIGHTS + e] * state[at.FORECASTS + e]
        state[at.SUM + i] = mean
    mean = sum_kinds(state, at.SUM) / total
    return mean, spread_of_forecasts(state, mean, total)


@inline_jit
def _inverse_dof(state):
    """Return the inverse of the number of scored errors. The number is at least one."""
    return 1 / max(state[at.COUNT] - 1, 1.0)


@inline_jit
def _score_pending(state, due, memory, value, is_seen, lag, unit):
    """Score and remove the pending forecasts that are due."""
    now, near = state[at.ELAPSED], 0.5 * min(unit, lag)
    for lead in range(1, at.LEAD_COUNT):
        while state[at.PENDING_COUNT + lead] > 0:
            entry = int(state[at.FIRST_PENDING + lead])
            ahead = due[at.DUE + lead * at.MOST_PENDING + entry] - now
            if ahead > near:
                break
            state[at.FIRST_PENDING + lead] = (entry + 1) % at.MOST_PENDING
            state[at.PENDING_COUNT + lead] -= 1
            if is_seen and ahead >= -near:
                start = at.PENDING + ((lead - 1) * at.MOST_PENDING + entry) * (at.BANK + 1)
                for e in range(at.BANK):
                    state[at.THREE + e] = memory[start + e]
                score_bank(state, lead, value, at.THREE)
                score_mixture(state, lead, abs(value - np.float64(memory[start + at.BANK])), False)


@source_inline_jit
def _observe_column(state, due, memory, value, lag, unit, scale, out, inverse_dof, a):
    """Update column a with a value, which is NaN if it is missing. Return nis, the weight, the log-determinant, and
    whether the value is scored."""
    is_seen, noise = value == value, scale * scale
    is_first = state[at.COUNT] == 0
    if is_seen and is_first:
        state[at.ORIGIN] = value
        state[at.MIXTURE] = FIRST_GUESS * abs(value)
    tau = lag / unit
    state[at.ELAPSED] += lag
    rest = value - state[at.ORIGIN] if is_seen else 0.0
    if is_seen:
        state[at.LARGEST] = max(state[at.LARGEST], abs(value))
    # After `_predict`, the estimates are forecasts 0 steps ahead.
    _predict(state, tau)
    forecast_bank(state, memory, 0.0)
    mean, total = mix(state, 0, 0.0)
    gain = _gain(state, total, noise)
    low, share = lead_below(tau)
    error, inverse_dof[0, a], _ = mixture_error(state, tau, low, share)
    usual = (MEAN_TO_STD * error) ** 2
    spread = usual * (gain + (1 - gain) * noise)
    inverse_dof[1, a] = _inverse_dof(state)
    wide = widening(1.0, inverse_dof[0, a]) ** 2
    prior = max(gain * usual * wide, state[at.VARIANCE])
    innovation = rest - mean if is_seen and not is_first else 0.0
    out.innovation[a] = innovation
    stood = state[at.DEVIATION] == 0
    furthest = max(min(state[at.COUNT], FURTHEST_OFF), 1.0) if stood else FURTHEST_OFF
    spread = max(spread, (innovation / furthest) ** 2)
    square, weight, after = innovation * innovation / spread, 1.0, prior
    filtered = mean
    _score_pending(state, due, memory, rest, is_seen, lag, unit)
    if is_seen:
        weight = state[at.FIT] = _weight(innovation, error) if state[at.COUNT] > at.YOUNG else 1.0
        if not is_first:
            for j in range(at.PROFILES):
                if state[at.SEASON + j] == at.ABSENT:
                    state[at.FORECASTS + j * at.KINDS] = at.ABSENT
            score_bank(state, 0, rest, at.FORECASTS)
            usual_error, _, _ = mixture_error(state, 1.0, 0, 0.0)
            score_mixture(state, 0, abs(innovation) * usual_error / error, stood and rest == 0)
        _update(state, rest, noise)
        filtered, disagreement = _filtered(state, total)
        size = min(state[at.COUNT] + 1, 10 * FILTER_MEMORY)
        state[at.DEVIATION] += (abs(rest - state[at.CENTRE]) - state[at.DEVIATION]) / size
        state[at.CENTRE] += (rest - state[at.CENTRE]) / size
        state[at.GAIN] = gain
        state[at.COUNT] += 1
        # The variance depends on the errors including this one, the variance among the filters, and whether the value
        # may be an outlier.
        inverse_dof[1, a] = _inverse_dof(state)
        error, _, _ = mixture_error(state, tau, low, share)
        kept = gain / (gain + (1 - gain) * noise) if gain < 1 else 1.0
        left = (MEAN_TO_STD * error) ** 2 * (1 - gain) * noise * kept
        fit = _weight(innovation, error)
        after = max(left, disagreement, 1e-6 * spread) + fit * (1 - fit) * (kept * innovation) ** 2
        after *= widening(1.0, inverse_dof[1, a]) ** 2
    if state[at.COUNT] == 0:
        after = spread = at.UNKNOWN_VARIANCE
    state[at.VARIANCE] = after
    state[at.ROWS] += 1
    state[at.VALUE] = rest if is_seen else mean
    out.mean[a] = state[at.ORIGIN] + filtered
    out.covariance[a, a], out.innovation_covariance[a, a] = after, spread * wide
    # It is at least the variance after the observation, because smoothing never increases a variance.
    out.predicted_mean[a] = 0.0 if is_first else state[at.ORIGIN] + mean
    out.predicted_covariance[a, a] = max(prior, after)
    log_det = np.log(spread * stretching(square, inverse_dof[0, a]))
    return normal_square(square, inverse_dof[0, a]), weight, log_det, is_seen and not is_first


@inline_jit
def observe(state, due, memory, values, lag, unit, scale, out, inverse_dof, joint):
    """Update the columns of a stream with values `[P]`. Missing values are NaN.

    Args:
        state: Copy of the stream's state, followed by scratch, `[P, WORK]`.
        due: State of the stream, `[P, STATE]`, which contains the due times.
        memory: Memory of the stream, `[P, MEMORY]`.
        values: Values of the columns, `[P]`.
        lag, unit: Time since the previous observation, and the typical lag.
        scale: Factor on the noise standard deviation.
        out: Buffers for the outputs.
        inverse_dof: Output: 1/ν of innovation and state, `[2, P]` (student.py).
        joint: Output z, the learned moments and the scratch of correlation.py. The arrays have no rows if the columns
            are independent.
    """
    z, learned, factor = joint
    is_joint = len(learned) > 0
    nis, weight, log_det, count, precision = 0.0, 0.0, 0.0, 0, 0.0
    for a in range(len(values)):
        square, fit, size, is_scored = _observe_column(
            state[a], due[a], memory[a], values[a], lag, unit, scale, out, inverse_dof, a
        )
        precision += out.covariance[a, a]
        if is_joint:
            z[a] = np.copysign(np.sqrt(square), out.innovation[a]) if is_scored else np.nan
        if is_scored:
            nis, weight, log_det, count = nis + square, weight + fit, log_det + size, count + 1
    if is_joint:
        nis, size = joint_square(z, learned, factor)
        log_det += size
    out.scalars[PRECISION] = len(values) / precision
    out.scalars[NIS], out.scalars[WEIGHT] = nis, weight / count if count > 0 else 1.0
    out.scalars[LOG_LIKELIHOOD] = predictive_log_density(nis, log_det, np.float64(count), OUTLIERS)


@inline_jit
def is_finite(state):
    """Return whether the copy of a state `[P, WORK]` is finite."""
    total = 0.0
    for a in range(len(state)):
        column = state[a]
        for i in range(at.KINDS):
            column[at.SUM + i] = 0.0
        for k in range(0, at.SMALL, at.KINDS):
            for i in range(at.KINDS):
                column[at.SUM + i] += column[k + i]
        total += sum_kinds(column, at.SUM)
    return np.isfinite(total)


@inline_jit
def forecast(state, memory, horizon, unit, mean, covariance, inverse_dof):
    """Compute the forecast at `horizon`: mean `[P]`, variances (the diagonal of `[P, P]`) and inverse degrees of
    freedom `[P]`."""
    steps = horizon / unit
    low, share = lead_below(steps)
    for a in range(len(mean)):
        set_reach(state[a], steps)
        forecast_bank(state[a], memory[a], horizon)
        middle, total = mix(state[a], low, share)
        mean[a] = state[a, at.ORIGIN] + middle
        error, inverse_dof[a], lacking = mixture_error(state[a], steps, low, share)
        variance = (MEAN_TO_STD * error) ** 2
        if lacking > 0:
            variance += lacking * spread_of_forecasts(state[a], middle, total)
        variance *= widening(1.0, inverse_dof[a]) ** 2
        covariance[a, a] = variance if state[a, at.COUNT] > 0 else at.UNKNOWN_VARIANCE


@inline_jit
def remember(state, due, memory, values, unit):
    """Update the memory with an accepted observation. See `observe` for the arguments."""
    for a in range(len(values)):
        _remember_column(state[a], due[a], memory[a], values[a], unit)


@source_inline_jit
def _remember_column(state, due, memory, value, unit):
    rest, rows = state[at.VALUE], int(state[at.ROWS])
    is_seen = value == value
    memory[at.LAST + (rows - 1) % at.RING] = rest
    if is_seen:
        add_to_profiles(state, memory, rest, unit)
    if rows == at.SET_UP:
        for j in range(at.DAY, at.FOUND):
            if CLOCK[j] >= at.FEWEST_SLOTS * unit:
                state[at.PERIOD + j] = CLOCK[j]
                state[at.USED + j] = min(np.rint(CLOCK[j] / unit), at.SLOTS[j])
    for lead in range(1, at.LEAD_COUNT):
        if (
            rows % at.STRIDES[lead] == 0
            and state[at.PENDING_COUNT + lead] < at.MOST_PENDING
            and state[at.COUNT] > 0
            and rows > 1
        ):
            _add_pending(state, due, memory, lead, unit)
    if rows == max(state[at.NEXT_SEARCH], FIRST_SEARCH):
        state[at.NEXT_SEARCH] = 2 * rows if rows < at.RING else rows + at.RING
        search_period(state, memory, unit, min(rows, at.RING))


@inline_jit
def _add_pending(state, due, memory, lead, unit):
    """Store the forecasts of a horizon until they are due."""
    entry = int(state[at.FIRST_PENDING + lead] + state[at.PENDING_COUNT + lead]) % at.MOST_PENDING
    start = at.PENDING + ((lead - 1) * at.MOST_PENDING + entry) * (at.BANK + 1)
    for e in range(at.BANK):
        state[at.REACH + e] = REACHES[lead, e]
    forecast_bank(state, memory, at.LEADS[lead] * unit)
    mean, _ = mix(state, lead, 0.0)
    for e in range(at.BANK):
        memory[start + e] = state[at.FORECASTS + e]
    for j in range(1, at.PROFILES):
        if state[at.SEASON + j] == at.ABSENT:
            memory[start + j * at.KINDS] = at.ABSENT
    memory[start + at.BANK] = mean
    due[at.DUE + lead * at.MOST_PENDING + entry] = state[at.ELAPSED] + at.LEADS[lead] * unit
    state[at.PENDING_COUNT + lead] += 1
