"""Adaptive conformal intervals: how wide a stream's forecast intervals must be, learned from the stream itself.

The bundle's split-conformal multipliers are right while a stream is like the data that they were fitted on. Here each
is multiplied by a factor that follows the stream, for every lead, component and level on its own. After each
observation

    v ← v + γ (err − (1 − level))               err = 1 where the interval was missed, else 0
    factor(v) = ((1 + v) / (1 − v))³            1 at v = 0, without bound towards v = 1

This is adaptive conformal inference (Gibbs and Candès 2021, arXiv 2106.00170, eq. 2) with v = α − α_t; the quantile of
past scores is replaced by an increasing function of v, so a stream keeps one number instead of a window of scores (the
saturating integrator of Angelopoulos, Candès and Tibshirani 2023, arXiv 2307.16895). An interval counts as infinite
where v ≥ 1 and as empty where v ≤ −1/2, so v stays in [−1/2 − γ, 1 + γ], and the sum telescopes: whatever the data,

    |mean err − (1 − level)| = |v_T − v_0| / (γ T) ≤ (1 + γ) / (γ T)

Nothing infinite is sent: the factor ends at 99³, and at 1/27 below. What counts as infinite or empty there is exact for
v; the coverage that is reported counts what was sent.

The first lead is scored by every observation, at whatever lag it comes, from the step's own innovation. The others are
scored when an observation comes at the time that a forecast was for. What that is, and how many forecasts must wait for
it, goes by a step: the bundle's first calibrated horizon, which is the median step of the data that it was fitted on,
for nothing tells a stream's own cadence beforehand. A lead of h steps has h places (at most MOST_PLACES) for forecasts
that wait. The place of a forecast is the step that it is for, counted round the places, and where one waits already the
newer is not scored. So of a stream with the bundle's cadence every forecast of a lead up to MOST_PLACES steps is
scored; of a faster stream or a longer lead a thinned series is, spread evenly over all hours: with fewer places, used
whenever one is free, the same hours were scored every day, and the width followed the hour.

An observation counts as the one that a forecast was for within a share TOLERANCE of the lead, half a step, and half the
lag since the observation before it: of the observations of a faster stream, only the one that is due.

Where leads are a stream's own steps (`auto`), a step is its typical lag, the share is OWN_TOLERANCE, and the second
lead is one step again: what the first learns of all lags, long ones too, does not tell how far off a forecast of one
typical lag is.

The answer to a change of v comes a lead later, after up to h results of forecasts that were made before it. At 90 % the
miss rate falls by about 2 for a unit of v. So a lead has γ_lead = min(γ, 1 / (4 h)): a round of the loop undoes no more
than half of an error. With h results outstanding v may go on by h γ_lead, so after T scored forecasts

    |mean err − (1 − level)| ≤ (1 + h γ_lead) / (γ_lead T) = 1 / (γ_lead T) + h / T

v is kept as float32: rounding adds at most 2⁻²⁴ / γ_lead to the bound. What is compiled here is one stream's and one
observation's, a part of `conclude.py`.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rfa.runtime.compiling import part
from rfa.runtime.pool import StateField

Array = np.ndarray

# Chosen on simulated streams: with 0.02 the 300 forecasts after a change of the noise miss by 1.9
# points, with 0.025 by 1.5; clean intervals are 2.8 % and 3.5 % wider than they need be.
GAMMA = 0.025
EMPTY, INFINITE = -0.5, 1.0
# Where the factor ends.
WIDEST = 0.98
# Forecasts of one lead that wait for their observation.
MOST_PLACES = 32
# An observation this close to the time that a forecast was for, as a share of the lead, is the one it was for.
TOLERANCE = 0.05
# Of the own steps of a stream's leads, so much: times need not be even.
OWN_TOLERANCE = 0.25
# How far a lead may be above its places, over these, until fewer forecasts are followed: typical lags are rarely whole.
JITTER = 0.1
# Lags that a typical one is the mean of, at most.
LAGS = 1000.0
# Where a step begins, in steps: no clock ticks there, so that rounding does not put two ticks into one step.
EDGE = 0.382
# Radii of forecasts that count as infinite, and the least one; 0 is a place where nothing waits.
_ALWAYS, _LEAST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
FIELDS = tuple(f"adaptive.{name}" for name in ("shift", "due", "mean", "radius"))


class Tracks(NamedTuple):
    """The adaptive state of all streams of a pool: v `[streams, leads, P, levels]`, and of the forecasts that wait
    their times `[streams, all places]`, what they said `[…, P]` and half widths of their intervals `[…, P, levels]`,
    or of their sides, `[…, P, 2 levels]`, those below first; below 0 where they count as empty, all 0 where none
    waits."""

    shift: Array
    due: Array
    mean: Array
    radius: Array


class Leads(NamedTuple):
    """How the calibrated leads of a bundle are followed.

    Attributes:
        step: the first horizon, in time units.
        gamma: of each lead, `[leads]`.
        places: forecasts that wait, of each lead but the first, `[leads - 1]`.
        begin: the first of their places, `[leads - 1]`.
        lead: that each place belongs to, `[all places]`; those of a lead lie side by side.
        near: how far from its time the observation may be that a forecast is scored by, `[all places]`.
        times: the leads, `[leads]`.
        are_own: whether a lead is so many of the stream's own steps, its typical lags, and not a time.
    """

    step: float
    gamma: Array
    places: Array
    begin: Array
    lead: Array
    near: Array
    times: Array
    are_own: bool

    @classmethod
    def of(
        cls,
        horizons: Sequence[float] | Array,
        *,
        are_own: bool = False,
        most_places: int = MOST_PLACES,
        pace: float = 1.0,
    ) -> Leads:
        """Of the leads in time units or in own steps, ascending; the first is the step.

        pace: of all but the first, of which every observation tells: less than one where intervals are good as they
            are, and following errors costs more than it mends.
        """
        times = np.array(horizons, np.float64)
        step = float(times[0])
        steps = np.clip(np.rint(times / step), 1, most_places).astype(np.int64)
        gamma: Array = pace * np.minimum(GAMMA, 1 / (4 * steps))
        gamma[0] = GAMMA
        counts = steps[1:]
        lead = np.repeat(np.arange(1, len(times)), counts)
        near: Array = np.minimum((OWN_TOLERANCE if are_own else TOLERANCE) * times, step / 2)[lead]
        return cls(step, gamma, counts, np.cumsum(counts) - counts, lead, near, times, are_own)

    def fields(self, size: int, levels: int, sides: int = 1) -> dict[str, StateField]:
        """What a seat holds for observations of `size` components and `levels` levels, as of `Tracks`; of forecasts
        that are as wide above as below, or of two sides."""
        places = len(self.lead)
        shapes = ((len(self.gamma), size, levels), (places,), (places, size), (places, size, sides * levels))
        kinds = (np.float32, np.float64, np.float64, np.float32)
        return {name: StateField(shape, kind) for name, shape, kind in zip(FIELDS, shapes, kinds, strict=True)}


@part
def typical_step(step, lag, count):
    """Running mean of the lags of a stream, each bounded to twice or half of it; 0 before the first."""
    if lag <= 0:
        return step
    if step == 0:
        return lag
    return step + (min(max(lag, step / 2), 2 * step) - step) / min(count + 1, LAGS)


@part
def lead_of(times, horizon, unit):
    """The own lead that is nearest to a horizon in log time, where a unit of their times is so long; the first is none,
    but the next observation, whenever it comes."""
    lead = 1
    while lead + 1 < len(times) and horizon * horizon > unit * unit * times[lead] * times[lead + 1]:
        lead += 1
    return lead


@part
def place_of(leads, lead, horizon, due, steps, row):
    """The place of a forecast for the time `due`, so far ahead, that is followed as one of `lead`; -1 is none.

    Args:
        steps: the horizon in the stream's own steps, where leads are that.
        row: of the observation in its stream.
    """
    count = leads.places[lead - 1]
    if leads.are_own:
        # By turns: a time in steps would move with every change of the typical lag.
        stride = max(np.int64(np.ceil(steps / count - JITTER)), 1)
        return leads.begin[lead - 1] + (row // stride) % count if row % stride == 0 else -1
    step = max(leads.step, horizon / count)
    # The remainder is exact, and never infinite.
    number = np.int64(np.floor(np.fmod(due, count * step) / step + EDGE))
    return leads.begin[lead - 1] + number % count


@part
def factor(shift):
    """What a multiplier is multiplied by."""
    bounded = min(max(np.float64(shift), EMPTY), WIDEST)
    ratio = (1 + bounded) / (1 - bounded)
    return ratio * ratio * ratio


@part
def radii(multipliers, shift, out):
    """Half widths per model std `[levels]`, never smaller at a higher level."""
    for level in range(len(multipliers)):
        width = multipliers[level] * factor(shift[level])
        out[level] = max(width, out[level - 1]) if level > 0 else width


@part
def follow(shift, missed, rate):
    """v after an interval was missed or not; `rate` is 1 - level."""
    counted = (missed or shift <= EMPTY) and shift < INFINITE
    return shift + GAMMA * ((1.0 if counted else 0.0) - rate)


@part
def score_step(shift, widths, score, rates):
    """Follow the one-step forecast of a component, `[levels]`, that was so many model stds off."""
    for level in range(len(rates)):
        shift[level] = follow(np.float64(shift[level]), widths[level] < score, rates[level])


@part
def score_waiting(leads, tracks, seat, now, lag, unit, value, rates, shift, change, arrived, held):
    """Follow the forecasts of a stream whose time has come; `arrived` becomes 1 where they waited.

    Args:
        held: of zeros; becomes how many components of each lead were scored, and how many of them were inside the
            interval that was sent, by level, `[leads, 1 + levels]`.

    Returns:
        how many waited.

    An observation may be near the times of several forecasts of a lead, which lie side by side: v of all of them is
    that from before.
    """
    size, levels = shift.shape[1], shift.shape[2]
    count = 0
    for lead in range(1, len(leads.gamma)):
        for a in range(size):
            for level in range(levels):
                change[lead, a, level] = 0.0
    for place in range(len(leads.lead)):
        arrived[place] = 0
        if tracks.radius[seat, place, 0, levels - 1] == 0:
            continue
        ahead = tracks.due[seat, place] - now
        near = min(leads.near[place] * unit, lag / 2)
        if ahead > near:
            continue
        arrived[place] = 1
        count += 1
        if ahead < -near:
            continue
        lead = leads.lead[place]
        for a in range(size):
            if value[a] == value[a]:
                off = value[a] - tracks.mean[seat, place, a]
                side = levels if off > 0 and tracks.radius.shape[3] > levels else 0
                off = abs(off)
                held[lead, 0] += 1
                for level in range(levels):
                    radius = tracks.radius[seat, place, a, side + level]
                    missed = 1.0 if off > radius else 0.0
                    change[lead, a, level] += leads.gamma[lead] * (missed - rates[level])
                    held[lead, 1 + level] += 1 if off <= abs(radius) else 0
    for lead in range(1, len(leads.gamma)):
        for a in range(size):
            for level in range(levels):
                shift[lead, a, level] += change[lead, a, level]
    return count


@part
def counted_radius(radius, shift):
    """The half width that a forecast is scored by; below 0 it counts as empty, whatever was sent."""
    if shift >= INFINITE:
        return _ALWAYS
    sent = max(min(radius, _ALWAYS), _LEAST)
    return -sent if shift <= EMPTY else sent
