"""Conformal intervals of recorded forecasts that adapt to each series, as in the service.

Source: adaptive conformal inference. The constants and the factor are those of `rfa.runtime.uncertainty.adaptive`. On a
regular clock every forecast is scored:

    half width = multiplier · ((1 + v) / (1 - v))³ · deviation,   v ← v + γ (missed - (1 - level))

The interval of a row that was forecast `lead` rows before only uses data up to that row's origin.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rfa.export.filter_calibration import LEVELS
from rfa.runtime.uncertainty.adaptive import EMPTY, GAMMA, INFINITE, MAX_PENDING, WIDEST

Array = np.ndarray
_MISS_RATES = 1 - np.array(LEVELS)


def gamma_of(lead: int) -> float:
    """Return γ of a forecast this many rows ahead."""
    return GAMMA if lead == 1 else min(GAMMA, 1 / (4 * lead))


def adaptive_widths(
    y: Array,
    mean: Mapping[int, Array],
    deviation: Mapping[int, Array],
    multipliers: Mapping[int, Array],
    start: int,
) -> dict[int, Array]:
    """Return half-widths at every level, `[N, S, levels]` by horizon, NaN before row `start`.

    Args:
        y: `[N, S]`, observed at every time.
        mean, deviation: `[N, S]` by horizon.
        multipliers: Initial calibration `[S, levels]` by horizon.
        start: First row used for adaptation.
    """
    if max(mean) > MAX_PENDING:
        raise ValueError(f"leads are at most {MAX_PENDING} rows, got {max(mean)}")
    return {lead: _widths(np.abs(y - mean[lead]), deviation[lead], multipliers[lead], lead, start) for lead in mean}


def _widths(error: Array, deviation: Array, multipliers: Array, lead: int, start: int) -> Array:
    """Return those of one horizon, from the absolute errors `[N, S]` of its forecasts."""
    rows = len(error)
    half, sent = (np.full((rows + lead, *multipliers.shape), np.nan) for _ in range(2))
    v = np.zeros(multipliers.shape, np.float32)
    first = max(0, start - lead)
    for row in range(first, rows):
        if row >= first + lead:  # a forecast was made for it
            missed = ((error[row][:, None] > half[row]) | (sent[row] <= EMPTY)) & (sent[row] < INFINITE)
            v = (v + gamma_of(lead) * (missed - _MISS_RATES)).astype(np.float32)
        bounded = np.clip(v.astype(np.float64), EMPTY, WIDEST)
        factor = ((1 + bounded) / (1 - bounded)) ** 3
        due = row + lead
        sent[due] = v
        if due < rows:
            half[due] = np.maximum.accumulate(multipliers * factor, axis=-1) * deviation[due][:, None]
    half[:start] = np.nan
    return half[:rows]
