"""The states of a sequence given later observations: Rauch-Tung-Striebel, and paths drawn backwards.

    G_k = P_k F'_{k+1} (P⁻_{k+1})⁻¹        m^s_k = m_k + G_k (m^s_{k+1} - m⁻_{k+1})
                                            P^s_k = P_k + G_k (P^s_{k+1} - P⁻_{k+1}) G'_k

from the last step (`smooth`), or from `lag` steps after each (`fixed_lag`): a live stream can do that, and hold no more
than lag + 1 steps. Any linear model: F need not be diagonalisable, and what was missing, how noisy an observation was
and how far it was trusted are in the filter's own means and covariances already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfa.service.engine.filter.steps import draw

Array = np.ndarray


@dataclass(frozen=True)
class Trace:
    """What smoothing needs of a step, in state coordinates, float64."""

    transition: Array
    predicted_mean: Array
    predicted_covariance: Array
    mean: Array
    covariance: Array

    @classmethod
    def of(cls, found: Any, row: int) -> Trace:
        """Of an observation of many, as `FilterSteps` traced them."""
        return cls(
            found.transition[row], found.predicted_mean[row], found.predicted_covariance[row], found.mean[row],
            found.state_covariance[row],
        )  # fmt: skip


def smooth(traces: Sequence[Trace]) -> Iterator[tuple[Array, Array]]:
    """Mean and covariance given all observations, from the last step to the first."""
    state = traces[-1].mean, traces[-1].covariance
    yield state
    for now, after in zip(traces[-2::-1], traces[:0:-1], strict=True):
        state = _step_back(now, after, _gain(now, after), state)
        yield state


def fixed_lag(traces: Iterable[Trace], lag: int) -> Iterator[tuple[Array, Array]]:
    """Mean and covariance of every step given the observations up to `lag` steps after it, from the first step on.

    A step's state is there as soon as those observations are; the last ones when the traces end. Time per step grows
    with the lag.
    """
    window: deque[Trace] = deque()
    gains: deque[Array] = deque()
    for trace in traces:
        if window:
            gains.append(_gain(window[-1], trace))
        window.append(trace)
        if len(window) > lag:
            yield _first_state(window, gains)
            _drop_first(window, gains)
    while window:
        yield _first_state(window, gains)
        _drop_first(window, gains)


def _first_state(window: Sequence[Trace], gains: Sequence[Array]) -> tuple[Array, Array]:
    """The state of the window's first step given all of its observations; gains[i] goes from step i + 1 to i."""
    state = window[-1].mean, window[-1].covariance
    for i in range(len(window) - 2, -1, -1):
        state = _step_back(window[i], window[i + 1], gains[i], state)
    return state


def _drop_first(window: deque[Trace], gains: deque[Array]) -> None:
    window.popleft()
    if gains:
        gains.popleft()


def _step_back(now: Trace, after: Trace, gain: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
    mean, covariance = state
    return (
        now.mean + gain @ (mean - after.predicted_mean),
        now.covariance + gain @ (covariance - after.predicted_covariance) @ gain.T,
    )


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
