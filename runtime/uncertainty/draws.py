"""Samples of states. They depend only on a seed and a position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import NO_SAMPLES, Readout

if TYPE_CHECKING:
    from rfa.runtime.filters.steps import Traced

Array = np.ndarray


def state_samples(
    readout: Readout, trace: Traced, outputs: StepOutputs, seeds: int | Sequence[int]
) -> list[Array] | None:
    """Return samples of the state of each row, `[samples, P]`. They are empty for invalid rows. Return None if no
    samples are requested.

    Args:
        readout: Requested outputs.
        trace: Intermediate results that contain the covariances.
        outputs: Outputs that contain the means.
        seeds: Seed of all rows, or of each row.
    """
    if not readout.samples:
        return None
    good, position = outputs.is_good, outputs.position.tolist()
    keys = [seeds] * len(position) if isinstance(seeds, int) else seeds
    # The covariance of an invalid row may have any value.
    covariances = np.where(good[:, None, None], readout.calibration.state_scale**2 * trace.covariance[: len(good)], 0.0)
    paths = draw(outputs.mean, covariances, readout.samples, keys, position)
    paths = paths.clip(*readout.options.range) if readout.has_range else paths
    # The rows are copied, so that a reference to one row does not keep the samples of all rows alive.
    return [path.copy() if is_good else NO_SAMPLES for is_good, path in zip(good.tolist(), paths, strict=True)]


def draw(means: Array, covariances: Array, samples: int, seeds: Sequence[int], indices: Sequence[int]) -> Array:
    """Return normal samples `[R, samples, n]`.

    The random numbers of a row depend only on its seed and index.

    Args:
        means, covariances: Parameters of the distributions, `[R, n]` and `[R, n, n]`.
        samples: Number of samples per row.
        seeds, indices: Seed of each row, and its position in its stream.
    """
    bits = np.random.Philox(0)
    fresh, source = bits.state, np.random.Generator(bits)
    normal = np.empty((len(means), samples, means.shape[1]))
    for row, key in enumerate(zip(seeds, indices, strict=True)):
        fresh["state"]["key"][:] = key[0] & (2**64 - 1), key[1]
        bits.state = fresh
        source.standard_normal(out=normal[row])
    values, vectors = np.linalg.eigh((covariances + covariances.swapaxes(1, 2)) / 2)
    found: Array = means[:, None] + (normal * np.sqrt(np.maximum(values, 0.0))[:, None]) @ vectors.swapaxes(1, 2)
    return found
