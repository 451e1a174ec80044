"""Find the tables in a JSON document: lists of rows, pairs or columns. The fields around a list are labels of its
rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from rfa.data.clock_choice import clock_column, numeric_sample
from rfa.data.json_values import check_cells, column_of, flatten_row
from rfa.data.table import Table

Labels = dict[str, Any]
Block = tuple[Labels, Table]
Read = Callable[[Any], Table | None]
# Maximum number of nested objects and lists around the rows, as in {"data": {"rows": […]}}.
MOST_LEVELS: Final = 12
MOST_BLOCKS: Final = 100_000
# Label that contains the name of the field with the table.
FIELD: Final = "name"
# Names of the start time of rows with positions, of the positions and of offsets, and format of a resolution, as in
# ENTSO-E's JSON.
START, POSITION, OFFSET = "start", "position", "offset"
RESOLUTION: Final = re.compile(r"P(?:T?)(\d{1,4})([MHD])")
UNITS: Final = {"M": "minutes", "H": "hours", "D": "days"}
# Prefix of a label whose name is also that of a column of the rows.
OUTER: Final = "outer "
# Names of labels that name a series, which are the first columns, and of identifiers, which are the last columns.
NAMES, IDENTIFIERS = ("label", "name", "title", "metric"), ("id", "uuid", "href", "url", "uri")


def read_blocks(document: Any, read: Read) -> Table | None:
    """Return the rows of all tables in a JSON document that have the same columns. If there are several such groups of
    tables, those with times are preferred, and then those with the most rows. Return None if there are no tables.

    Args:
        document: Parsed JSON.
        read: Function that returns the table in a list, or in the columns of an object, or None.
    """
    groups: dict[tuple[str, ...], list[Block]] = {}
    problems: list[ValueError] = []

    def attempt(value: Any) -> Table | None:
        try:
            return read(value)
        except ValueError as error:
            problems.append(error)
            return None

    for count, (labels, table) in enumerate(_blocks(document, {}, attempt, MOST_LEVELS)):
        if count == MOST_BLOCKS:
            raise ValueError(f"this JSON has more than {MOST_BLOCKS:,} tables; use an array of objects, or CSV")
        groups.setdefault(tuple(table.columns), []).append((labels, table))

    def rank(blocks: Sequence[Block]) -> tuple[bool, int]:
        rows = sum(len(table) for _, table in blocks)
        return rows > 1 and clock_column(blocks[0][1].columns) is not None, rows

    if not groups and problems:
        raise problems[0]
    return _join(max(groups.values(), key=rank)) if groups else None


def _blocks(value: Any, labels: Labels, read: Read, levels: int) -> Iterator[Block]:
    """Yield the outermost tables that contain times, or all tables if none contains times."""
    table = read(value)
    if isinstance(value, Mapping):
        labels = labels | flatten_row({name: cell for name, cell in value.items() if not name[:1].isdigit()})
    if table is not None:
        table = _with_times(table, labels)
    is_timed = table is not None and clock_column(table.columns) is not None
    if table is not None and is_timed and not (_is_shell(table) or _has_times_inside(value, labels, read, levels)):
        yield labels, table
        return
    found: list[Block] = []
    if levels and isinstance(value, Mapping):
        for name, child in value.items():
            if isinstance(child, list | Mapping):
                found += _blocks(child, labels | {FIELD: labels.get(FIELD, name)}, read, levels - 1)
    elif levels and isinstance(value, list):
        for row in value:
            inside = row.values() if isinstance(row, Mapping) else row if isinstance(row, list) else ()
            if any(isinstance(cell, list | Mapping) for cell in inside):
                found += _blocks(row, labels, read, levels - 1)
    if is_timed and sum(len(inner) for _, inner in found) > 1:
        table = None
    if table is not None and not any(clock_column(inner.columns) is not None for _, inner in found):
        found.append((labels, table))
    yield from found


def _has_times_inside(value: Any, labels: Labels, read: Read, levels: int) -> bool:
    """Return whether the first row of a list contains a list of rows with times and values."""
    row = value[0] if isinstance(value, list) and value and isinstance(value[0], Mapping) else {}
    inside = {name: cell for name, cell in row.items() if isinstance(cell, list) and len(cell) > 1}
    return bool(levels and inside) and any(
        len(table) > 1 and clock_column(table.columns) is not None and not _is_shell(table)
        for _, table in _blocks(inside, labels, read, levels - 1)
    )


def _is_shell(table: Table) -> bool:
    """Return whether a table has a single row, or no numbers except the times. A nested table is then more likely the
    data."""
    clock = clock_column(table.columns)
    return len(table) == 1 or all(
        name == clock or numeric_sample(column) is None for name, column in table.columns.items()
    )


def _with_times(table: Table, labels: Labels) -> Table:
    """Add times to rows with positions or offsets. They are computed from the start time and the resolution in the
    labels."""
    start = next((labels[name] for name in labels if name.lower().rpartition(".")[2] == START), None)
    name = next((name for name in table.columns if name.lower() in (POSITION, OFFSET)), None)
    step = next((found for text in labels.values() if (found := RESOLUTION.fullmatch(str(text)))), None)
    if start is None or name is None or (step is None and name != OFFSET):
        return table
    try:
        begin = datetime.fromisoformat(str(start))
        span = timedelta(seconds=1) if step is None else timedelta(**{UNITS[step[2]]: int(step[1])})
        counts = [int(cell) - (name != OFFSET) for cell in table.columns[name].to_pylist()]
        times = [(begin + span * count).isoformat() for count in counts]
    except (ValueError, TypeError, OverflowError):
        return table
    rest = {other: column for other, column in table.columns.items() if other != name}
    return Table({"time": column_of(times), **rest}, notes=table.notes)


def _join(blocks: Sequence[Block]) -> Table:
    """Return one table with all rows. Labels that differ between the tables become columns."""
    import pyarrow as pa

    if len(blocks) == 1:
        return blocks[0][1]
    names = [name for name in blocks[0][0] if len({str(labels.get(name)) for labels, _ in blocks}) > 1]
    sizes = [len(table) for _, table in blocks]
    check_cells(sum(sizes) * (len(names) + len(blocks[0][1].columns)))
    which = pa.array([number for number, size in enumerate(sizes) for _ in range(size)], pa.int64())
    columns: dict[str, Any] = {}
    for name in sorted(names, key=_label_order):
        cells = [labels.get(name) for labels, _ in blocks]
        if not all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells):
            cells = [str(labels.get(name, "none")) for labels, _ in blocks]
        columns[name if name not in blocks[0][1].columns else f"{OUTER}{name}"] = column_of(cells).take(which)
    for name in blocks[0][1].columns:
        cells = [cell for _, table in blocks for cell in table.columns[name].to_pylist()]
        columns[name] = column_of(cells)
    return Table(columns, labels=tuple(columns)[: len(names)])


def _label_order(name: str) -> int:
    word = name.rpartition(".")[2].lower()
    return 0 if word in NAMES or name.lower().endswith(".name.value") else 2 if word in IDENTIFIERS else 1


def parallel_lists(document: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Return the lists of equal length in an object and in nested objects, if the object itself contains such a
    list."""
    own = {name: cells for name, cells in document.items() if _are_plain(cells)}
    if not own:
        return {}
    length = Counter(map(len, own.values())).most_common(1)[0][0]
    found: dict[str, Sequence[Any]] = {}
    for name, cells in _lists(document, "", 3):
        if len(cells) == length:
            found[name if name not in found else f"{name}_{len(found)}"] = cells
    return found


def _lists(value: Mapping[str, Any], name: str, levels: int) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the lists of plain values in an object and in nested objects. If an object has a label and a single list,
    the list is named after the label."""
    label = next((value[key] for key in NAMES if isinstance(value.get(key), str)), name)
    lists = [key for key, cells in value.items() if _are_plain(cells)]
    for key, cells in value.items():
        if key in lists:
            yield (label if label and len(lists) == 1 else key), cells
        elif levels and isinstance(cells, Mapping):
            yield from _lists(cells, "", levels - 1)
        elif levels and isinstance(cells, list):
            for inner in cells:
                if isinstance(inner, Mapping):
                    yield from _lists(inner, "", levels - 1)


def _are_plain(cells: Any) -> bool:
    return isinstance(cells, list) and len(cells) > 1 and not any(isinstance(cell, list | Mapping) for cell in cells)


def named_cells(document: Mapping[str, Any]) -> dict[str, Sequence[Any]] | None:
    """Return the columns of a list of rows or columns whose names are in another list, as in replies of databases.
    Return None for other objects."""
    parts = [document, *(value for value in document.values() if isinstance(value, Mapping))]
    headers = [_header(cells) for part in parts for cells in part.values() if isinstance(cells, list)]
    bodies = [cells for part in parts for cells in part.values() if _are_lists(cells)]
    for names in filter(None, headers):
        for body in bodies:
            rows = [_unwrap(row) for row in body]
            if all(isinstance(row, list) and len(row) == len(names) for row in rows):
                return {name: [_unwrap(row[k]) for row in rows] for k, name in enumerate(names)}
            if len(rows) == len(names) and len({len(row) for row in rows}) == 1:
                return dict(zip(names, rows, strict=True))
    return None


def _header(cells: list[Any]) -> list[str]:
    """Return the names in a list of names, or of objects with a name. The result is empty for other lists."""
    if not cells:
        return []
    found = [cell.get("name", cell.get("text")) if isinstance(cell, Mapping) else cell for cell in cells]
    return found if all(isinstance(name, str) for name in found) else []


def _are_lists(cells: Any) -> bool:
    return isinstance(cells, list) and len(cells) > 1 and all(isinstance(_unwrap(row), list) for row in cells)


def _unwrap(value: Any) -> Any:
    """Return the value of an object whose only field is `f` or `v`, as in the rows and cells of BigQuery."""
    is_wrapped = isinstance(value, Mapping) and len(value) == 1 and {*value} <= {"f", "v"}
    return next(iter(value.values())) if is_wrapped else value
