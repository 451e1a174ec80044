from __future__ import annotations

from pathlib import Path

import pytest

from rfa.runtime.bundle.bundle import Bundle
from tests.small_language import BOTH, exported


@pytest.fixture(scope="session")
def language_bundle(of_all_workers: Path) -> Bundle:
    """One small language model of both modes."""
    return exported(of_all_workers, "small", BOTH)


@pytest.fixture(scope="session")
def language_run(language_bundle: Bundle, of_all_workers: Path) -> Path:
    """The run that it was exported from."""
    return of_all_workers / "runs" / "small"
