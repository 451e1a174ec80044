"""Copy arrays of several types between host and device in one transfer.

The arrays share one pinned buffer, because copies from pageable memory wait for the device, and because each copy has a
fixed cost.
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
# Alignment in bytes. Triton compiles a separate kernel variant for unaligned addresses.
ALIGNMENT = 16


class Packed:
    """Arrays that share one buffer on the device and one on the host. They are not initialised.

    Args:
        fields: Type and shape of each array.
        device: Device of the tensors.

    Attributes:
        tensors: Arrays on the device.
        arrays: Arrays on the host, in pinned memory if the device is a GPU.
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
        """Copy the arrays from the host to the device asynchronously."""
        self._there.copy_(self._here, non_blocking=True)

    def fetch(self) -> None:
        """Copy the arrays from the device to the host, and wait for the copy."""
        self._here.copy_(self._there)


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy a host array to a device without waiting for the copy, and return the tensor on the device."""
    packed = Packed({"array": (torch.from_numpy(array[:0]).dtype, array.shape)}, device)
    packed.arrays["array"][...] = array
    packed.send()
    return packed.tensors["array"]
