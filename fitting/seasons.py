"""Find candidate periods of a series, at which its periodogram is far above the local background.

The series is differenced, because a varying level would otherwise dominate the low frequencies, and then clipped and
tapered. A peak is significant if its power exceeds `TIMES_BACKGROUND` times the local background. The power of white
noise in a bin has an exponential distribution. A periodogram of noise with 10⁴ bins therefore has a significant peak
with probability 10⁴ e^-18, which is about 1 / 6,000. Harmonics are assigned to their fundamentals. The validation
likelihood chooses among the candidates.
"""

from __future__ import annotations

import math

import numpy as np

TIMES_BACKGROUND = 18.0
# Bins on each side of a peak that form its background.
BACKGROUND_BINS = 25
# Highest multiple of a frequency that is treated as its harmonic.
HARMONICS = 12
TAPER_BINS = 2.0
MAX_PERIODS = 3
# Minimum number of cycles of a period within the data.
MIN_CYCLES = 3
# The periodogram is smoothed over 1 / SMOOTHED_SHARE of the length to find a cycle.
SMOOTHED_SHARE = 200
# A series does not have a usable grid if more than this fraction of its steps is empty.
MAX_EMPTY = 0.5
MIN_ROWS = 32
CLIP = 5.0


def candidate_periods(times: np.ndarray, values: np.ndarray) -> list[float]:
    """Return at most `MAX_PERIODS` candidate periods in median time steps. The periods with the most evidence come
    first. Return an empty list if the times are not on a regular grid.

    Args:
        times: Times `[N]`, non-decreasing.
        values: Values `[N]`. Missing values are NaN.
    """
    series = _on_grid(times, values)
    if series is None:
        return []
    length = len(series)
    power = _periodogram(series)
    # Lower frequencies have too few cycles and would be part of their own background.
    first = MIN_CYCLES
    padded = np.pad(power[first:], BACKGROUND_BINS, constant_values=np.nan)
    background = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, 2 * BACKGROUND_BINS + 1), axis=1)
    background = np.concatenate((np.ones(first), background))
    ratio = power / np.maximum(background / math.log(2), 1e-300)
    ratio[:first] = 0
    is_peak = (ratio[1:-1] >= TIMES_BACKGROUND) & (ratio[1:-1] > ratio[:-2]) & (ratio[1:-1] > ratio[2:])
    peaks = 1 + np.flatnonzero(is_peak)
    return _snap([length / base for base in _fundamentals([_refine(power, int(peak)) for peak in peaks])], length)


def _fundamentals(peaks: list[float]) -> list[float]:
    """Return the bins of the periods that explain the peaks. The periods with the most evidence come first.

    A fundamental is a peak or a divisor of a peak, because a daily pattern may only have its 5th and 7th harmonics.
    Each peak that it explains adds the negative log probability of a chance match. Nearly every bin is a multiple of a
    low frequency, which therefore needs more peaks.
    """
    found: list[float] = []
    left = list(peaks)
    while left and len(found) < MAX_PERIODS:
        bases = {peak / k: k for peak in left for k in range(1, HARMONICS + 1) if peak / k >= MIN_CYCLES}
        if not bases:  # a peak between bins may have fewer cycles than its bin
            break
        base = max(bases, key=lambda base: _support(left, base, bases[base]))
        order = bases[base]
        own = {peak: round(peak / base) for peak in left if _misfit(peak, base, order) < 0}
        # The side lobes of a line of varying strength are wider than those of the taper.
        left = [peak for peak in left if _misfit(peak, base, order) >= TAPER_BINS]
        # Side lobes do not locate the line, so only the peak nearest to each harmonic is used.
        nearest = {times: min((q for q in own if own[q] == times), key=lambda q: abs(q - times * base))
                   for times in own.values()}  # fmt: skip
        found.append(float(sum(m * q for m, q in nearest.items()) / sum(m * m for m in nearest)))
    return found


def _misfit(peak: float, base: float, order: int) -> float:
    """Return the distance of a peak from a multiple of `base`, minus the tolerance.

    A taper spreads a line over two bins on each side. A base that is 1 / `order` of a peak is uncertain by half a bin
    divided by `order`. The result is infinite if the nearest multiple is not in 1 … HARMONICS.
    """
    times = round(peak / base)
    return abs(peak - times * base) - _tolerance(times, order) if 1 <= times <= HARMONICS else math.inf


def _tolerance(times: int, order: int) -> float:
    return TAPER_BINS + 0.5 * times / order


def _support(peaks: list[float], base: float, order: int) -> float:
    """Return the evidence for a period in nats. If several peaks match one harmonic, only one of them counts."""
    explained = {round(peak / base) for peak in peaks if _misfit(peak, base, order) < 0}
    return sum(math.log(max(base / (2 * _tolerance(times, order)), 1.0)) for times in explained)


def strongest_rate(places: np.ndarray, innovations: np.ndarray) -> float | None:
    """Return the angular frequency per step at which the innovations have the most power. Return None if the times are
    not on a regular grid or there are too few.

    The periodogram is smoothed, because a damped cycle spreads over several bins.

    Args:
        places: Times in steps from 0, `[N]`.
        innovations: Standardised innovations `[N]`. Missing ones are 0.
    """
    cells = np.rint(places).astype(np.int64)
    size = int(cells[-1]) + 1
    if size > len(places) / (1 - MAX_EMPTY):
        return None
    series = np.zeros(size)
    np.add.at(series, cells, innovations)
    power = np.abs(np.fft.rfft(series * np.hanning(size))) ** 2
    width = max(3, size // SMOOTHED_SHARE)
    smooth = np.convolve(power, np.ones(width) / width, mode="same")
    # The lowest frequencies belong to the level. At the ends, the window of the convolution is incomplete.
    first, last = max(MIN_CYCLES, width), len(power) - width
    if last <= first:
        return None
    return float(2 * math.pi * (first + np.argmax(smooth[first:last])) / size)


def _on_grid(times: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """Return the values at every median step, with gaps interpolated linearly. Return None if the times are not on a
    regular grid."""
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
    # Pad to the length of the series, so that a bin corresponds to one cycle.
    return np.abs(np.fft.rfft(change * np.hanning(len(change)), len(series))) ** 2


def _refine(power: np.ndarray, peak: int) -> float:
    """Return the position of a peak between two bins, found by fitting a parabola to the log powers."""
    if not 0 < peak < len(power) - 1:
        return float(peak)
    low, middle, high = np.log(np.maximum(power[peak - 1 : peak + 2], 1e-300))
    curve = low - 2 * middle + high
    return peak + (0.5 * (low - high) / curve if curve < 0 else 0.0)


def _snap(periods: list[float], length: int) -> list[float]:
    """Return the periods, rounded to whole steps or to multiples of a shorter period if the resolution of the
    periodogram permits this."""
    kept: dict[float, float] = {}
    for period in sorted(periods):
        resolution = 0.5 * period**2 / length
        nearest = [float(round(period))] + [base * round(period / base) for base in kept.values()]
        close = [value for value in nearest if abs(value - period) <= resolution]
        kept[period] = close[0] if close else period
    return [kept[period] for period in periods]
