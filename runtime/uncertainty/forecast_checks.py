"""Checks of forecasts against their observations. They are counted per observation, and summed over a request and a
process.

A tally is a vector of sums, so that adding one takes only a microsecond. It contains

    observations, sum of weight × nis / d, components scored, observations that may be alarms, their expected number of
    alarms, alarms, outliers, 8 bins of weight × nis / d, 10 bins of the PIT, components inside by level
for each requested horizon
    components scored, sum of the horizon in typical lags over them, components inside by level
and for each component, one step ahead
    number of times that it was scored, and that it was inside by level

The first observation of a stream is not included, because it was forecast only by the prior. The PIT of a component is
its value under the distribution that the forecast's intervals describe: 0.5 at the mean, 0.1 and 0.9 at the ends of the
0.8 interval. Correct forecasts fill the bins equally. If the filter is correct, nis is chi-square with d degrees of
freedom, the number of observed components, and the weight is 1 up to about nis = d. Bins of weight × nis / d below 1
are compared with that distribution. Above 1, there should be fewer. An outlier has a probability below one in a
thousand under it.

The forecasts of a horizon are those that `pending.py` scores. Of several horizons near one calibrated horizon, this is
the first, and at most MAX_PENDING of its forecasts at a time. A forecast is included in the request in which its time
comes, even if it was pending in the state. For a horizon of about one lag, the step itself is the forecast, if it comes
within TOLERANCE of that time. The interval is that of the reply, unless v treats it as infinite. It is then about 10⁶
standard deviations wide.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.outputs import ComponentChecks, ForecastChecks, LeadChecks
from rfa.runtime.uncertainty.adaptive import EMPTY, GAMMA, INFINITE, TOLERANCE
from rfa.runtime.uncertainty.alarms import count_alarms
from rfa.runtime.uncertainty.input import level_name

Array = np.ndarray

OBSERVATIONS, WEIGHTED_NIS, SCORED, ASKED, EXPECTED, ALARMS, OUTLIERS = range(7)
# Upper edges of the bins of weight × nis / d. The last bin does not have one.
NIS_EDGES = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
NIS = slice(7, 8 + len(NIS_EDGES))
PIT_BINS = 10
PIT = slice(NIS.stop, NIS.stop + PIT_BINS)
# Counts by level, followed by those by horizon and by component.
INSIDE = slice(PIT.stop, None)
# Intervals whose ends are edges of the bins of the PIT. The mean is the middle edge.
PIT_LEVELS = tuple(2 * edge / PIT_BINS for edge in range(1, PIT_BINS // 2))
_EDGES = np.array(NIS_EDGES)
_NIS, _PIT, _INSIDE = NIS.start, PIT.start, INSIDE.start
# Normal quantile at 0.999, for the chi-square quantile according to Wilson and Hilferty.
_RARE = NormalDist().inv_cdf(0.999)


def columns(levels: int, horizon: int = 0, size: int = 0) -> int:
    """Return the length of a tally. A tally contains the counts of all observations, of each horizon and of each
    component."""
    return _INSIDE + levels + horizon * (2 + levels) + size * (1 + levels)


def no_checks(levels: int, horizon: int = 0, size: int = 0) -> Array:
    """Return a tally in which all sums are 0."""
    return np.zeros(columns(levels, horizon, size))


@inline_jit
def outlier_gate(seen):
    """Return the 0.999 quantile of nis for a number of observed components."""
    spread = 2 / (9 * seen)
    root = 1 - spread + _RARE * np.sqrt(spread)
    return seen * root * root * root


@inline_jit
def tally(step, weighted_nis, sums):
    """Write the tally of an observation to `sums`.

    Args:
        step: Buffers of the observation. `is_scored` and `is_above` state whether a component is scored, and whether it
            was above its forecast, `[P]`. `scores` are |innovation| in standard deviations of the model, `[P]`. `edges`
            and `widths` are half-widths in the same unit at PIT_LEVELS and at the calibrated levels, `[P, levels]`.
        weighted_nis: Product of weight and nis.
    """
    scores, edges, widths = step.scores, step.edges, step.widths
    for k in range(len(sums)):
        sums[k] = 0.0
    count, length = 0, 1 + widths.shape[1]
    for a in range(len(scores)):
        if not step.is_scored[a]:
            continue
        count += 1
        begin = len(sums) + (a - len(scores)) * length
        sums[begin] = 1
        beyond = 0
        for edge in range(edges.shape[1]):
            beyond += 1 if scores[a] > edges[a, edge] else 0
        sums[_PIT + (PIT_BINS // 2 + beyond if step.is_above[a] else PIT_BINS // 2 - 1 - beyond)] += 1
        for level in range(widths.shape[1]):
            is_inside = 1 if scores[a] <= widths[a, level] else 0
            sums[_INSIDE + level] += is_inside
            sums[begin + 1 + level] = is_inside
    if count > 0:
        share = weighted_nis / count
        bin_ = 0
        while bin_ < len(_EDGES) and _EDGES[bin_] < share:
            bin_ += 1
        sums[OBSERVATIONS], sums[WEIGHTED_NIS], sums[SCORED] = 1, share, count
        sums[_NIS + bin_] = 1


@inline_jit
def tally_horizons(horizon, step, lag, column, scored, sums):
    """Add the forecasts of each requested horizon that were for this observation to a tally.

    Args:
        horizon: Requested horizons, `[H]`.
        step, lag: Typical lag, and the lag before the observation.
        column: Requested horizon that is scored as each calibrated one. -1 if there is none.
        scored: Output of `pending.score_pending`.
        sums: Tally.
    """
    levels = scored.shape[1] - 1
    for index in range(len(column)):
        if column[index] < 0:
            continue
        ahead, begin = horizon[column[index]], _INSIDE + levels + column[index] * (2 + levels)
        count = scored[index, 0]
        if index == 0:
            count = sums[SCORED] if abs(lag - ahead) <= TOLERANCE * ahead else 0.0
        if count == 0 or step <= 0:
            continue
        sums[begin] = count
        sums[begin + 1] = count * (ahead / step)
        for level in range(levels):
            sums[begin + 2 + level] = sums[_INSIDE + level] if index == 0 else scored[index, 1 + level]


def summarise(
    sums: Array, levels: Sequence[float], size: int, horizon: Sequence[float], *, is_fresh: bool
) -> ForecastChecks:
    """Return the checks of a request from its tally.

    Args:
        sums: Tally of the request.
        levels: Calibrated levels.
        size: Number of components of an observation. Each adapts separately, so their bounds are added.
        horizon: Requested horizons.
        is_fresh: Whether the stream began with the request. Otherwise, v may have begun at either end of its range.
    """
    observations, scored = int(sums[OBSERVATIONS]), int(sums[SCORED])
    reach = INFINITE + GAMMA if is_fresh else INFINITE - EMPTY + GAMMA
    names = [level_name(level) for level in levels]
    first, second = columns(len(levels)), columns(len(levels), len(horizon))
    ahead = sums[first:second].reshape(len(horizon), 2 + len(levels)).tolist()
    components = sums[second:].reshape(size, 1 + len(levels)).tolist()
    return ForecastChecks(
        scored=scored,
        coverage=_shares(names, sums[INSIDE][: len(levels)].tolist(), scored),
        bound=min(1.0, size * reach / (GAMMA * scored)) if scored else None,
        gamma=GAMMA,
        weighted_nis=float(sums[WEIGHTED_NIS]) / observations if observations else None,
        pit=[int(count) for count in sums[PIT]],
        weighted_nis_bins=[int(count) for count in sums[NIS]],
        alarms=count_alarms(sums[ASKED], sums[EXPECTED], sums[ALARMS]),
        outliers=int(sums[OUTLIERS]),
        leads=[
            LeadChecks(distance, round(steps / count, 6) if count else None, int(count), _shares(names, counts, count))
            for distance, (count, steps, *counts) in zip(horizon, ahead, strict=True)
        ],
        components=[ComponentChecks(int(count), _shares(names, counts, count)) for count, *counts in components],
    )


def _shares(names: Sequence[str], counts: Sequence[float], scored: float) -> dict[str, float | None]:
    return {name: count / scored if scored else None for name, count in zip(names, counts, strict=True)}
