"""Where files are: behind URLs, too large, or in a form that needs a package that is not there."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from rfa.data import file_formats, load_series, load_table, read_frame, source
from rfa.data.source import display_name, expand_sources

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
        "http://127.0.0.1:9/closed.csv": "closed.csv does not exist or cannot be reached",
        "sss://bucket/x.csv": "sss://bucket/x.csv cannot be read: Protocol not known: sss",
        "hdfs://host/x.csv": "hdfs://host/x.csv cannot be read: ",
    }
    for url, reported in refused.items():
        with pytest.raises(ValueError, match=reported) as caught:
            load_table(url)
        assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ValueError, match=r"needs fsspec; install it with pip install 'rfa-server\[remote\]'"):
        load_table(f"{web}/iso_z.csv")
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(ValueError, match=r"needs python-calamine; install it with pip install python-calamine"):
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
        with pytest.raises(ValueError, match=r"iso_z\.csv must be smaller than 2 GiB"):
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


def test_folders_and_patterns_are_their_files(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv.gz", "notes.md", ".hidden.csv", "README.txt"):
        (tmp_path / name).write_text("y\n1\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "c.csv").write_text("y\n1\n")
    named = [str(tmp_path / "a.csv.gz"), str(tmp_path / "b.csv")]
    assert expand_sources([str(tmp_path)]) == named
    assert expand_sources([f"{tmp_path}/*.csv", "-"]) == [named[1], "-"]
    assert expand_sources([f"{tmp_path}/**/*.csv"]) == [named[1], str(tmp_path / "more" / "c.csv")]
    assert expand_sources(["https://host/a?b=[1]", "plain.csv"]) == ["https://host/a?b=[1]", "plain.csv"]
    with pytest.raises(ValueError, match="no file matches"):
        expand_sources([f"{tmp_path}/*.parquet"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"contains no files with a supported ending, such as \.csv or \.tsv"):
        expand_sources([str(tmp_path / "empty")])


@pytest.mark.parametrize(
    ("magic", "package"),
    [(b"Obj\x01", "fastavro"), (b"\x89HDF\r\n", "h5netcdf"), (b"CDF\x01", "scipy"), (b"01234567DUCK", "duckdb")],
)
def test_a_format_that_needs_a_package_names_it(magic: bytes, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.io", None)
    with pytest.raises(ValueError, match=f"pip install {package}, or save the data as CSV or Parquet"):
        file_formats.read_table(magic + bytes(100))


def test_avro_is_read_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"time": f"2024-01-0{k}", "y": k} for k in range(1, 5)]
    monkeypatch.setitem(sys.modules, "fastavro", SimpleNamespace(reader=lambda file: iter(rows)))
    assert read_frame(file_formats.read_table(b"Obj\x01"))[()].values[:, 0].tolist() == [1, 2, 3, 4]
