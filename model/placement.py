"""Which GPU a model runs on: that of its tensors, or one that somebody stands in for.

Who takes all launches (`rfa.model.kernel_launches`), to record or to emulate them, has tensors on a CPU go the way that
those of a GPU go, with the launch table's entries for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Of the GPUs that are stood in for, the last one now. Of the process, as the launches that are taken are.
_CAPABILITIES: list[tuple[int, int]] = []


@contextmanager
def as_on_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Within it, tensors of any device count as those of a GPU of this compute capability, and kernels as compiled."""
    _CAPABILITIES.append(capability)
    try:
        yield
    finally:
        _CAPABILITIES.pop()


def is_stood_in_for() -> bool:
    """Whether somebody takes the launches for a GPU that is not here."""
    return bool(_CAPABILITIES)


def is_gpu(device: torch.device) -> bool:
    """Whether what is on a device is for a GPU's kernels."""
    return device.type == "cuda" or is_stood_in_for()


def capability_of(device: torch.device) -> tuple[int, int]:
    """The compute capability of the GPU; (0, 0) where there is none."""
    if _CAPABILITIES:
        return _CAPABILITIES[-1]
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
