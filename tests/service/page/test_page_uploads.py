"""What the page sends of files: packed where they are large, read again, and refused in words that help."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rfa.runtime.bundle.locate import BUNDLE_ROOT
from tests.service.live import Live, running
from tests.service.page.visits import LANGUAGES, copied, filtered, printed, visit

# Of a body of /read; one of /filter has twice as many.
MOST_BYTES = 20_000
ROWS = 1_000


@pytest.fixture(scope="module")
def narrow() -> Iterator[Live]:
    """A server that takes small bodies."""
    with running(bundles=(BUNDLE_ROOT / "linear",), max_body_bytes=MOST_BYTES) as live:
        yield live


@pytest.fixture(scope="module")
def values() -> list[float]:
    draw = random.Random(4)
    return [round(draw.gauss(20, 1), 3) for _ in range(ROWS)]


@pytest.fixture
def table(values: list[float], tmp_path: Path) -> Path:
    """A file with more bytes than a body may have, and as numbers of a request with less than that may have."""
    begin = datetime(2026, 3, 1)
    rows = "".join(f"{begin + i * timedelta(hours=1)},{value}\n" for i, value in enumerate(values))
    path = tmp_path / "metric.csv"
    path.write_text(f"time,load\n{rows}")
    assert path.stat().st_size > MOST_BYTES
    return path


def choose(page: Any, path: Path) -> None:
    """As a person does: a browser says nothing where what is chosen is what was chosen before."""
    devtools = page.context.new_cdp_session(page)
    root = devtools.send("DOM.getDocument")["root"]["nodeId"]
    node = devtools.send("DOM.querySelector", {"nodeId": root, "selector": "#series-file"})["nodeId"]
    devtools.send("DOM.setFileInputFiles", {"nodeId": node, "files": [str(path)]})


def reads(page: Any) -> int:
    return sum("/read" in address for address in page.seen.asked)


def test_a_large_file_is_sent_packed(browser: Any, narrow: Live, table: Path, values: list[float]) -> None:
    with visit(browser, narrow.url, "#series?ahead=0") as page:
        filtered(page)
        with page.expect_request("**/filter") as asked:
            choose(page, table)
        page.locator("#series-told", has_text="rows of load").wait_for()
    assert asked.value.post_data_json["values"] == {"load": values}


def test_what_it_copies_of_a_large_file_packs_it_too(browser: Any, narrow: Live, table: Path) -> None:
    with visit(browser, narrow.url, "#series?ahead=0") as page:
        filtered(page)
        choose(page, table)
        page.locator("#series-told", has_text="rows of load").wait_for()
        for language in LANGUAGES:
            code = copied(page, "series", language)
            page.locator("#series-copy button", has_text=language).click()
            with page.expect_download() as download:
                page.click("#code-body")
            body = str(download.value.path())
            page.click("#code-close")
            found = printed(language, code.replace("metric.csv", str(table)).replace("request.json", body))
            assert "notes" in found, language
            assert "columns" in found, language
            assert "error" not in found, language


def noise(size: int) -> bytes:
    """A column of figures that no packing makes much smaller."""
    draw = random.Random(5)
    return b"load\n" + b"".join(b"%d\n" % draw.randrange(10**9, 10**10) for _ in range(size // 11))


NOISE = noise(4 * MOST_BYTES)


@pytest.mark.parametrize("content", [NOISE, gzip.compress(NOISE)], ids=["plain", "packed"])
def test_a_file_too_large_even_packed_is_not_sent(browser: Any, narrow: Live, content: bytes) -> None:
    with visit(browser, narrow.url) as page:
        filtered(page)
        page.set_input_files("#series-file", {"name": "noise.csv", "mimeType": "", "buffer": content})
        page.locator("#series-error", has_text="Use fewer rows or columns").wait_for()
        assert "noise.csv is too large" in page.text_content("#series-error")
        assert reads(page) == 0


def test_a_series_too_large_for_a_request_is_not_sent(browser: Any, narrow: Live) -> None:
    with visit(browser, narrow.url) as page:
        filtered(page)
        before = sum(address.endswith("/filter") for address in page.seen.asked)
        ones = b"load\n" + b"1\n2\n" * (MOST_BYTES // 5)
        page.set_input_files("#series-file", {"name": "ones.csv", "mimeType": "", "buffer": ones})
        page.locator("#series-error", has_text="Use fewer columns or rows").wait_for()
        assert sum(address.endswith("/filter") for address in page.seen.asked) == before


def test_a_file_that_was_changed_is_read_again_when_it_is_chosen_again(
    browser: Any, narrow: Live, tmp_path: Path
) -> None:
    path = tmp_path / "metric.csv"
    with visit(browser, narrow.url) as page:
        filtered(page)
        for rows in (5, 6):
            path.write_text("load\n" + "".join(f"{k}\n" for k in range(rows)))
            choose(page, path)
            page.locator("#series-told", has_text=f"{rows} rows of load").wait_for()


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text("load\n7\n8\n9\n")], ids=["gone", "new"])
def test_a_file_that_can_no_longer_be_read_is_asked_for_again(
    browser: Any, narrow: Live, tmp_path: Path, change: Any
) -> None:
    path = tmp_path / "metric.csv"
    path.write_text("load\n1\n2\n")
    with visit(browser, narrow.url) as page:
        filtered(page)
        choose(page, path)
        page.locator("#series-told", has_text="2 rows of load").wait_for()
        change(path)
        page.select_option("#series-demo", "requests")
        page.locator("#series-told", has_text="requests per minute").wait_for()
        page.select_option("#series-demo", label="metric.csv")
        page.locator("#series-error", has_text="Choose the file again").wait_for()
        assert reads(page) == 1
