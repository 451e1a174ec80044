"""A bundle to try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """Which, in which of its files or as a graph, what is changed, and how."""

    bundle: str
    family: str
    what: str
    apply: Callable[[Path], None]

    def __str__(self) -> str:
        return f"{self.bundle}: {self.what}"
