"""Batch sizes for which the results of a row do not depend on the other rows of the batch.

A matrix product chooses its kernel by the number of rows, and kernels sum in different orders. The last bits of a row
therefore depend on the batch size. The processor determines which sizes agree. They are found when a model is loaded,
and batches are padded to a size that agrees with the largest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Run = Callable[[NDArray[np.int64]], Sequence[NDArray[np.float32]]]
ROTATIONS = (0, 1, 5)


class BatchSizes:
    """Pads the batches of a model to one of a few sizes.

    Attributes:
        sizes: Batch sizes in ascending order.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sorted(sizes))

    def padded(self, rows: int) -> int:
        """Return the smallest batch size that is at least `rows`.

        Raises:
            ValueError: If no size is large enough.
        """
        for size in self.sizes:
            if size >= rows:
                return size
        raise ValueError(f"a batch contains {rows} rows, but the model was loaded for at most {self.sizes[-1]}")


def agreeing_sizes(run: Run, candidates: Sequence[int], rows: int) -> BatchSizes:
    """Return the candidate sizes for which every row has the same result, bit for bit, as in the largest batch, at any
    position.

    The largest batch is the first candidate with space for all rows whose results are equal, bit for bit, at all
    positions. Some candidates do not have this property, because some kernels sum an odd last row in another order. If
    no candidate has it, all batches are padded to one size.

    Args:
        run: Function that returns the outputs of the model for the given rows of a fixed example input.
        candidates: Sizes to try.
        rows: Maximum number of rows per batch.
    """
    enough = sorted(size for size in candidates if size >= rows)
    for largest in enough:
        expected = run(np.arange(largest))
        if _agrees(run, largest, largest, expected):
            smaller = [size for size in candidates if size < largest and _agrees(run, size, largest, expected)]
            return BatchSizes([*smaller, largest])
    return BatchSizes(enough[:1])


def _agrees(run: Run, size: int, largest: int, expected: Sequence[NDArray[np.float32]]) -> bool:
    for rotation in ROTATIONS:
        rows = (np.arange(size) + rotation) % largest
        for found, reference in zip(run(rows), expected, strict=True):
            if found.tobytes() != reference[rows].tobytes():
                return False
    return True
