from __future__ import annotations

from pathlib import Path

import pytest

from rfa.runtime.bundle.bundle import Bundle
from tests.small_language import BOTH, exported


@pytest.fixture(scope="session")
def language_bundle(bundle_cache: Path) -> Bundle:
    """One small language model of both modes."""
    return exported(bundle_cache, "small", BOTH)


@pytest.fixture(scope="session")
def language_run(language_bundle: Bundle, bundle_cache: Path) -> Path:
    """The run that it was exported from."""
    return bundle_cache / "runs" / "small"
