"""Tables whose cells are not yet parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

MISSING: Final = (
    "", "-", "--", ".", "?", "na", "n/a", "#n/a", "<na>", "nan", "nil", "none", "null", "missing", "undefined",
    "#value!", "#ref!", "#div/0!", "unavailable", "unknown", "nodata", "no data", "n.a.", "k.a.", "n.v.", "n.d.",
    "nd", "s/d", "null value", "no value", "not available", "bad", "---", "…", "\u2013", "\u2014", "\\n",
    "*", "**", "***", "****",
)  # fmt: skip
# Texts that rows above and below the others have in the time column, such as totals.
NO_TIME: Final = re.compile(
    r"\s*|(grand )?total.*|sum|summe.*|gesamt.*|average|mean|mittelwert|min|max|source.*|quelle.*|-+|\(\d+ rows?\)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Table:
    """A table of Arrow columns with distinct names.

    Attributes:
        columns: Arrow columns by name.
        separator: Separator of the cells in the file. None if the file has none.
        first_row: Number of the first row in the file, for messages.
        notes: Notes on how the file was read.
        marks: Numbers that mark missing values according to the file.
        labels: Columns that are known to label the series.
        epoch: Unit and origin of numeric times that the lines above the header state. See `rfa.data.epochs`.
    """

    columns: dict[str, Any]
    separator: str | None = None
    first_row: int = 1
    notes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    epoch: str | None = None

    @classmethod
    def of(cls, table: pa.Table) -> Table:
        """Return a table with the columns of an Arrow table.

        Raises:
            ValueError: If the Arrow data is invalid.
        """
        import pyarrow as pa

        try:
            table.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ValueError(f"the table is damaged: {str(error).splitlines()[0]}") from None
        names = unique_names([str(name) for name in table.column_names])
        return cls(dict(zip(names, map(_plain, table.columns), strict=True)))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0


def _plain(column: Any) -> Any:
    """Return a column of strings in other Arrow types, such as dictionaries and those of polars, as plain strings."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_text = pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type)
    return column.cast(pa.string()) if is_text else column


def combine_chunks(column: Any) -> Any:
    """Return a column as one Arrow array."""
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def unique_names(names: list[str]) -> list[str]:
    """Return unique names. A number is appended to repeated names, as in `load` and `load_2`."""
    found: list[str] = []
    for name in names:
        count, new = 1, name
        while new in found:
            count += 1
            new = f"{name}_{count}"
        found.append(new)
    return found
