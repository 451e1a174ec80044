"""The tab of the server: what /info and /metrics say, for people."""

from __future__ import annotations

from typing import Any

import httpx

from tests.service.live import Live
from tests.service.page.visits import LANGUAGES, answer, copied, fits, printed, visit
from tests.waiting import PATIENCE


def test_it_tells_the_models_and_how_the_server_does(browser: Any, server: Live) -> None:
    answer(server, "filter", {"values": [1.5, 2.0, 1.0, 2.5], "model": "auto", "alarm": {"rate": 0.01}})
    info = httpx.get(f"{server.url}/info", timeout=PATIENCE).json()
    with visit(browser, server.url, "#server", size="phone", scheme="dark") as page:
        page.locator("#server-now .figure", has_text="ready").wait_for()
        page.locator("#server-models h3", has_text="This server").wait_for()
        names = page.locator("#server-models h3").all_text_contents()
        digests = page.locator("#server-models p.code").all_text_contents()
        observed = page.locator("#server-alarms tr", has=page.get_by_role("cell", name="auto", exact=True))
        counted = int(observed.locator("td").nth(1).text_content().replace(",", ""))
        latency = page.text_content("#server-latency .card >> nth=0")
        assert fits(page)
    assert names == [*(model["name"] for model in info["models"]), "This server"]
    assert digests == [f"digest {model['digest']}" for model in info["models"]]
    assert counted >= 4
    assert "Half within" in latency


def test_it_counts_on_while_it_is_looked_at(browser: Any, server: Live) -> None:
    def counted(page: Any) -> int:
        card = page.locator("#server-now .card", has_text="Observations so far")
        return int(card.locator(".figure").text_content().replace(",", ""))

    with visit(browser, server.url, "#server") as page:
        page.locator("#server-now .figure", has_text="ready").wait_for()
        before = counted(page)
        answer(server, "filter", {"values": [1.5] * 7, "model": "auto"})
        page.get_by_text(f"{before + 7:,}", exact=True).wait_for()


def test_a_histogram_that_was_opened_stays_open(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#server") as page:
        page.locator("#server-latency summary").first.press("Enter")
        page.locator("#server-latency details[open] table").wait_for()
        before = page.locator("#server-now .figure >> nth=4").text_content()
        page.wait_for_selector(f"#server-now .card:nth-child(5) .figure:not(:text-is('{before}'))")
        assert page.locator("#server-latency details[open]").count() == 1
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_what_it_copies_runs_as_one_program(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#server") as page:
        page.locator("#server-now .figure", has_text="ready").wait_for()
        codes = {language: copied(page, "server", language) for language in LANGUAGES}
    for language, code in codes.items():
        outputs = printed(language, code)
        assert '"bundle_version"' in outputs, language
        assert "rfa_http_requests_total" in outputs, language
