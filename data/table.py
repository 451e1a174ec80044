"""A table, of which the cells are as the file has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

MISSING: Final = (
    "", "-", "--", ".", "?", "na", "n/a", "#n/a", "<na>", "nan", "nil", "none", "null", "missing", "undefined",
    "#value!", "#ref!", "#div/0!",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Columns by their names, which differ; first_row: where the file has the first row, for messages; notes: what was
    decided while reading."""

    columns: dict[str, Any]
    separator: str | None = None
    first_row: int = 1
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: pa.Table) -> Table:
        """A table of Arrow's.

        Raises:
            ValueError: a column holds what it may not.
        """
        import pyarrow as pa

        try:
            table.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ValueError(f"the table is damaged: {str(error).splitlines()[0]}") from None
        names = distinct([str(name) for name in table.column_names])
        return cls(dict(zip(names, map(_plain, table.columns), strict=True)))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0


def _plain(column: Any) -> Any:
    """Text and dictionaries in their other layouts, such as polars writes, as text has it here."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_text = pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type)
    return column.cast(pa.string()) if is_text else column


def distinct(names: list[str]) -> list[str]:
    """Names that stand twice get a number."""
    found: list[str] = []
    for name in names:
        count, new = 1, name
        while new in found:
            count += 1
            new = f"{name}_{count}"
        found.append(new)
    return found
