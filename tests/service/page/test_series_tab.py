"""The tab of series: files, choices, charts that can be read without eyes, and what the server says about them."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from rfa.runtime.series.mixture_layout import EXPERTS
from tests.service.live import Live
from tests.service.page.visits import answer, filtered, fits, hold, looks, visit
from tests.waiting import PATIENCE

SPIKE = 150


def metric() -> list[float]:
    values = 20 + 3 * np.sin(np.arange(200) / 8) + 0.2 * np.random.default_rng(3).normal(size=200)
    values[SPIKE] += 15
    return [round(float(value), 3) for value in values]


def as_csv(values: list[float]) -> bytes:
    rows = "".join(f"2026-03-{1 + i // 24:02d} {i % 24:02d}:00,{value}\n" for i, value in enumerate(values))
    return f"time,load\n{rows}".encode()


def as_parquet(values: list[float]) -> bytes:
    sink = io.BytesIO()
    times = np.datetime64("2026-03-01", "s") + 3600 * np.arange(len(values))
    parquet.write_table(pa.table({"time": times, "load": values}), sink)
    return sink.getvalue()


def given(page: Any, content: bytes, name: str = "metric.csv") -> None:
    page.set_input_files("#series-file", {"name": name, "mimeType": "", "buffer": content})
    page.locator("#series-told", has_text="rows of load").wait_for()


def sent(page: Any) -> dict[str, Any]:
    """The body of the request that the page would let one copy."""
    page.locator("#series-copy button", has_text="JavaScript").click()
    with page.expect_download() as download:
        page.click("#code-body")
    page.click("#code-close")
    found: dict[str, Any] = json.loads(download.value.path().read_bytes())
    return found


def test_an_example_is_shown_at_once(browser: Any, server: Live) -> None:
    with visit(browser, server.url, size="phone") as page:
        filtered(page)
        for _ in looks(page):
            assert page.locator("#series-charts canvas").count() == 2  # the lane, and the one component
        assert fits(page)


@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_a_file_is_filtered_as_the_server_filters_it(browser: Any, server: Live, write: Any) -> None:
    values = metric()
    with visit(browser, server.url) as page:
        filtered(page)
        given(page, write(values), f"metric.{write.__name__}")
        body = sent(page)
        assert body["values"] == {"load": values}
        outputs = page.text_content("#series-told")
        rows = page.locator("#series-unusual tbody tr").all_text_contents()
        ahead = page.locator("#series-forecast tbody tr").count()
        bars, words = page.locator("#series-forecast .shares"), page.text_content("#series-forecast h3 + p")
        widths = page.eval_on_selector_all(
            "#series-forecast .shares:first-of-type i", "all => all.map(one => Number(one.style.flexGrow))"
        )
        assert bars.count() == 2 and words.startswith("1 ahead: ") and "%" in words
    reply = answer(server, "filter", body)
    assert outputs.startswith(f"200 rows of load, filtered by the model {reply['model']}")
    assert f"{sum(reply['columns']['alarm']):.0f} alarm" in outputs
    assert ahead == body["ahead"] == len(reply["ahead"]["t"])
    shares = [reply["ahead"][f"weight.{name}.load"] for name in EXPERTS]
    # The browser writes numbers of a style with six significant digits.
    assert widths == pytest.approx([share[row] for row in (0, -1) for share in shares], rel=5e-6)
    rarest = int(np.nanargmax(np.array(reply["columns"]["anomaly"], float)))
    assert rarest == SPIKE
    assert f"{values[SPIKE]:.4g}" in rows[0]


def test_a_file_can_be_dropped_and_numbers_pasted(browser: Any, server: Live) -> None:
    with visit(browser, server.url) as page:
        filtered(page)
        transfer = page.evaluate_handle(
            "text => { const it = new DataTransfer(); it.items.add(new File([text], 'dropped.csv')); return it; }",
            as_csv(metric()).decode(),
        )
        page.dispatch_event("#series-drop", "drop", {"dataTransfer": transfer})
        page.locator("#series-told", has_text="rows of load").wait_for()
        page.click("text=Or paste numbers")
        page.fill("#series-paste", "when;cold\n2026-01-01;1,5\n2026-01-02;\n2026-01-03;2,5")
        page.locator("#series-told", has_text="3 rows of cold").wait_for()


def test_numbers_pasted_before_the_script_has_come_are_read(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#server") as page:
        page.locator("#server-now .figure", has_text="ready").wait_for()
        held = hold(page, "**/page/series.js")
        with page.expect_request("**/page/series.js"):
            page.click("#tab-series")
        page.click("text=Or paste numbers")
        page.fill("#series-paste", as_csv(metric()).decode())
        held[0].continue_()
        page.locator("#series-told", has_text="200 rows of load").wait_for()


# `wasRead` is kept once the page has taken the answer of a file that was read.
NOTE_READ = """() => {
  const json = Response.prototype.json;
  window.wasRead = new Promise(done => {
    Response.prototype.json = async function () {
      const found = await json.call(this);
      if (this.url.includes("/read?")) setTimeout(done);
      return found;
    };
  });
}"""


def test_a_file_that_is_read_late_does_not_replace_what_was_chosen_since(browser: Any, server: Live) -> None:
    with visit(browser, server.url) as page:
        filtered(page)
        page.evaluate(NOTE_READ)
        held = hold(page, "**/read?*")
        with page.expect_request("**/read?*"):
            page.set_input_files("#series-file", {"name": "late.csv", "mimeType": "", "buffer": as_csv(metric())})
        page.select_option("#series-demo", "requests")
        filtered(page)
        outputs = page.text_content("#series-told")
        held[0].continue_()
        page.evaluate("window.wasRead")
        assert page.text_content("#series-error") == ""
        assert page.text_content("#series-told") == outputs
        assert page.input_value("#series-demo") == "requests"


def test_series_of_one_file_are_reported_apart_and_chosen(browser: Any, server: Live) -> None:
    lines = [
        f"2026-01-{day:02d},{who},{day * scale}" for who, scale in (("hall", 1), ("attic", 2)) for day in range(1, 20)
    ]
    with visit(browser, server.url) as page:
        filtered(page)
        page.set_input_files(
            "#series-file",
            {"name": "two.csv", "mimeType": "", "buffer": ("time,who,load\n" + "\n".join(lines)).encode()},
        )
        page.locator("#series-told", has_text="19 rows of load").wait_for()
        with page.expect_request("**/filter") as asked:
            page.select_option("#series-name", "attic")
        filtered(page)
        assert asked.value.post_data_json["values"] == {"load": [2 * day for day in range(1, 20)]}
        assert page.locator("#series-name option").all_text_contents() == ["hall", "attic"]


def test_every_choice_reaches_the_server(browser: Any, server: Live) -> None:
    with visit(
        browser, server.url, "#series?demo=oscillator&model=linear&ahead=12&alarm=0.01&passes=2&level-0.99=1&smooth=1"
    ) as page:
        filtered(page)
        body = sent(page)
        assert page.locator("#series-charts .title").all_text_contents() == ["first", "second"]
    assert {name: body[name] for name in ("model", "ahead", "alarm", "passes", "levels", "smooth")} == {
        "model": "linear", "ahead": 12, "alarm": {"rate": 0.01}, "passes": 2, "levels": [0.5, 0.9, 0.99],
        "smooth": True,
    }  # fmt: skip


def test_what_the_server_refuses_and_warns_of_is_shown_in_its_words(browser: Any, server: Live) -> None:
    refused = httpx.post(f"{server.url}/filter", json={"model": "linear", "values": [1.0, 2.0]}, timeout=PATIENCE)
    warned = answer(server, "filter", {"values": {"load": [1.5, 2.5, 1.7]}, "levels": [0.5, 0.9]})["warnings"]
    assert warned
    with visit(browser, server.url) as page:
        page.seen.expected.append("422")
        filtered(page)
        page.select_option("#series-model", "linear")
        page.locator("#series-error", has_text="linear").wait_for()
        assert page.text_content("#series-told") == "The chart below shows the previous result."
        assert page.text_content("#series-error").split("'")[0] == refused.json()["error"]["message"].split("'")[0]
        page.select_option("#series-model", "")
        filtered(page)
        page.click("text=Or paste numbers")
        page.fill("#series-paste", "load\n1.5\n2.5\n1.7")
        page.locator("#series-warnings li").first.wait_for()
        assert page.locator("#series-warnings li").all_text_contents() == [warning["message"] for warning in warned]


def test_a_chart_is_read_and_moved_by_keyboard(browser: Any, server: Live) -> None:
    with visit(browser, server.url) as page:
        filtered(page)
        chart = page.get_by_role("slider", name="Chart of temperature")
        chart.focus()
        page.keyboard.press("Home")
        assert chart.get_attribute("aria-valuetext").startswith("Mon, 2 Feb 2026, 00:00 · measured")
        for _ in range(3):
            page.keyboard.press("Shift+ArrowRight")
        assert chart.get_attribute("aria-valuenow") == "30"
        page.keyboard.press("+")
        page.keyboard.press("End")
        assert "forecast" in chart.get_attribute("aria-valuetext")
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        assert "was 1" in page.text_content("#series-explained")
        assert page.url.endswith("row=0")


def test_a_link_shows_the_same_again_and_holds_no_key(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#series?demo=requests&model=auto&ahead=24&row=100") as page:
        filtered(page)
        explained = page.text_content("#series-explained")
        page.evaluate("sessionStorage.setItem('rfa-key', 'secret-of-this-test')")
        page.click("#share")
        link = page.evaluate("navigator.clipboard.readText()")
    assert explained
    assert "secret" not in link
    with visit(browser, server.url, link.removeprefix(f"{server.url}/")) as page:
        filtered(page)
        assert page.text_content("#series-explained") == explained
        assert page.input_value("#series-model") == "auto"


def test_columns_of_few_entries_leave_nothing_out_that_stands_out(browser: Any, server: Live) -> None:
    rng = np.random.default_rng(5)
    columns = np.where(rng.random((3, 101)) < 0.3, np.nan, rng.normal(size=(3, 101)).round(3))
    columns[:, 16:24] = np.nan
    given_columns = [list(range(101)), *([None if np.isnan(cell) else cell for cell in one] for one in columns)]
    with visit(browser, server.url, "#server") as page:
        page.locator("#server-now .figure", has_text="ready").wait_for()
        times, upper, lower, line = page.evaluate(
            "async columns => (await import('./page/lines.js')).coarse(columns, 2, 4)", given_columns
        )
    assert times == [*range(0, 101, 4), 100][: len(times)] and len(times) == 26
    for pair in range(13):
        parts = [one[8 * pair : 8 * (pair + 1)] for one in columns]
        high, low, both = ([*part[~np.isnan(part)]] for part in parts)
        assert upper[2 * pair : 2 * pair + 2] == [max(high, default=None)] * 2
        assert lower[2 * pair : 2 * pair + 2] == [min(low, default=None)] * 2
        assert line[2 * pair : 2 * pair + 2] == [min(both, default=None), max(both, default=None)]


def test_a_link_made_with_a_file_says_that_it_does_not_hold_it(browser: Any, server: Live) -> None:
    with visit(browser, server.url) as page:
        filtered(page)
        page.click("#share")
        page.locator("#share-said", has_text="It shows this view").wait_for()
        given(page, as_csv(metric()))
        page.click("#share")
        page.locator("#share-said", has_text="not the key or the file").wait_for()
        link = page.evaluate("navigator.clipboard.readText()")
    with visit(browser, server.url, link.removeprefix(f"{server.url}/")) as page:
        page.locator("#series-told", has_text="created for a file").wait_for()
        assert page.input_value("#series-demo") == "room"
