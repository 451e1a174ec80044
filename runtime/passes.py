"""Number of reweighting passes K of a model.

The robust weight of an observation or token is found in K passes (docs/MATH.md §4). Requests may choose fewer passes
for linear filters with the capped rule, and for language models with memory slots on a CPU. The deep filter was trained
with a fixed number, and the other rules use one pass.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.errors import InvalidInput


class PassesRange(NamedTuple):
    """Smallest and largest number of passes. The largest is the default of the model."""

    least: int
    most: int

    @classmethod
    def of(cls, bundle: Bundle) -> Self:
        """Return the range of passes in the bundle of a filter or a language model."""
        return cls(*(bundle.language if bundle.kind == "lm" else bundle.filter).passes)

    @property
    def are_chosen(self) -> bool:
        """Whether requests may choose the number of passes."""
        return self.least < self.most

    def checked(self, passes: int | None, name: str, field: str = "passes") -> int:
        """Return the number of passes for a request.

        Args:
            passes: Requested number. None selects the default of the model.
            name: Name of the model, for the message.
            field: Name of the field, for the message.

        Raises:
            InvalidInput: If the number is not allowed. The message names the field.
        """
        if passes is None:
            return self.most
        if not self.least <= passes <= self.most:
            allowed = f"between {self.least} and {self.most}" if self.are_chosen else f"{self.most}, or null"
            raise InvalidInput(f"{field} of model {name!r} must be {allowed}", param=field, code="out_of_range")
        return passes
