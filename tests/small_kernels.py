"""A small language bundle with compiled kernels, which take the compiler some seconds: made once for all tests."""

from __future__ import annotations

from pathlib import Path

from rfa.export.gpu_kernels import add_kernels
from rfa.runtime.bundle.bundle import Bundle
from tests.small_language import BOTH, exported, made_once

ARCHITECTURE = 80


def with_kernels(home: Path) -> Bundle:
    """The small model of both modes, with the kernels of its recurrent one for sm_80; its heads are too narrow for
    those of attention.

    Args:
        home: the fixture `bundle_cache`.
    """
    bundle = exported(home, "small", BOTH)
    return made_once(home, "small-kernels", lambda path: add_kernels(bundle.path, [ARCHITECTURE], path))
