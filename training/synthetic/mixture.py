"""Series as they are recorded: sums and products of families, through links, with noise, faults and scales.

Four series in five are composed,

    y = Σ_i a_i s_i(t) · (1 or e^{c g(t)}) + b g(t) + σ(t) e(t)

of up to three seasons s, a trend or breaks or a smooth curve g, and noise e that is white, heavy, an autoregression or
of long memory, whose spread may follow the season or the level; some go through a link: exp, softplus, clipping,
rounding, counts. The others are one family by itself, or one beside a composed one.

Then faults: levels that shift, outliers alone and in patches, sensors that stick, values that are missing alone, in
blocks and at even times, histories that begin late; and a scale and an offset over six decades.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from rfa.training.synthetic.chains import autoregression, long_memory, regimes
from rfa.training.synthetic.clocks import Array, Clocks, draw_clocks
from rfa.training.synthetic.dynamics import chaotic, nonlinear, physical
from rfa.training.synthetic.events import counts, events, excited, intermittent
from rfa.training.synthetic.paths import heavy, scaled
from rfa.training.synthetic.seasons import calendar, seasonal
from rfa.training.synthetic.trends import breaks, smooth, trend, volatility

Family = Callable[[np.random.Generator, Clocks], Array]
# What a series may be by itself, and how often.
FAMILIES: Final[dict[str, tuple[Family, float]]] = {
    "seasonal": (seasonal, 0.5), "calendar": (calendar, 0.5), "trend": (trend, 0.5), "breaks": (breaks, 1.0),
    "smooth": (smooth, 1.0), "autoregression": (autoregression, 1.5), "long_memory": (long_memory, 1.0),
    "counts": (counts, 1.0), "intermittent": (intermittent, 0.7), "excited": (excited, 0.7),
    "regimes": (regimes, 1.0), "chaotic": (chaotic, 0.7), "physical": (physical, 1.5), "nonlinear": (nonlinear, 1.0),
    "events": (events, 1.5), "volatility": (volatility, 1.0),
}  # fmt: skip
COMPOSED: Final = "composed"
ALONE, BESIDE = 0.2, 0.08
# Of series: begin late, have faults of each kind.
LATE, SHIFTED, WITH_OUTLIERS, IN_PATCHES, STUCK = 0.3, 0.06, 0.15, 0.04, 0.04
MISSING, IN_BLOCKS, AT_EVEN_TIMES = 0.12, 0.06, 0.02
LEAST_HISTORY = 64


class Drawn(NamedTuple):
    """B series of N values.

    Attributes:
        times: `[B, N]`, seconds since 1970, or rows where they are counted.
        values: `[B, N]`, NaN where missing.
        truth: `[B, N]`, what values are without noise, outliers and sticking, of composed series that went through no
            link; else NaN.
        step: `[B]`, the usual time from row to row.
        families: of each series, by name; COMPOSED is a sum of several.
    """

    times: Array
    values: Array
    truth: Array
    step: Array
    families: list[str]


def draw(seed: int, count: int, length: int = 1_088, *, index: int = 0) -> Drawn:
    """Batch `index` of the series of a seed: the same numbers wherever and in whatever order batches are drawn.

    Raises:
        ValueError: `length` is below 2 * LEAST_HISTORY.
    """
    if length < 2 * LEAST_HISTORY:
        raise ValueError(f"length must be at least {2 * LEAST_HISTORY}, got {length}")
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence((seed, index))))
    clocks = draw_clocks(rng, count, length)
    names, weights = list(FAMILIES), np.array([weight for _, weight in FAMILIES.values()])
    which = np.where(rng.random(count) < ALONE, rng.choice(len(names), count, p=weights / weights.sum()), -1)
    values, truth = np.empty((count, length)), np.full((count, length), np.nan)
    composed = np.flatnonzero(which < 0)
    values[composed], truth[composed] = _composed(rng, clocks[composed])
    for k, (family, _) in enumerate(FAMILIES.values()):
        alone = np.flatnonzero(which == k)
        if len(alone):
            values[alone] = family(rng, clocks[alone])
    beside = composed[rng.random(len(composed)) < BESIDE]
    extra = rng.choice(len(names), len(beside), p=weights / weights.sum())
    for k, (family, _) in enumerate(FAMILIES.values()):
        here = beside[extra == k]
        if len(here):
            share = rng.uniform(0.2, 1.5, (len(here), 1))
            values[here] = scaled(values[here]) + share * scaled(family(rng, clocks[here]))
            truth[here] = np.nan
    values = _with_faults(rng, values)
    return _in_units(rng, Drawn(clocks.times, values, truth, clocks.step, [
        names[k] if k >= 0 else COMPOSED for k in which.tolist()
    ]))  # fmt: skip


def _composed(rng: np.random.Generator, clocks: Clocks) -> tuple[Array, Array]:
    """Series and their truth."""
    count, length = clocks.shape
    seasons = np.zeros((count, length))
    many = rng.choice(4, count, p=[0.2, 0.4, 0.3, 0.1])
    for k in range(3):
        here = np.flatnonzero(many > k)
        if len(here):
            family = calendar if k == 0 and rng.random() < 0.3 else seasonal
            seasons[here] += family(rng, clocks[here]) * np.exp(0.7 * rng.standard_normal((len(here), 1)))
    level = np.zeros((count, length))
    for family, chance in ((trend, 0.75), (smooth, 0.25), (breaks, 0.08), (physical, 0.12), (regimes, 0.04)):
        here = np.flatnonzero(rng.random(count) < chance)
        if len(here):
            level[here] += family(rng, clocks[here]) * np.exp(0.8 * rng.standard_normal((len(here), 1)))
    grows = rng.random((count, 1)) < 0.3
    truth = seasons * np.where(grows, np.exp(0.5 * level / (1 + np.abs(level).max(axis=1, keepdims=True))), 1.0) + level
    spread = truth.std(axis=1, keepdims=True) + 1e-3
    size = np.where(
        rng.random((count, 1)) < 0.85,
        np.exp(rng.uniform(np.log(0.01), np.log(1.2), (count, 1))),
        rng.uniform(0, 2, (count, 1)),
    )
    follows = (rng.random((count, 1)) < 0.25) & (many > 0)[:, None]
    change = np.where(follows, np.exp(0.7 * seasons / (np.abs(seasons).max(axis=1, keepdims=True) + 1e-6)), 1.0)
    y = truth + _noise(rng, clocks) * spread * size * change
    is_linked, linked = _linked(rng, y)
    return linked, np.where(is_linked[:, None], np.nan, truth)


def _noise(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Of variance about 1: white, heavy, an autoregression of order one, or of long memory."""
    count, length = clocks.shape
    kind = rng.random(count)
    e = rng.standard_normal((count, length))
    some = np.flatnonzero(kind < 0.25)
    e[some] = heavy(rng, len(some), length)
    for family, low, high in ((autoregression, 0.25, 0.5), (long_memory, 0.5, 0.58)):
        some = np.flatnonzero((kind >= low) & (kind < high))
        if len(some):
            e[some] = family(rng, clocks[some])
    return e


def _linked(rng: np.random.Generator, y: Array) -> tuple[Array, Array]:
    """Which series went through a link, and the series."""
    y = y.copy()
    spread = y.std(axis=1, keepdims=True) + 1e-6
    kind, share = rng.random(len(y)), rng.random((len(y), 1))

    def some(low: float, high: float) -> Array:
        return np.flatnonzero((kind >= low) & (kind < high))

    here = some(0.0, 0.12)
    y[here] = np.exp(np.clip((0.3 + 0.9 * share[here]) * y[here] / spread[here], -8, 6))
    here = some(0.12, 0.18)
    floor = np.quantile(y[here], 0.35, axis=1, keepdims=True) if len(here) else 0.0
    y[here] = np.maximum(y[here] - floor, 0)
    here = some(0.18, 0.21)
    y[here] = spread[here] * np.logaddexp(0, y[here] / spread[here])
    here = some(0.21, 0.27)
    grid = np.exp(np.log(0.02) * (1 - share[here])) * spread[here]
    y[here] = np.round(y[here] / grid) * grid
    here = some(0.27, 0.31)
    rate = np.exp(np.clip(y[here] / spread[here], -6, 3) + 6 * share[here] - 2)
    y[here] = rng.poisson(rate)
    # Shares: of something that is full at 1.
    here = some(0.31, 0.33)
    y[here] = 1 / (1 + np.exp(-2 * y[here] / spread[here]))
    return kind < 0.33, y


def _with_faults(rng: np.random.Generator, y: Array) -> Array:
    count, length = y.shape
    y, row = y.copy(), np.arange(length)
    spread = y.std(axis=1, keepdims=True) + 1e-6
    chance = rng.random((7, count))
    for k in np.flatnonzero(chance[0] < SHIFTED).tolist():
        y[k] += spread[k] * 2 * rng.normal() * (row >= rng.integers(length))
    for k in np.flatnonzero(chance[1] < WITH_OUTLIERS).tolist():
        places = rng.integers(0, length, rng.integers(1, 12))
        y[k, places] += 3 * spread[k] * rng.standard_t(2, len(places)).clip(-30, 30)
    for k in np.flatnonzero(chance[2] < IN_PATCHES).tolist():
        begin, many = int(rng.integers(length)), int(rng.integers(3, 40))
        y[k, begin : begin + many] += 3 * spread[k] * rng.normal()
    for k in np.flatnonzero(chance[3] < STUCK).tolist():
        begin, many = int(rng.integers(length)), int(rng.integers(5, 120))
        y[k, begin : begin + many] = y[k, begin]
    for k in np.flatnonzero(chance[4] < MISSING).tolist():
        y[k, rng.random(length) < rng.uniform(0, 0.4)] = np.nan
    for k in np.flatnonzero(chance[5] < IN_BLOCKS).tolist():
        for _ in range(rng.integers(1, 5)):
            begin = int(rng.integers(length))
            y[k, begin : begin + int(rng.integers(2, length // 8))] = np.nan
    for k in np.flatnonzero(chance[6] < AT_EVEN_TIMES).tolist():
        y[k, row % int(rng.integers(2, 8)) > 0] = np.nan
    late = np.flatnonzero(rng.random(count) < LATE)
    first = rng.integers(0, length - LEAST_HISTORY, len(late))
    y[late] = np.where(row < first[:, None], np.nan, y[late])
    return y


def _in_units(rng: np.random.Generator, drawn: Drawn) -> Drawn:
    """Of any scale, and near to 0 or far from it; what counts keeps its numbers."""
    count = len(drawn.values)
    keeps = (np.nan_to_num(drawn.values) == np.rint(np.nan_to_num(drawn.values))).all(axis=1)
    spread = np.nanstd(drawn.values, axis=1) + 1e-12
    scale = np.where(keeps, 1.0, 10 ** rng.uniform(-3, 3, count) / spread)
    offset = np.where(keeps, 0.0, scale * spread * rng.normal(size=count) * rng.choice([0.0, 1.0, 5.0, 30.0], count))
    values, truth = (scale[:, None] * one + offset[:, None] for one in (drawn.values, drawn.truth))
    return drawn._replace(values=values, truth=truth)
