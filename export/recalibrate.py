"""A bundle, calibrated anew.

    python -m rfa.export.recalibrate BUNDLE DATA

DATA of a language model: ids of held-out text as .npy, a run's corpus/valid.npy. What was written before bundles kept
held-out tokens gets them so. Of a filter: simulated data with their truth, a run's validation.safetensors; calibrated
is the precision alone, which older bundles do not have.

Everything else of the bundle stays as it is, byte for byte, but for the manifest.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from rfa.export.decoder_constants import write_again
from rfa.export.filter_calibration import with_precision
from rfa.export.filter_export import load_batch
from rfa.export.language_calibration import calibrate_language
from rfa.model.batch import Batch
from rfa.model.loading import model_of
from rfa.runtime.bundle.bundle import CONSTANTS_FILE, Bundle, BundleError, open_bundle


def recalibrate(path: Path, tokens: Path) -> Bundle:
    """Calibrate a language bundle on tokens that its training has not seen, and write it anew in its place.

    Raises:
        BundleError: it is no language model, or damaged.
        ValueError: too few tokens.
    """
    bundle = open_bundle(path)
    if bundle.kind != "lm":
        raise BundleError(f"bundle {bundle.name!r} is no language model")
    calibration = calibrate_language(
        model_of(bundle),
        np.load(tokens, mmap_mode="r", allow_pickle=False),
        window=bundle.calibration["data"]["window"],
    )
    constants = bundle.read(CONSTANTS_FILE) if bundle.constants() is not None else None
    return write_again(bundle, path, constants, calibration)


def recalibrate_precision(path: Path, simulated: Batch) -> Bundle:
    """Calibrate the precision of a filter bundle on data with a truth, and write it anew in its place.

    Raises:
        BundleError: it is no filter, or damaged.
        ValueError: the data have no truth.
    """
    bundle = open_bundle(path)
    if bundle.kind != "filter":
        raise BundleError(f"bundle {bundle.name!r} is no filter")
    return write_again(bundle, path, None, with_precision(bundle.calibration, model_of(bundle), simulated))


def main() -> None:
    """`python -m rfa.export.recalibrate BUNDLE DATA`."""
    parser = argparse.ArgumentParser(description="Calibrate a bundle anew.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("data", type=Path, help="tokens as .npy, or simulated series as .safetensors: of a run")
    arguments = parser.parse_args()
    if open_bundle(arguments.bundle).kind == "lm":
        bundle = recalibrate(arguments.bundle, arguments.data)
    else:
        bundle = recalibrate_precision(arguments.bundle, load_batch(arguments.data))
    sys.stdout.write(f"{bundle.name}: {bundle.digest}\n")


if __name__ == "__main__":
    main()
