"""Parts of a section of the results page: tables, targets, and the origin of a measurement.

results.toml contains the texts; every number comes from the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A measurement as parsed by json.loads.
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A Markdown table below a `note`. The first column is text, the others are numbers."""

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
    """Named values, which are shown as a list with one value per line."""

    values: Mapping[str, Any]

    def lines(self) -> list[str]:
        return [f"- {name}: {as_text(value)}" for name, value in self.values.items()]


@dataclass(frozen=True)
class ShownBar:
    """A figure compared with its target. `is_met` is None if it was not measured."""

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
    """Return the whole file as one measurement."""
    return [document]


@dataclass(frozen=True)
class Shown:
    """The content of the page for a document: tables, facts, targets, and the parts with their own origin."""

    parts: Callable[[Document], Sequence[Table | Facts]]
    bars: Callable[[Document], Iterable[ShownBar]] = no_bars
    origins: Callable[[Document], Sequence[Document]] = whole


def percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def figure(value: float) -> str:
    """Format a number or limit in four digits, or return all of its digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def as_text(value: Any) -> str:
    """Return a value of a document as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {as_text(part)}" for name, part in value.items()).replace("_", " ") or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(map(as_text, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}" if isinstance(value, float) else str(value)


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
