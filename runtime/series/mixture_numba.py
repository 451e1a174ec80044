"""A mixture of forecasts of one column by the network, exponential smoothing and simple experts.

At each horizon in LEADS, the experts are weighted by Bernstein online aggregation (Wintenberger 2017, "Optimal learning
with Bernstein online aggregation", theorem 3.3) with the linearised absolute loss. With forecasts f_k, weights w_k and
the mixture m = Σ w_k f_k, after the value y was observed,

    l_k = sign(m − y) (f_k − m) / s, within ± LARGEST            s: mean absolute error of the mixture so far
    R_k ← R_k + l_k (1 + η_k l_k),   S_k ← S_k + l_k²
    η_k = min(FASTEST, c √(log(1 / π_k) / (1 + S_k)))
    w_k ∝ π_k η_k exp(−η_k R_k)

The linearised loss bounds the regret against the best fixed *combination* of experts by O(√(T log K)), rather than only
against the best expert. Nothing is discounted, so there is no memory length to choose. An expert without a forecast is
treated as if its forecast were the mixture.

The quantiles are those of the network, shifted so that the median is m. If m and the network's median are the same
integer, integers are not shifted, and an interval of the network that contains zero keeps it. Their distances from m
are multiplied by the ratio of the mean absolute errors of mixture and network at that horizon. The largest of the last
errors one row ahead is stored, and is halved with each row, also with those until the horizon, unless it was far larger
than all earlier errors. If it exceeds the width of the 90 % interval, both sides of the interval are as wide as this
error.

The mean is that of a distribution with these quantiles, plus the part of its mean error at that horizon that chance
does not explain. Forecasts are not below zero if no value was. They are not above 1 or 100 if this was the largest
value and occurred twice. Quantiles of integers are integers. Values that never changed are forecast exactly.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit, kernel_jit
from rfa.runtime.series import (
    clock_numba,
    count_tail_numba,
    expert_scores_numba,
    experts_numba,
    mixture_layout,
    mixture_values_numba,
    smoothing_numba,
    update_numba,
)
from rfa.runtime.series import mixture_layout as at
from rfa.runtime.series.clock_numba import MOST_EMPTY
from rfa.runtime.series.count_tail_numba import add_count, count_tail
from rfa.runtime.series.expert_scores_numba import (
    KEPT_RECENT,
    add_experts,
    error_ratio,
    expert_weights,
    mean_error,
    next_horizon,
    score_experts,
)
from rfa.runtime.series.experts_numba import expert_forecasts
from rfa.runtime.series.mixture_values_numba import YOUNG, leave_out_first, set_season, without_oddity
from rfa.runtime.series.profile_numba import forget_profile, update_profile
from rfa.runtime.series.smoothing_numba import (
    LARGEST_LOG,
    add_members,
    forms_of,
    member_weights,
    score_members,
    smoothed_forecast,
    start,
    update_members,
    update_profiles,
)
from rfa.runtime.series.update_numba import MEDIAN, normal_score, write_half_widths

# Fractions of the probability on one side of the median around the ends of the calibrated intervals.
SHARES = np.array([0.2, 0.1, 0.0375, 0.0225, 0.015])
# Index of the 90 % interval among the calibrated intervals.
NINETY = 2
# Weight of the mean loss over all horizons in the losses of the members of exponential smoothing.
POOLED = 0.5
# Numbers of values after which a constant column, and a column of integers, are treated as such.
STANDING_FROM, WHOLE_FROM = 8, 8
# Number of values from which forecasts are mixed. Before, the forecast is a guess from the changes so far.
MIXED_FROM = 4
# Farthest horizon in cells, and farthest horizon of a pending forecast relative to the entry of LEADS near it.
FURTHEST, FARTHEST_SHARE = 1e6, 2.0
# Number of cells of the longest gap and of the row after it.
MOST_CELLS = MOST_EMPTY + 1
# Other modules whose functions the kernels of this module call.
SOURCES = (
    clock_numba, count_tail_numba, expert_scores_numba, experts_numba, mixture_layout, mixture_values_numba,
    smoothing_numba, update_numba, *mixture_values_numba.SOURCES,
)  # fmt: skip


@inline_jit
def nearest_lead(cells):
    """Return the index of the nearest entry of LEADS, in log time."""
    index = 0
    while index + 1 < at.LEAD_COUNT and cells * cells > at.LEADS[index] * at.LEADS[index + 1]:
        index += 1
    return index


@inline_jit
def _observe_cell(numbers, memory, value, unit, moment, work):
    """Add a cell, whose value is NaN if it is missing. Before the first value, this does nothing."""
    is_seen = value == value
    if numbers[at.CELLS] == 0:
        if not is_seen:
            return
        start(numbers)
        forget_profile(numbers)
        numbers[at.FIRST] = numbers[at.LEAST] = numbers[at.LARGEST] = value
        numbers[at.LEAST_OF_ALL] = numbers[at.LARGEST_OF_ALL] = value
        numbers[at.NEXT_SEARCH] = 2.0
    cell, seen, raw = np.int64(numbers[at.CELLS]) + 1, np.int64(numbers[at.SEEN]), value
    numbers[at.CELLS] = cell
    if is_seen:
        work.tail[0] = count_tail(numbers, value)
        add_count(numbers, value)
        value = without_oddity(numbers, value)
        is_seen = value == value
    log_first = np.log(numbers[at.FIRST]) if numbers[at.IS_POSITIVE] > 0 else 0.0
    log_value = np.log(value) - log_first if is_seen and numbers[at.IS_POSITIVE] > 0 else np.nan
    score_members(numbers, memory, cell, value, log_value)
    score_experts(numbers, memory, cell, value)
    if not is_seen:
        member_weights(numbers, 0, 0.0, work.weights[0])
    for form in range(forms_of(numbers)):
        x = log_value if form else value
        filled = x if is_seen else smoothed_forecast(numbers, memory, work.weights[0], form, 1.0, cell)
        if form == 0:
            numbers[at.VALUES + cell % at.RING] = filled
        else:
            memory[at.LOGS + cell % at.RING] = np.float32(min(filled, LARGEST_LOG))
        update_members(numbers, memory, form, cell, x, seen)
        update_profiles(numbers, memory, form, cell, 1)
        if is_seen and seen > 0:
            last = np.log(numbers[at.LATEST]) - log_first if form else numbers[at.LATEST]
            numbers[at.CHANGES + form] += 1
            numbers[at.CHANGE + form] += (abs(x - last) - numbers[at.CHANGE + form]) / numbers[at.CHANGES + form]
    if is_seen:
        numbers[at.SEEN], numbers[at.LATEST] = seen + 1, value
        numbers[at.LEAST], numbers[at.LARGEST] = min(numbers[at.LEAST], value), max(numbers[at.LARGEST], value)
    if raw == raw:
        update_profile(numbers, memory, moment, unit, raw, not is_seen)
    if is_seen and numbers[at.SEEN] == YOUNG:
        leave_out_first(numbers, memory, work.scratch)
    if cell == 2 or cell >= numbers[at.NEXT_SEARCH]:
        set_season(numbers, memory, cell, unit, work.scratch)


@inline_jit
def cells_of(lead, unit):
    """Return the number of cells of a horizon, which is at least one."""
    return min(max(lead / unit if unit > 0 else lead, 1.0), FURTHEST)


@inline_jit
def _repair(numbers, cells):
    """Repair numbers, which may come from arbitrary bytes. Afterwards, no loop is longer than a gap, and all indices
    are valid."""
    if not cells - MOST_CELLS <= numbers[at.CELLS] <= cells:
        start(numbers)
        forget_profile(numbers)
        numbers[at.CELLS] = max(cells - MOST_CELLS, 0)
    numbers[at.SEASON] = min(max(numbers[at.SEASON], 1.0), at.LONGEST)


@kernel_jit(*SOURCES)
def observe_column(numbers, memory, cells, value, unit, moment, work):
    """Add cells to a column until their number is `cells`. The last cell has the value, and those before it are empty.

    `moment` is the local time of the value.
    """
    work.tail[0] = np.nan
    _repair(numbers, cells)
    while numbers[at.CELLS] < cells:
        is_last = numbers[at.CELLS] >= cells - 1
        _observe_cell(numbers, memory, value if is_last else np.nan, unit, moment, work)
        if numbers[at.CELLS] == 0:
            return


@inline_jit
def _mixed(weights, forecasts):
    """Return the mixture of the forecasts that are not missing."""
    mixed = total = 0.0
    for k in range(at.EXPERT_COUNT):
        if forecasts[k] == forecasts[k]:
            mixed += weights[k] * forecasts[k]
            total += weights[k]
    return mixed / total


@inline_jit
def _mix_experts(numbers, lead, cells, weights, half_widths, forecasts):
    """Mix the experts' forecasts, and write the median and the mean of the mixture after them.

    Args:
        lead, cells: Index of the horizon in LEADS, and the horizon in cells.
        half_widths: Half-widths of the network's intervals, `[2 * levels]`.

    Returns:
        The median, and the ratios of the widths of the mixture's and the network's distributions below and above it.
    """
    mixed, levels = _mixed(weights, forecasts), len(SHARES)
    ratio = error_ratio(numbers, lead)
    wide = half_widths[NINETY] + half_widths[levels + NINETY]
    reach = max(numbers[at.SURPRISE], numbers[at.RECENT] * KEPT_RECENT ** (cells - 1))
    reach = reach if reach > ratio * wide else 0.0
    below = max(ratio, reach / half_widths[NINETY])
    above = max(ratio, reach / half_widths[levels + NINETY])
    forecasts[at.MIXED] = forecasts[at.MIXED_MEAN] = mixed
    for k in range(levels):
        forecasts[at.MIXED_MEAN] += SHARES[k] * (above * half_widths[levels + k] - below * half_widths[k])
    return mixed, below, above


@inline_jit
def _is_integer(numbers):
    return numbers[at.IS_WHOLE] > 0 and numbers[at.SEEN] >= WHOLE_FROM


@inline_jit
def _median_of(numbers, mixed, network):
    """Return the median of the mixture's distribution. It is that of the network if both are the same integer."""
    return network if _is_integer(numbers) and np.rint(mixed) == np.rint(network) else mixed


@kernel_jit(*SOURCES)
def score_value(numbers, memory, cells, moment, value, work):
    """Return z² of a value under the mixture's forecast, before the value is observed. Return NaN if there is no
    forecast.

    Scores do not depend on the requested horizons. Weights and widths are those of one cell ahead, also after a gap.

    Args:
        cells, moment: Cell of the value, and its local time.
        work: Buffers whose `prior` contains the network's quantiles for the value.
    """
    _repair(numbers, cells)
    ahead, quantiles, forecasts = np.float64(cells - numbers[at.CELLS]), work.prior, work.prior_forecasts
    if not (numbers[at.SEEN] >= MIXED_FROM and ahead >= 1 and value == value):
        return np.nan
    member_weights(numbers, 0, 0.0, work.weights[0])
    expert_weights(numbers, 0, work.expert_weights[0])
    middle = quantiles[MEDIAN]
    expert_forecasts(numbers, memory, work.weights[0], ahead, moment, middle, forecasts)
    write_half_widths(quantiles, work.half_widths)
    mixed, _, _ = _mix_experts(numbers, 0, 1.0, work.expert_weights[0], work.half_widths, forecasts)
    if numbers[at.LEAST_OF_ALL] >= 0:
        forecasts[at.MIXED] = mixed = max(mixed, 0.0)
    mixed = _median_of(numbers, mixed, middle)
    if ahead == 1:
        add_experts(numbers, memory, 0, 1, forecasts)
    if _is_integer(numbers) and np.rint(mixed) == value:
        return 0.0  # the next integer would be further away, however sure the forecast is
    # Exclude the width due to the last large error, because it would hide a second one.
    z = normal_score(middle + (value - mixed) / error_ratio(numbers, 0), quantiles, 0.0, 1.0)
    return z * z


@kernel_jit(*SOURCES)
def mix_column(numbers, memory, leads, moments, unit, posterior, a, work):
    """Replace the network's forecasts of a column in `posterior` by those of the mixture.

    `moments` contains the local times of the row and at the horizons.
    """
    for lead in range(at.LEAD_COUNT):
        work.has_weights[lead] = False
    if numbers[at.SEEN] < MIXED_FROM:
        return
    for h in range(len(leads)):
        cells = cells_of(leads[h], unit)
        lead = nearest_lead(cells)
        work.nearest[h] = lead if cells <= FARTHEST_SHARE * at.LEADS[lead] else -1
        if not work.has_weights[lead]:
            member_weights(numbers, lead, POOLED, work.weights[lead])
            expert_weights(numbers, lead, work.expert_weights[lead])
            work.has_weights[lead] = True
        expert_forecasts(
            numbers, memory, work.weights[lead], cells, moments[1 + h], posterior.forecast_mean[h, a],
            work.forecasts[h, a],
        )  # fmt: skip
        half_widths, levels = posterior.half_widths[h, a], len(SHARES)
        mixed, below, above = _mix_experts(
            numbers, lead, cells, work.expert_weights[lead], half_widths, work.forecasts[h, a]
        )
        network = posterior.forecast_mean[h, a]
        mixed = _median_of(numbers, mixed, network)
        posterior.forecast_mean[h, a] = mixed
        holds_zero = _is_integer(numbers) and numbers[at.LEAST_OF_ALL] >= 0
        # Do not multiply by the square, which may be infinite.
        posterior.forecast_covariance[h, a, a] *= 0.5 * (below + above)
        posterior.forecast_covariance[h, a, a] *= 0.5 * (below + above)
        for k in range(levels):
            contains_zero = holds_zero and np.rint(network - half_widths[k]) <= 0
            half_widths[k] *= below
            half_widths[levels + k] *= above
            if contains_zero:
                half_widths[k] = max(half_widths[k], mixed)


@kernel_jit(*SOURCES)
def write_weights(numbers, leads, unit, weights, a, work):
    """Write the weights of the experts at each horizon, `[H, P, EXPERT_COUNT]`, after a call of `mix_column`."""
    for h in range(len(leads)):
        lead, forecasts, total = nearest_lead(cells_of(leads[h], unit)), work.forecasts[h, a], 0.0
        for k in range(at.EXPERT_COUNT):
            is_used = forecasts[k] == forecasts[k]
            weights[h, a, k] = work.expert_weights[lead, k] if numbers[at.SEEN] >= MIXED_FROM and is_used else 0.0
            total += weights[h, a, k]
        for k in range(at.EXPERT_COUNT):
            first = 1.0 if k == at.NETWORK else 0.0
            weights[h, a, k] = weights[h, a, k] / total if total > 0 else first


@kernel_jit(*SOURCES)
def remember_forecasts(numbers, memory, leads, unit, a, work):
    """Store the forecasts of `mix_column` until their values are observed, for each of LEADS except the first.

    The requested horizons near it take turns. At a horizon of whole seasons alone, the last value would look as good as
    the value a season ago. `score_value` computes the forecasts of one cell ahead again.
    """
    if numbers[at.SEEN] < MIXED_FROM:
        return
    log_latest = np.log(numbers[at.LATEST]) - np.log(numbers[at.FIRST]) if numbers[at.IS_POSITIVE] > 0 else 0.0
    add_members(numbers, memory, 0, 1, numbers[at.LATEST], log_latest)
    for lead in range(1, at.LEAD_COUNT):
        h = next_horizon(leads, work.nearest, lead, np.int64(numbers[at.SCORED + lead]))
        if h < 0:
            continue
        cells = np.int64(np.rint(cells_of(leads[h], unit)))
        add_experts(numbers, memory, lead, cells, work.forecasts[h, a])
        if lead < at.MEMBER_LEADS:
            add_members(numbers, memory, lead, cells, numbers[at.LATEST], log_latest)


@inline_jit
def _upper_bound(numbers):
    """If the values are fractions or percentages that have reached 1 or 100 more than once, return this number as the
    largest possible value. Otherwise, return infinity."""
    largest = numbers[at.LARGEST_OF_ALL]
    is_share = numbers[at.LEAST_OF_ALL] >= 0 and (largest == 1 or largest == 100)
    return largest if is_share and numbers[at.TOUCHES] >= 2 else np.inf


@inline_jit
def _quantile(x, low, high, is_whole):
    x = min(max(np.rint(x) if is_whole else x, low), high)
    return abs(x) if x == 0 else x  # avoid -0.0


@kernel_jit(*SOURCES)
def finish_column(numbers, leads, unit, posterior, out, row, a, work):
    """Limit the outputs of an accepted row to possible values of the column, and convert medians to means."""
    if numbers[at.SEEN] == 0:
        return
    least, largest = numbers[at.LEAST_OF_ALL], numbers[at.LARGEST_OF_ALL]
    is_standing = numbers[at.SEEN] >= STANDING_FROM and least == largest
    low = least if is_standing else (0.0 if least >= 0 else -np.inf)
    high = largest if is_standing else _upper_bound(numbers)
    is_whole = _is_integer(numbers)
    out.mean[row, a] = min(max(out.mean[row, a], low), high)
    for level in range(out.interval.shape[1]):
        for side in range(2):
            out.interval[row, level, a, side] = min(max(out.interval[row, level, a, side], low), high)
    if is_standing:
        out.std[row, a] = 0.0
    usual = mean_error(numbers, 0, 0.0)
    for h in range(len(leads)):
        lead = nearest_lead(cells_of(leads[h], unit))
        mean = out.moments[row, h, 0, a]
        if numbers[at.SEEN] >= MIXED_FROM:
            mean = work.forecasts[h, a, at.MIXED_MEAN] + mean_error(numbers, lead, usual)
            median, half_widths = out.moments[row, h, 0, a], posterior.half_widths[h, a]
            mean = min(max(mean, median - half_widths[len(SHARES) - 1]), median + half_widths[2 * len(SHARES) - 1])
        out.moments[row, h, 0, a] = min(max(mean, low), high)
        out.moments[row, h, 2, a] = _quantile(out.moments[row, h, 2, a], low, high, is_whole)
        if is_standing:
            out.moments[row, h, 1, a] = 0.0
        for level in range(out.bands.shape[2]):
            lower, upper = out.bands[row, h, level, a, 0], out.bands[row, h, level, a, 1]
            if is_whole:
                # The quantiles of the network lie between those of the integers, so the nearest integer is closer than
                # the next one inside, which would leave out the largest demand that is still likely.
                lower, upper = np.rint(lower), np.rint(upper)
            out.bands[row, h, level, a, 0] = _quantile(lower, low, high, is_whole)
            out.bands[row, h, level, a, 1] = _quantile(upper, low, high, is_whole)
