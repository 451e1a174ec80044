"""Compiled recursions over the values of a series, in float64."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from numba import njit


def array_jit(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Compile a function of arrays. Its arguments are made contiguous, because numba compiles each memory layout
    separately."""
    kernel = njit(cache=True, nogil=True, error_model="numpy")(function)

    @wraps(function)
    def called(*arguments: Any) -> np.ndarray:
        return kernel(*(np.ascontiguousarray(one) if isinstance(one, np.ndarray) else one for one in arguments))

    return called


# Responses of `superpose`.
DECAY, PULSE, BOX, TRIANGLE = 0, 1, 2, 3
# A response ends after this multiple of its duration, when it has decayed to e^-9.
RESPONSE_ENDS = 9.0


@array_jit
def autoregress(innovation, coefficients, lag):
    """Return y with y[n] = Σ_p c[p] y[n - p lag] + e[n].

    Args:
        innovation: Innovations e, `[B, N]`.
        coefficients: Coefficients c, `[B, P]`.
        lag: 1, or the period of a seasonal autoregression, `[B]`.
    """
    out = np.empty_like(innovation)
    for b in range(innovation.shape[0]):
        for n in range(innovation.shape[1]):
            total = innovation[b, n]
            for p in range(coefficients.shape[1]):
                before = n - (p + 1) * lag[b]
                if before < 0:
                    break
                total += coefficients[b, p] * out[b, before]
            out[b, n] = total
    return out


@array_jit
def rotate(decay, cosine, sine, real, imaginary):
    """Return the real part of z with z[n] = d[n] (c[n] + i s[n]) z[n-1] + w[n], where d is `decay`, c `cosine`, s
    `sine` and w `real` + i `imaginary`. All arrays are `[B, N]`."""
    out = np.empty_like(real)
    for b in range(real.shape[0]):
        x, y = 0.0, 0.0
        for n in range(real.shape[1]):
            turn, across = decay[b, n] * cosine[b, n], decay[b, n] * sine[b, n]
            x, y = turn * x - across * y + real[b, n], across * x + turn * y + imaginary[b, n]
            out[b, n] = x
    return out


@array_jit
def relax(decay, drive):
    """Return y with y[n] = d[n] y[n-1] + u[n] and y[0] = u[0], where d is `decay` and u `drive`. All arrays are `[B,
    N]`."""
    out = np.empty_like(drive)
    for b in range(drive.shape[0]):
        y = 0.0
        for n in range(drive.shape[1]):
            y = (decay[b, n] * y if n else 0.0) + drive[b, n]
            out[b, n] = y
    return out


@array_jit
def segment_of(steps, boundaries):
    """Return the number of boundaries at or before each time, `[B, N]`. Times `[B, N]` and boundaries `[B, K]` are
    increasing."""
    out = np.empty(steps.shape, np.int64)
    for b in range(steps.shape[0]):
        k = 0
        for n in range(steps.shape[1]):
            while k < boundaries.shape[1] and boundaries[b, k] <= steps[b, n]:
                k += 1
            out[b, n] = k
    return out


@array_jit
def superpose(steps, arrivals, marks, duration, response):
    """Return shot noise Σ marks · r((t - arrival) / duration), summed over the events before t, `[B, N]`.

    For u >= 0, r(u) is e^-u, u e^(1-u), 1 until u = 1, or the triangle 1 - |2 u - 1|.

    Args:
        steps: Times t, `[B, N]`, increasing.
        arrivals: Times of the events, `[B, K]`, increasing. If there are fewer than K events, the rest is infinite.
        marks: Heights of the responses, `[B, K]`.
        duration: Duration of the responses in steps, `[B]`.
        response: `DECAY`, `PULSE`, `BOX` or `TRIANGLE`, `[B]`.
    """
    out = np.zeros_like(steps)
    length = steps.shape[1]
    for b in range(steps.shape[0]):
        begin = 0
        ends = RESPONSE_ENDS if response[b] <= PULSE else 1.0
        for k in range(arrivals.shape[1]):
            arrival = arrivals[b, k]
            while begin < length and steps[b, begin] < arrival:
                begin += 1
            for n in range(begin, length):
                u = (steps[b, n] - arrival) / duration[b]
                if u >= ends:
                    break
                if response[b] == DECAY:
                    r = np.exp(-u)
                elif response[b] == PULSE:
                    r = u * np.exp(1 - u)
                elif response[b] == BOX:
                    r = 1.0
                else:
                    r = 1 - abs(2 * u - 1)
                out[b, n] += marks[b, k] * r
    return out


@array_jit
def interpolate(at, nodes, values):
    """Interpolate linearly between nodes `[B, K]` at times `at` `[B, N]`. The result is constant outside the nodes."""
    out = np.empty_like(at)
    last = nodes.shape[1] - 1
    for b in range(at.shape[0]):
        k = 0
        for n in range(at.shape[1]):
            while k < last and nodes[b, k + 1] <= at[b, n]:
                k += 1
            share = 0.0
            if k < last:
                share = min(1.0, max(0.0, (at[b, n] - nodes[b, k]) / (nodes[b, k + 1] - nodes[b, k])))
            out[b, n] = values[b, k] + (share * (values[b, k + 1] - values[b, k]) if share else 0.0)
    return out
