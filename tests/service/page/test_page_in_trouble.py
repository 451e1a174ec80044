"""The page where things go wrong: a server that is away or begins anew, proxies, browsers that keep nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from rfa.runtime.bundle.locate import BUNDLE_ROOT
from tests.service.live import Live, running
from tests.service.page.visits import filtered, visit

REFUSED = "It begins, and is soon there."
JSON = "application/json"
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


def refuse_once(page: Any) -> None:
    """The server's models are not told to who asks first."""
    refusal = {"status": 503, "content_type": JSON, "body": f'{{"error": {{"message": "{REFUSED}"}}}}'}
    page.route("**/info", lambda route: route.fulfill(**refusal), times=1)


AGAIN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "series": (lambda page: page.select_option("#series-demo", "requests"), "#series-model option[value=auto]"),
    "live": (lambda page: page.click("#live-again"), "#live-panes .told:text-matches('Ready')"),
    "text": (lambda page: page.click("#text-go"), ".token"),
    "server": (lambda page: None, "#server-models .card"),
}


@pytest.mark.parametrize("tab", AGAIN)
def test_a_server_that_begins_late_is_found(browser: Any, server: Live, tab: str) -> None:
    act, sign = AGAIN[tab]
    with visit(browser, server.url, f"#{tab}?tokens=3", prepare=refuse_once) as page:
        page.seen.expected.append("503")
        page.locator(f"#{tab}-error", has_text=REFUSED).wait_for()
        act(page)
        page.locator(sign).first.wait_for(state="attached")
        page.locator(f"#{tab}-error", has_text=re.compile("^$")).wait_for(state="attached")


def test_a_part_of_the_page_that_does_not_come_is_missed(browser: Any, server: Live) -> None:
    with visit(browser, server.url, prepare=lambda page: page.route("**/page/live.js", lambda it: it.abort())) as page:
        page.seen.expected += ["ERR_FAILED", "dynamically imported module"]
        filtered(page)
        page.click("#tab-live")
        page.locator("#live-error", has_text="could not be loaded").wait_for()


@pytest.mark.parametrize(
    ("status", "body", "outputs"),
    [
        (200, "<html>Log in first</html>", "The response with status 200 is not from rfa-server"),
        (502, "<html>Bad gateway</html>", "The response with status 502 is not from rfa-server"),
        (429, '{"error": "slow down"}', "The response with status 429 is not from rfa-server"),
        (200, '{"columns": {"t": [1', "The response with status 200 is not from rfa-server"),
        (None, "", "cannot be reached"),
    ],
)
def test_what_no_server_of_ours_says_is_reported_from_what_it_says(
    browser: Any, server: Live, status: int | None, body: str, outputs: str
) -> None:
    def interfere(route: Any) -> None:
        if status is None:
            route.abort()
        else:
            route.fulfill(status=status, content_type="text/html", body=body)

    with visit(browser, server.url) as page:
        page.seen.expected += ["502", "429", "ERR_FAILED"]
        filtered(page)
        page.route("**/filter", interfere, times=1)
        page.select_option("#series-demo", "requests")
        page.locator("#series-error", has_text=outputs).wait_for()
        page.select_option("#series-demo", "machine")
        filtered(page)
        assert page.text_content("#series-error") == ""


def asked_since(page: Any) -> None:
    """Until what the page has asked for by now has been seen."""
    with page.expect_response("**/health"):
        page.evaluate("fetch('health')")


def test_who_gives_no_key_is_not_asked_again_and_again(browser: Any) -> None:
    with (
        running(bundles=(BUNDLE_ROOT / "linear",), api_keys="a-key-of-this-test") as guarded,
        visit(browser, guarded.url, "#server", prepare=lambda page: page.clock.install()) as page,
    ):
        page.seen.expected.append("401")
        page.locator("#key-dialog").wait_for()
        page.click("#key-dialog >> text=Cancel")
        page.locator("#server-error", has_text="key").wait_for()
        before = len(page.seen.asked)
        page.clock.run_for(20_000)
        asked_since(page)
        assert [address for address in page.seen.asked[before:] if not address.endswith("/health")] == []


def test_a_stream_whose_server_goes_says_so_and_asks_for_no_key(browser: Any) -> None:
    with ExitStack() as serving:
        gone = serving.enter_context(running(bundles=(BUNDLE_ROOT / "linear",)))
        with visit(browser, gone.url, "#live?source=oscillator") as page:
            page.seen.expected += ["ERR_CONNECTION_REFUSED", "WebSocket"]
            page.locator("#live-panes .told", has_text="Ready").wait_for()
            serving.close()
            page.locator("#live-error", has_text="from the start").wait_for()
            page.click("#live-again")
            page.locator("#live-error", has_text="cannot be reached").wait_for()
            assert not page.locator("#key-dialog").is_visible()
