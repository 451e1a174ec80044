"""The states of a sequence given all of its observations: Rauch-Tung-Striebel, and paths drawn backwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.engine.filter_steps import draw

Array = np.ndarray
TRACE_OUTPUTS = ("transition", "predicted_mean", "predicted_covariance", "next.mean", "next.covariance")


@dataclass(frozen=True)
class Trace:
    """What smoothing needs of a step, in state coordinates, float64."""

    transition: Array
    predicted_mean: Array
    predicted_covariance: Array
    mean: Array
    covariance: Array

    @classmethod
    def of(cls, outputs: Mapping[str, Array]) -> Trace:
        """The trace of a graph's first row."""
        return cls(*(outputs[name][0].astype(np.float64) for name in TRACE_OUTPUTS))


def smooth(traces: Sequence[Trace]) -> Iterator[tuple[Array, Array]]:
    """Mean and covariance given all observations, from the last step to the first."""
    mean, covariance = traces[-1].mean, traces[-1].covariance
    yield mean, covariance
    for now, after in zip(traces[-2::-1], traces[:0:-1], strict=True):
        gain = _gain(now, after)
        mean = now.mean + gain @ (mean - after.predicted_mean)
        covariance = now.covariance + gain @ (covariance - after.predicted_covariance) @ gain.T
        yield mean, covariance


def draw_paths(traces: Sequence[Trace], scale: float, samples: int, seed: int, first: int) -> Iterator[Array]:
    """Paths given all observations, `[samples, n]` a step, from the last step to the first: the k-th is one path.

    Args:
        scale: calibrated std per model std.
        first: position in the stream of the first step.
    """
    last = first + len(traces) - 1
    paths = draw(traces[-1].mean, scale**2 * traces[-1].covariance, samples, seed, last)
    yield paths
    for i in range(len(traces) - 2, -1, -1):
        now, after = traces[i], traces[i + 1]
        gain = _gain(now, after)
        left = now.covariance - gain @ after.predicted_covariance @ gain.T
        noise = draw(np.zeros_like(now.mean), scale**2 * left, samples, seed, first + i)
        paths = now.mean + (paths - after.predicted_mean) @ gain.T + noise
        yield paths


def _gain(now: Trace, after: Trace) -> Array:
    # A pseudo-inverse: without process noise a long gap makes the predicted covariance singular.
    return now.covariance @ after.transition.T @ np.linalg.pinv(after.predicted_covariance, hermitian=True)
