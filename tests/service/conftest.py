from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.service.engine.models import Models
from tests.service.live import connected, running, serving

Connect = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
Live = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def connect() -> Connect:
    """`async with connect(models, max_running=1) as client`."""
    return connected


@pytest.fixture(scope="module")
def bundle(books_bundle: Path) -> Bundle:
    """The language model trained on novels. Tests of another bundle replace this fixture."""
    return open_bundle(books_bundle)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """One server of the bundles `series` and `linear` for all tests of a file that start none of their own."""
    async with serving("series", "linear") as client:
        yield client


@contextmanager
def _live(models: Models | None = None, **settings: Any) -> Iterator[str]:
    with running(models, **settings) as server:
        yield server.url


@pytest.fixture(scope="session")
def live() -> Live:
    """A server on a socket, in a thread: `with live(models, max_running=1) as address`, or `live(bundles=(path,))`."""
    return _live
