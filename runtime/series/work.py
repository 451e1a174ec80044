"""What rows of the series network cost, which their times tell before it is paid.

A row makes a token of each of its P columns, and after a gap one of each for every patch of empty cells, in a wave of
its own. In rows of one column, which come together and are asked for nothing,

    P r + (P + WAVE) (n - 1) / 16        n: cells since the row before; r: what is told of it, `reply_rows`
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

import numpy as np

from rfa.runtime.compiling import kernel_jit
from rfa.runtime.series import stream_numba
from rfa.runtime.series.config import PATCH
from rfa.runtime.series.stream_numba import MOST_EMPTY

Array = np.ndarray
# What a wave costs beside its tokens, in rows.
WAVE: Final = 3.0


@kernel_jit(*stream_numba.SOURCES, stream_numba)
def count_cells(clock, times, cells):
    """Of rows at these times the cells since the row before, into `cells`; the clock moves on."""
    for row in range(len(times)):
        cells[row] = stream_numba.cells_to_pass(clock, times[row])


def row_work(clock: Array, times: Array, told: int, columns: int) -> Array:
    """What each of some rows costs.

    Args:
        clock: of the stream, as its seat has it.
        times: of the rows, `[R]`.
        told: what is told of a row, by `reply_rows`.
    """
    cells = np.empty(len(times), np.int64)
    count_cells(clock.copy(), np.array(times, np.float64), cells)
    # A state from elsewhere may claim any clock.
    empty = np.clip(cells - 1, 0, MOST_EMPTY)
    work: Array = columns * told + (columns + WAVE) / PATCH * empty
    return work
