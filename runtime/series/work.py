"""The cost of rows of the series network, from their times, before they are computed.

A row makes a token of each of its P columns. After a gap it also makes one for every patch of empty cells, each in a
call of its own:

    P r + (P + CALL) (n - 1) / 16        n: cells since the row before; r: cost of the row's outputs, `reply_rows`
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

import numpy as np

from rfa.runtime import local_time_numba
from rfa.runtime.compiling import kernel_jit
from rfa.runtime.series import clock_numba, config
from rfa.runtime.series import leads as series_leads
from rfa.runtime.series.clock_numba import MOST_EMPTY, advance_clock
from rfa.runtime.series.config import PATCH

Array = np.ndarray
# Cost of a call in addition to its tokens, in rows.
CALL: Final = 3.0
# The hour more or less of a clock change costs little.
NO_OFFSETS: Final = np.empty((0, 2))


@kernel_jit(clock_numba, config, local_time_numba, series_leads)
def count_cells(clock, times, cells):
    """Write the cells between rows at these times to `cells`; the clock moves on."""
    for row in range(len(times)):
        cells[row] = advance_clock(clock, times[row], NO_OFFSETS)


def row_work(clock: Array, times: Array, output_cost: int, columns: int) -> Array:
    """The cost of each row.

    Args:
        clock: of the stream, as the pool stores it.
        times: of the rows, `[R]`.
        output_cost: of a row, by `reply_rows`.
    """
    cells = np.empty(len(times), np.int64)
    count_cells(clock.copy(), np.array(times, np.float64), cells)
    # A client may have changed the state, and with it the clock.
    empty = np.clip(cells - 1, 0, MOST_EMPTY)
    work: Array = columns * output_cost + (columns + CALL) / PATCH * empty
    return work
