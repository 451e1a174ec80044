"""Data of `rfa bench filter-speed`, and a textbook filter that computes the expected results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
JobName = Literal["online", "batch"]
Rule = Literal["Kalman", "robust", "jumps"]

STEP = 0.1
PROCESS, MEASUREMENT, PRIOR = 0.5, 1.0, 10.0
NU, PASSES, PATIENCE = 4.0, 3, 6


@dataclass(frozen=True)
class Job:
    """f, q, h, r, the prior's covariance, and observations `[B, N, 2]`."""

    f: Array
    q: Array
    h: Array
    r: Array
    prior: Array
    y: Array

    def cut(self, streams: int, steps: int) -> Job:
        return Job(self.f, self.q, self.h, self.r, self.prior, np.ascontiguousarray(self.y[:streams, :steps]))


def make_job(streams: int, steps: int, seed: int = 0) -> Job:
    """Return a constant velocity in the plane, observed in position. One in twenty is ten times noisier."""
    eye, zero = np.eye(2), np.zeros((2, 2))
    f = np.block([[eye, STEP * eye], [zero, eye]])
    q = PROCESS * np.block([[eye * STEP**3 / 3, eye * STEP**2 / 2], [eye * STEP**2 / 2, eye * STEP]])
    rng = np.random.default_rng(seed)
    x = np.sqrt(PRIOR) * rng.standard_normal((streams, 4))
    y, root = np.empty((streams, steps, 2)), np.linalg.cholesky(q)
    for t in range(steps):
        if t:
            x = x @ f.T + rng.standard_normal((streams, 4)) @ root.T
        size = np.where(rng.random((streams, 1)) < 0.05, 10.0, 1.0) * np.sqrt(MEASUREMENT)
        y[:, t] = x[:, :2] + size * rng.standard_normal((streams, 2))
    return Job(f, q, np.block([[eye, zero]]), MEASUREMENT * eye, PRIOR * np.eye(4), y)


def reference(job: Job, rule: Rule) -> Array:
    """Return final means `[B, 4]` by the textbook's formulas, all streams at once."""
    streams, steps = job.y.shape[:2]
    mean, covariance = np.zeros((streams, 4)), np.tile(job.prior, (streams, 1, 1))
    offset, evidence = np.zeros((streams, 4)), np.zeros(streams)
    for t in range(steps):
        if t:
            mean, covariance = mean @ job.f.T, job.f @ covariance @ job.f.T + job.q
            offset = offset @ job.f.T
        error = job.y[:, t] - mean @ job.h.T
        inverse = np.linalg.inv(job.h @ covariance @ job.h.T + job.r)
        rival, is_jump = offset, np.zeros(streams, bool)
        if rule == "jumps":
            rival, evidence, wide, opened = _rival(job, covariance, inverse, error, offset, evidence)
            is_jump = evidence >= PATIENCE - 1
            covariance = np.where(is_jump[:, None, None], wide, covariance)
            inverse = np.where(is_jump[:, None, None], opened, inverse)
        cross = covariance @ job.h.T
        signal = job.h @ cross
        weight = np.ones(streams)
        for k in range(0 if rule == "Kalman" else PASSES):
            gain = np.linalg.inv(signal + job.r / weight[:, None, None])
            residual = error if k == 0 else _apply(job.r / weight[:, None, None] @ gain, error)
            weight = np.minimum(1, (NU + 2) / (NU + _distance(inverse, residual)))
        gain = cross @ np.linalg.inv(signal + job.r / weight[:, None, None])
        step = _apply(gain, error)
        mean = mean + step
        covariance = covariance - gain @ np.swapaxes(cross, -1, -2)
        offset = np.where(is_jump[:, None], 0.0, rival - step)
        evidence = np.where(is_jump, 0.0, evidence)
    return mean


def _rival(
    job: Job, covariance: Array, inverse: Array, error: Array, offset: Array, evidence: Array
) -> tuple[Array, Array, Array, Array]:
    """Apply the jump detection rule: the alternative at the observation, the evidence for it, and the prior of a state
    that jumped with the inverse of its innovation covariance.
    """
    expected = offset @ job.h.T
    own, other = (np.log1p(_distance(inverse, e) / NU) for e in (error, error - expected))
    evidence = np.maximum(0, evidence + np.minimum(1, (NU + 2) / 2 * (own - other) / np.log(20)))
    share = np.trace(inverse @ (job.h @ covariance @ job.h.T), axis1=1, axis2=2) / 2
    wide = np.maximum(1, 100 * (1 - share) / share)[:, None, None] * covariance
    opened = np.linalg.inv(job.h @ wide @ job.h.T + job.r)
    kept = np.where((evidence <= 0) & (_distance(inverse, expected) >= 1), 0.0, 1.0)[:, None] * offset
    return kept + _apply(wide @ job.h.T @ opened, error - kept @ job.h.T), evidence, wide, opened


def _distance(matrix: Array, x: Array) -> Array:
    return np.einsum("bi,bij,bj->b", x, matrix, x)


def _apply(matrix: Array, x: Array) -> Array:
    return (matrix @ x[..., None])[..., 0]
