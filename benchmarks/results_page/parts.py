"""What a declaration of a result is made of: tables, bars, and where the measurement comes from.

results.toml says in fixed words what was measured; the modules of the subjects have functions from a document to what
is shown of it. Every number of the page comes out of the document: words hold none that a new run may change.
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
    """What the page shows of a document.

    Attributes:
        parts: from the document to its tables and facts.
        bars: from the document to what was asked of it.
        origins: from the document to its parts that name a commit and hardware of their own.
    """

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
