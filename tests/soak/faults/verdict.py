"""What a scenario measured, and which bars it missed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Verdict:
    """Figures and bars of one scenario."""

    measured: dict[str, Any]
    bars: dict[str, bool] = field(default_factory=dict)

    def require(self, bar: str, is_met: bool) -> None:
        """Hold the scenario to a bar."""
        self.bars[bar] = bool(is_met)

    @property
    def missed(self) -> list[str]:
        """Bars that were not met."""
        return [bar for bar, is_met in self.bars.items() if not is_met]

    def to_document(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.measured, "bars": self.bars, "passed": not self.missed}
