"""What the tests of emulated kernels share; where they are skipped there may be no Triton, so it is imported late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module", params=["installed", pytest.param("oldest", marks=pytest.mark.slow)])
def compiler(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Triton as it is installed, and the oldest that pyproject.toml allows."""
    from tests.ptx.launches import OLDEST, Compiler

    if request.param == "oldest" and not OLDEST.exists():
        pytest.skip(f"{OLDEST.name} is not installed in the environment: `make test-all` puts it there")
    compiler = Compiler(OLDEST if request.param == "oldest" else None)
    yield compiler
    compiler.close()
