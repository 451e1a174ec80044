"""The tallies of runtime/uncertainty/forecast_checks.py for many observations at once, in NumPy."""

from __future__ import annotations

import numpy as np

from rfa.runtime.uncertainty.forecast_checks import (
    INSIDE,
    NIS,
    NIS_EDGES,
    OBSERVATIONS,
    PIT,
    PIT_BINS,
    SCORED,
    WEIGHTED_NIS,
)

Array = np.ndarray
_EDGES, _NIS_BINS = np.array(NIS_EDGES), np.arange(len(NIS_EDGES) + 1)[:, None]
_PIT_BINS = np.arange(PIT_BINS)[:, None, None]


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
    sums = np.zeros((PIT.stop + widths.shape[-1], len(nis)))
    sums[OBSERVATIONS] = counts > 0
    sums[WEIGHTED_NIS] = nis
    sums[SCORED] = counts
    sums[NIS] = (_EDGES.searchsorted(nis) == _NIS_BINS) & (counts > 0)
    np.add.reduce((bins == _PIT_BINS) & scored, axis=1, out=sums[PIT])
    np.add.reduce((scores <= widths.T) & scored, axis=1, out=sums[INSIDE])
    return np.ascontiguousarray(sums.T)
