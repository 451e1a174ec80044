"""Checks of the GPU's memory while a bundle is loaded. The messages say what to do."""

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
        needed: Bytes that it needs.
        use: What they are for, as the rest of a clause.
        settings: Settings that lower the need.

    Raises:
        UnsupportedError: There is not enough.
    """
    free = torch.cuda.mem_get_info()[0]
    if needed > free:
        raise UnsupportedError(
            f"bundle {name!r} needs {mib(needed)} of GPU memory{use}, but {mib(free)} are free; "
            f"lower {settings}, {ELSE}"
        )


@contextmanager
def sufficient_memory(name: str) -> Iterator[None]:
    """Convert an out-of-memory error, because other processes may take memory after the check."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise UnsupportedError(
            f"the GPU's memory was exhausted while bundle {name!r} was loaded; lower RFA_MAX_RUNNING or "
            f"RFA_PROCESSES, {ELSE}"
        ) from None


def mib(count: int) -> str:
    """Return a number of bytes in MiB, for a message."""
    return f"{count / (1 << 20):,.0f} MiB"
