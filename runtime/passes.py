"""Reweighting passes K of a filter, as requests may choose them.

The robust weight of an observation is found in K passes (docs/MATH.md §4). Requests may choose fewer passes for
linear filters with the capped rule. The deep filter was trained with a fixed number, and the other rules have one.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.errors import InvalidInput


class PassesRange(NamedTuple):
    """The smallest and the largest number. The largest is the model's default."""

    least: int
    most: int

    @classmethod
    def of(cls, bundle: Bundle) -> Self:
        """Return the passes of a bundle of kind "filter"."""
        return cls(*bundle.filter.passes)

    @property
    def are_chosen(self) -> bool:
        """Whether there is a choice."""
        return self.least < self.most

    def checked(self, passes: int | None, name: str) -> int:
        """Return the passes of a request to this model. None selects the default.

        Raises:
            InvalidInput: The number is not allowed. The message names the field.
        """
        if passes is None:
            return self.most
        if not self.least <= passes <= self.most:
            allowed = f"from {self.least} to {self.most}" if self.are_chosen else f"{self.most}, or null"
            raise InvalidInput(f"passes of model {name!r} must be {allowed}", param="passes", code="out_of_range")
        return passes
