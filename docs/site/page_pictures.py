"""Pictures of the web page: `python -m docs.site.page_pictures` writes page-….png of docs/figures."""

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
    """So many measurements, each once the one before it is answered: a slow machine draws the same picture."""
    reply = page.locator("#live-panes .told")
    begun = re.match(r"\d+", reply.last.text_content())
    begin = int(begun[0]) if begun else 0
    for k in range(begin + 1, begin + count + 1):
        page.click("#live-step")
        for place in range(2):
            reply.nth(place).filter(has_text=re.compile(rf"^{k} ")).wait_for()


def _shoot(page: Any, path: Path) -> None:
    """A picture in few colours, half of the bytes; the rare ones of a legend are among them."""
    page.screenshot(path=path)
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def picture_series(browser: Any, url: str, path: Path) -> None:
    """The room's temperature when a window stood open, and why that row was doubted."""
    page = open_page(browser, url)
    page.locator("#series-unusual").get_by_role("button", name="Sat, 14 Feb 2026, 14:00").click()
    page.evaluate("scrollTo(0, 0)")
    _shoot(page, path)
    page.context.close()


def picture_live(browser: Any, url: str, path: Path) -> None:
    """Two filters on one stream that was disturbed and cut."""
    page = open_page(browser, url, "#live?source=wave&first=auto&second=series", "dark")
    page.locator("#live-panes .told", has_text="Ready").nth(1).wait_for()
    for disturb, steps in ((None, 120), ("#live-spike", 20), ("#live-cut", 20), ("#live-cut", 20)):
        if disturb:
            page.click(disturb)
        _step(page, steps)
    _shoot(page, path)
    page.context.close()


def picture_text(browser: Any, url: str, path: Path) -> None:
    """A text by both decoders, and what else its first token could have been."""
    page = open_page(browser, url, "#text?decode=both")
    page.locator("#text-decode option").first.wait_for(state="attached")
    page.click("#text-go")
    page.locator("#text-told", has_text="The stronger").wait_for()
    page.locator(".text").first.press("ArrowRight")
    _shoot(page, path)
    page.context.close()


# What the documentation shows of each tab, by the file.
PICTURES: Mapping[str, Callable[[Any, str, Path], None]] = {
    "page-series.png": picture_series, "page-live.png": picture_live, "page-text.png": picture_text,
}  # fmt: skip


def main() -> None:
    """Draw all."""
    with browsing() as (browser, url):
        for name, draw in PICTURES.items():
            draw(browser, url, FIGURES / name)


if __name__ == "__main__":
    main()
