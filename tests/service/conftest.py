from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest

from rfa.service.app import create_app
from rfa.service.engine.models import Models
from rfa.service.settings import Settings
from tests.service.live import running
from tests.service.models import fake_models

Connect = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
Live = Callable[..., AbstractContextManager[str]]


@asynccontextmanager
async def _connect(models: Models | None = None, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(
        Settings(**{"bundles": (), "processes": 1, "workers": 2, **settings}), load=lambda _: models or fake_models()
    )
    async with app.router.lifespan_context(app):
        # An unhandled exception must show as a 500 here, as it would to a client.
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            client.app = app  # type: ignore[attr-defined]
            yield client


@pytest.fixture
def connect() -> Connect:
    """A client of an application with hand-made models: `async with connect(models, max_running=1) as client`."""
    return _connect


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def _live(models: Models | None = None, **settings: Any) -> Iterator[str]:
    with running(models, **settings) as server:
        yield server.url


@pytest.fixture(scope="session")
def live() -> Live:
    """A server on a socket, in a thread: `with live(models, max_running=1) as address`, or `live(bundles=(path,))`."""
    return _live
