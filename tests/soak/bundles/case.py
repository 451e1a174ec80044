"""A malicious bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """The bundle, the changed file or graph, the changed place, and the change."""

    bundle: str
    family: str
    what: str
    apply: Callable[[Path], None]

    def __str__(self) -> str:
        return f"{self.bundle}: {self.what}"
