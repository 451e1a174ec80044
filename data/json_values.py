"""Convert JSON values to the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rfa.data.table import Table, unique_names

MOST_CELLS: Final = 50_000_000
# Maximum depth of nested objects that become columns such as a.b. Objects at a greater depth become text.
DEPTH: Final = 3
# Numbers of at least this size may be times.
LEAST_TIME: Final = 1e9


@dataclass
class Rows:
    """Labelled series. Each row has a time and a value, or several named values.

    Attributes:
        labels: Labels of each series.
        columns: Columns of each series.
        note: Description of how the rows were read.
    """

    labels: list[Mapping[str, Any]] = field(default_factory=list)
    columns: list[Mapping[str, Sequence[Any]]] = field(default_factory=list)
    note: str = ""

    def add(self, labels: Mapping[str, Any], **columns: Sequence[Any]) -> None:
        """Add a series."""
        self.labels.append(labels)
        self.columns.append(columns)

    def table(self) -> Table:
        """Return one table with the rows of all series. The labels of a series are repeated in each row.

        Raises:
            ValueError: If there are no rows, or the table is too large.
        """
        import pyarrow as pa

        lengths = [len(next(iter(columns.values()))) for columns in self.columns]
        names = list(dict.fromkeys(name for labels in self.labels for name in labels))
        values = list(dict.fromkeys(name for columns in self.columns for name in columns))
        check_cells(sum(lengths) * (len(names) + len(values)))
        if not sum(lengths):
            raise ValueError("the series in this JSON document have no values; choose a range of times that has values")
        series = pa.array(np.repeat(np.arange(len(lengths)), lengths))
        found = {
            name: pa.chunked_array([pa.array([_text(labels.get(name, "none")) for labels in self.labels]).take(series)])
            for name in names
        }
        for name in values:
            found[name] = column_of(
                [cell for columns, size in zip(self.columns, lengths, strict=True)
                 for cell in columns.get(name, [None] * size)]
            )  # fmt: skip
        return Table(found, notes=(self.note,) if self.note else ())


def check_cells(count: int) -> None:
    """Check that a table is not too large.

    Raises:
        ValueError: If there are more than MOST_CELLS cells.
    """
    if count > MOST_CELLS:
        raise ValueError(f"the file exceeds the limit of {MOST_CELLS:,} values; split it")


def table_of_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with one row per object.

    Raises:
        ValueError: If the table is too large.
    """
    flat = [row if _is_flat(row) else flatten_row(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    check_cells(len(flat) * len(names))
    return table_of_columns({name: [row.get(name) for row in flat] for name in names})


def table_of_columns(columns: Mapping[str, Sequence[Any]]) -> Table:
    """Return a table whose columns are lists of equal length.

    Raises:
        ValueError: If the lists differ in length.
    """
    if len({len(cells) for cells in columns.values()}) > 1:
        raise ValueError("the columns differ in length; all columns must have the same number of values")
    named = zip(unique_names([str(name) for name in columns]), columns.values(), strict=True)
    return Table({name: column_of(cells) for name, cells in named})


def column_of(cells: Sequence[Any]) -> Any:
    """Return a column of numbers. If a cell is neither a number nor null, return a column of text."""
    import pyarrow as pa

    if all(cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool)) for cell in cells):
        try:
            has_float = any(isinstance(cell, float) for cell in cells)
            return pa.chunked_array([pa.array(cells, pa.float64() if has_float else pa.int64(), from_pandas=True)])
        except (pa.ArrowInvalid, OverflowError):
            return pa.chunked_array([pa.array([None if cell is None else float(cell) for cell in cells])])
    return pa.chunked_array([pa.array([None if cell is None else _text(cell) for cell in cells], pa.string())])


def _text(cell: Any) -> str:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return cell if isinstance(cell, str) else str(cell)


def _is_flat(row: Mapping[str, Any]) -> bool:
    return not any(isinstance(cell, dict | list) for cell in row.values())


def flatten_row(row: Mapping[str, Any], prefix: str = "", depth: int = DEPTH) -> dict[str, Any]:
    """Return the fields of an object and of nested objects, whose names are joined as a.b. Lists are left out, except
    lists of one object and lists of objects with a name and a number."""
    found: dict[str, Any] = {}
    has_values = any(isinstance(cell, int | float) and 0 < abs(cell) < LEAST_TIME for cell in row.values())
    for name, cell in row.items():
        if isinstance(cell, Mapping) and depth:
            found |= flatten_row(cell, f"{prefix}{name}.", depth - 1)
        elif (
            isinstance(cell, list) and len(cell) == 1 and isinstance(cell[0], Mapping) and depth > 1 and not has_values
        ):
            values = _named_values(cell) or flatten_row(cell[0], "", depth - 1)
            found |= {f"{prefix}{name}.{key}": value for key, value in values.items()}
        elif isinstance(cell, list):
            found |= {f"{prefix}{name}.{key}": value for key, value in _named_values(cell).items()}
        else:
            found[f"{prefix}{name}"] = cell
    return found


def _named_values(cells: list[Any]) -> dict[str, Any]:
    """Return the numbers by name in a list of objects that have a name and a number. The result is empty for other
    lists."""
    found: dict[str, Any] = {}
    for cell in cells:
        values = list(cell.values()) if isinstance(cell, Mapping) else []
        names = [value for value in values if isinstance(value, str)]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(values) != 2 or len(names) != 1 or len(numbers) != 1:
            return {}
        found[names[0]] = numbers[0]
    return found
