"""The page where things go wrong: a server that is away or begins anew, proxies, browsers that keep nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.live import Live
from tests.service.page.visits import filtered, visit

# A browser that lets a page keep nothing, and one that has no room left.
FORBIDDEN = """for (const name of ["localStorage", "sessionStorage"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
}"""
FULL = 'Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); };'


@pytest.mark.parametrize("storage", [FORBIDDEN, FULL], ids=["forbidden", "full"])
def test_it_works_where_a_browser_keeps_nothing(browser: Any, server: Live, storage: str) -> None:
    with visit(browser, server.url, prepare=lambda page: page.add_init_script(storage)) as page:
        filtered(page)
        grounds = []
        for scheme in ("light", "dark"):
            page.select_option("#scheme", scheme)
            grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(set(grounds)) == 2
