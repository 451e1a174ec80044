"""The tab of live streams: it runs, is disturbed, and is carried elsewhere."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import pytest

from tests.service.live import Live
from tests.service.page.visits import copied, fits, printed, visit


def begin(page: Any, panes: int = 1) -> None:
    page.locator("#live-panes .told", has_text=re.compile("Ready|Continues")).nth(panes - 1).wait_for()


def steps(page: Any, count: int) -> None:
    """One measurement after the other; each is answered before the next."""
    before = frames(page)
    for k in range(before + 1, before + count + 1):
        page.click("#live-step")
        page.locator("#live-panes .told", has_text=re.compile(rf"^{k} ")).first.wait_for()


def frames(page: Any) -> int:
    outputs = re.match(r"\d+", page.text_content("#live-panes .told >> nth=0") or "")
    return int(outputs[0]) if outputs else 0


def test_a_stream_runs_and_pauses(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#live?speed=20", size="phone", scheme="dark") as page:
        begin(page)
        page.click("#live-play")
        page.locator("#live-panes .told", has_text=re.compile(r"^\d{2,} ")).wait_for()
        page.click("#live-play")
        assert page.text_content("#live-play") == "Play"
        assert page.locator("#live-panes canvas").count() == 2
        assert fits(page)


def test_the_filter_distrusts_goes_on_alone_and_trusts_again(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#live?source=still&first=auto") as page:
        begin(page)
        steps(page, 40)
        page.click("#live-spike")
        steps(page, 1)
        assert "rejects" in page.text_content("#live-panes .told")
        page.click("#live-cut")
        steps(page, 1)
        assert "No measurement" in page.text_content("#live-panes .told")
        page.click("#live-cut")
        steps(page, 2)
        assert "Estimate" in page.text_content("#live-panes .told")


def test_two_models_see_the_same_stream(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#live?first=auto&second=series&source=still") as page:
        begin(page, 2)
        steps(page, 5)
        page.locator("#live-panes .told", has_text=re.compile("^5 ")).nth(1).wait_for()
        assert page.locator("#live-panes h2").all_text_contents() == ["Model auto", "Model series"]
        first, second = re.findall(r"const frames = (\[.*\]);", copied(page, "live", "JavaScript"))
    assert json.loads(first)[1:] == json.loads(second)[1:]


def test_a_state_goes_on_in_another_window_as_if_nothing_had_been(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#live?source=still&first=auto") as page:
        begin(page)
        steps(page, 12)
        page.click("#live-save")
        page.locator("#live-elsewhere").wait_for()
        link = page.locator("#live-elsewhere").get_attribute("href")
        begin(page)
        steps_after = [page.text_content("#live-panes .told")]
        page.click("#live-step")
        page.locator("#live-panes .told", has_text=re.compile("^13 ")).wait_for()
        steps_after.append(page.text_content("#live-panes .told"))
    with visit(browser, server.url, link.lstrip("/")) as page:
        begin(page)
        assert page.text_content("#live-panes .told") == steps_after[0] == "Continues after 12 measurements."
        page.click("#live-step")
        page.locator("#live-panes .told", has_text=re.compile("^13 ")).wait_for()
        assert page.text_content("#live-panes .told") == steps_after[1]


def test_what_the_server_refuses_is_shown(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#live?first=linear&source=still") as page:
        page.locator("#live-panes h2", has_text="linear").wait_for()
        page.click("#live-step")
        page.locator("#live-error", has_text="linear").wait_for()
        assert page.text_content("#live-panes .told") == "Ready."  # no observation was filtered


def test_what_it_copies_runs_and_answers_the_same(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#live?source=still&first=auto") as page:
        begin(page)
        steps(page, 3)
        code = copied(page, "live", "Python")
        request = copied(page, "live", "curl")
    pytest.importorskip("websockets")
    ready, *answers = map(ast.literal_eval, printed("Python", code).splitlines())
    assert ready["model"] == "auto"
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert [step["mean"] for step in json.loads(printed("curl", request))["steps"]] == [one["mean"] for one in answers]


@pytest.mark.parametrize("language", ["curl", "JavaScript"])
def test_what_it_copies_goes_on_from_the_same_state_and_ends(browser: Any, server: Live, language: str) -> None:
    with visit(browser, server.url, "#live?source=still&first=auto") as page:
        begin(page)
        steps(page, 3)
        page.click("#live-save")
        page.locator("#live-panes .told", has_text="Continues after 3").wait_for()
        page.click("#live-step")
        page.locator("#live-panes .told", has_text=re.compile("^4 ")).wait_for()
        code = copied(page, "live", language)
        if language == "curl":  # a state is long
            page.locator("#live-copy button", has_text=language).click()
            with page.expect_download() as download:
                page.click("#code-body")
            code = code.replace("'request.json'", str(download.value.path()))
        found = printed(language, code)
    answers = json.loads(found)["steps"] if language == "curl" else list(map(json.loads, found.splitlines()))[1:]
    assert [answer["index"] for answer in answers] == [3]


def test_a_finger_that_holds_a_measurement_does_not_move_the_page(browser: Any, server: Live) -> None:
    with visit(browser, server.url, "#live?source=still&first=auto", size="phone") as page:
        begin(page)
        steps(page, 5)
        touch = page.context.new_cdp_session(page)
        touch.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
        plot = page.locator("#live-plots-0 .u-over").nth(1)
        plot.scroll_into_view_if_needed()
        plot.evaluate(
            """plot => {
              window.heard = [];
              for (const name of ["pointerup", "pointercancel"]) {
                plot.addEventListener(name, () => window.heard.push(name));
              }
            }"""
        )
        box = plot.bounding_box()
        points = [{"x": box["x"] + 60, "y": box["y"] + 20 + 10 * k} for k in range(10)]
        touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": points[:1]})
        for point in points[1:]:
            touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
        touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        assert page.evaluate("window.heard") == ["pointerup"]
        assert plot.bounding_box() == box
