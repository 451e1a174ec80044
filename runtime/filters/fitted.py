"""Systems that were fitted to series, in one file of JSON: `{"series": {"name": system, …}, "fits": {"name": …}}`.

A system is a document of `system.py`, so `rfa filter --system FILE` takes the file as it is, and a request or
`rfa.filter` any of its systems. What stands in `fits` tells how each was found, and is not read again.
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
    """Documents of systems by the names of their series.

    Attributes:
        fits: of each how it was found: parameters with standard errors, likelihoods, what was tried.
        failed: series that could not be fitted, and why.
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
        """Write the file; it is there as a whole or not at all."""
        content = json.dumps({"series": self.systems, "fits": self.fits}, allow_nan=False)
        part = Path(f"{path}.new")
        part.write_text(content + "\n", encoding="utf-8")
        part.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file, and check every system in it.

        Raises:
            ValueError: it is no such file, or names the system that is wrong, and how.
        """
        name = Path(path).name
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{name} is no JSON document: {error}") from None
        series = document.get("series") if isinstance(document, Mapping) else None
        if not isinstance(series, Mapping) or not series:
            raise ValueError(f"{name} has no models: it must hold series, systems by their names")
        for label, system in series.items():
            try:
                System.from_document(system)
            except InvalidSystem as error:
                raise ValueError(f"{name}, series {label!r}: {error}") from None
        return cls(dict(series), dict(document.get("fits", {})))


def are_models(document: object) -> bool:
    """Whether it is models, or what stands in their file, and no single system."""
    return isinstance(document, Models) or (isinstance(document, Mapping) and "series" in document)


def system_for(document: object, column: str, key: str = "", *, is_only: bool = True) -> System:
    """The system of one column of a series, of models or what stands in their file.

    Args:
        key: what the series is called among others, where a table has several.
        is_only: the series has no other columns. Of such a one the file may have had more, and does by both names.

    Raises:
        InvalidSystem: there is none, or it is wrong.
    """
    whole = {"series": document.systems} if isinstance(document, Models) else document
    found = whole.get("series") if isinstance(whole, Mapping) and set(whole) <= {"series", "fits"} else None
    if not isinstance(found, Mapping) or not found:
        raise InvalidSystem("series", "must hold systems by the names of their series; only fits may stand beside it")
    labels = [series_label(key, column, is_only=is_only), series_label(key, column, is_only=False)]
    for label in labels:
        if label in found:
            return System.from_document(found[label])
    shown = ", ".join(map(repr, list(found)[:8])) + (", …" if len(found) > 8 else "")
    raise InvalidSystem("series", f"has systems of {shown}, not of {labels[0]!r}")


def series_label(key: str, column: str, *, is_only: bool) -> str:
    """What a column is called among the series of a table: by its name, by the key, or where a key has several columns
    by both."""
    return (key if is_only else f"{key} / {column}") if key else column


__all__ = ["Models", "are_models", "series_label", "system_for"]
