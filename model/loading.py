"""Load trained models as torch modules, from a run or a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rfa.model.checkpoint import CONFIG_FILE, build_model, load_run
from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.runtime.bundle.manifest import MANIFEST_FILE


def load_model(bundle_or_run: str | Path) -> Any:
    """Load a trained model from a run directory or a bundle, in evaluation mode. The files of a bundle are checked
    against the hashes in its manifest.

    Returns:
        A torch module with `.config` and `.mode`.

    Raises:
        FileNotFoundError: If the path is neither a run nor a bundle.
        ValueError: If the bundle is damaged, the family or a configuration key is unknown, or the weights do not match.
    """
    directory = Path(bundle_or_run)
    if (directory / CONFIG_FILE).is_file():
        return load_run(directory)
    if (directory / MANIFEST_FILE).is_file():
        return model_of(open_bundle(directory))
    raise FileNotFoundError(f"{directory} contains neither {CONFIG_FILE} (a run) nor {MANIFEST_FILE} (a bundle)")


def model_of(bundle: Bundle) -> Any:
    """Build and return the torch module of an open bundle."""
    weights = {name: torch.tensor(array) for name, array in bundle.weights().items()}
    return build_model(bundle.manifest.family, bundle.config, weights)


__all__ = ["load_model", "model_of"]
