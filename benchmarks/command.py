"""Shared parts of benchmark commands: options, requests to a server, the result file, and printed tables."""

from __future__ import annotations

import argparse
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from rfa.benchmarks.results_page.page import tables_of
from rfa.measured import HOME, RESULTS, write_result

REPLY_SECONDS = 120.0


def parser(
    description: str | None, result: str, *, needs_data: bool = False, has_figures: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with `--out` (default: results/RESULT.json), and `--data` and `--figures` if requested."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--out", type=Path, default=RESULTS / f"{result}.json", help="JSON file to write")
    if needs_data:
        found.add_argument("--data", type=Path, required=True, help="folder of the data")
    if has_figures:
        found.add_argument("--figures", type=Path, default=HOME / "docs" / "figures", help="folder of the pictures")
    return found


def post(url: str, body: Any, kind: str = "application/json") -> bytes:
    """Post a body, bytes of this kind or a JSON document, and return the server's reply."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    request = urllib.request.Request(url, data, {"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=REPLY_SECONDS) as reply:
        content: bytes = reply.read()
    return content


def finish(result: str, out: Path, document: Mapping[str, Any]) -> None:
    """Write a document and print it as the results page shows it."""
    write_result(out, document)
    sys.stdout.write("\n".join(tables_of(result, document)) + "\n")
