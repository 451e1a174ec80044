"""Where files are: behind URLs, too large, or in a form that needs a package that is not there."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rfa.data import file_formats, load_series, load_table, source
from rfa.data.source import display_name

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture
def web() -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(CORPUS))

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_file_behind_a_url_is_read_as_it_is_here(web: str) -> None:
    for name in ("iso_z.csv", "packed.csv.gz", "typed.parquet", "workbook.xlsx"):
        here, there = load_series(CORPUS / name), load_series(f"{web}/{name}")
        assert here.times.tolist() == there.times.tolist() and here.notes == there.notes
    with fsspec.open("memory://bucket/iso.csv", "wb") as file:
        file.write((CORPUS / "iso_z.csv").read_bytes())
    assert load_series("memory://bucket/iso.csv").values.tolist() == [[1.5], [2.5], [3.5]]
    assert load_series((CORPUS / "iso_z.csv").as_uri()).clock == load_series(CORPUS / "iso_z.csv").clock


def test_what_cannot_be_had_is_said_in_a_line(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {
        f"{web}/nowhere.csv": "nowhere.csv does not exist",
        "memory://nowhere.csv": "does not exist",
        "http://127.0.0.1:9/closed.csv": "closed.csv does not exist, or cannot be reached",
        "sss://bucket/x.csv": "sss://bucket/x.csv cannot be read: Protocol not known: sss",
        "hdfs://host/x.csv": "hdfs://host/x.csv cannot be read: ",
    }
    for url, reported in refused.items():
        with pytest.raises(ValueError, match=reported) as caught:
            load_table(url)
        assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ValueError, match=r"needs fsspec: pip install 'rfa-server\[remote\]'"):
        load_table(f"{web}/iso_z.csv")
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(ValueError, match=r"needs python-calamine: pip install python-calamine"):
        load_table(CORPUS / "workbook.xlsx")


def test_size_is_counted_while_a_file_is_read(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (CORPUS / "iso_z.csv").stat().st_size
    monkeypatch.setattr(file_formats, "CHUNK", 7)
    for module in (file_formats, source):
        monkeypatch.setattr(module, "MAX_BYTES", size + 1)
    for place in (CORPUS / "iso_z.csv", f"{web}/iso_z.csv"):
        assert len(load_table(place)) == 3
    for module in (file_formats, source):
        monkeypatch.setattr(module, "MAX_BYTES", size)
    for place in (CORPUS / "iso_z.csv", f"{web}/iso_z.csv"):
        with pytest.raises(ValueError, match=r"iso_z\.csv has 2 GiB or more"):
            load_table(place)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("-", "standard input"),
        ("a/b.csv", "b.csv"),
        ("s3://bucket/b.csv", "b.csv"),
        ("https://x.org/b.csv?raw=1", "b.csv"),
    ],
)
def test_a_source_has_a_name(place: str, name: str) -> None:
    assert display_name(place) == name
