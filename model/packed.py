"""Arrays of several types that are copied between host and device together.

A copy from pageable memory waits for the device, and a copy costs more than the bytes that it moves. So the arrays of a
call share one buffer of pinned memory.
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
# Bytes to align arrays to: Triton compiles another variant of a kernel for other addresses.
ALIGNMENT = 16


class Packed:
    """Uninitialised arrays in one buffer of the device and one of the host.

    Args:
        fields: type and shape of each.
        device: the device.

    Attributes:
        tensors: arrays on the device.
        arrays: arrays on the host, pinned for a GPU.
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
        """Copy from the host to the device, asynchronously."""
        self._there.copy_(self._here, non_blocking=True)

    def fetch(self) -> None:
        """Copy from the device to the host, and wait."""
        self._here.copy_(self._there)


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device; the host does not wait."""
    packed = Packed({"array": (torch.from_numpy(array[:0]).dtype, array.shape)}, device)
    packed.arrays["array"][...] = array
    packed.send()
    return packed.tensors["array"]
