"""Size, first paint and frame times of the page in Chromium: `python -m rfa.benchmarks.page [--minutes M]`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tqdm import tqdm

from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.load.server import started
from rfa.measured import origin
from rfa.runtime.bundle.locate import default_bundles
from rfa.service.assets import assets

VISITS = 10
ROWS, COLUMNS = 20_000, 3
MOVES = 120
SHOWN_MS = 60_000
WIDTH, HEIGHT = 1440, 900
# Measurements per second of a stream, and seconds between two samples of memory.
RATE, LOOK_SECONDS = 50, 10
# The rate of the stream whose frames are timed.
WATCHED_MINUTES = 2
# Required seconds, bytes and milliseconds per frame. "flat" bounds the least heap of the second half over that of the
# first.
LIMITS = {"first_paint_s": 0.5, "compressed_bytes": 250_000, "frame_ms": 33.0, "heap_grown": 1.1}
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
HEAP = "performance.memory.usedJSHeapSize"
# Collects the times between frames until it is stopped.
WATCH = """() => {
  const frames = window.watched = []; let before = 0;
  const look = now => {
    if (before) frames.push(now - before);
    before = now;
    window.watching = requestAnimationFrame(look);
  };
  window.watching = requestAnimationFrame(look);
}"""
WATCHED = "() => { cancelAnimationFrame(window.watching); return window.watched; }"


@contextmanager
def browsing() -> Iterator[Any]:
    """Open a browser, and yield it with the address of a server."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    options = ["--no-sandbox", "--enable-precise-memory-info"]
    with started(default_bundles(), {"processes": 1}) as target, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        try:
            yield browser, target.url
        finally:
            browser.close()


def open_page(browser: Any, url: str, fragment: str = "", scheme: str = "light", width: int = WIDTH) -> Any:
    """Open a page in a fresh context, with an empty cache."""
    context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    context.set_default_timeout(SHOWN_MS)
    page = context.new_page()
    page.goto(f"{url}/{fragment}")
    return page


def frames_of(times: Sequence[float]) -> dict[str, float]:
    """Return the number of frames, and quantiles of the times between them in milliseconds."""
    return {
        "frames": len(times),
        "median_ms": round(float(np.median(times)), 1),
        "p99_ms": round(float(np.quantile(times, 0.99)), 1),
        "longest_ms": round(max(times), 1),
    }


def first_paints(browser: Any, url: str) -> list[float]:
    """Return the seconds of first paints with an empty cache."""
    found = []
    for _ in range(VISITS):
        page = open_page(browser, url)
        page.locator("#series-told", has_text="filtered by").wait_for()
        found.append(page.evaluate(FIRST_PAINT) / 1000)
        page.context.close()
    return found


def moved_frames(browser: Any, url: str) -> dict[str, float]:
    """Time frames while many measurements are zoomed and dragged."""
    draw = np.random.default_rng(0)
    rows = np.cumsum(draw.normal(size=(ROWS, COLUMNS)), axis=0)
    lines = "\n".join(f"{60 * i}," + ",".join(f"{value:.3f}" for value in row) for i, row in enumerate(rows))
    page = open_page(browser, url, "#series?model=auto")
    page.locator("#series-told", has_text="filtered by").wait_for()
    file = {"name": "many.csv", "mimeType": "text/csv", "buffer": f"t,a,b,c\n{lines}".encode()}
    page.set_input_files("#series-file", file)
    page.locator("#series-told", has_text=f"{ROWS:,} rows of a, b, c").wait_for()
    box = page.locator("#series-charts .u-over").nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.evaluate(WATCH)
    for k in range(MOVES):
        page.keyboard.down("Control")
        page.mouse.wheel(0, -100 if k < MOVES / 4 else 100)
        page.keyboard.up("Control")
        page.mouse.wheel(40 if k % 40 < 20 else -40, 0)
    times = page.evaluate(WATCHED)
    page.context.close()
    return frames_of(times)


def live_frames(browser: Any, url: str, minutes: float) -> dict[str, Any]:
    """Time frames and sample memory while a stream runs at the highest rate that the page offers."""
    page = open_page(browser, url, f"#live?speed={RATE}")
    page.locator("#live-panes .told", has_text="Ready").wait_for()
    page.click("#live-play")
    page.wait_for_timeout(1000 * LOOK_SECONDS)
    page.evaluate(WATCH)
    looks = max(2, round(60 * minutes / LOOK_SECONDS))
    watched = min(looks, round(60 * WATCHED_MINUTES / LOOK_SECONDS))
    heap, times = [], []
    for look in tqdm(range(1, looks + 1), desc="stream", disable=None):
        page.wait_for_timeout(1000 * LOOK_SECONDS)
        heap.append(page.evaluate(HEAP))
        if look == watched:
            times = page.evaluate(WATCHED)
    page.context.close()
    half = len(heap) // 2
    return {**frames_of(times), "heap_bytes_first_half": min(heap[:half]), "heap_bytes_second_half": min(heap[half:])}


def measure(minutes: float) -> dict[str, Any]:
    """Run every measurement."""
    with browsing() as (browser, url):
        paints = first_paints(browser, url)
        moved = moved_frames(browser, url)
        live = live_frames(browser, url, minutes)
    return {
        **origin("python -m rfa.benchmarks.page"),
        "limits": LIMITS,
        "compressed_bytes": sum(len(asset.packed) for asset in assets().values()),
        "first_paint_s": {"median": round(float(np.median(paints)), 3), "longest": round(max(paints), 3)},
        "moved": {"measurements": ROWS * COLUMNS, **moved},
        "live": {"a_second": RATE, "minutes": minutes, **live},
    }


def main() -> None:
    """`python -m rfa.benchmarks.page`."""
    options = parser(__doc__, "page")
    options.add_argument("--minutes", type=float, default=1.0, help="of the stream")
    given = options.parse_args()
    finish("page", given.out, measure(given.minutes))


if __name__ == "__main__":
    main()
