"""A small language bundle with compiled kernels, made once for all tests because compiling takes seconds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rfa.export import kernel_compile
from rfa.export.gpu_kernels import add_kernels
from rfa.runtime.bundle.bundle import Bundle
from tests.small_language import BOTH, exported, made_once

ARCHITECTURE = 80
# 18 of 35 kernels: those of one dtype for few streams and short prompts, and for draws from all tokens.
FLOAT32_WORKER = """
import torch
from rfa.export import kernel_compile, kernel_recording
kernel_recording.DTYPES = (torch.float32,)
kernel_recording.SIZES = kernel_recording.SIZES[:2]
kernel_recording._run_draws = lambda passes, output: passes.draw(output, False)
kernel_compile.main()
"""


def with_kernels(home: Path) -> Bundle:
    """Return the small model of both modes with the kernels of its recurrent mode for sm_80. Its heads are too narrow
    for attention kernels.

    Args:
        home: The fixture `bundle_cache`.
    """
    bundle = exported(home, "small", BOTH)
    return made_once(home, "small-kernels", lambda path: add_kernels(bundle.path, [ARCHITECTURE], path))


def with_float32_kernels(home: Path) -> Bundle:
    """Return the same model with the kernels for float32 and few streams only."""
    bundle = exported(home, "small", BOTH)

    def make(path: Path) -> Bundle:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel_compile, "WORKER", (sys.executable, "-c", FLOAT32_WORKER))
            return add_kernels(bundle.path, [ARCHITECTURE], path)

    return made_once(home, "small-float32-kernels", make)
