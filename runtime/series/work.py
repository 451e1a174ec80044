"""Cost of rows of the series network, which is computed from their times before the rows are processed.

A row creates a token for each of its P columns. After a gap, it also creates one for every patch of empty cells, each
in a separate call:

    P r + (P + CALL) (n - 1) / 16        n: cells since the previous row; r: cost of the row's outputs (`reply_rows`)
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

import numpy as np

from rfa.runtime import local_time_numba, typical_lag
from rfa.runtime.compiling import kernel_jit
from rfa.runtime.series import clock_numba, config
from rfa.runtime.series import leads as series_leads
from rfa.runtime.series.clock_numba import MOST_EMPTY, advance_clock
from rfa.runtime.series.config import PATCH

Array = np.ndarray
# Cost of a call in addition to that of its tokens, in rows.
CALL: Final = 3.0
# The additional or missing hour of a clock change costs little.
NO_OFFSETS: Final = np.empty((0, 2))


@kernel_jit(clock_numba, config, local_time_numba, series_leads, typical_lag)
def count_cells(clock, times, cells):
    """Write the number of cells between rows at the given times to `cells`, and advance the clock."""
    for row in range(len(times)):
        cells[row] = advance_clock(clock, times[row], NO_OFFSETS)


def row_work(clock: Array, times: Array, output_cost: int, columns: int) -> Array:
    """Return the cost of processing each row, `[R]`.

    Args:
        clock: Clock of the stream, as stored in the pool.
        times: Times of the rows, `[R]`.
        output_cost: Cost of the outputs of a row (`reply_rows`).
        columns: Number of columns.
    """
    cells = np.empty(len(times), np.int64)
    count_cells(clock.copy(), np.array(times, np.float64), cells)
    # A client may have changed the state, including the clock.
    empty = np.clip(cells - 1, 0, MOST_EMPTY)
    work: Array = columns * output_cost + (columns + CALL) / PATCH * empty
    return work
