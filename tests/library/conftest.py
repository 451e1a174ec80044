from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient

from rfa.service.app import create_app
from rfa.service.settings import Settings
from tests.library.keys import API_KEY, STATE_KEY

SERIES = Path(__file__).parents[2] / "bundles" / "series"


@pytest.fixture(scope="session")
def server(linear_bundle: Path) -> Iterator[TestClient]:
    """A server's application with models `series`, `auto` and `linear`, a state key and an API key."""
    settings = Settings(
        bundles=(linear_bundle, SERIES),
        processes=1,
        workers=1,
        state_keys=SecretStr(STATE_KEY),
        api_keys=SecretStr(API_KEY),
    )
    with TestClient(create_app(settings), headers={"X-API-Key": API_KEY}) as client:
        yield client
