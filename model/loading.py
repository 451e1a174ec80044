"""Trained models as torch modules again: from the run that training wrote, or from a bundle made of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rfa.model.checkpoint import CONFIG_FILE, build_model, load_run
from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.runtime.bundle.manifest import MANIFEST_FILE


def load_model(bundle_or_run: str | Path) -> Any:
    """Rebuild a trained model from a run directory or a bundle, in eval mode.

    A bundle is opened as for serving: every byte of every file is held to its hash first.

    Returns:
        a torch module with `.config` and `.mode`.

    Raises:
        FileNotFoundError: neither a run nor a bundle.
        ValueError: a damaged bundle, unknown family, unknown config key, or weights that do not fit the config.
    """
    directory = Path(bundle_or_run)
    if (directory / CONFIG_FILE).is_file():
        return load_run(directory)
    if (directory / MANIFEST_FILE).is_file():
        return model_of(open_bundle(directory))
    raise FileNotFoundError(f"{directory} has neither {CONFIG_FILE} (a run) nor {MANIFEST_FILE} (a bundle)")


def model_of(bundle: Bundle) -> Any:
    """The model that a bundle was made of, from the bytes that were checked when it was opened."""
    weights = {name: torch.tensor(array) for name, array in bundle.weights().items()}
    return build_model(bundle.manifest.family, bundle.config, weights)


__all__ = ["load_model", "model_of"]
