"""Batch sizes at which a row's numbers do not depend on its neighbours.

A matrix product picks its kernel by the number of rows, and the kernels sum in different orders: at some sizes the last
bits of a row differ from those at others. Which sizes agree depends on the processor, so a model is asked when it is
loaded, and batches are padded to a size that agrees with the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Run = Callable[[NDArray[np.int64]], Sequence[NDArray[np.float32]]]
ROTATIONS = (0, 1, 5)


class BatchSizes:
    """The sizes that a model's batches are padded to, ascending."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sorted(sizes))

    def padded(self, rows: int) -> int:
        """The smallest of the sizes that holds `rows`.

        Raises:
            ValueError: none does.
        """
        for size in self.sizes:
            if size >= rows:
                return size
        raise ValueError(f"a batch of {rows} rows, where the model was loaded for {self.sizes[-1]}")


def agreeing_sizes(run: Run, candidates: Sequence[int], rows: int) -> BatchSizes:
    """The candidates at which every row comes out as in the largest batch, wherever in the batch it stands.

    The largest is the first that holds all rows and in which they come out alike themselves: a batch of five has an odd
    row, which some kernels sum in an order of its own. Where there is none all batches are padded to one size.

    Args:
        run: the model's outputs for these rows of some fixed example input.
        candidates: sizes to try.
        rows: of a batch, at most.
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
        for found, wanted in zip(run(rows), expected, strict=True):
            if found.tobytes() != wanted[rows].tobytes():
                return False
    return True
