"""Estimate the states of a sequence given later observations, by Rauch-Tung-Striebel smoothing and backward sampling.

    G_k = P_k F'_{k+1} (P⁻_{k+1})⁻¹        m^s_k = m_k + G_k (m^s_{k+1} - m⁻_{k+1})
    L_k = P_k - G_k P⁻_{k+1} G'_k          P^s_k = L_k + G_k P^s_{k+1} G'_k

The recursion starts from the last step (`smooth`), or `lag` steps after each step (`fixed_lag`). F need not be
diagonalisable. The filter's means and covariances already account for missing values, noise and weights.

Gains and samples do not depend on other steps, and are computed for a block of steps at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.uncertainty.draws import draw

Array = np.ndarray
# Number of steps per block. It is large enough to amortise a call, and small enough for a short latency.
BLOCK = 128


class Traces(NamedTuple):
    """The filter's trace of N steps, in units of the state and in float64.

    Attributes:
        transition: Matrix F from the previous step, `[N, n, n]`.
        predicted_mean, predicted_covariance: State before the observation, `[N, n]` and `[N, n, n]`.
        mean, covariance: State after the observation, `[N, n]` and `[N, n, n]`.
    """

    transition: Array
    predicted_mean: Array
    predicted_covariance: Array
    mean: Array
    covariance: Array

    @classmethod
    def of(cls, found: Any, count: int) -> Traces:
        """Return the trace of the first `count` steps in the arrays that `FilterSteps` returned."""
        columns = (
            found.transition, found.predicted_mean, found.predicted_covariance, found.mean, found.state_covariance
        )  # fmt: skip
        return cls(*(column[:count] for column in columns))

    @classmethod
    def joined(cls, pieces: Sequence[Traces]) -> Traces:
        """Return the concatenation of the traces of successive pieces."""
        return cls(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))

    def part(self, first: int, last: int) -> Traces:
        """Return the trace of the steps from `first` up to, but not including, `last`."""
        return Traces(*(column[first:last] for column in self))

    @property
    def steps(self) -> int:
        """Number of steps N."""
        return len(self.mean)


def smooth(traces: Traces) -> Iterator[tuple[Array, Array]]:
    """Yield means `[B, n]` and covariances `[B, n, n]` given all observations, for blocks of steps. The last block
    comes first. The steps within a block are in order."""
    mean, covariance = traces.mean[-1][:, None], traces.covariance[-1]
    for first, last in _blocks_from_the_end(traces.steps):
        gains, left = _back(traces, first, last)
        means = np.empty((last - first, *mean.shape))
        covariances = np.empty((last - first, *covariance.shape))
        for i in range(last - 1, first - 1, -1):
            if i < traces.steps - 1:
                at = i - first
                mean = traces.mean[i][:, None] + gains[at] @ (mean - traces.predicted_mean[i + 1][:, None])
                covariance = left[at] + gains[at] @ covariance @ gains[at].T
            means[i - first], covariances[i - first] = mean, covariance
        yield means[..., 0], covariances


def fixed_lag(traces: Traces, lag: int) -> Iterator[tuple[Array, Array]]:
    """Yield means and covariances of every step given the observations up to `lag` steps after it, in blocks of steps
    in order. The time per step grows with the lag."""
    for first in range(0, traces.steps, BLOCK):
        last = min(first + BLOCK, traces.steps)
        steps = np.arange(first, last)
        gains, left = _back(traces, first, min(last + lag, traces.steps))
        # Each step starts from the last step that it uses. All of them go back one step at a time.
        start = np.minimum(steps + lag, traces.steps - 1)
        mean, covariance = traces.mean[start][..., None], traces.covariance[start]
        for back in range(lag - 1, -1, -1):
            go = steps + back < traces.steps - 1
            at = steps[go] + back
            gain = gains[at - first]
            mean[go] = traces.mean[at][..., None] + gain @ (mean[go] - traces.predicted_mean[at + 1][..., None])
            covariance[go] = left[at - first] + gain @ covariance[go] @ gain.swapaxes(1, 2)
        yield mean[..., 0], covariance


def draw_paths(traces: Traces, scale: float, samples: int, seed: int, first: int) -> Iterator[Array]:
    """Yield samples of the states given all observations, `[B, samples, n]`, in blocks of steps. The last block comes
    first. The k-th samples of all blocks form a trajectory.

    Args:
        traces: The filter's trace.
        scale: Ratio of the calibrated standard deviation and that of the model.
        samples: Number of trajectories.
        seed: Seed of the random numbers.
        first: Position of the first step in the stream.
    """
    after: Array | None = None
    for begin, end in _blocks_from_the_end(traces.steps):
        gains, left = _back(traces, begin, end)
        if after is None:  # there is nothing after the last step
            left = np.concatenate([left, traces.covariance[-1:]])
        indices = [first + i for i in range(begin, end)]
        paths = draw(np.zeros_like(traces.mean[begin:end]), scale**2 * left, samples, [seed] * len(indices), indices)
        for i in range(end - 1, begin - 1, -1):
            path = paths[i - begin]
            path += traces.mean[i]
            if after is not None:
                path += (after - traces.predicted_mean[i + 1]) @ gains[i - begin].T
            after = path
        yield paths


def _blocks_from_the_end(steps: int) -> Iterator[tuple[int, int]]:
    for last in range(steps, 0, -BLOCK):
        yield max(last - BLOCK, 0), last


def _back(traces: Traces, first: int, last: int) -> tuple[Array, Array]:
    """Return the gains G and the covariances L of the steps, `[B, n, n]` each. The last step of the
    sequence has none."""
    now, after = traces.part(first, min(last, traces.steps - 1)), traces.part(first + 1, last + 1)
    # Without process noise, a long gap makes the predicted covariance singular, so a pseudo-inverse is used. It is
    # computed for the correlations, so that small units are not mistaken for singular directions.
    variances = np.diagonal(after.predicted_covariance, axis1=1, axis2=2)
    deviations = np.sqrt(np.where(variances > 0, variances, 1.0))
    scale = deviations[:, :, None] * deviations[:, None, :]
    inverse = np.linalg.pinv(after.predicted_covariance / scale, hermitian=True) / scale
    gains = now.covariance @ after.transition.swapaxes(1, 2) @ inverse
    return gains, now.covariance - gains @ after.predicted_covariance @ gains.swapaxes(1, 2)
