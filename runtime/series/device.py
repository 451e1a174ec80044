"""Process a long piece of a series with the network on another device. Its tokens and outputs are computed on the CPU.

Results equal those of the compiled network up to rounding, and both write the same states, so a stream can continue on
either. If the device runs out of memory or computes a non-finite number, the rows are processed by compiled code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from rfa.runtime.filters.step_call import StepCall
from rfa.runtime.series.chunk import Chunk, finish, most_rows, prepare
from rfa.runtime.series.config import PATCH
from rfa.runtime.uncertainty.interface import reply_rows

if TYPE_CHECKING:
    from rfa.runtime.series.network_steps import NetworkSteps

Array = np.ndarray
# First key of the buffers of chunks. The keys of other calls begin with a number of columns.
_CHUNK_KEY = -1


class ColumnStates(NamedTuple):
    """States of the network for the P columns of a stream.

    Attributes:
        hidden: States after the last tokens, `[P, d]`.
        means: Means of the memory slots, `[P, L, H, S, 4D]`, for L layers, H heads, S slots and D complex dimensions.
        precisions: Precisions of the memory slots, `[P, L, H, S]`.
    """

    hidden: Array
    means: Array
    precisions: Array


class SeriesDevice(Protocol):
    """Runs the network on a device other than the CPU.

    Attributes:
        name: Name of the device.
        least_tokens: Smallest number of tokens for which the device is faster than the CPU, including transfers.
    """

    name: str
    least_tokens: int

    def run(self, chunk: Chunk, tokens: int, queries: int, columns: ColumnStates) -> bool:
        """Run the network on the tokens and queries of a chunk, and write its outputs to the chunk.

        Args:
            chunk: Chunk that `prepare` has filled.
            tokens, queries: Numbers of tokens and queries in the chunk.
            columns: States before the chunk.

        Returns:
            False if memory was exhausted, or if a stream would store a non-finite number. Otherwise, True.
        """
        ...

    def hold_to_golden(self) -> int:
        """Compare the network on the device with the bundle's golden outputs, and return the number of compared values.

        Raises:
            BundleError: If a value differs by more than its tolerance.
        """
        ...


def run_on_device(device: SeriesDevice, steps: NetworkSteps, call: StepCall, end: int) -> bool:
    """Process the rows of a batch of one stream up to index `end`.

    Args:
        device: Device that runs the network.
        steps: Object that provides the network and its buffers.
        call: The batch, and arrays for its outputs.
        end: Index after the last row to process.

    Returns:
        Whether the device processed the rows and all results are finite. If not, or if an exception is raised, the
        stream is unchanged.
    """
    packed = call.batch.packed()
    row = int(packed[0][0])
    before = {name: array[row].copy() for name, array in call.pool.arrays.items()}
    is_done = False
    try:
        is_done = _run(device, steps, call, packed, end)
    finally:
        if not is_done:
            for name, value in before.items():
                call.pool.arrays[name][row] = value
    return is_done


def _run(device: SeriesDevice, steps: NetworkSteps, call: StepCall, packed: tuple[Array, ...], end: int) -> bool:
    pool_row, row = packed[0][:1].copy(), int(packed[0][0])
    cursor, last, passed = np.zeros(1, np.int64), np.array([end]), np.zeros(1, np.int64)
    size, cost, horizon = steps.size, reply_rows(call.readout), len(call.readout.horizon)
    max_rows = min(PATCH, most_rows(size, cost))
    chunks = steps.buffers.borrow(
        (_CHUNK_KEY, size, cost, horizon), lambda: Chunk.allocate(steps.decoder, size, cost, horizon)
    )
    with steps.borrow(call.pool, call.readout, 1, max_rows) as borrowed, chunks as chunk:
        stored = borrowed.stored
        columns = ColumnStates(*(array[row] for array in (stored.hidden, stored.means, stored.precisions)))
        while cursor[0] < end:
            tokens, queries, rows = prepare(
                borrowed.handle, chunk, packed, pool_row, cursor, last, passed, max_rows
            )  # fmt: skip
            if not device.run(chunk, tokens, queries, columns):
                return False
            finish(borrowed.handle, chunk, rows, packed, pool_row, call.outputs, call.trace)
            if not call.outputs.is_good[chunk.rows.batch_row[:rows]].all():
                return False
    return True
