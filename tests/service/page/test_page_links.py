"""Links to the page: of any content, pasted into a page that is open, and kept; and a page that is not left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.live import Live
from tests.service.page.visits import filtered, visit


@pytest.mark.parametrize("link", ["row=1.5", "row=1e99", "alarm=5", "demo=nobody", "demo=__proto__", "model=nobody"])
def test_a_link_of_what_is_not_there_shows_what_is(browser: Any, server: Live, link: str) -> None:
    with visit(browser, server.url, f"#series?{link}") as page:
        filtered(page)
        assert page.text_content("#series-error") == ""
        assert page.input_value("#series-demo") == "room"
        assert page.input_value("#series-alarm") == "0.001"


def test_a_link_to_a_row_of_a_file_explains_no_row_of_another_series(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#series?demo=&row=150") as page:
        filtered(page)
        assert not page.locator("#series-explained").is_visible()


def test_a_link_that_is_pasted_into_an_open_page_is_followed(browser: Any, server: Live) -> None:
    with visit(browser, server.url) as page:
        filtered(page)
        page.evaluate("location.hash = '#series?demo=requests'")
        page.locator("#series-told", has_text="rows of requests per minute").wait_for()


def test_a_file_dropped_beside_its_place_does_not_replace_the_page(browser: Any, server: Live) -> None:
    with visit(browser, server.url) as page:
        filtered(page)
        prevented = page.evaluate(
            """() => {
              const dataTransfer = new DataTransfer();
              dataTransfer.items.add(new File(["1"], "beside.csv"));
              const drop = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
              return !document.querySelector("h1").dispatchEvent(drop);
            }"""
        )
    assert prevented
