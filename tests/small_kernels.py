"""A small language bundle with compiled kernels, made once for all tests because compiling takes seconds."""

from __future__ import annotations

from pathlib import Path

from rfa.export.gpu_kernels import add_kernels
from rfa.runtime.bundle.bundle import Bundle
from tests.small_language import BOTH, exported, made_once

ARCHITECTURE = 80


def with_kernels(home: Path) -> Bundle:
    """Return the small model of both modes with the kernels of its recurrent mode for sm_80. Its heads are too narrow
    for attention kernels.

    Args:
        home: The fixture `bundle_cache`.
    """
    bundle = exported(home, "small", BOTH)
    return made_once(home, "small-kernels", lambda path: add_kernels(bundle.path, [ARCHITECTURE], path))
