"""The pages at / and /docs as a user meets them: Chromium without a window, a real server of the default bundles.

Whatever a page asks for that is not this server's is a mistake, and nothing else can be reached.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from rfa.service.settings import default_bundles
from tests.service.live import Live, running

CHROMIUM = shutil.which("chromium")
KEY = "a-key-of-this-test"
SECONDS = 60
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running(bundles=default_bundles()) as live:
        yield live


@contextmanager
def opened(browser: Any, url: str, path: str = "") -> Iterator[Any]:
    """A page of the server, which may neither ask others nor fail on the way."""
    page = browser.new_page()
    page.set_default_timeout(1_000 * SECONDS)
    asked: list[str] = []
    broken: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: broken.append(str(error)))
    try:
        page.goto(f"{url}/{path}")
        yield page
        assert not broken
        assert asked and all(address.startswith(f"{url}/") for address in asked)
    finally:
        page.close()


def answer(live: Live, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the server says to a program that asks the same."""
    reply = httpx.post(f"{live.url}/{path}", json=body, timeout=SECONDS)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def filters(page: Any) -> list[str]:
    """The models that can be chosen, once there are any."""
    page.locator("[name=model] option").first.wait_for(state="attached")
    found: list[str] = page.locator("[name=model] option").all_text_contents()
    return found


def test_the_page_offers_the_filters_that_are_served(browser: Any, live: Live) -> None:
    models = httpx.get(f"{live.url}/info", timeout=SECONDS).json()["models"]
    with opened(browser, live.url) as page:
        assert filters(page) == [model["name"] for model in models if model["kind"] == "filter"]
        assert not page.locator("#key").is_visible()


@pytest.mark.parametrize("model", ["linear", "oscillator"])
def test_the_example_of_filter_is_answered(browser: Any, live: Live, model: str) -> None:
    with opened(browser, live.url) as page:
        filters(page)
        page.select_option("[name=model]", model)
        example = json.loads(page.input_value("[name=request]"))
        page.click("#filter button")
        page.locator("#steps", has_text="log-likelihood").wait_for()
        said = page.text_content("#steps")
        kinds = [circle.get_attribute("fill") for circle in page.locator("#plot circle").all()]
        estimate = page.locator("#plot polyline").get_attribute("points")
    expected = answer(live, "filter", {**example, "model": model})
    last = expected["steps"][-1]
    shown = "   ".join(f"{mean:.3f} ± {std:.3f}" for mean, std in zip(last["mean"], last["std"], strict=True))
    assert said == (
        f"t = {last['t']:g}   {shown}   anomaly {last['anomaly']:.3f}\n"
        f"log-likelihood {expected['log_likelihood']:.2f} after {len(expected['steps'])} steps"
    )
    # Every observation that is there is a dot, and those that the server finds anomalous are grey.
    seen = [step for step, row in zip(expected["steps"], example["observations"], strict=True) if row is not None]
    assert [fill == "#8a8a8a" for fill in kinds] == [step["anomaly"] > 0.99 for step in seen]
    assert len(estimate.split()) == len(expected["steps"])


@pytest.mark.parametrize(
    ("pasted", "sent", "told"),
    [
        (
            "21.5\n21.7\n\nNA\n21.6",
            {"observations": [[21.5], [21.7], [None], [21.6]]},
            "4 rows of column 1; times are 0",
        ),
        (
            "Date;Temp;Room\n2024-01-01 00:00;21,5;north\n2024-01-01 01:00;;north",
            {"times": [1704067200.0, 1704070800.0], "observations": [[21.5], [None]]},
            "2 rows of Temp; Date is the clock, in UTC; left out: Room",
        ),
        (
            "t,a,b\n0,1,2\n0.5,3,4",
            {"times": [0.0, 0.5], "observations": [[1, 2], [3, 4]]},
            "2 rows of a, b; t is the clock",
        ),
    ],
)
def test_numbers_as_people_have_them_are_answered_by_auto(
    browser: Any, live: Live, pasted: str, sent: dict[str, Any], told: str
) -> None:
    with opened(browser, live.url) as page:
        filters(page)
        assert page.input_value("[name=model]") == "auto"
        page.fill("[name=request]", pasted)
        page.click("#filter button")
        page.locator("#steps", has_text="log-likelihood").wait_for()
        assert page.text_content("#read").startswith(told)
        said = page.text_content("#steps")
    expected = answer(live, "filter", {**sent, "levels": [0.9]})
    assert said.endswith(f"log-likelihood {expected['log_likelihood']:.2f} after {len(expected['steps'])} steps")


def test_a_reply_that_warns_is_shown_with_its_warning(browser: Any, live: Live) -> None:
    warnings = answer(live, "filter", {"observations": [[21.5]] * 300})["warnings"]
    with opened(browser, live.url) as page:
        filters(page)
        page.fill("[name=request]", "21.5\n" * 300)
        page.click("#filter button")
        page.locator("#warnings li").first.wait_for()
        assert page.locator("#warnings li").all_text_contents() == [warning["message"] for warning in warnings]
        page.fill("[name=request]", "no\nnumbers")
        page.click("#filter button")
        page.locator("#steps .bad", has_text="There is no column of numbers").wait_for()
        assert page.locator("#warnings li").count() == 0


def test_the_example_of_generate_is_answered(browser: Any, live: Live) -> None:
    with opened(browser, live.url) as page:
        page.fill("[name=max_new_tokens]", "12")
        inputs = page.input_value("[name=inputs]")
        page.click("#generate button")
        page.locator("#text-note", has_text="12 tokens").wait_for()
        text, note = page.text_content("#text"), page.text_content("#text-note")
        tokens = page.locator("#text span").all_text_contents()
        titles = [span.get_attribute("title") for span in page.locator("#text span").all()]
    parameters = {"decode": "recurrent", "max_new_tokens": 12, "temperature": 0.8, "top_p": 0.95, "seed": 7}
    expected = answer(live, "generate", {"inputs": inputs, "parameters": parameters})
    assert text == inputs + expected["generated_text"]
    assert tokens == [token["text"] for token in expected["details"]["tokens"]]
    assert titles == [f"confidence {token['confidence']:.3f}" for token in expected["details"]["tokens"]]
    assert re.fullmatch(r"12 tokens, length, \d+ tokens/s, seed 7", note)


def test_what_the_server_refuses_is_shown_in_its_words(browser: Any, live: Live) -> None:
    refused = httpx.post(f"{live.url}/filter", json={"model": "linear", "observations": [[1.0]]}, timeout=SECONDS)
    assert refused.status_code == 422
    with opened(browser, live.url) as page:
        filters(page)
        page.select_option("[name=model]", "linear")
        page.fill("[name=request]", '{"observations": [[1.0]]}')
        page.click("#filter button")
        page.locator("#steps .bad").wait_for()
        assert page.text_content("#steps .bad") == refused.json()["error"]["message"]
        assert page.locator("#filter button").is_enabled()


def test_a_key_is_asked_for_where_one_is_needed(browser: Any) -> None:
    with running(api_keys=KEY) as guarded, opened(browser, guarded.url) as page:
        page.locator("#key").wait_for()
        assert page.locator("[name=model] option").count() == 0
        page.fill("[name=key]", KEY)
        page.locator("[name=key]").blur()
        assert filters(page)


def test_the_documentation_has_every_path(browser: Any, live: Live) -> None:
    paths = httpx.get(f"{live.url}/openapi.json", timeout=SECONDS).json()["paths"]
    with opened(browser, live.url, "docs") as page:
        page.locator("#schemas").locator("h2").first.wait_for()
        heads = page.locator("#paths h2").all_text_contents()
    assert heads == [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
