"""A long piece of a series on a device beside the processor: its network there, tokens and what is told of them here.

Numbers are those of the compiled network within rounding, and states are of one form: a stream goes on on either. What
is not finite on the device, or finds no memory there, is taken by the compiled code instead, which says at which row it
is not finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from rfa.runtime.filters.steps import Batch, Traced
from rfa.runtime.pool import StatePool
from rfa.runtime.series.chunk import Chunk, conclude, lay_out, most_rows
from rfa.runtime.series.config import PATCH
from rfa.runtime.series.rooms import Rooms
from rfa.runtime.uncertainty.interface import reply_rows
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import Readout

if TYPE_CHECKING:
    from rfa.runtime.series.filter import NetworkSteps

Array = np.ndarray
# Rooms of chunks among those of waves, which begin with a number of columns.
_OF_CHUNKS = -1


class Begun(NamedTuple):
    """What the network left of the columns of a stream, `kept` of `stream_numba`: `[P, d]`, `[P, L, H, S, 4D]` and
    `[P, L, H, S]`."""

    hidden: Array
    means: Array
    precisions: Array


class SeriesDevice(Protocol):
    """What a network runs on beside the processor.

    Attributes:
        name: of the device.
        least_tokens: from which on it is worth the way there.
    """

    name: str
    least_tokens: int

    def run(self, chunk: Chunk, tokens: int, asks: int, begun: Begun) -> bool:
        """Run the network on the tokens and asks of a chunk, and fill in what it gave; whether there was memory for it,
        and all that a stream would keep of it is finite."""
        ...

    def hold_to_golden(self) -> int:
        """Hold it to the bundle's golden outputs; how many values it gave.

        Raises:
            BundleError: it gave others.
        """
        ...


def follow_on(
    device: SeriesDevice, steps: NetworkSteps, pool: StatePool, batch: Batch, readout: Readout, told: StepOutputs,
    trace: Traced, end: int,
) -> bool:  # fmt: skip
    """Take the rows of a batch of one stream up to an end; whether the device did and all of them were finite, else
    the stream is as it was, and so it is where the device fails."""
    packed = batch.packed()
    row = int(packed[0][0])
    before = {name: array[row].copy() for name, array in pool.arrays.items()}
    is_done = False
    try:
        is_done = _follow(device, steps, pool, packed, readout, told, trace, end)
    finally:
        if not is_done:
            for name, value in before.items():
                pool.arrays[name][row] = value
    return is_done


def _follow(
    device: SeriesDevice, steps: NetworkSteps, pool: StatePool, packed: tuple[Array, ...], readout: Readout,
    told: StepOutputs, trace: Traced, end: int,
) -> bool:  # fmt: skip
    seat, row = packed[0][:1].copy(), int(packed[0][0])
    cursor, last, gone = np.zeros(1, np.int64), np.array([end]), np.zeros(1, np.int64)
    size, cost = steps.size, reply_rows(readout)
    most = min(PATCH, most_rows(size, cost))
    with steps.taken(pool, readout, 1, most) as taken, _room(steps, cost, len(readout.horizon)) as chunk:
        begun = Begun(*(array[row] for array in (taken.kept.hidden, taken.kept.means, taken.kept.precisions)))
        while cursor[0] < end:
            tokens, asks, rows = lay_out(taken.handle, chunk, packed, seat, cursor, last, gone, most)
            if not device.run(chunk, tokens, asks, begun):
                return False
            conclude(taken.handle, chunk, rows, packed, seat, told, trace)
            if not told.is_good[chunk.rows.at[:rows]].all():
                return False
    return True


@contextmanager
def _room(steps: NetworkSteps, told: int, horizon: int) -> Iterator[Chunk]:
    def make() -> Chunk:
        return Chunk.of(steps.decoder, steps.size, told, horizon)

    rooms: Rooms = steps.rooms
    with rooms.lent((_OF_CHUNKS, steps.size, told, horizon), make) as chunk:
        yield chunk
