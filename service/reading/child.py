"""Subprocess that reads a file: `python -m rfa.service.reading.child OPTIONS`.

The file is read from standard input. Standard output is one letter (`ANSWERED`, `REFUSED` or `EXHAUSTED`), followed by
JSON. The process imports its modules, limits its resources, and then reads the file.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from rfa.data import Series, key_name, read_frame
from rfa.data.file_formats import read_table
from rfa.data.table import unique_names
from rfa.data.without_pandas import WithoutPandas
from rfa.service.child_environment import data_bytes, limit_resources

ANSWERED: Final = b"a"
REFUSED: Final = b"r"
EXHAUSTED: Final = b"x"
# Modules that the loader imports when it needs them. They are imported before the resources are limited. The last one
# is optional.
LATE: Final = ("pyarrow.compute", "pyarrow.csv", "pyarrow.parquet", "zoneinfo", "python_calamine")
OPEN_FILES: Final = 64
LONGEST_NAME: Final = 64


def main() -> None:
    """Read the file on standard input, and write the result to standard output."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    sys.meta_path.insert(0, WithoutPandas())
    for name in LATE:
        with suppress(ModuleNotFoundError):
            import_module(name)
    pa.set_cpu_count(1)
    memory = data_bytes() + options.pop("memory_bytes")
    limit_resources(seconds=options.pop("seconds"), memory_bytes=memory, open_files=OPEN_FILES)
    kind, document = _answer(sys.stdin.buffer.read(), **options)
    sys.stdout.buffer.write(kind + document)


def _answer(content: bytes, *, sheet: str | None, most_numbers: int, **reading: Any) -> tuple[bytes, bytes]:
    try:
        found = read_frame(read_table(content, sheet), **reading, refused=lambda key, error: None)
        numbers = sum(series.values.size + len(series.times) for series in found.values())
        if numbers > most_numbers:
            raise ValueError(
                f"the file contains {numbers:,} numbers, but the limit is {most_numbers:,}; select columns, or send a "
                "part of the file"
            )
        document = {key_name(key): _document(series) for key, series in found.items()}
        return ANSWERED, orjson.dumps({"series": document}, option=orjson.OPT_SERIALIZE_NUMPY)
    except ValueError as error:
        if isinstance(error.__context__, MemoryError):  # the loader reports a lack of memory as an error in the file
            return EXHAUSTED, b""
        return REFUSED, orjson.dumps(_of_fields(str(error)))
    except (MemoryError, pa.ArrowMemoryError):
        return EXHAUSTED, b""


def _document(series: Series) -> dict[str, Any]:
    names = unique_names([_plain(name) for name in series.names])
    columns = (np.ascontiguousarray(column) for column in series.values.T)
    return {
        "clock": series.clock,
        "is_dated": series.is_dated,
        "times": series.times,
        "values": dict(zip(names, columns, strict=True)),
        "notes": [_of_fields(note) for note in series.notes],
    }


def _plain(name: str) -> str:
    """Convert a column name to one that is valid in requests to /filter."""
    return re.sub(r"[\x00-\x1f\x7f]", " ", name)[:LONGEST_NAME] or "value"


def _of_fields(message: str) -> str:
    """Return a message in which names of command-line options are replaced by names of request fields."""
    return re.sub(r"--(\w+(?:-\w+)*)", lambda option: f"`{option[1].replace('-', '_')}`", message)


if __name__ == "__main__":
    main()
