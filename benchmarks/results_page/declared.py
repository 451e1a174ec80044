"""Tables, facts and targets of a result, as tables.toml declares them: paths into the document and templates of cells.

A path is names with slashes between them, `*` for each; it starts at a row. In a template `{path:format}` is a value of
the row: `.` itself, `@1` the key of the first `*` (in lists the number, from 1), `@` of the last, `^1/…` what the first
`*` stands for. Formats are Python's; `0.001*.2f` multiplies first, `2%` is a percentage with two digits, no format is
`as_text`. What is missing is a dash.

    tables       note: above it; rows: path; where: fields by value, with, without: fields that a row must have or must
                 not; columns: of each the head, the cell and, of columns that repeat, the path of what they repeat over
    facts        paths of values, a line each; those that are missing are left out
    bars         rows, name, actual, limit; met: path of a truth, or value: path of a number, over another with `of`,
                 held to at most `most` or at least `least`
    listed_bars  path of bars with name, actual, bar or budget, met
    none_of      name and path of what must be 0 or empty
    origins      paths of the parts that name a commit and hardware of their own
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any, NamedTuple

from rfa.benchmarks.results_page.parts import Document, Facts, Shown, ShownBar, Table, as_text, figure, percent

MISSING = "–"
_FIELD = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")
Spec = Mapping[str, Any]


class Row(NamedTuple):
    """A value of a document, with the keys and values matched by each `*` of its path."""

    value: Any
    keys: tuple[Any, ...] = ()
    parents: tuple[Any, ...] = ()


def declared(spec: Spec) -> Shown:
    """Return the content of the page for a result declared in tables.toml."""
    return Shown(partial(_parts, spec), partial(_bars, spec), partial(_origins, spec.get("origins", ["."])))


def rows_at(path: str, row: Row) -> Iterator[Row]:
    """Return every value that a path matches, or none."""
    name, _, rest = path.partition("/")
    value = row.value
    if path in ("", "."):
        yield row
    elif name == "*":
        items = value.items() if isinstance(value, Mapping) else enumerate(value, 1) if isinstance(value, list) else ()
        for key, part in items:
            yield from rows_at(rest, Row(part, (*row.keys, key), (*row.parents, part)))
    elif isinstance(value, Mapping) and name in value:
        yield from rows_at(rest, row._replace(value=value[name]))
    elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
        yield from rows_at(rest, row._replace(value=value[int(name)]))


def fill(template: str, row: Row) -> str:
    """Fill a template with the values of a row, or return a dash if one is missing."""
    values = [(_value(path, row), form) for path, form in _FIELD.findall(template)]
    if values and all(value is None for value, _ in values):
        return MISSING
    cells = iter(_formatted(value, form) for value, form in values)
    return _FIELD.sub(lambda _: next(cells), template).removesuffix(f" ± {MISSING}")


def _value(path: str, row: Row) -> Any:
    if path.startswith("@"):
        return row.keys[int(path[1:] or 0) - 1]
    if path.startswith("^"):
        number, _, rest = path[1:].partition("/")
        return _value(rest, row._replace(value=row.parents[int(number) - 1]))
    return next((found.value for found in rows_at(path, row)), None)


def _formatted(value: Any, form: str) -> str:
    if value is None:
        return MISSING
    if form.endswith("%"):
        return percent(value, int(form[:-1]))
    factor, _, rest = form.rpartition("*")
    return format(float(factor) * value, rest) if factor else format(value, form) if form else as_text(value)


def _parts(spec: Spec, document: Document) -> list[Table | Facts]:
    root = Row(document)
    found = {path.replace("/", ", ").replace("_", " "): _value(path, root) for path in spec.get("facts", ())}
    facts = {name: value for name, value in found.items() if value is not None}
    tables = [_table(one, root) for one in spec.get("tables", ())]
    return [*([Facts(facts)] if facts else []), *(table for table in tables if table is not None)]


def _table(spec: Spec, root: Row) -> Table | None:
    """Return a table, or None if the document has none of its rows."""
    rows = [row for row in rows_at(spec["rows"], root) if _is_included(spec, row)]
    if not rows:
        return None
    heads: list[str] = []
    cells: list[Callable[[Row], str]] = []
    for head, cell, *repeated in spec["columns"]:
        if not repeated:
            heads.append(fill(head, rows[0]))
            cells.append(partial(fill, cell))
            continue
        # A row may repeat fewer columns than another.
        keys = {one.keys[len(row.keys) :]: one for row in rows for one in rows_at(repeated[0], row)}
        heads += [fill(head, one) for one in keys.values()]
        cells += [partial(_repeated, cell, repeated[0], own) for own in keys]
    return Table(heads, [[cell(row) for cell in cells] for row in rows], fill(spec.get("note", ""), root))


def _is_included(spec: Spec, row: Row) -> bool:
    if "with" in spec and _value(spec["with"], row) is None:
        return False
    if "without" in spec and _value(spec["without"], row) is not None:
        return False
    allowed = {path: value if isinstance(value, list) else [value] for path, value in spec.get("where", {}).items()}
    return all(_value(path, row) in values for path, values in allowed.items())


def _repeated(cell: str, path: str, keys: tuple[Any, ...], row: Row) -> str:
    """Return the cell of the same keys in another row."""
    same = (one for one in rows_at(path, row) if one.keys[len(row.keys) :] == keys)
    return next((fill(cell, one) for one in same), MISSING)


def _bars(spec: Spec, document: Document) -> Iterator[ShownBar]:
    root = Row(document)
    if "listed_bars" in spec:
        for row in rows_at(spec["listed_bars"], root):
            bar = row.value
            limit = f"{bar['kind']} {figure(bar['bar'])}" if "kind" in bar else f"{bar.get('bar', bar.get('budget')):g}"
            is_missing = bar["actual"] is None
            actual = MISSING if is_missing else figure(bar["actual"])
            yield ShownBar(bar["name"], actual, limit, None if is_missing else bar["met"])
    for name, path in spec.get("none_of", {}).items():
        found = _value(path, root)
        count = len(found) if isinstance(found, Sized) else found
        yield ShownBar(name, str(count), "0", count == 0)
    for one in spec.get("bars", ()):
        for row in rows_at(one.get("rows", ""), root):
            if (is_met := _is_met(one, row)) is not None or "met" in one:
                name, actual, limit = (fill(one[part], row) for part in ("name", "actual", "limit"))
                yield ShownBar(name, actual, limit, is_met)


def _is_met(spec: Spec, row: Row) -> bool | None:
    """Return None without a value to compare with the limit."""
    if "met" in spec:
        met: bool | None = _value(spec["met"], row)
        return met
    value = _value(spec["value"], row)
    if "of" in spec and value is not None:
        value /= _value(spec["of"], row)
    return None if value is None else bool(spec.get("least", value) <= value <= spec.get("most", value))


def _origins(paths: Sequence[str], document: Document) -> list[Document]:
    return [found.value for path in paths for found in rows_at(path, Row(document))]
