"""Arrays of several types that cross between the host and a device together, in one copy.

A copy from memory that the host may swap out waits for the device, and each costs more than what it moves: what a call
needs is laid side by side in locked memory and sent at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

Fields = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
# Bytes that every array begins at a multiple of: Triton makes another variant of a kernel for one that does not.
ALIGNMENT = 16


class Packed:
    """Arrays in one piece of a device's memory and in one of the host's, unwritten.

    Args:
        fields: type and shape of each.
        device: the device.

    Attributes:
        tensors: the arrays on the device.
        arrays: those on the host, which a GPU reads and writes by itself.
    """

    def __init__(self, fields: Fields, device: torch.device) -> None:
        sizes = {name: dtype.itemsize * math.prod(shape) for name, (dtype, shape) in fields.items()}
        *starts, end = accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values()), initial=0)
        self._there = torch.empty(end, dtype=torch.uint8, device=device)
        self._here = torch.empty(end, dtype=torch.uint8, pin_memory=self._there.is_cuda)
        self.tensors: dict[str, Tensor] = {}
        self.arrays: dict[str, NDArray[Any]] = {}
        for start, (name, (dtype, shape)) in zip(starts, fields.items(), strict=True):
            there, here = (memory[start : start + sizes[name]] for memory in (self._there, self._here))
            self.tensors[name] = there.view(dtype).view(shape)
            self.arrays[name] = here.view(dtype).view(shape).numpy()

    def send(self) -> None:
        """Copy from the host to the device, behind what it was given to do."""
        self._there.copy_(self._here, non_blocking=True)

    def fetch(self) -> None:
        """Copy from the device to the host, and wait for it."""
        self._here.copy_(self._there)


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device, behind what it was given to do; the host does not wait."""
    given = Packed({"array": (torch.from_numpy(array[:0]).dtype, array.shape)}, device)
    given.arrays["array"][...] = array
    given.send()
    return given.tensors["array"]
