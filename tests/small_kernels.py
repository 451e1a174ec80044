"""A small language bundle with compiled kernels, which take the compiler some seconds: made once for all tests."""

from __future__ import annotations

import fcntl
from pathlib import Path

from rfa.export.gpu_kernels import add_kernels
from rfa.runtime.bundle.bundle import Bundle, open_bundle
from tests.small_language import BOTH, exported

ARCHITECTURE = 80


def with_kernels(home: Path) -> Bundle:
    """The small model of both modes, with the kernels of its recurrent one for sm_80; its heads are too narrow for
    those of attention.

    Args:
        home: a folder that all processes of a run of the tests share.
    """
    path = home / "exported" / "small-kernels"
    bundle = exported(home, "small", BOTH)
    with (home / "small-kernels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return open_bundle(path) if path.exists() else add_kernels(bundle.path, [ARCHITECTURE], path)
