"""calibration.json of a language bundle, made anew: for a bundle that an older calibration was exported with.

    python -m export.recalibrate BUNDLE RUN         from the validation tokens of the run that the bundle was made of

Everything else of the bundle stays as it is, byte for byte, but for the manifest, which has its hash and summary.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from export.bundle import CONSTANTS_FILE, Bundle, BundleError, open_bundle
from export.decoder_constants import write_again
from export.language_calibration import WINDOW, calibrate_language
from export.language_export import TOKENIZER_FILE, VALIDATION_FILE, bundle_weights
from model.checkpoint import load_model
from model.language import LanguageModel


def recalibrate(path: Path, run: Path, *, window: int = WINDOW) -> Bundle:
    """Write a language bundle anew, in its place, with the calibration that its export would give it today.

    Args:
        run: what it was exported from.

    Raises:
        BundleError: it is no language model, or not of this run.
    """
    bundle = open_bundle(path)
    if bundle.kind != "lm":
        raise BundleError(f"bundle {bundle.name!r} is no language model")
    model = load_model(run)
    is_same = isinstance(model, LanguageModel) and bundle.read(TOKENIZER_FILE) == (run / TOKENIZER_FILE).read_bytes()
    if not is_same or not _agree(bundle_weights(model), bundle.weights()):
        raise BundleError(f"bundle {bundle.name!r} was not exported from {run.name}: tokenizer or weights differ")
    tokens = np.load(run / VALIDATION_FILE, mmap_mode="r", allow_pickle=False)
    calibration = calibrate_language(model, tokens, window=window)
    constants = bundle.read(CONSTANTS_FILE) if bundle.constants() is not None else None
    return write_again(bundle, path, constants, calibration)


def _agree(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> bool:
    return set(ours) == set(theirs) and all(np.array_equal(array, theirs[name]) for name, array in ours.items())


def main() -> None:
    """`python -m export.recalibrate BUNDLE RUN`."""
    parser = argparse.ArgumentParser(description="Calibrate a language bundle anew.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("run", type=Path)
    arguments = parser.parse_args()
    bundle = recalibrate(arguments.bundle, arguments.run)
    sys.stdout.write(f"{bundle.name}: {bundle.digest}\n")


if __name__ == "__main__":
    main()
