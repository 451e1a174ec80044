"""What people come for, each in at most four actions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.service.live import Live
from tests.service.page.test_series_tab import as_csv, metric
from tests.service.page.visits import filtered, visit

MOST_ACTIONS = 4


class Person:
    """Acts on a page, and counts."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.actions = 0

    def does(self, act: Callable[..., Any], *given: Any) -> None:
        self.actions += 1
        assert self.actions <= MOST_ACTIONS
        act(*given)


def test_see_the_forecast_of_a_file_of_ones_own(browser: Any, server: Live) -> None:
    with visit(browser, server.url) as page:
        person = Person(page)
        file = {"name": "mine.csv", "mimeType": "text/csv", "buffer": as_csv(metric())}
        person.does(page.set_input_files, "#series-file", file)
        page.locator("#series-told", has_text="200 rows of load").wait_for()
        person.does(page.click, "text=The forecast in numbers")
        assert page.locator("#series-forecast tbody tr").count() == 48
        assert re.search(r"\d to \d", page.text_content("#series-forecast"))


def test_find_yesterdays_anomaly(browser: Any, server: Live) -> None:
    with visit(browser, server.url) as page:
        person = Person(page)
        filtered(page)
        # When the window of the room stood open: listed, whichever of the rare rows is the rarest.
        person.does(page.locator("#series-unusual").get_by_role("button", name="Sat, 14 Feb 2026, 14:00").click)
        assert "It is an alarm" in page.text_content("#series-explained")
        read = page.get_by_role("slider").get_attribute("aria-valuetext")
    assert read.startswith("Sat, 14 Feb 2026, 14:00 · measured")


def test_explain_a_rejected_point(browser: Any, server: Live) -> None:
    with visit(browser, server.url) as page:
        person = Person(page)
        filtered(page)
        spike = page.locator("#series-unusual tr", has_text=re.compile(r"28\.|29\.|30\."))
        person.does(spike.get_by_role("button").click)
        explained = page.text_content("#series-explained")
    assert "above" in explained
    assert "rejected" in explained


def test_compare_decoders(browser: Any, server: Live) -> None:
    with visit(browser, server.url) as page:
        person = Person(page)
        person.does(page.click, "#tab-text")
        page.locator("#text-decode option").first.wait_for(state="attached")
        person.does(page.select_option, "#text-decode", "both")
        person.does(page.click, "#text-go")
        page.locator("#text-told", has_text=re.compile("part")).wait_for()
        assert page.locator("#text-outputs h2").all_text_contents() == ["recurrent", "attention"]


def test_take_a_state_elsewhere(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#live") as page:
        person = Person(page)
        page.locator("#live-panes .told", has_text="Ready").wait_for()
        person.does(page.click, "#live-play")
        page.locator("#live-panes .told", has_text=re.compile(r"^\d{2,} ")).wait_for()
        person.does(page.click, "#live-save")
        page.locator("#live-elsewhere").wait_for()
        with page.context.expect_page() as opened:
            person.does(page.click, "#live-elsewhere")
        elsewhere = opened.value
        elsewhere.locator("#live-panes .told", has_text=re.compile(r"Continues after \d{2,} ")).wait_for()
        person.does(elsewhere.click, "#live-step")
        elsewhere.locator("#live-panes .told", has_text=re.compile(r"^\d{2,} ")).wait_for()
