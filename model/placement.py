"""Which GPU a model runs on: that of its tensors, or a simulated one.

An interceptor of launches (`rfa.model.kernel_launches`) treats CPU tensors as those of a GPU of some capability.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Capabilities of simulated GPUs, the last one active, for the process.
_CAPABILITIES: list[tuple[int, int]] = []


@contextmanager
def simulated_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Treat tensors of any device as those of a GPU of this compute capability."""
    _CAPABILITIES.append(capability)
    try:
        yield
    finally:
        _CAPABILITIES.pop()


def is_simulated() -> bool:
    """Whether launches are intercepted for a simulated GPU."""
    return bool(_CAPABILITIES)


def is_gpu(device: torch.device) -> bool:
    """Whether tensors on a device go to GPU kernels."""
    return device.type == "cuda" or is_simulated()


def capability_of(device: torch.device) -> tuple[int, int]:
    """Compute capability of the GPU; (0, 0) without one."""
    if _CAPABILITIES:
        return _CAPABILITIES[-1]
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
