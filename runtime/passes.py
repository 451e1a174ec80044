"""Reweighting passes K of a filter, as requests may choose them.

The robust weight of an observation is found by K passes (docs/MATH.md §4): the first looks at the innovation, each of
the others at what the one before it leaves. Linear filters with the capped rule let a request choose fewer than their
own; the deep filter was trained with its passes, and the other rules have none to choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.errors import InvalidInput


@dataclass(frozen=True)
class PassesRange:
    """The fewest and the most; the most are the model's own."""

    least: int
    most: int

    @classmethod
    def of(cls, bundle: Bundle) -> Self:
        """That of a bundle of kind "filter"."""
        return cls(*bundle.filter.passes)

    @property
    def are_chosen(self) -> bool:
        """Whether there is a choice."""
        return self.least < self.most

    def checked(self, passes: int | None, name: str) -> int:
        """The passes of a request to this model; None is its own.

        Raises:
            InvalidInput: naming the field.
        """
        if passes is None:
            return self.most
        if not self.least <= passes <= self.most:
            wanted = f"from {self.least} to {self.most}" if self.are_chosen else f"{self.most}, or null"
            raise InvalidInput(f"passes of model {name!r} must be {wanted}", param="passes", code="out_of_range")
        return passes
