"""A language bundle, calibrated anew.

    python -m rfa.export.recalibrate BUNDLE TOKENS      TOKENS: ids of held-out text as .npy, a run's corpus/valid.npy

Everything else of the bundle stays as it is, byte for byte, but for the manifest. What was written before bundles kept
held-out tokens gets them so.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from rfa.export.bundle import CONSTANTS_FILE, Bundle, BundleError, open_bundle
from rfa.export.decoder_constants import write_again
from rfa.export.language_calibration import calibrate_language
from rfa.export.loading import model_of


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


def main() -> None:
    """`python -m rfa.export.recalibrate BUNDLE TOKENS`."""
    parser = argparse.ArgumentParser(description="Calibrate a language bundle anew.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("tokens", type=Path, help="token ids as .npy: corpus/valid.npy of a run")
    arguments = parser.parse_args()
    bundle = recalibrate(arguments.bundle, arguments.tokens)
    sys.stdout.write(f"{bundle.name}: {bundle.digest}\n")


if __name__ == "__main__":
    main()
