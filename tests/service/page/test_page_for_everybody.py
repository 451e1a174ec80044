"""No violation of the rules of accessibility in any tab and scheme, behind keys and behind a proxy's prefix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rfa.runtime.bundle.locate import BUNDLE_ROOT
from tests.service.live import Live, running
from tests.service.page.visits import SCHEMES, SIZES, TABS, filtered, looks, visit
from tests.waiting import PATIENCE

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
KEY = "a-key-of-this-test"
CLEAN: list[list[str]] = [[] for _ in range(len(SIZES) * len(SCHEMES))]
SETTLED = {
    "series": ("#series-told", "filtered by"),
    "live": ("#live-panes .told", "Ready"),
    "text": ("#text-told", "A stronger"),
    "server": ("#server-now .figure", "ready"),
}


def violations(page: Any) -> list[str]:
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("tab", TABS)
def test_no_rule_of_accessibility_is_broken(browser: Any, server: Live, tab: str) -> None:
    with visit(browser, server.url, f"#{tab}") as page:
        if tab == "text":
            page.locator("#text-decode option").first.wait_for(state="attached")
            page.fill("[name=tokens]", "12")
            page.click("#text-go")
        place, text = SETTLED[tab]
        page.locator(place, has_text=text).first.wait_for()
        if tab == "text":
            page.locator(".text").press("ArrowRight")
        if tab == "series":
            page.locator("#series-unusual button").first.click()
        for summary in page.locator(f"#{tab} summary:visible").all():
            summary.click()
        assert [violations(page) for _ in looks(page)] == CLEAN


def test_the_interface_and_the_dialogs_break_none_either(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "docs") as page:
        page.locator("#schemas h3").first.wait_for()
        assert [violations(page) for _ in looks(page)] == CLEAN
    with visit(browser, server.url) as page:
        filtered(page)
        page.click("#key-open")
        assert [violations(page) for _ in looks(page)] == CLEAN
        page.keyboard.press("Escape")
        page.locator("#series-copy button").first.click()
        assert [violations(page) for _ in looks(page)] == CLEAN


def test_tabs_are_walked_by_keyboard_and_the_scheme_is_chosen(browser: Any, server: Live) -> None:
    with visit(browser, server.url) as page:
        filtered(page)
        page.focus("#tab-series")
        for name in (*TABS[1:], TABS[0]):
            page.keyboard.press("ArrowRight")
            assert page.evaluate("document.activeElement.id") == f"tab-{name}"
            assert page.locator(f"#{name}").is_visible()
        grounds = []
        for scheme in SCHEMES:
            page.select_option("#scheme", scheme)
            grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(set(grounds)) == 2
        page.reload()
        filtered(page)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == grounds[1]


# Grounds of elements, as they are seen.
GROUNDS = """where => [...document.querySelectorAll(where)].map(it => {
  const { backgroundColor, opacity } = getComputedStyle(it);
  return `${backgroundColor} ${opacity}`;
})"""
CANVAS = "getComputedStyle(document.body).backgroundColor"
TOKENS = [
    {"id": k, "text": f" {k}", "logprob": -1.0, "confidence": confidence} for k, confidence in enumerate((0.1, 0.9))
]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_forced_colours_leave_apart_what_colours_tell_apart(browser: Any, server: Live, scheme: str) -> None:
    def grounds(where: str) -> list[str]:
        found: list[str] = page.evaluate(GROUNDS, where)
        return found

    def write(route: Any) -> None:
        events = [{"token": token, "top_tokens": [token]} for token in TOKENS]
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        route.fulfill(content_type="text/event-stream", body=body)

    with visit(
        browser, server.url, scheme=scheme, prepare=lambda page: page.emulate_media(forced_colors="active")
    ) as page:
        filtered(page)
        canvas = f"{page.evaluate(CANVAS)} 1"
        swatches = grounds(".key i")
        assert len(swatches) == 7
        assert len({canvas, *grounds(".key"), *swatches}) == 8 + (grounds(".key") != [canvas])
        lines = page.evaluate(
            """async () => {
              const { colour } = await import("./page/scheme.js");
              return ["estimate", "second", "forecast", "measured", "alarm", "gap"].map(name => colour(name));
            }"""
        )
        assert len({*lines, *grounds(".chart")}) == 7
        chosen, *others = grounds("[role=tab]")
        assert chosen not in others
        page.route("**/generate", write)
        page.click("#tab-text")
        page.locator("#text-decode option").first.wait_for(state="attached")
        page.click("#text-go")
        page.locator("#text-error", has_text="was lost").wait_for()
        page.locator(".text").press("ArrowRight")
        assert len({*grounds(".text .token"), *grounds(".text")}) == 3
        assert grounds(".bar") != [canvas]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    with running(bundles=(BUNDLE_ROOT / "linear",), api_keys=KEY) as live:
        yield live


@contextmanager
def asked_for_a_key(browser: Any, url: str, key: str) -> Iterator[Any]:
    """The page after a key was entered."""
    with visit(browser, url, "#server") as page:
        page.seen.expected.append("401")
        page.locator("#key-dialog").wait_for()
        page.fill("#key-input", key)
        page.keyboard.press("Enter")
        yield page


def test_a_key_is_asked_for_and_kept_in_the_tab(browser: Any, guarded: Live) -> None:
    with asked_for_a_key(browser, guarded.url, KEY) as page:
        page.locator("#server-now .figure", has_text="ready").wait_for()
        assert page.evaluate("[localStorage.length, sessionStorage.getItem('rfa-key')]") == [0, KEY]
        assert KEY not in page.url
        page.locator("#server-copy button", has_text="curl").click()
        assert KEY not in page.text_content("#code")
        assert "$RFA_API_KEY" in page.text_content("#code")
        page.click("#code-close")
        page.click("#tab-live")
        page.locator("#live-panes .told", has_text=re.compile("Ready")).wait_for()


@pytest.mark.parametrize("key", ["ключ-of-this-test", "schlüssel", "two words"])
def test_a_key_that_no_header_holds_is_refused_in_words(browser: Any, guarded: Live, key: str) -> None:
    with asked_for_a_key(browser, guarded.url, key) as page:
        page.locator("#key-said", has_text="A key can only contain").wait_for()
        assert page.locator("#key-dialog").is_visible()
        page.fill("#key-input", f" {KEY} ")
        assert page.text_content("#key-said") == ""
        page.keyboard.press("Enter")
        page.locator("#server-now .figure", has_text="ready").wait_for()


def test_it_works_behind_the_prefix_of_a_proxy(browser: Any, server: Live) -> None:
    prefix = f"{server.url}/behind/"
    context = browser.new_context()
    context.set_default_timeout(1_000 * PATIENCE)
    asked: list[str] = []

    def passed_on(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(response=route.fetch(url=route.request.url.replace(prefix, f"{server.url}/")))

    context.route(f"{prefix}**", passed_on)
    page = context.new_page()
    outside: list[str] = []
    page.on("request", lambda request: request.url.startswith(prefix) or outside.append(request.url))
    page.goto(prefix)
    filtered(page)
    page.click("#tab-server")
    page.locator("#server-now .figure", has_text="ready").wait_for()
    page.click("header >> text=Interface")
    page.locator("#schemas h3").first.wait_for()
    context.close()
    assert {f"{prefix}docs", f"{prefix}filter", f"{prefix}metrics"} <= set(asked)
    assert outside == []
