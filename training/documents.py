"""Read the texts of a corpus from plain text in any encoding, JSONL, Parquet, and Arrow as written by Hugging Face
datasets.

A plain text file is one document. In the other formats, each row is a document, whose text is in the field `field`.
Files are read in parts. Only text files in an encoding other than UTF-8 are read as a whole.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rfa.data.csv_text import decode_text

SUFFIXES = (".txt", ".jsonl", ".ndjson", ".parquet", ".arrow")
LINES = (".jsonl", ".ndjson")
FIELD = "text"
# Minimum number of characters that are encoded at a time, and number of bytes that are read at a time.
PIECE_CHARACTERS = 1 << 16
CHUNK_BYTES = 1 << 20
ROWS = 1024


def documents(file: Path, field: str = FIELD) -> Iterator[Iterator[str]]:
    """Yield the documents of a file. Each document is an iterator over pieces of its text, and no token spans two
    pieces.

    Raises:
        ValueError: If the file is not text, a line is not JSON, or `field` is missing. The message names the file and
            line.
    """
    if is_plain(file):
        yield pieces(decoded(file))
        return
    for text in _lines(file, field) if file.suffix in LINES else _rows(file, field):
        yield pieces(iter((text,)))


def is_plain(file: Path) -> bool:
    """Return whether a file is read as plain text."""
    return file.suffix not in SUFFIXES[1:]


def pieces(parts: Iterator[str]) -> Iterator[str]:
    """Split a text at line breaks into pieces of at least PIECE_CHARACTERS, except for the last piece. A line break
    belongs to the piece after it.

    Args:
        parts: Consecutive parts of the text.
    """
    text = ""
    for part in parts:
        text += part
        start = 0
        while (end := text.find("\n", start + PIECE_CHARACTERS)) >= 0:
            yield text[start:end]
            start = end
        text = text[start:]
    if text:
        yield text


def is_utf8(file: Path) -> bool:
    """Return whether a file is UTF-8."""
    return _invalid_line(file) is None


def decoded(file: Path) -> Iterator[str]:
    """Yield the text of a file in parts. The file may have any encoding. Line breaks are not changed.

    Raises:
        ValueError: If the file is not text. The message names the file and the line.
    """
    line = _invalid_line(file)
    if line is None:
        with file.open(encoding="utf-8", newline="") as stream:
            yield from iter(lambda: stream.read(CHUNK_BYTES), "")
        return
    try:
        yield decode_text(file.read_bytes())[0]
    except ValueError as error:
        raise ValueError(f"{file}: line {line}: {error}") from None


def _invalid_line(file: Path) -> int | None:
    """Return the number of the first line with bytes that are not UTF-8, or None if there is no such line."""
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            try:
                line += decoder.decode(chunk).count("\n")
            except UnicodeDecodeError as error:
                return line + error.object[: error.start].count(b"\n")
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return line
    return None


def _lines(file: Path, field: str) -> Iterator[str]:
    rest, number = "", 0
    for part in decoded(file):
        *lines, rest = (rest + part).split("\n")
        for line in lines:
            number += 1
            if line.strip():
                yield _field_of(line, field, f"{file}: line {number}")
    if rest.strip():
        yield _field_of(rest, field, f"{file}: line {number + 1}")


def _field_of(line: str, field: str, where: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not a JSON object")
    return _checked(row.get(field), field, sorted(row), where)


def _rows(file: Path, field: str) -> Iterator[str]:
    number = 0
    for batch in _batches(file, field):
        for value in batch.column(field).to_pylist():
            number += 1
            yield _checked(value, field, [field], f"{file}: row {number}")


def _batches(file: Path, field: str) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if file.suffix == ".parquet":
            with pq.ParquetFile(file) as table:
                _check_column(field, table.schema_arrow, file)
                yield from table.iter_batches(ROWS, columns=[field])
            return
        with pa.memory_map(str(file)) as source:
            try:
                stream = pa.ipc.open_stream(source)
            except pa.ArrowInvalid:
                table = pa.ipc.open_file(source)
                stream = (table.get_batch(i) for i in range(table.num_record_batches))
                _check_column(field, table.schema, file)
            else:
                _check_column(field, stream.schema, file)
            yield from stream
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file}: {error}") from None


def _check_column(field: str, schema: Any, file: Path) -> None:
    if field not in schema.names:
        names = ", ".join(schema.names)
        raise ValueError(f"{file}: there is no column {field!r} among {names}; specify the text column with --field")
    # Hugging Face datasets stores values of mixed types as strings that contain JSON, and their type in the metadata.
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    kind = described.get("info", {}).get("features", {}).get(field, {}).get("_type", "Value")
    if kind != "Value":
        raise ValueError(f"{file}: field {field!r} must contain strings, but its type is {kind}")


def _checked(value: Any, field: str, names: list[str], where: str) -> str:
    if not isinstance(value, str):
        is_missing = value is None and field not in names
        found = f"no field {field!r} among {', '.join(names)}" if is_missing else f"field {field!r} is not a string"
        raise ValueError(f"{where}: {found}; specify the text field with --field")
    return value
