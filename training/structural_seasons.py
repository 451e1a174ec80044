"""Periods that a series may have: peaks of its periodogram that stand out of the spectrum around them.

The series is differenced (a level that wanders would hide everything at low frequencies), clipped, and tapered. A peak
counts where its power is above `TIMES_BACKGROUND` times the local background: the power of one bin of noise is
exponential, so noise of 10⁴ bins passes with probability 10⁴ e^-18, one in 6,000. Fundamentals are told from their
harmonics. These are candidates only: validation likelihood decides.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.signal import find_peaks

TIMES_BACKGROUND = 18.0
# Bins on each side that make a peak's background.
BACKGROUND_BINS = 25
# A frequency within a bin of so many times another is its harmonic; of so many times a weaker one, its fundamental.
HARMONICS = 12
TAPER_BINS = 2.0
SUBHARMONICS = 4
MAX_PERIODS = 3
# Cycles that the data must have of a period.
MIN_CYCLES = 3
# A series with more empty steps than values has no usable grid.
MAX_EMPTY = 0.5
MIN_ROWS = 32
CLIP = 5.0


def candidate_periods(times: np.ndarray, values: np.ndarray) -> list[float]:
    """Periods in median steps, strongest first, at most `MAX_PERIODS`; none where the times have no regular grid.

    Args:
        times: `[N]` non-decreasing. values: `[N]`, NaN where missing.
    """
    series = _on_grid(times, values)
    if series is None:
        return []
    length = len(series)
    power = _periodogram(series)
    # Lower frequencies than this have too few cycles, and a background of themselves.
    first = MIN_CYCLES
    background = np.array(
        [np.median(power[max(first, i - BACKGROUND_BINS) : i + BACKGROUND_BINS + 1]) for i in range(len(power))]
    )
    ratio = power / np.maximum(background / math.log(2), 1e-300)
    ratio[:first] = 0
    peaks, _ = find_peaks(ratio, height=TIMES_BACKGROUND)
    found: list[float] = []
    for peak in sorted(peaks, key=lambda i: -ratio[i]):
        bin_ = _refine(power, int(peak))
        if any(_is_multiple(bin_, other, HARMONICS) for other in found):
            continue
        found = [other for other in found if not _is_multiple(other, bin_, SUBHARMONICS)]
        found.append(bin_)
    return _snap([length / bin_ for bin_ in found[:MAX_PERIODS]], length)


def _on_grid(times: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """Values at every median step, gaps filled by straight lines; None without a grid."""
    seen = np.isfinite(values)
    lags = np.diff(times)
    if seen.sum() < MIN_ROWS or not (lags > 0).any():
        return None
    step = float(np.median(lags[lags > 0]))
    place = (times[seen] - times[0]) / step
    size = round((times[-1] - times[0]) / step) + 1
    off_grid = np.abs(place - np.round(place)) > 0.05
    if off_grid.mean() > 0.01 or size > len(times) / (1 - MAX_EMPTY):
        return None
    return np.interp(np.arange(size), place, values[seen])


def _periodogram(series: np.ndarray) -> np.ndarray:
    change = np.diff(series)
    change = change - np.median(change)
    limit = CLIP * 1.4826 * np.median(np.abs(change))
    if limit > 0:
        change = np.clip(change, -limit, limit)
    # Padded to the length of the series, so that a bin is a cycle of it.
    return np.abs(np.fft.rfft(change * np.hanning(len(change)), len(series))) ** 2


def _refine(power: np.ndarray, peak: int) -> float:
    """The peak's place between bins, by a parabola through the log powers."""
    if not 0 < peak < len(power) - 1:
        return float(peak)
    low, middle, high = np.log(np.maximum(power[peak - 1 : peak + 2], 1e-300))
    curve = low - 2 * middle + high
    return peak + (0.5 * (low - high) / curve if curve < 0 else 0.0)


def _is_multiple(bin_: float, base: float, most: int) -> bool:
    """Is `bin_` about base, 2 base, … `most` base? The taper spreads a line over two bins on each side, and the base is
    known to about half a bin."""
    times = round(bin_ / base)
    return 1 <= times <= most and abs(bin_ - times * base) <= TAPER_BINS + 0.5 * times


def _snap(periods: list[float], length: int) -> list[float]:
    """A whole number of steps, or a multiple of a shorter period, where the resolution allows it."""
    kept: dict[float, float] = {}
    for period in sorted(periods):
        resolution = 0.5 * period**2 / length
        nearest = [float(round(period))] + [base * round(period / base) for base in kept.values()]
        close = [value for value in nearest if abs(value - period) <= resolution]
        kept[period] = close[0] if close else period
    return [kept[period] for period in periods]


__all__ = ["candidate_periods"]
