"""Draw pictures of the web page: `python -m docs.site.page_pictures` writes docs/figures/page-….png."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from rfa.benchmarks.page import browsing, open_page
from rfa.measured import HOME

FIGURES = HOME / "docs" / "figures"
COLOURS = 160


def _step(page: Any, count: int) -> None:
    """Send measurements, each after the reply to the previous one, so that a slow machine draws the same picture."""
    reply = page.locator("#live-panes .told")
    begun = re.match(r"\d+", reply.last.text_content())
    begin = int(begun[0]) if begun else 0
    for k in range(begin + 1, begin + count + 1):
        page.click("#live-step")
        for place in range(2):
            reply.nth(place).filter(has_text=re.compile(rf"^{k} ")).wait_for()


def _shoot(page: Any, path: Path) -> None:
    """Save a picture with few colours, which halves its size. Rare colours of a legend are kept."""
    page.screenshot(path=path)
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def picture_series(browser: Any, url: str, path: Path) -> None:
    """Show a room's temperature while a window was open, and why that row was rejected."""
    page = open_page(browser, url)
    page.locator("#series-unusual").get_by_role("button", name="Sat, 14 Feb 2026, 14:00").click()
    page.evaluate("scrollTo(0, 0)")
    _shoot(page, path)
    page.context.close()


def picture_live(browser: Any, url: str, path: Path) -> None:
    """Show two filters on a stream with a disturbance and a lost sensor."""
    page = open_page(browser, url, "#live?source=wave&first=auto&second=series", "dark")
    page.locator("#live-panes .told", has_text="Ready").nth(1).wait_for()
    for disturb, steps in ((None, 120), ("#live-spike", 20), ("#live-cut", 20), ("#live-cut", 20)):
        if disturb:
            page.click(disturb)
        _step(page, steps)
    _shoot(page, path)
    page.context.close()


def picture_text(browser: Any, url: str, path: Path) -> None:
    """Show a text from both decoders, and alternatives for its first token."""
    page = open_page(browser, url, "#text?decode=both")
    page.locator("#text-decode option").first.wait_for(state="attached")
    page.click("#text-go")
    page.locator("#text-told", has_text="A stronger").wait_for()
    page.locator(".text").first.press("ArrowRight")
    _shoot(page, path)
    page.context.close()


# Functions that draw each tab, by file name.
PICTURES: Mapping[str, Callable[[Any, str, Path], None]] = {
    "page-series.png": picture_series, "page-live.png": picture_live, "page-text.png": picture_text,
}  # fmt: skip


def main() -> None:
    """Draw all pictures."""
    with browsing() as (browser, url):
        for name, draw in PICTURES.items():
            draw(browser, url, FIGURES / name)


if __name__ == "__main__":
    main()
