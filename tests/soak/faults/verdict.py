"""The measurements of a scenario and its unmet requirements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Verdict:
    """Figures and requirements of one scenario."""

    measured: dict[str, Any]
    bars: dict[str, bool] = field(default_factory=dict)

    def require(self, bar: str, is_met: bool) -> None:
        """Add a requirement."""
        self.bars[bar] = bool(is_met)

    @property
    def missed(self) -> list[str]:
        """Return the unmet requirements."""
        return [bar for bar, is_met in self.bars.items() if not is_met]

    def to_document(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        return {**self.measured, "bars": self.bars, "passed": not self.missed}
