"""The page at /docs: every path and schema of the document, and a place to try it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.service.live import Live
from tests.service.page.visits import fits, visit
from tests.waiting import PATIENCE


def test_it_has_every_path_and_schema(browser: Any, server: Live) -> None:
    document = httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE).json()
    with visit(browser, server.url, "docs") as page:
        page.locator("#schemas h3").first.wait_for()
        paths = page.locator("#paths h2").all_text_contents()
        schemas = page.locator("#schemas h3").all_text_contents()
    assert paths == [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    assert schemas == list(document["components"]["schemas"])


def test_an_example_can_be_tried(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "docs") as page:
        page.locator("#schemas h3").first.wait_for()
        section = page.locator("section", has=page.get_by_role("heading", name="POST /filter", exact=True))
        section.locator("summary", has_text="Try it").click()
        section.get_by_role("button", name="Send").click()
        section.locator("pre", has_text="200 application/json").wait_for()
        said = section.locator("pre").text_content()
    assert len(json.loads(said.partition("\n\n")[2])["steps"]) == 3


def test_it_fits_a_phone_and_sets_code_as_code(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "docs", size="phone") as page:
        page.locator("#schemas h3").first.wait_for()
        assert fits(page)
        assert page.locator("#paths code").count() > 0
        assert "`" not in page.text_content("#paths") + page.text_content("#schemas")
        assert "openapi.json ." not in page.locator(".lead").inner_text()
