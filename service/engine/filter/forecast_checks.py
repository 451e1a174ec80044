"""How one-step forecasts came true: counted for every observation, summed over a request and over a process.

A tally is a vector of sums, so that adding one costs a microsecond:

    observations, sum of weight × nis / d, components scored, observations that may be alarms, how many of them should
    be by the rate that was asked for, alarms, 8 bins of weight × nis / d, 10 bins of the PIT,
    components inside by level

The first observation of a stream is not in it: nothing but the prior had forecast it. The PIT of a component is its
place in the distribution that the forecast's intervals describe: 0.5 at the mean, 0.1 and 0.9 at the ends of the 0.8
interval. Forecasts that are right put as many components into each bin. nis is chi-square of d components, the observed
ones, if the filter is right, and the weight is 1 up to about nis = d: below 1, the bins of weight × nis / d are held
against that distribution, above it there should be less.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rfa.model.compiling import part
from rfa.service.engine.filter.adaptive import EMPTY, GAMMA, INFINITE
from rfa.service.engine.filter.alarms import count_alarms
from rfa.service.engine.filter.input import level_name
from rfa.service.schemas.replies import ForecastChecks

Array = np.ndarray

OBSERVATIONS, WEIGHTED_NIS, SCORED, ASKED, EXPECTED, ALARMS = range(6)
# Upper edges of the bins of weight × nis / d; the last one has none.
NIS_EDGES = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
NIS = slice(6, 7 + len(NIS_EDGES))
PIT_BINS = 10
PIT = slice(NIS.stop, NIS.stop + PIT_BINS)
INSIDE = slice(PIT.stop, None)
# Intervals at whose ends the PIT has its bins' edges; the mean is the one in the middle.
PIT_LEVELS = tuple(2 * edge / PIT_BINS for edge in range(1, PIT_BINS // 2))
_EDGES = np.array(NIS_EDGES)
_NIS, _PIT, _INSIDE = NIS.start, PIT.start, INSIDE.start


def columns(levels: int) -> int:
    """Numbers of a tally."""
    return _INSIDE + levels


def no_checks(levels: int) -> Array:
    """The tally of no observation."""
    return np.zeros(columns(levels))


@part
def tally(scored, weighted_nis, above, scores, edges, widths, sums):
    """The tally of an observation.

    Args:
        scored: components that count, `[P]`.
        weighted_nis: weight × nis.
        above: whether the observation was above its forecast, `[P]`.
        scores: |innovation| per model std, `[P]`.
        edges: half widths of the intervals PIT_LEVELS per model std, `[P, edges]`.
        widths: those of the calibrated levels, `[P, levels]`.
        sums: becomes the tally, `[columns]`.
    """
    for k in range(len(sums)):
        sums[k] = 0.0
    count = 0
    for a in range(len(scores)):
        if not scored[a]:
            continue
        count += 1
        beyond = 0
        for edge in range(edges.shape[1]):
            beyond += 1 if scores[a] > edges[a, edge] else 0
        sums[_PIT + (PIT_BINS // 2 + beyond if above[a] else PIT_BINS // 2 - 1 - beyond)] += 1
        for level in range(widths.shape[1]):
            sums[_INSIDE + level] += 1 if scores[a] <= widths[a, level] else 0
    if count > 0:
        share = weighted_nis / count
        bin_ = 0
        while bin_ < len(_EDGES) and _EDGES[bin_] < share:
            bin_ += 1
        sums[OBSERVATIONS], sums[WEIGHTED_NIS], sums[SCORED] = 1, share, count
        sums[_NIS + bin_] = 1


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
        alarms=count_alarms(sums[ASKED], sums[EXPECTED], sums[ALARMS]),
    )
