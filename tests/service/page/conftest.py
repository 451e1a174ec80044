"""A browser and a server for the tests of the page: Chromium without a window, a real server of the default bundles."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from rfa.runtime.bundle.locate import default_bundles
from tests.service.live import Live, running

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Reaches this machine and nothing else. While it is open no other test of this process can run an event loop: its
    own runs on, below the tests."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with sync_api.sync_playwright() as playwright:
        options = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--no-sandbox"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def server() -> Iterator[Live]:
    with running(bundles=default_bundles()) as live:
        yield live
