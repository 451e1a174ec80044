"""Determine the GPU on which a model runs. It is the GPU of its tensors, or a simulated one.

Launch interceptors (`rfa.model.kernel_launches`) may treat CPU tensors as if they were on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Compute capabilities of the GPUs that the process simulates. The last one is that of the innermost context.
_CAPABILITIES: list[tuple[int, int]] = []


@contextmanager
def simulated_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Treat tensors on any device as if they were on a GPU with the given compute capability, inside a context."""
    _CAPABILITIES.append(capability)
    try:
        yield
    finally:
        _CAPABILITIES.pop()


def is_simulated() -> bool:
    """Return whether launches are currently intercepted for a simulated GPU."""
    return bool(_CAPABILITIES)


def is_gpu(device: torch.device) -> bool:
    """Return whether GPU kernels process tensors on the given device, which is also the case for a simulated GPU."""
    return device.type == "cuda" or is_simulated()


def capability_of(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of the GPU. Return (0, 0) if there is none."""
    if _CAPABILITIES:
        return _CAPABILITIES[-1]
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
