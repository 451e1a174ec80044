"""Check the GPU's memory while a bundle is loaded. The error messages state what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rfa.runtime.errors import UnsupportedError

ELSE = "stop other processes that use the GPU, or serve with RFA_DEVICE=cpu"


def check_free_memory(name: str, needed: int, use: str, settings: str) -> None:
    """Check that there is enough free memory before any is allocated.

    Args:
        name: Name of the bundle.
        needed: Number of bytes that the bundle needs.
        use: Purpose of the memory, such as " for long series", or an empty text.
        settings: Names of the settings that reduce the memory that is needed.

    Raises:
        UnsupportedError: If there is not enough memory. The message states what to do.
    """
    free = torch.cuda.mem_get_info()[0]
    if needed > free:
        raise UnsupportedError(
            f"bundle {name!r} needs {mib(needed)} of GPU memory{use}, but {mib(free)} are free; "
            f"lower {settings}, {ELSE}"
        )


@contextmanager
def sufficient_memory(name: str) -> Iterator[None]:
    """Convert an out-of-memory error in a context to an UnsupportedError. The device may run out of memory in spite of
    the check if other processes allocate memory after it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise UnsupportedError(
            f"the GPU ran out of memory while bundle {name!r} was loaded; lower RFA_MAX_RUNNING or "
            f"RFA_PROCESSES, {ELSE}"
        ) from None


def mib(count: int) -> str:
    """Return a number of bytes in MiB, for a message."""
    return f"{count / (1 << 20):,.0f} MiB"
