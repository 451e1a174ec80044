"""Exponential smoothing of one column in constant memory, with all models of a small grid at once.

Each model is a damped linear trend (Gardner and McKenzie 1985) of the deseasonalised values, with level ℓ, trend b and
parameters (α, β, φ).

    e = y − p − (ℓ + φ b)        p: seasonal profile at this cell; 0 in a model without a season
    ℓ ← ℓ + φ b + α e            α at least 1 / (n + 1), so that the first values set the level
    b ← φ b + α β e
    forecast at horizon h = ℓ + (φ + … + φ^h) b + p at cell t + h

The profile is a running classical decomposition: the value half a season ago minus the mean of the season around it,
averaged over cycles with a weight of at least γ. It does not depend on the model, so all models with the same γ use one
profile. At each horizon, the weight of a model is exp(−rate × loss). The loss is its discounted absolute error relative
to the mean absolute change, plus half of its mean over the horizons. Each model exists in two forms: form 0 smooths the
values, and form 1 their logarithms, so that season and trend are factors.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.series import mixture_layout as at

ALPHA, BETA, DAMPING = at.GRID.T.copy()
DISCOUNT, RATE, LARGEST_LOSS = 0.99, 0.5, 20.0
# Limit on an error as a multiple of the mean change, and number of values from which it applies.
FURTHEST_OFF, OFF_FROM = 20.0, 12
# Largest logarithm of a forecast.
LARGEST_LOG = 700.0
_FIRST = at.FIRST_MEMBER_SLOT


@inline_jit
def start(numbers):
    """Reset the mixture of a column to its initial state, in place."""
    for k in range(len(numbers)):
        numbers[k] = 0.0
    numbers[at.SEASON] = 1.0
    numbers[at.IS_POSITIVE] = numbers[at.IS_WHOLE] = 1.0


@inline_jit
def _value_in(numbers, memory, form, cell):
    """Return the value at one of the last cells, or its logarithm in form 1."""
    if form == 0:
        return numbers[at.VALUES + cell % at.RING]
    return np.float64(memory[at.LOGS + cell % at.RING])


@inline_jit
def profile_at(memory, form, profile, season, cell):
    """Return the value of a seasonal profile at a cell. The first profile is 0 everywhere."""
    if profile == 0 or season < 2:
        return 0.0
    start = at.PROFILE + (form * (at.PROFILES - 1) + profile - 1) * at.LONGEST
    return np.float64(memory[start + cell % season])


@inline_jit
def forms_of(numbers):
    """Return the number of forms. It is 2 if all values are positive, so that logarithms exist, and 1 otherwise."""
    return 2 if numbers[at.IS_POSITIVE] > 0 else 1


@inline_jit
def update_members(numbers, memory, form, cell, value, seen):
    """Update the models of a form with a value, which is NaN if it is missing. `seen` is the number of values before
    it."""
    is_seen, season = value == value, np.int64(numbers[at.SEASON])
    first = 1.0 / (seen + 1)
    bound = np.inf
    if seen >= OFF_FROM and numbers[at.CHANGE + form] > 0:
        bound = FURTHEST_OFF * numbers[at.CHANGE + form]
    for s in range(at.PROFILES):
        rest = value - profile_at(memory, form, s, season, cell)
        for g in range(at.SIZE):
            e = form * at.PER_FORM + s * at.SIZE + g
            before = numbers[at.LEVEL + e] + DAMPING[g] * numbers[at.TREND + e]
            error = min(max(rest - before, -bound), bound) if is_seen else 0.0
            alpha = max(ALPHA[g], first)
            beta = max(BETA[g], first) if BETA[g] > 0 and seen > 0 else 0.0
            numbers[at.LEVEL + e] = before + alpha * error
            numbers[at.TREND + e] = DAMPING[g] * numbers[at.TREND + e] + alpha * beta * error


@inline_jit
def update_profiles(numbers, memory, form, cell, begin):
    """Update the seasonal profiles with the value half a season before `cell`. Values are available from the cell
    `begin` on."""
    season = np.int64(numbers[at.SEASON])
    if season < 2 or cell - begin < season:
        return
    centre, total = cell - season // 2, 0.0
    for i in range(season):
        total += _value_in(numbers, memory, form, cell - i)
    if season % 2 == 0:  # half of each end, so that the window is centred
        total += 0.5 * (_value_in(numbers, memory, form, cell - season) - _value_in(numbers, memory, form, cell))
    deviation = _value_in(numbers, memory, form, centre) - total / season
    cycle = (cell - begin) // season  # number of values of this phase, including this one
    for s in range(1, at.PROFILES):
        entry = at.PROFILE + (form * (at.PROFILES - 1) + s - 1) * at.LONGEST + centre % season
        before = np.float64(memory[entry])
        memory[entry] = np.float32(before + max(at.SEASON_WEIGHTS[s], 1.0 / cycle) * (deviation - before))


@inline_jit
def replay(numbers, memory):
    """Compute the models and profiles again from the last values. This is done after a new season has been found."""
    cells = np.int64(numbers[at.CELLS])
    begin = cells - at.RING + 1 if cells > at.RING else 1
    for k in range(at.PROFILE, at.EXPERT_FORECAST):
        memory[k] = np.float32(0.0)
    for e in range(at.MEMBERS):
        numbers[at.LEVEL + e] = numbers[at.TREND + e] = 0.0
        for lead in range(at.MEMBER_LEADS):
            form, rest = e // at.PER_FORM, e % at.PER_FORM
            numbers[at.LOSS + lead * at.MEMBERS + e] = numbers[
                at.LOSS + lead * at.MEMBERS + form * at.PER_FORM + rest % at.SIZE
            ]
    for slot in range(at.MEMBER_SLOTS):
        numbers[at.MEMBER_DUE + slot] = 0.0
    for form in range(forms_of(numbers)):
        for cell in range(begin, cells + 1):
            update_members(numbers, memory, form, cell, _value_in(numbers, memory, form, cell), cell - begin)
            update_profiles(numbers, memory, form, cell, begin)


@inline_jit
def member_weights(numbers, lead, pooled, out):
    """Compute the weights of all models at a horizon, `[MEMBERS]`. For each form (values or logarithms), their sum is
    about one.

    Args:
        pooled: Weight of the mean loss over all horizons. 0 if the result must not depend on the requested horizons.
    """
    lead = min(lead, at.MEMBER_LEADS - 1)
    for form in range(at.FORMS):
        least, first = np.inf, form * at.PER_FORM
        for e in range(first, first + at.PER_FORM):
            total = 0.0
            for other in range(at.MEMBER_LEADS):
                total += numbers[at.LOSS + other * at.MEMBERS + e]
            out[e] = numbers[at.LOSS + lead * at.MEMBERS + e] + pooled * total / at.MEMBER_LEADS
            least = min(least, out[e])
        for e in range(first, first + at.PER_FORM):
            out[e] = np.exp(-RATE * (out[e] - least)) + 1e-9


@inline_jit
def has_arrived(numbers, due, cell):
    """Return whether the pending forecast at index `due` is for the current cell. If its cell is this one or an earlier
    one, it is no longer pending afterwards."""
    arrives = numbers[due]
    if arrives == 0 or arrives > cell:
        return False
    numbers[due] = 0.0
    return arrives == cell


@inline_jit
def free_slot(numbers, due, count, cells):
    """Reserve a slot for a forecast that is `cells` ahead.

    Args:
        due: Index of the first of the slots.
        count: Number of slots.

    Returns:
        The slot, or -1 if forecasts made at this cell are not scored. The scored ones are evenly spaced.
    """
    now = np.int64(numbers[at.CELLS])
    stride = -(-cells // count)
    slot = (now // stride) % count
    if now % stride != 0 or numbers[due + slot] > now:
        return -1
    numbers[due + slot] = now + cells
    return slot


@inline_jit
def score_members(numbers, memory, cell, value, log_value):
    """Add the errors of the models' forecasts for the current cell. If its value is missing, the forecasts are
    dropped."""
    for lead in range(at.MEMBER_LEADS):
        for k in range(at.MEMBER_PENDING[lead]):
            slot = _FIRST[lead] + k
            if not has_arrived(numbers, at.MEMBER_DUE + slot, cell) or value != value:
                continue
            for form in range(forms_of(numbers)):
                change = numbers[at.CHANGE + form]
                scale = change if change > 0 else 1.0
                off = (log_value if form else value) - numbers[at.MEMBER_BASE + form * at.MEMBER_SLOTS + slot]
                first = form * at.PER_FORM
                for e in range(first, first + at.PER_FORM):
                    error = abs(np.float64(memory[at.MEMBER_FORECAST + slot * at.MEMBERS + e]) - off) / scale
                    loss = at.LOSS + lead * at.MEMBERS + e
                    numbers[loss] = numbers[loss] * DISCOUNT + min(error, LARGEST_LOSS)


@inline_jit
def add_members(numbers, memory, lead, cells, base, log_base):
    """Store the models' forecasts that are `cells` ahead until their value is observed."""
    free = free_slot(numbers, at.MEMBER_DUE + _FIRST[lead], at.MEMBER_PENDING[lead], cells)
    if free < 0:
        return
    slot, now, season = _FIRST[lead] + free, np.int64(numbers[at.CELLS]), np.int64(numbers[at.SEASON])
    for form in range(forms_of(numbers)):
        origin = log_base if form else base
        numbers[at.MEMBER_BASE + form * at.MEMBER_SLOTS + slot] = origin
        for s in range(at.PROFILES):
            shift = profile_at(memory, form, s, season, now + cells) - origin
            for g in range(at.SIZE):
                e = form * at.PER_FORM + s * at.SIZE + g
                path = numbers[at.LEVEL + e] + _reach(DAMPING[g], cells) * numbers[at.TREND + e] + shift
                memory[at.MEMBER_FORECAST + slot * at.MEMBERS + e] = np.float32(path)


@inline_jit
def _reach(damping, lead):
    """Return the sum φ + … + φ^h for the damping factor φ and a horizon of h cells."""
    return lead if damping == 1.0 else damping * (1 - damping**lead) / (1 - damping)


@inline_jit
def smoothed_forecast(numbers, memory, weights, form, lead, cell):
    """Return the weighted mean of the forecasts of all exponential smoothing models for `cell`, which is `lead` cells
    ahead (may be fractional). `form` selects the models of the values (0) or of their logarithms (1)."""
    season, damped, total, mean = np.int64(numbers[at.SEASON]), _reach(at.DAMPED, lead), 0.0, 0.0
    for s in range(at.PROFILES):
        shift = profile_at(memory, form, s, season, cell)
        for g in range(at.SIZE):
            e = form * at.PER_FORM + s * at.SIZE + g
            reach = lead if DAMPING[g] == 1.0 else damped
            mean += weights[e] * (numbers[at.LEVEL + e] + reach * numbers[at.TREND + e] + shift)
            total += weights[e]
    return mean / total
