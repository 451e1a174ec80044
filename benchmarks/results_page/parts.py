"""Parts of a section of the results page: tables, bars, and the origin of a measurement.

Words are in results.toml; every number comes from the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A measurement as json.loads gives it.
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A Markdown table; `note` stands above it. The first column is text, all others are numbers."""

    head: Sequence[str]
    rows: Iterable[Sequence[object]]
    note: str = ""

    def lines(self) -> list[str]:
        return [
            *([self.note, ""] if self.note else []),
            _line(self.head),
            _line(["---", *["---:"] * (len(self.head) - 1)]),
            *map(_line, self.rows),
        ]


@dataclass(frozen=True)
class Facts:
    """Named values, one in a line; a value may be counts by name, a list, or nothing."""

    values: Mapping[str, Any]

    def lines(self) -> list[str]:
        return [f"- {name}: {as_text(value)}" for name, value in self.values.items()]


@dataclass(frozen=True)
class ShownBar:
    """A number held against what had been asked of it beforehand; `is_met` is None where it was not measured."""

    name: str
    actual: str
    limit: str
    is_met: bool | None

    @property
    def verdict(self) -> str:
        return {True: "met", False: "**missed**", None: "not measured"}[self.is_met]


def no_bars(_: Any) -> list[ShownBar]:
    return []


def whole(document: Document) -> list[Document]:
    """The file is one measurement."""
    return [document]


@dataclass(frozen=True)
class Shown:
    """How the page shows a document: its tables and facts, its bars, and the parts with a commit and hardware."""

    parts: Callable[[Document], Sequence[Table | Facts]]
    bars: Callable[[Document], Iterable[ShownBar]] = no_bars
    origins: Callable[[Document], Sequence[Document]] = whole


def percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def figure(value: float) -> str:
    """A measured number or a limit in four digits, or all that it has."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def as_text(value: Any) -> str:
    """A value of a document in words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {as_text(part)}" for name, part in value.items()).replace("_", " ") or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(map(as_text, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}" if isinstance(value, float) else str(value)


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
