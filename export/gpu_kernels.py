"""Compile GPU kernels, and store them in an existing bundle instead of its own kernels.

    python -m rfa.export.gpu_kernels BUNDLE --gpu sm_80,sm_90

All other files except the manifest stay identical.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rfa.export.kernel_compile import KernelCompilationError, kernel_files, parse_architectures
from rfa.export.writing import rewrite_bundle
from rfa.runtime.bundle.bundle import CONSTANTS_FILE, Bundle, BundleError, open_bundle
from rfa.runtime.bundle.manifest import SIGNATURE_FILE
from rfa.runtime.text.config import LanguageModelConfig


def add_kernels(path: Path, architectures: Sequence[int], target: Path | None = None) -> Bundle:
    """Compile GPU kernels for a language model, and store them in its bundle. Return the new bundle.

    Args:
        path: Directory of the bundle.
        architectures: GPU architectures, such as 80 and 90.
        target: Directory of the new bundle. By default, the bundle is replaced.

    Raises:
        BundleError: If the bundle does not contain a language model, or is damaged.
        KernelCompilationError: If no kernel supports the model, or a kernel does not compile.
    """
    bundle = open_bundle(path)
    if bundle.kind != "lm":
        raise BundleError(
            f"bundle {bundle.name!r} has kind {bundle.kind!r}, but only language models can store kernels"
        )
    files = kernel_files(LanguageModelConfig.from_dict(bundle.config), architectures)
    constants = bundle.read(CONSTANTS_FILE) if bundle.language.has_constants and bundle.constants() else None
    return rewrite_bundle(bundle, target or path, constants, kernels=files)


def main() -> None:
    """Run the command `python -m rfa.export.gpu_kernels BUNDLE --gpu ARCHITECTURES`."""
    parser = argparse.ArgumentParser(
        description="Compile GPU kernels and store them in the bundle of a language model."
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument(
        "--gpu",
        required=True,
        metavar="ARCHITECTURES",
        help="GPU architectures, separated by commas, such as sm_80,sm_90",
    )
    arguments = parser.parse_args()
    was_signed = (arguments.bundle / SIGNATURE_FILE).exists()
    try:
        bundle = add_kernels(arguments.bundle, parse_architectures(arguments.gpu))
    except (KernelCompilationError, OSError, ValueError) as error:
        parser.exit(1, f"gpu_kernels: {error}\n")
    sys.stdout.write(f"{bundle.name}: {bundle.digest}{', not signed yet' if was_signed else ''}\n")


if __name__ == "__main__":
    main()
