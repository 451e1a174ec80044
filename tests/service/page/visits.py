"""How tests visit the page: as people do, and with an eye on what nobody should see."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.service.live import Live
from tests.waiting import PATIENCE

# A phone and a desk; the narrowest that is promised (WCAG's reflow: a desk's 1,280 pixels, four times as large) and a
# usual one.
SIZES = {"phone": (320, 740), "desk": (1440, 900)}
SCHEMES = ("light", "dark")
TABS = ("series", "live", "text", "server")
# Not Playwright's wait_for_function: from its second look on, the page's policy refuses what it evaluates.
UNTIL_MATCHED = """query => new Promise(done => {
  const look = () => (matchMedia(query).matches ? done() : requestAnimationFrame(look));
  look();
})"""


@dataclass
class Seen:
    """What went on behind a page.

    Attributes:
        asked: addresses of requests.
        wrong: errors of scripts and the console, breaches of the policy among them.
        expected: parts of such lines that a test provokes.
    """

    asked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)


@contextmanager
def visit(
    browser: Any,
    url: str,
    path: str = "",
    *,
    size: str = "desk",
    scheme: str = "light",
    prepare: Callable[[Any], object] = lambda page: None,
) -> Iterator[Any]:
    """A page of the server, which may ask nobody else and fail nowhere on the way; `page.seen` is what went on.

    What `prepare` does to it is done before it loads anything.
    """
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(1_000 * PATIENCE)
    page, page_seen = context.new_page(), Seen()
    page.seen = page_seen
    page.on("request", lambda request: page_seen.asked.append(request.url))
    page.on("websocket", lambda socket: page_seen.asked.append(socket.url.replace("ws://", "http://")))
    page.on("pageerror", lambda error: page_seen.wrong.append(str(error)))
    page.on("console", lambda line: line.type in ("error", "warning") and page_seen.wrong.append(line.text))
    prepare(page)
    try:
        page.goto(f"{url}/{path}")
        yield page
        assert [line for line in page_seen.wrong if not any(part in line for part in page_seen.expected)] == []
        strangers = [address for address in page_seen.asked if not address.startswith((f"{url}/", "blob:", "data:"))]
        assert page_seen.asked
        assert strangers == []
    finally:
        context.close()


def looks(page: Any) -> Iterator[None]:
    """The page at each size in each scheme, one after the other."""
    for width, height in SIZES.values():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # colours at once
            page.evaluate(UNTIL_MATCHED, f"(prefers-color-scheme: {scheme})")
            yield


def fits(page: Any) -> bool:
    """Nothing stands out to the right, whatever the size and the scheme."""
    return all(page.evaluate("document.documentElement.scrollWidth <= innerWidth") for _ in looks(page))


def answer(server: Live, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the server says to a program that asks the same."""
    reply = httpx.post(f"{server.url}/{path}", json=body, timeout=PATIENCE)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def copied(page: Any, tab: str, language: str) -> str:
    """What the page lets one copy of what it just did."""
    page.locator(f"#{tab}-copy button", has_text=language).click()
    code: str = page.evaluate("navigator.clipboard.readText()")
    assert page.text_content("#code") == code
    page.click("#code-close")
    return code


# What the page copies, in the order in which a test goes through them.
LANGUAGES = ("curl", "Python", "JavaScript")


def printed(language: str, code: str) -> str:
    """What such code prints, run as its reader would run it."""
    command = {
        "curl": ["bash", "-c", code],
        "Python": [sys.executable, "-c", code],
        "JavaScript": ["node", "--experimental-websocket", "--input-type=module", "-e", code],
    }[language]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr
    return result.stdout


def hold(page: Any, pattern: str) -> list[Any]:
    """Such requests of the page from now on, which wait until one lets them go on."""
    held: list[Any] = []

    def keep(route: Any) -> None:
        held.append(route)

    page.route(pattern, keep)
    return held


def filtered(page: Any) -> None:
    """Until the tab of series shows what was asked for last."""
    page.locator("#series-told", has_text="filtered by").wait_for()
