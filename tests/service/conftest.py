from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest

from service.app import create_app
from service.engine.engine import Models
from service.settings import Settings
from service.testing import fake_models

Connect = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@asynccontextmanager
async def _connect(models: Models | None = None, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(
        Settings(**{"bundles": (), "processes": 1, "workers": 2, **settings}), load=lambda _: models or fake_models()
    )
    async with app.router.lifespan_context(app):
        # An unhandled exception must show as a 500 here, as it would to a client.
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            client.app = app  # type: ignore[attr-defined]
            yield client


@pytest.fixture
def connect() -> Connect:
    """A client of an application with hand-made models: `async with connect(models, max_running=1) as client`."""
    return _connect


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
