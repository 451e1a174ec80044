"""decoder.safetensors: the constants that the compiled decoder needs and only torch can form from the weights.

    python -m rfa.export.decoder_constants BUNDLE       adds the file to a language bundle that was written without it

Everything else of the bundle stays as it is, byte for byte, but for the manifest, which lists the new file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.numpy

from rfa.export.writing import write_bundle
from rfa.model.decoder_constants import decoder_constants
from rfa.model.language import LanguageModel
from rfa.model.loading import model_of
from rfa.runtime.bundle.bundle import CONSTANTS_FILE, Bundle, BundleError, Graph, open_bundle
from rfa.runtime.bundle.stored_kernels import is_kernel_file

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def constants_file(model: LanguageModel) -> bytes:
    """The content of decoder.safetensors."""
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in decoder_constants(model).items()}
    return bytes(safetensors.numpy.save(arrays))


def add_constants(path: Path) -> Bundle:
    """Write a language bundle anew, in its place, with decoder.safetensors made of its own weights.

    Raises:
        BundleError: it is no language model, has no use for them, or is damaged.
    """
    bundle = open_bundle(path)
    if not bundle.language.has_constants:
        raise BundleError(f"bundle {bundle.name!r} has no slots that the compiled decoder knows")
    return write_again(bundle, path, constants_file(model_of(bundle)))


def write_again(
    bundle: Bundle,
    target: Path,
    constants: bytes | None,
    calibration: Mapping[str, Any] | None = None,
    kernels: Mapping[str, bytes] | None = None,
) -> Bundle:
    """A bundle, written to `target` with these constants, or with none.

    Args:
        calibration: its own, or another.
        kernels: files of compiled kernels; by default its own.
    """
    manifest = bundle.manifest
    extra_files = {name: bundle.read(name) for name in TOKENIZER_FILES if bundle.kind == "lm"}
    own = {name: bundle.read(name) for name in manifest.files if is_kernel_file(name)}
    extra_files.update(own if kernels is None else kernels)
    if constants is not None:
        extra_files[CONSTANTS_FILE] = constants
    return write_bundle(
        target,
        name=bundle.name,
        kind=bundle.kind,
        family=manifest.family,
        config=manifest.config,
        weights=bundle.weights(),
        graphs={name: Graph(bundle.read(spec.file), spec.initializers) for name, spec in manifest.graphs.items()},
        calibration=calibration or bundle.calibration,
        golden=bundle.golden,
        metrics=manifest.metrics,
        provenance=manifest.provenance,
        state=manifest.state,
        extra_files=extra_files,
    )


def main() -> None:
    """`python -m rfa.export.decoder_constants BUNDLE`."""
    parser = argparse.ArgumentParser(description="Add decoder.safetensors to a language bundle.")
    parser.add_argument("bundle", type=Path)
    bundle = add_constants(parser.parse_args().bundle)
    sys.stdout.write(f"{bundle.name}: {bundle.digest}\n")


if __name__ == "__main__":
    main()
