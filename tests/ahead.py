"""Compiles kernels that tests need, in parallel with tests that need none."""

from __future__ import annotations

from pathlib import Path

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.text.decoder_numba import compile_kernels
from tests.runtime.loading import load_filter

BUNDLES = Path(__file__).resolve().parent.parent / "bundles"

if __name__ == "__main__":
    compile_kernels()
    load_filter(open_bundle(BUNDLES / "linear"))
