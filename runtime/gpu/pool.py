"""Memory slots of many streams on a device.

Each stream has two rows of device memory. The rows of all streams are followed by rows for padding. Each padding row of
a batch reads the initial state and writes to its own row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from rfa.model.decoder import SlotPool
from rfa.runtime.pool import Array, DoubleBufferedPool, PoolSlot

Rows = NDArray[np.int64]


class DevicePool(DoubleBufferedPool):
    """Pool of the memory slots of recurrent streams on a device.

    Args:
        means, precisions: State of a new stream, `[L, H, S, 4D]` and `[L, H, S]`.
        capacity: Number of streams.
        padding: Maximum number of padding rows per batch.
        device: Device of the pool.
    """

    def __init__(
        self, means: NDArray[np.float32], precisions: NDArray[np.float32], capacity: int, padding: int, device: str
    ) -> None:
        super().__init__(capacity)
        self.initial_row = 2 * capacity
        self.padding_rows: Rows = np.arange(padding) + 2 * capacity + 1
        count = 2 * capacity + 1 + padding
        self.slots = SlotPool(*(_rows_of(part, count, self.initial_row, device) for part in (means, precisions)))

    @staticmethod
    def bytes_needed(context_bytes: int, capacity: int, padding: int) -> int:
        """Return the device memory of a pool of the given size, in bytes."""
        return (2 * capacity + 1 + padding) * context_bytes

    def read(self, slot: PoolSlot) -> dict[str, Array]:
        """Return copies of the means and precisions of a stream."""
        row = int(self.current_rows([slot])[0])
        return {name: part[:, row].cpu().numpy().copy() for name, part in self.slots._asdict().items()}

    def write(self, slot: PoolSlot, values: Mapping[str, Array | float]) -> None:
        """Set the means and precisions of a stream."""
        row = int(self.current_rows([slot])[0])
        for name, value in values.items():
            part: torch.Tensor = getattr(self.slots, name)
            part[:, row] = torch.tensor(value, device=part.device)

    def copy(self, source: PoolSlot, target: PoolSlot) -> None:
        """Copy the memory slots of a stream to another stream."""
        self._copy_row(int(self.current_rows([source])[0]), int(self.current_rows([target])[0]))

    def _copy_row(self, source: int, target: int) -> None:
        for part in self.slots:
            part[:, target] = part[:, source]

    def _clear(self, index: int) -> None:
        super()._clear(index)
        for part in self.slots:
            part[:, 2 * index : 2 * index + 2] = 0


def _rows_of(initial: NDArray[np.float32], count: int, initial_row: int, device: str) -> torch.Tensor:
    """Return a tensor `[L, count, …]` with zeros for the streams, followed by the initial state."""
    start = torch.from_numpy(initial.copy()).to(device)
    rows = torch.zeros((start.shape[0], count, *start.shape[1:]), device=device)
    rows[:, initial_row:] = start[:, None]
    return rows
