"""What the commands `python -m rfa.benchmarks.…` share: their options, the file they write, the tables they print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rfa.benchmarks.results_page.page import tables_of
from rfa.measured import RESULTS, write_result


def parser(description: str | None, result: str, *, needs_data: bool = False) -> argparse.ArgumentParser:
    """Options `--out`, by default results/RESULT.json, and `--data`.

    Args:
        description: of the command, usually the docstring of its module.
        result: name of the file in results/, without its ending.
        needs_data: the command reads a folder of data that is not part of the project.
    """
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--out", type=Path, default=RESULTS / f"{result}.json", help="JSON file to write")
    if needs_data:
        found.add_argument("--data", type=Path, required=True, help="folder of the data")
    return found


def finish(result: str, out: Path, document: Mapping[str, Any]) -> None:
    """Write a document and print it as the results page shows it."""
    write_result(out, document)
    sys.stdout.write("\n".join(tables_of(result, document)) + "\n")
