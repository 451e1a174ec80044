"""Group the rows of Arrow tables in long format. The rows of such a table belong to several series, and key columns
identify the series of a row."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rfa.service.errors import InvalidRequest

MOST_KEYS: Final = 8
# Maximum number of characters of a key. Every row of the reply repeats the key.
LONGEST_KEY: Final = 256
# Maximum number of 16-bit codes. NumPy sorts them with a radix sort, which is faster.
SHORT_CODES: Final = 1 << 16
Array = np.ndarray


@dataclass(frozen=True)
class Keys:
    """Values of the key columns for each series.

    Attributes:
        columns: Arrow array by column name, with one value per series and the type of the column.
    """

    columns: Mapping[str, Any]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def fields(self) -> list[Any]:
        """Fields of an Arrow schema for the key columns."""
        return [pa.field(name, column.type) for name, column in self.columns.items()]

    def repeated(self, series: int, rows: int) -> list[Any]:
        """Return a column for each key of a series, in which the key is repeated for `rows` rows."""
        places = pa.array(np.full(rows, series))
        return [column.take(places) for column in self.columns.values()]


@dataclass(frozen=True)
class Groups:
    """Rows of the table that belong to each series. The series are ordered by their first rows.

    Attributes:
        order: Row numbers of the table, series by series. None if the rows of the table already have this order.
        bounds: Position in `order` at which each series begins, followed by the end of the last one.
        firsts: Number of the first row of each series in the table.
    """

    order: Array | None
    bounds: Array
    firsts: Array

    def __len__(self) -> int:
        return len(self.firsts)

    def parts(self, column: Array) -> list[Array]:
        """Return the values of a column for each series."""
        sorted_ = column if self.order is None else column[self.order]
        return [sorted_[first:last] for first, last in itertools.pairwise(self.bounds.tolist())]

    def first_rows(self, selected: Array) -> list[int | None]:
        """Return the number of the first selected row of each series. It is None for a series without a selected row.

        Args:
            selected: Whether each row of the table is selected, `[N]`.
        """
        found: list[int | None] = []
        for begin, part in zip(self.bounds.tolist(), self.parts(selected), strict=False):
            place = int(part.argmax())
            row = begin + place if self.order is None else int(self.order[begin + place])
            found.append(row if part[place] else None)
        return found


def group(table: Any, by: Sequence[str], most: int, most_bytes: int) -> tuple[Keys, Groups]:
    """Group the rows of a table by key columns. Return the keys of the series, and the rows of each series.

    Args:
        by: Names of the key columns.
        most: Maximum number of series.
        most_bytes: Maximum size of the texts in a key column.

    Raises:
        InvalidRequest: If a key column has an unsupported type, a missing value or a long text, or if there are too
            many series.
    """
    codes, values = zip(*(_codes(name, table[name], most, most_bytes) for name in by), strict=True)
    combined, count = codes[0], len(values[0])
    for code, of_value in zip(codes[1:], values[1:], strict=True):
        found, combined = np.unique(combined * len(of_value) + code, return_inverse=True)
        count = len(found)
    if count > most:
        raise too_many_series(most)
    groups = _groups(combined, count)
    keys = {
        name: value.take(pa.array(code[groups.firsts])) for name, code, value in zip(by, codes, values, strict=True)
    }
    return Keys(keys), groups


def too_many_series(most: int) -> InvalidRequest:
    """Return the error for too many series."""
    message = f"by must divide the rows into at most {most} series on this server; send them in several requests"
    return InvalidRequest(message, param="by", code="too_large")


def text_bytes(texts: Any) -> int:
    """Return the total size of an array of texts in bytes. In an array of views, shared characters count several
    times."""
    if not pa.types.is_string_view(texts.type):
        return int(texts.nbytes)
    lengths = np.frombuffer(texts.buffers()[1], np.int32)[::4]  # each view begins with its length
    return int(lengths[texts.offset : texts.offset + len(texts)].sum(dtype=np.int64))


def _groups(codes: Array, count: int) -> Groups:
    begins = np.concatenate(([0], np.flatnonzero(np.diff(codes)) + 1)) if len(codes) else np.empty(0, np.int64)
    if len(begins) == count:
        return Groups(None, np.append(begins, len(codes)), begins)
    short = codes.astype(np.uint16) if count <= SHORT_CODES else codes
    order = np.argsort(short, kind="stable")
    begins = np.concatenate(([0], np.flatnonzero(np.diff(codes[order])) + 1))
    return Groups(order, np.append(begins, len(codes)), order[begins])


def _codes(name: str, column: Any, most: int, most_bytes: int) -> tuple[Array, Any]:
    """Return a code for each row, and the key that each code represents. Rows with equal keys have equal codes."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not _is_key(kind):
        message = f"by must name columns of texts, integers, booleans or dates, but {name} has type {kind}"
        raise InvalidRequest(message, param="by", code="no_key")
    numbers: dict[Any, int] = {}
    parts = [np.empty(0, np.int64)]
    for chunk in column.chunks:
        texts = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
        if text_bytes(texts) > most_bytes:
            message = f"the decoded texts of column {name} must not exceed {most_bytes} bytes; send fewer rows"
            raise InvalidRequest(message, param=name, code="too_large")
        encoded = chunk if texts is not chunk else pc.dictionary_encode(chunk.cast(_plain(kind)))
        if encoded.null_count:
            raise _nameless(name)
        values = encoded.dictionary.cast(_compared(kind))
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        used = np.flatnonzero(np.bincount(indices, minlength=len(encoded.dictionary)))
        if len(used) > most:
            raise too_many_series(most)
        own = np.zeros(len(encoded.dictionary), np.int64)
        for code in used.tolist():
            value = values[code].as_py()
            if value is None or (isinstance(value, str) and len(value) > LONGEST_KEY):
                raise _nameless(name)
            own[code] = numbers.setdefault(value, len(numbers))
        parts.append(own[indices])
    return np.concatenate(parts), pa.array(list(numbers), _compared(kind)).cast(_plain(kind))


def _nameless(name: str) -> InvalidRequest:
    message = f"{name} must contain a value of at most {LONGEST_KEY} characters in every row"
    return InvalidRequest(message, param=name, code="no_key")


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type represents text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_key(kind: Any) -> bool:
    return bool(is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind))


def _plain(kind: Any) -> Any:
    return pa.large_string() if pa.types.is_string_view(kind) else kind


def _compared(kind: Any) -> Any:
    """Return the type in which keys are compared. Dates are compared as numbers, because the last year of Python's
    dates is 9999."""
    if not pa.types.is_date(kind):
        return _plain(kind)
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()
