"""Kernels compiled for GPUs, put into a bundle that is there already, in the place of those that it has.

    python -m rfa.export.gpu_kernels BUNDLE --gpu sm_80,sm_90

Everything else of the bundle stays as it is, byte for byte, but for the manifest, which lists the new files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rfa.export.bundle import CONSTANTS_FILE, Bundle, open_bundle
from rfa.export.decoder_constants import write_again
from rfa.export.kernel_compile import kernel_files, parse_architectures
from rfa.model.config import LanguageModelConfig


def add_kernels(path: Path, architectures: Sequence[int], target: Path | None = None) -> Bundle:
    """Write a language bundle anew with the kernels of its shapes, in its place or to `target`.

    Raises:
        BundleError: it is no language model, or is damaged.
        KernelCompilationError: no kernel runs it, or the compiler refuses one.
    """
    bundle = open_bundle(path)
    files = kernel_files(LanguageModelConfig.from_dict(bundle.config), architectures)
    constants = bundle.read(CONSTANTS_FILE) if bundle.language.has_constants and bundle.constants() else None
    return write_again(bundle, target or path, constants, kernels=files)


def main() -> None:
    """`python -m rfa.export.gpu_kernels BUNDLE --gpu ARCHITECTURES`."""
    parser = argparse.ArgumentParser(description="Put kernels compiled for GPUs into a language bundle.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--gpu", required=True, type=parse_architectures, metavar="ARCHITECTURES")
    arguments = parser.parse_args()
    bundle = add_kernels(arguments.bundle, arguments.gpu)
    sys.stdout.write(f"{bundle.name}: {bundle.digest}\n")


if __name__ == "__main__":
    main()
