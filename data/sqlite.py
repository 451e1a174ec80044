"""Read the only table of a SQLite database, or the result of a query."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from rfa.data.json_values import check_cells, table_of_columns
from rfa.data.table import Table, unique_names

# Queries may only read.
ALLOWED: Final = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
BATCH: Final = 10_000


def read_database(content: bytes, query: str | None) -> Table:
    """Return the rows of a query on a SQLite database. Without a query, return the rows of its only table.

    Raises:
        ValueError: If no query is given for several tables, or the query fails, writes, or returns no rows.
    """
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(content)
        text = query if query is not None else _only_table(connection)
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY)
        table = fetch(connection.execute(text))
    except sqlite3.Error as error:
        raise ValueError(f"SQLite could not read the database or run the query: {error}") from None
    finally:
        connection.close()
    note = "query" if query is not None else "the only table"
    return Table(table.columns, notes=(f"SQLite: {note}, {text}" if query is None else f"SQLite: {note}",))


def fetch(cursor: Any) -> Table:
    """Return the rows of a query that was executed.

    Raises:
        ValueError: If there are no rows, or too many.
    """
    if cursor.description is None:
        raise ValueError("--query must be a statement that returns rows, such as SELECT * FROM readings")
    names = unique_names([str(column[0]) for column in cursor.description])
    rows: list[Any] = []
    while batch := cursor.fetchmany(BATCH):
        rows += batch
        check_cells(len(rows) * len(names))
    if not rows:
        raise ValueError("the query returned no rows")
    return table_of_columns({name: [row[k] for row in rows] for k, name in enumerate(names)})


def _only_table(connection: sqlite3.Connection) -> str:
    found = connection.execute(
        "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite_%'"
    ).fetchall()
    return choose_table([str(row[0]) for row in found])


def choose_table(names: Sequence[str]) -> str:
    """Return the query that selects the rows of the only table.

    Raises:
        ValueError: If there is not exactly one table. The message names the tables.
    """
    if len(names) != 1:
        if not names:
            raise ValueError("the database has no tables")
        listed = ", ".join(map(repr, names))
        raise ValueError(
            f"the database has several tables ({listed}); select rows with --query 'SELECT * FROM {names[0]}'"
        )
    quoted = names[0].replace('"', '""')
    return f'SELECT * FROM "{quoted}"'
