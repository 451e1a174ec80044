"""How one-step forecasts came true: counted for every observation, summed over a request and over a process.

A tally is a vector of sums, so that adding one costs a microsecond:

    observations, sum of weight × nis / d, components scored, 8 bins of weight × nis / d, 10 bins of the PIT,
    components inside by level

The first observation of a stream is not in it: nothing but the prior had forecast it. The PIT of a component is its
place in the distribution that the forecast's intervals describe: 0.5 at the mean, 0.1 and 0.9 at the ends of the 0.8
interval. Forecasts that are right put as many components into each bin. nis is chi-square of d components, the observed
ones, if the filter is right, and the weight is 1 up to about nis = d: below 1, the bins of weight × nis / d are held
against that distribution, above it there should be less.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rfa.service.engine.filter.adaptive import EMPTY, GAMMA, INFINITE
from rfa.service.engine.filter.input import level_name
from rfa.service.schemas.replies import ForecastChecks

Array = np.ndarray

OBSERVATIONS, WEIGHTED_NIS, SCORED = range(3)
# Upper edges of the bins of weight × nis / d; the last one has none.
NIS_EDGES = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
NIS = slice(3, 4 + len(NIS_EDGES))
PIT_BINS = 10
PIT = slice(NIS.stop, NIS.stop + PIT_BINS)
INSIDE = slice(PIT.stop, None)
# Intervals at whose ends the PIT has its bins' edges; the mean is the one in the middle.
PIT_LEVELS = tuple(2 * edge / PIT_BINS for edge in range(1, PIT_BINS // 2))
_EDGES, _NIS_BINS = np.array(NIS_EDGES), np.arange(len(NIS_EDGES) + 1)[:, None]
_PIT_BINS = np.arange(PIT_BINS)[:, None, None]


def no_checks(levels: int) -> Array:
    """The tally of no observation."""
    return np.zeros(INSIDE.start + levels)


def tally(scored: Array, weighted_nis: Array, is_above: Array, scores: Array, edges: Array, widths: Array) -> Array:
    """A tally per row, `[rows, columns]`.

    Args:
        scored: components that count, `[rows, P]`.
        weighted_nis: weight × nis, `[rows]`.
        is_above: whether the observation was above its forecast, `[rows, P]`.
        scores: |innovation| per model std, `[rows, P]`.
        edges: half widths of the intervals PIT_LEVELS per model std, `[rows, P, edges]`.
        widths: those of the calibrated levels, `[rows, P, levels]`.
    """
    # `[..., P, rows]`: with the rows last, NumPy's inner loops are long.
    scored, scores, is_above = (np.ascontiguousarray(array.T) for array in (scored, scores, is_above))
    counts = np.add.reduce(scored, axis=0, dtype=np.float64)
    nis = np.where(counts > 0, weighted_nis / np.maximum(counts, 1), 0.0)
    beyond = np.add.reduce(scores > edges.T, axis=0, dtype=np.intp)
    bins = np.where(is_above, PIT_BINS // 2 + beyond, PIT_BINS // 2 - 1 - beyond)
    sums = np.empty((PIT.stop + widths.shape[-1], len(nis)))
    sums[OBSERVATIONS] = counts > 0
    sums[WEIGHTED_NIS] = nis
    sums[SCORED] = counts
    sums[NIS] = (_EDGES.searchsorted(nis) == _NIS_BINS) & (counts > 0)
    np.add.reduce((bins == _PIT_BINS) & scored, axis=1, out=sums[PIT])
    np.add.reduce((scores <= widths.T) & scored, axis=1, out=sums[INSIDE])
    return np.ascontiguousarray(sums.T)


def summarise(sums: Array, levels: Sequence[float], size: int, *, is_fresh: bool) -> ForecastChecks:
    """A request's tally, for its reply.

    Args:
        levels: the calibrated ones.
        size: components of an observation; each is followed on its own, so their bounds add up.
        is_fresh: whether the stream began with the request, else v may have begun at either end.
    """
    observations, scored = int(sums[OBSERVATIONS]), int(sums[SCORED])
    reach = INFINITE + GAMMA if is_fresh else INFINITE - EMPTY + GAMMA
    shares = [float(inside) / scored if scored else None for inside in sums[INSIDE]]
    return ForecastChecks(
        scored=scored,
        coverage={level_name(level): share for level, share in zip(levels, shares, strict=True)},
        bound=min(1.0, size * reach / (GAMMA * scored)) if scored else None,
        gamma=GAMMA,
        weighted_nis=float(sums[WEIGHTED_NIS]) / observations if observations else None,
        pit=[int(count) for count in sums[PIT]],
        weighted_nis_bins=[int(count) for count in sums[NIS]],
    )
