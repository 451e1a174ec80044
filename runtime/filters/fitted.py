"""Systems that were fitted to series. One JSON file stores them:
`{"series": {"name": system, …}, "fits": {"name": …}}`.

A system is a document as described in `system.py`. `rfa filter --system FILE` reads the file, and a request or
`rfa.filter` accepts any of its systems. `fits` contains a description of each fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rfa.runtime.filters.system import InvalidSystem, System


@dataclass(frozen=True)
class Models(Mapping[str, dict[str, Any]]):
    """Fitted systems by the names of their series.

    Attributes:
        systems: Mapping from names of series to documents of systems.
        fits: Description of each fit: parameters with standard errors, likelihoods and tried structures.
        failed: Mapping from names of series that could not be fitted to error messages.
    """

    systems: dict[str, dict[str, Any]]
    fits: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> dict[str, Any]:
        return self.systems[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.systems)

    def __len__(self) -> int:
        return len(self.systems)

    def save(self, path: str | Path) -> None:
        """Write the models to a JSON file, atomically."""
        content = json.dumps({"series": self.systems, "fits": self.fits}, allow_nan=False)
        part = Path(f"{path}.new")
        part.write_text(content + "\n", encoding="utf-8")
        part.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read fitted systems from a file, and check each system.

        Raises:
            ValueError: If the file is invalid. The message names the invalid system.
        """
        name = Path(path).name
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{name} is not a JSON document: {error}") from None
        series = document.get("series") if isinstance(document, Mapping) else None
        if not isinstance(series, Mapping) or not series:
            raise ValueError(
                f"{name} does not contain fitted models; `rfa fit` writes a file with systems by name under `series`"
            )
        for label, system in series.items():
            try:
                System.from_document(system)
            except InvalidSystem as error:
                raise ValueError(f"{name}, series {label!r}: {error}") from None
        return cls(dict(series), dict(document.get("fits", {})))


def are_models(document: object) -> bool:
    """Return whether a document is a `Models` object or the content of its file. Otherwise, it is the document of a
    single system."""
    return isinstance(document, Models) or (isinstance(document, Mapping) and "series" in document)


def system_for(document: object, column: str, key: str = "", *, is_only: bool = True) -> System:
    """Return the system for one column of a series.

    Args:
        document: Models, or the content of their file.
        column: Name of the column.
        key: Key of the series, if a table has several.
        is_only: Whether the series has no other columns. Otherwise, names of systems contain both key and column.

    Raises:
        InvalidSystem: If there is no such system, or it is invalid.
    """
    whole = {"series": document.systems} if isinstance(document, Models) else document
    found = whole.get("series") if isinstance(whole, Mapping) and set(whole) <= {"series", "fits"} else None
    if not isinstance(found, Mapping) or not found:
        raise InvalidSystem(
            "series",
            "must contain a system for each series, by the name of the series; besides series, only fits is allowed",
        )
    labels = [series_label(key, column, is_only=is_only), series_label(key, column, is_only=False)]
    for label in labels:
        if label in found:
            return System.from_document(found[label])
    shown = ", ".join(map(repr, list(found)[:8])) + (", …" if len(found) > 8 else "")
    raise InvalidSystem("series", f"contains systems for {shown}, but none for {labels[0]!r}")


def series_label(key: str, column: str, *, is_only: bool) -> str:
    """Return the name of a column in a table with several series or columns. It contains the column, the key of the
    series, or both."""
    return (key if is_only else f"{key} / {column}") if key else column
