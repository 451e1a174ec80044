"""Bundles with compiled kernels. Tests of another bundle replace these fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from rfa.runtime.bundle.bundle import Bundle


@pytest.fixture(scope="module")
def bundle(bundle_cache: Path) -> Bundle:
    from tests.small_kernels import with_float32_kernels

    return with_float32_kernels(bundle_cache)


@pytest.fixture(scope="module")
def full_bundle(bundle_cache: Path) -> Bundle:
    from tests.small_kernels import with_kernels

    return with_kernels(bundle_cache)
